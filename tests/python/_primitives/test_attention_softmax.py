"""What elementwise equations make of scores."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._primitives.attention_formulas import (
    SHARES,
    Added,
    Bias,
    Choice,
    Cleared,
    Finite,
    Formula,
    Layer,
    Logs,
    Opaque,
    Partial,
)
from jax_moye._primitives.attention_masks import All, Mask, Traced
from jax_moye._primitives.attention_softmax import NotAttentionError, Softmax

CAUSAL = Mask(frozenset({("q", 1), ("k", -1)}), 0)
PADDING = Traced("padding", ("A", "k"))
LOW = float(np.float32(-1e30))
SCORES, E, Z = Logs(scores=0.5), Formula.of(e=1), Formula.of(z=1)
F32 = jnp.dtype("float32")


def softmax(*layers):
    return Softmax(largest_of=Logs(scores=0.5, layers=layers))


def computed(name, *operands, of=None, dtype=F32, **params):
    return (softmax() if of is None else of).computed(name, list(operands), params, dtype)


def number(x):
    return Choice.of(np.float32(x))


def test_exponentials():
    less = computed("sub", SCORES, Logs(largest=1.0))
    assert computed("exp", less) == E
    assert computed("exp", computed("sub", less, computed("log", Z))) == SHARES
    assert computed("exp", Logs(sums=-2.0)) == Formula.of(z=-2)
    assert computed("exp", SCORES) == Opaque()  # without the largest
    assert computed("exp", computed("mul", less, number(3))) == E  # of other scores, whose largest it is, too
    assert computed("exp", Logs(scores=0.5, largest=-2.0)) == Opaque()
    both = softmax()
    computed("exp", less, of=both)
    with pytest.raises(NotAttentionError):
        computed("exp", computed("mul", less, number(3)), of=both)


def test_masks():
    low, zero = number(-1e30), number(0)
    mask = Choice(CAUSAL, np.True_, np.False_)
    masked = Logs(scores=0.5, layers=(Layer(CAUSAL, LOW),))
    assert computed("select_n", mask, low, SCORES) == masked
    assert computed("select_n", Choice(CAUSAL.reverse, np.True_, np.False_), SCORES, low) == masked
    added = Logs(scores=0.5, layers=(Layer(CAUSAL, LOW, is_added=True),))
    assert computed("add", SCORES, Choice(CAUSAL, np.float32(0), np.float32(-1e30))) == added
    assert computed("sub", SCORES, Choice(CAUSAL, np.float32(0), np.float32(1e30))) == added
    assert computed("select_n", mask, number(-5), SCORES) == Opaque()
    of_16_bits = computed("select_n", mask, number(-60000), SCORES, dtype=jnp.dtype("float16"))
    assert of_16_bits.layers == (Layer(CAUSAL, -60000),)
    assert computed("convert_element_type", masked, dtype=jnp.dtype("float16")).layers == (Layer(CAUSAL, -np.inf),)
    assert computed("mul", masked, number(0.5)) == Logs(scores=0.25, layers=(Layer(CAUSAL, LOW / 2),))
    of = softmax(Layer(CAUSAL, LOW))
    assert computed("exp", computed("sub", masked, Logs(largest=1.0)), of=of) == E
    assert computed("select_n", mask, zero, E, of=of) == E  # 0 there anyway
    assert computed("mul", E, Choice(CAUSAL, np.float32(1), np.float32(0)), of=of) == E
    dropped = computed("select_n", Choice(CAUSAL.reverse, np.True_, np.False_), zero, E, of=of)
    assert dropped == Formula.of(e=1, kept=1)  # another mask than that of the scores
    assert of.kept == CAUSAL.reverse
    behind = computed("select_n", mask, zero, Z, of=of)
    assert behind == Partial(Z)  # it where E is not 0
    assert computed("mul", behind, E, of=of) == computed("mul", Z, E, of=of)
    assert computed("sub", E, behind, of=of) == Partial(computed("sub", E, Z))
    assert computed("mul", behind, number(2), of=of) == Partial(computed("mul", Z, number(2)))
    assert computed("mul", behind, Z, of=of) == Partial(computed("mul", Z, Z))
    other = Choice(CAUSAL._replace(offset=1), np.True_, np.False_)
    assert computed("select_n", other, zero, Z, of=of) == Opaque()
    zeros = computed("mul", SCORES, Choice(CAUSAL, np.float32(1), np.float32(0)))
    assert computed("exp", computed("sub", zeros, Logs(largest=1.0)), of=softmax(*zeros.layers)) == Opaque()
    low_there = Choice(CAUSAL, np.float32(0), np.float32(-1e30))
    assert computed("add", zeros, low_there) == masked
    assert computed("add", zeros, low_there._replace(mask=other.mask)).layers[0] == zeros.layers[0]
    lower = softmax(Layer(CAUSAL, 2 * LOW))  # the largest of scores that are masked by another number
    assert computed("exp", computed("sub", masked, Logs(largest=1.0)), of=lower) == Opaque()


def test_what_is_cleared():
    """Where a row may have no score that counts, E is 0 behind a mask only where the program makes it so."""
    low, zero = number(-1e30), number(0)
    padding, causal = (Choice(mask, np.True_, np.False_) for mask in (PADDING, CAUSAL))
    both = computed("select_n", causal, low, computed("select_n", padding, low, SCORES))
    assert both.layers == (Layer(PADDING, LOW), Layer(CAUSAL, LOW))
    of = softmax(*both.layers)
    assert computed("exp", computed("sub", both, Logs(largest=1.0)), of=of) == E
    once = computed("select_n", padding, zero, E, of=of)
    assert once == Cleared(E, frozenset({PADDING}))
    assert computed("mul", computed("convert_element_type", once), number(2), of=of).formula == Formula.of(2, e=1)
    twice = computed("mul", once, Choice(CAUSAL, np.float32(1), np.float32(0)), of=of)
    assert twice == computed("select_n", Choice(All((CAUSAL, PADDING)), True, False), zero, E, of=of)
    assert twice.parts == {PADDING, CAUSAL}
    other = Choice(Traced("other", ("k",)), np.True_, np.False_)
    assert computed("select_n", other, zero, E, of=of) == Formula.of(e=1, kept=1)  # dropout
    assert computed("mul", E, Choice(other.mask, np.float32(1.25), np.float32(0)), of=of) == Formula.of(
        1.25, e=1, kept=1
    )
    assert computed("select_n", other, E, zero, of=of) == Opaque()  # of the other weights, at the same time
    assert computed("select_n", padding, zero, Z, of=of) == Opaque()
    assert computed("add", once, E, of=of) == Opaque()


@pytest.mark.parametrize(
    ("low", "dtype", "hides"),
    [(-1e9, F32, True), (-60000, "float16", False), (-np.inf, "float16", True), (-1e9, "bfloat16", True)],
)
def test_what_is_left_of_scores_that_a_low_number_is_added_to(low, dtype, hides):
    dtype = jnp.dtype(dtype)
    (layer,) = computed("add", SCORES, Choice(PADDING, np.float32(0), np.float32(low)), dtype=dtype).layers
    assert (layer.mask, layer.is_added, layer.hides) == (PADDING, True, hides)
    rounded = np.asarray([-31, 31]).astype(dtype) + np.asarray(low).astype(dtype)
    assert (rounded[0] == rounded[1]) == hides


def test_biases():
    """Multiplied with the scores, in order; the type of each sum is known."""
    f32, of_16_bits = (jnp.dtype(x) for x in ("float32", "bfloat16"))
    one, two = Bias("one", ("q", "k")), Bias("two", (".", "k"))
    first = computed("add", Added(one), SCORES, dtype=of_16_bits)
    assert first.biases == (one._replace(sum_dtype=of_16_bits),)
    both = computed("sub", computed("mul", first, number(0.5)), Added(two))
    assert both.scores == 0.25
    assert both.biases == (one._replace(factor=0.5, sum_dtype=of_16_bits), two._replace(factor=-1.0, sum_dtype=f32))
    state = Softmax()
    assert computed("exp", computed("sub", both, state.largest(both), of=state), of=state) == E
    assert state.scores == both
    for other in (SCORES, first, computed("add", both, Added(one))):
        assert computed("exp", dataclasses.replace(other, largest=-1.0), of=Softmax(largest_of=both)) == Opaque()
    for name, *operands in (
        ("sub", Added(one), SCORES),
        ("mul", first, number(-1)),
        ("add", Logs(1.0, in_tanh=0.5), Added(one)),
        ("add", Logs(1.0, layers=(Layer(CAUSAL, -1e3),)), Added(one)),  # which leaves something of it
    ):
        assert computed(name, *operands) == Opaque()


def test_a_bias_with_a_mask_in_one_sum():
    mask = Choice(CAUSAL, np.float32(0), np.float32(-1e30))
    added = computed("add", SCORES, Added(Bias("one", ("q", "k")), (mask,)))
    assert [layer.mask for layer in added.layers] == [CAUSAL]
    assert computed("sub", SCORES, Added(Bias("one", ("q", "k")), (mask,))) == Opaque()


def test_what_changes_nothing():
    largest = Logs(largest=1.0)
    assert computed("max", number(-np.inf), largest) == largest
    assert computed("max", number(0), largest) == Opaque()
    assert (
        computed("select_n", computed("is_finite", largest), number(0), largest)
        == largest
        == computed("stop_gradient", largest)
    )
    assert computed("is_finite", largest, dtype=jnp.dtype(bool)) == Finite()
    for dtype in ("bfloat16", "float16", "float32"):
        assert computed("convert_element_type", E, dtype=jnp.dtype(dtype)) == E
    assert computed("convert_element_type", E, dtype=jnp.dtype("float8_e4m3fn")) == Opaque()
    assert computed("abs", Z) == Z
    assert computed("sign", Z) == Formula.of()
    assert computed("ge", Z, number(0), dtype=jnp.dtype(bool)).inside
    assert computed("abs", computed("sub", Z, E)) == Opaque()


def test_products_and_sums():
    assert computed("div", E, Z) == SHARES == computed("mul", E, computed("integer_pow", Z, y=-1))
    assert computed("div", E, number(4)) == Formula.of(0.25, e=1)
    assert computed("square", E) == Formula.of(e=2)
    assert computed("add_any", E, computed("neg", E)) == Formula({})
    nothing = Formula({})
    for name in ("mul", "div"):
        assert computed(name, nothing, Opaque()) == nothing
    assert computed("add_any", Opaque(), nothing) == Opaque()
    assert computed("add_any", E, Opaque()) == Opaque()
    assert computed("add", SCORES, number(1)) == Opaque()
    assert computed("sin", SCORES) == Opaque()


def test_a_soft_cap():
    """A multiple of tanh is scores to a softmax, and a factor to a derivative."""
    capped, t = Logs(scores=2.0, in_tanh=0.5), Formula.of(t=1)
    state = Softmax()
    assert computed("mul", computed("tanh", SCORES, of=state), number(2), of=state) == capped
    assert computed("exp", computed("sub", capped, state.largest(capped), of=state), of=state) == E
    assert state.scores == capped
    assert capped.scale == 1.0
    for name, x in (("mul", computed("tanh", SCORES, of=state)), ("integer_pow", t), ("square", Logs(1, in_tanh=0.5))):
        assert computed(name, *[x] * (1 + (name == "mul")), of=state, y=2) == Formula.of(t=2)
    slope = Formula.of().plus(Formula.of(t=2), -1)
    assert computed("one_minus_square", Logs(1, in_tanh=0.5), of=state) == slope
    either = [computed("logistic", computed("mul", SCORES, number(x)), of=state) for x in (2, -2)]
    assert computed("mul", number(4), computed("mul", *either)) == slope
    one_less = computed("sub", number(1), Logs(1, in_tanh=0.5))
    assert computed("mul", computed("add", number(1), Logs(1, in_tanh=0.5)), one_less) == slope
    assert computed("mul", Cleared(E, frozenset({PADDING})), slope) == Cleared(E.times(slope), frozenset({PADDING}))
    both = Cleared(E, frozenset({PADDING})), Cleared(E, frozenset({CAUSAL}))
    assert computed("add_any", both[0], both[0]) == Cleared(Formula.of(2, e=1), frozenset({PADDING}))
    assert computed("add_any", *both) == Opaque()


def test_what_is_no_soft_cap():
    state, capped = Softmax(), Logs(scores=1.0, in_tanh=0.5)
    assert computed("tanh", SCORES, of=state) == capped
    assert computed("tanh", Logs(scores=0.25), of=state) == Opaque()  # of another multiple
    assert computed("logistic", SCORES, of=state) == Opaque()
    for other in (capped, Logs(0.5, largest=-1.0), Logs(0.5, layers=(Layer(CAUSAL, LOW),)), Logs(sums=1.0)):
        assert computed("tanh", other, of=state) == Opaque()
    assert computed("add", capped, SCORES) == Opaque()
    assert computed("add", SCORES, capped) == Opaque()
    assert computed("exp", Logs(0.5, largest=-1.0, in_tanh=0.5)) == Opaque()  # less the largest of others
    assert Formula.of(t=2).summed(7) == Opaque()
