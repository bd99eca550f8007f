"""`bench --kernel`: a kernel's file that is not in the repository, built in a copy of this checkout and timed there.

The copy has the file in cuda/gemm, its name in config.h and its rows in configs.h; only these rows are compiled. It
stays, so that the next run builds what has changed and nothing else. Needed: cmake, a C++ compiler, nanobind in this
Python, and nvcc unless the emulator is all that is asked for.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence

from jax_moye._bench.results import command_output
from jax_moye._checkout import clone
from jax_moye._kernels.config_names import ROW, ConfigFields, parse_row, rows_of
from jax_moye._kernels.dtypes import JAX_NAMES, SHORT_NAMES

LEFT_OUT = {".git", ".venv", "build", "dist", "docs", "examples", "tests", "results", "__pycache__", "_registers.json"}


def own_config(row: str) -> ConfigFields:
    """The config that a `--config-row` describes.

    Raises:
      ValueError: it is no row.
    """
    try:
        return parse_row(row)
    except ValueError:
        raise ValueError(f"--config-row is {ROW}, not {row!r}") from None


def with_kernel(config_h: str, kernel: str) -> str:
    """cuda/gemm/config.h with a kernel's enumerator and name, if it has them not yet."""
    enumerators = re.search(r"enum class Kernel \{(.*?)\n\};", config_h, re.DOTALL)
    names = re.search(r"kKernelNames\[\] = \{(.*?)\};", config_h, re.DOTALL)
    if enumerators is None or names is None:
        raise ValueError("cuda/gemm/config.h has not the two lists of kernels that it had")
    if re.search(rf"\b{kernel}\b", enumerators[1]):
        return config_h
    changed = config_h[: names.end(1)] + f', "{kernel}"' + config_h[names.end(1) :]
    return changed[: enumerators.end(1)] + f"\n  {kernel}," + changed[enumerators.end(1) :]


def with_rows(configs_h: str, rows: Sequence[str]) -> str:
    """cuda/gemm/configs.h with these rows, those that it has not yet."""
    known = {parse_row(row) for row in rows_of(configs_h)}
    lines = "".join(f"  {row.strip()},\n" for row in rows if parse_row(row) not in known)
    table = re.search(r"kGemmConfigs\[\] = \{\n", configs_h)
    if table is None:
        raise ValueError("cuda/gemm/configs.h has not the table that it had")
    return configs_h[: table.end()] + lines + configs_h[table.end() :]


def private_folder(path: pathlib.Path) -> pathlib.Path:
    """A folder that this user alone can write to, made now or by an earlier run.

    What is built in it runs, and its name is known: in a folder that everybody may write to, another user may have made
    it first.

    Raises:
      ValueError: it is somebody else's, or others can write to it.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    found = path.lstat()  # of the link, where it is one
    mode = stat.S_IMODE(found.st_mode)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise ValueError(
            f"{path} is not a folder that this user alone can write to: remove it, or set TMPDIR to another place"
        )
    path.chmod(0o700)
    return path


def make_tree(root: pathlib.Path, tree: pathlib.Path, kernel: pathlib.Path, rows: Sequence[str]) -> None:
    """Copies the checkout, with the kernel. What is the same already is left alone, so that nothing is rebuilt for it.

    Raises:
      ValueError: root is no checkout, or its tables are not as expected.
    """
    if not (root / "CMakeLists.txt").is_file():
        raise ValueError(f"--kernel builds in a copy of a checkout, and {root} is none")
    gemm = pathlib.Path("cuda/gemm")
    changed = {
        gemm / f"{kernel.stem}.cuh": kernel.read_text(),
        gemm / "config.h": with_kernel((root / gemm / "config.h").read_text(), kernel.stem),
        gemm / "configs.h": with_rows((root / gemm / "configs.h").read_text(), rows),
    }
    for folder, folders, files in os.walk(root):
        here = pathlib.Path(folder).relative_to(root)
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        (tree / here).mkdir(parents=True, exist_ok=True)
        for name in files:
            source, copy = root / here / name, tree / here / name
            if here / name in changed or name in LEFT_OUT or name.endswith(".so"):
                continue
            old = copy.stat() if copy.exists() else None
            new = source.stat()
            if old is None or (old.st_mtime_ns, old.st_size) != (new.st_mtime_ns, new.st_size):
                shutil.copy2(source, copy)
    for path, text in changed.items():
        if not (tree / path).exists() or (tree / path).read_text() != text:
            (tree / path).write_text(text)


def commands(tree: pathlib.Path, names: Sequence[str], emulator: bool) -> list[list[str]]:
    """What builds the extension modules of the tree, for these rows."""
    here = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])
    cmake = shutil.which("cmake", path=here)
    if cmake is None:
        raise ValueError("--kernel needs cmake, and there is none")
    ninja = shutil.which("ninja", path=here)
    rows = f"^({'|'.join(names)})$"
    options = {
        "Python_EXECUTABLE": sys.executable,
        "JAX_MOYE_CONFIGS": rows,
        "JAX_MOYE_CUDA": "OFF" if emulator else "ON",
        "JAX_MOYE_CUDA_ARCHS": "" if emulator else "native",
    }
    generator = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"] if ninja else []
    build = str(tree / "build")
    return [
        [cmake, "-S", str(tree), "-B", build, *generator, *(f"-D{key}={value}" for key, value in options.items())],
        [cmake, "--build", build, "--parallel", str(os.cpu_count() or 1)],
        [cmake, "--install", build, "--prefix", str(tree)],
    ]


def build_and_run(arguments: argparse.Namespace, benchmark: str) -> int:
    """Builds the kernel and runs the benchmark with it.

    Args:
      arguments: of `bench`.
      benchmark: the module that takes them as JSON, `for_copy`, in the copy.

    Returns:
      The benchmark's exit status; 1 if the kernel cannot be built.
    """
    try:
        if not arguments.config_row:
            raise ValueError("--kernel needs --config-row, the kernel's row of cuda/gemm/configs.h")
        configs = [own_config(row) for row in arguments.config_row]
        names = [config.name for config in configs]
        stem = arguments.kernel.stem
        if any(config.kernel != stem for config in configs):
            raise ValueError(f"--config-row begins with the name of the kernel, which is its file's, {stem}")
        root = clone()
        if root is None:
            raise ValueError("--kernel builds in a copy of a clone: run it in one")
        tree = private_folder(pathlib.Path(tempfile.gettempdir()) / f"jax_moye_kernel_{os.getuid()}") / stem
        make_tree(root, tree, arguments.kernel, arguments.config_row)
        print(f"jax_moye bench: building {', '.join(names)} in {tree}", file=sys.stderr, flush=True)
        for command in commands(tree, names, arguments.emulator or arguments.interpret):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                print(done.stdout + done.stderr, file=sys.stderr)
                raise ValueError(f"{' '.join(command[:2])} failed")
    except (OSError, ValueError) as error:
        print(f"jax_moye bench: {error}", file=sys.stderr)
        return 1
    commit = os.environ.get("JAX_MOYE_COMMIT") or command_output(
        "git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=9"
    )
    python_path = [str(tree), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(python_path),
        "JAX_MOYE_COMMIT": f"{commit or 'unknown'}+{stem}",
    }
    # -P: the folder that this is called from may be another checkout.
    command = [sys.executable, "-P", "-m", benchmark, json.dumps(for_copy(arguments, names))]
    return subprocess.run(command, env=environment, check=False).returncode


def for_copy(arguments: argparse.Namespace, names: Sequence[str]) -> dict:
    """The arguments of the benchmark in the copy, as JSON's types."""
    given = {key: str(value) if isinstance(value, pathlib.Path) else value for key, value in vars(arguments).items()}
    given |= {"kernel": None, "config": [*names, *(arguments.config or [])]}
    if arguments.emulator and not arguments.shape:
        dtype = SHORT_NAMES[JAX_NAMES[own_config(arguments.config_row[0]).dtype]]  # "f32" of TF32
        given["shape"] = [f"64x48x40:{dtype}", f"2x32x48x40:{dtype}:NT"]
    return given
