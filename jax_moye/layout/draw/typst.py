"""Pictures as Typst: a document whose page is the picture."""

from __future__ import annotations

from jax_moye.layout.draw.model import FILLS, Picture
from jax_moye.layout.draw.scene import INK, Box, Text, arrange, number

_HEAD = """\
#set page(width: {w}pt, height: {h}pt, margin: 0pt)
#set text(font: "DejaVu Sans Mono", top-edge: "baseline", bottom-edge: "baseline", hyphenate: false)
#set par(leading: 0pt, spacing: 0pt)
#let fills = ({fills})
// A cell: place, size, index of the colour; none is an empty place.
#let cell(x, y, w, h, c) = place(dx: x * 1pt, dy: y * 1pt, rect(
  width: w * 1pt, height: h * 1pt,
  fill: if c == none {{ white }} else {{ fills.at(c) }},
  stroke: if c == none {{ (paint: gray, thickness: 0.6pt, dash: "dotted") }} else {{ 0.6pt + rgb("#333333") }},
))
// A line of text at a point of its baseline: its left end, middle or right end.
#let label-at(x, y, a, s, fill: black, weight: "regular", body) = place(
  dx: (if a == left {{ x }} else if a == center {{ x - 2000 }} else {{ x - 4000 }}) * 1pt, dy: y * 1pt,
  box(width: 4000pt, align(a, text(size: s * 1pt, fill: fill, weight: weight, body))),
)
"""
_ANCHOR = {"start": "left", "middle": "center", "end": "right"}


def write(picture: Picture) -> str:
    """The Typst document of a picture."""
    scene = arrange(picture)
    fills = ", ".join(f'rgb("{c}")' for c in FILLS)
    out = [_HEAD.format(w=number(scene.width), h=number(scene.height), fills=fills)]
    for box in scene.boxes:
        out.append(_box(box))
        out += map(_text, box.texts)
    out += map(_text, scene.texts)
    return "\n".join((*out, ""))


def _box(box: Box) -> str:
    colour = "none" if box.colour is None else str(box.colour)
    return f"#cell({number(box.x)}, {number(box.y)}, {number(box.width)}, {number(box.height)}, {colour})"


def _text(text: Text) -> str:
    look = "" if text.colour == INK else f', fill: rgb("{text.colour}")'
    look += ', weight: "bold"' if text.bold else ""
    quoted = text.text.replace("\\", "\\\\").replace('"', '\\"')
    at = f"{number(text.x)}, {number(text.y)}, {_ANCHOR[text.anchor]}, {number(text.size)}"
    return f'#label-at({at}{look}, "{quoted}")'
