"""Rows of products of groups that a program moves behind them: what kernels store by indices, what stays."""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._primitives.grouped_rewritten import grouped_rewritten_p

TOKENS, EACH, K, N, G = 10, 2, 16, 24, 3
M = TOKENS * EACH
ids = np.array([2, 0, 2, 2, 1, 0, 2, 1, 2, 2, 0, 1, 1, 0, 2, 2, 0, 1, 2, 0], np.int32)
sizes = np.bincount(ids, minlength=G).astype(np.int32) - np.array([0, 0, 2], np.int32)  # two rows are of no group
ORDER = np.argsort(ids, kind="stable")


@pytest.fixture(scope="module")
def operands():
    """Rows of tokens, matrices, and the same in the other order, integers whose sums every type holds."""
    rng = np.random.default_rng(0)
    shapes = (TOKENS, K), (G, K, N), (G, K, N)
    return [jnp.asarray(rng.integers(-2, 3, shape), jnp.bfloat16) for shape in shapes]


def product(rows, w, **options):
    return lax.ragged_dot(rows, w, jnp.asarray(sizes), **options)


def exact(x, w, rows=ORDER // EACH):
    """In float64, in the order of experts; then in that of tokens."""
    x, w = np.asarray(x, np.float64)[rows], np.asarray(w, np.float64)
    group = np.repeat(np.arange(G + 1), [*sizes, M - sizes.sum()])
    return np.einsum("mk,mkn->mn", x, np.concatenate([w, np.zeros((1, K, N))])[group])


def unsorted(y):
    out = np.empty_like(y)
    out[ORDER] = y
    return out


def equations_of(fun, *operands, primitives=(grouped_rewritten_p.name,)):
    """Those of primitives in the rewritten program, also in calls; not the equations as they were."""

    def inside(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive.name in primitives:
                yield equation
            if equation.primitive is grouped_rewritten_p:
                continue
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from inside(inner)

    return list(inside(jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr))


def order(ids):
    return jnp.argsort(jnp.asarray(ids))


def taken(x, w, _):
    """As flax and maxtext have it."""
    p = order(ids)
    return jnp.take(product(jnp.take(x, p // EACH, axis=0), w), jnp.argsort(p), axis=0)


def indexed(x, w, _):
    p = order(ids)
    return product(x[p // EACH], w)[jnp.argsort(p)]


experts = jax.jit(lax.ragged_dot)


def scattered(y, p, method="set", **options):
    return getattr(jnp.zeros_like(y).at[p], method)(y, **options)


def of_floats(y):
    return y.astype(jnp.bfloat16)


# name -> function of x, w and _
FOUND = {
    "taken": taken,
    "indexed": indexed,
    "scattered": lambda x, w, _: scattered(product(x[ORDER // EACH], w), order(ids)),
    "added": lambda x, w, _: scattered(product(x[ORDER // EACH], w), order(ids), "add"),
    "unique": lambda x, w, _: scattered(product(x[ORDER // EACH], w), order(ids), unique_indices=True, mode="drop"),
    "the inverse by a scatter": lambda x, w, _: (
        lambda p: product(x[p // EACH], w)[jnp.zeros(M, jnp.int32).at[p].set(jnp.arange(M))]
    )(order(ids)),
    "rounded between": lambda x, w, _: (
        lambda p: of_floats(product(x[p // EACH], w, preferred_element_type="float32"))[jnp.argsort(p)]
    )(order(ids)),
    "in a jit": jax.jit(indexed),
    "around a jit": lambda x, w, _: (lambda p: jnp.take(experts(x[p // EACH], w, sizes), jnp.argsort(p), axis=0))(
        order(ids)
    ),
    "ours": lambda x, w, _: scattered(jax_moye.ragged_dot(x[ORDER // EACH], w, jnp.asarray(sizes)), order(ids)),
}


@pytest.mark.parametrize("name", FOUND)
def test_rows_are_stored_where_they_belong(name, operands):
    fun = FOUND[name]
    with jax_moye.options(interpret=True):
        (equation,) = equations_of(fun, *operands)
        assert equation.params["scatters"]
        program = jax.jit(jax_moye.optimize(fun))
        text = program.lower(*operands).as_text()
        found = program(*operands)
    assert text.count(ffi.SCATTERED_GROUPED_TARGET) == 1
    assert not re.search(rf"(stablehlo\.gather|^ *}}\) :).*-> tensor<{M}x{N}x", text, re.MULTILINE)  # moved results
    assert re.search(rf"stablehlo\.gather.*-> tensor<{M}x{K}x", text)  # the rows in front of it stay XLA's
    np.testing.assert_array_equal(np.asarray(found, np.float64), unsorted(exact(*operands[:2])))
    # Where no kernel computes it, it is the program as it was.
    as_it_was = jax.jit(jax_moye.optimize(fun))
    np.testing.assert_array_equal(as_it_was(*operands), jax.jit(fun)(*operands))
    assert ffi.SCATTERED_GROUPED_TARGET not in as_it_was.lower(*operands).as_text()


@pytest.mark.parametrize("name", ["taken", "indexed", "added", "the inverse by a scatter"])
def test_where_no_kernel_stores_nothing_is_moved_otherwise(name, operands):
    """XLA's program has the gathers, scatters and sorts that it had: of exact float32, and without a kernel."""
    fun = FOUND[name]

    def counts(fun, arrays):
        text = jax.jit(fun).lower(*arrays).compile().as_text()
        return [text.count(f" {what}(") for what in ("gather", "scatter", "sort", "dynamic-slice")]

    assert equations_of(fun, *operands)
    assert counts(jax_moye.optimize(fun), operands) == counts(fun, operands)
    floats = [x.astype(jnp.float32) for x in operands]
    with jax_moye.options(interpret=True), jax.default_matmul_precision("highest"):
        found = jax.jit(jax_moye.optimize(fun))
        assert ffi.SCATTERED_GROUPED_TARGET not in found.lower(*floats).as_text()
        np.testing.assert_array_equal(np.asarray(found(*floats), np.float64), unsorted(exact(*operands[:2])))


LEFT = {
    "gathered in front": lambda x, w, p: product(x[order(ids) // EACH], w),
    "scattered in front": lambda x, w, p: product(scattered(x.repeat(EACH, 0), order(ids)), w),
    "scattered by what is given": lambda x, w, p: scattered(product(x.repeat(EACH, 0), w), p),
    "taken by the inverse of what is given": lambda x, w, p: product(x.repeat(EACH, 0), w)[jnp.argsort(p)],
    "taken by what has no inverse": lambda x, w, p: product(x.repeat(EACH, 0), w)[order(ids)],
    "taken in part": lambda x, w, p: product(x.repeat(EACH, 0), w)[jnp.argsort(order(ids))[:5]],
    "rows added up": lambda x, w, p: (
        jnp.zeros((TOKENS, N), x.dtype).at[order(ids) // EACH].add(product(x.repeat(EACH, 0), w))
    ),
    "added to others": lambda x, w, p: jnp.ones((M, N), x.dtype).at[order(ids)].add(product(x.repeat(EACH, 0), w)),
    "the largest of both": lambda x, w, p: jnp.zeros((M, N), x.dtype).at[order(ids)].max(product(x.repeat(EACH, 0), w)),
    "stored among others": lambda x, w, p: (
        jnp.zeros((M + 1, N), x.dtype).at[order(ids)].set(product(x.repeat(EACH, 0), w))
    ),
    "computed in place": lambda x, w, p: product(x.repeat(EACH, 0), w).at[order(ids)].apply(jnp.sin),
    "columns": lambda x, w, p: product(x.repeat(EACH, 0)[:, jnp.argsort(jnp.arange(K))], w),
    "columns of results": lambda x, w, p: product(x.repeat(EACH, 0), w)[:, jnp.argsort(jnp.argsort(w[0, 0]))],
    "others read the result": lambda x, w, p: (lambda y: (scattered(y, order(ids)), y))(product(x.repeat(EACH, 0), w)),
    "made wider": lambda x, w, p: product(x.repeat(EACH, 0), w).astype(jnp.float32)[
        jnp.argsort(jnp.argsort(order(ids)))
    ],
    "something between": lambda x, w, p: scattered(jax.nn.silu(product(x.repeat(EACH, 0), w)), order(ids)),
    "groups of k": lambda x, w, p: lax.ragged_dot_general(
        x[p // EACH],
        x.repeat(EACH, 0),
        jnp.asarray(sizes),
        lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], []),
    ),
    "XLA's": lambda x, w, p: scattered(
        jax_moye.ragged_dot(x[p // EACH], w, jnp.asarray(sizes), implementation="xla"), order(ids)
    ),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_is_left(name, operands):
    x, w, _ = operands
    fun = LEFT[name]
    p = jnp.asarray(ORDER, jnp.int32)
    with jax_moye.options(interpret=True):
        assert not equations_of(fun, x, w, p)
        found = jax.jit(jax_moye.optimize(fun))(x, w, p)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(fun)(x, w, p)), strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def test_nothing_is_opened_where_nothing_is_found(operands):
    """A program stays as it was: calls in front of a product, too."""
    x, w, _ = operands

    def fun(x, w, p):
        return product(jnp.take(x, p // EACH, axis=0), w)

    calls = [equation.params["name"] for equation in equations_of(fun, x, w, ORDER, primitives=("jit", "pjit"))]
    assert "_take" in calls


# --------------------------------------------------------------------------------------------------------- derivatives


def near(found, expected, relative=2.0**-7):
    expected = np.asarray(expected, np.float64)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, 0, relative * np.abs(expected).max())


def layers(x, up, down):
    """Two products, as in a mixture of experts."""
    p = order(ids)
    hidden = jax.nn.relu(product(jnp.take(x, p // EACH, axis=0), up))
    return jnp.take(product(hidden, down), jnp.argsort(p), axis=0)


def loss(x, up, down):
    return (layers(x, up, down).astype(jnp.float32) ** 2).sum()


@pytest.mark.parametrize("wrt", [(0,), (0, 1, 2)])
def test_the_derivative(wrt, operands):
    """Of the product whose results are put in order nothing else is moved: its cotangents are gathered by XLA."""
    x, up, _ = operands
    arrays = x, up, jnp.swapaxes(up, 1, 2)
    fun = jax.value_and_grad(loss, wrt)
    with jax_moye.options(interpret=True):
        (equation,) = equations_of(fun, *arrays)
        assert equation.params["scatters"]
        value, gradients = jax.jit(jax_moye.optimize(fun))(*arrays)
    with jax.enable_x64(True):
        as_it_is = jax.value_and_grad(lambda *a: (layers(*a) ** 2).sum(), wrt)
        wanted, exact_gradients = as_it_is(*(np.asarray(z, np.float64) for z in arrays))
    near(value, wanted, 2.0**-6)
    for one, other in zip(gradients, exact_gradients, strict=True):
        near(one, other, 2.0**-5)


def test_the_rewritten_program_under_transformations(operands):
    """It is the program as it was."""
    x, w, _ = operands
    with jax_moye.options(interpret=True):
        fun = jax_moye.optimize(functools.partial(indexed, _=None))
        found = jax.grad(lambda x: (fun(x, w).astype(jnp.float32) ** 2).sum())(x)
        mapped = jax.vmap(fun, (0, None))(jnp.stack([x, -x]), w)
    wanted = jax.grad(lambda x: (indexed(x, w, None).astype(jnp.float32) ** 2).sum())(x)
    near(found, np.asarray(wanted, np.float64), 2.0**-5)
    expected = unsorted(exact(x, w))
    np.testing.assert_array_equal(np.asarray(mapped, np.float64), np.stack([expected, -expected]))


def test_in_a_scan_and_a_shard_map(operands):
    x, w, _ = operands
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.sharding.PartitionSpec()

    def step(carry, x):
        return carry, indexed(x, w, None)

    programs = {
        "scan": lambda x: lax.scan(step, 0, jnp.stack([x, x]))[1][1],
        "shard_map": jax.shard_map(lambda x: indexed(x, w, None), mesh=mesh, in_specs=(spec,), out_specs=spec),
    }
    for fun in programs.values():
        with jax_moye.options(interpret=True):
            program = jax.jit(jax_moye.optimize(fun))
            assert program.lower(x).as_text().count(ffi.SCATTERED_GROUPED_TARGET) == 1
            np.testing.assert_array_equal(np.asarray(program(x), np.float64), unsorted(exact(x, w)))


def test_explain_says_it(operands, monkeypatch):
    """On a GPU it is a kernel's, without being asked for; exact float32 is XLA's."""
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    (gemm,) = jax_moye.explain(jax_moye.optimize(taken), *operands, device="h200").gemms
    assert gemm.config.grouped
    assert "3 groups, permuted" in str(gemm)
    with jax.default_matmul_precision("highest"):
        floats = [x.astype(jnp.float32) for x in operands]
        (gemm,) = jax_moye.explain(jax_moye.optimize(taken), *floats, device="h200").gemms
    assert gemm.config is None
    assert "its rows moved by XLA: " in str(gemm)
