"""The dtypes of kernels: the one table of their names, sizes and accumulators.

The table of configs, cuda/gemm/configs.h, names them in short ("bf16"); JAX in full ("bfloat16"). "tf32" is float32 in
memory, multiplied as TF32, and "bf16x6" is, multiplied as six products of bfloat16 parts; "s32" is a result alone.
"e4m3xe5m2" is a of "e4m3" and b of "e5m2".
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np


class KernelDtype(NamedTuple):
    """A dtype of the table.

    Attributes:
      name: short, as in `GemmConfig.dtype`.
      jax_name: of an array in memory, e.g. "bfloat16"; of a where b is another one.
      bytes: of an element.
      accumulator: what products are summed in where nothing else is asked for; cuda/gemm/config.h has the same. None of
        a dtype that no kernel multiplies.
      parts: of bfloat16 into which an element is split before it is multiplied; 0: it is not.
      products: of parts, for each product of two elements.
      weights: dtypes of b where they are others, weights that are multiplied as this one.
      of_b: the short name of b's dtype where it is another one, which tensor cores multiply as it is.
    """

    name: str
    jax_name: str
    bytes: int
    accumulator: str | None
    parts: int = 0
    products: int = 1
    weights: tuple[str, ...] = ()
    of_b: str | None = None


DTYPES: Mapping[str, KernelDtype] = MappingProxyType(
    {
        dtype.name: dtype
        for dtype in (
            KernelDtype("bf16", "bfloat16", 2, "f32"),
            KernelDtype("f16", "float16", 2, "f32"),
            KernelDtype("f32", "float32", 4, "f32"),
            KernelDtype("tf32", "float32", 4, "f32"),
            KernelDtype("bf16x3", "float32", 4, "f32", parts=2, products=3),
            KernelDtype("bf16x6", "float32", 4, "f32", parts=3, products=6),
            KernelDtype("bf16x9", "float32", 4, "f32", parts=3, products=9),
            KernelDtype("f64", "float64", 8, "f64"),
            KernelDtype("s8", "int8", 1, "s32"),
            KernelDtype("s32", "int32", 4, None),
            KernelDtype("e4m3", "float8_e4m3fn", 1, "f32"),
            KernelDtype("e5m2", "float8_e5m2", 1, "f32"),
            KernelDtype("bf16xs8", "bfloat16", 2, "f32", weights=("int8",)),
            KernelDtype("bf16xs4", "bfloat16", 2, "f32", weights=("int4", "uint4")),
            KernelDtype("bf16xe4m3", "bfloat16", 2, "f32", weights=("float8_e4m3fn",)),
            KernelDtype("f16xs8", "float16", 2, "f32", weights=("int8",)),
            KernelDtype("f16xs4", "float16", 2, "f32", weights=("int4", "uint4")),
            KernelDtype("f16xe4m3", "float16", 2, "f32", weights=("float8_e4m3fn",)),
            KernelDtype("e4m3xe5m2", "float8_e4m3fn", 1, "f32", of_b="e5m2"),
            KernelDtype("e5m2xe4m3", "float8_e5m2", 1, "f32", of_b="e4m3"),
        )
    }
)

# Of both operands, 8-bit floats.
FLOAT8 = ("e4m3", "e5m2", "e4m3xe5m2", "e5m2xe4m3")
# float32 in memory, and how it is multiplied.
WAYS_OF_F32 = ("tf32", "bf16x3", "bf16x6", "bf16x9")
# Of configs that compute a product, where it is not that of the product alone: at least as precise, see
# docs/precision.md.
MULTIPLIED_AS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "f32": ("f32", "bf16x6", "bf16x9"),
        "bf16x3": ("bf16x3", "bf16x6", "bf16x9", "f32"),
        "bf16x9": ("bf16x9", "f32"),
    }
)

JAX_NAMES: Mapping[str, str] = MappingProxyType({name: dtype.jax_name for name, dtype in DTYPES.items()})
SHORT_NAMES: Mapping[str, str] = MappingProxyType(  # of arrays: float32 is "f32"
    {
        dtype.jax_name: name
        for name, dtype in DTYPES.items()
        if name not in WAYS_OF_F32 and not dtype.weights and not dtype.of_b
    }
)
ITEM_BYTES: Mapping[str, int] = MappingProxyType({name: dtype.bytes for name, dtype in DTYPES.items()})
USUAL_ACCUMULATOR: Mapping[str, str] = MappingProxyType(
    {name: dtype.accumulator for name, dtype in DTYPES.items() if dtype.accumulator is not None}
)
# What a user may name as a dtype of operands, on the command line and where a dtype is an argument.
OPERAND_NAMES: Mapping[str, str] = MappingProxyType(
    {name: jax_name for jax_name, name in SHORT_NAMES.items() if name != "s32"}
)


def short_name(text: str) -> str:
    """The table's name of a dtype that JAX's name stands for, "bf16" of "bfloat16"; any other text as it is."""
    return SHORT_NAMES.get(text, text)


# Names that JAX has beside those of the table, for suggestions.
_OTHER_NAMES = ("bool", "int4", "int16", "int64", "uint8", "uint16", "uint32", "uint64", "complex64", "complex128")


def named_dtype(dtype: Any) -> Any:
    """A dtype that is given by name, such as "bfloat16" or the table's "bf16", as NumPy's; anything else as it is.

    Raises:
      TypeError: no dtype has this name; the message suggests those that are near.
    """
    if not isinstance(dtype, str):
        return dtype
    if dtype in SHORT_NAMES.values():  # of arrays: TF32 is a precision
        return numpy_dtype(dtype)
    try:
        return np.dtype(dtype)
    except TypeError:
        names = (*SHORT_NAMES, *_OTHER_NAMES, *SHORT_NAMES.values())
        near = difflib.get_close_matches(dtype.lower(), names, n=3, cutoff=0.5)
        hint = f"close names are {', '.join(near)}" if near else f"names are {', '.join(names)}"
        raise TypeError(f"no dtype is named {dtype!r}; {hint}") from None


@functools.cache
def numpy_dtype(name: str) -> np.dtype:
    """The dtype of an array in memory whose elements the table calls `name`: of "bf16" bfloat16, of "tf32" float32.

    Of a where b's is another one: `numpy_dtypes` has both.
    """
    jax_name = JAX_NAMES[name]
    return np.dtype(getattr(ml_dtypes, jax_name, jax_name))


def numpy_dtypes(name: str) -> tuple[np.dtype, np.dtype]:
    """The dtypes of a and b in memory; not of weights, of which there may be several."""
    return numpy_dtype(name), numpy_dtype(DTYPES[name].of_b or name)


def exchanged(name: str) -> str:
    """The name where a is b and b is a: "e5m2xe4m3" of "e4m3xe5m2", of one dtype itself."""
    of_b = DTYPES[name].of_b
    return name if of_b is None else f"{of_b}x{SHORT_NAMES[JAX_NAMES[name]]}"
