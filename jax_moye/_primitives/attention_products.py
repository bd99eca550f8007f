"""Which products may be attention's: how their operands are multiplied, and what they were before a conversion.

16 bits                       products are exact
f32 that were 16 bits         likewise, whatever the precision
f32                           where the precision is TF32, as it is on a GPU by default
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Var

from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._selection.precision import may_be_tf32

# Products of 16 bits, summed in f32, or in less.
_ALGORITHMS = {
    jnp.dtype("bfloat16"): ("DEFAULT", "BF16_BF16_F32", "BF16_BF16_BF16"),
    jnp.dtype("float16"): ("DEFAULT", "F16_F16_F32", "F16_F16_F16"),
}


def is_multiplied_as(equation: Any, dtype: Any, made: int | None) -> bool:
    """Whether a kernel of attention multiplies the operands of a product as precisely.

    Args:
      equation: of the product.
      dtype: of the kernel's arrays.
      made: which operand is none of these, but made of scores; None: neither.
    """
    if dtype != jnp.float32:
        return jnp.dtype(dtype) in _ALGORITHMS and is_16_bit(equation, dtype, made)
    operands, out = [x.aval.dtype for x in equation.invars], equation.outvars[0].aval
    is_f32 = all(one == jnp.float32 for one in (*operands, out.dtype)) and not out.weak_type
    return is_f32 and may_be_tf32(equation.params["precision"], "cuda")


def operands_of_scores(program: Program, equation: Any) -> list[list[Any]]:
    """The queries and keys that a product may have, the best ones first: what was converted to f32, and its operands.

    Args:
      program: where it stands.
      equation: of the product.
    """
    own = list(equation.invars)
    narrow = [narrowed(program, x) for x in own]
    is_converted = all(x is not other for x, other in zip(own, narrow, strict=True))
    found = [narrow] if is_converted and is_exact_in_tf32(equation) else []
    return [*found, own] if is_multiplied_as(equation, own[0].aval.dtype, None) else found


def precision_of(equations: Iterable[Any]) -> Any:
    """The precision of products of f32; None, the default, where they have different ones.

    Args:
      equations: the products, each of which may be computed in TF32, and others.
    """
    found = {equation.params["precision"] for equation in equations if equation.primitive.name == "dot_general"}
    return found.pop() if len(found) == 1 else None


def is_16_bit(equation: Any, dtype: Any, made: int | None) -> bool:
    """Whether the operands of a product are multiplied as 16 bits of a type.

    Args:
      equation: of the product.
      dtype: the type.
      made: which operand may be f32 that the product rounds; None: neither.
    """
    precision = equation.params["precision"]
    names = _ALGORITHMS.get(jnp.dtype(dtype), ())
    is_algorithm = precision is not None and not isinstance(precision, (tuple, lax.Precision))
    if is_algorithm and getattr(precision, "name", None) not in names:
        return False
    rounds = is_algorithm and precision.name != "DEFAULT"
    for side, x in enumerate(equation.invars):
        if x.aval.dtype != dtype and not (side == made and rounds and x.aval.dtype == jnp.float32):
            return False
    out = equation.outvars[0].aval
    return out.dtype in (dtype, jnp.float32) and not out.weak_type


def narrowed(program: Program, x: Any) -> Any:
    """The array of 16 bits of which another one is the same in f32; itself where there is none.

    Args:
      program: where it stands.
      x: an operand of a product.
    """
    index = program.made_by.get(x) if isinstance(x, Var) else None
    equation: Any = None if index is None else program.equations[index]
    return equation.invars[0] if equation is not None and is_widening(equation) else x


def is_widening(equation: Any) -> bool:
    """Whether an equation converts 16 bits to f32, which rounds nothing."""
    if equation.primitive.name != "convert_element_type" or not isinstance(equation.invars[0], Var):
        return False
    before, after = (aval_of(x[0]) for x in (equation.invars, equation.outvars))
    return before.dtype in _ALGORITHMS and after.dtype == jnp.float32 and not after.weak_type


def is_exact_in_tf32(equation: Any) -> bool:
    """Whether a product of f32 that were 16 bits is what one of these is, summed in f32: TF32 holds them."""
    precision, out = equation.params["precision"], equation.outvars[0].aval
    names = precision if isinstance(precision, tuple) else [precision]
    is_usual = all(name is None or isinstance(name, lax.Precision) for name in names)
    return is_usual and out.dtype == jnp.float32 and not out.weak_type


def is_tf32(equation: Any, dtype: Any, made: int, other: Any) -> bool:
    """Whether a product rounds an operand of f32 to TF32, and the other one is bfloat16, which it does not round.

    Args:
      equation: of the product.
      dtype: that the other operand is to have.
      made: which operand may be f32.
      other: the type of the other one, perhaps before it was converted to f32.
    """
    precision = equation.params["precision"]
    if any(
        x not in (None, lax.Precision.DEFAULT) for x in (precision if isinstance(precision, tuple) else [precision])
    ):
        return False
    given = equation.invars[made].aval.dtype
    out = equation.outvars[0].aval
    is_result = out.dtype in (dtype, jnp.float32) and not out.weak_type
    return given == jnp.float32 and other == dtype == jnp.bfloat16 and is_result
