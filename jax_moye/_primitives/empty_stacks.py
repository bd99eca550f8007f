"""scan_p: a scan whose stacks begin as memory that nobody has written.

A scan stacks what its iterations make: the residuals of layers, the gradients of their parameters. JAX begins each
stack as zeros, which XLA writes, as many bytes as the iterations then write over them. Each iteration writes its own
part, and together they write all of it, so that nobody reads what a stack begins as, and it need not be anything.

Elsewhere than in a program for one CUDA device it is the scan as it was, and so are its derivatives and what vmap makes
of it.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.interpreters import mlir

from jax_moye import _compat
from jax_moye._primitives.equations import body_of, names_a_mesh
from jax_moye._primitives.patterns import aval_of
from jax_moye._primitives.rewritten import Original, of_equations
from jax_moye._primitives.scans import Scan, bytes_of, is_known

_LEAST_BYTES = 1 << 20  # of a scan's stacks: of fewer zeros nobody would notice

# Its parameters are the scan's, for who looks into it, and `original`, which has one equation, the scan.
scan_p = of_equations("jax_moye_scan")


def with_empty_stacks(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, whose scans with large stacks are equations of scan_p; the same object if there are none.

    Args:
      jaxpr: a program; the jaxprs of its equations stay what they are.
    """
    if not any(map(_has_large_stacks, jaxpr.eqns)):
        return jaxpr
    return jaxpr.replace(eqns=[_as_ours(one) if _has_large_stacks(one) else one for one in jaxpr.eqns])


def _has_large_stacks(equation: JaxprEqn) -> bool:
    """Whether it is a scan without effects, not unrolled, with that many bytes of stacks in the device's memory."""
    if not is_known(equation) or equation.effects or equation.params.get("unroll", 1) != 1:
        return False
    avals = [aval_of(x) for x in Scan(equation).stacked_results]
    are_plain = all(_compat.is_in_device_memory(x) and isinstance(x.dtype, np.dtype) for x in avals)
    return are_plain and sum(map(bytes_of, Scan(equation).stacked_results)) >= _LEAST_BYTES


def _as_ours(equation: JaxprEqn) -> JaxprEqn:
    inputs: list[Any] = [Var(aval_of(x)) for x in equation.invars]
    results: list[Any] = [Var(aval_of(x)) for x in equation.outvars]
    scan = equation.replace(invars=inputs, outvars=results)
    jaxpr: Any = Jaxpr([], inputs, results, [scan], debug_info=_compat.UNNAMED)
    return equation.replace(primitive=scan_p, params={**equation.params, "original": Original(ClosedJaxpr(jaxpr, []))})


def of_empty_stacks(scan: Scan, *operands: Any) -> list[Any]:
    """What a scan computes, by a loop that carries its stacks.

    Args:
      scan: without effects; its types say nothing about a mesh.
      *operands: its own.
    """
    params: Any = scan.equation.params
    consts, stacked = operands[: scan.consts], operands[scan.first :]
    body = jaxpr_as_fun(params["jaxpr"])
    firsts = _firsts(scan.body)[scan.carry :]
    once: dict[Any, int] = {}  # equal stacks are one
    for index, first in enumerate(firsts):
        once.setdefault(first, index)

    def step(state: tuple[Any, list[Any], list[Any]]) -> tuple[Any, list[Any], list[Any]]:
        count, carry, stacks = state
        at = scan.length - 1 - count if params["reverse"] else count
        given = [lax.dynamic_index_in_dim(x, at, keepdims=False, allow_negative_indices=False) for x in stacked]
        made = body(*consts, *carry, *given)
        parts = [made[scan.carry + index] for index in once.values()]
        written = [
            lax.dynamic_update_index_in_dim(x, y, at, 0, allow_negative_indices=False)
            for x, y in zip(stacks, parts, strict=True)
        ]
        return count + 1, made[: scan.carry], written

    with _compat.lax_itself():
        avals = [aval_of(scan.stacked_results[index]) for index in once.values()]
        stacks = [lax.empty(aval.shape, aval.dtype) for aval in avals]
        begin: Any = np.int32(0), list(operands[scan.consts : scan.first]), stacks
        _, carry, stacks = lax.while_loop(lambda state: state[0] < scan.length, step, begin)
    made = dict(zip(once, stacks, strict=True))
    return [*carry, *(made[first] for first in firsts)]


def _firsts(jaxpr: Jaxpr) -> list[Any]:
    """For each result of a program the first value that the same equations make of the same values.

    XLA finds equal stacks itself where they begin equal, as zeros do.
    """
    first: dict[Any, Any] = {}
    made_by: dict[Any, JaxprEqn] = {}

    def known(x: Any) -> Any:
        if not isinstance(x, Literal):
            return first.get(x, x)
        return (str(x.aval), np.asarray(x.val).tobytes()) if np.ndim(x.val) == 0 else id(x)

    for one in jaxpr.eqns:
        if _draws(one):
            continue
        key = one.primitive, tuple(sorted(one.params.items())), *map(known, one.invars)
        try:
            other = made_by.setdefault(key, one)
        except TypeError:  # a parameter has no hash
            continue
        first |= zip(one.outvars, other.outvars, strict=True)
    return list(map(known, jaxpr.outvars))


def _draws(equation: JaxprEqn) -> bool:
    """Whether it makes other numbers each time: XLA's own generator does, without a key."""
    inner = (x for value in equation.params.values() for x in (value if isinstance(value, (tuple, list)) else (value,)))
    bodies = (body_of(x) for x in inner if isinstance(x, (ClosedJaxpr, Jaxpr)))
    return equation.primitive.name == "rng_uniform" or any(_draws(one) for body in bodies for one in body.eqns)


def _lower(is_cuda: bool, ctx: mlir.LoweringRuleContext, *values: Any, original: Original, **of_scan: Any) -> Any:
    del of_scan
    is_local = is_cuda and _compat.why_not_local(ctx) is None and not _compat.is_exported(ctx)
    if not is_local or names_a_mesh(original.jaxpr):
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    run = functools.partial(of_empty_stacks, Scan(original.jaxpr.eqns[0]))
    return mlir.lower_fun(run, multiple_results=True)(ctx, *values)


# Not cacheable, so that products in the loop see what their operands are: see _compat.transposed_source.
mlir.register_lowering(scan_p, functools.partial(_lower, False), cacheable=False)
mlir.register_lowering(scan_p, functools.partial(_lower, True), cacheable=False, platform="cuda")
