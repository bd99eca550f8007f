"""Generated products with weights for sm90_weights, through its custom call, held against float64."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import DTYPES

KINDS = ("normal", "positive", "whole")
UNITS = {"float32": 2.0**-24, "bfloat16": 2.0**-8, "float16": 2.0**-11}  # of a number, what rounding to it may change
MOST_PARTS = 8
# What rounding to a subnormal number adds.
LEAST = {"float32": 2.0**-149, "bfloat16": 2.0**-133, "float16": 2.0**-24}


@dataclasses.dataclass(frozen=True)
class Shape:
    """What a program is compiled for."""

    m: int
    n: int
    k: int
    group: int  # rows of weights that share a row of scales
    parts: int
    weights: str  # their dtype
    scales: str
    out: str
    has_zeros: bool

    @property
    def groups(self) -> int:
        return max(1, -(-self.k // self.group))


def shape_of(rng: np.random.Generator, dtype: str, most_k: int = 1500) -> Shape:
    """A shape that a config of this dtype takes."""
    of = DTYPES[dtype]
    weights = str(rng.choice(of.weights))
    step = 32 if "int4" in weights else 16
    k = 8 * int(rng.choice([1, 7, 8, 9, 15, 16, 17, 24, 33, 64, int(rng.integers(1, most_k // 8 + 1))]))
    return Shape(
        m=int(rng.choice([1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65])),
        n=step * int(rng.integers(1, 24 * 16 // step)),
        k=k,
        group=int(rng.choice([64, 128, 192, max(64, -(-k // 64) * 64)])),
        parts=int(rng.choice([1, 1, *range(1, MOST_PARTS + 1)])),
        weights=weights,
        scales=str(rng.choice(["float32", "bfloat16", "float16"])),
        out=str(rng.choice(["float32", of.jax_name])),
        has_zeros=bool(rng.random() < 0.5) and weights != "float8_e4m3fn",
    )


def numpy_type(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name, name))


def program(config: Any, shape: Shape, *, emulated: bool):
    """The custom call, compiled: (a, b, scales[, zeros]) -> d."""
    ffi.register("cpu" if emulated else "cuda")
    attributes: dict[str, Any] = dict(
        config=config.name,
        group=np.int64(shape.group),
        parts=np.int64(shape.parts),
        sizes=np.array([shape.m, shape.n, shape.k], np.int64),
    )
    if emulated:
        attributes |= dict(detect_races=True, mode="random", seed=np.int64(shape.k))
    call = jax.ffi.ffi_call(ffi.WEIGHTS_TARGET, jax.ShapeDtypeStruct((shape.m, shape.n), jnp.dtype(shape.out)))
    return jax.jit(lambda *operands: call(*operands, **attributes))


def draw_weights(rng: np.random.Generator, dtype: str, size: tuple[int, int]) -> np.ndarray:
    """All values of a dtype, but NaN."""
    if dtype == "float8_e4m3fn":
        bits = rng.integers(0, 0x7F, size).astype(np.uint8) | rng.choice(np.array([0, 0x80], np.uint8), size)
        return bits.view(ml_dtypes.float8_e4m3fn)
    least, end = {"int8": (-128, 128), "int4": (-8, 8), "uint4": (0, 16)}[dtype]
    return rng.integers(least, end, size).astype(np.int8)


def operands(rng: np.random.Generator, kind: str, config: Any, shape: Shape) -> tuple[np.ndarray, ...]:
    """a, weights, scales and zeros, which are 0 where the call has none; weights of 4 bits as int8."""
    a = rng.standard_normal((shape.m, shape.k))
    weights = draw_weights(rng, shape.weights, (shape.k, shape.n))
    scales = np.exp2(rng.uniform(-12, -6, (shape.groups, shape.n)))  # f16's results are below its largest number
    zeros = np.zeros((shape.groups, shape.n), np.int8)
    if shape.has_zeros:
        zeros = draw_weights(rng, shape.weights, zeros.shape)
    if kind == "positive":  # what tensor cores cut off has one sign
        a = abs(a)
    if kind == "whole":  # all sums are exact
        a, scales = np.sign(a), np.exp2(rng.integers(-8, -5, scales.shape))
    if kind == "whole" and shape.weights == "float8_e4m3fn":
        weights = rng.integers(-15, 16, weights.shape).astype(weights.dtype)
    return a.astype(numpy_type(DTYPES[config.dtype].jax_name)), weights, scales.astype(numpy_type(shape.scales)), zeros


def reference(shape: Shape, a, weights, scales, zeros) -> tuple[np.ndarray, np.ndarray]:
    """The product in float64, and what it may be off in f32, before it is rounded to d's dtype."""
    total, magnitude, allowed = (np.zeros((shape.m, shape.n)) for _ in range(3))
    a, weights, scales = (x.astype(np.float64) for x in (a, weights, scales))
    for group in range(shape.groups):
        rows = slice(group * shape.group, (group + 1) * shape.group)
        wide = weights[rows] - zeros[group].astype(np.float64)
        of_group = scales[group] * (abs(a[:, rows]) @ abs(wide))
        total += scales[group] * (a[:, rows] @ wide)
        magnitude += of_group
        # Each mma.sync cuts off, of 16 products and the sum so far.
        allowed += (-(-wide.shape[0] // 16) + 2) * 2.0**-23 * of_group
    return total, allowed + (shape.groups + 2 * shape.parts + 2) * 2.0**-24 * magnitude


def check(config: Any, rng: np.random.Generator, shape: Shape, kinds, cases: int, *, emulated: bool) -> int:
    """Runs so many cases of each kind; the number of them all."""
    run = program(config, shape, emulated=emulated)
    for kind in kinds:
        for case in range(cases):
            a, weights, scales, zeros = operands(rng, kind, config, shape)
            b = jnp.asarray(weights).astype(shape.weights)
            found = run(jnp.asarray(a), b, jnp.asarray(scales), *([jnp.asarray(zeros)] if shape.has_zeros else []))
            found = np.asarray(found)
            assert found.dtype == numpy_type(shape.out)
            exact, allowed = reference(shape, a, weights, scales, zeros)
            message = f"{config.name} {kind} {case} {shape}"
            if kind == "whole":
                np.testing.assert_array_equal(found, exact.astype(np.float32).astype(found.dtype), err_msg=message)
                continue
            allowed = allowed + UNITS[shape.out] * (abs(exact) + allowed) + LEAST[shape.out]
            error = abs(found.astype(np.float64) - exact)
            where = np.unravel_index(np.argmax(error - allowed), error.shape)
            assert (error <= allowed).all(), f"{message} {where}: {error[where]} of {allowed[where]}"
    return len(kinds) * cases
