"""Parts of the benchmark without timing: operands and programs of a row, bounds of errors, arms, the summary."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import math
import pathlib
import sys
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_moye
from jax_moye import __main__ as cli
from jax_moye._bench import bench, charts, report, workloads
from jax_moye._kernels.devices import DEVICES
from jax_moye._timing import correctness

ROW = {"id": "A1", "regime": "own", "batch": 1, "m": 40, "n": 24, "k": 96, "layout": "NN", "dtype": "bf16"}


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def as_numpy(x):
    return np.asarray(x).astype(np.float64)


def exact(row, operands):
    a, b = map(as_numpy, operands[:2])
    a = a.swapaxes(-1, -2) if row["layout"][0] == "T" else a
    b = b.swapaxes(-1, -2) if row["layout"][1] == "T" else b
    return a @ b


def one_set(row):
    """Of NumPy's numbers: JAX would compile for each test."""
    dtype, rng = jnp.dtype(workloads.NAMES[row["dtype"]]), np.random.default_rng(0)
    normal = row["dtype"] != "s8"
    values = [
        rng.standard_normal(struct.shape) if normal else rng.integers(-127, 128, struct.shape)
        for struct in workloads.shapes(row, dtype)
    ]
    structs = workloads.shapes(row, dtype)
    return dtype, [jnp.asarray(x.astype(struct.dtype)) for x, struct in zip(values, structs, strict=True)]


class TestRows:
    @pytest.mark.parametrize(
        ("dtype", "layout"),
        [("bf16", "NN"), ("f32", "TN"), ("f64", "NN"), ("s8", "NT"), ("f8e4m3", "NT"), ("e5m2", "NN")],
    )
    def test_xla_program(self, dtype, layout):
        row = ROW | {"dtype": dtype, "layout": layout}
        dtype, operands = one_set(row)
        d = jax.jit(workloads.xla(row, dtype))(*operands)
        assert d.shape == (row["m"], row["n"])
        assert d.dtype == {"s8": np.int32, "f8e4m3": ml_dtypes.bfloat16, "e5m2": ml_dtypes.bfloat16}.get(
            row["dtype"], dtype
        )
        np.testing.assert_allclose(as_numpy(d), exact(row, operands), rtol=0.02, atol=0.2)

    def test_different_sets(self):
        a, b = workloads.operands(ROW, jnp.dtype("bfloat16"), 3)
        assert len(a) == len(b) == 3
        assert len({np.asarray(x).tobytes() for x in a}) == 3
        assert 0.9 < np.std(as_numpy(a[0])) < 1.1

    def test_footprint(self):
        row = ROW | {"epilogue": "bias+gelu"}
        m, n, k = (row[key] for key in "mnk")
        assert workloads.footprint(row, jnp.dtype("bfloat16")) == 2 * (m * k + k * n + m * n + n)
        row = ROW | {"dtype": "s8"}
        assert workloads.footprint(row, jnp.dtype("int8")) == m * k + k * n + 4 * m * n

    def test_epilogues(self):
        assert workloads.epilogue_of(ROW) == (False, None, False)
        assert workloads.epilogue_of(ROW | {"epilogue": "bias+silu"}) == (True, "silu", False)
        assert workloads.epilogue_of(ROW | {"epilogue": "residual"}) == (False, None, True)
        for wrong in ("bias+swash", "gelu+silu"):
            with pytest.raises(NotImplementedError, match=wrong.replace("+", r"\+")):
                workloads.epilogue_of(ROW | {"epilogue": wrong})
        with pytest.raises(NotImplementedError, match="batch"):
            workloads.epilogue_of(ROW | {"epilogue": "bias", "batch": 2})

    def test_own_shape(self):
        row = workloads.own_row("8x64x32x128:f16:NT", 3)
        assert row == {
            "id": "S3",
            "regime": "own",
            "batch": 8,
            "m": 64,
            "n": 32,
            "k": 128,
            "layout": "NT",
            "dtype": "f16",
        }
        with pytest.raises(ValueError, match="--shape"):
            workloads.own_row("64x64:bf16", 1)
        row = workloads.own_row("64x64x64:f32", 1, "highest")
        assert row["precision"] == "HIGHEST"
        assert workloads.precision_of(row) == "highest"

    @pytest.mark.parametrize(
        ("row", "expected"),
        [
            ({"layout": "NT", "dtype": "f8e4m3"}, "e4m3"),
            ({"layout": "NT", "dtype": "s8"}, "s8"),
            ({"epilogue": "bias+gelu"}, "bf16"),
            ({"epilogue": "residual"}, "bf16"),
            ({"layout": "NT", "dtype": "f8e4m3", "precision": "ANY_F8_ANY_F8_F32_FAST_ACCUM"}, "e4m3"),
            ({"dtype": "f32", "precision": "HIGHEST"}, "f32"),
            ({"dtype": "f32", "precision": "DEFAULT"}, "tf32"),
        ],
    )
    def test_one_kernel_of_ours_on_cuda(self, row, expected):
        row = ROW | {"m": 512, "n": 512, "k": 512} | row
        dtype = jnp.dtype(workloads.NAMES[row["dtype"]])
        program = jax.jit(workloads.ours(row, dtype, {"implementation": "moye"}))
        text = program.trace(*workloads.shapes(row, dtype)).lower(lowering_platforms=("cuda",)).as_text()
        configs = {config.name: config for config in jax_moye.configs()}
        assert configs[bench.config_of(text)].dtype == expected


def test_who_chose():
    row = ROW | {"m": 4096, "n": 4096, "k": 4096}
    h200 = DEVICES["h200"]
    found = bench.selection(row, jnp.dtype("bfloat16"), None, h200)
    assert found["chosen_by"] in ("model", "table", "cache")
    assert found["by_default"] in ("moye", "xla")
    name = next(config.name for config in jax_moye.configs() if config.dtype == "bf16")
    assert bench.selection(row, jnp.dtype("bfloat16"), name, h200)["chosen_by"] == "explicit"
    fused = bench.selection(row | {"epilogue": "bias+gelu"}, jnp.dtype("bfloat16"), name, h200)
    assert fused == {"chosen_by": "explicit", "by_default": fused["by_default"]}


EPILOGUES = {
    "bias": lambda z, x: z + x,
    "relu": lambda z: np.maximum(z, 0),
    "gelu": lambda z: 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3))),
    "gelu_exact": lambda z: 0.5 * z * (1 + np.vectorize(math.erf)(z / np.sqrt(2))),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "residual": lambda z, x: z + x,
}


class TestBounds:
    """The reference is NumPy's, and what is over the bound by a little is found."""

    @pytest.mark.parametrize("layout", ["NN", "TN", "NT"])
    @pytest.mark.parametrize(
        "epilogue", ["", "bias", "relu", "bias+gelu", "bias+silu", "residual", "bias+gelu+residual"]
    )
    def test_rounded_results_are_right(self, layout, epilogue):
        row = ROW | {"layout": layout} | ({"epilogue": epilogue} if epilogue else {})
        dtype, operands = one_set(row)
        d, rest = exact(row, operands), [as_numpy(x) for x in operands[2:]]
        for part in epilogue.split("+") if epilogue else []:
            d = EPILOGUES[part](d, rest.pop(0)) if part in ("bias", "residual") else EPILOGUES[part](d)
        reference = correctness.Reference(row, operands, dtype)
        rounded = d.astype(ml_dtypes.bfloat16)
        assert reference.excess(jnp.asarray(rounded)) <= 1
        # 2^-7 of the largest element of the last row, which is always looked at: two roundings' worth.
        worst = d.copy()
        worst[-1, np.abs(d[-1]).argmax()] *= 1 + 2**-6
        assert reference.excess(jnp.asarray(worst.astype(ml_dtypes.bfloat16))) > 1
        wrong = np.asarray(rounded).copy()
        wrong[-1, 0] = np.nan
        assert reference.excess(jnp.asarray(wrong)) == np.inf

    def test_integers_are_exact(self):
        row = ROW | {"dtype": "s8"}
        dtype, operands = one_set(row)
        reference = correctness.Reference(row, operands, dtype)
        d = exact(row, operands).astype(np.int32)
        assert reference.excess(jnp.asarray(d)) == 0
        d[-1, 3] += 1
        assert reference.excess(jnp.asarray(d)) == np.inf

    def test_of_8_bit_floats_the_config_says(self):
        row = ROW | {"dtype": "f8e4m3", "k": 4096}
        dtype, operands = one_set(row)
        reference = correctness.Reference(row, operands, dtype)
        by_accumulator = {
            config.accumulator: config
            for config in jax_moye.configs()
            if config.dtype == "e4m3" and config.kernel.startswith("sm90")
        }
        promoted = reference.factor(by_accumulator["f32"])
        assert 4 * 2**-13 <= promoted < 5 * 2**-13
        assert reference.factor(None, baseline=True) >= 128 * 2**-13
        if "f32_fast" in by_accumulator:
            assert reference.factor(by_accumulator["f32_fast"]) >= 128 * 2**-13

    def test_a_batch(self):
        row = ROW | {"batch": 3}
        dtype, operands = one_set(row)
        d = exact(row, operands)
        assert bench.largest_excess(row, *operands, jnp.asarray(d.astype(ml_dtypes.bfloat16)), dtype) <= 1
        d[1, -1, 5] += 1 + abs(d[1, -1, 5])
        assert bench.largest_excess(row, *operands, jnp.asarray(d.astype(ml_dtypes.bfloat16)), dtype) > 1

    def test_only_a_baseline_may_round_operands_to_tf32(self):
        row = ROW | {"dtype": "f32", "precision": "DEFAULT"}
        dtype, operands = one_set(row)
        a, b = ((as_numpy(x).astype(np.float32).view(np.uint32) & 0xFFFFE000).view(np.float32) for x in operands)
        d = jnp.asarray((a.astype(np.float64) @ b).astype(np.float32))
        reference = correctness.Reference(row, operands, dtype)
        assert reference.excess(d) > 1
        assert reference.excess(d, baseline=True) <= 1

    def test_bits(self):
        x = jnp.array([0.0, 1.0], jnp.bfloat16)
        assert bench.same_bits(x, x + 0)
        assert not bench.same_bits(x, -x)


def measured(name, ratio, regime="large"):
    sizes = {"batch": 1, "m": 64, "n": 64, "k": 64, "layout": "NN", "dtype": "bf16"}
    return {"id": name, "regime": regime, "correct": True, "ratio": ratio, "ratio_ci": [ratio, ratio], **sizes}


class TestReport:
    def test_summary(self):
        rows = [measured(f"A{i + 1}", 1 + i / 10) for i in range(11)]
        rows += [measured("G1", 4.0, "odd"), {"id": "B1", "regime": "mid", "correct": False}]
        *regimes, core = report.summary(rows)
        assert regimes[1] == "odd: geometric mean of the ratios 4.000 of 1 rows"
        mean = np.exp(np.mean(np.log([1 + i / 10 for i in range(11)])))
        assert f"{mean:.3f} of 11 rows" in core  # G1 is not core
        assert "one row in ten at 1.100 or below" in core
        assert core.endswith("the lowest: A1 1.000, A2 1.100, A3 1.200, A4 1.300, A5 1.400")

    @pytest.mark.parametrize(
        ("options", "mode"),
        [
            ([], "sustained"),
            (["--warmup-ms", "300"], "short"),
            (["--mode", "burst"], "burst"),
            (["--mode", "both"], "sustained"),
        ],
    )
    def test_mode(self, options, mode):
        parser = argparse.ArgumentParser()
        bench.add_arguments(parser)
        assert report.mode(parser.parse_args(options)) == mode

    def test_written_at_once(self, tmp_path):
        path = tmp_path / "out.json"
        path.write_text("old")
        with pytest.raises(TypeError):
            report.write({"rows": object()}, path)
        assert path.read_text() == "old"
        report.write({"rows": []}, path)
        assert json.loads(path.read_text()) == {"rows": []}

    def test_wrong_names(self, capsys):
        quick = ["bench", "--interpret", "--shape", "8x8x8:bf16"]
        assert cli.main([*quick, "--config", "sm80_nothing"]) == 1
        assert "sm80_nothing" in capsys.readouterr().err
        assert cli.main([*quick, "--baselines", "xla,mkl"]) == 1
        assert "mkl" in capsys.readouterr().err
        assert cli.main([*quick, "--alternations", "0"]) == 1
        assert "--alternations is at least 1" in capsys.readouterr().err
        assert cli.main(["bench", "--interpret", "--shape", "8x8:bf16"]) == 1
        assert "--shape" in capsys.readouterr().err


def on_h200(name, ratio, us, config="sm90_pingpong_bf16_64x64x64_s8_a16", **more):
    row = measured(name, ratio) | {"config": config, **more}
    flops = 2 * row["batch"] * row["m"] * row["n"] * row["k"]
    return row | {"us": us, "tflops": flops / us / 1e6, "baselines": {"xla": us * ratio}, "best_baseline": "xla"}


class TestCharts:
    def report(self, *rows, gpu="NVIDIA H200"):
        head = {"gpu": gpu, "jax": "0.11.2", "commit": "abc", "date": "2026-01-01T00:00:00Z", "emulated": False}
        return head | {"rows": list(rows), "not_run": []}

    def rows(self):
        square = {"m": 4096, "n": 4096, "k": 4096}
        return [
            on_h200("A1", 2.0, 200.0, **square),
            on_h200("H2", 0.5, 500.0, "sm90_cooperative_tf32_128x128x32_s5_a4", dtype="f32", **square),
            on_h200("S1", 1.0, 100.0, regime="own", epilogue="bias+gelu", **square),
        ]

    def test_intensity(self):
        row = self.rows()[0]
        assert charts.intensity(row) == pytest.approx(4096 / 3)
        assert charts.unit_of(self.rows()[1]) == "tf32"
        f32 = self.rows()[1]
        assert charts.intensity(f32) == pytest.approx(4096 / 6)

    def points(self, svg):
        root = ElementTree.fromstring(svg)
        name = "{http://www.w3.org/2000/svg}"
        found = {}
        for circle in root.iter(f"{name}circle"):
            found[circle.find(f"{name}title").text] = (float(circle.get("cx")), float(circle.get("cy")))
        keys = ("x1", "y1", "x2", "y2")
        roofs = [line for line in root.iter(f"{name}line") if line.get("stroke-width") == "1.5"]
        lines = [{key: float(line.get(key)) for key in keys} for line in roofs]
        return found, lines, [text.text for text in root.iter(f"{name}text")]

    def test_roofline(self):
        points, lines, texts = self.points(charts.roofline(self.report(*self.rows())))
        a = next(at for title, at in points.items() if title.startswith("A1 4096x4096x4096: 687"))
        s = next(at for title, at in points.items() if title.startswith("S1 4096x4096x4096 bias+gelu: 1374"))
        h = next(at for title, at in points.items() if title.startswith("H2 4096x4096x4096 f32: 274"))
        assert abs(s[0] - a[0]) <= 0.2  # nearly the same intensity, twice as fast: higher by log 2
        assert h[0] < a[0]
        assert h[1] > a[1] > s[1]
        assert "bf16 989" in texts
        assert "tf32 495" in texts
        (roof,) = (line for line in lines if line["y1"] == line["y2"] and s[1] < line["y1"] < a[1])
        decade = (h[1] - a[1]) / math.log10(687.19 / 274.88)
        assert a[1] - roof["y1"] == pytest.approx(decade * math.log10(989.4 / 687.19), abs=0.3)

    def test_no_roof_is_known(self):
        assert charts.roofline(self.report(*self.rows(), gpu="cpu")) is None
        assert charts.roofline(self.report()) is None
        assert charts.ratio_chart(self.report()) is None

    def test_ratios(self):
        svg = charts.ratio_chart(self.report(*self.rows()))
        root = ElementTree.fromstring(svg)
        bars = {}
        for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
            if (title := bar.find("{http://www.w3.org/2000/svg}title")) is not None:
                bars[title.text.split()[0]] = (float(bar.get("x")), float(bar.get("width")))
        assert bars["A1"][1] == pytest.approx(bars["H2"][1], abs=0.2)  # 2 and 1/2
        assert bars["H2"][0] + bars["H2"][1] == pytest.approx(bars["A1"][0], abs=0.2)  # both end at 1

    def test_show(self, tmp_path, capsys):
        file = tmp_path / "result.json"
        file.write_text(json.dumps(self.report(*self.rows())))
        assert cli.main(["show", str(file), "--svg", str(tmp_path / "charts")]) == 0
        printed = capsys.readouterr().out
        assert "core, A to E: geometric mean of the ratios 2.000 of 1 rows" in printed
        for name in ("result_ratio.svg", "result_roofline.svg"):
            ElementTree.fromstring((tmp_path / "charts" / name).read_text())
            assert name in printed

    def test_show_of_what_is_no_result(self, tmp_path, capsys):
        file = tmp_path / "result.json"
        assert cli.main(["show", str(file)]) == 1
        file.write_text("{")
        assert cli.main(["show", str(file)]) == 1
        file.write_text('{"shape": [1, 2]}')
        assert cli.main(["show", str(file)]) == 1
        assert capsys.readouterr().err.count("result.json") == 3


def test_the_page_of_a_result_with_bursts_and_epilogues():
    path = pathlib.Path(__file__).resolve().parents[3] / "tools/benchmark_pages.py"
    spec = importlib.util.spec_from_file_location("benchmark_pages", path)
    pages = sys.modules["benchmark_pages"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(pages)
        rows = [on_h200("A1", 2.0, 200.0, burst={"ratio": 1.5}), on_h200("B1", 2.0, 200.0, epilogue="bias+gelu")]
        report = {"gpu": "NVIDIA H200", "jax": "0.11.2", "commit": "abc", "date": "2026-01-01", "rows": rows}
        report |= {"protocol": {"mode": "sustained", "alternations": 9}, "not_run": []}
        charts = {}
        page = pages.section(pages.Result("benchmarks/results/f.json", report), charts)
    finally:
        del sys.modules["benchmark_pages"]
    assert "in bursts, the core's geometric mean is 1.500." in page
    assert "| B1 | 64x64x64 | NN | bf16 bias+gelu | 200 |" in page
    assert list(charts) == ["docs/images/nvidia_h200_ratio.svg", "docs/images/nvidia_h200_roofline.svg"]
