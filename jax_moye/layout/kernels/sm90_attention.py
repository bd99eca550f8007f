"""What is known of sm90_attention."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout.kernels.attention import (
    AttentionLayouts,
    both_mmas,
    box_columns,
    check_order,
    rows_array,
    summed_array,
)
from jax_moye.layout.kernels.facts import KernelFacts
from jax_moye.layout.kernels.tma import TmaOperandLayouts

# No speed: it computes no product of two matrices.
FACTS = KernelFacts(instruction="wgmma", page=23, idea="attention without its scores in memory")


@dataclasses.dataclass(frozen=True)
class AttentionKernelLayouts(AttentionLayouts):
    """sm90_attention as layouts."""

    @property
    def operands(self) -> tuple[TmaOperandLayouts, ...]:
        """All that wgmma reads in shared memory."""
        return self.arrays if self.summed_by_wgmma else self.arrays[:2]

    @property
    def q(self) -> TmaOperandLayouts:
        """A CTA's rows of Q, (BLK_M,BOX,PARTS); in the end those of O of 16 bits lie there."""
        return self.arrays[0]

    @property
    def k(self) -> TmaOperandLayouts:
        """Rows of K, (BLK_N,BOX,PARTS*PIPE)."""
        return self.arrays[1]

    @property
    def v(self) -> TmaOperandLayouts:
        """Rows of V, (HEAD,BLK_N,PIPE)."""
        return self.arrays[2]


def describe(config: Any, order: str) -> AttentionKernelLayouts:
    """The layouts of a config."""
    check_order(config, order)
    blk_m, blk_n, head = config.tile
    parts = head // box_columns(config)
    arrays = (
        rows_array(config, "q", blk_m, parts),
        rows_array(config, "k", blk_n, config.stages * parts),
        summed_array(config, "v"),
    )
    return AttentionKernelLayouts(
        config.name,
        config.kernel,
        order,
        config.tile,
        *both_mmas(config),
        arrays,
        other_bytes=8 * (2 * 2 * config.stages + 1),  # mbarriers: two of each stage of K and V, and Q's
        consumers=config.consumers,
        stages=config.stages,
    )
