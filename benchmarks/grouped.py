"""Times products of groups on this GPU: jax_moye.ragged_dot, jax.lax.ragged_dot, and torch._grouped_mm where torch is.

    python benchmarks/grouped.py [--out results.json] [--rows REGEX] [--seconds 0.2] [--xla REGEX] [--dtype e4m3]

Rows are the first products of the experts of published mixtures, gate and up side by side: a few tokens a group, as in
decoding, and thousands, as in training; even groups and skewed ones; and some gradients to the weights. All contenders
multiply the same normal random numbers, in turns. A row's operands are more than the L2 cache holds. One program has as
many products as take some hundred microseconds, so that launches cost no time of the device. Results are compared with
one another; tests compare them with float64.

Of --dtype tf32, e4m3 and e4m3_fast (sums that stay in the tensor core) the matrices lie with k last, and there are no
gradients. 8-bit floats have a scale for each row and each column of a group, and results in bf16. Our own product in
bf16 takes torch's place.

With --permuted it is what a mixture of experts stores: results in the order of tokens, by the kernel that has the
permutation ("stores"), and by XLA behind one that stores rows in order ("scatter"; "in_order" is that kernel alone).
"""

from __future__ import annotations

import argparse
import datetime
import functools
import json
import math
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import jax_moye
from jax_moye._kernels.configs import grouped_configs
from jax_moye._kernels.ffi import built


class Row(NamedTuple):
    """A product: rows of x times the matrices of their groups, or (transposed) the gradient to those.

    Attributes:
      name: the model, and which tokens.
      groups: experts.
      m: rows of x, of all groups together.
      k: columns of x.
      n: columns of the result.
      skewed: whether few groups have most of the rows.
      gradient: the gradient to the matrices, (groups, k, n) from x and (m, n).
    """

    name: str
    groups: int
    m: int
    k: int
    n: int
    skewed: bool
    gradient: bool = False

    @property
    def products(self) -> int:
        """Multiply-adds."""
        return self.m * self.k * self.n


# Elements, of results, and the precision that is asked for.
DTYPES: dict[str, tuple[str, str, Any]] = {
    "bf16": ("bfloat16", "bfloat16", None),
    "tf32": ("float32", "float32", None),
    "e4m3": ("float8_e4m3fn", "bfloat16", None),
    "e4m3_fast": ("float8_e4m3fn", "bfloat16", jax.lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM),
}

OF_ROWS = jax.lax.RaggedDotDimensionNumbers((((1,), (1,)), ((), ())), [0], [0])
OF_GRADIENT = jax.lax.RaggedDotDimensionNumbers((((0,), (0,)), ((), ())), [0], [])

# (experts, model's width, columns of gate and up)
MODELS = {
    "mixtral_8x7b": (8, 4096, 28672),
    "dbrx": (16, 6144, 21504),
    "olmoe": (64, 2048, 2048),
    "qwen2_57b": (64, 3584, 5120),
    "qwen3_235b": (128, 4096, 3072),
    "deepseek_v3": (256, 7168, 4096),
}
# Tokens a group on average.
DECODING, TRAINING = (
    {"mixtral_8x7b": 8, "dbrx": 16, "olmoe": 64, "qwen2_57b": 4, "qwen3_235b": 8, "deepseek_v3": 2},
    {
        "mixtral_8x7b": 4096,
        "dbrx": 2048,
        "olmoe": 2048,
        "qwen2_57b": 1024,
        "qwen3_235b": 1024,
        "deepseek_v3": 1024,
    },
)


def rows() -> list[Row]:
    """All of them."""
    all_rows = []
    for name, (groups, k, n) in MODELS.items():
        for phase, tokens in (("decoding", DECODING[name]), ("training", TRAINING[name])):
            for skewed in (False, True):
                all_rows.append(Row(f"{name} {phase}", groups, groups * tokens, k, n, skewed))
    for name in ("mixtral_8x7b", "olmoe", "qwen3_235b"):
        groups, k, n = MODELS[name]
        all_rows += [
            Row(f"{name} gradient", groups, groups * TRAINING[name], k, n, skewed, True) for skewed in (False, True)
        ]
    return all_rows


def sizes_of(row: Row) -> np.ndarray:
    """Rows of each group: as many, or by fourth powers of random numbers."""
    if not row.skewed:
        return np.full(row.groups, row.m // row.groups, np.int32)
    weights = np.random.default_rng(0).random(row.groups) ** 4
    sizes = np.floor(weights / weights.sum() * row.m).astype(np.int32)
    sizes[np.argmax(sizes)] += row.m - sizes.sum()
    return sizes


def repeats(row: Row) -> int:
    """Products of one program: of short ones several."""
    bytes_read = 2 * (row.m * row.k + (0 if row.gradient else row.groups * row.k * row.n))
    microseconds = max(bytes_read / 4e6, row.products / 3.5e8)
    return max(1, min(8, math.ceil(400 / microseconds)))


def median_us(run: Callable[[], Any], wait: Callable[[Any], Any], products: int, seconds: float) -> float:
    """Microseconds of a product: the median of some dozen batches of calls, each waited for."""
    wait(run())
    begin = time.perf_counter()
    wait(run())
    once = time.perf_counter() - begin
    calls = max(1, min(50, int(seconds / 10 / max(once, 1e-5))))
    times = []
    for _ in range(max(3, min(12, int(seconds / max(once * calls, 1e-5))))):
        begin = time.perf_counter()
        for _ in range(calls):
            last = run()
        wait(last)
        times.append((time.perf_counter() - begin) / calls / products * 1e6)
    return statistics.median(times)


def jax_contender(row: Row, count: int, operands: Any, function: Callable[..., Any]) -> tuple[Any, Any]:
    """A jitted program of `count` products of operands that XLA takes for different ones."""
    dimensions = OF_GRADIENT if row.gradient else OF_ROWS

    def program(x: Any, y: Any, sizes: Any) -> Any:
        outs = []
        for _ in range(count):
            out = function(x, y, sizes, dimensions)
            outs.append(out[(0,) * out.ndim])
            sizes, _ = jax.lax.optimization_barrier((sizes, out))
        return outs, out

    compiled = jax.jit(program).lower(*operands).compile()
    return (lambda: compiled(*operands)), jax.block_until_ready


def torch_contender(row: Row, count: int, arrays: Any) -> tuple[Any, Any] | None:
    """torch._grouped_mm in a CUDA graph; None without torch, or where it refuses."""
    try:
        import torch
    except ImportError:
        return None
    x, y, sizes = (torch.from_dlpack(array) for array in arrays)
    offsets = torch.cumsum(sizes, 0).to(torch.int32)
    a = x.t() if row.gradient else x
    outs = []

    def run() -> Any:
        outs.clear()
        for _ in range(count):
            outs.append(torch._grouped_mm(a, y, offs=offsets))
        return outs

    try:
        run()
    except RuntimeError as error:
        print("torch:", str(error)[:200])
        return None
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> Any:
        graph.replay()
        return outs[-1]

    return replay, lambda _: torch.cuda.synchronize()


def functions_of(row: Row, dtype: str) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Ours and XLA's, of (x, y, sizes, dimensions)."""
    if dtype == "bf16":
        return jax_moye.ragged_dot_general, jax.lax.ragged_dot_general
    _, out, precision = DTYPES[dtype]
    scales = {}
    if dtype.startswith("e4m3"):
        scales = {"lhs_scale": jnp.ones((row.m,)), "rhs_scale": jnp.ones((row.groups, row.n))}

    def ours(x: Any, y: Any, sizes: Any, _: Any) -> Any:
        options: dict[str, Any] = {"precision": precision, "preferred_element_type": out}
        return jax_moye.ragged_dot(x, y.swapaxes(1, 2), sizes, **options, **scales)

    def xlas(x: Any, y: Any, sizes: Any, _: Any) -> Any:
        return jax.lax.ragged_dot(x, y.swapaxes(1, 2), sizes, precision, out)

    return ours, xlas


def measure(row: Row, seconds: float, with_xla: bool, with_configs: bool, dtype: str = "bf16") -> dict[str, Any]:
    """One row: microseconds of each contender."""
    keys = jax.random.split(jax.random.key(0), 2)
    y_shape = (row.m, row.n) if row.gradient else (row.groups, row.k, row.n)
    if dtype != "bf16":
        y_shape = (row.groups, row.n, row.k)
    x = jax.random.normal(keys[0], (row.m, row.k), jnp.bfloat16).astype(DTYPES[dtype][0])
    y = jax.random.normal(keys[1], y_shape, jnp.bfloat16).astype(DTYPES[dtype][0])
    sizes = jnp.asarray(sizes_of(row))
    operands, count = (x, y, sizes), repeats(row)
    ours, xlas = functions_of(row, dtype)
    contenders: dict[str, Any] = {"moye": jax_contender(row, count, operands, ours)}
    if dtype != "bf16":
        of_bf16 = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16), sizes
        in_bf16 = jax_contender(row, count, of_bf16, lambda x, y, sizes, _: jax_moye.ragged_dot(x, y.mT, sizes))
        contenders["moye_bf16"] = in_bf16
    name = row.name + (", skewed" if row.skewed else "")
    result: dict[str, Any] = row._asdict() | {"name": name, "products_a_program": count}
    if with_configs and dtype == "bf16":
        for config in grouped_configs():
            if config.dtype == "bf16" and config.name in (built("cuda") or ()):
                function = functools.partial(jax_moye.ragged_dot_general, config=config.name)
                name = config.name.removeprefix("sm90_grouped_bf16_").split("x64_")[0]
                contenders[name] = jax_contender(row, count, operands, function)
    if with_xla:
        try:
            contenders["xla"] = jax_contender(row, 1, operands, xlas)
            jax.block_until_ready(contenders["xla"][0]())
        except Exception as error:  # out of memory, most of all
            contenders.pop("xla", None)
            result["xla_error"] = str(error).splitlines()[0][:200]
    if dtype == "bf16" and (of_torch := torch_contender(row, count, operands)) is not None:
        contenders["torch"] = of_torch
    values = {}
    for name, (run, wait) in contenders.items():
        value = run()
        wait(value)
        value = value[1] if name != "torch" else value
        values[name] = (
            np.asarray(jnp.from_dlpack(value) if name == "torch" else value).reshape(-1)[::4099].astype(np.float32)
        )
    scale = np.abs(values["moye"]).max()
    result["differs"] = {name: float(np.abs(value - values["moye"]).max() / scale) for name, value in values.items()}
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(3):
        for name, (run, wait) in contenders.items():
            times[name].append(median_us(run, wait, 1 if name == "xla" else count, seconds))
    result["us"] = {name: statistics.median(of_name) for name, of_name in times.items()}
    return result


def measure_permuted(row: Row, seconds: float) -> dict[str, Any]:
    """Microseconds of a product whose rows a kernel stores by indices, and of one that XLA moves them for."""
    keys = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(keys[0], (row.m, row.k), jnp.bfloat16)
    y = jax.random.normal(keys[1], (row.groups, row.k, row.n), jnp.bfloat16)
    sizes, order = jnp.asarray(sizes_of(row)), jax.random.permutation(keys[2], row.m)
    inverse, count = jnp.argsort(order), repeats(row)
    ways: dict[str, Callable[..., Any]] = {
        "stores": lambda x, y, sizes, _: jax_moye.ragged_dot(x, y, sizes, permutation=order),
        "scatter": lambda x, y, sizes, _: jax_moye.ragged_dot(x, y, sizes)[inverse],
        "in_order": lambda x, y, sizes, _: jax_moye.ragged_dot(x, y, sizes),
    }
    contenders = {name: jax_contender(row, count, (x, y, sizes), fun) for name, fun in ways.items()}
    values = {name: np.asarray(run()[1]) for name, (run, _) in contenders.items()}
    assert (values["stores"] == values["scatter"]).all(), f"{row.name}: stores and scatter differ"
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(3):
        for name, (run, wait) in contenders.items():
            times[name].append(median_us(run, wait, count, seconds))
    us = {name: statistics.median(of_name) for name, of_name in times.items()}
    return row._asdict() | {"products_a_program": count, "us": us, "ratio": us["scatter"] / us["stores"]}


def main() -> None:
    """Measures, prints a table, and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="a file for the results as JSON")
    parser.add_argument("--rows", default="", help="a regular expression: only rows whose names it is found in")
    parser.add_argument("--seconds", type=float, default=0.2, help="of each contender of a row, three times")
    parser.add_argument("--xla", default="", help="a regular expression: rows that XLA computes, too")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16", help="of the operands")
    parser.add_argument("--configs", action="store_true", help="each of our configs by itself, too")
    parser.add_argument("--permuted", action="store_true", help="rows stored by indices, and moved by XLA")
    args = parser.parse_args()
    results = []
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, jax_moye {jax_moye.__version__}")
    print("row, groups m k n: microseconds; the fastest other one over ours")
    for row in rows():
        if not re.search(args.rows, row.name) or (args.dtype != "bf16" and row.gradient):
            continue
        if args.permuted:
            if not row.gradient:
                results.append(measure_permuted(row, args.seconds))
                times = "  ".join(f"{name} {value:9.1f}" for name, value in results[-1]["us"].items())
                what = f"{row.name:24} {'skew' if row.skewed else 'even'}"
                print(f"{what}  {times}  {results[-1]['ratio']:.2f}", flush=True)
            continue
        result = measure(row, args.seconds, bool(re.search(args.xla, row.name)), args.configs, args.dtype)
        results.append(result)
        us = result["us"]
        others = [us[name] for name in ("xla", "torch", "moye_bf16") if name in us]
        result["ratio"] = min(others) / us["moye"] if others else None
        tflops = 2 * row.products / us["moye"] / 1e6
        what = f"{row.name:24} {'skew' if row.skewed else 'even'} {row.groups:4} {row.m:7} {row.k:5} {row.n:6}"
        times = "  ".join(f"{name} {value:9.1f}" for name, value in us.items())
        ratio = f"{result['ratio']:.2f}" if others else "-"
        print(f"{what}  {times}  {ratio}  {tflops:5.0f} TFLOP/s {result.get('xla_error', '')}", flush=True)
    ratios = [result["ratio"] for result in results if result["ratio"]]
    if ratios:
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        print(f"{len(ratios)} rows: geometric mean {mean:.3f}, worst {min(ratios):.3f}")
    if args.out:
        found = {
            "about": "products of groups"
            + (", rows moved" if args.permuted else ": jax_moye.ragged_dot_general, jax.lax's and torch._grouped_mm"),
            "how": f"microseconds of a product, medians of three turns, normal random numbers in {args.dtype}",
            "gpu": jax.devices()[0].device_kind,
            "jax": jax.__version__,
            "emulated": False,
            "date": datetime.date.today().isoformat(),
            "runs": results,
        }
        with open(args.out, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
