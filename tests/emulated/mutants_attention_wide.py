"""Bugs planted in what attention's kernels do where head_dim is above 128: waits, loads, and halves of the sums."""

from __future__ import annotations

import functools

from tests.emulated.mutants_attention import BOTH, MASK, F, G, Mutant
from tests.emulated.mutants_sm90 import race

BIAS = "attention_bias.h"
OPTIONS = ("heads=2", "diagonal=130", "bias=hqk", "mask=qk")
Forward = functools.partial(
    Mutant, row="{sm90_attention, bf16, f32, {64, 64, 256}, 2, {1, 1}, 16}", sizes=(70, 208, 200), options=OPTIONS
)
Gradients = functools.partial(
    Mutant,
    row="{sm90_attention_grad, bf16, f32, {64, 64, 256}, 2, {1, 1}, 16}",
    file=G,
    sizes=(70, 144, 200),
    options=(*OPTIONS, "ds=1"),
)
STORED = "args.ds.data != nullptr && attention_grad::share_of<Gemm>() == 0;"
MUTANTS = [
    Forward(
        name="attention_wide_products_not_waited_for",
        file=F,
        old="        if constexpr (kIsLate) finish_weighted();\n",
        new="",
        expect="accumulators of .* were written while a wgmma was in flight",
    ),
    Forward(name="attention_wide_bias_of_the_first_tile", file=BIAS, old="bias.start(column);", new="bias.start(0);"),
    Forward(name="attention_wide_mask_of_no_tile", file=MASK, old="      load_words(column);\n", new=""),
    Gradients(
        name="attention_grad_wide_first_half_twice",
        file=BOTH,
        old="warpgroup_id() - 1;",
        new="0;",
        options=OPTIONS,
    ),
    Gradients(
        name="attention_grad_wide_half_a_stage",
        old="(tOrdS, tOrK, read.index() * kShares, tOrdQ)",
        new="(tOrdS, tOrK, read.index(), tOrdQ)",
        expect=race("wgmma", G, "TMA load", BOTH),
    ),
    Gradients(
        name="attention_grad_wide_rows_still_read",
        file=BOTH,
        old="named_barrier_sync(1 + Gemm::kConsumers, 128 * Gemm::kConsumers);",
        new="named_barrier_sync(1 + thread / 128, 128);",
        expect=race("stmatrix", BOTH, "wgmma", BOTH),
    ),
    Gradients(
        name="attention_grad_wide_scores_written_twice",
        old=STORED,
        new=STORED.replace(" && attention_grad::share_of<Gemm>() == 0", ""),
        expect="race on global memory ds",
    ),
]
