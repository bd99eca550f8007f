"""In which order products' arrays lie in memory: what is computed as what it is computed of, the rest where it is."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from python.support import TARGET, lowered_text

import jax_moye
from jax_moye._inspect.products import products_of
from jax_moye._primitives import contraction
from jax_moye._primitives.orders import Lies, in_their_orders
from jax_moye._selection.request import Operand, Request

QUERIES, KEYS = (2, 64, 6, 16), (2, 96, 2, 16)
SCORES = (2, 2, 64, 3, 96)  # of two texts and two heads of keys, each for three of queries


@pytest.fixture
def forced(monkeypatch):
    """Every product is ours that a kernel can compute."""
    decide = contraction.decide_by_measuring

    def ours(*args):
        decision = decide(*args)
        return decision if decision.call is None else decision._replace(kind="kernel", cause=None, reason=None)

    monkeypatch.setattr(contraction, "decide_by_measuring", ours)


def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def grouped_attention(q, k, v):
    out = jax.nn.dot_product_attention(jnp.sin(q), jnp.sin(k), jnp.sin(v), is_causal=True)
    return jnp.sum(out.astype(jnp.float32) ** 2)


def with_gradients(q, k, v):
    with jax_moye.intercept():
        return jax.value_and_grad(grouped_attention, (0, 1, 2))(q, k, v)


def arrays(text):
    """The shapes of what our custom calls read and write."""
    shapes = []
    for line in text.splitlines():
        if f"@{TARGET}" in line:
            signature = line.rpartition(" : ")[2]
            shapes += [tuple(map(int, x.split("x")[:-1])) for x in re.findall(r"tensor<([^>]*)>", signature)]
    return shapes


@pytest.mark.usefixtures("every_config_is_built", "forced")
def test_all_that_is_as_large_as_scores_lies_as_they_do():
    """`vmap` over the queries of a group moves their dimension about, and nobody follows it."""
    text = lowered_text(with_gradients, struct(*QUERIES), struct(*KEYS), struct(*KEYS))
    size = int(np.prod(SCORES))
    large = [shape for shape in arrays(text) if np.prod(shape) == size]
    assert len(large) >= 3  # scores, weights, and the weights' cotangent
    assert set(large) == {SCORES}


@pytest.mark.usefixtures("every_config_is_built", "forced")
def test_who_insists_gets_no_transposes():
    def inside(*args):
        with jax_moye.options(implementation="moye"):
            return einsum(*args)

    einsum = functools.partial(jax_moye.einsum, "bkhd,hbqk->bqhd")
    args = struct(2, 96, 3, 16), struct(3, 2, 64, 96)
    assert "transpose" not in lowered_text(inside, *args)
    assert "transpose" not in lowered_text(einsum, *args)  # arguments are in memory


@pytest.mark.usefixtures("forced")
def test_the_kernels_compute_it(rng):
    q, k, v = (jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in (QUERIES, KEYS, KEYS))
    expected = jax.value_and_grad(grouped_attention, (0, 1, 2))(q, k, v)
    with jax_moye.options(interpret=True):
        fun = jax.jit(with_gradients)
        assert fun.lower(q, k, v).as_text().count(f"@{TARGET}") >= 3
        found = fun(q, k, v)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)


def seen_in_lowering(monkeypatch, fun, *args):
    """What the products of a program are decided about."""
    found = []
    decide = contraction.decide_by_measuring

    def noted(request, operands, *rest):
        found.append((request.spec, request.xlas_orders, operands))
        return decide(request, operands, *rest)

    monkeypatch.setattr(contraction, "decide_by_measuring", noted)
    lowered_text(fun, *args)
    return found


def test_report_sees_the_same(monkeypatch):
    args = struct(*QUERIES), struct(*KEYS), struct(*KEYS)
    products = [product for product, *_ in products_of(jax.make_jaxpr(with_gradients)(*args).jaxpr)]
    expected = [(one.request.spec, one.request.xlas_orders, one.operands) for one in products]
    assert any(orders != (None, None) for _, orders, _ in expected)
    assert len(expected) == 6
    assert seen_in_lowering(monkeypatch, with_gradients, *args) == expected


@jax.jit
def moved_inside(x):
    return jnp.tanh(x).transpose(2, 0, 1)


PROGRAMS = {  # of x (2, 5, 3) and w (2, 5, 4), how that lies which is multiplied by it
    "an argument": (lambda x: x, (False, (0, 1, 2))),
    "transposed twice": (lambda x: x.transpose(2, 1, 0).transpose(2, 1, 0), (False, (2, 1, 0))),
    "computed": (lambda x: jnp.exp(x) * 2, (True, (0, 1, 2))),
    "computed behind a transpose": (lambda x: jnp.exp(x.transpose(2, 0, 1)).transpose(1, 2, 0), (True, (2, 0, 1))),
    "computed of a transpose": (lambda x: 2 * jnp.exp(x.transpose(2, 0, 1)).transpose(1, 2, 0), (True, (0, 1, 2))),
    "in a function": (lambda x: 1 + moved_inside(x).transpose(1, 2, 0), (True, (0, 1, 2))),
    "reshaped": (lambda x: (x + 1).reshape(30).reshape(2, 5, 3), (True, (0, 1, 2))),
    "an argument of another shape": (lambda x: x.reshape(30).reshape(2, 5, 3), (False, (0, 1, 2))),
    "joined": (lambda x: jnp.concatenate([x[:, :2], x[:, 2:]], 1) + 1, (True, None)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_how_an_operand_lies(monkeypatch, name):
    make, expected = PROGRAMS[name]
    found = []

    def noted(request, operands, lie):
        found.append(lie)
        return in_their_orders(request, operands, lie)

    monkeypatch.setattr(contraction, "in_their_orders", noted)

    def fun(x, w):
        return jax_moye.einsum("bkm,bkn->bmn", make(x), w)

    lowered_text(fun, struct(2, 5, 3), struct(2, 5, 4))
    assert found == [(Lies(*expected), Lies(False, (0, 1, 2)))]


def request(spec, **others):
    given = {"precision": None, "config": None, "implementation": None, "interpret": None}
    return Request(spec, jnp.dtype(jnp.bfloat16), **given | others)


def operand(*shape, permutation=None):
    return Operand(shape, jnp.dtype(jnp.bfloat16), permutation)


COMPUTED, IN_MEMORY = Lies(True, None), Lies(False, (0, 1, 2, 3))
HEADS, WEIGHTS = operand(2, 8, 4, 16), operand(2, 4, 8, 32)


def orders(spec, lhs, rhs, *lie, **others):
    found = in_their_orders(request(spec, **others), (lhs, rhs), lie)
    return found.request.spec, *found.moved


def test_what_nobody_knows_lies_as_xlas():
    spec = "bmhk,bnhk->bhmn"
    assert orders(spec, HEADS, HEADS, COMPUTED, COMPUTED) == ("bhmk,bhnk->bhmn", (0, 2, 1, 3), (0, 2, 1, 3), None)
    assert orders(spec, HEADS, HEADS, IN_MEMORY, COMPUTED) == ("bmhk,bhnk->bhmn", None, (0, 2, 1, 3), None)
    assert orders(spec, HEADS, HEADS, IN_MEMORY, IN_MEMORY) == (spec, None, None, None)
    assert orders(spec, HEADS, HEADS, COMPUTED, COMPUTED, implementation="moye") == (spec, None, None, None)
    assert orders("mk,kn->mn", operand(8, 16), operand(16, 8), COMPUTED, COMPUTED) == ("mk,kn->mn", None, None, None)
    weights = "mak,man->kn", operand(2, 64, 16), operand(2, 64, 32)  # the gradient to a layer's matrix
    assert orders(*weights, COMPUTED, COMPUTED) == (weights[0], None, None, None)


def xlas_orders(spec, lhs, rhs, *lie, **others):
    return in_their_orders(request(spec, **others), (lhs, rhs), lie).request.xlas_orders


def test_in_which_order_xla_would_write_what_is_computed():
    spec, heads_first = "bmhk,bnhk->bhmn", (0, 2, 1, 3)
    as_made = Lies(True, (0, 1, 2, 3))  # of a sum, say: it lies as that does
    assert orders(spec, HEADS, HEADS, as_made, IN_MEMORY)[0] == spec
    assert xlas_orders(spec, HEADS, HEADS, as_made, IN_MEMORY) == (heads_first, None)
    assert xlas_orders(spec, HEADS, HEADS, IN_MEMORY, as_made) == (None, heads_first)
    assert xlas_orders(spec, HEADS, HEADS, IN_MEMORY, IN_MEMORY) == (None, None)
    assert xlas_orders(spec, HEADS, HEADS, COMPUTED, as_made) == (None, heads_first), "where lhs lies as XLA's anyway"
    assert xlas_orders(spec, HEADS, HEADS, as_made, as_made, implementation="moye") == (None, None)
    one_batch = "bmk,bnk->bmn", operand(2, 8, 16), operand(2, 8, 16)
    assert xlas_orders(*one_batch, Lies(True, (0, 1, 2)), Lies(True, (0, 1, 2))) == (None, None)
    # Of an array that is moved for the kernel the order is that of the moved one.
    moved = "bhmk,bhkn->bhmn", operand(2, 4, 8, 16), operand(2, 4, 16, 8)
    assert orders(*moved, Lies(True, (1, 0, 2, 3)), IN_MEMORY)[0] == "hbmk,bhkn->bhmn"
    assert xlas_orders(*moved, Lies(True, (1, 0, 2, 3)), IN_MEMORY) == ((1, 0, 2, 3), None)
    # In front of a transpose it is the array's.
    before = operand(2, 4, 8, 16, permutation=(0, 2, 1, 3))
    assert xlas_orders(spec, before, HEADS, as_made, IN_MEMORY) == (None, None)


def test_lines_that_are_no_words_xla_would_write_as_columns():
    odd, columns = operand(8, 13), operand(13, 16)
    computed, in_memory = Lies(True, (0, 1)), Lies(False, (0, 1))
    assert xlas_orders("mk,kn->mn", odd, columns, computed, computed) == ((1, 0), None)
    assert xlas_orders("mk,kn->mn", odd, columns, in_memory, computed) == (None, None)
    assert xlas_orders("mk,kn->mn", operand(8, 16), operand(16, 16), computed, computed) == (None, None)
    assert xlas_orders("mk,kn->mn", operand(7, 13), columns, computed, computed) == (None, None), "odd either way"
    assert xlas_orders("mk,nk->mn", odd, operand(24, 13), computed, computed) == ((1, 0), (1, 0))
    assert xlas_orders("mk,kn->mn", odd, columns, computed, computed, implementation="moye") == (None, None)
    assert xlas_orders("mak,kn->man", operand(4, 6, 13), columns, Lies(True, (0, 1, 2)), computed) == ((2, 0, 1), None)


@pytest.mark.parametrize(("others", "is_part"), [("same", True), ("one", False), ("x.T", False)])
def test_what_is_cut_out_of_a_product_is_written_as_xla_likes(monkeypatch, others, is_part):
    """XLA makes one product of several of the same left operand, summed in the same way."""
    found = []

    def noted(request, operands, lie):
        found.append(in_their_orders(request, operands, lie).request.xlas_orders)
        return in_their_orders(request, operands, lie)

    monkeypatch.setattr(contraction, "in_their_orders", noted)

    def fun(x, a, b):
        q = lax.dot_general(x, a, (((1,), (0,)), ((), ()))).reshape(2, 8, 4, 16)
        other = {"same": x, "one": jnp.cos(x), "x.T": x}[others]
        dims = (((0 if others == "x.T" else 1,), (0,)), ((), ()))
        k = lax.dot_general(other, b, dims).reshape(-1, 8, 4, 16)[:2]
        return jax_moye.einsum("bmhk,bnhk->bhmn", q, k)

    lowered_text(fun, struct(16, 16), struct(16, 64), struct(16, 64))
    (orders,) = found
    assert (orders[0] is not None) == is_part


def test_a_result_larger_than_the_operands_lies_as_xlas():
    large = operand(2, 64, 4, 16), operand(2, 64, 4, 16)
    assert orders("bmhk,bnhk->bmhn", *large, IN_MEMORY, IN_MEMORY) == ("bmhk,bnhk->bhmn", None, None, (0, 2, 1, 3))
    assert orders("bmhk,bnhk->bmhn", *large, IN_MEMORY, IN_MEMORY, beta=1.0)[0] == "bmhk,bnhk->bmhn"
    small = operand(2, 4, 64, 96), operand(2, 96, 4, 16)
    assert orders("bhqk,bkhd->bqhd", *small, IN_MEMORY, IN_MEMORY) == ("bhqk,bkhd->bqhd", None, None, None)


def test_groups_of_queries_are_not_the_last_dimension_of_scores():
    """`jnp.einsum` multiplies the keys by the queries where the scores are named in another order."""
    keys, queries = operand(2, 96, 4, 16), operand(2, 64, 4, 3, 16)
    spec = "bmak,bnack->bamnc"
    assert orders(spec, keys, queries, Lies(), Lies())[::3] == ("bmak,bnack->bancm", (0, 1, 4, 2, 3))
    few = operand(2, 32, 4, 16), operand(2, 40, 4, 3, 16)
    assert orders(spec, *few, Lies(), Lies())[::3] == (spec, None)


def test_the_last_dimension_stays_last():
    weights, values = operand(2, 4, 64, 96), operand(2, 4, 96, 16)
    of_scores = Lies(True, (0, 1, 3, 2))  # which has the keys before the queries
    spec = "bhqk,bhkd->bhqd"
    assert orders(spec, weights, values, of_scores, Lies())[0] == spec
    in_memory = Lies(False, (0, 1, 3, 2))
    assert orders(spec, weights, values, in_memory, Lies())[0] == "bhkq,bhkd->bhqd"


def test_what_no_kernel_could_read_lies_as_xlas():
    """`lie` says so of an array whose summed dimensions are not side by side."""
    spec, lhs, rhs = "bmkl,bkln->bmn", operand(2, 8, 4, 16), operand(2, 4, 16, 32)
    apart = Lies(True, (0, 2, 1, 3))  # of an array "bkml"
    assert orders(spec, lhs, rhs, apart, IN_MEMORY) == (spec, None, None, None)
    of_heads = "bhmk,bhkn->bhmn", operand(2, 4, 8, 16), operand(2, 4, 16, 8)
    assert orders(*of_heads, Lies(True, (1, 0, 2, 3)), IN_MEMORY)[0] == "hbmk,bhkn->bhmn"


def test_a_program_without_known_sizes():
    exported = jax.export.symbolic_shape("a, 8, 4, 16")
    lhs = Operand(tuple(exported), jnp.dtype(jnp.bfloat16))
    spec = "bmhk,bnhk->bhmn"
    assert orders(spec, lhs, lhs, COMPUTED, COMPUTED) == (spec, None, None, None)
