"""A function's jaxpr as C++: compiled by g++ for the host, and compared with NumPy and JAX in float64."""

from __future__ import annotations

import ctypes
import functools
import os
import pathlib
import shutil
import subprocess
import tempfile

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jax_moye
from jax_moye._primitives.elementwise import UntranslatableError, translate

CXX = os.environ.get("CXX", "g++")
compiled_ones = pytest.mark.skipif(shutil.which(CXX) is None, reason="needs a C++ compiler")
EPS = 2.0**-23
SHAPE = (3, 5)


def compiled(functions, rounded=False):
    """Functions of f32 arrays, translated, and compiled together; rounded: what the C++ calls kRounded."""
    with tempfile.TemporaryDirectory() as folder:
        texts = ['#include "moye/arch/elementwise.h"\n']
        for i, function in enumerate(functions):
            body = translate(function, SHAPE, jnp.float32)
            texts.append(f"namespace moye {{ template <bool kRounded> float of_{i}(float x) {{\n{body}}} }}\n")
            loop = f"for (int i = 0; i < n; ++i) y[i] = moye::of_{i}<{str(rounded).lower()}>(x[i]);"
            texts.append(f'extern "C" void apply_{i}(float const* x, float* y, int n) {{ {loop} }}\n')
        source, library = pathlib.Path(folder, "f.cc"), pathlib.Path(folder, "f.so")
        source.write_text("".join(texts))
        command = [CXX, "-std=c++20", "-O1", "-Wall", "-fPIC", "-shared", f"-I{jax_moye.include_dir()}", source]
        subprocess.run([*command, "-o", library], check=True)
        loaded = ctypes.CDLL(str(library))

    def apply(i, x):
        x = np.ascontiguousarray(x, np.float32)
        y = np.empty_like(x)
        pointers = (a.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) for a in (x, y))
        getattr(loaded, f"apply_{i}")(*pointers, x.size)
        return y

    return apply


def hard_inputs():
    """Zeros, subnormals, the largest, infinities, NaN, integers and halves, and floats of every size."""
    rng = np.random.default_rng(0)
    special = [0.0, 1e-45, 1e-39, 1.1754944e-38, 1e-30, 3.4028235e38, np.inf, 0.5, 1, 1.5, 2, 2.5, 3, 6, 88.7, 103.9]
    sizes = np.exp(rng.uniform(-80, 80, 300))
    x = np.concatenate([special, sizes, rng.uniform(0, 20, 1000), rng.uniform(0, 1.5, 300)])
    return np.concatenate([x, -x, [np.nan]]).astype(np.float32)


def exact(function, x):
    with jax.enable_x64(True):
        return np.asarray(function(jnp.asarray(x, jnp.float64)))


NUMBER = jnp.float32(1.75)
# Each with units in the last place by which it may be off.
PRIMITIVES = {
    "add": (lambda x: x + 1.25, 1),
    "sub": (lambda x: 1.25 - x, 1),
    "mul": (lambda x: x * x, 1),
    "div": (lambda x: 1 / x, 1),
    "neg": (lambda x: -x, 0),
    "max": (lambda x: jnp.maximum(x, 0.5), 0),
    "min": (lambda x: jnp.minimum(0.5, x), 0),
    "abs": (jnp.abs, 0),
    "sign": (jnp.sign, 0),
    "exp": (jnp.exp, 2),
    "exp2": (jnp.exp2, 2),
    "expm1": (jnp.expm1, 2),
    "log": (jnp.log, 2),
    "log1p": (jnp.log1p, 2),
    "tanh": (jnp.tanh, 2),
    "logistic": (jax.nn.sigmoid, 4),
    "erf": (lax.erf, 2),
    "erfc": (lax.erfc, 4),
    "sqrt": (jnp.sqrt, 1),
    "rsqrt": (lax.rsqrt, 2),
    "cbrt": (lax.cbrt, 2),
    "square": (jnp.square, 1),
    "integer_pow": (lambda x: x**5, 4),
    "negative integer_pow": (lambda x: x**-3, 4),
    "pow": (lambda x: jnp.abs(x) ** 0.75, 2),
    "pow of the exponent": (lambda x: 1.5**x, 2),
    "floor": (jnp.floor, 0),
    "ceil": (jnp.ceil, 0),
    "round to even": (jnp.round, 0),
    "round away": (lambda x: lax.round(x, lax.RoundingMethod.AWAY_FROM_ZERO), 0),
    "sin": (jnp.sin, 2),
    "cos": (jnp.cos, 2),
    "atan": (jnp.arctan, 2),
    "atan2": (lambda x: jnp.arctan2(x, 2.0), 2),
    "asinh": (jnp.arcsinh, 4),
    "clamp": (lambda x: lax.clamp(-1.5, x, 2.0), 0),
    "select_n": (lambda x: jnp.where(x > 1, x, 2.0), 0),
    "comparisons": (lambda x: jnp.where((x >= 1) & (x < 3) | ~(x != -2) ^ (x <= -5), x, 7.0), 0),
    "is_finite": (lambda x: jnp.where(jnp.isfinite(x), x, 3.0), 0),
    "bool to float": (lambda x: x + (x > 0), 1),
    "float to bool": (lambda x: jnp.where(jnp.floor(x).astype(bool), x, 4.0), 0),
    "infinite": (lambda x: jnp.where(x > 0, jnp.inf, -jnp.inf), 0),
    "not a number": (lambda x: jnp.where(x > 0, jnp.nan, x), 0),
    "stop_gradient": (lambda x: lax.stop_gradient(x) + 1, 1),
    "jit": (jax.jit(lambda x: x + 1), 1),
    "checkpoint name": (lambda x: checkpoint_name(x, "z") * 2, 0),
    "an integer": (lambda x: jnp.where(x > 3, 3, x), 0),
    "a captured number": (lambda x: x * NUMBER, 1),
    "nothing": (lambda x: x, 0),
}
# Of jax.nn, and what models have: each may be off by some units of itself, of what it does to its argument's last
# place, and of the argument, which it is multiplied with.
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "relu6": jax.nn.relu6,
    "squared relu": lambda x: jnp.square(jax.nn.relu(x)),
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "selu": jax.nn.selu,
    "celu": lambda x: jax.nn.celu(x, 1.5),
    "gelu": jax.nn.gelu,
    "gelu by erf": lambda x: jax.nn.gelu(x, approximate=False),
    "silu": jax.nn.silu,
    "mish": jax.nn.mish,
    "softplus": jax.nn.softplus,
    "log_sigmoid": jax.nn.log_sigmoid,
    "sigmoid": jax.nn.sigmoid,
    "hard_swish": jax.nn.hard_swish,
    "hard_sigmoid": jax.nn.hard_sigmoid,
    "hard_tanh": jax.nn.hard_tanh,
    "soft_sign": jax.nn.soft_sign,
    "squareplus": jax.nn.squareplus,
    "softcap": lambda x: 30 * jnp.tanh(x / 30),
    "quick gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "snake": lambda x: x + jnp.sin(x) ** 2,
}


@pytest.fixture(scope="module")
def apply():
    functions = [function for function, _ in PRIMITIVES.values()] + list(ACTIVATIONS.values())
    names = [f"primitive {name}" for name in PRIMITIVES] + list(ACTIVATIONS)
    run = compiled(functions)
    return lambda name, x: run(names.index(name), x)


def in_f32(y):
    """Of float64, as f32 has it: infinite where it is too large."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return y.astype(np.float32).astype(np.float64)


@compiled_ones
@pytest.mark.parametrize("name", PRIMITIVES)
def test_each_primitive(apply, name):
    function, units = PRIMITIVES[name]
    x = hard_inputs()
    got, expected = apply(f"primitive {name}", x).astype(np.float64), exact(function, x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    rounded = in_f32(expected)
    # Beyond 2^-126 units are those of subnormal numbers; what is near the largest float may overflow.
    with np.errstate(invalid="ignore"):
        bound = units * (EPS * np.abs(expected) + 2.0**-126)
    near = np.abs(expected) > 3.402e38
    same = (got == rounded) | np.isnan(expected) | near & (np.abs(got) > 3.402e38) & (np.sign(got) == np.sign(expected))
    off = np.abs(got - np.where(np.isfinite(expected), expected, 0))
    assert np.all(same | (off <= bound)), x[~(same | (off <= bound))][:9]


@compiled_ones
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(apply, name):
    function = ACTIVATIONS[name]
    x = hard_inputs()
    x = x[np.isnan(x) | (np.abs(x) < 1e18)]  # squares overflow
    got, expected = apply(name, x).astype(np.float64), exact(function, x)
    with jax.enable_x64(True):
        slope = np.asarray(jax.vmap(jax.grad(function))(jnp.asarray(x, jnp.float64)))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    bound = 8 * EPS * (np.abs(expected) + np.abs(x * slope) + np.abs(x) + 2.0**-100)
    # relu and its like have no slope that matters.
    bad = np.abs(got - expected) > np.where(np.isfinite(bound), bound, 8 * EPS * np.abs(expected))
    assert not bad.any(), (x[bad][:9], got[bad][:9], expected[bad][:9])


@compiled_ones
def test_logistic_of_what_will_be_rounded():
    """Within 1e-5, and 0 where it is below 2^-126."""
    x = np.concatenate([np.linspace(-100, 100, 4001), [0.0, 1e-30, -1e-30, np.inf, -np.inf, np.nan]]).astype(np.float32)
    run = compiled([jax.nn.sigmoid, lambda x: x * jax.nn.sigmoid(1.702 * x)], rounded=True)
    expected = exact(jax.nn.sigmoid, x)
    np.testing.assert_allclose(run(0, x), expected, rtol=1e-5, atol=2.0**-126)
    assert np.any(run(0, x) != compiled([jax.nn.sigmoid])(0, x))  # it is another function
    x = x[np.isfinite(x)]
    expected = exact(lambda x: x * jax.nn.sigmoid(jnp.float64(np.float32(1.702)) * x), x)
    np.testing.assert_allclose(run(1, x), expected, rtol=3e-5, atol=2.0**-119)


@compiled_ones
def test_infinities(apply):
    """As JAX's own f32 program has it."""
    x = np.array([np.inf, -np.inf], np.float32)
    for name, function in ACTIVATIONS.items():
        np.testing.assert_array_equal(apply(name, x), function(jnp.asarray(x)), err_msg=name)


@compiled_ones
def test_results_of_16_bits_are_rounded():
    x = hard_inputs()
    for dtype in (jnp.bfloat16, jnp.float16):
        scalar = np.dtype(dtype).type
        functions = [
            (lambda x, of, np=jnp: x.astype(of)),
            (lambda x, of, np=jnp: (x.astype(of) * of(1.2) + of(0.3)).astype(np.float32) + np.float32(1)),
            (lambda x, of, np=jnp: np.maximum(-x.astype(of), of(0.7)) / of(3)),
        ]
        run = compiled([functools.partial(function, of=dtype) for function in functions])
        for i, function in enumerate(functions):
            with np.errstate(over="ignore"):  # NumPy rounds each operation, XLA may leave out some
                expected = function(x, scalar, np).astype(np.float32)
            np.testing.assert_array_equal(run(i, x), expected)


# ------------------------------------------------------------------------------------------------ random compositions

UNARY = {
    "tanh": (jnp.tanh, np.tanh),
    "exp": (lambda x: jnp.exp(-jnp.abs(x)), lambda x: np.exp(-np.abs(x))),
    "square": (jnp.square, np.square),
    "neg": (lambda x: -x, lambda x: -x),
    "log1p": (lambda x: jnp.log1p(jnp.abs(x)), lambda x: np.log1p(np.abs(x))),
    "relu": (jax.nn.relu, lambda x: np.maximum(x, 0)),
    "logistic": (jax.nn.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    "sqrt": (lambda x: jnp.sqrt(jnp.abs(x)), lambda x: np.sqrt(np.abs(x))),
    "softplus": (jax.nn.softplus, lambda x: np.logaddexp(x, 0)),
}
BINARY = {
    "add": (jnp.add, np.add),
    "sub": (jnp.subtract, np.subtract),
    "mul": (jnp.multiply, np.multiply),
    "max": (jnp.maximum, np.maximum),
    "min": (jnp.minimum, np.minimum),
    "div": (lambda x, y: x / (1 + jnp.square(y)), lambda x, y: x / (1 + np.square(y))),
    "where": (lambda x, y: jnp.where(x > 0, x, y * 0.5), lambda x, y: np.where(x > 0, x, y * 0.5)),
}
LEAVES = st.one_of(st.just("x"), st.floats(-4, 4, width=32))
TREES = st.recursive(
    LEAVES,
    lambda tree: st.one_of(
        st.tuples(st.sampled_from(sorted(UNARY)), tree), st.tuples(st.sampled_from(sorted(BINARY)), tree, tree)
    ),
    max_leaves=8,
)


def as_function(tree):
    def value(tree, x):
        if not isinstance(tree, tuple):
            return x if tree == "x" else jnp.float32(tree)
        name, *rest = tree
        return (UNARY | BINARY)[name][0](*(value(one, x) for one in rest))

    return lambda x: jnp.broadcast_to(value(tree, x), x.shape) + 0 * x


def with_error(tree, x):
    """The value in float64, and by how much f32 may be off: of every operand its error, and 4 units of the result."""
    if not isinstance(tree, tuple):
        return (x if tree == "x" else np.full_like(x, tree)), np.zeros_like(x)
    name, *rest = tree
    operands = [with_error(one, x) for one in rest]
    fun = (UNARY | BINARY)[name][1]
    value = fun(*(v for v, _ in operands))
    corners = [[v - e, v, v + e] for v, e in operands]
    grid = [[a] for a in corners[0]] if len(corners) == 1 else [[a, b] for a in corners[0] for b in corners[1]]
    error = np.max([np.abs(fun(*corner) - value) for corner in grid], axis=0)
    if name == "where":  # another branch, perhaps
        (a, of_a), (b, _) = operands
        error = np.where(np.abs(a) <= of_a, error + np.abs(a - 0.5 * b), error)
    return value, 2 * error + 4 * EPS * (np.abs(value) + sum(np.abs(v) for v, _ in operands) * (name == "softplus"))


@compiled_ones
@hypothesis.settings(max_examples=12, deadline=None, derandomize=True)
@hypothesis.given(st.lists(TREES, min_size=12, max_size=12))
def test_random_compositions(trees):
    x = np.random.default_rng(0).uniform(-8, 8, 500).astype(np.float32)
    run = compiled([as_function(tree) for tree in trees])
    for i, tree in enumerate(trees):
        with np.errstate(all="ignore"):
            value, error = with_error(tree, x.astype(np.float64))
        got = run(i, x).astype(np.float64)
        sure = np.isfinite(value) & np.isfinite(error) & (np.abs(value) < 1e30)
        assert np.all(np.abs(got - value)[sure] <= (error + 2.0**-120)[sure]), tree


# ---------------------------------------------------------------------------------------------- what is not translated


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (jax.nn.softmax, "reduce_max is no operation on single elements"),
        (lambda x: x - x.mean(), "reduce_sum is no operation"),
        (lambda x: x * jnp.arange(5.0), "iota is no operation"),
        (lambda x: x[..., ::-1], "rev is no operation"),
        (lambda x: x + np.arange(5, dtype=np.float32), r"an array of shape \(5,\)"),
        (lambda x: (x, x), "returns 2 arrays"),
        (lambda x: x.sum(), r"an array of shape \(\) of one of shape \(3, 5\)"),
        (lambda x: x > 0, "makes bool of float32"),
        (lambda x: x.astype(jnp.int32).astype(jnp.float32), "convert_element_type is of int32"),
        (lambda x: jax.pure_callback(lambda y: y, x, x), "pure_callback"),
        (lambda x: jax.random.uniform(jax.random.key(0), x.shape) * x, "random_seed is no operation"),
        (lambda x: sum((x * i for i in range(300)), x), "more than 256 equations"),
        (lambda x: lax.select_n((x > 0).astype(jnp.int32), x, x, x), "is of int32"),
        (lambda x: lax.fori_loop(0, 3, lambda i, y: y * 2, x), "(while|scan) "),
    ],
)
def test_reasons(function, words):
    with pytest.raises(UntranslatableError, match=words):
        translate(function, SHAPE, jnp.float32)


def test_other_dtypes():
    with jax.enable_x64(True), pytest.raises(UntranslatableError, match="compiled for float32, and this is one of"):
        translate(jnp.tanh, SHAPE, jnp.float64)


def test_a_traced_value_is_no_number():
    def program(scale):
        with pytest.raises(UntranslatableError, match="reads an array of the program around it"):
            translate(lambda x: x * scale, SHAPE, jnp.float32)
        return scale

    jax.jit(program)(1.0)


def test_equal_functions_are_equal_texts():
    """Hence one kernel, however often a lambda is written."""
    first, second = (translate(lambda x: 30 * jnp.tanh(x / 30), SHAPE, jnp.float32) for _ in range(2))
    assert first == second
    assert first.splitlines()[-2:] == ["  float const v2 = 0x1.e000000000000p+4f * v1;", "  return v2;"]
