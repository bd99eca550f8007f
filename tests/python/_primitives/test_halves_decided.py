"""Gated layers of one product whose result is taken in two: who computes them, what is measured, what is said."""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.float64 import assert_close, exact
from python.halves import FORMS, K, M, N, arrays, halves_of, mlp, of_both_of, total
from python.viewed import VIEW_TARGET, movements

import jax_moye
from jax_moye._inspect.report import measure_gemm
from jax_moye._primitives import contraction, product_race, rewritten
from jax_moye._primitives.product_race import Joined
from jax_moye._selection.decide import Times, decide
from jax_moye._selection.measurements import variant
from jax_moye._selection.problem import NotServedError
from jax_moye._tune import tune

# -------------------------------------------------------------------------------------------- ours, XLA's, measured


@pytest.fixture
def asked(monkeypatch):
    """The products that a lowering asks about, with what XLA is timed at."""
    found = []
    decide = rewritten.decide_by_measuring

    def watched(request, operands, target, xla, others=None):
        found.append((request, xla, others))
        return decide(request, operands, target, xla, others)

    monkeypatch.setattr(rewritten, "decide_by_measuring", watched)
    return found


@pytest.mark.parametrize("name", [name for name in FORMS if name != "weights of a batch"])
def test_xla_is_timed_at_one_product(name, asked):
    """Of an array that is made before: it lies as the program's does, of which halves are read."""
    names, fun, _ = FORMS[name]
    operands = arrays(names)
    jax.jit(jax_moye.optimize(fun)).lower(*operands)
    request, xla, _ = asked[0]
    assert isinstance(xla, Joined)
    assert variant(request.spec, request.epilogue, request.beta, False).endswith("second_b halves")
    (equation,) = halves_of(fun, *operands)
    views = equation.params["views"]
    weight = np.asarray(operands[1], np.float32).reshape(-1)
    dense = [np.lib.stride_tricks.as_strided(weight[v.offset :], *_in_memory(v)) for v in views[1:]]
    whole = xla.join(*(jnp.asarray(x, jnp.bfloat16) for x in dense))
    assert whole.size == 2 * dense[0].size
    jaxpr = jax.make_jaxpr(xla.program)(operands[0], whole)
    assert str(jaxpr).count("jax_moye_contract") == 1
    assert "concatenate" not in str(jaxpr)
    assert_close(xla.program(operands[0], whole), [exact(fun, operands)])


def _in_memory(view):
    """The shape and the strides of a part's dense copy, whose dimensions have the order that they have there."""
    return [view.shape[i] for i in view.order], [4 * view.strides[i] for i in view.order]


def test_of_what_is_kept_xla_is_timed_at_the_product(asked):
    """Who reads halves of it reads them there: it does not write them once more."""
    operands = arrays("xwd")
    step = jax.grad(total(mlp), (0, 1, 2))
    jax.jit(jax_moye.optimize(step)).lower(*operands)
    xla = next(xla for _, xla, _ in asked if isinstance(xla, Joined))
    x, w, _ = operands
    gated, product = xla.program(x, xla.join(w[:, :N], w[:, N:]))
    assert (gated.shape, product.shape) == ((M, N), (M, 2 * N))
    np.testing.assert_array_equal(product, x @ w)


class FakeProduct:
    """The memory of a product of x, w and a second weight: two sets."""

    program_size, device = 2, jax.devices("cpu")[0]

    def __init__(self, **arrays):
        self._arrays = {name: [x.reshape(-1), -x.reshape(-1)] for name, x in arrays.items()}

    def arrays(self, name):
        return self._arrays[name]

    def xla_contender(self, program, operands):
        self.operands, self.results = operands, program(*(x for one in operands for x in one))
        return self

    def run(self, _):
        return self.results

    def sample(self, array):
        return np.asarray(array)


def test_the_array_is_made_before_anything_is_timed(asked):
    x, w = arrays("xw")
    jax.jit(jax_moye.optimize(of_both_of)).lower(x, w)
    _, xla, others = asked[0]
    product = FakeProduct(a=x, b=w[:, :N], second_b=w[:, N:])
    operand = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.bfloat16)
    _, result, is_fused = product_race._xla_contender(product, (operand((M, K)), operand((K, N))), False, xla, others)
    assert [[one.shape for one in of_set] for of_set in product.operands] == [[(M * K,), (K, 2 * N)]] * 2
    assert is_fused  # no library
    np.testing.assert_array_equal(product.operands[0][1], w)
    assert_close(result, exact(of_both_of, (x, w)))
    assert_close(product.results[1], [exact(of_both_of, (-x, -w))])


def lowered_for_cuda(fun, *operands):
    with jax_moye.cuda_target(90):
        return jax.jit(jax_moye.optimize(fun)).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


BIG = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((512, 256), (256, 1024))]


@pytest.mark.parametrize("fun", [of_both_of, lambda x, t: of_both_of(x, t.T)], ids=["NN", "NT"])
@pytest.mark.parametrize(("all_us", "alone_us", "ours"), [(100, 90, None), (100, 20, "alone"), (30, 90, "all")])
def test_who_is_the_fastest_computes_it(fun, all_us, alone_us, ours, monkeypatch):
    """Ours all of it; or the one product, which XLA finishes; or XLA. Of XLA all takes 50 us, the product 40."""
    asked = []

    def measured(request, operands, target, xla, others=None):
        asked.append((request, operands))
        us, xla_us = (alone_us, 40.0) if request.epilogue is None else (all_us, 50.0)
        decision = decide(dataclasses.replace(request, implementation="moye"), operands, target)
        assert decision.kind == "kernel"
        times = {"measured": Times(us, xla_us), "request": request}
        is_ours = us < xla_us
        return decision._replace(**times) if is_ours else decision._replace(kind="xla", cause="time", **times)

    monkeypatch.setattr(rewritten, "decide_by_measuring", measured)
    monkeypatch.setattr(contraction, "decide_by_measuring", measured)
    operands = BIG if fun is of_both_of else [BIG[0], jax.ShapeDtypeStruct((1024, 256), jnp.bfloat16)]
    text = lowered_for_cuda(fun, *operands)
    assert text.count("custom_call @jax_moye") == (ours is not None)
    assert text.count("stablehlo.dot_general") == (ours is None)
    assert text.count(f"custom_call @{VIEW_TARGET}") == (ours == "all")
    slices = [] if ours == "all" else ["stablehlo.slice"] * 2
    assert [one for one in movements(text) if one != "stablehlo.transpose"] == slices
    assert asked[0][1][1].shape == ((256, 512) if fun is of_both_of else (512, 256))
    if ours != "all":  # then the one product is decided about
        assert all(one.shape == operands[1].shape for _, (_, one) in asked[1:])


def test_a_training_step_whose_race_is_lost_is_the_program_that_was():
    """No table has a time of this, and nothing is measured for another machine: then it is XLA's."""
    step = jax.grad(total(mlp), (0, 1, 2))
    operands = [*BIG, jax.ShapeDtypeStruct((512, 256), jnp.bfloat16)]
    with jax_moye.options(autotune="off"):
        text = lowered_for_cuda(step, *operands)
    assert "second_b" not in text
    assert [one for one in movements(text) if one not in ("stablehlo.transpose", "stablehlo.concatenate")] == [
        "stablehlo.slice"
    ] * 2


# ------------------------------------------------------------------------------------------------------- what is said


def explained(fun, *operands, **options):
    with jax_moye.options(**options):
        return jax_moye.explain(jax_moye.optimize(fun), *operands, device="h200")


def test_explain_says_what_is_decided():
    (gemm,) = explained(of_both_of, *BIG, implementation="moye")
    assert gemm.what == "mk,kn->mn on bfloat16[512, 256] and bfloat16[256, 512] into bfloat16"
    assert (gemm.computed_by, gemm.epilogue_reason) == ("moye", None)
    assert gemm.epilogue == "silu, times the product with second_b, both halves of one array"
    assert gemm.config.takes_pair
    gemm = explained(jax.grad(total(of_both_of)), *BIG, implementation="moye")[0]
    assert gemm.epilogue == "silu, times the product with second_b, both halves of one array, both products kept"
    (gemm,) = explained(of_both_of, *BIG, autotune="off")
    assert (gemm.computed_by, gemm.count) == ("xla", 1)
    assert "for two products of one operand" in gemm.decision.reason


@pytest.mark.parametrize("form", ["split", "a dimension of two", "that is in front"])
def test_explain_says_where_it_stays_one_product(form):
    names, fun, _ = FORMS[form]
    operands = [jax.ShapeDtypeStruct(x.shape, jnp.float32) for x in arrays(names)]
    (gemm,) = explained(fun, *operands)
    (alone,) = explained(lambda x, w: jnp.einsum("td,d...->t...", x, w), *operands)
    assert "gated behind it: " in gemm.what
    assert sorted(gemm.problem.sizes) == sorted(alone.problem.sizes)
    assert gemm.epilogue is None


def test_what_times_products_alone_says_that_it_does_not_time_these():
    """They would have XLA join two arrays."""
    (gemm,) = explained(of_both_of, *BIG, implementation="moye")
    measured = measure_gemm(gemm, jax.devices("cpu")[0], rounds=1, round_ms=1.0, warmup_ms=1.0)
    assert measured.error == "halves of one product are timed while they are lowered"
    with pytest.raises(NotServedError, match="timed while it is lowered"):
        tune._candidates(gemm.product, None, None)
