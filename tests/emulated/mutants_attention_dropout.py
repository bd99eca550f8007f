"""Bugs planted in what attention's kernels do with dropout: which weights it is of, its factor, sums without it."""

from __future__ import annotations

import functools

from tests.emulated.mutants_attention import BOTH, CLEARED, GRADIENTS, MASK, F, G, Grad, Mutant

DROPOUT = "attention_dropout.h"
OPTIONS = ("batch=2", "group=2", "diagonal=30", "dropout=bhqk", "mask=bk")
WORDS = ("group=2", "dropout=qk")  # 16 neighbours in one load
Forward = functools.partial(Mutant, file=DROPOUT, options=OPTIONS)
Gradients = functools.partial(Grad, file=G, sizes=(70, 150, 40), options=OPTIONS)
# Of the first row all scores are masked.
HaveGradients = functools.partial(Gradients, options=("batch=2", "group=2", "dropout=bhqk", "mask=bhqk", "gradients=1"))
# dP^T is started late, and places are computed anew.
Wide = functools.partial(
    Gradients, row="{sm90_attention_grad, bf16, f32, {64, 64, 256}, 2, {1, 1}, 16}", sizes=(40, 70, 256)
)
APPLIED = "        dropout.apply(scores);\n"
OUTSIDE = r"out of bounds: plain load of \d bytes .*: the nearest array is dropout "
MUTANTS = [
    Forward(name="attention_dropout_of_the_first_tile_alone", file=F, old=APPLIED, new=""),
    Forward(
        name="attention_dropout_in_front_of_the_sum",
        file=F,
        old="        mask_scores(scores, mask.kept, args.mask, scale);\n"
        "        soften<Element, kHasBias>(scores, rows, tile",
        new="        mask_scores(scores, dropout.kept.kept, {args.dropout, true}, scale);\n"
        "        soften<Element, kHasBias>(scores, rows, tile",
        options=("dropout=bhqk",),
    ),
    Forward(name="attention_dropout_factor_forgotten", old="return kept.args.dropout.factor;", new="return 1;"),
    Forward(
        name="attention_dropout_is_the_mask",
        old="TileMaskAtUse<kSteps, &AttentionArgs::dropout>",
        new="TileMaskAtUse<kSteps>",
    ),
    Forward(
        name="attention_dropout_of_the_first_step",
        old="for (int step = 0; step < kSteps; ++step) kept[step] = tile.kept[step];",
        new="for (int step = 0; step < kSteps; ++step) kept[step] = tile.kept[0];",
        row="{sm90_attention, bf16, f32, {64, 128, 64}, 2, {1, 1}, 16}",
    ),
    Forward(
        name="attention_dropout_of_the_other_weights",
        old="(kept[i / 32] >> i % 32 & 1) == 0 ? 0 : values[i] * factor",
        new="(kept[i / 32] >> i % 32 & 1) != 0 ? 0 : values[i] * factor",
    ),
    Forward(
        name="attention_dropout_words_behind_the_last_row",
        file=MASK,
        old="if (row < args.q_rows && own < args.kv_rows) words.of_row[0]",
        new="if (own < args.kv_rows) words.of_row[0]",
        sizes=(90, 208, 40),
        options=WORDS,
        expect=OUTSIDE,
    ),
    Gradients(
        name="attention_grad_dropout_of_rows_forgotten",
        old="        drop(of_weights, undropped, args.dropout.factor);\n        if (args.mask.has_gradients)",
        new="        if (args.mask.has_gradients)",
    ),
    Gradients(
        name="attention_grad_dropout_of_columns_forgotten",
        old="if constexpr (kDrops) drop(of_weights, undropped, args.dropout.factor);",
        new="",
    ),
    Gradients(
        name="attention_grad_dropout_of_shares_forgotten",
        file=BOTH,
        old="to_kept_fragments<T, kN>(weights, fragments, undropped);",
        new="to_fragments<T, kN>(weights, fragments);",
    ),
    Gradients(
        name="attention_grad_dropout_drops_scores",
        old="attention_grad::to_fragments_of<kDrops, Element, kStep>(weights, fragments_p, undropped[0]);",
        new="drop(weights, undropped, 1), to_fragments<Element, kStep>(weights, fragments_p);",
    ),
    Gradients(
        name="attention_grad_dropout_factor_of_values_forgotten",
        old="float const of_kept = kDrops ? args.dropout.factor : 1;",
        new="float const of_kept = 1;",
    ),
    Gradients(
        name="attention_grad_dropout_of_the_first_column",
        file=DROPOUT,
        old="return (kept >> at & 1) == 0 ? 0 : sums[at];",
        new="return (kept >> (at & ~2) & 1) == 0 ? 0 : sums[at];",
    ),
    Wide(
        name="attention_grad_dropout_of_a_head_of_keys",
        file=BOTH,
        old="int const of_head = own.head * int(args.group) + head",
        new="int const of_head = own.head",
    ),
    Wide(
        name="attention_grad_dropout_of_the_first_rows",
        file=BOTH,
        old="args.dropout, own.batch, of_head, own.row, first, row, lane",
        new="args.dropout, own.batch, of_head, own.row, first, 0, lane",
        sizes=(100, 70, 256),
    ),
    HaveGradients(
        name="attention_grad_dropout_masked_rows_without_gradients",
        old=f"\n    {CLEARED}",
        new="\n      if (kept != kAllKept) attention_grad::clear_masked(weights, kept);\n",
    ),
    HaveGradients(
        name="attention_grad_dropout_masked_columns_without_gradients",
        old=f"      {CLEARED}",
        new="        if (kept != kAllKept) attention_grad::clear_masked(weights, kept);\n",
    ),
    HaveGradients(
        name="attention_grad_dropout_masked_weights_as_scores",
        old="if (args.mask.has_gradients) set_masked(weights, kept, [&](int i) { return of_masked[i / 2 % 2]; });",
        new="",
    ),
    HaveGradients(
        name="attention_grad_dropout_masked_weights_of_a_bias",
        file=BOTH,
        old="kHasBias ? RowBase::weight_of_masked(base[r].log_sum)",
        new="kHasBias ? 0",
        options=("batch=2", "group=2", "dropout=qk", "bias=hqk", "mask=bhqk", "gradients=1"),
    ),
]
assert {mutant.row for mutant in MUTANTS} > {GRADIENTS}
