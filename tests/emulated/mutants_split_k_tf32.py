"""Bugs planted in split_k_tf32.h: which part of k a CTA loads, turns and multiplies, and how its sums lie."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import deadlock, race, too_early

ROW = "{sm90_split_k, tf32, f32, {64, 128, 32}, 3, {1, 2}, 16}"
K, T, PARTS, SUMS = "split_k_tf32.h", "sm90_transposed.cuh", "split_k.h", "cluster_sums.h"

# Four tiles, the last of 6 rows and 8 columns, and nine k-tiles: four and five, in a ring of three stages.
Mutant = functools.partial(AnyMutant, row=ROW, file=K, sizes=(70, 136, 260), order="TN", expect="wrong")
ONE_K_TILE = (70, 136, 30)  # the last rank's

BEGIN = "begin = Sums::first_k_tile(rank, grid.k),"
K_TILES = "k_tiles = Sums::first_k_tile(rank + 1, grid.k) - begin;"
FIRST_OF_PASS = "k_tile = begin + (pass < 2 ? 0 : at_once);"
AT_ONCE = "at_once = k_tiles < kStages ? k_tiles : kStages;"
KERNEL_AHEAD = "    if (pass == 1) griddepcontrol_wait();  // the kernel ahead may still run up to here\n"
CONSUMERS = "      sync_threads();\n      warpgroup_reg_alloc"
TURN = "turn_stages<kOrder>(k_tiles, smem, thread / 32 - 1, thread % 32);\n"
SUMS_BARRIER = "    named_barrier_sync(kSumsBarrier, kConsumerThreads);\n"
ALL_SUMS = "    sync_cluster<kSplit>();  // all ranks' sums are there\n"
ROW_OF_A_PAIR = "m = i / 2 * 8 + thread % 4 * 2 + i % 2;"
COLUMN_OF_A_PAIR = "n = Products::Epilogue::first_column(thread);"
SECOND = "tCrC(make_coord(i % 2, 1, i / 2), _0{}, _0{})}"
PLACE = "sums + SumsLayout{}(m, n)"
ADD = "Begun<kFinishing>(args, tile, rank, thread - 128);"
ADDED = "      begun.load(begun.share.row);\n"
CONSUMERS_WAIT = "      griddepcontrol_wait();\n"

MUTANTS = [
    # ---- parts of k
    Mutant(name="split_k_tf32_every_part_begins_with_the_first_k_tile", old=BEGIN, new="begin = 0,"),
    Mutant(
        name="split_k_tf32_first_stages_of_the_first_rank",
        file=PARTS,
        old=FIRST_OF_PASS,
        new="k_tile = pass < 2 ? 0 : begin + at_once;",
        expect=deadlock("parity [01]: .*", r"\S+"),
    ),
    Mutant(
        name="split_k_tf32_first_stages_loaded_again",
        file=PARTS,
        old=FIRST_OF_PASS,
        new="k_tile = begin + (pass < 2 ? 0 : at_once - 1);",
        expect=race("plain store", K, "TMA load", K),
    ),
    Mutant(name="split_k_tf32_last_k_tile_left_out", old=K_TILES, new="k_tiles = grid.k / kSplit;"),
    Mutant(name="split_k_tf32_remainder_given_twice", old=K_TILES, new="k_tiles = (grid.k + kSplit - 1) / kSplit;"),
    Mutant(
        name="split_k_tf32_loads_more_than_its_part",
        file=PARTS,
        old=AT_ONCE,
        new="at_once = kStages;",
        expect=race("plain store", K, "TMA load", K),
        sizes=ONE_K_TILE,
    ),
    Mutant(
        name="split_k_tf32_a_stage_of_no_k_tile_multiplied",
        file=T,
        old="    if (k_tiles > 0) load_b(read, 0);\n",
        new="    load_b(read, 0);\n",
        expect=deadlock("parity 0: 0 phases complete", T),
        sizes=ONE_K_TILE,
    ),
    Mutant(
        name="split_k_tf32_sums_of_no_k_tile_not_cleared",
        file=T,
        old="    if (k_tiles == 0) clear(tCrC);\n",
        new="    if (k_tiles == 0) fill(tCrC, 1.0f);\n",  # registers that nobody clears hold something
        sizes=ONE_K_TILE,
    ),
    # ---- the kernel ahead
    Mutant(
        name="split_k_tf32_loads_what_is_not_there_yet",
        file=PARTS,
        old=KERNEL_AHEAD,
        new="",
        expect=too_early("TMA load", K),
    ),
    Mutant(
        name="split_k_tf32_stores_over_what_is_still_read",
        old=CONSUMERS_WAIT + ADDED,
        new=ADDED,
        expect=too_early("plain store", r"\S+"),
    ),
    # ---- the ring
    Mutant(
        name="split_k_tf32_consumers_do_not_wait_for_the_barriers",
        old=CONSUMERS,
        new="      warpgroup_reg_alloc",
        expect=r"deadlock.*waits in setmaxnreg\.inc .* the CTA could give each lane 0 more",
    ),
    Mutant(name="split_k_tf32_no_barriers", old="        Products::init_barriers(smem);\n", new="", expect="mbarrier"),
    Mutant(
        name="split_k_tf32_turns_the_stages_of_all_ranks",
        old=TURN,
        new=TURN.replace("k_tiles", "grid.k"),
        expect=deadlock("parity [01]: .*", T),
    ),
    Mutant(
        name="split_k_tf32_last_stage_not_turned",
        old=TURN,
        new=TURN.replace("k_tiles", "k_tiles - 1"),
        expect=deadlock("parity [01]: .*", T),
    ),
    Mutant(
        name="split_k_tf32_the_producer_counted_among_the_turners",
        old=TURN,
        new=TURN.replace("thread / 32 - 1", "thread / 32"),
        expect=race("plain load", T, "TMA load", K),
    ),
    Mutant(
        name="split_k_tf32_nobody_turns",
        old="if constexpr (Products::template kTurns<kOrder>)",
        new="if constexpr (!Products::template kTurns<kOrder>)",
        expect=deadlock("parity 0: 0 phases complete, 1 of 1 arrivals", T),
    ),
    # ---- the sums
    Mutant(
        name="split_k_tf32_sums_over_what_is_multiplied",
        old=SUMS_BARRIER,
        new="",
        expect=race("plain store", K, "(wgmma|plain load)", T),
    ),
    Mutant(
        name="split_k_tf32_sums_read_without_a_cluster_barrier",
        file=SUMS,
        old=ALL_SUMS,
        new="    cluster_arrive_relaxed();\n    cluster_wait();\n",
        expect=race("plain load", SUMS, "plain store", K),
    ),
    Mutant(
        name="split_k_tf32_sums_read_behind_a_barrier_of_the_cta",
        file=SUMS,
        old=ALL_SUMS,
        new="    named_barrier_sync(1, kThreads);\n",
        expect=race("plain load", SUMS, "(plain store|TMA load)", K),
    ),
    Mutant(
        name="split_k_tf32_exits_while_others_read",
        old="    Sums::wait_for_reads();\n",
        new="",
        expect=r"exits without having waited for plain load by .* at cluster_sums\.h:\d+, which needs its",
    ),
    Mutant(
        name="split_k_tf32_rows_of_a_pair_swapped",
        old=ROW_OF_A_PAIR,
        new="m = (i / 2 * 8 + thread % 4 * 2 + i % 2) ^ 1;",
    ),
    Mutant(name="split_k_tf32_rows_4_apart", old=ROW_OF_A_PAIR, new="m = i / 2 * 8 + thread % 4 + i % 2 * 4;"),
    Mutant(
        name="split_k_tf32_columns_2_apart",
        old=COLUMN_OF_A_PAIR,
        new="n = Products::Epilogue::first_column(thread) ^ 2;",
    ),
    Mutant(name="split_k_tf32_first_column_twice", old=SECOND, new=SECOND.replace("1, i / 2", "0, i / 2")),
    Mutant(
        name="split_k_tf32_last_rows_left_out", old="i < kBlkM / 4;", new="i < kBlkM / 4 - 2;", sizes=(64, 128, 260)
    ),
    Mutant(name="split_k_tf32_sums_as_they_lie_in_d", old=PLACE, new="sums + (m * kBlkN + n)"),
    Mutant(name="split_k_tf32_first_vectors_left_out", old=ADD, new=ADD.replace("thread - 128", "thread")),
]
