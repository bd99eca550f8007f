"""linear(activation=function) on a GPU: compiled there, as precise as JAX's f32, quickly, and once."""

from __future__ import annotations

import functools
import os
import pathlib
import re
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import nvrtc, own_epilogue
from jax_moye._kernels.configs import find_config

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

ROOT = pathlib.Path(__file__).resolve().parents[2]
SM80 = "sm80_multistage_bf16_128x128x32_s4_a16"
SM90 = "sm90_cooperative_bf16_128x128x64_s5_a16"


def softcap(y):
    return 30 * jnp.tanh(y / 30)


def leaky(y):
    """Exact in f32 of small integers."""
    return jnp.where(y > 0, y, 0.25 * y) + jnp.square(jax.nn.relu(y - 3))


def leaky64(z):
    return np.where(z > 0, z, 0.25 * z) + np.square(np.maximum(z - 3, 0))


@pytest.fixture(autouse=True)
def _compiler(monkeypatch, tmp_path):
    if nvrtc.nvrtc() is None:
        pytest.skip("needs NVRTC: pip install nvidia-cuda-nvrtc")
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(own_epilogue, "_jobs", {})


@pytest.fixture(params=[SM80, SM90])
def config(request):
    found = find_config(request.param)
    arch = _compat.cuda_arch()
    if arch < found.min_arch or (found.max_arch and arch > found.max_arch):
        pytest.skip(f"{request.param} is not for sm_{arch}")
    return request.param


def named(function, *args):
    """The kernel of a program's one custom call."""
    text = jax.jit(function).lower(*args).as_text()
    (name,) = re.findall(r'\bconfig = "(\w+)"', text)
    assert ('activation = "own"' in text) == ("_f" in name)
    return name


@pytest.mark.parametrize("out_dtype", [jnp.float32, jnp.bfloat16])
def test_exact(config, out_dtype):
    """Of integers, in every order of the operands, with tiles at the edge, a bias, a residual and a batch."""
    rng = np.random.default_rng(0)
    for m, n, k, transposed in [(256, 512, 64, ""), (300, 264, 136, "x"), (136, 200, 72, "w"), (8, 128, 4096, "xw")]:
        x, w = (jnp.asarray(rng.integers(-4, 5, shape), jnp.bfloat16) for shape in ((m, k), (k, n)))
        bias, residual = (jnp.asarray(rng.integers(-4, 5, shape), jnp.bfloat16) for shape in ((n,), (m, n)))
        z = np.asarray(x, np.float64) @ np.asarray(w, np.float64) + np.asarray(bias, np.float64)
        expected = (leaky64(z) + np.asarray(residual, np.float64)).astype(np.float32).astype(out_dtype)
        x, w = (x.T if "x" in transposed else x), (w.T if "w" in transposed else w)

        def layer(x, w, bias, residual, transposed=transposed):
            x, w = (x.T if "x" in transposed else x), (w.T if "w" in transposed else w)
            options = {"config": config, "preferred_element_type": out_dtype}
            return jax_moye.linear(x, w, bias, activation=leaky, residual=residual, **options)

        assert named(layer, x, w, bias, residual).startswith(config + "_")
        assert "_f" in named(layer, x, w, bias, residual)
        np.testing.assert_array_equal(np.asarray(jax.jit(layer)(x, w, bias, residual)), expected)


FUNCTIONS = {
    "softcap": softcap,
    "softplus": jax.nn.softplus,
    "mish": jax.nn.mish,
    "elu": jax.nn.elu,
    "squared relu": lambda y: jnp.square(jax.nn.relu(y)),
    "hard_swish": jax.nn.hard_swish,
    "quick gelu": lambda y: y * jax.nn.sigmoid(1.702 * y),
    "log_sigmoid": jax.nn.log_sigmoid,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_precise_as_f32(config, name):
    """z is exact: what is off is the function alone. As the translator's tests bound it."""
    function = FUNCTIONS[name]
    x = jnp.eye(256, dtype=jnp.bfloat16)
    w = jnp.asarray(np.random.default_rng(0).normal(0, 12, (256, 384)), jnp.bfloat16)
    y = jax_moye.linear(x, w, activation=function, config=config, preferred_element_type=jnp.float32)
    z = np.asarray(w, np.float64)
    with jax.enable_x64(True):
        exact = np.asarray(function(jnp.asarray(z)))
        slope = np.asarray(jax.vmap(jax.vmap(jax.grad(function)))(jnp.asarray(z)))
    bound = 8 * 2.0**-23 * (np.abs(exact) + np.abs(z * slope) + np.abs(z))
    assert np.all(np.abs(np.asarray(y, np.float64) - exact) <= bound)


def test_derivative(config):
    rng = np.random.default_rng(0)
    x, w = (jnp.asarray(rng.normal(0, 1, shape), jnp.bfloat16) for shape in ((256, 128), (128, 192)))
    factors = jnp.asarray(rng.normal(0, 1, (256, 192)), jnp.float32)

    def loss(of, x, w):
        return jnp.sum(factors * of(x, w).astype(jnp.float32))

    layer = functools.partial(jax_moye.linear, activation=softcap, config=config)
    got = jax.jit(jax.grad(functools.partial(loss, layer)))(x, w)
    plain = jax.grad(functools.partial(loss, lambda x, w: softcap(jnp.matmul(x, w))))
    expected = plain(x.astype(jnp.float32), w.astype(jnp.float32))
    np.testing.assert_allclose(np.asarray(got, np.float32), expected, rtol=0.05, atol=0.2)


def test_parts_of_an_array():
    """The kernel that was compiled reads them in place, under optimize."""

    def capped(x):
        q, k = jnp.split(x, 2, axis=-1)
        return softcap(jnp.einsum("bqd,bkd->bqk", q, k))

    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 512, 256)), jnp.bfloat16)
    with jax_moye.options(implementation="moye"):
        optimized = jax_moye.optimize(capped)
        assert "jax_moye_view_gemm_v1" in jax.jit(optimized).lower(x).as_text()
        named(optimized, x)
        got = np.asarray(jax.jit(optimized)(x), np.float64)
    q, k = np.split(np.asarray(x, np.float64), 2, axis=-1)
    expected = 30 * np.tanh(np.einsum("bqd,bkd->bqk", q, k) / 30)
    assert np.abs(got - expected).max() <= 4 * 2.0**-9 * 30  # a product, a quotient, tanh and a product are rounded


def test_compiled_in_seconds():
    """Hopper's kernel, beside other processes: 3.4 s where 16 tests ran at one time."""
    arch = _compat.cuda_arch()
    if arch != 90:
        pytest.skip(f"{SM90} is not for sm_{arch}")
    kernel = own_epilogue._Kernel(find_config(SM90), "  return ::tanhf(x);\n", "NN", "cuda", arch)
    nvrtc.nvrtc()  # the library itself is loaded once
    begin = time.monotonic()
    nvrtc.compile_kernel(own_epilogue._source(kernel), "NN", own_epilogue._architecture(kernel))
    assert time.monotonic() - begin < 6


def test_in_the_background():
    """The first program is XLA's behind the product or all XLA's; who waits has it, and a later program, too."""
    x = jnp.ones((4096, 4096), jnp.bfloat16)

    def layer(x, w):
        return jax_moye.linear(x, w, activation=softcap)

    with jax_moye.options(autotune="off"):
        first = jax.jit(layer).lower(x, x).as_text()
        assert 'activation = "own"' not in first
        for job in own_epilogue._jobs.values():
            job.done.wait(60)
        kernels = list(own_epilogue._jobs)
        assert all(job.reason is None for job in own_epilogue._jobs.values())
        again = jax.jit(lambda x, w: layer(x, w)).lower(x, x).as_text()
        assert ('activation = "own"' in again) == bool(kernels)  # none: the model says XLA is faster


def test_a_second_process_compiles_nothing(tmp_path):
    program = f"""
import jax, jax.numpy as jnp, numpy as np, time
import jax_moye
from jax_moye._kernels import nvrtc
compiled = nvrtc._compile
def counted(*arguments):
    print("compiles", end=" ")
    return compiled(*arguments)
nvrtc._compile = counted
x = jnp.ones((256, 128), jnp.bfloat16)
y = jax_moye.linear(x, x.T, activation=lambda y: jnp.maximum(y, 0.0) / 8, config="{SM80}")
print(float(y[0, 0]))
"""
    environ = os.environ | {"PYTHONPATH": str(ROOT), "JAX_MOYE_CACHE_DIR": str(tmp_path / "shared")}
    said = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ).stdout
        for _ in range(2)
    ]
    assert said == ["compiles 16.0\n", "16.0\n"]


def test_in_a_graph_and_on_every_call(config):
    """XLA may capture it: the kernel is loaded before, and the same for each launch."""
    x = jnp.asarray(np.random.default_rng(0).integers(-4, 5, (256, 256)), jnp.bfloat16)

    @jax.jit
    def several(x):
        for _ in range(3):
            x = jax_moye.linear(x, x, activation=lambda y: jnp.sign(y) * (y != 1), config=config)
        return x

    def expected(x):
        z = np.asarray(x, np.float64)
        for _ in range(3):
            z = z @ z
            z = np.sign(z) * (z != 1)
        return z

    for _ in range(5):
        np.testing.assert_array_equal(np.asarray(several(x), np.float64), expected(x))
