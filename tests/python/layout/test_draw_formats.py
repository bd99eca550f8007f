"""The formats of pictures: text as expected, SVG, LaTeX and Typst that compile, colours that all can tell apart."""

import doctest
import importlib
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import numpy as np
import pytest

import jax_moye.__main__ as command
from jax_moye.layout import Layout, errors
from jax_moye.layout import schedule as layout_schedule
from jax_moye.layout.atoms import CopyAtom, copy_op, copy_op_names, mma_atom, mma_atom_names
from jax_moye.layout.draw import (
    PictureTooLarge,
    draw,
    draw_schedule,
    draw_tv,
    print_latex,
    print_layout,
    print_typst,
    to_latex,
    to_svg,
    to_text,
    to_typst,
)
from jax_moye.layout.draw.model import FILLS, PALETTE
from jax_moye.layout.draw.scene import SIZE, arrange, width_of
from jax_moye.layout.tiled import make_tiled_copy, make_tiled_copy_B, make_tiled_mma

draw_package = importlib.import_module("jax_moye.layout.draw")
TF32 = "SM80_16x8x8_F32TF32TF32F32_TN"


def pictures():
    """One of each kind."""
    ldmatrix = CopyAtom("SM75_U32x4_LDSM_N", "uint16")
    mma = make_tiled_mma(TF32, "(2,2,1):(2,1,1)", (32, 32, 8))
    return {
        "layout": draw("(2,(3,4)):(1,(2,6))"),
        "vector": draw("7:3"),
        "swizzle": draw("Sw<3,3,3> o 0 o (8,64):(64,1)"),
        "mma": draw(mma_atom(TF32)),
        "volta": draw(mma_atom("SM70_8x8x4_F32F16F16F32_NT")),
        "wgmma": draw(mma_atom("SM90_64x8x16_F32BF16BF16_SS")),
        "tiled_mma": draw(mma),
        "fma": draw(make_tiled_mma("UniversalFMA<float>", "(16,16)")),
        "ldmatrix": draw(make_tiled_copy(ldmatrix, "(16,2)", "(2,4)")),
        "copy_B": draw(make_tiled_copy_B(CopyAtom("SM75_U32x2_LDSM_N", "float32"), make_tiled_mma(TF32))),
        "schedule": draw_schedule(10, 12, 4),
        "holes": draw_tv(Layout("(2,2):(1,4)"), (2, 4), r"100% of $x_1^2$ & {a} # ~ \ <b> \"c\" @d [e] *f*"),
    }


PICTURES = pictures()
every_picture = pytest.mark.parametrize("name", PICTURES)


# ---- Text ----------------------------------------------------------------------------------------------------------

GOLDEN_LAYOUT = """\
(2,(3,2)):(1,(2,6))

i\\j |  0  1  2  3  4  5
----+------------------
  0 |  0  2  4  6  8 10
  1 |  1  3  5  7  9 11
"""

GOLDEN_COPY = """\
UniversalCopy<float> of float32: 4 threads, tile (2,4)

source                       destination
i\\j |    0    1    2    3    i\\j |    0    1    2    3
----+--------------------    ----+--------------------
  0 | T0V0 T0V1 T1V0 T1V1      0 | T0V0 T0V1 T1V0 T1V1
  1 | T2V0 T2V1 T3V0 T3V1      1 | T2V0 T2V1 T3V0 T3V1

S_TV = ((2,2),(1,2)):((4,1),(0,2))
D_TV = ((2,2),(1,2)):((4,1),(0,2))
"""

GOLDEN_PRODUCT = """\
UniversalFMA<float,float,float,float>: 4 threads, tile (2,2,1)

                 B (k,n)
                 k\\n |       0       1
                 ----+----------------
                   0 | T0,1 V0 T2,3 V0

A (m,k)          C (m,n)
m\\k |       0    m\\n |    0    1
----+--------    ----+----------
  0 | T0,2 V0      0 | T0V0 T2V0
  1 | T1,3 V0      1 | T1V0 T3V0

A_TV = ((2,2),(1,(1,1))):((1,0),(0,(0,0)))
B_TV = ((2,2),(1,(1,1))):((0,1),(0,(0,0)))
C_TV = (4,(1,(1,1))):(1,(0,(0,0)))
atoms (2,2,1):(1,2,0)
T0,2: thread 0 and thread 2 have the same element.
"""


def test_text_of_a_layout(capsys):
    assert to_text("(2,(3,2)):(1,(2,6))") == GOLDEN_LAYOUT
    print_layout("(2,(3,2)):(1,(2,6))")
    assert capsys.readouterr().out == GOLDEN_LAYOUT


def test_text_of_a_copy():
    copy = make_tiled_copy(CopyAtom("UniversalCopy<float>", "float32"), "(2,2):(2,1)", "(1,2)")
    assert to_text(copy) == GOLDEN_COPY


def test_text_of_a_product():
    assert to_text(make_tiled_mma("UniversalFMA<float>", "(2,2)")) == GOLDEN_PRODUCT


def test_wide_panels_are_stacked():
    text = to_text(make_tiled_copy(CopyAtom("UniversalCopy<float>", "float32"), "(1,32)", "(1,1)"))
    assert len(text.split("destination")[0].splitlines()) > 4


WRAPPED = """\
(2,48):(48,1)

i\\j |  0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
----+------------------------------------------------------------------------
  0 |  0  1  2  3  4  5  6  7  8  9 10 11 12 13 14 15 16 17 18 19 20 21 22 23
  1 | 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71

i\\j | 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
----+------------------------------------------------------------------------
  0 | 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47
  1 | 72 73 74 75 76 77 78 79 80 81 82 83 84 85 86 87 88 89 90 91 92 93 94 95
"""


def test_wide_layouts_go_on_below():
    assert to_text("(2,48):(48,1)") == WRAPPED
    swizzled = draw("Sw<3,3,3> o 0 o (8,64):(64,1)")
    assert max(map(len, swizzled.text.splitlines())) <= 100
    root = ET.fromstring(swizzled.svg)
    assert float(root.get("width")) <= 736
    cells = [group for group in root.iter() if group.get("class") == "cell"]
    places = {(int(cell.get("data-row")), int(cell.get("data-column"))): cell for cell in cells}
    assert sorted(places) == [(i, j) for i in range(8) for j in range(64)]
    at = {place: cell[0].attrib for place, cell in places.items()}
    assert at[0, 0]["x"] == at[0, 24]["x"] == at[0, 48]["x"]
    assert float(at[7, 0]["y"]) < float(at[0, 24]["y"]) < float(at[7, 24]["y"]) < float(at[0, 48]["y"])
    assert at[3, 24]["y"] == at[3, 47]["y"]


@pytest.mark.parametrize(("columns", "most", "parts"), [(64, 26, [24, 24, 16]), (32, 26, [16, 16]), (26, 26, [26])])
def test_parts_are_of_eight_columns(columns, most, parts):
    panel = draw(f"(1,{columns}):(0,1)").panels[0]
    assert [part.columns for part in panel.parts(most)] == parts
    assert [part.first for part in panel.parts(most)] == [sum(parts[:i]) for i in range(len(parts))]
    assert [cell for part in panel.parts(most) for cell in part.cells[0]] == list(panel.cells[0])
    assert [part.columns for part in panel.parts(3)] == [3] * (columns // 3) + [columns % 3] * (columns % 3 > 0)
    assert draw_schedule(4, columns).panels[0].parts(most)[0].columns == columns  # which is a map


# ---- SVG -----------------------------------------------------------------------------------------------------------


@every_picture
def test_svg_is_well_formed_and_its_texts_fit(name):
    root = ET.fromstring(PICTURES[name].svg)
    width, height = float(root.get("width")), float(root.get("height"))
    for rect in root.iter("{http://www.w3.org/2000/svg}rect"):
        assert 0 <= float(rect.get("x", 0)) <= float(rect.get("x", 0)) + float(rect.get("width")) <= width
        assert 0 <= float(rect.get("y", 0)) <= float(rect.get("y", 0)) + float(rect.get("height")) <= height
    scene = arrange(PICTURES[name])
    for box in scene.boxes:
        for text in box.texts:
            assert width_of(text.text) <= box.width - 2
            assert box.y + SIZE * 0.7 <= text.y <= box.y + box.height - 2
    for text in scene.texts:
        assert 0 <= text.y <= height
        if text.anchor == "start":
            assert text.x + width_of(text.text, text.size) <= width


@every_picture
def test_cells_and_lines_do_not_overlap(name):
    scene = arrange(PICTURES[name])
    places = [(b.x, b.y) for b in scene.boxes]
    assert len(set(places)) == len(places)
    left = [t for t in scene.texts if t.anchor == "start"]
    for a, b in itertools.combinations(left, 2):
        if abs(a.y - b.y) < SIZE - 1:
            first, second = sorted((a, b), key=lambda t: t.x)
            assert first.x + width_of(first.text, first.size) <= second.x


def test_notebooks_show_pictures():
    picture = draw("(2,3):(3,1)")
    assert picture._repr_svg_() == to_svg("(2,3):(3,1)") == picture.svg
    bundle = picture._repr_mimebundle_()
    assert bundle == {"text/plain": str(picture), "image/svg+xml": picture.svg}
    assert list(picture._repr_mimebundle_(include={"image/svg+xml"})) == ["image/svg+xml"]
    assert list(picture._repr_mimebundle_(exclude={"image/svg+xml"})) == ["text/plain"]


# ---- LaTeX and Typst -----------------------------------------------------------------------------------------------


@every_picture
def test_latex_is_balanced(name):
    text = PICTURES[name].latex
    assert text.isascii()
    assert text.count(r"\node") == sum(len(b.texts) for b in arrange(PICTURES[name]).boxes) + len(
        arrange(PICTURES[name]).texts
    )
    plain = re.sub(r"\\[{}]", "", text)
    assert plain.count("{") == plain.count("}")


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
@pytest.mark.parametrize("name", ["layout", "mma", "wgmma", "schedule", "holes"])
def test_latex_compiles_to_one_page(name, tmp_path):
    PICTURES[name].save(tmp_path / "picture.tex")
    done = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "picture.tex"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode and re.search(r"! LaTeX Error: File `\S+' not found", done.stdout):
        pytest.skip("this TeX lacks a package: " + done.stdout[-200:])
    assert done.returncode == 0, done.stdout[-2000:]
    assert "(1 page," in done.stdout
    assert "Overfull" not in done.stdout


@every_picture
def test_typst_compiles_to_one_page(name, tmp_path):
    typst = pytest.importorskip("typst", reason="the package typst is not installed")
    PICTURES[name].save(tmp_path / "picture.typ")
    pages = typst.compile(str(tmp_path / "picture.typ"), format="svg")
    assert isinstance(pages, bytes)  # one page; more are a list
    root = ET.fromstring(pages)
    scene = arrange(PICTURES[name])
    assert float(root.get("width").removesuffix("pt")) == pytest.approx(scene.width)
    assert float(root.get("height").removesuffix("pt")) == pytest.approx(scene.height)


def test_print_typst_and_print_latex(capsys):
    print_typst(mma_atom(TF32))
    assert capsys.readouterr().out == to_typst(mma_atom(TF32))
    print_latex("(2,3)")
    assert capsys.readouterr().out == to_latex("(2,3)")


# ---- PNG and PDF ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["layout", "swizzle", "mma", "schedule", "holes"])
def test_png_has_every_cell_in_its_colour(name, tmp_path):
    image = pytest.importorskip("matplotlib.image")
    PICTURES[name].save(tmp_path / "picture.png")
    pixels = image.imread(tmp_path / "picture.png")
    scene = arrange(PICTURES[name])
    assert pixels.shape[:2] == pytest.approx((2 * scene.height, 2 * scene.width), abs=2)
    for box in scene.boxes:  # beside its frame, where no label is
        found = pixels[round(2 * box.y) + 3, round(2 * box.x) + 3, :3]
        fill = "#ffffff" if box.colour is None else FILLS[box.colour]
        assert np.round(255 * found).tolist() == [int(fill[i : i + 2], 16) for i in (1, 3, 5)]
        if any(text.text.strip() for text in box.texts):
            inner = pixels[round(2 * box.y) + 3 : round(2 * (box.y + box.height)) - 3]
            inner = inner[:, round(2 * box.x) + 3 : round(2 * (box.x + box.width)) - 3, :3]
            assert inner.max(axis=2).min() < 0.5  # the ink of its label


def test_pdf_is_one_page_of_the_size_of_the_picture(tmp_path):
    pytest.importorskip("matplotlib")
    PICTURES["mma"].save(tmp_path / "picture.pdf")
    data, scene = (tmp_path / "picture.pdf").read_bytes(), arrange(PICTURES["mma"])
    assert data.startswith(b"%PDF")
    (box,) = re.findall(rb"/MediaBox \[ ?([\d. ]+?) ?\]", data)
    assert [float(x) for x in box.split()] == pytest.approx([0, 0, scene.width, scene.height], abs=0.01)


# ---- Colours -------------------------------------------------------------------------------------------------------

# What a dichromat sees, in linear RGB (Machado, Oliveira, Fernandes 2009, severity 1).
VISIONS = {
    "normal": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour):
    c = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)


def cielab(rgb):
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    t = np.array(to_xyz) @ np.clip(rgb, 0, 1) / np.array([0.95047, 1, 1.08883])
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


@pytest.mark.parametrize("vision", VISIONS)
def test_all_can_tell_the_colours_apart(vision):
    seen = [cielab(np.array(VISIONS[vision]) @ linear(c)) for c in PALETTE]
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)]
    assert min(distances) > 20  # 2.3 is just noticeable


def test_labels_stand_out():
    for colour in FILLS:
        luminance = np.dot([0.2126, 0.7152, 0.0722], linear(colour))
        assert (luminance + 0.05) / 0.05 >= 7  # black on it; WCAG AAA


@every_picture
def test_neighbours_of_different_threads_differ(name):
    """On MMA and copy tables at most a few percent of the borders between threads have one colour on both sides."""
    same, borders = 0, 0
    for panel in PICTURES[name].panels:
        for i, row in enumerate(panel.cells):
            for j, cell in enumerate(row):
                for other in (*row[j + 1 : j + 2], *(panel.cells[i + 1][j : j + 1] if i + 1 < panel.rows else ())):
                    a, b = (dict(c.data).get("thread") if c else None for c in (cell, other))
                    if a and b and a != b:
                        borders += 1
                        same += cell.colour == other.colour
    assert same <= 0.03 * borders


# ---- Errors --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "error", "piece"),
    [
        ("(128,64):(64,1)", PictureTooLarge, "8192 cells"),
        ("(2,3,4):(1,2,6)", errors.RankTooSmall, "group(L, 1, 3)"),
        (mma_atom("SM90_64x256x16_F32BF16BF16_SS"), PictureTooLarge, "4096"),
        (copy_op("SM75_U32x4_LDSM_N"), errors.InvalidType, "CopyAtom('SM75_U32x4_LDSM_N', dtype)"),
        (3.5, errors.InvalidType, "float"),
        ("(2,3", errors.ParseError, "(2,3"),
    ],
)
def test_what_cannot_be_drawn_says_why(what, error, piece):
    with pytest.raises(error) as raised:
        draw(what)
    assert piece in str(raised.value)


def test_bad_options():
    with pytest.raises(errors.InvalidShape, match="0 bits"):
        draw("(2,3)", bits=0)
    with pytest.raises(errors.InvalidType, match="for layouts"):
        draw(mma_atom(TF32), bits=16)
    with pytest.raises(errors.InvalidShape, match="less than 1"):
        draw_schedule(0, 4)
    with pytest.raises(errors.InvalidType, match="integers"):
        draw_schedule(2.5, 4)
    with pytest.raises(PictureTooLarge, match="4225"):
        draw_schedule(65, 65)
    with pytest.raises(errors.InvalidType, match="thread, value"):
        draw_tv(Layout("4:1"), (2, 2))
    with pytest.raises(ValueError, match=r"no format '\.gif'"):
        draw("(2,3)").save("x.gif")


def test_largest_picture():
    assert draw("(64,64):(64,1)").svg.count("data-offset=") == 4096


def test_examples_in_docstrings():
    for module in (draw_package, layout_schedule):
        outcome = doctest.testmod(module)
        assert outcome.attempted > 0
        assert outcome.failed == 0


def test_an_interpreter_shows_the_text():
    picture = draw("(2,3):(3,1)")
    assert repr(picture) == str(picture).rstrip()
    assert repr(picture).splitlines()[2] == "i\\j | 0 1 2"


# ---- The command ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "begin"),
    [
        (["(2,3):(3,1)"], "(2,3):(3,1)\n\ni\\j | 0 1 2\n"),
        (["(8,8):(8,1)", "--swizzle", "1,0,3"], "Sw<1,0,3> o 0 o (8,8):(8,1)\n"),
        (["mma", TF32], TF32 + "\n"),
        (["mma", TF32, "--atoms", "(2,2,1)", "--tile", "[32;32;8]"], TF32 + ": 128 threads, tile (32,32,8)\n"),
        (["copy", "SM75_U32x4_LDSM_N"], "SM75_U32x4_LDSM_N of float16\n"),
        (
            ["copy", "SM75_U32x4_LDSM_N", "--thr", "(16,2)", "--val", "(2,4)", "--dtype", "uint16"],
            "SM75_U32x4_LDSM_N of uint16: 32 threads, tile (32,8)\n",
        ),
        (["--schedule", "4x6", "--super-m", "2"], "CTA schedule of 4x6 tiles, super_M = 2\n"),
    ],
)
def test_command_prints_text(arguments, begin, capsys):
    assert command.main(["draw", *arguments]) == 0
    assert capsys.readouterr().out.startswith(begin)


@pytest.mark.parametrize(
    ("suffix", "begin"),
    [(".svg", "<svg "), (".tex", "% pdflatex"), (".typ", "#set page"), (".txt", "Sw<3,3,3> o 0 o (8,64):(64,1)")],
)
def test_command_writes_files(suffix, begin, tmp_path):
    out = tmp_path / f"out{suffix}"
    assert command.main(["draw", "(8,64):(64,1)", "--swizzle", "3,3,3", "-o", str(out)]) == 0
    assert out.read_text().startswith(begin)


@pytest.mark.parametrize(
    ("arguments", "piece"),
    [
        ([], "give a layout"),
        (["mma", "-o", "x.svg"], "lists names"),
        (["mma", TF32, "--swizzle", "3,3,3"], "--swizzle is an option of a layout, and this is mma"),
        (["(2,3)", "--atoms", "(2,2,1)"], "--atoms is an option of mma, and this is a layout"),
        (["--schedule", "4x4", "--dtype", "float16"], "--dtype is an option of copy, and this is --schedule"),
        (["(2,3)", "--super-m", "2"], "--super-m is an option of --schedule"),
        (["mma", "SM80_nothing"], "no MMA instruction"),
        (["(2,3", "-o", "x.svg"], "(2,3"),
        (["(2,3)", "-o", "x.gif"], "no format '.gif'; there are .svg, .tex, .typ, .txt, .png, .pdf"),
        (["(2,3)", "-o", "nowhere/x.svg"], "nowhere"),
        (["--schedule", "4by6"], "--schedule is MxN, tiles of D along m and n, such as 6x8, not '4by6'"),
        (["--schedule", "4x6", "(2,3)"], "--schedule draws by itself, without (2,3)"),
        (["(2,3)", "--swizzle", "3"], "--swizzle is B,M,S, three whole numbers such as 3,3,3, not '3'"),
        (["(2,3)", "--swizzle", "a,b,c"], "--swizzle is B,M,S"),
        (["copy", "SM75_U32x4_LDSM_N", "--thr", "(3,5)"], "15"),
    ],
)
def test_command_refuses(arguments, piece, capsys):
    assert command.main(["draw", *arguments]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("jax_moye draw: ")
    assert piece in said.err


@pytest.mark.parametrize(("kind", "names"), [("mma", mma_atom_names()), ("copy", copy_op_names())])
def test_command_lists_the_instructions(kind, names, capsys):
    assert command.main(["draw", kind]) == 0
    assert capsys.readouterr().out.splitlines() == list(names)
    assert command.main(["draw", kind, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == list(names)
    assert len(names) > 20


def test_command_prints_json(capsys):
    assert command.main(["draw", "(2,3):(3,1)", "--json"]) == 0
    picture = json.loads(capsys.readouterr().out)
    (panel,) = picture["panels"]
    assert [[cell["lines"] for cell in row] for row in panel["cells"]] == [[["0"], ["1"], ["2"]], [["3"], ["4"], ["5"]]]


@pytest.mark.parametrize(("option", "value"), [("--bits", "0"), ("--super-m", "-1"), ("--resident", "x")])
def test_command_refuses_values(option, value, capsys):
    with pytest.raises(SystemExit):
        command.main(["draw", "(2,3)", option, value])
    assert f"argument {option}: " in capsys.readouterr().err


def test_command_runs_as_a_module():
    package = pathlib.Path(command.__file__).parent
    done = subprocess.run(
        [sys.executable, "-P", "-m", "jax_moye", "draw", "(2,3):(3,1)"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(package.parent)},
    )
    assert done.stdout == str(draw("(2,3):(3,1)"))
