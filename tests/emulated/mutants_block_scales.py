"""Bugs planted in the scales of blocks along k: those of another block, row, column, matrix, or none."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import too_early

ROW = "{sm90_cooperative, e4m3, f32_blocks, {128, 128, 128}, 2, {1, 1}, 16}"
B, C = "block_scales.h", "sm90_cooperative.cuh"
BLOCKS, COLUMNS = ("columns=0", "batch=2"), ("columns=1", "batch=2")

# Two tiles of rows and of columns, of which the last ones are not whole; three blocks along k.
Mutant = functools.partial(AnyMutant, row=ROW, file=B, expect="wrong", sizes=(150, 133, 384), options=BLOCKS)
OfColumns = functools.partial(Mutant, options=COLUMNS)

OUTSIDE = r"out of bounds: plain load of \d+ bytes .* at block_scales\.h:\d+: the nearest array is {} "
CLAMPED = "int64_t(at < last ? at : last) * scales.blocks;"
AHEAD = "      if (block + 1 < blocks) load(block + 1);\n"

MUTANTS = [
    # ---- which block
    Mutant(name="block_scales_of_the_first_block", old=AHEAD, new=""),
    Mutant(name="block_scales_of_the_same_block_again", old=AHEAD, new=AHEAD.replace("load(block + 1)", "load(block)")),
    Mutant(
        name="block_scales_behind_the_last_block",
        old=AHEAD,
        new="      load(block + 1);\n",
        expect=OUTSIDE.format("[ab]_scales"),
    ),
    Mutant(name="block_scales_without_those_of_b", old="of_rows_[i] * of_b_[0].elements[0];", new="of_rows_[i];"),
    OfColumns(
        name="block_scales_of_the_next_block", old="      load(block);\n", new="      load((block + 1) % blocks);\n"
    ),
    OfColumns(name="block_scales_of_columns_of_the_first_block", old="int64_t(block) * b_step_", new="0 * b_step_"),
    # ---- which row
    Mutant(name="block_scales_of_swapped_rows", old="i % 2 * 8 + lane / 4", new="(i + 1) % 2 * 8 + lane / 4"),
    OfColumns(
        name="block_scales_of_the_upper_rows_alone",
        old="int const row = 2 * i + v / 2 % 2;",
        new="int const row = 2 * i;",
    ),
    Mutant(name="block_scales_of_the_first_warps_rows", file=C, old=" + thread % 128 / 32 * 16; }", new="; }"),
    Mutant(
        name="block_scales_behind_the_last_row",
        old=CLAMPED,
        new="int64_t(at) * scales.blocks;",
        expect=OUTSIDE.format("a_scales"),
    ),
    # ---- which column
    Mutant(name="block_scales_of_the_first_columns", old="int64_t(column / kScaledBlock) * scales.blocks", new="0"),
    OfColumns(name="block_scales_of_even_columns", old="of_b_[v / 4].elements[v % 2]", new="of_b_[v / 4].elements[0]"),
    OfColumns(name="block_scales_of_another_lane", old="lane % 4 * 2", new="(lane % 4 ^ 1) * 2"),
    OfColumns(name="block_scales_of_eight_columns", old="(b + j * 8)", new="(b + j / 2 * 16)"),
    # ---- which matrix
    Mutant(name="block_scales_of_the_first_matrix", old="scales.b + matrix * scales.b_of_matrix", new="scales.b"),
    OfColumns(
        name="block_scales_of_a_shorter_matrix",
        old="of_n * blocks * (args.of_columns ? kScaledBlock : 1)",
        new="of_n * blocks",
    ),
    # ---- the kernel ahead
    OfColumns(
        name="block_scales_loaded_before_they_are_there",
        file=C,
        old="    if (!kLoadsEarly<kConfig> || thread >= 128) griddepcontrol_wait();\n",
        new="    if (thread < 128) griddepcontrol_wait();\n",
        expect=too_early("plain load", B),
    ),
]
