"""`jax_moye.optimize`: what it replaces, what it leaves alone, and that programs compute what they did."""

from __future__ import annotations

import functools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.attentions import FORMS, operands, use_fake_rows

import jax_moye
from jax_moye._log import say_once
from jax_moye._primitives import attention_finding, chains, dequantizing, rewriting, summands
from jax_moye._primitives.rewritten import rewritten_p

M, K, N = 24, 32, 40


def arrays(dtype=jnp.bfloat16):
    """x (M,K), w (K,N), bias (N,), r (M,N), v (N,K)."""
    rng = np.random.default_rng(0)
    shapes = (M, K), (K, N), (N,), (M, N), (N, K)
    return tuple(jnp.asarray(rng.normal(size=shape) / 4, dtype) for shape in shapes)


def names(fun, *operands):
    return [equation.primitive.name for equation in jax.make_jaxpr(jax_moye.optimize(fun))(*operands).eqns]


def only(fun, *operands):
    """The equation of our products, of which there is one."""
    equations = jax.make_jaxpr(jax_moye.optimize(fun))(*operands).eqns
    (equation,) = (one for one in equations if one.primitive.name.startswith("jax_moye"))
    return equation


CONTRACT, REWRITTEN = "jax_moye_contract", "jax_moye_rewritten"
PATTERNS = {
    "a product": (lambda x, w, b, r, v: x @ w, [CONTRACT]),
    "a batch": (lambda x, w, b, r, v: jnp.einsum("bmk,kn->bmn", x[None], w), ["broadcast_in_dim", CONTRACT]),
    "another array": (lambda x, w, b, r, v: x @ w + r, [CONTRACT]),
    "another array first": (lambda x, w, b, r, v: r + x @ w, [CONTRACT]),
    "another product": (lambda x, w, b, r, v: x @ w + (2 * x) @ w, ["mul", CONTRACT, CONTRACT]),
    "a narrower type": (
        lambda x, w, b, r, v: lax.dot(x, w, preferred_element_type=jnp.float32).astype(x.dtype),
        [CONTRACT],
    ),
    "a narrower type and an array": (
        lambda x, w, b, r, v: lax.dot(x, w, preferred_element_type=jnp.float32).astype(x.dtype) + r,
        [CONTRACT],
    ),
    "a bias": (lambda x, w, b, r, v: x @ w + b, ["broadcast_in_dim", REWRITTEN]),
    "relu": (lambda x, w, b, r, v: jax.nn.relu(x @ w), [REWRITTEN]),
    "bias and gelu": (lambda x, w, b, r, v: jax.nn.gelu(x @ w + b), ["broadcast_in_dim", REWRITTEN]),
    "bias, silu, residual": (lambda x, w, b, r, v: r + jax.nn.silu(x @ w + b), ["broadcast_in_dim", REWRITTEN]),
    "gelu with erf": (lambda x, w, b, r, v: jax.nn.gelu(x @ w, approximate=False), [REWRITTEN]),
    "c and silu": (lambda x, w, b, r, v: jax.nn.silu(x @ w + r), [REWRITTEN]),
    "a layer": (
        lambda x, w, b, r, v: x + jax.nn.gelu(x @ w + b) @ v,
        ["broadcast_in_dim", REWRITTEN, CONTRACT],
    ),
}
UNTOUCHED = {
    "no product": lambda x, w, b, r, v: jnp.tanh(x) + 1,
    "integers": lambda x, w, b, r, v: x.astype(jnp.int32) @ w.astype(jnp.int32),
    "complex numbers": lambda x, w, b, r, v: x.astype(jnp.complex64) @ w.astype(jnp.complex64),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_what_is_replaced(name):
    fun, expected = PATTERNS[name]
    operands = arrays()
    assert names(fun, *operands) == expected
    result, before = (jax.jit(f)(*operands) for f in (jax_moye.optimize(fun), fun))
    np.testing.assert_array_equal(result, before)  # on a CPU nobody computes it otherwise
    assert (result.dtype, result.weak_type) == (before.dtype, before.weak_type)


@pytest.mark.parametrize("name", [name for name in PATTERNS if name != "a batch"])
def test_in_the_emulator(name):
    """The kernel rounds once: it is nearer to float64 than the program, or as near."""
    fun, _ = PATTERNS[name]
    operands = arrays()
    with jax_moye.options(interpret=True):
        program = jax.jit(jax_moye.optimize(fun))
        text = program.lower(*operands).as_text()
        result = program(*operands)
    assert "jax_moye_" in text
    exact = fun(*(np.asarray(x, np.float64).astype(np.float32) for x in operands))
    error, before = (np.abs(np.asarray(x, np.float32) - exact).max() for x in (result, fun(*operands)))
    assert error <= max(before, 2**-9 * np.abs(exact).max()) * 1.1


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_is_left_alone(name):
    fun, operands = UNTOUCHED[name], arrays()
    assert str(jax.make_jaxpr(jax_moye.optimize(fun))(*operands)) == str(jax.make_jaxpr(fun)(*operands))


def test_values_that_others_read_stay():
    operands = arrays()

    def read_twice(x, w, b, r, v):
        y = x @ w
        return jax.nn.relu(y), y + r

    # The sum that the activation is of is a second result.
    found = jax.make_jaxpr(jax_moye.optimize(read_twice))(*operands).eqns
    assert [e.primitive.name for e in found] == [REWRITTEN, "add"]
    assert len(found[0].outvars) == 2
    sums = (np.asarray(f(*operands)[1], np.float64) for f in (jax_moye.optimize(read_twice), read_twice))
    np.testing.assert_allclose(*sums, atol=0.1)
    assert names(lambda x, w, b, r, v: (lambda y: (y, y + r))(x @ w), *operands) == [CONTRACT, "add"]
    assert names(lambda x, w, b, r, v: (lambda y: y + y)(x @ w), *operands) == [CONTRACT, "add"]
    inside = lambda x, w, b, r, v: (lambda y: (jax.nn.silu(y), jax.nn.sigmoid(y)))(x @ w)  # noqa: E731
    assert names(inside, *operands)[0] == REWRITTEN
    assert "logistic" in names(inside, *operands)


def test_wider_types_are_not_folded():
    x, w, *_ = arrays()
    assert names(lambda x, w: (x @ w).astype(jnp.float32), x, w) == [CONTRACT, "convert_element_type"]
    assert only(lambda x, w: (x @ w).astype(jnp.float32), x, w).params["out_dtype"] == jnp.bfloat16
    assert names(lambda x, w: (x @ w).astype(jnp.int8), x, w) == [CONTRACT, "convert_element_type"]


def test_loops_branches_and_calls():
    x, w, b, _, v = arrays()
    layer = lambda x: x + jax.nn.silu(x @ w + b) @ v  # noqa: E731
    programs = {
        "jit": jax.jit(layer),
        "scan": lambda x: lax.scan(lambda c, _: (layer(c), None), x, length=3)[0],
        "while": lambda x: lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, layer(c[1])), (0, x))[1],
        "cond": lambda x: lax.cond(x[0, 0] > 0, layer, lambda x: x, x),
        "checkpoint": jax.checkpoint(layer),
        "scan in jit": jax.jit(lambda x: lax.scan(lambda c, _: (layer(c), None), x, length=2)[0]),
    }
    for name, fun in programs.items():
        text = str(jax.make_jaxpr(jax_moye.optimize(fun))(x))
        assert text.count(REWRITTEN) == 1, name
        assert "dot_general[" not in text, name
        np.testing.assert_array_equal(jax_moye.optimize(fun)(x), fun(x))
    assert "name=layer_of_a_model" in str(jax.make_jaxpr(jax_moye.optimize(jax.jit(_named)))(x, w))


def _named(x, w):
    return x @ w


_named.__name__ = "layer_of_a_model"


def test_training():
    """Around the derivatives: the same gradients, and sums of gradients are the kernels'."""
    x, w, b, _, v = arrays()

    def loss(parameters, x):
        w, b, v = parameters
        for _ in range(2):
            x = x + jax.nn.silu(x @ w + b) @ v
        return jnp.mean(x.astype(jnp.float32) ** 2)

    step = jax.value_and_grad(loss)
    optimized = jax_moye.optimize(step)
    for got, expected in zip(*(jax.tree.leaves(jax.jit(f)((w, b, v), x)) for f in (optimized, step)), strict=True):
        np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(expected, np.float32), rtol=2**-6, atol=1e-5)
    text = str(jax.make_jaxpr(optimized)((w, b, v), x))
    assert "dot_general[" not in text
    assert text.count("beta=1.0") >= 3


@pytest.mark.parametrize("name", ["a layer", "bias, silu, residual", "another array", "relu"])
def test_derivatives_of_the_result(name):
    fun, _ = PATTERNS[name]
    operands = arrays(jnp.float32)
    optimized = jax_moye.optimize(fun)
    total = lambda f: lambda *x: (f(*x) ** 2).sum()  # noqa: E731
    for got, expected in zip(*(jax.grad(total(f), (0, 1, 2, 3, 4))(*operands) for f in (optimized, fun)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    got, expected = (jax.jvp(f, operands, operands)[1] for f in (optimized, fun))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    batch = jnp.stack([operands[0], 2 * operands[0]])
    got, expected = (jax.vmap(f, (0, *[None] * 4))(batch, *operands[1:]) for f in (optimized, fun))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_linear_program_transposes():
    x, w, b, _, _ = arrays(jnp.float32)
    fun = lambda x, b: x @ w + b  # noqa: E731
    transposes = [jax.linear_transpose(f, x, b) for f in (jax_moye.optimize(fun), fun)]
    for got, expected in zip(*(f(jnp.ones((M, N))) for f in transposes), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_arguments_and_results_of_any_form():
    x, w, *_ = arrays()

    def fun(tree, times, *, flag, scale=2.0):
        y = tree["x"] @ tree["w"]
        for _ in range(times):  # a Python number, as it was given
            y = y * scale
        return {"y": y if flag else None, "none": None, "list": [y.shape, y.sum()]}

    got = jax_moye.optimize(fun)({"x": x, "w": w}, 3, flag=True)
    expected = fun({"x": x, "w": w}, 3, flag=True)
    assert jax.tree.structure(got) == jax.tree.structure(expected)
    np.testing.assert_array_equal(got["y"], expected["y"])
    got = jax_moye.optimize(fun)({"x": x, "w": w}, np.int64(3), flag=np.bool_(True), scale=np.float32(2))
    np.testing.assert_array_equal(got["y"], expected["y"])
    optimized = jax_moye.optimize(_named)
    assert optimized.__name__ == "layer_of_a_model"
    np.testing.assert_array_equal(optimized(np.asarray(x, np.float32), w), _named(np.asarray(x, np.float32), w))
    square = jnp.eye(K, dtype=x.dtype)
    np.testing.assert_array_equal(jax.jit(optimized, donate_argnums=0)(x + 0, square), x)


def test_products_of_groups():
    x, w, *_ = arrays()
    matrices, sizes = jnp.stack([w, 2 * w]), jnp.array([5, 10], jnp.int32)
    fun = lambda x, w, s: (lax.ragged_dot(x, w, s).astype(jnp.float32) ** 2).sum()  # noqa: E731
    step = jax.grad(fun, (0, 1))
    text = str(jax.make_jaxpr(jax_moye.optimize(step))(x, matrices, sizes))
    assert text.count("jax_moye_grouped") == 3
    assert "ragged_dot_general" not in text
    for got, expected in zip(*(f(x, matrices, sizes) for f in (jax_moye.optimize(step), step)), strict=True):
        np.testing.assert_array_equal(got, expected)
    batch = jax_moye.optimize(jax.vmap(lax.ragged_dot))
    assert "ragged_dot_general" in str(jax.make_jaxpr(batch)(x[None], matrices[None], sizes[None]))


def test_effects_stay():
    x, w, *_ = arrays()
    seen = []

    def fun(x):
        y = jax.nn.relu(x @ w)
        jax.debug.callback(lambda s: seen.append(float(s)), y.astype(jnp.float32).sum(), ordered=True)
        return y

    jax.jit(jax_moye.optimize(fun))(x).block_until_ready()
    jax.effects_barrier()
    assert len(seen) == 1


def _fail(*args, **kwargs):
    raise RuntimeError("planted")


REWRITES = {
    **{f"step {i}": (chains, "_STEPS", i) for i in range(len(chains._STEPS))},
    **{name: (chains, name, None) for name in ("_start", "as_number", "matched", "as_copy", "as_multiple")},
    **{name: (summands, name, None) for name in ("as_broadcast", "aval_of")},
    **{name: (rewriting, name, None) for name in ("chain_from", "Program", "_with_inner", "as_grouped", "_chosen")},
    **{
        name: (rewriting, name, None)
        for name in ("with_calls_opened", "with_fewer_residuals", "with_hoisted_products", "with_known", "Constants")
    },
    **{name: (chains.Chain, name, None) for name in ("equation", "others")},
    **{name: (chains, name, None) for name in ("rewritten_equation", "activations_of")},
    **{name: (rewriting, name, None) for name in ("pair_from", "grouped_pair_from", "ordered", "dequantized_from")},
    **{name: (dequantizing, name, None) for name in ("_matrix_sizes", "linear_chain")},
    "attention": (rewriting, "with_attention", None),
    "all of it": (rewriting, "rewritten", None),
}


@pytest.fixture(scope="module")
def of_every_rewrite():
    """A program, its operands, and what it makes: by itself, and in jit."""
    x, w, b, r, _ = arrays()
    matrices, sizes = jnp.stack([w, w]), jnp.array([M, 0], jnp.int32)

    def fun(x, w, b, r):
        y = jax.lax.scan(lambda c, _: (0.5 * (c @ w @ w.T), None), x, length=2)[0]
        return jax.nn.relu(y @ w + b) + (r - 0.5 * lax.ragged_dot(x, matrices, sizes)) - 0.5 * (x @ w)

    return fun, (x, w, b, r), fun(x, w, b, r), jax.jit(fun)(x, w, b, r)


@pytest.mark.parametrize("name", REWRITES)
def test_a_rewrite_that_fails_leaves_the_program_and_warns_once(name, monkeypatch, caplog, of_every_rewrite):
    fun, operands, result, compiled = of_every_rewrite

    def other(x):
        return fun(x, *operands[1:])

    where, attribute, index = REWRITES[name]
    failing = _fail
    if index is not None:
        failing = tuple(_fail if i == index else step for i, step in enumerate(chains._STEPS))
    monkeypatch.setattr(where, attribute, failing)
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jax_moye"):
        np.testing.assert_array_equal(jax_moye.optimize(fun)(*operands), result)
        np.testing.assert_array_equal(jax.jit(jax_moye.optimize(fun))(*operands), compiled)
        (record,) = caplog.records
        assert "fun is run as it is, since rewriting it failed (RuntimeError: planted)" in record.getMessage()
        jax.eval_shape(jax_moye.optimize(other), operands[0])
        assert len(caplog.records) == 2  # another function says it, too


@pytest.mark.parametrize("name", ["_weights", "_entries", "_finished", "is_for_weights", "original_of"])
def test_a_rewrite_of_weights_that_fails_leaves_the_program(name, monkeypatch, caplog):
    from python.quantized import use_fake_rows

    use_fake_rows(monkeypatch)
    monkeypatch.setattr(dequantizing, name, _fail)
    x, w, scale = jnp.ones((2, 64), jnp.bfloat16), jnp.ones((64, 32), jnp.int8), jnp.ones(32, jnp.bfloat16)
    fun = lambda x, w, scale: x @ (w.astype(x.dtype) * scale)  # noqa: E731
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jax_moye"), jax_moye.options(interpret=True):
        for _ in range(2):
            np.testing.assert_array_equal(jax_moye.optimize(fun)(x, w, scale), fun(x, w, scale))
    (record,) = caplog.records
    assert "is run as it is, since rewriting it failed (RuntimeError: planted)" in record.getMessage()


def test_the_functions_own_errors_are_its_own():
    with pytest.raises(TypeError, match="dot_general requires contracting dimensions to have the same shape"):
        jax_moye.optimize(lambda x: x @ x)(jnp.ones((2, 3)))


def test_options_reach_the_products():
    x, w, *_ = arrays()
    with jax_moye.options(batch_invariant=True):
        assert only(_named, x, w).params["batch_invariant"]
    with jax_moye.options(implementation="xla"):
        assert only(_named, x, w).params["implementation"] == "xla"


def test_explain_and_the_gpus_program():
    x, w, b, r, _ = (jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays())
    fun = lambda x, w, b, r: r + jax.nn.silu(x @ w + b)  # noqa: E731
    (gemm,) = jax_moye.explain(jax_moye.optimize(fun), x, w, b, r, device="h200")
    assert gemm.epilogue is not None
    assert "silu" in gemm.epilogue


# ---------------------------------------------------------------------------------------------- generated programs


@jax.custom_jvp
def _turned(x, w):
    return jnp.einsum("mk,kn->nm", x, w).T / 2 + x


@_turned.defjvp
def _(primals, tangents):
    return jax.jvp(lambda x, w: (x @ w) * 0.5 + x, primals, tangents)


def generated(seed):
    """A program of a few layers, which computes in its first argument's dtype, and the shapes of its arguments."""
    rng = np.random.default_rng(seed)
    width, rows = int(rng.choice([8, 16])), int(rng.choice([1, 6]))
    steps, shapes = [], [(rows, width)]
    kinds = ("product", "bias", "residual", "activation", "scale", "scan", "cond", "twice", "wide", "less", "turned")
    for kind in rng.choice(kinds, size=int(rng.integers(3, 9))):
        choice = int(rng.integers(4))
        if kind in ("product", "scan", "wide", "twice", "less", "turned"):
            shapes.append((width, width))
        elif kind in ("bias", "residual"):
            shapes.append((width,) if kind == "bias" else (rows, width))
        steps.append((kind, choice))

    def fun(x, *others):
        dtype, given, first = x.dtype, iter(others), x
        functions = (jax.nn.relu, jax.nn.gelu, jax.nn.silu, jnp.tanh)
        for kind, choice in steps:
            if kind == "product":
                x = x @ next(given) + (first if choice == 0 else 0)
            elif kind == "wide":
                wide = dtype if dtype == jnp.float64 else jnp.float32
                x = lax.dot(x, next(given), preferred_element_type=wide).astype(dtype)
            elif kind == "bias":
                x = x + next(given)
            elif kind == "residual":
                x = next(given) + x
            elif kind == "activation":
                x = functions[choice](x)
            elif kind == "scale":
                x = x * 0.5
            elif kind == "less":
                y = (-1, 0.5, 0.25, 2)[choice] * (x @ next(given))
                x = (first - y, y - first, 0.5 * x - y, y - 0.125 * first)[choice]
            elif kind == "turned":
                w = next(given)
                x = _turned(x, w) if choice < 2 else x - (0.5 * jnp.einsum("nk,km->nm", w.T, x.T)).T
            elif kind == "twice":
                w = next(given)
                x = (x @ w) * 0.25 + (first @ w if choice < 2 else first)
            elif kind == "scan":
                w = next(given)
                act = functions[1 + choice % 2]
                x, _ = lax.scan(lambda c, _, w=w, act=act: (act(c @ w) + c, None), x, length=2)
            else:
                x = lax.cond(x.sum() > 0, lambda x: x @ jnp.eye(width, dtype=dtype) + x, lambda x: x, x)
        return x

    values = [rng.normal(size=shape) / np.sqrt(shape[0] if len(shape) == 2 else 4) for shape in shapes]
    return fun, values


@pytest.mark.parametrize("part", range(10))
def test_generated_programs(part):
    """30 of them in one, every fifth time in the emulator: each step may round its result to eight bits."""
    programs = [generated(seed) for seed in range(30 * part, 30 * part + 30)]
    functions, values = zip(*programs, strict=True)

    def all_of_them(values):
        return [fun(*x) for fun, x in zip(functions, values, strict=True)]

    rounded = jax.tree.map(lambda x: np.asarray(x, jnp.bfloat16), values)
    with jax.enable_x64(True):
        exact = jax.device_get(jax.jit(all_of_them)(jax.tree.map(lambda x: x.astype(np.float64), rounded)))
    with jax_moye.options(interpret=True) if part % 5 == 0 else jax_moye.options():
        results = jax.jit(jax_moye.optimize(all_of_them))(rounded)
    for i, (result, wanted) in enumerate(zip(results, exact, strict=True)):
        error, scale = np.abs(np.asarray(result, np.float64) - wanted).max(), np.abs(wanted).max()
        assert error <= 2**-8 * (len(values[i]) + 2) * scale, 30 * part + i


@pytest.mark.parametrize("part", range(4))
def test_generated_training_steps(part):
    """10 of them in one: gradients that update, in f32, one of four in the emulator."""
    programs = [generated(seed) for seed in range(1000 + 10 * part, 1010 + 10 * part)]
    functions, values = zip(*programs, strict=True)

    def step(fun, x, *others):
        total = lambda others: (fun(x, *others) ** 2).mean()  # noqa: E731
        gradients = jax.grad(total)(others)
        return [p - 0.125 * g for p, g in zip(others, gradients, strict=True)]

    def all_of_them(values):
        return [step(fun, *x) for fun, x in zip(functions, values, strict=True)]

    rounded = jax.tree.map(lambda x: np.asarray(x, np.float32), values)
    with jax.enable_x64(True):
        exact = jax.device_get(jax.jit(all_of_them)(jax.tree.map(lambda x: x.astype(np.float64), rounded)))
    with jax_moye.options(interpret=True) if part == 0 else jax_moye.options():
        results = jax.jit(jax_moye.optimize(all_of_them))(rounded)
    for i, (result, wanted) in enumerate(zip(results, exact, strict=True)):
        for one, other in zip(result, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4 * np.abs(other).max(), err_msg=str(1000 + 10 * part + i))
    text = str(jax.make_jaxpr(jax_moye.optimize(all_of_them))(rounded))
    assert text.count("alpha=-0.125, beta=1.0") > 5


def test_generated_programs_are_rewritten():
    text = ""
    for seed in range(300):
        fun, values = generated(seed)
        text += str(jax.make_jaxpr(jax_moye.optimize(fun))(*(jnp.asarray(x, jnp.bfloat16) for x in values)))
    assert "dot_general[" not in text
    assert text.count(REWRITTEN) > 100
    assert text.count("beta=1.0") > 50


def test_the_primitive_runs_by_itself():
    """Outside of jit, as every primitive does."""
    x, w, b, r, _ = arrays()
    optimized = functools.partial(jax_moye.optimize(PATTERNS["bias, silu, residual"][0]), x, w, b, r)
    assert optimized(arrays()[4]).shape == (M, N)
    assert rewritten_p.name == REWRITTEN


@pytest.mark.parametrize("name", ["KnownValues", "searches", "_whole", "_equations", "ordered", "reference"])
def test_a_search_for_attention_that_fails_leaves_the_program(name, rng, monkeypatch, caplog):
    use_fake_rows(monkeypatch)
    monkeypatch.setattr(attention_finding, name, _fail)
    fun = lambda q, k, v: FORMS["plain"](q, k, v, True)  # noqa: E731
    q, k, v, _ = operands(rng)
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jax_moye"):
        np.testing.assert_array_equal(jax_moye.optimize(fun)(q, k, v), fun(q, k, v))
    assert "since rewriting it failed (RuntimeError: planted)" in caplog.text


def test_attention(rng, monkeypatch):
    """Among the products of a layer, whose projections take in what stands behind them as elsewhere."""
    use_fake_rows(monkeypatch)
    q, k, v, _ = operands(rng)
    w = jnp.asarray(rng.normal(size=(32, 32)) / 4, q.dtype)

    def layer(q, k, v, w):
        out = FORMS["plain"](q, k, v, True).reshape(*q.shape[:2], -1)
        return out + jax.nn.relu(out @ w)

    assert [name for name in names(layer, q, k, v, w) if name.startswith("jax_moye")] == [
        "jax_moye_attention",
        REWRITTEN,
    ]
    np.testing.assert_array_equal(jax.jit(jax_moye.optimize(layer))(q, k, v, w), jax.jit(layer)(q, k, v, w))
