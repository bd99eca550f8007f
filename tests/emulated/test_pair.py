"""Two right-hand operands in one launch: d = activation(alpha a b) * (a second_b), and both products on request."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import jax_moye
from tests.emulated.problems import ORDERS, UNIT, accumulation_bound, order_for, skip_other_orders
from tests.emulated.test_batches import Case
from tests.emulated.test_epilogue import ACTIVATIONS, activate
from tests.emulated.two_results import ONE, Call, every_schedule, make_call, out_dtypes

# Groups of rows have drivers of their own: test_grouped_pair.py.
CONFIGS = [config for config in jax_moye.configs() if config.takes_pair and not config.grouped]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)


def step_of_n(config) -> int:
    """Threads of sm90_split_k store any n, TMA whole pieces of 16 bytes."""
    return 1 if config.kernel == "sm90_split_k" else 8


def tile_of(config) -> tuple[int, int]:
    """Rows of d and columns that a CTA computes: half as many as with one b."""
    return config.tile[0], config.tile[1] // 2


@dataclasses.dataclass
class Pair(Call):
    """A call, and whether its products are asked for."""

    keeps: bool = False

    def run(self, config, **options) -> dict:
        kept = {name: self.flat[name] for name in ("preactivation", "second_product") if self.keeps}
        return self.emulate(config, **{"second_b": self.flat["second_b"], **kept, **options})

    def products(self) -> tuple[np.ndarray, np.ndarray]:
        """Of both matrices, in long double."""
        a, b, second = (self.values[name].astype(np.longdouble) for name in ("a", "b", "second_b"))
        return a @ b, a @ second


def make(
    config,
    sizes: tuple[int, int, int],
    order: str = "NN",
    case: Case = ONE,
    out_dtype: str = "",
    keeps: bool = False,
    integers: bool = True,
) -> Pair:
    right, results = ("b", "second_b"), ("preactivation", "second_product")
    call = make_call(config, sizes, order, case, out_dtype, integers, right=right, results=results)
    assert call.strides["second_b"] == call.strides["b"]
    return Pair(**vars(call), keeps=keeps)


def check_integers(config, pair: Pair, alpha: float = 1.0, activation: str = "none", **options) -> None:
    """What comes out is the answer rounded once: alpha is a power of 2, activation none or relu."""
    report = pair.run(config, alpha=alpha, activation=activation, **options)
    assert report["ok"], report["message"]
    z, second = pair.products()
    z = alpha * z
    expected = {"d": activate(activation, z) * second}
    if pair.keeps:
        expected |= {"preactivation": z, "second_product": second}
    for name, values in expected.items():
        with np.errstate(over="ignore"):  # of f16
            rounded = values.astype(np.float32).astype(pair.flat["d"].dtype)
        np.testing.assert_array_equal(pair.result(name), rounded, err_msg=name)


# ------------------------------------------------------------------------------------------------------------ integers


def test_which_configs_take_two_operands():
    assert {config.kernel for config in CONFIGS} == {"sm90_cooperative", "sm90_pingpong", "sm90_split_k"}
    for config in CONFIGS:
        assert (config.dtype, config.alignment, config.accumulator) in {("bf16", 16, "f32"), ("f16", 16, "f32")}
        assert config.tile[1] % 128 == 0


@every_config
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("keeps", [False, True])
def test_tiles_and_their_edges(config, order, keeps):
    """Whole tiles, cut ones, and those beside them: of k odd numbers in the orders in which rows are not k."""
    skip_other_orders(config, order)
    (tile_m, tile_n), tile_k, step = tile_of(config), config.tile[2], step_of_n(config)
    sizes = {
        "NN": (tile_m + 13, 2 * tile_n + step, 2 * tile_k + 5),
        "NT": (tile_m, tile_n, tile_k),
        "TN": (1, tile_n - step, config.stages * tile_k + 1),
        "TT": (2 * tile_m - 3, 3 * step, 7),
    }[order]
    outs = out_dtypes(config)
    pair = make(config, sizes, order, out_dtype=outs[ORDERS.index(order) % len(outs)], keeps=keeps)
    check_integers(config, pair, alpha=(1.0, -0.5, 2.0, 1.0)[ORDERS.index(order)], activation=("none", "relu")[keeps])


BATCHES = [
    Case(dict(x=3), "xrc", "xrc", "xrc"),
    Case(dict(x=3), "rc", "xrc", "xrc"),  # one a
    Case(dict(x=2), "xrc", "rc", "xrc"),  # one b, and one second b
    Case(dict(x=2, y=3), "yrc", "xryc", "yrxc"),
    Case(dict(x=2, y=2, z=2), "zryxc", "yrzxc", "zyrxc"),
]


@every_config
@pytest.mark.parametrize("case", BATCHES, ids=str)
def test_batches(config, case):
    """The two share strides, whatever these are; two tiles along m of each matrix."""
    turn = BATCHES.index(case)
    pair = make(config, (config.tile[0] + 3, 24, 40), order_for(config, ORDERS[turn % 4]), case, keeps=turn % 2 == 0)
    check_integers(config, pair, activation="relu", multiprocessors=1 + turn % 3)


@every_config
def test_several_tiles_of_a_cta(config):
    """A ring that goes on from tile to tile, and stores that are on their way meanwhile."""
    (tile_m, tile_n), tile_k = tile_of(config), config.tile[2]
    sizes = 2 * tile_m + 1, 4 * tile_n + 8, tile_k + 1
    for multiprocessors in (1, 3):
        check_integers(config, make(config, sizes, "NT", keeps=True), multiprocessors=multiprocessors)


@every_config
@pytest.mark.parametrize("flush", ["end", "start"])
def test_nothing_outside_is_read_or_written(config, flush):
    """Few elements, and operands that end (or start) at an inaccessible page."""
    step = step_of_n(config)
    for index, (m, n, k) in enumerate([(1, step, 1), (9, 3 * step, 8), (2, 8 * step, 33)]):
        for keeps in (False, True):
            pair = make(config, (m, n, k), order_for(config, ORDERS[(2 * index + keeps) % 4]), keeps=keeps)
            check_integers(config, pair, activation="relu", flush=flush)


@every_config
def test_no_products(config):
    """With k = 0 all are zeros, and are written."""
    for keeps in (False, True):
        check_integers(config, make(config, (19, 40, 0), keeps=keeps), alpha=2.0, activation="relu")


@every_config
def test_no_rows_and_no_columns(config):
    for sizes in ((0, 16, 8), (16, 0, 8)):
        check_integers(config, make(config, sizes, keeps=True))


@every_config
@every_schedule
def test_schedules(config, options):
    """The answer does not depend on when copies and wgmmas take place, or which thread runs first."""
    (tile_m, tile_n), (_, _, tile_k) = tile_of(config), config.tile
    sizes = tile_m + 1, tile_n + 8, (config.stages + 1) * tile_k + 3
    check_integers(config, make(config, sizes, "NT", keeps=True), activation="relu", **options)


def test_columns_of_any_number():
    """Of threads that store: rows that no word divides, and whole words."""
    configs = [config for config in CONFIGS if step_of_n(config) == 1]
    assert configs
    for config, n, keeps in itertools.product(configs, (1, 2, 63, 64, 65, 68, 130), (False, True)):
        check_integers(
            config, make(config, (5, n, 9), order_for(config, ORDERS[n % 4]), keeps=keeps), activation="relu"
        )


def test_a_transposed_d_of_threads():
    """Where d's rows lie side by side no word is stored."""
    for config in CONFIGS:
        if step_of_n(config) == 1:
            check_integers(config, make(config, (24, 37, 9), case=Case({}, "rc", "rc", "cr"), keeps=True))


@every_config
@pytest.mark.parametrize("keeps", [False, True])
def test_no_bank_is_met_twice(config, keeps):
    """By TMA no thread stores a result; where threads do, they store words side by side, each sector once."""
    tile_m, tile_n = tile_of(config)
    pair = make(config, (tile_m + 24, tile_n + 48, 48), "NT", Case(dict(x=2), "xrc", "xrc", "xrc"), keeps=keeps)
    report = pair.run(config, activation="relu", count_transactions=True)
    assert report["ok"], report["message"]
    counted = report["counters"]
    assert {name: number for name, number in counted.items() if name.endswith("_bank_conflicts") and number} == {}
    if config.kernel != "sm90_split_k":
        assert counted["global_store_requests"] == counted["shared_load_requests"] == 0
        assert counted["tma_stores"] > 0
        assert counted["stmatrix_wavefronts"] == counted["stmatrix_ideal_wavefronts"]
    else:
        assert counted["tma_stores"] == 0
        assert counted["global_store_sectors"] == counted["global_store_ideal_sectors"]


# ------------------------------------------------------------------------------------------------------------ roundings


@every_config
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_activations(config, activation):
    """Normal numbers, against long double: the bounds are those of the factors."""
    alpha, out = (-0.375, out_dtypes(config)[ACTIVATIONS.index(activation) % len(out_dtypes(config))])
    tile_m, tile_n = tile_of(config)
    sizes = tile_m + 3, tile_n + 8, config.tile[2] + 3
    pair = make(
        config,
        sizes,
        order_for(config, ORDERS[ACTIVATIONS.index(activation) % 4]),
        out_dtype=out,
        keeps=True,
        integers=False,
    )
    report = pair.run(config, alpha=alpha, activation=activation)
    assert report["ok"], report["message"]
    z, second = pair.products()
    z = alpha * z
    unit, smallest = UNIT["f32"], 2.0**-24 if out == "f16" else 2.0**-126
    of_z = abs(alpha) * accumulation_bound(config, pair.values["a"], pair.values["b"]) + 4 * unit * abs(z)
    of_second = accumulation_bound(config, pair.values["a"], pair.values["second_b"])
    of_activated = 1.13 * of_z + 16 * unit * abs(z)  # no activation's slope is over 1.13
    activated = activate(activation, z)
    of_d = of_activated * (abs(second) + of_second) + abs(activated) * of_second + unit * abs(activated * second)
    for name, exact, bound in (
        ("preactivation", z, of_z),
        ("second_product", second, of_second),
        ("d", activated * second, of_d),
    ):
        error = abs(pair.result(name).astype(np.longdouble) - exact)
        assert (error <= bound + UNIT[out] * (abs(exact) + bound) + smallest).all(), name


@every_config
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity(config, activation):
    """They reach what is made of them, and nothing else."""
    pair = make(config, (16, 32, 8), "NN", keeps=True)
    pair.values["a"][0, 3] = 0
    pair.flat["a"][: 16 * 8].reshape(16, 8)[3] = 0
    second = pair.flat["second_b"].reshape(8, 32)
    second[:, 5], second[:, 6] = np.nan, np.inf
    values = pair.values["second_b"][0]
    values[:, 5], values[:, 6] = np.nan, np.inf
    report = pair.run(config, activation=activation)
    assert report["ok"], report["message"]
    assert np.isnan(pair.result().astype(np.float32)[0, :, 5]).all()
    assert np.isnan(pair.result().astype(np.float32)[0, 3, 6])
    rest = np.delete(pair.result().astype(np.float32)[0], [5, 6], axis=1)
    assert np.isfinite(rest).all()
    assert (rest[3] == 0).all()
    assert np.isfinite(pair.result("preactivation").astype(np.float32)).all()


# --------------------------------------------------------------------------------------------------------------- errors


def error_of(config, pair: Pair, **options) -> str:
    report = pair.run(config, **options)
    assert not report["ok"]
    return report["message"]


def test_other_kernels_take_none():
    """Each says so, whatever else it computes."""
    for config in jax_moye.configs():
        if not config.takes_pair and not config.grouped and config.dtype == "bf16":
            assert "the kernel takes no second b" in error_of(config, make(config, (16, 16, 16), config.orders[0]))


@every_config
def test_refused_calls(config):
    """Each with what is wrong about it."""
    pair = make(config, (16, 32, 24), keeps=True)
    flat, d = pair.flat, pair.flat["d"]
    for name in ("c", "bias", "residual"):
        message = error_of(config, pair, **{name: np.zeros_like(d), f"{name}_strides": (0, 32, 1)})
        assert "a call with a second b has no c, bias or residual" in message
    assert "the second b has 767 elements" in error_of(config, pair, second_b=flat["second_b"][:-1])
    assert "the second product has 511 elements, d 512" in error_of(config, pair, second_product=d[:-1].copy())
    assert "the pre-activation has 511 elements, d 512" in error_of(config, pair, preactivation=d[:-1].copy())
    wide = np.zeros(d.size, np.float32)
    assert f"the second product is f32, d {out_dtypes(config)[0]}" in error_of(config, pair, second_product=wide)
    misaligned = np.zeros(flat["second_b"].size + 1, d.dtype)[1:]
    assert "the second b has an address that 16 bytes do not divide" in error_of(
        config, pair, second_b=misaligned, guard=False
    )
    assert "the second product and d overlap" in error_of(config, pair, second_product=d, guard=False)
    halves = np.zeros(d.size + d.size // 2, d.dtype)
    for z, second in ((d.copy(),) * 2, (halves[: d.size], halves[d.size // 2 :])):
        options = {"preactivation": z, "second_product": second, "guard": False}
        assert "the pre-activation and the second product overlap" in error_of(config, pair, **options)
    check_integers(config, pair)  # and nothing else was wrong


@every_config
def test_wide_results_are_refused(config):
    if "f32" not in config.out_dtypes:
        pytest.skip("it writes none")
    pair = make(config, (16, 32, 24), out_dtype="f32")
    assert "d of two b has 16 bits, not f32" in error_of(config, pair)


@every_config
def test_what_tma_cannot_store_is_refused(config):
    """Rows that 16 bytes do not divide, and results that do not begin at such an address: threads store them."""
    pair = make(config, (16, 36, 24), keeps=True)
    transposed = make(config, (16, 32, 24), case=Case({}, "rc", "rc", "cr"))
    if step_of_n(config) == 1:
        check_integers(config, pair)
        check_integers(config, transposed)
        return
    for one in (pair, transposed):
        assert "d of two b is stored by TMA" in error_of(config, one)
    for names in (["d"], ["preactivation", "second_product"]):
        pair = make(config, (16, 32, 24), keeps=True)
        for name in names:
            pair.flat[name] = np.zeros(16 * 32 + 4, pair.flat[name].dtype)[4:]
        assert "d of two b is stored by TMA" in error_of(config, pair, guard=False)


def test_results_of_threads_lie_anywhere():
    """A result whose address no word divides is stored element by element, and both products with it, alike."""

    def at(skipped: int, dtype) -> np.ndarray:
        return np.zeros(16 * 32 + skipped, dtype)[skipped:]

    for config in CONFIGS:
        if step_of_n(config) != 1:
            continue
        for of_d, of_products in itertools.product((0, 1, 2), (0, 1, 4)):
            pair = make(config, (16, 32, 24), keeps=True)
            dtype = pair.flat["d"].dtype
            pair.flat |= {"d": at(of_d, dtype), "preactivation": at(of_products, dtype)}
            pair.flat["second_product"] = at(of_products, dtype)
            check_integers(config, pair, guard=False)
            pair.flat["second_product"] = at(of_products + 1, dtype)
            message = "the second product is aligned otherwise than the pre-activation"
            assert message in error_of(config, pair, guard=False)
