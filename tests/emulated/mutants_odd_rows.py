"""Bugs planted in sm90_odd_rows.cuh: words and what is ahead of rows in them, boxes, slices of k, stages, and sums."""

from __future__ import annotations

import functools

from tests.emulated.mutants import OF_PIPELINE, PIPELINE, race
from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import too_early

S = "sm90_odd_rows.cuh"
ROW = "{sm90_odd_rows, bf16, f32, {32, 120, 128}, 5, {1, 1}, 2}"
WIDE = "{sm90_odd_rows, bf16, f32, {16, 120, 128}, 3, {1, 1}, 2}"
LONG = (24, 131, 1000)  # more k-tiles than stages, rows of b 3 elements behind words of 16 bytes
SHORT = (9, 61, 141)  # rows of a begin anywhere, too
BY_WORDS = ("batch=3",)  # of SHORT: matrices of b begin anywhere, and TMA loads none
TOUCHES = r"(ldmatrix|plain load|cp\.async|TMA load)"
OF_CP_ASYNC = race(S, TOUCHES, TOUCHES)
OUTSIDE = r"out of bounds: cp\.async \(read\) .*by .*thread \d+ .* at sm90_odd_rows\.cuh:\d+.*"
Mutant = functools.partial(AnyMutant, row=ROW, file=S, order="NN", sizes=LONG)

MUTANTS = [
    *(
        Mutant(name=f"odd_rows_{name}", file=PIPELINE, old=old, new=new, expect=OF_CP_ASYNC)
        for name, (old, new) in OF_PIPELINE.items()
    ),
    # ---- words
    Mutant(
        name="odd_rows_words_where_rows_begin",
        old="*reinterpret_cast<uint128_t const*>(row - ahead + word * kWord)",
        new="*reinterpret_cast<uint128_t const*>(row + word * kWord)",
        expect=r"cp\.async by .* at sm90_odd_rows\.cuh:\d+: 16 bytes from 0x[0-9a-f]+ .* are not aligned to their size",
        sizes=SHORT,
    ),
    Mutant(
        name="odd_rows_what_is_ahead_is_not_counted",
        old="count + ahead - word * kWord : 0;",
        new="count - word * kWord : 0;",
        expect="wrong",
        sizes=SHORT,
    ),
    Mutant(
        name="odd_rows_words_behind_the_end",
        old="left < kWord ? left : kWord;",
        new="kWord;",
        expect=OUTSIDE,
        sizes=SHORT,
    ),
    Mutant(
        name="odd_rows_behind_k",
        old="row < ks ? columns : 0",
        new="columns",
        expect=OUTSIDE,
        sizes=SHORT,
        options=BY_WORDS,
    ),
    Mutant(name="odd_rows_behind_m", old="m < m_left ? ks : 0", new="ks", expect=OUTSIDE, sizes=SHORT),
    Mutant(
        name="odd_rows_a_row_less_of_words",
        old="kPitchA / kWord, kWordsB",
        new="kPitchA / kWord - 1, kWordsB",
        expect="wrong",
        sizes=(9, 61, 1001),
    ),
    # ---- slices
    Mutant(
        name="odd_rows_k_as_it_lies",
        old="row % kSlices * kPerSlice + row / kSlices",
        new="row",
        expect="wrong",
        sizes=SHORT,
        options=BY_WORDS,
    ),
    # ---- boxes
    Mutant(
        name="odd_rows_box_of_another_slice",
        old="layout_b()(i * kBoxColumns, slice * kPerSlice)",
        new="layout_b()(i * kBoxColumns, (kSlices - 1 - slice) * kPerSlice)",
        expect="wrong",
    ),
    Mutant(
        name="odd_rows_boxes_where_rows_begin",
        old="(first_column + slice * args.b_k_stride) / kWord * kWord",
        new="(first_column + slice * args.b_k_stride)",
        expect=r"TMA load by .* is not a multiple of 16 bytes",
    ),
    Mutant(
        name="odd_rows_boxes_of_one_row",
        old="(first_column + slice * args.b_k_stride) / kWord",
        new="first_column / kWord",
        expect="wrong",
    ),
    Mutant(
        name="odd_rows_lines_end_alike",
        old="slice < rest ? &params.rest : &params.lines",
        new="&params.lines",
        expect="wrong",
        sizes=SHORT,
    ),
    Mutant(
        name="odd_rows_last_line_is_whole",
        old="slice < rest ? &params.rest : &params.lines",
        new="rest > 0 ? &params.rest : &params.lines",
        expect="wrong",
        sizes=SHORT,
    ),
    Mutant(
        name="odd_rows_boxes_of_one_matrix",
        old="matrix_of_b = map_coord<3>(matrix, args.b_batch_strides).c2;",
        new="matrix_of_b = 0;",
        expect="wrong",
        options=("batch=3",),
    ),
    Mutant(
        name="odd_rows_boxes_are_not_waited_for",
        old="      if (params.by_tma) mbarrier_wait(&smem.full[pipeline.read()], pipeline.read_phase());\n",
        new="",
        expect=race(S, TOUCHES, TOUCHES),
    ),
    Mutant(
        name="odd_rows_boxes_of_one_stage",
        old="uint64_t* const full = &smem.full[pipeline.write()];",
        new="uint64_t* const full = &smem.full[0];",
        expect=r"(deadlock|race|arriv)",
    ),
    Mutant(
        name="odd_rows_mbarriers_used_too_early",
        old="    sync_threads();         // the mbarriers are there\n",
        new="",
        expect=r"mbarrier",
    ),
    Mutant(
        name="odd_rows_a_begins_with_words",
        old=" + ahead_of_a);",
        new=");",
        expect="wrong",
        sizes=SHORT,
    ),
    Mutant(
        name="odd_rows_wrong_stage",
        old="move_view(tXsB_read, at);",
        new="move_view(tXsB_read, 0);",
        expect=race(S, TOUCHES, TOUCHES),
    ),
    # ---- sums
    Mutant(
        name="odd_rows_all_slices_lie_alike",
        old="sC(m, n + ahead_of_b[r], r)",
        new="sC(m, n + ahead_of_b[0], r)",
        expect="wrong",
    ),
    Mutant(
        name="odd_rows_a_slice_left_out",
        old="for (int r = 1; r < kSlices; ++r) sum",
        new="for (int r = 2; r < kSlices; ++r) sum",
        expect="wrong",
    ),
    Mutant(
        name="odd_rows_sums_over_stages_in_use",
        old="    sync_threads();  // every warp is done with the stages, which the sums replace\n",
        new="",
        expect=race(S, "(plain store|ldmatrix|plain load)", "(plain store|ldmatrix|plain load)"),
        sizes=(24, 131, 128),
    ),
    Mutant(
        name="odd_rows_sums_read_too_early",
        old="    sync_threads();  // the sums of all slices are there\n",
        new="",
        expect=race(S, "plain (load|store)", "plain (load|store)"),
        sizes=(9, 131, 141),
    ),
    Mutant(
        name="odd_rows_every_call_is_plain",
        old="Epilogue::is_of_words(args) && is_plain(args.epilogue)",
        new="true",
        expect="wrong",
        sizes=SHORT,
        options=("epilogue=2",),
    ),
    Mutant(
        name="odd_rows_does_not_wait_for_the_kernel_ahead",
        old="    griddepcontrol_wait();  // the kernel ahead may still run up to here\n",
        new="",
        expect=too_early("TMA load", S),
        sizes=SHORT,
    ),
]
