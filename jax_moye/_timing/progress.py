"""What a long command says on stderr while it works."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

_Item = TypeVar("_Item")


def progress(items: Iterable[_Item], total: int, name: Callable[[_Item], str]) -> Iterator[_Item]:
    """Yields the items, and says which is under way and how long the rest will take.

    A bar where rich is installed and sees a terminal; else a line behind each item.

    Args:
      items: what is to be done.
      total: their number.
      name: of an item.
    """
    if sys.stderr.isatty() and importlib.util.find_spec("rich"):
        rich = importlib.import_module("rich.progress")
        console = importlib.import_module("rich.console").Console(stderr=True)
        # A file or a pipe gets what is printed meanwhile as it is; on a terminal it goes above the bar.
        is_seen = sys.stdout.isatty()
        with rich.Progress(console=console, transient=True, redirect_stdout=is_seen) as bar:
            task = bar.add_task("", total=total)
            for item in items:
                bar.update(task, description=name(item))
                yield item
                bar.advance(task)
        return
    start = time.monotonic()
    for i, item in enumerate(items):
        yield item
        elapsed = time.monotonic() - start
        left = elapsed / (i + 1) * (total - i - 1)
        words = f", about {left:.0f} s left" if left >= 1 else ""
        print(f"[{i + 1}/{total}] {name(item)}, {elapsed:.1f} s{words}", file=sys.stderr, flush=True)
