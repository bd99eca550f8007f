"""Attention that is measured while it is lowered: when, together with what, and what becomes of it."""

from __future__ import annotations

import logging
import pathlib
import re
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attention_layers import LAYERS, all_of, block, weights
from python.attentions import FORMS, GROUPED, exact, exact_behind, gradients, operands, use_fake_rows
from python.support import lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._inspect.products import attentions_of
from jax_moye._kernels import devices, ffi
from jax_moye._kernels.configs import attention_configs
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives import attention, attention_lowering, autotune
from jax_moye._selection import attention as selection
from jax_moye._selection import capability, measurements
from jax_moye._selection.attention_times import together
from jax_moye._selection.entry import Entry
from jax_moye._selection.measurements import config_digest

SMALL, LARGE = 64, 128  # the rows of queries of a tile
SIZES = (2, 256, 256, 2, 2, 128)


@pytest.fixture
def gpu(places, monkeypatch):
    """As on an H200, where measuring finds what a test says: microseconds of ours by rows of a tile, and of XLA."""
    use_fake_rows(monkeypatch)
    monkeypatch.setattr(attention, "attention_configs", selection.attention_configs)
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    monkeypatch.setattr(_compat, "cuda_arch", lambda: 90)
    monkeypatch.setattr(capability, "_device_meant", lambda arch: devices.DEVICES["h200"])
    monkeypatch.setattr(autotune, "_settled", set())
    monkeypatch.setattr(autotune, "_spent", [0.0, 0, 0.0])
    found = types.SimpleNamespace(ours={SMALL: 100.0, LARGE: 120.0}, xla=200.0, calls=[], error=None)

    def measured(key, of, contest, stop):
        found.calls.append((key, of, contest))
        if found.error is not None:
            raise found.error
        us = {
            together(one.name for one in configs): max(found.ours[one.tile[0]] for one in configs)
            for configs in contest.ours
        }
        best = min(us, key=us.__getitem__)
        (row,) = (x for x in contest.ours if together(one.name for one in x) == best)
        lead = {of: found.xla / us[best]}
        row_words = together(map(config_digest, row))
        return Entry(key, of, best, row_words, us, {of: found.xla}, False, "2026-11-25", lead)

    monkeypatch.setattr(attention_lowering, "measured", measured)
    jax.clear_caches()
    yield found
    jax.clear_caches()


def program(form="plain", causal=True, with_gradients=True, **options):
    def fun(q, k, v, d_o):
        with jax_moye.options(**options):
            inner = gradients(FORMS[form], causal) if with_gradients else lambda *of: FORMS[form](*of[:3], causal)
            return jax_moye.optimize(inner)(q, k, v, d_o)

    return fun


def structs(sizes=SIZES, dtype=jnp.bfloat16):
    b, t, s, h, n, d = sizes
    shapes = (b, t, h, d), (b, s, n, d), (b, s, n, d), (b, t, h, d)
    return [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]


def configs_of(fun, args=None):
    """The configs of the custom calls that a program has on a GPU."""
    jax.clear_caches()
    text = lowered_text(fun, *(args or structs()))
    return re.findall(r'custom_call @jax_moye_\w*attention\w*\(.*?config = "sm90_(\w+)_bf16_(\d+)x', text)


def test_a_forward_pass_and_its_gradients_are_one_decision(gpu):
    assert configs_of(program()) == [("attention", "64"), ("attention_grad", "64")]  # the played fastest
    ((key, _, contest),) = gpu.calls
    assert key.sizes == (2, 2, 1, 256, 256, 128)
    assert dict(key.arrays).keys() == {"q", "k", "v", "d_o", "o", "dq", "dk", "dv"}
    assert {dict(key.arrays)[name] for name in ("q", "k", "v", "d_o", "o")} == {"bqhd", "bkhd"}  # as they are in memory
    assert len(contest.types) == 4
    assert {tuple(one.tile[0] for one in configs) for configs in contest.ours} >= {(64, 64), (128, 128), (64, 128)}
    autotune._settled.clear()  # as in the next process
    measurements.forget()
    assert len(configs_of(program())) == 2
    assert len(gpu.calls) == 1
    gpu.ours[SMALL] = 130.0
    assert [rows for _, rows in configs_of(program(causal=False))] == ["128", "128"]


def test_layers_of_the_same_shapes_are_one_contest(rng, gpu):
    """Written one behind the other, with all their gradients."""
    x, d_x, blocks = weights(rng)

    def layers(x, blocks):
        for layer in zip(*blocks, strict=True):
            x = block(x, layer, lambda q, k, v: FORMS["plain"](q, k, v, True))
        return x

    found = configs_of(jax_moye.optimize(all_of(layers)), (x, d_x, blocks))
    assert sorted(name for name, _ in found) == ["attention"] * LAYERS + ["attention_grad"] * LAYERS
    assert len(gpu.calls) == 1


@pytest.mark.parametrize(("xla", "is_ours"), [(101.0, False), (103.4, False), (103.6, True), (50.0, False)])
def test_xla_computes_what_is_not_clearly_faster(gpu, xla, is_ours):
    gpu.xla = xla
    assert len(configs_of(program())) == 2 * is_ours
    assert len(configs_of(program(with_gradients=False))) == is_ours
    assert len(gpu.calls) == 2  # a forward pass alone is its own


def test_a_checkpoint_has_two_decisions(gpu):
    def fun(*args):
        return jax_moye.optimize(gradients(FORMS["plain"], True, checkpoint=True))(*args)

    assert [name for name, _ in configs_of(fun)] == ["attention", "attention", "attention_grad"]
    first, second = (dict(key.arrays) for key, *_ in gpu.calls)
    assert "dq" not in first
    assert "dq" in second


def test_what_is_measured_as_another_one(gpu):
    """Sizes, groups, orders, types, masks and the program's equations are; a scale is not."""
    programs = [
        (program(), structs()),
        (program(causal=False), structs()),
        (program("by hand"), structs()),
        (program("heads first"), structs()),
        (program(), structs((2, 128, 256, 2, 2, 128))),
        (program(), structs(dtype=jnp.float16)),
        (
            lambda *args: jax_moye.optimize(gradients(GROUPED["in groups"], True))(*args),
            structs((2, 256, 256, 4, 2, 128)),
        ),
    ]
    for count, (fun, args) in enumerate(programs, 1):
        jax.clear_caches()
        lowered_text(fun, *args)
        assert len(gpu.calls) == count
    assert len({(key, of) for key, of, _ in gpu.calls}) == len(programs)

    def scaled(q, k, v, causal):
        return FORMS["of 16 bits"](q, k, v, causal)

    def scaled_otherwise(q, k, v, causal):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
        scores = jnp.where(jnp.tril(jnp.ones((256, 256), bool)), scores, -jnp.inf)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores / 8), v)

    for fun in (scaled, scaled_otherwise):
        lowered_text(lambda *args, fun=fun: jax_moye.optimize(gradients(fun, True))(*args), *structs())
    assert len(gpu.calls) == len(programs) + 1


def test_float32_is_measured_as_tf32(gpu):
    """Next to what XLA makes of the same equations, whose default is TF32, too; not where more is asked for."""
    text = lowered_text(program(), *structs(dtype=jnp.float32))
    names = re.findall(r'custom_call @jax_moye_\w*attention\w*\(.*?config = "(\w+)"', text)
    assert names == ["sm90_attention_tf32_64x64x128_s2_a16", "sm90_attention_grad_tf32_64x64x128_s2_a16"]
    ((key, _, contest),) = gpu.calls
    assert (key.dtype, key.ds_parts) == ("tf32", 1)
    assert [x.dtype for x in contest.types] == [jnp.float32] * 4
    (row,) = jax_moye.explain(program(), *structs(dtype=jnp.float32), device="h200").attentions
    assert row.computer == " + ".join(names)
    with jax.default_matmul_precision("highest"):
        assert "attention" not in lowered_text(program(), *structs(dtype=jnp.float32))
    assert len(gpu.calls) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"autotune": "off"},
        {"autotune": "cached"},
        {"deterministic": True},
        {"implementation": "moye"},
        {"implementation": "xla"},
    ],
    ids=str,
)
def test_what_is_not_measured(gpu, options):
    calls = configs_of(program(**options))
    assert len(calls) == 2 * (options.get("implementation") != "xla")
    assert gpu.calls == []


def test_other_programs_are_not_measured(gpu, monkeypatch):
    fun = program()
    with jax_moye.cuda_target(80):
        assert configs_of(fun) == []
    jax.jit(fun).lower(*structs())  # for the CPU
    monkeypatch.setattr(_compat, "cuda_arch", lambda: None)  # lowered for another machine
    configs_of(fun)
    assert gpu.calls == []


def test_measurements_count_where_nothing_is_measured(gpu):
    gpu.xla = 50.0
    assert configs_of(program()) == []
    assert configs_of(program(autotune="cached")) == []
    assert len(configs_of(program(autotune="off"))) == 2
    assert len(configs_of(program(deterministic=True))) == 2
    assert len(configs_of(program(implementation="moye"))) == 2


def test_few_scores_are_measured_where_there_is_a_gpu(gpu, monkeypatch):
    monkeypatch.setattr(selection, "LEAST_SCORES", 1 << 40)
    monkeypatch.setattr(selection, "LEAST_ELEMENTS", 1 << 40)
    assert len(configs_of(program())) == 2
    assert configs_of(program(autotune="off")) == []
    monkeypatch.setattr(_compat, "cuda_arch", lambda: None)
    assert "jax_moye_attention" not in str(jax.make_jaxpr(program())(*structs()))


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("of CUDA"), ValueError("of XLA")], ids=repr)
def test_what_fails_is_left_to_the_rule_and_not_tried_again(gpu, error, caplog, monkeypatch):
    gpu.error = error
    with caplog.at_level(logging.INFO, "jax_moye"):
        assert [rows for _, rows in configs_of(program())] == ["128", "128"]
    assert "is not measured" in caplog.text
    configs_of(program())
    assert len(gpu.calls) == 1


def test_explain_and_the_table_of_bench_have_what_was_measured(gpu):
    from jax_moye._bench.program.rewrites import attentions_of as rows_of

    configs_of(program())
    twice = lambda *args: [program()(*args), program()(*args)]  # noqa: E731
    found = jax_moye.explain(twice, *structs(), device="h200")
    (row,) = found.attentions
    assert (row.count, row.computed_by, row.us, row.xla_us) == (2, "moye", 100.0, 200.0)
    assert row.what == "attention and its gradients, 2 x 2 heads, 256 x 256 scores of 128, causal"
    assert "measured 100.0 us, XLA 200.0 us (cache)" in found.text()
    assert "no matrix products and 1 different attention" in found.text()
    (of_bench,) = rows_of(found.attentions, None)
    assert (of_bench["won_us"], of_bench["lead"], of_bench["timed"]) == (200.0, 2.0, "cache")
    assert found.to_dict()["attentions"][0]["source"] == "cache"
    gpu.xla = 50.0
    configs_of(program(causal=False))
    found = jax_moye.explain(program(causal=False), *structs(), device="h200")
    (row,) = found.attentions
    assert (row.computed_by, row.computer, row.xla_us) == ("xla", "XLA", 50.0)
    assert sum(gemm.count for gemm in found) == 7
    assert "XLA computes the equations as fast: measured 100.0 us, XLA 50.0 us (cache)" in found.text()


def test_a_file_with_attention_is_read_as_it_was_written(gpu):
    configs_of(program())
    (key, of, _), *_ = gpu.calls
    tables = measurements.read(measurements.cache_file("NVIDIA H200"))
    assert tables.entries[key, of].problem == key
    configs_of(program(causal=False))  # another entry is added to it
    assert len(measurements.read(measurements.cache_file("NVIDIA H200")).entries) == 2


# --------------------------------------------------------------------------------------------------------- a contest


CASES = {
    "plain": (lambda: gradients(FORMS["plain"], True), (1, 40, 40, 2, 2, 16)),
    "heads first": (lambda: gradients(FORMS["heads first"], True), (2, 24, 40, 2, 2, 16)),
    "in groups": (lambda: gradients(GROUPED["in groups"], False), (1, 24, 40, 4, 2, 16)),
    "checkpoint": (lambda: gradients(FORMS["by hand"], True, checkpoint=True), (1, 40, 40, 2, 2, 16)),
    "forward": (lambda: lambda q, k, v, d_o: [FORMS["plain"](q, k, v, True)], (2, 24, 40, 2, 2, 16)),
}


@pytest.mark.parametrize("case", CASES)
def test_contenders_compute_one_thing(rng, case):
    """Ours, in the emulator, and XLA's, of the arrays in memory, next to float64."""
    if {config.kernel for config in attention_configs()} != {"sm90_attention", "sm90_attention_grad"}:
        pytest.skip("no rows of sm90_attention and sm90_attention_grad in this build")
    make, sizes = CASES[case]
    fun = make()
    q, k, v, d_o = operands(rng, sizes)
    with jax_moye.options(implementation="moye"):
        rewritten = jax.make_jaxpr(jax_moye.optimize(fun))(q, k, v, d_o).jaxpr
    one = list(attentions_of(rewritten))[0 if case != "checkpoint" else 1][0]
    contest = attention_lowering.contest(one.interpreted(InterpretParams()), one.operands, None, one.together)
    causal = one.params.diagonal is not None
    expected = exact(*map(np.asarray, (q, k, v, d_o)), causal)
    values = {"q": q, "k": k, "v": v, "d_o": d_o}
    of_program = [x for x in ("o", "dq", "dk", "dv") if x in {*one.params.gradients, *["o"] * (case != "checkpoint")}]
    right = dict(zip(("o", "dq", "dk", "dv"), expected, strict=True))
    given = [in_memory(values[name], struct.shape) for name, struct in zip(values, contest.types, strict=False)]
    for configs, ours in contest.ours.items():
        assert len(configs) == 1 + bool(one.params.gradients)
        for by in (ours, contest.xla):
            results = jax.jit(by)(*given)
            assert len(results) == len(of_program)
            for name, x in zip(of_program, results, strict=True):
                wanted = right[name].reshape(-1)
                assert same_as(np.asarray(x, np.float64), right[name]), (name, configs, wanted[:4])


def in_memory(x, shape):
    """An operand in whichever order of its dimensions has this shape: its sizes tell which."""
    return x if x.shape == shape else x.reshape(shape)


def same_as(x, wanted):
    """Whether it is the array in some order of its dimensions."""
    import itertools

    orders = itertools.permutations(range(wanted.ndim))
    several = (np.transpose(wanted, order).reshape(x.shape) for order in orders)
    return any(np.abs(x - one).max() <= 0.03 * np.abs(wanted).max() for one in several)


def masked(q, k, v, d_o, mask):
    """Scores behind an array of booleans, and the gradients."""

    def of_arrays(q, k, v):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        shares = jax.nn.softmax(jnp.where(mask, scores, -1e30)).astype(q.dtype)
        return jnp.einsum("bhqk,bkhd->bqhd", shares, v)

    out, pullback = jax.vjp(of_arrays, q, k, v)
    return out, *pullback(d_o)


def test_a_mask_of_booleans_is_an_operand_of_all(rng):
    if {config.kernel for config in attention_configs()} != {"sm90_attention", "sm90_attention_grad"}:
        pytest.skip("no rows of sm90_attention and sm90_attention_grad in this build")
    values = operands(rng, (2, 24, 40, 2, 2, 16))
    mask = rng.random((2, 1, 24, 40)) < 0.7
    with jax_moye.options(implementation="moye"):
        rewritten = jax.make_jaxpr(jax_moye.optimize(masked))(*values, mask).jaxpr
    one = next(attentions_of(rewritten))[0]
    contest = attention_lowering.contest(one.interpreted(InterpretParams()), one.operands, None, one.together)
    assert (contest.types[-1].shape, contest.types[-1].dtype) == (mask.shape, bool)
    expected = exact_behind(*map(np.asarray, values), mask)
    for by in (*contest.ours.values(), contest.xla):
        for result, wanted in zip(jax.jit(by)(*values, mask), expected, strict=True):
            assert same_as(np.asarray(result, np.float64), wanted)


def test_masks_are_measured_by_their_shapes(gpu):
    args = structs()
    for count, shape in enumerate([(2, 1, 256, 256), (1, 1, 256, 256), (2, 2, 256, 256)], 1):
        assert (
            len(configs_of(lambda *of: jax_moye.optimize(masked)(*of), [*args, jax.ShapeDtypeStruct(shape, bool)])) == 2
        )
        assert len(gpu.calls) == count
        assert gpu.calls[-1][0].others == (("bool", shape),)


def test_masks_that_are_made_of_others(gpu):
    """The booleans that a comparison makes are an operand; of several that make one nobody knows what they are."""

    def padded(q, k, v, d_o, lengths):
        mask = jnp.arange(k.shape[1]) < lengths[:, None]
        return masked(q, k, v, d_o, mask[:, None, None])

    lengths = jax.ShapeDtypeStruct((2,), jnp.int32)
    assert len(configs_of(lambda *of: jax_moye.optimize(padded)(*of), [*structs(), lengths])) == 2
    assert gpu.calls[0][0].others == (("bool", (2, 256)),)

    def twice(q, k, v, one, other):
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) * q.shape[-1] ** -0.5
        scores = jnp.where(other[:, None], jnp.where(one[:, None, None], scores, -1e30), -1e30)
        return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores).astype(q.dtype), v)

    both = [jax.ShapeDtypeStruct(shape, bool) for shape in ((2, 256), (2, 256, 256))]
    assert len(configs_of(lambda *of: jax_moye.optimize(twice)(*of), [*structs()[:3], *both])) == 1
    assert len(gpu.calls) == 1


def test_both_loops_of_layers_read_one_decision(gpu):
    """The forward pass is in the first loop of a derivative, and its gradients are in the second."""

    def loss(x, w):
        def layer(x, w):
            q, k, v = jnp.einsum("btc,zchd->zbthd", x, w)
            return x + FORMS["plain"](q, k, v, True).reshape(x.shape), None

        return jnp.sum(jax.lax.scan(layer, x, w)[0].astype(jnp.float32))

    x, w = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((2, 256, 256), (3, 3, 256, 2, 128)))
    step = jax_moye.optimize(jax.grad(loss, argnums=(0, 1)))
    for xla, found in ((200.0, ["attention", "attention_grad"]), (50.0, [])):
        gpu.xla = xla
        assert [name for name, _ in configs_of(step, [x, w])] == found
        (key, of, _), *_ = gpu.calls
        assert len(gpu.calls) == 1
        assert {"o", "dq", "dk", "dv"} <= dict(key.arrays).keys()
        (row,) = jax_moye.explain(step, x, w, device="h200").attentions
        assert (row.count, row.computed_by, row.xla_us) == (3, "moye" if found else "xla", xla)
        gpu.calls.clear()
        autotune._settled.clear()
        measurements.remember("NVIDIA H200", (key, of), None)  # so that it is measured anew
        pathlib.Path(measurements.cache_file("NVIDIA H200")).unlink()
        measurements.forget()
