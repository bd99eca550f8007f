"""The products that are found in a jaxpr, and that the lowering computes the same."""

import jax
import jax.numpy as jnp
import pytest
from python._inspect.golden import bf16, struct
from python.support import custom_calls, lowered_text

import jax_moye


def test_products_in_loops_branches_and_calls():
    def fun(x, w):
        def body(y, _):
            y = jax.checkpoint(lambda y: jax_moye.matmul(y, w))(y)
            return jax.lax.cond(
                y[0, 0] > 0, lambda y: jax_moye.matmul(y, y), lambda y: jax_moye.matmul(y.T, y), y
            ), None

        y, _ = jax.lax.scan(lambda y, _: jax.lax.scan(body, y, None, length=3), x, None, length=5)
        y = jax.lax.while_loop(lambda y: y[0, 0] < 0, lambda y: jax_moye.matmul(w, y), y)
        y = jax.jit(lambda y: jax_moye.matmul(y, w.astype(jnp.float32)))(y)

        @jax.custom_vjp
        def custom(y):
            return jax_moye.matmul(y, y, preferred_element_type=bf16)

        custom.defvjp(lambda y: (custom(y), None), lambda _, g: (g,))
        return custom(y)

    x = struct(16, 16)
    found = list(jax_moye.explain(fun, x, x, device=90))
    # y w, y y and the loop's w y are alike, y.T y has other strides, and two are of f32.
    assert [(gemm.count, gemm.problem.order) for gemm in found] == [(31, "NN"), (15, "TN"), (1, "NN"), (1, "NN")]
    assert found[0].where == ("scan of 5 > scan of 3 > checkpoint", "scan of 5 > scan of 3 > branch 1 of 2", "while")
    assert found[1].where == ("scan of 5 > scan of 3 > branch 0 of 2",)
    assert [gemm.what.partition(" into ")[2] for gemm in found] == ["bfloat16", "bfloat16", "float32", "bfloat16"]


def test_dead_products_are_left_out():
    def fun(x):
        jax_moye.matmul(x, x)
        return jax.lax.scan(lambda y, _: (y, jax_moye.matmul(x, x)), x, None, length=3)[0]

    assert len(jax_moye.explain(fun, struct(8, 8))) == 0
    assert "no matrix product" in str(jax_moye.explain(fun, struct(8, 8), device="h200"))


def test_a_product_of_lax_is_xlas():
    found = jax_moye.explain(lambda x: jnp.einsum("ij,jk->ki", x, x), struct(8, 8), device="h200")
    assert [gemm.computed_by for gemm in found] == ["xla"]
    assert "jax_moye.intercept" in found[0].reason
    with jax_moye.intercept():
        found = jax_moye.explain(lambda x: jnp.matmul(x, x), struct(4095, 4095), device="h200")
    assert [gemm.computed_by for gemm in found] == ["moye"]


def loss(x, w):
    y = jax_moye.matmul(x, w)
    y = jax_moye.matmul(w.T, y)
    z = jax_moye.einsum("ij,kj->ki", y, x.T)
    return jnp.sum(jax_moye.matmul(z, z[0]).astype(jnp.float32))


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize("batched", [False, True])
def test_the_lowering_says_the_same(arch, batched):
    """Kernel, sizes and strides of each product, with transposes in front of operands, derivatives and vmap."""
    fun = jax.grad(loss, (0, 1))
    shapes = (struct(40, 40), struct(40, 40))
    if batched:
        fun, shapes = jax.vmap(fun), (struct(3, 40, 40), struct(3, 40, 40))
    with jax_moye.options(implementation="moye"), jax_moye.cuda_target(arch):
        calls = custom_calls(lowered_text(lambda *args: fun(*args), *shapes))
        found = jax_moye.explain(lambda *args: fun(*args), *shapes, device=arch)
    lowered = sorted((c.config, c.sizes, c.a_strides, c.b_strides) for c in calls)
    p = [(gemm, gemm.problem) for gemm in found for _ in range(gemm.count)]
    explained = sorted((gemm.config.name, q.sizes, q.a_strides, q.b_strides) for gemm, q in p)
    assert explained == lowered
    assert len(lowered) > 5


def test_fused_products_are_the_lowerings():
    fun = jax.grad(lambda x, w, b: jnp.sum(jax_moye.linear(x, w, b, activation="gelu").astype(jnp.float32)), (0, 1, 2))
    args = (struct(48, 32), struct(32, 64), struct(64))
    with jax_moye.options(implementation="moye"), jax_moye.cuda_target(90):
        text = lowered_text(lambda *args: fun(*args), *args)
        found = jax_moye.explain(lambda *args: fun(*args), *args, device=90)
    assert [gemm.epilogue for gemm in found] == ["gelu_tanh, bias", None, None]
    for gemm in found:
        assert f'config = "{gemm.config.name}"' in text


def test_what_was_rewritten_keeps_its_equations():
    def fun(x, w, b):
        return jax.nn.silu(x @ w + b), x @ w.T

    args = struct(48, 64), struct(64, 64), struct(64)
    with jax_moye.options(implementation="moye"):
        found = jax_moye.explain(jax_moye.optimize(fun), *args, device=90)
    assert [gemm.takes_in for gemm in found] == ["silu, bias", ""]
    assert [gemm.product.original is not None for gemm in found] == [True, False]
    again = jax_moye.explain(lambda *args: jax_moye.linear(*args, activation="silu"), *args, device=90)
    assert again[0].product.original is None
