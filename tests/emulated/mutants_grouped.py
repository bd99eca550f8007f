"""Bugs planted in sm90_grouped: groups that begin or end elsewhere, rows and matrices that nobody writes, or two do."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import deadlock, race, too_early

ROW = "{sm90_grouped, bf16, f32, {64, 64, 64}, 3, {1, 1}, 16}"
K, GROUPS, TURNS = "sm90_grouped.cuh", "grouped.h", "turns.h"
E, STAGING, BOX = "epilogue_sm90.h", "epilogue_staging.h", "epilogue_box.h"

# 21 tiles of rows in 2 CTAs: groups of more than a tile, of none and of one row, one that a tile holds, one whose size
# is below zero; and rows behind them all.
M = functools.partial(
    AnyMutant, row=ROW, file=GROUPS, expect="wrong", sizes=(270, 136, 200), options=("sizes=70,0,1,64,33,-5,60",)
)
# 6 tiles for each of six groups, and k behind the last one.
OF_K = functools.partial(
    AnyMutant,
    row=ROW,
    file=GROUPS,
    expect="wrong",
    sizes=(136, 72, 300),
    options=("sizes=70,0,1,64,129,0",),
    order="TN",
)
# More groups than lanes, which have two each.
FORTY = ("sizes=" + ",".join(["7", "0", "9", "5"] * 10),)
# Two b: 18 tiles of 64 rows and of 64 columns, half of which is another matrix.
PAIR = functools.partial(
    M,
    row="{sm90_grouped, bf16, f32, {64, 128, 64}, 3, {1, 1}, 16}",
    file=K,
    sizes=(270, 72, 130),
    options=("sizes=70,0,1,64,33,-5,60", "out=bf16", "pair=1"),
)
# 8-bit floats, whose sums leave the tensor core with every stage, and their scales: 7 tiles of rows, two wgmmas high,
# and 3 of columns.
FLOAT8 = functools.partial(
    M,
    row="{sm90_grouped, e4m3, f32, {128, 64, 128}, 3, {1, 1}, 16}",
    file=K,
    sizes=(270, 136, 600),
    options=("sizes=70,0,1,64,33,-5,60", "out=bf16", "scales=1"),
    order="NT",
)
# The groups fill all rows.
FILLED = ("sizes=70,0,1,64,33,102", "out=bf16", "epilogue=1")

OUTSIDE = r"out of bounds: TMA {} .*of \d+ bytes .* at sm90_grouped\.cuh:\d+: the nearest array is {} "
STORED_TWICE = r"race on global memory d\+0x[0-9a-f]+: TMA store .* is not ordered after TMA store"

SEARCH = "table_.first_tile[middle] <= id_"
TABLE = (
    "    if (thread < 32) make_group_table<kRaggedOf<kOrder>, kBlkM>"
    "(smem.groups, params.grid, args.group_sizes, thread);\n"
)
BARRIER = "    sync_threads();\n    if (thread < 128) {\n"
FIRST = "return grid.length - tile.size; }"
END = "\nMOYE_DEVICE int end_of_group(GroupedTile const& tile) { return tile.begin + tile.size; }"
ARRIVE = "  if (lane == 0) mbarrier_arrive(&turn[1 - consumer]);"
PLACE = """.map_row = kRowsAreRagged ? first_of_group(tile, params.grid) + m : m,
                                           .map_matrix = kRowsAreRagged ? end_of_group(tile) : tile.group"""

MUTANTS = [
    # ---- the table of groups
    M(
        name="grouped_sizes_behind_the_last_group",
        old="i < count ? group_sizes",
        new="i < each ? group_sizes",
        expect=r"out of bounds: plain load of 4 bytes .* at sm90_grouped\.cuh:\d+: the nearest array is group_sizes ",
    ),
    M(name="grouped_size_below_zero", old="    if (sizes[i] < 0) sizes[i] = 0;\n", new=""),
    M(
        name="grouped_sizes_not_limited",
        old="return int(sum < length ? sum : length);",
        new="return int(sum);",
        options=("sizes=200,0,150,-3,40",),
        expect=OUTSIDE.format("load", "a"),
    ),
    M(name="grouped_lanes_far_before_left_out", old="delta < 32; delta", new="delta < 16; delta", options=FORTY),
    M(
        name="grouped_first_lane_left_out",
        old="if (lane >= delta)",
        new="if (lane > delta)",
        options=FORTY,
        expect=STORED_TWICE,
    ),
    M(
        name="grouped_own_groups_counted_too",
        old="return lane == 0 ? 0 : others;",
        new="return lane == 0 ? 0 : total;",
        options=FORTY,
        expect=STORED_TWICE,
    ),
    M(
        name="grouped_groups_of_a_lane_rounded_down",
        old="(grid.groups + 31) / 32",
        new="grid.groups / 32",
        options=FORTY,
        expect=OUTSIDE.format("load", "a"),
    ),
    M(
        name="grouped_end_of_the_first_lane",
        old="if (lane != 31) return;",
        new="if (lane != 0) return;",
        expect=STORED_TWICE,
    ),
    M(
        name="grouped_last_tile_of_a_group_left_out",
        old="return (size + kTileM - 1) / kTileM * grid.tiles_n;",
        new="return size / kTileM * grid.tiles_n;",
    ),
    M(
        name="grouped_table_read_before_it_is_there",
        file=K,
        old=TABLE + BARRIER,
        new="    sync_threads();\n" + TABLE + BARRIER.replace("    sync_threads();\n", ""),
        expect=race("plain store", K, "plain load", GROUPS),
    ),
    M(
        name="grouped_sizes_read_before_they_are_there",
        file=K,
        old="    griddepcontrol_wait();  // the kernel ahead may still run up to here\n",
        new="",
        expect=too_early("plain load", K),
    ),
    # ---- tiles
    M(name="grouped_first_tile_of_the_group_before", old=SEARCH, new=SEARCH.replace("<=", "<")),
    M(
        name="grouped_rows_behind_the_last_group_are_its",
        old="high = grid_.groups;",
        new="high = grid_.groups - 1;",
        expect=STORED_TWICE,
    ),
    M(
        name="grouped_rows_behind_the_last_group_left",
        old="first_tile[grid.groups + 1] = tile + tiles_of(grid.length - begin);",
        new="first_tile[grid.groups + 1] = tile;",
    ),
    M(
        name="grouped_rows_behind_the_last_group_multiplied",
        old="return tile.group < grid.groups ? grid.k_tiles : 0;",
        new="return grid.k_tiles;",
        options=("sizes=70,0,1,64,33,-5,60", "special=1"),
    ),
    OF_K(name="grouped_ragged_k_one_matrix_of_tiles", old=": m * groups;", new=": m;"),
    OF_K(
        name="grouped_ragged_k_rounded_down",
        old="return (tile.size + kTileK - 1) / kTileK;",
        new="return tile.size / kTileK;",
    ),
    OF_K(name="grouped_empty_group_not_zero", file=TURNS, old="  if (k_tiles == 0) clear(tCrC);\n", new=""),
    # ---- the consumers
    M(
        name="grouped_other_tile_not_skipped",
        file=K,
        old="        read += k_tiles;\n        continue;",
        new="        continue;",
        expect=deadlock("parity 1: 1 phases complete, 4 of 4 arrivals", TURNS),
    ),
    OF_K(
        name="grouped_no_turn_after_an_empty_group",
        file=TURNS,
        old=ARRIVE,
        new=ARRIVE.replace("lane == 0", "lane == 0 && k_tiles > 0"),
        expect=deadlock(r"parity [01]: \d+ phases complete, 4 of 4 arrivals", TURNS),
    ),
    # ---- tensor maps that end where a group does
    M(name="grouped_map_ends_before_the_last_group", old="{{ragged.size + 1,", new="{{ragged.size,"),
    OF_K(
        name="grouped_ragged_k_map_ends_before_the_last_group",
        old="{{ragged.size + 1,",
        new="{{ragged.size,",
        options=("sizes=70,0,1,64,129,36",),
        expect=OUTSIDE.format("load", "a"),
    ),
    M(
        name="grouped_map_begins_with_the_tensor",
        file=E,
        old="    if (ragged) data = origin_of_groups(data, m, item_bytes(args.d_dtype));\n",
        new="",
        expect=OUTSIDE.format("store", "d"),
    ),
    M(
        name="grouped_begins_a_row_early",
        old=FIRST,
        new=FIRST.replace(";", " - 1;"),
        expect=OUTSIDE.format("load", "a"),
    ),
    M(name="grouped_ends_a_row_late", old=END, new=END.replace("size;", "size + 1;")),
    M(  # the rows of a tile behind its group's end
        name="grouped_stored_a_tile_further",
        file=K,
        old=PLACE,
        new=PLACE.replace("+ m : m", "+ m - 64 : m").replace("end_of_group(tile) :", "end_of_group(tile) + 64 :"),
        expect=STORED_TWICE,
    ),
    OF_K(
        name="grouped_ragged_k_ends_a_tile_late",
        old=FIRST + END,
        new=FIRST.replace(";", " - 64;") + END.replace("size;", "size + 64;"),
        sizes=(136, 72, 400),  # k enough for all that is loaded
    ),
    M(
        name="grouped_stored_with_both_coordinates_swapped",
        file=K,
        old=PLACE,
        new=PLACE.replace("first_of_group(tile, params.grid) + m", "end_of_group(tile) + m").replace(
            "end_of_group(tile) : tile.group", "first_of_group(tile, params.grid) : tile.group"
        ),
        expect=STORED_TWICE,
    ),
    M(
        name="grouped_weights_of_the_next_group",
        file=K,
        old="kRagged == Ragged::m ? tile.group : end_of_group(tile), 0, 0};",
        new="kRagged == Ragged::m ? tile.group + 1 : end_of_group(tile), 0, 0};",
    ),
    # ---- the epilogue
    M(
        name="grouped_stored_where_the_group_is",
        file=STAGING,
        old="matrix = warp.place.map_matrix;",
        new="matrix = warp.place.matrix;",
        expect=OUTSIDE.format("store", "d"),
    ),
    M(name="grouped_bias_of_the_first_group", file=K, old=".matrix = tile.group,", new=".matrix = 0,", options=FILLED),
    M(
        name="grouped_residual_of_the_first_rows",
        file=K,
        old=".row = kRowsAreRagged ? tile.begin + m : m,",
        new=".row = m,",
        options=FILLED,
    ),
    M(
        name="grouped_residual_where_the_map_says",
        file=BOX,
        old="warp.place.row + tile_row;",
        new="warp.place.map_row + tile_row;",
        options=FILLED,
    ),
    OF_K(
        name="grouped_ragged_k_residual_of_the_first_group",
        file=BOX,
        old="matrix_offset(warp.args, warp.place.matrix, operand.batch_strides)",
        new="matrix_offset(warp.args, 0, operand.batch_strides)",
        options=("sizes=70,0,1,64,129,0", "out=bf16", "epilogue=1"),
    ),
    # ---- two b
    PAIR(
        name="grouped_pair_second_of_the_next_group",
        file="tma_operand.h",
        old="load_box<kRank>(map, full, half, k, row, matrix, multicast);",
        new="load_box<kRank>(map, full, half, k, row, {matrix.c2 + i, 0, 0}, multicast);",
    ),
    PAIR(
        name="grouped_pair_exchanged",
        old="load_pair<3>(&params.maps.b, &params.maps.second_b,",
        new="load_pair<3>(&params.maps.second_b, &params.maps.b,",
    ),
    PAIR(
        name="grouped_pair_columns_of_one_b",
        old="n = tile.n * (kPair ? kBlkN / 2 : kBlkN);",
        new="n = tile.n * kBlkN;",
    ),
    PAIR(
        name="grouped_pair_bytes_of_few_columns",
        old="boxes_b = kPair ? B::kBoxes : B::boxes_of",
        new="boxes_b = B::boxes_of",
        order="NN",
        expect="TMA load .* are still in flight: fewer bytes were expected than are loaded",
    ),
    PAIR(
        name="grouped_pair_tiles_of_one_b",
        old="TileMNK const tile{kBlkM, tile_columns<kConfig>(args.gemm), kBlkK};",
        new="TileMNK const tile{kBlkM, kBlkN, kBlkK};",
    ),
    PAIR(name="grouped_pair_empty_tiles_not_zero", file=TURNS, old="  if (k_tiles == 0) clear(tCrC);\n", new=""),
    PAIR(
        name="grouped_pair_products_stored_where_the_group_is",
        file=STAGING,
        expect=OUTSIDE.format("store", "preactivation"),
        old="int const map_row = warp.place.map_row + row, matrix = warp.place.map_matrix;",
        new="int const map_row = warp.place.row + row, matrix = warp.place.map_matrix;",
        options=("sizes=70,0,1,64,33,-5,60", "out=bf16", "pair=2"),
    ),
    # ---- 8-bit floats
    FLOAT8(name="grouped_float8_sums_of_the_last_stage", old="_0{}) += tCrStage(k);", new="_0{}) = tCrStage(k);"),
    FLOAT8(name="grouped_float8_sums_of_the_first_rows", old="tCrC(k, i, _0{}) +=", new="tCrC(k, 0, _0{}) +="),
    FLOAT8(name="grouped_float8_first_rows_again", old="tCrA(_, i, block, ", new="tCrA(_, 0, block, "),
    FLOAT8(
        name="grouped_float8_stages_summed_on",
        old="        tiled_mma.accumulate_ = GMMA::ScaleOut::Zero;\n",
        new="        tiled_mma.accumulate_ = k_tile > 0 ? GMMA::ScaleOut::One : GMMA::ScaleOut::Zero;\n",
    ),
    FLOAT8(name="grouped_float8_not_from_zero", old="    clear(tCrC);\n    mbarrier_wait", new="    mbarrier_wait"),
    FLOAT8(
        name="grouped_float8_no_turns",
        old="    mbarrier_wait(&smem.turn[consumer], phase);  // or",
        new="    // or",
        expect=r"race on shared memory smem\+0x[0-9a-f]+: (wgmma|TMA load)",
    ),
    FLOAT8(
        name="grouped_float8_released_before_it_is_read",
        old="        if (i + 1 == kAtoms) smem.pipeline.consumer_release(read, lane);\n",
        new="        if (i == 0) smem.pipeline.consumer_release(read, lane);\n",
        expect=race("TMA load", K, "wgmma", K),
    ),
    FLOAT8(
        name="grouped_scales_of_the_first_group",
        file=BOX,
        old="of_columns.data + matrix_offset(warp.args, matrix, of_columns.batch_strides)",
        new="of_columns.data + matrix_offset(warp.args, 0, of_columns.batch_strides)",
    ),
    FLOAT8(
        name="grouped_scales_of_no_group",
        file=BOX,
        old="  if (!warp.place.has_matrix) return;\n",
        new="",
        expect=r"out of bounds: plain load of 4 bytes .* at sm90_grouped\.cuh:\d+: the nearest array is column_scale ",
    ),
    FLOAT8(
        name="grouped_scales_of_the_first_rows",
        file=BOX,
        old="int const row = warp.place.row + tile_row + half * 8 + warp.lane / 4;",
        new="int const row = tile_row + half * 8 + warp.lane / 4;",
    ),
    FLOAT8(
        name="grouped_scales_behind_the_last_row",
        file=BOX,
        old="float const scale = row < warp.place.end ? p[row * of_rows.stride] : 0.0f;",
        new="float const scale = p[row * of_rows.stride];",
        options=("sizes=70,0,1,64,33,-5,107", "out=bf16", "scales=1"),
        expect=r"out of bounds: plain load of 4 bytes .* at sm90_grouped\.cuh:\d+: the nearest array is row_scale ",
    ),
]
