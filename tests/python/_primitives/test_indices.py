"""What a jaxpr says of vectors of indices, next to what they are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jax_moye._primitives.indices import Indices
from jax_moye._primitives.patterns import Program

M = 12
IDS = np.array([3, 0, 1, 3, 2, 0, 0, 1, 3, 2, 1, 0], np.int32)
order = jnp.argsort


def said_of(fun):
    """(bounds, whether it is a permutation, the variable that it is the inverse of) of the first result of fun(ids).

    A second result is what it may be the inverse of.
    """
    closed = jax.make_jaxpr(fun)(IDS)
    program = Program(closed.jaxpr.eqns, closed.jaxpr.outvars)
    indices = Indices(program)
    names = [indices.name_of(x) for x in closed.jaxpr.outvars]
    inverse = indices.inverse(names[0])
    is_of_second = len(names) > 1 and inverse is indices.resolved(names[1])
    return indices.bounds(names[0]), indices.is_permutation(indices.resolved(names[0])), is_of_second


BOUNDS = {
    "an argument": (lambda ids: ids, None),
    "iota": (lambda ids: jnp.arange(M), (0, M - 1)),
    "argsort": (order, (0, M - 1)),
    "divided": (lambda ids: order(ids) // 2, (0, 5)),
    "divided, rest": (lambda ids: order(ids) // 5, (0, 2)),
    "divided by the machine": (lambda ids: lax.div(order(ids), 5), (0, 2)),
    "what may be below zero, divided": (lambda ids: (order(ids) - 3) // 2, None),
    "divided by less than zero": (lambda ids: order(ids) // -2, None),
    "modulo": (lambda ids: lax.rem(order(ids), 5), (0, 4)),
    "of less than the divisor": (lambda ids: lax.rem(order(ids), 50), (0, M - 1)),
    "clipped": (lambda ids: jnp.clip(ids, 0, 3), (0, 3)),
    "clipped from below": (lambda ids: jnp.maximum(ids, 0), (0, 2**31 - 1)),
    "clamped": (lambda ids: lax.clamp(1, ids, 3), (1, 3)),
    "wrapped": (lambda ids: jnp.where(order(ids) < 0, order(ids) + 7, order(ids)), (0, M - 1)),
    "wrapped, some": (lambda ids: jnp.where(order(ids) - 1 < 0, order(ids) + 7, order(ids)), (0, M + 6)),
    "sums": (lambda ids: 3 * order(ids) - 2, (-2, 31)),
    "beyond the type": (lambda ids: order(ids) * 2**30, None),
    "gathered": (lambda ids: jnp.repeat(jnp.arange(4), 3)[order(ids)], (0, 3)),
    "filled": (lambda ids: jnp.take(jnp.repeat(jnp.arange(4), 3), order(ids) + 1), None),
    "sorted": (lambda ids: lax.sort((ids, order(ids) // 2), num_keys=1)[1], (0, 5)),
    "of the largest": (lambda ids: lax.top_k(ids, 3)[1], (0, M - 1)),
    "of the largest of columns": (lambda ids: lax.top_k(ids.reshape(6, 2), 3, axis=0)[1], (0, 5)),
    "an iota in a type that is too small": (lambda ids: lax.iota(jnp.uint8, 300), None),
    "in a wider type": (lambda ids: order(ids).astype(jnp.int16), (0, M - 1)),
    "in a type that is too small": (lambda ids: (order(ids) * 100).astype(jnp.int8), None),
    "floats": (lambda ids: order(ids).astype(jnp.float32), None),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_bounds(name):
    fun, expected = BOUNDS[name]
    found, *_ = said_of(fun)
    assert found == expected
    if found is not None:
        values = np.asarray(jax.jit(fun)(IDS))
        assert found[0] <= values.min() <= values.max() <= found[1]


# name -> (function, whether it is one, whether it is the inverse of its second result)
PERMUTATIONS = {
    "argsort": (order, True, False),
    "argsort from the largest": (lambda ids: jnp.argsort(ids, descending=True), True, False),
    "argsort, reversed": (lambda ids: order(ids)[::-1], True, False),
    "the second of a sort": (lambda ids: lax.sort((ids, jnp.arange(M)), num_keys=1)[1], True, False),
    "sorted twice": (lambda ids: lax.sort((ids, order(ids)), num_keys=1)[1], True, False),
    "the keys": (lambda ids: lax.sort((ids, jnp.arange(M)), num_keys=1)[0], False, False),
    "the inverse by argsort": (lambda ids: (order(order(ids)), order(ids)), True, False),  # two sorts of its own
    "the inverse of one": (lambda ids: (lambda p: (order(p), p))(order(ids)), True, True),
    "the inverse by a scatter": (
        lambda ids: (lambda p: (jnp.zeros(M, jnp.int32).at[p].set(jnp.arange(M)), p))(order(ids)),
        True,
        True,
    ),
    "the inverse, wrapped": (
        lambda ids: (lambda p: (order(jnp.where(p < 0, p + M, p)), p))(order(ids)),
        True,
        True,
    ),
    "argsort of what is none": (lambda ids: (order(ids), ids), True, False),
    "a sum in its place": (
        lambda ids: (lambda p: (jnp.zeros(M, jnp.int32).at[p].add(jnp.arange(M)), p))(order(ids)),
        False,
        False,
    ),
    "scattered by what is none": (lambda ids: (jnp.zeros(M, jnp.int32).at[ids].set(jnp.arange(M)), ids), False, False),
    "another is scattered": (
        lambda ids: (lambda p: (jnp.zeros(M, jnp.int32).at[p].set(jnp.arange(M) * 2), p))(order(ids)),
        False,
        False,
    ),
    "a part": (lambda ids: order(ids)[:6], False, False),
    "shifted": (lambda ids: order(ids) + 1, False, False),
    "of rows": (lambda ids: jnp.argsort(ids.reshape(3, 4), axis=1).reshape(-1), False, False),
    "an iota in a type that is too small": (lambda ids: lax.iota(jnp.uint8, 300), False, False),
    "of columns": (lambda ids: order(ids).reshape(3, 4).reshape(-1, order="F"), False, False),
    "an iota of two dimensions": (lambda ids: lax.broadcasted_iota(jnp.int32, (3, 4), 1).reshape(-1), False, False),
}


@pytest.mark.parametrize("name", PERMUTATIONS)
def test_permutations(name):
    fun, is_one, is_inverse = PERMUTATIONS[name]
    assert said_of(fun)[1:] == (is_one, is_inverse)
    values = jax.tree.leaves(jax.jit(fun)(IDS))
    if is_one:
        np.testing.assert_array_equal(np.sort(values[0]), np.arange(M))
    if is_inverse:
        np.testing.assert_array_equal(np.asarray(values[1])[np.asarray(values[0])], np.arange(M))
