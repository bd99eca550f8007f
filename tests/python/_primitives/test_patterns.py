"""Finding equations in a jaxpr: readers, arrays before they were copied, and templates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._primitives import chains
from jax_moye._primitives.patterns import Program, Template, as_broadcast, as_number, matched
from jax_moye._selection.epilogue import DERIVATIVES


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


def test_what_is_the_same_along_a_dimension_is_found_before_it_was_copied():
    def of(fun, *shapes):
        jaxpr, program = program_of(fun, *shapes)
        *_, last = jaxpr.eqns
        found, dims, members = as_broadcast(program, last.invars[1], (3, 4))
        return None if found is None else (found.aval.shape, dims, [jaxpr.eqns[i].primitive.name for i in members])

    copied = lambda x, b: x + jnp.broadcast_to(b, x.shape)  # noqa: E731
    assert of(copied, (3, 4), (4,)) == ((4,), (1,), ["broadcast_in_dim"])
    assert of(copied, (3, 4), (1, 4)) == ((1, 4), (1,), ["broadcast_in_dim"])
    assert of(copied, (3, 4), (3, 1)) == ((3, 1), (0,), ["broadcast_in_dim"])
    assert of(copied, (3, 4), (1, 1)) is None
    assert of(lambda x, b: x + b, (3, 4), (1, 4)) == ((1, 4), (1,), [])
    assert of(jnp.add, (3, 4), (3, 4)) == ((3, 4), (0, 1), [])
    read_twice = lambda x, b: (lambda y: (y, x + y))(jnp.broadcast_to(b, x.shape))  # noqa: E731
    assert of(read_twice, (3, 4), (4,)) == ((3, 4), (0, 1), [])


def template_of(fun):
    return Template(jax.make_jaxpr(fun)(jnp.ones(3)).jaxpr)


def found(fun, template):
    """The members, and whether the rest of the program reads what they make."""
    jaxpr, program = program_of(fun, (3,))
    (x,) = jaxpr.invars
    return matched(program, x, template)


def test_a_template_is_found_whole_or_not_at_all():
    template = template_of(lambda x: x * jnp.tanh(x * 2.0))
    members, value = found(lambda x: jnp.sin(x * jnp.tanh(x * 2.0)), template)
    assert members == [0, 1, 2]
    assert value.aval.shape == (3,)
    assert found(lambda x: x * jnp.tanh(x * 3.0), template) is None  # another number
    assert found(lambda x: x * jnp.sin(x * 2.0), template) is None  # another function
    assert found(lambda x: (lambda y: x * y + y)(jnp.tanh(x * 2.0)), template) is None  # somebody reads what is inside
    assert found(lambda x: (x * jnp.tanh(x * 2.0), x + 1), template) is None  # or the value


def test_a_template_is_found_in_any_order_and_in_calls():
    template = template_of(lambda x: x * jnp.tanh(x * 2.0))
    assert found(lambda x: jnp.tanh(2.0 * x) * x, template)[0] == [0, 1, 2]

    def between(x):
        y = x * 2.0
        z = jnp.cos(jnp.ones(3))
        return x * jnp.tanh(y) + z

    assert found(between, template)[0] == [0, 3, 4]
    assert found(jax.jit(lambda x: x * jnp.tanh(x * 2.0)), template)[0] == [0]
    converted = lambda x: x * jnp.tanh(x * lax.convert_element_type(jnp.int32(2), x.dtype))  # noqa: E731
    assert found(jax.jit(converted), template)[0] == [0]
    assert found(lambda x: x * jax.jit(lambda y: jnp.tanh(y * 2.0))(x), template)[0] == [0, 1]
    rule = jax.custom_jvp(lambda x: x * jnp.tanh(x * 2.0))
    rule.defjvps(lambda g, y, x: g * y)
    assert found(lambda x: jnp.sin(rule(x)), template)[0] == [0]
    more = jax.jit(lambda x: (x * jnp.tanh(x * 2.0), jnp.cos(x)))  # a call that does something else, too
    assert found(lambda x: more(x)[0], template) is None
    twice = jax.jit(lambda x: (x * jnp.tanh(x * 2.0), jnp.cos(2.0)))
    assert found(lambda x: twice(x)[0], template) is None
    many = jax.jit(lambda x: (lambda y: sum((y,) * 20) * 0 + x * jnp.tanh(x * 2.0))(x))
    assert found(many, template) is None
    again = jax.jit(lambda x: x * 2.0)  # the same jaxpr twice, of other values
    assert found(lambda x: x * jnp.tanh(again(x)), template)[0] == [0, 1, 2]
    assert found(lambda x: again(x * jnp.tanh(again(x))), template)[0] == [0, 1, 2]


def test_numbers():
    def of(fun):
        jaxpr, program = program_of(fun, (3,))
        return as_number(program, jaxpr.eqns[-1].invars[1])

    assert of(lambda x: x * 0.5) == 0.5
    assert of(lambda x: x.astype(jnp.bfloat16) * 0.1) == float(jnp.bfloat16(0.1))
    assert of(lambda x: x * lax.full_like(x, 0.25)) == 0.25
    assert of(lambda x: x * jnp.full(3, 0.25)) == 0.25
    assert of(lambda x: x * jnp.full(3, 0.1, jnp.bfloat16).astype(x.dtype)) == float(jnp.bfloat16(0.1))
    assert of(lambda x: x * jnp.full(3, -1e9).astype(jnp.float16).astype(x.dtype)) == -np.inf
    assert of(lambda x: x * jnp.arange(3.0)) is None
    assert of(lambda x: x * x) is None


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("shape", [(), (1,), (33,), (0, 3), (5, 7), (1, 33), (1, 1), (2, 3, 4)])
def test_small_arrays_say_what_reads_an_argument(shape, dtype):
    """Functions of elements have equations of the same kinds at any size: what is not possible there is not here."""
    small = tuple(min(size, 2) for size in shape)
    for name in (*chains._NAMES, *DERIVATIVES):
        kinds = [chains._template(name, sizes, dtype).read_by for sizes in (shape, small)]
        assert kinds[0] == kinds[1], name
        assert all(kinds[0]), name


def test_templates_are_made_only_of_what_is_possible(monkeypatch):
    """Of a product with gelu behind it, at a size that is new: gelu's, and no derivative's."""
    made, make = set(), chains._template

    def seen(name, shape, dtype):
        made.add((name, shape))
        return make(name, shape, dtype)

    monkeypatch.setattr(chains, "_template", seen)
    x, w = jax.ShapeDtypeStruct((17, 24), jnp.bfloat16), jax.ShapeDtypeStruct((24, 39), jnp.bfloat16)
    jax.make_jaxpr(jax_moye.optimize(lambda x, w: jax.nn.gelu(x @ w)))(x, w)
    assert {name for name, shape in made if shape == (17, 39)} == {"gelu_tanh"}
