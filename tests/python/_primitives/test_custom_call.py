"""The target jax_moye_fused_gemm_v1: what XLA hands it, and what an edited program gets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import FUSED_TARGET, to_attribute

import jax_moye
from jax_moye._kernels import ffi

A16 = "sm80_multistage_bf16_64x64x64_s3_a16"
M, N, K = 16, 24, 32
ROW_MAJOR = (0, N, 1)
CALL = dict(
    activation="none",
    alpha=1.0,
    beta=0.0,
    operands="",
    config=A16,
    sizes=(1, M, N, K),
    a_strides=(0, K, 1),
    b_strides=(0, 1, N),
    d_strides=ROW_MAJOR,
    c_strides=(0, 0, 0),
    bias_strides=(0, 0, 0),
    residual_strides=(0, 0, 0),
    mode="lazy",
    seed=0,
    detect_races=True,
)


def fused(*extra, a=None, b=None, out="float32", results=(), aliases=None, drop=(), target=FUSED_TARGET, **changes):
    """The custom call on a (16, 32) and a (32, 24) of ones and twos, and `extra` operands: d and the other results."""
    ffi.register("cpu")
    a = jnp.ones((M, K), jnp.bfloat16) if a is None else a
    b = jnp.full((K, N), 2, jnp.bfloat16) if b is None else b
    attributes = {key: to_attribute(value) for key, value in (CALL | changes).items() if key not in drop}
    shapes = [jax.ShapeDtypeStruct((M, N), out), jax.ShapeDtypeStruct((0,), jnp.uint8)]
    shapes += [jax.ShapeDtypeStruct(*result) for result in results]
    call = jax.ffi.ffi_call(target, shapes, input_output_aliases=aliases)
    d, _, *others = jax.block_until_ready(jax.jit(lambda *operands: call(*operands, **attributes))(a, b, *extra))
    return d, *others


def random(rng, shape, dtype=np.float32):
    return jnp.asarray(rng.integers(-60, 61, shape), dtype)


PRODUCT = np.full((M, N), 2.0 * K)


def test_nothing_but_the_product():
    (d,) = fused()
    np.testing.assert_array_equal(d, PRODUCT)


def test_everything(rng):
    c, bias, residual = random(rng, (M, N)), random(rng, (N,)), random(rng, (M, N))
    changes = dict(alpha=0.5, beta=2.0, activation="relu", c_strides=ROW_MAJOR, bias_strides=(0, 0, 1))
    changes["residual_strides"] = ROW_MAJOR
    expected_z = 0.5 * PRODUCT + 2 * np.asarray(c) + np.asarray(bias)
    for order in (["c", "bias", "residual"], ["residual", "c", "bias"]):
        operands = [dict(c=c, bias=bias, residual=residual)[name] for name in order]
        d, z = fused(*operands, operands=",".join(order), results=[((M, N), "float32")], **changes)
        np.testing.assert_array_equal(z, expected_z)
        np.testing.assert_array_equal(d, np.maximum(expected_z, 0) + np.asarray(residual))


@pytest.mark.parametrize("activation", ["relu", "gelu_tanh", "gelu_erf", "silu"])
def test_activations_are_jaxs(rng, activation):
    bias = jnp.asarray(rng.standard_normal((M, N)), jnp.float32)
    (d,) = fused(bias, operands="bias", bias_strides=ROW_MAJOR, alpha=0.0, activation=activation)
    fun = {
        "relu": jax.nn.relu,
        "gelu_tanh": lambda x: jax.nn.gelu(x, approximate=True),
        "gelu_erf": lambda x: jax.nn.gelu(x, approximate=False),
        "silu": jax.nn.silu,
    }[activation]
    np.testing.assert_allclose(d, fun(bias), rtol=1e-5, atol=1e-6)


def test_a_bias_along_m_and_one_number(rng):
    for shape, strides in (((M, 1), (0, 1, 0)), ((1, 1), (0, 0, 0))):
        bias = random(rng, shape)
        (d,) = fused(bias, operands="bias", bias_strides=strides)
        np.testing.assert_array_equal(d, PRODUCT + np.asarray(bias))


def test_c_is_not_read_where_beta_is_0():
    (d,) = fused(jnp.full((M, N), jnp.nan), operands="c", c_strides=ROW_MAJOR)
    np.testing.assert_array_equal(d, PRODUCT)


def test_c_can_be_updated_in_place(rng):
    c = random(rng, (M, N))
    expected = PRODUCT + 3 * np.asarray(c)
    options = dict(operands="c", beta=3.0, aliases={2: 0})
    (d,) = fused(c, c_strides=ROW_MAJOR, **options)
    np.testing.assert_array_equal(d, expected)
    with pytest.raises(jax.errors.JaxRuntimeError, match="c and d overlap, and c's strides are not d's"):
        fused(c, c_strides=(0, 1, M), **options)


def test_every_row_is_reached_through_the_target(rng):
    rows = [row for row in jax_moye.configs() if row.dtype == "bf16"]
    c = random(rng, (M, N), jnp.bfloat16)
    for row in rows:
        (d,) = fused(c, operands="c", beta=1.0, c_strides=ROW_MAJOR, config=row.name, out="bfloat16")
        np.testing.assert_array_equal(d, (PRODUCT + np.asarray(c, np.float32)).astype(jnp.bfloat16), err_msg=row.name)


C = np.ones((M, N), np.float32)
EDITS = {
    "unknown activation": (
        dict(activation="tanh"),
        "activation is none, relu, gelu_tanh, gelu_erf or silu, or one with d_, not tanh",
    ),
    "empty activation": (dict(activation=""), "activation is none, relu"),
    "no function of its own": (dict(activation="own"), "the kernel was not compiled with a function of its own"),
    "beta without c": (dict(beta=1.0), "and there is no c"),
    "unknown operand": (
        dict(extra=[C], operands="scale"),
        "operands names c, bias, residual, multiplier and second_b, each once",
    ),
    "operand twice": (
        dict(extra=[C, C], operands="c,c"),
        "operands names c, bias, residual, multiplier and second_b, each once",
    ),
    "trailing comma": (
        dict(extra=[C], operands="c,,"),
        "operands names c, bias, residual, multiplier and second_b, each once",
    ),
    "operands that are not there": (
        dict(extra=[C], operands="c,bias"),
        "operands are named that the call does not have",
    ),
    "operands without a name": (dict(extra=[C, C], operands="c"), "2 operands beside a and b, and 1 are named"),
    "two strides": (dict(extra=[C], operands="c", c_strides=(N, 1)), "three strides of c are needed"),
    "negative stride": (
        dict(extra=[C], operands="c", c_strides=(0, -N, 1)),
        "c has strides (0, -24, 1), which are neg",
    ),
    "c too small": (
        dict(extra=[C[:-1]], operands="c", c_strides=ROW_MAJOR),
        "c has 360 elements, and its strides reach",
    ),
    "unread c too small": (dict(extra=[C[:1]], operands="c", c_strides=ROW_MAJOR), "c has 24 elements"),
    "bias too small": (dict(extra=[C[0, 1:]], operands="bias", bias_strides=(0, 0, 1)), "bias has 23 elements"),
    "residual too small": (dict(extra=[C], operands="residual", residual_strides=(0, N, 2)), "residual has 384 elem"),
    "overflowing stride": (dict(extra=[C], operands="c", c_strides=(0, 2**62, 1)), "c has 384 elements"),
    "empty c": (dict(extra=[C[:0]], operands="c"), "c has 0 elements"),
    "c of another dtype": (dict(extra=[C.astype(np.float16)], operands="c"), "c is f16, and d is f32"),
    "bias of no dtype of ours": (dict(extra=[C.astype(np.int16)], operands="bias"), "operands and results are"),
    "two results more": (dict(results=[((M, N), "float32")] * 2), "other result, is a result or not"),
    "pre-activation of another dtype": (dict(results=[((M, N), "bfloat16")]), "the pre-activation is bf16, d f32"),
    "pre-activation too small": (dict(results=[((M, N - 1), "float32")]), "the pre-activation has 368 elements, d 384"),
    "attribute missing": (dict(drop=("alpha",)), "Wrong number of attributes"),
    "alpha of another type": (dict(alpha=2), "expected F64 but got S64"),
    "unknown mode": (dict(mode="quick"), "mode is eager, lazy or random, not quick"),
    "unknown config": (dict(config="nope"), "no compiled GEMM has this name"),
    "product too large": (dict(sizes=(1, M + 1, N, K)), "a has 512 elements"),
    "c in place of d, elsewhere too": (
        dict(extra=[C], operands="c", beta=1.0, c_strides=(0, 0, 1), aliases={2: 0}),
        "c and d overlap",
    ),
    "c is also the pre-activation": (
        dict(extra=[C], operands="c", beta=1.0, c_strides=ROW_MAJOR, aliases={2: 2}, results=[((M, N), "float32")]),
        "c and the pre-activation overlap",
    ),
}


PAIR = dict(config="sm90_split_k_bf16_128x128x64_s3_c1x2_a16", operands="second_b", out="bfloat16")
SECOND = np.full((K, N), 3, jnp.bfloat16)
ONE_MORE = ((M, N), "bfloat16")
EDITS |= {
    "a second b of a kernel without": (
        dict(extra=[SECOND], operands="second_b", out="bfloat16"),
        "the kernel takes no second b",
    ),
    "a second b twice": (PAIR | dict(extra=[SECOND] * 2, operands="second_b,second_b"), "operands names c, bias"),
    "a second b and a bias": (
        PAIR | dict(extra=[SECOND, C[0]], operands="second_b,bias", bias_strides=(0, 0, 1)),
        "a call with a second b has no c, bias or residual",
    ),
    "a second b too small": (PAIR | dict(extra=[SECOND[:-1]]), "the second b has 744 elements"),
    "a second b of another dtype": (PAIR | dict(extra=[SECOND.astype(np.float16)]), "the second b is f16"),
    "a wide result of two b": (PAIR | dict(extra=[SECOND], out="float32"), "d of two b has 16 bits, not f32"),
    "one of two products": (
        PAIR | dict(extra=[SECOND], results=[ONE_MORE]),
        "other result, is a result or not, with a second b its product, too",
    ),
    "three products": (PAIR | dict(extra=[SECOND], results=[ONE_MORE] * 3), "with a second b its product, too"),
    "a second product of another dtype": (
        PAIR | dict(extra=[SECOND], results=[ONE_MORE, ((M, N), "float16")]),
        "the second product is f16, d bf16",
    ),
    "a second product too small": (
        PAIR | dict(extra=[SECOND], results=[ONE_MORE, ((M, N - 1), "bfloat16")]),
        "the second product has 368 elements, d 384",
    ),
}


def test_two_right_hand_operands():
    """D, the pre-activation and the second product, in this order."""
    b = jnp.asarray(np.random.default_rng(0).integers(-2, 3, (K, N)), jnp.bfloat16)
    z, second = (np.ones((M, K)) @ np.asarray(x, np.float64) for x in (b, SECOND))
    for results in ([], [ONE_MORE] * 2):
        found = fused(SECOND, b=b, results=results, **PAIR | dict(alpha=-0.5, activation="relu"))
        expected = [np.maximum(-z / 2, 0) * second, -z / 2, second][: 1 + len(results)]
        for got, one in zip(found, expected, strict=True):
            np.testing.assert_array_equal(np.asarray(got), one.astype(jnp.bfloat16))


GATE = dict(config="sm90_cooperative_bf16_128x128x64_s5_a16", operands="c,multiplier", out="bfloat16")
GATE |= dict(activation="d_relu", beta=1.0, c_strides=ROW_MAJOR, results=[ONE_MORE])
AT = np.random.default_rng(0).integers(-2, 3, (M, N)).astype(jnp.bfloat16)
UP = np.random.default_rng(1).integers(-2, 3, (M, N)).astype(jnp.bfloat16)
EDITS |= {
    "a multiplier of a kernel without": (
        GATE | dict(extra=[AT, UP], config=A16),
        "the kernel multiplies by no derivative",
    ),
    "a multiplier twice": (
        GATE | dict(extra=[AT, UP, UP], operands="c,multiplier,multiplier"),
        "operands names c, bias",
    ),
    "a multiplier without c": (
        GATE | dict(extra=[UP], operands="multiplier", beta=0.0),
        "a derivative is one of c",
    ),
    "a multiplier of an activation": (
        GATE | dict(extra=[AT, UP], activation="relu"),
        "a multiplier is one of an activation's derivative",
    ),
    "a multiplier of nothing": (
        GATE | dict(extra=[AT, UP], activation="none"),
        "a multiplier is one of an activation's derivative",
    ),
    "a multiplier and a bias": (
        GATE | dict(extra=[AT, UP, UP[0]], operands="c,multiplier,bias", bias_strides=(0, 0, 1)),
        "has no bias, residual or second b beside it",
    ),
    "one result of a multiplier": (
        GATE | dict(extra=[AT, UP], results=[]),
        "a derivative has one result, and with a multiplier two",
    ),
    "two results of a derivative": (
        GATE | dict(extra=[AT], operands="c"),
        "a derivative has one result, and with a multiplier two",
    ),
    "three results of a multiplier": (
        GATE | dict(extra=[AT, UP], results=[ONE_MORE] * 2),
        "or a multiplier's other result, is a result or not",
    ),
    "a multiplier too small": (GATE | dict(extra=[AT, UP[:-1]]), "the multiplier has 360 elements"),
    "a multiplier of another dtype": (
        GATE | dict(extra=[AT, UP.astype(np.float16)]),
        "the multiplier is f16, and d is bf16",
    ),
    "a wide result of a multiplier": (
        GATE | dict(extra=[AT.astype(np.float32), UP.astype(np.float32)], out="float32", results=[((M, N), "float32")]),
        "a product times a derivative has 16 bits, not those of f32",
    ),
    "another result too small": (
        GATE | dict(extra=[AT, UP], results=[((M, N - 1), "bfloat16")]),
        "the pre-activation has 368 elements, d 384",
    ),
    "a multiplier that is the other result": (
        GATE | dict(extra=[AT, UP], aliases={3: 2}),
        "the multiplier and the pre-activation overlap",
    ),
}


@pytest.mark.parametrize("target", [FUSED_TARGET, "jax_moye_scaled_gemm_v1"])
def test_a_multiplier(target):
    """The cotangents of a layer with a gate, that of what the activation is of first."""
    more = dict(lhs_scale_strides=(0, 0, 0), rhs_scale_strides=(0, 0, 0)) if target != FUSED_TARGET else {}
    of_names = {"c": AT, "multiplier": UP}
    for names in (["c", "multiplier"], ["multiplier", "c"]):
        changes = GATE | more | dict(operands=",".join(names), alpha=-0.5, target=target)
        found = fused(*(of_names[name] for name in names), **changes)
        z, at, up = -0.5 * PRODUCT, AT.astype(np.float64), UP.astype(np.float64)
        for got, one in zip(found, (np.where(at > 0, z * up, 0), z * np.maximum(at, 0)), strict=True):
            np.testing.assert_array_equal(np.asarray(got), one.astype(jnp.bfloat16))


SCALED = dict(lhs_scale_strides=(0, 1, 0), rhs_scale_strides=(0, 0, 1), target="jax_moye_scaled_gemm_v1")


def test_scales(rng):
    """Of rows and of columns, in any order of the operands, before bias and activation; and those of one number."""
    rows, columns = (jnp.asarray(2.0 ** rng.integers(-2, 3, n), jnp.float32) for n in (M, N))
    bias = random(rng, (N,))
    expected = PRODUCT * np.asarray(rows)[:, None] * np.asarray(columns) + np.asarray(bias)
    of_names = {"lhs_scale": rows, "rhs_scale": columns, "bias": bias}
    for names in (["lhs_scale", "rhs_scale", "bias"], ["bias", "rhs_scale", "lhs_scale"]):
        changes = SCALED | dict(operands=",".join(names), bias_strides=(0, 0, 1))
        (d,) = fused(*(of_names[name] for name in names), **changes)
        np.testing.assert_array_equal(d, expected)
    (d,) = fused(rows[:1], operands="lhs_scale", **SCALED | dict(lhs_scale_strides=(0, 0, 0)))
    np.testing.assert_array_equal(d, PRODUCT * float(rows[0]))


@pytest.mark.parametrize(
    ("extra", "changes", "message"),
    [
        (
            [np.ones(M, np.float32)],
            dict(target=FUSED_TARGET),
            "operands names c, bias, residual, multiplier and second_b, each",
        ),
        ([np.ones(M, np.float16)], {}, "lhs_scale is f16, not f32"),
        ([np.ones(M - 1, np.float32)], {}, "lhs_scale has 15 elements, and its strides reach beyond them"),
        ([np.ones(M, np.float32)], dict(lhs_scale_strides=(0, 0, 1)), "lhs_scale has a stride along n"),
        ([np.ones(M, np.float32)], dict(operands="lhs_scale,lhs_scale"), "second_b, lhs_scale and rhs_scale, each"),
        ([np.ones(M, np.float32)], dict(lhs_scale_strides=(0, 1)), "three strides of lhs_scale are needed"),
    ],
)
def test_an_edited_call_with_scales_gets_an_error(extra, changes, message):
    call = SCALED | dict(operands="lhs_scale") | changes
    if call["target"] == FUSED_TARGET:
        call = {key: value for key, value in call.items() if "scale_strides" not in key}
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        fused(*map(jnp.asarray, extra), **call)


VIEW = SCALED | dict(target="jax_moye_view_gemm_v1", a_offset=0, b_offset=0, second_b_offset=0)
LARGE_A, LARGE_B = np.arange(2 * M * K) % 5 - 2, np.arange(3 * K * N) % 7 - 3


def view(*extra, a=LARGE_A, b=LARGE_B, **changes):
    """The custom call of the target with offsets, of arrays that are twice and three times as large as the operands."""
    arrays = (jnp.asarray(x, jnp.bfloat16) for x in (a, b))
    return fused(*extra, **dict(zip("ab", arrays, strict=True)), **VIEW | changes)


@pytest.mark.parametrize(("a_offset", "b_offset"), [(0, 0), (M * K, 0), (8, 2 * K * N), (M * K, 2 * K * N)])
def test_offsets(a_offset, b_offset):
    (d,) = view(a_offset=a_offset, b_offset=b_offset)
    a = LARGE_A[a_offset:][: M * K].reshape(M, K).astype(np.float64)
    np.testing.assert_array_equal(d, a @ LARGE_B[b_offset:][: K * N].reshape(K, N))


def test_an_offset_of_the_second_right_hand_operand():
    changes = PAIR | dict(activation="relu", b_offset=K * N, second_b_offset=2 * K * N)
    (d,) = view(jnp.asarray(LARGE_B, jnp.bfloat16), **changes)
    a, b, second = LARGE_A[: M * K].reshape(M, K).astype(np.float64), *LARGE_B[K * N :].reshape(2, K, N)
    np.testing.assert_array_equal(d, (np.maximum(a @ b, 0) * (a @ second)).astype(jnp.bfloat16))


OFFSETS = {
    "a beyond its end": (dict(a_offset=M * K + 1), "a has 1024 elements, and its strides from 513 on reach beyond"),
    "b beyond its end": (dict(b_offset=2 * K * N + 8), "b has 2304 elements, and its strides from 1544 on reach"),
    "a far beyond": (dict(a_offset=2**40), "a has 1024 elements, and its strides from 1099511627776 on reach beyond"),
    "an offset that overflows": (dict(b_offset=2**63 - 1), "b has 2304 elements, and its strides from 92233720368547"),
    "bytes that overflow": (dict(a_offset=2**62), "a has 1024 elements, and its strides from 4611686018427387904 on"),
    "before a": (dict(a_offset=-1), "offset -1 is negative"),
    "before b": (dict(b_offset=-(2**63)), "offset -9223372036854775808 is negative"),
    "before the second b": (dict(second_b_offset=-8), "offset -8 is negative"),
    "an odd offset of a": (dict(a_offset=1), "a has an address that 16 bytes do not divide"),
    "an odd offset of b": (dict(b_offset=4), "b has an address that 16 bytes do not divide"),
    "second b beyond its end": (
        PAIR | dict(extra=[LARGE_B], second_b_offset=2 * K * N + 8),
        "the second b has 2304 elements, and its strides from 1544 on reach beyond them",
    ),
    "an odd offset of the second b": (
        PAIR | dict(extra=[LARGE_B], second_b_offset=1),
        "the second b has an address that 16 bytes do not divide",
    ),
    "no offset": (dict(drop=("b_offset",)), "Wrong number of attributes"),
    "an offset of another type": (dict(a_offset=0.5), "expected S64 but got F64"),
    "a target without offsets": (dict(target="jax_moye_scaled_gemm_v1"), "Wrong number of attributes"),
}


@pytest.mark.parametrize("edit", OFFSETS)
def test_an_edited_offset_gets_an_error(edit):
    changes, message = OFFSETS[edit]
    changes = dict(changes)
    extra = [jnp.asarray(x, jnp.bfloat16) for x in changes.pop("extra", ())]
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        view(*extra, **changes)
    assert message in str(error.value)
    assert "INVALID_ARGUMENT" in str(error.value)


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_call_gets_an_error(edit):
    changes, message = EDITS[edit]
    changes = dict(changes)
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        fused(*map(jnp.asarray, changes.pop("extra", ())), **changes)
    text = str(error.value)
    assert message in text, text
    assert "INVALID_ARGUMENT" in text
    if "Wrong number" not in message and "expected" not in message:  # those are XLA's words
        assert "jax_moye: " in text
        assert "sizes (batch, m, n, k) = (" in text


def test_integers_take_what_is_exact(rng):
    rows = [row for row in jax_moye.configs() if row.dtype == "s8"]
    if not rows:
        pytest.skip("no row of int8 in this build")
    # Both contiguous along k, whose 32 elements every row's loads divide: an order that all rows take.
    a, b = jnp.ones((M, K), jnp.int8), jnp.full((N, K), 2, jnp.int8)
    c = random(rng, (M, N), jnp.int32)
    for row in rows:
        call = dict(a=a, b=b, b_strides=(0, K, 1), out="int32", config=row.name, operands="c", c_strides=ROW_MAJOR)
        (d,) = fused(c, beta=1.0, activation="relu", **call)
        np.testing.assert_array_equal(d, np.maximum(PRODUCT.astype(np.int32) + np.asarray(c), 0))
        for change in (dict(alpha=2.0), dict(beta=0.5), dict(activation="silu")):
            with pytest.raises(jax.errors.JaxRuntimeError, match="a result of integers takes alpha 1, beta 0 or 1"):
                fused(c, **(call | change))
