"""Which equations are elementwise, and calls whose equations stand in their place."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun
from jax.sharding import NamedSharding, PartitionSpec

from jax_moye._primitives.equations import inlined, inner_of, is_elementwise, operands_of, parted

try:
    from jax.extend.core import check_jaxpr
except ImportError:  # before jax 0.10
    from jax.core import check_jaxpr

X = jnp.linspace(-1, 1, 12, dtype=jnp.float32).reshape(3, 4)
ELEMENTWISE = {
    "tanh": jnp.tanh,
    "tanh and its derivative": lambda x: jax.vjp(jnp.tanh, x)[1](x)[0],
    "gelu with erf": lambda x: jax.vjp(lambda x: jax.nn.gelu(x, approximate=False), x)[1](x)[0],
    "a binary logarithm": lambda x: jnp.log2(x + 2),
    "silu": jax.nn.silu,
    "gelu": jax.jit(jax.nn.gelu),
    "relu": jax.nn.relu,
    "a bfloat16": lambda x: x.astype(jnp.bfloat16),
    "a copy in each row": lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (1, 2)),
    "calls of calls": jax.jit(jax.jit(lambda x: jnp.where(x > 0, x, jnp.exp(x)))),
    "a shape": lambda x: x.reshape(4, 3),
}
OTHERS = {
    "a sum": jnp.sum,
    "a product": lambda x: x @ x.T,
    "a transpose": jnp.transpose,
    "a softmax": jax.jit(jax.nn.softmax),
    "a loop": lambda x: lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x), x),
    "an effect": jax.jit(lambda x: jax.debug.callback(lambda _: None, x) or jnp.tanh(x)),
    "a barrier": lambda x: lax.optimization_barrier(x),
}


def equations(fun):
    return jax.make_jaxpr(fun)(X).eqns


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name):
    assert all(map(is_elementwise, equations(ELEMENTWISE[name])))


@pytest.mark.parametrize("name", OTHERS)
def test_not_elementwise(name):
    assert not all(map(is_elementwise, equations(OTHERS[name])))


def test_operands_are_no_numbers():
    (equation,) = jax.make_jaxpr(lambda x: x * 2.0)(X).eqns
    assert len(equation.invars) == 2
    assert operands_of(equation) == [equation.invars[0]]


def test_calls_become_their_equations():
    @jax.jit
    def twice(x):
        return x, 2.0, jnp.tanh(x)

    @functools.partial(jax.jit, inline=False)
    def outer(x):
        with jax.named_scope("inside"):
            same, number, y = twice(x)
            return same + number, jnp.sum(y), y

    def fun(x):
        first, total, y = outer(x)
        other, _, same = outer(first)  # the same jaxpr once more
        return first, total * other, y, same

    closed = jax.make_jaxpr(fun)(X)
    calls = [one for one in closed.jaxpr.eqns if one.primitive.name in ("jit", "pjit")]
    assert len(calls) == 2
    new = inlined(closed.jaxpr, calls)
    check_jaxpr(new)
    assert not {id(one) for one in calls} & {id(one) for one in new.eqns}
    assert "jit(outer)/inside" in {str(one.source_info.name_stack) for one in new.eqns}
    again = inlined(new, new.eqns)
    check_jaxpr(again)
    assert all(inner_of(one) is None for one in again.eqns)
    for jaxpr in (new, again):
        results = jaxpr_as_fun(closed.replace(jaxpr=jaxpr))(X)
        for one, other in zip(results, jaxpr_as_fun(closed)(X), strict=True):
            np.testing.assert_array_equal(one, other)
    assert inlined(closed.jaxpr, ()).eqns == closed.jaxpr.eqns


def test_equations_that_a_value_needs():
    """They keep their order, and so do the others."""
    jaxpr = jax.make_jaxpr(lambda x, y: (jnp.sin(x) * jnp.cos(y), jnp.tan(y)))(X, X).jaxpr
    product = next(one for one in jaxpr.eqns if one.primitive.name == "mul")
    of_value, others = parted(jaxpr.eqns, product.outvars[0])
    assert [one.primitive.name for one in of_value] == ["sin", "cos", "mul"]
    assert [one.primitive.name for one in others] == ["tan"]
    assert parted(jaxpr.eqns, jaxpr.invars[0]) == ([], list(jaxpr.eqns))


def test_calls_that_stay():
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    placed = jax.jit(jnp.tanh, out_shardings=NamedSharding(mesh, PartitionSpec("x")))
    for fun in (placed, jax.jit(jnp.tanh, donate_argnums=0), OTHERS["an effect"], jax.checkpoint(jnp.tanh)):
        (equation,) = equations(fun)
        assert inner_of(equation) is None
    (equation,) = equations(jax.jit(jnp.tanh))
    assert inner_of(equation) is not None
