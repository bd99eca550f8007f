"""Wheels and the sdist: what is in them, how releases are built, the scripts that check it. No kernel is compiled."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from importlib import metadata

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CIBUILDWHEEL = PROJECT["tool"]["cibuildwheel"]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


check_wheel = load(ROOT / "tools" / "check_wheel.py")


@pytest.fixture(scope="module")
def installed():
    """The files that pip installed, {name: path}, without those that pip itself adds."""
    try:
        distribution = metadata.distribution("jax-moye")
    except metadata.PackageNotFoundError:
        pytest.skip("jax_moye was built in place, not installed by pip")
    if any(file.name.startswith("_jax_moye_editable") for file in distribution.files):
        pytest.skip("an editable install has no files")
    of_pip = {"INSTALLER", "REQUESTED", "direct_url.json"}
    return {
        file.as_posix(): file.locate()
        for file in distribution.files
        if file.name not in of_pip and file.suffix != ".pyc" and file.parts[0] != ".."  # scripts, in bin/
    }


def test_what_is_installed_is_a_right_wheel(installed):
    cpu = not any("_moye_cuda." in name and name.endswith(".so") for name in installed)
    # A part: CI builds some of the rows.
    faults = check_wheel.problems(installed, lambda name: installed[name].read_bytes(), subset=True, cpu=cpu)
    assert faults == []


def test_what_is_installed_works_without_a_gpu(installed, tmp_path):
    if not any("_moye_cuda." in name and name.endswith(".so") for name in installed):
        pytest.skip("built without the CUDA kernels, which a wheel has")
    command = [sys.executable, "-I", ROOT / "scripts" / "wheel_smoke.py"]
    environ = dict(os.environ, JAX_PLATFORMS="cpu")
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert run.returncode == 0, run.stdout + run.stderr


# ---- tools/check_wheel.py on a wheel that is right, and on each way to spoil it


@pytest.fixture(scope="module")
def module(tmp_path_factory):
    """The bytes of a shared library as a release's are: stripped, and linked with libc alone."""
    folder = tmp_path_factory.mktemp("module")
    (folder / "x.cc").write_text('extern "C" int x() { return 1; }')
    subprocess.run(["g++", "-shared", "-fPIC", "-s", "x.cc", "-o", "x.so"], cwd=folder, check=True)
    return (folder / "x.so").read_bytes()


@pytest.fixture
def files(module):
    """A wheel that is right, {name: bytes}."""
    architectures = dict.fromkeys(sorted(check_wheel.architectures()), 128)
    project = PROJECT["project"]
    version = check_wheel.version()
    lines = [f"Name: {project['name']}", f"Version: {version}", f"License-Expression: {project['license']}"]
    lines += [f"Requires-Python: {project['requires-python']}"]
    lines += [f"Requires-Dist: {requirement}" for requirement in project["dependencies"]]
    lines += [f"Provides-Extra: {extra}" for extra in project["optional-dependencies"]]
    info = f"jax_moye-{version}.dist-info"
    found = {name: b"" for name in check_wheel.package_sources() | check_wheel.for_own_kernels()}
    found |= {
        "jax_moye/_moye_cpu.abi3.so": module,
        "jax_moye/_moye_cuda.abi3.so": module,
        "jax_moye/_registers.json": json.dumps(
            {f"row{index}": architectures for index in range(check_wheel.table_rows())}
        ).encode(),
        f"{info}/METADATA": "\n".join(lines).encode(),
        f"{info}/RECORD": b"",
        f"{info}/entry_points.txt": b"[console_scripts]\njax-moye = jax_moye.__main__:main\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nTag: cp312-abi3-manylinux_2_28_x86_64\n",
        f"{info}/licenses/LICENSE": b"",
        f"{info}/licenses/nanobind/LICENSE": b"",
    }
    return found


def problems(files, **options):
    return check_wheel.problems(files, files.__getitem__, **options)


def test_a_right_wheel(files):
    assert problems(files) == []


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("jax_moye/_moye_cuda.abi3.so", r"lacks jax_moye/_moye_cuda\.abi3\.so"),
        ("jax_moye/_registers.json", r"lacks jax_moye/_registers\.json"),
        ("jax_moye/_api/matmul.py", r"lacks jax_moye/_api/matmul\.py"),
        ("jax_moye/include/moye/moye.h", r"lacks jax_moye/include/moye/moye\.h"),
        ("jax_moye/build/cuda_wheels.json", r"lacks jax_moye/build/cuda_wheels\.json"),
        ("jax_moye/build/nvcc_gate.py", r"lacks jax_moye/build/nvcc_gate\.py"),
        ("jax_moye/include/gemm/simt_tiled.cuh", r"lacks jax_moye/include/gemm/simt_tiled\.cuh"),
        ("jax_moye/py.typed", r"lacks jax_moye/py\.typed"),
        ("jax_moye/_moye_cpu.pyi", r"lacks jax_moye/_moye_cpu\.pyi"),
        ("entry_points.txt", r"lacks \*\.dist-info/entry_points\.txt"),
        ("licenses/LICENSE", r"lacks \*\.dist-info/licenses/LICENSE"),
        ("licenses/nanobind/LICENSE", r"lacks \*\.dist-info/licenses/nanobind/LICENSE"),
    ],
)
def test_a_file_is_missing(files, name, fault):
    (found,) = [file for file in files if file.endswith(name)]
    del files[found]
    (line,) = problems(files)
    assert re.fullmatch(fault, line)


@pytest.mark.parametrize(
    "name",
    ["build/CMakeCache.txt", "jax_moye/row.cu.o", "jax_moye/_moye_cpu.cpython-311-x86_64-linux-gnu.so", "tests/a.py"],
)
def test_a_leftover_is_named(files, module, name):
    files[name] = module
    assert problems(files) == [f"contains {name}, which is neither a source nor built"]


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("Version: ", "Version: 9", "METADATA: Version is 9"),
        ("numpy>=", "numpy>=9", "METADATA: requires"),
        ("Requires-Dist: numpy", "Requires-Dist: torch\nRequires-Dist: numpy", "METADATA: requires"),
        ("Provides-Extra: cuda13", "", "METADATA: extras are"),
        ("Requires-Python: >=", "Requires-Python: >=9", "METADATA: Requires-Python is"),
    ],
)
def test_metadata_is_pyprojects(files, old, new, fault):
    (name,) = [name for name in files if name.endswith("/METADATA")]
    text = files[name].decode()
    assert old in text
    files[name] = text.replace(old, new).encode()
    (line,) = problems(files)
    assert line.startswith(fault)


@pytest.mark.parametrize("text", ["", "[console_scripts]\njax-moye = jax_moye:main\n"], ids=["none", "another"])
def test_scripts_are_pyprojects(files, text):
    (name,) = [name for name in files if name.endswith("/entry_points.txt")]
    files[name] = text.encode()
    (line,) = problems(files)
    assert line.startswith("entry_points.txt: scripts are ")


@pytest.mark.parametrize(
    ("tag", "fault"),
    [
        ("cp313-abi3-manylinux_2_28_x86_64", "its tags are"),
        ("py3-none-any", "its tags are"),
        ("cp312-abi3-win_amd64", "is not for Linux"),
    ],
)
def test_tags(files, tag, fault):
    (name,) = [name for name in files if name.endswith("/WHEEL")]
    files[name] = f"Tag: {tag}\n".encode()
    (line,) = problems(files)
    assert fault in line


def test_modules_are_of_the_tags_python(files, module):
    (name,) = [name for name in files if name.endswith("/WHEEL")]
    files[name] = b"Tag: cp311-cp311-manylinux_2_28_x86_64\n"
    assert len(problems(files)) == 4  # two are missing, two do not belong there
    for suffix in ("cpu", "cuda"):
        del files[f"jax_moye/_moye_{suffix}.abi3.so"]
        files[f"jax_moye/_moye_{suffix}.cpython-311-x86_64-linux-gnu.so"] = module
    assert problems(files) == []


def test_all_rows_and_architectures(files):
    registers = json.loads(files["jax_moye/_registers.json"])
    for row in registers.values():
        del row["sm_90a"]
    registers.pop("row0")
    files["jax_moye/_registers.json"] = json.dumps(registers).encode()
    rows = check_wheel.table_rows()
    assert problems(files) == [f"{rows - 1} rows are compiled, configs.h has {rows}", "no code for ['sm_90a']"]
    assert problems(files, subset=True) == []
    registers["row1"] = {}
    files["jax_moye/_registers.json"] = json.dumps(registers).encode()
    assert problems(files, subset=True) == ["_registers.json: rows without machine code"]


def test_architectures_are_those_of_cmake():
    assert check_wheel.architectures() == {"sm_80", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"}


def test_libraries_search_paths_and_symbols(tmp_path):
    # As a module linked with cudart's shared library would be.
    (tmp_path / "cudart.cc").write_text("int cudart() { return 1; }")
    (tmp_path / "x.cc").write_text("int cudart(); int x() { return cudart(); }")
    shared = ["g++", "-shared", "-fPIC"]
    named = ["-Wl,-soname,libcudart.so.13"]
    subprocess.run([*shared, *named, "cudart.cc", "-o", "libcudart.so"], cwd=tmp_path, check=True)
    linked = ["-L.", "-lcudart", "-Wl,-rpath,/opt/cuda"]
    subprocess.run([*shared, "x.cc", "-o", "x.so", *linked], cwd=tmp_path, check=True)
    assert check_wheel.module_problems(tmp_path / "x.so") == [
        "needs libcudart.so.13, which not every machine has",
        "has the search path /opt/cuda",
        "is not stripped: .symtab",
    ]


def test_the_builds_path_is_found(files, module):
    files["jax_moye/_moye_cpu.abi3.so"] = module + os.fsencode(ROOT / "cuda" / "gemm" / "operand.h")
    assert problems(files) == [f"jax_moye/_moye_cpu.abi3.so contains the path of the build, {ROOT}"]


def test_size_name_and_status(files, tmp_path):
    def write(name):
        with zipfile.ZipFile(tmp_path / name, "w") as archive:
            for file, content in files.items():
                archive.writestr(file, content)
        return tmp_path / name

    def run(path):
        command = [sys.executable, ROOT / "tools" / "check_wheel.py", path]
        return subprocess.run(command, capture_output=True, text=True)

    right = write("jax_moye-0.1.0-cp312-abi3-manylinux_2_28_x86_64.whl")
    done = run(right)
    assert (done.returncode, done.stdout.count("\n")) == (0, 1), done.stdout + done.stderr
    done = run(write("jax_moye-0.1.0-cp312-abi3-linux_x86_64.whl"))
    assert done.returncode == 1
    assert "other tags than its WHEEL" in done.stdout
    with open(right, "r+b") as file:  # a zip file may begin with anything
        content = file.read()
        file.truncate(check_wheel.MAX_BYTES)
        file.seek(check_wheel.MAX_BYTES)
        file.write(content)
    (line,) = check_wheel.wheel_problems(right)
    assert line.endswith("the limit is 60 MB")


# ---- the sdist, and what scikit-build-core takes from the package's folder


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """A copy of the sources in which somebody has built in place."""
    folder = tmp_path_factory.mktemp("checkout") / "jax_moye"
    caches = (
        "__pycache__",
        ".*_cache",
        ".cache",
        ".hypothesis",
        ".venv",
        ".git",
        "*.egg-info",
        "compile_commands.json",
    )
    ignored = shutil.ignore_patterns(*caches, "*.so", "_registers.json")
    shutil.copytree(ROOT, folder, ignore=lambda path, names: {*ignored(path, names), *top_left_out(path, names)})
    for name in ("build/CMakeCache.txt", "dist/old.whl", "jax_moye/_moye_cpu.abi3.so", "jax_moye/_registers.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    return folder


def top_left_out(path, names):
    # Builds and scratch of this checkout, of any size.
    return [name for name in names if path == str(ROOT) and name in ("build", "dist", ".benchmarks", ".gpu_tree")]


def scikit_build(checkout, hook, out, settings):
    pytest.importorskip("scikit_build_core")
    code = f"from scikit_build_core.build import {hook} as hook; print(hook({str(out)!r}, {settings!r}))"
    run = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return out / run.stdout.splitlines()[-1]


def test_sdist_has_what_a_build_needs(checkout, tmp_path):
    path = scikit_build(checkout, "build_sdist", tmp_path, {})
    assert path.stat().st_size < 10_000_000
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    folders = ("build_backend", "cmake", "cuda", "ffi", "tools", "scripts", "tests", "benchmarks", "docs", "examples")
    needed = {path for folder in folders for path in (checkout / folder).rglob("*") if path.is_file()}
    needed = {path.relative_to(checkout).as_posix() for path in needed}
    needed |= check_wheel.package_sources(checkout) | {"CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"}
    assert needed - names == set()
    built = (".so", ".whl", "CMakeCache.txt", "_registers.json")
    assert not [name for name in names if name.endswith(built)]


def test_a_wheel_takes_the_sources_and_nothing_built_in_place(checkout, tmp_path):
    path = scikit_build(checkout, "build_wheel", tmp_path, {"wheel.cmake": "false", "wheel.py-api": "py3"})
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == check_wheel.package_sources(checkout)


# ---- how releases are built


def test_a_release_is_a_wheel_for_311_and_one_for_all_newer():
    assert CIBUILDWHEEL["build"] == ["cp311-manylinux_*", "cp312-manylinux_*"]
    assert PROJECT["tool"]["scikit-build"]["wheel"]["py-api"] == "cp312"
    assert PROJECT["project"]["requires-python"] == ">=3.11"
    assert CIBUILDWHEEL["manylinux-x86_64-image"] == "manylinux_2_28"


def test_a_release_is_built_by_pypis_nvcc_and_may_not_leave_the_kernels_out():
    assert CIBUILDWHEEL["environment"] == {"JAX_MOYE_CUDA": "ON", "JAX_MOYE_CUDA_PREFER_WHEEL": "1"}
    defined = PROJECT["tool"]["scikit-build"]["cmake"]["define"]
    for name in [*CIBUILDWHEEL["environment"], *CIBUILDWHEEL["environment-pass"]]:
        assert defined[name]["env"] == name, f"{name} does not reach CMake"
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert not re.search("|".join(CIBUILDWHEEL["environment-pass"]), workflow), "a release has all rows"


def test_a_release_is_checked_and_tried():
    repair, test = CIBUILDWHEEL["repair-wheel-command"], CIBUILDWHEEL["test-command"]
    assert repair[0].startswith("auditwheel repair -w {dest_dir} {wheel}")
    assert repair[1].startswith("python {project}/tools/check_wheel.py ")
    assert repair[1].endswith(" {dest_dir}/*.whl")
    assert test[0] == "python {project}/scripts/wheel_smoke.py"
    assert "-m 'not gpu'" in test[1]
    for name in re.findall(r"\{project\}/(\S+)", " ".join([*repair, *test])):
        assert (ROOT / name).exists(), name
    assert CIBUILDWHEEL["test-environment"] == {"JAX_PLATFORMS": "cpu"}
    assert set(CIBUILDWHEEL["test-extras"]) <= set(PROJECT["project"]["optional-dependencies"])


def test_workflow_and_dev_extra_pin_the_same_cibuildwheel():
    (pin,) = [pin for pin in PROJECT["project"]["optional-dependencies"]["dev"] if pin.startswith("cibuildwheel")]
    workflow = (ROOT / ".github" / "workflows" / "wheels.yml").read_text()
    assert f"pipx run {pin}\n" in workflow


def test_cibuildwheel_reads_the_configuration():
    pytest.importorskip("cibuildwheel")
    for machine in ("x86_64", "aarch64"):
        command = [sys.executable, "-m", "cibuildwheel", "--print-build-identifiers", "--platform", "linux"]
        run = subprocess.run([*command, "--archs", machine, ROOT], capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        assert run.stdout.split() == [f"cp311-manylinux_{machine}", f"cp312-manylinux_{machine}"]


# ---- scripts/wheel_check.sh


def test_script_is_bash_and_refuses_what_it_does_not_know(tmp_path):
    script = ROOT / "scripts" / "wheel_check.sh"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    for arguments in (["--nonsense"], ["--wheel", tmp_path / "none.whl"]):
        run = subprocess.run([script, *arguments], capture_output=True, text=True, env=dict(os.environ, OUT=tmp_path))
        assert run.returncode == 2
        assert str(arguments[-1]) in run.stderr


def test_script_fails_for_a_wheel_that_is_none(tmp_path):
    (tmp_path / "jax_moye-0.1.0-cp312-abi3-linux_x86_64.whl").write_text("")
    python = tmp_path / "python"  # without `venv`, which would take seconds
    python.write_text(f'#!/bin/sh\n[ "$2" != venv ] && exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    environ = dict(os.environ, OUT=str(tmp_path / "out"), PYTHON=str(python))
    command = [ROOT / "scripts" / "wheel_check.sh", "--venv", "--wheel", next(tmp_path.glob("*.whl"))]
    run = subprocess.run(command, capture_output=True, text=True, env=environ)
    assert run.returncode == 1
    summary = run.stdout.partition("==== summary")[2]
    assert "FAILED   contents" in summary
    assert "FAILED   prove" in summary
