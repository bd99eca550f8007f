"""Parts of the benchmark without timing: operands and programs of a row, bounds of errors, arms, the summary."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import importlib
import importlib.util
import json
import math
import pathlib
import re
import sys
import types
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_moye
from jax_moye import __main__ as cli
from jax_moye import bench, bench_arms, bench_charts, bench_check, bench_report, bench_rows, measure
from jax_moye.devices import DEVICES

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
    dtype, rng = jnp.dtype(bench_rows.NAMES[row["dtype"]]), np.random.default_rng(0)
    normal = row["dtype"] != "s8"
    values = [
        rng.standard_normal(struct.shape) if normal else rng.integers(-127, 128, struct.shape)
        for struct in bench_rows.shapes(row, dtype)
    ]
    structs = bench_rows.shapes(row, dtype)
    return dtype, [jnp.asarray(x.astype(struct.dtype)) for x, struct in zip(values, structs, strict=True)]


class TestRows:
    @pytest.mark.parametrize(
        ("dtype", "layout"),
        [("bf16", "NN"), ("f32", "TN"), ("f64", "NN"), ("s8", "NT"), ("f8e4m3", "NT"), ("e5m2", "NN")],
    )
    def test_xla_program(self, dtype, layout):
        row = ROW | {"dtype": dtype, "layout": layout}
        dtype, operands = one_set(row)
        d = jax.jit(bench_rows.xla(row, dtype))(*operands)
        assert d.shape == (row["m"], row["n"])
        assert d.dtype == {"s8": np.int32, "f8e4m3": ml_dtypes.bfloat16, "e5m2": ml_dtypes.bfloat16}.get(
            row["dtype"], dtype
        )
        np.testing.assert_allclose(as_numpy(d), exact(row, operands), rtol=0.02, atol=0.2)

    def test_different_sets(self):
        a, b = bench_rows.operands(ROW, jnp.dtype("bfloat16"), 3)
        assert len(a) == len(b) == 3
        assert len({np.asarray(x).tobytes() for x in a}) == 3
        assert 0.9 < np.std(as_numpy(a[0])) < 1.1

    def test_footprint(self):
        row = ROW | {"epilogue": "bias+gelu"}
        m, n, k = (row[key] for key in "mnk")
        assert bench_rows.footprint(row, jnp.dtype("bfloat16")) == 2 * (m * k + k * n + m * n + n)
        row = ROW | {"dtype": "s8"}
        assert bench_rows.footprint(row, jnp.dtype("int8")) == m * k + k * n + 4 * m * n

    def test_epilogues(self):
        assert bench_rows.epilogue_of(ROW) == (False, None, False)
        assert bench_rows.epilogue_of(ROW | {"epilogue": "bias+silu"}) == (True, "silu", False)
        assert bench_rows.epilogue_of(ROW | {"epilogue": "residual"}) == (False, None, True)
        for wrong in ("bias+swash", "gelu+silu"):
            with pytest.raises(NotImplementedError, match=wrong.replace("+", r"\+")):
                bench_rows.epilogue_of(ROW | {"epilogue": wrong})
        with pytest.raises(NotImplementedError, match="batch"):
            bench_rows.epilogue_of(ROW | {"epilogue": "bias", "batch": 2})

    def test_own_shape(self):
        row = bench_rows.own_row("8x64x32x128:f16:NT", 3)
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
            bench_rows.own_row("64x64:bf16", 1)
        row = bench_rows.own_row("64x64x64:f32", 1, "highest")
        assert row["precision"] == "HIGHEST"
        assert bench_rows.precision_of(row) == "highest"

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
        dtype = jnp.dtype(bench_rows.NAMES[row["dtype"]])
        program = jax.jit(bench_rows.ours(row, dtype, {"implementation": "moye"}))
        text = program.trace(*bench_rows.shapes(row, dtype)).lower(lowering_platforms=("cuda",)).as_text()
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
        reference = bench_check.Reference(row, operands, dtype)
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
        reference = bench_check.Reference(row, operands, dtype)
        d = exact(row, operands).astype(np.int32)
        assert reference.excess(jnp.asarray(d)) == 0
        d[-1, 3] += 1
        assert reference.excess(jnp.asarray(d)) == np.inf

    def test_of_8_bit_floats_the_config_says(self):
        row = ROW | {"dtype": "f8e4m3", "k": 4096}
        dtype, operands = one_set(row)
        reference = bench_check.Reference(row, operands, dtype)
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
        reference = bench_check.Reference(row, operands, dtype)
        assert reference.excess(d) > 1
        assert reference.excess(d, baseline=True) <= 1

    def test_bits(self):
        x = jnp.array([0.0, 1.0], jnp.bfloat16)
        assert bench.same_bits(x, x + 0)
        assert not bench.same_bits(x, -x)


class TestArms:
    def sets(self, count=5):
        a, b = one_set(ROW)[1]
        return [jnp.roll(a, i) for i in range(count)], [b] * count

    def test_a_loop_computes_every_set(self):
        operands = self.sets()
        matmul = bench_rows.xla(ROW, jnp.dtype("bfloat16"))
        loop = bench_arms.looped_arm("xla", matmul, operands, 3)
        plain = bench_arms.jax_arm("xla", matmul, [tuple(operands)])
        assert not bench_arms.compile_all([loop], lambda arm: False)  # whose products were in the loop
        for _ in range(2):  # the second run writes over what the first one made
            for x, y in zip(loop.run(0), plain.run(0), strict=True):
                assert bench.same_bits(x, y)
        assert loop.repeats == 3

    def test_the_products_stay_in_the_loop(self, monkeypatch):
        seen = []
        is_hoisted = bench_arms.is_hoisted
        monkeypatch.setattr(bench_arms, "is_hoisted", lambda *given: seen.append(given) or is_hoisted(*given))
        matmul = bench_rows.xla(ROW, jnp.dtype("bfloat16"))
        assert not bench_arms.compile_all([bench_arms.looped_arm("xla", matmul, self.sets(4), 3)], lambda arm: False)
        ((text, products),) = seen
        assert products == 4
        before_entry = text[: text.index("\nENTRY")]
        assert " while(" in text
        assert len(re.findall(r" (?:dot|custom-call)\(", before_entry)) >= 4

    def test_is_hoisted(self):
        body = "HloModule m\n%body {\n" + "  %d = bf16[4,4] dot(%a, %b)\n" * 3 + "}\n"
        entry = "\nENTRY %main {\n  %w = (s32[]) while(%t), body=%body\n}\n"
        outside = entry.replace(
            "}", '  %c = bf16[4,4] custom-call(%a, %b), custom_call_target="__cublas$lt$matmul"\n' * 3 + "}"
        )
        assert not bench_arms.is_hoisted(body + entry, 3)
        assert bench_arms.is_hoisted(body + outside, 3)

    def test_what_does_not_compile_is_named(self):
        def wrong(a, b):
            raise ValueError("no such product")

        good = bench_arms.jax_arm("good", jnp.matmul, [tuple(self.sets(2))])
        bad = bench_arms.jax_arm("bad", wrong, [tuple(self.sets(2))])
        option = bench_arms.jax_arm("option", jnp.matmul, [tuple(self.sets(2))], {"xla_no_such_option": 1})
        errors = bench_arms.compile_all([bad, good, option], lambda arm: arm is good)
        assert errors.keys() == {"bad", "option"}
        assert "no such product" in str(errors["bad"])
        assert "xla_no_such_option" in str(errors["option"])

    @pytest.mark.parametrize("name", list(bench_arms.LAUNCHES))
    def test_options_of_launches_exist(self, name):
        assert bench_check.accepted(bench_arms.LAUNCHES[name]) is not None
        assert bench_check.accepted({"xla_gpu_enable_triton_gemm": False}) is not None
        assert bench_check.accepted({"xla_no_such_option": False}) is None

    def test_pallas(self, monkeypatch):
        """Each config is taken by Pallas, and becomes one kernel in a program for CUDA."""
        pytest.importorskip("absl")
        hopper = importlib.import_module(bench_arms.PALLAS)
        gpu = types.SimpleNamespace(core_count=132)
        monkeypatch.setattr(hopper, "backend", types.SimpleNamespace(get_default_device=lambda: gpu))
        ways = bench_arms.pallas_ways(ROW | {"m": 1024, "n": 1024, "k": 512})
        assert len(ways) == len(bench_arms.PALLAS_CONFIGS)
        struct = jax.ShapeDtypeStruct((1024, 512), jnp.bfloat16), jax.ShapeDtypeStruct((512, 1024), jnp.bfloat16)
        for way in ways.values():
            text = jax.jit(way).trace(*struct).lower(lowering_platforms=("cuda",)).as_text()
            assert text.count("stablehlo.custom_call") == 1

    def test_pallas_configs_that_divide(self, monkeypatch):
        """Without its module, which needs more than JAX: the arguments are those of jax 0.9.2 to 0.11.2."""

        @dataclasses.dataclass(frozen=True)
        class TuningConfig:
            tile_m: int
            tile_n: int
            tile_k: int
            max_concurrent_steps: int
            epi_tile_n: int | None = 64
            epi_tile_m: int | None = 64
            grid_minor_dim: str = "N"
            grid_tile_width: int = 1
            wg_dimension: str = "N"
            cluster_dimension: str | None = None

        called = []
        fake = types.ModuleType("hopper_matmul_mgpu")
        fake.TuningConfig = TuningConfig
        fake.MatmulDimension = enum.IntEnum("MatmulDimension", {"M": 0, "N": 1})
        fake.matmul = lambda a, b, c, config: called.append((config, c, jax.config.jax_enable_x64)) or a @ b
        monkeypatch.setitem(sys.modules, bench_arms.PALLAS, fake)
        ways = bench_arms.pallas_ways(ROW | {"m": 128, "n": 384, "k": 64})
        assert list(ways) == ["128x128x64, 5 stages", "64x128x64, 6 stages"]
        for way in ways.values():
            way(*one_set(ROW)[1])
        assert [(config.tile_m, config.tile_n) for config, _, _ in called] == [(64, 128), (64, 64)]
        assert all(c is None and not x64 for _, c, x64 in called)
        for wrong in ({"m": 100}, {"dtype": "f32"}, {"layout": "NT"}, {"batch": 2}, {"epilogue": "bias"}):
            with pytest.raises(NotImplementedError):
                bench_arms.pallas_ways(ROW | {"m": 128, "n": 384, "k": 64} | wrong)

    def test_rotation(self):
        device = jax.devices("cpu")[0]
        row = ROW | {"m": 256, "n": 256, "k": 256}
        footprint = 3 * 256 * 256 * 2
        group, programs = bench.rotation(row, footprint, 160_000_000, device)
        assert group == bench_arms.LARGEST_GROUP
        assert group * programs * footprint >= 160_000_000
        sets, rounds = bench_arms.loop_rotation(row, footprint, 160_000_000, device)
        assert sets * footprint >= 160_000_000
        assert rounds >= 2
        large = ROW | {"m": 4096, "n": 4096, "k": 4096}
        assert bench_arms.loop_rotation(large, 3 * 4096 * 4096 * 2, 160_000_000, device) is None
        assert bench.rotation(large, 3 * 4096 * 4096 * 2, 160_000_000, device) == (3, 1)


class TestTurns:
    def arm(self, log, name, repeats=1):
        return measure.Arm(name, lambda i: log.append((name, i)) or [], lambda: None, repeats=repeats)

    def test_alternation(self):
        log = []
        arms = [self.arm(log, "x"), self.arm(log, "y")]
        measure.take_turns(arms, 2, 3, alternations=4, turn_ms=0, warmup_ms=0)
        assert all(len(arm.times) == len(arm.spans) == 4 for arm in arms)
        order = [name for name, i in log if i == 0]
        assert order == ["x", "x", "y", "y"] + ["x", "y", "y", "x"] * 2

    def test_burst(self, monkeypatch):
        log, slept = [], []
        monkeypatch.setattr(measure.time, "sleep", slept.append)
        arm = self.arm(log, "x")
        measure.take_turns([arm], 1, 1, alternations=3, turn_ms=0, warmup_ms=0, idle_ms=50)
        assert slept == [0.05] * 3
        assert len(arm.times) == len(arm.spans) == 3
        assert len(log) == 2 + 2 * 3  # one pass behind each rest, which does not count

    def test_a_loop_counts_its_rounds(self, monkeypatch):
        clock = iter(range(100))
        monkeypatch.setattr(measure.time, "perf_counter", lambda: next(clock))
        assert self.arm([], "x", repeats=4).turn(1, 1, 5) == 2 / 20

    def test_again_forgets(self):
        arm = self.arm([], "x", repeats=3)
        arm.turn(1, 1, 1)
        assert arm.again().spans == []
        assert arm.again().repeats == 3
        assert len(arm.spans) == 1


class TestSampler:
    def sampler(self, samples):
        sampler = object.__new__(measure.Sampler)
        sampler._at = list(range(len(samples)))
        sampler._samples = samples
        return sampler

    def test_means(self):
        sampler = self.sampler([(1980, 300.0, 40, 0), (1500, 700.0, 60, 4), (1400, 690.0, 62, 4 | 0x20)])
        assert sampler.mean("sm_mhz", [(0, 0)]) == 1980
        assert sampler.mean("watts", [(0.5, 2)]) == 695
        assert sampler.mean("celsius", [(1, 2)]) == 61
        assert sampler.mean("celsius", [(7, 8)]) is None
        assert sampler.throttled([(0, 0)]) == []
        assert sampler.throttled([(0, 2)]) == ["power cap", "thermal, software"]


def measured(name, ratio, regime="large"):
    sizes = {"batch": 1, "m": 64, "n": 64, "k": 64, "layout": "NN", "dtype": "bf16"}
    return {"id": name, "regime": regime, "correct": True, "ratio": ratio, "ratio_ci": [ratio, ratio], **sizes}


class TestReport:
    def test_summary(self):
        rows = [measured(f"A{i + 1}", 1 + i / 10) for i in range(11)]
        rows += [measured("G1", 4.0, "odd"), {"id": "B1", "regime": "mid", "correct": False}]
        *regimes, core = bench_report.summary(rows)
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
        assert bench_report.mode(parser.parse_args(options)) == mode

    def test_written_at_once(self, tmp_path):
        path = tmp_path / "out.json"
        path.write_text("old")
        with pytest.raises(TypeError):
            bench_report.write({"rows": object()}, path)
        assert path.read_text() == "old"
        bench_report.write({"rows": []}, path)
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
        assert bench_charts.intensity(row) == pytest.approx(4096 / 3)
        assert bench_charts.unit_of(self.rows()[1]) == "tf32"
        f32 = self.rows()[1]
        assert bench_charts.intensity(f32) == pytest.approx(4096 / 6)

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
        points, lines, texts = self.points(bench_charts.roofline(self.report(*self.rows())))
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
        assert bench_charts.roofline(self.report(*self.rows(), gpu="cpu")) is None
        assert bench_charts.roofline(self.report()) is None
        assert bench_charts.ratio_chart(self.report()) is None

    def test_ratios(self):
        svg = bench_charts.ratio_chart(self.report(*self.rows()))
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
    path = pathlib.Path(__file__).resolve().parents[2] / "tools/benchmark_pages.py"
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
