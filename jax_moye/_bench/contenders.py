"""Who computes the products of a workload beside us, and how each of them is dispatched.

A contender has variants: the same products in a loop on the device and in programs, or Pallas' configs. The fastest one
stands for it. torch's products and cuBLASLt's are captured as CUDA graphs, on the same operands.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jax_moye._bench import cublaslt
from jax_moye._format import error_line
from jax_moye._timing.operands import OperandSets
from jax_moye._timing.programs import compile_all, loop_contender, program_contender
from jax_moye._timing.rounds import Contender
from jax_moye._timing.workloads import Workload

# Which kinds of launches go into CUDA graphs. XLA's default leaves out programs with few of them.
LAUNCHES: dict[str, dict[str, Any]] = {
    "default": {},
    "graph": {
        "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN",
        "xla_gpu_graph_min_graph_size": 1,
    },
    "stream": {"xla_gpu_enable_command_buffer": ""},
}
# What each baseline is, as the report says it.
BASELINES = {
    "xla": "jnp.matmul under jit, XLA's own choice of a kernel",
    "xla_no_triton": "the same, compiled with xla_gpu_enable_triton_gemm=False",
    "torch": "torch.matmul in a CUDA graph",
    "cublaslt": "cuBLASLt in a CUDA graph, the fastest of the first 32 results of its heuristic",
    "pallas": "jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu, the fastest of a few configs",
}
PALLAS = "jax.experimental.pallas.ops.gpu.hopper_matmul_mgpu"
# (rows, columns) of a warpgroup's tile, stages, the dimension along which a CTA's two warpgroups lie, clusters.
PALLAS_CONFIGS = (
    (128, 128, 4, "M", False),
    (128, 128, 4, "N", False),
    (128, 128, 4, "N", True),
    (64, 128, 5, "M", False),
    (64, 64, 6, "N", False),
)


# Variants --------------------------------------------------------------------------------------------------------


def variants(
    name: str, fun: Callable[..., Any], sets: OperandSets, options: dict[str, Any] | None = None
) -> list[Contender]:
    """The ways to dispatch `fun` on all sets, the one that should be faster first."""
    programs = program_contender(name, fun, sets.without_loop(), options)
    return [loop_contender(name, fun, sets, options), programs] if sets.repeats else [programs]


def fastest(of_one: Sequence[Contender]) -> Contender:
    """Of several variants that compute the same."""
    return of_one[0] if len(of_one) == 1 else min(of_one, key=Contender.trial)


def compile_variants(
    wanted: Mapping[str, list[Contender]], own: Callable[[str], bool]
) -> tuple[dict[str, list[Contender]], dict[str, Exception]]:
    """Compiles all variants of all contenders.

    Returns:
      The variants that work, and of contenders without any what went wrong.
    """
    errors: dict[str, Exception] = {}
    compiled: dict[str, list[Contender]] = {name: [] for name in wanted}
    for i in range(max(map(len, wanted.values()))):
        of_all = [of_one[i] for of_one in wanted.values() if len(of_one) > i]
        wrong = compile_all(of_all, own)
        errors = wrong | errors  # of the first variant, which is the one to hear about
        for contender in of_all:
            if contender.name not in wrong:
                compiled[contender.name].append(contender)
    working = {name: of_one for name, of_one in compiled.items() if of_one}
    return working, {name: error for name, error in errors.items() if name not in working}


# Baselines -------------------------------------------------------------------------------------------------------


def importable(name: str) -> bool:
    """Whether a baseline can be had here."""
    module = {"torch": "torch", "pallas": PALLAS}.get(name)
    if module is None:
        return True
    try:
        if name != "pallas":
            return importlib.util.find_spec(module) is not None
        importlib.import_module(module)  # it needs more than JAX's own dependencies
    except ImportError:
        return False
    return True


def jax_baselines(
    workload: Workload, sets: OperandSets, device: Any, names: Sequence[str], options: dict[str, Any]
) -> tuple[dict[str, list[Contender]], dict[str, str]]:
    """The baselines that JAX compiles: the variants of each, and why one has none."""
    program = xla_program(workload)
    found, rejected = {}, {}
    if "xla" in names:
        found["xla"] = variants("xla", program, sets, options)
    if "xla_no_triton" in names:
        no_triton = options | {"xla_gpu_enable_triton_gemm": False}
        found["xla_no_triton"] = variants("xla_no_triton", program, sets, no_triton)
    if "pallas" in names and getattr(device, "compute_capability", "") == "9.0":
        try:
            found["pallas"] = [
                dataclasses.replace(variant, method=f"{variant.method}, {label}")
                for label, fun in pallas_programs(workload).items()
                for variant in variants("pallas", fun, sets, options)
            ]
        except Exception as error:  # a baseline that fails must not hide our own figure
            rejected["pallas"] = error_line(error)
    return found, rejected


def baseline(
    name: str,
    workload: Workload,
    sets: OperandSets,
    device: Any,
    compiled: Mapping[str, list[Contender]],
    errors: Mapping[str, Exception],
) -> Contender | None:
    """The contender of a baseline; None where there is none on this device. Raises what went wrong with it."""
    if name in errors:
        raise errors[name]
    if name in compiled:
        return fastest(compiled[name])
    if device.platform == "gpu" and name == "torch":
        return torch_contender(workload, sets)
    if device.platform == "gpu" and name == "cublaslt":
        return cublaslt.contender(workload, sets, device.local_hardware_id or 0)
    return None


def xla_program(workload: Workload) -> Callable[..., Any]:
    """What a user of JAX would write: `jnp.matmul`, and the epilogue behind it for XLA to fuse."""
    bias, activation, residual = workload.finish
    preferred = workload.result_dtype if workload.result_dtype != workload.operand_dtype else None
    functions: dict[str | None, Callable] = {
        None: lambda z: z,
        "relu": jax.nn.relu,
        "gelu": jax.nn.gelu,
        "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
        "silu": jax.nn.silu,
    }

    def program(a: Any, b: Any, *more: Any) -> Any:
        rest = list(more)
        z = jnp.matmul(a, b, precision=workload.jax_precision, preferred_element_type=preferred)
        z = z + rest.pop(0) if bias else z
        z = functions[activation](z)
        return z + rest.pop(0) if residual else z

    return workload.as_stored(program)


def pallas_programs(workload: Workload) -> dict[str, Callable[..., Any]]:
    """Pallas' matrix product for Hopper with a few configs: a label of each, and the function of a and b.

    Raises:
      NotImplementedError: the workload is nothing that it computes.
    """
    plain = not any(workload.finish) and workload.precision is None
    if workload.dtype not in ("bf16", "f16") or workload.batch > 1 or workload.layout != "NN" or not plain:
        raise NotImplementedError("it multiplies row-major matrices of 16-bit floats, one at a time")
    hopper = importlib.import_module(PALLAS)
    programs: dict[str, Callable[..., Any]] = {}
    for m, n, steps, along, cluster in PALLAS_CONFIGS:
        tile_m, tile_n = (2 * m if along == "M" else m), (2 * n if along == "N" else n)
        if workload.m % (tile_m * (2 if cluster else 1)) or workload.n % tile_n or workload.k % 64:
            continue
        config = hopper.TuningConfig(
            tile_m=m,
            tile_n=n,
            tile_k=64,
            max_concurrent_steps=steps,
            grid_minor_dim=hopper.MatmulDimension.M,
            grid_tile_width=8,
            wg_dimension=hopper.MatmulDimension[along],
            cluster_dimension=hopper.MatmulDimension.M if cluster else None,
        )

        def matmul(a, b, config=config):
            with jax.enable_x64(False):  # its indices are 32 bits wide
                return hopper.matmul(a, b, None, config=config)

        programs[f"{tile_m}x{tile_n}x64, {steps} stages{', clusters of 2' if cluster else ''}"] = matmul
    if not programs:
        raise NotImplementedError("its tiles have to divide m, n and k")
    return programs


def torch_program(workload: Workload) -> Callable[..., Any]:
    """The workload as torch computes it, of operands as stored."""
    import torch

    bias, activation, residual = workload.finish
    functional = torch.nn.functional
    functions: dict[str | None, Callable] = {
        None: lambda z: z,
        "relu": functional.relu,
        "gelu": functools.partial(functional.gelu, approximate="tanh"),
        "gelu_exact": functional.gelu,
        "silu": functional.silu,
    }

    def program(a: Any, b: Any, *more: Any) -> Any:
        rest = list(more)
        z = torch.addmm(rest.pop(0), a, b) if bias else torch.matmul(a, b)
        z = functions[activation](z)
        return z + rest.pop(0) if residual else z

    return workload.as_stored(program)


def torch_contender(workload: Workload, sets: OperandSets) -> Contender:
    """Torch on the same buffers, each group captured as a CUDA graph.

    Args:
      workload: whose products they are.
      sets: of operands.

    Raises:
      RuntimeError: torch has no such kernel.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = workload.precision == "DEFAULT"
    program = torch_program(workload)
    tensors = [[tuple(map(torch.from_dlpack, one)) for one in zip(*lists, strict=True)] for lists in sets.programs]
    out = [program(*one) for one in tensors[0]]

    def eager(i: int) -> list[Any]:
        if any(workload.finish):
            return [program(*one) for one in tensors[i]]
        for d, one in zip(out, tensors[i], strict=True):
            workload.as_stored(lambda a, b, d=d: torch.matmul(a, b, out=d))(*one)
        return out

    torch.cuda.synchronize()
    graphs, results = [], []
    try:
        for i in range(len(tensors)):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                results.append(eager(i))
    except RuntimeError as error:
        print(f"torch: no CUDA graph, timed eagerly: {error}", file=sys.stderr)
        return Contender("torch", eager, torch.cuda.synchronize, len(tensors), len(sets), "eager")

    def replay(i: int) -> list[Any]:
        graphs[i].replay()
        return results[i]

    return Contender("torch", replay, torch.cuda.synchronize, len(tensors), len(sets), "graph")
