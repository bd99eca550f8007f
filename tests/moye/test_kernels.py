"""One small kernel per instruction in the emulator, and the same source compiled for the GPU where there is nvcc."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import cxx

HERE = pathlib.Path(__file__).parent


def test_emulated():
    flags = ["-O1", f"-I{HERE}"]
    program = cxx.build("kernels", flags=flags, kernel_sources=[HERE / "kernels.cc"])
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
def test_no_local_memory(tmp_path: pathlib.Path):
    """Fragments are registers: no kernel has a stack frame."""
    command = [
        "nvcc",
        "-std=c++20",
        "-DMOYE_FEW_KERNELS",
        "-gencode",
        "arch=compute_80,code=sm_80",
        "-Xptxas",
        "-v",
        f"-I{cxx.CUDA}",
    ]
    done = subprocess.run(
        [*command, "-c", str(HERE / "kernels_gpu.cu"), "-o", str(tmp_path / "kernels.o")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    frames = [line for line in done.stderr.splitlines() if "bytes stack frame" in line]
    assert len(frames) > 10
    assert not [line for line in frames if "0 bytes stack frame, 0 bytes spill stores" not in line]
