"""Attention that `optimize` finds, on a GPU: kernels of ours compute it, as exactly as the program did or more so."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, PartitionSpec
from python.attention_layers import all_of, as_usual, assert_right, scanned
from python.attentions import FORMS, GROUPED, assert_as_exact, exact, exact_behind, gradients, operands

import jax_moye
from jax_moye._kernels.configs import attention_configs
from jax_moye._selection.capability import LoweringTarget

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture(autouse=True)
def kernels():
    if LoweringTarget.of_platform("cuda").arch != 90:
        pytest.skip("kernels of attention are sm_90's")
    if len({config.kernel for config in attention_configs()}) < 2:
        pytest.skip("no rows of sm90_attention in this build")


def compared(fun, args, expected, calls, dtype=jnp.bfloat16):
    with jax_moye.options(implementation="moye"):
        compiled = jax.jit(jax_moye.optimize(fun)).lower(*args).compile()
    text = compiled.as_text()
    found = re.findall(r'custom_call_target="jax_moye_(?:view_|joined_|dropped_)?attention(_grad)?_v1"', text)
    assert [found.count(of) for of in ("", "_grad")] == calls
    results, again = compiled(*args), compiled(*args)
    for x, y in zip(results, again, strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))
    assert_as_exact(results, jax.jit(fun)(*args), expected, dtype)


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_forms(rng, form, causal, checkpoint):
    args = operands(rng, (2, 300, 300, 4, 4, 16))
    fun = gradients(FORMS[form], causal, checkpoint)
    compared(fun, args, exact(*args, causal), [2 if checkpoint else 1, 1])


@pytest.mark.skipif("tf32" not in {config.dtype for config in attention_configs()}, reason="no rows of TF32")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_float32(rng, form, causal):
    """In TF32, as XLA has the products."""
    args = operands(rng, (2, 300, 300, 4, 4, 16), jnp.float32)
    compared(gradients(FORMS[form], causal), args, exact(*args, causal), [1, 1], jnp.float32)


@pytest.mark.parametrize("form", GROUPED)
def test_groups(rng, form):
    args = operands(rng, (2, 200, 200, 8, 2, 16))
    compared(gradients(GROUPED[form], True), args, exact(*args, True), [1, 1])


def test_in_shard_map(rng):
    """Of each part; and what is measured there is what one device does, outside of shard_map."""
    args = operands(rng, (2, 300, 300, 4, 4, 16))
    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x")
    fun = jax.shard_map(gradients(FORMS["plain"], True), mesh=mesh, in_specs=spec, out_specs=spec)
    compared(fun, args, exact(*args, True), [1, 1])
    with jax_moye.options(autotune="on"):
        results = jax.jit(jax_moye.optimize(fun))(*args)
    assert_as_exact(results, jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)


def test_layers_in_a_scan(rng):
    """Attention is in the first loop, its gradients in the second, and no weights of pairs are stacked."""
    args, of_xla, expected = as_usual(rng)
    with jax_moye.options(implementation="moye"):
        lowered = jax.jit(jax_moye.optimize(all_of(scanned()))).lower(*args)
    # Whichever reads its arrays in place; XLA may make two programs of a loop's body.
    found = re.findall(r"custom_call @jax_moye_(?:view_|joined_)?attention(_grad)?_v1", lowered.as_text())
    assert sorted(found) == ["", "_grad"]
    assert_right(lowered.compile()(*args), of_xla, expected)


@pytest.mark.parametrize("head_dim", [64, 72, 128, 136, 256])
def test_decoding(rng, head_dim):
    args = operands(rng, (4, 1, 517, 8, 8, head_dim))
    fun = lambda q, k, v, d_o: (FORMS["by hand"](q, k, v, False),)  # noqa: E731
    compared(fun, args, exact(*args, False)[:1], [1, 0])


MASKED = ["padding", "padding on the left", "some", "all of a row", "a sequence"]


def kept_of(rng, masked, heads):
    lengths = np.array([300, 130])[:, None, None, None]
    return {
        "padding": np.arange(300) < lengths,
        "padding on the left": np.arange(300) >= 300 - lengths,
        "some": rng.random((2, 1, 300, 300)) < 0.3,
        "all of a row": (rng.random((2, heads, 300, 300)) < 0.5) & (rng.random((2, 1, 300, 1)) < 0.8),
        "a sequence": np.array([True, False])[:, None, None, None],
    }[masked]


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", MASKED)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_masks(rng, masked, causal, heads):
    """Those of a batch, and rows of which no score counts."""
    args, kept = operands(rng, (2, 300, 300, *heads, 16)), kept_of(rng, masked, heads[0])

    def attention(q, k, v, causal):
        return jax.nn.dot_product_attention(q, k, v, mask=jnp.asarray(kept), is_causal=causal, implementation="xla")

    mask = kept & np.tril(np.ones((300, 300), bool)) if causal else kept
    compared(gradients(attention, causal), args, exact_behind(*args, mask), [1, 1])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("masked", MASKED)
@pytest.mark.parametrize("heads", [(4, 4), (6, 2)])
def test_masks_that_are_added(rng, masked, causal, heads):
    """Where there is a row of which no score counts, XLA adds its gradients: a program has a call in either case.

    XLA knows the case where all of the mask is a constant.
    """
    args, kept = operands(rng, (2, 300, 300, *heads, 16)), kept_of(rng, masked, heads[0])
    mask = kept & np.tril(np.ones((300, 300), bool)) if causal else kept

    def attention(q, k, v, causal):
        rows = jnp.tril(jnp.ones((300, 300), bool)) if causal else True
        bias = jnp.where(jnp.asarray(kept) & rows, 0.0, -1e10)
        k, v = (jnp.repeat(x, heads[0] // heads[1], axis=2) for x in (k, v))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * 0.25 + bias
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(v.dtype), v)

    compared(gradients(attention, causal), args, exact_behind(*args, mask, is_added=True), [1, 2 if causal else 1])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("masked", [None, "padding", "a sequence"])
@pytest.mark.parametrize("causal", [False, True])
def test_dropout(rng, masked, causal, shared):
    """Of each weight, or the same for a batch and heads; the mask is added, as BERT's, and rows may see no key."""
    args = operands(rng, (2, 300, 300, 4, 4, 16))
    shape = (1, 1, 300, 300) if shared else (2, 4, 300, 300)
    key, kept = jax.random.key(3), True if masked is None else kept_of(rng, masked, 4)
    dropout = np.asarray(jax.random.bernoulli(key, 0.75, shape))
    mask = np.broadcast_to(kept & np.tril(np.ones((300, 300), bool)) if causal else kept, (2, 4, 300, 300))

    def attention(q, k, v, causal):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * 0.25
        rows = jnp.tril(jnp.ones((300, 300), bool)) if causal else True
        scores = scores + jnp.where(jnp.asarray(kept) & rows, 0.0, -1e10)
        weights = jax.nn.softmax(scores).astype(v.dtype)
        weights = jnp.where(jax.random.bernoulli(key, 0.75, shape), weights / 0.75, 0)
        return jnp.einsum("bhqk,bkhd->bqhd", weights, v)

    expected = exact_behind(*args, mask, is_added=True, of_weights=dropout / 0.75)
    compared(gradients(attention, causal), args, expected, [1, 1])
