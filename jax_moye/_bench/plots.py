"""Charts by matplotlib: its figures as SVG that is the same in every run, and as other files."""

from __future__ import annotations

import dataclasses
import io
import pathlib
import re
from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from jax_moye._optional import matplotlib

INK, GREY, FAINT = "#222222", "#666666", "#dddddd"
_STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.labelsize": 9,
    "axes.titlesize": 10,
    "figure.dpi": 96,
    "font.family": ["DejaVu Sans", "sans-serif"],
    "font.size": 9,
    "hatch.linewidth": 0.6,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "savefig.bbox": "tight",  # nothing is cut off
    "savefig.pad_inches": 0.06,
    "svg.fonttype": "none",  # texts, which can be found and read aloud; no other usual font is wider
    "svg.hashsalt": "jax_moye",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
}


def check() -> None:
    """Raises MissingError where there is no matplotlib: before anything takes long."""
    _module("matplotlib")


def _module(name: str) -> Any:
    return matplotlib(name, "charts")


def new_figure(width: float, height: float) -> Any:
    """A figure of so many inches, 96 pixels each in a browser."""
    with _module("matplotlib").rc_context(_STYLE):
        return _module("matplotlib.figure").Figure(figsize=(width, height), layout="constrained")


def styled() -> Any:
    """The context in which axes are made and filled."""
    return _module("matplotlib").rc_context(_STYLE)


@dataclasses.dataclass(frozen=True)
class Chart:
    """A figure; notebooks show it.

    Attributes:
      figure: of matplotlib.
      title: what it shows, for who cannot see it.
      tips: by the gid of an artist what a browser shows under the pointer.
    """

    figure: Any
    title: str
    tips: Mapping[str, str]

    def __post_init__(self) -> None:
        """Arranges the figure, once: a second time would move things."""
        with styled():
            self.figure.draw_without_rendering()
        self.figure.set_layout_engine("none")

    @property
    def svg(self) -> str:
        """As SVG, the same in every run of one matplotlib."""
        file = io.StringIO()
        with styled():
            self.figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None, "Title": self.title})
        text = file.getvalue()
        text = re.sub(r"<[^>]*>", lambda tag: _rounded(tag[0]), text[text.index("<svg") :])
        for i, name in enumerate(dict.fromkeys(re.findall(r'id="([a-z][0-9a-f]{10})"', text))):  # sums of coordinates
            text = text.replace(name, f"{name[0]}{i}")
        for gid, tip in self.tips.items():
            text = text.replace(f'<g id="{gid}">', f'<g id="{gid}"><title>{escape(tip)}</title>', 1)
        text = text.replace(">", f' role="img"><title>{escape(self.title)}</title>', 1)
        return re.sub(r"\n+", "\n", re.sub(r"[ \t]+$", "", text, flags=re.MULTILINE))

    def save(self, path: pathlib.Path) -> None:
        """Writes a file in the format of its suffix: .svg, or what matplotlib writes."""
        if path.suffix == ".svg":
            path.write_text(self.svg, encoding="utf-8")
            return
        with styled():
            self.figure.savefig(path, dpi=192)

    def _repr_svg_(self) -> str:
        return self.svg


def _rounded(tag: str) -> str:
    """A tag whose coordinates have two digits: on every processor the same."""
    return re.sub(r"-?\d+\.\d{3,}", lambda number: f"{float(number[0]):.2f}", tag)
