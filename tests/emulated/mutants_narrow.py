"""Bugs planted where a tile has 32 or 16 columns: boxes with rows of 64 and 32 bytes, and the swizzles of these."""

from __future__ import annotations

import functools

from tests.emulated.mutants import Mutant as AnyMutant
from tests.emulated.mutants_sm90 import ONE_CTA, P, deadlock

ROW_32 = "{sm90_pingpong, bf16, f32, {64, 32, 64}, 3, {1, 1}, 16}"
ROW_16 = "{sm90_pingpong, bf16, f32, {64, 16, 64}, 3, {1, 1}, 16}"
BOX, OPERAND, AHEAD, GATE = "epilogue_box.h", "tma_operand.h", "epilogue_ahead.h", "epilogue_gate.h"
TILE_OF_B = "gmma_smem_atom<kGmmaMajor<kMajor>, T, kRowBytes>();"
SWIZZLED = "(piece ^ (row / (128 / kRowBytes) % (kRowBytes / 16))) * 16;"

Mutant = functools.partial(AnyMutant, row=ROW_32, expect="wrong", sizes=(150, 72, 200), options=("out=bf16",))

MUTANTS = [
    # ---- n contiguous in b
    Mutant(
        "narrow_swizzle_of_wgmma_alone",
        file=OPERAND,
        old=TILE_OF_B,
        new=TILE_OF_B.replace("kRowBytes", "kRowBytes == 64 ? 32 : kRowBytes"),
        order="NN",
    ),
    Mutant(
        "narrow_swizzle_of_tma_alone",
        file=OPERAND,
        old="row_bytes == 64 ? TensorMapSwizzle::b64",
        new="row_bytes == 64 ? TensorMapSwizzle::none",
        order="NN",
    ),
    Mutant(
        "narrow_swizzle_of_tma_alone_16",
        row=ROW_16,
        file=OPERAND,
        old="row_bytes == 32   ? TensorMapSwizzle::b32",
        new="row_bytes == 32   ? TensorMapSwizzle::none",
        order="NN",
    ),
    # ---- boxes of d
    Mutant("narrow_not_swizzled", file=BOX, old=SWIZZLED, new="piece * 16;", order="NT"),
    Mutant("narrow_not_swizzled_16", row=ROW_16, file=BOX, old=SWIZZLED, new="piece * 16;", order="NT"),
    Mutant(
        "narrow_swizzled_by_every_row",
        file=BOX,
        old=SWIZZLED,
        new="(piece ^ (row % (kRowBytes / 16))) * 16;",
        order="NT",
    ),
    Mutant(
        "narrow_ahead_expects_rows_of_128_bytes",
        file=AHEAD,
        old="mbarrier_expect_tx(landed, kBytes);",
        new="mbarrier_expect_tx(landed, sizeof(warp.boxes[0]));",
        expect=deadlock("parity 0", P),
        order="NT",
        options=("out=bf16", "epilogue=4", *ONE_CTA),
    ),
    Mutant(
        "narrow_gate_by_halves",
        file=GATE,
        old="kInBox = ceil_div(kBox, 32),",
        new="kInBox = 2,",
        row=ROW_16,
        order="NT",
        options=("out=bf16", "gate=1"),
    ),
    Mutant(
        "narrow_shifted_by_words_of_wide_rows",
        file="epilogue_shifted.h",
        old="kBoxColumns<Out, kColumns> * int(sizeof(Out)) / 8;",
        new="kBoxColumns<Out, kColumns> * int(sizeof(Out)) / 16;",
        sizes=(150, 75, 200),
        order="NT",
    ),
]
