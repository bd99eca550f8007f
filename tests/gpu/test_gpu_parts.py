"""sm90_parts on a GPU: 10^5 generated products within their bound. On the CPU test_parts.py has a few, emulated."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from this_gpu import why_not_here

import jax_moye
from tests.emulated.parts_cases import KINDS, check, dropped

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

ORDERS = ("NN", "NT", "TN", "TT")
DTYPES = ("bf16x3", "bf16x6", "bf16x9")
PROGRAMS, CASES = 24, 204  # of each dtype; of each kind in a program


def configs_of(dtype: str) -> list:
    """Those of a dtype that this GPU runs."""
    configs = [c for c in jax_moye.configs() if (c.kernel, c.dtype) == ("sm90_parts", dtype)]
    found = [config for config in configs if why_not_here(config) is None]
    if not found:
        pytest.skip(f"no config of {dtype} here")
    return found


@pytest.mark.parametrize("dtype", DTYPES)
def test_generated_products(dtype):
    """Sizes around those of tiles, vectors and of what stays in the tensor core; each order; every config in turn."""
    configs = configs_of(dtype)
    rng = np.random.default_rng(DTYPES.index(dtype))
    done = 0
    for program in range(PROGRAMS):
        m, n = (int(rng.choice([1, 2, 3, 7, 8, 16, 17, 31, 33])) for _ in "mn")
        k = int(rng.choice([1, 2, 5, 15, 16, 17, 33, 63, 64, 65, 127, 255, 256, 257, 300, 513, 700, 1000]))
        config = configs[program % len(configs)]
        done += check(config, rng, KINDS, CASES, m, n, k, ORDERS[program % 4], interpret=False)
    assert done >= 34_000  # 10^5 of all dtypes


@pytest.mark.parametrize("dtype", DTYPES)
def test_large_products(dtype):
    """More tiles than multiprocessors, and k of several thousands."""
    rng = np.random.default_rng(3)
    for config in configs_of(dtype):
        for kind in ("positive", "wide", "cancelling"):
            check(config, rng, [kind], 1, 1030, 1500, 3000, "NN", interpret=False)


@pytest.mark.parametrize("dtype", ["bf16x6", "bf16x9"])
@pytest.mark.parametrize("k", [16, 33, 256, 257, 1024])
def test_what_tensor_cores_cut_off(dtype, k):
    """The worst that there is for sums that are cut off: a one, and many products that are just below its last bits."""
    for config in configs_of(dtype):
        for shift in range(20, 30):
            a, b = dropped(k, shift)
            found = jax.jit(lambda a, b, config=config: jax_moye.matmul(a, b, config=config.name))(a, b)
            magnitude = abs(a).astype(float) @ abs(b)
            assert (abs(np.asarray(found) - magnitude) <= (k + 8) * 2.0**-24 * magnitude).all(), (config.name, shift)
