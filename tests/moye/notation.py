"""The text notation of layouts: parsed, evaluated in Python, and written as C++ types."""

from __future__ import annotations

import math
import re
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


def text(t: IntTuple) -> str:
    """The opposite of int_tuple."""
    return f"({','.join(map(text, t))})" if isinstance(t, tuple) else str(t)


def layout(text: str) -> tuple[IntTuple, IntTuple]:
    shape, stride = split(text, ":")
    return int_tuple(shape), int_tuple(stride)


def is_layout(text: str) -> bool:
    return len(split(text, ":")) == 2 and not text.startswith("[")


def leaves(t: IntTuple) -> list[int]:
    return [leaf for x in t for leaf in leaves(x)] if isinstance(t, tuple) else [t]


def size(shape: IntTuple) -> int:
    return math.prod(leaves(shape))


def rank(shape: IntTuple) -> int | None:
    """The number of modes; None for an integer, which is not a tuple of one."""
    return len(shape) if isinstance(shape, tuple) else None


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


# ---- C++ types, as compilers spell them ----

TOKEN = re.compile(r"[\w:]+|-\d+|[<>,(){}]")


def types_text(signature: str) -> list[str]:
    """The notation of each type of a pack, from __PRETTY_FUNCTION__ of a function template <class... T>."""
    pack = signature.split("T = ", 1)[1].strip()[:-1].strip()  # without the closing ]
    return split(pack[1:-1], ",") if not pack.startswith("moye::") else [pack]


def type_text(spelled: str) -> str:
    """`moye::Layout<moye::Tuple<moye::C<2> >, ...>` as `(2):...`."""
    tokens = TOKEN.findall(spelled)
    text, end = _type(tokens, 0)
    assert end == len(tokens), spelled
    return text


def _type(tokens: list[str], at: int) -> tuple[str, int]:
    name = tokens[at].removeprefix("moye::")
    at += 1
    if name == "Underscore":
        return "_", at
    if name in ("int", "long", "bool"):
        return name, at
    assert tokens[at] == "<", tokens[at - 1 :]
    at += 1
    parts = []
    while tokens[at] != ">":
        if tokens[at] == ",":
            at += 1
        elif name in ("C", "Swizzle") or (name == "ScaledBasis" and parts):
            # A number; `3u`, `true` and `moye::Enum::kName`, too.
            value = tokens[at].rpartition("::")[2]
            parts.append(
                {"true": "1", "false": "0"}.get(value, value.rstrip("uUlL") if value[0] in "-0123456789" else value)
            )
            at += 1
        else:
            part, at = _type(tokens, at)
            parts.append(part)
    at += 1
    match name:
        case "C":
            return parts[0], at
        case "Tuple" | "ArithTuple":
            return f"({','.join(parts)})", at
        case "Layout":
            return ":".join(parts), at
        case "Swizzle":
            return f"Sw<{','.join(parts)}>", at
        case "ComposedLayout":
            return " o ".join(parts), at
        case "ScaledBasis":
            return "@".join(parts), at
    raise AssertionError(f"unknown type {name}")
