"""Random programs of attention: values and derivatives are as near to float64 as the programs' own, in the emulator."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest
from python.attentions import ROUNDING, needs_rows, products_in_tf32
from python.generated_attentions import DROPPED, draw
from python.spelled_attentions import EXACT

import jax_moye
from jax_moye._kernels.configs import attention_configs
from jax_moye._primitives import attention_kernel
from jax_moye._selection import attention as selection

COUNT = os.environ.get("JAX_MOYE_RANDOM_ATTENTIONS")  # how many; else these, of which most have kernels of attention
SEEDS = (0, 25, 41, 52, 70, 75, 79, 294) if COUNT is None else range(int(COUNT))
DROPPED_SEEDS = (0, 7, 8, 9)  # which are drawn with causal, with segments, in checkpoints
BIASED_SEEDS = (0, 7, 9, 11)
F32_SEEDS = (0, 2, 7, 8, 25, 41, 52, 294)
WIDE = [(seed, scale) for seed in (7, 8) for scale in ("queries", "keys", "both")]
needs_tf32 = pytest.mark.skipif(
    len({config.kernel for config in attention_configs() if config.dtype == "tf32"}) < 2,
    reason="no rows of sm90_attention of TF32 in this build",
)
AS_WRITTEN = {"xla_allow_excess_precision": False}  # roundings of the program stay


def run(drawn, optimize, **options):
    fun = drawn.fun(drawn.types)
    with jax_moye.options(**options):
        lowered = jax.jit(jax_moye.optimize(fun) if optimize else fun).lower(*drawn.args)
        results = lowered.compile({} if optimize else AS_WRITTEN)(*drawn.args)
    return lowered.as_text(), jax.tree.flatten(results)


def own(drawn):
    """The results of the program as it is, on a GPU where it is of float32."""
    if drawn.types.narrow != np.float32:
        return run(drawn, optimize=False)
    with products_in_tf32():
        return run(drawn, optimize=True)


def exact(drawn):
    with jax.enable_x64(True):
        return [np.asarray(x) for x in jax.tree.leaves(jax.jit(drawn.fun(EXACT))(*drawn.exact_args()))]


def assert_near(drawn, results, before, right):
    """The largest error is at most twice the program's own, or 4 roundings of the largest element.

    Of float32 these are to TF32; and what should be 0 is a difference of sums in float32.
    """
    unit = 4 * ROUNDING[np.dtype(drawn.types.narrow).name]
    least = max(np.abs(x).max() for x in right) * (2.0**-20 if drawn.types.narrow == np.float32 else 0)
    for i, (result, other, wanted) in enumerate(zip(results, before, right, strict=True)):
        assert (result.dtype, result.shape, result.weak_type) == (other.dtype, other.shape, other.weak_type)
        assert wanted.dtype == np.float64
        result, other = (np.asarray(x, np.float64) for x in (result, other))
        np.testing.assert_array_equal(np.isfinite(result), np.isfinite(other))
        is_finite = np.isfinite(wanted) & np.isfinite(other)
        errors = [np.abs(x - wanted)[is_finite].max(initial=0) for x in (result, other)]
        bound = max(least, 2 * errors[1], unit * np.abs(wanted[is_finite]).max(initial=0))
        assert errors[0] <= bound, (drawn.seed, i, errors, bound, drawn.plan)


@needs_rows
@pytest.mark.parametrize("seed", SEEDS)
def test_random_attentions(seed):
    """Derivatives, too; and the kernels are taken where they have to be."""
    check(draw(seed))


@needs_tf32
@pytest.mark.parametrize("seed", F32_SEEDS)
def test_of_float32(seed, monkeypatch):
    """The same programs, all of whose arrays are float32, whose products are in TF32 as on a GPU."""
    monkeypatch.setattr(selection, "may_be_tf32", lambda precision, platform: True)
    check(draw(seed, np.float32))


@needs_rows
@pytest.mark.parametrize(("seed", "scale"), WIDE)
def test_scaled_in_f32(seed, scale):
    """Queries, keys or both are multiplied in float32."""
    assert check(draw(seed, scores_in="wide", scale=scale, extra=None, late=False))[0] > 0


@needs_rows
@pytest.mark.parametrize("seed", DROPPED_SEEDS)
@pytest.mark.parametrize("dropped", DROPPED)
def test_dropout(seed, dropped):
    """Of weights, whichever mask the scores have, and whatever is around it."""
    check(draw(seed, extra=dropped, late=False))


@needs_rows
@pytest.mark.parametrize("seed", BIASED_SEEDS)
def test_biases(seed):
    """In front of the scale and behind it."""
    assert check(draw(seed, extra="biases", late=False))[0] > 0


@needs_rows
@pytest.mark.parametrize("which", ["factor", "kept"])
def test_wrong_dropout_is_seen(monkeypatch, which):
    """The bugs planted: another factor, and the weights of one key are all kept."""
    of_kernel = attention_kernel.Dropout

    def wrong(kept, dims, factor):
        kept = kept.at[..., -1:].set(True) if which == "kept" else kept
        return of_kernel(kept, dims, factor * 1.1 if which == "factor" else factor)

    monkeypatch.setattr(attention_kernel, "Dropout", wrong)
    jax.clear_caches()
    with pytest.raises(AssertionError):
        check(draw(DROPPED_SEEDS[0], extra="dropped pairs", late=False, softmax="jax", mask=None, shares="narrow"))
    jax.clear_caches()


@needs_rows
def test_a_wrong_scale_is_seen(monkeypatch):
    """The bug planted: the bounds are narrow enough."""
    of_kernel = attention_kernel.run_attention
    monkeypatch.setattr(
        attention_kernel, "run_attention", lambda *x, scale, **of: of_kernel(*x, scale=1.1 * scale, **of)
    )
    jax.clear_caches()
    with pytest.raises(AssertionError):
        check(draw(0))
    jax.clear_caches()


def check(drawn):
    text, (results, tree) = run(drawn, optimize=True, interpret=True)
    _, (before, tree_before) = own(drawn)
    assert tree == tree_before
    assert_near(drawn, results, before, exact(drawn))
    found = [text.count(f"attention{of}_v1(") for of in ("", "_grad")]
    assert not drawn.plan.is_sure or found[0] > 0, (drawn.seed, drawn.plan)
    return found
