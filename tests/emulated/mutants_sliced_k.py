"""Bugs planted in sm90_sliced_k.cuh: its stages, the slices of k, and the sums that are added up."""

from __future__ import annotations

from tests.emulated.mutants import OF_PIPELINE, PIPELINE, Mutant, race
from tests.emulated.mutants_sm90 import too_early

ROW = "{sm90_sliced_k, bf16, f32, {16, 32, 64}, 9, {1, 1}, 16}"
ROW_16 = "{sm90_sliced_k, bf16, f32, {16, 16, 64}, 17, {1, 1}, 16}"
S = "sm90_sliced_k.cuh"
LONG = (24, 40, 704)  # more k-tiles than stages
SHORT = (24, 40, 200)  # fewer, and not whole ones
OF_CP_ASYNC = race(S, "ldmatrix", "cp.async")

MUTANTS = [
    *(
        Mutant(f"sliced_k_{name}", ROW, PIPELINE, *texts, OF_CP_ASYNC, sizes=LONG)
        for name, texts in OF_PIPELINE.items()
    ),
    Mutant(
        "sliced_k_wrong_stage",
        ROW,
        S,
        "copy(smem_copy_b, in_stage(tXsB, pipeline.read()), tXrB);",
        "copy(smem_copy_b, in_stage(tXsB, 0), tXrB);",
        race(S, "(cp.async|ldmatrix)", "(cp.async|ldmatrix)"),
        sizes=LONG,
    ),
    Mutant(
        "sliced_k_stage_refilled_before_barrier",
        ROW,
        S,
        "int const stage = pipeline.write();",
        "int const stage = pipeline.read();",
        race(S, "cp.async", "(cp.async|ldmatrix)"),
        sizes=LONG,
    ),
    Mutant(
        "sliced_k_sums_over_stages_in_use",
        ROW,
        S,
        "    sync_threads();  // every warp is done with the stages, which the sums replace\n",
        "",
        race(S, "(plain store|ldmatrix)", "(plain store|ldmatrix)"),
        sizes=(24, 40, 64),
    ),
    Mutant(
        "sliced_k_sums_read_too_early",
        ROW,
        S,
        "    sync_threads();  // the sums of all slices are there\n",
        "",
        race(S, "plain (load|store)", "plain (load|store)"),
        sizes=SHORT,
    ),
    Mutant("sliced_k_a_slice_left_out", ROW, S, "slice < kSlices; ++slice", "slice < kSlices - 1; ++slice", "wrong"),
    Mutant(
        "sliced_k_one_place_for_all_sums",
        ROW,
        S,
        "sC(_, _, slice)",
        "sC(_, _, _0{})",
        race(S, "plain store", "plain store"),
    ),
    Mutant(
        "sliced_k_every_call_is_plain",
        ROW,
        S,
        "is_plain(args.epilogue) && TileEpilogue<float, kVectorOut>::is_of_words(args)",
        "true",
        "wrong",
        sizes=SHORT,
        options=("epilogue=1",),
    ),
    Mutant(
        "sliced_k_words_that_are_none",
        ROW,
        S,
        "is_plain(args.epilogue) && TileEpilogue<float, kVectorOut>::is_of_words(args)",
        "is_plain(args.epilogue)",
        r"plain store of 16 bytes by .* at epilogue\.h:\d+: the address 0x[0-9a-f]+ is not a multiple of 8",
        sizes=(24, 39, 64),
        order="NT",
    ),
    Mutant(
        "sliced_k_does_not_wait_for_the_kernel_ahead",
        ROW,
        S,
        "    griddepcontrol_wait();  // the kernel ahead may still run up to here\n",
        "",
        too_early(r"cp\.async", S),
        sizes=SHORT,
    ),
    Mutant(
        "sliced_k_shared_memory_of_one_stage_less",
        ROW,
        S,
        "grid.k < kStages ? grid.k * int(sizeof(Stage))",
        "grid.k < kStages ? (grid.k - 1) * int(sizeof(Stage))",
        r"out of bounds: cp\.async \(write\) .* at sm90_sliced_k\.cuh:\d+: .* of shared memory",
        sizes=SHORT,
    ),
    Mutant(
        "sliced_k_rows_of_a_vector_twice",
        ROW_16,
        S,
        "(row & ~3) | (row & 1) << 1 | (row >> 1 & 1)",
        "(row & ~3) | (row & 1) << 1",
        r"race on global memory d.*: plain store \(write\)",
    ),
    Mutant(
        "sliced_k_edge_of_k",
        ROW,
        S,
        "valid_elements<kMajorB, kVector>(tBcB(_0{}, i, j), n_left, k_left)",
        "valid_elements<kMajorB, kVector>(tBcB(_0{}, i, j), n_left, kBlkK)",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at sm90_sliced_k\.cuh:\d+.*",
        sizes=SHORT,
    ),
]
