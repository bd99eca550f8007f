"""Times attention on this GPU: as XLA computes it, under jax_moye.optimize, and by torch, where torch is.

    python benchmarks/attention.py [--out results.json] [--rows REGEX] [--dtype bfloat16] [--seconds 0.1]

Rows are attentions of published models: prefill and training, causal or not, decoding of one token with a cache,
images. A gradient is the forward pass and all three gradients in one program, from the plain JAX that stands in
`attention`. float32 has the default precision, which is TF32. All contenders read the same normal random numbers, in
turns. torch has its two fused backends. Results are compared with XLA's; tests compare them with float64.
"""

from __future__ import annotations

import argparse
import datetime
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


class Row(NamedTuple):
    """An attention.

    Attributes:
      name: the model, and what it is in.
      batch: sequences.
      heads: of the queries.
      q_rows: tokens that ask.
      kv_rows: tokens that are asked.
      head_dim: elements of a head.
      is_causal: whether a token asks those before it alone.
      gradient: also the gradients to queries, keys and values.
    """

    name: str
    batch: int
    heads: int
    q_rows: int
    kv_rows: int
    head_dim: int
    is_causal: bool
    gradient: bool = False

    @property
    def products(self) -> float:
        """Multiply-adds that count: two products, and five more for the gradients."""
        pairs = self.q_rows * self.kv_rows
        if self.is_causal:
            pairs -= self.q_rows * (self.q_rows - 1) / 2
        return self.batch * self.heads * pairs * self.head_dim * (7 if self.gradient else 2)


FORWARD = (
    Row("llama3_8b prefill", 4, 32, 2048, 2048, 128, True),
    Row("llama3_8b prefill long", 1, 32, 8192, 8192, 128, True),
    Row("llama2_7b prefill short", 16, 32, 256, 256, 128, True),
    Row("gpt2_xl prefill", 8, 25, 1024, 1024, 64, True),
    Row("opt_2.7b prefill", 4, 32, 2048, 2048, 80, True),
    Row("phi_2 prefill", 4, 32, 1000, 1000, 80, True),
    Row("bert_large", 32, 16, 384, 384, 64, False),
    Row("vit_b16", 128, 12, 197, 197, 64, False),
    Row("vit_h14", 32, 16, 257, 257, 80, False),
    Row("whisper_large encoder", 8, 20, 1500, 1500, 64, False),
    Row("sdxl pixels to text", 8, 10, 4096, 77, 64, False),
    Row("sdxl pixels", 8, 20, 1024, 1024, 64, False),
    Row("llama2_7b decoding", 16, 32, 1, 1024, 128, False),
    Row("llama2_7b decoding long", 4, 32, 1, 8192, 128, False),
    Row("llama2_7b decoding alone", 1, 32, 1, 4096, 128, False),
    Row("gemma2_9b prefill", 2, 16, 4096, 4096, 256, True),
    Row("gemma_2b decoding", 16, 8, 1, 2048, 256, False),
    Row("gemma2_9b decoding alone", 1, 16, 1, 8192, 256, False),
    Row("gpt2_xl decoding", 32, 25, 1, 512, 64, False),
    Row("swin windows", 1024, 3, 49, 49, 32, False),
    Row("clip text", 64, 8, 77, 77, 64, True),
    Row("bert_base one sentence", 1, 12, 128, 128, 64, False),
    Row("t5_small", 8, 8, 64, 64, 64, False),
    Row("tiny", 2, 4, 64, 64, 64, True),
)
GRADIENTS = (
    Row("llama2_7b training", 2, 32, 2048, 2048, 128, True, True),
    Row("transformer training", 8, 16, 1024, 1024, 128, True, True),
    Row("gemma2_9b training", 2, 16, 2048, 2048, 256, True, True),
    Row("wide heads training", 4, 16, 1024, 1024, 256, False, True),
    Row("gpt2 training", 16, 12, 1024, 1024, 64, True, True),
    Row("gpt2_xl training", 8, 25, 1024, 1024, 64, True, True),
    Row("opt_2.7b training", 2, 32, 2048, 2048, 80, True, True),
    Row("bert_large training", 32, 16, 384, 384, 64, False, True),
    Row("vit_b16 training", 128, 12, 197, 197, 64, False, True),
    Row("vit_h14 training", 32, 16, 257, 257, 80, False, True),
    Row("sdxl pixels to text training", 4, 10, 4096, 77, 64, False, True),
    Row("swin windows training", 1024, 3, 49, 49, 32, False, True),
    Row("clip text training", 64, 8, 77, 77, 64, True, True),
    Row("t5_small training", 8, 8, 64, 64, 64, False, True),
    Row("tiny training", 2, 4, 64, 64, 64, True, True),
)


def attention(row: Row) -> Callable[..., Any]:
    """In plain JAX, of (batch, rows, heads, head_dim)."""

    def forward(q: Any, k: Any, v: Any) -> Any:
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * row.head_dim**-0.5
        if row.is_causal:
            shape = row.q_rows, row.kv_rows
            scores = jnp.where(jnp.tril(jnp.ones(shape, bool), row.kv_rows - row.q_rows), scores, -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)

    def gradients(q: Any, k: Any, v: Any, d_o: Any) -> Any:
        out, pullback = jax.vjp(forward, q, k, v)
        return out, *pullback(d_o)

    return gradients if row.gradient else forward


def operands(row: Row, dtype: str, seed: int) -> list[jax.Array]:
    """q, k, v, and the cotangent of the result."""
    keys = jax.random.split(jax.random.key(seed), 4)
    rows = [row.q_rows, row.kv_rows, row.kv_rows, row.q_rows][: 4 if row.gradient else 3]
    return [
        jax.random.normal(key, (row.batch, number, row.heads, row.head_dim), dtype)
        for key, number in zip(keys, rows, strict=False)
    ]


def median_us(run: Callable[[], Any], wait: Callable[[Any], Any], count: int, seconds: float) -> float:
    """Microseconds of one of `count`: the median of some batches of calls, each waited for."""
    begin = time.perf_counter()
    wait(run())
    once = max(time.perf_counter() - begin, 1e-5)
    calls = max(1, min(50, int(seconds / 8 / once)))
    times = []
    for _ in range(max(3, min(9, int(seconds / (once * calls))))):
        begin = time.perf_counter()
        for _ in range(calls):
            last = run()
        wait(last)
        times.append((time.perf_counter() - begin) / calls / count * 1e6)
    return statistics.median(times)


def jax_contender(function: Callable[..., Any], arrays: list[list[jax.Array]]) -> tuple[Any, Any]:
    """A program of several attentions, each of operands of its own."""
    compiled = jax.jit(lambda sets: [function(*one) for one in sets]).lower(arrays).compile()
    return (lambda: compiled(arrays)), jax.block_until_ready


def torch_contender(row: Row, arrays: list[list[jax.Array]], backend: str) -> tuple[Any, Any] | None:
    """A fused backend of torch in a CUDA graph; None without torch, or where it refuses."""
    try:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
    except ImportError:
        return None
    sets = [[torch.from_dlpack(array).transpose(1, 2) for array in one] for one in arrays]
    if row.gradient:
        sets = [[*(x.detach().requires_grad_() for x in one[:3]), one[3]] for one in sets]
    of_torch = torch.nn.functional.scaled_dot_product_attention

    def attend(q: Any, k: Any, v: Any, *d_o: Any) -> Any:
        out = of_torch(q, k, v, is_causal=row.is_causal)
        return (out, *torch.autograd.grad(out, (q, k, v), d_o[0])) if row.gradient else out

    try:
        with sdpa_kernel(getattr(SDPBackend, backend)):
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                for _ in range(2):
                    attend(*sets[0])
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                outs = [attend(*one) for one in sets]
    except RuntimeError:
        return None

    def replay() -> Any:
        graph.replay()
        return outs[-1]

    return replay, lambda _: torch.cuda.synchronize()


def measure(row: Row, dtype: str, seconds: float, with_torch: bool) -> dict[str, Any]:
    """One row: microseconds of each contender."""
    function, first = attention(row), operands(row, dtype, 0)
    expected = max(row.products / 2e8, sum(x.nbytes for x in first) / 3e6, 5)
    count = max(1, min(16, math.ceil(300 / expected)))
    arrays = [first, *(operands(row, dtype, seed) for seed in range(1, count))]
    contenders: dict[str, Any] = {
        "xla": jax_contender(function, arrays),
        "moye": jax_contender(jax_moye.optimize(function), arrays),
    }
    results = [jax.tree.leaves(jax.block_until_ready(contenders[name][0]()[0])) for name in ("xla", "moye")]
    differs = []
    for theirs, ours in zip(*results, strict=True):
        x, y = (np.asarray(value[0], np.float32) for value in (theirs, ours))
        differs.append(float(np.linalg.norm(x - y) / np.linalg.norm(x)))
    for backend in ("FLASH_ATTENTION", "CUDNN_ATTENTION") if with_torch else ():
        if (of_torch := torch_contender(row, arrays, backend)) is not None:
            contenders["torch_" + backend.split("_")[0].lower()] = of_torch
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(3):
        for name, (run, wait) in contenders.items():
            times[name].append(median_us(run, wait, count, seconds))
    us = {name: statistics.median(of_name) for name, of_name in times.items()}
    ratio = us["xla"] / us["moye"]
    return row._asdict() | {"attentions_a_program": count, "differs": differs, "us": us, "ratio": ratio}


def main() -> None:
    """Measures, prints a table, and writes JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", help="a file for the results as JSON")
    parser.add_argument("--rows", default="", help="a regular expression: only rows whose names it is found in")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"], help="of all arrays")
    parser.add_argument("--seconds", type=float, default=0.1, help="of each contender of a row, three times")
    parser.add_argument("--no-torch", action="store_true", help="without torch")
    args = parser.parse_args()
    results = []
    print(f"{jax.devices()[0].device_kind}, jax {jax.__version__}, jax_moye {jax_moye.__version__}")
    print("row, batch heads q_rows kv_rows head_dim: microseconds; XLA's over ours; how results differ from XLA's")
    for row in (*FORWARD, *GRADIENTS):
        if not re.search(args.rows, row.name):
            continue
        result = measure(row, args.dtype, args.seconds, not args.no_torch)
        results.append(result)
        what = f"{row.name:29} {row.batch:4} {row.heads:3} {row.q_rows:5} {row.kv_rows:5} {row.head_dim:4}"
        times = "  ".join(f"{name} {value:9.1f}" for name, value in result["us"].items())
        tflops = 2 * row.products / result["us"]["moye"] / 1e6
        differs = " ".join(f"{x:.4f}" for x in result["differs"])
        print(f"{what}  {times}  {result['ratio']:.2f}  {tflops:5.0f} TFLOP/s  {differs}", flush=True)
    for what, chosen in (("forward", False), ("gradients", True)):
        ratios = [result["ratio"] for result in results if result["gradient"] == chosen]
        if ratios:
            mean = math.exp(statistics.fmean(map(math.log, ratios)))
            print(f"{what}, {len(ratios)} rows: geometric mean {mean:.3f}, worst {min(ratios):.3f}")
    if args.out:
        found = {
            "about": "attention: XLA, jax_moye.optimize and torch's fused backends",
            "how": "microseconds of an attention, medians of three turns, normal random numbers in "
            f"{args.dtype}; gradients with the forward pass; ratio: XLA's time over ours",
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
