"""Operands that TMA brings in: what cuda/gemm/tma_operand.h declares, in Python."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jax_moye.layout import gmma_smem_atom, tile_to_shape, transactions
from jax_moye.layout.checks import SectorReport
from jax_moye.layout.dtypes import dtype, operand_types
from jax_moye.layout.gmma import GmmaDescriptor, make_gmma_desc
from jax_moye.layout.kernels.pack import PackLayouts
from jax_moye.layout.swizzle import Swizzle

ROW_BYTES = 128  # of a swizzled row, in every box
K_STEPS = 4  # wgmmas along k of one stage
ROWS = 64  # of one wgmma


@dataclasses.dataclass(frozen=True)
class TmaOperandLayouts:
    """How TMA brings in one operand.

    Attributes:
      name: "a" or "b".
      tile: (rows, k) of a stage: those of a CTA's tile, those of whole boxes where rows are contiguous. Rows are those
        of d for a, and its columns for b.
      major: the contiguous mode in global memory, of the packed copy where the operand is packed: "k", or "mn".
      value_type: element type.
      smem: shared memory, (ROWS,BLK_K,PIPE).
      sharers: CTAs of the cluster that need the same stage: each loads a part and multicasts it to all.
      packing: how the operand is copied first, because of its order; None: it is read in place.
      box_rows: of a box where k is contiguous; 0: all that a CTA loads.
    """

    name: str
    tile: tuple[int, int]
    major: str
    value_type: str
    smem: Any
    sharers: int
    packing: PackLayouts | None
    box_rows: int = 0

    @property
    def stage(self) -> Any:
        """Shared memory of one k-tile, (ROWS,BLK_K)."""
        return self.smem[:2]

    @property
    def item_bytes(self) -> int:
        """Of an element."""
        return dtype(self.value_type).bits // 8

    @property
    def stage_bytes(self) -> int:
        """That a stage's full barrier expects of this operand."""
        return self.tile[0] * self.tile[1] * self.item_bytes

    @property
    def box(self) -> tuple[int, int]:
        """Elements of a box: along the contiguous mode, and along the other."""
        other = self.tile[0 if self.major == "k" else 1] // self.sharers
        return ROW_BYTES // self.item_bytes, self.box_rows or other

    def boxes(self, part: int = 0) -> list[tuple[int, tuple[int, int]]]:
        """The boxes that a CTA loads of a stage: byte in the stage, and (row, k) in the tile where each begins."""
        contiguous, other = self.box
        at = part * other * ROW_BYTES
        if self.major == "k":
            count = self.tile[0] // (other * self.sharers)
            return [(at + i * other * ROW_BYTES, ((part + i) * other, 0)) for i in range(count)]
        column_bytes = self.tile[1] * ROW_BYTES  # of a box
        return [(i * column_bytes + at, (i * contiguous, part * other)) for i in range(self.tile[0] // contiguous)]

    def placed(self) -> np.ndarray:
        """The byte of a stage to which TMA writes each element (row, k), all parts together; -1: to none."""
        place = np.full(self.tile, -1, np.int64)
        contiguous, other = self.box
        swizzle = Swizzle(3, 4, 3)  # of bytes
        for part in range(self.sharers):
            for at, (row, k) in self.boxes(part):
                for i in range(other):
                    for j in range(contiguous):
                        where = (row + i, k + j) if self.major == "k" else (row + j, k + i)
                        place[where] = swizzle(at + i * ROW_BYTES + j * self.item_bytes)
        return place

    def descriptors(self, address: int = 0) -> list[GmmaDescriptor]:
        """Of a stage at `address`: what the first wgmma along the rows reads, one for each step along k."""
        major = {"k": "K", "mn": "MN"}[self.major]
        return [make_gmma_desc(self.stage, major, self.value_type, k=k, address=address) for k in range(K_STEPS)]

    def load_report(self, pitch: int, base: int = 0, rows: int | None = None) -> SectorReport:
        """Sectors of the boxes that one CTA loads of a k-tile, each row of a box by itself.

        Args:
          pitch: elements from one row (or k) to the next.
          base: byte address of the tile's first element.
          rows: of the operand from the tile's first on, all those of the tile or more; None: enough for all boxes.
        """
        if self.packing:
            pitch = ROW_BYTES // self.item_bytes  # or any other number of whole sectors
        place, row_bytes = [], []
        for _, (row, k) in self.boxes():
            first, across = (k, row) if self.major == "mn" else (row, k)
            place.append(base + ((first + np.arange(self.box[1])) * pitch + across) * self.item_bytes)
            left = ROW_BYTES if rows is None or self.major != "mn" else (rows - row) * self.item_bytes
            row_bytes.append(min(ROW_BYTES, left))
        return box_sectors(np.array(place), np.array(row_bytes), f"{self.name}, TMA")


def box_sectors(first: np.ndarray, row_bytes: np.ndarray, what: str) -> SectorReport:
    """Of the rows' first bytes, (box, row), and the bytes of a row of each box."""

    def touched(unit: int) -> int:
        return int(((first + row_bytes[:, None] - 1) // unit - first // unit + 1).sum())

    of_box = row_bytes * first.shape[1]
    ideal = int((-(-of_box // transactions.SECTOR_BYTES)).sum())
    sectors, lines = touched(transactions.SECTOR_BYTES), touched(transactions.LINE_BYTES)
    return SectorReport(len(first), sectors, ideal, lines, int(of_box.sum()), what)


def tma_operand(
    config: Any,
    order: str,
    name: str,
    rows: int,
    sharers: int = 1,
    box_rows: int = 0,
    any_major: bool | None = None,
) -> TmaOperandLayouts:
    """An operand of a config.

    Args:
      config: a config of a kernel that TMA feeds.
      order: of the operands.
      name: "a" or "b".
      rows: of a CTA's tile, those of d for a, and its columns for b.
      sharers: CTAs of the cluster that need the same rows.
      box_rows: of a box where k is contiguous; 0: all that a CTA loads.
      any_major: it is loaded as it lies, whatever its order; None: if wgmma can read it so, which has 16 bits then.
    """
    element = operand_types(config.dtype)["ab".index(name)]
    any_major = element.bits == 16 if any_major is None else any_major
    along_k = order["ab".index(name)] == {"a": "N", "b": "T"}[name]
    major = "k" if along_k or not any_major else "mn"
    atom = gmma_smem_atom("K" if major == "k" else "MN", "SW128", element.name)
    rows = rows if major == "k" else rows_of_boxes(rows, ROW_BYTES * 8 // element.bits)
    smem = tile_to_shape(atom, (rows, config.tile[2], config.stages), (0, 1, 2) if major == "k" else (1, 0, 2))
    packing = None if along_k or any_major else PackLayouts(element.bits // 8, along_k=False)
    box_rows = box_rows if major == "k" else 0
    return TmaOperandLayouts(name, (rows, config.tile[2]), major, element.name, smem, sharers, packing, box_rows)


def rows_of_boxes(rows: int, of_box: int = ROWS) -> int:
    """Rows of the boxes that hold so many rows; of_box: of one, by default of 16 bits."""
    return -(-rows // of_box) * of_box
