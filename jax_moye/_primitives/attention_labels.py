"""Labels of dimensions while a search follows scores: what they are is said in attention_search.py."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jax_moye._primitives.attention_softmax import NotAttentionError

Labels = tuple[str, ...]


def common(many: Sequence[Labels], shape: tuple[int, ...]) -> Labels:
    """The labels of an elementwise equation's result.

    Args:
      many: of its operands.
      shape: of the result.

    Raises:
      NotAttentionError: they have others.
    """
    if any(len(labels) != len(shape) for labels in many):
        raise NotAttentionError
    found = []
    for axis, size in enumerate(shape):
        names = {labels[axis] for labels in many} - {".", "*"}
        if len(names) > 1:
            raise NotAttentionError
        found.append(next(iter(names), "." if size == 1 else "*"))
    return tuple(found)


def reshaped(labels: Labels, before: Sequence[int], after: Sequence[int], sizes: Mapping[str, int]) -> Labels:
    """The labels behind a reshape, which makes dimensions one, or takes those apart again.

    Args:
      labels: in front of it.
      before: the shape there.
      after: the shape behind it.
      sizes: by label.

    Raises:
      NotAttentionError: it takes others apart, or makes one of what is no one.
    """
    given = [
        (label, size if label == "*" else sizes[label])
        for name, size in zip(labels, before, strict=True)
        for label in (name if name != "." else "")
    ]
    found = []
    for size in after:
        of_dim, count = "", 1
        while count < size and given:
            label, one = given.pop(0)
            if label == "*" and one > size // count:
                given.insert(0, (label, one // (size // count)))
                one = size // count
            of_dim, count = of_dim + label, count * one
        of_dim = ("*" if not of_dim.strip("*") else of_dim) if of_dim else "."
        if count != size or (len(of_dim) > 1 and "*" in of_dim):
            raise NotAttentionError
        found.append(of_dim)
    return tuple(found)


def dot_labels(equation: Any, labels: Sequence[Sequence[str]]) -> Labels:
    """The labels of a product's result.

    Args:
      equation: of the product.
      labels: of its operands.
    """
    contracted, batch = equation.params["dimension_numbers"]
    left, right = (
        [labels[side][axis] for axis in range(len(labels[side])) if axis not in (*contracted[side], *batch[side])]
        for side in (0, 1)
    )
    return (*(labels[0][axis] for axis in batch[0]), *left, *right)
