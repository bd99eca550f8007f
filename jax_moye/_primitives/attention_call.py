"""The custom calls of attention and of its gradients. What they compute is AttentionArgs of cuda/gemm/config.h.

Arrays are dense, or parts of larger ones. A string names the dimensions of one, a letter each: b batch, h heads, q or k
the rows of queries or of keys and values, d head_dim, which is last. "bqhd" and "bkhd" are arrays as flax has them,
"bhqd" and "bhkd" as PyTorch has. A letter that is there several times stands for dimensions that are one together, the
first outermost: "bbqhd" has two of a batch, "bqhhd" heads in groups. A letter that is not there is a dimension of size
1.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.custom_call import call_attributes
from jax_moye._selection.attention import is_aligned
from jax_moye._selection.view import View

_NO_VIEWS: Mapping[str, View] = types.MappingProxyType({})
_OPERANDS = ("q", "k", "v", "d_o")  # that may be parts of larger arrays


class Dropout(NamedTuple):
    """Which weights of an attention are dropped.

    Attributes:
      kept: booleans, false where one is dropped.
      dims: the dimensions of these, see `mask_strides`.
      factor: of weights that are not dropped.
    """

    kept: jax.Array
    dims: str
    factor: float


class AttentionView(NamedTuple):
    """An array as a kernel sees it.

    Attributes:
      sizes: batch, heads, rows, head_dim.
      strides: along the first three of them, in elements.
    """

    sizes: tuple[int, int, int, int]
    strides: tuple[int, int, int]


def attention_view(view: View, dims: str) -> AttentionView | None:
    """What a kernel sees of an array; None where dimensions of one letter are not one together, or rows not contiguous.

    Args:
      view: of the array.
      dims: its dimensions, as on top of this file.
    """
    rows = "k" if "k" in dims else "q"
    assert dims.find("d") == len(dims) - 1, dims
    modes = _modes(view, dims, f"bh{rows}d", view.shape[-1])  # a stride along a size of 1: a multiple of 16 bytes, too
    if modes is None:
        return None
    (batch, of_batch), (heads, of_heads), (of_rows, of_row), (head_dim, of_element) = modes
    if head_dim > 1 and of_element != 1:
        return None
    return AttentionView((batch, heads, of_rows, head_dim), (of_batch, of_heads, of_row))


def mask_strides(shape: Sequence[int], dims: str, sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The strides of a dense mask along batch, heads, rows and columns, 0 where it is the same for all.

    None where dimensions of one letter are not one together, or have sizes that are neither 1 nor the scores'.

    Args:
      shape: of the mask.
      dims: its dimensions: b, h, q and k, in any order; also those that are not there are the same for all.
      sizes: of the scores, (batch, heads, rows, columns).
    """
    modes = _modes(View.whole(shape), dims, "bhqk", 0)
    if modes is None or any(size not in (1, of) for (size, _), of in zip(modes, sizes, strict=True)):
        return None
    return tuple(stride for _, stride in modes)


def _modes(view: View, dims: str, letters: str, of_one: int) -> list[tuple[int, int]] | None:
    """Size and stride of each letter; the stride of one of size 1 is `of_one`."""
    assert len(view.shape) == len(dims), (view, dims)
    assert set(dims) <= {*letters}, dims
    sizes, strides = dict.fromkeys(letters, 1), dict.fromkeys(letters, of_one)
    for size, stride, letter in reversed(list(zip(view.shape, view.strides, dims, strict=True))):
        if size != 1:
            if sizes[letter] == 1:
                strides[letter] = stride
            elif stride != strides[letter] * sizes[letter]:
                return None
            sizes[letter] *= size
    return [(sizes[letter], strides[letter]) for letter in letters]


@dataclasses.dataclass(frozen=True)
class AttentionProblem:
    """What both calls are told of their arrays.

    Attributes:
      sizes: batch, heads of keys and values, heads of queries for each of them, rows of queries, rows of keys and
        values, head_dim.
      strides: by the array's name: along batch, heads and rows, in elements.
      offsets: likewise: elements of what it is part of in front of it.
    """

    sizes: tuple[int, ...]
    strides: dict[str, tuple[int, ...]]
    offsets: dict[str, int] = dataclasses.field(default_factory=dict)


def run_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    *,
    config: GemmConfig,
    dims_q: str,
    dims_k: str,
    dims_v: str,
    dims_o: str | None = None,
    scale: float,
    diagonal: int | None,
    cap: float | None = None,
    mask: jax.Array | None = None,
    dims_mask: str = "bhqk",
    mask_is_infinite: bool = False,
    bias: jax.Array | None = None,
    dims_bias: str = "bhqk",
    dropout: Dropout | None = None,
    with_rest: bool = False,
    views: Mapping[str, View] = _NO_VIEWS,
    interpret: InterpretParams | None = None,
) -> tuple[jax.Array, ...]:
    """Attention by a kernel.

    Args:
      q: queries, of the config's dtype: float32 of TF32.
      k: keys, of its dtype; their heads divide those of q.
      v: values, likewise.
      config: a row of sm90_attention.
      dims_q: the dimensions of q.
      dims_k: of k.
      dims_v: of v.
      dims_o: of the result, those of q in another order; None: in q's.
      scale: of the scores.
      diagonal: row i of the queries sees keys up to i + diagonal; None: all.
      cap: of the scores: cap * tanh(score / cap) is in the place of each; None: there is none. Not with a bias.
      mask: booleans, false where a score is masked; None: no score is.
      dims_mask: its dimensions, see `mask_strides`.
      mask_is_infinite: masked scores are -inf, and a row of no other is NaN; else they are low, and such a row is the
        mean of all.
      bias: what is added to the scores behind the scale, float32 or of q's dtype; None: nothing is.
      dims_bias: its dimensions, see `mask_strides`.
      dropout: of the weights, whose sums are of all; None: no weight is dropped. Not with a cap.
      with_rest: what rounding took from the result is another result, rounded itself.
      views: by name, of q, k and v that are parts of larger arrays, which are then what is given: which parts. Their
        dimensions are those that are named.
      interpret: how the emulator runs it; None on a GPU.

    Returns:
      The result, and the logarithm of each row's sum of exponentials of scores, f32 (batch, heads, rows), or, with a
      bias, (2, batch, heads, rows), its largest score and the logarithm of the sum of exponentials of scores less that;
      the rest, of the result's shape and dtype, if it is wanted.
    """
    dims_o = dims_q if dims_o is None else dims_o
    seen = _seen(views, q=q, k=k, v=v)
    o = jax.ShapeDtypeStruct(_permuted(seen["q"].shape, dims_q, dims_o), q.dtype)
    problem = make_attention_problem(
        q=(seen["q"], dims_q), k=(seen["k"], dims_k), v=(seen["v"], dims_v), o=(View.whole(o.shape), dims_o)
    )
    batch, kv_heads, group, q_rows, *_ = problem.sizes
    of_rows = batch, kv_heads * group, q_rows
    lse = jax.ShapeDtypeStruct(of_rows if bias is None else (2, *of_rows), jnp.float32)
    attributes = _attributes(config, problem, scale, diagonal, interpret)
    attributes |= _mask_attributes(problem, mask, dims_mask, mask_is_infinite)
    target = ffi.VIEW_ATTENTION_TARGET if problem.offsets else ffi.ATTENTION_TARGET
    assert cap is None or bias is None
    if cap is not None:
        target = ffi.CAPPED_ATTENTION_TARGET
        attributes |= _offsets(problem, "qkv") | {"cap": np.float64(cap)}
    if bias is not None:
        target = ffi.BIASED_ATTENTION_TARGET
        attributes |= _offsets(problem, "qkv") | {"bias_strides": _strides_of_scores("bias", problem, bias, dims_bias)}
    if dropout is not None:
        assert cap is None
        target = ffi.DROPPED_ATTENTION_TARGET
        attributes |= _offsets(problem, "qkv") | _dropout_attributes(problem, dropout, bias)
    behind = [x for x in (dropout and dropout.kept, bias, mask) if x is not None]
    with jax.named_scope(config.name):  # what a profiler shows
        run = jax.ffi.ffi_call(target, (o, lse, *[o] * with_rest))
        return tuple(run(q, k, v, *behind, **attributes))


def run_attention_grad(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    d_o: jax.Array,
    lse: jax.Array,
    delta: jax.Array,
    *,
    config: GemmConfig,
    dims_q: str,
    dims_k: str,
    dims_v: str,
    dims_o: str | None = None,
    scale: float,
    diagonal: int | None,
    cap: float | None = None,
    mask: jax.Array | None = None,
    dims_mask: str = "bhqk",
    mask_is_infinite: bool = False,
    mask_has_gradients: bool = False,
    bias: jax.Array | None = None,
    dims_bias: str = "bhqk",
    dropout: Dropout | None = None,
    ds_dtype: Any = None,
    ds_parts: int = 1,
    views: Mapping[str, View] = _NO_VIEWS,
    joined: Mapping[str, View] = _NO_VIEWS,
    interpret: InterpretParams | None = None,
) -> tuple[jax.Array, ...]:
    """The gradients of `run_attention`, whose arguments are these, by a kernel.

    Args:
      q: queries.
      k: keys.
      v: values.
      d_o: the cotangent of the result, of q's dtype.
      lse: of `run_attention`.
      delta: f32 (batch, heads, rows), the sums over rows of the result, with its rest if there is one, times its
        cotangent.
      config: a row of sm90_attention_grad.
      dims_q: the dimensions of q.
      dims_k: of k.
      dims_v: of v.
      dims_o: of d_o; None: those of q.
      scale: of the scores.
      diagonal: as there.
      cap: as there.
      mask: as there. No gradient goes through a score that is masked.
      dims_mask: as there.
      mask_is_infinite: as there. Of a row whose scores are all masked the values still have gradients, those of its
        result: of a mean, or NaN.
      mask_has_gradients: in a row whose scores are all masked, these have gradients as any others. Only with dropout,
        and not if they are -inf.
      bias: as there.
      dims_bias: as there.
      dropout: as there.
      ds_dtype: float32 or q's dtype: the gradient of the bias, before it is summed over what it is the same for, is
        another result of this dtype; None: nobody wants it.
      ds_parts: 2: the derivative of the scores is multiplied as its rounding and that of what this took from it.
      views: as there, also of d_o.
      joined: by name, of dq, dk and dv: those that are parts of one array, which is a result in their place, and which
        parts; see `can_be_joined`. Without a cap, a bias and dropout.
      interpret: how the emulator runs it; None on a GPU.

    Returns:
      The cotangents of q, k and v, each dense with the dimensions of its array, but for those that are joined; the
      array of these, if there is one; and the cotangent of the scores behind their scale, (batch, heads, rows,
      columns), if it is wanted.
    """
    seen = _seen(views, q=q, k=k, v=v, d_o=d_o)
    dims = {"q": dims_q, "k": dims_k, "v": dims_v, "d_o": dims_q if dims_o is None else dims_o}
    results: tuple[Any, ...] = tuple(
        jax.ShapeDtypeStruct(seen[name].shape, x.dtype) for name, x in (("q", q), ("k", k), ("v", v))
    )
    written = {f"d{name}": (View.whole(seen[name].shape), dims[name]) for name in "qkv"}
    written |= {name: (view, written[name][1]) for name, view in joined.items()}
    problem = make_attention_problem(**{name: (seen[name], dims[name]) for name in seen}, **written)
    attributes = _attributes(config, problem, scale, diagonal, interpret)
    attributes |= _mask_attributes(problem, mask, dims_mask, mask_is_infinite)
    attributes |= _offsets(problem, _OPERANDS)
    attributes["ds_parts"] = np.int64(ds_parts)
    target = ffi.VIEW_ATTENTION_GRAD_TARGET
    assert cap is None or bias is None
    if cap is not None:
        target = ffi.CAPPED_ATTENTION_GRAD_TARGET
        attributes["cap"] = np.float64(cap)
    if bias is not None:
        target = ffi.BIASED_ATTENTION_GRAD_TARGET
        attributes["bias_strides"] = _strides_of_scores("bias", problem, bias, dims_bias)
    assert dropout is not None or not mask_has_gradients
    if dropout is not None:
        assert cap is None
        target = ffi.DROPPED_ATTENTION_GRAD_TARGET
        attributes |= _dropout_attributes(problem, dropout, bias) | {"mask_has_gradients": mask_has_gradients}
    if joined:
        target, alone = ffi.JOINED_ATTENTION_GRAD_TARGET, [name for name in written if name not in joined]
        assert cap is None
        assert bias is None
        assert dropout is None
        attributes |= {f"{name}_offset": np.int64(view.offset) for name, (view, _) in written.items()}
        attributes["result_of"] = np.array([[*alone, name].index(name) for name in written], np.int64)
        (source,) = {view.source for view in joined.values()}
        by_name = dict(zip(written, results, strict=True))
        results = *(by_name[name] for name in alone), jax.ShapeDtypeStruct(source, q.dtype)
    if ds_dtype is not None:
        results = *results, jax.ShapeDtypeStruct(_scores_of(problem), ds_dtype)
    behind = [x for x in (dropout and dropout.kept, bias, mask) if x is not None]
    with jax.named_scope(config.name):
        return tuple(jax.ffi.ffi_call(target, results)(q, k, v, d_o, lse, delta, *behind, **attributes))


def can_be_joined(joined: Mapping[str, View], dims: Mapping[str, str], dtype: Any) -> bool:
    """Whether a kernel writes gradients as parts of one array: they are all of it, in strides that it stores by.

    Args:
      joined: by name, which parts.
      dims: by name, their dimensions.
      dtype: of the array.
    """
    (source,) = {view.source for view in joined.values()}
    is_all = sum(math.prod(view.shape) for view in joined.values()) == math.prod(source) > 0
    is_stored = (attention_view(view, dims[name]) and is_aligned(view, dtype) for name, view in joined.items())
    return is_all and all(is_stored)


def _seen(views: Mapping[str, View], **arrays: Any) -> dict[str, View]:
    """Which parts of operands a kernel reads."""
    seen = {name: views.get(name) or View.whole(x.shape) for name, x in arrays.items()}
    assert all(seen[name].source == x.shape for name, x in arrays.items()), (views, arrays)
    return seen


def make_attention_problem(**arrays: tuple[View, str]) -> AttentionProblem:
    """The problem of arrays and their dimensions.

    Args:
      **arrays: by their names of AttentionArgs; q and k are among them.

    Raises:
      ValueError: they do not belong together, or dimensions of one letter are not one together.
    """
    views = {}
    for name, (x, dims) in arrays.items():
        view = attention_view(x, dims)
        if view is None:
            raise ValueError(f"{name}: dimensions {dims} of {x.shape} are not one for each letter")
        views[name] = view
    batch, heads, q_rows, head_dim = views["q"].sizes
    kv_heads, kv_rows = views["k"].sizes[1:3]
    of_queries, of_keys = (batch, heads, q_rows, head_dim), (batch, kv_heads, kv_rows, head_dim)
    for name, view in views.items():
        expected = of_keys if name in ("k", "v", "dk", "dv") else of_queries
        if view.sizes != expected:
            raise ValueError(f"{name}: batch, heads, rows and head_dim are {view.sizes}, not {expected}")
    if kv_heads and heads % kv_heads:
        raise ValueError(f"{kv_heads} heads of keys and values do not divide {heads} of queries")
    sizes = batch, kv_heads, heads // kv_heads if kv_heads else 1, q_rows, kv_rows, head_dim
    offsets = {name: x.offset for name, (x, _) in arrays.items() if name in _OPERANDS}
    strides: dict[str, tuple[int, ...]] = {name: view.strides for name, view in views.items()}
    return AttentionProblem(sizes, strides, offsets if any(offsets.values()) else {})


def _permuted(shape: Sequence[int], dims: str, wanted: str) -> tuple[int, ...]:
    """The shape with its dimensions in another order; those of one letter stay in theirs."""
    assert sorted(dims) == sorted(wanted), (dims, wanted)
    of_letter = {letter: iter([s for s, x in zip(shape, dims, strict=True) if x == letter]) for letter in set(dims)}
    return tuple(next(of_letter[letter]) for letter in wanted)


def _attributes(
    config: GemmConfig,
    problem: AttentionProblem,
    scale: float,
    diagonal: int | None,
    interpret: InterpretParams | None,
) -> dict[str, Any]:
    """Those of all targets."""
    assert math.isfinite(scale), scale
    of_views = {f"{name}_offset": np.int64(offset) for name, offset in problem.offsets.items()}
    return (
        call_attributes(config, problem, interpret)
        | of_views
        | {
            "scale": np.float64(scale),
            "is_causal": diagonal is not None,
            "diagonal": np.int64(diagonal or 0),
        }
    )


def _offsets(problem: AttentionProblem, names: Sequence[str]) -> dict[str, Any]:
    """Those of arrays, of which none may have one."""
    return {f"{name}_offset": np.int64(problem.offsets.get(name, 0)) for name in names}


def _mask_attributes(problem: AttentionProblem, mask: jax.Array | None, dims: str, is_infinite: bool) -> dict[str, Any]:
    """Those of targets that take a mask."""
    strides = np.zeros(4, np.int64) if mask is None else _strides_of_scores("mask", problem, mask, dims)
    return {"mask_strides": strides, "mask_is_infinite": is_infinite}


def _dropout_attributes(problem: AttentionProblem, dropout: Dropout, bias: jax.Array | None) -> dict[str, Any]:
    """Those of targets whose weights have dropout, which have a bias or not."""
    strides = _strides_of_scores("dropout", problem, dropout.kept, dropout.dims)
    of_bias = {} if bias is not None else {"bias_strides": np.zeros(4, np.int64)}
    return of_bias | {"dropout_strides": strides, "dropout_factor": np.float64(dropout.factor)}


def _scores_of(problem: AttentionProblem) -> tuple[int, int, int, int]:
    """The sizes of the scores: batch, heads, rows, columns."""
    batch, kv_heads, group, q_rows, kv_rows, _ = problem.sizes
    return batch, kv_heads * group, q_rows, kv_rows


def _strides_of_scores(name: str, problem: AttentionProblem, x: jax.Array, dims: str) -> np.ndarray:
    """The strides of a mask or a bias.

    Raises:
      ValueError: it is not one of the scores.
    """
    strides = mask_strides(x.shape, dims, _scores_of(problem))
    if strides is None:
        raise ValueError(f"{name}: dimensions {dims} of {tuple(x.shape)} are not those of the scores")
    return np.array(strides, np.int64)
