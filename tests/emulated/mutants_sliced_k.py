"""Bugs planted in sm90_sliced_k.cuh: its stages, the slices of k, the sums, and copies of what is added to them."""

from __future__ import annotations

import functools

from tests.emulated.mutants import OF_PIPELINE, PIPELINE, Mutant, race
from tests.emulated.mutants_sm90 import too_early

ROW = "{sm90_sliced_k, bf16, f32, {16, 32, 64}, 9, {1, 1}, 16}"
ROW_16 = "{sm90_sliced_k, bf16, f32, {16, 16, 64}, 17, {1, 1}, 16}"
S = "sm90_sliced_k.cuh"
LONG = (24, 40, 704)  # more k-tiles than stages
SHORT = (24, 40, 200)  # fewer, and not whole ones
OF_CP_ASYNC = race(S, "ldmatrix", "cp.async")

# What is added is copied: d itself, times -1; a bias, a residual behind relu, and z is kept.
ROW_32 = "{sm90_sliced_k, bf16, f32, {32, 32, 64}, 9, {1, 1}, 16}"
E = "epilogue.h"
OF_D, FINISHED = ("epilogue=5",), ("epilogue=2",)
KERNEL_AHEAD = "    griddepcontrol_wait();  // the kernel ahead may still run up to here\n"
FILLS = "    MOYE_NO_UNROLL\n    for (int stage = 0; stage < pipeline.kAhead; ++stage) fill();\n"
COPIES = """    // The thread's vectors of d, and what is added to them. The copies belong to the next stage's group.
    int const m = row_of(thread), n = thread % kVectorsN * kVectorOut;
    bool const has_vectors = kVectors >= kThreads || thread < kVectors;
    Copies& copies = reinterpret_cast<Copies*>(smem_base() + params.copies_at)[thread];
    if constexpr (kFinishing == Finishing::words) {
      if (has_vectors) Epilogue(args, tile, kBlkM, kBlkN).copy_rows(copies, CopyWord{}, m, kRowStep, n);
    }
"""
ACTIVATED = """    if (is_same<Operands, InMemory> || epilogue.activation != Activation::none)
      activate_all</*kRounded=*/false, /*kInTurn=*/is_same<Sum, int32_t>>(epilogue.activation, z);
"""
RESIDUAL = "    add(epilogue.residual, operands.residual, Compute(1));\n"
OUTSIDE = r"out of bounds: cp\.async .*by .*thread \d+ .* at sm90_sliced_k\.cuh:\d+.*"
Short = functools.partial(Mutant, row=ROW, file=S, sizes=SHORT, options=OF_D)

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
        ": is_plain(args.epilogue)    ? Finishing::plain",
        ": true ? Finishing::plain",
        "wrong",
        sizes=SHORT,
        options=("epilogue=2",),
    ),
    Mutant(
        "sliced_k_words_that_are_none",
        ROW,
        S,
        "!Epilogue::is_of_words(args) ? Finishing::any",
        "false ? Finishing::any",
        r"plain store of 16 bytes by .* at sm90_sliced_k\.cuh:\d+: the address 0x[0-9a-f]+ is not a multiple of 8",
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
    # ---- what is added to the sums
    Short(
        name="sliced_k_copies_in_front_of_the_kernel_ahead",
        old=KERNEL_AHEAD + FILLS + COPIES,
        new=COPIES + KERNEL_AHEAD + FILLS,
        expect=too_early(r"cp\.async", S),
    ),
    Short(
        name="sliced_k_copies_not_waited_for",
        old="        cp_async_wait_group<0>();  // the thread's copies are there\n",
        new="",
        expect=r"race on shared memory .*: plain load \(read\) .* is not ordered after cp\.async",
    ),
    Short(
        name="sliced_k_copies_in_a_stage",
        old=".copies_at = least}",
        new=".copies_at = 0}",
        expect=race(S, r"cp\.async", r"cp\.async"),
    ),
    Short(
        name="sliced_k_copies_behind_the_end",
        old="? least + kCopiesBytes : least;",
        new="? least : least;",
        expect=OUTSIDE,
    ),
    Short(
        name="sliced_k_copies_beside_all_stages",
        old="k_tiles < kStages &&",
        new="k_tiles <= kStages &&",
        expect=OUTSIDE,
        sizes=(24, 40, 576),
    ),
    Short(
        name="sliced_k_copies_of_no_group",
        old="return k_tiles > 0 &&",
        new="return k_tiles >= 0 &&",
        expect=r"race on shared memory .*: plain load \(read\) .* is not ordered after cp\.async",
        sizes=(24, 40, 0),
    ),
    Short(
        name="sliced_k_copies_of_rows_below_d",
        file=E,
        old="if (n >= n_left_ || m >= m_left_) return;\n    auto const copy_operand",
        new="if (n >= n_left_) return;\n    auto const copy_operand",
        expect=OUTSIDE,
    ),
    Short(
        name="sliced_k_copies_of_columns_beside_d",
        file=E,
        old="if (n >= n_left_ || m >= m_left_) return;\n    auto const copy_operand",
        new="if (m >= m_left_) return;\n    auto const copy_operand",
        expect=f"{OUTSIDE}|race on global memory d",
    ),
    Short(
        name="sliced_k_copies_of_second_rows_below_d",
        row=ROW_32,
        file=E,
        old="(m + row < m_left_ ? row : 0)",
        new="row",
        expect=OUTSIDE,
        options=(*OF_D, "out=bf16"),
    ),
    Short(
        name="sliced_k_copies_of_floats_in_half_a_word",
        row=ROW_32,
        old="kVectorOut * item_bytes(args.d_dtype) <= int(sizeof(typename Copies::Word)) &&",
        new="",
        expect="wrong",
    ),
    Short(
        name="sliced_k_first_row_twice",
        row=ROW_32,
        file=E,
        old="word_of<T>(operand, first, m, i * row_step, n), reinterpret_cast",
        new="word_of<T>(operand, first, m, 0, n), reinterpret_cast",
        expect="wrong",
        options=(*OF_D, "out=bf16"),
    ),
    Short(
        name="sliced_k_vectors_of_all_threads",
        row=ROW_16,
        old="kVectors >= kThreads || thread < kVectors",
        new="true",
        expect=r"out of bounds: cp\.async|race on global memory d",
    ),
    Short(
        name="sliced_k_beta_is_1",
        file=E,
        old="add(epilogue.c, operands.c, static_cast<Compute>(epilogue.beta));",
        new="add(epilogue.c, operands.c, Compute(1));",
        expect="wrong",
    ),
    Short(
        name="sliced_k_residual_in_front_of_the_activation",
        file=E,
        old=ACTIVATED + RESIDUAL,
        new=RESIDUAL + ACTIVATED,
        expect="wrong",
        options=FINISHED,
    ),
    Short(
        name="sliced_k_not_activated",
        file=E,
        old=ACTIVATED,
        new="",
        expect="wrong",
        options=FINISHED,
    ),
    Short(
        name="sliced_k_bias_is_the_residual",
        file=E,
        old="copy_operand(args_.epilogue.bias, bias_, to.bias);",
        new="copy_operand(args_.epilogue.residual, residual_, to.bias);",
        expect="wrong",
        options=FINISHED,
    ),
    Short(
        name="sliced_k_copied_calls_have_no_scales",
        old="sizeof(typename Copies::Word)) && !has_scales(args.epilogue) &&",
        new="sizeof(typename Copies::Word)) &&",
        expect="wrong",
        options=("scales=1",),
    ),
    Short(
        name="sliced_k_first_matrix_of_a_batch",
        old="      if (args.batch > 1) d += matrix_offset(args, tile.batch, args.d_batch_strides);\n",
        new="",
        expect="race on global memory (d|preactivation)",
        options=(*FINISHED, "batch=2"),
    ),
]
