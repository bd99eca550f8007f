"""`python -m jax_moye` and the script `jax-moye`: which commands there are, and that one imports no other's module."""

import os
import pathlib
import re
import subprocess
import sys
import tomllib

import pytest

import jax_moye
from jax_moye import __main__ as command_line
from jax_moye.__main__ import COMMANDS, main

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGE = pathlib.Path(jax_moye.__file__).parent


def run(code: str) -> str:
    """What code prints in a process of its own that imports the same jax_moye."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        **{"capture_output": True, "text": True, "timeout": 120},
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: python -m jax_moye {command} [-h]")


def test_the_help_has_a_line_for_every_command(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert list(COMMANDS) == ["configs", "explain", "bench", "tune", "show", "ladder", "draw"]
    for name, command in COMMANDS.items():
        assert f" {name} {command.help}" in text


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["--nonsense"], ["configs", "--nonsense"]], ids=" ".join)
def test_what_is_no_command_ends_with_2(argv, capsys):
    with pytest.raises(SystemExit) as ended:
        main(argv)
    assert ended.value.code == 2
    assert "python -m jax_moye: error: " in capsys.readouterr().err


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"jax_moye {jax_moye.__version__}\n"


def test_a_command_imports_no_others_module():
    code = """
import contextlib, io, sys
from jax_moye.__main__ import COMMANDS, main
with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
    main([sys.argv[1], "--help"] if len(sys.argv) > 1 else ["--version"])
print(*(name for name, command in COMMANDS.items() if f"jax_moye.{command.module}" in sys.modules))
"""
    for command, imported in {"": "", "configs": "configs", "draw": "draw", "explain": "explain"}.items():
        assert run(f"import sys; sys.argv[1:] = {[command] if command else []}\n{code}") == f"{imported}\n"


def test_the_script_is_called_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/jax-moye", "--help"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out.startswith("usage: jax-moye [-h]")


@pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="no pyproject.toml beside the tests")
def test_pip_installs_the_script():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {command_line.SCRIPT: "jax_moye.__main__:main"}
    script = pathlib.Path(sys.executable).with_name(command_line.SCRIPT)
    if not script.exists():
        pytest.skip("jax_moye was built in place, not installed by pip")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stdout) == (0, f"jax_moye {jax_moye.__version__}\n")
    done = subprocess.run([script, "nonsense"], capture_output=True, text=True, cwd="/")
    assert done.returncode == 2
    assert re.match(r"usage: jax-moye \[-h\]", done.stderr)
