"""Matrix multiplication for JAX through jax_moye's own CUDA tensor-core kernels, and through their emulator on the CPU.

Importing this package touches no CUDA driver and starts no JAX backend.
"""

import importlib

# _checkout comes first, as its name makes it: it decides where the others are imported from.
from jax_moye import _checkout, _ffi
from jax_moye.configs import GemmConfig as GemmConfig
from jax_moye.configs import configs as configs
from jax_moye.interpret import InterpretParams as InterpretParams
from jax_moye.matmul import matmul as matmul

del _checkout

# JAX keeps it until the CUDA backend starts, if one does. Any other platform's handler is registered when it is needed.
_ffi.register_cuda()


def __getattr__(name: str) -> object:
    """`jax_moye.layout` is imported when it is first used."""
    if name == "layout":
        return importlib.import_module("jax_moye.layout")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["GemmConfig", "InterpretParams", "configs", "layout", "matmul"]
