"""Two products of one left operand, the one activated and multiplied with the other: a gated layer, as one equation.

    activation(x @ w) * (x @ v)      rewritten_p with v as the epilogue's SECOND_B

Both right operands have one shape and one type, and nobody else reads what stands between. Kernels of ours read x once,
and never write the two products.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jax.extend.core import JaxprEqn, Literal

from jax_moye._primitives.chains import Chain, chain_from, original_of
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.rewritten import rewritten_p
from jax_moye._selection.epilogue import SECOND_B, Epilogue
from jax_moye._selection.problem import parse_spec


def pair_from(
    program: Program, index: int, replaced: Mapping[int, Any], parameters: Mapping[str, Any]
) -> tuple[list[int], JaxprEqn] | None:
    """The gated layer whose activated product is an equation's.

    Args:
      program: of the equation.
      index: of it.
      replaced: equations that are part of something else.
      parameters: of products: what `Options.parameters` gives.

    Returns:
      The indices of all its equations, and the one that stands in the place of the last; None where there is none.
    """
    first = chain_from(program, index, replaced)
    if first is None or first.operands:
        return None
    reader = program.only_reader(first.value)
    if reader is None or reader in replaced:
        return None
    product: Any = program.equations[reader]
    (out,) = product.outvars
    others = [x for x in product.invars if x is not first.value]
    if product.primitive.name != "mul" or len(others) != 1 or isinstance(others[0], Literal) or out.aval.weak_type:
        return None
    second = _plain_chain_to(program, others[0], replaced)
    if second is None or not _are_alike(program, first, second):
        return None
    # The activated product may be the later one, and have none: then the other one is found first.
    members = sorted({*first.members, *second.members, reader})
    lhs, rhs = program.equations[first.product].invars
    second_rhs = program.equations[second.product].invars[1]
    params: Any = program.equations[first.product].params
    of_product = {"spec": first.spec, "precision": params["precision"], "config": None, **parameters}
    variables = [lhs, rhs, second_rhs]
    operands = ((SECOND_B, parse_spec(first.spec).rhs),)
    new = {
        "out_dtype": out.aval.dtype,
        "epilogue": Epilogue(first.activation, operands=operands),
        "original": original_of(program, members, variables, out, of_product),
    }
    return members, product.replace(
        invars=variables, outvars=[out], primitive=rewritten_p, params=of_product | new, effects=frozenset()
    )


def _plain_chain_to(program: Program, value: Any, replaced: Mapping[int, Any]) -> Chain | None:
    """The product, and its conversion if there is one, that make a value which is read once."""
    made_by = program.made_by.get(value)
    if made_by is None or program.only_reader(value) is None:
        return None
    equation = program.equations[made_by]
    if equation.primitive.name == "convert_element_type":
        made_by = program.made_by.get(equation.invars[0]) if not isinstance(equation.invars[0], Literal) else None
    if made_by is None or program.equations[made_by].primitive.name != "dot_general":
        return None
    chain = chain_from(program, made_by, replaced)
    is_plain = chain is not None and chain.value is value and chain.activation == "none" and not chain.operands
    return chain if is_plain else None


def _are_alike(program: Program, first: Chain, second: Chain) -> bool:
    """Whether two products differ in nothing but their right operand."""
    one, other = (program.equations[chain.product] for chain in (first, second))
    names = ("precision", "preferred_element_type")
    return (
        first.product != second.product
        and first.spec == second.spec
        and one.invars[0] is other.invars[0]
        and one.invars[1] is not other.invars[1]
        and _type(one.invars[1]) == _type(other.invars[1])
        and _type(first.value) == _type(second.value)
        and all(one.params.get(name) == other.params.get(name) for name in names)
    )


def _type(variable: Any) -> tuple[Any, Any]:
    return variable.aval.shape, variable.aval.dtype
