"""What is known of sm90_multistage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax_moye.layout import Layout
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, copy_op, mma_atom
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.kernels.facts import KernelFacts, Speed
from jax_moye.layout.kernels.operands import KernelLayouts, OperandLayouts, coalesced_copy, major_of, staged_epilogue
from jax_moye.layout.kernels.sync_mma import LAUNCH_US, LEAST_WAVE_US, STORE_US, cp_async_op
from jax_moye.layout.tiled import TiledCopy, TiledMma, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

FACTS = KernelFacts(
    instruction="mma.sync.m16n8",
    page=20,
    idea="doubles on the instructions of sm_90",
    speed=Speed(
        products_per_us=0.234e6,
        by_dtype={},
        copy_us=0.01,  # beside products of doubles there is time for them
        store_us=STORE_US,
        launch_us=LAUNCH_US,
        least_wave_us=LEAST_WAVE_US,
    ),
)


def padded_smem(major: str, rows: int, blk_k: int, stages: int) -> Layout:
    """(BLK,BLK_K,PIPE): rows, or ks, lie 32 bytes apart in the banks."""
    if major == "k":
        return Layout((rows, blk_k, stages), (blk_k + 4, 1, rows * (blk_k + 4)))
    return Layout((rows, blk_k, stages), (1, rows + 4, blk_k * (rows + 4)))


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config."""
    blk_m, blk_n, blk_k = config.tile
    element = dtype(config.dtype)
    vector = config.alignment * 8 // element.bits
    warps_m, warps_n = blk_m // (32 if blk_m * blk_n < 128 * 64 else 64), blk_n // 32
    mma = make_tiled_mma(mma_atom(f"SM90_16x8x{blk_k // 2}_F64F64F64F64_TN"), Layout((warps_m, warps_n, 1)))
    op = copy_op(cp_async_op(config.alignment, element))

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = major_of(order, name)
        smem = padded_smem(major, rows, blk_k, config.stages)
        array = Layout(config.stages * (rows * blk_k + 4 * max(rows, blk_k)))
        load = coalesced_copy(CopyAtom(op, element.name), major, mma.threads, rows, blk_k, vector)
        read = make_read(CopyAtom(UniversalCopy(element), element.name), mma)
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, None, smem, array, read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    epilogue = staged_epilogue(mma, blk_n, config.accumulator)
    return KernelLayouts(config.name, config.kernel, order, mma, a, b, smem_align=128, pair=2, **epilogue)
