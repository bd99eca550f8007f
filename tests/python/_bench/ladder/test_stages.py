"""The model of the stages, and the share of the peak."""

from __future__ import annotations

import types

import pytest

from jax_moye._bench.ladder.rung_configs import stage_configs
from jax_moye._bench.ladder.stages import share_of_peak, stage_model


def test_stage_model():
    staged = stage_configs("bf16")
    models = [stage_model(config, "sm_80", 800) for config in staged]
    # 128 x 128 x 32 multiply-adds at 1024 a clock; 2 x 128 x 32 x 2 bytes at 64 a clock.
    assert models[0]["clocks"]["mma"] == 512
    assert models[0]["clocks"]["l2"] == 256
    assert models[0]["clocks"]["shared"] == 384
    # Two stages: a load lands in half a k-tile, so one takes 1600 clocks; 128 k-tiles and one latency.
    assert models[0]["alone"] == pytest.approx(128 * 512 / (800 + 128 * 1600), abs=1e-4)
    # Many stages: the multiplications alone.
    assert models[-1]["alone"] == pytest.approx(128 * 512 / (800 + 128 * 512), abs=1e-4)
    assert [m["alone"] for m in models] == sorted(m["alone"] for m in models)
    assert stage_model(staged[0], "sm_80", 8000)["efficiency"] < models[0]["efficiency"]
    assert stage_model(staged[-1], "sm_80", 800, registers=255)["ctas"] == 1 or models[-1]["ctas"] >= 1


def test_share_of_the_peak():
    device = types.SimpleNamespace(compute_capability="9.0", core_count=132)
    figures = {"tflops": 2 * 1250 * 132 * 1.5e9 / 1e12 / 4, "sm_mhz": 1500}  # a quarter of 1250 a clock
    assert share_of_peak(figures, "bf16", device) == 0.25
    assert share_of_peak(figures, "e4m3", device) is None
    assert share_of_peak(figures | {"sm_mhz": None}, "bf16", device) is None
    device.compute_capability = "12.0"
    assert share_of_peak(figures, "bf16", device) is None
