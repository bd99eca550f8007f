"""Problems behind a padding of the lines that TMA cannot read."""

import dataclasses
import random

import numpy as np
import pytest

from jax_moye._selection.problem import NotServedError, is_for_tma, make_problem, parse_spec
from jax_moye._selection.view import View


def elements(problem, name):
    """Where each element of an operand is, from its first one on."""
    sizes = (*problem.batch_sizes, problem.m if name == "a" else problem.n, problem.k)
    places = (np.arange(size) * stride for size, stride in zip(sizes, problem.strides[name], strict=True))
    return sum(np.meshgrid(*places, indexing="ij")).ravel()


def lines(problem, name):
    """The length of an operand's lines, and how far apart they are then."""
    sizes = (*problem.batch_sizes, problem.m if name == "a" else problem.n, problem.k)
    used = [
        (size, of)
        for size, of in zip(sizes, zip(problem.strides[name], problem.padded.strides[name], strict=True), strict=True)
        if size > 1
    ]
    length = next(size for size, (stride, _) in used if stride == 1)
    ratios = {new / (old / length) for _, (old, new) in used if old not in (0, 1)}
    return length, ratios


def test_elements_of_generated_contractions_stay_in_their_lines():
    rng, kinds = random.Random(4), set()
    for _ in range(2000):
        spec = parse_spec(
            rng.choice(("mk,kn->mn", "mk,nk->mn", "km,kn->mn", "bmk,bkn->bmn", "abmk,kn->abmn", "mab,abn->mn"))
        )
        size = {label: rng.choice((1, 2, 3, 7, 8, 16, 24, 33)) for label in "abmnk"}
        permutations = [tuple(rng.sample(range(len(of)), len(of))) if rng.random() < 0.3 else None for of in spec[:2]]
        shapes = [[size[label] for label in of] for of in spec[:2]]
        dtype = rng.choice(("bf16", "tf32", "e4m3", "s8"))
        try:
            problem = make_problem(f"{spec.lhs},{spec.rhs}->{spec.out}", *shapes, dtype, "f32", *permutations)
        except NotServedError:
            continue
        padded = problem.padded
        assert dataclasses.replace(padded, a_strides=(), b_strides=(), outer=()) == dataclasses.replace(
            problem, a_strides=(), b_strides=(), outer=()
        )
        for name in "ab":
            is_read = is_for_tma(problem.strides[name], dtype)
            if padded.strides[name] == problem.strides[name]:
                kinds.add((dtype, is_read, False))
                continue
            assert not is_read
            assert is_for_tma(padded.strides[name], dtype)
            length, pitches = lines(problem, name)
            (pitch,) = pitches or {length}
            assert length <= pitch < length + 32
            before, behind = elements(problem, name), elements(padded, name)
            np.testing.assert_array_equal(behind, before // length * pitch + before % length)
            kinds.add((dtype, is_read, True))
    assert {(dtype, False, True) for dtype in ("bf16", "tf32", "e4m3", "s8")} <= kinds
    assert {(dtype, True, False) for dtype in ("bf16", "tf32", "e4m3", "s8")} <= kinds


@pytest.mark.parametrize(
    ("spec", "lhs", "rhs", "dtype"),
    [
        ("mk,kn->mn", (64, 64), (64, 33), "tf32"),  # wgmma takes tf32 contiguous along k alone
        ("mk,nk->mn", (64, 48), (64, 48), "bf16"),  # nothing to be padded
    ],
)
def test_what_padding_does_not_help(spec, lhs, rhs, dtype):
    problem = make_problem(spec, lhs, rhs, dtype, "f32")
    assert problem.padded == problem


def test_parts_of_arrays_are_not_padded():
    """More would be copied than is read."""
    for view in (
        View((64, 66), (64, 65), (66, 1), 1),
        View((64, 130), (64, 65), (130, 1)),
        View((64, 66), (64, 65), (66, 1)),
    ):
        problem = make_problem("mk,kn->mn", (64, 65), (65, 64), "bf16", "f32", views=(view, None))
        assert problem.padded == problem
