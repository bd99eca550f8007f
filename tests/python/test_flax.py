"""jax_moye.dot_general in Flax's layers, through the arguments that these have for it."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import kernel_calls

import jax_moye

nnx = pytest.importorskip("flax.nnx")
nn = pytest.importorskip("flax.linen")

emulated = functools.partial(jax_moye.options, implementation="moye", interpret=True)


def normal(rng, *shape):
    return jnp.asarray(rng.standard_normal(shape), jnp.float32)


def close(actual, expected):
    """Sums of at most a few dozen products of size 1, in f32."""
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)


def leaves_close(actual, expected):
    jax.tree.map(close, actual, expected)


def test_the_signature_is_lax_s():
    ours, theirs = (
        [(p.name, p.kind, p.default) for p in inspect.signature(fun).parameters.values()]
        for fun in (jax_moye.dot_general, jax.lax.dot_general)
    )
    assert ours[: len(theirs)] == theirs


@pytest.mark.parametrize("options", [{}, {"preferred_element_type": jnp.float32}, {"dtype": jnp.bfloat16}], ids=str)
def test_nnx_linear(rng, options):
    x = normal(rng, 2, 3, 4)
    ours, theirs = (
        nnx.Linear(4, 5, rngs=nnx.Rngs(0), **options, **hook) for hook in ({"dot_general": jax_moye.dot_general}, {})
    )
    with emulated():
        assert kernel_calls(lambda x: ours(x), x) == 1
        if options.get("dtype") is None:
            close(ours(x), theirs(x))
        else:
            np.testing.assert_allclose(ours(x).astype(np.float32), theirs(x).astype(np.float32), rtol=2**-7, atol=2**-8)
            return
        loss = lambda layer, x: jnp.sin(layer(x)).sum()  # noqa: E731
        leaves_close(nnx.grad(loss)(ours, x), nnx.grad(loss)(theirs, x))


def test_nnx_layers(rng):
    x = normal(rng, 2, 3, 4)
    rngs = lambda: nnx.Rngs(0)  # noqa: E731
    cases = [
        (lambda **hook: nnx.LinearGeneral((3, 4), (2, 5), axis=(-2, -1), rngs=rngs(), **hook), 1, {"dot_general"}),
        (
            lambda **hook: nnx.MultiHeadAttention(2, 4, 8, decode=False, rngs=rngs(), **hook),
            4,
            {"qkv_dot_general", "out_dot_general"},
        ),
    ]
    for make, products, hooks in cases:
        ours = make(**dict.fromkeys(hooks, jax_moye.dot_general))
        with emulated():
            assert kernel_calls(lambda x, ours=ours: ours(x), x) == products
            close(ours(x), make()(x))


def test_nnx_einsum(rng):
    if "einsum_op" not in inspect.signature(nnx.Einsum.__init__).parameters:
        pytest.skip("this flax's Einsum has no hook")
    x = normal(rng, 2, 3, 4)
    make = lambda **hook: nnx.Einsum("bmk,kn->bmn", (4, 5), rngs=nnx.Rngs(0), **hook)  # noqa: E731
    ours = make(einsum_op=jax_moye.einsum)
    with emulated():
        assert kernel_calls(lambda x: ours(x), x) == 1
        close(ours(x), make()(x))


@pytest.mark.parametrize("hook", ["dot_general", "dot_general_cls"])
def test_linen(rng, hook):
    x = normal(rng, 2, 3, 4)
    value = jax_moye.dot_general if hook == "dot_general" else lambda: jax_moye.dot_general
    for make in (
        lambda **hooks: nn.Dense(5, **hooks),
        lambda **hooks: nn.DenseGeneral((2, 5), axis=(-2, -1), **hooks),
    ):
        ours, theirs = make(**{hook: value}), make()
        variables = theirs.init(jax.random.key(0), x)
        with emulated():
            assert kernel_calls(lambda x, ours=ours, variables=variables: ours.apply(variables, x), x) == 1
            close(ours.apply(variables, x), theirs.apply(variables, x))


# ------------------------------------------------------------------------------------- callers like MaxText's layers


def projection(x, kernel, *, dot_general=jax.lax.dot_general, precision=jax.lax.Precision.DEFAULT):
    """A layer that contracts the last axis with all options given, as large models' code does."""
    return dot_general(x, kernel, (((x.ndim - 1,), (0,)), ((), ())), precision=precision, out_sharding=None)


class Quantization:
    """A wrapper that hands out a function in dot_general's place, as libraries for quantization do."""

    def dot_general_cls(self, mesh_axes=()):
        del mesh_axes
        return functools.partial(self._quantized, jax_moye.dot_general)

    @staticmethod
    def _quantized(dot_general, lhs, rhs, dimension_numbers, precision=None, preferred_element_type=None, **options):
        """int8 products of operands that are integers already."""
        out = dot_general(
            lhs.astype(jnp.int8),
            rhs.astype(jnp.int8),
            dimension_numbers,
            precision=precision,
            preferred_element_type=jnp.int32,
            **options,
        )
        return out.astype(preferred_element_type or lhs.dtype)


def test_callers_that_pass_everything(rng):
    x, kernel = normal(rng, 2, 3, 4), normal(rng, 4, 6)
    with emulated():
        for fun in (
            functools.partial(projection, dot_general=jax_moye.dot_general),
            functools.partial(projection, dot_general=functools.partial(jax_moye.dot_general, out_sharding=None)),
            functools.partial(projection, dot_general=jax_moye.dot_general, precision=jax.lax.Precision.HIGHEST),
        ):
            # A caller may name an option twice: functools.partial's value gives way.
            assert kernel_calls(fun, x, kernel) == 1
            close(fun(x, kernel), projection(x, kernel))


def test_quantized_layers(rng):
    x, kernel = (jnp.asarray(rng.integers(-3, 4, shape), jnp.float32) for shape in ((2, 3, 8), (8, 5)))
    layer = nn.Dense(5, use_bias=False, dot_general_cls=Quantization().dot_general_cls)
    with emulated():
        out = layer.apply({"params": {"kernel": kernel}}, x)
    np.testing.assert_array_equal(out, x @ kernel)


# ------------------------------------------------------------------------------------------------------- training

STEPS = 50


def data(rng):
    """A function of 12 numbers to learn, in 64 examples."""
    x = normal(rng, 64, 12)
    return x, jnp.sin(x @ normal(rng, 12, 3))


def trained(loss, params):
    """The losses of STEPS steps of gradient descent with momentum."""

    @jax.jit
    def step(params, velocity):
        value, gradient = jax.value_and_grad(loss)(params)
        velocity = jax.tree.map(lambda v, g: 0.9 * v - 0.05 * g, velocity, gradient)
        return jax.tree.map(jnp.add, params, velocity), velocity, value

    velocity = jax.tree.map(jnp.zeros_like, params)
    losses = []
    for _ in range(STEPS):
        params, velocity, value = step(params, velocity)
        losses.append(float(value))
    return np.array(losses)


def linen_loss(dtype, x, y, **hook):
    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3, dtype=dtype, **hook)(nn.tanh(nn.Dense(24, dtype=dtype, **hook)(x)))

    network = Network()
    params = network.init(jax.random.key(0), x)
    return lambda params: jnp.mean((network.apply(params, x).astype(jnp.float32) - y) ** 2), params


def nnx_loss(dtype, x, y, **hook):
    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first = nnx.Linear(12, 24, dtype=dtype, rngs=rngs, **hook)
            self.second = nnx.Linear(24, 3, dtype=dtype, rngs=rngs, **hook)

        def __call__(self, x):
            return self.second(nnx.tanh(self.first(x)))

    graph, params = nnx.split(Network(nnx.Rngs(0)))
    return lambda params: jnp.mean((nnx.merge(graph, params)(x).astype(jnp.float32) - y) ** 2), params


@pytest.mark.parametrize("make", [linen_loss, nnx_loss])
@pytest.mark.parametrize(("dtype", "bound"), [(jnp.float32, 2.0**-16), (jnp.bfloat16, 2.0**-6)], ids=str)
def test_training_gives_the_same_loss(rng, make, dtype, bound):
    """Every loss within `bound` of XLA's, relative: 2^8 roundings of f32, 4 of bfloat16; docs/drop_in.md."""
    x, y = data(rng)
    with emulated():
        loss, params = make(dtype, x, y, dot_general=jax_moye.dot_general)
        assert kernel_calls(jax.grad(loss), params) == 2 + 3  # forward, and backward without the input's gradient
        ours = trained(loss, params)
    theirs = trained(*make(dtype, x, y))
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=bound)
