"""The examples end well, each with jax_moye's kernels in every product."""

import pathlib
import re
import subprocess
import sys

import child_processes
import pytest

import jax_moye

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """run(name, *arguments) runs an example in a process of its own, with the jax_moye of this one."""
    cache, package = tmp_path_factory.mktemp("compiled"), pathlib.Path(jax_moye.__file__).parents[1]

    def run(name: str, *arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, str(EXAMPLES / name), *arguments]
        environ = child_processes.environment(cache, package)
        # Half a minute on two idle cores; here other tests run beside it.
        return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environ)

    return run


def test_newton_cg(run):
    """implementation="moye" is an error where a product of value, gradient or Hessian is not a kernel of ours."""
    done = run("newton_cg.py")
    assert done.returncode == 0, done.stdout + done.stderr
    norms = [float(norm) for norm in re.findall(r"gradient (\S+)", done.stdout)]
    assert norms[-1] < 1e-5
    assert norms[-1] < 1e-2 * norms[-2]  # converges as Newton's method does, not as gradient descent


@pytest.mark.parametrize(("devices", "mesh"), [(8, 8), (2, 2), (3, 2)])
def test_sharded_training(run, monkeypatch, devices, mesh):
    monkeypatch.setenv("XLA_FLAGS", f"--xla_force_host_platform_device_count={devices}", prepend=" ")
    done = run("sharded_training.py")
    assert done.returncode == 0, done.stdout + done.stderr
    # One all-reduce of the scores' parts, and one of all gradients'.
    found = re.findall(r"(\d+) launches on each of (\d) devices; collectives: \{'all-reduce': (\d)\}", done.stdout)
    # Two products forward, and backward the gradients of two weights and the hidden layer.
    assert found == [(str(2 + 3), str(mesh), "2")]


def test_equinox(run):
    pytest.importorskip("equinox")
    pytest.importorskip("optax")
    done = run("equinox_mlp.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_flax(run):
    pytest.importorskip("flax")
    done = run("flax_transformer.py")
    assert done.returncode == 0, done.stdout + done.stderr


def test_mixture_of_experts(run):
    """implementation="moye" is an error where a product of groups, forward or backward, is not a kernel of ours."""
    pytest.importorskip("optax")
    done = run("mixture_of_experts.py", "--steps", "30")
    assert done.returncode == 0, done.stdout + done.stderr
    losses = [tuple(map(float, pair)) for pair in re.findall(r"loss xla (\S+) moye (\S+)", done.stdout)]
    assert len(losses) == 30
    assert all(last < first for first, last in zip(losses[0], losses[-1], strict=True))
    assert re.findall(r"^(\w+): \S+ ms per step(.*)$", done.stdout, re.MULTILINE) == [
        ("xla", ""),
        ("moye", " in the emulator, which says nothing about a GPU"),
    ]


def test_quantized_decode(run):
    done = run("quantized_decode.py", "--length", "3", "--rows", "2", "--steps", "4")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4.125 bits for each weight" in done.stdout
    assert len(re.findall(r"^tokens \d+ \d+ \d+$", done.stdout, re.MULTILINE)) == 2
    errors = [float(error) for error in re.findall(r"^step \d error (\S+)$", done.stdout, re.MULTILINE)]
    assert errors == sorted(errors, reverse=True)
    assert len(set(errors)) == 4


def test_untrained_scales_are_an_error(run):
    assert run("quantized_decode.py", "--length", "1", "--steps", "1").returncode == 1


@pytest.mark.parametrize(
    ("arguments", "status"),
    [
        (["--tolerance", "0"], 1),  # the first three have the steps that test_mixture_of_experts compiled
        (["--tolerance", "nan"], 1),
        (["--implementation", "moye"], 0),
        (["--experts-per-token", "1", "--layers", "1"], 0),
    ],
    ids=["differ", "nan", "one", "top_1"],
)
def test_mixture_of_experts_with_options(run, arguments, status):
    pytest.importorskip("optax")
    done = run("mixture_of_experts.py", "--steps", "4", *arguments)
    assert done.returncode == status, done.stdout + done.stderr
    assert len(re.findall(r"^step ", done.stdout, re.MULTILINE)) == 4, done.stderr


def test_a_bad_result_is_an_error(run):
    pytest.importorskip("equinox")
    pytest.importorskip("optax")
    done = run("equinox_mlp.py", "--steps", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "by guessing" in done.stdout
