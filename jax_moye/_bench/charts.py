"""Charts of a benchmark's report, as SVG: the ratio of each row, and the roofline.

`python -m jax_moye show --svg` writes them, and so does tools/benchmark_pages.py for the documentation.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from xml.sax.saxutils import escape

from jax_moye._bench import workloads
from jax_moye._kernels.devices import DEVICES

REGIMES = {
    "large": ("A, large", "#1f6fb2"),
    "mid": ("B, mid-sized", "#2a9d8f"),
    "skinny": ("C, skinny", "#e08a1e"),
    "tiny": ("D, tiny", "#c8443c"),
    "batched": ("E, batched", "#8a5fb5"),
    "odd": ("G, odd sizes", "#6b7a1f"),
    "precision": ("H, other precisions", "#5b6470"),
    "fused": ("I, fused epilogues", "#b0528f"),
    "own": ("own shapes", "#222222"),
}
OTHER = "#5b6470"  # the colour of any other regime


def size(row: dict) -> str:
    """`m x n x k`, with the batch in front where there is one."""
    sizes = [row["batch"]] if row["batch"] > 1 else []
    return "x".join(map(str, [*sizes, row["m"], row["n"], row["k"]]))


def by_regime(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """The rows of each regime, in their order."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["regime"], []).append(row)
    return found


def _color(row: dict) -> str:
    return REGIMES.get(row["regime"], ("", OTHER))[1]


def _label(row: dict) -> str:
    """Of a row: id, size, and what is not usual."""
    unusual = [row["dtype"]] if row["dtype"] != "bf16" else []
    return " ".join([row["id"], size(row), *unusual, *([row["epilogue"]] if "epilogue" in row else [])])


class Picture:
    """An SVG in the making: narrow, so that it can be read on a telephone."""

    def __init__(self, width: int, height: int, title: str):
        """Begins a picture of this size, in pixels."""
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' font-family="sans-serif" font-size="11" role="img">',
            f"<title>{escape(title)}</title>",
            f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        ]

    def line(self, x1: float, y1: float, x2: float, y2: float, color: str, width: float = 1, dash: str = "") -> None:
        """A line between two points."""
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"'
            f' stroke-width="{width:g}"{dashed}/>'
        )

    def text(self, x: float, y: float, text: str, anchor: str = "start", color: str = "#222222") -> None:
        """A text that begins, ends or has its middle at x."""
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>')

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


def ratio_chart(report: dict) -> str | None:
    """The ratio of each row with its interval, on a logarithmic axis; None without a row that has one."""
    rows, left, right, top, step = [row for row in report["rows"] if "ratio" in row], 160, 440, 40, 16
    if not rows:
        return None
    ends = [value for row in rows for value in (row["ratio"], *row["ratio_ci"])]
    low, high = min(0.5, *ends) / 1.05, max(2.0, *ends) * 1.05
    bottom = top + step * len(rows) + 4
    picture = Picture(460, bottom + 32, f"Time of the fastest of the others over ours, {report['gpu']}")

    def x(ratio: float) -> float:
        return left + (right - left) * math.log(ratio / low) / math.log(high / low)

    for tick in (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4):
        if low <= tick <= high:
            picture.line(x(tick), top - 4, x(tick), bottom, "#222222" if tick == 1 else "#dddddd")
            picture.text(x(tick), top - 10, f"{tick:g}", "middle")
    picture.text(x(1) - 6, 14, "slower", "end", "#666666")
    picture.text(x(1) + 6, 14, "faster", "start", "#666666")
    for i, row in enumerate(rows):
        y = top + step * i
        begin, end = sorted((x(1), x(row["ratio"])))
        picture.text(left - 6, y + 11, _label(row), "end")
        picture.bar(begin, y + 3, max(end - begin, 1), 9, _color(row), f"{_label(row)}: {row['ratio']:.3f}")
        picture.line(x(row["ratio_ci"][0]), y + 7.5, x(row["ratio_ci"][1]), y + 7.5, "#222222")
    picture.text((left + right) / 2, bottom + 20, "time of the fastest of the others / ours", "middle")
    return picture.svg()


def intensity(row: dict) -> float:
    """Operations per byte, where each operand and the result are moved once."""
    moved = workloads.footprint(row, workloads.numpy_dtype(row))
    return 2 * row["batch"] * row["m"] * row["n"] * row["k"] / moved


def unit_of(row: dict) -> str:
    """The dtype that the row's kernel multiplies, as in `GemmConfig.dtype`: its name has it."""
    match = re.search(r"_(bf16|f16|tf32|f32|f64|s8|e4m3|e5m2)_", row["config"])
    return match[1] if match else row["dtype"]


def roofline(report: dict) -> str | None:
    """TFLOP/s of our kernels over their operations per byte, under the roofs of the GPU's data sheet.

    None for a GPU that `devices` does not know, and without a row that was timed.
    """
    device = next((device for device in DEVICES.values() if device.kind == report["gpu"]), None)
    rows = [row for row in report["rows"] if "tflops" in row]
    if device is None or device.memory_bytes_per_s is None or not rows:
        return None
    bandwidth = device.memory_bytes_per_s / 1e12
    peaks: dict[float, list[str]] = {}  # TFLOP/s -> the dtypes that have it
    for unit in dict.fromkeys(map(unit_of, rows)):
        if flops := device.flops(unit):
            peaks.setdefault(flops / 1e12, []).append(unit)
    points = [(intensity(row), row["tflops"], row) for row in rows]
    left, right, top, bottom = 46, 388, 20, 320
    x_low, x_high = min(0.5, *(point[0] for point in points)), 1e4
    y_low, y_high = min(1.0, *(point[1] for point in points)) / 1.2, max(2000.0, *peaks)
    regimes = [regime for regime in by_regime(rows) if regime in REGIMES]
    title = f"TFLOP/s over operations per byte, {report['gpu']}"
    picture = Picture(460, bottom + 46 + 16 * math.ceil(len(regimes) / 3), title)

    def x(intensity: float) -> float:
        return left + (right - left) * math.log(intensity / x_low) / math.log(x_high / x_low)

    def y(tflops: float) -> float:
        return bottom - (bottom - top) * math.log(tflops / y_low) / math.log(y_high / y_low)

    for exponent in range(-1, 5):
        value = 10.0**exponent
        if x_low <= value <= x_high:
            picture.line(x(value), top, x(value), bottom, "#dddddd")
            picture.text(x(value), bottom + 14, f"{value:g}", "middle")
        if y_low <= value <= y_high:
            picture.line(left, y(value), right, y(value), "#dddddd")
            picture.text(left - 5, y(value) + 4, f"{value:g}", "end")
    start, ridge = max(x_low, y_low / bandwidth), max(peaks, default=y_high) / bandwidth
    picture.line(x(start), y(start * bandwidth), x(ridge), y(ridge * bandwidth), "#222222", 1.5)
    picture.text(x(10), y(10 * bandwidth) - 10, f"{bandwidth:g} TB/s", "end")
    for peak, units in peaks.items():
        picture.line(x(peak / bandwidth), y(peak), right, y(peak), "#222222", 1.5)
        picture.text(right + 4, y(peak) + 4, f"{', '.join(units)} {peak:.0f}")
    for at, tflops, row in points:
        picture.dot(x(at), y(tflops), _color(row), f"{_label(row)}: {tflops:g} TFLOP/s")
    picture.text((left + right) / 2, bottom + 30, "operations per byte of operands and result", "middle")
    picture.text(left, top - 6, "TFLOP/s")
    for i, regime in enumerate(regimes):
        name, color = REGIMES[regime]
        column, line = left + 130 * (i % 3), bottom + 48 + 16 * (i // 3)
        picture.dot(column + 4, line - 4, color, name)
        picture.text(column + 14, line, name)
    return picture.svg()
