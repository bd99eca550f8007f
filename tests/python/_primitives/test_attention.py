"""The primitives of attention: one call, or the equations as they were."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from python.attentions import (
    FAKE,
    FORMS,
    GROUPED,
    NEARLY_EQUAL,
    B,
    D,
    H,
    S,
    T,
    arrays,
    assert_as_exact,
    errors_where_weights_are_nearly_equal,
    exact,
    fake_row,
    gradients,
    needs_rows,
    operands,
    use_fake_rows,
)

import jax_moye
from jax_moye._kernels.configs import attention_configs
from jax_moye._primitives import attention as module
from jax_moye._primitives.attention import AttentionParams, delta_of, reference, rest_of
from jax_moye._selection import attention as selection
from jax_moye._selection.view import View

in_the_emulator = functools.partial(jax_moye.options, interpret=True)


def calls(text):
    """Of attention and of its gradients, whichever their targets."""
    return [text.count(f"attention{of}_v1(") for of in ("", "_grad")]


def emulated(fun, *args):
    with in_the_emulator():
        lowered = jax.jit(jax_moye.optimize(fun)).lower(*args)
        return calls(lowered.as_text()), lowered.compile()(*args)


@needs_rows
@pytest.mark.parametrize("form", ["plain", "heads first", "of jax", "keys first"])
def test_in_the_emulator(rng, form):
    """A kernel's errors are at most the program's, or a few roundings."""
    args, fun = operands(rng), gradients(FORMS[form], True)
    found, results = emulated(fun, *args)
    assert found == [1, 1]
    assert_as_exact(results, jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)
    for result, x in zip(results, (args[0], *args[:3]), strict=True):
        assert (result.dtype, result.shape) == (x.dtype, x.shape)


@needs_rows
@pytest.mark.parametrize("form", GROUPED)
def test_groups_in_the_emulator(rng, form):
    args, fun = operands(rng, (1, S, S, 4, 2, D)), gradients(GROUPED[form], True, checkpoint=True)
    found, results = emulated(fun, *args)
    assert found == [2, 1]
    assert_as_exact(results, jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("sizes", [(1, 1, 72, 2, 2, 64), (1, 1, 40, 6, 2, 16), (1, 3, 40, 2, 2, 72)])
def test_few_rows_in_the_emulator(rng, sizes):
    """Decoding of one token, of one whose heads share keys, and the last three of a sequence."""
    form = GROUPED["in groups"] if sizes[3] != sizes[4] else FORMS["by hand"]
    q, k, v, d_o = operands(rng, sizes)
    causal = sizes[1] > 1
    fun = lambda q, k, v: form(q, k, v, causal)  # noqa: E731
    scale = 0.25 if sizes[3] != sizes[4] else sizes[5] ** -0.5
    found, result = emulated(fun, q, k, v)
    assert found == [1, 0]
    wanted = exact(q * (scale * sizes[5] ** 0.5), k, v, d_o, causal)[:1]
    assert_as_exact([result], [fun(q, k, v)], wanted, jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("own", [1, 2])
def test_other_scores_in_the_emulator(rng, own):
    """Of a cache and of a token itself: the kernel sees the cache alone."""
    q, keys, values, k, v = arrays(rng, (B, 1, H, D), *[(B, S, H, D)] * 2, *[(B, own, H, D)] * 2)

    def decode(q, keys, values, k, v):
        scores = [jnp.einsum("bqhd,bkhd->bhqk", q, one).astype(jnp.float32) for one in (keys, k)]
        shares = jax.nn.softmax(jnp.concatenate(scores, axis=-1) * 0.25).astype(q.dtype)
        of_cache = jnp.einsum("bhqk,bkhd->bqhd", shares[..., :-own], values)
        return of_cache + jnp.einsum("bhqk,bkhd->bqhd", shares[..., -own:], v)

    found, result = emulated(decode, q, keys, values, k, v)
    assert found == [1, 0]
    joined = [jnp.concatenate(pair, axis=1) for pair in ((keys, k), (values, v))]
    wanted = exact(q, *joined, q, False)[:1]
    assert_as_exact([result], [decode(q, keys, values, k, v)], wanted, jnp.bfloat16)


PARAMS = AttentionParams(0.25, 0, (("d_o", "AqBd"), ("k", "AkBd"), ("o", "AqBd"), ("q", "AqBd"), ("v", "AkBd")), ())


def test_the_reference(rng):
    """What stands beside the equations of a program: the result, and the logarithms that a derivative reads."""
    q, k, v, d_o = operands(rng)
    o, lse = reference(q, k, v, params=PARAMS)
    np.testing.assert_allclose(np.asarray(o, np.float64), exact(q, k, v, d_o, True)[0], atol=0.03)
    scores = np.einsum("bqhd,bkhd->bhqk", *(np.asarray(x, np.float64) for x in (q, k))) / 4
    exponentials = np.where(np.tril(np.ones((T, S), bool)), np.exp(scores), 0)
    np.testing.assert_allclose(lse, np.log(exponentials.sum(axis=-1)), atol=1e-5)
    rounded = o.astype(q.dtype)
    rest = rest_of(o, rounded)
    assert o.dtype == jnp.float32
    assert rest.dtype == q.dtype
    for given, whole in (((rounded, d_o), rounded), ((rounded, d_o, rest), o)):
        delta = np.einsum("bqhd,bqhd->bhq", *(np.asarray(x, np.float64) for x in (whole, d_o)))
        np.testing.assert_allclose(delta_of(*given, params=PARAMS), delta, atol=1e-4)
    assert np.abs(delta_of(rounded, d_o, params=PARAMS) - delta).max() > 3e-3


def test_the_reference_of_a_mask(rng):
    """Where no score of a row counts it is the mean of what the program means, its logarithm as low as a kernel's."""
    q, k, v, _ = operands(rng)
    mask = jnp.arange(S)[None] > jnp.array([[3], [-1]])
    labels = (*PARAMS.labels, ("mask", "Ak"))
    for is_infinite, means_of_all in ((False, True), (False, False), (True, False)):
        params = AttentionParams(0.25, 0, labels, (), mask_is_infinite=is_infinite, means_of_all=means_of_all)
        o, lse = (np.asarray(x, np.float64) for x in reference(q, k, v, mask, params=params))
        values = np.asarray(v, np.float64)
        for row in range(4):  # of the first of the batch
            mean = np.nan if is_infinite else values[0, : S if means_of_all else row + 1].mean(axis=0)
            np.testing.assert_allclose(o[0, row], np.broadcast_to(mean, (H, D)), atol=0.03)
            assert np.isnan(lse[0, :, row]).all() if is_infinite else (lse[0, :, row] < -5e29).all()
        np.testing.assert_allclose(o[1], reference(q, k, v, params=PARAMS)[0][1].astype(jnp.float32), atol=0.01)
        assert np.isfinite(lse[0, :, 4:]).all()


@pytest.mark.parametrize(
    ("q", "k", "dims"),
    [
        (("AqBd", (2, 24, 3, 16)), ("AkBd", (2, 40, 3, 16)), ("bqhd", "bkhd")),
        (("ABqd", (2, 3, 24, 16)), ("ABkd", (2, 3, 40, 16)), ("bhqd", "bhkd")),
        (("A.qd", (2, 1, 24, 16)), ("kdA", (40, 16, 2)), ("hqd", "khd")),
        (("AqBgd", (2, 24, 3, 4, 16)), ("AkBd", (2, 40, 3, 16)), ("bqhhd", "bkhd")),
        (("Aqgd", (2, 24, 4, 16)), ("Akd", (2, 40, 16)), ("bqhd", "bkd")),
        (("ABqCd", (2, 5, 24, 3, 16)), ("ABkCd", (2, 5, 40, 3, 16)), ("bbqhd", "bbkhd")),
        (("qd", (24, 16)), ("kd", (40, 16)), ("qd", "kd")),
        # Of a group that is outside of the heads whose keys it shares, and of two batches that lie otherwise.
        (("AqgBd", (2, 24, 4, 3, 16)), ("AkBd", (2, 40, 3, 16)), None),
        (("ABqCd", (2, 5, 24, 3, 16)), ("BAkCd", (5, 2, 40, 3, 16)), None),
        (("AqBrCd".replace("r", ""), (2, 24, 3, 5, 16)), ("AkBCd", (2, 40, 3, 5, 16)), ("bqhhd", "bkhhd")),
    ],
)
def test_how_a_kernel_reads_arrays(q, k, dims):
    views = {"q": View.whole(q[1]), "k": View.whole(k[1])}
    found = module._arrays(views, {"q": q[0], "k": k[0]}, jnp.bfloat16)
    if dims is None:
        assert found is None
        return
    assert (found.dims["q"], found.dims["k"]) == dims
    sizes = found.sizes
    assert sizes.q_rows == dict(zip(q[0], q[1], strict=True)).get("q", 1)
    assert sizes.batch * sizes.kv_heads * sizes.group * sizes.q_rows * sizes.head_dim == np.prod(q[1])
    assert sizes.batch * sizes.kv_heads * sizes.kv_rows * sizes.head_dim == np.prod(k[1])


def test_operands_are_read_in_front_of_transposes(rng):
    """Nothing is transposed for a kernel: arrays (b,t,h,d) that the program transposes are read as they are."""
    if not attention_configs():
        pytest.skip("no rows of sm90_attention in this build")
    fun = jax_moye.optimize(lambda q, k, v: FORMS["heads first"](q, k, v, True))
    with in_the_emulator():
        text = jax.jit(fun).lower(*operands(rng)[:3]).as_text()
    assert calls(text) == [1, 0]
    (line,) = (line for line in text.splitlines() if "jax_moye_attention_v1" in line)
    assert "tensor<2x24x2x16xbf16>, tensor<2x24x2x16xbf16>, tensor<2x24x2x16xbf16>" in line


def test_where_no_kernel_is(rng, monkeypatch, caplog):
    """On a CPU, and in a program of several devices: the equations as they were, and a line in the log."""
    use_fake_rows(monkeypatch)
    args, fun = operands(rng), gradients(FORMS["plain"], True)
    with caplog.at_level("INFO"):
        text = jax.jit(jax_moye.optimize(fun)).lower(*args).as_text()
    assert calls(text) == [0, 0]
    assert "is left to the program's equations: the program is for cpu" in caplog.text
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    placed = [jax.device_put(x, NamedSharding(mesh, PartitionSpec("x"))) for x in args]
    for x, y in zip(jax.jit(jax_moye.optimize(fun))(*placed), jax.jit(fun)(*args), strict=True):
        np.testing.assert_array_equal(np.asarray(x, np.float32), np.asarray(y, np.float32))


def test_where_no_kernel_computes_the_gradients(rng, monkeypatch, caplog):
    """Of a forward pass alone a kernel is found; with gradients that none computes the program is as it was."""
    use_fake_rows(monkeypatch)
    rows = [*FAKE, fake_row("bf16", (128, 64, 256))]
    monkeypatch.setattr(selection, "attention_configs", lambda: rows)
    args = operands(rng, (1, 24, 24, 1, 1, 256))
    forward = lambda q, k, v, _: FORMS["plain"](q, k, v, True)  # noqa: E731
    for fun, is_found in ((forward, True), (gradients(FORMS["plain"], True), False)):
        with caplog.at_level("INFO"), jax_moye.options(implementation="moye"):
            found = str(jax.make_jaxpr(jax_moye.optimize(fun))(*args))
        assert ("jax_moye_attention" in found) == is_found
    assert "kernels of gradients are for 128 at most" in caplog.text


@needs_rows
@pytest.mark.parametrize("head_dim", [136, 256])
def test_large_head_dims_in_the_emulator(rng, head_dim):
    if max(config.tile[2] for config in attention_configs() if config.kernel == "sm90_attention_grad") < head_dim:
        pytest.skip("no row of so large a head_dim in this build")
    args, fun = operands(rng, (1, 90, 90, 2, 1, head_dim)), gradients(GROUPED["of jax"], True)
    found, results = emulated(fun, *args)
    assert found == [1, 1]
    assert_as_exact(results, jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)


@needs_rows
def test_in_shard_map_a_kernel_computes_each_part(rng):
    args = operands(rng)
    mesh = Mesh(np.array(jax.devices()[:1]), ("x",))
    spec = PartitionSpec("x")
    fun = jax.shard_map(lambda q, k, v: FORMS["plain"](q, k, v, True), mesh=mesh, in_specs=spec, out_specs=spec)
    found, result = emulated(fun, *args[:3])
    assert found == [1, 0]
    assert_as_exact([result], [fun(*args[:3])], exact(*args, True)[:1], jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("is_emulated", [True, False])
def test_gradients_in_shard_map(rng, is_emulated):
    """Values vary over mesh axes there, also what the kernels keep for the gradients, and what is made of it."""
    args = operands(rng)
    mesh, spec = Mesh(np.array(jax.devices()[:1]), ("x",)), PartitionSpec("x")
    alone = gradients(FORMS["plain"], True)
    fun = jax.shard_map(lambda *x: alone(*x)[1:], mesh=mesh, in_specs=spec, out_specs=spec)
    with jax_moye.options(**({"interpret": True} if is_emulated else {"implementation": "moye"})):
        traced = jax.make_jaxpr(jax_moye.optimize(fun))(*args)
    assert str(traced).count("jax_moye_attention_grad[") == 1
    if is_emulated:
        found, results = emulated(fun, *args)
        assert found == [1, 1]
    else:
        results = jax.jit(jax_moye.optimize(fun))(*args)
    assert_as_exact(results, jax.jit(fun)(*args), exact(*args, True)[1:], jnp.bfloat16)


@needs_rows
@pytest.mark.parametrize("name", NEARLY_EQUAL)
@pytest.mark.parametrize("offset", [0, 3])
def test_gradients_where_weights_are_nearly_equal(offset, name):
    """What docs/attention.md says of the gradient of queries, next to the program's own error."""
    if name == "float32" and "tf32" not in {config.dtype for config in attention_configs()}:
        pytest.skip("no rows of TF32 in this build")
    of_kernel, of_program = errors_where_weights_are_nearly_equal(name, offset, interpret=True)
    if name == "16 bits" and offset:
        assert of_kernel < 0.2 < 0.5 < of_program
    else:
        assert of_kernel < 1.3 * of_program
        assert of_program < 0.015


def test_the_rest_of_the_equations(rng):
    """Where a kernel computes the gradients alone, the equations of the forward pass have the rest, too."""
    q, k, v, d_o = operands(rng)
    q, v = 0 * q, v + 3

    def form(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(v.dtype), v)

    with in_the_emulator(implementation="moye"):
        jaxpr = jax.make_jaxpr(jax_moye.optimize(lambda *x: jax.vjp(form, *x[:3])[1](x[3])))(q, k, v, d_o)
    (equation,) = (one for one in jaxpr.eqns if one.primitive is module.attention_p)
    o, _, rest = equation.params["original"](q, k, v)
    labels = equation.params["attention"].of("o")
    o, rest = (np.asarray(module.moved(x, labels, "AqBd"), np.float64) for x in (o, rest))
    shares = np.asarray(jnp.asarray(1 / S, v.dtype), np.float64)  # rounded as the program's
    wanted = shares * np.asarray(v, np.float64).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(o + rest, np.broadcast_to(wanted, o.shape), rtol=2**-15)
    assert np.abs(o - wanted).max() > 2**-9
