"""A contest: what several of our kernels compute is timed next to what XLA makes of the program's own equations.

    measured(key, of, contest)      an entry for the file of measurements, as autotune.py has of products

All contenders are programs of XLA's, of which those of ours have custom calls: what stands around the kernels, such as
a transpose of an operand or the sums of o d_o, is in their time. What belongs together is one contest: XLA computes the
scores of a forward pass and of its gradients once. So attention is timed, and products of blocks that have scales.
"""

from __future__ import annotations

import concurrent.futures
import datetime
import functools
import hashlib
import json
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jax_moye._format import significant
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import SHORT_NAMES
from jax_moye._primitives.product_race import TIE, InterruptedMeasurementError, interrupt, race_of
from jax_moye._primitives.rewritten import Original
from jax_moye._selection.attention_times import together
from jax_moye._selection.entry import Entry, Timed
from jax_moye._selection.measurements import config_digest
from jax_moye._timing.direct import PASS_US, marked_contender, random_bytes, same_result
from jax_moye._timing.gpu import l2_bytes
from jax_moye._timing.operands import expected_us
from jax_moye._timing.rounds import Contender, race

_LARGEST_PROGRAM = 8  # attentions in a program: each has to be compiled
_SAMPLE = 65536  # elements of each result, to be compared
# Of each contender: the second run of a program with our calls, in which XLA makes its CUDA graph, waited for the
# device, which in a timed run waits for the host (docs/performance.md, section 41).
_RUNS_BEFORE = 3

_logger = logging.getLogger("jax_moye")


class Contest(NamedTuple):
    """Who can compute an attention, alone or with its gradients; or another product of several arrays.

    Attributes:
      ours: by the configs, the one that is chosen without measurements first: functions of the arrays in memory.
      xla: the program's equations, of the same arrays, with the same results.
      types: of the arrays.
      factor: of the first array, the queries: with normal operands scores are about 1, and no share is all.
      flops: of the products.
    """

    ours: Mapping[tuple[GemmConfig, ...], Callable[..., Sequence[Any]]]
    xla: Callable[..., Sequence[Any]]
    types: tuple[jax.ShapeDtypeStruct, ...]
    factor: float
    flops: int

    @property
    def footprint(self) -> int:
        """Bytes of operands and results, about."""
        return 2 * sum(math.prod(x.shape) * x.dtype.itemsize for x in self.types)


def signature_of(equations: Original) -> str:
    """A word for what XLA makes of equations: which they are, and the types of their results; not their constants.

    Args:
      equations: of the program.
    """
    words = [[one.primitive.name, *(str(x.aval) for x in one.outvars)] for one in equations.jaxpr.jaxpr.eqns]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()[:12]


def measured(key: Timed, of: str, contest: Contest, stop: threading.Event) -> Entry:
    """What is found of one attention, or of what else a contest is about.

    Args:
      key: of the entry.
      of: the signature of the program's equations, or another word for what XLA computes.
      contest: who can compute it.
      stop: set by who wants no result any more.

    Raises:
      RuntimeError: of CUDA or XLA, for example that there is too little memory; or no config computes it as XLA does.
    """
    device = jax.local_devices(backend="cuda")[0]
    with jax.enable_x64(True):  # of what a program has
        sets = operand_sets(contest, device)
        by_name = {together(config.name for config in configs): configs for configs in contest.ours}
        funs = {"xla": contest.xla} | {name: contest.ours[configs] for name, configs in by_name.items()}
        programs = _compiled(funs, sets, device, stop)
        rival, theirs = _contender("xla", programs, sets)
        contenders, names = [], {}
        for name, configs in by_name.items():
            if stop.is_set():
                raise InterruptedMeasurementError
            contender, results = _contender(name, programs, sets)
            if all(map(same_result, results, theirs)):
                contenders.append(contender)
                names[name] = configs
            else:
                _logger.warning("jax_moye: %s is not chosen: its result differs from XLA's", name)
        if not contenders:
            raise RuntimeError("no config computes it as XLA does")
        interrupt([*contenders, rival], stop)
        found = race(contenders, rival, race_of(contest.flops))
    us = {name: significant(found.us[name]) for name in names}
    best = next(name for name in names if us[name] <= TIE * min(us.values()))
    return Entry(
        problem=key,
        variant=of,  # programs may write one attention in several ways
        config=best,
        row=together(map(config_digest, names[best])),
        us=us,
        xla_us={of: significant(found.us["xla"])},
        host_bound=found.host_bound,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        lead={} if found.lead is None else {of: significant(found.lead)},
    )


def operand_sets(contest: Contest, device: jax.Device) -> list[list[jax.Array]]:
    """Random operands, one set for each attention of a program: as many as are larger than the L2 cache, or nearly.

    Args:
      contest: whose arrays they are.
      device: where they are.
    """
    enough = math.ceil(2 * l2_bytes() / contest.footprint)
    lengthy = math.ceil(PASS_US / expected_us(contest.flops, contest.footprint))
    sets = min(_LARGEST_PROGRAM, max(2, enough, lengthy))
    return [
        [jax.device_put(_random(contest, i, number), device) for i in range(len(contest.types))]
        for number in range(sets)
    ]


def _random(contest: Contest, i: int, number: int) -> np.ndarray:
    """One operand of a set: the same normal floats in all, from another place on."""
    of = contest.types[i]
    if of.dtype == jnp.bool_:
        return np.random.default_rng(number).random(of.shape) < 0.75
    if of.dtype.name == "float8_e8m0fnu":  # scales
        return np.exp2(np.random.default_rng(number).integers(-3, 4, of.shape)).astype(of.dtype)
    if of.dtype.name not in SHORT_NAMES or not jnp.issubdtype(of.dtype, jnp.floating):
        return np.zeros(of.shape, of.dtype)
    pattern = np.frombuffer(random_bytes(SHORT_NAMES[of.dtype.name]), of.dtype)
    elements = np.resize(np.roll(pattern, 4099 * (len(contest.types) * number + i)), of.shape)
    return elements * of.dtype.type(contest.factor) if i == 0 else elements


def _compiled(
    funs: Mapping[str, Callable[..., Sequence[Any]]],
    sets: Sequence[Sequence[jax.Array]],
    device: jax.Device,
    stop: threading.Event,
) -> dict[str, Callable[..., Any]]:
    """The contenders' programs, by name. They are traced one after the other, and XLA compiles them side by side.

    XLA may time kernels meanwhile, for its own contender alone: of ours nothing is run before all are there.
    """
    count = len(sets[0])

    def several(fun: Callable[..., Sequence[Any]], *flat: Any) -> list[Sequence[Any]]:
        return [fun(*flat[i : i + count]) for i in range(0, len(flat), count)]

    sharding = jax.sharding.SingleDeviceSharding(device)
    types = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding) for x in sets[0]] * len(sets)
    lowered = {}
    for name, fun in funs.items():
        if stop.is_set():
            raise InterruptedMeasurementError
        lowered[name] = jax.jit(functools.partial(several, fun)).lower(*types)
    with concurrent.futures.ThreadPoolExecutor(len(lowered)) as pool:
        tasks = {name: pool.submit(one.compile) for name, one in lowered.items()}
    return {name: task.result() for name, task in tasks.items()}


def _contender(
    name: str, programs: Mapping[str, Callable[..., Any]], sets: Sequence[Sequence[jax.Array]]
) -> tuple[Contender, list[np.ndarray]]:
    """A program, which has run before, and samples of its first results."""
    contender = marked_contender(name, programs[name], [[x for one in sets for x in one]], len(sets))
    for _ in range(_RUNS_BEFORE - 1):
        jax.block_until_ready(contender.run(0))
    return contender, [sample(x) for x in contender.run(0)[0]]


def sample(result: jax.Array) -> np.ndarray:
    """Elements of a result, evenly spread.

    Args:
      result: of a contender.
    """
    flat = result.reshape(-1)
    return np.asarray(flat[:: math.ceil(flat.size / _SAMPLE)])
