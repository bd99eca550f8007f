"""Bugs planted in sm90_odd_rows.cuh: words and what is ahead of rows in them, slices of k, stages, and sums."""

from __future__ import annotations

import functools

from tests.emulated.mutants import OF_PIPELINE, PIPELINE, race
from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import too_early

S = "sm90_odd_rows.cuh"
ROW = "{sm90_odd_rows, bf16, f32, {32, 56, 128}, 4, {1, 1}, 2}"
WIDE = "{sm90_odd_rows, bf16, f32, {16, 120, 128}, 3, {1, 1}, 2}"
LONG = (24, 131, 1000)  # more k-tiles than stages, rows of b 3 elements behind words of 16 bytes
SHORT = (9, 61, 141)  # rows of a begin anywhere, too
TOUCHES = r"(ldmatrix|plain load|cp\.async)"
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
        old="row + i * kSlicesAtOnce < ks ? columns : 0",
        new="columns",
        expect=OUTSIDE,
        sizes=SHORT,
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
    Mutant(name="odd_rows_k_as_it_lies", old="r * kPerSlice + q);", new="q * kSlices + r);", expect="wrong"),
    Mutant(
        name="odd_rows_of_another_slice",
        row=WIDE,
        old="next_b + i * kSlicesAtOnce * args.b_k_stride",
        new="next_b + (kSlices / kSlicesAtOnce - 1 - i) * kSlicesAtOnce * args.b_k_stride",
        expect="wrong",
        sizes=(16, 131, 256),
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
        expect=race(S, "(cp.async|ldmatrix)", "(cp.async|ldmatrix)"),
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
        sizes=SHORT,
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
        expect=too_early(r"cp\.async", S),
        sizes=SHORT,
    ),
]
