"""benchmarks/device_clock.py, without a GPU: what it compiles, and what it makes of a profile."""

import importlib.util
import pathlib

import jax
import pytest

import jax_moye

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "device_clock.py"
SLICED = next((config.name for config in jax_moye.configs() if config.kernel == "sm90_sliced_k"), None)


@pytest.fixture
def script():
    if not SCRIPT.is_file():
        pytest.skip("no benchmarks beside the tests")
    spec = importlib.util.spec_from_file_location("device_clock", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def profiles(script, monkeypatch):
    """Names of the kernels in each step, the next profile's first: each kernel takes 1000 ns, 500 ns apart."""
    names = []

    def kernels_of(run):
        jax.block_until_ready(run())
        step = [script.Kernel(name, 1500.0 * i, 1000.0) for i, name in enumerate(names.pop(0))]
        return [step] * script.STEPS

    monkeypatch.setattr(script, "kernels_of", kernels_of)
    return names


@pytest.mark.skipif(SLICED is None, reason="not in this build")
@pytest.mark.parametrize("epilogue", ["", ":residual"])
def test_a_product_cold_and_hot(script, profiles, capsys, epilogue):
    """Hot, it is run eight times; cold, the kernels that are it count, and no others."""
    profiles += [["ours"] * 8, ["sum", "sort", "ours"]]
    with jax_moye.options(interpret=True):
        script.time_product(f"16x64x64:NN:{SLICED}{epilogue}")
    assert "cold     1.00 us  hot     1.00 us  behind 3 kernels" in capsys.readouterr().out
    assert profiles == []


def test_a_program_by_its_kernels(script, profiles, capsys, monkeypatch):
    """From the first kernel's start to the last one's end; kernels of one name together, the longest first."""
    program = script.load("mlp_mixer", {}, None, True)
    monkeypatch.setattr(script, "load", lambda *args: program)
    profiles += [["a", "b", "a"], ["ours"]]
    script.time_program("mlp_mixer", 1)
    xla, first, optimized, second = capsys.readouterr().out.splitlines()
    assert xla.split() == ["mlp_mixer", "xla", "4.0", "us", "1.000", "3", "kernels"]
    assert first.split() == ["2.0", "us", "in", "2", "a"]
    assert optimized.split() == ["mlp_mixer", "optimize", "1.0", "us", "4.000", "1", "kernels"]
    assert second.split() == ["1.0", "us", "in", "1", "ours"]


def test_without_a_gpu_there_is_nothing_to_report(script):
    with pytest.raises(RuntimeError, match="the profiler saw 0 kernels in 12 equal steps"):
        script.kernels_of(lambda: jax.numpy.ones(3) + 1)
