"""Bugs planted in sm90_transposed.cuh: who turns a stage, what threads read of one, and rows of sums across D."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import BY, deadlock, race, refilled_in_use, too_early

ROW = "{sm90_transposed, tf32, f32, {64, 128, 32}, 9, {1, 1}, 16}"
T, ACROSS = "sm90_transposed.cuh", "epilogue_across.h"

# Cut tiles, four for two CTAs; each has more k-tiles than there are stages, an odd number of them, the last one cut.
Mutant = functools.partial(AnyMutant, row=ROW, file=T, sizes=(72, 136, 724), order="TN")
# Each tile has fewer. An odd number of rows.
Short = functools.partial(Mutant, sizes=(71, 136, 40))
Stored = functools.partial(Short, file=ACROSS)

BY_THREADS = ("epilogue=1",)
FINISHED = ("epilogue=3",)  # where the sums are
OF_D = ("epilogue=5",)
SCALED = ("scales=1",)
ROWS_PADDED = ("d_pad=1",)  # no words of two elements
TURNED = "      if constexpr (kTurns<kOrder>) mbarrier_wait(&smem.turned[stage.index()], stage.phase());\n"
LANDED = "      smem.pipeline.consumer_wait(read);\n      MOYE_NO_UNROLL\n"
PROXY_FENCE = "      fence_proxy_async_shared_cta();  // wgmma reads it\n"
ALL_LANES = "      sync_warp();\n      if (lane == 0)"
ARRIVAL = " mbarrier_arrive(&smem.turned[read.index()]);\n"
WAIT = "          warpgroup_wait_group<1>();\n"
RELEASE = "          if (k_tile + i > 0) smem.pipeline.consumer_release(last, lane);\n"
LOAD = "load_b(read, 1 - i);"
IN_FLIGHT = r"wgmma by .* at sm90_transposed\.cuh:\d+: its registers of A were written before warpgroup_wait_group"
OUTSIDE = r"out of bounds: plain store of \d+ bytes .* at (epilogue|epilogue_across)\.h:\d+"
BEHIND_WORDS = "Words::is_of_words(stored) && "
IN_THE_BOX = race("plain (load|store)", T, "plain (load|store)", T)
NO_FENCE = ", but no fence.proxy.async lies between them"

MUTANTS = [
    # ---- B, from a stage to registers
    Mutant(
        name="transposed_b_read_before_it_came",
        old="      smem.pipeline.consumer_wait(stage);\n",
        new="",
        expect=race("(plain load|TMA load)", T, "(TMA load|plain load)", T),
        order="NN",
    ),
    Mutant(
        name="transposed_lanes_still_read_b",
        old="      sync_warp();  // all lanes have read it\n",
        new="",
        expect=race("TMA load", T, "plain load", T),
    ),
    Mutant(name="transposed_registers_in_use", old=LOAD, new="load_b(read, i);", expect=IN_FLIGHT),
    Mutant(
        name="transposed_half_of_k_twice",
        old="+ first[half] + step * 8 * kBoxRows",
        new="+ first[0] + step * 8 * kBoxRows",
        expect="wrong",
    ),
    Mutant(
        name="transposed_steps_of_half_a_wgmma",
        old="step * 8 * kBoxRows",
        new="step * 4 * kBoxRows",
        expect="wrong",
    ),
    Mutant(
        name="transposed_neighbours_swapped",
        old="= pair.elements[i];",
        new="= pair.elements[1 - i];",
        expect="wrong",
    ),
    Mutant(
        name="transposed_columns_8_apart_in_a_lane",
        old="Stride<_16, _2, _4, _1, _8, _32, _64>",
        new="Stride<_16, _2, _4, _8, _1, _32, _64>",
        expect=rf"plain load of 8 bytes{BY.format(file=T)}: the address 0x[0-9a-f]+ is not a multiple of 8",
    ),
    # ---- A, turned
    Mutant(
        name="transposed_a_turned_before_it_came",
        old=LANDED,
        new="      MOYE_NO_UNROLL\n",
        expect=race("(plain load|TMA load)", T, "(TMA load|plain load)", T),
    ),
    Mutant(
        name="transposed_does_not_wait_until_turned",
        old=TURNED,
        new="",
        expect=race("(wgmma|plain store)", T, "(wgmma|plain store)", T),
    ),
    Mutant(
        name="transposed_phase_of_turned_not_flipped",
        old=TURNED,
        new=TURNED.replace("stage.phase()", "0"),
        expect=race("(wgmma|plain store)", T, "(wgmma|plain store)", T),
    ),
    Mutant(
        name="transposed_proxy_fence_missing",
        old=PROXY_FENCE,
        new="",
        expect=race("wgmma", T, "plain store", T, "is ordered after") + NO_FENCE,
    ),
    Mutant(
        name="transposed_proxy_fence_behind_the_arrival",
        old=PROXY_FENCE + ALL_LANES + ARRIVAL,
        new=ALL_LANES + ARRIVAL + PROXY_FENCE,
        expect=race("wgmma", T, "plain store", T, "is ordered after") + NO_FENCE,
    ),
    Mutant(
        name="transposed_lanes_still_turn",
        old=ALL_LANES + ARRIVAL,
        new="      if (lane == 0)" + ARRIVAL,
        expect=race("(wgmma|plain store)", T, "(wgmma|plain store)", T),
    ),
    Mutant(
        name="transposed_lanes_still_read_the_box",
        old="        sync_warp();  // all of the box has been read\n",
        new="",
        expect=IN_THE_BOX,
    ),
    Mutant(
        name="transposed_one_box_alone",
        old="+ box * kBoxRows * kBlkK;",
        new="+ 0 * kBoxRows * kBlkK;",
        expect=IN_THE_BOX,
    ),
    Mutant(
        name="transposed_boxes_of_a_row",
        old="+ box * kBoxRows * kBlkK;",
        new="+ box * kBlkK;",
        expect=IN_THE_BOX,
    ),
    Mutant(name="transposed_last_box_left_out", old="box < kBoxes;", new="box < kBoxes - 1;", expect="wrong"),
    Mutant(
        name="transposed_turned_into_its_own_order",
        old="make_tensor(make_smem_ptr(boxes), TurnedA::smem_layout())(row, _, _0{});",
        new="make_tensor(make_smem_ptr(boxes), Operands<Order::NN>::A::smem_layout())(row ^ 1, _, _0{});",
        expect="wrong",
    ),
    Mutant(
        name="transposed_turners_begin_with_one_stage",
        old="    read += warp;\n",
        new="",
        expect=rf"race on shared memory .*{BY.format(file=T)}|deadlock",
    ),
    Mutant(
        name="transposed_two_turners_of_nine_stages",  # each sees every second phase of a stage
        old='    static_assert(kStages % kTurners == 0, "a warp sees every phase of its mbarriers");\n',
        new="    constexpr int kTurners = 2;\n    if (warp >= kTurners) return;\n",
        expect=rf"race on shared memory .*{BY.format(file=T)}|deadlock",
    ),
    Mutant(
        name="transposed_turns_the_stages_of_one_tile",
        old="stages += params.grid.k;",
        new="stages = params.grid.k;",
        expect=deadlock("parity [01]: .*", T),
    ),
    Mutant(
        name="transposed_turned_has_a_warp_too_many",
        old="mbarrier_init(&smem.turned[stage], 1);",
        new="mbarrier_init(&smem.turned[stage], 2);",
        expect=deadlock("parity 0: 0 phases complete, 1 of 2 arrivals", T),
    ),
    # ---- stages
    Mutant(
        name="transposed_released_before_the_wgmma",
        old=WAIT + RELEASE,
        new=RELEASE + WAIT,
        expect=refilled_in_use(T),
    ),
    Mutant(
        name="transposed_two_groups_in_flight",
        old=WAIT,
        new=WAIT.replace("<1>", "<2>"),
        expect=f"{refilled_in_use(T)}|{IN_FLIGHT}",
    ),
    Mutant(
        name="transposed_released_too_far",
        old="consumer_release(last, lane);\n          last = read;",
        new="consumer_release(read, lane);\n          last = read;",
        expect=rf"race on shared memory .*{BY.format(file=T)}|mbarrier",
    ),
    Mutant(
        name="transposed_last_wait_missing",
        old="      warpgroup_wait_group<0>();\n",
        new="",
        expect=rf"{refilled_in_use(T)}|wgmma at {T}:\d+ is in flight|written while a wgmma was in flight",
    ),
    Mutant(
        name="transposed_released_by_one_consumer",
        old="smem.pipeline.init(/*warps=*/4 * kConsumers);",
        new="smem.pipeline.init(/*warps=*/4);",
        expect=race("TMA load", T, "(wgmma|plain load|plain store)", T),
    ),
    Mutant(
        name="transposed_a_stage_behind_the_last",
        old="          if (k_tile + i == k_tiles) break;\n",
        new="",
        expect=r"wrong|deadlock|race on shared memory",
    ),
    Mutant(
        name="transposed_nobody_turns",
        old="} else if constexpr (kTurns<kOrder>) {",
        new="} else if constexpr (!kTurns<kOrder>) {",
        expect=deadlock("parity 0: 0 phases complete, 1 of 1 arrivals", T),
    ),
    # ---- wgmma
    Mutant(
        name="transposed_warpgroup_arrive_missing",
        old="          warpgroup_arrive();\n",
        new="",
        expect=rf"wgmma by block \(0,0,0\) warp \d+ at {T}:\d+: no warpgroup_arrive",
    ),
    Mutant(
        name="transposed_sums_of_the_tile_before",
        old="      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;\n",
        new="",
        expect="wrong",
    ),
    Mutant(
        name="transposed_sums_of_no_products",
        old="      if (k_tiles == 0) clear(tCrC);\n",
        new="",
        expect="wrong",
        sizes=(72, 136, 0),
        options=FINISHED,  # in the registers in which the next tile's sums are
    ),
    # ---- D
    Stored(name="transposed_rows_behind_d", old="        if (i * 8 + j >= m_left) continue;\n", new="", expect=OUTSIDE),
    Stored(
        name="transposed_rows_left_of_the_lane_in_front",
        old="- tile.m * kBlkM - m;",
        new="- tile.m * kBlkM;",
        expect=OUTSIDE,
    ),
    Stored(
        name="transposed_columns_behind_d",
        old="    if (n >= int(args.n) - tile.n * kBlkN) return;\n",
        new="",
        expect=rf"{OUTSIDE}|race on global memory d",
    ),
    Stored(
        name="transposed_rows_4_apart",
        old="row += 8 * args.d_m_stride",
        new="row += 4 * args.d_m_stride",
        expect=r"race on global memory d",
    ),
    Stored(
        name="transposed_pairs_of_rows_8_apart",
        old="j * args.d_m_stride;",
        new="j * 8 * args.d_m_stride;",
        expect=rf"race on global memory d|{OUTSIDE}",
    ),
    Stored(
        name="transposed_first_matrix_of_a_batch",
        old="    if (args.batch > 1) row += matrix_offset(args, tile.batch, args.d_batch_strides);\n",
        new="",
        expect="wrong",
        options=("batch=2",),
    ),
    Stored(
        name="transposed_every_call_is_plain",
        old=": !is_plain(epilogue)",
        new=": false",
        expect="wrong",
        options=FINISHED,
    ),
    Stored(name="transposed_c_left_out", old="epilogue.c.data == nullptr &&", new="", expect="wrong", options=OF_D),
    Stored(
        name="transposed_residual_left_out",
        old="epilogue.residual.data == nullptr &&",
        new="",
        expect="wrong",
        options=("epilogue=4",),
    ),
    Stored(name="transposed_scales_left_out", old=" && !has_scales(epilogue)", new="", expect="wrong", options=SCALED),
    Stored(
        name="transposed_words_that_are_none",
        old=BEHIND_WORDS,
        new="",
        expect=r"plain store of 8 bytes by .*: the address 0x[0-9a-f]+ is not a multiple of 8",
        options=ROWS_PADDED,
    ),
    Stored(
        name="transposed_finished_rows_4_apart",
        old="chosen(rows, j); }, first, 8, n);",
        new="chosen(rows, j); }, first, 4, n);",
        expect=r"race on global memory|wrong",
        options=BY_THREADS,
    ),
    Stored(
        name="transposed_finished_steps_of_one_row",
        old="kTogether * 8 + step % 2 + m;",
        new="kTogether * 8 + m;",
        expect="wrong",
        options=BY_THREADS,
    ),
    Stored(
        name="transposed_finished_sums_of_one_row",
        old="tCrC(make_coord(i % 2, c, i / 2",
        new="tCrC(make_coord(0, c, i / 2",
        expect="wrong",
        options=BY_THREADS,
    ),
    Stored(
        name="transposed_finished_row_is_the_first",
        old="      if (i == j) row = rows[i];\n",
        new="",
        expect="wrong",
        options=BY_THREADS,
    ),
    Stored(
        name="transposed_bias_behind_the_last_column",
        old="epilogue.bias.data != nullptr && n < int(args.n)",
        new="epilogue.bias.data != nullptr",
        expect=rf"out of bounds: plain load of 8 bytes{BY.format(file=ACROSS)}: the nearest array is bias ",
        options=FINISHED,
    ),
    Stored(
        name="transposed_bias_of_rows",
        old="bias.elements[i / 2 % 2];",
        new="bias.elements[i % 2];",
        expect="wrong",
        options=FINISHED,
    ),
    Stored(
        name="transposed_bias_of_the_first_tile",
        old="int const n = tile.n * kBlkN + first_column(thread)",
        new="int const n = first_column(thread)",
        expect="wrong",
        options=FINISHED,
    ),
    Stored(
        name="transposed_not_activated",
        old="    activate_all(epilogue.activation, z);\n",
        new="",
        expect="wrong",
        options=FINISHED,
    ),
    # ---- the kernel ahead
    Short(
        name="transposed_does_not_wait_for_the_kernel_ahead",
        old="    griddepcontrol_wait();  // the kernel ahead may still run up to here\n",
        new="",
        expect=too_early("TMA load", T),
    ),
]
