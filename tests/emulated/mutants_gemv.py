"""Bugs planted in sm90_gemv: lanes, warps or parts of k left out, sums read before they are there or after."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import too_early

ROW = "{sm90_gemv, bf16, f32, {2, 64, 128}, 1, {1, 1}, 16}"
K = "sm90_gemv.cuh"

# Four tiles, the last of one row and two columns, and nine k-tiles, the last of 40: four CTAs share them.
Mutant = functools.partial(AnyMutant, row=ROW, file=K, sizes=(3, 66, 1064))

RACE = (
    r"race on shared memory smem\+0x[0-9a-f]+( of block \(\d+,0,0\))?: plain (load|store) .* at sm90_gemv\.cuh:\d+.* "
    r"is not ordered after .*plain (load|store) .*"
)

MUTANTS = [
    # ---- what is loaded
    Mutant(
        name="gemv_loads_what_is_not_there_yet",
        old="    griddepcontrol_wait();",
        new="    ",
        expect=too_early("plain load", r"\S+"),
    ),
    Mutant(
        name="gemv_whole_k_tiles_beside_the_last_column",
        old="int const whole_k_tiles = n_left < kBlkN ? 0 : int(args.k) / kBlkK;",
        new="int const whole_k_tiles = int(args.k) / kBlkK;",
        expect="out of bounds: plain load",
        sizes=(3, 66, 1024),
    ),
    Mutant(
        name="gemv_the_last_k_tile_is_whole",
        old=": int(args.k) / kBlkK;",
        new=": (int(args.k) + kBlkK - 1) / kBlkK;",
        expect="out of bounds: plain load",
        sizes=(2, 64, 1064),
    ),
    Mutant(
        name="gemv_rows_below_the_last",
        old="kIsB || row < rows ? row : rows - 1",
        new="row",
        expect="out of bounds: plain load",
        sizes=(3, 64, 1024),
    ),
    # ---- sums of k
    Mutant(
        name="gemv_remainder_for_nobody",
        old="grid.k * (rank + 1) / parts",
        new="grid.k / parts * (rank + 1)",
        expect="wrong",
    ),
    Mutant(
        name="gemv_half_of_the_lanes",
        old="lanes < Threads::kLaneStep * Threads::kLanesK",
        new="lanes < Threads::kLaneStep * Threads::kLanesK / 2",
        expect="wrong",
    ),
    Mutant(name="gemv_the_first_warp_alone", old="i < kSummands; ++i", new="i < 1; ++i", expect="wrong", order="NN"),
    Mutant(
        name="gemv_all_warps_in_one_place", old="Threads::kAlongN ? thread / 32 : 0", new="0", expect=RACE, order="NN"
    ),
    Mutant(
        name="gemv_sums_that_are_not_there_yet",
        old="    sync_threads();\n    add_and_store",
        new="    add_and_store",
        expect=RACE,
    ),
    # ---- ranks
    Mutant(
        name="gemv_a_rank_left_out",
        old="          if (r < parts) add(",
        new="          if (r + 1 < parts) add(",
        expect="wrong",
    ),
    Mutant(
        name="gemv_its_own_sums_alone",
        old="uint32_t(r)));\n",
        new="uint32_t(rank)));\n",
        expect="wrong",
    ),
    Mutant(
        name="gemv_ranks_do_not_wait_for_sums",
        old="      cluster_sync();  // all ranks' sums are there\n",
        new="      sync_threads();\n",
        expect=RACE,
    ),
    Mutant(
        name="gemv_a_rank_leaves_before_its_sums_are_read",
        old="      cluster_sync();  // and have been read\n",
        new="",
        expect=r"block \(\d+,0,0\)",
    ),
    Mutant(
        name="gemv_every_rank_stores_the_first_share",
        old="first = rank * share;",
        new="first = 0;",
        expect=r"race on global memory d\+0x[0-9a-f]+",
    ),
]
