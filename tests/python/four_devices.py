"""Checks on four devices: a test module's functions named check_*, run in a process of their own.

The number of the CPU's devices is fixed when a backend starts. So the module itself is the program of that process.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import traceback
from typing import Any

import jax_moye


def checks_of(module: dict[str, Any]) -> list[str]:
    """The names of a module's checks. module: its globals."""
    return [
        name for name, fun in list(module.items()) if name.startswith("check_") and fun.__module__ == module["__name__"]
    ]


def said_by(file: str) -> dict[str, str]:
    """What each check of a module says: the traceback of its error, empty if it has none."""
    root = pathlib.Path(jax_moye.__file__).parents[1]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(root), str(pathlib.Path(__file__).parents[1])]),
        "JAX_PLATFORMS": "cpu",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in conftest.py
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=4",
    }
    done = subprocess.run(
        [sys.executable, "-P", "-W", "error", file], env=environment, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(module: dict[str, Any]) -> None:
    """Runs the checks of the module that is this process's program, and says for said_by() what they say."""
    said = dict.fromkeys(checks_of(module), "")
    for name in said:
        try:
            module[name]()
        except Exception:
            said[name] = traceback.format_exc()
    print(json.dumps(said))
