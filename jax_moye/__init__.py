"""Matrix multiplication for JAX through jax_moye's own CUDA tensor-core kernels, and through their emulator on the CPU.

Importing this package touches no CUDA driver and starts no JAX backend.
"""

import importlib
from typing import TYPE_CHECKING

# _checkout comes first, as its name makes it: it decides where the others are imported from.
from jax_moye import _checkout
from jax_moye import checkpoint_policies as checkpoint_policies
from jax_moye._api.dot_general import dot_general as dot_general
from jax_moye._api.dot_general import einsum as einsum
from jax_moye._api.export import EXPORT_DISABLED_CHECKS as EXPORT_DISABLED_CHECKS
from jax_moye._api.export import register as register
from jax_moye._api.intercept import Interception as Interception
from jax_moye._api.intercept import intercept as intercept
from jax_moye._api.linear import gated_linear_unit as gated_linear_unit
from jax_moye._api.linear import linear as linear
from jax_moye._api.matmul import matmul as matmul
from jax_moye._api.optimize import optimize as optimize
from jax_moye._api.options import OptionsBlock as OptionsBlock
from jax_moye._api.options import options as options
from jax_moye._api.quantized_matmul import quantized_matmul as quantized_matmul
from jax_moye._api.ragged_dot import ragged_dot as ragged_dot
from jax_moye._api.ragged_dot import ragged_dot_general as ragged_dot_general
from jax_moye._api.ragged_dot import ragged_gated_linear_unit as ragged_gated_linear_unit
from jax_moye._api.scaled_matmul import scaled_matmul as scaled_matmul
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable as ConfigTable
from jax_moye._kernels.configs import GemmConfig as GemmConfig
from jax_moye._kernels.configs import configs as configs
from jax_moye._kernels.devices import Device as Device
from jax_moye._kernels.interpret import InterpretParams as InterpretParams
from jax_moye._kernels.target import cuda_target as cuda_target
from jax_moye._log import configure as _configure_log

__version__ = "0.1.0"  # pyproject.toml reads it here

__all__ = [
    "EXPORT_DISABLED_CHECKS",
    "ConfigTable",
    "Device",
    "Explanation",
    "Gemm",
    "GemmConfig",
    "Interception",
    "InterpretParams",
    "KernelError",
    "Measured",
    "OptionsBlock",
    "Ranked",
    "Regret",
    "Report",
    "Tuned",
    "Tuning",
    "checkpoint_policies",
    "configs",
    "contrib",
    "cuda_target",
    "dot_general",
    "einsum",
    "explain",
    "gated_linear_unit",
    "include_dir",
    "intercept",
    "kernel",
    "layout",
    "linear",
    "matmul",
    "optimize",
    "options",
    "quantized_matmul",
    "ragged_dot",
    "ragged_dot_general",
    "ragged_gated_linear_unit",
    "register",
    "report",
    "scaled_matmul",
    "tune",
]

del _checkout

_configure_log()

# JAX keeps it until the CUDA backend starts, if one does. Any other platform's handler is registered when it is needed.
ffi.register_cuda()

# What is imported when it is first used: programs that only multiply need none of it.
_MODULES = ("contrib", "layout")
_MODULE_OF = {
    "Explanation": "_inspect.explain",
    "Gemm": "_inspect.gemm",
    "KernelError": "_kernels.compiler",
    "Ranked": "_inspect.gemm",
    "explain": "_inspect.explain",
    "include_dir": "_kernels.own",
    "kernel": "_kernels.own",
    "Measured": "_inspect.report",
    "Report": "_inspect.report",
    "report": "_inspect.report",
    "Regret": "_tune.tune",
    "Tuned": "_tune.tune",
    "Tuning": "_tune.tune",
    "tune": "_tune.tune",
}

if TYPE_CHECKING:
    from jax_moye import contrib as contrib
    from jax_moye import layout as layout
    from jax_moye._inspect.explain import Explanation as Explanation
    from jax_moye._inspect.explain import explain as explain
    from jax_moye._inspect.gemm import Gemm as Gemm
    from jax_moye._inspect.gemm import Ranked as Ranked
    from jax_moye._inspect.report import Measured as Measured
    from jax_moye._inspect.report import Report as Report
    from jax_moye._inspect.report import report as report
    from jax_moye._kernels.compiler import KernelError as KernelError
    from jax_moye._kernels.own import include_dir as include_dir
    from jax_moye._kernels.own import kernel as kernel
    from jax_moye._tune.tune import Regret as Regret
    from jax_moye._tune.tune import Tuned as Tuned
    from jax_moye._tune.tune import Tuning as Tuning
    from jax_moye._tune.tune import tune as tune
else:  # a type checker that sees __getattr__ takes any name for one of the package's

    def __getattr__(name: str) -> object:
        """A public name that is imported when it is first used."""
        if name in _MODULES:
            return importlib.import_module(f"jax_moye.{name}")
        if name in _MODULE_OF:
            return getattr(importlib.import_module(f"jax_moye.{_MODULE_OF[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, and no module that only happens to be imported here."""
    return sorted(__all__)
