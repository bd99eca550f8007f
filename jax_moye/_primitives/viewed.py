"""viewed_p: a product whose operands are parts of larger arrays, which a kernel reads where they are.

`jax_moye.optimize` puts it in the place of an equation of contract_p or rewritten_p and of those that take the parts
out (views.py). Its operands are the arrays. Where a kernel of ours computes the product, and reads the parts in place,
it is one custom call; everywhere else it is those equations, and so are its derivatives and what it is under vmap.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jax.interpreters import mlir

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._primitives.autotune import decide_by_measuring
from jax_moye._primitives.contraction import xlas_product
from jax_moye._primitives.custom_call import run_kernel
from jax_moye._primitives.rewritten import (
    Forms,
    Original,
    is_for_xla,
    of_equations,
    of_local_equations,
    sources_of,
    xlas,
)
from jax_moye._primitives.transposes import Permutations, Source, transposed
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.in_place import in_place
from jax_moye._selection.request import Operand, Operands, Request
from jax_moye._selection.view import View

# Parameters, beside those of contract_p or rewritten_p:
#   original  the equations as they were, of the arrays: those that take out the parts, then the product's
#   views     of lhs and rhs, and of a second right-hand operand; None where the operand is no part of an array
#   inner     of rewritten_p, its own equations, of the parts; None of contract_p
#   parts     of rewritten_p, its own equations, of the arrays, whose products are equations of viewed_p; None likewise
viewed_p = of_equations("jax_moye_viewed")
viewed_local_p = of_local_equations("jax_moye_viewed_local")


def written(avals: Sequence[Any], views: Sequence[View | None], permutations: Permutations) -> Operands:
    """Lhs and rhs as they would be in memory if their parts were written there.

    Args:
      avals: of the arrays.
      views: of lhs and rhs.
      permutations: of the transposes behind the operands that are no parts.
    """
    left, right = (
        Operand(tuple(aval.shape), aval.dtype, None if view is not None else permutation, view).written
        for aval, view, permutation in zip(avals[:2], views[:2], permutations, strict=True)
    )
    return left, right


def _lower_local(
    platform, ctx, *values, request: Request, permutations, views, original: Original, inner: Original | None, parts
):
    operands = written(ctx.avals_in, views, permutations)
    of_written = operands[0].permutation, operands[1].permutation
    by_xla: Callable[..., Any]
    if inner is None:
        forms, shapes = None, dict.fromkeys(["c"][: len(values) - 2], ctx.avals_out[0].shape)
        by_xla = functools.partial(xlas_product, request=request, permutations=of_written)
    else:
        forms = Forms(request, operands, of_written, inner)
        by_xla, shapes = forms.of_equations(xlas(request, inner)), forms.shapes
    target = LoweringTarget.of_platform(platform)
    decision = decide_by_measuring(request, operands, target, by_xla, shapes)
    is_whole = decision.call is not None and decision.call.epilogue == request.epilogue
    call = in_place(decision, views, target) if is_whole else None
    if call is not None:
        ffi.register(platform)
        chosen, out_shape = call, ctx.avals_out[0].shape
        keeps = request.epilogue is not None and request.epilogue.keeps

        def run(lhs, rhs, *others):
            others = others if forms is None else forms.of_kernel(*others)
            of_call = {"call": chosen, "request": request, "permutations": permutations}
            return run_kernel(lhs, rhs, *others, **of_call, out_shape=out_shape, preactivation=keeps)

        return mlir.lower_fun(run, multiple_results=True)(ctx, *values)
    # Where no kernel finishes the product it may still be one of ours alone, which reads the parts in place.
    is_in_parts = (
        inner is not None
        and not (decision.kind == "kernel" and is_whole)
        and not is_for_xla(decision, operands, of_written, inner, platform)
    )
    equations = parts if is_in_parts else original

    def as_it_was(lhs, rhs, *others):
        if len(views) > 2 and views[2] is None:
            others = tuple(transposed((lhs, x), permutations)[1] for x in others)
        return equations(*transposed((lhs, rhs), permutations), *others)

    return mlir.lower_fun(as_it_was, multiple_results=True)(ctx, *values)


mlir.register_lowering(viewed_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(viewed_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(viewed_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, *values, original: Original, views, inner: Original | None, parts, out_sharding=None, **params):
    del out_sharding  # who asks for one gets no view
    request = Request(**params, alone=None if inner is None else inner.product)
    if _compat.why_not_local(ctx) is not None or request.implementation == "xla":
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    sources = sources_of(values, ctx.avals_in, request)
    for i, view in enumerate(views):
        if view is not None:
            sources[i] = Source(values[i], ctx.avals_in[i], None)
    return _compat.lower_equation(
        ctx,
        viewed_local_p,
        tuple(one.value for one in sources),
        [_compat.local_aval(one.aval.shape, one.aval.dtype) for one in sources],
        [_compat.local_aval(aval.shape, aval.dtype) for aval in ctx.avals_out],
        request=request,
        permutations=tuple(one.permutation for one in sources[:2]),
        views=views,
        original=original,
        inner=inner,
        parts=parts,
    )


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(viewed_p, _lower, cacheable=False)
