"""The generated register lists of wgmma, and what ptxas makes of a Hopper GEMM's inner loop."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import check_sass
import generate_wgmma

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def test_the_header_is_the_generated_one():
    assert generate_wgmma.HEADER.read_text() == generate_wgmma.header(), "run tools/generate_wgmma.py"
    run = subprocess.run([sys.executable, ROOT / "tools/generate_wgmma.py", "--check"], check=False)
    assert run.returncode == 0


def compile_loop(tmp_path: pathlib.Path, *flags: str) -> tuple[pathlib.Path, str]:
    """The object and what ptxas said."""
    target = tmp_path / "wgmma_mainloop.cubin"
    command = [
        *("nvcc", "-std=c++20", "-O3", "-cubin", f"-I{ROOT / 'cuda'}", "--generate-code=arch=compute_90a,code=sm_90a"),
        *("-Xptxas", "-v,-warn-spills,-warn-lmem-usage", *flags, HERE / "wgmma_mainloop.cu", "-o", target),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    return target, done.stdout + done.stderr


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_the_loop_is_not_serialized(tmp_path):
    """Nothing waits between the wgmmas of a k-tile, and all accumulators are in registers."""
    target, said = compile_loop(tmp_path)
    assert said.count("0 bytes spill stores") == 2
    assert re.findall(r"\(C75\d\d\)", said) == []
    if reason := check_sass.unavailable():
        pytest.skip(f"{reason}: the messages of ptxas were checked")
    listing = check_sass.disassemble(target)
    opcodes = re.findall(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.a-z]*)", listing)
    text = " ".join(opcodes)
    tiles = re.findall(r"WARPGROUP\.ARRIVE(.*?)WARPGROUP\.DEPBAR", text)
    assert len(tiles) >= 2
    for tile in tiles:
        assert tile.count("HGMMA.64x256x16.F32.BF16") % 4 == 0
    assert not re.search(r"\b(LDL|STL)\b", text)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
def test_a_serialized_loop_is_noticed(tmp_path):
    """Why the first k-tile stands before the loop; when this fails, it need not any more."""
    _, said = compile_loop(tmp_path, "-DMOYE_SERIALIZED")
    assert re.findall(r"\(C75\d\d\)", said)
