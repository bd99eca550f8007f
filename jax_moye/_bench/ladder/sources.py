"""The kernels' sources: what changed from one rung to the next."""

from __future__ import annotations

import difflib

from jax_moye._checkout import clone


def kernel_source(kernel: str) -> list[str]:
    """The lines of cuda/gemm/<kernel>.cuh, of the clone one is in, also in a folder of it, or of this file's.

    A header, tensorop.h, is named with its suffix.
    """
    name = kernel if kernel.endswith(".h") else f"{kernel}.cuh"
    root = clone()
    if root is not None and (file := root / "cuda" / "gemm" / name).is_file():
        return file.read_text(encoding="utf-8").splitlines()
    raise FileNotFoundError(f"cuda/gemm/{name} is not here: run this in a clone of the repository")


def hunk(before: str | None, after: str, first: str, last: str) -> str:
    """What changed from one kernel's file to another's, but for their names: a part of the diff with all its context.

    Args:
      before: the kernel below; None: no diff, but the lines of `after`.
      after: the kernel above, or a header.
      first: a text in the part's first line.
      last: a text in its last line, below that one.

    Raises:
      LookupError: there is no such line.
    """
    lines = kernel_source(after)
    if before:
        renamed = [line.replace(before, after) for line in kernel_source(before)]
        lines = list(difflib.unified_diff(renamed, lines, n=len(renamed), lineterm=""))[3:]
    begin = next((i for i, line in enumerate(lines) if first in line), None)
    end = next((i for i, line in enumerate(lines) if begin is not None and i > begin and last in line), None)
    if begin is None or end is None:
        raise LookupError(f"{before} -> {after}: no part from a line with {first!r} to one with {last!r}")
    margin = 0 if before else min(len(line) - len(line.lstrip()) for line in lines[begin : end + 1] if line)
    return "\n".join(line[margin:] for line in lines[begin : end + 1])
