"""Bugs planted in sm90_parallel_split_k: parts of k that are lost or another's, sums read too early or elsewhere."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import too_early

ROW = "{sm90_parallel_split_k, bf16, f32, {128, 128, 64}, 2, {1, 1}, 16}"
K, SHARED, SCHEDULER = "sm90_parallel_split_k.cuh", "sm90_persistent.h", "tile_scheduler.h"

# One tile and nine k-tiles, each a part of its own: one more than the second kernel loads together.
Mutant = functools.partial(AnyMutant, row=ROW, file=K, sizes=(9, 18, 570))
WORDS = (9, 20, 570)  # the same, and d in words of four elements
# The first kernel's way for rows that TMA cannot write, into what GemmArgs calls d.
STORED_INTO_D = r"out of bounds: plain store of 16 bytes .* at sm90_cooperative\.cuh:\d+: the nearest array is d "
TWICE = r"race on global memory d\+0x\w+: plain store .* is not ordered after plain store .*"

MUTANTS = [
    # ---- the first kernel: what is multiplied for a part
    Mutant(
        name="parallel_split_k_every_part_begins_with_the_first_k_tile",
        file=SHARED,
        old="coords, tile.k + k_tile, stages",
        new="coords, k_tile, stages",
        expect="wrong",
    ),
    Mutant(
        name="parallel_split_k_operands_of_the_sums_matrix",
        file=SCHEDULER,
        old="tile.batch / grid.parts, tile.batch % grid.parts * grid.k",
        new="tile.batch, tile.batch % grid.parts * grid.k",
        expect="wrong",
        options=("batch=2",),
    ),
    Mutant(
        name="parallel_split_k_remainder_for_nobody",
        file=SHARED,
        old="params.grid.k = ceil_div(params.grid.k, parts);",
        new="params.grid.k = params.grid.k / parts;",
        expect="wrong",
        sizes=(384, 128, 700),  # eleven k-tiles in six parts
    ),
    Mutant(
        name="parallel_split_k_epilogue_of_the_parts",
        old="    products.epilogue = GemmArgs{}.epilogue;\n",
        new="",
        expect=r"out of bounds: plain load of 4 bytes .* at sm90_cooperative\.cuh:\d+: the nearest array is c ",
        options=("epilogue=1",),
    ),
    # ---- the second kernel
    Mutant(
        name="parallel_split_k_sums_read_before_they_are_there",
        old="    griddepcontrol_wait();  // the sums are there\n",
        new="",
        expect=too_early("plain load", K),
    ),
    Mutant(
        name="parallel_split_k_the_last_part_left_out",
        old="if (first + i >= from.parts) break;",
        new="if (first + i >= from.parts - 1) break;",
        expect="wrong",
    ),
    Mutant(
        name="parallel_split_k_parts_loaded_together_alone",
        old="first < from.parts; first += kTogether",
        new="first < kTogether; first += kTogether",
        expect="wrong",
    ),
    Mutant(
        name="parallel_split_k_plain_sums_of_the_first_matrix",
        file="epilogue.h",
        old="    if (args.batch > 1) d += matrix_offset(args, tile.batch, args.d_batch_strides);\n",
        new="",
        expect=TWICE,
        sizes=WORDS,
        options=("batch=2",),
    ),
    Mutant(
        name="parallel_split_k_plain_with_an_epilogue",
        old="return is_plain(args.epilogue) && ",
        new="return ",
        expect="wrong",
        sizes=WORDS,
        options=("epilogue=3",),
    ),
    Mutant(
        name="parallel_split_k_plain_without_words",
        old=" && AddParts<true>::Epilogue::is_of_words(args)",
        new="",
        expect=TWICE,
    ),
    Mutant(
        name="parallel_split_k_rows_of_sums_cut_short",
        old="return ceil_div(args.n, 4) * 4;",
        new="return args.n;",
        expect=STORED_INTO_D,
    ),
    Mutant(
        name="parallel_split_k_sums_of_tf32_stored_as_d",
        row="{sm90_parallel_split_k, tf32, f32, {64, 128, 32}, 3, {1, 1}, 16}",
        old="parts, stream, params_of(sums)",
        new="parts, stream, params_of(products)",
        order="TN",
        expect=TWICE,
    ),
]
