"""Matrix multiplication for JAX through jax_moye's own CUDA tensor-core kernels, and through their emulator on the CPU.

Importing this package touches no CUDA driver and starts no JAX backend.
"""

# _checkout comes first, as its name makes it: it decides where the others are imported from.
from jax_moye import _checkout, _ffi
from jax_moye.configs import GemmConfig as GemmConfig
from jax_moye.configs import configs as configs
from jax_moye.interpret import InterpretParams as InterpretParams
from jax_moye.matmul import matmul as matmul

del _checkout

# JAX keeps it until the CUDA backend starts, if one does. Any other platform's handler is registered when it is needed.
_ffi.register_cuda()

__all__ = ["GemmConfig", "InterpretParams", "configs", "matmul"]
