"""What is to be computed: a contraction's specification, and the single matrix multiplication it amounts to."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from jax_moye._kernels.dtypes import ITEM_BYTES, MULTIPLIED_AS, USUAL_ACCUMULATOR, exchanged, numpy_dtypes
from jax_moye._selection.view import View

MAX_SIZE = 2**31 - 1  # of a dimension and of the number of tiles: what the kernels' 32-bit coordinates hold
BATCH_MODES = 3  # of a launch: kBatchModes of cuda/gemm/config.h
# Of a problem: files have them where there is such a thing.
RARE_FIELDS = ("outer", "pair", "derivative", "gate", "scaled", "offsets")
_WIDEST_LOAD = 16  # bytes
_PADDED_LINE = 32  # bytes: a row of a box, 128 bytes, never touches a fifth sector


class NotServedError(Exception):
    """No kernel of ours computes this; the text says why. XLA computes it instead, unless the caller insists."""


class ConfigError(ValueError):
    """The config that the caller named cannot compute this; the text says why."""


class Spec(NamedTuple):
    """The three label strings of a contraction, e.g. ("bmk", "kn", "bmn")."""

    lhs: str
    rhs: str
    out: str


@functools.cache
def parse_spec(spec: str) -> Spec:
    """Splits "bmk,kn->bmn" and checks it.

    Each label occurs once per operand at most, and a label of one operand alone is in the output. Such specifications
    are closed under transposition (swap the roles of the three strings) and under vmap (add a label).

    Raises:
      ValueError: the string is no such specification.
    """
    operands, arrow, out = spec.partition("->")
    lhs, comma, rhs = operands.partition(",")
    parsed = Spec(lhs, rhs, out)
    well_formed = arrow and comma and all(len(set(labels)) == len(labels) for labels in parsed)
    if not well_formed or not set(out) <= set(lhs) | set(rhs) or not set(lhs) ^ set(rhs) <= set(out):
        raise ValueError(
            f"{spec!r} is no contraction: it reads 'lhs,rhs->out', a label occurs once per operand, and a label of one "
            "operand alone is in the output"
        )
    return parsed


def labels() -> Iterator[str]:
    """Labels for specifications: letters first, and never an end."""
    code = ord("a")
    while True:
        if chr(code) not in ",->":
            yield chr(code)
        code += 1


class Mode(NamedTuple):
    """One dimension of the iteration space; a stride is 0 where the operand lacks the dimension."""

    size: int
    lhs: int
    rhs: int
    out: int


def _row_major(shape: Sequence[int]) -> list[int]:
    strides = [1] * len(shape)
    for i in range(len(shape) - 2, -1, -1):
        strides[i] = strides[i + 1] * shape[i + 1]
    return strides


def _strides(shape: Sequence[int], permutation: Sequence[int] | None) -> list[int]:
    """Strides of an operand that is `transpose(stored, permutation)` of a row-major array; shape is the operand's."""
    if permutation is None:
        return _row_major(shape)
    stored = [0] * len(shape)
    for i, axis in enumerate(permutation):
        stored[axis] = shape[i]
    stored_strides = _row_major(stored)
    return [stored_strides[axis] for axis in permutation]


def _coalesce(modes: list[Mode]) -> list[Mode]:
    """Merges neighbouring modes that step through memory as one does, in every operand."""
    merged: list[Mode] = []
    for mode in sorted((m for m in modes if m.size != 1), key=lambda m: (-m.out, -m.lhs, -m.rhs)):
        outer = merged[-1] if merged else None
        if outer is not None and all(o == i * mode.size for o, i in zip(outer[1:], mode[1:], strict=True)):
            merged[-1] = Mode(outer.size * mode.size, *mode[1:])
        else:
            merged.append(mode)
    return merged


def _innermost(modes: list[Mode], k: Mode, side: str) -> int:
    """Which of the modes of m (side "lhs") or n ("rhs") stays, where the others become modes of the batch.

    It should be contiguous in the operand if k is not, then contiguous in the output, then the larger, then the inner.
    """
    needs_unit = getattr(k, side) != 1

    def worth_keeping(at: int) -> tuple[bool, bool, int, int]:
        mode = modes[at]
        return (needs_unit and getattr(mode, side) == 1, mode.out == 1, mode.size, at)

    return max(range(len(modes)), key=worth_keeping)


def _pair_strides(sizes: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
    """The strides of two modes, those of size 1 replaced: their stride is never used, but says what is contiguous."""
    first, second = strides
    if sizes[1] == 1:
        second = 1 if first != 1 or sizes[0] == 1 else 0
    if sizes[0] == 1:
        first = 0 if second == 1 else 1
    return first, second


class BatchMode(NamedTuple):
    """A mode of a batch that does not merge with the next one: its size, and the strides of a, b and d along it."""

    size: int
    a: int
    b: int
    d: int


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """d[b,m,n] = sum_k a[b,m,k] * b[b,n,k], as the kernels see it.

    Attributes:
      batch, m, n, k: sizes, none 0; batch is the number of matrices.
      a_strides: of (batch, m, k), in elements; 0 where the batch is broadcast. Of a batch of several modes, it is the
        last one's.
      b_strides: of (batch, n, k).
      d_strides: of (batch, m, n).
      dtype: of both operands: bf16, f16, f32, f64, s8, e4m3, e5m2, or f32 in memory and multiplied as tf32, or as
        bf16x3 or bf16x9, or better. e4m3xe5m2 and e5m2xe4m3: of a and of b.
      out_dtype: of d.
      accumulator: what products are summed in; None: what is usual for the dtype.
      swapped: a is the contraction's right operand, because the output is contiguous along the left one's dimension.
      epilogue: something is done to the sums before they are written, beside a conversion.
      outer: the batch's modes before the last one, the outermost first.
      pair: there are two matrices b, and d is made of both products.
      derivative: the product is multiplied by an activation's derivative at another matrix.
      gate: and by a third matrix; there are two results, the cotangents of a layer with a gate.
      scaled: its rows or columns are multiplied by scales.
      offsets: of the first elements of a, of b and of a second b in their arrays, where they are parts of larger ones;
        () where all are 0.
    """

    batch: int
    m: int
    n: int
    k: int
    a_strides: tuple[int, int, int]
    b_strides: tuple[int, int, int]
    d_strides: tuple[int, int, int]
    dtype: str
    out_dtype: str
    swapped: bool
    accumulator: str | None = None
    epilogue: bool = False
    outer: tuple[BatchMode, ...] = ()
    pair: bool = False
    derivative: bool = False
    gate: bool = False
    scaled: bool = False
    offsets: tuple[int, ...] = ()

    @property
    def sums(self) -> str:
        """The dtype in which products are summed."""
        return self.accumulator or USUAL_ACCUMULATOR[self.dtype]

    @property
    def of_lhs_and_rhs(self) -> str:
        """The dtypes as `make_problem` takes them."""
        return exchanged(self.dtype) if self.swapped else self.dtype

    @property
    def in_memory(self) -> tuple[Any, ...]:
        """The dtypes of lhs and rhs as a kernel reads them."""
        of_a_and_b = numpy_dtypes(self.dtype)
        return of_a_and_b[::-1] if self.swapped else of_a_and_b

    @property
    def multiplied_as(self) -> tuple[str, ...]:
        """The dtypes of configs that are precise enough."""
        return MULTIPLIED_AS.get(self.dtype, (self.dtype,))

    @functools.cached_property
    def batch_sizes(self) -> tuple[int, ...]:
        """Of the batch's modes, the outermost first."""
        outer = [mode.size for mode in self.outer]
        return (*outer, self.batch // math.prod(outer))

    @property
    def sizes(self) -> tuple[int, ...]:
        """(batch modes..., m, n, k), as the kernels take them."""
        return (*self.batch_sizes, self.m, self.n, self.k)

    @property
    def strides(self) -> dict[str, tuple[int, ...]]:
        """Of "a", "b" and "d" along (batch modes..., rows, columns), as the kernels take them."""
        return {
            "a": (*(mode.a for mode in self.outer), *self.a_strides),
            "b": (*(mode.b for mode in self.outer), *self.b_strides),
            "d": (*(mode.d for mode in self.outer), *self.d_strides),
        }

    @property
    def matrices(self) -> tuple[int, int]:
        """How many of a and of b there are in memory: one where the batch is broadcast."""
        if not self.outer:
            return (self.batch if self.a_strides[0] else 1, self.batch if self.b_strides[0] else 1)
        a, b = (
            math.prod(size for size, stride in zip(self.batch_sizes, self.strides[name], strict=False) if stride)
            for name in ("a", "b")
        )
        return a, b

    @functools.cached_property
    def order(self) -> str | None:
        """Which mode of a and b is contiguous, "NN" where both are row-major; None if an operand has none."""
        a = "N" if self.a_strides[2] == 1 else "T" if self.a_strides[1] == 1 else None
        b = "N" if self.b_strides[1] == 1 else "T" if self.b_strides[2] == 1 else None
        return None if a is None or b is None else a + b

    @property
    def launch_order(self) -> str:
        """The order in which its kernel is compiled that a launch chooses: order_of() of cuda/gemm/order.h."""
        (_, a_m, a_k), (_, b_n, b_k) = self.a_strides, self.b_strides

        def along(size: int, stride: int, other_size: int, other_stride: int) -> bool:
            return stride == 1 and (size != 1 or other_stride != 1 or other_size == 1)

        a = along(self.k, a_k, self.m, a_m) or not along(self.m, a_m, self.k, a_k)
        b = along(self.n, b_n, self.k, b_k) or not along(self.k, b_k, self.n, b_n)
        return ("N" if a else "T") + ("N" if b else "T")

    @functools.cached_property
    def alignment(self) -> int:
        """The bytes, 16 at most, that divide every stride of a and b other than the contiguous mode's, and offset."""
        (a_batch, a_m, a_k), (b_batch, b_n, b_k) = self.a_strides, self.b_strides
        outer = (stride for mode in self.outer for stride in (mode.a, mode.b))
        divisor = math.gcd(a_batch, a_m if a_k == 1 else a_k, b_batch, b_k if b_n == 1 else b_n, *outer, *self.offsets)
        return math.gcd(divisor * ITEM_BYTES[self.dtype], _WIDEST_LOAD)

    @property
    def result_bytes(self) -> int:
        """Of d."""
        return self.batch * self.m * self.n * ITEM_BYTES[self.out_dtype]

    @functools.cached_property
    def padded(self) -> GemmProblem:
        """The same behind a padding of the lines that TMA cannot read; itself where there are none, or none helps."""
        if self.offsets:
            return self
        a = _padded(self.strides["a"], (*self.batch_sizes, self.m, self.k), self.dtype)
        b = _padded(self.strides["b"], (*self.batch_sizes, self.n, self.k), self.dtype)
        if (a, b) == (self.strides["a"], self.strides["b"]):
            return self
        (*of_a, a_batch, a_m, a_k), (*of_b, b_batch, b_n, b_k) = a, b
        modes = zip(self.outer, of_a, of_b, strict=True)
        return dataclasses.replace(
            self,
            a_strides=(a_batch, a_m, a_k),
            b_strides=(b_batch, b_n, b_k),
            outer=tuple(mode._replace(a=of_a, b=of_b) for mode, of_a, of_b in modes),
        )

    def to_dict(self) -> dict[str, Any]:
        """Its fields, as files have them."""
        fields = dataclasses.asdict(self)
        return {name: value for name, value in fields.items() if value or name not in RARE_FIELDS}


def make_problem(
    spec: str,
    lhs_shape: Sequence[int],
    rhs_shape: Sequence[int],
    dtype: str,
    out_dtype: str,
    lhs_permutation: tuple[int, ...] | None = None,
    rhs_permutation: tuple[int, ...] | None = None,
    accumulator: str | None = None,
    epilogue: bool = False,
    views: tuple[View | None, View | None] = (None, None),
) -> GemmProblem:
    """The matrix multiplication that computes a contraction of row-major arrays.

    Args:
      spec: e.g. "bmk,kn->bmn".
      lhs_shape: as the specification sees it. No size is 0.
      rhs_shape: likewise.
      dtype: of both operands, as in GemmProblem; where they differ, of lhs and of rhs.
      out_dtype: of the result.
      lhs_permutation: if given, lhs is `transpose(stored, lhs_permutation)`, and `stored` is what is in memory.
      rhs_permutation: likewise.
      accumulator: what products are summed in; None: what is usual for the dtype.
      epilogue: as in GemmProblem.
      views: of lhs and rhs: which part of a row-major array the operand is, without a permutation.

    Raises:
      NotServedError: it takes more than one matrix multiplication, or sizes are over the kernels' limit.
    """
    parsed = parse_spec(spec)
    size = dict(zip(parsed.lhs, lhs_shape, strict=True)) | dict(zip(parsed.rhs, rhs_shape, strict=True))
    of_lhs, of_rhs = views
    lhs_strides = _strides(lhs_shape, lhs_permutation) if of_lhs is None else of_lhs.strides
    rhs_strides = _strides(rhs_shape, rhs_permutation) if of_rhs is None else of_rhs.strides
    offsets = [0 if view is None else view.offset for view in views]
    lhs, rhs = dict(zip(parsed.lhs, lhs_strides, strict=True)), dict(zip(parsed.rhs, rhs_strides, strict=True))
    out = dict(zip(parsed.out, _row_major([size[label] for label in parsed.out]), strict=True))

    groups: dict[str, list[Mode]] = {"b": [], "m": [], "n": [], "k": []}
    for label in dict.fromkeys(parsed.out + parsed.lhs):
        in_both = label in lhs and label in rhs
        group = ("b" if label in out else "k") if in_both else "m" if label in lhs else "n"
        groups[group].append(Mode(size[label], lhs.get(label, 0), rhs.get(label, 0), out.get(label, 0)))
    b_modes, m_modes, n_modes, k_modes = (_coalesce(group) for group in groups.values())

    one = Mode(1, 0, 0, 0)
    k = k_modes[0] if k_modes else one
    # A dimension of one operand alone can run over the batch: the other operand is then read again, with stride 0.
    spare = max(0, len(m_modes) - 1) + max(0, len(n_modes) - 1)
    if len(k_modes) > 1 or len(b_modes) + spare > BATCH_MODES:
        counts = {"batch": len(b_modes), "m": len(m_modes), "n": len(n_modes), "k": len(k_modes)}
        left = ", ".join(f"{count} of {name}" for name, count in counts.items() if count > 1)
        raise NotServedError(
            f"{spec} on shapes {tuple(lhs_shape)} and {tuple(rhs_shape)} is more than one matrix multiplication: "
            f"dimensions remain that do not merge into one ({left})"
        )
    m, n = (
        modes.pop(_innermost(modes, k, side)) if modes else one for modes, side in ((m_modes, "lhs"), (n_modes, "rhs"))
    )
    batch = _coalesce(b_modes + m_modes + n_modes) or [one]
    matrices = math.prod(mode.size for mode in batch)
    for size_, what in ((matrices, "batch"), (m.size, "dimension"), (n.size, "dimension"), (k.size, "dimension")):
        if size_ > MAX_SIZE:
            raise NotServedError(f"a {what} of {size_} elements is over 2^31 - 1")

    # The kernels write along n: give that role to the operand along whose dimension the output is contiguous.
    swapped = m.out == 1 and n.out != 1
    if swapped:
        m, n, k, *batch = (Mode(mode.size, mode.rhs, mode.lhs, mode.out) for mode in (n, m, k, *batch))
    *outer, b = batch
    return GemmProblem(
        batch=matrices,
        m=m.size,
        n=n.size,
        k=k.size,
        a_strides=(b.lhs, *_pair_strides((m.size, k.size), (m.lhs, k.lhs))),
        b_strides=(b.rhs, *_pair_strides((n.size, k.size), (n.rhs, k.rhs))),
        d_strides=(b.out, *_pair_strides((m.size, n.size), (m.out, n.out))),
        dtype=exchanged(dtype) if swapped else dtype,
        out_dtype=out_dtype,
        swapped=swapped,
        accumulator=accumulator,
        epilogue=epilogue,
        outer=tuple(BatchMode(*mode) for mode in outer),
        offsets=tuple(reversed(offsets) if swapped else offsets) if any(offsets) else (),
    )


def is_for_tma(strides: Sequence[int], dtype: str) -> bool:
    """Whether TMA can read an operand for wgmma: a mode of stride 1, which is k but for 16-bit elements.

    Args:
      strides: of (batch modes..., rows, k).
      dtype: of the operand.
    """
    *batch, rows, k = strides
    item = ITEM_BYTES[dtype]
    of_batch = math.gcd(*batch)
    if k == 1:
        return of_batch * item % 16 == 0 and rows * item % 16 == 0
    return rows == 1 and item == 2 and of_batch * item % 16 == 0 and k * item % 16 == 0


def _padded(strides: tuple[int, ...], sizes: tuple[int, ...], dtype: str) -> tuple[int, ...]:
    """The strides of an operand whose lines were padded; its own where TMA can read it, or not even then.

    It is dense, as XLA's arrays are: a mode's stride is what the modes inside of it have of elements. So it is no part
    of an array, of which more would be padded than is read.
    """
    used = sorted((stride, size) for size, stride in zip(sizes, strides, strict=True) if size > 1 and stride)
    inner = [math.prod(size for _, size in used[:i]) for i in range(len(used))]
    if is_for_tma(strides, dtype) or not used or [stride for stride, _ in used] != inner:
        return strides
    length = used[0][1]
    step = _PADDED_LINE // ITEM_BYTES[dtype]
    pitch = -(-length // step) * step
    padded = tuple(stride if stride == 1 else stride // length * pitch for stride in strides)
    return padded if is_for_tma(padded, dtype) else strides
