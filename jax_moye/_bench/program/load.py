"""The programs that `bench --program` names: those that are built in, and functions of a user's own modules."""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_moye._bench.models.table import MODELS
from jax_moye._format import error_line


class Program(NamedTuple):
    """A program to be timed.

    Attributes:
      name: as the command line has it.
      about: what it is, in words.
      sizes: in words.
      fun: a step.
      args: its arguments.
    """

    name: str
    about: str
    sizes: str
    fun: Callable[..., Any]
    args: tuple[Any, ...]


class ProgramError(ValueError):
    """A program cannot be had; the message says why."""


def load(name: str, sizes: Mapping[str, int], dtype: str | None, is_small: bool = False) -> Program:
    """A program by its name.

    Args:
      name: of one that is built in, or module:function.
      sizes: in place of its own.
      dtype: of one that is built in; None: bfloat16.
      is_small: whether its own sizes are those of a trial.

    Raises:
      ProgramError: there is none, or it is not what it should be.
    """
    if name in MODELS:
        model = MODELS[name]
        all_sizes = {**(model.small if is_small else model.sizes), **sizes}
        try:
            fun, args = model.make(dtype or "bfloat16", **all_sizes)
        except ValueError as error:
            raise ProgramError(str(error)) from None
        return Program(name, model.about, f"{_words(all_sizes)}, {dtype or 'bfloat16'}", fun, args)
    if ":" not in name:
        raise ProgramError(f"it is neither built in ({', '.join(MODELS)}) nor module:function")
    if dtype is not None:
        raise ProgramError("--dtype is of programs that are built in")
    make = _function(*name.split(":", 1))
    try:
        made = make(**sizes)
    except Exception as error:
        raise ProgramError(f"{name}({_words(sizes, '=')}) failed: {error_line(error)}") from error
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0]) and isinstance(made[1], (tuple, list))):
        raise ProgramError(f"{name}() returned {_shown(made)}, and not (step, arguments)")
    fun, args = made
    about = (make.__doc__ or "").strip().partition("\n")[0]
    return Program(name, about, _words(sizes), fun, tuple(jax.tree.map(_on_device, args)))


def _words(sizes: Mapping[str, int], between: str = " ") -> str:
    return ", ".join(f"{name}{between}{size}" for name, size in sizes.items())


def _shown(made: Any) -> str:
    if isinstance(made, tuple):
        return f"({', '.join(type(one).__name__ for one in made)})"
    return type(made).__name__


def _on_device(x: Any) -> Any:
    """An array of NumPy is sent to the device once, not with each step."""
    return jnp.asarray(x) if isinstance(x, np.ndarray) else x


def _function(module: str, attribute: str) -> Callable[..., Any]:
    if "" not in sys.path and os.getcwd() not in sys.path:  # as the installed script has it, not `python -m`
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:
        is_missing = isinstance(error, ModuleNotFoundError) and error.name and f"{module}.".startswith(f"{error.name}.")
        why = f"there is no module {error.name}" if is_missing else f"{module} fails: {error_line(error)}"  # type: ignore[attr-defined]
        raise ProgramError(why) from error
    try:
        found = functools.reduce(getattr, attribute.split("."), found)
    except AttributeError:
        raise ProgramError(f"{module} has no {attribute}") from None
    if not callable(found):
        raise ProgramError(f"{module}:{attribute} is {type(found).__name__} and no function")
    return found
