"""MOYE_BOUNDS_CHECK: a coordinate outside of its tensor's shape is reported if it is on, and costs nothing if not.

That nothing else is reported, test_laws.py and test_kernels.py show, which have it on.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import cxx

HERE = pathlib.Path(__file__).parent
SOURCE = HERE / "bounds.cc"
# What the report says of each access in bounds.cc.
OUTSIDE = {
    1: ("(3,8)", "(4,8)"),
    2: ("32", "(4,8)"),
    3: ("(_,8)", "(4,8)"),
    4: ("((1,8),5)", "((2,2),8)"),
    5: ("(-5,7)", "(4,8)"),
    6: ("(8,0)", "(4,8)"),
    7: ("(0,8)", "(4,8)"),
    8: ("8", "(4,2)"),
}


def run(program: pathlib.Path, number: int) -> str:
    return subprocess.run([program, str(number)], capture_output=True, text=True, check=True).stdout.strip()


def line_of(number: int) -> int | None:
    found = [i for i, text in enumerate(SOURCE.read_text().splitlines(), 1) if text.endswith(f"// access {number}")]
    return found[0] if found else None


def test_reported():
    program = cxx.build("bounds_checked", flags=[cxx.BOUNDS_CHECK], kernel_sources=[SOURCE])
    assert run(program, 0) == "ok"
    for number, (coord, shape) in OUTSIDE.items():
        said = run(program, number)
        assert f"coordinate {coord} lies outside of shape {shape} at " in said
        assert "thread 3" in said
        line = line_of(number)
        assert f"bounds.cc:{line} by" in said or line is None, said


def test_free_without():
    """Nothing of the checks is in the code, and nobody notices: the accesses stay in the memory."""
    plain = cxx.compile_only(SOURCE, [*cxx.KERNEL_FLAGS])
    checked = cxx.compile_only(SOURCE, [*cxx.KERNEL_FLAGS, cxx.BOUNDS_CHECK])
    symbols = [subprocess.run(["nm", o], capture_output=True, text=True, check=True).stdout for o in (plain, checked)]
    assert "out_of_bounds" not in symbols[0]
    assert "out_of_bounds" in symbols[1]
    program = cxx.build("bounds_plain", kernel_sources=[SOURCE])
    assert [run(program, number) for number in OUTSIDE if number != 8] == ["ok"] * (len(OUTSIDE) - 1)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_device_code(tmp_path: pathlib.Path):
    """The GPU's build has the report too, and only where it is asked for."""
    source = tmp_path / "bounds.cu"
    source.write_text(
        '#include "moye/moye.h"\n'
        "using namespace moye;\n"
        "__global__ void access(float* p, int m, int k) {\n"
        "  Tensor t = make_tensor(make_gmem_ptr(p), make_shape(Int<4>{}, Int<8>{}));\n"
        "  t(m, k) = t(_, k)(0);\n"
        "}\n"
    )
    found = []
    for flags in ([], [cxx.BOUNDS_CHECK]):
        command = ["nvcc", "-std=c++20", "-O3", "-Werror=all-warnings", "-arch=sm_80", "-ptx", *flags, f"-I{cxx.CUDA}"]
        done = subprocess.run(
            [*command, source, "-o", tmp_path / "bounds.ptx"], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]
        text = (tmp_path / "bounds.ptx").read_text()
        found.append("vprintf" in text and "trap;" in text)
    assert found == [False, True]
