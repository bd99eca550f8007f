"""What the custom calls of attention are told of their arrays."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import attention_configs
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.attention_call import (
    attention_view,
    make_attention_problem,
    mask_strides,
    run_attention,
    run_attention_grad,
)
from jax_moye._selection.view import View

B, H, R, D = 2, 3, 5, 16


def array(dims, sizes=None):
    """0, 1, ... of these dimensions."""
    sizes = dict(b=B, h=H, q=R, k=R, d=D) | (sizes or {})
    shape = [sizes[letter] for letter in dims]
    return np.arange(math.prod(shape), dtype=np.int64).reshape(shape)


@pytest.mark.parametrize("dims", ["bhqd", "bqhd", "qbhd", "qhbd", "hqbd", "hbqd", "bkhd", "kbhd"])
def test_a_view_is_the_transposed_array(dims):
    x = array(dims)
    sizes, strides = attention_view(View.whole(x.shape), dims)
    order = "bhkd" if "k" in dims else "bhqd"
    expected = np.transpose(x, [dims.index(letter) for letter in order])
    assert sizes == expected.shape
    view = np.lib.stride_tricks.as_strided(x, sizes, [8 * stride for stride in (*strides, 1)])
    np.testing.assert_array_equal(view, expected)


def test_dimensions_that_are_one_together():
    assert attention_view(View.whole((2, 3, 5, 7, 16)), "bbqhd") == ((6, 7, 5, 16), (560, 16, 112))
    assert attention_view(View.whole((2, 5, 3, 7, 16)), "bqhhd") == ((2, 21, 5, 16), (1680, 16, 336))
    assert attention_view(View.whole((2, 3, 5, 7, 16)), "bbqqd") == ((6, 1, 35, 16), (560, 16, 16))
    # Those of size 1 are wherever one wants them.
    assert attention_view(View.whole((2, 5, 1, 7, 16)), "bqbhd") == ((2, 7, 5, 16), (560, 16, 112))
    assert attention_view(View.whole((1, 5, 2, 7, 16)), "bqbhd") == ((2, 7, 5, 16), (112, 16, 224))


def test_dimensions_that_are_not_one_together():
    assert attention_view(View.whole((2, 5, 3, 7, 16)), "bqbhd") is None
    assert attention_view(View.whole((2, 3, 5, 7, 16)), "hbqhd") is None


def test_a_part_of_an_array():
    """Of (b,t,3,h,d), its second third; of it, some heads of every other row."""
    third = View.whole((2, 5, 3, 7, 16)).sliced((0, 0, 1, 0, 0), (2, 5, 2, 7, 16), (1,) * 5).reshaped((2, 5, 7, 16))
    assert attention_view(third, "bqhd") == ((2, 7, 5, 16), (1680, 16, 336))
    some = third.sliced((0, 1, 2, 0), (2, 5, 6, 16), (1, 2, 1, 1))
    assert attention_view(some, "bqhd") == ((2, 4, 2, 16), (1680, 16, 672))
    q, k = View.whole((2, 3, 4, 16)), (some, "bkhd")
    problem = make_attention_problem(q=(q, "bqhd"), k=k, v=(third.sliced((0,) * 4, (2, 2, 4, 16), (1,) * 4), "bkhd"))
    assert problem.offsets == dict(q=0, k=112 + 336 + 32, v=112)
    # Heads that are not one, and elements of a row that are not side by side.
    assert attention_view(View.whole((2, 5, 4, 3, 16)).sliced((0,) * 5, (2, 5, 4, 2, 16), (1,) * 5), "bqhhd") is None
    assert attention_view(third.sliced((0,) * 4, (2, 5, 7, 16), (1, 1, 1, 2)), "bqhd") is None


def test_dimensions_that_are_not_there():
    assert attention_view(View.whole((5, 16)), "qd") == ((1, 1, 5, 16), (16, 16, 16))
    assert attention_view(View.whole((3, 5, 16)), "bkd") == ((3, 1, 5, 16), (80, 16, 16))
    # A stride along a size of 1 is none of 16 bytes that the other sizes made.
    assert attention_view(View.whole((1, 5, 1, 8)), "bqhd") == ((1, 1, 5, 8), (8, 8, 8))


def test_strides_of_masks():
    scores = (6, 3, 5, 7)
    assert mask_strides((6, 3, 5, 7), "bhqk", scores) == (105, 35, 7, 1)
    assert mask_strides((2, 3, 1, 5, 7), "bbhqk", scores) == (35, 0, 7, 1)
    assert mask_strides((5, 7), "qk", scores) == (0, 0, 7, 1)
    assert mask_strides((7, 5), "kq", scores) == (0, 0, 1, 5)
    assert mask_strides((6, 1, 1, 7), "bhqk", scores) == (7, 0, 0, 1)
    assert mask_strides((), "", scores) == (0, 0, 0, 0)
    assert mask_strides((2, 1, 3, 5, 7), "bbhqk", scores) is None  # of a part of the batch
    assert mask_strides((2, 5, 3, 7), "bqbk", scores) is None
    assert mask_strides((5, 8), "qk", scores) is None


def of(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def whole(*shape):
    return View.whole(shape)


def test_a_problem():
    q, k = (whole(2, 5, 6, 16), "bqhd"), (whole(2, 3, 7, 16), "bhkd")
    problem = make_attention_problem(q=q, k=k, v=k)
    assert problem.sizes == (2, 3, 2, 5, 7, 16)
    assert problem.strides == dict(q=(480, 16, 96), k=(336, 112, 16), v=(336, 112, 16))
    without = make_attention_problem(q=(whole(2, 0, 5, 16), "bhqd"), k=(whole(2, 0, 7, 16), "bhkd"))
    assert without.sizes == (2, 0, 1, 5, 7, 16)
    assert problem.offsets == without.offsets == {}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (dict(k=(whole(1, 7, 3, 16), "bkhd")), "k: batch, heads, rows and head_dim are"),
        (dict(k=(whole(2, 7, 3, 24), "bkhd")), "k: batch, heads, rows and head_dim are"),
        (dict(v=(whole(2, 8, 3, 16), "bkhd")), "v: batch, heads, rows and head_dim are"),
        (dict(o=(whole(2, 5, 3, 16), "bqhd")), "o: batch, heads, rows and head_dim are"),
        (dict.fromkeys("kv", (whole(2, 7, 4, 16), "bkhd")), "4 heads of keys and values do not divide 6"),
        (dict(q=(whole(2, 5, 2, 3, 16), "hbqhd")), "q: dimensions hbqhd of"),
    ],
)
def test_arrays_that_make_no_problem(arrays, message):
    usual = dict(q=(whole(2, 5, 6, 16), "bqhd"), k=(whole(2, 7, 3, 16), "bkhd"), v=(whole(2, 7, 3, 16), "bkhd"))
    with pytest.raises(ValueError, match=message):
        make_attention_problem(**(usual | arrays))


CONFIGS = {config.kernel: config for config in attention_configs() if config.dtype == "bf16"}
needs_rows = pytest.mark.skipif(len(CONFIGS) < 2, reason="no row of sm90_attention in this build")


@needs_rows
def test_dimensions_of_results():
    """Of the result those that are asked for, of gradients those of their arrays."""
    q, k, v = of(2, 3, 5, 6, 16), of(6, 3, 7, 16), of(7, 6, 3, 16)
    options = dict(dims_q="bbqhd", dims_k="bhkd", dims_v="kbhd", dims_o="qhbbd", scale=1.0, diagonal=None)
    o, lse = jax.eval_shape(lambda *x: run_attention(*x, config=CONFIGS["sm90_attention"], **options), q, k, v)
    assert (o.shape, o.dtype) == ((5, 6, 2, 3, 16), jnp.bfloat16)
    assert (lse.shape, lse.dtype) == ((6, 6, 5), jnp.float32)
    of_rest = functools.partial(run_attention, config=CONFIGS["sm90_attention"], with_rest=True, **options)
    assert [(x.shape, x.dtype) for x in jax.eval_shape(of_rest, q, k, v)] == [(x.shape, x.dtype) for x in (o, lse, o)]
    gradients = jax.eval_shape(
        lambda *x: run_attention_grad(*x, config=CONFIGS["sm90_attention_grad"], **options), q, k, v, o, lse, lse
    )
    assert [(x.shape, x.dtype) for x in gradients] == [(x.shape, x.dtype) for x in (q, k, v)]


@needs_rows
def test_the_program():
    """Attributes have the width that handlers read, whatever comes in; only interpret adds those of the emulator."""
    q = of(2, 5, 6, 16)

    def lowered(interpret, platform):
        options = dict(dims_q="bqhd", dims_k="bkhd", dims_v="bkhd", scale=np.float32(0.5), diagonal=np.int32(-2))
        fun = jax.jit(lambda *x: run_attention(*x, config=CONFIGS["sm90_attention"], interpret=interpret, **options))
        return fun.trace(q, q, q).lower(lowering_platforms=(platform,)).as_text()

    text = lowered(InterpretParams(mode="eager", seed=5), "cpu")
    assert text.count(f"@{ffi.ATTENTION_TARGET}(") == 1
    for attribute in (
        "scale = 5.000000e-01 : f64",
        "is_causal = true",
        "mask_is_infinite = false",
        "mask_strides = dense<0>",
        "diagonal = -2 : i64",
        "sizes = dense<[2, 6, 1, 5, 5, 16]>",
        "q_strides = dense<[480, 16, 96]>",
        'mode = "eager"',
        "seed = 5 : i64",
    ):
        assert attribute in text, attribute
    assert "mode =" not in lowered(None, "cuda")
