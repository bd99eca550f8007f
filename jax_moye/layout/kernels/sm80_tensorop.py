"""What is known of sm80_tensorop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax_moye.layout.atoms import CopyAtom, UniversalCopy, copy_op
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import (
    KernelLayouts,
    OperandLayouts,
    coalesced_copy,
    major_of,
    padded_smem,
    staged_epilogue,
    vectorized,
)
from jax_moye.layout.kernels.sync_mma import LAUNCH_US, LEAST_WAVE_US, STORE_US, cp_async_op, sm80_mma_op
from jax_moye.layout.tiled import TiledCopy, TiledMma, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

FACTS = KernelFacts(
    instruction="mma.sync",
    page=9,
    idea="mma.sync of a whole warp",
    speed=Speed(
        products_per_us=1.24e6,
        store_us=STORE_US,
        launch_us=LAUNCH_US,
        least_wave_us=LEAST_WAVE_US,
    ),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: 2 x 2 warps, padded shared memory, fragments by plain loads."""
    blk_m, blk_n, blk_k = config.tile
    threads, element = 128, dtype(config.dtype)
    vector = config.alignment * 8 // element.bits
    mma = make_tiled_mma(sm80_mma_op(config), "(2,2,1):(1,2,4)")
    op = cp_async_op(config.alignment, element)
    one = CopyAtom(UniversalCopy(element), element.name)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = major_of(order, name)
        smem, array = padded_smem(major, rows, blk_k, 128 // element.bits, 8)
        load = coalesced_copy(CopyAtom(copy_op(op), element.name), major, threads, rows, blk_k, vector)
        store = None if "CP_ASYNC" in op else load
        read = vectorized(make_read(one, mma), smem)
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, array, read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    epilogue = staged_epilogue(mma, blk_n, config.accumulator)
    return KernelLayouts(config.name, config.kernel, order, mma, a, b, smem_align=128, pair=2, **epilogue)
