"""Bugs planted where a kernel has two right-hand operands: halves of a stage, of sums, and what is made of both."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import ONE_CTA, deadlock, race

COOPERATIVE = "{sm90_cooperative, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}"
WIDE = "{sm90_cooperative, bf16, f32, {128, 256, 64}, 2, {1, 1}, 16}"  # two boxes of each half
PINGPONG = "{sm90_pingpong, bf16, f32, {64, 128, 64}, 2, {1, 1}, 16}"
SPLIT_K = "{sm90_split_k, bf16, f32, {64, 128, 64}, 2, {1, 2}, 16}"

C, P, K = "sm90_cooperative.cuh", "sm90_pingpong.cuh", "sm90_split_k.cuh"
T, E, GATE, ELEMENTS = "tma_operand.h", "epilogue_sm90.h", "epilogue_gate.h", "epilogue.h"
SUMS = "cluster_sums.h"
PAIR, KEPT = ("out=bf16", "pair=1"), ("out=bf16", "pair=2")

# Six tiles, of which the last has 44 rows and 24 columns; of k two whole tiles and a piece.
Mutant = functools.partial(AnyMutant, row=COOPERATIVE, file=T, expect="wrong", sizes=(300, 88, 150), options=PAIR)

WAIT = "      if (warp.lane == 0 && filled >= kBuffers) tma_store_wait_group_read<kBuffers - 1>();\n"
PROXY_FENCE = "      fence_proxy_async_shared_cta();\n"
BEHIND_IT = "      sync_warp();\n      if constexpr (Warp::kScatters) {\n        EpilogueArgs"
SECOND = "z[k] *= static_cast<float>(tCrC(kColumns / 4 + first + k"

MUTANTS = [
    # ---- what is loaded
    Mutant(
        name="pair_halves_exchanged",
        old="map = i == 0 ? first : second;",
        new="map = i == 0 ? second : first;",
    ),
    Mutant(
        name="pair_both_maps_of_the_first_b",
        old="make_b(&maps->second_b, args.epilogue.second_b,",
        new="make_b(&maps->second_b, args.b,",
    ),
    Mutant(
        name="pair_second_half_over_the_first",
        old="half = bytes + i * (kStageBytes / 2);",
        new="half = bytes;",
        expect=race("TMA load", C, "TMA load", C),
    ),
    Mutant(
        name="pair_boxes_of_whole_stages",
        old="kBoxOfPair = kMajor == Major::k ? kBoxOther / 2 : kBoxOther;",
        new="kBoxOfPair = kBoxOther;",
        expect=race("TMA load", C, "TMA load", C),
    ),
    Mutant(
        name="pair_columns_of_tiles_of_one_b",
        row=PINGPONG,
        old="stage(stages.b, stage), n / 2, k,",
        new="stage(stages.b, stage), n, k,",
    ),
    Mutant(
        name="pair_tiles_as_wide_as_of_one_b",
        row=PINGPONG,
        old="second_b != nullptr ? kConfig.tile.n / 2 : kConfig.tile.n;",
        new="second_b == nullptr ? kConfig.tile.n / 2 : kConfig.tile.n;",
    ),
    Mutant(
        name="pair_first_columns_in_every_box",
        row=WIDE,
        old="half + j * kBlkK * 128, row + j * kBoxContiguous, k,",
        new="half + j * kBlkK * 128, row, k,",
        sizes=(120, 120, 70),
        order="NN",
    ),
    Mutant(
        name="pair_bytes_of_few_columns",
        row=SPLIT_K,
        file=K,
        old="pair ? OperandB::kBoxOther : OperandB::box_of_few(args.n)",
        new="OperandB::box_of_few(args.n)",
        sizes=(70, 40, 290),
        expect=deadlock(r"parity 0: 0 phases complete, 0 of 1 arrivals and -\d+ bytes missing", K)
        + "|fewer bytes were expected",
    ),
    # ---- what TMA stores
    Mutant(
        name="pair_stored_at_tiles_of_one_b",
        file=E,
        old="kStores == Stores::pair ? kTileN / 2 : kTileN;",
        new="kTileN;",
    ),
    Mutant(
        name="pair_second_sums_of_the_first_half",
        row=WIDE,
        file=GATE,
        old=SECOND,
        new=SECOND.replace("/ 4", "/ 8"),
        sizes=(120, 120, 70),
    ),
    Mutant(
        name="pair_without_alpha",
        row=PINGPONG,
        file=GATE,
        old="z[k] = warp.params.alpha * static_cast<float>(tCrC(first + k, i, _0{}));",
        new="z[k] = static_cast<float>(tCrC(first + k, i, _0{}));",
    ),
    Mutant(
        name="pair_second_product_into_the_other",
        file=GATE,
        old="map = &warp.params.map_second_product;",
        new="map = &warp.params.map_preactivation;",
        options=KEPT,
    ),
    Mutant(
        name="pair_wait_for_a_box_off_by_one",
        file=GATE,
        old=WAIT,
        new=WAIT.replace("kBuffers - 1", "kBuffers"),
        expect=race("stmatrix", C, "TMA store", C),
        options=KEPT,
    ),
    Mutant(
        name="pair_wait_for_the_tile_before_missing",
        row=PINGPONG,
        file=GATE,
        old="      if (warp.lane == 0 && filled == 0) tma_store_wait_group_read<0>();\n",
        new="",
        expect=race("stmatrix", P, "TMA store", P),
        options=(*PAIR, *ONE_CTA),
    ),
    Mutant(
        name="pair_proxy_fence_missing",
        file=GATE,
        old=PROXY_FENCE + BEHIND_IT,
        new=BEHIND_IT,
        expect=race("TMA store", C, "stmatrix", C, "is ordered after") + ", but no fence.proxy.async lies between them",
    ),
    # ---- what threads store
    Mutant(
        name="pair_second_half_in_the_middle_of_the_sums",
        row=SPLIT_K,
        file=SUMS,
        old="/*column=*/begun.kColumns)",
        new="/*column=*/begun.kColumns / 2)",
    ),
    Mutant(
        name="pair_second_half_in_the_middle_of_the_sums_where_products_are_kept",
        row=SPLIT_K,
        file=SUMS,
        old="/*column=*/kColumns)",
        new="/*column=*/kColumns / 2)",
        options=KEPT,
    ),
    Mutant(
        name="pair_vectors_of_tiles_of_one_b",
        row=SPLIT_K,
        file=SUMS,
        old="kColumns = kFinishing == Finishing::pair ? kBlkN / 2 : kBlkN;",
        new="kColumns = kBlkN;",
    ),
    Mutant(
        name="pair_vectors_of_tiles_of_one_b_where_products_are_kept",
        row=SPLIT_K,
        file=SUMS,
        old="kColumns = kPair ? kBlkN / 2 : kBlkN;",
        new="kColumns = kBlkN;",
        options=KEPT,
    ),
    Mutant(
        name="pair_activation_of_the_other_product",
        row=SPLIT_K,
        file=ELEMENTS,
        old="activate(epilogue.activation, z[i]) * second[i];",
        new="z[i] * activate(epilogue.activation, second[i]);",
        options=KEPT,
    ),
    Mutant(
        name="pair_word_of_two_products_that_is_a_sum",
        row=SPLIT_K,
        file=ELEMENTS,
        old="z[i] *= second.elements[i];",
        new="z[i] += second.elements[i];",
    ),
    Mutant(
        name="pair_second_product_is_the_first",
        row=SPLIT_K,
        file=ELEMENTS,
        old="write(epilogue.second_product, m, n, second);",
        new="write(epilogue.second_product, m, n, sums);",
        options=KEPT,
    ),
]
