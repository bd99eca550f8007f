"""Two files of results: which numbers are compared, and their intervals."""

from __future__ import annotations

import math

import numpy as np
import pytest

from jax_moye._bench import compare
from jax_moye._bench.compare import File, Timed


def timed(name, us=1.0, **more):
    return Timed((name,), name, us, **more)


def file(*several):
    return File("f.json", "about", several)


def test_the_interval_of_a_quotient_is_that_of_two_runs():
    """Against a simulation: medians that are normal on the scale of logarithms."""
    rng = np.random.default_rng(0)
    a, b = 0.03, 0.05
    quotients = 3.0 * np.exp(rng.normal(0, a, 200_000)) / (2.0 * np.exp(rng.normal(0, b, 200_000)))
    expected = np.quantile(quotients, (0.025, 0.975))
    ends = [(x * math.exp(-1.96 * s), x * math.exp(1.96 * s)) for x, s in ((3.0, a), (2.0, b))]
    assert compare.quotient_interval(3.0, ends[0], 2.0, ends[1]) == pytest.approx(expected, rel=2e-3)
    # The ends of an interval need not be equally far: up is the first's way up and the second's way down.
    low, high = compare.quotient_interval(1.0, (1.0, 2.0), 1.0, (1.0, 1.0))
    assert (low, high) == pytest.approx((1.0, 2.0))
    assert compare.quotient_interval(1.0, (1.0, 1.0), 1.0, (1.0, 4.0)) == pytest.approx((0.25, 1.0))
    assert compare.quotient_interval(1.0, None, 1.0, (1.0, 4.0)) is None


def test_what_is_compared():
    of_torch = {"ratio": 0.5, "ratio_ci": (0.4, 0.6), "against": "torch"}
    first = file(
        timed("ratio", 9.0, **of_torch),
        timed("others", 8.0, us_ci=(7.9, 8.1), **of_torch),
        timed("no interval", 8.0),
        timed("first alone"),
        timed("no number", None),
    )
    second = file(
        timed("second alone"),
        timed("ratio", 1.0, **of_torch | {"ratio": 0.6, "ratio_ci": (0.6, 0.6)}),
        timed("others", 4.0, us_ci=(3.9, 4.1), **of_torch | {"against": "xla"}),
        timed("no interval", 10.0),
        timed("no number", None),
    )
    found = {change.first.name: change for change in compare.changes(first, second)}
    assert list(found) == ["no interval", "ratio", "others"]  # from slower to faster
    assert found["ratio"].of == "ratio to torch"
    assert found["ratio"].faster == pytest.approx(1.2)
    assert found["ratio"].interval == pytest.approx((1.0, 1.5))
    assert (found["others"].of, found["others"].faster, found["others"].verdict) == ("time", 2.0, "faster")
    assert (found["no interval"].faster, found["no interval"].verdict) == (0.8, "?")
    text = "\n".join(compare.lines(first, second, list(found.values())))
    assert "3 products, B is 1.243 times as fast (geometric mean): 1 level, 1 faster, 1 without an interval" in text
    assert "only in A: 1, first alone" in text
    assert "only in B: 1, second alone" in text


def test_verdicts():
    def verdict(low, high):
        return compare.Change(timed("a"), timed("a"), 1.0, (low, high), "time").verdict

    assert [verdict(0.8, 0.99), verdict(0.9, 1.1), verdict(1.01, 1.2)] == ["slower", "level", "faster"]


def test_nothing_in_common():
    with pytest.raises(ValueError, match="no product in common"):
        compare.changes(file(timed("a")), file(timed("b")))
