"""Gated layers of one product whose result is taken in two: the weights are halves of one array, read in place."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.viewed import VIEW_TARGET, movements

import jax_moye
from jax_moye._inspect.report import measure_gemm
from jax_moye._primitives import autotune, contraction, rewritten
from jax_moye._primitives.autotune import Joined
from jax_moye._primitives.rewritten import rewritten_p, viewed_p
from jax_moye._selection.decide import Times, decide
from jax_moye._selection.measurements import variant
from jax_moye._selection.problem import NotServedError
from jax_moye._tune import tune

try:
    from jax.extend.core import check_jaxpr
except ImportError:  # before jax 0.10
    from jax.core import check_jaxpr

M, K, N = 16, 24, 32
SHAPES = {"x": (M, K), "h": (3, M, K), "w": (K, 2 * N), "t": (2 * N, K), "g": (K, 2, N), "o": (2, K, N), "q": (2, N, K)}
SHAPES |= {"l": (3, K, 2 * N), "d": (N, K), "D": (3, N, K), "b": (2 * N,), "r": (M, N), "R": (M, 2 * N), "i": (K, N, 2)}
CONFIGS = [config for config in jax_moye.configs() if not config.grouped]


def arrays(names, dtype=jnp.bfloat16):
    """Operands by their letters: normal numbers, of weights with a variance that keeps products near 1."""
    rng = np.random.default_rng(list(map(ord, names)))
    return [jnp.asarray((1.0 if name in "xhrR" else 0.25) * rng.standard_normal(SHAPES[name]), dtype) for name in names]


def exact(fun, operands):
    """What the function is in float64."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, fun(*(jnp.asarray(np.asarray(x, np.float64)) for x in operands)))


def assert_close(found, expected, tolerance=2.0**-6):
    """Of all results, over the largest number of each."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, rtol=0, atol=tolerance * abs(other).max())


def equations_in(jaxpr):
    """Those of a program, and of its loops and calls, but not of what ours stand for."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive not in (rewritten_p, viewed_p):
            params = jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
            )
            for inner in params:
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from equations_in(getattr(inner, "jaxpr", inner))


def halves_of(fun, *operands):
    """The equations of halves in an optimized function."""
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr
    found = [e for e in equations_in(jaxpr) if getattr(e.params.get("epilogue"), "halves", False)]
    assert all(e.primitive is viewed_p for e in found)
    return found


def of_both(activation=jax.nn.silu, axis=-1):
    """What a gated layer makes of the one product."""

    def fun(y):
        a, b = jnp.split(y, 2, axis)
        return activation(a) * b

    return fun


def sliced(y):
    return jax.nn.silu(y[..., :N]) * y[..., N:]


def turned(y):
    a, b = jnp.split(y, 2, -1)
    return a * jax.nn.gelu(b)


def indexed(y, axis=-2):
    a, b = (lax.index_in_dim(y, i, axis, keepdims=False) for i in range(2))
    return jax.nn.silu(a) * b


def unstacked(y):
    a, b = jnp.unstack(y, axis=1)
    return jax.nn.silu(a) * b


def reshaped(y):
    return y[..., :N].reshape(M, 3, N), y[..., N:].reshape(M, 3, N)


def total(fun):
    return lambda *operands: (fun(*operands).astype(jnp.promote_types(operands[0].dtype, jnp.float32)) ** 2).sum()


# name -> (operands, function, activation)
FORMS = {
    "split": ("xw", lambda x, w: of_both()(x @ w), "silu"),
    "slices": ("xw", lambda x, w: sliced(x @ w), "silu"),
    "the second half activated": ("xw", lambda x, w: turned(x @ w), "gelu_tanh"),
    "exact gelu": ("xw", lambda x, w: of_both(functools.partial(jax.nn.gelu, approximate=False))(x @ w), "gelu_erf"),
    "relu": ("xw", lambda x, w: of_both(jax.nn.relu)(x @ w), "relu"),
    "no activation": ("xw", lambda x, w: of_both(lambda a: a)(x @ w), "none"),
    "in a jit": ("xw", lambda x, w: jax.jit(of_both())(x @ w), "silu"),
    "all in a jit": ("xw", jax.jit(lambda x, w: jax.jit(of_both())(x @ w)), "silu"),
    "a dimension of two": ("xg", lambda x, g: indexed(jnp.einsum("td,dgf->tgf", x, g)), "silu"),
    "that stays": ("xg", lambda x, g: of_both(axis=1)(jnp.einsum("td,dgf->tgf", x, g)), "silu"),
    "that is in front": ("xg", lambda x, g: indexed(jnp.einsum("td,dgf->gtf", x, g), 0), "silu"),
    "in front of the weights": ("xo", lambda x, o: indexed(jnp.einsum("td,gdf->tgf", x, o)), "silu"),
    "of transposed weights": ("xq", lambda x, q: indexed(jnp.einsum("td,gfd->tgf", x, q)), "silu"),
    "unstacked": ("xw", lambda x, w: unstacked((x @ w).reshape(M, 2, N)), "silu"),
    "transposed weights": ("xt", lambda x, t: sliced(x @ t.T), "silu"),
    "rows of a batch": ("hw", lambda h, w: of_both()(h @ w), "silu"),
    "weights of a batch": ("hl", lambda h, w: of_both()(h @ w), "silu"),
    "a layer of a stack": ("xl", lambda x, w: of_both()(x @ w[1]), "silu"),
    "wide sums, made narrow": (
        "xw",
        lambda x, w: of_both()(jnp.matmul(x, w, preferred_element_type=jnp.float32).astype(x.dtype)),
        "silu",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_gated_layer_of_one_product_is_one_equation(name):
    """Of x and the one array, whose halves are read in place: by a kernel in one call, and by XLA as it was."""
    names, fun, activation = FORMS[name]
    operands = arrays(names)
    (equation,) = halves_of(fun, *operands)
    epilogue, views = equation.params["epilogue"], equation.params["views"]
    assert (epilogue.activation, epilogue.keeps, len(equation.outvars)) == (activation, False, 1)
    assert equation.invars[1] is equation.invars[2]
    assert views[0] is None
    assert views[1].strides == views[2].strides
    assert views[1].offset != views[2].offset
    for part in ("original", "inner", "parts"):
        check_jaxpr(equation.params[part].jaxpr.jaxpr)
    expected = exact(fun, operands)
    texts = [jax.jit(f).lower(*operands).compile().as_text() for f in (fun, jax_moye.optimize(fun))]
    assert operations(texts[1]) == operations(texts[0])
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), expected)
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(fun))
        text = optimized.lower(*operands).as_text()
        assert_close(optimized(*operands), expected, 2.0**-7)
    assert text.count("custom_call @jax_moye") == text.count(f"custom_call @{VIEW_TARGET}") == 1
    assert movements(text) == []
    assert "stablehlo.multiply" not in text


def operations(text: str) -> list[str]:
    """Of compiled HLO, without what is named."""
    return sorted(line.split(" = ")[1].split("(")[0] for line in text.splitlines() if " = " in line)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.float32])
def test_other_types(dtype):
    """No kernel of float32 takes two weights: it is one product, then."""
    operands, (_, fun, _) = arrays("xw", dtype), FORMS["split"]
    assert len(halves_of(fun, *operands)) == 1
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(fun))
        text = optimized.lower(*operands).as_text()
        assert text.count("custom_call @jax_moye") == 1
        assert (VIEW_TARGET in text) == any(
            x.takes_pair and x.dtype == ("f16" if dtype == jnp.float16 else "f32") for x in CONFIGS
        )
        assert_close(optimized(*operands), exact(fun, operands), 2.0**-8)


# name -> (operands, function)
OTHERS = {
    "somebody reads all": ("xw", lambda x, w: (lambda y: (sliced(y), y + 1))(x @ w)),
    "all of it is a result": ("xw", lambda x, w: (lambda y: (sliced(y), y))(x @ w)),
    "unequal parts": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, :24]) * y[:, 24:48])(x @ w)),
    "three parts": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, :16]) * y[:, 16:32] + y[:, 32:48])(x @ w)),
    "one half": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, :N]) * 2)(x @ w)),
    "parts that overlap": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, :N]) * y[:, 16 : 16 + N])(x @ w)),
    "one half twice": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, :N]) * y[:, :N])(x @ w)),
    "every other column": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, ::2]) * y[:, 1::2])(x @ w)),
    "pairs of columns": ("xi", lambda x, i: indexed(jnp.einsum("td,dfg->tfg", x, i), -1)),
    "the weights first": ("xt", lambda x, t: of_both(axis=0)(t @ x.T)),
    "a reversed half": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, :N]) * y[:, : -N - 1 : -1])(x @ w)),
    "halves of rows": ("xw", lambda x, w: of_both(axis=0)(x @ w)),
    "halves of a batch": ("hl", lambda h, w: of_both(axis=0)((h @ w)[:2])),
    "halves in another shape": ("hw", lambda h, w: (lambda a, b: jax.nn.silu(a) * b)(*reshaped(h @ w))),
    "a bias": ("xwb", lambda x, w, b: of_both()(x @ w + b)),
    "another activation": ("xw", lambda x, w: of_both(jnp.tanh)(x @ w)),
    "a sigmoid": ("xw", lambda x, w: jax.nn.glu(x @ w)),
    "a sum": ("xw", lambda x, w: (lambda y: jax.nn.silu(y[:, :N]) + y[:, N:])(x @ w)),
    "another factor": ("xwr", lambda x, w, r: (lambda y: (jax.nn.silu(y[:, :N]) * r, y[:, N:]))(x @ w)),
    "a sum with an array": ("xwR", lambda x, w, r: of_both()(x @ w + r)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_stays_one_product(name):
    names, fun = OTHERS[name]
    operands = arrays(names)
    assert halves_of(fun, *operands) == []
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands), 2.0**-5)


def test_who_asks_for_xla_or_does_not_know_sizes():
    operands, (_, fun, _) = arrays("xw"), FORMS["split"]
    with jax_moye.options(implementation="xla"):
        assert halves_of(fun, *operands) == []
    (m,) = jax.export.symbolic_shape("m")
    x = jax.ShapeDtypeStruct((m, K), jnp.bfloat16)
    exported = jax.export.export(jax.jit(jax_moye.optimize(fun)))(x, operands[1])
    assert_close(exported.call(*operands), exact(fun, operands))


def test_weights_that_are_computed_are_written_whole():
    """Once: the kernel reads both halves where they are."""
    x, w = arrays("xw")
    fun = lambda x, w: of_both()(x @ w.astype(jnp.bfloat16))  # noqa: E731
    operands = x, w.astype(jnp.float32)
    assert len(halves_of(fun, *operands)) == 1
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(fun))
        assert movements(optimized.lower(*operands).as_text()) == []
        assert_close(optimized(*operands), exact(of_both_of, operands))


def of_both_of(x, w):
    return of_both()(x @ w)


@pytest.mark.parametrize("takes_two", [True, False])
def test_x_may_be_part_of_an_array_too(takes_two, monkeypatch):
    """Of which a kernel reads the part: one of two weights, or where there is none that of the one product."""
    operands, fun = arrays("hw"), lambda h, w: of_both_of(h[:, 1], w)
    (equation,) = halves_of(fun, *operands)
    assert None not in equation.params["views"]
    with jax_moye.options(interpret=True):
        if not takes_two:
            monkeypatch.setattr(type(CONFIGS[0]), "takes_pair", property(lambda config: False))
        jax.clear_caches()
        optimized = jax.jit(jax_moye.optimize(fun))
        text = optimized.lower(*operands).as_text()
        assert_close(optimized(*operands), exact(fun, operands))
    jax.clear_caches()
    assert text.count("custom_call @jax_moye") == text.count(f"custom_call @{VIEW_TARGET}") == 1
    assert ('operands = "second_b"' in text) == takes_two
    assert movements(text) == ["stablehlo.slice"] * (0 if takes_two else 2)


@pytest.mark.parametrize("n", [20, 33])
def test_halves_that_are_not_aligned(n):
    """A config that loads elements reads them, or all of it is one product: never copies of both halves."""
    rng = np.random.default_rng(n)
    operands = [jnp.asarray(rng.standard_normal(s) / s[0] ** 0.5, jnp.bfloat16) for s in ((M, K), (K, 2 * n))]
    assert len(halves_of(of_both_of, *operands)) == 1
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(of_both_of))
        text = optimized.lower(*operands).as_text()
        assert text.count("custom_call @jax_moye") == 1
        assert VIEW_TARGET in text or f"{K}x{2 * n}xbf16" in text.split("custom_call @jax_moye")[1].splitlines()[0]
        assert_close(optimized(*operands), exact(of_both_of, operands))


# ------------------------------------------------------------------------------------------------------ random forms


def random_layer(rng):
    """Shapes of x and w, and a function of them: an einsum, taken in two along a dimension of w, anywhere."""
    sizes = {"k": 8, "m": 5, "n": 16, "a": int(rng.choice([1, 2, 3])), "h": int(rng.choice([2, 2, 4, 8]))}
    x, w, out = (rng.permutation(list(labels)) for labels in ("amk", "khn", "amhn"))
    axis = list(out).index("h")
    order = rng.permutation(3 if sizes["h"] == 2 else 4)
    way, turned, in_jit = rng.choice(["split", "slice", "unstack", "reshape"]), rng.random() < 0.5, rng.random() < 0.3

    def halves(y):
        half = sizes["h"] // 2
        if way == "unstack" and half == 1:
            parts = jnp.unstack(y, axis=axis)
        elif way == "reshape":
            y = y.reshape(*y.shape[:axis], 2, half, *y.shape[axis + 1 :])
            parts = [lax.index_in_dim(y, i, axis, keepdims=False) for i in range(2)]
        elif way == "slice":
            parts = [lax.slice_in_dim(y, i * half, i * half + half, axis=axis) for i in range(2)]
        else:
            parts = jnp.split(y, 2, axis)
        if half == 1 and way != "unstack":
            parts = [part.squeeze(axis) for part in parts]
        return [part.transpose(order) for part in parts]

    def gate(y):
        a, b = halves(y)
        return jax.nn.relu(b) * a if turned else jax.nn.relu(a) * b

    def fun(x_, w_):
        y = jnp.einsum(f"{''.join(x)},{''.join(w)}->{''.join(out)}", x_, w_)
        return jax.jit(gate)(y) if in_jit else gate(y)

    return [tuple(sizes[label] for label in labels) for labels in (x, w)], fun


def test_random_layers():
    """Wherever it is found, and where it is not, the result is right; by kernels it is exact."""
    found = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        shapes, fun = random_layer(rng)
        operands = [jnp.asarray(rng.choice([-1, 0, 0, 1], shape), jnp.bfloat16) for shape in shapes]
        expected = exact(fun, operands)
        found += len(halves_of(fun, *operands))
        with jax_moye.options(interpret=True):
            result = jax.jit(jax_moye.optimize(fun))(*operands)
        np.testing.assert_array_equal(np.asarray(result, np.float64), expected, str(seed))
    assert found >= 7


# ------------------------------------------------------------------------------------------------------ derivatives


def mlp(x, w, d):
    return of_both_of(x, w) @ d


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("form", ["split", "slices", "a dimension of two", "that is in front", "in a jit"])
def test_a_step_of_training(form, interpret):
    """The forward products are one equation, which keeps both halves; the backward pass has one product for each."""
    names, fun, _ = FORMS[form]
    operands = arrays(names + "d")
    step = jax.value_and_grad(total(lambda x, w, d: fun(x, w) @ d), (0, 1, 2))
    (equation,) = halves_of(step, *operands)
    assert equation.params["epilogue"].keeps
    assert len(equation.outvars) == 3
    found = list(equations_in(jax.make_jaxpr(jax_moye.optimize(step))(*operands).jaxpr))
    assert sum(e.primitive.name.startswith("jax_moye") for e in found) == 6
    # Both cotangents become one array in one pass: no kernel writes them apart.
    assert not any(e.primitive is rewritten_p for e in found)
    with jax_moye.options(interpret=interpret):
        optimized = jax.jit(jax_moye.optimize(step))
        text = optimized.lower(*operands).as_text()
        assert text.count("custom_call @jax_moye") == 6 * interpret
        assert_close(optimized(*operands), exact(step, operands), 2.0**-5)
    texts = [jax.jit(f).lower(*operands).compile().as_text() for f in (step, jax_moye.optimize(step))]
    assert operations(texts[1]) == operations(texts[0])


def test_cotangents_that_are_not_joined_stay_two_results():
    """Of a layer of two products: the same backward pass, and each is read by a product of its own."""

    def two(x, w, d):
        gate, up = jnp.split(w, 2, 1)
        return (jax.nn.silu(x @ gate) * (x @ up)) @ d

    operands = arrays("xwd")
    jaxpr = jax.make_jaxpr(jax_moye.optimize(jax.grad(total(two), (0, 1))))(*operands).jaxpr
    assert [e.params["epilogue"].name for e in equations_in(jaxpr) if e.primitive is rewritten_p] == ["d_silu"]


def test_scans():
    """A layer after the other, forwards; where the derivative stacks both halves nothing is kept."""
    x, w, d = arrays("xlD")

    def layers(x, w, d, wrap=lambda f: f):
        return lax.scan(wrap(lambda y, wd: (y + mlp(y, *wd), None)), x, (w, d))[0]

    operands = x, w, d
    (equation,) = halves_of(layers, *operands)
    assert not equation.params["epilogue"].keeps
    for interpret in (False, True):
        with jax_moye.options(interpret=interpret):
            assert_close(jax.jit(jax_moye.optimize(layers))(*operands), exact(layers, operands), 2.0**-5)
    step = jax.value_and_grad(total(layers), (0, 1, 2))
    assert halves_of(step, *operands) == []
    assert_close(jax.jit(jax_moye.optimize(step))(*operands), exact(step, operands), 2.0**-4)
    again = jax.value_and_grad(total(functools.partial(layers, wrap=jax.checkpoint)), (0, 1, 2))
    assert [e.params["epilogue"].keeps for e in halves_of(again, *operands)] == [False, True]
    assert_close(jax.jit(jax_moye.optimize(again))(*operands), exact(step, operands), 2.0**-4)


@pytest.mark.parametrize("form", ["split", "a dimension of two", "that is in front"])
def test_who_transforms_what_was_optimized(form):
    """Gets the derivatives of one product, and as many products."""
    names, fun, _ = FORMS[form]
    operands = arrays(names, jnp.float32)
    optimized = jax_moye.optimize(fun)
    for transform in (
        lambda f: jax.grad(total(f), (0, 1)),
        lambda f: lambda *x: jax.jvp(f, x, x)[1],
        lambda f: lambda *x: jax.jvp(jax.grad(total(f), 1), x, x)[1],
        lambda f: jax.grad(total(jax.checkpoint(f)), (0, 1)),
        lambda f: lambda *x: jax.vmap(f, (0, None))(jnp.stack([x[0], -x[0]]), x[1]),
        lambda f: lambda *x: jax.vmap(f, (None, 0))(x[0], jnp.stack([x[1], -x[1]])),
    ):
        assert_close(jax.jit(transform(optimized))(*operands), exact(transform(fun), operands), 2.0**-12)
        both = jax_moye.optimize(transform(fun))
        assert_close(jax.jit(both)(*operands), exact(transform(fun), operands), 2.0**-12)
    texts = [jax.jit(jax.grad(total(f), (0, 1))).lower(*operands).as_text() for f in (fun, optimized)]
    assert texts[1].count("stablehlo.dot_general") == texts[0].count("stablehlo.dot_general") == 3


@pytest.mark.parametrize("form", ["split", "that is in front"])
def test_inside_of_shard_map(form):
    """Where types say over which axes values vary."""
    names, fun, _ = FORMS[form]
    operands = arrays(names)
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(fun, mesh=mesh, in_specs=(jax.P("i"), jax.P()), out_specs=jax.P("i"))
    for one in (mapped, jax.grad(total(mapped), (0, 1))):
        assert len(halves_of(one, *operands)) == 1
        for interpret in (False, True):
            with jax_moye.options(interpret=interpret):
                optimized = jax.jit(jax_moye.optimize(one))
                text = optimized.lower(*operands).as_text()
                assert_close(
                    optimized(*operands), exact(fun if one is mapped else jax.grad(total(fun), (0, 1)), operands)
                )
            assert (VIEW_TARGET in text) == interpret


# -------------------------------------------------------------------------------------------- ours, XLA's, measured


@pytest.fixture
def asked(monkeypatch):
    """The products that a lowering asks about, with what XLA is timed at."""
    found = []
    decide = rewritten.decide_by_measuring

    def watched(request, operands, target, xla, others=None):
        found.append((request, xla, others))
        return decide(request, operands, target, xla, others)

    monkeypatch.setattr(rewritten, "decide_by_measuring", watched)
    return found


@pytest.mark.parametrize("name", [name for name in FORMS if name != "weights of a batch"])
def test_xla_is_timed_at_one_product(name, asked):
    """Of an array that is made before: it lies as the program's does, of which halves are read."""
    names, fun, _ = FORMS[name]
    operands = arrays(names)
    jax.jit(jax_moye.optimize(fun)).lower(*operands)
    request, xla, _ = asked[0]
    assert isinstance(xla, Joined)
    assert variant(request.epilogue, request.beta, False).endswith("second_b halves")
    (equation,) = halves_of(fun, *operands)
    views = equation.params["views"]
    weight = np.asarray(operands[1], np.float32).reshape(-1)
    dense = [np.lib.stride_tricks.as_strided(weight[v.offset :], *_in_memory(v)) for v in views[1:]]
    whole = xla.join(*(jnp.asarray(x, jnp.bfloat16) for x in dense))
    assert whole.size == 2 * dense[0].size
    jaxpr = jax.make_jaxpr(xla.program)(operands[0], whole)
    assert str(jaxpr).count("jax_moye_contract") == 1
    assert "concatenate" not in str(jaxpr)
    assert_close(xla.program(operands[0], whole), [exact(fun, operands)])


def _in_memory(view):
    """The shape and the strides of a part's dense copy, whose dimensions have the order that they have there."""
    return [view.shape[i] for i in view.order], [4 * view.strides[i] for i in view.order]


def test_of_what_is_kept_xla_is_timed_at_the_product(asked):
    """Who reads halves of it reads them there: it does not write them once more."""
    operands = arrays("xwd")
    step = jax.grad(total(mlp), (0, 1, 2))
    jax.jit(jax_moye.optimize(step)).lower(*operands)
    xla = next(xla for _, xla, _ in asked if isinstance(xla, Joined))
    x, w, _ = operands
    gated, product = xla.program(x, xla.join(w[:, :N], w[:, N:]))
    assert (gated.shape, product.shape) == ((M, N), (M, 2 * N))
    np.testing.assert_array_equal(product, x @ w)


class FakeProduct:
    """The memory of a product of x, w and a second weight: two sets."""

    program_size, device = 2, jax.devices("cpu")[0]

    def __init__(self, **arrays):
        self._arrays = {name: [x.reshape(-1), -x.reshape(-1)] for name, x in arrays.items()}

    def arrays(self, name):
        return self._arrays[name]

    def xla_contender(self, program, operands):
        self.operands, self.results = operands, program(*(x for one in operands for x in one))
        return self

    def run(self, _):
        return self.results

    def sample(self, array):
        return np.asarray(array)


def test_the_array_is_made_before_anything_is_timed(asked):
    x, w = arrays("xw")
    jax.jit(jax_moye.optimize(of_both_of)).lower(x, w)
    _, xla, others = asked[0]
    product = FakeProduct(a=x, b=w[:, :N], second_b=w[:, N:])
    operand = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    _, result = autotune._xla_contender(product, (operand((M, K)), operand((K, N))), False, xla, others)
    assert [[one.shape for one in of_set] for of_set in product.operands] == [[(M * K,), (K, 2 * N)]] * 2
    np.testing.assert_array_equal(product.operands[0][1], w)
    assert_close(result, exact(of_both_of, (x, w)))
    assert_close(product.results[1], [exact(of_both_of, (-x, -w))])


def lowered_for_cuda(fun, *operands):
    with jax_moye.cuda_target(90):
        return jax.jit(jax_moye.optimize(fun)).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


BIG = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 256), (256, 1024))]


@pytest.mark.parametrize("fun", [of_both_of, lambda x, t: of_both_of(x, t.T)], ids=["NN", "NT"])
@pytest.mark.parametrize(("all_us", "alone_us", "ours"), [(100, 90, None), (100, 20, "alone"), (30, 90, "all")])
def test_who_is_the_fastest_computes_it(fun, all_us, alone_us, ours, monkeypatch):
    """Ours all of it; or the one product, which XLA finishes; or XLA. Of XLA all takes 50 us, the product 40."""
    asked = []

    def measured(request, operands, target, xla, others=None):
        asked.append((request, operands))
        us, xla_us = (alone_us, 40.0) if request.epilogue is None else (all_us, 50.0)
        decision = decide(dataclasses.replace(request, implementation="moye"), operands, target)
        assert decision.kind == "kernel"
        times = {"measured": Times(us, xla_us), "request": request}
        is_ours = us < xla_us
        return decision._replace(**times) if is_ours else decision._replace(kind="xla", cause="time", **times)

    monkeypatch.setattr(rewritten, "decide_by_measuring", measured)
    monkeypatch.setattr(contraction, "decide_by_measuring", measured)
    operands = BIG if fun is of_both_of else [BIG[0], jax.ShapeDtypeStruct((1024, 256), jnp.bfloat16)]
    text = lowered_for_cuda(fun, *operands)
    assert text.count("custom_call @jax_moye") == (ours is not None)
    assert text.count("stablehlo.dot_general") == (ours is None)
    assert text.count(f"custom_call @{VIEW_TARGET}") == (ours == "all")
    slices = [] if ours == "all" else ["stablehlo.slice"] * 2
    assert [one for one in movements(text) if one != "stablehlo.transpose"] == slices
    assert asked[0][1][1].shape == ((256, 512) if fun is of_both_of else (512, 256))
    if ours != "all":  # then the one product is decided about
        assert all(one.shape == operands[1].shape for _, (_, one) in asked[1:])


def test_a_training_step_whose_race_is_lost_is_the_program_that_was():
    """No table has a time of this, and nothing is measured for another machine: then it is XLA's."""
    step = jax.grad(total(mlp), (0, 1, 2))
    operands = [*BIG, jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)]
    with jax_moye.options(autotune="off"):
        text = lowered_for_cuda(step, *operands)
    assert "second_b" not in text
    assert [one for one in movements(text) if one not in ("stablehlo.transpose", "stablehlo.concatenate")] == [
        "stablehlo.slice"
    ] * 2


# ------------------------------------------------------------------------------------------------------- what is said


def explained(fun, *operands, **options):
    with jax_moye.options(**options):
        return jax_moye.explain(jax_moye.optimize(fun), *operands, device="h200")


def test_explain_says_what_is_decided():
    (gemm,) = explained(of_both_of, *BIG, implementation="moye")
    assert gemm.what == "mk,kn->mn on bfloat16[512, 256] and bfloat16[256, 512] into bfloat16"
    assert (gemm.computed_by, gemm.epilogue_reason) == ("moye", None)
    assert gemm.epilogue == "silu, times the product with second_b, both halves of one array"
    assert gemm.config.takes_pair
    gemm = explained(jax.grad(total(of_both_of)), *BIG, implementation="moye")[0]
    assert gemm.epilogue == "silu, times the product with second_b, both halves of one array, both products kept"
    (gemm,) = explained(of_both_of, *BIG, autotune="off")
    assert (gemm.computed_by, gemm.count) == ("xla", 1)
    assert "for two products of one operand" in gemm.decision.reason


@pytest.mark.parametrize("form", ["split", "a dimension of two", "that is in front"])
def test_explain_says_where_it_stays_one_product(form):
    names, fun, _ = FORMS[form]
    operands = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in arrays(names)]
    (gemm,) = explained(fun, *operands)
    (alone,) = explained(lambda x, w: jnp.einsum("td,d...->t...", x, w), *operands)
    assert "gated behind it: " in gemm.what
    assert sorted(gemm.problem.sizes) == sorted(alone.problem.sizes)
    assert gemm.epilogue is None


def test_what_times_products_alone_says_that_it_does_not_time_these():
    """They would have XLA join two arrays."""
    (gemm,) = explained(of_both_of, *BIG, implementation="moye")
    measured = measure_gemm(gemm, jax.devices("cpu")[0], rounds=1, round_ms=1.0, warmup_ms=1.0)
    assert measured.error == "halves of one product are timed while they are lowered"
    with pytest.raises(NotServedError, match="timed while it is lowered"):
        tune._candidates(gemm.product, None, None)
