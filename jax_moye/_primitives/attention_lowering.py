"""How an attention, and its gradients, are lowered: measured first where they can be, then a kernel or the equations.

    decided_by_measuring(params, operands, target, together)      decided(...), where all is known

Where a kernel can compute an attention of a program that is lowered for the GPU of this process, it is raced against
what XLA makes of the program's own equations, together with its gradients if the program has any.
"""

from __future__ import annotations

import functools
import itertools
import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax import lax
from jax.interpreters import mlir

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._log import say_once
from jax_moye._primitives.attention import (
    AttentionParams,
    KernelArrays,
    Together,
    arrays_of,
    attention_grad_p,
    attention_key,
    attention_p,
    decided,
    delta_of,
    describe,
    place_of,
    written_arrays,
)
from jax_moye._primitives.attention_kernel import by_kernel
from jax_moye._primitives.attention_padded import with_zeros
from jax_moye._primitives.autotune import settle, would_measure
from jax_moye._primitives.contests import Contest, measured, signature_of
from jax_moye._primitives.rewritten import Original, of_local_equations
from jax_moye._primitives.transposes import Source, source
from jax_moye._selection.attention import AttentionDecision, decide_attention
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.request import Operand


def is_for_attention(params: AttentionParams, q: Sequence[int], k: Sequence[int], dtype: Any) -> bool:
    """Whether a kernel computes an attention, or its gradients if it has any, as far as a trace tells.

    Args:
      params: of the attention.
      q: the shape of the queries.
      k: of the keys.
      dtype: of all arrays.
    """
    arrays = arrays_of(params, [Operand(tuple(q), dtype), Operand(tuple(k), dtype)])
    sizes = None if arrays is None else arrays.sizes
    found = [
        decide_attention(params.request, sizes, dtype, one, None, precision=params.precision)
        for one in {False, bool(params.gradients)}
    ]
    for one in found:
        if one.cause == "capability":
            what = describe(params, sizes, bool(params.gradients))
            say_once(logging.INFO, f"{what} is left to the program's equations: {one.reason}")
    if all(one.config is not None or one.cause == "time" for one in found):
        # What would be measured is not left out for its sizes.
        is_chosen = all(one.config is not None for one in found)
        return is_chosen or would_measure(params.request, LoweringTarget.of_platform("cuda"))
    return False


def contest(
    params: AttentionParams, operands: Sequence[Operand], target: LoweringTarget | None, together: Together
) -> Contest | None:
    """Who can compute an attention, and its gradients if the program has any; None where no kernel of ours can.

    Args:
      params: of the attention.
      operands: q, k and v, and perhaps others.
      target: what they are for; None: whatever it is.
      together: the program's equations.
    """
    given = written_arrays(operands, together)
    others = together.equations.jaxpr.in_avals[len(given) :]
    both = [given[:3], given] if params.gradients else [given]
    able, arrays = [], []
    for one in both:
        read = arrays_of(params, one)
        sizes = None if read is None else read.sizes
        of_one = decide_attention(
            params.request, sizes, given[0].dtype, len(one) == 4, target, precision=params.precision
        )
        able.append(of_one.able)
        arrays.append(read)
    if arrays[0] is None or not all(able):
        return None
    places = list(map(place_of, both[-1]))
    outs = [x.dtype for x in together.equations.jaxpr.out_avals]
    has_o = len(outs) > len(params.gradients)

    def ours(configs: Sequence[Any], *values: Any) -> list[Any]:
        ffi.register("cuda" if params.request.interpret is None else "cpu")
        values = tuple(with_zeros(values, params, together.value_dim))
        if together.behind is not None:
            values = *values[: len(given)], *together.behind(*values[len(given) :])
        common: dict[str, Any] = {"params": params, "shares_dtype": outs[-1]}
        of_forward = {"places": places[:3], "arrays": arrays[0], "config": configs[0], "results": ()}
        if len(both) == 1:
            found = by_kernel(*values, **common, **of_forward)
            return found if params.others is not None else found[:1]
        behind = values[4:]
        o, lse, *rest = by_kernel(*values[:3], *behind, **common, **of_forward)
        of_gradients = {"places": places, "arrays": arrays[1], "config": configs[1], "results": params.gradients}
        d_o = lax.transpose(values[3], given[3].permutation or range(values[3].ndim))
        rows = lse, delta_of(o, d_o, *rest, params=params)
        return [*[o] * has_o, *by_kernel(*values[:4], *rows, *behind, **common, **of_gradients)]

    def xla(*values: Any) -> list[Any]:
        behind = [
            x if one.permutation is None else lax.transpose(x, one.permutation)
            for x, one in zip(values[:3], given, strict=False)
        ]
        return together.equations(*behind, *values[3:])

    types = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (*given, *others))
    factor = min(1.0, 1 / (params.scale * math.sqrt(arrays[0].sizes.head_dim)))
    flops = (4 if len(both) == 1 else 14) * math.prod(arrays[0].sizes)
    by_configs = {configs: functools.partial(ours, configs) for configs in itertools.product(*able)}
    return Contest(by_configs, xla, types, factor, flops)


def decided_by_measuring(
    params: AttentionParams, operands: Sequence[Operand], target: LoweringTarget, together: Together | None
) -> tuple[AttentionDecision, KernelArrays | None]:
    """The same as `decided`, of what is measured before unless that is done or would change nothing.

    Args:
      params: of the attention.
      operands: as there.
      target: as there.
      together: as there.
    """
    decision, arrays = decided(params, operands, target, together)
    is_a_choice = decision.config is not None or decision.cause == "time"
    insists = params.request.implementation == "moye" or params.request.interpret is not None
    if together is None or insists or not is_a_choice or not would_measure(params.request, target):
        return decision, arrays
    key, of = attention_key(params, operands, together), signature_of(together.equations)
    found = contest(params, operands, target, together)
    if key is None or found is None:
        return decision, arrays
    entry = None if decision.times is None else decision.times.entry
    what = describe(params, None if arrays is None else arrays.sizes, bool(params.gradients))
    is_new = settle((of, key, of), entry, target, what, lambda stop: measured(key, of, found, stop))
    return decided(params, operands, target, together) if is_new else (decision, arrays)


# ------------------------------------------------------------------------------------------------------- lowering

attention_local_p = of_local_equations("jax_moye_attention_local")
attention_grad_local_p = of_local_equations("jax_moye_attention_grad_local")


def _lower_local(
    platform,
    ctx,
    *values,
    attention: AttentionParams,
    original: Original,
    results,
    permutations,
    views,
    together,
    joined=None,
):
    of_memory = zip(ctx.avals_in, permutations, views, strict=False)
    read = [Operand(tuple(aval.shape), aval.dtype, *of_array) for aval, *of_array in of_memory]
    decision, arrays = decided_by_measuring(attention, read, LoweringTarget.of_platform(platform), together)
    if decision.config is None or arrays is None:
        if decision.cause not in ("caller", None):
            what = describe(attention, None if arrays is None else arrays.sizes, len(permutations) == 4)
            say_once(logging.INFO, f"{what} is left to the program's equations: {decision.reason}")

        def as_it_was(*operands):
            behind = [
                x if permutation is None else lax.transpose(x, permutation)
                for x, permutation in zip(operands, permutations, strict=False)
            ]
            return original(*behind, *operands[len(permutations) :])

        return mlir.lower_fun(as_it_was, multiple_results=True)(ctx, *values)
    ffi.register(platform)
    of_call = {"arrays": arrays, "config": decision.config, "results": results, "shares_dtype": ctx.avals_out[-1].dtype}
    of_call |= {} if joined is None else {"joined": joined}
    run = functools.partial(by_kernel, params=attention, places=list(map(place_of, read)), **of_call)
    return mlir.lower_fun(run, multiple_results=True)(ctx, *values)


def _first_source(value: Any, aval: Any) -> Source:
    """What an operand is read from, in front of all transposes that stand one behind the other."""
    found = Source(value, aval, None)
    while True:
        before = source(found.value, found.aval)
        if before.permutation is None:
            return found
        behind = before.permutation
        permutation = behind if found.permutation is None else tuple(behind[axis] for axis in found.permutation)
        found = Source(before.value, before.aval, permutation)


def _lower(
    local: Any,
    count: int,
    ctx,
    *values,
    original: Original,
    attention: AttentionParams,
    results,
    views=(),
    together=None,
    joined=None,
):
    if _compat.why_not_local(ctx) is not None:
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    views = views or (None,) * count
    sources = [
        _first_source(value, aval) if view is None else Source(value, aval, None)
        for value, aval, view in zip(values, ctx.avals_in, views, strict=False)
    ]
    sources += [Source(x, aval, None) for x, aval in zip(values[count:], ctx.avals_in[count:], strict=True)]
    return _compat.lower_equation(
        ctx,
        local,
        tuple(one.value for one in sources),
        [one.aval for one in sources],
        original=original.on_one_device,
        attention=attention,
        results=results,
        permutations=tuple(one.permutation for one in sources[:count]),
        views=views,
        together=None if together is None else together.on_one_device,
        **({} if joined is None else {"joined": joined.on_one_device}),
    )


for _local in (attention_local_p, attention_grad_local_p):
    mlir.register_lowering(_local, functools.partial(_lower_local, "another platform"))
    mlir.register_lowering(_local, functools.partial(_lower_local, "cpu"), platform="cpu")
    mlir.register_lowering(_local, functools.partial(_lower_local, "cuda"), platform="cuda")
# Not cacheable, so that the rules see the operands they have in this place: see _compat.transposed_source.
mlir.register_lowering(attention_p, functools.partial(_lower, attention_local_p, 3), cacheable=False)
mlir.register_lowering(attention_grad_p, functools.partial(_lower, attention_grad_local_p, 4), cacheable=False)
