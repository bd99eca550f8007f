"""What is added to a product: where it is the same along some dimensions, its array before it was copied."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from jax_moye._primitives.patterns import Program
from jax_moye._primitives.summands import (
    as_bias,
    as_column_and_row,
    as_copy,
    as_multiple,
    has_column_sums,
    is_computed_where_read,
    is_fused_by_xla,
)

PLAIN = ("mk", "kn", "mn")
BATCHED = ("bmk", "bkn", "bmn")
HEADS = ("mk", "kha", "mha")  # a layer's result of several heads


def added(fun, *shapes):
    """The program, the product's value, and what is added to it last."""
    jaxpr = jax.make_jaxpr(fun)(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes)).jaxpr
    y = jaxpr.invars[0]
    (other,) = (x for x in jaxpr.eqns[-1].invars if x is not y)
    return jaxpr, Program(jaxpr.eqns, jaxpr.outvars), y, other


def names(jaxpr, members):
    return [jaxpr.eqns[index].primitive.name for index in members]


def sizes_and_labels(found):
    """Of an array without dimensions of one element."""
    return found and (tuple(size for size in found[0].aval.shape if size != 1), found[1])


@pytest.mark.parametrize(
    ("fun", "spec", "shapes", "expected"),
    [
        (lambda y, b: y + b, PLAIN, [(3, 4), (4,)], ((4,), "n")),
        (lambda y, b: y + b, HEADS, [(3, 2, 4), (2, 4)], ((2, 4), "ha")),
        (lambda y, b: y + b[:, None], BATCHED, [(5, 3, 4), (5, 4)], ((5, 4), "bn")),
        (lambda y, b: y + b[:, None], PLAIN, [(3, 4), (3,)], None),  # of rows: c
        (lambda y, b: y + b, BATCHED, [(5, 3, 4), (3, 4)], None),  # of rows, too
        (lambda y, b: y + b[:, None], HEADS, [(3, 2, 4), (2,)], None),  # not of what lies in a row one by one
    ],
)
def test_a_bias_has_labels_of_one_operand_and_the_last(fun, spec, shapes, expected):
    _, program, y, other = added(fun, *shapes)
    assert sizes_and_labels(as_bias(program, spec, y, other)) == expected


@pytest.mark.parametrize(
    ("fun", "spec", "shapes", "expected"),
    [
        (lambda y, c: y + c[:, None], PLAIN, [(3, 4), (3,)], ((3,), "m")),
        (lambda y, c: y + c, BATCHED, [(5, 3, 4), (3, 4)], ((3, 4), "mn")),
        (lambda y, c: y + c[:, None], HEADS, [(3, 2, 4), (2,)], ((2,), "h")),
        (lambda y, c: y + c, PLAIN, [(3, 4), (3, 4)], None),  # the whole result's
        (lambda y, c: y + c, PLAIN, [(3, 4), (1, 1)], None),  # one element
    ],
)
def test_a_copy_has_the_labels_of_what_was_copied(fun, spec, shapes, expected):
    _, program, y, other = added(fun, *shapes)
    assert sizes_and_labels(as_copy(program, spec, y, other)) == expected


@pytest.mark.parametrize("swapped", [False, True])
def test_a_sum_of_a_column_and_a_row(swapped):
    def fun(y, column, row):
        return y + (row + column[:, None] if swapped else column[:, None] + row)

    jaxpr, program, y, other = added(fun, (3, 4), (3,), (4,))
    operands, members = as_column_and_row(program, PLAIN, y, other)
    assert {name: (x.aval.size, labels) for name, (x, labels) in operands.items()} == {"c": (3, "m"), "bias": (4, "n")}
    assert "add" in names(jaxpr, members)


def test_a_sum_of_two_rows_is_no_column_and_row():
    _, program, y, other = added(lambda y, one, two: y + (one + two), (3, 4), (4,), (4,))
    assert as_column_and_row(program, PLAIN, y, other) is None


@pytest.mark.parametrize(
    ("fun", "factor"),
    [
        (lambda y, c: y + 0.5 * c, 0.5),
        (lambda y, c: y + c * -3, -3.0),
        (lambda y, c: y + c * 0.0, 1.0),  # NaN times 0 is no 0
        (lambda y, c: y + c * 1e-37, 1.0),  # a quotient by it would not be exact
        (lambda y, c: y + c * c, 1.0),
    ],
)
def test_a_multiple_is_an_array_and_a_number(fun, factor):
    jaxpr, program, _, other = added(fun, (3, 4), (3, 4))
    x, found, members = as_multiple(program, other)
    assert (found, names(jaxpr, members)) == (factor, [] if factor == 1.0 else ["mul"])
    assert (x in jaxpr.invars) == (factor != 1.0)


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda y, c: y + jnp.sin(c), True),
        (lambda y, c: y + jax.jit(lambda c: jnp.where(c > 0, c, 0.0))(c), True),
        (lambda y, c: y + c.astype(jnp.bfloat16).astype(jnp.float32).reshape(3, 4), True),
        (lambda y, c: y + jnp.sin(c).reshape(4, 3).reshape(3, 4), True),
        (lambda y, c: y + c[jnp.arange(3)[::-1]], True),  # a gather
        (lambda y, c: y + c.reshape(4, 3).T, True),
        (lambda y, c: y + lax.rev(c, (0,)), True),
        (lambda y, c: y + lax.pad(c[:2], 0.0, [(0, 1, 0), (0, 0, 0)]), True),
        (lambda y, c: y + jnp.concatenate([c[1:], c[:1]]), True),
        (lambda y, c: y + lax.squeeze(jnp.sin(c)[None], (0,)), True),
        (lambda y, c: y + checkpoint_name(jnp.sin(c), "c"), True),
        (lambda y, c: y + (c + c @ jnp.ones((4, 4))), False),  # the other product's kernel may write it
        (lambda y, c: y + (c @ jnp.ones((4, 4))).astype(jnp.bfloat16).astype(jnp.float32), False),
        (lambda y, c: y + c, False),  # given
        (lambda y, c: y + c.reshape(-1).reshape(3, 4), False),
        (lambda y, c: y + c @ jnp.ones((4, 4)), False),
        (lambda y, c: y + (c @ jnp.ones((4, 4))).reshape(-1).reshape(3, 4), False),
        (lambda y, c: y + lax.cumsum(c), False),
        (lambda y, c: (lambda z: z.sum() * y + z)(jnp.sin(c)), False),  # somebody else reads it
    ],
)
def test_xla_computes_where_it_is_read_what_nobody_else_reads(fun, expected):
    jaxpr = jax.make_jaxpr(fun)(*[jax.ShapeDtypeStruct((3, 4), jnp.float32)] * 2).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    other = jaxpr.eqns[-1].invars[1]
    assert is_fused_by_xla(program, other) == expected


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda y, c, w: jnp.sin(y + c), True),
        (lambda y, c, w: (lambda s: (jnp.sin(s), jnp.cos(s)))(y + c), True),
        (lambda y, c, w: jnp.sum(jnp.square(y + c)), True),
        (lambda y, c, w: jax.jit(jnp.tanh)(y + c), True),
        (lambda y, c, w: (y + c) * w, True),
        (lambda y, c, w: y + c, False),  # a result
        (lambda y, c, w: (y + c).T, False),
        (lambda y, c, w: (y + c) @ w, False),
        (lambda y, c, w: (y + c).astype(jnp.bfloat16) @ w.astype(jnp.bfloat16), False),
        (lambda y, c, w: jnp.sum(y + c), False),  # a norm's, whose kernel may not read what another one reads, too
        (lambda y, c, w: (lambda s: (jnp.sin(s), s))(y + c), False),
        (lambda y, c, w: (y + c) + w @ w, False),  # the other product's kernel reads it
        (lambda y, c, w: (y + c) * (0.5 * (w @ w).T), False),
        (lambda y, c, w: (y + c) * -(checkpoint_name(w @ w, "w") / 2), False),
        (lambda y, c, w: jax.jit(lambda s, t: s * t * t)(y + c, w @ w), False),  # a derivative, in a call
        (lambda y, c, w: (y + c) + jax.nn.relu(w @ w + c[0]), False),  # the sum is a residual
        (lambda y, c, w: (y + c) + jnp.sin(w), True),
        (lambda y, c, w: (y + c) * jnp.sin(w @ w), True),
        (lambda y, c, w: jnp.sin(y + 0.5 * (w @ c)), False),  # a sum of two products
        (lambda y, c, w: lax.scan(lambda s, _: (s, s), y + c, None, length=2), False),
    ],
)
def test_xla_computes_a_sum_where_elements_are_made_of_it(fun, expected):
    jaxpr = jax.make_jaxpr(fun)(*[jax.ShapeDtypeStruct((4, 4), jnp.float32)] * 3).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    total = next(x for x in jaxpr.eqns if x.primitive.name == "add" and x.invars[0] is jaxpr.invars[0])
    assert is_computed_where_read(program, total.outvars[0], total.invars[1]) == expected


@pytest.mark.parametrize(
    ("fun", "expected"),
    [
        (lambda y: y.sum(0), True),
        (lambda y: (y @ y, y.astype(jnp.float32).sum(0)), True),
        (lambda y: y.sum(1), False),
        (lambda y: y.sum(), False),
        (lambda y: jnp.sin(y).sum(0), False),
        (lambda y: y, False),
    ],
)
def test_who_sums_columns(fun, expected):
    jaxpr = jax.make_jaxpr(lambda x: fun(lax.neg(x)))(jax.ShapeDtypeStruct((4, 4), jnp.float32)).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    assert has_column_sums(program, jaxpr.eqns[0].outvars[0]) == expected
