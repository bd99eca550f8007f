"""The Hopper kernels of the table as layouts: what cuda/gemm/sm90_*.cuh and the headers they share declare, in Python.

TMA writes the operands' stages, wgmma reads them by descriptors: neither is a copy by threads. What threads move are
the sums, on their way through shared memory, and operands that are packed first. `kernels.kernel_layouts` returns these
descriptions for the rows of such kernels.

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
import functools
from typing import Any

import numpy as np

from jax_moye.layout import Layout, checks, gmma_smem_atom, tile_to_shape, transactions
from jax_moye.layout.checks import BankReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.gmma import GmmaDescriptor, make_gmma_desc
from jax_moye.layout.swizzle import Swizzle
from jax_moye.layout.tiled import TiledMma, make_tiled_mma

WARPGROUP = 128  # threads
ROW_BYTES = 128  # of a swizzled row, in every box
K_STEPS = 4  # wgmmas along k of one stage
ROWS = 64  # of one wgmma
CHUNK = 32  # columns of sums that threads store at a time
PITCH = CHUNK + 8


# ---- cuda/gemm/tma_operand.h ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class TmaOperandLayouts:
    """How TMA brings in one operand.

    Attributes:
      name: "a" or "b".
      tile: (rows, k) of a stage: those of a CTA's tile, a multiple of 64 rows where these are contiguous. Rows are
        those of d for a, and its columns for b.
      major: the contiguous mode in global memory, of the packed copy where the operand is packed: "k", or "mn".
      value_type: element type.
      smem: shared memory, (ROWS,BLK_K,PIPE).
      sharers: CTAs of the cluster that need the same stage: each loads a part and multicasts it to all.
      packing: how the operand is copied first, because of its order; None: it is read in place.
    """

    name: str
    tile: tuple[int, int]
    major: str
    value_type: str
    smem: Any
    sharers: int
    packing: PackLayouts | None

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
        return ROW_BYTES // self.item_bytes, self.tile[0 if self.major == "k" else 1] // self.sharers

    def boxes(self, part: int = 0) -> list[tuple[int, tuple[int, int]]]:
        """The boxes that a CTA loads of a stage: byte in the stage, and (row, k) in the tile where each begins."""
        contiguous, other = self.box
        at = part * other * ROW_BYTES
        if self.major == "k":
            return [(at, (part * other, 0))]
        column_bytes = self.tile[1] * ROW_BYTES  # of 64 rows
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
        return _boxes(np.array(place), np.array(row_bytes), f"{self.name}, TMA")


def _boxes(first: np.ndarray, row_bytes: np.ndarray, what: str) -> SectorReport:
    """Of the rows' first bytes, (box, row), and the bytes of a row of each box."""

    def touched(unit: int) -> int:
        return int(((first + row_bytes[:, None] - 1) // unit - first // unit + 1).sum())

    of_box = row_bytes * first.shape[1]
    ideal = int((-(-of_box // transactions.SECTOR_BYTES)).sum())
    sectors, lines = touched(transactions.SECTOR_BYTES), touched(transactions.LINE_BYTES)
    return SectorReport(len(first), sectors, ideal, lines, int(of_box.sum()), what)


# ---- cuda/gemm/pack.h ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class PackLayouts:
    """How 256 threads copy a tile of an operand, 128 bytes along k and as many rows as these have elements, K-major.

    Of operands that are read in words: their pitch is a multiple of 4 bytes. The tile is whole.

    Attributes:
      item_bytes: of an element.
      along_k: lanes read along k; else along the rows.
    """

    item_bytes: int
    along_k: bool

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
        """Sectors written, of whole rows of 128 bytes at addresses that are multiples of a sector."""
        thread = np.arange(self.tile * 8)
        addresses = (thread // 8 * ROW_BYTES * 2 + thread % 8 * 16).reshape(-1, 32)
        return transactions.global_memory(addresses, 16, what="packing, stored")

    def counts(self, pitch: int) -> dict[str, int]:
        """What a tile costs, by the names of the emulator's counters."""
        written, turned = self.turn_reports()
        return {
            **_sector_counts("global_load", self.load_report(pitch)),
            **_bank_counts("shared_store", written),
            **_bank_counts("shared_load", turned),
            **_sector_counts("global_store", self.store_report()),
        }


def _rows_of_boxes(rows: int) -> int:
    return -(-rows // ROWS) * ROWS


def _bank_counts(name: str, report: BankReport) -> dict[str, int]:
    return {
        f"{name}_requests": report.requests,
        f"{name}_wavefronts": report.wavefronts,
        f"{name}_ideal_wavefronts": report.ideal,
    }


def _sector_counts(name: str, report: SectorReport) -> dict[str, int]:
    return {
        f"{name}_requests": report.requests,
        f"{name}_sectors": report.sectors,
        f"{name}_ideal_sectors": report.ideal,
    }


def _tma_counts(name: str, report: SectorReport) -> dict[str, int]:
    return {
        f"tma_{name}s": report.requests,
        f"tma_{name}_bytes": report.useful_bytes,
        f"tma_{name}_sectors": report.sectors,
        f"tma_{name}_ideal_sectors": report.ideal,
    }


# ---- cuda/gemm/sm90_cooperative.cuh, sm90_pingpong.cuh, epilogue_sm90.h --------------------------------------------


@dataclasses.dataclass(frozen=True)
class TmaKernelLayouts:
    """A Hopper kernel of the table as layouts.

    Attributes:
      name: of the row.
      kernel: the file of cuda/gemm that declares the same.
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.
      tile: (m, n) of a CTA.
      mma: the TiledMma of the warpgroups that multiply one tile: all consumers, or one of them (sm90_pingpong).
      a: the first operand.
      b: the second operand.
      consumers: warpgroups that multiply; one more warpgroup loads.
      stages: slots of the shared-memory pipeline.
      barriers: mbarriers.
      columns: of a warpgroup's sums.
      sums: the type in which threads stage them.
      vector: columns that a thread finishes together.
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
    columns: int
    sums: str
    vector: int

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
        """Shared memory of a CTA: stages in any order, a staging of two boxes for each consumer, barriers."""
        stages = tuple((Layout((_rows_of_boxes(rows), ROW_BYTES, self.stages)), "uint8") for rows in self.tile)
        staging = (Layout((2 * ROWS * ROW_BYTES, self.consumers)), "uint8")
        return checks.smem_bytes(*stages, staging, (Layout(self.barriers), "uint64"), align=1024, arch=arch)

    def counts(self, a_pitch: int, b_pitch: int, *, last: bool = False) -> dict[str, int]:
        """What one k-tile of a CTA costs, by the names of the emulator's counters.

        Args:
          a_pitch: elements from one row (or k) of a to the next; no matter where a is packed.
          b_pitch: the same of b.
          last: whether the operands end with the tile, and boxes that are larger are cut.

        Full tiles at addresses aligned to a sector. What is multicast is counted where it is loaded.
        """
        m, n = self.tile if last else (None, None)
        total = _tma_counts("load", self.a.load_report(a_pitch, rows=m))
        for name, number in _tma_counts("load", self.b.load_report(b_pitch, rows=n)).items():
            total[name] += number
        total["tma_smem_bytes"] = self.a.stage_bytes + self.b.stage_bytes
        total["wgmma"] = self.atoms * K_STEPS * WARPGROUP // 32
        return total

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
        """A box of d on its way to TMA, (64,columns), in elements of `value_type`."""
        bits = dtype(value_type, "staging").bits
        box = Layout((ROWS, ROW_BYTES * 8 // bits), (ROW_BYTES * 8 // bits, 1))
        return Swizzle(3, 7 - (bits.bit_length() - 1), 3) @ box

    def box_report(self, value_type: Any) -> BankReport:
        """Wavefronts of filling one box: by stmatrix, or where the results have 32 bits by pairs of them."""
        bits = dtype(value_type, "box_report").bits
        if bits == 16:
            matrices = Layout(((16, 2, 4), (8, 4)), ((1, 8 * ROWS, 16), (ROWS, 16 * ROWS)))
            what = "d, SM90_U32x4_STSM_N"
            smem = self.staging(value_type)
            return checks.bank_conflicts(smem, matrices, value_type, instruction="stmatrix.x4", what=what)
        half, j, thread = np.meshgrid(np.arange(2), np.arange(4), np.arange(WARPGROUP), indexing="ij")
        row = thread // 32 * 16 + half * 8 + thread % 32 // 4
        # In odd rows the columns 16 to 31 come first.
        column = np.where(row % 2 == 1, j ^ 2, j) * 8 + thread % 4 * 2
        places = self.staging(value_type).values().reshape((ROWS, -1), order="F")[row, column] * (bits // 8)
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
        first = (base + (row * pitch + column) * item).reshape(-1, ROWS, len(columns)).swapaxes(1, 2).reshape(-1, ROWS)
        return _boxes(first, np.full(len(first), ROW_BYTES), "d, TMA")

    def staging_reports(self, columns: int = CHUNK) -> tuple[BankReport, BankReport]:
        """Wavefronts of 64 rows and `columns` of sums where threads store d: written in pairs, read as rows."""
        smem = Layout((ROWS, columns), (PITCH, 1))
        pairs = Layout(((4, 8, 4), (2, 2, columns // 8)), ((2 * ROWS, 1, 16), (ROWS, 8, 8 * ROWS)))
        write = checks.bank_conflicts(smem, pairs, self.sums, width=8, what="sums, written in pairs")
        item = dtype(self.sums).bits // 8
        read = transactions.shared_memory(
            self._rows(columns, PITCH, item), self.vector * item, what="sums, read as rows"
        )
        return write, read

    def _rows(self, columns: int, pitch: int, item: int, base: int = 0) -> np.ndarray:
        """The lanes' addresses of 64 rows, vector after vector; -1 for those behind `columns` of 32."""
        vector = np.arange(ROWS * CHUNK // self.vector).reshape(-1, 32)
        row, column = vector // (CHUNK // self.vector), vector % (CHUNK // self.vector) * self.vector
        return np.where(column < columns, base + (row * pitch + column) * item, -1)

    def thread_store_report(self, pitch: int, value_type: Any, base: int = 0, columns: int = CHUNK) -> SectorReport:
        """Sectors of 64 rows and `columns` of d, row-major, that threads store."""
        item = dtype(value_type, "thread_store_report").bits // 8
        lanes = self._rows(columns, pitch, item, base)
        return transactions.global_memory(lanes, self.vector * item, what="d, by threads")

    def epilogue_counts(self, pitch: int, value_type: Any, *, by_threads: bool = False) -> dict[str, int]:
        """What a CTA's epilogue costs, by the names of the emulator's counters.

        Args:
          pitch: elements from one row of d to the next.
          value_type: of d.
          by_threads: whether something keeps TMA from storing d, or the sums are not only rounded.
        """
        if by_threads:
            total: dict[str, int] = {}
            for at in range(0, self.columns, CHUNK):
                columns = min(CHUNK, self.columns - at)
                write, read = self.staging_reports(columns)
                counts = _bank_counts("shared_store", write) | _bank_counts("shared_load", read)
                counts |= _sector_counts("global_store", self.thread_store_report(pitch, value_type, columns=columns))
                for name, number in counts.items():
                    total[name] = total.get(name, 0) + self.atoms * number
            return total
        store, box = self.store_report(pitch, value_type), self.box_report(value_type)
        filled = {name: store.requests * number for name, number in _bank_counts("shared_store", box).items()}
        if dtype(value_type).bits == 16:
            filled = {
                "stmatrix": store.requests * box.requests,
                "stmatrix_wavefronts": store.requests * box.wavefronts,
                "stmatrix_ideal_wavefronts": store.requests * box.ideal,
            }
        return _tma_counts("store", store) | filled


# ---- cuda/gemm/sm90_split_k.cuh -------------------------------------------------------------------------------------


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
        """The lanes' addresses of a CTA's share of the tile, vector after vector."""
        vectors = self.tile[1] // self.vector  # of a row
        vector = np.arange(self.tile[0] * vectors // self.parts).reshape(-1, 32)
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
        loads = {name: self.parts * number for name, number in _bank_counts("shared_load", read).items()}
        stores = _sector_counts("global_store", self.thread_store_report(pitch, value_type))
        return _bank_counts("shared_store", write) | loads | stores


def describe(config: Any, order: str) -> TmaKernelLayouts:
    """The layouts of a row of a Hopper kernel; see `kernels.kernel_layouts`."""
    blk_m, blk_n, blk_k = config.tile
    split = config.kernel == "sm90_split_k"
    cluster_m, cluster_n = (1, 1) if split else config.cluster  # CTAs that share rows of b, of a
    element = dtype(config.dtype)
    any_major, packs = element.bits == 16, config.alignment < 16
    if not (any_major or packs or order == "NT"):
        raise InvalidType("kernel_layouts", (config.name, order), f"{config.name} reads a and b along k alone", "NT")
    pingpong = config.kernel == "sm90_pingpong"
    # Consumers side by side along m, 64 rows each; those that share 64 rows along n.
    warpgroups = (1, 1) if pingpong else (1, 2) if blk_m == ROWS else (3 if blk_m % 192 == 0 else 2, 1)
    if split:
        warpgroups = (blk_m // ROWS, 1)
    consumers = 2 if pingpong else warpgroups[0] * warpgroups[1]
    columns = blk_n // warpgroups[1]

    def operand(name: str, rows: int, sharers: int) -> TmaOperandLayouts:
        along_k = order["ab".index(name)] == {"a": "N", "b": "T"}[name]
        major = "k" if along_k or not any_major else "mn"
        atom = gmma_smem_atom("K" if major == "k" else "MN", "SW128", element.name)
        rows = rows if major == "k" else _rows_of_boxes(rows)
        smem = tile_to_shape(atom, (rows, blk_k, config.stages), (0, 1, 2) if major == "k" else (1, 0, 2))
        packing = None if along_k or any_major else PackLayouts(element.bits // 8, along_k=False)
        return TmaOperandLayouts(name, (rows, blk_k), major, element.name, smem, sharers, packing)

    a, b = operand("a", blk_m, cluster_n), operand("b", blk_n, cluster_m)
    sums = "s32" if config.accumulator == "s32" else "f32"
    majors = "_TN"
    if any_major:
        majors = f"<{','.join('GMMA::Major::' + x.major.upper() for x in (a, b))}>"
    short = f"{sums.upper()}{element.short}{element.short}"
    op = f"SM90_{ROWS}x{columns}x{256 // element.bits}_{short}_SS{majors}"
    kind = functools.partial(SplitKLayouts, parts=config.cluster[1]) if split else TmaKernelLayouts
    return kind(
        config.name,
        config.kernel,
        order,
        (blk_m, blk_n),
        make_tiled_mma(op, Layout((*warpgroups, 1))),
        a,
        b,
        consumers,
        config.stages,
        barriers=2 * config.stages + (2 if pingpong else 0),
        columns=columns,
        sums=sums,
        vector=1 if pingpong and blk_m * blk_n // WARPGROUP > 176 else 4,
    )
