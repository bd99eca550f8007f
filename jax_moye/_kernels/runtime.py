"""What the installed jaxlib's runtime can do, by the headers it ships: there is no call that says so."""

from __future__ import annotations

import functools
import pathlib
import re

import jax


@functools.cache
def ffi_version() -> tuple[int, int] | None:
    """(major, minor) of the FFI that the installed jaxlib speaks, from the headers it ships; None if it ships none.

    jaxlib's CUDA plugin comes from the same release.
    """
    return _version_in(_ffi_header("c_api.h"), r"XLA_FFI_API_(MAJOR|MINOR)")


@functools.cache
def records_calls() -> bool:
    """Whether XLA asks handlers for the nodes of its CUDA graphs in the way that ffi/record_cuda.cc knows.

    Its header says that it may change at any time, so other versions than jaxlib 0.11.2's are not asked: no GPU has run
    them.
    """
    version = _version_in(_ffi_header("record_c_api.h"), r"XLA_FFI_Extension_Record_(Major|Minor)Version")
    return version == (0, 1)


def _ffi_header(name: str) -> str:
    """The text of a header that jaxlib ships; empty if it ships none of that name."""
    try:
        return (pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / name).read_text()
    except OSError:
        return ""


def _version_in(header: str, macro: str) -> tuple[int, int] | None:
    """(major, minor), where a header defines both."""
    versions = {name.lower(): int(value) for name, value in re.findall(rf"#define {macro} (\d+)", header)}
    return (versions["major"], versions["minor"]) if len(versions) == 2 else None
