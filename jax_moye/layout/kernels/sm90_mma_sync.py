"""What is known of sm90_mma_sync."""

from __future__ import annotations

from jax_moye.layout.kernels.facts import KernelFacts, Speed

FACTS = KernelFacts(
    instruction="mma.sync, by TMA",
    page=27,
    idea="mma.sync reads what TMA brings, along m and n",
    splits_k=True,
    speed=Speed(products_per_us=0.75e6, by_dtype={"tf32": 1.0}, copy_us=0.0, store_us=0.05, part_us=0.06, usable={2: 1.0, 4: 0.94, 8: 0.85}),
)
