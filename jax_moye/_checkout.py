"""Started in the root of a checkout, Python finds this folder before the installed package with the compiled parts.

Importing this module turns the import to the installed package.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import pathlib
import sys
from collections.abc import MutableSequence


def use_installed(package: str, path: MutableSequence[str]) -> None:
    """Makes the package's remaining modules come from where pip installed it, if this folder is a checkout's.

    Nothing happens where the compiled modules are beside this file or an editable install knows them.

    Args:
      package: the package's name.
      path: its `__path__`, which is changed.

    Raises:
      ImportError: this is a checkout, and the package is installed nowhere.
    """
    here = pathlib.Path(__file__).resolve().parent
    if any(here.glob("_moye_cpu.*so")) or importlib.util.find_spec(f"{package}._moye_cpu"):
        return
    elsewhere = [entry for entry in sys.path if pathlib.Path(entry).resolve() != here.parent]
    spec = importlib.machinery.PathFinder.find_spec(package, elsewhere)
    if spec is None or spec.loader is None or spec.submodule_search_locations is None:
        raise ImportError(
            f"{here} is the source of {package}, without its compiled modules, and {package} is not installed in "
            f"{sys.executable}: run `pip install .` in {here.parent}, or build in place as CONTRIBUTING.md says"
        )
    path[:] = spec.submodule_search_locations


def clone() -> pathlib.Path | None:
    """The root of the clone one is in, also in a folder of it, or of the one that this file lies in; else None."""
    here = pathlib.Path().resolve()
    roots = (here, *here.parents, pathlib.Path(__file__).resolve().parents[1])
    return next((root for root in roots if (root / "cuda/gemm/configs.h").is_file()), None)


use_installed(__package__, sys.modules[__package__].__path__)
