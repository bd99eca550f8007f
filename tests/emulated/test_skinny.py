"""sm90_skinny: a cluster of CTAs for a tile where k is long, and sums that depend on n and k alone."""

from __future__ import annotations

import numpy as np
import pytest

import jax_moye
from tests.emulated.emulate import emulate
from tests.emulated.problems import ORDERS, Problem, componentwise_bound, make_call, product

CONFIGS = [config for config in jax_moye.configs() if config.kernel == "sm90_skinny"]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def run(config, problem: Problem, *, values: str = "integers", **options):
    call = make_call(config, problem, config.out_dtypes[0], values=values)
    report = emulate(config, call, count_transactions=True, **options)
    assert report["ok"], report["message"]
    return call, report["counters"]


@every_config
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("parts", [1, 2, 4, 8])
def test_parts_of_k(config, order, parts):
    """As many CTAs share a tile as have a ring of k-tiles each, eight at most; columns and k end within a tile."""
    tile_m, tile_n, tile_k = config.tile
    k_tiles = parts * config.stages + (parts == 1) * (config.stages - 1) + (parts == 4)
    problem = Problem(tile_m + 1, tile_n + 8, k_tiles * tile_k - 5, order, pad=8)
    call, counters = run(config, problem)
    assert counters["ctas"] == 2 * 2 * parts
    expected = np.matmul(call.values_a.astype(np.float64), call.values_b.astype(np.float64)).astype(call.d.dtype)
    np.testing.assert_array_equal(call.result().astype(np.float64), expected.astype(np.float64))


@every_config
def test_a_share_of_an_epilogue(config):
    """Each rank finishes the vectors that it stores, and no other."""
    tile_m, tile_n, tile_k = config.tile
    problem = Problem(tile_m, tile_n + 8, 4 * config.stages * tile_k, "NN")
    call, counters = run(config, problem, activation="relu", alpha=-1.0)
    assert counters["ctas"] == 2 * 4
    product_of = np.matmul(call.values_a.astype(np.float64), call.values_b.astype(np.float64))
    expected = np.maximum(-product_of, 0).astype(call.d.dtype)
    assert 0 < (expected > 0).sum() < expected.size
    np.testing.assert_array_equal(call.result().astype(np.float64), expected.astype(np.float64))


@every_config
@pytest.mark.parametrize("options", [{"order": "lifo"}, {"order": "random", "mode": "random", "seed": 5}], ids=str)
def test_schedules_of_a_cluster(config, options):
    """Ranks that come and go in any order add up the same."""
    problem = Problem(config.tile[0], 2 * config.tile[1], (4 * config.stages + 1) * config.tile[2], "NT")
    one, other = run(config, problem, values="normal")[0], run(config, problem, values="normal", **options)[0]
    np.testing.assert_array_equal(one.result().view(np.uint8), other.result().view(np.uint8))


@every_config
@pytest.mark.parametrize("order", ["NN", "NT"])
def test_long_sums_within_their_bound(config, order):
    """Against float64: sums of lanes, warps and ranks are sums of few each, and so better than one chain of FMAs."""
    call, _ = run(config, Problem(config.tile[0], 72, 2053, order, pad=8), values="normal")
    exact = product(call.values_a, call.values_b)
    error = np.abs(call.result().astype(np.longdouble) - exact)
    bound = componentwise_bound(config, call.values_a, call.values_b, exact, config.out_dtypes[0])
    assert (error <= bound).all()


@every_config
def test_a_row_has_its_bits(config):
    """Whatever the other rows are, how many there are, and however many matrices: n and k say how sums are made."""
    tile_m, tile_n, tile_k = config.tile
    k = (2 * config.stages + 1) * tile_k
    both = Problem(2 * tile_m, tile_n, k, "NN", batch=2)
    call, _ = run(config, both, values="normal")
    alone = make_call(config, Problem(1, tile_n, k, "NN"), config.out_dtypes[0])
    alone.a[...] = call.values_a[1, tile_m]
    alone.b[...] = call.values_b[1].reshape(-1)
    assert emulate(config, alone)["ok"]
    np.testing.assert_array_equal(alone.result()[0, 0].view(np.uint8), call.result()[1, tile_m].view(np.uint8))
