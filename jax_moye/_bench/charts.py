"""Charts of a benchmark's report, as SVG: the ratio of each result, and the roofline.

`python -m jax_moye show --svg` writes them, and so does tools/benchmark_pages.py for the documentation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from jax_moye._bench.svg import Picture
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
OTHER = "#5b6470"  # the colour of any other regime


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
    return REGIMES.get(result["regime"], ("", OTHER))[1]


def _label(result: dict) -> str:
    """Of a result: id, size, and what is not usual."""
    unusual = [result["dtype"]] if result["dtype"] != "bf16" else []
    return " ".join([result["id"], size(result), *unusual, *([result["epilogue"]] if "epilogue" in result else [])])


def ratio_chart(report: dict) -> str | None:
    """The ratio of each result with its interval, on a logarithmic axis; None without a result that has one."""
    results, left, right, top, step = [result for result in report["rows"] if "ratio" in result], 160, 440, 40, 16
    if not results:
        return None
    ends = [value for result in results for value in (result["ratio"], *result["ratio_ci"])]
    low, high = min(0.5, *ends) / 1.05, max(2.0, *ends) * 1.05
    bottom = top + step * len(results) + 4
    picture = Picture(460, bottom + 32, f"Time of the fastest of the others over ours, {report['gpu']}")

    def x(ratio: float) -> float:
        return left + (right - left) * math.log(ratio / low) / math.log(high / low)

    for tick in (0.125, 0.25, 0.5, 0.75, 1, 1.5, 2, 3, 4):
        if low <= tick <= high:
            picture.line(x(tick), top - 4, x(tick), bottom, "#222222" if tick == 1 else "#dddddd")
            picture.text(x(tick), top - 10, f"{tick:g}", "middle")
    picture.text(x(1) - 6, 14, "slower", "end", "#666666")
    picture.text(x(1) + 6, 14, "faster", "start", "#666666")
    for i, result in enumerate(results):
        y = top + step * i
        begin, end = sorted((x(1), x(result["ratio"])))
        picture.text(left - 6, y + 11, _label(result), "end")
        picture.bar(begin, y + 3, max(end - begin, 1), 9, _color(result), f"{_label(result)}: {result['ratio']:.3f}")
        picture.line(x(result["ratio_ci"][0]), y + 7.5, x(result["ratio_ci"][1]), y + 7.5, "#222222")
    picture.text((left + right) / 2, bottom + 20, "time of the fastest of the others / ours", "middle")
    return picture.svg()


def intensity(result: dict) -> float:
    """Operations per byte, where each operand and the result are moved once."""
    workload = Workload.from_json(result)
    return workload.flops / workload.footprint


def multiplied_dtype(result: dict) -> str:
    """The dtype that the result's kernel multiplies, as in `GemmConfig.dtype`: the config's name has it."""
    return parse_name(result["config"]).dtype


def roofline(report: dict) -> str | None:
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
    left, right, top, bottom = 46, 388, 20, 320
    x_low, x_high = min(0.5, *(point[0] for point in points)), 1e4
    y_low, y_high = min(1.0, *(point[1] for point in points)) / 1.2, max(2000.0, *peaks)
    regimes = [regime for regime in by_regime(results) if regime in REGIMES]
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
    for peak, dtypes in peaks.items():
        picture.line(x(peak / bandwidth), y(peak), right, y(peak), "#222222", 1.5)
        picture.text(right + 4, y(peak) + 4, f"{', '.join(dtypes)} {peak:.0f}")
    for at, tflops, result in points:
        picture.dot(x(at), y(tflops), _color(result), f"{_label(result)}: {tflops:g} TFLOP/s")
    picture.text((left + right) / 2, bottom + 30, "operations per byte of operands and result", "middle")
    picture.text(left, top - 6, "TFLOP/s")
    for i, regime in enumerate(regimes):
        name, color = REGIMES[regime]
        column, line = left + 130 * (i % 3), bottom + 48 + 16 * (i // 3)
        picture.dot(column + 4, line - 4, color, name)
        picture.text(column + 14, line, name)
    return picture.svg()
