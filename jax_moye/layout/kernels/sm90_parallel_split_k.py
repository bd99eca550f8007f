"""What is known of sm90_parallel_split_k."""

from __future__ import annotations

from typing import Any

from jax_moye.layout.kernels import sm90_cooperative, sm90_transposed
from jax_moye.layout.kernels.facts import KernelFacts
from jax_moye.layout.kernels.sm90_transposed import TransposedKernelLayouts
from jax_moye.layout.kernels.wgmma import TmaKernelLayouts

FACTS = KernelFacts(
    instruction="wgmma",
    page=18,
    idea="parts of k that fill the GPU, added up by a second kernel",
    splits_k_by_sizes=True,
    takes_in_shortly=True,
    # The first kernel is sm90_cooperative, whose results are the sums of the parts; of TF32 nothing was fitted.
    speed=sm90_cooperative.FACTS.speed._replace(add_us=3.5),
)


def describe(config: Any, order: str) -> TmaKernelLayouts | TransposedKernelLayouts:
    """The layouts of a config's first kernel: sm90_cooperative has those for layers with a gate, too."""
    if config.dtype == "tf32":
        return sm90_transposed.describe(config, order)
    return sm90_cooperative.describe(config, order, gates=True)
