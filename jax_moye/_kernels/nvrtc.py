"""One kernel, compiled while a program runs, for one GPU: by NVRTC, which JAX's wheels for CUDA bring, or by nvcc.

NVRTC compiles device code alone, without a compiler of the host and without the standard headers. Of those headers it
gets the few names below, which functions of the host in the kernels' headers mention; it parses those functions and
makes nothing of them. What the module has compiled in launches the kernel.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

from jax_moye._kernels import cache, nvcc
from jax_moye._kernels.compiler import REPORT, KernelError, Source, digest_of, host_compiler, run

_CODE = "kernel.cubin"
_UNIT = """\
{prelude}#include "{file}"

namespace moye {{
inline constexpr GemmConfig kOwnConfig{row};
using OwnGemm = Gemm<kOwnConfig>;
}}  // namespace moye
"""
_KERNEL = "moye::OwnGemm::kernel<moye::Order::{order}>()"
# --prec-div=false: a division is within two units in the last place, as XLA's is, and has no branch.
_LANGUAGE = ("-std=c++20", "--prec-div=false")
# -default-device: what has no annotation is the host's, which NVRTC refuses.
_OPTIONS = (*_LANGUAGE, "-default-device", "--ptxas-options=-v")
_HEADERS = {
    "cstdint": """\
#pragma once
#include "moye/arch/types.h"
#define INT64_MAX 0x7fffffffffffffffll
""",
    "cstring": "",
    "string": """\
#pragma once
namespace std {
struct string {
  string(char const* = "");
  bool empty() const;
};
string operator+(string const&, string const&);
template <class T>
string to_string(T);
}
""",
    "type_traits": """\
#pragma once
namespace std {
template <class T>
struct type_identity {
  using type = T;
};
template <class T>
using type_identity_t = typename type_identity<T>::type;
}
""",
    "utility": "",
}


class _Nvrtc(NamedTuple):
    """The library, and its version."""

    library: ctypes.CDLL
    version: tuple[int, int]


def compile_kernel(source: Source, order: str, arch: str) -> bytes:
    """Compiles a kernel for a GPU, or finds what was compiled before.

    Args:
      source: of a kernel of the package.
      order: of the operands, e.g. "NN": the kernel of which.
      arch: "80", "90a", ...

    Returns:
      The code, a cubin.

    Raises:
      KernelError: there is no compiler, it refuses the kernel, or registers spill.
    """
    path = _place(source, order, arch)
    if path.is_file():
        return path.read_bytes()
    folder, key = path.parents[1], path.parent.name
    text, found = _text(source), nvrtc()
    made = pathlib.Path(tempfile.mkdtemp(dir=folder))
    try:
        if found:
            code, output = _compile(found.library, text, order, arch, source)
            (made / _CODE).write_bytes(code)
        else:
            output = _compile_by_nvcc(str(nvcc.nvcc()[0]), text, order, arch, source, made)
        kernels, faults = nvcc.program("nvcc_gate").read_ptxas(output)
        if faults:
            raise KernelError("; ".join(dict.fromkeys(faults)), str(source.path), None, output)
        registers = {one["arch"]: one["registers"] for one in kernels}
        (made / REPORT).write_text(json.dumps({"registers": registers, "output": output}))
        return (cache.put(folder, key, made) / _CODE).read_bytes()
    finally:
        shutil.rmtree(made, ignore_errors=True)


def is_compiled(source: Source, order: str, arch: str) -> bool:
    """Whether `compile_kernel` finds what was compiled before; its arguments.

    Raises:
      KernelError: there is no compiler.
    """
    return _place(source, order, arch).is_file()


def _text(source: Source) -> str:
    return _UNIT.format(prelude=source.prelude, file=source.path, row=source.row)


def _place(source: Source, order: str, arch: str) -> pathlib.Path:
    """Where the code is, or will be: a name made of all that it is made from."""
    found = nvrtc()
    version = found.version if found else nvcc.nvcc()[1]
    key = digest_of(_text(source), order, arch, version, _OPTIONS, _HEADERS, _headers_digest(source.include))
    return cache.private_folder("kernels") / key / _CODE


@functools.cache
def nvrtc() -> _Nvrtc | None:
    """NVRTC, from the wheels, of the toolkit of $CUDA_HOME, or where the system finds it; None where there is none."""
    for path in _candidates():
        try:
            folder = pathlib.Path(path).parent
            for builtins in folder.glob("libnvrtc-builtins.so.*") if os.path.isabs(path) else ():
                ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)  # it looks for them by name alone
            library = ctypes.CDLL(path)
        except OSError:
            continue
        major, minor = ctypes.c_int(), ctypes.c_int()
        library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        if major.value >= 12:  # C++20
            return _Nvrtc(library, (major.value, minor.value))
    return None


def _candidates() -> Iterator[str]:
    spec = importlib.util.find_spec("nvidia")  # a namespace package has paths, no file
    folders = [pathlib.Path(path) for path in (spec.submodule_search_locations or [])] if spec else []
    for pattern in ("cu13/lib", "cuda_nvrtc/lib"):  # of CUDA 13, of CUDA 12
        for folder in folders:
            yield from sorted(str(path) for path in (folder / pattern).glob("libnvrtc.so.*"))
    homes = [os.environ.get("CUDA_HOME", ""), "/usr/local/cuda"]
    yield from (path for home in homes if home and os.path.isfile(path := f"{home}/lib64/libnvrtc.so"))
    yield from ("libnvrtc.so.13", "libnvrtc.so.12")


@functools.cache
def _headers_digest(include: pathlib.Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(path for path in include.rglob("*") if path.suffix in (".h", ".cuh")):
        digest.update(str(path.relative_to(include)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _compile(library: Any, text: str, order: str, arch: str, source: Source) -> tuple[bytes, str]:
    """The code, and what the compiler said."""

    def call(name: str, *arguments: Any) -> int:
        return getattr(library, name)(*arguments)

    def read(what: str) -> bytes:
        size = ctypes.c_size_t()
        call(f"nvrtcGet{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        call(f"nvrtcGet{what}", program, buffer)
        return buffer.raw

    def strings(values: Any) -> Any:
        encoded = [value.encode() for value in values]
        return (ctypes.c_char_p * len(encoded))(*encoded)

    options = [*_OPTIONS, f"--gpu-architecture=sm_{arch}", f"-I{source.include}"]
    program = ctypes.c_void_p()
    texts, names = strings(_HEADERS.values()), strings(_HEADERS)
    created = call(
        "nvrtcCreateProgram", ctypes.byref(program), text.encode(), b"kernel.cu", len(_HEADERS), texts, names
    )
    if created:
        raise KernelError(f"nvrtcCreateProgram: error {created}")
    try:
        call("nvrtcAddNameExpression", program, _KERNEL.format(order=order).encode())
        failed = call("nvrtcCompileProgram", program, len(options), strings(options))
        output = read("ProgramLog").rstrip(b"\0").decode(errors="replace")
        if failed:
            raise KernelError(f"NVRTC refuses the kernel: error {failed}\n{output}", str(source.path), None, output)
        return read("CUBIN"), output
    finally:
        call("nvrtcDestroyProgram", ctypes.byref(program))


def _compile_by_nvcc(compiler: str, text: str, order: str, arch: str, source: Source, made: pathlib.Path) -> str:
    """What the compiler said; the code is in a file."""
    # The function of the host that names the kernel has it compiled.
    function = f"void const* own_kernel() {{ return (void const*){_KERNEL.format(order=order)}; }}\n"
    (made / "kernel.cu").write_text(text + function)
    command = [compiler, *_LANGUAGE, f"-arch=sm_{arch}", "-Xptxas=-v", f"-ccbin={shutil.which(host_compiler()[0])}"]
    return run([*command, f"-I{source.include}", "-cubin", "kernel.cu", "-o", _CODE], made, source)
