"""How far results are from others: whole trees, each array on its scale, and what is no number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._bench.program.difference import LEAST_SCALE, difference


def test_of_the_largest_element_of_an_array():
    right = {"a": jnp.array([1.0, -4.0]), "b": jnp.array([8.0, 8.0])}
    wrong = {"a": jnp.array([1.0, -5.0]), "b": jnp.array([8.0, 9.0])}
    assert difference(right, wrong) == (0.25, "['a']")
    assert difference(right, right) == (0.0, "")


def test_what_is_rounding_alone_is_held_against_the_others():
    right = [jnp.array([100.0]), jnp.array([1e-6, 0.0])]
    wrong = [jnp.array([100.0]), jnp.array([0.0, 1e-6])]
    assert difference(right, wrong) == (pytest.approx(1e-6 / (100 * LEAST_SCALE)), "[1]")


def test_each_dtype_has_a_scale_of_its_own():
    right = (jnp.array([100.0], jnp.bfloat16), jnp.float32(0.5))
    wrong = (jnp.array([100.0], jnp.bfloat16), jnp.float32(0.25))
    assert difference(right, wrong) == (0.5, "[1]")


@pytest.mark.parametrize(("x", "y"), [(np.nan, 1.0), (1.0, np.nan), (np.inf, 1.0), (1.0, -np.inf)])
def test_what_is_not_a_number_in_one_alone(x, y):
    of = lambda value: jnp.array([2.0, value])  # noqa: E731
    assert difference(of(x), of(y)) == (np.inf, "")
    assert difference(of(x), of(x)) == (0.0, "")


def test_other_shapes_dtypes_and_numbers_of_results():
    x = jnp.ones(3)
    for other in ((jnp.ones(4),), (jnp.ones(3, jnp.bfloat16),), (x, x), ()):
        assert difference((x,), other) == (np.inf, "")
    assert difference((), ()) == (0.0, "")


def test_integers_keys_complex_numbers_and_nothing():
    tree = [jnp.arange(3), jnp.array([True]), jax.random.key(3), jnp.ones(2, jnp.complex64), jnp.ones((0, 3))]
    assert difference(tree, tree) == (0.0, "")
    assert difference([jnp.arange(3)], [jnp.array([0, 1, 3])]) == (0.5, "[0]")
    assert difference([jax.random.key(3)], [jax.random.key(4)])[0] > 0
