"""Atoms: what one MMA or copy instruction does, as layouts.

An `MmaAtom` says which elements of A, B and C each thread's registers hold; a `CopyAtom` says which bits each thread
gives and gets. Both are found by CuTe's name of the instruction or by MoYe.jl's:

>>> mma_atom("SM80_16x8x8_F32TF32TF32F32_TN").layout_A_TV
Layout('((4,8),(2,2)):((16,1),(8,64))')
>>> mma_atom("MMAOP_16x8x8_F32TF32TF32F32_TN") == mma_atom("SM80_16x8x8_F32TF32TF32F32_TN")
True
>>> CopyAtom("LDSM_U32x4_N", "float32").val_layout_dst
Layout('(32,(1,4)):(1,(1,32))')
"""

# The names are those of the mathematics and of CuTe:
# ruff: noqa: N802, N815

from __future__ import annotations

import dataclasses
import difflib
import functools
import re
from typing import TYPE_CHECKING, Any

from jax_moye.layout import mma_table
from jax_moye.layout.cast import recast_layout
from jax_moye.layout.dtypes import dtype, split_types
from jax_moye.layout.errors import AtomMismatch
from jax_moye.layout.layout import Layout
from jax_moye.layout.swizzle import ComposedLayout, Swizzle

_UNIVERSAL = Layout("(1,1):(0,0)")


@dataclasses.dataclass(frozen=True, slots=True)
class Registers:
    """Registers of a thread for one operand: their type and how many the instruction names."""

    dtype: str
    count: int


# ---- MMA -----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class MmaAtom:
    """One multiply-accumulate instruction, D = A B^T + C with A (M,K), B (N,K), C and D (M,N).

    Law: the layouts of A, B and C reach each of M*K, N*K and M*N elements, once if the operand is in registers.

    Attributes:
      name: CuTe's name. Atoms are equal if their names are.
      shape_mnk: (M,N,K).
      thr_id: logical thread -> lane.
      layout_A_TV: (logical thread, value) -> m + M*k.
      layout_B_TV: (logical thread, value) -> n + N*k.
      layout_C_TV: (logical thread, value) -> m + M*n.
      layout_D_TV: the same of D. Only Volta's f32-from-f16 instructions have another than C's.
      dtypes: element types of (D, A, B, C).
      registers: Registers of (D, A, B, C); an operand in shared memory is one 64-bit descriptor.
      majors: of A and B, "K" (K-major) or "MN". What wgmma with 16-bit types may choose is "K" unless named.
      min_arch: the first architecture that has it, as in sm_80.
      arch_specific: needs the architecture's `a` target: sm_90a alone has wgmma.
      smem_operands: which of "A", "B" the instruction reads from shared memory.
    """

    name: str
    shape_mnk: tuple[int, int, int] = dataclasses.field(compare=False)
    thr_id: Layout = dataclasses.field(compare=False)
    layout_A_TV: Layout = dataclasses.field(compare=False)
    layout_B_TV: Layout = dataclasses.field(compare=False)
    layout_C_TV: Layout = dataclasses.field(compare=False)
    layout_D_TV: Layout = dataclasses.field(compare=False)
    dtypes: tuple[str, ...] = dataclasses.field(compare=False)
    registers: tuple[Registers, ...] = dataclasses.field(compare=False)
    majors: tuple[str, ...] = dataclasses.field(compare=False)
    min_arch: int = dataclasses.field(compare=False)
    arch_specific: bool = dataclasses.field(compare=False, default=False)
    smem_operands: str = dataclasses.field(compare=False, default="")

    def __repr__(self) -> str:
        """Evaluates to the atom."""
        return f"mma_atom({self.name!r})"

    @property
    def threads(self) -> int:
        """Threads that execute the instruction together: 1, 8 (Volta's quad pairs), 32 or 128."""
        return self.thr_id.size

    @property
    def values_per_thread(self) -> dict[str, int]:
        """How many elements of A, B and C a thread sees."""
        return {"A": self.layout_A_TV[1].size, "B": self.layout_B_TV[1].size, "C": self.layout_C_TV[1].size}

    @property
    def dtype_D(self) -> str:
        """Element type of D."""
        return self.dtypes[0]

    @property
    def dtype_A(self) -> str:
        """Element type of A."""
        return self.dtypes[1]

    @property
    def dtype_B(self) -> str:
        """Element type of B."""
        return self.dtypes[2]

    @property
    def dtype_C(self) -> str:
        """Element type of C."""
        return self.dtypes[3]

    def with_accumulator_of_D(self) -> MmaAtom:
        """The atom with D's layout in place of C's: what D is partitioned by where the two differ."""
        return dataclasses.replace(self, name=f"{self.name} (D)", layout_C_TV=self.layout_D_TV)

    @property
    def moye_name(self) -> str | None:
        """MoYe.jl's name of the instruction, None where it has none."""
        name = "MMAOP_" + self.name.partition("_")[2].replace("U1U1", "B1B1")
        return name if name in _moye_names() else None


def _registers(type_name: str, values: int) -> Registers:
    """Single, double and complex values have registers of their own; all else is packed into 32 bits."""
    if type_name in ("float32", "float64", "complex128", "gaussian_complex128"):
        return Registers(type_name, values)
    return Registers("uint32", max(1, values * dtype(type_name).bits // 32))


def _atom(name: str, mnk: tuple[int, int, int], thr: str, layouts: tuple[str, ...], types: Any, **rest: Any) -> MmaAtom:
    a, b, c = (Layout(text) for text in layouts[:3])
    d = Layout(layouts[3]) if len(layouts) > 3 else c
    smem = rest.get("smem_operands", "")
    operands = (("D", d), ("A", a), ("B", b), ("C", c))
    registers = tuple(
        Registers("uint64", 1) if which in smem else _registers(t, layout[1].size)
        for t, (which, layout) in zip(types, operands, strict=True)
    )
    return MmaAtom(name, mnk, Layout(thr), a, b, c, d, tuple(types), registers, **rest)


@functools.cache
def _moye_names() -> frozenset[str]:
    return frozenset(mma_table.moye_names())


@functools.cache
def mma_atom_names() -> tuple[str, ...]:
    """CuTe's names of all MMA instructions there are atoms for. `UniversalFMA<...>` is not listed: it has any type."""
    return tuple(mma_table.names())


@functools.cache
def _known() -> frozenset[str]:
    return frozenset(mma_atom_names())


def mma_ops_list() -> tuple[str, ...]:
    """The 51 names of MoYe.jl's `mma_ops_list`, each of which `mma_atom` takes."""
    return tuple(mma_table.moye_names())


def _from_alias(name: str) -> str:
    """CuTe's name for MoYe.jl's: the twin of the oldest architecture."""
    tail = name.removeprefix("MMAOP_").replace("B1B1", "U1U1")
    return next((f"{arch}_{tail}" for arch in ("SM70", "SM75", "SM80") if f"{arch}_{tail}" in _known()), name)


@functools.cache
def mma_atom(name: str) -> MmaAtom:
    """The MMA atom of a name.

    Args:
      name: CuTe's name (`SM80_16x8x16_F32BF16BF16F32_TN`), MoYe.jl's (`MMAOP_16x8x16_F32BF16BF16F32_TN`), or
        `UniversalFMA<D,A,B,C>`. A wgmma name may end with the majors, `<GMMA::Major::K,GMMA::Major::MN>`.

    Raises:
      AtomMismatch: there is no such instruction, or it does not have these majors. The hint lists similar names.
    """
    if not isinstance(name, str):
        raise AtomMismatch(
            "mma_atom", (name,), f"{type(name).__name__} is no name of an instruction", "mma_atom_names()"
        )
    base, _, arguments = name.replace("::GMMA::MMA", "").rstrip("{}<>").replace("{", "<").partition("<")
    given = [x.strip() for x in arguments.split(",") if x.strip()]
    if base == "UniversalFMA":
        return UniversalFMA(*given)
    cute = _from_alias(base) if base.startswith("MMAOP_") else base
    if cute not in _known():
        near = [other for other in mma_atom_names() if other.startswith(cute)][:3]
        near = near or difflib.get_close_matches(cute, mma_atom_names(), 3)
        raise AtomMismatch(
            "mma_atom", (name,), f"there is no MMA instruction {name!r}", " or ".join(near) or "mma_atom_names()"
        )
    if cute.startswith("SM61"):
        k, t = (4, "int8") if cute.endswith("DP4A") else (2, "int16")
        layouts = (f"(1,{k}):(0,1)", f"(1,{k}):(0,1)", "(1,1):(0,0)")
        return _atom(cute, (1, 1, k), "1:0", layouts, ["int32", t, t, "int32"], majors=("K", "K"), min_arch=61)
    match = mma_table.PATTERN.match(cute)
    assert match is not None
    m, n, k = (int(match[x]) for x in "mnk")
    types = split_types(match["types"])
    if match["kind"] in ("SS", "RS"):
        return _wgmma(cute, n, k, types, match["kind"] == "RS", given, name)
    if given:
        raise AtomMismatch("mma_atom", (name,), f"the majors of {cute} are part of its name", cute)
    majors = ("K" if match["kind"][0] == "T" else "MN", "K" if match["kind"][1] == "N" else "MN")
    arch = int(match["arch"][2:])
    if arch == 70:
        operand, accumulator = mma_table.VOLTA_OPERAND, mma_table.VOLTA_ACCUMULATOR
        d, c = (accumulator["F16" if types[i] == "float16" else "F32"] for i in (0, 3))
        volta = (operand[majors[0]], operand[majors[1]], c, d)
        return _atom(cute, (m, n, k), "(4,2):(1,16)", volta, types, majors=majors, min_arch=arch)
    layouts = mma_table.warp_layouts(m, n, k, dtype(types[1]).bits, dtype(types[2]).bits)
    return _atom(cute, (m, n, k), "32:1", layouts, types, majors=majors, min_arch=arch)


def _wgmma(name: str, n: int, k: int, types: list[str], from_registers: bool, given: list[str], asked: str) -> MmaAtom:
    majors = tuple(x.rpartition(":")[2] for x in given) or ("K", "K")
    free = "K" if from_registers else "MN"
    allowed = {"K"} if name.endswith(("_TN", "_SATURATE")) else {"K", "MN"}
    if len(majors) != 2 or not set(majors) <= allowed or (from_registers and majors[0] != "K"):
        choice = f"A is {free}-major or K-major, B either" if "MN" in allowed else "A and B are K-major"
        raise AtomMismatch("mma_atom", (asked,), f"{name} does not have the majors {','.join(majors)}", choice)
    suffix = f"<{majors[0]},{majors[1]}>" if majors != ("K", "K") else ""
    layouts = mma_table.wgmma_layouts(n, k, dtype(types[1]).bits, from_registers)
    return _atom(
        name + suffix,
        (64, n, k),
        "128:1",
        layouts,
        (*types, types[0]),
        majors=majors,
        min_arch=90,
        arch_specific=True,
        smem_operands="B" if from_registers else "AB",
    )


def UniversalFMA(D: Any, A: Any = None, B: Any = None, C: Any = None) -> MmaAtom:
    """The atom of one thread's d = a * b + c, for any types.

    Args:
      D: element type of D, and of what is left out.
      A: element type of A.
      B: element type of B.
      C: element type of C.

    >>> UniversalFMA("float32").name
    'UniversalFMA<float,float,float,float>'
    """
    types = tuple(dtype(D if t is None else t, "UniversalFMA") for t in (D, A, B, C))
    registers = tuple(Registers(t.name, 1) for t in types)
    return MmaAtom(
        f"UniversalFMA<{','.join(t.cute for t in types)}>",
        (1, 1, 1),
        Layout("1:0"),
        *(_UNIVERSAL,) * 4,
        tuple(t.name for t in types),
        registers,
        ("K", "K"),
        0,
    )


# ---- Copy ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CopyOp:
    """One copy instruction in bits.

    Attributes:
      name: CuTe's name. Operations are equal if their names are.
      thr_id: logical thread -> lane.
      bit_layout_src: (logical thread, bit) -> bit of the data, at the source.
      bit_layout_dst: the same at the destination.
      bit_layout_ref: the side whose numbers a TiledCopy's threads and values are.
      min_arch: the first architecture that has it.
      ptx: the instruction; "" for a load and a store.
      src_space: "gmem", "smem", "rmem", or "" for any.
      dst_space: the same of the destination.
      alignment: bytes that addresses in memory are a multiple of.
    """

    name: str
    thr_id: Layout = dataclasses.field(compare=False)
    bit_layout_src: Layout = dataclasses.field(compare=False)
    bit_layout_dst: Layout = dataclasses.field(compare=False)
    bit_layout_ref: Layout = dataclasses.field(compare=False)
    min_arch: int = dataclasses.field(compare=False)
    ptx: str = dataclasses.field(compare=False)
    src_space: str = dataclasses.field(compare=False)
    dst_space: str = dataclasses.field(compare=False)
    alignment: int = dataclasses.field(compare=False)

    def __repr__(self) -> str:
        """Evaluates to the operation."""
        return f"copy_op({self.name!r})"

    @property
    def threads(self) -> int:
        """Threads that execute the instruction together: 1 or 32."""
        return self.thr_id.size


_DST_N = {1: "(32,32):(32,1)", 2: "(32,(32,2)):(32,(1,1024))", 4: "(32,(32,4)):(32,(1,1024))"}
_DST_T = {
    1: "((4,8),(16,2)):((256,16),(1,128))",
    2: "((4,8),(16,2,2)):((256,16),(1,128,1024))",
    4: "((4,8),(16,2,4)):((256,16),(1,128,1024))",
}
# Lane i holds the address of row i % 8 of matrix i / 8; with fewer than four matrices the other lanes repeat them.
_ROWS = {1: "((8,4),128):((128,0),1)", 2: "((16,2),128):((128,0),1)", 4: "(32,128):(128,1)"}
_SHUFFLE = {
    "XOR1": "((2,16),(32,2)):((32,128),(1,64))",
    "XOR4": "((4,2,4),(32,2)):((64,32,512),(1,256))",
}


def _copy_ops() -> dict[str, tuple[Any, ...]]:
    """The arguments of CopyOp for each instruction of a warp."""
    ops: dict[str, tuple[Any, ...]] = {}
    for count in (1, 2, 4):
        for kind, size, registers in (("N", f"U32x{count}", _DST_N[count]), ("T", f"U16x{2 * count}", _DST_T[count])):
            tail = f".sync.aligned.m8n8.x{count}{'.trans' if kind == 'T' else ''}.shared.b16"
            rows = _ROWS[count]
            ops[f"SM75_{size}_LDSM_{kind}"] = (
                (rows, registers, registers),
                (75, "ldmatrix" + tail, "smem", "rmem", 16),
            )
            ops[f"SM90_{size}_STSM_{kind}"] = (
                (registers, rows, registers),
                (90, "stmatrix" + tail, "rmem", "smem", 16),
            )
    # As in CuTe the layouts are those of the registers on both sides: they do not show the transposition.
    ops["SM75_U32x1_MOVM_T"] = ((_DST_N[1],) * 3, (75, "movmatrix.sync.aligned.m8n8.trans.b16", "rmem", "rmem", 4))
    for name, dst in _SHUFFLE.items():
        src = "(32,64):(64,1)"
        ops[f"SM50_Shuffle_U322x2Trans_{name}"] = (src, dst, src), (50, "shfl.sync.bfly.b32", "rmem", "rmem", 4)
    return ops


@functools.cache
def _warp_copies() -> dict[str, tuple[Any, ...]]:
    return _copy_ops()


_CP_ASYNC = re.compile(r"(SM80_CP_ASYNC|CPOP_ASYNC)_CACHE(?P<kind>ALWAYS|GLOBAL)(?P<zfill>_ZFILL)?$")


def copy_op_names() -> tuple[str, ...]:
    """CuTe's names of all copy instructions. `UniversalCopy<T>` and cp.async are listed for unsigned integers."""
    sizes = {f"uint{8 * b}_t": b for b in (1, 2, 4, 8, 16)}
    names = list(_warp_copies())
    for kind, bytes_ in (("ALWAYS", (4, 8, 16)), ("GLOBAL", (16,))):
        for fill in ("", "_ZFILL"):
            names += [f"SM80_CP_ASYNC_CACHE{kind}{fill}<{t}>" for t, b in sizes.items() if b in bytes_]
    return (*names, *(f"UniversalCopy<{t}>" for t in sizes))


@functools.cache
def copy_op(name: str) -> CopyOp:
    """The copy instruction of a name.

    Args:
      name: CuTe's name (`SM75_U32x4_LDSM_N`, `SM80_CP_ASYNC_CACHEALWAYS<uint128_t>`, `UniversalCopy<double>`) or
        MoYe.jl's (`LDSM_U32x4_N`, `CPOP_ASYNC_CACHEALWAYS{UInt128}`, `UniversalCopy{Float64}`).

    Raises:
      AtomMismatch: there is no such instruction, or not of that size.
    """
    base, _, argument = name.replace("{", "<").rstrip("}>").partition("<")
    moye = re.fullmatch(r"(?:SM75_)?(LDSM|STSM)_(U\d+x\d+)_([NT])", base)
    if moye:
        base = f"{'SM75' if moye[1] == 'LDSM' else 'SM90'}_{moye[2]}_{moye[1]}_{moye[3]}"
    if base in _warp_copies() and not argument:
        layouts, rest = _warp_copies()[base]
        src, dst, ref = (Layout(text) for text in layouts)
        return CopyOp(base, Layout("32:1"), src, dst, ref, *rest)
    cp_async = _CP_ASYNC.match(base)
    if cp_async and argument:
        t = dtype(argument.partition(",")[0], "copy_op")
        legal = (4, 8, 16) if cp_async["kind"] == "ALWAYS" else (16,)
        if t.bits // 8 not in legal:
            raise AtomMismatch(
                "copy_op",
                (name,),
                f"cp.async.{'ca' if len(legal) > 1 else 'cg'} does not copy {t.bits // 8} bytes",
                f"a type of {' or '.join(map(str, legal))} bytes",
            )
        fill = cp_async["zfill"] or ""
        suffix = ", src_size" if fill else ""
        ptx = f"cp.async.{'ca' if len(legal) > 1 else 'cg'}.shared.global [dst],[src],{t.bits // 8}{suffix}"
        full = f"SM80_CP_ASYNC_CACHE{cp_async['kind']}{fill}<{t.cute}>"
        return _one_thread(full, t.bits, 80, ptx, "gmem", "smem")
    if base == "UniversalCopy" and argument:
        t = dtype(argument.partition(",")[0], "copy_op")
        return _one_thread(f"UniversalCopy<{t.cute}>", t.bits, 0, "", "", "")
    hint = f"{base}<uint128_t>" if cp_async or base == "UniversalCopy" else None
    near = difflib.get_close_matches(base, copy_op_names(), 3)
    raise AtomMismatch(
        "copy_op", (name,), f"there is no copy instruction {name!r}", hint or " or ".join(near) or "copy_op_names()"
    )


def _one_thread(name: str, bits: int, arch: int, ptx: str, src: str, dst: str) -> CopyOp:
    """One thread copies `bits` neighbouring bits."""
    layout = Layout((1, bits), (0, 1))
    return CopyOp(name, Layout("1:0"), layout, layout, layout, arch, ptx, src, dst, max(1, bits // 8))


def UniversalCopy(T: Any) -> CopyOp:
    """The operation of a thread that loads and stores one element of type `T`.

    A larger type than the values' is a vectorized copy: `CopyAtom(UniversalCopy("uint128"), "float32")` copies four.
    """
    return copy_op(f"UniversalCopy<{dtype(T, 'UniversalCopy').cute}>")


def cp_async(nbytes: int, *, cache: str = "always", zfill: bool = False) -> CopyOp:
    """cp.async of `nbytes` bytes: 4, 8 or 16 with cache="always" (.ca), 16 with cache="global" (.cg)."""
    return copy_op(f"SM80_CP_ASYNC_CACHE{cache.upper()}{'_ZFILL' if zfill else ''}<uint{8 * nbytes}_t>")


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class CopyAtom:
    """One copy instruction on values of a type.

    Args:
      op: CopyOp or its name.
      value_type: element type of what is copied.

    Attributes:
      val_layout_src: (logical thread, value) -> value of the data, at the source.
      val_layout_dst: the same at the destination.
      val_layout_ref: the side whose numbers a TiledCopy's threads and values are.

    Raises:
      AtomMismatch: the instruction does not move whole values of the type.
    """

    op: CopyOp
    value_type: str
    val_layout_src: Layout = dataclasses.field(init=False, compare=False)
    val_layout_dst: Layout = dataclasses.field(init=False, compare=False)
    val_layout_ref: Layout = dataclasses.field(init=False, compare=False)

    if TYPE_CHECKING:

        def __init__(self, op: CopyOp | str, value_type: Any) -> None:
            """Type checkers would ask for a CopyOp."""

    def __post_init__(self) -> None:
        """Checks and converts the arguments and derives the layouts."""
        op = copy_op(self.op) if isinstance(self.op, str) else self.op
        if not isinstance(op, CopyOp):
            raise AtomMismatch("CopyAtom", (str(op),), f"{op!r} is no copy instruction")
        t = dtype(self.value_type, "CopyAtom")
        object.__setattr__(self, "op", op)
        object.__setattr__(self, "value_type", t.name)
        for side in ("src", "dst", "ref"):
            bits = getattr(op, f"bit_layout_{side}")
            whole = bits[1].leaves[0][0] if isinstance(bits[1].shape, tuple) else bits[1].size
            if whole % t.bits:
                raise AtomMismatch(
                    "CopyAtom",
                    (op.name, t.name),
                    f"{op.name} moves pieces of {whole} bits, a {t.name} has {t.bits}",
                    f"a type of at most {whole} bits",
                )
            object.__setattr__(self, f"val_layout_{side}", recast_layout(bits, 1, t.bits))

    def __repr__(self) -> str:
        """Evaluates to the atom."""
        return f"CopyAtom({self.op.name!r}, {self.value_type!r})"

    @property
    def thr_id(self) -> Layout:
        """Logical thread -> lane."""
        return self.op.thr_id

    @property
    def threads(self) -> int:
        """Threads that execute the instruction together: 1 or 32."""
        return self.op.threads

    @property
    def num_val_src(self) -> int:
        """Values that a thread gives; for ldmatrix those of the row whose address it holds."""
        return self.val_layout_src[1].size

    @property
    def num_val_dst(self) -> int:
        """Values that a thread gets."""
        return self.val_layout_dst[1].size


# ---- Shared-memory layouts of wgmma --------------------------------------------------------------------------------

_GMMA_SWIZZLES = {"INTER": 0, "SW32": 1, "SW64": 2, "SW128": 3}


def gmma_smem_atom(major: str, swizzle: str, value_type: Any) -> ComposedLayout:
    """The smallest shared-memory layout that a wgmma descriptor describes.

    Args:
      major: "K": (MN,K) with K contiguous; "MN": (MN,K) with MN contiguous.
      swizzle: "INTER" (none), "SW32", "SW64" or "SW128": bytes of a swizzled row.
      value_type: element type.

    Returns:
      A ComposedLayout in elements, to be tiled with `tile_to_shape`. Its swizzle is Sw<i,4,3> on bytes.

    >>> gmma_smem_atom("K", "SW128", "float16")
    ComposedLayout('Sw<3,3,3> o 0 o (8,64):(64,1)')

    Raises:
      AtomMismatch: another major or swizzle.
    """
    if major not in ("K", "MN") or swizzle not in _GMMA_SWIZZLES:
        raise AtomMismatch(
            "gmma_smem_atom",
            (major, swizzle, str(value_type)),
            "no such layout",
            f"major K or MN; {', '.join(_GMMA_SWIZZLES)}",
        )
    i = _GMMA_SWIZZLES[swizzle]
    bits = dtype(value_type, "gmma_smem_atom").bits
    row = 128 << i
    shape, stride = ((8, row), (row, 1)) if major == "K" else ((row, 8), (1, row))
    return ComposedLayout(Swizzle(i, 7, 3), 0, Layout(shape, stride)).upcast(bits)
