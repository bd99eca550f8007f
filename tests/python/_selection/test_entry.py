"""What was measured of one problem: who wins by it, which of XLA's times count, and what a file has of it."""

from __future__ import annotations

import dataclasses
import json

import pytest
from python.measured import SHAPE, able, entry_of, explained

from jax_moye._selection.entry import parse_entry

WORDS = "bfloat16 bfloat16 bfloat16 DEFAULT"


@pytest.mark.parametrize(("us", "least"), [(5.0, 1.17), (10.0, 1.17), (20.0, 1.095), (50.0, 1.05), (500.0, 1.023)])
def test_how_much_faster_ours_must_be(places, us, least):
    gemm = explained(*SHAPE, implementation="moye")
    for factor in (0.999, 1.001):
        entry = entry_of(gemm, {able(gemm)[0]: us}, us * least * factor)
        entry = dataclasses.replace(entry, config="one", us={"one": us})  # no kernel that is short
        assert entry.is_won_by_ours(WORDS) == (factor > 1)
        assert dataclasses.replace(entry, lead={WORDS: least / factor}).is_won_by_ours(WORDS) == (factor < 1)
    assert entry.is_won_by_ours("another signature") is None
    assert dataclasses.replace(entry, host_bound=True).is_won_by_ours(WORDS) is None


def times(entry, of, xla_us, lead):
    return dataclasses.replace(entry, xla_us={of: xla_us}, lead={of: lead}, fused=(of,), parted=(of,))


def test_the_nearest_times_are_those_of_other_operands_of_xlas(places):
    entry = entry_of(explained(*SHAPE, implementation="moye"))
    lhs, both = f"{WORDS} written for it: lhs", f"{WORDS} written for it: lhs, rhs"
    plain = times(entry, WORDS, 30.0, 2.9)
    assert [plain.nearest(of) for of in (WORDS, lhs, "float32 float32 float32 DEFAULT")] == [
        WORDS,
        WORDS,
        "float32 float32 float32 DEFAULT",
    ]
    assert times(entry, lhs, 9.0, 0.8).nearest(both) == lhs
    assert plain.is_won_by_ours(lhs)
    assert not times(entry, lhs, 9.0, 0.8).is_won_by_ours(WORDS)


def test_times_of_other_signatures_stay_but_where_the_host_was_timed(places):
    entry = entry_of(explained(*SHAPE, implementation="moye"))
    lhs = f"{WORDS} written for it: lhs"
    before, after = times(entry, WORDS, 30.0, 2.9), times(entry, lhs, 9.0, 0.8)
    found = after.with_times_of(before)
    assert (found.xla_us, found.lead) == ({WORDS: 30.0, lhs: 9.0}, {WORDS: 2.9, lhs: 0.8})
    assert found.fused == found.parted == (WORDS, lhs)
    assert times(entry, WORDS, 31.0, 3.0).with_times_of(before).lead == {WORDS: 3.0}
    for one, other in ((True, False), (False, True)):
        host_bound = dataclasses.replace(before, host_bound=one), dataclasses.replace(after, host_bound=other)
        assert host_bound[1].with_times_of(host_bound[0]) == host_bound[1]


def test_a_file_has_all_of_it(places):
    entry = times(entry_of(explained(*SHAPE, implementation="moye")), WORDS, 30.0, 2.9)
    assert parse_entry(json.loads(json.dumps(entry.to_dict()))) == entry
    with pytest.raises(ValueError, match="its config has no time"):
        parse_entry(entry.to_dict() | {"us": {"another": 1.0}})
    for name in ("fused", "parted"):
        with pytest.raises(ValueError, match=f"{name} are no signatures"):
            parse_entry(entry.to_dict() | {name: [1]})
