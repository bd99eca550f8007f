"""Bugs planted in what attention's kernels do with a bias: where it is read, sums relative to it, its gradient."""

from __future__ import annotations

import functools

from tests.emulated.mutants_attention import GRADIENTS, SOFTMAX, G, Grad, Mutant

BIAS = "attention_bias.h"
# Rows of 49 columns: each element is loaded by itself.
ODD = ("batch=2", "group=2", "bias=bhqk", "ds=1")
PAIRS = ("batch=2", "group=2", "diagonal=30", "bias=bhqk", "bias16=1", "ds=2", "mask=bk")
Forward = functools.partial(Mutant, file=BIAS, sizes=(90, 49, 40), options=("batch=2", "group=2", "bias=bhqk"))
Pairs = functools.partial(Mutant, file=BIAS, options=("batch=2", "group=2", "diagonal=30", "bias=hqk", "bias16=1"))
Odd = functools.partial(Grad, file=BIAS, sizes=(70, 49, 40), options=ODD)
OfPairs = functools.partial(Grad, file=BIAS, sizes=(70, 150, 40), options=PAIRS)
OUTSIDE = r"out of bounds: plain load of \d bytes .*: the nearest array is bias "
MUTANTS = [
    Forward(name="attention_bias_of_the_first_row", old="+ 8 * bias.row_stride * format", new="+ 0 * format"),
    Forward(
        name="attention_bias_behind_the_last_row",
        old="row + 8 * r < args.q_rows ? int(args.kv_rows) : 0",
        new="int(args.kv_rows)",
        expect=OUTSIDE,
    ),
    Forward(
        name="attention_bias_behind_the_last_column",
        old="if (first + 1 < of.end[r]) pair[1]",
        new="if (first < of.end[r]) pair[1]",
        options=("bias=k",),
        expect=OUTSIDE,
    ),
    Pairs(
        name="attention_bias_of_pairs_first", old="format.has_pairs ? words[i] >> 16", new="format.has_pairs ? words[i]"
    ),
    Pairs(name="attention_bias_of_this_tile_again", old="start(column + kSteps * 64);", new="start(column);"),
    Pairs(name="attention_bias_scaled", old="sums[kFirst + i], scale, ", new="sums[kFirst + i], 1, "),
    Pairs(
        name="attention_bias_sums_not_rescaled",
        file=SOFTMAX,
        old="fast_exp2((rows.largest[r] - base) * scale)",
        new="1",
    ),
    Odd(
        name="attention_grad_bias_of_the_first_column",
        old="int const of = column + 8 * r;",
        new="int const of = column;",
    ),
    Odd(
        name="attention_grad_bias_of_a_head_of_keys",
        file=G,
        old="head * int(args.group) + head, column, step * kStep);",
        new="head, column, step * kStep);",
    ),
    Odd(
        name="attention_grad_ds_of_the_first_row",
        old="int const of = row + 8 * r;\n      rows[r]",
        new="int const of = row;\n      rows[r]",
    ),
    Odd(
        name="attention_grad_ds_behind_the_last_column",
        old="if (first + 1 < end[r]) to[1]",
        new="if (first < end[r]) to[1]",
        expect=r"race on global memory ds\+.*: plain store",
    ),
    OfPairs(
        name="attention_grad_ds_left_out_behind_the_diagonal",
        old="column < args.kv_rows; column += kStep",
        new="column < 0; column += kStep",
    ),
    OfPairs(
        name="attention_grad_bias_log_sum_left_out",
        old="float(kLog2E), -__builtin_fabsf(log_sum)",
        new="float(kLog2E), 0",
    ),
    OfPairs(
        name="attention_grad_bias_log_sum_of_the_step_before",
        file=G,
        old="sum = fetch_sum(step + 1);",
        new="sum = fetch_sum(step);",
    ),
    OfPairs(
        name="attention_grad_bias_of_masked_rows_left_out",
        old="? fast_exp2(-__builtin_fabsf(log_sum)) : 0",
        new="? 0 : 0",
        options=("batch=2", "bias=hqk", "mask=bhqk"),
    ),
]
assert {mutant.row for mutant in MUTANTS} > {GRADIENTS}
