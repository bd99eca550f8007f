"""The default way: who computes a workload, and which contender is the same program."""

from __future__ import annotations

import dataclasses

import jax
import pytest
from python.workloads import WORKLOAD

import jax_moye
from jax_moye._bench import contenders, default_way
from jax_moye._bench.default_way import OWN, DefaultWay
from jax_moye._inspect.programs import workload_program

pytestmark = pytest.mark.usefixtures("x64")


def changed(**fields):
    return dataclasses.replace(WORKLOAD, **fields)


def found(workload, **options):
    return default_way.find(workload_program(workload, **options), contenders.xla_program(workload), workload.structs)


@pytest.fixture
def _on_the_cpu():
    with jax.default_device(jax.devices("cpu")[0]):
        yield


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layout": "TT", "batch": 3},
        {"layout": "NT", "dtype": "s8"},
        {"layout": "TN", "dtype": "f8e4m3"},
        {"dtype": "f32", "precision": "HIGHEST"},
        {"dtype": "f32", "precision": "DEFAULT"},
        {"dtype": "f64", "layout": "NT"},
    ],
)
@pytest.mark.usefixtures("_on_the_cpu")
def test_xlas_product_is_the_program_of_xla(fields):
    """A CPU is no GPU of ours: XLA computes everything."""
    way = found(changed(**fields))
    assert (way.config, way.by, way.is_xlas) == (None, "xla", True)
    assert way.timed_as("any", ()) == "xla"


@pytest.mark.usefixtures("_on_the_cpu")
def test_xlas_layer_rounds_elsewhere_and_is_timed():
    way = found(changed(epilogue="bias+gelu"))
    assert (way.config, way.is_xlas) == (None, False)
    assert way.timed_as("any", ()) == OWN
    struct = WORKLOAD.structs
    plain, other = (
        jax.jit(contenders.xla_program(one)).lower(*struct).as_text()
        for one in (WORKLOAD, changed(precision="HIGHEST"))
    )
    assert default_way.is_same_program(plain, plain)
    assert not default_way.is_same_program(plain, other)


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_our_kernel_is_known_by_its_config(dtype):
    way = found(changed(dtype=dtype), interpret=True)
    assert way.by == "moye"
    assert way.config in {config.name for config in jax_moye.configs()}
    assert not way.is_xlas


def test_whose_rounds_are_the_defaults():
    way = DefaultWay(lambda a, b: a, "one", False)
    assert way.timed_as("one", ["one", "two"]) == "jax_moye"
    assert way.timed_as("two", ["one"]) == "one"
    assert way.timed_as("two", ["three"]) == OWN
