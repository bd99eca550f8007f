"""Contenders that alternate in rounds, and what their times say: medians, intervals of ratios, host-bound or not."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

HOST_BOUND = 0.9  # share of a round that went into dispatching: nearly all work was done when the last was dispatched


@dataclasses.dataclass
class Contender:
    """Somebody who computes the products of a workload.

    Attributes:
      name: of a config, of a baseline, or "jax_moye".
      run: dispatches the i-th program and returns its results.
      wait: returns when all that was dispatched is done.
      programs: of one pass.
      products: that one pass computes.
      method: how the device is given its work, for the report.
      lower: where it is compiled ahead of the first run: traces (here), and returns what compiles (in any thread).
      clock: seconds that so many passes take by the device's own clock, which no host is in; None: by the host's.
      times: seconds per product, one for each round.
      spans: begin and end of each round, for `gpu.Sampler`.
      dispatch: largest share of a round that went into dispatching.
      once: seconds of a pass, about; None: it has not run.
    """

    name: str
    run: Callable[[int], Sequence[Any]]
    wait: Callable[[], None]
    programs: int = 1
    products: int = 1
    method: str = ""
    lower: Callable[[], Callable[[], None]] | None = None
    clock: Callable[[int], float] | None = None
    times: list[float] = dataclasses.field(default_factory=list)
    spans: list[tuple[float, float]] = dataclasses.field(default_factory=list)
    dispatch: float = 0.0
    once: float | None = None

    @property
    def seconds(self) -> float:
        """Per product: the median over the rounds."""
        return statistics.median(self.times)

    @property
    def host_bound(self) -> bool:
        """Whether the device may have waited for the host."""
        return self.dispatch > HOST_BOUND

    def round(self, passes: int) -> float:
        """Runs every program `passes` times; returns seconds per product."""
        start = time.perf_counter()
        if self.clock is not None:
            seconds = self.clock(passes)
            self.spans.append((start, time.perf_counter()))
            return seconds / (passes * self.products)
        for _ in range(passes):
            for i in range(self.programs):
                self.run(i)
        dispatched = time.perf_counter()
        self.wait()
        end = time.perf_counter()
        self.spans.append((start, end))
        self.dispatch = max(self.dispatch, (dispatched - start) / (end - start))
        return (end - start) / (passes * self.products)

    def uncounted_round(self, passes: int) -> float:
        """The same, of which nothing is kept."""
        spans, dispatch = len(self.spans), self.dispatch
        seconds = self.round(passes)
        del self.spans[spans:]
        self.dispatch = dispatch
        return seconds

    def trial(self) -> float:
        """Seconds per product, about: the better of two passes. Nothing of it is kept but `once`.

        By the host's clock they follow one that compiles, loads and captures.
        """
        if self.clock is None:
            self.uncounted_round(1)
        least = min(self.uncounted_round(1) for _ in range(2))
        self.once = least * self.products
        return least

    def forget(self) -> None:
        """Drops what was measured."""
        self.times.clear()
        self.spans.clear()
        self.dispatch = 0.0


def alternate(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    round_ms: float,
    warmup_ms: float,
    idle_ms: float = 0.0,
    enough: Callable[[], bool] | None = None,
) -> float:
    """Lets contenders alternate and fills in their times. What was measured of them before is dropped.

    By the host's clock the first pass of a round does not count: other programs used the same buffers meanwhile, so it
    makes its CUDA graph anew, which is no part of a product's time.

    Args:
      contenders: at least one.
      rounds: of each.
      round_ms: length of a round.
      warmup_ms: how long they alternate before the first round that counts.
      idle_ms: the device rests so long before each round, for times at its highest clock. The first pass after it does
        not count.
      enough: asked behind each round; no more follow once it says so.

    Returns:
      The seconds that all rounds took together.
    """
    passes = {}
    for contender in contenders:
        contender.forget()
        once = contender.once
        if once is None:
            contender.uncounted_round(1)  # compiles, loads, captures
            once = contender.uncounted_round(1) * contender.products
        passes[contender.name] = max(1, math.ceil(round_ms / 1000 / once))
    begin = time.monotonic()
    while time.monotonic() - begin < warmup_ms / 1000:
        for contender in contenders:
            contender.uncounted_round(passes[contender.name])
    for number in range(rounds):
        # Every other time backwards: nobody always runs behind the same other one.
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            if idle_ms:
                time.sleep(idle_ms / 1000)
            if idle_ms or contender.clock is None:
                contender.uncounted_round(1)
            contender.times.append(contender.round(passes[contender.name]))
        if enough is not None and enough():
            break
    return round(time.monotonic() - begin, 3)


class Race(NamedTuple):
    """How contenders are told apart: a trial of each, rounds of those that are not slow, rounds of the finalists.

    Attributes:
      slow: a contender whose trial takes more than this many times the fastest one's is left out.
      finalists: contenders, at most, that are left for the last rounds.
      rounds: of each contender before the last rounds, and in them; fewer once the rival was the faster one in all.
      most: of the last rounds, where the others seem to be faster than the rival and are not clearly so.
      clear: the lead that is looked for.
      round_ms: milliseconds of a round of the last ones; a round before them takes half of that.
      warmup_ms: milliseconds that the finalists run before their first round.
      idle_ms: milliseconds that the device rests before each round, as in `alternate`.
    """

    slow: float = 2.5
    finalists: int = 8
    rounds: tuple[int, int] = (3, 7)
    most: int = 43
    clear: float = 1.02
    round_ms: float = 15.0
    warmup_ms: float = 100.0
    idle_ms: float = 0.0


class Outcome(NamedTuple):
    """What a race found.

    Attributes:
      us: microseconds by contender, each from the last rounds that it was in; of those that were left out before the
        last ones, as the clock was in these: times what the finalists took longer there, at most.
      host_bound: whether the host may have been what was timed of the fastest.
      lead: low end of the interval of the rival's time over that of the fastest other, which other rounds chose; None
        without a rival.
    """

    us: dict[str, float]
    host_bound: bool
    lead: float | None


def race(contenders: Sequence[Contender], rival: Contender | None, how: Race) -> Outcome:
    """Times all shortly, and those that may be the fastest in rounds that alternate.

    The last rounds end where the rival's slowest one was faster than anybody's fastest: more would say the same. Where
    the others seem to lead and a few rounds cannot say so, more of them follow.

    Args:
      contenders: who is to be the fastest.
      rival: who is in the last rounds whatever his time is.
      how: which contenders are left out when, and how long rounds take.
    """
    us = {contender.name: 1e6 * contender.trial() for contender in contenders}
    if not us:
        return Outcome(us, False, None)
    least = min(us.values())
    near = [contender for contender in contenders if us[contender.name] <= how.slow * least]

    def time(racing: list[Contender], **given: Any) -> None:
        alternate(racing, idle_ms=how.idle_ms, **given)
        us.update({contender.name: 1e6 * contender.seconds for contender in racing})

    if len(near) > how.finalists:
        time(near, rounds=how.rounds[0], round_ms=how.round_ms / 2, warmup_ms=0)
    finalists = sorted(near, key=lambda contender: us[contender.name])[: how.finalists]
    before = dict(us)

    def is_settled() -> bool:
        if rival is None or (ran := len(rival.times)) < LEAST_ROUNDS:
            return False
        if max(rival.times) < min(min(contender.times) for contender in finalists):
            return True  # lost, whoever of them is chosen, by whatever rounds
        if ran < how.rounds[1] or (ran - how.rounds[1]) % _MORE_ROUNDS:
            return False
        versus = against_best(rival, finalists)
        return versus.ratio * how.clear > 1 or versus.interval[1] * how.clear <= 1

    time(
        finalists + ([] if rival is None else [rival]),
        rounds=how.rounds[1] if rival is None else max(how.rounds[1], how.most),
        round_ms=how.round_ms,
        warmup_ms=how.warmup_ms,
        enough=is_settled,
    )
    best = min(finalists, key=lambda contender: us[contender.name])
    # Earlier rounds may have had a higher clock: nobody who was left out is the fastest by that.
    slower = max(1.0, *(us[one.name] / before[one.name] for one in finalists))
    for one in contenders:
        if one not in finalists:
            us[one.name] *= slower
    lead = None
    if rival is not None:
        others = finalists if len(rival.times) >= LEAST_ROUNDS else [best]
        lead = 1 / against_best(rival, others).interval[1]
    host_bound = best.host_bound or (rival is not None and rival.host_bound)
    return Outcome(us, host_bound, lead)


LEAST_ROUNDS = 3  # of which some choose the best, and others time it
_MORE_ROUNDS = 4  # as often forward as backward, both in the rounds that choose and in those that time


def halves(rounds: int) -> tuple[list[int], list[int]]:
    """The rounds that choose the best of several contenders, and those that time it.

    The least of several noisy medians is too low: over the rounds that it was chosen by. In pairs, so that `alternate`
    goes forward and backward as often in both.
    """
    timing = [i for i in range(rounds) if i // 2 % 2 == 0]
    return [i for i in range(rounds) if i not in timing], timing


class Comparison(NamedTuple):
    """How the best of others does against one.

    Attributes:
      best: of the others.
      ratio: its time over the one's.
      interval: of the ratio (95 %).
    """

    best: Contender
    ratio: float
    interval: tuple[float, float]


def against_best(one: Contender, others: Sequence[Contender]) -> Comparison:
    """Compares one contender with the best of others, all behind the same rounds.

    The best is chosen in other rounds than those that make the ratio; where there is no choice, all of them do.

    Args:
      one: contender.
      others: at least one; several need LEAST_ROUNDS rounds.
    """
    choosing, timing = halves(len(one.times))
    if len(others) == 1:
        timing = list(range(len(one.times)))
        best = others[0]
    else:
        best = min(others, key=lambda other: statistics.median(other.times[i] for i in choosing))
    numerator, denominator = ([contender.times[i] for i in timing] for contender in (best, one))
    ratio = statistics.median(numerator) / statistics.median(denominator)
    return Comparison(best, ratio, ratio_interval(numerator, denominator))


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Bootstrap interval (95 %) of median(numerator) / median(denominator); rounds are drawn in pairs, as they ran."""
    rng = np.random.default_rng(0)
    pick = rng.integers(0, len(numerator), (draws, len(numerator)))
    ratios = np.median(np.asarray(numerator)[pick], axis=1) / np.median(np.asarray(denominator)[pick], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)
