"""A product and what stands behind it: which equations a chain takes, and what they become."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye._api.options import Options
from jax_moye._primitives.chains import chain_from
from jax_moye._primitives.patterns import Program


def chains_of(fun, *shapes, dtype=jnp.bfloat16):
    """Of each product of a program, the names of the equations that its chain takes, and the equation they become."""
    jaxpr = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(shape, dtype) for shape in shapes)).jaxpr
    program, found = Program(jaxpr.eqns, jaxpr.outvars), []
    for index, equation in enumerate(jaxpr.eqns):
        chain = chain_from(program, index, {}) if equation.primitive.name == "dot_general" else None
        if chain is not None:
            names = [jaxpr.eqns[member].primitive.name for member in chain.members]
            found.append((names, chain.equation(program, Options().parameters())))
    return found


def test_members_and_operands():
    ((names, equation),) = chains_of(lambda x, w, r: x @ w + r, (4, 8), (8, 6), (4, 6))
    assert names == ["dot_general", "add"]
    assert equation.primitive.name == "jax_moye_contract"
    assert equation.params["beta"] == 1.0
    assert len(equation.invars) == 3

    fun = lambda x, w, b, r: r + jax.nn.relu(x @ w + b)  # noqa: E731
    ((names, equation),) = chains_of(fun, (4, 8), (8, 6), (6,), (4, 6))
    assert names[0] == "dot_general"
    assert names[-1] == "add"
    assert equation.params["epilogue"].activation == "relu"
    assert equation.params["epilogue"].operands == (("bias", "n"), ("residual", "mn"))


def test_a_product_of_other_dtypes_is_none_of_ours():
    assert chains_of(lambda x, w: x @ w, (4, 8), (8, 6), dtype=jnp.int32) == []
    assert chains_of(lambda x, w: x @ w, (4, 8), (8, 6), dtype=jnp.complex64) == []


def test_a_chain_ends_where_a_wider_type_begins():
    wider = lambda x, w: (x @ w).astype(jnp.float32)  # noqa: E731
    ((names, _),) = chains_of(wider, (4, 8), (8, 6))
    assert names == ["dot_general"]
    narrower = lambda x, w: lax.dot(x, w, preferred_element_type=jnp.float32).astype(x.dtype)  # noqa: E731
    ((names, equation),) = chains_of(narrower, (4, 8), (8, 6))
    assert names == ["dot_general", "convert_element_type"]
    assert equation.params["out_dtype"] == jnp.bfloat16
