"""The text notation of layouts, both ways: `(2,(3,4)):(1,(2,6))`, tilers `[4;(2,2):(1,4);_]`, swizzles `Sw<3,4,3>`.

The parser is strict: it accepts what the library prints (and blanks, a comma after the last element, and `_4` for 4, as
CuTe and MoYe.jl print static numbers), and otherwise says where it stopped.
"""

from __future__ import annotations

import re
from typing import Any

from jax_moye.layout.errors import ParseError
from jax_moye.layout.int_tuple import _ as underscore

_TOKEN = re.compile(r"\s*(?:_(?=-?\d))?(-?\d+|[()\[\],:;_<>@]|Sw|S|o|∘)|\s*$")
_MAX_DEPTH = 100


class _Reader:
    """The tokens of a text, and where each begins."""

    def __init__(self, text: str, op: str):
        self.text, self.op = text, op
        self.tokens: list[tuple[str, int]] = []
        self.next = 0
        at = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            if match is None:
                at += len(text[at:]) - len(text[at:].lstrip())
                raise self.error(f"unexpected {text[at]!r}", at)
            if match.group(1):
                self.tokens.append((match.group(1), match.start(1)))
            at = match.end()

    def error(self, problem: str, at: int | None = None) -> ParseError:
        if at is None:
            at = self.tokens[self.next][1] if self.next < len(self.tokens) else len(self.text)
        return ParseError(self.op, (self.text,), f"{problem} at position {at}: {self.text[:at]}<here>{self.text[at:]}")

    def peek(self) -> str:
        return self.tokens[self.next][0] if self.next < len(self.tokens) else ""

    def accept(self, token: str) -> bool:
        if self.peek() == token:
            self.next += 1
            return True
        return False

    def expect(self, token: str) -> None:
        if not self.accept(token):
            found = self.peek()
            raise self.error(f"expected {token!r}, found {found!r}" if found else f"expected {token!r}, found the end")

    def end(self) -> None:
        if self.peek():
            raise self.error(f"unexpected {self.peek()!r}")

    def integer(self) -> int:
        token = self.peek()
        if not token.lstrip("-").isdigit():
            raise self.error(f"expected an integer, found {token!r}" if token else "expected an integer, found the end")
        if len(token) > 100:
            raise self.error("an integer of more than 100 digits")
        self.next += 1
        return int(token)

    def int_tuple(self, blanks: bool = False, level: int = 0) -> Any:
        """An integer, `_` where `blanks` allows it, or a parenthesized list of such."""
        if level > _MAX_DEPTH:
            raise self.error(f"nested deeper than {_MAX_DEPTH}")
        if blanks and self.accept("_"):
            return underscore
        if not self.accept("("):
            return self.integer()
        elements = []
        while not self.accept(")"):
            elements.append(self.int_tuple(blanks, level + 1))
            if not self.accept(","):
                self.expect(")")
                break
        return tuple(elements)

    def layout(self) -> Any:
        """A shape with its strides, or a shape alone (column-major)."""
        from jax_moye.layout.layout import Layout

        shape = self.int_tuple()
        return Layout(shape, self.int_tuple()) if self.accept(":") else Layout(shape)

    def swizzle(self) -> Any:
        from jax_moye.layout.swizzle import Swizzle

        if not (self.accept("Sw") or self.accept("S")):
            raise self.error("expected 'Sw'")
        self.expect("<")
        bits = self.integer()
        self.expect(",")
        base = self.integer()
        self.expect(",")
        shift = self.integer()
        self.expect(">")
        return Swizzle(bits, base, shift)

    def any_layout(self) -> Any:
        """A layout, or `Sw<B,M,S> o offset o layout`; a swizzle alone is a swizzle."""
        from jax_moye.layout.swizzle import ComposedLayout

        if self.peek() not in ("Sw", "S"):
            return self.layout()
        swizzle = self.swizzle()
        if not self._compose():
            return swizzle
        offset = 0
        mark = self.next
        if self.peek().lstrip("-").isdigit():
            offset = self.integer()
            if not self._compose():
                self.next, offset = mark, 0
        return ComposedLayout(swizzle, offset, self.layout())

    def _compose(self) -> bool:
        return self.accept("o") or self.accept("∘")

    def tiler(self, level: int = 0) -> Any:
        """`[t;t;...]`, a layout, a shape, an integer, or `_`."""
        if level > _MAX_DEPTH:
            raise self.error(f"nested deeper than {_MAX_DEPTH}")
        if self.accept("["):
            from jax_moye.layout.layout import Tile

            elements = []
            while not self.accept("]"):
                elements.append(self.tiler(level + 1))
                if not self.accept(";"):
                    self.expect("]")
                    break
            return Tile(*elements)
        shape = self.int_tuple(blanks=True)
        if self.peek() == ":":
            from jax_moye.layout.layout import Layout

            self.expect(":")
            return Layout(shape, self.int_tuple())
        return shape


def parse_int_tuple(text: str, op: str = "int_tuple") -> Any:
    """An integer or nested tuple of integers."""
    reader = _Reader(text, op)
    out = reader.int_tuple()
    reader.end()
    return out


def parse_coord(text: str, op: str = "coord") -> Any:
    """Like an IntTuple, with `_` for modes that are kept."""
    reader = _Reader(text, op)
    out = reader.int_tuple(blanks=True)
    reader.end()
    return out


def parse_shape_stride(text: str) -> tuple[Any, Any]:
    """Shape and strides of the text of a layout; no strides: None."""
    reader = _Reader(text, "Layout")
    shape = reader.int_tuple()
    stride = reader.int_tuple() if reader.accept(":") else None
    reader.end()
    return shape, stride


def parse(text: str) -> Any:
    """The object a text describes: Layout, ComposedLayout or Swizzle.

    >>> parse("Sw<3,3,3> o 0 o (8,64):(64,1)")
    ComposedLayout('Sw<3,3,3> o 0 o (8,64):(64,1)')

    Raises:
      ParseError: the text is not in the notation; the message shows where.
    """
    reader = _Reader(text, "parse")
    out = reader.any_layout()
    reader.end()
    return out


def parse_tiler(text: str) -> Any:
    """A tiler: `[t;t;...]` by mode, a layout, a shape, an integer or `_`."""
    reader = _Reader(text, "parse_tiler")
    out = reader.tiler()
    reader.end()
    return out
