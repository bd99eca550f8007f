"""Kernels whose threads load the operands: a tile of each by tiled copies, multiplied by a TiledMma.

What cuda/gemm/operand.h and epilogue.h declare, in Python. From a description follow threads, bytes of shared memory,
and what a k-tile costs in wavefronts and sectors.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from jax_moye.layout import Layout, checks
from jax_moye.layout.atoms import CopyAtom, UniversalCopy
from jax_moye.layout.checks import BankReport, OccupancyReport, RegisterReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.kernels.counters import bank_counts, matrix_counts, sector_counts
from jax_moye.layout.tiled import TiledCopy, TiledMma, make_tiled_copy, make_tiled_copy_C


@dataclasses.dataclass(frozen=True)
class OperandLayouts:
    """How a kernel brings in one operand.

    Attributes:
      name: "a" or "b".
      tile: (rows, k) of a CTA's tile; rows are those of d for a, and its columns for b.
      major: the contiguous mode in global memory: "k", or "mn".
      value_type: element type.
      load: global to shared memory, by cp.async; or to registers.
      store: registers to shared memory, where the loads go through registers; None with cp.async.
      smem: shared memory, (BLK,BLK_K) or (BLK,BLK_K,PIPE); None where the operand goes straight to the MMA's registers,
        and so are the next two.
      smem_array: the elements that the kernel declares for it.
      read: shared memory to the registers of the MMA.
    """

    name: str
    tile: tuple[int, int]
    major: str
    value_type: str
    load: TiledCopy
    store: TiledCopy | None = None
    smem: Any = None
    smem_array: Layout | None = None
    read: TiledCopy | None = None

    @property
    def stage(self) -> Any:
        """Shared memory of one k-tile, (BLK,BLK_K)."""
        return self.smem if self.smem.rank == 2 else self.smem[:2]

    def gmem(self, pitch: int) -> Layout:
        """The tile in global memory, where neighbouring rows (or ks) are `pitch` elements apart."""
        return Layout(self.tile, (pitch, 1) if self.major == "k" else (1, pitch))

    def load_report(self, pitch: int, base: int = 0) -> SectorReport:
        """Sectors of one k-tile's loads; base: byte address of its first element."""
        return checks.sectors(self.gmem(pitch), self.load, base=base, what=f"{self.name}, {self.load.atom.op.name}")

    def store_report(self) -> BankReport:
        """Wavefronts of one k-tile's stores to shared memory, cp.async's or plain ones."""
        copy = self.store or self.load
        return checks.bank_conflicts(self.stage, copy, side="D", what=f"{self.name}, {copy.atom.op.name}")

    def read_report(self) -> BankReport:
        """Wavefronts of one k-tile's reads of shared memory."""
        assert self.read is not None
        return checks.bank_conflicts(self.stage, self.read, side="S", what=f"{self.name}, {self.read.atom.op.name}")

    def counts(self, pitch: int) -> dict[str, int]:
        """What one k-tile costs, by the names of the emulator's counters; pitch: as in `gmem`."""
        load = self.load_report(pitch)
        if self.read is None:
            return sector_counts("global_load", load)
        read = self.read_report()
        matrices = "ldmatrix" in self.read.atom.op.ptx
        reads = matrix_counts("ldmatrix", read) if matrices else bank_counts("shared_load", read)
        if self.store:
            return sector_counts("global_load", load) | bank_counts("shared_store", self.store_report()) | reads
        return bank_counts("cp_async", self.store_report()) | sector_counts("cp_async", load) | reads


@dataclasses.dataclass(frozen=True)
class KernelLayouts:
    """A kernel of the table as layouts.

    Attributes:
      name: of the row.
      kernel: the file of cuda/gemm that declares the same.
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.
      mma: the TiledMma.
      a: the first operand.
      b: the second operand.
      smem_align: bytes that the operands' arrays are aligned to.
      pair: neighbours of a fragment of C that one store writes.
      blocks: k-blocks of fragments in registers at a time.
      d: thread and value layouts, (m,n), of the epilogue's vectors along n; None: pairs, as the MMA holds them.
      staged: the type of the sums that the epilogue stages in shared memory, in rows; None: it needs none.
      staging: where these rows lie, (ROWS,BLK_N), an atom of every warp along m at a time.
      beside: these rows lie beside the operands' stages, not in their place.
    """

    name: str
    kernel: str
    order: str
    mma: TiledMma
    a: OperandLayouts
    b: OperandLayouts
    smem_align: int
    pair: int
    blocks: int = 2
    d: tuple[Layout, Layout] | None = None
    staged: str | None = None
    staging: Layout | None = None
    beside: bool = False

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return self.mma.threads

    @property
    def operands(self) -> tuple[OperandLayouts, OperandLayouts]:
        """Both."""
        return self.a, self.b

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA."""
        arrays = tuple((x.smem_array, x.value_type) for x in self.operands if x.smem_array is not None)
        if self.staged is None or self.staging is None:
            return checks.smem_bytes(*arrays, align=self.smem_align, arch=arch)
        rows = Layout(self.staging.cosize), self.staged
        if self.beside:
            return checks.smem_bytes(*arrays, rows, align=self.smem_align, arch=arch)
        either = (checks.smem_bytes(*each, align=self.smem_align, arch=arch) for each in (arrays, (rows,)))
        return max(either, key=lambda report: report.bytes)

    def register_report(self) -> RegisterReport:
        """An estimate of registers per thread: k-blocks of fragments, and what is on its way to shared memory."""
        tile_mn = (self.a.tile[0], self.b.tile[0])
        accumulators = Layout(self.mma.partition_shape_C(tile_mn)).size
        block = self.mma.tile_shape[2] * self.blocks // 2  # the estimate counts two of them
        fragments = tuple(
            (Layout(shape((operand.tile[0], block))).size, operand.value_type)
            for operand, shape in zip(
                self.operands, (self.mma.partition_shape_A, self.mma.partition_shape_B), strict=True
            )
        )
        staging = tuple(
            (operand.tile[0] * operand.tile[1] // self.threads, operand.value_type)
            for operand in self.operands
            if operand.store
        )
        return checks.register_estimate((accumulators, self.mma.atom.dtype_C), fragments, staging)

    def occupancy_report(self, arch: Any, registers: int | None = None) -> OccupancyReport:
        """CTAs of a multiprocessor; registers: as compiled, by default the estimate."""
        registers = registers or min(255, self.register_report().total)
        return checks.occupancy(self.threads, self.smem_report().bytes, registers, arch)

    def epilogue_report(self, pitch: int, value_type: Any, base: int = 0) -> SectorReport:
        """Sectors of a CTA's stores of d (M,N), row-major, whose rows are `pitch` elements apart."""
        out = dtype(value_type, "epilogue_report")
        vector = self.d[1][1].size if self.d else self.pair
        atom = CopyAtom(UniversalCopy(f"uint{out.bits * vector}"), out.name)
        copy = make_tiled_copy(atom, *self.d) if self.d else make_tiled_copy_C(atom, self.mma)
        d = Layout((self.a.tile[0], self.b.tile[0]), (pitch, 1))
        return checks.sectors(d, copy, side="D", base=base, what=f"d, {atom.op.name}")

    def staging_reports(self) -> tuple[BankReport, BankReport]:
        """Wavefronts of the sums on their way through shared memory: written as the MMA holds them, read as rows."""
        if self.staged is None or self.staging is None or self.d is None:
            return BankReport(0, 0, 0), BankReport(0, 0, 0)
        row, column = self.staging[0], self.staging[1]
        steps = self.a.tile[0] // row.size  # every step lies where the one before it lay
        smem = Layout(((row.shape, steps), column.shape), ((row.stride, 0), column.stride))
        one = CopyAtom(UniversalCopy(dtype(self.staged)), self.staged)
        wide = CopyAtom(UniversalCopy("uint128"), self.staged)
        write = vectorized(make_tiled_copy_C(one, self.mma), smem)
        what = f"sums, written by {write.atom.num_val_dst}"
        return (
            checks.bank_conflicts(smem, write, side="D", what=what),
            checks.bank_conflicts(smem, make_tiled_copy(wide, *self.d), side="S", what="sums, read as rows"),
        )

    def epilogue_counts(self) -> dict[str, int]:
        """What a CTA's epilogue costs in shared memory, by the names of the emulator's counters."""
        write, read = self.staging_reports()
        return bank_counts("shared_store", write) | bank_counts("shared_load", read)

    def counts(self, a_pitch: int, b_pitch: int) -> dict[str, int]:
        """What one k-tile of a CTA costs, by the names of the emulator's counters.

        Args:
          a_pitch: elements from one row (or k) of a to the next.
          b_pitch: the same of b.

        Full tiles at addresses aligned to a sector.
        """
        return dict(collections.Counter(self.a.counts(a_pitch)) + collections.Counter(self.b.counts(b_pitch)))


# ---- cuda/gemm/operand.h -------------------------------------------------------------------------------------------


def major_of(order: str, operand: str) -> str:
    """What kMajorOfA and kMajorOfB are: the kernels see b as (N,K)."""
    return "k" if order["ab".index(operand)] == {"a": "N", "b": "T"}[operand] else "mn"


def coalesced_copy(atom: CopyAtom, major: str, threads: int, rows: int, blk_k: int, vector: int) -> TiledCopy:
    """A copy of (ROWS,BLK_K), `vector` elements at a time, whose neighbouring threads copy neighbours in memory."""
    if major == "k":
        threads_k = blk_k // vector
        return make_tiled_copy(atom, Layout((threads // threads_k, threads_k), (threads_k, 1)), Layout((1, vector)))
    threads_row = rows // vector
    return make_tiled_copy(atom, Layout((threads_row, threads // threads_row)), Layout((vector, 1)))


def padded_smem(major: str, rows: int, blk_k: int, pad_k: int, pad_mn: int) -> tuple[Layout, Layout]:
    """(BLK,BLK_K), rows or columns padded, and the array that has room for either."""
    array = Layout(max(rows * (blk_k + pad_k), (rows + pad_mn) * blk_k))
    if major == "k":
        return Layout((rows, blk_k), (blk_k + pad_k, 1)), array
    return Layout((rows, blk_k), (1, rows + pad_mn)), array


def vectorized(copy: TiledCopy, memory: Any) -> TiledCopy:
    """The same copy with the widest access whose values are neighbours in memory, as `copy(src, dst)` finds it."""
    for width in (16, 8, 4, 2):
        bits = dtype(copy.atom.value_type).bits
        if 8 * width < bits or copy.values % (8 * width // bits):
            continue
        wider = dataclasses.replace(copy, atom=CopyAtom(UniversalCopy(f"uint{8 * width}"), copy.atom.value_type))
        if checks.alignment(memory, wider).ok:
            return wider
    return copy


# ---- cuda/gemm/epilogue.h ------------------------------------------------------------------------------------------


def staged_epilogue(mma: TiledMma, blk_n: int, accumulator: str, staging: Layout | None = None) -> dict[str, Any]:
    """The fields of KernelLayouts that StagedEpilogue decides: threads take vectors of 16 bytes, row by row."""
    sums = accumulator if accumulator in ("f64", "s32") else "f32"
    vector = 128 // dtype(sums).bits
    vectors = blk_n // vector  # of one row
    return {
        "staged": sums,
        "staging": staging or Layout((mma.tile_shape[0], blk_n), (blk_n + 8, 1)),
        "d": (Layout((mma.threads // vectors, vectors), (vectors, 1)), Layout((1, vector))),
    }
