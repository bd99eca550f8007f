"""Packages that an extra brings: what is said where they are not there."""

import subprocess
import sys

import pytest

from jax_moye.__main__ import main
from jax_moye._optional import MissingError, matplotlib


def test_a_module():
    pytest.importorskip("matplotlib")
    assert matplotlib("matplotlib.figure", "charts").Figure


@pytest.fixture
def without(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)


def test_without_matplotlib_an_error_says_how_to_get_it(without):
    with pytest.raises(MissingError, match=r"^matplotlib draws charts: pip install matplotlib$"):
        matplotlib("matplotlib.figure", "charts")


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", __file__, "--svg", "charts"],
        ["bench", "--emulator", "--svg", "charts"],
        ["ladder", "--no-gpu", "--svg", "ladder.svg"],
        ["draw", "(2,3)", "-o", "x.png"],
        ["draw", "(2,3)", "-o", "x.pdf"],
    ],
    ids=" ".join,
)
def test_without_matplotlib_a_command_says_so_before_it_works(arguments, without, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) in (1, 2)
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert "pip install matplotlib" in said.err
    assert list(tmp_path.iterdir()) == []


def test_matplotlib_is_loaded_for_pictures_alone():
    code = "import sys, jax_moye, jax_moye.__main__ as m; m.main(['draw', '(2,3)']); print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines()[-1] == "False", done.stderr
