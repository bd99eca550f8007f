"""Kernels that multiply with wgmma what TMA brings in: what cuda/gemm/sm90_*.cuh and epilogue_sm90.h share, in Python.

TMA writes the operands' stages, wgmma reads them by descriptors: neither is a copy by threads. What threads move are
the sums, on their way through shared memory, and operands that are packed first.

>>> import jax_moye
>>> from jax_moye.layout.kernels import kernel_layouts
>>> config = next(row for row in jax_moye.configs() if row.kernel == "sm90_cooperative" and row.dtype == "bf16")
>>> kernel = kernel_layouts(config, "NT")
>>> kernel.a.stage[0], kernel.a.box
(ComposedLayout('Sw<3,3,3> o 0 o (8,16):(64,512)'), (64, 128))
>>> print(kernel.a.load_report(4096))
a, TMA: 1 instruction, 512 sectors of 128 lines for 16384 bytes, at least 512: 100% of what is moved is used
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from jax_moye.layout import Layout, checks, transactions
from jax_moye.layout.checks import BankReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype, operand_types
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels.counters import bank_counts, matrix_counts, sector_counts, tma_counts
from jax_moye.layout.kernels.tma import (
    K_STEPS,
    ROW_BYTES,
    ROWS,
    TmaOperandLayouts,
    box_sectors,
    rows_of_boxes,
    tma_operand,
)
from jax_moye.layout.swizzle import Swizzle
from jax_moye.layout.tiled import TiledMma, make_tiled_mma

WARPGROUP = 128  # threads
WARPS, WARP_ROWS = 4, 16  # of a warpgroup; of 64 rows of sums, those of a warp
CHUNK = 32  # columns of sums that threads store at a time
PITCH = CHUNK + 8
FINISHING_REGISTERS, FLOATS_REGISTERS = 100, 104  # of a thread, beside its sums: to finish 16 bits, and floats
SHIFTING_REGISTERS, BESIDE_A_GATE = 56, 108  # likewise
# What the Hopper kernels share of their facts.
PRODUCTS_PER_US = 3.82e6
K_TILE_US = 0.0226  # a barrier, and wgmma's pipeline that fills
STORE_US = 0.00989
ODD_STORE_US = 0.365  # threads store d


@dataclasses.dataclass(frozen=True)
class TmaKernelLayouts:
    """A Hopper kernel of the table as layouts.

    Attributes:
      name: of the row.
      kernel: the file of cuda/gemm that declares the same.
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.
      tile: (m, n) of a CTA.
      mma: the TiledMma of the warpgroups that multiply one tile: all consumers, or one of them.
      a: the first operand.
      b: the second operand.
      consumers: warpgroups that multiply; one more warpgroup loads.
      stages: slots of the shared-memory pipeline.
      barriers: mbarriers.
      boxes: of each consumer warp's staging.
      columns: of a warpgroup's sums.
      sums: the type in which threads stage them.
      vector: columns that a thread finishes together where it stores d.
      finishes: whether threads have the registers to finish sums where they are, on the way to 16-bit results.
      finishes_floats: the same, on the way to floats.
      shifts: whether they have those to store rows that are no whole words in whole sectors, as words that they shift.
      loads_ahead: whether TMA brings c or a residual to the boxes while a tile is multiplied, if it can read it.
      other_bytes: of shared memory, the kernel's own.
      passes: times that a tile goes through all of k, with another part of each operand.
    """

    name: str
    kernel: str
    order: str
    tile: tuple[int, int]
    mma: TiledMma
    a: TmaOperandLayouts
    b: TmaOperandLayouts
    consumers: int
    stages: int
    barriers: int
    boxes: int
    columns: int
    sums: str
    vector: int
    finishes: bool
    finishes_floats: bool
    shifts: bool
    loads_ahead: bool
    other_bytes: int
    passes: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def operands(self) -> tuple[TmaOperandLayouts, TmaOperandLayouts]:
        """Both."""
        return self.a, self.b

    @property
    def atoms(self) -> int:
        """Blocks of 64 rows and `columns` columns in a tile: each the sums of one wgmma."""
        return self.tile[0] // ROWS * (self.tile[1] // self.columns)

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: stages in any order, boxes for each consumer warp, barriers, and what else it has."""
        stages = tuple((Layout((rows_of_boxes(rows), ROW_BYTES, self.stages)), "uint8") for rows in self.tile)
        staging = (Layout((WARP_ROWS * ROW_BYTES, self.boxes, WARPS, self.consumers)), "uint8")
        last = (Layout(8 * self.barriers + self.other_bytes), "uint8")
        return checks.smem_bytes(*stages, staging, last, align=1024, arch=arch)

    def counts(self, a_pitch: int, b_pitch: int, *, last: bool = False) -> dict[str, int]:
        """What one k-tile of a CTA costs in all passes, by the names of the emulator's counters.

        Args:
          a_pitch: elements from one row (or k) of a to the next; no matter where a is packed.
          b_pitch: the same of b.
          last: whether the operands end with the tile, and boxes that are larger are cut.

        Full tiles at addresses aligned to a sector. What is multicast is counted where it is loaded.
        """
        m, n = self.tile if last else (None, None)
        total = tma_counts("load", self.a.load_report(a_pitch, rows=m))
        for name, number in tma_counts("load", self.b.load_report(b_pitch, rows=n)).items():
            total[name] += number
        total["tma_smem_bytes"] = self.a.stage_bytes + self.b.stage_bytes
        total["wgmma"] = self.atoms * K_STEPS * WARPGROUP // 32
        return {name: number * self.passes for name, number in total.items()}

    def pack_counts(self, m: int, n: int, k: int, a_pitch: int, b_pitch: int) -> dict[str, int]:
        """What packing costs before all that, of operands whose sizes are whole tiles of the copy."""
        total: dict[str, int] = {}
        for operand, rows, pitch in ((self.a, m, a_pitch), (self.b, n, b_pitch)):
            if operand.packing is None:
                continue
            tiles = rows // operand.packing.tile * (k // operand.packing.tile)
            for name, number in operand.packing.counts(pitch).items():
                total[name] = total.get(name, 0) + tiles * number
        return total

    # ---- From the accumulators to d

    def staging(self, value_type: Any) -> Any:
        """A box of d on its way to TMA, (16,columns), in elements of `value_type`."""
        return _box(value_type)

    def box_report(self, value_type: Any) -> BankReport:
        """Wavefronts of filling one box: by stmatrix, or where the results have 32 bits by pairs of them."""
        bits = dtype(value_type, "box_report").bits
        if bits == 16:
            return stmatrix_report(value_type, "d")
        half, j, lane = np.meshgrid(np.arange(2), np.arange(4), np.arange(32), indexing="ij")
        row = half * 8 + lane // 4
        # In odd rows the columns 16 to 31 come first.
        column = np.where(row % 2 == 1, j ^ 2, j) * 8 + lane % 4 * 2
        places = self.staging(value_type).values().reshape((WARP_ROWS, -1), order="F")[row, column] * (bits // 8)
        return transactions.shared_memory(places.reshape(-1, 32), 8, what="d, written in pairs")

    def store_report(self, pitch: int, value_type: Any, base: int = 0) -> SectorReport:
        """Sectors of a CTA's TMA stores of d (M,N), row-major, whose rows are `pitch` elements apart.

        Of columns that boxes do not divide, the last box begins early and stores some once more.
        """
        item = dtype(value_type, "store_report").bits // 8
        wide = ROW_BYTES // item
        columns = [
            first + min(at, self.columns - wide)
            for first in range(0, self.tile[1], self.columns)
            for at in range(0, self.columns, wide)
        ]
        row, column = np.meshgrid(np.arange(self.tile[0]), columns, indexing="ij")
        first = base + (row * pitch + column) * item
        first = first.reshape(-1, WARP_ROWS, len(columns)).swapaxes(1, 2).reshape(-1, WARP_ROWS)
        return box_sectors(first, np.full(len(first), ROW_BYTES), "d, TMA")

    def staging_reports(self, columns: int = CHUNK) -> tuple[BankReport, BankReport]:
        """Wavefronts of a warp's rows and `columns` of sums where threads store d: written in pairs, read as rows."""
        smem = Layout((WARP_ROWS, columns), (PITCH, 1))
        pairs = Layout(((4, 8), (2, 2, columns // 8)), ((2 * WARP_ROWS, 1), (WARP_ROWS, 8, 8 * WARP_ROWS)))
        write = checks.bank_conflicts(smem, pairs, self.sums, width=8, what="sums, written in pairs")
        item = dtype(self.sums).bits // 8
        read = transactions.shared_memory(
            self._rows(columns, PITCH, item), self.vector * item, what="sums, read as rows"
        )
        return write, read

    def _rows(self, columns: int, pitch: int, item: int, base: int = 0) -> np.ndarray:
        """The lanes' addresses of a warp's rows, vector after vector; -1 for those behind `columns` of 32."""
        vector = np.arange(WARP_ROWS * CHUNK // self.vector).reshape(-1, 32)
        row, column = vector // (CHUNK // self.vector), vector % (CHUNK // self.vector) * self.vector
        return np.where(column < columns, base + (row * pitch + column) * item, -1)

    def thread_store_report(self, pitch: int, value_type: Any, base: int = 0, columns: int = CHUNK) -> SectorReport:
        """Sectors of a warp's rows and `columns` of d, row-major, that threads store."""
        item = dtype(value_type, "thread_store_report").bits // 8
        lanes = self._rows(columns, pitch, item, base)
        return transactions.global_memory(lanes, self.vector * item, what="d, by threads")

    def stores_by_threads(self, value_type: Any, *, finished: bool) -> bool:
        """Whether threads store d although TMA could.

        Args:
          value_type: of d.
          finished: whether more is done to the sums than to convert them.
        """
        results = dtype(value_type, "stores_by_threads")
        finishes = self.finishes if results.bits == 16 else self.finishes_floats and results == dtype("float32")
        return finished and not finishes

    def epilogue_counts(self, pitch: int, value_type: Any, *, by_threads: bool = False) -> dict[str, int]:
        """What a CTA's epilogue costs, by the names of the emulator's counters.

        Args:
          pitch: elements from one row of d to the next.
          value_type: of d.
          by_threads: whether something keeps TMA from storing d; see `stores_by_threads`.
        """
        if by_threads:
            total: dict[str, int] = {}
            for at in range(0, self.columns, CHUNK):
                columns = min(CHUNK, self.columns - at)
                write, read = self.staging_reports(columns)
                counts = bank_counts("shared_store", write) | bank_counts("shared_load", read)
                counts |= sector_counts("global_store", self.thread_store_report(pitch, value_type, columns=columns))
                for name, number in counts.items():
                    total[name] = total.get(name, 0) + self.atoms * WARPS * number
            return total
        store, box = self.store_report(pitch, value_type), self.box_report(value_type)
        matrices = dtype(value_type).bits == 16
        counts = matrix_counts("stmatrix", box) if matrices else bank_counts("shared_store", box)
        return tma_counts("store", store) | {name: store.requests * number for name, number in counts.items()}


def _box(value_type: Any) -> Any:
    """A box on its way to TMA, (16,columns), in elements of `value_type`."""
    bits = dtype(value_type, "staging").bits
    box = Layout((WARP_ROWS, ROW_BYTES * 8 // bits), (ROW_BYTES * 8 // bits, 1))
    return Swizzle(3, 7 - (bits.bit_length() - 1), 3) @ box


def stmatrix_report(value_type: Any, name: str) -> BankReport:
    """Wavefronts of filling one box of 16-bit results by stmatrix; name: of the results."""
    matrices = Layout(((16, 2), (8, 4)), ((1, 8 * WARP_ROWS), (WARP_ROWS, 16 * WARP_ROWS)))
    what = f"{name}, SM90_U32x4_STSM_N"
    return checks.bank_conflicts(_box(value_type), matrices, value_type, instruction="stmatrix.x4", what=what)


def describe_wgmma(
    config: Any,
    order: str,
    *,
    multicasts: bool = True,
    barriers: int = 0,
    has_loads_ahead: bool = False,
    vector: int = 1,
    other_bytes: int = 0,
    box_rows_of_a: int = 0,
    promotes: bool = False,
    finishes_beside: int | None = None,
    held_registers: int = 0,
    gates: bool | None = None,
) -> TmaKernelLayouts:
    """The layouts of a config.

    Args:
      config: a config of such a kernel, with what the kernel says of its consumers.
      order: of the operands.
      multicasts: CTAs of a cluster share rows of the operands, and each loads a part of them for all.
      barriers: mbarriers beside the two of each stage.
      has_loads_ahead: the kernel can start loads for its epilogue in the main loop, and has an mbarrier for each warp.
      vector: columns that a thread finishes together where it stores d.
      other_bytes: of shared memory, the kernel's own.
      box_rows_of_a: of a box of a where k is contiguous; 0: all that a CTA loads.
      promotes: sums leave the tensor core for a second set of registers, as those of 8-bit floats always do.
      finishes_beside: sets of registers of sums that threads have while they finish them; None: both of those.
      held_registers: of a thread, for what else the kernel's threads have to know then.
      gates: whether it is compiled to write the cotangents of a layer with a gate, too; None: if the config takes one.
    """
    element, of_b = operand_types(config.dtype)
    promotes = promotes or (element.short in ("E4M3", "E5M2") and config.accumulator == "f32")
    sets = finishes_beside or (2 if promotes else 1)  # of sums
    registers = (160 if config.consumers == 3 else 232) - held_registers  # of a consumer thread, at least
    of_sums = sets * math.prod(config.consumer_tile) // WARPGROUP
    if config.kernel == "sm90_pingpong" and of_sums >= 128:
        registers += 8  # the producer's
    left = registers - of_sums
    gates = config.takes_gate if gates is None else gates
    blk_m, blk_n, _blk_k = config.tile
    warpgroups = blk_m // config.consumer_tile[0], blk_n // config.consumer_tile[1]  # that multiply one tile
    any_major, packs = element.bits == 16, config.alignment < 16
    if not (any_major or packs or order == "NT"):
        raise InvalidType("kernel_layouts", (config.name, order), f"{config.name} reads a and b along k alone", "NT")
    cluster_m, cluster_n = config.cluster if multicasts else (1, 1)  # CTAs that share rows of b, of a
    a = tma_operand(config, order, "a", blk_m, cluster_n, box_rows_of_a)
    b = tma_operand(config, order, "b", blk_n, cluster_m)
    columns = blk_n // warpgroups[1]
    sums = "s32" if config.accumulator == "s32" else "f32"
    majors = f"<{','.join('GMMA::Major::' + x.major.upper() for x in (a, b))}>" if any_major else "_TN"
    short = f"{sums.upper()}{element.short}{of_b.short}"
    boxes, finishes_floats = _staging_boxes(config, other_bytes), sums == "f32" and left >= FLOATS_REGISTERS
    op = f"SM90_{ROWS}x{columns}x{256 // element.bits}_{short}_SS{majors}"
    return TmaKernelLayouts(
        config.name,
        config.kernel,
        order,
        (blk_m, blk_n),
        make_tiled_mma(op, Layout((*warpgroups, 1))),
        a,
        b,
        consumers=config.consumers,
        stages=config.stages,
        barriers=2 * config.stages + barriers + (WARPS * config.consumers if has_loads_ahead else 0),
        boxes=boxes,
        columns=columns,
        sums=sums,
        vector=vector,
        finishes=left >= FINISHING_REGISTERS,
        finishes_floats=finishes_floats,
        shifts=left >= (BESIDE_A_GATE if gates or config.accumulator == "s32" else SHIFTING_REGISTERS),
        loads_ahead=has_loads_ahead and finishes_floats and boxes == max(2, _boxes_of_tile(config)),
        other_bytes=other_bytes,
        passes=1,
    )


def _staging_boxes(config: Any, other_bytes: int) -> int:
    """All that a warp's sums fill, as 16-bit results, or as many as the rest leaves shared memory for."""
    blk_m, blk_n, _blk_k = config.tile
    left = 226 * 1024 - other_bytes - (blk_m + rows_of_boxes(blk_n)) * ROW_BYTES * config.stages
    return max(2, min(_boxes_of_tile(config), left // (config.consumers * ROWS * ROW_BYTES)))


def _boxes_of_tile(config: Any) -> int:
    """That a consumer warp's sums fill, as 16-bit results."""
    return config.consumer_tile[0] // ROWS * -(-config.consumer_tile[1] // 64)
