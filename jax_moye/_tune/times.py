"""Times of the configs of one product, and of XLA: what `tune` measures.

A product is computed on random operands of its own that rotate through more than twice the L2 cache. All programs are
compiled before anything is timed. Each result is held against float64, over its whole, before its config is timed: once
alone, then, if it is not much slower than the fastest one, in a few short rounds, then, if it is among the best, in
longer rounds beside XLA.
"""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
from jax import lax

from jax_moye._format import error_line
from jax_moye._inspect.products import Product
from jax_moye._inspect.programs import program_of, random_operands, reference_of
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection.decide import KernelCall
from jax_moye._timing.correctness import Reference, Tolerance, of_baseline, of_config
from jax_moye._timing.operands import OperandSets
from jax_moye._timing.programs import HoistedError, compile_all, loop_contender, program_contender
from jax_moye._timing.rounds import Contender, Race, race

TOP = 8  # configs that are timed, of all that can compute a product
LARGEST_LOOP = 256  # products in a loop: half of the benchmark's, since each config's is compiled


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How long things are timed.

    Attributes:
      top: configs that are timed, the first by the model; None: all that can compute the product.
      sweep: regular expression that their names match whole.
      race: how they are told apart.
      quick: launch configs without compiling programs, and compare results with XLA's, as lowering does. On a GPU.
      budget_s: no product is begun later than this.
    """

    top: int | None = TOP
    sweep: str | None = None
    race: Race = dataclasses.field(default_factory=Race)
    budget_s: float = math.inf
    quick: bool = False


class Times(NamedTuple):
    """Of one product.

    Attributes:
      us: microseconds by config.
      xla_us: of XLA; None where it failed.
      lead: low end of the interval of that over the time of the fastest config; None without it.
      host_bound: whether the host may have been what was timed.
      rejected: by config why it has no time.
    """

    us: Mapping[str, float]
    xla_us: float | None
    lead: float | None
    host_bound: bool
    rejected: Mapping[str, str]


class Target(NamedTuple):
    """Where products are timed.

    Attributes:
      device: of JAX.
      platform: "cuda", or "cpu" of the emulator.
      arch: of the GPU; None in the emulator.
      head: of the file.
      path: of the file.
    """

    device: jax.Device
    platform: str
    arch: int | None
    head: Mapping[str, Any]
    path: pathlib.Path

    @property
    def interpret(self) -> InterpretParams | None:
        """How the emulator runs; None on a GPU."""
        return InterpretParams(detect_races=False) if self.platform == "cpu" else None


def time_product(
    product: Product, call: KernelCall, candidates: Sequence[GemmConfig], target: Target, protocol: Protocol
) -> Times:
    """Checks and times configs, and XLA.

    Args:
      product: what is computed.
      call: the problem, and whether it is 3 x TF32.
      candidates: in the model's order.
      target: where.
      protocol: how.
    """
    with jax.enable_x64(True), jax.default_device(target.device):  # references are float64
        sets = random_operands(product, target.device, LARGEST_LOOP)
        contenders, rejected = _compiled(product, candidates, target, sets)
        reference = reference_of(product, sets.first)
        tolerances = {"xla": _of_xla(product, call)}
        tolerances |= {row.name: of_config(row, call.problem.k, call.split) for row in candidates}
        for name in list(contenders):
            if (why := _why_wrong(reference, contenders[name], tolerances[name])) is not None:
                del contenders[name]
                rejected[name] = why
        del reference
        xla = contenders.pop("xla", None)
        found = race(list(contenders.values()), xla, protocol.race)
    us = {name: t for name, t in found.us.items() if name != "xla"}
    return Times(us, found.us.get("xla"), found.lead, found.host_bound, rejected)


def _compiled(
    product: Product, candidates: Sequence[GemmConfig], target: Target, sets: OperandSets
) -> tuple[dict[str, Contender], dict[str, str]]:
    """XLA and the configs, by name, and why some cannot be had; all in loops, or none where XLA defeats one of them."""
    funs = {"xla": program_of(product, "xla", None)}
    for row in candidates:
        request = dataclasses.replace(product.request, config=row.name)
        funs[row.name] = program_of(dataclasses.replace(product, request=request), "moye", target.interpret)
    make = loop_contender if sets.repeats else program_contender
    # Jitted, a function is traced once for all sets.
    contenders = {name: make(name, jax.jit(fun), sets) for name, fun in funs.items()}
    wrong = compile_all(contenders.values(), lambda name: name != "xla")
    if any(isinstance(error, HoistedError) for error in wrong.values()):
        return _compiled(product, candidates, target, sets.without_loop())
    working = {name: contender for name, contender in contenders.items() if name not in wrong}
    return working, {name: error_line(error) for name, error in wrong.items()}


def _of_xla(product: Product, call: KernelCall) -> Tolerance:
    """What is allowed to XLA."""
    precision, problem = product.request.precision, call.problem
    is_highest = isinstance(precision, tuple) and all(level == lax.Precision.HIGHEST for level in precision)
    out_dtype = product.request.out_dtype
    return of_baseline(problem.dtype, problem.k, out_dtype, is_highest=is_highest, sums=problem.sums)


def _why_wrong(reference: Reference, contender: Contender, tolerance: Tolerance) -> str | None:
    """Why a contender has no time; None if its result is right."""
    try:
        worst = reference.excess(jax.tree.leaves(contender.run(0))[0], tolerance)
        contender.wait()
    except Exception as error:  # a launch that fails
        return error_line(error)
    return None if worst <= 1 else f"WRONG: the largest error is {worst:.3g} times its bound"
