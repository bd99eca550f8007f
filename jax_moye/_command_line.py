"""What the subcommands of `python -m jax_moye` share: the text of their help, and the types of their options."""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Sequence


def describe(parser: argparse.ArgumentParser, description: str, examples: Sequence[str]) -> None:
    """Gives a subcommand its description and examples.

    Args:
      parser: of the subcommand.
      description: what it does and what it prints, in lines as they are to be shown.
      examples: arguments, without the name of the command. A comment may follow.
    """
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.description = description
    parser.epilog = "\n".join(["examples:", *(f"  {parser.prog} {example}" for example in examples)])


def whole(least: int) -> Callable[[str], int]:
    """The type of an option that is a whole number of at least `least`."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"{value} is below {least}")
        return value

    return parse


def number(above: float | None = None, least: float | None = None) -> Callable[[str], float]:
    """The type of an option that is a number.

    Args:
      above: it is greater than this; None: `least` says what it may be.
      least: it is this or more.
    """

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
        if math.isnan(value) or (above is not None and value <= above) or (least is not None and value < least):
            bound = f"greater than {above:g}" if above is not None else f"at least {least:g}"
            raise argparse.ArgumentTypeError(f"{text} is not {bound}")
        return value

    return parse


def pattern(text: str) -> str:
    """The type of an option that is a regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from None
    return text
