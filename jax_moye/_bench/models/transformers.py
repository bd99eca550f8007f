"""A transformer as language models are: a step of training, and one of decoding."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jax_moye._bench.models.parts import (
    Program,
    Random,
    attention,
    check_multiple,
    cross_entropy,
    in_heads,
    rms_norm,
    trained,
)


def transformer(random: Random, layers: int, width: int, heads: int, inner: int, vocabulary: int) -> Any:
    """Its weights."""
    check_multiple("width", width, "heads", heads)
    blocks = [
        {
            "qkv": random.weight(width, 3 * width),
            "out": random.weight(width, width),
            "gate": random.weight(width, inner),
            "up": random.weight(width, inner),
            "down": random.weight(inner, width),
            "norms": (random.ones(width), random.ones(width)),
        }
        for _ in range(layers)
    ]
    return {
        "embedding": random.weight(vocabulary, width),
        "blocks": blocks,
        "norm": random.ones(width),
        "head": random.weight(width, vocabulary),
    }


def gated(x: Any, block: Any) -> Any:
    """The layers of a block behind its attention."""
    h = rms_norm(x, block["norms"][1])
    return x + (jax.nn.silu(h @ block["gate"]) * (h @ block["up"])) @ block["down"]


def transformer_training(
    random: Random, *, layers: int, width: int, heads: int, inner: int, vocabulary: int, batch: int, tokens: int
) -> Program:
    """A step of training on texts of so many tokens. Each block is recomputed in the backward pass."""
    parameters = transformer(random, layers, width, heads, inner, vocabulary)
    text = random.integers(vocabulary, batch, tokens + 1)

    @jax.checkpoint
    def block_of(x: Any, block: Any) -> Any:
        q, k, v = in_heads(rms_norm(x, block["norms"][0]) @ block["qkv"], 3, heads)
        mask = jnp.tril(jnp.ones((x.shape[1], x.shape[1]), bool))
        return gated(x + attention(q, k, v, mask) @ block["out"], block)

    def loss(parameters: Any, text: Any) -> Any:
        x = parameters["embedding"][text[:, :-1]]
        for block in parameters["blocks"]:
            x = block_of(x, block)
        return cross_entropy(rms_norm(x, parameters["norm"]) @ parameters["head"], text[:, 1:])

    return trained(loss), (parameters, text)


def transformer_decoding(
    random: Random, *, layers: int, width: int, heads: int, inner: int, vocabulary: int, batch: int, cached: int
) -> Program:
    """A step of decoding, one token of each sequence. Returns logits and the new keys and values: the caller's."""
    parameters = transformer(random, layers, width, heads, inner, vocabulary)
    shape = batch, cached, heads, width // heads
    caches = [(random.normal(*shape), random.normal(*shape)) for _ in range(layers)]

    def block_of(x: Any, block: Any, cache: Any) -> Any:
        q, k, v = in_heads(rms_norm(x, block["norms"][0]) @ block["qkv"], 3, heads)
        keys, values = cache
        # The token's own key and value stand beside the cache: appending them here would copy all of it.
        scores = [jnp.einsum("bqhd,bkhd->bhqk", q, one).astype(jnp.float32) for one in (keys, k)]
        shares = jax.nn.softmax(jnp.concatenate(scores, axis=-1) * q.shape[-1] ** -0.5).astype(x.dtype)
        of_cache = jnp.einsum("bhqk,bkhd->bqhd", shares[..., :-1], values)
        of_token = jnp.swapaxes(shares[..., -1:], 1, 2) * v
        return gated(x + (of_cache + of_token).reshape(x.shape) @ block["out"], block), (k, v)

    def step(parameters: Any, token: Any, caches: Any) -> Any:
        x, new = parameters["embedding"][token][:, None], []
        for block, cache in zip(parameters["blocks"], caches, strict=True):
            x, pair = block_of(x, block, cache)
            new.append(pair)
        return (rms_norm(x, parameters["norm"]) @ parameters["head"])[:, 0], new

    return step, (parameters, random.integers(vocabulary, batch), caches)
