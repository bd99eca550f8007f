"""Where everything stands: a picture as boxes and lines of text at points of a page. Three writers draw it.

Lengths are in points, y grows downwards, texts stand on their baseline.
"""

from __future__ import annotations

import dataclasses
import textwrap

from jax_moye.layout.draw.model import Panel, Picture

SIZE = 10.0  # of the labels
LINE = 12.0  # from baseline to baseline
ADVANCE = 0.602  # width of a character of a monospaced font of size 1
MARGIN = 12.0
GAP = 24.0  # between panels
HEAD = 14.0  # size of the title
WIDTH = 712.0  # of a page of the site: wider tables of layouts go on below
INK = "#000000"
GREY = "#444444"


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """A line of text at a point of its baseline; `anchor` says which: start, middle or end."""

    x: float
    y: float
    text: str
    size: float = SIZE
    anchor: str = "start"
    colour: str = INK
    bold: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A framed rectangle with texts in it; colour None: empty and hatched by a dashed frame."""

    x: float
    y: float
    width: float
    height: float
    colour: int | None
    texts: tuple[Text, ...] = ()
    data: tuple[tuple[str, str], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Scene:
    """A page."""

    width: float
    height: float
    boxes: tuple[Box, ...]
    texts: tuple[Text, ...]


def width_of(text: str, size: float = SIZE) -> float:
    """Width of a line of monospaced text."""
    return len(text) * size * ADVANCE


def arrange(picture: Picture, width: float = WIDTH) -> Scene:
    """The page of a picture, about as wide as given where its tables can go on below."""
    cells = [c for p in picture.panels for row in p.cells for c in row if c]
    longest = max((len(line) for c in cells for line in c.lines), default=1)
    lines = max((len(c.lines) for c in cells), default=1)
    cell_w = max(longest * SIZE * ADVANCE + 7, 26.0)
    cell_h = max(lines * LINE + 6, 22.0)

    if len(picture.panels) == 1:
        (panel,) = picture.panels
        parts = panel.parts(max(1, int((width - _label_width(panel)) / cell_w)))
        placed = tuple(dataclasses.replace(part, place=(i, 0)) for i, part in enumerate(parts))
        picture = dataclasses.replace(picture, panels=placed)

    # Panels in a grid: each column as wide as its widest panel, each row as high as its highest.
    widths: dict[int, float] = {}
    heights: dict[int, float] = {}
    for p in picture.panels:
        row, column = p.place
        label_w = _label_width(p)
        widths[column] = max(widths.get(column, 0.0), max(label_w + p.columns * cell_w, width_of(p.title, 11)))
        heights[row] = max(heights.get(row, 0.0), _head_height(p) + p.rows * cell_h)
    page_w = max(sum(widths.values()) + GAP * (len(widths) - 1), 300.0)

    texts: list[Text] = []
    boxes: list[Box] = []
    y = MARGIN
    for line in wrap(picture.title, page_w, HEAD):
        y += HEAD + 2
        texts.append(Text(MARGIN, y, line, HEAD, bold=True))
    top = y + 10
    for p in picture.panels:
        row, column = p.place
        x0 = MARGIN + sum(w + GAP for c, w in widths.items() if c < column)
        y0 = top + sum(h + GAP for r, h in heights.items() if r < row)
        # Panels of one column begin at one x, whatever the width of their row labels.
        label_w = max(_label_width(q) for q in picture.panels if q.place[1] == column)
        _panel(p, x0, y0, label_w, cell_w, cell_h, boxes, texts)
    y = top + sum(heights.values()) + GAP * (len(heights) - 1) + 10

    if picture.key:
        for line in wrap(picture.key, page_w, SIZE):
            y += LINE
            texts.append(Text(MARGIN, y, line, bold=True))
        y += 6
    x = MARGIN
    for colour, text in picture.legend:
        need = 14 + 4 + width_of(text) + 14
        if x > MARGIN and x + need > MARGIN + page_w:
            x, y = MARGIN, y + 17
        boxes.append(Box(x, y, 14, 12, colour))
        texts.append(Text(x + 18, y + 9.5, text))
        x += need
    if picture.legend:
        y += 17
    for note in picture.notes:
        for line in wrap(note, page_w, SIZE):
            y += LINE + 1
            texts.append(Text(MARGIN, y, line, colour=GREY))
    right = max([MARGIN + page_w] + [t.x + width_of(t.text, t.size) for t in texts if t.anchor == "start"])
    return Scene(round(right + MARGIN, 2), round(y + MARGIN, 2), tuple(boxes), tuple(texts))


def _label_width(p: Panel) -> float:
    return width_of(max((p.corner, str(p.rows - 1)), key=len)) + 8


def _head_height(p: Panel) -> float:
    return LINE + 4 + (LINE + 4 if p.title else 0.0)


def _panel(
    p: Panel, x0: float, y0: float, label_w: float, cell_w: float, cell_h: float, boxes: list[Box], texts: list[Text]
) -> None:
    if p.title:
        texts.append(Text(x0, y0 + LINE, p.title, 11, bold=True))
    x, y = x0 + label_w, y0 + _head_height(p)
    texts.append(Text(x - 5, y - 5, p.corner, anchor="end", colour=GREY))
    for j in range(p.columns):
        texts.append(Text(x + (j + 0.5) * cell_w, y - 5, str(p.first + j), anchor="middle", colour=GREY))
    for i, row in enumerate(p.cells):
        texts.append(Text(x - 5, y + (i + 0.5) * cell_h + 0.35 * SIZE, str(i), anchor="end", colour=GREY))
        for j, cell in enumerate(row):
            left, up = x + j * cell_w, y + i * cell_h
            place = (("panel", p.name), ("row", str(i)), ("column", str(p.first + j)))
            if cell is None:
                boxes.append(Box(left, up, cell_w, cell_h, None, data=place))
                continue
            first = up + cell_h / 2 - (len(cell.lines) - 1) * LINE / 2 + 0.35 * SIZE
            labels = tuple(
                Text(left + cell_w / 2, first + n * LINE, line, anchor="middle") for n, line in enumerate(cell.lines)
            )
            boxes.append(Box(left, up, cell_w, cell_h, cell.colour, labels, place + cell.data))


def wrap(text: str, width: float, size: float) -> list[str]:
    """Lines that fit a width."""
    return textwrap.wrap(text, max(int(width / (size * ADVANCE)), 40), break_long_words=False, break_on_hyphens=False)


def number(x: float) -> str:
    """A length, short."""
    return f"{x:.2f}".rstrip("0").rstrip(".")
