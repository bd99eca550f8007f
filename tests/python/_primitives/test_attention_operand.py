"""What is known of masks: regions, and whether each row has a score that counts."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from jax_moye._primitives.attention_masks import All, Mask, Traced, common, dims_of, either, extent, moved, names_of
from jax_moye._primitives.attention_operand import _array, _has_all_rows

CAUSAL, PADDING = Mask(frozenset({("q", 1), ("k", -1)}), 0), Traced("padding", ("A", None, "k"))
SIZES = {"A": 2, "q": 4, "k": 6}


def test_regions():
    both = common(CAUSAL, PADDING)
    assert both == All((CAUSAL, PADDING)) == common(both, CAUSAL)
    assert either(CAUSAL, PADDING) == All((CAUSAL.reverse, PADDING.reverse), is_reverse=True)
    assert both.reverse.reverse == both
    assert common(both.reverse, PADDING).parts == (both.reverse, PADDING)
    assert (dims_of(both), names_of(both)) == ({"A", "q", "k"}, ["padding"])
    assert moved(both, {"A": 0, "q": 1, "k": 2}.get).parts[1] == Traced("padding", (0, None, 2))
    several = [Traced(str(i), ("k",)) for i in range(9)]
    found = several[0]
    for one in several[1:8]:
        found = common(found, one)
    assert len(found.parts) == 8
    assert common(found, several[8]) is None


def test_extents():
    nothing, whole = (CAUSAL._replace(offset=offset) for offset in (-4, 5))
    assert [extent(x, SIZES) for x in (nothing, CAUSAL, whole, PADDING)] == [False, None, True, None]
    assert extent(All((PADDING, nothing)), SIZES) is False
    assert extent(All((PADDING, nothing), is_reverse=True), SIZES) is True
    assert extent(All((whole, whole), is_reverse=True), SIZES) is False
    assert extent(All((PADDING, whole)), SIZES) is None


@pytest.mark.parametrize("factors", [(1, -1), (1, 1), (-1, 2), (2, -3), (0, -1), (-1, 0)])
def test_rows_that_have_a_score_that_counts(factors):
    """As counting says, of one mask and of two."""
    of = frozenset((dim, factor) for dim, factor in zip("qk", factors, strict=True) if factor)
    masks = [Mask(of, offset) for offset in range(-7, 8)]
    others = [CAUSAL, CAUSAL.reverse._replace(offset=2), CAUSAL.reverse]
    for parts in (*((mask,) for mask in masks), *itertools.product(masks, others)):
        array = np.broadcast_to(_array(All(parts), "qk", SIZES, None), (4, 6))
        assert _has_all_rows(parts, SIZES) == array.any(axis=1).all(), parts
    assert _has_all_rows((), SIZES)
    assert not _has_all_rows((CAUSAL, PADDING), SIZES)
    assert not _has_all_rows((All((CAUSAL, CAUSAL.reverse), is_reverse=True),), SIZES)
