"""Attention in the spellings that programs have: softmax, masks, scales, orders of dimensions, types.

    attention(spelling, types, q, k, v, given)

Each runs in a program's own types and in float64.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

LEAST = float(jnp.finfo(jnp.float32).min)


@dataclasses.dataclass(frozen=True)
class Types:
    """Of a program: its own, or all float64.

    Attributes:
      narrow: of q, k and v.
      wide: of what a program converts to float32.
    """

    narrow: Any
    wide: Any = jnp.float32


EXACT = Types(jnp.float64, jnp.float64)


# ------------------------------------------------------------------------------------------------------------ softmax


def _in_jax(s: Any, axis: int, kept: Any) -> Any:
    return jax.nn.softmax(s, axis=axis)


def _with_where(s: Any, axis: int, kept: Any) -> Any:
    return jax.nn.softmax(s, axis=axis, where=kept)


def _by_hand(s: Any, axis: int, kept: Any) -> Any:
    e = jnp.exp(s - jnp.max(s, axis=axis, keepdims=True))
    return e / jnp.sum(e, axis=axis, keepdims=True)


def _stopped(s: Any, axis: int, kept: Any) -> Any:
    e = jnp.exp(s - lax.stop_gradient(s.max(axis, keepdims=True)))
    return e * (1 / e.sum(axis, keepdims=True))


def _of_powers_of_2(s: Any, axis: int, kept: Any) -> Any:
    s = s * np.log2(np.e).astype(s.dtype)
    e = jnp.exp2(s - lax.stop_gradient(s.max(axis, keepdims=True)))
    return e / e.sum(axis, keepdims=True)


def _without_maximum(s: Any, axis: int, kept: Any) -> Any:
    e = jnp.exp(s)
    return e / e.sum(axis, keepdims=True)


def _logsumexp(s: Any, axis: int, kept: Any) -> Any:
    return jnp.exp(s - jax.nn.logsumexp(s, axis=axis, keepdims=True))


def _log_softmax(s: Any, axis: int, kept: Any) -> Any:
    return jnp.exp(jax.nn.log_softmax(s, axis=axis))


def _clamped(s: Any, axis: int, kept: Any) -> Any:
    e = jnp.exp(s - jnp.max(s, axis=axis, keepdims=True))
    return e / jnp.maximum(jnp.sum(e, axis=axis, keepdims=True), 1e-6)


def _nothing_added(s: Any, axis: int, kept: Any) -> Any:
    """With a sum that has one more, as of a score of 0: no attention of ours."""
    m = jnp.maximum(jnp.max(s, axis=axis, keepdims=True), 0)
    e = jnp.exp(s - m)
    return e / (jnp.sum(e, axis=axis, keepdims=True) + jnp.exp(-m))


SOFTMAX = {
    "jax": _in_jax,
    "where": _with_where,
    "by hand": _by_hand,
    "stopped": _stopped,
    "exp2": _of_powers_of_2,
    "no maximum": _without_maximum,
    "logsumexp": _logsumexp,
    "log_softmax": _log_softmax,
    "clamped": _clamped,
    "one more": _nothing_added,
}
SURE = "jax", "by hand", "stopped", "logsumexp", "log_softmax"  # those that a search has to know

# -------------------------------------------------------------------------------------------------------------- masks

# By name: the letters of its dimensions, and the booleans, of the sizes and of what the program is given.
MASKS: dict[str, tuple[str, Callable[..., Any]]] = {
    "causal": ("qk", lambda t, s: jnp.tril(jnp.ones((t, s), bool), s - t)),
    "iota": ("qk", lambda t, s: jnp.arange(t)[:, None] + (s - t) >= jnp.arange(s)[None]),
    "broadcasted iota": (
        "qk",
        lambda t, s: ~(lax.broadcasted_iota(jnp.int32, (t, s), 1) > lax.broadcasted_iota(jnp.int32, (t, s), 0) + s - t),
    ),
    "window": (
        "qk",
        lambda t, s: (
            (jnp.arange(t)[:, None] + (s - t) >= jnp.arange(s)) & (jnp.arange(t)[:, None] + (s - t) - jnp.arange(s) < 5)
        ),
    ),
    "constant": ("qk", lambda t, s: np.tri(t, s, s - t, dtype=bool)),
    "first keys": ("k", lambda t, s: jnp.arange(s) < max(1, s - 3)),
    "argument": ("bqk", lambda t, s, given: given),
    "of heads": ("bhqk", lambda t, s, given: given),
    "of one": ("qk", lambda t, s, given: given),
    "padding": ("bk", lambda t, s, given: given),
    "floats": ("bk", lambda t, s, given: given > 0.5),
    "lengths": ("bk", lambda t, s, given: jnp.arange(s) < given[..., None]),
    "segments": ("bqk", lambda t, s, given: given[..., -t:, None] == given[..., None, :]),
    "causal segments": (
        "bqk",
        lambda t, s, given: (
            (given[..., -t:, None] == given[..., None, :]) & (jnp.arange(t)[:, None] + (s - t) >= jnp.arange(s))
        ),
    ),
    "causal lengths": (
        "bqk",
        lambda t, s, given: (jnp.arange(s) < given[..., None, None]) & jnp.tril(jnp.ones((t, s), bool), s - t),
    ),
}
APPLIED = "where", "where not", "added", "multiplied", "both"


def given_of(rng: Any, mask: str, b: int, h: int, t: int, s: int, least: int) -> np.ndarray | None:
    """What a program is given of a mask, or None. Each query sees a key, unless the least length is 0.

    Args:
      rng: random numbers.
      mask: a key of `MASKS`.
      b: sequences.
      h: heads of queries.
      t: queries.
      s: keys.
      least: length of a sequence.
    """
    own = np.arange(t)[:, None] + (s - t) == np.arange(s)
    if mask in ("argument", "of heads", "of one"):
        shape = {"argument": (b, t, s), "of heads": (b, h, t, s), "of one": (t, s)}[mask]
        return (rng.random(shape) < 0.6) | own | (np.arange(s) == 0) * (t > s)
    if mask in ("padding", "floats"):
        kept = (rng.random((b, s)) < 0.7) | (np.arange(s) == s // 2)
        return kept if mask == "padding" else kept.astype(np.float32)
    if mask in ("lengths", "causal lengths"):
        return rng.integers(least, s + 1, b).astype(np.int32)
    if mask in ("segments", "causal segments"):
        return np.sort(rng.integers(0, 3, (b, s)), axis=-1).astype(np.int32)
    return None


# ---------------------------------------------------------------------------------------------------------- attention


@dataclasses.dataclass(frozen=True)
class Spelling:
    """How an attention is written.

    Attributes:
      q: the letters of its dimensions: b, t or q, h or n and g, d.
      k: of keys; v has them, too.
      scores: of scores. Those of the result are q's.
      softmax: a key of `SOFTMAX`.
      mask: a key of `MASKS`, or None.
      applied: one of `APPLIED`.
      low: what is put into the place of scores, or added.
      scale: where it stands.
      head_dim: of which it is made.
      scores_in: "narrow", "converted" or "preferred": their type; "wide": queries and keys are converted at first.
      late: shares are divided behind the second product.
      shares: "narrow" or "wide": what is multiplied with v.
      extra: what no kernel computes, or a cap, biases or dropout, which one does; None: nothing.
    """

    q: str
    k: str
    scores: str
    softmax: str
    mask: str | None
    applied: str
    low: float
    scale: str
    head_dim: int
    scores_in: str
    late: bool
    shares: str
    extra: str | None


def attention(one: Spelling, types: Types, q: Any, k: Any, v: Any, given: Any) -> Any:
    """What a spelling computes.

    Args:
      one: how it is written.
      types: of the program.
      q: queries.
      k: keys.
      v: values.
      given: of the mask, if it needs anything.
    """
    factor = one.head_dim**-0.5
    q, k = (x.astype(types.wide) if one.scores_in == "wide" else x for x in (q, k))
    q = q * {"queries": factor, "both": factor**0.5}[one.scale] if one.scale in ("queries", "both") else q
    k = k * {"keys": factor, "both": factor**0.5}[one.scale] if one.scale in ("keys", "both") else k
    preferred = {"preferred_element_type": types.wide} if one.scores_in == "preferred" else {}
    s = jnp.einsum(f"{one.q},{one.k}->{one.scores}", q, k, **preferred)
    s = s + _positions(s, 2) if one.extra == "biases" else s
    s = s.astype(types.wide) if one.scores_in == "converted" else s
    kept = None
    if one.mask is not None:
        letters, of = MASKS[one.mask]
        sizes = q.shape[one.q.index("q")], k.shape[one.k.index("k")]
        kept = of(*sizes) if given is None else of(*sizes, given)
        kept = _aligned(kept, letters if "b" in one.q else letters.replace("b", ""), one.scores, s.shape)
    is_behind = "behind" in one.scale
    s = _masked(one, s, kept, types) if is_behind else s
    if one.scale in ("after", "behind"):
        s = s * factor
    if one.scale in ("divided", "divided behind"):
        s = s / np.sqrt(one.head_dim).astype(np.float32).astype(s.dtype)
    if one.scale == "array":
        s = s * jnp.asarray(factor, s.dtype)
    if one.extra == "cap":
        s = 5 * jnp.tanh(s / 5)
    if one.extra == "bias":
        s = s + (jnp.arange(s.shape[-1]) / s.shape[-1]).astype(s.dtype)
    s = s + _positions(s, 1) if one.extra == "biases" else s
    s = s if is_behind else _masked(one, s, kept, types)
    return _weighted(one, types, s, kept, v)


def _positions(s: Any, dims: int) -> Any:
    """A bias along the last dimensions of scores."""
    indices = (lax.broadcasted_iota(s.dtype, s.shape[-dims:], i) for i in range(dims))
    return sum(x / s.shape[i - dims] for i, x in enumerate(indices))


def _weighted(one: Spelling, types: Types, s: Any, kept: Any, v: Any) -> Any:
    """The sum of values, and perhaps the shares."""
    axis = one.scores.index("k")
    to = types.narrow if one.shares == "narrow" else s.dtype
    spec = f"{one.scores},{one.k}->{one.q}"
    if one.late:
        e = jnp.exp(s - lax.stop_gradient(s.max(axis, keepdims=True)))
        total = jnp.einsum(f"{one.scores}->{one.q.replace('d', '')}", e)
        o = jnp.einsum(spec, e.astype(to), v)
        return (o / jnp.expand_dims(total, one.q.index("d"))).astype(types.narrow)
    shares = SOFTMAX[one.softmax](s, axis, kept)
    if one.extra == "zeroed" and kept is not None:
        shares = jnp.where(kept, shares, 0)
    if one.extra == "dropout":  # the same for a batch and heads
        keep = sum(k * lax.broadcasted_iota(jnp.int32, shares.shape[-2:], i) for i, k in enumerate((5, 3))) % 4 > 0
        shares = shares * (keep.astype(shares.dtype) / jnp.asarray(0.75, shares.dtype))
    if one.extra == "dropped pairs":
        primes = (2, 7, 11, 5, 3)[-shares.ndim :]
        keep = sum(k * lax.broadcasted_iota(jnp.int32, shares.shape, i) for i, k in enumerate(primes)) % 4 > 0
        shares = jnp.where(keep, shares / 0.75, 0)
    o = jnp.einsum(spec, shares.astype(to), v).astype(types.narrow)
    return (o, shares) if one.extra == "shares" else o


def _aligned(kept: Any, letters: str, scores: str, shape: tuple[int, ...]) -> Any:
    """A mask with the dimensions of scores: h is of all heads, n and g of those that share keys."""
    heads = [i for i, x in enumerate(scores) if x in "ng"]
    if "h" in letters and len(heads) == 2:
        at = letters.index("h")
        n, g = shape[scores.index("n")], shape[scores.index("g")]
        kept, letters = kept.reshape(*kept.shape[:at], n, g, *kept.shape[at + 1 :]), letters.replace("h", "ng")
    kept = kept.transpose([letters.index(x) for x in scores if x in letters])
    return kept[tuple(slice(None) if x in letters else None for x in scores)]


def _masked(one: Spelling, s: Any, kept: Any, types: Types) -> Any:
    if kept is None or one.softmax == "where":
        return s
    low = one.low
    if low > -np.inf:
        low = max(low, float(jnp.finfo(types.narrow).min)) if one.scores_in == "narrow" else low
        low = max(low, -6e4) if s.dtype == jnp.float16 else low
    if one.applied == "where":
        return jnp.where(kept, s, low)
    if one.applied == "where not":
        return jnp.where(jnp.logical_not(kept), jnp.asarray(low, s.dtype), s)
    if one.applied == "added":
        return s + jnp.where(kept, 0.0, low).astype(s.dtype)
    if one.applied == "multiplied":
        return s + (1 - jnp.asarray(kept, s.dtype)) * max(low, LEAST / 4)
    return jnp.where(kept, s + jnp.where(kept, 0, low).astype(s.dtype), low)
