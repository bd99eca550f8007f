"""One measurement of an attention: who wins, what is kept, and which operands it has."""

from __future__ import annotations

import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attentions import FORMS, gradients, use_fake_rows

import jax_moye
from jax_moye._inspect.products import attentions_of
from jax_moye._primitives import attention, attention_lowering, contests
from jax_moye._primitives.contests import measured, signature_of
from jax_moye._primitives.product_race import InterruptedMeasurementError
from jax_moye._selection.attention_times import together
from jax_moye._selection.entry import parse_entry
from jax_moye._timing.direct import same_result
from jax_moye._timing.rounds import Contender

SIZES = (1, 64, 64, 2, 2, 128)


def structs(sizes=SIZES, dtype=jnp.bfloat16):
    b, t, s, h, n, d = sizes
    shapes = (b, t, h, d), (b, s, n, d), (b, s, n, d), (b, t, h, d)
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def found_in(fun, *args):
    """The first attention of a function's jaxpr."""
    one, _ = next(attentions_of(jax.make_jaxpr(fun)(*args).jaxpr))
    return one


@pytest.fixture
def one(places, monkeypatch):
    """A measurement whose clocks are played, and whose programs are XLA's on the CPU."""
    use_fake_rows(monkeypatch)
    monkeypatch.setattr(jax, "local_devices", lambda backend: jax.devices("cpu"))

    def run(us, xla_us, wrong=(), stop=None, fun=None, **changes):
        found = found_in(jax_moye.optimize(fun or gradients(FORMS["plain"], True)), *structs())
        params = found.interpreted(None)
        contest = attention_lowering.contest(params, found.operands, None, found.together)
        # Kernels are XLA's here, right or wrong; the first of ours is the rule's choice.
        played = {
            configs: (lambda *x, is_wrong=i in wrong: [2 * y if is_wrong else y for y in contest.xla(*x)])
            for i, configs in enumerate(contest.ours)
        }
        names = [together(one.name for one in configs) for configs in played]
        clocks = dict(zip(names, us, strict=False)) | {"xla": xla_us}

        def marked(name, compiled, groups, size):
            assert len(groups) == 1
            times, runs = clocks.get(name, 1000.0) * size, []

            def run(i):
                runs.append(i)
                return compiled(*groups[i])

            def clock(passes):
                assert len(runs) >= 3  # in the second XLA makes a graph, and waits for the device
                return passes * times * 1e-6

            return Contender(name, run, lambda: None, 1, size, clock=clock)

        monkeypatch.setattr(contests, "marked_contender", marked)
        monkeypatch.setattr(contests, "_LARGEST_PROGRAM", 2)  # attentions, each of which is compiled
        key = attention.attention_key(params, found.operands, found.together)
        of = signature_of(found.together.equations)
        played_contest = contest._replace(ours=played)
        return names, of, key, measured(key, of, played_contest, stop or threading.Event())

    return run


def test_the_fastest_is_kept_with_the_times_of_all(one):
    names, of, key, entry = one([30.0, 20.0], 40.0)
    assert (entry.problem, entry.variant, entry.config) == (key, of, names[1])
    assert (entry.us[names[0]], entry.us[names[1]], entry.xla_us) == (30.0, 20.0, {of: 40.0})
    assert entry.lead[of] == pytest.approx(2.0)
    assert entry.is_won_by_ours(of)
    assert parse_entry(entry.to_dict()) == entry


def test_ties_are_the_rules_choice_and_wrong_results_are_none(one, caplog):
    names, _, _, entry = one([20.1, 20.0], 40.0)
    assert entry.config == names[0]
    names, _, _, entry = one([1.0, 20.0], 40.0, wrong=[0])
    assert entry.config == names[1]
    assert names[0] not in entry.us
    assert f"{names[0]} is not chosen: its result differs from XLA's" in caplog.text
    with pytest.raises(RuntimeError, match="no config computes it as XLA does"):
        one([1.0], 40.0, wrong=range(9))


def test_each_contender_is_compiled_once_and_side_by_side(one, monkeypatch):
    """Each waits for the others: one after the other none would end."""
    compiled, of_jax, together_now = [], jax.stages.Lowered.compile, []

    def compile_with_others(lowered, *args, **kwargs):
        compiled.append(lowered)
        together_now[0].wait(timeout=60)
        return of_jax(lowered, *args, **kwargs)

    monkeypatch.setattr(jax.stages.Lowered, "compile", compile_with_others)
    together_now.append(threading.Barrier(5))  # two tiles of the forward pass with two of the gradients, and XLA
    names, _, _, entry = one([30.0, 20.0], 40.0)
    assert len(compiled) == len(names) + 1 == 5
    assert list(entry.us) == names


def test_a_told_measurement_stops(one):
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedMeasurementError):
        one([1.0], 40.0, stop=stop)


def test_scores_of_random_operands_are_about_one(one, monkeypatch):
    """Also where the program has no scale: else one share would be all, and roundings of scores would decide which."""

    def unscaled(q, k, v, d_o):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)

    found = found_in(jax_moye.optimize(unscaled), *structs())
    contest = attention_lowering.contest(found.params, found.operands, None, found.together)
    first, second, *_ = contests.operand_sets(contest, jax.devices("cpu")[0])
    q, k = (np.asarray(x, np.float64) for x in first[:2])
    assert 0.5 < np.einsum("bqhd,bkhd->bhqk", q, k).std() < 2
    assert not np.array_equal(np.asarray(first[0]), np.asarray(second[0]))
    assert same_result(*(np.asarray(contest.xla(*first)[0], np.float32) for _ in range(2)))
