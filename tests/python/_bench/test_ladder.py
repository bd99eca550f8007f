"""The ladder: which rows it shows, what it counts, its table, JSON and chart."""

import argparse
import dataclasses
import json
import re
import sys
import types
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import jax_moye
from jax_moye import __main__ as cli
from jax_moye._bench import ladder
from jax_moye._kernels.configs import GemmConfig

M, N, K = SHAPE = (256, 256, 128)
TILES = 4
KERNELS = {row.kernel for row in jax_moye.configs()}
SVG = "{http://www.w3.org/2000/svg}"


def row(
    kernel="sm80_multistage",
    dtype="bf16",
    accumulator="f32",
    tile=(128, 128, 32),
    stages=4,
    cluster=(1, 1),
    alignment=16,
):
    name = f"{kernel}_{dtype}_{accumulator}_{tile}_{stages}_{cluster}_{alignment}"
    return GemmConfig(
        name, kernel, dtype, accumulator, (dtype,), tile, stages, cluster, alignment, ("NN",), False, 128, 1024, 80
    )


def run(*arguments: str) -> int:
    return cli.main(["ladder", "--no-gpu", "--shape", f"{M}x{N}x{K}", *arguments])


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The ladder of bf16 as the command writes it."""
    folder = tmp_path_factory.mktemp("ladder")
    files = folder / "ladder.json", folder / "ladder.svg"
    assert run("--stages", "--json", str(files[0]), "--svg", str(files[1])) == 0
    return json.loads(files[0].read_text()), files[1].read_text()


def counted(dtype: str, order: str = "NN") -> dict[str, dict]:
    return {kernel: ladder.count(config, SHAPE, order) for kernel, config in ladder.rungs(dtype, order).items()}


# Rows ------------------------------------------------------------------------------------------------------------


def test_every_kernel_of_the_table_is_a_rung():
    assert set(ladder.RUNGS) >= KERNELS
    shown = {kernel for dtype in ladder.NEAREST for kernel in ladder.rungs(dtype)}
    assert shown == KERNELS


def test_the_representative():
    best = row()
    others = [
        row(alignment=8),
        row(accumulator="f16"),
        row(cluster=(2, 1)),
        row(tile=(64, 64, 32)),
        row(tile=(128, 128, 64)),  # after it in the table
    ]
    assert ladder.representative([*others[:4], best, others[4]]) == best
    # Wide loads come before the usual accumulator, that before no cluster, and that before the tile.
    assert ladder.representative(others[:2]) == others[1]
    assert ladder.representative(others[1:3]) == others[2]
    assert ladder.representative(others[2:4]) == others[3]
    assert ladder.representative([row(dtype="f64"), row(dtype="f64", accumulator="f64")]).accumulator == "f64"


def test_the_nearest_dtype_stands_in():
    table = [row("simt_tiled", "f64"), row("simt_tiled", "f32"), row("sm80_multistage", "f16"), row()]
    assert [(k, r.dtype) for k, r in ladder.rungs("bf16", "NN", table).items()] == [
        ("simt_tiled", "f32"),
        ("sm80_multistage", "bf16"),
    ]
    assert [r.dtype for r in ladder.rungs("f64", "NN", table).values()] == ["f64"]
    assert ladder.rungs("s8", "NN", table) == {}


def test_a_rung_takes_the_order_of_the_operands():
    table = [row("sm90_cooperative", "tf32", alignment=16), row("sm90_cooperative", "tf32", alignment=4)]
    table[1] = dataclasses.replace(table[1], orders=("NN", "NT", "TN", "TT"))
    assert [ladder.rungs("tf32", order, table)["sm90_cooperative"].alignment for order in ("NN", "TT")] == [16, 4]


def test_stage_rows_differ_in_stages_alone():
    table = [row(stages=s) for s in (4, 2, 3)] + [row(stages=5, tile=(64, 64, 32)), row(stages=6, alignment=8)]
    assert [r.stages for r in ladder.stage_rows("bf16", table)] == [2, 3, 4]
    assert ladder.stage_rows("s8", table) == []
    assert [r.stages for r in ladder.stage_rows("bf16")] == [2, 3, 4, 5, 6]


# Counters --------------------------------------------------------------------------------------------------------


def packs(config) -> bool:
    """Whether it copies its operands first: rows for what TMA cannot read."""
    return config.kernel.startswith("sm90") and config.alignment < 16


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "f32"])
@pytest.mark.parametrize("order", ["NN", "TN"])
def test_facts_of_the_rungs(dtype, order):
    rungs = ladder.rungs(dtype, order)
    for kernel, found in counted(dtype, order).items():
        config, instructions = rungs[kernel], found["instructions"]
        family, item_bytes = kernel[:4], np.dtype("f2" if config.dtype in ("bf16", "f16") else "f4").itemsize
        mma_k = {"sm70": 8, "sm80": 8 if config.dtype == "tf32" else 16}.get(family)  # of 16x8 of D
        assert instructions["mma"] == (M * N * K // (16 * 8 * mma_k) if mma_k else 0), kernel
        assert (instructions["wgmma"] > 0) == (instructions["tma_load"] > 0) == (family == "sm90"), kernel
        if not packs(config):
            assert (instructions["cp_async"] > 0) == (
                family == "sm80" or kernel[:6] == "simt_o" or kernel[:6] == "simt_d"
            )
            assert found["global"]["sector_efficiency"] == 1, kernel
            assert found["global"]["sectors_per_useful_byte"] == 1 / 32
            reads = M * K * (N // config.tile[1]) + N * K * (M // config.tile[0])  # every tile of D reads its rows
            assert found["global"]["useful_bytes"] == (reads + M * N) * item_bytes, kernel
        if ladder.RUNGS.index(kernel) >= ladder.RUNGS.index("sm80_ldmatrix"):
            assert found["shared"]["bank_conflicts"] == 0, kernel
            loads = family == "sm80" and (config.dtype != "tf32" or order != "TN")  # 32-bit elements along k alone
            assert (instructions["ldmatrix"] > 0) == loads, kernel


def test_each_idea_shows_in_its_counter():
    found = counted("bf16")
    instructions = {kernel: counts["instructions"] for kernel, counts in found.items()}
    moved = {kernel: sum(counts.values()) for kernel, counts in instructions.items()}
    assert instructions["simt_tiled"]["global_load"] > 0 == instructions["simt_overlap"]["global_load"]
    assert found["simt_overlap"]["barriers"]["cta"] == 2 * found["simt_double_buffer"]["barriers"]["cta"]
    assert instructions["sm80_ldmatrix"]["ldmatrix"] > 0 == instructions["sm80_tensorop"]["ldmatrix"]
    assert moved["sm80_ldmatrix"] < moved["sm80_tensorop"] < moved["simt_double_buffer"]
    assert found["sm80_ldmatrix"]["shared"]["wavefronts"] < found["sm80_tensorop"]["shared"]["wavefronts"]
    assert instructions["sm80_double_buffer"] == instructions["sm80_ldmatrix"] == instructions["sm80_multistage"]
    assert found["sm80_persistent"]["ctas"] < found["sm80_multistage"]["ctas"]
    assert moved["sm90_cooperative"] < moved["sm80_persistent"] / 4
    assert instructions["sm90_cooperative"]["wgmma"] == instructions["sm90_pingpong"]["wgmma"]
    assert instructions["sm90_split_k"]["wgmma"] == instructions["sm90_pingpong"]["wgmma"]
    assert found["sm90_split_k"]["barriers"]["cluster"] > 0 == found["sm90_pingpong"]["barriers"]["cluster"]


def test_sectors_of_tma_are_not_guessed():
    config = ladder.rungs("bf16")["sm90_cooperative"]
    of_memory = ladder.count(config, (128, 128, 72))["global"]  # rows of a: 144 bytes
    assert of_memory["sectors"] is of_memory["sector_efficiency"] is None
    assert ladder.count(config, (128, 128, 80))["global"]["sectors"] > 0


def test_a_wrong_product_is_no_rung(monkeypatch):
    from jax_moye import _moye_cpu

    def forgets(name, a, b, d, **options):
        return {"ok": True, "message": "", "counters": {}}

    monkeypatch.setattr(_moye_cpu, "emulate", forgets)
    ladder._count.cache_clear()
    with pytest.raises(RuntimeError, match="the product of 64x64x64 NN is wrong"):
        ladder.count(ladder.rungs("bf16")["sm80_multistage"], (64, 64, 64))


# The report ------------------------------------------------------------------------------------------------------


def test_json(report):
    found, _svg = report
    assert (found["dtype"], found["order"], found["shape"], found["measured"]) == ("bf16", "NN", [M, N, K], None)
    shown = [rung["kernel"] for rung in found["rungs"]]
    assert shown == [kernel for kernel in ladder.RUNGS if kernel in ladder.rungs("bf16")]
    assert sorted(shown + found["left_out"]) == sorted(ladder.RUNGS)
    for rung in found["rungs"]:
        text = {"kernel", "idea", "page", "config", "dtype", "stand_in"}
        assert set(rung) == {*text, "threads", "smem_bytes", "registers", "counted"}
        assert rung["stand_in"] == (rung["dtype"] != "bf16")
        assert rung["counted"] == ladder.count(rung["config"], SHAPE)
    assert [point["stages"] for point in found["stages"]["points"]] == [2, 3, 4, 5, 6]


def test_table(report):
    lines = ladder.table(report[0]).splitlines()
    header = next(line for line in lines if line.startswith("rung"))
    names = re.split(r"\s{2,}", header)
    for rung in report[0]["rungs"]:
        cells = next(line for line in lines if re.match(rung["kernel"] + r"\*?\s", line))
        cells = dict(zip(names, re.split(r"\s{2,}", cells), strict=True))
        assert cells["rung"] == rung["kernel"] + ("*" if rung["stand_in"] else "")
        assert cells["conflicts"] == str(rung["counted"]["shared"]["bank_conflicts"])
        assert cells["mma"] == str(rung["counted"]["instructions"]["mma"] or "-")
        assert cells["sector eff."] == "100.0 %"
    assert any(line.startswith("* simt_tiled has no bf16") for line in lines)
    assert "10. sm80_ldmatrix: fragments in one instruction, out of swizzled shared memory" in lines
    assert [line for line in lines if "not on the ladder" in line] == []
    others = ladder.table(report[0] | {"without_facts": ["new"]})
    assert "\nnew is not on the ladder: write jax_moye/layout/kernels/new.py\n" in others
    assert any(line.startswith("nothing is timed: without a GPU") for line in lines)


def test_svg(report):
    found, text = report
    root = ET.fromstring(text)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    for rung in found["rungs"]:
        assert rung["kernel"] + ("*" if rung["stand_in"] else "") in texts
        assert f"{rung['counted']['shared']['wavefronts']:,g}" in texts
    width, height = float(root.get("width")), float(root.get("height"))
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.get("x", 0)) + float(bar.get("width")) <= width
        assert float(bar.get("y", 0)) + float(bar.get("height")) <= height
    assert len(list(root.iter(f"{SVG}polyline"))) == 2
    assert all(line.get("points").count(",") == 5 for line in root.iter(f"{SVG}polyline"))


def test_a_measured_report_prints_and_draws(report):
    found = json.loads(json.dumps(report[0]))
    found["measured"] = {"gpu": "A<GPU>", "shape": [4096] * 3, "commit": "abc", "date": "now", "emulated": False}
    for i, rung in enumerate(found["rungs"]):
        rung["measured"] = {"us": 100.0 - i, "tflops": 10.0 + i} | ({"ratio": 1.5} if i else {})
    found["rungs"][-1] |= {"measured": None, "why": "NotImplementedError: not here"}
    for point in found["stages"]["points"]:
        point["measured"] = {"tflops": 100.0 + point["stages"]}
    text = ladder.table(found)
    assert "timed on A<GPU>, 4096x4096x4096" in text
    assert "nothing is timed" not in text
    assert re.search(r"simt_overlap\*? .* 99\.0 +11\.0 +1\.5$", text, re.M)
    assert "not timed: " + found["rungs"][-1]["config"] in text
    root = ET.fromstring(ladder.svg(found))
    assert "TFLOP/s, A<GPU>" in [element.text for element in root.iter(f"{SVG}text")]
    heights = [float(dot.get("cy")) for dot in root.iter(f"{SVG}circle")]
    assert len(heights) == 5
    assert heights == sorted(heights, reverse=True)  # faster is higher
    for point in found["stages"]["points"]:
        point["measured"]["efficiency"] = 0.5
    assert re.search(r"^6 .* 50\.0 % +106\.0 ", ladder.table(found), re.M)
    dots = ET.fromstring(ladder.stages_svg(found["stages"])).iter(f"{SVG}circle")
    assert len({dot.get("cy") for dot in dots}) == 1


def test_timing_is_tried_without_a_gpu(monkeypatch, capsys):
    """The whole way of a measurement, on kernels in the emulator and a product of one tile."""
    chosen = {k: ladder.rungs("bf16")[k] for k in ("simt_tiled", "sm80_ldmatrix", "sm90_cooperative")}
    monkeypatch.setattr(ladder, "rungs", lambda dtype, order: chosen)
    options = "--interpret --gpu-shape 128x128x64 --shape 128x128x64 --alternations 2 --turn-ms 1 --warmup-ms 1"
    arguments = argparse.ArgumentParser()
    ladder.add_arguments(arguments)
    found = ladder.make_report(arguments.parse_args([*options.split(), "--rotate-mb", "0.1"]))
    assert found["measured"]["emulated"] is True
    assert found["measured"]["xla"]["us"] > 0
    for i, rung in enumerate(found["rungs"]):
        assert "why" not in rung, rung
        assert rung["measured"]["us"] > 0
        assert ("ratio" in rung["measured"]) == (i > 0)
        if i:
            low, high = rung["measured"]["ratio_ci"]
            assert low <= high
    assert "EMULATED" in ladder.table(found)


def test_the_command_says_what_is_wrong(capsys):
    assert cli.main(["ladder", "--shape", "4096x4096x4096"]) == 2
    assert "too large to count" in capsys.readouterr().err
    for bad in ("4096", "0x1x1", "axbxc"):
        with pytest.raises(SystemExit):
            cli.main(["ladder", "--shape", bad])
        assert "is not MxNxK" in capsys.readouterr().err


def test_progress_says_what_is_done(capsys):
    assert list(ladder.progress(["x", "y"], 2, str.upper)) == ["x", "y"]
    assert re.fullmatch(r"\[1/2\] X, [\d.]+ s\n\[2/2\] Y, [\d.]+ s\n", capsys.readouterr().err)


def test_progress_with_rich(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(ladder.progress(["x", "y"], 2, str)) == ["x", "y"]


# The model and the sources ---------------------------------------------------------------------------------------


def test_stage_model():
    rows = ladder.stage_rows("bf16")
    models = [ladder.stage_model(config, "sm_80", 800) for config in rows]
    # 128 x 128 x 32 multiply-adds at 1024 a clock; 2 x 128 x 32 x 2 bytes at 64 a clock.
    assert models[0]["clocks"]["mma"] == 512
    assert models[0]["clocks"]["l2"] == 256
    assert models[0]["clocks"]["shared"] == 384
    # Two stages: a load lands in half a k-tile, so one takes 1600 clocks; 128 k-tiles and one latency.
    assert models[0]["alone"] == pytest.approx(128 * 512 / (800 + 128 * 1600), abs=1e-4)
    # Many stages: the multiplications alone.
    assert models[-1]["alone"] == pytest.approx(128 * 512 / (800 + 128 * 512), abs=1e-4)
    assert [m["alone"] for m in models] == sorted(m["alone"] for m in models)
    assert ladder.stage_model(rows[0], "sm_80", 8000)["efficiency"] < models[0]["efficiency"]
    assert ladder.stage_model(rows[-1], "sm_80", 800, registers=255)["ctas"] == 1 or models[-1]["ctas"] >= 1


def test_share_of_the_peak():
    device = types.SimpleNamespace(compute_capability="9.0", core_count=132)
    figures = {"tflops": 2 * 1250 * 132 * 1.5e9 / 1e12 / 4, "sm_mhz": 1500}  # a quarter of 1250 a clock
    assert ladder._share_of_peak(figures, "bf16", device) == 0.25
    assert ladder._share_of_peak(figures, "e4m3", device) is None
    assert ladder._share_of_peak(figures | {"sm_mhz": None}, "bf16", device) is None
    device.compute_capability = "12.0"
    assert ladder._share_of_peak(figures, "bf16", device) is None


def test_hunks(monkeypatch):
    files = {
        "one": ["// one: a", "same", "  old", "  end", "tail"],
        "two": ["// two: a", "same", "  new", "  end", "tail"],
    }
    monkeypatch.setattr(ladder, "kernel_source", files.__getitem__)
    assert ladder.hunk("one", "two", "same", "tail") == " same\n-  old\n+  new\n   end\n tail"  # the name is no change
    assert ladder.hunk(None, "two", "new", "end") == "new\nend"
    for words in (("nowhere", "tail"), ("tail", "same")):
        with pytest.raises(LookupError, match="no part from a line with"):
            ladder.hunk("one", "two", *words)


def test_compare():
    before = {"ctas": 4, "shared": {"wavefronts": 10}, "global": {"sector_efficiency": 0.5, "sectors": None}}
    after = {"ctas": 4, "shared": {"wavefronts": 5}, "global": {"sector_efficiency": 1.0, "sectors": 3}}
    lines = [line.split() for line in ladder.compare(before, after).splitlines()]
    assert lines == [
        ["before", "after"],
        ["shared", "wavefronts", "10", "5"],
        ["global", "sector_efficiency", "0.5000", "1.0000"],
        ["global", "sectors", "-", "3"],
    ]
    assert ladder.compare(before, before) == "no counter differs"
