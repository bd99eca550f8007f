"""Kernels that multiply with FMA, out of shared memory: what cuda/gemm/simt_*.cuh share, in Python."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax_moye.layout import Layout
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, UniversalFMA, copy_op
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.kernels.operands import KernelLayouts, OperandLayouts, coalesced_copy, major_of, vectorized
from jax_moye.layout.tiled import TiledCopy, TiledMma, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

THREADS = 256


def describe_simt(
    config: Any, order: str, *, through_registers: bool = False, stages: int | None = None, blocks: int = 2
) -> KernelLayouts:
    """The layouts of a config.

    Args:
      config: a config of such a kernel.
      order: of the operands.
      through_registers: loads go through registers, and not by cp.async.
      stages: slots of shared memory; None: one, which is no mode of its layout.
      blocks: k-blocks of fragments in registers at a time.
    """
    blk_m, blk_n, blk_k = config.tile
    element = dtype(config.dtype)
    vector, owned = config.alignment * 8 // element.bits, 128 // element.bits
    arrangement = Layout(((4, 4), (8, 2)), ((8, 32), (1, 128)))  # 4 x 2 warps of 4 x 8 threads
    tiler = Layout((16, owned), (owned, 1))  # thread i owns owned * i + (0, owned)
    mma = make_tiled_mma(UniversalFMA(element), arrangement, (tiler, tiler, 1))
    one = CopyAtom(UniversalCopy(element), element.name)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = major_of(order, name)
        smem = Layout((rows, blk_k), (1, rows + owned))  # (BLK,BLK_K)
        array = Layout((rows + owned, blk_k))
        copied = vector if through_registers or major == "mn" else 1  # cp.async transposes element by element
        if through_registers:
            atom = CopyAtom(UniversalCopy("uint128"), element.name) if config.alignment == 16 else one
        elif copied * element.bits == 128:
            atom = CopyAtom(copy_op("SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>"), element.name)
        else:
            atom = CopyAtom(copy_op(f"SM80_CP_ASYNC_CACHEALWAYS<uint{element.bits}_t>"), element.name)
        load = coalesced_copy(atom, major, THREADS, rows, blk_k, copied)
        store = vectorized(dataclasses.replace(load, atom=one), smem) if through_registers else None
        read = vectorized(make_read(one, mma), smem)
        if stages is not None:
            pitch = rows + owned
            smem = Layout((rows, blk_k, stages), (1, pitch, pitch * blk_k))  # (BLK,BLK_K,PIPE)
            array = Layout((pitch, blk_k, stages))
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, array, read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    d = arrangement, Layout((owned, owned), (owned, 1))
    return KernelLayouts(config.name, config.kernel, order, mma, a, b, smem_align=16, pair=1, blocks=blocks, d=d)
