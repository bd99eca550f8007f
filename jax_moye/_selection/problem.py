"""What is to be computed: a contraction's specification, and the single matrix multiplication it amounts to."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from jax_moye._kernels.dtypes import ITEM_BYTES, USUAL_ACCUMULATOR

MAX_SIZE = 2**31 - 1  # of a dimension and of the number of tiles: what the kernels' 32-bit coordinates hold
_WIDEST_LOAD = 16  # bytes


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


def _outermost(modes: list[Mode], k: Mode, side: str) -> int:
    """Which of two modes of m (side "lhs") or n ("rhs") becomes the batch.

    The one that stays should be contiguous in the operand if k is not, then contiguous in the output, then the larger.
    """
    needs_unit = getattr(k, side) != 1

    def worth_keeping(mode: Mode) -> tuple[bool, bool, int]:
        return (needs_unit and getattr(mode, side) == 1, mode.out == 1, mode.size)

    return 0 if worth_keeping(modes[1]) >= worth_keeping(modes[0]) else 1


def _pair_strides(sizes: tuple[int, int], strides: tuple[int, int]) -> tuple[int, int]:
    """The strides of two modes, those of size 1 replaced: their stride is never used, but says what is contiguous."""
    first, second = strides
    if sizes[1] == 1:
        second = 1 if first != 1 or sizes[0] == 1 else 0
    if sizes[0] == 1:
        first = 0 if second == 1 else 1
    return first, second


@dataclasses.dataclass(frozen=True)
class GemmProblem:
    """d[b,m,n] = sum_k a[b,m,k] * b[b,n,k], as the kernels see it.

    Attributes:
      batch, m, n, k: sizes, none 0.
      a_strides: of (batch, m, k), in elements; 0 where the batch is broadcast.
      b_strides: of (batch, n, k).
      d_strides: of (batch, m, n).
      dtype: of both operands: bf16, f16, f32, f64, s8, e4m3, e5m2, or tf32: f32 in memory, multiplied as TF32.
      out_dtype: of d.
      accumulator: what products are summed in; None: what is usual for the dtype.
      swapped: a is the contraction's right operand, because the output is contiguous along the left one's dimension.
      epilogue: something is done to the sums before they are written, beside a conversion.
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

    @property
    def sums(self) -> str:
        """The dtype in which products are summed."""
        return self.accumulator or USUAL_ACCUMULATOR[self.dtype]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch, m, n, k)."""
        return (self.batch, self.m, self.n, self.k)

    @functools.cached_property
    def order(self) -> str | None:
        """Which mode of a and b is contiguous, "NN" where both are row-major; None if an operand has none."""
        a = "N" if self.a_strides[2] == 1 else "T" if self.a_strides[1] == 1 else None
        b = "N" if self.b_strides[1] == 1 else "T" if self.b_strides[2] == 1 else None
        return None if a is None or b is None else a + b

    @functools.cached_property
    def alignment(self) -> int:
        """The bytes, 16 at most, that divide every stride of a and b other than the contiguous mode's."""
        (a_batch, a_m, a_k), (b_batch, b_n, b_k) = self.a_strides, self.b_strides
        divisor = math.gcd(a_batch, a_m if a_k == 1 else a_k, b_batch, b_k if b_n == 1 else b_n)
        return math.gcd(divisor * ITEM_BYTES[self.dtype], _WIDEST_LOAD)


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
) -> GemmProblem:
    """The matrix multiplication that computes a contraction of row-major arrays.

    Args:
      spec: e.g. "bmk,kn->bmn".
      lhs_shape: as the specification sees it. No size is 0.
      rhs_shape: likewise.
      dtype: of both operands, as in GemmProblem.
      out_dtype: of the result.
      lhs_permutation: if given, lhs is `transpose(stored, lhs_permutation)`, and `stored` is what is in memory.
      rhs_permutation: likewise.
      accumulator: what products are summed in; None: what is usual for the dtype.
      epilogue: as in GemmProblem.

    Raises:
      NotServedError: it takes more than one matrix multiplication, or sizes are over the kernels' limit.
    """
    parsed = parse_spec(spec)
    size = dict(zip(parsed.lhs, lhs_shape, strict=True)) | dict(zip(parsed.rhs, rhs_shape, strict=True))
    lhs = dict(zip(parsed.lhs, _strides(lhs_shape, lhs_permutation), strict=True))
    rhs = dict(zip(parsed.rhs, _strides(rhs_shape, rhs_permutation), strict=True))
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
    if not b_modes and len(m_modes) == 2:
        b_modes.append(m_modes.pop(_outermost(m_modes, k, "lhs")))
    elif not b_modes and len(n_modes) == 2:
        b_modes.append(n_modes.pop(_outermost(n_modes, k, "rhs")))
    counts = {"batch": len(b_modes), "m": len(m_modes), "n": len(n_modes), "k": len(k_modes)}
    if any(count > 1 for count in counts.values()):
        left = ", ".join(f"{count} of {name}" for name, count in counts.items() if count > 1)
        raise NotServedError(
            f"{spec} on shapes {tuple(lhs_shape)} and {tuple(rhs_shape)} is more than one matrix multiplication: "
            f"dimensions remain that do not merge into one ({left})"
        )
    b, m, n = (modes[0] if modes else one for modes in (b_modes, m_modes, n_modes))
    for mode in (b, m, n, k):
        if mode.size > MAX_SIZE:
            raise NotServedError(f"a dimension of {mode.size} elements is over 2^31 - 1")

    # The kernels write along n: give that role to the operand along whose dimension the output is contiguous.
    swapped = m.out == 1 and n.out != 1
    if swapped:
        b, m, n, k = (Mode(mode.size, mode.rhs, mode.lhs, mode.out) for mode in (b, n, m, k))
    return GemmProblem(
        batch=b.size,
        m=m.size,
        n=n.size,
        k=k.size,
        a_strides=(b.lhs, *_pair_strides((m.size, k.size), (m.lhs, k.lhs))),
        b_strides=(b.rhs, *_pair_strides((n.size, k.size), (n.rhs, k.rhs))),
        d_strides=(b.out, *_pair_strides((m.size, n.size), (m.out, n.out))),
        dtype=dtype,
        out_dtype=out_dtype,
        swapped=swapped,
        accumulator=accumulator,
        epilogue=epilogue,
    )
