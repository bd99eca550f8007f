"""A search from a product to the products that end it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from python.attentions import FORMS, gradients, operands

from jax_moye._primitives.attention_known import KnownValues
from jax_moye._primitives.attention_products import is_16_bit
from jax_moye._primitives.attention_search import searches
from jax_moye._primitives.attention_softmax import NotAttentionError
from jax_moye._primitives.patterns import Program


def begun(fun, *args):
    """The search from the first product whose right operand is the keys, and the other one."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    step = next(step for step in program.flat.steps if step.equation.primitive.name == "dot_general")
    return jaxpr, [begin() for begin in searches(program, KnownValues(program), step)]


def test_the_products_of_a_derivative(rng):
    args = operands(rng)
    jaxpr, (search, other) = begun(gradients(FORMS["plain"], True), *args)
    search.run()
    assert search.results.keys() == {"o", "dq", "dk", "dv"}
    assert (search.q.variable, search.k.variable) == tuple(jaxpr.invars[:2])
    assert search.v.variable is jaxpr.invars[2]
    assert search.q.labels == ("A", "q", "B", "d")
    assert search.k.labels == ("A", "k", "B", "d")
    assert search.d_o.labels == ("A", "B", "d", "q")  # a transpose stands in front of it
    assert search.results["dq"].labels == ("A", "B", "q", "d")
    assert search.sizes == {"A": 2, "B": 2, "d": 16, "q": 24, "k": 24}
    assert search.softmax.scores.scores == 0.25
    for name, result in search.results.items():
        assert jaxpr.eqns[result.place].primitive.name == "dot_general", name
    with pytest.raises(NotAttentionError):  # the softmax is not over the queries
        other.run()


def test_where_it_ends(rng):
    q, k, v, d_o = operands(rng)
    product = lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k)  # noqa: E731
    programs = {
        "a sum": lambda q, k, v, d_o: jnp.sum(product(q, k)),
        "a sort": lambda q, k, v, d_o: jnp.sort(product(q, k)),
        "its square": lambda q, k, v, d_o: product(q, k) @ product(q, k),
        "a softmax in another order": lambda q, k, v, d_o: jnp.einsum(
            "bhqk,bkhd->bqhd", jax.nn.softmax(jax.lax.reshape(product(q, k), (2, 2, 24, 24), (0, 1, 3, 2))), v
        ),
        "no softmax": lambda q, k, v, d_o: jnp.einsum("bhqk,bkhd->bqhd", product(q, k), v),
        "two softmaxes": lambda q, k, v, d_o: jnp.einsum(
            "bhqk,bkhd->bqhd", jax.nn.softmax(product(q, k)) + jax.nn.softmax(2 * product(q, k)), v
        ),
    }
    for name, fun in programs.items():
        for search in begun(fun, q, k, v, d_o)[1]:
            with pytest.raises(NotAttentionError):
                search.run()
            assert "o" not in search.results, name


def test_operands_that_are_no_scores(rng):
    x, w = jnp.ones((4, 8), jnp.bfloat16), jnp.ones((8, 3, 5), jnp.bfloat16)
    with pytest.raises(NotAttentionError):  # two dimensions of keys
        begun(lambda x, w: jnp.einsum("md,dkn->mkn", x, w), x, w)
    with pytest.raises(NotAttentionError):  # nothing is summed over
        begun(lambda x, w: jnp.einsum("m,k->mk", x, w), x[:, 0], w[:, 0, 0])


def test_how_products_round():
    def equation(x, y, **params):
        (found,) = jax.make_jaxpr(lambda x, y: jax.lax.dot(x, y, **params))(x, y).jaxpr.eqns
        return found

    x, wide = jnp.ones((4, 4), jnp.bfloat16), jnp.ones((4, 4), jnp.float32)
    assert is_16_bit(equation(x, x), jnp.bfloat16, None)
    assert is_16_bit(equation(x, x, preferred_element_type=jnp.float32), jnp.bfloat16, None)
    assert not is_16_bit(equation(x, x), jnp.float16, None)
    assert not is_16_bit(equation(x, x, precision="BF16_BF16_F32_X3"), jnp.bfloat16, None)
    assert not is_16_bit(equation(wide, wide), jnp.bfloat16, 0)
    of_algorithm = {"precision": "BF16_BF16_F32", "preferred_element_type": jnp.float32}
    assert is_16_bit(equation(wide, x, **of_algorithm), jnp.bfloat16, 0)
    assert not is_16_bit(equation(wide, x, **of_algorithm), jnp.bfloat16, 1)
