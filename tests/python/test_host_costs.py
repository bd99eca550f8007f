"""What jax_moye costs on the host, and the benchmark of it."""

import importlib.util
import pathlib

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "host_costs.py"


def load():
    spec = importlib.util.spec_from_file_location("host_costs", SCRIPT)
    host_costs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host_costs)
    return host_costs


def test_a_train_steps_tracing_and_lowering():
    """The aim is twice lax's time; three times allows for a machine that is busy with other things."""
    seconds = load().ratio_of_train_steps("cuda", repeats=3)
    assert seconds["jax_moye trace and lower"] < 3 * seconds["lax trace and lower"], seconds


def test_the_benchmarks_handlers_run(tmp_path):
    """They are made of the sources of ffi/, and no build of the package compiles them."""
    host_costs = load()
    microseconds = host_costs.handler_us(host_costs.build_handlers(tmp_path, "-O0"), calls=2)
    assert microseconds.keys() == {"Empty", "Decode", "EmptyFused", "DecodeFused"}
