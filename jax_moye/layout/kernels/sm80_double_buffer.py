"""What is known of sm80_double_buffer."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.sync_mma import LAUNCH_US, LEAST_WAVE_US, STORE_US, describe_swizzled

FACTS = KernelFacts(
    instruction="mma.sync",
    page=11,
    idea="loads under the mma",
    speed=Speed(
        products_per_us=1.17e6,
        store_us=STORE_US,
        launch_us=LAUNCH_US,
        least_wave_us=LEAST_WAVE_US,
    ),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: two k-tiles in shared memory."""
    return describe_swizzled(config, order, stages=config.stages)
