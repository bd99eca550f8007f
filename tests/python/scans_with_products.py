"""What the tests of products outside of scans have in common: arrays, counts of products, and who is as exact."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import jaxpr_as_fun

from jax_moye._primitives.equations import body_of
from jax_moye._primitives.hoisted_products import with_hoisted_products

try:
    from jax.extend.core import check_jaxpr
except ImportError:  # before jax 0.10
    from jax.core import check_jaxpr

LENGTH, BATCH, WIDTH, INNER = 6, 2, 4, 8
HIGHEST = lax.Precision.HIGHEST
OF_SCAN = {"forward": {}, "reverse": {"reverse": True}, "unrolled": {"unroll": 2}, "all unrolled": {"unroll": True}}


def array(*shape, dtype=jnp.float32, seed=0):
    rng = np.random.default_rng([seed, *shape])
    return jnp.asarray((rng.normal(size=shape) / 2).astype(jnp.dtype(dtype)))


def rows(*shape, **of_array):
    return array(LENGTH, *shape, **of_array)


def is_product(equation):
    return equation.primitive.name == "dot_general"


def scans(jaxpr):
    return [one for one in jaxpr.eqns if one.primitive.name == "scan"]


def products(jaxpr):
    """How many products a program has in its scans' bodies, and outside of them."""
    inside = sum(is_product(one) for scan in scans(jaxpr) for one in body_of(scan.params["jaxpr"]).eqns)
    return inside, sum(map(is_product, jaxpr.eqns))


def traced(fun, *args):
    """The program as JAX makes it, and with products outside."""
    closed = jax.make_jaxpr(fun)(*args)
    new = closed.replace(jaxpr=with_hoisted_products(closed.jaxpr))
    check_jaxpr(new.jaxpr)
    return closed, new


def assert_stays(fun, *args):
    closed = jax.make_jaxpr(fun)(*args)
    assert any(map(has_product, scans(closed.jaxpr)))
    assert with_hoisted_products(closed.jaxpr) is closed.jaxpr


def has_product(scan):
    return "dot_general" in str(scan.params["jaxpr"])


def results(closed, *args):
    return [np.asarray(x) for x in jax.jit(jaxpr_as_fun(closed))(*jax.tree.leaves(args))]


def in_float64(fun, *args):
    """The results of a function in float64, of the same operands."""
    with jax.enable_x64(True):
        wide = jax.tree.map(lambda x: x.astype(jnp.float64) if jnp.issubdtype(x.dtype, jnp.floating) else x, args)
        return [np.asarray(x) for x in jax.tree.leaves(jax.jit(fun)(*wide))]


def assert_agree(fun, closed, new, *args):
    """The new program is as near to float64 as the old one, but for a few roundings of the largest element."""
    before, after, exact = results(closed, *args), results(new, *args), in_float64(fun, *args)
    for old, got, expected in zip(before, after, exact, strict=True):
        assert (got.dtype, got.shape) == (old.dtype, old.shape)
        if not jnp.issubdtype(old.dtype, jnp.floating):
            np.testing.assert_array_equal(got, old)
            continue
        of_old, of_new = (np.abs(x.astype(np.float64) - expected).max(initial=0) for x in (old, got))
        scale = np.abs(expected).max(initial=0)
        assert of_new <= 2 * of_old + 8 * float(jnp.finfo(old.dtype).eps) * scale


def assert_hoisted(fun, *args, inside, outside):
    """Returns the new program."""
    closed, new = traced(fun, *args)
    assert products(new.jaxpr) == (inside, outside)
    assert_agree(fun, closed, new, *args)
    return new


def before(xs, w, h, **of_scan):
    """An RNN: the product by w is in front."""
    return lax.scan(lambda h, x: (jnp.tanh(x @ w + h), None), h, xs, **of_scan)[0]


def after(xs, w, h, **of_scan):
    """Each state's product by w is behind."""
    return lax.scan(lambda h, x: (jnp.tanh(x + h), jnp.tanh(x + h) @ w), h, xs, **of_scan)


def sums(xs, zs, begin, **of_scan):
    """The sum of products of rows, and of what is made of rows."""
    return lax.scan(lambda c, x: (c + x[0].T @ jnp.tanh(x[1]), None), begin, (xs, zs), **of_scan)[0]


WAYS = {
    "before": (before, (rows(BATCH, WIDTH), array(WIDTH, INNER), array(BATCH, INNER))),
    "after": (after, (rows(BATCH, WIDTH), array(WIDTH, INNER), array(BATCH, WIDTH))),
    "sums": (sums, (rows(BATCH, WIDTH), rows(BATCH, INNER), array(WIDTH, INNER))),
}
