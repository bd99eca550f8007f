"""scripts/gpu_check.sh as far as it goes without a GPU: it parses, and says what it would do."""

import os
import pathlib
import re
import shutil
import subprocess

import cxx
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "gpu_check.sh"
STAGES = [
    "environment",
    "build",
    "driver",
    "conformance",
    "pytest",
    "memcheck",
    "racecheck",
    "bench",
    "profile",
    "rest",
]


def run(tmp_path, *arguments: str, tools: tuple[str, ...] = ()) -> subprocess.CompletedProcess:
    """Runs the script where the PATH has nothing of CUDA's but stand-ins in tmp_path."""
    for name in (
        "bash",
        "dirname",
        "basename",
        "awk",
        "grep",
        "nproc",
        "mkdir",
        "rm",
        "cat",
        "tee",
        "timeout",
        "mv",
        "env",
    ):
        link = tmp_path / name
        if not link.exists():
            link.symlink_to(shutil.which(name))
    (tmp_path / "python3").exists() or (tmp_path / "python3").symlink_to("/bin/true")
    for name, text in tools:
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    environment = {"PATH": str(tmp_path), "OUT": str(tmp_path / "out"), "HOME": os.environ.get("HOME", "/")}
    return subprocess.run(
        ["bash", str(SCRIPT), *arguments], capture_output=True, text=True, env=environment, timeout=60, check=False
    )


def test_it_parses():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    assert os.access(SCRIPT, os.X_OK)


def test_shellcheck():
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    subprocess.run(["shellcheck", str(SCRIPT)], check=True)


@pytest.mark.parametrize("arguments", [(), ("--dry-run",), ("bench",)])
def test_without_a_gpu_it_lists_its_stages(tmp_path, arguments):
    done = run(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.findall(r"^  (\w+) +\d+ s  ", done.stdout, re.M) == STAGES
    if arguments != ("--dry-run",):
        assert "no GPU" in done.stderr
    assert not (tmp_path / "out").exists()


def test_an_unknown_stage_is_an_error(tmp_path):
    done = run(tmp_path, "bnech", tools=[("nvidia-smi", "exit 0")])
    assert done.returncode == 2
    assert "no stage is named bnech" in done.stderr


def test_a_failed_build_ends_it(tmp_path):
    # A GPU, but no cmake and no nvcc.
    done = run(tmp_path, "build", "driver", "bench", tools=[("nvidia-smi", "exit 0")])
    assert done.returncode == 1, done.stdout + done.stderr
    summary = (tmp_path / "out" / "summary.txt").read_text()
    assert re.search(r"^build +FAILED", summary, re.M), summary
    assert re.search(r"^driver +not run: build failed", summary, re.M), summary
    assert summary.rstrip().endswith("gpu_check: FAILED")
    assert done.stdout.rstrip().endswith("gpu_check: FAILED")


def test_its_stages_fit():
    script = SCRIPT.read_text()
    limits = [int(x) for x in re.findall(r"^\w+ +(\d+) ", script[: script.index("stage_environment()")], re.MULTILINE)]
    assert len(limits) == 10
    assert sum(limits) <= int(re.search(r"SECONDS_IN_ALL:-(\d+)", script).group(1))


@pytest.mark.parametrize("program", ["gemm_check.cu", "grouped_check.cu"])
def test_the_drivers_compile(program):
    # They run on a GPU only; CI sees at least that they still fit the table's interface.
    assert program in SCRIPT.read_text()
    cxx.compile_only(ROOT / "tests" / "gpu" / program, flags=[f"-I{ROOT / 'ffi'}", "-Werror"])
