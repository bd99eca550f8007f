"""Kernels of the table that are compiled while a program runs, with a function of the user's as their activation.

    kernel_of(config, function, order, platform, arch, wait) -> the name of one, or why there is none

A C++ compiler makes it for the emulator, NVRTC for the GPU of this process: one kernel, for one order of the operands.
It is kept in the user's cache as what `jax_moye.kernel` compiles is, under a hash of all that it is made from. Whoever
does not wait gets a reason in place of a name, and a thread compiles for the next program.
"""

from __future__ import annotations

import hashlib
import pathlib
import threading
from typing import NamedTuple

from jax_moye._format import error_line
from jax_moye._kernels import compiler, ffi, nvrtc, own
from jax_moye._kernels.config_names import parse_name
from jax_moye._kernels.configs import GemmConfig, facts_of, is_own
from jax_moye._kernels.nvcc import architecture
from jax_moye._log import logger

_FUNCTION = """\
// Written by jax_moye.
#include "moye/arch/elementwise.h"

namespace moye {{
template <bool kRounded>
MOYE_DEVICE float own_activation(float x) {{
{body}}}
}}  // namespace moye
#define MOYE_OWN_ACTIVATION
"""
_HOPPER = 90  # max_arch of its kernels: 16-bit operands in any order, others as NT alone


class _Kernel(NamedTuple):
    """What is compiled.

    Attributes:
      config: the kernel of the table.
      function: the body of the function, in C++.
      order: of the operands, e.g. "NN".
      platform: "cpu" or "cuda".
      arch: of the GPU; None for the emulator.
    """

    config: GemmConfig
    function: str
    order: str
    platform: str
    arch: int | None

    @property
    def name(self) -> str:
        """The custom call's name of it."""
        digest = hashlib.sha256(self.function.encode()).hexdigest()[:16]
        return f"{self.config.name}_{self.order}_f{digest}"


class _Job:
    """A kernel that is being compiled, or was."""

    def __init__(self) -> None:
        self.done = threading.Event()
        self.reason: str | None = None  # why it is not there, once it is done


_lock = threading.Lock()
_turn = threading.Lock()  # in the background one kernel is compiled at a time: the program has the other cores
_jobs: dict[_Kernel, _Job] = {}


def kernel_of(
    config: GemmConfig, function: str, order: str, platform: str, arch: int | None, *, wait: bool
) -> tuple[str | None, str | None]:
    """Finds the kernel of a config with a function as its activation, or has it compiled.

    Args:
      config: the kernel, without it.
      function: the body of a C++ function of a float x, a template of bool kRounded: gemm/activation.h.
      order: of the operands, as the launch chooses between the config's kernels.
      platform: "cpu" for the emulator, or "cuda".
      arch: of the GPU of this process, e.g. 90.
      wait: whether to wait where it is compiled first.

    Returns:
      Its name, which the custom call carries, and None; or None, and why there is none.
    """
    if is_own(config):
        return None, "a kernel of your own is compiled without functions of yours: write the function into its file"
    if platform == "cuda":
        if reason := _why_not_on_a_gpu(config):
            return None, reason
        if config.max_arch == _HOPPER and config.dtype not in ("bf16", "f16"):
            order = "NT"  # there is no other one: of the operands, or of copies
    else:
        order = "all"
    kernel = _Kernel(config, function, order, platform, arch)
    with _lock:
        job, is_new = _jobs.get(kernel), kernel not in _jobs
        if job is None:
            job = _jobs[kernel] = _Job()
    if is_new:
        if wait or _is_on_disk(kernel):
            _run(job, kernel)
        else:  # no daemon: a program that is shorter than this would never find its kernel
            threading.Thread(target=_run_in_turn, args=(job, kernel), name="jax_moye-own-epilogue").start()
    if wait:
        job.done.wait()
    elif not job.done.is_set():
        return None, "its kernel is being compiled, for programs that are lowered later"
    return (kernel.name, None) if job.reason is None else (None, job.reason)


def _why_not_on_a_gpu(config: GemmConfig) -> str | None:
    if facts_of(config.kernel).splits_k_by_sizes:
        return f"{config.kernel} has another kernel finish what it computes"
    if config.max_arch == _HOPPER and config.dtype in ("bf16", "f16") and config.alignment < 16:
        return f"{config.name} copies its operands first, and its launch alone knows the order of the copies"
    return None


def _is_on_disk(kernel: _Kernel) -> bool:
    """Whether nothing is to be compiled. Not asked for the emulator, for which everybody waits."""
    if kernel.platform != "cuda":
        return False
    try:
        return nvrtc.is_compiled(_source(kernel), kernel.order, _architecture(kernel))
    except (compiler.KernelError, OSError):  # there is no compiler: who compiles says so
        return False


def _run_in_turn(job: _Job, kernel: _Kernel) -> None:
    with _turn:
        _run(job, kernel)


def _run(job: _Job, kernel: _Kernel) -> None:
    try:
        (_for_gpu if kernel.platform == "cuda" else _for_emulator)(kernel)
    except (compiler.KernelError, OSError, RuntimeError) as error:
        job.reason = f"{kernel.config.name} does not compile with it: {error_line(error)}"
        logger.info("%s: %s", job.reason, getattr(error, "output", ""))
    except BaseException:  # an interrupt of who waits: the next one tries again
        job.reason = "its compilation was interrupted"
        with _lock:
            _jobs.pop(kernel, None)
        raise
    finally:
        job.done.set()


def _source(kernel: _Kernel) -> compiler.Source:
    include = pathlib.Path(own.include_dir())
    path = include / "gemm" / f"{kernel.config.kernel}.cuh"
    prelude = _FUNCTION.format(body=kernel.function)
    return compiler.Source(path, parse_name(kernel.config.name), include, is_new=False, prelude=prelude)


def _for_emulator(kernel: _Kernel) -> None:
    compiled = compiler.compile_emulated(_source(kernel), own.emulator())
    module = ffi.extension("cpu")
    assert module is not None
    own.check_headers(pathlib.Path(own.include_dir()), module.own_kernel_headers)
    module.add_kernel(compiler.function_address(compiled.library), kernel.config.kernel, kernel.name)


def _for_gpu(kernel: _Kernel) -> None:
    module = ffi.extension("cuda")
    assert module is not None
    source = _source(kernel)
    own.check_headers(source.include, module.own_kernel_headers)
    code = nvrtc.compile_kernel(source, kernel.order, _architecture(kernel))
    module.add_compiled(code, kernel.config.name, kernel.name)


def _architecture(kernel: _Kernel) -> str:
    assert kernel.arch is not None
    return architecture(kernel.arch, kernel.config.max_arch)
