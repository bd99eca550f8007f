"""Gated layers of groups in programs: one equation, one kernel where groups have few rows, else as they were."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxpr_as_fun

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._primitives.grouped import grouped_p
from jax_moye._primitives.grouped_rewritten import grouped_rewritten_p

M, K, N, G = 70, 32, 40, 4
SIZES = np.array([20, 0, 33, 9], np.int32)  # eight rows belong to no group
TARGET = "jax_moye_grouped_gemm_v1"


@pytest.fixture(scope="module")
def operands():
    rng = np.random.default_rng(0)
    shapes = (M, K), (G, K, N), (G, K, N)
    arrays = [jnp.asarray(rng.normal(size=s) / (s[-2] ** 0.5 if len(s) == 3 else 1), jnp.bfloat16) for s in shapes]
    return *arrays, jnp.asarray(SIZES)


def gated(x, g, u, sizes):
    return jax.nn.silu(lax.ragged_dot(x, g, sizes)) * lax.ragged_dot(x, u, sizes)


def exact(x, g, u, sizes, activation=jax.nn.silu):
    """In float32, of values that bfloat16 holds."""
    group = np.repeat(np.arange(G + 1), [*SIZES, M - SIZES.sum()])

    def product(w):
        matrices = jnp.concatenate([w.astype(jnp.float32), jnp.zeros((1, *w.shape[1:]))])[group]
        return jnp.einsum("mk,mkn->mn", x.astype(jnp.float32), matrices, precision="highest")

    return activation(product(g)) * product(u)


def near(found, expected, relative=2.0**-6):
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        scale = float(np.abs(np.asarray(other, np.float32)).max())
        np.testing.assert_allclose(np.asarray(one, np.float32), np.asarray(other, np.float32), 0, relative * scale)


def equations_of(fun, *operands, primitive=grouped_rewritten_p):
    """Those of a primitive in the rewritten program, also inside of loops and calls."""

    def inside(jaxpr):
        for equation in jaxpr.eqns:
            if equation.primitive is primitive:
                yield equation
            if equation.primitive is grouped_rewritten_p:  # not what it was
                continue
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=lambda x: hasattr(x, "jaxpr")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    yield from inside(inner)

    return list(inside(jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr))


# name -> (function, activation, the activation as a function)
LAYERS = {
    "silu": (gated, "silu", jax.nn.silu),
    "the other factor first": (
        lambda x, g, u, s: lax.ragged_dot(x, u, s) * jax.nn.silu(lax.ragged_dot(x, g, s)),
        "silu",
        jax.nn.silu,
    ),
    "gelu": (
        lambda x, g, u, s: jax.nn.gelu(lax.ragged_dot(x, g, s)) * lax.ragged_dot(x, u, s),
        "gelu_tanh",
        jax.nn.gelu,
    ),
    "no activation": (lambda x, g, u, s: lax.ragged_dot(x, g, s) * lax.ragged_dot(x, u, s), "none", lambda z: z),
    "in a jit": (jax.jit(lambda *a: jax.jit(gated)(*a)), "silu", jax.nn.silu),
    "ours": (
        lambda x, g, u, s: jax.nn.relu(jax_moye.ragged_dot(x, g, s)) * jax_moye.ragged_dot(x, u, s),
        "relu",
        jax.nn.relu,
    ),
    "wide sums, made narrow": (
        lambda x, g, u, s: (
            jax.nn.silu(lax.ragged_dot(x, g, s, preferred_element_type=jnp.float32).astype(x.dtype))
            * lax.ragged_dot(x, u, s, preferred_element_type=jnp.float32).astype(x.dtype)
        ),
        "silu",
        jax.nn.silu,
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_gated_layer_is_one_equation_and_one_kernel(name, operands):
    fun, activation, function = LAYERS[name]
    with jax_moye.options(interpret=True):
        (equation,) = equations_of(fun, *operands)
        epilogue = equation.params["epilogue"]
        assert (epilogue.activation, epilogue.is_of_pair, epilogue.keeps) == (activation, True, False)
        assert (len(equation.invars), len(equation.outvars)) == (4, 1)
        assert not equations_of(fun, *operands, primitive=grouped_p)
        program = jax.jit(jax_moye.optimize(fun))
        assert program.lower(*operands).as_text().count(TARGET) == 1
        near(program(*operands), exact(*operands, function), 2.0**-8)


def test_in_a_block_of_intercept(operands):
    with jax_moye.intercept(), jax_moye.options(interpret=True):
        program = jax.jit(jax_moye.optimize(gated))
        assert program.lower(*operands).as_text().count(TARGET) == 1
        near(program(*operands), exact(*operands), 2.0**-8)


def test_where_no_kernel_runs_it_is_the_program_as_it_was(operands):
    """On the CPU, bit by bit."""
    program = jax.jit(jax_moye.optimize(gated))
    assert TARGET not in program.lower(*operands).as_text()
    np.testing.assert_array_equal(program(*operands), jax.jit(gated)(*operands))


def test_groups_of_many_rows_are_two_products(operands):
    """Whose tile is larger, unless somebody insists."""
    _, g, u, _ = operands
    many = jnp.ones((257 * G, K), jnp.bfloat16)
    sizes = jnp.array([257 * G, 0, 0, 0], jnp.int32)
    for rows, implementation, calls in ((256, None, 1), (257, None, 2), (257, "moye", 1)):
        with jax_moye.options(interpret=True, implementation=implementation):
            text = jax.jit(jax_moye.optimize(gated)).lower(many[: rows * G], g, u, sizes).as_text()
        assert text.count(TARGET) == calls, (rows, implementation)


def test_the_forward_pass_of_a_gradient_keeps_both_products(operands):
    *arrays, sizes = operands

    def loss(fun):
        return jax.value_and_grad(lambda *a: (fun(*a, sizes).astype(jnp.float32) ** 2).sum(), (0, 1, 2))

    with jax_moye.options(interpret=True):
        (equation,) = equations_of(loss(gated), *arrays)
        assert equation.params["epilogue"].keeps
        assert len(equation.outvars) == 3
        program = jax.jit(jax_moye.optimize(loss(gated)))
        assert program.lower(*arrays).as_text().count(TARGET) == 1 + 4
        near(program(*arrays), loss(exact)(*arrays), 2.0**-5)


OTHERS = {
    "other rows": lambda x, g, u, s: jax.nn.silu(lax.ragged_dot(x, g, s)) * lax.ragged_dot(-x, u, s),
    "other sizes": lambda x, g, u, s: jax.nn.silu(lax.ragged_dot(x, g, s)) * lax.ragged_dot(x, u, s[::-1]),
    "the same matrices": lambda x, g, u, s: jax.nn.silu(lax.ragged_dot(x, g, s)) * lax.ragged_dot(x, g, s),
    "another sum": lambda x, g, u, s: jax.nn.silu(lax.ragged_dot(x, g, s)) + lax.ragged_dot(x, u, s),
    "another precision": lambda x, g, u, s: (
        jax.nn.silu(lax.ragged_dot(x, g, s)) * lax.ragged_dot(x, u, s, precision="highest")
    ),
    "one needs the other": lambda x, g, u, s: (lambda z: jax.nn.silu(z) * lax.ragged_dot(x, u * z[0, 0], s))(
        lax.ragged_dot(x, g, s)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_none(name, operands):
    with jax_moye.options(interpret=True):
        assert not equations_of(OTHERS[name], *operands)
        near(jax.jit(jax_moye.optimize(OTHERS[name]))(*operands), jax.jit(OTHERS[name])(*operands))


def test_a_product_that_somebody_wants_from_xla_is_its():
    x, g, s = jnp.ones((M, K), jnp.bfloat16), jnp.ones((G, K, N), jnp.bfloat16), jnp.asarray(SIZES)

    def program(x, g, u):
        return jax.nn.relu(jax_moye.ragged_dot(x, g, s, implementation="xla")) * jax_moye.ragged_dot(
            x, u, s, implementation="xla"
        )

    assert not equations_of(program, x, g, -g)


def test_the_rewritten_program_under_transformations(operands):
    """What is differentiated, mapped and transposed is the program as it was, of our products."""
    x, g, u, sizes = operands
    with jax_moye.options(interpret=True):
        fun = jax_moye.optimize(gated)
        mapped = jax.vmap(fun, (0, None, None, None))(jnp.stack([x, -x]), g, u, sizes)
        near(mapped, jnp.stack([exact(x, g, u, sizes), exact(-x, g, u, sizes)]), 2.0**-6)
        gradient = jax.grad(lambda x: fun(x, g, u, sizes).astype(jnp.float32).sum())(x)
        near(gradient, jax.grad(lambda x: exact(x, g, u, sizes).sum())(x), 2.0**-5)
        mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
        spec = jax.sharding.PartitionSpec()
        local = jax.shard_map(gated, mesh=mesh, in_specs=(spec,) * 4, out_specs=spec)
        program = jax.jit(jax_moye.optimize(local))
        assert program.lower(*operands).as_text().count(TARGET) == 1
        near(program(*operands), exact(*operands), 2.0**-8)
        closed = jax.make_jaxpr(fun)(*operands)
        np.testing.assert_array_equal(jaxpr_as_fun(closed)(*operands)[0], jax.jit(fun)(*operands))


def test_in_a_loop_nothing_is_copied_for_a_stack(operands):
    """What a scan stacks of both products is XLA's to write."""
    x, g, u, sizes = operands

    def loss(x, g, u):
        def step(x, _):
            y = gated(x, g, u, sizes)
            return x + y[:, :K].astype(x.dtype), None

        return lax.scan(step, x, length=2)[0].astype(jnp.float32).sum()

    with jax_moye.options(interpret=True):
        assert len(equations_of(loss, x, g, u)) == 1
        assert not equations_of(jax.grad(loss), x, g, u)


def test_explain_says_what_becomes_of_it(operands, monkeypatch):
    monkeypatch.setattr(ffi, "built", lambda platform: None)
    x, g, u, sizes = operands
    (gemm,) = jax_moye.explain(jax_moye.optimize(gated), x, g, u, sizes, device="h200").gemms
    assert gemm.config.takes_pair
    assert gemm.epilogue == "silu, times the product with second_b"
    many = jnp.ones((257 * G, K), jnp.bfloat16)
    (gemm,) = jax_moye.explain(jax_moye.optimize(gated), many, g, u, sizes, device="h200").gemms
    assert (gemm.count, gemm.epilogue, gemm.computed_by) == (2, None, "moye")
    assert "gated behind it: groups have 257 rows on average, for which two products have a larger tile" in str(gemm)
