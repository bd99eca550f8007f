"""What is known of sm90_cooperative."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.wgmma import FEW_ROWS, ODD_STORES, TmaKernelLayouts, describe_wgmma

FACTS = KernelFacts(
    instruction="wgmma",
    page=14,
    idea="TMA, mbarriers, wgmma",
    promotes_float8=True,
    speed=Speed(
        products_per_us=2.70e6,
        # Wide wgmma and multicast move fewer bytes per product, and on large products power, which moving bytes takes,
        # sets the clock. The means of a sweep over large products, in which each shape kept its factor within 2 %.
        by_tile={
            (64, 128, (1, 1)): 1.204,
            (64, 256, (1, 1)): 1.052,
            (128, 128, (1, 1)): 1.034,
            (128, 160, (1, 1)): 1.047,
            (128, 176, (1, 1)): 1.044,
            (128, 192, (1, 1)): 1.047,
            (128, 192, (2, 1)): 1.035,
            (128, 256, (1, 1)): 1.018,
            (128, 256, (1, 2)): 1.016,
            (128, 256, (2, 1)): 1.028,
            (192, 192, (1, 1)): 0.996,
            (256, 128, (1, 1)): 1.021,
            (256, 128, (1, 2)): 0.996,
            (256, 128, (2, 1)): 1.004,
            (256, 176, (1, 1)): 1.01,
            (256, 192, (1, 1)): 0.996,
        },
        needs_by_tile=True,
        few_rows=FEW_ROWS,
        store_us=0.068,
        odd_stores=ODD_STORES,
        finish_us=((160, 0.34), (255, 0.92)),
        packs_below=16,
    ),
)


def describe(config: Any, order: str) -> TmaKernelLayouts:
    """The layouts of a config: its consumers multiply each tile together."""
    return describe_wgmma(config, order)
