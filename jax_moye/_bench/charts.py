"""Charts of a benchmark's report: the ratio of each result, and the roofline.

`python -m jax_moye show --svg` writes them, and so does tools/benchmark_pages.py for the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from jax_moye._bench import plots
from jax_moye._bench.plots import FAINT, GREY, INK, Chart
from jax_moye._kernels.config_names import parse_name
from jax_moye._kernels.devices import DEVICES
from jax_moye._timing.workloads import Workload

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
_OTHER = "#5b6470"  # the colour of any other regime
_TICKS = (0.0625, 0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4, 8, 16)


def size(result: dict) -> str:
    """`m x n x k`, with the batch in front where there is one."""
    sizes = [result["batch"]] if result["batch"] > 1 else []
    return "x".join(map(str, [*sizes, result["m"], result["n"], result["k"]]))


def by_regime(results: Sequence[dict]) -> dict[str, list[dict]]:
    """The results of each regime, in their order."""
    found: dict[str, list[dict]] = {}
    for result in results:
        found.setdefault(result["regime"], []).append(result)
    return found


def _color(result: dict) -> str:
    return REGIMES.get(result["regime"], ("", _OTHER))[1]


def _label(result: dict) -> str:
    """Of a result: id, size, and what is not usual."""
    unusual = [result["dtype"]] if result["dtype"] != "bf16" else []
    return " ".join([result["id"], size(result), *unusual, *([result["epilogue"]] if "epilogue" in result else [])])


def _name(regime: str) -> str:
    return REGIMES.get(regime, (regime, ""))[0]


def ratio_chart(report: dict) -> Chart | None:
    """The ratio of each result with its interval, on a logarithmic axis; None without a result that has one."""
    results = [result for result in report["rows"] if "ratio" in result]
    if not results:
        return None
    ends = [value for result in results for value in (result["ratio"], *result["ratio_ci"])]
    low, high = min(0.5, *ends) / 1.05, max(2.0, *ends) * 1.05
    labels = [_label(result) for result in results]
    regimes = by_regime(results)
    title = f"Time of the fastest of the others over ours, {report['gpu']}"
    figure = plots.new_figure(4.1, 1.15 + 0.165 * len(results) + 0.15 * -(-len(regimes) // 3))
    tips = {}
    with plots.styled():
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_xlim(low, high)
        axes.set_ylim(len(results) - 0.4, -0.6)
        ticks = [tick for tick in _TICKS if low <= tick <= high]
        axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(results)), labels)
        axes.tick_params(length=0)
        axes.tick_params(axis="x", top=True, labeltop=True)
        axes.grid(axis="x", color=FAINT)
        axes.spines[:].set_visible(False)
        for i, (result, label) in enumerate(zip(results, labels, strict=True)):
            (bar,) = axes.barh([i], [result["ratio"] - 1], left=1, height=0.6, color=_color(result), gid=f"ratio-{i}")
            tips[bar.get_gid()] = f"{label}: {result['ratio']:.3f}"
            axes.plot(result["ratio_ci"], [i, i], color=INK, linewidth=1)
        axes.axvline(1, color=INK, linewidth=1)
        axes.set_title("slower  |  faster", x=_share(1, low, high), color=GREY, fontsize=8)
        axes.set_xlabel("time of the fastest of the others / ours;\nthe line in a bar: 95 % interval", fontsize=8)
        _legend(figure, axes, list(regimes))
    return Chart(figure, title, tips)


def _share(x: float, low: float, high: float) -> float:
    """Where a number stands on a logarithmic axis, from 0 to 1."""
    return math.log(x / low) / math.log(high / low)


def _legend(figure: Any, axes: Any, regimes: Sequence[str]) -> None:
    """The colours of regimes, below the axes."""
    markers = [
        axes.plot([], [], "o", color=REGIMES.get(regime, ("", _OTHER))[1], label=_name(regime))[0] for regime in regimes
    ]
    figure.legend(handles=markers, loc="outside lower center", ncols=min(3, len(markers)), handletextpad=0.2)


def intensity(result: dict) -> float:
    """Operations per byte, where each operand and the result are moved once."""
    workload = Workload.from_json(result)
    return workload.flops / workload.footprint


def multiplied_dtype(result: dict) -> str:
    """The dtype that the result's kernel multiplies, as in `GemmConfig.dtype`: the config's name has it."""
    return parse_name(result["config"]).dtype


def roofline(report: dict) -> Chart | None:
    """TFLOP/s of our kernels over their operations per byte, under the roofs of the GPU's data sheet.

    None for a GPU that `devices` does not know, and without a result that was timed.
    """
    device = next((device for device in DEVICES.values() if device.kind == report["gpu"]), None)
    results = [result for result in report["rows"] if "tflops" in result]
    if device is None or device.memory_bytes_per_s is None or not results:
        return None
    bandwidth = device.memory_bytes_per_s / 1e12
    peaks: dict[float, list[str]] = {}  # TFLOP/s -> the dtypes that have it
    for dtype in dict.fromkeys(map(multiplied_dtype, results)):
        if flops := device.flops(dtype):
            peaks.setdefault(flops / 1e12, []).append(dtype)
    points = [(intensity(result), result["tflops"], result) for result in results]
    x_low, x_high = min(0.5, *(point[0] for point in points)) / 1.2, max(1e4, *(point[0] for point in points)) * 1.2
    y_low, y_high = min(1.0, *(point[1] for point in points)) / 1.2, 1.6 * max(2000.0, *peaks)
    figure = plots.new_figure(4.1, 4.2)
    tips = {}
    with plots.styled():
        axes = figure.subplots()
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlim(x_low, x_high)
        axes.set_ylim(y_low, y_high)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
        axes.grid(color=FAINT)
        axes.spines[["top", "right"]].set_visible(False)
        ridge = max(peaks, default=y_high) / bandwidth
        axes.plot([x_low, ridge], [x_low * bandwidth, ridge * bandwidth], color=INK, linewidth=1.2, gid="memory")
        at = 40.0  # operations per byte: above the line there is room to the left
        axes.annotate(
            f"memory {bandwidth:g} TB/s",
            (at, at * bandwidth),
            xytext=(-5, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=8,
        )
        for peak, dtypes in peaks.items():
            gid = f"peak-{dtypes[0]}"
            axes.plot([peak / bandwidth, x_high], [peak, peak], color=INK, linewidth=1.2, gid=gid)
            axes.text(
                1.01,
                peak,
                f"{', '.join(dtypes)} {peak:.0f}",
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8,
            )
        for i, (x, tflops, result) in enumerate(points):
            axes.plot(
                [x], [tflops], "o", color=_color(result), markersize=5, alpha=0.8, markeredgewidth=0, gid=f"row-{i}"
            )
            tips[f"row-{i}"] = f"{_label(result)}: {tflops:g} TFLOP/s"
        axes.set_xlabel("operations per byte of operands and result")
        axes.set_ylabel("TFLOP/s")
        _legend(figure, axes, list(by_regime(results)))
    return Chart(figure, f"TFLOP/s over operations per byte, {report['gpu']}", tips)
