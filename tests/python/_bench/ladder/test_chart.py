"""The ladder as a chart."""

from __future__ import annotations

import json
from xml.etree import ElementTree

import pytest

pytest.importorskip("matplotlib")
from jax_moye import __main__ as cli
from jax_moye._bench.ladder import chart

SVG = "{http://www.w3.org/2000/svg}"


def bars_of(axes):
    """By rung the length of its bar, of all parts, and whether it is hatched."""
    found: dict[int, float] = {}
    hatched = set()
    for bar in axes.patches:
        rung = int(bar.get_gid().split("-")[2])
        found[rung] = found.get(rung, 0.0) + bar.get_width()
        hatched |= {rung} if bar.get_hatch() else set()
    return found, hatched


def test_the_command_writes_it(ladder_files):
    found, text = ladder_files
    root = ElementTree.fromstring(text)
    texts = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    for rung in found["rungs"]:
        assert rung["kernel"] + (f" ({rung['dtype']}*)" if rung["stand_in"] else "") in texts
        assert f"{rung['counted']['shared']['wavefronts']:,g}" in texts
    assert "* and hatched: the kernel has no bf16; its config of the dtype in brackets stands for it" in texts
    assert {"model-alone", "model-efficiency"} <= {group.get("id") for group in root.iter(f"{SVG}g")}


def test_bars_are_as_long_as_what_is_counted(ladder_files):
    found, _ = ladder_files
    drawn = chart.chart(found)
    wavefronts, instructions, barriers, stages = drawn.figure.axes
    lengths, hatched = bars_of(wavefronts)
    assert lengths == {i: rung["counted"]["shared"]["wavefronts"] for i, rung in enumerate(found["rungs"])}
    assert hatched == {i for i, rung in enumerate(found["rungs"]) if rung["stand_in"]}
    for axes, key in ((instructions, "instructions"), (barriers, "barriers")):
        sums = {i: sum(rung["counted"][key].values()) for i, rung in enumerate(found["rungs"])}
        assert bars_of(axes)[0] == sums
    (together,) = (line for line in stages.get_lines() if line.get_gid() == "model-efficiency")
    points = found["stages"]["points"]
    assert together.get_xydata().tolist() == [[p["stages"], 100 * p["model"]["efficiency"]] for p in points]


def test_without_stand_ins_nothing_is_explained(ladder_files):
    found = ladder_files[0] | {"rungs": [rung for rung in ladder_files[0]["rungs"] if not rung["stand_in"]]}
    assert "hatched" not in chart.chart(found).svg


def test_a_measured_report_is_drawn(measured_report):
    drawn = chart.chart(measured_report)
    titles = [axes.get_title(loc="left") for axes in drawn.figure.axes]
    assert "TFLOP/s,\nA<GPU>" in titles
    ElementTree.fromstring(drawn.svg)
    speeds, _ = bars_of(drawn.figure.axes[3])
    assert speeds == {i: (r["measured"] or {}).get("tflops", 0) for i, r in enumerate(measured_report["rungs"])}

    def heights(chart_of):
        dots = [line for line in chart_of.figure.axes[-1].get_lines() if (line.get_gid() or "").startswith("stages-")]
        return [dot.get_ydata()[0] for dot in dots]

    found = heights(drawn)
    assert len(found) == 5
    assert found == sorted(found)  # faster is higher
    assert found[-1] == 100
    stages = measured_report["stages"]
    points = [point | {"measured": point["measured"] | {"efficiency": 0.5}} for point in stages["points"]]
    assert set(heights(chart.stages_chart(stages | {"points": points}))) == {50}


@pytest.mark.parametrize(("suffix", "begin"), [(".png", b"\x89PNG"), (".pdf", b"%PDF")])
def test_other_files(suffix, begin, measured_report, tmp_path):
    path = tmp_path / f"ladder{suffix}"
    chart.chart(measured_report).save(path)
    assert path.read_bytes().startswith(begin)


def test_no_kernel_stands_for_a_longer_dtype(capsys):
    """`--dtype f32` shows no kernel of bf16, which would be faster for its shorter elements, but six products of it."""
    assert cli.main(["ladder", "--dtype", "f32", "--no-gpu", "--shape", "64x64x32", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert {rung["dtype"] for rung in report["rungs"]} == {"f32", "tf32", "bf16x6"}
    assert "sm90_pingpong" in report["left_out"]
