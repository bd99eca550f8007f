"""The one table of dtypes: its names are JAX's, its sizes NumPy's, and every config is about dtypes of it."""

import re

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_moye
from jax_moye._kernels import dtypes
from jax_moye._kernels.dtypes import (
    DTYPES,
    FLOAT8,
    MULTIPLIED_AS,
    WAYS_OF_F32,
    exchanged,
    named_dtype,
    numpy_dtype,
    numpy_dtypes,
)
from jax_moye.layout.kernels import sm90_parts

OF_WEIGHTS = [name for name, dtype in DTYPES.items() if dtype.weights]  # of a, beside a b of another one
OF_TWO = [name for name, dtype in DTYPES.items() if dtype.of_b]


@pytest.mark.parametrize("name", DTYPES)
def test_names_are_jaxs_and_sizes_numpys(name):
    assert numpy_dtype(name) == jnp.dtype(dtypes.JAX_NAMES[name])
    assert numpy_dtype(name).itemsize == dtypes.ITEM_BYTES[name]


def test_a_name_of_jax_has_one_short_name():
    assert set(dtypes.SHORT_NAMES.values()) == DTYPES.keys() - {*WAYS_OF_F32, *OF_WEIGHTS, *OF_TWO}
    assert set(dtypes.SHORT_NAMES) == set(dtypes.JAX_NAMES.values())
    assert dtypes.SHORT_NAMES["float32"] == "f32"
    assert numpy_dtype("bf16") == ml_dtypes.bfloat16
    for way in WAYS_OF_F32:
        assert numpy_dtype(way) == np.float32


def test_what_a_product_may_be_multiplied_as():
    """Itself, and what is at least as precise: more parts of bfloat16, more products of them, or f32."""
    for dtype, ways in MULTIPLIED_AS.items():
        assert set(ways) <= {"f32", *WAYS_OF_F32}
        assert dtype in ways
        assert "f32" in ways
        if parts := DTYPES[dtype].parts:
            several = [DTYPES[way] for way in ways if way != "f32"]
            assert all(way.parts >= parts and way.products >= DTYPES[dtype].products for way in several)


def test_parts_are_the_kernels():
    """Its file is imported without this table, in the playground, and says them itself."""
    assert {dtype.name: dtype.parts for dtype in DTYPES.values() if dtype.parts} == sm90_parts.PARTS
    assert all(DTYPES[name].products == int(name.removeprefix("bf16x")) for name in sm90_parts.PARTS)


def test_what_a_user_may_multiply():
    assert dtypes.OPERAND_NAMES.keys() == DTYPES.keys() - {*WAYS_OF_F32, *OF_WEIGHTS, *OF_TWO, "s32"}
    assert dtypes.USUAL_ACCUMULATOR.keys() == DTYPES.keys() - {"s32"}
    assert set(dtypes.USUAL_ACCUMULATOR.values()) <= DTYPES.keys()


def test_weights_are_named_beside_what_they_become():
    assert len(OF_WEIGHTS) == 6
    for name in OF_WEIGHTS:
        operand, _ = name.split("x")
        assert dtypes.JAX_NAMES[name] == dtypes.JAX_NAMES[operand]
        assert all(jnp.dtype(weights).itemsize == 1 for weights in DTYPES[name].weights)


def test_the_configs_dtypes_are_in_the_table():
    for config in jax_moye.configs():
        assert config.dtype in dtypes.USUAL_ACCUMULATOR
        assert set(config.out_dtypes) <= DTYPES.keys()
        assert config.accumulator.removesuffix("_fast") in DTYPES


def test_the_table_does_not_change():
    with pytest.raises(TypeError):
        dtypes.JAX_NAMES["bf16"] = "float32"


def test_names_of_users():
    """Those of the command line and JAX's; NumPy has an "f16" of 16 bytes, and an "f8" of 8."""
    for name, jax_name in dtypes.OPERAND_NAMES.items():
        assert named_dtype(name) == named_dtype(jax_name) == jnp.dtype(jax_name)
    assert named_dtype("s32") == np.int32
    assert named_dtype("f8") == named_dtype("float") == np.float64
    for other in (None, jnp.bfloat16, np.dtype("int8"), float, 7):
        assert named_dtype(other) is other


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bfloat61", "no dtype is named 'bfloat61'; close names are bfloat16"),
        ("BF-16", "close names are bf16"),
        ("tf32", "no dtype is named 'tf32'; close names are f32"),
        ("zzz", "names are bfloat16, float16"),
    ],
)
def test_names_that_are_none(name, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        named_dtype(name)


def test_two_8_bit_floats():
    e4m3, e5m2 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.float8_e5m2)
    assert OF_TWO == ["e4m3xe5m2", "e5m2xe4m3"]
    assert [numpy_dtypes(name) for name in FLOAT8] == [(e4m3, e4m3), (e5m2, e5m2), (e4m3, e5m2), (e5m2, e4m3)]
    assert [exchanged(name) for name in FLOAT8] == ["e4m3", "e5m2", "e5m2xe4m3", "e4m3xe5m2"]
