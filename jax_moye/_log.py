"""What jax_moye says while a program runs: the logger "jax_moye" of Python's logging, and JAX_MOYE_LOG."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Mapping

VARIABLE = "JAX_MOYE_LOG"
LEVELS = ("debug", "info", "warning", "error", "critical")

logger = logging.getLogger("jax_moye")


def configure(environ: Mapping[str, str] = os.environ) -> None:
    """Lets the logger write to stderr from the level on that JAX_MOYE_LOG names; nothing where it names none.

    Raises:
      ValueError: it is no level.
    """
    level = environ.get(VARIABLE, "").strip().lower()
    if not level:
        return
    if level not in LEVELS:
        raise ValueError(f"{VARIABLE} is {', '.join(LEVELS[:-1])} or {LEVELS[-1]}, not {environ[VARIABLE]!r}")
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", datefmt="%H:%M:%S"))
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False  # or a program that configures logging itself has each line twice


@functools.lru_cache(maxsize=4096)
def say_once(level: int, message: str) -> None:
    """Writes a message the first time in this process that there is one like it."""
    logger.log(level, "%s", message)
