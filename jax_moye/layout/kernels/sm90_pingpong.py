"""What is known of sm90_pingpong."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.wgmma import FEW_ROWS, ODD_STORES, WARPGROUP, TmaKernelLayouts, describe_wgmma

_MOST_SUMS = 176  # of a thread that finishes more than one element at a time

FACTS = KernelFacts(
    instruction="wgmma",
    page=15,
    idea="one warpgroup's epilogue under the other's math",
    promotes_float8=True,
    speed=Speed(
        products_per_us=2.70e6,
        by_tile={  # as those of sm90_cooperative
            (64, 64, (1, 1)): 1.75,  # of one wave; 2.2 of many
            (64, 256, (1, 1)): 1.121,
            (128, 128, (1, 1)): 1.050,
            (128, 128, (1, 2)): 1.083,
            (128, 128, (2, 1)): 1.082,
            (128, 160, (1, 1)): 1.066,
            (128, 176, (1, 1)): 1.055,
            (128, 192, (1, 1)): 1.054,
            (128, 192, (2, 1)): 1.046,
            (192, 128, (1, 1)): 1.02,
        },
        needs_by_tile=True,
        few_rows=FEW_ROWS,
        store_us=0.030,
        odd_stores=ODD_STORES,
        finish_us=((160, 0.22), (_MOST_SUMS, 0.92), (255, 2.1)),
        packs_below=16,
    ),
)


def describe(config: Any, order: str) -> TmaKernelLayouts:
    """The layouts of a config: each consumer has a tile of its own, and two barriers keep their order."""
    one = describe_wgmma(config, order, barriers=2)
    sums = config.tile[0] * config.tile[1] // WARPGROUP  # of a thread
    return dataclasses.replace(one, vector=1) if sums > _MOST_SUMS else one
