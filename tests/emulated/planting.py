"""Many planted bugs in one program, each of which is there only when it is asked for.

Compiling a row takes seconds and running it a tenth of one, so the bugs of a row share one compilation. The statements
around a bug's text become

    if (is_planted(3)) { statements with the bug } else { statements }

What a statement declares would end with that block: a bug in a declaration is compiled for itself, as are those outside
of functions.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Sequence

COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\'', re.DOTALL)
CLOSING = {"(": ")", "[": "]", "{": "}"}
BEFORE_A_BLOCK = re.compile(r"(?:\)|\]|\b(?:else|do|const|noexcept|mutable)|\)\s*->[\w\s:<>&*,]+)\s*$")
ELSE = re.compile(r"\s*else\b")
BEHIND_A_BLOCK = re.compile(r"\s*(?:else\b|while \(|[;,().])")
TYPE = r"(?:typename\s+)?[A-Za-z_][\w:]*(?:<[^;={}]*?>(?:::\w+)*)?"
NAME = r"(?:\s+const\b)?(?:\s*[&*]+(?:\s*const\b)?)*\s*(?<=[\s&*>])\b[A-Za-z_]\w*\s*[=;{(,\[]"
DECLARATION = re.compile(
    r"(?:alignas|constexpr|const|static|using|typedef|extern|struct|union|auto|unsigned|case|default)\b"
    rf"|(?!(?:return|if|for|while|switch|do|else|delete)\b){TYPE}{NAME}"
)
# Declarations with which a value's type may change, or that the compiler evaluates.
IS_OF_ITS_TYPE = re.compile(r"Tensor\b|(?:static\s+)?constexpr\b|static\b|using\b")


@dataclasses.dataclass(frozen=True)
class Bug:
    number: int  # of is_planted
    old: str
    new: str


class Source:
    """A C++ file, its brackets and its blocks of statements."""

    def __init__(self, text: str):
        self.text = text
        # Comments and strings are blanks here: positions stay.
        self.code = COMMENT_OR_TEXT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        self.end_of: dict[int, int] = {}  # of each opening bracket, where it closes
        self.blocks: set[int] = set()  # where blocks of statements open
        opened: list[int] = []
        for found in re.finditer(r"[(\[{}\])]", self.code):
            at, bracket = found.start(), found[0]
            if bracket in CLOSING:
                if bracket == "{" and self._opens_a_block(at, opened):
                    self.blocks.add(at)
                opened.append(at)
            else:
                assert opened, f"a {bracket} closes nothing"
                assert CLOSING[self.code[opened[-1]]] == bracket, f"a {bracket} closes another bracket"
                self.end_of[opened.pop()] = at
        assert not opened, "a bracket is never closed"

    def _opens_a_block(self, at: int, opened: Sequence[int]) -> bool:
        before = self.code[max(0, at - 200) : at].rstrip()
        if before[-1:] in (";", "{", "}", ":"):
            return bool(opened) and opened[-1] in self.blocks
        return bool(BEFORE_A_BLOCK.search(before))

    def statements(self, block: int) -> list[tuple[int, int]]:
        """Where each statement of a block begins and ends."""
        code, at, last = self.code, block + 1, self.end_of[block]
        found, start = [], -1
        while at < last:
            char = code[at]
            if start < 0:
                if char.isspace():
                    at += 1
                    continue
                start = at
            is_block = at in self.blocks
            if char in CLOSING:
                at = self.end_of[at]
            at += 1
            goes_on = ELSE if char == ";" else BEHIND_A_BLOCK
            if (char == ";" or is_block) and not goes_on.match(code, at):
                found.append((start, at))
                start = -1
        assert start < 0, f"a statement does not end:\n{self.text[start:last]}"
        return found

    def around(self, start: int, end: int) -> tuple[int, int] | None:
        """The smallest sequence of statements that holds a text's place; None: it is in no block."""
        while start < end and self.text[start].isspace():
            start += 1
        while end > start and self.text[end - 1].isspace():
            end -= 1
        holding = [block for block in self.blocks if block < start and end <= self.end_of[block]]
        if not holding:
            return None
        inside = [place for place in self.statements(max(holding)) if place[1] > start and place[0] < end]
        if not inside:  # a comment
            return None
        return min(inside[0][0], start), max(inside[-1][1], end)

    def expression(self, start: int, end: int) -> tuple[int, int] | None:
        """The operand, argument or initializer that holds a text's place; None: it is more than one."""
        opened = max(at for at, last in self.end_of.items() if at < start and end <= last)
        low, at = opened + 1, opened + 1
        while at < self.end_of[opened]:
            if self.code[at] in CLOSING:
                at = self.end_of[at]
            elif self._ends_an_operand(at):
                if at >= end:
                    break
                if at >= start:
                    return None
                low = at + 1
            at += 1
        while self.code[low].isspace():
            low += 1
        return min(low, start), at

    def _ends_an_operand(self, at: int) -> bool:
        before, char, behind = self.code[at - 1 : at + 2]
        return char in ",;" or (char == "=" and behind != "=" and before not in "=!<>+-*/%&|^")


@functools.cache
def source(text: str) -> Source:
    return Source(text)


def is_declaration(statement: str) -> bool:
    """Whether a name of a statement lives on behind it."""
    return bool(DECLARATION.match(re.sub(r"^(?:\s|\[\[.*?\]\]|#[^\n]*\n|MOYE_UNROLL\w*)+", "", statement)))


def declares(text: str) -> bool:
    """Whether one of some statements is a declaration."""
    try:
        block = Source("void f() {" + text + "\n}")
        return any(is_declaration(block.code[start:end]) for start, end in block.statements(min(block.blocks)))
    except AssertionError:  # no statements
        return True


def is_expression(text: str) -> bool:
    """Whether a text has brackets in pairs, and nothing outside of them that ends an operand."""
    try:
        whole = Source(f"({text})")
    except AssertionError:
        return False
    return bool(text.strip()) and ";" not in whole.code and whole.expression(1, len(text) + 1) == (1, len(text) + 1)


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a bug is switched: text[start:end] is an expression or some statements."""

    start: int
    end: int
    is_expression: bool

    def is_inside(self, other: Place) -> bool:
        return self != other and other.start <= self.start and self.end <= other.end


def common(one: str, other: str) -> int:
    """Letters with which both texts begin."""
    return next((i for i, (x, y) in enumerate(zip(one, other, strict=False)) if x != y), min(len(one), len(other)))


def changed(bug: Bug) -> tuple[int, int]:
    """What differs of the bug's old text; all of it where the bug only adds to it."""
    before = common(bug.old, bug.new)
    behind = common(bug.old[before:][::-1], bug.new[before:][::-1])
    start, end = before, len(bug.old) - behind
    if not bug.old[start:end].strip():
        return 0, len(bug.old)
    return start, end


def replaced(text: str, place: Place, bug: Bug) -> str:
    """What stands in a place with the bug; blanks at its ends may be others."""
    start, end = place.start, place.end
    first, last = changed(bug)
    for found in reversed(list(re.finditer(re.escape(bug.old), text))):
        low, high = found.start() + first, found.start() + last
        if start < high and low < end:
            new = bug.new[first : len(bug.new) - (len(bug.old) - last)]
            text, start, end = text[:low] + new + text[high:], min(start, low), max(end, high) + len(new) - (high - low)
    return text[start:end]


def place_of(text: str, bug: Bug, at: int) -> Place | None:
    first, last = changed(bug)
    start, end = at + first, at + last
    statements = source(text).around(start, end)
    if statements is None:
        return None
    place = Place(*statements, is_expression=False)
    if not declares(text[place.start : place.end]) and not declares(replaced(text, place, bug)):
        return place
    if IS_OF_ITS_TYPE.match(text[place.start : place.end]):
        return None
    operand = source(text).expression(start, end)
    place = operand and Place(*operand, is_expression=True)
    return place if place and is_expression(replaced(text, place, bug)) else None


def places(text: str, bug: Bug) -> list[Place] | None:
    """Of each of a bug's places what is switched; None: it cannot be."""
    found = [place_of(text, bug, found.start()) for found in re.finditer(re.escape(bug.old), text)]
    return None if None in found else found


def can_be_switched(text: str, bug: Bug) -> bool:
    return places(text, bug) is not None


def switched(text: str, bugs: Iterable[Bug]) -> str:
    """A file with all these bugs, of which can_be_switched() says that they can."""
    return _switched(text, 0, len(text), [(place, bug) for bug in bugs for place in places(text, bug)])


def _switched(text: str, start: int, end: int, bugs: list[tuple[Place, Bug]]) -> str:
    result, at = [], start
    left = sorted(bugs, key=lambda item: (item[0].start, -item[0].end, item[1].number))
    while left:
        low, high = left[0][0].start, left[0][0].end
        # Statements that overlap go together; what is inside of others is switched inside of them.
        for place, _ in left:
            if place.start < high:
                high = max(high, place.end)
        group = [item for item in left if item[0].start < high]
        left = [item for item in left if item[0].start >= high]
        inner = [item for item in group if any(item[0].is_inside(other) for other, _ in group)]
        outer = dict.fromkeys(bug for place, bug in group if (place, bug) not in inner)
        assert not {bug for _, bug in inner} & set(outer)
        whole = dataclasses.replace(group[0][0], end=high)
        result.append(text[at:low])
        rest = _switched(text, low, high, inner)
        for bug in reversed(outer):
            with_bug = replaced(text, whole, bug)
            if whole.is_expression:
                rest = f"(MOYE_IS_PLANTED({bug.number}) ? ({with_bug}) : ({rest}))"
            else:
                rest = f"if (MOYE_IS_PLANTED({bug.number})) {{\n{with_bug}\n}} else {{\n{rest}\n}}"
        result.append(rest)
        at = high
    result.append(text[at:end])
    return "".join(result)
