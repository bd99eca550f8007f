"""`copy` and `gemm`: what instructions do to tensors, for one thread, or for all threads of a tile together.

Instructions of a warp, such as ldmatrix and mma, need all their threads at once. So an operand is one of

- a Tensor, the whole tile: each thread's part is cut out of it;
- a sequence with one Tensor for each thread, in their order: partitions or fragments.

With a ThrCopy, ThrMma or single-threaded atom in place of the tiled operation, operands are one thread's Tensors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_moye.layout import int_tuple as it
from jax_moye.layout.atoms import CopyAtom, MmaAtom, copy_op
from jax_moye.layout.dtypes import dtype, storage
from jax_moye.layout.errors import (
    AtomMismatch,
    InvalidType,
    Misaligned,
    NotWritten,
    OperandOrder,
    ProfileMismatch,
)
from jax_moye.layout.layout import Layout
from jax_moye.layout.tensor import Tensor
from jax_moye.layout.tiled_copy import ThrCopy, TiledCopy, thread_values
from jax_moye.layout.tiled_mma import ThrMma, TiledMma, make_tiled_mma, thrfrg


class Parts:
    """The same number of elements of each thread: in one memory (index: (thread, element)), or in one for each."""

    def __init__(self, memory: Any, index: Any):
        """See the class."""
        self.memory, self.index = memory, index

    @property
    def dtypes(self) -> set[np.dtype]:
        """Of all threads' elements."""
        return {self.memory.dtype} if isinstance(self.memory, np.ndarray) else {m.dtype for m in self.memory}

    @property
    def all_indices(self) -> np.ndarray:
        """(thread, element) -> index in the thread's memory."""
        return self.index if isinstance(self.index, np.ndarray) else np.stack(self.index)

    def gather(self) -> np.ndarray:
        """The elements, (thread, element)."""
        if isinstance(self.memory, np.ndarray):
            return self.memory[self.index]
        return np.stack([memory[index] for memory, index in zip(self.memory, self.index, strict=True)])

    def scatter(self, values: np.ndarray) -> None:
        """Sets them."""
        if isinstance(self.memory, np.ndarray):
            self.memory[self.index] = values
            return
        for memory, index, new in zip(self.memory, self.index, values, strict=True):
            memory[index] = new


def tensors_of(op: str, x: Any, count: int) -> list[Tensor]:
    """A sequence with a tensor for each thread."""
    if not isinstance(x, Sequence) or not all(isinstance(t, Tensor) for t in x):
        raise InvalidType(
            op, (type(x).__name__,), "an operand is a Tensor, or a sequence of one Tensor for each thread"
        )
    if len(x) < count:
        raise ProfileMismatch(op, (f"{len(x)} tensors",), f"{count} threads need a tensor each")
    sizes = {t.size for t in x[:count]}
    if len(sizes) != 1:
        raise ProfileMismatch(op, (sorted(sizes),), "the threads' tensors have different sizes")
    return list(x[:count])


def _inner(layout: Any) -> Layout:
    return layout if isinstance(layout, Layout) else layout.layout


def _through(tensor: Tensor, inner: Layout) -> np.ndarray:
    """Indices of a rearrangement of the tensor's inner layout."""
    layout = inner if isinstance(tensor.layout, Layout) else tensor.layout.with_layout(inner)
    return layout.values() + tensor.offset


# ---- copy ----------------------------------------------------------------------------------------------------------


def copy(*operands: Any) -> None:
    """Copies elements.

    `copy(src, dst)`: all elements of a Tensor, one after the other in the order of their coordinates; converts types.

    `copy(tiled_copy, src, dst)`: a tile, or several, by all threads; src and dst are each a Tensor, the whole tile, or
    a sequence of Tensors, one for each thread: partitions, or fragments (for ldmatrix `retile_D` of the MMA's).

    `copy(thr_copy, src, dst)` or `copy(copy_atom, src, dst)`: one thread's partitions ((value,atom), ...), for
    single-threaded instructions.

    Asynchronous copies have taken effect on return.

    The source comes first, as in CuTe. Julia's `copyto!` takes the destination first: operands in that order raise
    where they show it. A part cut by `partition_S`, `partition_D`, `retile_S` or `retile_D` does, and so does new
    memory of floating-point numbers.

    Raises:
      OperandOrder: a part that was cut as the destination is the source, or the other way round.
      NotWritten: the source is memory of `make_tensor` that nothing has been written to.
      ProfileMismatch: the numbers of elements differ.
      AtomMismatch: elements of another size than the atom's; an instruction of a warp with one thread.
      Misaligned: the elements of an access are not next to each other in memory, or begin at a wrong address. Memory
        begins at an address that is a multiple of everything.
    """
    if len(operands) == 2:
        src, dst = operands
        if not (isinstance(src, Tensor) and isinstance(dst, Tensor)):
            raise InvalidType("copy", operands, "copy(src, dst) takes two Tensors")
        if src.size != dst.size:
            raise ProfileMismatch("copy", (src.layout, dst.layout), f"{src.size} elements to {dst.size}")
        check_sides(src, dst)
        values = src.values()
        check_written(values)
        dst.data[dst.indices()] = values.astype(dst.dtype)
        return
    if len(operands) != 3:
        raise InvalidType("copy", operands, "copy(src, dst) or copy(tiled_copy, src, dst)")
    how, src, dst = operands
    check_sides(src, dst)
    if isinstance(how, TiledCopy):
        sides = (
            copy_parts(how, src, how.layout_S_TV),
            copy_parts(how, dst, how.layout_D_TV),
        )
        check_copy(how.atom, *sides)
        move_copy(how.atom, how.threads, sides[0], sides[1])
        return
    atom = how.tiled.atom if isinstance(how, ThrCopy) else how
    if not isinstance(atom, CopyAtom):
        raise InvalidType("copy", operands, f"{how!r} is no copy")
    if atom.threads != 1:
        raise AtomMismatch(
            "copy",
            (how, src, dst),
            f"{atom.op.name} is executed by {atom.threads} threads together",
            "copy(tiled_copy, [src of each thread], [dst of each thread])",
        )
    parts = [Parts([t.data], [t.indices()]) for t in (*tensors_of("copy", [src], 1), *tensors_of("copy", [dst], 1))]
    check_copy(atom, *parts)
    move_copy(atom, 1, parts[0], parts[1])


def check_sides(src: Any, dst: Any) -> None:
    """Neither operand was cut as the other one."""
    for operand, name, other, verb in ((src, "source", "D", "read"), (dst, "destination", "S", "written")):
        parts = [operand] if isinstance(operand, Tensor) else operand if isinstance(operand, Sequence) else []
        if any(isinstance(t, Tensor) and t.side == other for t in parts):
            cut = "partition_D or retile_D" if other == "D" else "partition_S or retile_S"
            raise OperandOrder(
                "copy",
                ("src", "dst"),
                f"the {name} was cut by {cut}: it is the other operand; nothing was copied",
                "copy(how, src, dst) has the source first, Julia's copyto!(how, dst, src) the destination; a part that "
                f"is to be {verb} here too: cut it by partition_{'S' if other == 'D' else 'D'}",
            )


def check_written(values: np.ndarray) -> None:
    """The source is not what `make_tensor` fills new memory with: all bits set, of floating-point types a NaN."""
    if values.dtype.kind in "iub" or values.dtype.itemsize < 2 or values.size == 0:
        return
    if (np.ascontiguousarray(values).view(np.uint8) == 0xFF).all():
        raise NotWritten(
            "copy",
            ("src", "dst"),
            "all bits of the source are set, as make_tensor leaves new memory: nothing was written to it, or the "
            "operands are in the order of Julia's copyto!; nothing was copied",
            "copy(src, dst) has the source first",
        )


def copy_parts(tiled: TiledCopy, x: Any, layout_tv: Layout) -> Parts:
    """Each thread's elements of an operand, a tile or a sequence, on the side with this layout."""
    if isinstance(x, Tensor):
        inner = thread_values(_inner(x.layout), tiled, layout_tv)
        return Parts(x.data, _through(x, inner).reshape(-1, tiled.threads).T)
    tensors = tensors_of("copy", x, tiled.threads)
    return Parts([t.data for t in tensors], [t.indices() for t in tensors])


@functools.lru_cache(256)
def _exchange(atom: CopyAtom) -> np.ndarray:
    """For each (thread, value) of the destination, which thread * (values of the source) + value it comes from."""
    dst_layout = atom.val_layout_dst
    if "MOVM" in atom.op.name:
        # The layouts of movmatrix do not show its transposition: it is that of ldmatrix.trans.
        dst_layout = CopyAtom(copy_op("SM75_U16x2_LDSM_T"), atom.value_type).val_layout_dst
    src, dst = (layout.values().reshape(layout[1].size, atom.threads).T for layout in (atom.val_layout_src, dst_layout))
    ids, first = np.unique(src.reshape(-1), return_index=True)  # where lanes repeat an address, the first counts
    where = np.full(int(ids.max()) + 1, -1)
    where[ids] = first
    return where[dst]


def check_copy(atom: CopyAtom, src: Parts, dst: Parts) -> None:
    """Raises unless the instruction can access these elements."""
    bits = dtype(atom.value_type).bits
    for side, parts, count, space in (
        ("src", src, atom.num_val_src, atom.op.src_space),
        ("dst", dst, atom.num_val_dst, atom.op.dst_space),
    ):
        for kind in parts.dtypes:
            if kind.itemsize * 8 != max(bits, 8):
                raise AtomMismatch("copy", (atom, kind.name), f"{side} has {kind.name} elements, the atom {bits} bits")
        if parts.all_indices.shape[1] % count:
            raise ProfileMismatch("copy", (atom,), f"{parts.all_indices.shape[1]} values of {side} for {count} each")
        if space == "smem" or atom.threads == 1:
            _check_access(atom, side, parts, count)
    rest = src.all_indices.shape[1] // atom.num_val_src
    if dst.all_indices.shape[1] // atom.num_val_dst != rest:
        counts = (src.all_indices.shape[1], dst.all_indices.shape[1])
        raise ProfileMismatch("copy", (atom, counts), f"{rest} accesses of src, another number of dst")


def move_copy(atom: CopyAtom, threads: int, src: Parts, dst: Parts, written: bool = True) -> None:
    """What the instruction does to elements that `check_copy` has seen; `written`: raises if the source never was."""
    given = src.gather()
    if written:
        check_written(given)
    given = given.reshape(threads // atom.threads, atom.threads, -1, atom.num_val_src)  # (atom,thread,rest,value)
    rest = given.shape[2]
    flat = given.transpose(0, 2, 1, 3).reshape(-1, rest, atom.threads * atom.num_val_src)
    moved = flat[:, :, _exchange(atom)].transpose(0, 2, 1, 3).reshape(threads, rest * atom.num_val_dst)
    (kind,) = dst.dtypes
    dst.scatter(moved if moved.dtype == kind else np.ascontiguousarray(moved).view(kind))


def _check_access(atom: CopyAtom, side: str, parts: Parts, count: int) -> None:
    """Each access is to one piece of memory, at an address that it may have."""
    index = parts.all_indices.reshape(parts.all_indices.shape[0], -1, count)
    apart = np.argwhere(np.diff(index) != 1)
    nbytes = count * dtype(atom.value_type).bits // 8
    if apart.size:
        thread, access, value = (int(i) for i in apart[0])
        first, second = index[thread, access, value : value + 2]
        raise Misaligned(
            "copy",
            (atom, side),
            f"thread {thread}: elements {first} and {second} of {side} are not neighbours; {atom.op.name} accesses "
            f"{nbytes} bytes in one piece",
            "the other operand's mode contiguous, or an atom of one element",
        )
    alignment = min(atom.op.alignment, max(nbytes, 1))
    (kind,) = parts.dtypes
    bad = np.argwhere(index[:, :, 0] * kind.itemsize % alignment)
    if bad.size:
        thread, access = (int(i) for i in bad[0])
        raise Misaligned(
            "copy",
            (atom, side),
            f"thread {thread}: an access of {nbytes} bytes begins at byte {index[thread, access, 0] * kind.itemsize} "
            f"of {side}",
            f"strides that are multiples of {alignment // kind.itemsize} elements",
        )


# ---- axpby ---------------------------------------------------------------------------------------------------------


def axpby(alpha: Any, x: Tensor, beta: Any, y: Tensor) -> None:
    """Computes y = alpha * x + beta * y, element by element. With beta == 0 y is not read: NaNs go.

    Args:
      alpha: a number.
      x: a Tensor.
      beta: a number.
      y: a Tensor of as many elements, which is changed.

    >>> y = Tensor(np.full(3, np.nan, np.float32))
    >>> axpby(2, Tensor(np.array([1.0, 2.0, 3.0], np.float32)), 0, y)
    >>> y.numpy()
    array([2., 4., 6.], dtype=float32)

    Raises:
      InvalidType: x or y is no Tensor.
      ProfileMismatch: the numbers of elements differ.
    """
    if not (isinstance(x, Tensor) and isinstance(y, Tensor)):
        raise InvalidType("axpby", (alpha, x, beta, y), "axpby(alpha, x, beta, y) takes Tensors x and y")
    if x.size != y.size:
        raise ProfileMismatch("axpby", (x.layout, y.layout), f"{x.size} elements of x, {y.size} of y")
    scaled = np.asarray(alpha * x.values())
    total = scaled if beta == 0 else scaled + beta * y.values()
    y.data[y.indices()] = total.astype(y.dtype)


# ---- gemm ----------------------------------------------------------------------------------------------------------


def gemm(mma: Any, d: Any, a: Any, b: Any, c: Any) -> None:
    """D = A B^T + C in the atom's arithmetic.

    Products are exact; an instruction's sum is computed in float64 (integers: exactly) and rounded once, to D's type.
    The hardware's sums are shorter: results agree exactly where every sum is representable. TF32 operands lose their
    13 low bits. Integers wrap around, or saturate where the instruction says so.

    Args:
      mma: TiledMma, with whole tiles or a sequence of Tensors for each operand; ThrMma or single-threaded MmaAtom,
        with one thread's Tensors.
      d: the tile (M,N), or fragments (value,RestM,RestN).
      a: the tile (M,K), or fragments (value,RestM,RestK).
      b: the tile (N,K), or fragments (value,RestN,RestK).
      c: as d (it may be the same), or a number.

    Raises:
      AtomMismatch: elements of another type than the atom's; an instruction of a warp with one thread; a whole tile of
        D where several threads along K would each add to it.
      ProfileMismatch: operands that do not go together.
    """
    if not isinstance(mma, TiledMma):
        atom = mma.tiled.atom if isinstance(mma, ThrMma) else mma
        if not isinstance(atom, MmaAtom):
            raise InvalidType("gemm", (mma,), f"{mma!r} is no MMA")
        if atom.threads != 1:
            raise AtomMismatch(
                "gemm",
                (mma,),
                f"{atom.name} is executed by {atom.threads} threads together",
                "gemm(tiled_mma, ...) with a sequence of each thread's fragments",
            )
        mma = make_tiled_mma(atom)
        d, a, b, c = ([x] if isinstance(x, Tensor) else x for x in (d, a, b, c))
    atom, thr = mma.atom, mma.thr_layout_vmnk
    places = tuple(mode.size for mode in thr)  # (v,m,n,k)
    if places[3] > 1 and isinstance(d, Tensor):
        raise AtomMismatch(
            "gemm",
            (mma,),
            f"{places[3]} threads along K each hold a sum of their own of every element of D",
            "fragments for each thread, added up by the caller",
        )
    parts = {"A": _mma_parts(mma, "A", a), "B": _mma_parts(mma, "B", b), "D": _mma_parts(mma, "C", d, "D")}
    a_values = _matrices(parts["A"], places, atom.layout_A_TV)  # (m,n,k, RestK,RestM, K*M)
    b_values = _matrices(parts["B"], places, atom.layout_B_TV)  # (m,n,k, RestK,RestN, K*N)
    rest_m, rest_n, rest_k = parts["A"].rest[0], parts["B"].rest[0], parts["A"].rest[1]
    if parts["B"].rest[1] != rest_k or parts["D"].rest != (rest_m, rest_n):
        raise ProfileMismatch(
            "gemm",
            (mma,),
            f"the rests do not agree: A (M,K) {parts['A'].rest}, B (N,K) {parts['B'].rest}, D (M,N) {parts['D'].rest}",
        )
    m, n, k = atom.shape_mnk
    groups = places[1:]
    if isinstance(c, (int, float, complex)):
        total = np.full((*groups, rest_n, rest_m, n * m), c, storage(dtype(atom.dtype_C)))
    else:
        part = _mma_parts(mma, "C", c)
        if part.rest != parts["D"].rest:
            raise ProfileMismatch("gemm", (mma,), f"C (M,N) {part.rest} and D {parts['D'].rest} differ")
        total = _matrices(part, places, atom.layout_C_TV)
    # (m,n,k, RestN,RestM, n,m) -> (..., RestM*m, RestN*n)
    total = total.reshape(*groups, rest_n, rest_m, n, m).transpose(0, 1, 2, 4, 6, 3, 5)
    total = total.reshape(*groups, rest_m * m, rest_n * n)
    a_values = a_values.reshape(*groups, rest_k, rest_m, k, m).transpose(0, 1, 2, 3, 4, 6, 5)
    b_values = b_values.reshape(*groups, rest_k, rest_n, k, n).transpose(0, 1, 2, 3, 5, 4, 6)
    a_values = a_values.reshape(*groups, rest_k, rest_m * m, k)
    b_values = b_values.reshape(*groups, rest_k, k, rest_n * n)
    for i in range(rest_k):
        total = _multiply_add(atom, a_values[:, :, :, i], b_values[:, :, :, i], total)
    total = total.reshape(*groups, rest_m, m, rest_n, n).transpose(0, 1, 2, 5, 3, 6, 4)
    flat = total.reshape(*groups, rest_n, rest_m, n * m)
    ids = atom.layout_D_TV.values().reshape(atom.layout_D_TV[1].size, places[0]).T  # (v, value)
    values = np.moveaxis(flat[..., ids], -2, 0)  # (v,m,n,k, RestN,RestM, value)
    parts["D"].scatter(values.reshape(-1, rest_n * rest_m * ids.shape[1]))


class _MmaParts(Parts):
    """Each thread's elements of an operand, threads in the order of their (v,m,n,k) (k fastest)."""

    def __init__(self, memory: Any, index: Any, rest: tuple[int, int]):
        super().__init__(memory, index)
        self.rest = rest


def _mma_parts(mma: TiledMma, operand: str, x: Any, name: str | None = None) -> _MmaParts:
    name = name or operand
    kind = storage(dtype(getattr(mma.atom, f"dtype_{name}")))
    thr = mma.thr_layout_vmnk
    places = tuple(mode.size for mode in thr)
    values = getattr(mma.atom, f"layout_{name}_TV")[1].size
    memory: Any
    index: Any
    if isinstance(x, Tensor):
        i, j = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
        if name == "D" and mma.atom.layout_D_TV != mma.atom.layout_C_TV:
            # C's partition would put D's elements into the wrong places.
            mma = TiledMma(mma.atom.with_accumulator_of_D(), mma.atom_layout, mma.permutation)
        inner = thrfrg(mma, operand, _inner(x.layout))
        table = _through(x, inner).reshape(-1, places[j + 1], places[i + 1], places[0])
        v, *mnk = np.meshgrid(*(np.arange(n) for n in places), indexing="ij")
        index = np.moveaxis(table[:, mnk[j], mnk[i], v], 0, -1).reshape(-1, table.shape[0])
        rest = it.product_each(inner[1][1].shape)
        memory, found = x.data, {x.dtype}
    else:
        order = thr.values().reshape(places, order="F").reshape(-1)
        tensors = tensors_of("gemm", x, int(order.max()) + 1)
        shape = it.product_each(tensors[0].shape)
        if shape[0] != values:
            raise ProfileMismatch(
                "gemm",
                (mma.atom, tensors[0].layout),
                f"{shape[0]} values of {name} in a fragment, the atom has {values}",
            )
        rest = shape[1:]
        memory, index = [tensors[t].data for t in order], [tensors[t].indices() for t in order]
        found = {t.dtype for t in tensors}
    if found != {kind}:
        raise AtomMismatch("gemm", (mma.atom, name), f"{name} has {', '.join(map(str, found))} elements, not {kind}")
    rest = (*rest, 1, 1)
    if any(r != 1 for r in rest[2:]):
        raise ProfileMismatch("gemm", (mma.atom, rest), f"{name} has more modes than two beside its values")
    return _MmaParts(memory, index, (rest[0], rest[1]))


def _matrices(parts: _MmaParts, places: tuple[int, ...], layout_tv: Layout) -> np.ndarray:
    """The atoms' matrices: (m,n,k, second rest, first rest, element as layout_tv numbers them)."""
    values = parts.gather().reshape(*places, parts.rest[1], parts.rest[0], -1)
    flat = np.moveaxis(values, 0, -2)
    flat = flat.reshape(*flat.shape[:-2], -1)  # (..., v * values + value)
    ids = layout_tv.values().reshape(layout_tv[1].size, places[0]).T.reshape(-1)
    _, first = np.unique(ids, return_index=True)
    return flat[..., first]


def _multiply_add(atom: MmaAtom, a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """The sum a @ b + c, rounded to D's type. Matrices in the last two axes."""
    d_type, a_type = atom.dtype_D, atom.dtype_A
    to = storage(dtype(d_type))
    if a_type == "uint1":
        both = np.matmul(a.astype(np.int64), b.astype(np.int64))
        if atom.name.endswith("XORPOPC"):
            both = a.sum(-1, dtype=np.int64)[..., :, None] + b.sum(-2, dtype=np.int64)[..., None, :] - 2 * both
        return (c.astype(np.int64) + both).astype(to)
    if np.issubdtype(to, np.integer):
        # Products of integers of at most 16 bits are exact in float64, and so are their sums.
        exact = np.float64 if dtype(a_type).bits <= 16 else np.int64
        total = c.astype(np.int64) + np.matmul(a.astype(exact), b.astype(exact)).astype(np.int64)
        if atom.name.endswith("SATURATE"):
            total = np.clip(total, np.iinfo(to).min, np.iinfo(to).max)
        return total.astype(to)
    if a_type == "tfloat32":
        a, b = ((x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32) for x in (a.copy(), b.copy()))
    wide = np.complex128 if to.kind == "c" else np.float64
    with np.errstate(over="ignore", invalid="ignore"):
        return (c.astype(wide) + np.matmul(a.astype(wide), b.astype(wide))).astype(to)
