"""The table of MoYe.jl's and CuTe's names: every name that readers come with is in it, and what it names is there."""

from __future__ import annotations

import doctest
import re

import defined
import numpy as np
import pytest

import jax_moye.layout as lay
from jax_moye.layout import CopyAtom, UniversalCopy, errors, make_tensor, make_tiled_copy, names
from jax_moye.layout.execute import axpby, copy

# What MoYe.jl exports.
EXPORTED = """
static @gc_preserve static_size @loopinfo flatten unflatten colex_less elem_less increment capacity coord_to_index
index_to_coord coord_to_coord compact_col_major compact_row_major GenColMajor GenRowMajor @Layout Layout StaticLayout
make_layout shape rank depth cosize composition complement logical_product blocked_product raked_product zipped_product
tiled_product logical_divide zipped_divide tiled_divide zeros! recast right_inverse left_inverse tile_to_shape
print_layout print_typst ArrayEngine ViewEngine MoYeArray make_fragment_like @parallelize @tile MoYeSharedArray
MMATraits shape_mnk thr_id layout_a layout_b layout_c layout_d CopyAtom make_tiled_copy get_slice partition_D
partition_S UniversalFMA UniversalCopy CPOP_ASYNC_CACHEALWAYS CPOP_ASYNC_CACHEGLOBAL MMAAtom make_tiled_mma partition_C
partition_A partition_B tile_size partition_fragment_C partition_fragment_A partition_fragment_B make_tiled_copy_A
make_tiled_copy_B make_tiled_copy_C make_fragment_A make_fragment_B make_fragment_C retile_D retile_S isgmem issmem
isrmem axpby! gemm! cp_async_wait cp_async_commit _1 LDSM_U32x1_N LDSM_U32x2_N LDSM_U32x4_N LDSM_U16x2_T LDSM_U16x4_T
LDSM_U16x8_T
"""
# What the five documents call besides.
OF_THE_DOCUMENTS = """
copyto! sync_threads threadIdx blockIdx size view @views eltype @inbounds @cuda cld mma_ops_list
MMAOP_8x8x4_F32F16F16F32_NT MMAOP_16x8x8_F32TF32TF32F32_TN
"""
OF_CUTE = """
cp_async_fence cp_async_wait<N> local_tile local_partition copy gemm clear Copy_Atom TiledMMA Swizzle
"""


@pytest.mark.parametrize("name", " ".join([EXPORTED, OF_THE_DOCUMENTS, OF_CUTE]).split())
def test_every_name_is_in_the_table(name):
    assert names.lookup(name)


def test_a_name_that_is_not_there_is_not_found():
    assert not names.lookup("MMAOP_")
    assert not names.lookup("copy_to")


@pytest.mark.parametrize("row", [pytest.param(row, id=row.moye or row.cute) for row in names.NAMES])
def test_what_it_is_called_here_is_there(row):
    assert [name for name in row.python.split() if not defined.in_python(name)] == []
    assert [name for name in row.cpp.split() if not defined.in_cpp(name)] == []
    assert (row.python and row.cpp) or row.note, "a name without an equal says why"


def test_no_row_twice():
    rows = [(row.moye, row.cute) for row in names.NAMES]
    assert len(set(rows)) == len(rows)


def test_lookup():
    assert doctest.testmod(names).failed == 0
    (row,) = names.lookup("MMAOP_8x8x4_F32F16F16F32_NT")
    assert "mma_atom" in row.python
    assert lay.mma_atom("MMAOP_8x8x4_F32F16F16F32_NT").name == "SM70_8x8x4_F32F16F16F32_NT"
    for name in ("LDSM_U16x8_T", "CPOP_ASYNC_CACHEALWAYS{UInt128}", "CPOP_ASYNC_CACHEGLOBAL{UInt128}"):
        assert lay.copy_op(name).name.startswith("SM")


def test_a_name_is_a_text():
    with pytest.raises(TypeError, match="lookup: name is a text such as '@tile', not 3"):
        names.lookup(3)


def test_a_missing_name_says_what_it_is_called_here():
    with pytest.raises(AttributeError, match=r"MoYe\.jl's MoYeArray is Tensor, make_tensor"):
        lay.MoYeArray  # noqa: B018
    with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
        lay.nothing  # noqa: B018


def test_markdown():
    text = names.as_markdown()
    lines = text.splitlines()
    assert len(lines) == len(names.NAMES) + 2
    assert {line.count(" | ") for line in lines[2:]} == {4}
    assert "| `@tile` | `local_tile` | `local_tile` | `local_tile` |" in text


def test_differences_are_as_they_say():
    def said(what):
        (found,) = [d for d in names.DIFFERENCES if what in d.what]
        return found.ours

    assert "raises StrideDivisibility" in said("composition")
    with pytest.raises(errors.StrideDivisibility):
        lay.composition("(4,3):(3,1)", "4:3")
    assert re.search(r"\(2,2\):\(1,2\)", said("make_layout_like"))
    assert lay.make_layout_like("(2,2):(1,1)") == lay.Layout("(2,2):(1,2)")
    assert lay.elem_less((1, 2, 3), (1, 2, 4)) is False


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (16, (16,), True),
        (16, (8,), True),
        (16, (5,), False),
        (16, (4, 4), False),
        ((16, 8), (4,), True),
        ((16, 8), 32, True),
        (((4, 4), 8), (16, 8), True),
        ((16, 6), (4, 4), False),
    ],
)
def test_evenly_divides_takes_an_integer_for_one_mode(a, b, expected):
    assert lay.evenly_divides(a, b) is expected


def test_size_of_modes_tensors_and_tiled_operations():
    t = make_tensor("float32", "(4,(2,3)):(1,(4,8))")
    assert (lay.size(t), lay.size(t, 1), lay.size(t, 1, 1), lay.size("(4,2):(1,4)", 0)) == (24, 6, 3, 4)
    assert lay.size((4, (2, 3)), 1) == lay.size(lay.Layout((4, (2, 3))), 1) == 6
    assert lay.size(lay.make_tiled_mma("MMAOP_16x8x8_F32TF32TF32F32_TN")) == 32
    assert lay.size(make_tiled_copy(CopyAtom(UniversalCopy("f32"), "f32"), "(32,8)", "(1,1)")) == 256
    with pytest.raises(errors.ModeOutOfRange):
        lay.size(t, 2)


# ---- The order of operands -----------------------------------------------------------------------------------------


@pytest.fixture
def six():
    """Document 001's copy by six threads: the operands' numbers, and thread 1's parts."""
    tiled = make_tiled_copy(CopyAtom(UniversalCopy("float64"), "float64"), "(2,3):(3,1)", "(2,3):(1,2)")
    src, dst = make_tensor(np.arange(1, 37) * 0.1, (4, 9)), make_tensor(np.zeros(36), (4, 9))
    return tiled, src, dst, tiled.get_slice(1)


def test_julias_order_raises_and_copies_nothing(six):
    tiled, src, dst, thread = six
    src_t, dst_t = thread.partition_S(src), thread.partition_D(dst)
    before = src.numpy(), dst.numpy()
    fragment = lay.make_fragment_like(dst_t)
    for operands in (
        (thread, dst_t, src_t),
        (dst_t, src_t),
        (thread, fragment, src_t),
        (tiled, dst, [tiled.get_slice(t).partition_S(src) for t in range(6)]),
        (tiled, [tiled.get_slice(t).partition_D(dst) for t in range(6)], src),
        (thread, dst_t[lay._, 0, 0], src_t[lay._, 0, 0]),
        (thread, thread.retile_D(fragment), src_t),
    ):
        with pytest.raises(errors.OperandOrder, match=r"nothing was copied.*copyto!"):
            copy(*operands)
    assert np.array_equal(src.numpy(), before[0])
    assert np.array_equal(dst.numpy(), before[1])
    copy(thread, src_t, fragment)
    copy(thread, fragment, dst_t)
    assert np.array_equal(dst_t.numpy(), src_t.numpy())


def test_new_memory_is_no_source(six):
    tiled, src, _dst, thread = six
    new = make_tensor("float64", (4, 9))
    part = tiled.get_slice(0).partition_S(src)
    fragment = lay.make_fragment_like(part)
    before = src.numpy()
    for operands in ((tiled, new, src), (new, src), (fragment, make_tensor(src.data, fragment.layout))):
        with pytest.raises(errors.NotWritten, match="nothing was copied"):
            copy(*operands)
    assert np.array_equal(src.numpy(), before)
    # A NaN of arithmetic, and integers with all bits set, are numbers like others.
    copy(thread, make_tensor(np.full(36, np.nan), thread.partition_S(src).layout), fragment)
    ones = make_tensor(np.full(4, -1, np.int32), (4,))
    copy(ones, make_tensor("int32", (4,)))


def test_axpby():
    x, y = make_tensor(np.arange(6, dtype=np.float32), (2, 3)), make_tensor("float32", (2, 3))
    axpby(2, x, 0, y)  # y was never written: all NaN
    assert y.numpy().tolist() == [[0, 4, 8], [2, 6, 10]]
    axpby(1, x, -0.5, y)
    assert not y.numpy().any()
    with pytest.raises(errors.ProfileMismatch):
        axpby(1, x, 1, make_tensor("float32", (2, 2)))
    with pytest.raises(errors.InvalidType):
        axpby(1, x.numpy(), 1, y)
