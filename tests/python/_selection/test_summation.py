"""batch_invariant=True: the bits of a row depend neither on the other rows nor on how many there are."""

import functools
import itertools
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.support import lowered_text

import jax_moye
from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye._primitives.contraction import contract
from jax_moye._primitives.sharding import one_device, partition
from jax_moye._selection.problem import NotServedError, make_problem
from jax_moye._selection.ranking import select
from jax_moye._selection.request import Request
from jax_moye._selection.summation import Summation, batch_invariant_configs, summation

CONFIGS = jax_moye.configs()
ROWS = range(1, 258, 16)
LAYOUTS = {"NN": "mk,kn->mn", "TN": "km,kn->mn", "NT": "mk,nk->mn", "TT": "km,nk->mn"}

matmul = functools.partial(jax_moye.matmul, interpret=True, batch_invariant=True)

needs_two_of_e4m3 = pytest.mark.skipif(
    len({summation(row) for row in CONFIGS if (row.dtype, row.accumulator) == ("e4m3", "f32")}) < 2,
    reason="this build has not two summations of e4m3",
)


def bits(x) -> np.ndarray:
    x = np.asarray(x)
    return x.view(f"u{x.dtype.itemsize}")


def uneven(rng, shape, dtype):
    """Numbers whose sums are rounded, so that the order of additions shows."""
    return jnp.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape), dtype)


def problems(m, n, k, dtype, out_dtype, accumulator=None):
    """The product in all four orders: how operands are aligned depends on m."""
    for order, spec in LAYOUTS.items():
        a = (k, m) if order[0] == "T" else (m, k)
        b = (n, k) if order[1] == "T" else (k, n)
        yield make_problem(spec, a, b, dtype, out_dtype, accumulator=accumulator)


# ------------------------------------------------------------------------------------------------------------- choices


def test_every_kernel_has_an_instruction():
    assert all(facts_of(row.kernel).instruction for row in CONFIGS)


def test_one_kernel_splits_sums_and_none_adds_atomically():
    """What Summation says of all kernels: sm90_split_k alone reads other CTAs' sums, and sm90_weights, of weights.

    It does so by cluster_sums.h, which no other kernel has.

    Attention reads them, too, where few queries meet many keys: batch_invariant chooses no such config.
    """
    sources = pathlib.Path(__file__).parents[3] / "cuda" / "gemm"
    if not sources.is_dir():
        pytest.skip("no sources beside the tests")
    files = [*sources.glob("*.cuh"), *sources.glob("*.h")]
    assert len(files) > 10
    for path in files:
        text = path.read_text()
        for word in ("atomic", "tma_reduce", "red.global"):
            assert word not in text, path
        assert ("mapa(" in text) == (path.name in ("cluster_sums.h", "sm90_weights.cuh", "attention_parts.h")), path
        is_split_k = path.name in ("sm90_split_k.cuh", "split_k_tf32.h")
        assert ("ClusterSums<" in text) == is_split_k, path
        assert ('#include "gemm/cluster_sums.h"' in text) == (is_split_k or path.name == "split_k.h"), path
        assert ('#include "gemm/split_k_tf32.h"' in text) == (path.name == "sm90_split_k.cuh"), path


def dtypes():
    """(dtype, accumulator, out_dtype) of the rows of this build."""
    return dict.fromkeys(
        (row.dtype, row.accumulator, out) for row in CONFIGS for out in (row.out_dtypes[0], row.out_dtypes[-1])
    )


@pytest.mark.parametrize(("dtype", "accumulator", "out_dtype"), dtypes(), ids=str)
@pytest.mark.parametrize("arch", [None, 80, 89, 90, 100])
def test_one_summation_serves_all_sizes(dtype, accumulator, out_dtype, arch):
    rows = batch_invariant_configs(dtype, out_dtype, accumulator, arch, CONFIGS)
    if not rows:
        # Six products of bfloat16 parts are f32, which another kernel multiplies then.
        assert all(
            arch < row.min_arch or 0 < row.max_arch < arch
            for row in CONFIGS
            if (row.dtype, row.accumulator) == (dtype, accumulator) and facts_of(row.kernel).symmetric
        )
        return
    assert len({summation(row) for row in rows}) == 1
    serves_any = any(row.any_stride and row.alignment <= ITEM_BYTES[dtype] for row in rows)
    for m, (n, k) in itertools.product((1, 2, 17, 64, 100, 4096), ((24, 72), (7, 33))):
        for problem in problems(m, n, k, dtype, out_dtype, accumulator):
            try:
                assert select(problem, arch, CONFIGS, batch_invariant=True) in rows
            except NotServedError:
                assert not serves_any


@pytest.mark.parametrize("arch", [80, 90])
def test_programs_for_a_gpu(arch, every_config_is_built):
    """Lowered here, for a GPU that need not be here: with the flag there is nobody else."""
    rows = {row.name for row in batch_invariant_configs("bf16", "bf16", "f32", arch, CONFIGS)}
    fun = functools.partial(jax_moye.matmul, batch_invariant=True)
    names = set()
    with jax_moye.cuda_target(arch):
        for m in (1, 17, 64, 4096):
            a, b = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in ((m, 72), (72, 24)))
            for product, lhs in ((fun, a), (lambda a_t, b: fun(a_t.T, b), a.update(shape=a.shape[::-1]))):
                names |= set(re.findall(r'\bconfig = "([^"]*)"', lowered_text(product, lhs, b)))
    assert names
    assert names <= rows


@needs_two_of_e4m3
def test_without_the_flag_the_summation_depends_on_the_rows():
    """What the flag is for: if this fails, the tests of bits below show nothing."""
    chosen = {
        summation(select(problem, None, CONFIGS)) for m in ROWS for problem in problems(m, 16, 160, "e4m3", "f32")
    }
    assert len(chosen) > 1


def example(**changes):
    fields = dict(
        name="example",
        kernel="sm80_multistage",
        dtype="bf16",
        accumulator="f32",
        out_dtypes=("bf16", "f32"),
        tile=(128, 128, 32),
        stages=3,
        cluster=(1, 1),
        alignment=16,
        orders=("NN", "NT", "TN", "TT"),
        any_stride=False,
        threads=128,
        smem_bytes=1024,
        min_arch=80,
    )
    return GemmConfig(**(fields | changes))


def test_what_makes_a_summation():
    one = example()
    for same in (dict(tile=(64, 256, 32)), dict(stages=5), dict(kernel="sm80_persistent"), dict(alignment=2)):
        assert summation(example(**same)) == summation(one)
    for other in (
        dict(tile=(128, 128, 64)),
        dict(kernel="sm90_pingpong"),
        dict(kernel="a_new_one"),
        dict(dtype="f16"),
        dict(accumulator="f16"),
    ):
        assert summation(example(**other)) != summation(one)
    halves = example(kernel="sm90_split_k", cluster=(1, 2))
    assert summation(example(kernel="sm90_split_k", cluster=(1, 2), tile=(64, 64, 32), stages=6)) == summation(halves)
    for other in (dict(kernel="sm90_split_k", cluster=(1, 4)), dict(kernel="sm90_pingpong", cluster=(1, 2))):
        assert summation(example(**other)) != summation(halves)
    by_sizes = [example(kernel="sm90_parallel_split_k", name=name) for name in ("one", "another")]
    assert len({summation(x) for x in (*by_sizes, example(kernel="sm90_cooperative"))}) == 3
    integers = [example(dtype="s8", accumulator="s32", kernel=kernel) for kernel in ("sm80_multistage", "new")]
    assert summation(integers[0]) == summation(integers[1])  # exact in any order
    assert isinstance(summation(one), Summation)


def test_batch_invariant_leaves_out_what_splits_k_by_sizes():
    fields = dict(tile=(128, 128, 64), min_arch=90, max_arch=90)
    by_sizes = example(name="by_sizes", kernel="sm90_parallel_split_k", **fields)
    assert batch_invariant_configs("bf16", "bf16", "f32", 90, (by_sizes,)) == ()
    whole = example(name="whole", kernel="sm90_cooperative", **fields)
    assert batch_invariant_configs("bf16", "bf16", "f32", 90, (by_sizes, whole)) == (whole,)


def test_a_family_that_serves_everything_comes_first():
    fast = example(name="fast", kernel="sm90_pingpong", tile=(128, 128, 64), min_arch=90, max_arch=90)
    slow = example(name="slow", alignment=2, any_stride=True)
    for arch, table, expected in (
        (90, (fast, slow), ("slow",)),
        (90, (fast,), ("fast",)),
        (90, (fast, example(**vars(fast) | dict(name="any", alignment=2, any_stride=True)), slow), ("fast", "any")),
        (80, (fast, slow), ("slow",)),
        (75, (fast, slow), ()),
    ):
        rows = batch_invariant_configs("bf16", "bf16", "f32", arch, table)
        assert tuple(row.name for row in rows) == expected


# ---------------------------------------------------------------------------------------------------------------- bits


@pytest.mark.parametrize(
    ("dtype", "k", "n"),
    [
        pytest.param("bfloat16", 72, 24, id="bfloat16"),
        pytest.param("float8_e4m3fn", 160, 16, id="float8_e4m3fn", marks=needs_two_of_e4m3),
    ],
)
def test_rows_do_not_depend_on_their_number(rng, dtype, k, n):
    product = functools.partial(matmul, preferred_element_type=jnp.float32)
    transposed = jax.jit(lambda a_t, b: product(a_t.T, b))
    a, b = uneven(rng, (257, k), dtype), uneven(rng, (k, n), dtype)
    full = bits(product(a, b))
    for m in ROWS:
        first = (257 - m) // 2
        rows = a[first : first + m]
        # The second is aligned as m is: what is not goes through another kernel, or is packed.
        actual = product(rows, b) if m % 32 == 1 else transposed(rows.T, b)
        np.testing.assert_array_equal(bits(actual), full[first : first + m], err_msg=f"{m} rows")
    np.testing.assert_array_equal(bits(transposed(a.T, b)), full)


@needs_two_of_e4m3
def test_the_bits_can_differ(rng):
    """Without the flag: sums of 8-bit floats leave wgmma every 128 products, and mma.sync never."""
    product = jax.jit(lambda a_t, b: jax_moye.matmul(a_t.T, b, preferred_element_type=jnp.float32, interpret=True))
    a, b = uneven(rng, (65, 160), jnp.float8_e4m3fn), uneven(rng, (160, 16), jnp.float8_e4m3fn)
    full = bits(product(a.T, b))
    assert any((bits(product(a[:m].T, b)) != full[:m]).any() for m in (1, 16, 64))


def test_neither_on_vmap_nor_on_the_batch_nor_on_the_other_rows(rng):
    a, w = uneven(rng, (33, 72), jnp.bfloat16), uneven(rng, (72, 24), jnp.bfloat16)
    full = matmul(a, w)
    expected = bits(full)
    np.testing.assert_array_equal(bits(jax.jit(jax.vmap(matmul, (0, None)))(a, w)), expected)
    np.testing.assert_array_equal(bits(jax.jit(jax.vmap(matmul, (1, None), 1))(a.T, w)), expected.T)
    np.testing.assert_array_equal(bits(matmul(a.reshape(3, 11, 72), w)), expected.reshape(3, 11, 24))
    np.testing.assert_array_equal(
        bits(jax.jit(jax.vmap(matmul))(a.reshape(3, 11, 72), jnp.stack([w] * 3))[1]), expected[11:22]
    )
    order = rng.permutation(33)
    np.testing.assert_array_equal(bits(matmul(a[order], w)), expected[order])
    others = jnp.concatenate([a[:5], jnp.full((12, 72), jnp.inf, jnp.bfloat16)])
    np.testing.assert_array_equal(bits(matmul(others, w))[:5], expected[:5])
    # A block of columns is a block of rows of the other operand.
    np.testing.assert_array_equal(bits(matmul(a, w[:, 8:13])), expected[:, 8:13])


def test_the_other_way_round(rng):
    """Rows of w @ x: one x at a time, or all at once under vmap, where the kernel swaps its operands."""
    w, x = uneven(rng, (24, 72), jnp.bfloat16), uneven(rng, (33, 72), jnp.bfloat16)
    full = bits(jax.jit(jax.vmap(matmul, (None, 0)))(w, x))
    for m in (1, 2, 17):
        np.testing.assert_array_equal(bits(jax.jit(jax.vmap(matmul, (None, 0)))(w, x[:m])), full[:m])
    np.testing.assert_array_equal(bits(matmul(w, x[0])), full[0])


def test_a_sum_to_add_to(rng):
    a, w, c = (uneven(rng, shape, jnp.float32) for shape in ((20, 40), (40, 11), (20, 11)))

    @jax.jit
    def product(a, w, c):
        return contract(
            "mk,kn->mn",
            a,
            w,
            c,
            beta=0.7,
            out_dtype=jnp.float32,
            precision=None,
            out_sharding=None,
            config=None,
            implementation=None,
            interpret=jax_moye.InterpretParams(),
            batch_invariant=True,
        )

    full = bits(product(a, w, c))
    for first, last in ((0, 1), (3, 20), (7, 8)):
        np.testing.assert_array_equal(bits(product(a[first:last], w, c[first:last])), full[first:last])


def test_three_products_of_tf32(rng):
    if not any(row.dtype == "tf32" for row in CONFIGS):
        pytest.skip("no row of tf32 in this build")
    product = functools.partial(matmul, precision="TF32_TF32_F32_X3")
    a, w = uneven(rng, (66, 40), jnp.float32), uneven(rng, (40, 16), jnp.float32)
    assert "tf32" in lowered_text(product, a, w, platform="cpu")
    full = bits(product(a, w))
    for m in (1, 64):
        np.testing.assert_array_equal(bits(jax.jit(lambda a_t, w: product(a_t.T, w))(a[:m].T, w)), full[:m])


def test_an_epilogue(rng):
    a, w = uneven(rng, (40, 72), jnp.bfloat16), uneven(rng, (72, 24), jnp.bfloat16)
    bias, residual = uneven(rng, (24,), jnp.float32), uneven(rng, (40, 24), jnp.bfloat16)
    with jax_moye.options(interpret=True, batch_invariant=True):
        layer = jax.jit(functools.partial(jax_moye.linear, activation="gelu"))
        full = bits(layer(a, w, bias, residual=residual))
        for first, last in ((0, 1), (5, 38)):
            part = layer(a[first:last], w, bias, residual=residual[first:last])
            np.testing.assert_array_equal(bits(part), full[first:last])
        # An epilogue whose operands no kernel broadcasts.
        a, bias = a[:32].reshape(2, 2, 2, 2, 2, 72), uneven(rng, (2, 2, 24), jnp.bfloat16)
        batched = layer
        for of_bias in (0, None, 0, None):
            batched = jax.vmap(batched, (0, None, of_bias))
        with pytest.raises(NotImplementedError, match=r"the epilogue of .* is not its kernel's"):
            batched(a, w, bias)


def test_heads_between_the_rows(rng):
    """A row of attention's scores, and of what they are multiplied by, has the bits of its product alone."""
    q, k = uneven(rng, (2, 5, 3, 40), jnp.bfloat16), uneven(rng, (2, 7, 3, 40), jnp.bfloat16)
    einsum = functools.partial(jax_moye.einsum, interpret=True, batch_invariant=True)
    scores = einsum("bqhd,bkhd->bhqk", q, k)
    mixed = einsum("bhqk,bkhd->bqhd", scores, k)
    for b, h in itertools.product(range(2), range(3)):
        alone = matmul(q[b, 1:4, h], k[b, :, h].T)
        np.testing.assert_array_equal(bits(scores[b, h, 1:4]), bits(alone))
        np.testing.assert_array_equal(bits(mixed[b, 1:4, h]), bits(matmul(alone, k[b, :, h])))


def test_gradients(rng):
    """Of the rows: rows of the cotangent times w. (w's is a sum over the rows.)"""
    a, w = uneven(rng, (18, 40), jnp.bfloat16), uneven(rng, (40, 24), jnp.bfloat16)
    out, vjp = jax.vjp(lambda a: matmul(a, w), a)
    full = bits(vjp(out)[0])
    out, vjp = jax.vjp(lambda a: matmul(a, w), a[3:4])
    np.testing.assert_array_equal(bits(vjp(out)[0]), full[3:4])


# -------------------------------------------------------------------------------------------------------------- errors


def test_what_xla_would_compute_is_an_error():
    a = jnp.ones((4, 4), jnp.bfloat16)
    with pytest.raises(
        NotImplementedError, match=r"how XLA sums a row depends on the number of rows.*only with interp"
    ):
        jax_moye.matmul(a, a, batch_invariant=True)
    with pytest.raises(NotImplementedError, match=r"number of rows, and no kernel of ours .* multiplies complex64"):
        matmul(a.astype(jnp.complex64), a.astype(jnp.complex64))
    # Four batches that do not merge: more than one launch.
    a, b = jnp.ones((2, 3, 2, 3, 4, 4), jnp.bfloat16), jnp.ones((3, 2, 3, 2, 4, 4), jnp.bfloat16)
    batched = matmul
    for of_b in range(4):
        batched = jax.vmap(batched, (0, of_b))
    with pytest.raises(NotImplementedError, match="more than one matrix multiplication"):
        batched(a, b)


def test_sums_over_devices_are_an_error():
    whole, split = ((), ("x",)), (("x",), ())
    fields = dict(spec="mk,kn->mn", precision=None, config=None, implementation=None, interpret=None)
    for k_is_split, out_dtype, invariant in itertools.product((False, True), ("float32", "int32"), (False, True)):
        axes = [whole, split, ((), ())] if k_is_split else [split, ((), ()), split]
        parts = partition("mk,kn->mn", dict(m=8, k=8, n=8), {"x": 2}, *axes)
        request = Request(out_dtype=jnp.dtype(out_dtype), batch_invariant=invariant, **fields)
        if k_is_split and invariant and out_dtype == "float32":
            with pytest.raises(NotImplementedError, match="mk,kn->mn is summed over devices"):
                one_device(parts, request, lambda *operands: None)
        else:
            assert callable(one_device(parts, request, lambda *operands: None))


def test_an_epilogue_on_several_devices_is_an_error():
    """It is XLA's there."""
    sharding = jax.sharding.NamedSharding(jax.sharding.AbstractMesh((2,), ("x",)), jax.P("x"))

    def lower(dtype, **kwargs):
        x = jax.ShapeDtypeStruct((8, 16), dtype, sharding=sharding)
        layer = functools.partial(jax_moye.linear, interpret=True, batch_invariant=True, **kwargs)
        return jax.jit(layer).trace(x, jnp.ones((16, 4), dtype), jnp.ones(4, dtype)).lower(lowering_platforms=("cpu",))

    for kwargs in ({}, {"activation": "gelu"}):
        with pytest.raises(NotImplementedError, match=r"the epilogue of ak,kn->an .* is not its kernel's.*2 devices"):
            lower(jnp.bfloat16, **kwargs)


def test_a_config_of_another_summation():
    a = jnp.ones((16, 64), jnp.bfloat16)
    rows = batch_invariant_configs("bf16", "bf16", "f32", None, CONFIGS)
    other = next(row for row in CONFIGS if row.dtype == "bf16" and summation(row) != summation(rows[0]))
    with pytest.raises(ValueError, match=f"{other.name}' sums in another order .* which are {rows[0].name}"):
        matmul(a, a.T, config=other)
    assert matmul(a, a.T, config=rows[-1]).shape == (16, 16)


def test_nothing_to_sum():
    np.testing.assert_array_equal(
        matmul(jnp.ones((3, 0), jnp.bfloat16), jnp.ones((0, 2), jnp.bfloat16)), np.zeros((3, 2))
    )
