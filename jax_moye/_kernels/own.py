"""`jax_moye.kernel`: a kernel's file that is not in the package, compiled and added to what `config=` takes."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import pathlib

from jax_moye import _compat
from jax_moye._kernels import compiler, ffi, nvcc
from jax_moye._kernels.config_names import parse_row
from jax_moye._kernels.configs import GemmConfig, add_config

_HEADER = "gemm/own_kernel.h"  # by which the folder is known
_EXAMPLE = "{mine, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}"
_LOADS = (1, 2, 4, 8, 16)  # bytes


def include_dir() -> str:
    """The folder of the C++ headers: `moye/` for kernels, and `gemm/`, the kernels of the package.

    Example:
      >>> import os
      >>> import jax_moye
      >>> os.path.exists(os.path.join(jax_moye.include_dir(), "gemm", "simt_tiled.cuh"))
      True
    """
    package = pathlib.Path(__file__).resolve().parents[1]
    # A checkout's are those that the next build compiles; an editable install has a copy beside the compiled modules.
    for folder in (package.parent / "cuda", package / "include", pathlib.Path(emulator()).parent / "include"):
        if (folder / _HEADER).is_file():
            return str(folder)
    raise FileNotFoundError(f"the headers of jax_moye are neither in {package.parent / 'cuda'} nor in {package}")


def kernel(file: str | os.PathLike[str], config: str, *, arch: int | None = None) -> GemmConfig:
    """Compiles a kernel of your own, and returns the config that `config=` takes.

    The file specializes `moye::Gemm` for the kernel of its name, as docs/own_kernel.md shows. A C++ compiler makes it
    for the emulator: $CXX, or g++. Where JAX sees a GPU, nvcc makes it for that one, too. What was compiled once is
    found in the user's cache. A changed file makes another config, with another name, so that no compiled program
    confuses the two.

    The file is code that runs in this process: compile what you trust.

    Args:
      file: "mine.cuh". What is known of a kernel of the package is believed of a file that has its name.
      config: the row that cuda/gemm/configs.h would have: "{mine, f32, f32, {64, 64, 8}, 1, {1, 1}, 4}", which is
        {kernel, dtype, sums, {m, n, k}, stages, {cluster m, n}, alignment}.
      arch: compile for this GPU, too, e.g. 90, whether or not it is here: `GemmConfig.registers` are then known, and
        spills are errors. None: for the GPUs that are here.

    Returns:
      A `GemmConfig`. It is in no table: only who names it gets it.

    Raises:
      KernelError: there is no compiler, or it refuses the file: the message begins with file and line. Likewise where
        registers spill on a GPU.
      FileNotFoundError: there is no such file.
      TypeError: file is no path, config no text, or arch no int.
      ValueError: config is no such row, or its kernel is not the file's; arch is none that the file is for.
    """
    if not isinstance(file, (str, os.PathLike)):
        raise TypeError(f"kernel: file is a path such as 'mine.cuh', not {file!r}")
    if not isinstance(config, str):
        raise TypeError(f"kernel: config is a row such as '{_EXAMPLE}', not {config!r}")
    if arch is not None and (isinstance(arch, bool) or not isinstance(arch, int)):
        raise TypeError(f"kernel: arch is an int such as 90, not {arch!r}")
    path = pathlib.Path(file).resolve(strict=True)
    fields = parse_row(config)
    if min(*fields.tile, *fields.cluster, fields.stages) < 1 or fields.alignment not in _LOADS:
        raise ValueError(
            f"kernel: config is {config!r}: tile, stages and cluster are 1 or more, and the alignment is 1, 2, 4, 8 or "
            "16 bytes"
        )
    if fields.kernel != path.stem:
        raise ValueError(f"kernel: config is of a kernel {fields.kernel!r}, and the file is {path.name}")
    if '"' in str(path) or "\n" in str(path):
        raise ValueError(f"kernel: no C++ compiler includes a file whose path is {str(path)!r}")
    include = pathlib.Path(include_dir())
    module = ffi.extension("cpu")
    assert module is not None
    check_headers(include, module.own_kernel_headers)
    is_new = not (include / "gemm" / path.name).is_file()
    source = compiler.Source(path, fields, include, is_new)
    emulated = compiler.compile_emulated(source, emulator())
    name = f"{fields.name}_h{emulated.version}"
    described = module.add_kernel(compiler.function_address(emulated.library), fields.kernel, name)
    lowest, highest = described["min_arch"], described["max_arch"] or math.inf
    if arch is not None and not lowest <= arch <= highest:
        raise ValueError(f"kernel: {path.name} says min_arch = {lowest}, max_arch = {highest}, and arch is {arch}")
    here = _compat.cuda_archs()
    wanted = {one for one in (*here, *([] if arch is None else [arch])) if lowest <= one <= highest}
    if not wanted:
        return add_config(described, {})
    archs = [nvcc.architecture(one, described["max_arch"]) for one in sorted(wanted)]
    compiled = nvcc.compile_cuda(source, archs, emulated)
    if (cuda := ffi.extension("cuda")) is not None:
        check_headers(include, cuda.own_kernel_headers)
        cuda.add_kernel(compiler.function_address(compiled.library), fields.kernel, name)
    return add_config(described, compiled.registers)


def add_arguments(parser: argparse._ActionsContainer) -> None:
    """Adds the options of a command that takes kernels of one's own."""
    parser.add_argument(
        "--kernel",
        type=pathlib.Path,
        metavar="FILE.cuh",
        help="a kernel of your own, which jax_moye.kernel compiles (docs/own_kernel.md)",
    )
    parser.add_argument(
        "--config-row",
        action="append",
        metavar="ROW",
        help=f"what is compiled of it, e.g. '{_EXAMPLE}'; may be repeated",
    )


def from_arguments(arguments: argparse.Namespace) -> list[GemmConfig]:
    """The kernels that a command line names, compiled: a config of each row.

    Raises:
      KernelError: a compiler refuses one.
      OSError: something cannot be read.
      ValueError: a row is none, there is a file without a row or a row without a file, or no such file.
    """
    file, rows = arguments.kernel, arguments.config_row or []
    if file is None and rows:
        raise ValueError("--config-row is of the file of --kernel, and there is none")
    if file is not None and not rows:
        raise ValueError("--kernel needs --config-row, which says what is compiled of it")
    try:
        return [kernel(file, config=row) for row in rows]
    except FileNotFoundError:
        if file.exists():
            raise
        raise ValueError(f"--kernel {file} is no file") from None


def emulator() -> str:
    """The file of the extension module that has the emulator."""
    module = ffi.extension("cpu")
    return str(module and module.__file__)


def check_headers(include: pathlib.Path, expected: dict[str, str]) -> None:
    """Raises RuntimeError where headers are not those that the module was built with."""
    for name, digest in expected.items():
        if hashlib.sha256((include / name).read_bytes()).hexdigest() != digest:
            raise RuntimeError(f"{include / name} is not what this jax_moye was built with: build it again")
