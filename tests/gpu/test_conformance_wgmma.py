"""wgmma and stmatrix against the PTX manual, against digests from a GPU, and on a GPU; see test_conformance.py."""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import conformance_wgmma_reference as reference
import cxx
import pytest
from test_conformance import check, describe, run_all

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SOURCE = HERE / "conformance_wgmma.cu"
GOLDEN = ROOT / "tests" / "golden" / "conformance_wgmma.tsv"
CASES = [line.split("\t")[0] for line in SOURCE.with_suffix(".tsv").read_text().splitlines()]
# Not -arch=sm_90a: nvcc 13.0 then assembles the code for sm_90, too, which has no wgmma.
NVCC = ["-std=c++20", "-O2", "--generate-code=arch=compute_90a,code=sm_90a", f"-I{ROOT / 'cuda'}"]


@pytest.fixture(scope="module")
def emulated_program() -> pathlib.Path:
    return cxx.build("conformance_wgmma", kernel_sources=[SOURCE])


@pytest.fixture(scope="module")
def emulated(emulated_program, tmp_path_factory) -> pathlib.Path:
    return run_all(emulated_program, tmp_path_factory.mktemp("emulated"))


def test_emulator_agrees_with_the_manual(emulated):
    for case in CASES:
        check(emulated / f"{case}.bin", reference.expected(case))


def test_emulator_agrees_with_the_golden_file(emulated):
    if not GOLDEN.exists():
        pytest.skip("no golden file: no GPU has run it")
    golden = dict(line.split("\t") for line in GOLDEN.read_text().splitlines())
    assert golden == {case: reference.digest((emulated / f"{case}.bin").read_bytes()) for case in CASES}


def test_the_manifest_is_the_programs(emulated_program):
    listed = subprocess.run([emulated_program, "--list"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert listed == SOURCE.with_suffix(".tsv").read_text(), "regenerate it: conformance_wgmma --list"


def test_every_kind_of_case_is_there():
    """Every N; every type from shared memory and registers; every swizzle, K-major and MN-major."""
    assert {int(case.split("x")[1]) for case in CASES if "STSM" not in case} >= set(range(8, 257, 8))
    types = {case.split("_")[2] + "_" + case.split("_")[3] for case in CASES if "STSM" not in case}
    assert len(types) == 2 * 16
    for major in ("K", "MN"):
        for operand in (4, 5):
            rows = {case.split("_")[operand] for case in CASES if "STSM" not in case}
            assert {f"{major}{n}" for n in (16, 32, 64, 128)} <= rows, (major, operand)


@pytest.mark.gpu
def test_gpu_agrees_with_the_manual(gpu, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the PATH")
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    if not subprocess.run(query, capture_output=True, text=True, check=True).stdout.startswith("9.0"):
        pytest.skip("wgmma is an instruction of sm_90 alone")
    program = tmp_path / "conformance_wgmma"
    subprocess.run([nvcc, *NVCC, SOURCE, "-o", program], check=True, timeout=300)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    run_all(program, outputs)
    differences = {}
    for case in CASES:
        found, expected = (outputs / f"{case}.bin").read_bytes(), reference.expected(case)
        if found != expected:
            differences[case] = describe(found, expected)
    assert not differences, "GPU against the manual"
