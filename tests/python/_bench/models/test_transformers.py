"""The transformer: its gradient, and that decoding token by token computes what training does."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from python._bench.models.slopes import check_slope

from jax_moye._bench.models import parts, transformers
from jax_moye._bench.models.table import MODELS

SIZES = {"layers": 2, "width": 16, "heads": 2, "inner": 24, "vocabulary": 11}


def test_the_gradient_of_training():
    random = parts.Random("float32")
    step, (parameters, text) = transformers.transformer_training(random, **SIZES, batch=2, tokens=7)
    assert text.shape == (2, 8)
    new, value = jax.jit(step)(parameters, text)
    gradients = jax.tree.map(lambda p, n: (p - n) / parts.LEARNING_RATE, parameters, new)
    assert abs(float(value) - np.log(11)) < 0.5
    check_slope(jax.jit(lambda p: step(p, text)[1]), parameters, gradients)


def test_decoding_is_what_training_computes():
    random = parts.Random("float32")
    training, (parameters, text) = transformers.transformer_training(random, **SIZES, batch=3, tokens=6)
    decoding, (_, token, caches) = transformers.transformer_decoding(random, **SIZES, batch=3, cached=5)
    assert token.shape == (3,)
    assert [one.shape for one in caches[0]] == [(3, 5, 2, 8)] * 2
    caches = [tuple(one[:, :0] for one in pair) for pair in caches]
    parts_of_loss = []
    for i in range(6):
        logits, new = decoding(parameters, text[:, i], caches)
        parts_of_loss.append(parts.cross_entropy(logits, text[:, i + 1]))
        caches = [
            tuple(jnp.concatenate(two, axis=1) for two in zip(*both, strict=True))
            for both in zip(caches, new, strict=True)
        ]
    _, value = training(parameters, text)
    np.testing.assert_allclose(np.mean(parts_of_loss), value, rtol=1e-5)


def test_blocks_are_recomputed():
    model = MODELS["transformer_training"]
    step, args = model.make("bfloat16", **model.small)
    names = [equation.primitive.name for equation in jax.make_jaxpr(step)(*args).eqns]
    assert sum(name in ("checkpoint", "remat", "remat2") for name in names) >= model.small["layers"]
