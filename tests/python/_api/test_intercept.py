"""`with jax_moye.intercept()`: what is taken, that it ends, and what JAX's caches make of it."""

import functools
import logging
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core.primitives import dot_general_p
from python.support import integers, kernel_calls

import jax_moye

emulated = functools.partial(jax_moye.options, implementation="moye", interpret=True)
# Bound before any interception, as a library's default argument is.
captured = lax.dot_general
MATRICES = (((1,), (0,)), ((), ()))


def ours(fun, *args) -> int:
    """Equations of our primitive in the jaxpr of `fun`."""
    return str(jax.make_jaxpr(fun)(*args)).count("jax_moye_contract[")


def theirs(fun, *args) -> int:
    return str(jax.make_jaxpr(fun)(*args)).count(" dot_general[")


@pytest.fixture
def xw(rng):
    return jnp.asarray(integers(rng, (6, 8), jnp.float32)), jnp.asarray(integers(rng, (8, 5), jnp.float32))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x, w: x @ w,
        jnp.matmul,
        jnp.dot,
        lambda x, w: jnp.einsum("mk,kn->mn", x, w),
        lambda x, w: jnp.tensordot(x, w, 1),
        lambda x, w: jnp.inner(x, w.T),
        lambda x, w: jnp.vecdot(x[:, :, None], w[None], axis=1),
        lambda x, w: lax.dot(x, w),
        lambda x, w: lax.dot_general(x, w, MATRICES),
        lambda x, w: captured(x, w, MATRICES),
        lambda x, w: functools.partial(captured, dimension_numbers=MATRICES, precision="highest")(x, w),
        lambda x, w: jax.vmap(lambda row: w.T @ row)(x),
        lambda x, w: lax.dot_general_p.bind(
            x, w, dimension_numbers=MATRICES, precision=None, preferred_element_type=None, out_sharding=None
        ),
    ],
)
def test_whatever_multiplies_is_taken(xw, fun):
    """The test that fails where JAX's products no longer end in dot_general_p.bind: see _compat.hook_dot_general."""
    x, w = xw
    assert (ours(fun, x, w), theirs(fun, x, w)) == (0, 1)
    with jax_moye.intercept():
        assert (ours(fun, x, w), theirs(fun, x, w)) == (1, 0)
        with emulated():
            assert kernel_calls(fun, x, w) == 1
        np.testing.assert_array_equal(fun(x, w), np.asarray(x) @ np.asarray(w))
    assert (ours(fun, x, w), theirs(fun, x, w)) == (0, 1)


def test_derivatives(xw):
    x, w = xw
    loss = lambda x, w: jnp.sum(jnp.sin(x @ w))  # noqa: E731
    expected = jax.grad(loss, (0, 1))(x, w)
    with jax_moye.intercept():
        assert theirs(jax.grad(loss, (0, 1)), x, w) == 0
        assert ours(jax.grad(loss, (0, 1)), x, w) == 3
        jax.tree.map(np.testing.assert_allclose, jax.grad(loss, (0, 1))(x, w), expected)
        _, vjp = jax.vjp(loss, x, w)
        assert ours(jax.hessian(loss), x, w) > 0
    jax.tree.map(np.testing.assert_allclose, vjp(jnp.float32(1)), expected)  # the second half, outside


@pytest.mark.parametrize("implementation", ["moye", "xla"])
def test_strict_promotion(rng, implementation):
    """A program that promotes nothing promotes nothing: the result's dtype is asked for, the derivatives' follow."""
    x, w = (jnp.asarray(integers(rng, shape, jnp.float16)) for shape in ((6, 8), (8, 5)))
    product = functools.partial(lax.dot_general, dimension_numbers=MATRICES, preferred_element_type=jnp.float32)
    loss = lambda x, w: jnp.sum(product(x, w))  # noqa: E731
    expected = jax.grad(loss, (0, 1))(x, w)
    interpret = None if implementation == "xla" else True
    options = jax_moye.options(implementation=implementation, interpret=interpret)
    with jax.numpy_dtype_promotion("strict"), jax_moye.intercept(), options:
        gradients = jax.grad(loss, (0, 1))(x, w)
    assert [g.dtype for g in gradients] == [jnp.float16] * 2
    jax.tree.map(np.testing.assert_array_equal, gradients, expected)


def test_programs_traced_outside_are_traced_again(xw):
    traces = []

    @jax.jit
    def fun(x, w):
        traces.append(None)
        return lax.dot(x, w)

    expected = fun(*xw)
    for expected_traces in (2, 2):
        with jax_moye.intercept() as taken, emulated():
            np.testing.assert_array_equal(fun(*xw), expected)
            assert kernel_calls(fun, *xw) == 1
        assert len(traces) == expected_traces
    assert taken.calls == 0  # the second time the program was in the cache
    np.testing.assert_array_equal(fun(*xw), expected)
    assert len(traces) == 2
    assert kernel_calls(fun, *xw) == 0


def test_control_flow_and_inner_functions(xw):
    x, w = xw
    square = w @ w.T

    def fun(x):
        body = jax.checkpoint(jax.jit(lambda x: jnp.tanh(x @ square)))
        return lax.scan(lambda x, _: (lax.cond(x[0, 0] > 0, body, lambda x: -body(x), x), None), x, length=3)[0].sum()

    expected = jax.value_and_grad(fun)(x)
    with jax_moye.intercept():
        text = str(jax.make_jaxpr(jax.value_and_grad(fun))(x))
        assert "jax_moye_contract[" in text
        assert " dot_general[" not in text
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), jax.value_and_grad(fun)(x), expected)


def test_what_xla_computes_does_not_come_back_to_us(xw):
    """Our way to XLA is lax.dot_general, too."""
    with jax_moye.intercept() as taken, jax_moye.options(implementation="xla"):
        lowered = jax.jit(lax.dot).lower(*xw).as_text()
        assert lowered.count("stablehlo.dot_general") == 1
        np.testing.assert_array_equal(jax_moye.matmul(*xw), np.asarray(xw[0]) @ np.asarray(xw[1]))
    assert taken.calls == 1


def test_it_ends(xw):
    assert "bind" not in vars(dot_general_p)

    def fail():
        with jax_moye.intercept():
            assert ours(jnp.matmul, *xw) == 1
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        fail()
    assert "bind" not in vars(dot_general_p)
    with pytest.raises(TypeError), jax_moye.intercept():
        jnp.matmul(xw[0], "no array")
    assert ours(jnp.matmul, *xw) == 0


def test_blocks_nest(xw):
    with jax_moye.intercept() as outer:
        assert ours(lax.dot, *xw) == 1
        before = outer.calls
        with jax_moye.intercept() as inner:
            assert ours(lambda x, w: lax.dot(x, 2 * w), *xw) == 1
        assert inner.calls == outer.calls - before == 1
        assert ours(lambda x, w: lax.dot(2 * x, w), *xw) == 1
        assert inner.calls == 1
    assert ours(lax.dot, *xw) == 0
    assert repr(inner) == "<jax_moye.intercept: 1 calls of lax.dot_general taken>"


def test_blocks_may_end_in_any_order(xw):
    """Generators hold blocks until somebody closes them."""

    def hold():
        with jax_moye.intercept() as taken:
            yield taken

    first, second = hold(), hold()
    of_first, of_second = next(first), next(second)
    first.close()
    assert ours(lambda x, w: lax.dot(x, 4 * w), *xw) == 1
    assert (of_first.calls, of_second.calls) == (0, 1)
    second.close()
    assert ours(lambda x, w: lax.dot(x, 4 * w), *xw) == 0
    assert ours(jnp.matmul, *xw) == 0  # nor from a cache of what was traced inside
    assert "bind" not in vars(dot_general_p)


def test_another_hook_is_put_back(xw):
    seen = []
    original = dot_general_p.bind

    def bind(*operands, **params):
        seen.append(params)
        return original(*operands, **params)

    dot_general_p.bind = bind
    try:
        with jax_moye.intercept():
            assert ours(lambda x, w: lax.dot(x, 3 * w), *xw) == 1
            assert not seen
            jax.make_jaxpr(lambda x, w: jax_moye.dot_general(x, w, MATRICES))(*xw)
        assert vars(dot_general_p)["bind"] is bind
    finally:
        del dot_general_p.bind


def test_threads(xw):
    """Others are outside, and each thread's block is its own."""
    inside, leave = threading.Event(), threading.Event()
    counts = {}

    def other(name, enter):
        def multiply():
            counts[name] = ours(lambda x, w: x @ w, *xw)

        if enter:
            with jax_moye.intercept():
                inside.set()
                assert leave.wait(60)
                multiply()
        else:
            multiply()

    with jax_moye.intercept():
        child = threading.Thread(target=other, args=("outside", False))
        child.start()
        child.join()
    assert counts == {"outside": 0}

    child = threading.Thread(target=other, args=("inside", True))
    child.start()
    assert inside.wait(60)
    assert ours(lambda x, w: x @ w, *xw) == 0  # here
    with jax_moye.intercept():
        assert ours(lambda x, w: x @ w, *xw) == 1
    leave.set()
    child.join()
    assert counts["inside"] == 1
    assert "bind" not in vars(dot_general_p)


def test_it_says_so(caplog):
    with caplog.at_level(logging.INFO, logger="jax_moye"):
        with jax_moye.intercept():
            pass
        (start, end) = [record for record in caplog.records if "intercept" in record.message]
    assert start.levelno == logging.WARNING
    assert "lax.dot_general is jax_moye.dot_general in this thread" in start.message
    assert "took 0 calls" in end.message
