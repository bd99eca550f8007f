"""Each instruction wrapper of cuda/moye/arch against the PTX manual, against golden files from a GPU, and on a GPU.

The cases are the kernels of conformance.cu, compiled for the emulator here and by nvcc where there is a GPU.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import conformance_reference
import cxx
import pytest

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "tests" / "golden" / "conformance"
MANIFEST = [line.split("\t") for line in (HERE / "conformance.tsv").read_text().splitlines()]
CASES = [case for case, *_ in MANIFEST]


def run_all(program: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Runs every case of `program`; its outputs are in the folder that comes back."""
    run = subprocess.run([program, folder], capture_output=True, text=True, timeout=120, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    return folder


@pytest.fixture(scope="module")
def emulated_program() -> pathlib.Path:
    return cxx.build("conformance", kernel_sources=[HERE / "conformance.cu"])


@pytest.fixture(scope="module")
def emulated(emulated_program, tmp_path_factory) -> pathlib.Path:
    return run_all(emulated_program, tmp_path_factory.mktemp("emulated"))


def describe(found: bytes, expected: bytes) -> str:
    """Where two outputs part."""
    if len(found) != len(expected):
        return f"{len(found)} bytes, not {len(expected)}"
    at = next(i for i, pair in enumerate(zip(found, expected, strict=True)) if pair[0] != pair[1]) // 4 * 4
    wrong = sum(found[i : i + 4] != expected[i : i + 4] for i in range(0, len(found), 4))
    pair = f"{found[at : at + 4][::-1].hex()}, not {expected[at : at + 4][::-1].hex()}"
    return f"{wrong} of {len(found) // 4} words differ; the first is word {at // 4}: {pair}"


def check(found: pathlib.Path, expected: bytes) -> None:
    output = found.read_bytes()
    if output != expected:
        pytest.fail(describe(output, expected))


@pytest.mark.parametrize("case", CASES)
def test_emulator_agrees_with_the_manual(emulated, case):
    check(emulated / f"{case}.bin", conformance_reference.expected(case))


@pytest.mark.parametrize("case", CASES)
def test_emulator_agrees_with_the_golden_file(emulated, case):
    golden = GOLDEN / f"{case}.bin"
    if not golden.exists():
        pytest.skip("no golden file: no GPU has run this case yet")
    check(emulated / golden.name, golden.read_bytes())


def test_the_manifest_is_the_programs(emulated_program):
    listed = subprocess.run([emulated_program, "--list"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert listed == (HERE / "conformance.tsv").read_text(), "regenerate it: conformance --list > conformance.tsv"


def test_every_wrapper_has_a_case():
    # A wrapper is a struct or function of moye/arch that issues PTX in its nvcc branch, or says what a thread is. Those
    # of math.h and elementwise.h issue none: they are CUDA's own functions, right to a few units in the last place, not
    # to the bit (tests/emulated/test_epilogue.py and tests/python/_primitives/test_elementwise.py have their bounds).
    manifests = "".join(path.read_text() for path in HERE.glob("conformance*.tsv"))
    covered = {word for line in manifests.splitlines() for word in line.split("\t")[1].split()}
    folder = ROOT / "cuda" / "moye" / "arch"
    others = ("elementwise.h", "launch.h", "math.h", "status.h")
    text = "\n".join(path.read_text() for path in sorted(folder.glob("*.h")) if path.name not in others)
    structs = set(re.findall(r"^(?:struct|MOYE_MMA_\w+\() ?((?:SM\d+|Universal)\w+)", text, re.M))
    functions = set(re.findall(r"^MOYE_DEVICE [\w:<>]+ (\w+)\(", text, re.M))
    assert len(structs) > 20, "the pattern no longer finds the structs"
    assert len(functions) > 10, "the pattern no longer finds the functions"
    missing = (structs | functions) - covered
    assert not missing, "wrappers without a conformance case"


def test_golden_files_are_of_this_manifest():
    # A file of a case that is gone, or of another size, is from an old set.
    sizes = {case: int(size) for case, _, _, size in MANIFEST}
    files = {path.stem: path.stat().st_size for path in GOLDEN.glob("*.bin")}
    assert files.items() <= sizes.items()


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")
@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("conformance*.cu")))
def test_nvcc_compiles_the_program(name, tmp_path):
    """Where there is no GPU, too: g++ finds names in other headers than nvcc."""
    command = ["nvcc", "-std=c++20", "-O0", "--generate-code=arch=compute_90a,code=sm_90a", f"-I{ROOT / 'cuda'}"]
    done = subprocess.run(
        [*command, "-c", HERE / name, "-o", tmp_path / "object"],
        capture_output=True,
        text=True,
        timeout=140,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.gpu
def test_gpu_agrees_with_the_emulator(emulated, gpu, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the PATH")
    program = tmp_path / "conformance"
    command = [nvcc, "-std=c++20", "-O2", "-arch=native", f"-I{ROOT / 'cuda'}", HERE / "conformance.cu", "-o", program]
    subprocess.run(command, check=True, timeout=240)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    run_all(program, outputs)
    ran = {path.stem for path in outputs.glob("*.bin")}
    assert len(ran) > 50  # the program leaves out what the GPU does not have
    differences = {}
    for case in CASES:
        if case not in ran:
            continue
        found, expected = (outputs / f"{case}.bin").read_bytes(), (emulated / f"{case}.bin").read_bytes()
        if found != expected:
            differences[case] = describe(expected, found)
    assert not differences, "emulator against GPU"
