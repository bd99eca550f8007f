"""Bugs planted in the real kernels are caught, each in one deterministic run and with a report that names its cause."""

from __future__ import annotations

import functools
import re

import pytest

from tests.emulated import (
    mutants,
    mutants_ahead,
    mutants_attention,
    mutants_attention_bias,
    mutants_attention_cap,
    mutants_attention_dropout,
    mutants_attention_tf32,
    mutants_attention_wide,
    mutants_batches,
    mutants_block_scales,
    mutants_early,
    mutants_gate,
    mutants_grouped,
    mutants_odd_rows,
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
    mutants_sliced_k,
    mutants_sm90,
    mutants_sm90_multistage,
    mutants_split_k,
    mutants_split_k_tf32,
    mutants_tensorop,
    mutants_tiles,
    mutants_transposed,
    mutants_weights,
)
from tests.emulated.driver import build, build_with_bugs, kind_of, run, source_of, way_of
from tests.emulated.mutants import Mutant
from tests.emulated.planting import Bug, Source, can_be_switched, switched

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
    + mutants_split_k_tf32.MUTANTS
    + mutants_sliced_k.MUTANTS
    + mutants_odd_rows.MUTANTS
    + mutants_transposed.MUTANTS
    + mutants_parallel_split_k.MUTANTS
    + mutants_parts.MUTANTS
    + mutants_tiles.MUTANTS
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
    + mutants_attention_tf32.MUTANTS
    + mutants_attention_wide.MUTANTS
)
NUMBER_OF = {mutant: number for number, mutant in enumerate(MUTANTS)}
# What is compiled: a row in one order.
ROWS = sorted({(mutant.row, mutant.order) for mutant in MUTANTS})
# Bugs that cannot be switched although their texts look so: layouts of other types, arguments of templates, kernels of
# one kind alone, and what the compiler evaluates.
ALONE = {
    "attention_dropout_in_front_of_the_sum",
    "gate_sums_of_the_first_half",
    "grouped_pair_bytes_of_few_columns",
    "parts_heaviest_pair_first",
    "parts_pairs_of_unequal_weight",
    "sm90_blocks_in_the_other_order",
}


@functools.cache
def is_switched(mutant: Mutant) -> bool:
    """Whether a bug shares a program with others of its row."""
    return mutant.name not in ALONE and can_be_switched(source_of(mutant.file), bug_of(mutant))


def bug_of(mutant: Mutant) -> Bug:
    return Bug(NUMBER_OF[mutant], mutant.old, mutant.new)


def bugs_of(row: str, order: str) -> dict[str, list[Bug]]:
    """{file: what is switched in it} of a row in one order."""
    bugs: dict[str, list[Bug]] = {}
    for mutant in MUTANTS:
        if (mutant.row, mutant.order) == (row, order) and is_switched(mutant):
            bugs.setdefault(mutant.file, []).append(bug_of(mutant))
    return bugs


@pytest.fixture(scope="module")
def program_of(tmp_path_factory):
    """The driver of a row in one order, with all bugs that are switched."""

    @functools.cache
    def build_once(row: str, order: str):
        return build_with_bugs(tmp_path_factory.mktemp("row"), row, order, bugs_of(row, order))

    return build_once


@pytest.mark.parametrize(("row", "order"), ROWS, ids=lambda word: "-".join(re.findall(r"\w+", word)))
def test_without_a_bug(row, order, program_of):
    """The control: the same driver, sizes and options, no bug is asked for, and there is nothing to report."""
    for sizes, options in sorted({(x.sizes, x.options) for x in MUTANTS if (x.row, x.order) == (row, order)}):
        assert run(program_of(row, order), sizes, f"order={order}", *options) == "ok"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug(mutant: Mutant, program_of, tmp_path):
    assert source_of(mutant.file).count(mutant.old) == mutant.count
    if is_switched(mutant):
        binary, bug = program_of(mutant.row, mutant.order), NUMBER_OF[mutant]
    else:
        way = way_of(mutant.row, mutant.sizes, mutant.options)
        kind = kind_of(mutant.row, mutant.options)
        texts = (mutant.file, mutant.old, mutant.new, mutant.count)
        binary, bug = build(tmp_path, mutant.row, *texts, mutant.order, way, kind), None
    report = run(binary, mutant.sizes, f"order={mutant.order}", *mutant.options, bug=bug)
    if mutant.expect == "wrong":
        assert report.startswith("wrong: "), report
    else:
        assert report.startswith("error: "), report
        assert re.search(mutant.expect, report, re.DOTALL), report


@pytest.mark.parametrize(("row", "order"), ROWS, ids=lambda word: "-".join(re.findall(r"\w+", word)))
def test_a_switched_bug_is_the_bug(row, order):
    """What is left of a file where one bug is asked for has that bug and no other; where none is, it has none."""
    for file, bugs in bugs_of(row, order).items():
        text = source_of(file)
        everything = Source(switched(text, bugs))
        assert without_brackets(asked_for(everything, -1)) == without_brackets(text)
        for bug in bugs:
            with_bug = without_brackets(text.replace(bug.old, bug.new))
            assert without_brackets(asked_for(everything, bug.number)) == with_bug, (file, bug)


def without_brackets(text: str) -> str:
    return re.sub(r"[\s(){}]", "", text)


SWITCH = re.compile(r"(if )?\(MOYE_IS_PLANTED\((\d+)\)(?: \?|\) \{)")


def asked_for(switches: Source, number: int, start: int = 0, end: int | None = None) -> str:
    """What a file with switched bugs is with one of them."""
    parts, end = [], len(switches.text) if end is None else end
    while found := SWITCH.search(switches.text, start, end):
        first = found.end() - 1 if found[1] else found.end() + 1
        second = switches.text.index("{" if found[1] else "(", switches.end_of[first])
        one = first if int(found[2]) == number else second
        parts += [switches.text[start : found.start()], asked_for(switches, number, one, switches.end_of[one])]
        start = switches.end_of[second]
    return "".join([*parts, switches.text[start:end]])


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
    assert {mutant.name for mutant in MUTANTS} >= ALONE
    assert len(mutants_sm90.MUTANTS) >= 40
