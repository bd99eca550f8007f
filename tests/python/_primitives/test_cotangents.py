"""Cotangents of gated layers through optimize: one product with two results."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python import gated as gated_layers
from python.float64 import assert_close, exact

import jax_moye
from jax_moye._primitives.rewritten import rewritten_p

M, K, N = 24, 32, 40
ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu_tanh": jax.nn.gelu,
    "gelu_erf": lambda z: jax.nn.gelu(z, approximate=False),
    "silu": jax.nn.silu,
}
WRAPS = {"plain": lambda f: f, "jit": jax.jit, "checkpoint": jax.checkpoint}


def arrays(*shapes, dtype=jnp.bfloat16):
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.standard_normal(shape) / shape[0] ** 0.25, dtype) for shape in shapes]


def weights(dtype=jnp.bfloat16):
    """x, w_gate, w_up, w_down."""
    return arrays((M, K), (K, N), (K, N), (N, K), dtype=dtype)


def step(activation, wrap=lambda f: f):
    def layer(x, g, u, d):
        return (activation(x @ g) * (x @ u)) @ d

    def loss(x, g, u, d):
        y = wrap(layer)(wrap(layer)(x, g, u, d), g, u, d)
        return (y.astype(jnp.promote_types(y.dtype, jnp.float32)) ** 2).mean()

    return jax.value_and_grad(loss, (0, 1, 2, 3))


def gates_in(jaxpr):
    """Its equations of two cotangents, those inside of calls and loops, too."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is rewritten_p:
            found += [equation] * equation.params["epilogue"].is_of_gate
            continue
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                found += gates_in(getattr(inner, "jaxpr", inner))
    return found


def gates_of(fun, *operands):
    return gates_in(jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr)


@pytest.mark.parametrize("wrap", WRAPS.values(), ids=WRAPS)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_found_and_right(name, wrap):
    """In both layers: by XLA, and by kernels, whose calls are one for each."""
    fun, operands = step(ACTIVATIONS[name], wrap), weights()
    found = gates_of(fun, *operands)
    assert [e.params["epilogue"].name for e in found] == [f"d_{name}"] * 2
    for equation in found:
        assert [name for name, _ in equation.params["epilogue"].operands] == ["c", "multiplier"]
        assert len(equation.outvars) == 2
    expected = exact(fun, operands)
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), expected, 2.0**-5)
    with jax_moye.options(implementation="moye", interpret=True):
        optimized = jax.jit(jax_moye.optimize(fun))
        text = optimized.lower(*operands).as_text()
        assert text.count('operands = "c,multiplier"') == 2
        assert_close(optimized(*operands), expected, 2.0**-5)


def cotangents(d_y, w, gate, up, activation=jax.nn.silu):
    return jax.vjp(lambda gate, up: activation(gate) * up, gate, up)[1](d_y @ w)


def _by_hand(d_y, w, gate, up):
    h, pull = jax.vjp(jax.nn.silu, gate)
    d_h = d_y @ w
    return d_h * h, pull(up * d_h)[0]


GIVEN = (M, K), (K, N), (M, N), (M, N)
FORMS = {
    "given": cotangents,
    "the other factor first": lambda d_y, w, gate, up: jax.vjp(lambda g, u: u * jax.nn.silu(g), gate, up)[1](d_y @ w),
    "by hand": _by_hand,
    "wide sums, made narrow": lambda d_y, w, gate, up: jax.vjp(lambda g, u: jax.nn.silu(g) * u, gate, up)[1](
        jnp.matmul(d_y, w, preferred_element_type=jnp.float32).astype(d_y.dtype)
    ),
    "one array twice": lambda d_y, w, gate, up: cotangents(d_y, w, gate, gate),
}


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
@pytest.mark.parametrize("name", FORMS)
def test_forms(name, dtype):
    fun, operands = FORMS[name], arrays(*GIVEN, dtype=dtype)
    assert len(gates_of(fun, *operands)) == 1
    expected = exact(fun, operands)
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), expected, 2.0**-5)
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(fun))
        text = optimized.lower(*operands).as_text()
        assert text.count("custom_call @jax_moye_fused_gemm_v1") == 1
        assert "stablehlo.multiply" not in text
        assert_close(optimized(*operands), expected, 2.0**-7)


def test_derivatives_and_vmap():
    """What stands there is the equations for who transforms the program."""
    operands = arrays(*GIVEN)
    optimized = jax_moye.optimize(cotangents)
    tangents = jax.tree.map(jnp.ones_like, operands)
    for one, other in (
        (jax.jvp(optimized, operands, tangents), jax.jvp(cotangents, operands, tangents)),
        (
            jax.vmap(optimized, (0, None, 0, 0))(
                *[jnp.stack([x, x + x]) if x.ndim and i != 1 else x for i, x in enumerate(operands)]
            ),
            jax.vmap(cotangents, (0, None, 0, 0))(
                *[jnp.stack([x, x + x]) if i != 1 else x for i, x in enumerate(operands)]
            ),
        ),
    ):
        assert_close(one, jax.tree.map(lambda x: np.asarray(x, np.float64), other), 2.0**-5)


def _others_read_the_cotangent(d_y, w, gate, up):
    d_h = d_y @ w
    return *jax.vjp(lambda g, u: jax.nn.silu(g) * u, gate, up)[1](d_h), d_h


def _others_read_between(d_y, w, gate, up):
    d_h = d_y @ w
    between = d_h * up
    return jax.vjp(jax.nn.silu, gate)[1](between)[0], d_h * jax.nn.silu(gate), between


def _made_of_a_cotangent(d_y, w, gate, up):
    d_h = d_y @ w
    d_up = d_h * jax.nn.silu(gate)
    other = jnp.matmul(d_up, up.T) @ up  # written by a product, but behind d_up
    return jax.vjp(jax.nn.silu, gate)[1](d_h * other)[0], d_up


NO_GATES = {
    "others read the product": _others_read_the_cotangent,
    "others read what is between": _others_read_between,
    "a factor that no product writes": lambda d_y, w, gate, up: cotangents(d_y, w, gate, jnp.sin(up)),
    "a factor made of a cotangent": _made_of_a_cotangent,
    "an activation elsewhere": lambda d_y, w, gate, up: (
        lambda d_h: (d_h * jax.nn.silu(up), jax.vjp(jax.nn.silu, gate)[1](up * d_h)[0])
    )(d_y @ w),
    "another activation": lambda d_y, w, gate, up: (
        lambda d_h: (d_h * jax.nn.gelu(gate), jax.vjp(jax.nn.silu, gate)[1](up * d_h)[0])
    )(d_y @ w),
    "a bias between": lambda d_y, w, gate, up: jax.vjp(lambda g, u: jax.nn.silu(g) * u, gate, up)[1](d_y @ w + w[0]),
    "no activation": lambda d_y, w, gate, up: jax.vjp(lambda g, u: g * u, gate, up)[1](d_y @ w),
    "a row": lambda d_y, w, gate, up: cotangents(d_y, w, gate, jnp.broadcast_to(up[:1], up.shape)),
}


@pytest.mark.parametrize("name", NO_GATES)
def test_what_is_none(name):
    fun, operands = NO_GATES[name], arrays(*GIVEN)
    assert gates_of(fun, *operands) == []
    found = jax.jit(jax_moye.optimize(fun))(*operands)
    assert_close(found, exact(fun, operands), 2.0**-5)


def test_results_of_32_bits_stay():
    operands = weights(jnp.float32)
    fun = step(jax.nn.silu)
    assert gates_of(fun, *operands) == []
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands), 1e-4)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["stacked", "checkpoint"])
def test_in_loops(wrap):
    """What a loop is given XLA copies; what its body computes again is in memory."""
    x, *of_layer = weights()
    stacked = [jnp.stack([w, w]) for w in of_layer]

    def layer(x, w):
        g, u, d = w
        return (jax.nn.silu(x @ g) * (x @ u)) @ d, None

    def fun(x, *w):
        return (jax.lax.scan(wrap(layer), x, w)[0].astype(jnp.float32) ** 2).mean()

    gradients = jax.value_and_grad(fun, (0, 1, 2, 3))
    assert len(gates_of(gradients, x, *stacked)) == (wrap is jax.checkpoint)
    found, wanted = (jax.jit(f)(x, *stacked) for f in (jax_moye.optimize(gradients), gradients))
    assert_close(found, jax.tree.map(lambda x: np.asarray(x, np.float64), wanted), 2.0**-4)


def test_rows_that_tma_cannot_store():
    """The product alone is a kernel's then, and the equations behind it are as they were."""

    def fun(d_y, w, gate, up):
        return cotangents(d_y, w.T, gate, up)

    operands = arrays((M, K), (36, K), (M, 36), (M, 36))
    assert len(gates_of(fun, *operands)) == 1
    with jax_moye.options(implementation="moye", interpret=True):
        optimized = jax.jit(jax_moye.optimize(fun))
        text = optimized.lower(*operands).as_text()
        assert "custom_call @jax_moye_gemm_v1" in text
        assert "multiplier" not in text
        assert_close(optimized(*operands), exact(fun, operands), 2.0**-5)


def test_layers_with_biases():
    """The activation is a result of the forward pass' kernel, as what it is applied to."""

    def fun(x, g, u, d, b):
        y = (jax.nn.silu(x @ g + b) * (x @ u + b)) @ d
        return (y.astype(jnp.promote_types(y.dtype, jnp.float32)) ** 2).mean()

    gradients, operands = jax.value_and_grad(fun, (0, 1, 2, 3, 4)), [*weights(), arrays((N,))[0]]
    assert len(gates_of(gradients, *operands)) == 1
    expected = exact(gradients, operands)
    assert_close(jax.jit(jax_moye.optimize(gradients))(*operands), expected, 2.0**-5)
    with jax_moye.options(implementation="moye", interpret=True):
        assert_close(jax.jit(jax_moye.optimize(gradients))(*operands), expected, 2.0**-5)


EMULATED = [c for c in gated_layers.OF_COTANGENTS if c.tile[0] * c.tile[1] <= 128 * 128 and c.cluster == (1, 1)]


@pytest.mark.parametrize("config", EMULATED, ids=lambda config: config.name)
def test_by_each_config(config):
    """As tests/gpu/test_gpu_gate.py has them on a GPU."""
    for case in list(gated_layers.cotangents_of(config))[:-1]:
        gated_layers.check_exact(config, case, interpret=True, is_it=gated_layers.is_of_gate)
    gated_layers.check_cotangents(config, "silu", interpret=True)


def test_a_step_of_training():
    gated_layers.check_step(interpret=True, implementation=None)
