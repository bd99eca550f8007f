"""`with jax_moye.intercept()`: what is taken, that it ends, and what JAX's caches make of it."""

import contextlib
import functools
import gc
import logging
import queue
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import sparse
from jax.extend.core.primitives import dot_general_p
from python.support import integers, kernel_calls

import jax_moye
from jax_moye._log import say_once

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


@pytest.mark.parametrize("policy", ["dots_saveable", "dots_with_no_batch_dims_saveable", "nothing_saveable"])
@pytest.mark.parametrize("batched", [False, True])
def test_policies_of_checkpoint_see_products(xw, policy, batched):
    """As many products as JAX's own program has: else all that a policy saves is computed again."""
    x, w = xw
    layers = jax.checkpoint(
        lambda x, w: jnp.sin(jnp.sin(x @ w) @ w.T).sum(), policy=getattr(jax.checkpoint_policies, policy)
    )
    fun = jax.grad(lambda x, w: jax.vmap(layers)(x, w).sum() if batched else layers(x, w))
    args = (jnp.stack([x, x]), jnp.stack([w, w])) if batched else (x, w)
    products, expected = theirs(fun, *args), fun(*args)
    with jax_moye.intercept():
        assert (ours(fun, *args), theirs(fun, *args)) == (products, 0)
        assert ours(jax.jit(fun), *args) == products
        np.testing.assert_allclose(fun(*args), expected, rtol=1e-6)
    assert theirs(fun, *args) == products


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


@contextlib.contextmanager
def another_thread():
    """A thread that calls what it is given until the block ends."""
    calls, results = queue.Queue(), queue.Queue()

    def work():
        while (call := calls.get()) is not None:
            try:
                results.put((call(), None))
            except BaseException as error:
                results.put((None, error))

    def there(call):
        calls.put(call)
        result, error = results.get(timeout=60)
        if error is not None:
            raise error
        return result

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield there
    finally:
        calls.put(None)
        thread.join()


@pytest.mark.parametrize("how", ["exit", "close"])
def test_another_thread_may_leave_the_block(xw, how):
    """The block ends for the thread that entered it, and leaves nothing behind."""

    def hold():
        with jax_moye.intercept():
            yield

    @jax.jit
    def fun(x, w):
        return lax.dot(5 * x, w)

    inside = lambda: ours(lambda x, w: lax.dot(x, 6 * w), *xw)  # noqa: E731
    with another_thread() as there:
        block = jax_moye.intercept() if how == "exit" else hold()
        there(block.__enter__ if how == "exit" else lambda: next(block))
        assert there(inside) == 1
        there(lambda: fun(*xw))
        if how == "exit":
            block.__exit__(None, None, None)  # here
        else:
            block.close()
        assert inside() == 0
        assert there(inside) == 0
        assert there(lambda: ours(fun, *xw)) == 0
        assert "bind" not in vars(dot_general_p)
        with jax_moye.intercept():
            assert inside() == 1
            assert there(inside) == 0
        there(intercepted := jax_moye.intercept().__enter__)
        assert there(inside) == 1  # nor is found what the thread traced when its block had ended
        there(lambda: intercepted.__self__.__exit__(None, None, None))
        assert there(inside) == 0
    assert "bind" not in vars(dot_general_p)


def test_a_thread_may_end_before_its_block(xw):
    blocks = []

    def enter():
        blocks.append(jax_moye.intercept())
        blocks[0].__enter__()

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    blocks.pop().__exit__(None, None, None)
    gc.collect()
    assert "bind" not in vars(dot_general_p)
    assert ours(jnp.matmul, *xw) == 0


def test_a_block_of_two_threads_ends_once(xw):
    """The inner one of two is left elsewhere: the outer one goes on."""
    with another_thread() as there:
        outer, inner = jax_moye.intercept(), jax_moye.intercept()
        there(outer.__enter__)
        there(inner.__enter__)
        inner.__exit__(None, None, None)
        assert there(lambda: ours(lambda x, w: lax.dot(x, 7 * w), *xw)) == 1
        there(lambda: outer.__exit__(None, None, None))
        assert there(lambda: ours(lambda x, w: lax.dot(x, 7 * w), *xw)) == 0
    assert "bind" not in vars(dot_general_p)


@pytest.mark.parametrize("jit", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
def test_sparse_operands_are_left_to_jax(xw, jit):
    x, w = xw
    for kind in (sparse.BCOO, sparse.BCSR)[: 2 if jit is not jax.jit else 1]:  # JAX has no jit of the other
        stored = kind.fromdense(x)
        product = jit(lambda a, b: a @ b)
        expected = np.asarray(x) @ np.asarray(w)
        with jax_moye.intercept():
            np.testing.assert_array_equal(product(stored, w), expected)
            np.testing.assert_array_equal(sparse.sparsify(jit(jnp.matmul))(stored, w), expected)
            assert ours(jnp.matmul, *xw) == 1
        np.testing.assert_array_equal(product(stored, w), expected)
    np.testing.assert_array_equal(sparse.sparsify(jax_moye.matmul)(sparse.BCOO.fromdense(x), w), expected)
    with pytest.raises(NotImplementedError, match="implementation='moye': no kernel of ours multiplies sparse"):
        sparse.sparsify(functools.partial(jax_moye.matmul, implementation="moye"))(sparse.BCOO.fromdense(x), w)


def test_it_says_once_what_it_does(caplog):
    say_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="jax_moye"):
        for _ in range(2):
            with jax_moye.intercept():
                pass
        (start, *ends) = [record for record in caplog.records if "intercept" in record.message]
    assert start.levelno == logging.WARNING
    assert "JAX's products in this thread" in start.message
    assert "are jax_moye.dot_general's" in start.message
    assert [(end.levelno, "took 0 calls" in end.message) for end in ends] == [(logging.INFO, True)] * 2


# ------------------------------------------------------------------------------------------------------- optimize

held_jit = jax.jit  # as by `from jax import jit`


def dense(x, w, b):
    return jax.nn.relu(x @ w + b)


@pytest.fixture
def xwb(rng):
    shapes = (6, 8), (8, 5), (5,)
    return tuple(jnp.asarray(rng.normal(size=shape), jnp.bfloat16) for shape in shapes)


def fused(fun, *args) -> int:
    """Products with what stands behind them in the jaxpr of `fun`."""
    return str(jax.make_jaxpr(fun)(*args)).count("jax_moye_rewritten[")


def test_functions_jitted_inside_are_optimized(xwb):
    expected = jax.jit(dense)(*xwb)
    with jax_moye.intercept(optimize=True) as taken:
        program = jax.jit(dense)
        assert fused(program, *xwb) == 1
        assert taken.calls == 1
        assert program.__name__ == "dense"
        np.testing.assert_array_equal(program(*xwb), expected)
        assert "custom_call @jax_moye_fused" not in program.lower(*xwb).as_text()
        with jax_moye.options(interpret=True):
            assert "custom_call @jax_moye_fused" in program.lower(*xwb).as_text()
            assert "custom_call @jax_moye_fused" in program.trace(*xwb).lower().as_text()
        with jax_moye.intercept():  # the outer one still holds
            assert fused(jax.jit(dense), *xwb) == 1
    assert jax.jit is held_jit
    assert fused(program, *xwb) == ours(program, *xwb) == 0
    np.testing.assert_array_equal(program(*xwb), expected)
    with jax_moye.intercept():  # its products alone
        assert fused(program, *xwb) == 0
        assert ours(program, *xwb) == 1
        assert jax.jit is held_jit
        with jax_moye.intercept(optimize=True):
            assert fused(program, *xwb) == 1
        assert fused(program, *xwb) == 0


def test_a_training_step_is_optimized(xwb):
    x, w, b = xwb

    def step(w, b, x):
        gradient, of_bias = jax.grad(lambda w, b: (dense(x, w, b).astype(jnp.float32) ** 2).sum(), (0, 1))(w, b)
        return w - 0.125 * gradient, b - 0.125 * of_bias

    expected = jax.jit(step)(w, b, x)
    with jax_moye.intercept(optimize=True):
        program = str(jax.make_jaxpr(jax.jit(step))(w, b, x))
        got = jax.jit(step)(w, b, x)
    assert "alpha=-0.125, beta=1.0" in program
    assert "dot_general[" not in program
    for one, other in zip(got, expected, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), rtol=2**-6, atol=2**-6)


def test_forms_of_jit(xwb):
    x, w, b = xwb

    class Layer:
        def __call__(self, x, w, b):
            return dense(x, w, b)

        def method(self, x, w, b):
            return dense(x, w, b)

    with jax_moye.intercept(optimize=True):

        @jax.jit
        def plain(x, w, b):
            return dense(x, w, b)

        @functools.partial(jax.jit, static_argnames=("times", "activation"), donate_argnames="x")
        def with_options(x, w, b, times=1, activation=jax.nn.relu):
            assert range(times)  # what is static is no tracer
            return times * activation(x @ w + b)

        forms = [
            plain,
            functools.partial(with_options, times=3, activation=jax.nn.silu),
            jax.jit(Layer()),
            jax.jit(Layer().method),
            jax.jit(functools.partial(dense, x)),
            jax.jit(fun=dense),
            jax.jit(dense, static_argnums=(), keep_unused=True),
            jax.jit(jax.jit(dense)),
            functools.partial(with_options, times=np.int64(3)),
        ]
        for form in forms:
            operands = (w, b) if form is forms[4] else (x, w, b)
            assert fused(form, *operands) == 1
        with pytest.warns(UserWarning, match="Some donated buffers were not usable"):  # so x was
            with_options.lower(x, w, b)
        assert fused(jax.jit(jnp.matmul), x, w) == 0
        assert ours(jax.jit(jnp.matmul), x, w) == 1
        try:
            decorated = jax.jit(static_argnums=3)(lambda x, w, b, times: dense(x, w, b))  # where JAX has that form
        except TypeError:
            decorated = None
        assert decorated is None or fused(lambda *operands: decorated(*operands, 2), *xwb) == 1
        with pytest.raises(TypeError):
            jax.jit(3)(x)


def test_what_is_not_reached(xwb):
    before = jax.jit(lambda x, w, b: dense(x, w, b))
    with jax_moye.intercept(optimize=True):
        assert fused(before, *xwb) == fused(held_jit(dense), *xwb) == fused(dense, *xwb) == 0
        assert ours(before, *xwb) == ours(held_jit(dense), *xwb) == ours(dense, *xwb) == 1  # their products are
        assert fused(jax.jit(lambda *operands: before(*operands)), *xwb) == 1  # inside of one that is reached
        with another_thread() as there:
            assert there(lambda: fused(jax.jit(dense), *xwb)) == 0


def test_a_function_is_traced_once(xwb):
    traces = []

    def fun(x, w, b):
        traces.append(x)
        return dense(x, w, b)

    with jax_moye.intercept(optimize=True):
        for _ in range(3):
            jax.jit(fun)(*xwb)
    assert len(traces) == 1
    jax.jit(fun)(*xwb)
    jax.jit(fun)(*xwb)
    assert len(traces) == 2

    @functools.wraps(fun)  # which copies what is kept beside a function
    def another(x, w, b):
        return 2 * fun(x, w, b)

    with jax_moye.intercept(optimize=True):
        np.testing.assert_array_equal(jax.jit(another)(*xwb), 2 * jax.jit(fun)(*xwb))


def test_a_block_that_optimizes_ends(xwb):
    def fails():
        with jax_moye.intercept(optimize=True):
            assert jax.jit is not held_jit
            raise RuntimeError("planted")

    with pytest.raises(RuntimeError, match="planted"):
        fails()
    assert jax.jit is held_jit
    with another_thread() as there:
        block = jax_moye.intercept(optimize=True)
        there(block.__enter__)
        assert there(lambda: fused(jax.jit(dense), *xwb)) == 1
        assert fused(jax.jit(dense), *xwb) == 0
        block.__exit__(None, None, None)
        assert there(lambda: fused(jax.jit(dense), *xwb)) == 0
        there(lambda: ours(dense, *xwb))
        assert jax.jit is held_jit
        outer, inner = jax_moye.intercept(), jax_moye.intercept(optimize=True)
        there(outer.__enter__)
        there(inner.__enter__)
        inner.__exit__(None, None, None)
        assert there(lambda: (ours(jax.jit(dense), *xwb), fused(jax.jit(dense), *xwb))) == (1, 0)
        assert jax.jit is held_jit
        there(lambda: outer.__exit__(None, None, None))
    assert "bind" not in vars(dot_general_p)


def test_another_jit_is_put_back(xwb):
    calls = []

    def jit(*args, **kwargs):
        calls.append(args)
        return held_jit(*args, **kwargs)

    jax.jit = jit
    try:
        with jax_moye.intercept(optimize=True):
            assert fused(jax.jit(dense), *xwb) == 1
        assert jax.jit is jit
        assert len(calls) == 1
    finally:
        jax.jit = held_jit


def test_jit_of_libraries(xwb):
    """Those that call jax.jit when a function is decorated."""
    equinox, nnx = pytest.importorskip("equinox"), pytest.importorskip("flax.nnx")
    x, _, _ = xwb
    mlp = equinox.nn.MLP(8, 5, width_size=16, depth=1, key=jax.random.key(0), dtype=x.dtype)
    linear = nnx.Linear(8, 16, rngs=nnx.Rngs(0), dtype=x.dtype, param_dtype=x.dtype)
    with jax_moye.intercept(optimize=True), jax_moye.options(interpret=True):
        by_equinox = equinox.filter_jit(lambda mlp, x: jax.vmap(mlp)(x))
        by_flax = nnx.jit(lambda linear, x: nnx.relu(linear(x)))
        texts = by_equinox.lower(mlp, x).as_text(), by_flax.lower(linear, x).as_text()
        results = by_equinox(mlp, x), by_flax(linear, x)
    for text, count in zip(texts, (2, 1), strict=True):
        assert text.count("custom_call @jax_moye_fused_gemm_v1") == count
        assert "stablehlo.maximum" not in text
    for result, expected in zip(results, (jax.vmap(mlp)(x), nnx.relu(linear(x))), strict=True):
        np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (result, expected)), atol=2**-5)
