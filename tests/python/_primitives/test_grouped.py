"""grouped_p under JAX's transformations: right values, the custom call, and no transpose in front of it."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify
from jax.test_util import check_grads
from python.groups import (
    DECLARED,
    GROUPS,
    SIZES,
    K,
    M,
    N,
    assert_equal,
    bf16,
    calls_of,
    data_movements,
    grouped,
    operands,
    ragged_dot,
    reference,
    sizes_of,
    transposes,
)
from python.support import integers, lowered_text

import jax_moye
from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import grouped_configs
from jax_moye._primitives import grouped as module
from jax_moye._selection.grouped import RAGGED_K, RAGGED_M, RAGGED_M_BY_K, SPECS

# ------------------------------------------------------------------------------------------------------------ programs


def shapes_of(spec):
    return [bf16(*x.shape) for x in operands(spec, np.random.default_rng(0))] + [sizes_of(GROUPS)]


@pytest.fixture
def every_config(monkeypatch):
    """For a GPU too: a build's module for CUDA may have fewer configs than the emulator."""
    monkeypatch.setattr(ffi, "built", lambda platform: None)


STRIDES = {
    RAGGED_M: ((0, K, 1), (N * K, 1, N), (0, N, 1)),
    RAGGED_M_BY_K: ((0, K, 1), (N * K, K, 1), (0, N, 1)),
    RAGGED_K: ((0, 1, M), (0, 1, N), (M * N, N, 1)),
}


@pytest.mark.parametrize("spec", SPECS)
def test_the_call_of_the_emulator(spec):
    text = lowered_text(grouped(spec), *shapes_of(spec), platform="cpu")
    (call,) = calls_of(text)
    assert call.ragged == ("k" if spec == RAGGED_K else "m")
    assert call.sizes == (GROUPS, M, N, K)
    assert (call.a_strides, call.b_strides, call.d_strides) == STRIDES[spec]
    assert (call.activation, call.operands) == ("none", ("%arg0", "%arg1", "%arg2"))
    assert (call.mode, call.seed, call.detect_races) == ("lazy", 0, True)
    assert "stablehlo.transpose" not in text
    assert "stablehlo.convert" not in text


@pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU: tests/gpu runs the programs")
@pytest.mark.parametrize("spec", SPECS)
def test_the_call_of_a_gpu(spec, every_config):
    with jax_moye.cuda_target(90):
        text = lowered_text(grouped(spec, interpret=False), *shapes_of(spec))
    (call,) = calls_of(text)
    assert (call.sizes, call.a_strides, call.b_strides, call.d_strides) == ((GROUPS, M, N, K), *STRIDES[spec])
    assert {"mode", "seed", "detect_races"}.isdisjoint(call.attributes), "the emulator's"
    assert call.operands == ("%arg0", "%arg1", "%arg2")
    with jax_moye.cuda_target(80), pytest.raises(NotImplementedError, match="was built for this GPU"):
        lowered_text(grouped(spec, interpret=False), *shapes_of(spec))


@pytest.mark.skipif(_compat.cuda_arch() is not None, reason="there is a GPU: tests/gpu runs the programs")
def test_a_program_of_two_platforms(every_config):
    args = bf16(M, K), bf16(GROUPS, K, N), sizes_of(GROUPS)
    name = next(row.name for row in grouped_configs() if row.dtype == "bf16")
    fun = lambda x, w, s: jax_moye.ragged_dot(x, w, s, config=name)  # noqa: E731
    text = jax.jit(fun).trace(*args).lower(lowering_platforms=("cpu", "cuda")).as_text()
    assert text.count(f"@{ffi.GROUPED_TARGET}") == 1
    assert "stablehlo.case" in text
    with pytest.raises(NotImplementedError, match="emulator on the CPU, and this program is for cuda"):
        lowered_text(ragged_dot, *args)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_a_transpose_in_front_of_rhs_is_strides(platform, every_config):
    if platform == "cuda" and _compat.cuda_arch() is not None:
        pytest.skip("there is a GPU: tests/gpu runs the programs")
    options = dict(implementation="moye", interpret=True if platform == "cpu" else None)
    product = functools.partial(jax_moye.ragged_dot, **options)
    # What jax.lax calls another order of dimensions is one, too.
    dimensions = lax.RaggedDotDimensionNumbers((((1,), (2,)), ((), ())), [0], [0])
    general = functools.partial(jax_moye.ragged_dot_general, ragged_dot_dimension_numbers=dimensions, **options)
    for fun in (lambda x, w, s: product(x, w.swapaxes(1, 2), s), general):
        args = bf16(M, K), bf16(GROUPS, N, K), sizes_of(GROUPS)
        (call,) = calls_of(lowered_text(fun, *args, platform=platform))
        assert call.b_strides == STRIDES[RAGGED_M_BY_K][1]
        assert call.operands == ("%arg0", "%arg1", "%arg2"), "what is in memory, not a transpose of it"
        assert platform == "cuda" or data_movements(fun, *args) == []


def test_a_transpose_that_no_kernel_folds_is_written(rng):
    """Of lhs, whose rows lie in memory as columns then; of matrices that do not lie one by one; of rows too short."""
    lhs, rhs = operands(RAGGED_M, rng)
    for turned, fun in (
        ((lhs.T, rhs), lambda x, w: ragged_dot(x.T, w, SIZES)),
        ((lhs, rhs.transpose(1, 0, 2)), lambda x, w: ragged_dot(x, w.transpose(1, 0, 2), SIZES)),
    ):
        assert len(calls_of(lowered_text(fun, *turned, platform="cpu"))) == 1
        assert data_movements(fun, *turned)
        assert_equal(jax.jit(fun)(*turned), reference(RAGGED_M, lhs, rhs, SIZES))
    # Transposed, a row of rhs has K elements, of which 16 bytes are no part: the transpose is written first.
    x, w = integers(rng, (M, 24), "bfloat16"), integers(rng, (GROUPS, 8, 24), "bfloat16")
    fun = lambda x, w: ragged_dot(x, w.swapaxes(1, 2), SIZES)  # noqa: E731
    assert_equal(jax.jit(fun)(x, w), reference(RAGGED_M_BY_K, x, w, SIZES))


@pytest.mark.parametrize("spec", SPECS)
def test_gradients_read_their_operands_in_place(spec):
    """Three products of groups, no transpose, no conversion; and where rhs was transposed, none either."""

    def backwards(transposed, lhs, rhs, sizes, cotangent):
        fun = lambda x, w: grouped(spec)(x, w.swapaxes(1, 2) if transposed else w, sizes)  # noqa: E731
        return jax.vjp(fun, lhs, rhs)[1](cotangent)

    lhs, rhs, sizes = shapes_of(spec)
    out = jax.eval_shape(grouped(spec), lhs, rhs, sizes)
    text = lowered_text(functools.partial(backwards, False), lhs, rhs, sizes, out, platform="cpu")
    assert len(calls_of(text)) == 2  # the product itself is nobody's
    assert "stablehlo.transpose" not in text
    assert "stablehlo.convert" not in text
    if spec == RAGGED_K:
        return
    stored = bf16(rhs.shape[0], rhs.shape[2], rhs.shape[1])
    text = lowered_text(functools.partial(backwards, True), lhs, stored, sizes, out, platform="cpu")
    of_lhs = [call for call in calls_of(text) if call.ragged == "m"]
    assert [call.operands[1] for call in of_lhs] == ["%arg1"]


def test_jaxpr_and_abstract_evaluation():
    args = shapes_of(RAGGED_M)
    jaxpr = jax.make_jaxpr(ragged_dot)(*args)
    assert [equation.primitive for equation in jaxpr.eqns] == [module.grouped_p]
    assert "spec=mk,gkn->mn" in str(jaxpr)
    for spec in SPECS:
        out = jax.eval_shape(grouped(spec, "float32"), *shapes_of(spec))
        assert (out.shape, out.dtype) == ((GROUPS, M, N) if spec == RAGGED_K else (M, N), jnp.float32)


def test_unused_product_is_removed(rng):
    lhs, rhs = operands(RAGGED_M, rng)
    assert not calls_of(lowered_text(lambda x, w: (ragged_dot(x, w, SIZES), x + 1)[1], lhs, rhs, platform="cpu"))
    traced = jax.make_jaxpr(lambda x, w: (ragged_dot(x, w, SIZES), x + 1))(lhs, rhs)
    reduced, _ = jax.interpreters.partial_eval.dce_jaxpr(traced.jaxpr, [False, True])
    assert "jax_moye" not in str(reduced)


# --------------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("wanted", ["lhs", "rhs", "both"])
def test_jvp_and_vjp(rng, spec, wanted):
    lhs, rhs = operands(spec, rng)
    lhs_dot, rhs_dot = operands(spec, rng)
    fun = grouped(spec)
    of_lhs = lambda x: fun(x, rhs, SIZES)  # noqa: E731
    of_rhs = lambda w: fun(lhs, w, SIZES)  # noqa: E731
    of_both = lambda x, w: fun(x, w, SIZES)  # noqa: E731
    f, primals, tangents = {
        "lhs": (of_lhs, (lhs,), (lhs_dot,)),
        "rhs": (of_rhs, (rhs,), (rhs_dot,)),
        "both": (of_both, (lhs, rhs), (lhs_dot, rhs_dot)),
    }[wanted]
    terms = {"lhs": reference(spec, lhs_dot, rhs, SIZES), "rhs": reference(spec, lhs, rhs_dot, SIZES)}
    for transform in (lambda f: f, jax.jit):
        out, out_dot = transform(lambda *args: jax.jvp(f, args[: len(primals)], args[len(primals) :]))(
            *primals, *tangents
        )
        assert_equal(out, reference(spec, lhs, rhs, SIZES))
        assert_equal(out_dot, terms["lhs"] + terms["rhs"] if wanted == "both" else terms[wanted])
        assert out_dot.dtype == jnp.bfloat16

        cotangent = jnp.asarray(rng.integers(-1, 2, out.shape), out.dtype)
        bars = transform(lambda *args: jax.vjp(f, *args[:-1])[1](args[-1]))(*primals, cotangent)
        expected = transposes(spec, lhs, rhs, SIZES, cotangent)
        expected = {"lhs": expected[:1], "rhs": expected[1:], "both": expected}[wanted]
        for bar, want, primal in zip(bars, expected, primals, strict=True):
            assert (bar.shape, bar.dtype) == (primal.shape, primal.dtype)
            assert_equal(bar, want)


@pytest.mark.parametrize("spec", SPECS)
def test_check_grads(rng, spec):
    """Differences of products are nearly exact whatever their width: what is left is f16's rounding."""
    f16 = lambda x: x.astype(jnp.float16)  # noqa: E731
    fun = lambda x, w: grouped(spec, "float16")(f16(x), f16(w), SIZES).astype(jnp.float32)  # noqa: E731
    args = [jnp.asarray(rng.standard_normal(x.shape), jnp.float32) for x in operands(spec, rng)]
    check_grads(fun, args, order=2, modes=["fwd", "rev"], atol=8.0, rtol=0.02, eps=2**-4)


@pytest.mark.parametrize("spec", SPECS)
def test_linear_transpose(rng, spec):
    lhs, rhs = operands(spec, rng)
    out = grouped(spec)(lhs, rhs, SIZES)
    cotangent = jnp.asarray(rng.integers(-1, 2, out.shape), out.dtype)
    wanted = transposes(spec, lhs, rhs, SIZES, cotangent)
    (found,) = jax.linear_transpose(lambda x: grouped(spec)(x, rhs, SIZES), lhs)(cotangent)
    assert_equal(found, wanted[0])
    (found,) = jax.linear_transpose(lambda w: grouped(spec)(lhs, w, SIZES), rhs)(cotangent)
    assert_equal(found, wanted[1])


def loss(product):
    """Its second derivative is not zero, and exact for operands as small as these."""
    return lambda x, w: (product(x, w).astype(jnp.float32) ** 2).sum() / 2


@pytest.mark.parametrize("spec", SPECS)
def test_second_derivatives(rng, spec):
    lhs, rhs = operands(spec, rng)
    lhs_dot, rhs_dot = operands(spec, rng)
    product = lambda x, w: grouped(spec)(x, w, SIZES)  # noqa: E731
    gradient = jax.grad(loss(product), (0, 1))
    (lhs_bar, rhs_bar), (lhs_bar_dot, rhs_bar_dot) = jax.jit(
        lambda *args: jax.jvp(gradient, args[:2], args[2:])  # forward over reverse
    )(lhs, rhs, lhs_dot, rhs_dot)
    out, out_dot = (
        reference(spec, lhs, rhs, SIZES),
        reference(spec, lhs_dot, rhs, SIZES) + reference(spec, lhs, rhs_dot, SIZES),
    )
    # Each product is rounded once, and so is the sum of two.
    wanted = transposes(spec, lhs, rhs, SIZES, out)
    assert_close = functools.partial(np.testing.assert_allclose, rtol=2**-7, atol=2.0)
    for found, want in zip((lhs_bar, rhs_bar), wanted, strict=True):
        assert_equal(found, want.astype(jnp.bfloat16).astype(np.float64))
    first, second = transposes(spec, lhs, rhs, SIZES, out_dot), transposes(spec, lhs_dot, rhs_dot, SIZES, out)
    for found, one, other in zip((lhs_bar_dot, rhs_bar_dot), first, second, strict=True):
        assert_close(np.asarray(found, np.float64), one + other)
    # Reverse over reverse, and reverse over forward, are the same numbers.
    directed = lambda x, w: sum(  # noqa: E731
        jnp.vdot(bar.astype(jnp.float32), dot.astype(jnp.float32))
        for bar, dot in zip(gradient(x, w), (lhs_dot, rhs_dot), strict=True)
    )
    forward = lambda x, w: jax.jvp(loss(product), (x, w), (lhs_dot, rhs_dot))[1]  # noqa: E731
    for of in (directed, forward):
        for found, one, other in zip(jax.jit(jax.grad(of, (0, 1)))(lhs, rhs), first, second, strict=True):
            assert_close(np.asarray(found, np.float64), one + other)


def test_jit_of_a_gradient_and_checkpoint(rng):
    lhs, rhs = operands(RAGGED_M, rng)
    fun = loss(lambda x, w: ragged_dot(x, w, SIZES))
    expected = jax.grad(fun, (0, 1))(lhs, rhs)
    wanted = transposes(RAGGED_M, lhs, rhs, SIZES, reference(RAGGED_M, lhs, rhs, SIZES))
    policies = [None, jax.checkpoint_policies.nothing_saveable, jax.checkpoint_policies.everything_saveable]
    programs = [jax.jit(jax.grad(fun, (0, 1))), jax.grad(jax.jit(fun), (0, 1))]
    programs += [jax.jit(jax.grad(jax.checkpoint(fun, policy=policy), (0, 1))) for policy in policies]
    for program in programs:
        for found, same, want in zip(program(lhs, rhs), expected, wanted, strict=True):
            np.testing.assert_array_equal(found, same)
            assert_equal(found, want.astype(jnp.bfloat16).astype(np.float64))


def test_sizes_have_no_derivative(rng):
    lhs, rhs = operands(RAGGED_M, rng)
    sizes = jnp.asarray(SIZES)
    _, vjp = jax.vjp(ragged_dot, lhs, rhs, sizes)
    *_, sizes_bar = vjp(jnp.ones((M, N), jnp.bfloat16))
    assert sizes_bar.dtype == jax.dtypes.float0
    nothing = np.zeros(sizes.shape, jax.dtypes.float0)
    out, out_dot = jax.jvp(ragged_dot, (lhs, rhs, sizes), (lhs, jnp.zeros_like(rhs), nothing))
    np.testing.assert_array_equal(out, out_dot)
    out, out_dot = jax.jvp(lambda sizes: ragged_dot(lhs, rhs, sizes), (sizes,), (nothing,))
    assert not np.asarray(out_dot).any()
    # Sizes that are computed inside of what is differentiated.
    fun = lambda x: ragged_dot(x, rhs, jnp.sum(x > 5, axis=0)[:GROUPS] + sizes)  # noqa: E731
    gradient = jax.grad(lambda x: fun(x).astype(jnp.float32).sum())(lhs)
    assert_equal(gradient, reference(RAGGED_M_BY_K, np.ones((M, N)), rhs, SIZES))


def test_a_product_with_itself(rng):
    x = operands(RAGGED_K, rng)[0]
    fun = lambda x: grouped(RAGGED_K)(x, x, SIZES).astype(jnp.float32).sum()  # noqa: E731
    ones = np.ones((GROUPS, M, M))
    assert_equal(jax.grad(fun)(x), sum(transposes(RAGGED_K, x, x, SIZES, ones)))


def test_gradient_of_an_f32_result_of_bf16_operands(rng):
    """The cotangent is f32: XLA's, and of the operands' dtypes."""
    lhs, rhs = operands(RAGGED_M, rng)
    product = functools.partial(jax_moye.ragged_dot, preferred_element_type=jnp.float32, interpret=True)
    bars = jax.grad(loss(lambda x, w: product(x, w, SIZES)), (0, 1))(lhs, rhs)
    wanted = transposes(RAGGED_M, lhs, rhs, SIZES, reference(RAGGED_M, lhs, rhs, SIZES))
    for bar, want in zip(bars, wanted, strict=True):
        assert bar.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(bar, np.float64), want, rtol=2**-8)


def test_derivatives_of_what_xla_computes(rng):
    """On the CPU without an emulator, of f32: the same rules, lax's numbers."""
    lhs, rhs = (jnp.asarray(rng.standard_normal(x.shape), jnp.float32) for x in operands(RAGGED_M, rng))
    sizes = jnp.asarray(SIZES)
    of = lambda product: jax.grad(lambda x, w: jnp.sin(product(x, w, sizes)).sum(), (0, 1))(lhs, rhs)  # noqa: E731
    for found, wanted in zip(of(jax_moye.ragged_dot), of(lax.ragged_dot), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    check_grads(
        lambda x, w: jax_moye.ragged_dot(x, w, sizes), (lhs, rhs), order=2, modes=["fwd", "rev"], rtol=0.01, eps=0.125
    )


# ---------------------------------------------------------------------------------------------------------------- vmap

BATCH = 2
MAPPED = [axes for axes in itertools.product([False, True], repeat=3) if any(axes)]
ALL_SIZES = np.array([[4, 0, 11], [7, 9, 4]], np.int32)


def stacked(rng, spec, mapped, axes):
    args = [*(np.stack(pair) for pair in zip(*(operands(spec, rng) for _ in range(BATCH)), strict=True)), ALL_SIZES]
    return [
        np.moveaxis(x, 0, axis) if is_mapped else x[0] for x, is_mapped, axis in zip(args, mapped, axes, strict=True)
    ]


@pytest.mark.parametrize("mapped", MAPPED, ids=lambda mapped: "".join("LRS"[i] for i in range(3) if mapped[i]))
@pytest.mark.parametrize("spec", SPECS)
def test_vmap(rng, spec, mapped):
    axes = tuple(axis if is_mapped else None for is_mapped, axis in zip(mapped, (1, -1, 1), strict=True))
    args = stacked(rng, spec, mapped, (1, -1, 1))
    pick = lambda i: [x if axis is None else np.take(x, i, axis) for x, axis in zip(args, axes, strict=True)]  # noqa: E731
    wanted = np.stack([reference(spec, *pick(i)) for i in range(BATCH)])
    fun = jax.vmap(grouped(spec), axes, out_axes=1)
    assert_equal(jax.jit(fun)(*args), np.moveaxis(wanted, 0, 1))
    assert len(calls_of(lowered_text(fun, *args, platform="cpu"))) == 1, "one product after the other"


def test_vmap_in_vmap_and_of_gradients(rng):
    lhs = jnp.asarray(rng.integers(-1, 2, (2, 3, M, K)), jnp.bfloat16)
    rhs = jnp.asarray(rng.integers(-1, 2, (3, GROUPS, K, N)), jnp.bfloat16)
    sizes = jnp.asarray(ALL_SIZES)
    fun = jax.vmap(jax.vmap(ragged_dot, (0, 0, None)), (0, None, 0))
    out = jax.jit(fun)(lhs, rhs, sizes)
    for i, j in itertools.product(range(2), range(3)):
        assert_equal(out[i, j], reference(RAGGED_M, lhs[i, j], rhs[j], sizes[i]))
    # Gradients of each, and the gradient of all together.
    of_one = jax.grad(loss(lambda x, w: ragged_dot(x, w, SIZES)), (0, 1))
    for x_bar, w_bar, x, w in zip(*jax.vmap(of_one)(lhs[0], rhs), lhs[0], rhs, strict=True):
        for found, wanted in zip((x_bar, w_bar), of_one(x, w), strict=True):
            np.testing.assert_array_equal(found, wanted)
    of_all = lambda x, w: jax.vmap(ragged_dot, (0, None, None))(x, w, SIZES).astype(jnp.float32).sum()  # noqa: E731
    w_bar = jax.grad(of_all, 1)(lhs[0], rhs[0])
    assert_equal(w_bar, sum(reference(RAGGED_K, x, np.ones((M, N)), SIZES) for x in lhs[0]))
    jacobian = jax.jacrev(lambda x: ragged_dot(x, rhs[0, :, :8], SIZES)[:2, :2])(lhs[0, 0, :, :8])
    assert_equal(jacobian[1, 1, 1], rhs[0, 0, :8, 1])


def test_vmap_of_nothing():
    fun = jax.vmap(ragged_dot, (0, None, None))
    out = fun(jnp.ones((0, M, K), jnp.bfloat16), jnp.ones((GROUPS, K, N), jnp.bfloat16), SIZES)
    assert (out.shape, out.dtype) == ((0, M, N), jnp.bfloat16)


# -------------------------------------------------------------------------------------------------------- control flow


def test_control_flow(rng):
    lhs, rhs = jnp.asarray(rng.integers(-1, 2, (M, 8)), jnp.bfloat16), jnp.ones((GROUPS, 8, 8), jnp.bfloat16) / 8
    rhs = rhs.at[:, 0].set(1)

    def scanned(product):
        step = lambda carry, sizes: (product(carry, rhs, sizes), carry.sum())  # noqa: E731
        return lambda x: lax.scan(step, x, jnp.asarray([SIZES, [0, 0, M], [M, 0, 0]]))

    (found, _), (wanted, _) = jax.jit(scanned(ragged_dot))(lhs), scanned(lax.ragged_dot)(lhs)
    np.testing.assert_array_equal(found, wanted)
    of = lambda product: jax.grad(lambda x: scanned(product)(x)[0].astype(jnp.float32).sum())(lhs)  # noqa: E731
    np.testing.assert_array_equal(of(ragged_dot), of(lax.ragged_dot))
    one = ragged_dot(lhs, rhs, SIZES)
    np.testing.assert_array_equal(lax.cond(True, lambda x: ragged_dot(x, rhs, SIZES), lambda x: x, lhs), one)
    twice = lax.fori_loop(0, 2, lambda _, x: ragged_dot(x, rhs, SIZES), lhs)
    np.testing.assert_array_equal(twice, ragged_dot(one, rhs, SIZES))
    np.testing.assert_array_equal(lax.map(lambda s: ragged_dot(lhs, rhs, s), jnp.asarray(SIZES)[None])[0], one)


def test_checkify(rng):
    lhs, rhs = operands(RAGGED_M, rng)
    checked = jax.jit(checkify.checkify(ragged_dot, checkify.float_checks))
    error, out = checked(lhs, rhs, SIZES)
    assert error.get() is None
    assert_equal(out, reference(RAGGED_M, lhs, rhs, SIZES))
    error, _ = checked(lhs.at[0, 0].set(jnp.nan), rhs, SIZES)
    assert "nan generated by primitive: jax_moye_grouped" in error.get()
    # A row of no group is zero, whatever is in it.
    error, out = checked(lhs.at[-1].set(jnp.nan), rhs, SIZES)
    assert error.get() is None
    assert_equal(out[-1], np.zeros(N))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_what_groups_do_not_read_does_not_matter(rng, poison):
    lhs, rhs = operands(RAGGED_M, rng)
    poisoned = rhs.at[1].set(poison)  # the group that has no rows
    assert_equal(ragged_dot(lhs, poisoned, SIZES), reference(RAGGED_M, lhs, rhs, SIZES))
    behind = lhs.at[15:].set(poison)
    assert_equal(ragged_dot(behind, rhs, SIZES), reference(RAGGED_M, lhs, rhs, SIZES))
    lhs, rhs = operands(RAGGED_K, rng)
    out = grouped(RAGGED_K)(lhs.at[15:].set(poison), rhs.at[15:].set(poison), SIZES)
    assert_equal(out, reference(RAGGED_K, lhs, rhs, SIZES))
    out = grouped(RAGGED_K)(lhs.at[4:].set(poison), rhs, SIZES)  # of the next group
    assert_equal(out[:2], reference(RAGGED_K, lhs, rhs, SIZES)[:2])


# --------------------------------------------------------------------------------------------------------------- sizes

EMPTY = {
    "m": dict(m=0),
    "k": dict(k=0),
    "n": dict(n=0),
    "groups": dict(g=0),
    "m and groups": dict(m=0, g=0),
    "all": dict(m=0, n=0, k=0, g=0),
}


@pytest.mark.parametrize("implementation", [None, "moye", "xla"])
@pytest.mark.parametrize("what", EMPTY)
@pytest.mark.parametrize("spec", SPECS)
def test_sizes_of_0(spec, what, implementation):
    sizes = dict(m=M, k=K, n=N, g=GROUPS) | EMPTY[what]
    lhs, rhs = (
        jnp.ones([sizes[label] for label in labels], jnp.bfloat16) for labels in spec.partition("->")[0].split(",")
    )
    group_sizes = jnp.ones((sizes["g"],), jnp.int32)
    shape = tuple(sizes[label] for label in spec.partition("->")[2])
    fun = grouped(spec, implementation=implementation, interpret=implementation != "xla")
    out = fun(lhs, rhs, group_sizes)
    assert (out.shape, out.dtype) == (shape, jnp.bfloat16)
    assert_equal(out, np.zeros(shape))
    if implementation == "moye":
        assert not calls_of(lowered_text(fun, lhs, rhs, group_sizes, platform="cpu")), "nothing is launched"
    bars = jax.grad(lambda x, w: fun(x, w, group_sizes).astype(jnp.float32).sum(), (0, 1))(lhs, rhs)
    assert [bar.shape for bar in bars] == [lhs.shape, rhs.shape]
    for bar in bars:
        assert not np.asarray(bar, np.float32).any()


@pytest.mark.parametrize("sizes", [(0, 0, 0), (0, 24, 0), (24, 0, 0), (0, 0, 24), (1, 0, 1), (-4, 7, 2), (9, -1, 90)])
@pytest.mark.parametrize("spec", SPECS)
def test_empty_groups_and_sizes_that_are_no_sizes(rng, spec, sizes):
    lhs, rhs = operands(spec, rng)
    sizes = np.array(sizes, np.int32)
    out, vjp = jax.vjp(lambda x, w: grouped(spec)(x, w, sizes), lhs, rhs)
    assert_equal(out, reference(spec, lhs, rhs, sizes))
    cotangent = jnp.asarray(rng.integers(-1, 2, out.shape), out.dtype)
    for bar, wanted in zip(vjp(cotangent), transposes(spec, lhs, rhs, sizes, cotangent), strict=True):
        assert_equal(bar, wanted)


def test_as_many_groups_as_there_may_be(rng):
    """512 for a kernel; one more is XLA's."""
    for groups, calls in ((512, 1), (513, 0)):
        lhs, rhs = integers(rng, (40, 8), "bfloat16"), integers(rng, (groups, 8, 8), "bfloat16")
        sizes = np.zeros(groups, np.int32)
        sizes[rng.choice(groups, 35, replace=False)] = 1
        sizes[-1] = 2
        fun = functools.partial(jax_moye.ragged_dot, interpret=True)
        assert len(calls_of(lowered_text(fun, lhs, rhs, sizes, platform="cpu"))) == calls
        assert_equal(fun(lhs, rhs, sizes), reference(RAGGED_M, lhs, rhs, sizes))
    with pytest.raises(NotImplementedError, match="there are 513 groups, and our kernels take 512 at most"):
        ragged_dot(lhs, rhs, sizes)


@pytest.mark.parametrize("sizes", [(-4, 7, 2), (9, -1, 90), (2**31 - 1,) * 3], ids=str)
@pytest.mark.parametrize("spec", SPECS)
def test_sizes_that_are_no_sizes_where_xla_computes(rng, spec, sizes):
    """docs: one below zero counts as zero, and what is beyond m does not count."""
    lhs, rhs = operands(spec, rng)
    sizes = np.array(sizes, np.int32)
    out = grouped(spec, implementation="xla", interpret=False)(lhs, rhs, sizes)
    assert_equal(out, reference(spec, lhs, rhs, sizes))


# -------------------------------------------------------------------------------------------------------------- export


def test_export(rng):
    pytest.importorskip("flatbuffers")
    lhs, rhs = operands(RAGGED_M, rng)
    with pytest.raises(ValueError, match=ffi.GROUPED_TARGET):
        jax.export.export(jax.jit(ragged_dot))(lhs, rhs, SIZES)
    exported = jax.export.export(jax.jit(ragged_dot), disabled_checks=DECLARED)(lhs, rhs, SIZES)
    loaded = jax.export.deserialize(exported.serialize(vjp_order=2))
    assert len(calls_of(loaded.mlir_module())) == 1
    for sizes in (SIZES, ALL_SIZES[1]):  # they are operands
        out, vjp = jax.vjp(lambda x, w, sizes=sizes: loaded.call(x, w, sizes), lhs, rhs)
        assert_equal(out, reference(RAGGED_M, lhs, rhs, sizes))
        cotangent = jnp.asarray(rng.integers(-1, 2, out.shape), out.dtype)
        for bar, wanted in zip(vjp(cotangent), transposes(RAGGED_M, lhs, rhs, sizes, cotangent), strict=True):
            assert_equal(bar, wanted)
    assert loaded.vjp().vjp().mlir_module().count(f"@{ffi.GROUPED_TARGET}") >= 4


def test_export_with_what_users_declare(rng):
    lhs, rhs = operands(RAGGED_M, rng)
    jax.export.export(jax.jit(ragged_dot), disabled_checks=jax_moye.EXPORT_DISABLED_CHECKS)(lhs, rhs, SIZES)


def test_export_of_symbolic_shapes_is_xlas(rng):
    pytest.importorskip("flatbuffers")
    (m,) = jax.export.symbolic_shape("m")
    args = jax.ShapeDtypeStruct((m, K), jnp.bfloat16), bf16(GROUPS, K, N), sizes_of(GROUPS)
    exported = jax.export.export(jax.jit(functools.partial(jax_moye.ragged_dot, interpret=True)))(*args)
    lhs, rhs = operands(RAGGED_M, rng)
    out = jax.export.deserialize(exported.serialize()).call(lhs, rhs, SIZES)
    assert_equal(out, reference(RAGGED_M, lhs, rhs, SIZES))
    with pytest.raises(NotImplementedError, match="not all known"):
        jax.export.export(jax.jit(ragged_dot), disabled_checks=DECLARED)(*args)
