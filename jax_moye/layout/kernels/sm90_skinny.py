"""What is known of sm90_skinny."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jax_moye.layout import Layout, Swizzle, checks, transactions
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, UniversalFMA
from jax_moye.layout.checks import BankReport, SmemReport
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.kernels.counters import bank_counts, sector_counts
from jax_moye.layout.kernels.facts import KernelFacts
from jax_moye.layout.kernels.operands import KernelLayouts, OperandLayouts, major_of
from jax_moye.layout.tiled import TiledCopy, make_tiled_copy_A, make_tiled_mma

FACTS = KernelFacts(  # nobody has measured its speed
    instruction="fma",
    page=26,
    idea="one to four rows, and a matrix that is read once",
    sums_by_call=True,
    symmetric=False,
)

THREADS, WARP = 256, 32
SWIZZLE = Swizzle(1, 2, 3)  # of the sums in shared memory
_VECTOR = 4  # sums that a thread stores


@dataclasses.dataclass(frozen=True, kw_only=True)
class SkinnyLayouts(KernelLayouts):
    """sm90_skinny as layouts: each thread copies what it multiplies, and threads share the sums of a column.

    Attributes:
      stages: k-tiles of b in shared memory.
      arrangement: threads along n and k.
      owned: neighbours along n and k that a thread has.
      along_n: whether threads that are neighbours are so along n; else along k.
    """

    stages: int
    arrangement: tuple[int, int]
    owned: tuple[int, int]
    along_n: bool

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return THREADS

    @property
    def tile(self) -> tuple[int, int]:
        """Elements of d."""
        return self.a.tile[0], self.b.tile[0]

    @property
    def summands(self) -> int:
        """Warps whose sums of a column are added up."""
        return THREADS // WARP if self.along_n else 1

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: stages of b, and the sums of each warp, whatever the order."""
        stages = Layout(self.tile[1] * self.b.tile[1] * self.stages)
        sums = Layout(self.tile[0] * self.tile[1] * THREADS // WARP)
        return checks.smem_bytes((stages, self.b.value_type), (sums, "f32"), align=16, arch=arch)

    def own_report(self) -> BankReport:
        """Wavefronts of a k-tile of b in shared memory, written or read: neighbouring threads have neighbours there."""
        item = dtype(self.b.value_type).bits // 8
        words = np.arange(self.tile[1] * self.b.tile[1] * item // 16).reshape(-1, WARP)
        return transactions.shared_memory(words * 16, 16, what="b, in threads' own places")

    def counts(self, a_pitch: int, b_pitch: int) -> dict[str, int]:
        """What one k-tile of a CTA costs, by the names of the emulator's counters; the arguments are KernelLayouts'."""
        copies = bank_counts("cp_async", self.own_report()) | sector_counts("cp_async", self.b.load_report(b_pitch))
        return copies | bank_counts("shared_load", self.own_report()) | self.a.counts(a_pitch)

    def staging_reports(self) -> tuple[BankReport, BankReport]:
        """Wavefronts of the sums on their way through shared memory: the first lanes write, threads read rows."""
        m, n = self.tile
        threads = np.arange(THREADS).reshape(-1, 1, 1, WARP)
        rows, parts = np.arange(m)[:, None, None], np.arange(0, self.owned[0], _VECTOR)[:, None]
        if self.along_n:
            summand, column, first = (
                threads // WARP,
                threads % WARP * self.owned[0],
                threads % WARP < self.arrangement[0],
            )
        else:
            summand, column, first = (
                0,
                threads // self.arrangement[1] * self.owned[0],
                threads % self.arrangement[1] == 0,
            )
        write = np.where(first, SWIZZLE((summand * m + rows) * n + column + parts) * 4, -1)
        lanes = np.arange(-(-m * n // _VECTOR // WARP) * WARP).reshape(-1, WARP) * _VECTOR
        read = np.where(lanes < m * n, SWIZZLE(np.arange(self.summands)[:, None, None] * m * n + lanes) * 4, -1)
        return (
            transactions.shared_memory(write.reshape(-1, WARP), 4 * _VECTOR, what="sums, written by warps"),
            transactions.shared_memory(read.reshape(-1, WARP), 4 * _VECTOR, what="sums, read as rows"),
        )

    def epilogue_counts(self) -> dict[str, int]:
        """What the sums of a CTA cost in shared memory, by the names of the emulator's counters; k is not split."""
        write, read = self.staging_reports()
        return bank_counts("shared_store", write) | bank_counts("shared_load", read)


def describe(config: Any, order: str) -> SkinnyLayouts:
    """The layouts of a config: threads lie along the contiguous mode of b, with vectors of it."""
    blk_m, blk_n, blk_k = config.tile
    element = dtype(config.dtype)
    vector, along_n = 128 // element.bits, major_of(order, "b") == "mn"
    along = (blk_n if along_n else blk_k) // vector
    threads_n, threads_k = (along, THREADS // along) if along_n else (THREADS // along, along)
    owned_n, owned_k = blk_n // threads_n, blk_k // threads_k
    step_n, step_k = (1, along) if along_n else (along, 1)
    tiler_n, tiler_k = Layout((threads_n, owned_n), (owned_n, 1)), Layout((threads_k, owned_k), (owned_k, 1))
    mma = make_tiled_mma(
        UniversalFMA("f32"), Layout((1, threads_n, threads_k), (0, step_n, step_k)), (1, tiler_n, tiler_k)
    )

    def load(elements: int, rows: int, owned_rows: int, step_rows: int, major: str) -> TiledCopy:
        """Threads' vectors of (rows, BLK_K): where `owned_rows` are all rows, threads along n read the same."""
        atom = CopyAtom(UniversalCopy(f"uint{element.bits * elements}"), element.name)
        by_n = (threads_n, step_rows), (threads_k, owned_k * rows)
        threads = by_n if along_n else by_n[::-1]
        values = ((owned_rows, 1), (owned_k, rows)) if major == "mn" else ((owned_k, rows), (owned_rows, 1))
        (t0, s0), (t1, s1) = threads
        (v0, r0), (v1, r1) = values
        return TiledCopy(atom, Layout(((t0, t1), (v0, v1)), ((s0, s1), (r0, r1))), (rows, blk_k))

    a_major = major_of(order, "a")
    if a_major == "k":
        load_a = load(min(vector, owned_k), blk_m, blk_m, 0, a_major)
    else:  # elements, since columns of a begin anywhere
        load_a = make_tiled_copy_A(CopyAtom(UniversalCopy(element), element.name), mma)
    load_b = load(vector, blk_n, owned_n, owned_n, major_of(order, "b"))
    a = OperandLayouts("a", (blk_m, blk_k), a_major, element.name, load_a)
    b = OperandLayouts("b", (blk_n, blk_k), major_of(order, "b"), element.name, load_b)
    d = Layout((blk_m, blk_n // _VECTOR), (blk_n // _VECTOR, 1)), Layout((1, _VECTOR))
    return SkinnyLayouts(
        config.name,
        config.kernel,
        order,
        mma,
        a,
        b,
        smem_align=16,
        pair=1,
        d=d,
        stages=config.stages,
        arrangement=(threads_n, threads_k),
        owned=(owned_n, owned_k),
        along_n=along_n,
    )
