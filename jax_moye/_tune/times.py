"""Times of the configs of one product, and of XLA: what `tune` measures.

A product is computed on random operands of its own that rotate through more than twice the L2 cache. All programs are
compiled before anything is timed, in as many threads as there are processors. Each result is held against float64, over
its whole, before its config is timed: once alone, then, if it is not much slower than the fastest one, in a few short
turns, then, if it is among the best, in longer turns beside XLA.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import os
import pathlib
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_moye._bench.contenders import SHORT_US, looped_arm
from jax_moye._inspect.products import Product
from jax_moye._inspect.report import program_of, random_operand, shapes_of
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection.decide import KernelCall
from jax_moye._selection.problem import GemmProblem, parse_spec
from jax_moye._selection.request import Operand, label_sizes
from jax_moye._timing.correctness import quick_options
from jax_moye._timing.engine import Arm, l2_bytes, take_turns

TOP = 8  # configs that are timed, of all that can compute a product
LARGEST_GROUP = 32  # products in one program
_LEAST_PROGRAM_US = 400  # of the products of one program: a dispatch takes the host some 100
LARGEST_LOOP = 256  # products in one round of a loop
_LOOP_US = 5000  # of one dispatch of a loop
_SLOW = 2.5  # times the fastest one: then a config has no turns
_FINALISTS = 8
_HOST_BOUND = 0.96  # share of a turn that went into dispatching: but for the last program all was done by then


@dataclasses.dataclass(frozen=True)
class Protocol:
    """How long things are timed.

    Attributes:
      top: configs that are timed, the first by the model; None: all that can compute the product.
      sweep: regular expression that their names match whole.
      turn_ms: length of a turn of the finalists; half of it in the first round.
      rounds: turns of each in the first round and in the last one.
      warmup_ms: how long the finalists run before their first turn.
      budget_s: no product is begun later than this.
    """

    top: int | None = TOP
    sweep: str | None = None
    turn_ms: float = 15.0
    rounds: tuple[int, int] = (3, 7)
    warmup_ms: float = 100.0
    budget_s: float = math.inf


class Times(NamedTuple):
    """Of one product.

    Attributes:
      us: microseconds by config.
      xla_us: of XLA; None where it failed.
      host_bound: whether the host may have been what was timed.
      rejected: by config why it has no time.
    """

    us: Mapping[str, float]
    xla_us: float | None
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
        work = _work(product, target.device)
        reference = _Reference(product, call, work.sets[0])
        # XLA first, and alone: its own search times kernels while it compiles.
        funs = {"xla": program_of(product, "xla", None)}
        xla = _compile_all(funs, work)["xla"]
        if isinstance(xla, str) and work.rounds:  # it may have moved the products out of the loop
            work = work.without_loop()
            xla = _compile_all(funs, work)["xla"]
        xla = _checked(reference, xla, True)
        made = _compile_all(_programs(product, candidates, target), work)
        if work.rounds and candidates and isinstance(made[candidates[0].name], str):
            work = work.without_loop()
            xla = _checked(reference, _compile_all(funs, work)["xla"], True)
            made = _compile_all(_programs(product, candidates, target), work)
        arms = {name: _checked(reference, arm, False) for name, arm in made.items()}
        del reference
        rejected = {name: why for name, why in [("xla", xla), *arms.items()] if isinstance(why, str)}
        racing = [arm for arm in arms.values() if isinstance(arm, Arm)]
        us, host_bound = _race(racing, xla if isinstance(xla, Arm) else None, work, protocol)
    return Times({name: t for name, t in us.items() if name != "xla"}, us.get("xla"), host_bound, rejected)


def _race(arms: list[Arm], xla: Arm | None, work: _Work, protocol: Protocol) -> tuple[dict[str, float], bool]:
    """Microseconds by arm, each from the last round that it was in; and whether the host may have been timed."""
    programs, group = len(work.sets) // work.group, work.group
    us: dict[str, float] = {}
    for arm in arms:
        arm.turn(1, 1, group)  # loads
        us[arm.name] = 1e6 * min(arm.turn(1, 1, group) for _ in range(2))
    if not us:
        return us, False
    least = min(us.values())
    near = [arm for arm in arms if us[arm.name] <= _SLOW * least]

    def turns(racing: list[Arm], rounds: int, turn_ms: float, warmup_ms: float) -> None:
        for arm in racing:
            arm.times.clear()
        take_turns(racing, programs, group, alternations=rounds, turn_ms=turn_ms, warmup_ms=warmup_ms)
        us.update({arm.name: 1e6 * statistics.median(arm.times) for arm in racing})

    if len(near) > _FINALISTS:
        turns(near, protocol.rounds[0], protocol.turn_ms / 2, 0)
    finalists = sorted(near, key=lambda arm: us[arm.name])[:_FINALISTS] + ([] if xla is None else [xla])
    turns(finalists, protocol.rounds[1], protocol.turn_ms, protocol.warmup_ms)
    best = min(finalists, key=lambda arm: us[arm.name])
    return us, best.dispatch > _HOST_BOUND


class _Work(NamedTuple):
    """What an arm is to compute.

    Attributes:
      sets: of operands.
      group: sets that one program takes.
      rounds: of a loop in the program; 0 where it has none.
    """

    sets: list[tuple[Any, ...]]
    group: int
    rounds: int

    def without_loop(self) -> _Work:
        """The same in programs of products alone."""
        group = min(len(self.sets), LARGEST_GROUP)
        return _Work(self.sets[: len(self.sets) // group * group], group, 0)


def _work(product: Product, device: jax.Device) -> _Work:
    """Sets of random operands that together are more than twice the L2 cache, and how programs share them.

    A dispatch costs the host some 100 us, and more with each operand and result: what is short is computed in a loop on
    the device (contenders.py).
    """
    structs = shapes_of(product)
    result = jax.eval_shape(program_of(product, "xla", None), *structs)
    footprint = sum(math.prod(s.shape) * jnp.dtype(s.dtype).itemsize for s in (*structs, result))
    count, group, rounds = 1, 1, 0
    if device.platform == "gpu":
        count = max(3, math.ceil(2.5 * l2_bytes() / footprint))
        limit = (device.memory_stats() or {}).get("bytes_limit")
        if limit:
            count = max(1, min(count, int(0.2 * limit / footprint)))
        us = footprint / 3e6 + 2 * math.prod(result.shape) * _contracted_size(product) / 500e6
        if us < SHORT_US:
            count = group = min(count, LARGEST_LOOP)
            rounds = max(2, math.ceil(_LOOP_US / (count * max(2, us))))
        else:
            group = min(count, LARGEST_GROUP, max(3, math.ceil(_LEAST_PROGRAM_US / us)))
            count = group * math.ceil(count / group)

    @jax.jit
    def make(seed: Any) -> tuple[Any, ...]:
        keys = jax.random.split(jax.random.key(seed), len(structs))
        return tuple(random_operand(k, s) for k, s in zip(keys, structs, strict=True))

    return _Work([make(np.int32(seed)) for seed in range(count)], group, rounds)


def _contracted_size(product: Product) -> int:
    spec = product.request.spec
    return math.prod(
        size for label, size in label_sizes(spec, product.operands).items() if label not in parse_spec(spec).out
    )


def _programs(product: Product, candidates: Sequence[GemmConfig], target: Target) -> dict[str, Callable[..., Any]]:
    """By config a function of one set of operands."""
    funs = {}
    for row in candidates:
        request = dataclasses.replace(product.request, config=row.name)
        funs[row.name] = program_of(dataclasses.replace(product, request=request), "moye", target.interpret)
    return funs


def _compile_all(funs: Mapping[str, Callable[..., Any]], work: _Work) -> dict[str, Arm | str]:
    """Arms, or why there is none. Lowering is Python's, here; compiling is XLA's, in threads."""
    made: dict[str, Any] = {}
    with concurrent.futures.ThreadPoolExecutor(max(1, min(16, os.cpu_count() or 1))) as pool:
        for name, fun in funs.items():
            try:
                made[name] = pool.submit(_lower(name, jax.jit(fun), work))  # jitted, it is traced once for all sets
            except Exception as error:  # what keeps one config from being timed keeps no other
                made[name] = first_line(error)
        for name, future in made.items():
            try:
                made[name] = future if isinstance(future, str) else future.result()
            except Exception as error:
                made[name] = first_line(error)
    return made


def _lower(name: str, fun: Callable[..., Any], work: _Work) -> Callable[[], Arm]:
    """Traces; the function it returns compiles, in any thread."""
    if work.rounds:
        arm = looped_arm(name, fun, [list(operands) for operands in zip(*work.sets, strict=True)], work.rounds)
        assert arm.lower is not None
        compile_it = arm.lower()

        def compiled() -> Arm:
            compile_it()
            return arm

        return compiled

    size = len(work.sets[0])
    flat = [x for one in work.sets for x in one]
    programs = [flat[i : i + size * work.group] for i in range(0, len(flat), size * work.group)]

    def program(*operands: Any) -> tuple[Any, ...]:
        return tuple(fun(*operands[i : i + size]) for i in range(0, len(operands), size))

    lowered = jax.jit(program).lower(*programs[0])
    return lambda: _arm(name, lowered.compile(), programs)


def _arm(name: str, compiled: Any, programs: Sequence[Sequence[Any]]) -> Arm:
    last: list[Any] = []

    def run(i: int) -> Sequence[Any]:
        last[:] = compiled(*programs[i])  # the results before are dropped: the device reuses their memory in order
        return list(last)

    def wait() -> None:
        jax.block_until_ready(last)
        last.clear()  # all configs' results of a large product would not fit the memory

    return Arm(name, run, wait)


def first_line(error: Exception) -> str:
    """An exception's type and what it says, shortened."""
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:300]}"


# -------------------------------------------------------------------------------------------------------- correctness


class _Reference:
    """A product in float64, and what the error of each element may be, by the norms of its row of a and column of b."""

    def __init__(self, product: Product, call: KernelCall, operands: Sequence[Any]) -> None:
        request = product.request
        self.is_integer = jnp.issubdtype(request.out_dtype, jnp.integer)
        self.out_dtype = request.out_dtype
        options = quick_options()

        def float64(operand: Operand) -> Operand:
            return dataclasses.replace(operand, dtype=jnp.dtype("float64"))

        wide = dataclasses.replace(
            product,
            request=dataclasses.replace(request, out_dtype=jnp.dtype("float64"), precision=None),
            operands=(float64(product.operands[0]), float64(product.operands[1])),
        )
        fun = jax.jit(program_of(wide, "xla", None), compiler_options=options)
        exact = fun(*(x.astype(jnp.float64) for x in operands))
        if self.is_integer:  # wraps around, in every order alike
            self.exact, self.bound = exact.astype(jnp.int64).astype(request.out_dtype), None
            return
        factor, unit = _factor(call.problem, call.split), float(jnp.finfo(request.out_dtype).eps) / 2
        looser = 2.0**-9 if call.problem.dtype in ("f32", "tf32") and not _is_highest(request.precision) else 0.0
        finish = 2.0**-10 if request.epilogue is not None or request.beta != 0 else 0.0
        parsed = parse_spec(request.spec)

        @jax.jit
        def bounds(exact: Any, *operands: Any) -> tuple[Any, Any]:
            norms = []
            for x, operand, labels in zip(operands[:2], product.operands, parsed[:2], strict=True):
                x = x if operand.permutation is None else lax.transpose(x, operand.permutation)
                summed = tuple(i for i, label in enumerate(labels) if label not in parsed.out)
                kept = [label for label in labels if label in parsed.out]
                norm = jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float64)), summed))
                norm = jnp.transpose(norm, [kept.index(label) for label in parsed.out if label in kept])
                norms.append(lax.expand_dims(norm, [i for i, label in enumerate(parsed.out) if label not in kept]))
            rounded = exact.astype(request.out_dtype).astype(jnp.float64)
            scale = norms[0] * norms[1]
            room = unit * jnp.abs(exact) + finish + float(jnp.finfo(request.out_dtype).tiny)
            # What overflows the result's dtype has no error.
            room = jnp.where(jnp.isfinite(rounded), room, jnp.inf)
            return 1.2 * factor * scale + room, (1.2 * factor + looser) * scale + room

        self.exact = exact
        self.bound = bounds(exact, *operands)

    def excess(self, d: Any, of_xla: bool) -> float:
        """The largest |error| over its bound, infinite where there is a NaN."""
        if self.bound is None:
            return 0.0 if bool(jnp.array_equal(d, self.exact)) else math.inf
        return float(_excess(d, self.exact, self.bound[of_xla]))


@jax.jit
def _excess(d: Any, exact: Any, bound: Any) -> Any:
    ratio = jnp.where(jnp.isinf(bound), 0.0, jnp.abs(d.astype(jnp.float64) - exact) / bound)
    return jnp.max(jnp.where(jnp.isnan(ratio), jnp.inf, ratio), initial=0.0)


def _factor(problem: GemmProblem, split: bool) -> float:
    """The bound of a sum's error over the sum of magnitudes: docs/precision.md."""
    chunks = (math.ceil(problem.k / 16) + 2) * 2.0**-23  # tensor cores: 16 products exactly, sums in f32 cut off
    if split:
        return 3 * chunks + 2.0**-19
    if problem.dtype in ("e4m3", "e5m2"):
        return chunks + (math.ceil(problem.k / 32) + 4) * 2.0**-13
    if problem.sums == "f16":
        return problem.k * 2.0**-10
    return {
        "tf32": chunks + 2.0**-9,
        "f32": problem.k * 2.0**-23,
        "f64": problem.k * 2.0**-51,
    }.get(problem.dtype, chunks)


def _is_highest(precision: Any) -> bool:
    return isinstance(precision, tuple) and all(level == lax.Precision.HIGHEST for level in precision)


def _checked(reference: _Reference, arm: Arm | str, of_xla: bool) -> Arm | str:
    """The arm if its result is right; else why it has no time."""
    if isinstance(arm, str):
        return arm
    try:
        worst = reference.excess(arm.run(0)[0], of_xla)
        arm.wait()
    except Exception as error:  # a launch that fails
        return first_line(error)
    return arm if worst <= 1 else f"WRONG: the largest error is {worst:.3g} times its bound"
