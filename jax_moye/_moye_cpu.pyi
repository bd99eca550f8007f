"""The extension module of ffi/module_cpu.cc: the kernels in the CPU emulator."""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

api_version: tuple[int, int]

own_kernel_headers: dict[str, str]

def configs() -> list[dict[str, Any]]: ...
def add_kernel(function: int, kernel: str, name: str) -> dict[str, Any]: ...
def workspace_bytes(
    config: str,
    sizes: Sequence[int],
    a_strides: Sequence[int],
    b_strides: Sequence[int],
    d_strides: Sequence[int],
    out_dtype: str,
    a_offset: int = 0,
    b_offset: int = 0,
) -> int: ...
def handlers() -> dict[str, dict[str, object]]: ...
def emulate(
    config: str,
    a: np.ndarray,
    b: np.ndarray,
    d: np.ndarray,
    sizes: Sequence[int],
    a_strides: Sequence[int],
    b_strides: Sequence[int],
    d_strides: Sequence[int],
    out_dtype: str | None = None,
    mode: Literal["lazy", "eager", "random"] = "lazy",
    seed: int = 0,
    detect_races: bool = True,
    order: Literal["fifo", "lifo", "random"] = "fifo",
    workers: int = 1,
    guard: bool = True,
    flush: Literal["end", "start"] = "end",
    count_transactions: bool = False,
    multiprocessors: int = 2,
    trace: bool = False,
    c: np.ndarray | None = None,
    c_strides: Sequence[int] = (0, 0, 0),
    bias: np.ndarray | None = None,
    bias_strides: Sequence[int] = (0, 0, 0),
    residual: np.ndarray | None = None,
    residual_strides: Sequence[int] = (0, 0, 0),
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: Literal["none", "relu", "gelu_tanh", "gelu_erf", "silu"] = "none",
    preactivation: np.ndarray | None = None,
    second_b: np.ndarray | None = None,
    second_product: np.ndarray | None = None,
    lhs_scale: np.ndarray | None = None,
    lhs_scale_strides: Sequence[int] = (0, 0, 0),
    rhs_scale: np.ndarray | None = None,
    rhs_scale_strides: Sequence[int] = (0, 0, 0),
    multiplier: np.ndarray | None = None,
) -> dict[str, Any]: ...
