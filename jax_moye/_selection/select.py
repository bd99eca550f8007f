"""Which kernel computes a problem: a pure function of the problem, the architecture and the table."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye._selection.cost import predicted_us
from jax_moye._selection.problem import MAX_SIZE, GemmProblem, NotServedError

_REFERENCE_SIZE = 4096  # of the square product by which families are compared


class Candidate(NamedTuple):
    """A row of the table, and why it cannot compute the problem; None if it can."""

    config: GemmConfig
    reason: str | None


def why_not(config: GemmConfig, problem: GemmProblem, arch: int | None) -> str | None:
    """Why the config cannot compute the problem, in a sentence; None if it can.

    Args:
      config: the kernel.
      problem: what it is to compute.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
    """
    if config.dtype != problem.dtype:
        return f"its operands are {config.dtype}, these are {problem.dtype}"
    if config.accumulator != problem.sums:
        return f"it sums in {config.accumulator}, and {problem.sums} is asked for"
    if problem.out_dtype not in config.out_dtypes:
        return f"it writes {', '.join(config.out_dtypes)}, and {problem.out_dtype} is wanted"
    if arch is not None and arch < config.min_arch:
        return f"it needs sm_{config.min_arch} or newer, and this is sm_{arch}"
    if arch is not None and config.max_arch and arch > config.max_arch:
        return f"its code is sm_{config.max_arch}'s and not newer ones', and this is sm_{arch}"
    if arch is not None and config.smem_bytes > _smem_limit(arch):
        return f"a CTA needs {config.smem_bytes} bytes of shared memory, and sm_{arch} has {_smem_limit(arch)}"
    if problem.order is None and not config.any_stride:
        return "it needs a mode of stride 1 in each operand"
    if problem.order is not None and problem.order not in config.orders:
        return f"it takes the orders {', '.join(config.orders)}, and this is {problem.order}"
    if problem.alignment % config.alignment:
        return (
            f"it loads {config.alignment} bytes at a time, and the operands' strides "
            f"{problem.a_strides} and {problem.b_strides} of {problem.dtype} are aligned to {problem.alignment}"
        )
    (tile_m, tile_n), tile_k = config.cluster_tile, config.tile[2]  # what is scheduled
    if problem.m > MAX_SIZE - tile_m or problem.n > MAX_SIZE - tile_n or problem.k > MAX_SIZE - tile_k:
        return "a dimension is over 2^31 - 1 less one tile"
    tiles = problem.batch * math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n)
    if tiles > MAX_SIZE // config.k_parts:  # CTAs of a launch: one for each part of k
        return "the result has more than 2^31 - 1 tiles"
    return None


@functools.cache
def _smem_limit(arch: int) -> float:
    """Bytes of shared memory that a CTA can have; of an architecture that nobody has entered as many as it wants."""
    from jax_moye.layout.resources import ARCHS  # not with `import jax_moye`: the layouts take time to load

    limits = ARCHS.get(f"sm_{arch}")
    return math.inf if limits is None else limits.smem_per_cta


class Summation(NamedTuple):
    """How a kernel sums one element of d: rows of the table with the same summation write the same bits.

    In every kernel here one thread (of a warp, of a warpgroup) starts an element at zero and adds products of ascending
    k, one instruction after the other, without atomic additions. The chain depends on the instruction, on what it
    multiplies and sums, and on the k-tile, the last of which ends with zeros, and after each of which sums of 8-bit
    floats leave wgmma. A kernel that splits k has a chain for each of `parts` parts, which begin where k alone says,
    and adds up their ends in the order of k. It does not depend on the tile's m and n, the stages, the cluster
    otherwise, the operands' orders and alignment (packing copies), or where in d the element lies.
    That an instruction treats all its rows and columns alike, and its operands when they are swapped, is what GPUs are
    seen to do, and nowhere promised: tests/gpu/test_gpu_options.py checks it.
    """

    instruction: str
    dtype: str
    accumulator: str
    k_tile: int
    parts: int


def summation(config: GemmConfig) -> Summation:
    """The summation of a row of the table."""
    if config.accumulator == "s32":  # integers wrap around: any order gives the same sum
        return Summation("any", config.dtype, config.accumulator, 0, 1)
    instruction = facts_of(config.kernel).instruction or config.kernel  # one that is not known sums like no other
    return Summation(instruction, config.dtype, config.accumulator, config.tile[2], config.k_parts)


def _serves_any(config: GemmConfig) -> bool:
    """Whether the config takes operands of any order, strides and alignment."""
    every_order = {"NN", "NT", "TN", "TT"} <= set(config.orders)
    return config.any_stride and every_order and config.alignment <= ITEM_BYTES[config.dtype]


def reference_problem(dtype: str, out_dtype: str, accumulator: str) -> GemmProblem:
    """A large square product, contiguous along k: on it is compared what must not depend on a call."""
    size = _REFERENCE_SIZE
    strides = (0, size, 1)
    return GemmProblem(1, size, size, size, strides, strides, strides, dtype, out_dtype, False, accumulator)


@functools.lru_cache(maxsize=256)
def batch_invariant_rows(
    dtype: str, out_dtype: str, accumulator: str, arch: int | None, table: Sequence[GemmConfig]
) -> tuple[GemmConfig, ...]:
    """The rows that compute under batch_invariant=True: all of one summation, which depends on nothing but these.

    Of the summations of the table the fastest on one large product, among those that serve operands of any order,
    strides and alignment if there are any.

    Args:
      dtype: of both operands, as in GemmProblem.
      out_dtype: of d.
      accumulator: what products are summed in.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
      table: the rows of the build.
    """
    problem = reference_problem(dtype, out_dtype, accumulator)
    families: dict[Summation, list[GemmConfig]] = {}
    for row in table:
        if why_not(row, problem, arch) is None:
            families.setdefault(summation(row), []).append(row)

    def key(rows: list[GemmConfig]) -> tuple[bool, float]:
        return (not any(map(_serves_any, rows)), min(predicted_us(row, problem, arch) for row in rows))

    return tuple(sorted(families.values(), key=key)[0]) if families else ()


@functools.lru_cache(maxsize=4096)
def rank(problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig]) -> tuple[Candidate, ...]:
    """All rows of the table, the best first and those that cannot compute the problem last, with their reasons.

    The best is the one of which cost.predicted_us says the least; of equals, the one with the larger tile.
    """

    def key(candidate: Candidate) -> tuple[bool, float, int]:
        config = candidate.config
        us = predicted_us(config, problem, arch) if candidate.reason is None else math.inf
        return (candidate.reason is not None, us, -config.tile[0] * config.tile[1])

    return tuple(sorted((Candidate(config, why_not(config, problem, arch)) for config in table), key=key))


@functools.lru_cache(maxsize=64)
def _rows_of(dtype: str, accumulator: str, table: Sequence[GemmConfig]) -> tuple[GemmConfig, ...]:
    return tuple(row for row in table if (row.dtype, row.accumulator) == (dtype, accumulator))


@functools.lru_cache(maxsize=4096)
def _best(problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig]) -> GemmConfig | None:
    """The first row of `rank`, without the others; None if no row can compute the problem."""
    best, least = None, (math.inf, 0)
    for row in _rows_of(problem.dtype, problem.sums, table):
        if why_not(row, problem, arch) is None:
            cost = (predicted_us(row, problem, arch), -row.tile[0] * row.tile[1])
            if best is None or cost < least:
                best, least = row, cost
    return best


def select(
    problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig], batch_invariant: bool = False
) -> GemmConfig:
    """The best config for the problem.

    Args:
      problem: what is to be computed.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
      table: the rows to choose from.
      batch_invariant: choose among `batch_invariant_rows` alone.

    Raises:
      NotServedError: no config can compute it; the message has each one's reason.
    """
    if batch_invariant:
        table = batch_invariant_rows(problem.dtype, problem.out_dtype, problem.sums, arch, table)
    best = _best(problem, arch, table)
    if best is not None:
        return best
    of_dtype = [candidate for candidate in rank(problem, arch, table) if candidate.config.dtype == problem.dtype]
    if not of_dtype:
        raise NotServedError(f"no kernel takes {problem.dtype} operands")
    raise NotServedError("; ".join(f"{candidate.config.name}: {candidate.reason}" for candidate in of_dtype))
