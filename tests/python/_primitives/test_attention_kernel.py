"""What XLA adds to a kernel's gradients, and the parts of arrays that it takes out for that.

What is computed with a kernel, test_attention.py and test_attention_masks.py have in the emulator.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._primitives import attention_kernel as module
from jax_moye._primitives.attention import AttentionParams
from jax_moye._selection.view import View

B, N, G, T, S, D = 2, 3, 2, 5, 7, 8
LABELS = (("q", "AqBgd"), ("k", "AkBd"), ("v", "AkBd"), ("d_o", "AqBgd"), ("o", "AqBgd"))
LABELS += (("dq", "AqBgd"), ("dk", "AkBd"), ("dv", "AkBd"), ("mask", "AqBgk"))


@pytest.mark.parametrize("parts", [1, 2])
def test_gradients_of_rows_of_which_no_score_counts(rng, parts):
    """Each share is 1 / S; all else is as in every row. In groups, beside rows that count, in 16 bits."""
    params = AttentionParams(0.3, None, LABELS, (), ds_parts=parts, scores_have_gradients=True)
    q, d_o = (jnp.asarray(rng.normal(size=(B, T, N, G, D)), jnp.bfloat16) for _ in range(2))
    k, v = (jnp.asarray(rng.normal(size=(B, S, N, D)), jnp.bfloat16) for _ in range(2))
    counts = rng.random((B, N, G, T)) < 0.5  # in the order of lse: ABgq
    given = {"q": (q, "AqBgd"), "k": (k, "AkBd"), "v": (v, "AkBd"), "d_o": (d_o, "AqBgd")}
    before = {"dq": jnp.ones_like(q), "dk": jnp.zeros_like(k), "dv": jnp.ones_like(v)}
    found = module._with_gradients_of_none(dict(before), given, jnp.asarray(counts), params)
    assert found["dv"] is before["dv"]
    wide_q, wide_k, wide_v, wide_d_o = (np.asarray(x, np.float64) for x in (q, k, v, d_o))
    dp = np.einsum("btngd,bsnd->bngts", wide_d_o, wide_v)
    ds = np.where(counts[..., None], 0, 0.3 * (dp - dp.mean(axis=-1, keepdims=True)) / S)
    dq, dk = np.einsum("bngts,bsnd->btngd", ds, wide_k) + 1, np.einsum("bngts,btngd->bsnd", ds, wide_q)
    for name, right in (("dq", dq), ("dk", dk)):
        assert found[name].dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(found[name], np.float64), right, atol=0.01 * np.abs(right).max())


def test_rows_of_minus_infinity(rng):
    """What such a row is multiplied with is NaN: its own gradient, and those of its keys and values."""
    params = AttentionParams(0.3, None, LABELS, (), mask_is_infinite=True, scores_have_gradients=True)
    counts = np.ones((B, N, G, T), bool)
    counts[1, 0, 1, 2] = False
    found = {"dq": jnp.ones((B, T, N, G, D)), "dk": jnp.ones((B, S, N, D)), "dv": jnp.ones((B, S, N, D))}
    found = module._with_gradients_of_none(found, {}, jnp.asarray(counts), params)
    expected = {name: np.zeros(x.shape, bool) for name, x in found.items()}
    expected["dq"][1, 2, 0, 1] = expected["dk"][1, :, 0] = expected["dv"][1, :, 0] = True
    for name, x in found.items():
        np.testing.assert_array_equal(np.isnan(x), expected[name])


def test_parts_that_are_taken_out(rng):
    x = jnp.asarray(rng.normal(size=(2, 3, 24)))
    view = View.whole(x.shape).sliced((0, 0, 8), (2, 3, 16), (1, 2, 1)).transposed((1, 0, 2))
    part, labels = module._taken(x, view, "kAd")
    np.testing.assert_array_equal(part, np.asarray(x)[:, ::2, 8:16].swapaxes(0, 1))
    assert labels == "kAd"
    assert module._taken(x, View.whole(x.shape), "Akd")[0] is x
