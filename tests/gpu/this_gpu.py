"""Which configs this machine's GPU runs."""

from __future__ import annotations

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import ffi


def why_not_here(config) -> str | None:
    """Why this GPU does not run a config; None if it does."""
    arch = _compat.cuda_arch()
    if arch < config.min_arch or (config.max_arch and arch > config.max_arch):
        return f"{config.name} is for {config.archs}, and this is sm_{arch}"
    return None if config.name in ffi.built("cuda") else f"{config.name} is not in this build"


def configs_here() -> list:
    """The configs that this GPU runs."""
    return [config for config in jax_moye.configs() if why_not_here(config) is None]
