"""Operands that rotate: different sets of random arrays, together more than twice the L2 cache, and who takes which.

A product that finds its operands in the cache is no product of a program. So each product of a round has a set of its
own, and the sets together are larger than the cache.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_moye._timing.gpu import l2_bytes

LARGEST_GROUP = 32  # products in one program
LARGEST_LOOP = 512  # products in one round of a loop
SHORT_US = 30  # below it the host may take longer to dispatch a product than the device to compute it
LOOP_US = 5000  # what one dispatch of a loop takes, about
PROGRAM_US = 400  # what a program takes at least: a dispatch costs the host some 100
MEMORY_SHARE = 0.25  # of the device's memory that the sets may take


def expected_us(flops: int, footprint: int) -> float:
    """About what a product takes on a large GPU: of its operations, and of the bytes it moves."""
    return flops / 500e6 + footprint / 3e6


def rotated_bytes() -> int:
    """What the sets hold together, at least, unless told otherwise."""
    return int(2.5 * l2_bytes())


class Rotation(NamedTuple):
    """How many sets there are, and how programs share them.

    Attributes:
      sets: of operands, one for each product.
      group: products in a program.
      repeats: of a loop on the device over all products, which are then one program; 0: they need none.
    """

    sets: int
    group: int
    repeats: int


def rotation(us: float, footprint: int, least_bytes: float, device: Any, largest_loop: int = LARGEST_LOOP) -> Rotation:
    """Three sets at least, and so many that they hold `least_bytes` where the device has the memory.

    Args:
      us: what a product takes, about.
      footprint: bytes of one set and of its result.
      least_bytes: of all sets together.
      device: of JAX.
      largest_loop: products in a loop, a multiple of LARGEST_GROUP; 0: no loop.
    """
    sets = max(3, math.ceil(least_bytes / footprint))
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform == "gpu" else None
    if limit:
        sets = max(1, min(sets, int(MEMORY_SHARE * limit / footprint)))
    if us < SHORT_US and largest_loop:
        if sets > LARGEST_GROUP:  # whole programs, should the loop not be the way
            sets = min(largest_loop, math.ceil(sets / LARGEST_GROUP) * LARGEST_GROUP)
        repeats = max(2, math.ceil(LOOP_US / (sets * max(2, us)))) if device.platform == "gpu" else 2
        return Rotation(sets, sets, repeats)
    group = min(sets, LARGEST_GROUP, max(3, math.ceil(PROGRAM_US / us)))
    return Rotation(group * math.ceil(sets / group), group, 0)


@dataclasses.dataclass(frozen=True)
class OperandSets:
    """The operands of all products that a contender computes in a pass.

    Attributes:
      arrays: for each operand the list of its arrays, one for each product.
      group: products in a program.
      repeats: of a loop on the device over all of them; 0 without one.
    """

    arrays: tuple[list[Any], ...]
    group: int
    repeats: int = 0

    def __len__(self) -> int:
        """How many sets there are."""
        return len(self.arrays[0])

    @property
    def first(self) -> list[Any]:
        """The operands of the first product."""
        return [of[0] for of in self.arrays]

    @property
    def programs(self) -> list[tuple[list[Any], ...]]:
        """Of each program the lists of its operands."""
        return [tuple(of[i : i + self.group] for of in self.arrays) for i in range(0, len(self), self.group)]

    def without_loop(self) -> OperandSets:
        """The same in programs of products alone."""
        return OperandSets(self.arrays, min(len(self), LARGEST_GROUP)) if self.repeats else self


def random_sets(structs: Sequence[jax.ShapeDtypeStruct], rotation: Rotation, seed: int) -> OperandSets:
    """Sets of different random operands of these shapes and dtypes."""

    @jax.jit
    def make(number: Any) -> list[Any]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(seed), number), len(structs))
        return [random_operand(key, struct) for key, struct in zip(keys, structs, strict=True)]

    made = [make(np.uint32(number)) for number in range(rotation.sets)]
    arrays = tuple([one[i] for one in made] for i in range(len(structs)))
    return OperandSets(arrays, rotation.group, rotation.repeats)


def random_operand(key: Any, struct: jax.ShapeDtypeStruct) -> Any:
    """Normal floats; int8 uniform over all values but the lowest, since power depends on them; other integers small."""
    if jnp.issubdtype(struct.dtype, jnp.floating):
        drawn = struct.dtype if jnp.dtype(struct.dtype).itemsize > 1 else jnp.float32
        return jax.random.normal(key, struct.shape, drawn).astype(struct.dtype)
    if jnp.issubdtype(struct.dtype, jnp.complexfloating):
        return jax.random.normal(key, struct.shape, struct.dtype)
    if struct.dtype == jnp.int8:
        return jax.random.randint(key, struct.shape, -127, 128, struct.dtype)
    return jax.random.randint(key, struct.shape, 0, 3).astype(struct.dtype)
