"""What each precision buys: which kernel it chooses for a GPU, and the class of its errors in the emulator."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.support import FUSED_TARGET, TARGET, lowered_text

import jax_moye
from jax_moye._kernels.dtypes import MULTIPLIED_AS
from jax_moye._primitives.contraction import contract
from jax_moye._selection.cost import predicted_split_us, predicted_us
from jax_moye._selection.precision import may_be_tf32
from jax_moye._selection.problem import make_problem
from jax_moye._selection.ranking import select

CONFIGS = jax_moye.configs()
TF32_ROW = "sm80_multistage_tf32_64x64x32_s3_a4"

needs_tf32 = pytest.mark.skipif(
    not any(row.name == TF32_ROW for row in CONFIGS), reason=f"this build has no {TF32_ROW}"
)

# ------------------------------------------------------------------------------------------------- who computes on CUDA

LEVELS = (None, "default", "high", "highest", ("default", "highest"))
OF_ALL = dict.fromkeys((*LEVELS, "DEFAULT"))
# (dtype of the operands, precision) -> (who computes by default, who where implementation="moye" insists), each a row's
# dtype and accumulator, and how many launches, "xla", or an error. What is not here XLA computes, and insisting raises.
KERNELS: dict[str, dict] = {
    "bfloat16": dict.fromkeys((*OF_ALL, "BF16_BF16_BF16", "BF16_BF16_F32"), ("bf16 f32", "bf16 f32")),
    "float16": dict.fromkeys((*OF_ALL, "F16_F16_F32"), ("f16 f32", "f16 f32"))
    | {"F16_F16_F16": ("f16 f16", "f16 f16")},
    "float32": {
        **dict.fromkeys((None, "default", "DEFAULT", "TF32_TF32_F32"), ("tf32 f32", "tf32 f32")),
        **dict.fromkeys(("high", "TF32_TF32_F32_X3"), ("3 x tf32 f32", "3 x tf32 f32")),
        # f32 as six products of bfloat16 parts is faster here than fused multiply-adds.
        **dict.fromkeys(("highest", "F32_F32_F32", "BF16_BF16_F32_X6"), ("bf16x6 f32", "bf16x6 f32")),
        **{f"BF16_BF16_F32_X{n}": (f"bf16x{n} f32", f"bf16x{n} f32") for n in (3, 9)},
        **dict.fromkeys((("default", "highest"), "BF16_BF16_BF16", "BF16_BF16_F32"), ("xla", "bf16x6 f32")),
    },
    "float64": dict.fromkeys((*OF_ALL, "F64_F64_F64"), ("f64 f64", "f64 f64")),
    "int8": dict.fromkeys(OF_ALL, ("s8 s32", "s8 s32")),
    "float8_e4m3fn": dict.fromkeys((None, "default", "DEFAULT"), ("e4m3 f32", "e4m3 f32"))
    | {"ANY_F8_ANY_F8_F32_FAST_ACCUM": ("e4m3 f32_fast", "e4m3 f32_fast")},
    "float8_e5m2": dict.fromkeys((None, "default", "DEFAULT"), ("e5m2 f32", "e5m2 f32"))
    | {"ANY_F8_ANY_F8_F32_FAST_ACCUM": ("e5m2 f32_fast", "e5m2 f32_fast")},
    "int16": {},
    "complex64": {},
}


def launches(text: str) -> list[str]:
    """The config of each of our custom calls."""
    names = re.findall(r'\bconfig = "([^"]*)"', text)
    assert len(names) == text.count(f"@{TARGET}(") + text.count(f"@{FUSED_TARGET}("), text
    return names


def is_exact(name: str) -> bool:
    """Whether a config multiplies f32 as precisely as fused multiply-adds do."""
    return any(f"_{dtype}_" in name for dtype in MULTIPLIED_AS["f32"])


@pytest.mark.parametrize("precision", KERNELS["float32"], ids=str)
def test_tf32_is_the_default_of_gpus(precision):
    """Once, and not in three products; elsewhere a program has to ask for it."""
    is_preset = isinstance(precision, str) and precision.isupper()
    given = lax.DotAlgorithmPreset[precision] if is_preset else canonical(precision)
    assert may_be_tf32(given, "cuda") == (KERNELS["float32"][precision][0] == "tf32 f32")
    assert may_be_tf32(given, "cpu") == (precision == "TF32_TF32_F32")


def canonical(precision):
    """As a dot_general has it."""
    jaxpr = jax.make_jaxpr(lambda x: jnp.matmul(x, x, precision=precision))(jnp.ones((4, 4)))
    return jaxpr.eqns[0].params["precision"]


def who_computes(dtype, precision, implementation, size=4096) -> str:
    a = jax.ShapeDtypeStruct((size, size), dtype)
    fun = functools.partial(jax_moye.matmul, precision=precision, implementation=implementation)
    try:
        text = lowered_text(fun, a, a)
    except (NotImplementedError, ValueError) as error:
        return type(error).__name__
    names = launches(text)
    if not names:
        assert "stablehlo.dot_general" in text
        return "xla"
    (name,) = set(names)
    (row,) = [row for row in CONFIGS if row.name == name]
    return (f"{len(names)} x " if len(names) > 1 else "") + f"{row.dtype} {row.accumulator}"


@pytest.mark.parametrize("dtype", KERNELS)
def test_every_precision_of_jax(kernels_are_there, dtype):
    served = KERNELS[dtype]
    presets = [preset.name for preset in lax.DotAlgorithmPreset]
    assert set(served) <= {*LEVELS, *presets}
    with jax.enable_x64(True):
        for precision in (*LEVELS, *presets):
            default, insisted = served.get(precision, ("xla", "NotImplementedError"))
            if default == "xla" and str(precision).startswith("ANY_F8") and "float8" not in dtype:
                default = "ValueError"  # lax's own
            for expected, implementation in ((default, None), (insisted, "moye")):
                kernel = expected.removeprefix("3 x ")
                if " " in kernel and not any(f"{row.dtype} {row.accumulator}" == kernel for row in CONFIGS):
                    continue  # of another build
                actual = who_computes(dtype, precision, implementation)
                assert actual == expected, f"{dtype}, precision={precision!r}, implementation={implementation!r}"


@needs_tf32
def test_three_products_only_where_they_are_faster(kernels_are_there):
    for arch, size in itertools.product((80, 90), (8, 1024, 4096)):
        problems = [make_problem("mk,kn->mn", (size, size), (size, size), dtype, "f32") for dtype in ("tf32", "f32")]
        rows = [select(problem, arch, CONFIGS) for problem in problems]
        faster = predicted_split_us(rows[0], problems[0], arch) < predicted_us(rows[1], problems[1], arch)
        assert faster == (size == 4096 or (arch, size) == (80, 1024))
        assert rows[1].dtype == ("bf16x6" if arch == 90 and size > 8 else "f32")
        for precision in ("high", "TF32_TF32_F32_X3"):
            with jax_moye.cuda_target(arch):
                expected = "3 x tf32 f32" if faster else f"{rows[1].dtype} f32"
                assert who_computes("float32", precision, "moye", size) == expected


def test_batch_invariant_needs_a_symmetric_kernel(kernels_are_there):
    """In w @ x a kernel's a is w or x, as the result lies; what multiplies parts in pairs has other bits then."""
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    for precision, expected in (("high", "_tf32_"), ("highest", "_f32_"), ("BF16_BF16_F32_X3", "_f32_")):
        fun = functools.partial(jax_moye.matmul, precision=precision, batch_invariant=True)
        names = launches(lowered_text(fun, a, a))
        assert len(names) == (3 if precision == "high" else 1)
        assert all(expected in name for name in names)
    parts = next((row for row in CONFIGS if row.dtype == "bf16x6"), None)
    if parts is not None:
        fun = functools.partial(jax_moye.matmul, precision="highest", batch_invariant=True, config=parts)
        with pytest.raises(ValueError, match="sums in another order"):
            lowered_text(fun, a, a)


@needs_tf32
def test_three_products_add_up_where_they_are_written():
    a = jax.ShapeDtypeStruct((64, 96), jnp.float32)
    b = jax.ShapeDtypeStruct((96, 32), jnp.float32)
    fun = functools.partial(jax_moye.matmul, precision="high", config=TF32_ROW)
    text = lowered_text(fun, a, b)
    assert launches(text) == [TF32_ROW] * 3
    assert text.count(f"@{TARGET}(") == 1
    assert text.count(f"@{FUSED_TARGET}(") == 2
    assert text.count("output_operand_aliases") == 2
    assert "stablehlo.add" not in text
    assert "stablehlo.dot_general" not in text
    # A result of fewer bits is rounded once, at the end.
    narrow = lowered_text(functools.partial(fun, preferred_element_type=jnp.bfloat16), a, b)
    assert launches(narrow) == [TF32_ROW] * 3
    assert narrow.count("-> (tensor<64x32xf32>, tensor<0xui8>)") == 3


# ------------------------------------------------------------------------------------------- errors, in the emulator

UNIT = 2.0**-24  # of f32
M, N, K = 24, 16, 200


def error_of(a, b, **options) -> float:
    """The largest error over |a| |b|."""
    actual = np.asarray(jax_moye.matmul(a, b, interpret=True, **options), np.float64)
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return float((np.abs(actual - a @ b) / (np.abs(a) @ np.abs(b))).max())


def normal(rng, shape, dtype=jnp.float32):
    return jnp.asarray(rng.standard_normal(shape), dtype)


@needs_tf32
def test_classes_of_f32(rng):
    a, b = normal(rng, (M, K)), normal(rng, (K, N))
    exact = [error_of(a, b, precision=precision) for precision in (None, "high", "highest", "F32_F32_F32")]
    assert max(exact) < K * UNIT
    assert max(exact) < 2**-20
    tf32 = [error_of(a, b, precision=precision) for precision in ("TF32_TF32_F32",)]
    tf32.append(error_of(a, b, config=TF32_ROW))
    assert min(tf32) > 2**-14  # visibly: each operand is rounded
    assert max(tf32) < 2**-10
    for precision in ("high", "TF32_TF32_F32_X3"):
        error = error_of(a, b, precision=precision, config=TF32_ROW)
        assert 0 < error < (K + 6) * UNIT, "f32's class"
        assert error < 2**-20, "no small product is missing: without one it is 2^-13"
        assert error_of(a, b, precision=precision, config=TF32_ROW, preferred_element_type=jnp.bfloat16) < 2**-8
    assert error_of(a, b, precision="TF32_TF32_F32_X3", batch_invariant=True) < 2**-20


@needs_tf32
def test_three_products_of_parts_that_matter(rng):
    """Sums in which the large parts cancel: what is left are the small ones."""
    a = normal(rng, (8, 32))
    b = normal(rng, (32, 8))
    a, b = jnp.concatenate([a, -a * (1 + 2.0**-12)], 1), jnp.concatenate([b, b], 0)
    error = error_of(a, b, precision="high", config=TF32_ROW)
    assert error < 2**-20
    assert error_of(a, b, config=TF32_ROW) > 2**-15


@needs_tf32
def test_three_products_and_a_sum_to_add_to(rng):
    a, b, c = normal(rng, (M, K)), normal(rng, (K, N)), normal(rng, (M, N))
    options = dict(precision=(lax.Precision.HIGH,) * 2, out_sharding=None, config=TF32_ROW, implementation=None)
    out = contract("mk,kn->mn", a, b, c, beta=-2.0, out_dtype=c.dtype, interpret=jax_moye.InterpretParams(), **options)
    a64, b64, c64 = (np.asarray(x, np.float64) for x in (a, b, c))
    error = np.abs(np.asarray(out, np.float64) - (a64 @ b64 - 2 * c64))
    assert (error < (K + 8) * UNIT * (np.abs(a64) @ np.abs(b64) + 2 * np.abs(c64))).all()


@needs_tf32
def test_three_products_in_any_order(rng):
    """Swapped operands, a batch, transposes in front of operands: each of the three launches reads and adds alike."""
    product = functools.partial(jax_moye.matmul, precision="high", config=TF32_ROW, interpret=True)
    w, x = normal(rng, (24, 40)), normal(rng, (3, 7, 40))
    expected = np.asarray(x, np.float64) @ np.asarray(w, np.float64).T
    bound = 2**-20 * (np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(w, np.float64)).T)
    for actual in (
        jax.vmap(jax.vmap(product, (None, 0)), (None, 0))(w, x),
        product(x, w.T),
        jax.jit(lambda x_t, w: product(x_t.transpose(0, 2, 1), w.T))(x.transpose(0, 2, 1), w),
        jax.vmap(lambda x: product(w, x.T).T)(x),
    ):
        assert (np.abs(np.asarray(actual, np.float64) - expected) < bound).all()


@needs_tf32
@pytest.mark.parametrize("swap", [False, True])
def test_three_products_of_infinities_and_nan(swap):
    """What f32 gives: a part that is 0 does not turn infinity into NaN."""
    large = 3.4e38
    a = np.array([[np.inf, 1], [-np.inf, 1], [np.nan, 1], [large, 0], [np.inf, np.inf], [0, 1]], np.float32)
    b = np.array([[1, -2, 0, np.inf, 1.1, -np.inf], [1, 1, 1, 1, 1, 1]], np.float32)
    if swap:
        a, b = b.T.copy(), a.T.copy()
    with np.errstate(invalid="ignore", over="ignore"):
        expected = sum(a[:, k, None] * b[None, k] for k in range(2))
    actual = jax_moye.matmul(a, b, precision="high", config=TF32_ROW, interpret=True)
    np.testing.assert_allclose(actual, expected, rtol=2**-20)


def test_products_of_16_bit_floats_are_exact(rng):
    """Of 8 or 11 bits each, in f32: bf16 and f16 operands are not rounded, nor are sums that fit in f32."""
    for dtype, bits in ((jnp.bfloat16, 8), (jnp.float16, 11)):
        a, b = (jnp.asarray(rng.integers(2 ** (bits - 1), 2**bits, shape), dtype) for shape in ((9, 4), (4, 7)))
        exact = np.asarray(a, np.int64) @ np.asarray(b, np.int64)
        assert 2 ** (2 * bits) < exact.max() < 2**24
        actual = jax_moye.matmul(a, b, interpret=True, preferred_element_type=jnp.float32)
        np.testing.assert_array_equal(actual, exact)


def test_f16_sums_are_visibly_f16(rng):
    if not any(row.accumulator == "f16" for row in CONFIGS):
        pytest.skip("no row that sums in f16 in this build")
    a, b = normal(rng, (M, K), jnp.float16), normal(rng, (K, N), jnp.float16)
    wide = dict(preferred_element_type=jnp.float32)
    assert error_of(a, b, precision="F16_F16_F16", **wide) > 2**-14
    for precision in (None, "highest", "F16_F16_F32"):
        assert error_of(a, b, precision=precision, **wide) < K * UNIT


def test_f64_is_f64(rng):
    with jax.enable_x64(True):
        a, b = (jnp.asarray(rng.standard_normal(shape)) for shape in ((M, K), (K, N)))
        for precision in (None, "highest", "F64_F64_F64"):
            assert error_of(a, b, precision=precision) < K * 2.0**-53
        # float32 operands of a float64 result are float64 products.
        a32 = a.astype(jnp.float32)
        assert error_of(a32, b, preferred_element_type=jnp.float64) < K * 2.0**-53


@needs_tf32
def test_the_default_is_jaxs(kernels_are_there):
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    for name, exact in (("highest", True), ("float32", True), ("F32_F32_F32", True), ("default", False)):
        with jax.default_matmul_precision(name):
            (config,) = launches(lowered_text(jax_moye.matmul, a, a))
            assert is_exact(config) == exact, name
            # An argument comes first.
            assert is_exact(launches(lowered_text(lambda x: jax_moye.matmul(x, x, precision="highest"), a))[0])
    for name in ("high", "tensorfloat32", "TF32_TF32_F32_X3"):
        with jax.default_matmul_precision(name), jax_moye.cuda_target(80):
            assert len(launches(lowered_text(jax_moye.matmul, a, a))) == 3, name


@needs_tf32
def test_a_gradient_is_as_precise_as_its_product(kernels_are_there):
    a = jax.ShapeDtypeStruct((4096, 4096), jnp.float32)
    for precision, of_one in ((None, 1), ("high", 3), ("highest", 1)):
        fun = functools.partial(jax_moye.matmul, precision=precision)
        with jax_moye.cuda_target(80):
            names = launches(lowered_text(lambda a, b, t, fun=fun: jax.vjp(fun, a, b)[1](t), a, a, a))
        assert len(names) == 2 * of_one
        assert all(is_exact(name) == (precision == "highest") for name in names)
