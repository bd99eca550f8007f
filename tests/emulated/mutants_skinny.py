"""Bugs planted in sm90_skinny: lanes, warps or parts of k left out, sums read before they are there or after."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import too_early

ROW = "{sm90_skinny, bf16, f32, {2, 64, 128}, 3, {1, 1}, 16}"
K = "sm90_skinny.cuh"

# Four tiles, the last of one row and two columns, and nine k-tiles, the last of 40: two CTAs share them.
Mutant = functools.partial(AnyMutant, row=ROW, file=K, sizes=(3, 66, 1064))

RACE = (
    r"race on shared memory smem\+0x[0-9a-f]+( of block \(\d+,0,0\))?: plain (load|store) .* at sm90_skinny\.cuh:\d+.* "
    r"is not ordered after .*plain (load|store) .*"
)

MUTANTS = [
    # ---- what is loaded
    Mutant(
        name="skinny_loads_what_is_not_there_yet",
        old="    griddepcontrol_wait();",
        new="    ",
        expect=too_early("cp.async", r"\S+"),
    ),
    Mutant(
        name="skinny_whole_columns_beside_the_last",
        old="    if (columns >= kBlkN && ks >= kBlkK) {",
        new="    if (ks >= kBlkK) {",
        expect="out of bounds: cp.async",
        sizes=(3, 66, 1024),
    ),
    Mutant(
        name="skinny_the_last_k_tile_is_whole",
        old="    if (columns >= kBlkN && ks >= kBlkK) {",
        new="    if (columns >= kBlkN) {",
        expect="out of bounds: cp.async",
        sizes=(2, 64, 1064),
    ),
    Mutant(
        name="skinny_rows_of_whole_k_tiles",
        old="    if (ks >= kBlkK) {",
        new="    if (true) {",
        expect="out of bounds: plain load",
        sizes=(2, 64, 1064),
    ),
    Mutant(
        name="skinny_rows_below_the_last",
        old="return i < rows ? i : rows - 1;",
        new="return i;",
        expect="out of bounds: plain load",
        sizes=(3, 64, 1024),
    ),
    # ---- the ring of a thread
    Mutant(
        name="skinny_reads_copies_on_their_way",
        old="cp_async_wait_group<kAhead>();",
        new="cp_async_wait_group<kAhead + 1>();",
        expect=r"race on shared memory smem\+0x[0-9a-f]+",
    ),
    Mutant(
        name="skinny_fills_the_stage_that_is_read",
        old="PipelineState<kStages> read, write(kAhead, 0);",
        new="PipelineState<kStages> read, write(0, 0);",
        expect=r"race on shared memory smem\+0x[0-9a-f]+",
    ),
    Mutant(
        name="skinny_rows_of_the_next_k_tile",
        old="gemm(tiled_mma, as_floats(rows),",
        new="gemm(tiled_mma, as_floats(next_rows),",
        expect="wrong",
    ),
    # ---- sums of k
    Mutant(
        name="skinny_remainder_for_nobody",
        old="grid.k * (rank + 1) / parts",
        new="grid.k / parts * (rank + 1)",
        expect="wrong",
    ),
    Mutant(
        name="skinny_half_of_the_lanes",
        old="lanes < Threads::kLaneStep * Threads::kLanesK",
        new="lanes < Threads::kLaneStep * Threads::kLanesK / 2",
        expect="wrong",
    ),
    Mutant(name="skinny_the_first_warp_alone", old="i < kSummands; ++i", new="i < 1; ++i", expect="wrong", order="NN"),
    Mutant(
        name="skinny_all_warps_in_one_place", old="Threads::kAlongN ? thread / 32 : 0", new="0", expect=RACE, order="NN"
    ),
    Mutant(
        name="skinny_sums_that_are_not_there_yet",
        old="    sync_threads();\n    add_and_store",
        new="    add_and_store",
        expect=RACE,
    ),
    # ---- ranks
    Mutant(
        name="skinny_a_rank_left_out",
        old="          if (r < parts) add(",
        new="          if (r + 1 < parts) add(",
        expect="wrong",
    ),
    Mutant(
        name="skinny_its_own_sums_alone",
        old="uint32_t(r)));\n",
        new="uint32_t(rank)));\n",
        expect="wrong",
    ),
    Mutant(
        name="skinny_ranks_do_not_wait_for_sums",
        old="      cluster_sync();  // all ranks' sums are there\n",
        new="      sync_threads();\n",
        expect=RACE,
    ),
    Mutant(
        name="skinny_a_rank_leaves_before_its_sums_are_read",
        old="      cluster_sync();  // and have been read\n",
        new="",
        expect=r"block \(\d+,0,0\)",
    ),
    Mutant(
        name="skinny_every_rank_stores_the_first_share",
        old="vector = rank * share + thread;",
        new="vector = thread;",
        expect=r"race on global memory d\+0x[0-9a-f]+",
    ),
]
