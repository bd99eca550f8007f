"""Finding equations in a jaxpr: readers, vectors before they were copied, and templates."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jax_moye._primitives.patterns import Program, as_vector, matched


def program_of(fun, *shapes):
    jaxpr = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).jaxpr
    return jaxpr, Program(jaxpr.eqns, jaxpr.outvars)


def test_the_only_reader_reads_once_and_is_no_result():
    jaxpr, program = program_of(lambda x: (lambda y: jnp.cos(y) + (y + y))(jnp.sin(x)), (3,))
    (x,) = jaxpr.invars
    assert program.only_reader(x) == 0
    names = {equation.primitive.name: equation.outvars[0] for equation in jaxpr.eqns}
    assert program.only_reader(names["sin"]) is None  # three times
    assert program.only_reader(names["cos"]) == len(jaxpr.eqns) - 1
    assert program.only_reader(jaxpr.outvars[0]) is None
    assert program.made_by[names["sin"]] == 0


def test_a_vector_is_found_before_it_was_copied():
    def of(fun, *shapes):
        jaxpr, program = program_of(fun, *shapes)
        *_, last = jaxpr.eqns
        found, members = as_vector(program, last.invars[1], 4)
        return None if found is None else (found.aval.shape, [jaxpr.eqns[i].primitive.name for i in members])

    copied = lambda x, b: x + jnp.broadcast_to(b, x.shape)  # noqa: E731
    assert of(copied, (3, 4), (4,)) == ((4,), ["broadcast_in_dim"])
    assert of(copied, (3, 4), (1, 4)) == ((1, 4), ["broadcast_in_dim"])
    assert of(copied, (3, 4), (3, 1)) is None
    assert of(jnp.add, (3, 4), (3, 4)) is None
    read_twice = lambda x, b: (lambda y: (y, x + y))(jnp.broadcast_to(b, x.shape))  # noqa: E731
    assert of(read_twice, (3, 4), (4,)) is None


def test_a_template_is_found_whole_or_not_at_all():
    template = jax.make_jaxpr(lambda x: x * jnp.tanh(x * 2.0))(jnp.ones(3)).jaxpr

    def of(fun):
        jaxpr, program = program_of(fun, (3,))
        return matched(program, jaxpr.invars[0], program.readers[jaxpr.invars[0]], template)

    members, value = of(lambda x: jnp.sin(x * jnp.tanh(x * 2.0)))
    assert members == [0, 1, 2]
    assert value.aval.shape == (3,)
    assert of(lambda x: x * jnp.tanh(x * 3.0)) is None  # another number
    assert of(lambda x: x * jnp.sin(x * 2.0)) is None  # another function
    assert of(lambda x: (lambda y: x * y + y)(jnp.tanh(x * 2.0))) is None  # somebody else reads what is inside
    assert of(lambda x: (x * jnp.tanh(x * 2.0), x + 1)) is None  # or the value
