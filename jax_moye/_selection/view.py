"""Parts of larger arrays, as kernels read them: an offset, and strides that leave elements out.

An equation of a program that moves no element of such a part makes another part. Where an equation would have to move
elements, there is none.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class View:
    """Where the elements of an operand are in an array in memory.

    Attributes:
      source: shape of the array, which is row-major.
      shape: of the operand.
      strides: in elements of the array, one for each dimension of the operand.
      offset: elements of the array in front of the operand's first one.
    """

    source: tuple[int, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0

    @classmethod
    def whole(cls, shape: Sequence[int]) -> View:
        """All of an array."""
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return cls(tuple(shape), tuple(shape), tuple(strides))

    @property
    def is_whole(self) -> bool:
        """Whether it has all elements of the array."""
        return math.prod(self.shape) == math.prod(self.source)

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions as they are in memory, the one with the largest stride first."""
        return tuple(sorted(range(len(self.shape)), key=lambda dim: (-self.strides[dim], dim)))

    def sliced(self, starts: Sequence[int], limits: Sequence[int], steps: Sequence[int]) -> View:
        """Every so manieth element from `starts` up to `limits`, which is left out; all are in the dimension."""
        of_dims = list(zip(starts, limits, steps, self.strides, strict=True))
        return dataclasses.replace(
            self,
            shape=tuple(max(0, -((start - limit) // step)) for start, limit, step, _ in of_dims),
            strides=tuple(stride * step for *_, step, stride in of_dims),
            offset=self.offset + sum(start * stride for start, _, _, stride in of_dims),
        )

    def transposed(self, permutation: Sequence[int]) -> View:
        """With its dimensions in another order; of those that are left out the size is 1."""
        shape, strides = ([of[dim] for dim in permutation] for of in (self.shape, self.strides))
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides))

    def reshaped(self, shape: Sequence[int]) -> View | None:
        """The same elements in the same order; None where a dimension of the new shape has no stride."""
        if math.prod(shape) != math.prod(self.shape) or 0 in shape:
            return None
        # As few modes as there can be, the last one the fastest: each dimension is all or part of one.
        modes: list[tuple[int, int]] = []
        for size, stride in zip(self.shape, self.strides, strict=True):
            if modes and modes[-1][1] == size * stride:
                size *= modes.pop()[0]
            modes += [(size, stride)] if size > 1 else []
        strides: list[int] = []
        for wanted in reversed(shape):
            if wanted == 1:
                strides.append(1)
                continue
            size, stride = modes.pop()
            if size % wanted:
                return None
            strides.append(stride)
            modes += [(size // wanted, stride * wanted)] if size > wanted else []
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(reversed(strides)))
