"""The kernels of the table as layouts: what cuda/gemm/*.cuh declares, in Python.

`kernel_layouts(config, order)` is the one place where Python describes them. From it follow threads, bytes of shared
memory, and what a k-tile costs in wavefronts and sectors; tests hold each against the compiled kernel and the emulator.

>>> import jax_moye
>>> config = next(row for row in jax_moye.configs() if row.kernel == "sm80_multistage")
>>> kernel = kernel_layouts(config, "NN")
>>> kernel.a.smem
ComposedLayout('Sw<2,3,3> o 0 o ((8,16),(32,1),(1,4)):((32,256),(1,0),(0,4096))')
>>> print(kernel.a.read_report())
a, SM75_U32x4_LDSM_N: 32 instructions, 128 wavefronts, at least 128: degree 1, no bank conflict
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from jax_moye.layout import Layout, Swizzle, checks, kernels_sm90, tile_to_shape
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, UniversalFMA, copy_op, mma_atom
from jax_moye.layout.checks import BankReport, OccupancyReport, RegisterReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels_sm90 import TmaKernelLayouts
from jax_moye.layout.tiled import (
    TiledCopy,
    TiledMma,
    make_tiled_copy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_mma,
)

ORDERS = ("NN", "NT", "TN", "TT")


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
      smem: shared memory, (BLK,BLK_K) or (BLK,BLK_K,PIPE).
      smem_array: the elements that the kernel declares for it.
      read: shared memory to the registers of the MMA.
    """

    name: str
    tile: tuple[int, int]
    major: str
    value_type: str
    load: TiledCopy
    store: TiledCopy | None
    smem: Any
    smem_array: Layout
    read: TiledCopy

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
        return checks.bank_conflicts(self.stage, self.read, side="S", what=f"{self.name}, {self.read.atom.op.name}")


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
        arrays = tuple((operand.smem_array, operand.value_type) for operand in self.operands)
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
        write = _vectorized(make_tiled_copy_C(one, self.mma), smem)
        what = f"sums, written by {write.atom.num_val_dst}"
        return (
            checks.bank_conflicts(smem, write, side="D", what=what),
            checks.bank_conflicts(smem, make_tiled_copy(wide, *self.d), side="S", what="sums, read as rows"),
        )

    def epilogue_counts(self) -> dict[str, int]:
        """What a CTA's epilogue costs in shared memory, by the names of the emulator's counters."""
        return {
            f"{name}_{what}": number
            for name, report in zip(("shared_store", "shared_load"), self.staging_reports(), strict=True)
            for what, number in (
                ("requests", report.requests),
                ("wavefronts", report.wavefronts),
                ("ideal_wavefronts", report.ideal),
            )
        }

    def counts(self, a_pitch: int, b_pitch: int) -> dict[str, int]:
        """What one k-tile of a CTA costs, by the names of the emulator's counters.

        Args:
          a_pitch: elements from one row (or k) of a to the next.
          b_pitch: the same of b.

        Full tiles at addresses aligned to a sector.
        """
        total: dict[str, int] = {}

        def add(name: str, report: BankReport | SectorReport, *, requests: bool = True) -> None:
            if isinstance(report, BankReport):
                numbers = {"wavefronts": report.wavefronts, "ideal_wavefronts": report.ideal}
            else:
                numbers = {"sectors": report.sectors, "ideal_sectors": report.ideal}
            if requests:
                total[f"{name}_requests"] = total.get(f"{name}_requests", 0) + report.requests
            for what, number in numbers.items():
                total[f"{name}_{what}"] = total.get(f"{name}_{what}", 0) + number

        for operand, pitch in zip(self.operands, (a_pitch, b_pitch), strict=True):
            add("global_load" if operand.store else "cp_async", operand.load_report(pitch))
            add("shared_store" if operand.store else "cp_async", operand.store_report(), requests=bool(operand.store))
            matrices = "ldmatrix" in operand.read.atom.op.ptx
            report = operand.read_report()
            add("ldmatrix" if matrices else "shared_load", report, requests=not matrices)
            if matrices:
                total["ldmatrix"] = total.get("ldmatrix", 0) + report.requests
        return total


# ---- cuda/gemm/operand.h -------------------------------------------------------------------------------------------


def _major(order: str, operand: str) -> str:
    """What kMajorOfA and kMajorOfB are: the kernels see b as (N,K)."""
    return "k" if order["ab".index(operand)] == {"a": "N", "b": "T"}[operand] else "mn"


def _coalesced_copy(atom: CopyAtom, major: str, threads: int, rows: int, blk_k: int, vector: int) -> TiledCopy:
    if major == "k":
        threads_k = blk_k // vector
        return make_tiled_copy(atom, Layout((threads // threads_k, threads_k), (threads_k, 1)), Layout((1, vector)))
    threads_row = rows // vector
    return make_tiled_copy(atom, Layout((threads_row, threads // threads_row)), Layout((vector, 1)))


def _vectorized(copy: TiledCopy, memory: Any) -> TiledCopy:
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


def _staged_epilogue(mma: TiledMma, blk_n: int, accumulator: str, staging: Layout | None = None) -> dict[str, Any]:
    """The fields of KernelLayouts that StagedEpilogue decides: threads take vectors of 16 bytes, row by row."""
    sums = accumulator if accumulator in ("f64", "s32") else "f32"
    vector = 128 // dtype(sums).bits
    vectors = blk_n // vector  # of one row
    return {
        "staged": sums,
        "staging": staging or Layout((mma.tile_shape[0], blk_n), (blk_n + 8, 1)),
        "d": (Layout((mma.threads // vectors, vectors), (vectors, 1)), Layout((1, vector))),
    }


# ---- What kernels on mma.sync share: cuda/gemm/sync_mma.h ----------------------------------------------------------


def _sm80_mma_op(config: Any) -> str:
    operand, accumulator = dtype(config.dtype).short, dtype(config.accumulator).short
    bits = dtype(config.dtype).bits
    arch, shape = "SM89" if operand.startswith("E") else "SM80", "8x8x4" if bits == 64 else f"16x8x{256 // bits}"
    return f"{arch}_{shape}_{accumulator}{operand}{operand}{accumulator}_TN"


def _cp_async_op(alignment: int, element: Any) -> str:
    """The widest cp.async of `alignment` bytes, or plain loads of what is too small for it."""
    return {
        16: "SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>",
        8: "SM80_CP_ASYNC_CACHEALWAYS<uint64_t>",
        4: "SM80_CP_ASYNC_CACHEALWAYS<uint32_t>",
        2: f"UniversalCopy<{element.cute if element.bits == 16 else 'uint16_t'}>",
        1: "UniversalCopy<uint8_t>",
    }[alignment]


def _padded_smem(major: str, rows: int, blk_k: int, pad_k: int, pad_mn: int) -> tuple[Layout, Layout]:
    """(BLK,BLK_K), rows or columns padded, and the array that has room for either."""
    array = Layout(max(rows * (blk_k + pad_k), (rows + pad_mn) * blk_k))
    if major == "k":
        return Layout((rows, blk_k), (blk_k + pad_k, 1)), array
    return Layout((rows, blk_k), (1, rows + pad_mn)), array


# ---- cuda/gemm/sm70_tensorop.cuh -----------------------------------------------------------------------------------


def _sm70_tensorop(config: Any, order: str) -> KernelLayouts:
    blk_m, blk_n, blk_k = config.tile
    threads, element = 128, dtype(config.dtype)
    vector = config.alignment * 8 // element.bits
    # As sm_70 calls them: T is row-major, N column-major, of a (M,K) and b (K,N).
    majors = "".join("TN"[(_major(order, name) == "k") == (name == "b")] for name in "ab")
    sums = dtype(config.accumulator).short
    quad_pairs = Layout(((2, 2), (2, 2), 1), ((1, 4), (2, 8), 0))  # 2 x 2 of a warp, 2 x 2 warps
    tiler = Layout((4, 2, 2, 2), (1, 8, 4, 16))  # (row of 4, half of the atom, atom of the warp, warp)
    mma = make_tiled_mma(f"SM70_8x8x4_{sums}F16F16{sums}_{majors}", quad_pairs, (tiler, tiler, 4))
    one = CopyAtom(UniversalCopy(element), element.name)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = _major(order, name)
        smem, array = _padded_smem(major, rows, blk_k, 8, 8)
        atom = CopyAtom(UniversalCopy(f"uint{8 * config.alignment}"), element.name)
        load = _coalesced_copy(atom, major, threads, rows, blk_k, vector)
        store = _vectorized(dataclasses.replace(load, atom=one), smem)
        read = _vectorized(make_read(one, mma), smem)
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, array, read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    pitch = blk_n + 4
    staging = Layout(((2, 2, 8), blk_n), ((2 * pitch, pitch, 4 * pitch), 1))  # (ROWS,BLK_N)
    epilogue = _staged_epilogue(mma, blk_n, config.accumulator, staging)
    return KernelLayouts(config.name, config.kernel, order, mma, a, b, smem_align=128, pair=2, **epilogue)


# ---- cuda/gemm/sm80_tensorop.cuh -----------------------------------------------------------------------------------


def _sm80_tensorop(config: Any, order: str) -> KernelLayouts:
    blk_m, blk_n, blk_k = config.tile
    threads, element = 128, dtype(config.dtype)
    vector = config.alignment * 8 // element.bits
    mma = make_tiled_mma(_sm80_mma_op(config), "(2,2,1):(1,2,4)")
    op = _cp_async_op(config.alignment, element)
    one = CopyAtom(UniversalCopy(element), element.name)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = _major(order, name)
        smem, array = _padded_smem(major, rows, blk_k, 128 // element.bits, 8)
        load = _coalesced_copy(CopyAtom(copy_op(op), element.name), major, threads, rows, blk_k, vector)
        store = None if "CP_ASYNC" in op else load
        read = _vectorized(make_read(one, mma), smem)
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, array, read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    epilogue = _staged_epilogue(mma, blk_n, config.accumulator)
    return KernelLayouts(config.name, config.kernel, order, mma, a, b, smem_align=128, pair=2, **epilogue)


# ---- cuda/gemm/sm80_ldmatrix.cuh, sm80_double_buffer.cuh, sm80_multistage.cuh, sm80_persistent.cuh, tensorop.h -----


def _swizzled_smem(element: Any, major: str, rows: int, blk_k: int, stages: int | None) -> Any:
    """(BLK,BLK_K), with stages (BLK,BLK_K,PIPE): no bank conflicts for fragments and for 16-byte cp.async."""
    size = element.bits // 8
    log2 = size.bit_length() - 1
    if major == "k" and size <= 4:  # ldmatrix: rows of 64 or 128 bytes, in pieces of 16
        atom = Swizzle(3 if blk_k * size == 128 else 2, 4 - log2, 3) @ Layout((8, blk_k), (blk_k, 1))
    elif major == "k":
        atom = Swizzle(2, 5 - log2, 2) @ Layout((4, blk_k), (blk_k, 1))
    elif size == 2:
        atom = Swizzle(3, 3, 3) @ Layout((64, 8), (1, 64))
    elif size == 1:  # a thread's four ks are neighbours, those of its warp four apart
        run = 128 if rows % 128 == 0 else 64
        atom = Swizzle(2, 4, 5 if run == 128 else 4) @ Layout((run, 16), (1, run))
    else:  # ldmatrix does not transpose 32-bit elements: plain loads
        run = 128 // size
        atom = Swizzle(2, 5 - log2, 2) @ Layout((run, 4), (1, run))
    return tile_to_shape(atom, (rows, blk_k) if stages is None else (rows, blk_k, stages))


def _fragment_copy_op(element: Any, major: str) -> Any:
    """ldmatrix, transposed for 16-bit elements alone; or element by element."""
    if major == "k" and element.bits <= 32:
        return copy_op("SM75_U32x4_LDSM_N")
    return copy_op("SM75_U16x8_LDSM_T") if major == "mn" and element.bits == 16 else UniversalCopy(element)


def _sm80_ldmatrix(config: Any, order: str) -> KernelLayouts:
    blk_m, blk_n, blk_k = config.tile
    element = dtype(config.dtype)
    vector = config.alignment * 8 // element.bits
    stages = None if config.kernel == "sm80_ldmatrix" else config.stages
    warps_m, warps_n = 4 if blk_m >= (128 if element.bits == 8 else 256) else 2, 4 if blk_n >= 256 else 2
    atom = mma_atom(_sm80_mma_op(config))
    rows, _columns, k = atom.shape_mnk
    mma = make_tiled_mma(atom, Layout((warps_m, warps_n, 1)), (rows * warps_m, rows * warps_n, k))
    op = _cp_async_op(config.alignment, element)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = _major(order, name)
        smem = _swizzled_smem(element, major, rows, blk_k, stages)
        load = _coalesced_copy(CopyAtom(copy_op(op), element.name), major, mma.threads, rows, blk_k, vector)
        store = None if "CP_ASYNC" in op else load
        read = make_read(CopyAtom(_fragment_copy_op(element, major), element.name), mma)
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, Layout(smem.cosize), read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    epilogue = _staged_epilogue(mma, blk_n, config.accumulator)
    beside = config.kernel == "sm80_persistent"
    return KernelLayouts(
        config.name, config.kernel, order, mma, a, b, smem_align=1024, pair=2, beside=beside, **epilogue
    )


# ---- cuda/gemm/simt_tiled.cuh, simt_overlap.cuh, simt_double_buffer.cuh --------------------------------------------


def _simt(config: Any, order: str) -> KernelLayouts:
    blk_m, blk_n, blk_k = config.tile
    threads, element = 256, dtype(config.dtype)
    vector, owned = config.alignment * 8 // element.bits, 128 // element.bits
    through_registers = config.kernel == "simt_tiled"
    arrangement = Layout(((4, 4), (8, 2)), ((8, 32), (1, 128)))  # 4 x 2 warps of 4 x 8 threads
    tiler = Layout((16, owned), (owned, 1))  # thread i owns owned * i + (0, owned)
    mma = make_tiled_mma(UniversalFMA(element), arrangement, (tiler, tiler, 1))
    one = CopyAtom(UniversalCopy(element), element.name)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = _major(order, name)
        smem = Layout((rows, blk_k), (1, rows + owned))  # (BLK,BLK_K)
        array = Layout((rows + owned, blk_k))
        copied = vector if through_registers or major == "mn" else 1  # cp.async transposes element by element
        if through_registers:
            atom = CopyAtom(UniversalCopy("uint128"), element.name) if config.alignment == 16 else one
        elif copied * element.bits == 128:
            atom = CopyAtom(copy_op("SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>"), element.name)
        else:
            atom = CopyAtom(copy_op(f"SM80_CP_ASYNC_CACHEALWAYS<uint{element.bits}_t>"), element.name)
        load = _coalesced_copy(atom, major, threads, rows, blk_k, copied)
        store = _vectorized(dataclasses.replace(load, atom=one), smem) if through_registers else None
        read = _vectorized(make_read(one, mma), smem)
        if config.kernel == "simt_double_buffer":
            pitch = rows + owned
            smem = Layout((rows, blk_k, config.stages), (1, pitch, pitch * blk_k))  # (BLK,BLK_K,PIPE)
            array = Layout((pitch, blk_k, config.stages))
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, array, read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    return KernelLayouts(
        config.name,
        config.kernel,
        order,
        mma,
        a,
        b,
        smem_align=16,
        pair=1,
        blocks=blk_k if config.kernel == "simt_overlap" else 2,
        d=(arrangement, Layout((owned, owned), (owned, 1))),
    )


_KERNELS: dict[str, Callable[[Any, str], KernelLayouts | TmaKernelLayouts]] = {
    "sm70_tensorop": _sm70_tensorop,
    "sm80_tensorop": _sm80_tensorop,
    "sm80_ldmatrix": _sm80_ldmatrix,
    "sm80_double_buffer": _sm80_ldmatrix,
    "sm80_multistage": _sm80_ldmatrix,
    "sm80_persistent": _sm80_ldmatrix,
    "simt_tiled": _simt,
    "simt_overlap": _simt,
    "simt_double_buffer": _simt,
    "sm90_cooperative": kernels_sm90.describe,
    "sm90_pingpong": kernels_sm90.describe,
    "sm90_split_k": kernels_sm90.describe,
}

DESCRIBED = tuple(_KERNELS)


@functools.lru_cache(256)
def kernel_layouts(config: Any, order: str = "NN") -> Any:
    """The layouts of a row of the table.

    Args:
      config: a row of `jax_moye.configs()`, or anything with its kernel, dtype, accumulator, tile, stages, cluster,
        alignment and name.
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.

    Returns:
      KernelLayouts; of a kernel that TMA feeds `kernels_sm90.TmaKernelLayouts`.

    Raises:
      InvalidType: no kernel of this name is described, there is no such order, or the kernel does not take it.
    """
    if config.kernel not in _KERNELS:
        raise InvalidType(
            "kernel_layouts", (config.kernel,), f"{config.kernel} is not described", " or ".join(_KERNELS)
        )
    if order not in ORDERS:
        raise InvalidType("kernel_layouts", (order,), f"{order!r} is no order", " or ".join(ORDERS))
    return _KERNELS[config.kernel](config, order)
