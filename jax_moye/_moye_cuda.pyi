"""The extension module of ffi/module_cuda.cc: the kernels compiled by nvcc."""

from collections.abc import Sequence
from typing import Any

api_version: tuple[int, int]

own_kernel_headers: dict[str, str]

def configs() -> list[dict[str, Any]]: ...
def add_kernel(function: int, kernel: str, name: str) -> dict[str, Any]: ...
def add_compiled(code: bytes, config: str, name: str) -> None: ...
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
def recorded_nodes() -> tuple[int, int]: ...
def recording_handlers() -> dict[str, dict[str, object]]: ...
def handlers() -> dict[str, dict[str, object]]: ...
