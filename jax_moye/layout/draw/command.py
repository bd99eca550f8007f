"""`python -m jax_moye draw`: pictures from the command line."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import re
import sys

from jax_moye._command_line import describe, whole
from jax_moye.layout import draw
from jax_moye.layout.atoms import CopyAtom, copy_op_names, mma_atom, mma_atom_names
from jax_moye.layout.draw.model import SUFFIXES, Picture
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.notation import parse
from jax_moye.layout.swizzle import Swizzle
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_mma

_OWN = {  # of each kind of picture
    "a layout": ("swizzle", "bits"),
    "mma": ("atoms", "tile"),
    "copy": ("thr", "val", "dtype"),
    "--schedule": ("super_m", "resident"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye draw`."""
    describe(
        parser,
        "Draws a layout, an instruction, a copy or the order of the tiles of D: as text, or into a file. `mma` and\n"
        "`copy` without a name list the instructions.",
        [
            '"(2,(3,4)):(1,(2,6))"',
            '"(8,64):(64,1)" --swizzle 3,3,3 -o out.svg',
            "mma",
            "mma SM80_16x8x8_F32TF32TF32F32_TN -o mma.png",
            'mma SM80_16x8x16_F32BF16BF16F32_TN --atoms "(2,2,1):(1,2,0)" --tile "[32;32;16]" -o mma.tex',
            'copy SM75_U32x4_LDSM_N --thr "(16,2)" --val "(2,4)" --dtype uint16 -o copy.typ',
            "--schedule 16x16 --super-m 8 --resident 132",
        ],
    )
    parser.add_argument("what", nargs="*", help="a layout; `mma` or `copy`, which list names; `mma NAME`; `copy NAME`")
    parser.add_argument("-o", "--out", type=pathlib.Path, help=f"file to write: {', '.join(SUFFIXES)}; default: text")
    parser.add_argument("--json", action="store_true", help="print the cells as JSON; of `mma` and `copy` the names")
    layouts = parser.add_argument_group("layouts")
    layouts.add_argument("--swizzle", metavar="B,M,S", help="a swizzle after the layout")
    layouts.add_argument("--bits", type=whole(1), help="size of an element: colours by bank (swizzled layouts: 16)")
    mma = parser.add_argument_group("mma")
    mma.add_argument("--atoms", metavar="LAYOUT", help="(m,n,k) -> atom, of a TiledMma")
    mma.add_argument("--tile", metavar="TILER", help="the tile for each of M, N, K, of a TiledMma")
    copy = parser.add_argument_group("copy")
    copy.add_argument("--thr", metavar="LAYOUT", help="(m,n) -> thread, of a TiledCopy")
    copy.add_argument("--val", metavar="LAYOUT", help="(m,n) -> value, of a TiledCopy")
    copy.add_argument("--dtype", help="element type (float16)")
    schedule = parser.add_argument_group("schedule of CTAs")
    schedule.add_argument("--schedule", metavar="MxN", help="tiles of D")
    schedule.add_argument("--super-m", type=whole(1), help="rows that the order runs down (8)")
    schedule.add_argument("--resident", type=whole(1), help="CTAs at one time (super_m * super_m)")


def main(arguments: argparse.Namespace) -> int:
    """Draws; 0, or 2 for what cannot be drawn."""
    if arguments.what in (["mma"], ["copy"]):
        return _list(arguments)
    if arguments.out and arguments.out.suffix not in SUFFIXES:
        return _refuse(f"{arguments.out}: no format {arguments.out.suffix!r}; there are {', '.join(SUFFIXES)}")
    if (message := _left_over(arguments)) is not None:
        return _refuse(message)
    try:
        picture = _picture(arguments)
        if picture is None:
            return _refuse("give a layout, `mma NAME`, `copy NAME` or --schedule MxN; see --help")
        if arguments.out:
            picture.save(arguments.out)
        if arguments.json:
            print(json.dumps(dataclasses.asdict(picture), indent=1))
        elif not arguments.out:
            print(picture, end="")
    except BrokenPipeError:
        raise
    except (ImportError, OSError, ValueError) as error:  # a LayoutError is one
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    print(f"jax_moye draw: {message}", file=sys.stderr)
    return 2


def _list(arguments: argparse.Namespace) -> int:
    """Prints the names of the instructions."""
    if arguments.out:
        return _refuse(f"`{arguments.what[0]}` lists names, and there is nothing to write to {arguments.out}")
    names = mma_atom_names() if arguments.what == ["mma"] else copy_op_names()
    print(json.dumps(names, indent=1) if arguments.json else "\n".join(names))
    return 0


def _left_over(arguments: argparse.Namespace) -> str | None:
    """What is wrong with the options: one of them is about another kind of picture."""
    of_what = arguments.what[0] if arguments.what and arguments.what[0] in _OWN else "a layout"
    kind = "--schedule" if arguments.schedule is not None else of_what
    for other, names in _OWN.items():
        for name in names:
            if other != kind and getattr(arguments, name) is not None:
                return f"--{name.replace('_', '-')} is an option of {other}, and this is {kind}"
    return None


def _picture(arguments: argparse.Namespace) -> Picture | None:
    what = arguments.what
    if arguments.schedule is not None:
        m, _, n = arguments.schedule.lower().partition("x")
        if what:
            raise ValueError(f"--schedule draws by itself, without {' '.join(what)}")
        if not (m.isdigit() and n.isdigit()):
            raise ValueError(f"--schedule is MxN, tiles of D along m and n, such as 6x8, not {arguments.schedule!r}")
        return draw.draw_schedule(int(m), int(n), arguments.super_m or 8, arguments.resident)
    if len(what) == 2 and what[0] == "mma":
        if arguments.atoms or arguments.tile:
            return draw.draw(make_tiled_mma(what[1], arguments.atoms or "(1,1,1)", arguments.tile))
        return draw.draw(mma_atom(what[1]))
    if len(what) == 2 and what[0] == "copy":
        atom = CopyAtom(what[1], dtype(arguments.dtype or "float16", "draw").name)
        if arguments.thr or arguments.val:
            return draw.draw(make_tiled_copy(atom, arguments.thr or "(1,1)", arguments.val or "(1,1)"))
        return draw.draw(atom)
    if len(what) != 1:
        return None
    layout = parse(what[0])
    if arguments.swizzle:
        text = arguments.swizzle
        if not re.fullmatch(r"(S\w*<)?\s*-?\d+\s*,\s*-?\d+\s*,\s*-?\d+\s*>?", text):
            raise ValueError(f"--swizzle is B,M,S, three whole numbers such as 3,3,3, not {text!r}")
        layout = Swizzle(text if text.startswith("S") else f"Sw<{text}>") @ layout
    return draw.draw(layout, bits=arguments.bits)
