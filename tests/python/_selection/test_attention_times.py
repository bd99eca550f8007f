"""What was measured of an attention: where it is looked for, and when it counts."""

from __future__ import annotations

import dataclasses

import pytest
from python._selection.test_attention_key import KEY
from python.attentions import FAKE
from python.measured import H200, keep

from jax_moye._selection import measurements
from jax_moye._selection.attention_times import find_attention, together
from jax_moye._selection.entry import Entry
from jax_moye._selection.measurements import config_digest

BOTH = tuple(
    next(one for one in FAKE if one.name.startswith(f"{kernel}_bf16"))
    for kernel in ("sm90_attention", "sm90_attention_grad")
)


def entry(**changes):
    name = together(one.name for one in BOTH)
    found = Entry(
        KEY,
        "equations",
        name,
        together(map(config_digest, BOTH)),
        {name: 100.0},
        {"equations": 150.0},
        False,
        "2026-11-25",
    )
    return dataclasses.replace(found, **changes)


def found(of="equations", table=FAKE, own=True):
    return find_attention(KEY, of, H200, table, own)


def test_what_a_file_has(places):
    assert found() is None
    keep(entry())
    assert found().configs == BOTH
    assert (found().us, found().xla_us, found().lead, found().is_ours, found().source) == (
        100.0,
        150.0,
        None,
        True,
        "cache",
    )
    assert found(own=False) is None
    assert found(of="others") is None  # an attention that a program writes in another way


def test_what_another_process_found_counts(places):
    keep(entry())
    measurements.remember(H200, (KEY, "equations"), entry(xla_us={"equations": 101.0}))
    assert (found().source, found().is_ours) == ("measured", False)
    measurements.remember(H200, (KEY, "equations"), None)
    assert found() is None


@pytest.mark.parametrize("lead", [1.0, 1.5])
def test_the_low_end_of_the_interval_decides(places, lead):
    keep(entry(lead={"equations": lead}))
    assert found().is_ours == (lead > 1.1)


def test_other_kernels_than_were_measured(places):
    keep(entry())
    assert found(table=BOTH[:1]) is None
    changed = [dataclasses.replace(one, stages=one.stages + 1) for one in BOTH]
    assert found(table=changed) is None
