"""Minimal cuts: small ones by hand, random ones against all sets of values."""

import itertools

import numpy as np
import pytest

from jax_moye._primitives.minimal_cut import minimal_cut


def test_by_hand():
    costs = {"x": 4, "small": 1, "y": 4, "z": 2, "w": 2}
    made_of = {"x": None, "small": None, "y": ["x", "small"], "z": ["y"], "w": ["y"]}
    assert minimal_cut(costs, made_of, ["z", "w"]) == ({"z", "w"}, 4)  # the one from which nothing is computed
    assert minimal_cut(costs, made_of, ["y", "z", "w"]) == ({"y"}, 4)
    assert minimal_cut(costs | {"y": 9}, made_of, ["y", "z", "w"]) == ({"x", "small"}, 5)
    assert minimal_cut(costs, {**made_of, "y": []}, ["y", "z"]) == (set(), 0)
    assert minimal_cut(costs, made_of, []) == (set(), 0)


def follow(kept, made_of, wanted):
    """Whether values that are wanted follow from some that are kept."""
    known = set()
    for value, operands in made_of.items():  # in order
        if value in kept or (operands is not None and known >= {*operands}):
            known.add(value)
    return known >= {*wanted}


@pytest.mark.parametrize("seed", range(40))
def test_none_costs_less(seed):
    rng = np.random.default_rng(seed)
    count = 9
    costs = {i: int(rng.integers(0, 6)) for i in range(count)}
    made_of = {}
    for i in range(count):
        operands = [j for j in range(i) if rng.random() < 0.4]
        made_of[i] = None if not operands and rng.random() < 0.9 else operands
    wanted = [i for i in range(count) if rng.random() < 0.4]
    kept, cost = minimal_cut(costs, made_of, wanted)
    sets = (one for size in range(count + 1) for one in itertools.combinations(range(count), size))
    least = min(sum(costs[i] for i in one) for one in sets if follow(one, made_of, wanted))
    assert follow(kept, made_of, wanted)
    assert cost == sum(costs[i] for i in kept) == least
