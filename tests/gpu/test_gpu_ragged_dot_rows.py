"""lhs_rows and permutation of `jax_moye.ragged_dot` on a GPU: exact, in every run, whatever the indices are."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import ml_dtypes  # noqa: F401  (NumPy's names of small floats)
import numpy as np
import pytest
from this_gpu import why_not_here

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

CONFIGS = [pytest.param(config, id=config.name) for config in grouped_configs()]
READ, M, N, K = 211, 1333, 264, 400  # rows of lhs, of the product
# Groups of none, of one, of a tile and one more, skewed ones; such as do not fill the rows, and as overfill them.
ALL_SIZES = {
    "even": (191, 191, 191, 190, 190, 190, 190),
    "with empty ones": (0, 400, 0, 0, 1, 932, 0),
    "around tiles": (64, 65, 1, 63, 128, 129, 127),
    "skewed": (3, 1, 2, 1320, 5, 1, 1),
    "rows left over": (10, 0, 70, 0, 30, 1, 2),
    "too many": (100, 200, 300, 0, 5, 2**31 - 1, 7),
    "below zero": (40, -3, 50, -(2**31), 100, 1, 2),
}
WAYS = {"gather": (True, False), "scatter": (False, True), "both": (True, True)}
every_way = pytest.mark.parametrize("way", WAYS)
# Of operands, and, of 8-bit floats, how they are summed: lhs, rhs, results of 16 bits or none.
DTYPES = {
    "bf16": ("bfloat16", "bfloat16", "bfloat16"),
    "f16": ("float16", "float16", "float16"),
    "tf32": ("float32", "float32", None),
    "e4m3": ("float8_e4m3fn", "float8_e4m3fn", "bfloat16"),
    "e5m2": ("float8_e5m2", "float8_e5m2", "bfloat16"),
    "e4m3xe5m2": ("float8_e4m3fn", "float8_e5m2", "bfloat16"),
    "e5m2xe4m3": ("float8_e5m2", "float8_e4m3fn", "bfloat16"),
}


@pytest.fixture(autouse=True)
def _has_kernels(gpu):
    if all(why_not_here(config) for config in grouped_configs()):
        pytest.skip("no kernel for products of groups runs here")


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def case_of(rng, way, dtype, rhs_dtype=None, most=2):
    """lhs, rhs, and the indices of rows, of which some are outside; None where there are none."""
    gathers, scatters = WAYS[way]
    lhs = rng.integers(-most, most + 1, (READ if gathers else M, K)).astype(dtype)
    rhs = rng.integers(-most, most + 1, (7, K, N)).astype(rhs_dtype or dtype)
    rows = rng.integers(-5, READ + 5, M).astype(np.int32) if gathers else None
    return lhs, rhs, rows, rng.permutation(M).astype(np.int32) if scatters else None


def product(lhs, rhs, sizes, rows, permutation):
    """In float64, group by group."""
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    read = lhs if rows is None else lhs[np.clip(rows, 0, len(lhs) - 1)]
    out = np.zeros((len(read), rhs.shape[2]))
    ends = np.minimum(np.cumsum(np.maximum(np.asarray(sizes, object), 0)), len(read)).astype(int)
    for begin, end, matrix in zip([0, *ends[:-1]], ends, rhs, strict=True):
        out[begin:end] = read[begin:end] @ matrix
    return out if permutation is None else out[np.argsort(permutation)]


def runs_here(config):
    if reason := why_not_here(config):
        pytest.skip(reason)


@pytest.mark.parametrize("kind", ALL_SIZES)
@pytest.mark.parametrize("config", CONFIGS)
def test_exact(rng, config, kind):
    """Of both orders of rhs and both widths of results, ten runs each: the same, and right."""
    runs_here(config)
    of_lhs, of_rhs, narrow = DTYPES[config.dtype]
    lhs, rhs, rows, permutation = case_of(rng, "both", of_lhs, of_rhs)
    sizes = jnp.asarray(ALL_SIZES[kind], jnp.int32)
    wanted = product(lhs, rhs, ALL_SIZES[kind], rows, permutation)
    fast = jax.lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM if config.accumulator == "f32_fast" else None
    for transposed in (False, True):
        w = jnp.asarray(rhs.swapaxes(1, 2) if transposed else rhs)
        for out in filter(None, ("float32", narrow)):

            def fun(x, w, sizes, rows, permutation, transposed=transposed, out=out):
                w = w.swapaxes(1, 2) if transposed else w
                options = {"config": config.name, "preferred_element_type": out, "precision": fast}
                return jax_moye.ragged_dot(x, w, sizes, lhs_rows=rows, permutation=permutation, **options)

            run = jax.jit(fun).lower(lhs, w, sizes, rows, permutation).compile()
            assert run.as_text().count(f'custom_call_target="{ffi.SCATTERED_GROUPED_TARGET}"') == 1
            rounded = np.asarray(jnp.asarray(wanted, out), np.float64)
            for _ in range(10):
                found = np.asarray(run(lhs, w, sizes, rows, permutation), np.float64)
                np.testing.assert_array_equal(found, rounded, err_msg=f"{transposed=} {out=}")


def test_scales(rng):
    """Of rows, which are gathered with them, and of each group's columns, by the kernel."""
    lhs, rhs, rows, permutation = case_of(rng, "both", "float8_e4m3fn")
    of_rows, of_columns = (2.0 ** rng.integers(-1, 2, shape) for shape in (READ, (7, N)))
    sizes = ALL_SIZES["with empty ones"]

    def fun(x, w):
        return jax_moye.ragged_dot(
            x, w.swapaxes(1, 2), jnp.asarray(sizes), lhs_rows=rows, permutation=permutation,
            lhs_scale=jnp.asarray(of_rows, jnp.float32), rhs_scale=jnp.asarray(of_columns, jnp.float32),
            preferred_element_type=jnp.bfloat16, implementation="moye",
        )  # fmt: skip

    run = jax.jit(fun).lower(lhs, rhs.swapaxes(1, 2)).compile()
    assert f'custom_call_target="{ffi.SCATTERED_GROUPED_TARGET}"' in run.as_text()
    scales = np.repeat(of_columns, sizes, 0) * of_rows[np.clip(rows, 0, READ - 1)][:, None]
    wanted = (product(lhs, rhs, sizes, rows, None) * scales)[np.argsort(permutation)]
    found = np.asarray(run(lhs, rhs.swapaxes(1, 2)), np.float64)
    np.testing.assert_array_equal(found, np.asarray(jnp.asarray(wanted, jnp.bfloat16), np.float64))


@every_way
def test_many_shapes(rng, way):
    """Of one to many k-tiles, few rows and many."""
    for _ in range(60):
        m, n, k = int(rng.integers(1, 3000)), 8 * int(rng.integers(1, 100)), 8 * int(rng.integers(1, 200))
        groups, read = int(rng.integers(1, 40)), int(rng.integers(1, 2000))
        sizes = rng.multinomial(m, rng.dirichlet(np.full(groups, 0.5)))
        gathers, scatters = WAYS[way]
        lhs = rng.integers(-2, 3, (read if gathers else m, k)).astype("bfloat16")
        rhs = rng.integers(-2, 3, (groups, k, n)).astype("bfloat16")
        rows = rng.integers(0, read, m) if gathers else None
        permutation = rng.permutation(m) if scatters else None
        fun = functools.partial(jax_moye.ragged_dot, implementation="moye", preferred_element_type=jnp.float32)
        found = fun(lhs, rhs, jnp.asarray(sizes), lhs_rows=rows, permutation=permutation)
        wanted = product(lhs, rhs, sizes, rows, permutation)
        np.testing.assert_array_equal(np.asarray(found, np.float64), wanted, err_msg=f"{m=} {n=} {k=} {groups=}")


@every_way
def test_bias_activation_gate_and_derivatives(rng, way):
    """Next to a gather, XLA's products and a scatter."""
    lhs, rhs, rows, permutation = case_of(rng, way, "bfloat16", most=1)
    second = rng.integers(-1, 2, rhs.shape).astype("bfloat16")
    bias = rng.integers(-2, 3, (7, N)).astype("bfloat16")
    sizes = jnp.asarray(ALL_SIZES["with empty ones"])
    inverse = slice(None) if permutation is None else np.argsort(permutation)
    cotangent = rng.integers(-1, 2, (M, N)).astype("bfloat16")

    def read(x):
        """Row 0 is read many times: the sum of its gradients would be rounded as often, if it were not float32's."""
        return x if rows is None else x.astype(jnp.float32)[np.clip(rows, 0, READ - 1)].astype(x.dtype)

    def linear(x, w, v, b):
        return jax_moye.ragged_dot(
            x, w, sizes, bias=b, activation="relu", lhs_rows=rows, permutation=permutation, implementation="moye"
        )

    def plain_linear(x, w, v, b):
        return jax_moye.ragged_dot(read(x), w, sizes, bias=b, activation="relu", implementation="xla")[inverse]

    def gated(x, w, v, b):
        return jax_moye.ragged_gated_linear_unit(
            x, w, v, sizes, x_rows=rows, permutation=permutation, implementation="moye"
        )

    def plain_gated(x, w, v, b):
        return jax_moye.ragged_gated_linear_unit(read(x), w, v, sizes, implementation="xla")[inverse]

    for fun, plain in ((linear, plain_linear), (gated, plain_gated)):

        def loss(*args, of):
            y = of(*args)
            return (y.astype(jnp.float32) * cotangent).sum(), y

        run = lambda of: jax.jit(jax.grad(functools.partial(loss, of=of), (0, 1, 2, 3), has_aux=True))  # noqa: E731
        found, wanted = (jax.tree.leaves(run(of)(lhs, rhs, second, bias)) for of in (fun, plain))
        target = ffi.GROUPED_TARGET if permutation is None else ffi.SCATTERED_GROUPED_TARGET
        assert f'"{target}"' in run(fun).lower(lhs, rhs, second, bias).compile().as_text()
        for one, other in zip(found, wanted, strict=True):
            one, other = (np.asarray(x, np.float64) for x in (one, other))
            np.testing.assert_allclose(one, other, 0, 2**-6 * max(1.0, abs(other).max()))


def test_promises_about_bits(rng):
    """A row's bits are the same wherever it is stored; gradients are the same in every run."""
    lhs = jnp.asarray(rng.standard_normal((READ, K)), jnp.bfloat16)
    rhs = jnp.asarray(rng.standard_normal((7, K, N)), jnp.bfloat16)
    rows, sizes = rng.integers(0, READ, M), jnp.asarray(ALL_SIZES["even"])
    fun = functools.partial(jax_moye.ragged_dot, implementation="moye", batch_invariant=True)
    permutation = rng.permutation(M)
    stored = np.asarray(fun(lhs, rhs, sizes, lhs_rows=rows, permutation=permutation))
    np.testing.assert_array_equal(stored[permutation], fun(lhs[rows], rhs, sizes))
    cotangent = jnp.asarray(rng.standard_normal((M, N)), jnp.bfloat16)
    run = jax.jit(
        lambda x: jax.vjp(lambda x: fun(x, rhs, sizes, lhs_rows=rows, deterministic=True), x)[1](cotangent)[0]
    )
    first = run(lhs)
    for _ in range(10):
        np.testing.assert_array_equal(run(lhs), first)


def test_in_a_loop(rng):
    """A command buffer of several launches, whose indices are other ones each time."""
    x = jnp.asarray(rng.integers(-1, 2, (M, 136)), jnp.bfloat16)
    w = jnp.broadcast_to(jnp.eye(136, dtype=jnp.bfloat16), (7, 136, 136))
    sizes = jnp.asarray(ALL_SIZES["even"])
    turns = jnp.asarray([rng.permutation(M) for _ in range(20)])

    def step(x, p):
        return jax_moye.ragged_dot(x, w, sizes, lhs_rows=p, permutation=jnp.roll(p, 1), implementation="moye"), None

    found, _ = jax.jit(lambda x: jax.lax.scan(step, x, turns))(x)
    wanted = np.asarray(x, np.float32)
    for p in np.asarray(turns):
        moved = np.zeros_like(wanted)
        moved[np.roll(p, 1)] = wanted[p]
        wanted = moved
    np.testing.assert_array_equal(np.asarray(found, np.float32), wanted)


def test_what_optimize_finds(rng):
    """What is behind a product, also where it is differentiated: one call, without being asked for."""
    tokens, each = 301, 4
    ids = rng.integers(0, 7, tokens * each).astype(np.int32)
    x = jnp.asarray(rng.integers(-2, 3, (tokens, K)), jnp.bfloat16)
    w = jnp.asarray(rng.integers(-2, 3, (7, K, N)), jnp.bfloat16)

    def layer(x, w, ids):
        order, sizes = jnp.argsort(ids), jnp.bincount(ids, length=7)
        return jnp.take(jax.lax.ragged_dot(x[order // each], w, sizes), jnp.argsort(order), axis=0)

    def gradient(x, w, ids):
        return jax.grad(lambda x: (layer(x, w, ids).astype(jnp.float32) ** 2).sum() / 2)(x)

    lhs, rhs = np.asarray(x, np.float64), np.asarray(w, np.float64)
    expected = np.einsum("mk,mkn->mn", np.repeat(lhs, each, 0), rhs[ids])
    sums = np.einsum("mn,mkn->mk", expected, rhs[ids]).reshape(tokens, each, K).sum(1)
    for fun, wanted, relative in ((layer, expected, 2.0**-8), (gradient, sums, 2.0**-6)):
        program = jax.jit(jax_moye.optimize(fun))
        assert program.lower(x, w, ids).as_text().count(ffi.SCATTERED_GROUPED_TARGET) == 1
        found = np.asarray(program(x, w, ids), np.float64)
        np.testing.assert_allclose(found, wanted, relative, relative * np.abs(wanted).max())
