"""Settings of the Python tests: the CPU backend, one device, no program kept on disk."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def _nothing_was_measured(monkeypatch, tmp_path_factory):
    """What a test expects of a selection is the models': tables of the package change when a GPU has measured anew."""
    from jax_moye._selection import measurements

    nowhere = tmp_path_factory.getbasetemp() / "no_tables"
    monkeypatch.setattr(measurements, "TABLES", nowhere)
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(nowhere))


@pytest.fixture(autouse=True)
def _nothing_was_said():
    """What is said once in a process is said in each test."""
    from jax_moye._log import say_once

    say_once.cache_clear()


@pytest.fixture(autouse=True)
def _llvm_optimizes_little():
    """Compiling takes most of the time of these programs, which run once; how XLA rewrites and fuses stays as it is."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def rng():
    """Random numbers that are the same in every run."""
    return np.random.default_rng(0)


@pytest.fixture
def x64():
    """64-bit types, as `bench` and `tune` enable them for their references."""
    import jax

    with jax.enable_x64(True):
        yield


def _count_all_configs_as_built():
    """For a GPU too, where there is none: a build's module may have fewer configs (JAX_MOYE_CUDA_CONFIGS).

    As this file is imported, in front of the tests: some ask as they are imported.
    """
    import jax_moye
    from jax_moye._kernels import ffi
    from jax_moye._kernels.configs import attention_configs, block_scaled_configs, grouped_configs, weights_configs

    others = (*grouped_configs(), *weights_configs(), *block_scaled_configs(), *attention_configs())
    every = (*jax_moye.configs(), *others)
    built, names = ffi.built, frozenset(config.name for config in every)
    ffi.built = lambda platform: built(platform) and names


if not pathlib.Path("/dev/nvidiactl").exists():
    _count_all_configs_as_built()


@pytest.fixture
def every_config_is_built(monkeypatch):
    """Where there is a GPU, too."""
    import jax

    from jax_moye._kernels import ffi

    monkeypatch.setattr(ffi, "built", ffi.built)  # put back behind the test
    _count_all_configs_as_built()
    jax.clear_caches()
    yield
    jax.clear_caches()


@pytest.fixture
def places(tmp_path, monkeypatch, every_config_is_built):
    """An H200 is assumed: an empty cache, no tables in the package, and a driver."""
    from jax_moye._kernels import ffi
    from jax_moye._selection import measurements

    ffi.register("cpu")  # now: the emulator's kernels may be asked for below
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(measurements, "TABLES", tmp_path / "tables")
    monkeypatch.setattr(measurements, "driver_version", lambda: "580.1")
    monkeypatch.setattr(measurements, "power_limit", lambda: None)
    monkeypatch.setattr(measurements, "_warned", set())
    monkeypatch.setattr(measurements, "_here", {})
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(ffi, "register", lambda platform: None)
    for name in ("XLA_FLAGS", "JAX_MOYE_CUDA_ARCH", measurements.AUTOTUNE):
        monkeypatch.delenv(name, raising=False)
    measurements.forget()
    yield tmp_path
    measurements.forget()


@pytest.fixture
def kernels_are_there(monkeypatch, every_config_is_built):
    """As on a machine whose jax_moye was built with nvcc, and as if XLA were slow."""
    import jax

    from jax_moye._kernels import ffi
    from jax_moye._selection import decide

    monkeypatch.setattr(decide, "xla_us", lambda *args, **kwargs: 1e9)
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.setattr(ffi, "register", lambda platform: None)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    jax.clear_caches()
