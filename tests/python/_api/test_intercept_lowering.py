"""A program of which XLA computes all products: inside of `intercept` it is the one that it is outside."""

from __future__ import annotations

import collections
import re

import jax
import jax.numpy as jnp
import pytest

import jax_moye


def layer(x, w, b, v):
    return jnp.sum(jax.nn.gelu(x @ w + b) @ v)


def grouped_attention(q, k, v):
    return jnp.sum(jax.nn.dot_product_attention(q, k, v, is_causal=True).astype(jnp.float32) ** 2)


def einsums(x, w, v):
    heads = jnp.einsum("btm,mhd->bhtd", x, w)
    return jnp.sum(jnp.einsum("bhtd,hdm->btm", jnp.tanh(heads), v))


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


LAYER = struct(16, 32), struct(32, 48), struct(48), struct(48, 32)
PROGRAMS = {
    "a layer": (jax.value_and_grad(layer, (0, 1, 2, 3)), LAYER),
    "attention of each query's head": (
        jax.value_and_grad(grouped_attention, (0, 1, 2)),
        (struct(2, 24, 4, 16), struct(2, 40, 4, 16), struct(2, 40, 4, 16)),
    ),
    "attention of grouped queries": (
        jax.value_and_grad(grouped_attention, (0, 1, 2)),
        (struct(2, 24, 6, 16), struct(2, 40, 2, 16), struct(2, 40, 2, 16)),
    ),
    "einsums": (
        jax.value_and_grad(einsums, (0, 1, 2)),
        (struct(2, 8, 32), struct(32, 4, 16), struct(4, 16, 32)),
    ),
    "a batch of products": (jax.vmap(jnp.matmul, (1, 2), 1), (struct(8, 3, 16), struct(16, 24, 3))),
}


def in_order(contracting):
    """Pairs of dimensions that are summed over: XLA itself sorts them."""
    pairs = zip(*(re.findall(r"\d+", dims) for dims in contracting.groups()), strict=True)
    return "contracting_dims = " + " x ".join(map(str, zip(*sorted(pairs), strict=True)))


def products_and_transposes(fun, args):
    text = jax.jit(fun).lower(*args).as_text()
    lines = [re.sub(r"%\w+", "%", line.strip()) for line in text.splitlines()]
    lines = [re.sub(r"contracting_dims = \[(.*?)\] x \[(.*?)\]", in_order, line) for line in lines]
    return collections.Counter(line for line in lines if re.search(r"dot_general|transpose", line))


@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_the_same(name):
    fun, args = PROGRAMS[name]

    def inside(*args):
        with jax_moye.intercept(), jax_moye.options(implementation="xla"):
            return fun(*args)

    expected = products_and_transposes(fun, args)
    assert sum("dot_general" in line for line in expected) > 0
    assert products_and_transposes(inside, args) == expected


def test_where_a_batch_of_one_operand_lies():
    """With a batch of both, where lax's rule has it; in front without one, and where kernels alone may store it."""

    def shape(fun, axes, *args):
        equations = jax.make_jaxpr(jax.vmap(fun, axes))(*args).eqns
        (product,) = (equation for equation in equations if equation.primitive.name == "jax_moye_contract")
        return product.outvars[0].aval.shape

    def of_batch(x, w):
        return jax_moye.einsum("bmk,bkn->bmn", x, w)

    x, w = struct(5, 2, 8, 16), struct(2, 16, 24)
    assert shape(of_batch, (0, None), x, w) == (2, 5, 8, 24)
    assert shape(of_batch, (None, 2), struct(2, 8, 16), struct(2, 16, 5, 24)) == (2, 8, 5, 24)
    with jax_moye.options(implementation="moye"):
        assert shape(of_batch, (0, None), x, w) == (5, 2, 8, 24)
    assert shape(jax_moye.matmul, (None, 0), struct(8, 16), struct(5, 16, 24)) == (5, 8, 24)
