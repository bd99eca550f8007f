"""A program started in the root of a checkout uses the installed package, not the sources without compiled parts."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    """A folder with the sources of the package and nothing compiled."""
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "_registers.json")
    shutil.copytree(ROOT / "jax_moye", tmp_path / "jax_moye", ignore=ignored)
    return tmp_path


def run(folder, code, *options, **variables):
    environ = dict(os.environ, JAX_PLATFORMS="cpu", **variables)
    return subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, cwd=folder, env=environ
    )


def test_table_is_printed_in_a_checkout(checkout):
    done = run(checkout, "import jax_moye; print(jax_moye.configs())")
    assert done.returncode == 0, done.stderr
    assert "sm80_multistage_bf16_" in done.stdout


def test_modules_are_the_installed_ones(checkout):
    import jax_moye  # noqa: F401

    done = run(checkout, "import jax_moye, sys; print(sys.modules['jax_moye._api.matmul'].__file__)")
    assert done.returncode == 0, done.stderr
    assert pathlib.Path(done.stdout.strip()) == pathlib.Path(sys.modules["jax_moye._api.matmul"].__file__)


def test_no_installation_is_said(checkout):
    # -S leaves site-packages out; jax_moye's first line needs nothing of it.
    done = run(checkout, "import jax_moye", "-S", PYTHONPATH="")
    assert done.returncode == 1
    assert "without its compiled modules" in done.stderr
    assert "pip install ." in done.stderr
