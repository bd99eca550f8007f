"""What is measured of an attention: the key of its entry in a file of measurements."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class AttentionKey:
    """An attention alone, or with its gradients, which are one decision: XLA computes the scores of both once.

    The scale changes no time. What XLA makes of it depends on the program's own equations, for which an entry's variant
    has a word.

    Attributes:
      sizes: the fields of an `AttentionSizes`.
      dtype: of all arrays, as in `GemmConfig.dtype`.
      diagonal: as in `AttentionParams`: what a mask leaves out takes no time.
      ds_parts: likewise.
      arrays: (name, order) of each array, the results among them, sorted: a letter for each dimension, the outermost in
        memory first.
      others: (dtype, shape) of each operand that is none of these.
    """

    sizes: tuple[int, ...]
    dtype: str
    diagonal: int | None
    ds_parts: int
    arrays: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, tuple[int, ...]], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Its fields, as files have them."""
        others = [[dtype, list(shape)] for dtype, shape in self.others]
        return dataclasses.asdict(self) | {"sizes": list(self.sizes), "arrays": dict(self.arrays), "others": others}


def is_attention(raw: Any) -> bool:
    """Whether what a file has in the place of a product is an attention.

    Args:
      raw: JSON's types.
    """
    return isinstance(raw, dict) and "arrays" in raw


def parse_attention(raw: Any) -> AttentionKey:
    """An attention as `AttentionKey.to_dict` wrote it.

    Args:
      raw: JSON's types.

    Raises:
      ValueError: it is something else.
    """

    def check(condition: bool, what: str) -> None:
        if not condition:
            raise ValueError(f"of an attention {what}")

    def are_sizes(values: Any) -> bool:
        return isinstance(values, list) and all(type(x) is int and x > 0 for x in values)

    check(set(raw) == {field.name for field in dataclasses.fields(AttentionKey)}, "there are other fields")
    check(are_sizes(raw["sizes"]) and len(raw["sizes"]) == 6, "sizes are no six sizes")
    check(isinstance(raw["dtype"], str), "dtype is no text")
    check(raw["diagonal"] is None or type(raw["diagonal"]) is int, "diagonal is no number")
    check(raw["ds_parts"] in (1, 2), "ds_parts is neither 1 nor 2")
    is_named = isinstance(raw["arrays"], dict) and all(isinstance(x, str) for x in raw["arrays"].values())
    check(is_named, "arrays are no orders")
    for one in raw["others"] if isinstance(raw["others"], list) else [None]:
        is_one = isinstance(one, list) and len(one) == 2 and isinstance(one[0], str) and are_sizes(one[1])
        check(is_one, "others are no dtypes and shapes")
    return AttentionKey(
        tuple(raw["sizes"]),
        raw["dtype"],
        raw["diagonal"],
        raw["ds_parts"],
        tuple(sorted(raw["arrays"].items())),
        tuple((dtype, tuple(shape)) for dtype, shape in raw["others"]),
    )
