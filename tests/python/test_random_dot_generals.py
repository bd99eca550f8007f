"""300 random dot_generals: equal to lax's in type, bits and errors; those of served dtypes also through the kernels."""

import functools

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from python.support import TARGET, lowered_text

import jax_moye

DTYPES = ["bfloat16", "float16", "float32", "float8_e4m3fn", "float8_e5m2", "complex64"]
DTYPES += ["int8", "int16", "int32", "uint8", "uint32", "bool"]
SERVED = ["bfloat16", "float16", "float32"]
PRECISIONS = [None, "default", "high", "highest", "bfloat16", lax.Precision.HIGHEST, ("high", "default")]
PRECISIONS += ["BF16_BF16_F32", lax.DotAlgorithmPreset.F32_F32_F32]
BAD_PRECISIONS = ["sharp", 3, ("high",), (None, None), ("high", lax.Precision.HIGH)]


def pick(rng, choices):
    return choices[rng.integers(len(choices))]


def random_array(rng, shape, dtype, largest=2):
    """Small integers: products and sums are exact in the wide dtypes, and round alike in the others."""
    kind = np.dtype(dtype).kind
    values = rng.integers(0 if kind in "ub" else -largest, largest + 1, shape)
    return values.astype(np.float64).astype(np.dtype(dtype))


def random_shapes(rng, most=2, largest=5):
    """Shapes of lhs and rhs and dimension numbers, with every dimension in a random place."""
    sizes = {kind: [int(rng.integers(1, largest + 1)) for _ in range(rng.integers(0, most + 1))] for kind in "bmnk"}
    if rng.random() < 0.08:
        kind = pick(rng, "bmnk")
        sizes[kind] = [0] * len(sizes[kind])
    sides = []
    for kind in "mn":
        names = [("b", i) for i in range(len(sizes["b"]))] + [("k", i) for i in range(len(sizes["k"]))]
        names += [(kind, i) for i in range(len(sizes[kind]))]
        rng.shuffle(names)
        names = [(str(name), int(i)) for name, i in names]
        shape = tuple(sizes[name][i] for name, i in names)
        sides.append((shape, *(tuple(names.index((name, i)) for i in range(len(sizes[name]))) for name in "kb")))
    (lhs, lhs_k, lhs_b), (rhs, rhs_k, rhs_b) = sides
    return lhs, rhs, ((lhs_k, rhs_k), (lhs_b, rhs_b))


def spoilt(rng, lhs, rhs, dimensions, precision, preferred):
    """The arguments with one thing wrong, or at least unusual."""
    (lhs_k, rhs_k), batch = dimensions
    ways = [
        lambda: (lhs, rhs, ((lhs_k + (0,), rhs_k), batch), precision, preferred),
        lambda: (lhs, rhs, ((lhs_k + (0,), rhs_k + (0,)), batch), precision, preferred),
        lambda: (lhs, rhs, ((lhs_k + (lhs.ndim,), rhs_k + (0,)), batch), precision, preferred),
        lambda: (lhs, rhs, ((lhs_k, rhs_k), (batch[0] + (-1,), batch[1] + (0,))), precision, preferred),
        lambda: (lhs, rhs, (batch, (lhs_k, rhs_k)), precision, preferred),  # which is well formed
        lambda: (lhs, rhs, ((lhs_k, rhs_k),), precision, preferred),
        lambda: (lhs, rhs, ((lhs_k, "k"), batch), precision, preferred),
        lambda: (lhs, rhs, dimensions, pick(rng, BAD_PRECISIONS), preferred),
        lambda: (lhs, rhs, dimensions, precision, "float33"),
        lambda: (lhs, rhs, dimensions, precision, np.int8),
        lambda: (np.concatenate([np.atleast_1d(lhs)] * 2), rhs, dimensions, precision, preferred),
        lambda: (lhs[..., None], rhs, dimensions, precision, preferred),
        lambda: (lhs.tolist(), rhs, dimensions, precision, preferred),
        lambda: (lhs, None, dimensions, precision, preferred),
        lambda: (np.asarray([object()]), rhs, dimensions, precision, preferred),
    ]
    return pick(rng, ways)()


def random_call(seed):
    rng = np.random.default_rng(seed)
    lhs_shape, rhs_shape, dimensions = random_shapes(rng)
    lhs_dtype = pick(rng, DTYPES)
    rhs_dtype = lhs_dtype if rng.random() < 0.7 else pick(rng, DTYPES)
    lhs, rhs = (random_array(rng, s, d) for s, d in ((lhs_shape, lhs_dtype), (rhs_shape, rhs_dtype)))
    preferred = None if rng.random() < 0.6 else pick(rng, [jnp.float32, jnp.bfloat16, "float16", np.int32, float, int])
    precision = None if rng.random() < 0.6 else pick(rng, PRECISIONS)
    args = (lhs, rhs, dimensions, precision, preferred)
    if rng.random() < 0.25:
        return spoilt(rng, *args)
    if rng.random() < 0.3:  # weak types, and Python's numbers
        made_weak = [weak(x) if rng.random() < 0.7 else x for x in args[:2]]
        return (*made_weak, *args[2:])
    return args


def weak(x):
    """Python's number, or an array as weakly typed as one."""
    integer = x.dtype.kind in "iu"
    if x.ndim == 0:
        return int(x) if integer else float(x.real)
    return jnp.where(x.real > 0, 1, -2) if integer else jnp.where(x.real > 0, 1.0, -2.0)


def outcome(fun, args):
    try:
        out = fun(*args)
    except Exception as error:
        return type(error), str(error)
    return str(jax.typeof(out)), jax.typeof(out).weak_type, np.asarray(out).tobytes()


@pytest.mark.filterwarnings("ignore:Casting complex")
@pytest.mark.parametrize("hundred", range(3))
def test_xlas_path_is_lax_dot_general(hundred):
    errors = weak_types = 0
    for seed in range(100 * hundred, 100 * hundred + 100):
        args = random_call(seed)
        theirs = outcome(lax.dot_general, args)
        ours = outcome(jax_moye.dot_general, args)
        assert ours[:2] == theirs[:2], (seed, args)
        errors += len(theirs) == 2
        weak_types += theirs[1] is True
        if len(theirs) == 3 and ours[2] != theirs[2]:
            # Mixed operands: ours may be summed in the wider dtype and rounded once.
            assert_close(args, jax_moye.dot_general(*args), lax.dot_general(*args), seed)
    assert 10 <= errors <= 40
    assert weak_types >= 5


def float64_product(lhs, rhs, dimensions):
    (lhs_k, rhs_k), (lhs_b, rhs_b) = dimensions
    names = iter("abcdefghijklmnop")
    left, right = [""] * np.ndim(lhs), [""] * np.ndim(rhs)
    for i, j in [*zip(lhs_b, rhs_b, strict=True), *zip(lhs_k, rhs_k, strict=True)]:
        left[i] = right[j] = next(names)
    left, right = ([name or next(names) for name in side] for side in (left, right))
    out = [left[i] for i in lhs_b]
    out += [name for i, name in enumerate(left) if i not in (*lhs_b, *lhs_k)]
    out += [name for i, name in enumerate(right) if i not in (*rhs_b, *rhs_k)]
    wide = [np.asarray(x).astype(np.complex128 if np.asarray(x).dtype.kind == "c" else np.float64) for x in (lhs, rhs)]
    return np.einsum(f"{''.join(left)},{''.join(right)}->{''.join(out)}", *wide)


def assert_close(args, ours, theirs, seed):
    exact = float64_product(*args[:3])
    wide = exact.dtype
    error, their_error = (np.abs(np.asarray(x).astype(wide) - exact).max(initial=0) for x in (ours, theirs))
    assert error <= their_error, (seed, args)


def test_jitted_calls_are_lax_dot_general():
    for seed in range(300, 320):
        lhs, rhs, *rest = random_call(seed)
        if not all(isinstance(x, (np.ndarray, jax.Array)) and np.asarray(x).dtype != object for x in (lhs, rhs)):
            continue
        ours, theirs = (
            outcome(jax.jit(lambda x, y, f=f: f(x, y, *rest)), (lhs, rhs))  # noqa: B023
            for f in (jax_moye.dot_general, lax.dot_general)
        )
        assert ours[:2] == theirs[:2], seed


@pytest.mark.parametrize("thirty", range(2))
def test_kernels_in_the_emulator(thirty):
    fun = functools.partial(jax_moye.dot_general, interpret=True)
    served = 0
    dtypes = SERVED + [d for d, s in (("int8", "s8"), ("float8_e4m3fn", "e4m3"), ("float8_e5m2", "e5m2")) if has(s)]
    for seed in range(30 * thirty, 30 * thirty + 30):
        rng = np.random.default_rng(10_000 + seed)
        lhs_shape, rhs_shape, dimensions = random_shapes(rng, most=2, largest=7)
        dtype = pick(rng, dtypes)
        lhs, rhs = (random_array(rng, shape, dtype) for shape in (lhs_shape, rhs_shape))
        preferred = {"int8": jnp.int32}.get(dtype, jnp.float32 if rng.random() < 0.5 or dtype[:6] == "float8" else None)
        actual = fun(lhs, rhs, dimensions, preferred_element_type=preferred)
        exact = float64_product(lhs, rhs, dimensions)
        assert actual.dtype == (lhs.dtype if preferred is None else preferred)
        # Sums of up to 49 products of at most 4 are exact in all of these dtypes.
        np.testing.assert_array_equal(np.asarray(actual).astype(np.float64), exact, err_msg=str(seed))
        bound = functools.partial(fun, dimension_numbers=dimensions, preferred_element_type=preferred)
        calls = lowered_text(bound, lhs, rhs, platform="cpu").count(f"@{TARGET}")
        assert calls <= 1
        served += calls
        if not calls and 0 not in lhs_shape + rhs_shape:
            with pytest.raises(NotImplementedError, match="more than one matrix multiplication"):
                bound(lhs, rhs, implementation="moye")
    assert served >= 12


def has(dtype):
    return any(row.dtype == dtype for row in jax_moye.configs())


def test_the_arrays_are_what_they_should_be():
    rng = np.random.default_rng(0)
    assert random_array(rng, (3,), "bfloat16").dtype == ml_dtypes.bfloat16
    kinds = {type(random_call(seed)[0]) for seed in range(100)}
    assert {np.ndarray, list} <= kinds
    assert any(issubclass(kind, jax.Array) for kind in kinds)
