"""The order of configs for a problem: a pure function of the problem, the architecture and the table."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._selection.capability import why_not
from jax_moye._selection.cost import predicted_us
from jax_moye._selection.problem import GemmProblem, NotServedError
from jax_moye._selection.summation import batch_invariant_configs


class Candidate(NamedTuple):
    """A config, and why it cannot compute the problem; None if it can."""

    config: GemmConfig
    reason: str | None


@functools.lru_cache(maxsize=4096)
def rank(problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig]) -> tuple[Candidate, ...]:
    """All configs of the table, the best first and those that cannot compute the problem last, with their reasons.

    The best is the one of which cost.predicted_us says the least; of equals, the one with the larger tile.
    """

    def key(candidate: Candidate) -> tuple[bool, float, int]:
        config = candidate.config
        us = predicted_us(config, problem, arch) if candidate.reason is None else math.inf
        return (candidate.reason is not None, us, -config.tile[0] * config.tile[1])

    return tuple(sorted((Candidate(config, why_not(config, problem, arch)) for config in table), key=key))


def contenders(problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig], most: int) -> list[GemmConfig]:
    """What is worth timing: the first configs of `rank`, and who is not in its order.

    Of a kernel that nobody has timed the model says nothing. Its best config is timed, too, where the problem's rows
    are those of one tile: each kernel is made for such a problem, and loses little time there if it is slow. Not where
    it loads fewer bytes at a time than the operands allow.

    Args:
      problem: what is to be computed.
      arch: the GPU's, e.g. 90; None where it is not known.
      table: the configs to choose from.
      most: of the configs that the model knows.
    """
    able = [config for config, reason in rank(problem, arch, table) if reason is None]
    timed = [config for config in able if facts_of(config.kernel).is_timed]
    untimed: dict[str, GemmConfig] = {}
    for config in able:
        if config not in timed and problem.m <= config.tile[0] and config.alignment >= problem.alignment:
            untimed.setdefault(config.kernel, config)
    return [*timed[:most], *untimed.values()] if timed else able[:most]


@functools.lru_cache(maxsize=64)
def _configs_of(dtypes: tuple[str, ...], accumulator: str, table: Sequence[GemmConfig]) -> tuple[GemmConfig, ...]:
    return tuple(config for config in table if config.dtype in dtypes and config.accumulator == accumulator)


@functools.lru_cache(maxsize=4096)
def _best(problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig]) -> GemmConfig | None:
    """The first config of `rank`, without the others; None if none can compute the problem."""
    best, least = None, (math.inf, 0)
    for config in _configs_of(problem.multiplied_as, problem.sums, table):
        if why_not(config, problem, arch) is None:
            cost = (predicted_us(config, problem, arch), -config.tile[0] * config.tile[1])
            if best is None or cost < least:
                best, least = config, cost
    return best


def select(
    problem: GemmProblem, arch: int | None, table: Sequence[GemmConfig], batch_invariant: bool = False
) -> GemmConfig:
    """The best config for the problem.

    Args:
      problem: what is to be computed.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
      table: the configs to choose from.
      batch_invariant: choose among `batch_invariant_configs` alone.

    Raises:
      NotServedError: no config can compute it; the message has each one's reason.
    """
    if batch_invariant:
        table = batch_invariant_configs(problem.dtype, problem.out_dtype, problem.sums, arch, table)
    best = _best(problem, arch, table)
    if best is not None:
        return best
    of_dtype = [
        candidate for candidate in rank(problem, arch, table) if candidate.config.dtype in problem.multiplied_as
    ]
    if not of_dtype:
        raise NotServedError(f"no kernel takes {problem.dtype} operands")
    raise NotServedError("; ".join(f"{candidate.config.name}: {candidate.reason}" for candidate in of_dtype))
