"""Attention of float32, whose products are in TF32: found with its gradients, left where more is asked for, computed.

In the emulator TF32 has to be asked for by its name, which XLA refuses on a CPU: what it would make of these programs
is computed by products of cut operands.
"""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python import float64
from python.attentions import (
    FORMS,
    GROUPED,
    ROUNDING,
    B,
    D,
    H,
    T,
    arrays,
    counts,
    gradients,
    mask_of,
    operands,
    products_in_tf32,
    use_fake_rows,
)
from python.support import lowered_text

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import attention_configs
from jax_moye._primitives import rewriting

TF32 = "TF32_TF32_F32"
of_f32 = functools.partial(operands, dtype=jnp.float32)
needs_rows = pytest.mark.skipif(
    len({config.kernel for config in attention_configs() if config.dtype == "tf32"}) < 2,
    reason="no rows of sm90_attention of TF32 in this build",
)


def _scores(q, k, precision=None):
    return jnp.einsum("bqhd,bkhd->bhqk", q, k, precision=precision) * q.shape[-1] ** -0.5


def _weighted(weights, v, precision=None):
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v, precision=precision)


def _plain(q, k, v):
    return _weighted(jax.nn.softmax(_scores(q, k)), v)


def _causal(q, k, v):
    return FORMS["of jax"](q, k, v, True)


def _kept():
    return (jnp.arange(T) * jnp.arange(1, T + 1)[:, None] % 3 < 2)[None, None]


def _masked(q, k, v):
    return _weighted(jax.nn.softmax(jnp.where(_kept() & mask_of(q, k), _scores(q, k), -jnp.inf)), v)


def _padded(q, k, v):
    """A low number is added; of the second sequence no key is left."""
    kept = jnp.arange(T) < jnp.array([15, 0])[:, None, None, None]
    return _weighted(jax.nn.softmax(_scores(q, k) + jnp.where(kept, 0.0, -1e30)), v)


def _with_a_bias(q, k, v, bias):
    return _weighted(jax.nn.softmax(jnp.where(mask_of(q, k), _scores(q, k) + bias, -1e30)), v)


def _with_biases(q, k, v, bias, of_keys):
    """In front of the scale, and behind it."""
    scores = (jnp.einsum("bqhd,bkhd->bhqk", q, k) + bias) / np.sqrt(np.float32(D - 3))
    return _weighted(jax.nn.softmax(jnp.where(mask_of(q, k), scores + of_keys[:, None, None], -1e30)), v)


def _with_a_cap(q, k, v):
    scores = 2 * jnp.tanh(_scores(q, k) / 2)
    return _weighted(jax.nn.softmax(scores + jnp.where(mask_of(q, k), 0.0, -1e30)), v)


def _with_dropout(q, k, v):
    keep = (3 * jnp.arange(T) + 5 * jnp.arange(T)[:, None] + jnp.arange(H)[:, None, None]) % 4 > 0
    return _weighted(jnp.where(keep, jax.nn.softmax(_scores(q, k)) / 0.75, 0), v)


def _checkpointed(q, k, v):
    return jax.checkpoint(_masked)(q, k, v)


def _layers(q, k, v):
    return lax.scan(lambda q, _: ((q + _causal(q, k, v)) * 0.5, None), q, None, length=2)[0]


def _of_one_array(qkv):
    return _causal(*(x.reshape(B, T, H, D) for x in jnp.split(qkv, 3, axis=-1)))


def _groups(q, k, v):
    return GROUPED["in groups"](q, k, v, True)


ROWS, SCORES = (B, T, H, D), (1, H, T, T)
# By name: a function, the shapes of its arrays, and the target of its forward pass.
PROGRAMS = {
    "plain": (_plain, [ROWS] * 3, "attention"),
    "causal": (_causal, [ROWS] * 3, "attention"),
    "masked": (_masked, [ROWS] * 3, "attention"),
    "padded": (_padded, [ROWS] * 3, "attention"),
    "a bias": (_with_a_bias, [*[ROWS] * 3, SCORES], "biased_attention"),
    "biases": (_with_biases, [*[ROWS] * 3, SCORES, (B, T)], "biased_attention"),
    "a cap": (_with_a_cap, [ROWS] * 3, "capped_attention"),
    "dropout": (_with_dropout, [ROWS] * 3, "dropped_attention"),
    "a checkpoint": (_checkpointed, [ROWS] * 3, "attention"),
    "a loop": (_layers, [ROWS] * 3, "attention"),
    "one array": (_of_one_array, [(B, T, 3 * H * D)], "view_attention"),
    "groups": (_groups, [(B, T, 2 * H, D), ROWS, ROWS], "attention"),
}


def program(name, rng):
    """A function and its gradients by all of its arrays, and these; the cotangent is the first one."""
    fun, shapes, _ = PROGRAMS[name]

    def both(d_o, *given):
        out, pullback = jax.vjp(fun, *given)
        return (out, *pullback(d_o))

    given = arrays(rng, *shapes, dtype=jnp.float32)
    return both, arrays(rng, jax.eval_shape(fun, *given).shape, dtype=jnp.float32) + given


def found(fun, *args):
    return counts(jax_moye.optimize(fun), *args)[:2]


@pytest.fixture
def fake_rows(monkeypatch):
    use_fake_rows(monkeypatch)


# -------------------------------------------------------------------------------------------------------------- found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms(rng, fake_rows, form, causal):
    """As of 16 bits; where no kernel is, the program's equations compute it."""
    given = of_f32(rng)
    forward = functools.partial(FORMS[form], causal=causal)
    backward = gradients(FORMS[form], causal)
    assert counts(jax_moye.optimize(forward), *given[:3]) == (1, 0, 0)
    assert counts(jax_moye.optimize(backward), *given) == (1, 1, 0)
    assert counts(jax_moye.optimize(gradients(FORMS[form], causal, checkpoint=True)), *given) == (2, 1, 0)
    after, before = (jax.jit(fun)(*given) for fun in (jax_moye.optimize(backward), backward))
    for x, y in zip(after, before, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("form", GROUPED)
def test_queries_in_groups(rng, fake_rows, form):
    given = of_f32(rng, (B, T, T, 6, 2, D))
    assert counts(jax_moye.optimize(gradients(GROUPED[form], True)), *given) == (1, 1, 0)


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(rng, fake_rows, name):
    """Nothing is kept of what rounding would take: results are float32."""
    both, given = program(name, rng)
    jaxpr = jax.make_jaxpr(jax_moye.optimize(both))(*given)
    assert found(both, *given) == (1 + (name == "a checkpoint"), 1)
    assert "ds_parts=2" not in str(jaxpr)
    assert "has_rest=True" not in str(jaxpr)


def test_a_cache_and_a_token(rng, fake_rows):
    """Decoding, whose softmax is of both."""
    q, keys, values, k, v = arrays(rng, (B, 1, H, D), *[ROWS] * 2, *[(B, 1, H, D)] * 2, dtype=jnp.float32)

    def decode(q, keys, values, k, v):
        shares = jax.nn.softmax(jnp.concatenate([_scores(q, keys), _scores(q, k)], axis=-1))
        return _weighted(shares[..., :T], values) + _weighted(shares[..., T:], v)

    assert found(decode, q, keys, values, k, v) == (1, 0)


def test_operands_that_are_converted(rng, fake_rows):
    """Arrays of 16 bits that a program multiplies as float32, shares too, are float32 to a kernel."""
    q, k, v, _ = operands(rng)

    def wide(q, k, v, precision=None):
        q, k, v = (x.astype(jnp.float32) for x in (q, k, v))
        return _weighted(jax.nn.softmax(_scores(q, k, precision)), v, precision).astype(jnp.bfloat16)

    def one_is_wide(q, k, v):
        return _plain(q.astype(jnp.float32), k, v.astype(jnp.float32))

    assert found(wide, q, k, v) == (1, 0)
    assert found(functools.partial(wide, precision="highest"), q, k, v) == (0, 0)
    assert found(one_is_wide, q, k.astype(jnp.float32), v) == (1, 0)
    text = str(jax.make_jaxpr(jax_moye.optimize(wide))(q, k, v))
    (line,) = re.findall(r"jax_moye_attention\[.*?\n  *\] (\w+ \w+ \w+)\n", text, re.DOTALL)
    types = dict(re.findall(r"(\w+):(\w+)\[", text))
    assert [types[x] for x in line.split()] == ["f32"] * 3


# --------------------------------------------------------------------------------------------------------------- left


@pytest.mark.parametrize(
    ("precision", "is_found"),
    [
        (None, True),
        ("default", True),
        (TF32, True),
        ("high", False),
        ("highest", False),
        ("TF32_TF32_F32_X3", False),
        ("F32_F32_F32", False),
        ("BF16_BF16_F32", False),
        (("default", "highest"), False),
    ],
    ids=str,
)
def test_no_product_gets_less_precise(rng, fake_rows, monkeypatch, precision, is_found):
    """Whichever of the products it is that more is asked for."""
    q, k, v, d_o = of_f32(rng)

    def fun(q, k, v, of_scores=None, of_values=None):
        return _weighted(jax.nn.softmax(_scores(q, k, of_scores)), v, of_values)

    def by_hand(q, k, v, d_o, name):
        of = {one: precision if one == name else None for one in ("dp", "dq", "dk", "dv")}
        p = jax.nn.softmax(_scores(q, k))
        dp = jnp.einsum("bqhd,bkhd->bhqk", d_o, v, precision=of["dp"])
        ds = p * (dp - (dp * p).sum(-1, keepdims=True)) * q.shape[-1] ** -0.5
        dk, dv = (
            jnp.einsum("bhqk,bqhd->bkhd", x, y, precision=of[which]) for x, y, which in ((ds, q, "dk"), (p, d_o, "dv"))
        )
        return _weighted(p, v), jnp.einsum("bhqk,bkhd->bqhd", ds, k, precision=of["dq"]), dk, dv

    for which in ("of_scores", "of_values"):
        assert found(functools.partial(fun, **{which: precision}), q, k, v) == (is_found, 0)
    for name in ("dp", "dq", "dk", "dv"):
        assert found(functools.partial(by_hand, name=name), q, k, v, d_o) == (is_found,) * 2, name
    whole = gradients(lambda q, k, v, causal: fun(q, k, v, precision, precision), False)
    after = str(jax.make_jaxpr(jax_moye.optimize(whole))(q, k, v, d_o))
    monkeypatch.setattr(rewriting, "with_attention", lambda jaxpr, parameters, rewrite: jaxpr)
    assert (after != str(jax.make_jaxpr(jax_moye.optimize(whole))(q, k, v, d_o))) == is_found


@pytest.mark.parametrize("dtype", [jnp.float64, jnp.bfloat16])
def test_of_other_types(rng, fake_rows, dtype):
    """All of float64; values that are not what queries and keys are, and that the program does not convert."""
    with jax.enable_x64(True):
        q, k, v = (x.astype(dtype) for x in of_f32(rng)[:3])
        assert found(_plain, q, k, v) == (int(dtype == jnp.bfloat16), 0)
        assert found(_plain, *of_f32(rng)[:2], v) == (0, 0)
        assert found(_plain, q, k, of_f32(rng)[2]) == (0, 0)


# ------------------------------------------------------------------------------------------------------------ lowered


def test_tf32_is_a_default_on_gpus_alone(rng, fake_rows, monkeypatch):
    """In the emulator, as on a CPU, float32 is multiplied as it is, unless TF32 has a program's word."""
    monkeypatch.setattr(ffi, "built", lambda platform: None)  # a build for CUDA has all rows
    q, k, v, _ = of_f32(rng)

    def calls(fun, platform, **options):
        with jax_moye.options(**options):
            text = lowered_text(jax_moye.optimize(fun), q, k, v, platform=platform)
        return re.findall(r'attention_v1\(.*?config = "(\w+)"', text)

    def by_name(q, k, v):
        return _weighted(jax.nn.softmax(_scores(q, k, TF32)), v, TF32)

    def by_one_name(q, k, v):
        return _weighted(jax.nn.softmax(_scores(q, k, TF32)), v)

    with jax_moye.cuda_target(90):
        for fun in (_plain, by_name, by_one_name):
            (config,) = calls(fun, "cuda", implementation="moye")
            assert re.fullmatch("sm90_attention_tf32_.*", config)
    with jax_moye.cuda_target(80):
        assert calls(_plain, "cuda", implementation="moye") == []
    assert [len(calls(fun, "cpu", interpret=True)) for fun in (_plain, by_name, by_one_name)] == [0, 1, 0]
    assert calls(_plain, "cpu") == []


# ------------------------------------------------------------------------------------------------------ in the emulator


def by_kernels(fun, given):
    with jax.default_matmul_precision(TF32), jax_moye.options(interpret=True):
        lowered = jax.jit(jax_moye.optimize(fun)).lower(*given)
    return lowered.compile()(*given), lowered.as_text()


@needs_rows
@pytest.mark.parametrize("name", PROGRAMS)
def test_in_the_emulator(rng, name):
    """Results and gradients are as precise as with products in TF32, also of rows all of whose scores are masked."""
    both, given = program(name, rng)
    results, text = by_kernels(both, given)
    assert len(re.findall(rf"jax_moye_{PROGRAMS[name][2]}_v1\(", text)) == 1 + (name == "a checkpoint")
    assert "attention_grad_v1(" in text
    assert set(re.findall(r'config = "sm90_attention(?:_grad)?_(\w+?)_', text)) == {"tf32"}
    with products_in_tf32():
        products = jax.jit(jax_moye.optimize(lambda *args: both(*args)))(*given)
    wanted = float64.exact(both, given)
    for result, other, right in zip(results, products, wanted, strict=True):
        assert (result.dtype, result.shape) == (jnp.float32, right.shape)
        errors = [np.abs(x - right).max() for x in (result, other)]
        assert errors[0] <= max(2 * errors[1], 4 * ROUNDING["float32"] * np.abs(right).max()), errors
        assert errors[0] > 2.0**-20 * np.abs(right).max() or right.max() == right.min()  # TF32 is visible
