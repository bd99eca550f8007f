"""Gated layers of one product whose result is taken in two: the weights are halves of one array, read in place."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.float64 import assert_close, exact
from python.halves import (
    FORMS,
    K,
    M,
    N,
    arrays,
    equations_in,
    halves_of,
    indexed,
    mlp,
    of_both,
    of_both_of,
    reshaped,
    sliced,
    total,
)
from python.viewed import VIEW_TARGET, movements

import jax_moye
from jax_moye._primitives.rewritten import rewritten_p

try:
    from jax.extend.core import check_jaxpr
except ImportError:  # before jax 0.10
    from jax.core import check_jaxpr


CONFIGS = [config for config in jax_moye.configs() if not config.grouped]


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
    before, after = (jax.jit(f).lower(*operands).compile() for f in (fun, jax_moye.optimize(fun)))
    assert operations(after.as_text()) == operations(before.as_text())
    assert_close(after(*operands), expected)
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
        lowered = jax.jit(jax_moye.optimize(step)).lower(*operands)
        assert lowered.as_text().count("custom_call @jax_moye") == 6 * interpret
        optimized = lowered.compile()
        assert_close(optimized(*operands), exact(step, operands), 2.0**-5)
    if not interpret:  # by XLA it is the program that it was
        assert operations(optimized.as_text()) == operations(jax.jit(step).lower(*operands).compile().as_text())


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
    expected = exact(layers, operands)
    for interpret in (False, True):
        with jax_moye.options(interpret=interpret):
            assert_close(jax.jit(jax_moye.optimize(layers))(*operands), expected, 2.0**-5)
    step = jax.value_and_grad(total(layers), (0, 1, 2))
    assert halves_of(step, *operands) == []
    expected = exact(step, operands)
    assert_close(jax.jit(jax_moye.optimize(step))(*operands), expected, 2.0**-4)
    again = jax.value_and_grad(total(functools.partial(layers, wrap=jax.checkpoint)), (0, 1, 2))
    assert [e.params["epilogue"].keeps for e in halves_of(again, *operands)] == [False, True]
    assert_close(jax.jit(jax_moye.optimize(again))(*operands), expected, 2.0**-4)


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
        expected = exact(transform(fun), operands)
        assert_close(jax.jit(transform(optimized))(*operands), expected, 2.0**-12)
        both = jax_moye.optimize(transform(fun))
        assert_close(jax.jit(both)(*operands), expected, 2.0**-12)
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
        expected = exact(fun if one is mapped else jax.grad(total(fun), (0, 1)), operands)
        for interpret in (False, True):
            with jax_moye.options(interpret=interpret):
                optimized = jax.jit(jax_moye.optimize(one))
                text = optimized.lower(*operands).as_text()
                assert_close(optimized(*operands), expected)
            assert (VIEW_TARGET in text) == interpret
