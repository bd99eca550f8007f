"""The text that examples learn from, six chapters of a novel: data/README.md says which. Imported by them, not run."""

import pathlib

import numpy as np

TEXT = pathlib.Path(__file__).parent / "data" / "alice.txt"


def load():
    """The characters as indices, (length,) int32, and the alphabet that they are indices into."""
    text = TEXT.read_text(encoding="ascii")
    alphabet = "".join(sorted(set(text)))
    return np.array([alphabet.index(character) for character in text], np.int32), alphabet


def windows(text, rng, count, length):
    """`count` random pieces of the text: (count, length)."""
    starts = rng.integers(0, len(text) - length, count)
    return text[starts[:, None] + np.arange(length)]
