"""Tracing and lowering a train step takes no more than a multiple of JAX's own time."""

import importlib.util
import pathlib

SCRIPT = pathlib.Path(__file__).parents[2] / "benchmarks" / "host_costs.py"


def test_a_train_steps_tracing_and_lowering():
    """The aim is twice lax's time; three times allows for a machine that is busy with other things."""
    spec = importlib.util.spec_from_file_location("host_costs", SCRIPT)
    host_costs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(host_costs)
    seconds = host_costs.ratio_of_train_steps("cuda", repeats=3)
    assert seconds["jax_moye trace and lower"] < 3 * seconds["lax trace and lower"], seconds
