"""out = lhs rhs + beta c: the numbers, the derivatives, and that a donated c is written in place."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads
from python.support import FUSED_TARGET, TARGET, integers, lowered_text

import jax_moye
from jax_moye._kernels.dtypes import FLOAT8, JAX_NAMES, numpy_dtypes
from jax_moye._primitives.contraction import contract

OPTIONS = dict(precision=None, out_sharding=None, config=None, interpret=jax_moye.InterpretParams())


def add_product(spec="mk,kn->mn", beta=1.0, out_dtype=np.float32, implementation="moye", **options):
    """contract as a function of lhs, rhs and c."""
    options = OPTIONS | dict(beta=beta, out_dtype=out_dtype, implementation=implementation) | options
    return lambda lhs, rhs, c: contract(spec, lhs, rhs, c, **options)


def exact(spec, lhs, rhs, c, beta):
    lhs, rhs, c = (np.asarray(x).astype(np.float64) for x in (lhs, rhs, c))
    return np.einsum(spec, lhs, rhs) + beta * c


def operands(rng, spec="mk,kn->mn", dtype="float32", **sizes):
    sizes = dict(b=3, m=16, n=24, k=32) | sizes
    names = spec.replace("->", ",").split(",")
    return [jnp.asarray(integers(rng, [sizes[label] for label in labels], dtype)) for labels in names]


def copies(fun, *args, in_place=True, **jit_options) -> int:
    """Copies in the optimized program of `fun`, which has one call that adds to c, perhaps in place."""
    hlo = jax.jit(fun, **jit_options).lower(*args).compile().as_text()
    assert hlo.count(f'custom_call_target="{FUSED_TARGET}"') == 1, hlo
    assert ("output_to_operand_aliasing={{0}: (2, {})}" in hlo) == in_place
    return len(re.findall(r"= \S+ copy\(", hlo.partition("ENTRY")[2]))


SPECS = ["mk,kn->mn", "km,kn->mn", "mk,nk->mn", "km,nk->nm", "bmk,kn->bmn", "bmk,bkn->mbn", "mk,k->m", "k,k->"]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("beta", [1.0, -0.5])
def test_numbers_in_every_order(rng, spec, beta):
    x, y, c = operands(rng, spec)
    fun = add_product(spec, beta)
    np.testing.assert_array_equal(jax.jit(fun)(x, y, c), exact(spec, x, y, c, beta))
    assert copies(fun, x, y, c, donate_argnums=2) == 0
    np.testing.assert_array_equal(add_product(spec, beta, implementation="xla", interpret=None)(x, y, c), fun(x, y, c))


@pytest.mark.parametrize(
    ("dtype", "out_dtype"),
    [("bfloat16", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32"), ("float64", "float64")],
)
def test_dtypes(rng, dtype, out_dtype):
    with jax.enable_x64(True):
        x, y, c = operands(rng, dtype=dtype)
        actual = add_product(beta=2.0, out_dtype=out_dtype)(x, y, c)  # c is converted
        assert actual.dtype == jnp.dtype(out_dtype)
        np.testing.assert_array_equal(actual, exact("mk,kn->mn", x, y, c, 2.0))


def test_a_sum_of_c_and_the_product_is_rounded_once(rng):
    # 257 is no bfloat16: a product rounded before c is added would be 256.
    x, y = jnp.ones((4, 257), jnp.bfloat16), jnp.ones((257, 4), jnp.bfloat16)
    c = jnp.ones((4, 4), jnp.bfloat16)
    np.testing.assert_array_equal(add_product(out_dtype=jnp.bfloat16)(x, y, c), jnp.full((4, 4), 258, jnp.bfloat16))


def test_integers(rng):
    if not any(row.dtype == "s8" for row in jax_moye.configs()):
        pytest.skip("no row of int8 in this build")
    x, y = (jnp.asarray(rng.integers(-128, 128, shape), jnp.int8) for shape in ((16, 32), (32, 24)))
    for out_dtype in (jnp.int32, jnp.int8):  # whose sums wrap around
        c = jnp.asarray(rng.integers(-128, 128, (16, 24)), out_dtype)
        expected = exact("mk,kn->mn", x, y, c, 1).astype(np.int64).astype(out_dtype)
        np.testing.assert_array_equal(add_product(out_dtype=out_dtype)(x, y, c), expected)
    c = c.astype(jnp.int32)
    times_three = add_product(beta=3, out_dtype=jnp.int32, implementation=None)
    np.testing.assert_array_equal(times_three(x, y, c), exact("mk,kn->mn", x, y, c, 3))
    with pytest.raises(NotImplementedError, match="integers are added to c as it is, and beta is 3"):
        add_product(beta=3, out_dtype=jnp.int32)(x, y, c)
    with pytest.raises(ValueError, match=r"beta is an integer where the result is int32, not 0\.5"):
        add_product(beta=0.5, out_dtype=jnp.int32)(x, y, c)


def test_donation_updates_c_in_place(rng):
    x, y, c = operands(rng)
    fun, expected = add_product(), exact("mk,kn->mn", x, y, c, 1)
    assert copies(fun, x, y, c, in_place=False) == 0  # the caller still has c
    assert copies(lambda x, y, c: fun(x, y, c + 1), x, y, c) == 0  # what is added to is the program's own
    assert copies(lambda x, y, c: (fun(x, y, c), c + 1), x, y, c, in_place=False) == 0
    assert copies(fun, x, y, c, donate_argnums=2) == 0
    if hasattr(c, "unsafe_buffer_pointer"):
        where = c.unsafe_buffer_pointer()
        out = jax.jit(fun, donate_argnums=2)(x, y, c)
        assert out.unsafe_buffer_pointer() == where
        assert c.is_deleted()
        np.testing.assert_array_equal(out, expected)


def test_the_transposed_result_is_updated_in_place(rng):
    # The output is contiguous along m: a and b change places, and c is read as d is written.
    x, y, c = operands(rng, "mk,kn->nm")
    fun = add_product("mk,kn->nm")
    assert copies(fun, x, y, c, donate_argnums=2) == 0
    assert "c_strides = dense<[0, 16, 1]>" in lowered_text(fun, x, y, c, platform="cpu")
    np.testing.assert_array_equal(fun(x, y, c), exact("mk,kn->nm", x, y, c, 1))


def test_a_scan_that_accumulates_copies_no_matrix_in_its_loop(rng):
    x, y = jnp.asarray(integers(rng, (5, 16, 32), np.float32)), jnp.asarray(integers(rng, (5, 32, 24), np.float32))

    def sum_of_products(x, y, c):
        return lax.scan(lambda c, xy: (add_product()(*xy, c), None), c, (x, y))[0]

    c = jnp.zeros((16, 24), jnp.float32)
    np.testing.assert_array_equal(sum_of_products(x, y, c), exact("bmk,bkn->mn", x, y, c, 1))
    hlo = jax.jit(sum_of_products, donate_argnums=2).lower(x, y, c).compile().as_text()
    assert not re.search(r"= f32\[16,24\]\S* copy\(", hlo), hlo


@pytest.mark.parametrize("config", jax_moye.configs(), ids=lambda row: row.name)
def test_every_kernel_reads_c_before_it_writes_there(rng, config):
    """A kernel that stores an element of d before its c is read adds to the wrong number, in place alone."""
    with jax.enable_x64(True):
        out_dtype = ({"s8": "int32"} | dict.fromkeys(FLOAT8, "float32")).get(config.dtype, JAX_NAMES[config.dtype])
        spec = "mk,kn->mn" if "NN" in config.orders else "mk,nk->mn"
        m, n, _ = config.tile
        x, y, _ = operands(rng, spec, JAX_NAMES[config.dtype], m=m + 16, n=n + 16)
        x, y = (jnp.asarray(z, dtype) for z, dtype in zip((x, y), numpy_dtypes(config.dtype), strict=True))
        c = jnp.asarray(integers(rng, (m + 16, n + 16), out_dtype))
        expected = exact(spec, x, y, c, 1)
        fun = add_product(spec, out_dtype=out_dtype, config=config.name)
        np.testing.assert_array_equal(jax.jit(fun, donate_argnums=2)(x, y, c), expected)


def test_c_is_left_out_where_beta_is_0(rng):
    x, y, c = operands(rng)
    fun = add_product(beta=0.0)
    assert FUSED_TARGET not in lowered_text(fun, x, y, c, platform="cpu")
    np.testing.assert_array_equal(fun(x, y, c * jnp.nan), exact("mk,kn->mn", x, y, c, 0))


@pytest.mark.parametrize("shape", [(24, 16), (16,), (16, 1), (1, 16, 24)])
def test_c_of_another_shape(rng, shape):
    x, y, _ = operands(rng)
    with pytest.raises(
        ValueError, match=r"c is float32\[.*\], and mk,kn->mn on shapes \(16, 32\) .* float32\[16, 24\]"
    ):
        add_product()(x, y, jnp.zeros(shape))


def test_lowering_for_a_gpu(rng):
    fun = add_product(beta=0.5, out_dtype="bfloat16", interpret=None)
    donating = jax.jit(fun, donate_argnums=2).trace(*operands(rng, dtype="bfloat16"))
    text = donating.lower(lowering_platforms=("cuda",)).as_text()
    assert f"@{FUSED_TARGET}(%arg0, %arg1, %arg2)" in text
    assert "output_operand_alias" in text
    assert 'operands = "c"' in text
    assert "beta = 5.000000e-01 : f64" in text


# --------------------------------------------------------------------------------------------------- derivatives


def test_two_tangents_are_one_sum_in_the_kernel(rng):
    x, y, c = operands(rng)
    product = functools.partial(jax_moye.matmul, implementation="moye", interpret=True)

    def tangent(x, y, x_dot, y_dot):
        return jax.jvp(product, (x, y), (x_dot, y_dot))[1]

    jaxpr = str(jax.make_jaxpr(tangent)(x, y, x, y))
    assert " add" not in jaxpr
    assert jaxpr.count("beta=1.0") == 1
    np.testing.assert_array_equal(tangent(x, y, x, 2 * y), 3 * exact("mk,kn->mn", x, y, c, 0))
    assert copies(tangent, x, y, x, y) == 0  # nobody else needs the first term


@pytest.mark.parametrize("live", range(8))
def test_tangents(rng, live):
    """Any of the three operands may have one."""
    args = operands(rng)
    mask = [bool(live >> i & 1) for i in range(3)]
    dots = [3 * x if there else jnp.zeros_like(x) for x, there in zip(args, mask, strict=True)]

    def chosen(fun):
        free = [x for x, there in zip(args, mask, strict=True) if there]
        free_dots = [x for x, there in zip(dots, mask, strict=True) if there]

        def of_free(*free):
            values = iter(free)
            return fun(*(next(values) if there else x for x, there in zip(args, mask, strict=True)))

        return jax.jvp(of_free, free, free_dots) if free else (fun(*args), 0)

    theirs = chosen(lambda x, y, c: x @ y - 2 * c)
    for ours, expected in zip(chosen(add_product(beta=-2.0)), theirs, strict=True):
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize(("spec", "beta"), [("mk,kn->mn", 0.5), ("km,nk->nm", 1.0), ("bmk,bkn->bmn", 1.0)])
def test_check_grads(spec, beta):
    rng = np.random.default_rng(1)
    with jax.enable_x64(True):
        args = [x + 0.5 for x in operands(rng, spec, "float64", b=2, m=3, n=4, k=5)]
        fun = add_product(spec, beta, np.float64, implementation="xla", interpret=None)
        check_grads(fun, args, order=3, modes=["fwd", "rev"])


def test_gradient_of_c_is_the_cotangent(rng):
    x, y, c = operands(rng)

    def pull(beta):
        return lambda x, y, c, bar: jax.vjp(add_product(beta=beta), x, y, c)[1](bar)[2]

    assert str(jax.make_jaxpr(pull(1.0))(x, y, c, c)).count(" mul") == 0
    np.testing.assert_array_equal(pull(0.5)(x, y, c, c), 0.5 * c)


# ---------------------------------------------------------------------------------------------------------- vmap

AXES = [(0, None, None), (None, 1, None), (0, 0, 0), (1, None, 2), (None, 0, 1), (None, None, 0), (None, None, 2)]


@pytest.mark.parametrize("axes", AXES, ids=str)
def test_vmap(rng, axes):
    args = operands(rng)
    stacked = [x if axis is None else jnp.stack([x, -x, 2 * x], axis) for x, axis in zip(args, axes, strict=True)]
    ours = jax.vmap(add_product(beta=0.5), axes)
    theirs = jax.vmap(lambda x, y, c: x @ y + 0.5 * c, axes)
    np.testing.assert_array_equal(jax.jit(ours)(*stacked), theirs(*stacked))
    hlo = jax.jit(ours).lower(*stacked).compile().as_text()
    shared_product = axes[:2] == (None, None)
    assert hlo.count(f'custom_call_target="{FUSED_TARGET}"') == (not shared_product)
    assert hlo.count(f'custom_call_target="{TARGET}"') == shared_product


def test_vmap_leaves_c_where_it_is(rng):
    x, y, c = operands(rng)
    c = jnp.stack([c, c], 2)
    fun = jax.vmap(add_product(), (None, 0, 2), 2)
    assert "transpose" not in str(jax.make_jaxpr(fun)(x, jnp.stack([y, y]), c))
