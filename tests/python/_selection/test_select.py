"""From a contraction to a GemmProblem, and from there to a config."""

import itertools

import numpy as np
import pytest

import jax_moye
from jax_moye._kernels.configs import GemmConfig
from jax_moye._selection.capability import why_not
from jax_moye._selection.cost import predicted_us
from jax_moye._selection.problem import GemmProblem, NotServedError, make_problem, parse_spec
from jax_moye._selection.ranking import rank, select

CONFIGS = jax_moye.configs()


def row_major_problem(m, n, k, batch=1, dtype="bf16", out_dtype=None, order="NN"):
    a = (m * k, k, 1) if order[0] == "N" else (m * k, 1, m)
    b = (n * k, 1, n) if order[1] == "N" else (n * k, k, 1)
    return GemmProblem(batch, m, n, k, a, b, (m * n, n, 1), dtype, out_dtype or dtype, False)


# ------------------------------------------------------------------------------------------------------------ problems


def evaluate(problem, lhs, rhs, out_size):
    """The problem by loops over strides, on flat arrays."""
    a, b = (rhs, lhs) if problem.swapped else (lhs, rhs)
    out = np.full(out_size, np.nan)
    for batch, m, n in itertools.product(range(problem.batch), range(problem.m), range(problem.n)):
        total = 0.0
        for k in range(problem.k):
            total += a[np.dot((batch, m, k), problem.a_strides)] * b[np.dot((batch, n, k), problem.b_strides)]
        at = np.dot((batch, m, n), problem.d_strides)
        assert np.isnan(out[at]), "written twice"
        out[at] = total
    return out


SPECS = [
    "mk,kn->mn",
    "km,kn->mn",
    "mk,nk->mn",
    "km,nk->nm",
    "bmk,bkn->bmn",
    "bmk,kn->bmn",
    "mk,bkn->bmn",
    "mk,bkn->mbn",
    "bmk,kn->mbn",
    "mbk,kn->bmn",
    "bmn,bmk->kn",
    "mk,bk->bm",
    "bk,mk->bm",
    "k,k->",
    "mk,k->m",
    "m,n->nm",
    "b,b->b",
    "bm,bm->bm",
    "mk,lk->lm",
    "abmk,abkn->abmn",
    "abmk,kn->abmn",
    "mab,nab->mn",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("ones", ["", "m", "n", "k", "b", "mk", "nk", "mn", "bmnk"])
def test_problems_compute_the_contraction(spec, ones):
    sizes = dict(a=2, b=3, m=4, n=5, k=6, l=7)
    sizes = {label: 1 if label in ones else size for label, size in sizes.items()}
    parsed = parse_spec(spec)
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.integers(-2, 3, [sizes[x] for x in labels]).astype(float) for labels in parsed[:2])
    for lhs_permutation, rhs_permutation in itertools.product((None, "reversed"), repeat=2):
        permutations = [
            None if p is None else tuple(reversed(range(x.ndim)))
            for p, x in ((lhs_permutation, lhs), (rhs_permutation, rhs))
        ]
        stored = [
            x if p is None else np.transpose(x, np.argsort(p)) for x, p in zip((lhs, rhs), permutations, strict=True)
        ]
        try:
            problem = make_problem(spec, lhs.shape, rhs.shape, "f64", "f64", *permutations)
        except NotServedError:
            assert permutations != [None, None]  # a stored transpose may separate what merged before
            continue
        expected = np.einsum(spec, lhs, rhs)
        actual = evaluate(problem, *(x.ravel() for x in stored), expected.size)
        np.testing.assert_array_equal(actual, expected.ravel())
        # Where a mode of size 1 leaves a choice, some mode of each operand has stride 1.
        if 1 in (problem.m, problem.k) and 1 in (problem.n, problem.k):
            assert problem.order is not None


def test_outputs_along_the_left_operand_swap_the_roles():
    problem = make_problem("mk,bk->bm", (64, 32), (8, 32), "bf16", "bf16")  # vmap of W @ x
    assert problem.swapped
    assert (problem.m, problem.n, problem.k) == (8, 64, 32)
    assert problem.d_strides == (0, 64, 1)
    assert problem.order == "NT"
    assert not make_problem("mk,kn->mn", (64, 32), (32, 8), "bf16", "bf16").swapped


def test_a_broadcast_operand_has_stride_0():
    problem = make_problem("mk,bkn->bmn", (16, 32), (5, 32, 64), "bf16", "bf16")
    assert problem.sizes == (5, 16, 64, 32)
    assert problem.a_strides == (0, 32, 1)


def test_vectors_are_loaded_along_their_elements():
    assert make_problem("mk,k->m", (64, 32), (32,), "bf16", "bf16").order == "NT"  # swapped: a is the vector
    assert make_problem("m,n->mn", (64,), (32,), "bf16", "bf16").order == "TN"
    assert make_problem("mk,kn->mn", (64, 32), (32, 1), "bf16", "bf16").alignment == 16
    assert make_problem("mk,kn->mn", (64, 1), (1, 32), "bf16", "bf16").alignment == 16


@pytest.mark.parametrize(
    ("m", "n", "k", "dtype", "order", "alignment"),
    [
        (64, 64, 64, "bf16", "NN", 16),
        (64, 64, 63, "bf16", "NN", 2),
        (63, 64, 64, "bf16", "NN", 16),
        (63, 64, 64, "bf16", "TN", 2),
        (64, 62, 64, "bf16", "NN", 4),
        (64, 60, 64, "bf16", "NN", 8),
        (64, 60, 64, "bf16", "NT", 16),
        (64, 63, 64, "f32", "NN", 4),
        (64, 62, 64, "f32", "NN", 8),
        (64, 63, 64, "f64", "NN", 8),
    ],
)
def test_alignment(m, n, k, dtype, order, alignment):
    assert row_major_problem(m, n, k, dtype=dtype, order=order).alignment == alignment
    assert row_major_problem(m, n, k, dtype=dtype, order=order).order == order


def test_what_is_more_than_one_product():
    with pytest.raises(NotServedError, match=r"more than one matrix multiplication: .* \(2 of batch\)"):
        make_problem("abmk,bakn->abmn", (2, 3, 4, 6), (3, 2, 6, 5), "bf16", "bf16")
    with pytest.raises(NotServedError, match=r"\(2 of k\)"):
        make_problem("bmn,bkn->mk", (2, 4, 5), (2, 6, 5), "bf16", "bf16")
    with pytest.raises(NotServedError, match="over 2\\^31 - 1"):
        make_problem("mk,kn->mn", (2**31, 8), (8, 8), "bf16", "bf16")


# ------------------------------------------------------------------------------------------------------------- configs


@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32", "f64"])
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_every_problem_of_a_served_dtype_is_served(dtype, order):
    for m, n, k in itertools.product((1, 2, 3, 8, 17, 64, 129, 4096), repeat=3):
        for batch in (1, 3):
            problem = row_major_problem(m, n, k, batch, dtype, order=order)
            config = select(problem, 90, CONFIGS)
            assert why_not(config, problem, 90) is None
            legal = [row for row in CONFIGS if why_not(row, problem, 90) is None]
            assert predicted_us(config, problem, 90) == min(predicted_us(row, problem, 90) for row in legal)


def test_ranking_is_complete_and_legal_first():
    problem = row_major_problem(64, 64, 33)
    ranked = rank(problem, 90, CONFIGS)
    assert sorted(candidate.config.name for candidate in ranked) == sorted(row.name for row in CONFIGS)
    legal = [candidate.reason is None for candidate in ranked]
    assert legal == sorted(legal, reverse=True)
    assert all(candidate.reason is None or " " in candidate.reason for candidate in ranked)


def test_large_problems_get_large_tiles_and_small_ones_small_tiles():
    tile_m, tile_n, _ = select(row_major_problem(4096, 4096, 4096), 90, CONFIGS).tile
    assert tile_m * tile_n >= 128 * 128
    assert select(row_major_problem(64, 64, 4096), 90, CONFIGS).tile[:2] == (64, 64)
    assert select(row_major_problem(512, 512, 512), 90, CONFIGS).tile[:2] == (64, 64)  # 16 CTAs of 128, or 64 of 64
    assert select(row_major_problem(64, 64, 64, batch=4096), 90, CONFIGS).tile[:2] == (64, 64)


def test_selection_is_a_pure_function():
    problem = row_major_problem(100, 100, 100)
    assert select(problem, 90, CONFIGS) is select(problem, 90, CONFIGS)
    assert rank(problem, 90, CONFIGS) is rank(problem, 90, CONFIGS)


def example_config(**changes):
    fields = dict(
        name="example",
        kernel="sm80_multistage",
        dtype="bf16",
        accumulator="f32",
        out_dtypes=("bf16",),
        tile=(128, 128, 32),
        stages=3,
        cluster=(1, 1),
        alignment=16,
        orders=("NN", "NT"),
        any_stride=False,
        threads=128,
        smem_bytes=1024,
        min_arch=80,
    )
    return GemmConfig(**(fields | changes))


@pytest.mark.parametrize(
    ("config", "problem", "arch", "reason"),
    [
        ({}, {}, 80, None),
        ({}, {}, None, None),
        ({}, dict(dtype="f16"), 80, "its operands are bf16, these are f16"),
        ({}, dict(out_dtype="f32"), 80, "it writes bf16, and f32 is wanted"),
        ({}, {}, 75, "it needs sm_80 or newer, and this is sm_75"),
        (dict(min_arch=90, max_arch=90), {}, 90, None),
        (dict(min_arch=90, max_arch=90), {}, 80, "it needs sm_90 or newer, and this is sm_80"),
        (dict(min_arch=90, max_arch=90), {}, 100, "its code is sm_90's and not newer ones', and this is sm_100"),
        (dict(min_arch=90, max_arch=90), {}, None, None),
        (dict(smem_bytes=101_376), {}, 86, None),
        (dict(smem_bytes=101_377), {}, 86, "needs 101377 bytes of shared memory, and sm_86 has 101376"),
        (dict(smem_bytes=101_377), {}, 80, None),
        (dict(smem_bytes=10**6), {}, None, None),
        (dict(smem_bytes=10**6), {}, 1000, None),  # unknown: the driver says it
        ({}, dict(order="TN"), 80, "it takes the orders NN, NT, and this is TN"),
        ({}, dict(k=33), 80, "it loads 16 bytes at a time"),
        (dict(alignment=2), dict(k=33), 80, None),
        ({}, dict(m=2**31 - 1), 80, "less one tile"),
        ({}, dict(m=2**31 - 1 - 128), 80, None),
        ({}, dict(m=2**31 - 128), 80, "less one tile"),
        (dict(cluster=(2, 1)), dict(m=2**31 - 1 - 256), 80, None),
        (dict(cluster=(2, 1)), dict(m=2**31 - 256), 80, "less one tile"),
        (dict(cluster=(2, 1), alignment=1), dict(n=2**31 - 1 - 128), 80, None),
        (dict(cluster=(1, 2)), dict(n=2**31 - 256), 80, "less one tile"),
        (dict(alignment=1), dict(k=2**31 - 1 - 32), 80, None),
        ({}, dict(k=2**31 - 32), 80, "less one tile"),
        ({}, dict(m=2**30, n=2**30), 80, "more than 2^31 - 1 tiles"),
        ({}, dict(batch=2**31 - 1), 80, None),
        ({}, dict(batch=2**30, m=129), 80, "more than 2^31 - 1 tiles"),
        (dict(cluster=(2, 1)), dict(batch=2**30, m=129), 80, None),
    ],
)
def test_reasons(config, problem, arch, reason):
    problem = row_major_problem(**(dict(m=64, n=64, k=64) | problem))
    actual = why_not(example_config(**config), problem, arch)
    assert actual is None if reason is None else reason in actual


def test_operands_without_a_unit_stride():
    problem = GemmProblem(1, 4, 4, 4, (0, 16, 2), (0, 16, 2), (0, 4, 1), "bf16", "bf16", False)
    assert problem.order is None
    assert "stride 1" in why_not(example_config(alignment=2), problem, 80)
    assert why_not(example_config(alignment=2, any_stride=True), problem, 80) is None


def test_no_config_at_all():
    with pytest.raises(NotServedError, match="no kernel takes bf16 operands"):
        select(row_major_problem(4, 4, 4), 80, ())
    with pytest.raises(NotServedError, match="example: it loads 16 bytes"):
        select(row_major_problem(4, 4, 5), 80, (example_config(),))


def test_operands_are_packed_where_that_is_faster():
    """Rows of odd pitch: copied for TMA first, unless the product is so small that the copy is most of it."""
    packing = {row.name for row in CONFIGS if row.kernel == "sm90_cooperative" and row.alignment == 2}
    in_place = {row.name for row in CONFIGS if row.kernel == "sm80_multistage" and row.alignment == 2}
    if not packing or not in_place:
        pytest.skip("not both kinds of rows in this build")
    assert select(row_major_problem(64, 64, 63), 90, CONFIGS).name not in packing
    for m, n, k in ((4096, 4096, 4095), (16, 4096, 4095), (8192, 8192, 33)):
        assert select(row_major_problem(m, n, k), 90, CONFIGS).name in packing
        assert select(row_major_problem(m, n, k), 80, CONFIGS).name not in packing


def test_a_kernel_without_a_speed_comes_last():
    problem = row_major_problem(256, 256, 256)
    new = example_config(kernel="sm80_new", orders=("NN", "NT", "TN", "TT"))
    known = example_config(orders=("NN", "NT", "TN", "TT"))
    assert [candidate.config for candidate in rank(problem, 90, (new, known))] == [known, new]


@pytest.mark.parametrize("kernel", ["sm90_cooperative", "sm90_pingpong"])
def test_a_tile_that_no_gpu_has_timed_comes_last(kernel):
    """However well it divides the problem: 132 tiles of 128x208 are one wave, of 128x128 two."""
    fields = dict(
        kernel=kernel, orders=("NN", "NT", "TN", "TT"), threads=384, smem_bytes=200_000, min_arch=90, max_arch=90
    )
    untimed = example_config(**fields, tile=(128, 208, 64), stages=4)
    timed = example_config(**fields, tile=(128, 128, 64), stages=5)
    for m, n, k in ((12 * 128, 11 * 208, 4096), (128, 208, 8), (8, 8, 0), (4096, 4096, 4096)):
        ranked = rank(row_major_problem(m, n, k), 90, (untimed, timed))
        assert [candidate.config for candidate in ranked] == [timed, untimed], (m, n, k)
        assert select(row_major_problem(m, n, k), 90, (untimed,)) is untimed
