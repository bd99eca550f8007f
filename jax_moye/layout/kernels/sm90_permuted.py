"""What is known of sm90_permuted."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts
from jax_moye.layout.kernels.sm90_grouped import TABLE_BYTES
from jax_moye.layout.kernels.wgmma import TmaKernelLayouts, describe_wgmma

# No speed: it computes no product of two matrices, and jax_moye._selection.grouped chooses among its configs.
FACTS = KernelFacts(instruction="wgmma", page=25, idea="rows read and stored wherever indices say")


def describe(config: Any, order: str) -> TmaKernelLayouts:
    """The layouts of a config: those of sm90_grouped. Copies of a's rows lie as TMA would have put them."""
    return describe_wgmma(config, order, barriers=2, other_bytes=TABLE_BYTES, finishes_beside=1)
