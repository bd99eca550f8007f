"""From a contraction to a GemmProblem."""

import dataclasses
import itertools

import numpy as np
import pytest
from python._selection.problems import row_major_problem

from jax_moye._selection.problem import BatchMode, GemmProblem, NotServedError, make_problem, parse_spec


def evaluate(problem, lhs, rhs, out_size):
    """The problem by loops over strides, on flat arrays."""
    a, b = (rhs, lhs) if problem.swapped else (lhs, rhs)
    out = np.full(out_size, np.nan)
    strides = problem.strides
    assert np.prod(problem.batch_sizes) == problem.batch
    for *batch, m, n in itertools.product(*map(range, problem.sizes[:-1])):
        total = 0.0
        for k in range(problem.k):
            total += a[np.dot((*batch, m, k), strides["a"])] * b[np.dot((*batch, n, k), strides["b"])]
        at = np.dot((*batch, m, n), strides["d"])
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
    "ambk,anbk->abmn",  # attention's products
    "abmn,anbk->ambk",
    "abmn,ambk->anbk",
    "abmk,bakn->abmn",
    "ambck,anbk->abcmn",  # grouped queries
    "abcmn,anbk->ambck",
    "ambk,clk->abcml",  # two of m and two of n
    "ambck,kn->cbamn",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("ones", ["", "m", "n", "k", "b", "mk", "nk", "mn", "bmnk"])
def test_problems_compute_the_contraction(spec, ones):
    sizes = dict(a=2, b=3, c=2, m=4, n=5, k=6, l=7)
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
    with pytest.raises(NotServedError, match=r"more than one matrix multiplication: .* \(4 of batch\)"):
        make_problem("abcdmk,dcbakn->abcdmn", (2, 3, 2, 3, 4, 6), (3, 2, 3, 2, 6, 5), "bf16", "bf16")
    with pytest.raises(NotServedError, match=r"\(2 of batch, 2 of m, 2 of n\)"):  # four with what m and n have to spare
        make_problem("ambck,andbk->abcmdn", (2, 3, 4, 5, 6), (2, 7, 3, 4, 6), "bf16", "bf16")
    with pytest.raises(NotServedError, match=r"\(2 of k\)"):
        make_problem("bmn,bkn->mk", (2, 4, 5), (2, 6, 5), "bf16", "bf16")
    with pytest.raises(NotServedError, match="over 2\\^31 - 1"):
        make_problem("mk,kn->mn", (2**31, 8), (8, 8), "bf16", "bf16")
    with pytest.raises(NotServedError, match="a batch of 2147483648 elements is over 2\\^31 - 1"):
        make_problem("abmk,bakn->abmn", (2**16, 2**15, 4, 6), (2**15, 2**16, 6, 5), "bf16", "bf16")


def test_batches_of_several_modes():
    """Attention: heads lie between a matrix's rows, and no transpose is needed."""
    scores = make_problem("bqhd,bkhd->bhqk", (2, 64, 8, 32), (2, 96, 8, 32), "bf16", "bf16")
    assert scores.sizes == (2, 8, 64, 96, 32)
    assert scores.batch == 16
    assert scores.outer == (BatchMode(2, 64 * 8 * 32, 96 * 8 * 32, 8 * 64 * 96),)
    assert (scores.a_strides, scores.b_strides, scores.d_strides) == ((32, 256, 1), (32, 256, 1), (64 * 96, 96, 1))
    assert (scores.order, scores.alignment, scores.matrices) == ("NT", 16, (16, 16))
    grouped = make_problem("bqgnd,bkgd->bgnqk", (2, 64, 4, 3, 32), (2, 96, 4, 32), "bf16", "bf16")
    assert grouped.sizes == (2, 4, 3, 64, 96, 32)
    assert grouped.strides["b"] == (96 * 4 * 32, 32, 0, 128, 1)
    assert grouped.matrices == (24, 8)  # keys are read again by each query of a group


def test_an_outer_mode_counts_for_the_alignment():
    for heads, alignment in ((8, 16), (4, 8), (1, 2)):
        problem = make_problem("bmhk,bnhk->bhmn", (2, 3, 5, heads), (2, 3, 5, heads), "bf16", "bf16")
        assert problem.sizes == (2, 5, 3, 3, heads)
        assert problem.alignment == alignment


def test_which_mode_stays_beside_k():
    """Of several of m or n: the contiguous one where k is not, else the larger. The others are the batch, in order."""
    for sizes, batch, m in (((4, 3, 5), (4, 3), 5), ((5, 3, 4), (3, 4), 5), ((4, 4, 4), (4, 4), 4)):
        c, b, a = sizes
        problem = make_problem("abck,kn->cban", (a, b, c, 8), (8, 16), "bf16", "bf16")
        assert (problem.batch_sizes, problem.m, problem.n) == (batch, m, 16)
        assert problem.strides["b"] == (0, 0, 1, 16)
    problem = make_problem("kabc,kn->bacn", (8, 3, 9, 4), (8, 16), "bf16", "bf16")
    assert (problem.batch_sizes, problem.m, problem.order) == ((9, 3), 4, "TN")


def test_one_mode_is_as_ever():
    """What files and caches have of a problem does not change where the batch has one mode."""
    one = make_problem("bmk,bkn->bmn", (3, 4, 6), (3, 6, 5), "bf16", "bf16")
    rare = {"outer", "pair", "derivative", "gate", "scaled", "offsets"}
    assert set(one.to_dict()) == {field.name for field in dataclasses.fields(GemmProblem)} - rare
    for name in ("pair", "derivative", "gate", "scaled"):
        assert dataclasses.replace(one, **{name: True}).to_dict() == {**one.to_dict(), name: True}
    two = make_problem("abmk,bakn->abmn", (2, 3, 4, 6), (3, 2, 6, 5), "bf16", "bf16")
    assert two.to_dict()["outer"] == ((2, 72, 30, 60),)
