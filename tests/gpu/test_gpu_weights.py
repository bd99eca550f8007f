"""Products with weights of 8 and 4 bits, generated: within a bound of float64, on a GPU or, fewer of them, emulated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._kernels.configs import weights_configs

pytestmark = pytest.mark.gpu
ON_GPU = jax.default_backend() == "gpu"
CASES = 600 if ON_GPU else 6  # of each config
WEIGHTS = {"s8": ("int8",), "s4": ("int4", "uint4"), "e4m3": ("float8_e4m3fn",)}
RANGES = {"int8": (-128, 128), "int4": (-8, 8), "uint4": (0, 16)}


def draw(rng, config):
    """Operands of a case: rows in and beyond a tile, groups of several lengths, scales of any sign."""
    x_dtype, _, kind = config.dtype.partition("x")
    dtype = str(rng.choice(WEIGHTS[kind]))
    columns = 32 if kind == "s4" else 16
    group = 64 * int(rng.integers(1, 4))
    groups = int(rng.choice([1, 1, 2, 3, 5]))
    k = 8 * int(rng.integers(1, 60)) if groups == 1 else group * groups
    m, n = int(rng.integers(1, 2 * config.tile[0])), columns * int(rng.integers(1, 10))
    x = jnp.asarray(rng.normal(size=(m, k)), {"bf16": jnp.bfloat16, "f16": jnp.float16}[x_dtype])
    if dtype in RANGES:
        w = jnp.asarray(rng.integers(*RANGES[dtype], (k, n)), jnp.int16).astype(dtype)
        zeros = jnp.asarray(rng.integers(*RANGES[dtype], (groups, n)), jnp.int8) if rng.random() < 0.5 else None
    else:
        w, zeros = jnp.asarray(rng.normal(size=(k, n)), jnp.float32).astype(dtype), None
    scales = jnp.asarray(rng.normal(size=(groups, n)), rng.choice(["float32", "bfloat16"]))
    return x, w, scales, zeros


@pytest.mark.parametrize("config", weights_configs(), ids=lambda config: config.name)
def test_generated_products(config):
    rng = np.random.default_rng(len(config.name) + config.tile[0])
    options = {"config": config, "preferred_element_type": jnp.float32, "interpret": None if ON_GPU else True}
    for case in range(CASES):
        x, w, scales, zeros = draw(rng, config)
        d = np.asarray(jax_moye.quantized_matmul(x, w, scales, zeros, **options), np.float64)
        of_group = w.shape[0] // scales.shape[0]
        weights = np.asarray(w.astype(jnp.float32), np.float64)
        if zeros is not None:
            weights -= np.repeat(np.asarray(zeros, np.float64), of_group, axis=0)
        weights *= np.repeat(np.asarray(scales, np.float64), of_group, axis=0)
        left = np.asarray(x, np.float64)
        bound = (w.shape[0] + 8) * 2.0**-24 * (abs(left) @ abs(weights))
        assert (abs(d - left @ weights) <= bound).all(), (case, x.shape, w.shape, w.dtype, scales.shape)
