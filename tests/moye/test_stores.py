"""A vector store in a kernel is one instruction of the full width: nvcc takes structs apart (docs/performance.md)."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "tools"))
import check_sass
import cxx

SOURCE = pathlib.Path(__file__).with_name("stores_gpu.cu")
STORE = re.compile(r"\s(ST[GS][.\w]*)\s")
WIDTH = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}
ELEMENTS = {"10bfloat16_t": 2, "6half_t": 2, "d": 8, "f": 4}  # bytes, by mangled name

pytestmark = pytest.mark.skipif(
    shutil.which("nvcc") is None or check_sass.unavailable() is not None,
    reason=check_sass.unavailable() or "no nvcc",
)


def stores(binary: pathlib.Path) -> dict[str, list[tuple[str, int]]]:
    """{mangled kernel: [(STG or STS, bytes) of each store]}"""
    found: dict[str, list[tuple[str, int]]] = {}
    current: list[tuple[str, int]] = []
    for line in check_sass.disassemble(binary).splitlines():
        if match := re.search(r"Function : (\S+)", line):
            current = found.setdefault(match[1], [])
        elif match := STORE.search(line):
            opcode, *modifiers = match[1].split(".")
            current.append((opcode, next((WIDTH[m] for m in modifiers if m in WIDTH), 4)))
    return found


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_one_store_of_the_full_width(tmp_path: pathlib.Path, arch: str):
    binary = tmp_path / "stores.cubin"
    command = ["nvcc", "-std=c++20", "-O3", "-Werror=all-warnings", f"-arch={arch}", "-cubin", f"-I{cxx.CUDA}"]
    done = subprocess.run([*command, SOURCE, "-o", binary], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = stores(binary)
    checked = 0
    for kernel, all_stores in found.items():
        match = re.search(r"\d(to_global|to_global_by_atom|to_shared)ILi(\d+)E", kernel)
        if match is None:
            continue
        opcode = "STS" if match[1] == "to_shared" else "STG"
        widths = [bytes for name, bytes in all_stores if name == opcode]
        assert set(widths) == {int(match[2])}, (kernel, all_stores)
        # 64 threads bring 512 elements to shared memory.
        element = next(size for name, size in ELEMENTS.items() if f"E{name}" in kernel or f"_{name}" in kernel)
        assert sum(widths) == (8 * element if opcode == "STS" else int(match[2])), (kernel, all_stores)
        checked += 1
    assert checked == 27
    (control,) = (s for kernel, s in found.items() if "control" in kernel)
    assert control == [("STG", 4), ("STG", 4)]  # or there would be nothing to check
