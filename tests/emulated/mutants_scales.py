"""Bugs planted in the scales of rows and columns: those of another tile, matrix, row or column, or none."""

from __future__ import annotations

import functools

from tests.emulated.mutants import SM80
from tests.emulated.mutants import Mutant as AnyMutant

SM90 = "{sm90_cooperative, bf16, f32, {128, 64, 64}, 2, {1, 1}, 16}"

# By threads: tiles of 64 x 64, whole words of f32; by TMA: 16-bit results of tiles of 128 x 64.
ByThreads = functools.partial(
    AnyMutant, row=SM80, file="epilogue.h", sizes=(70, 72, 40), options=("scales=1",), expect="wrong"
)
ByTma = functools.partial(
    AnyMutant, row=SM90, file="epilogue_box.h", sizes=(150, 72, 64), options=("scales=1", "out=bf16"), expect="wrong"
)

MUTANTS = [
    ByThreads(name="scales_of_the_first_rows", old="first = args_.m - m_left_ + m;", new="first = m;"),
    ByThreads(name="scales_of_the_first_columns", old="first = args_.n - n_left_ + n;", new="first = n;"),
    ByThreads(name="scales_of_one_row_for_several", old="p[(first + row) * of_rows", new="p[first * of_rows"),
    ByThreads(
        name="scales_of_the_first_matrix",
        old="of_columns.data + matrix_offset(args_, matrix, of_columns.batch_strides)",
        new="of_columns.data",
        options=("scales=1", "batch=2"),
    ),
    ByThreads(
        name="scales_not_multiplied_where_rows_are_finished_together",
        old="    scale_rows<kCount>(m, row_step, n, z);\n",
        new="",
    ),
    ByTma(
        name="scales_of_the_upper_rows_alone", old="tile_row + half * 8 + warp.lane / 4", new="tile_row + warp.lane / 4"
    ),
    ByTma(name="scales_of_even_columns", old="warp.lane % 4 * 2 + k;", new="warp.lane % 4 * 2;"),
    ByTma(
        name="scales_of_the_first_matrix_by_tma",
        old="of_rows.data + matrix_offset(warp.args, matrix, of_rows.batch_strides)",
        new="of_rows.data",
        options=("scales=1", "out=bf16", "batch=2"),
    ),
]
