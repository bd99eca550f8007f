"""Parts of arrays as offsets and strides, against NumPy's own; and what problems make of them."""

from __future__ import annotations

import hypothesis
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._selection.capability import why_not
from jax_moye._selection.problem import make_problem
from jax_moye._selection.request import Operand
from jax_moye._selection.view import View


def taken(view: View) -> np.ndarray:
    """The elements' positions in the array, as the view has them."""
    positions = np.arange(np.prod(view.source, dtype=int))
    strides = [stride * positions.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(positions[view.offset :], view.shape, strides, writeable=False)


@st.composite
def parts(draw):
    """A view, and NumPy's positions: of slices and transposes."""
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    view, positions = View.whole(shape), np.arange(np.prod(shape)).reshape(shape)
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            order = draw(st.permutations(range(view.shape.__len__())))
            view, positions = view.transposed(order), positions.transpose(order)
        else:
            starts = [draw(st.integers(0, size - 1)) for size in view.shape]
            limits = [draw(st.integers(start + 1, size)) for start, size in zip(starts, view.shape, strict=True)]
            steps = [draw(st.integers(1, 3)) for _ in starts]
            view = view.sliced(starts, limits, steps)
            positions = positions[tuple(map(slice, starts, limits, steps))]
    return view, positions


@hypothesis.given(parts())
@hypothesis.settings(deadline=None)
def test_positions_are_numpys(part):
    view, positions = part
    assert view.shape == positions.shape
    np.testing.assert_array_equal(taken(view), positions)
    dims = [dim for dim in view.order if view.shape[dim] > 1]
    assert [view.strides[dim] for dim in dims] == sorted((view.strides[dim] for dim in dims), reverse=True)


@hypothesis.given(parts(), st.data())
@hypothesis.settings(deadline=None)
def test_a_reshape_is_one_where_numpy_copies_nothing(part, data):
    view, positions = part
    factors, shape = positions.size, []
    while factors > 1 and data.draw(st.booleans()):
        shape.append(data.draw(st.sampled_from([d for d in range(1, factors + 1) if factors % d == 0])))
        factors //= shape[-1]
    shape = [*shape, factors]
    found = view.reshaped(shape)
    copy = np.shares_memory(positions.reshape(shape), positions)  # NumPy's word for: nothing is moved
    if found is None:
        assert not copy
    else:
        assert copy
        assert found.shape == tuple(shape)
        np.testing.assert_array_equal(taken(found), positions.reshape(shape))


def test_a_reshape_to_another_number_of_elements_is_none():
    assert View.whole((2, 3)).reshaped((5,)) is None
    assert View.whole((2, 3)).reshaped((0, 6)) is None


def test_what_is_written_is_in_the_order_of_memory():
    part = View.whole((8, 3, 4, 16)).sliced((0, 1, 0, 0), (8, 2, 4, 16), (1, 1, 1, 1)).reshaped((8, 4, 16))
    operand = Operand((8, 3, 4, 16), jnp.bfloat16, view=part.transposed((2, 0, 1)))
    assert operand.seen_shape == (16, 8, 4)
    assert operand.written == Operand((8, 4, 16), jnp.bfloat16, (2, 0, 1))
    assert operand.written.seen_shape == operand.seen_shape
    assert Operand((2, 3), jnp.bfloat16, (1, 0)).written == Operand((2, 3), jnp.bfloat16, (1, 0))


def columns(width, first, count, k=64):
    return View.whole((k, width)).sliced((0, first), (k, first + count), (1, 1))


def problem_of(view, spec="mk,kn->mn", **changes):
    return make_problem(spec, (32, 64), view.shape, "bf16", "bf16", views=(None, view), **changes)


def test_a_problem_of_parts():
    problem = problem_of(columns(256, 64, 32))
    assert (problem.b_strides, problem.offsets, problem.alignment) == ((0, 1, 256), (0, 64), 16)
    swapped = problem_of(columns(256, 64, 32), "mk,kn->nm")
    assert (swapped.swapped, swapped.offsets) == (True, (64, 0))
    assert problem_of(columns(256, 0, 32)).offsets == ()
    assert problem.to_dict()["offsets"] == (0, 64)
    assert "offsets" not in problem_of(columns(256, 0, 32)).to_dict()


@pytest.mark.parametrize(("first", "alignment"), [(0, 16), (8, 16), (4, 8), (2, 4), (6, 4), (1, 2), (63, 2)])
def test_an_offset_is_part_of_the_alignment(first, alignment):
    problem = problem_of(columns(256, first, 32))
    assert problem.alignment == alignment
    able = [config for config in jax_moye.configs() if why_not(config, problem, None) is None]
    assert able
    assert max(config.alignment for config in able) <= alignment
    config = next(config for config in jax_moye.configs() if config.dtype == "bf16" and config.alignment == 16)
    reason = why_not(config, problem, None)
    assert alignment == 16 or f"from (0, {first}) on, of bf16 are aligned to {alignment}" in reason


def test_the_workspace_is_that_of_the_address():
    """A kernel that copies what is not aligned asks for room by where an operand begins."""
    packing = [c for c in jax_moye.configs() if c.kernel == "sm90_cooperative" and c.alignment == 2]
    if not packing:
        pytest.skip("no config that packs in this build")
    problem = problem_of(columns(256, 1, 32))
    strides = tuple(problem.strides.values())
    of_offset = [
        ffi.workspace_bytes(packing[0].name, problem.sizes, strides, "bf16", offsets)
        for offsets in ((), (0, 1), (0, 8))
    ]
    assert of_offset[0] == of_offset[2] == 0
    assert of_offset[1] > 0
