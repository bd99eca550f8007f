"""What jax_moye costs on the host: tracing and lowering a train step, an eager call, and the call's FFI handler.

    python benchmarks/host_costs.py

The handlers are benchmarks/host_costs.cc, compiled with g++ when this runs. Times are CPU time of this process, so that
other programs on the machine disturb them little; every figure is the smallest of several repeats.

    python benchmarks/host_costs.py --gpu handlers.json

times the CUDA handlers instead, with all that they do in the driver: tensor maps, queries, the launch. It needs a GPU.
Every execution of a handler inside of programs of 200 calls is timed by itself, between two readings of a clock; XLA's
command buffers are off, which would call a handler once and replay its launch.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import json
import os
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
from jax_moye._kernels import ffi
from jax_moye._kernels.dtypes import numpy_dtype
from jax_moye._selection.problem import GemmProblem, make_problem
from jax_moye._selection.ranking import select

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


def build_handlers(folder: pathlib.Path, level: str = "-O2") -> ctypes.CDLL:
    """Compiles host_costs.cc."""
    root, library = pathlib.Path(__file__).parents[1], folder / "host_costs.so"
    include = [f"-I{root / 'ffi'}", f"-I{root / 'cuda'}", "-isystem", jax.ffi.include_dir()]
    source = root / "benchmarks" / "host_costs.cc"
    subprocess.run(["g++", "-std=c++20", level, "-fPIC", "-shared", *include, source, "-o", library], check=True)
    return ctypes.CDLL(str(library))


def build_empty_launch(folder: pathlib.Path) -> ctypes.CDLL:
    """Compiles empty_launch.cu."""
    source, library = pathlib.Path(__file__).with_name("empty_launch.cu"), folder / "empty_launch.so"
    options = ["-std=c++20", "-O2", "-arch=native", "-shared", "-Xcompiler", "-fPIC", "-isystem", jax.ffi.include_dir()]
    subprocess.run(["nvcc", *options, source, "-o", library], check=True)
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
    dtype = numpy_dtype(jax_moye.configs()[0].dtype)
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


# What --gpu times: a target, a row of the table, the sizes (batch, m, n, k), and the operands of the epilogue. Both
# matrices are contiguous along k; where that is odd, a kernel packs them first.
ON_A_GPU = (
    (ffi.TARGET, "sm90_pingpong_bf16_128x128x64_s5_a16", (1, 128, 128, 128), ""),
    (ffi.TARGET, "sm90_cooperative_bf16_128x256x64_s4_c2x1_a16", (1, 128, 128, 128), ""),
    (ffi.TARGET, "sm90_cooperative_bf16_128x256x64_s4_a2", (1, 128, 128, 127), ""),
    (ffi.TARGET, "sm80_multistage_bf16_128x128x32_s4_a16", (1, 128, 128, 128), ""),
    (ffi.FUSED_TARGET, "sm90_pingpong_bf16_128x128x64_s5_a16", (1, 128, 128, 128), "c,bias"),
)


def handler_on_gpu_us(
    library: ctypes.CDLL, launches: ctypes.CDLL, calls: int = 200, programs: int = 20
) -> list[dict[str, Any]]:
    """Microseconds of the executions of the CUDA handlers, of an empty one, and of one that launches an empty kernel.

    Each is called in `programs` runs of a program of `calls` calls, after two that warm up.
    """
    size = 128  # one tile or a few: the GPU keeps up with the host
    int64s = functools.partial(np.array, dtype=np.int64)
    handlers = ffi.extension("cuda").handlers()  # type: ignore[union-attr]
    library.time_handler.argtypes = [ctypes.c_void_p]
    library.timed_quantile.restype, library.timed_quantile.argtypes = ctypes.c_double, [ctypes.c_double]
    get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    get_name = ctypes.pythonapi.PyCapsule_GetName
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]

    def pointer(handler: Any) -> int:
        capsule = handler["execute"] if isinstance(handler, dict) else handler
        return get_pointer(capsule, get_name(capsule))

    def measure(what: dict[str, Any], handler: int, operands: list[jax.Array], scratch: int, attributes: Any) -> None:
        name = f"timed_{len(found)}"
        library.time_handler(handler)  # now: registering asks the handler what it is
        jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(library.Timed), platform="CUDA")
        results = (jax.ShapeDtypeStruct((size, size), jnp.bfloat16), jax.ShapeDtypeStruct((scratch,), jnp.uint8))
        call = jax.ffi.ffi_call(name, results)

        def fun(*operands):
            out = operands[0]
            for _ in range(calls):
                out, _ = call(out, *operands[1:], **attributes)
            return out

        compiled = jax.jit(fun).lower(*operands).compile()
        for run in range(programs + 2):
            if run == 2:
                library.time_handler(handler)
            compiled(*operands).block_until_ready()
        quantiles = {"least": 0.0, "median": 0.5, "p90": 0.9}
        found.append(what | {key: round(library.timed_quantile(q), 3) for key, q in quantiles.items()})

    found: list[dict[str, Any]] = []
    a = jnp.zeros((size, size), jnp.bfloat16)
    measure({"target": "empty"}, pointer(jax.ffi.pycapsule(library.Empty)), [a, a], 0, {})
    measure({"target": "empty launch"}, pointer(jax.ffi.pycapsule(launches.EmptyLaunch)), [a, a], 0, {})
    for target, config, sizes, names in ON_A_GPU:
        along_k, d_strides = [0, sizes[3], 1], [0, size, 1]
        attributes = dict(config=config, sizes=int64s(sizes))
        attributes |= dict(a_strides=int64s(along_k), b_strides=int64s(along_k), d_strides=int64s(d_strides))
        operands = [a, a]
        if target == ffi.FUSED_TARGET:
            epilogue = dict(activation="gelu_tanh", alpha=np.float64(1), beta=np.float64(1), operands=names)
            epilogue |= dict(c_strides=int64s(d_strides), bias_strides=int64s([0, 0, 1]))
            attributes |= epilogue | dict(residual_strides=int64s([0, 0, 0]))
            operands += [a, jnp.zeros((size,), jnp.bfloat16)]
        module = ffi.extension("cpu")
        scratch = module.workspace_bytes(config, sizes, along_k, along_k, d_strides, "bf16")  # type: ignore[union-attr]
        what = dict(target=target, config=config, sizes=sizes, operands=names)
        measure(what, pointer(handlers[target]), operands, scratch, attributes)
    return found


def main_on_gpu(path: pathlib.Path) -> None:
    """Times the CUDA handlers and writes what it finds to `path`, a JSON file."""
    flags = os.environ.get("XLA_FLAGS", "")
    os.environ["XLA_FLAGS"] = f"{flags} --xla_gpu_enable_command_buffer=".strip()  # read when the backend starts
    device = jax.devices()[0]
    if device.platform != "gpu":
        raise SystemExit("host_costs.py --gpu: JAX sees no GPU")
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        found = handler_on_gpu_us(build_handlers(place), build_empty_launch(place))
    report = {
        "gpu": device.device_kind,
        "jax": jax.__version__,
        "xla_flags": os.environ["XLA_FLAGS"],
        "handlers": found,
    }
    path.write_text(json.dumps(report, indent=1) + "\n")
    empty = found[0]["median"]
    print(f"{report['gpu']}, jax {report['jax']}: an empty handler {empty:.2f} us")
    for row in found[1:]:
        what = " ".join(filter(None, (row["target"], row.get("config"), row.get("operands"))))
        print(f"{what}: median {row['median']:.2f} us, beyond: {row['median'] - empty:.2f}, p90 {row['p90']:.2f}")


def main() -> None:
    """Prints the table of docs/performance.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--gpu", type=pathlib.Path, metavar="FILE", help="time the CUDA handlers and write this file")
    arguments = parser.parse_args()
    if arguments.gpu:
        return main_on_gpu(arguments.gpu)
    repeats = arguments.repeats
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
    for empty, ours, target in (("Empty", "Decode", ffi.TARGET), ("EmptyFused", "DecodeFused", ffi.FUSED_TARGET)):
        beyond = us[ours] - us[empty]
        print(
            f"handler {target} before the launch: {us[ours]:.2f} us, an empty one {us[empty]:.2f}, beyond: {beyond:.2f}"
        )


if __name__ == "__main__":
    main()
