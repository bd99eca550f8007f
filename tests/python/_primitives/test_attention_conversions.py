"""Conversions that are moved next to products: the same numbers, and the same program where none is to be moved."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var, jaxpr_as_fun

from jax_moye._primitives.attention_conversions import with_conversions_at_products


def _program(fun, *operands):
    closed = jax.make_jaxpr(fun)(*operands)
    return closed, with_conversions_at_products(closed.jaxpr)


def _beside_products(jaxpr) -> list[str]:
    """What makes the operands of products, and what reads their results."""
    made_by = {x: equation.primitive.name for equation in jaxpr.eqns for x in equation.outvars}
    read_by = {x: equation.primitive.name for equation in jaxpr.eqns for x in equation.invars if isinstance(x, Var)}
    products = [equation for equation in jaxpr.eqns if equation.primitive.name == "dot_general"]
    made = [made_by.get(x, "") for one in products for x in one.invars]
    return made + [read_by.get(x, "") for one in products for x in one.outvars]


def _moved(q, k):
    scores = q.astype(jnp.float32).reshape(4, 3, 8).transpose(1, 0, 2) @ k.astype(jnp.float32).T
    return scores.reshape(3, 2, 2, 5)[:, :1], jnp.sum(k.astype(jnp.float32))


def test_operands_are_converted_last(rng):
    operands = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((12, 8), (5, 8))]
    closed, new = _program(_moved, *operands)
    assert new is not closed.jaxpr
    assert _beside_products(closed.jaxpr)[0] == "transpose"
    assert _beside_products(new)[:2] == ["convert_element_type"] * 2
    for result, before in zip(jaxpr_as_fun(closed.replace(jaxpr=new))(*operands), _moved(*operands), strict=True):
        np.testing.assert_array_equal(result, before)


def test_results_are_converted_first(rng):
    operands = [jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in ((12, 8), (8, 6))]

    def fun(x, w):
        y = jnp.matmul(x, w, preferred_element_type=jnp.float32)
        return y.reshape(3, 4, 6).transpose(1, 0, 2).reshape(4, 18).astype(jnp.bfloat16)

    closed, new = _program(fun, *operands)
    assert _beside_products(new)[-1] == "convert_element_type"
    assert [x.aval.dtype for equation in new.eqns[-3:] for x in equation.outvars] == [jnp.bfloat16] * 3
    np.testing.assert_array_equal(jaxpr_as_fun(closed.replace(jaxpr=new))(*operands)[0], fun(*operands))


LEFT = {
    "beside products": lambda x, w: (x.astype(jnp.float32) @ w.astype(jnp.float32)).astype(jnp.bfloat16),
    "no product": lambda x, w: x.astype(jnp.float32).reshape(96) * w.sum(),
    "read before it is moved": lambda x, w: (lambda y: (y.reshape(96).astype(x.dtype), y))(
        jnp.matmul(x, w, preferred_element_type=jnp.float32)
    ),
    "8 bits": lambda x, w: x.astype(jnp.float8_e4m3fn).astype(jnp.float32).T.reshape(12, 8) @ w.astype(jnp.float32),
    "a print": lambda x, w: (jax.debug.print("{}", x[0, 0]), x @ w)[1],
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name):
    x, w = jnp.ones((12, 8), jnp.bfloat16), jnp.ones((8, 8), jnp.bfloat16)
    closed, new = _program(LEFT[name], x, w)
    assert new is closed.jaxpr
