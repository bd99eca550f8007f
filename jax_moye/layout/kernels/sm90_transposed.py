"""What is known of sm90_transposed."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.wgmma import K_TILE_US, PRODUCTS_PER_US, STORE_US

FACTS = KernelFacts(
    instruction="wgmma",
    page=26,
    idea="32-bit operands that do not lie along k",
    speed=Speed(
        products_per_us=PRODUCTS_PER_US,
        by_tile={(m, 128, (1, 1)): 1.0 for m in (64, 128, 256)},
        needs_by_tile=True,
        copy_us=0.0,
        k_tile_us=K_TILE_US,
        store_us=STORE_US,
    ),
)
