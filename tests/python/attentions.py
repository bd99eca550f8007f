"""Attention as programs write it, and what it is in float64: what tests of the search and of the primitives share."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import UNIT

import jax_moye
from jax_moye._kernels.configs import ConfigTable, GemmConfig, attention_configs
from jax_moye._primitives import rewriting
from jax_moye._primitives.attention import rounded_to_tf32
from jax_moye._primitives.attention_finding import _as_equations

ROUNDING = UNIT | {"float32": 2.0**-11}  # of what products read: float32 to TF32
B, T, S, H, D = 2, 24, 24, 2, 16  # batch, rows of queries and of keys, heads, head_dim


def fake_row(dtype: str = "bf16", tile: tuple[int, int, int] = (128, 128, 64), gradients: bool = False) -> GemmConfig:
    """A row of sm90_attention, or of its gradients, as the table has them."""
    kernel = "sm90_attention_grad" if gradients else "sm90_attention"
    return GemmConfig(
        name=f"{kernel}_{dtype}_{'x'.join(map(str, tile))}_s2_a16",
        kernel=kernel,
        dtype=dtype,
        accumulator="f32",
        out_dtypes=(dtype,),
        tile=tile,
        stages=2,
        cluster=(1, 1),
        alignment=16,
        orders=("NT",),
        any_stride=False,
        threads=384,
        smem_bytes=100_000,
        min_arch=90,
        max_arch=90,
        attention=True,
    )


TILES = (128, 128, 128), (128, 128, 64), (64, 64, 128)
FAKE = ConfigTable(
    fake_row(dtype, tile, one) for dtype in ("bf16", "f16", "tf32") for tile in TILES for one in (False, True)
)


needs_rows = pytest.mark.skipif(
    len({config.kernel for config in attention_configs()}) < 2, reason="no rows of sm90_attention in this build"
)


def use_fake_rows(monkeypatch: Any) -> None:
    """Lets the search find attention of any size, whatever rows this build has."""
    from jax_moye._selection import attention

    monkeypatch.setattr(attention, "attention_configs", lambda: FAKE)
    monkeypatch.setattr(attention, "LEAST_SCORES", 0)


def mask_of(q: Any, k: Any) -> Any:
    return jnp.tril(jnp.ones((q.shape[1], k.shape[1]), bool), k.shape[1] - q.shape[1])


def _plain(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """As the built-in models have it."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(mask_of(q, k), scores, -1e30)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def _of_16_bits(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """All in the products' type, the mask in front of the scale, -inf, a division."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    if causal:
        scores = jnp.where(mask_of(q, k), scores, -jnp.inf)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores / 4), v)


def _by_hand(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """A softmax that somebody wrote, which is differentiated through its maximum; iota in place of tril."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / np.sqrt(q.shape[-1])
    if causal:
        i, j = jnp.arange(q.shape[1])[:, None] + (k.shape[1] - q.shape[1]), jnp.arange(k.shape[1])[None]
        scores = jnp.where(j > i, jnp.finfo(jnp.float32).min, scores)
    e = jnp.exp(scores - jnp.max(scores, axis=-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", (e / jnp.sum(e, axis=-1, keepdims=True)).astype(q.dtype), v)


def _by_logarithms(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """exp(scores - logsumexp), and a mask that is added."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        scores = scores + jnp.where(mask_of(q, k), 0.0, -1e30)
    shares = jnp.exp(scores - jax.nn.logsumexp(scores, axis=-1, keepdims=True))
    return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(q.dtype), v)


def _log_softmax(q: Any, k: Any, v: Any, causal: bool) -> Any:
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
    if causal:
        scores -= 1e30 * (1 - mask_of(q, k).astype(jnp.float32))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.exp(jax.nn.log_softmax(scores)).astype(q.dtype), v)


def _heads_first(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """As PyTorch's: (b,h,t,d), by matmul, keys transposed."""
    q, k, v = (jnp.swapaxes(x, 1, 2) for x in (q, k, v))
    scores = (q @ jnp.swapaxes(k, -1, -2)).astype(jnp.float32) * 0.25
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool), k.shape[2] - q.shape[2]), scores, -1e10)
    return jnp.swapaxes(jax.nn.softmax(scores, axis=-1).astype(v.dtype) @ v, 1, 2)


def _keys_first(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Scores are (keys, queries), and the softmax is over the first of them."""
    scores = jnp.einsum("bkhd,bqhd->bhkq", k, q).astype(jnp.float32) * 0.25
    if causal:
        scores = jnp.where(mask_of(q, k).T, scores, -1e30)
    return jnp.einsum("bhkq,bkhd->bqhd", jax.nn.softmax(scores, axis=-2).astype(q.dtype), v)


def _mapped(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Of one head of one sequence, mapped."""

    def of_head(q: Any, k: Any, v: Any) -> Any:
        scores = (q @ k.T).astype(jnp.float32) * 0.25
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones(scores.shape, bool), k.shape[0] - q.shape[0]), scores, -1e30)
        return jax.nn.softmax(scores).astype(v.dtype) @ v

    return jax.vmap(jax.vmap(of_head, in_axes=1, out_axes=1))(q, k, v)


def _of_jax(q: Any, k: Any, v: Any, causal: bool) -> Any:
    causal = causal and q.shape[1] == k.shape[1]
    return jax.nn.dot_product_attention(q, k, v, is_causal=causal, implementation="xla")


def _of_linen(q: Any, k: Any, v: Any, causal: bool) -> Any:
    import flax.linen as nn

    mask = nn.make_causal_mask(jnp.ones(q.shape[:2])) if causal and q.shape[1] == k.shape[1] else None
    return nn.dot_product_attention(q, k, v, mask=mask)


def _of_nnx(q: Any, k: Any, v: Any, causal: bool) -> Any:
    from flax import nnx

    mask = nnx.make_causal_mask(jnp.ones(q.shape[:2])) if causal and q.shape[1] == k.shape[1] else None
    return nnx.dot_product_attention(q, k, v, mask=mask)


def _scaled_in_f32(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Queries are divided in float32, in which scores and softmax are, as Hugging Face's Llama has it."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    depth = jnp.sqrt(q.shape[-1]).astype(wide)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q.astype(wide) / depth, k.astype(wide))
    if causal:
        scores = scores + jnp.where(mask_of(q, k), 0, jnp.finfo(q.dtype).min).astype(q.dtype)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)


def _of_all_heads(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Weights are multiplied by a mask of heads, which has all of them, as Hugging Face's BERT has it."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q / jnp.sqrt(q.shape[-1]).astype(q.dtype), k)
    if causal:
        scores = jnp.where(mask_of(q, k), scores, jnp.finfo(q.dtype).min)
    heads = jnp.ones((2, q.shape[2]), "i4")[1]
    shares = jnp.einsum("...hqk,h->...hqk", jax.nn.softmax(scores).astype(q.dtype), heads)
    return jnp.einsum("bhqk,bkhd->bqhd", shares, v)


def _repeated(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Keys and values are repeated for the queries that share them."""
    k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    return _plain(q, k, v, causal)


def _in_groups(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Queries in groups, keys as they are."""
    grouped = q.reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("btngd,bsnd->bngts", grouped, k).astype(jnp.float32) * 0.25
    if causal:
        scores = jnp.where(mask_of(q, k), scores, -1e30)
    return jnp.einsum("bngts,bsnd->btngd", jax.nn.softmax(scores).astype(q.dtype), v).reshape(q.shape)


def _wide_groups(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Queries and keys are converted in front of what moves them, as maxtext has it; so are their gradients."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    grouped = q.astype(wide).reshape(*q.shape[:2], k.shape[2], -1, q.shape[-1])
    scores = jnp.einsum("btngd,nsbd->bngts", grouped, k.astype(wide).transpose(2, 1, 0, 3)) * 0.25
    if causal:
        scores = scores + jnp.where(mask_of(q, k), 0.0, -0.7 * float(jnp.finfo(jnp.float32).max))
    return jnp.einsum("bngts,bsnd->btngd", jax.nn.softmax(scores).astype(q.dtype), v).reshape(q.shape)


def _made_one(q: Any, k: Any, v: Any, causal: bool) -> Any:
    """Queries in groups; the dimensions of keys and groups are one where the softmax is, as Gemma has it."""
    b, t, h, d = q.shape
    s, n = k.shape[1:3]
    scores = jnp.einsum("btngd,bsnd->btngs", q.reshape(b, t, n, -1, d), k).reshape(b, t, h, s)
    scores = scores.astype(jnp.float32) * 0.25
    if causal:
        scores = jnp.where(mask_of(q, k)[:, None], scores, -1e30)
    shares = jax.nn.softmax(scores).astype(q.dtype).reshape(b, t, n, -1, s)
    return jnp.einsum("btngs,bsnd->btngd", shares, v).reshape(q.shape)


FLAX = importlib.util.find_spec("flax") is not None
FORMS: dict[str, Callable[..., Any]] = {
    "plain": _plain,
    "of 16 bits": _of_16_bits,
    "by hand": _by_hand,
    "by logarithms": _by_logarithms,
    "log_softmax": _log_softmax,
    "heads first": _heads_first,
    "keys first": _keys_first,
    "mapped": _mapped,
    "of jax": _of_jax,
    "scaled in f32": _scaled_in_f32,
    "of all heads": _of_all_heads,
} | ({"of linen": _of_linen, "of nnx": _of_nnx} if FLAX else {})
GROUPED: dict[str, Callable[..., Any]] = {
    "repeated": _repeated,
    "in groups": _in_groups,
    "wide groups": _wide_groups,
    "made one": _made_one,
    "of jax": _of_jax,
}


def arrays(rng: Any, *shapes: tuple[int, ...], dtype: Any = jnp.bfloat16) -> list[jax.Array]:
    return [jnp.asarray(rng.normal(size=shape), dtype) for shape in shapes]


def operands(rng: Any, sizes: tuple[int, ...] = (B, T, S, H, H, D), dtype: Any = jnp.bfloat16) -> list[jax.Array]:
    """q, k, v and d_o of batch, rows, heads of queries and of keys, and head_dim."""
    b, t, s, h, n, d = sizes
    return arrays(rng, (b, t, h, d), (b, s, n, d), (b, s, n, d), (b, t, h, d), dtype=dtype)


def gradients(fun: Callable[..., Any], causal: bool, checkpoint: bool = False) -> Callable[..., Any]:
    """The result, and the derivatives by q, k and v."""

    def of_all(q: Any, k: Any, v: Any, d_o: Any) -> Any:
        of_arrays = lambda q, k, v: fun(q, k, v, causal)  # noqa: E731
        out, pullback = jax.vjp(jax.checkpoint(of_arrays) if checkpoint else of_arrays, q, k, v)
        return (out, *pullback(d_o))

    return of_all


def exact(q: Any, k: Any, v: Any, d_o: Any, causal: bool) -> list[np.ndarray]:
    """The result and the three gradients in float64, by NumPy."""
    rows, keys = q.shape[1], k.shape[1]
    mask = np.tril(np.ones((rows, keys), bool), keys - rows) if causal else np.ones((rows, keys), bool)
    return exact_behind(q, k, v, d_o, mask, -np.inf)


def exact_behind(
    q: Any, k: Any, v: Any, d_o: Any, mask: Any, low: Any = -1e30, is_added: bool = False, of_weights: Any = 1.0
) -> list[np.ndarray]:
    """The same behind a mask, which puts `low` in the place of scores, or adds it, so that nothing is left of them.

    Of weights that have dropout `of_weights` is the factor, or 0.
    """
    q, k, v, d_o = (np.asarray(x, np.float64) for x in (q, k, v, d_o))
    group, scale = q.shape[2] // k.shape[2], q.shape[-1] ** -0.5
    wide_k, wide_v = (np.repeat(x, group, axis=2) for x in (k, v))
    scores = np.where(mask, np.einsum("bqhd,bkhd->bhqk", q, wide_k) * scale, low)
    with np.errstate(invalid="ignore"):  # of a row of nothing but -inf
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    p /= p.sum(axis=-1, keepdims=True)
    dropped, dp = of_weights * p, of_weights * np.einsum("bqhd,bkhd->bhqk", d_o, wide_v)
    ds = np.where(mask | is_added, p * (dp - np.sum(dp * p, axis=-1, keepdims=True)) * scale, 0)
    dk, dv = np.einsum("bhqk,bqhd->bkhd", ds, q), np.einsum("bhqk,bqhd->bkhd", dropped, d_o)
    dk, dv = (x.reshape(*k.shape[:3], group, k.shape[3]).sum(axis=3) for x in (dk, dv))
    return [np.einsum("bhqk,bkhd->bqhd", dropped, wide_v), np.einsum("bhqk,bkhd->bqhd", ds, wide_k), dk, dv]


def assert_as_exact(results: Any, before: Any, expected: list[np.ndarray], dtype: Any) -> None:
    """The largest errors are at most those of the program as it was, or a few roundings of the largest element."""
    for result, other, right in zip(results, before, expected, strict=True):
        errors = [np.abs(np.asarray(x, np.float64) - right).max() for x in (result, other)]
        assert errors[0] <= max(1.2 * errors[1], 4 * ROUNDING[jnp.dtype(dtype).name] * np.abs(right).max()), errors


def products_in_tf32() -> Any:
    """A context in which `optimize` finds no attention, and rounds operands of products of float32 to TF32.

    On a CPU that is what a program is on a GPU.
    """

    def with_tf32(jaxpr: Any, parameters: Any, rewrite: Any) -> Any:
        new = []
        for one in jaxpr.eqns:
            if one.primitive.name == "dot_general" and all(x.aval.dtype == jnp.float32 for x in one.invars):
                of_tf32 = lambda *x, one=one: one.primitive.bind(*map(rounded_to_tf32, x), **one.params)  # noqa: E731
                *before, product = _as_equations(of_tf32, one.invars, one)[0]
                new += [*before, product.replace(outvars=one.outvars)]
            else:
                new.append(one)
        return jaxpr.replace(eqns=new)

    return mock.patch.object(rewriting, "with_attention", with_tf32)


def counts(fun: Callable[..., Any], *args: Any) -> tuple[int, int, int]:
    """Of attentions, of their gradients, and of other products in a function's jaxpr."""
    text = str(jax.make_jaxpr(fun)(*args))
    names = "jax_moye_attention[", "jax_moye_attention_grad[", "dot_general["
    first, second, third = (text.count(name) for name in names)
    return first, second, third + sum(text.count(f"jax_moye_{name}[") for name in ("contract", "rewritten"))


# By how a program has its softmax: the dtypes of the arrays, of the product of scores if it is not that, and of the
# softmax.
NEARLY_EQUAL = {
    "16 bits": (jnp.bfloat16, None, jnp.bfloat16),
    "float32 softmax": (jnp.bfloat16, None, jnp.float32),
    "float32 scores": (jnp.bfloat16, jnp.float32, jnp.float32),
    "float16": (jnp.float16, None, jnp.float32),
    "float32": (jnp.float32, None, jnp.float32),
}


def errors_where_weights_are_nearly_equal(name: str, offset: float, **options: Any) -> tuple[float, float]:
    """By how much of its largest element the gradient of queries is off: a kernel's, and the program's own.

    It is small beside what it is the difference of, where keys and values have a mean.

    Args:
      name: of NEARLY_EQUAL.
      offset: the mean of keys and values.
      **options: where the kernel runs.
    """
    rng = np.random.default_rng(0)
    dtype, of_scores, of_softmax = NEARLY_EQUAL[name]
    q, k, v, d_o = (rng.standard_normal((1, 256, 2, 64)) for _ in range(4))
    given = [jnp.asarray(x, dtype) for x in (q / 50, k + offset, v + offset, d_o)]

    def derivative(q: Any, k: Any, v: Any, d_o: Any) -> Any:
        def form(q: Any, k: Any, v: Any) -> Any:
            is_exact = q.dtype == jnp.float64
            of_product = {} if is_exact or of_scores is None else {"preferred_element_type": of_scores}
            scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, **of_product) / 8
            shares = jax.nn.softmax(scores.astype(q.dtype if is_exact else of_softmax), axis=-1)
            return jnp.einsum("bhqk,bkhd->bqhd", shares.astype(v.dtype), v)

        return jax.vjp(form, q, k, v)[1](d_o)[0]

    with jax.enable_x64(True):
        wanted = np.asarray(derivative(*(jnp.asarray(np.asarray(x, np.float64)) for x in given)))
    by_name = "TF32_TF32_F32" if dtype == jnp.float32 else None
    with jax_moye.options(implementation="moye", **options), jax.default_matmul_precision(by_name):
        fun = jax_moye.optimize(derivative)
        assert counts(fun, *given)[:2] == (1, 1), name
        found = jax.jit(fun)(*given)
    if by_name and options:  # in the emulator
        with products_in_tf32():
            before = jax.jit(jax_moye.optimize(lambda *x: derivative(*x)))(*given)
    else:
        before = jax.jit(derivative)(*given)
    of_kernel, of_program = (
        float(np.abs(np.asarray(x, np.float64) - wanted).max() / np.abs(wanted).max()) for x in (found, before)
    )
    return of_kernel, of_program
