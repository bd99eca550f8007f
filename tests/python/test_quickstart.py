"""The example a newcomer runs first: it must end well, and every matrix product must be a kernel of ours."""

import pathlib
import re
import subprocess
import sys

import child_processes
import pytest

import jax_moye

QUICKSTART = pathlib.Path(__file__).resolve().parents[2] / "examples" / "quickstart.py"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(*arguments) runs it in a process of its own, as a newcomer starts it, with the jax_moye of this one."""
    cache, package = tmp_path_factory.mktemp("compiled"), pathlib.Path(jax_moye.__file__).parents[1]

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(QUICKSTART), *arguments]
        environ = child_processes.environment(cache, package)
        # Two minutes is the promise on two cores; here other tests run beside it.
        return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environ)

    return run


def test_quickstart_trains_through_our_kernels(run):
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    found = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if line and not line[0].isspace())
    assert float(re.match(r"([\d.]+)%", found["accuracy"]).group(1)) >= 95
    kernels = found["kernels"].split(", ")
    assert all("_bf16_" in name for name in kernels), found["kernels"]
    # Two products forward; backward two for the weights and one for the hidden layer.
    assert "5 launches in one jitted step" in done.stdout
    difference, largest = (float(x) for x in re.findall(r"\d\.\de[-+]\d+", found["difference"]))
    # Products are rounded to bf16 (8 bits) and pass through three of them at most.
    assert difference <= 2**-6 * largest


def test_a_bad_result_is_an_error(run):
    done = run("--epochs", "0")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "accuracy" in done.stdout  # an untrained network guesses
