"""How tables, numbers and errors are written: in plain text, HTML and JSON.

A table is a list of lines of cells, the first of which names the columns.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

Table = Sequence[Sequence[str]]


def text_table(lines: Table, indent: str = "", numbers: bool = False) -> list[str]:
    """The lines of a table as text, columns aligned to the left.

    Args:
      lines: of cells, each as many.
      indent: in front of each line.
      numbers: whether the columns behind the first one hold numbers, which are aligned to the right.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]

    def pad(i: int, cell: str) -> str:
        return cell.rjust(widths[i]) if numbers and i else cell.ljust(widths[i])

    return [(indent + "  ".join(pad(i, cell) for i, cell in enumerate(line))).rstrip() for line in lines]


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


def significant(x: float, digits: int = 4) -> float:
    """`x` rounded to some significant digits."""
    return float(f"{x:.{digits}g}")


def first_line(error: BaseException) -> str:
    """What an exception says, shortened."""
    return (str(error).splitlines() or [""])[0][:300]


def error_line(error: BaseException) -> str:
    """An exception's type and what it says, shortened."""
    return f"{type(error).__name__}: {first_line(error)}"
