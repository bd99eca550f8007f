"""Products that are measured while a program is lowered for the GPU of this process, before anybody decides about them.

    decide_by_measuring(request, operands, target, xla)      decide(request, operands, target), where all is known

Attention is measured likewise, when and how often as products are (contests.py).

What is measured goes where `tune` writes: `decide` finds it there, now and in the next process. Nothing is measured for
another machine, where the caller's contract leaves no choice, or where there is no memory to spare: the tables and the
model decide then, as they do where anything goes wrong here. A thread of its own does it, where neither the contexts
nor the options of the thread that traces are seen.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import logging
import math
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_moye import _compat
from jax_moye._format import error_line, significant
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import ITEM_BYTES, numpy_dtype, numpy_dtypes
from jax_moye._primitives.padding import unpadded
from jax_moye._primitives.transposes import Permutations
from jax_moye._selection import measurements
from jax_moye._selection.attention import AttentionRequest
from jax_moye._selection.capability import LoweringTarget, launched
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.decide import Decision, KernelCall, decide, signature_of
from jax_moye._selection.epilogue import SECOND_B
from jax_moye._selection.measurements import Entry
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.ranking import contenders
from jax_moye._selection.request import Operands, Request, describe
from jax_moye._timing.direct import DirectProduct, Layout, same_result
from jax_moye._timing.rounds import Contender, Race, race

# Of the model's order, beside kernels that nobody has timed: docs/performance.md says how near the best of them is to
# the best of all.
CANDIDATES = 12
# Configs so near the fastest one are equal: the model's order decides, and two runs find the same more often.
TIE, _HOST_BOUND_TIE = 1.01, 1.05
RACE = Race(slow=1.2, finalists=4, rounds=(2, 9), round_ms=1.0, warmup_ms=0.0)
# Products of so many operations draw all the power that a GPU has. Rounds without rests lower its clock while they are
# timed, and name another config the fastest than a program's long runs do: section 35 of docs/performance.md.
_POWERFUL = 2e10
_RESTING = RACE._replace(round_ms=0.4, idle_ms=4.0)
_SIDES = {"a": "a", "b": "b", SECOND_B: "b"}  # of the problem, whose lines may be padded
_SAY_EVERY_S = 2.0  # of measuring, on a terminal
_OTHERS_WAIT_S = 120.0  # for what the first of several processes measures

Key = tuple[str, Any, str]  # signature of what XLA computes, problem and variant

_logger = logging.getLogger("jax_moye")
_turn = threading.Lock()  # one product is timed at a time
_settled: set[Key] = set()  # what was measured, or could not be: nothing is tried twice
_spent = [0.0, 0, 0.0]  # seconds and products of this process, and the seconds when it was last said


class Joined(NamedTuple):
    """What XLA computes of arrays that lie otherwise in memory than a kernel's operands.

    Attributes:
      join: makes of the operands behind lhs one array, before anything is timed.
      program: of lhs and that array.
    """

    join: Callable[..., Any]
    program: Callable[..., Any]


XlaProgram = Callable[..., Any] | Joined


class InterruptedMeasurementError(Exception):
    """The program ends while something is measured."""


class _NotMeasuredError(Exception):
    """A product cannot be measured; the text says why. The safe choice is left."""


def decide_by_measuring(
    request: Request,
    operands: Operands,
    target: LoweringTarget,
    xla: XlaProgram,
    others: Mapping[str, Sequence[int]] | None = None,
) -> Decision:
    """Decides about a product, which is measured before unless that is done or would change nothing.

    Args:
      request: what the caller asked for.
      operands: lhs and rhs as they are in memory.
      target: what is lowered for.
      xla: the product, with its epilogue, as XLA would compute it: of lhs, rhs and the other operands.
      others: by name, the shape of each operand of the epilogue, in its order.
    """
    decision = decide(request, operands, target)
    if request.config is not None or not would_measure(request, target):
        return decision
    call = decision.call
    is_a_choice = decision.kind == "kernel" or (decision.kind == "xla" and decision.cause == "time")
    if call is None or not is_a_choice or call.split or not is_plain(request, operands, call, others or {}):
        return decision
    of = signature_of(request, operands)
    variant = measurements.variant(request.spec, request.epilogue, request.beta, call.split)
    # Who insists has measured no XLA.
    key = (f"{of} alone" if request.insists else of, measurements.usual_key(call.problem), variant)
    entry = decision.entry
    if entry is not None and not (request.insists or of in entry.xla_us or entry.host_bound):
        entry = None  # of other dtypes, for which XLA was not timed

    def measure(stop: threading.Event) -> Entry:
        candidates = contenders(call.problem, target.arch, target.configs, CANDIDATES)
        return measured(request, operands, call, candidates, xla, dict(others or {}), stop=stop)

    is_new = settle(key, entry, target, describe(request, operands), measure)
    return decide(request, operands, target) if is_new else decision


def settle(
    key: Key, entry: Entry | None, target: LoweringTarget, what: str, measure: Callable[[threading.Event], Entry]
) -> bool:
    """Measures what nobody has, and keeps it. Returns whether that may have changed what a decision is made of.

    Args:
      key: of what is measured, and for whom.
      entry: what is known; None: nothing.
      target: what is lowered for.
      what: is measured, in words.
      measure: finds out, in a thread of its own; until the event is set.
    """
    assert target.device is not None
    with _turn:
        if key in _settled:  # perhaps by another thread, and just now
            return entry is None
        _settled.add(key)
        begin = time.monotonic()
        try:
            found = _agreed(key, entry, lambda: _in_a_thread(measure))
        except _NotMeasuredError as error:
            _logger.info("%s is not measured: %s", what, error)
            if _compat.key_value_store() is not None:  # the other processes have nothing of it, too
                measurements.remember(target.device.kind, key[1:], None)
            return True
        except BaseException:  # an interrupt: another program may measure it
            _settled.discard(key)
            raise
        if found is entry:
            return False
        seconds = time.monotonic() - begin
        _spent[0] += seconds
        _spent[1] += 1
        _keep(target.device.kind, target.arch, found)
        _say(what, found, seconds)
    return True


def race_of(flops: int) -> Race:
    """How contenders are told apart that compute something of so many operations."""
    return _RESTING if flops >= _POWERFUL else RACE


def would_measure(request: Request | AttentionRequest, target: LoweringTarget) -> bool:
    """Whether what is asked for is measured in this process, as far as options and target say.

    Args:
      request: what the caller asked for.
      target: what is lowered for.
    """
    return (
        target.platform == "cuda"
        and target.device is not None
        and target.unavailable is None
        and not target.is_elsewhere
        and target.arch == _compat.cuda_arch()
        and request.implementation != "xla"
        and not request.batch_invariant
        and not request.deterministic
        and measurements.autotune_mode(request.autotune) == "on"
    )


def is_plain(request: Request, operands: Operands, call: KernelCall, others: Mapping[str, Sequence[int]]) -> bool:
    """Whether the kernel reads what is in memory, and writes what is asked for: nothing is around it.

    Of scales nobody makes operands to measure with.

    Args:
      request: what the caller asked for.
      operands: lhs and rhs.
      call: how the kernel computes it.
      others: the shapes of the epilogue's operands.
    """
    problem = call.problem
    of_a, of_b = numpy_dtypes(problem.dtype)
    if problem.scaled:
        return False
    *batch, m, n, k = problem.sizes
    sizes = {"a": (*batch, m, k), "b": (*batch, n, k)}
    left, right = (call.operands[1], call.operands[0]) if problem.swapped else call.operands
    dense = all(
        _extent(sizes[name], problem.strides[name]) == math.prod(operand.shape)
        for name, operand in (("a", left), ("b", right))
    )
    sizes |= {SECOND_B: sizes["b"]}
    dense &= all(
        _extent(sizes.get(name, (*batch, m, n)), strides) == math.prod(others[name])
        for name, strides in _epilogue_strides(request, call).items()
    )
    return (
        dense
        and call.operands == operands
        and (jnp.dtype(left.dtype), jnp.dtype(right.dtype)) == (of_a, of_b)
        and jnp.dtype(request.out_dtype) == numpy_dtype(problem.out_dtype)
    )


def _extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    return 1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))


def _epilogue_strides(request: Request, call: KernelCall) -> dict[str, tuple[int, ...]]:
    if call.epilogue is not None:
        return dict(zip((name for name, _ in call.epilogue.operands), call.epilogue_strides, strict=True))
    return {} if request.beta == 0 else {"c": call.problem.strides["d"]}


# ---------------------------------------------------------------------------------------------------- one measurement


def _in_a_thread(measure: Callable[[threading.Event], Entry]) -> Entry:
    """Runs it where no context of the caller holds. An interrupt reaches the caller at once."""
    stop, done = threading.Event(), threading.Event()
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(measure(stop))
        except BaseException as error:
            outcome.append(error)
        finally:
            done.set()

    threading.Thread(target=run, name="jax_moye-autotune", daemon=True).start()
    try:
        done.wait()  # not join(): after an interrupt Python takes the thread for ended
    except BaseException:
        stop.set()
        done.wait(5)  # so that the memory is given back
        raise
    error = outcome[0]
    if isinstance(error, (MemoryError, RuntimeError, ValueError)):  # of memory, of CUDA, of XLA
        raise _NotMeasuredError(error_line(error)) from error
    if isinstance(error, BaseException):
        raise error
    return error


def measured(
    request: Request,
    operands: Operands,
    call: KernelCall,
    candidates: Sequence[GemmConfig],
    xla: XlaProgram,
    others: Mapping[str, Sequence[int]],
    stop: threading.Event | None = None,
) -> Entry:
    """What is found of one product, in some tenths of a second beside XLA's compilation.

    Args:
      request: what the caller asked for.
      operands: lhs and rhs as they are in memory, as `is_plain` says.
      call: how our kernels compute it.
      candidates: the configs, in the model's order.
      xla: as in `decide_by_measuring`; not used where the request insists on our kernels.
      others: likewise.
      stop: set by who wants no result any more.

    Raises:
      MemoryError: the GPU has too little to spare.
      RuntimeError: of CUDA or XLA; or no config computes the product as XLA does.
    """
    problem, stop = call.problem, stop or threading.Event()
    device = jax.local_devices(backend="cuda")[0]
    epilogue = call.epilogue
    kept = (
        [] if epilogue is None or not epilogue.keeps else ["preactivation", *["second_product"] * epilogue.is_of_pair]
    )
    layout = Layout(
        sizes=problem.sizes,
        strides=problem.strides | _epilogue_strides(request, call) | dict.fromkeys(kept, problem.strides["d"]),
        dtype=problem.dtype,
        out_dtype=problem.out_dtype,
        activation="none" if epilogue is None else epilogue.timed_as,
        alpha=1.0 if epilogue is None else epilogue.alpha,
        beta=request.beta if epilogue is None else epilogue.beta,
    )
    xlas = functools.partial(_xla_contender, operands=operands, swapped=problem.swapped, xla=xla, others=others)
    rival, is_fused, contenders = None, False, []
    with jax.enable_x64(True), contextlib.ExitStack() as opened:
        for read, configs in _by_what_they_read(problem, candidates).items():
            strides = dict(layout.strides) | {
                name: read.strides[side] for name, side in _SIDES.items() if name in layout.strides
            }
            names = [config.name for config in configs]
            product = opened.enter_context(DirectProduct(layout._replace(strides=strides), device, names))
            theirs = None
            if not request.insists and read is problem:
                rival, theirs, is_fused = xlas(product)
                is_fused = is_fused and (epilogue is None or epilogue.is_nothing) and request.beta == 0
            elif not request.insists:
                _, theirs, _ = xlas(product, padded=(problem, read))
            if not request.insists and read is problem and request.xlas_orders != (None, None):  # other numbers then
                rival, _, is_fused = xlas(product, orders=request.xlas_orders)
            contenders += _ours(product, names, theirs, stop, _padding_us(problem, read))
        interrupt([*contenders, *([] if rival is None else [rival])], stop)
        found = race(contenders, rival, race_of(layout.flops))
        del rival, theirs  # arrays on memory that is about to be given back
    us = {config.name: found.us[config.name] for config in candidates if config.name in found.us}
    if not us:
        raise RuntimeError("no config computes it as XLA does")
    return new_entry(request, operands, call, candidates, us, found.us.get("xla"), found.lead, is_fused=is_fused)


def _by_what_they_read(problem: GemmProblem, candidates: Sequence[GemmConfig]) -> dict[GemmProblem, list[GemmConfig]]:
    """The configs that read the operands as they are, whom XLA's program is timed with, and those of padded lines."""
    configs_of: dict[GemmProblem, list[GemmConfig]] = {problem: []}
    for config in candidates:
        configs_of.setdefault(launched(config, problem), []).append(config)
    return configs_of


def _padding_us(problem: GemmProblem, read: GemmProblem) -> float:
    """Microseconds of the kernels that pad lines, as if nothing else computed what they read."""
    us = 0.0
    for name, matrices, rows in zip("ab", problem.matrices, (problem.m, problem.n), strict=True):
        if problem.strides[name] != read.strides[name]:
            us += elementwise_us(2 * matrices * rows * problem.k * ITEM_BYTES[problem.dtype])
    return us


def _ours(
    product: DirectProduct, names: Sequence[str], theirs: np.ndarray | None, stop: threading.Event, padding_us: float
) -> list[Contender]:
    """The configs that compute a product, as XLA does.

    Args:
      product: has the operands.
      names: of the configs.
      theirs: a sample of XLA's result; None: nobody asks.
      stop: set by who wants no result any more.
      padding_us: microseconds in front of each product that are not timed, and are added.
    """
    contenders, right = [], b""
    for name in names:
        if stop.is_set():
            raise InterruptedMeasurementError
        with contextlib.suppress(RuntimeError):  # a config that this GPU cannot launch is no candidate
            contender = product.contender(name)
            result = product.sample()
            # Most configs sum in one order: their results are the same bits.
            if theirs is None or result.tobytes() == right or same_result(result, theirs):
                contenders.append(_behind(contender, padding_us))
                right = result.tobytes()
            else:
                _logger.warning("jax_moye: %s is not chosen: its result differs from XLA's", name)
    return contenders


def _behind(contender: Contender, padding_us: float) -> Contender:
    """A contender each of whose products stands behind what takes that long."""
    clock = contender.clock
    assert clock is not None
    if padding_us:
        seconds = contender.products * padding_us * 1e-6
        contender.clock = lambda passes: clock(passes) + passes * seconds
    return contender


def new_entry(
    request: Request,
    operands: Operands,
    call: KernelCall,
    candidates: Sequence[GemmConfig],
    us: Mapping[str, float],
    xla_us: float | None,
    lead: float | None,
    host_bound: bool = False,
    is_fused: bool = False,
) -> Entry:
    """What is kept of a measurement, by lowering and by `tune`.

    Args:
      request: what the caller asked for.
      operands: lhs and rhs as they are in memory.
      call: how our kernels compute it.
      candidates: the configs, in the model's order, which decides between equals.
      us: microseconds by config, of at least one of them.
      xla_us: of XLA; None where it has no time.
      lead: as `rounds.Outcome` has it.
      host_bound: likewise.
      is_fused: XLA computes it in a fusion, which takes in what stands behind the product, if that is XLA's.
    """
    tie = _HOST_BOUND_TIE if host_bound else TIE
    best = next(config for config in candidates if us.get(config.name, math.inf) <= tie * min(us.values()))
    signature = signature_of(request, operands)
    return Entry(
        problem=measurements.usual_key(call.problem),
        variant=measurements.variant(request.spec, request.epilogue, request.beta, call.split),
        config=best.name,
        row=measurements.config_digest(best),
        us={config.name: significant(us[config.name]) for config in candidates if config.name in us},
        xla_us={} if xla_us is None else {signature: significant(xla_us)},
        host_bound=host_bound,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        lead={} if lead is None else {signature: significant(lead)},
        fused=(signature,) if is_fused else (),
    )


def interrupt(contenders: Sequence[Contender], stop: threading.Event) -> None:
    """Lets contenders end with their next pass once the program does.

    Args:
      contenders: with clocks.
      stop: set once it does.
    """

    def unless_stopped(clock: Callable[[int], float], passes: int) -> float:
        if stop.is_set():
            raise InterruptedMeasurementError
        return clock(passes)

    for contender in contenders:
        assert contender.clock is not None
        contender.clock = functools.partial(unless_stopped, contender.clock)


def _xla_contender(
    product: DirectProduct,
    operands: Operands,
    swapped: bool,
    xla: XlaProgram,
    others: Mapping[str, Sequence[int]],
    orders: Permutations = (None, None),
    padded: tuple[GemmProblem, GemmProblem] | None = None,
) -> tuple[Contender, np.ndarray, bool]:
    """XLA's program, a sample of its result on the first operands, and whether no library computes it.

    Args:
      product: has the arrays.
      operands: lhs and rhs.
      swapped: rhs is a.
      xla: as in `decide_by_measuring`.
      others: likewise.
      orders: in which the memory of lhs and rhs is read, in place of their own: Request.xlas_orders.
      padded: the problem, and the one whose operands the arrays are; None where that is the same.
    """
    left, right = ("b", "a") if swapped else ("a", "b")
    shapes = {left: operands[0].shape, right: operands[1].shape, **others}
    order_of = dict(zip((left, right), orders, strict=True))
    names = [left, right, *others]
    dtypes = {left: operands[0].dtype, right: operands[1].dtype}
    arrays = list(zip(*(product.arrays(name) for name in names), strict=True))

    def shaped(name: str, x: Any) -> Any:
        dtype = jnp.dtype(dtypes.get(name, x.dtype))
        if x.dtype != dtype:  # 8-bit floats
            x = lax.bitcast_convert_type(x, dtype)
        side = _SIDES.get(name)
        if padded is not None and side is not None:
            problem, read = padded
            sizes = (*problem.batch_sizes, problem.m if side == "a" else problem.n, problem.k)
            x = unpadded(x, sizes, problem.strides[side], read.strides[side])
        order = order_of.get(name)
        if order is None:
            return x.reshape(shapes[name])
        return x.reshape([shapes[name][dim] for dim in order]).transpose(np.argsort(order))

    if isinstance(xla, Joined):
        joined = jax.jit(lambda *flat: xla.join(*map(shaped, names[1:], flat)))
        arrays = [(lhs, joined(*others)) for lhs, *others in arrays]

    def one(lhs: Any, *others: Any) -> Any:
        if isinstance(xla, Joined):
            return xla.program(shaped(left, lhs), *others)
        return xla(*map(shaped, names, (lhs, *others)))

    count = len(arrays[0])

    def several(*flat: Any) -> list[Any]:
        return [one(*flat[i : i + count]) for i in range(0, len(flat), count)]

    sharding = jax.sharding.SingleDeviceSharding(product.device)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in arrays[0]] * product.program_size
    program = jax.jit(several).lower(*types).compile()
    contender = product.xla_contender(program, arrays)
    result = jax.block_until_ready(jax.tree.leaves(contender.run(0))[0])  # of what is kept, too, the first is d
    return contender, product.sample(result), "__cublas" not in (program.as_text() or "")


# ------------------------------------------------------------------------------------------------- what becomes of it


def _keep(kind: str, arch: int | None, entry: Entry) -> None:
    """Into the user's cache; for this process alone where that cannot be written, or is not the first's."""
    path, driver, store = measurements.cache_file(kind), measurements.driver_version(), _compat.key_value_store()
    if path is not None and driver is not None and (store is None or store.process_id == 0):
        head = measurements.new_head(kind, driver, False, entry.date) | {"arch": arch}
        try:
            measurements.write(path, head, [entry])
            return
        except (OSError, ValueError) as error:
            _warn_once(path, error_line(error))
    measurements.remember(kind, entry.key, entry)


@functools.cache
def _warn_once(path: str, reason: str) -> None:
    _logger.warning("jax_moye: %s cannot be written, and what is measured is kept for this process: %s", path, reason)


def _say(what: str, entry: Entry, seconds: float) -> None:
    xla = "".join(f", XLA {us:g} us" for us in entry.xla_us.values())
    timed = f"{entry.config} {entry.us[entry.config]:g} us, the fastest of {len(entry.us)}{xla}"
    _logger.info("measured %s: %s (%.2f s)", what, timed, seconds)
    if _spent[0] - _spent[2] > _SAY_EVERY_S and sys.stderr.isatty():
        _spent[2] = _spent[0]
        print(f"jax_moye: {_spent[1]} products measured, {_spent[0]:.1f} s", file=sys.stderr, flush=True)


def _agreed(key: Key, entry: Entry | None, measure: Callable[[], Entry]) -> Entry:
    """What is known, or measured, of a product: in all processes of a program what the first one hands out.

    Args:
      key: of the product.
      entry: what this process knows; None where it knows nothing.
      measure: finds out.

    Raises:
      _NotMeasuredError: it cannot be measured, or the first process has not said so in time.
    """
    store = _compat.key_value_store()
    if store is None:
        return entry or measure()
    name = f"jax_moye/{measurements.key_digest(key)}"
    if store.process_id == 0:
        try:
            entry = entry or measure()
        except BaseException:
            store.put(name, "none")
            raise
        store.put(name, json.dumps(entry.to_dict()))
        return entry
    try:
        text = store.get(name, _OTHERS_WAIT_S)
    except Exception as error:  # of jaxlib, whose type is not public: a time-out, or a coordinator that is gone
        raise _NotMeasuredError(error_line(error)) from error
    if text == "none":
        raise _NotMeasuredError("the first process could not")
    return measurements.parse_entry(json.loads(text))
