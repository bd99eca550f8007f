"""Bugs planted in the real kernels: a text of the source, what it becomes, and what the emulator must say.

Each is compiled from a copy of `cuda/gemm` in which `old` (which must occur exactly `count` times) is replaced.
"""

from __future__ import annotations

import dataclasses
import re

SM80 = "{sm80_multistage, bf16, f32, {64, 64, 32}, 3, {1, 1}, 16}"
SM80_ELEMENTS = "{sm80_multistage, bf16, f32, {64, 64, 32}, 3, {1, 1}, 2}"
SIMT = "{simt_tiled, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"

RACE = (
    r"race on shared memory smem\+0x[0-9a-f]+: {new} \((read|write)\) "
    r"by block \(0,0,0\) thread \d+ \(warp \d lane \d+\) at {file}:\d+ is not ordered after {old} \((read|write)\) "
    r"by block \(0,0,0\) thread \d+ \(warp \d lane \d+\) at {file}:\d+"
)


@dataclasses.dataclass(frozen=True)
class Mutant:
    name: str
    row: str
    file: str
    old: str
    new: str
    expect: str  # a regular expression of the report; "wrong" where only the numbers tell
    sizes: tuple[int, int, int] = (70, 66, 200)
    count: int = 1


def race(file: str, new: str, old: str) -> str:
    return RACE.format(file=re.escape(file), new=new, old=old)


M, S = "sm80_multistage.cuh", "simt_tiled.cuh"
WAIT = "          cp_async_wait_group<kStages - 2>();\n          sync_threads();\n"

MUTANTS = [
    Mutant(
        "sm80_wait_missing",
        SM80,
        M,
        WAIT,
        "          sync_threads();\n",
        race(M, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "sm80_first_wait_missing",
        SM80,
        M,
        "      cp_async_wait_group<kStages - 2>();\n      sync_threads();\n      copy(",
        "      sync_threads();\n      copy(",
        race(M, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "sm80_wait_off_by_one",
        SM80,
        M,
        WAIT,
        WAIT.replace("kStages - 2", "kStages - 1"),
        race(M, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "sm80_barrier_missing",
        SM80,
        M,
        WAIT,
        WAIT.replace("          sync_threads();\n", ""),
        race(M, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "sm80_stage_refilled_before_barrier",
        SM80,
        M,
        "load(k_tile + kStages - 1, write);",
        "load(k_tile + kStages - 1, read);",
        race(M, "cp.async", "ldmatrix"),
    ),
    Mutant(
        "sm80_commit_missing",
        SM80,
        M,
        "          cp_async_commit_group();\n          write = read;",
        "          write = read;",
        race(M, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "sm80_wrong_swizzle",
        SM80,
        M,
        "Tensor tXsA = smem_thr_copy_a.partition_S(sA);",
        "Tensor tXsA = smem_thr_copy_a.partition_S(make_tensor(make_smem_ptr(smem.a), Conditional<kMajorA == Major::k, "
        "decltype(tile_to_shape(Layout<Shape<_8, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}, Shape<Int<kBlkM>, Int<kBlkK>, "
        "Int<kStages>>{})), decltype(smem_layout<kMajorA, kBlkM>())>{}));",
        "wrong",
    ),
    Mutant(
        "sm80_stage_out_of_range",
        SM80,
        M,
        "int const next = read + 1 == kStages ? 0 : read + 1;",
        "int const next = read + 1;",
        r"out of bounds: ldmatrix of 16 bytes by .* thread \d+ .* at sm80_multistage\.cuh:\d+: .* of shared memory",
        sizes=(70, 66, 400),
    ),
    Mutant(
        "sm80_row_not_predicated",
        SM80,
        M,
        "tAcA(_0{}, i, j), m_left, k_left)",
        "tAcA(_0{}, i, j), kBlkM, k_left)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at sm80_multistage\.cuh:\d+.*",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "sm80_k_tail_not_predicated",
        SM80,
        M,
        "tBcB(_0{}, i, j), n_left, k_left)",
        "tBcB(_0{}, i, j), n_left, kBlkK)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at sm80_multistage\.cuh:\d+.*",
        sizes=(64, 64, 72),
    ),
    Mutant(
        "sm80_half_the_warps_at_the_barrier",
        SM80,
        M,
        WAIT,
        WAIT.replace("sync_threads();", "sync_threads();\n          if (thread < 64) named_barrier_sync(1, 128);"),
        r"deadlock.*threads 0-63 .*bar\.sync id 1 \(64 of 128 threads have arrived\) at sm80_multistage\.cuh:\d+",
    ),
    Mutant(
        "sm80_barrier_count",
        SM80,
        M,
        WAIT,
        WAIT.replace("sync_threads();", "named_barrier_sync(1, thread < 64 ? 128 : 96);"),
        r"bar.*id 1.*(96|128).*(96|128)",
    ),
    Mutant(
        "sm80_divergent_ldmatrix",
        SM80,
        M,
        "          copy(smem_copy_b, tXsB(_, _, block + 1, read), tXrB(_, _, block + 1));",
        "          if (thread % 32) copy(smem_copy_b, tXsB(_, _, block + 1, read), tXrB(_, _, block + 1));",
        r"divergent warp.*(ldmatrix|mma)",
    ),
    Mutant(
        "sm80_too_little_shared_memory",
        SM80,
        M,
        "kThreads, kSmemBytes,\n",
        "kThreads, kSmemBytes - 4096,\n",
        r"out of bounds: cp\.async \(write\) .* thread \d+ .* at sm80_multistage\.cuh:\d+: .* of shared memory",
    ),
    Mutant(
        "sm80_elements_barrier_missing",
        SM80_ELEMENTS,
        M,
        WAIT,
        WAIT.replace("          sync_threads();\n", ""),
        race(M, "(ldmatrix|plain store)", "(plain store|ldmatrix)"),
    ),
    Mutant(
        "sm80_elements_row_not_predicated",
        SM80_ELEMENTS,
        M,
        "tAcA(_0{}, i, j), m_left, k_left)",
        "tAcA(_0{}, i, j), kBlkM, k_left)",
        r"out of bounds: plain load .*thread \d+.* at sm80_multistage\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "simt_barrier_missing_after_fill",
        SIMT,
        S,
        "      sync_threads();\n      if (k_tile + 1",
        "      if (k_tile + 1",
        race(S, "plain (load|store)", "plain (store|load)"),
    ),
    Mutant(
        "simt_barrier_missing_after_use",
        SIMT,
        S,
        "      sync_threads();\n      copy(tArA, tAsA);",
        "      copy(tArA, tAsA);",
        race(S, "plain (load|store)", "plain (store|load)"),
    ),
    Mutant(
        "simt_row_not_predicated",
        SIMT,
        S,
        "tAcA(_0{}, i, j), m_left, k_left)",
        "tAcA(_0{}, i, j), kBlkM, k_left)",
        r"out of bounds: plain load .*thread \d+.*at simt_tiled\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "simt_store_not_predicated",
        SIMT,
        S,
        "args.d_n_stride,\n                              m_left, n_left);",
        "args.d_n_stride,\n                              kBlkM, n_left);",
        r"out of bounds: plain store .*thread \d+.*at simt_tiled\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "simt_stores_into_an_input",
        SIMT,
        S,
        "static_cast<Element*>(args.d) + first",
        "const_cast<Element*>(static_cast<Element const*>(args.a)) + first",
        r"write to read-only memory: plain store .*thread \d+.*at simt_tiled\.cuh:\d+.* of a ",
    ),
    Mutant(
        "simt_never_ends",
        SIMT,
        S,
        "for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {",
        "for (int k_tile = 0; k_tiles > 0; k_tile = k_tile ? 0 : 1) {",
        r"watchdog",
    ),
    Mutant(
        "scheduler_one_tile_twice",
        SIMT,
        "tile_scheduler.h",
        "return {int(first_m + in_group % rows), int(in_group / rows)",
        "return {int(first_m + (in_group == 1 ? 0 : in_group % rows)), int(in_group / rows)",
        r"race on global memory .*block .*thread \d+.* at simt_tiled\.cuh:\d+ "
        r".*block .*thread \d+.* at simt_tiled\.cuh:\d+",
        sizes=(200, 66, 40),
    ),
    Mutant(
        "scheduler_skips_the_remainder",
        SIMT,
        "tile_scheduler.h",
        "int64_t const m = ceil_div(args.m, tile.m), n",
        "int64_t const m = args.m / tile.m, n",
        "wrong",
        sizes=(70, 66, 40),
    ),
]
