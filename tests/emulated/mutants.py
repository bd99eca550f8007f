"""Bugs planted in the real kernels: a text of the source, what it becomes, and what the emulator must say.

`old` must occur exactly `count` times in its file, and all of them are replaced. Bugs of a row and an order are
compiled together where they can be (planting.py), others from a copy of `cuda/gemm` for themselves.
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
    options: tuple[str, ...] = ()  # of the row's driver
    order: str = "NT"  # the only one compiled


def race(file: str, new: str, old: str) -> str:
    return RACE.format(file=re.escape(file), new=new, old=old)


M, S, PIPELINE = "sm80_multistage.cuh", "simt_tiled.cuh", "moye/pipeline.h"
FIRST_WAIT = "    if (k_tiles > 0) {\n      pipeline.consumer_wait();\n"
WAIT = "          if (k_tile + 1 < k_tiles) {\n            pipeline.consumer_wait();\n"
REMAINDER = "return id_ < unsigned(grid_.tiles);", "return id_ + step_ <= unsigned(grid_.tiles);"  # of TileScheduler
STORED = "    if constexpr (is_same<Sum, int32_t>) {\n"  # by store(), which has one product
NOT_PREDICATED = (
    f"    if (m >= m_left_ || n >= n_left_) return;\n{STORED}",
    f"    if (n >= n_left_) return;\n{STORED}",
)
RESIDUAL = "    if (epilogue.residual.data != nullptr) add(epilogue.residual, residual_, Compute(1), m, n, z);\n"
OF_PIPELINE = {
    "wait_missing": ("    cp_async_wait_group<kStages - 2>();\n", ""),
    "wait_off_by_one": ("cp_async_wait_group<kStages - 2>", "cp_async_wait_group<kStages - 1>"),
    "barrier_missing": ("kStages - 2>();\n    sync_threads();\n", "kStages - 2>();\n"),
    "commit_missing": ("    cp_async_commit_group();\n", ""),
}

MUTANTS = [
    Mutant(
        "sm80_b_is_read_as_a_is",
        "{sm80_multistage, e4m3xe5m2, f32, {64, 64, 64}, 3, {1, 1}, 16}",
        "sync_mma.h",
        "SM89_16x8x32_F32E4M3E5M2F32_TN",
        "SM89_16x8x32_F32E4M3E4M3F32_TN",
        "wrong",
    ),
    *(
        Mutant(f"sm80_{name}", SM80, PIPELINE, *texts, race(M, "ldmatrix", "cp.async"))
        for name, texts in OF_PIPELINE.items()
    ),
    Mutant(
        "sm80_first_wait_missing",
        SM80,
        M,
        FIRST_WAIT,
        "    if (k_tiles > 0) {\n",
        race(M, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "sm80_later_wait_missing",
        SM80,
        M,
        WAIT,
        "          if (k_tile + 1 < k_tiles) {\n",
        race(M, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "sm80_stage_refilled_before_barrier",
        SM80,
        M,
        "int const stage = pipeline.write();",
        "int const stage = pipeline.read();",
        race(M, "cp.async", "(cp.async|ldmatrix)"),
    ),
    Mutant(
        "sm80_wrong_stage",
        SM80,
        M,
        "copy(smem_copy_b, tXsB(_, _, block, pipeline.read()), tXrB(_, _, block));",
        "copy(smem_copy_b, tXsB(_, _, block, pipeline.write()), tXrB(_, _, block));",
        race(M, "(cp.async|ldmatrix)", "(cp.async|ldmatrix)"),
    ),
    Mutant(
        "sm80_wrong_swizzle",
        SM80,
        M,
        "Tensor tXsA = smem_thr_copy_a.partition_S(sA);",
        "Tensor tXsA = smem_thr_copy_a.partition_S(make_tensor(make_smem_ptr(smem.operands.a), Conditional<kMajorA == "
        "Major::k, decltype(tile_to_shape(Layout<Shape<_8, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}, Shape<Int<kBlkM>, "
        "Int<kBlkK>, Int<kStages>>{})), decltype(smem_layout<kMajorA, kBlkM>())>{}));",
        "wrong",
    ),
    Mutant(
        "sm80_stage_out_of_range",
        SM80,
        PIPELINE,
        "    if (index_ == kStages) {",
        "    if (index_ == 2 * kStages) {",
        r"out of bounds: (ldmatrix|cp\.async) .*thread \d+ .* at sm80_multistage\.cuh:\d+: .* of shared memory",
        sizes=(70, 66, 400),
    ),
    Mutant(
        "sm80_row_not_predicated",
        SM80,
        M,
        "tAcA, m_left, k_left)",
        "tAcA, kBlkM, k_left)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at sm80_multistage\.cuh:\d+.*",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "sm80_k_tail_not_predicated",
        SM80,
        M,
        "tBcB, n_left, k_left)",
        "tBcB, n_left, kBlkK)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at sm80_multistage\.cuh:\d+.*",
        sizes=(64, 64, 72),
    ),
    Mutant(
        "sm80_half_the_warps_at_the_barrier",
        SM80,
        M,
        WAIT,
        WAIT + "            if (thread < 64) named_barrier_sync(1, 128);\n",
        r"deadlock.*threads 0-63 .*bar\.sync id 1 \(64 of 128 threads have arrived\) at sm80_multistage\.cuh:\d+",
    ),
    Mutant(
        "sm80_barrier_count",
        SM80,
        M,
        WAIT,
        WAIT + "            named_barrier_sync(1, thread < 64 ? 128 : 96);\n",
        r"bar.*id 1.*(96|128).*(96|128)",
    ),
    Mutant(
        "sm80_divergent_ldmatrix",
        SM80,
        M,
        "      copy(smem_copy_b, tXsB(_, _, block, pipeline.read()), tXrB(_, _, block));",
        "      if (thread % 32) copy(smem_copy_b, tXsB(_, _, block, pipeline.read()), tXrB(_, _, block));",
        r"divergent warp.*(ldmatrix|mma)",
    ),
    Mutant(
        "sm80_too_little_shared_memory",
        SM80,
        M,
        ".smem_bytes = int(sizeof(SharedStorage)),",
        ".smem_bytes = int(sizeof(SharedStorage)) - 4096,",
        r"out of bounds: cp\.async \(write\) .* thread \d+ .* at sm80_multistage\.cuh:\d+: .* of shared memory",
    ),
    Mutant(
        "sm80_epilogue_before_the_last_reads",
        SM80,
        M,
        "    sync_threads();  // every warp is done with the stages",
        "    // every warp is done with the stages",
        race(M, "(plain store|ldmatrix)", "(ldmatrix|plain store)"),
    ),
    Mutant(
        "sm80_epilogue_rows_reused_too_early",
        SM80,
        "epilogue.h",
        "      if (step > 0) sync_threads();\n",
        "",
        race(M, "plain (load|store)", "plain (load|store)"),
    ),
    Mutant(
        "sm80_epilogue_rows_read_too_early",
        SM80,
        "epilogue.h",
        "      sync_threads();\n      constexpr int kVector = Epilogue::kVector;",
        "      constexpr int kVector = Epilogue::kVector;",
        race(M, "plain (load|store)", "plain (load|store)"),
    ),
    Mutant(
        "sm80_elements_barrier_missing",
        SM80_ELEMENTS,
        PIPELINE,
        *OF_PIPELINE["barrier_missing"],
        race(M, "(ldmatrix|plain store)", "(plain store|ldmatrix)"),
    ),
    Mutant(
        "sm80_elements_row_not_predicated",
        SM80_ELEMENTS,
        M,
        "tAcA, m_left, k_left)",
        "tAcA, kBlkM, k_left)",
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
        "epilogue.h",
        *NOT_PREDICATED,
        r"out of bounds: plain store .*thread \d+.*at simt_tiled\.cuh:\d+",
        sizes=(65, 66, 64),
    ),
    Mutant(
        "sm80_row_below_d_stored",
        SM80,
        "epilogue.h",
        "if (m + i * row_step >= m_left_) break;",
        "if (m + i * row_step > m_left_) break;",
        r"out of bounds: plain store .*thread \d+.*at sm80_multistage\.cuh:\d+",
        sizes=(80, 72, 64),
    ),
    Mutant(
        "sm80_first_row_of_a_thread_again",
        SM80,
        "epilogue.h",
        "sC(row + i * kRowStep, column)",
        "sC(row, column)",
        "wrong",
        sizes=(64, 64, 64),
    ),
    Mutant(
        "simt_stores_into_an_input",
        SIMT,
        "epilogue.h",
        f"{RESIDUAL}    write(args_.d, m, n, z);",
        f"{RESIDUAL}    write(const_cast<void*>(args_.a), m, n, z);",
        r"write to read-only memory: plain store .*thread \d+.*at simt_tiled\.cuh:\d+.* of a ",
    ),
    Mutant(
        "simt_never_ends",
        SIMT,
        S,
        "for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {",
        "for (int k_tile = 0; k_tiles > 0; k_tile = k_tile ? 0 : 1) {",
        r"watchdog: .* has run for more than 3 seconds",
        sizes=(65, 66, 40),  # a CTA without the bug: some milliseconds
        options=("watchdog=3",),
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
