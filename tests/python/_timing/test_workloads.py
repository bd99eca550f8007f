"""Workloads: what a line of a suite and a shape on the command line say."""

from __future__ import annotations

import dataclasses
import json
import pathlib

import jax.numpy as jnp
import pytest
from python.workloads import WORKLOAD

from jax_moye._timing.workloads import Workload, read_suite

ROOT = pathlib.Path(__file__).resolve().parents[3]


def changed(**fields) -> Workload:
    return dataclasses.replace(WORKLOAD, **fields)


def test_footprint():
    layer = changed(epilogue="bias+gelu")
    m, n, k = layer.m, layer.n, layer.k
    assert layer.footprint == 2 * (m * k + k * n + m * n + n)
    assert changed(dtype="s8").footprint == m * k + k * n + 4 * m * n
    assert layer.flops == 2 * m * n * k


def test_epilogues():
    assert WORKLOAD.finish == (False, None, False)
    assert changed(epilogue="bias+silu").finish == (True, "silu", False)
    assert changed(epilogue="residual").finish == (False, None, True)
    for wrong in ("bias+swash", "gelu+silu"):
        with pytest.raises(NotImplementedError, match=wrong.replace("+", r"\+")):
            _ = changed(epilogue=wrong).finish
    with pytest.raises(NotImplementedError, match="batch"):
        _ = changed(epilogue="bias", batch=2).finish


def test_own_shape():
    workload = Workload.from_shape("8x64x32x128:f16:NT", 3)
    assert workload.to_json() == {
        "id": "S3",
        "regime": "own",
        "batch": 8,
        "m": 64,
        "n": 32,
        "k": 128,
        "layout": "NT",
        "dtype": "f16",
    }
    with pytest.raises(ValueError, match="--shape"):
        Workload.from_shape("64x64:bf16", 1)
    workload = Workload.from_shape("64x64x64:f32", 1, "highest")
    assert workload.precision == "HIGHEST"
    assert workload.jax_precision == "highest"


def test_a_line_of_results_is_its_workload():
    layer = changed(epilogue="bias+gelu", precision="DEFAULT")
    assert Workload.from_json(layer.to_json() | {"us": 1.0, "config": "x"}) == layer


def test_structs():
    a, b, bias, residual = changed(layout="TN", epilogue="bias+residual").structs
    assert (a.shape, b.shape, bias.shape, residual.shape) == ((96, 40), (96, 24), (24,), (40, 24))
    a, b = changed(batch=3, layout="NT", dtype="f8e4m3").structs
    assert (a.shape, b.shape, a.dtype) == ((3, 40, 96), (3, 24, 96), jnp.float8_e4m3fn)
    with pytest.raises(NotImplementedError, match="c64 operands"):
        _ = changed(dtype="c64").structs


def test_the_suite_has_51_workloads():
    path = ROOT / "benchmarks" / "suite.json"
    lines = json.loads(path.read_text())["rows"]
    suite = read_suite(path, ".*")
    assert len({workload.id for workload in suite}) == len(suite) == len(lines) == 51
    assert all(line.items() >= workload.to_json().items() for line, workload in zip(lines, suite, strict=True))
    assert all(workload.structs for workload in suite)
    assert [workload.id for workload in read_suite(path, "A2|B1")] == ["A2", "B1"]
