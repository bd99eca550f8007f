"""Bugs planted in sm90_grouped where rows of d lie elsewhere: stored where they are not, or not at all."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant

ROW = "{sm90_grouped, bf16, f32, {64, 128, 64}, 3, {1, 1}, 16}"
GROUPS = "sizes=70,0,1,64,33,-5,60"

# 12 tiles of rows, of which groups end in most, and two of columns.
M = functools.partial(
    AnyMutant,
    row=ROW,
    file="epilogue_staging.h",
    expect="wrong",
    sizes=(270, 136, 200),
    options=(GROUPS, "d_rows=1"),
)
FUSED = functools.partial(M, options=("sizes=70,0,1,64,33,102", "out=bf16", "epilogue=1", "d_rows=1"))
PAIR = functools.partial(M, file="epilogue_gate.h", options=(GROUPS, "out=bf16", "pair=2", "d_rows=1"))

OUTSIDE = r"out of bounds: plain store of \d+ bytes .* the nearest array is d "
STORED_TWICE = r"race on global memory d\+0x[0-9a-f]+: plain store .* is not ordered after plain store"

MUTANTS = [
    M(
        name="scattered_in_order",
        file="sm90_grouped.cuh",
        old=".rows = kRowsAreRagged ? args.d_rows : nullptr",
        new=".rows = nullptr",
    ),
    M(name="scattered_where_it_was_read", old="? warp.place.rows[from] : -1;", new="? from : -1;"),
    M(
        name="scattered_rows_of_the_next_group",
        old="int const to = from < warp.place.end ? warp.place.rows[from] : -1;",
        new="int const to = warp.place.rows[from];",
        expect=r"race on global memory d\+0x[0-9a-f]+: plain store|out of bounds: plain load .* d_rows ",
    ),
    M(
        name="scattered_outside",
        old="if (!is_stored || unsigned(to_row) >= unsigned(args.m)) continue;",
        new="if (!is_stored) continue;",
        options=(GROUPS, "d_rows=2"),
        expect=OUTSIDE,
    ),
    M(
        name="scattered_columns_of_the_next_row",
        old="bool const is_stored = at < int(args.n);",
        new="bool const is_stored = true;",
        expect=f"race on global memory d\\+0x[0-9a-f]+: plain store|{OUTSIDE}",
    ),
    M(
        name="scattered_box_read_without_its_swizzle",
        old="(piece ^ row % 8) * 16);\n    auto* const row_of_z",
        new="piece * 16);\n    auto* const row_of_z",
    ),
    M(
        name="scattered_rows_of_the_first_lanes",
        old="shfl_sync(kFullWarp, to, row);",
        new="shfl_sync(kFullWarp, to, i);",
        expect=STORED_TWICE,
    ),
    FUSED(
        name="scattered_preactivation_stored_as_d",
        old="scatter<int(sizeof(Out))>(warp, i == 0 ? warp.args.d : warp.args.epilogue.preactivation,",
        new="scatter<int(sizeof(Out))>(warp, warp.args.d,",
    ),
    PAIR(
        name="scattered_products_exchanged",
        old="output == 0 ? epilogue.preactivation",
        new="output == 0 ? epilogue.second_product",
    ),
]
