"""The target jax_moye_permuted_grouped_gemm_v1: what XLA hands it, and what an edited program gets."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import to_attribute

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs, permuted_configs

G, READ, M, N, K = 3, 7, 16, 24, 32
CONFIG = next(row.name for row in permuted_configs() if row.dtype == "bf16")
SIZES = np.array([5, 0, 9], np.int32)
ROWS = np.arange(M, dtype=np.int32) * 3 % READ
PERMUTATION = (np.arange(M, dtype=np.int32) * 5 + 2) % M
NONE = np.zeros(0, np.int32)
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
    mode="lazy",
    seed=0,
    detect_races=True,
)


def call(*extra, a_shape=(READ, K), dtype="bfloat16", rows=ROWS, permutation=PERMUTATION, results=(), **changes):
    """The custom call: a's rows are 0, 1, ..., b is all 1; d, and the other results."""
    ffi.register("cpu")
    a = jnp.broadcast_to(jnp.arange(a_shape[0], dtype=dtype)[:, None], a_shape)
    attributes = {key: to_attribute(value) for key, value in (CALL | changes).items()}
    shapes = [jax.ShapeDtypeStruct((M, N), "float32"), *(jax.ShapeDtypeStruct(*result) for result in results)]
    fun = jax.ffi.ffi_call(ffi.PERMUTED_GROUPED_TARGET, shapes)
    run = jax.jit(lambda *operands: fun(*operands, **attributes))
    b = jnp.ones((G, K, N), dtype)
    return jax.block_until_ready(run(a, b, *map(jnp.asarray, (SIZES, rows, permutation)), *extra))


def product(rows=ROWS, permutation=PERMUTATION):
    """K times the number of the row that was read, 0 in those of no group, where they were stored."""
    of_rows = np.where(np.arange(M) < SIZES.sum(), K * np.clip(rows, 0, READ - 1), 0)
    out = np.zeros(M)
    out[permutation] = of_rows
    return np.broadcast_to(out[:, None], (M, N))


@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
def test_rows_are_read_and_stored(mode):
    run = functools.partial(call, mode=mode)
    (d,) = run()
    np.testing.assert_array_equal(d, product())
    (d,) = run(permutation=NONE)
    np.testing.assert_array_equal(d, product(permutation=np.arange(M)))
    (d,) = run(rows=NONE, a_shape=(M, K))
    in_order = np.where(np.arange(M) < SIZES.sum(), np.arange(M), 0)
    np.testing.assert_array_equal(d, (K * in_order)[PERMUTATION.argsort()][:, None] * np.ones(N))


def test_indices_are_never_wrong():
    """They are in a GPU's memory when a program runs: whatever is there, nothing outside of the arrays is touched."""
    rng = np.random.default_rng(0)
    wild = rng.integers(-(2**31), 2**31, M).astype(np.int32)
    (d,) = call(rows=wild)
    np.testing.assert_array_equal(d, product(wild))
    call(permutation=wild)


WRONG = {
    "indices of another dtype": (dict(rows=ROWS.astype(np.float32)), "the array of rows of a is f32, not s32"),
    "permutation of another dtype": (
        dict(permutation=PERMUTATION.astype(np.float32)),
        "the array of rows of d is f32, not s32",
    ),
    "too few indices": (dict(rows=ROWS[:5]), "the array of rows of a has 5 elements, and there are 16 rows"),
    "too many indices": (
        dict(permutation=np.arange(17, dtype=np.int32)),
        "of d has 17 elements, and there are 16 rows",
    ),
    "no row to read": (dict(a_shape=(0, K)), "a has 0 rows to read from, and needs one"),
    "half a row to read": (dict(a_shape=(1, K // 2)), "a has 0 rows to read from, and needs one"),
    "fewer rows than there are, unless they are named": (dict(rows=NONE), "a .*224 elements"),
    "a ragged k": (dict(ragged="k"), "rows are permuted where m is ragged, not k"),
    "rows of 20 bytes": (dict(a_strides=(0, 10, 1), sizes=(G, M, N, 10)), "a has strides that 16 bytes do not divide"),
    "rows as columns": (dict(a_strides=(0, 1, 8)), "its strides reach beyond them"),
    "a config of rows in order": (
        dict(config=next(row.name for row in grouped_configs() if row.dtype == "bf16")),
        "the kernel computes no products of permuted rows",
    ),
}


@pytest.mark.parametrize(("changes", "match"), WRONG.values(), ids=WRONG)
def test_what_is_refused(changes, match):
    with pytest.raises(jax.errors.JaxRuntimeError, match=match):
        call(**changes)


def test_a_config_of_permuted_rows_is_no_other_target():
    ffi.register("cpu")
    plain = {key: to_attribute(CALL[key]) for key in ("config", "sizes", "mode", "seed", "detect_races")}
    strides = {"a_strides": (0, K, 1), "b_strides": (0, 1, N), "d_strides": (0, N, 1)}
    plain |= {key: to_attribute(value) for key, value in strides.items()} | {"sizes": np.array((1, M, N, K), np.int64)}
    shapes = [jax.ShapeDtypeStruct((M, N), "float32"), jax.ShapeDtypeStruct((0,), jnp.uint8)]
    fun = jax.jit(lambda a, b: jax.ffi.ffi_call(ffi.TARGET, shapes)(a, b, **plain))
    with pytest.raises(jax.errors.JaxRuntimeError, match="computes products of permuted rows alone"):
        jax.block_until_ready(fun(jnp.ones((M, K), "bfloat16"), jnp.ones((K, N), "bfloat16")))
