"""ragged_gated_linear_unit: one kernel, two products and XLA elsewhere, and the derivatives of both."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.layers_of_groups import ACTIVATIONS, SIZES, TARGET, G, K, M, check, near, product

import jax_moye
from jax_moye import _compat
from jax_moye._kernels.configs import grouped_configs
from jax_moye._primitives.grouped import grouped_fused_p, grouped_p

N = 136


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(0)
    x, gate, up = rng.normal(size=(M, K)), rng.normal(size=(G, K, N)) / 8, rng.normal(size=(G, K, N)) / 8
    return tuple(jnp.asarray(x, jnp.bfloat16) for x in (x, gate, up))


def reference(x, gate, up, activation="silu", sizes=SIZES):
    """In float32, of values that bfloat16 holds."""
    return ACTIVATIONS[activation](product(x, gate, sizes)) * product(x, up, sizes)


def ours(activation="silu", sizes=SIZES, **options):
    def fun(x, gate, up):
        return jax_moye.ragged_gated_linear_unit(x, gate, up, jnp.array(sizes), activation=activation, **options)

    return fun


@pytest.mark.parametrize("interpret", [True, None], ids=["kernel", "xla"])
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_result_and_derivatives(operands, activation, interpret):
    fun = ours(activation, interpret=interpret)
    tangents = operands[::-1][2:] + operands[:0:-1]  # the gate's is up, up's the gate
    check(fun, lambda *x: reference(*x, activation), operands, tangents)


@pytest.mark.parametrize("which", range(3))
def test_derivatives_of_one_operand(operands, which):
    """Nothing else is differentiated."""

    def of_one(fun, one):
        rest = [*operands[:which], one, *operands[which + 1 :]]
        return fun(*rest).astype(jnp.float32).sum()

    got = jax.grad(functools.partial(of_one, ours(interpret=True)))(operands[which])
    near(got, jax.grad(functools.partial(of_one, reference))(operands[which]), 2**-6)


def test_second_derivatives(operands):
    x, *_ = operands

    def twice(fun):
        def of_x(x):
            return jax.grad(lambda x: (fun(x, *operands[1:]).astype(jnp.float32) ** 2).mean())(x)

        return jax.jvp(of_x, (x,), (jnp.ones_like(x),))[1]

    near(twice(ours(interpret=True)), twice(reference), 2**-4)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_one_kernel_does_it_all(operands, activation):
    text = jax.jit(ours(activation, interpret=True)).lower(*operands).as_text()
    assert text.count(TARGET) == 1
    assert "stablehlo.multiply" not in text
    assert 'operands = "second_b"' in text


@pytest.mark.parametrize("config", [config for config in grouped_configs() if config.takes_pair], ids=lambda x: x.name)
def test_exact_integers_of_every_config(config):
    dtype = {"bf16": jnp.bfloat16, "f16": jnp.float16}[config.dtype]
    rng = np.random.default_rng(1)
    for sizes in (SIZES, (0, 0, 0, 0), (150, 0, 0, 0), (0, 1, 0, 128)):
        x, gate, up = (jnp.asarray(rng.integers(-1, 2, shape), dtype) for shape in ((M, 8), (G, 8, N), (G, 8, N)))
        named = ours("relu", sizes, config=config.name, interpret=True)
        fun = jax.jit(named)
        wanted = reference(x, gate, up, "relu", sizes)  # 64 at most
        np.testing.assert_array_equal(np.asarray(fun(x, gate, up), np.float32), wanted)
        assert f'config = "{config.name}"' in fun.lower(x, gate, up).as_text()
        turned = [jnp.asarray(np.asarray(w).swapaxes(1, 2)) for w in (gate, up)]
        of_turned = jax.jit(lambda x, *w, fun=named: fun(x, *(jnp.swapaxes(one, 1, 2) for one in w)))
        np.testing.assert_array_equal(np.asarray(of_turned(x, *turned), np.float32), wanted)
        assert " transpose(" not in of_turned.lower(x, *turned).compile().as_text()


def test_weights_of_which_one_is_transposed(operands):
    """One way of reading both: what is a transpose is written."""
    x, gate, up = operands
    fun = jax.jit(lambda x, gate, turned: ours(interpret=True)(x, gate, jnp.swapaxes(turned, 1, 2)))
    turned = jnp.asarray(np.asarray(up).swapaxes(1, 2))
    np.testing.assert_array_equal(fun(x, gate, turned), ours(interpret=True)(x, gate, up))
    assert fun.lower(x, gate, turned).compile().as_text().count(" transpose(") == 1


def test_results_of_32_bits_are_finished_by_xla(operands):
    """Behind two products of f32 sums, which nothing rounds in between."""
    fun = ours(interpret=True, preferred_element_type=jnp.float32)
    assert jax.jit(fun).lower(*operands).as_text().count(TARGET) == 2
    near(fun(*operands), reference(*operands), 1e-5)
    with pytest.raises(NotImplementedError, match=r"batch_invariant=True: the epilogue of .* is not its kernel's"):
        ours(interpret=True, preferred_element_type=jnp.float32, batch_invariant=True)(*operands)


def test_promises_about_bits(operands):
    """A row's bits: the same whatever the other rows and groups are, and from run to run."""
    x, gate, up = operands
    fun = jax.jit(
        lambda x, sizes: jax_moye.ragged_gated_linear_unit(
            x, gate, up, sizes, interpret=True, batch_invariant=True, deterministic=True
        )
    )
    alone = np.asarray(fun(x, jnp.array([0, 0, M, 0]))).view(np.uint16)
    for before, rows in ((0, 30), (1, 63), (64, 65), (100, 1)):
        found = np.asarray(fun(x, jnp.array([before, 0, rows, M - before - rows]))).view(np.uint16)
        np.testing.assert_array_equal(found[before : before + rows], alone[before : before + rows])


def test_transformations(operands):
    x, gate, up = operands
    fun = ours("relu", interpret=True)
    expected = fun(*operands)
    batch = jax.vmap(fun, (0, None, 0))(jnp.stack([x, 2 * x]), gate, jnp.stack([up, up]))
    np.testing.assert_array_equal(batch[0], expected)
    np.testing.assert_array_equal(batch[1], 4 * expected)
    _, stacked = jax.lax.scan(lambda carry, x: (carry, fun(x, gate, up)), 0, x[None])
    np.testing.assert_array_equal(stacked[0], expected)
    gradient = jax.grad(lambda *x: fun(*x).astype(jnp.float32).sum(), (0, 1, 2))
    again = jax.grad(lambda *x: jax.checkpoint(fun)(*x).astype(jnp.float32).sum(), (0, 1, 2))
    for one, other in zip(gradient(*operands), again(*operands), strict=True):
        np.testing.assert_array_equal(one, other)


def test_products_are_written_where_they_are_read(operands):
    x, gate, up = operands
    forward = jax.make_jaxpr(ours())(*operands)
    assert [e.params["preactivation"] for e in forward.eqns if e.primitive is grouped_fused_p] == [False]
    backward = jax.make_jaxpr(jax.grad(lambda x: ours()(x, gate, up).astype(jnp.float32).sum()))(x)
    (equation,) = (e for e in backward.eqns if e.primitive is grouped_fused_p)
    assert len(equation.outvars) == 3
    assert sum(e.primitive is grouped_p for e in backward.eqns) == 2
    assert sum(e.primitive is grouped_p for e in jax.make_jaxpr(jax.grad(_sum, (0, 1, 2)))(*operands).eqns) == 4
    unread = jax.make_jaxpr(lambda *x: jax.linearize(ours(), *x)[0])(*operands)
    (equation,) = (e for e in _compat.without_dead_code(unread.jaxpr).eqns if e.primitive is grouped_fused_p)
    assert len(equation.outvars) == 1


def _sum(*operands):
    return ours()(*operands).astype(jnp.float32).sum()


def test_without_an_activation_it_is_linear_in_each_matrix(operands):
    x, gate, up = operands
    cotangent = jnp.ones((M, N), jnp.bfloat16)
    (got,) = jax.linear_transpose(lambda up: ours(None, interpret=True)(x, gate, up), up)(cotangent)
    wanted = jax.grad(lambda up: reference(x, gate, up, None).sum())(up.astype(jnp.float32))
    near(got, wanted, 2**-7)
    with pytest.raises(NotImplementedError, match="activation 'silu' is not linear"):
        jax.linear_transpose(lambda up: ours(interpret=True)(x, gate, up), up)(cotangent)


def test_bad_arguments(operands):
    x, gate, up = operands
    name = "ragged_gated_linear_unit"
    with pytest.raises(
        ValueError, match=rf"{name}: w_gate is bfloat16\[4, 64, 136\] and w_up is bfloat16\[4, 64, 135\]"
    ):
        ours()(x, gate, up[..., 1:])
    with pytest.raises(
        ValueError, match=rf"{name}: w_gate is bfloat16.* and w_up is float32.*: they have the same shape"
    ):
        ours()(x, gate, up.astype(jnp.float32))
    with pytest.raises(ValueError, match=f"{name}: activation is None, 'relu'"):
        ours("tanh")(x, gate, up)
    with pytest.raises(TypeError, match="contracting dimensions") as error:  # lax's own words
        ours()(x[:, 1:], gate, up)
    types = f"x is bfloat16[{M}, {K - 1}], w_gate is bfloat16[4, 64, 136], group_sizes is int32[4]"
    assert f"{name}: {types}" in error.value.__notes__
    for wrong in (None, [[1.0]], "x"):
        for i, argument in enumerate(("x", "w_gate", "w_up")):
            with pytest.raises(TypeError, match=f"{name}: {argument} is an array, not "):
                ours()(*operands[:i], wrong, *operands[i + 1 :])
    one = next(config.name for config in grouped_configs() if not config.takes_pair)
    with pytest.raises(ValueError, match="it takes one matrix of a group, and these are two"):
        ours(config=one, interpret=True)(x, gate, up)
