"""report: predictions without a GPU, times and results in the emulator."""

import dataclasses
import importlib
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python._inspect.golden import bf16, struct
from python._inspect.tags import Tags

import jax_moye
from jax_moye._inspect.report import Report, measure_gemm
from jax_moye._kernels.interpret import InterpretParams

EMULATED = {"rounds": 1, "round_ms": 0.1, "warmup_ms": 0.0, "interpret": InterpretParams(detect_races=False)}


def step(x, w, b):
    y = jax_moye.linear(x, w, b, activation="gelu")
    z = jax_moye.matmul(y, w.T, precision="highest")
    return jnp.sum(z.astype(jnp.float32)) + jnp.sum(x @ w)


def test_report_without_a_gpu_predicts():
    if any(device.platform == "gpu" for device in jax.devices()):
        pytest.skip("there is a GPU")
    report = jax_moye.report(jax.grad(step, (0, 1, 2)), struct(16, 16), struct(16, 16), struct(16))
    assert report.measured is None
    assert report.totals() == {"program": None, "xla": None}
    assert "JAX sees no GPU here" in str(report)
    assert json.loads(report.to_json())["measured"] is None
    with pytest.raises(TypeError, match="fun is a function"):
        jax_moye.report((8, 8), (8, 8))
    with pytest.raises(ValueError, match="alternations"):
        jax_moye.report(step, alternations=0)
    with pytest.raises(ValueError, match="turn_ms"):
        jax_moye.report(step, turn_ms=-1)


@pytest.mark.parametrize(("count", "words"), [(0, "no matrix products on "), (1, "1 different matrix product on ")])
def test_it_begins_with_how_many_products_there_are(count, words):
    report = jax_moye.report(lambda x: jnp.sum(x @ x) if count else jnp.sum(x), struct(16, 16))
    assert str(report).startswith(words)


def test_report_measures_what_was_explained():
    """In the emulator: each product with its transposes, epilogue and dtypes, and a wrong kernel has no time."""
    with jax_moye.options(implementation="moye"):
        explanation = jax_moye.explain(step, struct(16, 16), struct(16, 16), struct(16), device=80)
    assert {gemm.computed_by for gemm in explanation} == {"moye", "xla"}
    measured = tuple(measure_gemm(gemm, jax.devices("cpu")[0], **EMULATED | {"rounds": 2}) for gemm in explanation)
    for gemm, one in zip(explanation, measured, strict=True):
        assert one.error is None
        assert (one.us is not None) == (gemm.computed_by == "moye")
        assert one.xla_us > 0
        assert gemm.computed_by != "moye" or one.error_over_bound <= 1
    report = Report(explanation, measured, ())
    assert report.totals()["program"] > 0
    assert "times as fast" in str(report)
    page = Tags()
    page.feed(report._repr_html_())
    assert page.open == []
    json.dumps(report.to_dict())


def test_a_wrong_result_has_no_time(monkeypatch):
    gemm = jax_moye.explain((16, 16), (16, 16), bf16, implementation="moye", device=90)[0]
    report = importlib.import_module("jax_moye._inspect.report")  # the module: jax_moye.report is the function
    right = report.program_of
    monkeypatch.setattr(
        report,
        "program_of",
        lambda product, implementation, interpret: (
            right(product, "xla", None) if implementation == "xla" else lambda a, b: np.float32(1.1) * a
        ),
    )
    one = measure_gemm(gemm, jax.devices("cpu")[0], rounds=1, round_ms=0.1, warmup_ms=0.0)
    assert one.us is None
    assert "WRONG" in one.error


def test_a_report_of_an_optimized_program():
    """What the rewrites won: in the emulator, each against the equations as XLA had them."""

    def fun(x, w, b, r):
        return r + jax.nn.silu(x @ w + b), x.T @ x

    args = struct(16, 32), struct(32, 24), struct(24), struct(16, 24)
    with jax_moye.options(implementation="moye"):
        explanation = jax_moye.explain(jax_moye.optimize(fun), *args, device=80)
    measured = tuple(measure_gemm(gemm, jax.devices("cpu")[0], **EMULATED | {"rounds": 2}) for gemm in explanation)
    assert [one.error for one in measured] == [None, None]
    report = Report(explanation, measured, ())
    head, *lines = report.rows()
    assert [line[head.index("takes in")] for line in lines] == ["silu, bias, residual", ""]
    assert "1 of 2 products take in what stands behind them (c: a sum): " in str(report)
    alone = Report(dataclasses.replace(explanation, gemms=explanation.gemms[1:]), measured[1:], ())
    assert "takes in" not in alone.rows()[0]
    assert "take in what" not in str(alone)


def gated(x, g, u):
    return jax.nn.silu(x @ g) * (x @ u)


def gated_with_derivatives(x, g, u):
    return jax.vjp(gated, x, g, u)


def activated_with_derivatives(x, w):
    return jax.vjp(lambda x, w: jax.nn.gelu(x @ w), x, w)


PAIRS = {
    "a gated layer": (gated, 3, "silu, times the product with second_b"),
    "and what its derivatives read": (
        gated_with_derivatives,
        3,
        "silu, times the product with second_b, both products kept",
    ),
    "weights that lie transposed": (
        lambda x, g, u: gated(x, g.T, u.T),
        3,
        "silu, times the product with second_b",
    ),
    "one of them": (lambda x, g, u: gated(x, g.T, u), 3, "silu, times the product with second_b"),
    "an activation and what it reads": (activated_with_derivatives, 2, "gelu_tanh, its argument kept"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_several_results_and_operands(name):
    """They are named in words, and ours is timed as it is, with all it writes, against the equations as they were."""
    fun, count, words = PAIRS[name]
    args = [struct(16, 32), struct(32, 32), struct(32, 32)][:count]
    with jax_moye.options(implementation="moye"):
        gemm = jax_moye.explain(jax_moye.optimize(fun), *args, device="h200")[0]
    assert (gemm.computed_by, gemm.epilogue, gemm.epilogue_reason) == ("moye", words, None)
    assert gemm.takes_in in str(gemm)
    is_of_pair = "second_b" in words
    assert ("(N,K) bf16, and so lies second_b" in str(gemm)) == is_of_pair
    assert gemm.roofline()["flops"] == 2 * 16 * 32 * 32 * (1 + is_of_pair)
    assert not is_of_pair or gemm.config.takes_pair
    one = measure_gemm(gemm, jax.devices("cpu")[0], **EMULATED)
    assert one.error is None
    assert one.error_over_bound <= 1
    assert one.us > 0 < one.xla_us


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.gelu, jax.nn.silu])
def test_the_derivative_of_an_activation(activation):
    """Behind a product of the backward pass."""

    def step(x, w, v):
        return jax.vjp(lambda x: activation(x @ w) @ v, x)[1](x @ w @ v)

    with jax_moye.options(implementation="moye"):
        explanation = jax_moye.explain(jax_moye.optimize(step), *[struct(32, 32)] * 3, device="h200")
    (gemm,) = (gemm for gemm in explanation if (gemm.epilogue or "").startswith("d_"))
    reasons = {one.config.derives: one.reason for one in gemm.candidates if one.config.dtype == "bf16"}
    assert reasons == {True: None, False: "it multiplies by no derivative"}
    one = measure_gemm(gemm, jax.devices("cpu")[0], **EMULATED)
    assert one.error is None
    assert one.error_over_bound <= 1


@pytest.mark.parametrize("activation", [jax.nn.relu, jax.nn.gelu, jax.nn.silu])
def test_both_cotangents_of_a_gated_layer(activation):
    """One product of the backward pass has both as its results."""

    def step(d_y, w, gate, up):
        return jax.vjp(lambda gate, up: activation(gate) * up, gate, up)[1](d_y @ w)

    with jax_moye.options(implementation="moye"):
        (gemm,) = jax_moye.explain(jax_moye.optimize(step), *[struct(32, 32)] * 4, device="h200")
    assert gemm.epilogue.endswith("c, multiplier, both cotangents of a gate")
    of_derivatives = [one for one in gemm.candidates if one.config.dtype == "bf16" and one.config.derives]
    reasons = {one.config.takes_gate: one.reason for one in of_derivatives}
    assert reasons[True] is None
    assert reasons.get(False) in (None, "it writes one result, and these are two")
    one = measure_gemm(gemm, jax.devices("cpu")[0], **EMULATED)
    assert one.error is None
    assert one.error_over_bound <= 1


def test_a_wrong_second_operand_has_no_time(monkeypatch):
    with jax_moye.options(implementation="moye"):
        gemm = jax_moye.explain(jax_moye.optimize(gated), *[struct(32, 32)] * 3, device="h200")[0]
    report = importlib.import_module("jax_moye._inspect.report")
    right = report.program_of

    def the_first_twice(product, implementation, interpret):
        fun = right(product, implementation, interpret)
        return fun if implementation == "xla" else lambda x, g, u: fun(x, g, g)

    monkeypatch.setattr(report, "program_of", the_first_twice)
    assert "WRONG" in measure_gemm(gemm, jax.devices("cpu")[0], **EMULATED).error
