"""What is known of sm90_weights."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from jax_moye.layout import Layout, checks, gmma_smem_atom, make_tiled_mma, mma_atom, tile_to_shape, transactions
from jax_moye.layout.checks import BankReport, SmemReport
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels.facts import KernelFacts
from jax_moye.layout.kernels.sync_mma import sm80_mma_op
from jax_moye.layout.kernels.tma import TmaOperandLayouts, tma_operand
from jax_moye.layout.tiled import TiledMma

WARPGROUP = 128  # threads
CHUNK, ROW_BYTES = 16, 128  # of a row of weights in a stage: a warp's bytes, and all
HALVES = 2  # of a stage of a, each of one swizzled row
VECTOR = 4  # sums that a thread adds up and stores together

# No speed: it computes no product of two matrices of one dtype.
FACTS = KernelFacts(instruction="mma.sync", page=22, idea="weights of 8 and 4 bits")


@dataclasses.dataclass(frozen=True)
class WeightsKernelLayouts:
    """sm90_weights as layouts. It computes the transpose: rows of a fragment are columns of the weights.

    Attributes:
      name: of the row.
      kernel: the file of cuda/gemm that declares the same.
      order: of the operands.
      tile: (m, n) of a CTA.
      mma: of one warp; its first operand are weights, (N,K), the second is a, (M,K).
      a: the first operand of the product, in stages of half a k-tile.
      weights: their bytes in shared memory, (BLK_K,BYTES,PIPE).
      bits: of a weight.
      stages: slots of the shared-memory pipeline.
      consumers: warpgroups that multiply; one more warpgroup loads.
    """

    name: str
    kernel: str
    order: str
    tile: tuple[int, int]
    mma: TiledMma
    a: TmaOperandLayouts
    weights: Any
    bits: int
    stages: int
    consumers: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def columns(self) -> int:
        """Columns of a word that ldmatrix gives a lane, all of which are the lane's."""
        return 16 // self.bits

    @property
    def sums(self) -> Layout:
        """The sums of a CTA's part of k in its shared memory, (BLK_M,BLK_N)."""
        return Layout(self.tile, (self.tile[1] + VECTOR, 1))

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: stages, over which the sums are written in the end, and barriers."""
        stages = HALVES * (self.a.stage_bytes + self.a.tile[1] * ROW_BYTES) * self.stages
        either = Layout(max(stages, self.sums.cosize * 4)), "uint8"
        return checks.smem_bytes(either, (Layout(2 * self.stages), "uint64"), align=1024, arch=arch)

    def first_column(self, warp: Any, lane: Any) -> Any:
        """Of the tile, the first of the columns that are a lane's; arrays of warps and lanes are as good."""
        return (warp * CHUNK * 8 + lane // 4 * 16) // self.bits

    def read_report(self) -> BankReport:
        """Wavefronts of ldmatrix.trans of 32 rows of weights by each consumer warp."""
        places = self.weights[:2].values().reshape((-1, ROW_BYTES), order="F")
        lanes = places[:32, ::CHUNK].T  # a row for each lane
        return transactions.ldmatrix(lanes, what="weights, SM75_U16x8_LDSM_T")

    def staging_reports(self) -> tuple[BankReport, BankReport]:
        """Wavefronts of a CTA's sums: written in rows of a lane's columns, and read as rows, from one of the CTAs."""
        m, n = self.tile
        item = 4
        warp, row, odd, lane = np.meshgrid(
            np.arange(WARPGROUP * self.consumers // 32), np.arange(0, m, 8), np.arange(2), np.arange(32), indexing="ij"
        )
        written = ((row + lane % 4 * 2 + odd) * (n + VECTOR) + self.first_column(warp, lane)) * item
        write = transactions.shared_memory(
            written.reshape(-1, 32), self.columns * item, what="sums, written in rows of a lane's columns"
        )
        vector = np.arange(m * n // VECTOR).reshape(-1, 32)
        read_at = (vector // (n // VECTOR) * (n + VECTOR) + vector % (n // VECTOR) * VECTOR) * item
        return write, transactions.shared_memory(read_at, VECTOR * item, what="sums, read as rows")


def describe(config: Any, order: str) -> WeightsKernelLayouts:
    """The layouts of a config."""
    if order != "NN":
        raise InvalidType("kernel_layouts", (config.name, order), f"{config.name} takes row-major operands alone", "NN")
    blk_m, blk_n, blk_k = config.tile
    operands, weights = config.dtype.split("x")
    # Halves of a stage lie one behind the other.
    of_a = dataclasses.replace(
        config, dtype=operands, tile=(blk_m, blk_n, blk_k // HALVES), stages=HALVES * config.stages
    )
    mma = make_tiled_mma(mma_atom(sm80_mma_op(of_a)), Layout((1, 1, 1)), (16, 16, 16))
    smem = tile_to_shape(gmma_smem_atom("K", "SW128", "uint8"), (blk_k, ROW_BYTES, config.stages))
    return WeightsKernelLayouts(
        config.name,
        config.kernel,
        order,
        (blk_m, blk_n),
        mma,
        tma_operand(of_a, order, "a", blk_m),
        smem,
        bits=4 if weights == "s4" else 8,
        stages=config.stages,
        consumers=config.consumers,
    )
