"""Which kernel computes a problem: a pure function of the problem, the architecture and the table."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence

from jax_moye.configs import GemmConfig
from jax_moye.cost import predicted_us
from jax_moye.problem import MAX_SIZE, GemmProblem, NotServedError


@dataclasses.dataclass(frozen=True)
class Candidate:
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
    if problem.order is None and not config.any_stride:
        return "it needs a mode of stride 1 in each operand"
    if problem.order is not None and problem.order not in config.orders:
        return f"it takes the orders {', '.join(config.orders)}, and this is {problem.order}"
    if problem.alignment % config.alignment:
        return (
            f"it loads {config.alignment} bytes at a time, and the operands' strides "
            f"{problem.a_strides} and {problem.b_strides} of {problem.dtype} are aligned to {problem.alignment}"
        )
    if max(problem.m, problem.n, problem.k) > MAX_SIZE - max(config.tile):
        return "a dimension is over 2^31 - 1 less one tile"
    if _tiles(config, problem) > MAX_SIZE:
        return "the result has more than 2^31 - 1 tiles"
    return None


def _tiles(config: GemmConfig, problem: GemmProblem) -> int:
    tile_m, tile_n, _ = config.tile
    return problem.batch * math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n)


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


def select(problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig]) -> GemmConfig:
    """The best config for the problem.

    Raises:
      NotServedError: no config can compute it; the message has each one's reason.
    """
    ranked = rank(problem, arch, table)
    if ranked and ranked[0].reason is None:
        return ranked[0].config
    of_dtype = [candidate for candidate in ranked if candidate.config.dtype == problem.dtype]
    if not of_dtype:
        raise NotServedError(f"no kernel takes {problem.dtype} operands")
    raise NotServedError("; ".join(f"{candidate.config.name}: {candidate.reason}" for candidate in of_dtype))
