"""Generated products of f32 for sm90_parts, many small ones in a batch, held against float64."""

from __future__ import annotations

import functools

import jax
import numpy as np

import jax_moye
from tests.emulated.problems import accumulation_bound

LARGEST, SMALLEST, LEAST = float(np.finfo(np.float32).max), 2.0**-149, 2.0**-125
KINDS = ("normal", "positive", "wide", "cancelling", "subnormal", "whole", "rising")


def floats(rng, shape, least: int = -149, most: int = 127) -> np.ndarray:
    """All bits at random, exponents between two."""
    values = np.ldexp(rng.uniform(1, 2, shape), rng.integers(least, most + 1, shape))
    return np.clip(values * rng.choice([-1, 1], shape), -LARGEST, LARGEST).astype(np.float32)


def operands(rng, kind: str, cases: int, m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """a (cases,M,K) and b (cases,K,N) whose sums of magnitudes are below 2^127."""
    shapes = (cases, m, k), (cases, k, n)
    if kind == "wide":
        return floats(rng, shapes[0], -60, 50), floats(rng, shapes[1], -60, 50)
    if kind == "subnormal":  # as one of the two: their products are subnormal numbers, or far larger
        a, b = floats(rng, shapes[0], -149, -120), floats(rng, shapes[1], -30, 100)
        return a, b
    if kind == "whole":  # sums of up to 1000 products are exact
        a, b = (rng.integers(-100, 101, shape).astype(np.float32) for shape in shapes)
        return a, b
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    if kind == "positive":  # what tensor cores cut off has one sign
        return abs(a), abs(b)
    if kind == "rising":  # each product some times as large as the one before, or as small
        steps = np.ldexp(1.0, np.sort(rng.integers(-40, 41, k))[:: rng.choice([-1, 1])])
        return (a * steps).astype(np.float32), b
    if kind == "cancelling":
        half = k // 2
        a[:, :, k - half :] = -a[:, :, :half]
        b[:, k - half :] = b[:, :half] * (1 + np.float32(2.0**-20))
    return a, b


def bound(config, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """|error| allowed: docs/precision.md has the proof. Numbers below 2^-125 count as that."""
    a, b = (np.where(x == 0, 0, np.maximum(abs(x.astype(np.float64)), LEAST)) for x in (a, b))
    return accumulation_bound(config, a, b) + (a.shape[-1] + 8) * SMALLEST


def check(config, rng, kinds, cases: int, m: int, n: int, k: int, order: str, *, interpret: bool) -> int:
    """Multiplies so many matrices of each kind in one launch; the number of them all."""
    made = [operands(rng, kind, cases, m, n, k) for kind in kinds]
    a, b = (np.concatenate(arrays) for arrays in zip(*made, strict=True))

    @jax.jit
    def product(a, b):
        a, b = (x.mT if letter == "T" else x for x, letter in zip((a, b), order, strict=True))
        return jax_moye.matmul(a, b, config=config.name, interpret=interpret)

    def stored(x: np.ndarray, letter: str) -> np.ndarray:
        return np.ascontiguousarray(x.swapaxes(-1, -2)) if letter == "T" else x

    found = np.asarray(product(stored(a, order[0]), stored(b, order[1]))).astype(np.float64)
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    exact = wide_a @ wide_b
    allowed = bound(config, a, b) + k * 2.0**-53 * (abs(wide_a) @ abs(wide_b))  # float64 errs, too
    for i, kind in enumerate(kinds):
        of_kind = slice(i * cases, (i + 1) * cases)
        error = abs(found[of_kind] - exact[of_kind])
        where = np.unravel_index(np.argmax(error - allowed[of_kind]), error.shape)
        message = f"{config.name} {kind} {m}x{n}x{k}:{order} {where}: {error[where]} of {allowed[of_kind][where]}"
        assert (error <= allowed[of_kind]).all(), message
        if kind == "whole":
            np.testing.assert_array_equal(found[of_kind], exact[of_kind], err_msg=message)
    return len(a)


@functools.cache
def dropped(k: int, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """A one, and then products of nearly 2^-shift, all of one sign: what a tensor core may cut off each time."""
    a, b = np.zeros((8, k), np.float32), np.zeros((k, 8), np.float32)
    a[:, 0], b[0] = 1, 1
    a[:, 1:], b[1:] = 1 - 2.0**-8, np.ldexp(1 - 2.0**-8, -shift)
    return a, b
