"""Pictures as text: tables of right-aligned labels, side by side where the page is wide enough."""

from __future__ import annotations

import textwrap

from jax_moye.layout.draw.model import Panel, Picture

WIDTH = 160  # columns; wider rows of panels are stacked
PAGE = 100  # columns; wider tables of layouts go on below


def write(picture: Picture) -> str:
    """The text of a picture, ending in a newline."""
    out = [picture.title, ""]
    rows = sorted({p.place[0] for p in picture.panels})
    columns = sorted({p.place[1] for p in picture.panels})
    blocks = {p.place: _panel(p) for p in picture.panels}
    widths = {c: max(len(line) for (_r, k), b in blocks.items() if k == c for line in b) for c in columns}
    wide = sum(widths.values()) + 4 * (len(widths) - 1) > WIDTH
    for r in rows:
        here = [(c, blocks.get((r, c), [])) for c in columns]
        if wide:
            for _c, block in here:
                out += [*block, ""] if block else []
            continue
        for i in range(max(len(b) for _c, b in here)):
            parts = [(b[i] if i < len(b) else "").ljust(widths[c]) for c, b in here]
            out.append("    ".join(parts).rstrip())
        out.append("")
    for note in picture.notes:
        out += textwrap.wrap(note, 120, break_long_words=False, break_on_hyphens=False)
    return "\n".join(out).rstrip() + "\n"


def _panel(p: Panel) -> list[str]:
    labels = [[(p.joint.join(c.lines) if c else "") or "." for c in row] for row in p.cells]
    width = max(len(str(p.columns - 1)), *(len(x) for row in labels for x in row))
    left = max(len(p.corner), len(str(p.rows - 1)))
    out = [p.title] if p.title else []
    for part in p.parts(max(1, (PAGE - left - 2) // (width + 1))):
        out += [""] if part.first else []
        numbers = range(part.first, part.first + part.columns)
        out.append(p.corner.rjust(left) + " |" + "".join(f" {j:>{width}}" for j in numbers))
        out.append("-" * (left + 1) + "+" + "-" * ((width + 1) * part.columns))
        for i, row in enumerate(labels):
            out.append(f"{i:>{left}} |" + "".join(f" {row[j]:>{width}}" for j in numbers))
    return out
