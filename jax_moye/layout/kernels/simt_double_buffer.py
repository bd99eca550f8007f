"""What is known of simt_double_buffer."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import FMA_DTYPES, KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.simt import describe_simt

FACTS = KernelFacts(
    instruction="fma",
    page=7,
    idea="two buffers",
    speed=Speed(products_per_us=0.161e6, by_dtype=FMA_DTYPES, store_us=0.060),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: one buffer is filled while the other is multiplied."""
    return describe_simt(config, order, stages=config.stages)
