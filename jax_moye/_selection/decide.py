"""Who computes a product, and why: the one decision, which the lowering, explain, report and tune read.

    decide(request, operands, target) -> Decision

A kernel computes it if the caller named its config or insists on ours, or if it is at least as precise as was asked for
and known to be faster than XLA: that was measured (measurements.py), or is predicted with confidence (cost.py,
cost_xla.py). What nobody knows is XLA's.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from typing import Literal, NamedTuple

from jax_moye._kernels.configs import ConfigTable, GemmConfig, find_config
from jax_moye._kernels.dtypes import USUAL_ACCUMULATOR
from jax_moye._selection import measurements
from jax_moye._selection.capability import LoweringTarget, why_not
from jax_moye._selection.cost import in_program_us, predicted_split_us, predicted_us
from jax_moye._selection.cost_xla import SURE, unknown, xla_us
from jax_moye._selection.entry import Entry
from jax_moye._selection.epilogue import Epilogue, fit_epilogue
from jax_moye._selection.leads import is_outer_product
from jax_moye._selection.precision import (
    Arithmetic,
    arithmetic_of_config,
    check_integers,
    is_high,
    operand_dtype,
    possible_arithmetics,
    wants_exact_f32,
    why_not_precise,
    written_dtype,
)
from jax_moye._selection.problem import ConfigError, GemmProblem, NotServedError, make_problem, parse_spec
from jax_moye._selection.ranking import select
from jax_moye._selection.request import Operands, Request, describe, label_sizes
from jax_moye._selection.summation import batch_invariant_configs, reference_problem

Kind = Literal["kernel", "xla", "nothing", "error"]
Source = Literal["explicit", "measured", "cache", "table", "model"]
# Why XLA computes a product, or nobody: the caller says so; no kernel can; XLA may be less precise than our kernels,
# and faster for it; no kernel is known to be faster; our kernels do not run there; the config that was named cannot.
Cause = Literal["caller", "capability", "precision", "time", "place", "config"]


def xla_wins(ours_us: float, xlas_us: float) -> bool:
    """Whether XLA computes the product, by predictions: ours is not faster with confidence.

    A program must not become slower by a guess. Entry.is_won_by_ours has the rule for what was measured.
    """
    return SURE * ours_us > xlas_us


class Times(NamedTuple):
    """Microseconds of a product.

    Attributes:
      ours: of the kernel that is chosen.
      xla: of XLA; None where nobody knows, or where it does not matter.
    """

    ours: float
    xla: float | None


@dataclasses.dataclass(frozen=True)
class KernelCall:
    """How a kernel of ours computes a product.

    Attributes:
      problem: of one launch.
      config: the kernel.
      split: launch it three times, on the parts of both operands that `split_tf32` makes: f32 as 3 x TF32.
      operands: what it reads: of each operand the array before a transpose, or behind it.
      epilogue: what it makes of the sums; None where it is nothing.
      epilogue_strides: of the epilogue's operands, (batch, m, n), in their order.
      compiled: the name of what was compiled for this epilogue; None: the config itself does.
    """

    problem: GemmProblem
    config: GemmConfig
    split: bool
    operands: Operands
    epilogue: Epilogue | None = None
    epilogue_strides: tuple[tuple[int, ...], ...] = ()
    compiled: str | None = None


class Decision(NamedTuple):
    """Who computes a product.

    Attributes:
      kind: a kernel, XLA, nobody since a size is 0, or nobody since the program is an error.
      request: what is decided about: where XLA finishes what a kernel may multiply, the product without its epilogue.
      call: of the kernel; also where XLA computes what the kernel could. None where none can.
      reason: why no kernel computes it, in a sentence; None where one does.
      cause: the same as one word; None where a kernel does.
      contract: of an error, what XLA, which would have computed it, would break; None of other errors.
      problem: as the kernels see it; None where it is none.
      predicted: by the models; None where they were not asked.
      measured: what `tune` found, and decided; None where it did not.
      entry: where that is from.
      source: what chose between configs, or between them and XLA; None where there was no choice.
      epilogue_reason: why XLA finishes the product, of which all else is said here; None where the kernel does, or
        where there is nothing to finish.
    """

    kind: Kind
    request: Request
    call: KernelCall | None = None
    reason: str | None = None
    cause: Cause | None = None
    contract: str | None = None
    problem: GemmProblem | None = None
    predicted: Times | None = None
    measured: Times | None = None
    entry: Entry | None = None
    source: Source | None = None
    epilogue_reason: str | None = None

    def error(self, what: str = "") -> str:
        """The words of an error.

        Args:
          what: the product in words; "" where they stand beside it.
        """
        if self.contract is None:
            return self.reason or ""
        if self.contract.startswith("implementation=") and self.cause == "place":  # whatever the product is
            return f"{self.reason}: {' for '.join(filter(None, [self.contract, what]))}"
        if self.contract.startswith("implementation="):
            return ": ".join(filter(None, [self.contract, what, self.reason]))
        return f"{self.contract}, and no kernel of ours computes {what or 'it'}: {self.reason}"


def decide(request: Request, operands: Operands, target: LoweringTarget) -> Decision:
    """Who computes a product on one device: for one with an epilogue, who finishes it as well.

    Args:
      request: what the caller asked for.
      operands: lhs and rhs as they are in memory. Transposes behind that are left out where a kernel's strides can
        stand for them.
      target: what is lowered for.
    """
    decision = _decide(request, operands, target)
    if request.epilogue is None or decision.kind != "xla":
        return _within_contracts(decision, target.platform)
    return _finished_by_xla(decision, request, operands, target)


def decide_unfused(decision: Decision, operands: Operands, target: LoweringTarget, reason: str) -> Decision:
    """The decision about the product alone, where its kernel cannot be had with the epilogue.

    Args:
      decision: for a kernel with it.
      operands: as in `decide`.
      target: likewise.
      reason: why not.
    """
    decision = decision._replace(kind="xla", cause="capability", reason=reason)
    return _finished_by_xla(decision, decision.request, operands, target)


def _finished_by_xla(decision: Decision, request: Request, operands: Operands, target: LoweringTarget) -> Decision:
    """The decision about a product that no kernel finishes."""
    reason = decision.reason
    if request.batch_invariant and request.alone is None:  # sizes must not decide whose tanh it is
        return decision._replace(kind="error", reason=why_not_unfused(request, operands, reason))
    if decision.cause not in ("time", "caller"):
        alone = request.without_epilogue(operands[0].dtype)
        decision = _within_contracts(_decide(alone, operands, target), target.platform)
    return decision._replace(epilogue_reason=reason)


def left_to_xla(request: Request, cause: Cause, reason: str, platform: str) -> Decision:
    """A product that is XLA's whatever our kernels can do, or an error where it must not be.

    Args:
      request: what the caller asked for.
      cause: as in Decision.
      reason: likewise.
      platform: for which the program is lowered.
    """
    return _within_contracts(Decision("xla", request, cause=cause, reason=reason), platform)


def _decide(request: Request, operands: Operands, target: LoweringTarget) -> Decision:
    """Who computes a product with all of its epilogue, whatever XLA promises."""
    if request.interpret is not None and target.platform != "cpu":
        reason = (
            f"interpret=True runs kernels in an emulator on the CPU, and this program is for {target.platform}: place "
            "its arrays on a CPU device, under e.g. jax.default_device(jax.devices('cpu')[0]), or leave out interpret"
        )
        return Decision("error", request, reason=reason, cause="place")
    if request.implementation == "xla":
        problem = _problem(request, operands, target)
        return Decision("xla", request, reason="implementation='xla'", cause="caller", problem=problem)
    try:
        found = _find_kernel(request, operands, target)
    except ConfigError as error:
        problem = _problem(request, operands, target)
        return Decision("error", request, reason=str(error), cause="config", problem=problem)
    except NotServedError as error:
        problem = _problem(request, operands, target)
        return Decision("xla", request, reason=str(error), cause="capability", problem=problem)
    if found is None:
        return Decision("nothing", request, reason="a size is 0")
    return _ours_or_xlas(request, operands, target, found)


# --------------------------------------------------------------------------------------------------- the best kernel


class _Found(NamedTuple):
    """The best kernel for a product.

    Attributes:
      call: of it.
      arch: of the GPU.
      choice: where it was measured.
    """

    call: KernelCall
    arch: int | None
    choice: measurements.Choice | None = None

    @property
    def us(self) -> float:
        """Predicted, of all its launches. Not where a measurement decides: the model needs the layouts loaded."""
        return predicted(self.call.problem, self.call.config, self.call.split, self.arch)

    @property
    def known_us(self) -> float:
        """Measured, else predicted."""
        return self.choice.us if self.choice else self.us


def predicted(problem: GemmProblem, config: GemmConfig, split: bool, arch: int | None) -> float:
    return (predicted_split_us if split else predicted_us)(config, problem, arch)


def _foldings(operands: Operands) -> Iterator[Operands]:
    """The operands, with all transposes left to the kernel's strides, with one of them, and with none."""
    yield from itertools.product(*(dict.fromkeys((x, x.transposed)) for x in operands))  # type: ignore[misc]


def _find_kernel(request: Request, operands: Operands, target: LoweringTarget) -> _Found | None:
    """The best kernel for a product, which reads operands in front of as many transposes as it can.

    Returns:
      None where a size is 0: there is nothing to compute.

    Raises:
      NotServedError: no kernel can compute it.
      ConfigError: the config asked for cannot.
    """
    shapes = [x.seen_shape for x in operands]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        raise NotServedError(f"the sizes in {shapes[0]} and {shapes[1]} are not all known")
    dtype = operand_dtype(operands[0].dtype, operands[1].dtype, request.out_dtype)
    if reason := why_not_precise(request.precision, dtype):
        raise NotServedError(reason)
    if 0 in shapes[0] or 0 in shapes[1]:
        return None

    may_split = request.epilogue is None
    if request.config is not None:
        config = find_config(request.config)
        if reason := target.why_lacks(config):
            raise ConfigError(f"config {config.name!r} {reason}")
        arithmetics = [arithmetic_of_config(config, dtype, request.precision, may_split)]
    else:
        arithmetics = possible_arithmetics(dtype, request.precision, target.platform, may_split)
        if request.batch_invariant:
            arithmetics = [_fixed_arithmetic(arithmetics, target)]

    *folded, plain = _foldings(operands)
    for candidate in folded:
        try:
            return _find_for(request, candidate, arithmetics, target)
        except (NotServedError, ConfigError):  # what it says of the operands as they are is what the caller wrote
            continue
    return _find_for(request, plain, arithmetics, target)


def _find_for(request: Request, operands: Operands, arithmetics: list[Arithmetic], target: LoweringTarget) -> _Found:
    """The best kernel that reads the operands so.

    Raises:
      NotServedError: no kernel can.
      ConfigError: the config asked for cannot.
    """
    reasons, found = [], []
    for arithmetic in arithmetics:
        problem, strides = problem_for(request, operands, arithmetic, target)
        split = arithmetic.split
        try:
            config, choice = _best_config(request, operands, problem, split, target)
        except NotServedError as error:
            reasons.append(str(error))
            continue
        call = KernelCall(problem, config, split, operands, request.epilogue, strides)
        found.append(_Found(call, target.arch, choice))
        if not split:
            break
    if not found:
        raise NotServedError("; ".join(reasons))
    return min(found, key=lambda one: one.known_us) if len(found) > 1 else found[0]


def problem_for(
    request: Request, operands: Operands, arithmetic: Arithmetic, target: LoweringTarget
) -> tuple[GemmProblem, tuple[tuple[int, ...], ...]]:
    """The matrix multiplication that a kernel computes, and the strides of its epilogue's operands.

    Raises:
      NotServedError: there is none.
    """
    left, right = operands
    named = None if request.config is None else [find_config(request.config)]
    problem = make_problem(
        request.spec,
        left.seen_shape,
        right.seen_shape,
        arithmetic.dtype,
        written_dtype(arithmetic, request.out_dtype, target.configs if named is None else named),
        left.permutation,
        right.permutation,
        accumulator=arithmetic.accumulator,
        views=(left.view, right.view),
        epilogue=not arithmetic.split and (request.beta != 0 or request.epilogue is not None),
    )
    check_integers(problem, request.out_dtype, request.beta)
    if request.epilogue is None:
        return problem, ()
    sizes = label_sizes(request.spec, operands)
    if request.epilogue.is_of_pair:
        if problem.swapped:
            raise NotServedError("the result is contiguous along lhs, and two operands share a tile's columns")
        return dataclasses.replace(problem, pair=True), (problem.strides["b"],)
    problem, strides = fit_epilogue(problem, parse_spec(request.spec).out, sizes, request.epilogue)
    epilogue = request.epilogue
    problem = dataclasses.replace(
        problem, derivative=epilogue.is_derivative, gate=epilogue.is_of_gate, scaled=epilogue.is_scaled
    )
    return problem, tuple(strides[name] for name, _ in epilogue.operands)


def _best_config(
    request: Request, operands: Operands, problem: GemmProblem, split: bool, target: LoweringTarget
) -> tuple[GemmConfig, measurements.Choice | None]:
    """The config that was named, was measured to be the fastest, or is predicted to be.

    Raises:
      NotServedError: none can compute the problem.
      ConfigError: the one that was named cannot.
    """
    if request.config is not None:
        config = find_config(request.config)
        if reason := why_not(config, problem, target.arch):
            raise ConfigError(f"config {config.name!r} cannot compute {describe(request, operands)}: {reason}")
        if request.batch_invariant:
            _check_batch_invariant(config, problem, target.arch, target.configs)
        return config, None
    if target.device is not None and not request.batch_invariant:
        variant = measurements.variant(request.spec, request.epilogue, request.beta, split)
        # The same bits in every run: what one machine measured, and another did not, may not decide.
        own = not request.deterministic and measurements.autotune_mode(request.autotune) != "off"
        choice = measurements.find(problem, variant, target.device.kind, target.arch, target.configs, own)
        if choice is not None:
            return choice.config, choice
    return select(problem, target.arch, target.configs, request.batch_invariant), None


def _problem(request: Request, operands: Operands, target: LoweringTarget) -> GemmProblem | None:
    """What the kernels would see of a product that none of them computes; None if it is not for them."""
    try:
        dtype = operand_dtype(operands[0].dtype, operands[1].dtype, request.out_dtype)
        if not all(isinstance(size, int) and size > 0 for x in operands for size in x.shape):
            return None
        arithmetic = possible_arithmetics(dtype, request.precision, target.platform, may_split=False)[0]
        plain = dataclasses.replace(request, config=None, beta=0.0, epilogue=None)
        return problem_for(plain, (operands[0].transposed, operands[1].transposed), arithmetic, target)[0]
    except NotServedError:
        return None


def _fixed_arithmetic(arithmetics: list[Arithmetic], target: LoweringTarget) -> Arithmetic:
    """The one that serves batch_invariant=True, whatever the sizes and strides of a call are."""

    def us(arithmetic: Arithmetic) -> float:
        dtype, accumulator, split = arithmetic
        problem = reference_problem(dtype, USUAL_ACCUMULATOR[dtype], accumulator)
        family = batch_invariant_configs(dtype, problem.out_dtype, accumulator, target.arch, target.configs)
        return min((predicted(problem, config, split, target.arch) for config in family), default=math.inf)

    if any(arithmetic.split for arithmetic in arithmetics):
        return min(arithmetics, key=us)
    return next((arithmetic for arithmetic in arithmetics if us(arithmetic) < math.inf), arithmetics[0])


def _check_batch_invariant(config: GemmConfig, problem: GemmProblem, arch: int | None, table: ConfigTable) -> None:
    """Raises ConfigError if batch_invariant=True does not choose among configs that sum as this one does."""
    family = batch_invariant_configs(problem.dtype, problem.out_dtype, problem.sums, arch, table)
    if config not in family:
        raise ConfigError(
            f"config {config.name!r} sums in another order than the kernels of batch_invariant=True, which are "
            f"{', '.join(one.name for one in family)}"
        )


# ------------------------------------------------------------------------------------------------------- ours or XLA


def _ours_or_xlas(request: Request, operands: Operands, target: LoweringTarget, found: _Found) -> Decision:
    """Whether a kernel that can compute a product does."""
    call, choice, on_cuda = found.call, found.choice, target.platform == "cuda"
    decision = Decision("kernel", request, call, problem=call.problem, source="model")
    if choice is None:
        decision = decision._replace(predicted=Times(found.us, None))
    if request.config is not None:
        decision = decision._replace(source="explicit")
    elif choice is not None:
        of = choice.entry.nearest(signature_of(request, operands))
        measured = Times(choice.us, choice.entry.xla_us.get(of))
        decision = decision._replace(measured=measured, entry=choice.entry, source=choice.source)

    if not on_cuda and request.interpret is None:
        reason = f"the program is for {target.platform}, where our kernels run only with interpret=True"
        return _rather_xlas(decision, "place", reason)
    if on_cuda and not request.insists and not request.deterministic:
        if operands[0].dtype != operands[1].dtype:
            reason = f"no kernel takes operands of different dtypes, {operands[0].dtype} and {operands[1].dtype}"
            return _rather_xlas(decision, "capability", reason)
        is_three = request.epilogue is None and is_high(request.precision)
        if call.problem.dtype == "f32" and not wants_exact_f32(request.precision) and not is_three:
            reason = "f32 below precision 'high' may use TF32, and our f32 kernels do not"
            return _rather_xlas(decision, "precision", reason)
        decision = _the_faster(decision, operands, found, target.arch, is_three)
        if decision.kind == "xla":
            return decision
    # A program may be lowered here for another machine whose jax_moye has the kernels, if the caller insists on them.
    if target.unavailable is not None and not (on_cuda and request.insists and target.is_elsewhere):
        return _rather_xlas(decision, "place", target.unavailable)
    return decision


def signature_of(request: Request, operands: Operands) -> str:
    """What XLA's time of a product depends on, as measurements name it."""
    left, right = operands
    written = [name for name, order in zip(("lhs", "rhs"), request.xlas_orders, strict=True) if order is not None]
    return measurements.signature(left.dtype, right.dtype, request.out_dtype, request.precision, written)


def _rather_xlas(decision: Decision, cause: Cause, reason: str) -> Decision:
    """XLA computes what a kernel could, and no time says so."""
    return decision._replace(kind="xla", cause=cause, reason=reason, measured=None, entry=None, source=None)


def _the_faster(decision: Decision, operands: Operands, found: _Found, arch: int | None, is_three: bool) -> Decision:
    """The decision of a kernel, or XLA unless the kernel was measured or is predicted to be faster.

    Args:
      decision: of the kernel.
      operands: lhs and rhs.
      found: likewise, of the kernel.
      arch: of the GPU.
      is_three: f32 operands are three products for XLA, which it then computes less precisely, or was never timed at.
    """
    measured, entry = decision.measured, decision.entry
    if is_outer_product(found.call.problem):
        reason = "an outer product is no sum: XLA computes its elements where they are read"
        return _rather_xlas(decision, "time", reason)
    if found.call.operands != operands and not is_three:
        reason = "a transpose that no kernel reads through would be written to memory first"
        return _rather_xlas(decision, "time", reason)
    if measured is not None and entry is not None:
        is_won = entry.is_won_by_ours(signature_of(decision.request, operands))
        if is_won:
            return decision
        if is_won is not None:
            times = f"XLA {measured.xla:.4g} us, our best {entry.config} {measured.ours:.4g} us"
            return decision._replace(kind="xla", cause="time", reason=f"measured: {times} ({decision.source})")
    if is_three:
        return decision
    request, problem = decision.request, found.call.problem
    theirs = xla_us(problem, arch, passes=int(request.beta != 0 or request.epilogue is not None))
    us = found.us if decision.predicted is None else decision.predicted.ours
    decision = decision._replace(predicted=Times(us, theirs))
    if theirs is None:  # a program must not become slower by adopting us
        reason = f"how long XLA takes is not modelled {unknown(problem, arch)}, and was not measured"
        return _rather_xlas(decision, "time", f"{reason}: jax_moye.tune does")
    is_host_bound = entry is not None and entry.host_bound
    alone = us if is_host_bound or found.choice is None else found.choice.us
    ours = in_program_us(alone)
    if not xla_wins(ours, theirs):
        return decision
    reason = f"XLA is expected to take {theirs:.1f} us, and the best kernel {ours:.1f}"
    if ours > alone:
        reason += ", the time of its call on the host"
    if ours < theirs:
        reason += ", which is too near to be sure of"
    return _rather_xlas(decision, "time", reason)._replace(source="model")


def _within_contracts(decision: Decision, platform: str) -> Decision:
    """The decision, or an error where it is XLA and XLA breaks what was asked for."""
    if decision.kind != "xla":
        return decision
    insists = decision.request.implementation == "moye"
    contract = "implementation='moye'" if insists else why_not_xla(platform, decision.request)
    return decision if contract is None else decision._replace(kind="error", contract=contract)


def why_not_unfused(request: Request, operands: Operands, reason: str | None) -> str:
    """Why the epilogue of a product with batch_invariant=True is an error where no kernel computes it for a reason."""
    return (
        f"batch_invariant=True: the epilogue of {describe(request, operands)} is not its kernel's, and XLA's has other "
        f"bits: {reason}"
    )


def why_not_xla(platform: str, request: Request) -> str | None:
    """Why lax.dot_general in a program for `platform` would break a contract of the request; None if it would not."""
    if request.batch_invariant:
        return "batch_invariant=True: how XLA sums a row depends on the number of rows"
    if request.deterministic and platform != "cpu" and not _xla_is_deterministic():
        return (
            f"deterministic=True: on {platform} XLA promises the same bits in every run only with "
            f"XLA_FLAGS={_DETERMINISM_FLAGS[0]}=true or {_DETERMINISM_FLAGS[1]}=true"
        )
    return None


_DETERMINISM_FLAGS = ("--xla_gpu_deterministic_ops", "--xla_gpu_exclude_nondeterministic_ops")


def _xla_is_deterministic() -> bool:
    """Whether XLA_FLAGS asks XLA for the same bits in every run on a GPU. Of a flag given twice the last one counts."""
    values = dict.fromkeys(_DETERMINISM_FLAGS, False)
    for flag in os.environ.get("XLA_FLAGS", "").split():
        name, equals, value = flag.partition("=")
        if name in values:
            values[name] = not equals or value.lower() in ("true", "1")
    return any(values.values())
