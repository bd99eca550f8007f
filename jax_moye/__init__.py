"""Matrix multiplication for JAX through jax_moye's own CUDA tensor-core kernels, and through their emulator on the CPU.

Importing this package touches no CUDA driver and starts no JAX backend.
"""

import importlib

# _checkout comes first, as its name makes it: it decides where the others are imported from.
from jax_moye import _checkout
from jax_moye._api import checkpoint_policies as checkpoint_policies
from jax_moye._api.dot_general import dot_general as dot_general
from jax_moye._api.dot_general import einsum as einsum
from jax_moye._api.export import EXPORT_DISABLED_CHECKS as EXPORT_DISABLED_CHECKS
from jax_moye._api.export import register as register
from jax_moye._api.intercept import intercept as intercept
from jax_moye._api.linear import gated_linear_unit as gated_linear_unit
from jax_moye._api.linear import linear as linear
from jax_moye._api.matmul import matmul as matmul
from jax_moye._api.options import options as options
from jax_moye._inspect.explain import explain as explain
from jax_moye._inspect.report import report as report
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import GemmConfig as GemmConfig
from jax_moye._kernels.configs import configs as configs
from jax_moye._kernels.interpret import InterpretParams as InterpretParams
from jax_moye._kernels.target import cuda_target as cuda_target
from jax_moye._tune.tune import tune as tune

del _checkout

# JAX keeps it until the CUDA backend starts, if one does. Any other platform's handler is registered when it is needed.
ffi.register_cuda()


def __getattr__(name: str) -> object:
    """`jax_moye.layout` is imported when it is first used."""
    if name == "layout":
        return importlib.import_module("jax_moye.layout")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "EXPORT_DISABLED_CHECKS",
    "GemmConfig",
    "InterpretParams",
    "checkpoint_policies",
    "configs",
    "cuda_target",
    "dot_general",
    "einsum",
    "explain",
    "gated_linear_unit",
    "intercept",
    "layout",
    "linear",
    "matmul",
    "options",
    "register",
    "report",
    "tune",
]
