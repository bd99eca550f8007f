"""What is known of sm90_split_k."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jax_moye.layout import Layout, checks, transactions
from jax_moye.layout.checks import BankReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.kernels.counters import bank_counts, sector_counts
from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.tma import ROW_BYTES, ROWS
from jax_moye.layout.kernels.wgmma import PRODUCTS_PER_US, WARPGROUP, TmaKernelLayouts, describe_wgmma

FACTS = KernelFacts(
    instruction="wgmma",
    page=16,
    idea="a cluster for one tile, a part of k for each CTA",
    splits_k=True,
    promotes_float8=True,
    pads=True,
    speed=Speed(
        products_per_us=PRODUCTS_PER_US,
        by_tile={
            (m, n, (1, parts)): 1.0
            for m, n in ((64, 64), (64, 128), (64, 256), (128, 128))
            for parts in (2, 3, 4, 6, 8)
        },
        needs_by_tile=True,
        copy_us=0.0,
        k_tile_us=0.116,
        clips_rows=True,
        store_us=0.164,  # the parts are added up, and threads store d
        finish_us=((160, 0.34), (255, 0.92)),
        part_us=0.0606,
        wave_us=3.05,
        # Such a cluster is of one GPC, and what is left there is too small for another.
        usable={2: 1.0, 3: 0.82, 4: 0.94, 6: 0.78, 8: 0.85},
    ),
)


@dataclasses.dataclass(frozen=True)
class SplitKLayouts(TmaKernelLayouts):
    """sm90_split_k as layouts: the tile's sums in shared memory, a part of which each CTA adds up and stores.

    Attributes:
      parts: CTAs of the cluster, that share one tile.
    """

    parts: int

    @property
    def threads(self) -> int:
        """Threads of a CTA: one warp loads."""
        return WARPGROUP * self.consumers + 32

    @property
    def sums_layout(self) -> Layout:
        """The sums of a CTA's part of k in its shared memory, (BLK_M,BLK_N)."""
        return Layout(self.tile, (self.tile[1] + 8, 1))

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: stages, over which the sums are written in the end, and barriers."""
        stages = sum(self.tile) * ROW_BYTES * self.stages
        sums = self.sums_layout.cosize * dtype(self.sums).bits // 8
        return checks.smem_bytes(
            (Layout(max(stages, sums)), "uint8"), (Layout(self.barriers), "uint64"), align=1024, arch=arch
        )

    def staging_reports(self, columns: int | None = None) -> tuple[BankReport, BankReport]:
        """Wavefronts of a CTA's sums: written in pairs, and of its share read as rows, from one of the CTAs."""
        m, n = self.tile
        pairs = Layout(((4, 8, 4, self.consumers), (2, 2, n // 8)), ((2 * m, 1, 16, ROWS), (m, 8, 8 * m)))
        write = checks.bank_conflicts(self.sums_layout, pairs, self.sums, width=8, what="sums, written in pairs")
        item = dtype(self.sums).bits // 8
        read = transactions.shared_memory(self._share(n + 8, item), self.vector * item, what="sums, read as rows")
        return write, read

    def _share(self, pitch: int, item: int, base: int = 0) -> np.ndarray:
        """The lanes' addresses of the first CTA's share of the tile, vector after vector."""
        vectors = self.tile[1] // self.vector  # of a row
        share = -(-self.tile[0] * vectors // self.parts)
        # Lanes behind its end do nothing: they are given the last one's address, which costs nothing either.
        vector = np.pad(np.arange(share), (0, -share % 32), mode="edge").reshape(-1, 32)
        return base + (vector // vectors * pitch + vector % vectors * self.vector) * item

    def thread_store_report(
        self, pitch: int, value_type: Any, base: int = 0, columns: int | None = None
    ) -> SectorReport:
        """Sectors of a CTA's share of d, row-major."""
        item = dtype(value_type, "thread_store_report").bits // 8
        return transactions.global_memory(self._share(pitch, item, base), self.vector * item, what="d, by threads")

    def epilogue_counts(self, pitch: int, value_type: Any, *, by_threads: bool = True) -> dict[str, int]:
        """What a CTA's epilogue costs, by the names of the emulator's counters; threads store whatever d is."""
        write, read = self.staging_reports()
        loads = {name: self.parts * number for name, number in bank_counts("shared_load", read).items()}
        stores = sector_counts("global_store", self.thread_store_report(pitch, value_type))
        return bank_counts("shared_store", write) | loads | stores


def describe(config: Any, order: str) -> SplitKLayouts:
    """The layouts of a config: nothing is multicast, since each CTA of a cluster has its own part of k."""
    one = describe_wgmma(config, order, multicasts=False, vector=4)
    return SplitKLayouts(**vars(one), parts=config.cluster[1])
