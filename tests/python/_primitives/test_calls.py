"""What a product takes in across calls: updates behind jit and checkpoint, derivatives between two calls of jit."""

from __future__ import annotations

import logging
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import jax_moye
from jax_moye._log import say_once
from jax_moye._primitives import calls, rewriting
from jax_moye._primitives.equations import _REMATS
from jax_moye._primitives.patterns import Program

try:
    from jax.extend.core import check_jaxpr
except ImportError:  # before jax 0.10
    from jax.core import check_jaxpr

M, K, N = 24, 32, 40
# Numbers that bfloat16 and float32 hold.
RATE, MOMENTUM = 0.125, 0.875


def operands(dtype=jnp.float32):
    """x (M,K), w (K,N), v (N,K), and moments of w and v."""
    rng = np.random.default_rng(0)
    shapes = (M, K), (K, N), (N, K), (K, N), (N, K)
    return tuple(jnp.asarray(rng.normal(size=shape) / 4, dtype) for shape in shapes)


def same(fun):
    return fun


def loss_of(wrap):
    layer = wrap(lambda w, v, x: jax.nn.silu(x @ w) @ v)
    return lambda w, v, x: jnp.sum((x + layer(w, v, x)) ** 2)


def sgd(wrap, of_update=same, of_gradient=same):
    update = of_update(lambda p, g: p - RATE * g)

    def step(x, w, v, *unused):
        gradients = of_gradient(jax.grad(loss_of(wrap), (0, 1)))(w, v, x)
        return [update(p, g) for p, g in zip((w, v), gradients, strict=True)]

    return step


def with_momentum(wrap):
    def step(x, w, v, *moments):
        gradients = jax.grad(loss_of(wrap), (0, 1))(w, v, x)
        new = [MOMENTUM * m + g for m, g in zip(moments, gradients, strict=True)]
        return [p - RATE * m for p, m in zip((w, v), new, strict=True)], new

    return step


@jax.custom_vjp
def dense(x, w):
    return x @ w


dense.defvjp(lambda x, w: (x @ w, (x, w)), lambda kept, dy: (dy @ kept[1].T, kept[0].T @ dy))


def by_own_rule(x, w, v, *unused):
    gradients = jax.grad(lambda w, v: jnp.sum(dense(jax.nn.silu(dense(x, w)), v) ** 2), (0, 1))(w, v)
    return [p - RATE * g for p, g in zip((w, v), gradients, strict=True)]


# name -> (function, alpha and beta of its updates)
UPDATE, MOMENT = (-RATE, 1.0), (1.0, MOMENTUM)
STEPS = {
    "one jaxpr": (sgd(same), UPDATE),
    "jit of a layer": (sgd(jax.jit), UPDATE),
    "jit of the gradient": (sgd(same, of_gradient=jax.jit), UPDATE),
    "jit of the update": (sgd(same, of_update=jax.jit), UPDATE),
    "jit of both": (sgd(same, of_update=jax.jit, of_gradient=jax.jit), UPDATE),
    "jit in jit": (sgd(jax.jit, of_gradient=jax.jit), UPDATE),
    "checkpoint": (sgd(jax.checkpoint), UPDATE),
    "checkpoint, and jit of the update": (sgd(jax.checkpoint, of_update=jax.jit), UPDATE),
    "jit in checkpoint": (sgd(lambda f: jax.checkpoint(jax.jit(f))), UPDATE),
    "checkpoint in jit": (sgd(lambda f: jax.jit(jax.checkpoint(f)), of_gradient=jax.jit), UPDATE),
    "checkpoint in checkpoint": (sgd(lambda f: jax.checkpoint(jax.checkpoint(f))), UPDATE),
    "what is saved": (sgd(lambda f: jax.checkpoint(f, policy=jax.checkpoint_policies.dots_saveable)), UPDATE),
    "momentum behind jit": (with_momentum(jax.jit), MOMENT),
    "momentum behind checkpoint": (with_momentum(jax.checkpoint), MOMENT),
    "a rule of one's own": (by_own_rule, UPDATE),
}


def sums(jaxpr):
    """(alpha, beta) of all equations of ours that add an array."""
    found = []
    for equation in jaxpr.eqns:
        params = equation.params
        if equation.primitive.name == "jax_moye_contract" and params["beta"]:
            found.append((1.0, params["beta"]))
        elif equation.primitive.name == "jax_moye_rewritten":
            epilogue = params["epilogue"]
            found += [(epilogue.alpha, epilogue.beta)] * ("c" in dict(epilogue.operands) and not epilogue.is_derivative)
        else:
            for value in params.values():
                inner = getattr(value, "jaxpr", value)
                found += sums(inner) if hasattr(inner, "eqns") else []
    return found


@pytest.mark.parametrize("name", STEPS)
def test_updates_are_found_and_right(name):
    step, expected = STEPS[name]
    args = operands()
    with jax.enable_checks(True):
        closed = jax.make_jaxpr(jax_moye.optimize(step))(*args)
        check_jaxpr(closed.jaxpr)
    assert sums(closed.jaxpr).count(expected) == 2
    with jax.enable_x64(True):
        exact = jax.jit(step)(*(np.asarray(x, np.float64) for x in args))
    for ours in (True, False):
        with jax_moye.options(interpret=True) if ours else jax_moye.options():
            found = jax.jit(jax_moye.optimize(step))(*args)
        for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
            assert one.dtype == jnp.float32
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("name", STEPS)
def test_without_a_kernel_it_is_the_program(name):
    """In 16 bits: as the program with its calls as they are."""
    step, args = STEPS[name][0], operands(jnp.bfloat16)
    with jax_moye.options(implementation="xla"):
        found = jax.jit(jax_moye.optimize(step))(*args)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(jax.jit(step)(*args)), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=2**-7, atol=2**-7)


def test_checkpoints_stay_what_xla_does_not_undo():
    step, args = STEPS["checkpoint"][0], operands()
    texts = [jax.jit(f).lower(*args).as_text() for f in (step, jax_moye.optimize(step))]
    # Beside them there is one of a number, in a derivative (recomputed.py).
    ours, theirs = (re.findall(r"optimization_barrier.* : (tensor<.*>)", text) for text in texts[::-1])
    assert [types for types in ours if types != "tensor<f32>"] == theirs != []
    equations = jax.make_jaxpr(jax_moye.optimize(step))(*args).eqns
    (call,) = (e for e in equations if e.primitive.name in _REMATS)
    assert call.params["differentiated"]
    assert "sub" not in {e.primitive.name for e in equations}


def test_a_cotangent_that_is_added_to_another():
    """That of a residual: it is made before the checkpoint is computed again."""
    layer = jax.checkpoint(lambda w, v, x: jax.nn.silu(x @ w) @ v)
    fun = jax.grad(lambda x, w, v: jnp.sum(lax.cumsum(x + layer(w, v, x)) ** 2))
    x, w, v, *_ = operands()
    closed = jax.make_jaxpr(jax_moye.optimize(fun))(x, w, v)
    assert sums(closed.jaxpr).count((1.0, 1.0)) == 2  # in the forward pass, and here
    np.testing.assert_allclose(jax_moye.optimize(fun)(x, w, v), fun(x, w, v), rtol=1e-5, atol=1e-5)


def test_derivatives_between_two_calls():
    """The forward call hands out relu's choice; the backward call multiplies, and chooses."""
    layer = jax.jit(lambda w, v, x: jax.nn.relu(x @ w) @ v)
    fun = jax.grad(lambda w, v, x: jnp.sum(layer(w, v, x).astype(jnp.float32) ** 2), (0, 1, 2))
    x, w, v, *_ = operands(jnp.bfloat16)
    assert re.findall(r"activation='(d_\w+)'", str(jax.make_jaxpr(jax_moye.optimize(fun))(w, v, x))) == ["d_relu"]
    with jax.enable_x64(True):
        exact = fun(*(np.asarray(a, np.float64) for a in (w, v, x)))
    with jax_moye.options(implementation="moye", interpret=True):
        found = jax.jit(jax_moye.optimize(fun))(w, v, x)
    for one, other in zip(found, exact, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, atol=0.02 * np.abs(other).max())


def _opened(fun, *args):
    """The jaxprs of a program before and after, and after what products take in is chosen."""
    jaxpr = jax.make_jaxpr(fun)(*args).jaxpr
    parameters = jax_moye._api.options.resolve("test").parameters()
    new = calls.with_calls_opened(jaxpr, lambda program: rewriting._chosen(program, parameters).groups, False)
    check_jaxpr(new)
    return jaxpr, new


def _clipped(x, w, v, *unused):
    gradients = sgd_gradients(x, w, v)
    norm = sum(jnp.sum(g**2) for g in gradients)
    return [p - RATE * g for p, g in zip((w, v), gradients, strict=True)], norm


def sgd_gradients(x, w, v):
    return jax.grad(loss_of(jax.checkpoint), (0, 1))(w, v, x)


def _with_a_later_array(x, w, v, *unused):
    """The parameters are made of what the checkpoint makes."""
    of_w, of_v = sgd_gradients(x, w, v)
    return lax.cumsum(w * jnp.sum(of_v)) - RATE * of_w


STAYS = {
    "gradients that others read": _clipped,
    "parameters that are made later": _with_a_later_array,
    "calls of no product": lambda x, *_: jax.jit(lambda x: jax.nn.silu(x) + 1)(x),
    "all in one call": lambda x, w, *_: jax.jit(lambda x, w: jax.nn.relu(x @ w) + 1)(x, w),
    "products that products read": lambda x, w, v, *_: jax.jit(jnp.matmul)(jax.jit(jnp.matmul)(x, w), v),
    "an activation in a call": lambda x, w, *_: jax.nn.silu(x @ w),
    "what is given away": lambda x, w, v, m, *_: m - RATE * jax.jit(jnp.matmul, donate_argnums=0)(x.T, x @ w),
    "another jaxpr's effects": lambda x, w, v, m, *_: m - RATE * jax.jit(_seen)(x.T, x @ w),
    "a loop": lambda x, w, v, *_: lax.scan(lambda c, _: (c @ w @ v, None), x, length=2)[0] - x,
    "a rule for who differentiates": lambda x, w, v, m, *_: x - dense(x @ w, v),
}


def _seen(x, y):
    jax.debug.callback(lambda _: None, x[0, 0])
    return x @ y


@pytest.mark.parametrize("name", STAYS)
def test_what_stays(name):
    before, after = _opened(STAYS[name], *operands())
    assert after is before


def test_calls_beside_stay():
    """Of several calls those are opened that something is taken in across."""
    call = jax.jit(jnp.matmul)
    _, new = _opened(lambda x, w, v, m, n: (m - RATE * call(x.T, x @ w), call(x, w)), *operands())
    assert [e.primitive.name for e in new.eqns].count("jit") + [e.primitive.name for e in new.eqns].count("pjit") == 1
    assert any("jit(matmul)" in str(e.source_info.name_stack) for e in new.eqns)


def test_operands_of_a_checkpoint_that_have_a_barrier_each():
    """prevent_cse may say it of each operand; what comes to them needs none."""
    jaxpr = jax.make_jaxpr(STEPS["checkpoint"][0])(*operands()).jaxpr
    (index,) = (i for i, e in enumerate(jaxpr.eqns) if e.primitive.name in _REMATS)
    call = jaxpr.eqns[index]
    named = call.replace(params={**call.params, "prevent_cse": (True,) * len(call.invars)})
    program = Program([*jaxpr.eqns[:index], named, *jaxpr.eqns[index + 1 :]], jaxpr.outvars)
    behind = [i for i, e in enumerate(jaxpr.eqns) if i > index and e.primitive.name in ("mul", "sub")]
    new = calls._with_equations(program, index, behind)
    assert len(new.params["prevent_cse"]) == len(new.invars)
    assert new.params["prevent_cse"][: len(call.invars)] == (True,) * len(call.invars)
    assert set(new.outvars) >= set(jaxpr.outvars)


def test_differentiated_and_mapped():
    """What has equations of others in it is a checkpoint as before."""
    step = STEPS["checkpoint"][0]
    x, *rest = operands()
    total = lambda f: lambda x: sum(jnp.sum(one**2) for one in f(x, *rest))  # noqa: E731
    found, wanted = (jax.grad(total(f))(x) for f in (jax_moye.optimize(step), step))
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())
    found, wanted = (
        jax.vmap(lambda x, f=f: f(x, *rest))(jnp.stack([x, 2 * x])) for f in (jax_moye.optimize(step), step)
    )
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5 * np.abs(other).max())


def _fail(*args, **kwargs):
    raise RuntimeError("planted")


@pytest.mark.parametrize("name", ["_carried", "_with_equations", "_Flat", "looked_into", "inlined", "_has_update"])
def test_one_that_fails_leaves_the_program_and_warns_once(name, monkeypatch, caplog):
    step = sgd(lambda f: jax.jit(jax.checkpoint(f)), of_update=jax.jit, of_gradient=jax.jit)
    args = operands()
    monkeypatch.setattr(calls, name, _fail)
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jax_moye"):
        for _ in range(2):
            jax.tree.map(np.testing.assert_array_equal, jax.jit(jax_moye.optimize(step))(*args), jax.jit(step)(*args))
    (record,) = caplog.records
    assert "step is run as it is, since rewriting it failed (RuntimeError: planted)" in record.getMessage()
