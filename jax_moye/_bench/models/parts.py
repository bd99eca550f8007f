"""What the programs are made of: random arrays, norms, layers, attention, losses, a step of gradient descent.

All is of one dtype but for norms, softmax and losses, which are computed in float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

# So large that the new parameters are gradients for the most part: they are what is compared.
LEARNING_RATE = 1024.0
WEIGHT = 0.02  # the standard deviation of weights

Step = Callable[..., Any]
Program = tuple[Step, tuple[Any, ...]]  # a step and its arguments


class Random:
    """Random arrays of a dtype, the same ones in every run."""

    def __init__(self, dtype: Any) -> None:
        """Begins with the first one."""
        self.dtype = jnp.dtype(dtype)
        self._key = jax.random.key(0)

    def _next(self) -> Any:
        self._key, key = jax.random.split(self._key)
        return key

    def weight(self, *shape: int) -> Any:
        """Of a layer, or of several; biases too."""
        return self.normal(*shape) * self.dtype.type(WEIGHT)

    def normal(self, *shape: int) -> Any:
        """Data."""
        return jax.random.normal(self._next(), shape, self.dtype)

    def integers(self, below: int, *shape: int) -> Any:
        """Such as tokens."""
        return jax.random.randint(self._next(), shape, 0, below)

    def ones(self, *shape: int) -> Any:
        """A norm's factors."""
        return jnp.ones(shape, self.dtype)


def check_multiple(what: str, size: int, of: str, divisor: int) -> None:
    """Raises ValueError where a size does not divide another one.

    Args:
      what: name of the size that is divided.
      size: of it.
      of: name of the other one.
      divisor: likewise.
    """
    if size % divisor:
        raise ValueError(f"{what} {size} is no multiple of {of} {divisor}")


def trained(loss: Callable[..., Any]) -> Step:
    """A step of gradient descent."""

    def step(parameters: Any, *data: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(parameters, *data)
        new = jax.tree.map(lambda p, g: p - jnp.asarray(LEARNING_RATE, p.dtype) * g, parameters, gradients)
        return new, value

    return step


def cross_entropy(logits: Any, labels: Any) -> Any:
    """The mean over all positions."""
    logits = logits.astype(jnp.float32)
    right = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - right)


def rms_norm(x: Any, scale: Any) -> Any:
    """Over the last axis."""
    wide = x.astype(jnp.float32)
    return (wide * lax.rsqrt(jnp.mean(wide**2, axis=-1, keepdims=True) + 1e-6)).astype(x.dtype) * scale


def normalized(wide: Any, axes: Any) -> Any:
    """Of mean 0 and variance 1 along axes, in float32."""
    mean, variance = jnp.mean(wide, axes, keepdims=True), jnp.var(wide, axes, keepdims=True)
    return (wide - mean) * lax.rsqrt(variance + 1e-6)


def layer_norm(x: Any, parameters: Any) -> Any:
    """Over the last axis; factors and biases as `norm` makes them."""
    scale, bias = parameters
    return normalized(x.astype(jnp.float32), -1).astype(x.dtype) * scale + bias


def group_norm(x: Any, parameters: Any, groups: int) -> Any:
    """Of images (b, h, w, c), over pixels and the channels of a group; otherwise likewise."""
    scale, bias = parameters
    split = x.astype(jnp.float32).reshape(*x.shape[:-1], groups, -1)
    return normalized(split, (1, 2, 4)).reshape(x.shape).astype(x.dtype) * scale + bias


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    """Of (b, tokens, heads, width of a head), without the dimension of heads."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if mask is not None:
        scores = jnp.where(mask, scores, -1e30)
    shares = jax.nn.softmax(scores).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(*q.shape[:2], -1)


def in_heads(x: Any, count: int, heads: int) -> list[Any]:
    """The parts of (b, tokens, count * width), such as queries, keys and values, each as (b, tokens, heads, ...)."""
    parts = jnp.split(x, count, axis=-1)
    return [part.reshape(*part.shape[:2], heads, -1) for part in parts]


def dense(random: Random, *shape: int) -> Any:
    """A weight and a bias; of several layers, where there are more sizes than two."""
    return random.weight(*shape), random.weight(*shape[:-2], shape[-1])


def norm(random: Random, *shape: int) -> Any:
    """A LayerNorm's or GroupNorm's factors and biases; of several, likewise."""
    return random.ones(*shape), random.weight(*shape)


def apply(x: Any, layer: Any) -> Any:
    """What a layer of `dense` computes."""
    weight, bias = layer
    return x @ weight + bias
