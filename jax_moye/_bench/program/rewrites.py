"""What `optimize` made of a program's products and attentions, and what that won."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax.numpy as jnp

from jax_moye._format import rounded


def rewrites_of(before: Iterable[Any], after: Iterable[Any], alone: Sequence[Any] | None) -> list[dict[str, Any]]:
    """The products of an optimized program, what each takes in, and what that won, as far as it was measured.

    Args:
      before: the products of the program as it was: each a `Gemm`.
      after: those of the optimized one.
      alone: what each of these took alone: `Measured`; None where that was not measured.
    """
    same_sums: dict[Any, list[Any]] = {}
    for gemm in before:
        same_sums.setdefault(_sums(gemm), []).append(gemm)
    rows = []
    for i, gemm in enumerate(after):
        us, xla_us = (None, None) if gemm.measured is None else gemm.measured
        changes = _changes(gemm, same_sums.get(_sums(gemm), ()))
        row = {
            "product": _product(gemm),
            "what": gemm.what,
            "takes_in": ", ".join(filter(None, [gemm.takes_in, *changes])),
            "count": gemm.count,
            "computed_by": gemm.computed_by,
            "us": us,
            "xla_us": xla_us,
            "lead": gemm.lead,
            "timed": gemm.chosen_by if us is not None else None,
        }
        rows.append(_finished(row, None if alone is None else alone[i]))
    return rows


def _sums(gemm: Any) -> tuple[Any, ...]:
    """What is multiplied and summed, whatever becomes of it."""
    operands = tuple((operand.seen_shape, jnp.dtype(operand.dtype)) for operand in gemm.product.operands)
    return gemm.product.request.spec.partition("->")[0], operands


def _changes(gemm: Any, before: Sequence[Any]) -> Iterator[str]:
    """How a result is written otherwise than those of the same sums were."""
    if before and gemm.product.request.out_dtype not in {one.product.request.out_dtype for one in before}:
        yield "conversion"
    if before and _result(gemm) not in map(_result, before):
        yield "transpose"


def _result(gemm: Any) -> str:
    return gemm.product.request.spec.partition("->")[2]


def _product(gemm: Any) -> str:
    """A product as our kernels see it; as JAX does where they do not."""
    p = gemm.problem
    if p is None:
        return gemm.what
    sizes = "x".join(map(str, [*([p.batch] if p.batch != 1 else []), p.m, p.n, p.k]))
    return f"{sizes} {p.order} {p.dtype}" + (f" to {p.out_dtype}" if p.out_dtype != p.dtype else "")


def attentions_of(rows: Iterable[Any], alone: Sequence[Any] | None) -> list[dict[str, Any]]:
    """The attentions of an optimized program, and what kernels of ours won of each, like `rewrites_of`.

    Args:
      rows: of them: each an `AttentionRow`.
      alone: what each of these took alone: `Measured`; None where that was not measured.
    """
    found = []
    for i, one in enumerate(rows):
        row = {
            "product": one.what,
            "what": one.what,
            "takes_in": "softmax between its products" if one.computed_by == "moye" else "",
            "is_attention": True,
            "count": one.count,
            "computed_by": one.computed_by,
            "us": one.us,
            "xla_us": one.xla_us,
            "lead": None if one.times is None else one.times.lead,
            "timed": None if one.times is None else one.times.source,
        }
        found.append(_finished(row, None if alone is None else alone[i]))
    return found


def _finished(row: dict[str, Any], alone: Any | None) -> dict[str, Any]:
    """A row with what was measured alone, if anything was, and what was won."""
    if alone is not None and alone.xla_us is not None:
        lead = alone.ratio_ci[0] if alone.ratio_ci else None
        row |= {"us": alone.us, "xla_us": alone.xla_us, "lead": lead, "timed": "alone"}
    row["won_us"] = won(row)
    return {name: rounded(value) for name, value in row.items()}


def won(row: Mapping[str, Any]) -> float | None:
    """What XLA takes longer than ours for all computations of a row, in microseconds; None: nobody knows."""
    if row["computed_by"] == "xla":
        return None if row["xla_us"] is None else 0.0
    if row["us"] is None or row["xla_us"] is None:
        return None
    return row["count"] * (row["xla_us"] - row["us"])
