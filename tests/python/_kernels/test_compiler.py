"""What compilers say, as errors with a place; which options they get. What they make: test_own.py."""

from __future__ import annotations

import pathlib
import pickle
import re

import pytest

import jax_moye
from jax_moye._kernels import compiler
from jax_moye._kernels.config_names import parse_row

ROOT = pathlib.Path(__file__).resolve().parents[3]
ROW = "{mine, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"
SOURCE = compiler.Source(pathlib.Path("/home/x/mine.cuh"), parse_row(ROW), pathlib.Path("/include"), is_new=True)

GCC = """\
In file included from kernel.cc:2:
/home/x/mine.cuh: In static member function 'static void run()':
/home/x/mine.cuh:89:18: error: 'tAsX' was not declared in this scope
   89 |       copy(tArA, tAsX);
      |                  ^~~~
/home/x/mine.cuh:95:3: error: expected ';'
"""
DEEP = """\
In file included from /home/x/mine.cuh:6,
                 from kernel.cc:2:
/include/moye/tensor.h: In instantiation of 'auto f()':
/home/x/mine.cuh:40:12:   required from 'struct Gemm'
/include/gemm/entry.h:60:22:   required from 'make_entry'
/include/moye/tensor.h:12:3: error: static assertion failed: the shapes differ
   12 |   static_assert(false);
"""
MISSING = """\
In file included from kernel.cc:2:
/home/x/mine.cuh:3:10: fatal error: moye/nothing.h: No such file or directory
"""
NVCC = """\
/home/x/mine.cuh(89): error: identifier "tAsX" is undefined
        copy(tArA, tAsX);
                   ^

1 error detected in the compilation of "kernel.cu".
"""
NVCC_DEEP = """\
/include/moye/tensor.h(12): error: static assertion failed with "the shapes differ"
          detected during:
            instantiation of "auto f()" at line 40 of /home/x/mine.cuh
"""


@pytest.mark.parametrize(
    ("output", "file", "line", "words"),
    [
        (GCC, "/home/x/mine.cuh", 89, "'tAsX' was not declared"),
        (DEEP, "/home/x/mine.cuh", 40, "the shapes differ"),
        (MISSING, "/home/x/mine.cuh", 3, "moye/nothing.h: No such file"),
        (NVCC, "/home/x/mine.cuh", 89, 'identifier "tAsX" is undefined'),
        (NVCC_DEEP, "/home/x/mine.cuh", 40, "the shapes differ"),
    ],
    ids=["g++", "g++ in a template", "g++ without a header", "nvcc", "nvcc in a template"],
)
def test_the_first_error_has_the_line_of_the_kernel(output, file, line, words):
    error = compiler.to_error(output, "g++", SOURCE)
    assert (error.file, error.line, error.output) == (file, line, output)
    first, *_ = str(error).splitlines()
    assert first.startswith(f"mine.cuh:{line}: ")
    assert words in first


def test_other_errors_are_counted_and_kept():
    assert str(compiler.to_error(GCC, "g++", SOURCE)).endswith("\n(1 more error: `.output` has all)")
    assert "more" not in str(compiler.to_error(NVCC, "nvcc", SOURCE))


def test_an_error_without_a_place():
    error = compiler.to_error("ld: undefined reference to f()\n", "/usr/bin/g++", SOURCE)
    assert (error.file, error.line) == (None, None)
    assert str(error) == "g++ failed on /home/x/mine.cuh:\nld: undefined reference to f()"


def test_a_kernel_error_is_public():
    error = compiler.to_error(GCC, "g++", SOURCE)
    assert type(error) is jax_moye.KernelError
    assert type(error).__module__ == "jax_moye"
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.file, copy.line, copy.output) == (str(error), error.file, error.line, error.output)


def test_the_instance():
    text = SOURCE.instance()
    assert '#include "/home/x/mine.cuh"' in text
    assert "kOwnConfig{Kernel::mine, Dtype::f32, Dtype::f32, {64, 64, 8}, 1, {1, 1}, 4};" in text
    assert SOURCE.options() == ["-DMOYE_OWN_KERNEL=mine", "-I/include", "-I/home/x"]
    assert SOURCE._replace(is_new=False).options() == ["-I/include", "-I/home/x"]


def test_options_are_those_of_the_build():
    """CMakeLists.txt compiles the table's configs for the emulator with the same."""
    text = (ROOT / "CMakeLists.txt").read_text()
    (of_kernels,) = re.findall(r"target_compile_options\(jax_moye_emulated PRIVATE (.*)\)", text)
    assert set(of_kernels.split()) <= {*compiler.EMULATED, *compiler.COMMON}
    (common,) = re.findall(r"INTERFACE ((?:\$<\$<COMPILE_LANGUAGE:CXX>:-W\w+>\s+)+)", text)
    assert set(re.findall(r"-W\w+", common)) <= set(compiler.EMULATED)
    (standard,) = re.findall(r"CMAKE_CXX_STANDARD (\d+)", text)
    assert f"-std=c++{standard}" in compiler.COMMON
    for option, words in [
        ("-fPIC", "CMAKE_POSITION_INDEPENDENT_CODE ON"),
        ("-fvisibility=hidden", "CMAKE_CXX_VISIBILITY_PRESET hidden"),
        ("-fvisibility-inlines-hidden", "CMAKE_VISIBILITY_INLINES_HIDDEN ON"),
    ]:
        assert option in compiler.COMMON
        assert words in text


def test_the_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "env g++ -pipe")
    assert compiler.host_compiler() == ["env", "g++", "-pipe"]
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(jax_moye.KernelError, match="no-such-compiler is not on PATH"):
        compiler.host_compiler()
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(jax_moye.KernelError, match=r"g\+\+ is not on PATH .*apt-get install g\+\+"):
        compiler.host_compiler()
