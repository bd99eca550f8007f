"""Bugs planted where threads store rows that no word divides, shifted (cuda/gemm/epilogue_shifted.h)."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import THREE_BOXES, C, race

GAP = "a gap between d's rows has been written"
OUTSIDE = r"out of bounds: plain store of \d+ bytes"

# Two tiles along n, of which the second one ends inside of a box, and rows that begin anywhere.
Mutant = functools.partial(
    AnyMutant, row=THREE_BOXES, file="epilogue_shifted.h", sizes=(150, 301, 100), options=("out=bf16", "d_pad=2")
)
Finished = functools.partial(Mutant, sizes=(150, 302, 100), options=("out=bf16", "epilogue=2"))

MUTANTS = [
    Mutant(
        "shifted_odd_rows_as_even_ones",
        old="bool const is_odd = shift % 4 != 0;",
        new="bool const is_odd = false;",
        expect="is not a multiple of 4",
    ),
    Mutant(
        "shifted_words_of_one_lane_twice",
        old="(lane + 1) % 4;",
        new="lane % 4;",
        expect="wrong",
    ),
    Mutant(
        "shifted_first_elements_of_odd_rows_left_out",
        old="if (is_odd && lane % 4 == 0) *reinterpret",
        new="if (lane > 32) *reinterpret",
        expect="wrong",
    ),
    Mutant(
        "shifted_end_is_one_element_longer",
        old="d.rows && at < end &&",
        new="d.rows && at < end + 2 &&",
        expect="race on global memory d",
    ),
    Mutant(
        "shifted_last_sector_is_not_whole",
        old="sector + kSector <= d.bytes;",
        new="sector + kWord <= d.bytes;",
        expect=GAP,
    ),
    Mutant(
        "shifted_rows_below_d",
        old="if (row < d.rows && is_whole) {",
        new="if (is_whole) {",
        expect=OUTSIDE,
    ),
    Mutant(
        "shifted_last_sector_of_the_box_before_left_out",
        old="if (!is_first) store_shared(",
        new="if (lane > 32) store_shared(",
        expect="wrong",
    ),
    Mutant(
        "shifted_first_sectors_of_later_boxes_left_out",
        old="sector >= before - shift &&",
        new="sector >= before &&",
        expect="wrong",
    ),
    Mutant(
        "shifted_read_before_the_warp_has_written",
        old="    sync_warp();  // the box is there\n",
        new="",
        expect=race("plain load", C, "plain store", C),
    ),
    Mutant(
        "shifted_written_before_the_warp_has_read",
        old="    sync_warp();  // the box has been read\n",
        new="",
        expect=race("plain store", C, "plain load", C),
    ),
    Mutant(
        "shifted_filled_before_the_warp_has_read",
        old="    sync_warp();  // the box before has been read, and what it has left is there\n",
        new="",
        expect=race("plain store", C, "plain store", C),
    ),
    Finished(
        "shifted_results_leave_their_last_sectors_in_one_place",
        old="+ result * ShiftedBox::kLeftBytes};",
        new="+ 0 * result};",
        expect="wrong",
    ),
]
