"""The forms that files of results have: each as the lines that `show` prints, and as times that can be compared."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from jax_moye._bench import results
from jax_moye._bench.compare import Timed
from jax_moye._bench.ladder import table as ladder_table
from jax_moye._bench.program import show as program_show
from jax_moye._format import WIDTH, filled, fitted_table, wrapped

# What the columns mean, by their names.
COLUMNS = {
    "all timed": "number of configs that were timed",
    "best other": "the fastest of XLA, torch and the others, and its microseconds",
    "burst": "the ratio at the highest clock, in short rounds after rests",
    "by": "who computes it: a kernel of ours, or XLA",
    "by default": "who computes it in a program that asks for nothing, and the time of XLA's own program over that",
    "chosen by": "what chose our kernel: the model, a measurement (table, cache), or the caller (explicit)",
    "clock MHz": "mean of the GPU's clock in its rounds",
    "compile s": "seconds that XLA takes to compile it",
    "date": "of the measurement",
    "difference": "the largest to XLA's results, over the largest element of the same result",
    "kernel": "of ours: a config of `python -m jax_moye configs`",
    "kernels": "that a step launches, copies too, by the optimized HLO",
    "lead": "low end of the 95 % interval of XLA's time over that of our fastest kernel",
    "least us": "microseconds of a call on the host: the least",
    "lower s": "seconds to trace and lower it, and to measure what this machine has not seen",
    "measured": "table: for the package; cache, measured: on this machine, alone; alone: in this run",
    "median us": "the same: the median",
    "memory MB": "arguments, results and temporaries, as the compiler assigned them",
    "ms": "milliseconds of a step, the median of all rounds",
    "notes": "host: who may have waited for the host; clocks: they differed by more than 2 %",
    "others": "microseconds of each",
    "our kernels": "how many of them are of this project",
    "ours": "whether a kernel of ours computes it by default",
    "p90 us": "the same: one call in ten took longer",
    "product": "[batch x] m x n x k, order (of a and b; N row-major, T stored transposed), dtype",
    "ratio": "time of the best other over ours: above 1 ours is faster; behind it its 95 % interval",
    "ratio to XLA": "time of XLA's default over the default way's: above 1 that is faster; behind it its 95 % interval",
    "remarks": "kernels at least: the turns of a loop are not known; host-bound; what held the clock down",
    "takes in": "what behind it a kernel of ours computes with it: c is a sum with another array",
    "TFLOP/s": "of our kernel",
    "times": "how often a step computes it",
    "us": "microseconds of one product by our kernel",
    "way": "xla: as it is; intercept, optimize: so called; products: each one ours, alone",
    "won us": "what XLA takes longer than our kernel, in all",
    "worst ms": "of the slowest round",
    "written MB": "results of all kernels",
    "XLA / it": "time of XLA's program over its own: above 1 it is faster; behind it its 95 % interval",
    "XLA / ours": "XLA's time over ours: above 1 ours is faster",
    "XLA us": "microseconds of XLA's program",
}


class Form(NamedTuple):
    """A form of a file.

    Attributes:
      has: the key that tells it from others.
      lines: what is printed of it.
      timed: its times; none can be compared where there are none.
    """

    has: str
    lines: Callable[[dict], list[str]]
    timed: Callable[[dict], list[Timed]]


def lines(report: Any) -> list[str]:
    """What `show` prints of a file.

    Args:
      report: its JSON, or the lines of a text, in a tuple.

    Raises:
      ValueError: it has none of the forms. Other errors: a value is not what it should be.
    """
    if isinstance(report, tuple):
        if report and report[0].startswith("<svg"):
            return ["a picture: a browser shows it"]
        return [part for line in report for part in _cut(line)]
    return _form(report).lines(report)


def timed(report: Any) -> list[Timed]:
    """The times of a file. Raises as `lines` does, and ValueError where there are none."""
    if not (found := _form(report).timed(report)):
        raise ValueError("nothing in it is timed")
    for one in found:
        given = [value for value in (one.us, one.ratio) if value is not None]
        for value in (*given, *(one.us_ci or ()), *(one.ratio_ci or ())):
            if type(value) not in (int, float) or not 0 < value < math.inf:
                raise ValueError(f"{value!r} is no time or ratio of {one.name}")
    return found


def about(report: Mapping[str, Any]) -> str:
    """The machine and the program of a file."""
    head = report.get("measured") or {} if "rungs" in report else report
    words = [str(head[key]) for key in ("gpu", "date") if key in head]
    words += [f"{key} {head[key]}" for key in ("commit", "jax", "driver") if head.get(key)]
    return ", ".join(words) + (", emulated: its times say nothing about a GPU" if head.get("emulated") else "")


def _form(report: Any) -> Form:
    if isinstance(report, dict):
        for form in FORMS:
            if form.has in report:
                return form
    raise ValueError("it has none of the forms that show knows")


def _cut(line: str) -> list[str]:
    """A line of a text as it stands, or what of it does not fit below it."""
    indent = " " * min(len(line) - len(line.lstrip()) + 2, 40)
    return wrapped(line, indent, break_words=True) if len(line) > WIDTH else [line]


def _explained(cells: Sequence[Sequence[str]]) -> list[str]:
    """A table without its empty columns, and what the others mean."""
    cells = filled(cells)
    found = fitted_table(cells)
    words = [f"{name}: {COLUMNS[name]}" for name in cells[0] if name in COLUMNS]
    return [*found, "", *(line for word in words for line in wrapped(word))] if words else found


def _ratio(value: float | None, interval: Sequence[float] | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" + (f" [{interval[0]:.3f}, {interval[1]:.3f}]" if interval else "")


def _product(row: Mapping[str, Any]) -> str:
    sizes = [str(row[key]) for key in ("batch", "m", "n", "k") if key != "batch" or row.get(key, 1) != 1]
    return " ".join(
        ["x".join(sizes), *(row[key] for key in ("layout", "dtype", "precision", "epilogue") if key in row)]
    )


def _of(row: Mapping[str, Any]) -> tuple[str, ...]:
    """By what the same product is found in another file."""
    return (str(row.get("id", "")), _product(row))


def _name(row: Mapping[str, Any]) -> str:
    return " ".join(filter(None, [row.get("id", ""), _product(row)]))


# ------------------------------------------------------------------------------------------------------------- bench


def _bench_lines(report: dict) -> list[str]:
    heads = ["workload", "product", "us", "ratio", "TFLOP/s", "by default", "best other", "notes"]
    cells = [[*heads, "burst", "kernel", "chosen by", "others"]]
    wrong = []
    for row in report["rows"]:
        if not row["correct"]:
            wrong += wrapped(results.line(row))
            continue
        best, notes = row.get("best_baseline"), ["clocks"] if row.get("clocks_differ") else []
        default = [row.get("by_default", ""), f"{row['default_ratio']:.3f}" if "default_ratio" in row else ""]
        notes += [f"host: {', '.join(row['host_bound'])}"] if "host_bound" in row else []
        cells.append(
            [
                row["id"],
                _product(row),
                f"{row['us']:g}",
                _ratio(row.get("ratio"), row.get("ratio_ci")),
                f"{row['tflops']:g}",
                " ".join(filter(None, default)),
                f"{best} {row['baselines'][best]:g}" if best else "",
                "; ".join(notes),
                _ratio(row.get("burst", {}).get("ratio"), row.get("burst", {}).get("ratio_ci")),
                row["config"],
                row.get("chosen_by") or "",
                ", ".join(f"{name} {us:g}" for name, us in row["baselines"].items()),
            ]
        )
    found = wrapped(about(report))
    found += (["", *_explained(cells)] if cells[1:] else []) + wrong
    for row in report["not_run"]:
        found += wrapped(f"{row['id']} not run: {row['why']}")
    return [*found, "", *(line for text in results.summary(report["rows"]) for line in wrapped(text))]


def _bench_timed(report: dict) -> list[Timed]:
    found = []
    for row in report["rows"]:
        if row["correct"]:
            interval, ratio_ci = row.get("us_ci"), row.get("ratio_ci")
            given = {"us_ci": interval, "ratio": row.get("ratio"), "ratio_ci": ratio_ci}
            found.append(Timed(_of(row), _name(row), row["us"], against=row.get("best_baseline"), **given))
    return found


# -------------------------------------------------------------------------------------------------------------- tune


def _of_problem(entry: Mapping[str, Any]) -> str:
    p = entry["problem"]
    if "arrays" in p:  # an attention
        batch, kv_heads, group, q_rows, kv_rows, head_dim = p["sizes"]
        heads = f"{batch} x {kv_heads * group} heads"
        words = f"attention, {heads}, {q_rows} x {kv_rows} scores of {head_dim}, {p['dtype']}"
    else:
        letters = ["N" if strides[at] == 1 else "T" for strides, at in ((p["a_strides"], 2), (p["b_strides"], 1))]
        dtypes = p["dtype"] if p["dtype"] == p["out_dtype"] else f"{p['dtype']} to {p['out_dtype']}"
        sizes = {key: p[key] for key in ("batch", "m", "n", "k")}  # its epilogue is a bool, and the variant says which
        words = _product(sizes | {"layout": "".join(letters), "dtype": dtypes})
    return f"{words} {entry['variant']}".strip()


def _tune_lines(report: dict) -> list[str]:
    cells = [["product", "kernel", "us", "XLA us", "XLA / ours", "lead", "all timed", "date"]]
    for entry in report["entries"]:
        us, xla = entry["us"][entry["config"]], next(iter(entry["xla_us"].values()), None)
        lead = next(iter(entry.get("lead", {}).values()), None)
        cells.append([_of_problem(entry), entry["config"], f"{us:g}"])
        cells[-1] += ["", ""] if xla is None else [f"{xla:g}", f"{xla / us:.3f}"]
        cells[-1] += ["" if lead is None else f"{lead:.3f}", str(len(entry["us"])), entry["date"]]
    return [*wrapped(about(report)), "", *_explained(cells)]


def _tune_timed(report: dict) -> list[Timed]:
    found = []
    for entry in report["entries"]:
        name = _of_problem(entry)
        found.append(Timed((name, str(entry["problem"])), name, entry["us"][entry["config"]]))
    return found


# ------------------------------------------------------------------------------------------------------------ ladder


def _ladder_lines(report: dict) -> list[str]:
    return [part for line in ladder_table.table(report).splitlines() for part in _cut(line)]


def _ladder_timed(report: dict) -> list[Timed]:
    rungs = [rung for rung in report["rungs"] if rung.get("measured")]
    return [Timed((rung["kernel"], rung["dtype"]), rung["kernel"], rung["measured"]["us"]) for rung in rungs]


# ------------------------------------------------------------------------------------------------------------ others


def _head(report: dict) -> list[str]:
    return [*wrapped(about(report)), *(line for key in ("about", "how") for line in wrapped(report.get(key, "")))]


def _us(row: Mapping[str, Any]) -> Mapping[str, float]:
    """Microseconds by config: of one, or of several."""
    us = row.get("us", {})
    return us if isinstance(us, dict) else {row.get("config", ""): us}


def _products_lines(report: dict) -> list[str]:
    heads = ["workload", "product", "ours", "ratio to XLA", "kernel", "us", "all timed", "XLA us", "lead"]
    cells = [heads]
    for row in report["products"]:
        us = _us(row)
        best = min(us, key=us.__getitem__, default=None)
        xla = row.get("xla_us", row.get("xla_seconds", 0) * 1e6) or None
        cells.append(
            [
                str(row.get("id", len(cells))),
                _product(row),
                {True: "yes", False: "no"}.get(row.get("ours"), ""),  # type: ignore[arg-type]
                _ratio(row.get("ratio"), row.get("ci")),
                best or "",
                f"{us[best]:.4g}" if best is not None else "",
                str(len(us)) if len(us) > 1 else "",
                f"{xla:.4g}" if xla else "",
                f"{row['lead']:.3f}" if "lead" in row else "",
            ]
        )
    found = [*_head(report), "", *_explained(cells)]
    if ratios := [row["ratio"] for row in report["products"] if "ratio" in row]:
        mean = statistics.geometric_mean(ratios)
        found += ["", f"geometric mean of the ratios {mean:.3f} of {len(ratios)} products"]
    return found


def _products_timed(report: dict) -> list[Timed]:
    found = []
    for row in report["products"]:
        us, ratio = min(_us(row).values(), default=None), row.get("ratio")
        if us is not None or ratio is not None:
            found.append(Timed(_of(row), _name(row), us, ratio=ratio, ratio_ci=row.get("ci"), against="xla"))
    return found


def _call(row: Mapping[str, Any]) -> str:
    sizes = "x".join(map(str, row.get("sizes", ())))
    return " ".join(
        filter(None, [row["target"].removeprefix("jax_moye_"), row.get("config"), sizes, row.get("operands")])
    )


def _handlers_lines(report: dict) -> list[str]:
    cells = [["call", "least us", "median us", "p90 us"]]
    cells += [[_call(row), *(f"{row[key]:g}" for key in ("least", "median", "p90"))] for row in report["handlers"]]
    return [*wrapped(about(report)), "", *_explained(cells)]


def _handlers_timed(report: dict) -> list[Timed]:
    return [Timed((_call(row),), _call(row), row["median"]) for row in report["handlers"]]


def _run_name(run: Mapping[str, Any]) -> str:
    return " ".join(value for key, value in run.items() if isinstance(value, str) and key != "about")


def run_lines(run: Mapping[str, Any], explained: bool = True) -> list[str]:
    """What `bench --program` prints of a program.

    Args:
      run: of it.
      explained: whether it is said what the columns mean.
    """
    show = _explained if explained else lambda cells: fitted_table(filled(cells))
    found = wrapped(": ".join(filter(None, [run["program"], run["about"], run["sizes"]])))
    found += ["", *show(program_show.arms_cells(run))]
    cells = program_show.rewrites_cells(run)
    found += ["", *show(cells)] if cells[1:] else []
    return [*found, "", *(line for text in program_show.words(run) for line in wrapped(text))]


def _programs(key: str) -> Callable[[dict], list[str]]:
    """Whole programs, of each contender its numbers."""

    def programs(report: dict) -> list[str]:
        found = _head(report)
        own = [run for run in report[key] if program_show.is_shown(run)]
        for run in own:
            found += ["", *run_lines(run, explained=run is own[-1])]
        for row in report.get("not_run", ()):
            found += wrapped(f"{row['id']} not run: {row['why']}")
        if others := [run for run in report[key] if run not in own]:
            found += _numbers(others)
        left = [name for name in report if name not in (key, *_OF_HEAD)]
        return found + ([f"also in the file: {', '.join(left)}"] if left else [])

    return programs


def _numbers(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """All numbers of all contenders in one table."""
    who = dict.fromkeys(name for run in runs for name, value in run.items() if isinstance(value, dict))
    keys = dict.fromkeys(
        of for run in runs for name in who for of, x in run.get(name, {}).items() if isinstance(x, int | float)
    )
    cells = [["program", *(f"{name} {of}" for name in who for of in keys)]]
    for run in runs:
        numbers = [run.get(name, {}).get(of, "") for name in who for of in keys]
        cells.append([_run_name(run), *(x if isinstance(x, str) else f"{x:.5g}" for x in numbers)])
    ms = wrapped("ms: milliseconds of a step; the other numbers are what the text above says of them")
    return ["", *_explained(cells), "", *ms]


_OF_HEAD = (
    *("about", "how", "commit", "gpu", "driver", "power_limit_watts", "jax", "emulated", "date"),
    *("cuda", "jaxlib", "xla_flags", "protocol", "not_run"),
)


def _programs_timed(key: str) -> Callable[[dict], list[Timed]]:
    def programs(report: dict) -> list[Timed]:
        found = []
        for run in report[key]:
            for who, figures in run.items():
                if isinstance(figures, dict):
                    name = f"{_run_name(run)}, {who}"
                    found.append(Timed((name,), name, 1e3 * figures["ms"]))
        return found

    return programs


FORMS = (
    Form("rows", _bench_lines, _bench_timed),
    Form("entries", _tune_lines, _tune_timed),
    Form("rungs", _ladder_lines, _ladder_timed),
    Form("products", _products_lines, _products_timed),
    Form("handlers", _handlers_lines, _handlers_timed),
    Form("runs", _programs("runs"), _programs_timed("runs")),
    Form("modes", _programs("modes"), _programs_timed("modes")),
)
