"""What is known of simt_tiled."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import FMA_DTYPES, KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.simt import describe_simt

FACTS = KernelFacts(
    instruction="fma",
    page=5,
    idea="a tile per CTA, one FMA at a time",
    speed=Speed(products_per_us=0.168e6, by_dtype=FMA_DTYPES, store_us=0.060),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: loads go through registers."""
    return describe_simt(config, order, through_registers=True)
