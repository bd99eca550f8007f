"""linear and gated_linear_unit: numbers, derivatives of every order, the number of products, dtypes, errors."""

import functools
import itertools
import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads
from python.support import FUSED_TARGET, TARGET, UNIT, lowered_text

import jax_moye
from jax_moye._primitives.fused import fused, fused_p
from jax_moye._selection.epilogue import Epilogue, fit_epilogue
from jax_moye._selection.problem import NotServedError, make_problem

linear = jax_moye.linear
glu = jax_moye.gated_linear_unit
emulated = functools.partial(linear, implementation="moye", interpret=True)

FUNCTIONS = {
    None: lambda z: z,
    "relu": jax.nn.relu,
    "gelu": jax.nn.gelu,
    "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}
OPERANDS = [names for n in range(4) for names in itertools.combinations(("bias", "c", "residual"), n)]


def unfused(x, w, bias=None, *, activation=None, residual=None, alpha=1.0, beta=1.0, c=None):
    """The layer as a user would write it."""
    z = alpha * jnp.matmul(x, w, precision="highest")
    z = z if c is None else z + beta * c
    z = z if bias is None else z + bias
    y = FUNCTIONS[activation](z)
    return y if residual is None else y + residual


def activate64(activation, z):
    """In float64, by formulas of our own."""
    if activation == "relu":
        return np.maximum(z, 0)
    if activation == "gelu":
        return z / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    if activation == "gelu_exact":
        return z / 2 * (1 + np.vectorize(math.erf)(z / np.sqrt(2)))
    if activation == "silu":
        return z / (1 + np.exp(-z))
    return z


def operands(rng, names=(), rows=(6,), k=8, n=5, dtype=np.float32):
    x, w = rng.standard_normal((*rows, k)), rng.standard_normal((k, n))
    shapes = {"bias": (n,), "c": (*rows, n), "residual": (*rows, n)}
    named = {name: jnp.asarray(rng.standard_normal(shapes[name]), dtype) for name in names}
    return jnp.asarray(x, dtype), jnp.asarray(w, dtype), named


def count(fun, *args) -> dict[str, int]:
    """Products in the optimized program of `fun` for this machine, by who computes them."""
    hlo = jax.jit(fun).lower(*args).compile().as_text()
    ours = {target: hlo.count(f'custom_call_target="{target}"') for target in (TARGET, FUSED_TARGET)}
    return ours | {"xla": len(re.findall(r"= \S+ dot\(", hlo))}


def products(jaxpr) -> int:
    """Products in a jaxpr and in those inside it."""
    total = 0
    for equation in jaxpr.eqns:
        total += equation.primitive.name in ("jax_moye_contract", "jax_moye_fused", "dot_general")
        for value in equation.params.values():
            inner = getattr(value, "jaxpr", value)
            total += products(inner) if hasattr(inner, "eqns") else 0
    return total


close = functools.partial(np.testing.assert_allclose, rtol=2e-5, atol=2e-5)


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


# ------------------------------------------------------------------------------------------------------- derivatives


def test_check_grads(rng):
    """Against numerical differences. The next test has every epilogue and three orders, against JAX's derivatives."""
    with jax.enable_x64(True):
        x, w, named = operands(rng, ("bias", "c", "residual"), rows=(2,), k=3, n=2, dtype=np.float64)

        def fun(x, w, bias, c, residual):
            return linear(x, w, bias, c=c, residual=residual, activation="silu", alpha=0.75, beta=-0.5)

        check_grads(fun, (x, w, *named.values()), order=2, modes=["fwd", "rev"])


@pytest.mark.parametrize("names", OPERANDS, ids="-".join)
def test_three_orders_of_derivative_of_every_epilogue(rng, names):
    # What an operand does to the pre-activation does not depend on what is applied to it.
    activations = FUNCTIONS if len(names) == 3 else (None, "relu", "silu") if not names else ("silu",)
    with jax.enable_x64(True):
        args = operands(rng, names, rows=(2,), k=3, n=2, dtype=np.float64)

        def third(layer):
            def loss(x, w, named):
                outs = [
                    layer(x, w, **named, activation=a, alpha=0.75, beta=1.0 - 2 * ("c" in names)) for a in activations
                ]
                return sum(jnp.sin((i + 1) * y).sum() for i, y in enumerate(outs))

            first = lambda *a: jax.grad(loss, (0, 1, 2))(*a)  # noqa: E731
            second = lambda *a: jax.jvp(first, a, args)  # noqa: E731
            return jax.jit(lambda *a: jax.jvp(second, a, args))(*args)

        for g, h in zip(jax.tree.leaves(third(linear)), jax.tree.leaves(third(unfused)), strict=True):
            np.testing.assert_allclose(g, h, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_derivatives_in_the_emulator(rng, activation):
    x, w, named = operands(rng, ("bias", "c", "residual"), rows=(3,), k=4, n=2)
    args = (x, w, named["bias"], named["c"], named["residual"])

    def loss(layer):
        def fun(x, w, bias, c, residual):
            y = layer(x, w, bias, activation=activation, c=c, beta=0.5, residual=residual, alpha=2.0)
            return jnp.sin(y).sum()

        return fun

    first = lambda layer: jax.jit(jax.grad(loss(layer), range(5)))(*args)  # noqa: E731
    for g, h in zip(first(emulated), first(unfused), strict=True):
        close(g, h, rtol=1e-4, atol=1e-4)
    second = lambda layer: jax.jit(lambda *a: jax.jvp(jax.grad(loss(layer), (0, 1, 2)), a, a)[1])(*args)  # noqa: E731
    for g, h in zip(second(emulated), second(unfused), strict=True):
        close(g, h, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("activation", FUNCTIONS)
def test_value_and_gradient_are_three_products(rng, activation):
    x, w, named = operands(rng, ("bias", "residual"))
    named = named if activation != "relu" else {"bias": named["bias"]}

    def loss(x, w, named):
        return (emulated(x, w, **named, activation=activation) ** 2).sum()

    fun = jax.value_and_grad(loss, (0, 1, 2))
    assert products(jax.make_jaxpr(fun)(x, w, named).jaxpr) == 3
    assert count(fun, x, w, named) == {TARGET: 2, FUSED_TARGET: 1, "xla": 0}
    # relu's derivative is told from its result, and what adds has none to tell.
    stored = "preactivation=True" in str(jax.make_jaxpr(fun)(x, w, named))
    assert stored == (activation not in (None, "relu"))


def test_no_preactivation_without_a_derivative(rng):
    x, w, named = operands(rng, ("bias",))
    layer = functools.partial(emulated, activation="gelu")
    results = lambda fun: re.findall(rf"@{FUSED_TARGET}.*-> \((.*)\)", lowered_text(fun, x, w, named, platform="cpu"))  # noqa: E731
    assert results(lambda x, w, named: layer(x, w, **named)) == ["tensor<6x5xf32>, tensor<0xui8>"]
    # Of value and tangent only the value is used: the rule for dead code drops the second result.
    tangents = lambda x, w, named: jax.jvp(lambda x: layer(x, w, **named), (x,), (x,))  # noqa: E731
    assert results(tangents) == ["tensor<6x5xf32>, tensor<0xui8>, tensor<6x5xf32>"]
    assert results(lambda *args: tangents(*args)[0]) == ["tensor<6x5xf32>, tensor<0xui8>"]
    jaxpr = jax.make_jaxpr(tangents)(x, w, named).jaxpr
    reduced, _ = jax.interpreters.partial_eval.dce_jaxpr(jaxpr, [True, False])
    assert "preactivation=False" in str(reduced)
    assert products(reduced) == 1
    reduced, _ = jax.interpreters.partial_eval.dce_jaxpr(jaxpr, [False, True])
    assert "preactivation=True" in str(reduced)  # the derivative alone needs it
    reduced, _ = jax.interpreters.partial_eval.dce_jaxpr(jaxpr, [False, False])
    assert not reduced.eqns
    # The residual's gradient needs none of it.
    residual = lambda r: layer(x, w, residual=r).sum()  # noqa: E731
    assert "preactivation=True" not in str(jax.make_jaxpr(jax.grad(residual))(jnp.ones((6, 5))))


def saved_shapes(fun, *args) -> list[str]:
    """What the transposed function keeps from the forward one."""
    _, transposed = jax.vjp(fun, *args)
    return sorted(f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(transposed))


def test_what_is_saved(rng):
    x, w, _ = operands(rng, dtype=jnp.bfloat16)
    for activation in ("gelu", "gelu_exact", "silu"):
        saved = saved_shapes(functools.partial(linear, activation=activation), x, w)
        assert saved == sorted(["bfloat16[6, 8]", "bfloat16[8, 5]", "bfloat16[6, 5]"])  # x, w and z, nothing else
    both = jnp.stack([w, w], 1)
    assert saved_shapes(glu, x, both) == sorted(["bfloat16[6, 8]", "bfloat16[8, 2, 5]", "bfloat16[6, 2, 5]"])


@pytest.mark.parametrize("interpret", [False, True])
def test_relus_derivative_is_not_told_from_8_bits(interpret):
    """They have 0 for what is positive and small."""
    x, w = jnp.full((1, 16), 2.0**-8, jnp.float8_e4m3fn), jnp.full((16, 16), 2.0**-9, jnp.float8_e4m3fn)
    layer = functools.partial(
        jax_moye.linear, activation="relu", preferred_element_type=jnp.float8_e4m3fn, interpret=interpret
    )
    y, vjp = jax.vjp(lambda bias: layer(x, w, bias), jnp.zeros(16))
    assert not y.astype(jnp.float32).any()
    np.testing.assert_array_equal(vjp(jnp.ones_like(y))[0], np.ones(16))


def test_weights_in_f32_and_activations_in_bf16(rng):
    x, w, named = operands(rng, ("bias",), rows=(64,))
    x = x.astype(jnp.bfloat16)
    y = emulated(x, w, **named, activation="silu")
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, emulated(x, w.astype(jnp.bfloat16), **named, activation="silu"))

    for layer in (emulated, linear):
        for options in ({}, {"activation": "silu"}):
            fun = lambda x, w, bias: (  # noqa: E731
                layer(x, w, bias, **options).astype(jnp.float32).sum()  # noqa: B023
            )
            jaxpr = jax.make_jaxpr(jax.grad(fun, (0, 1, 2)))(x, w, named["bias"])
            # The product that makes w's gradient writes f32, from bf16 operands, and nothing follows it.
            (equation,) = [e for e in jaxpr.eqns if e.outvars[0] is jaxpr.jaxpr.outvars[1]]
            assert equation.primitive.name == "jax_moye_contract"
            assert equation.outvars[0].aval.dtype == jnp.float32
            assert [v.aval.dtype for v in equation.invars] == [jnp.bfloat16] * 2
            dx, dw, db = jax.grad(fun, (0, 1, 2))(x, w, named["bias"])
            assert (dx.dtype, dw.dtype, db.dtype) == (jnp.bfloat16, jnp.float32, jnp.float32)
    # Sums of 64 ones times x: exact in f32, not in bf16.
    dw = jax.grad(lambda w: emulated(x, w).astype(jnp.float32).sum())(w)
    np.testing.assert_allclose(dw[:, 0], np.asarray(x, np.float64).sum(0), rtol=1e-5)
    assert (dw[:, 0] != dw[:, 0].astype(jnp.bfloat16)).any()


@pytest.mark.parametrize("layer", [linear, emulated], ids=["xla", "emulated"])
def test_transformations(rng, layer):
    x, w, named = operands(rng, ("bias", "residual"), rows=(5,), k=5)

    def loss(f):
        return lambda x, w: jnp.sin(f(x, w, **named, activation="silu")).sum()

    def scanned(f):
        def loss(x, w):
            def body(h, bias):
                return f(h, w, bias, activation="gelu", residual=h), None

            return lax.scan(body, x, jnp.stack([named["bias"]] * 3))[0].sum()

        return loss

    everything = jax.checkpoint_policies.everything_saveable
    expected = jax.jit(jax.grad(loss(unfused), (0, 1)))(x, w)
    for fun in (loss(layer), jax.checkpoint(loss(layer)), jax.checkpoint(loss(layer), policy=everything)):
        for g, h in zip(jax.jit(jax.grad(fun, (0, 1)))(x, w), expected, strict=True):
            close(g, h, rtol=1e-4, atol=1e-4)
    for g, h in zip(*(jax.jit(jax.grad(scanned(f), (0, 1)))(x, w) for f in (layer, unfused)), strict=True):
        close(g, h, rtol=1e-3, atol=1e-3)
    _, linearized = jax.linearize(loss(layer), x, w)
    close(linearized(x, w), jax.jvp(loss(unfused), (x, w), (x, w))[1], rtol=1e-4, atol=1e-4)
    if layer is linear:
        ours, theirs = (jax.jit(jax.hessian(loss(f), 1))(x, w) for f in (layer, unfused))
        close(ours, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "axes",
    [
        (0, None, None, None, None),
        (0, None, 0, 0, 0),
        (1, None, None, 1, 2),
        (0, None, None, 2, None),
        (None, 0, None, None, None),
        (None, 1, 1, 0, 0),
        (None, 2, 0, 2, 1),
        (0, 0, 0, 0, None),
        (1, 1, None, None, 1),
        (2, 0, 1, 2, 2),
    ],
    ids=str,
)
def test_vmap_is_one_kernel_call(rng, axes):
    x, w, named = operands(rng, ("bias", "c", "residual"), rows=(3,), k=4, n=2)
    stack = lambda v, axis: v if axis is None else jnp.stack([v, 2 * v, -v], axis)  # noqa: E731
    args = [stack(v, axis) for v, axis in zip((x, w, *named.values()), axes, strict=True)]

    def layer(f):
        def fun(x, w, bias, c, residual):
            return f(x, w, bias, c=c, residual=residual, activation="silu", alpha=0.5, beta=2.0)

        return jax.vmap(fun, axes)

    def value_and_grad(f):
        loss = lambda *a: jnp.sin(layer(f)(*a)).sum()  # noqa: E731
        return jax.jit(lambda *a: (layer(f)(*a), jax.grad(loss, range(5))(*a)))(*args)

    assert count(layer(emulated), *args) == {TARGET: 0, FUSED_TARGET: 1, "xla": 0}
    close(jax.jit(layer(emulated))(*args), layer(unfused)(*args))
    for g, h in zip(*(jax.tree.leaves(value_and_grad(f)) for f in (linear, unfused)), strict=True):
        close(g, h, rtol=1e-4, atol=1e-4)


def test_vmap_of_a_gradient_and_nested(rng):
    x, w, named = operands(rng, ("bias",), rows=(3,), k=4, n=2)
    loss = lambda f: lambda x, w: jnp.sin(f(x, w, **named, activation="gelu")).sum()  # noqa: E731
    xs, ws = jnp.stack([x, -x]), jnp.stack([w, 2 * w])
    for layer in (linear, emulated):
        for axes in ((0, None), (None, 0), (0, 0)):
            args = (xs if axes[0] == 0 else x, ws if axes[1] == 0 else w)
            per_example = lambda f: jax.jit(jax.vmap(jax.grad(loss(f), (0, 1)), axes))(*args)  # noqa: B023, E731
            for g, h in zip(per_example(layer), per_example(unfused), strict=True):
                close(g, h, rtol=1e-4, atol=1e-4)
    nested = lambda f: jax.vmap(jax.vmap(lambda v, b: f(v, w, b, activation="gelu"), (0, None)), (None, 0))  # noqa: E731
    biases = jnp.stack([named["bias"]] * 2)
    close(nested(linear)(x, biases), nested(unfused)(x, biases))


def test_vmap_over_the_epilogue_alone_is_one_product(rng):
    x, w, named = operands(rng, ("bias", "residual"))
    biases = jnp.stack([named["bias"], -named["bias"]])
    fun = lambda f: jax.vmap(lambda b: f(x, w, b, activation="silu", residual=named["residual"]))  # noqa: E731
    close(fun(emulated)(biases), fun(unfused)(biases))
    text = lowered_text(fun(emulated), biases, platform="cpu")
    assert text.count("custom_call @jax_moye") == 1
    assert "sizes = dense<[1, 6, 5, 8]>" in text


def test_batch_invariance_has_the_kernels_epilogue_under_vmap(rng):
    x, w, named = operands(rng, ("bias",))
    layer = functools.partial(emulated, activation="silu", batch_invariant=True)
    biases = jnp.stack([named["bias"], -named["bias"]])
    ys = jax.vmap(lambda b: layer(x, w, b))(biases)
    for y, bias in zip(ys, biases, strict=True):
        np.testing.assert_array_equal(y, layer(x, w, bias))
    assert count(jax.vmap(lambda b: layer(x, w, b)), biases) == {TARGET: 0, FUSED_TARGET: 1, "xla": 0}


def test_unfused_where_no_stride_says_it(rng):
    problem = make_problem("abmk,kn->abmn", (2, 3, 4, 8), (8, 5), "f32", "f32")
    sizes = dict(a=2, b=3, m=4, n=5, k=8)
    fit = lambda labels: fit_epilogue(problem, "abmn", sizes, Epilogue(operands=(("bias", labels),)))  # noqa: E731
    assert fit("n") == (problem, {"bias": (0, 0, 1)})
    assert fit("abmn") == (problem, {"bias": (0, 5, 1)})
    for labels, m, strides in (
        ("an", 12, (5, 0, 1)),
        ("a", 12, (1, 0, 0)),
        ("mn", 4, (0, 5, 1)),
        ("abn", 4, (5, 0, 1)),
    ):
        split, of_bias = fit(labels)
        assert (split.batch * split.m, split.m) == (24, m)
        assert of_bias == {"bias": strides}
        assert split.a_strides == (m * 8, 8, 1)
        assert split.d_strides == (m * 5, 5, 1)
        assert split.b_strides == (0, *problem.b_strides[1:])
    split, of_bias = fit("bn")  # neither a nor m: one mode of each is needed
    assert (split.sizes, of_bias) == ((2, 3, 4, 5, 8), {"bias": (0, 5, 0, 1)})
    assert split.strides == {"a": (96, 32, 8, 1), "b": (0, 0, *problem.b_strides[1:]), "d": (60, 20, 5, 1)}
    wide = make_problem("abcdmk,kn->abcdmn", (2, 2, 2, 2, 4, 8), (8, 5), "f32", "f32")
    with pytest.raises(NotServedError, match="no strides of a matrix broadcast"):
        fit_epilogue(wide, "abcdmn", sizes | dict(b=2, c=2, d=2), Epilogue(operands=(("bias", "bdn"),)))
    x = jnp.asarray(rng.standard_normal((2, 3, 4, 8)), jnp.float32)
    w, bias = (
        jnp.asarray(rng.standard_normal((8, 5)), jnp.float32),
        jnp.asarray(rng.standard_normal((3, 5)), jnp.float32),
    )
    y = fused(
        "abmk,kn->abmn",
        x,
        w,
        [bias],
        epilogue=Epilogue("silu", operands=(("bias", "bn"),)),
        out_dtype=jnp.dtype("float32"),
        precision=None,
        out_sharding=None,
        config=None,
        implementation="moye",
        interpret=jax_moye.InterpretParams(),
        deterministic=False,
        batch_invariant=False,
    )
    close(y, jax.nn.silu(x @ w + bias[:, None, :]))


def test_several_devices_are_unfused_and_right(rng):
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Explicit,))
    x, w, named = operands(rng, ("bias", "residual"))
    fun = lambda f: lambda x, w, named: f(x, w, **named, activation="silu").sum()  # noqa: E731
    with jax.set_mesh(mesh):
        sharded, w, named = jax.device_put(x, jax.P("d")), *jax.device_put((w, named), jax.P())
        grads = jax.jit(jax.grad(fun(linear), (0, 1, 2)))(sharded, w, named)
        assert jax.typeof(linear(sharded, w, **named, activation="silu")).sharding.spec == jax.P("d", None)
    for g, h in zip(
        jax.tree.leaves(grads), jax.tree.leaves(jax.grad(fun(unfused), (0, 1, 2))(x, w, named)), strict=True
    ):
        close(g, h, rtol=1e-4, atol=1e-4)


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


# ------------------------------------------------------------------------------------------------- gated linear units


def gated(x, w_gate, w_up, activation="silu"):
    function = FUNCTIONS.get(activation, jax.nn.sigmoid)
    return function(jnp.matmul(x, w_gate, precision="highest")) * jnp.matmul(x, w_up, precision="highest")


@pytest.mark.parametrize("activation", [*FUNCTIONS, "sigmoid"])
@pytest.mark.parametrize("interpret", [False, True])
def test_gated_linear_unit(rng, activation, interpret):
    x, w_gate, _ = operands(rng, rows=(2, 3))
    w_up = w_gate[::-1] + 1
    both = jnp.stack([w_gate, w_up], 1)
    options = dict(activation=activation, interpret=interpret)
    expected = gated(x, w_gate, w_up, activation)
    close(glu(x, w_gate, w_up, **options), expected)
    close(glu(x, both, **options), expected)
    theirs = jax.grad(lambda *a: jnp.sin(gated(*a, activation)).sum(), (0, 1, 2))(x, w_gate, w_up)
    apart = jax.grad(lambda *a: jnp.sin(glu(*a, **options)).sum(), (0, 1, 2))(x, w_gate, w_up)
    dx, dw = jax.grad(lambda *a: jnp.sin(glu(*a, **options)).sum(), (0, 1))(x, both)
    for ours in (apart, (dx, dw[:, 0], dw[:, 1])):
        for g, h in zip(ours, theirs, strict=True):
            close(g, h, rtol=1e-4, atol=1e-4)


def test_three_orders_of_derivative_of_a_gated_linear_unit(rng):
    with jax.enable_x64(True):
        x, w, _ = operands(rng, rows=(2,), k=3, n=2, dtype=np.float64)
        args = (x, w, w[::-1])

        def third(*layers):
            loss = lambda *a: sum(jnp.sin((i + 1) * f(*a)).sum() for i, f in enumerate(layers))  # noqa: E731
            second = lambda *a: jax.jvp(jax.grad(loss, (0, 1, 2)), a, args)  # noqa: E731
            return jax.jit(lambda *a: jax.jvp(second, a, args))(*args)

        ours = third(lambda x, w, v: glu(x, jnp.stack([w, v], 1)), functools.partial(glu, activation="gelu"))
        theirs = third(gated, functools.partial(gated, activation="gelu"))
        for g, h in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(g, h, rtol=1e-9, atol=1e-9)


def test_products_of_a_gated_linear_unit(rng):
    x, w, _ = operands(rng, dtype=jnp.bfloat16)
    both = jnp.stack([w, w], 1)
    emulated_glu = functools.partial(glu, implementation="moye", interpret=True)
    loss = lambda *a: emulated_glu(*a).astype(jnp.float32).sum()  # noqa: E731
    assert count(emulated_glu, x, both) == {TARGET: 1, FUSED_TARGET: 0, "xla": 0}
    assert count(emulated_glu, x, w, w + 1) == {TARGET: 2, FUSED_TARGET: 0, "xla": 0}
    assert count(jax.value_and_grad(loss, (0, 1)), x, both) == {TARGET: 3, FUSED_TARGET: 0, "xla": 0}
    assert count(jax.value_and_grad(loss, (0, 1, 2)), x, w, w + 1) == {TARGET: 6, FUSED_TARGET: 0, "xla": 0}
    wide = both.astype(jnp.float32)
    assert glu(x, wide).dtype == jnp.bfloat16
    np.testing.assert_array_equal(glu(x, wide), glu(x, both))
    jaxpr = jax.make_jaxpr(jax.grad(loss, 1))(x, wide)
    (equation,) = [e for e in jaxpr.eqns if e.outvars[0] is jaxpr.jaxpr.outvars[0]]
    assert equation.primitive.name == "jax_moye_contract"
    assert equation.outvars[0].aval.dtype == jnp.float32


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((6, 8), (8, 5)), r"w_gate has shape \(8, 5\): w_gate is \(K, 2, N\), both weights where w_up is None"),
        (((6, 8), (8, 3, 5)), r"w_gate is \(K, 2, N\)"),
        (((6, 8), (8, 2, 5), (8, 5)), r"w_gate has shape \(8, 2, 5\): w_gate is \(K, N\)"),
        (((6, 8), (8, 5), (7, 5)), "the last dimension of x and the first of w_up differ, 8 != 7"),
        (((6, 8), (8, 5), (8, 4)), r"w_gate is float32\[8, 5\] and w_up is float32\[8, 4\]: they have the same shape"),
    ],
    ids=str,
)
def test_shapes_of_a_gated_linear_unit(shapes, message):
    with pytest.raises(ValueError, match=message):
        glu(*map(jnp.zeros, shapes))


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


# ------------------------------------------------------------------------------------------------------------ scales


def of_scales(x, w, x_scale, w_scale):
    """The product by scales in float64; x_scale: (), (...) or (..., 1)."""
    x, w, x_scale, w_scale = (np.asarray(v, np.float64) for v in (x, w, x_scale, w_scale))
    if x_scale.shape == x.shape[:-1] and x_scale.ndim:
        x_scale = x_scale[..., None]
    return (x @ w) * x_scale * w_scale


SCALE_SHAPES = [((), ()), ((6,), (5,)), ((6, 1), ()), ((), (5,))]


@pytest.mark.parametrize(("of_x", "of_w"), SCALE_SHAPES)
@pytest.mark.parametrize(
    ("dtype", "result"),
    [("bfloat16", "bfloat16"), ("int8", "bfloat16"), ("int8", "float32"), ("float8_e4m3fn", "float16")],
)
@pytest.mark.parametrize("options", [{}, {"interpret": True, "implementation": "moye"}], ids=["xla", "moye"])
def test_scales(rng, dtype, result, of_x, of_w, options):
    """Integers and scales of powers of two: what comes out is the answer, rounded once."""
    x, w = rng.integers(-4, 5, (6, 16)).astype(dtype), rng.integers(-4, 5, (16, 5)).astype(dtype)
    x_scale, w_scale = (np.asarray(2.0 ** rng.integers(-2, 3, shape), np.float32) for shape in (of_x, of_w))
    y = jax.jit(functools.partial(linear, preferred_element_type=result, activation="relu", **options))(
        x, w, x_scale=x_scale, w_scale=w_scale
    )
    expected = np.maximum(of_scales(x, w, x_scale, w_scale), 0)
    assert y.dtype == jnp.dtype(result)
    np.testing.assert_array_equal(np.asarray(y), expected.astype(result))


def test_scales_stand_in_the_custom_call(rng):
    """One custom call of the scaled target, with both scales as operands; without scales it is the fused one."""
    x, w = jnp.ones((32, 64), jnp.int8), jnp.ones((64, 128), jnp.int8)
    scales = {"x_scale": jnp.ones((32,)), "w_scale": jnp.ones((128,))}
    fun = functools.partial(linear, preferred_element_type=jnp.bfloat16, implementation="moye", interpret=True)
    text = jax.jit(fun).lower(x, w, **scales).as_text()
    assert text.count("jax_moye_scaled_gemm_v1") == 1
    assert 'operands = "lhs_scale,rhs_scale"' in text
    assert "lhs_scale_strides = dense<[0, 1, 0]>" in text
    assert "rhs_scale_strides = dense<[0, 0, 1]>" in text
    assert "scaled_gemm" not in jax.jit(fun).lower(x, w).as_text()


@pytest.mark.parametrize("interpret", [False, True])
def test_gradients_of_scales(rng, interpret):
    x, w = rng.standard_normal((6, 8)).astype(np.float32), rng.standard_normal((8, 5)).astype(np.float32)
    x_scale, w_scale, bias = (rng.uniform(0.5, 2, n).astype(np.float32) for n in (6, 5, 5))

    def loss(fun):
        return lambda *args: jnp.sum(fun(*args) ** 2)

    def ours(x, w, x_scale, w_scale, bias):
        return linear(
            x, w, bias, activation="silu", alpha=0.5, x_scale=x_scale, w_scale=w_scale, precision="highest",
            interpret=interpret,
        )  # fmt: skip

    def theirs(x, w, x_scale, w_scale, bias):
        z = jnp.matmul(x, w, precision="highest") * 0.5 * x_scale[:, None] * w_scale + bias
        return jax.nn.silu(z)

    args = (x, w, x_scale, w_scale, bias)
    for argnums in ((0, 1), (2, 3), (0, 1, 2, 3, 4), (3,)):
        found, expected = (jax.grad(loss(fun), argnums)(*args) for fun in (ours, theirs))
        for one, other in zip(found, expected, strict=True):
            assert one.shape == other.shape
            np.testing.assert_allclose(one, other, rtol=2e-4, atol=2e-4)
    check_grads(ours, args, 2, modes=("fwd", "rev"), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("axes", [(0, None, 0, None), (None, 0, None, 0), (0, 0, 0, 0), (None, None, 0, None)])
def test_vmap_of_scales(rng, axes):
    shapes = ((6, 8), (8, 5), (6,), (5,))
    args = [
        rng.integers(1, 4, shape if axis is None else (3, *shape)).astype(np.float32)
        for axis, shape in zip(axes, shapes, strict=True)
    ]

    def fun(x, w, x_scale, w_scale):
        return linear(x, w, x_scale=x_scale, w_scale=w_scale, precision="highest", interpret=True)

    found = jax.vmap(fun, axes)(*args)
    each = [[x if axis is None else x[i] for axis, x in zip(axes, args, strict=True)] for i in range(3)]
    np.testing.assert_array_equal(found, np.stack([of_scales(*one) for one in each]))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        (dict(x_scale=np.ones((5,), np.float32)), ValueError, r"x_scale has shape \(5,\): its shape is \(\), x's"),
        (dict(w_scale=np.ones((5, 1), np.float32)), ValueError, r"w_scale has shape \(5, 1\): its shape is \(\) or"),
        (dict(x_scale=np.ones((6,), np.int32)), TypeError, "x_scale is int32: it is float32"),
        (dict(w_scale=np.ones((5,), np.float32), preferred_element_type=jnp.int32), TypeError, "the result is int32"),
        (dict(w_scale="1"), TypeError, "w_scale is an array, not str"),
    ],
)
def test_wrong_scales(options, error, message):
    with pytest.raises(error, match=message):
        linear(np.ones((6, 8), np.int8), np.ones((8, 5), np.int8), **options)


def test_tangents_of_float16_are_scaled_before_they_are_rounded():
    """The product of the operands is beyond float16, and the result is not."""
    x, w = jnp.full((8, 32), 100.0, jnp.float8_e4m3fn), jnp.full((32, 8), 100.0, jnp.float8_e4m3fn)
    scales = dict(x_scale=jnp.full(8, 1e-3), w_scale=jnp.full(8, 1e-2), preferred_element_type=jnp.float16)
    y, y_dot = jax.jvp(lambda x: jax_moye.linear(x, w, **scales), (x,), (x,))
    np.testing.assert_array_equal(np.asarray(y_dot), np.asarray(y))
