"""Kernels that multiply with mma.sync: what cuda/gemm/sync_mma.h and tensorop.h declare, in Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jax_moye.layout import Layout, Swizzle, tile_to_shape
from jax_moye.layout.atoms import CopyAtom, UniversalCopy, copy_op, mma_atom
from jax_moye.layout.dtypes import dtype, operand_types
from jax_moye.layout.kernels.operands import KernelLayouts, OperandLayouts, coalesced_copy, major_of, staged_epilogue
from jax_moye.layout.tiled import TiledCopy, TiledMma, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

# What these kernels share of their facts.
LAUNCH_US = 1.47
STORE_US = 0.15
LEAST_WAVE_US = 3.0  # 1000 to 20000 matrices of 8x8x8 to 64x64x64: 2.6 to 3.2


def sm80_mma_op(config: Any) -> str:
    """The instruction of sm_80 (for 8-bit floats of sm_89) with the config's operands and sums."""
    (a, b), accumulator = operand_types(config.dtype), dtype(config.accumulator).short
    bits = a.bits
    arch, shape = "SM89" if a.short.startswith("E") else "SM80", "8x8x4" if bits == 64 else f"16x8x{256 // bits}"
    return f"{arch}_{shape}_{accumulator}{a.short}{b.short}{accumulator}_TN"


def cp_async_op(alignment: int, element: Any) -> str:
    """The widest cp.async of `alignment` bytes, or plain loads of what is too small for it."""
    return {
        16: "SM80_CP_ASYNC_CACHEGLOBAL<uint128_t>",
        8: "SM80_CP_ASYNC_CACHEALWAYS<uint64_t>",
        4: "SM80_CP_ASYNC_CACHEALWAYS<uint32_t>",
        2: f"UniversalCopy<{element.cute if element.bits == 16 else 'uint16_t'}>",
        1: "UniversalCopy<uint8_t>",
    }[alignment]


# ---- cuda/gemm/tensorop.h ------------------------------------------------------------------------------------------


def swizzled_smem(element: Any, major: str, rows: int, blk_k: int, stages: int | None) -> Any:
    """(BLK,BLK_K), with stages (BLK,BLK_K,PIPE): no bank conflicts for fragments and for 16-byte cp.async."""
    size = element.bits // 8
    log2 = size.bit_length() - 1
    if major == "k" and size <= 4:  # ldmatrix: rows of 64 or 128 bytes, in pieces of 16
        atom = Swizzle(3 if blk_k * size == 128 else 2, 4 - log2, 3) @ Layout((8, blk_k), (blk_k, 1))
    elif major == "k":
        atom = Swizzle(2, 5 - log2, 2) @ Layout((4, blk_k), (blk_k, 1))
    elif size == 2:
        run = min(rows, 64)  # of 32, 64 or 128 bytes, whose pieces of 16 change places
        atom = Swizzle({16: 1, 32: 2, 64: 3}[run], 3, 3) @ Layout((run, 8), (1, run))
    elif size == 1:  # a thread's four ks are neighbours, those of its warp four apart
        run = 128 if rows % 128 == 0 else 64
        atom = Swizzle(2, 4, 5 if run == 128 else 4) @ Layout((run, 16), (1, run))
    else:  # ldmatrix does not transpose 32-bit elements: plain loads
        run = 128 // size
        atom = Swizzle(2, 5 - log2, 2) @ Layout((run, 4), (1, run))
    return tile_to_shape(atom, (rows, blk_k) if stages is None else (rows, blk_k, stages))


def fragment_copy_op(element: Any, major: str) -> Any:
    """ldmatrix, transposed for 16-bit elements alone; or element by element."""
    if major == "k" and element.bits <= 32:
        return copy_op("SM75_U32x4_LDSM_N")
    return copy_op("SM75_U16x8_LDSM_T") if major == "mn" and element.bits == 16 else UniversalCopy(element)


def describe_swizzled(
    config: Any,
    order: str,
    *,
    stages: int | None = None,
    beside: bool = False,
    warps: tuple[int, int, int] | None = None,
) -> KernelLayouts:
    """The layouts of a config of a kernel that reads fragments out of swizzled shared memory.

    Args:
      config: a config of such a kernel.
      order: of the operands.
      stages: slots of shared memory; None: one, which is no mode of its layout.
      beside: the epilogue's rows lie beside the stages, into which the next tile is loaded meanwhile.
      warps: along m, n and k; None: 2 x 2, 4 along m or n where the tile is large.
    """
    blk_m, blk_n, blk_k = config.tile
    types = operand_types(config.dtype)
    element = types[0]  # the other one is as wide
    vector = config.alignment * 8 // element.bits
    if warps is None:
        warps = 4 if blk_m >= (128 if element.bits == 8 else 256) else 2, 4 if blk_n >= 256 else 2, 1
    atom = mma_atom(sm80_mma_op(config))
    rows, _columns, k = atom.shape_mnk
    tile = rows * warps[0], rows * warps[1], k * warps[2]  # along n two atoms of a warp at a time
    mma = make_tiled_mma(atom, Layout(warps), tile)
    op = cp_async_op(config.alignment, element)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major, element = major_of(order, name), types["ab".index(name)]
        smem = swizzled_smem(element, major, rows, blk_k, stages)
        load = coalesced_copy(CopyAtom(copy_op(op), element.name), major, mma.threads, rows, blk_k, vector)
        store = None if "CP_ASYNC" in op else load
        read = make_read(CopyAtom(fragment_copy_op(element, major), element.name), mma)
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, Layout(smem.cosize), read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    epilogue = staged_epilogue(mma, blk_n, config.accumulator)
    return KernelLayouts(
        config.name, config.kernel, order, mma, a, b, smem_align=1024, pair=2, beside=beside, **epilogue
    )
