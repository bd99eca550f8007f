"""What tests of quantized_matmul share: operands, NumPy's product, bounds, and rows of the table that no build has."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from python.support import TARGET, UNIT, custom_calls, lowered_text

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable, GemmConfig

RANGES = {"int8": (-128, 127), "int4": (-8, 7), "uint4": (0, 15), "float8_e4m3fn": (-16, 16)}
INTEGERS = ("int8", "int4", "uint4")
SHORT = {"int8": "s8", "int4": "s4", "uint4": "s4", "float8_e4m3fn": "e4m3"}


def fake_row(x="bf16", w="s4", m=16) -> GemmConfig:
    """A row of sm90_weights as the table has them."""
    n = 256 if w == "s4" else 128
    return GemmConfig(
        name=f"sm90_weights_{x}x{w}_{m}x{n}x128_s4_a16",
        kernel="sm90_weights",
        dtype=f"{x}x{w}",
        accumulator="f32",
        out_dtypes=(x, "f32"),
        tile=(m, n, 128),
        stages=4,
        cluster=(1, 1),
        alignment=16,
        orders=("NN",),
        any_stride=False,
        threads=384,
        smem_bytes=100_000,
        min_arch=90,
        max_arch=90,
        weights=True,
    )


FAKE = ConfigTable(fake_row(x, w, m) for x in ("bf16", "f16") for w in ("s8", "s4", "e4m3") for m in (16, 32, 64))


def use_fake_rows(monkeypatch) -> None:
    """The table's rows, whether this build has them or not; for a GPU, too."""
    by_name = {row.name: row for row in FAKE}

    def find_config(config):
        return by_name.get(getattr(config, "name", config)) or found(config)

    from jax_moye._api import arguments
    from jax_moye._selection import weights

    found = arguments.find_config
    monkeypatch.setattr(weights, "weights_configs", lambda: FAKE)
    monkeypatch.setattr(weights, "find_config", find_config)
    monkeypatch.setattr(arguments, "find_config", find_config)
    monkeypatch.setattr(ffi, "built", lambda platform: None)


def operands(rng, w="int8", x="bfloat16", shape=(3, 128, 64), groups=1, zeros=False, scales="float32"):
    """(x, w, scales) or (x, w, scales, zeros) of random numbers; the scales have two dimensions."""
    *rows, k, n = shape
    lowest, highest = RANGES[w]
    found = [
        jnp.asarray(rng.standard_normal((*rows, k)), x),
        jnp.asarray(rng.integers(lowest, highest + 1, (k, n)), w),
        jnp.asarray((rng.random((groups, n)) + 0.5) / highest, scales),
    ]
    if zeros:
        found.append(jnp.asarray(rng.integers(lowest // 2, highest // 2 + 1, (groups, n)), jnp.int8))
    return found


def f64(x) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def weights_of(w, scales, zeros=None) -> np.ndarray:
    """(K, N) in float64, of scales of one or two dimensions."""
    w = f64(w)

    def of_rows(x):
        x = np.atleast_2d(f64(x))
        return np.repeat(x, w.shape[0] // len(x), 0)

    return (w - (0 if zeros is None else of_rows(zeros))) * of_rows(scales)


def product(x, w, scales, zeros=None) -> np.ndarray:
    """In float64."""
    return f64(x) @ weights_of(w, scales, zeros)


def assert_close(found, x, w, scales, zeros=None, is_rounded=None) -> None:
    """Within the bound that the docstring states; the sums' own bound comes to it.

    Args:
      found: the result.
      x: likewise, the following.
      w: the weights.
      scales: of one or two dimensions.
      zeros: or None.
      is_rounded: whether weights may have been rounded to x's dtype; None: where there are several groups.
    """
    k = w.shape[0]
    magnitude = abs(f64(x)) @ abs(weights_of(w, scales, zeros))
    # What is cancelled in w - zeros is not: each sum is of products less than x * (|w| + |zeros|).
    unit = (k + 4) * UNIT["float32"]
    if is_rounded if is_rounded is not None else np.ndim(scales) == 2 and np.shape(scales)[0] > 1:
        unit += UNIT[str(x.dtype)]
    bound = unit * magnitude + UNIT[str(found.dtype)] * abs(product(x, w, scales, zeros)) * 1.01
    error = abs(f64(found) - product(x, w, scales, zeros))
    assert (error <= bound).all(), f"largest error over its bound: {np.nanmax(error - bound)}"


def calls_of(text: str):
    """Our custom calls for products with weights."""
    return custom_calls(text.replace(ffi.WEIGHTS_TARGET, TARGET))


def weights_calls(fun, *args, platform="cpu"):
    """The same of a function that is lowered."""
    return calls_of(lowered_text(fun, *args, platform=platform))
