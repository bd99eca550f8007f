"""A product and what stands behind it: which equations a chain takes, what they become, and what that computes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name

import jax_moye
from jax_moye._api.options import Options
from jax_moye._primitives.chains import chain_from
from jax_moye._primitives.patterns import Program

M, K, N = 24, 40, 32
SHAPES = {"x": (M, K), "w": (K, N), "b": (N,), "r": (M, N), "p": (N, M), "m": (M, M), "h": (4, M, K), "s": (4, M, M)}
SHAPES |= {"W": (K, 4, 8), "B": (4, 8), "H": (4, 1), "e": (4, K, N), "l": (4, N), "o": (4, 1, K), "q": (4, 1, N)}
SHAPES |= {"v": (M,), "a": (4, M), "t": (4, 1, M)}
CONTRACT, REWRITTEN = "jax_moye_contract", "jax_moye_rewritten"


def chains_of(fun, *structs):
    """Of each product of a program, the names of the equations that its chain takes, and the equation they become."""
    jaxpr = jax.make_jaxpr(fun)(*structs).jaxpr
    program, found = Program(jaxpr.eqns, jaxpr.outvars), []
    for index in range(len(jaxpr.eqns)):
        chain = chain_from(program, index, Options().parameters())
        if chain is not None:
            program.taken.update(chain.members)
            names = [jaxpr.eqns[member].primitive.name for member in chain.members]
            found.append((names, chain.equation(program)))
    return found


def structs(names, dtype=jnp.bfloat16, wide=""):
    """Of operands by their letters; those of `wide` are f32."""
    return [jax.ShapeDtypeStruct(SHAPES[name], jnp.float32 if name in wide else dtype) for name in names]


def summary(equation):
    """(spec, alpha, beta, operands, activation) of what became of a chain."""
    params = equation.params
    if equation.primitive.name == CONTRACT:
        assert equation.invars[2:] == equation.invars[2 : 2 + (params["beta"] != 0)]
        return params["spec"], 1.0, params["beta"], ("c",) * (params["beta"] != 0), "none"
    epilogue = params["epilogue"]
    names = tuple(name for name, _ in epilogue.operands)
    return params["spec"], epilogue.alpha, epilogue.beta, names, epilogue.activation


# Numbers that bfloat16 and float32 hold.
LR, MOMENTUM = 0.1015625, 0.8984375


def product(x, w):
    return lax.dot_general(x, w, (((x.ndim - 1,), (0,)), ((), ())))


def wide_product(x, w):
    return lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.promote_types(x.dtype, "float32"))


def scores(h):
    return lax.dot_general(h, h, (((2,), (2,)), ((0,), (0,))))


def of_each(h, e):
    """A layer for each of a batch."""
    return lax.dot_general(h, e, (((2,), (1,)), ((0,), (0,))))


def rounded(y):
    """To the type that it has, which changes nothing: a policy of jax.checkpoint does so with what it saves."""
    return lax.reduce_precision(y, jnp.finfo(y.dtype).nexp, jnp.finfo(y.dtype).nmant)


# name -> (operands, those in f32, function, equations taken, summary)
CHAINS = {
    "a bias of two dimensions": (
        "xWB",
        "",
        lambda x, w, b: product(x, w) + b,
        ["add"],
        ("mk,kna->mna", 1, 0, ("bias",), "none"),
    ),
    "scaled, a bias of two dimensions, relu": (
        "xWB",
        "",
        lambda x, w, b: jax.nn.relu(LR * product(x, w) + b[None]),
        None,
        ("mk,kna->mna", LR, 0, ("bias",), "relu"),
    ),
    "a bias of two dimensions, one in front": (
        "xWB",
        "",
        lambda x, w, b: product(x, w).transpose(1, 0, 2) + b[:, None],
        ["transpose", "add"],
        ("mk,kna->nma", 1, 0, ("bias",), "none"),
    ),
    "layers, each with a bias": (
        "hel",
        "",
        lambda h, e, b: jax.nn.relu(jax.vmap(lambda x, w, b: x @ w + b)(h, e, b)),
        None,
        ("bmk,bkn->bmn", 1, 0, ("bias",), "relu"),
    ),
    "another array and a bias behind it": (
        "xwrb",
        "",
        lambda x, w, r, b: r + product(x, w) + b,
        ["add", "add"],
        ("mk,kn->mn", 1, 1, ("c", "bias"), "none"),
    ),
    "another array, a bias and relu": (
        "xwrb",
        "",
        lambda x, w, r, b: jax.nn.relu(r + product(x, w) + b),
        None,
        ("mk,kn->mn", 1, 1, ("c", "bias"), "relu"),
    ),
    "another array and silu": (
        "xwr",
        "",
        lambda x, w, r: (lambda z: z * jax.nn.sigmoid(z))(product(x, w) + r),
        None,
        ("mk,kn->mn", 1, 1, ("c",), "silu"),
    ),
    "a bias, transposed": (
        "xwb",
        "",
        lambda x, w, b: (product(x, w) + b).T,
        ["add", "transpose"],
        ("mk,kn->nm", 1, 0, ("bias",), "none"),
    ),
    "a bias and relu, transposed": (
        "xwb",
        "",
        lambda x, w, b: jnp.maximum(product(x, w) + b, 0).T,
        ["add", "max", "transpose"],
        ("mk,kn->nm", 1, 0, ("bias",), "relu"),
    ),
    "a vector less": ("xwb", "", lambda x, w, b: product(x, w) - b, None, ("mk,kn->mn", 1, -1, ("c",), "none")),
    "a column": ("xwv", "", lambda x, w, v: product(x, w) + v[:, None], None, ("mk,kn->mn", 1, 1, ("c",), "none")),
    "a column and relu": (
        "xwv",
        "",
        lambda x, w, v: jax.nn.relu(v[:, None] - product(x, w)),
        None,
        ("mk,kn->mn", -1, 1, ("c",), "relu"),
    ),
    "scores and a row of each of a batch": (
        "ha",
        "",
        lambda h, a: scores(h) * 0.125 + a[:, None],
        None,
        ("bmk,bnk->bmn", 0.125, 0, ("bias",), "none"),
    ),
    "a vector of heads": (
        "xWH",
        "",
        lambda x, w, h: product(x, w) + h,
        ["add"],
        ("mk,kna->mna", 1, 1, ("c",), "none"),
    ),
    "a bias, relu and a column": (
        "xwbv",
        "",
        lambda x, w, b, v: jax.nn.relu(product(x, w) + b) + v[:, None],
        None,
        ("mk,kn->mn", 1, 0, ("bias", "residual"), "relu"),
    ),
    "squares of distances": (
        "xwvb",
        "",
        lambda x, w, v, b: v[:, None] + b - 2 * product(x, w),
        None,
        ("mk,kn->mn", -2, 1, ("c", "bias"), "none"),
    ),
    "squares of distances, in another order": (
        "xwvb",
        "",
        lambda x, w, v, b: jnp.maximum(b[None, :] - 2 * product(x, w) + v[:, None], 0),
        None,
        ("mk,kn->mn", -2, 1, ("c", "bias"), "relu"),
    ),
    "a bias, another array and relu": (
        "xwrb",
        "",
        lambda x, w, r, b: jax.nn.relu((product(x, w) + b) + r),
        None,
        ("mk,kn->mn", 1, 1, ("c", "bias"), "relu"),
    ),
    "a bias less": (
        "xwrb",
        "",
        lambda x, w, r, b: b - (0.5 * product(x, w) + r),
        None,
        ("mk,kn->mn", -0.5, -1, ("c", "bias"), "none"),
    ),
    "less a multiple of another array, and a bias": (
        "xwrb",
        "",
        lambda x, w, r, b: (product(x, w) - r * LR) + b,
        ["sub", "mul", "add"],
        ("mk,kn->mn", 1, -LR, ("c", "bias"), "none"),
    ),
    "an array of one row of each of a batch": (
        "oeq",
        "",
        lambda h, e, q: of_each(h, e) + q,
        ["add"],
        ("bmk,bkn->bmn", 1, 1, ("c",), "none"),
    ),
    "a name in front of a bias": (
        "xwb",
        "",
        lambda x, w, b: checkpoint_name(product(x, w), "y") + b,
        ["name", "add"],
        ("mk,kn->mn", 1, 0, ("bias",), "none"),
    ),
    "a name in front of a residual": (
        "xwr",
        "",
        lambda x, w, r: r + checkpoint_name(product(x, w), "y"),
        ["name", "add"],
        ("mk,kn->mn", 1, 1, ("c",), "none"),
    ),
    "rounded to its type, relu": (
        "xw",
        "",
        lambda x, w: jax.nn.relu(rounded(checkpoint_name(product(x, w), "y"))),
        None,
        ("mk,kn->mn", 1, 0, (), "relu"),
    ),
    "transposed": ("xw", "", lambda x, w: product(x, w).T, ["transpose"], ("mk,kn->nm", 1, 0, (), "none")),
    "transposed and added": (
        "xwp",
        "",
        lambda x, w, p: p + product(x, w).T,
        ["transpose", "add"],
        ("mk,kn->nm", 1, 1, ("c",), "none"),
    ),
    "scaled": ("xw", "", lambda x, w: product(x, w) * LR, ["mul"], ("mk,kn->mn", LR, 0, (), "none")),
    "scaled by an array of one number": (
        "xw",
        "",
        lambda x, w: (lambda y: y * lax.full_like(y, LR))(product(x, w)),
        ["mul"],
        ("mk,kn->mn", LR, 0, (), "none"),
    ),
    "scaled twice and negated": (
        "xw",
        "",
        lambda x, w: -(0.5 * product(x, w) * LR),
        ["mul", "mul", "neg"],
        ("mk,kn->mn", -0.5 * LR, 0, (), "none"),
    ),
    "divided by a power of two": (
        "h",
        "",
        lambda h: scores(h) / 8,
        ["div"],
        ("bmk,bnk->bmn", 0.125, 0, (), "none"),
    ),
    "scores, a number and a mask": (
        "hs",
        "",
        lambda h, s: scores(h) * 0.125 + s,
        ["mul", "add"],
        ("bmk,bnk->bmn", 0.125, 1, ("c",), "none"),
    ),
    "an update": (
        "xwr",
        "",
        lambda x, w, r: r - LR * product(x, w),
        ["mul", "sub"],
        ("mk,kn->mn", -LR, 1, ("c",), "none"),
    ),
    "an update by a transposed gradient": (
        "xwp",
        "",
        lambda x, w, p: p - LR * product(x, w).T,
        ["transpose", "mul", "sub"],
        ("mk,kn->nm", -LR, 1, ("c",), "none"),
    ),
    "an update of f32 by a gradient of bf16": (
        "xwp",
        "p",
        lambda x, w, p: p - LR * product(x, w).T.astype(p.dtype),
        ["transpose", "convert_element_type", "mul", "sub"],
        ("mk,kn->nm", -LR, 1, ("c",), "none"),
    ),
    "a sum in f32 of gradients of bf16": (
        "xwr",
        "r",
        lambda x, w, r: r + product(x, w).astype(r.dtype),
        ["convert_element_type", "add"],
        ("mk,kn->mn", 1, 1, ("c",), "none"),
    ),
    "a sum in f32 of products of f32": (
        "xwr",
        "r",
        lambda x, w, r: r + wide_product(x, w),
        ["add"],
        ("mk,kn->mn", 1, 1, ("c",), "none"),
    ),
    "momentum": (
        "xwr",
        "",
        lambda x, w, r: MOMENTUM * r + product(x, w),
        ["add", "mul"],
        ("mk,kn->mn", 1, MOMENTUM, ("c",), "none"),
    ),
    "a moving average": (
        "xwr",
        "",
        lambda x, w, r: MOMENTUM * r + LR * product(x, w),
        ["mul", "add", "mul"],
        ("mk,kn->mn", LR, MOMENTUM, ("c",), "none"),
    ),
    "less an array": (
        "xwr",
        "",
        lambda x, w, r: product(x, w) - r,
        ["sub"],
        ("mk,kn->mn", 1, -1, ("c",), "none"),
    ),
    "scaled, less a scaled array": (
        "xwr",
        "",
        lambda x, w, r: LR * product(x, w) - MOMENTUM * r,
        ["mul", "sub", "mul"],
        ("mk,kn->mn", LR, -MOMENTUM, ("c",), "none"),
    ),
    "scaled, bias, silu, residual": (
        "xwbr",
        "",
        lambda x, w, b, r: r + (lambda z: z * jax.nn.sigmoid(z))(product(x, w) * LR + b),
        None,
        ("mk,kn->mn", LR, 0, ("bias", "residual"), "silu"),
    ),
    "narrower, transposed, scaled, relu": (
        "xw",
        "",
        lambda x, w: jnp.maximum((wide_product(x, w).astype(x.dtype) * LR).T, 0),
        ["convert_element_type", "mul", "transpose", "max"],
        ("mk,kn->nm", LR, 0, (), "relu"),
    ),
    "wider and narrower again": (
        "xw",
        "",
        lambda x, w: (product(x, w).astype(jnp.promote_types(x.dtype, "float32")) * LR).astype(x.dtype),
        ["convert_element_type", "mul", "convert_element_type"],
        ("mk,kn->mn", LR, 0, (), "none"),
    ),
    "a bias in f32": (
        "xwb",
        "b",
        lambda x, w, b: product(x, w).astype(b.dtype) + b,
        None,
        ("mk,kn->mn", 1, 0, ("bias",), "none"),
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_what_a_chain_takes(name):
    letters, wide, fun, taken, expected = CHAINS[name]
    ((names, equation),) = chains_of(fun, *structs(letters, wide=wide))
    assert names[0] == "dot_general"
    assert taken is None or names[1:] == taken
    assert summary(equation) == expected
    of_xla = expected[1] == 1 and set(expected[3]) <= {"c"} and expected[4] == "none"
    of_xla = of_xla and not {"convert_element_type", "name"} & set(names)
    of_xla = of_xla and not {"b", "v", "H"} & set(letters)  # which are the same along some dimensions
    assert equation.primitive.name == (CONTRACT if of_xla else REWRITTEN)


@pytest.mark.parametrize("name", CHAINS)
def test_the_kernel_rounds_once(name, rng):
    """Each element is within half a step of the result's type, but for sums in f32: no second rounding would be."""
    letters, wide, fun, _, _ = CHAINS[name]
    operands = [jnp.asarray(rng.normal(size=struct.shape) / 4, struct.dtype) for struct in structs(letters, wide=wide)]
    with jax_moye.options(interpret=True):
        program = jax.jit(jax_moye.optimize(fun))
        text = program.lower(*operands).as_text()
        assert text.count("custom_call @jax_moye_") == 1
        assert not any(f"stablehlo.{name}" in text for name in ("dot", "add", "sub", "mul", "div", "trans", "max"))
        result = program(*operands)
    assert result.dtype == jax.eval_shape(fun, *operands).dtype
    with jax.enable_x64(True):
        doubles = [np.asarray(x, np.float64) for x in operands]
        exact = np.asarray(fun(*doubles))
        size = np.abs(exact) + np.abs(fun(*map(np.abs, doubles))) + 8
    bits = 8 if result.dtype == jnp.bfloat16 else 24
    half_a_step = np.exp2(np.frexp(exact)[1] - 1 - bits)
    assert (np.abs(np.asarray(result, np.float64) - exact) <= half_a_step + 2.0**-20 * size).all()


@pytest.mark.parametrize("name", CHAINS)
def test_without_a_kernel_it_is_the_program(name, rng):
    letters, wide, fun, _, _ = CHAINS[name]
    operands = [jnp.asarray(rng.normal(size=struct.shape) / 4, struct.dtype) for struct in structs(letters, wide=wide)]
    np.testing.assert_array_equal(jax.jit(jax_moye.optimize(fun))(*operands), jax.jit(fun)(*operands))


@pytest.mark.parametrize("name", CHAINS)
def test_derivatives_and_maps(name, rng):
    letters, _, fun, _, _ = CHAINS[name]
    operands = [jnp.asarray(rng.normal(size=SHAPES[letter]) / 4, jnp.float32) for letter in letters]
    total = lambda f: lambda *x: (f(*x) ** 2).sum()  # noqa: E731
    optimized = jax_moye.optimize(fun)
    every = tuple(range(len(operands)))
    for got, expected in zip(*(jax.grad(total(f), every)(*operands) for f in (optimized, fun)), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)
    batch = jnp.stack([operands[0], 2 * operands[0]])
    got, expected = (jax.vmap(f, (0, *[None] * (len(operands) - 1)))(batch, *operands[1:]) for f in (optimized, fun))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


NOT_TAKEN = {
    "a number that nobody knows": ("xwr", lambda x, w, r: product(x, w) * r[0, 0], ["dot_general"]),
    "a division that is no multiplication": ("xw", lambda x, w: product(x, w) / 3, ["dot_general"]),
    "a division by the product": ("xw", lambda x, w: 8 / product(x, w), ["dot_general"]),
    "zero": ("xw", lambda x, w: product(x, w) * 0.0, ["dot_general"]),
    "infinity": ("xw", lambda x, w: product(x, w) * jnp.inf, ["dot_general"]),
    "a scalar times numbers": ("xw", lambda x, w: product(x[0], w[:, 0]) * jnp.full(3, 2, x.dtype), ["dot_general"]),
    "relu of a scalar and zeros": (
        "xw",
        lambda x, w: jnp.maximum(product(x[0], w[:, 0]), jnp.zeros(3, x.dtype)),
        ["dot_general"],
    ),
    "a number in f32": ("xw", lambda x, w: product(x, w) * jnp.float32(0.5), ["dot_general"]),
    "a transpose that is not alone": ("xw", lambda x, w: (lambda y: (y.T, y + 1))(product(x, w)), ["dot_general"]),
    "a conversion to a wider type": ("xw", lambda x, w: product(x, w).astype(jnp.float32), ["dot_general"]),
    "a wider type times a number": ("xw", lambda x, w: product(x, w).astype(jnp.float32) * 0.5, ["dot_general"]),
    "an integer": ("xw", lambda x, w: product(x, w).astype(jnp.int32), ["dot_general"]),
    "8 bits": ("xw", lambda x, w: product(x, w).astype(jnp.float8_e4m3fn), ["dot_general"]),
    "what a callback alone reads": (
        "xw",
        lambda x, w: jax.debug.callback(lambda y: None, product(x, w)),
        ["dot_general"],
    ),
    "the product twice": ("xw", lambda x, w: (lambda y: y - y)(product(x, w)), ["dot_general"]),
    "a number plus": ("xw", lambda x, w: product(x, w) + 1, ["dot_general"]),
    "a transpose behind a sum": ("xwr", lambda x, w, r: (product(x, w) + r).T, ["dot_general", "add"]),
    "a number behind a bias": ("xwb", lambda x, w, b: (product(x, w) + b) * 0.5, None),
    "an array that XLA computes in the sum": ("xwr", lambda x, w, r: jnp.sin(r) - product(x, w), ["dot_general"]),
    "a residual that XLA computes in the sum": (
        "xwbr",
        lambda x, w, b, r: jax.nn.relu(product(x, w) + b) + jnp.sin(r),
        None,
    ),
    "a sum that XLA computes in what reads it": ("xwr", lambda x, w, r: (product(x, w) + r) * r, ["dot_general"]),
    "a residual less": ("xwr", lambda x, w, r: jax.nn.relu(product(x, w)) - r, None),
    "a name": ("xw", lambda x, w: checkpoint_name(product(x, w), "y"), ["dot_general"]),
    "a name and a transpose": ("xw", lambda x, w: checkpoint_name(product(x, w), "y").T, ["dot_general"]),
    "a rounding": ("xw", lambda x, w: jax.nn.relu(lax.reduce_precision(product(x, w), 8, 5)), ["dot_general"]),
    "a residual from which": ("xwr", lambda x, w, r: r - jax.nn.relu(product(x, w)), None),
}


@pytest.mark.parametrize(
    ("letters", "fun", "operands"),
    [
        ("xwr", lambda x, w, r: (product(x, w) + r[:, :1]) * r, ("c",)),  # small: reading it costs nothing
        ("xwbr", lambda x, w, b, r: (jax.nn.relu(product(x, w) + b) + r) * r, ("bias",)),
        ("xwr", lambda x, w, r: jax.nn.relu(product(x, w) + (r[:, :1] + r[:1])) * r, ("c", "bias")),
    ],
    ids=["a column", "a residual", "a column and a row"],
)
def test_what_a_kernel_adds_where_elements_alone_read_the_sum(letters, fun, operands):
    ((_, equation),) = chains_of(fun, *structs(letters))
    assert summary(equation)[3] == operands


def test_a_sum_that_another_products_kernel_reads_stays_a_kernels():
    """Whichever of them stands first: none waits for the other."""
    y = lambda x, w, b, r: (product(x, w) + r) + jax.nn.relu(product(x, w) + b)  # noqa: E731
    z = lambda x, w, b, r: jax.nn.relu(product(x, w) + b) + (product(x, w) + r)  # noqa: E731
    for fun in (y, z):
        found = [summary(equation)[3] for _, equation in chains_of(fun, *structs("xwbr"))]
        assert sorted(found, key=len) == [("c",), ("bias", "residual")]


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_where_a_chain_ends(name):
    letters, fun, expected = NOT_TAKEN[name]
    ((names, equation),) = chains_of(fun, *structs(letters))
    assert expected is None or names == expected
    if expected is None:
        assert not {"mul", "sub", "sin"} & set(names)
        assert "residual" not in summary(equation)[3]
        assert equation.primitive.name == REWRITTEN


def test_a_chain_begins_with_a_product_of_ours_too():
    """What somebody asked jax_moye to multiply, and `intercept` makes."""
    fun = lambda x, w, b: jax.nn.relu(jax_moye.matmul(x, w) + b)  # noqa: E731
    ((names, equation),) = chains_of(fun, *structs("xwb"))
    assert names[0] == CONTRACT
    assert summary(equation) == ("mk,kn->mn", 1, 0, ("bias",), "relu")
    transposed = lambda x, w: jax_moye.einsum("mk,kn->nm", x, w) * 0.5  # noqa: E731
    ((_, equation),) = chains_of(transposed, *structs("xw"))
    assert summary(equation) == ("mk,kn->nm", 0.5, 0, (), "none")

    def of(**options):
        return chains_of(lambda x, w, b: jax_moye.matmul(x, w, **options) + b, *structs("xwb"))

    ((_, equation),) = of(batch_invariant=True)
    assert equation.params["batch_invariant"]
    assert of(implementation="xla") == []  # whoever asks for XLA, or for a config, gets it
    assert of(config=jax_moye.configs()[0].name) == []
    assert chains_of(lambda x, w: jax_moye.matmul(x, w), *structs("xw")) == []  # it is one already
    assert chains_of(lambda x, w: product(x, w), *structs("xw")) != []


def test_a_transpose_stays_where_it_makes_a_product_several():
    """Under a contract it would be an error: more than one matrix multiplication."""

    def fun(order):
        return lambda x, w: jnp.transpose(jnp.einsum("abcdek,kn->abcden", x, w), order)

    x, w = jnp.ones((2, 3, 2, 3, 2, 16), jnp.bfloat16), jnp.ones((16, 8), jnp.bfloat16)
    for order, taken in (((4, 3, 2, 1, 0, 5), []), ((5, 0, 1, 2, 3, 4), ["transpose"])):
        ((names, _),) = chains_of(fun(order), x, w)
        assert names == ["dot_general", *taken]
        with jax_moye.options(implementation="moye", interpret=True):
            result = jax.jit(jax_moye.optimize(fun(order)))(x, w)
        np.testing.assert_array_equal(result, fun(order)(x, w))


def test_a_product_of_other_types_is_none_of_ours():
    def of(dtype):
        return chains_of(product, *structs("xw", dtype))

    assert of(jnp.int32) == of(jnp.complex64) == []
    weak = lambda x: lax.dot_general(x, jax.jit(lambda: 2.0)() * jnp.ones(K), (((1,), (0,)), ((), ())))  # noqa: E731
    assert len(chains_of(weak, *structs("x"))) == 1


def test_what_several_chains_want_is_of_one():
    """A product times a number, added to another product times a number."""
    fun = lambda x, w: 0.5 * product(x, w) + 0.25 * product(2 * x, w)  # noqa: E731
    (one, first), (other, second) = chains_of(fun, *structs("xw"))
    assert sorted([*one, *other]) == ["add", "dot_general", "dot_general", "mul", "mul"]
    assert summary(first) == ("mk,kn->mn", 0.5, 0.25, ("c",), "none")
    assert summary(second) == ("mk,kn->mn", 1, 0, (), "none")


def test_explain_says_what_the_kernel_takes_in():
    def of(name):
        letters, wide, fun, _, _ = CHAINS[name]
        (gemm,) = jax_moye.explain(jax_moye.optimize(fun), *structs(letters, wide=wide), device="h200")
        return gemm.what, gemm.epilogue

    assert of("an update by a transposed gradient")[1] == "c, alpha=-0.101562"
    assert of("an update by a transposed gradient")[0].startswith("mk,kn->nm on")
    assert of("a moving average")[1] == "c, alpha=0.101562, beta=0.898438"
    assert of("scaled")[1] == "alpha=0.101562"
    assert of("momentum")[0].endswith("plus 0.8984375 c into bfloat16")
    assert of("less an array")[0].endswith("plus -1.0 c into bfloat16")
