"""ragged_dot of float32 as TF32 and of 8-bit floats, with scales and without: results, derivatives, who computes."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.layers_of_groups import ACTIVATIONS, SIZES, G, K, M, near, of_groups, product

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs

N = 128
E4M3, E5M2 = jnp.float8_e4m3fn, jnp.float8_e5m2
TF32 = dict(precision=lax.DotAlgorithmPreset.TF32_TF32_F32)  # which is the default on GPUs alone
EMULATED = dict(interpret=True, implementation="moye")


def text_of(fun, *args):
    return jax.jit(fun).lower(*args).as_text()


def integers(dtype, *shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).integers(-2, 3, shape), dtype)


def scales():
    rng = np.random.default_rng(1)
    return tuple(jnp.asarray(rng.uniform(0.5, 2, shape), jnp.float32) for shape in ((M,), (G, N)))


def reference(lhs, rhs, lhs_scale=1.0, rhs_scale=None, bias=None):
    """In float32; of the scales, of each row and of each group's columns."""
    z = product(lhs, rhs) * jnp.asarray(lhs_scale, jnp.float32).reshape(-1, 1)
    z = z if rhs_scale is None else z * of_groups(rhs_scale)
    return z if bias is None else z + of_groups(bias)


def ours(lhs, rhs, *, by_k=False, **options):
    """By kernels; by_k: of weights whose k is last."""
    rhs = rhs.swapaxes(1, 2) if by_k else rhs
    return jax_moye.ragged_dot(lhs, rhs, jnp.array(SIZES), **(EMULATED | options))


# --------------------------------------------------------------------------------------------------------------- exact


@pytest.mark.parametrize("by_k", [False, True])
@pytest.mark.parametrize("out", ["float32", "bfloat16", "float16", None])
@pytest.mark.parametrize(
    ("left", "right", "options"),
    [(E4M3, E4M3, {}), (E5M2, E5M2, {}), (E4M3, E5M2, {}), (E5M2, E4M3, {}), (jnp.float32, jnp.float32, TF32)],
    ids=["e4m3", "e5m2", "e4m3xe5m2", "e5m2xe4m3", "tf32"],
)
def test_small_integers(left, right, options, out, by_k):
    """One kernel; a transpose in front of it of weights whose n is last, and none of others."""
    lhs, rhs = integers(left, M, K), integers(right, *((G, N, K) if by_k else (G, K, N)), seed=1)
    fun = functools.partial(ours, by_k=by_k, preferred_element_type=out, **options)
    result = fun(lhs, rhs)
    theirs = lax.ragged_dot(lhs, rhs.swapaxes(1, 2) if by_k else rhs, jnp.array(SIZES), preferred_element_type=out)
    assert result.dtype == theirs.dtype
    expected = product(lhs, rhs.swapaxes(1, 2) if by_k else rhs).astype(result.dtype)
    np.testing.assert_array_equal(np.asarray(result, np.float32), np.asarray(expected, np.float32))
    compiled = jax.jit(fun).lower(lhs, rhs).compile().as_text()
    assert compiled.count(f'custom_call_target="{ffi.GROUPED_TARGET}"') == 1
    assert (" transpose(" in compiled) == (not by_k)


def test_sums_of_8_bit_floats_leave_the_tensor_core():
    """It keeps 14 bits of them: 1 beside 2^14 is lost where they stay, as the preset lets them."""
    lhs = jnp.ones((M, 512), E4M3).at[:, 0].set(128)
    rhs = jnp.ones((G, 512, N), E4M3).at[:, 0].set(256)
    expected = product(lhs, rhs)
    fast = functools.partial(ours, precision=lax.DotAlgorithmPreset.ANY_F8_ANY_F8_F32_FAST_ACCUM)
    near(ours(lhs, rhs, preferred_element_type="float32"), expected, 2**-8)
    near(fast(lhs, rhs, preferred_element_type="float32"), expected, 2**-6)
    assert "sm90_grouped_e4m3_f32_fast" in text_of(fast, lhs, rhs)
    assert "sm90_grouped_e4m3_f32_fast" not in text_of(ours, lhs, rhs)


# -------------------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
def test_scales_are_one_kernels(has_bias, activation):
    lhs, rhs = integers(E4M3, M, K), integers(E4M3, G, N, K, seed=1)
    bias = jnp.asarray(np.random.default_rng(2).normal(size=(G, N)), jnp.bfloat16) if has_bias else None
    of_rows, of_columns = scales()

    def fun(lhs, rhs, *scales):
        options = dict(bias=bias, activation=activation, preferred_element_type="bfloat16")
        return ours(lhs, rhs, by_k=True, lhs_scale=scales[0], rhs_scale=scales[1], **options)

    expected = ACTIVATIONS[activation](reference(lhs, rhs.swapaxes(1, 2), of_rows, of_columns, bias))
    near(fun(lhs, rhs, of_rows, of_columns), expected, 2**-8)
    text = text_of(fun, lhs, rhs, of_rows, of_columns)
    assert text.count(f"@{ffi.SCALED_GROUPED_TARGET}") == 1
    assert "stablehlo.multiply" not in text


@pytest.mark.parametrize("interpret", [True, None], ids=["kernel", "xla"])
@pytest.mark.parametrize("form", ["numbers", "scalars", "groups", "rows alone", "columns alone"])
def test_forms_of_scales(form, interpret):
    lhs, rhs = integers(E4M3, M, K), integers(E4M3, G, K, N, seed=1)
    of_rows, of_columns = scales()
    given = {
        "numbers": (0.5, 3),
        "scalars": (jnp.float32(0.5), jnp.asarray(3, jnp.bfloat16)),
        "groups": (of_rows, of_columns[:, 0]),
        "rows alone": (of_rows, None),
        "columns alone": (None, of_columns),
    }[form]
    result = ours(
        lhs,
        rhs,
        lhs_scale=given[0],
        rhs_scale=given[1],
        preferred_element_type="bfloat16",
        interpret=interpret,
        implementation=None,
    )
    left = 1.0 if given[0] is None else given[0]
    right = 1.0 if given[1] is None else jnp.asarray(given[1], jnp.float32)
    right = jnp.broadcast_to(right if jnp.ndim(right) != 1 else right[:, None], (G, N))
    near(result, reference(lhs, rhs, left, right), 2**-8)
    assert not np.asarray(result[sum(SIZES) :], np.float32).any()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_scales_of_others_are_xlas_behind_the_product(dtype):
    lhs, rhs = integers(dtype, M, K), integers(dtype, G, K, N, seed=1)
    of_rows, of_columns = scales()
    result = ours(lhs, rhs, lhs_scale=of_rows, rhs_scale=of_columns, implementation=None)
    assert result.dtype == dtype
    near(result, reference(lhs, rhs, of_rows, of_columns), 2**-8 if dtype == jnp.bfloat16 else 1e-6)


@pytest.mark.parametrize("interpret", [True, None], ids=["kernel", "xla"])
@pytest.mark.parametrize("activation", [None, "silu"])
def test_derivatives(activation, interpret):
    """Of operands, whose cotangents have their dtype, of scales and of the bias; tangents of the latter."""
    lhs, rhs = integers(E4M3, M, K), integers(E4M3, G, K, N, seed=1)
    bias = jnp.asarray(np.random.default_rng(2).normal(size=(G, N)), jnp.bfloat16)
    of_rows, of_columns = scales()
    of_rows, of_columns = of_rows / 8, of_columns / 8

    def fun(lhs, rhs, lhs_scale, rhs_scale, bias):
        options = dict(activation=activation, preferred_element_type="bfloat16", interpret=interpret)
        return ours(
            lhs, rhs, lhs_scale=lhs_scale, rhs_scale=rhs_scale, bias=bias, **(options | {"implementation": None})
        )

    def wanted(*operands):
        return ACTIVATIONS[activation](reference(*operands))

    operands = lhs, rhs, of_rows, of_columns, bias
    result, pullback = jax.vjp(fun, *operands)
    as_f32 = [x.astype(jnp.float32) for x in operands]
    expected, expected_pullback = jax.vjp(wanted, *as_f32)
    near(result, expected, 2**-7)
    cotangent = jax.random.normal(jax.random.key(1), result.shape, jnp.bfloat16)
    found = pullback(cotangent)
    assert [x.dtype for x in found] == [x.dtype for x in operands]
    bounds = (2**-3, 2**-3, 2**-6, 2**-6, 2**-6)  # of 8-bit floats three or four bits
    for got, right, bound in zip(found, expected_pullback(cotangent.astype(jnp.float32)), bounds, strict=True):
        near(got, right, bound)
    tangents = of_rows, of_columns, bias
    _, dot = jax.jvp(lambda *rest: fun(lhs, rhs, *rest), operands[2:], tangents)
    _, right = jax.jvp(lambda *rest: wanted(*as_f32[:2], *rest), tuple(as_f32[2:]), tuple(as_f32[2:]))
    near(dot, right, 2**-6)


def test_the_product_without_scales_is_computed_for_their_derivatives_alone():
    lhs, rhs = integers(E4M3, M, K), integers(E4M3, G, K, N, seed=1)
    of_rows, of_columns = scales()

    def loss(bias, of_rows):
        z = ours(lhs, rhs, lhs_scale=of_rows, rhs_scale=of_columns, bias=bias, preferred_element_type="bfloat16")
        return z.astype(jnp.float32).sum()

    bias = jnp.zeros((G, N), jnp.bfloat16)
    plain, both = (text_of(jax.grad(loss, of), bias, of_rows) for of in (0, (0, 1)))
    assert plain.count(f"@{ffi.GROUPED_TARGET}") == 1  # the bias' sum
    assert both.count(f"@{ffi.GROUPED_TARGET}") == 2


def test_gradients_of_float32():
    """That to lhs reads rhs as it lies, that to rhs is XLA's."""
    lhs, rhs = integers(jnp.float32, M, K), integers(jnp.float32, G, K, N, seed=1)
    gradient = jax.grad(lambda lhs: (ours(lhs, rhs, **TF32) ** 2).sum() / 2)
    np.testing.assert_array_equal(gradient(lhs), jax.grad(lambda lhs: (reference(lhs, rhs) ** 2).sum() / 2)(lhs))
    assert text_of(gradient, lhs).count(f"@{ffi.GROUPED_TARGET}") == 2
    with pytest.raises(NotImplementedError, match="tensor cores read tf32 along k, where groups begin anywhere"):
        jax.grad(lambda rhs: ours(lhs, rhs, **TF32).sum())(rhs)


def test_float32_stays_float32_elsewhere():
    """In the emulator by default, and where more is asked for, as in JAX."""
    lhs, rhs = integers(jnp.float32, M, K), integers(jnp.float32, G, K, N, seed=1)
    for options in ({}, dict(precision="highest")):
        fun = functools.partial(ours, implementation=None, **options)
        assert ffi.GROUPED_TARGET not in text_of(fun, lhs, rhs)
        with pytest.raises(NotImplementedError, match="float32 but in TF32, which is less than was asked for"):
            ours(lhs, rhs, **options)


# ------------------------------------------------------------------------------------------------------ transformations


def scaled(lhs, rhs, of_rows, of_columns):
    options = dict(preferred_element_type="bfloat16", activation="relu", by_k=True)
    return ours(lhs, rhs, lhs_scale=of_rows, rhs_scale=of_columns, **options)


def test_transformations():
    lhs, rhs = integers(E4M3, M, K), integers(E4M3, G, N, K, seed=1)
    of_rows, of_columns = scales()
    expected = scaled(lhs, rhs, of_rows, of_columns)
    batch = jax.vmap(scaled, (None, None, 0, None))(lhs, rhs, jnp.stack([of_rows, 2 * of_rows]), of_columns)
    np.testing.assert_array_equal(batch[0], expected)
    np.testing.assert_array_equal(jax.checkpoint(scaled)(lhs, rhs, of_rows, of_columns), expected)


def test_a_saved_program():
    pytest.importorskip("flatbuffers")
    operands = integers(E4M3, M, K), integers(E4M3, G, N, K, seed=1), *scales()
    saved = jax.export.export(jax.jit(scaled), disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)(*operands)
    loaded = jax.export.deserialize(saved.serialize())
    assert f"@{ffi.SCALED_GROUPED_TARGET}" in loaded.mlir_module()
    np.testing.assert_array_equal(loaded.call(*operands), scaled(*operands))


def test_a_row_does_not_depend_on_the_others():
    """batch_invariant: the same bits in groups of other sizes."""
    lhs, rhs = integers(E4M3, M, K), integers(E4M3, G, N, K, seed=1)
    of_rows, of_columns = scales()
    options = dict(EMULATED, rhs_scale=of_columns, preferred_element_type="bfloat16", batch_invariant=True)
    fun = functools.partial(jax_moye.ragged_dot, rhs=rhs.swapaxes(1, 2), **options)
    whole = fun(lhs, group_sizes=jnp.array(SIZES), lhs_scale=of_rows)
    alone = fun(lhs[3:7], group_sizes=jnp.array([4, 0, 0, 0]), lhs_scale=of_rows[3:7])
    np.testing.assert_array_equal(whole[3:7], alone)


@pytest.mark.parametrize("dtype", ["e4m3", "tf32"])
def test_tiles_sum_alike(dtype):
    """The promise about rows' bits holds among the configs that groups' sizes choose from."""
    of_arrays, precision = (E4M3, None) if dtype == "e4m3" else (jnp.float32, TF32["precision"])
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.standard_normal(s), of_arrays) for s in ((M, 400), (G, N, 400)))
    rows = [row for row in grouped_configs() if (row.dtype, row.accumulator) == (dtype, "f32")]
    assert len(rows) >= 2
    options = dict(by_k=True, precision=precision, preferred_element_type="float32")
    first, *others = (ours(lhs, rhs, config=row.name, **options) for row in rows)
    assert np.unique(first).size > 1000
    for other in others:
        np.testing.assert_array_equal(first, other)


def test_bad_arguments():
    lhs, rhs = integers(E4M3, M, K), integers(E4M3, G, K, N, seed=1)
    of_rows, of_columns = scales()
    with pytest.raises(ValueError, match=r"ragged_dot: lhs_scale has shape \(149,\), and it is \(\) or \(150,\)"):
        ours(lhs, rhs, lhs_scale=of_rows[:-1])
    with pytest.raises(
        ValueError, match=r"ragged_dot: rhs_scale has shape \(128,\), and it is \(\), \(4,\) or \(4, 128"
    ):
        ours(lhs, rhs, rhs_scale=of_columns[0])
    with pytest.raises(ValueError, match=r"ragged_dot: lhs_scale has shape \(150, 1\)"):
        ours(lhs, rhs, lhs_scale=of_rows[:, None])
    x, w = lhs.astype(jnp.bfloat16), rhs.astype(jnp.bfloat16)
    with pytest.raises(ValueError, match="it multiplies by no scales"):
        ours(x, w, lhs_scale=of_rows, config="sm90_grouped_bf16_64x128x64_s7_a16")


# -------------------------------------------------------------------------------------------------- what scales may be


def test_scales_without_groups():
    x, w = integers(E4M3, M, K), jnp.zeros((0, K, N), E4M3)
    for shape in ((0,), (0, N)):
        y = jax_moye.ragged_dot(
            x, w, jnp.zeros(0, jnp.int32), rhs_scale=jnp.ones(shape), preferred_element_type=jnp.bfloat16
        )
        np.testing.assert_array_equal(np.asarray(y, np.float32), np.zeros((M, N)))


def test_scales_are_factors_one_after_the_other():
    """Their product is beyond float32, and what they make of these sums is not."""
    x, w = jnp.full((M, K), 1e-15), jnp.full((G, K, N), 1e-15)
    y = jax_moye.ragged_dot(x, w, jnp.array(SIZES), lhs_scale=jnp.full(M, 1e25), rhs_scale=jnp.full(G, 1e25))
    np.testing.assert_allclose(y[: sum(SIZES)], np.full((sum(SIZES), N), K * 1e20), rtol=1e-5)


@pytest.mark.parametrize("interpret", [None, True])
def test_scales_of_rows_of_no_group_are_nobodys(interpret):
    rows = sum(SIZES)
    assert rows < M
    x, w = integers(E4M3, M, K), integers(E4M3, G, N, K, seed=1).swapaxes(1, 2)
    scale = jnp.where(jnp.arange(M) < rows, 0.5, jnp.nan)
    y = jax_moye.ragged_dot(
        x, w, jnp.array(SIZES), lhs_scale=scale, preferred_element_type=jnp.bfloat16, interpret=interpret
    )
    near(y, np.where(np.arange(M)[:, None] < rows, reference(x, w, 0.5), 0), 2.0**-8)


def test_tangents_of_float16_are_scaled_before_they_are_rounded():
    """The product of the operands is beyond float16, and the result is not; so are the two cotangents small."""
    x, w = jnp.full((M, K), 100.0, E4M3), jnp.full((G, K, N), 100.0, E4M3)
    options = dict(lhs_scale=jnp.full(M, 1e-3), rhs_scale=jnp.full(G, 1e-2), preferred_element_type=jnp.float16)
    fun = lambda x: jax_moye.ragged_dot(x, w, jnp.array(SIZES), **options)  # noqa: E731
    y, y_dot = jax.jvp(fun, (x,), (x,))
    np.testing.assert_array_equal(np.asarray(y_dot), np.asarray(y))

    ones = jnp.ones((M, K))
    small = dict(lhs_scale=jnp.full(M, 1e-4), rhs_scale=jnp.full(G, 1e-4), preferred_element_type=jnp.float16)

    def sums(x):
        return jax_moye.ragged_dot(x, jnp.ones((G, K, N)), jnp.array(SIZES), **small).astype(jnp.float32).sum()

    np.testing.assert_allclose(jax.grad(sums)(ones)[: sum(SIZES)], np.full((sum(SIZES), K), N * 1e-8), rtol=2.0**-9)


@pytest.mark.parametrize(
    ("lhs", "rhs", "preferred"),
    [("complex64", "complex128", None), ("complex64", "complex64", "complex128")],
)
def test_derivatives_of_complex_numbers_are_jaxs(rng, lhs, rhs, preferred):
    """JAX makes of complex operands no narrower dtype: cotangents are rounded afterwards."""
    with jax.enable_x64(True):
        x, w = (
            jnp.asarray(rng.integers(-3, 4, shape) * (1 + 1j if "complex" in dtype else 1), dtype)
            for shape, dtype in (((5, 3), lhs), ((2, 3, 4), rhs))
        )

        def gradients(fun):
            product = functools.partial(fun, group_sizes=jnp.array([3, 1]), preferred_element_type=preferred)
            out, transpose = jax.vjp(product, x, w)
            return transpose(jnp.ones_like(out))

        for ours, theirs in zip(gradients(jax_moye.ragged_dot), gradients(jax.lax.ragged_dot), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)
