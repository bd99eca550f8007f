"""Bugs planted in sm90_weights: bits of the wrong weight, zeros and scales of the wrong group, parts of k lost."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import deadlock, race, too_early

S4 = "{sm90_weights, bf16xs4, f32, {16, 256, 128}, 2, {1, 1}, 16}"
S8 = "{sm90_weights, bf16xs8, f32, {16, 128, 128}, 2, {1, 1}, 16}"
HALF = "{sm90_weights, f16xs8, f32, {16, 128, 128}, 2, {1, 1}, 16}"
K, W = "sm90_weights.cuh", "weights.h"

ZEROS = ("group=192", "zeros=1")
UNSIGNED = ("group=192", "zeros=1", "signed=0")
PARTS = ("group=192", "zeros=1", "parts=3")
ONE_GROUP = ("group=0", "zeros=1", "special=1")

# Two tiles of rows and of columns; ten halves of stages: three groups, and one of a half.
Mutant = functools.partial(AnyMutant, row=S4, file=K, expect="wrong", sizes=(21, 288, 616), options=ZEROS, order="NN")
# Half a stage behind k, which is one group.
Half = functools.partial(Mutant, sizes=(3, 32, 40), options=ONE_GROUP)

OUTSIDE = r"out of bounds: plain load of \d+ bytes .* at (sm90_weights\.cuh|weights\.h):\d+: the nearest array is {} "
MASKED = "(word >> 4 * column & 0x000f000f)"
NEXT_ZEROS = "if (half + left < params.halves) next_zeros = load_zeros<kZeros>(args, group + 1, column);"
OF_THE_LANE = "lane / 4 * 16) / kBits;"
ENDS = "if (left == 0 || half + 1 == end) {"
READ = "        sync_warp();  // all lanes have read the stage\n"
RELEASE = "        smem.pipeline.consumer_release(read, lane);\n"
WAIT = "      if (h == 0) smem.pipeline.consumer_wait(read);\n"
KERNEL_AHEAD = "        griddepcontrol_wait();  // the kernel ahead may still run up to here\n"
FIRST_LOADS = "        produce(args, params, tile, begin, at_once, smem, write);\n"

MUTANTS = [
    # ---- bits of a pair
    Mutant(name="weights_a_bit_short", file=W, old=MASKED, new=MASKED.replace("000f000f", "0007000f")),
    Mutant(name="weights_neighbours_swapped", file=W, old=MASKED, new=MASKED.replace("column", "(column ^ 1)")),
    Mutant(name="weights_signed_not_flipped", file=W, old="(is_signed ? 0x00080008 : 0)", new="0"),
    Mutant(name="weights_offset_of_signed", file=W, old="(is_signed ? 8 : 0)", new="8", options=UNSIGNED),
    Mutant(name="weights_offset_without_its_zero", file=W, old="float value = float(zero);", new="float value = 0;"),
    Mutant(
        name="weights_sign_of_one_neighbour",
        file=W,
        old="(bits & 0x00800080) | power",
        new="(bits & 0x00000080) | power",
        row=S8,
    ),
    Mutant(name="weights_s8_without_zeros", file=W, old="return kZeros ? sub", new="return !kZeros ? sub", row=S8),
    Mutant(name="weights_f16_offset_of_the_power", file=W, old="kPowerValue + 128;", new="kPowerValue;", row=HALF),
    Mutant(name="weights_f16_sign_not_flipped", file=W, old="(kIsHalf ? 0x00800080 : 0)", new="0", row=HALF),
    # ---- which weights
    Mutant(name="weights_columns_of_another_lane", old=OF_THE_LANE, new="(lane / 4 ^ 1) * 16) / kBits;"),
    Mutant(name="weights_rows_of_the_first_block", old="k * 16 * kRowBytes", new="0"),
    Mutant(name="weights_first_eight_k_twice", old="(words[2 * i + 1], c,", new="(words[2 * i], c,"),
    Mutant(name="weights_other_half_of_a", old="stage(smem.stages.a, stage)", new="stage(smem.stages.a, stage - h)"),
    Mutant(name="weights_first_k_of_a", old="+ lanes_x[k] + j", new="+ lanes_x[0] + j"),
    # ---- groups
    Mutant(
        name="weights_zeros_of_the_group_before",
        old=NEXT_ZEROS,
        new=NEXT_ZEROS.replace("group + 1", "group"),
    ),
    Mutant(
        name="weights_zeros_behind_the_last_group",
        old=NEXT_ZEROS,
        new=NEXT_ZEROS.replace("if (half + left < params.halves) ", ""),
        expect=OUTSIDE.format("zeros"),
    ),
    Mutant(
        name="weights_zeros_without_a_sign", old="int8_t(next_zeros >> 8 * c)", new="int(next_zeros >> 8 * c & 0xff)"
    ),
    Mutant(
        name="weights_scales_of_the_first_group",
        old="scales.load(args, group, column);",
        new="scales.load(args, 0, column);",
    ),
    Half(
        name="weights_scales_behind_the_last_group",
        old="if (half + 1 < end) begin_group(half + 1);",
        new="begin_group(half + 1);",
        expect=OUTSIDE.format("scales"),
    ),
    Mutant(
        name="weights_scales_behind_the_last_column",
        file=W,
        old="    if (column >= args.gemm.n) return;\n",
        new="",
        expect=OUTSIDE.format("scales"),
    ),
    Half(
        name="weights_half_behind_k",
        old="end = last < params.halves ? last : params.halves;",
        new="end = last;",
        sizes=(3, 32, 72 * 4 + 8),
        options=("group=64", "zeros=1", "special=1"),
        expect="wrong|" + OUTSIDE.format("(scales|zeros)"),
    ),
    Mutant(
        name="weights_last_group_not_added", old=ENDS, new=ENDS.replace(" || half + 1 == end", ""), sizes=(21, 288, 680)
    ),
    Mutant(name="weights_sums_of_a_group_kept", old="        clear(tCrGroup);\n", new=""),
    # ---- parts of k
    Mutant(
        name="weights_part_begins_a_group",
        old="params.group_halves - first_half % params.group_halves;",
        new="params.group_halves;",
        options=PARTS,
    ),
    Mutant(
        name="weights_part_has_the_first_group",
        old="group = first_half / params.group_halves,",
        new="group = 0,",
        options=PARTS,
    ),
    Mutant(
        name="weights_last_group_of_a_part_not_added",
        old=ENDS,
        new=ENDS.replace("half + 1 == end", "half + 1 == params.halves"),
        options=PARTS,
    ),
    Mutant(
        name="weights_zeros_of_a_part_without_k",
        old="first_half < end ? load_zeros<kZeros>(args, group, column) : 0;",
        new="load_zeros<kZeros>(args, group, column);",
        sizes=(3, 32, 40),
        options=("group=0", "zeros=1", "parts=3"),
        expect=OUTSIDE.format("zeros"),
    ),
    Mutant(
        name="weights_remainder_of_k_for_nobody",
        old="params.k_tiles + (rank < params.remainder ? 1 : 0);",
        new="params.k_tiles;",
        options=PARTS,
    ),
    Mutant(
        name="weights_parts_begin_as_if_there_were_no_remainder",
        old="(rank < params.remainder ? rank : params.remainder);",
        new="0;",
        options=PARTS,
    ),
    Mutant(
        name="weights_tiles_of_columns_in_a_row",
        old="int(block_idx().y), 0};",
        new="int(cluster_id_in_grid().x), 0};",
        expect=r"race on global memory d\+.*: plain store .*: nothing orders two CTAs of a launch",
    ),
    Mutant(
        name="weights_results_between_vectors",
        old="vector < end && column < args.gemm.n)  // a multiple of kVector\n",
        new="vector < end)\n",
        expect=r"race on global memory d\+.*: plain store .*: nothing orders two CTAs of a launch",
    ),
    Mutant(
        name="weights_second_rank_left_out",
        old="for (int r = 1; r < kMostWeightParts; ++r) {",
        new="for (int r = 2; r < kMostWeightParts; ++r) {",
        options=PARTS,
    ),
    Mutant(
        name="weights_share_rounded_down",
        old="share = (all + args.parts - 1) / args.parts;",
        new="share = all / args.parts / 64 * 64;",
        options=PARTS,
    ),
    Mutant(
        name="weights_sums_read_behind_a_barrier_of_the_cta",
        old="    if (parts > 1) return cluster_sync();\n",
        new="",
        options=PARTS,
        expect=race("plain load", K, "(plain store|TMA load)", K),
    ),
    Mutant(
        name="weights_exits_while_others_read",
        old="    if (args.parts > 1) cluster_wait();  // and have been read\n",
        new="",
        options=PARTS,
        expect=r"exits without having waited for plain load by .* at sm90_weights\.cuh:\d+, which needs its",
    ),
    Mutant(
        name="weights_last_vectors_of_the_next_rank",
        old="if (vector < end && column < args.gemm.n)",
        new="if (column < args.gemm.n)",
        options=PARTS,
        expect="race on global memory",
    ),
    Mutant(
        name="weights_never_arrives",
        old="      if (is_last && args.parts > 1) cluster_arrive();\n",
        new="",
        options=PARTS,
        expect="barrier.cluster.wait by .*: the thread has not arrived",
    ),
    # ---- the ring
    Mutant(
        name="weights_first_stages_loaded_again",
        old="begin + at_once, k_tiles - at_once,",
        new="begin, k_tiles - at_once,",
    ),
    Mutant(name="weights_stage_not_waited_for", old=WAIT, new="", expect=race("ldmatrix", K, "TMA load", K)),
    Mutant(name="weights_released_without_the_warp", old=READ, new="", expect=race("TMA load", K, "ldmatrix", K)),
    Mutant(
        name="weights_released_before_it_is_read",
        old=WAIT,
        new=WAIT + "      if (h == 0) smem.pipeline.consumer_release(read, lane);\n",
        expect="race|mbarrier",
    ),
    Mutant(name="weights_never_released", old=RELEASE, new="", expect=deadlock("", K)),
    Mutant(
        name="weights_sums_over_stages_that_are_read",
        old="    named_barrier_sync(kSumsBarrier, kConsumerThreads);\n",
        new="",
        expect=race("plain store", K, "ldmatrix", K),
    ),
    # ---- the kernel ahead
    Mutant(
        name="weights_loads_what_is_not_there_yet",
        old=KERNEL_AHEAD + FIRST_LOADS,
        new=FIRST_LOADS,
        expect=too_early("TMA load", K),
    ),
    Mutant(
        name="weights_consumers_do_not_wait_for_the_kernel_ahead",
        old="      griddepcontrol_wait();\n      sync_threads();\n",
        new="      sync_threads();\n",
        expect=too_early("plain load", K),
    ),
]
