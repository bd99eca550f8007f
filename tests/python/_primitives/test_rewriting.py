"""Rewriting a jaxpr: what has nothing to rewrite is the same object, and bodies are looked into."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye._api.options import Options
from jax_moye._primitives.rewriting import rewritten

PARAMETERS = Options().parameters()


def test_a_program_without_products_is_itself():
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0])(1.0)
    assert rewritten(closed, PARAMETERS) is closed


def test_a_body_is_rewritten_and_the_rest_is_kept():
    x = jnp.ones((4, 4), jnp.bfloat16)
    closed = jax.make_jaxpr(lambda x: jnp.sin(lax.scan(lambda c, _: (c @ c, None), x, length=3)[0]))(x)
    new = rewritten(closed, PARAMETERS)
    assert [one is other for one, other in zip(new.eqns, closed.eqns, strict=True)] == [False, True]
    (inner,) = new.eqns[0].params["jaxpr"].eqns
    assert inner.primitive.name == "jax_moye_contract"
    assert new.jaxpr.debug_info is closed.jaxpr.debug_info


def test_rewriting_twice_changes_nothing_more():
    x = jnp.ones((4, 4), jnp.bfloat16)
    once = rewritten(jax.make_jaxpr(lambda x: jax.nn.relu(x @ x) @ x)(x), PARAMETERS)
    assert rewritten(once, PARAMETERS) is once
