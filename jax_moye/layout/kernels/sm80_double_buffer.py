"""What is known of sm80_double_buffer."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.sync_mma import describe_swizzled

FACTS = KernelFacts(
    instruction="mma.sync",
    page=11,
    idea="loads under the mma",
    speed=Speed(
        products_per_us=1.14e6,
        store_us=0.060,
    ),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: two k-tiles in shared memory."""
    return describe_swizzled(config, order, stages=config.stages)
