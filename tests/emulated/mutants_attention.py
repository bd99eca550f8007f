"""Bugs planted in sm90_attention and sm90_attention_grad: scores that count, masks, sums rescaled, rings, stores."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import STILL_READ, deadlock, race, read_before_it_came, too_early

FORWARD = "{sm90_attention, bf16, f32, {64, 64, 64}, 2, {1, 1}, 16}"
GRADIENTS = "{sm90_attention_grad, bf16, f32, {128, 64, 64}, 2, {1, 1}, 16}"
F, G, SHARED, BOTH = "sm90_attention.cuh", "sm90_attention_grad.cuh", "attention.h", "attention_grad.h"
PARTS, MASK, SOFTMAX = "attention_parts.h", "attention_mask.h", "attention_softmax.h"

# Two heads of keys with two of queries each; rows of the first tile see nothing.
CAUSAL = ("heads=2", "group=2", "diagonal=-9")
SHARP = ("sharp=6",)
Mutant = functools.partial(
    AnyMutant, row=FORWARD, file=F, expect="wrong", sizes=(90, 200, 40), options=CAUSAL, order="NT"
)
Grad = functools.partial(Mutant, row=GRADIENTS, file=G, sizes=(200, 150, 40))
# Of the first row all scores are masked.
MASKED = ("batch=2", "group=2", "diagonal=30", "mask=bhqk")
INFINITE = ("batch=2", "group=2", "diagonal=-9", "mask=bhqk", "infinite=1")
Masked = functools.partial(Grad, options=MASKED)
Split = functools.partial(
    Mutant,
    row="{sm90_attention, bf16, f32, {64, 64, 64}, 2, {1, 4}, 16}",
    sizes=(70, 500, 40),
    options=("heads=2", "group=2"),
)
Rest = functools.partial(Mutant, sizes=(90, 200, 40), options=("heads=2", "group=2", "rest=1", "level=1"))
Parts = functools.partial(Grad, sizes=(70, 8, 64), options=("parts=2",))

LAST = "  int64_t const last = row + args.diagonal + 1;\n"
SCALED = "rows.sum[r] * rows.factor[r] + sum"
RESCALE = "sums[i] *= rows.factor[i / 2 % 2];"
QUAD = "for (int other = 1; other < 4; other *= 2) {  // the four lanes of a row"
SUM_OF_QUAD = "for (int other = 1; other < 4; other *= 2) sum += shfl_xor_sync(kFullWarp, sum, other);"
AHEAD = "    griddepcontrol_wait();  // the kernel ahead may still run up to here\n"
WAIT_SCORES = "        if constexpr (!kIsLate) warpgroup_wait_group<Weighted::kIsStarted ? 1 : 0>();\n"
WRITTEN = "      if (lane == 0) tma_store_wait_group_read<0>();\n"

OF_K = "Tensor tOrK = attention_grad::summed<Gemm>(smem.streamed[0]"
CLEARED = (
    "  if (kept != kAllKept && !(kDrops && args.mask.has_gradients)) attention_grad::clear_masked(weights, kept);\n"
)
OUTSIDE = r"out of bounds: plain load of \d bytes .*: the nearest array is mask "
NO_FENCE = race("TMA store", F, "stmatrix", F, "is ordered after") + ", but no fence.proxy.async lies between them"
MUTANTS = [
    # ---- what counts
    Mutant(name="attention_diagonal_left_out", file=SHARED, old=LAST, new=LAST.replace(" + 1", "")),
    Mutant(
        name="attention_columns_behind_the_last",
        file=SHARED,
        old="last < args.kv_rows ? last : args.kv_rows",
        new="last",
        options=("diagonal=150",),
    ),
    Mutant(
        name="attention_one_column_more",
        file=SOFTMAX,
        old=">= rows.columns[i / 2 % 2]",
        new="> rows.columns[i / 2 % 2]",
    ),
    Mutant(
        name="attention_columns_of_the_other_row",
        file=SOFTMAX,
        old="= rows.columns[i / 2 % 2]",
        new="= rows.columns[0]",
    ),
    Mutant(
        name="attention_columns_of_another_lane", file=SOFTMAX, old="lane % 4 * 2 + i % 2 >=", new="lane % 4 + i % 2 >="
    ),
    Mutant(name="attention_last_tile_left_out", old="last) + kBlkN - 1) / kBlkN", new="last)) / kBlkN"),
    Mutant(name="attention_tiles_of_the_first_row", old="row + kBlkM - 1 :", new="row :", sizes=(128, 200, 40)),
    Mutant(
        name="attention_keys_of_another_head", old="at.head / int(args.group);", new="at.head % int(args.kv_heads);"
    ),
    # ---- masks
    Mutant(
        name="attention_mask_of_the_first_row",
        file=MASK,
        old="{first, first + 8 * mask.row_stride}",
        new="{first, first}",
        options=MASKED,
    ),
    Mutant(
        name="attention_mask_behind_the_last_row",
        file=MASK,
        old="row + 8 < args.q_rows ? columns[1] - column : 0",
        new="columns[1] - column",
        options=MASKED,
        expect=OUTSIDE,
    ),
    Mutant(
        name="attention_mask_of_the_first_columns",
        file=MASK,
        old="columns, column + step * 64, lane",
        new="columns, step * 64, lane",
        options=MASKED,
    ),
    Mutant(
        name="attention_mask_of_every_other_word",
        file=SOFTMAX,
        old="kept[i / 32] >> i % 32",
        new="kept[0] >> i % 32",
        row="{sm90_attention, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}",
        options=MASKED,
    ),
    Mutant(
        name="attention_masked_scores_scaled",
        file=SOFTMAX,
        old="largest * scale > kMasked / 2 ? scale : kLeastScale",
        new="scale",
        options=("mask=bhqk", "sharp=2"),
    ),
    # ---- sums
    Mutant(
        name="attention_largest_of_one_lane",
        file=SOFTMAX,
        old=QUAD,
        new=QUAD.replace("other < 4", "other < 2"),
        options=SHARP,
    ),
    Mutant(name="attention_rows_not_rescaled", old=RESCALE, new=";", options=SHARP),
    Mutant(
        name="attention_rescaled_by_the_other_row", old=RESCALE, new=RESCALE.replace("i / 2 % 2", "0"), options=SHARP
    ),
    Mutant(name="attention_sum_not_rescaled", file=SOFTMAX, old=SCALED, new="rows.sum[r] + sum", options=SHARP),
    Mutant(name="attention_sum_of_one_lane", old=SUM_OF_QUAD, new=SUM_OF_QUAD.replace("other < 4", "other < 2")),
    Mutant(
        name="attention_base_of_no_column",
        file=SOFTMAX,
        old="largest == kNoScore ? 0 : largest * of_row",
        new="largest * of_row",
    ),
    Mutant(
        name="attention_divided_by_no_column",
        old="rows.columns[r] == 0 ? 0 : dropout.factor() / rows.sum[r]",
        new="dropout.factor() / rows.sum[r]",
    ),
    Mutant(
        name="attention_lse_of_scores",
        file=SOFTMAX,
        old="rows.largest[r] * factor_of_scores<kKind>(args) + log",
        new="rows.largest[r] + log",
    ),
    Mutant(
        name="attention_lse_behind_the_last_row",
        old="lane % 4 == 0 && of < args.q_rows",
        new="lane % 4 == 0",
        expect=r"race on global memory lse\+.*: plain store",
    ),
    Mutant(
        name="attention_pairs_exchanged",
        file=SHARED,
        old="sums[2 * i], sums[2 * i + 1]",
        new="sums[2 * i + 1], sums[2 * i]",
    ),
    # ---- stores
    Mutant(
        name="attention_rows_not_swizzled", file=SHARED, old="(j * 2 + lane / 16) ^ (lane % 8)", new="j * 2 + lane / 16"
    ),
    Mutant(
        name="attention_factor_of_the_other_row",
        file=SHARED,
        old="of[0] * factors[k / 2 % 2]",
        new="of[0] * factors[0]",
    ),
    Mutant(
        name="attention_rows_of_another_warp",
        old="warp_row = at.row + thread / 32 * 16,",
        new="warp_row = at.row,",
        expect=r"race on global memory o\+.*: TMA store",
    ),
    Mutant(
        name="attention_proxy_fence_missing",
        file=SHARED,
        old="  fence_proxy_async_shared_cta();\n  sync_warp();\n",
        new="  sync_warp();\n",
        expect=race("TMA store", F, "stmatrix", F, "is ordered after") + ", but no fence.proxy.async lies between them",
    ),
    Mutant(
        name="attention_stored_before_the_warp",
        file=SHARED,
        old="  fence_proxy_async_shared_cta();\n  sync_warp();\n",
        new="  fence_proxy_async_shared_cta();\n",
        expect=race("TMA store", F, "stmatrix", F),
    ),
    Mutant(
        name="attention_exits_while_it_stores",
        old=WRITTEN,
        new="",
        expect=STILL_READ.format("sm90_attention.cuh"),
    ),
    # ---- what rounding took
    Rest(
        name="attention_rest_of_the_other_row",
        file=SHARED,
        old="sums[i + 1] * factors[i / 2 % 2];\n    uint32_t",
        new="sums[i + 1] * factors[0];\n    uint32_t",
        options=("diagonal=30", "rest=1", "level=1"),
    ),
    Rest(
        name="attention_rest_of_neighbours",
        file=SHARED,
        old="value_of_low_half<T>(rounded >> 16)",
        new="value_of_low_half<T>(rounded)",
    ),
    Rest(
        name="attention_rest_divided_again", old="store(&params.o_rest, {1, 1});", new="store(&params.o_rest, inverse);"
    ),
    Rest(name="attention_rest_of_what_is_not_rounded", old="    to_rest<Element, kHead>(sums, inverse);\n", new=""),
    Rest(
        name="attention_rest_where_rows_are_read",
        old="    sync_warp();  // its rows have been read, and the rest goes there\n",
        new="",
        expect=race("stmatrix", F, "TMA store", F),
    ),
    # ---- rings
    Mutant(
        name="attention_q_not_waited_for",
        old="      mbarrier_wait(&smem.full_q, 0);\n",
        new="",
        expect=read_before_it_came(F),
    ),
    Mutant(
        name="attention_scores_in_flight",
        old=WAIT_SCORES,
        new=WAIT_SCORES.replace("? 1", "? 2"),
        expect="accumulators of .* were written while a wgmma was in flight",
    ),
    Mutant(
        name="attention_values_never_released",
        old="      Weighted::release(smem.pipeline_v, read_v, lane);\n",
        new="",
        expect=deadlock("", F),
        sizes=(90, 300, 40),
        options=(),
    ),
    Mutant(
        name="attention_values_released_too_early",
        old="      if constexpr (Weighted::kIsStarted) {\n        warpgroup_wait_group<0>();\n",
        new="      if constexpr (Weighted::kIsStarted) {\n",
        expect=r"ends while its wgmma at .* is in flight: no warpgroup_wait_group waited for it",
    ),
    Mutant(name="attention_loads_what_is_not_there_yet", old=AHEAD, new="", expect=too_early("TMA load", F)),
    # ---- gradients
    Grad(
        name="attention_grad_diagonal_of_columns",
        file=BOTH,
        old="? column - args.diagonal : -8",
        new="? column - args.diagonal + 1 : -8",
    ),
    Grad(name="attention_grad_first_step_left_out", file=BOTH, old="row / kStep : end)", new="row / kStep + 1 : end)"),
    Grad(name="attention_grad_edge_of_the_first_column", old="if (first_row > -8)", new="if (first_row > 0)"),
    Grad(
        name="attention_grad_rows_of_the_first_column", file=BOTH, old="< first_row + i / 2 % 2 * 8", new="< first_row"
    ),
    Grad(
        name="attention_grad_last_column_counts",
        file=BOTH,
        old=">= columns[i / 2 % 2]) sums",
        new="> columns[i / 2 % 2]) sums",
    ),
    Grad(
        name="attention_grad_edge_of_one_row",
        old="(columns[0] < columns[1] ? columns[0] : columns[1])",
        new="columns[1]",
    ),
    Grad(name="attention_grad_lse_of_delta", old="of_weights[i] - of_step[1][", new="of_weights[i] - of_step[0]["),
    Grad(
        name="attention_grad_delta_of_the_first_row",
        old="of_weights[i] - delta[i / 2 % 2]",
        new="of_weights[i] - delta[0]",
    ),
    Grad(
        name="attention_grad_rows_of_the_step_before",
        old="fetched = fetch(step + 1);",
        new="fetched = fetch(step);",
    ),
    Grad(
        name="attention_grad_lse_behind_the_last_row",
        file=BOTH,
        old="row < args.q_rows ? args.lse[matrix * args.q_rows + row] : kNoScore",
        new="args.lse[matrix * args.q_rows + row]",
        expect="out of bounds: plain load of 4 bytes .*: the nearest array is lse ",
    ),
    Grad(name="attention_grad_weights_behind_the_last_row", file=BOTH, old="lse == kNoScore ? -kNoScore :", new=""),
    Grad(name="attention_grad_keys_not_scaled", old="tOrdK, args.scale", new="tOrdK, 1"),
    Grad(name="attention_grad_first_head_of_a_group", old="++head, ++matrix)", new="++head)"),
    Grad(
        name="attention_grad_one_head_of_a_group",
        file=BOTH,
        old="head < (at.head + 1) * int(args.group); ++head",
        new="head < at.head * int(args.group) + 1; ++head",
        expect=deadlock("", G),
    ),
    Grad(
        name="attention_grad_queries_of_values",
        old=OF_K,
        new=OF_K.replace("[0]", "[1]"),
    ),
    Grad(
        name="attention_grad_stage_released_in_use",
        old="release(smem.pipeline, last, lane);",
        new="release(smem.pipeline, read, lane);",
        expect=deadlock("", G),
    ),
    Grad(
        name="attention_grad_rows_not_waited_for",
        old="        named_barrier_sync(1 + consumer, 128);\n",
        new="",
        expect=race("plain load", G, "plain store", G),
    ),
    Grad(
        name="attention_grad_values_over_keys",
        old="smem.owned[1], tOrdV",
        new="smem.owned[0], tOrdV",
        expect=race("stmatrix", BOTH, "TMA store", BOTH),
    ),
    Grad(
        name="attention_grad_owned_not_waited_for",
        old="    if (steps > 0) mbarrier_wait(&smem.full_owned, 0);\n",
        new="",
        expect=read_before_it_came(BOTH),
    ),
    # ---- masks by words
    *(
        Mutant(name=f"attention_mask_{name}", file=MASK, old=old, new=new, sizes=(90, 208, 40), options=MASKED)
        for name, old, new in (
            ("words_of_the_first_row", "(first + 8 * mask.row_stride);", "(first);"),
            ("words_of_another_lane", "lane % 4 * 16", "lane % 4 * 8"),
            ("words_of_each_second_four", "of_word(of.w) << 12", "of_word(of.z) << 12"),
            ("words_high_bits_alone", "(word | ((word & 0x7f7f7f7f) + 0x7f7f7f7f))", "word"),
            ("words_halves_exchanged", "{is_second ? other : half,", "{is_second ? half : other,"),
            ("words_of_two_rows_exchanged", "(16 * i + 2 * r)", "(16 * i + 2 - 2 * r)"),
            ("words_of_neighbours_pairs", "lane % 4 * 2 & 0x03030303", "lane % 4 & 0x03030303"),
            ("words_of_this_tile_again", "start(column + kSteps * 64)", "start(column)"),
        )
    ),
    Mutant(
        name="attention_mask_words_behind_the_last_row",
        file=MASK,
        old="row + 8 < args.q_rows && own < args.kv_rows",
        new="own < args.kv_rows",
        sizes=(90, 208, 40),
        options=("heads=2", "mask=hqk"),
        expect=OUTSIDE,
    ),
    Mutant(
        name="attention_mask_words_that_end_behind_the_last_column",
        file=MASK,
        old=" | mask.row_stride | args.kv_rows",
        new=" | mask.row_stride",
        options=("mask=k",),
        expect=OUTSIDE,
    ),
    Masked(
        name="attention_grad_mask_of_one_byte_above_the_diagonal",
        file=MASK,
        old="counts ? only[r] : 0",
        new="only[r]",
        options=("batch=6", "diagonal=0", "mask=bk", "infinite=1"),
        sizes=(70, 72, 40),
    ),
    # ---- masks of gradients
    Masked(
        name="attention_grad_mask_of_the_first_row",
        file=MASK,
        old="{first, first + 8 * mask.row_stride}",
        new="{first, first}",
    ),
    Masked(
        name="attention_grad_mask_of_the_first_column",
        file=MASK,
        old="first + 8 * mask.column_stride",
        new="first",
    ),
    Masked(
        name="attention_grad_mask_of_the_first_step",
        old="(args, args.mask, at, row, columns, step * kStep, lane)",
        new="(args, args.mask, at, row, columns, 0, lane)",
    ),
    Masked(
        name="attention_grad_mask_of_a_head_of_keys",
        old="args, args.mask, at.batch, at.head * int(args.group) + head, column",
        new="args, args.mask, at.batch, at.head, column",
    ),
    Masked(
        name="attention_grad_mask_of_the_first_sequence",
        file=MASK,
        old="batch * mask.batch_stride",
        new="batch * 0",
        count=3,
    ),
    Masked(
        name="attention_grad_mask_of_a_single_step",
        file=MASK,
        old="kept |= bits << i;",
        new="kept |= bits;",
    ),
    Masked(
        name="attention_grad_mask_of_each_pairs_first",
        file=MASK,
        old="behind = j / 4 * 8 + j % 2",
        new="behind = j / 4 * 8",
    ),
    Masked(
        name="attention_grad_mask_of_another_lane",
        file=MASK,
        old="first = i * 2 + lane % 4 * 2",
        new="first = i * 2 + lane % 4",
    ),
    Masked(
        name="attention_grad_mask_above_the_diagonal",
        file=MASK,
        old="(begin[r] <= first + behind) & (first + behind < end[r])",
        new="first + behind < end[r]",
        options=INFINITE,
    ),
    Masked(
        name="attention_grad_mask_behind_the_last_row",
        file=MASK,
        old="row < args.q_rows ? columns[0] - column : 0",
        new="columns[0] - column",
        expect=OUTSIDE,
    ),
    Masked(
        name="attention_grad_mask_behind_the_last_column",
        file=MASK,
        old="column + 8 < args.kv_rows ? rows : 0",
        new="rows",
        expect=OUTSIDE,
    ),
    Masked(
        name="attention_grad_through_masked_scores_of_rows",
        old="\n    " + CLEARED,
        new="\n",
    ),
    Masked(
        name="attention_grad_through_masked_scores_of_columns",
        old="      " + CLEARED,
        new="",
    ),
    Masked(
        name="attention_grad_of_masked_rows_left_out",
        old=": third;",
        new=": 0;",
    ),
    Masked(
        name="attention_grad_of_masked_rows_not_divided",
        file=BOTH,
        old="1 / float(columns)",
        new="1",
    ),
    Masked(
        name="attention_grad_of_masked_rows_is_a_number",
        file=BOTH,
        old='lse < -kNoScore ? 0 : __builtin_nanf("")',
        new="0",
        options=INFINITE,
    ),
    Masked(
        name="attention_grad_of_rows_behind_the_last",
        file=BOTH,
        old="row < args.q_rows ? columns_of(args, row) : 0",
        new="columns_of(args, row)",
        options=INFINITE,
    ),
    Masked(
        name="attention_grad_masked_weight_of_delta",
        old="if (kIsMasked && thread % 128 < kStep)",
        new="if (kIsMasked)",
        expect=race("plain store", G, "plain store", G),
    ),
    Grad(
        name="attention_grad_loads_what_is_not_there_yet",
        file=BOTH,
        old=AHEAD.lstrip(),
        new="",
        expect=too_early("TMA load", BOTH),
    ),
    # ---- keys shared among a cluster's CTAs
    Split(name="attention_split_first_part_twice", old="begin = tiles * rank / kSplit", new="begin = 0"),
    Split(
        name="attention_split_last_part_short",
        old="end = tiles * (rank + 1) / kSplit",
        new="end = tiles * (rank + 1) / kSplit - (rank == 3)",
    ),
    Split(
        name="attention_split_sums_not_rescaled",
        file=PARTS,
        old="theirs[i * 128] * of_rank[i / 2 % 2]",
        new="theirs[i * 128]",
        options=SHARP,
    ),
    Split(
        name="attention_split_own_sums_not_rescaled",
        file=PARTS,
        old="sums[i] *= own[i / 2 % 2];",
        new=";",
        options=SHARP,
    ),
    Split(
        name="attention_split_weights_of_rank_0",
        file=PARTS,
        old="rows.sum[r] += their_rows[(2 + r) * 128] * of_rank[r];",
        new=";",
    ),
    Split(
        name="attention_split_one_rank_missing",
        file=PARTS,
        old="    for (int s = 1; s < kSplit; ++s) {\n      float const* const theirs",
        new="    for (int s = 2; s < kSplit; ++s) {\n      float const* const theirs",
    ),
    Split(
        name="attention_split_of_neighbours",
        old="int(block_idx().x) / kSplit, heads",
        new="int(block_idx().x) % params.tiles, heads",
        expect="race on global memory lse",
    ),
    Split(
        name="attention_split_exits_while_it_is_read",
        old="    if constexpr (kSplit > 1) cluster_wait();  // rank 0 has read\n",
        new="",
        expect="exit",
    ),
    Split(
        name="attention_split_read_before_it_is_there",
        file=PARTS,
        old="  cluster_sync();  // all ranks' sums are there\n",
        new="  cluster_arrive_relaxed();\n  cluster_wait();\n",
        expect="race on",
    ),
    # ---- gradients, dS in two parts
    Parts(
        name="attention_grad_no_second_part_of_dq",
        old="        if (args.ds_parts == 2) {\n          to_second",
        new="        if (args.ds_parts == 3) {\n          to_second",
    ),
    Parts(
        name="attention_grad_no_second_part_of_dk",
        old="          if (args.ds_parts == 2) {\n            warpgroup",
        new="          if (args.ds_parts == 3) {\n            warpgroup",
    ),
    Parts(
        name="attention_grad_second_parts_of_neighbours", file=SHARED, old="fragments[i] >> 16)", new="fragments[i])"
    ),
    Parts(
        name="attention_grad_second_part_in_registers_of_weights",
        old="            warpgroup_wait_group<1>();  // dV: the second part takes the registers of P\n",
        new="",
        expect="its registers of A were written before warpgroup_wait_group",
    ),
]
