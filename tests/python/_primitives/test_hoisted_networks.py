"""Products outside of scans in whole networks, under every transformation, and in random programs."""

from __future__ import annotations

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.scans_with_products import (
    BATCH,
    INNER,
    LENGTH,
    OF_SCAN,
    WAYS,
    WIDTH,
    array,
    assert_agree,
    assert_hoisted,
    assert_stays,
    before,
    check_jaxpr,
    is_product,
    products,
    rows,
    scans,
    traced,
)

import jax_moye
from jax_moye._primitives import hoisted_products
from jax_moye._primitives.equations import body_of
from jax_moye._primitives.hoisted_products import with_hoisted_products
from jax_moye._primitives.residuals import with_fewer_residuals

# ---------------------------------------------------------------------------------------------------- whole networks


def rnn(weights, h, x):
    h = jnp.tanh(x @ weights["x"] + h @ weights["h"] + weights["b"])
    return h, h @ weights["o"]


def gru(weights, h, x):
    of_x, of_h = jnp.split(x @ weights["x"] + weights["b"], 3, -1), jnp.split(h @ weights["h"], 3, -1)
    r, z = (jax.nn.sigmoid(a + b) for a, b in zip(of_x[:2], of_h[:2], strict=True))
    h = (1 - z) * jnp.tanh(of_x[2] + r * of_h[2]) + z * h
    return h, h @ weights["o"]


def lstm(weights, carry, x):
    h, c = carry
    i, f, g, o = jnp.split(x @ weights["x"] + h @ weights["h"] + weights["b"], 4, -1)
    c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    h = jax.nn.sigmoid(o) * jnp.tanh(c)
    return (h, c), h @ weights["o"]


CELLS = {"rnn": (rnn, 1, 1), "gru": (gru, 3, 1), "lstm": (lstm, 4, 2)}
WEIGHTS = ("b", "h", "o", "x")


def network(name, batch=BATCH, dtype=jnp.float32, cell=lambda cell: cell, **of_scan):
    """The function of weights and rows, and those."""
    step, gates, states = CELLS[name]
    shapes = (gates * INNER,), (INNER, gates * INNER), (INNER, 3), (WIDTH, gates * INNER)
    weights = {key: array(*shape, dtype=dtype, seed=9) for key, shape in zip(WEIGHTS, shapes, strict=True)}

    def fun(weights, xs):
        zero = jnp.zeros((batch, INNER), xs.dtype)
        begin = (zero,) * states if states > 1 else zero
        return lax.scan(cell(functools.partial(step, weights)), begin, xs, **of_scan)

    return fun, (weights, array(LENGTH, batch, WIDTH, dtype=dtype))


def loss(fun):
    return lambda *args: sum(jnp.sum(jnp.sin(x)) for x in jax.tree.leaves(fun(*args)))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("name", CELLS)
def test_networks(name, batch, dtype):
    with jax.enable_x64(dtype == "float64"):
        fun, args = network(name, batch, dtype)
        assert_hoisted(fun, *args, inside=1, outside=2)  # the state waits for the state before


@pytest.mark.parametrize("of_scan", OF_SCAN)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", CELLS)
def test_training(name, dtype, of_scan):
    """Of 3 products and 6 derivatives those two stay that the state goes through; the states' gradient is one."""
    fun, args = network(name, dtype=dtype, **OF_SCAN[of_scan])
    step = jax.value_and_grad(loss(fun), argnums=(0, 1))
    closed = jax.make_jaxpr(step)(*args)
    new = closed.replace(jaxpr=with_hoisted_products(with_fewer_residuals(closed.jaxpr)))
    check_jaxpr(new.jaxpr)
    assert products(closed.jaxpr) == (9, 0)
    assert products(new.jaxpr) == (2, 7)
    assert_agree(step, closed, new, *args)


OUTER = {
    "jit": lambda fun: lambda *args: jax.jit(fun)(*args),
    "checkpoint": lambda fun: lambda *args: jax.checkpoint(fun)(*args),
    "a scan": lambda fun: lambda w, xs: lax.scan(lambda c, x: (c, fun(w, x)), 0.0, jnp.stack([xs, 2 * xs])),
    "cond": lambda fun: lambda w, xs: lax.cond(xs[0, 0, 0] > 9, lambda w, xs: fun(w, 2 * xs), fun, w, xs),
    "vmap": lambda fun: lambda w, xs: jax.vmap(fun, (None, 0))(w, jnp.stack([xs, 2 * xs])),
    "jvp": lambda fun: lambda w, xs: jax.jvp(lambda xs: fun(w, xs), (xs,), (jnp.cos(xs),)),
    "grad": lambda fun: jax.grad(loss(fun)),
    "vmap of grad": lambda fun: lambda w, xs: jax.vmap(jax.grad(loss(fun)), (None, 0))(w, jnp.stack([xs, 2 * xs])),
    "grad of jit": lambda fun: jax.grad(loss(jax.jit(fun))),
    "grad of checkpoint": lambda fun: jax.grad(loss(jax.checkpoint(fun))),
}


def deep_products(jaxpr, in_scan=False):
    """How many products are in the innermost scans, and outside of those, by whatever primitive."""
    counts = [0, 0]
    for one in jaxpr.eqns:
        bodies = [body_of(x) for x in jax.tree.leaves(tuple(one.params.values()), is_leaf=_has_equations)]
        bodies = [] if re.match("dot_general|jax_moye_[cfr]", one.primitive.name) else bodies
        counts[0 if in_scan else 1] += bool(re.match("dot_general|jax_moye_[cfr]", one.primitive.name))
        for body in bodies:
            if hasattr(body, "eqns"):
                of_scan = one.primitive.name in ("scan", "jax_moye_scan") and "scan[" not in str(body)
                counts = [a + b for a, b in zip(counts, deep_products(body, in_scan or of_scan), strict=True)]
    return tuple(counts)


def _has_equations(x):
    return hasattr(body_of(x), "eqns")


@pytest.mark.parametrize("outer", OUTER)
def test_under_optimize(outer):
    """Wherever optimize looks."""
    fun, args = network("gru")
    fun = OUTER[outer](fun)
    closed, new = jax.make_jaxpr(fun)(*args), jax.make_jaxpr(jax_moye.optimize(fun))(*args)
    assert deep_products(new.jaxpr)[0] < deep_products(closed.jaxpr)[0]
    assert_agree(fun, closed, new, *args)


TRANSFORMED = {
    "grad": lambda fun: jax.grad(loss(fun)),
    "jvp": lambda fun: lambda w, xs: jax.jvp(lambda xs: fun(w, xs), (xs,), (jnp.cos(xs),)),
    "vmap": lambda fun: lambda w, xs: jax.vmap(fun, (None, 0))(w, jnp.stack([xs, 2 * xs])),
}


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_of_what_is_optimized(name):
    fun, args = network("lstm")
    before, after = (TRANSFORMED[name](one) for one in (fun, jax_moye.optimize(fun)))
    closed, new = (jax.make_jaxpr(one)(*args) for one in (before, after))
    assert_agree(before, closed, new, *args)


def test_a_checkpoint_in_the_body_stays():
    fun, args = network("lstm", cell=jax.checkpoint)
    assert_stays(fun, *args)
    step = jax.grad(loss(fun))
    closed, new = jax.make_jaxpr(step)(*args), jax.make_jaxpr(jax_moye.optimize(step))(*args)
    assert_agree(step, closed, new, *args)


def test_inside_of_shard_map():
    fun, args = network("lstm")
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P(), jax.P(None, "data")), (jax.P("data"), jax.P(None, "data"))
    cast = lambda xs: lax.pcast(jnp.zeros((BATCH, INNER)), "data", to="varying")  # noqa: E731

    def local(weights, xs):
        (h, _), ys = lax.scan(functools.partial(lstm, weights), (cast(xs), cast(xs)), xs)
        return h, ys

    mapped = jax.shard_map(local, mesh=mesh, in_specs=specs[0], out_specs=specs[1])
    closed, new = (jax.make_jaxpr(one)(*args) for one in (mapped, jax_moye.optimize(mapped)))
    assert deep_products(closed.jaxpr) == (3, 0)
    assert deep_products(new.jaxpr) == (1, 2)
    assert_agree(lambda *args: [jax.tree.leaves(fun(*args))[i] for i in (0, 2)], closed, new, *args)


def test_a_product_that_asks_for_a_sharding_stays():
    (scan,) = scans(jax.make_jaxpr(before)(*WAYS["before"][1]).jaxpr)
    (product,) = filter(is_product, body_of(scan.params["jaxpr"]).eqns)
    sharding = jax.NamedSharding(jax.make_mesh((1,), ("data",)), jax.P())
    assert hoisted_products._is_plain(product)
    assert not hoisted_products._is_plain(product.replace(params={**product.params, "out_sharding": sharding}))


def test_types_with_shardings_stay():
    mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Explicit,))
    with jax.set_mesh(mesh):
        fun, args = WAYS["before"]
        xs = jax.device_put(args[0], jax.NamedSharding(mesh, jax.P(None, "data")))
        h = jax.device_put(args[2], jax.NamedSharding(mesh, jax.P("data")))
        assert_stays(fun, xs, args[1], h)


# --------------------------------------------------------------------------------------------------- random programs


def random_program(seed):
    """A scan of products, sums and activations in any order, of values of which some are rows, some constants."""
    rng = np.random.default_rng(seed)
    choices = rng.integers(0, 1 << 30, 64)

    def fun(xs, zs, constants, begin):
        def step(carry, x):
            given = itertools.cycle(choices)
            h, *accumulated = carry
            values = [h, *x, x[0] + x[1]]
            made, sums = [], list(accumulated)
            for _ in range(8):
                one, other = (values[next(given) % len(values)] for _ in range(2))
                kind, constant = next(given) % 6, constants[next(given) % len(constants)]
                if kind < 2:
                    values.append(one @ constant)
                elif kind == 2:
                    values.append((constant.T @ one.T).T)
                elif kind == 3:
                    values.append(jnp.tanh(one + other))
                elif kind == 4:
                    at = next(given) % len(sums)
                    sums[at] = sums[at] + one.T @ other
                else:
                    made.append(one)
            total = functools.reduce(jnp.add, values[-3:])
            return (jnp.tanh(total), *sums), (*made, values[-1])

        return lax.scan(step, begin, (xs, zs), reverse=bool(seed % 2))

    return fun


SEEDS = range(16)


def random_case(seed):
    args = (
        rows(3, 5),
        rows(3, 5, seed=1),
        [array(5, 5), array(5, 5, seed=2)],
        (array(3, 5), jnp.zeros((5, 5)), array(5, 5)),
    )
    fun = random_program(seed)
    return (jax.grad(loss(fun), argnums=(0, 2)) if seed % 4 == 3 else fun), args


@pytest.mark.parametrize("seed", SEEDS)
def test_random_programs(seed):
    fun, args = random_case(seed)
    assert_agree(fun, *traced(fun, *args), *args)


def test_random_programs_have_products_to_hoist():
    pairs = [traced(fun, *args) for fun, args in map(random_case, SEEDS)]
    inside = [[products(one.jaxpr)[0] for one in pair] for pair in pairs]
    assert sum(old > new for old, new in inside) > len(SEEDS) // 2
    assert all(old >= new for old, new in inside)
