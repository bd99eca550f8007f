#!/usr/bin/env python3
"""What a wheel has to contain, and what it must not: size, tag, files, metadata, licences, rows, linked libraries.

    check_wheel.py WHEEL                 of a release: all rows of configs.h, all architectures
    check_wheel.py --subset WHEEL        not all rows were built, or not for all architectures
    check_wheel.py --cpu WHEEL           without the CUDA kernels

The wheel is compared with the sources beside this file. Exit status 1 where something is wrong. `readelf` is needed.
"""

from __future__ import annotations

import argparse
import configparser
import email.parser
import fnmatch
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Collection

ROOT = pathlib.Path(__file__).resolve().parents[1]
MAX_BYTES = 60_000_000

# What every Linux has; of CUDA nothing: cudart is inside, and it finds the driver when there is one.
_SYSTEM_LIBRARIES = ("ld-linux*.so.*", "libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")
_GLIBC_BEFORE_2_34 = ("libdl.so.2", "libpthread.so.0", "librt.so.1")
# Beside what is committed, and in no wheel: .gitignore names them too.
_NOT_SOURCES = ("__pycache__/*", "*/__pycache__/*", "*.so", "_registers.json")


def package_sources(root: pathlib.Path = ROOT) -> set[str]:
    """The files of jax_moye/ that every wheel has: modules, stubs, tables."""
    package = root / "jax_moye"
    names = {path.relative_to(package).as_posix() for path in package.rglob("*") if path.is_file()}
    return {f"jax_moye/{name}" for name in names if not any(fnmatch.fnmatch(name, known) for known in _NOT_SOURCES)}


def for_own_kernels(root: pathlib.Path = ROOT) -> set[str]:
    """What every wheel has for `jax_moye.kernel`: the headers of cuda/, and what finds nvcc and reads ptxas."""
    cuda = root / "cuda"
    found = [path for suffix in ("h", "cuh") for path in cuda.rglob(f"*.{suffix}")]
    names = {f"include/{path.relative_to(cuda).as_posix()}" for path in found}
    programs = {"build/cuda_compiler.py", "build/cuda_wheels.json", "build/nvcc_gate.py"}
    return {f"jax_moye/{name}" for name in names | programs}


def version(root: pathlib.Path = ROOT) -> str:
    """The version, which stands in jax_moye/__init__.py."""
    (found,) = re.findall(r'^__version__ = "(.*?)"', (root / "jax_moye" / "__init__.py").read_text(), re.MULTILINE)
    return found


def table_rows(root: pathlib.Path = ROOT) -> int:
    """How many rows cuda/gemm/configs.h has."""
    return len(re.findall(r"^ *\{\w+, ", (root / "cuda" / "gemm" / "configs.h").read_text(), re.MULTILINE))


def architectures(root: pathlib.Path = ROOT) -> set[str]:
    """The architectures that a release has code for: sm_80, sm_90a, ..."""
    text = (root / "cmake" / "JaxMoyeArchs.cmake").read_text()
    return {
        f"sm_{arch}"
        for archs in re.findall(r"^set\(JAX_MOYE_\w+_ARCHS ([\w ]+)\)", text, re.M)
        for arch in archs.split()
    }


def _file_problems(names: Collection[str], tag: str, cpu: bool, sources: set[str]) -> list[str]:
    python, abi, _ = tag.split("-")
    suffix = ".abi3.so" if abi == "abi3" else f".cpython-{python[2:]}-*.so"
    modules = ["_moye_cpu"] if cpu else ["_moye_cpu", "_moye_cuda"]
    expected = [f"jax_moye/{module}{suffix}" for module in modules]
    if not cpu:
        expected.append("jax_moye/_registers.json")
    expected += [
        f"*.dist-info/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    ]
    expected.append("*.dist-info/licenses/nanobind/LICENSE")  # nanobind is inside the modules
    found = [f"lacks {pattern}" for pattern in expected if not fnmatch.filter(names, pattern)]
    found += [f"lacks {name}" for name in sorted(sources - set(names))]
    known = [*expected, "*.dist-info/licenses/*", "*.dist-info/sboms/*"]  # auditwheel leaves a list of what it added
    for name in sorted(set(names) - sources):
        if not any(fnmatch.fnmatch(name, pattern) for pattern in known):
            found.append(f"contains {name}, which is neither a source nor built")
    return found


def _metadata_problems(text: str, root: pathlib.Path) -> list[str]:
    project = tomllib.loads((root / "pyproject.toml").read_text())["project"]
    message = email.parser.Parser().parsestr(text)
    found = []
    for key, expected in (
        ("Name", project["name"]),
        ("Version", version(root)),
        ("Requires-Python", project["requires-python"]),
        ("License-Expression", project["license"]),
    ):
        if message[key] != expected:
            found.append(f"METADATA: {key} is {message[key]}, the sources say {expected}")
    extras = set(message.get_all("Provides-Extra", []))
    if extras != set(project["optional-dependencies"]):
        found.append(f"METADATA: extras are {sorted(extras)}, expected {sorted(project['optional-dependencies'])}")
    required = {line.replace(" ", "") for line in message.get_all("Requires-Dist", []) if ";" not in line}
    if required != set(project["dependencies"]):
        found.append(f"METADATA: requires {sorted(required)}, expected {sorted(project['dependencies'])}")
    return found


def _script_problems(text: str, root: pathlib.Path) -> list[str]:
    expected = tomllib.loads((root / "pyproject.toml").read_text())["project"]["scripts"]
    parser = configparser.ConfigParser()
    parser.read_string(text)
    found = dict(parser["console_scripts"]) if "console_scripts" in parser else {}
    return [] if found == expected else [f"entry_points.txt: scripts are {found}, expected {expected}"]


def _register_problems(text: str, subset: bool, root: pathlib.Path) -> list[str]:
    registers = json.loads(text)
    built = {arch for row in registers.values() for arch in row}
    found = []
    if not registers or not all(registers.values()):
        found.append("_registers.json: rows without machine code")
    if unknown := built - architectures(root):
        found.append(f"_registers.json: {sorted(unknown)}, which JaxMoyeArchs.cmake does not name")
    if not subset:
        if len(registers) != table_rows(root):
            found.append(f"{len(registers)} rows are compiled, configs.h has {table_rows(root)}")
        if missing := architectures(root) - built:
            found.append(f"no code for {sorted(missing)}")
    return found


def module_problems(path: str | os.PathLike[str]) -> list[str]:
    """What is wrong with a compiled module: libraries that not every Linux has, search paths, symbols of a debugger.

    Raises:
      FileNotFoundError: there is no readelf.
      subprocess.CalledProcessError: the file is not ELF.
    """
    command = ["readelf", "--dynamic", "--section-headers", "--wide", path]
    text = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "LC_ALL": "C"}).stdout
    found = []
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", text):
        if not any(fnmatch.fnmatch(name, known) for known in (*_SYSTEM_LIBRARIES, *_GLIBC_BEFORE_2_34)):
            found.append(f"needs {name}, which not every machine has")
    found += [f"has the search path {paths}" for paths in re.findall(r"\((?:RPATH|RUNPATH)\).*\[(.*)\]", text)]
    found += [f"is not stripped: {name}" for name in re.findall(r"\] (\.symtab|\.debug_info) ", text)]
    return found


def problems(
    names: Collection[str],
    read: Callable[[str], bytes],
    *,
    subset: bool = False,
    cpu: bool = False,
    root: pathlib.Path = ROOT,
) -> list[str]:
    """What is wrong with the files of a wheel, packed or installed.

    Args:
      names: of its files, relative to site-packages.
      read: gives the bytes of one.
      subset: rows and architectures may be missing.
      cpu: the CUDA kernels were not built.
      root: of the sources it is compared with.

    Returns:
      One line for each fault; none, if it is right.
    """
    (dist_info,) = {name.partition("/")[0] for name in names if ".dist-info/" in name}
    wheel = email.parser.Parser().parsestr(read(f"{dist_info}/WHEEL").decode())
    tags = wheel.get_all("Tag", [])
    compatible = {tag.rpartition("-")[0] for tag in tags}
    if len(compatible) != 1 or not re.fullmatch(r"cp312-abi3|(cp3\d+t?)-\1", *compatible):
        return [f"its tags are {tags}: expected cp312-abi3, or of one Python before 3.12"]
    found = [f"{tag} is not for Linux" for tag in tags if not re.search(r"-(many)?linux", tag)]
    found += _file_problems(names, tags[0], cpu, package_sources(root) | for_own_kernels(root))
    found += _metadata_problems(read(f"{dist_info}/METADATA").decode(), root)
    if f"{dist_info}/entry_points.txt" in names:
        found += _script_problems(read(f"{dist_info}/entry_points.txt").decode(), root)
    if not cpu and "jax_moye/_registers.json" in names:
        found += _register_problems(read("jax_moye/_registers.json").decode(), subset, root)
    for name in fnmatch.filter(names, "jax_moye/*.so"):
        content = read(name)
        # nvcc and g++ write paths into what they compile: error messages, and nobody's home belongs there.
        if os.fsencode(root) + b"/" in content:
            found.append(f"{name} contains the path of the build, {root}")
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(content)
            file.flush()
            found += [f"{name} {fault}" for fault in module_problems(file.name)]
    return found


def wheel_problems(
    path: pathlib.Path, *, subset: bool = False, cpu: bool = False, root: pathlib.Path = ROOT
) -> list[str]:
    """What is wrong with a wheel: `problems`, its size, and a file name that says something else than its WHEEL."""
    found = []
    if path.stat().st_size >= MAX_BYTES:
        found.append(f"{path.stat().st_size / 1e6:.1f} MB, the limit is {MAX_BYTES / 1e6:.0f} MB")
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/")]
        (text,) = (archive.read(name).decode() for name in names if name.endswith(".dist-info/WHEEL"))
        tags = re.findall(r"^Tag: (.*)$", text, re.MULTILINE)
        python, abi, platforms = path.stem.split("-")[-3:]
        if {f"{python}-{abi}-{platform}" for platform in platforms.split(".")} != set(tags):
            found.append(f"the file's name has other tags than its WHEEL, {tags}")
        return found + problems(names, archive.read, subset=subset, cpu=cpu, root=root)


def summary(path: pathlib.Path) -> str:
    """The sizes of a wheel and of its modules, packed and installed, in one line."""
    with zipfile.ZipFile(path) as archive:
        modules = [info for info in archive.infolist() if info.filename.endswith(".so")]
        parts = [f"{m.filename.split('/')[-1]} {m.compress_size / 1e6:.1f} ({m.file_size / 1e6:.1f})" for m in modules]
    return f"{path.name}: {path.stat().st_size / 1e6:.1f} MB; packed (installed): {', '.join(parts)}"


def main() -> int:
    """Prints what is wrong with each wheel."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheels", type=pathlib.Path, nargs="+", metavar="WHEEL")
    parser.add_argument("--subset", action="store_true")
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--root", type=pathlib.Path, default=ROOT, help="of the sources; default: beside this file")
    args = parser.parse_args()
    status = 0
    for path in args.wheels:
        print(summary(path))
        for fault in wheel_problems(path, subset=args.subset, cpu=args.cpu, root=args.root.resolve()):
            print(f"  {fault}")
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
