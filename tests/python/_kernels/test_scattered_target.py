"""The target jax_moye_scattered_grouped_gemm_v1: what XLA hands it, and what an edited program gets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import to_attribute

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import all_configs, grouped_configs

G, M, N, K = 3, 16, 24, 32
CONFIG = next(row.name for row in grouped_configs() if row.dtype == "bf16")
SIZES = np.array([5, 0, 9], np.int32)
PERMUTATION = (np.arange(M, dtype=np.int32) * 5 + 2) % M
CALL = dict(
    activation="none",
    alpha=1.0,
    beta=0.0,
    operands="",
    config=CONFIG,
    ragged="m",
    sizes=(G, M, N, K),
    a_strides=(0, K, 1),
    b_strides=(N * K, 1, N),
    d_strides=(0, N, 1),
    c_strides=(0, 0, 0),
    bias_strides=(0, 0, 0),
    residual_strides=(0, 0, 0),
    lhs_scale_strides=(0, 0, 0),
    rhs_scale_strides=(0, 0, 0),
    mode="lazy",
    seed=0,
    detect_races=True,
)


def call(*extra, permutation=PERMUTATION, aliases=None, **changes):
    """The custom call: a's rows are 0, 1, ..., b is all 1; d."""
    ffi.register("cpu")
    a = jnp.broadcast_to(jnp.arange(M, dtype=jnp.bfloat16)[:, None], (M, K))
    attributes = {key: to_attribute(value) for key, value in (CALL | changes).items()}
    shapes = [jax.ShapeDtypeStruct((M, N), "float32")]
    fun = jax.ffi.ffi_call(ffi.SCATTERED_GROUPED_TARGET, shapes, input_output_aliases=aliases)
    run = jax.jit(lambda *operands: fun(*operands, **attributes))
    b = jnp.ones((G, K, N), jnp.bfloat16)
    return jax.block_until_ready(run(a, b, jnp.asarray(SIZES), jnp.asarray(permutation), *extra))


def product():
    """K times the number of the row, 0 in those of no group, where they were stored."""
    out = np.zeros(M)
    out[PERMUTATION] = np.where(np.arange(M) < SIZES.sum(), K * np.arange(M), 0)
    return np.broadcast_to(out[:, None], (M, N))


@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
def test_rows_are_stored(mode):
    (d,) = call(mode=mode)
    np.testing.assert_array_equal(d, product())


def test_indices_are_never_wrong():
    """They are in a GPU's memory when a program runs: whatever is there, nothing outside of the arrays is touched."""
    rng = np.random.default_rng(0)
    call(permutation=rng.integers(-(2**31), 2**31, M).astype(np.int32))
    some = np.where(np.arange(M) % 2 == 0, PERMUTATION, -1 - PERMUTATION)
    (d,) = call(permutation=some)
    at = some[some >= 0]
    np.testing.assert_array_equal(np.asarray(d)[at], product()[at])


WRONG = {
    "permutation of another dtype": (
        dict(permutation=PERMUTATION.astype(np.float32)),
        "the array of rows of d is f32, not s32",
    ),
    "no permutation": (
        dict(permutation=PERMUTATION[:0]),
        "the array of rows of d has 0 elements, and there are 16 rows",
    ),
    "too many indices": (dict(permutation=np.arange(17, dtype=np.int32)), "has 17 elements, and there are 16 rows"),
    "a ragged k": (dict(ragged="k"), "rows are stored elsewhere where m is ragged, not k"),
    "no groups": (dict(config=next(row.name for row in all_configs() if not row.grouped)), "no products of groups"),
    "rows of 20 bytes": (dict(a_strides=(0, 10, 1), sizes=(G, M, N, 10)), "a has strides that 16 bytes do not divide"),
}


@pytest.mark.parametrize(("changes", "match"), WRONG.values(), ids=WRONG)
def test_what_is_refused(changes, match):
    with pytest.raises(jax.errors.JaxRuntimeError, match=match):
        call(**changes)


def test_rows_stored_elsewhere_overwrite_nothing_that_is_read():
    """In order c may be d, since the thread that writes an element has read it."""
    c = jnp.ones((M, N), jnp.float32)
    of_c = functools.partial(call, c, operands="c", beta=1.0, c_strides=(0, N, 1))
    (d,) = of_c()
    in_order = np.asarray(product())[PERMUTATION] + 1
    np.testing.assert_array_equal(np.asarray(d)[PERMUTATION], in_order)
    with pytest.raises(jax.errors.JaxRuntimeError, match="c and d overlap, whose rows are stored elsewhere"):
        of_c(aliases={4: 0})
