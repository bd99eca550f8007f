"""The attentions of a program: a row for each different one, with its gradients, and what is timed of it."""

from __future__ import annotations

import dataclasses
import re

import jax
import jax.numpy as jnp
import pytest
from python.attentions import FORMS, gradients, operands, use_fake_rows

import jax_moye
from jax_moye._bench.program.rewrites import attentions_of as rows_of
from jax_moye._bench.program.show import rewrites_cells, words
from jax_moye._inspect import attentions, report
from jax_moye._inspect.attentions import counted
from jax_moye._inspect.report import Measured, Report, measure_attention
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import attention_configs
from jax_moye._kernels.interpret import InterpretParams

SHORT = {"rounds": 2, "round_ms": 0.1, "warmup_ms": 0.0}


def explained(monkeypatch, fun, *args, device="h200"):
    use_fake_rows(monkeypatch)
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    return jax_moye.explain(fun, *args, device=device)


def test_a_row_for_each_different_one(monkeypatch, rng):
    """Attention and its gradients are one; equal ones are counted, in loops as often as these run."""
    q, k, v, d_o = operands(rng)

    def program(q, k, v, d_o):
        causal = [gradients(FORMS["plain"], True)(q, k, v, d_o) for _ in range(2)]
        step = lambda q, _: (FORMS["plain"](q, k, v, False), None)  # noqa: E731
        return causal, jax.lax.scan(step, q, None, length=3)

    found = explained(monkeypatch, jax_moye.optimize(program), q, k, v, d_o)
    assert [(row.count, row.what) for row in found.attentions] == [
        (2, "attention and its gradients, 2 x 2 heads, 24 x 24 scores of 16, causal"),
        (3, "attention, 2 x 2 heads, 24 x 24 scores of 16"),
    ]
    first, second = (row.computer for row in found.attentions)
    assert re.fullmatch(r"sm90_attention_bf16_\S+ \+ sm90_attention_grad_bf16_\S+", first)
    assert second.startswith("sm90_attention_bf16")
    assert all(row.us is row.xla_us is None for row in found.attentions)
    assert [line[1] for line in found.summary()[1:]] == [row.what for row in found.attentions]
    for text in (found.text(), found._repr_html_()):
        assert all(row.what in text for row in found.attentions)
    assert "no matrix products and 2 different attentions" in found.text()
    assert [one["count"] for one in found.to_dict()["attentions"]] == [2, 3]


def test_what_no_kernel_computes_is_a_row_and_products(monkeypatch, rng):
    fun = jax_moye.optimize(gradients(FORMS["plain"], True))
    found = explained(monkeypatch, fun, *operands(rng), device=80)
    (row,) = found.attentions
    assert (row.computed_by, row.computer) == ("xla", "XLA")
    assert sum(gemm.count for gemm in found) == 7
    report = Report(found, tuple(Measured(None, 2.0) for _ in found), (), (Measured(None, 9.0),))
    assert report.totals() == {"program": 14.0, "xla": 14.0}  # its products, and not it, too


def test_counted():
    assert counted([1, 2], []) == "2 different matrix products"
    assert counted([1], [1]) == "1 different matrix product and 1 different attention"


def test_sums_of_report_and_bench_have_it(monkeypatch, rng):
    def program(q, k, v, d_o, w):
        return *gradients(FORMS["plain"], True)(q, k, v, d_o), w @ w

    w = jnp.ones((64, 64), jnp.int16)
    found = explained(monkeypatch, jax_moye.optimize(program), *operands(rng), w)
    of_attention = Measured(10.0, 30.0, 3.0, (2.5, 3.5))
    of_all = Report(found, (Measured(None, 5.0),), (), (of_attention,))
    assert of_all.totals() == {"program": 15.0, "xla": 35.0}
    text = str(of_all)
    assert "1 different matrix product and 1 different attention on" in text
    assert "attentions that kernels of ours compute: 10.0 us, 30.0 us with XLA alone, 3.000 times as fast" in text
    assert "all products and attentions: 15.0 us, 35.0 us with XLA alone, 2.333 times as fast" in text
    assert of_all.to_dict()["attentions"][0]["xla_us"] == 30.0
    unknown = Report(found, None, ())
    assert unknown.totals() == {"program": None, "xla": None}
    (row,) = rows_of(found.attentions, [of_attention])
    assert (row["us"], row["xla_us"], row["won_us"], row["lead"], row["timed"]) == (10.0, 30.0, 20.0, 2.5, "alone")
    run = {"rewrites": [row, {**row, "computed_by": "xla", "takes_in": "", "won_us": 0.0}], "not_run": [], "notes": []}
    _, ours, left = rewrites_cells(run)
    assert ours[:4] == ["attention 2x2 24x24x16 causal", "softmax, and the gradients", "1", "ours"]
    assert ours[7] == "20"
    assert left[3] == "XLA"
    assert words(run) == [
        "1 different attentions of ours: 0.02 ms won",
        "1 different attentions that are XLA's, as they were",
    ]


def emulated(rng, with_gradients):
    """The row of a small attention whose kernels this build has in the emulator."""
    if {config.kernel for config in attention_configs()} != {"sm90_attention", "sm90_attention_grad"}:
        pytest.skip("no rows of sm90_attention and sm90_attention_grad in this build")
    inner = gradients(FORMS["plain"], True) if with_gradients else lambda *of: FORMS["plain"](*of[:3], True)
    with jax_moye.options(implementation="moye"):
        found = jax_moye.explain(jax_moye.optimize(inner), *operands(rng, (1, 24, 24, 2, 2, 16)), device="h200")
    (row,) = found.attentions
    return row


@pytest.mark.parametrize("with_gradients", [False, True])
def test_it_is_timed_next_to_xla(rng, with_gradients, monkeypatch):
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    monkeypatch.setattr(attentions, "rotated_bytes", lambda: 1)
    row = emulated(rng, with_gradients)
    cpu, how = jax.devices("cpu")[0], InterpretParams(detect_races=False)
    found = measure_attention(row, cpu, **SHORT, interpret=how)
    assert found.error is None
    assert found.us > 0
    assert found.ratio == pytest.approx(found.xla_us / found.us)
    monkeypatch.setattr(report, "is_same", lambda ours, xla: False)
    assert measure_attention(row, cpu, **SHORT, interpret=how).error == "WRONG: the result differs from XLA's"
    left = dataclasses.replace(row, decisions=tuple(one._replace(config=None) for one in row.decisions))
    found = measure_attention(left, cpu, **SHORT, interpret=how)
    assert (found.us, found.error) == (None, None)
    assert found.xla_us > 0


def test_a_wrong_kernel_has_no_time(rng, monkeypatch):
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    monkeypatch.setattr(attentions, "rotated_bytes", lambda: 1)
    row = emulated(rng, False)
    right = attentions.AttentionRow.contest

    def wrong(self, interpret):
        found = right(self, interpret)
        return found._replace(ours={of: lambda *x: [2 * y for y in found.xla(*x)] for of in found.ours})

    monkeypatch.setattr(attentions.AttentionRow, "contest", wrong)
    found = measure_attention(row, jax.devices("cpu")[0], **SHORT, interpret=InterpretParams())
    assert found.error == "WRONG: the result differs from XLA's"
