"""linear: numbers, dtypes, errors, in a model, transposed."""

import functools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.linear_layers import FUNCTIONS, OPERANDS, activate64, close, count, emulated, glu, linear, operands, unfused
from python.support import FUSED_TARGET, TARGET, UNIT, lowered_text

import jax_moye
from jax_moye._primitives.fused import fused_p

# ----------------------------------------------------------------------------------------------------------- numbers


def assert_within_bound(y, x, w, named, activation, alpha, beta):
    """Held against float64, element by element: one rounding of the result, and the sums' errors before it."""
    x, w, *rest = (np.asarray(v, np.float64) for v in (x, w, *named.values()))
    values = dict(zip(named, rest, strict=True))
    z = alpha * (x @ w) + beta * values.get("c", 0) + values.get("bias", 0)
    size = abs(alpha) * (np.abs(x) @ np.abs(w)) + abs(beta) * np.abs(values.get("c", 0)) + abs(values.get("bias", 0))
    expected = activate64(activation, z) + values.get("residual", 0)
    # No activation's slope is over 1.13; its own value is a few units off; a small one is a difference of larger ones.
    unit = UNIT["float64" if y.dtype == np.float64 else "float32"]
    sums = (x.shape[-1] + 8) * 2 * unit * (1.13 * size + np.abs(values.get("residual", 0)))
    bound = sums + 16 * unit * np.abs(z) + UNIT[y.dtype.name] * np.abs(expected)
    error = np.abs(np.asarray(y, np.float64) - expected)
    assert (error <= bound).all(), f"{np.nanmax(error / bound)} of the bound, {np.isnan(error).sum()} NaN"


@pytest.mark.parametrize(
    ("names", "interpret"),
    [(names, True) for names in OPERANDS] + [((), False), (("bias", "c", "residual"), False)],
    ids=str,
)
def test_within_the_bound_of_float64(rng, names, interpret):
    options = dict(alpha=0.5, beta=-2.0 if "c" in names else 1.0)

    @jax.jit
    def all_activations(x, w, named):
        return {str(a): linear(x, w, **named, **options, activation=a, interpret=interpret) for a in FUNCTIONS}

    for dtype in (np.float32, jnp.bfloat16):
        x, w, named = operands(rng, names, dtype=dtype)
        for activation, y in all_activations(x, w, named).items():
            assert y.dtype == dtype
            assert_within_bound(y, x, w, named, activation, **options)


def test_what_one_kernel_does_in_one_call(rng):
    x, w, named = operands(rng, ("bias", "c", "residual"))
    fun = lambda x, w, named: emulated(x, w, **named, activation="silu")  # noqa: E731
    assert count(fun, x, w, named) == {TARGET: 0, FUSED_TARGET: 1, "xla": 0}
    (elementwise,) = [re.findall(r"stablehlo\.(add|multiply|logistic)", lowered_text(fun, x, w, named, platform="cpu"))]
    assert elementwise == []


def test_a_product_alone_is_the_bilinear_primitives(rng):
    x, w, named = operands(rng, ("c",))
    assert count(emulated, x, w) == {TARGET: 1, FUSED_TARGET: 0, "xla": 0}
    jaxpr = str(jax.make_jaxpr(functools.partial(linear, beta=2.0))(x, w, **named))
    assert "jax_moye_contract" in jaxpr
    assert "jax_moye_fused" not in jaxpr
    transposed = jax.linear_transpose(lambda x: linear(x, w), x)
    close(transposed(jnp.ones((6, 5)))[0], jnp.ones((6, 5)) @ w.T)


@pytest.mark.parametrize("interpret", [False, True])
def test_the_result_is_rounded_once(interpret):
    # The sum, 1 + 2^-9, is no bf16. Were it rounded (to 1) before the bias is added, the result would be 2^-8.
    x, w = jnp.array([[1, 2**-9]], jnp.bfloat16), jnp.ones((2, 1), jnp.bfloat16)
    bias, residual = jnp.array([-1 + 2**-8], jnp.bfloat16), jnp.array([[-(2**-9)]], jnp.bfloat16)
    assert linear(x, w, bias, interpret=interpret)[0, 0] == 3 * 2**-9
    assert linear(x, w, bias, activation="relu", residual=residual, interpret=interpret)[0, 0] == 2**-8


@pytest.mark.parametrize("interpret", [False, True])
def test_c_is_not_read_where_beta_is_0(rng, interpret):
    x, w, named = operands(rng, ("bias",))
    c = jnp.full((6, 5), jnp.nan)
    y = linear(x, w, **named, c=c, beta=0, activation="silu", interpret=interpret)
    close(y, unfused(x, w, **named, activation="silu"))
    g = jax.grad(lambda c: linear(x, w, c=c, beta=0.0, activation="silu", interpret=interpret).sum())(c)
    np.testing.assert_array_equal(g, np.zeros((6, 5)))


@pytest.mark.parametrize("interpret", [False, True])
def test_empty_and_odd_shapes(rng, interpret):
    for rows, k, n in [((), 8, 5), ((1, 2, 1), 3, 1), ((3,), 0, 4), ((2, 0), 8, 5), ((3,), 8, 0)]:
        x, w, named = operands(rng, ("bias", "c", "residual"), rows, k, n)

        def value_and_grad(f):
            loss = lambda x, w: (f(x, w, **named, activation="gelu", alpha=2.0) ** 2).sum()  # noqa: B023, E731
            return jax.jit(lambda *a: (f(*a, **named, activation="gelu"), jax.grad(loss, (0, 1))(*a)))(x, w)  # noqa: B023

        ours, theirs = value_and_grad(functools.partial(linear, interpret=interpret)), value_and_grad(unfused)
        assert ours[0].shape == (*rows, n)
        for g, h in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            close(g, h, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("transposed", ["x", "w", "xw"])
def test_transposes_are_strides(rng, transposed):
    x, w, named = operands(rng, ("bias",))
    x_in, w_in = x.T if "x" in transposed else x, w.T if "w" in transposed else w
    for w_dtype in (jnp.float32, jnp.bfloat16):

        def fun(x, w, bias):
            x, w = x.T if "x" in transposed else x, w.T if "w" in transposed else w
            return emulated(x, w, bias, activation="relu")

        args = (x_in.astype(jnp.bfloat16), w_in.astype(w_dtype), named["bias"])
        assert "transpose(" not in jax.jit(fun).lower(*args).compile().as_text()
        close(fun(*args), unfused(x, w, **named, activation="relu"), rtol=2**-6, atol=2**-4)


def test_aliasing_of_c(rng):
    x, w, named = operands(rng, ("c", "bias"), rows=(2, 3))
    fun = jax.jit(functools.partial(emulated, activation="relu"), donate_argnames="c")
    hlo = fun.lower(x, w, **named).compile().as_text()
    assert "output_to_operand_aliasing" in hlo
    assert "copy(" not in hlo
    expected = unfused(x, w, **named, activation="relu")
    pointer = named["c"].unsafe_buffer_pointer()
    y = fun(x, w, **named)
    assert y.unsafe_buffer_pointer() == pointer
    close(y, expected)


# ------------------------------------------------------------------------------------------------------------ dtypes


@pytest.mark.parametrize(
    ("x_dtype", "w_dtype", "preferred", "result"),
    [
        ("bfloat16", "bfloat16", None, "bfloat16"),
        ("bfloat16", "float32", None, "bfloat16"),
        ("float16", "float32", None, "float16"),
        ("bfloat16", "float16", None, "float32"),
        ("float32", "bfloat16", None, "float32"),
        ("bfloat16", "float32", "float32", "float32"),
        ("float32", "float32", "bfloat16", "bfloat16"),
        ("float8_e4m3fn", "float8_e4m3fn", "bfloat16", "bfloat16"),
        ("float8_e5m2", "float8_e5m2", "float32", "float32"),
        ("float8_e4m3fn", "float8_e4m3fn", None, "float8_e4m3fn"),
        ("int8", "int8", "int32", "int32"),
        ("int8", "int8", "float32", "float32"),
        ("int8", "int8", None, "int8"),
        ("int16", "int16", None, "int16"),
        ("int32", "int32", None, "int32"),
    ],
)
def test_dtypes(rng, x_dtype, w_dtype, preferred, result):
    x, w = rng.integers(-2, 3, (6, 8)).astype(x_dtype), rng.integers(-2, 3, (8, 5)).astype(w_dtype)
    bias, residual = rng.integers(-2, 3, (5,)).astype(result), rng.integers(-2, 3, (6, 5)).astype(result)
    expected = np.maximum(x.astype(np.float32) @ w.astype(np.float32) + bias.astype(np.float32), 0)
    expected = (expected + residual.astype(np.float32)).astype(result)
    for interpret in (False, True):
        options = dict(activation="relu", preferred_element_type=preferred, interpret=interpret)
        y = linear(x, w, bias, residual=residual, **options)
        assert y.dtype == result
        np.testing.assert_array_equal(np.asarray(y, np.float32), expected.astype(np.float32))


def test_dtypes_of_the_epilogue(rng):
    x, w, named = operands(rng, ("bias", "c", "residual"), dtype=jnp.bfloat16)
    wide = {name: value.astype(jnp.float32) for name, value in named.items()}
    assert linear(x, w, wide["bias"]).dtype == jnp.bfloat16
    assert linear(x, w, **named, preferred_element_type=jnp.float32).dtype == jnp.float32
    for name in ("c", "residual"):
        with pytest.raises(TypeError, match=f"{name} is float32 and the result is bfloat16: .*preferred_element_type"):
            linear(x, w, **{name: wide[name]})
        assert linear(x, w, **{name: wide[name]}, preferred_element_type=jnp.float32).dtype == jnp.float32
    integers = jnp.ones((6, 8), jnp.int8), jnp.ones((8, 5), jnp.int8)
    for options, error, message in [
        (dict(alpha=0.5), ValueError, "alpha is an integer where the result is int8, not 0.5"),
        (dict(activation="silu"), TypeError, "activation 'silu' takes real floats, and the result is int8"),
        (dict(bias=jnp.ones(5)), TypeError, "bias is float32 and the result is int8"),
    ]:
        with pytest.raises(error, match=message):
            linear(*integers, **options)
    with pytest.raises(TypeError, match="x is float8_e4m3fn and w is bfloat16: convert one of them"):
        linear(jnp.ones((6, 8), jnp.float8_e4m3fn), w)
    with pytest.raises(TypeError, match="numbers, not bool"):
        linear(jnp.ones((6, 8), bool), jnp.ones((8, 5), bool))
    z = jnp.ones((6, 8), jnp.complex64)
    np.testing.assert_allclose(linear(z, w, wide["bias"] * 1j), z @ w.astype(z.dtype) + wide["bias"] * 1j, rtol=1e-5)
    with pytest.raises(TypeError, match="activation 'relu' takes real numbers, and the result is complex64"):
        linear(z, w, activation="relu")


def test_nothing_to_differentiate():
    x, w = jnp.ones((2, 3), jnp.int8), jnp.ones((3, 2), jnp.int8)
    zeros = [np.zeros(v.shape, jax.dtypes.float0) for v in (x, w)]
    _, tangent = jax.jvp(functools.partial(linear, activation="relu"), (x, w), tuple(zeros))
    assert tangent.dtype == jax.dtypes.float0
    bias = jnp.arange(2.0)
    fun = functools.partial(linear, activation="silu", preferred_element_type=jnp.float32)
    _, tangent = jax.jvp(fun, (x, w, bias), (*zeros, jnp.ones(2)))
    close(tangent, jax.jvp(lambda b: jax.nn.silu(jnp.full((2, 2), 3.0) + b), (bias,), (jnp.ones(2),))[1])


# ------------------------------------------------------------------------------------------------------------ errors


def test_activations_by_name_and_by_function(rng):
    x, w, _ = operands(rng)
    for activation, name in [
        (jax.nn.relu, "relu"),
        (jax.nn.gelu, "gelu"),
        (functools.partial(jax.nn.gelu, approximate=True), "gelu"),
        (functools.partial(jax.nn.gelu), "gelu"),
        (functools.partial(jax.nn.gelu, approximate=False), "gelu_exact"),
        (jax.nn.silu, "silu"),
        (jax.nn.swish, "silu"),
        ("swish", "silu"),
    ]:
        np.testing.assert_array_equal(linear(x, w, activation=activation), linear(x, w, activation=name))
    for activation in ("tanh", "none", "", 3):  # other functions: test_own_activation.py
        with pytest.raises(ValueError, match="linear: activation is None, 'relu', 'gelu'"):
            linear(x, w, activation=activation)
    with pytest.raises(
        ValueError, match=r"gated_linear_unit: activation .* and 'sigmoid' or jax.nn.sigmoid, not 'tanh'"
    ):
        glu(x, w, w, activation="tanh")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(x=()), r"x has shape \(\): it needs at least one dimension"),
        (dict(w=(8,)), r"x has shape \(2, 6, 8\) and w has shape \(8,\): w is \(K, N\)"),
        (dict(w=(2, 8, 5)), r"w has shape \(2, 8, 5\): w is \(K, N\)"),
        (dict(w=(7, 5)), "the last dimension of x and the first of w differ, 8 != 7"),
        (dict(bias=(6,)), r"bias has shape \(6,\): its shape is \(N,\), here \(5,\)"),
        (dict(bias=(1, 5)), r"bias has shape \(1, 5\)"),
        (dict(c=(6, 5)), r"c has shape \(6, 5\): its shape is the result's, \(..., N\), here \(2, 6, 5\)"),
        (dict(residual=(2, 6, 1)), r"residual has shape \(2, 6, 1\): its shape is the result's"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit(changes, message):
    shapes = dict(x=(2, 6, 8), w=(8, 5)) | changes
    arrays = {name: jnp.zeros(shape) for name, shape in shapes.items()}
    for fun in (linear, jax.jit(linear), jax.grad(lambda x, **a: linear(x, **a).sum())):
        with pytest.raises(ValueError, match=f"linear: .*{message}"):
            fun(arrays["x"], **{name: a for name, a in arrays.items() if name != "x"})


def test_arguments_of_other_types(rng):
    x, w, _ = operands(rng)
    for name in ("x", "w", "bias", "c", "residual"):
        with pytest.raises(TypeError, match=f"linear: {name} is an array, not list"):
            linear(**(dict(x=x, w=w) | {name: [1.0]}))
    for name in ("alpha", "beta"):
        for value in ("1", None, 1j, True, jnp.ones(2)):
            with pytest.raises(TypeError, match=f"linear: {name} is a number, not"):
                linear(x, w, **{name: value})
        with pytest.raises(
            TypeError, match=f"{name} is part of the program and cannot be a traced value.* multiply an"
        ):
            jax.jit(lambda v, name=name: linear(x, w, **{name: v}))(1.0)
        assert linear(x, w, c=jnp.ones((6, 5)), **{name: np.float32(2)}).shape == (6, 5)
    with pytest.raises(ValueError, match=r"beta is c's factor, 2.0, and there is no c"):
        linear(x, w, beta=2)
    for name in ("config", "implementation", "interpret", "precision", "preferred_element_type"):
        with pytest.raises(TypeError, match=f"{name} is part of the program and cannot be a traced value"):
            jax.jit(lambda v, name=name: linear(x, w, **{name: v}))(1)
    with pytest.raises(ValueError, match="implementation='xla' asks for none"):
        linear(x, w, implementation="xla", interpret=True)
    with pytest.raises(ValueError, match="its operands are bf16, these are f32"):
        linear(x, w, activation="relu", config="sm80_multistage_bf16_64x64x64_s3_a16", interpret=True)
    with pytest.raises(NotImplementedError, match="for cpu, where our kernels run only with interpret=True"):
        linear(x, w, activation="relu", implementation="moye")
    with pytest.raises(NotImplementedError, match="emulator on the CPU, and this program is for cuda"):
        lowered_text(functools.partial(linear, activation="relu", interpret=True), x, w)


# ------------------------------------------------------------------------------------------------------------- on CUDA


def test_lowering_for_cuda(rng):
    fun = functools.partial(linear, activation="gelu_exact", implementation="moye", alpha=2.0, beta=0.5)
    bf16 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.bfloat16)  # noqa: E731
    args = dict(x=bf16(4, 32, 64), w=bf16(64, 128), bias=bf16(128), c=bf16(4, 32, 128), residual=bf16(4, 32, 128))
    text = jax.jit(fun, donate_argnames="c").trace(**args).lower(lowering_platforms=("cuda",)).as_text()
    (call,) = re.findall(rf"custom_call @{FUSED_TARGET}.*", text)
    for attribute in (
        'activation = "gelu_erf"',
        'operands = "c,bias,residual"',
        "alpha = 2.000000e+00 : f64",
        "beta = 5.000000e-01 : f64",
        "sizes = dense<[1, 128, 128, 64]>",
        "bias_strides = dense<[0, 0, 1]>",
        "c_strides = dense<[0, 128, 1]>",
        "residual_strides = dense<[0, 128, 1]>",
        "output_operand_aliases",
    ):
        assert attribute in call, call
    assert "convert" not in text
    both = jax.jit(functools.partial(linear, activation="relu")).trace(args["x"], args["w"])
    text = both.lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert "stablehlo.case" in text


# --------------------------------------------------------------------------------------------------------- in a model


def test_a_small_network_trains():
    """An MLP as flax writes it: parameters in f32, activations in bf16."""
    rng = np.random.default_rng(1)
    inputs = jnp.asarray(rng.standard_normal((64, 8)), jnp.float32)
    targets = jnp.sin(inputs @ jnp.asarray(rng.standard_normal((8, 4)), jnp.float32))

    def init(n_in, n_out):
        return {
            "w": jnp.asarray(rng.standard_normal((n_in, n_out)) / np.sqrt(n_in), jnp.float32),
            "bias": jnp.zeros(n_out),
        }

    params = [init(8, 32), init(32, 32), init(32, 4)]

    def loss(layer, dtype, params):
        h = inputs.astype(dtype)
        h = layer(h, **params[0], activation="gelu")
        h = layer(h, **params[1], activation="silu", residual=h)
        y = layer(h, **params[2])
        return jnp.mean((y.astype(jnp.float32) - targets) ** 2)

    def train(layer, dtype):
        @jax.jit
        def step(params, _):
            value, grads = jax.value_and_grad(functools.partial(loss, layer, dtype))(params)
            return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

        _, losses = lax.scan(step, params, length=100)
        return losses

    ours, theirs = train(linear, jnp.float32), train(unfused, jnp.float32)
    np.testing.assert_allclose(ours, theirs, rtol=1e-3)
    half = train(linear, jnp.bfloat16)
    assert ours[-1] < 0.4 * ours[0]
    np.testing.assert_allclose(half[-1], ours[-1], rtol=0.1)


def test_the_jaxpr_is_readable(rng):
    x, w, named = operands(rng, ("bias",))
    jaxpr = jax.make_jaxpr(functools.partial(linear, activation="silu"))(x, w, **named)
    assert [equation.primitive for equation in jaxpr.eqns] == [fused_p]
    assert "spec=ak,kn->an" in str(jaxpr)
    assert "activation='silu'" in str(jaxpr)


def test_the_code_of_the_documentation_runs():
    page = pathlib.Path(__file__).resolve().parents[3] / "docs" / "epilogues.md"
    first, *others = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    assert others
    exec(compile("\n".join([first, *others]), page.name, "exec"), {})


# ------------------------------------------------------------------------------------------------- linear_transpose


@pytest.mark.parametrize("interpret", [True, False])
def test_linear_transpose(rng, interpret):
    """Without an activation it is linear in x, in w, and in all that is added together."""
    x, w, c, dy = (jnp.asarray(rng.integers(-2, 3, shape), jnp.float32) for shape in ((3, 4), (4, 5), (3, 5), (3, 5)))
    fun = functools.partial(jax_moye.linear, alpha=2.0, interpret=interpret)
    (dx,) = jax.linear_transpose(lambda x: fun(x, w), x)(dy)
    np.testing.assert_array_equal(dx, 2 * dy @ w.T)
    (dw,) = jax.linear_transpose(lambda w: fun(x, w), w)(dy)
    np.testing.assert_array_equal(dw, 2 * x.T @ dy)

    def of_all(x, bias, c, residual):
        return fun(x, w, bias, c=c, beta=3.0, residual=residual)

    dx, dbias, dc, dresidual = jax.linear_transpose(of_all, x, c[0], c, c)(dy)
    np.testing.assert_array_equal(dx, 2 * dy @ w.T)
    np.testing.assert_array_equal(dbias, dy.sum(0))
    np.testing.assert_array_equal(dc, 3 * dy)
    np.testing.assert_array_equal(dresidual, dy)
    with pytest.raises(NotImplementedError, match="activation 'relu' is not linear"):
        jax.linear_transpose(lambda x: fun(x, w, activation="relu"), x)(dy)


def test_linear_transpose_keeps_the_dtypes(rng):
    """As the derivative: w's cotangent is w's dtype, and is not rounded to x's before."""
    x, w = jnp.full((300, 4), 1.0, jnp.bfloat16), jnp.ones((4, 5), jnp.float32)
    dy = jnp.ones((300, 5), jnp.bfloat16)
    (dx,) = jax.linear_transpose(lambda x: jax_moye.linear(x, w), x)(dy)
    assert dx.dtype == jnp.bfloat16
    np.testing.assert_array_equal(dx, np.full((300, 4), 5.0))
    (dw,) = jax.linear_transpose(lambda w: jax_moye.linear(x[:257], w), w)(dy[:257])
    assert dw.dtype == jnp.float32
    np.testing.assert_array_equal(dw, np.full((4, 5), 257.0))  # 256 in bfloat16


@pytest.mark.parametrize("interpret", [True, False])
def test_a_wider_w_is_rounded_to_x_before_the_kernel_widens_it(interpret):
    """A kernel of float64 serves a result of float64: w is float16's value there all the same."""
    with jax.enable_x64(True):
        x, w = jnp.ones((2, 3), jnp.float16), jnp.full((3, 2), 1 + 2.0**-20, jnp.float32)
        residual = jnp.zeros((2, 2), jnp.float16)
        fun = functools.partial(jax_moye.linear, preferred_element_type=jnp.float64, interpret=interpret)
        y = fun(x, w, residual=residual)
        assert y.dtype == jnp.float64
        np.testing.assert_array_equal(y, np.full((2, 2), 3.0))
