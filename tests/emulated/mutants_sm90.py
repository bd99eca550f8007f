"""Bugs planted in the Hopper kernels: the mistakes that on a GPU show rarely, or as a hang, or in the next launch.

Over 600 lines: a list of bugs, each with the text it changes and the report that must name it.
"""

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
SHARED, PIPELINE, SCHEDULER = "sm90_persistent.h", "moye/pipeline.h", "tile_scheduler.h"
PACK = "pack.h"

BY = r" by (block \(\d+,0,0\) )?(thread \d+ \(warp \d+ lane \d+\)|warp \d+) at {file}:\d+"
TMA_STORE = ("out=bf16",)
SIX_BOXES = ("out=f32",)  # of 192 columns, through a staging of three
BY_THREADS = ("epilogue=1",)
FINISHED = ("out=bf16", "epilogue=2")
ACTIVATED = ("out=bf16", "epilogue=3")
FLOATS = ("out=f32", "epilogue=2")  # finished, too
OF_FLOATS = (
    "kMayDerive = kAll && kDerives && kRounded;\n"
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
STAGE_BYTES = "static constexpr uint32_t kStageBytes = A::kStageBytes + B::kStageBytes;"
MAPS = "    if (Status status = make_operand_maps<Operands>(args, &params.maps); !status.ok()) return status;\n"
# Of boxes of sums as they are: those that are finished say warp.lane.
PROXY_FENCE = "        fence_proxy_async_shared_cta();\n"
BEHIND_THE_FENCE = "        sync_warp();\n        if constexpr (kScatters) {\n          if (scatter<"

MUTANTS = [
    # ---- phases
    Mutant(
        "sm90_producer_starts_in_the_first_phase",
        COOPERATIVE,
        SHARED,
        "auto write = Pipeline::producer_start();",
        "typename Pipeline::State write;",
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
    # ---- bytes
    Mutant(
        "sm90_expects_the_bytes_of_b_alone",
        COOPERATIVE,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace("A::kStageBytes + ", ""),
        r"phase 0 is complete while the \d+ bytes of the TMA load .* at sm90_cooperative\.cuh:\d+ are still in flight: "
        r"fewer bytes were expected",
    ),
    Mutant(
        "sm90_expects_the_bytes_of_a_alone",
        COOPERATIVE,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace(" + B::kStageBytes", ""),
        deadlock("parity 0: 0 phases complete, 0 of 1 arrivals and -8192 bytes missing", C),
    ),
    Mutant(
        "sm90_expects_too_many_bytes",
        COOPERATIVE,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace(";", " + 16;"),
        deadlock("parity 0: 0 phases complete, 0 of 1 arrivals and 16 bytes missing", C),
    ),
    Mutant(
        "sm90_expects_its_own_part_alone",
        CLUSTER,
        T,
        STAGE_BYTES,
        STAGE_BYTES.replace("B::kStageBytes", "B::kBoxBytes"),
        r"are still in flight: fewer bytes were expected|waits for -?\d+ bytes",
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
    # ---- descriptors
    Mutant(
        "sm90_swizzle_of_64_bytes",
        COOPERATIVE,
        T,
        "gmma_smem_atom<kGmmaMajor<kMajor>, T, 128>();",
        "gmma_smem_atom<kGmmaMajor<kMajor>, T, 64>();",
        "wrong",
    ),
    Mutant(
        "sm90_blocks_in_the_other_order",
        COOPERATIVE,
        T,
        "tile_to_shape(kAtom, kShape, Step<_2, _1, _3>{});",
        "tile_to_shape(kAtom, kShape);",
        "wrong",
        order="TN",
    ),
    Mutant(
        "sm90_stages_not_at_multiples_of_1024_bytes",
        COOPERATIVE,
        T,
        "  alignas(1024) ElementOfA<kConfig.dtype> a[",
        "  alignas(128) unsigned char before[128];\n  alignas(128) ElementOfA<kConfig.dtype> a[",
        r"wgmma by block \(0,0,0\) warp \d+ at sm90_cooperative\.cuh:\d+: the descriptor of A, 0x[0-9a-f]+, begins at "
        r"0x[0-9a-f]+, in row 1 of the swizzle",
    ),
    # ---- tensor maps
    Mutant(
        "sm90_tensor_map_kept_from_another_call",
        COOPERATIVE,
        SHARED,
        MAPS,
        "    static OperandMaps made;\n    static Status const status = make_operand_maps<Operands>(args, &made);\n"
        "    params.maps = made;\n",
        r"out of bounds: TMA load \(read\).* at sm90_cooperative\.cuh:\d+",
        options=("launches=2",),
    ),
    Mutant(
        "sm90_tensor_map_of_the_other_operand",
        COOPERATIVE,
        T,
        "return make_b(&maps->b, args.b, box_b);",
        "return make_b(&maps->b, args.a, box_b);",
        "wrong",
        sizes=(300, 300, 330),
    ),
    Mutant(
        "sm90_broadcast_operand_at_the_batch",
        COOPERATIVE,
        T,
        "strides.modes[i] == 0 ? 0 : matrix.modes[i];",
        "matrix.modes[i];",
        "wrong",
        sizes=(130, 66, 100),
        options=("batch=3", "broadcast=b"),
    ),
    Mutant(
        "sm90_batch_of_a_for_b",
        COOPERATIVE,
        T,
        "k, coords.b, multicast_b);",
        "k, coords.a, multicast_b);",
        "wrong",
        sizes=(130, 66, 100),
        options=("batch=3", "broadcast=a"),
    ),
    # ---- clusters
    Mutant(
        "sm90_mask_names_only_its_own_cta",
        CLUSTER,
        SHARED,
        "b.mask |= uint16_t(1u << (m + rank_n * kClusterM));",
        "b.mask = uint16_t(1u << rank);",
        deadlock(r"parity 0: 0 phases complete, 0 of 1 arrivals and [1-9]\d* bytes missing", C),
    ),
    Mutant(
        "sm90_mask_without_the_last_cta",
        CLUSTER,
        SHARED,
        "m < kClusterM; ++m) of.b.mask |=",
        "m < kClusterM - 1; ++m) of.b.mask |=",
        deadlock(r"parity 0: 0 phases complete, 0 of 1 arrivals and [1-9]\d* bytes missing", C),
    ),
    Mutant(
        "sm90_both_load_the_same_part",
        CLUSTER,
        SHARED,
        ".b = {.part = rank_m, .mask = 0}};",
        ".b = {.part = 0, .mask = 0}};",
        race("TMA multicast load", C, "TMA multicast load", C),
    ),
    Mutant(
        "sm90_first_barrier_of_the_cta_alone",
        CLUSTER,
        C,
        "    sync_cluster<kCluster>();\n",
        "    sync_threads();\n",
        r"sm90_cooperative\.cuh:\d+: (mbarrier .* of block \(\d,0,0\): no (barrier|fence_mbarrier_init) lies between|"
        r"no mbarrier has been initialized)",
    ),
    Mutant(
        "sm90_fence_mbarrier_init_missing",
        COOPERATIVE,
        C,
        INIT,
        "",
        r"TMA load by .* at sm90_cooperative\.cuh:\d+: mbarrier .*: no fence_mbarrier_init lies between",
    ),
    Mutant(
        "sm90_exit_before_the_peer_arrived",
        CLUSTER,
        C,
        "    if constexpr (kCluster > 1) cluster_sync();\n",
        "",
        r"block \(\d+,0,0\) exits without having waited for .*, which needs its shared memory|has exited",
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
        "filled = warp.boxes[number % kBuffers];",
        "filled = warp.boxes[0];",
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
        E,
        "      if (number == kBegin) {",
        "      if (number >= kBegin) {",
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
        "Warp const w{args, params, smem.boxes[warp],",
        "Warp const w{args, params, smem.boxes[0],",
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
        E,
        "    fence_proxy_async_shared_cta();\n    sync",
        "    sync",
        race("TMA store", C, "stmatrix", C, "is ordered after") + ", but no fence.proxy.async lies between them",
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_stored_before_the_warp_has_written",
        COOPERATIVE,
        E,
        "    fence_proxy_async_shared_cta();\n    sync_warp();\n",
        "    fence_proxy_async_shared_cta();\n",
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
        E,
        "    fence_proxy_async_shared_cta();\n    sync_warp();\n",
        "    fence_proxy_async_shared_cta();\n",
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
        E,
        "    if (warp.lane == 0 && first == 0) tma_store_wait_group_read<0>();\n",
        "",
        race("stmatrix", C, "TMA store", C),
        sizes=(600, 200, 100),
        options=(*FINISHED, *ONE_CTA),
    ),
    Mutant(
        "sm90_finished_wait_for_a_box_missing",
        THREE_BOXES,
        E,
        "    if (warp.lane == 0 && first + outputs > kBuffers) tma_store_wait_group_read<kBuffers - 2>();\n",
        "",
        race("stmatrix", C, "TMA store", C),
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_wait_for_one_box_of_two",
        THREE_BOXES,
        E,
        "tma_store_wait_group_read<kBuffers - 2>();",
        "tma_store_wait_group_read<kBuffers - 1>();",
        race("stmatrix", C, "TMA store", C),
        options=FINISHED,
    ),
    Mutant(
        "sm90_finished_written_before_the_first_lane_has_waited",
        THREE_BOXES,
        E,
        "tma_store_wait_group_read<kBuffers - 2>();\n    sync_warp();\n",
        "tma_store_wait_group_read<kBuffers - 2>();\n",
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
    # ---- the kernel ahead
    Mutant(
        "sm90_cooperative_does_not_wait_for_the_kernel_ahead",
        COOPERATIVE,
        C,
        KERNEL_AHEAD,
        "",
        too_early("TMA load", C),
    ),
    Mutant("sm90_pingpong_does_not_wait_for_the_kernel_ahead", PINGPONG, P, KERNEL_AHEAD, "", too_early("TMA load", P)),
    Mutant(
        "sm90_pack_does_not_wait_for_the_kernel_ahead",
        FLOAT8,
        PACK,
        KERNEL_AHEAD[2:],
        "",
        too_early("plain load", PACK),
        order="TN",
    ),
    # ---- packing, with both operands contiguous along their rows; 8-bit floats
    Mutant(
        "sm90_pack_turned_without_a_barrier",
        FLOAT8,
        PACK,
        "    sync_threads();  // the tile is turned\n",
        "",
        race("plain load", PACK, "plain store", PACK),
        order="TN",
    ),
    Mutant(
        "sm90_pack_lines_read_without_a_barrier",
        FLOAT8,
        PACK,
        "      sync_threads();  // the lines are there\n",
        "",
        race("plain load", PACK, "plain store", PACK),
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_b_is_read_as_a_is",
        FLOAT8.replace("e4m3", "e4m3xe5m2"),
        T,
        "SM90_WGMMA_SS<kColumns, Sum, ElementA, ElementB,",
        "SM90_WGMMA_SS<kColumns, Sum, ElementA, ElementA,",
        "wrong",
    ),
    Mutant(
        "sm90_pack_second_vector_left_out",
        FLOAT8,
        PACK,
        "(left < 16 ? left : 16) > 16)",
        "(left < 16 ? left : 16) > 31)",
        "wrong",
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_pack_shifted_by_whole_words",
        FLOAT8,
        "shift.h",
        "int const bits = shift % 4 * 8;",
        "int const bits = 0;",
        "wrong",
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_pack_reads_behind_the_operand",
        FLOAT8,
        PACK,
        "if (p >= begin && p + 16 <= end) return",
        "if (p >= begin) return",
        r"out of bounds: plain load .*thread \d+.* at pack\.h:\d+",
        sizes=(131, 67, 290),
        order="TN",
    ),
    Mutant(
        "sm90_pack_pitch_of_the_operand",
        FLOAT8,
        PACK,
        "int64_t const pitch = elements(plan.operand.pitch);",
        "int64_t const pitch = plan.operand.k;",
        "wrong",
        sizes=(130, 66, 272),  # whole 16 bytes along k, which TMA takes, and not whole sectors
        order="TN",
    ),
    Mutant(
        "sm90_pack_rows_behind_the_last",
        FLOAT8,
        PACK,
        "if (row < rows && byte < operand.pitch) store_global",
        "if (byte < operand.pitch) store_global",
        r"race on global memory workspace\+0x[0-9a-f]+: plain store \(write\) by .* is not ordered after plain store",
        order="TN",
    ),
    Mutant(
        "sm90_promoted_sums_not_begun_at_zero",
        FLOAT8,
        C,
        "      tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;\n      gemm(",
        "      tiled_mma.accumulate_ = k_tile == 0 ? GMMA::ScaleOut::Zero : GMMA::ScaleOut::One;\n      gemm(",
        "wrong",
        order="TN",
    ),
    Mutant(
        "sm90_promoted_before_the_wgmma",
        FLOAT8,
        C,
        "      warpgroup_wait_group<0>();\n      warpgroup_fence_operand(tCrStage);\n",
        "      warpgroup_wait_group<1>();\n      warpgroup_fence_operand(tCrStage);\n",
        refilled_in_use(C),
        order="TN",
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
