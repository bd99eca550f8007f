"""How a row's products are dispatched to the device: ours, XLA's and other libraries', one `measure.Arm` each.

An arm of JAX is one of two programs.

- `jax_arm`: one jitted function of `group` independent products on `group` sets of operands, whose results are new
  arrays. XLA launches them back to back, as one CUDA graph where its command buffers apply. The host pays for every
  operand and result of every dispatch, and for a graph whose buffers have moved: more than a short product takes.
- `looped_arm`: a loop on the device around products on all sets, whose results are donated. The host pays once for
  some milliseconds of work, and the buffers stay where they are. A barrier ties each round's operands to the round
  before, so that XLA cannot move the products out of the loop; whether it did is looked up in the compiled program.

torch's are captured as CUDA graphs, on the same buffers.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib.util
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax_moye._bench import workloads
from jax_moye._timing.engine import Arm

LARGEST_GROUP = 32  # products in one program
LARGEST_LOOP = 512  # products in one round of a loop
SHORT_US = 30  # below it the host may take longer to dispatch a product than the device to compute it
LOOP_US = 5000  # what one dispatch of a loop takes, about

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
    "cublaslt": "torch.matmul in a CUDA graph, with torch.backends.cuda.preferred_blas_library('cublaslt')",
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


def expected_us(row: dict, footprint: int) -> float:
    """About what a product takes on a large GPU."""
    return 2 * row["batch"] * row["m"] * row["n"] * row["k"] / 500e6 + footprint / 3e6


def _number_of_sets(footprint: int, rotated_bytes: int, device: Any) -> int:
    sets = max(3, math.ceil(rotated_bytes / footprint))
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform == "gpu" else None
    return max(1, min(sets, int(0.25 * limit / footprint))) if limit else sets


def rotation(row: dict, footprint: int, rotated_bytes: int, device: Any) -> tuple[int, int]:
    """(products in a program, programs): their sets together hold at least `rotated_bytes`, and are at least three."""
    sets = _number_of_sets(footprint, rotated_bytes, device)
    # A launch of the program costs the host some 100 us: long products need few in a program, short ones many.
    group = min(sets, LARGEST_GROUP, max(3, math.ceil(400 / expected_us(row, footprint))))
    return group, math.ceil(sets / group)


def loop_rotation(row: dict, footprint: int, rotated_bytes: int, device: Any) -> tuple[int, int] | None:
    """(products in a round, rounds) of a loop over all sets; None for a product that is long enough without."""
    us = expected_us(row, footprint)
    if us >= SHORT_US:
        return None
    sets = _number_of_sets(footprint, rotated_bytes, device)
    if sets > LARGEST_GROUP:  # whole programs, should the loop not be the way
        sets = min(LARGEST_LOOP, math.ceil(sets / LARGEST_GROUP) * LARGEST_GROUP)
    rounds = max(2, math.ceil(LOOP_US / (sets * max(2, us))))
    return sets, rounds if device.platform == "gpu" else 2


def in_groups(operands: Sequence[list], group: int) -> list[tuple[list, ...]]:
    """Lists of operands, cut into programs of `group` products."""
    return [tuple(of[i : i + group] for of in operands) for i in range(0, len(operands[0]), group)]


# JAX -------------------------------------------------------------------------------------------------------------


def jax_arm(name: str, matmul: Callable, sets: list, compiler_options: dict[str, Any] | None = None) -> Arm:
    """The products of one group in one jitted program.

    Args:
      name: of the arm.
      matmul: a function of one set of operands.
      sets: for each program a tuple of lists of operands, each list of the same length.
      compiler_options: of `jax.jit`.
    """
    import jax

    program = jax.jit(
        lambda *lists: [matmul(*one) for one in zip(*lists, strict=True)], compiler_options=compiler_options or None
    )
    last: list = []

    def run(i: int):
        last[:] = program(*sets[i])  # the results before are dropped: the device reuses their memory in order
        return list(last)

    def lower() -> Callable[[], None]:
        lowered = program.lower(*sets[0])
        return lambda: (lowered.compile(), None)[1]

    return Arm(name, run, lambda: jax.block_until_ready(last), lower=lower, method="program")


def in_one_run(arm: Arm, programs: int) -> Arm:
    """An arm whose one program is all programs of `arm`."""

    def run(i: int):
        del i
        return [d for program in range(programs) for d in arm.run(program)]

    return dataclasses.replace(arm, run=run)


def looped_arm(
    name: str, matmul: Callable, operands: Sequence[list], rounds: int, compiler_options: dict[str, Any] | None = None
) -> Arm:
    """Rounds of products on all sets in one jitted program.

    Its results live until the next run, which writes over them.

    Args:
      name: of the arm.
      matmul: a function of one set of operands.
      operands: for each operand the list of its arrays.
      rounds: of the loop.
      compiler_options: of `jax.jit`.
    """
    import jax
    import jax.numpy as jnp
    from jax import lax

    group = len(operands[0])

    def products(lists, token, outs):
        def one_round(_, carry):
            # The token comes out of the barrier, so that the barrier's operands differ from round to round.
            inner, token = lax.optimization_barrier((lists, carry[0]))
            return token, [matmul(*one) for one in zip(*inner, strict=True)]

        return lax.fori_loop(0, rounds, one_round, (token, outs))

    program = jax.jit(products, donate_argnums=(1, 2), compiler_options=compiler_options or None)
    state: list = []

    def start() -> list:
        if not state:
            of_one = jax.eval_shape(matmul, *(of[0] for of in operands))
            state[:] = [jnp.int32(0), [jnp.zeros(of_one.shape, of_one.dtype) for _ in range(group)]]
        return state

    def run(i: int):
        del i
        state[:] = program(tuple(operands), *start())
        return list(state[1])

    def lower() -> Callable[[], None]:
        lowered = program.lower(tuple(operands), *start())

        def compile_it() -> None:
            if is_hoisted(lowered.compile().as_text() or "", group):
                raise NotImplementedError("XLA moved the products out of the loop")

        return compile_it

    return Arm(
        name, run, lambda: jax.block_until_ready(state), repeats=rounds, lower=lower, method=f"loop of {rounds} rounds"
    )


def is_hoisted(program: str, products: int) -> bool:
    """Whether the entry of a compiled program, in HLO, holds as many kernels as a round of its loop has products."""
    entry = program[program.find("\nENTRY") :]
    return len(re.findall(r" (?:dot|custom-call|fusion|call|convolution)\(", entry)) >= products


def compile_all(arms: Iterable[Arm], own: Callable[[Arm], bool]) -> dict[str, Exception]:
    """Compiles arms in threads. XLA's one after the other: it times kernels on the GPU meanwhile.

    Args:
      arms: those that know how are compiled.
      own: whether an arm is all ours, so that nothing runs on the GPU while it is compiled.

    Returns:
      What went wrong, by name.
    """
    wrong: dict[str, Exception] = {}
    lowered: dict[bool, list[tuple[str, Callable[[], None]]]] = {True: [], False: []}
    for arm in arms:
        if arm.lower is not None:
            try:
                lowered[own(arm)].append((arm.name, arm.lower()))
            except Exception as error:
                wrong[arm.name] = error

    def compile_in_order(several: Iterable[tuple[str, Callable[[], None]]]) -> None:
        for name, compile_it in several:
            try:
                compile_it()
            except Exception as error:
                wrong[name] = error

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tasks = [[one] for one in lowered[True]] + [lowered[False]]
        for done in [pool.submit(compile_in_order, task) for task in tasks if task]:
            done.result()
    return wrong


# Others ----------------------------------------------------------------------------------------------------------


def importable(name: str) -> bool:
    """Whether a baseline can be had here."""
    module = {"torch": "torch", "cublaslt": "torch", "pallas": PALLAS}.get(name)
    if module is None:
        return True
    try:
        if name != "pallas":
            return importlib.util.find_spec(module) is not None
        importlib.import_module(module)  # it needs more than JAX's own dependencies
    except ImportError:
        return False
    return True


def pallas_ways(row: dict) -> dict[str, Callable]:
    """Pallas' matrix product for Hopper with a few configs: a label of each, and the function of a and b.

    Raises:
      NotImplementedError: the row is nothing that it computes.
    """
    import jax

    plain = not any(workloads.epilogue_of(row)) and "precision" not in row
    if row["dtype"] not in ("bf16", "f16") or row["batch"] > 1 or row["layout"] != "NN" or not plain:
        raise NotImplementedError("it multiplies row-major matrices of 16-bit floats, one at a time")
    hopper = importlib.import_module(PALLAS)
    ways: dict[str, Callable] = {}
    for m, n, steps, along, cluster in PALLAS_CONFIGS:
        tile_m, tile_n = (2 * m if along == "M" else m), (2 * n if along == "N" else n)
        if row["m"] % (tile_m * (2 if cluster else 1)) or row["n"] % tile_n or row["k"] % 64:
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

        ways[f"{tile_m}x{tile_n}x64, {steps} stages{', clusters of 2' if cluster else ''}"] = matmul
    if not ways:
        raise NotImplementedError("its tiles have to divide m, n and k")
    return ways


def torch_arm(row: dict, sets: list, name: str = "torch") -> Arm:
    """Torch on the same buffers, each group captured as a CUDA graph.

    Args:
      row: whose products they are.
      sets: as in `jax_arm`.
      name: "torch" for its own choice of a library, "cublaslt" for that one.

    Raises:
      RuntimeError: torch has no such kernel, or "cublaslt" cannot be captured.
    """
    import torch

    torch.backends.cuda.matmul.allow_tf32 = row.get("precision") == "DEFAULT"
    program = workloads.torch_program(row)
    has_epilogue = any(workloads.epilogue_of(row))
    tensors = [[tuple(map(torch.from_dlpack, one)) for one in zip(*lists, strict=True)] for lists in sets]
    library = torch.backends.cuda.preferred_blas_library()
    if name == "cublaslt":
        torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        out = [program(*one) for one in tensors[0]]

        def eager(i: int):
            if has_epilogue:
                return [program(*one) for one in tensors[i]]
            for d, one in zip(out, tensors[i], strict=True):
                workloads.in_layout(row, lambda a, b, d=d: torch.matmul(a, b, out=d))(*one)
            return out

        torch.cuda.synchronize()
        graphs, results = [], []
        try:
            for i in range(len(tensors)):
                graphs.append(torch.cuda.CUDAGraph())
                with torch.cuda.graph(graphs[-1]):
                    results.append(eager(i))
        except RuntimeError as error:
            if name != "torch":  # the library is chosen here, not when the arm runs
                raise
            print(f"torch: no CUDA graph, timed eagerly: {error}", file=sys.stderr)
            return Arm(name, eager, torch.cuda.synchronize, method="eager")
    finally:
        torch.backends.cuda.preferred_blas_library(library)

    def replay(i: int):
        graphs[i].replay()
        return results[i]

    return Arm(name, replay, torch.cuda.synchronize, method="graph")
