"""Bugs planted in sm90_split_k: parts of k lost or given twice, sums read before they are there or after they went."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import deadlock, race, too_early

ROW = "{sm90_split_k, bf16, f32, {64, 64, 64}, 2, {1, 2}, 16}"
K, PARTS, SUMS, MAPS = "sm90_split_k.cuh", "split_k.h", "cluster_sums.h", "tma_operand.h"

# Four tiles, the last of 6 rows and 2 columns, and five k-tiles: two and three, in a ring of two stages.
Mutant = functools.partial(AnyMutant, row=ROW, file=K, sizes=(70, 66, 290))

IN_WORDS = (70, 72, 290)  # rows are whole vectors
EXCHANGED = "{sm90_split_k, bf16, f32, {96, 128, 64}, 2, {1, 2}, 16}"  # 64 does not divide its rows

PART = "return int(int64_t(k_tiles) * rank / kSplit);"
K_TILES = "k_tiles = Sums::first_k_tile(rank + 1, grid.k) - begin;"
SUMS_BARRIER = "    named_barrier_sync(kSumsBarrier, kConsumerThreads);\n"
ALL_SUMS = "    sync_cluster<kSplit>();  // all ranks' sums are there\n"
FENCE = "        fence_mbarrier_init();\n"
KERNEL_AHEAD = "    if (pass == 1) griddepcontrol_wait();  // the kernel ahead may still run up to here\n"
CONSUMERS_WAIT = "      griddepcontrol_wait();\n"
ADDED = "      begun.load(begun.share.row);\n"
ADDS = """        add(own, begun.share, row, sums);
        if constexpr (kFinishing == Finishing::pair) add(own, begun.share, row, second, /*column=*/begun.kColumns);
"""
ARRIVES = "        if (is_last) arrive_behind_reads();\n"
WAIT = "      warpgroup_wait_group<1>();\n"
RELEASE = "      if (k_tile > 0) smem.pipeline.consumer_release(last, thread % 32);\n"
OF_THE_TILE = "first = rank * share, "

MUTANTS = [
    # ---- parts of k
    Mutant(
        name="split_k_remainder_for_nobody",
        file=SUMS,
        old=PART,
        new="return k_tiles / kSplit * rank;",
        expect="wrong",
    ),
    Mutant(
        name="split_k_remainder_given_twice",
        old=K_TILES,
        new="k_tiles = (grid.k + kSplit - 1) / kSplit;",
        expect="wrong",
    ),
    Mutant(
        name="split_k_all_of_k_for_each",
        old=K_TILES,
        new="k_tiles = grid.k - begin;",
        expect="wrong",
    ),
    Mutant(
        name="split_k_sums_of_no_k_tile_not_cleared",
        old="    if (k_tiles == 0) clear(tCrC);\n",
        new="    if (k_tiles == 0) fill(tCrC, Sum(1));\n",  # registers that nobody clears hold something
        expect="wrong",
        sizes=(70, 66, 30),
    ),
    # ---- the kernel ahead
    Mutant(
        name="split_k_loads_what_is_not_there_yet",
        file=PARTS,
        old=KERNEL_AHEAD,
        new="",
        expect=too_early("TMA load", K),
    ),
    Mutant(
        name="split_k_stores_over_what_is_still_read",
        old=CONSUMERS_WAIT,
        new="",
        expect=too_early("plain store", r"\S+"),
    ),
    Mutant(
        name="split_k_the_other_operand_read_early",
        file=MAPS,
        old=".a = (args.early & kEarlyA) != 0",
        new=".a = (args.early & kEarlyB) != 0",
        expect=too_early("TMA load", K),
        options=("early=2",),
    ),
    Mutant(
        name="split_k_read_early_and_once_more",
        file=MAPS,
        old=".b = pass == 2 || early.b == (pass == 0)}",
        new=".b = pass > 0 || early.b}",
        expect=race("TMA load", K, "TMA load", K),
        options=("early=3",),
    ),
    # ---- the ring
    Mutant(
        name="split_k_first_stages_loaded_again",
        file=PARTS,
        old="k_tile = begin + (pass < 2 ? 0 : at_once);",
        new="k_tile = begin + (pass < 2 ? 0 : at_once - 1);",
        expect=race("plain store", K, "TMA load", K),
    ),
    Mutant(
        name="split_k_acquired_twice_where_it_begins_early",
        file=PARTS,
        old="begun && pass == 1 ? &",
        new="false ? &",
        expect=r"mbarrier\.arrive\.expect_tx by .* has its 1 arrivals already",
        options=("early=2",),
    ),
    Mutant(
        name="split_k_others_know_before_the_first_stages",
        file=PARTS,
        old="if (pass == 2) others_know();",
        new="if (pass == 3) others_know();",
        expect="deadlock",
    ),
    Mutant(
        name="split_k_loads_before_the_barriers",
        old=FENCE,
        new="",
        expect="fence",
    ),
    Mutant(
        name="split_k_consumers_do_not_wait_for_the_barriers",
        old="      sync_threads();\n      consume<kOrder>(",
        new="      consume<kOrder>(",
        expect="mbarrier",
    ),
    Mutant(
        name="split_k_bytes_of_whole_boxes",
        old="OperandA::stage_bytes(OperandA::box_of_few(args.m))",
        new="uint32_t(OperandA::kStageBytes)",
        expect=deadlock("parity 0: 0 phases complete, 0 of 1 arrivals and 7168 bytes missing", K),
        sizes=(8, 66, 290),
    ),
    Mutant(
        name="split_k_released_before_the_wgmma",
        old=WAIT + RELEASE,
        new=RELEASE + WAIT,
        expect=race("TMA load", K, "wgmma", K),
        sizes=(70, 66, 600),
    ),
    # ---- the sums
    Mutant(
        name="split_k_sums_over_what_wgmma_reads",
        old=SUMS_BARRIER,
        new="",
        expect=race("plain store", K, "wgmma", K),
    ),
    Mutant(
        name="split_k_sums_over_a_load_in_flight",
        old="k_tile < k_tiles; ++k_tile, ++read) {\n      // The stage has landed",
        new="k_tile + 1 < k_tiles; ++k_tile, ++read) {\n      // The stage has landed",
        expect=race("plain store", K, "TMA load", K),
    ),
    Mutant(
        name="split_k_sums_read_without_a_cluster_barrier",
        file=SUMS,
        old=ALL_SUMS,
        new="    cluster_arrive_relaxed();\n    cluster_wait();\n",
        expect=race("plain load", SUMS, "plain store", K),
    ),
    Mutant(
        name="split_k_sums_read_behind_a_barrier_of_the_cta",
        file=SUMS,
        old=ALL_SUMS,
        new="    named_barrier_sync(1, kThreads);\n",
        expect=race("plain load", SUMS, "(plain store|TMA load)", K),
    ),
    Mutant(
        name="split_k_exits_while_others_read",
        old="    Sums::wait_for_reads();\n",
        new="",
        expect=r"exits without having waited for plain load by .* at cluster_sums\.h:\d+, which needs its",
    ),
    Mutant(
        name="split_k_arrives_before_it_reads",
        file=SUMS,
        old=ADDS + ARRIVES,
        new=ARRIVES + ADDS,
        expect=r"exits without having waited for plain load by .* at cluster_sums\.h:\d+, which needs its",
        sizes=IN_WORDS,
    ),
    Mutant(
        name="split_k_never_arrives",
        file=SUMS,
        old=ARRIVES,
        new="",
        expect="barrier.cluster.wait by .*: the thread has not arrived",
        sizes=IN_WORDS,
    ),
    Mutant(
        name="split_k_its_own_sums_alone",
        file=SUMS,
        old="mapa(own, uint32_t(r))",
        new="mapa(own, uint32_t(r) * 0)",
        expect="wrong",
    ),
    Mutant(
        name="split_k_a_rank_left_out",
        file=SUMS,
        old="for (int r = 1; r < kSplit; ++r) {",
        new="for (int r = 1; r < kSplit - 1; ++r) {",
        expect="wrong",
    ),
    Mutant(
        name="split_k_the_share_begins_with_the_second_vector",
        file=SUMS,
        old=OF_THE_TILE,
        new="first = rank * share + 1, ",
        expect="wrong",
    ),
    Mutant(
        name="split_k_every_rank_begins_with_the_first_row",
        file=SUMS,
        old=OF_THE_TILE,
        new="first = 0, ",
        expect=r"race on global memory d\+0x[0-9a-f]+",
    ),
    Mutant(
        name="split_k_rows_of_whole_tiles_dealt_out_short",
        file=SUMS,
        old="share = (all + kSplit - 1) / kSplit",
        new="share = all / kVectors / kSplit * kVectors",
        expect="wrong",
        sizes=(69, 66, 290),
    ),
    Mutant(
        name="split_k_one_cta_does_not_wait_for_its_sums",
        file=SUMS,
        old=ALL_SUMS,
        new="    sync_warp();\n",
        expect=race("plain store", K, "plain load", SUMS),
        row="{sm90_split_k, bf16, f32, {64, 64, 64}, 2, {1, 1}, 16}",
    ),
    # ---- operands exchanged
    Mutant(
        name="split_k_exchanged_rows_of_sums_too_close",
        old="Stride<_1, Int<kPitch>>",
        new="Stride<_1, Int<kBlkN>>",
        expect="wrong",
        row=EXCHANGED,
        sizes=(102, 130, 290),
    ),
    Mutant(
        name="split_k_exchanged_boxes_beyond_the_stages",
        file="tma_operand.h",
        old="kFewRows<kConfig> ? kConfig.tile.m : rows_of_boxes(kConfig.tile.m);",
        new="kConfig.tile.m;",
        expect=race("TMA load", K, "TMA load", K),
        row=EXCHANGED,
        order="TN",
        sizes=(104, 136, 290),
    ),
    # ---- vectors whose sums are under way together
    Mutant(
        name="split_k_vectors_of_the_next_rank_stored",
        file=SUMS,
        old="words.end_at(share.end);",
        new="",
        expect=r"race on global memory d\+0x[0-9a-f]+",
        sizes=(60, 64, 290),
    ),
    Mutant(
        name="split_k_sums_of_the_first_vector_for_all",
        file=SUMS,
        old="sums[i] = parts[i][0];",
        new="sums[i] = parts[0][0];",
        expect="wrong",
        sizes=IN_WORDS,
    ),
    Mutant(
        name="split_k_vectors_passed_over",
        file=SUMS,
        old="at += kCount * kRowStep",
        new="at += (kCount + 1) * kRowStep",
        expect="wrong",
        row="{sm90_split_k, bf16, f32, {64, 128, 64}, 2, {1, 2}, 16}",
        sizes=(64, 128, 290),
    ),
    # ---- in words, with what is read ahead
    Mutant(
        name="split_k_words_of_the_first_vector_for_all",
        file=SUMS,
        old="words.copy_rows(copied, load_word, row, OfRank::kRowStep, share.column);",
        new="words.copy_rows(copied, load_word, row, 0, share.column);",
        expect="wrong",
        row="{sm90_split_k, bf16, f32, {64, 128, 64}, 2, {1, 2}, 16}",
        sizes=(64, 128, 290),
        options=("epilogue=4",),
    ),
    Mutant(
        name="split_k_first_words_left_out",
        old=ADDED,
        new="",
        expect="wrong",
        sizes=IN_WORDS,
        options=("epilogue=4",),
    ),
    Mutant(
        name="split_k_c_read_ahead_of_the_kernel_ahead",
        old=CONSUMERS_WAIT + ADDED,
        new=ADDED + CONSUMERS_WAIT,
        expect=too_early("plain load", r"\S+"),
        sizes=IN_WORDS,
        options=("epilogue=5",),
    ),
    # ---- kernels of a finishing
    Mutant(
        name="split_k_nothing_is_added_to_the_first_vectors",
        old=ADDED,
        new="",
        expect="wrong",
        sizes=IN_WORDS,
        options=("epilogue=5",),
    ),
    Mutant(
        name="split_k_what_is_added_to_the_first_vectors_is_added_to_all",
        file=SUMS,
        old="        if (!is_last) begun.load(row + kCount * begun.share.kRowStep);\n",
        new="",
        expect="wrong",
        row="{sm90_split_k, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}",
        sizes=(128, 128, 64),
        options=("epilogue=5",),
    ),
    Mutant(
        name="split_k_c_is_no_multiple",
        file="epilogue.h",
        old="epilogue.c.data != nullptr ? static_cast<Sum>(epilogue.beta) : Sum(1);",
        new="Sum(1);",
        expect="wrong",
        sizes=IN_WORDS,
        options=("epilogue=5",),
    ),
    Mutant(
        name="split_k_pairs_that_are_kept_are_not_written",
        file=SUMS,
        old="return is_alone ? Finishing::pair : Finishing::any;",
        new="return Finishing::pair;",
        expect="wrong",
        row="{sm90_split_k, bf16, f32, {64, 128, 64}, 2, {1, 2}, 16}",
        sizes=IN_WORDS,
        options=("pair=2",),
    ),
    Mutant(
        name="split_k_the_second_product_of_a_pair_is_the_first",
        file=SUMS,
        old="add(own, begun.share, row, second, /*column=*/begun.kColumns);",
        new="add(own, begun.share, row, second);",
        expect="wrong",
        row="{sm90_split_k, bf16, f32, {64, 128, 64}, 2, {1, 2}, 16}",
        sizes=IN_WORDS,
        options=("pair=1",),
    ),
    Mutant(
        name="split_k_all_products_are_plain",
        file=SUMS,
        old="return is_plain(epilogue) ? Finishing::plain : is_sum",
        new="return true ? Finishing::plain : is_sum",
        expect="wrong",
        sizes=IN_WORDS,
        options=("epilogue=4",),
    ),
    Mutant(
        name="split_k_words_where_elements_lie",
        file=SUMS,
        old="if (!Words::is_of_words(args) || any_activation",
        new="if (any_activation",
        expect=r"race on global memory d\+0x[0-9a-f]+",
    ),
    Mutant(
        name="split_k_derivatives_in_words",
        file=SUMS,
        old="|| any_activation || has_scales(epilogue)) return",
        new="|| has_scales(epilogue)) return",
        expect="wrong",
        sizes=IN_WORDS,
        options=("epilogue=6",),
    ),
    Mutant(
        name="split_k_scales_left_out",
        file=SUMS,
        old="|| any_activation || has_scales(epilogue)) return",
        new="|| any_activation) return",
        expect="wrong",
        sizes=IN_WORDS,
        options=("scales=1",),
    ),
]
