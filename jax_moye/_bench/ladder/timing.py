"""Times of configs, and of XLA, by the protocol of the benchmark: all alternate in one process."""

from __future__ import annotations

import argparse
import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import jax

from jax_moye._bench.bench import baseline_excess, tolerance
from jax_moye._bench.contenders import xla_program
from jax_moye._format import error_line, significant
from jax_moye._inspect.programs import workload_program
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import JAX_NAMES, MULTIPLIED_AS, SHORT_NAMES
from jax_moye._timing.correctness import Reference, of_workload
from jax_moye._timing.gpu import Sampler
from jax_moye._timing.operands import OperandSets, expected_us, random_sets, rotation
from jax_moye._timing.programs import program_contender
from jax_moye._timing.rounds import Contender, alternate, ratio_interval
from jax_moye._timing.workloads import Workload


def measure(
    configs: Sequence[GemmConfig],
    dtype: str,
    shape: Sequence[int],
    order: str,
    device: jax.Device,
    arguments: argparse.Namespace,
    least_bytes: int,
) -> tuple[dict[str, dict], dict[str, str]]:
    """Times configs, and XLA at `dtype`.

    Args:
      configs: in their order; each is compared with the one before.
      dtype: of the ladder.
      shape: (m, n, k).
      order: of the operands.
      device: of JAX.
      arguments: of the command.
      least_bytes: of all operands together.

    Returns:
      (name -> figures, name -> why it was not timed).
    """
    of_ladder = _workload(dtype, shape, order)
    us = expected_us(of_ladder.flops, of_ladder.footprint)
    rotating = rotation(us, of_ladder.footprint, least_bytes, device, largest_loop=0)

    @functools.cache
    def given(workload: Workload) -> tuple[OperandSets, Reference]:
        sets = random_sets(workload.structs, rotating, workload.seed)
        return sets, of_workload(workload, sets.first)

    def ours(config: GemmConfig) -> tuple[Contender, float]:
        workload = _workload(config.dtype, shape, order)
        sets, reference = given(workload)
        options = {"config": config, "implementation": "moye", "interpret": arguments.interpret or None}
        contender = program_contender(config.name, workload_program(workload, **options), sets)
        return contender, reference.excess(contender.run(0)[0], tolerance(workload, config))

    def xla() -> tuple[Contender, float]:
        sets, reference = given(of_ladder)
        contender = program_contender("xla", xla_program(of_ladder), sets)
        return contender, baseline_excess(of_ladder, contender, reference)

    makers = {config.name: functools.partial(ours, config) for config in configs} | {"xla": xla}
    racing: list[Contender] = []
    refused = {}
    with jax.enable_x64(True), contextlib.closing(Sampler()) as sampler:
        for name, make in makers.items():
            try:
                contender, excess = make()
                if not excess <= 1:
                    raise ArithmeticError(f"wrong: its error is {excess:.3g} times the bound")
                racing.append(contender)
            except Exception as error:  # this GPU does not run it, or it is wrong: the others are still worth timing
                refused[name] = error_line(error)
        if racing:
            rounds, round_ms = arguments.alternations, arguments.turn_ms
            alternate(racing, rounds=rounds, round_ms=round_ms, warmup_ms=arguments.warmup_ms)
        return _figures(of_ladder, racing, sampler), refused


def _workload(dtype: str, shape: Sequence[int], order: str) -> Workload:
    """The product of a kernel that multiplies `dtype`: f32 where nothing is lost."""
    m, n, k = shape
    precision = "HIGHEST" if dtype in MULTIPLIED_AS["f32"] else None
    return Workload("", "ladder", 1, m, n, k, order, SHORT_NAMES[JAX_NAMES[dtype]], precision)


def _figures(workload: Workload, racing: Sequence[Contender], sampler: Sampler) -> dict[str, dict]:
    """Name -> what was measured, and how it compares with the rung before."""
    figures: dict[str, dict] = {}
    before: Contender | None = None
    for contender in racing:
        of_one: dict[str, Any] = {
            "us": significant(contender.seconds * 1e6),
            "tflops": significant(workload.flops / contender.seconds / 1e12),
            "sm_mhz": sampler.mean("sm_mhz", contender.spans),
        }
        if contender.host_bound:
            of_one["host_bound"] = True
        if before is not None and contender.name != "xla":
            low, high = ratio_interval(before.times, contender.times)
            of_one["ratio"] = significant(before.seconds / contender.seconds)
            of_one["ratio_ci"] = [significant(low), significant(high)]
        figures[contender.name] = of_one
        before = contender
    return figures
