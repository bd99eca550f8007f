"""`python -m jax_moye configs`: prints the table of compiled kernels."""

from __future__ import annotations

import argparse

from jax_moye._kernels.configs import configs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye configs`: it has none."""


def main(arguments: argparse.Namespace) -> int:
    """Prints the table. Returns 0."""
    print(configs())
    return 0
