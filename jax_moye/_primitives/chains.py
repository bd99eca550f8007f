"""A product of a jaxpr and the equations behind it that its kernel can take in, and the equation they become.

    product                                  contract_p
    product, narrower type, + another array  contract_p with c: the sum is the kernel's, and rounded once
    product, narrower type, + bias, relu,    rewritten_p, which is the equations as they were
      gelu or silu, + residual                 wherever no kernel computes them all faster

Nobody else may read what stands between two of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jax_moye import _compat
from jax_moye._primitives.contraction import contract_p
from jax_moye._primitives.patterns import Program, as_vector, matched
from jax_moye._primitives.reference import canonical_dimensions, spec_of
from jax_moye._primitives.rewritten import Original, rewritten_p
from jax_moye._selection.epilogue import ACTIVATIONS, Epilogue
from jax_moye._selection.problem import parse_spec


def is_plain_float(aval: Any) -> bool:
    """Whether a result is of floats whose type is known for sure."""
    return jnp.issubdtype(aval.dtype, jnp.floating) and not aval.weak_type


@dataclasses.dataclass
class Chain:
    """A product, and what stands behind it.

    Attributes:
      product: index of its equation.
      members: indices of all equations.
      spec: of the product.
      value: what the last of them makes.
      operands: name -> (variable, labels of the result that it has), in the order of an epilogue's.
      activation: a key of ACTIVATIONS.
    """

    product: int
    members: list[int]
    spec: str
    value: Any
    operands: dict[str, tuple[Any, str]] = dataclasses.field(default_factory=dict)
    activation: str = "none"

    def equation(self, program: Program, parameters: Mapping[str, Any]) -> JaxprEqn:
        """What stands in the place of the last of them."""
        product: Any = program.equations[self.product]
        last = program.equations[max(self.members)]
        variables = [*product.invars, *(variable for variable, _ in self.operands.values())]
        of_product = {"spec": self.spec, "precision": product.params["precision"], "config": None, **parameters}
        params: dict[str, Any] = of_product | {"out_dtype": self.value.aval.dtype}
        if self.activation == "none" and set(self.operands) <= {"c"}:
            primitive: Any = contract_p
            params |= {"beta": float(bool(self.operands)), "out_sharding": None}
        else:
            primitive = rewritten_p
            named = tuple((name, labels) for name, (_, labels) in self.operands.items())
            params |= {
                "epilogue": Epilogue(self.activation, operands=named),
                "original": original_of(program, self.members, variables, self.value, of_product),
            }
        return last.replace(
            invars=variables, outvars=[self.value], primitive=primitive, params=params, effects=frozenset()
        )


def original_of(
    program: Program, members: Sequence[int], variables: Sequence[Any], value: Any, of_product: Mapping[str, Any]
) -> Original:
    """Equations of a program, as a program of its own.

    Where a contract is asked for, which XLA might break, their products are ours: they keep the contract, or are
    errors, wherever no kernel computes them all.

    Args:
      program: whose they are.
      members: their indices.
      variables: what it takes.
      value: what it makes.
      of_product: parameters of contract_p, of all products in it.
    """
    contracts = ("deterministic", "batch_invariant")
    is_ours = of_product["implementation"] == "moye" or any(of_product[name] for name in contracts)
    inputs = [Var(variable.aval) for variable in variables]
    renamed: dict[Any, Any] = {}
    for variable, new in zip(variables, inputs, strict=True):
        if isinstance(variable, Var):
            renamed.setdefault(variable, new)
    equations = []
    for index in sorted(members):
        equation = program.equations[index]
        invars: list[Any] = [renamed.get(x, x) if isinstance(x, Var) else x for x in equation.invars]
        equation = equation.replace(invars=invars)
        if equation.primitive.name == "dot_general" and is_ours:
            aval: Any = equation.outvars[0].aval
            params = {**of_product, "out_dtype": aval.dtype, "beta": 0.0, "out_sharding": None}
            equation = equation.replace(primitive=contract_p, params=params)
        equations.append(equation)
    jaxpr = Jaxpr([], inputs, [value], equations, debug_info=_compat.UNNAMED)
    return Original(ClosedJaxpr(jaxpr, []))


def chain_from(program: Program, index: int, replaced: Mapping[int, Any]) -> Chain | None:
    """The longest chain that begins with an equation of a product; None if it is none for our kernels."""
    product: Any = program.equations[index]
    out: Any = product.outvars[0]
    params: Any = product.params
    is_plain = isinstance(out, Var) and is_plain_float(out.aval)
    if index in replaced or params.get("out_sharding") is not None or not is_plain:
        return None
    if any(isinstance(x, Literal) for x in product.invars):
        return None
    if any(_compat.has_explicit_axes(x.aval) for x in product.invars):
        return None
    lhs, rhs = (x.aval for x in product.invars)
    chain = Chain(index, [index], spec_of(canonical_dimensions(params["dimension_numbers"]), lhs.ndim, rhs.ndim), out)
    while (step := _step(program, chain)) is not None:
        members, value, changes = step
        if any(member in replaced for member in members):
            break
        chain.members += members
        chain.value = value
        for name, change in changes.items():
            setattr(chain, name, change)
    return chain


_Step = tuple[list[int], Any, dict[str, Any]]


def _step(program: Program, chain: Chain) -> _Step | None:
    """The next equations that the kernel can take in, what they make, and how the chain changes; None at its end."""
    can_go_on = "residual" not in chain.operands
    if can_go_on and chain.activation == "none" and "c" not in chain.operands:
        found = _activation(program, chain)
        if found is not None:
            return found
    reader = program.only_reader(chain.value)
    if reader is None or not can_go_on:
        return None
    equation: Any = program.equations[reader]
    name, out = equation.primitive.name, equation.outvars[0]
    if name == "convert_element_type" and len(chain.members) == 1:
        new, old = out.aval.dtype, chain.value.aval.dtype
        is_narrower = jnp.issubdtype(new, jnp.floating) and new.itemsize <= old.itemsize and new.itemsize > 1
        return ([reader], out, {}) if is_narrower and not out.aval.weak_type else None
    if name not in ("add", "add_any") or out.aval.dtype != chain.value.aval.dtype or out.aval.weak_type:
        return None
    (other,) = (x for x in equation.invars if x is not chain.value)
    if isinstance(other, Literal) or out.aval.shape != chain.value.aval.shape:
        return None
    labels, has_bias = parse_spec(chain.spec).out, "bias" in chain.operands
    vector, members = as_vector(program, other, out.aval.shape[-1])
    if vector is not None and not has_bias and chain.activation == "none" and "c" not in chain.operands:
        return [reader, *members], out, {"operands": {"bias": (vector, labels[-1])}}
    if other.aval.shape != out.aval.shape or "c" in chain.operands:
        return None
    name = "residual" if has_bias or chain.activation != "none" else "c"
    return [reader], out, {"operands": chain.operands | {name: (other, labels)}}


@functools.lru_cache(maxsize=256)
def _templates(shape: tuple[int, ...], dtype: Any) -> tuple[tuple[str, Jaxpr], ...]:
    """The jaxprs of activations, as JAX writes them."""
    operand = jax.ShapeDtypeStruct(shape, dtype)
    known = ((name, fun) for name, fun in ACTIVATIONS.items() if name != "none")
    return tuple((name, jax.make_jaxpr(fun)(operand).jaxpr) for name, fun in known)


def _activation(program: Program, chain: Chain) -> _Step | None:
    """The equations of an activation of the chain's value, if all that read it are those of one."""
    readers = program.readers.get(chain.value, [])
    if not readers or readers[-1] >= len(program.equations):
        return None
    aval = chain.value.aval
    for name, template in _templates(tuple(aval.shape), aval.dtype):
        found = matched(program, chain.value, readers, template)
        if found is not None:
            members, value = found
            return members, value, {"activation": name}
    return None
