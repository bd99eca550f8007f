"""What a kernel of attention computes of arrays in memory, and what stands around its call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_moye._primitives.attention import OPERANDS, AttentionParams, KernelArrays, labels_in_memory, moved
from jax_moye._primitives.attention_call import Dropout, run_attention, run_attention_grad
from jax_moye._primitives.attention_joined import Joined


def by_kernel(
    *operands: Any,
    params: AttentionParams,
    places: Sequence[Any],
    arrays: KernelArrays,
    config: Any,
    results: Sequence[str],
    shares_dtype: Any,
    joined: Joined | None = None,
) -> list[Any]:
    """Runs attention's kernel, or that of its gradients, and what stands around the call.

    Args:
      operands: of attention_p or attention_grad_p, as they are in memory.
      params: of the attention.
      places: where the elements of q, k, v and d_o are in them, as views.
      arrays: how the kernel reads these.
      config: of the kernel.
      results: the gradients that are wanted: of "dq", "dk", "dv" and "ds".
      shares_dtype: of the shares of others.
      joined: the gradients that are parts of one array, if some are.

    Returns:
      The program's results, each in the order of its dimensions there. Of attention_p: o, lse (f32) and, if there is
      one, the rest of o; where others have a share of the softmax, o and the shares. Of attention_grad_p: `results`,
      but for those that are joined, and the array of these behind them.
    """
    given = []
    for x, place, name in zip(operands, places, OPERANDS, strict=False):
        if place.is_whole:
            labels, view = labels_in_memory(place, params.of(name))
            x = moved(x.reshape(view.shape), labels, arrays.labels[name])
        given.append(x)
    common: dict[str, Any] = {f"dims_{name}": arrays.dims[name] for name in "qkv"}
    common |= {"config": config, "scale": params.scale, "cap": params.cap, "diagonal": params.diagonal}
    common |= {"interpret": params.request.interpret, "views": arrays.views}
    of_kernel = arrays.batch + arrays.heads + ("q" if "q" in arrays.labels["q"] else "")
    sizes = dict(zip(arrays.labels["q"], arrays.views["q"].shape, strict=True))
    of_rows = params.of("lse")
    # With a bias lse is two arrays in one.
    of_lse, two = ("z", (2,)) if params.has_bias else ("", ())
    at = 6 if len(given) == 4 else 3 if params.others is None else 4
    if params.has_bias:
        bias, dims = _of_kernel(operands[at], params.of("bias"), arrays, sizes | {"k": arrays.sizes.kv_rows})
        common |= {"bias": bias, "dims_bias": dims}
        at += 1
    if params.has_mask:
        mask, dims = _of_kernel(operands[at], params.of("mask"), arrays, sizes | {"k": arrays.sizes.kv_rows})
        common |= {"mask": mask, "dims_mask": dims, "mask_is_infinite": params.mask_is_infinite}
    if params.dropout is not None:
        kept = operands[at + params.has_mask]
        kept, dims = _of_kernel(kept, params.of("kept"), arrays, sizes | {"k": arrays.sizes.kv_rows})
        common["dropout"] = Dropout(kept, dims, params.dropout)
        common |= {"mask_has_gradients": params.scores_have_gradients} if len(given) == 4 else {}
    is_corrected = len(given) == 4 and params.scores_have_gradients and params.dropout is None
    of_none = params.means_of_all or is_corrected
    counts: Any = _counting(operands[at], params, sizes | {"k": arrays.sizes.kv_rows}) if of_none else None
    if len(given) == 3:
        o, lse, *rest = run_attention(*given, with_rest=params.has_rest, **common)
        lse = lse.reshape([*two, *(sizes[label] for label in of_kernel)])
        lse = moved(lse, of_lse + of_kernel, of_lse + of_rows)
        if params.others is not None:
            o, shares = _with_others(o, arrays.labels["q"], lse, operands[3], params)
            return [moved(o, of_rows + "d", params.of("o")), shares.astype(shares_dtype)]
        o, *rest = (moved(x, arrays.labels["q"], params.of("o")) for x in (o, *rest))
        return [o if counts is None else _with_means(o, given[2], arrays.labels["v"], counts, params), lse, *rest]
    common |= {"dims_o": arrays.dims["d_o"], "ds_parts": params.ds_parts}
    _, _, group, q_rows, *_ = arrays.sizes
    shape = arrays.sizes.batch, arrays.sizes.kv_heads * group, q_rows
    lse, delta = operands[4:6]
    if params.means_of_all:  # no weight is a kernel's
        lse = jnp.where(counts, lse, jnp.inf)
    lse = moved(lse, of_lse + of_rows, of_lse + of_kernel).reshape(*two, *shape)
    rows = [lse, moved(delta, of_rows, of_kernel).reshape(shape)]
    common["ds_dtype"] = params.ds_dtype

    def as_kernels_have_them() -> dict[str, Any]:
        *of_arrays, ds = (*run_attention_grad(*given, *rows, **common), None)[:4]
        by_name = {f"d{name}": (x, arrays.labels[name]) for name, x in zip("qkv", of_arrays, strict=True)}
        if ds is not None:
            of_scores = of_kernel + "k"
            all_sizes = sizes | {"k": arrays.sizes.kv_rows}
            by_name["ds"] = ds.reshape([all_sizes[label] for label in of_scores]), of_scores
        found = {name: moved(*by_name[name], params.of(name)) for name in results}
        if params.means_of_all and "dv" in found:
            of_rows_d = moved(given[3], arrays.labels["d_o"], of_rows + "d")
            found["dv"] = _with_gradients_of_means(found["dv"], of_rows_d, counts, params, arrays.sizes.kv_rows)
        return found

    def of_all_rows() -> dict[str, Any]:
        whole = {
            name: _taken(x, arrays.views[name], arrays.labels[name]) for x, name in zip(given, OPERANDS, strict=True)
        }
        return _with_gradients_of_none(as_kernels_have_them(), whole, counts, params)

    if joined is not None and not is_corrected and not params.means_of_all:
        parts = joined.parts_of_kernel(params, arrays, given[0].dtype)
        if parts is not None:
            alone = [name for name in ("dq", "dk", "dv") if name not in parts]
            *others, whole = run_attention_grad(*given, *rows, joined=parts, **common)
            named = zip(alone, others, strict=True)
            by_name = {name: moved(x, arrays.labels[name[1:]], params.of(name)) for name, x in named}
            return [*(by_name[name] for name in results if name not in parts), whole]
    # Programs rarely have such a row: a GPU looks before it corrects.
    found = jax.lax.cond(jnp.all(counts), as_kernels_have_them, of_all_rows) if is_corrected else as_kernels_have_them()
    if joined is None:
        return [found[name] for name in results]
    alone = [found[name] for name in results if name not in joined.names]
    return [*alone, *joined.join(*(found[name] for name in joined.names))]


def _counting(mask: Any, params: AttentionParams, sizes: Mapping[str, int]) -> Any:
    """Which rows have a score that counts; of size 1 where it is the same for all.

    Args:
      mask: the booleans.
      params: of the attention.
      sizes: by label.
    """
    labels, rows = params.of("mask"), params.of("lse")
    kept = moved(mask, labels, "".join(x if x in labels else "." for x in rows + "k"))
    if params.diagonal is None:
        return jnp.any(kept, axis=-1)
    i = jnp.arange(sizes["q"]) if "q" in rows else jnp.zeros(1, jnp.int32)
    seen = jnp.arange(sizes["k"]) <= i[:, None] + params.diagonal
    shape = [sizes["q"] if label == "q" else 1 for label in rows]
    return jnp.any(kept & seen.reshape(*shape, sizes["k"]), axis=-1)


def _with_means(o: Any, v: Any, of_v: str, counts: Any, params: AttentionParams) -> Any:
    """The result, whose rows of which no score counts are means of all values.

    Args:
      o: the result.
      v: the values.
      of_v: the labels of their dimensions.
      counts: which rows have a score that counts.
      params: of the attention.
    """
    rows, of_keys = params.of("lse"), "".join(sorted(x for x in of_v if x.isupper()))
    means = jnp.mean(moved(v, of_v, of_keys + "dk").astype(jnp.float32), axis=-1).astype(o.dtype)
    means = moved(means, of_keys + "d", "".join(x if x in of_keys + "d" else "." for x in params.of("o")))
    sized = "".join(label if size > 1 else "." for label, size in zip(rows, counts.shape, strict=True))
    return jnp.where(moved(counts, sized, "".join(x if x in sized else "." for x in params.of("o"))), o, means)


def _with_gradients_of_means(dv: Any, d_o: Any, counts: Any, params: AttentionParams, keys: int) -> Any:
    """The gradient of values, with that of the means among the results.

    Args:
      dv: the gradient of a kernel, which has no weights in such rows.
      d_o: the cotangent of the result, in the order of lse.
      counts: which rows have a score that counts.
      params: of the attention.
      keys: their number.
    """
    rows, of_keys = params.of("lse"), "".join(sorted(x for x in params.of("v") if x.isupper()))
    shared = [i for i, label in enumerate(rows) if label not in of_keys]
    total = jnp.sum(jnp.where(counts[..., None], 0, d_o.astype(jnp.float32)), axis=shared) / keys
    return (dv.astype(jnp.float32) + moved(total, of_keys + "d", params.of("dv").replace("k", "."))).astype(dv.dtype)


def _taken(x: Any, view: Any, labels: str) -> tuple[Any, str]:
    """A part of an array, with its labels; the array where it is whole.

    Args:
      x: the array.
      view: of the part.
      labels: of its dimensions.
    """
    if view.is_whole:
        return x, labels
    steps = (stride * jax.lax.broadcasted_iota(jnp.int32, view.shape, i) for i, stride in enumerate(view.strides))
    return x.reshape(-1)[sum(steps, view.offset)], labels


def _with_gradients_of_none(
    found: dict[str, Any], given: Mapping[str, tuple[Any, str]], counts: Any, params: AttentionParams
) -> dict[str, Any]:
    """The gradients with those of rows of which no score counts, where a mask was added.

    Each share of such a row is 1 / n, and the derivative of a score is as of every other: d_s = (d_o v - d_o mean) / n.
    What it is multiplied with sums up to products of head_dim x head_dim. Behind -inf all is NaN.

    Args:
      found: the gradients by a kernel, which has d_s = 0 there.
      given: q, k, v and d_o, with the labels of their dimensions.
      counts: which rows have a score that counts.
      params: of the attention.
    """
    rows, of_keys = params.of("lse"), "".join(sorted(x for x in params.of("k") if x.isupper()))
    if params.mask_is_infinite:
        shared = [i for i, label in enumerate(rows) if label not in of_keys]
        all_count = jnp.all(counts, axis=shared)
        kept = {"dq": (counts, rows), "ds": (counts, rows), "dk": (all_count, of_keys), "dv": (all_count, of_keys)}
        for name, x in found.items():
            which, labels = kept[name]
            sized = "".join(label if size > 1 else "." for label, size in zip(labels, which.shape, strict=True))
            of_result = "".join(label if label in sized else "." for label in params.of(name))
            found[name] = jnp.where(moved(which, sized, of_result), x, jnp.nan)
        return found
    q, d_o = (moved(*given[name], rows + "d") for name in ("q", "d_o"))
    k, v = (moved(*given[name], of_keys + "kd") for name in "kv")
    d_o = jnp.where(counts[..., None], 0, d_o)
    mean_k, mean_v = (jnp.mean(x, axis=-2, keepdims=True, dtype=jnp.float32) for x in (k, v))
    # Of few rows: also where the program's products are in TF32.
    of_f32: dict[str, Any] = {"preferred_element_type": jnp.float32, "precision": jax.lax.Precision.HIGHEST}

    def product(spec: str, x: Any, wide: Any) -> Any:  # in as many parts as the derivative of the scores has
        total = jnp.float32(0)
        for _ in range(params.ds_parts):
            part = wide.astype(x.dtype)
            total, wide = total + jnp.einsum(spec, x, part, **of_f32), wide - part.astype(jnp.float32)
        return total

    if "ds" in found:
        of_weights = jnp.einsum(f"{rows}d,{of_keys}kd->{rows}k", d_o, v, **of_f32)
        of_weights -= jnp.einsum(f"{rows}d,{of_keys}kd->{rows}k", d_o.astype(jnp.float32), mean_v, **of_f32)
        found["ds"] = _plus(found["ds"], params.of("ds"), of_weights / k.shape[-2], rows + "k")
    if "dq" in found:
        of_pairs = jnp.einsum(f"{of_keys}kd,{of_keys}ke->{of_keys}de", v, k, **of_f32) / k.shape[-2]
        total = product(f"{rows}d,{of_keys}de->{rows}e", d_o, of_pairs - mean_v.swapaxes(-1, -2) * mean_k)
        found["dq"] = _plus(found["dq"], params.of("dq"), params.scale * total, rows + "d")
    if "dk" in found:
        of_rows = jnp.einsum(f"{rows}d,{rows}e->{of_keys}de", d_o, q, **of_f32)
        total = product(f"{of_keys}kd,{of_keys}de->{of_keys}ke", v, of_rows)
        total -= jnp.einsum(f"{of_keys}kd,{of_keys}de->{of_keys}ke", mean_v, of_rows, **of_f32)
        found["dk"] = _plus(found["dk"], params.of("dk"), params.scale / k.shape[-2] * total, of_keys + "kd")
    return found


def _plus(x: Any, labels: str, more: Any, of_more: str) -> Any:
    """The sum of an array and one of f32, with labels of their dimensions."""
    return (x.astype(jnp.float32) + moved(more, of_more, labels)).astype(x.dtype)


def _of_kernel(mask: Any, labels: str, arrays: KernelArrays, sizes: Mapping[str, int]) -> tuple[Any, str]:
    """A mask whose dimensions a kernel reads, and their letters.

    Args:
      mask: the booleans.
      labels: of them.
      arrays: how the kernel reads the others.
      sizes: by label.
    """
    wanted, dims = "", ""
    for of_letter, letter in ((arrays.batch, "b"), (arrays.heads, "h"), ("q", "q"), ("k", "k")):
        if set(of_letter) & set(labels):  # along all that are one together
            wanted, dims = wanted + of_letter, dims + letter * len(of_letter)
    x = moved(mask, labels, "".join(label if label in labels else "." for label in wanted))
    return jnp.broadcast_to(x, [sizes[label] for label in wanted]), dims


def _with_others(o: Any, labels: str, lse: Any, others: Any, params: AttentionParams) -> tuple[Any, Any]:
    """The result in the order of `lse`, and the shares of other scores, of what the keys alone make.

    Args:
      o: the result.
      labels: of it.
      lse: the logarithms.
      others: the other scores.
      params: of the attention.
    """
    assert params.others is not None
    rows, of_others = params.of("lse"), params.of("others")
    behind = "x" if "x" in of_others else "."
    scores = params.others * moved(others, of_others, rows + behind).astype(jnp.float32)
    total = jnp.logaddexp(lse, jax.nn.logsumexp(scores, axis=-1))[..., None]
    scaled = moved(o, labels, rows + "d").astype(jnp.float32) * jnp.exp(lse[..., None] - total)
    return scaled.astype(o.dtype), moved(jnp.exp(scores - total), rows + behind, params.of("shares"))
