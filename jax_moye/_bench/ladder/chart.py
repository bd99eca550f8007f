"""The ladder as a chart."""

from __future__ import annotations

from typing import Any

from jax_moye._bench import plots
from jax_moye._bench.plots import FAINT, GREY, Chart

_RED, _BLUE = "#c0392b", "#2f6fab"


def chart(report: dict[str, Any]) -> Chart:
    """The report as a chart: bars for each rung, and the efficiency against the stages where the report has it."""
    rungs, dtype = report["rungs"], report["dtype"]
    panels: list[tuple[str, list[list[tuple[float, str]]]]] = []  # title, and of each rung its bar's parts
    shared = [rung["counted"]["shared"] for rung in rungs]
    panels.append(
        (
            "shared-memory wavefronts,\nbank conflicts red",
            [[(s["wavefronts"] - s["bank_conflicts"], _BLUE), (s["bank_conflicts"], _RED)] for s in shared],
        )
    )
    moved = [sum(rung["counted"]["instructions"].values()) for rung in rungs]
    panels.append(("instructions of a warp:\nmemory and tensor cores", [[(n, _BLUE)] for n in moved]))
    barriers = [sum(rung["counted"]["barriers"].values()) for rung in rungs]
    panels.append(("barriers", [[(n, _BLUE)] for n in barriers]))
    if report["measured"] is not None:
        speeds = [(rung["measured"] or {}).get("tflops", 0) for rung in rungs]
        panels.append((f"TFLOP/s,\n{report['measured']['gpu']}", [[(x, _BLUE)] for x in speeds]))

    m, n, k = report["shape"]
    title = f"The ladder: {m}x{n}x{k} {report['order']}, {dtype}"
    points = report.get("stages", {}).get("points", [])
    names = [rung["kernel"] + (f" ({rung['dtype']}*)" if rung["stand_in"] else "") for rung in rungs]
    bars_height, stages_height = 1.1 + 0.24 * len(rungs), 2.6 if points else 0.0
    figure = plots.new_figure(2.0 + 1.9 * len(panels), bars_height + stages_height)
    tips = {}
    with plots.styled():
        parts = figure.subfigures(2, 1, height_ratios=[bars_height, stages_height]) if points else [figure]
        parts[0].suptitle(title, fontweight="bold")
        all_axes = parts[0].subplots(1, len(panels), sharey=True, squeeze=False)[0]
        for number, (axes, (of_panel, bars)) in enumerate(zip(all_axes, panels, strict=True)):
            axes.set_title(of_panel, loc="left", fontsize=8)
            largest = max((sum(value for value, _ in bar) for bar in bars), default=0) or 1
            axes.set_xlim(0, 1.35 * largest)  # room for the numbers
            axes.set_xticks([])
            axes.spines[:].set_visible(False)
            axes.tick_params(length=0)
            for i, bar in enumerate(bars):
                at = 0.0
                hatch = "////" if rungs[i]["stand_in"] else None
                for part, (value, color) in enumerate(bar):
                    gid = f"bar-{number}-{i}-{part}"
                    axes.barh([i], [value], left=at, height=0.7, color=color, hatch=hatch, edgecolor="white", gid=gid)
                    tips[gid] = f"{names[i]}: {value:,g}"
                    at += value
                axes.text(at + 0.02 * largest, i, f"{at:,g}", va="center", fontsize=8)
        all_axes[0].set_yticks(range(len(rungs)), names)
        all_axes[0].set_ylim(len(rungs) - 0.4, -0.6)
        if any(rung["stand_in"] for rung in rungs):
            parts[0].supxlabel(
                f"* and hatched: the kernel has no {dtype}; its config of the dtype in brackets stands for it",
                fontsize=8,
                color=GREY,
            )
        if points:
            tips |= _draw_stages(parts[1], report["stages"])
    return Chart(figure, title, tips)


def stages_chart(stages: dict[str, Any]) -> Chart:
    """The efficiency against the stages alone: `report["stages"]` as a chart."""
    figure = plots.new_figure(5.4, 2.6)
    with plots.styled():
        tips = _draw_stages(figure, stages)
    return Chart(figure, "Efficiency against the number of stages", tips)


def _draw_stages(figure: Any, stages: dict[str, Any]) -> dict[str, str]:
    """Efficiency against stages: lines of the model, dots of what was measured. Returns the tips of the dots."""
    points = stages["points"]
    axes = figure.subplots()
    numbers = [point["stages"] for point in points]
    for key, color, label in (("efficiency", _BLUE, "with the CTAs that fit"), ("alone", GREY, "with one CTA")):
        shares = [100 * point["model"][key] for point in points]
        axes.plot(numbers, shares, color=color, linewidth=1.6, label=label, gid=f"model-{key}")
    speeds = {point["stages"]: point["measured"] for point in points if point.get("measured")}
    absolute = all(figures.get("efficiency") for figures in speeds.values())
    fastest = max((figures["tflops"] for figures in speeds.values()), default=0)
    tips = {}
    for i, (number, figures) in enumerate(speeds.items()):
        share = figures["efficiency"] if absolute else figures["tflops"] / fastest
        of_all = "measured" if absolute else "measured,\nas a share of the fastest"
        axes.plot([number], [100 * share], "o", color=_RED, label=None if i else of_all, gid=f"stages-{number}")
        tips[f"stages-{number}"] = f"{number} stages: {figures['tflops']:g} TFLOP/s"
    axes.set_xticks(numbers)
    axes.set_ylim(0, 103)
    axes.set_yticks([0, 25, 50, 75, 100], [f"{share} %" for share in (0, 25, 50, 75, 100)])
    axes.set_xlabel("stages")
    axes.grid(axis="y", color=FAINT)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"share of the mma.sync peak: a model of {stages['arch']}", loc="left", fontsize=9)
    figure.legend(loc="outside center right")
    return tips
