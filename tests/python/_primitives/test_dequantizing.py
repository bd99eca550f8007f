"""Products by weights that a program dequantizes itself: which are found, and what the kernel computes of them."""

from __future__ import annotations

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.quantized import f64, use_fake_rows
from python.support import UNIT

import jax_moye
from jax_moye._kernels.configs import weights_configs
from jax_moye._primitives.dequantized import Entries, dequantized_p
from jax_moye._primitives.dequantizing import _coalesced, _split, without_unread
from jax_moye._primitives.patterns import Program

M, K, N, G = 3, 256, 32, 4
NAME = "jax_moye_dequantized"
RANGES = {"int8": (-128, 127), "int4": (-8, 7), "uint4": (0, 15), "float8_e4m3fn": (-16, 16), "uint8": (0, 255)}
needs_rows = pytest.mark.skipif(not weights_configs(), reason="no row of sm90_weights in this build")


@pytest.fixture
def fake_rows(monkeypatch):
    use_fake_rows(monkeypatch)


def operands(w="int8", x="bfloat16", zeros="int8", seed=0):
    """x (M,K), w (K,N), s (G,N) of numbers that bf16 and f16 have, and z (G,N)."""
    rng = np.random.default_rng(seed)
    lowest, highest = RANGES[w]
    least, most = RANGES.get(zeros, (-8, 8))
    return (
        jnp.asarray(rng.standard_normal((M, K)), x),
        jnp.asarray(rng.integers(lowest, highest + 1, (K, N)), w),
        jnp.asarray(rng.integers(64, 128, (G, N)) / 2**13, jnp.float32),
        jnp.asarray(rng.integers(least, most + 1, (G, N)), zeros),
    )


def grouped(w):
    return w.reshape(G, K // G, N)


def matrix(w):
    return w.reshape(K, N)


# (x, w, s, z, h, f) -> result: h is x's dtype, f is float32. For a reference both are float64.
COLUMN, GROUPS, ONE = Entries(1, N), Entries(G, N), Entries(1, 1, 1.0)
FOUND = {
    "weights alone": (lambda x, w, s, z, h, f: x @ w.astype(h), ONE, None),
    "a scale in 16 bits": (lambda x, w, s, z, h, f: x @ (w.astype(h) * s[0].astype(h)), COLUMN, None),
    "a scale in f32, which is the result's": (lambda x, w, s, z, h, f: x @ (w.astype(h) * s[0]), COLUMN, None),
    "a scale behind": (lambda x, w, s, z, h, f: (x @ w.astype(h)).astype(f) * s[0], COLUMN, None),
    "a scale behind, a row of rows": (lambda x, w, s, z, h, f: s[:1] * (x @ w.astype(h)).astype(f), COLUMN, None),
    "behind, and narrow": (lambda x, w, s, z, h, f: ((x @ w.astype(h)).astype(f) * s[0]).astype(h), COLUMN, None),
    "behind sums of f32": (
        lambda x, w, s, z, h, f: (lax.dot(x, w.astype(h), preferred_element_type=f) * s[0]).astype(h),
        COLUMN,
        None,
    ),
    "a number behind": (lambda x, w, s, z, h, f: (x @ w.astype(h)) * 0.125, Entries(1, 1, 0.125), None),
    "a number in front": (lambda x, w, s, z, h, f: x @ (0.125 * w.astype(h)), Entries(1, 1, 0.125), None),
    "one number in memory": (lambda x, w, s, z, h, f: x @ (w.astype(f) * s[0, 0]).astype(h), Entries(1, 1), None),
    "groups and zeros": (
        lambda x, w, s, z, h, f: x @ matrix((grouped(w.astype(f)) - z[:, None].astype(f)) * s[:, None]).astype(h),
        GROUPS,
        GROUPS,
    ),
    "rounded, then reshaped": (
        lambda x, w, s, z, h, f: x @ matrix((grouped(w).astype(f) * s[:, None]).astype(h)),
        GROUPS,
        None,
    ),
    "repeated scales": (
        lambda x, w, s, z, h, f: x @ (w.astype(h) * jnp.repeat(s.astype(h), K // G, axis=0)),
        GROUPS,
        None,
    ),
    "repeated zeros, one scale": (
        lambda x, w, s, z, h, f: x @ ((w.astype(f) - jnp.repeat(z, K // G, axis=0).astype(f)) * s[0]).astype(h),
        COLUMN,
        GROUPS,
    ),
    "zeros in groups, a scale behind": (
        lambda x, w, s, z, h, f: (x @ matrix(grouped(w.astype(h)) - z[:, None].astype(h))).astype(f) * s[0],
        COLUMN,
        GROUPS,
    ),
    "zeros of integers": (
        lambda x, w, s, z, h, f: x @ ((w.astype(jnp.int32) - z[:1].astype(jnp.int32)).astype(h) * s[0].astype(h)),
        COLUMN,
        COLUMN,
    ),
    "a number less": (lambda x, w, s, z, h, f: x @ ((w.astype(h) - 8) * s[0].astype(h)), COLUMN, Entries(1, 1, 8.0)),
    "a scale for each group, for all columns": (
        lambda x, w, s, z, h, f: x @ matrix(grouped(w).astype(h) * s[:, :1, None].astype(h)),
        Entries(G, 1),
        None,
    ),
    "two dimensions summed": (
        lambda x, w, s, z, h, f: jnp.einsum(
            "mgk,gkn->mn", x.reshape(-1, G, K // G), grouped(w).astype(h) * s[:, None].astype(h)
        ),
        GROUPS,
        None,
    ),
    "columns of two dimensions": (
        lambda x, w, s, z, h, f: jnp.einsum(
            "mk,kab->mab", x, w.reshape(K, 4, N // 4).astype(h) * s[0].reshape(4, N // 4).astype(h)
        ).reshape(-1, N),
        COLUMN,
        None,
    ),
    "rows of two dimensions": (
        lambda x, w, s, z, h, f: ((x[None] @ w.astype(h)).astype(f) * s[0])[0],
        COLUMN,
        None,
    ),
    "x in f32": (lambda x, w, s, z, h, f: x.astype(f) @ (w.astype(f) * s[0]), COLUMN, None),
    "x in f32, a narrow result": (
        lambda x, w, s, z, h, f: (x.astype(f) @ (w.astype(f) * s[0])).astype(h),
        COLUMN,
        None,
    ),
    "a scale that is converted to fewer bits": (
        lambda x, w, s, z, h, f: x @ (w.astype(h) * (2 * s[0]).astype(h)),
        COLUMN,
        None,
    ),
}


def equations(fun, *arrays, **options):
    with jax_moye.options(**{"interpret": True, **options}):
        return jax.make_jaxpr(jax_moye.optimize(fun))(*arrays).eqns


def count(fun, *arrays, **options):
    return sum(equation.primitive is dequantized_p for equation in equations(fun, *arrays, **options))


def typed(fun, x):
    """The program for x's dtype, and for float64."""
    return (lambda *args: fun(*args, x, jnp.float32)), (lambda *args: fun(*args, jnp.float64, jnp.float64))


def types_of(name, w):
    """Whether a program is one of a type of weights."""
    _, _, zeros = FOUND[name]
    return zeros is None or w != "float8_e4m3fn"


def zeros_of(w):
    return "int4" if w == "int4" else "int8"


@pytest.mark.parametrize("w", ["int8", "int4", "uint4", "float8_e4m3fn"])
@pytest.mark.parametrize("name", FOUND)
def test_what_is_found(name, w, fake_rows):
    fun, scales, zeros = FOUND[name]
    if not types_of(name, w):
        return
    arrays = operands(w, zeros=zeros_of(w))
    program, _ = typed(fun, jnp.bfloat16)
    found = equations(program, *arrays)
    (equation,) = (one for one in found if one.primitive is dequantized_p)
    assert (equation.params["scales"], equation.params["zeros"]) == (scales, zeros)
    assert equation.params["k"] == K
    x, weights, *_ = (one.aval for one in equation.invars)
    assert (str(x.dtype), str(weights.dtype)) == ("bfloat16", w)
    # Nothing is left that has as many elements as w, but in its own dtype.
    others = (out.aval for one in found for out in one.outvars)
    assert all(aval.dtype == w for aval in others if math.prod(aval.shape) == K * N)
    original = equation.params["original"]
    assert [one.primitive.name for one in original.jaxpr.eqns].count("jax_moye_contract") == 1


@needs_rows
@pytest.mark.parametrize(
    ("w", "x"), [("int8", "bfloat16"), ("uint4", "bfloat16"), ("float8_e4m3fn", "bfloat16"), ("int4", "float16")]
)
@pytest.mark.parametrize("name", FOUND)
def test_the_kernel_rounds_less_than_the_program(name, w, x):
    """Within the bound of a product whose weights are exact, against the program in float64."""
    fun, *_ = FOUND[name]
    if not types_of(name, w):
        return
    arrays = operands(w, x, zeros_of(w))
    program, wide = typed(fun, x)
    if not count(program, *arrays):
        pytest.skip("no row for these dtypes in this build")
    with jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(program)).lower(*arrays)
        result = lowered.compile()(*arrays)
    assert "jax_moye_weights_gemm" in lowered.as_text()
    as_it_was = jax.eval_shape(program, *arrays)
    assert (result.shape, result.dtype) == (as_it_was.shape, as_it_was.dtype)
    with jax.enable_x64(True):
        x64, w64, s64, z64 = (jnp.asarray(f64(one)) for one in arrays)
        exact = f64(wide(x64, w64, s64, z64))
        weights = f64(wide(jnp.eye(K), w64, s64, z64))
    bound = (K + 4) * UNIT["float32"] * (abs(f64(x64)) @ abs(weights)) + 1.01 * UNIT[str(result.dtype)] * abs(exact)
    assert (abs(f64(result) - exact) <= bound).all()


def test_the_bound_is_one_that_rounded_weights_break():
    """Else the test above would pass without a kernel."""
    arrays = operands("int8")
    fun, *_ = FOUND["groups and zeros"]
    program, wide = typed(lambda *args: fun(*args).astype(args[-1]), jnp.bfloat16)
    in_f32 = jnp.dot(
        arrays[0], program(jnp.eye(K, dtype=jnp.bfloat16), *arrays[1:]), preferred_element_type=jnp.float32
    )
    with jax.enable_x64(True):
        x64, *others = (jnp.asarray(f64(one)) for one in arrays)
        exact, weights = f64(wide(x64, *others)), f64(wide(jnp.eye(K), *others))
    bound = (K + 4) * UNIT["float32"] * (abs(f64(x64)) @ abs(weights)) + UNIT["float32"] * abs(exact)
    assert (abs(f64(in_f32) - exact) > bound).any()


@needs_rows
@pytest.mark.parametrize(("w", "zeros"), [("int8", "int8"), ("uint4", "int8"), ("int4", "int4")])
def test_the_outermost_zeros_are_exact(w, zeros):
    """Of ones and of integers the sums are exact, whatever the kernel subtracts."""
    _, weights, _, _ = operands(w)
    ends = RANGES[zeros]
    z = jnp.asarray(np.resize(np.array([*ends, ends[0] + 1, ends[1] - 1]), (1, N)), zeros)
    x = jnp.zeros((M, K), jnp.bfloat16).at[0, 0].set(1).at[1, 5].set(1).at[2, K - 1].set(1)
    weights = weights.at[0].set(RANGES[w][0]).at[5].set(RANGES[w][1])
    program = lambda x, w, z: x.astype(jnp.float32) @ (w.astype(jnp.float32) - z.astype(jnp.float32))  # noqa: E731
    assert count(program, x, weights, z) == 1
    with jax_moye.options(interpret=True):
        result = jax.jit(jax_moye.optimize(program))(x, weights, z)
    np.testing.assert_array_equal(f64(result), f64(weights)[[0, 5, K - 1]] - f64(z))


bf16, f32 = jnp.bfloat16, jnp.float32
NOT_FOUND = {
    "columns of w in memory": lambda x, w, s, z: x @ (w.reshape(N, K).T.astype(bf16)),
    "a scale of each row": lambda x, w, s, z: x @ (w.astype(bf16) * jnp.resize(s, (K, 1)).astype(bf16)),
    "scales of all elements": lambda x, w, s, z: x @ (w.astype(bf16) * jnp.tile(s, (K // G, 1)).astype(bf16)),
    "groups that take turns": lambda x, w, s, z: x @ matrix(w.reshape(K // G, G, N).astype(bf16) * s.astype(bf16)),
    "short groups": lambda x, w, s, z: x @ (w.astype(bf16) * jnp.repeat(jnp.tile(s, (2, 1)), 32, axis=0).astype(bf16)),
    "groups of two lengths": lambda x, w, s, z: (
        x
        @ ((w.astype(f32) - jnp.repeat(z[:2].astype(f32), K // 2, axis=0)) * jnp.repeat(s, K // G, axis=0)).astype(bf16)
    ),
    "zeros of floats": lambda x, w, s, z: x @ ((w.astype(f32) - s[0]) * s[0]).astype(bf16),
    "zeros behind scales": lambda x, w, s, z: x @ (w.astype(f32) * s[0] - z[0].astype(f32)).astype(bf16),
    "zeros less weights": lambda x, w, s, z: x @ (z[0].astype(f32) - w.astype(f32)).astype(bf16),
    "zeros of more bits": lambda x, w, s, z: x @ (w.astype(f32) - z[0].astype(jnp.int32).astype(f32) * 2).astype(bf16),
    "half a zero": lambda x, w, s, z: x @ (w.astype(f32) - 7.5).astype(bf16),
    "a zero too large": lambda x, w, s, z: x @ (w.astype(f32) - 128).astype(bf16),
    "a difference that wraps": lambda x, w, s, z: x @ (w - z[0]).astype(bf16),
    "two scales in front": lambda x, w, s, z: x @ (w.astype(f32) * s[0] * s[1]).astype(bf16),
    "a quotient": lambda x, w, s, z: x @ (w.astype(f32) / s[0]).astype(bf16),
    "unsigned bytes": lambda x, w, s, z: x @ (w.astype(jnp.uint8).astype(bf16) * s[0].astype(bf16)),
    "rounded in front of the scale": lambda x, w, s, z: (
        x @ ((w.astype(f32) - z[0].astype(f32)).astype(jnp.float8_e5m2).astype(f32) * s[0]).astype(bf16)
    ),
    "x of f32": lambda x, w, s, z: (2 * x.astype(f32)) @ (w.astype(f32) * s[0]),
    "of the highest precision": lambda x, w, s, z: jnp.matmul(x.astype(f32), w.astype(f32) * s[0], precision="highest"),
    "an algorithm": lambda x, w, s, z: jnp.matmul(x, w.astype(bf16), precision="BF16_BF16_F32"),
    "another result": lambda x, w, s, z: lax.dot(x, w.astype(bf16), preferred_element_type=jnp.float16),
    "many matrices": lambda x, w, s, z: jnp.einsum("bmk,bkn->bmn", x[None], w[None].astype(bf16)),
    "weights on the left": lambda x, w, s, z: w.reshape(N, K).astype(bf16) @ x.T,
    "columns that do not fill a load": lambda x, w, s, z: x @ w[:, :8].astype(bf16),
    "too many rows": lambda x, w, s, z: jnp.tile(x, (22, 1)) @ w.astype(bf16),
    "no rows": lambda x, w, s, z: x[:0] @ w.astype(bf16),
    "its own config": lambda x, w, s, z: jax_moye.matmul(x, w.astype(bf16), implementation="xla"),
    "integers": lambda x, w, s, z: x.astype(jnp.int8) @ w,
}


@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_is_not_found(name, fake_rows):
    arrays = operands()
    assert count(NOT_FOUND[name], *arrays) == 0
    got, wanted = (jax.eval_shape(fun, *arrays) for fun in (jax_moye.optimize(NOT_FOUND[name]), NOT_FOUND[name]))
    assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype)


def test_zeros_that_may_be_too_large_for_the_kernel(fake_rows):
    """In bf16 it subtracts zero + 136 from int4, which is exact up to 256."""
    less = lambda x, w, z: x @ (w.astype(bf16) - z[0].astype(bf16))  # noqa: E731
    for zeros, found in (("int8", 0), ("int4", 1), ("uint4", 1), ("uint8", 0)):
        x, w, _, z = operands("int4", zeros=zeros)
        assert count(less, x, w, z) == found
        assert count(lambda x, w, n=120 + (found == 0): x @ (w.astype(bf16) - n), x, w) == found


def test_where_it_is_taken(fake_rows):
    """Only where our kernels are asked for, or emulated; with as many rows as they are for, if rows may count."""
    arrays = operands()
    program, _ = typed(FOUND["a scale behind"][0], jnp.bfloat16)
    many = jnp.tile(arrays[0], (22, 1)), *arrays[1:]
    for options, few_rows, many_rows in (
        ({}, 0, 0),
        ({"implementation": "moye"}, 1, 0),
        ({"implementation": "xla"}, 0, 0),
        ({"batch_invariant": True}, 0, 0),
        ({"deterministic": True}, 0, 0),
        ({"interpret": True}, 1, 0),
        ({"implementation": "moye", "batch_invariant": True}, 1, 1),
    ):
        options = {"interpret": None, **options}
        assert (count(program, *arrays, **options), count(program, *many, **options)) == (few_rows, many_rows), options
    found = equations(program, *arrays, interpret=None, implementation="moye", deterministic=True)
    (equation,) = (one for one in found if one.primitive is dequantized_p)
    assert (equation.params["implementation"], equation.params["deterministic"]) == ("moye", True)


def test_a_build_without_the_kernel_leaves_programs_as_they_are(monkeypatch):
    from jax_moye._selection import weights

    monkeypatch.setattr(weights, "weights_configs", lambda: ())
    program, _ = typed(FOUND["weights alone"][0], jnp.bfloat16)
    assert count(program, *operands()) == 0


def test_what_others_read_stays(fake_rows):
    """The dequantized weights; the product in front of its scale; and a second scale, which is XLA's."""
    x, w, s, _ = operands()

    def names(fun):
        return [equation.primitive.name for equation in equations(fun, x, w, s)]

    assert names(lambda x, w, s: (lambda d: (x @ d, (2 * x) @ d))(w.astype(bf16))) == [NAME, "mul", NAME]
    kept = names(lambda x, w, s: (lambda d: (x @ d, d))(w.astype(bf16)))
    assert sorted(kept) == ["convert_element_type", NAME]
    read_twice = names(lambda x, w, s: (lambda y: (y, y * 0.5))(x @ w.astype(bf16)))
    assert read_twice == [NAME, "mul"]
    assert names(lambda x, w, s: (x @ (w.astype(f32) * s[0]).astype(bf16)) * 0.5)[-2:] == [NAME, "mul"]
    assert names(lambda x, w, s: jax.nn.relu(x @ w.astype(bf16)) + 1) == [NAME, "custom_jvp_call", "add"]


def test_gates_and_other_chains_beside_it(fake_rows):
    """Two products of one x are two kernels' that read few bytes; other products are what they were."""
    x, w, s, _ = operands()
    gate = lambda x, w, s: jax.nn.silu(x @ w.astype(bf16)) * (x @ (w.astype(bf16) * s[0].astype(bf16)))  # noqa: E731
    assert [e.primitive.name for e in equations(gate, x, w, s)].count(NAME) == 2
    assert [e.primitive.name for e in equations(gate, x, w, s, interpret=None)].count("jax_moye_rewritten") == 1
    both = lambda x, w, v: jax.nn.relu((x @ w.astype(bf16)) @ v)  # noqa: E731
    found = [e.primitive.name for e in equations(both, x, w, jnp.ones((N, N), bf16))]
    assert found == [NAME, "jax_moye_rewritten"]


def test_loops_and_calls(fake_rows):
    x, w, s, _ = operands()
    square = jnp.zeros((3, K, K), jnp.int8)
    layer = lambda x, w: (x @ w.astype(bf16) * s[0, 0]).astype(bf16)  # noqa: E731
    programs = {
        "scan": lambda x: lax.scan(lambda c, w: (layer(c, w), None), x, square)[0],
        "jit": lambda x: jax.jit(layer)(x, w),
        "checkpoint": lambda x: jax.checkpoint(layer)(x, w),
        "cond": lambda x: lax.cond(x[0, 0] > 0, lambda x: layer(x, square[0]), lambda x: x, x),
        "while": lambda x: lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, layer(c[1], square[0])), (0, x))[1],
    }
    for name, fun in programs.items():
        with jax_moye.options(interpret=True):
            text = str(jax.make_jaxpr(jax_moye.optimize(fun))(x))
        assert text.count(NAME + "[") == 1, name
    mapped = jax.vmap(lambda x: x @ (w.astype(f32) * s[0]).astype(bf16))
    assert count(mapped, x) == 1  # rows of one product


def test_a_long_program_is_searched_once():
    """Factors of factors are not looked into: that would take as long as there are ways through them."""
    x, *_ = operands()

    def fun(x, v):
        for _ in range(60):
            v = v * v - v
        return x @ v

    assert count(fun, x, jnp.ones((K, N), bf16)) == 0


# ---------------------------------------------------------------------------------------------------------- parts


def strides_of(modes, size):
    """The place in memory of each element."""
    places = [
        sum(i * stride for i, (_, stride) in zip(index, modes, strict=True))
        for index in np.ndindex(*(s for s, _ in modes))
    ]
    assert len(places) == size
    return places


def test_modes_of_a_reshape():
    """The elements and their order stay, whichever dimensions they are cut into."""
    for modes in ([(4, 6), (6, 1)], [(2, 1), (3, 0), (4, 2)], [(24, 1)], [(1, 7), (24, 0)], [(4, 0), (6, 1)]):
        for sizes in itertools.chain.from_iterable(
            itertools.permutations(s) for s in ((24,), (4, 6), (2, 3, 4), (1, 24))
        ):
            found = _split(modes, sizes)
            if found is None:
                continue
            assert [math.prod(size for size, _ in dim) for dim in found] == list(sizes)
            flat = [mode for dim in found for mode in dim]
            assert strides_of(flat, 24) == strides_of(modes, 24) == strides_of(_coalesced(flat), 24)
    assert _split([(4, 6), (6, 1)], (2, 12)) == [[(2, 12)], [(2, 6), (6, 1)]]
    assert _split([(4, 6), (6, 1)], (3, 8)) is None  # 4 is no multiple of 3
    assert _split([(4, 1)], (2,)) is None
    assert _split([(4, 1)], (8,)) is None
    assert _coalesced([(4, 6), (6, 1)]) == [(24, 1)]
    assert _coalesced([(4, 0), (6, 0)]) == [(24, 0)]
    assert _coalesced([(4, 1), (6, 0)]) == [(4, 1), (6, 0)]


def test_what_was_not_read_before_is_not_lost():
    """Only what nobody reads any more is gone: what a program computes for nothing is its own affair."""

    def fun(x):
        jnp.sin(x)
        return jnp.exp(x) + jnp.cos(x)

    jaxpr = jax.make_jaxpr(fun)(1.0).jaxpr
    program = Program(jaxpr.eqns, jaxpr.outvars)
    names = [e.primitive.name for e in without_unread(jaxpr.eqns, jaxpr.outvars, program)]
    assert names == ["sin", "exp", "cos", "add"]
    exp = jaxpr.eqns[1].outvars
    assert [e.primitive.name for e in without_unread(jaxpr.eqns[:-1], exp, program)] == ["sin", "exp"]
