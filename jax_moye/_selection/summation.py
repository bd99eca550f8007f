"""How a kernel adds up one element of the result, and which configs add it up alike."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye._selection.capability import why_not
from jax_moye._selection.cost import predicted_us
from jax_moye._selection.problem import GemmProblem

_REFERENCE_SIZE = 4096  # of the square product by which families are compared


class Summation(NamedTuple):
    """How a kernel sums one element of d: configs with the same summation write the same bits.

    In every kernel here one thread (of a warp, of a warpgroup) starts an element at zero and adds products of ascending
    k, one instruction after the other, without atomic additions. The chain depends on the instruction, on what it
    multiplies and sums, and on the k-tile, the last of which ends with zeros, and after each of which sums of 8-bit
    floats leave wgmma. A kernel that splits k has a chain for each of `parts` parts, which begin where k alone says,
    and adds up their ends in the order of k; or a call's sizes and the tile say how many parts there are, and such a
    config sums like no other. A kernel whose warps have a slice of each k-tile has a chain for each of them, and adds
    up their ends in order: its facts name an instruction of its own. Of all others the chain does not depend on the
    tile's m and n, the stages, the cluster otherwise, the operands' orders and alignment (packing copies), or where in
    d the element lies.
    That an instruction treats all its rows and columns alike, and its operands when they are swapped, is what GPUs are
    seen to do, and nowhere promised: tests/gpu/test_gpu_options.py checks it. A kernel that multiplies parts of
    operands, pair after pair, is not symmetric so: its facts say it.
    """

    instruction: str
    dtype: str
    accumulator: str
    k_tile: int
    parts: int


def summation(config: GemmConfig) -> Summation:
    """The summation of a config."""
    if config.accumulator == "s32":  # integers wrap around: any order gives the same sum
        return Summation("any", config.dtype, config.accumulator, 0, 1)
    facts = facts_of(config.kernel)
    # A kernel that is not known sums like no other, and a config that splits k by a call's sizes and its own tile, too.
    instruction = config.name if facts.splits_k_by_sizes else facts.instruction or config.kernel
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
def batch_invariant_configs(
    dtype: str, out_dtype: str, accumulator: str, arch: int | None, table: Sequence[GemmConfig]
) -> tuple[GemmConfig, ...]:
    """The configs that compute under batch_invariant=True: all of one summation, which depends on nothing but these.

    Of the summations of the table the fastest on one large product, among those that serve operands of any order,
    strides and alignment if there are any. Of kernels that are symmetric alone: in w @ x a kernel's a may be w or x, as
    the result lies in memory.

    Args:
      dtype: of both operands, as in GemmProblem.
      out_dtype: of d.
      accumulator: what products are summed in.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
      table: the configs to choose from.
    """
    problem = reference_problem(dtype, out_dtype, accumulator)
    families: dict[Summation, list[GemmConfig]] = {}
    for config in table:
        facts = facts_of(config.kernel)
        if why_not(config, problem, arch) is None and facts.symmetric and not facts.splits_k_by_sizes:
            families.setdefault(summation(config), []).append(config)

    def key(family: list[GemmConfig]) -> tuple[bool, float]:
        return (not any(map(_serves_any, family)), min(predicted_us(config, problem, arch) for config in family))

    return tuple(sorted(families.values(), key=key)[0]) if families else ()
