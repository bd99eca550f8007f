"""What is known of sm80_ldmatrix."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.sync_mma import LAUNCH_US, LEAST_WAVE_US, STORE_US, describe_swizzled

FACTS = KernelFacts(
    instruction="mma.sync",
    page=10,
    idea="fragments in one instruction, out of swizzled shared memory",
    speed=Speed(
        products_per_us=1.61e6,
        store_us=STORE_US,
        launch_us=LAUNCH_US,
        least_wave_us=LEAST_WAVE_US,
    ),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: one k-tile in shared memory."""
    return describe_swizzled(config, order)
