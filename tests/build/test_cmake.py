"""cmake/: the rows of the table become source files, and JAX_MOYE_CUDA_ARCHS limits the architectures."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from jax_moye._kernels.config_names import parse_row, rows_of

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


def read_table(folder, table, **variables):
    """Runs the reader of the table over `table` and writes the rows' files into `folder`/build."""
    gemm = folder / "cuda" / "gemm"
    gemm.mkdir(parents=True)
    (gemm / "configs.h").write_text(table)
    for name in ("config.h", "instance.cu.in"):
        shutil.copy(ROOT / "cuda" / "gemm" / name, gemm)
    script = "include(JaxMoyeConfigs)\njax_moye_instances(cu files ${JAX_MOYE_BUILT_CONFIGS})\n"
    script += 'message("${JAX_MOYE_BUILT_CONFIGS}")'
    return run_cmake(folder, script, PROJECT_SOURCE_DIR=folder, PROJECT_BINARY_DIR=folder / "build", **variables)


def check_rows(folder):
    """Compiles the file that compares CMake's number of rows with the compiler's."""
    command = ["g++", "-std=c++20", "-fsyntax-only", f"-I{ROOT / 'cuda'}", folder / "build" / "configs_check.cc"]
    # The row count is the table's of `folder`; everything else it includes is the repository's.
    command.insert(3, f"-I{folder / 'cuda'}")
    return subprocess.run(command, capture_output=True, text=True)


def test_rows_get_the_names_that_the_kernels_compute(tmp_path):
    import jax_moye

    run = read_table(tmp_path, TABLE)
    assert run.returncode == 0, run.stderr
    names = run.stderr.strip().split(";")
    built = [config.name for config in jax_moye.configs()]  # some of the rows, where JAX_MOYE_CONFIGS says so
    assert [name for name in names if name in built] == built
    assert len(names) == len(re.findall(r"^ *\{\w+, ", TABLE, re.MULTILINE))
    assert names == [parse_row(row).name for row in rows_of(TABLE)]  # as Python makes them
    assert sorted(path.stem for path in (tmp_path / "build" / "cu").glob("*.cu")) == sorted(names)
    assert (tmp_path / "build" / "cu" / "gemm" / "configs.h").read_text() == TABLE


def registered(folder):
    """The names that ffi/registry.cc registers with the table in `folder`, where no kernel is compiled."""
    program = folder / "names.cc"
    program.write_text(
        """#include <cstdio>
#include "registry.h"
namespace moye {
template <GemmConfig kConfig> GemmEntry gemm_entry() { return {}; }
}
#include "registry.cc"
int main() { for (auto const& gemm : moye::registered_gemms()) std::printf("%s\\n", gemm.name.c_str()); }
"""
    )
    includes = [f"-I{folder / 'build' / 'cu'}", f"-I{ROOT / 'cuda'}", f"-I{ROOT / 'ffi'}"]
    subprocess.run(["g++", "-std=c++20", *includes, program, "-o", folder / "names"], check=True)
    return subprocess.run([folder / "names"], capture_output=True, text=True, check=True).stdout.split()


def test_some_rows(tmp_path):
    run = read_table(tmp_path, TABLE, JAX_MOYE_CONFIGS="^simt_tiled_f32|_bf16_128x.*_s4_a16$")
    assert run.returncode == 0, run.stderr
    names = run.stderr.strip().split(";")
    assert "sm80_multistage_bf16_128x128x32_s4_a16" in names
    assert "simt_tiled_f32_64x64x8_s1_a4" in names
    assert all(name.startswith("simt_tiled_f32") or "bf16_128x" in name for name in names)
    assert sorted(path.stem for path in (tmp_path / "build" / "cu").glob("*.cu")) == sorted(names)
    assert registered(tmp_path) == names  # a row that was not built does not exist
    assert check_rows(tmp_path).returncode == 0  # and the check still counts the whole table


def test_an_expression_that_finds_no_row(tmp_path):
    run = read_table(tmp_path, TABLE, JAX_MOYE_CONFIGS="^sm79_")
    assert run.returncode != 0
    assert "JAX_MOYE_CONFIGS=^sm79_ matches none of the" in " ".join(run.stderr.split())


def test_a_rows_file_instantiates_the_row(tmp_path):
    row = "{sm80_multistage,  bf16,  f32,  { 64,  64, 32},   3,      {1, 1},          2}"
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
    hidden = (
        TABLE[:first] + "  /* mine */ {sm80_multistage, bf16, f32, {64, 128, 32}, 3, {1, 1}, 16},\n" + TABLE[first:]
    )
    assert read_table(tmp_path, hidden).returncode == 0
    run = check_rows(tmp_path)
    assert run.returncode != 0
    assert "rows that CMake did not find" in run.stderr


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{sm80_multistage, bf16, f32, {64, 64}, 3, {1, 1}, 16},", "cannot read the row"),
        ("{sm80_multistage, bf16, {64, 64, 32}, 3},", "cannot read the row"),
        ("{sm80_multistage, bf16, {64, 64, 32}, 3, 16},", "cannot read the row"),
        ("{sm80_multistage, bf16, f32, {64, 64, kTile}, 3, {1, 1}, 16},", "cannot read the row"),
        (
            "{sm80_multistage, bf16, f32, {64, 64, 64}, 3, {1, 1}, 16},",
            "two rows are sm80_multistage_bf16_64x64x64_s3_a16",
        ),
    ],
)
def test_a_bad_row_is_shown(tmp_path, row, message):
    first = TABLE.index("  {sm80_multistage")
    assert re.search(r"{sm80_multistage, *bf16, *f32, *{ 64, *64, *64}, *3, *{1, 1}, *16},", TABLE)
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
    ("kernel", "dtype", "wanted", "code"),
    [
        ("sm80_multistage", "bf16", "", "compute_80,code=[compute_80,sm_80,sm_90,sm_100,sm_120]"),
        ("sm80_multistage", "s8", "80", "compute_80,code=[compute_80,sm_80]"),
        ("sm80_multistage", "e4m3", "", "compute_89,code=[compute_89,sm_89,sm_90,sm_100,sm_120]"),
        ("sm80_multistage", "e4m3xe5m2", "9.0", "compute_89,code=[sm_90]"),
        ("sm80_persistent", "e5m2", "9.0", "compute_89,code=[sm_90]"),
        ("sm90_cooperative", "bf16", "", "compute_90a,code=[sm_90a]"),
        ("sm90_pingpong", "e4m3", "90a", "compute_90a,code=[sm_90a]"),
        ("sm90_pingpong", "e4m3", "90", "compute_90a,code=[sm_90a]"),
        ("sm70_tensorop", "f16", "120", "compute_80,code=[sm_120]"),
        # Nothing is left to compile: the row is not in this build.
        ("sm80_multistage", "e4m3", "86", "compute_89,code=[]"),
        ("sm90_cooperative", "bf16", "100", "compute_90a,code=[]"),
    ],
)
def test_code_of_a_row(tmp_path, kernel, dtype, wanted, code):
    script = f"""include(JaxMoyeArchs)
jax_moye_family(family {kernel} {dtype})
jax_moye_limit_archs(archs ${{JAX_MOYE_${{family}}_ARCHS}})
list(GET JAX_MOYE_${{family}}_ARCHS 0 oldest)
jax_moye_generate_code(flag ${{oldest}} ${{archs}})
message("${{flag}}")"""
    run = run_cmake(tmp_path, script, JAX_MOYE_CUDA_ARCHS=wanted)
    assert run.stderr.strip() == f"--generate-code=arch={code}"


def cuda_configs(folder, **variables):
    """The configs that a build with these variables compiles for CUDA, on stderr."""
    script = """set(PROJECT_BINARY_DIR build)
include(JaxMoyeConfigs)
include(JaxMoyeArchs)
jax_moye_cuda_configs(configs)
message("${configs}")"""
    return run_cmake(folder, script, PROJECT_SOURCE_DIR=ROOT, **variables)


@pytest.mark.parametrize(
    ("wanted", "archs", "kept"),
    [
        (
            "",
            "",
            "sm80_multistage_s8_64x64x64_s3_a1;simt_tiled_f32_64x64x8_s1_a4;sm90_split_k_bf16_64x64x64_s6_c1x4_a16",
        ),
        ("_a1$|^sm90_", "", "sm80_multistage_s8_64x64x64_s3_a1;sm90_split_k_bf16_64x64x64_s6_c1x4_a16"),
        ("_a1$|^sm90_", "80", "sm80_multistage_s8_64x64x64_s3_a1"),
        ("_bf16_", "80", ""),  # no architecture is left for it
    ],
)
def test_configs_for_cuda(tmp_path, wanted, archs, kept):
    """Those that JAX_MOYE_CUDA_CONFIGS finds among the configs of the build, if they have an architecture."""
    built = "^sm80_multistage_s8_64x64x64_s3_a1$|^simt_tiled_f32_64|^sm90_split_k_bf16_64x64x64_s6_c1x4_a16"
    run = cuda_configs(tmp_path, JAX_MOYE_CONFIGS=built, JAX_MOYE_CUDA_CONFIGS=wanted, JAX_MOYE_CUDA_ARCHS=archs)
    assert run.returncode == 0, run.stderr
    assert run.stderr.strip() == kept


def test_no_config_for_cuda(tmp_path):
    run = cuda_configs(tmp_path, JAX_MOYE_CONFIGS="^simt_", JAX_MOYE_CUDA_CONFIGS="^sm80_")
    assert run.returncode != 0
    assert "JAX_MOYE_CUDA_CONFIGS=^sm80_ matches none of the configs" in " ".join(run.stderr.split())


@pytest.mark.parametrize("wanted", ["75", "130"])
def test_no_architecture_left(tmp_path, wanted):
    script = 'include(JaxMoyeArchs)\njax_moye_limit_archs(archs ${JAX_MOYE_PORTABLE_ARCHS})\nmessage("[${archs}]")'
    run = run_cmake(tmp_path, script, JAX_MOYE_CUDA_ARCHS=wanted)
    assert run.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("said", "asked", "archs"),
    [
        ("archs=90", "", "90"),
        ("archs=75;86", "", "80"),
        ("archs=110", "", "80;90;100;120"),  # newer than what code can be made for: the PTX of all
        ("", "", "80;90;100;120"),
        ("", "100", "100"),
    ],
)
def test_auto_is_for_the_gpus_that_are_here(tmp_path, said, asked, archs):
    """A stand-in of build_backend/cuda_compiler.py says what is here."""
    (tmp_path / "build_backend").mkdir()
    lines = "\n".join(filter(None, ["mode=AUTO", "nvcc=nvcc", "version=13.0.88", "origin=PATH", said]))
    (tmp_path / "build_backend" / "cuda_compiler.py").write_text(
        f"import sys\nassert '--archs={asked}' in sys.argv\nprint({lines!r})\n"
    )
    script = """
macro(enable_language)
endmacro()
macro(find_package)
endmacro()
include(JaxMoyeCuda)
jax_moye_limit_archs(sm90 ${JAX_MOYE_SM90_ARCHS})
message("${sm90}")"""
    project = {"PROJECT_SOURCE_DIR": tmp_path, "PROJECT_BINARY_DIR": tmp_path, "Python_EXECUTABLE": sys.executable}
    run = run_cmake(tmp_path, script, JAX_MOYE_CUDA="AUTO", JAX_MOYE_CUDA_ARCHS=asked, **project)
    assert f"jax_moye: CUDA kernels ON, nvcc 13.0.88 from PATH, architectures {archs}\n" in run.stdout, run.stderr
    assert run.stderr.strip() == ("90a" if "90" in archs.split(";") else "")
