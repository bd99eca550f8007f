"""The target jax_moye_block_scaled_gemm_v1: what XLA hands it, and what an edited program gets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import to_attribute

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import block_scaled_configs
from jax_moye._kernels.dtypes import DTYPES, numpy_dtypes

if not block_scaled_configs():
    pytest.skip("no such row in this build", allow_module_level=True)

B, M, N, K = 2, 5, 130, 256
CONFIG = next(row.name for row in block_scaled_configs() if row.dtype == "e4m3")
ORDINARY = next(row.name for row in jax_moye.configs() if row.dtype == "e4m3")
CALL = dict(config=CONFIG, sizes=(B, M, N, K), of_columns=True, detect_races=True, mode="lazy", seed=0)


def call(
    *,
    a=(B, M, K),
    b=(B, N, K),
    a_scales=(B, M, 2),
    b_scales=(B, 2, 256),
    d=(B, M, N),
    dtypes=("float8_e4m3fn", "float8_e4m3fn"),
    of_scales="float32",
    out="float32",
    drop=(),
    **changes,
):
    """The custom call on ones, scales of 2 and of 3."""
    ffi.register("cpu")
    attributes = {key: to_attribute(value) for key, value in (CALL | changes).items() if key not in drop}
    operands = [jnp.ones(shape, dtype) for shape, dtype in zip((a, b), dtypes, strict=True)]
    operands += [jnp.full(a_scales, 2, of_scales), jnp.full(b_scales, 3, "float32")]
    fun = jax.ffi.ffi_call(ffi.BLOCK_SCALED_TARGET, jax.ShapeDtypeStruct(d, out))
    return np.asarray(jax.jit(lambda *arrays: fun(*arrays, **attributes))(*operands)).astype(np.float64)


@pytest.mark.parametrize("config", block_scaled_configs(), ids=lambda row: row.name)
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16"])
def test_every_config_and_result(config, out):
    assert DTYPES[config.dtype].bytes == 1
    dtypes = [dtype.name for dtype in numpy_dtypes(config.dtype)]
    for of_columns, b_scales in ((True, (B, 2, 256)), (False, (B, 2, 2))):
        found = call(config=config.name, dtypes=dtypes, out=out, of_columns=of_columns, b_scales=b_scales)
        np.testing.assert_array_equal(found, np.full((B, M, N), 6.0 * K))


@pytest.mark.parametrize("sizes", [(0, M, N, K), (B, 0, N, K), (B, M, 0, K), (B, M, N, 0)])
def test_sizes_of_0(sizes):
    b, m, n, k = sizes
    padded = -(-n // 128) * 128
    found = call(
        sizes=sizes, a=(b, m, k), b=(b, n, k), d=(b, m, n), a_scales=(b, m, k // 128), b_scales=(b, k // 128, padded)
    )
    np.testing.assert_array_equal(found, np.zeros((b, m, n)))


EDITS = {
    "unknown config": (dict(config="nope"), "no compiled GEMM has this name"),
    "an ordinary config": (dict(config=ORDINARY), "the kernel takes no scales of blocks"),
    "unknown mode": (dict(mode="quick"), "mode is eager, lazy or random, not quick"),
    "three sizes": (dict(sizes=(M, N, K)), "four sizes are needed: batch, m, n and k"),
    "negative size": (dict(sizes=(B, -M, N, K)), "sizes lie between 0 and 2^31 - 1"),
    "large size": (dict(sizes=(B, M, 2**31, K)), "sizes lie between 0 and 2^31 - 1"),
    "a block that is not whole": (
        dict(sizes=(B, M, N, 144), a=(B, M, 144), b=(B, N, 144)),
        "k is no multiple of 128",
    ),
    "b of another kind": (dict(dtypes=("float8_e4m3fn", "float8_e5m2")), "operands are e4m3 and e5m2"),
    "d of int32": (dict(out="int32"), "the kernel does not write s32"),
    "scales of bf16": (dict(of_scales="bfloat16"), "a's scales are bf16, not f32"),
    "fewer scales of a": (dict(a_scales=(B, M, 1)), "a's scales have 10 elements, not 2 x 10"),
    "scales of blocks": (dict(b_scales=(B, 2, 2)), "b's scales have 8 elements, not 2 x 512"),
    "scales of columns": (dict(of_columns=False), "b's scales have 1024 elements, not 2 x 4"),
    "scales that are not whole blocks": (dict(b_scales=(B, 2, N)), "b's scales have 520 elements, not 2 x 512"),
    "a too small": (dict(a=(B, M - 1, K)), "a has"),
    "b too small": (dict(b=(B, N - 1, K)), "b has"),
    "d too large": (dict(d=(B, M + 1, N)), "strides of d do not write each of its elements exactly once"),
    "attribute missing": (dict(drop=("of_columns",)), "Wrong number of attributes"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_call_gets_an_error(edit):
    changes, message = EDITS[edit]
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        call(**changes)
    assert message in str(error.value), error.value
    assert "INVALID_ARGUMENT" in str(error.value)


def test_it_computes_no_other_product():
    """A row of blocks is no candidate where there are no scales, whatever a program names."""
    with pytest.raises(ValueError, match=r"jax_moye\.scaled_matmul's, and nothing else"):
        jax_moye.matmul(
            jnp.ones((4, 128), "float8_e4m3fn"),
            jnp.ones((128, 4), "float8_e4m3fn"),
            config=CONFIG,
            preferred_element_type=jnp.float32,
            interpret=True,
        )
