"""Bad input: a clear error of the right class, or XLA's answer; never a crash or a wrong number."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.support import TARGET, kernel_calls

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._primitives.contraction import contract

A, B = np.ones((3, 4), np.float32), np.ones((4, 5), np.float32)
interpreted = functools.partial(jax_moye.matmul, interpret=True)
insisting = functools.partial(jax_moye.matmul, implementation="moye", interpret=True)
A16 = "sm80_multistage_bf16_64x64x64_s3_a16"


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "message"),
    [
        ((), (3,), r"shape \(\) .* at least one dimension"),
        ((3,), (), "at least one dimension"),
        ((2, 3, 4), (3, 4, 5), "leading dimensions 2 and 3 neither agree nor broadcast"),
        ((2, 1, 3, 4), (3, 7, 4, 5), "leading dimensions 2 and 3"),
        ((0, 3, 4), (2, 4, 5), "leading dimensions 0 and 2"),
    ],
)
def test_shapes_that_do_not_fit(a_shape, b_shape, message):
    for fun in (jax_moye.matmul, jax.jit(interpreted), jax.grad(lambda a, b: interpreted(a, b).sum())):
        with pytest.raises(ValueError, match=message):
            fun(jnp.zeros(a_shape), jnp.zeros(b_shape))


@pytest.mark.parametrize(
    ("a_shape", "b_shape", "message"),
    [
        ((3, 4), (5, 6), r"\(3, 4\) and b has shape \(5, 6\): .* 4 != 5"),
        ((3,), (4,), "3 != 4"),
        ((3, 4), (3,), "4 != 3"),
    ],
)
def test_contracted_dimensions_that_differ(a_shape, b_shape, message):
    """A TypeError, as jnp.matmul's, and no class of our own."""
    for fun in (jax_moye.matmul, jax.jit(interpreted), jax.grad(lambda a, b: interpreted(a, b).sum())):
        with pytest.raises(TypeError, match=message) as error:
            fun(jnp.zeros(a_shape), jnp.zeros(b_shape))
        assert error.type is TypeError
    with pytest.raises(TypeError):
        jnp.matmul(jnp.zeros(a_shape), jnp.zeros(b_shape))


def test_numbers_have_no_dimension():
    for operands in ((3.0, B), (A, True), (2, 3j)):
        for fun in (jax_moye.matmul, jnp.matmul):
            with pytest.raises(ValueError, match="at least"):
                fun(*operands)


BAD = {
    "a": ["ab", None, 3.0, [[1.0] * 4] * 3, np.ones(()), np.ones((3, 7)), np.ones((2, 3, 4))],
    "b": [None, np.ones((5, 5)), np.ones((3, 4, 5))],
    "precision": ["sharp", 7, ("high",), ["high", "high"]],
    "preferred_element_type": ["float33", 7],
    "out_sharding": ["x", jax.sharding.PartitionSpec("x")],
}


@pytest.mark.parametrize("names", [*itertools.combinations(BAD, 1), *itertools.combinations(BAD, 2)], ids="-".join)
def test_of_two_bad_arguments_the_error_is_about_the_one_that_jax_means(names):
    """By its class. A list is no precision of jnp.matmul whatever else is wrong: it cannot be a key of jit's cache."""
    for values in itertools.product(*(BAD[name] for name in names)):
        changes = dict(zip(names, values, strict=True))
        if len(names) == 2 and ["high", "high"] in [value for value in values if type(value) is list]:
            continue
        a, b = changes.pop("a", A), changes.pop("b", B)
        errors = []
        for fun in (jnp.matmul, jax_moye.matmul):
            try:
                fun(a, b, **changes)
            except (TypeError, ValueError) as error:
                errors.append(type(error))
        if errors:
            assert errors == errors[:1] * 2, (names, values)


@pytest.mark.parametrize("a", [[[1.0, 2.0]], None, "ab", (A, A), {"a": A}], ids=repr)
def test_what_is_no_array(a):
    with pytest.raises(TypeError, match="a is an array, not"):
        jax_moye.matmul(a, B)
    with pytest.raises(TypeError, match="b is an array, not"):
        jax_moye.matmul(B, a)


@pytest.mark.parametrize("x", [[["a"]], [[object()]], np.zeros((1, 1), "M8[s]"), np.zeros((1, 1), [("x", "f4")])])
def test_dtypes_jax_does_not_have(x):
    x, y = np.array(x), np.ones((1, 1), np.float32)
    for fun in (jax_moye.matmul, jax_moye.linear, jax_moye.scaled_matmul, jax_moye.quantized_matmul):
        name = next(iter(inspect.signature(fun).parameters))
        others = (y,) * (sum(one.default is one.empty for one in inspect.signature(fun).parameters.values()) - 1)
        with pytest.raises(TypeError, match=f"{fun.__name__}: {name} is an array of numbers, not "):
            fun(x, *others)


def test_keys_are_no_numbers():
    keys = jax.random.split(jax.random.key(0), 5)
    with pytest.raises(TypeError, match="linear: bias is key<fry> and the result is float32"):
        jax_moye.linear(A, B, keys)


def test_what_is_no_function_or_no_bool():
    for fun in (3, None, A):
        with pytest.raises(TypeError, match="optimize: fun is a function, not "):
            jax_moye.optimize(fun)
    with pytest.raises(TypeError, match="intercept: optimize is a bool, not 'yes'"), jax_moye.intercept(optimize="yes"):
        pass


@pytest.mark.parametrize(
    ("option", "value", "error", "message"),
    [
        (
            "config",
            "sm80_multistage_bf16_128x128x32_s4",
            ValueError,
            "close names are sm80_multistage_bf16_128x128x32_s4_a16",
        ),
        ("config", "?", ValueError, r"no compiled kernel is named '\?'; jax_moye.configs\(\) lists the names"),
        ("config", 3, TypeError, "config is the name of a compiled kernel or a config"),
        ("implementation", "cuda", ValueError, "implementation is None, 'moye' or 'xla', not 'cuda'"),
        ("interpret", "yes", TypeError, "interpret is None, a bool or a jax_moye.InterpretParams, not 'yes'"),
        ("interpret", 1, TypeError, "interpret is None, a bool"),
        ("precision", "sharp", ValueError, "precision is None, .* not 'sharp'"),
        ("precision", 7, ValueError, "not 7"),
        ("precision", ("high",), ValueError, "precision"),
        ("precision", ["high", "high"], ValueError, r"precision is None, .* not \['high', 'high'\]"),
        (
            "preferred_element_type",
            "float33",
            TypeError,
            "matmul: preferred_element_type: no dtype is named 'float33'; close names are float32",
        ),
        ("preferred_element_type", 7, TypeError, "matmul: preferred_element_type: .*7"),
        ("out_sharding", "x", TypeError, "out_sharding is None, a jax.P or a jax.NamedSharding, not 'x'"),
        ("out_sharding", jax.sharding.PartitionSpec("x"), ValueError, "needs a mesh"),
    ],
)
def test_options(option, value, error, message):
    for fun in (jax_moye.matmul, jax.jit(functools.partial(jax_moye.matmul, **{option: value}))):
        with pytest.raises(error, match=message):
            fun(A, B, **({} if fun is not jax_moye.matmul else {option: value}))


def test_options_that_contradict_each_other():
    with pytest.raises(ValueError, match="implementation='xla' asks for none"):
        jax_moye.matmul(A, B, implementation="xla", interpret=True)
    with pytest.raises(ValueError, match="implementation='xla' asks for none"):
        jax_moye.matmul(A, B, implementation="xla", config=A16)


@pytest.mark.parametrize("option", ["config", "implementation", "interpret", "precision", "preferred_element_type"])
def test_traced_options(option):
    with pytest.raises(TypeError, match=f"{option} is part of the program and cannot be a traced value"):
        jax.jit(lambda x: jax_moye.matmul(A, B, **{option: x}))(1)


def test_traced_sizes():
    with pytest.raises(TypeError, match=r"Shapes must be 1D sequences of concrete values|traced"):
        jax.jit(lambda n: interpreted(jnp.zeros((n, 4)), B))(3)


@pytest.mark.parametrize("dtype", ["int16", "int32", "uint8", "uint16", "bool", "complex64", "float8_e4m3fnuz"])
def test_dtypes_no_kernel_takes(dtype):
    a = jnp.ones((4, 4), dtype)
    assert kernel_calls(interpreted, a, a) == 0
    np.testing.assert_array_equal(interpreted(a, a), jnp.matmul(a, a))
    with pytest.raises(NotImplementedError) as error:
        insisting(a, a)
    message = str(error.value)
    assert f"no kernel multiplies {dtype} by {dtype} into {dtype}" in message
    for served in ("bf16 operands with a result of", "f16 operands", "f32 operands", "f64 operands"):
        assert served in message


def test_precision_no_kernel_has():
    algorithm = lax.DotAlgorithm(np.float32, np.float32, np.float32)
    with pytest.raises(NotImplementedError, match="DotAlgorithm is XLA's to interpret"):
        insisting(A, B, precision=algorithm)
    with pytest.raises(NotImplementedError, match=r"no kernel computes DotAlgorithmPreset\.F16_F16_F32 on f32"):
        insisting(A, B, precision="F16_F16_F32")
    with pytest.raises(NotImplementedError, match="ANY_F8_ANY_F8_F32"):
        insisting(A, B, precision="ANY_F8_ANY_F8_F32")


def test_moye_on_a_cpu_without_the_emulator():
    with pytest.raises(NotImplementedError, match="for cpu, where our kernels run only with interpret=True"):
        jax_moye.matmul(A, B, implementation="moye")


@pytest.mark.parametrize("fun", [jax_moye.matmul, jax_moye.linear, functools.partial(jax_moye.einsum, "mk,kn")])
def test_a_refusal_is_one_short_message(fun):
    """The platform first, no list of what is served elsewhere, and no chain of tracebacks behind the caller's line."""
    with pytest.raises(NotImplementedError) as error:
        fun(A, B, implementation="moye")
    message = str(error.value)
    assert message.startswith("the program is for cpu")
    assert "\n" not in message
    assert len(message) < 250
    assert error.value.__cause__ is None
    assert error.value.__suppress_context__
    frames = [str(frame.path) for frame in error.traceback]
    assert len(frames) < 6
    assert not any("_primitives" in frame for frame in frames)


def test_a_config_that_cannot_serve_says_why():
    bf16 = lambda *shape: jnp.ones(shape, jnp.bfloat16)  # noqa: E731
    for operands, reason in [
        ((A, B), "its operands are bf16, these are f32"),
        ((bf16(3, 17), bf16(17, 16)), r"loads 16 bytes at a time, .* strides \(0, 17, 1\) .* aligned to 2"),
        ((bf16(3, 16), bf16(16, 17)), "aligned to 2"),
        ((bf16(3, 12), bf16(12, 16)), "aligned to 8"),
    ]:
        for interpret in (True, None):
            with pytest.raises(ValueError, match=reason):
                jax_moye.matmul(*operands, config=A16, interpret=interpret)
    with pytest.raises(ValueError, match=A16):
        jax.jit(functools.partial(jax_moye.matmul, config=A16))(A, B)


def test_sizes_over_int32():
    # Nothing is allocated: shapes are enough to lower.
    wide = jax.ShapeDtypeStruct((2**31, 8), jnp.bfloat16), jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)
    tiles = jax.ShapeDtypeStruct((2**30, 8), jnp.bfloat16), jax.ShapeDtypeStruct((8, 2**20), jnp.bfloat16)
    for operands, message in ((wide, "2147483648 elements is over"), (tiles, "more than 2\\^31 - 1 tiles")):
        with pytest.raises(NotImplementedError, match=message):
            jax.jit(insisting).lower(*operands)
        assert TARGET not in jax.jit(interpreted).lower(*operands).as_text()


def test_specifications():
    bind = functools.partial(
        contract,
        out_dtype=np.float32,
        precision=None,
        out_sharding=None,
        config=None,
        implementation=None,
        interpret=None,
    )
    for spec in ("mk,kn", "mk->m", "mmk,kn->mn", "mk,kn->mnx", "mk,kn->m", "mk kn->mn"):
        with pytest.raises(ValueError, match="is no contraction"):
            bind(spec, A, B)
    with pytest.raises(ValueError, match="does not fit the shapes"):
        bind("bmk,kn->bmn", A, B)
    with pytest.raises(TypeError, match="contracting dimensions"):
        bind("mk,kn->mn", A, A)


# ------------------------------------------------------------------------ custom calls that do not fit their buffers

CALL = dict(
    config=A16,
    sizes=(1, 16, 24, 32),
    a_strides=(0, 32, 1),
    b_strides=(0, 1, 24),
    d_strides=(0, 24, 1),
    mode="lazy",
    seed=0,
    detect_races=True,
)


def edited_call(a=None, b=None, out=((16, 24), "bfloat16"), workspace=0, drop=(), **changes):
    """Runs the custom call of a (16, 32) by (32, 24) product with some of its attributes changed."""
    ffi.register("cpu")
    a = jnp.ones((16, 32), jnp.bfloat16) if a is None else a
    b = jnp.ones((32, 24), jnp.bfloat16) if b is None else b
    attributes = {key: value for key, value in (CALL | changes).items() if key not in drop}
    attributes = {
        key: np.array(value, np.int64) if isinstance(value, tuple) else np.int64(value) if type(value) is int else value
        for key, value in attributes.items()
    }
    results = jax.ShapeDtypeStruct(*out), jax.ShapeDtypeStruct((workspace,), jnp.uint8)
    call = jax.ffi.ffi_call(TARGET, results)
    return jax.block_until_ready(jax.jit(lambda a, b: call(a, b, **attributes)[0])(a, b))


def test_the_unedited_call_runs():
    np.testing.assert_array_equal(edited_call(), np.full((16, 24), 32, np.float32))


BIG = 2**62
EDITS = {
    "unknown config": (dict(config="sm80_multistage_bf16_1x1x1_s1_a1"), "no compiled GEMM has this name"),
    "empty config": (dict(config=""), "no compiled GEMM has this name"),
    "config of another dtype": (dict(config="sm80_multistage_f16_64x64x64_s3_a16"), "operands are bf16 and bf16"),
    "three sizes": (dict(sizes=(1, 16, 24)), "four to six sizes are needed"),
    "no sizes": (dict(sizes=()), "four to six sizes are needed"),
    "two strides": (dict(a_strides=(32, 1)), "three strides of each operand"),
    "negative size": (dict(sizes=(1, -16, 24, 32)), "sizes lie between 0 and"),
    "size over int32": (dict(sizes=(1, 16, 24, 2**31)), "sizes lie between 0 and"),
    "negative stride": (dict(b_strides=(0, 1, -24)), "are negative"),
    "m too large": (dict(sizes=(1, 17, 24, 32)), "a has 512 elements, and its strides reach beyond them"),
    "k too large": (dict(sizes=(1, 16, 24, 40)), "a has 512 elements"),
    "n too large": (dict(sizes=(1, 16, 25, 32)), "b has 768 elements"),
    "a batch that is not there": (dict(sizes=(2, 16, 24, 32), a_strides=(512, 32, 1)), "a has 512 elements"),
    "stride too large": (dict(a_strides=(0, 40, 1)), "a has 512 elements"),
    "overflowing stride": (dict(a_strides=(0, BIG, 1)), "a has 512 elements"),
    "overflowing sum": (dict(sizes=(2, 2, 24, 2), a_strides=(BIG, BIG, BIG)), "a has 512 elements"),
    "d too large": (dict(d_strides=(0, 32, 1)), "d has 384 elements"),
    "d overlaps itself": (dict(d_strides=(0, 1, 1)), "write each of its elements exactly once"),
    "d on one element": (dict(d_strides=(0, 0, 0)), "write each of its elements exactly once"),
    "d not covered": (dict(sizes=(1, 15, 24, 32)), "write each of its elements exactly once"),
    "nothing to write": (dict(sizes=(0, 16, 24, 32)), "write each of its elements exactly once"),
    "misaligned strides": (dict(a_strides=(0, 31, 1)), "a has strides that 16 bytes do not divide"),
    "no room to pack": (
        dict(config="sm90_cooperative_bf16_128x128x64_s5_a2", a_strides=(0, 31, 1)),
        "a workspace of 1024 bytes is needed, not 0",
    ),
    "no stride of 1": (dict(sizes=(1, 16, 24, 8), a_strides=(0, 32, 2)), "a has no mode of stride 1"),
    "unknown mode": (dict(mode="quick"), "mode is eager, lazy or random, not quick"),
    "attribute missing": (dict(drop=("a_strides",)), "Wrong number of attributes"),
    "one attribute more": (dict(alpha=2), "Wrong number of attributes"),
    "attribute of another type": (dict(config=3), "expected string but got scalar"),
    "attribute of another width": (dict(sizes=np.array([1, 16, 24, 32], np.int32)), "expected S64 but got S32"),
    "result of a dtype not written": (dict(out=((16, 24), "int32")), "the kernel does not write s32"),
    "result smaller": (dict(out=((16, 23), "bfloat16")), "d has 368 elements"),
    "result larger": (dict(out=((17, 24), "bfloat16")), "write each of its elements exactly once"),
    "operand of another dtype": (dict(a=np.ones((16, 32), np.float32)), "operands are f32 and bf16"),
    "operand of int8": (dict(b=np.ones((32, 24), np.int8)), "operands are bf16 and s8"),
    "operand of no dtype of ours": (dict(b=np.ones((32, 24), np.int16)), "bf16, f16, f32, f64, s8, s32, e4m3 or e5m2"),
    "operand smaller": (dict(a=jnp.ones((15, 32), jnp.bfloat16)), "a has 480 elements"),
    "operand empty": (dict(b=jnp.ones((0, 24), jnp.bfloat16)), "b has 0 elements"),
    "operand a scalar": (dict(a=jnp.ones((), jnp.bfloat16)), "a has 1 elements"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_call_gets_an_error(edit):
    changes, message = EDITS[edit]
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        edited_call(**changes)
    text = str(error.value)
    assert message in text, text
    assert "INVALID_ARGUMENT" in text
    if "Wrong number" not in message and "expected" not in message:  # those are XLA's words
        assert "jax_moye: " in text
        assert "sizes (batch, m, n, k) = (" in text
