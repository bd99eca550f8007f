"""What is said of one product: reasons, ratios, epilogues."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest
from python._inspect.golden import bf16, struct
from python.measured import SHAPE, entry_of, explained, keep

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._selection import capability, decide, measurements


def test_an_epilogue_that_no_kernel_takes():
    fun = jax.vmap(lambda x, w, b: jax_moye.linear(x, w, b, activation="relu"), in_axes=(None, None, 0))
    found = jax_moye.explain(fun, struct(8, 8), struct(8, 8), struct(3, 8), device="h200")
    assert [gemm.count for gemm in found] == [1]
    integers = (struct(8, 8, dtype=jnp.int8), struct(8, 8, dtype=jnp.int8))
    found = jax_moye.explain(
        lambda x, w: jax_moye.linear(x, w, alpha=2.0, preferred_element_type=jnp.int32, implementation="moye"),
        *integers,
        device="h200",
    )
    assert "alpha 1" in found[0].epilogue_reason
    assert found[0].computed_by == "moye"


@pytest.mark.parametrize(
    ("shapes", "options"),
    [
        (((8, 8), (8, 8), "int16"), {}),
        (((8, 8), (8, 8), "float32"), {"precision": "default"}),
        (((8, 8), (8, 8), "float32"), {"precision": "BF16_BF16_F32_X9"}),
        (((8, 8), (8, 8), "bfloat16"), {"precision": "F64_F64_F64"}),
        (((8, 8), (8, 8), "float8_e4m3fn"), {"precision": "highest"}),
        (((8, 8), (8, 8), "complex64"), {}),
        (((4, 4, 8, 8), (4, 1, 8, 8), "bfloat16"), {}),
        (((2, 3, 4, 5), (3, 2, 5, 6), "bfloat16"), {"spec": "abmk,bakn->abmn"}),
        (((4, 2, 3, 5), (5, 3, 6), "bfloat16"), {"spec": "mabk,kbn->amn"}),
        (((8, 8), (8, 8), "float16"), {"deterministic": True}),
    ],
)
@pytest.mark.parametrize("device", ["h200", "v100"])
def test_reasons_are_the_lowerings(shapes, options, device, monkeypatch):
    monkeypatch.setattr(ffi, "why_unavailable", lambda platform: None)
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    found = jax_moye.explain(*shapes, **options, device=device)[0]
    request, operands = found.product.request, found.product.operands
    with jax_moye.cuda_target(found.device.arch):
        outcome = decide.decide(request, operands, capability.LoweringTarget.of_platform("cuda"))
    if outcome.kind == "kernel":
        assert found.computed_by == "moye"
        call = outcome.call
        assert (found.config, found.problem, found.split) == (call.config, call.problem, call.split)
    else:
        assert found.config is None
        assert outcome.reason in found.reason
        assert found.computed_by == outcome.kind == ("error" if decide.why_not_xla("cuda", request) else "xla")


def test_reasons_of_the_caller():
    assert jax_moye.explain((8, 8), (8, 8), bf16, implementation="xla")[0].reason == "implementation='xla'"
    found = jax_moye.explain((8, 8), (8, 8), "int16", implementation="moye")[0]
    assert found.computed_by == "error"
    assert "no kernel multiplies int16" in found.reason
    assert jax_moye.explain((0, 8), (8, 8), bf16)[0].computed_by == "nothing"


def test_every_kernel_has_a_reason_or_a_ratio():
    found = jax_moye.explain((256, 256), (256, 256), bf16, implementation="moye", device="a100")[0]
    kernels = {candidate.config.kernel for candidate in found.candidates}
    assert set(found.by_kernel()) == kernels - {found.config.kernel}
    assert all(found.by_kernel().values())
    ranked = [candidate.us for candidate in found.candidates if candidate.us is not None]
    assert ranked == sorted(ranked)
    assert found.predicted_us == ranked[0]


def test_what_a_product_takes_in():
    def sums(x, w, c):
        return x @ w + c

    with jax_moye.options(implementation="moye"):
        found = jax_moye.explain(jax_moye.optimize(sums), struct(8, 16), struct(16, 8), struct(8, 8), device=90)
    assert [gemm.takes_in for gemm in found] == ["c"]
    layer = jax_moye.explain(
        lambda x, w, b: jax_moye.linear(x, w, b, activation="relu"),
        struct(8, 16),
        struct(16, 8),
        struct(8),
        device=90,
    )
    assert [gemm.takes_in for gemm in layer] == ["relu, bias"]
    assert jax_moye.explain((8, 16), (16, 8), bf16, device=90)[0].takes_in == ""


def test_the_lead_is_of_the_dtypes_that_were_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(measurements, "cache_file", lambda kind: str(tmp_path / "cache.json"))
    monkeypatch.setattr(measurements, "driver_version", lambda: "580.1")
    measurements.forget()
    before = explained(*SHAPE)
    assert before.lead is None
    entry = entry_of(before, xla_us=30.0)
    (of,) = entry.xla_us
    keep(dataclasses.replace(entry, lead={of: 2.5}))
    assert explained(*SHAPE).lead == 2.5
    keep(dataclasses.replace(entry, lead={"float16 float16 float16 DEFAULT": 2.5}))
    assert explained(*SHAPE).lead is None
