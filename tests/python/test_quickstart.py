"""The example a newcomer runs first: it must end well, and every matrix product must be a kernel of ours."""

import pathlib
import re
import subprocess
import sys

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


def test_quickstart_trains_through_our_kernels():
    # A process of its own, as a newcomer starts it. Two minutes is the promise on two cores.
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "quickstart.py")], capture_output=True, text=True, timeout=120, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    found = dict(line.split(maxsplit=1) for line in run.stdout.splitlines() if line and not line[0].isspace())
    assert float(re.match(r"([\d.]+)%", found["accuracy"]).group(1)) >= 95
    kernels = found["kernels"].split(", ")
    assert all(name.startswith("sm80_multistage_bf16_") for name in kernels), found["kernels"]
    # Two products forward; backward two for the weights and one for the hidden layer.
    assert "5 launches in one jitted step" in run.stdout
    difference, largest = (float(x) for x in re.findall(r"\d\.\de[-+]\d+", found["difference"]))
    # Products are rounded to bf16 (8 bits) and pass through three of them at most.
    assert difference <= 2**-6 * largest


def test_a_bad_result_is_an_error():
    run = subprocess.run(
        [sys.executable, str(EXAMPLES / "quickstart.py"), "--epochs", "0"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 1, run.stdout + run.stderr  # an untrained network guesses
    assert "accuracy" in run.stdout
