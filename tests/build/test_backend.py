"""build_backend: which nvcc is used, what is downloaded, and when the CUDA kernels are left out."""

import importlib
import importlib.util
import pathlib
import re
import stat
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def load(name):
    # Not on sys.path: outside a build nothing imports these files.
    spec = importlib.util.spec_from_file_location(name, ROOT / "build_backend" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


cuda_compiler = load("cuda_compiler")


@pytest.fixture
def linux(monkeypatch):
    """A machine with a GPU and glibc, and without any nvcc in the usual places."""
    monkeypatch.setattr(cuda_compiler, "gpu_archs", lambda: [90])
    monkeypatch.setattr(cuda_compiler.sys, "platform", "linux")
    monkeypatch.setattr(cuda_compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(cuda_compiler, "wheels_installable", lambda: True)
    monkeypatch.setattr(cuda_compiler, "wheel_nvcc", lambda: (None, "no CUDA wheels in this environment"))
    candidates = cuda_compiler._system_candidates
    monkeypatch.setattr(
        cuda_compiler,
        "_system_candidates",
        lambda environ: [(path, origin) for path, origin in candidates(environ) if not origin.startswith("/")],
    )
    return monkeypatch


def fake_nvcc(folder, version):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "nvcc"
    release = version.rpartition(".")[0]
    path.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {release}, V{version}'\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", "AUTO"), ("auto", "AUTO"), ("ON", "ON"), ("1", "ON"), ("true", "ON"), ("off", "OFF"), ("0", "OFF")],
)
def test_mode(text, expected):
    assert cuda_compiler.mode({"JAX_MOYE_CUDA": text}) == expected
    assert cuda_compiler.mode({}) == "AUTO"


def test_unknown_mode_is_refused():
    with pytest.raises(cuda_compiler.CudaError, match="JAX_MOYE_CUDA=MAYBE: expected ON, AUTO or OFF"):
        cuda_compiler.build_requirements({"JAX_MOYE_CUDA": "maybe"})


@pytest.mark.parametrize("mode", ["", "AUTO", "ON"])
def test_wheels_are_required_where_there_is_no_nvcc(linux, mode):
    assert cuda_compiler.build_requirements({"JAX_MOYE_CUDA": mode, "PATH": ""}) == cuda_compiler.CUDA_WHEELS


def test_auto_builds_for_the_gpus_of_this_machine(linux):
    assert cuda_compiler.archs_of_auto({}) == [90]
    linux.setattr(cuda_compiler, "gpu_archs", lambda: [75, 80, 90])
    assert cuda_compiler.archs_of_auto({}) == [80, 90]
    linux.setattr(cuda_compiler, "gpu_archs", lambda: [75])
    assert cuda_compiler.build_requirements({"PATH": ""}) == []
    with pytest.raises(cuda_compiler.CudaError, match="this GPU is sm_75, and kernels begin at sm_80"):
        cuda_compiler.archs_of_auto({})


def test_auto_builds_no_kernels_where_there_is_no_gpu(linux, tmp_path):
    """Nor does it download nvcc, or use the one that is there; ON does, and so does whoever asks for something."""
    fake_nvcc(tmp_path, "13.0.88")
    linux.setattr(cuda_compiler, "gpu_archs", lambda: [])
    for environ in ({"PATH": ""}, {"PATH": str(tmp_path)}, {"PATH": "", "JAX_MOYE_CUDA_PREFER_WHEEL": "1"}):
        assert cuda_compiler.build_requirements(environ) == []
        with pytest.raises(cuda_compiler.CudaError, match="there is no GPU here; JAX_MOYE_CUDA=ON builds for all arch"):
            cuda_compiler.archs_of_auto(environ)
    for asked in ({"JAX_MOYE_CUDA": "ON"}, {"JAX_MOYE_CUDA_ARCHS": "90"}):
        assert cuda_compiler.archs_of_auto(asked) == []
        assert cuda_compiler.build_requirements({"PATH": ""} | asked) == cuda_compiler.CUDA_WHEELS
        assert cuda_compiler.choose({"PATH": str(tmp_path)} | asked).version == "13.0.88"
    assert cuda_compiler.archs_of_auto({"CUDACXX": str(tmp_path / "nvcc")}) == []


DRIVER = """
int cuInit(unsigned flags) { return %(init)d; }
int cuDeviceGetCount(int* count) { *count = %(count)d; return 0; }
int cuDeviceGet(int* device, int ordinal) { *device = 7 + ordinal; return 0; }
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  if (device == 9) return 1;
  if (attribute == 75) *value = device == 7 ? 9 : 8;
  else if (attribute == 76) *value = device == 7 ? 0 : 6;
  else return 1;
  return 0;
}
"""


@pytest.mark.parametrize(("init", "count", "expected"), [(0, 3, [86, 90]), (0, 0, []), (100, 1, [])])
def test_the_driver_is_asked_for_gpus(tmp_path, monkeypatch, init, count, expected):
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER % {"init": init, "count": count})
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True)
    cdll = cuda_compiler.ctypes.CDLL
    monkeypatch.setattr(cuda_compiler.ctypes, "CDLL", lambda name: cdll(tmp_path / name))
    assert cuda_compiler.gpu_archs() == expected
    monkeypatch.setattr(cuda_compiler.ctypes, "CDLL", lambda name: cdll(tmp_path / "none.so"))
    assert cuda_compiler.gpu_archs() == []


def configured(tmp_path, environ, archs=""):
    """What cuda_compiler.py prints for CMake on this machine."""
    command = [sys.executable, ROOT / "build_backend" / "cuda_compiler.py", "--mode=AUTO", f"--archs={archs}"]
    command += ["--toolkit", tmp_path / "toolkit", "--cxx", "g++"]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout.splitlines()


def test_cmake_gets_the_choice(tmp_path):
    """A stand-in of the driver says what GPU is here, and one of nvcc compiles."""
    nvcc = fake_nvcc(tmp_path / "bin", "13.0.88")
    nvcc.write_text(nvcc.read_text() + "exit 0\n")
    environ = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "LD_LIBRARY_PATH": str(tmp_path)}
    (tmp_path / "driver.c").write_text(DRIVER % {"init": 0, "count": 0})
    build = ["gcc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "driver.c"]
    subprocess.run(build, check=True)
    assert configured(tmp_path, environ) == [
        "mode=AUTO",
        "reason=there is no GPU here; JAX_MOYE_CUDA=ON builds for all architectures",
    ]
    assert "archs=" not in "".join(configured(tmp_path, environ, archs="80"))
    (tmp_path / "driver.c").write_text(DRIVER % {"init": 0, "count": 2})
    subprocess.run(build, check=True)
    assert configured(tmp_path, environ)[-1] == "archs=86;90"


def test_nothing_is_required_when_off(linux):
    assert cuda_compiler.build_requirements({"JAX_MOYE_CUDA": "OFF", "PATH": ""}) == []
    with pytest.raises(cuda_compiler.CudaError, match="JAX_MOYE_CUDA=OFF"):
        cuda_compiler.choose({"JAX_MOYE_CUDA": "OFF", "PATH": ""})


def test_this_machines_nvcc_is_taken(linux, tmp_path):
    path = fake_nvcc(tmp_path, "12.8.61")
    environ = {"PATH": str(tmp_path)}
    assert cuda_compiler.build_requirements(environ) == []
    assert cuda_compiler.choose(environ) == cuda_compiler.Nvcc(path, "12.8.61", "PATH")


def test_cuda_home_comes_before_path(linux, tmp_path):
    fake_nvcc(tmp_path / "path", "13.0.88")
    path = fake_nvcc(tmp_path / "home" / "bin", "13.2.86")
    environ = {"PATH": str(tmp_path / "path"), "CUDA_HOME": str(tmp_path / "home")}
    assert cuda_compiler.choose(environ) == cuda_compiler.Nvcc(path, "13.2.86", "CUDA_HOME")


def test_an_old_nvcc_is_not_taken(linux, tmp_path):
    fake_nvcc(tmp_path, "12.4.131")
    environ = {"PATH": str(tmp_path)}
    assert cuda_compiler.build_requirements(environ) == cuda_compiler.CUDA_WHEELS
    with pytest.raises(cuda_compiler.CudaError, match=r"nvcc 12\.4\.131 from PATH is older than 12\.8; no CUDA wheels"):
        cuda_compiler.choose(environ)


def test_an_old_nvcc_does_not_hide_a_newer_one(linux, tmp_path):
    fake_nvcc(tmp_path / "home" / "bin", "11.8.89")
    path = fake_nvcc(tmp_path / "path", "13.0.88")
    environ = {"PATH": str(tmp_path / "path"), "CUDA_HOME": str(tmp_path / "home")}
    assert cuda_compiler.choose(environ).path == path


def test_the_wheel_can_be_preferred(linux, tmp_path):
    fake_nvcc(tmp_path, "13.0.88")
    wheel = cuda_compiler.Nvcc(tmp_path / "wheel", "13.2.86", "the PyPI wheels")
    linux.setattr(cuda_compiler, "wheel_nvcc", lambda: (wheel, ""))
    environ = {"PATH": str(tmp_path), "JAX_MOYE_CUDA_PREFER_WHEEL": "1"}
    assert cuda_compiler.build_requirements(environ) == cuda_compiler.CUDA_WHEELS
    assert cuda_compiler.choose(environ) == wheel
    assert cuda_compiler.choose({**environ, "JAX_MOYE_CUDA_PREFER_WHEEL": "0"}).origin == "PATH"


def test_cudacxx_wins_and_must_run(linux, tmp_path):
    fake_nvcc(tmp_path / "path", "13.0.88")
    old = fake_nvcc(tmp_path / "own", "12.4.131")  # the user said so: no question about its age
    environ = {"PATH": str(tmp_path / "path"), "CUDACXX": str(old)}
    assert cuda_compiler.build_requirements(environ) == []
    assert cuda_compiler.choose(environ) == cuda_compiler.Nvcc(old, "12.4.131", "CUDACXX")
    with pytest.raises(cuda_compiler.CudaError, match="CUDACXX=/no/such/nvcc is no nvcc that runs"):
        cuda_compiler.choose({**environ, "CUDACXX": "/no/such/nvcc"})


@pytest.mark.parametrize(
    ("system", "machine", "reason"),
    [("darwin", "arm64", "on Linux, not on darwin"), ("linux", "riscv64", "x86_64 and aarch64, not on riscv64")],
)
def test_other_platforms_build_for_the_cpu(linux, tmp_path, system, machine, reason):
    linux.setattr(cuda_compiler.sys, "platform", system)
    linux.setattr(cuda_compiler.platform, "machine", lambda: machine)
    assert cuda_compiler.build_requirements({"PATH": ""}) == []
    with pytest.raises(cuda_compiler.CudaError, match=reason):
        cuda_compiler.choose({"PATH": ""})


def test_auto_asks_for_no_wheels_that_cannot_be_installed(linux):
    linux.setattr(cuda_compiler, "wheels_installable", lambda: False)  # musl, say
    assert cuda_compiler.build_requirements({"PATH": ""}) == []
    assert cuda_compiler.build_requirements({"PATH": "", "JAX_MOYE_CUDA": "ON"}) == cuda_compiler.CUDA_WHEELS


@pytest.fixture
def pinned(tmp_path, monkeypatch):
    """A wheel, its pin, and its files where pip would install them."""
    wheel, site, info = tmp_path / "wheel.whl", tmp_path / "site", "nvidia_cuda_nvcc-1.0.dist-info"
    contents = {"nvidia/cu13/bin/nvcc": "compiles", f"{info}/METADATA": "Name: nvidia-cuda-nvcc\nVersion: 1.0\n"}
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in {**contents, f"{info}/RECORD": "of the wheel"}.items():
            archive.writestr(name, text)
    digest = cuda_compiler.digest_of_wheel(wheel)
    monkeypatch.setattr(cuda_compiler, "PINS", {"nvidia-cuda-nvcc": {"version": "1.0", "x86_64": digest}})
    monkeypatch.setattr(cuda_compiler.platform, "machine", lambda: "x86_64")
    monkeypatch.syspath_prepend(site)
    contents |= {f"{info}/INSTALLER": "pip", "nvidia/__pycache__/a.pyc": "", f"{info}/RECORD": ""}
    contents[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in contents)
    for name, text in contents.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    importlib.invalidate_caches()
    return site


def test_the_pinned_wheel_is_used(pinned):
    assert cuda_compiler.why_not_as_pinned("nvidia-cuda-nvcc") is None


def test_a_wheel_with_other_contents_is_not_used(pinned, monkeypatch):
    """Whether a file of it was changed, or added; another version is somebody else's."""
    nvcc = pinned / "nvidia/cu13/bin/nvcc"
    nvcc.write_text("compiles, and more")
    reason = cuda_compiler.why_not_as_pinned("nvidia-cuda-nvcc")
    assert reason.startswith("nvidia-cuda-nvcc 1.0 is not the wheel that is pinned: what is in it has the digest ")
    nvcc.unlink()
    # Python 3.12 and newer leave what is missing out of a distribution's files.
    why = cuda_compiler.why_not_as_pinned("nvidia-cuda-nvcc")
    assert re.search("No such file|is not the wheel that is pinned", why)
    nvcc.write_text("compiles")
    assert cuda_compiler.why_not_as_pinned("nvidia-cuda-nvcc") is None
    record = pinned / "nvidia_cuda_nvcc-1.0.dist-info/RECORD"
    (pinned / "extra.pth").write_text("import os")
    record.write_text(record.read_text() + "extra.pth,,\n")
    assert "is not the wheel" in cuda_compiler.why_not_as_pinned("nvidia-cuda-nvcc")
    cuda_compiler.PINS["nvidia-cuda-nvcc"]["version"] = "1.1"
    assert cuda_compiler.why_not_as_pinned("nvidia-cuda-nvcc") is None


def test_no_nvcc_of_a_wheel_that_is_not_the_pinned_one(monkeypatch, tmp_path):
    for name in cuda_compiler.WHEEL_FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(cuda_compiler, "wheel_root", lambda: tmp_path)
    monkeypatch.setattr(cuda_compiler.importlib.metadata, "version", lambda name: "13.2.86")
    monkeypatch.setattr(cuda_compiler, "_is_installed", lambda name: False)
    monkeypatch.setattr(cuda_compiler, "why_not_as_pinned", lambda name: f"{name} differs" if "crt" in name else None)
    monkeypatch.setattr(cuda_compiler, "nvcc_version", lambda path: pytest.fail("it was run"))
    assert cuda_compiler.wheel_nvcc() == (None, "nvidia-cuda-crt differs")


def test_every_wheel_is_pinned_for_both_machines():
    assert set(cuda_compiler.WHEEL_DISTRIBUTIONS) < cuda_compiler.PINS.keys()
    for pin in cuda_compiler.PINS.values():
        assert pin.keys() == {"version", *cuda_compiler.MACHINES}
        assert all(re.fullmatch("[0-9a-f]{64}", pin[machine]) for machine in cuda_compiler.MACHINES)
    assert all("==" in requirement for requirement in cuda_compiler.CUDA_WHEELS)


def test_toolkit_has_what_cmake_looks_for(tmp_path):
    root = tmp_path / "nvidia" / "cu13"
    for name in (*cuda_compiler.WHEEL_FILES, "lib/libcudart.so.13"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    toolkit = tmp_path / "toolkit"
    for _ in range(2):  # the second configuration finds the first one's folder
        cuda_compiler.make_toolkit(root, toolkit)
        for name in cuda_compiler.WHEEL_FILES:
            assert (toolkit / name).read_text() == name
        assert (toolkit / "lib" / "libcudart.so").resolve() == root / "lib" / "libcudart.so.13"
        assert (toolkit / "lib64" / "libcudart_static.a").exists()
        assert not (toolkit / "bin").is_symlink()  # nvcc looks for its parts in bin/..


def test_a_compiler_that_cannot_compile_is_named(tmp_path):
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'host_config.h: error: unsupported GNU version!' >&2\nexit 1\n")
    nvcc.chmod(0o755)
    with pytest.raises(
        cuda_compiler.CudaError, match=r"cannot compile with g\+\+: host_config.h: error: unsupported GNU"
    ):
        cuda_compiler.check_compiles(nvcc, "g++")


def test_the_backend_adds_to_scikit_build_cores_requirements(monkeypatch):
    pytest.importorskip("scikit_build_core")
    backend = load("jax_moye_build")
    from scikit_build_core import build

    monkeypatch.setattr(build, "get_requires_for_build_wheel", lambda settings: ["cmake"])
    monkeypatch.setattr(build, "get_requires_for_build_editable", lambda settings: ["ninja"])
    monkeypatch.setattr(cuda_compiler, "build_requirements", lambda: ["nvcc"])
    assert backend.get_requires_for_build_wheel() == ["cmake", "nvcc"]
    assert backend.get_requires_for_build_editable() == ["ninja", "nvcc"]
    for hook in ("build_wheel", "build_sdist", "build_editable"):
        assert getattr(backend, hook) is getattr(build, hook)
