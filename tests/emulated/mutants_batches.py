"""Bugs planted where a batch has several modes."""

from __future__ import annotations

import functools

from tests.emulated.mutants import SIMT
from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import COOPERATIVE, FLOAT8

TWO, THREE = ("batch=6", "middle=2"), ("batch=12", "outer=2", "middle=3")
Mutant = functools.partial(AnyMutant, sizes=(70, 66, 100), expect="wrong", options=THREE)

MUTANTS = [
    Mutant(
        "batch_outer_and_middle_exchanged",
        SIMT,
        "batch.h",
        "{outermost, outer - outermost * sizes.modes[1],",
        "{outer - outermost * sizes.modes[1], outermost,",
        expect=r"out of bounds: plain (load|store) .* the nearest array is",
    ),
    Mutant(
        "batch_outer_mode_forgotten",
        SIMT,
        "batch.h",
        "for (int i = 0; i < kBatchModes; ++i) offset",
        "for (int i = 1; i < kBatchModes; ++i) offset",
        expect="race on global memory d.*: nothing orders two CTAs of a launch",
    ),
    Mutant(
        "batch_of_two_modes_taken_for_one",
        SIMT,
        "batch.h",
        "if (sizes.modes[0] == 1 && sizes.modes[1] == 1)",
        "if (sizes.modes[0] == 1)",
        options=TWO,
        expect="out of bounds: plain load .*the nearest array is",
    ),
    Mutant(
        "batch_epilogue_along_the_modes_of_d",
        SIMT,
        "epilogue.h",
        "batch_offset(matrix, operand.batch_strides)",
        "batch_offset(matrix, args.d_batch_strides)",
        options=(*THREE, "epilogue=1"),
        expect="out of bounds: plain load .*the nearest array is bias",
    ),
    Mutant(
        "sm90_batch_modes_in_the_order_of_the_call",
        COOPERATIVE,
        "tma_operand.h",
        "return {coord(2), coord(1), coord(0)};",
        "return {coord(0), coord(1), coord(2)};",
    ),
    Mutant(
        "sm90_batch_map_by_the_modes_of_a",
        COOPERATIVE,
        "tma_operand.h",
        "moves_along_several(args, args.a_batch_strides) || moves_along_several(args, args.b_batch_strides) ? 5 : 3;",
        "moves_along_several(args, args.a_batch_strides) ? 5 : 3;",
        options=(*THREE, "broadcast=a"),
    ),
    Mutant(
        "sm90_batch_stored_as_one_mode",
        COOPERATIVE,
        "epilogue_staging.h",
        "if (warp.params.rank == 3) return",
        "return",
        options=(*TWO, "out=bf16"),
        sizes=(70, 64, 100),  # rows of whole 16 bytes, which TMA stores
        expect="the tensor map has rank 5, the instruction 3",
    ),
    Mutant(
        "sm90_pack_batch_modes_from_the_outermost_on",
        FLOAT8,
        "pack.h",
        "for (int i = kBatchModes - 1; i >= 0; --i) {\n      if (operand",
        "for (int i = 0; i < kBatchModes; ++i) {\n      if (operand",
        order="TN",
    ),
]
