"""Operands that a kernel of their own packs first: what cuda/gemm/pack.h declares, in Python."""

from __future__ import annotations

import dataclasses

import numpy as np

from jax_moye.layout import transactions
from jax_moye.layout.checks import BankReport, SectorReport
from jax_moye.layout.kernels.counters import bank_counts, sector_counts

ROW_BYTES = 128  # of a row of the packed copy in a tile


@dataclasses.dataclass(frozen=True)
class PackLayouts:
    """How 256 threads copy a tile of an operand, 128 bytes along k and as many rows as these have elements, K-major.

    Of operands that are read in words: their pitch is a multiple of 4 bytes. The tile is whole.

    Attributes:
      item_bytes: of an element.
      along_k: lanes read along k; else along the rows.
      parts: of bfloat16 into which each f32 is split; 0: elements stay what they are.
    """

    item_bytes: int
    along_k: bool
    parts: int = 0

    threads = 256
    pitch = 33  # words from one row to the next in shared memory

    @property
    def tile(self) -> int:
        """Elements along k, and rows."""
        return ROW_BYTES // self.item_bytes

    @property
    def word(self) -> int:
        """Elements of a word."""
        return 4 // self.item_bytes

    def _warps(self) -> np.ndarray:
        """Of each instruction and lane: (instruction, 3, lane), block of `word` rows or ks, which of them, lane."""
        block, j, lane = np.meshgrid(np.arange(32), np.arange(self.word), np.arange(32), indexing="ij")
        return np.stack([block, j, lane], axis=2).reshape(-1, 3, 32)

    def load_report(self, pitch: int, base: int = 0) -> SectorReport:
        """Sectors read; pitch: elements from one row (or k) to the next, base: address of the first element, bytes."""
        block, j, lane = self._warps().transpose(1, 0, 2)
        addresses = base + (block * self.word + j) * pitch * self.item_bytes + lane * 4
        return transactions.global_memory(addresses, 4, what="packing, read")

    def turn_reports(self) -> tuple[BankReport, BankReport]:
        """Wavefronts of the words to shared memory and back."""
        block, j, lane = self._warps().transpose(1, 0, 2)
        if self.along_k:
            written = (block * self.word + j) * self.pitch + lane
        else:
            row = (j + lane // (32 // self.word)) % self.word
            written = (lane * self.word + row) * self.pitch + block
        turn, word, thread = np.meshgrid(
            np.arange(self.tile * 8 // self.threads), np.arange(4), np.arange(self.threads), indexing="ij"
        )
        row, piece = (turn * self.threads + thread) // 8, thread % 8
        read = (row * self.pitch + piece * 4 + word).reshape(-1, 32)
        return (
            transactions.shared_memory(written * 4, 4, what="packing, written"),
            transactions.shared_memory(read * 4, 4, what="packing, turned"),
        )

    def store_report(self) -> SectorReport:
        """Sectors written, of whole rows of 128 bytes at addresses that are multiples of a sector.

        Of parts those of one, which has half the bytes.
        """
        thread = np.arange(self.tile * 8)
        if self.parts:
            addresses = (thread // 8 * ROW_BYTES + thread % 8 * 8).reshape(-1, 32)
            return transactions.global_memory(addresses, 8, what="packing, a part stored")
        addresses = (thread // 8 * ROW_BYTES * 2 + thread % 8 * 16).reshape(-1, 32)
        return transactions.global_memory(addresses, 16, what="packing, stored")

    def counts(self, pitch: int) -> dict[str, int]:
        """What a tile costs, by the names of the emulator's counters."""
        written, turned = self.turn_reports()
        stores = sector_counts("global_store", self.store_report())
        return {
            **sector_counts("global_load", self.load_report(pitch)),
            **bank_counts("shared_store", written),
            **bank_counts("shared_load", turned),
            **{name: number * max(1, self.parts) for name, number in stores.items()},
        }
