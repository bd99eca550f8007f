"""gated_linear_unit: numbers, derivatives of every order, the number of products, shapes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.linear_layers import FUNCTIONS, close, count, glu, operands
from python.support import FUSED_TARGET, TARGET


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
