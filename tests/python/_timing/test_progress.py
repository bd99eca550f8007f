"""What a long command says while it works."""

from __future__ import annotations

import re
import sys

import pytest

from jax_moye._timing.progress import progress


def test_progress_says_what_is_done(capsys):
    assert list(progress(["x", "y"], 2, str.upper)) == ["x", "y"]
    assert re.fullmatch(r"\[1/2\] X, [\d.]+ s\n\[2/2\] Y, [\d.]+ s\n", capsys.readouterr().err)


def test_progress_with_rich(monkeypatch):
    pytest.importorskip("rich")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(progress(["x", "y"], 2, str)) == ["x", "y"]
