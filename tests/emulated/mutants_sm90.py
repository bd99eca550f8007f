"""Bugs planted in the Hopper kernels: the mistakes that on a GPU show rarely, or as a hang, or in the next launch."""

from __future__ import annotations

import functools
import re

from tests.emulated.mutants import REMAINDER
from tests.emulated.mutants import Mutant as AnyMutant

COOPERATIVE = "{sm90_cooperative, bf16, f32, {128, 64, 64}, 3, {1, 1}, 16}"
CLUSTER = "{sm90_cooperative, bf16, f32, {128, 64, 64}, 3, {2, 1}, 16}"
THREE_BOXES = "{sm90_cooperative, bf16, f32, {128, 192, 64}, 2, {1, 1}, 16}"
TWO_OF_FOUR_BOXES = "{sm90_cooperative, bf16, f32, {128, 256, 64}, 4, {1, 1}, 16}"
PINGPONG = "{sm90_pingpong, bf16, f32, {64, 64, 64}, 3, {1, 1}, 16}"
FLOAT8 = "{sm90_cooperative, e4m3, f32, {128, 64, 128}, 2, {1, 1}, 1}"  # packs its operands, promotes its sums

C, P, T, E = "sm90_cooperative.cuh", "sm90_pingpong.cuh", "tma_operand.h", "epilogue_sm90.h"
STAGING = "epilogue_staging.h"
SHARED, PIPELINE, SCHEDULER = "sm90_persistent.h", "moye/pipeline.h", "tile_scheduler.h"

BY = r" by (block \(\d+,0,0\) )?(thread \d+ \(warp \d+ lane \d+\)|warp \d+) at {file}:\d+"
TMA_STORE = ("out=bf16",)
SIX_BOXES = ("out=f32",)  # of 192 columns, through a staging of three
BY_THREADS = ("epilogue=1",)
FINISHED = ("out=bf16", "epilogue=2")
ACTIVATED = ("out=bf16", "epilogue=3")
ACTIVATED_OF_TWO = ("out=bf16", "epilogue=7")  # the pre-activation, too
FLOATS = ("out=f32", "epilogue=2")  # finished, too
OF_FLOATS = (
    "constexpr bool kRounded = sizeof(Out) == 2;\n"
    "    constexpr int kAtoms = decltype(size<1>(tCrC))::value, kBoxesN = ceil_div(kColumns, "
)
ONE_CTA = ("multiprocessors=1",)


# Sizes that give each CTA several tiles, and each ring several rounds and a piece.
Mutant = functools.partial(AnyMutant, sizes=(300, 200, 290))


def race(new: str, new_file: str, old: str, old_file: str, relation: str = "is not ordered after") -> str:
    return (
        r"race on shared memory smem\+0x[0-9a-f]+( of block \(\d+,0,0\))?: "
        + f"{new} \\((read|write)\\){BY.format(file=re.escape(new_file))} {relation} "
        + f"{old} \\((read|write)\\){BY.format(file=re.escape(old_file))}"
    )


def deadlock(bar: str, file: str) -> str:
    return rf"deadlock.*mbarrier\.try_wait smem\+0x[0-9a-f]+ \(initialized at [\w.]+:\d+\) {bar}.* at {file}:\d+"


def refilled_in_use(file: str) -> str:
    return race("TMA load", file, "wgmma", file)


def read_before_it_came(file: str) -> str:
    return race("wgmma", file, "TMA load", file)


STILL_READ = r"thread \d+ .*exits while its TMA store at {}:\d+ may still read shared memory"


def too_early(what: str, file: str) -> str:
    return rf"{what}( \((read|write)\))? of \d+ bytes{BY.format(file=file)}, before its griddepcontrol\.wait"


KERNEL_AHEAD = "    griddepcontrol_wait();  // the kernel ahead may still run up to here\n"
INIT = "      fence_mbarrier_init();\n"
FULL = "      pipeline.consumer_wait(read);\n      warpgroup_arrive();\n"  # not what promotes its sums
WAIT = "      warpgroup_wait_group<1>();\n"
RELEASE = "      if (k_tile > 0) pipeline.consumer_release(last, lane);\n"
PINGPONG_WAIT = "        warpgroup_wait_group<1>();\n"
PINGPONG_RELEASE = "        if (k_tile > 0) smem.pipeline.consumer_release(last, lane);\n"
# Of boxes of sums as they are: those that are finished say warp.lane.
PROXY_FENCE = "        fence_proxy_async_shared_cta();\n"
BEHIND_THE_FENCE = "        sync_warp();\n        if constexpr (kScatters) {\n          if (scatter<"
ONE_WAY = (
    "smem.boxes[warp], place, tile.n * kTile + column, lane, landed};\n"
    "      store_one_way<kStores>(w, tCrC, row_of_warp);"
)

MUTANTS = [
    # ---- phases
    Mutant(
        "sm90_producer_starts_in_the_first_phase",
        COOPERATIVE,
        SHARED,
        "  auto write = Pipeline::producer_start();\n  Which early",
        "  typename Pipeline::State write;\n  Which early",
        deadlock("parity 0: 0 phases complete, 8 of 8 arrivals", C),
    ),
    Mutant(
        "sm90_consumer_starts_in_the_phase_before",
        COOPERATIVE,
        C,
        "    PipelineState<kStages> read;\n",
        "    PipelineState<kStages> read(0, 1);\n",
        read_before_it_came(C),
    ),
    Mutant(
        "sm90_phase_of_full_not_flipped",
        COOPERATIVE,
        PIPELINE,
        "mbarrier_wait(&full[read.index()], read.phase());",
        "mbarrier_wait(&full[read.index()], 0);",
        read_before_it_came(C),
    ),
    Mutant(
        "sm90_phase_of_empty_not_flipped",
        COOPERATIVE,
        PIPELINE,
        "mbarrier_wait(&empty[write.index()], write.phase());",
        "mbarrier_wait(&empty[write.index()], 1);",
        r"mbarrier\.arrive\.expect_tx by .* at sm90_cooperative\.cuh:\d+: mbarrier .* has its 1 arrivals already "
        r"and waits for \d+ bytes",
    ),
    Mutant(
        "sm90_stages_reset_with_each_tile",
        COOPERATIVE,
        C,
        "      // All consumers multiply this tile.\n",
        "      read = {};\n",
        read_before_it_came(C),
    ),
    Mutant(
        "sm90_pingpong_other_tile_not_skipped",
        PINGPONG,
        P,
        "      read += k_tiles;  // the other consumer's tile\n",
        "",
        read_before_it_came(P),
    ),
    Mutant(
        "sm90_pingpong_wait_missing",
        PINGPONG,
        P,
        "        smem.pipeline.consumer_wait(read);\n",
        "",
        read_before_it_came(P),
    ),
    # ---- tiles
    Mutant(
        "sm90_skips_the_remainder",  # 12 tiles for 5 CTAs
        COOPERATIVE,
        SCHEDULER,
        *REMAINDER,
        "wrong",
        options=("multiprocessors=5",),
    ),
    Mutant(
        "sm90_pingpong_skips_the_remainder",  # 20 tiles for 3 CTAs: the producer fills stages that nobody reads
        PINGPONG,
        SCHEDULER,
        *REMAINDER,
        r"deadlock.*mbarrier\.try_wait",
        options=("multiprocessors=3",),
    ),
    # ---- stages released too early
    Mutant(
        "sm90_released_before_the_wgmma",
        COOPERATIVE,
        C,
        WAIT + RELEASE,
        RELEASE + WAIT,
        refilled_in_use(C),
    ),
    Mutant(
        "sm90_two_groups_in_flight",
        COOPERATIVE,
        C,
        WAIT,
        WAIT.replace("<1>", "<2>"),
        refilled_in_use(C),
    ),
    Mutant(
        "sm90_last_wait_missing",
        COOPERATIVE,
        C,
        "    warpgroup_wait_group<0>();\n    warpgroup_fence_operand(tCrC);\n    if (k_tiles > 0)",
        "    warpgroup_fence_operand(tCrC);\n    if (k_tiles > 0)",
        rf"{refilled_in_use(C)}|ends while its wgmma at {C}:\d+ is in flight",
    ),
    Mutant(
        "sm90_released_by_one_consumer",
        COOPERATIVE,
        C,
        "smem.pipeline.init(/*warps=*/4 * kConsumers);",
        "smem.pipeline.init(/*warps=*/4);",
        refilled_in_use(C),
    ),
    Mutant(
        "sm90_released_for_its_own_cta_alone",
        CLUSTER,
        PIPELINE,
        "uint32_t(lane), lane < kCtas);",
        "block_idx().x % kCtas, lane < kCtas);",
        race("TMA multicast load", C, "(wgmma|TMA multicast load)", C),
    ),
    # ---- wgmma
    Mutant(
        "sm90_warpgroup_arrive_missing",
        COOPERATIVE,
        C,
        FULL,
        FULL.replace("      warpgroup_arrive();\n", ""),
        r"wgmma by block \(0,0,0\) warp \d+ at sm90_cooperative\.cuh:\d+: no warpgroup_arrive",
    ),
    Mutant(
        "sm90_sums_not_cleared",
        COOPERATIVE,
        C,
        "    tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;\n    PipelineState<kStages> last",
        "    PipelineState<kStages> last",
        "wrong",
    ),
    # ---- epilogue: boxes
    Mutant(
        "sm90_proxy_fence_missing",
        COOPERATIVE,
        E,
        PROXY_FENCE + BEHIND_THE_FENCE,
        BEHIND_THE_FENCE,
        race("TMA store", C, "stmatrix", C, "is ordered after") + ", but no fence.proxy.async lies between them",
        options=TMA_STORE,
    ),
    Mutant(
        "sm90_stored_before_the_warp_has_written",
        COOPERATIVE,
        E,
        PROXY_FENCE + BEHIND_THE_FENCE,
        PROXY_FENCE + BEHIND_THE_FENCE.replace("        sync_warp();\n", ""),
        race("TMA store", C, "stmatrix", C),
        options=TMA_STORE,
    ),
    Mutant(
        "sm90_wait_for_the_tile_before_missing",
        COOPERATIVE,
        E,
        "        if (number == 0 && lane == 0) tma_store_wait_group_read<0>();\n",
        "",
        race("stmatrix", C, "TMA store", C),
        sizes=(600, 200, 100),
        options=(*TMA_STORE, *ONE_CTA),
    ),
    Mutant(
        "sm90_wait_for_a_box_missing",
        THREE_BOXES,
        E,
        "        if (number >= kBuffers && lane == 0) tma_store_wait_group_read<kBuffers - 1>();\n",
        "",
        race("plain store", C, "TMA store", C),
        options=SIX_BOXES,
    ),
    Mutant(
        "sm90_wait_for_a_box_off_by_one",
        THREE_BOXES,
        E,
        "if (number >= kBuffers && lane == 0) tma_store_wait_group_read<kBuffers - 1>();",
        "if (number >= kBuffers && lane == 0) tma_store_wait_group_read<kBuffers>();",
        race("plain store", C, "TMA store", C),
        options=SIX_BOXES,
    ),
    Mutant(
        "sm90_written_before_the_first_lane_has_waited",
        COOPERATIVE,
        E,
        "        if (number == 0 || number >= kBuffers) sync_warp();\n",
        "",
        race("(stmatrix|TMA store)", C, "(stmatrix|TMA store)", C),
        sizes=(600, 200, 100),
        options=(*TMA_STORE, *ONE_CTA),
    ),
    Mutant(
        "sm90_one_staging_box",
        THREE_BOXES,
        E,
        "box = warp.boxes[number % kBuffers];",
        "box = warp.boxes[0];",
        race("stmatrix", C, "TMA store", C),
        options=TMA_STORE,
    ),
    Mutant(
        "sm90_activated_in_one_box",
        THREE_BOXES,
        E,
        "box = warp.boxes[first % kBuffers], *",
        "box = warp.boxes[0], *",
        race("stmatrix", C, "TMA store", C),
        options=ACTIVATED,
    ),
    Mutant(
        "sm90_activated_wait_for_the_tile_before_missing",
        COOPERATIVE,
        E,
        "      if (warp.lane == 0 && number == 0) tma_store_wait_group_read<0>();\n",
        "",
        race("stmatrix", C, "TMA store", C),
        sizes=(600, 200, 100),
        options=(*ACTIVATED, *ONE_CTA),
    ),
    Mutant(
        "sm90_activated_wait_for_a_box_missing",
        TWO_OF_FOUR_BOXES,
        E,
        "      if (warp.lane == 0 && number >= kBuffers) tma_store_wait_group_read<kBuffers - 1>();\n",
        "",
        race("stmatrix", C, "TMA store", C),
        options=ACTIVATED,
    ),
    Mutant(
        "sm90_activated_pre_activation_not_waited_for",
        COOPERATIVE,
        E,
        "if (outputs == 2) wait_for_boxes(warp, first, outputs), fill",
        "if (outputs == 2) fill",
        race("stmatrix", C, "TMA store", C),
        sizes=(600, 200, 100),
        options=(*ACTIVATED_OF_TWO, *ONE_CTA),
    ),
    Mutant(
        "sm90_activated_pre_activation_in_the_result",
        COOPERATIVE,
        E,
        "*const second_box = warp.boxes[(first + 1) % kBuffers];",
        "*const second_box = box;",
        "wrong",
        options=ACTIVATED_OF_TWO,
    ),
    Mutant(
        "sm90_activated_without_the_pre_activation",
        COOPERATIVE,
        E,
        "kIsAhead || warp.args.epilogue.preactivation == nullptr ? 1 : 2;",
        "1;",
        "wrong",
        options=ACTIVATED_OF_TWO,
    ),
    Mutant(
        "sm90_activated_with_the_bias_of_its_own_box_twice",
        THREE_BOXES,
        E,
        "bias.load(warp, column_of(number + 1 < kAtoms * kBoxesN ? number + 1 : number));",
        "bias.load(warp, column_of(number));",
        "wrong",
        options=ACTIVATED,
    ),
    Mutant(
        "sm90_activated_sums_of_the_first_box",
        THREE_BOXES,
        STAGING,
        "    if (number == kBegin) {",
        "    if (number >= kBegin) {",
        "wrong",
        options=ACTIVATED,
    ),
    Mutant(
        "sm90_activated_bias_of_the_other_pair",
        COOPERATIVE,
        E,
        "bias.template pair<Out>(k / 4);",
        "bias.template pair<Out>(k / 4 ^ 1);",
        "wrong",
        options=ACTIVATED,
    ),
    Mutant(
        "sm90_activated_bias_read_beyond_its_end",
        COOPERATIVE,
        "epilogue_box.h",
        "is_there && lane_column + j * 8 < columns ?",
        "is_there ?",
        "outside|bias",
        options=ACTIVATED,
    ),
    Mutant(
        "sm90_one_staging_for_all_warps",
        COOPERATIVE,
        E,
        ONE_WAY,
        ONE_WAY.replace("[warp]", "[0]"),
        race("stmatrix", C, "(TMA store|stmatrix)", C),
        options=TMA_STORE,
    ),
    Mutant(
        "sm90_one_staging_for_both_consumers",
        COOPERATIVE,
        C,
        "smem.epilogue[consumer],",
        "smem.epilogue[0],",
        race("stmatrix", C, "(TMA store|stmatrix)", C),
        options=TMA_STORE,
    ),
    Mutant(
        "sm90_pingpong_one_staging",
        PINGPONG,
        P,
        "smem.epilogue[consumer],",
        "smem.epilogue[0],",
        race("stmatrix", P, "(TMA store|stmatrix)", P),
        options=TMA_STORE,
    ),
    Mutant(
        "sm90_exit_before_the_store_has_read",
        COOPERATIVE,
        C,
        "    Epilogue::finish(thread);\n",
        "",
        STILL_READ.format(C),
        options=TMA_STORE,
    ),
    Mutant(
        "sm90_pingpong_exit_of_the_other_warps",
        PINGPONG,
        E,
        "if (thread % 32 == 0) tma_store_wait_group_read<0>();",
        "if (thread == 0) tma_store_wait_group_read<0>();",
        STILL_READ.format(P),
        options=TMA_STORE,
    ),
    # ---- epilogue: finished
    Mutant(
        "sm90_finished_proxy_fence_missing",
        COOPERATIVE,
        STAGING,
        "  fence_proxy_async_shared_cta();\n  sync",
        "  sync",
        race("TMA store", C, "stmatrix", C, "is ordered after") + ", but no fence.proxy.async lies between them",
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_stored_before_the_warp_has_written",
        COOPERATIVE,
        STAGING,
        "  fence_proxy_async_shared_cta();\n  sync_warp();\n",
        "  fence_proxy_async_shared_cta();\n",
        race("TMA store", C, "stmatrix", C),
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_floats_in_boxes_of_64_columns",
        THREE_BOXES,
        E,
        f"{OF_FLOATS}kBox<Out>);",
        f"{OF_FLOATS}kBox<uint16_t>);",
        "wrong",
        options=FLOATS,
    ),
    Mutant(
        "sm90_finished_floats_read_before_the_warp_has_written",
        COOPERATIVE,
        STAGING,
        "  fence_proxy_async_shared_cta();\n  sync_warp();\n",
        "  fence_proxy_async_shared_cta();\n",
        race("TMA store", C, "plain store", C),
        options=FLOATS,
    ),
    Mutant(
        "sm90_words_of_floats_in_turn",
        COOPERATIVE,
        "epilogue_box.h",
        "words[j * 2] = word(p + j * 8), words[j * 2 + 1] = word(below + j * 8);",
        "words[j * 2] = word(p + j * 8), words[j * 2 + 1] = word(p + j * 8);",
        "wrong",
        options=FLOATS,
    ),
    Mutant(
        "sm90_finished_wait_for_the_tile_before_missing",
        COOPERATIVE,
        STAGING,
        "  if (warp.lane == 0 && first == 0) tma_store_wait_group_read<0>();\n",
        "",
        race("stmatrix", C, "TMA store", C),
        sizes=(600, 200, 100),
        options=(*FINISHED, *ONE_CTA),
    ),
    Mutant(
        "sm90_finished_wait_for_a_box_missing",
        THREE_BOXES,
        STAGING,
        "  if (warp.lane == 0 && first + outputs > Warp::kBuffers) tma_store_wait_group_read<Warp::kBuffers - 2>();\n",
        "",
        race("stmatrix", C, "TMA store", C),
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_wait_for_one_box_of_two",
        THREE_BOXES,
        STAGING,
        "tma_store_wait_group_read<Warp::kBuffers - 2>();",
        "tma_store_wait_group_read<Warp::kBuffers - 1>();",
        race("stmatrix", C, "TMA store", C),
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_written_before_the_first_lane_has_waited",
        THREE_BOXES,
        STAGING,
        "tma_store_wait_group_read<Warp::kBuffers - 2>();\n  sync_warp();\n",
        "tma_store_wait_group_read<Warp::kBuffers - 2>();\n",
        race("(stmatrix|TMA store)", C, "(stmatrix|TMA store)", C),
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_preactivation_in_the_box_of_d",
        COOPERATIVE,
        E,
        "warp.boxes[(first + 1) % kBuffers];\n      int const next",
        "warp.boxes[first % kBuffers];\n      int const next",
        "wrong",
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_reads_beyond_the_last_row",
        COOPERATIVE,
        "epilogue_box.h",
        "if (rows >= kRows && columns >= kColumns) {",
        "if (columns >= kColumns) {",
        r"out of bounds: plain load of 4 bytes",
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_with_the_next_boxs_bias",
        THREE_BOXES,
        E,
        "load_ahead(next);",
        "load_ahead(number);",
        "wrong",
        options=FINISHED,
    ),
    # ---- epilogue: elements
    Mutant(
        "sm90_sums_read_before_the_warp_has_written",
        COOPERATIVE,
        E,
        "      sync_warp();\n      int const first_row",
        "      int const first_row",
        race("plain load", C, "plain store", C),
        options=BY_THREADS,
    ),
    Mutant(
        "sm90_sums_written_before_the_warp_has_read",
        COOPERATIVE,
        E,
        "      sync_warp();  // the step before has been read\n",
        "",
        race("plain load", C, "plain store", C),  # a lane is a step ahead
        options=BY_THREADS,
    ),
    # ---- turns and registers
    Mutant(
        "sm90_pingpong_the_other_begins",
        PINGPONG,
        P,
        "uint32_t turn = uint32_t(1 - consumer);",
        "uint32_t turn = uint32_t(consumer);",
        read_before_it_came(P),
    ),
    Mutant(
        "sm90_pingpong_turn_not_given",
        PINGPONG,
        P,
        "      if (lane == 0) mbarrier_arrive(&smem.turn[1 - consumer]);",
        "      ",
        deadlock("parity 0: 0 phases complete, 4 of 4 arrivals", P),
    ),
    Mutant(
        "sm90_pingpong_turn_given_to_itself",
        PINGPONG,
        P,
        "mbarrier_arrive(&smem.turn[1 - consumer]);",
        "mbarrier_arrive(&smem.turn[consumer]);",
        read_before_it_came(P),
    ),
    Mutant(
        "sm90_pingpong_released_before_the_wgmma",
        PINGPONG,
        P,
        PINGPONG_WAIT + PINGPONG_RELEASE,
        PINGPONG_RELEASE + PINGPONG_WAIT,
        refilled_in_use(P),
    ),
    Mutant(
        "sm90_more_registers_than_there_are",
        COOPERATIVE,
        C,
        "kConsumerRegisters = kConsumers == 3 ? 160 : 232;",
        "kConsumerRegisters = kConsumers == 3 ? 160 : 240;",
        r"deadlock.*setmaxnreg\.inc",
    ),
]
