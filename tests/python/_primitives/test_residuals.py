"""Scans that stack less for their derivatives: what they keep, and that programs compute what they did."""

from __future__ import annotations

import functools
import logging
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

import jax_moye
from jax_moye import _compat
from jax_moye._log import say_once
from jax_moye._primitives import residuals, rewriting, scan_pairs
from jax_moye._primitives.equations import CLOSED_CALL
from jax_moye._primitives.residuals import with_fewer_residuals

try:
    from jax.extend.core import check_jaxpr
except ImportError:  # before jax 0.10
    from jax.core import check_jaxpr

LAYERS, BATCH, WIDTH, INNER = 3, 4, 8, 16
# What is stacked of a block: its input, and what the second layer and the derivative need.
ACTIVATIONS = {
    "gelu": (jax.nn.gelu, 2),
    "gelu with erf": (functools.partial(jax.nn.gelu, approximate=False), 2),
    "silu": (jax.nn.silu, 2),
    "softplus": (jax.nn.softplus, 2),
    "tanh": (jnp.tanh, 2),
    "relu": (jax.nn.relu, 2),
    "jit inside": (jax.jit(lambda z: z * jnp.tanh(z) ** 2), 2),
    "jit of a product inside": (jax.jit(lambda z: jax.nn.gelu(z @ jnp.ones((INNER, INNER), z.dtype))), 2),
    "softmax": (jax.nn.softmax, 3),
}


@pytest.fixture(autouse=True)
def checked():
    with jax.enable_checks(True):
        yield


def jaxpr_of(fun, *args):
    """The program as JAX makes it: its own steps, of many more equations than ours, need no check."""
    with jax.enable_checks(False):
        return jax.make_jaxpr(fun)(*args)


def weights(dtype=jnp.float32, layers=LAYERS, seed=0):
    """x (BATCH,WIDTH), and of each layer (WIDTH,INNER), (INNER,), (INNER,WIDTH)."""
    rng = np.random.default_rng(seed)
    shapes = (BATCH, WIDTH), (layers, WIDTH, INNER), (layers, INNER), (layers, INNER, WIDTH)
    x, *blocks = (jnp.asarray((rng.normal(size=shape) / 3).astype(jnp.dtype(dtype))) for shape in shapes)
    return x, tuple(blocks)


def loss_of(activation, remat=False, **of_scan):
    def block(x, weights):
        up, bias, down = weights
        return x + activation(x @ up + bias) @ down, None

    def loss(x, blocks):
        return jnp.sum(lax.scan(jax.checkpoint(block) if remat else block, x, blocks, **of_scan)[0] ** 2)

    return loss


def traced(fun, *args):
    """The jaxprs of a function: as it is, and with fewer residuals."""
    closed = jaxpr_of(fun, *args)
    new = closed.replace(jaxpr=with_fewer_residuals(closed.jaxpr))
    check_jaxpr(new.jaxpr)
    return closed, new


def scans(jaxpr):
    return [equation for equation in jaxpr.eqns if equation.primitive.name == "scan"]


def stacked(jaxpr):
    """The types of what the first scan stacks."""
    (first, *_) = scans(jaxpr)
    return stacked_by(first)


def stacked_by(scan):
    return [x.aval for x in scan.outvars[_compat.scan_operands(scan.params).carry :]]


def size(avals):
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in avals)


CALLS = {"jit": "jaxpr", "pjit": "jaxpr", CLOSED_CALL: "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
CALLS |= {"custom_vjp_call": "call_jaxpr"} | dict.fromkeys(("checkpoint", "remat", "remat2"), "jaxpr")


def interpreted(closed, *args):
    """The results, equation by equation, and so without what a compiler makes of several: loops are Python's."""
    jaxpr, consts = getattr(closed, "jaxpr", closed), getattr(closed, "consts", ())
    values = dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *args), strict=True))

    def value(x):
        return x.val if hasattr(x, "val") else values[x]

    for equation in jaxpr.eqns:
        operands, params, name = [value(x) for x in equation.invars], equation.params, equation.primitive.name
        if name == "scan":
            results = loop(operands, **params)
        elif name in CALLS:
            results = interpreted(params[CALLS[name]], *operands)
        else:
            results = equation.primitive.bind(*operands, **params)
            results = results if equation.primitive.multiple_results else [results]
        values |= dict(zip(equation.outvars, results, strict=True))
    return [value(x) for x in jaxpr.outvars]


def loop(operands, *, jaxpr, length, reverse, **params):
    num_consts, num_carry, _ = _compat.scan_operands({**params, "jaxpr": jaxpr, "length": length})
    consts, carry, xs = np.split(np.arange(len(operands)), [num_consts, num_consts + num_carry])
    carry, rows = [operands[i] for i in carry], [None] * length
    for i in reversed(range(length)) if reverse else range(length):
        results = interpreted(jaxpr, *(operands[j] for j in consts), *carry, *(operands[j][i] for j in xs))
        carry, rows[i] = results[:num_carry], results[num_carry:]
    return *carry, *(np.stack([np.asarray(x) for x in column]) for column in zip(*rows, strict=True))


def assert_same(closed, new, *args):
    """The same operations: the same bits."""
    leaves = jax.tree.leaves(args)
    for one, other in zip(interpreted(closed, *leaves), interpreted(new, *leaves), strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(np.asarray(one), np.asarray(other))


def assert_compiled_agree(closed, new, *args, rtol=2e-6):
    """Compiled, values may be rounded at other places. Returns the memory of both for what lives in between."""
    leaves = jax.tree.leaves(args)
    before, after = (jax.jit(jaxpr_as_fun(one)).lower(*leaves).compile() for one in (closed, new))
    for one, other in zip(before(*leaves), after(*leaves), strict=True):
        assert one.dtype == other.dtype
        one, other = np.asarray(one, np.float64), np.asarray(other, np.float64)
        np.testing.assert_allclose(other, one, rtol=rtol, atol=rtol * max(1.0, np.abs(one).max(initial=0)))
    return [one.memory_analysis().temp_size_in_bytes for one in (before, after)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activations(name, dtype):
    activation, count = ACTIVATIONS[name]
    with jax.enable_x64(dtype == "float64"):
        args = weights(dtype)
        closed, new = traced(jax.value_and_grad(loss_of(activation), argnums=(0, 1)), *args)
        assert len(stacked(new)) == count < len(stacked(closed))
        assert size(stacked(new)) < size(stacked(closed))
        assert_same(closed, new, *args)


COMPILED = {"gelu": ("float32", 2e-6), "silu": ("bfloat16", 0.05), "softmax": ("float32", 2e-6)}


@pytest.mark.parametrize("name", COMPILED)
def test_compiled_in_less_memory(name):
    dtype, rtol = COMPILED[name]
    args = weights(dtype, layers=8)
    closed, new = traced(jax.value_and_grad(loss_of(ACTIVATIONS[name][0]), argnums=(0, 1)), *args)
    before, after = assert_compiled_agree(closed, new, *args, rtol=rtol)
    assert after < before


OF_SCAN = {
    "backwards": {"reverse": True},
    "unrolled": {"unroll": 2},
    "all unrolled": {"unroll": True},
}


@pytest.mark.parametrize("name", OF_SCAN)
def test_parameters_of_scan_stay(name):
    args = weights()
    closed, new = traced(jax.grad(loss_of(jax.nn.gelu, **OF_SCAN[name]), argnums=(0, 1)), *args)
    assert len(stacked(new)) == 2
    for one, other in zip(scans(closed), scans(new), strict=True):
        changed = {"jaxpr", "num_consts", "linear", "ft_in", "ft_out"}
        assert one.params.keys() == other.params.keys()
        assert all(other.params[name] == value for name, value in one.params.items() if name not in changed)
        assert one.source_info is other.source_info
        assert one.ctx is other.ctx
    assert_same(closed, new, *args)


def _wants_them(x, blocks):
    """The loss, and each layer's pre-activation and derivative of it."""

    def block(x, weights):
        up, bias, down = weights
        z = x @ up + bias
        return x + jnp.tanh(z) @ down, (z, 1 - jnp.tanh(z))

    x, kept = lax.scan(block, x, blocks)
    return jnp.sum(x**2), kept


def _with_constants(x, blocks):
    scale, shift = x[0, 0], x[:1, :]

    def block(carry, weights):
        i, x = carry
        up, _, down = weights
        z = (scale * x + shift) @ up
        return (i + 1, x + jax.nn.gelu(z * i.astype(z.dtype)) @ down), None

    return jnp.sum(lax.scan(block, (jnp.int32(1), x), blocks)[0][1] ** 2)


def _nested(x, blocks):
    def outer(x, scale):
        def block(x, weights):
            up, bias, down = weights
            return x + jax.nn.gelu(scale * (x @ up + bias)) @ down, None

        return jax.nn.gelu(lax.scan(block, x, blocks)[0]), None

    return jnp.sum(lax.scan(outer, x, jnp.arange(1.0, 3.0, dtype=x.dtype))[0] ** 2)


def _sum_of_gradients(x, blocks):
    """Gradients in a loop, as of parts of a batch."""
    gradient = jax.grad(loss_of(jax.nn.gelu), argnums=1)
    zero = jax.tree.map(jnp.zeros_like, blocks)
    return lax.scan(lambda sum_, part: (jax.tree.map(jnp.add, sum_, gradient(part, blocks)), None), zero, x[:, None])[0]


def _with_arrays(x, blocks):
    """Arrays that it does not get as arguments, inside the loop and outside; a message from inside."""
    inside = np.linspace(0.5, 2, INNER, dtype=np.float32)
    outside = jnp.asarray(np.linspace(-1, 1, WIDTH, dtype=np.float32))

    def activation(z):
        jax.debug.callback(lambda _: None, z[0, 0])
        return jax.nn.gelu(z * inside)

    return loss_of(activation)(x + outside, blocks)


PROGRAMS = {
    "arrays of its own, and effects": jax.grad(_with_arrays, argnums=(0, 1)),
    "a loop around a derivative": _sum_of_gradients,
    "constants and two carries": jax.grad(_with_constants, argnums=(0, 1)),
    "the program wants some": jax.value_and_grad(_wants_them, argnums=(0, 1), has_aux=True),
    "loops in loops": jax.grad(_nested, argnums=(0, 1)),
    "vmap": jax.vmap(jax.grad(loss_of(jax.nn.gelu), argnums=(0, 1)), in_axes=(0, None)),
    "vmap of weights": lambda x, blocks: jax.vmap(jax.grad(loss_of(jax.nn.silu)))(x[None], _more(blocks)),
    "a call": jax.grad(jax.jit(loss_of(jax.nn.gelu)), argnums=(0, 1)),
    "a call in a call": jax.grad(jax.jit(jax.jit(loss_of(jax.nn.gelu))), argnums=(0, 1)),
    "a call around it": jax.jit(jax.grad(loss_of(jax.nn.gelu), argnums=(0, 1))),
    "checkpoint inside": jax.grad(loss_of(jax.nn.gelu, remat=True), argnums=(0, 1)),
    "checkpoint around it": jax.grad(jax.checkpoint(loss_of(jax.nn.gelu)), argnums=(0, 1)),
    "the second derivative": jax.grad(lambda x, blocks: jnp.sum(jax.grad(loss_of(jnp.tanh))(x, blocks) ** 2)),
    "a Hessian's product": lambda x, blocks: jax.jvp(lambda x: jax.grad(loss_of(jax.nn.gelu))(x, blocks), (x,), (x,)),
    "in a branch": lambda x, blocks: lax.cond(
        x[0, 0] > 0, jax.grad(loss_of(jax.nn.gelu)), lambda x, blocks: x, x, blocks
    ),
    "dtypes": lambda x, blocks: jax.grad(loss_of(lambda z: jax.nn.gelu(z.astype(jnp.float32)).astype(z.dtype)))(
        x.astype(jnp.bfloat16), jax.tree.map(lambda w: w.astype(jnp.bfloat16), blocks)
    ),
}


def _more(blocks):
    return jax.tree.map(lambda w: w[None], blocks)


def args_of(name):
    x, blocks = weights()
    return (x[:, None], blocks) if name == "vmap" else (x, blocks)


@pytest.fixture
def fewer(monkeypatch):
    """What rewrites programs, those inside of equations too, but not their products."""
    for name in ("chain_from", "pair_from"):
        monkeypatch.setattr(rewriting, name, lambda *_: None)

    def rewrite(closed):
        new = rewriting.rewritten(closed, {})
        check_jaxpr(new.jaxpr)
        return new

    return rewrite


# What a loop passes on is a loop's in a loop, or what checkpoint keeps: that stays.
SAME = ("checkpoint inside",)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, fewer):
    args = args_of(name)
    closed = jaxpr_of(PROGRAMS[name], *args)
    new = fewer(closed)
    before, after = (_all_stacked(one.jaxpr) for one in (closed, new))
    assert after == before if name in SAME else after < before
    assert_same(closed, new, *args)


def test_with_products_rewritten():
    x, blocks = weights()
    step = jax.value_and_grad(loss_of(jax.nn.gelu), argnums=(0, 1))
    closed, new = jaxpr_of(step, x, blocks), jax.make_jaxpr(jax_moye.optimize(step))(x, blocks)
    assert _all_stacked(new.jaxpr) < _all_stacked(closed.jaxpr)
    assert_compiled_agree(closed, new, x, blocks)


def _all_stacked(jaxpr):
    """Bytes of what all scans stack, those inside of equations too."""
    total = 0
    for equation in jaxpr.eqns:
        if equation.primitive.name == "scan":
            total += size(stacked_by(equation))
        for value in equation.params.values():
            for one in value if isinstance(value, tuple) else (value,):
                inner = getattr(one, "jaxpr", one)
                total += _all_stacked(inner) if hasattr(inner, "eqns") else 0
    return total


def test_what_the_program_wants_stays():
    closed, new = traced(PROGRAMS["the program wants some"], *weights())
    (first, *_), (before, *_) = scans(new), scans(closed)
    wanted = [x for x in closed.jaxpr.outvars if x in before.outvars]
    assert len(wanted) == 2
    assert set(wanted) <= set(first.outvars)
    assert len(stacked(new)) == 3  # and the input of the block


def test_loops_in_loops_pass_on_what_they_would_alone():
    """An inner loop's two values of a layer, and not all that its activation is made of."""
    jaxpr = jaxpr_of(PROGRAMS["loops in loops"], *weights()).jaxpr
    both = lambda one: with_fewer_residuals(one, both)  # noqa: E731
    of_layers = [
        [x for one in scans(new) for x in stacked_by(one) if x.shape[:3] == (2, LAYERS, BATCH)]
        for new in (with_fewer_residuals(jaxpr), both(jaxpr))
    ]
    assert [sorted({x.shape[3] for x in avals}) for avals in of_layers] == [[WIDTH, INNER]] * 2
    assert len(of_layers[0]) > 4
    assert len(of_layers[1]) == 2


def test_what_another_equation_reads_stays():
    x, blocks = weights()

    def fun(x, blocks):
        def block(x, weights):
            z = x @ weights[0]
            y = jnp.tanh(z)
            return x + y @ weights[2], (z, y, 1 - y)

        x, (z, y, slope) = lax.scan(block, x, blocks)
        total = lax.scan(lambda c, two: (c + two[0] * two[1], None), jnp.zeros_like(z[0]), (z, slope))[0]
        return x, total, y.sum()

    closed, new = traced(fun, x, blocks)
    (first, _), (before, _) = scans(new), scans(closed)
    z, y, slope = before.outvars[1:]
    assert {y, z} <= {*first.outvars}
    assert slope not in first.outvars
    assert_same(closed, new, x, blocks)


NOTHING = {
    "no derivative": lambda x, blocks: lax.scan(lambda c, w: (c + w[1][:WIDTH], jnp.tanh(c)), x, blocks),
    "nothing follows": lambda x, blocks: jax.grad(
        lambda x: jnp.sum(lax.scan(lambda c, w: (jnp.sin(c @ w[0]) @ w[2], jnp.sin(c).sum()), x, blocks)[0])
    )(x),
    "other lengths": lambda x, blocks: _two_lengths(x, blocks),
    "read in another order": lambda x, blocks: _reversed(x, blocks),
    "a constant of the other loop": lambda x, blocks: _as_constant(x, blocks),
}


def _two(x, blocks):
    return lax.scan(lambda c, w: (c @ w[0] @ w[2], (c @ w[0], jnp.tanh(c @ w[0]))), x, blocks)[1]


def _two_lengths(x, blocks):
    z, y = (one.reshape(-1, INNER) for one in _two(x, blocks))
    return lax.scan(lambda c, both: (c + both[0] * both[1], None), jnp.zeros(INNER), (z, y))[0]


def _reversed(x, blocks):
    z, y = _two(x, blocks)
    return lax.scan(lambda c, both: (c + both[0] * both[1], None), jnp.zeros_like(z[0]), (z, y[::-1]))[0]


def _as_constant(x, blocks):
    z, y = _two(x, blocks)
    return lax.scan(lambda c, one: (c + one * y[0] + y.sum(), None), jnp.zeros_like(z[0]), z)[0]


@pytest.mark.parametrize("name", NOTHING)
def test_nothing_to_win(name):
    closed = jaxpr_of(NOTHING[name], *weights())
    assert with_fewer_residuals(closed.jaxpr) is closed.jaxpr


def test_symbolic_sizes_stay():
    (batch,) = jax.export.symbolic_shape("b")
    x, blocks = weights()
    fun = jax.jit(jax_moye.optimize(jax.grad(loss_of(jax.nn.gelu))))
    exported = jax.export.export(fun)(jax.ShapeDtypeStruct((batch, WIDTH), x.dtype), blocks)
    np.testing.assert_allclose(
        exported.call(x, blocks), jax.grad(loss_of(jax.nn.gelu))(x, blocks), rtol=1e-5, atol=1e-5
    )


def test_an_intermediate_value_in_the_place_of_two():
    """Neither is read by the other: both follow from a third, which nobody stacked."""

    def fun(x, blocks):
        def block(x, weights):
            z = x @ weights[0]
            return x + z @ weights[2], (jnp.sin(z), jnp.exp(z))

        x, kept = lax.scan(block, x, blocks)
        return x, lax.scan(lambda c, two: (c + two[0] * two[1], None), jnp.zeros_like(kept[0][0]), kept)[0]

    closed, new = traced(fun, *weights())
    assert [len(stacked(one)) for one in (closed, new)] == [2, 1]
    assert not {one.primitive.name for one in scans(new)[0].params["jaxpr"].eqns} & {"sin", "exp"}
    assert_same(closed, new, *weights())


def test_stacked_inputs_are_read_where_that_costs_less():
    """bf16 copies of float32 weights stay; what is as large as a weight is computed of it."""

    def fun(x, weights, dtype):
        def block(x, w):
            w = jnp.sin(w).astype(dtype)
            return x + (x.astype(dtype) @ w).astype(x.dtype), None

        return jnp.sum(lax.scan(block, x, weights)[0])

    rng = np.random.default_rng(0)
    x, w = jnp.asarray(rng.normal(size=(2, WIDTH)), jnp.float32), jnp.asarray(rng.normal(size=(3, WIDTH, WIDTH)))
    for dtype, kept in ((jnp.float32, False), (jnp.bfloat16, True)):
        closed, new = traced(jax.grad(functools.partial(fun, dtype=dtype)), x, w)
        assert any(one.shape == w.shape for one in stacked(closed))
        assert any(one.shape == w.shape for one in stacked(new)) == kept
        assert_same(closed, new, x, w)


def test_names_and_calls_return_what_is_read():
    _, new = traced(jax.grad(loss_of(jax.nn.silu)), *weights())
    calls = [[e for e in s.params["jaxpr"].eqns if e.primitive.name == "jit"] for s in scans(new)]
    (first,), (second, _) = calls
    assert first.params["name"] == second.params["name"] == "silu"
    assert len(first.outvars) == 1 == len(first.params["out_shardings"])
    inside = jaxpr_of(jax.grad(loss_of(ACTIVATIONS["jit of a product inside"][0])), *weights()).jaxpr
    (body, *_) = (one.params["jaxpr"] for one in scans(with_fewer_residuals(inside)))
    assert any("jit(<lambda>)" in str(one.source_info.name_stack) for one in body.eqns)


OPERATIONS = (
    jnp.tanh, jax.nn.gelu, jax.nn.silu, jax.nn.relu, jnp.sin, jnp.square, jax.nn.sigmoid, jnp.abs, jax.nn.softmax,
    lambda z: z * 0.5, lambda z: jnp.where(z > 0, z, 0.1 * z), lambda z: jnp.maximum(z, -1.0), jax.jit(jnp.tanh),
    lambda z: z - z.mean(-1, keepdims=True), lambda z: z.T.reshape(z.shape), jnp.cumsum,
    lambda z: z * lax.rsqrt(jnp.mean(z * z) + 1.0),
    lambda z: z.astype(jnp.float32).astype(z.dtype), jax.jit(lambda z: jnp.var(z, -1, keepdims=True) + z),
    jax.checkpoint(lambda z: jnp.exp(jnp.sin(z))), lambda z: jax.nn.gelu(z, approximate=False),
)  # fmt: skip


def random_program(seed):
    """A function of (BATCH,WIDTH) and weights with scans, whose derivative is taken, and its arguments."""
    rng = np.random.default_rng(seed)
    loops = []
    for _ in range(rng.integers(1, 3)):
        chosen = [(OPERATIONS[i], rng.random() < 0.3) for i in rng.integers(0, len(OPERATIONS), rng.integers(2, 6))]
        options = {"reverse": bool(rng.random() < 0.3), "unroll": int(rng.integers(1, 3))}
        loops.append((chosen, options, *(bool(rng.random() < 0.3) for _ in range(4))))

    def loop(x, blocks, chosen, options, wants, remat, is_jit, is_nested):
        scale = x[0, :1]

        def block(carry, weights):
            n, x = carry
            z, kept = x, None
            for step, (operation, is_product) in enumerate(chosen):
                if is_product:
                    z = (z @ weights[0] + weights[1]) @ weights[2]
                new = operation(z).reshape(z.shape) * scale
                z, kept = new + (n if step == 1 else z), z
            if is_nested:
                z = lax.scan(lambda c, w: (jnp.tanh(c * w), None), z, weights[1][:2])[0]
            return (n * 0.9, 0.5 * x + z / (1 + jnp.abs(z))), kept if wants else None

        block = jax.checkpoint(block) if remat else block
        run = jax.jit(lambda *args: lax.scan(block, *args, **options)) if is_jit else None
        (_, x), kept = (run or functools.partial(lax.scan, block, **options))((jnp.ones((), x.dtype), x), blocks)
        return x, 0.0 if kept is None else jnp.sum(kept[0] * 0.1)

    def loss(x, blocks):
        total = 0.0
        for one in loops:
            x, more = loop(x, blocks, *one)
            total = total + more
        return total + jnp.sum(x * x)

    gradient = jax.value_and_grad(loss, argnums=(0, 1))
    return jax.jit(gradient) if rng.random() < 0.2 else gradient


@pytest.mark.parametrize("first", range(0, 100, 10))
def test_random_programs(first, fewer):
    count = 0
    for seed in range(first, first + 10):
        args = weights(seed=seed)
        closed = jaxpr_of(random_program(seed), *args)
        new = fewer(closed)
        before, after = (_all_stacked(one.jaxpr) for one in (closed, new))
        assert after <= before, seed
        count += after < before
        assert_same(closed, new, *args)
    assert count >= 5


def _fail(*args, **kwargs):
    raise RuntimeError("planted")


REWRITES = {
    **{name: (residuals, name) for name in ("_changes", "_reading", "_passing", "minimal_cut", "unmapped_aval")},
    **{name: (scan_pairs, name) for name in ("Constants", "inlined", "looked_into")},
    "pairs": (residuals, "rewritten_pair"),
    **{name: (residuals._Residuals, name) for name in ("ways", "_look")},
    "what is dead": (_compat, "without_dead_code"),
    "all of it": (rewriting, "with_fewer_residuals"),
}


def _new_step():
    def step(x, blocks):
        both = jax.nn.leaky_relu, jax.nn.silu
        return jax.tree.map(jnp.add, *(jax.grad(loss_of(one), argnums=(0, 1))(x, blocks) for one in both))

    return step


@functools.cache
def _of_plain_step():
    return jax.tree.map(np.asarray, jax.jit(_new_step())(*weights()))


@pytest.mark.parametrize("name", REWRITES)
def test_one_that_fails_leaves_the_program_and_warns_once(name, monkeypatch, caplog):
    step, args, expected = _new_step(), weights(), _of_plain_step()
    monkeypatch.setattr(*REWRITES[name], _fail)
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "jax_moye"):
        for _ in range(2):
            jax.tree.map(np.testing.assert_array_equal, jax.jit(jax_moye.optimize(step))(*args), expected)
    (record,) = caplog.records
    assert "step is run as it is, since rewriting it failed (RuntimeError: planted)" in record.getMessage()
