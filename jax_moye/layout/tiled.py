"""TiledCopy and TiledMma: an atom repeated over the threads and values of a tile, and one thread's part of a tensor.

Everything here is layouts: partitions of a layout are a layout and an offset, partitions of a `Tensor` are Tensors.

>>> copy = make_tiled_copy(CopyAtom("UniversalCopy<double>", "float64"), "(2,3):(3,1)", "(2,3):(1,2)")
>>> copy
TiledCopy: 6 threads, tile (4,9), UniversalCopy<double>
>>> copy.get_slice(1).partition_S("(4,9):(1,4)")
(Layout('((1,(2,3)),1,1):((0,(1,4)),0,0)'), 12)
"""

# Names as in CuTe:
# ruff: noqa: N802

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jax_moye.layout import coords
from jax_moye.layout import int_tuple as it
from jax_moye.layout.algebra import coalesce, complement, composition
from jax_moye.layout.atoms import CopyAtom, MmaAtom, mma_atom
from jax_moye.layout.cast import upcast
from jax_moye.layout.divide import logical_divide, logical_product, raked_product, tiled_product, zipped_divide
from jax_moye.layout.errors import (
    AtomMismatch,
    CoordOutOfRange,
    InvalidType,
    RankMismatch,
    ShapeDivisibility,
    TiledCopyTooFewThreads,
    TiledCopyTooFewValues,
)
from jax_moye.layout.int_tuple import _, show
from jax_moye.layout.inverse import right_inverse
from jax_moye.layout.layout import ONE, Layout, as_any, as_tiler
from jax_moye.layout.modes import append, get, make_fragment_like, make_layout, slice_and_offset
from jax_moye.layout.tensor import Tensor, make_tensor

_CACHE = 1024  # layouts kept for each function


# ---- On layouts and tensors alike ----------------------------------------------------------------------------------


def _layout_of(x: Any, op: str) -> Any:
    """The layout of a tensor; a layout, composed layout or its text as a layout."""
    return x.layout if isinstance(x, Tensor) else as_any(x, op)


def _sliced(x: Any, op: str, transform: Any, coord: Any) -> Any:
    """`transform` applied to the (inner) layout of x, then sliced: a Tensor, or a layout and its offset."""
    layout = _layout_of(x, op)
    plain = isinstance(layout, Layout)
    inner = transform(layout if plain else layout.layout)
    if callable(coord):
        coord = coord(inner)
    sliced, offset = slice_and_offset(coord, inner if plain else layout.with_layout(inner))
    return Tensor(x.data, sliced, x.offset + offset) if isinstance(x, Tensor) else (sliced, offset)


def _as_arrangement(x: Any, op: str) -> Layout:
    """A layout of threads or values: a layout, its text, or a shape."""
    if isinstance(x, str) and ":" not in x:
        x = it.as_int_tuple(x, op)
    layout = x if isinstance(x, Layout) else Layout(x)
    return layout if isinstance(layout.shape, tuple) else make_layout(layout)


def _check_thread(op: str, thread: Any, count: int, tiled: Any) -> int:
    thread = it.as_int(thread, op, (str(tiled), thread))
    if not 0 <= thread < count:
        raise CoordOutOfRange(op, (str(tiled), thread), f"thread {thread} does not lie in [0,{count})")
    return thread


# ---- TiledCopy -----------------------------------------------------------------------------------------------------


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
    layout_TV: Layout  # noqa: N815
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

    def get_slice(self, thread: int) -> ThrCopy:
        """One thread's part.

        Raises:
          CoordOutOfRange: there is no such thread.
        """
        return ThrCopy(self, _check_thread("get_slice", thread, self.threads, self))

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


@functools.lru_cache(_CACHE)
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


@functools.lru_cache(_CACHE)
def _thread_values(layout: Layout, tiled: TiledCopy, layout_tv: Layout) -> Layout:
    """((thread, (value,atom)), (RestM,RestN,...)) of a layout with modes M,N,..."""
    if layout.rank < len(tiled.tiler):
        raise RankMismatch(
            "partition", (layout, tiled.tiler), f"a tensor of rank {layout.rank} for a tile of rank {len(tiled.tiler)}"
        )
    divided = zipped_divide(layout, tiled.tiler)
    return make_layout(composition(divided[0], layout_tv), divided[1])


@functools.lru_cache(_CACHE)
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
        return self._partition(source, "partition_S", self.tiled.layout_S_TV)

    def partition_D(self, destination: Any) -> Any:
        """This thread's elements of the destination, ((value,atom), RestM, RestN, ...)."""
        return self._partition(destination, "partition_D", self.tiled.layout_D_TV)

    def retile_S(self, fragment: Any) -> Any:
        """A fragment as this copy's source. See TiledCopy.retile."""
        return self.tiled.retile(fragment)

    def retile_D(self, fragment: Any) -> Any:
        """A fragment as this copy's destination. See TiledCopy.retile."""
        return self.tiled.retile(fragment)

    def _partition(self, x: Any, op: str, layout_tv: Layout) -> Any:
        return _sliced(
            x,
            op,
            lambda layout: _thread_values(layout, self.tiled, layout_tv),
            lambda inner: ((self.thread, _), (_,) * inner[1].rank),
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
    thr, val = (_as_arrangement(x, "make_tiled_copy") for x in (thr_layout, val_layout))
    layout_mn = raked_product(thr, val)  # (m,n) -> (thread, value)
    layout_tv = composition(right_inverse(layout_mn), Layout((thr.size, val.size)))
    return TiledCopy(atom, layout_tv, it.product_each(layout_mn.shape))


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


# ---- TiledMma ------------------------------------------------------------------------------------------------------

# The modes of (M,N,K) that an operand has.
_OPERAND_MODES = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class TiledMma:
    """An MMA atom repeated over groups of threads (the atom layout) and over values (the permutation).

    Laws: `layout_C_TV` reaches every element of the (M,N) tile, once for each place of the atom layout along K. A's
    threads that differ only along N hold the same elements (stride 0), and B's that differ only along M.

    Attributes:
      atom: the MmaAtom.
      atom_layout: (m,n,k) -> which atom's threads.
      permutation: for each of M, N, K the tile in which atoms' rows and columns are dealt out: an extent, a layout of
        its elements, or `_` for just the atoms.

    Raises:
      RankMismatch: an atom layout or permutation of rank over 3.
      ShapeDivisibility: a permutation's tile is not a multiple of the atoms that share it.
    """

    atom: MmaAtom
    atom_layout: Layout
    permutation: tuple[Any, Any, Any]

    def __post_init__(self) -> None:
        """Checks that whole atoms fit."""
        for i, tile in enumerate(self.permutation):
            atoms = self.atom.shape_mnk[i] * self.atom_layout[i].size
            extent = atoms if tile is _ else tile if isinstance(tile, int) else tile.size
            if extent % atoms:
                raise ShapeDivisibility(
                    "make_tiled_mma",
                    (self.atom, self.atom_layout, self.permutation),
                    f"the tile {tile} of {'MNK'[i]} is not a multiple of the {atoms} of its atoms",
                    f"{-(-extent // atoms) * atoms}",
                )

    def __repr__(self) -> str:
        """Threads, tile and instruction in a line."""
        return f"TiledMma: {self.threads} threads, tile {show(self.tile_shape)}, {self.atom.name}"

    @property
    def thr_layout_vmnk(self) -> Layout:
        """(thread of an atom, m, n, k) -> thread."""
        return _thr_layout(self)

    def get_thr_layout_vmnk(self) -> Layout:
        """CuTe's name of `thr_layout_vmnk`."""
        return self.thr_layout_vmnk

    @property
    def threads(self) -> int:
        """Number of threads."""
        return self.thr_layout_vmnk.size

    @property
    def size(self) -> int:
        """Number of threads, as in CuTe."""
        return self.threads

    @property
    def tile_shape(self) -> tuple[int, int, int]:
        """Extents (M,N,K) of the tile."""
        extents = []
        for i, tile in enumerate(self.permutation):
            atoms = self.atom.shape_mnk[i] * self.atom_layout[i].size
            extents.append(atoms if tile is _ else tile if isinstance(tile, int) else tile.size)
        return (extents[0], extents[1], extents[2])

    @property
    def tile_size(self) -> tuple[int, int, int]:
        """MoYe.jl's name of `tile_shape`."""
        return self.tile_shape

    @property
    def layout_A_TV(self) -> Layout:
        """(thread, (value, (RestM,RestK))) -> index in A's tile, m + M*k."""
        return _layout_TV(self, "A")

    @property
    def layout_B_TV(self) -> Layout:
        """(thread, (value, (RestN,RestK))) -> index in B's tile, n + N*k."""
        return _layout_TV(self, "B")

    @property
    def layout_C_TV(self) -> Layout:
        """(thread, (value, (RestM,RestN))) -> index in C's tile, m + M*n."""
        return _layout_TV(self, "C")

    def get_layoutA_TV(self) -> Layout:
        """CuTe's name of `layout_A_TV`."""
        return self.layout_A_TV

    def get_layoutB_TV(self) -> Layout:
        """CuTe's name of `layout_B_TV`."""
        return self.layout_B_TV

    def get_layoutC_TV(self) -> Layout:
        """CuTe's name of `layout_C_TV`."""
        return self.layout_C_TV

    def thrfrg_A(self, layout: Any) -> Layout:
        """((thread of an atom, (ThrM,ThrK)), (value, (RestM,RestK,...))) of a layout (M,K,...)."""
        return _thrfrg(self, "A", as_any(layout, "thrfrg_A"))

    def thrfrg_B(self, layout: Any) -> Layout:
        """((thread of an atom, (ThrN,ThrK)), (value, (RestN,RestK,...))) of a layout (N,K,...)."""
        return _thrfrg(self, "B", as_any(layout, "thrfrg_B"))

    def thrfrg_C(self, layout: Any) -> Layout:
        """((thread of an atom, (ThrM,ThrN)), (value, (RestM,RestN,...))) of a layout (M,N,...)."""
        return _thrfrg(self, "C", as_any(layout, "thrfrg_C"))

    def partition_shape(self, operand: str, shape: Any) -> tuple[Any, ...]:
        """The shape of a thread's part of operand "A", "B" or "C": (value, Rest, Rest, ...)."""
        values, rest = _thrfrg(self, operand, Layout(it.as_int_tuple(shape, "partition_shape")))[1]
        return (values.shape, *it.modes(rest.shape))

    def partition_shape_A(self, shape_mk: Any) -> tuple[Any, ...]:
        """The shape of a thread's part of an (M,K) tensor."""
        return self.partition_shape("A", shape_mk)

    def partition_shape_B(self, shape_nk: Any) -> tuple[Any, ...]:
        """The shape of a thread's part of an (N,K) tensor."""
        return self.partition_shape("B", shape_nk)

    def partition_shape_C(self, shape_mn: Any) -> tuple[Any, ...]:
        """The shape of a thread's part of an (M,N) tensor."""
        return self.partition_shape("C", shape_mn)

    def vmnk(self, thread: int) -> tuple[int, int, int, int]:
        """A thread's (place in its atom, m, n, k).

        Raises:
          CoordOutOfRange: there is no such thread.
        """
        thread = _check_thread("get_slice", thread, self.layout_C_TV[0].size, self)
        v, m, n, k = (_place(thread, mode) for mode in self.thr_layout_vmnk)
        return (v, m, n, k)

    def get_slice(self, thread: int) -> ThrMma:
        """One thread's part.

        Raises:
          CoordOutOfRange: there is no such thread.
        """
        return ThrMma(self, it.as_int(thread, "get_slice"), self.vmnk(thread))

    get_thread_slice = get_slice


def _place(thread: int, mode: Layout) -> int:
    """A thread's position in a mode of the thread layout."""
    coord = it.transform_leaf(lambda s, d: thread // d % s if d else 0, mode.shape, mode.stride)
    return coords.crd2idx(coord, mode.shape, coords.compact_col_major(mode.shape))


@functools.lru_cache(_CACHE)
def _thr_layout(mma: TiledMma) -> Layout:
    return tiled_product(mma.atom.thr_id, mma.atom_layout)


@functools.lru_cache(_CACHE)
def _thrfrg(mma: TiledMma, operand: str, layout: Layout) -> Layout:
    if layout.rank < 2:
        raise RankMismatch(f"thrfrg_{operand}", (layout,), f"a tensor of rank {layout.rank}; two modes or more")
    i, j = _OPERAND_MODES[operand]
    permuted = logical_divide(layout, (mma.permutation[i], mma.permutation[j]))
    atoms = zipped_divide(permuted, (mma.atom.shape_mnk[i], mma.atom.shape_mnk[j]))
    values = composition(atoms[0], getattr(mma.atom, f"layout_{operand}_TV"))
    thr = mma.thr_layout_vmnk
    rest = zipped_divide(atoms[1], (thr[i + 1].size, thr[j + 1].size))
    return make_layout(make_layout(values[0], rest[0]), make_layout(values[1], rest[1]))


@functools.lru_cache(_CACHE)
def _layout_TV(mma: TiledMma, operand: str) -> Layout:
    modes = _OPERAND_MODES[operand]
    fragments = _thrfrg(mma, operand, Layout(tuple(mma.tile_shape[i] for i in modes)))
    thr = mma.thr_layout_vmnk
    # Threads along the mode that the operand does not have hold the same: stride 0.
    by_mode = [Layout(thr[i + 1].size, 0) for i in range(3)]
    for place, i in enumerate(modes):
        by_mode[i] = get(fragments, 0, 1, place)
    by_thread = [get(fragments, 0, 0), *by_mode]
    # Lanes between an atom's threads, as with Volta's quad pairs, do as those do.
    between = complement(thr)
    if between.size > 1:
        by_thread.append(Layout(between.size, 0))
        thr = make_layout(thr, between)
    return make_layout(composition(make_layout(*by_thread), right_inverse(thr)), fragments[1])


@dataclasses.dataclass(frozen=True, slots=True)
class ThrMma:
    """One thread's part of a TiledMma.

    `partition_A`, `_B` and `_C` take a Tensor or a layout with modes (M,K,...), (N,K,...) or (M,N,...) and give
    (value, Rest, Rest, ...): MMA, MMA_M, MMA_K in MoYe.jl's words. Of a Tensor they give a Tensor, of a layout the
    layout and its offset.

    Raises:
      ShapeDivisibility: an extent is not a multiple of the tile's.
    """

    tiled: TiledMma
    thread: int
    place: tuple[int, int, int, int]  # (v,m,n,k)

    def partition_A(self, tensor: Any) -> Any:
        """This thread's elements of A, (value, RestM, RestK, ...)."""
        return self._partition("A", tensor)

    def partition_B(self, tensor: Any) -> Any:
        """This thread's elements of B, (value, RestN, RestK, ...)."""
        return self._partition("B", tensor)

    def partition_C(self, tensor: Any) -> Any:
        """This thread's elements of C, (value, RestM, RestN, ...)."""
        return self._partition("C", tensor)

    def make_fragment_A(self, partitioned: Any) -> Any:
        """Registers for a part of A; for an atom that reads A from shared memory the part itself."""
        return self._fragment("A", partitioned)

    def make_fragment_B(self, partitioned: Any) -> Any:
        """Registers for a part of B; for an atom that reads B from shared memory the part itself."""
        return self._fragment("B", partitioned)

    def make_fragment_C(self, partitioned: Any) -> Any:
        """Registers for a part of C, in C's type, column-major."""
        layout = Layout(_layout_of(partitioned, "make_fragment_C").shape)
        return make_tensor(self.tiled.atom.dtype_C, layout) if isinstance(partitioned, Tensor) else layout

    def partition_fragment_A(self, tensor: Any) -> Any:
        """Registers for this thread's elements of A."""
        return self.make_fragment_A(_part(self.partition_A(tensor)))

    def partition_fragment_B(self, tensor: Any) -> Any:
        """Registers for this thread's elements of B."""
        return self.make_fragment_B(_part(self.partition_B(tensor)))

    def partition_fragment_C(self, tensor: Any) -> Any:
        """Registers for this thread's elements of C."""
        return self.make_fragment_C(_part(self.partition_C(tensor)))

    def _partition(self, operand: str, x: Any) -> Any:
        i, j = _OPERAND_MODES[operand]
        v, own = self.place[0], self.place[1:]
        return _sliced(
            x,
            f"partition_{operand}",
            lambda layout: _thrfrg(self.tiled, operand, layout),
            lambda inner: ((v, (own[i], own[j])), (_, (_,) * inner[1][1].rank)),
        )

    def _fragment(self, operand: str, partitioned: Any) -> Any:
        if operand in self.tiled.atom.smem_operands:
            return partitioned
        layout = make_fragment_like(_layout_of(partitioned, f"make_fragment_{operand}"))
        if not isinstance(partitioned, Tensor):
            return layout
        return make_tensor(getattr(self.tiled.atom, f"dtype_{operand}"), layout)


def _part(x: Any) -> Any:
    return x if isinstance(x, Tensor) else x[0]


def make_tiled_mma(atom: Any, atom_layout: Any = "(1,1,1)", permutation: Any = None) -> TiledMma:
    """The atom at every place of an atom layout, over a tile for each mode.

    Args:
      atom: an MmaAtom or its name.
      atom_layout: (m,n,k) -> atom: a layout, its text, or a shape; missing modes are 1:0.
      permutation: tiles for (M,N,K): extents, layouts or `_`; or the text of a tiler, "[32;32;8]". None: just the
        atoms.

    >>> make_tiled_mma("SM80_16x8x8_F32TF32TF32F32_TN", "(2,2,1):(2,1,1)", (32, 32, 8))
    TiledMma: 128 threads, tile (32,32,8), SM80_16x8x8_F32TF32TF32F32_TN

    Raises:
      AtomMismatch: there is no such atom.
      RankMismatch: an atom layout or permutation of rank over 3.
      ShapeDivisibility: a tile is not a multiple of the atoms that share it.
    """
    atom = mma_atom(atom) if isinstance(atom, str) else atom
    if not isinstance(atom, MmaAtom):
        raise AtomMismatch("make_tiled_mma", (str(atom),), f"{atom!r} is no MMA atom", "mma_atom(name)")
    layout = _as_arrangement(atom_layout, "make_tiled_mma")
    tiles = () if permutation is None else as_tiler(permutation, "make_tiled_mma")
    if not isinstance(tiles, tuple):
        raise InvalidType("make_tiled_mma", (str(permutation),), "a permutation has a tile for each of M, N and K")
    for what, rank in (("an atom layout", layout.rank), ("a permutation", len(tiles))):
        if rank > 3:
            raise RankMismatch("make_tiled_mma", (atom, layout, tiles), f"{what} of rank {rank}: M, N and K are 3")
    return TiledMma(atom, append(layout, 3, ONE), (*tiles, *(_,) * (3 - len(tiles))))
