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


OPS = HERE.parent / "emulator"  # mma_ops.inc


@pytest.mark.parametrize("which", ("KERNELS", "ATOM_KERNELS"))
def test_emulated(which: str):
    flags = ["-O1", f"-I{HERE}", f"-I{OPS}", f"-DMOYE_{which}", cxx.BOUNDS_CHECK]
    program = cxx.build("kernels", flags=flags, kernel_sources=[HERE / "kernels.cc"])
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize(("which", "arch"), [("FEW_KERNELS", 80), ("ATOM_KERNELS", 90)])
def test_no_local_memory(which: str, arch: int, tmp_path: pathlib.Path):
    """Fragments are registers: no kernel has a stack frame."""
    command = [
        "nvcc",
        "-std=c++20",
        f"-DMOYE_{which}",
        "-gencode",
        f"arch=compute_{arch},code=sm_{arch}",
        "-Xptxas",
        "-v",
        f"-I{cxx.CUDA}",
        f"-I{OPS}",
    ]
    done = subprocess.run(
        [*command, "-cubin", str(HERE / "kernels_gpu.cu"), "-o", str(tmp_path / "kernels.cubin")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    frames = [line for line in done.stderr.splitlines() if "bytes stack frame" in line]
    assert len(frames) > 10
    assert not [line for line in frames if "0 bytes stack frame, 0 bytes spill stores" not in line]


TOO_OLD = """
#include "moye/arch/mma_sm89.h"
#include "atom_kernels.h"
using namespace moye;
using Op = SM89_16x8x32_F32E4M3E4M3F32_TN;
#if defined(WITHOUT_ATOM)
MOYE_KERNEL(32) kernel(uint32_t const* in, float* out) {
  float d[4];
  Op::fma(d[0], d[1], d[2], d[3], in[0], in[1], in[2], in[3], in[4], in[5], 0.0f, 0.0f, 0.0f, 0.0f);
  out[thread_idx().x] = d[0] + d[1] + d[2] + d[3];
}
#else
void* kernel() { return reinterpret_cast<void*>(tile_kernel<AtomKernel<Op>>); }
#endif
"""


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc")
@pytest.mark.parametrize("flag", ("-DWITH_ATOM", "-DWITHOUT_ATOM"))
def test_too_old_an_architecture(flag: str, tmp_path: pathlib.Path):
    """An op of sm_89 does not compile for sm_80, by our sentence or by ptxas's; for sm_89 it does."""
    (tmp_path / "old.cu").write_text(TOO_OLD)
    for arch, fine in ((80, False), (89, True)):
        command = ["nvcc", "-std=c++20", flag, "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-cubin"]
        includes = [f"-I{folder}" for folder in (cxx.CUDA, HERE, OPS)]
        done = subprocess.run(
            [*command, *includes, str(tmp_path / "old.cu"), "-o", str(tmp_path / "old.cubin")],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == fine, done.stderr[-4000:]
        if not fine:
            ours = "mma: the architecture this kernel is compiled for does not have the instruction"
            assert ("sm_89" if flag == "-DWITHOUT_ATOM" else ours) in done.stderr
