"""Which values of programs are the same."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_moye._primitives.same_values import SameValues


def number(fun, *args):
    """The numbers of a program's results."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    values = SameValues()
    values.look_at(jaxpr.eqns, values.numbers)
    return [values.of(x, values.numbers) for x in jaxpr.outvars]


X = jnp.ones((4, 6))


def test_the_same_equations_of_the_same():
    first, second, third = number(lambda x, y: (jnp.sin(x) * 2, jnp.sin(x) * 2, jnp.sin(y) * 2), X, X)
    assert first is second
    assert first is not third


def test_parameters_and_numbers():
    one, other, same = number(lambda x: (x.sum(0), x[:4, :4].sum(1), x.sum(0)), X)
    assert one is same
    assert one is not other
    two, three, also_two = number(lambda x: (x * 2.0, x * 3.0, x * 2.0), X)
    assert two is also_two
    assert two is not three


def test_numbers_of_types():
    halves = lambda x: (x * lax.convert_element_type(np.float32(0.5), jnp.bfloat16), x * 0.5, x * 0.25)  # noqa: E731
    jaxpr = jax.make_jaxpr(lambda x, y: (x * y.astype(jnp.bfloat16), x * 0.5))(X.astype(jnp.bfloat16), X[0, 0]).jaxpr
    y = jaxpr.invars[1]
    half = jax.make_jaxpr(lambda: np.float32(0.5))().jaxpr.outvars[0]
    equations = [one.replace(invars=[half if x is y else x for x in one.invars]) for one in jaxpr.eqns]
    values = SameValues()
    values.look_at(equations, values.numbers)
    first, second = (values.of(x, values.numbers) for x in jaxpr.outvars)
    assert first is second
    first, second, third = number(halves, X.astype(jnp.bfloat16))
    assert first is second
    assert first is not third


def test_integers_of_floats_are_nobody_elses():
    """NumPy and XLA make other integers of floats that are too large; other conversions are the numbers they make."""
    literal = lambda number: jax.make_jaxpr(lambda: number)().jaxpr.outvars[0]  # noqa: E731
    for dtype, is_known in ((jnp.bfloat16, True), (jnp.int32, False)):
        (one,) = jax.make_jaxpr(lambda x, dtype=dtype: x.astype(dtype))(jnp.float32(0)).jaxpr.eqns
        values = SameValues()
        values.look_at([one.replace(invars=[literal(np.float32(3))])], values.numbers)
        expected = values.of(literal(np.float32(3).astype(dtype)), values.numbers)
        assert (values.of(one.outvars[0], values.numbers) == expected) == is_known


def test_calls_are_what_is_in_them():
    first, second = number(lambda x: (jax.jit(lambda x: (jnp.cos(x) + 1, x))(x)[0], jnp.cos(x) + 1), X)
    assert first is second


def test_a_rounding_that_changes_nothing():
    first, second, third = number(lambda x: (x, lax.reduce_precision(x, 8, 23), lax.reduce_precision(x, 8, 7)), X)
    assert first is second
    assert first is not third


def test_loops_and_draws_differ():
    def loop(x):
        return lax.fori_loop(0, 3, lambda _, x: x * 2, x)

    first, second = number(lambda x: (loop(x), loop(x)), X)
    assert first is not second
    key = jax.random.key(0)
    first, second, third = number(
        lambda a, b: (jax.random.bits(a, (4,)), jax.random.bits(a, (4,)), jax.random.bits(b, (4,))), key, key
    )
    assert first is second
    assert first is not third
