"""Batches of two and three modes that do not merge: every kernel, every order, wherever the modes lie in memory."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

import jax_moye
from jax_moye import _moye_cpu
from jax_moye._kernels.dtypes import DTYPES
from tests.emulated.problems import NUMPY_DTYPES, ORDERS, skip_other_orders

CONFIGS = list(jax_moye.configs())


def smallest_configs() -> list:
    """One config of each kernel, dtype and alignment that says how operands are loaded: that with the smallest tile."""
    smallest: dict[tuple, object] = {}
    for config in CONFIGS:
        key = config.kernel, NUMPY_DTYPES[config.dtype].itemsize, config.alignment, math.prod(config.cluster) > 1
        known = smallest.setdefault(key, config)
        if math.prod(config.tile[:2]) < math.prod(known.tile[:2]):
            smallest[key] = config
    return list(smallest.values())


SMALLEST = smallest_configs()
OTHERS = [config for config in CONFIGS if config not in SMALLEST]
every_kernel = pytest.mark.parametrize("config", SMALLEST, ids=lambda config: config.name)


@dataclasses.dataclass(frozen=True)
class Case:
    """Where the modes of each operand lie, the outermost first: batch modes x, y, z, and r (rows), c (columns or k).

    A batch mode that is not named is broadcast. Of a and b the order of r and c is the call's.
    """

    sizes: dict[str, int]
    a: str
    b: str
    d: str

    def __str__(self) -> str:
        return f"{''.join(self.sizes)}-{self.a}-{self.b}-{self.d}"


CASES = [
    Case(dict(x=2, y=3), "xryc", "xryc", "xyrc"),  # attention's scores of bqhd and bkhd
    Case(dict(x=2, y=3), "xyrc", "xryc", "xryc"),  # and their product with v
    Case(dict(x=3, y=2), "yxrc", "xrc", "yrxc"),  # an operand of one mode, in the map's place of another
    Case(dict(x=2, y=3), "yrc", "rc", "yxrc"),  # one that is broadcast along both
    Case(dict(x=2, y=2, z=3), "xryzc", "xryc", "xyzrc"),  # grouped queries
    Case(dict(x=2, y=3, z=2), "zryxc", "yrzxc", "zyrxc"),  # all modes move, in other orders
    Case(dict(x=3, y=2, z=2), "zrxc", "zyrc", "xzryc"),
    Case(dict(x=2, y=1, z=3), "zxrc", "xrzc", "xrzc"),  # a mode of one matrix
]


def lay(values: np.ndarray, axes: str, modes: str, multiple: int = 1) -> tuple[np.ndarray, tuple[int, ...]]:
    """(batch modes..., rows, columns) in memory as `axes` says; the flat array, and the strides of all modes.

    The contiguous mode is padded to a multiple of `multiple` elements with NaN, or 85.
    """
    names = modes + "rc"
    kept = values[tuple(slice(None) if name in axes else 0 for name in names)]
    stored = kept.transpose([[name for name in names if name in axes].index(name) for name in axes])
    inner = stored.shape[-1]
    pitch = -(-inner // multiple) * multiple
    memory = np.full((*stored.shape[:-1], pitch), 85 if values.dtype.kind == "i" else np.nan, values.dtype)
    memory[..., :inner] = stored
    strides = {name: stride // values.itemsize for name, stride in zip(axes, memory.strides, strict=True)}
    flat = memory.reshape(-1)[: memory.size - (pitch - inner)].copy()
    return flat, tuple(strides.get(name, 0) for name in names)


@dataclasses.dataclass
class Call:
    """Arguments of `_moye_cpu.emulate`, and the exact product."""

    sizes: tuple[int, ...]
    a: tuple[np.ndarray, tuple[int, ...]]
    b: tuple[np.ndarray, tuple[int, ...]]
    d: tuple[np.ndarray, tuple[int, ...]]
    product: np.ndarray

    def run(self, config, **options) -> dict:
        (a, of_a), (b, of_b), (d, of_d) = self.a, self.b, self.d
        return _moye_cpu.emulate(config.name, a, b, d, self.sizes, of_a, of_b, of_d, **options)

    def matrix(self, flat: np.ndarray) -> np.ndarray:
        """d, or what lies as d does, as (batch modes..., m, n)."""
        strides = [stride * flat.itemsize for stride in self.d[1]]
        return np.lib.stride_tricks.as_strided(flat, self.sizes[:-1], strides).astype(np.float64)


def make_call(config, case: Case, order: str, out_dtype: str, sizes: tuple[int, int, int] = (18, 24, 40)) -> Call:
    m, n, k = sizes
    modes, batch = "".join(case.sizes), tuple(case.sizes.values())
    rng = np.random.default_rng([m, n, k, *batch])

    def operand(rows: int, axes: str, transposed: bool, dtype: np.dtype):
        kept = [size if name in axes else 1 for name, size in case.sizes.items()]
        values = np.broadcast_to(rng.integers(-2, 3, (*kept, rows, k)), (*batch, rows, k)).astype(dtype)
        if transposed:  # the other of rows and k is contiguous
            axes = axes.translate(str.maketrans("rc", "cr"))
        return values, lay(values, axes, modes, max(1, config.alignment // dtype.itemsize))

    a, laid_a = operand(m, case.a, order[0] == "T", NUMPY_DTYPES[config.dtype])
    b, laid_b = operand(n, case.b, order[1] == "N", NUMPY_DTYPES[DTYPES[config.dtype].of_b or config.dtype])
    d, of_d = lay(np.zeros((*batch, m, n), NUMPY_DTYPES[out_dtype]), case.d, modes)
    exact = np.einsum("...mk,...nk->...mn", a.astype(np.float64), b.astype(np.float64))
    return Call((*batch, m, n, k), laid_a, laid_b, (d, of_d), exact)


def check(config, case: Case, order: str, out_dtype: str, **options) -> None:
    call = make_call(config, case, order, out_dtype)
    report = call.run(config, **options)
    assert report["ok"], f"{case} {order}: {report['message']}"
    expected = call.product.astype(NUMPY_DTYPES[out_dtype]).astype(np.float64)
    np.testing.assert_array_equal(call.matrix(call.d[0]), expected, err_msg=f"{case} {order}")


@every_kernel
@pytest.mark.parametrize("order", ORDERS)
def test_modes(config, order):
    """Exact integers, the race checker on, guarded and poisoned memory; the dtypes of d in turn.

    Half of the cases in NN and TT, the other half in NT and TN: each operand meets all of them in either order.
    """
    skip_other_orders(config, order)
    for index, case in list(enumerate(CASES))[order in ("NT", "TN") :: 2]:
        check(config, case, order, config.out_dtypes[index % len(config.out_dtypes)])


@pytest.mark.parametrize("config", OTHERS, ids=lambda config: config.name)
def test_every_config(config):
    """Two cases in an order each: which modes move decides how TMA is told, and clusters load together."""
    index = OTHERS.index(config)
    for case in (CASES[index % 4], CASES[4 + index % 4]):
        check(config, case, config.orders[index % len(config.orders)], config.out_dtypes[0])


@every_kernel
def test_epilogues(config):
    """All that an epilogue reads, each along other modes of the batch, and the pre-activation, which lies as d does."""
    d = ("xyzrc", "zryxc", "xrzyc")[SMALLEST.index(config) % 3]
    case = Case(dict(x=2, y=2, z=3), "xryzc", "zxrc", d)
    out_dtype = config.out_dtypes[0]
    call = make_call(config, case, config.orders[0], out_dtype)
    dtype, sizes = NUMPY_DTYPES[out_dtype], dict(zip("xyzrc", call.sizes[:-1], strict=True))
    rng = np.random.default_rng(len(d))
    options, values = {}, {}
    for name, axes in (("c", "zyxrc"), ("bias", "ycz"), ("residual", "xczr")):
        kept = [sizes[axis] if axis in axes else 1 for axis in "xyzrc"]
        values[name] = np.broadcast_to(rng.integers(-3, 4, kept), call.sizes[:-1])
        options[name], options[f"{name}_strides"] = lay(values[name].astype(dtype), axes, "xyz")
    preactivation = np.empty_like(call.d[0])
    report = call.run(config, **options, beta=1.0, activation="relu", preactivation=preactivation)
    assert report["ok"], report["message"]
    z = call.product + values["c"] + values["bias"]
    np.testing.assert_array_equal(call.matrix(preactivation), z.astype(dtype).astype(np.float64))
    expected = np.maximum(z, 0) + values["residual"]
    np.testing.assert_array_equal(call.matrix(call.d[0]), expected.astype(dtype).astype(np.float64))


PACKING = [config for config in SMALLEST if config.consumers and config.any_stride]


@pytest.mark.parametrize("config", PACKING, ids=lambda config: config.name)
def test_what_is_packed_is_packed_once(config):
    """A copy has the matrices that there are, not those of modes along which the operand is broadcast."""
    item = NUMPY_DTYPES[config.dtype].itemsize
    m, n, k = 20, 24, 16 // item * 4 + 1  # rows of an odd number of elements
    case = Case(dict(x=2, y=2, z=3), "zxrc", "yrc", "xyzrc")
    call = make_call(config, case, "NT", config.out_dtypes[0], (m, n, k))
    parts = DTYPES[config.dtype].parts
    pitch = parts * -(-k // 64) * 64 * 2 if parts else -(-k * item // 32) * 32  # parts fill whole k-tiles
    strides = call.a[1], call.b[1], call.d[1]
    expected = (2 * 3 * m + 2 * n) * pitch
    assert _moye_cpu.workspace_bytes(config.name, call.sizes, *strides, config.out_dtypes[0]) == expected
    check(config, case, "NT", config.out_dtypes[0], count_transactions=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(sizes=(2, 3, 2, 2, 8, 8, 8)), "four to six sizes"),
        (dict(sizes=(8, 8, 8)), "four to six sizes"),
        (dict(a=(8, 1)), "four strides of each operand are needed, not (8, 1)"),
        (dict(b=(64, 8, 1)), "four strides of each operand are needed"),
        (dict(d=(0, 192, 64, 8, 1)), "four strides of each operand are needed"),
        (dict(a=(192, -64, 8, 1)), "negative"),
        (dict(a=(193, 64, 8, 1)), "a has 384 elements, and its strides reach beyond them"),
        (dict(b=(192, 65, 8, 1)), "b has 384 elements, and its strides reach beyond them"),
        (dict(d=(64, 64, 8, 1)), "d has 384 elements, and its strides reach beyond them|exactly once"),
        (dict(d=(0, 64, 8, 1)), "exactly once"),
        (dict(d=(192, 0, 8, 1)), "exactly once"),
        (dict(a=(191, 64, 8, 1)), "16 bytes do not divide"),
        (dict(b=(188, 60, 8, 1)), "16 bytes do not divide"),
        (dict(sizes=(2**31 - 1, 2, 8, 8, 8)), "2^31 - 1 matrices"),
        (dict(sizes=(2, -1, 8, 8, 8)), "between 0 and 2^31 - 1"),
        (dict(c=(64, 8, 1)), "four strides of c are needed"),
        (dict(c=(192, 65, 8, 1)), "c has 384 elements, and its strides reach beyond them"),
    ],
)
def test_bad_attributes(change, message):
    """All that is checked of one mode is checked of each."""
    config = next(c for c in CONFIGS if c.kernel == "sm80_multistage" and c.dtype == "bf16" and c.alignment == 16)
    memory = [np.zeros(384, NUMPY_DTYPES["bf16"]) for _ in range(4)]
    usual = dict(sizes=(2, 3, 8, 8, 8), a=(192, 64, 8, 1), b=(192, 64, 8, 1), d=(192, 64, 8, 1))
    arguments = usual | change
    options = dict(c=memory[3], c_strides=arguments.pop("c"), beta=1.0) if "c" in change else {}
    report = _moye_cpu.emulate(config.name, *memory[:3], *arguments.values(), **options)
    assert not report["ok"]
    assert any(part in report["message"] for part in message.split("|")), report["message"]


def test_no_matrices():
    """A mode of size 0 is an empty batch, wherever it is."""
    config = CONFIGS[0]
    empty = np.zeros(0, NUMPY_DTYPES[config.dtype])
    d = np.zeros(0, NUMPY_DTYPES[config.out_dtypes[0]])
    for sizes in itertools.product((0, 2), repeat=3):
        if 0 not in sizes:
            continue
        report = _moye_cpu.emulate(
            config.name, empty, empty, d, (*sizes, 8, 8, 8), (0, 0, 0, 8, 1), (0, 0, 0, 8, 1), (0, 0, 0, 8, 1)
        )
        assert report["ok"], report["message"]
