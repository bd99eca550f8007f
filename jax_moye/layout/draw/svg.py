"""Pictures as SVG: every cell is a group that says in `data-` attributes which element it is."""

from __future__ import annotations

from jax_moye.layout.draw.model import FILLS, Picture, escape_xml
from jax_moye.layout.draw.scene import INK, WIDTH, Box, Text, arrange, number

_FONT = "'DejaVu Sans Mono', Menlo, Consolas, 'Liberation Mono', monospace"


def write(picture: Picture, width: float = WIDTH) -> str:
    """The SVG document of a picture; tables of layouts that are wider go on below."""
    scene = arrange(picture, width)
    w, h = number(scene.width), number(scene.height)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" role="img" '
        f'font-family="{_FONT}" font-size="10" text-anchor="middle">',
        f"<title>{escape_xml(picture.title)}</title>",
        f"<desc>{escape_xml(' '.join((picture.key, *picture.notes)))}</desc>",
        f'<rect width="{w}" height="{h}" fill="#ffffff"/>',
    ]
    out += map(_box, scene.boxes)
    out += map(_text, scene.texts)
    return "\n".join((*out, "</svg>", ""))


def _box(box: Box) -> str:
    place = f'x="{number(box.x)}" y="{number(box.y)}" width="{number(box.width)}" height="{number(box.height)}"'
    if box.colour is None:
        look = 'fill="#ffffff" stroke="#888888" stroke-width="0.6" stroke-dasharray="2 2"'
    else:
        look = f'fill="{FILLS[box.colour]}" stroke="#333333" stroke-width="0.6"'
    rect = f"<rect {place} {look}/>"
    if not box.data:
        return rect
    data = " ".join(f'data-{name}="{escape_xml(value)}"' for name, value in box.data)
    return f'<g class="cell" {data}>{rect}{"".join(map(_text, box.texts))}</g>'


def _text(text: Text) -> str:
    look = "" if text.anchor == "middle" else f' text-anchor="{text.anchor}"'
    look += "" if text.size == 10 else f' font-size="{number(text.size)}"'
    look += "" if text.colour == INK else f' fill="{text.colour}"'
    look += ' font-weight="bold"' if text.bold else ""
    # Runs of spaces matter in no label.
    return f'<text x="{number(text.x)}" y="{number(text.y)}"{look}>{escape_xml(text.text)}</text>'
