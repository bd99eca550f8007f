"""Bugs planted in the SIMT kernels: see mutants.py, which holds more of simt_tiled."""

from __future__ import annotations

from tests.emulated.mutants import NOT_PREDICATED, SIMT, Mutant, race

SIMT_OVERLAP = "{simt_overlap, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"
SIMT_DOUBLE_BUFFER = "{simt_double_buffer, f32, f32, {64, 64, 8}, 2, {1, 1}, 4}"

TILED, OVERLAP, DOUBLE = "simt_tiled.cuh", "simt_overlap.cuh", "simt_double_buffer.cuh"
LANDED = (
    "      cp_async_wait_group<0>();\n      sync_threads();\n      copy("  # simt_overlap; simt_double_buffer's first
)
NEXT_LANDED = "          cp_async_wait_group<0>();\n          sync_threads();\n"  # simt_double_buffer, in the loop

MUTANTS = [
    Mutant(
        "simt_tiled_k_tail_not_predicated",
        SIMT,
        TILED,
        "tBcB(_0{}, i, j), n_left, k_left)",
        "tBcB(_0{}, i, j), n_left, kBlkK)",
        r"out of bounds: plain load .*thread \d+.*at simt_tiled\.cuh:\d+",
        sizes=(64, 64, 69),
    ),
    Mutant(
        "simt_tiled_same_k_tile_again",
        SIMT,
        TILED,
        "load(k_tile + 1);",
        "load(k_tile);",
        "wrong",
    ),
    Mutant(
        "simt_tiled_same_sums_again",
        SIMT,
        "simt_epilogue.h",
        "if (i == step) {",
        "if (i == 0) {",
        "wrong",
    ),
    Mutant(
        "simt_overlap_wait_missing",
        SIMT_OVERLAP,
        OVERLAP,
        LANDED,
        LANDED.replace("      cp_async_wait_group<0>();\n", ""),
        race(OVERLAP, "plain load", "cp.async"),
    ),
    Mutant(
        "simt_overlap_wait_off_by_one",
        SIMT_OVERLAP,
        OVERLAP,
        LANDED,
        LANDED.replace("<0>", "<1>"),
        race(OVERLAP, "plain load", "cp.async"),
    ),
    Mutant(
        "simt_overlap_barrier_missing_after_wait",
        SIMT_OVERLAP,
        OVERLAP,
        LANDED,
        LANDED.replace("      sync_threads();\n", ""),
        race(OVERLAP, "(plain load|cp.async)", "(cp.async|plain load)"),
    ),
    Mutant(
        "simt_overlap_barrier_missing_after_reads",
        SIMT_OVERLAP,
        OVERLAP,
        "      sync_threads();\n      if (k_tile + 1 < k_tiles) load",
        "      if (k_tile + 1 < k_tiles) load",
        race(OVERLAP, "(plain load|cp.async)", "(cp.async|plain load)"),
    ),
    Mutant(
        "simt_overlap_commit_missing",
        SIMT_OVERLAP,
        OVERLAP,
        "load(k_tile + 1);\n      cp_async_commit_group();",
        "load(k_tile + 1);",
        race(OVERLAP, "plain load", "cp.async"),
    ),
    Mutant(
        "simt_overlap_same_k_tile_again",
        SIMT_OVERLAP,
        OVERLAP,
        "load(k_tile + 1);",
        "load(k_tile);",
        "wrong",
    ),
    Mutant(
        "simt_overlap_row_not_predicated",
        SIMT_OVERLAP,
        OVERLAP,
        "tAcA(_0{}, i, j), m_left, k_left)",
        "tAcA(_0{}, i, j), kBlkM, k_left)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at simt_overlap\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "simt_overlap_k_tail_not_predicated",
        SIMT_OVERLAP,
        OVERLAP,
        "tBcB(_0{}, i, j), n_left, k_left)",
        "tBcB(_0{}, i, j), n_left, kBlkK)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at simt_overlap\.cuh:\d+",
        sizes=(64, 64, 69),
    ),
    Mutant(
        "simt_double_buffer_wait_missing",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        NEXT_LANDED,
        NEXT_LANDED.replace("          cp_async_wait_group<0>();\n", ""),
        race(DOUBLE, "plain load", "cp.async"),
    ),
    Mutant(
        "simt_double_buffer_first_wait_missing",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        LANDED,
        LANDED.replace("      cp_async_wait_group<0>();\n", ""),
        race(DOUBLE, "plain load", "cp.async"),
    ),
    Mutant(
        "simt_double_buffer_wait_off_by_one",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        NEXT_LANDED,
        NEXT_LANDED.replace("<0>", "<1>"),
        race(DOUBLE, "plain load", "cp.async"),
    ),
    Mutant(
        "simt_double_buffer_barrier_missing",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        NEXT_LANDED,
        NEXT_LANDED.replace("          sync_threads();\n", ""),
        race(DOUBLE, "(plain load|cp.async)", "(cp.async|plain load)"),
    ),
    Mutant(
        "simt_double_buffer_commit_missing",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        "load(k_tile + 1, write);\n          cp_async_commit_group();",
        "load(k_tile + 1, write);",
        race(DOUBLE, "plain load", "cp.async"),
    ),
    Mutant(
        "simt_double_buffer_load_into_the_buffer_in_use",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        "load(k_tile + 1, write);",
        "load(k_tile + 1, read);",
        race(DOUBLE, "(plain load|cp.async)", "(cp.async|plain load)"),
    ),
    Mutant(
        "simt_double_buffer_reads_the_old_buffer",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        "copy(tCsA(_, _, _0{}, write), tCrA(_, _, _0{}));",
        "copy(tCsA(_, _, _0{}, read), tCrA(_, _, _0{}));",
        race(DOUBLE, "(plain load|cp.async)", "(cp.async|plain load)"),
    ),
    Mutant(
        "simt_double_buffer_stage_out_of_range",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        "write = 1 - read;",
        "write = 1 + read;",
        r"out of bounds: cp\.async .*thread \d+ .* at simt_double_buffer\.cuh:\d+: .* of shared memory",
    ),
    Mutant(
        "simt_double_buffer_row_not_predicated",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        "tAcA(_0{}, i, j), m_left, k_left)",
        "tAcA(_0{}, i, j), kBlkM, k_left)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at simt_double_buffer\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "simt_double_buffer_k_tail_not_predicated",
        SIMT_DOUBLE_BUFFER,
        DOUBLE,
        "tBcB(_0{}, i, j), n_left, k_left)",
        "tBcB(_0{}, i, j), n_left, kBlkK)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at simt_double_buffer\.cuh:\d+",
        sizes=(64, 64, 69),
    ),
    Mutant(
        "simt_double_buffer_store_not_predicated",
        SIMT_DOUBLE_BUFFER,
        "epilogue.h",
        *NOT_PREDICATED,
        r"out of bounds: plain store .*thread \d+.* at simt_double_buffer\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
]
