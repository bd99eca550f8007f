"""Both cotangents of a layer with a gate in one launch: d = alpha (a b) up f'(c), other = alpha (a b) f(c)."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._selection.epilogue import ACTIVATIONS, DERIVATIVES
from tests.emulated.problems import ORDERS, accumulation_bound
from tests.emulated.test_batches import Case
from tests.emulated.two_results import ONE, Call, every_schedule, make_call, out_dtypes

CONFIGS = [config for config in jax_moye.configs() if config.takes_gate]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
RESULTS = ("d", "preactivation")


def make(config, sizes, order="NT", case: Case = ONE, out_dtype: str = "", integers: bool = True) -> Call:
    others = ("c", "multiplier")
    return make_call(config, sizes, order, case, out_dtype, integers, others=others, results=RESULTS[1:])


def run(config, gate: Call, activation: str, **options) -> dict:
    given = {name: gate.flat[name] for name in ("c", "multiplier", "preactivation")}
    given |= {"c_strides": gate.strides["c"], "beta": 1.0, "activation": activation}
    return gate.emulate(config, **given | options)


def expected(gate: Call, activation: str, alpha: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Both results in float64, and the product."""
    a, b, c, up = (gate.values[name].astype(np.float64) for name in ("a", "b", "c", "multiplier"))
    z = alpha * (a @ b)
    of = ACTIVATIONS[DERIVATIVES[activation]]
    with jax.enable_x64(True):
        value, pull = jax.vjp(of, jnp.asarray(c))
        return np.asarray(pull(jnp.asarray(z * up))[0]), z * np.asarray(value), z


def check(config, gate: Call, activation: str = "d_relu", alpha: float = 1.0, **options) -> None:
    """Of relu and integers the answer rounded once; of others what sums, and functions for such a result, allow."""
    report = run(config, gate, activation, alpha=alpha, **options)
    assert report["ok"], report["message"]
    of_c, of_up, z = expected(gate, activation, alpha)
    dtype = gate.flat["d"].dtype
    unit = 2.0**-8 if dtype != np.float16 else 2.0**-11
    of_z = abs(alpha) * accumulation_bound(config, gate.values["a"], gate.values["b"]) if not gate.integers else 0.0
    for name, wanted, factor in (("d", of_c, "multiplier"), ("preactivation", of_up, "c")):
        found, factors = gate.result(name).astype(np.float64), np.abs(gate.values[factor].astype(np.float64))
        if gate.integers and activation == "d_relu":
            np.testing.assert_array_equal(found, wanted.astype(np.float32).astype(dtype).astype(np.float64), name)
        else:  # no activation's slope is over 1.13
            bound = unit * np.abs(wanted) + (1e-4 * np.abs(z) + 1.13 * of_z) * factors + 1e-6
            assert (np.abs(found - wanted) <= bound).all(), name


# ------------------------------------------------------------------------------------------------------------- results


def test_which_configs_take_a_gate():
    assert {config.kernel for config in CONFIGS} == {"sm90_cooperative", "sm90_pingpong"}
    for config in CONFIGS:
        assert (config.dtype, config.alignment, config.accumulator) in {("bf16", 16, "f32"), ("f16", 16, "f32")}
        assert config.derives
        assert config.tile[1] % 64 == 0


@every_config
@pytest.mark.parametrize("activation", DERIVATIVES)
def test_values(config, activation):
    """Normal numbers, in every type of 16 bits that it writes; one tile and a piece in both directions."""
    sizes = config.tile[0] + 5, config.tile[1] + 24, 2 * config.tile[2] + 8
    for out_dtype in out_dtypes(config):
        gate = make(config, sizes, "NN", out_dtype=out_dtype, integers=False)
        gate.flat["c"][:3] = 0, 8, -8  # where a derivative jumps, and where it is 1 or 0
        gate.values["c"][0, 0, :3] = 0, 8, -8
        check(config, gate, activation, alpha=0.5)


@every_config
@pytest.mark.parametrize("order", ORDERS)
def test_tiles_and_their_edges(config, order):
    """Whole tiles, cut ones, and those beside them."""
    tile_m, tile_n, tile_k = config.tile
    sizes = {
        "NN": (tile_m + 13, 2 * tile_n + 8, 2 * tile_k + 5),
        "NT": (tile_m, tile_n, tile_k),
        "TN": (1, tile_n - 8, config.stages * tile_k + 1),
        "TT": (2 * tile_m - 3, 24, 7),
    }[order]
    outs, turn = out_dtypes(config), ORDERS.index(order)
    gate = make(config, sizes, order, out_dtype=outs[turn % len(outs)])
    check(config, gate, alpha=(1.0, -0.5, 2.0, 1.0)[turn])


BATCHES = [
    Case(dict(x=3), "xrc", "xrc", "xrc"),
    Case(dict(x=2), "xrc", "rc", "xrc"),  # one b
    Case(dict(x=2, y=3), "yrc", "xryc", "yrxc"),
    Case(dict(x=2, y=2, z=2), "zryxc", "yrzxc", "zyrxc"),
]


@every_config
@pytest.mark.parametrize("case", BATCHES, ids=str)
def test_batches(config, case):
    turn = BATCHES.index(case)
    gate = make(config, (config.tile[0] + 3, 24, 40), ORDERS[turn], case)
    check(config, gate, multiprocessors=1 + turn % 3)


@every_config
def test_several_tiles_of_a_cta(config):
    """A ring that goes on from tile to tile, and stores that are on their way meanwhile."""
    sizes = 2 * config.tile[0] + 1, 4 * config.tile[1] + 8, config.tile[2] + 1
    for multiprocessors in (1, 3):
        check(config, make(config, sizes), multiprocessors=multiprocessors)


@every_config
@pytest.mark.parametrize("flush", ["end", "start"])
def test_nothing_outside_is_read_or_written(config, flush):
    """Few elements, and arrays that end (or start) at an inaccessible page."""
    for turn, sizes in enumerate([(1, 8, 1), (9, 24, 8), (2, 64, 33), (0, 16, 8), (16, 0, 8), (19, 40, 0)]):
        check(config, make(config, sizes, ORDERS[turn % 4]), flush=flush)


@every_config
@every_schedule
def test_schedules(config, options):
    """The answer does not depend on when copies and wgmmas take place, or which thread runs first."""
    sizes = config.tile[0] + 1, config.tile[1] + 8, (config.stages + 1) * config.tile[2] + 3
    check(config, make(config, sizes), **options)


@every_config
def test_in_the_place_of_an_operand(config):
    """d may be written over c, or over the multiplier: who writes an element has read it."""
    for name in ("c", "multiplier"):
        gate = make(config, (config.tile[0] + 3, config.tile[1] + 72, 40))
        gate.flat["d"] = gate.flat[name]
        check(config, gate)


@every_config
def test_no_bank_is_met_twice(config):
    gate = make(config, (config.tile[0] + 24, config.tile[1] + 48, 48))
    report = run(config, gate, "d_silu", count_transactions=True)
    assert report["ok"], report["message"]
    counted = report["counters"]
    assert {name: number for name, number in counted.items() if name.endswith("_bank_conflicts") and number} == {}
    assert counted["global_store_requests"] == counted["shared_load_requests"] == 0
    assert counted["stmatrix_wavefronts"] == counted["stmatrix_ideal_wavefronts"] > 0


@every_config
def test_where_relu_is_0_infinite_products_are(config):
    """d is a choice, as JAX has it. The other result is a product, and NaN there, as in a program."""
    gate = make(config, (16, 32, 8), "NT")
    gate.values["a"][0, 3, 2] = gate.flat["a"].reshape(16, 8)[3, 2] = np.inf
    gate.values["c"][0, 2, :3] = gate.flat["c"].reshape(16, 32)[2, :3] = 0, np.nan, np.inf
    gate.values["multiplier"][0, 5, :2] = gate.flat["multiplier"].reshape(16, 32)[5, :2] = np.inf, np.nan
    report = run(config, gate, "d_relu")
    assert report["ok"], report["message"]
    with np.errstate(invalid="ignore"):
        a, b, c, up = (gate.values[name].astype(np.float64) for name in ("a", "b", "c", "multiplier"))
        z = a @ b
        np.testing.assert_array_equal(gate.result("d").astype(np.float64), np.where(c > 0, z * up, 0))
        np.testing.assert_array_equal(gate.result("preactivation").astype(np.float64), z * np.maximum(c, 0))


# -------------------------------------------------------------------------------------------------------------- errors


def error_of(config, gate: Call, activation: str = "d_silu", **options) -> str:
    report = run(config, gate, activation, **options)
    assert not report["ok"]
    return report["message"]


def test_other_kernels_take_none():
    """Each that multiplies by a derivative says so; the others take no derivative either."""
    others = [c for c in jax_moye.configs() if not c.takes_gate and not c.grouped and c.dtype == "bf16"]
    for config in others:
        why = "takes no multiplier" if config.derives else "multiplies by no derivative"
        assert f"the kernel {why}" in error_of(config, make(config, (16, 16, 16), config.orders[0]))


@every_config
def test_refused_calls(config):
    """Each with what is wrong about it."""
    gate = make(config, (16, 32, 24))
    flat, d = gate.flat, gate.flat["d"]
    for name in ("bias", "residual"):
        message = error_of(config, gate, **{name: np.zeros_like(d), f"{name}_strides": (0, 32, 1)})
        assert "has no bias, residual or second b beside it" in message
    assert "has no bias, residual or second b" in error_of(config, gate, c=None, beta=0.0)
    for activation in ("none", "silu"):
        assert "a multiplier is one of an activation's derivative" in error_of(config, gate, activation)
    assert "a derivative has one result, and with a multiplier two" in error_of(config, gate, preactivation=None)
    assert "a derivative has one result, and with a multiplier two" in error_of(config, gate, multiplier=None)
    assert "the multiplier has 511 elements" in error_of(config, gate, multiplier=flat["multiplier"][:-1].copy())
    wide = np.zeros(d.size, np.float32)
    assert "the multiplier is f32, and d is" in error_of(config, gate, multiplier=wide)
    assert "the pre-activation has 511 elements, d 512" in error_of(config, gate, preactivation=d[:-1].copy())
    at = {"guard": False}
    assert "the multiplier and the pre-activation overlap" in error_of(
        config, gate, preactivation=flat["multiplier"], **at
    )
    assert "the pre-activation and d overlap" in error_of(config, gate, preactivation=d, **at)
    longer = np.zeros(d.size + 8, d.dtype)
    gate.flat["d"] = longer[8:]
    assert "the multiplier and d overlap" in error_of(config, gate, multiplier=longer[:-8], **at)


@every_config
def test_what_tma_cannot_store_is_refused(config):
    """Rows that 16 bytes do not divide, results that do not begin at such an address, and operands of odd elements."""
    message = "results of a multiplier are stored by TMA"
    for case, n in ((ONE, 36), (Case({}, "rc", "rc", "cr"), 32)):
        assert message in error_of(config, make(config, (16, n, 24), case=case))
    for name, skipped in itertools.product((*RESULTS, "c", "multiplier"), (1, 4)):
        gate = make(config, (16, 32, 24))
        gate.flat[name] = np.concatenate([gate.flat[name][:skipped], gate.flat[name]])[skipped:]
        if skipped == 4 and name not in RESULTS:  # words of two
            check(config, gate, guard=False)
        else:
            assert message in error_of(config, gate, guard=False)


@every_config
def test_wide_results_are_refused(config):
    if "f32" not in config.out_dtypes:
        pytest.skip("it writes none")
    assert "has 16 bits, not those of f32" in error_of(config, make(config, (16, 32, 24), out_dtype="f32"))
