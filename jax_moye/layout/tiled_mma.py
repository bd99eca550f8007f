"""TiledMma: an MMA atom repeated over groups of threads and over values, and one thread's part of a tensor."""

# Names as in CuTe:
# ruff: noqa: N802

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from jax_moye.layout import coords
from jax_moye.layout import int_tuple as it
from jax_moye.layout.algebra import complement, composition
from jax_moye.layout.atoms import MmaAtom, mma_atom
from jax_moye.layout.divide import logical_divide, tiled_product, zipped_divide
from jax_moye.layout.errors import AtomMismatch, InvalidType, RankMismatch, ShapeDivisibility
from jax_moye.layout.int_tuple import _, show
from jax_moye.layout.inverse import right_inverse
from jax_moye.layout.layout import ONE, Layout, as_any, as_tiler
from jax_moye.layout.modes import append, get, make_fragment_like, make_layout, select
from jax_moye.layout.partition import CACHE, as_arrangement, check_thread, layout_of, sliced_part
from jax_moye.layout.tensor import Tensor, make_tensor

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

    def get_layoutA_MK(self) -> tuple[Layout, Layout]:
        """((m,k) -> thread + threads * value, (thread of an atom, M, K) -> thread) of A's tile.

        Of the threads that hold the same element the first counts.
        """
        return self._by_place("A", self.layout_A_TV)

    def get_layoutB_NK(self) -> tuple[Layout, Layout]:
        """((n,k) -> thread + threads * value, (thread of an atom, N, K) -> thread) of B's tile."""
        return self._by_place("B", self.layout_B_TV)

    def get_layoutC_MN(self) -> tuple[Layout, Layout]:
        """((m,n) -> thread + threads * value, (thread of an atom, M, N) -> thread) of C's tile."""
        return self._by_place("C", self.layout_C_TV)

    def _by_place(self, operand: str, layout_tv: Layout) -> tuple[Layout, Layout]:
        i, j = _OPERAND_MODES[operand]
        tile = Layout((self.tile_shape[i], self.tile_shape[j]))
        return composition(right_inverse(layout_tv), tile), select(self.thr_layout_vmnk, (0, i + 1, j + 1))

    def thrfrg_A(self, layout: Any) -> Layout:
        """((thread of an atom, (ThrM,ThrK)), (value, (RestM,RestK,...))) of a layout (M,K,...)."""
        return thrfrg(self, "A", as_any(layout, "thrfrg_A"))

    def thrfrg_B(self, layout: Any) -> Layout:
        """((thread of an atom, (ThrN,ThrK)), (value, (RestN,RestK,...))) of a layout (N,K,...)."""
        return thrfrg(self, "B", as_any(layout, "thrfrg_B"))

    def thrfrg_C(self, layout: Any) -> Layout:
        """((thread of an atom, (ThrM,ThrN)), (value, (RestM,RestN,...))) of a layout (M,N,...)."""
        return thrfrg(self, "C", as_any(layout, "thrfrg_C"))

    def partition_shape(self, operand: str, shape: Any) -> tuple[Any, ...]:
        """The shape of a thread's part of operand "A", "B" or "C": (value, Rest, Rest, ...)."""
        values, rest = thrfrg(self, operand, Layout(it.as_int_tuple(shape, "partition_shape")))[1]
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
        thread = check_thread("get_slice", thread, self.layout_C_TV[0].size, self)
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


@functools.lru_cache(CACHE)
def _thr_layout(mma: TiledMma) -> Layout:
    return tiled_product(mma.atom.thr_id, mma.atom_layout)


@functools.lru_cache(CACHE)
def thrfrg(mma: TiledMma, operand: str, layout: Layout) -> Layout:
    """((thread of an atom, places along the two modes), (value, rests)) of an operand's layout: see thrfrg_A."""
    if layout.rank < 2:
        raise RankMismatch(f"thrfrg_{operand}", (layout,), f"a tensor of rank {layout.rank}; two modes or more")
    i, j = _OPERAND_MODES[operand]
    permuted = logical_divide(layout, (mma.permutation[i], mma.permutation[j]))
    atoms = zipped_divide(permuted, (mma.atom.shape_mnk[i], mma.atom.shape_mnk[j]))
    values = composition(atoms[0], getattr(mma.atom, f"layout_{operand}_TV"))
    thr = mma.thr_layout_vmnk
    rest = zipped_divide(atoms[1], (thr[i + 1].size, thr[j + 1].size))
    return make_layout(make_layout(values[0], rest[0]), make_layout(values[1], rest[1]))


@functools.lru_cache(CACHE)
def _layout_TV(mma: TiledMma, operand: str) -> Layout:
    modes = _OPERAND_MODES[operand]
    fragments = thrfrg(mma, operand, Layout(tuple(mma.tile_shape[i] for i in modes)))
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
        layout = Layout(layout_of(partitioned, "make_fragment_C").shape)
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
        return sliced_part(
            x,
            f"partition_{operand}",
            lambda layout: thrfrg(self.tiled, operand, layout),
            lambda inner: ((v, (own[i], own[j])), (_, (_,) * inner[1][1].rank)),
        )

    def _fragment(self, operand: str, partitioned: Any) -> Any:
        if operand in self.tiled.atom.smem_operands:
            return partitioned
        layout = make_fragment_like(layout_of(partitioned, f"make_fragment_{operand}"))
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
    layout = as_arrangement(atom_layout, "make_tiled_mma")
    tiles = () if permutation is None else as_tiler(permutation, "make_tiled_mma")
    if not isinstance(tiles, tuple):
        raise InvalidType("make_tiled_mma", (str(permutation),), "a permutation has a tile for each of M, N and K")
    for what, rank in (("an atom layout", layout.rank), ("a permutation", len(tiles))):
        if rank > 3:
            raise RankMismatch("make_tiled_mma", (atom, layout, tiles), f"{what} of rank {rank}: M, N and K are 3")
    return TiledMma(atom, append(layout, 3, ONE), (*tiles, *(_,) * (3 - len(tiles))))
