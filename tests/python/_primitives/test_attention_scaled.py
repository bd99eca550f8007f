"""Numbers that queries or keys are multiplied by in front of attention, as part of the scale of the scores."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attentions import arrays, assert_as_exact, needs_rows
from python.viewed import movements

import jax_moye

B, T, H, D = 2, 24, 4, 16  # batch, rows, heads, head_dim
SHAPES = (B, T, 3 * H * D), (B, T, H, D)


def times_a_number(q, k):
    return q * 0.23, k, 0.23


def divided(q, k):
    """As Flax does: by a number that the program computes."""
    return q / jnp.sqrt(D).astype(q.dtype), k, 0.25


def both(q, k):
    return q * D**-0.25, k * D**-0.25, 0.25


def a_number_first(q, k):
    return 0.23 * q, k, 0.23


WAYS = {x.__name__: x for x in (times_a_number, divided, both, a_number_first)}


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def program_of(way):
    """The result, and the derivative by the array that queries, keys and values are parts of."""

    def fun(x, d_o):
        def of(x):
            q, k, v = (y.reshape(B, T, H, D) for y in jnp.split(x, 3, axis=-1))
            return attention(*way(q, k)[:2], v)

        out, pullback = jax.vjp(of, x)
        return out, pullback(d_o)[0]

    return fun


def lowered(fun, *args):
    with jax_moye.options(interpret=True):
        return jax.jit(jax_moye.optimize(fun)).lower(*args)


def scales(text):
    return [float(x) for x in re.findall(r"[{ ]scale = ([\d.e+-]+) : f64", text)]


@needs_rows
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_multiplies_the_scores(way, rng):
    """Queries, keys and values are read, and their gradients written, as parts of an array."""
    fun, args = program_of(WAYS[way]), arrays(rng, *SHAPES)
    program = lowered(fun, *args)
    text = program.as_text()
    assert "@jax_moye_view_attention_v1(" in text
    assert "@jax_moye_joined_attention_grad_v1(" in text
    assert not {"stablehlo.slice", "stablehlo.concatenate"} & set(movements(text))
    factor = WAYS[way](jnp.ones(1, jnp.bfloat16), jnp.ones(1, jnp.bfloat16))[2]
    np.testing.assert_allclose(scales(text), [factor] * 2, rtol=2**-8)  # as bfloat16 has it
    with jax.enable_x64(True):
        expected = jax.jit(fun)(*(jnp.asarray(np.asarray(x, np.float64)) for x in args))
    assert_as_exact(program.compile()(*args), jax.jit(fun)(*args), [np.asarray(x) for x in expected], jnp.bfloat16)


def read_twice(q, k, v):
    q = q * 0.25
    return attention(q, k, v), q


def negative(q, k, v):
    return attention(q * -0.25, k, v)


def tiny(q, k, v):
    """A kernel's scale would be no number of float32."""
    return attention(q * 1e-25, k * 1e-25, v)


def by_an_array(q, k, v):
    return attention(q * jnp.arange(1, D + 1, dtype=q.dtype), k, v)


def squared(q, k, v):
    q = q * 0.25
    return attention(q, q, v)


def divides_a_number(q, k, v):
    return attention(0.25 / q, k, v)


@needs_rows
@pytest.mark.parametrize("fun", [read_twice, negative, tiny, by_an_array, squared, divides_a_number])
def test_what_stays_in_front(fun, rng):
    args = (
        [1 + abs(x) for x in arrays(rng, *[SHAPES[1]] * 3)]
        if fun is divides_a_number
        else arrays(rng, *[SHAPES[1]] * 3)
    )
    program = lowered(fun, *args)
    assert scales(program.as_text()) == [1.0]
    for one, other in zip(*(jax.tree.leaves(run(*args)) for run in (program.compile(), jax.jit(fun))), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.05, atol=0.02)


@needs_rows
def test_another_factor_behind_the_gradient_stays(rng):
    """A rule of the program's own, whose derivative is not that of its product."""

    @jax.custom_vjp
    def scaled(q):
        return q * 0.25

    scaled.defvjp(lambda q: (q * 0.25, None), lambda _, d_q: (d_q * 0.5,))

    def fun(q, k, v, d_o):
        return jax.vjp(lambda q, k, v: attention(scaled(q), k, v), q, k, v)[1](d_o)

    args = arrays(rng, *[SHAPES[1]] * 4)
    program = lowered(fun, *args)
    assert scales(program.as_text()) in ([1.0], [1.0, 1.0])
    for one, other in zip(program.compile()(*args), jax.jit(fun)(*args), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=0.1, atol=0.05)
