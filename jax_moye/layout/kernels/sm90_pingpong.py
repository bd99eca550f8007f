"""What is known of sm90_pingpong."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.wgmma import (
    K_TILE_US,
    ODD_STORE_US,
    PRODUCTS_PER_US,
    STORE_US,
    TmaKernelLayouts,
    describe_wgmma,
)

FACTS = KernelFacts(
    instruction="wgmma",
    page=15,
    idea="one warpgroup's epilogue under the other's math",
    promotes_float8=True,
    pads=True,
    takes_in_shortly=True,
    speed=Speed(
        products_per_us=PRODUCTS_PER_US,
        by_tile={  # as those of sm90_cooperative
            (64, 64, (1, 1)): 1.0,  # of one wave; 2.2 of many
            (64, 80, (1, 1)): 1.2,  # where n is contiguous, of whose columns 128 are loaded; else 1.0
            (64, 128, (1, 1)): 0.966,
            (64, 160, (1, 1)): 1.02,
            (64, 192, (1, 1)): 0.985,
            (64, 256, (1, 1)): 0.981,
            (128, 96, (1, 1)): 1.04,
            (128, 128, (1, 1)): 0.988,
            (128, 128, (1, 2)): 1.01,
            (128, 128, (2, 1)): 0.992,
            (128, 144, (1, 1)): 1.01,
            (128, 160, (1, 1)): 1.0,
            (128, 176, (1, 1)): 1.0,
            (128, 192, (1, 1)): 0.984,
            (128, 192, (2, 1)): 0.992,
            (192, 128, (1, 1)): 0.977,
        },
        needs_by_tile=True,
        copy_us=0.0,
        k_tile_us=K_TILE_US,
        store_us=STORE_US,
        odd_store_us=((176, ODD_STORE_US), (255, 0.757)),
        finish_us=((128, 0.12), (160, 0.7), (176, 0.92), (255, 2.1)),
    ),
)


def describe(config: Any, order: str) -> TmaKernelLayouts:
    """The layouts of a config: each consumer has a tile of its own, and two barriers keep their order."""
    return describe_wgmma(config, order, barriers=2, has_loads_ahead=True)
