"""Compiles C++ test programs with the host compiler, kernels among them for the emulator.

Results lie in build/tests, named by a hash of everything they were made of, so an unchanged program is compiled once
for all test runs. Several pytest-xdist workers may ask for the same one at the same time.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import pathlib
import shlex
import subprocess
from collections.abc import Iterable, Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
CUDA = ROOT / "cuda"
CACHE = ROOT / "build" / "tests"

BASE_FLAGS = ("-std=c++20", "-O1", "-g1", "-fPIC", "-Wall", "-Wextra", "-pthread")
# As in CMakeLists.txt: the sanitizer's instrumentation, whose calls cuda/moye/emu/hooks.cc receives.
# Kernels read and write the same bytes as elements and as the words of instructions.
KERNEL_FLAGS = ("-fsanitize=thread", "-fno-strict-aliasing")
EMULATOR_FLAGS = ("-O3",)
BOUNDS_CHECK = "-DMOYE_BOUNDS_CHECK=1"  # a report of each coordinate outside of its tensor's shape
HEADERS = (".h", ".cuh", ".inc")


class CompileError(Exception):
    """The compiler or the linker failed; the text is its output."""


def compiler() -> list[str]:
    """The command of the C++ compiler: $CXX, or g++."""
    return shlex.split(os.environ.get("CXX", "g++"))


def build(
    name: str,
    sources: Iterable[os.PathLike | str] = (),
    flags: Sequence[str] = (),
    kernel_sources: Iterable[os.PathLike | str] = (),
    *,
    kernel_flags: Sequence[str] = (),
    emulator_flags: Sequence[str] = (),
) -> pathlib.Path:
    """Builds an executable from C++ sources and the emulator, or finds the one built before.

    Args:
      name: the program's name; programs of different content may share it.
      sources: host code.
      flags: further compiler flags for `sources` and `kernel_sources`. Headers in the folders that `-I` names count as
        content; their place does not.
      kernel_sources: files with kernels; their loads and stores are instrumented. A `.cu` file is read as C++.
      kernel_flags: further flags for `kernel_sources` alone.
      emulator_flags: further flags for the emulator itself, `-DMOYE_EMU_UCONTEXT` for example.

    Returns:
      The executable's path.

    Raises:
      CompileError: with the compiler's output.
    """
    objects = [_object(source, flags) for source in sources]
    objects += [_object(source, (*flags, *kernel_flags, *KERNEL_FLAGS)) for source in kernel_sources]
    objects.append(emulator(emulator_flags))
    key = _digest(object.name for object in objects)
    link = [*compiler(), *map(str, objects), "-pthread", "-ldl"]
    return _cached(f"{name}-{key}", lambda out: [*link, "-o", str(out)])


def emulator(flags: Sequence[str] = ()) -> pathlib.Path:
    """The emulator, cuda/moye/emu/*.cc, as a static library; without flags, of the build's objects if they are new."""
    sources = sorted((CUDA / "moye/emu").glob("*.cc"))
    objects = [] if flags else [object for object in map(built_object, sources) if object]
    if len(objects) == len(sources):
        key = _digest(object.read_bytes() for object in objects)
    else:
        flags, folders = (*EMULATOR_FLAGS, *flags), ("arch", "emu")
        flags += tuple(precompiled(("moye/emu/machine.h",), flags, folders))  # which nearly all include
        objects = [_object(source, flags, folders) for source in sources]
        key = _digest(object.name for object in objects)
    return _cached(f"libmoye_emu-{key}.a", lambda out: ["ar", "rcs", str(out), *map(str, objects)])


def built_object(source: pathlib.Path) -> pathlib.Path | None:
    """What a build of the extension modules in this checkout made of a file of the emulator after its last change."""
    path = f"CMakeFiles/jax_moye_emulator.dir/{source.relative_to(ROOT)}.o"
    changed = max(file.stat().st_mtime for file in (CUDA / "moye").rglob("*") if file.is_file())
    found = [object for object in (ROOT / "build").glob(f"*/{path}") if object.stat().st_mtime > changed]
    return max(found, key=lambda object: object.stat().st_mtime, default=None)


def precompiled(headers: Sequence[str], flags: Sequence[str], folders: Sequence[str] = ()) -> list[str]:
    """Flags that put headers of cuda/ before a file that is compiled with `flags`, and a quarter of its time is saved.

    They have been read already. A compiler that cannot use that reads them again. folders: of cuda/moye, if they
    include headers of no other.
    """
    content = [*compiler(), *BASE_FLAGS, *flags, *headers, *_headers(CUDA, folders), str(CUDA)]
    folder = CACHE / f"headers-{_digest(content)}"
    folder.mkdir(parents=True, exist_ok=True)
    header = folder / "all.h"
    command = [*compiler(), *BASE_FLAGS, *flags, f"-I{CUDA}", "-x", "c++-header", str(header)]

    def make(out: pathlib.Path) -> list[str]:
        header.write_text("".join(f'#include "{name}"\n' for name in headers))
        return [*command, "-o", str(out)]

    _cached(f"{folder.name}/all.h.gch", make)
    return ["-include", str(header)]


def compile_only(source: os.PathLike | str, flags: Sequence[str] = ()) -> pathlib.Path:
    """Compiles one file to an object; for tests of what must not compile, which expect CompileError."""
    return _object(source, flags)


def _object(source: os.PathLike | str, flags: Sequence[str], folders: Sequence[str] = ()) -> pathlib.Path:
    source = pathlib.Path(source).resolve()
    # The caller's folders come first: a test may put its own version of a header before ours.
    include = [*_folders(flags), source.parent, CUDA]
    content = [source.read_bytes()]
    content += [flag for flag in (*compiler(), *BASE_FLAGS, *flags) if not flag.startswith("-I")]
    for folder in include:
        content += _headers(folder, folders if folder == CUDA else ())
    command = [*compiler(), *BASE_FLAGS, *flags, f"-I{source.parent}", f"-I{CUDA}", "-c", "-x", "c++", str(source)]
    return _cached(f"{source.stem}-{_digest(content)}.o", lambda out: [*command, "-o", str(out)])


def _folders(flags: Sequence[str]) -> list[pathlib.Path]:
    return [pathlib.Path(flag[2:]).resolve() for flag in flags if flag.startswith("-I")]


def _headers(folder: pathlib.Path, moye_folders: Sequence[str]) -> list[bytes | str]:
    """Names and contents of the headers below `folder`; of cuda/moye, only below the named folders if any are."""
    roots = [folder / "moye" / sub for sub in moye_folders] or [folder]
    content: list[bytes | str] = []
    for root in roots:
        for path in sorted(path for path in root.rglob("*") if path.suffix in HEADERS):
            content += [str(path.relative_to(folder)), path.read_bytes()]
    return content


def _digest(parts: Iterable[bytes | str]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:20]


def _cached(file: str, command) -> pathlib.Path:
    """The file of that name in the cache, made by `command(path)` if it is not there."""
    path = CACHE / file
    if path.exists():
        return path
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{file}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():  # another process made it while this one waited
            return path
        unfinished = CACHE / f"{file}.{os.getpid()}.tmp"
        done = subprocess.run(command(unfinished), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            unfinished.unlink(missing_ok=True)
            raise CompileError(done.stdout + done.stderr)
        unfinished.rename(path)
    (CACHE / f"{file}.lock").unlink(missing_ok=True)
    return path
