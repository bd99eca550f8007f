"""Attention that a program computes by its own equations: whether a kernel computes it, which one, and why.

    decide_attention(request, sizes, dtype, gradients, target, times) -> AttentionDecision

The search in a jaxpr, the lowering and `explain` read this one decision. Measured times decide: ours, next to those of
what XLA makes of the program's own equations. Where nothing was measured, a rule of sizes decides.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from jax_moye._format import us_text
from jax_moye._kernels.configs import GemmConfig, attention_configs, facts_of
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection.attention_times import AttentionTimes
from jax_moye._selection.capability import LoweringTarget, usable_of
from jax_moye._selection.cost import MULTIPROCESSORS
from jax_moye._selection.precision import may_be_tf32
from jax_moye._selection.view import View

ATTENTION_DTYPES = {"bfloat16": "bf16", "float16": "f16", "float32": "tf32"}  # as a config has it
_HEAD_DIM = 8  # divides it: rows are of whole 16 bytes
_ALIGNMENT = 16  # bytes
_FEW_ROWS = 64  # of a head's queries: with no more of them a config whose tile has fewer rows is taken
_MULTIPROCESSORS = MULTIPROCESSORS[90]
_SHARED_MEMORY = 226 * 1024  # bytes, of two CTAs that run on one multiprocessor at a time
# Of few rows that share keys: as many as there are multiprocessors, though two CTAs may run on each at a time. With
# one for each decoding was faster than with two, and, from 2048 keys on, than with a CTA for each of fewer heads
# (docs/performance.md, section 22).
_LIKELY_CTAS = _MULTIPROCESSORS
# Where nothing was measured: scores of all heads, and elements of keys and values. With fewer of both, XLA's products
# and softmax may be faster. On an H100 they took 0.87 of our time at 196608 scores of short texts, and never less than
# ours where there was more of either (benchmarks/results/nvidia_h100-2026-11-25-2914d58-attention.txt). Of float32
# no sizes so small were timed; from 2^22 scores on a kernel was never slower (section 44 of docs/performance.md).
LEAST_SCORES, LEAST_ELEMENTS = 1 << 18, 1 << 22
# Elements: the largest that was timed, by config.dtype; with more nobody knows who is faster.
_TIMED_HEAD_DIM = {"bf16": 256, "f16": 128, "tf32": 64}
_TIMED_WITH_FEW_ROWS = 128  # of any dtype


@dataclasses.dataclass(frozen=True)
class AttentionRequest:
    """What is asked for of an attention: the options of `optimize`.

    Attributes:
      implementation: None, "moye" or "xla".
      interpret: None where no emulator is asked for.
      deterministic: kernels keep it, and so do the equations as they were, or say that they cannot.
      batch_invariant: likewise.
      autotune: whether measurements count, and are made, as of products.
    """

    implementation: Literal["moye", "xla"] | None = None
    interpret: InterpretParams | None = None
    deterministic: bool = False
    batch_invariant: bool = False
    autotune: Literal["on", "cached", "off"] | None = None


class AttentionSizes(NamedTuple):
    """The sizes of an attention: queries are (batch, kv_heads * group, q_rows, head_dim).

    Keys and values are (batch, kv_heads, kv_rows, head_dim).

    Attributes:
      batch: independent attentions.
      kv_heads: heads of keys and values, of each of the batch.
      group: heads of queries that share one head of keys and values.
      q_rows: queries of one head.
      kv_rows: keys of one head, and values.
      head_dim: elements of each query, key and value.
    """

    batch: int
    kv_heads: int
    group: int
    q_rows: int
    kv_rows: int
    head_dim: int

    @property
    def scores(self) -> int:
        """Their number, of all heads; those that a mask leaves out are among them."""
        return self.batch * self.kv_heads * self.group * self.q_rows * self.kv_rows

    @property
    def elements(self) -> int:
        """Their number, of keys and values together."""
        return 2 * self.batch * self.kv_heads * self.kv_rows * self.head_dim


class AttentionDecision(NamedTuple):
    """Who computes an attention.

    Attributes:
      config: of the kernel; None: the program's own equations do.
      reason: why this kernel, or why none, in words.
      cause: why none, as `Decision.cause`; None where one does.
      able: the configs that could, first the one that is chosen without measurements; () where none is asked for.
      times: what was measured, if anything was.
    """

    config: GemmConfig | None
    reason: str
    cause: Literal["caller", "capability", "time", "place"] | None = None
    able: tuple[GemmConfig, ...] = ()
    times: AttentionTimes | None = None


def is_aligned(view: View, dtype: Any) -> bool:
    """Whether a kernel reads a part of an array where it is: all its rows begin at multiples of 16 bytes.

    Args:
      view: of the part; the last dimension is a row's.
      dtype: of the array.
    """
    return not any(x * jnp.dtype(dtype).itemsize % _ALIGNMENT for x in (view.offset, *view.strides[:-1]))


def decide_attention(
    request: AttentionRequest,
    sizes: AttentionSizes | None,
    dtype: Any,
    gradients: bool,
    target: LoweringTarget | None,
    times: AttentionTimes | None = None,
    precision: Any = None,
) -> AttentionDecision:
    """Who computes an attention, or its gradients, on one device.

    Args:
      request: what is asked for.
      sizes: None where no kernel reads the arrays as they lie.
      dtype: of all arrays.
      gradients: whether its gradients are computed, not its result.
      target: what is lowered for; None while the program is traced, where it is not known.
      times: what was measured of it; None: nothing.
      precision: of the products of float32.
    """
    if request.implementation == "xla":
        return AttentionDecision(None, "implementation='xla'", "caller")
    if sizes is None:
        return AttentionDecision(None, "no kernel reads the arrays as they lie in memory", "capability")
    able, reason = _able(sizes, dtype, gradients, target)
    if not able:
        return AttentionDecision(None, reason, "capability")
    if target is not None:
        on_cuda = target.platform == "cuda"
        if not on_cuda and (request.interpret is None or target.platform != "cpu"):
            reason = f"the program is for {target.platform}, where our kernels run only with interpret=True"
            return AttentionDecision(None, reason, "place")
        if on_cuda and request.interpret is not None:
            reason = "interpret=True runs kernels in an emulator on the CPU, and this program is for cuda"
            return AttentionDecision(None, reason, "place")
        if target.unavailable is not None and not (
            on_cuda and request.implementation == "moye" and target.is_elsewhere
        ):
            return AttentionDecision(None, target.unavailable, "place")
    platform = target.platform if target is not None else "cuda" if request.interpret is None else "cpu"
    if able[0].dtype == "tf32" and not may_be_tf32(precision, platform):
        reason = f"on {platform} float32 is multiplied as it is, unless precision is 'TF32_TF32_F32'"
        return AttentionDecision(None, reason, "place")
    head = min(config.tile[2] for config in able)
    able = [config for config in able if config.tile[2] == head and _has_room(request, config, sizes)]
    rows_of = (min if sizes.q_rows <= _FEW_ROWS else max)(config.tile[0] for config in able)
    first = max((config for config in able if config.tile[0] == rows_of), key=lambda config: _likely(config, sizes))
    ordered = (first, *(config for config in able if config is not first))
    is_asked_for = request.implementation == "moye" or request.interpret is not None
    if times is not None and not request.batch_invariant:  # which asks for a choice that the batch does not change
        chosen = next((config for config in times.configs if config in ordered), None)
        of_xla = "" if times.xla_us is None else f", XLA {us_text(times.xla_us)} us"
        timed = f"measured {us_text(times.us)} us{of_xla} ({times.source})"
        if chosen is not None and (is_asked_for or times.is_ours):
            return AttentionDecision(chosen, timed, None, ordered, times)
        if chosen is not None and times.is_ours is False:
            return AttentionDecision(None, f"XLA computes the equations as fast: {timed}", "time", ordered, times)
    timed_head_dim = _TIMED_HEAD_DIM[first.dtype]
    if sizes.q_rows <= _FEW_ROWS:
        timed_head_dim = min(timed_head_dim, _TIMED_WITH_FEW_ROWS)
    if not is_asked_for and sizes.head_dim > timed_head_dim:
        reason = f"nobody has measured a head_dim of {sizes.head_dim}: more than {timed_head_dim}"
        return AttentionDecision(None, reason, "time", ordered)
    if not is_asked_for and sizes.scores < LEAST_SCORES and sizes.elements < LEAST_ELEMENTS:
        reason = f"there are {sizes.scores} scores, and a kernel is for {LEAST_SCORES} at least, or for many keys"
        return AttentionDecision(None, reason, "time", ordered)
    rows = f"{first.tile[0]} rows of queries for {sizes.q_rows}"
    return AttentionDecision(first, f"the least tile for a head_dim of {sizes.head_dim}, with {rows}", None, ordered)


def _has_room(request: AttentionRequest, config: GemmConfig, sizes: AttentionSizes) -> bool:
    """Whether all CTAs of clusters that share keys run at a time, with two tiles of keys or more each."""
    if config.cluster[1] == 1:
        return True
    at_a_time = _MULTIPROCESSORS * (2 if 2 * config.smem_bytes <= _SHARED_MEMORY else 1)
    is_full = _ctas(config, sizes) > at_a_time or not _has_keys(config, sizes)
    return not is_full and not request.batch_invariant  # which asks for sums that the batch does not change


def _ctas(config: GemmConfig, sizes: AttentionSizes) -> int:
    return sizes.batch * sizes.kv_heads * sizes.group * -(-sizes.q_rows // config.tile[0]) * config.cluster[1]


def _has_keys(config: GemmConfig, sizes: AttentionSizes) -> bool:
    """Whether each CTA has two tiles of keys."""
    return 2 * config.cluster[1] * config.tile[1] <= sizes.kv_rows


def _likely(config: GemmConfig, sizes: AttentionSizes) -> tuple[int, int]:
    """Grows with the speed that is expected where nothing was measured."""
    parts, columns = config.cluster[1], config.tile[1]
    is_spread = parts == 1 or _ctas(config, sizes) <= _LIKELY_CTAS
    return parts if is_spread else 0, columns if _has_keys(config, sizes) else -columns


def _able(
    sizes: AttentionSizes, dtype: Any, gradients: bool, target: LoweringTarget | None
) -> tuple[list[GemmConfig], str]:
    """The configs that can compute it, and why there are none."""
    name = ATTENTION_DTYPES.get(str(jnp.dtype(dtype)))
    if name is None:
        return [], f"no kernel computes attention of {jnp.dtype(dtype)}"
    if sizes.head_dim % _HEAD_DIM:
        return [], f"head_dim is {sizes.head_dim}, and rows are loaded in whole 16 bytes"
    if not all(sizes):
        return [], "a size is 0"
    table = attention_configs()
    usable = table if target is None else usable_of(table, target.platform, target.arch)
    of_kernel = [
        config for config in usable if facts_of(config.kernel).is_of_gradients == gradients and config.dtype == name
    ]
    if not of_kernel:
        what = "the gradients of attention" if gradients else "attention"
        return [], f"no kernel for {what} of {jnp.dtype(dtype)} was built for this GPU"
    largest = max(config.tile[2] for config in of_kernel)
    able = [config for config in of_kernel if config.tile[2] >= sizes.head_dim]
    what = "kernels of gradients" if gradients else "kernels"
    return able, f"head_dim is {sizes.head_dim}, and {what} are for {largest} at most"
