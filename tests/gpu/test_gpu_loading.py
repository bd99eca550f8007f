"""When kernels are loaded (ffi/loading_cuda.h): with the executable, before anything runs, and once."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

# In a process of its own, where nothing is loaded yet.
SCRIPT = """
import jax, jax.numpy as jnp, jax_moye
from jax_moye import _moye_cuda
config = "sm80_multistage_bf16_128x128x32_s4_a16"
x = jnp.ones((256, 256), jnp.bfloat16)
loaded = lambda: _moye_cuda.kernels_are_loaded(config, 0)
print(loaded())
lowered = jax.jit(lambda a: jax_moye.matmul(a, a, implementation="moye", config=config)).lower(x)
print(loaded())
compiled = lowered.compile()
print(loaded(), _moye_cuda.kernels_are_loaded(config, 1), _moye_cuda.kernels_are_loaded("no config", 0))
print((compiled(x) == 256).all())
"""


def test_kernels_are_loaded_with_the_executable():
    found = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, timeout=300)
    assert found.returncode == 0, found.stderr
    loaded = found.stdout.split()
    assert loaded[:3] == ["False", "False", "True"]
    assert loaded[4:] == ["False", "True"]


def test_no_execution_asks_for_it():
    """XLA would call a handler of the stage `prepare` twice in each execution."""
    from jax_moye import _moye_cuda

    stages = {name: set(of_target) for name, of_target in _moye_cuda.handlers().items()}
    assert stages.pop("jax_moye_mark_v1") == {"execute"}
    assert all(of_target == {"execute", "instantiate"} for of_target in stages.values())
