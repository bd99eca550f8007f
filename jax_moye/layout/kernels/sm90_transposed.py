"""What is known of sm90_transposed."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

from jax_moye.layout import CopyAtom, Layout, UniversalCopy, checks, make_layout, make_tiled_copy_A, make_tiled_mma
from jax_moye.layout.checks import BankReport, SectorReport, SmemReport
from jax_moye.layout.dtypes import dtype, operand_types
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels.counters import bank_counts, sector_counts, tma_counts
from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import vectorized
from jax_moye.layout.kernels.tma import K_STEPS, ROW_BYTES, TmaOperandLayouts, tma_operand
from jax_moye.layout.kernels.wgmma import PRODUCTS_PER_US, WARPGROUP
from jax_moye.layout.tiled import TiledCopy, TiledMma

FACTS = KernelFacts(
    instruction="wgmma, transposed",  # that it sums as sm90_cooperative does no GPU has shown
    page=26,
    idea="32-bit operands that do not lie along k",
    speed=Speed(
        products_per_us=PRODUCTS_PER_US,
        # Of both orders together: TN takes a fifth more than NN, as warps turn a first.
        by_tile={(64, 128, (1, 1)): 1.56, (128, 128, (1, 1)): 1.34, (256, 128, (1, 1)): 1.09},
        needs_by_tile=True,
        copy_us=0.0,
        k_tile_us=0.0557,  # two warpgroups that load registers in turn
        store_us=0.0148,  # nothing hides it
        launch_us=0.17,
    ),
)

# Where row i of D^T lies among the columns of d: a lane's two rows, 8 apart, are neighbours there.
COLUMNS = Layout((2,) * 7, (16, 2, 4, 1, 8, 32, 64))
VECTOR = 2  # neighbours along n of a lane, which loads and stores them together
TURNED_ROWS = 128  # of a tile at most, beside whose sums warps have registers to turn a


@dataclasses.dataclass(frozen=True)
class TransposedKernelLayouts:
    """sm90_transposed as layouts. It computes the transpose: rows of a fragment are columns of d.

    Attributes:
      name: of the row.
      kernel: the file of cuda/gemm that declares the same.
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.
      tile: (m, n) of a CTA.
      mma: the TiledMma of all consumers; its first operand is b, (N,K), in registers, the second is a, (M,K).
      a: the first operand of the product, as TMA brings it in.
      turned: its stages as wgmma reads them, along k: those of `a`, or what warps make of them in their place.
      b: the second operand of the product.
      consumers: warpgroups that multiply; one more warpgroup loads, and turns a.
      stages: slots of the shared-memory pipeline.
    """

    name: str
    kernel: str
    order: str
    tile: tuple[int, int]
    mma: TiledMma
    a: TmaOperandLayouts
    turned: TmaOperandLayouts
    b: TmaOperandLayouts
    consumers: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def operands(self) -> tuple[TmaOperandLayouts, TmaOperandLayouts]:
        """Both, as TMA brings them in."""
        return self.a, self.b

    @property
    def turns(self) -> bool:
        """Whether warps turn the stages of a."""
        return self.a.major == "mn"

    @property
    def read(self) -> TiledCopy:
        """Shared memory to registers, of b: what a lane has of neighbours along n at a time."""
        one = CopyAtom(UniversalCopy(f"uint{8 * self.b.item_bytes}"), self.b.value_type)
        return vectorized(make_tiled_copy_A(one, self.mma), self.b.stage)

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: stages, and three barriers of each in any order."""
        stages = tuple((Layout((rows, ROW_BYTES, self.stages)), "uint8") for rows in self.tile)
        return checks.smem_bytes(*stages, (Layout(3 * self.stages), "uint64"), align=1024, arch=arch)

    def read_report(self) -> BankReport:
        """Wavefronts of one k-tile's reads of b by all consumers."""
        return checks.bank_conflicts(self.b.stage, self.read, side="S", what=f"b, {self.read.atom.op.name}")

    def turn_reports(self) -> tuple[BankReport, BankReport]:
        """Wavefronts of turning one k-tile of a: a box is read a column at a time, and written a row for each lane."""
        if not self.turns:
            return BankReport(0, 0, 0), BankReport(0, 0, 0)
        rows, blk_k = self.a.tile
        box_rows, _ = self.a.box
        of_lane = Layout((box_rows, (blk_k, rows // box_rows)), (1, (rows, box_rows)))  # one warp has a stage
        item, element = self.a.item_bytes, self.a.value_type
        read = checks.bank_conflicts(self.a.stage, of_lane, element, width=item, what="a, read as columns")
        write = checks.bank_conflicts(self.turned.stage, of_lane, element, width=16, what="a, written as rows")
        return read, write

    def counts(self, a_pitch: int, b_pitch: int) -> dict[str, int]:
        """What one k-tile of a CTA costs, by the names of the emulator's counters.

        Args:
          a_pitch: elements from one row (or k) of a to the next.
          b_pitch: the same of b.

        Full tiles at addresses aligned to a sector.
        """
        turn_read, turn_write = self.turn_reports()
        total = collections.Counter(bank_counts("shared_load", self.read_report()))
        total.update(bank_counts("shared_load", turn_read))
        total.update(bank_counts("shared_store", turn_write))
        for operand, pitch in zip(self.operands, (a_pitch, b_pitch), strict=True):
            total.update(tma_counts("load", operand.load_report(pitch)))
            total["tma_smem_bytes"] += operand.stage_bytes
        total["wgmma"] = self.consumers * K_STEPS * WARPGROUP // 32
        return dict(total)

    def store_report(self, pitch: int, value_type: Any, base: int = 0) -> SectorReport:
        """Sectors of a CTA's stores of d (M,N), row-major, whose rows are `pitch` elements apart: by threads alone."""
        results = dtype(value_type, "store_report")
        thread, value = self.mma.layout_C_TV
        # It has values of two rows of d, then those beside them: these are stored together.
        rows = 2
        stored = value @ Layout((VECTOR, rows, value.size // (VECTOR * rows)), (rows, 1, VECTOR * rows))
        m, n = self.tile
        return checks.sectors(
            Layout((n, m), (1, pitch)),
            make_layout(thread, stored),
            results.name,
            width=VECTOR * results.bits // 8,
            base=base,
            what="d, by threads",
        )

    def epilogue_counts(self, pitch: int, value_type: Any) -> dict[str, int]:
        """What a CTA's epilogue costs, by the names of the emulator's counters; as in `store_report`."""
        return sector_counts("global_store", self.store_report(pitch, value_type))


def describe(config: Any, order: str) -> TransposedKernelLayouts:
    """The layouts of a config."""
    blk_m, blk_n, _ = config.tile
    orders = ("NN", "TN") if blk_m <= TURNED_ROWS else ("NN",)
    if order not in orders:
        why = f"{config.name} takes b along n alone" + ("" if "TN" in orders else ", and a along k")
        raise InvalidType("kernel_layouts", (config.name, order), why, " or ".join(orders))
    element, _ = operand_types(config.dtype)
    op = f"SM90_64x{blk_m}x{256 // element.bits}_F32{element.short}{element.short}_RS_TN"
    return TransposedKernelLayouts(
        config.name,
        config.kernel,
        order,
        (blk_m, blk_n),
        make_tiled_mma(op, Layout((config.consumers, 1, 1)), (COLUMNS,)),
        tma_operand(config, order, "a", blk_m, any_major=True),
        tma_operand(config, "NN", "a", blk_m),
        tma_operand(config, order, "b", blk_n, any_major=True),
        consumers=config.consumers,
        stages=config.stages,
    )
