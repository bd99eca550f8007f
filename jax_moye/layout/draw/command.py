"""`python -m jax_moye draw`: pictures from the command line."""

from __future__ import annotations

import argparse
import pathlib
import sys

from jax_moye.layout import draw
from jax_moye.layout.atoms import CopyAtom, mma_atom
from jax_moye.layout.draw.model import FORMATS, Picture
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.errors import LayoutError
from jax_moye.layout.notation import parse
from jax_moye.layout.swizzle import Swizzle
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_mma

_EXAMPLES = """\
examples:
  draw "(2,(3,4)):(1,(2,6))"                                      a layout, as text
  draw "(8,64):(64,1)" --swizzle 3,3,3 -o out.svg                 a swizzled layout, coloured by bank
  draw mma SM80_16x8x8_F32TF32TF32F32_TN -o mma.svg               an MMA instruction
  draw mma SM80_16x8x16_F32BF16BF16F32_TN --atoms "(2,2,1):(1,2,0)" --tile "[32;32;16]" -o mma.tex
  draw copy SM75_U32x4_LDSM_N --thr "(16,2)" --val "(2,4)" --dtype uint16 -o copy.typ
  draw --schedule 16x16 --super-m 8 --resident 132                the order of the tiles of D
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye draw`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EXAMPLES
    parser.add_argument("what", nargs="*", help="a layout; `mma NAME`; or `copy NAME`")
    parser.add_argument("-o", "--out", type=pathlib.Path, help=f"file to write: {', '.join(FORMATS)}; default: text")
    layouts = parser.add_argument_group("layouts")
    layouts.add_argument("--swizzle", metavar="B,M,S", help="a swizzle after the layout")
    layouts.add_argument("--bits", type=int, help="size of an element: colours by bank (swizzled layouts: 16)")
    mma = parser.add_argument_group("mma")
    mma.add_argument("--atoms", metavar="LAYOUT", help="(m,n,k) -> atom, of a TiledMma")
    mma.add_argument("--tile", metavar="TILER", help="the tile for each of M, N, K, of a TiledMma")
    copy = parser.add_argument_group("copy")
    copy.add_argument("--thr", metavar="LAYOUT", help="(m,n) -> thread, of a TiledCopy")
    copy.add_argument("--val", metavar="LAYOUT", help="(m,n) -> value, of a TiledCopy")
    copy.add_argument("--dtype", default="float16", help="element type (float16)")
    schedule = parser.add_argument_group("schedule of CTAs")
    schedule.add_argument("--schedule", metavar="MxN", help="tiles of D")
    schedule.add_argument("--super-m", type=int, default=8, help="rows that the order runs down (8)")
    schedule.add_argument("--resident", type=int, help="CTAs at one time (super_m * super_m)")


def main(arguments: argparse.Namespace) -> int:
    """Draws; 0, or 2 for what cannot be drawn."""
    if arguments.out and arguments.out.suffix not in FORMATS:
        return _refuse(f"{arguments.out}: no format {arguments.out.suffix!r}; there are {', '.join(FORMATS)}")
    try:
        picture = _picture(arguments)
        if picture is None:
            return _refuse("give a layout, `mma NAME`, `copy NAME` or --schedule MxN; see --help")
        if arguments.out:
            picture.save(arguments.out)
        else:
            print(picture, end="")
    except (LayoutError, OSError) as error:
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    print(f"draw: {message}", file=sys.stderr)
    return 2


def _picture(arguments: argparse.Namespace) -> Picture | None:
    what = arguments.what
    if arguments.schedule is not None:
        m, _, n = arguments.schedule.lower().partition("x")
        if what or not (m.isdigit() and n.isdigit()):
            return None
        return draw.draw_schedule(int(m), int(n), arguments.super_m, arguments.resident)
    if len(what) == 2 and what[0] == "mma":
        if arguments.atoms or arguments.tile:
            return draw.draw(make_tiled_mma(what[1], arguments.atoms or "(1,1,1)", arguments.tile))
        return draw.draw(mma_atom(what[1]))
    if len(what) == 2 and what[0] == "copy":
        atom = CopyAtom(what[1], dtype(arguments.dtype, "draw").name)
        if arguments.thr or arguments.val:
            return draw.draw(make_tiled_copy(atom, arguments.thr or "(1,1)", arguments.val or "(1,1)"))
        return draw.draw(atom)
    if len(what) != 1:
        return None
    layout = parse(what[0])
    if arguments.swizzle:
        text = arguments.swizzle
        layout = Swizzle(text if text.startswith("S") else f"Sw<{text}>") @ layout
    return draw.draw(layout, bits=arguments.bits)
