"""Which thread's which value an element is, from a thread-value layout; and colours that tell neighbours apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from jax_moye.layout.draw.model import PALETTE, Cell

Owners = list[tuple[int, int]]  # (thread, value) pairs that hold one element


def owners_of(tv: Any, size: int, lane: Callable[[int], int] = int) -> list[Owners]:
    """The owners of each of `size` elements.

    Args:
      tv: layout (thread, value) -> position of the element.
      size: number of elements.
      lane: thread of the layout -> number shown.
    """
    threads = tv[0].size
    found: list[Owners] = [[] for _ in range(size)]
    for i, position in enumerate(tv.values().tolist()):
        if 0 <= position < size:
            found[position].append((lane(i % threads), i // threads))
    return [sorted(set(owners)) for owners in found]


def several(prefix: str, numbers: Iterable[int]) -> str:
    """`T5`; `T5,37` for two; `T5+3` for one and three more."""
    distinct = sorted(set(numbers))
    if len(distinct) == 2:
        return f"{prefix}{distinct[0]},{distinct[1]}"
    return f"{prefix}{distinct[0]}" + (f"+{len(distinct) - 1}" if len(distinct) > 2 else "")


def _rule(step: int, width: int) -> tuple[str, Callable[[int], int]]:
    """Colours that move on by `step` from one group of `width` threads to the next."""
    n = len(PALETTE)
    if not step:
        return f"T mod {n}", lambda t: t % n
    return f"(T + {f'{step}*' if step > 1 else ''}floor(T/{width})) mod {n}", lambda t: (t + step * (t // width)) % n


# In the order of preference: the simplest first.
_RULES = [_rule(0, 1), *(_rule(1, d) for d in (8, 4, 16, 32, 64, 128, 2)), *(_rule(3, d) for d in (8, 4, 16, 32, 64))]


def thread_colours(tables: Iterable[list[list[Owners]]]) -> tuple[str, Callable[[int], int]]:
    """The rule thread -> colour, and its name, under which the fewest neighbours of different threads look alike."""
    pairs: set[tuple[int, int]] = set()
    for table in tables:
        for i, row in enumerate(table):
            for j, here in enumerate(row):
                for there in (row[j + 1 : j + 2], table[i + 1][j : j + 1] if i + 1 < len(table) else []):
                    if here and there and there[0] and here[0][0] != there[0][0][0]:
                        pairs.add((here[0][0], there[0][0][0]))
    return min(_RULES, key=lambda rule: sum(rule[1](a) == rule[1](b) for a, b in pairs))


def owner_cell(owners: Owners, colour: Callable[[int], int]) -> Cell | None:
    """The cell of an element: its threads over its values. None if nobody has it."""
    if not owners:
        return None
    threads, values = [t for t, _v in owners], [v for _t, v in owners]
    data = (("thread", " ".join(map(str, threads))), ("value", " ".join(map(str, values))))
    return Cell((several("T", threads), several("V", values)), colour(threads[0]), data)


def threads_legend(tables: Iterable[list[list[Owners]]], colour: Callable[[int], int]) -> tuple[tuple[int, str], ...]:
    """For each colour the threads that have it."""
    threads = sorted({t for table in tables for row in table for owners in row for t, _v in owners})
    by_colour: dict[int, list[int]] = {}
    for t in threads:
        by_colour.setdefault(colour(t), []).append(t)
    return tuple((c, "T" + _some(by_colour[c])) for c in sorted(by_colour, key=lambda c: by_colour[c][0]))


def _some(numbers: list[int]) -> str:
    if len(numbers) <= 4:
        return ",".join(map(str, numbers))
    return f"{numbers[0]},{numbers[1]},..,{numbers[-1]}"
