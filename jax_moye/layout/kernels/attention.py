"""Attention and its gradients: what cuda/gemm/attention.h declares and both kernels share, in Python.

>>> import jax_moye
>>> from jax_moye._kernels.configs import attention_configs
>>> from jax_moye.layout.kernels import kernel_layouts
>>> config = next(row for row in attention_configs() if row.tile == (128, 128, 128))
>>> kernel = kernel_layouts(config, "NT")
>>> kernel.scores.atom.name, kernel.weighted.atom.name
('SM90_64x128x16_F32BF16BF16_SS', 'SM90_64x128x16_F32BF16BF16_RS<K,MN>')
>>> kernel.q.box, kernel.v.box
((64, 128), (64, 128))
"""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout import Layout, checks, size
from jax_moye.layout.checks import BankReport, SmemReport
from jax_moye.layout.dtypes import dtype, operand_types
from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels.tma import ROW_BYTES, ROWS, TmaOperandLayouts, tma_operand
from jax_moye.layout.kernels.wgmma import WARPGROUP, stmatrix_report
from jax_moye.layout.tiled import TiledMma, make_tiled_mma

ROW_BLOCK = 64  # rows of a swizzled block of 8 KB
IN_PAIRS = Layout((4, 2), (2, 1))  # of TF32's k, so that neighbouring sums of a thread are its elements of A


@dataclasses.dataclass(frozen=True)
class AttentionLayouts:
    """What sm90_attention and sm90_attention_grad have in common.

    Attributes:
      name: of the row.
      kernel: the file of cuda/gemm that declares the same.
      order: of the operands of the scores.
      tile: (rows that a CTA owns, rows of a step, head_dim).
      scores: the TiledMma of a tile of them, (OWNED,STEP), both operands in shared memory.
      weighted: that of sums of rows, (OWNED,HEAD): A are weights in registers. By wgmma, of TF32 by mma.sync.
      arrays: of shared memory, as TMA brings them in.
      other_bytes: of shared memory, behind them.
      consumers: warpgroups that multiply, 64 rows each; one more warpgroup loads. Where they outnumber the tile's rows,
        two have the same ones, and the weighted sums of one half of head_dim each.
      stages: slots of the shared-memory pipeline.
    """

    name: str
    kernel: str
    order: str
    tile: tuple[int, int, int]
    scores: TiledMma
    weighted: TiledMma
    arrays: tuple[TmaOperandLayouts, ...]
    other_bytes: int
    consumers: int
    stages: int

    @property
    def threads(self) -> int:
        """Threads of a CTA."""
        return WARPGROUP * (1 + self.consumers)

    @property
    def summed_by_wgmma(self) -> bool:
        """Whether wgmma reads the rows that weights multiply; of TF32 threads load them for mma.sync."""
        return dtype(self.arrays[0].value_type).bits == 16

    @property
    def scores_tv(self) -> Layout:
        """(thread,value) of a warpgroup's scores, (64,STEP), as wgmma leaves them."""
        return self.scores.atom.layout_C_TV

    @property
    def weights_tv(self) -> Layout:
        """(thread,(value,k)) of the same numbers as A's fragments of one wgmma after the other, 16 bits each.

        It is `scores_tv`: accumulators become the next operand where they are.
        """
        thread, value = self.weighted.atom.layout_A_TV
        along_k = self.weighted.atom.shape_mnk[2]
        steps = self.tile[1] // along_k
        return Layout((thread.shape, (value.shape, steps)), (thread.stride, (value.stride, along_k * ROWS)))

    def smem_report(self, arch: Any = None) -> SmemReport:
        """Shared memory of a CTA: the arrays, over the first of which results are written in the end, and the rest."""
        arrays = tuple((Layout(array.stage_bytes * size(array.smem[2])), "uint8") for array in self.arrays)
        return checks.smem_bytes(*arrays, (Layout(self.other_bytes), "uint8"), align=1024, arch=arch)

    def store_report(self) -> BankReport:
        """Wavefronts of filling a box of 16 rows and 64 columns of a result of 16 bits, by one warp."""
        return stmatrix_report(self.arrays[0].value_type, "o")


def check_order(config: Any, order: str) -> None:
    """Raises InvalidType for an order that attention does not have."""
    if order != "NT":
        raise InvalidType("kernel_layouts", (config.name, order), f"{config.name} multiplies rows by rows alone", "NT")


def rows_array(config: Any, name: str, rows: int, stages: int, box_rows: int = 0) -> TmaOperandLayouts:
    """KOperand: rows of 128 bytes of head_dim, which is summed over; box_rows: of a box, 0: all."""
    of_boxes = _of_depth(config, box_columns(config), stages)
    return dataclasses.replace(tma_operand(of_boxes, "NT", "a", rows, box_rows=box_rows), name=name)


def summed_array(config: Any, name: str) -> TmaOperandLayouts:
    """WeightedProduct: rows of a step, which are summed over themselves; of a consumer's part of head_dim."""
    parts = shares(config)
    of_rows = _of_depth(config, config.tile[1], parts * config.stages)
    of_part = tma_operand(of_rows, "NN", "b", config.tile[2] // parts, any_major=True)
    return dataclasses.replace(of_part, name=name)


def box_columns(config: Any) -> int:
    """Elements of head_dim in a box."""
    return ROW_BYTES * 8 // operand_types(config.dtype)[0].bits


def shares(config: Any) -> int:
    """Consumers that have the same rows, and the sums of a part of head_dim each."""
    return config.consumers * ROWS // config.tile[0]


def _of_depth(config: Any, depth: int, stages: int) -> Any:
    """A config for `tma_operand` whose stages have so many elements along what is summed over."""
    return dataclasses.replace(config, tile=(*config.tile[:2], depth), stages=stages)


def both_mmas(config: Any) -> tuple[TiledMma, TiledMma]:
    """The TiledMmas of scores and of weighted sums."""
    element, _ = operand_types(config.dtype)
    _, step, head = config.tile
    parts = shares(config)
    types, own = f"F32{element.short}{element.short}", config.consumers // parts
    if element.bits == 32:
        scores = make_tiled_mma(f"SM90_{ROWS}x{step}x8_{types}_SS_TN", Layout((own, 1, 1)))
        return scores, make_tiled_mma(f"SM80_16x8x8_{types}F32_TN", Layout((4 * own, 1, 1)), (None, None, IN_PAIRS))
    atom = f"SM90_{ROWS}x{step}x16_{types}_SS<GMMA::Major::K,GMMA::Major::K>"
    of_sums = f"SM90_{ROWS}x{head // parts}x16_{types}_RS<GMMA::Major::K,GMMA::Major::MN>"
    return make_tiled_mma(atom, Layout((own, 1, 1))), make_tiled_mma(of_sums, Layout((own, 1, 1)))
