"""Transposes in front of operands: what is read, who takes them, and that a product is decided once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import custom_calls, lowered_text

import jax_moye
from jax_moye._primitives import autotune, contraction, fused
from jax_moye._primitives.transposes import absorbed, operands_of, source_in_jaxpr, transposed
from jax_moye._selection import decide
from jax_moye._selection.request import Operand


def struct(*shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype)


@pytest.mark.parametrize(
    "permutations", list(itertools.product((None, (1, 0, 2), (2, 0, 1)), (None, (0, 2, 1), (2, 1, 0))))
)
def test_an_absorbed_specification_computes_the_same(rng, permutations):
    lhs, rhs = rng.standard_normal((2, 2, 2)), rng.standard_normal((2, 2, 2))
    behind = transposed((jnp.asarray(lhs), jnp.asarray(rhs)), permutations)
    expected = np.einsum("bmk,bkn->bmn", *behind)
    np.testing.assert_allclose(np.einsum(absorbed("bmk,bkn->bmn", permutations), lhs, rhs), expected, rtol=1e-5)


def test_strides_of_a_kernel_leave_the_value_as_it_is():
    x, y = jnp.ones((2, 3)), jnp.ones((4, 5))
    left, right = transposed((x, y), ((1, 0), (1, 0)), ((1, 0), None))
    assert left is x
    assert right.shape == (5, 4)


def test_sources_in_a_jaxpr():
    jaxpr = jax.make_jaxpr(lambda x, y: (x.T @ y, x @ y))(jnp.ones((4, 4)), jnp.ones((4, 4))).jaxpr
    made_by = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    products = [equation for equation in jaxpr.eqns if equation.primitive.name == "dot_general"]
    folded, plain = (source_in_jaxpr(equation.invars[0], made_by) for equation in products)
    assert folded == Operand((4, 4), jnp.dtype("float32"), (1, 0))
    assert plain == Operand((4, 4), jnp.dtype("float32"))
    assert operands_of([struct(4, 6), struct(6, 8)], ((1, 0), None))[0].seen_shape == (6, 4)


def test_a_kernel_that_takes_one_order_gets_a_transpose():
    """The config is named: where its orders lack the one without a copy, the operand is transposed before."""
    one_order = next((c for c in jax_moye.configs() if c.dtype == "e4m3" and c.orders == ("NT",)), None)
    if one_order is None:
        pytest.skip("no config of one order in this build")

    def product(a, b):
        return jax_moye.einsum("mk,nk->mn", a.T, b.T, config=one_order, preferred_element_type=jnp.float32)

    a, b = struct(64, 32, dtype=jnp.float8_e4m3fn), struct(64, 48, dtype=jnp.float8_e4m3fn)
    with jax_moye.cuda_target(one_order.max_arch or one_order.min_arch):
        text = lowered_text(product, a, b)
    (call,) = custom_calls(text)
    assert call.config == one_order.name
    assert call.a_strides[2] == call.b_strides[2] == 1  # both along k, behind their transposes
    assert text.count("stablehlo.transpose") >= 2


@pytest.mark.parametrize("is_layer", [False, True])
def test_a_product_is_decided_once(monkeypatch, is_layer):
    asked = []
    original = decide._find_kernel
    monkeypatch.setattr(decide, "_find_kernel", lambda *args: asked.append(args[0]) or original(*args))

    def program(x, w, b):
        product = jax_moye.linear if is_layer else lambda x, w, b: jax_moye.matmul(x, w)
        return product(x.T, w.T, b)

    jax.clear_caches()
    with jax_moye.options(implementation="moye"), jax_moye.cuda_target(80):
        text = lowered_text(program, struct(64, 32), struct(16, 64), struct(16))
    assert text.count("custom_call @jax_moye") == 1
    assert "stablehlo.transpose" not in text.split("custom_call @jax_moye")[1]
    assert len(asked) == 1
    assert (asked[0].epilogue is not None) == is_layer
    deciders = {contraction.decide_by_measuring, fused.decide_by_measuring}
    assert deciders == {autotune.decide_by_measuring}
