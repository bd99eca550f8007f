"""How tables and numbers are written: in plain text, HTML and JSON.

A table is a list of lines of cells, the first of which names the columns.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

Table = Sequence[Sequence[str]]


def text_table(lines: Table, indent: str = "") -> list[str]:
    """The lines of a table as text, columns aligned to the left.

    Args:
      lines: of cells, each as many.
      indent: in front of each line.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    return [(indent + "  ".join(line)).rstrip() for line in padded]


def html_table(lines: Table) -> str:
    """A table in HTML; cells are escaped."""
    head, *body = lines
    rows = "".join(f"<tr>{_cells('td', line)}</tr>" for line in body)
    return f"<table><thead><tr>{_cells('th', head)}</tr></thead><tbody>{rows}</tbody></table>"


def _cells(tag: str, line: Sequence[str]) -> str:
    return "".join(f"<{tag}>{html.escape(cell)}</{tag}>" for cell in line)


def us_text(us: float | None) -> str:
    """Microseconds to three digits or more; "-" where there are none."""
    if us is None:
        return "-"
    return f"{us:.0f}" if us >= 1000 else f"{us:.1f}" if us >= 10 else f"{us:.2f}"


def rounded(value: Any) -> Any:
    """JSON that does not change with the last bit: floats with six digits, those of a tuple as a list."""
    if isinstance(value, tuple):
        return [rounded(x) for x in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value
