"""JAX's transformations of products, alone and nested: values, number of kernel calls, and no matrix moved.

test_contraction.py has the specifications one by one; here are the combinations that programs are made of.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import checkify
from jax.test_util import check_grads
from python.support import TARGET, custom_calls, data_movements, kernel_calls, lowered_text

import jax_moye
from jax_moye import checkpoint_policies
from jax_moye._selection.capability import LoweringTarget, usable_configs
from jax_moye._selection.decide import decide
from jax_moye._selection.request import Operand, Request

matmul = functools.partial(jax_moye.matmul, implementation="moye", interpret=True)
by_xla = functools.partial(jax_moye.matmul, implementation="xla")
for_a_gpu = functools.partial(jax_moye.matmul, implementation="moye")
close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


def normal(rng, *shape, dtype=np.float32):
    return jnp.asarray(rng.standard_normal(shape), dtype)


def in_order(order, mm):
    """mm of operands that are stored as `order` says, N row-major and T transposed."""
    return lambda a, b: mm(a.T if order[0] == "T" else a, b.T if order[1] == "T" else b)


def stored(rng, order, m=3, n=4, k=5, dtype=np.float32):
    shapes = ((m, k), (k, n))
    return [normal(rng, *(s[::-1] if c == "T" else s), dtype=dtype) for s, c in zip(shapes, order, strict=True)]


ORDERS = ["NN", "NT", "TN", "TT"]

# ---------------------------------------------------------------------------------------------------- derivatives


@pytest.mark.parametrize("order", ORDERS)
def test_check_grads_to_the_third_order(rng, order):
    with jax.enable_x64(True):
        check_grads(in_order(order, by_xla), stored(rng, order, 2, 3, 2, np.float64), order=3, modes=["fwd", "rev"])


@pytest.mark.parametrize("order", ["NN", "TT"])
def test_check_grads_in_the_emulator(rng, order):
    with jax.enable_x64(True):
        operands = stored(rng, order, 2, 3, 2, np.float64)
        check_grads(in_order(order, matmul), operands, order=2, modes=["fwd", "rev"])


@pytest.mark.parametrize("order", ORDERS)
def test_gradients_of_every_order_read_operands_where_they_are(rng, order):
    a, b = stored(rng, order, 16, 24, 32)
    fun = in_order(order, matmul)
    vjp = lambda a, b, bar: jax.vjp(fun, a, b)[1](bar)  # noqa: E731
    bar = normal(rng, 16, 24)
    for ours, theirs in zip(vjp(a, b, bar), jax.vjp(in_order(order, jnp.matmul), a, b)[1](bar), strict=True):
        close(ours, theirs)
    assert kernel_calls(vjp, a, b, bar) == 2
    calls = custom_calls(lowered_text(vjp, a, b, bar, platform="cpu"))
    assert all(set(call.operands) <= {"%arg0", "%arg1", "%arg2"} for call in calls)


def test_jacobians_and_hessians(rng):
    x, w = normal(rng, 2, 3), normal(rng, 3, 2)
    energy = lambda mm: lambda x: jnp.sum(jnp.tanh(mm(x, w)) ** 2)  # noqa: E731
    for transform in (jax.jacfwd, jax.jacrev, jax.hessian, lambda f: jax.jacrev(jax.jacrev(f))):
        close(transform(energy(matmul))(x), transform(energy(jnp.matmul))(x), rtol=1e-3, atol=1e-3)
    close(jax.jacfwd(matmul, 1)(x, w), jax.jacfwd(jnp.matmul, 1)(x, w))


def test_a_hessian_vector_product_is_three_products(rng):
    x, w, v = normal(rng, 8, 8), normal(rng, 8, 8), normal(rng, 8, 8)
    energy = lambda mm: lambda w: jnp.sum(jnp.tanh(mm(x, w)))  # noqa: E731
    product = lambda mm: lambda w, v: jax.jvp(jax.grad(energy(mm)), (w,), (v,))[1]  # noqa: E731
    close(product(matmul)(w, v), product(jnp.matmul)(w, v), rtol=1e-3, atol=1e-3)
    assert kernel_calls(product(matmul), w, v) == 3  # x w, x v, and x^T times what becomes of both
    assert data_movements(product(matmul), w, v) == []


def test_linearize_and_value_and_grad(rng):
    x, w = normal(rng, 4, 5), normal(rng, 5, 3)
    out, linear = jax.linearize(matmul, x, w)
    close(out, x @ w)
    close(linear(x, w), 2 * (x @ w))
    loss = lambda mm: lambda x, w: jnp.sum(mm(x, w) ** 2)  # noqa: E731
    ours, theirs = (jax.value_and_grad(loss(mm), (0, 1))(x, w) for mm in (matmul, jnp.matmul))
    jax.tree.map(functools.partial(close, rtol=1e-3, atol=1e-3), ours, theirs)


def test_inside_custom_derivatives(rng):
    x, w = normal(rng, 4, 4), normal(rng, 4, 4)

    @jax.custom_vjp
    def doubled(x, w):
        return matmul(x, w)

    doubled.defvjp(
        lambda x, w: (matmul(x, w), (x, w)),
        lambda kept, bar: (2 * matmul(bar, kept[1].T), 2 * matmul(kept[0].T, bar)),
    )
    grads = jax.grad(lambda x, w: doubled(x, w).sum(), (0, 1))(x, w)
    for ours, theirs in zip(grads, jax.grad(lambda x, w: 2 * (x @ w).sum(), (0, 1))(x, w), strict=True):
        close(ours, theirs)

    @jax.custom_jvp
    def thrice(x):
        return matmul(x, w)

    thrice.defjvp(lambda primals, tangents: (matmul(*primals, w), 3 * matmul(*tangents, w)))
    close(jax.grad(lambda x: thrice(x).sum())(x), 3 * jax.grad(lambda x: (x @ w).sum())(x))


# ---------------------------------------------------------------------------------------------------------- vmap


def test_vmap_of_matrix_times_vector_is_one_product():
    """M is the batch, for whichever kernel is chosen: 48 columns of x, not 48 products."""
    w, xs = jnp.ones((32, 16), jnp.bfloat16), jnp.ones((48, 16), jnp.bfloat16)
    (call,) = custom_calls(lowered_text(lambda w, xs: jax.vmap(lambda x: for_a_gpu(w, x))(xs), w, xs))
    assert call.sizes == (1, 48, 32, 16)
    assert call.operands == ("%arg1", "%arg0")
    (equation,) = jax.make_jaxpr(jax.vmap(lambda x: matmul(w, x)))(xs).eqns
    request = Request(equation.params["spec"], jnp.bfloat16, None, None, None, None)
    operands = (Operand(w.shape, w.dtype), Operand(xs.shape, xs.dtype))
    decision = decide(request, operands, LoweringTarget("cuda", 80, None, usable_configs("cuda", 80)))
    assert decision.problem.sizes == (1, 48, 32, 16)
    assert decision.problem.swapped


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0)], ids=str)
def test_vmap_of_gradients(rng, axes):
    x, w = normal(rng, 3, 4), normal(rng, 4, 5)
    many = [z if axis is None else jnp.stack([z, -z, 2 * z]) for z, axis in zip((x, w), axes, strict=True)]
    loss = lambda mm: lambda x, w: jnp.sum(jnp.tanh(mm(x, w)))  # noqa: E731
    per_example = lambda mm: jax.vmap(jax.grad(loss(mm), (0, 1)), axes)  # noqa: E731
    for ours, theirs in zip(per_example(matmul)(*many), per_example(jnp.matmul)(*many), strict=True):
        close(ours, theirs)
    assert kernel_calls(per_example(matmul), *many) == 3


def test_vmap_three_deep_is_one_call(rng):
    x, w = normal(rng, 2, 3, 2, 4, 5), normal(rng, 5, 3)
    fun = jax.vmap(jax.vmap(jax.vmap(matmul, (0, None)), (0, None)), (0, None))
    close(fun(x, w), x @ w)
    assert kernel_calls(fun, x, w) == 1
    assert data_movements(fun, x, w) == []


def test_vmap_with_a_named_axis(rng):
    x, w = normal(rng, 3, 4, 5), normal(rng, 5, 2)
    fun = jax.vmap(lambda x: lax.psum(matmul(x, w), "i"), axis_name="i")
    close(fun(x), jnp.broadcast_to((x @ w).sum(0), (3, 4, 2)))


# -------------------------------------------------------------------------------------------------- control flow


def test_loops_and_branches_under_grad_and_vmap(rng):
    x, w = normal(rng, 3, 4), 0.5 * normal(rng, 4, 4)

    def scanned(mm, checkpoint):
        def layer(h, w):
            return jnp.tanh(mm(h, w)), None

        layer = jax.checkpoint(layer) if checkpoint else layer
        return lambda x, w: lax.scan(layer, x, jnp.stack([w, -w, 2 * w]))[0].sum()

    def branched(mm):
        return lambda x, w: lax.cond(x[0, 0] > 0, lambda: mm(x, w), lambda: mm(w, x.T).T).sum()

    def switched(mm):
        return lambda x, w: lax.switch(1, [lambda: mm(x, x.T).sum(), lambda: mm(x, w).sum()])

    cases = [(scanned(matmul, checkpoint), scanned(jnp.matmul, checkpoint)) for checkpoint in (False, True)]
    cases += [(branched(matmul), branched(jnp.matmul)), (switched(matmul), switched(jnp.matmul))]
    for ours, theirs in cases:
        expected = jax.grad(theirs, (0, 1))(x, w)
        for g, h in zip(jax.jit(jax.grad(ours, (0, 1)))(x, w), expected, strict=True):
            close(g, h)
    many = jnp.stack([x, -x])
    close(jax.vmap(branched(matmul), (0, None))(many, w), jax.vmap(branched(jnp.matmul), (0, None))(many, w))


def test_while_with_a_batched_bound(rng):
    x = 0.5 * normal(rng, 4, 4)

    def power(mm):
        return lambda n: lax.while_loop(lambda c: c[0] < n, lambda c: (c[0] + 1, mm(c[1], x)), (0, x))[1]

    bounds = jnp.arange(3)
    close(jax.vmap(power(matmul))(bounds), jax.vmap(power(jnp.matmul))(bounds))


# ---------------------------------------------------------------------------------------------------- checkpoint


def two_layers(mm):
    return lambda x, w: jnp.sin(mm(jnp.sin(mm(x, w)), w)).sum()


@pytest.mark.parametrize(
    "policy",
    [
        None,
        jax.checkpoint_policies.everything_saveable,
        jax.checkpoint_policies.dots_saveable,
        checkpoint_policies.dots_saveable,
        checkpoint_policies.dots_with_no_batch_dims_saveable,
    ],
)
def test_gradients_under_policies(rng, policy):
    x, w = normal(rng, 4, 4), normal(rng, 4, 4)
    fun = lambda mm: jax.grad(jax.checkpoint(two_layers(mm), policy=policy), (0, 1))  # noqa: E731
    for g, h in zip(fun(matmul)(x, w), jax.grad(two_layers(jnp.matmul), (0, 1))(x, w), strict=True):
        close(g, h)


# ------------------------------------------------------------------------------------------------- whole programs


def mlp(mm):
    def loss(params, x, y):
        for w, b in params:
            x = jnp.tanh(mm(x, w) + b)
        return jnp.mean((x - y) ** 2)

    return loss


def mlp_operands(rng, dtype, *, rows=16, width=32, layers=3):
    params = [(normal(rng, width, width, dtype=dtype) / 8, normal(rng, width, dtype=dtype)) for _ in range(layers)]
    return params, normal(rng, rows, width, dtype=dtype), normal(rng, rows, width, dtype=dtype)


def test_the_program_of_an_mlps_gradient_moves_no_matrix(rng):
    operands = mlp_operands(rng, np.float32)
    step = lambda mm: jax.value_and_grad(mlp(mm), argnums=(0, 1))  # noqa: E731
    ours, theirs = (jax.jit(step(mm))(*operands) for mm in (matmul, jnp.matmul))
    jax.tree.map(close, ours, theirs)
    assert kernel_calls(step(matmul), *operands) == 9  # each layer's value and two gradients
    moved = [line for line in data_movements(step(matmul), *operands) if re.search(r"\[\d+,\d+\]", line)]
    assert moved == []


def test_for_a_gpu_an_mlps_gradient_moves_no_matrix(rng):
    operands = mlp_operands(rng, jnp.bfloat16)
    text = lowered_text(jax.value_and_grad(mlp(for_a_gpu), argnums=(0, 1)), *operands)
    assert len(custom_calls(text)) == 9
    assert text.count(f"@{TARGET}") == 9
    assert "stablehlo.transpose" not in text
    assert "stablehlo.dot_general" not in text
    converted = set(re.findall(r"(%\w+) = stablehlo\.convert", text))  # the loss is summed in float32
    assert not converted & {operand for call in custom_calls(text) for operand in call.operands}


def test_jaxprs_can_be_read(rng):
    jaxpr = jax.make_jaxpr(jax.grad(lambda x, w: matmul(x, w).sum()))(normal(rng, 3, 4), normal(rng, 4, 5))
    text = str(jaxpr)
    assert "jax_moye_contract[" in text
    assert "spec=mn,kn->mk" in text
    assert "lambda" not in text.replace("{ lambda", "")  # no function or object among the parameters
    assert "object at 0x" not in text


def test_eval_shape_runs_and_compiles_nothing(rng):
    shapes = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in ((2, 1, 4, 3), (5, 3, 6))]
    out = jax.eval_shape(jax.grad(lambda a, b: matmul(a, b).sum().astype(jnp.float32)), *shapes)
    assert (out.shape, out.dtype) == ((2, 1, 4, 3), jnp.bfloat16)


def test_donated_operands_are_no_obstacle(rng):
    x, w = normal(rng, 4, 4), normal(rng, 4, 4)
    expected = x @ w
    close(jax.jit(lambda x, w: jnp.tanh(matmul(x, w)), donate_argnums=0)(x, w), np.tanh(expected))


# --------------------------------------------------------------------------------------------------------- checkify


@pytest.mark.parametrize("jit", [lambda fun: fun, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "fun",
    [matmul, by_xla, jax_moye.linear, functools.partial(jax_moye.linear, activation="relu"), jax_moye.dot_general],
)
def test_checkify_finds_a_nan(fun, jit):
    """As it does of lax.dot_general: an infinity times 0."""
    inf, zero, one = (jnp.full((2, 2), value, jnp.float32) for value in (jnp.inf, 0.0, 1.0))
    operands = ((((1,), (0,)), ((), ())),) if fun is jax_moye.dot_general else ()
    checked = checkify.checkify(jit(lambda a, b: fun(a, b, *operands)), errors=checkify.float_checks)
    error, _ = checked(inf, zero)
    assert re.match("nan generated by primitive: jax_moye_(contract|fused)", error.get())
    error, product = checked(one, one)
    assert error.get() is None
    np.testing.assert_array_equal(product, np.full((2, 2), 2.0))
