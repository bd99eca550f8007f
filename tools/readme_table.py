#!/usr/bin/env python3
"""Writes README's table of kernels from jax_moye.configs(), between its two markers.

With --check nothing is written, and the exit status is 1 if README.md is not what would be. A build that has not all
rows of cuda/gemm/configs.h, as one with JAX_MOYE_CONFIGS, cannot say: the exit status is 2.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import re
import sys
from collections.abc import Iterable

import jax_moye
from jax_moye import _moye_cpu
from jax_moye._kernels.config_names import rows_of
from jax_moye._kernels.dtypes import DTYPES, JAX_NAMES, WAYS_OF_F32

ROOT = pathlib.Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"


def _cell(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in dict.fromkeys(values))


def _memory(dtype: str) -> str:
    of_b = DTYPES[dtype].of_b
    return JAX_NAMES[dtype] + (
        f" as {dtype.upper()}" if dtype in WAYS_OF_F32 else f" x {JAX_NAMES[of_b]}" if of_b else ""
    )


def table() -> str:
    """The table in Markdown: one line per kernel and operand dtype, rows of the same kernel and dtype together."""
    lines = [
        "| kernel | operands | results | tiles (mxnxk) | alignment, bytes | orders (a, b) | GPUs |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = sorted(jax_moye.configs(), key=lambda row: (row.kernel, row.dtype))
    for (kernel, dtype), group in itertools.groupby(rows, key=lambda row: (row.kernel, row.dtype)):
        configs = list(group)
        cells = (
            f"`{kernel}`",
            _memory(dtype),
            _cell(JAX_NAMES[out] for config in configs for out in config.out_dtypes),
            _cell("x".join(map(str, config.tile)) for config in configs),
            _cell(sorted((config.alignment for config in configs), reverse=True)),
            _cell(order for config in configs for order in config.orders),
            _cell(config.archs.replace("+", " and newer") for config in configs),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def rewritten(text: str) -> str:
    """README's text with the table of this installation.

    Raises:
        ValueError: the markers are not there, once each and in order.
    """
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if text.count(BEGIN) != 1 or text.count(END) != 1 or not pattern.search(text):
        raise ValueError(f"README.md does not have {BEGIN} and {END} once each")
    return pattern.sub(lambda _: f"{BEGIN}\n{table()}\n{END}", text)


def why_not() -> str | None:
    """Why this build cannot say what the table is; None if it can."""
    rows, built = len(rows_of((ROOT / "cuda/gemm/configs.h").read_text())), len(_moye_cpu.configs())
    if rows == built:
        return None
    return f"this build has {built} of the {rows} configs of cuda/gemm/configs.h: build it without JAX_MOYE_CONFIGS"


def main() -> int:
    """Rewrites or checks README.md."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    if (why := why_not()) is not None:
        print(f"README.md's table of kernels is left as it is: {why}", file=sys.stderr)
        return 2
    text = README.read_text()
    new = rewritten(text)
    if text == new:
        return 0
    if args.check:
        print("README.md's table of kernels is out of date: run tools/readme_table.py", file=sys.stderr)
        return 1
    README.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main())
