"""Element types of atoms: names as in JAX; CuTe's (`half_t`), MoYe.jl's (`Float16`) and short ones (`f16`) do too."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np

from jax_moye.layout.errors import AtomMismatch


class DType(NamedTuple):
    """An element type.

    Attributes:
      name: the name used everywhere in `jax_moye.layout`; JAX's where JAX has the type.
      bits: size of an element.
      cute: the C++ type of CuTe.
      short: as it stands in the names of MMA instructions.
    """

    name: str
    bits: int
    cute: str
    short: str


_TABLE = [
    DType("float64", 64, "double", "F64"),
    DType("float32", 32, "float", "F32"),
    DType("tfloat32", 32, "tfloat32_t", "TF32"),
    DType("float16", 16, "half_t", "F16"),
    DType("bfloat16", 16, "bfloat16_t", "BF16"),
    DType("float8_e4m3fn", 8, "float_e4m3_t", "E4M3"),
    DType("float8_e5m2", 8, "float_e5m2_t", "E5M2"),
    DType("complex128", 128, "complex<double>", "C64"),
    DType("gaussian_complex128", 192, "gaussian_complex<double>", "GC64"),  # three sums instead of two
    DType("int64", 64, "int64_t", "S64"),
    DType("int32", 32, "int32_t", "S32"),
    DType("int16", 16, "int16_t", "S16"),
    DType("int8", 8, "int8_t", "S8"),
    DType("int4", 4, "int4b_t", "S4"),
    DType("uint128", 128, "uint128_t", "U128"),
    DType("uint64", 64, "uint64_t", "U64"),
    DType("uint32", 32, "uint32_t", "U32"),
    DType("uint16", 16, "uint16_t", "U16"),
    DType("uint8", 8, "uint8_t", "U8"),
    DType("uint4", 4, "uint4b_t", "U4"),
    DType("uint1", 1, "uint1b_t", "U1"),
]


def _names() -> dict[str, DType]:
    names = {}
    for t in _TABLE:
        for alias in (t.name, t.cute, t.short.lower(), t.name.replace("_", "")):
            names[alias.lower()] = t
        if t.short[0] == "S":
            names[f"i{t.bits}"] = t
    more = {
        "half": "float16",
        "e4m3fn": "float8_e4m3fn",
        "float8_e4m3": "float8_e4m3fn",
        "b1": "uint1",
        "bool": "uint1",
    }
    more |= {"complexf64": "complex128", "uint128": "uint128", "cutlass::half_t": "float16"}
    return names | {alias: names[name] for alias, name in more.items()}


_BY_NAME = _names()
SHORT = {t.short: t for t in _TABLE}
# Longer names first: TF32 is no F32.
_TOKEN = re.compile("|".join(sorted(SHORT, key=len, reverse=True)))


def dtype(x: Any, op: str = "dtype") -> DType:
    """The element type of a name, a NumPy or JAX dtype, or a scalar class.

    >>> dtype("half_t").name, dtype("Float64").bits, dtype(np.int8).cute
    ('float16', 64, 'int8_t')

    Raises:
      AtomMismatch: it is none of the types that atoms know.
    """
    if isinstance(x, DType):
        return x
    if isinstance(x, str):
        found = _BY_NAME.get(x.replace("cute::", "").strip().lower())
    else:
        try:
            found = None if x is None else _BY_NAME.get(np.dtype(x).name)  # None is float64 to NumPy
        except TypeError:
            found = None
    if found is None:
        raise AtomMismatch(op, (str(x),), f"{x!r} is no element type", f"one of {', '.join(t.name for t in _TABLE)}")
    return found


def operand_types(name: str) -> tuple[DType, DType]:
    """The element types of a config's a and b.

    >>> [x.short for x in operand_types("e4m3xe5m2")], [x.short for x in operand_types("bf16")]
    (['E4M3', 'E5M2'], ['BF16', 'BF16'])

    Args:
      name: `GemmConfig.dtype`.
    """
    a, _, b = name.partition("x")
    return dtype(a), dtype(b or a)


def names() -> list[str]:
    """The names of all element types."""
    return [t.name for t in _TABLE]


def split_types(text: str) -> list[str]:
    """The types in a part of an instruction's name: `F32BF16BF16F32` has four."""
    found = _TOKEN.findall(text)
    return [SHORT[s].name for s in found] if "".join(found) == text else []


def storage(t: DType) -> np.dtype:
    """The NumPy dtype in which a tensor keeps elements of the type: TF32 values are floats, a bit takes a byte.

    Raises:
      AtomMismatch: NumPy has no such elements.
    """
    name = {"tfloat32": "float32", "uint1": "uint8"}.get(t.name, t.name)
    if name in ("uint128", "gaussian_complex128"):
        raise AtomMismatch("make_tensor", (t.name,), f"NumPy has no elements of type {t.name}")
    if name in ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4"):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)
