"""Formulas of a softmax, masks, and what is known of them."""

from __future__ import annotations

import numpy as np
import pytest

from jax_moye._primitives.attention_formulas import (
    SHARES,
    Affine,
    Choice,
    Formula,
    Layer,
    Logs,
    Opaque,
    Term,
    computed,
    derivative_of_scores,
    renamed,
    simplified,
)
from jax_moye._primitives.attention_masks import All, Mask

E, Z, G = Formula.of(e=1), Formula.of(z=1), Formula.of(g=1)
ROWS, COLUMNS = Affine(frozenset({(0, 1)}), 0), Affine(frozenset({(1, 1)}), 0)


def test_sums_over_columns():
    assert E.summed(7) == Z
    assert SHARES.summed(7) == Formula.of()
    assert Z.summed(7) == Formula.of(7, z=1)
    assert E.times(G).summed(7) == Formula({Term(sums=((1, 1, 0),)): 1.0})
    kept = Formula.of(kept=1)
    assert kept.times(kept) == kept
    assert E.times(kept).summed(7) == Formula({Term(sums=((1, 0, 1),)): 1.0})


def test_the_derivative_of_a_softmax_in_two_forms():
    """JAX's rule for a division, and the one for a softmax."""
    by_division = G.times(Z.inverse()).plus(G.times(Z.power(-2)).times(E).summed(7), -1).times(E)
    by_softmax = SHARES.times(G.plus(SHARES.times(G).summed(7), -1))
    assert by_division == by_softmax == derivative_of_scores(1.0)
    assert by_softmax.times(Formula.of(0.125)).is_like(derivative_of_scores(0.125))
    assert not by_softmax.is_like(derivative_of_scores(0.125))
    # What the largest score would get of it.
    assert by_softmax.summed(7) == Formula({})


def test_the_derivative_behind_a_cap():
    of_scores = SHARES.times(G.plus(SHARES.times(G).summed(7), -1)).times(Formula.of(0.125))
    slope = Formula.of().plus(Formula.of(t=1).power(2), -1)
    assert of_scores.times(slope) == derivative_of_scores(0.125, is_capped=True)
    assert not of_scores.is_like(derivative_of_scores(0.125, is_capped=True))
    assert not of_scores.times(slope).times(slope).is_like(derivative_of_scores(0.125, is_capped=True))


def test_what_is_no_formula():
    assert isinstance(G.times(G), Opaque)
    assert isinstance(E.inverse(), Opaque)
    assert isinstance(E.plus(Z).inverse(), Opaque)
    many = E
    for i in range(2, 30):
        many = many.plus(E.power(i)) if not isinstance(many, Opaque) else many
    assert isinstance(many, Opaque)
    masked = Logs(scores=1.0, layers=(Layer(Mask(frozenset({(0, 1)}), 0), -1e30),))
    assert isinstance(masked.times(-1.0), Opaque)
    assert isinstance(Logs(largest=1.0).plus(masked, -1), Opaque)
    assert masked.times(0.5) == Logs(0.5, layers=(masked.layers[0]._replace(fill=-5e29),))


@pytest.mark.parametrize(
    ("name", "of", "offset"),
    [("ge", (ROWS, COLUMNS), 0), ("gt", (ROWS, COLUMNS), -1), ("le", (COLUMNS, ROWS), 0), ("lt", (COLUMNS, ROWS), -1)],
)
def test_comparisons_of_indices(name, of, offset):
    assert computed(name, list(of), {}, np.bool_) == Choice(Mask(frozenset({(0, 1), (1, -1)}), offset), True, False)


def test_masks_in_other_words():
    mask = computed("ge", [ROWS, COLUMNS], {}, np.bool_)
    inverse = computed("not", [mask], {}, np.bool_)
    assert computed("not", [inverse], {}, np.bool_) == mask
    assert computed("and", [mask, Choice.of(np.True_)], {}, np.bool_) == mask
    assert computed("or", [mask, computed("lt", [ROWS, COLUMNS], {}, np.bool_)], {}, np.bool_) == Choice.of(np.True_)
    other = computed("ge", [COLUMNS, ROWS], {}, np.bool_)
    assert computed("and", [mask, other], {}, np.bool_) == Choice(All((mask.mask, other.mask)), True, False)  # a band
    as_number = computed("convert_element_type", [mask], {}, np.float32)
    assert computed("ne", [as_number, Choice.of(np.float32(0))], {}, np.bool_) == mask
    added = computed(
        "mul",
        [computed("sub", [Choice.of(np.float32(1)), as_number], {}, np.float32), Choice.of(np.float32(-1e9))],
        {},
        np.float32,
    )
    assert (added.mask, added.inside, added.outside) == (mask.mask, 0, np.float32(-1e9))
    chosen = computed("select_n", [mask, Choice.of(np.float32(-1e9)), Choice.of(np.float32(0))], {}, np.float32)
    assert chosen == added
    moved = computed("sub", [ROWS, computed("mul", [COLUMNS, Choice.of(np.int32(1))], {}, np.int32)], {}, np.int32)
    assert computed("ge", [moved, Choice.of(np.int32(-2))], {}, np.bool_).mask.offset == 2


def test_masks_of_sizes():
    mask = Choice(Mask(frozenset({(0, 1), (1, -1)}), 3), True, False)
    assert simplified(mask, {0: 4, 1: 4}) == Choice.of(True)
    assert simplified(mask, {0: 4, 1: 5}) == mask
    assert simplified(mask._replace(mask=Mask(mask.mask.factors, -4)), {0: 4, 1: 5}) == Choice.of(False)
    assert renamed(mask, {0: "q", 1: "k"}.get).mask.factors == {("q", 1), ("k", -1)}


def test_indices_in_floats_are_not_known():
    assert computed("convert_element_type", [ROWS], {}, np.dtype("float32")) is None
    assert computed("mul", [ROWS, COLUMNS], {}, np.int32) is None
    assert computed("and", [Choice.of(np.int32(3)), Choice.of(np.int32(5))], {}, np.int32) is None
