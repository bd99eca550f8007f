"""tools/nvcc_gate.py and tools/collect_registers.py: what stops a build, and what they report."""

import json
import pathlib
import shutil
import subprocess
import sys

import pytest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"

GOOD = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function '_Zone' for 'sm_80'
ptxas info    : Function properties for _Zone
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 416 bytes cmem[0]
ptxas info    : Compiling entry function '_Ztwo' for 'sm_80'
ptxas info    : Function properties for _Ztwo
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 416 bytes cmem[0]
ptxas info    : Compiling entry function '_Zone' for 'sm_90'
ptxas info    : Function properties for _Zone
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 42 registers, used 1 barriers, 416 bytes cmem[0]
"""


def gate(tmp_path, messages, status=0, name="row"):
    """Runs the gate on a compiler that writes an object, says `messages` and ends with `status`."""
    log = tmp_path / "messages"
    log.write_text(messages)
    target = tmp_path / f"{name}.cu.o"
    compiler = ["sh", "-c", f'cat {log} >&2; echo object > "$2"; exit {status}', "nvcc", "-o", str(target)]
    run = subprocess.run([sys.executable, str(TOOLS / "nvcc_gate.py"), *compiler], capture_output=True, text=True)
    return run, target


def test_a_good_kernel_passes_in_silence(tmp_path):
    run, target = gate(tmp_path, GOOD)
    assert (run.returncode, run.stderr) == (0, "")
    report = json.loads((tmp_path / "row.cu.o.ptxas.json").read_text())
    assert report["object"] == "row.cu.o"
    assert [(k["kernel"], k["arch"], k["registers"]) for k in report["kernels"]] == [
        ("_Zone", "sm_80", 40),
        ("_Ztwo", "sm_80", 168),
        ("_Zone", "sm_90", 42),
    ]
    assert target.exists()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("0 bytes spill stores, 0 bytes spill loads", "8 bytes spill stores, 0 bytes spill loads"),
        ("0 bytes spill stores, 0 bytes spill loads", "0 bytes spill stores, 8 bytes spill loads"),
        ("0 bytes stack frame", "16 bytes stack frame"),
        (
            "ptxas info    : 0 bytes gmem",
            "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        ),
        ("ptxas info    : 0 bytes gmem", "ptxas info    : (C7508) 'setmaxnreg' ignored"),
        (
            "ptxas info    : 0 bytes gmem",
            "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        ),
        ("ptxas info    : 0 bytes gmem", "ptxas info    : (C7517) warpgroup.wait is injected in around line 7"),
        ("ptxas info    : 0 bytes gmem", "ptxas warning : Registers are spilled to local memory in function '_Zone'"),
    ],
)
def test_what_only_ptxas_says_stops_the_build(tmp_path, old, new):
    run, target = gate(tmp_path, GOOD.replace(old, new, 1))
    assert run.returncode == 3
    assert new.strip().split(",")[0] in run.stderr
    assert not target.exists()  # or the next build would link it
    assert not (tmp_path / "row.cu.o.ptxas.json").exists()


def test_an_error_of_the_compiler_is_handed_on(tmp_path):
    run, _ = gate(tmp_path, "configs.h(3): error: no\n", status=2)
    assert (run.returncode, run.stderr) == (2, "configs.h(3): error: no\n")


def test_registers_are_the_largest_of_a_rows_kernels(tmp_path):
    objects = [gate(tmp_path, GOOD, name=name)[1] for name in ("b_row", "a_row")]
    output = tmp_path / "_registers.json"
    subprocess.run(
        [sys.executable, str(TOOLS / "collect_registers.py"), "--output", str(output), *map(str, objects)], check=True
    )
    row = {"sm_80": 168, "sm_90": 42}
    assert json.loads(output.read_text()) == {"a_row": row, "b_row": row}


@pytest.mark.parametrize(
    ("code", "finding"),
    [
        ("__global__ void __launch_bounds__(1024, 2) k(float* x) { SPILL }", "spill stores"),
        (
            "__global__ void k(int* x) { int a[64] = {}; for (int i = 0; i < 64; ++i) a[x[i] & 63] += i; *x = a[1]; }",
            "stack frame",
        ),
    ],
    ids=["spill", "stack"],
)
def test_nvcc_with_the_gate(tmp_path, code, finding):
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc on PATH")
    # 96 values that are all alive at once, in a kernel that may use 32 registers.
    spill = "float a[96];" + "".join(f"a[{i}] = x[{i} * threadIdx.x];" for i in range(96))
    spill += "__syncthreads();" + "".join(f"x[{i} * threadIdx.x + 1] = a[{95 - i}] * a[{i}];" for i in range(96))
    source = tmp_path / "bad.cu"
    source.write_text(code.replace("SPILL", spill))
    command = [sys.executable, str(TOOLS / "nvcc_gate.py"), nvcc, "-gencode=arch=compute_80,code=sm_80"]
    command += ["-Xptxas=-v,-warn-spills,-warn-lmem-usage", "-c", str(source), "-o", str(tmp_path / "bad.o")]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 3, run.stderr
    assert finding in run.stderr
