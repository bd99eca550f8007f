"""Kernels that begin before the one ahead of them on the stream has ended (programmatic dependent launch).

Short products in a chain, each on what the kernel ahead has just written: one that did not wait would read what was
there before. XLA's own kernels, which wait or do not, stand between them. Without `griddepcontrol_wait` in the kernels
these tests fail; docs/performance.md says on which GPU that was seen.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._kernels.configs import facts_of
from tests.emulated.problems import NUMPY_DTYPES
from tests.gpu.test_gpu_matmul import moye

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

# Of operands and results of one dtype, so that a result is the next one's operand.
CONFIGS = [
    config
    for config in jax_moye.configs()
    if config.kernel.startswith("sm90_")
    and {"bf16": "bf16", "f16": "f16", "tf32": "f32"}.get(config.dtype) in config.out_dtypes
]
STREAM = {"xla_gpu_enable_command_buffer": ""}  # nothing in a CUDA graph
LINKS, CALLS = 12, 20


@pytest.mark.parametrize("between", ["products", "xla", "copies"])
@pytest.mark.parametrize("options", [STREAM, {}], ids=["stream", "graph"])
@pytest.mark.parametrize("config", CONFIGS, indirect=True, ids=lambda config: config.name)
def test_a_product_reads_what_the_kernel_ahead_has_written(config, options, between):
    dtype = NUMPY_DTYPES[config.dtype]
    m, k = 520, 1024 - (config.alignment < 16)  # an odd pitch: XLA pads the lines, or a kernel packs them
    if facts_of(config.kernel).splits_k_by_sizes:  # several parts: a second kernel waits for the first
        m, k = 200, 2560
    rng = np.random.default_rng(0)
    permutations = [rng.permutation(k) for _ in range(LINKS)]
    matrices = [jnp.asarray(np.eye(k, dtype=dtype)[:, permutation]) for permutation in permutations]
    product, is_row_major = moye(config=config.name), "NN" in config.orders
    if not is_row_major:
        matrices = [p.T for p in matrices]

    def chain(x, matrices):
        for p in matrices:
            x = product(x, p if is_row_major else p.T)  # x[:, permutation]
            if between == "xla":
                x = jnp.where(x > 200, x - 200, x + 3)
            elif between == "copies":
                x = jnp.flip(x, 0)
        return x

    run = jax.jit(chain, compiler_options=options)
    given = [rng.integers(0, 100, (m, k)).astype(dtype) for _ in range(CALLS)]
    results = [run(jnp.asarray(x), matrices) for x in given]  # all dispatched before the first is looked at
    for x, found in zip(given, results, strict=True):
        for permutation in permutations:
            x = x[:, permutation]
            if between == "xla":
                x = np.where(x > 200, x - 200, x + 3).astype(dtype)
            elif between == "copies":
                x = x[::-1]
        np.testing.assert_array_equal(np.asarray(found, np.float64), x.astype(np.float64))
