"""The epilogue of every row of the table: d = activation(alpha a b + beta c + bias) + residual, and what it reads."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

import jax_moye
from tests.emulated.emulate import emulate
from tests.emulated.problems import (
    NUMPY_DTYPES,
    UNIT,
    Problem,
    accumulation_bound,
    make_call,
    order_for,
    product,
)

CONFIGS = list(jax_moye.configs())
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
ACTIVATIONS = ("none", "relu", "gelu_tanh", "gelu_erf", "silu")


def _erf(x: np.ndarray) -> np.ndarray:
    """Of float64's precision, in long double."""
    values = map(math.erf, x.astype(np.float64).ravel().tolist())
    return np.fromiter(values, np.float64, x.size).reshape(x.shape).astype(np.longdouble)


def activate(name: str, z: np.ndarray) -> np.ndarray:
    """The activation in z's own precision."""
    with np.errstate(all="ignore"):
        return {
            "none": lambda: z,
            "relu": lambda: np.where(z < 0, 0, z),
            "gelu_tanh": lambda: z * (0.5 * (1 + np.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z * z * z)))),
            "gelu_erf": lambda: z * (0.5 * (1 + _erf(z / math.sqrt(2)))),
            "silu": lambda: z / (1 + np.exp(-z)),
        }[name]()


@dataclasses.dataclass(frozen=True)
class Case:
    """One epilogue.

    c, bias, residual, lhs_scale, rhs_scale: the modes that the matrix has, the outermost first; "" where there is none,
    and "1" where it is one number.
    """

    activation: str = "none"
    alpha: float = 1.0
    beta: float = 0.0
    c: str = ""
    bias: str = ""
    residual: str = ""
    preactivation: bool = False
    batch: int = 1
    order: str = "NN"
    d_transposed: bool = False
    lhs_scale: str = ""
    rhs_scale: str = ""

    def __str__(self) -> str:
        fields = dataclasses.asdict(self)
        default = dataclasses.asdict(Case())
        return ",".join(f"{name}={value}" for name, value in fields.items() if value != default[name]) or "nothing"


CASES = [
    Case("none", alpha=1.5),
    Case("none", alpha=0.0, bias="n"),
    Case("relu", alpha=-0.5, beta=0.75, c="bmn", preactivation=True),
    Case("gelu_tanh", alpha=0.125, bias="n", preactivation=True, order="NT"),
    Case("gelu_erf", alpha=-0.125, bias="m", residual="bmn", order="TN"),
    Case("silu", alpha=0.125, bias="mn", batch=3, preactivation=True),
    Case("gelu_erf", bias="n", preactivation=True),
    Case("relu", batch=2, preactivation=True, order="NT"),
    Case("relu", bias="bn", residual="n", batch=2, order="TT"),
    Case("gelu_tanh", alpha=0.25, beta=1.0, c="bmn", bias="n", residual="bmn", preactivation=True, d_transposed=True),
    Case("silu", alpha=0.25, beta=-2.0, c="bnm", bias="bm", residual="bnm", batch=2, preactivation=True, order="TT"),
    Case("gelu_erf", alpha=0.5, beta=0.5, c="mn", bias="b", batch=2, d_transposed=True),
]
# What integers know.
INTEGER_CASES = [
    Case("relu"),
    Case("none", beta=1.0, c="bmn", bias="n", preactivation=True),
    Case("relu", beta=1.0, c="bnm", bias="bm", residual="bmn", batch=2, preactivation=True, order="TT"),
    Case("relu", bias="n", residual="m", preactivation=True, d_transposed=True),
]
# Rows and columns of the product multiplied by scales, beside all else.
SCALED_CASES = [
    Case("none", lhs_scale="m", rhs_scale="n"),
    Case("none", alpha=-0.5, lhs_scale="1", rhs_scale="n", bias="n", preactivation=True, order="NT"),
    Case("relu", beta=0.75, c="bmn", lhs_scale="bm", rhs_scale="1", batch=2, preactivation=True, residual="bmn"),
    Case("silu", alpha=0.125, rhs_scale="nb", batch=3, bias="bm", preactivation=True, order="TT"),
    Case("gelu_tanh", lhs_scale="m", bias="n", d_transposed=True),
    Case("gelu_erf", lhs_scale="b", rhs_scale="bn", batch=2, order="TN"),
]
INTEGER_SCALED_CASES = [
    Case("relu", lhs_scale="m", rhs_scale="n"),
    Case("none", beta=1.0, c="bmn", lhs_scale="bm", rhs_scale="nb", batch=2, preactivation=True),
    Case("relu", bias="n", lhs_scale="1", rhs_scale="1", residual="m", preactivation=True, d_transposed=True),
    Case("none", rhs_scale="n", bias="mn", order="TT"),
]


def strides_of(modes: str, sizes: dict[str, int]) -> tuple[int, int, int]:
    """Of a dense matrix with these modes: (batch, m, n), 0 where it has none."""
    strides, stride = dict.fromkeys("bmn", 0), 1
    for mode in reversed(modes):
        strides[mode] = stride
        stride *= sizes[mode]
    return strides["b"], strides["m"], strides["n"]


class Epilogue:
    """A case with data for a call: the arguments of `emulate`, and the answer."""

    def __init__(self, case: Case, problem: Problem, d: np.ndarray, values: str) -> None:
        self.case = case
        self.sizes = {"b": problem.batch, "m": problem.m, "n": problem.n}
        rng = np.random.default_rng(problem.m + 1000 * problem.n)
        self.options: dict = {"alpha": case.alpha, "beta": case.beta, "activation": case.activation}
        self.matrices = {}
        for name in ("lhs_scale", "rhs_scale"):
            modes = getattr(case, name)
            self.matrices[name] = np.ones((1, 1, 1), np.longdouble)
            if modes:
                count = math.prod(self.sizes[mode] for mode in modes.strip("1"))
                # Powers of two keep integers exact; no two neighbours are the same.
                scales = 2.0 ** rng.integers(-1, 3, count) * rng.choice((-1, 1), count)
                data = scales if values == "integers" else rng.uniform(0.25, 2.0, count)
                self.add(name, modes.strip("1"), data.astype(np.float32))
        for name, modes in (("c", case.c), ("bias", case.bias), ("residual", case.residual)):
            if not modes:
                self.matrices[name] = np.zeros((1, 1, 1), np.longdouble)
                continue
            count = math.prod(self.sizes[mode] for mode in modes)
            data = rng.integers(-3, 4, count) if values == "integers" else rng.standard_normal(count)
            self.add(name, modes, data.astype(d.dtype))
        if case.preactivation:
            self.options["preactivation"] = np.empty_like(d)

    def add(self, name: str, modes: str, data: np.ndarray) -> None:
        self.options[name] = data
        self.options[f"{name}_strides"] = strides_of(modes, self.sizes)
        shaped = data.reshape([self.sizes[mode] for mode in modes])
        order = [mode for mode in "bmn" if mode in modes]
        shaped = shaped.transpose([modes.index(mode) for mode in order])
        shape = [self.sizes[mode] if mode in modes else 1 for mode in "bmn"]
        self.matrices[name] = shaped.reshape(shape).astype(np.longdouble)

    @property
    def scale(self) -> np.ndarray:
        """Of each of the product's elements, or of all."""
        return self.matrices["lhs_scale"] * self.matrices["rhs_scale"]

    def reference(self, sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The pre-activation and d, in long double."""
        with np.errstate(invalid="ignore"):
            z = self.case.alpha * self.scale * sums.astype(np.longdouble) + self.matrices["bias"]
            if self.case.beta != 0:
                z = z + self.case.beta * self.matrices["c"]
            return z, activate(self.case.activation, z) + self.matrices["residual"]

    def bounds(
        self, z: np.ndarray, d: np.ndarray, sums: np.ndarray, sums_bound: np.ndarray, compute: str, out: str
    ) -> tuple[np.ndarray, np.ndarray]:
        """|error| allowed in the pre-activation z and in d: no activation's slope is over 1.13."""
        unit = UNIT[compute]
        scale = abs(self.case.alpha * self.scale)
        parts = scale * abs(sums.astype(np.longdouble)) + abs(self.case.beta * self.matrices["c"])
        of_z = scale * sums_bound + 6 * unit * (parts + abs(self.matrices["bias"]))
        of_d = 1.13 * of_z + 16 * unit * abs(z) + 2 * unit * abs(self.matrices["residual"])
        smallest = 2.0**-24 if out == "f16" else 2.0**-126  # where f16 and f32 are subnormal
        return (
            of_z + UNIT[out] * (abs(z) + of_z) + smallest,
            of_d + UNIT[out] * (abs(d) + of_d) + smallest,
        )

    def preactivation(self, call) -> np.ndarray:
        """As (batch, m, n)."""
        return dataclasses.replace(call, d=self.options["preactivation"]).result()


def make(config, case: Case, out_dtype: str, sizes: tuple[int, int, int], values: str, pad: int = 1):
    """The call and its epilogue; the operands are in the case's order where the row takes that."""
    problem = Problem(*sizes, order_for(config, case.order), batch=case.batch, pad=pad, d_transposed=case.d_transposed)
    call = make_call(config, problem, out_dtype, values=values)
    return call, Epilogue(case, problem, call.d, values)


def float_outputs(config) -> list[str]:
    return [dtype for dtype in config.out_dtypes if dtype != "s32"]


def run(config, call, epilogue, **options) -> None:
    report = emulate(config, call, **epilogue.options, **options)
    assert report["ok"], f"{config.name} {epilogue.case}: {report['message']}"


def assert_within(config, call, epilogue, out_dtype: str, of_sums: np.ndarray) -> None:
    """Results are within the bound of long double's. of_sums: the bound of the product's sums."""
    sums = product(call.values_a, call.values_b)
    z, d = epilogue.reference(sums)
    compute = "f64" if config.accumulator == "f64" else "f32"
    z_bound, d_bound = epilogue.bounds(z, d, sums, of_sums, compute, out_dtype)
    assert (abs(call.result().astype(np.longdouble) - d) <= d_bound).all(), epilogue.case
    if epilogue.case.preactivation:
        assert (abs(epilogue.preactivation(call).astype(np.longdouble) - z) <= z_bound).all(), epilogue.case


def assert_exact(call, epilogue) -> None:
    """Results are the answers rounded once."""
    z, d = epilogue.reference(product(call.values_a, call.values_b))
    np.testing.assert_array_equal(call.result(), d.astype(call.d.dtype), err_msg=f"{epilogue.case} {call.sizes}")
    if epilogue.case.preactivation:
        np.testing.assert_array_equal(epilogue.preactivation(call), z.astype(call.d.dtype))


@every_config
@pytest.mark.parametrize("case", CASES, ids=str)
def test_componentwise_bound(config, case):
    """Normal data against long double, on whole tiles and their edges, in one output dtype after the other."""
    tile_m, tile_n, tile_k = config.tile
    out_dtypes = float_outputs(config)
    out_dtype = out_dtypes[CASES.index(case) % len(out_dtypes)]
    call, epilogue = make(config, case, out_dtype, (tile_m + 3, tile_n + 5, tile_k + 3), "normal")
    run(config, call, epilogue)
    assert_within(config, call, epilogue, out_dtype, accumulation_bound(config, call.values_a, call.values_b))


# Every matrix in words of several elements: a thread finishes several rows together. One case for each activation.
IN_WORDS = [
    Case("relu", alpha=-0.5, beta=0.75, c="bmn", preactivation=True, residual="mn", batch=2),
    Case("gelu_tanh", alpha=0.25, beta=1.0, c="bmn", bias="n", residual="bmn", preactivation=True),
    Case("gelu_erf", alpha=-0.125, bias="bn", residual="n", batch=2),
    Case("silu", alpha=0.125, bias="mn", order="NT"),
]


@every_config
@pytest.mark.parametrize("case", IN_WORDS, ids=str)
def test_rows_of_whole_words(config, case):
    """As test_componentwise_bound: n and all pitches are multiples of 8, and the last rows of a tile are not there."""
    tile_m, tile_n, tile_k = config.tile
    out_dtypes = float_outputs(config)
    out_dtype = out_dtypes[IN_WORDS.index(case) % len(out_dtypes)]
    call, epilogue = make(config, case, out_dtype, (tile_m + 5, tile_n + 8, tile_k), "normal", pad=8)
    run(config, call, epilogue)
    assert_within(config, call, epilogue, out_dtype, accumulation_bound(config, call.values_a, call.values_b))


@every_config
@pytest.mark.parametrize("case", INTEGER_CASES, ids=str)
def test_exact_integers(config, case):
    """Every output dtype, every kind of edge: what comes out is the answer rounded once."""
    tile_m, tile_n, _ = config.tile
    for index, out_dtype in enumerate(config.out_dtypes):
        m, n, k = [(tile_m + 1, 7, 20), (1, tile_n + 1, 9), (tile_m - 1, 2 * tile_n - 1, 5), (3, 16, 1)][index % 4]
        call, epilogue = make(config, case, out_dtype, (m, n, k), "integers", pad=1 if n % 8 else 8)
        run(config, call, epilogue)
        assert_exact(call, epilogue)


scaled_configs = pytest.mark.parametrize(
    "config", [config for config in CONFIGS if config.scales], ids=lambda config: config.name
)


@scaled_configs
@pytest.mark.parametrize("case", SCALED_CASES, ids=str)
@pytest.mark.parametrize("pad", [1, 8])
def test_scales(config, case, pad):
    """As test_componentwise_bound, of n and pitches that are words of several elements and of such that are not."""
    tile_m, tile_n, tile_k = config.tile
    index = SCALED_CASES.index(case)
    out_dtypes = float_outputs(config)
    out_dtype = out_dtypes[(index + pad // 8) % len(out_dtypes)]
    call, epilogue = make(config, case, out_dtype, (tile_m + 3, tile_n + (5 if pad == 1 else 8), tile_k), "normal", pad)
    run(config, call, epilogue)
    assert_within(config, call, epilogue, out_dtype, accumulation_bound(config, call.values_a, call.values_b))


@scaled_configs
@pytest.mark.parametrize("case", INTEGER_SCALED_CASES, ids=str)
def test_exact_scales(config, case):
    """As test_exact_integers: rows and columns have scales of their own, exact ones."""
    tile_m, tile_n, _ = config.tile
    for index, out_dtype in enumerate(float_outputs(config)):
        m, n, k = [(tile_m + 1, 7, 20), (1, tile_n + 1, 9), (tile_m - 1, 2 * tile_n - 8, 5)][index % 3]
        call, epilogue = make(config, case, out_dtype, (m, n, k), "integers", pad=1 if n % 8 else 8)
        run(config, call, epilogue)
        assert_exact(call, epilogue)


@scaled_configs
@pytest.mark.parametrize("flush", ["end", "start"])
def test_no_scale_outside_is_read(config, flush):
    """Both arrays of scales end (or start) at an inaccessible page; so do 16-bit results, which TMA stores."""
    case = Case("relu", lhs_scale="bm", rhs_scale="bn", batch=2, preactivation=True)
    for out_dtype in float_outputs(config):
        for sizes, pad in (((1, 1, 1), 1), ((9, 17, 8), 1), ((3, 8, 4), 8), ((config.tile[0] + 9, 24, 8), 8)):
            call, epilogue = make(config, case, out_dtype, sizes, "integers", pad)
            run(config, call, epilogue, flush=flush)
            _, d = epilogue.reference(product(call.values_a, call.values_b))
            np.testing.assert_array_equal(call.result(), d.astype(call.d.dtype))


@every_config
def test_refused_scales(config):
    """What no kernel is asked for: an error says so, and nothing is written."""
    case = Case(lhs_scale="m", rhs_scale="n")
    call, epilogue = make(config, case, float_outputs(config)[0], (8, 16, 4), "integers")
    f32 = np.ones(16, np.float32)
    refused = {
        "lhs_scale has a stride along n: it is of rows": {"lhs_scale": f32, "lhs_scale_strides": (0, 0, 1)},
        "rhs_scale has a stride along m: it is of columns": {"rhs_scale": f32, "rhs_scale_strides": (0, 1, 0)},
        "three strides of rhs_scale are needed, not (1)": {"rhs_scale": f32, "rhs_scale_strides": (1,)},
        "lhs_scale has strides (0, -1, 0), which are negative": {"lhs_scale": f32, "lhs_scale_strides": (0, -1, 0)},
        "lhs_scale is f64, not f32": {"lhs_scale": np.ones(16), "lhs_scale_strides": (0, 1, 0)},
        "rhs_scale has 15 elements": {"rhs_scale": f32[:15], "rhs_scale_strides": (0, 0, 1)},
        "a call with a second b has no scales": {"lhs_scale": f32, "second_b": call.b},
        "a product times a derivative has no scales": {
            "lhs_scale": f32,
            "activation": "d_relu",
            "beta": 1.0,
            "c": np.zeros_like(call.d),
            "c_strides": call.d_strides,
        },
    }
    if not config.scales:
        report = emulate(config, call, **epilogue.options)
        assert report["message"].endswith("the kernel takes no scales")
        return
    for reason, options in refused.items():
        report = emulate(config, call, **options)
        assert reason in report["message"]
    if "s32" in config.out_dtypes:
        call, epilogue = make(config, case, "s32", (8, 16, 4), "integers")
        assert emulate(config, call, **epilogue.options)["message"].endswith("a result of integers has no scales")


@every_config
@pytest.mark.parametrize("flush", ["end", "start"])
def test_nothing_outside_is_read(config, flush):
    """One element, then a few: every operand ends (or starts) at an inaccessible page."""
    case = Case("relu", beta=1.0, c="bmn", bias="n", residual="bmn", preactivation=True)
    for sizes in ((1, 1, 1), (2, 3, 4), (9, 17, 8)):
        call, epilogue = make(config, case, config.out_dtypes[0], sizes, "integers")
        run(config, call, epilogue, flush=flush)
        _, d = epilogue.reference(product(call.values_a, call.values_b))
        np.testing.assert_array_equal(call.result(), d.astype(call.d.dtype))


@every_config
def test_beta_0_does_not_read_c(config):
    """C full of NaN leaves no trace; with any other beta it does."""
    out_dtype = float_outputs(config)[0]
    case = Case("relu", c="bmn", bias="n")
    call, epilogue = make(config, case, out_dtype, (33, 21, 17), "integers")
    epilogue.options["c"][...] = np.nan
    run(config, call, epilogue)
    _, d = epilogue.reference(product(call.values_a, call.values_b))
    np.testing.assert_array_equal(call.result(), d.astype(call.d.dtype))
    epilogue.options["beta"] = 0.5
    run(config, call, epilogue)
    assert np.isnan(call.result().astype(np.float64)).all()


@every_config
def test_no_products(config):
    """With K = 0 the epilogue is all there is: z = beta c + bias."""
    for out_dtype in float_outputs(config):
        case = Case("relu", alpha=3.0, beta=2.0, c="bmn", bias="n", residual="bmn", preactivation=True)
        call, epilogue = make(config, case, out_dtype, (19, 35, 0), "integers")
        run(config, call, epilogue)
        z, d = epilogue.reference(np.zeros((1, 19, 35)))
        np.testing.assert_array_equal(epilogue.preactivation(call), z.astype(call.d.dtype))
        np.testing.assert_array_equal(call.result(), d.astype(call.d.dtype))


@every_config
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_nan_and_infinity(config, activation):
    """They come out of each activation as IEEE arithmetic says, and zeros and large numbers are finite."""
    special = [np.nan, np.inf, -np.inf, 0.0, -0.0, 30000.0, -30000.0, 1.0]
    for out_dtype in float_outputs(config):
        case = Case(activation, beta=1.0, c="bmn", preactivation=True)
        call, epilogue = make(config, case, out_dtype, (4, 16, 1), "integers")
        call.a[...] = 0
        epilogue.add("c", "bmn", np.tile(np.array(special, NUMPY_DTYPES[out_dtype]), 8))
        run(config, call, epilogue)
        z, d = epilogue.reference(np.zeros((1, 4, 16)))
        np.testing.assert_array_equal(epilogue.preactivation(call).astype(np.longdouble), z)
        found = call.result().astype(np.longdouble)
        np.testing.assert_array_equal(np.isnan(found), np.isnan(d))
        rest = ~np.isnan(d)
        np.testing.assert_array_equal(np.isinf(found[rest]), np.isinf(d[rest]))
        finite = np.isfinite(d)
        assert (abs(found[finite] - d[finite]) <= 2 * UNIT[out_dtype] * abs(d[finite]) + 2.0**-24).all()


@every_config
@pytest.mark.parametrize("d_transposed", [False, True])
def test_in_place(config, d_transposed):
    """c may be d, and residual may be: each element is read before it is written."""
    tile_m, tile_n, _ = config.tile
    problem = Problem(tile_m + 3, tile_n + 5, 12, order_for(config), d_transposed=d_transposed)
    for name in ("c", "residual"):
        call = make_call(config, problem, config.out_dtypes[0])
        before = np.random.default_rng(0).integers(-3, 4, call.d.shape).astype(call.d.dtype)
        call.d[...] = before
        expected = product(call.values_a, call.values_b) + call.result().astype(np.longdouble)
        beta = 1.0 if name == "c" else 0.0
        report = emulate(config, call, beta=beta, **{name: call.d, f"{name}_strides": call.d_strides})
        assert report["ok"], report["message"]
        np.testing.assert_array_equal(call.result(), expected.astype(call.d.dtype))


@every_config
@pytest.mark.parametrize("mode", ["eager", "random"])
def test_schedules(config, mode):
    """The answer does not depend on the order of threads and copies: the epilogue's shared memory replaces operands."""
    tile_m, tile_n, tile_k = config.tile
    case = Case("relu", beta=1.0, c="bmn", bias="m", preactivation=True)
    call, epilogue = make(config, case, config.out_dtypes[0], (tile_m + 1, tile_n + 2, 2 * tile_k + 1), "integers")
    run(config, call, epilogue, mode=mode, order="random", seed=11)
    _, d = epilogue.reference(product(call.values_a, call.values_b))
    np.testing.assert_array_equal(call.result(), d.astype(call.d.dtype))
