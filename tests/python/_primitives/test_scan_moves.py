"""Equations of a scan that move a value: which those are, and that the same ones outside move all rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import ClosedJaxpr, Jaxpr, Var, jaxpr_as_fun, unmapped_aval

from jax_moye import _compat
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.scan_moves import chain_of, is_move, moved, moves_behind
from jax_moye._primitives.scans import Scan

LENGTH = 3
MOVES = {
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 1, 1, 4), (0, 2, 3)),
    "convert_element_type": lambda x: x.astype(jnp.bfloat16),
    "convert_element_type to integers": lambda x: x.astype(jnp.int32),
    "copy": lambda x: lax.copy_p.bind(x),
    "name": lambda x: checkpoint_name(x, "x"),
    "reduce_precision": lambda x: lax.reduce_precision(x, 8, 23),
    "reshape": lambda x: x.reshape(4, 2),
    "squeeze": lambda x: lax.squeeze(x, (1,)),
    "transpose": lambda x: x.transpose(2, 0, 1),
}
OTHERS = {
    "abs": jnp.abs,
    "broadcast_in_dim": lambda x: lax.broadcast_in_dim(x, (2, 3, 4), (0, 1, 2)),
    "reduce_precision": lambda x: lax.reduce_precision(x, 5, 10),
    "reshape": lambda x: lax.reshape(x, (8,), dimensions=(2, 1, 0)),
    "rev": lambda x: x[::-1],
    "slice": lambda x: x[:, :, :2],
    "add": lambda x: x + x,
}


def stack():
    return jnp.arange(LENGTH * 8, dtype=jnp.float32).reshape(LENGTH, 2, 1, 4) / 3


def scan_of(move):
    """The scan that moves each row."""
    closed = jax.make_jaxpr(lambda xs: lax.scan(lambda c, x: (c, move(x)), 0, xs)[1])(stack())
    (equation,) = (one for one in closed.eqns if one.primitive.name == "scan")
    return Scan(equation)


@pytest.mark.parametrize("name", MOVES)
def test_moves(name):
    scan = scan_of(MOVES[name])
    (equation,) = scan.body.eqns
    assert equation.primitive.name == name.split(" ")[0]
    assert is_move(equation)
    xs = Var(unmapped_aval(LENGTH, 0, equation.invars[0].aval))
    equations, result = moved(scan, [equation], xs, of_rows=True)
    jaxpr = Jaxpr([], [xs], [result], equations, debug_info=_compat.UNNAMED)
    (got,) = jaxpr_as_fun(ClosedJaxpr(jaxpr, []))(stack())
    assert (got.shape, got.dtype) == (result.aval.shape, result.aval.dtype)
    np.testing.assert_array_equal(got, jax.vmap(MOVES[name])(stack()))


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    equations = scan_of(OTHERS[name]).body.eqns
    assert not all(map(is_move, equations))


def test_what_asks_for_a_sharding():
    (equation,) = scan_of(MOVES["reshape"]).body.eqns
    sharding = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())
    assert not is_move(equation.replace(params={**equation.params, "sharding": sharding}))


def test_without_a_conversion_in_front():
    scan = scan_of(lambda x: x.astype(jnp.bfloat16).reshape(4, 2).T)
    _, *others = scan.body.eqns
    x = Var(scan.body.eqns[0].invars[0].aval)
    equations, result = moved(scan, others, x)
    assert [one.primitive.name for one in equations] == ["reshape", "transpose"]
    assert (result.aval.shape, result.aval.dtype) == ((2, 4), jnp.float32)


def test_chains():
    scan = scan_of(lambda x: jnp.abs(jnp.tanh(x).reshape(4, 2).T))
    body = Program(scan.body.eqns, scan.body.outvars)
    tanh, reshape, transpose, absolute = scan.body.eqns
    (operand,) = absolute.invars
    chain = chain_of(body, operand)
    assert [x for x, _ in chain] == [*transpose.outvars, *reshape.outvars, *tanh.outvars]
    assert [moves for _, moves in chain] == [[], [transpose], [reshape, transpose]]
    assert moves_behind(body, tanh.outvars[0]) == ([reshape, transpose], operand)


def test_moves_of_what_is_read_twice():
    scan = scan_of(lambda x: (x.reshape(4, 2), x.reshape(4, 2) + 1))
    body = Program(scan.body.eqns, scan.body.outvars)
    row = scan.body.invars[-1]
    assert moves_behind(body, row) == ([], row)
