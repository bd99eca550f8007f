"""Bugs planted in the kernel that packs operands, here 8-bit floats, and in how their sums are promoted."""

from __future__ import annotations

from tests.emulated.mutants_sm90 import FLOAT8, KERNEL_AHEAD, C, Mutant, T, race, refilled_in_use, too_early

PACK = "pack.h"

MUTANTS = [
    Mutant(
        "sm90_pack_does_not_wait_for_the_kernel_ahead",
        FLOAT8,
        PACK,
        KERNEL_AHEAD[2:],
        "",
        too_early("plain load", PACK),
        order="TN",
    ),
    Mutant(
        "sm90_pack_turned_without_a_barrier",
        FLOAT8,
        PACK,
        "    sync_threads();  // the tile is turned\n",
        "",
        race("plain load", PACK, "plain store", PACK),
        order="TN",
    ),
    Mutant(
        "sm90_pack_lines_read_without_a_barrier",
        FLOAT8,
        PACK,
        "      sync_threads();  // the lines are there\n",
        "",
        race("plain load", PACK, "plain store", PACK),
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_b_is_read_as_a_is",
        FLOAT8.replace("e4m3", "e4m3xe5m2"),
        T,
        "SM90_WGMMA_SS<kColumns, Sum, ElementA, ElementB,",
        "SM90_WGMMA_SS<kColumns, Sum, ElementA, ElementA,",
        "wrong",
    ),
    Mutant(
        "sm90_pack_second_vector_left_out",
        FLOAT8,
        PACK,
        "(left < 16 ? left : 16) > 16)",
        "(left < 16 ? left : 16) > 31)",
        "wrong",
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_pack_shifted_by_whole_words",
        FLOAT8,
        PACK,
        "int const bits = shift % 4 * 8;",
        "int const bits = 0;",
        "wrong",
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_pack_reads_behind_the_operand",
        FLOAT8,
        PACK,
        "if (p >= begin && p + 16 <= end) return",
        "if (p >= begin) return",
        r"out of bounds: plain load .*thread \d+.* at pack\.h:\d+",
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_pack_pitch_of_the_operand",
        FLOAT8,
        PACK,
        "int64_t const pitch = elements(plan.operand.pitch);",
        "int64_t const pitch = plan.operand.k;",
        "wrong",
        sizes=(130, 66, 272),  # whole 16 bytes along k, which TMA takes, and not whole sectors
        order="TN",
    ),
    Mutant(
        "sm90_pack_rows_behind_the_last",
        FLOAT8,
        PACK,
        "if (row < rows && byte < operand.pitch) store_global",
        "if (byte < operand.pitch) store_global",
        r"race on global memory workspace\+0x[0-9a-f]+: plain store \(write\) by .* is not ordered after plain store",
        order="TN",
    ),
    Mutant(
        "sm90_promoted_sums_not_begun_at_zero",
        FLOAT8,
        C,
        "      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;\n      gemm(",
        "      tiled_mma.accumulate_ = k_tile == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;\n      gemm(",
        "wrong",
        order="TN",
    ),
    Mutant(
        "sm90_promoted_before_the_wgmma",
        FLOAT8,
        C,
        "      warpgroup_wait_group<0>();\n      warpgroup_fence_operand(tCrStage);\n",
        "      warpgroup_wait_group<1>();\n      warpgroup_fence_operand(tCrStage);\n",
        refilled_in_use(C),
        order="TN",
    ),
]
