"""permuted_p: products of groups whose rows lie elsewhere.

    y[permutation[i]] = activation(lhs[lhs_rows[i]] @ rhs[group of i]) and so on, as grouped_fused_p

Without lhs_rows it reads row i, without a permutation it stores row i. lhs_rows are a gather of XLA's in front of what
grouped_p and grouped_fused_p compute. The permutation is the kernel's, which stores rows there; where no kernel of ours
computes it all, XLA scatters its rows behind it. The transpose of a scatter is a gather, and that of a gather a scatter
that adds: its derivatives are products of its own kind, and are rounded once where rows are added up.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir, partial_eval, xla

from jax_moye import _compat
from jax_moye._primitives.contraction import linear_transpose
from jax_moye._primitives.fused import without_preactivation
from jax_moye._primitives.grouped import (
    OF_ROWS,
    fused_jvp,
    grouped_fused_local_p,
    grouped_fused_p,
    grouped_local_p,
    grouped_p,
    lower_by_kernel,
    lower_to_local,
    one_after_the_other,
    request_of_program,
    unfused,
)
from jax_moye._primitives.transposes import transposed

permuted_p = Primitive("jax_moye_grouped_permuted")
permuted_p.multiple_results = True
permuted_p.def_impl(functools.partial(xla.apply_primitive, permuted_p))


def permuted(
    spec: str,
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *operands: Any,
    lhs_rows: Any | None,
    permutation: Any | None,
    epilogue: Any | None = None,
    **params: Any,
) -> Any:
    """Binds the primitive, or, where nothing is permuted, that of products in order: y alone.

    Args:
      spec: one of OF_ROWS.
      lhs: with the dimensions that the specification names, but its m: as many rows as it has.
      rhs: matrices of the groups.
      group_sizes: (groups,), int32.
      *operands: of the epilogue; lhs_rows go with none that are scales of rows.
      lhs_rows: (m,), int32, or None. One that is outside reads the nearest row.
      permutation: (m,), int32, or None.
      epilogue: as in `grouped_fused`, or None.
      **params: as in `grouped`.
    """
    if lhs_rows is None and permutation is None:
        return _in_order(lhs, rhs, group_sizes, *operands, spec=spec, epilogue=epilogue, **params)[0]
    rows = [x for x in (lhs_rows, permutation) if x is not None]
    return permuted_p.bind(
        *_compat.match_varying(lhs, rhs, group_sizes, *operands, *rows),
        spec=spec,
        epilogue=epilogue,
        preactivation=False,
        is_permuted=(lhs_rows is not None, permutation is not None),
        **params,
    )[0]


def _in_order(*values: Any, epilogue: Any | None, preactivation: bool = False, **params: Any) -> list[Any]:
    """Of rows that are not permuted: all results."""
    values = tuple(_compat.match_varying(*values))
    if epilogue is None:
        return [grouped_p.bind(*values, **params)]
    return grouped_fused_p.bind(*values, epilogue=epilogue, preactivation=preactivation, **params)


def _split(values: Sequence[Any], is_permuted: tuple[bool, bool]) -> tuple[Sequence[Any], Any, Any]:
    """Operands of the products, and lhs_rows and the permutation, None where there is none."""
    count = len(values) - sum(is_permuted)
    given = iter(values[count:])
    lhs_rows, permutation = (next(given) if is_given else None for is_given in is_permuted)
    return values[:count], lhs_rows, permutation


def gathered(x: Any, rows: Any | None) -> Any:
    """The rows of x that are named, each the nearest one that there is."""
    return x if rows is None else jnp.take(x, rows, axis=0, mode="clip")


def scattered(x: Any, permutation: Any | None) -> Any:
    """x, whose row i is stored in row permutation[i]."""
    if permutation is None:
        return x
    empty = _compat.match_varying(jnp.zeros(x.shape, x.dtype), x)[0]
    return empty.at[permutation].set(x, mode="drop", unique_indices=True)


def _composed(*values: Any, is_permuted: tuple[bool, bool], of_rows: Any = _in_order, **params: Any) -> list[Any]:
    """What the primitive computes, rows in their order in between. of_rows: computes that."""
    (lhs, *others), lhs_rows, permutation = _split(values, is_permuted)
    outs = of_rows(gathered(lhs, lhs_rows), *others, **params)
    return [scattered(out, permutation) for out in outs]


def _behind_a_gather(*values: Any, is_permuted: tuple[bool, bool], **params: Any) -> list[Any]:
    """The same, whose rows are gathered: what is stored elsewhere, or a product in order."""
    (lhs, *others), lhs_rows, permutation = _split(values, is_permuted)
    values = tuple(_compat.match_varying(gathered(lhs, lhs_rows), *others))
    if permutation is None:
        return _in_order(*values, **params)
    return permuted_p.bind(*_compat.match_varying(*values, permutation), is_permuted=(False, True), **params)


@permuted_p.def_abstract_eval
def _abstract_eval(lhs, *values, is_permuted, epilogue, preactivation, **params):
    others, *_ = _split(values, is_permuted)
    lhs = lhs.update(shape=(values[-1].shape[0], *lhs.shape[1:]))
    if epilogue is None:
        return [grouped_p.abstract_eval(lhs, *others, **params)[0]]
    return grouped_fused_p.abstract_eval(lhs, *others, epilogue=epilogue, preactivation=preactivation, **params)[0]


# ------------------------------------------------------------------------------------------------------ derivatives


def _jvp(primals, tangents, *, is_permuted, spec, epilogue, preactivation, **params):
    if epilogue is not None and epilogue.is_scaled:  # scales are of rows in their order
        of_call = {"is_permuted": is_permuted, "spec": spec, "epilogue": epilogue, "preactivation": preactivation}
        return _jvp_composed(primals, tangents, **of_call, **params)
    (lhs, rhs, group_sizes, *others), lhs_rows, permutation = _split(primals, is_permuted)
    dots, *_ = _split(tangents, is_permuted)
    product = functools.partial(permuted, lhs_rows=lhs_rows, permutation=permutation)
    if epilogue is not None:

        def bind(*values, **of_call):
            return permuted_p.bind(*values, *primals[len(values) :], is_permuted=is_permuted, **of_call)

        of_bias = functools.partial(permuted, lhs_rows=None, permutation=permutation)
        of_call = {"spec": spec, "epilogue": epilogue, "preactivation": preactivation}
        values = (lhs, rhs, group_sizes, *others)
        return fused_jvp(values, dots, ways=(bind, product, of_bias), **of_call, **params)
    out = product(spec, lhs, rhs, group_sizes, **params)
    terms = []
    if type(dots[0]) is not ad.Zero:
        terms.append(product(spec, dots[0], rhs, group_sizes, **params))
    if type(dots[1]) is not ad.Zero:
        terms.append(product(spec, lhs, dots[1], group_sizes, **params))
    if not terms:
        return [out], [ad.Zero(jax.typeof(out).to_tangent_aval())]
    return [out], [functools.reduce(lax.add, terms)]


def _jvp_composed(primals, tangents, **params):
    """Through a gather, the product in order, and a scatter."""
    live = [i for i, dot in enumerate(tangents) if type(dot) is not ad.Zero]
    if not live:
        outs = permuted_p.bind(*primals, **params)
        return outs, [ad.Zero(jax.typeof(out).to_tangent_aval()) for out in outs]

    def of_live(*values):
        given = dict(zip(live, values, strict=True))
        return _composed(*(given.get(i, x) for i, x in enumerate(primals)), **params)

    return jax.jvp(of_live, [primals[i] for i in live], [tangents[i] for i in live])


def _transpose(cotangents, *operands, is_permuted, spec, epilogue, preactivation, config, out_dtype, **params):
    """Of a product: what is read as the result was stored, and added up where rows of lhs were read."""
    of_product = {"spec": spec, "config": config, "out_dtype": out_dtype, **params}
    if epilogue is not None:
        of_product |= {"is_permuted": is_permuted, "epilogue": epilogue, "preactivation": preactivation}
        return _transpose_fused(cotangents, operands, **of_product)
    (cotangent,) = cotangents
    (lhs, rhs, group_sizes), lhs_rows, permutation = _split(operands, is_permuted)
    if type(cotangent) is ad.Zero:
        return [None] * len(operands)
    params |= {"config": None}  # meant for the forward product
    others = [None] * (len(operands) - 2)
    if not ad.is_undefined_primal(lhs):
        rows, cotangent = gathered(lhs, lhs_rows), gathered(cotangent, permutation)

        def in_rhs(rhs):
            return _in_order(rows, rhs, group_sizes, epilogue=None, **of_product | {"config": None})[0]

        return [None, *jax.linear_transpose(in_rhs, rhs.aval)(cotangent), *others]
    (transposed_spec,) = set(OF_ROWS) - {spec}
    dtype = lhs.aval.dtype
    # What is added up is rounded once.
    params |= {"out_dtype": dtype if lhs_rows is None else jnp.promote_types(dtype, jnp.float32)}
    rows = permuted(transposed_spec, cotangent, rhs, group_sizes, lhs_rows=permutation, permutation=None, **params)
    if lhs_rows is None:
        return [rows, None, *others]
    add = _added_in_order if params["deterministic"] or params["batch_invariant"] else _added
    return [add(rows, lhs_rows, lhs.aval.shape[0]).astype(dtype), None, *others]


def _added(rows: Any, at: Any, length: int) -> Any:
    """(length, k): the sums of the rows that are read from the same row."""
    zeros = _compat.match_varying(jnp.zeros((length, rows.shape[1]), rows.dtype), rows)[0]
    return zeros.at[jnp.clip(at, 0, length - 1)].add(rows)


def _added_in_order(rows: Any, at: Any, length: int) -> Any:
    """The same sums, always in one order, which a scatter of XLA's does not promise: those of neighbours, sorted."""
    at = jnp.clip(at, 0, length - 1)
    order = jnp.argsort(at, stable=True)
    at = at[order]

    def both(left, right):
        (at_left, x), (at_right, y) = left, right
        return at_right, jnp.where((at_left == at_right)[:, None], x + y, y)

    _, sums = lax.associative_scan(both, (at, rows[order]))
    last = jnp.searchsorted(at, jnp.arange(length), side="right") - 1
    return jnp.where((at[last] == jnp.arange(length))[:, None], sums[last], 0)


def _transpose_fused(cotangents, operands, **params):
    """Of what is linear in lhs, in rhs and in the bias, or of two matrices in one of them."""
    if params["epilogue"].activation != "none":
        raise NotImplementedError(f"jax.linear_transpose: activation {params['epilogue'].activation!r} is not linear")
    return linear_transpose(functools.partial(_composed, of_rows=unfused, **params), cotangents, operands)


ad.primitive_jvps[permuted_p] = _jvp
ad.primitive_transposes[permuted_p] = _transpose
batching.primitive_batchers[permuted_p] = functools.partial(one_after_the_other, permuted_p)
partial_eval.dce_rules[permuted_p] = without_preactivation
_compat.check_for_nan(permuted_p)


# ------------------------------------------------------------------------------------------------------- lowering

permuted_local_p = Primitive("jax_moye_grouped_permuted_local")
permuted_local_p.multiple_results = True
permuted_local_p.def_impl(functools.partial(xla.apply_primitive, permuted_local_p))


@permuted_local_p.def_abstract_eval
def _local_abstract_eval(*values, request, permutations, preactivation):
    *operands, _ = values
    of_request = {"request": request, "permutations": permutations}
    if request.epilogue is None:
        return [grouped_local_p.abstract_eval(*operands, **of_request)[0]]
    return grouped_fused_local_p.abstract_eval(*operands, preactivation=preactivation, **of_request)[0]


def _lower_local(platform, ctx, *values, request, permutations, preactivation):
    of_call = {"request": request, "permutations": permutations, "preactivation": preactivation}
    lowered, decision = lower_by_kernel(platform, ctx, values, **of_call, scatters=True)
    if lowered is not None:
        return lowered
    if decision.cause == "config":
        raise ValueError(decision.reason)
    params = {field.name: getattr(request, field.name) for field in dataclasses.fields(request)}
    del params["beta"], params["alone"], params["keeps_c"]

    def composed(lhs, rhs, *others):
        if request.epilogue is not None and request.epilogue.is_of_pair:
            group_sizes, second, *rows = others
            others = (group_sizes, transposed((lhs, second), permutations)[1], *rows)
        lhs, rhs = transposed((lhs, rhs), permutations)
        return _composed(lhs, rhs, *others, preactivation=preactivation, is_permuted=(False, True), **params)

    return mlir.lower_fun(composed, multiple_results=True)(ctx, *values)


mlir.register_lowering(permuted_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(permuted_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(permuted_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, *values, preactivation, is_permuted, **params):
    of_rows = {"preactivation": preactivation, "is_permuted": is_permuted}
    is_local = _compat.why_not_local(ctx) is None
    if is_local and is_permuted == (False, True):
        request = dataclasses.replace(request_of_program(params), alone=None)  # the caller's
        return lower_to_local(ctx, permuted_local_p, values, request, preactivation=preactivation)
    fun = functools.partial(_behind_a_gather if is_local else _composed, **of_rows, **params)
    return mlir.lower_fun(fun, multiple_results=True)(ctx, *values)


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(permuted_p, _lower, cacheable=False)
