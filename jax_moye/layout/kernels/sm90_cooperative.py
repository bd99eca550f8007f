"""What is known of sm90_cooperative."""

from __future__ import annotations

import math
from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.wgmma import (
    K_TILE_US,
    ODD_STORE_US,
    PRODUCTS_PER_US,
    STORE_US,
    WARPGROUP,
    TmaKernelLayouts,
    describe_wgmma,
)

FACTS = KernelFacts(
    instruction="wgmma",
    page=14,
    idea="TMA, mbarriers, wgmma",
    promotes_float8=True,
    pads=True,
    takes_in_shortly=True,
    speed=Speed(
        products_per_us=PRODUCTS_PER_US,
        # Wide wgmma and multicast move fewer bytes per product, and on large products power, which moving bytes takes,
        # sets the clock. The means of a sweep over large products, in which each shape kept its factor within 2 %.
        by_tile={
            (64, 128, (1, 1)): 0.999,
            (64, 256, (1, 1)): 0.991,
            (128, 128, (1, 1)): 0.995,
            (128, 160, (1, 1)): 1.01,
            (128, 176, (1, 1)): 1.01,
            (128, 192, (1, 1)): 0.994,
            (128, 192, (2, 1)): 0.998,
            (128, 208, (1, 1)): 1.02,
            (128, 256, (1, 1)): 1.02,
            (128, 256, (1, 2)): 1.01,
            (128, 256, (2, 1)): 1.0,
            (192, 192, (1, 1)): 0.989,
            (256, 112, (1, 1)): 1.04,
            (256, 128, (1, 1)): 1.01,
            (256, 128, (1, 2)): 0.995,
            (256, 128, (2, 1)): 1.0,
            (256, 176, (1, 1)): 1.01,
            (256, 192, (1, 1)): 1.01,
        },
        needs_by_tile=True,
        copy_us=0.0,
        k_tile_us=K_TILE_US,
        store_us=STORE_US,
        odd_store_us=((255, ODD_STORE_US),),
        finish_us=((128, 0.19), (255, 0.92)),
    ),
)


def describe(config: Any, order: str, *, gates: bool | None = None) -> TmaKernelLayouts:
    """The layouts of a config: its consumers multiply each tile together; gates: as `describe_wgmma` takes it."""
    # What names the CTAs of a cluster, beside integers that are converted one by one, or beside one way more.
    of_cluster = 0
    if config.cluster != (1, 1) and config.accumulator == "s32":
        of_cluster = 8
    elif config.cluster[0] > 1 and config.dtype in ("bf16", "f16") and config.alignment == 16:
        of_cluster = 2 if math.prod(config.consumer_tile) >= 128 * WARPGROUP else 0
    return describe_wgmma(config, order, has_loads_ahead=True, held_registers=of_cluster, gates=gates)
