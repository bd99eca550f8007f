"""Which MMA instructions there are, and the rule behind their fragments.

All of `mma.sync` but Volta's share one rule: a 32-bit register holds neighbours along K, four lanes of a row are next
to each other along K, eight rows make a block; more values go to 8 rows below, then to the next block along K. wgmma
is the same with four warps below each other. Only Volta's m8n8k4 is written out.
"""

from __future__ import annotations

import re

_INT8 = [f"S32{a}{b}S32" for a in ("S8", "U8") for b in ("S8", "U8")]
_INT4 = [f"S32{a}{b}S32" for a in ("S4", "U4") for b in ("S4", "U4")]
_FP8 = [a + b for a in ("E4M3", "E5M2") for b in ("E4M3", "E5M2")]
_SATURATE = ["TN", "TN_SATURATE"]

# Architecture, shapes, types of D, A, B and C, what follows in the name.
_WARP: list[tuple[str, list[str], list[str], list[str]]] = [
    # D in f32 with C in f16: MoYe.jl has these, CuTe does not. C and D sit in different registers.
    ("SM70", ["8x8x4"], ["F16F16F16F16", "F32F16F16F16", "F32F16F16F32"], ["TT", "NT", "TN", "NN"]),
    ("SM75", ["16x8x8"], ["F16F16F16F16", "F32F16F16F32"], ["TN"]),
    ("SM75", ["8x8x16"], ["S32S8S8S32"], ["TN"]),
    ("SM80", ["16x8x8", "16x8x16"], ["F16F16F16F16", "F32F16F16F32", "F32BF16BF16F32"], ["TN"]),
    ("SM80", ["16x8x4", "16x8x8"], ["F32TF32TF32F32"], ["TN"]),
    ("SM80", ["8x8x4"], ["F64F64F64F64", "C64C64C64C64", "GC64C64C64GC64"], ["TN"]),
    ("SM80", ["8x8x16", "16x8x16", "16x8x32"], _INT8, _SATURATE),
    ("SM80", ["8x8x32", "16x8x32", "16x8x64"], _INT4, _SATURATE),
    ("SM80", ["8x8x128", "16x8x128", "16x8x256"], ["S32U1U1S32"], ["TN_XORPOPC", "TN_ANDPOPC"]),
    ("SM89", ["16x8x32"], [f"{d}{ab}{d}" for d in ("F32", "F16") for ab in _FP8], ["TN"]),
    ("SM90", ["16x8x4", "16x8x8", "16x8x16"], ["F64F64F64F64", "C64C64C64C64"], ["TN"]),
]

# wgmma: K, types of D, A and B, what follows SS (A in shared memory) or RS (A in registers), values of N.
_N = list(range(8, 257, 8))
_N_INT8 = [8, 16, 24, *range(32, 257, 16)]
_WGMMA: list[tuple[int, list[str], list[str], list[int]]] = [
    (16, ["F16F16F16", "F32F16F16", "F32BF16BF16"], [""], _N),
    (8, ["F32TF32TF32"], ["_TN"], _N),
    (32, [d + ab for d in ("F16", "F32") for ab in _FP8], ["_TN"], _N),
    (32, [types[:-3] for types in _INT8], ["_TN", "_TN_SATURATE"], _N_INT8),
]


def names() -> list[str]:
    """CuTe's names of all MMA instructions of sm_61 to sm_90 (and Volta's four that only MoYe.jl has)."""
    out = ["SM61_DP4A", "SM61_DP2A"]
    for arch, shapes, types, suffixes in _WARP:
        out += [f"{arch}_{shape}_{t}_{suffix}" for shape in shapes for t in types for suffix in suffixes]
    for k, types, suffixes, ns in _WGMMA:
        for t in types:
            for a in ("SS", "RS"):
                out += [f"SM90_64x{n}x{k}_{t}_{a}{suffix}" for suffix in suffixes for n in ns]
    return out


# MoYe.jl's list, in its order: shapes, types, suffixes.
_MOYE: list[tuple[list[str], list[str], list[str]]] = [
    (["8x8x4"], ["F64F64F64F64"], ["TN"]),
    (["16x8x4", "16x8x8"], ["F32TF32TF32F32"], ["TN"]),
    (["16x8x16", "16x8x8"], ["F32BF16BF16F32"], ["TN"]),
    (["8x8x4"], ["F16F16F16F16", "F32F16F16F16"], ["TT", "NT", "TN", "NN"]),
    (["16x8x8", "16x8x16"], ["F16F16F16F16"], ["TN"]),
    (["8x8x4"], ["F32F16F16F32"], ["TT", "NT", "TN", "NN"]),
    (["16x8x8", "16x8x16"], ["F32F16F16F32"], ["TN"]),
    *[([s], _INT8[:2], _SATURATE) for s in ("8x8x16", "16x8x16", "16x8x32")],
    *[([s], _INT8[2:], _SATURATE) for s in ("8x8x16", "16x8x16", "16x8x32")],
    (["8x8x128", "16x8x128", "16x8x256"], ["S32B1B1S32"], ["TN_XORPOPC", "TN_ANDPOPC"]),
]


def moye_names() -> list[str]:
    """MoYe.jl's names of its 51 MMA operations."""
    return [
        f"MMAOP_{shape}_{t}_{suffix}"
        for shapes, types, suffixes in _MOYE
        for shape in shapes
        for t in types
        for suffix in suffixes
    ]


def _leaf(shape: list[int], stride: list[int]) -> tuple[str, str]:
    """Shape and stride of a mode: leaves of extent 1 are dropped, one leaf that is left stands alone."""
    kept = [(s, d) for s, d in zip(shape, stride, strict=True) if s > 1] or [(1, 0)]
    if len(kept) == 1:
        return str(kept[0][0]), str(kept[0][1])
    return f"({','.join(str(s) for s, _ in kept)})", f"({','.join(str(d) for _, d in kept)})"


def _operand(rows: int, k: int, bits: int) -> str:
    """A or B of mma.sync with `rows` rows (m or n): (thread, value) -> row + rows * k."""
    packed = max(1, 32 // bits)  # elements of a register
    shape, stride = _leaf([packed, rows // 8, k // (4 * packed)], [rows, 8, 4 * packed * rows])
    if bits == 4 and "(" not in shape:
        shape, stride = f"({shape})", f"({stride})"  # as CuTe writes them
    return f"((4,8),{shape}):(({packed * rows},1),{stride})"


def _accumulator(m: int) -> str:
    """C of mma.sync with 8 columns: (thread, value) -> m + M * n."""
    shape, stride = _leaf([2, m // 8], [m, 8])
    return f"((4,8),{shape}):(({2 * m},1),{stride})"


def warp_layouts(m: int, n: int, k: int, a_bits: int, b_bits: int) -> tuple[str, str, str]:
    """The (thread, value) layouts of A, B and C of an mma.sync instruction."""
    return _operand(m, k, a_bits), _operand(n, k, b_bits), _accumulator(m)


def wgmma_layouts(n: int, k: int, a_bits: int, a_in_registers: bool) -> tuple[str, str, str]:
    """The (thread, value) layouts of A, B and C of wgmma with M = 64; all threads see all of shared memory's tile."""
    packed = 32 // a_bits
    shape, stride = _leaf([packed, 2, 2], [64, 8, 256 * packed])
    registers = f"((4,8,4),{shape}):(({64 * packed},1,16),{stride})"
    a = registers if a_in_registers else f"(128,(64,{k})):(0,(1,64))"
    return a, f"(128,({n},{k})):(0,(1,{n}))", f"((4,8,4),(2,2,{n // 8})):((128,1,16),(64,8,512))"


# Volta: eight threads, lanes 0-3 and 16-19 and so on, multiply 8x8x4. By the operand's major, by C's type.
VOLTA_OPERAND = {"K": "(8,4):(1,8)", "MN": "((4,2),4):((8,4),1)"}
VOLTA_ACCUMULATOR = {"F16": "(8,8):(1,8)", "F32": "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"}

PATTERN = re.compile(
    r"(?P<arch>SM\d+)_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<types>[A-Z0-9]+)_(?P<kind>SS|RS|[TN]{2})"
    r"(?P<rest>(_[A-Z]+)*)$"
)
