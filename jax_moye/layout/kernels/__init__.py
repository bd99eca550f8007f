"""The kernels of the table: what is known of each, in a file of its name here, and their layouts in Python.

The file of a kernel, `jax_moye/layout/kernels/<kernel>.py`, has `FACTS`, a `KernelFacts`, and `describe`, which makes
the layouts of a config, as cuda/gemm/<kernel>.cuh declares them. No list names the files: whoever asks for a kernel
imports the file of its name.

From the layouts follow threads, bytes of shared memory, and what a k-tile costs in wavefronts and sectors; tests hold
each against the compiled kernel and the emulator.

>>> import jax_moye
>>> config = next(row for row in jax_moye.configs() if row.kernel == "sm80_multistage")
>>> kernel = kernel_layouts(config, "NN")
>>> kernel.a.smem
ComposedLayout('Sw<2,3,3> o 0 o ((8,16),(32,1),(1,4)):((32,256),(1,0),(0,4096))')
>>> print(kernel.a.read_report())
a, SM75_U32x4_LDSM_N: 32 instructions, 128 wavefronts, at least 128: degree 1, no bank conflict
>>> kernel_facts("sm80_multistage").instruction
'mma.sync'
"""

from __future__ import annotations

import functools
import importlib.util
import pkgutil
from types import ModuleType
from typing import Any

from jax_moye.layout.errors import InvalidType
from jax_moye.layout.kernels.facts import KernelFacts as KernelFacts
from jax_moye.layout.kernels.facts import Speed as Speed
from jax_moye.layout.kernels.operands import KernelLayouts as KernelLayouts
from jax_moye.layout.kernels.operands import OperandLayouts as OperandLayouts
from jax_moye.layout.kernels.pack import PackLayouts as PackLayouts
from jax_moye.layout.kernels.tma import TmaOperandLayouts as TmaOperandLayouts
from jax_moye.layout.kernels.wgmma import TmaKernelLayouts as TmaKernelLayouts

ORDERS = ("NN", "NT", "TN", "TT")


@functools.cache
def _file(kernel: str) -> ModuleType | None:
    """The module that a kernel's file is; None if it has none."""
    name = f"{__name__}.{kernel}"
    if importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    return module if hasattr(module, "FACTS") else None  # the others here are what such files share


def kernel_facts(kernel: str) -> KernelFacts:
    """What is known of a kernel; of one without a file here nothing but which file to write."""
    file = _file(kernel)
    return KernelFacts(missing=f"jax_moye/layout/kernels/{kernel}.py") if file is None else file.FACTS


@functools.cache
def kernel_names() -> tuple[str, ...]:
    """The kernels that have a file here, in the order of the ladder."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if _file(module.name)]
    return tuple(sorted(names, key=lambda name: kernel_facts(name).place))


@functools.lru_cache(256)
def kernel_layouts(config: Any, order: str = "NN") -> Any:
    """The layouts of a config.

    Args:
      config: one of `jax_moye.configs()`, or anything with its kernel, dtype, accumulator, tile, stages, cluster,
        alignment, consumers, consumer_tile and name.
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.

    Returns:
      KernelLayouts; of a kernel that TMA feeds `TmaKernelLayouts`.

    Raises:
      InvalidType: a config's name stands in its place, no file here describes the kernel, there is no such order, or
        the kernel does not take it.
    """
    if isinstance(config, str):
        hint = f"next(config for config in jax_moye.configs() if config.name == {config!r})"
        raise InvalidType("kernel_layouts", (config,), f"{config!r} is a name, and no config", hint)
    file = _file(config.kernel)
    if file is None:
        why = f"{config.kernel} is not described: write {kernel_facts(config.kernel).missing}"
        raise InvalidType("kernel_layouts", (config.kernel,), why, " or ".join(kernel_names()))
    if order not in ORDERS:
        raise InvalidType("kernel_layouts", (order,), f"{order!r} is no order", " or ".join(ORDERS))
    return file.describe(config, order)
