"""Products outside of scans: which are, that the others stay, and that programs compute what they did."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Literal
from python.scans_with_products import (
    BATCH,
    HIGHEST,
    INNER,
    LENGTH,
    OF_SCAN,
    WAYS,
    WIDTH,
    array,
    assert_agree,
    assert_hoisted,
    assert_stays,
    before,
    check_jaxpr,
    is_product,
    products,
    results,
    rows,
    scans,
    sums,
    traced,
)

from jax_moye import _compat
from jax_moye._primitives import hoisted_products
from jax_moye._primitives.equations import body_of
from jax_moye._primitives.hoisted_products import with_hoisted_products
from jax_moye._primitives.scans import Scan

# ----------------------------------------------------------------------------------------------------- three ways


@pytest.mark.parametrize("of_scan", OF_SCAN)
@pytest.mark.parametrize("name", WAYS)
def test_three_ways(name, of_scan):
    fun, args = WAYS[name]
    fun = functools.partial(fun, **OF_SCAN[of_scan])
    new = assert_hoisted(fun, *args, inside=0, outside=1)
    (scan,), (other,) = scans(new.jaxpr), scans(jax.make_jaxpr(fun)(*args).jaxpr)
    for key in other.params.keys() - {"jaxpr", "num_consts", "num_carry", "linear", "ft_in", "ft_out"}:
        assert scan.params[key] == other.params[key]
    assert other.source_info is scan.source_info


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize("name", WAYS)
def test_dtypes(name, dtype):
    with jax.enable_x64(dtype == "float64"):
        fun, args = WAYS[name]
        assert_hoisted(fun, *(x.astype(dtype) for x in args), inside=0, outside=1)


def operands(new):
    (scan,) = scans(new.jaxpr)
    described = _compat.scan_operands(scan.params)
    return described.consts, described.carry, len(described.linear) - described.consts - described.carry


def stacked(new):
    (scan,) = scans(new.jaxpr)
    return [x.aval.shape for x in scan.outvars[_compat.scan_operands(scan.params).carry :]]


def test_what_a_scan_is_given_and_stacks():
    of = {name: traced(fun, *args)[1] for name, (fun, args) in WAYS.items()}
    assert [operands(new) for new in of.values()] == [(0, 1, 1), (0, 1, 1), (0, 0, 1)]
    assert [stacked(new) for new in of.values()] == [[], [(LENGTH, BATCH, WIDTH)], [(LENGTH, BATCH, INNER)]]
    kinds = [[one.primitive.name for one in new.jaxpr.eqns] for new in of.values()]
    assert kinds[:2] == [["dot_general", "scan"], ["scan", "dot_general"]]
    # x.T is a move, and so it is in front of the product behind.
    assert kinds[2] == ["scan", "transpose", "dot_general", "add"]


def test_operands_in_either_order():
    def transposed(xs, w, h):
        return lax.scan(lambda h, x: (jnp.tanh(w @ x + h), (w @ h)), h, xs)

    assert_hoisted(transposed, rows(WIDTH, 3), array(WIDTH, WIDTH), array(WIDTH, 3), inside=0, outside=2)


def test_several_dimensions():
    def fun(xs, w, h):
        def step(h, x):
            y = lax.dot_general(x, w, (((0, 2), (1, 0)), ((), ())))
            z = lax.dot_general(w, x, (((2,), (1,)), ((), ())))
            return h + y, (h @ h.T, z)

        return lax.scan(step, h, xs)

    args = rows(2, 3, 4, seed=1), array(4, 2, 3), array(3, 3)
    assert_hoisted(fun, *args, inside=1, outside=2)


def test_rows_of_one_dimension():
    def fun(xs, w, h):
        def step(carry, x):
            h, c, s = carry
            return (jnp.tanh(x @ w + h), c + jnp.outer(x, h), s + x @ h), h @ w

        return lax.scan(step, (h, jnp.zeros((WIDTH, WIDTH)), jnp.zeros(())), xs)

    # jnp.outer is no product, and the sum of numbers is one.
    assert_hoisted(fun, rows(WIDTH), array(WIDTH, WIDTH), array(WIDTH), inside=0, outside=3)


def test_moves_on_all_sides():
    def fun(xs, w, h):
        weights = checkpoint_name(w.astype(jnp.float32).T, "weights")

        def step(carry, x):
            h, c = carry
            row = checkpoint_name(x, "row").astype(jnp.float32).reshape(WIDTH, BATCH).T
            y = (row @ w.astype(jnp.float32)).reshape(BATCH, 2, INNER // 2)
            z = jnp.tanh(h)
            made = z.reshape(BATCH, INNER)[None] @ weights
            c = c + (z.reshape(BATCH, INNER)[:, None].squeeze(1).T @ z[..., 0]).astype(jnp.float32).T[:, None]
            return (h + y, c), jnp.transpose(made, (2, 0, 1)).astype(jnp.bfloat16)

        begin = h.reshape(BATCH, 2, INNER // 2), jnp.ones((2, 1, INNER))
        return lax.scan(step, begin, xs)

    args = rows(1, BATCH * WIDTH, dtype=jnp.bfloat16), array(WIDTH, INNER, dtype=jnp.bfloat16), array(BATCH, INNER)
    new = assert_hoisted(fun, *args, inside=0, outside=3)
    assert {one.params["name"] for one in new.jaxpr.eqns if one.primitive.name == "name"} == {"row", "weights"}


def test_in_a_call_of_jit_in_the_body():
    def fun(xs, w, h):
        product = jax.jit(jax.jit(lambda x: jnp.einsum("bi,io->bo", x, w)))
        return lax.scan(lambda h, x: (jnp.tanh(product(x) + h), None), h, xs)[0]

    assert_hoisted(fun, *WAYS["before"][1], inside=0, outside=1)


def test_a_constant_that_is_an_array_of_the_program():
    w = np.asarray(array(WIDTH, INNER))
    kept = array(WIDTH, INNER, seed=1)

    def fun(xs, h):
        return lax.scan(lambda h, x: (jnp.tanh(x @ w + x @ kept + h), None), h, xs)[0]

    xs, _, h = WAYS["before"][1]
    assert_hoisted(fun, xs, h, inside=0, outside=2)


def test_a_constant_that_stands_in_the_body():
    """Newer JAX may leave an array there."""
    args = WAYS["before"][1]
    closed = jax.make_jaxpr(before)(*args)
    (equation,) = closed.eqns
    scan = Scan(equation)
    (_, w, _), *operands = scan.operands()
    literal = Literal(np.asarray(args[1]), w.aval)
    equations = [one.replace(invars=[literal if x is w else x for x in one.invars]) for one in scan.body.eqns]
    jaxpr = closed.jaxpr.replace(eqns=[scan.replaced(operands, 0, eqns=equations)])
    new = closed.replace(jaxpr=with_hoisted_products(jaxpr))
    check_jaxpr(new.jaxpr)
    assert (products(jaxpr), products(new.jaxpr)) == ((1, 0), (0, 1))
    assert_agree(before, closed, new, *args)


def test_what_is_stacked_for_nobody():
    def fun(xs, w, h):
        def step(h, x):
            h = jnp.tanh(x + h)
            return h, (h, h @ w)

        return lax.scan(step, h, xs)[1][1]

    assert_hoisted(fun, *WAYS["after"][1], inside=0, outside=1)


def test_one_product_of_another():
    def fun(xs, w, h):
        return lax.scan(lambda h, x: (jnp.tanh((x @ w @ w.T) @ w + h), (h @ w.T) @ w), h, xs)

    assert_hoisted(fun, *WAYS["before"][1], inside=0, outside=5)


def test_what_is_stacked_once():
    def fun(xs, w, h):
        def step(carry, x):
            h, square, other = carry
            z = jnp.tanh(x + h)
            y = z @ w
            return (z, square + z.T @ z, other + z.T @ y), y

        return lax.scan(step, (h, jnp.zeros((WIDTH, WIDTH)), jnp.ones((WIDTH, INNER))), xs)

    new = assert_hoisted(fun, *WAYS["after"][1], inside=0, outside=3)
    assert stacked(new) == [(LENGTH, BATCH, WIDTH)]


def test_a_row_that_something_else_reads():
    def fun(xs, w, h):
        def step(h, x):
            return jnp.tanh(x @ w + h + jnp.sum(x)), x @ w

        return lax.scan(step, h, xs)

    new = assert_hoisted(fun, *WAYS["before"][1], inside=0, outside=2)
    assert operands(new) == (0, 1, 2)


def test_a_sum_that_begins_as_zeros_is_not_added_to_them():
    xs, zs, _ = WAYS["sums"][1]
    new = assert_hoisted(lambda xs, zs: sums(xs, zs, jnp.zeros((WIDTH, INNER))), xs, zs, inside=0, outside=1)
    assert "add" not in [one.primitive.name for one in new.jaxpr.eqns]


def test_parameters_names_and_sources_stay():
    def fun(xs, w, h):
        def step(carry, x):
            h, c = carry
            with jax.named_scope("inner"):
                y = jnp.matmul(x, w, precision=HIGHEST, preferred_element_type=jnp.float32)
            return (h + y.astype(h.dtype), c + jnp.matmul(x.T, h, precision=HIGHEST)), None

        with jax.named_scope("outer"):
            return lax.scan(step, (h, jnp.zeros((WIDTH, INNER), h.dtype)), xs)[0]

    args = [x.astype(jnp.bfloat16) for x in WAYS["before"][1]]
    closed, new = traced(fun, *args)
    one, other = filter(is_product, new.jaxpr.eqns)
    assert [x.params["preferred_element_type"] for x in (one, other)] == [jnp.float32, jnp.bfloat16]
    assert all(x.params["precision"] == (HIGHEST, HIGHEST) for x in (one, other))
    assert str(one.source_info.name_stack) == "outer/inner"
    of_body = [x for x in body_of(scans(closed.jaxpr)[0].params["jaxpr"]).eqns if is_product(x)]
    assert [x.source_info.traceback for x in of_body] == [x.source_info.traceback for x in (one, other)]


def test_a_sum_that_is_read_for_nobody():
    assert_hoisted(lambda *args: _sum_read(*args)[0], *WAYS["sums"][1], inside=0, outside=1)


# ------------------------------------------------------------------------------------------------------- what stays


def _with_effects(xs, w, h):
    def step(h, x):
        jax.debug.callback(lambda _: None, h[0, 0])
        return jnp.tanh(x @ w + h), None

    return lax.scan(step, h, xs)[0]


def _of_batches(xs, w, h):
    return lax.scan(lambda h, x: (h + jnp.einsum("bi,bio->bo", x, jnp.stack([w, w])), None), h, xs)[0]


def _result_read(xs, w, h):
    """The stacked output is read, or is the carry, too."""

    def step(h, x):
        y = jnp.tanh(x + h) @ w
        return jnp.sin(y) @ y.T @ h, y

    return lax.scan(step, h, xs)


def _result_carried(xs, w, h):
    def step(h, x):
        y = jnp.tanh(x + h) @ w
        return y, y

    return lax.scan(step, h, xs)


def _result_carried_alone(xs, w, h):
    return lax.scan(lambda h, x: (jnp.tanh(x + h) @ w, None), h, xs)[0]


def _sum_read(xs, zs, begin):
    return lax.scan(lambda c, x: (c + x[0].T @ x[1], jnp.sum(c)), begin, (xs, zs))


def _sum_stacked(xs, zs, begin):
    def step(c, x):
        c = c + x[0].T @ x[1]
        return c, c

    return lax.scan(step, begin, (xs, zs))


def _sum_of_another(xs, zs, begin):
    """The sums change places."""

    def step(carry, x):
        one, other = carry
        return (other + x[0].T @ x[1], one * 2), None

    return lax.scan(step, (begin, begin), (xs, zs))[0]


def _product_read(xs, zs, begin):
    def step(c, x):
        y = x[0].T @ x[1]
        return c + y, jnp.sum(y)

    return lax.scan(step, begin, (xs, zs))


def _difference(xs, zs, begin):
    return lax.scan(lambda c, x: (c - x[0].T @ x[1], None), begin, (xs, zs))[0]


def _by_a_constant(xs, zs, begin):
    """A sum of products that are the same in each iteration by what is not."""
    del zs
    constant = begin[:, :BATCH].T
    return lax.scan(lambda c, x: (c + constant.T @ jnp.tanh(constant), jnp.sum(x)), begin[:, :WIDTH], xs)


def _sum_of_integers(xs, zs, begin):
    begin = jnp.round(begin).astype(jnp.int16)
    return lax.scan(lambda c, x: (c + (x[0].T @ x[1]).astype(jnp.int16), None), begin, (xs, zs))[0]


def _added_to_a_row(xs, zs, begin):
    """What would be the carry is a row, and the sum is stacked."""
    del zs

    def step(c, x):
        return jnp.sin(c), x[0] + jnp.tanh(x[1]).T @ x[1]

    return lax.scan(step, begin, (rows(WIDTH, WIDTH), xs))


def _converted_twice(xs, zs, begin):
    def step(c, x):
        return c + (x[0].T @ x[1]).astype(jnp.float8_e4m3fn).astype(jnp.float32), None

    return lax.scan(step, begin, (xs, zs))[0]


def _checkpointed(xs, w, h):
    return lax.scan(jax.checkpoint(lambda h, x: (jnp.tanh(x @ w + h), None)), h, xs)[0]


def _made_of_both(xs, w, h):
    return lax.scan(lambda h, x: (jnp.tanh((x + h[:, :WIDTH]) @ w), None), h, xs)[0]


def _by_another_row(xs, w, h):
    del w
    return lax.scan(lambda h, x: (jnp.tanh(x @ x.T) @ h, None), h, xs)[0]


def _of_integers(xs, w, h):
    xs, w, h = (jnp.round(4 * x).astype(jnp.int32) for x in (xs, w, h))
    return lax.scan(lambda h, x: ((x @ w + h) % 7, None), h, xs)[0]


STAY = {
    "effects": (_with_effects, "before"),
    "batch dimensions": (_of_batches, "before"),
    "integers": (_of_integers, "before"),
    "a checkpoint": (_checkpointed, "before"),
    "made of a row and the carry": (_made_of_both, "before"),
    "by another row": (_by_another_row, "before"),
    "the sum is read": (_sum_read, "sums"),
    "the sum is stacked": (_sum_stacked, "sums"),
    "sums that change places": (_sum_of_another, "sums"),
    "the product is read": (_product_read, "sums"),
    "a difference": (_difference, "sums"),
    "of constants": (_by_a_constant, "sums"),
    "a sum of integers": (_sum_of_integers, "sums"),
    "added to a row": (_added_to_a_row, "sums"),
    "converted twice": (_converted_twice, "sums"),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name):
    fun, args = STAY[name]
    assert_stays(fun, *WAYS[args][1])


@pytest.mark.parametrize("fun", [_result_read, _result_carried, _result_carried_alone])
def test_results_that_something_else_reads(fun):
    assert_stays(fun, rows(BATCH, WIDTH), array(WIDTH, WIDTH), array(BATCH, WIDTH))


@pytest.mark.parametrize("name", WAYS)
def test_lengths(name):
    fun, (xs, other, last) = WAYS[name]
    for length in (3, 4):
        args = xs[:length], other[:length] if name == "sums" else other, last
        if length == 3:
            assert_stays(fun, *args)
        else:
            assert_hoisted(fun, *args, inside=0, outside=1)


@pytest.mark.parametrize("name", WAYS)
def test_rows(name):
    fun, args = WAYS[name]
    for batch in (512, 513):
        shapes = [tuple(batch if size == BATCH else size for size in x.shape) for x in args]
        structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        if batch == 513:
            assert_stays(fun, *structs)
        else:
            assert products(traced(fun, *structs)[1].jaxpr) == (0, 1)


@pytest.mark.parametrize("name", WAYS)
def test_sizes_that_are_symbols(name):
    fun, args = WAYS[name]
    (batch,) = jax.export.symbolic_shape("b")
    shapes = [tuple(batch if size == BATCH else size for size in x.shape) for x in args]
    assert_stays(fun, *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes))


def test_a_size_in_the_body_that_is_a_symbol():
    (batch,) = jax.export.symbolic_shape("b")
    ones = jax.ShapeDtypeStruct((batch, WIDTH), jnp.float32)

    def fun(xs, begin, x):
        def step(c, row):
            z = jnp.broadcast_to(row, x.shape)
            return c + z.T @ jnp.sin(z), None

        return lax.scan(step, begin, xs)[0]

    assert_stays(fun, rows(WIDTH), array(WIDTH, WIDTH), ones)


def test_a_length_that_is_a_symbol():
    (length,) = jax.export.symbolic_shape("t")
    xs, w, h = WAYS["before"][1]
    assert_stays(before, jax.ShapeDtypeStruct((length, *xs.shape[1:]), xs.dtype), w, h)


def test_memory(monkeypatch):
    """`before` stacks LENGTH x BATCH x INNER floats more, `after` and `sums` no more than the scan does already."""
    monkeypatch.setattr(hoisted_products, "_LEAST_BYTES", 0)
    fun, args = WAYS["before"]
    assert_stays(fun, *args)
    for name in ("after", "sums"):
        assert products(traced(*(WAYS[name][0], *WAYS[name][1]))[1].jaxpr) == (0, 1)
    for most, is_hoisted in ((4 * LENGTH * BATCH * INNER - 1, False), (4 * LENGTH * BATCH * INNER, True)):
        monkeypatch.setattr(hoisted_products, "_LEAST_BYTES", most)
        assert products(traced(fun, *args)[1].jaxpr) == ((0, 1) if is_hoisted else (1, 0))


def test_memory_is_that_of_all_products_together(monkeypatch):
    def fun(xs, w, h):
        v = 2 * w
        return lax.scan(lambda h, x: (jnp.tanh(x @ w + (x @ v) * h), None), h, xs)[0]

    of_one = 4 * LENGTH * BATCH * INNER
    for most, inside in ((of_one - 1, 2), (of_one, 1), (2 * of_one - 1, 1), (2 * of_one, 0)):
        monkeypatch.setattr(hoisted_products, "_LEAST_BYTES", most)
        assert products(traced(fun, *WAYS["before"][1])[1].jaxpr) == (inside, 2 - inside)


def test_memory_of_a_conversion_in_front(monkeypatch):
    def fun(xs, w, h):
        return lax.scan(lambda h, x: (jnp.tanh(x.astype(jnp.float32) @ w + h), None), h, xs)[0]

    xs, w, h = WAYS["before"][1]
    needed = 4 * LENGTH * BATCH * (INNER + WIDTH)
    for most, inside in ((needed - 1, 1), (needed, 0)):
        monkeypatch.setattr(hoisted_products, "_LEAST_BYTES", most)
        assert products(traced(fun, xs.astype(jnp.bfloat16), w, h)[1].jaxpr) == (inside, 1 - inside)


def test_memory_of_what_a_product_reads_twice(monkeypatch):
    def fun(xs, begin):
        def step(c, x):
            z = jnp.tanh(x.astype(jnp.float32))
            return c + z.T @ z, None

        return lax.scan(step, begin, xs)[0]

    needed = 4 * LENGTH * BATCH * WIDTH
    xs = rows(BATCH, WIDTH).astype(jnp.bfloat16)  # half as many bytes are stacked already
    for most, inside in ((needed - 1, 1), (needed, 0)):
        monkeypatch.setattr(hoisted_products, "_LEAST_BYTES", most)
        assert products(traced(fun, xs, array(WIDTH, WIDTH))[1].jaxpr) == (inside, 1 - inside)


def test_memory_of_the_smaller_of_a_value_and_what_it_was_converted_to(monkeypatch):
    def fun(xs, w, h):
        def step(h, x):
            h = jnp.tanh(x + h)
            return h, h.astype(jnp.bfloat16) @ w.astype(jnp.bfloat16)

        return lax.scan(step, h, xs)

    _, new = traced(fun, *WAYS["after"][1])
    (scan,) = scans(new.jaxpr)
    assert scan.outvars[-1].aval.dtype == jnp.bfloat16


# --------------------------------------------------------------------------------------------------- dtypes of sums


def summed(made, carried, precision=None, of_operands=jnp.bfloat16):
    """A sum of products of 16 bits, which are made in one type and added up in another."""

    def fun(xs, zs, begin):
        def step(c, x):
            y = jnp.matmul(x[0].T, x[1], precision=precision, preferred_element_type=made)
            return c + y.astype(carried), None

        return lax.scan(step, begin, (xs, zs))[0]

    xs, zs, begin = WAYS["sums"][1]
    return fun, (xs.astype(of_operands), zs.astype(of_operands), begin.astype(carried))


@pytest.mark.parametrize(("made", "carried", "of_sum"), [
    ("bfloat16", "bfloat16", "bfloat16"),
    ("bfloat16", "float32", "float32"),
    ("float32", "bfloat16", "float32"),
    ("float32", "float32", "float32"),
])  # fmt: skip
def test_the_type_of_a_sum(made, carried, of_sum):
    fun, args = summed(made, carried)
    new = assert_hoisted(fun, *args, inside=0, outside=1)
    (product,) = filter(is_product, new.jaxpr.eqns)
    assert product.params["preferred_element_type"] == product.outvars[0].aval.dtype == of_sum
    conversions = [one.primitive.name for one in new.jaxpr.eqns].count("convert_element_type")
    assert conversions == (of_sum != carried)


def test_a_sum_is_rounded_once():
    """Of many small numbers bf16 loses each, once it is large."""
    ones = jnp.ones((1024, 1, 4), jnp.bfloat16)

    def fun(xs):
        return lax.scan(lambda c, x: (c + x.T @ x, None), jnp.zeros((4, 4), jnp.bfloat16), xs)[0]

    closed, new = traced(fun, ones)
    assert products(new.jaxpr) == (0, 1)
    assert float(results(closed, ones)[0][0, 0]) == 256
    assert float(results(new, ones)[0][0, 0]) == 1024


def test_a_sum_that_would_be_rounded_more_often():
    with jax.enable_x64(True):
        fun, args = summed(jnp.float32, jnp.float64)
        assert_stays(fun, *args)
    assert_stays(*_flat(summed(jnp.float16, jnp.bfloat16, of_operands=jnp.float16)))


def test_the_type_of_a_sum_is_that_of_its_algorithm():
    algorithm = lax.DotAlgorithm(jnp.bfloat16, jnp.bfloat16, jnp.bfloat16)
    for precision in (algorithm, lax.DotAlgorithmPreset.BF16_BF16_F32):
        args = WAYS["sums"][1]

        def step(c, x, precision=precision):
            y = lax.dot(x[0].T, x[1], precision=precision, preferred_element_type=jnp.bfloat16)
            return c + y.astype(jnp.float32), None

        def fun(xs, zs, begin, step=step):
            return lax.scan(step, begin, (xs.astype(jnp.bfloat16), zs.astype(jnp.bfloat16)))[0]

        assert_stays(fun, *args)


def _flat(pair):
    return pair[0], *pair[1]


def test_a_carry_of_a_weak_type_stays():
    """It is one of numbers, whose products by numbers are weak, too."""
    closed = jax.make_jaxpr(lambda xs, zs: sums(xs, zs, jnp.zeros((WIDTH, INNER))))(*WAYS["sums"][1][:2])
    (scan,) = scans(closed.jaxpr)
    body = body_of(scan.params["jaxpr"])
    (product,) = filter(is_product, body.eqns)
    assert hoisted_products._dtype_of_sum(product, [], body.invars[0].aval) == jnp.float32
    assert hoisted_products._dtype_of_sum(product, [], body.invars[0].aval.update(weak_type=True)) is None
