"""Every feature that CuTe or MoYe.jl has and we decided to have is there, in the languages we decided to have it in.

The table's rows are those of the comparison the library was planned with: what Python has, what C++ has. A name moved
or dropped fails here; what a name does is tested elsewhere.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import defined
import pytest


class Row(NamedTuple):
    """A feature: Python names, dotted from jax_moye.layout on, and C++ names."""

    python: str
    cpp: str


ROWS = {
    "1 int tuples": Row(
        "int_tuple.flatten int_tuple.unflatten int_tuple.front int_tuple.back int_tuple.unwrap int_tuple.insert "
        "int_tuple.remove int_tuple.replace int_tuple.replace_front int_tuple.replace_back int_tuple.append "
        "int_tuple.prepend int_tuple.append_to_rank int_tuple.prepend_to_rank int_tuple.group int_tuple.tuple_cat "
        "int_tuple.zip_tuples int_tuple.zip2_by int_tuple.exclusive_scan int_tuple.repeat int_tuple.repeat_like "
        "int_tuple.transform_leaf int_tuple.foldl",
        "flatten unflatten front back unwrap insert remove replace replace_front replace_back append prepend group "
        "tuple_cat zip zip2_by exclusive_scan repeat repeat_like transform transform_leaf fold",
    ),
    "2 products and divisions": Row(
        "product product_each int_tuple.product_like size int_tuple.inner_product int_tuple.elem_scale shape_div "
        "ceil_div int_tuple.flatsum",
        "product product_each product_like size inner_product elem_scale shape_div ceil_div flatsum",
    ),
    "3 admissibility": Row(
        "congruent compatible weakly_congruent evenly_divides", "congruent compatible weakly_congruent evenly_divides"
    ),
    "4 order": Row(
        "elem_less int_tuple.colex_less int_tuple.lex_less int_tuple.elem_leq int_tuple.elem_gtr int_tuple.elem_geq "
        "increment coordinates",
        "elem_less colex_less lex_less elem_leq elem_gtr elem_geq increment coordinates",
    ),
    "5 static integers": Row("Layout.to_cpp", "Int C _0 _7 _10 _16 _8192 is_static static_value size_v"),
    "6 making layouts": Row("Layout make_layout", "Layout make_layout LayoutLeft LayoutRight"),
    "7 compact layouts": Row(
        "compact_col_major compact_row_major compact_order make_ordered_layout",
        "compact_col_major compact_row_major compact_order make_ordered_layout",
    ),
    "8 layouts like": Row("make_layout_like make_fragment_like", "make_layout_like make_fragment_like"),
    "9 coordinates as values": Row(
        "", "make_identity_layout make_identity_tensor ScaledBasis E ArithTuple coprofile coshape"
    ),
    "10 looking at layouts": Row(
        "size rank depth cosize get Layout.shape Layout.stride Layout.leaves Layout.__getitem__ Layout.__iter__ "
        "Layout.__len__",
        "size rank depth cosize shape stride get mode",
    ),
    "11 coordinates": Row(
        "Layout.__call__ crd2idx idx2crd crd2crd get_hier_coord get_flat_coord get_1d_coord",
        "crd2idx idx2crd crd2crd get_hier_coord get_flat_coord get_1d_coord",
    ),
    "12 slices": Row("slice_ dice slice_and_offset", "slice dice slice_and_offset"),
    "13 coalesce, filter": Row("coalesce filter filter_zeros", "coalesce filter filter_zeros"),
    "14 composition": Row("composition compose with_shape Layout.__matmul__", "composition compose with_shape"),
    "15 complement": Row("complement", "complement"),
    "16 inverses": Row("right_inverse left_inverse", "right_inverse left_inverse"),
    "17 divisions": Row(
        "logical_divide zipped_divide tiled_divide flat_divide tile",
        "logical_divide zipped_divide tiled_divide flat_divide tile",
    ),
    "18 products of layouts": Row(
        "logical_product blocked_product raked_product zipped_product tiled_product flat_product",
        "logical_product blocked_product raked_product zipped_product tiled_product flat_product",
    ),
    "19 tile_to_shape": Row("tile_to_shape", "tile_to_shape"),
    "20 element size": Row("upcast downcast recast recast_layout", "upcast downcast recast recast_layout"),
    "21 what layouts share": Row(
        "max_common_layout max_common_vector max_alignment", "max_common_layout max_common_vector max_alignment"
    ),
    "22 modes": Row(
        "nullspace domain_distribute make_cotiled_copy select take reverse append prepend group",
        "select take reverse append prepend group",
    ),
    "23 swizzles": Row("Swizzle ComposedLayout make_swizzle", "Swizzle ComposedLayout make_swizzle"),
    "24 tensors": Row(
        "Tensor make_tensor",
        "ArrayEngine ViewEngine Tensor make_tensor make_gmem_ptr make_smem_ptr make_rmem_ptr is_gmem is_smem is_rmem",
    ),
    "25 views": Row(
        "Tensor.numpy Tensor.__getitem__ Tensor.__call__ Tensor.group_modes Tensor.recast zeros copy",
        "make_tensor_like append prepend transpose group_modes recast fill clear sum copy domain_offset",
    ),
    "26 element by element": Row("", "transform for_each fold"),
    "27 bounds": Row("errors.CoordOutOfRange errors.OutOfDomain", "MOYE_BOUNDS_CHECK check_bounds out_of_bounds"),
    "28 tiles": Row("local_tile", "local_tile"),
    "29 partitions": Row("local_partition", "local_partition"),
    "30 to 36 copy instructions": Row(
        "UniversalCopy cp_async copy_op copy_op_names",
        "UniversalCopy SM80_CP_ASYNC_CACHEALWAYS SM80_CP_ASYNC_CACHEGLOBAL copy_zfill copy_if has_zfill_op "
        "cp_async_commit_group cp_async_wait_group cp_async_wait_all SM75_U32x1_LDSM_N SM75_U32x2_LDSM_N "
        "SM75_U32x4_LDSM_N SM75_U16x2_LDSM_T SM75_U16x4_LDSM_T SM75_U16x8_LDSM_T",
    ),
    "37, 38 MMA atoms": Row(
        "mma_ops_list mma_atom mma_atom_names UniversalFMA MmaAtom.shape_mnk MmaAtom.thr_id MmaAtom.layout_A_TV "
        "MmaAtom.layout_B_TV MmaAtom.layout_C_TV MmaAtom.dtype_A MmaAtom.registers MmaAtom.values_per_thread",
        "UniversalFMA MmaTraits MmaAtom ShapeMNK ThrId LayoutATV LayoutBTV LayoutCTV ValTypeA ARegisters",
    ),
    "39 copy atoms": Row(
        "CopyOp.bit_layout_src CopyOp.bit_layout_dst CopyOp.bit_layout_ref CopyAtom.val_layout_src "
        "CopyAtom.val_layout_dst CopyAtom.val_layout_ref CopyAtom.num_val_src CopyAtom.num_val_dst",
        "CopyTraits CopyAtom SrcLayout DstLayout RefLayout ValLayoutSrc ValLayoutDst ValLayoutRef kNumValSrc "
        "kNumValDst",
    ),
    "40 tiled copies": Row(
        "make_tiled_copy make_tiled_copy_A make_tiled_copy_B make_tiled_copy_C make_tiled_copy_S make_tiled_copy_D "
        "TiledCopy ThrCopy TiledCopy.get_slice TiledCopy.get_thread_slice TiledCopy.tile_size TiledCopy.size",
        "make_tiled_copy make_tiled_copy_A make_tiled_copy_B make_tiled_copy_C make_tiled_copy_S make_tiled_copy_D "
        "TiledCopy ThrCopy get_slice get_thread_slice tile_size size",
    ),
    "41 partitions of copies": Row(
        "ThrCopy.partition_S ThrCopy.partition_D ThrCopy.retile_S ThrCopy.retile_D TiledCopy.tidfrg_S "
        "TiledCopy.tidfrg_D TiledCopy.get_layoutS_TV TiledCopy.get_layoutD_TV TiledCopy.get_layoutS_MN "
        "TiledCopy.get_layoutD_MN",
        "partition_S partition_D retile_S retile_D tidfrg_S tidfrg_D get_layoutS_TV get_layoutD_TV get_layoutS_MN "
        "get_layoutD_MN",
    ),
    "42 tiled MMAs": Row(
        "make_tiled_mma TiledMma ThrMma TiledMma.get_slice TiledMma.tile_size TiledMma.tile_shape TiledMma.thrfrg_A "
        "TiledMma.thrfrg_B TiledMma.thrfrg_C TiledMma.get_layoutA_TV TiledMma.get_layoutB_TV TiledMma.get_layoutC_TV "
        "TiledMma.get_layoutA_MK TiledMma.get_layoutB_NK TiledMma.get_layoutC_MN TiledMma.get_thr_layout_vmnk",
        "make_tiled_mma TiledMma ThrMma get_slice tile_size tile_shape thrfrg_A thrfrg_B thrfrg_C get_layoutA_TV "
        "get_layoutB_TV get_layoutC_TV get_layoutA_MK get_layoutB_NK get_layoutC_MN get_thr_layout_vmnk",
    ),
    "43 partitions of MMAs": Row(
        "ThrMma.partition_A ThrMma.partition_B ThrMma.partition_C ThrMma.make_fragment_A ThrMma.make_fragment_B "
        "ThrMma.make_fragment_C ThrMma.partition_fragment_A ThrMma.partition_fragment_B ThrMma.partition_fragment_C "
        "TiledMma.partition_shape_A TiledMma.partition_shape_B TiledMma.partition_shape_C",
        "partition_A partition_B partition_C make_fragment_A make_fragment_B make_fragment_C partition_fragment_A "
        "partition_fragment_B partition_fragment_C partition_shape_A partition_shape_B partition_shape_C",
    ),
    "44 to 46 algorithms": Row("copy gemm axpby zeros", "copy copy_if as_operands gemm axpby clear"),
    "47, 48 pictures": Row(
        "print_layout print_typst print_latex to_text to_svg to_latex to_typst Layout.__str__ draw.Picture._repr_svg_",
        "",
    ),
    "49 device code": Row("", "MOYE_UNROLL MOYE_NO_UNROLL"),
    "50, 51 checks and schedules": Row(
        "checks.smem_bytes checks.occupancy checks.waves checks.bank_conflicts checks.sectors checks.coverage "
        "checks.alignment checks.widest_vector checks.register_estimate draw.draw_schedule draw.tile_coord",
        "",
    ),
}

# What a row names and we decided against.
DECIDED_AGAINST = {
    "make_identity_layout, make_identity_tensor, ScaledBasis in Python": "optional there: `coordinates(shape)` gives "
    "the values, and partitions of them are `layout.values()` and `idx2crd`",
    "cat": "make_layout(*layouts)",
    "static, @Layout, StaticLayout": "C++ types are static or not by their numbers; every layout of Python is static",
    "first, last, length": "L(0), L(size - 1), L.size; len(L) is the rank, as in CuTe",
    "get_congr_coord": "get_hier_coord: the coordinate nested like the shape",
    "tile2thrfrg": "thread_values: given the side's TV layout, it is what tidfrg_S and tidfrg_D call",
    "MixedBits": "ComposedLayout.outside and .inside: what the swizzle cannot touch stays in the pointer or static",
    "MoYeSharedArray": "shared memory is a struct of the kernel; make_smem_ptr",
    "broadcasting": "transform with a functor: expression templates would hide where registers are written",
    "elem_less of MoYe.jl": "lets all but the last element be equal: no predicate",
    "layout_d": "exported by MoYe.jl and not defined; ours is layout_C_TV",
}


def python_names():
    for row, names in ROWS.items():
        for name in names.python.split():
            yield pytest.param(name, id=f"{row.split()[0]}-{name}")


@pytest.mark.parametrize("name", list(python_names()))
def test_python(name):
    assert defined.in_python(name)


@pytest.mark.parametrize("row", [row for row in ROWS if ROWS[row].cpp])
def test_cpp(row):
    missing = [name for name in ROWS[row].cpp.split() if not defined.in_cpp(name)]
    assert not missing


def test_a_name_that_is_not_there_is_missed():
    assert not defined.in_cpp("flat_quotient")
    assert not defined.in_cpp("declval_of")
    assert not defined.in_python("flat_quotient")
    assert not defined.in_python("TiledCopy.get_quotient")


def test_rows_are_all_there():
    numbers = set()
    for row in ROWS:
        found = [int(n) for n in re.findall(r"\d+", re.match(r"[\d, to]+", row)[0])]
        numbers.update(range(found[0], found[-1] + 1))
    assert numbers == set(range(1, 52))
    assert all(DECIDED_AGAINST.values())
