"""Pictures as LaTeX: a document whose page is one TikZ picture. It needs article, geometry and tikz only."""

from __future__ import annotations

from jax_moye.layout.draw.model import FILLS, Picture
from jax_moye.layout.draw.scene import INK, SIZE, Box, Text, arrange, number

_ANCHOR = {"start": "base west", "end": "base east"}
_ESCAPES = {c: rf"\symbol{{{ord(c)}}}" for c in "\\{}~^"} | {c: "\\" + c for c in "#$%&_"}


def write(picture: Picture) -> str:
    """The LaTeX document of a picture."""
    scene = arrange(picture)
    w, h = number(scene.width), number(scene.height)
    out = [
        "% pdflatex makes a page of the size of the picture; the tikzpicture can be pasted elsewhere with its colours.",
        r"\documentclass{article}",
        rf"\usepackage[paperwidth={w}bp,paperheight={h}bp,margin=0bp]{{geometry}}",
        r"\usepackage{tikz}",
        r"\pagestyle{empty}\frenchspacing\setlength{\parindent}{0pt}\setlength{\topskip}{0pt}",
    ]
    out += [rf"\definecolor{{moye{i}}}{{HTML}}{{{c[1:]}}}" for i, c in enumerate(FILLS)]
    out += [
        r"\definecolor{moyeframe}{HTML}{333333}",
        r"\definecolor{moyegrey}{HTML}{444444}",
        r"\begin{document}",
        r"\noindent\begin{tikzpicture}[x=1bp,y=-1bp,line width=0.6bp,inner sep=0pt,outer sep=0pt,",
        rf"  every node/.style={{anchor=base,font={_font(SIZE, False)}}}]",
        rf"\useasboundingbox (0,0) rectangle ({w},{number(scene.height - 1)});",
    ]
    for box in scene.boxes:
        out.append(_box(box))
        out += map(_text, box.texts)
    out += map(_text, scene.texts)
    return "\n".join((*out, r"\end{tikzpicture}", r"\end{document}", ""))


def _box(box: Box) -> str:
    look = r"draw=gray,dashed" if box.colour is None else f"draw=moyeframe,fill=moye{box.colour}"
    corner = f"({number(box.x)},{number(box.y)})"
    return rf"\path[{look}] {corner} rectangle ({number(box.x + box.width)},{number(box.y + box.height)});"


def _text(text: Text) -> str:
    options = []
    if text.anchor != "middle":
        options.append(f"anchor={_ANCHOR[text.anchor]}")
    if text.colour != INK:
        options.append("text=moyegrey")
    if text.bold or text.size != SIZE:
        options.append(f"font={_font(text.size, text.bold)}")
    look = f"[{','.join(options)}]" if options else ""
    return rf"\node{look} at ({number(text.x)},{number(text.y)}) {{{escape(text.text)}}};"


def _font(size: float, bold: bool) -> str:
    points = number(size * 0.95)  # cmtt is smaller than the font that the cells are made for
    weight = r"\bfseries" if bold else ""
    return rf"{{\ttfamily{weight}\fontsize{{{points}}}{{{points}}}\selectfont}}"


def escape(text: str) -> str:
    """Text for TeX, in a typewriter font of any encoding."""
    return "".join(_ESCAPES.get(c, c) for c in text)
