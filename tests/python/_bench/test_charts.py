"""The charts of a benchmark: where bars, dots and roofs are, and that no label leaves the page."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import pytest
from python.bench_results import report, three

pytest.importorskip("matplotlib")
from jax_moye._bench import charts

SVG = "{http://www.w3.org/2000/svg}"


def test_intensity():
    result = three()[0]
    assert charts.intensity(result) == pytest.approx(4096 / 3)
    assert charts.multiplied_dtype(three()[1]) == "tf32"
    f32 = three()[1]
    assert charts.intensity(f32) == pytest.approx(4096 / 6)


def lines_of(chart):
    """The lines and dots of a chart's axes by their gid: their points, in data and in pixels of the page."""
    (axes,) = chart.figure.axes
    chart.figure.draw_without_rendering()
    found = {}
    for line in axes.get_lines():
        if line.get_gid():
            data = line.get_xydata()
            found[line.get_gid()] = data, axes.transData.transform(data)
    return found


def inside(chart):
    """Holds all texts of a chart against its page."""
    chart.figure.draw_without_rendering()
    page = chart.figure.get_tightbbox()  # in inches; what is saved
    dpi = chart.figure.dpi
    unseen = set()
    for axis in (axis for axes in chart.figure.axes for axis in (axes.xaxis, axes.yaxis)):
        low, high = sorted(axis.get_view_interval())
        for tick in (*axis.get_major_ticks(), *axis.get_minor_ticks()):
            is_there = low <= tick.get_loc() <= high
            unseen |= {label for label in (tick.label1, tick.label2) if not (is_there and label.get_visible())}
    texts = [text for text in chart.figure.findobj(lambda x: hasattr(x, "get_text")) if text.get_text()]
    texts = [text for text in texts if text not in unseen]
    for text in texts:
        box = text.get_window_extent()
        assert page.x0 * dpi - 1 <= box.x0 < box.x1 <= page.x1 * dpi + 1, text
        assert page.y0 * dpi - 1 <= box.y0 < box.y1 <= page.y1 * dpi + 1, text
    return texts


def test_roofline():
    chart = charts.roofline(report(*three()))
    lines, texts = lines_of(chart), [text.get_text() for text in inside(chart)]
    by_tip = {tip.split()[0]: lines[gid][1][0] for gid, tip in chart.tips.items()}
    assert sorted(chart.tips.values())[0] == "A1 4096x4096x4096: 687.195 TFLOP/s"
    a, h, s = (by_tip[name] for name in ("A1", "H2", "S1"))
    assert abs(s[0] - a[0]) <= 0.2  # nearly the same intensity, twice as fast: higher by log 2
    assert h[0] < a[0]
    assert h[1] < a[1] < s[1]
    assert {"bf16 989", "tf32 495", "memory 4.8 TB/s"} <= set(texts)
    roof = lines["peak-bf16"][1]
    assert roof[0][1] == roof[1][1]
    assert a[1] < roof[0][1] < s[1]
    decade = (a[1] - h[1]) / math.log10(687.19 / 274.88)
    assert roof[0][1] - a[1] == pytest.approx(decade * math.log10(989.4 / 687.19), abs=0.3)
    # The roof of the memory meets the highest of the others.
    assert lines["memory"][0][1][1] == pytest.approx(989.4, rel=1e-3)


def test_labels_of_roofs_lie_on_nothing():
    """They stand beside the axes: no dot is over one."""
    chart = charts.roofline(report(*three()))
    (axes,) = chart.figure.axes
    roofs = [text for text in inside(chart) if re.fullmatch(r"\w+(, \w+)* \d+", text.get_text())]
    assert len(roofs) == 2
    assert all(text.get_window_extent().x0 > axes.get_window_extent().x1 for text in roofs)


def test_no_roof_is_known():
    assert charts.roofline(report(*three(), gpu="cpu")) is None
    assert charts.roofline(report()) is None
    assert charts.ratio_chart(report()) is None


def test_ratios():
    rows = three()
    rows[0] |= {"ratio_ci": [1.5, 3.0]}
    chart = charts.ratio_chart(report(*rows))
    (axes,) = chart.figure.axes
    inside(chart)
    bars = {chart.tips[bar.get_gid()].split()[0]: bar.get_window_extent() for bar in axes.patches}
    assert bars["A1"].width == pytest.approx(bars["H2"].width, abs=0.2)  # 2 and 1/2
    assert bars["H2"].x1 == pytest.approx(bars["A1"].x0, abs=0.2)  # both end at 1
    assert bars["A1"].y0 > bars["H2"].y1  # one below the other
    interval = next(line for line in axes.get_lines() if list(line.get_xdata()) == [1.5, 3.0])
    assert axes.get_xlim()[1] > 3.0
    assert list(interval.get_ydata()) == [0, 0]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["A1 4096x4096x4096", "H2 4096x4096x4096 f32", "S1 4096x4096x4096 bias+gelu"]
    legend = {text.get_text() for text in chart.figure.legends[0].get_texts()}
    assert legend == {"A, large", "own shapes"}
    root = ElementTree.fromstring(chart.svg)
    assert "A1 4096x4096x4096: 2.000" in [title.text for title in root.iter(f"{SVG}title")]
