"""Bugs planted in the SIMT kernels: see mutants.py, which holds more of simt_tiled."""

from __future__ import annotations

import functools

from tests.emulated.mutants import NOT_PREDICATED, SIMT, Mutant, race

SIMT_OVERLAP = "{simt_overlap, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"
SIMT_DOUBLE_BUFFER = "{simt_double_buffer, f32, f32, {64, 64, 8}, 2, {1, 1}, 4}"

TILED, OVERLAP, DOUBLE = "simt_tiled.cuh", "simt_overlap.cuh", "simt_double_buffer.cuh"
LANDED = (
    "      cp_async_wait_group<0>();\n      sync_threads();\n      copy("  # simt_overlap; simt_double_buffer's first
)
NEXT_LANDED = "          cp_async_wait_group<0>();\n          sync_threads();\n"  # simt_double_buffer, in the loop

Tiled = functools.partial(Mutant, row=SIMT, file=TILED, expect="wrong")
Overlap = functools.partial(Mutant, row=SIMT_OVERLAP, file=OVERLAP, expect=race(OVERLAP, "plain load", "cp.async"))
Double = functools.partial(Mutant, row=SIMT_DOUBLE_BUFFER, file=DOUBLE, expect=race(DOUBLE, "plain load", "cp.async"))


def either(file: str) -> str:
    """A race of whichever comes first."""
    return race(file, "(plain load|cp.async)", "(cp.async|plain load)")


def not_predicated(kernel: str) -> list[Mutant]:
    """Loads of a kernel that reads rows behind the last, or elements behind the last of k, by cp.async."""
    row = {"simt_overlap": SIMT_OVERLAP, "simt_double_buffer": SIMT_DOUBLE_BUFFER}[kernel]
    of_kernel = functools.partial(
        Mutant,
        row=row,
        file=f"{kernel}.cuh",
        expect=rf"out of bounds: cp\.async .*by .*thread \d+ .* at {kernel}\.cuh:\d+",
    )
    return [
        of_kernel(
            name=f"{kernel}_row_not_predicated",
            old="tAcA(_0{}, i, j), m_left, k_left)",
            new="tAcA(_0{}, i, j), kBlkM, k_left)",
            sizes=(65, 66, 64),
        ),
        of_kernel(
            name=f"{kernel}_k_tail_not_predicated",
            old="tBcB(_0{}, i, j), n_left, k_left)",
            new="tBcB(_0{}, i, j), n_left, kBlkK)",
            sizes=(64, 64, 69),
        ),
    ]


MUTANTS = [
    Tiled(
        name="simt_tiled_k_tail_not_predicated",
        old="tBcB(_0{}, i, j), n_left, k_left)",
        new="tBcB(_0{}, i, j), n_left, kBlkK)",
        expect=r"out of bounds: plain load .*thread \d+.*at simt_tiled\.cuh:\d+",
        sizes=(64, 64, 69),
    ),
    Tiled(name="simt_tiled_same_k_tile_again", old="load(k_tile + 1);", new="load(k_tile);"),
    Tiled(name="simt_tiled_same_sums_again", file="simt_epilogue.h", old="if (i == step) {", new="if (i == 0) {"),
    # ---- simt_overlap
    Overlap(
        name="simt_overlap_wait_missing",
        old=LANDED,
        new=LANDED.replace("      cp_async_wait_group<0>();\n", ""),
    ),
    Overlap(name="simt_overlap_wait_off_by_one", old=LANDED, new=LANDED.replace("<0>", "<1>")),
    Overlap(
        name="simt_overlap_barrier_missing_after_wait",
        old=LANDED,
        new=LANDED.replace("      sync_threads();\n", ""),
        expect=either(OVERLAP),
    ),
    Overlap(
        name="simt_overlap_barrier_missing_after_reads",
        old="      sync_threads();\n      if (k_tile + 1 < k_tiles) load",
        new="      if (k_tile + 1 < k_tiles) load",
        expect=either(OVERLAP),
    ),
    Overlap(
        name="simt_overlap_commit_missing",
        old="load(k_tile + 1);\n      cp_async_commit_group();",
        new="load(k_tile + 1);",
    ),
    Overlap(name="simt_overlap_same_k_tile_again", old="load(k_tile + 1);", new="load(k_tile);", expect="wrong"),
    *not_predicated("simt_overlap"),
    # ---- simt_double_buffer
    Double(
        name="simt_double_buffer_wait_missing",
        old=NEXT_LANDED,
        new=NEXT_LANDED.replace("          cp_async_wait_group<0>();\n", ""),
    ),
    Double(
        name="simt_double_buffer_first_wait_missing",
        old=LANDED,
        new=LANDED.replace("      cp_async_wait_group<0>();\n", ""),
    ),
    Double(name="simt_double_buffer_wait_off_by_one", old=NEXT_LANDED, new=NEXT_LANDED.replace("<0>", "<1>")),
    Double(
        name="simt_double_buffer_barrier_missing",
        old=NEXT_LANDED,
        new=NEXT_LANDED.replace("          sync_threads();\n", ""),
        expect=either(DOUBLE),
    ),
    Double(
        name="simt_double_buffer_commit_missing",
        old="load(k_tile + 1, write);\n          cp_async_commit_group();",
        new="load(k_tile + 1, write);",
    ),
    Double(
        name="simt_double_buffer_load_into_the_buffer_in_use",
        old="load(k_tile + 1, write);",
        new="load(k_tile + 1, read);",
        expect=either(DOUBLE),
    ),
    Double(
        name="simt_double_buffer_reads_the_old_buffer",
        old="copy(tCsA(_, _, _0{}, write), tCrA(_, _, _0{}));",
        new="copy(tCsA(_, _, _0{}, read), tCrA(_, _, _0{}));",
        expect=either(DOUBLE),
    ),
    Double(
        name="simt_double_buffer_stage_out_of_range",
        old="write = 1 - read;",
        new="write = 1 + read;",
        expect=r"out of bounds: cp\.async .*thread \d+ .* at simt_double_buffer\.cuh:\d+: .* of shared memory",
    ),
    *not_predicated("simt_double_buffer"),
    Double(
        name="simt_double_buffer_store_not_predicated",
        file="epilogue.h",
        old=NOT_PREDICATED[0],
        new=NOT_PREDICATED[1],
        expect=r"out of bounds: plain store .*thread \d+.* at simt_double_buffer\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
]
