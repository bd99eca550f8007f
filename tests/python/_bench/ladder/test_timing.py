"""Times of the rungs: the figures, and that a wrong or missing kernel keeps the others."""

from __future__ import annotations

import argparse
import types

import jax
import jax.numpy as jnp
import pytest

from jax_moye._bench import ladder
from jax_moye._bench.ladder import timing
from jax_moye._timing.rounds import Contender

ARGUMENTS = argparse.Namespace(interpret=True, alternations=2, turn_ms=0.1, warmup_ms=0.0)


def test_a_wrong_kernel_is_not_timed(monkeypatch):
    config = ladder.rungs("bf16")["sm80_multistage"]
    device = jax.devices("cpu")[0]
    figures, refused = timing.measure([config], "bf16", (64, 64, 64), "NN", device, ARGUMENTS, 1000)
    assert figures.keys() == {config.name, "xla"}
    assert not refused
    monkeypatch.setattr(timing, "workload_program", lambda workload, **options: lambda a, b: jnp.matmul(a, b) + 1)
    figures, refused = timing.measure([config], "bf16", (64, 64, 64), "NN", device, ARGUMENTS, 1000)
    assert figures.keys() == {"xla"}
    assert refused[config.name].startswith("ArithmeticError: wrong: its error is ")


def test_each_is_compared_with_the_one_before():
    racing = [
        Contender(name, lambda i: [], lambda: None, times=[seconds] * 3)
        for name, seconds in (("one", 4e-6), ("two", 2e-6), ("xla", 1e-6))
    ]
    racing[1].dispatch = 0.99
    sampler = types.SimpleNamespace(mean=lambda field, spans: None)
    figures = timing._figures(timing._workload("bf16", (64, 64, 64), "NN"), racing, sampler)
    assert [figures[name]["us"] for name in ("one", "two", "xla")] == [4.0, 2.0, 1.0]
    assert (figures["two"]["ratio"], figures["two"]["ratio_ci"]) == (2.0, [2.0, 2.0])
    assert "ratio" not in figures["one"]
    assert "ratio" not in figures["xla"]
    assert figures["two"]["host_bound"] is True
    assert figures["one"]["tflops"] == pytest.approx(2 * 64**3 / 4e-6 / 1e12, rel=1e-3)


@pytest.mark.parametrize(
    ("dtype", "expected"), [("f32", ("f32", "HIGHEST")), ("tf32", ("f32", None)), ("e4m3", ("e4m3", None))]
)
def test_only_f32_asks_for_f32(dtype, expected):
    workload = timing._workload(dtype, (8, 8, 8), "NT")
    assert (workload.dtype, workload.precision) == expected
