"""grouped_rewritten_p: two products of groups of one left operand, and the gate between them, in a program.

    activation(ragged_dot(x, w, sizes)) * ragged_dot(x, v, sizes)      a kernel call with v as the epilogue's SECOND_B

Or one product whose rows are stored elsewhere (grouped_rows.py). `jax_moye.optimize` puts it in their place. As
rewritten_p it is the equations as they were wherever no kernel computes them all, or groups have so many rows that two
products may be as fast: then each product is one of grouped_p. So are its derivatives, and what it is under vmap.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Var
from jax.interpreters import mlir

from jax_moye import _compat
from jax_moye._primitives.chains import Chain, is_plain_float, narrowed, original_of
from jax_moye._primitives.grouped import (
    LAX_DIMENSIONS,
    OF_ROWS,
    grouped_p,
    lower_by_kernel,
    lower_to_local,
    request_of_program,
)
from jax_moye._primitives.pairs import Pair, pair_from
from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._primitives.rewritten import Original, of_equations, of_local_equations
from jax_moye._primitives.transposes import transposed

grouped_rewritten_p = of_equations("jax_moye_grouped_rewritten")
grouped_rewritten_local_p = of_local_equations("jax_moye_grouped_rewritten_local")


def as_grouped(equation: JaxprEqn, parameters: Mapping[str, Any]) -> JaxprEqn:
    """An equation of lax.ragged_dot_general, as one of ours if it is one product of groups; others as they are.

    Args:
      equation: of a program.
      parameters: of the product: what `Options.parameters` gives.
    """
    if equation.primitive.name != "ragged_dot_general":
        return equation
    params: Any = equation.params
    known = (spec for spec, d in LAX_DIMENSIONS.items() if d == params["ragged_dot_dimension_numbers"])
    spec, avals = next(known, None), [x.aval for x in equation.invars]
    sizes: Any = avals[2]
    out: Any = equation.outvars[0].aval
    is_plain = params.get("group_offset") is None and params.get("out_sharding") is None
    if spec is None or not is_plain or any(map(_compat.has_explicit_axes, avals)):
        return equation
    if sizes.ndim != 1 or sizes.dtype != np.int32 or not is_plain_float(out):
        return equation
    of_product = {"spec": spec, "out_dtype": out.dtype, "precision": params["precision"], "config": None}
    return equation.replace(primitive=grouped_p, params=of_product | dict(parameters))


def of_grouped(original: Original, parameters: Mapping[str, Any]) -> Original:
    """Equations as they were, but that products of groups are ours."""
    jaxpr = original.jaxpr.jaxpr
    equations = [as_grouped(equation, parameters) for equation in jaxpr.eqns]
    return Original(ClosedJaxpr(jaxpr.replace(eqns=equations), original.jaxpr.consts))


def _product_at(program: Program, index: int, parameters: Mapping[str, Any]) -> Chain | None:
    """A product whose rows are cut into groups, and the conversion behind it; None if an equation is none."""
    equation = as_grouped(program.equations[index], parameters)
    params: Any = equation.params
    if equation.primitive is not grouped_p or index in program.taken or params["spec"] not in OF_ROWS:
        return None
    out = equation.outvars[0]
    if params["config"] is not None or not isinstance(out, Var) or any(isinstance(x, Literal) for x in equation.invars):
        return None
    return narrowed(program, Chain(index, params, (index,), params["spec"], out))


@dataclasses.dataclass(frozen=True)
class GroupedPair(Pair):
    """A gated layer of groups.

    Attributes:
      parameters: of its products: what `Options.parameters` gives.
    """

    parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def equations(self, program: Program) -> list[JaxprEqn]:
        """What stands in their place."""
        gate: Any = program.equations[self.gate]
        lhs, rhs, sizes = program.equations[self.first.product].invars
        variables = [lhs, rhs, sizes, program.equations[self.second.product].invars[1]]
        values = [*gate.outvars, *([self.first.value, self.second.value] if self.keeps else [])]
        members = (*self.first.members, *self.second.members, *self.inside, self.gate)
        original = of_grouped(original_of(program, [], members, variables, values), self.parameters)
        params = dict(self.first.of_product) | {
            "out_dtype": aval_of(values[0]).dtype,
            "epilogue": self.epilogue,
            "original": original,
        }
        of_grouped_rewritten: dict[str, Any] = {"primitive": grouped_rewritten_p, "effects": frozenset()}
        return [gate.replace(invars=variables, outvars=values, params=params, **of_grouped_rewritten)]


def grouped_pair_from(program: Program, index: int, parameters: Mapping[str, Any]) -> GroupedPair | None:
    """The gated layer of groups whose activated product is an equation's; None if there is none.

    Args:
      program: where it stands.
      index: of the equation.
      parameters: of a product of lax: what `Options.parameters` gives.
    """
    pair = pair_from(program, index, parameters, _product_at)
    if pair is None or pair.first.of_product["implementation"] == "xla":
        return None
    fields = {field.name: getattr(pair, field.name) for field in dataclasses.fields(pair)}
    return GroupedPair(**fields, parameters=parameters)


# ------------------------------------------------------------------------------------------------------- lowering


def _lower_local(platform, ctx, *values, request, permutations, original: Original, scatters):
    is_pair = request.epilogue is not None
    keeps = is_pair and request.epilogue.keeps
    lowered, _ = lower_by_kernel(platform, ctx, values, request, permutations, keeps, scatters)
    if lowered is not None:
        return lowered

    def as_it_was(lhs, rhs, sizes, *others):
        if is_pair:
            others = (transposed((lhs, others[0]), permutations)[1], *others[1:])
        lhs, rhs = transposed((lhs, rhs), permutations)
        return original(lhs, rhs, sizes, *others)

    return mlir.lower_fun(as_it_was, multiple_results=True)(ctx, *values)


mlir.register_lowering(grouped_rewritten_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(grouped_rewritten_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(grouped_rewritten_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


# Parameters, beside those of grouped_p and the equations as they were:
#   epilogue  of a pair; None of one product
#   scatters  whether a permutation is behind the others, where rows of the result are stored, and behind it perhaps
#             what the equations read in its place and no kernel does
def _lower(ctx, *values, original: Original, scatters=False, **params):
    request = request_of_program(params)
    if _compat.why_not_local(ctx) is not None or request.implementation == "xla":
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    of_rows = {"original": original.on_one_device, "scatters": scatters}
    return lower_to_local(ctx, grouped_rewritten_local_p, values, request, **of_rows)


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(grouped_rewritten_p, _lower, cacheable=False)
