"""Numbers that float32 queries are multiplied by, moved to the scores, and products by ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attentions import FORMS, B, D, H, S, T, assert_as_exact, counts, exact, gradients, operands, use_fake_rows

import jax_moye
from jax_moye import _compat
from jax_moye._primitives.attention_moved import with_factors_at_scores, without_ones

scaled = FORMS["scaled in f32"]


@pytest.fixture(autouse=True)
def fake_rows(monkeypatch):
    use_fake_rows(monkeypatch)


def jaxpr_of(fun, *args):
    return jax.make_jaxpr(fun)(*args).jaxpr


def names_of(jaxpr):
    return [equation.primitive.name for equation in jaxpr.eqns]


@pytest.mark.parametrize("head_dim", [16, 24])
@pytest.mark.parametrize("form", ["scaled in f32", "of all heads"])
def test_any_scale(rng, form, head_dim):
    """No power of two either: what is left to the program's equations is as precise as it was."""
    args = operands(rng, (B, T, S, H, H, head_dim))
    fun = gradients(FORMS[form], True)
    assert counts(jax_moye.optimize(fun), *args) == (1, 1, 0)
    before, after = jax.jit(fun)(*args), jax.jit(jax_moye.optimize(fun))(*args)
    assert_as_exact(after, before, exact(*args, True), jnp.bfloat16)


@pytest.mark.parametrize("form", ["scaled in f32", "of all heads"])
def test_in_shard_map(rng, form):
    """What is made anew varies over the mesh's axes as what it is made of."""
    spec, args = jax.sharding.PartitionSpec("x"), operands(rng)
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    inner = gradients(FORMS[form], True)
    fun = jax.shard_map(inner, mesh=mesh, in_specs=(spec,) * 4, out_specs=(spec,) * 4)
    assert counts(jax_moye.optimize(fun), *args) == (1, 1, 0)
    before, after = jax.jit(fun)(*args), jax.jit(jax_moye.optimize(fun))(*args)
    assert_as_exact(after, before, exact(*args, True), jnp.bfloat16)


def test_keys_too(rng):
    """Both are multiplied, by one array of a number each."""

    def fun(q, k, v, causal):
        q, k = q.astype(jnp.float32) * 0.5, jnp.full((), 0.5) * k.astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k)).astype(v.dtype), v)

    args = operands(rng)
    assert counts(jax_moye.optimize(lambda q, k, v: fun(q, k, v, False)), *args[:3]) == (1, 0, 0)
    results = jax.jit(jax_moye.optimize(gradients(fun, False)))(*args)
    assert_as_exact(results, jax.jit(gradients(fun, False))(*args), exact(*args, False), jnp.bfloat16)


def test_moved(rng):
    """Each of the three products loses its factor; nothing is divided in front of a product, nor behind."""
    args = operands(rng)
    jaxpr = jaxpr_of(gradients(scaled, False), *args)
    moved, scores = with_factors_at_scores(jaxpr, ())
    assert len(scores) == 1
    heads = (B, T, H, D), (B, S, H, D)
    for equation in moved.eqns:
        if equation.primitive.name in ("mul", "div"):
            assert equation.outvars[0].aval.shape not in heads
    (of_scores,) = scores
    assert with_factors_at_scores(jaxpr, scores.values()) == (jaxpr, {})
    assert sum(of_scores in one.invars for one in moved.eqns) == 1
    before, after = (
        jax.jit(jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(x, [])))(*args) for x in (jaxpr, moved)
    )
    for x, y in zip(before, after, strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))


def others(q, k):
    """Scores that are multiplied by what is no number, read by another one, or no attention's."""
    wide = lambda x: x.astype(jnp.float32)  # noqa: E731
    product = lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k)  # noqa: E731
    half = wide(q) * 0.5
    yield product(wide(q) * wide(q[:, :, :, :1]), wide(k))
    yield product(half, wide(k)), half.sum()
    yield product(half, wide(k)), half
    yield product(jnp.sin(wide(q)) * 0.5, wide(k))
    yield product(half, jnp.sin(wide(k)))
    yield product(half, half)


@pytest.mark.parametrize("which", range(6))
def test_left(rng, which):
    q, k, *_ = operands(rng)
    whole = jaxpr_of(lambda q, k: list(others(q, k))[which], q, k)
    jaxpr = _compat.without_dead_code(whole)
    assert with_factors_at_scores(jaxpr, ()) == (jaxpr, {})


def test_no_attention_stays_as_it_is(rng):
    """Beside one that is found: the other one's number does not move."""
    q, k, v, _ = operands(rng)

    def fun(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(jnp.float32) / 3, k.astype(jnp.float32))
        return scaled(q, k, v, True), jnp.sin(scores)

    assert counts(jax_moye.optimize(fun), q, k, v) == (1, 0, 1)
    new = jaxpr_of(jax_moye.optimize(fun), q, k, v)
    assert [one.primitive.name for one in new.eqns if one.outvars[0].aval == jax.typeof(q.astype("f4"))].count(
        "div"
    ) == 1


def test_other_products_of_16_bits(rng):
    """A number does not move to an array of 16 bits, which would round it."""
    q, k, *_ = operands(rng)
    d_scores = jnp.asarray(rng.normal(size=(B, H, T, S)), jnp.bfloat16)

    def fun(q, k, d):
        q, k = q.astype(jnp.float32) * 0.3, k.astype(jnp.float32)
        of_batch = ((0, 1), (0, 2))
        dk = jax.lax.dot_general(d, q, (((2,), (1,)), of_batch), preferred_element_type=jnp.float32)
        dq = jax.lax.dot_general(d, k, (((3,), (1,)), of_batch), preferred_element_type=jnp.float32) * 0.3
        return jax.lax.dot_general(q, k, (((3,), (3,)), ((0, 2), (0, 2)))), dk, dq

    jaxpr = jaxpr_of(fun, q, k, d_scores)
    assert with_factors_at_scores(jaxpr, ()) == (jaxpr, {})


def test_gradients_in_float16_stay(rng):
    """TF32 has more bits of the scores' derivative than float16 has: a kernel would be less precise."""
    args = operands(rng, dtype=jnp.float16)
    assert counts(jax_moye.optimize(gradients(scaled, True)), *args)[:2] == (0, 0)
    assert counts(jax_moye.optimize(lambda q, k, v: scaled(q, k, v, False)), *args[:3]) == (1, 0, 0)


@pytest.mark.parametrize(
    ("ones", "is_left"),
    [
        (lambda: jnp.ones((2, H), "i4")[0], False),
        (lambda: jnp.ones(H, jnp.bfloat16), False),
        (lambda: jnp.full(H, 2, jnp.bfloat16), True),
        (lambda: jnp.arange(H).astype(jnp.bfloat16), True),
        (lambda: jnp.ones(H, jnp.float32), True),  # makes it another type
    ],
)
def test_ones(rng, ones, is_left):
    x = jnp.asarray(rng.normal(size=(B, H, T, S)), jnp.bfloat16)
    fun = lambda x: jnp.einsum("...hqk,h->...hqk", x, ones())  # noqa: E731
    jaxpr = jaxpr_of(fun, x)
    assert names_of(jaxpr).count("dot_general") == 1
    new = without_ones(jaxpr)
    assert names_of(new).count("dot_general") == is_left
    assert (new.eqns == jaxpr.eqns) == is_left
    (result,) = jax.extend.core.jaxpr_as_fun(jax.extend.core.ClosedJaxpr(new, []))(x)
    np.testing.assert_array_equal(np.asarray(result, np.float32), np.asarray(fun(x), np.float32))
