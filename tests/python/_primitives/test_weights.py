"""weights_p under JAX's transformations: right values, one call where one will do, and XLA's programs elsewhere."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P
from python.four_devices import checks_of, main, said_by
from python.quantized import RANGES, assert_close, f64, operands, product, use_fake_rows, weights_calls, weights_of
from python.support import UNIT, lowered_text

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import weights_configs
from jax_moye._primitives import weights as module

quantized_matmul = jax_moye.quantized_matmul
in_f32 = functools.partial(quantized_matmul, preferred_element_type="f32")
KERNEL = dict(implementation="moye", interpret=True)
# Who computes: the dequantized weights' product, XLA's or the emulator's, or the kernel.
WAYS = [
    pytest.param({}, id="dequantized"),
    pytest.param({"implementation": "xla"}, id="xla"),
    pytest.param(KERNEL, id="kernel", marks=pytest.mark.skipif(not weights_configs(), reason="no row in this build")),
]
M, K, N = 3, 128, 32


def args_of(rng, w="int4", groups=2, zeros=None, shape=(M, K, N)):
    return operands(rng, w, shape=shape, groups=groups, zeros=w != "float8_e4m3fn" if zeros is None else zeros)


@pytest.fixture
def fake_rows(monkeypatch):
    """As if the build had the kernel: programs are lowered, and not run."""
    jax.clear_caches()
    use_fake_rows(monkeypatch)
    yield
    jax.clear_caches()


def near(found, wanted, magnitude, unit=2**-7):
    """Within some roundings to bfloat16 of terms of a magnitude."""
    assert (abs(f64(found) - wanted) <= unit * magnitude + 1e-6).all()


def scale_sums(cotangent, x, w, scales, zeros=None, absolute=False):
    """(groups, N) in float64: the cotangent of the scales."""
    groups, k = scales.shape[0], w.shape[0]
    of_w = weights_of(w, np.ones(scales.shape), zeros).reshape(groups, k // groups, -1)
    x, cotangent = f64(x).reshape(-1, groups, k // groups), f64(cotangent).reshape(-1, w.shape[1])
    if absolute:
        of_w, x, cotangent = abs(of_w), abs(x), abs(cotangent)
    return np.einsum("mgk,gkn,mn->gn", x, of_w, cotangent)


# --------------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("w", RANGES)
def test_jvp(rng, w, groups, way):
    x, w, scales, *zeros = args_of(rng, w, groups)
    x_dot, scales_dot = jnp.asarray(rng.standard_normal(x.shape), x.dtype), jnp.asarray(rng.random(scales.shape), "f4")
    fun = functools.partial(in_f32, **way)
    both = lambda x, s: fun(x, w, s, *zeros)  # noqa: E731
    for transform in (lambda f: f, jax.jit):
        out, out_dot = transform(lambda *args: jax.jvp(both, args[:2], args[2:]))(x, scales, x_dot, scales_dot)
        assert_close(out, x, w, scales, *zeros)
        wanted = product(x_dot, w, scales, *zeros) + product(x, w, scales_dot, *zeros)
        near(out_dot, wanted, abs(f64(x_dot)) @ abs(weights_of(w, scales + scales_dot, *zeros)) + abs(wanted) + 1)
    (_, of_x), (_, of_scales) = (
        jax.jvp(lambda x: both(x, scales), (x,), (x_dot,)),
        jax.jvp(lambda s: both(x, s), (scales,), (scales_dot,)),
    )
    assert_close(of_x, x_dot, w, scales, *zeros)
    assert_close(of_scales, x, w, scales_dot, *zeros)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("out", ["bfloat16", "float32"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("w", RANGES)
def test_vjp(rng, w, groups, out, way):
    x, w, scales, *zeros = args_of(rng, w, groups, shape=(2, M, K, N))
    cotangent = jnp.asarray(rng.standard_normal((2, M, N)), out)
    fun = lambda x, s: quantized_matmul(x, w, s, *zeros, preferred_element_type=out, **way)  # noqa: E731
    for transform in (lambda f: f, jax.jit):
        x_bar, scales_bar = transform(lambda x, s, ct: jax.vjp(fun, x, s)[1](ct))(x, scales, cotangent)
        assert (x_bar.shape, x_bar.dtype) == (x.shape, x.dtype)
        assert (scales_bar.shape, scales_bar.dtype) == (scales.shape, scales.dtype)
        weights = weights_of(w, scales, *zeros)
        # Weights are rounded once to x's dtype, and the result is.
        near(x_bar, f64(cotangent) @ weights.T, abs(f64(cotangent)) @ abs(weights.T), 2.1 * UNIT["bfloat16"])
        wanted = scale_sums(cotangent, x, w, scales, *zeros)
        near(scales_bar, wanted, scale_sums(cotangent, x, w, scales, *zeros, absolute=True), 300 * UNIT["float32"])


def test_scales_of_16_bits_and_of_one_dimension(rng):
    x, w, scales, zeros = args_of(rng, groups=1)
    for dtype in (jnp.bfloat16, jnp.float16):
        s = scales[0].astype(dtype)
        bar = jax.grad(lambda s: in_f32(x, w, s, zeros[0]).sum())(s)
        assert (bar.shape, bar.dtype) == (s.shape, dtype)
        wanted = scale_sums(np.ones((M, N)), x, w, scales, zeros)[0]
        near(bar, wanted, scale_sums(np.ones((M, N)), x, w, scales, zeros, True)[0], 2**-8)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("w", RANGES)
def test_second_derivatives(rng, w, groups):
    """Forward over reverse, and reverse over reverse: those of jnp.matmul and weights of f32."""
    most = RANGES[w][1]
    x, w, scales, *zeros = args_of(rng, w, groups, shape=(2, 16, 8))
    x, cotangent = x.astype(jnp.float32), jnp.asarray(rng.standard_normal((2, 8)), jnp.float32)
    x_dot = jnp.asarray(rng.standard_normal(x.shape), jnp.float32)
    scales_dot = jnp.asarray(rng.standard_normal(scales.shape), jnp.float32) / most  # f16 ends at 65504

    def plain(x, s):
        grouped = w.astype(jnp.float32).reshape(groups, -1, 8) - sum(z.astype(jnp.float32)[:, None] for z in zeros)
        return jnp.matmul(x, (grouped * s[:, None]).reshape(16, 8), precision="highest")

    def derivatives(fun):
        vjp = lambda x, s: jax.vjp(fun, x, s)[1](cotangent)  # noqa: E731
        directed = lambda x, s: sum(map(jnp.vdot, vjp(x, s), (x_dot, scales_dot)))  # noqa: E731
        over_reverse = jax.jvp(vjp, (x, scales), (x_dot, scales_dot))
        forward = lambda x, s: (jax.jvp(fun, (x, s), (x_dot, scales_dot))[1] ** 2).sum()  # noqa: E731
        return jax.tree.leaves((over_reverse, jax.grad(directed, (0, 1))(x, scales), jax.grad(forward, 0)(x, scales)))

    ours = jax.jit(lambda: derivatives(lambda x, s: in_f32(x.astype(jnp.float16), w, s, *zeros)))()
    for found, wanted in zip(ours, derivatives(plain), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=2**-9, atol=2**-8 * float(abs(wanted).max()))


def test_integers_have_no_derivative(rng):
    args = args_of(rng, "int8")
    _, vjp = jax.vjp(in_f32, *args)
    _, w_bar, _, zeros_bar = vjp(jnp.ones((M, N)))
    assert (w_bar.dtype, zeros_bar.dtype) == (jax.dtypes.float0,) * 2
    nothing = [np.zeros(x.shape, jax.dtypes.float0) for x in (args[1], args[3])]
    out, out_dot = jax.jvp(in_f32, tuple(args), (args[0], nothing[0], jnp.zeros_like(args[2]), nothing[1]))
    np.testing.assert_allclose(out, out_dot, rtol=1e-6)
    out, out_dot = jax.jvp(lambda w: in_f32(args[0], w, *args[2:]), (args[1],), (nothing[0],))
    assert not f64(out_dot).any()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("groups", [1, 2])
def test_float8_weights_have_one(rng, groups, way):
    x, w, scales = args_of(rng, "float8_e4m3fn", groups)
    fun = lambda w: in_f32(x, w, scales, **way)  # noqa: E731
    w_dot = jnp.asarray(rng.integers(-3, 4, w.shape), w.dtype)
    _, out_dot = jax.jvp(fun, (w,), (w_dot,))
    assert_close(out_dot, x, w_dot, scales)
    cotangent = jnp.asarray(rng.standard_normal((M, N)), jnp.float32)
    (w_bar,) = jax.vjp(fun, w)[1](cotangent)
    (same,) = jax.linear_transpose(fun, w)(cotangent)
    wanted = (f64(x).T @ f64(cotangent)) * np.repeat(f64(scales), K // groups, 0)
    for bar in (w_bar, same):
        assert (bar.shape, bar.dtype) == (w.shape, w.dtype)
        near(bar, wanted, abs(wanted) + 2**-6, 2**-3)  # eighths, and 2^-9 between subnormal ones


@pytest.mark.parametrize("groups", [1, 2])
def test_linear_transpose(rng, groups):
    x, w, scales, zeros = args_of(rng, groups=groups)
    cotangent = jnp.asarray(rng.standard_normal((M, N)), jnp.float32)
    (x_bar,) = jax.linear_transpose(lambda x: in_f32(x, w, scales, zeros), x)(cotangent)
    np.testing.assert_array_equal(x_bar, jax.vjp(lambda x: in_f32(x, w, scales, zeros), x)[1](cotangent)[0])
    (scales_bar,) = jax.linear_transpose(lambda s: in_f32(x, w, s, zeros), scales)(cotangent)
    np.testing.assert_array_equal(scales_bar, jax.vjp(lambda s: in_f32(x, w, s, zeros), scales)[1](cotangent)[0])


def test_the_gradient_is_one_kernel_call_and_a_product(rng, fake_rows):
    """The product itself, its derivative to x by contract_p, and that to the scales by XLA."""
    x, w, scales, zeros = args_of(rng)
    fun = functools.partial(in_f32, **KERNEL)
    of_x = lambda x: (fun(x, w, scales, zeros) ** 2).sum()  # noqa: E731
    text = lowered_text(jax.grad(of_x), x, platform="cpu")
    assert (text.count(f"@{ffi.WEIGHTS_TARGET}"), text.count(f"@{ffi.TARGET}")) == (1, 1)
    of_scales = lambda s: (fun(x, w, s, zeros) ** 2).sum()  # noqa: E731
    text = lowered_text(jax.grad(of_scales), scales, platform="cpu")
    assert (text.count(f"@{ffi.WEIGHTS_TARGET}"), text.count(f"@{ffi.TARGET}")) == (1, 0)
    assert len(weights_calls(lambda x: jax.jvp(of_x, (x,), (x,)), x)) == 2  # the tangent's is the same kernel


def test_remat_and_jit_of_a_gradient(rng):
    x, w, scales, zeros = args_of(rng)
    loss = lambda x, s: jnp.sin(in_f32(x, w, s, zeros)).sum()  # noqa: E731
    expected = jax.grad(loss, (0, 1))(x, scales)
    programs = [jax.jit(jax.grad(loss, (0, 1))), jax.jit(jax.grad(jax.checkpoint(loss), (0, 1)))]
    for program in programs:
        for found, wanted in zip(program(x, scales), expected, strict=True):
            np.testing.assert_allclose(f64(found), f64(wanted), rtol=2**-6, atol=1e-4)


def test_unused_products_are_removed(rng):
    x, w, scales, zeros = args_of(rng)
    text = lowered_text(lambda x: (quantized_matmul(x, w, scales, zeros), x + 1)[1], x, platform="cpu")
    assert "dot_general" not in text


# ---------------------------------------------------------------------------------------------------------------- vmap


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("w", RANGES)
def test_vmap(rng, w, way):
    many = [args_of(rng, w) for _ in range(2)]
    stacked = [jnp.stack(pair, 1) for pair in zip(*many, strict=True)]
    fun = functools.partial(in_f32, **way)
    for mapped in itertools.product([False, True], repeat=len(stacked)):
        if not any(mapped):
            continue
        axes = tuple(1 if is_mapped else None for is_mapped in mapped)
        args = [x if is_mapped else x[:, 0] for x, is_mapped in zip(stacked, mapped, strict=True)]
        out = jax.jit(jax.vmap(fun, axes))(*args)
        for i in range(2):
            assert_close(out[i], *(x[:, i] if is_mapped else x for x, is_mapped in zip(args, mapped, strict=True)))


def test_vmap_over_x_makes_rows_of_it(rng, fake_rows):
    x, w, scales, zeros = args_of(rng, shape=(2, 5, M, K, N))
    fun = jax.vmap(
        jax.vmap(functools.partial(quantized_matmul, **KERNEL), (1, None, None, None)), (0, None, None, None)
    )
    (call,) = weights_calls(fun, x.swapaxes(1, 2), w, scales, zeros)
    assert call.sizes == (2 * 5 * M, N, K)
    over_weights = jax.vmap(functools.partial(quantized_matmul, **KERNEL), (None, 0, None, None))
    (call,) = weights_calls(over_weights, x[0, 0], jnp.stack([w, w]), scales, zeros)  # in a loop
    assert call.sizes == (M, N, K)


def test_vmap_in_vmap_and_of_gradients(rng):
    x, w, scales, zeros = args_of(rng, shape=(2, 4, M, K, N))
    ws = jnp.stack([w, w[::-1], w[:, ::-1], -w // 2])
    out = jax.jit(jax.vmap(jax.vmap(in_f32, (0, 0, None, None)), (0, None, None, None)))(x, ws, scales, zeros)
    for i, j in itertools.product(range(2), range(4)):
        assert_close(out[i, j], x[i, j], ws[j], scales, zeros)
    of_one = jax.grad(lambda x, s: in_f32(x, w, s, zeros).sum(), (0, 1))
    x_bars, scales_bars = jax.vmap(of_one, (0, None))(x[0], scales)
    for i in range(4):
        for found, wanted in zip((x_bars[i], scales_bars[i]), of_one(x[0, i], scales), strict=True):
            np.testing.assert_allclose(f64(found), f64(wanted), rtol=2**-7)
    assert jax.vmap(in_f32, (0, None, None))(jnp.ones((0, M, K), jnp.bfloat16), w, scales).shape == (0, M, N)


# -------------------------------------------------------------------------------------------------------- control flow


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("w", RANGES)
def test_scan_over_stacked_layers(rng, w, way):
    layers = [args_of(rng, w, shape=(M, 64, 64), groups=1) for _ in range(3)]
    x = layers[0][0]
    stacked = [jnp.stack(arrays) for arrays in zip(*(layer[1:] for layer in layers), strict=True)]

    def step(x, layer):
        return quantized_matmul(x, *layer, **way), None

    run = jax.jit(lambda x, stacked: lax.scan(step, x, stacked)[0])
    expected = x
    for layer in layers:
        expected = quantized_matmul(expected, *layer[1:], **way)
    np.testing.assert_array_equal(run(x, stacked), expected)

    def loss(x, scales):
        layers = [stacked[0], scales, *stacked[2:]]
        return lax.scan(jax.checkpoint(step), x, layers)[0].astype(jnp.float32).sum()

    x_bar, scales_bar = jax.jit(jax.grad(loss, (0, 1)))(x, stacked[1])
    assert (x_bar.shape, scales_bar.shape) == (x.shape, stacked[1].shape)
    assert f64(scales_bar).any(axis=(1, 2)).all()


def test_cond_while_and_checkify(rng):
    x, w, scales, zeros = args_of(rng, shape=(M, 64, 64), groups=1)
    one = quantized_matmul(x, w, scales, zeros)
    np.testing.assert_array_equal(lax.cond(True, lambda x: quantized_matmul(x, w, scales, zeros), lambda x: x, x), one)
    twice = lax.fori_loop(0, 2, lambda _, x: quantized_matmul(x, w, scales, zeros), x)
    np.testing.assert_array_equal(twice, quantized_matmul(one, w, scales, zeros))
    checked = jax.jit(checkify.checkify(quantized_matmul, checkify.float_checks))
    error, out = checked(x, w, scales, zeros)
    assert error.get() is None
    np.testing.assert_array_equal(out, one)
    error, _ = checked(x.at[0, 0].set(jnp.nan), w, scales, zeros)
    assert "nan generated by primitive: jax_moye_weights" in error.get()


# ------------------------------------------------------------------------------------------------------ sizes, export


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("shape", [(0, 8, 8), (3, 0, 8), (3, 8, 0), (0, 0, 0)], ids=str)
def test_derivatives_of_sizes_of_0(rng, shape, way):
    x, w, scales, zeros = args_of(rng, shape=shape, groups=2)
    fun = lambda x, s: in_f32(x, w, s, zeros, **way).sum()  # noqa: E731
    bars = jax.jit(jax.grad(fun, (0, 1)))(x, scales)
    assert [(bar.shape, bar.dtype) for bar in bars] == [(x.shape, x.dtype), (scales.shape, scales.dtype)]
    assert not any(f64(bar).any() for bar in bars)


DECLARED = [jax.export.DisabledSafetyCheck.custom_call(ffi.WEIGHTS_TARGET)]


def test_export_of_the_call(rng, fake_rows):
    pytest.importorskip("flatbuffers")
    args = args_of(rng)
    fun = jax.jit(functools.partial(quantized_matmul, **KERNEL))
    with pytest.raises(ValueError, match=ffi.WEIGHTS_TARGET):
        jax.export.export(fun)(*args)
    for checks in (DECLARED, jax_moye.EXPORT_DISABLED_CHECKS):
        exported = jax.export.export(fun, disabled_checks=checks)(*args)
        loaded = jax.export.deserialize(exported.serialize())
        assert loaded.mlir_module().count(f"@{ffi.WEIGHTS_TARGET}") == 1


@pytest.mark.parametrize("platforms", [None, ("cpu", "cuda")])
def test_export(rng, platforms):
    pytest.importorskip("flatbuffers")
    x, w, scales, zeros = args_of(rng)
    checks = jax_moye.EXPORT_DISABLED_CHECKS
    exported = jax.export.export(jax.jit(in_f32), platforms=platforms, disabled_checks=checks)(x, w, scales, zeros)
    loaded = jax.export.deserialize(exported.serialize(vjp_order=1))
    out, vjp = jax.vjp(lambda x, s: loaded.call(x, w, s, zeros), x, scales)
    np.testing.assert_array_equal(out, in_f32(x, w, scales, zeros))
    wanted = jax.vjp(lambda x, s: in_f32(x, w, s, zeros), x, scales)[1](jnp.ones_like(out))
    for bar, same in zip(vjp(jnp.ones_like(out)), wanted, strict=True):
        np.testing.assert_allclose(f64(bar), f64(same), rtol=1e-5, atol=1e-5)


def test_export_of_symbolic_shapes(rng):
    pytest.importorskip("flatbuffers")
    x, w, scales = args_of(rng, shape=(2, M, K, N), zeros=False)
    m, n = jax.export.symbolic_shape("m, n")
    shapes = [jax.ShapeDtypeStruct((m, n, K), x.dtype), *(jax.ShapeDtypeStruct(y.shape, y.dtype) for y in (w, scales))]
    exported = jax.export.export(jax.jit(in_f32))(*shapes)
    out = jax.export.deserialize(exported.serialize()).call(x, w, scales)
    assert_close(out, x, w, scales)


# ----------------------------------------------------------------------------------------------------- several devices


def sharded_operands():
    return operands(np.random.default_rng(3), "int4", shape=(8, 128, 64), groups=2, zeros=True)


def check_rows_sharded():
    """Inside of shard_map a device multiplies its rows; the gradient to the scales is a sum over devices."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    x, w, scales, zeros = sharded_operands()
    specs = P("x"), P(), P(), P()
    mapped = jax.jit(jax.shard_map(in_f32, mesh=mesh, in_specs=specs, out_specs=P("x")))
    out, vjp = jax.vjp(lambda x, s: mapped(x, w, s, zeros), x, scales)
    assert_close(out, x, w, scales, zeros)
    x_bar, scales_bar = vjp(jnp.ones_like(out))
    near(scales_bar, scale_sums(np.ones(out.shape), x, w, scales, zeros), 1e-2)
    wanted = jax.vjp(lambda x: in_f32(x, w, scales, zeros), x)[1](jnp.ones_like(out))[0]
    np.testing.assert_array_equal(x_bar, wanted)


def check_columns_sharded_and_vmap():
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    x, w, scales, zeros = sharded_operands()
    xs = jnp.stack([x, -x])
    local = jax.vmap(in_f32, (0, None, None, None))
    columns = P(None, "y")
    mapped = jax.jit(jax.shard_map(local, mesh=mesh, in_specs=(P("x"), *[columns] * 3), out_specs=P("x", None, "y")))
    for found, of_x in zip(mapped(xs, w, scales, zeros), xs, strict=True):
        assert_close(found, of_x, w, scales, zeros)


def check_partitioned_outside_of_shard_map():
    """XLA, and who insists is told why."""
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
    x, w, scales, zeros = sharded_operands()
    specs = [(P("x"), P()), (P(), P(None, "x")), (P(None, "x"), P("x"))]
    if jax.__version_info__ < (0, 10):  # jax 0.9.2 does not find a sharding for the last one's result, nor for lax's
        specs = specs[:-1]
    for spec_x, spec_w in specs:
        placed = [jax.device_put(y, NamedSharding(mesh, spec)) for y, spec in ((x, spec_x), (w, spec_w))]
        program = jax.jit(functools.partial(in_f32, interpret=True))
        assert "custom_call @jax_moye" not in program.lower(*placed, scales, zeros).as_text()
        assert_close(program(*placed, scales, zeros), x, w, scales, zeros)
        bars = jax.jit(jax.grad(lambda x, w, s: in_f32(x, w, s, zeros).sum(), (0, 2)))(*placed, scales)
        near(bars[1], scale_sums(np.ones((8, 64)), x, w, scales, zeros), 1e-2)
        try:
            jax.jit(functools.partial(in_f32, **KERNEL))(*placed, scales, zeros)
        except NotImplementedError as error:
            assert "partitioned over 4 devices outside of shard_map" in str(error)  # noqa: PT017
        else:
            raise AssertionError("it was computed")


def check_explicit_meshes():
    mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Explicit,))
    x, w, scales, zeros = sharded_operands()
    with jax.set_mesh(mesh):
        placed = [jax.device_put(y, NamedSharding(mesh, P())) for y in (w, scales, zeros)]
        rows = jax.device_put(x, NamedSharding(mesh, P("x")))
        out = in_f32(rows, *placed)
        assert out.sharding.spec == P("x", None)
        assert_close(out, x, w, scales, zeros)
        try:
            in_f32(rows, *placed, **KERNEL)
        except NotImplementedError as error:
            assert "explicit axes" in str(error)  # noqa: PT017
        else:
            raise AssertionError("it was computed")
        mapped = jax.jit(jax.shard_map(in_f32, in_specs=(P("x"), P(), P(), P()), out_specs=P("x")))
        assert_close(mapped(rows, *placed), x, w, scales, zeros)


CHECKS = checks_of(globals())


@pytest.fixture(scope="module")
def on_four_devices():
    return said_by(__file__)


@pytest.mark.parametrize("name", CHECKS)
def test_four_devices(on_four_devices, name):
    assert len(CHECKS) == 4
    assert on_four_devices[name] == "", on_four_devices[name]


def test_the_names_of_the_primitives():
    assert (module.weights_p.name, module.weights_local_p.name) == ("jax_moye_weights", "jax_moye_weights_local")


if __name__ == "__main__":
    main(globals())
