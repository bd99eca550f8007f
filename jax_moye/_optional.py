"""Packages that only an extra of jax_moye brings."""

from __future__ import annotations

import importlib
from typing import Any


class MissingError(ImportError):
    """A package is not there; the message says what it is for and how to get it."""


def matplotlib(module: str, what: str) -> Any:
    """A module of matplotlib.

    Args:
      module: its name, e.g. "matplotlib.figure".
      what: is drawn, in the plural.

    Raises:
      MissingError: there is no matplotlib.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise MissingError(f"matplotlib draws {what}: pip install matplotlib") from None
