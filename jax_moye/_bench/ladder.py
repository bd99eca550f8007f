"""The ladder of kernels, simt_tiled to sm90_split_k: what each rung does to memory and which instructions it needs.

Counted by the emulator, on any machine, at one shape for all rungs: shared-memory wavefronts and bank conflicts, global
sectors, barriers, instructions per warp. Timed by the protocol of `jax_moye._bench.bench` where JAX sees a GPU: all
rungs take turns in one process, and each is compared with the rung before.

A rung is one kernel of the table, shown by one row of it: a row of the dtype asked for (or of the nearest that the
kernel has, marked `*`) that takes the operands' order, with the widest loads, the usual accumulator, no cluster, a tile
of 128x128 if there is one, and of those the first.

The efficiency against the number of stages (`--stages`) is measured on a GPU. Without one it is a model,
`stage_model`: a k-tile's loads are under way for `latency` clocks, and a CTA multiplies no k-tile before it has landed.

Over 600 lines: counts, times, the model, the table and the chart, which share the rungs and nothing with other modules.
"""

from __future__ import annotations

import argparse
import difflib
import functools
import json
import pathlib
import re
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from xml.sax.saxutils import escape

import numpy as np

import jax_moye
from jax_moye._checkout import clone
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import ITEM_BYTES, JAX_NAMES, numpy_dtype
from jax_moye._timing.progress import progress
from jax_moye.layout.kernels import kernel_facts, kernel_layouts, kernel_names

RUNGS = tuple(kernel for kernel in kernel_names() if kernel_facts(kernel).page)  # from the bottom up
SHAPE = (512, 256, 128)  # what is counted unless told otherwise: eight tiles of 128x128
GPU_SHAPE = (4096, 4096, 4096)
LARGEST_COUNTED = 2**28  # multiply-adds; minutes in the emulator
# What may stand for a dtype that a kernel has no row of, nearest first.
NEAREST = {
    "bf16": ("bf16", "f16", "f32"),
    "f16": ("f16", "bf16", "f32"),
    "tf32": ("tf32", "f32", "bf16", "f16"),
    "f32": ("f32", "tf32", "bf16", "f16"),
    "f64": ("f64",),
    "s8": ("s8",),
    "e4m3": ("e4m3",),
    "e5m2": ("e5m2",),
}
SECTOR = 32  # bytes
# Multiply-adds per clock of one multiprocessor through mma.sync: NVIDIA's A100 white paper; for sm_90 what
# docs/performance.md says of it, 2500 FLOP a clock in bf16, and as much less for the other dtypes as on sm_80.
FMA_PER_CLOCK = {
    "sm_80": {"bf16": 1024, "f16": 1024, "tf32": 512, "s8": 2048, "f64": 64},
    "sm_90": {"bf16": 1250, "f16": 1250, "tf32": 625, "s8": 2500, "f64": 128},
}
L2_BYTES_PER_CLOCK = 64  # into one multiprocessor
LATENCY = 800  # clocks from cp.async to its data in shared memory, on a busy device: an assumption


# Rungs -----------------------------------------------------------------------------------------------------------


def representative(rows: Iterable[GemmConfig]) -> GemmConfig:
    """The row that stands for its kernel: widest loads, usual accumulator, no cluster, 128x128, then the first."""
    usual = {"f64": "f64", "s8": "s32"}

    def distance(row: GemmConfig):
        return (
            -row.alignment,
            row.accumulator != usual.get(row.dtype, "f32"),
            row.cluster != (1, 1),
            row.tile[:2] != (128, 128),
        )

    return min(rows, key=distance)


def rungs(dtype: str, order: str = "NN", table: Iterable[GemmConfig] | None = None) -> dict[str, GemmConfig]:
    """Kernel -> the row that stands for it, from the bottom up. A kernel with no row of a near dtype is left out."""
    rows = list(jax_moye.configs() if table is None else table)
    found = {}
    for kernel in RUNGS:
        for near in NEAREST[dtype]:
            if of_dtype := [row for row in rows if (row.kernel, row.dtype) == (kernel, near) and order in row.orders]:
                found[kernel] = representative(of_dtype)
                break
    return found


def stage_rows(dtype: str, table: Iterable[GemmConfig] | None = None) -> list[GemmConfig]:
    """The rows of sm80_multistage that differ from its rung in nothing but the number of stages, fewest first."""
    rows = list(jax_moye.configs() if table is None else table)
    of_dtype = [row for row in rows if (row.kernel, row.dtype) == ("sm80_multistage", dtype)]
    if not of_dtype:
        return []
    rung = representative(of_dtype)

    def rest(row: GemmConfig):
        return row.tile, row.accumulator, row.cluster, row.alignment

    return sorted((row for row in of_dtype if rest(row) == rest(rung)), key=lambda row: row.stages)


# Counters --------------------------------------------------------------------------------------------------------


def count(config: str | GemmConfig, shape: Sequence[int] = SHAPE, order: str = "NN") -> dict[str, Any]:
    """What one product does, counted by the emulator on one multiprocessor.

    Args:
      config: a row of the table, or its name.
      shape: (m, n, k).
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.

    Returns:
      {"ctas", "barriers": {...}, "shared": {...}, "global": {...}, "instructions": {...}}. Instructions are those of a
      warp, and a wgmma or a TMA copy is one. `shared` are the wavefronts of instructions that move data between
      registers and shared memory, and of cp.async's stores, and of them the `bank_conflicts`, behind the first of each
      phase; what TMA writes there and wgmma reads is not among them. A TMA copy moves whole sectors where the rows of
      the matrices are multiples of 32 bytes; elsewhere `sectors` is None.

    Raises:
      RuntimeError: the emulator refused the launch, found a race, or the product is wrong.
    """
    name = config if isinstance(config, str) else config.name
    return _count(name, tuple(shape), order)


@functools.lru_cache(64)
def _count(name: str, shape: tuple[int, int, int], order: str) -> dict[str, Any]:

    from jax_moye import _moye_cpu

    config = next(row for row in jax_moye.configs() if row.name == name)
    m, n, k = shape
    memory = numpy_dtype(config.dtype)
    out_name = config.dtype if config.dtype in config.out_dtypes else config.accumulator
    out = numpy_dtype(out_name)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, size).astype(memory) for size in ((m, k), (k, n)))
    d = np.zeros((m, n), out)
    outcome = _moye_cpu.emulate(
        name,
        (a if order[0] == "N" else a.T).ravel(),
        (b if order[1] == "N" else b.T).ravel(),
        d,
        sizes=[1, m, n, k],
        a_strides=[m * k, k, 1] if order[0] == "N" else [m * k, 1, m],
        b_strides=[n * k, 1, n] if order[1] == "N" else [n * k, k, 1],
        d_strides=[m * n, n, 1],
        out_dtype=out_name,
        detect_races=False,
        count_transactions=True,
        multiprocessors=1,
    )
    if not outcome["ok"]:
        raise RuntimeError(f"{name}: {outcome['message']}")
    if not np.array_equal(d, (a.astype(np.float64) @ b.astype(np.float64)).astype(out)):
        raise RuntimeError(f"{name}: the product of {m}x{n}x{k} {order} is wrong")
    pitches = (k if order[0] == "N" else m, n if order[1] == "N" else k)
    whole = all(pitch * np.dtype(memory).itemsize % SECTOR == 0 for pitch in pitches) and n * d.itemsize % SECTOR == 0
    return _digest(outcome["counters"], whole)


def _digest(counters: dict[str, int], whole_rows: bool) -> dict[str, Any]:
    """The emulator's counters by what they say."""
    c = counters
    through_shared = ("shared_load", "shared_store", "ldmatrix", "stmatrix", "cp_async")
    wavefronts = sum(c[f"{kind}_wavefronts"] for kind in through_shared)
    # The ideal of ldmatrix and stmatrix is one wavefront for each matrix, which is a phase of theirs.
    conflicts = sum(c[f"{kind}_wavefronts"] - c[f"{kind}_ideal_wavefronts"] for kind in ("ldmatrix", "stmatrix"))
    conflicts += sum(c[f"{kind}_bank_conflicts"] for kind in ("shared_load", "shared_store", "cp_async"))
    tma = c["tma_load_bytes"] + c["tma_store_bytes"]
    useful = c["global_load_bytes"] + c["global_store_bytes"] + c["cp_async_bytes"] + tma
    sectors = None
    if not tma or whole_rows:
        sectors = sum(c[f"{kind}_sectors"] for kind in ("global_load", "global_store", "cp_async")) + tma // SECTOR
    return {
        "ctas": c["ctas"],
        "barriers": {"cta": c["barriers"], "mbarrier": c["mbarrier_phases"], "cluster": c["cluster_barriers"]},
        "shared": {"wavefronts": wavefronts, "bank_conflicts": conflicts},
        "global": {
            "useful_bytes": useful,
            "sectors": sectors,
            "sectors_per_useful_byte": None if sectors is None else sectors / useful,
            "sector_efficiency": None if sectors is None else useful / (SECTOR * sectors),
        },
        "instructions": {
            "ldmatrix": c["ldmatrix"],
            "stmatrix": c["stmatrix"],
            "mma": c["mma"],
            "wgmma": c["wgmma"],
            "cp_async": c["cp_async_requests"],
            "tma_load": c["tma_loads"],
            "tma_store": c["tma_stores"],
            "shared_load": c["shared_load_requests"],
            "shared_store": c["shared_store_requests"],
            "global_load": c["global_load_requests"],
            "global_store": c["global_store_requests"],
        },
    }


# Stages ----------------------------------------------------------------------------------------------------------


def stage_model(
    config: GemmConfig, arch: str = "sm_90", latency: int = LATENCY, registers: int | None = None, k: int = 4096
) -> dict[str, Any]:
    """How busy the tensor cores are with `config.stages` stages of cp.async: a model, nothing of it is measured.

    A k-tile takes a CTA's multiprocessor the longest of three times, in clocks: its multiplications through mma.sync,
    its shared-memory wavefronts (as the layouts predict and the emulator counts them), its bytes from the L2 cache. The
    CTAs resident on a multiprocessor share it. The loads of a k-tile are ordered `stages - 1` k-tiles before it is
    multiplied and awaited one k-block early: so (stages - 1 - 1/blocks) k-tiles take no less than `latency`. The first
    k-tile is waited for once. The epilogue, and CTAs that are too few or too many for the device, are left out.

    Args:
      config: a row of sm80_multistage.
      arch: "sm_80" or "sm_90".
      latency: clocks that a load is under way.
      registers: per thread, as compiled; None: what the layouts let expect.
      k: of the product.

    Returns:
      {"efficiency": with the CTAs that fit, "alone": with one, "ctas", "clocks": {...} of one k-tile}.
    """
    layouts = kernel_layouts(config, "NN")
    tile_m, tile_n, tile_k = config.tile
    counts = layouts.counts(k, tile_n)
    wavefronts = sum(n for name, n in counts.items() if name.endswith("_wavefronts") and "ideal" not in name)
    clocks = {
        "mma": tile_m * tile_n * tile_k / FMA_PER_CLOCK[arch][config.dtype],
        "shared": wavefronts,
        "l2": (tile_m + tile_n) * tile_k * ITEM_BYTES[config.dtype] / L2_BYTES_PER_CLOCK,
    }
    resident = layouts.occupancy_report(arch, registers).ctas
    blocks = tile_k // layouts.mma.tile_shape[2]
    k_tiles = -(-k // tile_k)

    def efficiency(ctas: int) -> float:
        period = max(ctas * max(clocks.values()), latency / (config.stages - 1 - 1 / blocks))
        return round(k_tiles * ctas * clocks["mma"] / (latency + k_tiles * period), 4)

    return {"efficiency": efficiency(resident), "alone": efficiency(1), "ctas": resident, "clocks": clocks}


# Times -----------------------------------------------------------------------------------------------------------


def measure(configs: Sequence[GemmConfig], dtype: str, shape: Sequence[int], order: str, device, arguments, protocol):
    """Times the rows, and XLA at `dtype`, in turns. Returns (name -> figures, name -> why it was not timed)."""
    import jax
    import jax.numpy as jnp

    from jax_moye._bench import bench
    from jax_moye._timing.engine import Sampler, ratio_interval, take_turns

    m, n, k = shape
    row = {"batch": 1, "m": m, "n": n, "k": k, "layout": order}
    item = ITEM_BYTES[dtype]
    group, programs = bench.rotation(row, (m * k + k * n + m * n) * item, protocol["rotated_bytes"], device)
    operands: dict[str, list] = {}

    def sets(memory: str) -> list:
        if memory not in operands:
            a, b = bench.operands(row, jnp.dtype(memory), group * programs)
            operands[memory] = [(a[i : i + group], b[i : i + group]) for i in range(0, len(a), group)]
        return operands[memory]

    def arm_of(name: str, config: GemmConfig | None):
        memory = JAX_NAMES[config.dtype if config else dtype]
        precision = "highest" if (config.dtype if config else dtype) == "f32" else None
        if config is None:
            matmul = lambda a, b: jnp.matmul(a, b, precision=precision)  # noqa: E731
        else:
            interpret = arguments.interpret or None
            options: dict[str, Any] = {"config": config, "implementation": "moye", "interpret": interpret}
            matmul = lambda a, b: jax_moye.matmul(a, b, precision=precision, **options)  # noqa: E731
        arm = bench.jax_arm(name, bench.in_layout(row, matmul), sets(memory))
        first = arm.run(0)[0]
        a, b = (of_set[0] for of_set in sets(memory)[0])
        # As a baseline, a product in tf32 may differ from float64 by the rounding of its operands.
        excess = bench.largest_excess(row, a, b, first, jnp.dtype(memory), baseline=precision is None)
        if not excess <= 1:
            raise ArithmeticError(f"wrong: its error is {excess:.3g} times the bound")
        return arm

    arms, refused = [], {}
    with jax.enable_x64(True):
        for name, config in [*((config.name, config) for config in configs), ("xla", None)]:
            try:
                arms.append(arm_of(name, config))
            except Exception as error:  # this GPU does not run it, or it is wrong: the others are still worth timing
                refused[name] = f"{type(error).__name__}: {bench.first_line(error)}"
        sampler = Sampler()
        if arms:
            timing = {key: getattr(arguments, key) for key in ("alternations", "turn_ms", "warmup_ms")}
            take_turns(arms, programs, group, **timing)
        sampler.close()

    figures: dict[str, dict] = {}
    before = None
    for arm in arms:
        seconds = statistics.median(arm.times)
        figures[arm.name] = {
            "us": bench.significant(seconds * 1e6),
            "tflops": bench.significant(2 * m * n * k / seconds / 1e12),
            "sm_mhz": sampler.mean("sm_mhz", arm.spans),
        }
        if arm.dispatch > 0.9:
            figures[arm.name]["host_bound"] = True
        if before and arm.name != "xla":
            low, high = ratio_interval(before.times, arm.times)
            ratio = statistics.median(before.times) / seconds
            figures[arm.name] |= {
                "ratio": bench.significant(ratio),
                "ratio_ci": [bench.significant(low), bench.significant(high)],
            }
        before = arm
    return figures, refused


# The report ------------------------------------------------------------------------------------------------------


def make_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Counts and, where there is a GPU, times every rung."""
    chosen = rungs(arguments.dtype, arguments.order)
    report: dict[str, Any] = {
        "dtype": arguments.dtype,
        "order": arguments.order,
        "shape": list(arguments.shape),
        "rungs": [],
        "left_out": [kernel for kernel in RUNGS if kernel not in chosen],
        "without_facts": sorted({row.kernel for row in jax_moye.configs() if kernel_facts(row.kernel).missing}),
        "measured": None,
    }
    for kernel, config in progress(chosen.items(), len(chosen), lambda item: item[1].name):
        report["rungs"].append(
            {
                "kernel": kernel,
                "idea": kernel_facts(kernel).idea,
                "page": kernel_facts(kernel).page,
                "config": config.name,
                "dtype": config.dtype,
                "stand_in": config.dtype != arguments.dtype,
                "threads": config.threads,
                "smem_bytes": config.smem_bytes,
                "registers": dict(config.registers) if config.registers else None,
                "counted": count(config, arguments.shape, arguments.order),
            }
        )
    staged = stage_rows(arguments.dtype) if arguments.stages else []
    if arguments.stages:
        report["stages"] = {"latency": arguments.latency, "arch": arguments.arch, "points": []}
        report["stages"]["points"] = [
            {
                "stages": row.stages,
                "config": row.name,
                "model": stage_model(row, arguments.arch, arguments.latency, (row.registers or {}).get(arguments.arch)),
            }
            for row in staged
            if row.dtype in FMA_PER_CLOCK[arguments.arch]
        ]
    device = None if arguments.no_gpu else _gpu(arguments.interpret)
    if device is not None:
        _measure_into(report, list(chosen.values()), staged, device, arguments)
    return report


def _gpu(interpret: bool):
    """JAX's first device, if it is a GPU; with `interpret`, whatever it is."""
    import jax

    device = jax.devices()[0]
    return device if interpret or device.platform == "gpu" else None


def _measure_into(report: dict, chosen: list[GemmConfig], staged: list[GemmConfig], device, arguments) -> None:
    from jax_moye._bench import bench

    shape, dtype = arguments.gpu_shape, arguments.dtype
    head = bench.describe(device, arguments)
    # Each kind of thing that takes turns is one group: the rungs, and the numbers of stages.
    figures, refused = measure(chosen, dtype, shape, arguments.order, device, arguments, head["protocol"])
    for rung in report["rungs"]:
        rung["measured"] = figures.get(rung["config"])
        if rung["config"] in refused:
            rung["why"] = refused[rung["config"]]
    report["measured"] = {key: head[key] for key in ("gpu", "jax", "jaxlib", "commit", "date", "emulated", "protocol")}
    report["measured"] |= {"shape": list(shape), "xla": figures.get("xla")}
    if staged:
        figures, refused = measure(staged, dtype, shape, arguments.order, device, arguments, head["protocol"])
        for point in report["stages"]["points"]:
            point["measured"] = figures.get(point["config"])
            if point["measured"]:
                point["measured"]["efficiency"] = _share_of_peak(point["measured"], dtype, device)
            if point["config"] in refused:
                point["why"] = refused[point["config"]]


def _share_of_peak(figures: dict[str, Any], dtype: str, device) -> float | None:
    """Of what mma.sync can do at the clock that was read while it ran; None where that or the peak is not known."""
    arch = f"sm_{str(getattr(device, 'compute_capability', '')).replace('.', '')}"
    multiprocessors, mhz = getattr(device, "core_count", None), figures["sm_mhz"]
    rate = FMA_PER_CLOCK.get(arch, {}).get(dtype)
    if not (multiprocessors and mhz and rate):
        return None
    return round(figures["tflops"] * 1e12 / (2 * rate * multiprocessors * mhz * 1e6), 4)


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    times = report["measured"] is not None
    columns = ["rung", "smem", "wavefronts", "conflicts", "sectors/B", "sector eff.", "barriers"]
    kinds = [
        kind
        for kind in ("ldmatrix", "mma", "wgmma", "cp_async", "tma_load", "shared_load", "shared_store", "global_load")
        if any(rung["counted"]["instructions"][kind] for rung in report["rungs"])
    ]
    columns += kinds + (["us", "TFLOP/s", "ratio"] if times else [])
    cells = []
    for rung in report["rungs"]:
        counted = rung["counted"]
        of_memory = counted["global"]
        line = [rung["kernel"] + ("*" if rung["stand_in"] else ""), rung["smem_bytes"]]
        line += [counted["shared"]["wavefronts"], counted["shared"]["bank_conflicts"]]
        if of_memory["sectors"] is None:
            line += ["-", "-"]
        else:
            line += [f"{of_memory['sectors_per_useful_byte']:.4f}", f"{100 * of_memory['sector_efficiency']:.1f} %"]
        line += [sum(counted["barriers"].values())]
        line += [counted["instructions"][kind] or "-" for kind in kinds]
        if times:
            figures = rung["measured"] or {}
            line += [figures.get(key, "-") for key in ("us", "tflops", "ratio")]
        cells.append([str(cell) for cell in line])
    m, n, k = report["shape"]
    lines = [f"counted in the emulator: {m}x{n}x{k} {report['order']}, {report['dtype']}; instructions per warp"]
    if times:
        head = report["measured"]
        where = f"{head['gpu']}, {'x'.join(map(str, head['shape']))}, commit {head['commit']}, {head['date']}"
        lines.append(f"timed on {where}" + (" (EMULATED: a try of the protocol)" if head["emulated"] else ""))
    lines += _columns([columns, *cells])
    for rung in report["rungs"]:
        if rung["stand_in"]:
            lines.append(f"* {rung['kernel']} has no {report['dtype']}: {rung['config']}")
    lines += [f"{rung['page']}. {rung['kernel']}: {rung['idea']}" for rung in report["rungs"]]
    for kernel in report["without_facts"]:
        lines.append(f"{kernel} is not on the ladder: write {kernel_facts(kernel).missing}")
    if report["left_out"]:
        lines.append(f"no row of a near dtype: {', '.join(report['left_out'])}")
    if not times:
        lines.append(
            "nothing is timed: without a GPU, or with --no-gpu, there are no TFLOP/s, no ratios, no measured share"
        )
    lines += [f"not timed: {rung['config']}: {rung['why']}" for rung in report["rungs"] if "why" in rung]
    if "stages" in report:
        lines += ["", *_stage_lines(report["stages"])]
    return "\n".join(lines)


def _stage_lines(stages: dict[str, Any]) -> list[str]:
    if not stages["points"]:
        return ["stages: no row of sm80_multistage of this dtype is modelled"]
    cells = [["stages", "CTAs per SM", "model", "model, one CTA", "measured", "TFLOP/s", "config"]]
    for point in stages["points"]:
        model, figures = point["model"], point.get("measured") or {}
        shares = [f"{100 * model[key]:.1f} %" for key in ("efficiency", "alone")]
        shares.append(f"{100 * figures['efficiency']:.1f} %" if figures.get("efficiency") else "-")
        cells.append([str(x) for x in (point["stages"], model["ctas"], *shares, figures.get("tflops", "-"))])
        cells[-1].append(point["config"])
    head = f"sm80_multistage by its stages; the model: {stages['arch']}, {stages['latency']} clocks of latency, "
    return [head + "share of the mma.sync peak", *_columns(cells)]


def _columns(cells: list[list[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join([line[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(line[1:], widths[1:], strict=True))])
        for line in cells
    ]


# The chart -------------------------------------------------------------------------------------------------------

_INK, _GREY, _FAINT, _RED, _BLUE = "#222222", "#888888", "#cccccc", "#c0392b", "#2f6fab"


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

    left, width, row, top = 150, 260, 22, 44
    height = top + row * len(report["rungs"]) + 30
    points = report.get("stages", {}).get("points", [])
    total_width, total_height = left + (width + 70) * len(panels), height + (230 if points else 0)
    m, n, k = report["shape"]
    parts = [_text(8, 16, f"The ladder: {m}x{n}x{k} {report['order']}, {report['dtype']}", weight="bold")]
    for i, rung in enumerate(report["rungs"]):
        parts.append(_text(left - 8, top + row * i + 15, rung["kernel"] + ("*" if rung["stand_in"] else ""), "end"))
    for p, (title, bars) in enumerate(panels):
        x = left + p * (width + 70)
        largest = max((sum(value for value, _ in bar) for bar in bars), default=0) or 1
        parts.append(_text(x, 36, title))
        for i, bar in enumerate(bars):
            at, y = float(x), top + row * i
            for value, colour in bar:
                length = width * value / largest
                parts.append(
                    f'<rect x="{at:.1f}" y="{y + 3}" width="{length:.1f}" height="{row - 6}" fill="{colour}"/>'
                )
                at += length
            parts.append(_text(at + 4, y + 15, f"{sum(value for value, _ in bar):,g}"))
    if points:
        parts += _stage_chart(report["stages"], left, height, 420, 160)
    return _document(parts, total_width, total_height)


def stages_svg(stages: dict[str, Any]) -> str:
    """The efficiency against the stages alone: `report["stages"]` as a chart."""
    return _document(_stage_chart(stages, 60, 8, 420, 160), 720, 220)


def _document(parts: Iterable[str], width: int, height: int) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _stage_chart(stages: dict[str, Any], x: int, y: int, width: int, height: int) -> Iterator[str]:
    """Efficiency against stages: lines of the model, dots of what was measured."""
    points = stages["points"]
    first, last = points[0]["stages"], points[-1]["stages"]

    def place(number: int, share: float) -> tuple[float, float]:
        return x + width * (number - first) / max(1, last - first), y + 24 + height * (1 - share)

    yield _text(x, y + 10, f"share of the mma.sync peak against the number of stages: a model of {stages['arch']}")
    speeds = {p["stages"]: p["measured"] for p in points if p.get("measured")}
    absolute = all(figures.get("efficiency") for figures in speeds.values())
    legend = [(_BLUE, "with the CTAs that fit"), (_GREY, "with one CTA")]
    if speeds:
        legend.append((_RED, "measured" if absolute else "measured, as a share of the fastest"))
    for i, (colour, text) in enumerate(legend):
        yield f'<rect x="{x + width + 24}" y="{y + 28 + 20 * i}" width="12" height="12" fill="{colour}"/>'
        yield _text(x + width + 42, y + 38 + 20 * i, text)
    for share in (0, 0.25, 0.5, 0.75, 1):
        y_line = place(first, share)[1]
        yield f'<line x1="{x}" y1="{y_line:.1f}" x2="{x + width}" y2="{y_line:.1f}" stroke="{_FAINT}"/>'
        yield _text(x - 6, y_line + 4, f"{100 * share:g} %", "end")
    for key, colour in (("alone", _GREY), ("efficiency", _BLUE)):
        line = " ".join("{:.1f},{:.1f}".format(*place(p["stages"], p["model"][key])) for p in points)
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
    fastest = max((figures["tflops"] for figures in speeds.values()), default=0)
    for number, figures in speeds.items():
        at = place(number, figures["efficiency"] if absolute else figures["tflops"] / fastest)
        yield f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4" fill="{_RED}"/>'
    for point in points:
        yield _text(place(point["stages"], 0)[0], y + 24 + height + 16, str(point["stages"]), "middle")


def _text(x: float, y: float, text: str, anchor: str = "start", weight: str = "normal") -> str:
    style = f'text-anchor="{anchor}" font-weight="{weight}" fill="{_INK}"'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>'


# Sources ---------------------------------------------------------------------------------------------------------


def kernel_source(kernel: str) -> list[str]:
    """The lines of cuda/gemm/<kernel>.cuh, of the clone one is in, also in a folder of it, or of this file's.

    A header, tensorop.h, is named with its suffix.
    """
    name = kernel if kernel.endswith(".h") else f"{kernel}.cuh"
    root = clone()
    if root is not None and (file := root / "cuda" / "gemm" / name).is_file():
        return file.read_text(encoding="utf-8").splitlines()
    raise FileNotFoundError(f"cuda/gemm/{name} is not here: run this in a clone of the repository")


def hunk(before: str | None, after: str, first: str, last: str) -> str:
    """What changed from one kernel's file to another's, but for their names: a part of the diff with all its context.

    Args:
      before: the kernel below; None: no diff, but the lines of `after`.
      after: the kernel above, or a header.
      first: a text in the part's first line.
      last: a text in its last line, below that one.

    Raises:
      LookupError: there is no such line.
    """
    lines = kernel_source(after)
    if before:
        renamed = [line.replace(before, after) for line in kernel_source(before)]
        lines = list(difflib.unified_diff(renamed, lines, n=len(renamed), lineterm=""))[3:]
    begin = next((i for i, line in enumerate(lines) if first in line), None)
    end = next((i for i, line in enumerate(lines) if begin is not None and i > begin and last in line), None)
    if begin is None or end is None:
        raise LookupError(f"{before} -> {after}: no part from a line with {first!r} to one with {last!r}")
    margin = 0 if before else min(len(line) - len(line.lstrip()) for line in lines[begin : end + 1] if line)
    return "\n".join(line[margin:] for line in lines[begin : end + 1])


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The counters of two rungs (what `count` returns) that differ, one per line; or that none does."""

    def flat(counted: dict[str, Any], path: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in counted.items():
            found |= flat(value, f"{path}{key} ") if isinstance(value, dict) else {path + key: value}
        return found

    old, new = flat(before), flat(after)
    changed = [key for key in new if old[key] != new[key]]
    if not changed:
        return "no counter differs"

    def number(value: Any) -> str:
        return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)

    return "\n".join(
        _columns([["", "before", "after"], *([key, number(old[key]), number(new[key])] for key in changed)])
    )


# The command -----------------------------------------------------------------------------------------------------


def _shape(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"\d+x\d+x\d+", text) or not all(size := tuple(map(int, text.split("x")))):
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK, as in 512x256x128")
    return size  # type: ignore[return-value]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye ladder`."""
    parser.add_argument("--dtype", default="bf16", choices=list(NEAREST), help="of the operands (bf16)")
    parser.add_argument("--shape", type=_shape, default=SHAPE, metavar="MxNxK", help="what is counted (512x256x128)")
    parser.add_argument("--order", default="NN", choices=["NN", "NT", "TN", "TT"], help="of a and b; N is row-major")
    parser.add_argument("--stages", action="store_true", help="add the efficiency against the number of stages")
    parser.add_argument("--json", type=pathlib.Path, help="write the report to this file")
    parser.add_argument("--svg", type=pathlib.Path, help="write the chart to this file")
    model = parser.add_argument_group("the model of the stages")
    model.add_argument("--arch", default="sm_90", choices=list(FMA_PER_CLOCK), help="sm_90")
    model.add_argument("--latency", type=int, default=LATENCY, help=f"clocks that a load is under way ({LATENCY})")
    gpu = parser.add_argument_group("on a GPU (the protocol is that of `bench`)")
    gpu.add_argument("--no-gpu", action="store_true", help="time nothing")
    gpu.add_argument("--gpu-shape", type=_shape, default=GPU_SHAPE, metavar="MxNxK", help="timed (4096x4096x4096)")
    gpu.add_argument("--alternations", type=int, default=15, help="turns of each rung")
    gpu.add_argument("--turn-ms", type=float, default=50, help="length of one turn")
    gpu.add_argument("--warmup-ms", type=float, default=1000, help="how long the rungs run before their first turn")
    gpu.add_argument("--rotate-mb", type=float, help="least size of all sets together (default: 2.5 x L2 cache)")
    gpu.add_argument("--interpret", action="store_true", help="without a GPU: try the timing, not the kernels")
    parser.set_defaults(no_torch=True)


def main(arguments: argparse.Namespace) -> int:
    """Prints the ladder and writes what was asked for. Returns 0, 1 if a rung is wrong, 2 for a shape too large."""
    m, n, k = arguments.shape
    if m * n * k > LARGEST_COUNTED:
        print(
            f"jax_moye ladder: {m}x{n}x{k} is too large to count in the emulator (more than {LARGEST_COUNTED} "
            "multiply-adds); --gpu-shape is what is timed",
            file=sys.stderr,
        )
        return 2
    try:
        report = make_report(arguments)
    except RuntimeError as error:
        print(f"jax_moye ladder: {error}", file=sys.stderr)
        return 1
    print(table(report))
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if arguments.svg:
        arguments.svg.write_text(svg(report), encoding="utf-8")
    return 1 if any("wrong" in rung.get("why", "") for rung in report["rungs"]) else 0
