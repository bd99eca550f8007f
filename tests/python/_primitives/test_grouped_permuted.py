"""permuted_p under JAX's transformations: right values, the custom call, and no scatter behind it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import PartitionSpec as P
from python.four_devices import checks_of, main, said_by
from python.support import TARGET, custom_calls, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs
from jax_moye._primitives.grouped_permuted import permuted_p

READ, M, K, N = 11, 24, 16, 32  # rows of lhs, of the product
SIZES = np.array([4, 0, 11], np.int32)  # and 9 rows behind the last group
ragged_dot = functools.partial(jax_moye.ragged_dot, implementation="moye", interpret=True)
WAYS = {"gather": (True, False), "scatter": (False, True), "both": (True, True)}
every_way = pytest.mark.parametrize("way", WAYS)


def case_of(way, seed=0, most=1):
    """lhs, rhs, and the indices of rows, None where there are none."""
    rng = np.random.default_rng(seed)
    gathers, scatters = WAYS[way]
    lhs = jnp.asarray(rng.integers(-most, most + 1, (READ if gathers else M, K)), jnp.bfloat16)
    rhs = jnp.asarray(rng.integers(-most, most + 1, (len(SIZES), K, N)), jnp.bfloat16)
    rows = rng.integers(-2, READ + 3, M).astype(np.int32) if gathers else None  # some are outside
    return lhs, rhs, rows, rng.permutation(M).astype(np.int32) if scatters else None


def matrices(lhs, rows, permutation):
    """(m, rows of lhs) and (m, m): what reads rows, and what stores them."""
    read = np.eye(len(lhs)) if rows is None else np.eye(len(lhs))[np.clip(rows, 0, len(lhs) - 1)]
    return read, np.eye(M) if permutation is None else np.eye(M)[permutation].T


def product(rows_of_lhs, rhs, sizes=SIZES):
    """In float64, group by group."""
    out = np.zeros((M, rhs.shape[2]))
    begin = 0
    for size, matrix in zip(sizes, rhs, strict=True):
        out[begin : begin + size] = rows_of_lhs[begin : begin + size] @ matrix
        begin += size
    return out


def expected(lhs, rhs, rows, permutation, cotangent, sizes=SIZES):
    """The result, and what the cotangents of lhs and rhs are, in float64."""
    lhs, rhs, cotangent = (np.asarray(x).astype(np.float64) for x in (lhs, rhs, cotangent))
    read, store = matrices(lhs, rows, permutation)
    out, bars = store @ product(read @ lhs, rhs, sizes), store.T @ cotangent
    lhs_bar = read.T @ product(bars, rhs.swapaxes(1, 2), sizes)
    ends = np.cumsum(sizes)
    rhs_bar = [(read @ lhs)[end - size : end].T @ bars[end - size : end] for size, end in zip(sizes, ends, strict=True)]
    return out, lhs_bar, np.stack(rhs_bar)


def of(rows, permutation, **options):
    return lambda x, w, sizes=SIZES: ragged_dot(x, w, sizes, lhs_rows=rows, permutation=permutation, **options)


def assert_equal(found, wanted):
    np.testing.assert_array_equal(np.asarray(found).astype(np.float64), wanted)


def calls_of(text, target=ffi.SCATTERED_GROUPED_TARGET):
    return custom_calls(text.replace(target, TARGET))


# ------------------------------------------------------------------------------------------------------------ programs


@every_way
def test_the_call(way):
    """One custom call, a gather in front of it where there are lhs_rows, and nothing behind it."""
    lhs, rhs, rows, permutation = case_of(way)
    text = lowered_text(of(rows, permutation), lhs, rhs, platform="cpu")
    gathers, scatters = WAYS[way]
    (call,) = calls_of(text, ffi.SCATTERED_GROUPED_TARGET if scatters else ffi.GROUPED_TARGET)
    assert (call.sizes, call.ragged, call.d_strides) == ((len(SIZES), M, N, K), "m", (0, N, 1))
    assert text.count('"stablehlo.gather"') == gathers
    assert "stablehlo.scatter" not in text
    assert len(call.operands) == 3 + scatters


@pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU: tests/gpu runs the programs")
def test_the_call_of_a_gpu(monkeypatch):
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    lhs, rhs, rows, permutation = case_of("both")
    fun = functools.partial(jax_moye.ragged_dot, group_sizes=SIZES, lhs_rows=rows, permutation=permutation)
    with jax_moye.cuda_target(90):
        (call,) = calls_of(lowered_text(functools.partial(fun, implementation="moye"), lhs, rhs))
        (named,) = calls_of(lowered_text(functools.partial(fun, config=call.config), lhs, rhs))
        # No kernel computes f32 as such: XLA moves rows around its product.
        text = lowered_text(functools.partial(fun, precision="highest"), *(x.astype(jnp.float32) for x in (lhs, rhs)))
    assert {"mode", "seed", "detect_races"}.isdisjoint(call.attributes)
    assert named.config == call.config
    assert not calls_of(text)
    assert "stablehlo.gather" in text
    assert "stablehlo.scatter" in text


def test_a_transpose_in_front_of_rhs_is_strides():
    lhs, rhs, rows, permutation = case_of("both")
    fun = lambda x, w: of(rows, permutation)(x, w.swapaxes(1, 2))  # noqa: E731
    (call,) = calls_of(lowered_text(fun, lhs, rhs.swapaxes(1, 2), platform="cpu"))
    assert call.b_strides == (N * K, K, 1)
    assert_equal(jax.jit(fun)(lhs, rhs.swapaxes(1, 2)), expected(lhs, rhs, rows, permutation, np.zeros((M, N)))[0])


def test_jaxpr_and_dead_code():
    lhs, rhs, rows, permutation = case_of("both")
    jaxpr = jax.make_jaxpr(of(rows, permutation))(lhs, rhs)
    assert [equation.primitive for equation in jaxpr.eqns][-1] is permuted_p
    text = lowered_text(lambda x, w: (of(rows, permutation)(x, w), x + 1)[1], lhs, rhs, platform="cpu")
    assert not calls_of(text)


DTYPES = {
    "bf16": ("bfloat16",) * 2,
    "f16": ("float16",) * 2,
    "tf32": ("float32",) * 2,
    "e4m3": ("float8_e4m3fn",) * 2,
    "e5m2": ("float8_e5m2",) * 2,
    "e4m3xe5m2": ("float8_e4m3fn", "float8_e5m2"),
    "e5m2xe4m3": ("float8_e5m2", "float8_e4m3fn"),
}


@pytest.mark.parametrize("config", grouped_configs(), ids=lambda config: config.name)
def test_every_config(config):
    lhs, rhs, rows, permutation = case_of("both", most=2)
    wanted, *_ = expected(lhs, rhs, rows, permutation, np.zeros((M, N)))
    of_lhs, of_rhs = DTYPES[config.dtype]
    fast = {"precision": jax.lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM}
    options = fast if config.accumulator == "f32_fast" else {}
    for out in ("float32", "bfloat16" if config.dtype[0] == "e" else of_lhs):
        fun = of(rows, permutation, config=config.name, preferred_element_type=out, **options)
        assert_equal(fun(lhs.astype(of_lhs), rhs.astype(of_rhs)), wanted)


def scaled_case():
    """8-bit floats, and scales of rows and of each group's columns."""
    lhs, rhs, rows, permutation = case_of("both", most=2)
    rng = np.random.default_rng(3)
    scales = [jnp.asarray(2.0 ** rng.integers(-1, 2, shape), jnp.float32) for shape in (READ, (len(SIZES), N))]
    return lhs.astype(jnp.float8_e4m3fn), rhs.astype(jnp.float8_e4m3fn), rows, permutation, *scales


def test_scales():
    """By the kernel: those of rows are gathered with them."""
    lhs, rhs, rows, permutation, of_rows, of_columns = scaled_case()
    read, store = matrices(lhs, rows, permutation)
    fun = of(rows, permutation, lhs_scale=of_rows, rhs_scale=of_columns, preferred_element_type=jnp.bfloat16)
    (call,) = calls_of(lowered_text(fun, lhs, rhs, platform="cpu"))
    assert len(call.operands) == 6
    of_group = np.repeat(np.asarray(of_columns, np.float64), SIZES, 0)
    scales = np.concatenate([of_group, np.zeros((M - len(of_group), N))]) * (read @ np.asarray(of_rows))[:, None]
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    assert_equal(
        fun(lhs.astype(jnp.float8_e4m3fn), rhs.astype(jnp.float8_e4m3fn)), store @ (product(read @ lhs, rhs) * scales)
    )


def test_derivatives_with_scales():
    """Next to those of the product in order, which is scattered."""
    lhs, rhs, rows, permutation, of_rows, of_columns = scaled_case()

    def loss(lhs_scale, rhs_scale, in_order):
        options = {"lhs_scale": lhs_scale, "rhs_scale": rhs_scale, "preferred_element_type": jnp.float32}
        y = of(rows, None if in_order else permutation, implementation=None, **options)(lhs, rhs)
        y = jnp.zeros_like(y).at[permutation].set(y) if in_order else y
        return (y * jnp.arange(M * N).reshape(M, N) % 7).sum()

    found, wanted = (jax.grad(loss, (0, 1))(of_rows, of_columns, in_order) for in_order in (False, True))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    dot = jax.jvp(lambda x: loss(x, of_columns, False), (of_rows,), (jnp.ones_like(of_rows),))[1]
    np.testing.assert_allclose(dot, wanted[0].sum(), rtol=1e-5)


# --------------------------------------------------------------------------------------------------------- derivatives


@every_way
@pytest.mark.parametrize("options", [{}, {"deterministic": True}, {"implementation": None, "interpret": None}])
def test_jvp_and_vjp(way, options):
    """Exact integers, by kernels and without them; rows that are read twice, and those that nobody reads."""
    lhs, rhs, rows, permutation = case_of(way)
    lhs_dot, rhs_dot, *_ = case_of(way, seed=1)
    cotangent = jnp.asarray(np.random.default_rng(2).integers(-1, 2, (M, N)), jnp.bfloat16)
    fun = of(rows, permutation, **options)
    out, lhs_bar, rhs_bar = expected(lhs, rhs, rows, permutation, cotangent)
    for transform in (lambda f: f, jax.jit):
        found, dot = transform(lambda *args: jax.jvp(fun, args[:2], args[2:]))(lhs, rhs, lhs_dot, rhs_dot)
        assert_equal(found, out)
        terms = (expected(x, w, rows, permutation, cotangent)[0] for x, w in ((lhs_dot, rhs), (lhs, rhs_dot)))
        assert_equal(dot, sum(terms))
        bars = transform(lambda *args: jax.vjp(fun, *args[:2])[1](args[2]))(lhs, rhs, cotangent)
        for bar, wanted, primal in zip(bars, (lhs_bar, rhs_bar), (lhs, rhs), strict=True):
            assert (bar.shape, bar.dtype) == (primal.shape, primal.dtype)
            assert_equal(bar, wanted)


def test_what_a_gradient_computes():
    """Rows of cotangents are gathered by XLA, and those of lhs added up."""
    lhs, rhs, rows, permutation = case_of("both")
    cotangent = jnp.ones((M, N), jnp.bfloat16)
    pull = lambda argument: lambda x, w, t: jax.vjp(of(rows, permutation), x, w)[1](t)[argument]  # noqa: E731
    text = lowered_text(pull(0), lhs, rhs, cotangent, platform="cpu")
    assert (len(calls_of(text)), text.count(f"@{ffi.GROUPED_TARGET}")) == (0, 1)
    assert text.count('"stablehlo.gather"') == 1
    assert text.count('"stablehlo.scatter"') == 1
    text = lowered_text(pull(1), lhs, rhs, cotangent, platform="cpu")
    assert (len(calls_of(text)), text.count(f"@{ffi.GROUPED_TARGET}")) == (0, 1)
    assert text.count('"stablehlo.gather"') == 2


def test_sums_of_rows_in_one_order():
    """Of f32 numbers that are rounded: a promise of the same bits needs no scatter, and is as exact as one."""
    rng = np.random.default_rng(0)
    lhs = jnp.asarray(rng.standard_normal((3, K)), jnp.bfloat16)
    rhs = jnp.asarray(rng.standard_normal((len(SIZES), K, N)), jnp.bfloat16)
    rows = rng.integers(0, 3, M)
    cotangent = jnp.asarray(rng.standard_normal((M, N)), jnp.bfloat16)
    for promise in ("deterministic", "batch_invariant"):
        pull = lambda x, t: jax.vjp(lambda x: of(rows, None, **{promise: True})(x, rhs), x)[1](t)[0]  # noqa: B023, E731
        assert "stablehlo.scatter" not in lowered_text(pull, lhs, cotangent, platform="cpu")
        _, wanted, _ = expected(lhs, rhs, rows, None, cotangent)
        np.testing.assert_allclose(np.asarray(pull(lhs, cotangent), np.float64), wanted, 2**-8, 2**-8)


@every_way
def test_second_derivatives(way):
    """Forward over reverse, next to the same of a gather, a product and a scatter in float32."""
    lhs, rhs, rows, permutation = case_of(way)
    dots = case_of(way, seed=1)[:2]

    def plain(x, w):
        y = jax.lax.ragged_dot(x if rows is None else x[jnp.clip(rows, 0, READ - 1)], w, jnp.asarray(SIZES))
        return y if permutation is None else jnp.zeros_like(y).at[permutation].set(y)

    def derivative(fun, *primals):
        loss = lambda x, w: (fun(x, w).astype(jnp.float32) ** 2).sum() / 2  # noqa: E731
        tangents = tuple(dot.astype(x.dtype) for dot, x in zip(dots, primals, strict=True))
        return jax.jvp(jax.grad(loss, (0, 1)), primals, tangents)[1]

    found = jax.jit(functools.partial(derivative, of(rows, permutation)))(lhs, rhs)
    for one, wanted in zip(found, derivative(plain, lhs.astype(jnp.float32), rhs.astype(jnp.float32)), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(wanted), rtol=2**-6, atol=2)


@every_way
def test_linear_transpose(way):
    """Of a product, and of one with a bias, which is linear in each of three."""
    lhs, rhs, rows, permutation = case_of(way)
    cotangent = jnp.asarray(np.random.default_rng(2).integers(-1, 2, (M, N)), jnp.bfloat16)
    _, lhs_bar, rhs_bar = expected(lhs, rhs, rows, permutation, cotangent)
    (found,) = jax.linear_transpose(lambda x: of(rows, permutation)(x, rhs), lhs)(cotangent)
    assert_equal(found, lhs_bar)
    (found,) = jax.linear_transpose(lambda w: of(rows, permutation)(lhs, w), rhs)(cotangent)
    assert_equal(found, rhs_bar)
    bias = jnp.zeros((len(SIZES), N), jnp.bfloat16)
    with_bias = of(rows, permutation, bias=bias, implementation=None)  # its cotangent is of f32: XLA's product
    (found,) = jax.linear_transpose(lambda x: with_bias(x, rhs), lhs)(cotangent)
    assert_equal(found, lhs_bar)
    of_silu = of(rows, permutation, activation="silu")
    with pytest.raises(NotImplementedError, match="activation 'silu' is not linear"):
        jax.linear_transpose(lambda x: of_silu(x, rhs), lhs)(cotangent)


# ------------------------------------------------------------------------------------------------ other transformations


def test_vmap():
    """Every operand has a batch, or one of them: one product after the other."""
    cases = [case_of("both", seed) for seed in range(3)]
    lhs, rhs, rows, permutation = (np.stack(x) for x in zip(*cases, strict=True))
    wanted = [expected(*case, np.zeros((M, N)))[0] for case in cases]
    fun = lambda *args: of(*args[2:])(*args[:2])  # noqa: E731
    found = jax.jit(jax.vmap(fun, in_axes=(0, 0, 0, 0), out_axes=1))(lhs, rhs, rows, permutation)
    assert_equal(found, np.stack(wanted, 1))
    found = jax.vmap(fun, in_axes=(None, None, 0, None))(lhs[0], rhs[0], rows, permutation[0])
    wanted = [expected(lhs[0], rhs[0], one, permutation[0], np.zeros((M, N)))[0] for one in rows]
    assert_equal(found, np.stack(wanted))


def test_checkify():
    lhs, rhs, rows, permutation = case_of("both")
    checked = jax.jit(checkify.checkify(of(rows, permutation), checkify.float_checks))
    assert checked(lhs, rhs)[0].get() is None
    error, _ = checked(lhs.at[np.clip(rows[0], 0, READ - 1), 0].set(jnp.nan), rhs)
    assert "nan generated by primitive: jax_moye_grouped_permuted" in error.get()


def check_shard_map():
    """Groups on several devices: each reads the rows that are its groups', of an array that all have."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    lhs, rhs, rows, permutation = case_of("both")
    local = lambda x, w, r, p: of(r[0], p[0])(x, w)[None]  # noqa: E731
    several = [np.stack([np.roll(x, i) for i in range(4)]) for x in (rows, permutation)]
    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P(), P(), P("x"), P("x")), out_specs=P("x")))
    found = mapped(lhs, rhs, *several)
    for one, r, p in zip(found, *several, strict=True):
        assert_equal(one, expected(lhs, rhs, r, p, np.zeros((M, N)))[0])
    assert f"@{ffi.SCATTERED_GROUPED_TARGET}" in mapped.lower(lhs, rhs, *several).as_text()
    loss = lambda x, w: mapped(x, w, *several).astype(jnp.float32).sum()  # noqa: E731
    bars = jax.jit(jax.grad(loss, (0, 1)))(lhs, rhs)
    each = [expected(lhs, rhs, r, p, np.ones((M, N)))[1:] for r, p in zip(*several, strict=True)]
    for found_bar, wanted in zip(bars, zip(*each, strict=True), strict=True):
        np.testing.assert_allclose(np.asarray(found_bar, np.float64), sum(wanted), rtol=2**-6)


def check_outside_of_shard_map():
    """XLA's gather, product and scatter, partitioned."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    lhs, rhs, rows, permutation = case_of("both")
    put = lambda x, *spec: jax.device_put(x, jax.sharding.NamedSharding(mesh, P(*spec)))  # noqa: E731
    fun = lambda x, w: jax_moye.ragged_dot(x, w, SIZES, lhs_rows=rows, permutation=permutation)  # noqa: E731
    placed = put(lhs), put(rhs, None, None, "x")
    text = jax.jit(fun).lower(*placed).as_text()
    assert not [target for target in (ffi.GROUPED_TARGET, ffi.SCATTERED_GROUPED_TARGET) if target in text]
    assert_equal(jax.jit(fun)(*placed), expected(lhs, rhs, rows, permutation, np.zeros((M, N)))[0])


CHECKS = checks_of(globals())


@pytest.fixture(scope="module")
def on_four_devices():
    return said_by(__file__)


@pytest.mark.parametrize("name", CHECKS)
def test_four_devices(on_four_devices, name):
    assert on_four_devices[name] == "", on_four_devices[name]


def test_every_way_is_there():
    assert set(WAYS.values()) == set(itertools.product((False, True), repeat=2)) - {(False, False)}


if __name__ == "__main__":
    main(globals())
