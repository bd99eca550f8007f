"""A function of JAX's that computes each element for itself, as the C++ of one element: what a kernel is compiled with.

    translate(lambda y: 30 * jnp.tanh(y / 30), (8, 128), float32)

        float const v0 = x / 30.0f;
        float const v1 = ::tanhf(v0);
        float const v2 = 30.0f * v1;
        return v2;

Each equation of the function's jaxpr is one line, in f32; a result of 16 bits is rounded to them, as XLA rounds it. The
functions are C's and those of cuda/moye/arch/elementwise.h, which are within a few units in the last place of exact,
so that a translated function is as precise as XLA's program of it. Where the kernel will round the result to 16 bits,
kRounded, a logistic function is quicker and has errors of 1e-5 at most. Calls (jit, custom_jvp, ...) are their
equations. What is not a function of one element, or has a dtype that is not served, is an `UntranslatableError`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal

from jax_moye._primitives.equations import body_of, called_by

_ARRAYS = {"float32": "float", "bfloat16": "bfloat16_t", "float16": "half_t", "bool": "bool"}
_MOST = 256  # equations: as many as no activation has


class UntranslatableError(Exception):
    """Why a function is not translated, in words behind its name."""


class _Value(NamedTuple):
    """One of a jaxpr.

    Attributes:
      text: C++ of it, which is no operation.
      dtype: of it.
      number: what it is, where that is known.
    """

    text: str
    dtype: str
    number: Any = None


def _of(text: str) -> Callable[..., str]:
    return lambda *operands, **_: text.format(*operands)


def _rounding(x: str, *, rounding_method: Any, **_: Any) -> str:
    return f"::{'rintf' if rounding_method == jax.lax.RoundingMethod.TO_NEAREST_EVEN else 'roundf'}({x})"


def _select(which: str, *cases: str, **_: Any) -> str:
    if len(cases) != 2:
        raise UntranslatableError(f"it selects between {len(cases)} values")
    return f"{which} ? {cases[1]} : {cases[0]}"


_SIGNS = {"add": "+", "add_any": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_OF_C = """
exp exp2 expm1 log log1p tanh erf erfc sqrt cbrt floor ceil sin cos tan sinh cosh asin acos atan asinh acosh atanh
"""
# By a primitive's name: operands and parameters to C++.
_OF_FLOATS: Mapping[str, Callable[..., str]] = {
    **{name: _of(f"{{}} {sign} {{}}") for name, sign in (_SIGNS | _COMPARISONS).items()},
    **{name: _of(f"::{name}f({{}})") for name in _OF_C.split()},
    **{name: _of(f"elementwise::{name}({{}})") for name in ("sign", "square", "rsqrt", "is_finite")},
    **{name: _of(f"elementwise::{name}({{}}, {{}})") for name in ("max", "min")},
    "logistic": _of("elementwise::logistic<kRounded>({})"),
    "abs": _of("::fabsf({})"),
    "neg": _of("-{}"),
    "pow": _of("::powf({}, {})"),
    "atan2": _of("::atan2f({}, {})"),
    "clamp": _of("elementwise::clamp({}, {}, {})"),
    "integer_pow": lambda x, *, y, **_: f"elementwise::integer_pow<{y}>({x})",
    "round": _rounding,
}
_OF_BOOLS: Mapping[str, Callable[..., str]] = {
    "and": _of("{} && {}"),
    "or": _of("{} || {}"),
    "xor": _of("{} != {}"),
    "eq": _of("{} == {}"),
    "ne": _of("{} != {}"),
    "not": _of("!{}"),
}
_SAME = ("copy", "copy_p", "stop_gradient", "name", "broadcast_in_dim", "pvary", "pcast")


def translate(function: Callable[[Any], Any], shape: Sequence[Any], dtype: Any) -> str:
    """The body of a C++ function of x that returns what `function` makes of one element, a template of bool kRounded.

    Args:
      function: of one array, to one of its shape.
      shape: of that.
      dtype: likewise.

    Raises:
      UntranslatableError: it is not translated; the message says why.
      Exception: what `function` raises while it is traced.
    """
    traced = jax.make_jaxpr(function)(jax.ShapeDtypeStruct(tuple(shape), dtype))
    if len(traced.out_avals) != 1:
        raise UntranslatableError(f"it returns {len(traced.out_avals)} arrays")
    (out,) = traced.out_avals
    if tuple(out.shape) != tuple(shape):
        raise UntranslatableError(f"it makes an array of shape {out.shape} of one of shape {tuple(shape)}")
    if not jnp.issubdtype(out.dtype, jnp.floating):
        raise UntranslatableError(f"it makes {out.dtype} of {jnp.dtype(dtype)}")
    program = _Program(tuple(shape))
    x = _Value("x", jnp.dtype(dtype).name)
    if x.dtype != "float32":
        raise UntranslatableError(f"functions are compiled for float32, and this is one of {x.dtype}")
    (result,) = program.run(traced.jaxpr, traced.consts, [x])
    return "".join(f"  {line}\n" for line in [*program.lines, f"return {result.text};"])


class _Program:
    """The lines of C++ that equations become.

    Attributes:
      shape: of the array; everything else is a number.
      lines: of C++.
    """

    def __init__(self, shape: tuple[Any, ...]) -> None:
        self.shape = shape
        self.lines: list[str] = []

    def run(self, jaxpr: Any, consts: Sequence[Any], operands: Sequence[_Value]) -> list[_Value]:
        """The results of a jaxpr."""
        known = dict(zip(jaxpr.invars, operands, strict=True))
        known |= {variable: _constant(x) for variable, x in zip(jaxpr.constvars, consts, strict=True)}

        def value(x: Any) -> _Value:
            aval: Any = x.aval
            return _constant(x.val, aval.dtype) if isinstance(x, Literal) else known[x]

        for equation in jaxpr.eqns:
            results = self._equation(equation, [value(x) for x in equation.invars])
            known |= zip(equation.outvars, results, strict=True)
        return [value(x) for x in jaxpr.outvars]

    def _equation(self, equation: Any, operands: list[_Value]) -> list[_Value]:
        name = equation.primitive.name
        called = called_by(equation)
        if called is not None:
            return self.run(body_of(called), getattr(called, "consts", ()), operands)
        if equation.effects:
            raise UntranslatableError(f"{name} has an effect")
        (out,) = equation.outvars if len(equation.outvars) == 1 else (None,)
        if out is None or tuple(out.aval.shape) not in ((), self.shape):
            raise UntranslatableError(_not_elementwise(name))
        dtype = str(out.aval.dtype)  # perhaps that of a random key
        if name == "convert_element_type" and operands[0].number is not None:  # of an integer, too
            return [_constant(operands[0].number, dtype)]
        if name == "broadcast_in_dim" and equation.invars[0].aval.shape not in ((), self.shape):
            raise UntranslatableError(_not_elementwise(name))
        if name in _SAME:
            return operands
        if name not in _OF_FLOATS.keys() | _OF_BOOLS.keys() | {"convert_element_type", "select_n"}:
            raise UntranslatableError(_not_elementwise(name))
        for unserved in {x.dtype for x in operands} | {dtype}:
            if unserved not in _ARRAYS:
                raise UntranslatableError(f"{name} is of {unserved}; served are {', '.join(_ARRAYS)}")
        return [self._line(self._text(name, operands, dtype, equation.params), dtype, name)]

    def _text(self, name: str, operands: list[_Value], dtype: str, params: Mapping[str, Any]) -> str:
        texts = [x.text for x in operands]
        if name == "convert_element_type":
            (x,) = operands
            if dtype == "bool":
                return x.text if x.dtype == "bool" else f"{x.text} != 0"
            return f"{x.text} ? 1.0f : 0.0f" if x.dtype == "bool" else x.text
        if name == "select_n":
            if operands[0].dtype != "bool":
                raise UntranslatableError(f"it selects by {operands[0].dtype}")
            return _select(*texts)
        known = _OF_BOOLS if operands and all(x.dtype == "bool" for x in operands) else _OF_FLOATS
        if name not in known:
            raise UntranslatableError(_not_elementwise(name))
        return known[name](*texts, **params)

    def _line(self, text: str, dtype: str, name: str) -> _Value:
        if len(self.lines) == _MOST:
            raise UntranslatableError(f"it has more than {_MOST} equations")
        if _ARRAYS[dtype].endswith("_t") and name not in ("neg", "abs", "select_n", "max", "min"):  # else as it was
            text = f"elementwise::rounded<{_ARRAYS[dtype]}>({text})"
        variable = f"v{len(self.lines)}"
        self.lines.append(f"{'bool' if dtype == 'bool' else 'float'} const {variable} = {text};")
        return _Value(variable, dtype)


def _not_elementwise(name: str) -> str:
    return f"{name} is no operation on single elements that is translated"


def _constant(x: Any, dtype: Any = None) -> _Value:
    """A number, as C++ writes it."""
    if isinstance(x, jax.core.Tracer):
        raise UntranslatableError("it reads an array of the program around it: a captured value has to be a number")
    if np.ndim(x) != 0:
        raise UntranslatableError(f"it reads an array of shape {np.shape(x)}: a captured value has to be a number")
    number = np.asarray(x).astype(jnp.dtype(dtype or x.dtype))
    name = number.dtype.name
    if name == "bool":
        return _Value("true" if number else "false", name, number)
    if not jnp.issubdtype(number.dtype, jnp.floating) or name not in _ARRAYS:
        return _Value("", name, number)
    return _Value(_literal(float(number)), name, number)


def _literal(number: float) -> str:
    """Of a float that f32 holds."""
    if not math.isfinite(number):  # no literal
        return f"detail::bit_cast<float>({np.float32(number).view(np.uint32):#x}u)"
    text = f"{number.hex()}f"
    return text if math.copysign(1, number) > 0 else f"({text})"
