"""Equations of scan: what their operands are, and that one with others computes what it did."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from jax_moye._primitives.scans import Scan, bytes_of, is_known


def fun(constant, start, rows, others):
    return lax.scan(lambda c, x: (c * constant + x[0], (c, x[0] * x[1])), start, (rows, others))


def arguments():
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((4,), (4,), (3, 4), (3, 4))]


def traced():
    closed = jax.make_jaxpr(fun)(*arguments())
    (equation,) = (one for one in closed.eqns if one.primitive.name == "scan")
    return closed, equation


def test_what_operands_are():
    closed, equation = traced()
    scan, (constant, start, rows, others) = Scan(equation), closed.jaxpr.invars
    assert is_known(equation)
    assert (scan.consts, scan.carry, scan.first, scan.length) == (1, 1, 2, 3)
    inside = [x for _, x, _ in scan.operands()]
    assert inside == scan.body.invars
    assert (scan.constant(constant), scan.constant(start), scan.constant(rows)) == (inside[0], None, None)
    assert (scan.stacked(rows), scan.stacked(others), scan.stacked(constant)) == (inside[2], inside[3], None)
    assert [x.aval.shape for x in scan.stacked_results] == [(3, 4), (3, 4)]
    assert [bytes_of(x) for x in (constant, rows)] == [16, 48]


def test_with_another_order_of_operands_and_fewer_results():
    closed, equation = traced()
    scan = Scan(equation)
    constant, start, rows, others = scan.operands()
    new = scan.replaced([constant, start, others, rows], 1, outvars=scan.body.outvars[:2])
    new = new.replace(outvars=equation.outvars[:2])
    jaxpr = closed.jaxpr.replace(eqns=[new], outvars=closed.jaxpr.outvars[:2])
    args = arguments()
    results = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))(*args)
    c, seen = np.asarray(args[1], np.float64), []
    for row in np.asarray(args[2], np.float64):
        seen.append(c)
        c = c * np.asarray(args[0], np.float64) + row
    for result, expected in zip(results, (c, np.stack(seen)), strict=True):
        np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)


def test_without_a_carry():
    closed, equation = traced()
    scan = Scan(equation)
    constant, _, rows, others = scan.operands()
    at = scan.body.outvars[2]
    equations = [one for one in scan.body.eqns if at in one.outvars]
    new = scan.replaced([constant, rows, others], 1, 0, eqns=equations, outvars=[at])
    new = new.replace(outvars=equation.outvars[2:])
    scan = Scan(new)
    assert (scan.consts, scan.carry, scan.first) == (1, 0, 1)
    jaxpr = closed.jaxpr.replace(eqns=[new], outvars=closed.jaxpr.outvars[2:])
    args = arguments()
    (result,) = jaxpr_as_fun(ClosedJaxpr(jaxpr, closed.consts))(*args)
    np.testing.assert_array_equal(result, args[2] * args[3])
