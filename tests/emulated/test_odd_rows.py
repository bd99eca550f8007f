"""sm90_odd_rows: rows of both operands that begin at each element of a word of 16 bytes, and where memory ends."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._selection.capability import why_not
from jax_moye._selection.problem import make_problem
from jax_moye._selection.ranking import contenders
from tests.emulated.emulate import emulate
from tests.emulated.problems import Problem, make_call, product

CONFIGS = [config for config in jax_moye.configs() if config.kernel == "sm90_odd_rows"]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
WORD = 8


@every_config
@pytest.mark.parametrize("pad_b", range(WORD))
def test_every_pitch(config, pad_b):
    """What is ahead of rows and behind them is NaN; memory ends with the last element, or begins with the first."""
    for pad_a, flush in ((0, "end"), (1, "start"), (5, "end")):
        of_a, of_b = (make_call(config, Problem(19, 128, 301, pad=pad), "f32") for pad in (pad_a, pad_b))
        call = dataclasses.replace(of_a, b=of_b.b, b_strides=of_b.b_strides)
        report = emulate(config, call, flush=flush)
        assert report["ok"], report["message"]
        np.testing.assert_array_equal(call.result(), product(call.values_a, call.values_b))


@every_config
def test_few_columns(config):
    """Rows shorter than a word, several of which begin in the first one."""
    for n in range(1, WORD + 2):
        call = make_call(config, Problem(3, n, 40), "f32")
        report = emulate(config, call)
        assert report["ok"], report["message"]
        np.testing.assert_array_equal(call.result(), product(call.values_a, call.values_b))


@every_config
@pytest.mark.parametrize("k", [5, 150, 152])
def test_batches(config, k):
    """Matrices of b that begin alike beside words, and that do not, in one mode and in two; several tiles."""
    for n in (61, 259):
        for batch in (1, 3):
            call = make_call(config, Problem(40, n, k, batch=batch), "f32")
            report = emulate(config, call)
            assert report["ok"], report["message"]
            np.testing.assert_array_equal(call.result(), product(call.values_a, call.values_b))
    dtype = {"bf16": jnp.bfloat16, "f16": jnp.float16}[config.dtype]
    x = jnp.asarray(np.arange(6 * 9 * k).reshape(2, 3, 9, k) % 5 - 2, dtype)
    w = jnp.asarray(np.arange(6 * k * 61).reshape(3, 2, k, 61) % 7 - 3, dtype)
    options = {"config": config.name, "preferred_element_type": jnp.float32, "interpret": True}
    exact = np.einsum("xymk,yxkn->xymn", np.asarray(x, np.float64), np.asarray(w, np.float64))
    np.testing.assert_array_equal(jax_moye.einsum("xymk,yxkn->xymn", x, w, **options), exact)


@every_config
def test_parts_of_arrays(config):
    """Operands that begin inside an array, at any element."""
    dtype = {"bf16": jnp.bfloat16, "f16": jnp.float16}[config.dtype]
    x = jnp.asarray(np.arange(5 * 143).reshape(5, 143) % 5 - 2, dtype)
    w = jnp.asarray(np.arange(141 * 67).reshape(141, 67) % 7 - 3, dtype)

    @jax.jit
    def of_parts(x, w):
        return jax_moye.matmul(
            x[:, 1:141], w[1:, 3:], config=config.name, preferred_element_type=jnp.float32, interpret=True
        )

    exact = np.asarray(x, np.float64)[:, 1:141] @ np.asarray(w, np.float64)[1:, 3:]
    np.testing.assert_array_equal(of_parts(x, w), exact)


@every_config
def test_orders(config):
    """It takes a along k, and b along n; of others it says so."""
    dtype = config.dtype
    problem = make_problem("mk,kn->mn", (8, 64), (64, 1001), dtype, "bf16")
    assert why_not(config, problem, 90) is None
    transposed = make_problem("mk,nk->mn", (8, 64), (1001, 64), dtype, "bf16")
    assert why_not(config, transposed, 90) == "it takes the orders NN, and this is NT"


@every_config
def test_races(config):
    """It is among the first where b's rows are no whole words; where they are, all others come before it."""
    others = [other for other in jax_moye.configs() if other.dtype == config.dtype and other.kernel != config.kernel]
    for n, is_timed in ((50257, True), (50258, True), (50264, False)):
        problem = make_problem("mk,kn->mn", (config.tile[0], 768), (768, n), config.dtype, "bf16")
        first = contenders(problem, 90, jax_moye.configs(), most=4)
        assert (config in first) == (is_timed or len(others) < 4)
