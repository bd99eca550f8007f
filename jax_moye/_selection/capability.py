"""What our kernels can do: one config for one problem, and all of them for the programs of a platform."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import logging
import math
from collections.abc import Iterable

from jax_moye import _compat
from jax_moye._kernels import devices, ffi, target
from jax_moye._kernels.configs import ConfigTable, GemmConfig, configs, facts_of, is_own
from jax_moye._kernels.dtypes import ITEM_BYTES, WAYS_OF_F32, exchanged
from jax_moye._log import say_once
from jax_moye._selection.problem import MAX_SIZE, GemmProblem


def usable_configs(platform: str, arch: int | None) -> ConfigTable:
    """The configs that a program for `platform` can use; where the GPU is not known, none that are one GPU's alone."""
    return _usable_on_cuda(ffi.built("cuda"), arch) if platform == "cuda" else configs()


@functools.cache
def _usable_on_cuda(built: frozenset[str] | None, arch: int | None) -> ConfigTable:
    return ConfigTable(
        config
        for config in configs()
        if (built is None or config.name in built) and (arch is not None or config.max_arch == 0)
    )


def usable_of(table: Iterable[GemmConfig], platform: str, arch: int | None) -> ConfigTable:
    """Of configs that are each one GPU's alone, those that a program for `platform` can use.

    Where the GPU is not known, there are none.
    """
    if platform != "cuda":
        return ConfigTable(table)
    return ConfigTable(
        config for config in table if arch == config.max_arch and why_not_built(config, platform) is None
    )


def why_not_built(config: GemmConfig, platform: str) -> str | None:
    """Why programs for `platform` cannot name a config of this package's, in a sentence; None if they can."""
    built = ffi.built("cuda") if platform == "cuda" else None
    return None if built is None or config.name in built else "it is not in this build for CUDA"


@functools.cache
def takes_in_shortly(name: str) -> bool:
    """Whether a config, which this build need not have, takes in c, a residual or a gate in a kernel of its own."""
    from jax_moye.layout.kernels import kernel_names

    return any(name.startswith(f"{kernel}_") and facts_of(kernel).takes_in_shortly for kernel in kernel_names())


@dataclasses.dataclass(frozen=True)
class LoweringTarget:
    """What a program is lowered for.

    Attributes:
      platform: "cuda", "cpu", or another one of JAX's.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
      device: the GPU whose measurements count; None: none do.
      configs: to choose from.
      unavailable: why no kernel can run in this process; None if nothing speaks against it.
      is_elsewhere: no GPU is here: the program may be for another machine, whose jax_moye has the kernels.
    """

    platform: str
    arch: int | None
    device: devices.Device | None
    configs: ConfigTable
    unavailable: str | None = None
    is_elsewhere: bool = False

    @classmethod
    def of_platform(cls, platform: str) -> LoweringTarget:
        """A program that is being lowered for `platform`, in this process."""
        unavailable = ffi.why_unavailable(platform)
        if platform != "cuda":
            return cls(platform, None, None, usable_configs(platform, None), unavailable)
        arch, is_elsewhere = target.cuda_arch(), _compat.cuda_arch() is None
        if unavailable is not None and not is_elsewhere:
            say_once(logging.WARNING, f"jax_moye: there is a GPU, and XLA computes all products on it: {unavailable}")
        return cls(platform, arch, _device_meant(arch), usable_configs(platform, arch), unavailable, is_elsewhere)

    def why_lacks(self, config: GemmConfig) -> str | None:
        """Why a config that was named has no code for the programs of this target, in words behind its name."""
        if self.platform != "cuda" or config in self.configs:
            return None
        if not is_own(config):
            return "is not in this build for CUDA"
        if config.registers is None and _compat.cuda_arch() is not None:  # where there is no GPU nothing runs anyhow
            return "was compiled for the emulator alone"
        return None

    @classmethod
    def of_device(cls, device: devices.Device) -> LoweringTarget:
        """A program for a GPU that need not be here, as if all of its kernels were."""
        return cls("cuda", device.arch, device, usable_configs("cuda", device.arch))


def _device_meant(arch: int) -> devices.Device | None:
    """The GPU that a program is lowered for; None if nobody knows one of this architecture."""
    try:
        return devices.find_device(None if _compat.cuda_arch() == arch else arch)
    except ValueError:
        return None


def served() -> str:
    """What our kernels compute, for error messages."""
    lines = []
    for dtype in dict.fromkeys(config.dtype for config in configs()):
        of_dtype = [config for config in configs() if config.dtype == dtype]
        out_dtypes = dict.fromkeys(itertools.chain.from_iterable(config.out_dtypes for config in of_dtype))
        arch = min(config.min_arch for config in of_dtype)
        operands = f"f32 operands as {dtype.upper()}" if dtype in WAYS_OF_F32 else f"{dtype} operands"
        lines.append(f"{operands} with a result of {' or '.join(out_dtypes)} (sm_{arch} or newer)")
    return "Served is any contraction that is one batched matrix product: " + "; ".join(lines)


def launched(config: GemmConfig, problem: GemmProblem) -> GemmProblem:
    """The problem whose operands a kernel reads: for some kernels XLA pads lines first that TMA cannot read."""
    return problem.padded if problem.padded is not problem and facts_of(config.kernel).pads else problem


def why_not(config: GemmConfig, problem: GemmProblem, arch: int | None) -> str | None:
    """Why the config cannot compute the problem, in a sentence; None if it can.

    Args:
      config: the kernel.
      problem: what it is to compute.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
    """
    if config.grouped:
        return "it computes products of groups, jax_moye.ragged_dot's, and no others"
    if config.weights:
        return "it multiplies by weights of 8 or 4 bits, jax_moye.quantized_matmul's, and nothing else"
    if config.block_scales and problem.sums != config.accumulator:
        return "it multiplies 8-bit floats whose blocks along k have scales, jax_moye.scaled_matmul's, and nothing else"
    if config.attention:
        return "it computes attention, and no products"
    if config.dtype not in problem.multiplied_as:
        of_transpose = problem.swapped and problem.dtype != exchanged(problem.dtype)
        why = ": the product is computed as its transpose" if of_transpose else ""
        return f"its operands are {config.dtype}, these are {problem.dtype}{why}"
    if problem.pair and (reason := _why_no_pair(config, problem)):
        return reason
    if problem.derivative and (reason := _why_no_derivative(config, problem)):
        return reason
    if problem.scaled and not config.scales:
        return "it takes no scales"
    if config.accumulator != problem.sums:
        return f"it sums in {config.accumulator}, and {problem.sums} is asked for"
    if problem.out_dtype not in config.out_dtypes:
        return f"it writes {', '.join(config.out_dtypes)}, and {problem.out_dtype} is wanted"
    if arch is not None and arch < config.min_arch:
        return f"it needs sm_{config.min_arch} or newer, and this is sm_{arch}"
    if arch is not None and config.max_arch and arch > config.max_arch:
        return f"its code is sm_{config.max_arch}'s and not newer ones', and this is sm_{arch}"
    # What is one GPU's alone is compiled only where it fits that (cuda/gemm/entry.h).
    if arch is not None and arch != config.max_arch and config.smem_bytes > _smem_limit(arch):
        return f"a CTA needs {config.smem_bytes} bytes of shared memory, and sm_{arch} has {_smem_limit(arch)}"
    if problem.order is None and not config.any_stride:
        return "it needs a mode of stride 1 in each operand"
    if problem.order is not None and problem.order not in config.orders:
        return f"it takes the orders {', '.join(config.orders)}, and this is {problem.order}"
    if launched(config, problem).alignment % config.alignment:
        offsets = f", from {problem.offsets} on," if problem.offsets else ""
        return (
            f"it loads {config.alignment} bytes at a time, and the operands' strides "
            f"{problem.strides['a']} and {problem.strides['b']}{offsets} of {problem.dtype} are aligned to "
            f"{problem.alignment}"
        )
    if _is_far_from_the_limits(config, problem):
        return None
    (tile_m, tile_n), tile_k = config.cluster_tile, config.tile[2]  # what is scheduled
    tile_n //= 1 + problem.pair
    if problem.m > MAX_SIZE - tile_m or problem.n > MAX_SIZE - tile_n or problem.k > MAX_SIZE - tile_k:
        return "a dimension is over 2^31 - 1 less one tile"
    tiles = problem.batch * math.ceil(problem.m / tile_m) * math.ceil(problem.n / tile_n)
    if tiles > MAX_SIZE // config.k_parts:  # CTAs of a launch: one for each part of k
        return "the result has more than 2^31 - 1 tiles"
    return None


def _why_no_pair(config: GemmConfig, problem: GemmProblem) -> str | None:
    """Why the config cannot compute d from two matrices b; None if nothing speaks against it."""
    if not config.takes_pair:
        return "it takes one matrix b, and these are two"
    if ITEM_BYTES[problem.out_dtype] != 2:
        return f"what it makes of two products has 16 bits, and {problem.out_dtype} is wanted"
    return _why_not_by_tma(problem) if not facts_of(config.kernel).splits_k else None


def _why_not_by_tma(problem: GemmProblem) -> str | None:
    """Why TMA cannot store a result of 16 bits; None if nothing speaks against it."""
    rows = (problem.n, *problem.strides["d"][:-1])
    if problem.d_strides[2] != 1 or any(x * ITEM_BYTES[problem.out_dtype] % 16 for x in rows):
        return f"it stores rows of 16 bytes, and those of ({problem.m}, {problem.n}) {problem.out_dtype} are no such"
    return None


def _why_no_derivative(config: GemmConfig, problem: GemmProblem) -> str | None:
    """Why the config cannot multiply by a derivative; None if nothing speaks against it."""
    if not config.derives:
        return "it multiplies by no derivative"
    if ITEM_BYTES[problem.out_dtype] != 2:
        return f"what it multiplies by a derivative has 16 bits, and {problem.out_dtype} is wanted"
    if problem.gate and not config.takes_gate:
        return "it writes one result, and these are two"
    return _why_not_by_tma(problem) if problem.gate else None


def _is_far_from_the_limits(config: GemmConfig, problem: GemmProblem) -> bool:
    """Whether a problem is small enough whatever the CTAs of a cluster share: who says that has the layouts loaded."""
    (tile_m, tile_n, tile_k), (cluster_m, cluster_n) = config.tile, config.cluster
    steps = (tile_m * cluster_m, tile_n * cluster_n, tile_k)
    sizes = (problem.m, problem.n, problem.k)
    columns = tile_n // (1 + problem.pair)
    ctas = problem.batch * math.ceil(problem.m / tile_m) * math.ceil(problem.n / columns) * cluster_m * cluster_n
    return ctas <= MAX_SIZE and all(size <= MAX_SIZE - step for size, step in zip(sizes, steps, strict=True))


@functools.cache
def _smem_limit(arch: int) -> float:
    """Bytes of shared memory that a CTA can have; of an architecture that nobody has entered as many as it wants."""
    from jax_moye.layout.resources import ARCHS  # not with `import jax_moye`: the layouts take time to load

    limits = ARCHS.get(f"sm_{arch}")
    return math.inf if limits is None else limits.smem_per_cta
