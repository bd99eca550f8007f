"""What TiledCopy and TiledMma share: one thread's part of a layout, or of a tensor."""

from __future__ import annotations

from typing import Any

from jax_moye.layout import int_tuple as it
from jax_moye.layout.errors import CoordOutOfRange
from jax_moye.layout.layout import Layout, as_any
from jax_moye.layout.modes import make_layout, slice_and_offset
from jax_moye.layout.tensor import Tensor

CACHE = 1024  # layouts kept for each function


def layout_of(x: Any, op: str) -> Any:
    """The layout of a tensor; a layout, composed layout or its text as a layout."""
    return x.layout if isinstance(x, Tensor) else as_any(x, op)


def sliced_part(x: Any, op: str, transform: Any, coord: Any, side: str | None = None) -> Any:
    """`transform` applied to the (inner) layout of x, then sliced: a Tensor (of a side), or a layout and its offset."""
    layout = layout_of(x, op)
    plain = isinstance(layout, Layout)
    inner = transform(layout if plain else layout.layout)
    if callable(coord):
        coord = coord(inner)
    sliced, offset = slice_and_offset(coord, inner if plain else layout.with_layout(inner))
    return Tensor(x.data, sliced, x.offset + offset, side) if isinstance(x, Tensor) else (sliced, offset)


def as_arrangement(x: Any, op: str) -> Layout:
    """A layout of threads or values: a layout, its text, or a shape."""
    if isinstance(x, str) and ":" not in x:
        x = it.as_int_tuple(x, op)
    layout = x if isinstance(x, Layout) else Layout(x)
    return layout if isinstance(layout.shape, tuple) else make_layout(layout)


def check_thread(op: str, thread: Any, count: int, tiled: Any) -> int:
    """A thread's number; raises CoordOutOfRange where there is no such thread."""
    thread = it.as_int(thread, op, (str(tiled), thread))
    if not 0 <= thread < count:
        raise CoordOutOfRange(op, (str(tiled), thread), f"thread {thread} does not lie in [0,{count})")
    return thread
