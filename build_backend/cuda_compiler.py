"""Which nvcc compiles the kernels, or why none does. The one place that decides it.

Imported by the build backend (what to download) and run by CMake (what to use):

    python cuda_compiler.py --mode AUTO --toolkit <build>/cuda-toolkit --cxx /usr/bin/g++

prints `key=value` lines: mode, nvcc, version, origin, toolkit (a link farm, where the nvcc is a wheel's), archs (of the
GPUs here, where those alone are built for), or reason (there is none).

Whether: ON always does. AUTO does for the GPUs of this machine alone, and where somebody asks for architectures or
names a compiler; a machine without a GPU gets the emulator alone, and needs neither nvcc nor the time that it takes.

Order: $CUDACXX; an nvcc >= 12.8 of this machine; the wheels of PyPI. With JAX_MOYE_CUDA_PREFER_WHEEL the wheels come
before this machine's.
"""

from __future__ import annotations

import argparse
import base64
import ctypes
import dataclasses
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping

# 12.0 has wgmma and TMA, 12.5 cudaGetDriverEntryPointByVersion, 12.8 sm_100 and sm_120.
MIN_NVCC = (12, 8)

# nvcc, cicc, the headers, cudart and the disassembler of one release: releases do not mix. 13.2 is the first that
# compiles on glibc 2.42, and its cubins load on a 580 driver. tools/pin_cuda_wheels.py writes the file.
MACHINES = ("x86_64", "aarch64")
PINS_FILE = pathlib.Path(__file__).with_name("cuda_wheels.json")
PINS: dict[str, dict[str, str]] = json.loads(PINS_FILE.read_text()) if PINS_FILE.exists() else {}
CUDA_WHEELS = [f"{name}=={pin['version']}" for name, pin in PINS.items()]

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


# cuda.h: of a device's compute capability.
_MAJOR, _MINOR = 75, 76
MIN_ARCH = 80  # of all kernels: the oldest of cmake/JaxMoyeArchs.cmake


def gpu_archs() -> list[int]:
    """The architectures of this machine's GPUs, such as [90], as the driver knows them; none without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return []
    count = ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return []
    found = set()
    for ordinal in range(count.value):
        device, major, minor = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        failed = driver.cuDeviceGet(ctypes.byref(device), ordinal)
        for attribute, value in ((_MAJOR, major), (_MINOR, minor)):
            failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device)
        if not failed:
            found.add(10 * major.value + minor.value)
    return sorted(found)


def archs_of_auto(environ: Mapping[str, str]) -> list[int]:
    """The architectures that AUTO builds for; none where JAX_MOYE_CUDA_ARCHS says which, or somebody wants all.

    Raises:
        CudaError: it builds for no GPU.
    """
    if mode(environ) != "AUTO" or environ.get("JAX_MOYE_CUDA_ARCHS") or environ.get("CUDACXX"):
        return []
    here = gpu_archs()
    if not here:
        raise CudaError("there is no GPU here; JAX_MOYE_CUDA=ON builds for all architectures")
    archs = [arch for arch in here if arch >= MIN_ARCH]
    if not archs:
        raise CudaError(f"this GPU is sm_{here[-1]}, and kernels begin at sm_{MIN_ARCH}")
    return archs


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


def _digest(hashes: Mapping[str, str]) -> str:
    """One digest of files: their paths, and the hashes of what is in them as RECORD has them, such as "sha256=..."."""
    lines = (f"{path},{value}" for path, value in sorted(hashes.items()))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def _is_of_wheel(path: str) -> bool:
    """Whether a file that RECORD names was in the wheel, and is not written by pip beside it."""
    folder, _, name = path.rpartition("/")
    by_pip = folder.endswith(".dist-info") and name in ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")
    return not by_pip and not name.endswith(".pyc")


def _sha256(content: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def digest_of_wheel(wheel: pathlib.Path) -> str:
    """The digest of what is in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith("/") and _is_of_wheel(name)]
        return _digest({name: _sha256(archive.read(name)) for name in names})


def why_not_as_pinned(name: str) -> str | None:
    """Why the installed files of a distribution are not those of the pinned wheel; None if they are.

    Another version than the pinned one was installed by somebody else, who trusts it: None for it, too.

    Raises:
        importlib.metadata.PackageNotFoundError: it is not installed.
    """
    distribution = importlib.metadata.distribution(name)
    pin = PINS[name]
    if distribution.version != pin["version"]:
        return None
    files = [file for file in distribution.files or () if _is_of_wheel(str(file))]
    try:
        found = _digest({str(file): _sha256(pathlib.Path(file.locate()).read_bytes()) for file in files})
    except OSError as error:
        return f"{name} {distribution.version}: {error}"
    if found == pin.get(platform.machine()):
        return None
    return f"{name} {distribution.version} is not the wheel that is pinned: what is in it has the digest {found}"


def wheel_root() -> pathlib.Path | None:
    """Where the CUDA wheels are in this interpreter: .../site-packages/nvidia/cu13."""
    spec = importlib.util.find_spec("nvidia")  # a namespace package: it has paths, no file
    for path in (spec.submodule_search_locations or []) if spec else []:
        root = pathlib.Path(path) / "cu13"
        if (root / "bin" / "nvcc").exists():
            return root
    return None


def _is_installed(name: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=name))


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
        installed = [name for name in PINS if name in WHEEL_DISTRIBUTIONS or _is_installed(name)]
        if wrong := [reason for name in installed if (reason := why_not_as_pinned(name))]:
            return None, "; ".join(wrong)
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
    if platform.machine() not in MACHINES:
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
    try:
        archs_of_auto(environ)
    except CudaError:
        return []
    if system_nvcc(environ)[0] and not prefers_wheel(environ):
        return []
    if mode(environ) == "AUTO" and not wheels_installable():
        return []
    return CUDA_WHEELS


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
    parser.add_argument("--archs", default="")
    parser.add_argument("--toolkit", type=pathlib.Path, required=True)
    parser.add_argument("--cxx", required=True)
    args = parser.parse_args()
    of_cmake = {"JAX_MOYE_CUDA_PREFER_WHEEL": args.prefer_wheel, "JAX_MOYE_CUDA_ARCHS": args.archs}
    environ = dict(os.environ, JAX_MOYE_CUDA=args.mode, **of_cmake)
    if args.cudacxx:
        environ["CUDACXX"] = args.cudacxx
    try:
        print(f"mode={mode(environ)}")
        archs = archs_of_auto(environ)
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
    if archs:
        print(f"archs={';'.join(map(str, archs))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
