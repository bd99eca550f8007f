"""The examples in docstrings do what they show. Those of jax_moye.layout are tested beside it, in layout/."""

import ast
import doctest
import importlib
import pathlib

import pytest

import jax_moye

PACKAGE = pathlib.Path(jax_moye.__file__).parent


def has_example(path: pathlib.Path) -> bool:
    """Whether a docstring of the module shows a line at the prompt."""
    nodes = ast.walk(ast.parse(path.read_text()))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    return any(isinstance(node, documented) and ">>>" in (ast.get_docstring(node) or "") for node in nodes)


MODULES = [
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if "layout" not in path.relative_to(PACKAGE).parts and has_example(path)
]


def test_public_functions_have_examples():
    # What each example is of, whichever module that stands in.
    assert {module.rpartition(".")[2] for module in MODULES} >= {
        "checkpoint_policies",
        "configs",
        "dot_general",
        "equinox",
        "explain",
        "export",
        "intercept",
        "linear",
        "matmul",
        "options",
        "report",
        "target",
    }


@pytest.mark.parametrize("module", MODULES)
def test_examples(module):
    if module.startswith("contrib."):
        pytest.importorskip(module.partition(".")[2])
    outcome = doctest.testmod(importlib.import_module(f"jax_moye.{module}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
