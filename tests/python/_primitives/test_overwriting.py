"""Which c a kernel writes its result over: what is the program's own, or donated, and needed by nobody any more."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._primitives.contraction import contract

M, K, N = 16, 32, 48
TF32_ROW = next(
    (row.name for row in jax_moye.configs() if row.dtype == "tf32" and row.kernel == "sm80_multistage"), None
)
ALIAS = "output_to_operand_aliasing={{0}: (2, {})}"


@pytest.fixture(scope="module")
def operands():
    """c, x and w: numbers that every type holds, as it holds the sums of their products."""
    rng = np.random.default_rng(0)
    return [rng.integers(-2, 3, shape).astype(np.float32) for shape in ((M, N), (M, K), (K, N))]


def own(fun):
    """The same of a c that the program makes, and XLA writes: not where it is read."""
    return lambda c, x, w: fun(lax.cumsum(c, 1), x, w)


def in_a_loop_of(fun):
    """fun(c, x, w) of an x that a loop carries."""
    return lambda c, x, w: lax.scan(lambda x, _: (fun(c, x, w)[:, :K], None), x, length=2)[0]


def update(c, x, w):
    """As in training: what is read to make the gradient, and then updated."""
    return c - 0.5 * (jnp.minimum(x + c.sum(), 2) @ w)


def backward(c, x, w):
    """Likewise, but what is read for another gradient, too."""
    return c - 0.5 * (x @ w), x.T @ c


def normed(c, x, w):
    """Rows divided by what they are, as a norm's; what a product reads of them is an array, the rest XLA computes."""
    z = c * 0.5
    scale = jnp.where((z * z).sum(1, keepdims=True) > 64, 0.5, 2)
    return z, scale, jnp.minimum((z * scale)[:, :K] + x, 2) @ w


def layer(c, x, w):
    """In a forward pass nobody reads c behind the product that is added to it."""
    return c + normed(c, x, w)[2]


def layer_and_derivative(c, x, w):
    z, scale, product = normed(c, x, w)
    y = c + product
    return y, z * scale * y.sum()


def layer_and_products(c, x, w):
    """An array that a product reads is in memory: who reads that, reads c no more."""
    y = jnp.minimum(c, 1)
    z = c + (y @ w.T + x) @ w
    return z, jnp.sin(y) * z.sum()


def turned(c, x, w):
    """XLA computes the rows in reverse wherever they are read: who reads them behind the sum reads c."""
    rows = lax.rev(c, (0,))
    z = c + (rows[:, :K] + x) @ w
    return z, jnp.sin(rows) * z.sum()


# name -> (function, donated: whether a kernel writes over c and the copies; not donated: the same)
PROGRAMS = {
    "an argument": (lambda c, x, w: c + x @ w, (1, 0), (0, 0)),
    "with beta": (lambda c, x, w: 2 * c - x @ w, (1, 0), (0, 0)),
    "with more": (lambda c, x, w: jax.nn.relu(c + x @ w), (1, 0), (0, 0)),
    "of another shape": (lambda c, x, w: c.reshape(M, N) + x @ w, (1, 0), (0, 0)),
    "read for the product": (update, (1, 0), (0, 0)),
    "read beside it": (backward, (0, 1), (0, 0)),
    "read behind it": (lambda c, x, w: (c + x @ w, jnp.sin(c)), (0, 1), (0, 0)),
    "its own": (own(lambda c, x, w: c + x @ w), (1, 0), (1, 0)),
    "its own, read for the product": (own(update), (1, None), (1, 0)),
    "its own, read beside it": (own(backward), (0, 0), (0, 0)),
    "its own, normed": (own(layer), (1, None), (1, None)),
    "its own, normed, and read for a derivative": (own(layer_and_derivative), (0, None), (0, 0)),
    "its own, whose product's operand is read": (own(layer_and_products), (1, None), (1, None)),
    "its own, turned, and read behind it": (own(turned), (0, None), (0, 0)),
    "its own, a result": (own(lambda c, x, w: (c + x @ w, c)), (0, 0), (0, 0)),
    "its own, reshaped and read": (
        own(lambda c, x, w: (c.reshape(M, N) + x @ w, jnp.sin(c.reshape(-1)))),
        (0, None),
        (0, 0),
    ),
    "its own, of two sums": (own(lambda c, x, w: (c + x @ w, c + x @ (w * 3))), (0, 0), (0, 0)),
    "a factor, too": (own(lambda c, x, w: (lambda d: d + d @ d)(x[:, :M] + c.sum())), (0, 0), (0, 0)),
    "in a jit": (jax.jit(own(lambda c, x, w: jax.jit(lambda c, y: c + y)(c, x @ w))), (1, 0), (1, 0)),
    "in a call, read behind it": (
        own(lambda c, x, w: (jax.checkpoint(lambda c, x: c + x @ w)(c, x), jnp.sin(c))),
        (0, None),
        (0, 0),
    ),
    "the same in each iteration": (in_a_loop_of(lambda c, x, w: c + x @ w), (0, None), (0, None)),
    "a carry": (lambda c, x, w: lax.scan(lambda c, _: (c + x @ w, None), c, length=2)[0], (1, None), (1, None)),
    "a carry that is stacked": (
        lambda c, x, w: lax.scan(lambda c, _: (c + x @ w, c), c, length=2),
        (0, None),
        (0, None),
    ),
    "a carry of two sums": (
        lambda c, x, w: lax.scan(lambda c, _: (c + x @ w + x @ (w * 3), None), c, length=2)[0],
        (2, None),
        (2, None),
    ),
    "a carry of two sums that is stacked": (
        lambda c, x, w: lax.scan(lambda c, _: (c + x @ w + x @ (w * 3), c), c, length=2),
        (0, None),
        (0, None),
    ),
    "a carry of three sums that is stacked": (
        lambda c, x, w: lax.scan(lambda c, _: (c + x @ w + x @ (w * 3) + x @ (w * 5), c), c, length=2),
        (1, None),
        (1, None),
    ),
    "a constant": (lambda c, x, w: jnp.asarray(np.ones((M, N)), c.dtype) + x @ w, (0, 0), (0, 0)),
}


def exact(fun, *args):
    with jax.enable_x64(True):
        return fun(*(jnp.asarray(x, jnp.float64) for x in args))


@pytest.mark.filterwarnings("ignore:Some donated buffers")
@pytest.mark.parametrize("donated", [True, False])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_kernel_writes_over_c_where_that_saves_a_copy(name, donated, operands):
    """The copies are those of the program that XLA compiles here; None: some are a loop's, or the donated array's."""
    fun, *expected = PROGRAMS[name]
    calls, copies = expected[0 if donated else 1]
    given = [jnp.asarray(x) for x in operands]
    with jax_moye.options(interpret=True):
        program = jax.jit(jax_moye.optimize(fun), donate_argnums=0 if donated else ())
        text = program.lower(*given).compile().as_text()
        results = program(*given)
    assert text.count(ALIAS) == calls, text
    found = re.findall(r"= \S+ copy\(", text.partition("ENTRY")[2])
    assert copies is None or len(found) == copies, text
    for one, other in zip(jax.tree.leaves(results), jax.tree.leaves(exact(fun, *operands)), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("out_dtype", ["float32", None])
def test_both_ways_round_alike(dtype, out_dtype):
    """Bit by bit, numbers that no type holds: the same kernel, which has c elsewhere."""
    rng = np.random.default_rng(1)
    x, w = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((M, K), (K, N)))
    c = jnp.asarray(rng.normal(size=(M, N)), out_dtype or dtype)

    def fun(c, x, w):
        return c - 0.1 * jnp.matmul(x, w, preferred_element_type=out_dtype)

    with jax_moye.options(interpret=True):
        kept = jax.jit(jax_moye.optimize(fun))(c, x, w)
        overwritten = jax.jit(jax_moye.optimize(fun), donate_argnums=0)(c + 0, x, w)
    assert kept.dtype == c.dtype
    np.testing.assert_array_equal(kept, overwritten)
    c, x, w = (np.asarray(z).astype(np.float64) for z in (c, x, w))
    expected = c - 0.1 * (x @ w)
    tolerance = 2.0**-8 if kept.dtype == jnp.bfloat16 else 2.0**-10 if kept.dtype == jnp.float16 else 2.0**-9
    np.testing.assert_allclose(np.asarray(kept, np.float64), expected, tolerance, tolerance * 4)


@pytest.mark.skipif(TF32_ROW is None, reason="no row of TF32 in this build")
def test_three_products_in_float32_keep_c_and_add_in_place(operands):
    """3 x TF32: the first launch leaves c alone, the others add to what they wrote."""
    given = [jnp.asarray(x) for x in operands]
    options = dict(
        precision=(lax.Precision.HIGH,) * 2, config=TF32_ROW, implementation=None, interpret=jax_moye.InterpretParams()
    )

    def fun(c, x, w):
        return contract("mk,kn->mn", x, w, c, out_dtype=jnp.float32, out_sharding=None, **options)

    for donated, count in ((0, 3), ((), 2)):
        program = jax.jit(fun, donate_argnums=donated)
        assert program.lower(*given).as_text().count("output_operand_aliases") == count
        np.testing.assert_array_equal(program(given[0] + 0, *given[1:]), exact(lambda c, x, w: c + x @ w, *operands))


def test_derivatives_of_what_keeps_c(operands):
    """The equation says that it keeps c under JAX's transformations, too."""
    given = [jnp.asarray(x) for x in operands]

    def fun(c, x, w):
        c = c * 2
        return c + x @ w, c

    def loss(fun):
        return lambda *args: sum((x**2).sum() for x in fun(*args))

    (equation,) = (e for e in jax.make_jaxpr(jax_moye.optimize(fun))(*given).eqns if "keeps_c" in e.params)
    assert equation.params["keeps_c"]
    with jax_moye.options(interpret=True):
        found = jax.grad(loss(jax_moye.optimize(fun)), (0, 1, 2))(*given)
        mapped = jax.vmap(jax_moye.optimize(fun), (0, None, None))(jnp.stack([given[0]] * 2), *given[1:])
    for one, other in zip(found, exact(jax.grad(loss(fun), (0, 1, 2)), *operands), strict=True):
        np.testing.assert_array_equal(one, other)
    for one, other in zip(mapped, exact(fun, *operands), strict=True):
        np.testing.assert_array_equal(one, jnp.stack([other] * 2))
