"""Operands that rotate: how many sets, who takes which, and what is in them."""

from __future__ import annotations

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.workloads import WORKLOAD, as_numpy, five_sets

from jax_moye._timing import operands
from jax_moye._timing.operands import Rotation, expected_us, random_sets, rotation

pytestmark = pytest.mark.usefixtures("x64")
CPU = jax.devices("cpu")[0]


def gpu(memory: int):
    return types.SimpleNamespace(platform="gpu", memory_stats=lambda: {"bytes_limit": memory})


def square(size: int):
    return dataclasses.replace(WORKLOAD, m=size, n=size, k=size)


def rotating(workload, least_bytes, device=CPU, **options):
    us = expected_us(workload.flops, workload.footprint)
    return rotation(us, workload.footprint, least_bytes, device, **options)


def test_rotation():
    small = square(256)
    assert small.footprint == 3 * 256 * 256 * 2
    sets, group, repeats = rotating(small, 160_000_000, largest_loop=0)
    assert group == operands.LARGEST_GROUP
    assert sets % group == repeats == 0
    assert sets * small.footprint >= 160_000_000
    sets, group, repeats = rotating(small, 160_000_000)
    assert group == sets
    assert sets * small.footprint >= 160_000_000
    assert repeats >= 2
    large = square(4096)
    assert rotating(large, 160_000_000) == Rotation(3, 3, 0)


def test_the_memory_limits_the_sets():
    large = square(8192)
    assert rotating(large, 1e12, gpu(12 * large.footprint)).sets == 3
    assert rotating(large, 1e12, gpu(large.footprint)).sets == 1


def test_a_loop_takes_some_milliseconds_and_whole_programs():
    small = square(256)
    sets, group, repeats = rotating(small, 100 * small.footprint, gpu(1 << 37))
    assert sets == group == 128
    assert repeats * sets * max(2, expected_us(small.flops, small.footprint)) >= operands.LOOP_US
    assert rotating(small, 1e12, gpu(1 << 40), largest_loop=256).sets == 256


def test_programs():
    sets = five_sets(group=2)
    assert len(sets) == 5
    assert [len(a) for a, _ in sets.programs] == [2, 2, 1]
    assert sets.programs[1][0][0] is sets.arrays[0][2]
    assert sets.first == [of[0] for of in sets.arrays]
    assert sets.without_loop() is sets
    looped = five_sets(group=5, repeats=3).without_loop()
    assert (looped.group, looped.repeats) == (5, 0)


def test_different_sets():
    a, b = random_sets(WORKLOAD.structs, Rotation(3, 3, 0), WORKLOAD.seed).arrays
    assert len(a) == len(b) == 3
    assert len({np.asarray(x).tobytes() for x in a}) == 3
    assert 0.9 < np.std(as_numpy(a[0])) < 1.1


@pytest.mark.parametrize(
    ("dtype", "low", "high"), [("int8", -127, 127), ("int32", 0, 2), ("float8_e4m3fn", None, None)]
)
def test_values(dtype, low, high):
    x = operands.random_operand(jax.random.key(0), jax.ShapeDtypeStruct((64, 64), dtype))
    assert x.dtype == dtype
    if low is not None:
        assert (int(jnp.min(x)), int(jnp.max(x))) == (low, high)
