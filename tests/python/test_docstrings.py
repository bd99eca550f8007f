"""The examples in docstrings do what they show."""

import doctest
import importlib

import pytest


@pytest.mark.parametrize("module", ["checkpoint_policies", "configs", "dot_general", "matmul", "options"])
def test_examples(module):
    outcome = doctest.testmod(importlib.import_module(f"jax_moye.{module}"))
    assert outcome.attempted > 0
    assert outcome.failed == 0
