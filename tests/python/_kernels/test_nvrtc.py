"""Kernels with functions, compiled for a GPU as far as a machine without one can tell: by NVRTC and nvcc."""

from __future__ import annotations

import json
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import pytest

import jax_moye
from jax_moye._kernels import cache, nvcc, nvrtc, own_epilogue
from jax_moye._kernels.configs import find_config
from jax_moye._primitives.elementwise import translate

sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "tools"))
import check_sass

SM80 = "sm80_multistage_bf16_64x64x64_s3_a16"
SM90 = "sm90_cooperative_bf16_128x128x64_s5_a16"
PINGPONG = "sm90_pingpong_bf16_128x128x64_s5_a16"
SOFTCAP = "  return 30.0f * ::tanhf(x / 30.0f);\n"


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "cache"))


def has_nvcc():
    try:
        nvcc.nvcc()
    except jax_moye.KernelError:
        return False
    return True


@pytest.fixture(
    params=[
        pytest.param("nvrtc", marks=pytest.mark.skipif(nvrtc.nvrtc() is None, reason="needs NVRTC")),
        pytest.param("nvcc", marks=pytest.mark.skipif(not has_nvcc(), reason="needs nvcc")),
    ]
)
def compiler(request, monkeypatch):
    if request.param == "nvcc":
        monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)
    return request.param


def source(body, config=SM80):
    return own_epilogue._source(own_epilogue._Kernel(find_config(config), body, "NN", "cuda", 90))


@pytest.mark.parametrize(("config", "order", "arch"), [(SM80, "TN", "80"), (SM90, "NN", "90a")])
def test_one_kernel_of_the_name_that_is_launched(compiler, config, order, arch, tmp_path):
    """CUDA finds it by the name of the kernel that is compiled in: that of the table's config, and of the order."""
    code = nvrtc.compile_kernel(source(SOFTCAP, config), order, arch)
    fields = find_config(config)
    kernel = f"_ZN4moye{len(fields.kernel) + 7}{fields.kernel}_kernelINS_4GemmIXtlNS_10GemmConfigE".encode()
    assert kernel in code
    of_order = f"LNS_5OrderE{['NN', 'NT', 'TN', 'TT'].index(order)}E"
    all_others = "(LNS_9FinishingE4E|LNS_6StoresE7E)?"  # any finishing, other ways
    assert re.search(f"{of_order}{all_others}EEvNS_8GemmArgsE".encode(), code)
    (report,) = (tmp_path / "cache/kernels").glob("*/report.json")
    registers = json.loads(report.read_text())["registers"]
    assert registers.keys() == {f"sm_{arch}"}
    assert 32 < registers[f"sm_{arch}"] <= 255


@pytest.mark.skipif(check_sass.unavailable() is not None, reason=str(check_sass.unavailable()))
@pytest.mark.parametrize("body", ["x * jax.nn.sigmoid(1.702 * x)", "1 / (1 + jnp.exp(-x))"])
def test_functions_of_several_elements_are_interleaved(compiler, body, tmp_path):
    """A branch or a call in one of them, such as of an exact division, would keep each waiting for the one before."""
    text = translate(eval(f"lambda x: {body}", {"jax": jax, "jnp": jnp}), (8, 128), jnp.float32)
    (tmp_path / "kernel.cubin").write_bytes(nvrtc.compile_kernel(source(text, PINGPONG), "NN", "90a"))
    dump = check_sass.disassemble(tmp_path / "kernel.cubin")
    assert "CALL" not in dump
    order = "".join(name[0] for name in re.findall(r"MUFU\.(EX2|RCP)", dump))
    assert "EEEE" in order, order


def test_found_again(compiler, monkeypatch):
    assert not nvrtc.is_compiled(source(SOFTCAP), "NN", "90")
    code = nvrtc.compile_kernel(source(SOFTCAP), "NN", "90")
    assert nvrtc.is_compiled(source(SOFTCAP), "NN", "90")
    monkeypatch.setattr(nvrtc, "_compile", None)
    monkeypatch.setattr(nvrtc, "_compile_by_nvcc", None)
    assert nvrtc.compile_kernel(source(SOFTCAP), "NN", "90") == code
    for other in ((source(SOFTCAP), "NT", "90"), (source(SOFTCAP), "NN", "80"), (source("  return x;\n"), "NN", "90")):
        with pytest.raises(TypeError):  # compiled anew
            nvrtc.compile_kernel(*other)


def test_a_stack_frame_is_refused(compiler):
    """As in the build: tan() of large arguments has one."""
    with pytest.raises(jax_moye.KernelError, match=r"\d+ bytes stack frame"):
        nvrtc.compile_kernel(source("  return ::tanf(x);\n"), "NN", "90")


def test_what_is_refused_is_told(compiler):
    with pytest.raises(jax_moye.KernelError) as error:
        nvrtc.compile_kernel(source("  return y;\n"), "NN", "90")
    assert 'identifier "y" is undefined' in error.value.output


def test_without_a_compiler(monkeypatch):
    monkeypatch.setattr(nvrtc, "nvrtc", lambda: None)

    def none():
        raise jax_moye.KernelError("no nvcc to compile the kernel for the GPU: none")

    monkeypatch.setattr(nvcc, "nvcc", none)
    with pytest.raises(jax_moye.KernelError, match="no nvcc"):
        nvrtc.compile_kernel(source(SOFTCAP), "NN", "90")


def test_another_header_is_another_kernel(tmp_path):
    """What was compiled with the headers of another version is not found."""
    (tmp_path / "gemm").mkdir()
    (tmp_path / "gemm/a.h").write_text("// one\n")
    first = nvrtc._headers_digest(tmp_path)
    nvrtc._headers_digest.cache_clear()
    (tmp_path / "gemm/a.h").write_text("// two\n")
    assert nvrtc._headers_digest(tmp_path) != first
    assert cache.private_folder("kernels").stat().st_mode & 0o777 == 0o700


def test_headers_parse_without_the_standard_ones():
    """What NVRTC gets in their place names nothing that it need not: each of them is included somewhere."""
    include = pathlib.Path(jax_moye.include_dir())
    texts = [path.read_text() for path in include.rglob("*.h")]
    for name in nvrtc._HEADERS:
        assert any(f"#include <{name}>" in text for text in texts), name
