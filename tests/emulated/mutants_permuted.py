"""Bugs planted in sm90_permuted: copies that are read too early, rows of others, and rows stored where they are not."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import race

ROW = "{sm90_permuted, bf16, f32, {64, 128, 64}, 3, {1, 1}, 16}"
K, STAGING, GATE, TURNS = "sm90_permuted.cuh", "epilogue_staging.h", "epilogue_gate.h", "turns.h"
GROUPS = "sizes=70,0,1,64,33,-5,60"

# 12 tiles of rows, of which groups end in most, and two of columns; rows of a in which indices repeat, some outside.
M = functools.partial(
    AnyMutant, row=ROW, file=K, expect="wrong", sizes=(270, 136, 200), options=(GROUPS, "a_rows=90", "d_rows=1")
)
STORED = functools.partial(M, file=STAGING)
FUSED = functools.partial(STORED, options=("sizes=70,0,1,64,33,102", "out=bf16", "epilogue=1", "d_rows=1"))
PAIR = functools.partial(M, file=GATE, options=(GROUPS, "out=bf16", "pair=2", "a_rows=90", "d_rows=1"))

OUTSIDE = r"out of bounds: {} of \d+ bytes .* at sm90_permuted\.cuh:\d+: the nearest array is {} "

STORED_TWICE = r"race on global memory d\+0x[0-9a-f]+: plain store .* is not ordered after plain store"

MUTANTS = [
    # ---- stages
    M(
        name="permuted_no_proxy_fence",
        old="    fence_proxy_async_shared_cta();  // cp.async",
        new="    // cp.async",
        expect=r"wgmma .* is ordered after cp\.async .*, but no fence\.proxy\.async lies between them",
    ),
    M(
        name="permuted_copies_not_waited_for",
        old="        cp_async_wait_group<kLag>();\n",
        new="",
        expect=race("wgmma", TURNS, "cp.async", K),
    ),
    M(
        name="permuted_newest_copies_not_waited_for",
        old="        cp_async_wait_group<kLag>();\n",
        new="        cp_async_wait_group<kLag + 1>();\n",
        expect=race("wgmma", TURNS, "cp.async", K),
    ),
    M(
        name="permuted_last_copies_not_waited_for",
        old="    cp_async_wait_group<0>();\n",
        new="",
        expect=race("wgmma", TURNS, "cp.async", K),
    ),
    M(
        name="permuted_announced_a_stage_early",
        old="        if (begun < kLag) {",
        new="        if (begun < kLag - 1) {",
        expect=race("wgmma", TURNS, "cp.async", K),
    ),
    M(
        name="permuted_announced_by_a_lane_that_did_not_meet_the_others",
        old="    sync_warp();\n    if (lane == 0) mbarrier_arrive(&smem.pipeline.full[stage]);",
        new="    if (lane == 0) mbarrier_arrive(&smem.pipeline.full[stage]);",
        expect=race("wgmma", TURNS, "cp.async", K),
    ),
    M(
        name="permuted_a_warp_is_not_counted",
        old="/*arrivals=*/1 + kProducerWarps",
        new="/*arrivals=*/kProducerWarps",
        expect=r"(race on shared memory smem\+0x[0-9a-f]+: wgmma|arriv)",
    ),
    M(
        name="permuted_stages_filled_while_they_are_read",
        old="        mbarrier_wait(&smem.pipeline.empty[write.index()], write.phase());\n",
        new="",
        expect=r"race on shared memory smem\+0x[0-9a-f]+: (cp\.async|TMA load)|arriv",
    ),
    # ---- rows that are read
    M(name="permuted_row_behind", old="+ warp * kRowsOfWarp + lane;", new="+ warp * kRowsOfWarp + lane + 1;"),
    M(name="permuted_rows_of_the_first_warp", old="+ warp * kRowsOfWarp + lane;", new="+ lane;"),
    M(name="permuted_rows_of_the_first_group", old="int const row = tile.begin + tile.m", new="int const row = tile.m"),
    M(
        name="permuted_index_behind_the_last_row",
        old="|| row >= end_of_group(tile) ||",
        new="||",
        options=("sizes=70,0,1,64,33,102", "a_rows=90"),
        expect=OUTSIDE.format("plain load", "a_rows"),
    ),
    M(
        name="permuted_index_behind_a",
        old="return at < 0 ? 0 : at < last ? at : last;",
        new="return at < 0 ? 0 : at;",
        expect=r"out of bounds: cp\.async \(read\) of 16 bytes .* at sm90_permuted\.cuh:\d+: ",
    ),
    M(
        name="permuted_index_before_a",
        old="return at < 0 ? 0 : at < last ? at : last;",
        new="return at < last ? at : last;",
    ),
    M(name="permuted_row_of_another_lane", old="row_of_a, swizzle + i + first);", new="row_of_a, swizzle + i);"),
    M(name="permuted_not_swizzled", old="(piece ^ (i + first)) * 16", new="piece * 16"),
    M(name="permuted_swizzled_by_half", old="(piece ^ (i + first)) * 16", new="(piece ^ first) * 16"),
    M(
        name="permuted_no_zeros_behind_k",
        old="int const bytes = k < int(args.k) ? 16 : 0;",
        new="int const bytes = 16;",
        options=(GROUPS, "a_rows=90", "pad=24"),
        expect=OUTSIDE.format(r"cp\.async \(read\)", "a"),
    ),
    M(
        name="permuted_k_tile_again",
        old="k = k_tile * kBlkK + piece * kPiece;",
        new="k = piece * kPiece;",
    ),
    M(name="permuted_first_rows_of_a", old="from + at * args.a_m_stride", new="from + (at / 2) * args.a_m_stride"),
    M(
        name="permuted_row_of_the_next_tile",
        old="      GroupedTile const tile = next_tile;\n      int const row_of_a = next_row;\n      ++next;",
        new="      GroupedTile const tile = next_tile;\n      int const& row_of_a = next_row;\n      ++next;",
    ),
    # ---- rows that are stored
    STORED(name="permuted_stored_where_it_was_read", old="? warp.place.rows[from] : -1;", new="? from : -1;"),
    STORED(
        name="permuted_rows_of_the_next_group_stored",
        old="int const to = from < warp.place.end ? warp.place.rows[from] : -1;",
        new="int const to = warp.place.rows[from];",
        expect=r"race on global memory d\+0x[0-9a-f]+: plain store",
    ),
    STORED(
        name="permuted_stored_outside",
        old="if (!is_stored || unsigned(to_row) >= unsigned(args.m)) continue;",
        new="if (!is_stored) continue;",
        options=(GROUPS, "a_rows=90", "d_rows=2"),
        expect=OUTSIDE.format("plain store", "d"),
    ),
    STORED(
        name="permuted_columns_of_the_next_row",
        old="bool const is_stored = at < int(args.n);",
        new="bool const is_stored = true;",
        expect=r"race on global memory d\+0x[0-9a-f]+: plain store|" + OUTSIDE.format("plain store", "d"),
    ),
    STORED(
        name="permuted_box_read_without_its_swizzle",
        old="(piece ^ row % 8) * 16);\n    auto* const row_of_z",
        new="piece * 16);\n    auto* const row_of_z",
    ),
    STORED(
        name="permuted_rows_of_the_first_lanes",
        old="shfl_sync(kFullWarp, to, row);",
        new="shfl_sync(kFullWarp, to, i);",
        expect=STORED_TWICE,
    ),
    FUSED(
        name="permuted_preactivation_stored_as_d",
        old="scatter<int(sizeof(Out))>(warp, i == 0 ? warp.args.d : warp.args.epilogue.preactivation,",
        new="scatter<int(sizeof(Out))>(warp, warp.args.d,",
    ),
    PAIR(
        name="permuted_products_exchanged",
        old="output == 0 ? epilogue.preactivation",
        new="output == 0 ? epilogue.second_product",
    ),
]
