#!/usr/bin/env python3
"""Writes what README and docs say of speed from benchmarks/results: docs/benchmarks.md, its charts, README's table.

For each GPU they show the newest result that has most workloads of the suite. With --check nothing is written, and the
exit status is 1 if a file is not what would be written.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import sys
from collections.abc import Callable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the package of this checkout, installed or not

from jax_moye._bench.charts import REGIMES, by_regime, ratio_chart, roofline, size  # noqa: E402
from jax_moye._bench.results import counted, is_core, left_out, mean_of, tenth  # noqa: E402

RESULTS = "benchmarks/results"
PAGE = "docs/benchmarks.md"
IMAGES = "docs/images"
BEGIN, END = "<!-- speed: begin -->", "<!-- speed: end -->"
SHOWN = 0.75  # of the suite's workloads: a result with fewer is listed, not shown


@dataclasses.dataclass(frozen=True)
class Result:
    """A result of `python -m jax_moye bench`."""

    file: str
    report: dict

    @property
    def measured(self) -> list[dict]:
        """The workloads with a ratio."""
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
    """For each GPU the newest result with enough workloads; without one, the newest of those with most workloads."""
    ids = {row["id"] for row in suite["rows"]}
    best: dict[str, tuple[bool, int, Result]] = {}
    for result in found:
        rows = len(ids & {row["id"] for row in result.measured})
        if not rows:  # of other workloads
            continue
        enough = rows >= SHOWN * len(ids)
        gpu = result.report["gpu"]
        key = (enough, len(ids) if enough else rows)
        if gpu not in best or key > best[gpu][:2]:
            best[gpu] = (*key, result)
    return [result for _, _, result in best.values()]


# Numbers ---------------------------------------------------------------------------------------------------------


def outcome(row: dict) -> str:
    """What the row's interval says: "faster", "slower", or "level" where it holds 1."""
    low, high = row["ratio_ci"]
    return "faster" if low > 1 else "slower" if high < 1 else "level"


def regime_table(rows: Sequence[dict]) -> str:
    """A line for each regime: how many workloads, the ratios' mean and range, what their intervals say.

    The default way comes first where it was timed. Workloads for which the host was a limit are in no line.
    """
    has_default = any("default_ratio" in row for row in rows)
    titles = ["default way, mean", "its lowest", "our kernel, mean"] if has_default else ["geometric mean"]
    titles = ["workloads", "number", *titles, "lowest", "highest", "faster", "level", "slower"]
    lines = [f"| {' | '.join(titles)} |", "|---" * len(titles) + "|"]

    def end(rows: Sequence[dict], pick: Callable[..., dict], kind: str = "ratio") -> str:
        row = pick(rows, key=lambda row: row[kind])
        return f"{row[kind]:.3f} ({row['id']})"

    def line(name: str, rows: Sequence[dict]) -> None:
        default, rows = counted(rows, "default_ratio"), counted(rows)
        cells = [name, str(len(rows))]
        if has_default:
            cells += [mean_of(default, "default_ratio"), end(default, min, "default_ratio")] if default else ["", ""]
        if rows:
            cells += [mean_of(rows), end(rows, min), end(rows, max)]
            cells += [str([outcome(row) for row in rows].count(word)) for word in ("faster", "level", "slower")]
        lines.append(f"| {' | '.join(cells + [''] * (len(titles) - len(cells)))} |")

    for regime, group in by_regime(rows).items():
        line(REGIMES[regime][0] if regime in REGIMES else regime, group)
    core = [row for row in rows if is_core(row)]
    if core:
        line("core, A to E", core)
    return "\n".join(lines)


def of_host_bound(rows: Sequence[dict]) -> list[str]:
    """A sentence on the workloads that the table leaves out; nothing where there are none."""
    names = left_out(rows)
    verb = "is" if len(names) == 1 else "are"
    return [f"The host was a limit on {len(names)} more, which {verb} in no mean: {', '.join(names)}."] if names else []


def row_table(rows: Sequence[dict]) -> str:
    """A line for each workload."""
    lines = [
        "| workload | size | order | dtype | us | TFLOP/s | best other, us | ratio | 95 % interval | by default "
        "| notes | kernel |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
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
            " ".join(row[key] for key in ("dtype", "precision", "epilogue") if key in row),
            f"{row['us']:g}",
            f"{row['tflops']:g}",
            f"{best}&nbsp;{row['baselines'][best]:g}",
            f"{row['ratio']:.3f}",
            f"{low:.3f}&nbsp;to&nbsp;{high:.3f}",
            "&nbsp;".join(
                [row.get("by_default", ""), *([f"{row['default_ratio']:.3f}"] if "default_ratio" in row else [])]
            ),
            "; ".join(notes),
            f"`{row['config']}`",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# Files -----------------------------------------------------------------------------------------------------------


def of_readme(result: Result) -> str:
    """README's lines on speed."""
    report, rows = result.report, result.measured
    words = ["The table shows ratios: the time of the faster of XLA and torch over our time. Above 1 we are faster."]
    if any("default_ratio" in row for row in rows):
        words = [
            "The table shows ratios. Above 1 we are faster. The *default way* is a program that asks for nothing: its",
            "ratio is the time of XLA's own program over its time. *Our kernel* may be what it does not take: its",
            "ratio is the time of the fastest of XLA and the other libraries over its time.",
        ]
    shared = report["protocol"].get("gpus")
    gpus = f"{shared} {report['gpu']}s, each with a part of the rows" if shared else f"one {report['gpu']}"
    words += [
        f"All times are of one run on {gpus}, `{result.file}`.",
        "A workload is *level* where the 95 % interval of its ratio contains 1, else *faster* or *slower*.",
        *of_host_bound(rows),
    ]
    return "\n".join(words) + f"\n\n{regime_table(rows)}"


def section(result: Result, charts: dict[str, str]) -> str:
    """A GPU's part of the page; its charts go into `charts`, path -> SVG."""
    report, rows = result.report, result.measured
    stem = re.sub(r"[^a-z0-9]+", "_", report["gpu"].lower())
    core = sorted((row for row in counted(rows) if is_core(row)), key=lambda row: row["ratio"])
    worst = ", ".join(f"{row['id']} {row['ratio']:.3f}" for row in core[:5])
    versions = ", ".join(f"{name} {report[name]}" for name in ("driver", "jax", "jaxlib", "torch") if report.get(name))
    others = [row for row in report["rows"] if "ratio" not in row]
    text = [
        f"## {report['gpu']}",
        f"`{result.file}`: commit {report['commit']}, {report['date']}, {versions}; "
        f"protocol {report['protocol']['mode']}, {report['protocol']['alternations']} rounds.",
        regime_table(rows),
        *of_host_bound(rows),
    ]
    if core:
        text.append(
            f"One workload of the core in ten has a ratio of {tenth(core):.3f} or below. The five lowest: {worst}."
        )
    by_default = [row for row in rows if is_core(row)]
    if by_default := sorted(counted(by_default, "default_ratio"), key=lambda row: row["default_ratio"]):
        worst = ", ".join(f"{row['id']} {row['default_ratio']:.3f}" for row in by_default[:5])
        text.append(f"By default, the five lowest of the core are, over XLA's own program: {worst}.")
    bursts = counted(row["burst"] for row in rows if is_core(row) and "burst" in row)
    if bursts:
        text.append(f"At the highest clock, in bursts, the core's geometric mean is {mean_of(bursts)}.")
    if (picture := ratio_chart(report)) is not None:
        charts[f"{IMAGES}/{stem}_ratio.svg"] = picture.svg
        text.append(f"![Ratio of each workload](images/{stem}_ratio.svg)")
    if (picture := roofline(report)) is not None:
        charts[f"{IMAGES}/{stem}_roofline.svg"] = picture.svg
        text.append(f"![Roofline](images/{stem}_roofline.svg)")
        text.append(
            "The roofs are those of NVIDIA's data sheet. Each operand and the result are counted once as bytes. On "
            "random data large products end below the roof in every library, because power holds the clock down."
        )
    text.append(row_table(rows))
    text.append(
        "*by default* says who computes the workload in a program that asks for nothing and, where it was timed, the "
        "time of XLA's own program over that. *host* names the contenders that may have waited for the host. *clocks* "
        "says that the mean clocks of the contenders differ by more than 2 %. "
        "Our kernel is the one that the selection chose."
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
        "This page shows how fast our kernels are next to XLA and torch, on the 51 products of "
        "[benchmarks/suite.json](../benchmarks/suite.json). Such a product is called a *workload*, and whoever "
        "computes it a *contender*. The contenders alternate in one process, on random data that is not in the cache; "
        "[Measuring](measuring.md) says how. The *ratio* is the time of the fastest of the others over our time: "
        "above 1 we are faster. Where the interval of a ratio contains 1, the two are *level*. The workloads A to E "
        "are the core, and no others are mixed into its figures.",
        *(section(result, charts) for result in chosen),
        "## All results",
        "The newest result with at least three quarters of the suite is shown above. [The log](performance.md) says "
        "what was learned from each.",
        "\n".join(
            [
                "| file | GPU | date | workloads | geometric mean of the core | default way, geometric mean of all |",
                "|---|---|---|---|---|---|",
                *(
                    f"| `{pathlib.Path(result.file).name}` | {result.report['gpu']} | {result.report['date'][:10]} | "
                    f"{len(result.measured)} | {mean_of(core) if core else ''} | "
                    f"{mean_of(default, 'default_ratio') if default else ''} |"
                    for result in found
                    for default in [counted(result.measured, "default_ratio")]
                    for core in [[row for row in counted(result.measured) if is_core(row)]]
                ),
            ]
        ),
        "`python -m jax_moye bench` measures on your machine, and `python tools/benchmark_pages.py` writes this page.",
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
