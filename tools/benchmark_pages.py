#!/usr/bin/env python3
"""Writes what README and docs say of speed from benchmarks/results: docs/benchmarks.md, its charts, README's table.

Shown is, of each GPU, the newest result that has most rows of the suite. With --check nothing is written, and the exit
status is 1 if a file is not what would be.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pathlib
import re
import statistics
import sys
from collections.abc import Sequence
from xml.sax.saxutils import escape

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = "benchmarks/results"
PAGE = "docs/benchmarks.md"
IMAGES = "docs/images"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
SHOWN = 0.75  # of the suite's rows: a result with fewer is listed, not shown
CORE = "ABCDE"  # the suite's core, by the first letter of a row's id

REGIMES = {
    "large": ("A, large", "#1f6fb2"),
    "mid": ("B, mid-sized", "#2a9d8f"),
    "skinny": ("C, skinny", "#e08a1e"),
    "tiny": ("D, tiny", "#c8443c"),
    "batched": ("E, batched", "#8a5fb5"),
    "odd": ("G, odd sizes", "#6b7a1f"),
    "precision": ("H, other precisions", "#5b6470"),
    "fused": ("I, fused epilogues", "#b0528f"),
}
ITEM_BYTES = {"bf16": 2, "f16": 2, "f32": 4, "tf32": 4, "f64": 8, "s8": 1, "f8e4m3": 1}
# Dense bf16 products in TFLOP/s and memory in TB/s, of NVIDIA's data sheets.
DATA_SHEET = {"NVIDIA H200": (989.0, 4.8), "NVIDIA H100 80GB HBM3": (989.0, 3.35)}


@dataclasses.dataclass(frozen=True)
class Result:
    """A result of `python -m jax_moye bench`."""

    file: str
    report: dict

    @property
    def measured(self) -> list[dict]:
        """The rows with a ratio."""
        return [row for row in self.report["rows"] if "ratio" in row]


def results(root: pathlib.Path = ROOT) -> list[Result]:
    """All results of the benchmark on GPUs, newest first."""
    found = []
    for path in (root / RESULTS).glob("*.json"):
        report = json.loads(path.read_text())
        if "rows" in report and not report["emulated"]:
            found.append(Result(f"{RESULTS}/{path.name}", report))
    return sorted(found, key=lambda result: (result.report["date"], result.file), reverse=True)


def shown(found: Sequence[Result], suite: dict) -> list[Result]:
    """Of each GPU the newest result with enough rows of the suite; without one, the newest of those with most rows."""
    ids = {row["id"] for row in suite["rows"]}
    best: dict[str, tuple[bool, int, Result]] = {}
    for result in found:
        rows = len(ids & {row["id"] for row in result.measured})
        enough = rows >= SHOWN * len(ids)
        gpu = result.report["gpu"]
        key = (enough, len(ids) if enough else rows)
        if gpu not in best or key > best[gpu][:2]:
            best[gpu] = (*key, result)
    return [result for _, _, result in best.values()]


# Numbers ---------------------------------------------------------------------------------------------------------


def geometric_mean(rows: Sequence[dict]) -> str:
    """Of the rows' ratios, as a text."""
    return f"{statistics.geometric_mean([row['ratio'] for row in rows]):.3f}"


def outcome(row: dict) -> str:
    """What the row's interval says: "faster", "slower", or "level" where it holds 1."""
    low, high = row["ratio_ci"]
    return "faster" if low > 1 else "slower" if high < 1 else "level"


def size(row: dict) -> str:
    """`m x n x k`, with the batch in front where there is one."""
    sizes = [row["batch"]] if row["batch"] > 1 else []
    return "x".join(map(str, [*sizes, row["m"], row["n"], row["k"]]))


def by_regime(rows: Sequence[dict]) -> dict[str, list[dict]]:
    """The rows of each regime, in the suite's order."""
    found: dict[str, list[dict]] = {}
    for row in rows:
        found.setdefault(row["regime"], []).append(row)
    return found


def regime_table(rows: Sequence[dict]) -> str:
    """A line for each regime: how many rows, the ratios' mean and range, what their intervals say."""
    lines = [
        "| rows of the suite | number | geometric mean | lowest | highest | faster | level | slower |",
        "|---|---|---|---|---|---|---|---|",
    ]

    def line(name: str, rows: Sequence[dict]) -> str:
        low, high = (pick(rows, key=lambda row: row["ratio"]) for pick in (min, max))
        counts = [str([outcome(row) for row in rows].count(word)) for word in ("faster", "level", "slower")]
        ends = [f"{row['ratio']:.3f} ({row['id']})" for row in (low, high)]
        return f"| {' | '.join([name, str(len(rows)), geometric_mean(rows), *ends, *counts])} |"

    for regime, group in by_regime(rows).items():
        lines.append(line(REGIMES[regime][0] if regime in REGIMES else regime, group))
    core = [row for row in rows if row["id"][0] in CORE]
    if core:
        lines.append(line("core, A to E", core))
    return "\n".join(lines)


def row_table(rows: Sequence[dict]) -> str:
    """A line for each row."""
    lines = [
        "| row | size | order | dtype | us | TFLOP/s | best other, us | ratio | interval (95 %) | notes | kernel |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        best = row["best_baseline"]
        low, high = row["ratio_ci"]
        notes = []
        if "host_bound" in row:
            notes.append("host:&nbsp;" + ", ".join(row["host_bound"]))
        if row.get("clocks_differ"):
            notes.append("clocks")
        cells = [
            row["id"],
            size(row),
            row["layout"],
            row["dtype"],
            f"{row['us']:g}",
            f"{row['tflops']:g}",
            f"{best}&nbsp;{row['baselines'][best]:g}",
            f"{row['ratio']:.3f}",
            f"{low:.3f}&nbsp;to&nbsp;{high:.3f}",
            "; ".join(notes),
            f"`{row['config']}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# Charts ----------------------------------------------------------------------------------------------------------


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


def ratio_chart(result: Result) -> str:
    """The ratio of each row with its interval, on a logarithmic axis."""
    rows, left, right, top, step = result.measured, 160, 440, 40, 16
    ends = [value for row in rows for value in (row["ratio"], *row["ratio_ci"])]
    low, high = min(0.5, *ends) / 1.05, max(2.0, *ends) * 1.05
    bottom = top + step * len(rows) + 4
    picture = Picture(460, bottom + 32, f"Time of the best of XLA and torch over ours, {result.report['gpu']}")

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
        color = REGIMES.get(row["regime"], ("", "#5b6470"))[1]
        begin, end = sorted((x(1), x(row["ratio"])))
        label = f"{row['id']} {size(row)}" + (f" {row['dtype']}" if row["dtype"] != "bf16" else "")
        picture.text(left - 6, y + 11, label, "end")
        picture.bar(begin, y + 3, max(end - begin, 1), 9, color, f"{label}: {row['ratio']:.3f}")
        picture.line(x(row["ratio_ci"][0]), y + 7.5, x(row["ratio_ci"][1]), y + 7.5, "#222222")
    picture.text((left + right) / 2, bottom + 20, "time of the best of XLA and torch / ours", "middle")
    return picture.svg()


def roofline(result: Result) -> str | None:
    """TFLOP/s of the bf16 rows over their FLOP per byte; None for a GPU whose data sheet is not known here."""
    if result.report["gpu"] not in DATA_SHEET:
        return None
    peak, bandwidth = DATA_SHEET[result.report["gpu"]]
    rows = [row for row in result.measured if row["dtype"] == "bf16"]
    points = []
    for row in rows:
        batch, m, n, k = (row[key] for key in ("batch", "m", "n", "k"))
        moved = batch * (m * k + n * k + m * n) * ITEM_BYTES[row["dtype"]]
        points.append((2 * batch * m * n * k / moved, row["tflops"], row))
    left, right, top, bottom = 52, 440, 20, 320
    x_low, x_high = 0.5, 1e4
    y_low, y_high = min(1.0, *(point[1] for point in points)) / 1.2, 2000.0
    regimes = [regime for regime in by_regime(rows) if regime in REGIMES]
    title = f"TFLOP/s over FLOP per byte, {result.report['gpu']}"
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
    ridge = peak / bandwidth
    start = max(x_low, y_low / bandwidth)
    picture.line(x(start), y(start * bandwidth), x(ridge), y(peak), "#222222", 1.5)
    picture.line(x(ridge), y(peak), right, y(peak), "#222222", 1.5)
    picture.text(x(ridge) + 6, y(peak) - 6, f"{peak:g} TFLOP/s")
    picture.text(x(10), y(10 * bandwidth) - 10, f"{bandwidth:g} TB/s", "end")
    for intensity, tflops, row in points:
        color = REGIMES.get(row["regime"], ("", "#5b6470"))[1]
        picture.dot(x(intensity), y(tflops), color, f"{row['id']} {size(row)}: {tflops:g} TFLOP/s")
    picture.text((left + right) / 2, bottom + 30, "FLOP per byte of operands and result", "middle")
    picture.text(left, top - 6, "TFLOP/s")
    for i, regime in enumerate(regimes):
        name, color = REGIMES[regime]
        column, line = left + 130 * (i % 3), bottom + 48 + 16 * (i // 3)
        picture.dot(column + 4, line - 4, color, name)
        picture.text(column + 14, line, name)
    return picture.svg()


# Files -----------------------------------------------------------------------------------------------------------


def of_readme(result: Result) -> str:
    """README's lines on speed."""
    report = result.report
    return (
        f"Time of the best of XLA and torch over ours, in one run on an {report['gpu']}\n(`{result.file}`); above 1 we "
        "are faster.\n*Faster*, *level* and *slower* count rows by their 95 % intervals.\n\n"
        f"{regime_table(result.measured)}"
    )


def section(result: Result, charts: dict[str, str]) -> str:
    """A GPU's part of the page; its charts go into `charts`, path -> SVG."""
    report, rows = result.report, result.measured
    stem = re.sub(r"[^a-z0-9]+", "_", report["gpu"].lower())
    core = sorted((row for row in rows if row["id"][0] in CORE), key=lambda row: row["ratio"])
    worst = ", ".join(f"{row['id']} {row['ratio']:.3f}" for row in core[:5])
    versions = ", ".join(f"{name} {report[name]}" for name in ("driver", "jax", "jaxlib", "torch") if report.get(name))
    others = [row for row in report["rows"] if "ratio" not in row]
    text = [
        f"## {report['gpu']}",
        f"`{result.file}`: commit {report['commit']}, {report['date']}, {versions}; "
        f"protocol {report['protocol']['mode']}, {report['protocol']['alternations']} turns an arm.",
        regime_table(rows),
    ]
    if core:
        tenth = core[math.ceil(len(core) / 10) - 1]["ratio"]
        text.append(f"Of the core, one row in ten is at {tenth:.3f} or below. The five lowest: {worst}.")
    charts[f"{IMAGES}/{stem}_ratio.svg"] = ratio_chart(result)
    text.append(f"![Ratio of each row](images/{stem}_ratio.svg)")
    text.append("The line in each bar is the ratio's interval. Rows of one colour are of one regime.")
    if (picture := roofline(result)) is not None:
        charts[f"{IMAGES}/{stem}_roofline.svg"] = picture
        text.append(f"![Roofline of the bf16 rows](images/{stem}_roofline.svg)")
        text.append(
            "bf16 rows under the roof of NVIDIA's data sheet. Bytes count each operand and the result once. On random "
            "data large products end below the roof in every library, since power holds the clock down."
        )
    text.append(row_table(rows))
    text.append(
        "*host*: arms that may have waited for the host. *clocks*: the arms' mean clocks differ by more than 2 %. Our "
        "kernel is the one that the selection chose."
    )
    if others or report["not_run"]:
        missing = [f"{row['id']} ({row.get('why', 'no ratio')})" for row in [*others, *report["not_run"]]]
        text.append(f"Not measured: {', '.join(missing)}.")
    return "\n\n".join(text)


def files(root: pathlib.Path = ROOT) -> dict[str, str]:
    """What the generated files hold, path -> text.

    Raises:
      ValueError: README has not the two markers, once each and in order.
    """
    found = results(root)
    chosen = shown(found, json.loads((root / "benchmarks/suite.json").read_text()))
    charts: dict[str, str] = {}
    page = [
        "<!-- Generated by tools/benchmark_pages.py from benchmarks/results. Do not edit. -->\n# Benchmarks",
        "The 51 products of [benchmarks/suite.json](../benchmarks/suite.json) against XLA and torch, in turns in one "
        "process, on random data that is not in the cache. [Measuring](measuring.md) says how. The *ratio* is the "
        "time of the fastest of the others over ours: above 1 we are faster, and where its interval holds 1 the two "
        "are *level*. The core are the rows A to E; other rows are never mixed into it.",
        *(section(result, charts) for result in chosen),
        "## All results",
        "The newest one with at least three quarters of the suite is shown above. [The log](performance.md) says what "
        "was learned from each.",
        "\n".join(
            [
                "| file | GPU | date | rows | geometric mean of the core |",
                "|---|---|---|---|---|",
                *(
                    f"| `{pathlib.Path(result.file).name}` | {result.report['gpu']} | {result.report['date'][:10]} | "
                    f"{len(result.measured)} | {geometric_mean(core) if core else ''} |"
                    for result in found
                    for core in [[row for row in result.measured if row["id"][0] in CORE]]
                ),
            ]
        ),
        "To measure on your machine: `python -m jax_moye bench`, and `python tools/benchmark_pages.py` for this page.",
    ]
    readme = (root / "README.md").read_text()
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if readme.count(BEGIN) != 1 or readme.count(END) != 1 or not pattern.search(readme):
        raise ValueError(f"README.md does not have {BEGIN} and {END} once each")
    lines = "\n\n".join(of_readme(result) for result in chosen)
    return {
        PAGE: "\n\n".join(page) + "\n",
        **charts,
        "README.md": pattern.sub(lambda _: f"{BEGIN}\n{lines}\n{END}", readme),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Writes or checks the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(argv)
    old = []
    for name, text in files().items():
        path = ROOT / name
        if path.exists() and path.read_text() == text:
            continue
        old.append(name)
        if not arguments.check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    if arguments.check and old:
        print(f"{', '.join(old)}: not what tools/benchmark_pages.py writes from {RESULTS}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
