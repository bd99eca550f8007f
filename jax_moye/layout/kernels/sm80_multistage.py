"""What is known of sm80_multistage."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.sync_mma import LAUNCH_US, LEAST_WAVE_US, STORE_US, describe_swizzled

FACTS = KernelFacts(
    instruction="mma.sync",
    page=12,
    idea="n stages, and how many",
    speed=Speed(
        products_per_us=1.94e6,
        store_us=STORE_US,
        launch_us=LAUNCH_US,
        least_wave_us=LEAST_WAVE_US,
    ),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: as many k-tiles in shared memory as it has stages."""
    return describe_swizzled(config, order, stages=config.stages)
