"""The rungs of the ladder: each kernel, and the config that stands for it."""

from __future__ import annotations

from collections.abc import Iterable

from jax_moye._kernels.configs import GemmConfig, configs
from jax_moye._kernels.dtypes import USUAL_ACCUMULATOR
from jax_moye.layout.kernels import kernel_facts, kernel_names

RUNGS = tuple(kernel for kernel in kernel_names() if kernel_facts(kernel).page)  # from the bottom up
# What may stand for a dtype that a kernel has no config of, nearest first. No shorter one: it would be faster for that.
NEAREST = {
    "bf16": ("bf16", "f16", "f32"),
    "f16": ("f16", "bf16", "f32"),
    "tf32": ("tf32", "f32", "bf16x6"),
    "f32": ("f32", "bf16x6", "tf32"),
    "f64": ("f64",),
    "s8": ("s8",),
    "e4m3": ("e4m3",),
    "e5m2": ("e5m2",),
}


def representative(several: Iterable[GemmConfig]) -> GemmConfig:
    """The config that stands for its kernel: widest loads, usual accumulator, no cluster, 128x128, then the first.

    Of a kernel that splits k among the CTAs of a cluster, one with a cluster.
    """

    def distance(config: GemmConfig) -> tuple[int, bool, bool, bool]:
        return (
            -config.alignment,
            config.accumulator != USUAL_ACCUMULATOR[config.dtype],
            (config.cluster == (1, 1)) == kernel_facts(config.kernel).splits_k,
            config.tile[:2] != (128, 128),
        )

    return min(several, key=distance)


def rungs(dtype: str, order: str = "NN", table: Iterable[GemmConfig] | None = None) -> dict[str, GemmConfig]:
    """Kernel -> the config that stands for it, from the bottom up. A kernel with none of a near dtype is left out."""
    several = list(configs() if table is None else table)
    found = {}
    for kernel in RUNGS:
        for near in NEAREST[dtype]:
            if of_dtype := [
                one for one in several if (one.kernel, one.dtype) == (kernel, near) and order in one.orders
            ]:
                found[kernel] = representative(of_dtype)
                break
    return found


def stage_configs(dtype: str, table: Iterable[GemmConfig] | None = None) -> list[GemmConfig]:
    """The configs of sm80_multistage that differ from its rung in nothing but the number of stages, fewest first."""
    several = list(configs() if table is None else table)
    of_dtype = [config for config in several if (config.kernel, config.dtype) == ("sm80_multistage", dtype)]
    if not of_dtype:
        return []
    rung = representative(of_dtype)

    def rest(config: GemmConfig) -> tuple[object, ...]:
        return config.tile, config.accumulator, config.cluster, config.alignment

    return sorted((config for config in of_dtype if rest(config) == rest(rung)), key=lambda config: config.stages)
