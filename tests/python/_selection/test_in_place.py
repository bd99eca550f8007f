"""Which kernel reads operands that are parts of larger arrays where they are."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp
import pytest

from jax_moye._kernels.interpret import InterpretParams
from jax_moye._selection import in_place as module
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import decide
from jax_moye._selection.in_place import in_place, is_possible
from jax_moye._selection.request import Operand, Request
from jax_moye._selection.view import View

EMULATOR = LoweringTarget.of_platform("cpu")


def columns(width, first, count, k=64):
    return View.whole((k, width)).sliced((0, first), (k, first + count), (1, 1))


def decided(*views, dtype=jnp.bfloat16, target=EMULATOR, spec="mk,kn->mn", **options):
    """The decision about dense operands, and how they are read in place."""
    options = {"implementation": "moye", "interpret": InterpretParams(), "precision": None, "config": None} | options
    request = Request(spec, dtype, **options)
    operands = tuple(Operand(view.source, dtype, view=view).written for view in views)
    decision = decide(request, operands, target)
    return decision, in_place(decision, views, target)


@pytest.mark.parametrize(
    ("spec", "lhs", "rhs", "possible"),
    [
        ("mk,kn->mn", View.whole((32, 64)), columns(256, 64, 32), True),
        ("mk,kn->mn", View.whole((32, 64)), dataclasses.replace(columns(256, 0, 32), strides=(256, 2)), False),
        ("bmk,kn->bmn", View.whole((4, 9, 64)).sliced((0, 1, 0), (4, 9, 64), (1, 1, 1)), columns(32, 0, 32), False),
        ("bmk,kn->bmn", View.whole((4, 9, 64)).sliced((0, 1, 0), (4, 2, 64), (1, 1, 1)), columns(32, 0, 32), True),
    ],
)
def test_only_the_same_multiplication_is_read_in_place(spec, lhs, rhs, possible):
    left, right = (Operand(view.source, jnp.bfloat16, view=view) for view in (lhs, rhs))
    assert is_possible(spec, (left, right)) == possible


def test_sizes_that_are_not_numbers_are_not_possible():
    part = columns(256, 64, 32)
    right = Operand(part.source, jnp.bfloat16, view=part)
    assert is_possible("mk,kn->mn", (Operand((32, 64), jnp.bfloat16), right))
    assert not is_possible("mk,kn->mn", (Operand((0, 64), jnp.bfloat16), right))
    assert not is_possible("mk,kn->mn", (Operand(("m", 64), jnp.bfloat16), right))


def test_the_config_of_dense_operands_reads_what_is_aligned():
    decision, call = decided(View.whole((64, 64)), columns(256, 64, 64))
    assert call.config == decision.call.config
    assert call.problem == dataclasses.replace(decision.call.problem, b_strides=(0, 1, 256), offsets=(0, 64))
    assert decision.call.problem.offsets == ()


def test_a_swapped_product_has_its_offsets_in_the_kernels_order():
    _, call = decided(View.whole((64, 64)), columns(256, 64, 64), spec="mk,kn->nm")
    assert call.problem.swapped
    assert call.problem.offsets == (64, 0)


COPY_US = module.elementwise_us(2 * 64 * 64 * 2)  # it is read and written


@pytest.mark.parametrize(("more_us", "is_read"), [(-1.0, True), (COPY_US - 0.1, True), (COPY_US + 0.1, False)])
def test_another_config_reads_what_is_not_aligned_if_it_beats_the_copy(more_us, is_read, monkeypatch):
    monkeypatch.setattr(module, "predicted", lambda problem, *_: 10.0 + more_us * bool(problem.offsets))
    decision, call = decided(View.whole((64, 64)), columns(256, 1, 64))
    assert decision.call.config.alignment > 2
    if is_read:
        assert call.config.alignment == 2
    else:
        assert call is None


def test_what_is_written_anyway():
    """XLA's products, and those of batch_invariant=True where their kernel cannot."""
    whole, odd = View.whole((64, 64)), columns(256, 1, 64)
    for options in ({"implementation": "xla"}, {"implementation": None, "interpret": None}):
        decision, call = decided(whole, columns(256, 64, 64), **options)
        assert decision.kind == "xla"
        assert call is None
    decision, call = decided(whole, odd, batch_invariant=True)
    assert decision.kind == "kernel"
    assert call is None or call.config == decision.call.config


def test_a_part_that_is_converted_is_written():
    """The conversion of a part in the kernel's dtype would be one of all of the array."""
    views = None, columns(256, 64, 64)
    left, right = Operand((64, 64), jnp.float16), Operand((64, 64), jnp.bfloat16)
    request = Request("mk,kn->mn", jnp.float32, None, None, "moye", InterpretParams())
    decision = decide(request, (left, right), EMULATOR)
    assert decision.kind == "kernel"
    assert in_place(decision, views, EMULATOR) is None
    same = decide(request, (dataclasses.replace(left, dtype=jnp.bfloat16), right), EMULATOR)
    assert in_place(same, views, EMULATOR) is not None


def test_a_second_right_hand_operand_has_an_offset_of_its_own():
    first, second = columns(256, 0, 64), columns(256, 64, 64)
    decision, _ = decided(View.whole((64, 64)), first)
    call = in_place(decision, (None, first, second), EMULATOR)
    assert call.problem.offsets == (0, 0, 64)
    assert in_place(decision, (None, first, first), EMULATOR).problem.offsets == ()
