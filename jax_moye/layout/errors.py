"""What goes wrong with layouts: `LayoutError` and one subclass for each rule that can be broken.

Every error says which operation was asked of which operands (`op`, `args`), what exactly failed (`problem`: the mode
and the numbers), and, where a small search finds one, a legal alternative (`hint`).
"""

# The classes are named after the rule that is broken:
# ruff: noqa: N818

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class LayoutError(ValueError):
    """An operation on layouts that has no right answer.

    Attributes:
      op: name of the operation, as the user called it.
      args: the operands, as objects. (It replaces the tuple of the same name that every exception has: `str` of the
        error is made of `op`, `args`, `problem` and `hint`.)
      problem: what failed, with the mode and the numbers.
      hint: a legal alternative, or None.
    """

    op: str
    problem: str
    hint: str | None

    def __init__(self, op: str, args: Iterable[Any], problem: str, hint: str | None = None):
        """See the class."""
        super().__init__()
        self.op = op
        self.args = tuple(args)
        self.problem = problem
        self.hint = hint

    def inside(self, op: str, args: Iterable[Any], mode: int | None = None) -> LayoutError:
        """The same error of the operation that was asked for, when an inner step of it, at a mode, failed."""
        problem = f"in {self.op}({', '.join(map(_show, self.args))}): {self.problem}"
        if mode is not None:
            problem = f"at mode {mode}, {problem}"
        hint = None if self.op != op and self.hint and "extend=" in self.hint else self.hint  # an inner call's option
        return type(self)(op, args, problem, hint)

    def __str__(self) -> str:
        """`op(args): problem. Hint: hint`."""
        text = f"{self.op}({', '.join(map(_show, self.args))}): {self.problem}"
        return f"{text}. Hint: {self.hint}" if self.hint else text

    def __repr__(self) -> str:
        """The class and the message."""
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors cross process boundaries whole."""
        return type(self), (self.op, self.args, self.problem, self.hint)


def _show(x: Any) -> str:
    if isinstance(x, tuple):
        return f"({','.join(map(_show, x))})"
    text = x if isinstance(x, str) else str(x)
    return text if len(text) <= 200 else text[:200] + "..."


class ParseError(LayoutError):
    """The text is not in the notation of layouts."""


class InvalidShape(LayoutError):
    """An extent is not a positive integer."""


class InvalidType(LayoutError, TypeError):
    """An operand is no integer, tuple of integers, or layout."""


class ProfileMismatch(LayoutError):
    """Two tuples that must be nested alike are not."""


class RankMismatch(LayoutError):
    """Two tuples that must have the same number of modes have not."""


class TilerTooLong(LayoutError):
    """A tiler has more modes than what it tiles."""


class ProfileTooLong(LayoutError):
    """A profile has more modes than the layout it is for."""


class RankTooSmall(LayoutError):
    """The asked-for rank is smaller than the rank there is."""


class BadRange(LayoutError):
    """A range of modes that does not lie in the layout."""


class EmptyRange(BadRange):
    """A range of modes with no mode in it."""


class ModeOutOfRange(LayoutError, IndexError):
    """A mode that the layout does not have."""


class CoordOutOfRange(LayoutError):
    """A coordinate that does not lie in the shape."""


class OutOfDomain(LayoutError):
    """An index at which a layout would be read lies beyond its size."""


class StrideDivisibility(LayoutError):
    """A stride neither divides nor is divided by the extent it steps over."""


class ShapeDivisibility(LayoutError):
    """An extent is not a multiple of the part of a mode that it must fill."""


class Carry(LayoutError):
    """The modes of a right operand add up past the end of a mode of the left operand."""


class NonInjective(LayoutError):
    """Two coordinates have, or may have, the same index."""


class LeftInverseDivisibility(LayoutError):
    """A stride is not a multiple of the one before it, so no layout undoes it."""


class ShapeDivDivisibility(LayoutError):
    """`shape_div` of two integers neither of which divides the other."""


class UpcastDivisibility(LayoutError):
    """A stride neither divides nor is divided by the number of elements to be joined."""


class DowncastNoUnitStride(LayoutError):
    """No mode has stride 1, so the parts of an element have no place."""


class TileToShapeDivisibility(LayoutError):
    """The target shape is not a multiple of the block."""


class BadSwizzle(LayoutError):
    """Parameters that make no swizzle, or two swizzles that do not go together."""


class NoStride(LayoutError, AttributeError):
    """A composed layout was asked for strides: it is not linear and has none."""


class TiledCopyTooFewThreads(LayoutError):
    """The threads of a tiled copy are no multiple of the threads of its atom."""


class TiledCopyTooFewValues(LayoutError):
    """The values of a thread in a tiled copy are no multiple of the values of its atom."""


class AtomMismatch(LayoutError):
    """An atom used with a type or on an architecture that is not its own."""


class OperandOrder(LayoutError):
    """Operands of a copy in the order of Julia's `copyto!`: destination first."""


class NotWritten(LayoutError):
    """A read of memory that nothing has been written to."""


class Misaligned(LayoutError):
    """An address is not a multiple of the width of the access."""


class SmemOverflow(LayoutError):
    """More shared memory than a block can have."""


class NotCanonicalGmma(LayoutError):
    """A shared-memory layout that no wgmma descriptor describes."""
