"""attention_p: softmax(scale q k^T + bias + mask) v of a program; attention_grad_p: its derivative. Their equations.

`jax_moye.optimize` puts them in their place (attention_finding.py). Where a kernel computes it, it is one custom call,
which keeps no scores in memory. Everywhere else it is the equations as they were, and so are its derivatives and what
it is under vmap, as those of rewritten_p: then XLA computes the scores that both have once.

    attention_p         q, k, v                       o, lse
    attention_p         q, k, v                       o, lse, rest
    attention_p         q, k, v, others               o, shares of the others
    attention_grad_p    q, k, v, d_o, lse, delta      those of dq, dk, dv and ds that the program has

Behind these there is the bias, if there is one, the mask, and which shares dropout keeps: floats and booleans, along
any of the scores' dimensions. What is behind them the equations as they were read, and no kernel does. ds is the
gradient of the scores behind the scale, of which the program makes the bias' gradient. With a cap the scores are
cap tanh(scale / cap q k^T).

The parameter `results` names those that the program has: it may have no o where it differentiates one. The parameter
`together`, which is one object where an attention and its gradients are in a program, has the equations of all that
they return, as the program had them: what is timed next to our kernels. The parameter
`views`, where there is one, says of which of q, k, v and d_o the operand is an array that it is part of, and which part
(views.py); the equations then take it out. A kernel reads it in place.

lse is the logarithm of the sum of a row's exponentials, or with a bias two arrays in one (AttentionArgs), and delta a
row's sum of o d_o, both f32: kernels alone read them. The rest is what rounding took from o, rounded itself: delta is
of both where the program computes the derivative of its softmax in f32. Where the shares of a row are nearly equal,
(d_o v - delta) is small beside delta, and what is off in delta is off in all of a row's scores. A kernel sums in f32.
It rounds the shares once, before they multiply v, and divides by their sum at the end; of the derivative it rounds the
shares and the derivative of the scores. The program rounds these, too, and the scores. Of f32 all that is rounded is
what products read, to TF32, and there is no rest; dk is of shares that are rounded before dv's product reads them.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from jax_moye._kernels.configs import attention_configs
from jax_moye._primitives.attention_call import attention_view
from jax_moye._primitives.contests import signature_of
from jax_moye._primitives.rewritten import Original, of_equations
from jax_moye._selection.attention import (
    ATTENTION_DTYPES,
    AttentionDecision,
    AttentionRequest,
    AttentionSizes,
    decide_attention,
    is_aligned,
)
from jax_moye._selection.attention_key import AttentionKey
from jax_moye._selection.attention_times import AttentionTimes, find_attention
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.measurements import autotune_mode
from jax_moye._selection.request import Operand
from jax_moye._selection.view import View

OPERANDS = ("q", "k", "v", "d_o")
GRADIENTS = ("dq", "dk", "dv", "ds")
_MOST_INDEXED = (1 << 31) - 1  # elements of an array, part of which XLA takes out where a mask asks for it
_LOW = -1e30  # a score that a mask leaves out, to the kernels


@dataclasses.dataclass(frozen=True)
class AttentionParams:
    """What an attention computes, and of which arrays.

    Attributes:
      scale: of the scores.
      diagonal: row i of the queries sees keys up to i + diagonal; None: all.
      labels: (name, labels) of each array's dimensions, which have any order: A, B, ... of a batch and of heads, g of
        heads that share keys, q and k of rows, d of a row, and "." of size 1.
      options: the fields of an `AttentionRequest`.
      others: a factor of other scores, which share a row's sum with those of the keys; None where there are none. Their
        number has the label x.
      cap: what no score is above: cap * tanh(score / cap) is in its place, in front of masks; None: there is none.
      dropout: the factor of shares that are kept; None: none is dropped.
      precision: of the products, if the arrays are f32.
      ds_parts: 1: the derivative of the scores is rounded to the dtype of the arrays; 2: a kernel multiplies also what
        that took from it, rounded, where the program multiplies it as TF32.
      has_rest: the rest is a result, and delta is of both.
      mask_is_infinite: what the mask leaves out is -inf, else low.
      means_of_all: a row of which no score counts is the mean of all values, also of those behind the diagonal.
      scores_have_gradients: also in such a row, as where the mask is added to the scores.
      ds_dtype: of the gradient of the scores, if that is a result.
    """

    scale: float
    diagonal: int | None
    labels: tuple[tuple[str, str], ...]
    options: tuple[tuple[str, Any], ...]
    others: float | None = None
    cap: float | None = None
    dropout: float | None = None
    precision: Any = None
    ds_parts: int = 1
    has_rest: bool = False
    mask_is_infinite: bool = False
    means_of_all: bool = False
    scores_have_gradients: bool = False
    ds_dtype: str | None = None

    @property
    def has_mask(self) -> bool:
        """Whether there is one beside the diagonal."""
        return "mask" in dict(self.labels)

    @property
    def has_bias(self) -> bool:
        """Whether an array is added to the scores."""
        return "bias" in dict(self.labels)

    @property
    def request(self) -> AttentionRequest:
        """What is asked for."""
        return AttentionRequest(**dict(self.options))

    def of(self, name: str) -> str:
        """The labels of an array; those of "lse" are delta's, too."""
        labels = dict(self.labels)
        return "".join(sorted(set(labels["q"]) - {".", "d"})) if name == "lse" else labels[name]

    @property
    def gradients(self) -> tuple[str, ...]:
        """The names of those that the program has."""
        return tuple(name for name in GRADIENTS if name in dict(self.labels))


class Together(NamedTuple):
    """An attention and its gradients, as far as a program has both.

    Attributes:
      equations: of q, k, v, d_o where there are gradients, and other operands; what makes the arrays that the program
        has of them, the gradients behind the results of the forward pass.
      d_o: the array of d_o, and the transpose in front of d_o, which is one of the equations; None without gradients.
      value_dim: the head_dim of the values without the zeros behind them; None: there are none.
      behind: what makes the bias, the mask and what dropout keeps of the other operands; None where they are these.
    """

    equations: Original
    d_o: Operand | None
    value_dim: int | None = None
    behind: Original | None = None

    @classmethod
    def of(cls, equations: Original, d_o: Any, permutation: tuple[int, ...] | None) -> Together:
        """It, where the type of the array of d_o is known, and the transpose.

        Args:
          equations: as above.
          d_o: the type of the array; None without gradients.
          permutation: of the transpose in front of d_o; None where there is none.
        """
        return cls(equations, None if d_o is None else Operand(tuple(d_o.shape), d_o.dtype, permutation))

    @property
    def on_one_device(self) -> Together:
        """It, of the arrays of one device."""
        behind = None if self.behind is None else self.behind.on_one_device
        return self._replace(equations=self.equations.on_one_device, behind=behind)


attention_p = of_equations("jax_moye_attention")
attention_grad_p = of_equations("jax_moye_attention_grad")


def moved(x: Any, labels: str, wanted: str) -> Any:
    """An array with its dimensions in another order; those of size 1 come and go."""
    kept = labels.replace(".", "")
    order = [kept.index(label) for label in wanted if label != "."]
    shape = [size for size, label in zip(x.shape, labels, strict=True) if label != "."]
    x = lax.transpose(x.reshape(shape), order) if order != sorted(order) else x.reshape(shape)
    given = iter(x.shape)
    return x.reshape([1 if label == "." else next(given) for label in wanted])


def delta_of(o: Any, d_o: Any, rest: Any = None, *, params: AttentionParams) -> Any:
    """A row's sum of o d_o, f32. Of f32 d_o is rounded, as where a kernel multiplies it with values: v may be all of o.

    Args:
      o: the result.
      d_o: its cotangent.
      rest: what rounding took from the result; None: it is not known.
      params: of the attention.
    """
    whole = o.astype(jnp.float32) if rest is None else o.astype(jnp.float32) + rest.astype(jnp.float32)
    wanted = params.of("lse") + "d"
    one, other = (moved(x, params.of(name), wanted) for x, name in ((whole, "o"), (d_o, "d_o")))
    return jnp.sum(one * (rounded_to_tf32(other) if other.dtype == jnp.float32 else other.astype(jnp.float32)), axis=-1)


def rounded_to_tf32(x: Any) -> Any:
    """What kernels multiply of f32: the nearest even that TF32 has.

    Args:
      x: an array.
    """
    return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=10)


def rest_of(whole: Any, o: Any) -> Any:
    """What rounding took from a result, rounded itself; `whole` is the result in f32."""
    return (whole - o.astype(jnp.float32)).astype(o.dtype)


def reference(q: Any, k: Any, v: Any, *behind: Any, params: AttentionParams) -> tuple[Any, Any]:
    """The result, in f32, and lse, by equations.

    Args:
      q: the queries.
      k: the keys.
      v: the values.
      *behind: the bias, the booleans of the mask, and those of dropout, if there are any.
      params: of the attention.
    """
    rows, of_keys = params.of("lse"), "".join(sorted(x for x in params.of("k") if x.isupper()))
    q, k, v = (
        moved(x, params.of(name), of + "d")
        for x, name, of in ((q, "q", rows), (k, "k", of_keys + "k"), (v, "v", of_keys + "k"))
    )
    # As a kernel multiplies f32, whatever jax.default_matmul_precision is.
    of_f32: dict[str, Any] = {"preferred_element_type": jnp.float32, "precision": lax.Precision.DEFAULT}
    scores = jnp.einsum(f"{rows}d,{of_keys}kd->{rows}k", q, k, **of_f32) * params.scale
    given = iter(behind)
    if params.cap is not None:
        scores = params.cap * jnp.tanh(scores / params.cap)
    if params.has_bias:
        scores += _like_scores(next(given), params.of("bias"), rows).astype(jnp.float32)
    if params.has_mask:
        kept = _like_scores(next(given), params.of("mask"), rows)
        scores = jnp.where(kept, scores, -jnp.inf if params.mask_is_infinite else _LOW)
    if params.diagonal is not None:
        i = lax.broadcasted_iota(jnp.int32, scores.shape, len(rows) - 1) if "q" in rows else 0
        j = lax.broadcasted_iota(jnp.int32, scores.shape, len(rows))
        scores = jnp.where(j - i <= params.diagonal, scores, _LOW if params.means_of_all else -jnp.inf)
    largest = jnp.max(scores, axis=-1, keepdims=True)
    exponentials = jnp.exp(scores - largest)
    sums = jnp.sum(exponentials, axis=-1, keepdims=True)
    shares = exponentials / sums
    if params.dropout is not None:
        shares = jnp.where(_like_scores(next(given), params.of("kept"), rows), params.dropout * shares, 0)
    o = jnp.einsum(f"{rows}k,{of_keys}kd->{rows}d", shares.astype(v.dtype), v, **of_f32)
    in_order = moved(o, rows + "d", params.of("o"))
    if params.has_bias:
        return in_order, jnp.stack([largest[..., 0], jnp.log(sums)[..., 0]])
    return in_order, (largest + jnp.log(sums))[..., 0]


def _like_scores(x: Any, labels: str, rows: str) -> Any:
    """A mask or a bias with the dimensions of scores, of size 1 where it is the same for all."""
    return moved(x, labels, "".join(label if label in labels else "." for label in rows + "k"))


# --------------------------------------------------------------------------------------------- arrays for a kernel


class KernelArrays(NamedTuple):
    """How a kernel reads the arrays.

    Attributes:
      labels: by name, of the array in memory, whose last dimension is "d", without those of size 1.
      views: by name, which part of an array that is. Where it is all of one, XLA moves "d" to its end.
      dims: by name, the letters of `run_attention`.
      heads: labels of a batch that are heads to the kernel, those of a group last; of others it is the batch.
      batch: the others.
      sizes: what it computes.
    """

    labels: Mapping[str, str]
    views: Mapping[str, View]
    dims: Mapping[str, str]
    batch: str
    heads: str
    sizes: AttentionSizes


def labels_in_memory(view: View, labels: str) -> tuple[str, View]:
    """Labels and view of an array whose dimensions are in their order in memory, without those of size 1."""
    dims = [dim for dim in view.order if labels[dim] != "."]
    return "".join(labels[dim] for dim in dims), view.transposed(dims)


def _arrays(given: Mapping[str, View], labels: Mapping[str, str], dtype: Any) -> KernelArrays | None:
    """How a kernel reads arrays; None where it cannot.

    Args:
      given: by name, where the elements are.
      labels: likewise, of the dimensions.
      dtype: of all.
    """
    in_memory, views = {}, {}
    for name, view in given.items():
        of_array, part = labels_in_memory(view, labels[name])
        if view.is_whole:
            sizes = dict(zip(of_array, part.shape, strict=True))
            of_array = of_array.replace("d", "") + "d"
            part = View.whole([sizes[label] for label in of_array])
        elif not of_array.endswith("d") or not is_aligned(part, dtype):
            return None
        in_memory[name], views[name] = of_array, part
    of_batch = [label for label in in_memory["q"] if label.isupper()]
    for is_head in _subsets(len(of_batch)):
        batch, heads = (
            "".join(label for label, one in zip(of_batch, is_head, strict=True) if one is wanted)
            for wanted in (False, True)
        )
        letters = dict.fromkeys(batch, "b") | dict.fromkeys(heads + "g", "h")
        ordered = all(
            [x for x in of_array if letters.get(x) == letter] == [x for x in wanted if x in of_array]
            for of_array in in_memory.values()
            for letter, wanted in (("b", batch), ("h", heads + "g"))
        )
        dims = {name: "".join(letters.get(x, x) for x in of_array) for name, of_array in in_memory.items()}
        seen = {name: attention_view(views[name], dims[name]) for name in dims} if ordered else {}
        if not ordered or any(one is None for one in seen.values()):
            continue
        (q, _), (k, _) = seen["q"], seen["k"]  # type: ignore[misc]
        found = AttentionSizes(q[0], k[1], q[1] // k[1], q[2], k[2], q[3])
        return KernelArrays(in_memory, views, dims, batch, heads + "g" * ("g" in in_memory["q"]), found)
    return None


def _subsets(count: int) -> Iterator[tuple[bool, ...]]:
    """Which labels are heads: the last one alone first, as programs have it."""
    usual = (*[False] * (count - 1), *[True] * min(count, 1))
    yield usual
    yield from (one for one in itertools.product((False, True), repeat=count) if one != usual)


def decided(
    params: AttentionParams, operands: Sequence[Operand], target: LoweringTarget, together: Together | None
) -> tuple[AttentionDecision, KernelArrays | None]:
    """Who computes an attention, or its gradients, and how a kernel reads the arrays.

    Args:
      params: of the attention.
      operands: q, k, v, and d_o where it is its gradients.
      target: what is lowered for.
      together: the program's equations; None where they are not known.
    """
    arrays = arrays_of(params, operands)
    sizes = None if arrays is None else arrays.sizes
    times = None if together is None else _times(params, operands, target, together)
    dtype, is_of_gradients = operands[0].dtype, len(operands) == 4
    return decide_attention(params.request, sizes, dtype, is_of_gradients, target, times, params.precision), arrays


def _times(
    params: AttentionParams, operands: Sequence[Operand], target: LoweringTarget, together: Together
) -> AttentionTimes | None:
    """What was measured of an attention, and of its gradients if the program has any."""
    own = not params.request.deterministic and autotune_mode(params.request.autotune) != "off"
    key = None if target.device is None else attention_key(params, operands, together)
    if key is None or target.device is None:
        return None
    return find_attention(key, signature_of(together.equations), target.device.kind, attention_configs(), own)


def attention_key(params: AttentionParams, operands: Sequence[Operand], together: Together) -> AttentionKey | None:
    """What is measured of an attention and its gradients, the same for both; None where no kernel reads the arrays.

    Parts of arrays are measured as if they were written to memory, as those that a product reads are.

    Args:
      params: of the attention.
      operands: q, k, v, and perhaps others.
      together: the program's equations.
    """
    dtype = ATTENTION_DTYPES.get(str(jnp.dtype(operands[0].dtype)))
    written = written_arrays(operands, together)
    arrays = arrays_of(params, written[:3])
    if dtype is None or arrays is None or not all(arrays.sizes):
        return None
    orders = {}
    letters = dict.fromkeys(arrays.batch, "b") | dict.fromkeys(arrays.heads + "g", "h")
    for name, labels in params.labels:
        if name in OPERANDS[: len(written)]:
            labels = labels_in_memory(place_of(written[OPERANDS.index(name)]), labels)[0]
        orders[name] = "".join(letters.get(x, x) for x in labels if x != ".")
    others = tuple((str(x.dtype), tuple(x.shape)) for x in together.equations.jaxpr.in_avals[len(written) :])
    return AttentionKey(
        tuple(arrays.sizes), dtype, params.diagonal, params.ds_parts, tuple(sorted(orders.items())), others
    )


def written_arrays(operands: Sequence[Operand], together: Together) -> list[Operand]:
    """The arrays that are measured: q, k, v, and d_o where there are gradients, whole.

    Args:
      operands: q, k, v, and perhaps others.
      together: the program's equations.
    """
    return [*(x.written for x in operands[:3]), *([] if together.d_o is None else [together.d_o])]


def arrays_of(params: AttentionParams, operands: Sequence[Operand]) -> KernelArrays | None:
    """How a kernel reads the arrays; None where it cannot.

    Args:
      params: of the attention.
      operands: the first of q, k, v and d_o.
    """
    names = OPERANDS[: len(operands)]
    places = dict(zip(names, map(place_of, operands), strict=True))
    return _arrays(places, {name: params.of(name) for name in names}, operands[0].dtype)


def place_of(operand: Operand) -> View:
    """Where the elements of an operand are.

    Args:
      operand: an array, or a part of one.
    """
    whole = View.whole(operand.shape)
    return operand.view or (whole if operand.permutation is None else whole.transposed(operand.permutation))


def read_in_place(params: AttentionParams, operands: Sequence[Operand], views: Sequence[View | None]) -> list[bool]:
    """Which operands of an attention a kernel reads as parts of arrays.

    Args:
      params: of the attention.
      operands: as of `decided`, written to memory.
      views: of those that are parts; None of others.
    """
    found = list(operands)
    of_means = ("v" if len(operands) == 3 else "d_o") if params.means_of_all else None  # XLA reads it, too
    for i, view in [*enumerate(views)] * 2:  # of one that no kernel reads as it is written, no other is read at first
        if view is None or found[i].view is not None:
            continue
        is_large = math.prod(view.source) > _MOST_INDEXED
        if OPERANDS[i] != of_means and not (is_large and params.scores_have_gradients):
            tried = [*found[:i], Operand(view.source, operands[i].dtype, view=view), *found[i + 1 :]]
            found = tried if arrays_of(params, tried) is not None else found
    return [one.view is not None for one in found]


def describe(params: AttentionParams, sizes: AttentionSizes | None, gradients: bool) -> str:
    """An attention in a message."""
    what = "the gradients of attention" if gradients else "attention"
    if sizes is None:
        return f"{what} of {params.of('q')} and {params.of('k')}"
    heads = f"{sizes.batch} x {sizes.kv_heads * sizes.group} heads"
    shared = "" if sizes.group == 1 else f" in groups of {sizes.group}"
    masked = ("" if params.diagonal is None else ", causal") + ", masked" * params.has_mask
    masked += ", with dropout" * (params.dropout is not None)
    masked += ", with a bias" * params.has_bias + ", with a soft cap" * (params.cap is not None)
    return f"{what}, {heads}{shared}, {sizes.q_rows} x {sizes.kv_rows} scores of {sizes.head_dim}{masked}"
