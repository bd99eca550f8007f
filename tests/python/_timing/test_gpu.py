"""What NVML said while rounds ran."""

from __future__ import annotations

from jax_moye._timing.gpu import Sampler


def sampler(samples):
    made = object.__new__(Sampler)
    made._at = list(range(len(samples)))
    made._samples = samples
    return made


def test_means():
    made = sampler([(1980, 300.0, 40, 0), (1500, 700.0, 60, 4), (1400, 690.0, 62, 4 | 0x20)])
    assert made.mean("sm_mhz", [(0, 0)]) == 1980
    assert made.mean("watts", [(0.5, 2)]) == 695
    assert made.mean("celsius", [(1, 2)]) == 61
    assert made.mean("celsius", [(7, 8)]) is None
    assert made.throttled([(0, 0)]) == []
    assert made.throttled([(0, 2)]) == ["power cap", "thermal, software"]
