"""What jax_moye costs on the host: tracing and lowering a train step, an eager call, and the call's FFI handler.

    python benchmarks/host_costs.py

The handlers are benchmarks/host_costs.cc, compiled with g++ when this runs. Times are CPU time of this process, so that
other programs on the machine disturb them little; every figure is the smallest of several repeats. Nothing here needs a
GPU, and nothing here says what a launch on one costs.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import pathlib
import platform
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_moye
from jax_moye import _ffi
from jax_moye.problem import GemmProblem, make_problem
from jax_moye.select import select

LAYERS, WIDTH, BATCH = 12, 256, 64
MATRICES = (((1,), (0,)), ((), ()))


def smallest(fun: Callable[[], Any], repeats: int) -> float:
    """The least CPU time of `fun`, in seconds."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        fun()
        times.append(time.process_time() - start)
    return min(times)


def train_step(dot_general: Callable[..., Any], params: Any, x: Any, y: Any) -> Any:
    """One step of gradient descent of an MLP; params: pairs of (WIDTH, WIDTH) and (WIDTH,), x, y (B, WIDTH)."""

    def loss(params):
        h = x
        for w, b in params:
            h = jnp.tanh(dot_general(h, w, MATRICES) + b)
        return jnp.mean((h - y) ** 2)

    value, gradients = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def trace_and_lower(dot_general: Callable[..., Any], target: str) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Two functions: one that traces the train step, and one that traces and lowers it for `target`."""
    params = [(jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.bfloat16), jax.ShapeDtypeStruct((WIDTH,), jnp.bfloat16))]
    x = jax.ShapeDtypeStruct((BATCH, WIDTH), jnp.bfloat16)

    def trace() -> Any:
        # A new function each time: jit keeps what it has traced.
        return jax.jit(lambda *args: train_step(dot_general, *args)).trace(params * LAYERS, x, x)

    return trace, lambda: trace().lower(lowering_platforms=(target,))


def ratio_of_train_steps(target: str = "cuda", repeats: int = 5) -> dict[str, float]:
    """CPU seconds of tracing, and of tracing and lowering, with lax.dot_general and with ours."""
    ours = functools.partial(jax_moye.dot_general, implementation="moye", interpret=True if target == "cpu" else None)
    seconds = {}
    for name, dot_general in (("lax", lax.dot_general), ("jax_moye", ours)):
        trace, lower = trace_and_lower(dot_general, target)
        lower()  # imports, and caches that live as long as the process
        seconds[f"{name} trace"] = smallest(trace, repeats)
        seconds[f"{name} trace and lower"] = smallest(lower, repeats)
    return seconds


def selection_us(problems: int = 300) -> dict[str, float]:
    """CPU microseconds of a selection among all rows of bf16: of new problems, and of one that is kept."""
    table = jax_moye.configs()

    def problem(m: int) -> GemmProblem:
        return make_problem("mk,kn->mn", (8 * m, 4096), (4096, 4096), "bf16", "bf16")

    select(problem(1), 90, table)  # what is kept of the table
    of_new = []
    for m in range(2, 2 + problems):
        new = problem(m)
        start = time.thread_time()
        select(new, 90, table)
        of_new.append(time.thread_time() - start)
    kept = problem(2)
    return {
        "new": min(of_new) * 1e6,
        "median of new": sorted(of_new)[problems // 2] * 1e6,
        "kept": smallest(lambda: [select(kept, 90, table) for _ in range(1000)], 5) * 1e3,
    }


def eager_call(fun: Callable[..., Any], *operands: Any, calls: int = 300) -> float:
    """CPU microseconds of one eager call, until the result is there."""

    def many() -> None:
        for _ in range(calls):
            out = fun(*operands)
        out.block_until_ready()

    many()
    return smallest(many, 5) / calls * 1e6


def build_handlers(folder: pathlib.Path) -> ctypes.CDLL:
    """Compiles host_costs.cc."""
    root, library = pathlib.Path(__file__).parents[1], folder / "host_costs.so"
    include = [f"-I{root / 'ffi'}", f"-I{root / 'cuda'}", "-isystem", jax.ffi.include_dir()]
    source = root / "benchmarks" / "host_costs.cc"
    subprocess.run(["g++", "-std=c++20", "-O2", "-fPIC", "-shared", *include, source, "-o", library], check=True)
    return ctypes.CDLL(str(library))


def handler_us(library: ctypes.CDLL, calls: int = 200) -> dict[str, float]:
    """CPU microseconds of one call inside a compiled program, for each of the handlers of host_costs.cc.

    Programs of `calls` calls in a row are timed, each with the result before as an operand, against one of one call.
    """
    size = 8
    int64s = functools.partial(np.array, dtype=np.int64)
    gemm = dict(
        config=jax_moye.configs()[0].name,
        sizes=int64s([1, size, size, size]),
        a_strides=int64s([0, size, 1]),
        b_strides=int64s([0, 1, size]),
        d_strides=int64s([0, size, 1]),
    )
    none = int64s([0, 0, 0])
    epilogue = dict(activation="none", alpha=np.float64(1), beta=np.float64(1), operands="c", c_strides=none + 1)
    epilogue |= dict(bias_strides=none, residual_strides=none)
    dtype = {"f64": jnp.float64, "bf16": jnp.bfloat16, "f16": jnp.float16}.get(jax_moye.configs()[0].dtype, jnp.float32)
    a = jnp.ones((size, size), dtype)
    results = (jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct((0,), jnp.uint8))

    def program(name: str, operands: int, attributes: dict[str, Any], length: int) -> Callable[[], Any]:
        call = jax.ffi.ffi_call(name, results)

        def fun(a):
            out = a
            for _ in range(length):
                out, _ = call(*[out, a, a][:operands], **attributes)
            return out

        compiled = jax.jit(fun).lower(a).compile()
        return lambda: [compiled(a) for _ in range(20)][-1].block_until_ready()

    times = {}
    for handler, operands, attributes in (
        ("Empty", 2, {}),
        ("Decode", 2, gemm),
        ("EmptyFused", 3, {}),
        ("DecodeFused", 3, gemm | epilogue),
    ):
        jax.ffi.register_ffi_target(handler, jax.ffi.pycapsule(getattr(library, handler)), platform="cpu")
        one, many = (program(handler, operands, attributes, length) for length in (1, calls))
        one(), many()
        times[handler] = (smallest(many, 10) - smallest(one, 10)) / 20 / (calls - 1) * 1e6
    return times


def main() -> None:
    """Prints the table of docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    repeats = parser.parse_args().repeats
    print(f"jax {jax.__version__}, Python {platform.python_version()}, CPU time of one process")
    for target in ("cuda", "cpu"):
        seconds = ratio_of_train_steps(target, repeats)
        for what in ("trace", "trace and lower"):
            lax_s, our_s = seconds[f"lax {what}"], seconds[f"jax_moye {what}"]
            step = f"{LAYERS}-layer train step, {what}, for {target}"
            print(f"{step}: lax {lax_s * 1e3:.0f} ms, jax_moye {our_s * 1e3:.0f} ms, ratio {our_s / lax_s:.2f}")
    us = selection_us()
    rows = sum(row.dtype == "bf16" for row in jax_moye.configs())
    print(
        f"selection among {rows} rows: {us['new']:.0f} us of a new problem (median {us['median of new']:.0f}), "
        f"{us['kept']:.2f} us of one that is kept"
    )
    x = jnp.ones((8, 8), jnp.float32)
    for name, fun in (("jnp.matmul", jnp.matmul), ("jax_moye.matmul", jax_moye.matmul)):
        print(f"eager {name} of 8 x 8 on the CPU by XLA: {eager_call(fun, x, x):.1f} us")
    with tempfile.TemporaryDirectory() as folder:
        us = handler_us(build_handlers(pathlib.Path(folder)))
    for empty, ours, target in (("Empty", "Decode", _ffi.TARGET), ("EmptyFused", "DecodeFused", _ffi.FUSED_TARGET)):
        beyond = us[ours] - us[empty]
        print(
            f"handler {target} before the launch: {us[ours]:.2f} us, an empty one {us[empty]:.2f}, beyond: {beyond:.2f}"
        )


if __name__ == "__main__":
    main()
