"""GEMM problems for the emulated kernels: operands in every order, padded, guarded, with exact answers."""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from jax_moye._kernels.dtypes import DTYPES, FLOAT8, numpy_dtype, numpy_dtypes

NUMPY_DTYPES = {name: numpy_dtype(name) for name in DTYPES}
# Relative error of one rounding to nearest; integers do not round.
# f32_fast: as the emulator adds, and a GPU does not.
UNIT = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-24, "f64": 2.0**-53, "s32": 0.0, "f32_fast": 2.0**-24}
ORDERS = ("NN", "NT", "TN", "TT")


def order_for(config, order: str = "NN") -> str:
    """`order`, or the first one that the row takes."""
    return order if order in config.orders else config.orders[0]


def skip_other_orders(config, order: str) -> None:
    """Skips a test in an order that the row does not take."""
    if order not in config.orders:
        pytest.skip(f"{config.name} takes {', '.join(config.orders)}")


@dataclasses.dataclass(frozen=True)
class Problem:
    """d[b,m,n] = sum_k a[b,m,k] * b[b,k,n]; `order` as JAX writes it, N = row-major."""

    m: int
    n: int
    k: int
    order: str = "NN"
    batch: int = 1
    pad: int = 0  # extra elements between the rows of a and b, rounded up to the config's alignment
    d_transposed: bool = False

    def __str__(self) -> str:
        return f"{self.batch}x{self.m}x{self.n}x{self.k}:{self.order}"


def _operand(
    values: np.ndarray, transposed: bool, pad: int, multiple: int, least: int
) -> tuple[np.ndarray, tuple[int, int, int]]:
    """Lays out values (batch, rows, columns) in memory; returns the flat array and the strides of its three modes.

    Rows (columns if transposed) are padded to a multiple of `multiple` elements, those of one to `least`, and the
    padding holds NaN, or 85.
    """
    batch = values.shape[0]
    stored = values.swapaxes(1, 2) if transposed else values
    outer, inner = stored.shape[1:]
    pitch = -(-(inner + pad) // multiple) * multiple
    if pitch == 1:
        pitch = least
    memory = np.full((batch, outer, pitch), 85 if values.dtype.kind == "i" else np.nan, values.dtype)
    memory[:, :, :inner] = stored
    # The array ends with its last element, so that a read behind it meets the guard page.
    flat = (
        memory.reshape(-1)[: max(0, batch * outer * pitch - (pitch - inner))].copy()
        if values.size
        else memory[:0].reshape(-1)
    )
    strides = (outer * pitch, 1, pitch) if transposed else (outer * pitch, pitch, 1)
    return flat, strides


@dataclasses.dataclass
class Call:
    """The arguments of `_moye_cpu.emulate` for a problem, and how to read d back."""

    a: np.ndarray
    b: np.ndarray
    d: np.ndarray
    sizes: tuple[int, int, int, int]
    a_strides: tuple[int, int, int]
    b_strides: tuple[int, int, int]
    d_strides: tuple[int, int, int]
    values_a: np.ndarray
    values_b: np.ndarray

    def result(self) -> np.ndarray:
        """d as (batch, m, n)."""
        batch, m, n, _ = self.sizes
        itemsize = self.d.dtype.itemsize
        strides = tuple(s * itemsize for s in self.d_strides)
        return np.lib.stride_tricks.as_strided(self.d, (batch, m, n), strides)


def make_call(config, problem: Problem, out_dtype: str, values: str = "integers", seed: int = 0) -> Call:
    """Operands for one run of `config`.

    values: "integers", in [-2, 2] and so exact in every dtype, or "normal", standard normal (of int8: all its values or
    few enough that sums of a thousand products are finite in f16).
    """
    p = problem
    rng = np.random.default_rng([seed, p.m, p.n, p.k, p.batch])
    dtypes = numpy_dtypes(config.dtype)
    shapes = (p.batch, p.m, p.k), (p.batch, p.k, p.n)
    if values == "integers":
        a, b = (rng.integers(-2, 3, shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    elif config.dtype == "s8":
        largest = 8 if out_dtype == "f16" else 128
        a, b = (rng.integers(-largest, largest, shape, np.int8) for shape in shapes)
    else:
        a, b = (rng.standard_normal(shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    multiple = max(1, config.alignment // dtypes[0].itemsize)
    least = 2 if len(config.orders) < len(ORDERS) else 1  # rows of one element, without padding, are of either order
    flat_a, a_strides = _operand(a, p.order[0] == "T", p.pad, multiple, least)
    flat_b, (b_batch, b_k, b_n) = _operand(b, p.order[1] == "T", p.pad, multiple, least)
    d = np.empty(p.batch * p.m * p.n, NUMPY_DTYPES[out_dtype])
    d_strides = (p.m * p.n, 1, p.m) if p.d_transposed else (p.m * p.n, p.n, 1)
    return Call(flat_a, flat_b, d, (p.batch, p.m, p.n, p.k), a_strides, (b_batch, b_n, b_k), d_strides, a, b)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a @ b: of integers in int64, else in long double.

    Of operands of 32 bits or fewer it is computed in float64, which BLAS computes and no slow loop. Their
    products are exact in it. A sum of k of them is off by less than k 2^-53 of its magnitudes, for 512 a millionth of
    the least bound here; sums of integers are exact up to 2^53.
    """
    wide = np.int64 if a.dtype.kind == "i" else np.longdouble
    if a.dtype.kind == "i":
        fits = a.shape[-1] * 2.0 ** (8 * (a.dtype.itemsize + b.dtype.itemsize) - 2) < 2.0**53
    else:
        fits = max(a.dtype.itemsize, b.dtype.itemsize) <= 4
    narrow = np.float64 if fits else wide
    return np.matmul(a.astype(narrow), b.astype(narrow)).astype(wide)


def accumulation_bound(config, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|error| allowed in each sum of products before it is converted: NumPy arrays a (...,M,K) and b (...,K,N).

    Tensor cores multiply exactly, add a block of products and the accumulator, and truncate; an FMA rounds each time.
    tf32: either operand is rounded, by at most 2^-11 of it. Parts of bf16: sums of 256 products leave
    the tensor core for f32; of two parts each operand loses 2^-16 of it, and the product of both second ones as much.
    """
    k = a.shape[-1]
    magnitude = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    if config.accumulator == "s32":
        return np.zeros_like(magnitude)
    unit = UNIT[config.accumulator]
    if DTYPES[config.dtype].parts:
        relative = (2 * min(16, -(-k // 16)) + -(-k // 256) + 6) * unit
        return (relative + (3.1 * 2.0**-16 if config.dtype == "bf16x3" else 0)) * magnitude
    if config.kernel.startswith("simt") or config.dtype in ("f32", "f64"):
        relative = (k + 2) * unit
    else:
        # The elements of k of one instruction. Where it sums in f16, all may round.
        block = 4 if config.kernel.startswith("sm70") else 8 if config.dtype == "tf32" else 16
        relative = (-(-k // block) + 2) * 2 * unit
    if config.dtype == "tf32":
        relative += 2.1 * 2.0**-11
    return relative * magnitude


def gpu_accumulation_bound(config, a: np.ndarray, b: np.ndarray, arch: int) -> np.ndarray:
    """`accumulation_bound` on a GPU of architecture `arch`, whose tensor cores may add 8-bit floats less exactly.

    They keep some 13 bits behind the point of the largest of an instruction's 32 products and the sum so far, and
    truncate the rest. Each of n instructions in a row is allowed 2^-13 of the sum of magnitudes. That is for random
    data, where truncations have both signs: test_problems.py adds normal numbers so. (Of all data it is not true: 32
    products just below the last bit of the largest are lost.)
    """
    bound = accumulation_bound(config, a, b)
    if config.dtype not in FLOAT8:
        return bound
    if config.kernel.startswith("sm90") and config.accumulator == "f32":
        instructions = 4  # wgmma; sums of 128 products are added in f32
    elif arch == 90 and not config.kernel.startswith("sm90"):
        return bound  # mma.sync: no instruction of this architecture; it is made of f16's, which hold 8-bit floats
    else:
        instructions = -(-a.shape[-1] // 32)
    magnitude = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
    return bound + instructions * 2.0**-13 * magnitude


def componentwise_bound(config, a: np.ndarray, b: np.ndarray, exact: np.ndarray, out_dtype: str) -> np.ndarray:
    """|error| allowed for each element of d = a b: of the sums, and of their conversion.

    Half-precision sums are converted exactly; int32 ones become f32 first.
    """
    accumulated = accumulation_bound(config, a, b)
    unit = UNIT[out_dtype] + (UNIT["f32"] if config.dtype == "s8" and out_dtype != "s32" else 0)
    return accumulated + unit * (np.abs(exact).astype(np.float64) + accumulated)


def size_classes(config) -> tuple[list[int], list[int], list[int]]:
    """M, N and K around what the row treats differently: vectors, instructions, tiles, stages."""
    tile_m, tile_n, tile_k = config.tile

    def sizes(tile: int) -> list[int]:
        fixed = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129]
        return sorted({*fixed, tile - 1, tile, tile + 1, 2 * tile + 3})

    ks = sorted(
        {0, 1, 2, 7, 8, 15, 16, 17, 31, tile_k - 1, tile_k, tile_k + 1}
        | {config.stages * tile_k, (config.stages + 1) * tile_k - 1}
    )
    return sizes(tile_m), sizes(tile_n), ks


def covering_problems(config, order: str, turn: int = 0) -> list[Problem]:
    """A part of the problems that hold every pair of sizes: every (M, N), every (M, K), every (N, K).

    Each order has another part, a quarter of four; an odd `turn` deals them out so that the two orders of an operand
    get those that the other two get in an even one. Batches and pitches in turn.
    """
    ms, ns, ks = size_classes(config)
    step = next(step for step in (3, 7, 11) if math.gcd(step, len(ks)) == 1)
    orders = [other for other in ORDERS if other in config.orders]
    part = orders.index(order) if turn % 2 == 0 else len(orders) - 1 - orders.index(order)
    problems = []
    for (i, m), (j, n) in itertools.product(enumerate(ms), enumerate(ns)):
        if (i + j) // 2 % len(orders) == part:
            # With i or j fixed, i + step * j and the rest of the counters run through all their values.
            k = ks[(i + step * j) % len(ks)]
            problems.append(Problem(m, n, k, order, batch=1 + (i + j) % 3 // 2, pad=(i * j) % 5))
    return problems


def sampled_problems(config, order: str) -> list[Problem]:
    """Every size of M, N and K once or more in this order; the orders pair them differently."""
    ms, ns, ks = size_classes(config)
    turn = ORDERS.index(order)
    problems = []
    for i in range(max(len(ms), len(ns), len(ks))):
        m, n, k = ms[i % len(ms)], ns[(i + 1 + 5 * turn) % len(ns)], ks[(i + 3 + 4 * turn) % len(ks)]
        problems.append(Problem(m, n, k, order, batch=1 + (i + turn) % 3 // 2, pad=(i * 3 + turn) % 5))
    return problems
