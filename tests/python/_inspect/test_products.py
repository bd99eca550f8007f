"""The products that are found in a jaxpr, and that the lowering computes the same."""

import jax
import jax.numpy as jnp
import pytest
from python._inspect.golden import bf16, struct
from python.quantized import fake_row, use_fake_rows
from python.support import custom_calls, lowered_text

import jax_moye
from jax_moye._inspect import report
from jax_moye._selection.problem import NotServedError
from jax_moye._tune import tune


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


def weights(m=4, k=1024, n=4096, groups=8):
    return struct(m, k), struct(k, n, dtype=jnp.int4), struct(groups, n, dtype=jnp.float32)


def test_products_with_weights_of_4_bits(monkeypatch):
    use_fake_rows(monkeypatch)

    def layers(x, *params):
        return jax.lax.scan(lambda x, params: (x + jax_moye.quantized_matmul(x, *params), None), x, params)[0]

    x, *params = weights(n=1024)
    stacked = [struct(6, *y.shape, dtype=y.dtype) for y in params]
    (gemm,) = jax_moye.explain(layers, x, *stacked, device="h200")
    assert (gemm.computed_by, gemm.config, gemm.count, gemm.where) == ("moye", fake_row(), 6, ("scan of 6",))
    assert gemm.what == "mk,kn->mn on bfloat16[4, 1024] and int4[1024, 1024] into bfloat16, 8 rows of scales"
    assert f"{fake_row().name}, the least tile for 4 rows, k in 8 parts" in gemm.text()
    assert gemm.to_dict()["computed_by"] == "moye"
    (gemm,) = jax_moye.explain(lambda *args: jax_moye.quantized_matmul(*args, config=fake_row()), *weights())
    assert gemm.chosen_by == "explicit"
    (gemm,) = jax_moye.explain(
        lambda x, w, s: jax_moye.quantized_matmul(x[None], w, s[0], implementation="moye"), *weights(k=1020, groups=1)
    )
    assert (gemm.computed_by, gemm.config) == ("error", None)
    assert "rows of x have 1020 elements" in gemm.reason
    (gemm,) = jax_moye.explain(jax_moye.quantized_matmul, *weights(m=0))
    assert gemm.computed_by == "nothing"


@pytest.mark.parametrize("groups", [1, 8])
def test_products_by_dequantized_weights(monkeypatch, groups):
    """What is said is of the product by weights of 16 bits, and why it is that one."""
    use_fake_rows(monkeypatch)
    args = weights(m=2048, k=4096, groups=groups)
    (gemm,) = jax_moye.explain(jax_moye.quantized_matmul, *args, device="h200")
    assert gemm.what.endswith(
        "of scales, by dequantized weights: x has 2048 rows, and a kernel of weights is for 64 at most"
    )
    assert (gemm.problem.m, gemm.problem.dtype, gemm.problem.out_dtype) == (
        2048,
        "bf16",
        "f32" if groups == 1 else "bf16",
    )
    (plain,) = jax_moye.explain(
        args[0].shape, args[1].shape, "bfloat16", device="h200", preferred_element_type="f32" if groups == 1 else None
    )
    assert (gemm.computed_by, gemm.config, gemm.xla_us) == (plain.computed_by, plain.config, plain.xla_us)
    (gemm,) = jax_moye.explain(lambda *args: jax_moye.quantized_matmul(*args, implementation="xla"), *args)
    assert gemm.computed_by == "xla"
    assert gemm.what.endswith("by dequantized weights: implementation='xla'")


def test_who_does_not_time_products_with_weights(monkeypatch):
    use_fake_rows(monkeypatch)
    found = jax_moye.explain(jax_moye.quantized_matmul, *weights(), device="h200")
    measured = report.measure_gemm(found[0], None, rounds=3, round_ms=1.0, warmup_ms=1.0)
    assert "not timed here" in measured.error
    with pytest.raises(NotServedError, match="whose kernel follows from its sizes"):
        tune._candidates(found[0].product, None, None)


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


def test_weights_that_a_program_dequantizes(monkeypatch):
    """Where our kernels are asked for it is one's; else it says why not, and the rest is of the program's product."""
    use_fake_rows(monkeypatch)

    def layer(x, w, scales):
        groups, (k, n) = scales.shape[0], w.shape
        return x @ (w.astype("float32").reshape(groups, k // groups, n) * scales[:, None]).reshape(k, n).astype(x.dtype)

    args = weights(n=1024)
    with jax_moye.options(implementation="moye"):
        (gemm,) = jax_moye.explain(jax_moye.optimize(layer), *args, device="h200")
    assert (gemm.computed_by, gemm.config) == ("moye", fake_row())
    assert gemm.what == "mk,kn->mn on bfloat16[4, 1024] and int4[1024, 1024] into bfloat16, 8 rows of scales"
    with jax_moye.options(interpret=True):  # which no GPU does
        (gemm,) = jax_moye.explain(jax_moye.optimize(layer), *args, device="h200")
    assert "by dequantized weights: no GPU has timed a kernel of weights" in gemm.what
    (plain,) = jax_moye.explain(layer, *args, device="h200")
    assert (gemm.problem.dtype, gemm.problem.out_dtype) == ("bf16", "bf16")
    assert gemm.xla_us == plain.xla_us
    (gemm,) = jax_moye.explain(jax_moye.optimize(layer), *args, device="h200")
    assert "rows of scales" not in gemm.what
