"""The ladder as text."""

from __future__ import annotations

from typing import Any

from jax_moye._format import fitted_table
from jax_moye.layout.kernels import kernel_facts


def table(report: dict[str, Any]) -> str:
    """The report as text."""
    times = report["measured"] is not None
    columns = ["rung", *(["us", "TFLOP/s", "ratio"] if times else [])]
    columns += ["smem", "wavefronts", "conflicts", "sectors/B", "sector eff.", "barriers"]
    kinds = [
        kind
        for kind in ("ldmatrix", "mma", "wgmma", "cp_async", "tma_load", "shared_load", "shared_store", "global_load")
        if any(rung["counted"]["instructions"][kind] for rung in report["rungs"])
    ]
    columns += kinds
    cells = []
    for rung in report["rungs"]:
        counted = rung["counted"]
        of_memory = counted["global"]
        line = [rung["kernel"] + ("*" if rung["stand_in"] else "")]
        if times:
            figures = rung["measured"] or {}
            line += [figures.get(key, "-") for key in ("us", "tflops", "ratio")]
        line += [rung["smem_bytes"]]
        line += [counted["shared"]["wavefronts"], counted["shared"]["bank_conflicts"]]
        if of_memory["sectors"] is None:
            line += ["-", "-"]
        else:
            line += [f"{of_memory['sectors_per_useful_byte']:.4f}", f"{100 * of_memory['sector_efficiency']:.1f} %"]
        line += [sum(counted["barriers"].values())]
        line += [counted["instructions"][kind] or "-" for kind in kinds]
        cells.append([str(cell) for cell in line])
    m, n, k = report["shape"]
    lines = [f"counted in the emulator: {m}x{n}x{k} {report['order']}, {report['dtype']}; instructions per warp"]
    if times:
        head = report["measured"]
        where = f"{head['gpu']}, {'x'.join(map(str, head['shape']))}, commit {head['commit']}, {head['date']}"
        lines.append(f"timed on {where}" + (" (EMULATED: a try of the protocol)" if head["emulated"] else ""))
    lines += fitted_table([columns, *cells], numbers=True)
    for rung in report["rungs"]:
        if rung["stand_in"]:
            lines.append(f"* {rung['kernel']} has no {report['dtype']}: {rung['config']}")
    for rung in report["rungs"]:
        if rung.get("page") and "idea" in rung:  # files of older versions have no ideas
            lines.append(f"{rung['page']}. {rung['kernel']}: {rung['idea']}")
        elif "idea" in rung:
            lines.append(f"{rung['kernel']}: {rung['config']}")  # a kernel of one's own is on no page
    for kernel in report.get("without_facts", ()):
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
    return [head + "share of the mma.sync peak", *fitted_table(cells, numbers=True)]
