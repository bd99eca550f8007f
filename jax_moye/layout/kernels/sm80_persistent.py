"""What is known of sm80_persistent."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.sync_mma import LAUNCH_US, LEAST_WAVE_US, STORE_US, describe_swizzled

FACTS = KernelFacts(
    instruction="mma.sync",
    page=13,
    idea="CTAs that stay, and the order of the tiles",
    speed=Speed(
        products_per_us=1.79e6,
        store_us=STORE_US,
        launch_us=LAUNCH_US,
        least_wave_us=LEAST_WAVE_US,
    ),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: the next tile is loaded while the epilogue's rows are stored from beside the stages."""
    return describe_swizzled(config, order, stages=config.stages, beside=True)
