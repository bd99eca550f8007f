"""What a picture is made of: panels of cells, a legend, notes. The writers know nothing else."""

from __future__ import annotations

import dataclasses
import html
import pathlib
from typing import Any

from jax_moye.layout.errors import LayoutError

MAX_CELLS = 4096

# Fills for black labels (contrast 7 and more), told apart with any colour vision: the two nearest are 20 CIELAB units
# apart when seen by protanopes, deuteranopes and tritanopes. tests/python/layout/test_draw_formats.py computes both.
PALETTE = ("#87D0F5", "#F5F084", "#D774B0", "#D4FFC2", "#AA89E8", "#AFC57C", "#F0BBC2", "#6EA377")
NEUTRAL = len(PALETTE)  # the colour of elements that no thread holds in registers
FILLS = (*PALETTE, "#EEEEEE")


class PictureTooLarge(LayoutError):  # noqa: N818  named after the rule, as in errors.py
    """More cells than anybody can read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cell:
    """One element: what is written in it, its colour, and facts about it for programs.

    Attributes:
      lines: lines of the label.
      colour: index in PALETTE, or NEUTRAL.
      data: (name, value) pairs; the SVG has them as attributes `data-<name>`.
    """

    lines: tuple[str, ...]
    colour: int
    data: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Panel:
    """A table of cells.

    Attributes:
      name: short name; the SVG has it as attribute `data-panel`.
      title: what stands over the table.
      axes: names of the coordinates that count the rows and the columns.
      cells: rows of cells; None where there is no element.
      place: row and column of the table in the picture.
      joint: what joins the lines of a label where only one line is to be had.
      wraps: whether a table that is too wide goes on below: its rows are read from left to right, as a text is.
      first: number of the first column, of a part of a table.
    """

    name: str
    title: str
    axes: tuple[str, str]
    cells: tuple[tuple[Cell | None, ...], ...]
    place: tuple[int, int] = (0, 0)
    joint: str = " "
    wraps: bool = False
    first: int = 0

    def parts(self, most: int) -> tuple[Panel, ...]:
        """The table in parts of at most `most` columns, one below the other; itself where it fits, or does not wrap.

        A part has a multiple of eight columns, where that many are to be had: what is swizzled moves in such.
        """
        if not self.wraps or self.columns <= most:
            return (self,)
        unit = 8 if most >= 8 else 1
        most -= most % unit
        wide = -(-self.columns // -(-self.columns // most))  # as wide as each other
        wide += -wide % unit
        return tuple(
            dataclasses.replace(self, cells=tuple(row[at : at + wide] for row in self.cells), first=at, title="")
            for at in range(0, self.columns, wide)
        )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return len(self.cells)

    @property
    def columns(self) -> int:
        """Number of columns."""
        return len(self.cells[0])

    @property
    def corner(self) -> str:
        """The names of both axes."""
        return "\\".join(self.axes)


@dataclasses.dataclass(frozen=True, slots=True)
class Picture:
    """A picture of a layout, copy, product or schedule; notebooks show it, and an interpreter shows its text.

    `str(picture)` is its text; `save` writes a file in the format of its name.

    Attributes:
      title: first line.
      panels: the tables.
      key: what the colours mean.
      legend: (index in PALETTE, text) pairs.
      notes: sentences below.
    """

    title: str
    panels: tuple[Panel, ...]
    key: str
    legend: tuple[tuple[int, str], ...]
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """As text."""
        from jax_moye.layout.draw import text

        return text.write(self)

    @property
    def svg(self) -> str:
        """As an SVG document."""
        from jax_moye.layout.draw import svg

        return svg.write(self)

    @property
    def latex(self) -> str:
        """As a LaTeX document with one TikZ picture."""
        from jax_moye.layout.draw import latex

        return latex.write(self)

    @property
    def typst(self) -> str:
        """As a Typst document."""
        from jax_moye.layout.draw import typst

        return typst.write(self)

    def render(self, suffix: str) -> str:
        """In the format of a file name's suffix: .svg, .tex, .typ or .txt.

        Raises:
          ValueError: another suffix.
        """
        if suffix not in FORMATS:
            raise ValueError(f"draw: no format {suffix!r}; there are {', '.join(SUFFIXES)}")
        return getattr(self, FORMATS[suffix])

    def save(self, path: str | pathlib.Path) -> None:
        """Writes a file, in the format of its suffix: those of `render`, and .png and .pdf, which matplotlib draws.

        Raises:
          ValueError: another suffix.
          ImportError: of .png and .pdf, there is no matplotlib.
        """
        path = pathlib.Path(path)
        if path.suffix in IMAGES:
            from jax_moye.layout.draw import raster

            raster.write(self, path)
            return
        path.write_text(self.render(path.suffix), encoding="utf-8")

    def __str__(self) -> str:
        """As text."""
        return self.text

    def __repr__(self) -> str:
        """As text: what an interpreter shows."""
        return self.text.rstrip()

    def _repr_svg_(self) -> str:
        return self.svg

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        bundle = {"text/plain": self.text, "image/svg+xml": self.svg}
        if include:
            bundle = {k: v for k, v in bundle.items() if k in include}
        return {k: v for k, v in bundle.items() if not exclude or k not in exclude}


FORMATS = {".svg": "svg", ".tex": "latex", ".typ": "typst", ".txt": "text"}
IMAGES = (".png", ".pdf")
SUFFIXES = (*FORMATS, *IMAGES)


def check_cells(cells: int, of: Any, hint: str | None = None) -> None:
    """Raises PictureTooLarge for more than MAX_CELLS cells."""
    if cells > MAX_CELLS:
        raise PictureTooLarge("draw", (of,), f"{cells} cells; a picture has at most {MAX_CELLS}", hint)


def escape_xml(text: str) -> str:
    """For XML text and attributes."""
    return html.escape(text)
