"""Bugs planted where TMA brings c or a residual to the boxes meanwhile (cuda/gemm/epilogue_ahead.h)."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import ONE_CTA, STAGING, E, P, deadlock, race

PINGPONG = "{sm90_pingpong, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}"  # two atoms of two boxes
COOPERATIVE = "{sm90_cooperative, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}"
TWO_BOXES_OF_FOUR = "{sm90_cooperative, bf16, f32, {128, 256, 64}, 4, {1, 1}, 16}"  # nothing is read ahead
CLUSTER = "{sm90_pingpong, bf16, f32, {64, 64, 64}, 3, {2, 1}, 16}"

A, C, BOX = "epilogue_ahead.h", "sm90_cooperative.cuh", "epilogue_box.h"
RESIDUAL, C_IN_PLACE = ("out=bf16", "epilogue=4"), ("out=bf16", "epilogue=5")
DERIVATIVE_AT_D = ("out=bf16", "epilogue=6")
WAIT = "    if constexpr (kIsAhead) mbarrier_wait(warp.landed, /*parity=*/0);\n"
IN_D = "    if (row >= warp.place.end || column >= int(warp.args.n)) continue;\n"

FENCED = "  sync_warp();\n  if constexpr (Warp::kScatters) {\n    if (warp.place.rows"

# A consumer has several tiles, whose last rows and columns are not there.
Mutant = functools.partial(
    AnyMutant, row=PINGPONG, file=A, expect="wrong", sizes=(300, 200, 290), options=RESIDUAL + ONE_CTA
)

MUTANTS = [
    Mutant(
        name="ahead_read_before_it_has_landed",
        file=E,
        old=WAIT,
        new="",
        expect=race("ldmatrix", P, "TMA load", P),
    ),
    Mutant(
        name="ahead_waits_for_the_other_phase",
        file=E,
        old=WAIT,
        new=WAIT.replace("0);", "1);"),
        expect=race("ldmatrix", P, "TMA load", P),
    ),
    Mutant(
        name="ahead_phase_of_a_tile_is_not_ended",
        file=E,
        old="    if (kIsAhead && warp.lane == 0) mbarrier_arrive(warp.landed);  // no lane",
        new="    // no lane",
        expect=race("ldmatrix", P, "TMA load", P),
    ),
    Mutant(
        name="ahead_phase_is_ended_by_every_lane",
        file=E,
        old="    if (kIsAhead && warp.lane == 0) mbarrier_arrive(warp.landed);  // no lane",
        new="    if (kIsAhead) mbarrier_arrive(warp.landed);  // no lane",
        expect="has its 1 arrivals already",
    ),
    Mutant(
        name="ahead_loaded_over_what_is_stored",
        old="  tma_store_wait_group_read<0>();  // the tile before has left the boxes\n",
        new="",
        expect=race("TMA load", P, "TMA store", P),
    ),
    Mutant(
        name="ahead_waits_for_all_stores_but_the_last",
        old="  tma_store_wait_group_read<0>();  // the tile before has left the boxes\n",
        new="  tma_store_wait_group_read<1>();\n",
        expect=race("(TMA load|stmatrix)", P, "TMA store", P),
    ),
    Mutant(
        name="ahead_stored_without_a_fence",
        file=STAGING,
        old=f"  fence_proxy_async_shared_cta();\n{FENCED}",
        new=FENCED,
        expect=race("TMA store", P, "stmatrix", P, "is ordered after") + ", but no fence.proxy.async",
    ),
    Mutant(
        name="ahead_expects_half_of_a_box",
        old="mbarrier_expect_tx(landed, sizeof(warp.boxes[0]));",
        new="mbarrier_expect_tx(landed, sizeof(warp.boxes[0]) / 2);",
        expect="fewer bytes were expected than are loaded",
    ),
    Mutant(
        name="ahead_expects_two_boxes_for_one",
        old="mbarrier_expect_tx(landed, sizeof(warp.boxes[0]));",
        new="mbarrier_expect_tx(landed, sizeof(warp.boxes[0]) * 2);",
        expect=deadlock("parity 1", P),
    ),
    Mutant(
        name="ahead_expects_boxes_that_are_not_loaded",
        old=f"{IN_D}    mbarrier_expect_tx(landed, sizeof(warp.boxes[0]));\n",
        new=f"    mbarrier_expect_tx(landed, sizeof(warp.boxes[0]));\n{IN_D}",
        expect=deadlock("parity 0", P),
    ),
    Mutant(
        name="ahead_barriers_are_not_there",
        old="  for (uint64_t& of_warp : landed) mbarrier_init(&of_warp, 1);\n",
        new="  (void)landed;\n",
        expect="no mbarrier has been initialized",
    ),
    Mutant(
        name="ahead_one_barrier_for_all_warps",
        file=E,
        old=".landed = landed + warp};",
        new=".landed = landed};",
        expect="has its 1 arrivals already",
    ),
    Mutant(
        name="ahead_loaded_by_every_lane",
        file=E,
        old="      if (thread % 32 != 0) return;\n",
        new="",
        expect=race("TMA load", P, "TMA load", P),
    ),
    Mutant(
        name="ahead_boxes_beside_d_are_loaded",
        old=IN_D,
        new="",
        options=C_IN_PLACE,
        expect="race on global memory d.*nothing but zeros",
    ),
    Mutant(
        name="ahead_all_boxes_in_one_place",
        old="tma_load(map, landed, warp.boxes[i], column, row, map_coord",
        new="tma_load(map, landed, warp.boxes[0], column, row, map_coord",
        expect=race("TMA load", P, "TMA load", P),
    ),
    Mutant(
        name="ahead_read_from_the_next_box",
        file=E,
        old="operand.read(box, warp.lane);",
        new="operand.read(warp.boxes[(number + 1) % kBuffers], warp.lane);",
    ),
    Mutant(
        name="ahead_read_in_another_order",
        file=BOX,
        old="(j * 2 + lane / 16) ^ (row % 8);  // of 16 bytes: the 128-byte swizzle\n      SM75",
        new="(j * 2 + lane / 16);\n      SM75",
        expect=race("stmatrix", P, "ldmatrix", P),  # of another lane
    ),
    Mutant(
        name="ahead_rows_of_the_first_atom",
        file=E,
        old="[&](int box) { return row(box / kBoxesN); },",
        new="[&](int box) { return row(box * 0); },",
    ),
    Mutant(
        name="ahead_columns_of_the_first_box",
        file=E,
        old="return of_lane.column + first_column<kColumns>(box % kBoxesN);",
        new="return of_lane.column + first_column<kColumns>(box * 0);",
    ),
    Mutant(
        name="ahead_rows_of_the_first_warp",
        file=E,
        old="Place const place{tile.m * kTileM + warp * kRows, int(args.m)",
        new="Place const place{tile.m * kTileM, int(args.m)",
    ),
    Mutant(
        name="ahead_columns_of_the_first_consumer",
        row="{sm90_cooperative, bf16, f32, {64, 128, 64}, 2, {1, 1}, 16}",  # two, side by side
        file=C,
        old="(args, params.store, tile, row, consumer_n * kAtomN,",
        new="(args, params.store, tile, row, 0,",
    ),
    Mutant(
        name="ahead_matrix_is_the_first",
        old="map_coord<3>(matrix, strides).c2);",
        new="map_coord<3>(matrix, strides).c2 * 0);",
        options=(*RESIDUAL, "batch=3"),
    ),
    Mutant(
        name="ahead_modes_of_a_batch_exchanged",
        old="column, row, c2, c3, c4);",
        new="column, row, c3, c2, c4);",
        options=(*RESIDUAL, "batch=12", "outer=2", "middle=3"),
        sizes=(100, 72, 64),
    ),
    Mutant(
        name="ahead_started_with_every_stage",
        row=COOPERATIVE,
        file=C,
        old="      if (k_tile == 0) load_ahead();\n      // The wgmma",
        new="      if (k_tile >= 0) load_ahead();\n      // The wgmma",
        expect=race("TMA load", C, "TMA load", C),
    ),
    Mutant(
        name="ahead_never_started",
        row=COOPERATIVE,
        file=C,
        old="      if (k_tile == 0) load_ahead();\n      // The wgmma",
        new="      if (k_tile < 0) load_ahead();\n      // The wgmma",
        expect=deadlock("parity 0", C),
    ),
    Mutant(
        name="ahead_without_a_main_loop",
        row=COOPERATIVE,
        old=" || args.k == 0) return false;",
        new=") return false;",
        sizes=(150, 72, 0),
        expect=deadlock("parity 0: 0 phases complete", C),
    ),
    Mutant(
        name="ahead_c_is_not_scaled",
        file=E,
        old="if (has_c) operand.template add_of<Out>(warp.params.scale, z);",
        new="if (has_c) operand.template add_of<Out>(1.0f, z);",
        options=C_IN_PLACE,
    ),
    Mutant(
        name="ahead_derivative_is_an_addition_of_c",
        file=E,
        old="if (warp.params.derives) return",
        new="if (warp.params.derives && warp.params.alpha == 0) return",
        options=DERIVATIVE_AT_D,
    ),
    Mutant(
        name="ahead_derivative_is_read_from_the_next_box",
        file=E,
        old="at.read(filled, warp.lane);",
        new="at.read(warp.boxes[(number + 1) % kBuffers], warp.lane);",
        options=DERIVATIVE_AT_D,
    ),
    Mutant(
        name="ahead_derivative_is_read_before_c_has_landed",
        file=E,
        old="    if constexpr (kIsAhead) {\n      mbarrier_wait(warp.landed, /*parity=*/0);\n    } else {",
        new="    if constexpr (kIsAhead) {\n    } else {",
        options=DERIVATIVE_AT_D,
        expect=race("ldmatrix", P, "TMA load", P),
    ),
    Mutant(
        name="ahead_phase_of_a_derivative_is_not_ended",
        file=E,
        old="    if (kIsAhead && warp.lane == 0) mbarrier_arrive(warp.landed);  // as in store_activated()",
        new="",
        options=DERIVATIVE_AT_D,
        expect=race("ldmatrix", P, "TMA load", P),
    ),
    Mutant(
        name="derivative_is_taken_at_the_other_half",
        file=E,
        old="at.half(half);",
        new="at.half(1 - half);",
        options=DERIVATIVE_AT_D,
    ),
    Mutant(
        name="derivative_of_the_sums_of_the_other_half",
        file=E,
        old="tCrC(first + half * (kSums / 2) + k, i, _0{})",
        new="tCrC(first + (1 - half) * (kSums / 2) + k, i, _0{})",
        options=DERIVATIVE_AT_D,
    ),
    Mutant(
        name="derivative_is_stored_in_the_other_half",
        file=E,
        old="result.fill(filled, half, warp.lane);",
        new="result.fill(filled, 1 - half, warp.lane);",
        options=DERIVATIVE_AT_D,
    ),
    Mutant(
        name="derivative_is_not_multiplied_with",
        file=BOX,
        old="times_derivative(decltype(known)::value, z[2 * i], even)",
        new="(void(even), z[2 * i])",
        options=DERIVATIVE_AT_D,
    ),
    Mutant(
        name="derivative_at_the_box_before",
        row=TWO_BOXES_OF_FOUR,
        file=E,
        old="next = load(number < kLast ? number + 1 : number);",
        new="next = load(number);",
        options=DERIVATIVE_AT_D,
    ),
    Mutant(
        name="derivative_is_written_over_what_is_stored",
        row=TWO_BOXES_OF_FOUR,
        file=E,
        old="wait_for_boxes(warp, number, /*outputs=*/1);",
        new="(void)0;",
        options=DERIVATIVE_AT_D,
        expect=race("stmatrix", C, "TMA store", C),
    ),
    Mutant(
        name="ahead_residual_is_added_before_the_activation",
        file=E,
        old="if (has_c) operand.template",
        new="if (true) operand.template",
    ),
    Mutant(
        name="ahead_bias_of_the_box_before",
        file=E,
        old="      if (!kIsAhead || warp.args.epilogue.bias.data != nullptr)\n",
        new="      if (!kIsAhead)\n",
    ),
    Mutant(
        name="ahead_in_clusters_read_before_it_has_landed",
        row=CLUSTER,
        file=E,
        old=WAIT,
        new="",
        options=C_IN_PLACE,
        expect=race("ldmatrix", P, "TMA load", P),
    ),
]
