"""Bugs planted in the real kernels are caught, each in one deterministic run and with a report that names its cause."""

from __future__ import annotations

import pathlib
import re
import subprocess

import pytest

from tests import cxx
from tests.emulated import mutants, mutants_persistent, mutants_simt
from tests.emulated.mutants import Mutant

MUTANTS = mutants.MUTANTS + mutants_simt.MUTANTS + mutants_persistent.MUTANTS
ROWS = sorted({mutant.row for mutant in MUTANTS})
ROOT = pathlib.Path(__file__).parents[2]
DRIVER = ROOT / "tests/emulated/gemm_driver.cc"


def instance_source(row: str) -> str:
    """What CMake makes of cuda/gemm/instance.cu.in for one row of the table."""
    kernel = re.search(r"\w+", row)[0]
    template = (ROOT / "cuda/gemm/instance.cu.in").read_text()
    return template.replace("@KERNEL@", kernel).replace("@ROW@", row)


def build(folder: pathlib.Path, row: str, file: str = "", old: str = "", new: str = "", count: int = 1) -> pathlib.Path:
    """Compiles the driver for one row, from a copy of cuda/gemm in which `old` in `file` became `new`.

    A file of cuda/moye is named with its folders; its copy comes before the original.
    """
    gemm = folder / "gemm"
    gemm.mkdir(parents=True)
    for source in (ROOT / "cuda/gemm").iterdir():
        (gemm / source.name).write_text(source.read_text())
    if file:
        path = folder / (file if "/" in file else f"gemm/{file}")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "cuda" / path.relative_to(folder)).read_text()
        assert text.count(old) == count, f"{file} holds {text.count(old)} times, not {count}:\n{old}"
        path.write_text(text.replace(old, new))
    instance = folder / "instance.cc"
    instance.write_text(instance_source(row))
    return cxx.build("gemm_driver", [DRIVER], flags=[f"-I{folder}", f"-DMOYE_ROW={row}"], kernel_sources=[instance])


def run(binary: pathlib.Path, sizes: tuple[int, int, int]) -> str:
    done = subprocess.run([binary, *map(str, sizes)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("row", ROWS)
def test_without_a_bug(row, tmp_path):
    """The control: the same driver and sizes, and nothing to report."""
    binary = build(tmp_path, row)
    for sizes in sorted({mutant.sizes for mutant in MUTANTS if mutant.row == row}):
        assert run(binary, sizes) == "ok"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug(mutant: Mutant, tmp_path):
    report = run(build(tmp_path, mutant.row, mutant.file, mutant.old, mutant.new, mutant.count), mutant.sizes)
    if mutant.expect == "wrong":
        assert report.startswith("wrong: "), report
    else:
        assert report.startswith("error: "), report
        assert re.search(mutant.expect, report, re.DOTALL), report


def test_enough_bugs_are_planted():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 16
