"""Settings of the Python tests: the CPU backend, one device, no program kept on disk."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _nothing_was_measured(monkeypatch, tmp_path_factory):
    """What a test expects of a selection is the models': tables of the package change when a GPU has measured anew."""
    from jax_moye._selection import measurements

    nowhere = tmp_path_factory.getbasetemp() / "no_tables"
    monkeypatch.setattr(measurements, "TABLES", nowhere)
    monkeypatch.setenv(measurements.VARIABLE, str(nowhere))


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(0)
