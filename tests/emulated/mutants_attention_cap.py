"""Bugs planted in what attention's kernels do with a soft cap of scores, and with its derivative."""

from __future__ import annotations

import functools

from tests.emulated.mutants_attention import BOTH, SOFTMAX, F, G, Grad, Mutant

CAP = "attention_cap.h"
OPTIONS = ("batch=2", "group=2", "diagonal=30", "cap=2", "mask=bk")
Forward = functools.partial(Mutant, file=CAP, options=OPTIONS)
Gradients = functools.partial(Grad, file=G, sizes=(70, 150, 40), options=OPTIONS)
# dP^T is started late.
Late = functools.partial(
    Gradients, row="{sm90_attention_grad, bf16, f32, {128, 64, 128}, 2, {1, 1}, 16}", sizes=(40, 70, 128)
)
APPLIED = "        cap.apply(scores);\n        mask_scores"
SEEN = "row >= first_row + i / 2 % 2 * 8"
MUTANTS = [
    Forward(name="attention_cap_of_the_first_tile_alone", file=F, old=APPLIED, new=APPLIED.split("\n")[1]),
    Forward(name="attention_cap_of_base_2_forgotten", old="float(2 * kLog2E)", new="2"),
    Forward(
        name="attention_cap_without_a_sign", old="__builtin_copysignf((1 - e) * share, sum)", new="(1 - e) * share"
    ),
    Forward(
        name="attention_cap_of_lse_forgotten",
        file=SOFTMAX,
        old="factor_of_scores<kKind>(args) + log",
        new="args.scale + log",
    ),
    Gradients(name="attention_grad_cap_slope_halved", file=CAP, old="e * twice * twice", new="e * twice * share"),
    Gradients(name="attention_grad_cap_slope_of_rows_forgotten", old="slope * fast_exp2(", new="fast_exp2("),
    Gradients(
        name="attention_grad_cap_slope_of_columns_forgotten", file=BOTH, old="weight * slope : 0", new="weight : 0"
    ),
    Gradients(
        name="attention_grad_cap_slope_of_shares",
        file=BOTH,
        old="of_masked : weight;",
        new="of_masked : weight * slope;",
    ),
    Gradients(
        name="attention_grad_cap_rows_of_the_first_column",
        file=BOTH,
        old=SEEN,
        new="row >= first_row",
        options=OPTIONS[:-1],
    ),
    Gradients(
        name="attention_grad_cap_means_forgotten",
        file=BOTH,
        old="kIsMasked ? of_step[2][row] : 0",
        new="0",
        options=("batch=2", "cap=2", "mask=bhqk"),
    ),
    Late(
        name="attention_grad_cap_scores_not_waited_for",
        old="kIsLate ? 0 : 1",
        new="1",
        expect="accumulators of .* were written while a wgmma was in flight",
    ),
]
