"""Attention that reads parts of larger arrays in place: programs, what is around them, and what stays copied."""

from __future__ import annotations

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from python import float64
from python.attentions import FORMS, arrays, assert_as_exact, exact, needs_rows, use_fake_rows
from python.viewed import movements
from python.viewed_attention import CASES, TARGETS, B, D, H, N, T, check, equations, viewed

import jax_moye
from jax_moye._primitives import attention_call
from jax_moye._primitives.attention import attention_p

JOINED = "jax_moye_joined_attention_grad_v1"
in_the_emulator = functools.partial(jax_moye.options, interpret=True)


def calls(text):
    """Attentions that read parts of arrays, and gradients, which may be written as such, too."""
    forward, *gradients = (text.count(f"@{target}(") for target in (*TARGETS, JOINED))
    return [forward, sum(gradients)]


def slices(text):
    """But for those of a scan's stacks."""
    return [x for x in movements(text) if x == "stablehlo.slice"]


@needs_rows
@pytest.mark.parametrize("name", CASES)
def test_programs(name):
    check(name, interpret=True)


@needs_rows
@pytest.mark.parametrize("name", ["split", "a stack", "some heads"])
def test_an_ignored_offset_is_seen(name, monkeypatch):
    """The bug planted: what these tests compare finds it."""
    made = attention_call.make_attention_problem

    def without(**given):
        problem = made(**given)
        problem.offsets.update(dict.fromkeys(problem.offsets, 0))
        return problem

    monkeypatch.setattr(attention_call, "make_attention_problem", without)
    jax.clear_caches()
    with pytest.raises(AssertionError):
        check(name, interpret=True)
    jax.clear_caches()


# ------------------------------------------------------------------------------------------------------- layers


def _of_split(qkv):
    return [x[:, :, 0] for x in jnp.split(qkv.reshape(*qkv.shape[:2], 3, H, D), 3, axis=2)]


def _of_index(qkv):
    qkv = qkv.reshape(*qkv.shape[:2], 3, H, D)
    return [qkv[:, :, i] for i in range(3)]


def _of_slices(qkv):
    return [qkv[..., i * H * D : (i + 1) * H * D].reshape(*qkv.shape[:2], H, D) for i in range(3)]


def _of_moved(qkv):
    return [jnp.swapaxes(x, 1, 2) for x in jnp.moveaxis(qkv.reshape(*qkv.shape[:2], 3, H, D), (2, 3), (0, 2))]


WAYS = {"split": _of_split, "index": _of_index, "slices": _of_slices, "moved": _of_moved}
X, WQKV, WO = (B, T, 32), (32, 3 * H * D), (H * D, 32)


def layer(way, x, w, o, causal=True):
    q, k, v = WAYS[way](x @ w)
    return x + FORMS["plain"](q, k, v, causal).reshape(*x.shape[:2], H * D) @ o


def loss_of(fun):
    return lambda x, w, o: jnp.mean(fun(x, w, o).astype(jnp.float32) ** 2)


def weights(rng, *shapes):
    return [x / 4 for x in arrays(rng, *shapes)]


def in_float64(fun, *args):
    """Scores in float32, as programs have them; all else in float64."""
    return jax.tree.leaves(float64.exact(fun, args))


def compared(fun, args, expected_calls, expected_slices=0):
    with in_the_emulator():
        lowered = jax.jit(jax_moye.optimize(fun)).lower(*args)
        text = lowered.as_text()
        results = jax.tree.leaves(lowered.compile()(*args))
    assert calls(text) == expected_calls
    assert text.count(f"@{JOINED}(") == expected_calls[1]  # and nothing joins them behind it
    assert not {"stablehlo.concatenate", "stablehlo.pad"} & set(movements(text))
    assert len(slices(text)) == expected_slices
    before = jax.tree.leaves(jax.jit(fun)(*args))
    assert_as_exact(results, before, in_float64(fun, *args), jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_training_step(rng, way, checkpoint):
    """Of a layer with one product for q, k and v, which no part of it is written for."""
    fun = functools.partial(layer, way)
    step = jax.grad(loss_of(jax.checkpoint(fun) if checkpoint else fun), (0, 1, 2))
    compared(step, weights(rng, X, WQKV, WO), [1 + checkpoint, 1])


@needs_rows
@pytest.mark.parametrize("checkpoint", [False, True])
def test_a_training_step_of_heads_in_groups(rng, checkpoint):
    """Whose product has more columns for q than for k and v; only with d_o in place are the others."""

    def fun(x, w, o):
        q, k, v = jnp.split(x @ w, [H * D, (H + N) * D], axis=-1)
        heads = (y.reshape(*y.shape[:2], -1, D) for y in (q, k, v))
        return x + jax.nn.dot_product_attention(*heads, is_causal=True).reshape(*x.shape[:2], H * D) @ o

    step = jax.grad(loss_of(jax.checkpoint(fun) if checkpoint else fun), (0, 1, 2))
    compared(step, weights(rng, X, (32, (H + 2 * N) * D), WO), [1 + checkpoint, 1])


@needs_rows
def test_in_a_scan_over_layers(rng):
    """Whose weights are a stack, and whose layers are recomputed."""

    def fun(x, w, o):
        body = jax.checkpoint(lambda x, of: (layer("split", x, *of, causal=False), None))
        return jax.lax.scan(body, x, (w, o))[0]

    args = weights(rng, X, (2, *WQKV), (2, *WO))
    compared(jax.grad(loss_of(fun), (0, 1, 2)), args, [2, 1])


@needs_rows
def test_transformed_it_is_the_program_that_was(rng):
    """Differentiated, or mapped, behind optimize."""
    args = weights(rng, X, WQKV, WO)
    fun = functools.partial(layer, "index")
    with in_the_emulator():
        optimized = jax_moye.optimize(fun)
        (equation,) = equations(jax.make_jaxpr(optimized)(*args))
        assert viewed(equation) == "q k v"
        every = (0, 1, 2)
        expected = jax.jit(jax.grad(loss_of(fun), every))(*args)
        for ours, theirs in zip(jax.grad(loss_of(optimized), every)(*args), expected, strict=True):
            np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (ours, theirs)), rtol=0.1, atol=1e-4)
        many = [jnp.stack([x, 2 * x]) for x in args]
        mapped = jax.vmap(optimized)(*many)
        np.testing.assert_allclose(
            *(np.asarray(x, np.float32) for x in (mapped, jax.jit(jax.vmap(fun))(*many))), rtol=0.05, atol=0.05
        )
    compared(lambda *args: jax.vmap(fun)(*args), many, [1, 0])  # around vmap: parts of a larger batch


@needs_rows
@pytest.mark.parametrize("dims", ["bshd", "bhsd", "sbhd", "bhds"])
@pytest.mark.parametrize("stacked", [False, True])
def test_decoding(rng, dims, stacked):
    """A query of each sequence, part of its token's product, which is kept, and the cache of a layer, or all of one."""
    S = 40
    shape = [dict(b=B, s=S, h=H, d=D)[x] for x in dims]
    x, w, cache = arrays(rng, (B, 1, 32), WQKV, (3, 2, *shape) if stacked else (2, *shape))

    def decode(x, w, cache):
        qkv = x @ (w / 8)
        keys, values = cache[1] if stacked else cache
        order = [dims.index(letter) for letter in "bshd"]
        q = _of_split(qkv)[0]
        return FORMS["plain"](q, jnp.transpose(keys, order), jnp.transpose(values, order), False), qkv

    with in_the_emulator():
        (equation,) = equations(jax.make_jaxpr(jax_moye.optimize(decode))(x, w, cache))
    assert viewed(equation) == ("q" if dims == "bhds" else "q k v")  # else no row is contiguous
    compared(decode, (x, w, cache), [0 if dims == "bhds" else 1, 0], expected_slices=(2 + stacked) * (dims == "bhds"))


@needs_rows
def test_decoding_beside_the_tokens_own_score(rng):
    x, w, keys, values = arrays(rng, (B, 1, 32), WQKV, *[(B, 40, H, D)] * 2)

    def decode(x, w, keys, values):
        q, k, v = _of_split(x @ (w / 8))
        scores = [jnp.einsum("bqhd,bkhd->bhqk", q, one).astype(jnp.float32) for one in (keys, k)]
        shares = jax.nn.softmax(jnp.concatenate(scores, axis=-1) * 0.25).astype(q.dtype)
        of_cache = jnp.einsum("bhqk,bkhd->bqhd", shares[..., :-1], values)
        return of_cache + jnp.swapaxes(shares[..., -1:], 1, 2) * v, k, v

    args = x, w, keys, values
    with in_the_emulator():
        (equation,) = equations(jax.make_jaxpr(jax_moye.optimize(decode))(*args))
        assert viewed(equation) == "q"
        result, k, v = jax.jit(jax_moye.optimize(decode))(*args)
    q = np.asarray(x @ (w / 8)).reshape(B, 1, 3, H, D)[:, :, 0]
    joined = [np.concatenate([np.asarray(one), np.asarray(own)], axis=1) for one, own in ((keys, k), (values, v))]
    assert_as_exact([result], [jax.jit(decode)(*args)[0]], exact(q, *joined, q, False)[:1], jnp.bfloat16)


# ------------------------------------------------------------------------------------------------ what stays copied


def found(fun, *args):
    """The names of parts, of each attention of a program."""
    with jax_moye.options(implementation="moye"):
        return [viewed(x) for x in equations(jax.make_jaxpr(jax_moye.optimize(fun))(*args))]


def test_what_is_computed_element_by_element_is_not_written_whole(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    qkv = arrays(rng, (B, T, 3 * H * D))[0]
    assert found(lambda x: FORMS["plain"](*_of_split(x), True), qkv) == ["q k v"]
    assert found(lambda x: FORMS["plain"](*_of_split(jnp.tanh(x)), True), qkv) == [""]
    rotated = lambda x: FORMS["plain"](jnp.sin(_of_split(x)[0]), *_of_split(x)[1:], True)  # noqa: E731
    assert found(rotated, qkv) == ["k v"]


@pytest.mark.parametrize("is_given", [False, True])
def test_gradients_keep_no_more_of_the_forward_pass(rng, monkeypatch, is_given):
    """Where q and k are turned in front of their scores, v is copied for them, unless its array is there anyway."""
    use_fake_rows(monkeypatch)
    x, w, qkv = arrays(rng, X, WQKV, (B, T, 3 * H * D))

    def loss(qkv):
        q, k, v = _of_split(qkv)
        return jnp.mean(FORMS["plain"](jnp.sin(q), jnp.sin(k), v, True).astype(jnp.float32) ** 2)

    if is_given:
        assert found(jax.grad(loss), qkv) == ["v", "v"]
    else:
        assert found(jax.grad(lambda x, w: loss(x @ w)), x, w) == ["v", ""]


def test_what_is_no_part_stays_as_it_is(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    q, k, v = arrays(rng, *[(B, T, H, D)] * 3)
    assert found(lambda *args: FORMS["plain"](*args, True), q, k, v) == [""]
    turned = lambda *args: FORMS["plain"](*(jnp.swapaxes(x, 1, 2) for x in args), True)  # noqa: E731
    assert found(turned, q, k, v) == [""]


def test_heads_that_one_stride_does_not_reach_stay(rng, monkeypatch):
    """Two dimensions of heads, of which the inner is cut: XLA copies q, and the others are read in place."""
    use_fake_rows(monkeypatch)
    q, kv = arrays(rng, (B, T, 3, 3, D), (2, B, T, 3, 2, D))

    def fun(q, kv):
        q, k, v = (x.reshape(B, T, 6, D) for x in (q[:, :, :, :2], *kv))
        return FORMS["plain"](q, k, v, True)

    assert found(fun, q, kv) == ["k v"]
    with jax_moye.options(implementation="moye"):
        (equation,) = equations(jax.make_jaxpr(jax_moye.optimize(fun))(q, kv))
    assert [x.aval.shape for x in equation.invars] == [(B, T, 6, D), kv.shape, kv.shape]


@needs_rows
def test_other_readers_keep_their_slices(rng):
    def fun(qkv):
        q, k, v = _of_index(qkv)
        return FORMS["plain"](q, k, v, True), k, v

    (qkv,) = arrays(rng, (B, T, 3 * H * D))
    with in_the_emulator():
        text = jax.jit(jax_moye.optimize(fun)).lower(qkv).as_text()
        _, k, v = jax.jit(jax_moye.optimize(fun))(qkv)
    assert calls(text) == [1, 0]
    assert len(slices(text)) == 2
    for one, other in zip((k, v), _of_index(qkv)[1:], strict=True):
        np.testing.assert_array_equal(np.asarray(one, np.float32), np.asarray(other, np.float32))


def test_where_no_kernel_is_it_is_the_program_that_was(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    args = weights(rng, X, WQKV, WO)
    step = jax.grad(loss_of(functools.partial(layer, "split")), (0, 1, 2))
    jaxpr = jax.make_jaxpr(jax_moye.optimize(step))(*args)
    assert [viewed(x) for x in equations(jaxpr)] == ["q k v"] * 2
    for x, y in zip(jax.jit(jax_moye.optimize(step))(*args), jax.jit(step)(*args), strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))


def test_explain_says_what_is_decided(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    (qkv,) = arrays(rng, (B, T, 3 * H * D))
    with jax_moye.options(implementation="moye"):
        text = str(jax_moye.explain(jax_moye.optimize(lambda x: FORMS["plain"](*_of_split(x), True)), qkv))
    assert f"attention, {B} x {H} heads, {T} x {T} scores of {D}, causal" in text


@needs_rows
def test_a_saved_program(rng):
    pytest.importorskip("flatbuffers")
    args = weights(rng, X, WQKV, WO)
    step = jax.grad(loss_of(functools.partial(layer, "split")), (0, 1, 2))
    with in_the_emulator():
        fun = jax.jit(jax_moye.optimize(step))
        wanted = fun(*args)
        exported = jax.export.export(fun, disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)(*args)
    loaded = jax.export.deserialize(exported.serialize())
    assert calls(loaded.mlir_module()) == [1, 1]
    for x, y in zip(loaded.call(*args), wanted, strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))


@needs_rows
def test_parts_without_an_offset_need_no_new_target(rng):
    """Programs that are saved load where there is none."""
    q, k, v = arrays(rng, *[(B, T, 2 * H, D)] * 3)
    fun = lambda q, k, v: FORMS["plain"](*(x[:, :, :H] for x in (q, k, v)), True)  # noqa: E731
    with in_the_emulator():
        text = jax.jit(jax_moye.optimize(fun)).lower(q, k, v).as_text()
    assert calls(text) == [0, 0]
    assert "@jax_moye_attention_v1(" in text
    assert not slices(text)
    assert "q_strides = dense<[3072, 16, 128]>" in text


def test_views_are_a_parameter_of_the_equation(rng, monkeypatch):
    use_fake_rows(monkeypatch)
    (qkv,) = arrays(rng, (B, T, 3 * H * D))
    with jax_moye.options(implementation="moye"):
        jaxpr = jax.make_jaxpr(jax_moye.optimize(lambda x: FORMS["plain"](*_of_split(x), True)))(qkv)
    (equation,) = equations(jaxpr)
    assert equation.primitive is attention_p
    assert [view.offset for view in equation.params["views"]] == [0, H * D, 2 * H * D]
    assert {view.strides for view in equation.params["views"]} == {(T * 3 * H * D, 3 * H * D, D, 1)}
    assert equation.invars == jaxpr.jaxpr.invars * 3
    assert not {x.primitive.name for x in jaxpr.eqns} & {"split", "slice", "squeeze", "reshape"}
