"""The benchmark on a GPU: that its contenders run, and what no CPU can show of them."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import pytest

from jax_moye import __main__ as cli
from jax_moye._bench import contenders
from jax_moye._timing.correctness import same_bits
from jax_moye._timing.operands import OperandSets
from jax_moye._timing.programs import compile_all, loop_contender, program_contender

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
