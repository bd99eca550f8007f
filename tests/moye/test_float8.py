"""8-bit floats of cuda/moye/arch/types.h: every value, and every rounding, against ml_dtypes and JAX."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import jax
import ml_dtypes
import numpy as np
import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import cxx

HERE = pathlib.Path(__file__).parent
FUSIONS = "xla_cpu_use_fusion_emitters"
TYPES = (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)


@pytest.fixture(scope="module")
def floats() -> np.ndarray:
    """All upper halves of a float, with nothing, a little and almost one more unit below.

    No 8-bit float's rounding depends on more: of the lower bits it only matters whether any is set.
    """
    upper = np.arange(2**16, dtype=np.uint32) << 16
    return np.concatenate([upper, upper | 1, upper | 0xFFFF]).view(np.float32)


@pytest.fixture(scope="module")
def converted(floats, tmp_path_factory) -> tuple[np.ndarray, np.ndarray]:
    """The bits of every float, [float, e4m3 e5m2 of both kinds], and the floats of all bits, [type, bits]."""
    folder = tmp_path_factory.mktemp("float8")
    floats.tofile(folder / "floats")
    program = cxx.build("float8", [HERE / "float8.cc"])
    subprocess.run([program, folder / "floats", folder / "codes"], check=True, timeout=60)
    data = (folder / "codes").read_bytes()
    codes = np.frombuffer(data, np.uint8, 4 * floats.size).reshape(-1, 4)
    return codes, np.frombuffer(data, np.float32, offset=4 * floats.size).reshape(2, 256)


def expected(floats: np.ndarray, dtype) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        return floats.astype(dtype).view(np.uint8)


@pytest.mark.parametrize("i", (0, 1))
def test_overflowing_is_what_jax_does(floats, converted, i):
    numbers = ~np.isnan(floats)
    codes = converted[0][:, 2 + i]
    np.testing.assert_array_equal(codes[numbers], expected(floats, TYPES[i])[numbers])
    # With the passes that are on by default, which tests/conftest.py may have turned off: without them XLA's conversion
    # to e4m3 makes -0 of two values that are too large.
    default = {FUSIONS: True} if FUSIONS in os.environ.get("XLA_FLAGS", "") else {}
    of_jax = jax.jit(lambda x: x.astype(TYPES[i]), compiler_options=default)(floats)
    np.testing.assert_array_equal(codes[numbers], np.asarray(of_jax).view(np.uint8)[numbers])
    assert set(codes[~numbers]) == {0x7F}


@pytest.mark.parametrize("i", (0, 1))
def test_constructor_saturates(floats, converted, i):
    numbers = ~np.isnan(floats)
    most = np.float32(ml_dtypes.finfo(TYPES[i]).max)
    codes = converted[0][:, i]
    np.testing.assert_array_equal(codes[numbers], expected(np.clip(floats, -most, most), TYPES[i])[numbers])
    assert set(codes[~numbers]) == {0x7F}


@pytest.mark.parametrize("i", (0, 1))
def test_to_float(converted, i):
    values = np.arange(256, dtype=np.uint8).view(TYPES[i]).astype(np.float32)
    numbers = ~np.isnan(values)
    np.testing.assert_array_equal(converted[1][i].view(np.uint32)[numbers], values.view(np.uint32)[numbers])
    assert set(converted[1][i].view(np.uint32)[~numbers]) == {0x7FFFFFFF}
