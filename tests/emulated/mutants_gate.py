"""Bugs planted where a product has two results, the cotangents of a layer with a gate: halves of boxes, their order.

How boxes are waited for and stored is as of those that are finished: mutants_sm90.py.
"""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import ONE_CTA, race

COOPERATIVE = "{sm90_cooperative, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}"
PINGPONG = "{sm90_pingpong, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}"  # two atoms along m

C, P = "sm90_cooperative.cuh", "sm90_pingpong.cuh"
E, GATE, STAGING, BOX = "epilogue_sm90.h", "epilogue_gate.h", "epilogue_staging.h", "epilogue_box.h"

# Three tiles, of which the last has 44 rows; 88 columns are a box and three quarters of a half.
Mutant = functools.partial(
    AnyMutant, row=COOPERATIVE, file=GATE, expect="wrong", sizes=(300, 88, 150), options=("out=bf16", "gate=1")
)

MUTANTS = [
    Mutant(
        name="gate_results_exchanged",
        old="operands.multiplier.fill(box, half, warp.lane);\n    operands.at.fill(second_box,",
        new="operands.at.fill(box, half, warp.lane);\n    operands.multiplier.fill(second_box,",
    ),
    Mutant(
        name="gate_operands_of_the_half_before",
        old="load(part + 1 < kParts ? part + 1 : part);",
        new="load(part);",
    ),
    Mutant(
        name="gate_halves_of_a_box_in_one_place",
        file=BOX,
        old="(part * (kColumns / 8) + j * 2 + lane / 16)",
        new="(j * 2 + lane / 16)",
    ),
    Mutant(
        name="gate_stored_at_the_second_half",
        old="/*outputs=*/2, column_of(part - 1)",
        new="/*outputs=*/2, column_of(part)",
    ),
    Mutant(
        name="gate_stored_before_the_second_half",
        old="if (half == 1) store_results<uint16_t>(warp, box, second_box, /*outputs=*/2, column_of(part - 1)",
        new="if (half == 0) store_results<uint16_t>(warp, box, second_box, /*outputs=*/2, column_of(part)",
        expect=race("stmatrix", C, "TMA store", C),
    ),
    Mutant(
        name="gate_sums_of_the_first_half",
        file=STAGING,
        old="c % kInBox * kCount + k, i,",
        new="k, i,",
    ),
    Mutant(
        name="gate_rows_of_the_first_atom",
        row=PINGPONG,
        old="row(part / 2 / kBoxesN);",
        new="row(part / (4 * kBoxesN));",
    ),
    Mutant(
        name="gate_multiplier_left_out",
        file=BOX,
        old="z[2 * i + k] * factor.elements[k], at",
        new="z[2 * i + k], at",
    ),
    Mutant(
        name="gate_activation_of_the_multiplier",
        file=BOX,
        old="activated(kActivation, at.elements[k])",
        new="activated(kActivation, factor.elements[k])",
    ),
    Mutant(
        name="gate_relu_is_what_it_is_of",
        file="activation.h",
        old="return {c < 0 ? 0.0f : c, c > 0",
        new="return {c, c > 0",
    ),
    Mutant(
        name="gate_boxes_not_waited_for",
        row=PINGPONG,
        old="    if (half == 0) wait_for_boxes(warp, first, /*outputs=*/2);\n",
        new="",
        expect=race("stmatrix", P, "TMA store", P),
        options=("out=bf16", "gate=1", *ONE_CTA),
    ),
    Mutant(
        name="gate_both_results_in_one_place",
        file=E,
        old="make_map(&params->map_preactivation, params->rank, epilogue.preactivation,",
        new="make_map(&params->map_preactivation, params->rank, args.d,",
    ),
]
