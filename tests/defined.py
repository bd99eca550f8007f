"""Whether a name of the library is there: in Python from `jax_moye.layout` on, in C++ in the headers of cuda/moye."""

from __future__ import annotations

import functools
import importlib
import pathlib
import re

from jax_moye import layout as lay

CUDA = pathlib.Path(__file__).parents[1] / "cuda" / "moye"


def in_python(name: str) -> bool:
    """Whether the name, dotted from jax_moye.layout on, is there."""
    first, *rest = name.split(".")
    if first in ("int_tuple", "errors", "draw", "checks", "block"):
        thing = importlib.import_module(f"jax_moye.layout.{first}")
    else:
        thing = getattr(lay, first, None)
        if first not in dir(lay):
            return False
    for part in rest:
        if part in getattr(thing, "__dataclass_fields__", {}):
            return True
        thing = getattr(thing, part, None)
    return thing is not None


@functools.cache
def _defined_in_headers() -> frozenset[str]:
    """The types, functions, constants, macros and instructions of cuda/moye that a kernel can name."""
    text = "\n".join(path.read_text() for path in sorted(CUDA.rglob("*.h")) if path.parent.name != "emu")
    text = re.sub(r"//.*", "", text)
    kinds = r"(?:struct|class|concept|enum|using|#define|\bauto|\bbool|\bvoid|\bint|\blong|[>&*]|\b[A-Z]\w*)"
    found = set(re.findall(rf"(?={kinds} (\w+)\b)", text))  # ahead, so that one definition may begin in another
    return frozenset(found | set(re.findall(r"\bMOYE_MMA_\d+\((\w+)\b", text)))  # the tables in arch/mma_*.h


def in_cpp(name: str) -> bool:
    """Whether there is a type, function, constant, macro or instruction of this name, not only a use of it."""
    return name in _defined_in_headers()
