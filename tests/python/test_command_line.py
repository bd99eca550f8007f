"""What subcommands share: the types of their options, and their help."""

import argparse

import pytest

from jax_moye._command_line import describe, number, pattern, whole


@pytest.mark.parametrize(
    ("parse", "good", "bad"),
    [
        (whole(1), {"1": 1, "12": 12}, {"0": "0 is below 1", "1.5": "no whole number", "": "no whole number"}),
        (number(above=0), {"0.5": 0.5, "inf": float("inf")}, {"0": "not greater than 0", "nan": "not greater"}),
        (number(least=0), {"0": 0.0}, {"-1": "not at least 0", "x": "no number"}),
        (pattern, {"A.*|B2": "A.*|B2"}, {"(": "no regular expression"}),
    ],
)
def test_values(parse, good, bad):
    assert {text: parse(text) for text in good} == good
    for text, why in bad.items():
        with pytest.raises(argparse.ArgumentTypeError, match=why):
            parse(text)


def test_examples_can_be_pasted():
    parser = argparse.ArgumentParser(prog="python -m jax_moye draw")
    describe(parser, "Two\nlines.", ["'100 %' -o x.svg"])
    text = parser.format_help()
    assert "\n\nTwo\nlines.\n\n" in text
    assert text.endswith("\nexamples:\n  python -m jax_moye draw '100 %' -o x.svg\n")
