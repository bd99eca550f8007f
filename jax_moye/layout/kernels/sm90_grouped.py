"""What is known of sm90_grouped."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts
from jax_moye.layout.kernels.wgmma import TmaKernelLayouts, describe_wgmma

MOST_GROUPS = 512  # kMaxGroups of cuda/gemm/config.h
TABLE_BYTES = 2 * (MOST_GROUPS + 2) * 4  # GroupTable of cuda/gemm/grouped.h: two arrays of int32

# No speed: it computes no product of two matrices, and jax_moye._selection.grouped chooses among its configs.
FACTS = KernelFacts(instruction="wgmma", page=19, idea="groups whose sizes only the device knows", promotes_float8=True)


def describe(config: Any, order: str) -> TmaKernelLayouts:
    """The layouts of a config: those of sm90_pingpong, and a table of groups behind them."""
    box_rows = 16 if config.tile[0] == 64 else 0  # those that a small group does not reach are not loaded
    return describe_wgmma(config, order, barriers=2, other_bytes=TABLE_BYTES, box_rows_of_a=box_rows, finishes_beside=1)
