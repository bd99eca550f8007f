"""Contenders that alternate: the order, what counts, what a round's time is divided by, intervals of ratios."""

from __future__ import annotations

import numpy as np
import pytest

from jax_moye._timing import rounds
from jax_moye._timing.rounds import Contender, Race, alternate, race


def contender(log, name, **fields):
    return Contender(name, lambda i: log.append((name, i)) or [], lambda: None, **fields)


def test_alternation():
    log = []
    two = [contender(log, name, programs=2, products=6) for name in "xy"]
    alternate(two, rounds=4, round_ms=0, warmup_ms=0)
    assert all(len(one.times) == len(one.spans) == 4 for one in two)
    order = [name for name, i in log if i == 0]
    assert order == ["x", "x", "y", "y"] + ["x", "x", "y", "y", "y", "y", "x", "x"] * 2  # the first pass does not count
    assert log[:2] == [("x", 0), ("x", 1)]  # both programs


def test_burst(monkeypatch):
    log, slept = [], []
    monkeypatch.setattr(rounds.time, "sleep", slept.append)
    one = contender(log, "x")
    alternate([one], rounds=3, round_ms=0, warmup_ms=0, idle_ms=50)
    assert slept == [0.05] * 3
    assert len(one.times) == len(one.spans) == 3
    assert len(log) == 2 + 2 * 3  # one pass behind each rest, which does not count


def test_a_round_counts_its_products(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: next(clock))
    assert contender([], "x", products=20).round(1) == 2 / 20  # five products, four times in a loop


def test_what_is_measured_anew_forgets_what_was_measured():
    one = contender([], "x", products=3)
    one.round(1)
    assert len(one.spans) == 1
    one.uncounted_round(1)
    assert len(one.spans) == 1
    alternate([one], rounds=2, round_ms=0, warmup_ms=0)
    assert len(one.times) == len(one.spans) == 2
    one.forget()
    assert (one.times, one.spans, one.dispatch) == ([], [], 0.0)
    assert one.products == 3


def test_a_trial_is_the_better_pass_and_leaves_nothing(monkeypatch):
    seconds = iter([9.0, 3.0, 2.0])  # loads, then two passes
    clock = {"now": 0.0}
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: clock["now"])

    def run(i):
        clock["now"] += next(seconds)

    one = Contender("x", run, lambda: None, products=4)
    assert one.trial() == 2.0 / 4
    assert (one.times, one.spans, one.dispatch, one.once) == ([], [], 0.0, 2.0)
    on_the_device = iter([3.0, 2.0])
    assert Contender("x", pytest.fail, pytest.fail, products=4, clock=lambda _: next(on_the_device)).trial() == 2.0 / 4


def test_the_host_is_the_limit_where_nearly_all_of_a_round_is_dispatching(monkeypatch):
    clock = {"now": 0.0}
    monkeypatch.setattr(rounds.time, "perf_counter", lambda: clock["now"])

    def spend(seconds):
        clock["now"] += seconds

    for dispatching, expected in ((0.95, True), (0.85, False)):
        one = Contender("x", lambda i, s=dispatching: spend(s), lambda s=dispatching: spend(1 - s))
        one.round(1)
        assert one.host_bound == expected


def test_ratio_interval():
    rng = np.random.default_rng(0)
    ours, theirs = (scale * (1 + 0.01 * rng.standard_normal(15)) for scale in (1.0, 1.1))
    low, high = rounds.ratio_interval(theirs, ours)
    assert 1.08 < low < 1.1 < high < 1.12


def timed(name, times):
    return Contender(name, pytest.fail, pytest.fail, times=list(times))


def test_the_halves_have_each_round_once_and_both_directions():
    for rounds_ in range(rounds.LEAST_ROUNDS, 20):
        choosing, timing = rounds.halves(rounds_)
        assert choosing
        assert sorted(choosing + timing) == list(range(rounds_))
        for half in (choosing, timing):
            backward = sum(i % 2 for i in half)
            assert abs(len(half) - 2 * backward) <= 1  # as often as forward


def test_the_best_of_equals_is_no_better_than_one():
    """Eight baselines and ours, all alike: the least of the eight medians lies below ours, their ratio does not."""
    rng = np.random.default_rng(0)
    ratios, naive, inside = [], [], 0
    for _ in range(200):
        ours, *others = (timed(f"c{i}", 1 + 0.02 * rng.standard_normal(16)) for i in range(9))
        found = rounds.against_best(ours, others)
        ratios.append(found.ratio)
        naive.append(min(other.seconds for other in others) / ours.seconds)
        inside += found.interval[0] <= 1 <= found.interval[1]
    assert np.mean(naive) < 0.993
    assert abs(np.mean(ratios) - 1) < 0.002
    assert inside >= 0.9 * len(ratios)


def test_against_the_best():
    """By the rounds 2, 3, 6, ... alone "x" is the best; its ratio is of the rounds 0, 1, 4, 5."""
    choosing, timing = rounds.halves(8)
    assert (choosing, timing) == ([2, 3, 6, 7], [0, 1, 4, 5])
    ours = timed("ours", [2.0] * 8)
    x = timed("x", [3.0 if i in timing else 1.0 for i in range(8)])
    y = timed("y", [1.5] * 8)
    found = rounds.against_best(ours, [y, x])
    assert (found.best.name, found.ratio, found.interval) == ("x", 1.5, (1.5, 1.5))
    alone = rounds.against_best(ours, [timed("x", [3.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])])
    assert alone.ratio == 0.5  # nothing is chosen: all rounds


RACE = Race(round_ms=0.0, warmup_ms=0.0)


class FakeContender(Contender):
    """A contender that takes as long as it is told; counts its rounds."""

    def __init__(self, name, seconds, dispatch=0.1):
        super().__init__(name, run=lambda i: [], wait=lambda: None)
        self.each, self.ran, self.share = seconds, 0, dispatch

    def round(self, passes):
        self.ran += 1
        self.dispatch = max(self.dispatch, self.share)
        return self.each


def test_the_race_spends_its_time_on_the_best():
    contenders = [FakeContender(f"c{i}", (10 + i) * 1e-6) for i in range(12)] + [FakeContender("slow", 100e-6)]
    xla = FakeContender("xla", 10.5e-6)
    us, host_bound, lead = race(contenders, xla, RACE)
    assert lead == pytest.approx(1.05)
    assert us == pytest.approx({one.name: one.each * 1e6 for one in [*contenders, xla]})
    assert not host_bound
    alone, first, last = 3, 2 * RACE.rounds[0], 2 * RACE.rounds[1]  # by the host's clock one pass before each
    assert [one.ran for one in contenders] == [alone + first + last] * 8 + [alone + first] * 4 + [alone]
    assert xla.ran == 2 + last
    assert len(contenders[0].times) == RACE.rounds[1]  # the median is of the last round
    assert race([FakeContender("c", 1e-6, 0.99)], None, RACE) == ({"c": pytest.approx(1.0)}, True, None)
    assert race([], xla, RACE) == ({}, False, None)


def test_a_race_ends_where_the_rival_was_the_faster_one_in_all_rounds():
    contenders = [FakeContender(f"c{i}", (10 + i) * 1e-6) for i in range(3)]
    found = race(contenders, FakeContender("xla", 9e-6), RACE)
    assert found.lead == pytest.approx(0.9)
    assert len(contenders[0].times) == rounds.LEAST_ROUNDS < RACE.rounds[1]

    class Once(FakeContender):  # once as fast as the rival
        def round(self, passes):
            super().round(passes)
            return self.each if self.ran != 5 else 9e-6

    contenders[2] = Once("c2", 12e-6)
    race(contenders, FakeContender("xla", 9e-6), RACE)
    assert len(contenders[0].times) == RACE.rounds[1]


@pytest.mark.parametrize(("ahead", "is_long"), [(1.08, True), (1.0, False), (0.97, False), (1.4, False)])
def test_a_lead_in_noise_is_looked_for_in_more_rounds(ahead, is_long):
    """Of 8 %, behind 5 % of noise: nine rounds rarely show it, 43 mostly do. Nobody else is given more of them."""
    rng = np.random.default_rng(1)

    class Noisy(FakeContender):
        def round(self, passes):
            return self.each * rng.normal(1, 0.05)

    def leads(how):
        found, ran = [], []
        for _ in range(60):
            contenders = [Noisy(f"c{i}", 1e-4) for i in range(3)]
            found.append(race(contenders, Noisy("xla", ahead * 1e-4), how).lead)
            ran.append(len(contenders[0].times))
        return np.mean(np.array(found) >= how.clear), ran

    few, _ = leads(RACE._replace(rounds=(2, 9), most=9))
    many, ran = leads(RACE._replace(rounds=(2, 9), most=43))
    assert (np.mean(ran) > 15) == is_long
    assert set(ran) <= {*range(rounds.LEAST_ROUNDS, 9), *range(9, 44)}
    assert max(ran) <= 43
    if is_long:
        assert few < 0.35
        assert many > 0.7
    else:
        assert many == pytest.approx(1.0 if ahead > 1.3 else 0.0, abs=0.1)


def test_who_was_left_out_is_not_the_fastest_by_an_earlier_clock():
    """The clock falls by a tenth before the last rounds: one 5 % slower than the best was left out with less time."""

    class Heating(FakeContender):
        def round(self, passes):
            return super().round(passes) * (1.1 if self.ran > 4 + 2 * RACE.rounds[0] else 1.0)

    contenders = [Heating(f"c{i}", 1e-5) for i in range(RACE.finalists)] + [Heating("left out", 1.05e-5)]
    us = race(contenders, FakeContender("xla", 2e-5), RACE).us
    assert us["c0"] == pytest.approx(11)
    assert us["left out"] == pytest.approx(1.05 * 11)


def test_a_devices_clock_replaces_the_hosts():
    """The clock says what all passes took; the host is not asked, and cannot be what was timed."""
    asked = []

    def clock(passes):
        asked.append(passes)
        return 12.0 * passes

    one = Contender("x", run=pytest.fail, wait=pytest.fail, products=6, clock=clock)
    assert one.round(5) == 2.0
    alternate([one], rounds=3, round_ms=60_000, warmup_ms=0)
    assert one.times == [2.0] * 3
    assert asked == [5, 1, 1, 5, 5, 5]
    assert not one.host_bound
    assert len(one.spans) == 3


@pytest.mark.parametrize("idle_ms", [0.0, 4.0])
def test_a_race_rests_before_each_round_where_it_is_told_to(monkeypatch, idle_ms):
    rests = []
    monkeypatch.setattr(rounds.time, "sleep", rests.append)
    contenders = [FakeContender(f"c{i}", (10 + i) * 1e-6) for i in range(RACE.finalists + 1)]
    race(contenders, FakeContender("xla", 10.5e-6), RACE._replace(idle_ms=idle_ms))
    before, last = (RACE.finalists + 1) * RACE.rounds[0], (RACE.finalists + 1) * RACE.rounds[1]
    assert rests == ([idle_ms / 1000] * (before + last) if idle_ms else [])


def test_who_is_only_lucky_has_no_lead():
    """Eight that are the rival's equals, 2 % of noise: the fastest of them does not seem to be faster than it."""
    rng = np.random.default_rng(0)

    class Noisy(FakeContender):
        def round(self, passes):
            return self.each * rng.normal(1, 0.02)

    leads = [
        race([Noisy(f"c{i}", 1e-4) for i in range(8)], Noisy("xla", 1e-4), RACE._replace(rounds=(2, 9))).lead
        for _ in range(200)
    ]
    assert np.mean(np.array(leads) > 1.0) < 0.1
    assert 0.95 < np.mean(leads) < 0.995
