"""Bugs planted in the real kernels are caught, each in one deterministic run and with a report that names its cause."""

from __future__ import annotations

import re

import pytest

from tests.emulated import (
    mutants,
    mutants_ahead,
    mutants_attention,
    mutants_attention_bias,
    mutants_attention_cap,
    mutants_attention_dropout,
    mutants_attention_wide,
    mutants_batches,
    mutants_block_scales,
    mutants_early,
    mutants_gate,
    mutants_grouped,
    mutants_narrow,
    mutants_operands,
    mutants_pack,
    mutants_pair,
    mutants_parallel_split_k,
    mutants_parts,
    mutants_persistent,
    mutants_scales,
    mutants_scattered,
    mutants_shifted,
    mutants_simt,
    mutants_sm90,
    mutants_sm90_multistage,
    mutants_split_k,
    mutants_tensorop,
    mutants_tiles,
    mutants_weights,
)
from tests.emulated.driver import build, kind_of, run, way_of
from tests.emulated.mutants import Mutant

MUTANTS = (
    mutants.MUTANTS
    + mutants_simt.MUTANTS
    + mutants_tensorop.MUTANTS
    + mutants_persistent.MUTANTS
    + mutants_sm90.MUTANTS
    + mutants_early.MUTANTS
    + mutants_operands.MUTANTS
    + mutants_pack.MUTANTS
    + mutants_sm90_multistage.MUTANTS
    + mutants_split_k.MUTANTS
    + mutants_parallel_split_k.MUTANTS
    + mutants_parts.MUTANTS
    + mutants_tiles.MUTANTS
    + mutants_narrow.MUTANTS
    + mutants_batches.MUTANTS
    + mutants_grouped.MUTANTS
    + mutants_scattered.MUTANTS
    + mutants_pair.MUTANTS
    + mutants_gate.MUTANTS
    + mutants_weights.MUTANTS
    + mutants_scales.MUTANTS
    + mutants_block_scales.MUTANTS
    + mutants_shifted.MUTANTS
    + mutants_ahead.MUTANTS
    + mutants_attention.MUTANTS
    + mutants_attention_bias.MUTANTS
    + mutants_attention_cap.MUTANTS
    + mutants_attention_dropout.MUTANTS
    + mutants_attention_wide.MUTANTS
)
# What is compiled: a row in one order.
ROWS = sorted({(mutant.row, mutant.order) for mutant in MUTANTS})


@pytest.mark.parametrize(("row", "order"), ROWS, ids=lambda word: "-".join(re.findall(r"\w+", word)))
def test_without_a_bug(row, order, tmp_path):
    """The control: the same driver, sizes and options, and nothing to report."""
    binary = build(tmp_path, row, order=order)
    for sizes, options in sorted({(x.sizes, x.options) for x in MUTANTS if (x.row, x.order) == (row, order)}):
        assert run(binary, sizes, f"order={order}", *options) == "ok"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug(mutant: Mutant, tmp_path):
    way = way_of(mutant.row, mutant.sizes, mutant.options)
    kind = kind_of(mutant.row, mutant.options)
    binary = build(tmp_path, mutant.row, mutant.file, mutant.old, mutant.new, mutant.count, mutant.order, way, kind)
    report = run(binary, mutant.sizes, f"order={mutant.order}", *mutant.options)
    if mutant.expect == "wrong":
        assert report.startswith("wrong: "), report
    else:
        assert report.startswith("error: "), report
        assert re.search(mutant.expect, report, re.DOTALL), report


def test_what_is_not_compiled_is_no_bug(tmp_path):
    """A call that takes the one way to store results is right; another one ends the process and reports nothing."""
    sizes, options = (150, 72, 64), ("out=bf16",)
    way = way_of(mutants_sm90.COOPERATIVE, sizes, options)
    assert way == ("converted", "bf16")
    binary = build(tmp_path, mutants_sm90.COOPERATIVE, order="NT", way=way)
    assert run(binary, sizes, "order=NT", *options) == "ok"
    for others in (("out=f32",), ("out=bf16", "d_pad=2"), ("out=bf16", "epilogue=1"), ("out=bf16", "epilogue=2")):
        assert way_of(mutants_sm90.COOPERATIVE, sizes, others) != way
        with pytest.raises(AssertionError):  # run's, of the exit status
            run(binary, sizes, "order=NT", *others)


def test_scores_of_a_kind_that_is_not_compiled_are_no_bug(tmp_path):
    row, sizes = mutants_attention.GRADIENTS, (70, 70, 64)
    assert [kind_of(row, options) for options in ((), ("bias=k",), ("cap=2",))] == ["plain", "biased", "capped"]
    binary = build(tmp_path, row, order="NT", kind="capped")
    assert run(binary, sizes, "cap=2") == "ok"
    for others in ((), ("bias=k",)):
        with pytest.raises(AssertionError):
            run(binary, sizes, *others)


def test_enough_bugs_are_planted():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 16
    assert len(mutants_sm90.MUTANTS) >= 40
