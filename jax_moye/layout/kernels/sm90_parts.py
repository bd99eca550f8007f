"""What is known of sm90_parts."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.pack import PackLayouts
from jax_moye.layout.kernels.wgmma import (
    K_TILE_US,
    ODD_STORE_US,
    PRODUCTS_PER_US,
    STORE_US,
    TmaKernelLayouts,
    describe_wgmma,
)

# Of bfloat16 into which an operand is split. The dtypes' names say how many pairs of them are multiplied.
PARTS = {"bf16x3": 2, "bf16x6": 3, "bf16x9": 3}

FACTS = KernelFacts(
    instruction="wgmma",
    page=21,
    idea="f32 as parts of bfloat16",
    symmetric=False,  # of two pairs of equal weight the first is the one with a's larger part
    speed=Speed(
        products_per_us=PRODUCTS_PER_US,
        by_dtype={"bf16x3": 1 / 3, "bf16x6": 1 / 6, "bf16x9": 1 / 9},
        # Sums leave the tensor core, and more is loaded for a product: docs/performance.md.
        by_tile={
            (64, 128, (1, 1)): 1.07,
            (128, 128, (1, 1)): 1.17,
            (128, 192, (1, 1)): 1.2,
            (128, 192, (2, 1)): 1.19,
        },
        needs_by_tile=True,
        copy_us=0.0,
        k_tile_us=K_TILE_US,
        store_us=STORE_US,
        odd_store_us=((255, ODD_STORE_US),),
        finish_us=((128, 0.19), (255, 0.92)),
    ),
)


def describe(config: Any, order: str) -> TmaKernelLayouts:
    """The layouts of a config: of the kernel behind the one that splits, those of sm90_cooperative on the parts."""
    # The parts are contiguous along k, whatever the operands are.
    of_parts = describe_wgmma(dataclasses.replace(config, dtype="bf16", alignment=16), "NT", promotes=True)
    a, b = (
        dataclasses.replace(operand, packing=PackLayouts(item_bytes=4, along_k=along_k, parts=PARTS[config.dtype]))
        for operand, along_k in ((of_parts.a, order[0] == "N"), (of_parts.b, order[1] == "T"))
    )
    return dataclasses.replace(of_parts, order=order, a=a, b=b, passes=int(config.dtype.removeprefix("bf16x")))
