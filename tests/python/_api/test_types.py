"""The public functions have real types: mypy and pyright take a right program and find each mistake in a wrong one."""

import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig

import pytest

import jax_moye

HERE = pathlib.Path(__file__).resolve().parent
PROGRAMS = [HERE / "typed" / "right.py", HERE / "typed" / "wrong.py"]
EXAMPLES = sorted((HERE.parents[2] / "examples").glob("*.py"))
PACKAGE = pathlib.Path(jax_moye.__file__).resolve().parent
IS_INSTALLED = PACKAGE.parent == pathlib.Path(sysconfig.get_path("platlib")).resolve()

Mistakes = dict[str, dict[int, str]]  # of each file, what is said of each line


def mypy(folder: pathlib.Path, *options: str) -> Mistakes:
    """What mypy finds in the programs in a folder."""
    options = ("--follow-imports=silent", "--no-color-output", "--no-error-summary", "--config-file=", *options)
    # A folder in which Python looks anyway may not be named again.
    path = {} if IS_INSTALLED else {"MYPYPATH": str(PACKAGE.parent)}
    command = [sys.executable, "-m", "mypy", *options, *sorted(file.name for file in folder.glob("*.py"))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, env=os.environ | path)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Mistakes = {}
    for file, number, message in re.findall(r"^(.*?):(\d+): error: (.*)$", done.stdout, re.MULTILINE):
        found.setdefault(file, {})[int(number)] = message
    return found


def pyright(folder: pathlib.Path, *_: str) -> Mistakes:
    """What pyright finds in the programs in a folder; it has no options of mypy's."""
    settings = {"extraPaths": [] if IS_INSTALLED else [str(PACKAGE.parent)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--project", folder, "--pythonpath", sys.executable, "--outputjson"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found: Mistakes = {}
    for one in json.loads(done.stdout)["generalDiagnostics"]:
        if one["severity"] == "error":
            line = one["range"]["start"]["line"] + 1
            found.setdefault(pathlib.Path(one["file"]).name, {})[line] = one["message"]
    return found


both = pytest.mark.parametrize("checker", [mypy, pyright], ids=lambda checker: checker.__name__)


@both
def test_mistakes_are_found_and_nothing_else(checker, tmp_path):
    if importlib.util.find_spec(checker.__name__) is None:
        pytest.skip(f"{checker.__name__} is not installed")
    for program in PROGRAMS:
        shutil.copy(program, tmp_path)
    wrong = (tmp_path / "wrong.py").read_text().splitlines()
    marked = {number for number, line in enumerate(wrong, start=1) if line.endswith("# wrong")}
    found = checker(tmp_path, "--strict")
    assert found.pop("wrong.py").keys() == marked
    assert found == {}


@both
def test_the_examples_have_no_mistakes(checker, tmp_path):
    if importlib.util.find_spec(checker.__name__) is None:
        pytest.skip(f"{checker.__name__} is not installed")
    for example in EXAMPLES:
        shutil.copy(example, tmp_path)
    assert checker(tmp_path, "--check-untyped-defs", "--ignore-missing-imports") == {}


def test_the_package_says_that_it_is_typed():
    assert (PACKAGE / "py.typed").exists()
