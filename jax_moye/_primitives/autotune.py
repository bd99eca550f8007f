"""Products that are measured while a program is lowered for the GPU of this process, before anybody decides about them.

    decide_by_measuring(request, operands, target, xla)      decide(request, operands, target), where all is known

Attention is measured likewise, when and how often as products are (contests.py).

What is measured goes where `tune` writes: `decide` finds it there, now and in the next process. Nothing is measured for
another machine, where the caller's contract leaves no choice, where XLA is sure to be faster, or where there is no
memory to spare: the tables and the model decide then, as they do where anything goes wrong here. A thread of its own
does it, where neither the contexts nor the options of the thread that traces are seen.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jax_moye import _compat
from jax_moye._format import error_line
from jax_moye._primitives.product_race import XlaProgram, is_plain, measured
from jax_moye._selection import measurements
from jax_moye._selection.attention import AttentionRequest
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.cost import in_program_us
from jax_moye._selection.decide import Decision, KernelCall, decide, signature_of
from jax_moye._selection.entry import Entry, parse_entry
from jax_moye._selection.leads import is_lost, is_outer_product
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.ranking import contenders
from jax_moye._selection.request import Operands, Request, describe

# Of the model's order, beside kernels that nobody has timed: docs/performance.md says how near the best of them is to
# the best of all.
CANDIDATES = 12
# An entry of the package's table counts where it has timed so many of today's first. Configs came since most of them
# were measured: of 15 products of the table that were raced again, ours had gained 1.10 on XLA in the geometric mean
# (docs/performance.md, section 52).
_FIRST = 4
_SAY_EVERY_S = 2.0  # of measuring, on a terminal
_OTHERS_WAIT_S = 120.0  # for what the first of several processes measures

Key = tuple[str, Any, str]  # signature of what XLA computes, problem and variant

_logger = logging.getLogger("jax_moye")
_turn = threading.Lock()  # one product is timed at a time
_settled: set[Key] = set()  # what was measured, or could not be: nothing is tried twice
_spent = [0.0, 0, 0.0]  # seconds and products of this process, and the seconds when it was last said


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
    if decision.kind == "xla" and _is_lost(decision, call):
        return decision
    of = signature_of(request, operands)
    variant = measurements.variant(request.spec, request.epilogue, request.beta, call.split)
    # Who insists has measured no XLA.
    key = (f"{of} alone" if request.insists else of, measurements.usual_key(call.problem), variant)
    entry = decision.entry
    if entry is not None and not (request.insists or of in entry.xla_us or entry.host_bound):
        entry = None  # of other dtypes, for which XLA was not timed
    if entry is not None and decision.source == "table" and _is_outdated(entry, call.problem, target):
        entry = None

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


def _is_outdated(entry: Entry, problem: GemmProblem, target: LoweringTarget) -> bool:
    """Whether an entry is of a time before some config that the model names among the first today."""
    first = contenders(problem, target.arch, target.configs, _FIRST)[:_FIRST]
    timed = {name.rpartition("_a")[0] for name in entry.us}  # whatever the alignment: it is no time of its own
    return any(config.name.rpartition("_a")[0] not in timed for config in first)


def _is_lost(decision: Decision, call: KernelCall) -> bool:
    """Whether a decision for XLA that nothing was measured for is so sure that a race would change nothing.

    Processes that have to agree may know different things: what is lost to one the first one may have measured.
    """
    times, problem = decision.predicted, call.problem
    if is_outer_product(problem):
        return True
    if times is None or times.xla is None or _compat.key_value_store() is not None:
        return False
    return is_lost(problem, in_program_us(times.ours), times.xla)


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
    return parse_entry(json.loads(text))
