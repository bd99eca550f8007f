"""Pictures as PNG and PDF: the page drawn by matplotlib."""

from __future__ import annotations

import pathlib

from jax_moye._optional import matplotlib
from jax_moye.layout.draw.model import FILLS, Picture
from jax_moye.layout.draw.scene import Scene, Text, arrange

_ANCHORS = {"start": "left", "middle": "center", "end": "right"}
_DPI = 144  # of a PNG: two pixels a point
_NO_DATES = {".png": {"Software": None}, ".pdf": {"CreationDate": None, "Creator": None, "Producer": None}}


def write(picture: Picture, path: pathlib.Path) -> None:
    """Writes the file of a picture: a page of its size.

    Args:
      picture: to be drawn.
      path: of the file, .png or .pdf.

    Raises:
      ImportError: there is no matplotlib.
    """
    style = {"font.family": ["DejaVu Sans Mono", "monospace"], "pdf.fonttype": 42}
    figures = matplotlib("matplotlib.figure", "PNG and PDF")
    with matplotlib("matplotlib", "PNG and PDF").rc_context(style):
        figure = _figure(arrange(picture), figures.Figure)
        figure.savefig(path, dpi=_DPI, metadata=_NO_DATES[path.suffix])


def _figure(scene: Scene, new):
    figure = new(figsize=(scene.width / 72, scene.height / 72))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, scene.width), ylim=(scene.height, 0))
    axes.set_axis_off()
    rectangle = matplotlib("matplotlib.patches", "PNG and PDF").Rectangle
    for box in scene.boxes:
        if box.colour is None:
            look = {"facecolor": "#ffffff", "edgecolor": "#888888", "linestyle": (0, (2, 2))}
        else:
            look = {"facecolor": FILLS[box.colour], "edgecolor": "#333333"}
        axes.add_patch(rectangle((box.x, box.y), box.width, box.height, linewidth=0.6, **look))
        for text in box.texts:
            _write(axes, text)
    for text in scene.texts:
        _write(axes, text)
    return figure


def _write(axes, text: Text) -> None:
    axes.text(
        text.x,
        text.y,
        text.text,
        fontsize=text.size,
        ha=_ANCHORS[text.anchor],
        va="baseline",
        color=text.colour,
        fontweight="bold" if text.bold else "normal",
        parse_math=False,
    )
