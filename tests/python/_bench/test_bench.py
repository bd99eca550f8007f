"""One workload of the benchmark: which kernel a program holds, who chose it, what is allowed to it."""

from __future__ import annotations

import argparse
import dataclasses

import jax
import pytest
from python.workloads import WORKLOAD

import jax_moye
from jax_moye._bench import bench, default_way
from jax_moye._inspect.programs import workload_program
from jax_moye._kernels.devices import DEVICES
from jax_moye._timing.rounds import Contender

pytestmark = pytest.mark.usefixtures("x64")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"layout": "NT", "dtype": "f8e4m3"}, "e4m3"),
        ({"layout": "NT", "dtype": "s8"}, "s8"),
        ({"epilogue": "bias+gelu"}, "bf16"),
        ({"epilogue": "residual"}, "bf16"),
        ({"layout": "NT", "dtype": "f8e4m3", "precision": "ANY_F8_ANY_F8_F32_FAST_ACCUM"}, "e4m3"),
        ({"dtype": "f32", "precision": "HIGHEST"}, "bf16x6"),
        ({"dtype": "f32", "precision": "DEFAULT"}, "tf32"),
    ],
)
def test_one_kernel_of_ours_on_cuda(fields, expected):
    workload = dataclasses.replace(WORKLOAD, m=512, n=512, k=512, **fields)
    program = jax.jit(workload_program(workload, implementation="moye"))
    text = program.trace(*workload.structs).lower(lowering_platforms=("cuda",)).as_text()
    configs = {config.name: config for config in jax_moye.configs()}
    assert configs[bench.config_of(text)].dtype == expected


def test_who_chose(every_config_is_built):
    workload = dataclasses.replace(WORKLOAD, m=4096, n=4096, k=4096)
    h200 = DEVICES["h200"]
    assert bench.chosen_by(workload, None, h200) in ("model", "table", "cache")
    name = next(config.name for config in jax_moye.configs() if config.dtype == "bf16")
    assert bench.chosen_by(workload, name, h200) == "explicit"
    assert bench.chosen_by(dataclasses.replace(workload, epilogue="bias+gelu"), name, h200) == "explicit"


def test_three_launches_of_tf32_make_up_f32():
    tf32 = next(config for config in jax_moye.configs() if config.dtype == "tf32")
    f32 = dataclasses.replace(WORKLOAD, dtype="f32")
    alone = bench.tolerance(dataclasses.replace(f32, precision="DEFAULT"), tf32)
    for precision in bench.THREE_TF32:
        assert bench.tolerance(dataclasses.replace(f32, precision=precision), tf32).sums < alone.sums / 100


def test_configs_beside_the_selected_one():
    def beside(*names, sweep=None):
        arguments = argparse.Namespace(config=list(names), sweep=sweep)
        return [name for name in ("ab", "ac", "b") if bench.is_beside(name, arguments)]

    assert beside() == beside("ab") == []
    assert beside("ab,b") == beside("ab", "b") == ["ab", "b"]
    assert beside(sweep="a.") == ["ab", "ac"]


def timed(name, seconds):
    return Contender(name, pytest.fail, pytest.fail, times=[seconds, 1.5 * seconds, 0.5 * seconds])


def test_figures_of_the_default_way():
    ours, xla, own = timed("jax_moye", 1e-6), timed("xla", 2e-6), timed(default_way.OWN, 4e-6)
    found = bench.default_figures("jax_moye", [ours, xla])
    assert found == {
        "default_us": 1.0,
        "default_timed_as": "jax_moye",
        "default_ratio": 2.0,
        "default_ratio_ci": [2.0, 2.0],
    }
    assert bench.default_figures(default_way.OWN, [ours, xla, own])["default_ratio"] == 0.5
    same = bench.default_figures("xla", [ours, xla])
    assert same["default_us"] == 2.0
    assert (same["default_timed_as"], same["default_ratio"], same["default_ratio_ci"]) == ("xla", 1.0, [1.0, 1.0])
    assert bench.default_figures("xla", [ours]) == {}  # nobody timed it
    assert bench.default_figures("jax_moye", [ours]) == {"default_us": 1.0, "default_timed_as": "jax_moye"}
