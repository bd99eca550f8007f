"""Calls of kernels that multiply twice, or write two results: their arrays, how they are run, what comes out."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest

from jax_moye import _moye_cpu
from tests.emulated.problems import NUMPY_DTYPES
from tests.emulated.test_batches import Case, lay

ONE = Case({}, "rc", "rc", "rc")

every_schedule = pytest.mark.parametrize(
    "options",
    [
        {"mode": "eager"},
        {"mode": "lazy", "order": "lifo"},
        *({"mode": "random", "order": "random", "seed": seed} for seed in (1, 2, 3)),
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)


def out_dtypes(config) -> list[str]:
    """Of 16 bits: a kernel has no others of two results."""
    return [name for name in config.out_dtypes if NUMPY_DTYPES[name].itemsize == 2]


@dataclasses.dataclass
class Call:
    """The arguments of `emulate`, and what d is made of.

    Attributes:
      sizes: batch modes..., m, n, k.
      flat: arrays as they are in memory.
      strides: of each, along batch modes, rows and columns.
      values: of operands: a (batch modes..., m, k), each b (batch modes..., k, n), all others (batch modes..., m, n).
      integers: these are integers.
    """

    sizes: tuple[int, ...]
    flat: dict[str, np.ndarray]
    strides: dict[str, tuple[int, ...]]
    values: dict[str, np.ndarray]
    integers: bool

    def emulate(self, config, **options) -> dict:
        """In guarded memory, with the race checker on."""
        operands = (self.flat[name] for name in ("a", "b", "d"))
        strides = (self.strides[name] for name in ("a", "b", "d"))
        return _moye_cpu.emulate(config.name, *operands, self.sizes, *strides, **options)

    def result(self, name: str = "d") -> np.ndarray:
        """As (batch modes..., m, n)."""
        flat = self.flat[name]
        strides = [stride * flat.itemsize for stride in self.strides["d"]]
        return np.lib.stride_tricks.as_strided(flat, self.sizes[:-1], strides)


def make_call(
    config,
    sizes: tuple[int, int, int],
    order: str,
    case: Case,
    out_dtype: str,
    integers: bool,
    right: Sequence[str] = ("b",),
    others: Sequence[str] = (),
    results: Sequence[str] = (),
) -> Call:
    """A call; rows of a and b are padded with NaN where they may be, and results are full of 7.

    Args:
      config: that is to run.
      sizes: m, n, k.
      order: of a and b, e.g. "NT".
      case: of batch modes.
      out_dtype: of the results, and of all operands but a and b; "": the first one of 16 bits.
      integers: from -2 to 2; else normal numbers.
      right: the right-hand operands.
      others: operands that lie as d does.
      results: beside d.
    """
    m, n, k = sizes
    modes, batch = "".join(case.sizes), tuple(case.sizes.values())
    rng = np.random.default_rng([m, n, k, *batch])
    dtype, out = NUMPY_DTYPES[config.dtype], NUMPY_DTYPES[out_dtype or out_dtypes(config)[0]]
    multiple = config.alignment // dtype.itemsize

    def draw(rows: int, columns: int, axes: str) -> np.ndarray:
        shape = [size if name in axes else 1 for name, size in case.sizes.items()] + [rows, columns]
        drawn = rng.integers(-2, 3, shape) if integers else rng.standard_normal(shape)
        return np.broadcast_to(drawn, (*batch, rows, columns))

    def operand(values: np.ndarray, axes: str, transposed: bool):
        if transposed:  # the other of rows and k is contiguous
            axes = axes.translate(str.maketrans("rc", "cr"))
        if k == 0:  # strides as if there were one
            return np.zeros(0, dtype), lay(np.zeros((*batch, values.shape[-2], 1), dtype), axes, modes, multiple)[1]
        return lay(values, axes, modes, multiple)

    values = {"a": draw(m, k, case.a).astype(dtype)} | {name: draw(n, k, case.b).astype(dtype) for name in right}
    laid = {"a": operand(values["a"], case.a, order[0] == "T")}
    laid |= {name: operand(values[name], case.b, order[1] == "N") for name in right}
    values |= {name: draw(m, n, modes).astype(out) for name in others}
    laid |= {name: lay(values[name], case.d, modes) for name in others}
    laid |= {name: lay(np.full((*batch, m, n), 7, out), case.d, modes) for name in ("d", *results)}
    flat, strides = ({name: one[i] for name, one in laid.items()} for i in range(2))
    if not batch:  # the kernel has one mode at least
        batch, strides = (1,), {name: (0, *of) for name, of in strides.items()}
        values = {name: one[None] for name, one in values.items()}
    values |= {name: values[name].swapaxes(-1, -2) for name in right}
    return Call((*batch, m, n, k), flat, strides, values, integers)
