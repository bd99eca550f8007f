r"""Pictures of layouts, instructions, copies, products and schedules: text, SVG, LaTeX (TikZ) and Typst.

>>> picture = draw("(2,3):(3,1)")
>>> print(picture)
(2,3):(3,1)
<BLANKLINE>
i\j | 0 1 2
----+------
  0 | 0 1 2
  1 | 3 4 5
<BLANKLINE>

A notebook shows a picture by itself; `picture.save("out.svg")` writes a file (.svg, .tex, .typ, .txt; with matplotlib
.png and .pdf). All have the same cells. Colours can be told apart with any colour vision, and say nothing that the
labels do not say.
"""

from __future__ import annotations

from typing import Any

from jax_moye.layout.atoms import CopyAtom, CopyOp, MmaAtom
from jax_moye.layout.draw import figures
from jax_moye.layout.draw.figures import draw_tv as draw_tv
from jax_moye.layout.draw.model import Picture as Picture
from jax_moye.layout.draw.model import PictureTooLarge as PictureTooLarge
from jax_moye.layout.draw.schedule import draw_schedule as draw_schedule
from jax_moye.layout.draw.schedule import operand_loads as operand_loads
from jax_moye.layout.draw.schedule import tile_coord as tile_coord
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.layout import Layout
from jax_moye.layout.notation import parse
from jax_moye.layout.swizzle import ComposedLayout, Swizzle
from jax_moye.layout.tensor import Tensor
from jax_moye.layout.tiled import TiledCopy, TiledMma


def draw(x: Any, *, bits: int | None = None) -> Picture:
    """The picture of anything the library has.

    Args:
      x: a Layout, ComposedLayout or Swizzle, or its text; an MmaAtom, TiledMma, CopyAtom or TiledCopy; a Tensor, for
        its layout; a Picture, which stays as it is.
      bits: for layouts, size of an element: colours the elements by bank of shared memory.

    Raises:
      PictureTooLarge: more than 4096 cells.
      RankTooSmall: a layout with more than two modes.
      InvalidType: there is no picture of such an object.
    """
    if isinstance(x, str):
        x = parse(x)
    elif isinstance(x, Tensor):
        x = x.layout
    if isinstance(x, Layout | ComposedLayout):
        return figures.draw_layout(x, bits)
    if isinstance(x, Swizzle):
        return figures.draw_swizzle(x, bits)
    if bits is not None:
        raise InvalidType("draw", (x, bits), "`bits` is for layouts")
    if isinstance(x, Picture):
        return x
    if isinstance(x, MmaAtom):
        return figures.draw_mma_atom(x)
    if isinstance(x, CopyAtom):
        return figures.draw_copy_atom(x)
    if isinstance(x, TiledMma):
        return figures.draw_tiled_mma(x)
    if isinstance(x, TiledCopy):
        return figures.draw_tiled_copy(x)
    if isinstance(x, CopyOp):
        raise InvalidType("draw", (x.name,), "a copy instruction moves bits", f"CopyAtom({x.name!r}, dtype)")
    kind = type(x).__name__
    raise InvalidType(
        "draw", (kind,), f"{kind} is not drawn", "a layout or its text, an atom, a TiledCopy or a TiledMma"
    )


def to_text(x: Any, **options: Any) -> str:
    """`draw(x)` as text."""
    return draw(x, **options).text


def to_svg(x: Any, **options: Any) -> str:
    """`draw(x)` as an SVG document."""
    return draw(x, **options).svg


def to_latex(x: Any, **options: Any) -> str:
    """`draw(x)` as a LaTeX document."""
    return draw(x, **options).latex


def to_typst(x: Any, **options: Any) -> str:
    """`draw(x)` as a Typst document."""
    return draw(x, **options).typst


def print_typst(x: Any, **options: Any) -> None:
    """Prints `draw(x)` as a Typst document, to be pasted at typst.app."""
    print(to_typst(x, **options), end="")


def print_latex(x: Any, **options: Any) -> None:
    """Prints `draw(x)` as a LaTeX document."""
    print(to_latex(x, **options), end="")


def print_layout(x: Any, **options: Any) -> None:
    """Prints `draw(x)` as text."""
    print(to_text(x, **options), end="")
