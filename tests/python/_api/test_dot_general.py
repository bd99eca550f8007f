"""dot_general, einsum and matmul against JAX's own: signatures, types, weak types, errors; and no copies."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.support import custom_calls, data_movements, integers, kernel_calls, lowered_text

import jax_moye

dot_general = functools.partial(jax_moye.dot_general, implementation="moye", interpret=True)
einsum = functools.partial(jax_moye.einsum, implementation="moye", interpret=True)
OURS = {"config", "implementation", "interpret", "deterministic", "batch_invariant"}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (jax_moye.dot_general, lax.dot_general),
        (jax_moye.matmul, jnp.matmul),
        (jax_moye.einsum, jnp.einsum),
    ],
    ids=["dot_general", "matmul", "einsum"],
)
def test_signature(ours, theirs):
    ours, theirs = (inspect.signature(f).parameters for f in (ours, theirs))
    added = [name for name in ours if name not in theirs]
    assert set(added) == OURS
    assert all(ours[name].kind is inspect.Parameter.KEYWORD_ONLY for name in OURS)
    assert list(ours)[: -len(OURS)] == [name for name in theirs if name != "_dot_general"]
    for name, parameter in theirs.items():
        if name != "_dot_general":
            assert (ours[name].kind, ours[name].default) == (parameter.kind, parameter.default)


def outcome(fun):
    """Type, weak type and value of what fun returns; or type and text of what it raises."""
    try:
        out = fun()
    except Exception as error:
        return type(error), str(error)
    return str(jax.typeof(out)), jax.typeof(out).weak_type, np.asarray(out).tobytes()


V = np.arange(3, dtype=np.float32)
VECTORS = (((0,), (0,)), ((), ()))
OUTER = (((), ()), ((), ()))


class Wrapped:
    shape = (3,)

    def __jax_array__(self):
        return jnp.asarray(V)


def weak(x):
    """An array of x's kind with a weak type."""
    return jnp.where(np.asarray(x) > 0, *((1.0, -2.0) if np.asarray(x).dtype.kind == "f" else (1, -2)))


def cast(dtype):
    return V.astype(jnp.dtype(dtype))


CASES = {
    "numbers": (2.0, 3.0, OUTER),
    "integers": (2, 3, OUTER),
    "integer and float": (2, 3.0, OUTER),
    "number and array": (2.0, cast("bfloat16"), OUTER),
    "list": ([1.0], [2.0], VECTORS),
    "None": (None, V, VECTORS),
    "text": ("ab", V, VECTORS),
    "what converts itself": (Wrapped(), V, VECTORS),
    "key": (lambda: jax.random.key(0), V, OUTER),
    "half of the dimensions": (V, V, (((0,), (0,)),)),
    "dimensions as numbers": (V, V, ((0, 0), ((), ()))),
    "dimensions as lists": (V, V, ([[0], [0]], [[], []])),
    "dimensions as arrays": (V, V, ((np.array([0]), np.array([0])), ((), ()))),
    "fractional dimension": (V, V, ((0.5, 0), ((), ()))),
    "negative dimension": (V, V, (((-1,), (0,)), ((), ()))),
    "dimension beyond the rank": (V, V, (((1,), (0,)), ((), ()))),
    "dimension twice": (V, V, (((0, 0), (0, 0)), ((), ()))),
    "contracting and batch": (V, V, (((0,), (0,)), ((0,), (0,)))),
    "unequal numbers of batch dimensions": (V, V, (((), ()), ((0,), ()))),
    "unequal sizes": (V, V[:2], VECTORS),
    "unequal batches": (V, V[:2], (((), ()), ((0,), (0,)))),
    "f32 and int8": (V, cast("int8"), VECTORS),
    "bf16 and f16": (cast("bfloat16"), cast("float16"), VECTORS),
    "bf16 and f32": (cast("bfloat16"), V, VECTORS),
    "int8 and uint8": (cast("int8"), cast("uint8"), VECTORS),
    "uint8 and int32": (cast("uint8"), cast("int32"), VECTORS),
    "bool": (V > 1, V > 0, VECTORS),
    "complex": (V, cast("complex64") * 1j, VECTORS),
    "8-bit floats": (cast("float8_e4m3fn"), cast("float8_e5m2"), VECTORS),
    "f64 without x64": (V.astype(np.float64), V, VECTORS),
    "weak": (lambda: weak(V), lambda: weak(V), VECTORS),
    "weak and not": (lambda: weak(V), V, VECTORS),
    "weak integer and weak float": (lambda: weak(V.astype(int)), lambda: weak(V), VECTORS),
    "weak, with a dtype": (lambda: weak(V), lambda: weak(V), VECTORS, None, np.float32),
    "preferred bf16": (V, V, VECTORS, None, jnp.bfloat16),
    "preferred int32 of floats": (V, V, VECTORS, None, jnp.int32),
    "preferred f32 of integers": (cast("int32"), cast("int32"), VECTORS, None, jnp.float32),
    "preferred narrower integer": (cast("int32"), cast("int32"), VECTORS, None, jnp.int8),
    "preferred float": (V, V, VECTORS, None, float),
    "preferred nonsense": (V, V, VECTORS, None, "float33"),
    "precision by name": (V, V, VECTORS, "tensorfloat32"),
    "precision of each": (V, V, VECTORS, ("high", "highest")),
    "precisions": (V, V, VECTORS, (lax.Precision.HIGH, lax.Precision.DEFAULT)),
    "mixed precisions": (V, V, VECTORS, ("high", lax.Precision.HIGH)),
    "preset": (V, V, VECTORS, "BF16_BF16_F32"),
    "preset object": (V, V, VECTORS, lax.DotAlgorithmPreset.F32_F32_F32),
    "pair of presets": (V, V, VECTORS, ("F32_F32_F32", "F32_F32_F32")),
    "precision nonsense": (V, V, VECTORS, "sharp"),
    "precision of nothing": (V, V, VECTORS, (None, None)),
    "precision 2": (V, V, VECTORS, 2),
}


@pytest.mark.parametrize("case", CASES)
def test_types_and_errors_are_laxs(case):
    args = [x() if callable(x) and not isinstance(x, type) else x for x in CASES[case]]
    args[:2] = [x() if inspect.isfunction(x) else x for x in args[:2]]
    assert outcome(lambda: jax_moye.dot_general(*args)) == outcome(lambda: lax.dot_general(*args))
    if isinstance(args[0], (jax.Array, np.ndarray)) and isinstance(args[1], (jax.Array, np.ndarray)):
        ours, theirs = (
            outcome(lambda f=f: jax.jit(lambda x, y: f(x, y, *args[2:]))(*args[:2]))
            for f in (jax_moye.dot_general, lax.dot_general)
        )
        assert ours == theirs


def test_no_dimension_numbers_are_laxs():
    for shapes in (((3,), (3,)), ((2, 3), (3, 4)), ((2, 3), (3,)), ((2, 3, 4), (4, 5)), ((2, 3), (2, 3)), ((), (3,))):
        args = [np.ones(shape, np.float32) for shape in shapes]
        ours, theirs = (outcome(lambda f=f: f(*args, None)) for f in (jax_moye.dot_general, lax.dot_general))  # noqa: B023
        assert ours == theirs


def test_out_sharding_of_the_wrong_kind_is_laxs_error():
    for sharding in ("x", jax.sharding.PartitionSpec("x")):
        ours, theirs = (
            outcome(lambda f=f: f(V, V, VECTORS, out_sharding=sharding))  # noqa: B023
            for f in (jax_moye.dot_general, lax.dot_general)
        )
        assert ours == theirs


def test_errors_about_our_options_are_ours():
    with pytest.raises(ValueError, match="no compiled kernel is named"):
        jax_moye.dot_general(V, V, VECTORS, config="nope")
    with pytest.raises(ValueError, match="dot_general: implementation is None, 'moye' or 'xla'"):
        jax_moye.dot_general(V, V, VECTORS, implementation="nope")
    with pytest.raises(NotImplementedError, match="implementation='moye'"):
        dot_general(cast("int16"), cast("int16"), VECTORS)
    with pytest.raises(ValueError, match="einsum: implementation is None, 'moye' or 'xla'"):
        jax_moye.einsum("i,i", V, V, implementation="nope")


# ------------------------------------------------------------------------------------------------------- no copies

# In whichever place the dimensions are: one call, and nothing moved.
SHAPES_AND_DIMENSIONS = {
    "NN": ((4, 6), (6, 5), (((1,), (0,)), ((), ()))),
    "TN": ((6, 4), (6, 5), (((0,), (0,)), ((), ()))),
    "NT": ((4, 6), (5, 6), (((1,), (1,)), ((), ()))),
    "TT": ((6, 4), (5, 6), (((0,), (1,)), ((), ()))),
    "batch first": ((3, 4, 6), (3, 6, 5), (((2,), (1,)), ((0,), (0,)))),
    "batch last": ((4, 6, 3), (6, 5, 3), (((1,), (0,)), ((2,), (2,)))),
    "batch in the middle": ((4, 3, 6), (5, 3, 6), (((2,), (2,)), ((1,), (1,)))),
    "two batches": ((2, 3, 4, 6), (2, 3, 6, 5), (((3,), (2,)), ((0, 1), (0, 1)))),
    "two dimensions of m": ((2, 3, 6), (6, 5), (((2,), (0,)), ((), ()))),
    "two dimensions of m, apart": ((2, 6, 3), (6, 5), (((1,), (0,)), ((), ()))),
    "two dimensions of n": ((4, 6), (2, 3, 6), (((1,), (2,)), ((), ()))),
    "two contracted": ((4, 2, 3), (2, 3, 5), (((1, 2), (0, 1)), ((), ()))),
    "contracted in the other order": ((4, 2, 3), (2, 3, 5), (((2, 1), (1, 0)), ((), ()))),
    "vectors": ((6,), (6,), (((0,), (0,)), ((), ()))),
    "outer": ((4,), (5,), (((), ()), ((), ()))),
    "elementwise": ((4,), (4,), (((), ()), ((0,), (0,)))),
    "a dimension of size 1": ((4, 1, 6), (6, 1, 5), (((2,), (0,)), ((1,), (1,)))),
}


@pytest.mark.parametrize("case", SHAPES_AND_DIMENSIONS)
def test_strides_take_the_place_of_copies(rng, case):
    lhs_shape, rhs_shape, dimensions = SHAPES_AND_DIMENSIONS[case]
    x, y = integers(rng, lhs_shape, np.float32), integers(rng, rhs_shape, np.float32)
    fun = lambda x, y: dot_general(x, y, dimensions)  # noqa: E731
    np.testing.assert_array_equal(jax.jit(fun)(x, y), lax.dot_general(x, y, dimensions))
    assert kernel_calls(fun, x, y) == 1
    assert data_movements(fun, x, y) == []


def test_equal_products_have_equal_programs():
    x, y = np.ones((4, 6), np.float32), np.ones((6, 5), np.float32)
    assert str(jax.make_jaxpr(dot_general, static_argnums=2)(x, y, (((1,), (0,)), ((), ())))) == str(
        jax.make_jaxpr(functools.partial(jax_moye.matmul, implementation="moye", interpret=True))(x, y)
    )


# ---------------------------------------------------------------------------------------------------------- einsum

PAIRS = [
    "mk,kn->mn",
    "mk,kn->nm",
    "km,nk->nm",
    "bmk,bkn->bmn",
    "bmk,bkn->mbn",
    "mk,kn",
    "m k, k n -> m n",
    "k,k->",
    "m,n->nm",
    "MK,KN->MN",
]
SIZES = dict(b=3, m=4, n=5, k=6)


def of_subscripts(rng, subscripts, dtype=np.float32):
    inputs = subscripts.replace(" ", "").partition("->")[0].split(",")
    return [jnp.asarray(integers(rng, [SIZES[label.lower()] for label in names], dtype)) for names in inputs]


@pytest.mark.parametrize("subscripts", PAIRS)
def test_einsum_of_a_pair_is_one_call_without_a_transpose(rng, subscripts):
    operands = of_subscripts(rng, subscripts)
    fun = functools.partial(einsum, subscripts)
    np.testing.assert_array_equal(fun(*operands), jnp.einsum(subscripts, *operands))
    assert kernel_calls(fun, *operands) == 1
    assert data_movements(fun, *operands) == []


@pytest.mark.parametrize(
    "subscripts",
    ["...mk,...kn->...mn", "mm,mk->mk", "mk,n->n", "mk,kn,nb->mb", "mk->km", "mk,mk,mk->k", "mk,mk->m", "bmk,bk->m"],
)
def test_other_einsums_are_jaxs_over_our_products(rng, subscripts):
    operands = of_subscripts(rng, subscripts.replace("...", "b"))
    ours, theirs = (outcome(lambda f=f: f(subscripts, *operands)) for f in (jax_moye.einsum, jnp.einsum))
    assert ours == theirs


def test_jaxs_einsum_still_takes_a_dot_general(rng):
    """`_dot_general` is not documented: what we do when it goes has to be decided then."""
    x = of_subscripts(rng, "mk")[0]
    with pytest.raises(ZeroDivisionError):
        jnp.einsum("mk,nk->mn", x, x, _dot_general=lambda *args, **kwargs: 1 / 0)
    y, z = jnp.ones((6, 5)), jnp.ones((5, 3))
    fun = lambda x, y, z: einsum("mk,kn,nb->mb", x, y, z)  # noqa: E731
    assert kernel_calls(fun, x, y, z) == 2
    fun = functools.partial(einsum, "...mk,...kn->...mn")
    assert kernel_calls(fun, x, y) == 1


def test_einsums_programs_are_kept():
    x = jnp.ones((4, 4))
    traced = 0

    def product(*args, **kwargs):
        nonlocal traced
        traced += 1
        return lax.dot_general(*args, **kwargs)

    jnp.einsum("mk,kn,nb->mb", x, x, x, _dot_general=product)
    jnp.einsum("mk,kn,nb->mb", x, x, x, _dot_general=product)
    assert traced == 2  # JAX keeps the program of one callable, so ours has to be the same each time
    with_options = jax_moye.einsum.__globals__["_with_options"]
    options = dict(config=None, implementation=None, interpret=True, deterministic=None, batch_invariant=None)
    assert with_options(**options) is with_options(**options)


@pytest.mark.parametrize(
    "args",
    [
        ("i,i->", V, [1.0, 2.0, 3.0]),
        ("i,i->", V, V[:2]),
        ("ij,i->", V, V),
        ("i,i->j", V, V),
        ("i,i->", V),
        ("i,i", cast("bfloat16"), V),
        ("i,i", cast("int8"), V),
        ("i,j", V > 0, V > 1),
        (V, [0], V, [0], [0]),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"preferred_element_type": "bfloat16"}, {"precision": "sharp"}], ids=str)
def test_einsums_types_and_errors_are_jaxs(args, options):
    ours, theirs = (outcome(lambda f=f: f(*args, **options)) for f in (jax_moye.einsum, jnp.einsum))
    assert ours == theirs


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "int64"])
def test_uint64_and_signed_integers_make_a_weak_float(dtype):
    with jax.enable_x64(True):
        a, b = jnp.arange(6, dtype="uint64").reshape(2, 3), jnp.arange(6).reshape(3, 2).astype(dtype)
        for x, y in ((a, b), (b, a)):
            for preferred in (None, "float64"):
                options = {"preferred_element_type": preferred}
                assert outcome(lambda: jax_moye.matmul(x, y, **options)) == outcome(lambda: jnp.matmul(x, y, **options))  # noqa: B023
                ours, theirs = (
                    outcome(lambda f=f: f("ij,jk", x, y, **options))  # noqa: B023
                    for f in (jax_moye.einsum, jnp.einsum)
                )
                assert ours == theirs


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_weak_floats_and_4_bit_integers_have_the_dtype_that_is_asked_for(dtype):
    """JAX promotes no two of them."""
    a, b = cast(dtype), weak(V)
    for options in ({}, {"preferred_element_type": "bfloat16"}):
        assert outcome(lambda: jax_moye.matmul(a, b, **options)) == outcome(lambda: jnp.matmul(a, b, **options))  # noqa: B023
        ours, theirs = (outcome(lambda f=f: f("i,i", a, b, **options)) for f in (jax_moye.einsum, jnp.einsum))  # noqa: B023
        assert ours == theirs


def test_einsum_keeps_weak_types():
    x = weak(V)
    assert jax.typeof(x).weak_type
    for args in ((x, x), (x, V), (weak(V.astype(int)), x), (cast("int8"), x), (x, V > 0)):
        for preferred in (None, np.float32):
            ours, theirs = (
                outcome(lambda f=f: f("i,i", *args, preferred_element_type=preferred))  # noqa: B023
                for f in (jax_moye.einsum, jnp.einsum)
            )
            assert ours == theirs


def test_attention_scores_for_a_gpu():
    q, k = (jax.ShapeDtypeStruct((2, size, 8, 64), jnp.bfloat16) for size in (128, 256))
    scores = functools.partial(jax_moye.einsum, "bqhd,bkhd->bhqk", implementation="moye")
    (call,) = custom_calls(lowered_text(scores, q, k))
    assert call.sizes == (2, 8, 128, 256, 64)  # two batch dimensions that no stride joins
    q, k = (jax.ShapeDtypeStruct((2, 8, size, 64), jnp.bfloat16) for size in (128, 256))
    scores = functools.partial(jax_moye.einsum, "bhqd,bhkd->bhqk", implementation="moye")
    (call,) = custom_calls(lowered_text(scores, q, k))
    assert call.sizes == (16, 128, 256, 64)


# ---------------------------------------------------------------------------------------------------------- matmul

WEAK_AND_NOT = [
    (lambda: weak(V), lambda: weak(V)),
    (lambda: weak(V), lambda: V),
    (lambda: weak(V), lambda: cast("bfloat16")),
    (lambda: weak(V.astype(int)), lambda: weak(V)),
    (lambda: weak(V.astype(int)), lambda: cast("int8")),
    (lambda: V > 0, lambda: weak(V)),
    (lambda: V > 0, lambda: V > 1),
    (lambda: V > 0, lambda: weak(V.astype(int))),
    (lambda: cast("int8"), lambda: weak(V)),
    (lambda: weak(V) * 1j, lambda: cast("int8")),
    (lambda: cast("complex64"), lambda: weak(V)),
    (lambda: cast("uint8"), lambda: cast("int8")),
]


@pytest.mark.parametrize("case", range(len(WEAK_AND_NOT)))
@pytest.mark.parametrize("preferred", [None, np.float32, jnp.bfloat16, float])
def test_matmul_has_jnps_types(case, preferred):
    a, b = (make() for make in WEAK_AND_NOT[case])
    if jnp.result_type(a, b) == jnp.complex64:
        preferred = None if preferred is None else np.complex64
    for wrap in (lambda f: f, jax.jit):
        ours, theirs = (
            outcome(lambda f=f: wrap(functools.partial(f, preferred_element_type=preferred))(a, b))  # noqa: B023
            for f in (jax_moye.matmul, jnp.matmul)
        )
        assert ours == theirs


MATRIX = np.ones((3, 4), np.float32)


@pytest.mark.parametrize(
    "args",
    [
        ([[1.0]], MATRIX),
        (MATRIX, None),
        (3.0, MATRIX),
        (MATRIX, True),
        (MATRIX, np.float32(1)),
        (MATRIX, MATRIX),
        (MATRIX, V),
        (V, np.ones(4)),
        (np.ones((2, 3, 4)), np.ones((3, 4, 5))),
        (np.array(["a"]), V),
        (np.array([None]), V),
        (V, V, {"precision": "sharp"}),
        (V, V, {"preferred_element_type": "float33"}),
        (cast("int32"), cast("int32"), {"preferred_element_type": "int8"}),
    ],
    ids=lambda args: ", ".join(f"{type(x).__name__}{np.shape(x)}" if i < 2 else str(x) for i, x in enumerate(args)),
)
def test_matmul_raises_what_jnp_raises(args):
    """The class, that is, so that programs that catch it still do; the words are ours, and name the shapes."""
    options = args[2] if len(args) > 2 else {}
    with pytest.raises(Exception) as theirs:  # noqa: PT011
        jnp.matmul(*args[:2], **options)
    with pytest.raises(type(theirs.value)):
        jax_moye.matmul(*args[:2], **options)
