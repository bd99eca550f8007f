"""`tune`: what it writes and says, which configs it times, what it refuses."""

from __future__ import annotations

import dataclasses
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.measured import H200, SHAPE, able, bf16, emulated, entry_of, explained, product_of

import jax_moye
from jax_moye._kernels.devices import DEVICES
from jax_moye._selection import measurements
from jax_moye._selection.ranking import rank
from jax_moye._tune import tune


def test_tune_writes_what_the_next_program_does(fake):
    fake |= {"us": lambda i: {0: 12.0, 1: 11.0, 2: 13.0, 4: 10.0}.get(i, 20.0), "xla_us": 15.0}
    gemm = explained(*SHAPE, implementation="moye")
    found = jax_moye.tune(*SHAPE)
    assert fake["candidates"] == able(gemm)[: tune.TOP]
    (product,) = found.products
    assert product.entry.config == able(gemm)[4]
    assert list(product.entry.us.values()) == [12.0, 11.0, 13.0, 20.0, 10.0, 20.0, 20.0, 20.0]
    assert explained(*SHAPE).config.name == able(gemm)[4]
    assert explained(*SHAPE).chosen_by == "cache"
    (one,) = found.regret()
    assert (one.alone, one.top3) == (10.0 / 12.0, 10.0 / 11.0)
    assert (one.chosen, one.best) == (able(gemm)[0], able(gemm)[4])
    text = str(found)
    assert f"256x128x512 NN bf16: {able(gemm)[4]} 10 us of 8, XLA 15" in text
    assert "the model's first config: 0.8333 of the best measured" in text
    assert found.rows()[1][1:] == [able(gemm)[4], "10", "15", "8", ""]
    assert found._repr_html_().count("<td>") == 6
    assert "the best of its first three: 0.9091 of the best measured" in text
    assert f"written to {measurements.cache_file(H200)}" in text
    assert explained(*SHAPE).predicted_us == explained(*SHAPE).chosen.us  # the model's, of the row that was measured


def test_tune_writes_of_a_layer_what_the_next_one_finds(fake):
    def layer(x, w, b):
        return jax_moye.linear(x, w, b, activation="silu")

    args = [jax.ShapeDtypeStruct(shape, bf16) for shape in ((2048, 2048), (2048, 2048), (2048,))]
    fake |= {"us": lambda i: 20.0 - (i == 2), "xla_us": 30.0}
    (product,) = jax_moye.tune(layer, *args).products
    assert (product.entry.variant, product.entry.problem.epilogue) == ("silu bias", True)
    found = jax_moye.explain(layer, *args, device="h200")[0]
    assert (found.chosen_by, found.config.name) == ("cache", product.entry.config)


def test_all_configs_and_some(fake):
    fake["us"] = lambda i: 10.0 + i
    gemm = explained(*SHAPE, implementation="moye")
    jax_moye.tune(*SHAPE, top=None)
    assert fake["candidates"] == able(gemm)
    jax_moye.tune(*SHAPE, top=1)
    assert fake["candidates"] == able(gemm)[:1]


def test_equals_are_the_models(fake):
    fake["us"] = lambda i: [10.05, 10.0, 9.97][i] if i < 3 else 12.0
    gemm = explained(*SHAPE, implementation="moye")
    assert jax_moye.tune(*SHAPE).products[0].entry.config == able(gemm)[0]
    fake["us"] = lambda i: [10.3, 10.0][i] if i < 2 else 12.0
    assert jax_moye.tune(*SHAPE).products[0].entry.config == able(gemm)[1]
    fake["host_bound"] = True
    assert jax_moye.tune(*SHAPE).products[0].entry.config == able(gemm)[0]


def test_every_product_of_a_function_and_what_is_left_out(fake):
    fake["us"] = lambda i: 10.0

    def step(x, w):
        y = jax_moye.matmul(x, w, precision="F64_F64_F64")
        y = jax_moye.matmul(y, w, implementation="xla") + jnp.dot(x, w)
        y = jax_moye.matmul(y, w, config=name)
        y = jax_moye.matmul(y, w, batch_invariant=True)
        return jax_moye.linear(y, w, activation="relu") + jax_moye.matmul(y, w.T)

    x = jax.ShapeDtypeStruct((64, 64), bf16)
    name = able(explained(x, x, implementation="moye"))[0]
    found = jax_moye.tune(jax.grad(lambda x, w: jnp.sum(step(x, w).astype(jnp.float32))), x, x)
    variants = {(product.entry.problem.order, product.entry.variant) for product in found.products if product.entry}
    assert ("NN", "relu") in variants
    assert {("NT", ""), ("NN", "")} & variants
    why = "\n".join(product.why for product in found.products if product.entry is None)
    for reason in (
        "no kernel computes",
        "implementation='xla'",
        "lax.dot_general's own",
        "names the config",
        "batch_inv",
    ):
        assert reason in why
    assert "not tuned: " in str(found)


def test_the_budget(fake, capsys):
    fake["us"] = lambda i: 10.0
    found = jax_moye.tune(*SHAPE, budget_s=-1)
    assert found.products[0].why == "the budget of -1 s was over"
    assert not pathlib.Path(measurements.cache_file(H200)).exists()


def test_errors():
    with pytest.raises(RuntimeError, match="while a program is traced"):
        jax.jit(lambda x: jax_moye.tune(*SHAPE) or x)(1.0)
    for transformed in (jax.grad, jax.jit, lambda f: jax.vmap(f, axis_size=2)):
        with pytest.raises(RuntimeError, match="while a program is traced"):
            transformed(lambda x: jax_moye.tune(x, x) or x)(jnp.ones((2, 2)) if transformed is not jax.grad else 1.0)
    for top in (0, -1, 1.5, True, "all"):
        with pytest.raises(ValueError, match="top is a number of configs"):
            jax_moye.tune(*SHAPE, top=top)
    if jax.default_backend() == "cpu":
        with pytest.raises(RuntimeError, match="tune: JAX sees no GPU here"):
            jax_moye.tune(*SHAPE)


def test_inputs_are_untouched(tmp_path, monkeypatch, places):
    monkeypatch.setattr(tune, "find_gpu", lambda: jax.devices("cpu")[0])
    monkeypatch.setattr(tune, "of_jax", lambda device: DEVICES["h200"])
    target = emulated(tmp_path)[0]
    monkeypatch.setattr(tune, "find_target", lambda *args, **options: target)
    a, b, gone = (jnp.asarray(np.arange(256).reshape(16, 16) % 7, bf16) for _ in range(3))
    before = [np.asarray(x).tobytes() for x in (a, b)]
    found = jax_moye.tune(lambda a, b, c: jax_moye.matmul(a, b) @ c, a, b, gone, top=1)
    assert [product.entry is not None for product in found.products] == [True, False]
    assert [np.asarray(x).tobytes() for x in (a, b)] == before
    gone.delete()  # what is deleted cannot be read: its shape is enough
    assert jax_moye.tune(a, gone, top=1).products[0].entry is not None


def test_regret_is_of_todays_model(places):
    gemm = explained(*SHAPE, implementation="moye")
    order = [row.name for row, reason in rank(gemm.problem, 90, jax_moye.configs()) if reason is None]
    us = {order[1]: 20.0, order[2]: 16.0, order[3]: 10.0}  # the model's first was not timed
    (one,) = tune.regret([entry_of(gemm, us)], 90)
    assert (one.chosen, one.best, one.alone, one.top3) == (order[1], order[3], 0.5, 1.0)
    assert tune.regret([entry_of(gemm, {"gone": 1.0} | us, config=order[1])], 90) == [one]
    assert tune.regret([], 90) == []
    assert tune.regret_lines([]) == []


def test_choices_print_what_they_are():
    gemm = explained(*SHAPE, implementation="moye")
    entry = entry_of(gemm)
    assert not tune.is_xla_faster(dataclasses.replace(entry, xla_us={"any": 1e9}))
    assert tune.words(entry) == "256x128x512 NN bf16"
    odd = explained((3, 31, 65), (3, 65, 33), "bfloat16", implementation="moye")
    assert tune.words(entry_of(odd)) == "3x31x33x65 NN bf16 aligned to 2"


def test_quickly_is_as_lowering_does(tmp_path, monkeypatch):
    """No program of ours is compiled, and XLA gets the product as it is in memory."""
    asked = []

    def measured(request, operands, call, candidates, xla, others):
        structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands]
        more = [jax.ShapeDtypeStruct(shape, request.out_dtype) for shape in others.values()]
        asked.append((len(candidates), jax.eval_shape(xla, *structs, *more).shape, others))
        return measured_entry(request, operands, call, candidates, {candidates[0].name: 2.0}, 3.0, 1.4)

    measured_entry = tune.product_race.new_entry
    monkeypatch.setattr(tune.product_race, "measured", measured)
    target, protocol = emulated(tmp_path)
    protocol = dataclasses.replace(protocol, quick=True)
    layer = jax_moye.explain(
        lambda a, b, c: jax_moye.linear(a.T, b, c, activation="silu"),
        *(jax.ShapeDtypeStruct(shape, bf16) for shape in ((64, 32), (64, 48), (48,))),
        device=80,
    )[0].product
    mixed = product_of((16, 32), (32, 16), "float32")
    is_plain = tune.product_race.is_plain
    monkeypatch.setattr(tune.product_race, "is_plain", lambda of, *rest: of.out_dtype == bf16 and is_plain(of, *rest))
    plain, fused, converted = tune.tune_products([product_of(*SHAPE), layer, mixed], target, protocol)
    assert asked == [(2, (256, 128), {}), (2, (32, 48), {"bias": (48,)})]
    words = "bfloat16 bfloat16 bfloat16 DEFAULT"
    assert (plain.entry.xla_us, plain.entry.lead) == ({words: 3.0}, {words: 1.4})
    assert fused.entry.variant == "silu bias"
    assert converted.why == "its operands are converted: tune it without --quick"
