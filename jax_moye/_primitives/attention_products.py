"""Which products may be attention's: how their operands are multiplied, and what they were before a conversion."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Var

from jax_moye._primitives.patterns import Program, aval_of

# Products of 16 bits, summed in f32, or in less.
_ALGORITHMS = {
    jnp.dtype("bfloat16"): ("DEFAULT", "BF16_BF16_F32", "BF16_BF16_BF16"),
    jnp.dtype("float16"): ("DEFAULT", "F16_F16_F32", "F16_F16_F16"),
}


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
