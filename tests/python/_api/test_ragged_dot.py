"""ragged_dot and ragged_dot_general: lax's shapes, dtypes and errors, NumPy's numbers, through the kernels."""

import functools
import inspect
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.support import TARGET, UNIT, custom_calls, integers, lowered_text

import jax_moye
from jax_moye._api import ragged_dot as module
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs
from jax_moye._kernels.dtypes import numpy_dtypes

EMULATED = dict(implementation="moye", interpret=True)
Dimensions = lax.RaggedDotDimensionNumbers
M, K, N = 24, 16, 40
SIZES = np.array([5, 0, 9, 3])  # and 7 rows behind the last group


def bf16(rng, *shape):
    return integers(rng, shape, jnp.bfloat16)


def ends_of(sizes, length):
    """(begin, end) of each group: one below zero counts as zero, and groups end where the ragged mode does."""
    ends = np.minimum(np.cumsum(np.maximum(np.asarray(sizes, object), 0)), length).astype(int)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def rows_by_groups(lhs, rhs, sizes):
    """[m,k], [g,k,n] -> [m,n] in float64."""
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    out = np.zeros((lhs.shape[0], rhs.shape[2]))
    for (begin, end), matrix in zip(ends_of(sizes, len(lhs)), rhs, strict=True):
        out[begin:end] = lhs[begin:end] @ matrix
    return out


def sums_of_groups(lhs, rhs, sizes):
    """[k,m], [k,n] -> [g,m,n] in float64."""
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    return np.stack([lhs[begin:end].T @ rhs[begin:end] for begin, end in ends_of(sizes, len(lhs))])


def grouped_calls(fun, *args, platform="cpu"):
    """Our custom calls for products of groups in the lowered program."""
    return custom_calls(lowered_text(fun, *args, platform=platform).replace(ffi.GROUPED_TARGET, TARGET))


# ----------------------------------------------------------------------------------------------------------- signature


@pytest.mark.parametrize("name", ["ragged_dot", "ragged_dot_general"])
def test_the_signature_begins_as_laxs(name):
    ours = list(inspect.signature(getattr(jax_moye, name)).parameters.values())
    theirs = list(inspect.signature(getattr(lax, name)).parameters.values())
    assert [(p.name, p.kind, p.default) for p in ours[: len(theirs)]] == [(p.name, p.kind, p.default) for p in theirs]
    beyond = ours[len(theirs) :]
    assert all(p.kind is p.KEYWORD_ONLY and p.default is None for p in beyond)
    assert {p.name for p in beyond} >= {"config", "implementation", "interpret", "deterministic", "batch_invariant"}


def test_positional_arguments(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    out = jax_moye.ragged_dot(lhs, rhs, SIZES, "highest", jnp.float32, None, None)
    assert out.dtype == jnp.float32
    np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, SIZES))
    out = jax_moye.ragged_dot_general(lhs, rhs, SIZES, module.BASIC_DIMENSIONS, "highest", jnp.float32, None, None)
    np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, SIZES))


# ------------------------------------------------------------------------------------------------------------- numbers

ALL_SIZES = [(5, 0, 9, 3), (6, 6, 6, 6), (0, 0, 0, 24), (24, 0, 0, 0), (0, 0, 0, 0), (1, 1, 1, 1), (3, 50, 7, 2)]


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("out_dtype", [None, "bfloat16", "float16", "float32"])
def test_numbers_and_dtypes(rng, dtype, out_dtype):
    lhs, rhs = integers(rng, (M, K), dtype), integers(rng, (4, K, N), dtype)
    fun = functools.partial(jax_moye.ragged_dot, preferred_element_type=out_dtype, **EMULATED)
    assert len(grouped_calls(fun, lhs, rhs, SIZES)) == 1
    for sizes in ALL_SIZES:
        theirs = lax.ragged_dot(lhs, rhs, jnp.array(sizes), preferred_element_type=out_dtype)
        out = fun(lhs, rhs, jnp.array(sizes))
        assert (out.shape, out.dtype, out.weak_type) == (theirs.shape, theirs.dtype, theirs.weak_type)
        np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, sizes).astype(out.dtype))
        np.testing.assert_array_equal(out, theirs)


def test_the_tables_names_of_dtypes(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    for name, dtype in (("bf16", jnp.bfloat16), ("f16", jnp.float16), ("f32", jnp.float32)):
        assert jax_moye.ragged_dot(lhs, rhs, SIZES, preferred_element_type=name, **EMULATED).dtype == dtype


@pytest.mark.parametrize("shape", [(1, 8, 8), (7, 24, 8), (65, 72, 136), (130, 136, 200)], ids=str)
def test_numbers_within_the_bound(rng, shape):
    """Of random numbers, where sums are rounded; groups that end inside of tiles."""
    m, k, n = shape
    lhs, rhs = (jnp.asarray(rng.standard_normal(x), jnp.bfloat16) for x in ((m, k), (3, k, n)))
    sizes = np.array([m // 3, m // 5, m - m // 3 - m // 5])
    out = np.asarray(jax_moye.ragged_dot(lhs, rhs, sizes, preferred_element_type="f32", **EMULATED), np.float64)
    magnitude = rows_by_groups(abs(lhs), abs(rhs), sizes)
    bound = (np.ceil(k / 16) + 2) * 2 * UNIT["float32"] * magnitude
    assert (abs(out - rows_by_groups(lhs, rhs, sizes)) <= bound).all()


@pytest.mark.parametrize("config", grouped_configs(), ids=lambda row: row.name)
def test_every_config_is_reached(rng, config):
    of_lhs, of_rhs = numpy_dtypes(config.dtype)
    m, n, k = (size + 16 for size in config.tile)
    lhs, rhs, sizes = integers(rng, (m, k), of_lhs), integers(rng, (2, k, n), of_rhs), np.array([11, m - 20])
    for named in (config.name, config):
        fun = functools.partial(jax_moye.ragged_dot, config=named, preferred_element_type="f32", interpret=True)
        assert [call.config for call in grouped_calls(fun, lhs, rhs, sizes)] == [config.name]
    np.testing.assert_array_equal(fun(lhs, rhs, sizes), rows_by_groups(lhs, rhs, sizes))


# ---------------------------------------------------------------------------------------------------------- dimensions


@pytest.mark.parametrize("rhs_order", list(itertools.permutations("gkn")), ids="".join)
@pytest.mark.parametrize("lhs_order", ["mk", "km"])
def test_ragged_rows_in_every_order_of_dimensions(rng, lhs_order, rhs_order):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    stored_lhs = lhs.transpose(["mk".index(label) for label in lhs_order])
    stored_rhs = rhs.transpose(["gkn".index(label) for label in rhs_order])
    contracted = ((lhs_order.index("k"),), (rhs_order.index("k"),))
    dimensions = Dimensions((contracted, ((), ())), [lhs_order.index("m")], [rhs_order.index("g")])
    fun = functools.partial(jax_moye.ragged_dot_general, ragged_dot_dimension_numbers=dimensions, **EMULATED)
    assert len(grouped_calls(fun, stored_lhs, stored_rhs, SIZES)) == 1
    out = fun(stored_lhs, stored_rhs, SIZES)
    theirs = lax.ragged_dot_general(stored_lhs, stored_rhs, jnp.asarray(SIZES), dimensions)
    assert (out.shape, out.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_array_equal(out, theirs)
    np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, SIZES).astype(out.dtype))


@pytest.mark.parametrize("rhs_order", ["kn", "nk"])
@pytest.mark.parametrize("lhs_order", ["km", "mk"])
def test_ragged_k_in_every_order_of_dimensions(rng, lhs_order, rhs_order):
    lhs, rhs = bf16(rng, M, K), bf16(rng, M, N)  # of M elements along k
    stored_lhs = lhs if lhs_order == "km" else lhs.T
    stored_rhs = rhs if rhs_order == "kn" else rhs.T
    k = lhs_order.index("k")
    dimensions = Dimensions((((k,), (rhs_order.index("k"),)), ((), ())), [k], [])
    fun = functools.partial(jax_moye.ragged_dot_general, ragged_dot_dimension_numbers=dimensions, **EMULATED)
    assert len(grouped_calls(fun, stored_lhs, stored_rhs, SIZES)) == 1
    for sizes in ALL_SIZES:
        out = fun(stored_lhs, stored_rhs, np.array(sizes))
        theirs = lax.ragged_dot_general(stored_lhs, stored_rhs, jnp.array(sizes), dimensions)
        assert (out.shape, out.dtype) == (theirs.shape, theirs.dtype)
        np.testing.assert_array_equal(out, theirs)
        np.testing.assert_array_equal(out, sums_of_groups(lhs, rhs, sizes).astype(out.dtype))


def of(contracted, batch, ragged, group):
    return Dimensions((contracted, batch), ragged, group)


TWO = [[3, 0, 2], [1, 1, 1]]
XLAS = {
    "batch": ((2, 6, 8), (3, 2, 8, 16), [3, 0, 2], of(((2,), (2,)), ((0,), (1,)), [1], [0])),
    "batch, its own sizes": ((2, 6, 8), (3, 2, 8, 16), TWO, of(((2,), (2,)), ((0,), (1,)), [1], [0])),
    "two contracted": ((6, 4, 8), (3, 4, 8, 16), [3, 0, 2], of(((1, 2), (1, 2)), ((), ()), [0], [0])),
    "nothing contracted": ((6,), (3, 16), [3, 0, 2], of(((), ()), ((), ()), [0], [0])),
    "two of rows": ((2, 6, 8), (3, 8, 16), [3, 0, 2], of(((2,), (1,)), ((), ()), [1], [0])),
    "two of rows, their own sizes": ((2, 6, 8), (3, 8, 16), TWO, of(((2,), (1,)), ((), ()), [1], [0])),
    "two of columns": ((6, 8), (3, 8, 4, 4), [3, 0, 2], of(((1,), (1,)), ((), ()), [0], [0])),
    "no columns": ((6, 8), (3, 8), [3, 0, 2], of(((1,), (1,)), ((), ()), [0], [0])),
    "ragged k, batch": ((2, 6, 8), (2, 8, 16), [3, 0, 2], of(((2,), (1,)), ((0,), (0,)), [2], [])),
    "ragged k, batch, its own sizes": ((2, 6, 8), (2, 8, 16), TWO, of(((2,), (1,)), ((0,), (0,)), [2], [])),
    "ragged k, two contracted": ((6, 4, 8), (4, 8, 16), [3, 0, 1], of(((1, 2), (0, 1)), ((), ()), [1], [])),
    "ragged k, two of rows": ((8, 6, 4), (8, 16), [3, 0, 2], of(((0,), (0,)), ((), ()), [0], [])),
    "ragged k, two of columns": ((8, 6), (8, 4, 4), [3, 0, 2], of(((0,), (0,)), ((), ()), [0], [])),
    "ragged k of vectors": ((8,), (8,), [3, 0, 2], of(((0,), (0,)), ((), ()), [0], [])),
    "ragged batch": ((6, 4, 8), (6, 8, 16), [3, 0, 2], of(((2,), (1,)), ((0,), (0,)), [0], [])),
}


@pytest.mark.parametrize("form", XLAS)
def test_other_forms_are_xlas(rng, form):
    lhs_shape, rhs_shape, sizes, dimensions = XLAS[form]
    lhs, rhs, sizes = bf16(rng, *lhs_shape), bf16(rng, *rhs_shape), jnp.array(sizes)
    theirs = lax.ragged_dot_general(lhs, rhs, sizes, dimensions)
    fun = functools.partial(jax_moye.ragged_dot_general, ragged_dot_dimension_numbers=dimensions)
    out = fun(lhs, rhs, sizes, interpret=True)
    assert (out.shape, out.dtype) == (theirs.shape, theirs.dtype)
    np.testing.assert_array_equal(out, theirs)
    for insists in ({"implementation": "moye"}, {"batch_invariant": True}, {"config": grouped_configs()[0].name}):
        with pytest.raises(NotImplementedError, match="other dimensions"):
            fun(lhs, rhs, sizes, interpret=True, **insists)


def test_other_forms_have_laxs_derivatives(rng):
    lhs, rhs = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in XLAS["batch"][:2])
    sizes, dimensions = jnp.array(XLAS["batch"][2]), XLAS["batch"][3]
    loss = lambda fun: lambda x, w: jnp.sin(fun(x, w, sizes, dimensions)).sum()  # noqa: E731
    ours = jax.grad(loss(jax_moye.ragged_dot_general), (0, 1))(lhs, rhs)
    for found, wanted in zip(ours, jax.grad(loss(lax.ragged_dot_general), (0, 1))(lhs, rhs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------- who computes what


@pytest.mark.parametrize("dtype", ["float32", "int8", "int32", "float8_e4m3", "complex64", "bool"])
def test_other_dtypes_are_xlas(rng, dtype):
    lhs, rhs = (jnp.asarray(rng.integers(0, 2, shape), dtype) for shape in ((M, K), (4, K, N)))
    out, theirs = jax_moye.ragged_dot(lhs, rhs, SIZES, interpret=True), lax.ragged_dot(lhs, rhs, jnp.asarray(SIZES))
    assert (out.dtype, out.weak_type) == (theirs.dtype, theirs.weak_type)
    np.testing.assert_array_equal(out, theirs)
    assert not grouped_calls(functools.partial(jax_moye.ragged_dot, interpret=True), lhs, rhs, SIZES)
    with pytest.raises(NotImplementedError, match=dtype):
        jax_moye.ragged_dot(lhs, rhs, SIZES, **EMULATED)


@pytest.mark.parametrize(("lhs_dtype", "rhs_dtype"), [("bfloat16", "float16"), ("bfloat16", "float32")])
def test_mixed_dtypes_are_xlas(rng, lhs_dtype, rhs_dtype):
    lhs, rhs = integers(rng, (M, K), lhs_dtype), integers(rng, (4, K, N), rhs_dtype)
    for x, y in ((lhs, rhs), (lhs.astype(rhs_dtype), rhs.astype(lhs_dtype))):
        theirs = lax.ragged_dot(x, y, jnp.asarray(SIZES))
        out = jax_moye.ragged_dot(x, y, SIZES, interpret=True)
        assert out.dtype == theirs.dtype
        np.testing.assert_array_equal(out, theirs)
        with pytest.raises(NotImplementedError, match="different dtypes"):
            jax_moye.ragged_dot(x, y, SIZES, **EMULATED)


@pytest.mark.parametrize("dtype", ["int32", "int8", "float8_e5m2"])
def test_results_that_no_kernel_writes_are_xlas(rng, dtype):
    lhs, rhs = abs(bf16(rng, M, K)), abs(bf16(rng, 4, K, N))
    theirs = lax.ragged_dot(lhs, rhs, jnp.asarray(SIZES), preferred_element_type=dtype)
    out = jax_moye.ragged_dot(lhs, rhs, SIZES, preferred_element_type=dtype, interpret=True)
    assert out.dtype == theirs.dtype
    np.testing.assert_array_equal(out, theirs)
    with pytest.raises(NotImplementedError, match=dtype):
        jax_moye.ragged_dot(lhs, rhs, SIZES, preferred_element_type=dtype, **EMULATED)


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        (((24, 12), (4, 12, 16)), "rows of lhs are 24 bytes"),
        (((24, 16), (4, 16, 12)), "rows of rhs are 24 bytes"),
        (((24, 1), (4, 1, 8)), "rows of lhs are 2 bytes"),
    ],
)
def test_rows_of_other_lengths_are_xlas(rng, shapes, reason):
    lhs, rhs = (bf16(rng, *shape) for shape in shapes)
    np.testing.assert_array_equal(
        jax_moye.ragged_dot(lhs, rhs, SIZES, interpret=True), lax.ragged_dot(lhs, rhs, jnp.asarray(SIZES))
    )
    with pytest.raises(NotImplementedError, match=reason):
        jax_moye.ragged_dot(lhs, rhs, SIZES, **EMULATED)


def test_precision(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    expected = rows_by_groups(lhs, rhs, SIZES).astype(jnp.bfloat16)
    for precision in (None, "default", "highest", lax.Precision.HIGH, ("highest", "default"), "BF16_BF16_F32"):
        np.testing.assert_array_equal(jax_moye.ragged_dot(lhs, rhs, SIZES, precision, **EMULATED), expected)
    with pytest.raises(NotImplementedError, match=r"F32_F32_F32.* on bf16 operands"):
        jax_moye.ragged_dot(lhs, rhs, SIZES, "F32_F32_F32", **EMULATED)
    with jax.default_matmul_precision("highest"):
        np.testing.assert_array_equal(jax_moye.ragged_dot(lhs, rhs, SIZES, **EMULATED), expected)


def test_without_interpret_the_cpu_uses_xla(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    for options, calls in (({}, 0), ({"interpret": False}, 0), ({"interpret": True}, 1), (EMULATED, 1)):
        fun = functools.partial(jax_moye.ragged_dot, **options)
        assert len(grouped_calls(fun, lhs, rhs, SIZES)) == calls
        np.testing.assert_array_equal(fun(lhs, rhs, SIZES), lax.ragged_dot(lhs, rhs, jnp.asarray(SIZES)))
    assert not grouped_calls(functools.partial(jax_moye.ragged_dot, implementation="xla"), lhs, rhs, SIZES)
    with pytest.raises(NotImplementedError, match="only with interpret=True"):
        jax_moye.ragged_dot(lhs, rhs, SIZES, implementation="moye")


def test_names_of_configs(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    ordinary = next(row.name for row in jax_moye.configs() if row.dtype == "bf16")
    with pytest.raises(ValueError, match="it computes no products of groups"):
        jax_moye.ragged_dot(lhs, rhs, SIZES, config=ordinary, interpret=True)
    with pytest.raises(ValueError, match="no compiled kernel is named 'nope'"):
        jax_moye.ragged_dot(lhs, rhs, SIZES, config="nope", interpret=True)
    name = next(row.name for row in grouped_configs() if row.dtype == "bf16")
    with pytest.raises(ValueError, match=f"config '{name}' cannot compute .*: its operands are bf16, these are f16"):
        jax_moye.ragged_dot(lhs.astype("float16"), rhs.astype("float16"), SIZES, config=name, interpret=True)


def test_why_xla_computes_is_logged_once(rng, caplog):
    lhs, rhs = jnp.ones((3, 11), jnp.float16), jnp.ones((2, 11, 13), jnp.float16)
    with caplog.at_level("INFO", logger="jax_moye"):
        for add in (0, 1):
            jax.jit(lambda x, w, s, add=add: jax_moye.ragged_dot(x, w, s, interpret=True) + add)(lhs, rhs, SIZES[:2])
    said = [record.getMessage() for record in caplog.records if "float16[2, 11, 13]" in record.getMessage()]
    assert len(said) == 1
    assert "XLA computes mk,gkn->mn on float16[3, 11]" in said[0]


# -------------------------------------------------------------------------------------------------------------- errors


def outcome(fun, *args, **kwargs):
    """What a function answers, in a form that compares."""
    try:
        out = fun(*args, **kwargs)
    except Exception as error:
        return type(error), str(error)
    return out.shape, out.dtype, out.weak_type


def ones(*shape, dtype=jnp.bfloat16):
    return jnp.ones(shape, dtype)


LHS, RHS, TWO_SIZES = ones(4, 8), ones(2, 8, 16), jnp.array([1, 3])
OPERANDS = {
    "lhs of rank 1": (ones(4), RHS, TWO_SIZES),
    "lhs of rank 0": (1.0, RHS, TWO_SIZES),
    "lhs of rank 3": (ones(2, 4, 8), RHS, TWO_SIZES),
    "rhs of rank 2": (LHS, ones(8, 16), TWO_SIZES),
    "rhs of rank 4": (LHS, ones(2, 8, 4, 4), TWO_SIZES),
    "other k": (LHS, ones(2, 16, 16), TWO_SIZES),
    "other number of groups": (LHS, ones(3, 8, 16), TWO_SIZES),
    "no groups, one size": (LHS, ones(0, 8, 16), TWO_SIZES[:1]),
    "sizes of rank 0": (LHS, RHS, jnp.int32(4)),
    "sizes of rank 2": (LHS, RHS, ones(4, 2, dtype=jnp.int32)),
    "sizes of floats": (LHS, RHS, ones(2, dtype=jnp.float32)),
    "sizes of bools": (LHS, RHS, ones(2, dtype=jnp.bool_)),
    "a list": ([[1.0] * 8] * 4, RHS, TWO_SIZES),
    "a list of sizes": (LHS, RHS, [1, 3]),
    "a tuple of sizes": (LHS, RHS, (1, 3)),
    "None": (LHS, None, TWO_SIZES),
    "integers": (ones(4, 8, dtype=jnp.int32), ones(2, 8, 16, dtype=jnp.int32), TWO_SIZES),
    "mixed": (LHS, ones(2, 8, 16, dtype=jnp.float32), TWO_SIZES),
    "NumPy's float64": (np.ones((4, 8)), np.ones((2, 8, 16)), np.array([1, 3])),
    "weak types": (*(jnp.broadcast_to(jnp.asarray(1.0), shape) for shape in ((4, 8), (2, 8, 16))), SIZES[:2]),
}


@pytest.mark.parametrize("what", OPERANDS)
def test_operands_and_their_errors_are_laxs(what):
    lhs, rhs, sizes = OPERANDS[what]
    expected = outcome(lax.ragged_dot, lhs, rhs, sizes)
    assert outcome(jax_moye.ragged_dot, lhs, rhs, sizes) == expected
    assert outcome(jax_moye.ragged_dot, lhs, rhs, sizes, interpret=True) == expected
    if isinstance(expected[0], type):  # an error, whoever is to compute
        assert outcome(jax_moye.ragged_dot, lhs, rhs, sizes, **EMULATED) == expected


def test_a_note_says_what_the_operands_are():
    for operands, note in [
        ((LHS[:, 1:], RHS, TWO_SIZES), "lhs is bfloat16[4, 7], rhs is bfloat16[2, 8, 16], group_sizes is int32[2]"),
        ((LHS, RHS, [1, 3]), "lhs is bfloat16[4, 8], rhs is bfloat16[2, 8, 16], group_sizes is a list"),
    ]:
        with pytest.raises(TypeError) as error:
            jax_moye.ragged_dot(*operands)
        assert f"ragged_dot: {note}" in error.value.__notes__


def test_a_weak_type_of_all_three():
    weak = [jnp.broadcast_to(jnp.asarray(x), shape) for x, shape in ((1.0, (4, 8)), (1.0, (2, 8, 16)), (2, (2,)))]
    assert outcome(jax_moye.ragged_dot, *weak) == outcome(lax.ragged_dot, *weak)


DIMENSIONS = {
    "two ragged": of(((1,), (1,)), ((), ()), [0, 1], [0]),
    "none ragged": of(((1,), (1,)), ((), ()), [], [0]),
    "ragged beyond": of(((1,), (1,)), ((), ()), [5], [0]),
    "ragged below": of(((1,), (1,)), ((), ()), [-1], [0]),
    "no group": of(((1,), (1,)), ((), ()), [0], []),
    "two groups": of(((1,), (1,)), ((), ()), [0], [0, 2]),
    "group beyond": of(((1,), (1,)), ((), ()), [0], [5]),
    "group below": of(((1,), (1,)), ((), ()), [0], [-3]),
    "group contracted": of(((1,), (1,)), ((), ()), [0], [1]),
    "another group": of(((1,), (1,)), ((), ()), [0], [2]),
    "group of a ragged k": of(((1,), (1,)), ((), ()), [1], [0]),
    "contracted beyond": of(((5,), (1,)), ((), ()), [0], [0]),
    "contracted below": of(((-1,), (1,)), ((), ()), [0], [0]),
    "contracted twice": of(((1, 1), (1, 2)), ((), ()), [0], [0]),
    "contracted one by two": of(((1,), (1, 2)), ((), ()), [0], [0]),
    "batch of the one": of(((1,), (1,)), ((0,), ()), [0], [0]),
    "None": None,
    "lists": of(([1], [1]), ([], []), [0], [0]),
    "NumPy's integers": of(((np.int64(1),), (np.int32(1),)), ((), ()), np.array([0]), np.array([0])),
}


@pytest.mark.parametrize("what", DIMENSIONS)
def test_dimensions_and_their_errors_are_laxs(what):
    args = LHS, RHS, TWO_SIZES, DIMENSIONS[what]
    assert outcome(jax_moye.ragged_dot_general, *args) == outcome(lax.ragged_dot_general, *args)


def test_group_offset_is_laxs_error():
    for fun in (lax.ragged_dot, jax_moye.ragged_dot):
        with pytest.raises(NotImplementedError, match="group_offset"):
            fun(LHS, RHS, TWO_SIZES, group_offset=0)
        with pytest.raises(TypeError):
            fun(LHS, RHS, TWO_SIZES, group_offset=jnp.array([0]))
    with pytest.raises(NotImplementedError):
        jax_moye.ragged_dot(LHS, RHS, TWO_SIZES, group_offset=0, **EMULATED)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"implementation": "cublas"}, ValueError, "implementation is None, 'moye' or 'xla', not 'cublas'"),
        ({"interpret": 3}, TypeError, "interpret"),
        ({"deterministic": 1}, TypeError, "deterministic"),
        ({"batch_invariant": "yes"}, TypeError, "batch_invariant"),
        ({"precision": "much"}, ValueError, "not 'much'"),
        ({"preferred_element_type": "f17"}, TypeError, "f17"),
        ({"config": 3}, TypeError, "config is the name of a compiled kernel"),
        ({"out_sharding": 3}, TypeError, "out_sharding"),
        ({"implementation": "xla", "batch_invariant": True}, ValueError, "contradict"),
        ({"implementation": "xla", "interpret": True}, ValueError, "implementation='xla' asks for none"),
    ],
    ids=str,
)
def test_options_are_checked(options, error, message):
    with pytest.raises(error, match=message):
        jax_moye.ragged_dot(LHS, RHS, TWO_SIZES, **options)
    with pytest.raises(error, match=message):
        jax_moye.ragged_dot_general(LHS, RHS, TWO_SIZES, module.BASIC_DIMENSIONS, **options)


# ----------------------------------------------------------------------------------------------------- sizes of groups


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
def test_dtypes_of_sizes(rng, dtype):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    expected = rows_by_groups(lhs, rhs, SIZES)
    for sizes in (SIZES.astype(dtype), jnp.asarray(SIZES, dtype)):
        np.testing.assert_array_equal(jax_moye.ragged_dot(lhs, rhs, sizes, **EMULATED), expected)
        np.testing.assert_array_equal(jax_moye.ragged_dot(lhs, rhs, sizes), expected)


@pytest.mark.parametrize("dtype", ["int64", "uint64", "uint32", "uint8"])
def test_dtypes_of_sizes_with_64_bits(rng, x64, dtype):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    sizes = jnp.asarray(SIZES, dtype)
    assert sizes.dtype == dtype
    for options in ({}, EMULATED):
        out = jax_moye.ragged_dot(lhs, rhs, sizes, **options)
        assert out.dtype == jnp.bfloat16
        np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, SIZES))


@pytest.mark.parametrize(
    "sizes",
    [(-3, 5, 4, 2), (5, -3, 4, 2), (5, 4, 2, -7), (-(2**31),) * 4, (2**31 - 1, -5, 3, 1), (2**31 - 1,) * 4],
    ids=str,
)
def test_sizes_that_are_no_sizes(rng, sizes):
    """One below zero counts as zero, and what is beyond m does not count, however large."""
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    out = jax_moye.ragged_dot(lhs, rhs, jnp.array(sizes, jnp.int32), **EMULATED)
    np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, sizes))
    by_k = of(((0,), (0,)), ((), ()), [0], [])
    lhs, rhs = bf16(rng, M, K), bf16(rng, M, N)
    out = jax_moye.ragged_dot_general(lhs, rhs, jnp.array(sizes, jnp.int32), by_k, **EMULATED)
    np.testing.assert_array_equal(out, sums_of_groups(lhs, rhs, sizes).astype(out.dtype))


@pytest.mark.parametrize("sizes", [(2**32, 1, 1, 1), (2**32 + 5, 0, 0, 0), (5, -(2**40), 3, 2**40)], ids=str)
def test_sizes_of_more_than_32_bits(rng, x64, sizes):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    out = jax_moye.ragged_dot(lhs, rhs, jnp.array(sizes, jnp.int64), **EMULATED)
    np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, sizes))


def test_sizes_of_32_bits_without_a_sign(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    sizes = (2**32 - 1, 5, 0, 2)
    out = jax_moye.ragged_dot(lhs, rhs, jnp.array(sizes, jnp.uint32), **EMULATED)
    np.testing.assert_array_equal(out, rows_by_groups(lhs, rhs, sizes))


# ----------------------------------------------------------------------------------------------- eager, jit and blocks


def test_numpy_operands_and_jax_arrays(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    assert isinstance(lhs, np.ndarray)
    out = jax_moye.ragged_dot(lhs, rhs, SIZES, **EMULATED)
    assert isinstance(out, jax.Array)
    np.testing.assert_array_equal(
        out, jax_moye.ragged_dot(jnp.asarray(lhs), jnp.asarray(rhs), jnp.asarray(SIZES), **EMULATED)
    )


def test_jit_and_eager_have_the_same_bits(rng):
    lhs, rhs = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((M, K), (4, K, N)))
    fun = functools.partial(jax_moye.ragged_dot, preferred_element_type="f32", **EMULATED)
    for sizes in ALL_SIZES:
        np.testing.assert_array_equal(fun(lhs, rhs, np.array(sizes)), jax.jit(fun)(lhs, rhs, np.array(sizes)))


def test_other_sizes_of_groups_need_no_other_program(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    traces = []

    @jax.jit
    def traced(lhs, rhs, sizes):
        traces.append(sizes)
        return jax_moye.ragged_dot(lhs, rhs, sizes, **EMULATED)

    for sizes in ALL_SIZES:
        np.testing.assert_array_equal(traced(lhs, rhs, np.array(sizes)), rows_by_groups(lhs, rhs, sizes))
    assert len(traces) == 1
    program = module._product.jitted
    jax_moye.ragged_dot(lhs, rhs, SIZES, **EMULATED)
    before = program._cache_size()
    for sizes in ALL_SIZES:
        jax_moye.ragged_dot(lhs, rhs, np.array(sizes), **EMULATED)
    assert program._cache_size() == before


def test_shapes_alone():
    shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (LHS, RHS, TWO_SIZES)]
    out = jax.eval_shape(functools.partial(jax_moye.ragged_dot, **EMULATED), *shapes)
    assert (out.shape, out.dtype) == ((4, 16), jnp.bfloat16)


def test_a_block_of_options(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    with jax_moye.options(**EMULATED):
        assert len(grouped_calls(jax_moye.ragged_dot, lhs, rhs, SIZES)) == 1
        np.testing.assert_array_equal(jax_moye.ragged_dot(lhs, rhs, SIZES), rows_by_groups(lhs, rhs, SIZES))
        assert not grouped_calls(functools.partial(jax_moye.ragged_dot, implementation="xla"), lhs, rhs, SIZES)
        with pytest.raises(NotImplementedError, match="float32"):
            jax_moye.ragged_dot(lhs.astype(np.float32), rhs.astype(np.float32), SIZES)
        with pytest.raises(NotImplementedError, match="other dimensions"):
            jax_moye.ragged_dot(lhs, rhs[..., None], SIZES)
    with jax_moye.options(batch_invariant=True):
        with pytest.raises(NotImplementedError, match="batch_invariant=True"):
            jax_moye.ragged_dot(lhs, rhs, SIZES)
        with jax_moye.options(interpret=True):
            assert len(grouped_calls(jax_moye.ragged_dot, lhs, rhs, SIZES)) == 1
    assert not grouped_calls(jax_moye.ragged_dot, lhs, rhs, SIZES)
    # Derivatives have the options of their product, wherever they are taken.
    with jax_moye.options(**EMULATED):
        _, vjp = jax.vjp(lambda x, w: jax_moye.ragged_dot(x, w, SIZES), lhs, rhs)
    assert len(grouped_calls(vjp, jnp.ones((M, N), jnp.bfloat16))) == 2


# ----------------------------------------------------------------------------------------------------------- contracts


def test_deterministic(rng):
    lhs, rhs = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((M, K), (4, K, N)))
    fun = functools.partial(jax_moye.ragged_dot, deterministic=True, preferred_element_type="f32", interpret=True)
    assert len(grouped_calls(fun, lhs, rhs, SIZES)) == 1
    np.testing.assert_array_equal(fun(lhs, rhs, SIZES), fun(lhs, rhs, SIZES))


def test_deterministic_where_xla_is_not(monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    lhs_shape, rhs_shape, sizes, dimensions = XLAS["batch"]
    args = ones(*lhs_shape), ones(*rhs_shape), jnp.array(sizes)
    fun = functools.partial(jax_moye.ragged_dot_general, ragged_dot_dimension_numbers=dimensions, deterministic=True)
    with pytest.raises(NotImplementedError, match="no kernel computes it, since it has other dimensions"):
        lowered_text(fun, *args)


def test_batch_invariant(rng):
    """The bits of the rows of a group depend neither on the other rows, nor on where the group lies, nor on sizes."""
    k, n = 136, 72
    rows, matrix = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((3, k), (k, n)))
    fun = functools.partial(jax_moye.ragged_dot, batch_invariant=True, preferred_element_type="f32", interpret=True)
    alone = np.asarray(fun(rows, matrix[None], np.array([3])))
    assert alone.any()
    tiles = set()
    for sizes, group in (([3, 0], 0), ([0, 3], 1), ([61, 9, 5], 1), ([2, 3, 70], 1), ([200, 150], 1), ([3, 290], 0)):
        m, begin = sum(sizes), sum(sizes[:group])
        lhs = jnp.asarray(rng.standard_normal((m, k)), jnp.bfloat16).at[begin : begin + 3].set(rows)
        rhs = jnp.asarray(rng.standard_normal((len(sizes), k, n)), jnp.bfloat16).at[group].set(matrix)
        out = np.asarray(fun(lhs, rhs, np.array(sizes)))
        np.testing.assert_array_equal(out[begin : begin + 3], alone, err_msg=str(sizes))
        tiles |= {call.config for call in grouped_calls(fun, lhs, rhs, np.array(sizes))}
    built = [row for row in grouped_configs() if row.dtype == "bf16"]
    assert len(tiles) > 1 or len(built) == 1, "few rows and many have another kernel"


def test_what_would_break_a_promise_is_an_error(rng):
    lhs, rhs = bf16(rng, M, K), bf16(rng, 4, K, N)
    for options in ({}, {"interpret": True}):
        with pytest.raises(NotImplementedError, match="batch_invariant=True"):
            jax_moye.ragged_dot(lhs.astype("float32"), rhs.astype("float32"), SIZES, batch_invariant=True, **options)
