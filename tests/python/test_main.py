"""`python -m jax_moye` and the script `jax-moye`: which commands there are, and that one imports no other's module."""

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tomllib

import jax
import pytest

import jax_moye
from jax_moye import __main__ as command_line
from jax_moye.__main__ import COMMANDS, main
from jax_moye._kernels import command as configs_command

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


def help_of(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_help(command, capsys):
    text = help_of(command, capsys)
    usage, description, *_ = text.split("\n\n")
    assert usage.startswith(f"usage: python -m jax_moye {command} [-h]")
    assert description.endswith(".")
    assert max(map(len, description.splitlines())) <= 110
    assert "--json" in usage
    assert "\nexamples:\n  python -m jax_moye " in text


@pytest.mark.parametrize("command", COMMANDS)
def test_the_examples_of_the_help_run(command, capsys, monkeypatch, tmp_path):
    """All of them, as they stand; what is for a GPU says that there is none."""
    with jax.default_device(jax.devices("cpu")[0]):
        for name in ("benchmarks", "cuda"):  # a clone, as far as examples read it
            (tmp_path / name).symlink_to(ROOT / name)
        monkeypatch.chdir(tmp_path)
        examples = help_of(command, capsys).split("\nexamples:\n")[1].splitlines()
        assert len(examples) >= 3
        for line in examples:
            python, dash_m, module, *arguments = shlex.split(line)
            assert (python, dash_m, module, arguments[0]) == ("python", "-m", "jax_moye", command)
            for_gpu = command in ("bench", "tune") and "--emulator" not in arguments
            if for_gpu and jax.default_backend() == "gpu":
                continue
            assert main(arguments) == (2 if for_gpu else 0), line
            said = capsys.readouterr()
            assert bool(said.out) != for_gpu or "-o" in arguments, line
            if "--json" in arguments and not for_gpu:
                json.loads(said.out)
            for option in ("-o", "--out", "--svg"):
                if option in arguments and not for_gpu:
                    assert (tmp_path / arguments[arguments.index(option) + 1]).exists(), line


@pytest.mark.parametrize("command", ["configs", "draw (64,64):(64,1)"])  # short, and longer than what is kept back
def test_a_closed_pipe_ends_it_quietly(command):
    code = f"from jax_moye.__main__ import main; import sys; sys.exit(main({command.split()!r}))"
    # `true` has ended, and closed the pipe, long before Python has begun.
    line = f"{shlex.quote(sys.executable)} -P -c {shlex.quote(code)} | true"
    done = subprocess.run(
        ["bash", "-c", f"{line}; echo ${{PIPESTATUS[0]}}"],
        **{"capture_output": True, "text": True, "timeout": 120},
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    assert (done.stdout, done.stderr) == (f"{command_line.NO_READER}\n", "")


def test_ctrl_c_ends_it_in_a_line(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(configs_command, "add_arguments", lambda parser: None)
    monkeypatch.setattr(configs_command, "chosen", lambda arguments: interrupted())
    assert main(["configs"]) == 130
    assert capsys.readouterr().err == "jax_moye configs: interrupted\n"


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
