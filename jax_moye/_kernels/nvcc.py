"""A kernel's file, compiled by itself into a library for GPUs, by nvcc. Registers that spill are errors.

Which nvcc, and what ptxas says, is decided by the programs of the package's own build: build_backend/cuda_compiler.py
and tools/nvcc_gate.py of a checkout, which a wheel has in jax_moye/build.
"""

from __future__ import annotations

import collections
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from types import ModuleType

from jax_moye._kernels import cache
from jax_moye._kernels.compiler import (
    COMMON,
    LIBRARY,
    Compiled,
    KernelError,
    Source,
    digest_of,
    find,
    host_compiler,
    keep,
    run,
)

_HOST = [option for option in COMMON if option.startswith("-f")]  # of COMMON, what nvcc hands to the host's compiler
_OPTIONS = ("-std=c++20", "-O3", "-lineinfo", f"-Xcompiler={','.join(_HOST)}")
_PTXAS = "-Xptxas=-v,-warn-spills,-warn-lmem-usage"
_PLACE = re.compile(r'^\s*//## File "(?P<file>[^"]*)", line (?P<line>\d+)')
_SPILL = re.compile(r"\b(?:STL|LDL)\b")


@functools.cache
def program(name: str) -> ModuleType:
    """A program of the package's build, as a module."""
    package = pathlib.Path(__file__).resolve().parents[1]
    folders = [package.parent / "build_backend", package.parent / "tools", package / "build"]
    if spec := importlib.util.find_spec("jax_moye._moye_cpu"):  # of an editable install, not beside this file
        folders.append(pathlib.Path(spec.origin or "").parent / "build")
    path = next(path for folder in folders if (path := folder / f"{name}.py").is_file())
    found = importlib.util.spec_from_file_location(f"_jax_moye_{name}", path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[module.__name__] = module  # dataclasses look their module up
    found.loader.exec_module(module)
    return module


def nvcc() -> tuple[pathlib.Path, str]:
    """The compiler, and its version.

    Raises:
      KernelError: there is none.
    """
    chooser = program("cuda_compiler")
    try:
        chosen = chooser.choose({**os.environ, "JAX_MOYE_CUDA": "ON"})
    except chooser.CudaError as error:
        hint = f"install the CUDA toolkit, set CUDACXX, or pip install {' '.join(chooser.CUDA_WHEELS)}"
        raise KernelError(f"no nvcc to compile the kernel for the GPU: {error}; {hint}") from None
    real = chosen.path.resolve()
    if real.parts[-4:] != ("nvidia", "cu13", "bin", "nvcc"):
        return chosen.path, chosen.version
    # A wheel's nvcc needs its parts laid out as a toolkit's.
    folder = cache.private_folder("kernels")
    name = f"toolkit-{digest_of(str(real), chosen.version)}"
    if not (folder / name).is_dir():
        made = pathlib.Path(tempfile.mkdtemp(dir=folder))
        chooser.make_toolkit(real.parents[1], made / "toolkit")
        cache.put(folder, name, made / "toolkit")
        shutil.rmtree(made, ignore_errors=True)
    return folder / name / "bin/nvcc", chosen.version


def architecture(arch: int, max_arch: int) -> str:
    """What nvcc calls a GPU: "90a" where a kernel uses what is sm_90's alone.

    Args:
      arch: of the GPU, e.g. 90.
      max_arch: of the kernel.
    """
    return f"{arch}a" if max_arch == arch else str(arch)


def compile_cuda(source: Source, archs: Sequence[str], emulated: Compiled) -> Compiled:
    """Compiles a kernel for GPUs, or finds what was compiled before.

    Args:
      source: what.
      archs: "80", "90a", ...
      emulated: what the same file made for the emulator.

    Raises:
      KernelError: there is no compiler, it refuses the kernel, or registers spill.
    """
    compiler, version = nvcc()
    host = host_compiler()
    folder = cache.private_folder("kernels")
    code = [f"--generate-code=arch=compute_{arch},code=[sm_{arch}]" for arch in archs]
    options = [*_OPTIONS, f"-ccbin={shutil.which(host[0])}", *source.options()]
    # The emulator's library is named by all that the kernel includes; its headers choose by __CUDACC__, no more.
    key = digest_of(emulated.library.parent.name, version, options, code)
    if found := find(folder, key, emulated.version):
        return found
    made = pathlib.Path(tempfile.mkdtemp(dir=folder))
    try:
        (made / "kernel.cu").write_text(source.instance())
        command = [str(compiler), *options, *code]
        output = run([*command, _PTXAS, "-c", "kernel.cu", "-o", "kernel.o"], made, source)
        kernels, faults = program("nvcc_gate").read_ptxas(output)
        if faults:
            raise _refused(faults, command, made, source, output)
        run(
            [str(compiler), "-shared", "kernel.o", "-cudart=static", "-Xlinker=--exclude-libs,ALL", "-o", LIBRARY],
            made,
            source,
        )
        registers: dict[str, int] = {}
        for one in kernels:
            registers[one["arch"]] = max(one["registers"], registers.get(one["arch"], 0))
        return keep(folder, key, made, emulated.version, registers, output)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _refused(
    faults: Sequence[str], command: Sequence[str], made: pathlib.Path, source: Source, output: str
) -> KernelError:
    """The error about what ptxas said: at the line that spills most, or at the kernel where nobody can tell."""
    words = "\n".join(dict.fromkeys(re.sub(r"_Z\w+", source.fields.kernel, fault) for fault in faults))
    lines = spilling_lines(command, made, source)
    if lines:
        line, count = lines.most_common(1)[0]
        what = f"{count} of {lines.total()} instructions that spill registers are of this line"
    else:
        text = source.path.read_text().splitlines()
        name = re.compile(rf"\b{source.fields.kernel}_kernel\b")
        line = next((number for number, one in enumerate(text, 1) if name.search(one)), 1)
        what = "registers spill in this kernel, or ptxas has another complaint"
    return KernelError(f"{source.path.name}:{line}: {what}\n{words}", str(source.path), line, output)


def spilling_lines(command: Sequence[str], made: pathlib.Path, source: Source) -> collections.Counter[int]:
    """How many instructions of each line of the kernel's file access local memory; empty without nvdisasm."""
    spec = importlib.util.find_spec("nvidia")  # of the wheels: a namespace package has paths, no file
    wheels = [f"{path}/cu13/bin" for path in (spec.submodule_search_locations or [])] if spec else []
    folders = [str(pathlib.Path(command[0]).parent), os.environ.get("PATH", ""), *wheels]
    disassembler = shutil.which("nvdisasm", path=os.pathsep.join(folders))
    if disassembler is None:
        return collections.Counter()
    *options, code = command  # of one architecture: a cubin has one
    run(
        [
            *(one for one in options if not one.startswith("--generate-code")),
            code,
            "-cubin",
            "kernel.cu",
            "-o",
            "kernel.cubin",
        ],
        made,
        source,
    )
    listing = subprocess.run(
        [disassembler, "-gi", "-c", "kernel.cubin"], cwd=made, capture_output=True, text=True, check=False
    )
    return lines_of_spills(listing.stdout, source.path)


def lines_of_spills(listing: str, path: pathlib.Path) -> collections.Counter[int]:
    """The same of what `nvdisasm -gi` prints: in front of an instruction are its places, the innermost first."""
    found: collections.Counter[int] = collections.Counter()
    place, fresh = None, True
    for text in listing.splitlines():
        if match := _PLACE.match(text):
            place = None if fresh else place
            fresh = False
            if place is None and pathlib.Path(match["file"]) == path:
                place = int(match["line"])
        else:
            fresh = True
            if place is not None and _SPILL.search(text):
                found[place] += 1
    return found
