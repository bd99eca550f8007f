"""Bugs planted in the single- and double-buffered tensor-core kernels; as in mutants.py."""

from __future__ import annotations

import re

from tests.emulated.mutants import Mutant, race

SM70 = "{sm70_tensorop, f16, f32, {64, 64, 64}, 1, {1, 1}, 16}"
TENSOROP = "{sm80_tensorop, bf16, f32, {64, 64, 64}, 1, {1, 1}, 16}"
TENSOROP_ELEMENTS = "{sm80_tensorop, bf16, f32, {64, 64, 64}, 1, {1, 1}, 2}"
LDMATRIX = "{sm80_ldmatrix, bf16, f32, {64, 64, 64}, 1, {1, 1}, 16}"
LDMATRIX_TF32 = "{sm80_ldmatrix, tf32, f32, {64, 64, 32}, 1, {1, 1}, 16}"
DOUBLE_BUFFER = "{sm80_double_buffer, bf16, f32, {64, 64, 32}, 2, {1, 1}, 16}"
DOUBLE_BUFFER_ELEMENTS = "{sm80_double_buffer, bf16, f32, {64, 64, 32}, 2, {1, 1}, 2}"

S7, T, L, D = "sm70_tensorop.cuh", "sm80_tensorop.cuh", "sm80_ldmatrix.cuh", "sm80_double_buffer.cuh"

SYNC = "      sync_threads();\n"
WAIT = "      cp_async_wait_all();\n"
BEFORE_EPILOGUE = "    sync_threads();  // every warp is done with the buffers, which the epilogue's rows replace\n"
LOOP_WAIT = "          cp_async_wait_all();\n          sync_threads();\n"
ROWS_OF_A = "tAcA(_0{}, i, j), m_left, k_left)"
ROWS_OF_B = "tBcB(_0{}, i, j), n_left, k_left)"


def either(file: str, one: str, other: str) -> str:
    """A race between the two, whichever came last."""
    return f"{race(file, one, other)}|{race(file, other, one)}"


def early_epilogue(kernel: str, row: str, file: str, read: str) -> Mutant:
    """The sums are staged where another warp still reads operands."""
    here = re.escape(file)
    return Mutant(
        f"{kernel}_epilogue_before_the_last_read",
        row,
        file,
        BEFORE_EPILOGUE,
        "",
        rf"race on shared memory .*plain store.* at {here}:\d+ is not ordered after {read} .* at {here}:\d+|"
        rf"race on shared memory .*{read}.* at {here}:\d+ is not ordered after plain store .* at {here}:\d+",
    )


def out_of_bounds(file: str, access: str) -> str:
    return rf"out of bounds: {access} .*by .*thread \d+ .* at {re.escape(file)}:\d+"


MUTANTS = [
    # ---- sm70_tensorop: registers stage the next k-tile
    Mutant(
        "sm70_barrier_missing_after_fill",
        SM70,
        S7,
        SYNC + "      if (k_tile + 1",
        "      if (k_tile + 1",
        either(S7, "plain load", "plain store"),
    ),
    Mutant(
        "sm70_barrier_missing_after_use",
        SM70,
        S7,
        SYNC + "      copy(tArA, tAsA);",
        "      copy(tArA, tAsA);",
        either(S7, "plain load", "plain store"),
    ),
    Mutant(
        "sm70_same_k_tile_again",
        SM70,
        S7,
        "if (k_tile + 1 < k_tiles) load(k_tile + 1);",
        "if (k_tile + 1 < k_tiles) load(k_tile);",
        "wrong",
    ),
    Mutant(
        "sm70_rows_in_another_order",
        SM70,
        S7,
        "Tile<Tiler, Tiler, _4>{}",
        "Tile<Tiler, Conditional<kOrder == Order::NN, Tiler, _32>, _4>{}",
        "wrong",
    ),
    Mutant(
        "sm70_row_not_predicated",
        SM70,
        S7,
        ROWS_OF_A,
        ROWS_OF_A.replace("m_left", "kBlkM"),
        out_of_bounds(S7, "plain load"),
        (65, 66, 64),
    ),
    early_epilogue("sm70", SM70, S7, "plain load"),
    # ---- sm80_tensorop: cp.async, plain loads
    Mutant("tensorop_wait_missing", TENSOROP, T, WAIT, "", race(T, "plain load", "cp.async")),
    Mutant(
        "tensorop_barrier_missing_after_fill",
        TENSOROP,
        T,
        WAIT + SYNC,
        WAIT,
        either(T, "plain load", "cp.async"),
    ),
    Mutant(
        "tensorop_barrier_missing_after_use",
        TENSOROP,
        T,
        SYNC + "      load(k_tile);",
        "      load(k_tile);",
        either(T, "plain load", "cp.async"),
    ),
    Mutant(
        "tensorop_wait_after_the_barrier",
        TENSOROP,
        T,
        WAIT + SYNC,
        SYNC + WAIT,
        race(T, "plain load", "cp.async"),
    ),
    Mutant(
        "tensorop_wrong_padding",
        TENSOROP,
        T,
        "Tensor tCsB = thr_mma.partition_B(sB);",
        "Tensor tCsB = thr_mma.partition_B(make_tensor(make_smem_ptr(smem.operands.b), "
        "Layout<Shape<Int<kBlkN>, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}));",
        "wrong",
    ),
    Mutant(
        "tensorop_row_not_predicated",
        TENSOROP,
        T,
        ROWS_OF_A,
        ROWS_OF_A.replace("m_left", "kBlkM"),
        out_of_bounds(T, r"cp\.async"),
        (65, 66, 64),
    ),
    Mutant(
        "tensorop_k_tail_not_predicated",
        TENSOROP,
        T,
        ROWS_OF_B,
        ROWS_OF_B.replace("k_left", "kBlkK"),
        out_of_bounds(T, r"cp\.async"),
        (64, 64, 72),
    ),
    Mutant(
        "tensorop_elements_column_not_predicated",
        TENSOROP_ELEMENTS,
        T,
        ROWS_OF_B,
        ROWS_OF_B.replace("n_left", "kBlkN"),
        out_of_bounds(T, "plain load"),
        (66, 65, 64),
    ),
    early_epilogue("tensorop", TENSOROP, T, "plain load"),
    # ---- sm80_ldmatrix: swizzled
    Mutant("ldmatrix_wait_missing", LDMATRIX, L, WAIT, "", race(L, "ldmatrix", "cp.async")),
    Mutant("ldmatrix_barrier_missing_after_fill", LDMATRIX, L, WAIT + SYNC, WAIT, race(L, "ldmatrix", "cp.async")),
    Mutant(
        "ldmatrix_barrier_missing_after_use",
        LDMATRIX,
        L,
        SYNC + "      load(k_tile);",
        "      load(k_tile);",
        either(L, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "ldmatrix_wrong_swizzle",
        LDMATRIX,
        L,
        "Tensor tXsA = smem_thr_copy_a.partition_S(sA);",
        "Tensor tXsA = smem_thr_copy_a.partition_S(make_tensor(make_smem_ptr(smem.operands.a), Conditional<kMajorA == "
        "Major::k, decltype(tile_to_shape(composition(Swizzle<2, 3, 3>{}, Layout<Shape<_8, Int<kBlkK>>, "
        "Stride<Int<kBlkK>, _1>>{}), Shape<Int<kBlkM>, Int<kBlkK>>{})), decltype(smem_layout<kMajorA, kBlkM>())>{}));",
        "wrong",
    ),
    Mutant(
        "ldmatrix_tf32_wrong_swizzle",
        LDMATRIX_TF32,
        L,
        "Tensor tXsB = smem_thr_copy_b.partition_S(sB);",
        "Tensor tXsB = smem_thr_copy_b.partition_S(make_tensor(make_smem_ptr(smem.operands.b), "
        "tile_to_shape(Layout<Shape<_8, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}, Shape<Int<kBlkN>, Int<kBlkK>>{})));",
        "wrong",
    ),
    Mutant(
        "ldmatrix_wrong_retile",
        LDMATRIX,
        L,
        "copy(smem_copy_b, tXsB(_, _, block), tXrB(_, _, block));",
        "copy(smem_copy_b, tXsB(_, _, block), tXrB(_, _, (block + 1) % kBlocks));",
        "wrong",
    ),
    Mutant(
        "ldmatrix_row_not_predicated",
        LDMATRIX,
        L,
        ROWS_OF_A,
        ROWS_OF_A.replace("m_left", "kBlkM"),
        out_of_bounds(L, r"cp\.async"),
        (65, 66, 64),
    ),
    early_epilogue("ldmatrix", LDMATRIX, L, "ldmatrix"),
    # ---- sm80_double_buffer
    Mutant(
        "double_buffer_wait_missing",
        DOUBLE_BUFFER,
        D,
        LOOP_WAIT,
        "          sync_threads();\n",
        race(D, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "double_buffer_first_wait_missing",
        DOUBLE_BUFFER,
        D,
        "      load(0, 0);\n" + WAIT,
        "      load(0, 0);\n",
        race(D, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "double_buffer_barrier_missing",
        DOUBLE_BUFFER,
        D,
        LOOP_WAIT,
        "          cp_async_wait_all();\n",
        either(D, "ldmatrix", "cp.async"),
    ),
    Mutant(
        "double_buffer_fills_the_buffer_that_is_read",
        DOUBLE_BUFFER,
        D,
        "load(k_tile + 1, next);",
        "load(k_tile + 1, read);",
        either(D, "cp.async", "ldmatrix"),
    ),
    Mutant(
        "double_buffer_reads_the_buffer_before",
        DOUBLE_BUFFER,
        D,
        "copy(smem_copy_a, tXsA(_, _, _0{}, next), tXrA(_, _, _0{}));",
        "copy(smem_copy_a, tXsA(_, _, _0{}, read), tXrA(_, _, _0{}));",
        "(wrong|race)",
    ),
    Mutant(
        "double_buffer_never_turns",
        DOUBLE_BUFFER,
        D,
        "int const read = k_tile % 2, next = 1 - read;",
        "int const read = 0, next = 1;",
        "(wrong|race)",
    ),
    Mutant(
        "double_buffer_wrong_swizzle",  # of rows of 128 bytes, for rows of 64
        DOUBLE_BUFFER,
        D,
        "Tensor tXsA = smem_thr_copy_a.partition_S(sA);",
        "Tensor tXsA = smem_thr_copy_a.partition_S(make_tensor(make_smem_ptr(smem.operands.a), Conditional<kMajorA == "
        "Major::k, decltype(tile_to_shape(composition(Swizzle<3, 3, 3>{}, Layout<Shape<_8, Int<kBlkK>>, "
        "Stride<Int<kBlkK>, _1>>{}), Shape<Int<kBlkM>, Int<kBlkK>, _2>{})), "
        "decltype(smem_layout<kMajorA, kBlkM>())>{}));",
        "wrong",
    ),
    Mutant(
        "double_buffer_elements_barrier_missing",
        DOUBLE_BUFFER_ELEMENTS,
        D,
        LOOP_WAIT,
        "          cp_async_wait_all();\n",
        either(D, "ldmatrix", "plain store"),
    ),
    Mutant(
        "double_buffer_k_tail_not_predicated",
        DOUBLE_BUFFER,
        D,
        ROWS_OF_A,
        ROWS_OF_A.replace("k_left", "kBlkK"),
        out_of_bounds(D, r"cp\.async"),
        (64, 64, 72),
    ),
    early_epilogue("double_buffer", DOUBLE_BUFFER, D, "ldmatrix"),
]
