"""What is known of sm90_odd_rows."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import numpy as np

from jax_moye.layout import (
    CopyAtom,
    Layout,
    UniversalCopy,
    checks,
    gmma_smem_atom,
    make_tiled_mma,
    tile_to_shape,
    transactions,
)
from jax_moye.layout.atoms import mma_atom
from jax_moye.layout.checks import BankReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype, operand_types
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels.counters import bank_counts, matrix_counts, sector_counts, tma_counts
from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import vectorized
from jax_moye.layout.kernels.sync_mma import fragment_copy_op, sm80_mma_op
from jax_moye.layout.kernels.tma import ROW_BYTES, box_sectors
from jax_moye.layout.tiled import TiledMma, make_tiled_copy_A, make_tiled_copy_B, make_tiled_copy_C

FACTS = KernelFacts(
    instruction="mma.sync, every eighth k",  # the sums of its warps are added up
    page=27,
    idea="rows of weights that begin anywhere",
    speed=Speed(
        products_per_us=0.518e6,
        by_tile={(16, 120, (1, 1)): 1.0, (32, 120, (1, 1)): 1.13},
        needs_by_tile=True,
        copy_us=0.0,
        store_us=0.234,
        launch_us=0.485,
        wave_us=1.95,
        below_alignment=16,  # others load such operands as they are
    ),
)

WORD, ITEM = 8, 2  # elements of 16 bytes, which are rows from one of a slice to the next, too; bytes of an element
SLICES, WARP = 8, 32


@dataclasses.dataclass(frozen=True)
class OddRowsKernelLayouts:
    """sm90_odd_rows as layouts.

    Attributes:
      name: of the row.
      kernel: the file of cuda/gemm that declares the same.
      order: of the operands.
      tile: (m, n, k) of a CTA.
      mma: of all warps; k is in the order of slices.
      a: a stage of a as if its rows began with words, (BLK_M,(BLK_K/8,SLICE)).
      b: a stage of b, whose columns are those of the boxes in which rows of the tile lie, (FRAME,BLK_K).
      sums: of each slice, as far right as its rows were loaded, (BLK_M,FRAME,SLICE).
      value_type: of both operands.
      stages: slots of the shared-memory pipeline.
    """

    name: str
    kernel: str
    order: str
    tile: tuple[int, int, int]
    mma: TiledMma
    a: Layout
    b: Any
    sums: Layout
    value_type: str
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.mma.threads

    @property
    def frame(self) -> int:
        """Columns of a stage of b."""
        return self.tile[1] + WORD

    @property
    def pitch_a(self) -> int:
        """Elements of a row of a stage of a."""
        return self.tile[2] + WORD

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: stages, over which the sums are written in the end."""
        stage = checks.smem_bytes((self.b, self.value_type), (Layout(self.tile[0] * self.pitch_a), self.value_type))
        stages = Layout(self.stages * (-(-stage.bytes // 1024) * 1024)), "uint8"
        either = stages, (Layout(self.sums.cosize), "float32")
        larger = max(either, key=lambda each: checks.smem_bytes(each, align=1024).bytes)
        return checks.smem_bytes(larger, (Layout(self.stages), "uint64"), align=1024, arch=arch)  # an mbarrier each

    def ahead(self, rows: Any, pitch: int) -> Any:
        """Elements of the word in which a row begins that lie ahead of it, where the matrix begins with a word."""
        return rows * pitch % WORD

    def boxes(self, pitch: int) -> tuple[Any, Any]:
        """Of the boxes of one k-tile: the element of b at which each row begins, (BOX,ROW), and the rows' elements.

        The tile is all that b has of columns, so the last box may reach beyond the lines of eight rows.
        """
        columns, (_, blk_n, blk_k) = ROW_BYTES // ITEM, self.tile
        end = (SLICES - 1) * pitch + blk_n  # of a line
        begins = [r * pitch // WORD * WORD + at for r in range(SLICES) for at in range(0, self.frame, columns)]
        lines = np.arange(blk_k // SLICES) * SLICES * pitch
        return np.array(begins)[:, None] + lines, np.clip(end - np.array(begins), 0, columns)

    def _words_of_a(self) -> tuple[Any, Any]:
        """Of each copy by a warp: the word of a row, -1 in lanes without one, and the row."""
        row, lane = np.meshgrid(np.arange(self.tile[0]), np.arange(WARP), indexing="ij")
        return np.where(lane < self.pitch_a // WORD, lane, -1), row

    def _load_of_a(self, pitch: int) -> SectorReport:
        """Sectors of words: of a row what is ahead of it in the first, and a k-tile's elements from there on."""
        word, row = self._words_of_a()
        begins = row * pitch // WORD * WORD + word * WORD
        read = np.where(word < 0, 0, np.clip(self.tile[2] + self.ahead(row, pitch) - word * WORD, 0, WORD)) * ITEM
        report = transactions.global_memory(np.where(read > 0, begins * ITEM, -1), WORD * ITEM, what="a, cp.async")
        least = -(-read.sum(axis=-1) // transactions.SECTOR_BYTES)
        return dataclasses.replace(report, ideal=int(least.sum()), useful_bytes=int(read.sum()))

    def load_reports(self, a_pitch: int, b_pitch: int) -> tuple[SectorReport, SectorReport]:
        """Sectors of one k-tile's loads of a and of b: both begin at a sector, and b's columns are those of one tile.

        Args:
          a_pitch: elements from one row of a to the next, any number.
          b_pitch: the same of b.
        """
        begins, elements = self.boxes(b_pitch)
        return self._load_of_a(a_pitch), box_sectors(begins * ITEM, elements * ITEM, "b, TMA")

    def store_report(self) -> BankReport:
        """Wavefronts of one k-tile's copies of a where they land."""
        word, row = self._words_of_a()
        place = np.where(word >= 0, (row * self.pitch_a + word * WORD) * ITEM, -1)
        return transactions.shared_memory(place, WORD * ITEM, what="a, words")

    def read_reports(self) -> tuple[BankReport, BankReport]:
        """Wavefronts of one k-tile's reads: of a, whose rows begin with words, by element, and of b by ldmatrix."""
        by_element = make_tiled_copy_A(CopyAtom(UniversalCopy("uint16"), self.value_type), self.mma)
        by_matrix = make_tiled_copy_B(
            CopyAtom(fragment_copy_op(dtype(self.value_type), "mn"), self.value_type), self.mma
        )
        return (
            checks.bank_conflicts(self.a, by_element, side="S", what="a, by element"),
            checks.bank_conflicts(self.b, by_matrix, side="S", what=f"b, {by_matrix.atom.op.name}"),
        )

    def counts(self, a_pitch: int, b_pitch: int) -> dict[str, int]:
        """What one k-tile of a CTA costs, by the names of the emulator's counters; as in `load_reports`.

        a_pitch is a multiple of 8.
        """
        read_a, read_b = self.read_reports()
        total = collections.Counter(bank_counts("shared_load", read_a))
        total.update(matrix_counts("ldmatrix", read_b))
        load_a, load_b = self.load_reports(a_pitch, b_pitch)
        total.update(sector_counts("cp_async", load_a) | bank_counts("cp_async", self.store_report()))
        total.update(tma_counts("load", load_b))
        return dict(total)

    def _elements_of_d(self) -> tuple[Any, Any]:
        """Row and column of each element that a CTA finishes, (ACCESS,LANE)."""
        blk_m, blk_n, _ = self.tile
        return np.divmod(np.arange(blk_m * blk_n).reshape(-1, WARP), blk_n)

    def staging_reports(self, b_pitch: int) -> tuple[BankReport, BankReport]:
        """Wavefronts of a CTA's sums: written as the MMA holds them, by each warp, and read from where d begins."""
        of_warp = make_tiled_mma(self.mma.atom, Layout((1, 1, 1)), self.mma.tile_shape[:2])
        one = CopyAtom(UniversalCopy("float"), "float32")
        rows = self.sums[:2]
        write = checks.bank_conflicts(rows, vectorized(make_tiled_copy_C(one, of_warp), rows), side="D", what="sums")
        m, n = self._elements_of_d()
        pitch = self.frame + WORD
        places = [((r * self.tile[0] + m) * pitch + n + self.ahead(r, b_pitch)) * 4 for r in range(SLICES)]
        return write, transactions.shared_memory(np.concatenate(places), 4, what="sums, read as rows")

    def epilogue_counts(self, b_pitch: int) -> dict[str, int]:
        """What a CTA's epilogue costs in shared memory, by the names of the emulator's counters."""
        write, read = self.staging_reports(b_pitch)
        of_all = {name: SLICES * number for name, number in bank_counts("shared_store", write).items()}
        return of_all | bank_counts("shared_load", read)

    def epilogue_report(self, pitch: int, value_type: Any) -> SectorReport:
        """Sectors of a CTA's stores of d (M,N), row-major, whose rows are `pitch` elements apart."""
        m, n = self._elements_of_d()
        width = dtype(value_type, "epilogue_report").bits // 8
        return transactions.global_memory((m * pitch + n) * width, width, what="d")


def describe(config: Any, order: str) -> OddRowsKernelLayouts:
    """The layouts of a config."""
    if order != "NN":
        raise InvalidType("kernel_layouts", (config.name, order), f"{config.name} takes b along n, and a along k", "NN")
    blk_m, blk_n, blk_k = config.tile
    frame = blk_n + WORD
    element, _ = operand_types(config.dtype)
    mma = make_tiled_mma(mma_atom(sm80_mma_op(config)), Layout((1, 1, SLICES)), (16, 16, blk_k))
    return OddRowsKernelLayouts(
        config.name,
        config.kernel,
        order,
        config.tile,
        mma,
        Layout((blk_m, (blk_k // SLICES, SLICES)), (blk_k + WORD, (WORD, 1))),
        tile_to_shape(gmma_smem_atom("MN", "SW128", element.name), (frame, blk_k), (1, 0)),
        Layout((blk_m, frame, SLICES), (frame + WORD, 1, blk_m * (frame + WORD))),
        element.name,
        config.stages,
    )
