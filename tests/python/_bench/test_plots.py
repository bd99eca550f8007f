"""Charts: an SVG that is the same in every run, whose texts are all in it; other files."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
from xml.etree import ElementTree

import pytest

import jax_moye

pytest.importorskip("matplotlib")
from jax_moye._bench import plots

ROOT = pathlib.Path(__file__).resolve().parents[3]
SVG = "{http://www.w3.org/2000/svg}"
MADE = """
from jax_moye._bench import plots
figure = plots.new_figure(3, 2)
with plots.styled():
    axes = figure.subplots()
    axes.plot([0, 1 / 3], [0, 2 / 3], gid="line")
    figure.text(0.9, 0.5, "$1 <of> & more, far outside of the axes", parse_math=False)
chart = plots.Chart(figure, "A <title>", {"line": "a & b"})
"""


def made() -> plots.Chart:
    given: dict = {}
    exec(MADE, given)
    return given["chart"]


def test_svg():
    text = made().svg
    root = ElementTree.fromstring(text)
    assert text.startswith("<svg ")
    assert root.find(f"{SVG}title").text == "A <title>"
    (line,) = (group for group in root.iter(f"{SVG}g") if group.get("id") == "line")
    assert line.find(f"{SVG}title").text == "a & b"
    texts = ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]
    assert "$1 <of> & more, far outside of the axes" in texts
    assert all(len(number.partition(".")[2]) <= 2 for number in line.find(f"{SVG}path").get("d").split())


def test_nothing_is_cut_off():
    chart = made()
    width = float(ElementTree.fromstring(chart.svg).get("viewBox").split()[2])
    assert width > 72 * 3 + 50  # the text goes on behind the axes' end, and the page with it


def test_it_is_the_same_in_every_process():
    code = f"{MADE}\nprint(chart.svg, end='')"
    package = pathlib.Path(jax_moye.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env={"PYTHONPATH": str(package)}
    )
    assert done.stdout == made().svg, done.stderr


def test_files(tmp_path):
    chart = made()
    begins = {".svg": b"<svg ", ".png": b"\x89PNG", ".pdf": b"%PDF"}
    for suffix, begin in begins.items():
        chart.save(tmp_path / f"chart{suffix}")
        assert (tmp_path / f"chart{suffix}").read_bytes().startswith(begin)
    with pytest.raises(ValueError, match="xyz"):
        chart.save(tmp_path / "chart.xyz")
    assert chart._repr_svg_() == chart.svg


@pytest.mark.skipif(not (ROOT / "CONTRIBUTING.md").exists(), reason="no checkout beside the tests")
def test_one_version_draws_the_sites_charts():
    named = [
        version
        for file in ("pyproject.toml", "CONTRIBUTING.md")
        for version in re.findall(r"matplotlib==([\d.]+)", (ROOT / file).read_text())
    ]
    assert len(named) == 3
    assert len(set(named)) == 1
