"""TiledCopy: a copy atom repeated over the threads and values of a tile, and one thread's part of a tensor."""

# Names as in CuTe:
# ruff: noqa: N802, N815

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jax_moye.layout import int_tuple as it
from jax_moye.layout.algebra import coalesce, composition
from jax_moye.layout.algebra import filter as filter_
from jax_moye.layout.atoms import CopyAtom
from jax_moye.layout.cast import upcast
from jax_moye.layout.divide import logical_product, raked_product, zipped_divide
from jax_moye.layout.errors import (
    AtomMismatch,
    LayoutError,
    NonInjective,
    OutOfDomain,
    RankMismatch,
    ShapeDivisibility,
    TiledCopyTooFewThreads,
    TiledCopyTooFewValues,
)
from jax_moye.layout.int_tuple import _, show
from jax_moye.layout.inverse import left_inverse, right_inverse
from jax_moye.layout.layout import Layout, as_any, as_layout
from jax_moye.layout.modes import make_layout, slice_and_offset
from jax_moye.layout.partition import CACHE, as_arrangement, check_thread, sliced_part
from jax_moye.layout.tensor import Tensor
from jax_moye.layout.tiled_mma import TiledMma


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class TiledCopy:
    """A copy atom repeated over the threads and values of a tile.

    Laws: each of `layout_S_TV` and `layout_D_TV` reaches every element of the tile; destinations exactly once, unless
    the TV layout it was made from repeats elements over threads (copies for the A and B of an MMA do).

    Attributes:
      atom: the CopyAtom.
      layout_TV: (thread, value) -> index in the tile, as the atom's reference side numbers them.
      tiler: the tile: an extent or a layout for each mode.

    Raises:
      TiledCopyTooFewThreads: the threads are no multiple of the atom's.
      TiledCopyTooFewValues: the values of a thread are no multiple of the atom's.
    """

    atom: CopyAtom
    layout_TV: Layout
    tiler: tuple[Any, ...]

    def __post_init__(self) -> None:
        """Checks that whole atoms fit."""
        ref = self.atom.val_layout_ref
        atom_threads, atom_values = ref[0].size, ref[1].size
        given = (self.atom, self.layout_TV, self.tiler)
        if self.threads % atom_threads:
            raise TiledCopyTooFewThreads(
                "make_tiled_copy",
                given,
                f"{self.atom.op.name} takes {atom_threads} threads; {self.threads} are no multiple of them",
                f"{-(-self.threads // atom_threads) * atom_threads} threads",
            )
        if self.values % atom_values:
            raise TiledCopyTooFewValues(
                "make_tiled_copy",
                given,
                f"{self.atom.op.name} moves {atom_values} {self.atom.value_type} of a thread; {self.values} values are "
                "no multiple of them",
                f"{-(-self.values // atom_values) * atom_values} values per thread, or a narrower instruction",
            )

    def __repr__(self) -> str:
        """Threads, tile and instruction in a line."""
        return f"TiledCopy: {self.threads} threads, tile {show(self.tile_size)}, {self.atom.op.name}"

    @property
    def threads(self) -> int:
        """Number of threads."""
        return self.layout_TV[0].size

    @property
    def size(self) -> int:
        """Number of threads, as in CuTe."""
        return self.threads

    @property
    def values(self) -> int:
        """Values of a thread in a tile."""
        return self.layout_TV[1].size

    @property
    def tile_size(self) -> tuple[int, ...]:
        """Extents of the tile."""
        return tuple(t if isinstance(t, int) else t.size for t in self.tiler)

    @property
    def layout_S_TV(self) -> Layout:
        """(thread, (value of an atom, atom)) -> index in the tile, at the source."""
        return _side_layout_TV(self, self.atom.val_layout_src)

    @property
    def layout_D_TV(self) -> Layout:
        """(thread, (value of an atom, atom)) -> index in the tile, at the destination."""
        return _side_layout_TV(self, self.atom.val_layout_dst)

    def get_layoutS_TV(self) -> Layout:
        """CuTe's name of `layout_S_TV`."""
        return self.layout_S_TV

    def get_layoutD_TV(self) -> Layout:
        """CuTe's name of `layout_D_TV`."""
        return self.layout_D_TV

    def tidfrg_S(self, layout: Any) -> Layout:
        """((thread, (value,atom)), (RestM, RestN, ...)) of a source: what `partition_S` takes a thread's part of."""
        return thread_values(as_layout(layout, "tidfrg_S"), self, self.layout_S_TV)

    def tidfrg_D(self, layout: Any) -> Layout:
        """((thread, (value,atom)), (RestM, RestN, ...)) of a destination."""
        return thread_values(as_layout(layout, "tidfrg_D"), self, self.layout_D_TV)

    def get_layoutS_MN(self) -> tuple[Layout, Layout]:
        """((m,n) -> thread + threads * value, thread -> thread) of the source's tile.

        Of threads that hold, or give the address of, the same element the first counts.
        """
        return composition(right_inverse(self.layout_S_TV), Layout(self.tile_size)), Layout(self.threads)

    def get_layoutD_MN(self) -> tuple[Layout, Layout]:
        """((m,n) -> thread + threads * value, thread -> thread) of the destination's tile."""
        return composition(right_inverse(self.layout_D_TV), Layout(self.tile_size)), Layout(self.threads)

    def get_slice(self, thread: int) -> ThrCopy:
        """One thread's part.

        Raises:
          CoordOutOfRange: there is no such thread.
        """
        return ThrCopy(self, check_thread("get_slice", thread, self.threads, self))

    get_thread_slice = get_slice

    def retile(self, fragment: Any) -> Any:
        """A fragment that was cut for another tiling of the same values, say an MMA's, as ((value,atom),RestM,...).

        Args:
          fragment: a Tensor or layout (V,M,N): what a thread holds of a tensor, cut for the other tiling.

        Returns:
          A Tensor, or a layout: the same elements in the order in which this copy moves them.

        Raises:
          ShapeDivisibility: V does not divide this copy's values per thread.
        """
        if isinstance(fragment, Tensor):
            return Tensor(fragment.data, self.retile(fragment.layout), fragment.offset)
        return _retile(self, as_any(fragment, "retile"))


@functools.lru_cache(CACHE)
def _side_layout_TV(tiled: TiledCopy, side: Layout) -> Layout:
    ref = tiled.atom.val_layout_ref
    # ((thread of an atom, value of an atom), (other threads, other values)) -> tile
    divided = zipped_divide(tiled.layout_TV, (ref[0].size, ref[1].size))
    to_ref = composition(right_inverse(ref), side)  # the side's (thread, value) -> the reference's
    atom = composition(divided[0], to_ref)
    return make_layout(
        coalesce(make_layout(atom[0], divided[1][0])),
        make_layout(coalesce(atom[1]), coalesce(divided[1][1])),
    )


@functools.lru_cache(CACHE)
def thread_values(layout: Layout, tiled: TiledCopy, layout_tv: Layout) -> Layout:
    """((thread, (value,atom)), (RestM,RestN,...)) of a layout with modes M,N,..."""
    if layout.rank < len(tiled.tiler):
        raise RankMismatch(
            "partition", (layout, tiled.tiler), f"a tensor of rank {layout.rank} for a tile of rank {len(tiled.tiler)}"
        )
    divided = zipped_divide(layout, tiled.tiler)
    return make_layout(composition(divided[0], layout_tv), divided[1])


@functools.lru_cache(CACHE)
def _retile(tiled: TiledCopy, layout: Layout) -> Layout:
    rank, first = layout.rank, layout[0].size
    if tiled.values % first:
        raise ShapeDivisibility(
            "retile", (tiled.layout_TV, layout), f"{first} values of a fragment do not divide {tiled.values} of a tile"
        )
    # The first `first` values of a thread are the fragment's mode 0, the others are spread over its other modes. The
    # tile in units of (all threads) x `first` values: (m,n) -> the group of values that it belongs to.
    extents = tiled.tile_size
    group_of = upcast(composition(right_inverse(tiled.layout_TV), Layout(extents)), tiled.threads * first)
    # (value in the fragment's mode 0, group) -> (v,m,n) in the part of the fragment that one tile covers
    values = logical_product(Layout(first), right_inverse(group_of))
    atoms = zipped_divide(values, Layout(tiled.atom.val_layout_ref[1].size))  # (value, atom) -> (v,m,n)
    divided = zipped_divide(layout, (first, *it.product_each(group_of.shape)))
    whole = make_layout(composition(divided[0], atoms), divided[1])  # ((value,atom), (1,RestM,RestN,...))
    return slice_and_offset((_, (0, *(_,) * (rank - 1))), whole)[0]


@dataclasses.dataclass(frozen=True, slots=True)
class ThrCopy:
    """One thread's part of a TiledCopy.

    `partition_S` and `partition_D` take a Tensor or a layout with at least the tile's modes and give
    ((value,atom), RestM, RestN, ...): CPY, CPY_M, CPY_K, ... in MoYe.jl's words. Of a Tensor they give a Tensor, of a
    layout the layout and its offset.

    Raises:
      ShapeDivisibility: an extent is not a multiple of the tile's.
      RankMismatch: the tensor has fewer modes than the tile.
    """

    tiled: TiledCopy
    thread: int

    def partition_S(self, source: Any) -> Any:
        """This thread's elements of the source, ((value,atom), RestM, RestN, ...)."""
        return self._partition(source, "partition_S", self.tiled.layout_S_TV, "S")

    def partition_D(self, destination: Any) -> Any:
        """This thread's elements of the destination, ((value,atom), RestM, RestN, ...)."""
        return self._partition(destination, "partition_D", self.tiled.layout_D_TV, "D")

    def retile_S(self, fragment: Any) -> Any:
        """A fragment as this copy's source. See TiledCopy.retile."""
        return self._retile(fragment, "S")

    def retile_D(self, fragment: Any) -> Any:
        """A fragment as this copy's destination. See TiledCopy.retile."""
        return self._retile(fragment, "D")

    def _retile(self, fragment: Any, side: str) -> Any:
        retiled = self.tiled.retile(fragment)
        if isinstance(retiled, Tensor):
            retiled.side = side
        return retiled

    def _partition(self, x: Any, op: str, layout_tv: Layout, side: str) -> Any:
        return sliced_part(
            x,
            op,
            lambda layout: thread_values(layout, self.tiled, layout_tv),
            lambda inner: ((self.thread, _), (_,) * inner[1].rank),
            side,
        )


def make_tiled_copy(atom: CopyAtom, thr_layout: Any, val_layout: Any = "(1,1)") -> TiledCopy:
    """A copy by threads and values that sit in a tile as the two layouts say.

    Args:
      atom: the CopyAtom.
      thr_layout: (m,n) -> thread: a layout, its text, or a shape (column-major).
      val_layout: (m,n) -> value of a thread, next to each other: the same.

    Returns:
      A TiledCopy of the tile whose extents are the products of both. The layouts speak of the atom's reference side,
      that is the destination, except for stmatrix.

    Raises:
      TiledCopyTooFewThreads, TiledCopyTooFewValues: the atom does not fit.
      OutOfDomain: the layouts are not bijections onto [0,size).
    """
    if not isinstance(atom, CopyAtom):
        raise AtomMismatch("make_tiled_copy", (str(atom),), f"{atom!r} is no copy atom", "CopyAtom(op, dtype)")
    thr, val = (as_arrangement(x, "make_tiled_copy") for x in (thr_layout, val_layout))
    layout_mn = raked_product(thr, val)  # (m,n) -> (thread, value)
    layout_tv = composition(right_inverse(layout_mn), Layout((thr.size, val.size)))
    return TiledCopy(atom, layout_tv, it.product_each(layout_mn.shape))


def make_cotiled_copy(atom: CopyAtom, layout_tv: Any, memory: Any) -> TiledCopy:
    """A copy by threads and values that are where they are in memory, not in a tile.

    Args:
      atom: the CopyAtom.
      layout_tv: (thread, value) -> offset in memory.
      memory: the layout of the data, injective: coordinate -> offset. Rows may be padded: their pitch larger than they
        are long.

    Returns:
      A TiledCopy of the smallest tile of `memory` with all these elements: thread 0's first value of the partition of
      `memory` is at the offset that `layout_tv` gives, and so on.

    >>> make_cotiled_copy(CopyAtom("UniversalCopy<uint128_t>", "float16"), "((8,16),8):((8,64),1)", "(64,64):(64,1)")
    TiledCopy: 128 threads, tile (16,64), UniversalCopy<uint128_t>

    Raises:
      OutOfDomain: an offset at which the data has no element, in its padding for example.
      LeftInverseDivisibility: a stride of the data is not a multiple of the next smaller one: no layout finds the
        coordinate of an offset (CuTe's condition, too).
      StrideDivisibility, ShapeDivisibility, ...: no tile has these elements.
      TiledCopyTooFewThreads, TiledCopyTooFewValues: the atom does not fit.
    """
    tv, data = as_arrangement(layout_tv, "make_cotiled_copy"), as_arrangement(memory, "make_cotiled_copy")
    missing = sorted(set(tv.values().tolist()) - set(data.values().tolist()))
    if missing:
        thread, value = divmod(tv.values().tolist().index(missing[0]), tv[0].size)[::-1]
        raise OutOfDomain(
            "make_cotiled_copy",
            (tv, data),
            f"value {value} of thread {thread} is at offset {missing[0]}, where {data} has no element",
        )
    try:
        at = composition(left_inverse(data), tv)  # (thread, value) -> position in the data
        if any(at(i) >= data.size or data(at(i)) != tv(i) for i in range(tv.size)):
            raise NonInjective("make_cotiled_copy", (tv, data), f"{data} has elements at the same offset")
        shape = it.product_each(data.shape)
        along = [Layout(shape, tuple(int(i == j) for j in range(len(shape)))) for i in range(len(shape))]
        tiler = tuple(filter_(composition(mode, at)) for mode in along)
        layout = composition(left_inverse(composition(Layout(shape), tiler)), at)
    except LayoutError as error:
        if error.op == "make_cotiled_copy":
            raise
        raise error.inside("make_cotiled_copy", (tv, data)) from None
    return TiledCopy(atom, layout, tiler)


def make_tiled_copy_A(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy that brings each thread of a TiledMma what it holds of A's (M,K) tile."""
    return TiledCopy(atom, mma.layout_A_TV, (mma.tile_shape[0], mma.tile_shape[2]))


def make_tiled_copy_B(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy that brings each thread of a TiledMma what it holds of B's (N,K) tile."""
    return TiledCopy(atom, mma.layout_B_TV, (mma.tile_shape[1], mma.tile_shape[2]))


def make_tiled_copy_C(atom: CopyAtom, mma: TiledMma) -> TiledCopy:
    """The copy of what each thread of a TiledMma holds of C's (M,N) tile."""
    return TiledCopy(atom, mma.layout_C_TV, (mma.tile_shape[0], mma.tile_shape[1]))


def make_tiled_copy_S(atom: CopyAtom, tiled: TiledCopy) -> TiledCopy:
    """A copy with another atom whose threads and values are those of the source of `tiled`."""
    return TiledCopy(atom, tiled.layout_S_TV, tiled.tiler)


def make_tiled_copy_D(atom: CopyAtom, tiled: TiledCopy) -> TiledCopy:
    """A copy with another atom whose threads and values are those of the destination of `tiled`."""
    return TiledCopy(atom, tiled.layout_D_TV, tiled.tiler)
