"""Labels of dimensions: behind a reshape, and of an elementwise equation."""

from __future__ import annotations

import pytest

from jax_moye._primitives.attention_labels import common, reshaped
from jax_moye._primitives.attention_softmax import NotAttentionError

SIZES = {"A": 2, "B": 3, "r": 4, "q": 5, "k": 6}


@pytest.mark.parametrize(
    ("labels", "before", "after", "expected"),
    [
        (("A", "q", "B", "r", "k"), (2, 5, 3, 4, 6), (2, 5, 12, 6), ("A", "q", "Br", "k")),
        (("A", "q", "Br", "k"), (2, 5, 12, 6), (2, 5, 3, 4, 6), ("A", "q", "B", "r", "k")),
        (("A", "q", "Br", "."), (2, 5, 12, 1), (2, 5, 3, 4, 1), ("A", "q", "B", "r", ".")),
        (("A", "q", "Br", "*"), (2, 5, 12, 6), (2, 5, 3, 4, 2, 3), ("A", "q", "B", "r", "*", "*")),
        (("A", "*", "*", "k"), (2, 3, 4, 6), (2, 1, 12, 6), ("A", ".", "*", "k")),
        (("A", "."), (2, 1), (1, 2), (".", "A")),
    ],
)
def test_reshapes(labels, before, after, expected):
    assert reshaped(labels, before, after, SIZES) == expected


@pytest.mark.parametrize(
    ("labels", "before", "after"),
    [
        (("A", "k"), (2, 6), (2, 2, 3)),  # takes keys apart
        (("B", "r"), (3, 4), (4, 3)),  # of the same sizes, in another order
        (("A", "*"), (2, 4), (8,)),  # of what is the same for all, and what is not
        (("*", "A"), (4, 2), (8,)),
    ],
)
def test_reshapes_that_are_none_of_attention(labels, before, after):
    with pytest.raises(NotAttentionError):
        reshaped(labels, before, after, SIZES)


def test_of_an_elementwise_equation():
    assert common([("A", "q", "k"), ("A", "q", ".")], (2, 5, 6)) == ("A", "q", "k")
    assert common([("A", "q", "*"), (".", "q", ".")], (2, 5, 6)) == ("A", "q", "*")
    assert common([("A", "Br", ".")], (2, 12, 1)) == ("A", "Br", ".")
    for others in (("A", "k", "q"), ("A", "q")):
        with pytest.raises(NotAttentionError):
            common([("A", "q", "k"), others], (2, 5, 6))
