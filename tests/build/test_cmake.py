"""cmake/: the rows of the table become source files, and JAX_MOYE_CUDA_ARCHS limits the architectures."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TABLE = (ROOT / "cuda/gemm/configs.h").read_text()

# The extra `test` installs one beside this Python, whose folder need not be on PATH; the system's may be too old.
CMAKE = shutil.which("cmake", path=pathlib.Path(sys.executable).parent) or shutil.which("cmake")
pytestmark = pytest.mark.skipif(CMAKE is None, reason="no cmake on PATH or beside this Python")


def run_cmake(folder, script, **variables):
    """Runs `script` with the modules of cmake/ at hand."""
    path = folder / "script.cmake"
    modules = ROOT / "cmake"
    path.write_text(f"cmake_minimum_required(VERSION 3.26)\nlist(APPEND CMAKE_MODULE_PATH {modules})\n{script}\n")
    defines = [f"-D{key}={value}" for key, value in variables.items()]
    return subprocess.run([CMAKE, *defines, "-P", path], capture_output=True, text=True, cwd=folder)


def read_table(folder, table):
    """Runs the reader of the table over `table` and writes the rows' files into `folder`/build."""
    gemm = folder / "cuda" / "gemm"
    gemm.mkdir(parents=True)
    (gemm / "configs.h").write_text(table)
    for name in ("config.h", "instance.cu.in"):
        shutil.copy(ROOT / "cuda" / "gemm" / name, gemm)
    script = 'include(JaxMoyeConfigs)\njax_moye_instances(cu files)\nmessage("${JAX_MOYE_CONFIGS}")'
    return run_cmake(folder, script, PROJECT_SOURCE_DIR=folder, PROJECT_BINARY_DIR=folder / "build")


def check_rows(folder):
    """Compiles the file that compares CMake's number of rows with the compiler's."""
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'cuda'}", folder / "build" / "rows_check.cc"]
    # The row count is the table's of `folder`; everything else it includes is the repository's.
    command.insert(3, f"-I{folder / 'cuda'}")
    return subprocess.run(command, capture_output=True, text=True)


def test_rows_get_the_names_that_the_kernels_compute(tmp_path):
    import jax_moye

    run = read_table(tmp_path, TABLE)
    assert run.returncode == 0, run.stderr
    names = run.stderr.strip().split(";")
    assert names == [config.name for config in jax_moye.configs()]
    assert sorted(path.stem for path in (tmp_path / "build" / "cu").iterdir()) == sorted(names)


def test_a_rows_file_instantiates_the_row(tmp_path):
    row = "{sm80_multistage,  bf16,  { 64,  64, 32},   3,       2}"
    assert read_table(tmp_path, f"inline constexpr GemmConfig kGemmConfigs[] = {{\n  {row},\n}};\n").returncode == 0
    text = (tmp_path / "build" / "cu" / "sm80_multistage_bf16_64x64x32_s3_a2.cu").read_text()
    assert '#include "gemm/sm80_multistage.cuh"' in text
    assert f"gemm_entry<GemmConfig{row}>" in text


def test_the_compiler_sees_as_many_rows(tmp_path):
    assert read_table(tmp_path, TABLE).returncode == 0
    run = check_rows(tmp_path)
    assert run.returncode == 0, run.stderr


def test_a_row_that_cmake_misses_does_not_compile(tmp_path):
    first = TABLE.index("  {sm80_multistage")
    hidden = TABLE[:first] + "  /* mine */ {sm80_multistage, bf16, f32, {64, 128, 32}, 3, {1, 1}, 16},\n" + TABLE[first:]
    assert read_table(tmp_path, hidden).returncode == 0
    run = check_rows(tmp_path)
    assert run.returncode != 0
    assert "rows that CMake did not find" in run.stderr


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{sm80_multistage, bf16, f32, {64, 64}, 3, {1, 1}, 16},", "cannot read the row"),
        ("{sm80_multistage, bf16, {64, 64, 32}, 3},", "cannot read the row"),
        ("{sm80_multistage, bf16, f32, {64, 64, kTile}, 3, {1, 1}, 16},", "cannot read the row"),
        ("{sm80_multistage, bf16, f32, {64, 64, 64}, 3, {1, 1}, 16},", "two rows are sm80_multistage_bf16_64x64x64_s3_a16"),
    ],
)
def test_a_bad_row_is_shown(tmp_path, row, message):
    first = TABLE.index("  {sm80_multistage")
    assert "{sm80_multistage,  bf16,  { 64,  64, 64},   3,      16}," in TABLE
    run = read_table(tmp_path, f"{TABLE[:first]}  {row}\n{TABLE[first:]}")
    assert run.returncode != 0
    assert message in " ".join(run.stderr.split())


@pytest.mark.parametrize(
    ("wanted", "kept"),
    [
        ("", "80;90;100;120"),
        ("90", "90"),
        ("90a", "90"),
        ("80;90", "80;90"),
        ("80,90", "80;90"),
        ("86", "80"),  # sm_80's code runs there
        ("89-real", "80"),
        ("103", "100"),
        ("12.0", "120"),
        ("8.6 9.0", "80;90"),
    ],
)
def test_architectures(tmp_path, wanted, kept):
    script = 'include(JaxMoyeArchs)\njax_moye_limit_archs(archs ${JAX_MOYE_PORTABLE_ARCHS})\nmessage("${archs}")'
    run = run_cmake(tmp_path, script, JAX_MOYE_CUDA_ARCHS=wanted)
    assert (run.returncode, run.stderr.strip()) == (0, kept)


@pytest.mark.parametrize(
    ("archs", "code"),
    [("80 90 100 120", "compute_80,sm_80,sm_90,sm_100,sm_120"), ("90", "sm_90"), ("80", "compute_80,sm_80")],
)
def test_generated_code(tmp_path, archs, code):
    run = run_cmake(tmp_path, f'include(JaxMoyeArchs)\njax_moye_generate_code(flag {archs})\nmessage("${{flag}}")')
    assert run.stderr.strip() == f"--generate-code=arch=compute_80,code=[{code}]"


@pytest.mark.parametrize("wanted", ["75", "130"])
def test_no_architecture_left(tmp_path, wanted):
    script = "include(JaxMoyeArchs)\njax_moye_limit_archs(archs ${JAX_MOYE_PORTABLE_ARCHS})"
    run = run_cmake(tmp_path, script, JAX_MOYE_CUDA_ARCHS=wanted)
    assert run.returncode != 0
    assert f"JAX_MOYE_CUDA_ARCHS={wanted} leaves none" in " ".join(run.stderr.split())
