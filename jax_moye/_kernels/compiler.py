"""A kernel's file, compiled by itself into a library: by a C++ compiler for the emulator, by nvcc for GPUs.

Needs the package's headers and no checkout. A library is kept in the user's cache, in a folder that only the user can
write, under a hash of all that it is made from.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax_moye._kernels import cache
from jax_moye._kernels.config_names import ConfigFields

# Of both compilers. CMakeLists.txt has the same for the configs of the table: a test compares them.
COMMON = ("-std=c++20", "-O1", "-fPIC", "-fvisibility=hidden", "-fvisibility-inlines-hidden")
# The sanitizer's instrumentation without its library: every plain load and store calls the emulator.
EMULATED = ("-g1", "-fsanitize=thread", "-fno-strict-aliasing", "-Wno-psabi", "-Wall", "-Wextra")
LIBRARY, REPORT, FUNCTION = "kernel.so", "report.json", "jax_moye_own_kernel"

_INSTANCE = """\
// Written by jax_moye.
{prelude}#include "{file}"

#include "gemm/entry.h"
#include "gemm/own_kernel.h"

namespace moye {{
extern "C" __attribute__((visibility("default"))) OwnKernel const* {function}() {{
  constexpr GemmConfig kOwnConfig{row};
  static OwnKernel const own = {{kOwnConfig, make_entry<kOwnConfig>()}};
  return &own;
}}
}}  // namespace moye
"""

# g++ "mine.cuh:12:3: error: ..." and nvcc "mine.cuh(12): error: ...", also "catastrophic error" and "fatal error".
_ERROR = re.compile(
    r"^(?P<file>[^\s:(][^:(\n]*)[:(](?P<line>\d+)\)?(?::\d+)?: (?:\w+ )?error(?: #[\w-]+)?: (?P<what>.*)$"
)
_MENTION = re.compile(
    r"^\s*(?:In file included from |from )?(?P<file>[^\s:(][^:(\n]*):(?P<line>\d+)[:,]"
    r"|at line (?P<nvcc_line>\d+) of (?P<nvcc_file>\S.*)$",
    re.MULTILINE,
)
_MARKER = re.compile(r'^# \d+ "(?P<file>.*)"(?P<flags>[ 0-9]*)$', re.MULTILINE)
_SHOWN = 12  # lines of a compiler's first error


class KernelError(RuntimeError):
    """A kernel of your own does not compile, or its registers spill.

    Attributes:
      file: where; None where no place is named.
      line: in it, from 1 on.
      output: all that the compiler said.
    """

    def __init__(self, message: str, file: str | None = None, line: int | None = None, output: str = "") -> None:
        """Keeps the place and the output."""
        super().__init__(message)
        self.file, self.line, self.output = file, line, output


KernelError.__module__ = "jax_moye"  # where a user finds it


class Source(NamedTuple):
    """A kernel's file, and one config of it.

    Attributes:
      path: of the file.
      fields: of the config.
      include: the folder of the package's headers.
      is_new: whether no kernel of the package has this name.
      prelude: what stands in front of the file.
    """

    path: pathlib.Path
    fields: ConfigFields
    include: pathlib.Path
    is_new: bool
    prelude: str = ""

    def options(self) -> list[str]:
        """That make the name known, and find the headers."""
        name = [f"-DMOYE_OWN_KERNEL={self.fields.kernel}"] if self.is_new else []
        return [*name, f"-I{self.include}", f"-I{self.path.parent}"]

    @property
    def row(self) -> str:
        """The config, as C++ initializes one."""
        kernel, dtype, sums, (m, n, k), stages, cluster, alignment = self.fields
        row = f"{{Kernel::{kernel}, Dtype::{dtype}, Dtype::{sums}, {{{m}, {n}, {k}}}, {stages}"
        return row + f", {{{cluster[0]}, {cluster[1]}}}, {alignment}}}"

    def instance(self) -> str:
        """The translation unit: the file, and the config made from it."""
        return _INSTANCE.format(prelude=self.prelude, file=self.path, function=FUNCTION, row=self.row)


class Compiled(NamedTuple):
    """A library.

    Attributes:
      library: the file.
      version: of the kernel's source: 8 hexadecimal digits.
      registers: per thread by architecture; empty of the emulator's.
    """

    library: pathlib.Path
    version: str
    registers: dict[str, int]


def function_address(library: pathlib.Path) -> int:
    """Loads a library for good. Returns the address of its function."""
    function = getattr(ctypes.CDLL(str(library)), FUNCTION)
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def run(command: Sequence[str], folder: pathlib.Path, source: Source) -> str:
    """Runs a compiler. Returns what it said on stdout, and then on stderr.

    Raises:
      KernelError: it failed; with the first error's place and lines.
    """
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        raise to_error(done.stderr + done.stdout, command[0], source)
    return done.stdout + done.stderr


def to_error(output: str, compiler: str, source: Source) -> KernelError:
    """The error that a compiler's output is about: its first one, at the line of the kernel's file if one is named."""
    lines = output.splitlines()
    found = next(((i, match) for i, line in enumerate(lines) if (match := _ERROR.match(line))), None)
    if found is None:
        return KernelError(f"{pathlib.Path(compiler).name} failed on {source.path}:\n{output.strip()}", output=output)
    first, match = found
    last = next((i for i in range(first + 1, len(lines)) if _ERROR.match(lines[i])), len(lines))
    file, line = match["file"], int(match["line"])
    if not _is_same(file, source.path):
        # "required from here" stands before g++'s error and behind nvcc's.
        around = "\n".join([*lines[:first][::-1], *lines[first:last]])
        for mention in _MENTION.finditer(around):
            if _is_same(mention["file"] or mention["nvcc_file"], source.path):
                file, line = str(source.path), int(mention["line"] or mention["nvcc_line"])
                break
    shown = "\n".join(lines[first : min(last, first + _SHOWN)])
    others = sum(_ERROR.match(text) is not None for text in lines) - 1
    more = f"\n({others} more {'error' if others == 1 else 'errors'}: `.output` has all)" if others else ""
    place = f"{pathlib.Path(file).name}:{line}"
    message = f"{place}: {match['what']}\n{shown}{more}"
    return KernelError(message, os.path.abspath(file) if os.path.isabs(file) else file, line, output)


def _is_same(name: str, path: pathlib.Path) -> bool:
    return pathlib.Path(name) == path


def _version_of(compiler: str) -> str:
    done = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False)
    return done.stdout


def host_compiler() -> list[str]:
    """$CXX, which may have options, or g++.

    Raises:
      KernelError: there is none.
    """
    command = shlex.split(os.environ.get("CXX", "")) or ["g++"]
    if shutil.which(command[0]) is None:
        raise KernelError(f"no C++ compiler: {command[0]} is not on PATH (on Debian and Ubuntu: apt-get install g++)")
    return command


def preprocessed(source: Source, compiler: Sequence[str], folder: pathlib.Path) -> tuple[str, str]:
    """What the compiler reads, and the version of what the user wrote of it.

    The version is the same on every machine: a hash of the texts of the user's files, not of their places.

    Raises:
      KernelError: a file that is included is not there.
    """
    command = [*compiler, *COMMON, *EMULATED, *source.options(), "-E", "-fno-working-directory", "kernel.cc"]
    text = run(command, folder, source)
    digest = hashlib.sha256(source.path.read_bytes())
    seen = {source.path}
    for marker in _MARKER.finditer(text):
        path = pathlib.Path(marker["file"])
        is_users = path.is_absolute() and source.include not in path.parents and "3" not in marker["flags"].split()
        if path in seen or not is_users or not path.is_file():
            continue
        seen.add(path)
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return text, digest.hexdigest()[:8]


def compile_emulated(source: Source, emulator: str) -> Compiled:
    """Compiles a kernel for the emulator, or finds what was compiled before.

    Args:
      source: what.
      emulator: the extension module that has the emulator.

    Raises:
      KernelError: there is no compiler, or it refuses the kernel.
    """
    compiler = host_compiler()
    folder = cache.private_folder("kernels")
    made = pathlib.Path(tempfile.mkdtemp(dir=folder))
    try:
        (made / "kernel.cc").write_text(source.instance())
        text, version = preprocessed(source, compiler, made)
        options = [*COMMON, *EMULATED, *source.options(), f"-ffile-prefix-map={source.path.parent}/="]
        key = digest_of(text, options, _version_of(compiler[0]), emulator, _stamp(emulator))
        if found := find(folder, key, version):
            return found
        output = run([*compiler, *options, "-c", "kernel.cc", "-o", "kernel.o"], made, source)
        # The emulator's functions are the module's, which is loaded already: nothing else may be missing.
        run([*compiler, "-shared", "kernel.o", emulator, "-Wl,-z,defs", "-lm", "-o", LIBRARY], made, source)
        return keep(folder, key, made, version, {}, output)
    finally:
        shutil.rmtree(made, ignore_errors=True)


def digest_of(*parts: Any) -> str:
    """A hash of texts."""
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _stamp(path: str) -> list[int]:
    """Changes when a file does."""
    found = os.stat(path)
    return [found.st_size, found.st_mtime_ns]


def find(folder: pathlib.Path, key: str, version: str) -> Compiled | None:
    """What the cache has under a key."""
    library, report = folder / key / LIBRARY, folder / key / REPORT
    if not library.is_file() or not report.is_file():
        return None
    return Compiled(library, version, json.loads(report.read_text())["registers"])


def keep(
    folder: pathlib.Path, key: str, made: pathlib.Path, version: str, registers: dict[str, int], output: str
) -> Compiled:
    """Puts what was made into the cache."""
    (made / REPORT).write_text(json.dumps({"registers": registers, "output": output}))
    for left in made.glob("*.o"):
        left.unlink()
    return Compiled(cache.put(folder, key, made) / LIBRARY, version, registers)
