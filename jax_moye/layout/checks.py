"""Checks from layouts alone: what a kernel's copies will cost and whether they are right, before anything is compiled.

A copy is a `TiledCopy`, or just its thread-value layout, (thread, value) -> index in the tile, where a thread's values
go `width` bytes at a time. Memory is a layout of elements, swizzled or not. Every check returns a small report that
prints as a sentence and has `ok`.

>>> copy = make_tiled_copy(CopyAtom(cp_async(16), "bf16"), "(16,8):(8,1)", "(1,8)")
>>> print(bank_conflicts("Sw<3,3,3> o 0 o (64,64):(64,1)", copy))
SM80_CP_ASYNC_CACHEALWAYS<uint128_t>: 16 instructions, 64 wavefronts, at least 64: degree 1, no bank conflict
>>> print(sectors("(64,64):(4096,1)", copy))  # doctest: +NORMALIZE_WHITESPACE
SM80_CP_ASYNC_CACHEALWAYS<uint128_t>: 16 instructions, 256 sectors of 64 lines for 8192 bytes, at least 256: 100% of
what is moved is used
>>> bank_conflicts("(32,32):(32,1)", "(32,1):(1,0)", "f32").degree  # 32 lanes read a column
32.0

Costs of given addresses are in `transactions`, shared memory, registers, occupancy and waves in `resources`.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_moye.layout import int_tuple as it
from jax_moye.layout import max_alignment, max_common_vector, transactions, zipped_divide
from jax_moye.layout.atoms import CopyAtom as CopyAtom
from jax_moye.layout.atoms import cp_async as cp_async
from jax_moye.layout.dtypes import dtype
from jax_moye.layout.errors import InvalidType, Misaligned, NonInjective, OutOfDomain
from jax_moye.layout.layout import Layout, as_any, as_layout
from jax_moye.layout.resources import ARCHS as ARCHS
from jax_moye.layout.resources import Arch as Arch
from jax_moye.layout.resources import OccupancyReport as OccupancyReport
from jax_moye.layout.resources import RegisterReport as RegisterReport
from jax_moye.layout.resources import SmemReport as SmemReport
from jax_moye.layout.resources import WaveReport as WaveReport
from jax_moye.layout.resources import find_arch as find_arch
from jax_moye.layout.resources import layout_bytes as layout_bytes
from jax_moye.layout.resources import occupancy as occupancy
from jax_moye.layout.resources import register_estimate as register_estimate
from jax_moye.layout.resources import smem_bytes as smem_bytes
from jax_moye.layout.resources import waves as waves
from jax_moye.layout.swizzle import ComposedLayout, Swizzle
from jax_moye.layout.tiled import TiledCopy
from jax_moye.layout.tiled import make_tiled_copy as make_tiled_copy
from jax_moye.layout.transactions import WARP, WIDTHS
from jax_moye.layout.transactions import BankReport as BankReport
from jax_moye.layout.transactions import Conflict as Conflict
from jax_moye.layout.transactions import SectorReport as SectorReport

_MATRIX = re.compile(r"(ld|st)matrix.*?\.x([124])")


# ---- The instructions of a copy ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Access:
    """One side of a copy: threads and values of a tile of memory, and the instruction."""

    layout_tv: Layout
    tiler: Any  # None: all of the memory
    tile_size: int
    element_bytes: int
    width: int  # bytes of a thread in one instruction
    matrices: int  # of ldmatrix and stmatrix; 0 for others
    transposed: bool
    name: str


def _element_bytes(value_type: Any, op: str) -> int:
    bits = dtype(value_type, op).bits
    if bits % 8:
        raise InvalidType(op, (str(value_type),), f"elements of {bits} bits have no address of their own")
    return bits // 8


def _access(
    op: str, memory: Any, copy: Any, value_type: Any, width: int | None, instruction: str, side: str
) -> _Access:
    """The arguments of a check. side: "S" or "D", of a TiledCopy."""
    if isinstance(copy, TiledCopy):
        atom = copy.atom
        matrix = _MATRIX.match(atom.op.ptx)
        # ldmatrix's source and stmatrix's destination are rows in shared memory.
        in_memory = matrix is not None and side == {"ld": "S", "st": "D"}[matrix[1]]
        element = _element_bytes(atom.value_type, op)
        values = atom.num_val_src if side == "S" else atom.num_val_dst
        return _Access(
            copy.layout_S_TV if side == "S" else copy.layout_D_TV,
            copy.tiler,
            it.product(copy.tile_size),
            element,
            width or values * element,
            int(matrix[2]) if matrix and in_memory else 0,
            ".trans" in atom.op.ptx,
            atom.op.name,
        )
    layout_tv = as_layout(copy, op)
    if layout_tv.rank != 2:
        raise InvalidType(op, (layout_tv,), f"a thread-value layout has rank 2, not {layout_tv.rank}")
    if value_type is None:
        raise InvalidType(
            op, (layout_tv,), "a thread-value layout has no element type", 'value_type="bf16", for example'
        )
    element = _element_bytes(value_type, op)
    matrix = _MATRIX.match(instruction.replace(".x", ".m8n8.x"))
    if instruction and matrix is None:
        raise InvalidType(op, (instruction,), f"{instruction} is no instruction on matrices", '"ldmatrix.x4"')
    width = 16 if matrix else width or layout_tv[1].size * element
    name = instruction or f"{width}-byte access"
    matrices = int(matrix[2]) if matrix else 0
    return _Access(layout_tv, None, memory.size, element, width, matrices, ".trans" in instruction, name)


def _elements(memory: Any, access: _Access, op: str) -> np.ndarray:
    """Where in memory each element is, as an array (thread, value, tile)."""
    layout_tv = access.layout_tv
    if access.tiler is None:
        index = memory.values()
    else:
        inner = memory if isinstance(memory, Layout) else memory.layout
        divided = zipped_divide(inner, access.tiler)  # (tile, rest)
        index = (divided if isinstance(memory, Layout) else memory.with_layout(divided)).values()
    of_tile = index.reshape((access.tile_size, -1), order="F")
    threads_values = layout_tv.values()
    if threads_values.max() >= len(of_tile):
        raise OutOfDomain(
            op, (memory, layout_tv), f"index {int(threads_values.max())} of a tile of {len(of_tile)} elements"
        )
    return of_tile[threads_values].reshape((layout_tv[0].size, layout_tv[1].size, -1), order="F")


def _vectors(memory: Any, access: _Access, base: int, op: str) -> tuple[np.ndarray, str | None]:
    """The byte address of each vector as an array (thread, vector, tile); and what is wrong with one, if any is."""
    if access.width not in WIDTHS or access.width % access.element_bytes:
        problem = f"a thread moves {access.element_bytes} times 1, 2, 4, 8 or 16 bytes in one instruction"
        raise InvalidType(op, (access.width,), f"{problem}, not {access.width}", "width=")
    elements = _elements(memory, access, op)
    threads, values, tiles = elements.shape
    n = access.width // access.element_bytes
    if values % n:
        raise InvalidType(op, (access.width,), f"{values} values of a thread are no multiple of the {n} of a vector")
    groups = elements.reshape((threads, n, values // n, tiles), order="F")
    first = groups[:, 0]
    address = base + first * access.element_bytes
    scattered = (groups != first[:, None] + np.arange(n)[:, None, None]).any(axis=1)
    if scattered.any():
        thread, vector, tile = (int(x) for x in np.argwhere(scattered)[0])
        indices = groups[thread, :, vector, tile].tolist()
        return address, f"the {n} values of vector {vector} of thread {thread} are at elements {indices}: no neighbours"
    crooked = address % access.width != 0
    if crooked.any():
        thread, vector, tile = (int(x) for x in np.argwhere(crooked)[0])
        where = int(address[thread, vector, tile])
        return address, f"vector {vector} of thread {thread} is at byte {where}, no multiple of {access.width}"
    return address, None


def _requests(memory: Any, access: _Access, base: int, op: str) -> np.ndarray:
    """The lanes' addresses of every instruction, (instruction, lane)."""
    address, problem = _vectors(memory, access, base, op)
    if problem:
        raise Misaligned(op, (memory, access.name), problem)
    threads = len(address)
    if threads % WARP:
        address = np.pad(address, ((0, -threads % WARP), (0, 0), (0, 0)), constant_values=-1)
    return address.reshape(-1, WARP, *address.shape[1:]).transpose(2, 3, 0, 1).reshape(-1, WARP)


def _smem_side(copy: Any) -> str:
    return "S" if isinstance(copy, TiledCopy) and copy.atom.op.src_space == "smem" else "D"


def _gmem_side(copy: Any) -> str:
    return "D" if isinstance(copy, TiledCopy) and copy.atom.op.src_space in ("rmem", "smem") else "S"


# ---- Cost ----------------------------------------------------------------------------------------------------------


def bank_conflicts(
    smem: Any,
    copy: Any,
    value_type: Any = None,
    *,
    width: int | None = None,
    instruction: str = "",
    side: str | None = None,
    base: int = 0,
    what: str | None = None,
) -> BankReport:
    """Wavefronts of a copy's accesses to shared memory, all warps and all of the tile together.

    Args:
      smem: layout of the shared memory, in elements.
      copy: a TiledCopy; or a thread-value layout, (thread, value) -> index in `smem`'s shape.
      value_type: element type, for a thread-value layout.
      width: bytes that a thread moves in one instruction, which are neighbours among its values. By default the copy
        atom's; of a thread-value layout, all of a thread's values.
      instruction: for a thread-value layout whose values are rows of matrices, "ldmatrix.x4" and the like.
      side: "S" or "D" of a TiledCopy; by default the one that the instruction has in shared memory.
      base: byte address of the layout's element 0.
      what: name of the access, for the sentence.

    Returns:
      A BankReport.

    Example:
      >>> for smem in ("(64,64):(64,1)", "(64,64):(72,1)", "Sw<3,3,3> o 0 o (64,64):(64,1)"):
      ...     bank_conflicts(smem, "((16,2),8):((1,512),64)", "f16", instruction="ldmatrix.x4").degree
      8.0
      1.0
      1.0

    Raises:
      Misaligned: values that one instruction moves are no neighbours, or not at a multiple of its width.
      InvalidType: a width or instruction that does not exist.
    """
    smem = as_any(smem, "bank_conflicts")
    side = side or _smem_side(copy)
    access = _access("bank_conflicts", smem, copy, value_type, width, instruction, side)
    lanes = _requests(smem, access, base, "bank_conflicts")
    if access.matrices:
        return transactions.ldmatrix(lanes, access.matrices, what=what or access.name)
    return transactions.shared_memory(lanes, access.width, what=what or access.name)


def sectors(
    gmem: Any,
    copy: Any,
    value_type: Any = None,
    *,
    width: int | None = None,
    side: str | None = None,
    base: int = 0,
    what: str | None = None,
) -> SectorReport:
    """Sectors of a copy's accesses to global memory, all warps and all of the tile together.

    Args:
      gmem: layout of the tile in global memory, in elements, with the strides that it has there.
      copy: a TiledCopy; or a thread-value layout, (thread, value) -> index in `gmem`'s shape.
      value_type: element type, for a thread-value layout.
      width: bytes that a thread moves in one instruction, as for `bank_conflicts`.
      side: "S" or "D" of a TiledCopy; by default the one that the instruction has in global memory.
      base: byte address of the tile's first element: 0 if it is aligned to a sector.
      what: name of the access, for the sentence.

    Returns:
      A SectorReport.

    >>> sectors("(128,8):(1,128)", "(32,2):(4,1)", "f32").efficiency  # 8 of each 16 bytes
    0.5

    Raises:
      Misaligned, InvalidType: as `bank_conflicts`.
    """
    gmem = as_any(gmem, "sectors")
    access = _access("sectors", gmem, copy, value_type, width, "", side or _gmem_side(copy))
    lanes = _requests(gmem, access, base, "sectors")
    return transactions.global_memory(lanes, access.width, what=what or access.name)


# ---- Legality ------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class AlignmentReport:
    """Whether a copy's vectors are neighbours in memory and aligned to their size.

    Attributes:
      what: the access.
      width: bytes of a vector.
      vectors: how many there are.
      problem: of the first that is not right; None if all are.
    """

    what: str
    width: int
    vectors: int
    problem: str | None

    @property
    def ok(self) -> bool:
        """Whether all are right."""
        return self.problem is None

    def require(self) -> AlignmentReport:
        """The report itself, if ok.

        Raises:
          Misaligned: it is not.
        """
        if self.problem:
            raise Misaligned("alignment", (self.what,), self.problem)
        return self

    def __str__(self) -> str:
        """A sentence."""
        return f"{self.what}: {self.problem or f'{self.vectors} vectors of {self.width} bytes, all aligned'}"


def alignment(
    memory: Any,
    copy: Any,
    value_type: Any = None,
    *,
    width: int | None = None,
    side: str = "D",
    base: int = 0,
) -> AlignmentReport:
    """Whether the values that an instruction moves are neighbours in memory, at multiples of its width.

    Args:
      memory: layout of the tile, in elements.
      copy: a TiledCopy; or a thread-value layout, (thread, value) -> index in `memory`'s shape.
      value_type: element type, for a thread-value layout.
      width: bytes that a thread moves in one instruction, as for `bank_conflicts`.
      side: "S" or "D" of a TiledCopy.
      base: byte address of the layout's element 0.

    >>> for pitch in (129, 130):  # 8 bytes of f32, rows padded
    ...     alignment(f"(128,8):(1,{pitch})", "((64,8),2):((2,128),1)", "f32").ok
    False
    True
    """
    memory = as_any(memory, "alignment")
    access = _access("alignment", memory, copy, value_type, width, "", side)
    address, problem = _vectors(memory, access, base, "alignment")
    return AlignmentReport(access.name, access.width, address.size, problem)


def ldmatrix_legality(
    smem: Any, copy: Any, value_type: Any = None, *, instruction: str = "ldmatrix.x4", base: int = 0
) -> AlignmentReport:
    """Whether ldmatrix or stmatrix can reach the rows of its matrices: 16 neighbouring bytes, aligned to 16.

    Args:
      smem: layout of the shared memory, in elements.
      copy: a TiledCopy; or a thread-value layout whose values are the row that a lane holds the address of.
      value_type: element type, for a thread-value layout.
      instruction: for a thread-value layout.
      base: byte address of the layout's element 0.

    >>> print(ldmatrix_legality("(64,32):(36,1)", "((16,2),8):((1,512),64)", "f16"))
    ldmatrix.x4: vector 0 of thread 1 is at byte 72, no multiple of 16
    """
    smem = as_any(smem, "ldmatrix_legality")
    access = _access("ldmatrix_legality", smem, copy, value_type, None, instruction, _smem_side(copy))
    if not access.matrices:
        problem: str | None = "loads no matrices"
        return AlignmentReport(access.name, 16, 0, problem)
    address, problem = _vectors(smem, access, base, "ldmatrix_legality")
    if access.transposed and access.element_bytes != 2:
        problem = f"transposes matrices of 16-bit elements, not of {8 * access.element_bytes}"
    return AlignmentReport(access.name, 16, address.size, problem)


@dataclasses.dataclass(frozen=True)
class CoverageReport:
    """How often a copy's threads touch each element of the tile.

    Attributes:
      size: elements of the tile.
      touched: distinct elements that are touched.
      repeats: how often the element is touched that is touched most; 1 if all are once. For reads it is the size of the
        thread-value layout's nullspace, if that repeats all elements alike.
      write: whether touching twice is an error.
      collision: two (thread, value) pairs that touch the same element, and its index in memory; None if none do.
      missing: the first index in the tile that nobody touches; None if there is none.
    """

    size: int
    touched: int
    repeats: int
    write: bool
    collision: tuple[tuple[int, int], tuple[int, int], int] | None = None
    missing: int | None = None

    @property
    def ok(self) -> bool:
        """Whether all elements are touched; when written, once."""
        return self.missing is None and not (self.write and self.collision)

    def require(self) -> CoverageReport:
        """The report itself, if ok.

        Raises:
          OutOfDomain: elements are left out.
          NonInjective: an element is written twice.
        """
        if not self.ok:
            raise (OutOfDomain if self.missing is not None else NonInjective)("coverage", (self.size,), str(self))
        return self

    def __str__(self) -> str:
        """A sentence."""
        text = f"coverage: {self.touched} of {self.size} elements"
        if self.missing is not None:
            text += f", element {self.missing} is left out"
        if self.collision is None:
            return f"{text}, each once"
        (t0, v0), (t1, v1), element = self.collision
        race = "a race: " if self.write and t0 != t1 else ""
        verb = "write" if self.write else "read"
        pair = f"thread {t0} (value {v0}) and thread {t1} (value {v1})"
        return f"{text}, up to {self.repeats} times; {race}{pair} both {verb} element {element}"


def coverage(copy: Any, tile: Any = None, *, memory: Any = None, write: bool = True, side: str = "D") -> CoverageReport:
    """Whether a copy's threads touch each element of a tile, and once if they write.

    Args:
      copy: a TiledCopy; or a thread-value layout, (thread, value) -> index in the tile.
      tile: shape or size of the tile; by default the TiledCopy's own, or up to the highest index touched.
      memory: a layout of the tile in memory: elements at the same place in it count as the same.
      write: whether the copy writes.
      side: "S" or "D" of a TiledCopy.

    >>> print(coverage("(4,2):(1,2)", 8))
    coverage: 6 of 8 elements, element 6 is left out, up to 2 times; a race: thread 2 (value 0) and thread 0 (value 1) \
both write element 2
    """
    if isinstance(copy, TiledCopy):
        layout_tv = copy.layout_S_TV if side == "S" else copy.layout_D_TV
        tile = copy.tile_size if tile is None else tile
    else:
        layout_tv = as_layout(copy, "coverage")
    if layout_tv.rank != 2:
        raise InvalidType("coverage", (layout_tv,), f"a thread-value layout has rank 2, not {layout_tv.rank}")
    index = layout_tv.values()
    size = int(index.max()) + 1 if tile is None else it.product(it.as_int_tuple(tile, "coverage"))
    if index.max() >= size or index.min() < 0:
        raise OutOfDomain("coverage", (layout_tv, size), f"index {int(index.max())} of a tile of {size} elements")
    wanted = np.arange(size)
    if memory is not None:
        memory = as_any(memory, "coverage")
        if memory.size != size:
            raise OutOfDomain("coverage", (memory, size), f"a layout of {memory.size} elements for a tile of {size}")
        wanted = memory.values()
        index = wanted[index]
    distinct, times = np.unique(index, return_counts=True)
    collision = None
    if times.max() > 1:
        twice = distinct[times > 1][0]
        at = np.flatnonzero(index == twice)[:2]
        threads = layout_tv[0].size
        one, other = ((int(i) % threads, int(i) // threads) for i in at)
        collision = (one, other, int(twice))
    absent = np.flatnonzero(~np.isin(wanted, distinct))
    missing = int(absent[0]) if absent.size else None
    return CoverageReport(len(np.unique(wanted)), len(distinct), int(times.max()), write, collision, missing)


@dataclasses.dataclass(frozen=True)
class VectorReport:
    """The widest vector that one access can move between two layouts.

    Attributes:
      elements: of the vector.
      bytes: of the vector.
      limited_by: why it is not wider; "16 bytes" if it is as wide as an access can be.
    """

    elements: int
    bytes: int
    limited_by: str

    def __str__(self) -> str:
        """A sentence."""
        noun = "element" if self.elements == 1 else "elements"
        return f"vectors of {self.elements} {noun}, {self.bytes} bytes, limited by {self.limited_by}"


def widest_vector(
    source: Any,
    destination: Any,
    value_type: Any,
    *,
    source_alignment: int = 16,
    destination_alignment: int = 16,
    most: int = 16,
) -> VectorReport:
    """The widest vector that one access can move from a tensor to another of the same shape, in the same order.

    Args:
      source: layout, with the strides that it has in memory.
      destination: the same.
      value_type: element type of both.
      source_alignment: bytes that the source's first element is known to lie at a multiple of.
      destination_alignment: the same of the destination.
      most: the widest access there is, in bytes.

    >>> print(widest_vector("(8,32):(4096,1)", "Sw<2,3,3> o 0 o (8,32):(32,1)", "bf16"))
    vectors of 8 elements, 16 bytes, limited by 16 bytes
    >>> print(widest_vector("(8,32):(4095,1)", "(8,32):(32,1)", "bf16"))
    vectors of 1 element, 2 bytes, limited by the strides of the source
    """
    op = "widest_vector"
    source, destination = as_any(source, op), as_any(destination, op)
    element = _element_bytes(value_type, op)
    limits = (
        ("what is contiguous in both", max_common_vector(source, destination) * element),
        ("the strides of the source", max_alignment(source) * element),
        ("the strides of the destination", max_alignment(destination) * element),
        ("the address of the source", source_alignment),
        ("the address of the destination", destination_alignment),
    )
    width = element
    while True:
        limit = next((name for name, n in limits if n % (2 * width)), None)
        if 2 * width > most:
            limit = f"{most} bytes"
        if limit:
            return VectorReport(width // element, width, limit)
        width *= 2


# ---- Search --------------------------------------------------------------------------------------------------------


def best_swizzle(
    smem: Any, accesses: Sequence[Any], value_type: Any = None, *, instruction: str = ""
) -> tuple[Swizzle, BankReport]:
    """The swizzle of 16-byte pieces with the fewest wavefronts over several accesses.

    Args:
      smem: layout of the tile without a swizzle.
      accesses: TiledCopies, or thread-value layouts; each of them once.
      value_type: element type, for thread-value layouts.
      instruction: of those thread-value layouts.

    Returns:
      The swizzle (of equal ones the simplest) and the report of all accesses together. `Sw<0,...>` changes nothing.

    >>> swizzle, report = best_swizzle("(64,32):(32,1)", ["((16,2),8):((1,512),64)"], "f16", instruction="ldmatrix.x4")
    >>> swizzle, report.degree
    (Swizzle('Sw<2,3,3>'), 1.0)
    """
    smem = as_layout(smem, "best_swizzle")
    first = accesses[0]
    value_type = first.atom.value_type if isinstance(first, TiledCopy) else value_type
    base = int(math.log2(max(1, 16 // _element_bytes(value_type, "best_swizzle"))))
    best: tuple[Swizzle, BankReport] | None = None
    for bits in range(4):
        for shift in range(3, 6) if bits else (3,):
            swizzle = Swizzle(bits, base, shift)
            if bits and smem.cosize % swizzle.period:
                continue  # elements would leave the tile
            layout = ComposedLayout(swizzle, 0, smem) if bits else smem
            reports = [
                bank_conflicts(layout, access, value_type, instruction=instruction, what="all accesses")
                for access in accesses
            ]
            total = reports[0]
            for report in reports[1:]:
                total += report
            if best is None or total.wavefronts < best[1].wavefronts:
                best = (swizzle, total)
    assert best is not None
    return best
