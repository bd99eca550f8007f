"""Adapters to other packages. Each module needs its package, and is imported when it is first used."""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jax_moye.contrib import equinox as equinox
else:

    def __getattr__(name: str) -> object:
        """A module that is imported when it is first used."""
        if name == "equinox":
            return importlib.import_module("jax_moye.contrib.equinox")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
