"""What a long command says while it works."""

from __future__ import annotations

import os
import pathlib
import pty
import re
import subprocess
import sys

import pytest

import jax_moye
from jax_moye._timing.progress import progress


def test_progress_says_what_is_done(capsys):
    assert list(progress(["x", "y"], 2, str.upper)) == ["x", "y"]
    assert re.fullmatch(r"\[1/2\] X, [\d.]+ s\n\[2/2\] Y, [\d.]+ s\n", capsys.readouterr().err)


def test_progress_with_rich(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress(["x", "y"], 2, str)) == ["x", "y"]


def test_what_is_printed_meanwhile_goes_into_a_file():
    """Also where rich sees a terminal on stderr: `bench > file` keeps its rows."""
    pytest.importorskip("rich")
    code = """
from jax_moye._timing.progress import progress
for x in progress("abc", 3, str):
    print(f"row {x}", flush=True)
"""
    terminal, stderr = pty.openpty()
    package = pathlib.Path(jax_moye.__file__).parent.parent
    environment = os.environ | {"PYTHONPATH": str(package), "TERM": "xterm"}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=stderr, text=True, env=environment, timeout=120)
    os.close(stderr)
    os.close(terminal)
    assert (done.returncode, done.stdout) == (0, "row a\nrow b\nrow c\n")
