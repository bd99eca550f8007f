"""TMA, mbarriers and clusters against the PTX manual, against golden files from a GPU, and on a GPU of sm_90.

The cases are the kernels of conformance_tma.cu. test_conformance.py holds the manifests against the wrappers.
"""

from __future__ import annotations

import pathlib
import shutil
import subprocess

import conformance_tma_reference
import cxx
import pytest
from test_conformance import check, describe, run_all

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GOLDEN = ROOT / "tests" / "golden" / "conformance_tma"
MANIFEST = [line.split("\t") for line in (HERE / "conformance_tma.tsv").read_text().splitlines()]
CASES = [case for case, *_ in MANIFEST]


@pytest.fixture(scope="module")
def emulated_program() -> pathlib.Path:
    return cxx.build("conformance_tma", kernel_sources=[HERE / "conformance_tma.cu"])


@pytest.fixture(scope="module")
def emulated(emulated_program, tmp_path_factory) -> pathlib.Path:
    return run_all(emulated_program, tmp_path_factory.mktemp("emulated_tma"))


def test_emulator_agrees_with_the_manual(emulated):
    for case in CASES:
        check(emulated / f"{case}.bin", conformance_tma_reference.expected(case))


@pytest.mark.skipif(not any(GOLDEN.glob("*.bin")), reason="no golden files: no GPU has run these programs yet")
def test_emulator_agrees_with_the_golden_files(emulated):
    differences = {}
    for golden in sorted(GOLDEN.glob("*.bin")):
        found, expected = (emulated / golden.name).read_bytes(), golden.read_bytes()
        if found != expected:
            differences[golden.stem] = describe(found, expected)
    assert not differences


def test_the_manifest_is_the_programs(emulated_program):
    listed = subprocess.run([emulated_program, "--list"], capture_output=True, text=True, timeout=60, check=True).stdout
    assert listed == (HERE / "conformance_tma.tsv").read_text(), "conformance_tma --list > conformance_tma.tsv"


def test_golden_files_are_of_this_manifest():
    sizes = {case: int(size) for case, _, _, size in MANIFEST}
    files = {path.stem: path.stat().st_size for path in GOLDEN.glob("*.bin")}
    assert files.items() <= sizes.items()


@pytest.mark.gpu
def test_gpu_agrees_with_the_emulator(emulated, gpu, tmp_path):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on the PATH")
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    capability = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.split()[0]
    if capability != "9.0":
        pytest.skip(f"these are instructions of compute capability 9.0, the GPU has {capability}")
    program = tmp_path / "conformance_tma"
    command = [nvcc, "-std=c++20", "-O2", "--generate-code=arch=compute_90a,code=sm_90a", f"-I{ROOT / 'cuda'}"]
    subprocess.run([*command, HERE / "conformance_tma.cu", "-o", program], check=True, timeout=240)
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    run_all(program, outputs)
    differences = {}
    for case in CASES:
        found, expected = (outputs / f"{case}.bin").read_bytes(), (emulated / f"{case}.bin").read_bytes()
        if found != expected:
            differences[case] = describe(expected, found)
    assert not differences, "emulator against GPU"
