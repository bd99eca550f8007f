"""Gated layers: two products of one left operand as one equation, and activations whose argument is a second result."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name, print_saved_residuals
from jax.extend.core import jaxpr_as_fun
from python import gated as gated_layers
from python.float64 import assert_close, exact

import jax_moye
from jax_moye._primitives.pairs import ordered
from jax_moye._primitives.rewritten import rewritten_p

M, K, N = 16, 24, 32
SHAPES = {"x": (M, K), "g": (K, N), "u": (K, N), "d": (N, K), "h": (3, M, K), "t": (N, K), "w": (K, 40), "b": (N,)}
SHAPES |= {"G": (3, K, N), "U": (3, K, N), "s": (K, K), "v": (K, K), "r": (M, N)}
CONTRACT, REWRITTEN, TARGET = "jax_moye_contract", "jax_moye_rewritten", "jax_moye_fused_gemm_v1"


def arrays(names, dtype=jnp.bfloat16):
    """Operands by their letters: normal numbers, of weights with a variance that keeps products near 1."""
    rng = np.random.default_rng(list(map(ord, names)))
    scale = {name: 1.0 if name in "xhr" else 0.25 for name in SHAPES}
    return [jnp.asarray(scale[name] * rng.standard_normal(SHAPES[name]), dtype) for name in names]


def pairs_in(jaxpr):
    """Its equations of two products, in order, those inside of loops and calls, too."""
    found = []
    for equation in jaxpr.eqns:
        if equation.primitive is rewritten_p and equation.params["epilogue"].is_of_pair:
            found.append(equation)
        for inner in jax.tree.leaves(
            list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            if equation.primitive is not rewritten_p and (hasattr(inner, "eqns") or hasattr(inner, "jaxpr")):
                found += pairs_in(getattr(inner, "jaxpr", inner))
    return found


def pairs_of(fun, *operands):
    return pairs_in(jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr)


def gated(x, g, u):
    return jax.nn.silu(x @ g) * (x @ u)


def mlp(x, g, u, d):
    return gated(x, g, u) @ d


# name -> (operands, function, activation, spec)
PAIRS = {
    "silu": ("xgu", gated, "silu", "mk,kn->mn"),
    "the other factor first": ("xgu", lambda x, g, u: (x @ u) * jax.nn.silu(x @ g), "silu", "mk,kn->mn"),
    "and made first": (
        "xgu",
        lambda x, g, u: (lambda y: jax.nn.silu(x @ g) * y)(x @ u),
        "silu",
        "mk,kn->mn",
    ),
    "gelu": ("xgu", lambda x, g, u: jax.nn.gelu(x @ g) * (x @ u), "gelu_tanh", "mk,kn->mn"),
    "exact gelu": (
        "xgu",
        lambda x, g, u: jax.nn.gelu(x @ g, approximate=False) * (x @ u),
        "gelu_erf",
        "mk,kn->mn",
    ),
    "relu": ("xgu", lambda x, g, u: jax.nn.relu(x @ g) * (x @ u), "relu", "mk,kn->mn"),
    "no activation": ("xgu", lambda x, g, u: (x @ g) * (x @ u), "none", "mk,kn->mn"),
    "in a jit": ("xgu", jax.jit(lambda x, g, u: jax.jit(jax.nn.silu)(x @ g) * (x @ u)), "silu", "mk,kn->mn"),
    "rows of a batch": (
        "hgu",
        lambda h, g, u: jax.nn.silu(jnp.einsum("bmk,kn->bmn", h, g)) * jnp.einsum("bmk,kn->bmn", h, u),
        "silu",
        None,
    ),
    "weights of a batch": (
        "hGU",
        lambda h, g, u: jax.nn.silu(jnp.einsum("bmk,bkn->bmn", h, g)) * jnp.einsum("bmk,bkn->bmn", h, u),
        "silu",
        None,
    ),
    "both weights transposed": (
        "xtd",
        lambda x, g, u: jax.nn.silu(x @ g.T) * (x @ u.T),
        "silu",
        "mk,kn->mn",
    ),
    "one of them": ("xgd", lambda x, g, u: jax.nn.silu(x @ g) * (x @ u.T), "silu", "mk,kn->mn"),
    "one array, once transposed": ("xs", lambda x, s: jax.nn.silu(x @ s) * (x @ s.T), "silu", "mk,kn->mn"),
    "named": (
        "xgu",
        lambda x, g, u: jax.nn.silu(checkpoint_name(x @ g, "gate")) * checkpoint_name(x @ u, "up"),
        "silu",
        "mk,kn->mn",
    ),
    "wide sums, made narrow": (
        "xgu",
        lambda x, g, u: (
            jax.nn.silu(jnp.matmul(x, g, preferred_element_type=jnp.float32).astype(x.dtype))
            * jnp.matmul(x, u, preferred_element_type=jnp.float32).astype(x.dtype)
        ),
        "silu",
        "mk,kn->mn",
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_a_gated_layer_is_one_equation(name):
    names, fun, activation, spec = PAIRS[name]
    operands = arrays(names)
    (equation,) = pairs_of(fun, *operands)
    epilogue = equation.params["epilogue"]
    assert (epilogue.activation, epilogue.alpha, epilogue.keeps) == (activation, 1.0, False)
    assert spec in (None, equation.params["spec"])
    assert len(equation.invars) == 3
    assert len(equation.outvars) == 1
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands))


@pytest.mark.parametrize("name", PAIRS)
def test_it_is_one_kernel(name):
    """In the emulator: one call, and what it computes."""
    names, fun, *_ = PAIRS[name]
    operands = arrays(names)
    with jax_moye.options(interpret=True):
        text = jax.jit(jax_moye.optimize(fun)).lower(*operands).as_text()
        result = jax.jit(jax_moye.optimize(fun))(*operands)
    assert text.count(f"custom_call @{TARGET}") == 1
    assert "stablehlo.multiply" not in text
    assert_close(result, exact(fun, operands), 2.0**-7)


def test_transposed_weights_are_strides():
    """Of both, alike; where one lies otherwise it is brought into the other's order."""
    x, g, u = arrays("xtd")
    with jax_moye.options(interpret=True):
        both = jax.jit(jax_moye.optimize(lambda x, g, u: gated(x, g.T, u.T))).lower(x, g, u).compile().as_text()
        one = jax.jit(jax_moye.optimize(lambda x, g, u: gated(x, g, u.T))).lower(x, g.T, u).compile().as_text()
    assert TARGET in both
    assert TARGET in one
    assert " transpose(" not in both


# name -> (operands, function)
NO_PAIRS = {
    "weights of other shapes": ("xgw", lambda x, g, w: jax.nn.silu(x @ g)[:, :1] * (x @ w)),
    "one weight twice": ("xg", lambda x, g: jax.nn.silu(x @ g) * (x @ g)),
    "one product": ("xg", lambda x, g: (lambda y: jax.nn.silu(y) * y)(x @ g)),
    "a square": ("xg", lambda x, g: (lambda y: y * y)(x @ g)),
    "another left operand": ("xgu", lambda x, g, u: jax.nn.silu(x @ g) * ((x + 1) @ u)),
    "left operands that differ": ("sgu", lambda s, g, u: jax.nn.silu(s @ g) * (s.T @ u)),
    "a sum": ("xgu", lambda x, g, u: jax.nn.silu(x @ g) + (x @ u)),
    "a quotient": ("xgu", lambda x, g, u: jax.nn.silu(x @ g) / (x @ u)),
    "another activation": ("xgu", lambda x, g, u: jnp.tanh(x @ g) * (x @ u)),
    "activations of both": ("xgu", lambda x, g, u: jax.nn.silu(x @ g) * jax.nn.silu(x @ u)),
    "another factor": ("xgr", lambda x, g, r: jax.nn.silu(x @ g) * r),
    "a bias": ("xgub", lambda x, g, u, b: jax.nn.silu(x @ g + b) * (x @ u + b)),
    "a number between": ("xgu", lambda x, g, u: jax.nn.silu(x @ g) * (0.5 * (x @ u))),
    "other precisions": (
        "xgu",
        lambda x, g, u: jax.nn.silu(x @ g) * jnp.matmul(x, u, precision="highest"),
    ),
    "other types of sums": (
        "xgu",
        lambda x, g, u: jax.nn.silu(x @ g) * jnp.matmul(x, u, preferred_element_type=jnp.float32),
    ),
}


@pytest.mark.parametrize("name", NO_PAIRS)
def test_what_is_no_gated_layer(name):
    names, fun = NO_PAIRS[name]
    operands = arrays(names)
    assert pairs_of(fun, *operands) == []
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands), 2.0**-5)


@pytest.mark.parametrize("policy", ["dots_saveable", "names"])
def test_what_a_checkpoint_saves(policy, capsys):
    """Both products, behind a rounding to the type that they have; so it is for who differentiates the result."""
    policies = jax.checkpoint_policies
    saves = policies.dots_saveable if policy == "dots_saveable" else policies.save_only_these_names("gate", "up")
    operands = arrays("xgud")

    @functools.partial(jax.checkpoint, policy=saves)
    def layer(x, g, u, d):
        h = jax.nn.silu(checkpoint_name(x @ g, "gate")) * checkpoint_name(x @ u, "up")
        return ((h @ d) ** 2).sum()

    fun = jax.grad(layer, (0, 1, 2, 3))
    (equation,) = pairs_of(fun, *operands)
    assert equation.params["epilogue"].keeps
    assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands), 2.0**-5)
    if policy == "names":  # the other one asks for JAX's product
        saved = []
        for one in (layer, jax_moye.optimize(layer)):
            print_saved_residuals(one, *operands)
            saved.append([line.split(" ")[0] for line in capsys.readouterr().out.splitlines()])
        assert saved[0] == saved[1] != []


def test_weights_of_other_types():
    x, g, u = arrays("xgu")
    fun = lambda x, g, u: jax.nn.silu(x @ g) * jnp.matmul(x, u)  # noqa: E731
    assert pairs_of(fun, x, g, u.astype(jnp.float32)) == []
    (_,) = pairs_of(fun, *(one.astype(jnp.float16) for one in (x, g, u)))


def test_whoever_else_reads_a_product_gets_it():
    """Then both are results, and so stay the equations of which they are results."""
    operands = arrays("xgur")
    readers = {
        "the activated product": (lambda y, z, a: y, []),
        "the factor": (lambda y, z, a: z, []),
        "what the activation is": (lambda y, z, a: a, ["custom_jvp_call", "jit"]),
        "all of them": (lambda y, z, a: (y, z, a), ["custom_jvp_call", "jit"]),
    }
    for read, stay in readers.values():

        def fun(x, g, u, r, read=read):
            y, z = x @ g, x @ u
            a = jax.nn.silu(y)
            return a * z, jax.tree.map(lambda one: one + r, read(y, z, a))

        (equation,) = pairs_of(fun, *operands)
        assert equation.params["epilogue"].keeps
        assert len(equation.outvars) == 3
        names = [e.primitive.name for e in jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr.eqns]
        assert not stay or set(stay) & set(names)
        assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands))
        with jax_moye.options(interpret=True):
            assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands))


def test_two_gates_of_one_factor():
    """The first takes it; the other one reads what that keeps."""
    x, g, u = arrays("xgu")
    h = arrays("gxu")[0]

    def fun(x, g, u, h):
        y = x @ u
        return jax.nn.silu(x @ g) * y, jax.nn.gelu(x @ h) * y

    (equation,) = pairs_of(fun, x, g, u, h)
    assert equation.params["epilogue"].keeps
    assert_close(jax.jit(jax_moye.optimize(fun))(x, g, u, h), exact(fun, (x, g, u, h)))


def test_what_makes_the_second_weight_may_stand_between():
    """The equation stands behind it then, and those that read the first product behind the equation."""
    x, g, u, r = arrays("xgur")

    def fun(x, g, u, r):
        y = x @ g
        t = y + r
        v = jnp.sin(u)
        w = v * 2
        return jax.nn.silu(y) * (x @ w), t

    (equation,) = pairs_of(fun, x, g, u, r)
    assert equation.params["epilogue"].keeps
    assert_close(jax.jit(jax_moye.optimize(fun))(x, g, u, r), exact(fun, (x, g, u, r)))


def test_a_second_weight_that_depends_on_the_first_product_is_none():
    """Nor the other way round: each would need the other's result. The rest of the program is what it would be."""
    x, g, u = arrays("xgu")

    def fun(x, g, u):
        y = x @ g
        return jax.nn.silu(y) * (x @ jnp.tanh(u + y.mean()))

    def turned(x, g, u):
        y = x @ u
        return jax.nn.silu(x @ jnp.tanh(g + y.mean())) * y

    for one in (fun, turned):
        (equation,) = pairs_of(lambda x, g, u, one=one: one(x, g, u) + gated(x, u, g), x, g, u)
        assert equation.params["epilogue"].activation == "silu"
        assert pairs_of(one, x, g, u) == []
        assert_close(jax.jit(jax_moye.optimize(one))(x, g, u), exact(one, (x, g, u)))


@pytest.mark.skipif(not hasattr(jax, "new_ref"), reason="since jax 0.9")
def test_reads_of_what_is_written_between_stay_behind_it():
    x, g, u = arrays("xgu")

    def fun(x, g, u):
        ref = jax.new_ref(jnp.zeros_like(u))
        y = x @ g
        ref[...] += u
        return jax.nn.relu(y) * (x @ ref[...])

    result = jax.jit(jax_moye.optimize(fun))(x, g, u)
    np.testing.assert_array_equal(result, jax.jit(fun)(x, g, u))
    assert float(abs(result).max()) > 0


def test_callbacks_keep_their_order():
    x, g, u = arrays("xgu")
    seen = []

    def fun(x, g, u):
        y = x @ g
        jax.debug.callback(lambda _: seen.append("first"), y[0, 0], ordered=True)
        z = x @ u
        jax.debug.callback(lambda _: seen.append("second"), z[0, 0], ordered=True)
        return jax.nn.silu(y) * z

    jax.block_until_ready(jax.jit(jax_moye.optimize(fun))(x, g, u))
    jax.effects_barrier()
    assert seen == ["first", "second"]


# ------------------------------------------------------------------------------------------------------ derivatives


def total(fun):
    return lambda *operands: (fun(*operands).astype(jnp.float32) ** 2).sum()


@pytest.mark.parametrize("interpret", [False, True])
def test_a_step_of_training(interpret):
    """The forward products are one equation whose products the derivatives read."""
    operands = arrays("xgud")
    step = jax.value_and_grad(total(mlp), (0, 1, 2, 3))
    (equation,) = pairs_of(step, *operands)
    assert equation.params["epilogue"].keeps
    with jax_moye.options(interpret=interpret):
        found = jax.jit(jax_moye.optimize(step))(*operands)
    assert_close(found, exact(jax.value_and_grad(total(mlp), (0, 1, 2, 3)), operands), 2.0**-5)


@pytest.mark.parametrize("prevent_cse", [False, True])
def test_checkpoints(prevent_cse):
    operands = arrays("xgud")
    layer = jax.checkpoint(mlp, prevent_cse=prevent_cse)
    step = jax.value_and_grad(total(layer), (0, 1, 2, 3))
    assert pairs_of(layer, *operands)
    found = pairs_of(step, *operands)
    assert found
    assert not found[0].params["epilogue"].keeps  # of the forward pass nothing is kept
    assert_close(jax.jit(jax_moye.optimize(step))(*operands), exact(step, operands), 2.0**-5)


def test_scans():
    """A layer after the other, each with weights of its own, forwards and backwards."""
    x, *weights = arrays("xGU")
    downs = jnp.swapaxes(weights[1], 1, 2)

    def layers(x, g, u, d):
        return lax.scan(lambda y, w: (y + mlp(y, *w), None), x, (g, u, d))[0]

    operands = (x, *weights, downs)
    (equation,) = pairs_of(layers, *operands)
    assert not equation.params["epilogue"].keeps
    assert_close(jax.jit(jax_moye.optimize(layers))(*operands), exact(layers, operands), 2.0**-5)
    step = jax.value_and_grad(total(layers), (0, 1, 2, 3))
    assert not pairs_of(step, *operands)  # the loop stacks both products, and XLA would copy a kernel's
    assert_close(jax.jit(jax_moye.optimize(step))(*operands), exact(step, operands), 2.0**-4)


def test_who_differentiates_what_was_optimized():
    """Gradients, tangents and second derivatives are those of the equations as they were."""
    operands = arrays("xgu", jnp.float32)
    optimized = jax_moye.optimize(gated)
    assert pairs_of(gated, *operands)
    for transform in (
        lambda f: jax.grad(total(f), (0, 1, 2)),
        lambda f: lambda *x: jax.jvp(f, x, x)[1],
        lambda f: lambda x, g, u: jax.jvp(lambda g: f(x, g, u), (g,), (g,))[1],
        lambda f: lambda *x: jax.jvp(jax.grad(total(f), 1), x, x)[1],
        lambda f: jax.grad(lambda *x: total(jax.checkpoint(f))(*x), (0, 1, 2)),
        lambda f: jax_moye.optimize(jax.grad(total(f), (0, 1, 2))),
    ):
        assert_close(jax.jit(transform(optimized))(*operands), exact(transform(gated), operands), 2.0**-12)
    # With two products kept, too.
    step = jax.value_and_grad(total(gated), (0, 1, 2))
    found = jax.grad(lambda *x: jax.tree.leaves(jax_moye.optimize(step)(*x))[1].sum())(*operands)
    expected = exact(jax.grad(lambda *x: jax.tree.leaves(step(*x))[1].sum()), operands)
    assert_close(found, expected, 2.0**-12)


def test_maps():
    """Over any operand, of what was optimized and optimized themselves."""
    x, h, g, u = arrays("xhgu")
    gs, us = arrays("GU")
    for operands, axes in (((h, g, u), (0, None, None)), ((x, gs, us), (None, 0, 0)), ((h, gs, u), (0, 0, None))):
        mapped = functools.partial(jax.vmap, in_axes=axes)
        expected = exact(mapped(gated), operands)
        assert_close(jax.jit(mapped(jax_moye.optimize(gated)))(*operands), expected)
        assert_close(jax.jit(jax_moye.optimize(mapped(gated)))(*operands), expected)
    with jax_moye.options(interpret=True):
        optimized = jax.jit(jax_moye.optimize(jax.vmap(gated, (0, None, None))))
        assert TARGET in optimized.lower(h, g, u).as_text()
        assert_close(optimized(h, g, u), exact(jax.vmap(gated, (0, None, None)), (h, g, u)))


def test_once_optimized_it_stays():
    operands = arrays("xgu")
    once = jax.make_jaxpr(jax_moye.optimize(gated))(*operands)
    again = jax.make_jaxpr(jax_moye.optimize(jaxpr_as_fun(once)))(*operands)
    assert [e.primitive.name for e in again.eqns] == [e.primitive.name for e in once.eqns]


def test_sizes_of_zero():
    for m, k, n in ((0, K, N), (M, 0, N), (M, K, 0)):
        operands = [jnp.ones(shape, jnp.bfloat16) for shape in ((m, k), (k, n), (k, n))]
        for interpret in (False, True):
            with jax_moye.options(interpret=interpret):
                found = jax.jit(jax_moye.optimize(jax.value_and_grad(total(gated), (0, 1, 2))))(*operands)
                assert all((np.asarray(x, np.float32) == 0).all() for x in jax.tree.leaves(found))


# ---------------------------------------------------------------------------- an activation, and what it is applied to


ACTIVATED = {
    "relu": jax.nn.relu,
    "gelu_tanh": jax.nn.gelu,
    "gelu_erf": functools.partial(jax.nn.gelu, approximate=False),
    "silu": jax.nn.silu,
}


@pytest.mark.parametrize("interpret", [False, True])
@pytest.mark.parametrize("name", ACTIVATED)
def test_the_argument_of_an_activation_is_a_second_result(name, interpret):
    """Of a layer whose derivative reads it: one kernel writes both."""
    operands = arrays("xgb")

    def layer(x, g, b):
        return ACTIVATED[name](x @ g + b) @ g.T

    step = jax.value_and_grad(total(layer), (0, 1, 2))
    equations = jax.make_jaxpr(jax_moye.optimize(step))(*operands).jaxpr.eqns
    kept = [e for e in equations if e.primitive is rewritten_p and e.params["epilogue"].activation == name]
    assert len(kept) == 1
    epilogue, outvars = kept[0].params["epilogue"], kept[0].outvars
    assert [operand for operand, _ in epilogue.operands] == ["bias"]
    assert len(outvars) == 1 + epilogue.keeps
    if name != "relu":  # whose derivative reads what it makes
        assert epilogue.keeps
    with jax_moye.options(interpret=interpret):
        optimized = jax.jit(jax_moye.optimize(step))
        assert (TARGET in optimized.lower(*operands).as_text()) == interpret
        found = optimized(*operands)
    assert_close(found, exact(step, operands), 2.0**-5)


READ_ON = {
    "the square of relu": lambda y, r: jnp.square(jax.nn.relu(y)),
    "a gate with a bias": lambda y, r: jax.nn.silu(y) * r,
    "a residual": lambda y, r: r + jax.nn.gelu(y).astype(jnp.float32).astype(r.dtype),
}


@pytest.mark.parametrize("name", READ_ON)
def test_an_activation_that_xla_need_not_write_is_no_second_result(name):
    """XLA computes what reads it element by element, and so it: a kernel would write one array more."""
    operands = arrays("xgbr")

    def layer(x, g, b, r):
        return READ_ON[name](x @ g + b, r) @ g.T

    step = jax.value_and_grad(total(layer), (0, 1, 2, 3))
    equations = jax.make_jaxpr(jax_moye.optimize(step))(*operands).jaxpr.eqns
    epilogues = [one.params["epilogue"] for one in equations if one.primitive is rewritten_p]
    assert "bias" in [operand for one in epilogues for operand, _ in one.operands]
    assert not {one.activation for one in epilogues} & ACTIVATED.keys()
    with jax_moye.options(interpret=True):
        found = jax.jit(jax_moye.optimize(step))(*operands)
    assert_close(found, exact(step, operands), 2.0**-5)


@pytest.mark.parametrize("name", ACTIVATED)
def test_both_results_of_an_activation(name):
    """What others read is the sum as it was rounded before."""
    operands = arrays("xgbr")

    def fun(x, g, b, r):
        y = x @ g + b
        return ACTIVATED[name](y), y * r, y

    equations = jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr.eqns
    (equation,) = (e for e in equations if e.primitive is rewritten_p)
    assert equation.params["epilogue"].keeps
    for interpret in (False, True):
        with jax_moye.options(interpret=interpret):
            assert_close(jax.jit(jax_moye.optimize(fun))(*operands), exact(fun, operands))
    wide = [one.astype(jnp.float32) for one in operands]
    for transform in (
        lambda f: lambda *primals: jax.jvp(f, primals, primals)[1],
        lambda f: jax.grad(lambda *given: sum(y.sum() for y in f(*given)), (0, 1, 2, 3)),
        lambda f: lambda x, g, b, r: jax.vmap(f, (None, None, None, 0))(x, g, b, jnp.stack([r, -r])),
    ):
        assert_close(jax.jit(transform(jax_moye.optimize(fun)))(*wide), exact(transform(fun), wide), 2.0**-12)


# ---------------------------------------------------------------------------------------------------------- the order


def equations_of(fun, *operands):
    return jax.make_jaxpr(fun)(*operands).jaxpr.eqns


def test_equations_that_are_ordered_stay():
    found = equations_of(lambda x: jnp.cos(jnp.sin(x)) + jnp.exp(x), 1.0)
    assert all(one is other for one, other in zip(ordered(found), found, strict=True))
    assert ordered([]) == []


def test_what_is_read_is_made_first():
    """Each moves to the front of the first that reads it, and no other moves."""
    sin, cos, exp, tanh, add = equations_of(lambda x: jnp.tanh(jnp.exp(jnp.cos(jnp.sin(x)))) + x, 1.0)
    names = [e.primitive.name for e in (sin, cos, exp, tanh, add)]
    assert names == ["sin", "cos", "exp", "tanh", "add"]
    for given in ([add, tanh, exp, cos, sin], [exp, sin, add, cos, tanh], [sin, add, cos, exp, tanh]):
        assert [e.primitive.name for e in ordered(given)] == names
    a, b, c = equations_of(lambda x: (jnp.sin(x), jnp.cos(x), jnp.exp(x)), 1.0)
    assert ordered([c, a, b]) == [c, a, b]


def test_an_equation_with_several_readers_stands_once():
    first, left, right, last = equations_of(lambda x: (lambda y: jnp.cos(y) * jnp.exp(y))(jnp.sin(x)), 1.0)
    assert ordered([last, right, left, first]) == [first, right, left, last]
    assert ordered([right, last, first, left]) == [first, right, left, last]


def test_equations_that_need_each_other():
    first, second = equations_of(lambda x: jnp.cos(jnp.sin(x)), 1.0)
    around = first.replace(invars=second.outvars)
    with pytest.raises(ValueError, match="need each other"):
        ordered([around, second])
    with pytest.raises(ValueError, match="need each other"):
        ordered([first.replace(invars=first.outvars)])
    third = second.replace(invars=second.outvars, outvars=first.outvars)
    with pytest.raises(ValueError, match="need each other"):
        ordered([second, third])


# ---------------------------------------------------------- what tests/gpu/test_gpu_pair.py has on a GPU, emulated


every_config = pytest.mark.parametrize("config", gated_layers.CONFIGS, ids=lambda config: config.name)


@every_config
def test_each_config(config):
    for case in list(gated_layers.cases_of(config))[:-1]:  # the last has many tiles
        gated_layers.check_exact(config, case, interpret=True)


@every_config
def test_activations_of_each_config(config):
    activation = list(ACTIVATED)[gated_layers.CONFIGS.index(config) % 4]
    gated_layers.check_close(config, activation, interpret=True)


def test_a_whole_step():
    gated_layers.check_step(interpret=True, implementation=None)
