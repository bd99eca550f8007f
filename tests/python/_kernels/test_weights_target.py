"""The target jax_moye_weights_gemm_v1: what XLA hands it, and what an edited program gets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import to_attribute

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import weights_configs
from jax_moye._kernels.dtypes import DTYPES

M, N, K, GROUP = 5, 64, 136, 64
S4, S8, E4M3 = (
    next(row.name for row in weights_configs() if row.dtype == dtype) for dtype in ("bf16xs4", "bf16xs8", "bf16xe4m3")
)
ORDINARY = next(row.name for row in jax_moye.configs() if row.dtype == "bf16" and row.alignment == 16)
CALL = dict(config=S4, group=GROUP, parts=2, sizes=(M, N, K), detect_races=True, mode="lazy", seed=0)


def call(
    *,
    a=(M, K),
    b=(K, N),
    scales=(3, N),
    zeros=(3, N),
    d=(M, N),
    dtype="bfloat16",
    weights="int4",
    of_scales="float32",
    of_zeros="int8",
    out="float32",
    extra=(),
    drop=(),
    **changes,
):
    """The custom call on ones, weights of 3, scales of 2 and zeros of -1; zeros: None for none."""
    ffi.register("cpu")
    attributes = {key: to_attribute(value) for key, value in (CALL | changes).items() if key not in drop}
    operands = [jnp.ones(a, dtype), jnp.full(b, 3, jnp.int8).astype(weights), jnp.full(scales, 2, of_scales)]
    operands += [] if zeros is None else [jnp.full(zeros, -1, of_zeros)]
    fun = jax.ffi.ffi_call(ffi.WEIGHTS_TARGET, jax.ShapeDtypeStruct(d, out))
    return np.asarray(jax.jit(lambda *arrays: fun(*arrays, **attributes))(*operands, *extra)).astype(np.float64)


@pytest.mark.parametrize("config", weights_configs(), ids=lambda row: row.name)
def test_every_config_and_dtype(config):
    dtype = DTYPES[config.dtype]
    for weights in dtype.weights:
        zeros = None if weights.startswith("float") else (3, N)
        for out in ("float32", dtype.jax_name):
            for of_scales in ("float32", "bfloat16", "float16"):
                found = call(
                    config=config.name, dtype=dtype.jax_name, weights=weights, zeros=zeros, out=out, of_scales=of_scales
                )
                exact = np.full((M, N), 2.0 * K * (3 if zeros is None else 4))
                np.testing.assert_array_equal(found, exact.astype(jnp.dtype(out)).astype(np.float64))


@pytest.mark.parametrize("sizes", [(0, N, K), (M, 0, K), (M, N, 0), (0, 0, 0)])
def test_sizes_of_0(sizes):
    m, n, k = sizes
    groups = max(1, -(-k // GROUP))
    found = call(sizes=sizes, a=(m, k), b=(k, n), d=(m, n), scales=(groups, n), zeros=(groups, n))
    np.testing.assert_array_equal(found, np.zeros((m, n)))


@pytest.mark.parametrize("mode", ["lazy", "eager", "random"])
def test_modes_of_the_emulator(mode):
    for seed in range(3):
        found = call(mode=mode, seed=seed, detect_races=seed < 2, zeros=None)
        np.testing.assert_array_equal(found, np.full((M, N), 6.0 * K))


EDITS = {
    "unknown config": (dict(config="nope"), "no compiled GEMM has this name"),
    "an ordinary config": (dict(config=ORDINARY), "the kernel multiplies with no weights"),
    "unknown mode": (dict(mode="quick"), "mode is eager, lazy or random, not quick"),
    "two sizes": (dict(sizes=(M, N)), "three sizes are needed: m, n and k"),
    "four sizes": (dict(sizes=(1, M, N, K)), "three sizes are needed: m, n and k"),
    "negative size": (dict(sizes=(-M, N, K)), "sizes lie between 0 and 2^31 - 1"),
    "large size": (dict(sizes=(M, 2**31, K)), "sizes lie between 0 and 2^31 - 1"),
    "group of 0": (dict(group=0), "a group has 0 rows of the weights"),
    "group of 96": (dict(group=96), "groups of 96 are no multiples of 64"),
    "no parts": (dict(parts=0), "k is split into 1 to 8 parts, not 0"),
    "nine parts": (dict(parts=9), "k is split into 1 to 8 parts, not 9"),
    "a of f16": (dict(dtype="float16"), "a is f16"),
    "weights of 8 bits": (dict(weights="int8"), "the weights have another dtype"),
    "weights of 4 bits": (dict(config=S8), "the weights have another dtype"),
    "weights of 16 bits": (dict(weights="bfloat16"), "weights are s8, s4, u4 or e4m3"),
    "d of the other 16 bits": (dict(out="float16"), "the result is f32 or a's dtype, not f16"),
    "d of int32": (dict(out="int32"), "the result is f32 or a's dtype, not s32"),
    "scales of int8": (dict(of_scales="int8"), "scales are f32, bf16 or f16, not s8"),
    "zeros of f32": (dict(of_zeros="float32"), "zeros are s8, and those of weights that are integers"),
    "zeros of floats": (dict(config=E4M3, weights="float8_e4m3fn"), "zeros are s8, and those of weights that are"),
    "fewer scales": (dict(scales=(2, N)), "the array of scales has 128 elements, not 3 x 64"),
    "more scales": (dict(scales=(4, N)), "the array of scales has 256 elements, not 3 x 64"),
    "scales of larger groups": (dict(group=128), "the array of scales has 192 elements, not 2 x 64"),
    "fewer zeros": (dict(zeros=(2, N)), "the array of zeros has 128 elements, not 3 x 64"),
    "a too small": (dict(a=(M - 1, K)), "a has 544 elements, not 5 x 136"),
    "b too small": (dict(b=(K - 8, N)), "b has 8192 elements, not 136 x 64"),
    "d too small": (dict(d=(M - 1, N)), "d has 256 elements, not 5 x 64"),
    "k that TMA cannot load": (
        dict(sizes=(M, N, 132), a=(M, 132), b=(132, N)),
        "rows of a and of the weights are no multiples of 16 bytes",
    ),
    "n that TMA cannot load": (
        dict(sizes=(M, 48, K), b=(K, 48), d=(M, 48), scales=(3, 48), zeros=(3, 48)),
        "rows of a and of the weights are no multiples of 16 bytes",
    ),
    "another operand": (dict(extra=(jnp.ones(3),)), "beside a, the weights and their scales there are zeros"),
    "attribute missing": (dict(drop=("parts",)), "Wrong number of attributes"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_an_edited_call_gets_an_error(edit):
    changes, message = EDITS[edit]
    with pytest.raises(jax.errors.JaxRuntimeError) as error:
        call(**changes)
    assert message in str(error.value), error.value
    assert "INVALID_ARGUMENT" in str(error.value)
