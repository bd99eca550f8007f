"""What recorded calls gave their kernels (ffi/known_launches.h); on a GPU tests/gpu/test_gpu_record.py is about it."""

from __future__ import annotations

import pathlib
import subprocess

from tests import cxx


def test_places_of_addresses_by_node():
    source = pathlib.Path(__file__).with_name("known_launches.cc")
    program = cxx.build("known_launches", [source], [f"-I{cxx.ROOT / 'ffi'}"])
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"line {done.returncode}"
