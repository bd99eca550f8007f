"""The examples in docstrings do what they show."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize(
    "module",
    [
        "checkpoint_policies",
        "configs",
        "contrib.equinox",
        "dot_general",
        "explain",
        "export",
        "intercept",
        "linear",
        "matmul",
        "options",
        "report",
        "target",
    ],
)
def test_examples(module):
    if module.startswith("contrib."):
        pytest.importorskip(module.partition(".")[2])
    outcome = doctest.testmod(importlib.import_module(f"jax_moye.{module}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
