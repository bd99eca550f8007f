"""Rows of products of groups that a program gathers and scatters: what kernels read and store by index, what stays."""

from __future__ import annotations

import functools

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
MOVES = ("gather", "scatter", "scatter-add")
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


# name -> (function of x, w and _, whether rows are read, and stored, where they are)
FOUND = {
    "taken": (taken, (True, True)),
    "indexed": (indexed, (True, True)),
    "gathered": (lambda x, w, _: product(x[order(ids) // EACH], w), (True, False)),
    "gathered by what is given": (lambda x, w, _: product(x[jnp.asarray(ORDER // EACH)], w), (True, False)),
    "gathered, clipped": (
        lambda x, w, _: product(jnp.take(x, jnp.asarray(ORDER // EACH), axis=0, mode="clip"), w),
        (True, False),
    ),
    "repeated": (
        lambda x, w, _: product(jnp.take(x, jnp.repeat(jnp.arange(TOKENS), EACH)[order(ids)], axis=0), w),
        (True, False),
    ),
    "taken from within": (
        lambda x, w, _: product(jnp.take(x, jnp.clip(jnp.asarray(ORDER // EACH), 0, TOKENS - 1), axis=0), w),
        (True, False),
    ),
    "scattered": (lambda x, w, _: scattered(product(x[ORDER // EACH], w), order(ids)), (True, True)),
    "added": (lambda x, w, _: scattered(product(x[ORDER // EACH], w), order(ids), "add"), (True, True)),
    "unique": (
        lambda x, w, _: scattered(product(x[ORDER // EACH], w), order(ids), unique_indices=True, mode="drop"),
        (True, True),
    ),
    "the inverse by a scatter": (
        lambda x, w, _: (lambda p: product(x[p // EACH], w)[jnp.zeros(M, jnp.int32).at[p].set(jnp.arange(M))])(
            order(ids)
        ),
        (True, True),
    ),
    "rounded between": (
        lambda x, w, _: (
            lambda p: of_floats(product(x[p // EACH], w, preferred_element_type="float32"))[jnp.argsort(p)]
        )(order(ids)),
        (True, True),
    ),
    "in a jit": (jax.jit(indexed), (True, True)),
    "around a jit": (
        lambda x, w, _: (lambda p: jnp.take(experts(x[p // EACH], w, sizes), jnp.argsort(p), axis=0))(order(ids)),
        (True, True),
    ),
    "ours": (
        lambda x, w, _: jax_moye.ragged_dot(x[order(ids) // EACH], w, jnp.asarray(sizes)),
        (True, False),
    ),
}


@pytest.mark.parametrize("name", FOUND)
def test_rows_are_read_and_stored_where_they_are(name, operands):
    fun, is_permuted = FOUND[name]
    with jax_moye.options(interpret=True):
        (equation,) = equations_of(fun, *operands)
        assert equation.params["is_permuted"] == is_permuted
        program = jax.jit(jax_moye.optimize(fun))
        text = program.lower(*operands).as_text()
        found = program(*operands)
    assert text.count(ffi.PERMUTED_GROUPED_TARGET) == 1
    assert f"tensor<{M}x{K}xbf16>" not in text  # the gathered rows
    expected = exact(*operands[:2])
    np.testing.assert_array_equal(np.asarray(found, np.float64), unsorted(expected) if is_permuted[1] else expected)
    # Where no kernel permutes it is the program as it was.
    as_it_was = jax.jit(jax_moye.optimize(fun))
    np.testing.assert_array_equal(as_it_was(*operands), jax.jit(fun)(*operands))
    assert ffi.PERMUTED_GROUPED_TARGET not in as_it_was.lower(*operands).as_text()


@pytest.mark.parametrize("name", ["taken", "indexed", "added", "the inverse by a scatter"])
def test_where_no_kernel_permutes_nothing_is_moved_otherwise(name, operands):
    """XLA's program has the gathers, scatters and sorts that it had: of float32, and on a machine without a kernel."""
    fun, _ = FOUND[name]

    def counts(fun, arrays):
        text = jax.jit(fun).lower(*arrays).compile().as_text()
        return [text.count(f" {what}(") for what in ("gather", "scatter", "sort", "dynamic-slice")]

    assert equations_of(fun, *operands)
    assert counts(jax_moye.optimize(fun), operands) == counts(fun, operands)
    floats = [x.astype(jnp.float32) for x in operands]
    with jax_moye.options(interpret=True):
        found = jax.jit(jax_moye.optimize(fun))
        assert ffi.PERMUTED_GROUPED_TARGET not in found.lower(*floats).as_text()
        np.testing.assert_array_equal(np.asarray(found(*floats), np.float64), unsorted(exact(*operands[:2])))


def test_indices_that_are_outside_read_the_nearest_row(operands):
    x, w, _ = operands
    rows = np.array([0, -1, 3, 99, -99, 5, *[2] * (M - 6)], np.int32)

    def fun(x, w, rows):
        return product(jnp.take(x, rows, axis=0, mode="clip"), w)

    def wrapped(x, w, rows):
        return product(x.at[rows].get(mode="clip"), w)

    for one, read in (
        (fun, np.clip(rows, 0, TOKENS - 1)),
        (wrapped, np.clip(np.where(rows < 0, rows + TOKENS, rows), 0, 9)),
    ):
        with jax_moye.options(interpret=True):
            assert len(equations_of(one, x, w, rows)) == 1
            found = jax.jit(jax_moye.optimize(one))(x, w, rows)
        np.testing.assert_array_equal(np.asarray(found, np.float64), exact(x, w, read))
        np.testing.assert_array_equal(found, jax.jit(one)(x, w, rows))


LEFT = {
    "a fill of what may be outside": lambda x, w, p: product(jnp.take(x, p // EACH, axis=0), w),
    "a fill of too few": lambda x, w, p: product(jnp.take(x[: TOKENS - 1], order(ids) // EACH, axis=0), w),
    "a fill that was asked for": lambda x, w, p: product(x.at[p // EACH].get(mode="fill", fill_value=0), w),
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
    "others read the rows": lambda x, w, p: (lambda rows: (product(rows, w), rows.sum()))(x[p // EACH]),
    "a result": lambda x, w, p: (lambda rows: (product(rows, w), rows))(x[p // EACH]),
    "a gradient to the matrices": lambda x, w, p: jax.grad(
        lambda w: (product(x[p // EACH], w).astype(jnp.float32) ** 2).sum()
    )(w),
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
    "XLA's": lambda x, w, p: jax_moye.ragged_dot(x[p // EACH], w, jnp.asarray(sizes), implementation="xla"),
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
    """A program stays as it was: calls in front of a product and behind it, too."""
    x, w, _ = operands
    fun = LEFT["a fill of what may be outside"]
    calls = [equation.params["name"] for equation in equations_of(fun, x, w, ORDER, primitives=("jit", "pjit"))]
    assert "_take" in calls


# -------------------------------------------------------------------------------------------------------- gated layers


def gated(x, g, u, activation=jax.nn.silu):
    rows = x[order(ids) // EACH]
    return activation(product(rows, g)) * product(rows, u)


def near(found, expected, relative=2.0**-7):
    expected = np.asarray(expected, np.float64)
    np.testing.assert_allclose(np.asarray(found, np.float64), expected, 0, relative * np.abs(expected).max())


def test_a_gated_layer_reads_its_rows(operands):
    x, g, u = operands
    with jax_moye.options(interpret=True):
        (equation,) = equations_of(gated, *operands)
        assert equation.params["epilogue"].is_of_pair
        assert equation.params["is_permuted"] == (True, False)
        program = jax.jit(jax_moye.optimize(gated))
        text = program.lower(*operands).as_text()
        assert text.count(ffi.PERMUTED_GROUPED_TARGET) == 1
        assert f"tensor<{M}x{K}xbf16>" not in text
        found = program(*operands)
    z = exact(x, g)
    near(found, z / (1 + np.exp(-z)) * exact(x, u))
    np.testing.assert_array_equal(jax.jit(jax_moye.optimize(gated))(*operands), jax.jit(gated)(*operands))


def test_groups_of_many_rows_are_two_products_that_read_their_rows(operands):
    _, g, u = operands
    many = jnp.ones((257 * G // 3, K), jnp.bfloat16)

    def fun(x, g, u):
        p = jnp.arange(257 * G) // 3
        rows, of = x[p], jnp.array([257 * G, 0, 0], jnp.int32)
        return jax.nn.relu(lax.ragged_dot(rows, g, of)) * lax.ragged_dot(rows, u, of)

    for implementation, count in ((None, 2), ("moye", 1)):
        with jax_moye.options(interpret=True, implementation=implementation):
            text = jax.jit(jax_moye.optimize(fun)).lower(many, g, u).as_text()
        assert text.count(ffi.PERMUTED_GROUPED_TARGET) == count


# --------------------------------------------------------------------------------------------------------- derivatives


def layers(x, up, down):
    """Two products, as in a mixture of experts."""
    p = order(ids)
    hidden = jax.nn.relu(product(jnp.take(x, p // EACH, axis=0), up))
    return jnp.take(product(hidden, down), jnp.argsort(p), axis=0)


def loss(x, up, down):
    return (layers(x, up, down).astype(jnp.float32) ** 2).sum()


@pytest.mark.parametrize(
    ("wrt", "expected"), [((0,), [(True, False), (False, True), (True, False)]), ((0, 1, 2), [(False, True)])]
)
def test_the_derivative(wrt, expected, operands):
    """The gradient to the matrices reads the gathered rows from memory, and so do the other products then.

    Without it the cotangent's rows are read where they are, which the program scatters: the derivative of a gather.
    """
    x, up, _ = operands
    arrays = x, up, jnp.swapaxes(up, 1, 2)
    fun = jax.value_and_grad(loss, wrt)
    with jax_moye.options(interpret=True):
        assert [equation.params["is_permuted"] for equation in equations_of(fun, *arrays)] == expected
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
            assert program.lower(x).as_text().count(ffi.PERMUTED_GROUPED_TARGET) == 1
            np.testing.assert_array_equal(np.asarray(program(x), np.float64), unsorted(exact(x, w)))


def test_explain_says_it(operands, monkeypatch):
    """Rows that optimize finds are moved by XLA on GPUs: the kernel that permutes takes longer there."""
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    for of in (operands, [x.astype(jnp.float32) for x in operands]):
        (gemm,) = jax_moye.explain(jax_moye.optimize(taken), *of, device="h200").gemms
        assert not (gemm.config and gemm.config.permuted)
        assert "its rows moved by XLA: " in str(gemm)
    (gemm,) = jax_moye.explain(jax_moye.optimize(gated), *operands, device="h200").gemms
    assert gemm.config.takes_pair
    assert not gemm.config.permuted
