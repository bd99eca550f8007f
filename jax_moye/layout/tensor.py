"""`Tensor`: NumPy memory seen through a layout, so that what a kernel does can be done thread by thread on a laptop.

>>> import numpy as np
>>> src = make_tensor(np.arange(36) * 0.1, "(4,9):(1,4)")
>>> src
Tensor of float64 (4,9):(1,4)
>>> src[1, None].layout, float(src[1, 2])
(Layout('(9):(4)'), 0.9)
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from jax_moye.layout import int_tuple as it
from jax_moye.layout import modes
from jax_moye.layout.divide import zipped_divide
from jax_moye.layout.dtypes import dtype, storage
from jax_moye.layout.errors import InvalidType, Misaligned, OutOfDomain, ProfileMismatch, RankMismatch
from jax_moye.layout.int_tuple import _
from jax_moye.layout.layout import Layout, as_any, join_coord


class Tensor:
    """Elements of a 1-D NumPy array where a layout puts them: element c is `data[offset + layout(c)]`.

    Tensors are views: slices and partitions share the memory. An index with `_`, None or `:` in it gives a Tensor,
    one without gives the element; both can be assigned to.

    Args:
      data: a 1-D array (kept, not copied), or an array of any rank, seen through its own strides.
      layout: Layout, swizzled layout or text; None means the array's own strides (column-major coordinates).
      offset: index of the layout's 0.
      side: "S" or "D" of a part that a ThrCopy has cut as its source or destination; `copy` then refuses to use it as
        the other one. Slices keep it.

    Raises:
      OutOfDomain: the layout leaves the array.
      InvalidType: the array is not 1-D though a layout is given, or its strides are no whole elements.
    """

    __slots__ = ("data", "layout", "offset", "side")

    def __init__(self, data: np.ndarray, layout: Any = None, offset: int = 0, side: str | None = None):
        """See the class."""
        if layout is None:
            data, layout, offset = _own_strides(np.asarray(data))
        self.data = data
        self.layout = as_any(layout, "Tensor")
        self.offset = offset
        self.side = side
        if data.ndim != 1:
            raise InvalidType("Tensor", (data.shape, self.layout), "the memory of a tensor is a 1-D array")
        low, high = _reach(self.layout)
        if low + offset < 0 or high + offset >= data.size:
            raise OutOfDomain(
                "Tensor",
                (self.layout,),
                f"indices {low + offset} to {high + offset} of an array of {data.size} elements",
            )

    # ---- Facts

    @property
    def shape(self) -> it.IntTuple:
        """The shape of the layout."""
        return self.layout.shape

    @property
    def rank(self) -> int:
        """Number of modes."""
        return self.layout.rank

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.layout.size

    @property
    def dtype(self) -> np.dtype:
        """NumPy's type of the elements."""
        return self.data.dtype

    def __len__(self) -> int:
        """The rank: tensors are made of modes, as layouts are."""
        return self.rank

    def __repr__(self) -> str:
        """Type, layout and offset."""
        at = f" at {self.offset}" if self.offset else ""
        return f"Tensor of {self.data.dtype} {self.layout}{at}"

    # ---- Elements

    def indices(self) -> np.ndarray:
        """Where the elements lie in `data`, in colexicographic order of their coordinates: int64, (size,)."""
        values = _small_values(self.layout) if self.layout.size <= _SMALL else self.layout.values()
        return values + self.offset

    def values(self) -> np.ndarray:
        """A copy of the elements in colexicographic order of their coordinates: (size,)."""
        return self.data[self.indices()]

    def numpy(self) -> np.ndarray:
        """A copy of the elements as an array with one axis for each mode."""
        return self.values().reshape(it.product_each(self.shape), order="F")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """For NumPy: `numpy()`."""
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __getitem__(self, coord: Any) -> Any:
        """The element of a coordinate, or, with `_`, None or `:` in it, the Tensor of the modes kept."""
        c = self._coord(coord)
        if it.has_underscore(c):
            layout, offset = _slice(c, self.layout)
            return Tensor(self.data, layout, self.offset + offset, self.side)
        return self.data[self.offset + modes.crd2idx(c, self.layout)]

    def __call__(self, *coord: Any) -> Any:
        """`t(i, j)` is `t[i, j]`."""
        return self[coord]

    def __setitem__(self, coord: Any, value: Any) -> None:
        """Assigns to an element or to the elements of a slice: a number, an array with an axis per mode, a Tensor."""
        c = self._coord(coord)
        if not it.has_underscore(c):
            self.data[self.offset + modes.crd2idx(c, self.layout)] = value
            return
        self[coord].assign(value)

    def assign(self, value: Any) -> None:
        """Sets all elements: to a number, to an array with an axis per mode, or to those of a Tensor of equal shape.

        Raises:
          ProfileMismatch: an array of another shape.
        """
        array = np.asarray(value)
        if array.ndim:
            extents = it.product_each(self.shape)
            if array.shape != extents:
                raise ProfileMismatch("assign", (self.layout, array.shape), f"an array of {array.shape} for {extents}")
            array = array.reshape(-1, order="F")
        self.data[self.indices()] = array

    def _coord(self, coord: Any) -> Any:
        return it.as_coord(join_coord(coord if isinstance(coord, tuple) else (coord,), self.layout), "Tensor")

    # ---- Views

    def with_layout(self, layout: Any) -> Tensor:
        """The same memory through another layout."""
        return Tensor(self.data, layout, self.offset, self.side)

    def group_modes(self, begin: int, end: int) -> Tensor:
        """The tensor with modes [begin, end) made one mode."""
        return self.with_layout(modes.group(self.layout, begin, end))

    def recast(self, new_type: Any) -> Tensor:
        """The same bytes as elements of another type, their number along the contiguous mode changed.

        Raises:
          UpcastDivisibility, DowncastNoUnitStride: the elements do not go into each other.
          Misaligned: the tensor begins between two of the new elements.
        """
        from jax_moye.layout.cast import recast_layout

        new = storage(dtype(new_type, "recast"))
        old_bits, new_bits = self.data.itemsize * 8, new.itemsize * 8
        if self.offset * old_bits % new_bits:
            raise Misaligned("recast", (self.layout, new.name), f"it begins at byte {self.offset * old_bits // 8}")
        layout = recast_layout(self.layout, old_bits, new_bits)
        whole = self.data.size * self.data.itemsize // new.itemsize * new.itemsize // self.data.itemsize
        return Tensor(self.data[:whole].view(new), layout, self.offset * old_bits // new_bits, self.side)


# The threads of a block have parts of the same few layouts at different offsets.
_SMALL = 256


@functools.lru_cache(1024)
def _small_values(layout: Any) -> np.ndarray:
    return layout.values()


@functools.lru_cache(1024)
def _slice(coord: Any, layout: Any) -> tuple[Any, int]:
    return modes.slice_and_offset(coord, layout)


@functools.lru_cache(1024)
def _reach(layout: Any) -> tuple[int, int]:
    """The smallest and the largest index of a layout; of a swizzled one, at least what they are."""
    if isinstance(layout, Layout):
        leaves = layout.leaves
        return sum((s - 1) * min(d, 0) for s, d in leaves), sum((s - 1) * max(d, 0) for s, d in leaves)
    values = layout.values()
    return int(values.min()), int(values.max())


def _own_strides(array: np.ndarray) -> tuple[np.ndarray, Layout, int]:
    """An array as 1-D memory, layout and offset, without a copy."""
    array = array.reshape(1) if array.ndim == 0 else array
    size = array.itemsize
    if any(d % size for d in array.strides) or array.size == 0:
        raise InvalidType("Tensor", (array.shape, array.strides), f"strides are no multiples of {size} bytes, or empty")
    strides = tuple(d // size if n > 1 else 0 for n, d in zip(array.shape, array.strides, strict=True))
    low = sum((n - 1) * min(d, 0) for n, d in zip(array.shape, strides, strict=True))
    high = sum((n - 1) * max(d, 0) for n, d in zip(array.shape, strides, strict=True))
    first = array[
        tuple(slice(n - 1, None) if d < 0 else slice(None) for n, d in zip(array.shape, strides, strict=True))
    ]
    # as_strided does not know the small floating-point types: through unsigned integers of their size.
    raw = first.view(f"u{size}") if size <= 8 else first
    memory = np.lib.stride_tricks.as_strided(raw, (high - low + 1,), (size,), writeable=array.flags.writeable)
    memory = memory.view(array.dtype)
    return memory, Layout(array.shape, strides), -low


def make_tensor(memory: Any, layout: Any = None) -> Tensor:
    """A tensor over an array, or one with memory of its own.

    Args:
      memory: an array (see Tensor); or an element type, for new memory of `cosize` elements. As registers and shared
        memory it begins with garbage: all bits set, which is NaN in floating-point types.
      layout: layout, its text, or a shape.

    >>> make_tensor("float32", (2, 3))
    Tensor of float32 (2,3):(1,2)
    """
    if isinstance(layout, (tuple, int)) and not isinstance(layout, bool):
        layout = Layout(layout)
    if isinstance(memory, np.ndarray):
        return Tensor(memory, layout)
    layout = as_any(layout, "make_tensor")
    kind = storage(dtype(memory, "make_tensor"))
    low, high = _reach(layout)
    if low < 0:
        raise OutOfDomain("make_tensor", (layout,), f"its smallest index is {low}")
    return Tensor(np.full((high + 1) * kind.itemsize, 0xFF, np.uint8).view(kind), layout)


def make_fragment_like(tensor: Tensor, dtype: Any = None) -> Tensor:
    """New registers for the elements of a tensor: its shape, mode 0 first and compact.

    Args:
      tensor: a Tensor; of a layout, the fragment's layout is `layout.make_fragment_like`.
      dtype: element type; None for the tensor's.
    """
    if not isinstance(tensor, Tensor):
        return modes.make_fragment_like(tensor)
    layout = modes.make_fragment_like(tensor.layout)
    return make_tensor(tensor.dtype if dtype is None else dtype, layout)


def zeros(what: Any, layout: Any = None) -> Tensor:
    """Sets a tensor to 0 (MoYe.jl's `zeros!`), or makes one of 0: `zeros("float32", (4, 8))`."""
    tensor = what if isinstance(what, Tensor) else make_tensor(what, layout)
    tensor.assign(0)
    return tensor


# ---- Tiles and partitions ------------------------------------------------------------------------------------------


def _divided(x: Any, op: str, tiler: Any, residue: bool) -> Any:
    layout = x.layout if isinstance(x, Tensor) else as_any(x, op)
    return zipped_divide(layout, tiler, allow_residue=residue)


def _cut(x: Any, divided: Any, coord: Any) -> Any:
    layout, offset = modes.slice_and_offset(coord, divided)
    return Tensor(x.data, layout, x.offset + offset) if isinstance(x, Tensor) else (layout, offset)


def _project(what: Any, proj: Any) -> tuple[Any, ...]:
    if len(proj) != len(what):
        raise RankMismatch("local_tile", (str(what), str(proj)), f"{len(proj)} modes of a projection for {len(what)}")
    return tuple(w for w, p in zip(what, proj, strict=True) if p is not None and p is not _)


def local_tile(x: Any, tiler: Any, coord: Any, proj: Any = None, *, allow_residue: bool = False) -> Any:
    """The tile of a tensor at a coordinate of tiles; MoYe.jl's `@tile`.

    Args:
      x: a Tensor, or a layout.
      tiler: an extent (or layout) for each mode to be tiled.
      coord: which tile, for each of these modes; `_`, None or `:` keeps all: their number follows as a mode.
      proj: for each of them 1, or None where tiler and coord do not belong to this tensor: (1, None, 1) for A, with
        tiler and coord (M,N,K).
      allow_residue: let the last tiles reach beyond the tensor.

    Returns:
      A Tensor (TileM, TileN, ..., rest...); of a layout, a layout and its offset.

    >>> local_tile("(6,8):(1,6)", (2, 2), (1, None))
    (Layout('(2,2,4):(1,6,12)'), 2)
    """
    coord = tuple(coord) if isinstance(coord, (tuple, list)) else (coord,)
    tiler = tuple(tiler) if isinstance(tiler, (tuple, list)) else (tiler,)
    if proj is not None:
        tiler, coord = _project(tiler, proj), _project(coord, proj)
    divided = _divided(x, "local_tile", tiler, allow_residue)
    rest = modes.rank(divided.shape[1])
    coord = coord + (_,) * (rest - len(coord))
    kept = (_,) * modes.rank(divided.shape[0])
    return _cut(x, divided, (kept, coord))


def local_partition(x: Any, threads: Any, index: Any, proj: Any = None, *, allow_residue: bool = False) -> Any:
    """One thread's elements when neighbouring elements go to neighbouring threads; MoYe.jl's `@parallelize`.

    Args:
      x: a Tensor, or a layout.
      threads: a layout (m,n) -> thread, with the thread's number as `index`; or a shape, with a coordinate.
      index: which thread.
      proj: as in `local_tile`.
      allow_residue: let the last tiles reach beyond the tensor.

    Returns:
      A Tensor (RestM, RestN, ...); of a layout, a layout and its offset.

    >>> local_partition("(6,8):(1,6)", "(2,2):(2,1)", 1)
    (Layout('(3,4):(2,12)'), 6)
    """
    if isinstance(threads, str):
        threads = Layout(threads)
    if isinstance(threads, Layout):
        coord = it.wrap(modes.get_flat_coord(threads, it.as_int(index, "local_partition")))
        tiler = it.wrap(it.product_each(threads.shape))
    else:
        coord, tiler = it.wrap(index), it.wrap(it.as_int_tuple(threads, "local_partition"))
    if proj is not None:
        tiler, coord = _project(tiler, proj), _project(coord, proj)
    divided = _divided(x, "local_partition", tiler, allow_residue)
    return _cut(x, divided, (coord, (_,) * modes.rank(divided.shape[1])))
