"""The text notation of layouts: parsed, evaluated in Python, and written as C++ types."""

from __future__ import annotations

import math
from typing import Any

IntTuple = Any  # int, "_", or a tuple of IntTuples


def split(text: str, separator: str) -> list[str]:
    """Splits at separators outside of brackets."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        depth += character in "([<"
        depth -= character in ")]>"
        if character == separator and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def int_tuple(text: str) -> IntTuple:
    text = text.strip()
    if text.startswith("("):
        return tuple(int_tuple(part) for part in split(text[1:-1], ",") if part.strip())
    return "_" if text == "_" else int(text)


def layout(text: str) -> tuple[IntTuple, IntTuple]:
    shape, stride = split(text, ":")
    return int_tuple(shape), int_tuple(stride)


def is_layout(text: str) -> bool:
    return len(split(text, ":")) == 2 and not text.startswith("[")


def leaves(t: IntTuple) -> list[int]:
    return [leaf for x in t for leaf in leaves(x)] if isinstance(t, tuple) else [t]


def size(shape: IntTuple) -> int:
    return math.prod(leaves(shape))


def evaluate(of: tuple[IntTuple, IntTuple], count: int | None = None) -> list[int]:
    """The layout's values in colexicographic order."""
    flat = list(zip(leaves(of[0]), leaves(of[1]), strict=True))
    values = []
    for i in range(size(of[0]) if count is None else count):
        index, rest = 0, i
        for extent, stride in flat[:-1]:
            index += rest % extent * stride
            rest //= extent
        values.append(index + (rest * flat[-1][1] if flat else 0))
    return values


def normalized(of: tuple[IntTuple, IntTuple]) -> tuple[IntTuple, IntTuple]:
    """Strides of modes of extent 1 set to 0."""

    def zero(shape: IntTuple, stride: IntTuple) -> IntTuple:
        if isinstance(shape, tuple):
            return tuple(zero(s, d) for s, d in zip(shape, stride, strict=True))
        return 0 if shape == 1 else stride

    return of[0], zero(*of)


def cpp(t: IntTuple) -> str:
    if isinstance(t, tuple):
        return "T<" + ",".join(map(cpp, t)) + ">"
    return "U" if t == "_" else f"I<{t}>"


def cpp_argument(text: str) -> str:
    """The C++ type of an argument: layout, tiler, swizzle or int-tuple."""
    text = text.strip()
    if text.startswith("["):
        return "T<" + ",".join(cpp_argument(part) for part in split(text[1:-1], ";")) + ">"
    if text.startswith("Sw<"):
        return "Swizzle<" + text[3:]
    if is_layout(text):
        shape, stride = layout(text)
        return f"L<{cpp(shape)},{cpp(stride)}>"
    return cpp(int_tuple(text))
