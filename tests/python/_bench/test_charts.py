"""The charts of a benchmark: where bars, dots and roofs are."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest
from python.bench_results import report, three

from jax_moye._bench import charts


def test_intensity():
    result = three()[0]
    assert charts.intensity(result) == pytest.approx(4096 / 3)
    assert charts.multiplied_dtype(three()[1]) == "tf32"
    f32 = three()[1]
    assert charts.intensity(f32) == pytest.approx(4096 / 6)


def points_of(svg):
    root = ElementTree.fromstring(svg)
    name = "{http://www.w3.org/2000/svg}"
    found = {}
    for circle in root.iter(f"{name}circle"):
        found[circle.find(f"{name}title").text] = (float(circle.get("cx")), float(circle.get("cy")))
    keys = ("x1", "y1", "x2", "y2")
    roofs = [line for line in root.iter(f"{name}line") if line.get("stroke-width") == "1.5"]
    lines = [{key: float(line.get(key)) for key in keys} for line in roofs]
    return found, lines, [text.text for text in root.iter(f"{name}text")]


def test_roofline():
    points, lines, texts = points_of(charts.roofline(report(*three())))
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


def test_no_roof_is_known():
    assert charts.roofline(report(*three(), gpu="cpu")) is None
    assert charts.roofline(report()) is None
    assert charts.ratio_chart(report()) is None


def test_ratios():
    svg = charts.ratio_chart(report(*three()))
    root = ElementTree.fromstring(svg)
    bars = {}
    for bar in root.iter("{http://www.w3.org/2000/svg}rect"):
        if (title := bar.find("{http://www.w3.org/2000/svg}title")) is not None:
            bars[title.text.split()[0]] = (float(bar.get("x")), float(bar.get("width")))
    assert bars["A1"][1] == pytest.approx(bars["H2"][1], abs=0.2)  # 2 and 1/2
    assert bars["H2"][0] + bars["H2"][1] == pytest.approx(bars["A1"][0], abs=0.2)  # both end at 1
