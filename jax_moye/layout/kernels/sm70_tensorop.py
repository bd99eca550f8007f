"""What is known of sm70_tensorop."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jax_moye.layout import Layout
from jax_moye.layout.atoms import CopyAtom, UniversalCopy
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
from jax_moye.layout.tiled import TiledCopy, TiledMma, make_tiled_copy_A, make_tiled_copy_B, make_tiled_mma

FACTS = KernelFacts(
    instruction="mma.sync.m8n8k4",
    page=8,
    idea="quad pairs, the first tensor cores",
    speed=Speed(
        products_per_us=0.20e6,
        store_us=0.060,
    ),
)


def describe(config: Any, order: str) -> KernelLayouts:
    """The layouts of a config: 2 x 2 warps of quad pairs, padded shared memory."""
    blk_m, blk_n, blk_k = config.tile
    threads, element = 128, dtype(config.dtype)
    vector = config.alignment * 8 // element.bits
    # As sm_70 calls them: T is row-major, N column-major, of a (M,K) and b (K,N).
    majors = "".join("TN"[(major_of(order, name) == "k") == (name == "b")] for name in "ab")
    sums = dtype(config.accumulator).short
    quad_pairs = Layout(((2, 2), (2, 2), 1), ((1, 4), (2, 8), 0))  # 2 x 2 of a warp, 2 x 2 warps
    tiler = Layout((4, 2, 2, 2), (1, 8, 4, 16))  # (row of 4, half of the atom, atom of the warp, warp)
    mma = make_tiled_mma(f"SM70_8x8x4_{sums}F16F16{sums}_{majors}", quad_pairs, (tiler, tiler, 4))
    one = CopyAtom(UniversalCopy(element), element.name)

    def operand(name: str, rows: int, make_read: Callable[[CopyAtom, TiledMma], TiledCopy]) -> OperandLayouts:
        major = major_of(order, name)
        smem, array = padded_smem(major, rows, blk_k, 8, 8)
        atom = CopyAtom(UniversalCopy(f"uint{8 * config.alignment}"), element.name)
        load = coalesced_copy(atom, major, threads, rows, blk_k, vector)
        store = vectorized(dataclasses.replace(load, atom=one), smem)
        read = vectorized(make_read(one, mma), smem)
        return OperandLayouts(name, (rows, blk_k), major, element.name, load, store, smem, array, read)

    a, b = operand("a", blk_m, make_tiled_copy_A), operand("b", blk_n, make_tiled_copy_B)
    pitch = blk_n + 4
    staging = Layout(((2, 2, 8), blk_n), ((2 * pitch, pitch, 4 * pitch), 1))  # (ROWS,BLK_N)
    epilogue = staged_epilogue(mma, blk_n, config.accumulator, staging)
    return KernelLayouts(config.name, config.kernel, order, mma, a, b, smem_align=128, pair=2, **epilogue)
