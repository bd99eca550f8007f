"""The primitive under JAX's transformations: right values, one kernel call, no transpose."""

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads
from python.support import custom_calls, data_movements, kernel_calls, lowered_text

import jax_moye
from jax_moye._primitives.contraction import contract, contract_p

matmul = functools.partial(jax_moye.matmul, implementation="moye", interpret=True)

SPECS = [
    "mk,kn->mn",
    "km,kn->mn",
    "mk,nk->mn",
    "km,kn->nm",
    "bmk,bkn->bmn",
    "bmk,kn->bmn",
    "mk,bkn->bmn",
    "mk,bkn->mbn",
    "bmk,kn->mbn",
    "k,k->",
    "mk,k->m",
    "k,kn->n",
    "m,n->nm",
    "b,b->b",
    "mk,lk->lm",
    "bmn,bmk->kn",
    "abmk,bakn->ambn",
    "ambk,anbk->abmn",
]
MORE_THAN_ONE_PRODUCT = ["abcdmk,dcbakn->abcdmn", "mabk,kbn->amn"]
SIZES = dict(a=2, b=3, c=2, d=3, m=4, n=5, k=6, l=7)


def contraction(spec, dtype=np.float32, implementation="moye"):
    """contract as a function of its operands."""
    return functools.partial(
        contract,
        spec,
        out_dtype=dtype,
        precision=None,
        out_sharding=None,
        config=None,
        implementation=implementation,
        interpret=jax_moye.InterpretParams(),
    )


def operands(spec, rng, dtype=np.float32):
    names = spec.partition("->")[0].split(",")
    return [jnp.asarray(rng.standard_normal([SIZES[label] for label in labels]), dtype) for labels in names]


close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spec", SPECS)
def test_one_kernel_computes(rng, spec):
    x, y = operands(spec, rng)
    fun = contraction(spec)
    close(jax.jit(fun)(x, y), jnp.einsum(spec, x, y))
    assert kernel_calls(fun, x, y) == 1
    assert data_movements(fun, x, y) == []


@pytest.mark.parametrize("spec", MORE_THAN_ONE_PRODUCT)
def test_more_than_one_product_goes_to_xla(rng, spec):
    x, y = operands(spec, rng)
    fun = contraction(spec, implementation=None)
    assert kernel_calls(fun, x, y) == 0
    close(jax.jit(fun)(x, y), jnp.einsum(spec, x, y))
    with pytest.raises(NotImplementedError, match="more than one matrix multiplication"):
        contraction(spec)(x, y)


@pytest.mark.parametrize("spec", SPECS)
def test_check_grads(rng, spec):
    with jax.enable_x64(True):
        order = 3 if spec in ("mk,kn->mn", "bmk,kn->bmn", "k,k->") else 2
        # The gradient of what is broadcast over the batch sums over two dimensions at once: XLA's.
        fun = contraction(spec, np.float64, implementation=None)
        check_grads(fun, operands(spec, rng, np.float64), order=order, modes=["fwd", "rev"])


@pytest.mark.parametrize("spec", ["mk,kn->mn", "bmk,kn->bmn", "mk,k->m"])
def test_derivatives(rng, spec):
    x, y = operands(spec, rng)
    ref = lambda x, y: jnp.sin(jnp.einsum(spec, x, y)).sum()  # noqa: E731
    our = lambda x, y: jnp.sin(contraction(spec)(x, y)).sum()  # noqa: E731
    for argnum in (0, 1):
        expected = jax.grad(ref, argnum)(x, y)
        close(jax.grad(our, argnum)(x, y), expected)
        close(jax.jit(jax.grad(our, argnum))(x, y), expected)
        close(jax.grad(jax.checkpoint(our), argnum)(x, y), expected)
    _, linear = jax.linearize(our, x, y)
    close(linear(x, y), jax.jvp(ref, (x, y), (x, y))[1])
    second = lambda f: jax.jvp(jax.grad(f), (x, y), (x, y))[1]  # noqa: E731
    close(second(our), second(ref), rtol=1e-3, atol=1e-3)
    close(jax.hessian(our)(x, y), jax.hessian(ref)(x, y), rtol=1e-3, atol=1e-3)
    out = jnp.ones_like(jnp.einsum(spec, x, y))
    transposed = jax.linear_transpose(functools.partial(contraction(spec), x), y)
    close(transposed(out)[0], jax.vjp(functools.partial(jnp.einsum, spec, x), y)[1](out)[0])


def test_gradients_have_the_operands_dtype_and_no_copy(rng):
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((32, 64), (64, 48)))
    vjp = lambda x, w, out_bar: jax.vjp(matmul, x, w)[1](out_bar)  # noqa: E731
    out_bar = jnp.ones((32, 48), jnp.bfloat16)
    jaxpr = str(jax.make_jaxpr(vjp)(x, w, out_bar))
    assert "transpose" not in jaxpr
    assert "convert" not in jaxpr
    assert "spec=mn,kn->mk" in jaxpr
    assert "spec=mn,mk->kn" in jaxpr  # the cotangent first, as lax has it
    assert kernel_calls(vjp, x, w, out_bar) == 2
    assert data_movements(vjp, x, w, out_bar) == []
    assert [g.dtype for g in vjp(x, w, out_bar)] == [jnp.bfloat16] * 2


def test_gradient_of_an_f32_result_of_bf16_operands(rng):
    x, w = (jnp.asarray(rng.standard_normal(shape), jnp.bfloat16) for shape in ((8, 16), (16, 4)))
    loss = lambda f: lambda x, w: jnp.sin(f(x, w, preferred_element_type=jnp.float32)).sum()  # noqa: E731
    ours, theirs = (jax.grad(loss(f), (0, 1))(x, w) for f in (matmul, jnp.matmul))
    for g, h in zip(ours, theirs, strict=True):
        assert g.dtype == h.dtype == jnp.bfloat16
        close(g.astype(np.float32), h.astype(np.float32), rtol=2**-7)


VMAP_AXES = [axes for axes in itertools.product([None, 0, 1, -1], repeat=2) if axes != (None, None)]


@pytest.mark.parametrize("spec", ["mk,kn->mn", "mk,k->m", "k,k->"])
@pytest.mark.parametrize("axes", VMAP_AXES, ids=str)
def test_vmap_in_every_position_is_one_kernel_call(rng, spec, axes):
    x, y = operands(spec, rng)

    def stack(z, axis):
        return z if axis is None else jnp.stack([z, 2 * z, 3 * z], axis)

    x, y = stack(x, axes[0]), stack(y, axes[1])
    out_ndim = len(spec.partition("->")[2])
    for out_axis in {0, out_ndim}:
        ours = jax.vmap(contraction(spec), axes, out_axis)
        theirs = jax.vmap(functools.partial(jnp.einsum, spec), axes, out_axis)
        close(jax.jit(ours)(x, y), theirs(x, y))
        assert kernel_calls(ours, x, y) == 1
    # A sum over two dimensions, the gradient of what is shared by the batch, goes to XLA where they do not merge.
    ours, theirs = (
        jax.vmap(f, axes) for f in (contraction(spec, implementation=None), functools.partial(jnp.einsum, spec))
    )
    grad = lambda f: jax.grad(lambda *z: jnp.sin(f(*z)).sum(), (0, 1))(x, y)  # noqa: E731
    for g, h in zip(grad(ours), grad(theirs), strict=True):
        close(g, h)


@pytest.mark.parametrize("axes", [(0, None), (None, 0), (0, 0), (1, None), (-1, 0)], ids=str)
def test_nested_vmap_is_one_equation(rng, axes):
    x, y = operands("mk,kn->mn", rng)
    stack = lambda z, axis: z if axis is None else jnp.stack([z, 2 * z], axis)  # noqa: E731
    inner_x, inner_y = stack(x, axes[0]), stack(y, axes[1])
    x, y = jnp.stack([inner_x, -inner_x]), jnp.stack([inner_y, inner_y + 1])
    ours = jax.vmap(jax.vmap(functools.partial(jax_moye.matmul, interpret=True), axes))
    close(ours(x, y), jax.vmap(jax.vmap(jnp.matmul, axes))(x, y))
    assert str(jax.make_jaxpr(ours)(x, y)).count("jax_moye_contract[") == 1


def integers(rng, dtype, *shape):
    """Their products and sums are exact, in bf16 up to a rounding."""
    return jnp.asarray(rng.integers(-2, 3, shape), dtype)


def attention(einsum):
    """Attention without its softmax, of queries (batch, time, head, channel): sums of products alone."""

    def run(q, k, v):
        return einsum("bhqk,bkhd->bqhd", einsum("bqhd,bkhd->bhqk", q, k), v)

    return run


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_attention_and_its_gradients_are_one_call_each(rng, dtype):
    """Two products forwards, four backwards; heads lie between the rows of a matrix, and nothing is transposed."""
    q, k, v = (integers(rng, dtype, 2, size, 3, 8) for size in (5, 7, 7))
    cotangent = integers(rng, dtype, 2, 5, 3, 8)
    kernels = functools.partial(jax_moye.einsum, implementation="moye", interpret=True)

    def both(einsum):
        def run(q, k, v, cotangent):
            out, vjp = jax.vjp(attention(einsum), q, k, v)
            return out, *vjp(cotangent)

        return run

    args = (q, k, v, cotangent)
    assert kernel_calls(both(kernels), *args) == 6
    assert data_movements(both(kernels), *args) == []
    with jax.enable_x64(True):
        exact = both(jnp.einsum)(*(x.astype(jnp.float64) for x in args))
    for found, wanted in zip(jax.jit(both(kernels))(*args), exact, strict=True):
        assert found.dtype == q.dtype
        rounded = dict(rtol=2.0**-6, atol=2.0) if dtype == "bfloat16" else dict(rtol=0, atol=0)  # scores are rounded
        np.testing.assert_allclose(np.asarray(found, np.float64), np.asarray(wanted, np.float64), **rounded)


def test_grouped_queries(rng):
    """The keys of a group are read again by each of its queries. Their gradient sums over two dimensions: XLA's."""
    q, k, v = (integers(rng, "float32", *shape) for shape in ((2, 5, 2, 3, 8), (2, 7, 2, 8), (2, 7, 2, 8)))

    def run(einsum, **options):
        def scores(q, k, v):
            return einsum("bgnqk,bkgd->bqgnd", einsum("bqgnd,bkgd->bgnqk", q, k, **options), v, **options)

        return scores

    forwards = run(jax_moye.einsum, implementation="moye", interpret=True)
    assert kernel_calls(forwards, q, k, v) == 2
    assert data_movements(forwards, q, k, v) == []
    np.testing.assert_array_equal(jax.jit(forwards)(q, k, v), run(jnp.einsum)(q, k, v))
    gradients = jax.grad(lambda *args: run(jax_moye.einsum, interpret=True)(*args).sum(), (0, 1, 2))
    assert kernel_calls(gradients, q, k, v) == 3  # of the scores, again; of their gradient; of the queries'
    expected = jax.grad(lambda *args: run(jnp.einsum)(*args).sum(), (0, 1, 2))(q, k, v)
    for found, wanted in zip(jax.jit(gradients)(q, k, v), expected, strict=True):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("axes", [(0, 0), (0, 1), (1, 0), (2, 3), (0, None), (None, 3)], ids=str)
def test_vmap_of_a_batch_of_two_modes(rng, axes):
    """A third mode wherever it lies, one that merges, or one that an operand lacks: one call."""
    shapes = [(2, 5, 3, 8), (2, 7, 3, 8)]
    args = [
        integers(rng, "float32", *(shape if axis is None else (*shape[:axis], 4, *shape[axis:])))
        for shape, axis in zip(shapes, axes, strict=True)
    ]
    options = dict(implementation="moye", interpret=True)
    fun = jax.vmap(lambda q, k: jax_moye.einsum("bqhd,bkhd->bhqk", q, k, **options), axes)
    assert kernel_calls(fun, *args) == 1
    assert data_movements(fun, *args) == []
    np.testing.assert_array_equal(
        jax.jit(fun)(*args), jax.vmap(lambda q, k: jnp.einsum("bqhd,bkhd->bhqk", q, k), axes)(*args)
    )


def test_vmap_of_a_shared_weight_is_one_plain_product(rng):
    x, w = jnp.ones((3, 16, 32), jnp.bfloat16), jnp.ones((32, 64), jnp.bfloat16)
    (call,) = custom_calls(lowered_text(jax.vmap(matmul, (0, None)), x, w, platform="cpu"))
    assert call.sizes == (1, 48, 64, 32)
    (call,) = custom_calls(lowered_text(jax.vmap(lambda v: matmul(w.T, v)), jnp.ones((3, 32)), platform="cpu"))
    assert call.sizes == (1, 3, 64, 32)  # W @ v for each v: the roles of the operands are swapped


def test_broadcast_batch_is_not_materialized():
    a, b = jnp.ones((16, 32), jnp.bfloat16), jnp.ones((5, 32, 64), jnp.bfloat16)
    hlo = jax.jit(matmul).lower(a, b).compile().as_text()
    assert " broadcast(" not in hlo  # the operation: this function has the word in its name, which is in there
    (call,) = custom_calls(lowered_text(matmul, a, b, platform="cpu"))
    assert call.sizes == (5, 16, 64, 32)
    assert call.a_strides == (0, 32, 1)
    (call,) = custom_calls(lowered_text(matmul, jnp.ones((1, 16, 32), jnp.bfloat16), b, platform="cpu"))
    assert call.a_strides == (0, 32, 1)


def test_control_flow(rng):
    x = jnp.asarray(rng.standard_normal((4, 4)), jnp.float32)
    scanned = lambda f: lambda x: lax.scan(lambda c, _: (jnp.tanh(f(c, x)), None), x, length=3)[0].sum()  # noqa: E731
    close(jax.grad(scanned(matmul))(x), jax.grad(scanned(jnp.matmul))(x))
    close(lax.cond(True, lambda x: matmul(x, x), lambda x: x, x), x @ x)
    close(lax.while_loop(lambda c: c[0] < 2, lambda c: (c[0] + 1, matmul(c[1], x)), (0, x))[1], x @ x @ x)
    close(jax.lax.map(lambda row: matmul(x, row), x), jax.lax.map(lambda row: x @ row, x))
    close(lax.fori_loop(0, 2, lambda _, c: matmul(c, x), x), x @ x @ x)


def test_remat_keeps_the_value(rng):
    x = jnp.asarray(rng.standard_normal((4, 4)), jnp.float32)
    f = lambda mm: lambda x: jnp.sin(mm(jnp.sin(mm(x, x)), x)).sum()  # noqa: E731
    policy = jax.checkpoint_policies.nothing_saveable
    close(jax.grad(jax.checkpoint(f(matmul), policy=policy))(x), jax.grad(f(jnp.matmul))(x))


def test_eval_shape_and_jaxpr():
    a, b = jax.ShapeDtypeStruct((3, 4), jnp.bfloat16), jax.ShapeDtypeStruct((4, 5), jnp.bfloat16)
    out = jax.eval_shape(matmul, a, b)
    assert (out.shape, out.dtype) == ((3, 5), jnp.bfloat16)
    jaxpr = jax.make_jaxpr(matmul)(a, b)
    assert [equation.primitive for equation in jaxpr.eqns] == [contract_p]
    assert "spec=mk,kn->mn" in str(jaxpr)


def test_unused_product_is_removed(rng):
    x = jnp.ones((4, 4))
    assert kernel_calls(lambda x: (matmul(x, x), x + 1)[1], x) == 0
    traced = jax.make_jaxpr(lambda x: (matmul(x, x), x + 1))(x)
    reduced, _ = jax.interpreters.partial_eval.dce_jaxpr(traced.jaxpr, [False, True])
    assert "jax_moye" not in str(reduced)


def test_eager_calls_reuse_one_program(rng):
    a = jnp.ones((8, 8), jnp.bfloat16)
    matmul(a, a)
    with jax.log_compiles(False):
        before = jax_moye.matmul.__globals__["_matmul"].jitted._cache_size()
        for _ in range(3):
            matmul(a, a)
        assert jax_moye.matmul.__globals__["_matmul"].jitted._cache_size() == before


def test_complex_and_integer_derivatives_are_xlas(rng):
    f = functools.partial(jax_moye.matmul, interpret=True)
    z = jnp.asarray(rng.standard_normal((3, 3)) + 1j * rng.standard_normal((3, 3)), jnp.complex64)
    x = jnp.asarray(rng.standard_normal((3, 3)), jnp.float32)
    loss = lambda mm: lambda z, x: jnp.abs(mm(z, x)).sum()  # noqa: E731
    for g, h in zip(jax.grad(loss(f), (0, 1))(z, x), jax.grad(loss(jnp.matmul), (0, 1))(z, x), strict=True):
        assert g.dtype == h.dtype
        close(g, h)
    _, tangent = jax.jvp(f, (jnp.ones((2, 2), int), x[:2, :2]), (np.zeros((2, 2), jax.dtypes.float0), x[:2, :2]))
    close(tangent, jnp.ones((2, 2)) @ x[:2, :2])


@pytest.mark.parametrize(
    ("lhs", "rhs", "preferred"),
    [
        ("complex64", "complex128", None),
        ("complex64", "complex128", "complex128"),
        ("complex64", "complex64", "complex128"),
        ("bfloat16", "complex64", None),
        ("bfloat16", "complex64", "float32"),
        ("complex64", "int8", "complex128"),
    ],
)
def test_derivatives_of_complex_numbers_of_several_widths(rng, lhs, rhs, preferred):
    """lax makes of complex operands no narrower dtype: what is wanted is rounded, or is the real part, afterwards."""
    with jax.enable_x64(True):
        a, b = (
            jnp.asarray(rng.integers(-4, 5, shape) * (1 + 1j if "complex" in dtype else 1), dtype)
            for shape, dtype in (((2, 3), lhs), ((3, 4), rhs))
        )
        floats = [i for i, x in enumerate((a, b)) if jnp.issubdtype(x.dtype, jnp.inexact)]

        def gradients(fun):
            def product(*moving):
                operands = [a, b]
                for i, x in zip(floats, moving, strict=True):
                    operands[i] = x
                return fun(*operands, (((1,), (0,)), ((), ())), preferred_element_type=preferred)

            out, transpose = jax.vjp(product, *((a, b)[i] for i in floats))
            return transpose(jnp.ones_like(out))

        for ours, theirs in zip(gradients(jax_moye.dot_general), gradients(jax.lax.dot_general), strict=True):
            assert ours.dtype == theirs.dtype
            np.testing.assert_array_equal(ours, theirs)


def test_nothing_to_differentiate():
    x = jnp.ones((2, 2), int)
    out, tangent = jax.jvp(lambda x: jax_moye.matmul(x, x), (x,), (np.zeros((2, 2), jax.dtypes.float0),))
    assert tangent.dtype == jax.dtypes.float0
    np.testing.assert_array_equal(out, x @ x)


def test_shard_map_over_all_axes_runs_the_kernel(rng):
    mesh = jax.make_mesh((1,), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
    a, b = (jnp.asarray(rng.standard_normal((4, 4)), jnp.float32) for _ in "ab")
    spec = jax.sharding.PartitionSpec
    mapped = jax.shard_map(matmul, mesh=mesh, in_specs=(spec("x"), spec()), out_specs=spec("x"))
    close(jax.jit(mapped)(a, b), a @ b)
    assert kernel_calls(mapped, a, b) == 1
    close(jax.grad(lambda b: mapped(a, b).sum())(b), jax.grad(lambda b: (a @ b).sum())(b))


def test_export_round_trip(rng):
    a = jnp.asarray(rng.standard_normal((4, 4)), jnp.float32)
    check = jax.export.DisabledSafetyCheck.custom_call("jax_moye_gemm_v1")
    exported = jax.export.export(jax.jit(matmul), disabled_checks=[check])(a, a)
    close(exported.call(a, a), a @ a)
    pytest.importorskip("flatbuffers")  # what JAX serializes with, and does not install
    close(jax.export.deserialize(exported.serialize()).call(a, a), a @ a)


def test_symbolic_shapes_go_to_xla(rng):
    (m,) = jax.export.symbolic_shape("m")
    a, b = jax.ShapeDtypeStruct((m, 4), jnp.float32), jax.ShapeDtypeStruct((4, 5), jnp.float32)
    fun = functools.partial(jax_moye.matmul, interpret=True)
    exported = jax.export.export(jax.jit(fun))(a, b)
    x, y = jnp.ones((3, 4)), jnp.ones((4, 5))
    close(exported.call(x, y), x @ y)
    with pytest.raises(NotImplementedError, match="not all known"):
        jax.export.export(jax.jit(matmul))(a, b)


def test_where_xla_computes_all_the_program_is_laxs():
    """The same products of the same operands in the same order, and the same transposes: XLA fuses one program, not
    another. A gradient whose operands stood in another order cost a transformer's training step 1 %."""

    def loss(wqkv, wo, x):
        q, k, v = jnp.split((x @ wqkv).reshape(2, 16, 3, 4, 8), 3, axis=2)
        scores = jnp.einsum("bqhd,bkhd->bhqk", q[:, :, 0], k[:, :, 0])
        mixed = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v[:, :, 0]).reshape(2, 16, 32)
        return jnp.sum(jax.nn.silu(mixed @ wo) ** 2)

    shapes = [(32, 96), (32, 32), (2, 16, 32)]
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]

    def products():
        jax.clear_caches()
        program = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).trace(*args).lower(lowering_platforms=("cuda",))
        lines = [re.sub(r"%[\w#.]+", "%", line.strip()) for line in program.as_text().splitlines()]
        return sorted(line for line in lines if "stablehlo.dot_general" in line or "stablehlo.transpose" in line)

    laxs = products()
    assert sum("dot_general" in line for line in laxs) == 12
    with jax_moye.options(implementation="xla"), jax_moye.intercept():
        assert products() == laxs
