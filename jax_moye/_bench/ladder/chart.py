"""The ladder as a chart, in SVG."""

from __future__ import annotations

from typing import Any

from jax_moye._bench.svg import Picture

_GREY, _FAINT, _RED, _BLUE = "#888888", "#cccccc", "#c0392b", "#2f6fab"


def svg(report: dict[str, Any]) -> str:
    """The report as a chart: bars for each rung, and the efficiency against the stages where the report has it."""
    panels: list[tuple[str, list[list[tuple[float, str]]]]] = []  # title, and of each rung its bar's parts
    shared = [rung["counted"]["shared"] for rung in report["rungs"]]
    panels.append(
        (
            "shared-memory wavefronts, bank conflicts red",
            [[(s["wavefronts"] - s["bank_conflicts"], _BLUE), (s["bank_conflicts"], _RED)] for s in shared],
        )
    )
    moved = [sum(rung["counted"]["instructions"].values()) for rung in report["rungs"]]
    panels.append(("instructions of a warp: memory and tensor cores", [[(n, _BLUE)] for n in moved]))
    barriers = [sum(rung["counted"]["barriers"].values()) for rung in report["rungs"]]
    panels.append(("barriers", [[(n, _BLUE)] for n in barriers]))
    if report["measured"] is not None:
        speeds = [(rung["measured"] or {}).get("tflops", 0) for rung in report["rungs"]]
        panels.append((f"TFLOP/s, {report['measured']['gpu']}", [[(x, _BLUE)] for x in speeds]))

    left, width, line, top = 150, 260, 22, 44
    height = top + line * len(report["rungs"]) + 30
    points = report.get("stages", {}).get("points", [])
    total_width, total_height = left + (width + 70) * len(panels), height + (230 if points else 0)
    m, n, k = report["shape"]
    title = f"The ladder: {m}x{n}x{k} {report['order']}, {report['dtype']}"
    picture = Picture(total_width, total_height, title, font_size=12)
    picture.text(8, 16, title, bold=True)
    names = [rung["kernel"] + ("*" if rung["stand_in"] else "") for rung in report["rungs"]]
    for i, name in enumerate(names):
        picture.text(left - 8, top + line * i + 15, name, "end")
    for number, (of_panel, bars) in enumerate(panels):
        x = left + number * (width + 70)
        largest = max((sum(value for value, _ in bar) for bar in bars), default=0) or 1
        picture.text(x, 36, of_panel)
        for i, (name, bar) in enumerate(zip(names, bars, strict=True)):
            at, y = float(x), top + line * i
            for value, color in bar:
                length = width * value / largest
                picture.bar(at, y + 3, length, line - 6, color, f"{name}: {value:,g}")
                at += length
            picture.text(at + 4, y + 15, f"{sum(value for value, _ in bar):,g}")
    if points:
        _draw_stages(picture, report["stages"], left, height, 420, 160)
    return picture.svg()


def stages_svg(stages: dict[str, Any]) -> str:
    """The efficiency against the stages alone: `report["stages"]` as a chart."""
    picture = Picture(720, 220, "Efficiency against the number of stages", font_size=12)
    _draw_stages(picture, stages, 60, 8, 420, 160)
    return picture.svg()


def _draw_stages(picture: Picture, stages: dict[str, Any], x: int, y: int, width: int, height: int) -> None:
    """Efficiency against stages: lines of the model, dots of what was measured."""
    points = stages["points"]
    first, last = points[0]["stages"], points[-1]["stages"]

    def place(number: int, share: float) -> tuple[float, float]:
        return x + width * (number - first) / max(1, last - first), y + 24 + height * (1 - share)

    picture.text(x, y + 10, f"share of the mma.sync peak against the number of stages: a model of {stages['arch']}")
    speeds = {point["stages"]: point["measured"] for point in points if point.get("measured")}
    absolute = all(figures.get("efficiency") for figures in speeds.values())
    legend = [(_BLUE, "with the CTAs that fit"), (_GREY, "with one CTA")]
    if speeds:
        legend.append((_RED, "measured" if absolute else "measured, as a share of the fastest"))
    for i, (color, text) in enumerate(legend):
        picture.bar(x + width + 24, y + 28 + 20 * i, 12, 12, color, text)
        picture.text(x + width + 42, y + 38 + 20 * i, text)
    for share in (0, 0.25, 0.5, 0.75, 1):
        y_line = place(first, share)[1]
        picture.line(x, y_line, x + width, y_line, _FAINT)
        picture.text(x - 6, y_line + 4, f"{100 * share:g} %", "end")
    for key, color in (("alone", _GREY), ("efficiency", _BLUE)):
        picture.polyline([place(point["stages"], point["model"][key]) for point in points], color)
    fastest = max((figures["tflops"] for figures in speeds.values()), default=0)
    for number, figures in speeds.items():
        share = figures["efficiency"] if absolute else figures["tflops"] / fastest
        picture.dot(*place(number, share), _RED, f"{number} stages: {figures['tflops']:g} TFLOP/s")
    for point in points:
        picture.text(place(point["stages"], 0)[0], y + 24 + height + 16, str(point["stages"]), "middle")
