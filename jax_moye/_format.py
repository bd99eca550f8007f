"""How tables, numbers and errors are written: in plain text, HTML and JSON.

A table is a list of lines of cells, the first of which names the columns.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Sequence
from typing import Any

Table = Sequence[Sequence[str]]
WIDTH = 100  # columns of a terminal


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


def fitted_table(lines: Table, numbers: bool = False, width: int = WIDTH) -> list[str]:
    """A table as text that fits a width: columns for which there is no room follow in a table below.

    Args:
      lines: of cells. The first column is repeated in each table, where a line has anything else there.
      numbers: as in `text_table`.
      width: of a line, in characters. A column that is wider by itself stays as it is.
    """
    of_column = [max(map(len, column)) for column in zip(*lines, strict=True)]
    blocks: list[list[int]] = []
    room = 0
    for i, wide in enumerate(of_column[1:], 1):
        if not blocks or room < wide + 2:
            blocks.append([0])
            room = width - of_column[0]
        blocks[-1].append(i)
        room -= wide + 2
    texts: list[str] = []
    for number, block in enumerate(blocks or [[0]]):
        texts += [""] * bool(texts)
        cells = [[line[i] for i in block] for line in lines]
        texts += text_table([line for line in cells if number == 0 or any(line[1:])], numbers=numbers)
    return texts


def filled(lines: Table) -> list[list[str]]:
    """A table without the columns in which no line has anything; the first one stays."""
    kept = [i for i, (_, *cells) in enumerate(zip(*lines, strict=True)) if i == 0 or any(cells)]
    return [[line[i] for i in kept] for line in lines]


def wrapped(text: str, indent: str = "  ", break_words: bool = False) -> list[str]:
    """A text in lines of at most WIDTH characters.

    Args:
      text: without line breaks.
      indent: of the lines behind the first one.
      break_words: whether a word that is longer than a line goes on in the next.
    """
    lines = textwrap.wrap(text, WIDTH, subsequent_indent=indent, break_long_words=break_words, break_on_hyphens=False)
    return lines or [""]


def printable(value: Any) -> Any:
    """JSON whose texts a terminal shows as they are: what would steer it, as escape sequences do, is spelled out."""
    if isinstance(value, str):
        return "".join(c if c.isprintable() else repr(c)[1:-1] for c in value)
    if isinstance(value, dict):
        return {printable(key): printable(one) for key, one in value.items()}
    return [printable(one) for one in value] if isinstance(value, list) else value


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
