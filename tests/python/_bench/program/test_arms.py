"""The ways to run a program: who computes its products in each, what is known of them, what optimize warns of."""

from __future__ import annotations

import logging

import jax
import jax.numpy as jnp
import pytest

import jax_moye
from jax_moye._bench.program import show
from jax_moye._bench.program.arms import compile_arm, products_of, warnings_of_optimize
from jax_moye._bench.program.load import Program

x = jnp.ones((8, 32), jnp.bfloat16)


def layer(x, w, b):
    return jax.nn.silu(x @ w + b)


PROGRAM = Program("layer", "", "", layer, (x, x.T @ x, x[0]))


@pytest.mark.parametrize("name", show.ARMS)
def test_each_way(name):
    arm = compile_arm(name, PROGRAM, interpret=True)
    assert arm.figures["ours"] == (name != "xla")
    assert arm.figures["memory_bytes"] >= arm.figures["temporary_bytes"] + (8 * 32 + 32 * 32 + 32 + 8 * 32) * 2
    assert arm.figures["kernels"] >= 1
    assert "turns_unknown" not in arm.figures
    result = arm.compiled(*PROGRAM.args)
    assert jnp.max(jnp.abs(result.astype(jnp.float32) - layer(*PROGRAM.args).astype(jnp.float32))) < 0.1


def test_who_insists_is_refused():
    x = jnp.ones((8, 8), jnp.complex64)
    program = Program("square", "", "", lambda x: x @ x, (x,))
    with pytest.raises(NotImplementedError, match="complex64"):
        compile_arm("products", program, interpret=True)
    assert compile_arm("intercept", program, interpret=True).figures["ours"] == 0


def test_a_loop_without_an_end_in_sight():
    def until(x):
        return jax.lax.while_loop(lambda y: jnp.sum(y) < 9, lambda y: y @ y, x)

    program = Program("until", "", "", until, (jnp.eye(8),))
    assert compile_arm("xla", program).figures["turns_unknown"] is True


def test_what_optimize_warns_of_is_kept():
    notes = []
    logger = logging.getLogger("jax_moye")
    with warnings_of_optimize(notes):
        logger.warning("jax_moye.optimize: %s is run as it is", "f")
        logger.warning("jax_moye: something else")
    logger.warning("jax_moye.optimize: too late")
    assert notes == ["jax_moye.optimize: f is run as it is"]


def test_products_as_they_were_and_as_they_are():
    found = products_of(PROGRAM, None)
    assert [gemm.takes_in for gemm in found.before] == [""]
    assert [gemm.takes_in for gemm in found.after] == ["silu, bias"]
    assert found.alone is None


def test_products_alone_are_reports(monkeypatch):
    asked = {}

    def report(fun, *args, **options):
        asked.update(options)
        return jax_moye._inspect.report.Report(jax_moye.explain(fun, *args), ("measured",), ())

    monkeypatch.setattr(jax_moye, "report", report)
    found = products_of(PROGRAM, 7.0)
    assert asked == {"turn_ms": 7.0}
    assert found.alone == ("measured",)
    assert [gemm.takes_in for gemm in found.after] == ["silu, bias"]
