"""What kernels of recorded calls may do before the kernel ahead has ended (gemm/launch.h)."""

from __future__ import annotations

import pathlib
import subprocess

from tests import cxx


def test_with_room_for_the_kernel_behind_and_without():
    program = cxx.build("early", [pathlib.Path(__file__).with_name("early.cc")])
    done = subprocess.run([program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"line {done.returncode}"
