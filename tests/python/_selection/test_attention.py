"""Who computes an attention: which kernel, and why none."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import pytest
from jax import lax
from python.attentions import fake_row, use_fake_rows

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import ConfigTable
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import attention as module
from jax_moye._selection.attention import AttentionRequest, AttentionSizes, decide_attention, is_aligned
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.view import View

SIZES = AttentionSizes(8, 16, 1, 1024, 1024, 128)
CPU = LoweringTarget("cpu", None, None, ConfigTable([]))
CUDA = LoweringTarget("cuda", 90, None, ConfigTable([]))
ASKED = AttentionRequest()


@pytest.fixture(autouse=True)
def fake_rows(monkeypatch):
    least = module.LEAST_SCORES
    use_fake_rows(monkeypatch)
    monkeypatch.setattr(module, "LEAST_SCORES", least)
    monkeypatch.setattr(ffi, "built", lambda platform: None)


def decided(sizes=SIZES, request=ASKED, dtype=jnp.bfloat16, gradients=False, target=CUDA):
    return decide_attention(request, sizes, dtype, gradients, target)


@pytest.mark.parametrize(
    ("q_rows", "head_dim", "tile"),
    [
        (1024, 128, "128x128x128"),
        (1024, 64, "128x128x64"),
        (1024, 72, "128x128x128"),
        (1, 128, "64x64x128"),
        (64, 96, "64x64x128"),
        (65, 96, "128x128x128"),
        (1, 64, "128x128x64"),
    ],
)
def test_the_least_tile(q_rows, head_dim, tile):
    for gradients, kernel in ((False, "sm90_attention"), (True, "sm90_attention_grad")):
        found = decided(SIZES._replace(q_rows=q_rows, head_dim=head_dim), gradients=gradients)
        assert found.config.name == f"{kernel}_bf16_{tile}_s2_a16"
        assert found.cause is None
        assert f"head_dim of {head_dim}" in found.reason
    assert decided(dtype=jnp.float16).config.dtype == "f16"


def test_keys_are_shared_where_there_is_room(monkeypatch):
    """By as many CTAs as have a multiprocessor each, and two tiles of keys or more; never where the batch would say."""
    row = fake_row("bf16", (64, 64, 64), False)
    rows = [dataclasses.replace(row, cluster=(1, parts)) for parts in (1, 2, 4, 8)]
    monkeypatch.setattr(module, "attention_configs", lambda: rows)

    def shared(batch, kv_rows, **changes):
        sizes = AttentionSizes(batch, 8, 1, 4, kv_rows, 64)
        return decided(sizes, AttentionRequest(implementation="moye", **changes)).config.cluster[1]

    assert shared(2, 8192) == 8
    assert shared(4, 8192) == 4
    assert shared(8, 8192) == 2
    assert shared(9, 8192) == 1
    assert shared(1, 1023) == 4
    assert shared(1, 511) == 2
    assert shared(1, 255) == 1
    assert shared(1, 8192, batch_invariant=True) == 1

    # Of a head_dim of 256 a CTA has a multiprocessor of its own.
    rows = [dataclasses.replace(row, smem_bytes=230_400) for row in rows]
    assert [config.cluster[1] for config in decided(AttentionSizes(8, 8, 1, 4, 8192, 64)).able] == [2, 1]
    rows = [dataclasses.replace(row, smem_bytes=100_000) for row in rows]

    # Nor are they measured where there is no room.
    able = decided(AttentionSizes(8, 8, 1, 4, 8192, 64)).able
    assert [config.cluster[1] for config in able] == [2, 1, 4]


def test_tiles_of_more_keys_where_there_are_two(monkeypatch):
    rows = [fake_row("bf16", (64, columns, 64), False) for columns in (64, 128)]
    monkeypatch.setattr(module, "attention_configs", lambda: rows)
    for kv_rows, columns in ((77, 64), (255, 64), (256, 128), (8192, 128)):
        found = decided(AttentionSizes(8, 8, 1, 4, kv_rows, 64), AttentionRequest(implementation="moye"))
        assert found.config.tile[1] == columns


def test_float32_is_multiplied_in_tf32():
    """Of more is no kernel; in the emulator a program has to ask for it by its name."""
    on_request = decided(request=AttentionRequest(implementation="moye"), dtype=jnp.float32)
    assert on_request.config.name == "sm90_attention_tf32_128x128x128_s2_a16"
    assert decided(SIZES._replace(head_dim=64), dtype=jnp.float32).config.tile == (128, 128, 64)
    assert decided(dtype=jnp.float32).reason == "nobody has measured a head_dim of 128: more than 64"
    assert "kernels are for 128 at most" in decided(SIZES._replace(head_dim=136), dtype=jnp.float32).reason

    def in_emulator(precision, target):
        request = AttentionRequest(interpret=InterpretParams())
        return decide_attention(request, SIZES, jnp.float32, False, target, precision=precision)

    for target in (CPU, None):  # also while a program is traced
        assert in_emulator(lax.DotAlgorithmPreset.TF32_TF32_F32, target).config.dtype == "tf32"
        for precision in (None, (lax.Precision.DEFAULT,) * 2):
            found = in_emulator(precision, target)
            assert (found.config, found.cause) == (None, "place")
            assert found.reason == "on cpu float32 is multiplied as it is, unless precision is 'TF32_TF32_F32'"
    assert decided(target=CPU, request=AttentionRequest(interpret=InterpretParams())).config.dtype == "bf16"


def test_parts_begin_at_multiples_of_16_bytes():
    view = View.whole((4, 6, 12))
    assert is_aligned(view, jnp.float32)
    assert not is_aligned(view, jnp.bfloat16)
    for offset, is_one in ((4, True), (2, False), (8, True)):
        assert is_aligned(dataclasses.replace(view, offset=offset), jnp.float32) is is_one


def test_why_none():
    def why(**changes):
        found = decided(**changes)
        assert found.config is None
        return found.cause, found.reason

    assert why(request=AttentionRequest(implementation="xla"))[0] == "caller"
    assert why(sizes=None)[0] == "capability"
    assert "float64" in why(dtype="float64")[1]
    assert "head_dim is 12" in why(sizes=SIZES._replace(head_dim=12))[1]
    assert "kernels are for 128 at most" in why(sizes=SIZES._replace(head_dim=256))[1]
    assert "kernels of gradients are for 128 at most" in why(sizes=SIZES._replace(head_dim=256), gradients=True)[1]
    assert "a size is 0" in why(sizes=SIZES._replace(batch=0))[1]
    assert why(target=dataclasses.replace(CUDA, arch=80))[0] == "capability"
    assert why(target=CPU) == ("place", "the program is for cpu, where our kernels run only with interpret=True")
    assert why(request=AttentionRequest(interpret=InterpretParams()))[0] == "place"
    assert why(target=dataclasses.replace(CUDA, unavailable="no kernels here"))[1] == "no kernels here"
    assert decided(target=CPU, request=AttentionRequest(interpret=InterpretParams())).config is not None


def test_few_scores_are_xlas():
    small = AttentionSizes(1, 1, 1, 128, module.LEAST_SCORES // 128 - 1, 64)
    assert decided(small).cause == "time"
    assert decided(small, request=AttentionRequest(implementation="moye")).config is not None
    assert decided(small._replace(kv_rows=small.kv_rows + 1)).config is not None


def test_few_scores_of_many_keys_are_not():
    """Decoding: a row of queries for each head of a long cache."""
    rows = module.LEAST_ELEMENTS // (2 * 8 * 128)
    assert decided(AttentionSizes(1, 8, 1, 1, rows - 1, 128)).cause == "time"
    assert decided(AttentionSizes(1, 8, 1, 1, rows, 128)).config is not None


def test_a_head_dim_that_nobody_measured_is_xlas(monkeypatch):
    rows = [fake_row(dtype, (128, 64, 256), gradients) for dtype in ("bf16", "f16") for gradients in (False, True)]
    monkeypatch.setattr(module, "attention_configs", lambda: rows)
    large = SIZES._replace(head_dim=256)
    for gradients in (False, True):
        assert decided(large, gradients=gradients).config is not None
        assert decided(large._replace(q_rows=1), gradients=gradients).config is None
        found = decided(large, gradients=gradients, dtype=jnp.float16)
        assert (found.config, found.cause) == (None, "time")
        assert found.reason == "nobody has measured a head_dim of 256: more than 128"
        assert found.able  # where lowering measures, it does
        asked = AttentionRequest(implementation="moye")
        assert decided(large, asked, gradients=gradients, dtype=jnp.float16).config is not None


def test_while_tracing_no_target_is_known():
    assert decided(target=None).config is not None
    assert decided(small := SIZES._replace(head_dim=4), target=None).cause == "capability", small
