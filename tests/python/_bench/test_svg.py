"""The writer of charts: what it draws is where it should be, and texts are escaped."""

from __future__ import annotations

from xml.etree import ElementTree

from jax_moye._bench.svg import Picture

SVG = "{http://www.w3.org/2000/svg}"


def test_picture():
    picture = Picture(100, 50, "a < b", font_size=12)
    picture.line(0, 1, 2, 3, "#000000", 1.5)
    picture.polyline([(0, 1), (2.5, 3)], "#111111")
    picture.bar(1, 2, 30, 4, "#222222", "x & y")
    picture.dot(5, 6, "#333333", "here")
    picture.text(7, 8, "<text>", "end", bold=True)
    root = ElementTree.fromstring(picture.svg())
    assert (root.get("width"), root.get("height"), root.get("font-size")) == ("100", "50", "12")
    assert [title.text for title in root.iter(f"{SVG}title")] == ["a < b", "x & y", "here"]
    (line,), (polyline,) = root.iter(f"{SVG}line"), root.iter(f"{SVG}polyline")
    assert (line.get("x2"), line.get("stroke-width")) == ("2.0", "1.5")
    assert polyline.get("points") == "0.0,1.0 2.5,3.0"
    (text,) = root.iter(f"{SVG}text")
    assert (text.text, text.get("text-anchor"), text.get("font-weight")) == ("<text>", "end", "bold")
