"""quantized_matmul: NumPy's numbers for every dtype and shape, errors, who computes what, and the kernels if built."""

import functools
import inspect
import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.quantized import (
    INTEGERS,
    RANGES,
    SHORT,
    assert_close,
    f64,
    fake_row,
    operands,
    product,
    use_fake_rows,
    weights_calls,
    weights_of,
)
from python.support import TARGET, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._api import quantized_matmul as module
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import weights_configs
from jax_moye._log import say_once
from jax_moye._primitives.weights import weights_p

quantized_matmul = jax_moye.quantized_matmul
KERNEL = dict(implementation="moye", interpret=True)


@pytest.fixture
def fake_rows(monkeypatch):
    """As if the build had the kernel: programs are lowered, and not run."""
    jax.clear_caches()
    use_fake_rows(monkeypatch)
    yield
    jax.clear_caches()


# ------------------------------------------------------------------------------------------------------------- numbers


@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("out", [None, "float32"])
@pytest.mark.parametrize("x", ["bfloat16", "float16"])
@pytest.mark.parametrize("w", RANGES)
def test_numbers_and_dtypes(rng, w, x, out, groups, implementation):
    for zeros in (False, True)[: 1 + (w in INTEGERS)]:
        args = operands(rng, w, x, groups=groups, zeros=zeros)
        found = quantized_matmul(*args, preferred_element_type=out, implementation=implementation)
        assert (found.shape, found.dtype, found.weak_type) == ((3, 64), out or x, False)
        assert_close(found, *args)


@pytest.mark.parametrize("scales", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("zeros", [None, *RANGES])
def test_dtypes_of_scales_and_zeros(rng, scales, zeros):
    if zeros not in (None, *INTEGERS):
        zeros = "uint8"
    for groups in (1, 2):
        x, w, s = operands(rng, "uint4", groups=groups, scales=scales)
        z = [] if zeros is None else [jnp.asarray(rng.integers(0, 8, s.shape), zeros)]
        for flat in (False, True)[: 1 + (groups == 1)]:
            args = [x, w, *(y[0] if flat else y for y in (s, *z))]
            found = quantized_matmul(*args, preferred_element_type="f32")
            assert_close(found, *args)


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("rows", [(), (1,), (5,), (2, 3), (1, 1, 4), (0,), (2, 0, 3)], ids=str)
def test_leading_dimensions(rng, rows, groups):
    args = operands(rng, "int4", shape=(*rows, 64, 24), groups=groups, zeros=True)
    for implementation in (None, "xla"):
        found = quantized_matmul(*args, preferred_element_type="f32", implementation=implementation)
        assert found.shape == (*rows, 24)
        assert_close(found, *args)


@pytest.mark.parametrize("shape", [(3, 0, 8), (0, 8, 8), (3, 8, 0), (0, 0, 0), (1, 1, 1), (2, 7, 5)], ids=str)
def test_small_sizes(rng, shape):
    for w, groups in itertools.product(RANGES, (1, 7 if shape[1] == 7 else 1)):
        args = operands(rng, w, shape=shape, groups=groups)
        for implementation in (None, "xla"):
            found = quantized_matmul(*args, implementation=implementation)
            assert (found.shape, found.dtype) == ((shape[0], shape[2]), jnp.bfloat16)
            assert_close(found, *args)
        if 0 in shape:
            assert not f64(quantized_matmul(*args, **KERNEL)).any()


def test_three_groups_of_no_rows(rng):
    args = operands(rng, shape=(2, 0, 8), groups=3)
    assert not f64(quantized_matmul(*args)).any()


def test_one_row_of_scales_is_as_precise_as_a_kernel(rng):
    """Weights less zeros of all integers are exact in 16 bits; products that are integers come out exactly."""
    for x, w in itertools.product(("bfloat16", "float16"), INTEGERS):
        lowest, highest = RANGES[w]
        weights = jnp.asarray(np.arange(lowest, highest + 1)[:, None], w)
        zeros = jnp.asarray([lowest if lowest else highest], jnp.int8)
        args = jnp.eye(len(weights), dtype=x), weights, jnp.ones((1,)), zeros
        found = quantized_matmul(*args, preferred_element_type="f32")
        np.testing.assert_array_equal(found, product(*args))


def test_all_float8_weights(rng):
    """Subnormal ones, too, and NaN."""
    w = jnp.asarray(np.arange(256, dtype=np.uint8)).view(jnp.float8_e4m3fn)[:, None]
    for x in ("bfloat16", "float16"):
        weights = jnp.where(jnp.isnan(w), jnp.zeros_like(w), w)
        found = quantized_matmul(jnp.eye(256, dtype=x), weights, jnp.full((1,), 0.5), preferred_element_type="f32")
        np.testing.assert_array_equal(found, f64(weights) / 2)
    assert np.isnan(f64(quantized_matmul(jnp.ones((1, 256), x), w, jnp.ones(1)))).all()


def test_the_rounding_of_weights_is_the_one_that_is_stated(rng):
    """Of groups: each weight is (w - zero) * scale of f32, rounded once."""
    _, w, s, z = operands(rng, "int4", groups=2, shape=(128, 128, 32), zeros=True)
    eye = jnp.eye(128, dtype=jnp.bfloat16)
    found = quantized_matmul(eye, w, s, z)
    once = jnp.asarray((weights_of(w, jnp.ones_like(s), z).astype(np.float32)) * np.repeat(s, 64, 0), jnp.bfloat16)
    np.testing.assert_array_equal(found, once)


def test_numpy_operands(rng):
    args = operands(rng, "int4", groups=2, zeros=True)
    arrays = [np.asarray(x) for x in args]
    found = quantized_matmul(*arrays)
    assert isinstance(found, jax.Array)
    np.testing.assert_array_equal(found, quantized_matmul(*args))
    np.testing.assert_array_equal(found, quantized_matmul(arrays[0], arrays[1], arrays[2].astype(np.float64), args[3]))


def test_what_converts_itself(rng):
    class Parameter:
        def __init__(self, value):
            self.value = value

        def __jax_array__(self):
            return self.value

    args = operands(rng)
    np.testing.assert_array_equal(quantized_matmul(*map(Parameter, args)), quantized_matmul(*args))


def test_jit_eager_and_shapes_alone(rng):
    args = operands(rng, "int4", groups=2, zeros=True)
    np.testing.assert_array_equal(jax.jit(quantized_matmul)(*args), quantized_matmul(*args))
    out = jax.eval_shape(functools.partial(quantized_matmul, preferred_element_type="bf16"), *args)
    assert (out.shape, out.dtype) == ((3, 64), jnp.bfloat16)
    jaxpr = jax.make_jaxpr(quantized_matmul)(*args)
    assert [equation.primitive for equation in jaxpr.eqns] == [weights_p]


def test_an_eager_call_finds_its_program(rng):
    args = operands(rng)
    quantized_matmul(*args)
    before = module._product.jitted._cache_size()
    quantized_matmul(*args)
    assert module._product.jitted._cache_size() == before


# -------------------------------------------------------------------------------------------------------------- errors


def ones(*shape, dtype="bfloat16"):
    return jnp.ones(shape, dtype)


X, W, S, Z = ones(3, 8), ones(8, 16, dtype="int8"), ones(16, dtype="float32"), ones(16, dtype="int8")
ERRORS = {
    "x is a list": (([[1.0] * 8], W, S), TypeError, "x is an array, not list: jnp.asarray makes one"),
    "scales are a number": ((X, W, 1.0), TypeError, "scales is an array, not float"),
    "w is None": ((X, None, S), TypeError, "w is an array, not NoneType"),
    "x of f32": ((ones(3, 8, dtype="float32"), W, S), TypeError,
                 "x is float32[3, 8], and its dtype is bfloat16 or float16"),
    "w of f32": ((X, ones(8, 16), S), TypeError,
                 "w is bfloat16[8, 16], and its dtype is int8, int4, uint4 or float8_e4m3fn"),
    "w of uint8": ((X, W.astype("uint8"), S), TypeError, "w is uint8[8, 16]"),
    "w of e5m2": ((X, W.astype("float8_e5m2"), S), TypeError, "w is float8_e5m2[8, 16]"),
    "scales of integers": ((X, W, Z), TypeError,
                           "scales is int8[16], and its dtype is float32, bfloat16 or float16"),
    "zeros of floats": ((X, W, S, S), TypeError,
                        "zeros is float32[16], and its dtype is int8, uint8, int4 or uint4"),
    "zeros of int32": ((X, W, S, Z.astype("int32")), TypeError, "zeros is int32[16]"),
    "x has no dimension": ((ones(), W, S), ValueError, "x is bfloat16[], and it has a dimension at least, K"),
    "w of rank 1": ((X, W[0], S), ValueError, "w is int8[16], and it is (K, N)"),
    "w of rank 3": ((X, W[None], S), ValueError, "w is int8[1, 8, 16], and it is (K, N)"),
    "other k": ((ones(3, 9), W, S), ValueError,
                "x is bfloat16[3, 9] and w is int8[8, 16]: the last dimension of x and the first of w differ, 9 != 8"),
    "scales of other columns": ((X, W, S[:8]), ValueError,
                                "scales is float32[8], and with w is int8[8, 16] it is (N,) or (G, N), N = 16"),
    "scales of rank 3": ((X, W, S[None, None]), ValueError, "scales is float32[1, 1, 16], and with w is"),
    "scales of rank 0": ((X, W, S[0]), ValueError, "scales is float32[], and with w is"),
    "groups that do not divide k": ((X, W, ones(3, 16, dtype="float32")), ValueError,
                                    "scales is float32[3, 16], and w is int8[8, 16]: rows of w are cut into G = 3 "
                                    "equal groups, one at least, and G divides K = 8"),
    "no groups": ((X, W, ones(0, 16, dtype="float32")), ValueError, "cut into G = 0 equal groups"),
    "zeros of another shape": ((X, W, S, Z[None]), ValueError,
                               "zeros is int8[1, 16] and scales is float32[16]: they have one shape"),
    "zeros of float8 weights": ((X, W.astype("float8_e4m3fn"), S, Z), ValueError, "float8 weights have no zeros"),
}  # fmt: skip


@pytest.mark.parametrize("what", ERRORS)
def test_operands_are_checked(what):
    args, error, message = ERRORS[what]
    for call in (quantized_matmul, functools.partial(quantized_matmul, implementation="xla")):
        with pytest.raises(error) as raised:
            call(*args)
        assert str(raised.value).startswith("quantized_matmul: ")
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"implementation": "cublas"}, ValueError, "implementation is None, 'moye' or 'xla', not 'cublas'"),
        ({"interpret": 3}, TypeError, "interpret"),
        ({"preferred_element_type": "f17"}, TypeError, "f17"),
        ({"preferred_element_type": "float16"}, TypeError, "is bfloat16, x's, or float32, not float16"),
        ({"preferred_element_type": "int32"}, TypeError, "is bfloat16, x's, or float32, not int32"),
        ({"config": 3}, TypeError, "config is the name of a compiled kernel"),
        ({"config": "nope"}, ValueError, "no compiled kernel is named 'nope'"),
        ({"implementation": "xla", "interpret": True}, ValueError, "implementation='xla' asks for none"),
    ],
    ids=str,
)
def test_options_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        quantized_matmul(X, W, S, **options)


def test_no_result_is_float64():
    with jax.enable_x64(True), pytest.raises(TypeError, match="is bfloat16, x's, or float32, not float64"):
        quantized_matmul(X, W, S, preferred_element_type="float64")


def test_the_signature():
    parameters = list(inspect.signature(quantized_matmul).parameters.values())
    assert [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD] == ["x", "w", "scales", "zeros"]
    options = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY]
    assert options == ["preferred_element_type", "config", "implementation", "interpret"]


# ------------------------------------------------------------------------------------------------- who computes what


def test_the_call_of_the_emulator(rng, fake_rows):
    args = operands(rng, "int4", shape=(2, 3, 512, 256), groups=4, zeros=True)
    text = lowered_text(functools.partial(quantized_matmul, **KERNEL), *args, platform="cpu")
    (call,) = weights_calls(functools.partial(quantized_matmul, **KERNEL), *args)
    assert (call.config, call.sizes, call.group, call.parts) == (fake_row().name, (6, 256, 512), 128, 4)
    assert (call.mode, call.seed, call.detect_races) == ("lazy", 0, True)
    assert call.attributes.keys() == {"config", "sizes", "group", "parts", "mode", "seed", "detect_races"}
    assert call.operands[1:] == ("%arg1", "%arg2", "%arg3")
    assert "stablehlo.convert" not in text
    types = "(tensor<6x512xbf16>, tensor<512x256xi4>, tensor<4x256xf32>, tensor<4x256xi8>) -> tensor<6x256xbf16>"
    assert types in text


@pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU: tests/gpu runs the programs")
@pytest.mark.parametrize("w", RANGES)
def test_the_call_of_a_gpu(rng, fake_rows, w):
    x, w, scales = operands(rng, w, "float16", shape=(20, 4096, 4096), scales="bfloat16")
    fun = functools.partial(quantized_matmul, implementation="moye", preferred_element_type="float32")
    with jax_moye.cuda_target(90):
        text = lowered_text(fun, x, w, scales[0])
        (call,) = weights_calls(fun, x, w, scales[0], platform="cuda")
    row = fake_row("f16", SHORT[str(w.dtype)], 32)
    parts = 6 if SHORT[str(w.dtype)] == "s4" else 3
    assert (call.config, call.sizes, call.group, call.parts) == (row.name, (20, 4096, 4096), 4096, parts)
    assert call.attributes.keys() == {"config", "sizes", "group", "parts"}, "the others are the emulator's"
    element = {"int8": "i8", "int4": "i4", "uint4": "ui4", "float8_e4m3fn": "f8E4M3FN"}[str(w.dtype)]
    types = f"(tensor<20x4096xf16>, tensor<4096x4096x{element}>, tensor<1x4096xbf16>) -> tensor<20x4096xf32>"
    assert types in text
    with jax_moye.cuda_target(80), pytest.raises(NotImplementedError, match="was built for this GPU"):
        lowered_text(fun, x, w, scales)


def test_a_named_config(rng, fake_rows):
    args, row = operands(rng, "int8"), fake_row(w="s8", m=64)
    for config in (row, row.name):
        (call,) = weights_calls(functools.partial(quantized_matmul, config=config, interpret=True), *args)
        assert call.config == row.name
    with pytest.raises(ValueError, match="its operands are bf16xs4, these are bf16xs8"):
        quantized_matmul(*args, config=fake_row().name, interpret=True)
    ordinary = jax_moye.configs()[0].name
    with pytest.raises(ValueError, match="it computes no products with weights"):
        quantized_matmul(*args, config=ordinary, interpret=True)


def test_zeros_are_int8_for_the_kernel(rng, fake_rows):
    x, w, scales, zeros = operands(rng, "uint4", shape=(3, 128, 64), zeros=True)
    fun = functools.partial(quantized_matmul, **KERNEL)
    text = lowered_text(fun, x, w, scales, zeros.astype("uint4"), platform="cpu")
    assert "(tensor<1x64xui4>) -> tensor<1x64xi8>" in text
    assert len(weights_calls(fun, x, w, scales, zeros.astype("uint4"))) == 1


@pytest.mark.parametrize(
    ("shape", "groups", "options", "reason"),
    [
        ((65, 128, 64), 1, {}, "x has 65 rows, and a kernel of weights is for 64 at most"),
        ((3, 100, 64), 1, {}, "rows of x have 100 elements"),
        ((3, 128, 40), 1, {}, "rows of w have 40 weights"),
        ((3, 128, 64), 4, {}, "groups have 32 rows of w"),
        ((3, 128, 64), 1, {"interpret": False}, "only with interpret=True"),
    ],
    ids=str,
)
def test_what_no_kernel_serves(rng, fake_rows, caplog, shape, groups, options, reason):
    """A product by dequantized weights, of one of our kernels where the emulator is asked for; the log says why."""
    args = operands(rng, "int4", shape=shape, groups=groups)
    fun = functools.partial(quantized_matmul, **{"interpret": True} | options)
    say_once.cache_clear()
    with caplog.at_level(logging.INFO, "jax_moye"):
        text = lowered_text(fun, *args, platform="cpu")
    assert ffi.WEIGHTS_TARGET not in text
    assert (f"@{TARGET}" in text) == (options == {})
    assert [r for r in caplog.records if "by dequantized weights" in r.message and reason in r.message]
    assert_close(fun(*args), *args)
    insisting = functools.partial(fun, implementation="moye")
    if shape[0] == 65:  # it can, and is asked to
        assert len(weights_calls(insisting, *args)) == 1
        return
    with pytest.raises(NotImplementedError, match=reason):
        lowered_text(insisting, *args, platform="cpu")


def test_implementation_xla(rng, fake_rows):
    args = operands(rng, "int4", groups=2)
    text = lowered_text(functools.partial(quantized_matmul, implementation="xla"), *args, platform="cpu")
    assert "stablehlo.dot_general" in text
    assert "custom_call" not in text


def test_a_block_of_options(rng, fake_rows):
    args = operands(rng, "int4", groups=2)
    with jax_moye.options(**KERNEL):
        assert len(weights_calls(quantized_matmul, *args)) == 1
        assert not weights_calls(functools.partial(quantized_matmul, implementation="xla"), *args)
        with pytest.raises(NotImplementedError, match="rows of x have 100 elements"):
            quantized_matmul(*operands(rng, "int4", shape=(3, 100, 64)))
    assert not weights_calls(quantized_matmul, *args)
    calls = []
    with jax_moye.options(batch_invariant=True, interpret=True):
        for m in (1, 20, 200):
            calls += weights_calls(quantized_matmul, *operands(rng, "int4", shape=(m, 1024, 256)))
    assert len({(call.config, call.parts) for call in calls}) == 1
    assert len(calls) == 3


def test_batch_invariance_of_dequantized_weights(rng):
    """The promise is that of the product that stands for it."""
    x, w, scales = operands(rng, "int4", shape=(5, 100, 40))
    with jax_moye.options(batch_invariant=True, interpret=True):
        many, one = quantized_matmul(x, w, scales), quantized_matmul(x[:1], w, scales)
    np.testing.assert_array_equal(many[:1], one)
    with jax_moye.options(batch_invariant=True), pytest.raises(NotImplementedError, match="batch_invariant=True"):
        quantized_matmul(x, w, scales)


@pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU: tests/gpu runs the programs")
def test_a_program_of_two_platforms(rng, fake_rows):
    args = operands(rng, "int4", groups=2)
    fun = functools.partial(quantized_matmul, config=fake_row().name)
    text = jax.jit(fun).trace(*args).lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert text.count(f"@{ffi.WEIGHTS_TARGET}") == 1
    assert "stablehlo.case" in text
    with pytest.raises(NotImplementedError, match="emulator on the CPU, and this program is for cuda"):
        lowered_text(functools.partial(quantized_matmul, **KERNEL), *args)


# --------------------------------------------------------------------------------------------------------- the kernels

ROWS = weights_configs()
needs_rows = pytest.mark.skipif(not ROWS, reason="no row of sm90_weights is in this build")
X_OF = {"bf16": "bfloat16", "f16": "float16"}


def dtypes_of(row):
    """(x, w) of a row, one pair for each dtype of weights."""
    x, _, w = row.dtype.partition("x")
    return [(X_OF[x], name) for name, short in SHORT.items() if short == w]


@needs_rows
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_config_is_reached(rng, row):
    for x, w in dtypes_of(row):
        m, n, k = row.tile[0] + 3, row.tile[1] + 32, 3 * row.tile[2]
        for groups, zeros in ((1, False), (3, False), (3, w in INTEGERS)):
            args = operands(rng, w, x, shape=(m, k, n), groups=groups, zeros=zeros)
            fun = functools.partial(quantized_matmul, config=row, interpret=True, preferred_element_type="f32")
            assert [call.config for call in weights_calls(fun, *args)] == [row.name]
            assert_close(fun(*args), *args, is_rounded=False)


@needs_rows
@pytest.mark.parametrize("shape", [(1, 8, 32), (5, 136, 96), (17, 1024, 288), (2, 3, 128, 64)], ids=str)
def test_kernels_and_shapes(rng, shape):
    for w in SHORT:
        for groups in (1, 2)[: 1 + (shape[-2] % 128 == 0)]:
            args = operands(rng, w, shape=shape, groups=groups, zeros=w in INTEGERS)
            found = quantized_matmul(*args, **KERNEL)
            assert_close(found, *args, is_rounded=False)


@needs_rows
def test_kernels_and_dtypes_of_scales(rng):
    for scales in ("float32", "bfloat16", "float16"):
        args = operands(rng, "int8", groups=2, scales=scales)
        assert_close(quantized_matmul(*args, **KERNEL), *args, is_rounded=False)


def test_whole_programs_leave_it_as_it_is(rng, fake_rows):
    x, w, scales = operands(rng, "int4", groups=2)
    layer = lambda x, w, s: jax.nn.relu(quantized_matmul(x, w, s, **KERNEL)) + 1  # noqa: E731
    for fun in (jax_moye.optimize(layer), layer):
        with jax_moye.intercept():
            assert len(weights_calls(fun, x, w, scales)) == 1
