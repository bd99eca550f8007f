"""What a correct result is: each element within a bound of what float64 says. One rule for `bench`, `tune`, `report`.

The bound of an element has three parts.

- Of the sum: a factor times the sum of the magnitudes of its terms. Tensor cores sum 16 products exactly, and cut off
  what comes to them in f32; others sum term by term in the operands' precision. docs/precision.md has the factors of
  f32 in parts of bfloat16 and of 8-bit floats: of these on an sm_90 2^-13 for each of the four instructions between two
  additions in f32, else for each instruction. Integers are exact.
- Of an epilogue's steps, in f32; somebody else may round to the result's dtype on the way.
- Of one rounding to the result's dtype.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._kernels.dtypes import DTYPES, FLOAT8, WAYS_OF_F32, numpy_dtype
from jax_moye._timing.programs import quick_options
from jax_moye._timing.workloads import Finish, Workload

SLOPE = 1.13  # no activation's is over it
_ROUNDED_TO_TF32 = 2.1 * 2.0**-11  # of a product whose operands are
_CUT_TO_TF32 = 2.0**-9  # a baseline may cut them off
_TOGETHER = 256  # products of parts of f32 operands that tensor cores sum, before what they sum is added in f32
_TWO_PARTS = 3.1 * 2.0**-16  # what two parts leave out of a product of f32
_8_BIT_SUM = 2.0**-13  # what the tensor core drops of a sum of 8-bit floats
_THREE_TF32 = 2.0**-19  # what three products in TF32 leave out of one in f32
_STEPS = 16  # roundings of an epilogue, about


def unit(dtype: Any) -> float:
    """The relative error of one rounding to a dtype; 0 of integers."""
    return float(jnp.finfo(dtype).eps) / 2 if jnp.issubdtype(dtype, jnp.floating) else 0.0


class Tolerance(NamedTuple):
    """What rounding may do to a right result.

    Attributes:
      sums: error of a sum over the sum of its terms' magnitudes.
      steps: error of an epilogue over the magnitudes of its parts.
    """

    sums: float
    steps: float = 0.0


def _tensor_core(k: int, terms: int = 16) -> float:
    """Of sums in f32: `terms` products exactly, what comes to them cut off."""
    return (math.ceil(k / terms) + 2) * 2 * unit("float32")


def of_config(config: GemmConfig, k: int, split: bool = False) -> Tolerance:
    """The tolerance of one of our kernels.

    Args:
      config: that computes the product.
      k: its terms.
      split: whether it is one of three launches that make up f32 of TF32.
    """
    steps = _STEPS * unit("float32")
    if config.accumulator == "s32":
        return Tolerance(0.0, steps)
    if config.accumulator == "f16":
        return Tolerance(2 * k * unit("float16"), steps)
    if config.dtype == "tf32":
        sums = _tensor_core(k, 8)
        return Tolerance(3 * sums + _THREE_TF32 if split else sums + _ROUNDED_TO_TF32, steps)
    if parts := DTYPES[config.dtype].parts:
        sums = 2 * min(_TOGETHER // 16, math.ceil(k / 16)) + math.ceil(k / _TOGETHER) + 6
        return Tolerance(sums * unit("float32") + (_TWO_PARTS if parts == 2 else 0.0), steps)
    if config.dtype in FLOAT8:
        promoted = facts_of(config.kernel).promotes_float8 and config.accumulator == "f32"
        return Tolerance(_tensor_core(k) + (4 if promoted else math.ceil(k / 32)) * _8_BIT_SUM, steps)
    if config.dtype in ("f32", "f64"):
        # Twice k: the float64 reference of a float64 product errs too.
        return Tolerance(2 * k * unit(numpy_dtype(config.dtype)), steps)
    return Tolerance(_tensor_core(k), steps)


def of_baseline(dtype: str, k: int, result_dtype: Any, *, is_highest: bool, sums: str = "f32") -> Tolerance:
    """The tolerance of somebody else's product.

    Args:
      dtype: of the operands, as the table of configs names it.
      k: the product's terms.
      result_dtype: to which it may round on its way through an epilogue.
      is_highest: whether the operands may not be rounded to TF32.
      sums: what the caller asked to have the products summed in.
    """
    steps = _STEPS * unit(result_dtype)
    if dtype == "s8":
        return Tolerance(0.0, steps)
    if sums == "f16":
        return Tolerance(2 * k * unit("float16"), steps)
    if dtype in FLOAT8:
        return Tolerance(_tensor_core(k) + math.ceil(k / 32) * _8_BIT_SUM, steps)
    if dtype in ("f32", "f64", *WAYS_OF_F32):
        rounded = dtype != "f64" and not is_highest
        return Tolerance(2 * k * unit(numpy_dtype(dtype)) + (_CUT_TO_TF32 if rounded else 0.0), steps)
    return Tolerance(_tensor_core(k), steps)


class Reference(NamedTuple):
    """A product in float64.

    Attributes:
      exact: the result; of integers as their dtype has it.
      magnitude: of each element the sum of the magnitudes of its terms.
      parts: of each element the sum of the magnitudes of what the epilogue adds up; None without one.
      rows: those of the result that the others are of; None: all.
    """

    exact: Any
    magnitude: Any
    parts: Any = None
    rows: np.ndarray | None = None

    def excess(self, result: Any, tolerance: Tolerance) -> float:
        """The largest |error| of a result over its bound: above 1 it is wrong. NaN counts as wrong: infinity."""
        if self.rows is not None:
            result = result[..., self.rows, :]
        return float(_excess(result, self.exact, self.magnitude, self.parts, tolerance))


@jax.jit
def _excess(result: Any, exact: Any, magnitude: Any, parts: Any, tolerance: Tolerance) -> Any:
    bound = tolerance.sums * magnitude
    if parts is not None:
        bound = SLOPE * bound + 2 * tolerance.steps * parts
    error = jnp.abs(result.astype(jnp.float64) - exact)
    if jnp.issubdtype(result.dtype, jnp.floating):
        bound = bound + unit(result.dtype) * jnp.abs(exact) + float(jnp.finfo(result.dtype).tiny)
        # Where float64's result overflows the dtype, what it becomes there has no error: infinity, of some dtypes NaN.
        stored = exact.astype(result.dtype)
        is_same = (result == stored) | (jnp.isnan(result) & jnp.isnan(stored))
        error = jnp.where(~jnp.isfinite(stored) & is_same, 0.0, error)
    # Exact integers have no room for an error.
    ratio = jnp.where(error == 0, 0.0, error / bound)
    return jnp.max(jnp.where(jnp.isnan(ratio), jnp.inf, ratio), initial=0.0)


def of_workload(workload: Workload, operands: Sequence[Any]) -> Reference:
    """Whole rows of a workload's result, one in each band of rows, and the last one.

    Args:
      workload: that is computed.
      operands: one set of them, as stored.
    """
    m = workload.m
    band = max(16, math.ceil(m / 256))
    rng = np.random.default_rng(m)
    starts = range(0, m, band)
    rows = np.array([rng.integers(start, min(start + band, m)) for start in starts] + [m - 1])
    finish = workload.finish

    def product(a, b):
        a, b = a.astype(jnp.float64), b.astype(jnp.float64)
        multiply = functools.partial(jnp.matmul, precision="highest")
        return multiply(a, b), multiply(jnp.abs(a), jnp.abs(b))

    @functools.partial(jax.jit, compiler_options=quick_options())
    def reference(a, b, *more):
        a, b = workload.as_stored(lambda a, b: (a[..., rows, :], b))(a, b)
        if a.ndim == 3:  # one product of the batch at a time: float64 operands are large
            sums, magnitude = jax.lax.map(lambda pair: product(*pair), (a, b))
        else:
            sums, magnitude = product(a, b)
        exact, parts = _finished(finish, sums, [x[rows] if x.ndim == 2 else x for x in more])
        return exact, magnitude, parts

    exact, magnitude, parts = reference(*operands)
    return Reference(exact, magnitude, parts, rows)


def _finished(finish: Finish, sums: Any, more: list[Any]) -> tuple[Any, Any]:
    """(the result, the sum of the magnitudes of what is added up), in float64."""
    if not any(finish):
        return sums, None
    rest = [x.astype(jnp.float64) for x in more]
    parts, z = jnp.abs(sums), sums
    if finish.bias:
        parts, z = parts + jnp.abs(rest[0]), z + rest.pop(0)
    functions: dict[str | None, Callable[[Any], Any]] = {
        None: lambda z: z,
        "relu": lambda z: jnp.maximum(z, 0),
        # jax.nn's constants are in the dtype of z
        "gelu": lambda z: 0.5 * z * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
        "gelu_exact": lambda z: 0.5 * z * (1 + jax.scipy.special.erf(z / math.sqrt(2))),
        "silu": lambda z: z / (1 + jnp.exp(-z)),
    }
    exact = functions[finish.activation](z)
    if finish.residual:
        parts, exact = parts + jnp.abs(rest[0]), exact + rest.pop(0)
    return exact, parts


def same_bits(x: Any, y: Any) -> bool:
    """Whether two device arrays hold the same bits; compared on the device."""
    word = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[x.dtype.itemsize]
    return bool(jnp.array_equal(x.view(word), y.view(word)))
