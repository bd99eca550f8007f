"""The table and the model of the golden files."""

import pytest
from python._inspect.golden import TABLE, simple_terms

from jax_moye._kernels import ffi
from jax_moye._selection import capability, cost, decide, measurements, ranking, summation


@pytest.fixture
def fixed(monkeypatch):
    """The table and the model of the golden files."""
    monkeypatch.setattr(capability, "usable_configs", lambda platform, arch: TABLE)
    monkeypatch.setattr(ffi, "built", lambda platform: frozenset(row.name for row in TABLE))
    monkeypatch.setattr(cost, "terms", simple_terms)

    def xla_us(problem, arch, **kwargs):
        return None if arch != 90 else 9.5 if problem.k == 4097 else 1e9

    monkeypatch.setattr(decide, "xla_us", xla_us)
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(measurements, "find", lambda *args: None)
    for cached in (ranking.rank, ranking._best, summation.batch_invariant_configs):
        cached.cache_clear()
    yield
    for cached in (ranking.rank, ranking._best, summation.batch_invariant_configs):
        cached.cache_clear()
