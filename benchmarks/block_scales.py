"""Times products of 8-bit floats whose blocks of 128 along k have scales on this GPU: our configs, and XLA's way.

    python benchmarks/block_scales.py [--rows REGEX] [--dtype bfloat16]

Shapes are of projections and experts of models in this format, rows from decoding to training. What is timed is what
lowering times, each product in a cache of its own: programs of several products whose operands are more than the L2
cache holds, ours and those of operands that XLA multiplies by their scales. "columns" have a scale of each row of w,
"blocks" one for 128 x 128 weights. Tests compare results with float64.
"""

from __future__ import annotations

import argparse
import os
import re
import tempfile

import jax
import jax.numpy as jnp

import jax_moye
from jax_moye._selection import measurements

# n, k
WEIGHTS = ((2112, 7168), (24576, 1536), (7168, 16384), (4096, 7168), (7168, 2048), (4096, 4096))
ROWS = (16, 128, 1024, 4096)


def timed(m: int, n: int, k: int, rows_of_scales: int, out_dtype: str) -> measurements.Entry:
    """What lowering finds of one product."""
    types = [
        jax.ShapeDtypeStruct((1, rows, columns), dtype)
        for rows, columns, dtype in (
            (m, k, jnp.float8_e4m3fn),
            (n, k, jnp.float8_e4m3fn),
            (m, k // 128, jnp.float32),
            (rows_of_scales, k // 128, jnp.float32),
        )
    ]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["JAX_MOYE_CACHE_DIR"] = folder
        measurements.forget()
        jax.jit(lambda *args: jax_moye.scaled_matmul(*args, preferred_element_type=out_dtype)).lower(*types)
        path = measurements.cache_file(jax.local_devices()[0].device_kind)
        assert path is not None, "no driver"
        entries = measurements.read(path).entries.values()
    return next(one for one in entries if one.variant.startswith(("columns", "blocks")))  # XLA's way may have one, too


def main() -> None:
    """Prints a line for each product."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="those whose name a regular expression finds, e.g. ^4096x")
    parser.add_argument("--dtype", default="bfloat16", help="of the result")
    arguments = parser.parse_args()
    print(f"{jax.local_devices()[0].device_kind}, results in {arguments.dtype}")
    print(f"{'m x n x k':>20}  {'scales':8} {'ours, us':>9} {'TFLOP/s':>8} {'XLA, us':>9} {'ratio':>6}  config")
    for n, k in WEIGHTS:
        for m in ROWS:
            name = f"{m}x{n}x{k}"
            if not re.search(arguments.rows, name):
                continue
            for what, rows in (("columns", n), ("blocks", -(-n // 128))):
                entry = timed(m, n, k, rows, arguments.dtype)
                ours, (xla,) = entry.us[entry.config], entry.xla_us.values()
                speed = 2e-6 * m * n * k / ours
                print(f"{name:>20}  {what:8} {ours:9.1f} {speed:8.0f} {xla:9.1f} {xla / ours:6.2f}  {entry.config}")


if __name__ == "__main__":
    main()
