"""Which nvcc compiles the kernels, or why none does. The one place that decides it.

Imported by the build backend (what to download) and run by CMake (what to use):

    python cuda_compiler.py --mode AUTO --toolkit <build>/cuda-toolkit --cxx /usr/bin/g++

prints `key=value` lines: mode, nvcc, version, origin, toolkit (a link farm, where the nvcc is a wheel's), or reason
(there is none).

Order: $CUDACXX; an nvcc >= 12.8 of this machine; the wheels of PyPI. With JAX_MOYE_CUDA_PREFER_WHEEL the wheels come
before this machine's.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.metadata
import importlib.util
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping

# 12.0 has wgmma and TMA, 12.5 cudaGetDriverEntryPointByVersion, 12.8 sm_100 and sm_120.
MIN_NVCC = (12, 8)

# One pin for nvcc, cicc, the headers, cudart and the disassembler. nvidia-cuda-nvcc's own dependencies are not pinned,
# and releases do not mix. 13.2 is the first that compiles on glibc 2.42, and its cubins load on a 580 driver.
CUDA_WHEELS = "cuda-toolkit[nvcc,nvvm,crt,cudart,cccl,cuobjdump,nvdisasm]==13.2.2"

# What a complete set of wheels puts under nvidia/cu13.
WHEEL_FILES = (
    "bin/nvcc",
    "bin/ptxas",
    "nvvm/bin/cicc",
    "include/crt/host_config.h",
    "include/cuda_runtime.h",
    "include/nv/target",
    "lib/libcudart_static.a",
)
WHEEL_DISTRIBUTIONS = ("nvidia-cuda-nvcc", "nvidia-nvvm", "nvidia-cuda-crt", "nvidia-cuda-runtime")


class CudaError(Exception):
    """The CUDA kernels cannot be built; the text says why."""


@dataclasses.dataclass(frozen=True)
class Nvcc:
    """A CUDA compiler: where it is, its version (`13.0.88`), and how it was found."""

    path: pathlib.Path
    version: str
    origin: str


def mode(environ: Mapping[str, str]) -> str:
    """JAX_MOYE_CUDA as ON, AUTO or OFF."""
    text = environ.get("JAX_MOYE_CUDA", "").strip().upper() or "AUTO"
    normal = {"ON": "ON", "1": "ON", "TRUE": "ON", "AUTO": "AUTO", "OFF": "OFF", "0": "OFF", "FALSE": "OFF"}.get(text)
    if normal is None:
        raise CudaError(f"JAX_MOYE_CUDA={text}: expected ON, AUTO or OFF")
    return normal


def prefers_wheel(environ: Mapping[str, str]) -> bool:
    """JAX_MOYE_CUDA_PREFER_WHEEL as a bool."""
    return environ.get("JAX_MOYE_CUDA_PREFER_WHEEL", "").strip().upper() not in ("", "0", "OFF", "FALSE", "NO")


def nvcc_version(path: str | os.PathLike[str]) -> str | None:
    """`13.0.88`, or None when `path` does not run or is no nvcc."""
    try:
        result = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    match = re.search(r"release [0-9.]+, V([0-9.]+)", result.stdout)
    return match[1] if match and result.returncode == 0 else None


def _is_new_enough(version: str) -> bool:
    return tuple(int(part) for part in version.split(".")[:2]) >= MIN_NVCC


def _system_candidates(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for variable in ("CUDAToolkit_ROOT", "CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            yield os.path.join(environ[variable], "bin", "nvcc"), variable
    on_path = shutil.which("nvcc", path=environ.get("PATH"))
    if on_path:
        yield on_path, "PATH"
    yield "/usr/local/cuda/bin/nvcc", "/usr/local/cuda"
    yield "/opt/cuda/bin/nvcc", "/opt/cuda"


def system_nvcc(environ: Mapping[str, str]) -> tuple[Nvcc | None, str]:
    """The first nvcc of this machine that is new enough, or None and why."""
    too_old = []
    for path, origin in _system_candidates(environ):
        version = nvcc_version(path) if os.access(path, os.X_OK) else None
        if version is None:
            continue
        if _is_new_enough(version):
            return Nvcc(pathlib.Path(path), version, origin), ""
        too_old.append(f"nvcc {version} from {origin} is older than {MIN_NVCC[0]}.{MIN_NVCC[1]}")
    return None, "; ".join(too_old) or "no nvcc on this machine"


def wheel_root() -> pathlib.Path | None:
    """Where the CUDA wheels are in this interpreter: .../site-packages/nvidia/cu13."""
    spec = importlib.util.find_spec("nvidia")  # a namespace package: it has paths, no file
    for path in (spec.submodule_search_locations or []) if spec else []:
        root = pathlib.Path(path) / "cu13"
        if (root / "bin" / "nvcc").exists():
            return root
    return None


def wheel_nvcc() -> tuple[Nvcc | None, str]:
    """The nvcc of the wheels this interpreter sees, or None and why."""
    root = wheel_root()
    if root is None:
        return None, "no CUDA wheels in this environment"
    missing = [name for name in WHEEL_FILES if not (root / name).exists()]
    if missing:
        return None, f"the CUDA wheels in {root} lack {', '.join(missing)}"
    try:
        releases = {name: ".".join(importlib.metadata.version(name).split(".")[:2]) for name in WHEEL_DISTRIBUTIONS}
    except importlib.metadata.PackageNotFoundError as error:
        return None, f"the CUDA wheels lack {error.name}"
    if len(set(releases.values())) > 1:
        return None, f"the CUDA wheels are of different releases: {releases}"
    version = nvcc_version(root / "bin" / "nvcc")
    if version is None:
        return None, f"{root}/bin/nvcc does not run"
    return Nvcc(root / "bin" / "nvcc", version, "the PyPI wheels"), ""


def unsupported_platform() -> str | None:
    """Why no CUDA kernel can be built on this platform, or None."""
    if sys.platform != "linux":
        return f"CUDA kernels are built on Linux, not on {sys.platform}"
    if platform.machine() not in ("x86_64", "aarch64"):
        return f"CUDA kernels are built on x86_64 and aarch64, not on {platform.machine()}"
    return None


def wheels_installable() -> bool:
    """Whether pip could install the CUDA wheels here: glibc, and a Python of the machine's own architecture."""
    from packaging import tags  # a dependency of scikit-build-core, so present wherever the backend runs

    wanted = f"manylinux2014_{platform.machine()}"
    return any(tag.platform == wanted for tag in tags.sys_tags())


def build_requirements(environ: Mapping[str, str] = os.environ) -> list[str]:
    """What pip has to install before the build: the CUDA wheels, or nothing."""
    if mode(environ) == "OFF" or environ.get("CUDACXX") or unsupported_platform():
        return []
    if system_nvcc(environ)[0] and not prefers_wheel(environ):
        return []
    if mode(environ) == "AUTO" and not wheels_installable():
        return []
    return [CUDA_WHEELS]


def choose(environ: Mapping[str, str]) -> Nvcc:
    """The nvcc to build with.

    Raises:
        CudaError: there is none, or $CUDACXX is none.
    """
    if mode(environ) == "OFF":
        raise CudaError("JAX_MOYE_CUDA=OFF")
    if reason := unsupported_platform():
        raise CudaError(reason)
    if named := environ.get("CUDACXX"):
        path = shutil.which(named, path=environ.get("PATH"))
        version = nvcc_version(path) if path else None
        if path is None or version is None:
            raise CudaError(f"CUDACXX={named} is no nvcc that runs")
        return Nvcc(pathlib.Path(path), version, "CUDACXX")
    finders = [lambda: system_nvcc(environ), wheel_nvcc]
    if prefers_wheel(environ):
        finders.reverse()
    reasons = []
    for find in finders:
        nvcc, reason = find()
        if nvcc:
            return nvcc
        reasons.append(reason)
    raise CudaError("; ".join(reasons))


def make_toolkit(root: pathlib.Path, toolkit: pathlib.Path) -> None:
    """Lays the wheels under `root` out as a CUDA toolkit: a folder of links that CMake and nvcc accept.

    The wheels have no lib64, which nvcc.profile of 13.0 and 13.1 names, and no libcudart.so, without which
    find_package(CUDAToolkit) fails. `bin` and `lib` are real folders: nvcc looks for its parts in `bin/..`, and a
    linked `bin` would lead back into the wheel.
    """
    if toolkit.exists():
        shutil.rmtree(toolkit)
    toolkit.mkdir(parents=True)
    for name in ("include", "nvvm"):
        (toolkit / name).symlink_to(root / name)
    for name in ("bin", "lib"):
        (toolkit / name).mkdir()
        for file in (root / name).iterdir():
            (toolkit / name / file.name).symlink_to(file)
    if not (toolkit / "lib" / "libcudart.so").exists():
        (toolkit / "lib" / "libcudart.so").symlink_to(root / "lib" / "libcudart.so.13")
    (toolkit / "lib64").symlink_to("lib")


def check_compiles(nvcc: pathlib.Path, cxx: str) -> None:
    """Compiles an empty kernel: each nvcc accepts only some host compilers and C libraries.

    Raises:
        CudaError: it does not compile, with the compiler's first error.
    """
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder) / "probe.cu"
        source.write_text("__global__ void probe() {}\n")
        command = [nvcc, "-std=c++20", "-ccbin", cxx, "-c", source, "-o", source.with_suffix(".o")]
        result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode == 0:
        return
    lines = (result.stdout + result.stderr).splitlines()
    first = next((line for line in lines if "error" in line), lines[0] if lines else "no message")
    raise CudaError(f"{nvcc} cannot compile with {cxx}: {first}")


def main() -> int:
    """Prints the choice for CMake."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", required=True)
    parser.add_argument("--prefer-wheel", default="")
    parser.add_argument("--cudacxx", default="")
    parser.add_argument("--toolkit", type=pathlib.Path, required=True)
    parser.add_argument("--cxx", required=True)
    args = parser.parse_args()
    environ = dict(os.environ, JAX_MOYE_CUDA=args.mode, JAX_MOYE_CUDA_PREFER_WHEEL=args.prefer_wheel)
    if args.cudacxx:
        environ["CUDACXX"] = args.cudacxx
    try:
        print(f"mode={mode(environ)}")
        nvcc = choose(environ)
        path, toolkit = nvcc.path, None
        # A wheel's nvcc needs the farm however it was found: jax[cuda13] brings one that may be on PATH.
        real = path.resolve()
        if real.parts[-4:] == ("nvidia", "cu13", "bin", "nvcc"):
            toolkit = args.toolkit
            make_toolkit(real.parents[1], toolkit)
            path = toolkit / "bin" / "nvcc"
        check_compiles(path, args.cxx)
    except CudaError as error:
        print(f"reason={error}")
        return 0
    print(f"nvcc={path}\nversion={nvcc.version}\norigin={nvcc.origin}")
    if toolkit:
        print(f"toolkit={toolkit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
