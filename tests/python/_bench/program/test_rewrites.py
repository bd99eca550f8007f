"""What optimize made of products, and what that won, as far as it was measured."""

from __future__ import annotations

import types

import jax
import jax.numpy as jnp
import pytest
from python._inspect.golden import struct

import jax_moye
from jax_moye._bench.program import rewrites
from jax_moye._inspect.report import Measured


def product(us, xla_us, computed_by="moye", count=3):
    return {"us": us, "xla_us": xla_us, "computed_by": computed_by, "count": count}


def test_what_a_rewrite_won():
    assert rewrites.won(product(10.0, 12.0)) == 6.0
    assert rewrites.won(product(10.0, 9.0)) == -3.0
    assert rewrites.won(product(None, 9.0)) is None
    assert rewrites.won(product(10.0, None)) is None
    assert rewrites.won(product(10.0, 9.0, "xla")) == 0.0
    assert rewrites.won(product(None, None, "xla")) is None
    assert rewrites.won(product(None, None, "nothing")) is None


def fun(x, w, b):
    y = jax.nn.silu(x @ w + b)
    return y @ w.T, (x.T @ y).T


@pytest.fixture
def found():
    args = struct(8, 64), struct(64, 64), struct(64)
    with jax_moye.options(implementation="moye"):
        return jax_moye.explain(fun, *args, device=90), jax_moye.explain(jax_moye.optimize(fun), *args, device=90)


def test_what_each_product_takes_in(found):
    rows = rewrites.rewrites_of(*found, None)
    assert {(row["product"], row["takes_in"]) for row in rows} == {
        ("8x64x64 NN bf16", "silu, bias"),
        ("8x64x64 NT bf16", ""),
        ("64x64x8 TN bf16", "transpose"),
    }
    assert all(row["computed_by"] == "moye" for row in rows)
    assert all(row["count"] >= 1 for row in rows)
    assert all(row["us"] is row["won_us"] is row["timed"] is None for row in rows)


def test_a_conversion():
    def narrow(x, w):
        return jnp.matmul(x, w, preferred_element_type=jnp.float32).astype(x.dtype)

    args = struct(8, 64), struct(64, 32)
    after = jax_moye.explain(jax_moye.optimize(narrow), *args, device=90)
    (row,) = rewrites.rewrites_of(jax_moye.explain(narrow, *args, device=90), after, None)
    assert row["takes_in"] == "conversion"


def test_what_was_timed_alone_counts(found):
    _, after = found
    alone = [Measured(10.0, 15.0, 1.5, (1.4, 1.6)), *(Measured(None, 4.0) for _ in list(after)[1:])]
    first, *others = rewrites.rewrites_of(*found, alone)
    assert (first["us"], first["xla_us"], first["lead"], first["timed"]) == (10.0, 15.0, 1.4, "alone")
    assert first["won_us"] == 5.0 * first["count"]
    assert all((row["us"], row["xla_us"], row["won_us"]) == (None, 4.0, None) for row in others)


def test_what_no_kernel_sees_has_its_words():
    gemm = types.SimpleNamespace(problem=None, what="ab,bc->ac on int16")
    assert rewrites._product(gemm) == "ab,bc->ac on int16"
