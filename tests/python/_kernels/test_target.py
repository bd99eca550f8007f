"""The GPU that programs for CUDA are lowered for: of a block, of the environment, an H200 without either."""

import functools

import jax
import jax.numpy as jnp
import pytest
from python.support import custom_calls

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import target

A = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
kernels = functools.partial(jax_moye.matmul, implementation="moye")
no_gpu = pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU")


def config_of(text):
    (call,) = custom_calls(text)
    return next(row for row in jax_moye.configs() if row.name == call.config)


@no_gpu
def test_the_target_is_an_option(monkeypatch):
    monkeypatch.delenv("JAX_MOYE_CUDA_ARCH", raising=False)
    program = jax.jit(kernels).trace(A, A)
    lower = lambda: config_of(program.lower(lowering_platforms=("cuda",)).as_text())  # noqa: E731
    usual = lower()
    assert usual.max_arch == 90  # an H200's
    with jax_moye.cuda_target(80):
        assert lower().min_arch == 80
        with jax_moye.cuda_target(100):
            assert lower().max_arch == 0
        assert lower().min_arch == 80  # from a cache, and the right one
    assert lower() == usual
    monkeypatch.setenv("JAX_MOYE_CUDA_ARCH", "80")
    jax.clear_caches()
    assert lower().min_arch == 80
    with jax_moye.cuda_target(90):
        assert lower() == usual
    monkeypatch.setenv("JAX_MOYE_CUDA_ARCH", "sm_80")
    jax.clear_caches()
    with pytest.raises(ValueError, match="JAX_MOYE_CUDA_ARCH is an architecture such as 90, not 'sm_80'"):
        lower()


def test_a_target_is_a_number():
    for wrong, error in (("90", TypeError), (True, TypeError), (9, ValueError)):
        with pytest.raises(error, match="cuda_target: arch is"):
            jax_moye.cuda_target(wrong)


@no_gpu
def test_the_block_comes_before_the_environment(monkeypatch):
    monkeypatch.delenv(target.VARIABLE, raising=False)
    assert target.cuda_arch() == target.DEFAULT_ARCH == 90
    monkeypatch.setenv(target.VARIABLE, "89")
    assert target.cuda_arch() == 89
    with jax_moye.cuda_target(80):
        assert target.cuda_arch() == 80
    monkeypatch.setenv(target.VARIABLE, "")  # as good as not set, as in `JAX_MOYE_CUDA_ARCH= python ...`
    assert target.cuda_arch() == target.DEFAULT_ARCH
    for wrong in ("9", "sm_90", " "):
        monkeypatch.setenv(target.VARIABLE, wrong)
        with pytest.raises(ValueError, match=f"{target.VARIABLE} is an architecture such as 90, not {wrong!r}"):
            target.cuda_arch()


def test_a_gpu_of_this_process_comes_before_the_environment(monkeypatch):
    monkeypatch.setattr(_compat, "cuda_arch", lambda: 80)
    monkeypatch.setenv(target.VARIABLE, "90")
    assert target.cuda_arch() == 80
