"""How a run of `bench --program` is shown: its tables, and the chart of all runs of a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from jax_moye._bench import plots
from jax_moye._bench.plots import FAINT, INK, Chart
from jax_moye._format import us_text

# The ways to run a program, and their colours.
ARMS = {"xla": "#5b6470", "intercept": "#e08a1e", "optimize": "#1f6fb2", "products": "#2a9d8f"}
# What the chart has of each way, next to XLA's.
_PANELS = {"ms": "time", "kernels": "kernels", "written_bytes": "bytes written", "memory_bytes": "memory"}


def is_shown(run: Mapping[str, Any]) -> bool:
    """Whether a run is one of `bench --program`, and no table of other programs."""
    return "rewrites" in run


def arms_of(run: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The ways that a run has, with their figures."""
    return {name: value for name, value in run.items() if isinstance(value, dict)}


def arms_cells(run: Mapping[str, Any]) -> list[list[str]]:
    """A line of cells for each way; the first one names the columns."""
    cells = [["way", "ms", "worst ms", "XLA / it", "kernels", "our kernels", "written MB", "memory MB"]]
    cells[0] += ["lower s", "compile s", "difference", "clock MHz", "remarks"]
    for name, found in arms_of(run).items():
        low, high = found["ratio_ci"]
        remarks = ["host-bound"] * bool(found.get("host_bound")) + ["kernels at least"] * ("turns_unknown" in found)
        cells.append(
            [
                name,
                f"{found['ms']:g}",
                f"{found['worst_ms']:g}",
                f"{found['ratio']:.3f} [{low:.3f}, {high:.3f}]",
                f"{found['kernels']}",
                f"{found['ours']}",
                _megabytes(found["written_bytes"]),
                _megabytes(found.get("memory_bytes")),
                f"{found['lower_s']:g}",
                f"{found['compile_s']:g}",
                f"{found['difference']:g}" if "difference" in found else "",
                f"{found.get('sm_mhz', '')}",
                ", ".join([*remarks, *found.get("throttled", ())]),
            ]
        )
    return cells


def _megabytes(size: float | None) -> str:
    return "not known" if size is None else f"{size / 1e6:.4g}"


def rewrites_cells(run: Mapping[str, Any]) -> list[list[str]]:
    """A line of cells for each product that takes something in, or is ours, and for each attention.

    The first one names the columns.
    """
    cells = [["product", "takes in", "times", "by", "us", "XLA us", "lead", "won us", "measured"]]
    for row in run["rewrites"]:
        if row["takes_in"] or row["computed_by"] == "moye" or _is_attention(row):
            times = [us_text(row[key]) if row[key] is not None else "" for key in ("us", "xla_us")]
            won = "not measured" if row["won_us"] is None else f"{row['won_us']:.4g}"
            lead = "" if row["lead"] is None else f"{row['lead']:.3f}"
            by = {"moye": "ours", "xla": "XLA"}.get(row["computed_by"], row["computed_by"])
            head = [*_narrow(row), str(row["count"]), by]
            cells.append([*head, *times, lead, won, row["timed"] or ""])
    return cells


def _narrow(row: Mapping[str, Any]) -> tuple[str, str]:
    """What a row computes and takes in; an attention as sizes, so that the two fit into a line."""
    if not _is_attention(row):
        return row["product"], row["takes_in"] or "nothing"
    text = row["product"]
    for words, sign in ((", ", " "), (" and its gradients", ""), (" heads in groups of ", "/"), (" heads", "")):
        text = text.replace(words, sign)
    text = text.replace(" x ", "x").replace(" scores of ", "x")
    behind = ", and the gradients" if " and its gradients" in row["product"] else ""
    return text, f"softmax{behind}" if row["takes_in"] else "nothing"


def words(run: Mapping[str, Any]) -> list[str]:
    """What the rewrites won in all, next to the whole program; and what is not in the tables."""
    rows, arms = run["rewrites"], arms_of(run)
    products = [row for row in rows if not _is_attention(row)]
    taking = [row for row in products if row["takes_in"]]
    plain = [row for row in products if not row["takes_in"] and row["computed_by"] == "moye"]
    attentions = [row for row in rows if _is_attention(row) and row["computed_by"] == "moye"]
    found = []
    for several, name in (
        (taking, "products that take something in"),
        (plain, "products of ours that take nothing in"),
        (attentions, "attentions of ours"),
    ):
        if several:
            known = [row["won_us"] for row in several if row["won_us"] is not None]
            of_all = "" if len(known) == len(several) else f" of the {len(known)} that were measured"
            won = f": {sum(known) / 1e3:.4g} ms won{of_all}" if known else ": not measured"
            found.append(f"{_counted(several, name)}{won}")
    for name in ("products", "attentions"):
        of_name = (row for row in rows if _is_attention(row) == (name == "attentions"))
        if left := [row for row in of_name if not row["takes_in"] and row["computed_by"] == "xla"]:
            found.append(_counted(left, f"{name} that are XLA's, as they were"))
    if "optimize" in arms and "xla" in arms:
        less = arms["xla"]["ms"] - arms["optimize"]["ms"]
        found.append(f"the optimized program takes {abs(less):.4g} ms {'less' if less >= 0 else 'more'} than XLA's")
    found += [f"{row['id']} not run: {row['why']}" for row in run["not_run"]]
    return found + [*run["notes"]]


def _is_attention(row: Mapping[str, Any]) -> bool:
    return row.get("is_attention", False)  # of older files no attention is known


def _counted(rows: Sequence[Mapping[str, Any]], which: str) -> str:
    """How many there are, and how often they are computed."""
    times = sum(row["count"] for row in rows)
    often = "" if times == len(rows) else f", computed {times} times"
    return f"{len(rows)} different {which}{often}"


def chart(report: Mapping[str, Any]) -> Chart | None:
    """Time, kernels, bytes and memory of each way over XLA's, for all runs of a file; None where there is no such run.

    Args:
      report: the file, of which runs have a way "xla".
    """
    bars: list[_Bar] = []
    for run in report["runs"]:
        arms = arms_of(run)
        if "ms" in arms.get("xla", {}):
            place = bars[-1].place + 1.6 if bars else 0.0
            timed = {name: found for name, found in arms.items() if "ms" in found}
            bars += [_Bar(place + i, run["program"], *item, arms["xla"]) for i, item in enumerate(timed.items())]
    if not bars:
        return None
    panels = {key: name for key, name in _PANELS.items() if all(bar.found.get(key) for bar in bars)}
    figure = plots.new_figure(2.0 + 1.7 * len(panels), 1.1 + 0.2 * (bars[-1].place + 1))
    tips: dict[str, str] = {}
    with plots.styled():
        of_panels = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for axes, (key, name) in zip(of_panels, panels.items(), strict=True):
            most = max(1.0, *(bar.share(key) for bar in bars))
            for i, bar in enumerate(bars):
                tips |= _draw(axes, bar, key, f"{key}-{i}", most)
            axes.axvline(1, color=INK, linewidth=1)
            axes.set_title(name, fontsize=9)
            axes.set_xlim(0, 1.05 * most)
            axes.set_xticks([0.5, 1] if most < 2 else [1])
            axes.grid(axis="x", color=FAINT)
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
        of_panels[0].set_yticks([bar.place for bar in bars], [f"{bar.program}, {bar.way}" for bar in bars])
        of_panels[0].set_ylim(bars[-1].place + 0.6, -0.6)
        figure.supxlabel("over XLA's; the line in a bar of time: 95 % interval", fontsize=8)
    return Chart(figure, f"Whole programs next to XLA's, {report['gpu']}", tips)


class _Bar(NamedTuple):
    """A way of a run: where its bars are, and its figures and XLA's."""

    place: float
    program: str
    way: str
    found: Mapping[str, Any]
    of_xla: Mapping[str, Any]

    def share(self, key: str) -> float:
        return self.found[key] / self.of_xla[key]


def _draw(axes: Any, bar: _Bar, key: str, gid: str, most: float) -> dict[str, str]:
    """Draws one bar. Returns what the pointer shows there."""
    share, value = bar.share(key), _value(key, bar.found[key])
    axes.barh([bar.place], [share], height=0.75, color=ARMS.get(bar.way, INK), gid=gid)
    if key == "ms" and "ratio_ci" in bar.found:
        axes.plot([1 / end for end in bar.found["ratio_ci"]], [bar.place, bar.place], color=INK, linewidth=1)
    is_inside = share > 0.6 * most
    axes.annotate(
        value,
        (0 if is_inside else share, bar.place),
        xytext=(3, 0),
        textcoords="offset points",
        va="center",
        fontsize=7,
        color="white" if is_inside else INK,
    )
    return {gid: f"{bar.program}, {bar.way}: {value}, {share:.3f} of XLA's"}


def _value(key: str, value: float) -> str:
    if key == "ms":
        return f"{value:.4g} ms"
    return f"{value / 1e6:.4g} MB" if key.endswith("bytes") else f"{value:g}"
