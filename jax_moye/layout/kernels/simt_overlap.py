"""What is known of simt_overlap."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import FMA_DTYPES, KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.simt import describe_simt

FACTS = KernelFacts(
    instruction="fma",
    page=6,
    idea="cp.async",
    speed=Speed(products_per_us=0.109e6, by_dtype=FMA_DTYPES, store_us=0.060),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: a whole k-tile of fragments is in registers, and the next one overwrites it."""
    return describe_simt(config, order, blocks=config.tile[2])
