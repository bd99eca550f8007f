"""A kernel of one's own for GPUs, as far as a machine without one can tell: it compiles, its registers, its spills."""

from __future__ import annotations

import pathlib
import re

import pytest

import jax_moye
from jax_moye._kernels import nvcc

PAGE = (pathlib.Path(__file__).resolve().parents[3] / "docs/own_kernel.md").read_text()
TEXT = re.search(r"<!-- file: mine.cuh -->\n```cpp\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[1]
ROW = "{mine, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"

LISTING = """
	//## File "/home/x/mine.cuh", line 12
        /*0000*/                   STL [R1], R2 ;
	//## File "/include/moye/tensor.h", line 25 inlined at "/home/x/mine.cuh", line 45
	//## File "/home/x/mine.cuh", line 45 inlined at "/home/x/mine.cuh", line 13
	//## File "/home/x/mine.cuh", line 13
        /*0010*/                   STL.64 [R1+0x8], R14 ;
        /*0020*/                   LDL R4, [R1+0x8] ;
        /*0030*/                   STG.E [R2.64], R14 ;
	//## File "/include/moye/tensor.h", line 26
        /*0040*/                   LDL.LU R4, [R1] ;
	//## File "/home/x/mine.cuh", line 45
        /*0050*/                   FFMA R4, R1, R2, R3 ;
"""


def has_nvcc():
    try:
        nvcc.nvcc()
    except jax_moye.KernelError:
        return False
    return True


needs_nvcc = pytest.mark.skipif(not has_nvcc(), reason="needs nvcc")


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "mine.cuh"
    path.write_text(TEXT)
    return path


def test_lines_of_spills():
    """The innermost line of the kernel's file; what stands in no line of it is not counted."""
    assert nvcc.lines_of_spills(LISTING, pathlib.Path("/home/x/mine.cuh")) == {12: 1, 45: 2}
    assert nvcc.lines_of_spills(LISTING, pathlib.Path("/home/x/yours.cuh")) == {}


@pytest.mark.parametrize(("arch", "max_arch", "name"), [(90, 0, "90"), (90, 90, "90a"), (86, 0, "86"), (120, 0, "120")])
def test_the_architecture(arch, max_arch, name):
    assert nvcc.architecture(arch, max_arch) == name


def test_without_nvcc_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setenv("CUDACXX", "/no/such/nvcc")
    with pytest.raises(
        jax_moye.KernelError, match=r"no nvcc .*CUDACXX=/no/such/nvcc .* pip install .*nvidia-cuda-nvcc==[\d.]+ "
    ):
        nvcc.nvcc()


@needs_nvcc
def test_registers_and_spills(mine, monkeypatch):
    """Two compilations: 64 x 64 fits, and of 256 x 256 each thread would sum 256 elements."""
    config = jax_moye.kernel(mine, config=ROW, arch=90)
    assert config.name.startswith("mine_f32_64x64x8_s1_a4_h")
    assert config.registers.keys() == {"sm_90"}
    assert 32 < config.registers["sm_90"] < 255
    with monkeypatch.context() as patch:
        patch.setattr(nvcc, "run", None)  # the library is found again
        assert jax_moye.kernel(mine, config=ROW, arch=90).registers == config.registers
    with pytest.raises(jax_moye.KernelError, match=r"^mine.cuh:\d+: .*spill") as error:
        jax_moye.kernel(mine, config=ROW.replace("{64, 64, 8}", "{256, 256, 8}"), arch=90)
    lines = TEXT.splitlines()
    # The line of the FMAs with nvdisasm, else that of the kernel.
    assert any(words in lines[error.value.line - 1] for words in ("gemm(", "copy(", "mine_kernel", "store_from"))
    assert "bytes spill stores" in str(error.value)


def test_an_architecture_that_the_kernel_does_not_run_on(mine):
    with pytest.raises(ValueError, match=r"min_arch = 80, .* and arch is 70"):
        jax_moye.kernel(mine, config=ROW, arch=70)
