"""Products behind which an activation's derivative stands, through optimize; parts that are faster than the whole."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._primitives import rewritten as module
from jax_moye._selection import measurements
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.decide import Decision, Times
from jax_moye._selection.request import Operand, Request

ACTIVATIONS = {
    "relu": jax.nn.relu,
    "gelu_tanh": jax.nn.gelu,
    "gelu_erf": lambda z: jax.nn.gelu(z, approximate=False),
    "silu": jax.nn.silu,
}


def weights(dtype=jnp.bfloat16):
    keys = jax.random.split(jax.random.key(0), 4)
    draw = lambda key, *shape: (jax.random.normal(key, shape, jnp.float32) / 8).astype(dtype)  # noqa: E731
    return draw(keys[0], 48, 32), (draw(keys[1], 32, 72), draw(keys[2], 72), draw(keys[3], 72, 32))


def step(activation, wrap=lambda f: f):
    def layer(w, x):
        up, bias, down = w
        return activation(x @ up + bias) @ down

    def loss(w, x):
        return jnp.sum(wrap(layer)(w, wrap(layer)(w, x)).astype(jnp.float32) ** 2)

    return jax.value_and_grad(loss)


def derived(fun, *operands):
    return re.findall(r"activation='(d_\w+)'", str(jax.make_jaxpr(jax_moye.optimize(fun))(*operands)))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint, jax.jit], ids=["plain", "checkpoint", "jit"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_found_and_right(name, wrap):
    x, w = weights()
    fun = step(ACTIVATIONS[name], wrap)
    assert derived(fun, w, x) == [f"d_{name}"] * 2
    exact = fun(jax.tree.map(lambda a: a.astype(jnp.float32), w), x.astype(jnp.float32))
    for ours in (True, False):
        options = {"implementation": "moye", "interpret": True} if ours else {}
        with jax_moye.options(**options):
            found = jax.jit(jax_moye.optimize(fun))(w, x)
        for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
            got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
            assert np.max(np.abs(got - wanted)) <= 0.02 * np.max(np.abs(wanted))


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_where_a_bias_has_a_gradient_the_result_is_summed(name):
    """XLA does that in its kernel of the derivative, which the measured time of a kernel of ours has to make up for."""
    x, (up, bias, down) = weights()
    act = ACTIVATIONS[name]
    biased = lambda w, x: jnp.sum((act(x @ w[0] + w[1]) @ w[2]).astype(jnp.float32) ** 2)  # noqa: E731
    plain = lambda w, x: jnp.sum((act(x @ w[0]) @ w[1]).astype(jnp.float32) ** 2)  # noqa: E731
    for fun, w, is_summed in ((biased, (up, bias, down), True), (plain, (up, down), False)):
        closed = jax.make_jaxpr(jax_moye.optimize(jax.grad(fun)))(w, x)
        (found,) = (e for e in map(epilogue_of, closed.jaxpr.eqns) if e is not None and e.is_derivative)
        assert found.is_summed == is_summed
        words = measurements.variant("mk,kn->mn", found, 0.0, False).split()
        assert ("summed" in words) == is_summed
        assert words[:2] == [f"d_{name}", "c"]


def test_who_sums_columns_is_asked_of_derivatives_alone():
    """Behind an activation nothing of the kind was measured."""
    x, (up, bias, _) = weights()
    fun = lambda x: (lambda y: (y, y.sum(0)))(jax.nn.silu(x @ up + bias))  # noqa: E731
    (found,) = filter(None, map(epilogue_of, jax.make_jaxpr(jax_moye.optimize(fun))(x).jaxpr.eqns))
    assert (found.activation, found.is_summed) == ("silu", False)


def epilogue_of(equation):
    return equation.params.get("epilogue")


@pytest.mark.parametrize("wrap", [lambda f: f, jax.checkpoint], ids=["stacked", "checkpoint"])
def test_in_loops(wrap):
    """What a scan stacks for its derivative is not kept: XLA would copy it. What a body computes again is."""
    x, w = weights()
    stacked = jax.tree.map(lambda a: jnp.stack([a, a]), w)

    def layer(x, w):
        up, bias, down = w
        return jax.nn.gelu(x @ up + bias) @ down, None

    def fun(w, x):
        return jnp.sum(jax.lax.scan(wrap(layer), x, w)[0].astype(jnp.float32) ** 2)

    program = str(jax.make_jaxpr(jax_moye.optimize(jax.value_and_grad(fun)))(stacked, x))
    is_again = wrap is jax.checkpoint
    assert ("keeps=True" in program) is is_again
    assert ("d_gelu_tanh" in program) is is_again
    found, wanted = (
        jax.jit(f)(stacked, x) for f in (jax_moye.optimize(jax.value_and_grad(fun)), jax.value_and_grad(fun))
    )
    np.testing.assert_allclose(found[0], wanted[0], rtol=0.02)


def test_gated_layers_in_loops():
    x, (up, _, down) = weights()
    stacked = jnp.stack([up, up]), jnp.stack([up + up, up]), jnp.stack([down, down])

    def layer(x, w):
        gate, up, down = w
        return (jax.nn.silu(x @ gate) * (x @ up)) @ down, None

    def fun(w, x):
        return jnp.sum(jax.lax.scan(layer, x, w)[0].astype(jnp.float32) ** 2)

    assert "second_b" in str(jax.make_jaxpr(jax_moye.optimize(fun))(stacked, x))
    assert "second_b" not in str(jax.make_jaxpr(jax_moye.optimize(jax.grad(fun)))(stacked, x))


def test_the_cotangent_that_others_read_stays():
    x, (up, bias, down) = weights()

    def fun(x, dy):
        z, of_z = jax.vjp(jax.nn.silu, x @ up + bias)
        dh = dy @ down.T
        return z, of_z(dh)[0], dh

    assert derived(fun, x, x) == []


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["plain", "jit"])
def test_relu_chooses(wrap):
    """Where relu is 0 so is its derivative's result, whatever it is multiplied with."""
    z, (up, _, _) = weights()
    z = z.at[0, :4].set(jnp.array([0, -0.0, jnp.nan, jnp.inf], z.dtype))
    dy = jnp.ones((z.shape[0], up.shape[1]), z.dtype).at[:8, 3].set(jnp.inf).at[8, 5].set(jnp.nan)

    def fun(z, dy):
        return jax.vjp(wrap(jax.nn.relu), z)[1](dy @ up.T)[0]

    assert derived(fun, z, dy) == ["d_relu"]
    wanted = np.asarray(fun(z, dy), np.float32)
    assert (wanted[~np.asarray(z > 0)] == 0).all()
    assert not np.isfinite(wanted).all()
    with jax_moye.options(interpret=True):
        text = jax.jit(jax_moye.optimize(fun)).lower(z, dy).as_text()
        found = jax.jit(jax_moye.optimize(fun))(z, dy)
    assert "d_relu" in text
    np.testing.assert_allclose(np.asarray(found, np.float32), wanted, rtol=2**-7, atol=2**-7)


@jax.custom_vjp
def _relu_of_result(z):
    return jnp.maximum(z, 0)


_relu_of_result.defvjp(lambda z: (jnp.maximum(z, 0),) * 2, lambda y, dy: (jnp.where(y > 0, dy, 0),))
RELUS = {
    "where": lambda z: jnp.where(z > 0, z, 0),
    "a number of the type": lambda z: jnp.where(z > 0, z, jnp.zeros_like(z)),
    "of the result": _relu_of_result,
    "its square": lambda z: jax.nn.relu(z) ** 2,
}


@pytest.mark.parametrize("name", RELUS)
def test_relu_as_others_write_it(name):
    """At what a product of ours writes, which need not be what a known activation is applied to."""
    x, w = weights()
    fun = step(RELUS[name])
    assert derived(fun, w, x) == ["d_relu"] * (0 if name == "its square" else 2)
    exact = fun(jax.tree.map(lambda a: a.astype(jnp.float32), w), x.astype(jnp.float32))
    with jax_moye.options(implementation="moye", interpret=True):
        found = jax.jit(jax_moye.optimize(fun))(w, x)
    for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        got, wanted = np.asarray(got, np.float64), np.asarray(wanted, np.float64)
        assert np.max(np.abs(got - wanted)) <= 0.02 * np.max(np.abs(wanted))


def test_the_derivative_of_maximum_stays():
    """It is 1/2 where both are equal."""
    z, (up, _, _) = weights()
    z = z.at[:, 0].set(0)
    dy = jnp.ones((z.shape[0], up.shape[1]), z.dtype)

    def fun(z, dy):
        return jax.vjp(lambda z: jnp.maximum(z, 0), z)[1](dy @ up.T)[0]

    assert derived(fun, z, dy) == []
    found, wanted = (np.asarray(jax.jit(f)(z, dy), np.float32) for f in (jax_moye.optimize(fun), fun))
    np.testing.assert_allclose(found, wanted, rtol=2**-7)
    assert wanted[:, 0].any()


def test_results_of_f32_stay():
    x, w = weights(jnp.float32)
    fun = step(jax.nn.silu)
    with jax_moye.options(interpret=True):
        found, wanted = jax.jit(jax_moye.optimize(fun))(w, x), fun(w, x)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-4)


@pytest.mark.parametrize(
    ("alone", "group", "is_in_parts"),
    [
        ((100.0, 120.0), 140.0, True),  # ours is 20 us faster, and the rest takes 20
        ((100.0, 120.0), 103.0, False),  # XLA computes the rest in the product's kernel
        ((None, 120.0), 140.0, False),  # the product is XLA's
        ((100.0, 120.0), None, False),  # nobody knows
    ],
)
def test_parts(alone, group, is_in_parts, monkeypatch):
    """Whether the product alone is ours where XLA is faster than our kernel with all of it."""
    x, (up, bias, _) = weights()
    program = jax.make_jaxpr(jax_moye.optimize(lambda x, up, bias: jax.nn.silu(x @ up + bias)))(x, up, bias)
    (equation,) = (e for e in program.eqns if e.primitive is module.rewritten_p)
    request = Request("mk,kn->mn", jnp.bfloat16, None, None, None, None)
    kind = "xla" if alone[0] is None else "kernel"
    found = Decision(kind, request, measured=Times(alone[0] or 130.0, alone[1]))
    monkeypatch.setattr(module, "decide_by_measuring", lambda *args: found)
    decision = Decision("xla", request, cause="time", measured=None if group is None else Times(150.0, group))
    operands = Operand(x.shape, x.dtype), Operand(up.shape, up.dtype)
    original = equation.params["original"]
    assert module._is_faster_in_parts(decision, operands, (None, None), original, "cuda") is is_in_parts
    assert elementwise_us(10**9) > 200
