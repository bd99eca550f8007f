"""One product that is measured: kernels of ours, and XLA's program, on the same operands in turns.

    is_plain      whether there is nothing around the kernel that would have to be timed, too
    measured      the race, and what is kept of it
    new_entry     what is kept of any measurement of a product

Who reads padded lines reads others' operands behind a padding: it has a set of its own, on which XLA computes once for
the comparison of results, and what the padding takes is added to its time.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import logging
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_moye._format import significant
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import ITEM_BYTES, numpy_dtype, numpy_dtypes
from jax_moye._primitives.padding import unpadded
from jax_moye._primitives.transposes import Permutations
from jax_moye._selection import measurements
from jax_moye._selection.capability import launched
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.decide import KernelCall, signature_of
from jax_moye._selection.entry import Entry
from jax_moye._selection.epilogue import SECOND_B
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.request import Operands, Request
from jax_moye._timing.direct import DirectProduct, Layout, same_result
from jax_moye._timing.rounds import Contender, Race, race

# Configs so near the fastest one are equal: the model's order decides, and two runs find the same more often.
TIE, _HOST_BOUND_TIE = 1.01, 1.05
RACE = Race(slow=1.2, finalists=4, rounds=(2, 9), round_ms=1.0, warmup_ms=0.0)
# Products of so many operations draw all the power that a GPU has. Rounds without rests lower its clock while they are
# timed, and name another config the fastest than a program's long runs do: section 35 of docs/performance.md.
_POWERFUL = 2e10
_RESTING = RACE._replace(round_ms=0.4, idle_ms=4.0)
_ADDS_PARTS = re.compile(r"%\S*reduce\S* = .* fusion\([^)]*%gemm_fusion")  # in HLO: a kernel of what another one made
_SIDES = {"a": "a", "b": "b", SECOND_B: "b"}  # of the problem, whose lines may be padded

_logger = logging.getLogger("jax_moye")


class Joined(NamedTuple):
    """What XLA computes of arrays that lie otherwise in memory than a kernel's operands.

    Attributes:
      join: makes of the operands behind lhs one array, before anything is timed.
      program: of lhs and that array.
    """

    join: Callable[..., Any]
    program: Callable[..., Any]


XlaProgram = Callable[..., Any] | Joined


class ByXla(NamedTuple):
    """How XLA computes a product.

    Attributes:
      is_fused: in a fusion, which takes in what stands behind the product, if that is XLA's; not by a library.
      is_parted: in parts of k, which another kernel adds up; in a program that is one with what stands behind.
    """

    is_fused: bool = False
    is_parted: bool = False

    @classmethod
    def of(cls, text: str) -> ByXla:
        """What a compiled program says of it."""
        return cls("__cublas" not in text, _ADDS_PARTS.search(text) is not None)


class InterruptedMeasurementError(Exception):
    """The program ends while something is measured."""


def race_of(flops: int) -> Race:
    """How contenders are told apart that compute something of so many operations."""
    return _RESTING if flops >= _POWERFUL else RACE


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
    rival, by_xla, contenders = None, ByXla(), []
    with jax.enable_x64(True), contextlib.ExitStack() as opened:
        for read, configs in _by_what_they_read(problem, candidates).items():
            strides = dict(layout.strides) | {
                name: read.strides[side] for name, side in _SIDES.items() if name in layout.strides
            }
            names = [config.name for config in configs]
            product = opened.enter_context(DirectProduct(layout._replace(strides=strides), device, names))
            theirs = None
            if not request.insists and read is not problem:
                _, theirs, _ = xlas(product, padded=(problem, read))
            elif not request.insists:
                rival, theirs, by_xla = xlas(product)
                if request.xlas_orders != (None, None):  # other numbers then
                    rival, _, by_xla = xlas(product, orders=request.xlas_orders)
            contenders += _ours(product, names, theirs, stop, _padding_us(problem, read))
        interrupt([*contenders, *([] if rival is None else [rival])], stop)
        found = race(contenders, rival, race_of(layout.flops))
        del rival, theirs  # arrays on memory that is about to be given back
    us = {config.name: found.us[config.name] for config in candidates if config.name in found.us}
    if not us:
        raise RuntimeError("no config computes it as XLA does")
    is_alone = (epilogue is None or epilogue.is_nothing) and request.beta == 0
    xlas_us, how = found.us.get("xla"), by_xla if is_alone else None
    return new_entry(request, operands, call, candidates, us, xlas_us, found.lead, by_xla=how)


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
    by_xla: ByXla | None = None,
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
      by_xla: how XLA computes it; None where that says nothing of a product alone.
    """
    by_xla = by_xla or ByXla()
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
        fused=(signature,) if by_xla.is_fused else (),
        parted=(signature,) if by_xla.is_parted else (),
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
) -> tuple[Contender, np.ndarray, ByXla]:
    """XLA's program, a sample of its result on the first operands, and how it computes it.

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
    return contender, product.sample(result), ByXla.of(program.as_text() or "")
