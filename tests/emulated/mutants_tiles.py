"""Bugs planted where boxes and chunks of columns do not divide a Hopper kernel's tile."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import deadlock

# Columns: a box of B and a piece, a box of d and a piece, two chunks and a half.
ROW = "{sm90_cooperative, bf16, f32, {128, 80, 64}, 2, {1, 1}, 16}"

Mutant = functools.partial(AnyMutant, row=ROW, sizes=(200, 200, 290), order="NN")  # n contiguous in b

MUTANTS = [
    Mutant(
        "sm90_expects_the_columns_of_the_tile_alone",
        file="tma_operand.h",
        old="static constexpr uint32_t kStageBytes = A::kStageBytes + B::kStageBytes;",
        new="static constexpr uint32_t kStageBytes = (kConfig.tile.m + kConfig.tile.n) * 128;",
        expect=deadlock("parity 0: 0 phases complete, 0 of 1 arrivals and -6144 bytes missing", "sm90_cooperative.cuh"),
    ),
    Mutant(
        "sm90_last_box_stored_behind_the_others",
        file="epilogue_sm90.h",
        old="store_box(warp, warp.params.map_d, box, warp.column + first,",
        new="store_box(warp, warp.params.map_d, box, warp.column + c * kBox<Out>,",
        expect="wrong",
        options=("out=bf16",),
    ),
    Mutant(
        "sm90_last_chunk_not_cut",
        file="epilogue_sm90.h",
        old="      if (kColumns % kChunk != 0 && lane_column >= kColumns) continue;\n",
        new="",
        expect="race on global memory .*: nothing orders two CTAs of a launch",  # right where one CTA has both tiles
        options=("epilogue=1", "multiprocessors=4"),
    ),
]
