"""tune on a GPU that is not there."""

from __future__ import annotations

import pathlib

import jax
import pytest

from jax_moye._kernels.devices import DEVICES
from jax_moye._selection import measurements
from jax_moye._tune.times import Target, Times


@pytest.fixture
def fake(places, monkeypatch):
    """tune() on a GPU that is not there; returns what sets the times, by rank in the model's order."""
    from python.measured import H200, head

    from jax_moye._tune import tune

    state = {}

    def time_product(product, call, candidates, target, protocol):
        state["candidates"] = [row.name for row in candidates]
        us = {row.name: state["us"](i) for i, row in enumerate(candidates)}
        return Times(
            us, state.get("xla_us"), state.get("lead"), state.get("host_bound", False), state.get("rejected", {})
        )

    def target(device, emulated, path):
        return Target(jax.devices("cpu")[0], "cuda", 90, head(), pathlib.Path(path or measurements.cache_file(H200)))

    monkeypatch.setattr(tune, "time_product", time_product)
    monkeypatch.setattr(tune, "find_gpu", lambda: None)
    monkeypatch.setattr(tune, "of_jax", lambda device: DEVICES["h200"])
    monkeypatch.setattr(tune, "find_target", target)
    return state
