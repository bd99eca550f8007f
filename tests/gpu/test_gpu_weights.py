"""sm90_weights on a GPU: 10^4 generated products within their bound. On the CPU a few of them, emulated."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from this_gpu import why_not_here

from jax_moye._kernels.configs import weights_configs
from tests.emulated.weights_cases import KINDS, check, operands, program, shape_of

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

DTYPES = ("bf16xs8", "bf16xs4", "bf16xe4m3", "f16xs8", "f16xs4", "f16xe4m3")
PROGRAMS, CASES = 40, 14  # of each dtype; of each kind in a program


def configs_of(dtype: str) -> list:
    """Those of a dtype that this GPU runs."""
    found = [config for config in weights_configs() if config.dtype == dtype and why_not_here(config) is None]
    if not found:
        pytest.skip(f"no config of {dtype} here")
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_generated_products(dtype):
    """Sizes around those of tiles and stages, groups, parts, with and without zeros; every config in turn."""
    configs = configs_of(dtype)
    rng = np.random.default_rng(DTYPES.index(dtype))
    done = 0
    for number in range(PROGRAMS):
        done += check(configs[number % len(configs)], rng, shape_of(rng, dtype), KINDS, CASES, emulated=False)
    assert done >= 1_680  # 10^4 of all dtypes


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_products(dtype):
    """More tiles than multiprocessors, each with many stages."""
    rng = np.random.default_rng(3)
    for config in configs_of(dtype):
        drawn = shape_of(rng, dtype)
        for parts in (1, 4):
            shape = dataclasses.replace(drawn, m=130, n=9600, k=4104, group=128, parts=parts)
            check(config, rng, shape, KINDS, 1, emulated=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_result_is_the_same_each_time(dtype):
    """Parts are added in order: no bit differs between launches."""
    rng = np.random.default_rng(4)
    for config in configs_of(dtype):
        shape = dataclasses.replace(shape_of(rng, dtype), m=16, n=4096, k=4096, parts=8)
        a, weights, scales, zeros = operands(rng, "normal", config, shape)
        arrays = [jnp.asarray(a), jnp.asarray(weights).astype(shape.weights), jnp.asarray(scales)]
        arrays += [jnp.asarray(zeros)] if shape.has_zeros else []
        run = program(config, shape, emulated=False)
        first = np.asarray(run(*arrays))
        for _ in range(50):
            np.testing.assert_array_equal(np.asarray(run(*arrays)), first)
