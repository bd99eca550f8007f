"""The parts of the programs, against NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._bench.models import parts

RNG = np.random.default_rng(0)


def array(*shape):
    return RNG.standard_normal(shape, np.float32)


def test_random_arrays_are_the_same_in_every_run():
    first, second = parts.Random("bfloat16"), parts.Random(jnp.bfloat16)
    for make in (lambda r: r.weight(3, 4), lambda r: r.normal(5), lambda r: r.integers(7, 9)):
        one, other = make(first), make(second)
        np.testing.assert_array_equal(one, other)
    assert first.normal(2).dtype == jnp.bfloat16
    assert np.asarray(first.integers(7, 1000)).max() == 6
    assert abs(float(parts.Random("float32").weight(100, 100).std()) - parts.WEIGHT) < 0.1 * parts.WEIGHT


def test_sizes_that_do_not_go_together():
    parts.check_multiple("width", 12, "heads", 4)
    with pytest.raises(ValueError, match="width 12 is no multiple of heads 5"):
        parts.check_multiple("width", 12, "heads", 5)


def test_a_step_of_training():
    x = jnp.array([1.0, 2.0])
    new, value = parts.trained(lambda p, x: jnp.sum(p["w"] * x) + p["b"])({"w": x, "b": jnp.float32(3)}, x)
    assert value == 8.0
    np.testing.assert_array_equal(new["w"], x - parts.LEARNING_RATE * x)
    assert new["b"] == 3 - parts.LEARNING_RATE


def test_cross_entropy():
    logits, labels = array(2, 3, 5), RNG.integers(0, 5, (2, 3))
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = -np.mean([np.log(shares[i, j, labels[i, j]]) for i in range(2) for j in range(3)])
    np.testing.assert_allclose(parts.cross_entropy(jnp.asarray(logits), labels), expected, rtol=1e-5)


def test_norms():
    x, scale, bias = array(2, 4, 6), array(6), array(6)
    expected = x / np.sqrt((x**2).mean(-1, keepdims=True)) * scale
    np.testing.assert_allclose(parts.rms_norm(x, scale), expected, rtol=1e-4, atol=1e-5)
    expected = (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True) * scale + bias
    np.testing.assert_allclose(parts.layer_norm(x, (scale, bias)), expected, rtol=1e-3, atol=1e-4)
    images = array(2, 3, 3, 6)
    expected = np.empty_like(images)
    for i in range(2):
        for group in (slice(0, 2), slice(2, 4), slice(4, 6)):
            one = images[i, ..., group]
            expected[i, ..., group] = (one - one.mean()) / one.std()
    found = parts.group_norm(images, (scale, bias), 3)
    np.testing.assert_allclose(found, expected * scale + bias, rtol=1e-3, atol=1e-4)


def test_attention():
    q, k, v = array(2, 3, 2, 4), array(2, 5, 2, 4), array(2, 5, 2, 4)
    mask = np.tri(3, 5, dtype=bool)
    expected = np.empty((2, 3, 2, 4), np.float32)
    for b in range(2):
        for h in range(2):
            scores = np.where(mask, q[b, :, h] @ k[b, :, h].T / 2, -np.inf)
            shares = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
            expected[b, :, h] = shares @ v[b, :, h]
    np.testing.assert_allclose(parts.attention(q, k, v, mask), expected.reshape(2, 3, 8), rtol=1e-4, atol=1e-5)


def test_heads_and_layers():
    x = array(2, 3, 12)
    q, k, v = parts.in_heads(x, 3, 2)
    assert q.shape == k.shape == v.shape == (2, 3, 2, 2)
    np.testing.assert_array_equal(k, x[..., 4:8].reshape(2, 3, 2, 2))
    layer = parts.dense(parts.Random("float32"), 12, 5)
    np.testing.assert_allclose(parts.apply(x, layer), x @ np.asarray(layer[0]) + np.asarray(layer[1]), rtol=1e-5)
    several = parts.dense(parts.Random("float32"), 4, 12, 5)
    assert jax.tree.map(jnp.shape, several) == ((4, 12, 5), (4, 5))
    assert jax.tree.map(jnp.shape, parts.norm(parts.Random("float32"), 4, 12)) == ((4, 12), (4, 12))
