"""A program in all ways: what is timed, what is compared, and what is left out."""

from __future__ import annotations

import argparse

import jax.numpy as jnp
import pytest

from jax_moye._bench.program import run
from jax_moye._bench.program.arms import Arm, compile_arm
from jax_moye._bench.program.load import Program
from jax_moye._timing.gpu import Sampler
from jax_moye._timing.rounds import Contender

x = jnp.ones((8, 32))
PROGRAM = Program("square", "a product", "rows 8", lambda x: x @ x.T, (x,))
ARGUMENTS = argparse.Namespace(
    interpret=True, launches="default", tolerance=None, alternations=3, turn_ms=0.1, warmup_ms=0.0, alone=False
)


@pytest.fixture
def sampler():
    made = Sampler()
    yield made
    made.close()


def test_a_contender_is_the_compiled_program(sampler):
    calls = []

    def compiled(*args):
        calls.append(args)
        return args[0] + 1

    one = run.contender("xla", compiled, (x,))
    one.round(4)
    assert calls == [(x,)] * 4
    assert one.run(0)[0].shape == x.shape
    one.wait()


def test_figures(sampler):
    one, other = (Contender(name, lambda i: [], lambda: None) for name in ("xla", "optimize"))
    one.times, other.times = [4e-3, 4e-3, 6e-3], [2e-3, 3e-3, 2e-3]
    found = run.figures(other, one, sampler)
    assert (found["ms"], found["worst_ms"], found["ratio"]) == (2.0, 3.0, 2.0)
    low, high = found["ratio_ci"]
    assert low <= 2.0 <= high
    assert run.figures(one, one, sampler)["ratio_ci"] == [1.0, 1.0]


def test_a_way_that_is_wrong_is_not_timed():
    right = compile_arm("xla", PROGRAM)
    near = Arm(lambda x: x @ x.T * 1.01, {})
    far = Arm(lambda x: x @ x.T + 100, {})
    nothing = Arm(lambda x: jnp.full((8, 8), jnp.nan), {})

    def fail(x):
        raise RuntimeError("no kernel")

    compiled = {"xla": right, "near": near, "far": far, "nothing": nothing, "fails": Arm(fail, {})}
    wrong = run.compare(PROGRAM, compiled, 0.25)
    assert list(compiled) == ["xla", "near"]
    assert near.figures["difference"] == pytest.approx(0.01, rel=1e-2)
    assert far.figures["difference"] > 1
    assert nothing.figures["difference"] is None  # JSON knows no infinity
    assert wrong == [
        {"id": "far", "why": "WRONG: the result differs from XLA's by 3.12 of its scale"},
        {"id": "nothing", "why": "WRONG: the result differs from XLA's by inf of its scale"},
        {"id": "fails", "why": "RuntimeError: no kernel"},
    ]


def test_what_the_rewrites_won_may_fail_alone(sampler, monkeypatch):
    def fail(program, turn_ms):
        raise MemoryError("too little")

    monkeypatch.setattr(run, "products_of", fail)
    found = run.bench_program(PROGRAM, ARGUMENTS, sampler)
    assert found["optimize"]["ms"] > 0
    assert found["rewrites"] == []
    assert found["notes"] == ["what the rewrites won is not known: MemoryError: too little"]


def test_xla_must_compile_it(sampler):
    program = Program("wrong", "", "", lambda x: x @ x, (x,))
    with pytest.raises(TypeError, match=r"dot_general|contract"):
        run.bench_program(program, ARGUMENTS, sampler)
