"""What the playground answers: a picture of what the reader typed, and what its accesses cost.

It runs in the browser, on the same `jax_moye.layout` as everywhere else, and in Python, where a test compares both.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

from jax_moye.layout import (
    CopyAtom,
    checks,
    copy_op_names,
    dtypes,
    errors,
    make_tiled_copy,
    make_tiled_mma,
    mma_atom,
    mma_atom_names,
    parse,
)
from jax_moye.layout.draw import Picture, draw, draw_schedule, svg
from jax_moye.layout.draw.scene import MARGIN, WIDTH
from jax_moye.layout.schedule import schedule_traffic
from jax_moye.layout.swizzle import ComposedLayout, Swizzle
from jax_moye.layout.transactions import WARP

Fields = dict[str, str]
# An access, the memory, instructions, what they move, what they would move at least, and a verdict.
Cost = tuple[str, str, str, str, str, str]
LARGEST = 1 << 16  # elements whose accesses are counted while a reader waits


@dataclasses.dataclass
class Answer:
    """What is shown.

    Attributes:
      picture: what was typed, drawn.
      facts: sentences.
      costs: rows of the table of accesses.
    """

    picture: Picture
    facts: list[str] = dataclasses.field(default_factory=list)
    costs: list[Cost] = dataclasses.field(default_factory=list)

    def shared(self, what: str, count: Callable[[], checks.BankReport]) -> None:
        """Adds an access to shared memory; one that cannot be counted is a sentence."""
        try:
            report = count()
        except errors.LayoutError as error:
            self.facts.append(f"Not counted: {error}")
            return
        verdict = "no bank conflict"
        if report.worst:
            worst, (one, other) = report.worst, report.worst.lanes
            verdict = f"{worst.wavefronts} words of bank {worst.bank} in one phase, lanes {one} and {other} first"
        moved, least = _many(report.wavefronts, "wavefront"), str(report.ideal)
        self.costs.append((what, "shared", str(report.requests), moved, least, verdict))

    def global_(self, what: str, count: Callable[[], checks.SectorReport]) -> None:
        """Adds an access to global memory, in the same way."""
        try:
            report = count()
        except errors.LayoutError as error:
            self.facts.append(f"Not counted: {error}")
            return
        moved = f"{_many(report.sectors, 'sector')} of {_many(report.lines, 'line')}"
        verdict = f"{report.efficiency:.0%} of what is moved is used"
        self.costs.append((what, "global", str(report.requests), moved, str(report.ideal), verdict))


def _many(n: int, noun: str) -> str:
    return f"{n} {noun}" + ("" if n == 1 else "s")


def answer(kind: str, fields: Fields, width: float = WIDTH) -> dict[str, Any]:
    """The answer to what a form of the page holds.

    Args:
      kind: "layout", "swizzle", "copy", "mma" or "schedule".
      fields: the form's texts by name.
      width: pixels that the picture should fit.

    Returns:
      `svg`, `facts` and `costs`, as `Answer` has them; or `error`, a sentence.
    """
    try:
        found = KINDS[kind]({name: text.strip() for name, text in fields.items()})
        return {"svg": svg.write(found.picture, width - 2 * MARGIN), "facts": found.facts, "costs": found.costs}
    except (errors.LayoutError, ValueError) as error:
        return {"error": str(error)}


def names() -> dict[str, list[str]]:
    """What the fields suggest: element types, instructions that copy, instructions that multiply."""
    return {"dtypes": dtypes.names(), "copies": list(copy_op_names()), "mmas": list(mma_atom_names())}


# ---- Layouts and swizzles ------------------------------------------------------------------------------------------


def _layout(fields: Fields) -> Answer:
    layout = _memory(fields["layout"])
    kind = dtypes.dtype(fields["dtype"], "playground")
    found = Answer(draw(layout, bits=kind.bits if fields["colours"] == "bank" else None))
    found.facts.append(f"{layout.size} elements of {kind.bits} bits, cosize {layout.cosize}.")
    _costs(found, "", layout, kind)
    if tv := fields["access"]:
        found.shared(tv, lambda: checks.bank_conflicts(layout, tv, kind.name))
        found.global_(tv, lambda: checks.sectors(layout, tv, kind.name))
    return found


def _swizzle(fields: Fields) -> Answer:
    swizzle, layout = Swizzle(fields["swizzle"]), _memory(fields["layout"])
    if isinstance(layout, ComposedLayout):
        raise errors.InvalidType("playground", (str(layout),), "it is swizzled already: give the layout alone")
    kind = dtypes.dtype(fields["dtype"], "playground")
    swizzled = ComposedLayout(swizzle, 0, layout)
    found = Answer(draw(swizzled, bits=kind.bits))
    _costs(found, "without: ", layout, kind, far=False)
    _costs(found, f"{swizzle}: ", swizzled, kind, far=False)
    if accesses := [tv for _what, tv, width in _accesses(layout, kind) if width == 16]:
        best, report = checks.best_swizzle(layout, accesses, kind.name)
        moved = _many(report.wavefronts, "wavefront")
        found.facts.append(
            f"Of all swizzles of 16-byte pieces, {best} takes the fewest wavefronts for the accesses of 16 bytes: "
            f"{moved}, at least {report.ideal}."
        )
    return found


def _memory(text: str) -> Any:
    layout = parse(text)
    if isinstance(layout, Swizzle):
        raise errors.InvalidType("playground", (str(layout),), "it is a swizzle alone, and has a form of its own")
    if layout.size > LARGEST:
        raise errors.InvalidShape("playground", (str(layout),), f"{layout.size} elements are too many for this page")
    return layout


def _costs(found: Answer, prefix: str, layout: Any, kind: dtypes.DType, far: bool = True) -> None:
    """Adds how a warp reads the layout in shared memory, and in global memory if that is wanted."""
    if kind.bits % 8:
        found.facts.append(f"Elements of {kind.bits} bits have no address of their own: no access is counted.")
    for what, tv, width in _accesses(layout, kind):
        count = functools.partial(_count, layout, tv, kind.name, width=width)
        found.shared(prefix + what, functools.partial(count, check=checks.bank_conflicts))
        if far:
            found.global_(prefix + what, functools.partial(count, check=checks.sectors))


def _count(layout: Any, tv: str, kind: str, check: Callable[..., Any], width: int) -> Any:
    return check(layout, tv, kind, width=width)


def _accesses(layout: Any, kind: dtypes.DType) -> Iterator[tuple[str, str, int]]:
    """(sentence, thread-value layout, bytes of a lane) of the accesses that a warp commonly makes, where it can."""
    if kind.bits % 8:
        return
    rows, element = layout[0].size, kind.bits // 8
    columns = layout.size // rows
    down, along = min(WARP, rows), min(WARP, columns)
    if rows > 1 and element <= 16:
        yield f"{down} lanes down a column", f"({down},1):(1,0)", element
    if columns > 1 and element <= 16:
        yield f"{along} lanes along a row", f"({along},1):({rows},0)", element
    n = 16 // element
    if n > 1 and columns % n == 0:
        tv = f"({down},{n}):(1,{rows})"
        if not checks.alignment(layout, tv, kind.name).ok:
            return
        yield f"{down} lanes down the rows, 16 bytes each", tv, 16
        pieces = columns // n
        if pieces < WARP and WARP % pieces == 0 and rows >= WARP // pieces:
            tv = f"(({pieces},{WARP // pieces}),{n}):(({rows * n},1),{rows})"
            if checks.alignment(layout, tv, kind.name).ok:
                yield f"{WARP} lanes row by row, 16 bytes each", tv, 16


# ---- Copies and products -------------------------------------------------------------------------------------------


def _copy(fields: Fields) -> Answer:
    atom = CopyAtom(fields["instruction"], dtypes.dtype(fields["dtype"], "playground").name)
    if not (fields["thr"] or fields["val"]):
        return Answer(draw(atom), [f"{atom.op.name} is {atom.op.ptx}."])
    copy = make_tiled_copy(atom, fields["thr"] or "(1,1)", fields["val"] or "(1,1)")
    found = Answer(draw(copy), [f"{copy}.", f"{checks.coverage(copy)}."])
    # An instruction that any memory will do for loads from global and stores to shared memory.
    source, destination = atom.op.src_space or "gmem", atom.op.dst_space or "smem"
    for text, space in ((fields["gmem"], "gmem"), (fields["smem"], "smem")):
        if not text:
            continue
        if space not in (source, destination):
            found.facts.append(f"{atom.op.name} moves from {source} to {destination}: {text} is not counted.")
            continue
        memory, side = _memory(text), "S" if space == source else "D"
        if space == "gmem":
            found.global_(text, functools.partial(checks.sectors, memory, copy, side=side))
        else:
            found.shared(text, functools.partial(checks.bank_conflicts, memory, copy, side=side))
    return found


def _mma(fields: Fields) -> Answer:
    atom = mma_atom(fields["name"])
    tiled = make_tiled_mma(fields["name"], fields["atoms"] or "(1,1,1)", fields["tile"] or None)
    m, n, k = tiled.tile_shape
    found = Answer(draw(tiled if fields["atoms"] or fields["tile"] else atom))
    found.facts.append(f"{tiled.threads} threads, a tile of {m}x{n}x{k}.")
    operands = (("A", (m, k), tiled.layout_A_TV, atom.dtype_A), ("B", (n, k), tiled.layout_B_TV, atom.dtype_B))
    for name, (rows, columns), tv, kind in operands:
        if not (text := fields[f"smem_{name.lower()}"]):
            continue
        memory = _memory(text)
        if name in atom.smem_operands:
            found.facts.append(f"The instruction itself reads {name} from shared memory: no lane loads it.")
        elif memory.size != rows * columns:
            found.facts.append(f"{name} is {rows}x{columns}, and {text} has {memory.size} elements: not counted.")
        else:
            width = dtypes.dtype(kind).bits // 8
            count = functools.partial(checks.bank_conflicts, memory, tv, kind, width=width)
            found.shared(f"{name}, element by element, from {text}", count)
    return found


# ---- Schedules -----------------------------------------------------------------------------------------------------


def _schedule(fields: Fields) -> Answer:
    m, n, super_m, resident = (_number(fields, name) for name in ("m", "n", "super_m", "resident"))
    found = Answer(draw_schedule(m, n, super_m, resident))
    for rows in sorted({1, 2, 4, 8, 16, super_m}):
        if rows in (1, super_m) or rows <= m:
            traffic = schedule_traffic(m, n, rows, resident)
            found.facts.append(
                f"super_M = {rows}: {traffic.memory} tiles of A and B from memory, {traffic.l2} from the L2 cache."
            )
    return found


def _number(fields: Fields, name: str) -> int:
    text = fields[name]
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise errors.InvalidType("playground", (name, text), "is no number")
    return int(text)


KINDS: dict[str, Callable[[Fields], Answer]] = {
    "layout": _layout,
    "swizzle": _swizzle,
    "copy": _copy,
    "mma": _mma,
    "schedule": _schedule,
}
