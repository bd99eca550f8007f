"""linear: derivatives of every order, the number of products, what is saved, other transformations."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads
from python.linear_layers import FUNCTIONS, OPERANDS, close, count, emulated, glu, linear, operands, products, unfused
from python.support import FUSED_TARGET, TARGET, lowered_text

import jax_moye
from jax_moye._primitives.fused import fused
from jax_moye._selection.epilogue import Epilogue, fit_epilogue
from jax_moye._selection.problem import NotServedError, make_problem


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


# -------------------------------------------------------------------------------------------------- transformations


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
