"""What was measured of workloads: benchmarks/results, beside what the models say of it."""

import json
import math
import pathlib
import statistics

import jax.numpy as jnp
import pytest
from jax import lax

import jax_moye
from jax_moye._selection import decide
from jax_moye._selection.capability import LoweringTarget, usable_configs
from jax_moye._selection.cost import predicted_us
from jax_moye._selection.cost_xla import xla_us
from jax_moye._selection.problem import GemmProblem, make_problem
from jax_moye._selection.request import Operand, Request

CONFIGS = jax_moye.configs()
ROOT = pathlib.Path(__file__).parents[3]
RESULTS = ROOT / "benchmarks" / "results"
# The suite with the kernels of the table, a sweep over large products, and other measurements of XLA on the suite. The
# constants are fitted to none of them, but to products of real models and, XLA's, to the package's table
# (tools/fit_cost.py).
SUITE, SWEEP = "nvidia_h200-2026-11-20-1ce8bb2.json", "nvidia_h200-2026-11-20-5752550-sweep.json"
FILES = (
    SWEEP,
    *(f"nvidia_h200-2026-11-20-{commit}.json" for commit in ["e0cb999", "4dd834c", "511fcf1", "6753480", "6889ca3"]),
)


needs_results = pytest.mark.skipif(not RESULTS.exists(), reason="no measurements beside the tests")


def measured(*files):
    """Rows of files of results."""
    return [row for name in files for row in json.loads((RESULTS / name).read_text())["rows"]]


def edges():
    """Products at the edge: tiny, many and small, one row or column, odd sizes; with the times of all configs."""
    return json.loads((RESULTS / "nvidia_h200-2026-11-23-66f3304-edges.json").read_text())["products"]


def layers():
    """Products with bias, activation or residual, in bf16, with the times of the first configs."""
    rows = json.loads((RESULTS / "nvidia_h200-2026-11-23-f9e96dd-epilogues.json").read_text())["products"]
    return [row for row in rows if row["id"].startswith("fused")]


def suite():
    """Rows of SUITE of which both models say something: without an epilogue, and no 8-bit operands."""
    return [row for row in measured(SUITE) if "epilogue" not in row and row["dtype"] in ("bf16", "f32", "f64")]


def problem_of_workload(row, dtype=None):
    """The problem of a row; dtype: of the config, where that is not the operands' (tf32)."""
    lead = "b" if row["batch"] > 1 else ""
    a, b = lead + ("mk" if row["layout"][0] == "N" else "km"), lead + ("kn" if row["layout"][1] == "N" else "nk")
    sizes = {"b": row["batch"], "m": row["m"], "n": row["n"], "k": row["k"]}
    shapes = [[sizes[label] for label in labels] for labels in (a, b)]
    return make_problem(f"{a},{b}->{lead}mn", *shapes, dtype or row["dtype"], row["dtype"])


def kernel_dtype(row):
    """What XLA multiplies in: H2 is f32 at default precision."""
    return "tf32" if "_tf32_" in row["config"] else row["dtype"]


def host_bound(row):
    return row.get("host_bound", ())


def config_of(row):
    """The row of the table that was measured; None where this build lacks it."""
    return next((config for config in CONFIGS if config.name == row["config"]), None)


def errors_of_xla():
    """(row, predicted over measured) of all rows in which the host was not the limit."""
    return [
        (row, xla_us(problem_of_workload(row, kernel_dtype(row)), 90) / row["baselines"]["xla"])
        for row in measured(*FILES)
        if "xla" not in host_bound(row)
    ]


def errors_of_kernels():
    found = []
    for row in suite():
        config = config_of(row)
        if config is not None and "jax_moye" not in host_bound(row):
            found.append((row, predicted_us(config, problem_of_workload(row, config.dtype), 90) / row["us"]))
    return found


def spread(ratios):
    """How far ratios are from 1: the root of the mean square of their logarithms."""
    return math.sqrt(statistics.fmean(math.log(ratio) ** 2 for ratio in ratios))


def over_mean(errors):
    """(row, error over the errors' geometric mean), and that mean: these files' clocks are others than the fit's."""
    mean = statistics.geometric_mean(error for _, error in errors)
    return [(row, error / mean) for row, error in errors], mean


def square(m, n, k, batch=1, dtype="bf16", order="NN", out=None):
    a = (m * k, k, 1) if order[0] == "N" else (m * k, 1, m)
    b = (n * k, 1, n) if order[1] == "N" else (n * k, k, 1)
    return GemmProblem(batch, m, n, k, a, b, (m * n, n, 1), dtype, out or {"tf32": "f32"}.get(dtype, dtype), False)


H200 = LoweringTarget("cuda", 90, None, usable_configs("cuda", 90))


def who(row, config):
    """Why XLA would compute a measured row if our kernel were the one that was measured; None if it would not."""
    dtype = jnp.dtype({"bf16": "bfloat16", "f32": "float32", "f64": "float64"}[row["dtype"]])
    precision = (lax.Precision.HIGHEST,) * 2 if config.dtype == "f32" else None
    operands, problem = (Operand((1,), dtype),) * 2, problem_of_workload(row, config.dtype)
    request = Request("mk,kn->mn", dtype, precision, None, None, None)
    call = decide.KernelCall(problem, config, False, operands)
    found = decide._Found(call, 90)
    return decide._ours_or_xlas(request, operands, H200, found).reason
