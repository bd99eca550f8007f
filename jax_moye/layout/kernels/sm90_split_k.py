"""What is known of sm90_split_k."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jax_moye.layout import ComposedLayout, Layout, Swizzle, checks, transactions
from jax_moye.layout.checks import BankReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype, operand_types
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels import sm90_transposed
from jax_moye.layout.kernels.counters import bank_counts, sector_counts
from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.sm90_transposed import COLUMNS, TransposedKernelLayouts
from jax_moye.layout.kernels.tma import ROW_BYTES, ROWS, rows_of_boxes
from jax_moye.layout.kernels.wgmma import PRODUCTS_PER_US, WARPGROUP, TmaKernelLayouts, describe_wgmma
from jax_moye.layout.tiled import make_tiled_mma

FACTS = KernelFacts(
    instruction="wgmma",
    page=16,
    idea="a cluster for one tile, a part of k for each CTA",
    splits_k=True,
    promotes_float8=True,
    pads=True,
    takes_in_shortly=True,
    speed=Speed(
        products_per_us=PRODUCTS_PER_US,
        by_tile={
            (m, n, (1, parts)): 1.0 for m, n in ((64, 64), (64, 128), (64, 256), (128, 128)) for parts in (1, 2, 4, 8)
        }
        | {(64, 128, (1, 3)): 1.0, (128, 128, (1, 3)): 1.0, (128, 128, (1, 6)): 1.0}
        | {(96, 192, (1, 1)): 0.66}  # three warpgroups multiply
        | {(16, 64, (1, 1)): 1.0, (16, 64, (1, 2)): 1.0, (16, 128, (1, 2)): 1.0, (16, 128, (1, 4)): 1.0},
        needs_by_tile=True,
        copy_us=0.0,
        k_tile_us=0.116,
        clips_rows=True,
        store_us=0.164,  # the parts are added up, and threads store d
        finish_us=((160, 0.34), (255, 0.92)),
        part_us=0.0606,
        wave_us=3.05,
        # Such a cluster is of one GPC, and what is left there is too small for another.
        usable={2: 1.0, 3: 0.8, 4: 0.94, 6: 0.78, 8: 0.85},
    ),
)

VECTOR = 4  # sums that a thread adds up and stores together, where they are f32


def share_of(vectors: np.ndarray, parts: int, rank: int) -> np.ndarray:
    """What a CTA of the cluster adds up, (instruction, lane); -1: of lanes behind its end.

    Args:
      vectors: byte addresses of the tile's vectors, (row, vector).
      parts: CTAs that share the tile.
      rank: of the CTA among them.
    """
    share = -(-vectors.size // parts)
    own = vectors.ravel()[rank * share : (rank + 1) * share]
    return np.pad(own, (0, -len(own) % 32), constant_values=-1).reshape(-1, 32)


@dataclasses.dataclass(frozen=True)
class SplitKLayouts(TmaKernelLayouts):
    """sm90_split_k as layouts: the tile's sums in shared memory, a part of which each CTA adds up and stores.

    Attributes:
      parts: CTAs of the cluster, that share one tile.
      exchanged: wgmma's rows are columns of d, and a thread's neighbouring sums lie in two rows of d.
    """

    parts: int
    exchanged: bool

    @property
    def threads(self) -> int:
        """Threads of a CTA: one warp loads."""
        return WARPGROUP * self.consumers + 32

    @property
    def atoms(self) -> int:
        """As in TmaKernelLayouts; exchanged, one for each 64 columns of d."""
        return self.consumers if self.exchanged else super().atoms

    @property
    def _pitch(self) -> int:
        """Sums from one row to the next."""
        return self.tile[1] + (4 if self.exchanged else 8)

    @property
    def sums_layout(self) -> Layout:
        """The sums of a CTA's part of k in its shared memory, (BLK_M,BLK_N)."""
        return Layout(self.tile, (self._pitch, 1))

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: stages, over which the sums are written in the end, and barriers."""
        a, b = self.tile
        stages = ((a if a < ROWS else rows_of_boxes(a)) + rows_of_boxes(b)) * ROW_BYTES * self.stages
        sums = self.sums_layout.cosize * dtype(self.sums).bits // 8
        return checks.smem_bytes(
            (Layout(max(stages, sums)), "uint8"), (Layout(self.barriers), "uint64"), align=1024, arch=arch
        )

    def staging_reports(self, columns: int | None = None, *, rank: int = 0) -> tuple[BankReport, BankReport]:
        """Wavefronts of a CTA's sums: written, and of its share read as rows, from one of the CTAs."""
        m, n = self.tile
        if self.exchanged:
            each = Layout(((4, 8, 4, self.consumers), (2, 2, m // 8)), ((2, m, 16 * m, ROWS * m), (1, 8 * m, 8)))
            write = checks.bank_conflicts(self.sums_layout, each, self.sums, width=4, what="sums, written one by one")
        else:
            pairs = Layout(((4, 8, 4, self.consumers), (2, 2, n // 8)), ((2 * m, 1, 16, ROWS), (m, 8, 8 * m)))
            write = checks.bank_conflicts(self.sums_layout, pairs, self.sums, width=8, what="sums, written in pairs")
        item = dtype(self.sums).bits // 8
        share = self._share(self._pitch, item, rank=rank)
        return write, transactions.shared_memory(share, self.vector * item, what="sums, read as rows")

    def _share(self, pitch: int, item: int, base: int = 0, *, rank: int) -> np.ndarray:
        """The lanes' addresses of a CTA's share of the tile, vector after vector."""
        row, column = np.meshgrid(np.arange(self.tile[0]), np.arange(0, self.tile[1], self.vector), indexing="ij")
        return share_of(base + (row * pitch + column) * item, self.parts, rank)

    def thread_store_report(
        self, pitch: int, value_type: Any, base: int = 0, columns: int | None = None, *, rank: int = 0
    ) -> SectorReport:
        """Sectors of a CTA's share of d, row-major."""
        item = dtype(value_type, "thread_store_report").bits // 8
        share = self._share(pitch, item, base, rank=rank)
        return transactions.global_memory(share, self.vector * item, what="d, by threads")

    def epilogue_counts(self, pitch: int, value_type: Any, *, by_threads: bool = True, rank: int = 0) -> dict[str, int]:
        """What a CTA's epilogue costs, by the names of the emulator's counters; threads store whatever d is."""
        write, read = self.staging_reports(rank=rank)
        return sums_counts(write, read, self.thread_store_report(pitch, value_type, rank=rank), self.parts)


@dataclasses.dataclass(frozen=True)
class SplitKTf32Layouts(TransposedKernelLayouts):
    """The rows of TF32, cuda/gemm/split_k_tf32.h: a CTA multiplies its part of k as sm90_transposed does a tile.

    Attributes:
      parts: CTAs of the cluster, that share one tile.
    """

    parts: int

    @property
    def sums_layout(self) -> ComposedLayout:
        """The sums of a CTA's part of k in its shared memory, over its stages, (BLK_M,BLK_N)."""
        return ComposedLayout(Swizzle(2, 2, 6), 0, Layout(self.tile, (self.tile[1], 1)))

    def _sums_at(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        """Byte addresses of sums."""
        return self.sums_layout.values().reshape(self.tile, order="F")[row, column] * 4

    def _vectors(self) -> tuple[np.ndarray, np.ndarray]:
        """Row and first column of the tile's vectors, (row, vector)."""
        row, column = np.meshgrid(np.arange(self.tile[0]), np.arange(0, self.tile[1], VECTOR), indexing="ij")
        return row, column

    def staging_reports(self, *, rank: int = 0) -> tuple[BankReport, BankReport]:
        """Wavefronts of a CTA's sums: written in pairs, and of its share read as rows, from one of the CTAs."""
        i, warp, lane = np.meshgrid(
            np.arange(self.tile[0] // 4), np.arange(4 * self.consumers), np.arange(32), indexing="ij"
        )
        row = i // 2 * 8 + lane % 4 * 2 + i % 2
        column = COLUMNS.values()[warp * 16 + lane // 4]
        pairs = self._sums_at(row, column).reshape(-1, 32)
        write = transactions.shared_memory(pairs, 8, what="sums, written in pairs")
        share = share_of(self._sums_at(*self._vectors()), self.parts, rank)
        return write, transactions.shared_memory(share, 4 * VECTOR, what="sums, read as rows")

    def store_report(self, pitch: int, value_type: Any, base: int = 0, *, rank: int = 0) -> SectorReport:
        """Sectors of a CTA's share of d (M,N), row-major, whose rows are `pitch` elements apart."""
        item = dtype(value_type, "store_report").bits // 8
        row, column = self._vectors()
        share = share_of(base + (row * pitch + column) * item, self.parts, rank)
        return transactions.global_memory(share, VECTOR * item, what="d, by threads")

    def epilogue_counts(self, pitch: int, value_type: Any, *, rank: int = 0) -> dict[str, int]:
        """What a CTA's epilogue costs, by the names of the emulator's counters."""
        write, read = self.staging_reports(rank=rank)
        return sums_counts(write, read, self.store_report(pitch, value_type, rank=rank), self.parts)


def sums_counts(write: BankReport, read: BankReport, store: SectorReport, parts: int) -> dict[str, int]:
    """Of a CTA that writes its sums, reads its share from `parts` CTAs, and stores it."""
    loads = {name: parts * number for name, number in bank_counts("shared_load", read).items()}
    return bank_counts("shared_store", write) | loads | sector_counts("global_store", store)


def describe(config: Any, order: str) -> SplitKLayouts | SplitKTf32Layouts:
    """The layouts of a config: nothing is multicast, since each CTA of a cluster has its own part of k."""
    if config.dtype == "tf32":
        return SplitKTf32Layouts(**vars(sm90_transposed.describe(config, order)), parts=config.cluster[1])
    if config.tile[0] < ROWS and order[0] == "T":
        why = f"{config.name} takes a along k alone"
        raise InvalidType("kernel_layouts", (config.name, order), why, "NN or NT")
    one = describe_wgmma(config, order, multicasts=False, vector=4)
    exchanged = config.tile[0] % ROWS != 0
    if exchanged:
        a, b = operand_types(config.dtype)
        majors = ",".join(f"GMMA::Major::{x.major.upper()}" for x in (one.b, one.a))
        op = f"SM90_{ROWS}x{config.tile[0]}x{256 // a.bits}_F32{b.short}{a.short}_SS<{majors}>"
        one = dataclasses.replace(one, mma=make_tiled_mma(op, Layout((config.consumers, 1, 1))))
    return SplitKLayouts(**vars(one), parts=config.cluster[1], exchanged=exchanged)
