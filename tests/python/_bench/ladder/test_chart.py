"""The ladder as a chart."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from jax_moye._bench.ladder import chart

SVG = "{http://www.w3.org/2000/svg}"


def test_svg(ladder_files):
    found, text = ladder_files
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


def test_a_measured_report_is_drawn(measured_report):
    root = ET.fromstring(chart.svg(measured_report))
    assert "TFLOP/s, A<GPU>" in [element.text for element in root.iter(f"{SVG}text")]
    heights = [float(dot.get("cy")) for dot in root.iter(f"{SVG}circle")]
    assert len(heights) == 5
    assert heights == sorted(heights, reverse=True)  # faster is higher
    stages = measured_report["stages"]
    points = [point | {"measured": point["measured"] | {"efficiency": 0.5}} for point in stages["points"]]
    dots = ET.fromstring(chart.stages_svg(stages | {"points": points})).iter(f"{SVG}circle")
    assert len({dot.get("cy") for dot in dots}) == 1
