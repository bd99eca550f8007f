"""What `tune` measures: a race that spends its time on the best, and results that are right."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from python.measured import bf16, emulated, product_of

import jax_moye
from jax_moye._timing.operands import OperandSets
from jax_moye._timing.programs import HoistedError
from jax_moye._tune import times, tune


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (((33, 40), (40, 24), "bfloat16"), {}),
        (((24, 33), (40, 24), "bfloat16"), {"spec": "km,nk->mn"}),
        (((2, 16, 24), (2, 24, 8), "float16"), {"preferred_element_type": "float32"}),
        (((16, 32), (16, 32), "int8"), {"spec": "mk,nk->mn", "preferred_element_type": "int32"}),
        (((16, 32), (16, 32), "float8_e4m3fn"), {"spec": "mk,nk->mn", "preferred_element_type": "bfloat16"}),
        (((16, 16), (16, 16), "float64"), {}),
        (((16, 16), (16, 16), "float32"), {"precision": "TF32_TF32_F32_X3"}),
    ],
)
def test_right_results_are_within_their_bounds(tmp_path, args, options):
    target, protocol = emulated(tmp_path)
    (found,) = tune.tune_products([product_of(*args, **options)], target, protocol)
    assert found.why is None
    assert len(found.entry.us) == 2
    if "precision" in options:  # not XLA's on a CPU
        assert found.rejected.keys() == {"xla"}
    else:
        assert (found.rejected, len(found.entry.xla_us)) == ({}, 1)


def test_right_layers_are_within_their_bounds(tmp_path):
    def layer(x, w, b, r):
        return jax_moye.linear(x, w, b, activation="gelu", residual=r)

    structs = [jax.ShapeDtypeStruct(shape, bf16) for shape in ((16, 32), (32, 24), (24,), (16, 24))]
    target, protocol = emulated(tmp_path)
    (found,) = tune.tune_products([jax_moye.explain(layer, *structs, device=80)[0].product], target, protocol)
    assert (found.why, found.rejected, found.entry.variant) == (None, {}, "gelu_tanh bias residual")


def test_only_kernels_that_multiply_by_a_derivative_are_timed_at_it(tmp_path):
    def fun(z, dy, w):
        return jax.vjp(jax.nn.silu, z)[1](dy @ w)[0]

    structs = [jax.ShapeDtypeStruct((32, 32), bf16)] * 3
    with jax_moye.options(implementation="moye"):
        (gemm,) = jax_moye.explain(jax_moye.optimize(fun), *structs, device="h200")
    target, protocol = emulated(tmp_path)
    all_of_them = dataclasses.replace(protocol, top=None)
    _, candidates = tune._candidates(gemm.product, target._replace(arch=90), all_of_them)
    assert candidates
    assert all(config.derives for config in candidates)


@pytest.mark.parametrize("wrong", [lambda d: d.at[-1, -1].add(1), lambda d: d.at[0, 0].set(np.nan)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_wrong_results_have_no_time(tmp_path, monkeypatch, wrong, dtype):
    target, protocol = emulated(tmp_path)
    product = product_of((32, 48), (48, 24), dtype)
    right, (_, bad) = times.program_of, tune._candidates(product, target, protocol)[1]

    def program_of(product, implementation, interpret):
        fun = right(product, implementation, interpret)
        return fun if product.request.config != bad.name else lambda *operands: wrong(fun(*operands))

    monkeypatch.setattr(times, "program_of", program_of)
    (found,) = tune.tune_products([product], target, protocol)
    assert bad.name not in found.entry.us
    assert found.rejected[bad.name].startswith("WRONG")
    assert bad.name in tune.line(found, None)


@pytest.mark.parametrize("hoisted", [False, True])
def test_short_products_run_in_a_loop(tmp_path, monkeypatch, hoisted):
    """As on a GPU; where XLA moves the products out of the loop, in programs of products alone."""
    right, loop_contender = times.random_operands, times.loop_contender
    looped = []

    def operands(product, device, largest_loop):
        assert largest_loop == times.LARGEST_LOOP
        arrays = tuple(of * 3 for of in right(product, device, largest_loop).arrays)
        return OperandSets(arrays, 3, 2)

    def loop(name, fun, sets):
        assert (len(sets), sets.repeats) == (3, 2)
        contender = loop_contender(name, fun, sets)
        if hoisted:

            def refuse():
                raise HoistedError("moved out")

            return dataclasses.replace(contender, lower=lambda: refuse)
        looped.append(name)
        return contender

    monkeypatch.setattr(times, "random_operands", operands)
    monkeypatch.setattr(times, "loop_contender", loop)
    target, protocol = emulated(tmp_path)
    (found,) = tune.tune_products([product_of((24, 16), (16, 8), "bfloat16")], target, protocol)
    assert (found.why, found.rejected, len(found.entry.us), len(found.entry.xla_us)) == (None, {}, 2, 1)
    assert len(looped) == (0 if hoisted else 3)
