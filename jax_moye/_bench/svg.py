"""The writer of the charts of `bench` and `ladder`: lines, bars, dots and texts of an SVG."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape


class Picture:
    """An SVG in the making: narrow, so that it can be read on a telephone."""

    def __init__(self, width: int, height: int, title: str, font_size: int = 11):
        """Begins a picture of this size, in pixels."""
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' font-family="sans-serif" font-size="{font_size}" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1) -> None:
        """A line between two points."""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" stroke-width="{width:g}"/>'
        )

    def polyline(self, points: Iterable[tuple[float, float]], color: str, width: float = 2) -> None:
        """A line through points."""
        through = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{through}" fill="none" stroke="{color}" stroke-width="{width:g}"/>')

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", color: str = "#222222", bold: bool = False
    ) -> None:
        """A text that begins, ends or has its middle at x."""
        weight = ' font-weight="bold"' if bold else ""
        place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
        self.parts.append(f'<text {place}{weight} fill="{color}">{escape(text)}</text>')

    def bar(self, x: float, y: float, width: float, height: float, color: str, title: str) -> None:
        """A rectangle with a title, which browsers show under the pointer."""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{color}">'
            f"<title>{escape(title)}</title></rect>"
        )

    def dot(self, x: float, y: float, color: str, title: str) -> None:
        """A point with a title."""
        self.parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{color}" fill-opacity="0.8"><title>{escape(title)}</title>'
            "</circle>"
        )

    def svg(self) -> str:
        """The file's text."""
        return "\n".join([*self.parts, "</svg>", ""])
