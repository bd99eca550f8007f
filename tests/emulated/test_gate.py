"""Both cotangents of a layer with a gate in one launch: d = alpha (a b) up f'(c), other = alpha (a b) f(c)."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye import _moye_cpu
from jax_moye._selection.epilogue import ACTIVATIONS, DERIVATIVES
from tests.emulated.problems import NUMPY_DTYPES, ORDERS, accumulation_bound
from tests.emulated.test_batches import Case, lay

CONFIGS = [config for config in jax_moye.configs() if config.takes_gate]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
ONE = Case({}, "rc", "rc", "rc")
RESULTS = ("d", "preactivation")


def out_dtypes(config) -> list[str]:
    """Of 16 bits."""
    return [name for name in config.out_dtypes if NUMPY_DTYPES[name].itemsize == 2]


@dataclasses.dataclass
class Gate:
    """The arguments of `emulate`, and what d is made of."""

    sizes: tuple[int, ...]
    flat: dict[str, np.ndarray]
    strides: dict[str, tuple[int, ...]]
    a: np.ndarray  # values (batch modes..., m, k)
    b: np.ndarray  # (batch modes..., k, n)
    c: np.ndarray  # (batch modes..., m, n)
    up: np.ndarray
    integers: bool

    def run(self, config, activation: str, **options) -> dict:
        """In guarded memory, with the race checker on."""
        operands = (self.flat[name] for name in ("a", "b", "d"))
        strides = (self.strides[name] for name in ("a", "b", "d"))
        given = {name: self.flat[name] for name in ("c", "multiplier", "preactivation")}
        given |= {"c_strides": self.strides["c"], "beta": 1.0, "activation": activation}
        return _moye_cpu.emulate(config.name, *operands, self.sizes, *strides, **given | options)

    def result(self, name: str) -> np.ndarray:
        """As (batch modes..., m, n), in float64."""
        flat = self.flat[name]
        strides = [stride * flat.itemsize for stride in self.strides["d"]]
        return np.lib.stride_tricks.as_strided(flat, self.sizes[:-1], strides).astype(np.float64)

    def expected(self, activation: str, alpha: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Both results in float64, and the product."""
        a, b, c, up = (x.astype(np.float64) for x in (self.a, self.b, self.c, self.up))
        z = alpha * (a @ b)
        of = ACTIVATIONS[DERIVATIVES[activation]]
        with jax.enable_x64(True):
            value, pull = jax.vjp(of, jnp.asarray(c))
            return np.asarray(pull(jnp.asarray(z * up))[0]), z * np.asarray(value), z


def make(config, sizes, order="NT", case: Case = ONE, out_dtype: str = "", integers: bool = True) -> Gate:
    """A call; rows of its operands are padded with NaN where they may be."""
    m, n, k = sizes
    modes, batch = "".join(case.sizes), tuple(case.sizes.values())
    rng = np.random.default_rng([m, n, k, *batch])
    dtype, out = NUMPY_DTYPES[config.dtype], NUMPY_DTYPES[out_dtype or out_dtypes(config)[0]]
    multiple = config.alignment // dtype.itemsize

    def draw(shape, axes: str):
        shape = [size if name in axes else 1 for name, size in case.sizes.items()] + shape
        return rng.integers(-2, 3, shape) if integers else rng.standard_normal(shape)

    def operand(rows: int, axes: str, transposed: bool):
        values = np.broadcast_to(draw([rows, k], axes), (*batch, rows, k)).astype(dtype)
        if transposed:  # the other of rows and k is contiguous
            axes = axes.translate(str.maketrans("rc", "cr"))
        if k == 0:  # strides as if there were one
            return values, np.zeros(0, dtype), lay(np.zeros((*batch, rows, 1), dtype), axes, modes, multiple)[1]
        return values, *lay(values, axes, modes, multiple)

    flat, strides = {}, {}
    a, flat["a"], strides["a"] = operand(m, case.a, order[0] == "T")
    b, flat["b"], strides["b"] = operand(n, case.b, order[1] == "N")
    c, up = (np.broadcast_to(draw([m, n], modes), (*batch, m, n)).astype(out) for _ in range(2))
    for name, values in (("c", c), ("multiplier", up), *((name, np.full_like(c, 7)) for name in RESULTS)):
        flat[name], strides[name] = lay(values, case.d, modes)
    if not batch:  # the kernel has one mode at least
        batch, strides = (1,), {name: (0, *of) for name, of in strides.items()}
        a, b, c, up = a[None], b[None], c[None], up[None]
    return Gate((*batch, m, n, k), flat, strides, a, b.swapaxes(-1, -2), c, up, integers)


def check(config, gate: Gate, activation: str = "d_relu", alpha: float = 1.0, **options) -> None:
    """Of relu and integers the answer rounded once; of others what sums, and functions for such a result, allow."""
    report = gate.run(config, activation, alpha=alpha, **options)
    assert report["ok"], report["message"]
    of_c, of_up, z = gate.expected(activation, alpha)
    dtype = gate.flat["d"].dtype
    unit = 2.0**-8 if dtype != np.float16 else 2.0**-11
    of_z = abs(alpha) * accumulation_bound(config, gate.a, gate.b) if not gate.integers else 0.0
    for name, wanted, factor in (("d", of_c, gate.up), ("preactivation", of_up, gate.c)):
        found, factor = gate.result(name), np.abs(factor.astype(np.float64))
        if gate.integers and activation == "d_relu":
            np.testing.assert_array_equal(found, wanted.astype(np.float32).astype(dtype).astype(np.float64), name)
        else:  # no activation's slope is over 1.13
            bound = unit * np.abs(wanted) + (1e-4 * np.abs(z) + 1.13 * of_z) * factor + 1e-6
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
        gate.c[0, 0, :3] = 0, 8, -8
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
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "eager"},
        {"mode": "lazy", "order": "lifo"},
        *({"mode": "random", "order": "random", "seed": seed} for seed in (1, 2, 3)),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
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
    report = gate.run(config, "d_silu", count_transactions=True)
    assert report["ok"], report["message"]
    counted = report["counters"]
    assert {name: number for name, number in counted.items() if name.endswith("_bank_conflicts") and number} == {}
    assert counted["global_store_requests"] == counted["shared_load_requests"] == 0
    assert counted["stmatrix_wavefronts"] == counted["stmatrix_ideal_wavefronts"] > 0


@every_config
def test_where_relu_is_0_infinite_products_are(config):
    """d is a choice, as JAX has it. The other result is a product, and NaN there, as in a program."""
    gate = make(config, (16, 32, 8), "NT")
    gate.a[0, 3, 2] = gate.flat["a"].reshape(16, 8)[3, 2] = np.inf
    gate.c[0, 2, :3] = gate.flat["c"].reshape(16, 32)[2, :3] = 0, np.nan, np.inf
    gate.up[0, 5, :2] = gate.flat["multiplier"].reshape(16, 32)[5, :2] = np.inf, np.nan
    report = gate.run(config, "d_relu")
    assert report["ok"], report["message"]
    with np.errstate(invalid="ignore"):
        z, c, up = (x.astype(np.float64) for x in (gate.a.astype(np.float64) @ gate.b, gate.c, gate.up))
        np.testing.assert_array_equal(gate.result("d"), np.where(c > 0, z * up, 0))
        np.testing.assert_array_equal(gate.result("preactivation"), z * np.maximum(c, 0))


# -------------------------------------------------------------------------------------------------------------- errors


def error_of(config, gate: Gate, activation: str = "d_silu", **options) -> str:
    report = gate.run(config, activation, **options)
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
