"""What is known of sm90_sliced_k."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout import Layout
from jax_moye.layout.checks import BankReport
from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts
from jax_moye.layout.kernels.sync_mma import describe_swizzled
from jax_moye.layout.tiled import make_tiled_mma

FACTS = KernelFacts(
    instruction="mma.sync, sliced",  # the sums of its warps are added up
    page=25,
    idea="a slice of each k-tile for every warp",
    speed=Speed(
        products_per_us=0.653e6,
        by_tile={(16, 16, (1, 1)): 0.722, (16, 32, (1, 1)): 0.528, (32, 32, (1, 1)): 0.435},
        copy_us=0.0258,
        k_tile_us=0.0956,
        store_us=0.176,
        finish_us=((255, 0.394),),
        launch_us=-1.31,  # no map, no mbarrier, and little code
        wave_us=0.59,
    ),
)

SLICES, VECTOR = 4, 4  # warps; elements of a row that a thread adds up and stores


@dataclasses.dataclass(frozen=True)
class SlicedKernelLayouts(KernelLayouts):
    """A kernel whose warps have a slice of each k-tile, and in the end the sums of all slices side by side."""

    def staging_reports(self) -> tuple[BankReport, BankReport]:
        """Wavefronts of one slice's sums: written by its warp, and read as rows by all."""
        assert self.staging is not None
        warp = make_tiled_mma(self.mma.atom, Layout((1, 1, 1)), self.mma.tile_shape[:2])
        shape: Any = self.staging.shape
        stride: Any = self.staging.stride
        of_slice = Layout(shape[:2], stride[:2])
        return KernelLayouts.staging_reports(dataclasses.replace(self, mma=warp, staging=of_slice))

    def epilogue_counts(self) -> dict[str, int]:
        """What a CTA's epilogue costs in shared memory, by the names of the emulator's counters."""
        return {name: SLICES * number for name, number in super().epilogue_counts().items()}


def describe(config: Any, order: str) -> SlicedKernelLayouts:
    """The layouts of a config: a TiledMma whose warps lie one behind the other along k."""
    kernel = describe_swizzled(config, order, warps=(1, 1, SLICES))
    blk_m, blk_n, _ = config.tile
    vectors = blk_n // VECTOR  # of a row
    rows = min(kernel.threads // vectors, blk_m)
    # Of 16 columns, rows that are read together have one between them.
    below = Layout((2, 2, rows // 4), (2 * vectors, vectors, 4 * vectors)) if blk_n == 16 else Layout(rows, vectors)
    a, b = (  # stages of both lie one behind the other
        dataclasses.replace(operand, smem_array=Layout(config.stages * operand.smem.cosize))
        for operand in kernel.operands
    )
    return SlicedKernelLayouts(
        **vars(kernel)
        | {
            "a": a,
            "b": b,
            "staging": Layout((blk_m, blk_n, SLICES), (blk_n + 8, 1, blk_m * (blk_n + 8))),
            "d": (Layout((below.shape, vectors), (below.stride, 1)), Layout((1, VECTOR))),
        }
    )
