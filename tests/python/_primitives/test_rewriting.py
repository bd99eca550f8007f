"""Rewriting a jaxpr: bodies that are looked into, rules and effects that stay, and what is left as it is."""

from __future__ import annotations

import cProfile
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback, sparse
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import jax_moye
from jax_moye._api.options import Options
from jax_moye._primitives.rewriting import rewritten

PARAMETERS = Options().parameters()
CONTRACT, REWRITTEN = "jax_moye_contract", "jax_moye_rewritten"


def text(fun, *operands):
    return str(jax.make_jaxpr(jax_moye.optimize(fun))(*operands))


def arrays(dtype=jnp.bfloat16):
    """x (8,16), w (16,8), b (8,)."""
    rng = np.random.default_rng(0)
    return tuple(jnp.asarray(rng.normal(size=shape) / 4, dtype) for shape in ((8, 16), (16, 8), (8,)))


def layer(x, w, b):
    return jax.nn.relu(x @ w + b) * 0.5


def test_a_program_without_products_is_itself():
    closed = jax.make_jaxpr(lambda x: lax.scan(lambda c, _: (jnp.sin(c), None), x, length=3)[0])(1.0)
    assert rewritten(closed, PARAMETERS) is closed


def test_a_body_is_rewritten_and_the_rest_is_kept():
    x = jnp.ones((4, 4), jnp.bfloat16)
    closed = jax.make_jaxpr(lambda x: jnp.sin(lax.scan(lambda c, _: (c @ c, None), x, length=3)[0]))(x)
    new = rewritten(closed, PARAMETERS)
    assert [one is other for one, other in zip(new.eqns, closed.eqns, strict=True)] == [False, True]
    (inner,) = new.eqns[0].params["jaxpr"].eqns
    assert inner.primitive.name == CONTRACT
    assert new.jaxpr.debug_info is closed.jaxpr.debug_info


def test_rewriting_twice_changes_nothing_more():
    x = jnp.ones((4, 4), jnp.bfloat16)
    once = rewritten(jax.make_jaxpr(lambda x: jax.nn.relu(x @ x) @ x)(x), PARAMETERS)
    assert rewritten(once, PARAMETERS) is once


# ------------------------------------------------------------------------------- functions with their own derivatives


def with_vjp(x, w, b):
    """Its gradients are 7 times another's: nobody else's rule says so."""

    @jax.custom_vjp
    def fun(x, w, b):
        return layer(x, w, b)

    def forward(x, w, b):
        return layer(x, w, b), (x, w, b)

    def backward(saved, g):
        return tuple(7 * one for one in jax.vjp(layer, *saved)[1](g))

    fun.defvjp(forward, backward)
    return fun(x, w, b)


def with_jvp(x, w, b):
    @jax.custom_jvp
    def fun(x, w, b):
        return layer(x, w, b)

    @fun.defjvp
    def rule(primals, tangents):
        value, tangent = jax.jvp(layer, primals, tangents)
        return value, 7 * tangent

    return fun(x, w, b)


def with_nondiff_argument(x, w, b):
    @functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
    def fun(activation, x, w, b):
        return activation(x @ w + b) * 0.5

    def forward(activation, x, w, b):
        return fun(activation, x, w, b), (x, w, b)

    def backward(activation, saved, g):
        return tuple(7 * one for one in jax.vjp(layer, *saved)[1](g))

    fun.defvjp(forward, backward)
    return fun(jax.nn.relu, x, w, b)


RULES = {
    "custom_vjp": with_vjp,
    "custom_jvp": with_jvp,
    "nondiff_argnums": with_nondiff_argument,
    "in jit": jax.jit(with_vjp),
    "in scan": lambda x, w, b: lax.scan(lambda c, _: (with_jvp(x, w, b) + c, None), jnp.zeros_like(x @ w), length=1)[0],
    "in checkpoint": jax.checkpoint(with_vjp),
    "of a closed-over array": lambda x, w, b: with_vjp(x * jnp.arange(1, 2, dtype=x.dtype), w, b),
}


@pytest.mark.parametrize("name", RULES)
def test_bodies_of_custom_derivatives(name):
    fun, operands = RULES[name], arrays()
    program = text(fun, *operands)
    assert program.count(f"{REWRITTEN}[") == 1
    assert "custom_" in program
    np.testing.assert_array_equal(jax.jit(jax_moye.optimize(fun))(*operands), jax.jit(fun)(*operands))
    with jax_moye.options(interpret=True):
        assert "custom_call @jax_moye_" in jax.jit(jax_moye.optimize(fun)).lower(*operands).as_text()


@pytest.mark.parametrize("name", RULES)
def test_their_rules_stay(name):
    """Whoever differentiates the result, and in the gradients that are optimized."""
    fun, operands = RULES[name], arrays(jnp.float32)
    total = lambda f: lambda *x: (f(*x) ** 2).sum()  # noqa: E731
    plain = jax.grad(total(layer), (0, 1, 2))(*operands)
    for gradient in (
        jax.grad(total(fun), (0, 1, 2)),
        jax.grad(total(jax_moye.optimize(fun)), (0, 1, 2)),
        jax_moye.optimize(jax.grad(total(fun), (0, 1, 2))),
        jax_moye.optimize(jax.grad(total(jax_moye.optimize(fun)), (0, 1, 2))),
        jax.jit(jax.grad(total(jax.jit(jax_moye.optimize(fun))), (0, 1, 2))),
    ):
        for got, expected in zip(gradient(*operands), plain, strict=True):
            np.testing.assert_allclose(got, 7 * expected, rtol=1e-5, atol=1e-5)
    if "jvp" in name:
        got, expected = (jax.jvp(f, operands, operands)[1] for f in (jax_moye.optimize(fun), layer))
        np.testing.assert_allclose(got, 7 * expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.silu, jax.nn.swish, jax.nn.gelu])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, lambda f: jax.jit(jax.jit(f))])
def test_activations_with_derivatives_of_their_own(activation, wrap):
    fun = lambda x, w, b: wrap(activation)(x @ w + b)  # noqa: E731
    (equation,) = (e for e in jax.make_jaxpr(jax_moye.optimize(fun))(*arrays()).eqns if e.primitive.name == REWRITTEN)
    assert equation.params["epilogue"].activation == {"relu": "relu", "gelu": "gelu_tanh"}.get(
        activation.__name__, "silu"
    )


def test_a_call_that_makes_a_derivative_beside_an_activation():
    """What the derivative is made of is no part of the equations that a gated layer was."""
    x, w, _ = arrays()
    gated = lambda x, g, u: jax.nn.silu(x @ g) * (x @ u)  # noqa: E731
    fun = lambda *of: jax.jvp(gated, of[:3], of[3:])  # noqa: E731
    given = x, w, w - 1
    equations = jax.make_jaxpr(jax_moye.optimize(fun))(*given, *given).eqns
    (equation,) = (e for e in equations if e.primitive.name == REWRITTEN and e.params["epilogue"].is_of_pair)
    made = equation.params["original"](*given)
    np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (made[0], gated(*given))), atol=2**-6)
    assert len(equation.params["original"].jaxpr.eqns) < 8
    results, before = (jax.jit(f)(*given, *given) for f in (jax_moye.optimize(fun), fun))
    for result, wanted in zip(results, before, strict=True):
        np.testing.assert_allclose(np.asarray(result, np.float32), np.asarray(wanted, np.float32), atol=2**-5)


# ------------------------------------------------------------------------------------------------------ long programs


def training_step(layers):
    """With attention, calls and updates."""

    @jax.jit
    def layer(x, w):
        q, k, v = jnp.split((x @ w).reshape(2, 16, 6, 16), 3, axis=2)
        return x + jax.nn.dot_product_attention(q, k, v, is_causal=True).reshape(2, 16, 32) @ w[:, :32]

    def step(ws, x):
        loss = lambda ws: (functools.reduce(layer, ws, x).astype(jnp.float32) ** 2).mean()  # noqa: E731
        return [w - 0.125 * g for w, g in zip(ws, jax.grad(loss)(ws), strict=True)]

    return jax.make_jaxpr(step)([jnp.ones((32, 96), jnp.bfloat16)] * layers, jnp.ones((2, 16, 32), jnp.bfloat16))


def lookups(closed):
    """How often rewriting a program asks a dictionary: for a value's maker, readers or name."""
    profile = cProfile.Profile()
    profile.enable()
    rewritten(closed, Options(implementation="moye").parameters())
    profile.disable()
    return sum(entry.callcount for entry in profile.getstats() if "'get' of 'dict'" in str(entry.code))


def test_time_grows_in_proportion_to_a_programs_length():
    lookups(training_step(2))  # templates are made once
    few, some, many = (lookups(training_step(layers)) for layers in (4, 8, 24))
    assert (many - some) / 16 < 1.1 * (some - few) / 4


# ------------------------------------------------------------------------------------------------------- shard_map


@pytest.mark.parametrize("axis_type", [AxisType.Auto, AxisType.Explicit])
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(axis_type, check_vma):
    """Kernels inside are ours, as with intercept. sharded.py has more devices."""
    x, w, b = arrays()
    mesh = jax.make_mesh((1,), ("d",), axis_types=(axis_type,))
    local = jax.shard_map(layer, mesh=mesh, in_specs=(P("d"), P(), P()), out_specs=P("d"), check_vma=check_vma)
    loss = lambda x, w, b: (local(x, w, b).astype(jnp.float32) ** 2).sum()  # noqa: E731
    with jax.set_mesh(mesh):
        placed = [jax.device_put(one, NamedSharding(mesh, spec)) for one, spec in ((x, P("d")), (w, P()), (b, P()))]
        assert text(local, *placed).count(f"{REWRITTEN}[") == 1
        assert "dot_general[" not in text(jax.grad(loss, (0, 1, 2)), *placed)
        np.testing.assert_array_equal(jax.jit(jax_moye.optimize(local))(*placed), jax.jit(local)(*placed))
        with jax_moye.options(interpret=True):
            program = jax.jit(jax_moye.optimize(local)).lower(*placed)
            assert program.as_text().count("custom_call @jax_moye_fused_gemm_v1") == 1
            result = jax.jit(jax_moye.optimize(local))(*placed)
        np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in (result, layer(x, w, b))), atol=2**-7)
        for gradient in (jax_moye.optimize(jax.grad(loss, (0, 1, 2))), jax.grad(jax_moye.optimize(loss), (0, 1, 2))):
            got, expected = (jax.jit(f)(*placed) for f in (gradient, jax.grad(loss, (0, 1, 2))))
            for one, other in zip(got, expected, strict=True):
                np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), atol=2**-6)


def gated_groups(x, w, b):
    sizes = jnp.full(2, 8) + (0 * x[0, :2]).astype(int)  # which vary as x does
    of = lambda w: lax.ragged_dot(x, jnp.stack([w, w]), sizes)  # noqa: E731
    return jax.nn.gelu(of(w)) * of(w + b)


NUMBERS = {
    "a number in an activation": (lambda x, w, b: jax.nn.gelu(x @ w + b), REWRITTEN),
    "a number in another function": (lambda x, w, b: 30 * jnp.tanh((x @ w + b) / 30), REWRITTEN),
    "products of groups": (gated_groups, "jax_moye_grouped_rewritten"),
    "a part of an array": (lambda x, w, b: jnp.tanh(0.5 * (x @ w[:, :4]) + b[:4]), "jax_moye_viewed"),
    "the same on each device": (lambda x, w, b: jax.nn.silu(lax.stop_gradient(w).T @ w) + b, REWRITTEN),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_values_that_vary_over_a_mesh(name):
    """Numbers are made to vary in the program; what a device does by itself, lowered or measured, knows no mesh."""
    fun, primitive = NUMBERS[name]
    x, w, b = (jnp.tile(one, (2,) * one.ndim) for one in arrays())
    mesh = Mesh(np.array(jax.devices()[:1]), ("d",))
    local = jax.shard_map(fun, mesh=mesh, in_specs=(P("d"), P(), P()), out_specs=P("d"))
    results = [jax.jit(f)(x, w, b) for f in (jax_moye.optimize(local), jax_moye.optimize(fun), fun)]
    np.testing.assert_array_equal(results[0], results[1])
    np.testing.assert_allclose(*(np.asarray(y, np.float32) for y in results[1:]), atol=2**-6)
    (mapped,) = jax.make_jaxpr(jax_moye.optimize(local))(x, w, b).eqns
    equation = next(e for e in mapped.params["jaxpr"].eqns if e.primitive.name == primitive)
    alone = equation.params["original"].on_one_device
    assert alone is not equation.params["original"]
    assert alone.on_one_device is alone
    assert "pvary" not in str(alone.jaxpr)
    assert "pcast" not in str(alone.jaxpr)
    given = [jnp.ones(aval.shape, aval.dtype) for aval in alone.jaxpr.in_avals]
    (made,) = jax.jit(alone.by_xla)(*given)  # outside of shard_map, where such axes have no names
    assert (made.shape, made.dtype) == (alone.jaxpr.out_avals[0].shape, alone.jaxpr.out_avals[0].dtype)


def test_explicit_axes_stay_as_they_are():
    x, w, b = arrays()
    mesh = jax.make_mesh((1,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        placed = [jax.device_put(one, NamedSharding(mesh, P())) for one in (x, w, b)]
        assert text(layer, *placed) == str(jax.make_jaxpr(layer)(*placed))


# ------------------------------------------------------------------------------------------------ left as it is


mystery_p = Primitive("mystery")
mystery_p.def_impl(lambda x, **_: 2 * x)
mystery_p.def_abstract_eval(lambda x, **_: x)
mlir.register_lowering(mystery_p, mlir.lower_fun(lambda x, **_: 2 * x, multiple_results=False))


def with_mystery(x, w, b):
    inner = jax.make_jaxpr(lambda x: x @ x)(jnp.ones((2, 2)))
    return mystery_p.bind(jnp.sin(x), jaxpr=inner)


def with_callbacks(x, w, b):
    jax.debug.callback(lambda s: None, x.sum(), ordered=True)
    io_callback(lambda s: None, None, x.sum(), ordered=True)
    return jax.pure_callback(lambda y: np.asarray(y) * 2, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


UNTOUCHED = {
    "no product": lambda x, w, b: jnp.tanh(x) * 0.5 + 1,
    "an activation": lambda x, w, b: jax.nn.gelu(jax.nn.relu(x)).T,
    "loops": lambda x, w, b: lax.scan(lambda c, _: (lax.cond(c[0, 0] > 0, jnp.sin, jnp.cos, c), None), x, length=2)[0],
    "integers": lambda x, w, b: x.astype(jnp.int32) @ w.astype(jnp.int32) * 2,
    "complex numbers": lambda x, w, b: (x.astype(jnp.complex64) @ w.astype(jnp.complex64)).T * 0.5,
    "booleans": lambda x, w, b: (x > 0) @ (w > 0),
    "sparse arrays": lambda x, w, b: sparse.BCOO.fromdense(x.astype(jnp.float32), nse=128) @ w.astype(jnp.float32),
    "a primitive that nobody knows": with_mystery,
    "callbacks": with_callbacks,
    "closed-over arrays": lambda x, w, b: x * np.arange(16.0, dtype=np.float32) + jnp.eye(8, 16),
    "a convolution": lambda x, w, b: lax.conv(x[None, None], w[None, None, :4, :4], (1, 1), "SAME"),
    "a cholesky": lambda x, w, b: jnp.linalg.cholesky(jnp.eye(4) + x[:4, :4].astype(jnp.float32)),
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_has_nothing_to_rewrite_comes_out_unchanged(name):
    fun, operands = UNTOUCHED[name], arrays()
    closed = jax.make_jaxpr(fun)(*operands)
    assert rewritten(closed, PARAMETERS) is closed
    jax.clear_caches()  # names of variables in shared jaxprs, as str prints them, are those of the first
    texts = text(fun, *operands), str(jax.make_jaxpr(fun)(*operands))
    assert len({re.sub("0x[0-9a-f]+", "", one) for one in texts}) == 1  # without addresses


def test_what_stands_beside_a_product_stays():
    """In its order: callbacks, unknown primitives, numbers of weak types."""
    x, w, b = arrays()
    seen = []

    def fun(x):
        y = x @ w
        io_callback(lambda s: seen.append(("first", float(s))), None, y.astype(jnp.float32).sum(), ordered=True)
        z = jax.nn.relu(mystery_p.bind(x) @ w + b)
        jax.debug.callback(lambda s: seen.append(("second", float(s))), z.astype(jnp.float32).sum(), ordered=True)
        t = jax.pure_callback(lambda y: np.asarray(y) * 2, jax.ShapeDtypeStruct(z.shape, z.dtype), z)
        return z, t + 0.5 * (x @ w), jnp.sin(2.0) * 3

    closed = jax.make_jaxpr(fun)(x)
    new = rewritten(closed, PARAMETERS)
    kept = ("io_callback", "debug_callback", "pure_callback", "mystery")
    names = [[e.primitive.name for e in one.eqns if e.primitive.name in kept] for one in (closed, new)]
    assert names[0] == names[1]
    assert new.effects == closed.effects
    results = [jax.jit(f)(x) for f in (fun, jax_moye.optimize(fun))]
    jax.effects_barrier()
    assert seen[:2] == seen[2:]
    assert [name for name, _ in seen] == ["first", "second"] * 2
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)


def test_sparse_arrays_beside_products():
    x, w, _ = arrays(jnp.float32)
    fun = lambda x, w: jax.nn.relu(sparse.BCOO.fromdense(x, nse=128) @ w) @ w.T  # noqa: E731
    program = text(fun, x, w)
    assert "bcoo_dot_general" in program
    assert program.count(f"{CONTRACT}[") == 1
    np.testing.assert_allclose(jax_moye.optimize(fun)(x, w), fun(x, w), rtol=1e-6)


def test_references_stay():
    """Arrays that a program writes in place, where JAX has them."""
    if not hasattr(jax, "new_ref"):
        pytest.skip("since jax 0.9")
    x, w, b = arrays()

    def fun(x, w, b):
        ref = jax.new_ref(jnp.zeros((8, 8), x.dtype))
        ref[...] += x @ w
        ref[...] += layer(x, w, b)
        return ref[...]

    assert text(fun, x, w, b).count(f"{REWRITTEN}[") == 1
    np.testing.assert_array_equal(jax.jit(jax_moye.optimize(fun))(x, w, b), jax.jit(fun)(x, w, b))


# ------------------------------------------------------------------------------------------- what jit says of it


def test_names_and_sources_stay():
    x, w, b = arrays()

    def fun(x, w, b):
        with jax.named_scope("attention"):
            y = x @ w
        with jax.named_scope("head"):
            return jax.nn.relu(y + b)

    def locations(f):
        return jax.jit(f).lower(x, w, b).as_text(debug_info=True)

    for name in ("attention/dot_general", "head/add", "test_rewriting.py"):
        assert name in locations(fun)
    for name in ("head/", "test_rewriting.py"):
        assert name in locations(jax_moye.optimize(fun))
    (equation,) = (e for e in jax.make_jaxpr(jax_moye.optimize(fun))(x, w, b).eqns if e.primitive.name == REWRITTEN)
    assert str(equation.source_info.name_stack) == "head"
    inside = equation.params["original"].jaxpr.eqns
    assert [str(e.source_info.name_stack) for e in inside][:2] == ["attention", "head"]
    with jax_moye.options(interpret=True):
        assert "head/" in locations(jax_moye.optimize(fun))


def test_donation_stays():
    x, w, _ = arrays()
    p = x @ w

    def update(p, x, w):
        return p - 0.5 * (x @ w)

    text_of = [jax.jit(f, donate_argnums=0).lower(p, x, w).as_text() for f in (jax_moye.optimize(update), update)]
    assert all("tf.aliasing_output" in one or "jax.buffer_donor" in one for one in text_of)
    given = p + 0
    jax.block_until_ready(jax.jit(jax_moye.optimize(update), donate_argnums=0)(given, x, w))
    assert given.is_deleted()
    with jax_moye.options(interpret=True):  # the kernel writes over it
        compiled = jax.jit(jax_moye.optimize(update), donate_argnums=0).lower(p, x, w).compile().as_text()
    (call,) = (line for line in compiled.splitlines() if "custom_call_target=" in line)
    assert "output_to_operand_aliasing={{0}: (2, {})}" in call
    assert " copy(" not in compiled


def test_shardings_and_weak_types_stay():
    x, w, b = arrays()
    mesh = Mesh(np.array(jax.devices()[:1]), "d")
    rows = NamedSharding(mesh, P("d"))

    def fun(x, w, b):
        x = lax.with_sharding_constraint(x, rows)
        return lax.with_sharding_constraint(layer(x, w, b), rows), 2.0 * jnp.sin(1.0), 3

    both, shardings = (jax_moye.optimize(fun), fun), (rows, None, None)
    texts = [jax.jit(f, in_shardings=shardings).lower(x, w, b).as_text() for f in both]
    assert len({one.count("sharding_constraint") for one in texts}) == 1
    assert len({one.count("mhlo.sharding") + one.count("sdy.sharding") for one in texts}) == 1
    results = [jax.jit(f)(x, w, b) for f in both]
    assert results[0][0].sharding == results[1][0].sharding
    for one, other in zip(*results, strict=True):
        assert (one.dtype, one.weak_type) == (other.dtype, other.weak_type)
    assert results[0][1].weak_type
