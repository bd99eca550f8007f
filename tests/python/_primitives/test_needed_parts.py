"""Products of which a program reads a part: what is computed of them, and that nothing else changes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import jaxpr_as_fun

import jax_moye
from jax_moye._primitives import needed_parts
from jax_moye._primitives.needed_parts import _reshaped, with_needed_parts
from jax_moye._primitives.patterns import aval_of

BATCH, TOKENS, WIDTH, HEADS, INNER = 2, 8, 16, 2, 32


@pytest.fixture
def array(rng):
    return lambda *shape: jnp.asarray(rng.standard_normal(shape), jnp.float32)


def products_of(jaxpr):
    """The shapes of results of products, in their order."""
    return [aval_of(one.outvars[0]).shape for one in jaxpr.eqns if one.primitive.name in needed_parts._PRODUCTS]


def changed(fun, *args):
    """The products of a program that computes the same, which this asserts; None where the program stays."""
    closed = jax.make_jaxpr(fun)(*args)
    after = with_needed_parts(closed.jaxpr)
    assert [aval_of(x) for x in after.invars] == closed.in_avals
    assert [aval_of(x) for x in after.outvars] == closed.out_avals
    results = jaxpr_as_fun(closed.replace(jaxpr=after))(*args)
    for one, other in zip(jax.tree.leaves(fun(*args)), results, strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), np.asarray(other, np.float64), rtol=1e-5, atol=1e-5)
    return None if after is closed.jaxpr else products_of(after)


def heads_of(x, qkv):
    q, k, v = jnp.split((x @ qkv).reshape(*x.shape[:2], 3, HEADS, WIDTH // HEADS), 3, axis=2)
    return q[:, :, 0], k[:, :, 0], v[:, :, 0]


def attention(q, k, v, mask=None):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    shares = jax.nn.softmax(scores if mask is None else jnp.where(mask, scores, -1e30))
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(*q.shape[:2], -1)


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.gelu, jax.nn.silu, jnp.tanh])
def test_the_last_token_of_a_layer_and_of_logits(activation, array):
    def last(x, w, v, head):
        return ((x + activation(x @ w) @ v) @ head)[:, -1]

    args = array(BATCH, TOKENS, WIDTH), array(WIDTH, INNER), array(INNER, WIDTH), array(WIDTH, 24)
    assert changed(last, *args) == [(BATCH, 1, INNER), (BATCH, 1, WIDTH), (BATCH, 1, 24)]


@pytest.mark.parametrize("token", [0, -1])
def test_the_last_block_of_a_model_computes_one_token(token, array):
    """But for its keys and values. The block in front of it stays."""
    mask = jnp.tril(jnp.ones((TOKENS, TOKENS), bool))

    def block(x, qkv, out, up, down):
        normed = x * jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
        x = x + attention(*heads_of(normed, qkv), mask) @ out
        return x + jax.nn.relu(x @ up) @ down

    def model(x, *weights):
        return block(block(x, *weights), *weights)[:, token]

    weights = array(WIDTH, 3 * WIDTH), array(WIDTH, WIDTH), array(WIDTH, INNER), array(INNER, WIDTH)
    whole = [(BATCH, TOKENS, 3 * WIDTH), (BATCH, HEADS, TOKENS, TOKENS), (BATCH, HEADS, WIDTH // HEADS, TOKENS)]
    whole += [(BATCH, TOKENS, WIDTH), (BATCH, TOKENS, INNER), (BATCH, TOKENS, WIDTH)]
    one = [whole[0], (BATCH, HEADS, 1, TOKENS), (BATCH, HEADS, WIDTH // HEADS, 1)]
    one += [(BATCH, 1, WIDTH), (BATCH, 1, INNER), (BATCH, 1, WIDTH)]
    assert changed(model, array(BATCH, TOKENS, WIDTH), *weights) == [*whole, *one]


def test_queries_alone_of_a_product_for_queries_keys_and_values(array):
    """A decoder whose caches hold the keys and values: the weights of the others are not read."""

    def decode(x, qkv, keys, values):
        return attention(heads_of(x, qkv)[0], keys, values)

    args = array(BATCH, 1, WIDTH), array(WIDTH, 3 * WIDTH), *(array(BATCH, 9, HEADS, WIDTH // HEADS) for _ in "kv")
    assert changed(decode, *args)[0] == (BATCH, 1, WIDTH)


def test_parts_of_what_a_program_is_given_stay_with_several_devices(array, monkeypatch):
    """Parameters may be sharded along what would be sliced; what is computed of them may be sliced as it was."""
    x, w = array(BATCH, TOKENS, WIDTH), array(WIDTH, INNER)

    def first(x, w):
        return (x.astype(jnp.bfloat16).astype(jnp.float32) @ w)[..., :8]

    def last(x, w):
        return (jax.nn.relu(x @ w[:, :WIDTH]) @ w)[:, -1]

    def dequantized(x, w):
        return (x @ (w * jnp.abs(w)))[..., :8]

    assert changed(first, x, w) == [(BATCH, TOKENS, 8)]
    monkeypatch.setattr(jax, "device_count", lambda: 2)
    assert changed(first, x, w) is None
    assert changed(dequantized, x, w) is None
    assert changed(last, x, w) == [(BATCH, TOKENS, WIDTH), (BATCH, 1, INNER)]


def test_nothing_is_won_where_more_than_half_is_read(array):
    """As of logits for all tokens but the last, whose rows would not lie one behind the other."""
    x, w = array(BATCH, TOKENS, WIDTH), array(WIDTH, INNER)
    assert changed(lambda x, w: (x @ w)[:, :-1], x, w) is None
    assert changed(lambda x, w: ((x @ w)[:, :2], (x @ w)[:, 6:]), x, w) == [(BATCH, 2, INNER), (BATCH, 2, INNER)]

    def both(x, w):
        y = x @ w
        return y[:, 0], y[:, -1]

    assert changed(both, x, w) is None
    assert changed(lambda x, w: (x @ w, (x @ w)[:, -1])[0], x, w) is None  # the other one nobody asked for


def test_derivatives_are_those_of_the_program(array):
    """Also where a function has a rule of its own: relu's at 0 is 0."""
    x, w, v = jnp.zeros((BATCH, TOKENS, WIDTH)), array(WIDTH, INNER), array(INNER, WIDTH)

    def last(x, w, v):
        return (x + jax.nn.relu(x @ w) @ v)[:, -1]

    closed = jax.make_jaxpr(last)(x, w, v)
    after = jaxpr_as_fun(closed.replace(jaxpr=with_needed_parts(closed.jaxpr)))
    for given in (x, x + 1.0):
        expected = jax.grad(lambda *args: jnp.sum(last(*args) ** 2 + last(*args)), (0, 1, 2))(given, w, v)
        found = jax.grad(lambda *args: jnp.sum(after(*args)[0] ** 2 + after(*args)[0]), (0, 1, 2))(given, w, v)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    both = jnp.stack([x, x + 1.0])
    for fun in (last, lambda *args: after(*args)[0]):
        mapped = jax.vmap(lambda y, fun=fun: fun(y, w, v))
        found = jax.jvp(mapped, (both,), (both + 1.0,))
        expected = jax.jvp(mapped, (both,), (both + 1.0,)) if fun is last else expected
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_loops_effects_and_unknown_equations_read_all(array):
    x, w = array(BATCH, TOKENS, WIDTH), array(WIDTH, WIDTH)
    looped = lambda x, w: jax.lax.fori_loop(0, 2, lambda _, y: y @ w, x)[:, -1]  # noqa: E731
    assert changed(looped, x, w) is None
    assert changed(lambda x, w: jnp.sort(x @ w, axis=1)[:, -1], x, w) is None

    def printed(x, w):
        y = x @ w
        jax.debug.callback(lambda _: None, y)
        return (y @ w)[:, -1]

    assert changed(printed, x, w) == [(BATCH, TOKENS, WIDTH), (BATCH, 1, WIDTH)]


def ranked(x):
    """A function with a rule of its own, and a result that has no tangent."""
    fun = jax.custom_jvp(lambda x: (x * 2.0, jnp.sign(x).astype(jnp.int32)))
    fun.defjvps(lambda t, _, x: (t * 2.0, np.zeros(x.shape, jax.dtypes.float0)))
    return fun(x)[0]


@jax.custom_vjp
def doubled(x):
    return x * 2.0


doubled.defvjp(lambda x: (x * 2.0, None), lambda _, t: (t * 2.0,))
STAYS = {
    "checkpoint": jax.checkpoint(jnp.tanh),
    "custom_vjp": doubled,
    "an integer beside": ranked,
    "gather": lambda x: x[jnp.arange(BATCH)[::-1]],
    "scatter": lambda x: x.at[jnp.arange(BATCH)].add(1.0),
    "convolution": lambda x: jax.lax.conv_general_dilated(
        x, jnp.ones((INNER, INNER, 3)), (1,), "SAME", dimension_numbers=("NHC", "OIH", "NHC")
    ),
    "cond": lambda x: jax.lax.cond(jnp.sum(x) > 0, jnp.sin, jnp.cos, x),
}


@pytest.mark.parametrize("name", STAYS)
def test_what_reads_all_of_a_product(name, array):
    x, w = 0.1 * array(BATCH, TOKENS, WIDTH), 0.1 * array(WIDTH, INNER)
    assert changed(lambda x, w: STAYS[name](x @ w)[:, -1], x, w) is None


def test_slices_that_begin_at_numbers(array):
    x, w = array(BATCH, TOKENS, WIDTH), array(WIDTH, INNER)

    def at(*starts):
        return lambda x, w: jax.lax.dynamic_slice(x @ w, starts, (BATCH, 2, INNER))

    assert changed(at(0, 3, 0), x, w) == [(BATCH, 2, INNER)]
    assert changed(at(0, TOKENS, 0), x, w) == [(BATCH, 2, INNER)]  # the last two
    assert changed(lambda x, w, i: at(0, i, 0)(x, w), x, w, 3) is None
    assert changed(lambda x, w: (x @ w)[:, ::3], x, w) is None


def test_our_own_products(array):
    x, w = array(BATCH, TOKENS, WIDTH), array(WIDTH, INNER)
    assert changed(lambda x, w: jax_moye.matmul(x, w)[:, -1], x, w) == [(BATCH, 1, INNER)]
    text = str(jax.make_jaxpr(jax_moye.optimize(lambda x, w: (x @ w)[:, -1]))(x, w))
    assert f"f32[{BATCH},1,{INNER}] = jax_moye_viewed" in text  # which reads the rows where they are


@pytest.mark.parametrize(
    ("box", "of", "to", "expected"),
    [
        (((0, 2), (3, 4)), (2, 8), (2, 8, 1), ((0, 2), (3, 4), (0, 1))),
        (((0, 2), (16, 32)), (2, 48), (2, 3, 2, 8), ((0, 2), (1, 2), (0, 2), (0, 8))),
        (((0, 2), (1, 2), (0, 2), (0, 8)), (2, 3, 2, 8), (2, 48), ((0, 2), (16, 32))),
        (((0, 2), (1, 3), (0, 2), (0, 8)), (2, 3, 2, 8), (2, 48), ((0, 2), (16, 48))),
        (((0, 2), (1, 2), (1, 2), (2, 6)), (2, 3, 2, 8), (2, 48), ((0, 2), (26, 30))),
        (((0, 2), (26, 30)), (2, 48), (2, 3, 2, 8), ((0, 2), (1, 2), (1, 2), (2, 6))),
        (((0, 2), (26, 34)), (2, 48), (2, 3, 2, 8), None),
        (((0, 2), (0, 3), (0, 1), (0, 8)), (2, 3, 2, 8), (2, 48), None),
        (((1, 2), (0, 8)), (2, 8), (16,), ((8, 16),)),
        (((0, 1), (0, 8)), (1, 8), (8,), ((0, 8),)),
        (((4, 8),), (8,), (1, 2, 4), ((0, 1), (1, 2), (0, 4))),
        (((0, 4), (0, 0)), (4, 0), (0, 4), None),
    ],
)
def test_boxes_of_other_shapes(box, of, to, expected):
    assert _reshaped(box, of, to) == expected
    if expected is not None:
        numbers = np.arange(np.prod(of)).reshape(of)
        taken = numbers[tuple(slice(*one) for one in box)]
        sizes = [limit - start for start, limit in expected]
        np.testing.assert_array_equal(numbers.reshape(to)[tuple(slice(*one) for one in expected)], taken.reshape(sizes))


def _random_program(rng):
    """A function of an array of three dimensions and weights, whose end reads a part."""
    names = ("product", "add", "norm", "transposed", "heads", "joined", "flipped", "softmax", "sum")
    steps = [rng.choice(names) for _ in range(rng.integers(3, 9))]
    start = int(rng.integers(0, TOKENS // 2))
    size, dim = int(rng.integers(1, TOKENS // 2)), int(rng.integers(1, 3))

    def fun(x, w, u):
        kept = x
        for step in steps:
            if step == "product":
                x = jax.nn.relu(x @ w) @ u
            elif step == "add":
                x = x + kept * 0.5
            elif step == "norm":
                kept = x = x / (1.0 + jnp.max(jnp.abs(x), -1, keepdims=True))
            elif step == "transposed":
                x = jnp.swapaxes(jnp.swapaxes(x, 0, 1) * 0.5, 0, 1)
            elif step == "heads":
                x = jnp.moveaxis(jnp.moveaxis(x.reshape(*x.shape[:2], HEADS, -1), 2, 1) * 0.5, 1, 2).reshape(x.shape)
            elif step == "joined":
                x = jnp.concatenate([x[:, :3], x[:, 3:] * 2.0], axis=1)
            elif step == "flipped":
                x = x[:, :, ::-1]
            elif step == "softmax":
                x = attention(*(x.reshape(*x.shape[:2], HEADS, -1) for _ in "qkv"))
            else:
                x = x - jnp.mean(x, axis=1, keepdims=True)
        return jax.lax.slice_in_dim(x, start, start + size, axis=dim)

    return fun


@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed, array):
    fun = _random_program(np.random.default_rng(seed))
    args = array(BATCH, TOKENS, WIDTH), 0.3 * array(WIDTH, INNER), 0.3 * array(INNER, WIDTH)
    changed(fun, *args)
    found = jax_moye.optimize(fun)(*args)
    np.testing.assert_allclose(found, fun(*args), rtol=1e-5, atol=1e-5)


def test_random_programs_change():
    """So that the test above is one."""
    args = jnp.ones((BATCH, TOKENS, WIDTH)), jnp.ones((WIDTH, INNER)), jnp.ones((INNER, WIDTH))
    closed = [jax.make_jaxpr(_random_program(np.random.default_rng(seed)))(*args) for seed in range(40)]
    assert sum(with_needed_parts(one.jaxpr) is not one.jaxpr for one in closed) >= 12
