"""The benchmark on a GPU: that its contenders run, and what no CPU can show of them."""

from __future__ import annotations

import dataclasses
import json

import jax
import jax.numpy as jnp
import pytest

from jax_moye import __main__ as cli
from jax_moye._bench import bench, contenders, cublaslt
from jax_moye._selection import measurements
from jax_moye._timing.correctness import of_workload, same_bits
from jax_moye._timing.operands import OperandSets, Rotation, random_sets
from jax_moye._timing.programs import compile_all, loop_contender, program_contender
from jax_moye._timing.workloads import Workload

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def test_a_workload_of_each_kind(tmp_path):
    lines = [
        {"id": "D1", "batch": 1, "m": 256, "n": 256, "k": 256, "layout": "NN", "dtype": "bf16"},
        {
            "id": "I1",
            "batch": 1,
            "m": 512,
            "n": 512,
            "k": 512,
            "layout": "NN",
            "dtype": "bf16",
            "epilogue": "bias+gelu",
        },
        {"id": "H5", "batch": 1, "m": 512, "n": 512, "k": 512, "layout": "NT", "dtype": "s8"},
    ]
    suite, out = tmp_path / "suite.json", tmp_path / "out.json"
    suite.write_text(json.dumps({"rows": [line | {"regime": "own"} for line in lines]}))
    quick = ["--turn-ms", "2", "--warmup-ms", "1", "--alternations", "3", "--mode", "both", "--idle-ms", "5"]
    options = ["--baselines", "xla,xla_no_triton", "--suite", str(suite), "--out", str(out)]
    assert cli.main(["bench", *options, *quick]) == 0
    report = json.loads(out.read_text())
    assert report["not_run"] == []
    for row in report["rows"]:
        assert row["correct"], row
        assert row["baselines"].keys() == {"xla", "xla_no_triton"}, row.get("rejected_baselines")
        assert row["burst"]["us"] > 0
        # XLA's layer with an epilogue is not what `jnp` writes, and has rounds of its own.
        of_xla = "default" if "epilogue" in row else "xla"
        assert row["default_timed_as"] == {"moye": "jax_moye", "xla": of_xla}[row["by_default"]]
        assert row["default_us"] > 0
        low, high = row["default_ratio_ci"]
        assert low <= row["default_ratio"] <= high


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layout": "TT"},
        {"layout": "NT", "batch": 3},
        {"dtype": "f32", "precision": "HIGHEST"},
        {"dtype": "f64", "layout": "TN"},
        {"dtype": "s8", "layout": "NT"},
        {"epilogue": "bias+gelu"},
        {"epilogue": "residual"},
    ],
)
def test_cublaslt(gpu, fields):
    """The library of jax's CUDA wheels computes the workload, and its time by events is a host's, about."""
    workload = dataclasses.replace(Workload("S1", "own", 1, 1024, 768, 512, "NN", "bf16"), **fields)
    with jax.enable_x64(True):
        sets = random_sets(workload.structs, Rotation(3, 3, 0), workload.seed)
        one = cublaslt.contender(workload, sets, gpu.local_hardware_id or 0)
        assert "of the heuristic" in one.method
        assert bench.baseline_excess(workload, one, of_workload(workload, sets.first)) <= 1
    by_events = one.round(20)
    by_host = dataclasses.replace(one, clock=None).round(20)
    assert 0.5 * by_host < by_events < 1.1 * by_host
    assert by_events > workload.flops / 3e15  # no GPU is that fast


def test_cublaslt_as_a_baseline(tmp_path):
    out = tmp_path / "out.json"
    quick = ["--turn-ms", "2", "--warmup-ms", "1", "--alternations", "3", "--baselines", "xla,cublaslt"]
    assert cli.main(["bench", "--shape", "2048x2048x2048:bf16", "--out", str(out), *quick]) == 0
    (row,) = json.loads(out.read_text())["rows"]
    assert row["baselines"].keys() == {"xla", "cublaslt"}, row.get("rejected_baselines")
    assert row["baselines"]["cublaslt"] < 1.3 * row["baselines"]["xla"]  # XLA tries some of the same results


@pytest.mark.parametrize("name", ["transformer_decoding", "vision_transformer"])
def test_a_whole_program(name, tmp_path, monkeypatch):
    """All ways compute the same; XLA's text for a GPU is read; what was measured while it was lowered is found."""
    monkeypatch.setenv(measurements.AUTOTUNE, "on")
    out = tmp_path / "out.json"
    sizes = {"layers": 2, "width": 512, "heads": 8, "inner": 1024, "batch": 8}
    options = [word for size, value in sizes.items() for word in ("--size", f"{size}={value}")]
    quick = ["--turn-ms", "2", "--warmup-ms", "1", "--alternations", "3", "--out", str(out)]
    assert cli.main(["bench", "--program", name, *options, *quick]) == 0
    (run,) = json.loads(out.read_text())["runs"]
    assert {"xla", "intercept", "optimize"} <= run.keys()
    ways = {way: run[way] for way in ("xla", "intercept", "optimize", "products") if way in run}
    assert all(row["id"] == "products" for row in run["not_run"])
    for way, found in ways.items():
        assert found["kernels"] > found["ours"], way
        assert found["written_bytes"] < 100 * found["memory_bytes"], way  # no workspace is taken for a result
        assert way == "xla" or found["difference"] < 0.25
    assert ways["xla"]["ours"] == 0
    if "products" in ways:
        assert ways["products"]["ours"] >= sum(row["count"] for row in run["rewrites"]) / 2
    assert any(row["timed"] for row in run["rewrites"])
    assert any(row["takes_in"] for row in run["rewrites"])


@pytest.mark.parametrize("launches", list(contenders.LAUNCHES))
def test_a_loop_holds_its_products(launches):
    """XLA for GPUs does not move them out, and the loop's results are those of single programs."""
    keys = jax.random.split(jax.random.key(0), 6)
    arrays = tuple([jax.random.normal(key, (256, 256), jnp.bfloat16) for key in keys[i : i + 3]] for i in (0, 3))
    options = contenders.LAUNCHES[launches]
    loop = loop_contender("xla", jnp.matmul, OperandSets(arrays, 3, 3), options)
    plain = program_contender("xla", jnp.matmul, OperandSets(arrays, 3), options)
    assert not compile_all([loop, plain], lambda name: False)
    for x, y in zip(loop.run(0), plain.run(0), strict=True):
        assert same_bits(x, y)
