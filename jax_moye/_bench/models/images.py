"""Programs on images: a vision transformer, an MLP mixer, and blocks of a diffusion U-Net."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye._bench.models.parts import (
    Program,
    Random,
    apply,
    attention,
    check_multiple,
    cross_entropy,
    dense,
    group_norm,
    in_heads,
    layer_norm,
    norm,
    trained,
)


def patches(images: Any, patch: int) -> Any:
    """Squares of images (b, size, size, 3) as vectors: (b, squares, patch * patch * 3)."""
    batch, size = images.shape[:2]
    split = images.reshape(batch, size // patch, patch, size // patch, patch, 3)
    return split.transpose(0, 1, 3, 2, 4, 5).reshape(batch, (size // patch) ** 2, -1)


def mlp(x: Any, layers: Any) -> Any:
    """Two layers with gelu between them."""
    first, second = layers
    return apply(jax.nn.gelu(apply(x, first)), second)


def vision_transformer(
    random: Random,
    *,
    layers: int,
    width: int,
    heads: int,
    inner: int,
    classes: int,
    batch: int,
    image: int,
    patch: int,
) -> Program:
    """A step of training. Its blocks are a scan."""
    check_multiple("width", width, "heads", heads)
    check_multiple("image", image, "patch", patch)
    blocks = {
        "qkv": dense(random, layers, width, 3 * width),
        "out": dense(random, layers, width, width),
        "mlp": (dense(random, layers, width, inner), dense(random, layers, inner, width)),
        "norms": (norm(random, layers, width), norm(random, layers, width)),
    }
    parameters = {
        "patches": dense(random, patch * patch * 3, width),
        "class": random.weight(1, 1, width),
        "places": random.weight((image // patch) ** 2 + 1, width),
        "blocks": blocks,
        "norm": norm(random, width),
        "head": dense(random, width, classes),
    }

    def block_of(x: Any, block: Any) -> Any:
        first, second = block["norms"]
        q, k, v = in_heads(apply(layer_norm(x, first), block["qkv"]), 3, heads)
        x = x + apply(attention(q, k, v), block["out"])
        return x + mlp(layer_norm(x, second), block["mlp"]), None

    def loss(parameters: Any, images: Any, labels: Any) -> Any:
        x = apply(patches(images, patch), parameters["patches"])
        first = jnp.broadcast_to(parameters["class"], (x.shape[0], 1, width))
        x = jnp.concatenate([first, x], axis=1) + parameters["places"]
        x, _ = lax.scan(block_of, x, parameters["blocks"])
        return cross_entropy(apply(layer_norm(x[:, 0], parameters["norm"]), parameters["head"]), labels)

    data = random.normal(batch, image, image, 3), random.integers(classes, batch)
    return trained(loss), (parameters, *data)


def mlp_mixer(
    random: Random,
    *,
    layers: int,
    width: int,
    inner_tokens: int,
    inner: int,
    classes: int,
    batch: int,
    image: int,
    patch: int,
) -> Program:
    """A step of training."""
    check_multiple("image", image, "patch", patch)
    tokens = (image // patch) ** 2
    blocks = [
        {
            "tokens": (dense(random, tokens, inner_tokens), dense(random, inner_tokens, tokens)),
            "channels": (dense(random, width, inner), dense(random, inner, width)),
            "norms": (norm(random, width), norm(random, width)),
        }
        for _ in range(layers)
    ]
    parameters = {
        "patches": dense(random, patch * patch * 3, width),
        "blocks": blocks,
        "norm": norm(random, width),
        "head": dense(random, width, classes),
    }

    def loss(parameters: Any, images: Any, labels: Any) -> Any:
        x = apply(patches(images, patch), parameters["patches"])
        for block in parameters["blocks"]:
            first, second = block["norms"]
            turned = jnp.swapaxes(layer_norm(x, first), 1, 2)
            x = x + jnp.swapaxes(mlp(turned, block["tokens"]), 1, 2)
            x = x + mlp(layer_norm(x, second), block["channels"])
        x = jnp.mean(layer_norm(x, parameters["norm"]), axis=1)
        return cross_entropy(apply(x, parameters["head"]), labels)

    data = random.normal(batch, image, image, 3), random.integers(classes, batch)
    return trained(loss), (parameters, *data)


def convolution(random: Random, channels: int, width: int) -> Any:
    """The weights of a 3 x 3 convolution and its biases."""
    return random.weight(3, 3, channels, width), random.weight(width)


def convolved(x: Any, layer: Any) -> Any:
    """What such a layer computes: no matrix product, and so XLA's in every arm."""
    kernel, bias = layer
    return lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")) + bias


def unet_blocks(
    random: Random,
    *,
    blocks: int,
    width: int,
    heads: int,
    groups: int,
    batch: int,
    image: int,
    context: int,
    context_width: int,
    time_width: int,
) -> Program:
    """Blocks of one resolution, each a ResNet's and a transformer's. Returns the loss and the gradients."""
    check_multiple("width", width, "heads", heads)
    check_multiple("width", width, "2 x groups", 2 * groups)  # the first block's input has half the channels

    def new_block(channels: int) -> Any:
        return {
            "resnet_norms": (norm(random, channels), norm(random, width)),
            "convolutions": (convolution(random, channels, width), convolution(random, width, width)),
            "time": dense(random, time_width, width),
            "skip": dense(random, channels, width) if channels != width else None,
            "group_norm": norm(random, width),
            "norms": (norm(random, width), norm(random, width), norm(random, width)),
            "in": dense(random, width, width),
            "qkv": random.weight(width, 3 * width),
            "self_out": dense(random, width, width),
            "query": random.weight(width, width),
            "key_value": random.weight(context_width, 2 * width),
            "cross_out": dense(random, width, width),
            "gated": dense(random, width, 8 * width),
            "down": dense(random, 4 * width, width),
            "out": dense(random, width, width),
        }

    parameters = [new_block(width // 2 if i == 0 else width) for i in range(blocks)]
    normed = functools.partial(group_norm, groups=groups)

    def resnet(x: Any, time: Any, block: Any) -> Any:
        (first, second), (one, other) = block["resnet_norms"], block["convolutions"]
        h = convolved(jax.nn.silu(normed(x, first)), one)
        h = h + apply(jax.nn.silu(time), block["time"])[:, None, None]
        h = convolved(jax.nn.silu(normed(h, second)), other)
        return h + (x if block["skip"] is None else apply(x, block["skip"]))

    def transformer(x: Any, text: Any, block: Any) -> Any:
        first, second, third = block["norms"]
        h = apply(normed(x, block["group_norm"]), block["in"]).reshape(x.shape[0], -1, width)
        q, k, v = in_heads(layer_norm(h, first) @ block["qkv"], 3, heads)
        h = h + apply(attention(q, k, v), block["self_out"])
        (q,) = in_heads(layer_norm(h, second) @ block["query"], 1, heads)
        k, v = in_heads(text @ block["key_value"], 2, heads)
        h = h + apply(attention(q, k, v), block["cross_out"])
        up, gate = jnp.split(apply(layer_norm(h, third), block["gated"]), 2, axis=-1)
        h = h + apply(up * jax.nn.gelu(gate), block["down"])
        return x + apply(h, block["out"]).reshape(x.shape)

    def loss(parameters: Any, x: Any, time: Any, text: Any, noise: Any) -> Any:
        for block in parameters:
            x = transformer(resnet(x, time, block), text, block)
        return jnp.mean((x - noise).astype(jnp.float32) ** 2)

    images = random.normal(batch, image, image, width // 2)
    data = images, random.normal(batch, time_width), random.normal(batch, context, context_width)
    return jax.value_and_grad(loss), (parameters, *data, random.normal(batch, image, image, width))
