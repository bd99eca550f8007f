r"""The algebra of layouts: CuTe's (and MoYe.jl's), in pure Python, 0-based and strict.

A layout is a shape and strides; it maps coordinates to indices. The operations make tilings, partitions and swizzles of
layouts, and every one that has no right answer raises a `LayoutError` that says why.

>>> from jax_moye.layout import Layout, composition, logical_divide, right_inverse
>>> L = Layout("(4,(2,2)):(2,(1,8))")
>>> L(3, 2), L.size, right_inverse(L)
(14, 16, Layout('(2,4,2):(4,1,8)'))
>>> logical_divide(L, (2, 2))
Layout('((2,2),(2,2)):((2,4),(1,8))')
>>> from jax_moye.layout import print_layout
>>> print_layout("(2,3):(3,1)")
(2,3):(3,1)
<BLANKLINE>
i\j | 0 1 2
----+------
  0 | 0 1 2
  1 | 3 4 5

Everywhere a layout is expected its text does too. Tiled copies and MMAs, made of atoms, partition layouts, and Tensors
over NumPy memory, on which `copy` and `gemm` do what the instructions do.

>>> from jax_moye.layout import CopyAtom, make_tiled_copy
>>> make_tiled_copy(CopyAtom("UniversalCopy<uint128_t>", "float32"), "(32,8)", "(4,1)")
TiledCopy: 256 threads, tile (128,8), UniversalCopy<uint128_t>

IntTuple functions are in `jax_moye.layout.int_tuple`, checks of copies and shared memory in `jax_moye.layout.checks`,
pictures in `jax_moye.layout.draw`, blocks of threads with barriers and asynchronous copies in `jax_moye.layout.block`.
"""

import importlib
from typing import TYPE_CHECKING

from jax_moye.layout import errors as errors
from jax_moye.layout import int_tuple as int_tuple
from jax_moye.layout.algebra import coalesce as coalesce
from jax_moye.layout.algebra import complement as complement
from jax_moye.layout.algebra import compose as compose
from jax_moye.layout.algebra import composition as composition
from jax_moye.layout.algebra import domain_distribute as domain_distribute
from jax_moye.layout.algebra import filter as filter
from jax_moye.layout.algebra import filter_zeros as filter_zeros
from jax_moye.layout.algebra import functionally_equal as functionally_equal
from jax_moye.layout.algebra import with_shape as with_shape
from jax_moye.layout.atoms import CopyAtom as CopyAtom
from jax_moye.layout.atoms import CopyOp as CopyOp
from jax_moye.layout.atoms import MmaAtom as MmaAtom
from jax_moye.layout.atoms import UniversalCopy as UniversalCopy
from jax_moye.layout.atoms import UniversalFMA as UniversalFMA
from jax_moye.layout.atoms import copy_op as copy_op
from jax_moye.layout.atoms import copy_op_names as copy_op_names
from jax_moye.layout.atoms import cp_async as cp_async
from jax_moye.layout.atoms import gmma_smem_atom as gmma_smem_atom
from jax_moye.layout.atoms import mma_atom as mma_atom
from jax_moye.layout.atoms import mma_atom_names as mma_atom_names
from jax_moye.layout.atoms import mma_ops_list as mma_ops_list
from jax_moye.layout.cast import downcast as downcast
from jax_moye.layout.cast import recast as recast
from jax_moye.layout.cast import recast_layout as recast_layout
from jax_moye.layout.cast import upcast as upcast
from jax_moye.layout.coords import compact_col_major as compact_col_major
from jax_moye.layout.coords import compact_order as compact_order
from jax_moye.layout.coords import compact_row_major as compact_row_major
from jax_moye.layout.coords import coordinates as coordinates
from jax_moye.layout.coords import crd2crd as crd2crd
from jax_moye.layout.coords import increment as increment
from jax_moye.layout.divide import blocked_product as blocked_product
from jax_moye.layout.divide import flat_divide as flat_divide
from jax_moye.layout.divide import flat_product as flat_product
from jax_moye.layout.divide import logical_divide as logical_divide
from jax_moye.layout.divide import logical_product as logical_product
from jax_moye.layout.divide import raked_product as raked_product
from jax_moye.layout.divide import tile as tile
from jax_moye.layout.divide import tile_to_shape as tile_to_shape
from jax_moye.layout.divide import tiled_divide as tiled_divide
from jax_moye.layout.divide import tiled_product as tiled_product
from jax_moye.layout.divide import zipped_divide as zipped_divide
from jax_moye.layout.divide import zipped_product as zipped_product
from jax_moye.layout.errors import LayoutError as LayoutError
from jax_moye.layout.execute import axpby as axpby
from jax_moye.layout.execute import copy as copy
from jax_moye.layout.execute import gemm as gemm
from jax_moye.layout.gmma import GmmaDescriptor as GmmaDescriptor
from jax_moye.layout.gmma import make_gmma_desc as make_gmma_desc
from jax_moye.layout.int_tuple import IntTuple as IntTuple
from jax_moye.layout.int_tuple import Underscore as Underscore
from jax_moye.layout.int_tuple import _ as _
from jax_moye.layout.int_tuple import ceil_div as ceil_div
from jax_moye.layout.int_tuple import compatible as compatible
from jax_moye.layout.int_tuple import congruent as congruent
from jax_moye.layout.int_tuple import elem_less as elem_less
from jax_moye.layout.int_tuple import evenly_divides as evenly_divides
from jax_moye.layout.int_tuple import product as product
from jax_moye.layout.int_tuple import product_each as product_each
from jax_moye.layout.int_tuple import shape_div as shape_div
from jax_moye.layout.int_tuple import weakly_congruent as weakly_congruent
from jax_moye.layout.inverse import left_inverse as left_inverse
from jax_moye.layout.inverse import max_alignment as max_alignment
from jax_moye.layout.inverse import max_common_layout as max_common_layout
from jax_moye.layout.inverse import max_common_vector as max_common_vector
from jax_moye.layout.inverse import nullspace as nullspace
from jax_moye.layout.inverse import right_inverse as right_inverse
from jax_moye.layout.layout import Layout as Layout
from jax_moye.layout.layout import Tile as Tile
from jax_moye.layout.modes import append as append
from jax_moye.layout.modes import cosize as cosize
from jax_moye.layout.modes import crd2idx as crd2idx
from jax_moye.layout.modes import depth as depth
from jax_moye.layout.modes import dice as dice
from jax_moye.layout.modes import flatten as flatten
from jax_moye.layout.modes import get as get
from jax_moye.layout.modes import get_1d_coord as get_1d_coord
from jax_moye.layout.modes import get_flat_coord as get_flat_coord
from jax_moye.layout.modes import get_hier_coord as get_hier_coord
from jax_moye.layout.modes import group as group
from jax_moye.layout.modes import idx2crd as idx2crd
from jax_moye.layout.modes import make_layout as make_layout
from jax_moye.layout.modes import make_layout_like as make_layout_like
from jax_moye.layout.modes import make_ordered_layout as make_ordered_layout
from jax_moye.layout.modes import prepend as prepend
from jax_moye.layout.modes import rank as rank
from jax_moye.layout.modes import reverse as reverse
from jax_moye.layout.modes import select as select
from jax_moye.layout.modes import size as size
from jax_moye.layout.modes import slice_ as slice_
from jax_moye.layout.modes import slice_and_offset as slice_and_offset
from jax_moye.layout.modes import take as take
from jax_moye.layout.notation import parse as parse
from jax_moye.layout.notation import parse_tiler as parse_tiler
from jax_moye.layout.swizzle import ComposedLayout as ComposedLayout
from jax_moye.layout.swizzle import Swizzle as Swizzle
from jax_moye.layout.swizzle import make_swizzle as make_swizzle
from jax_moye.layout.tensor import Tensor as Tensor
from jax_moye.layout.tensor import local_partition as local_partition
from jax_moye.layout.tensor import local_tile as local_tile
from jax_moye.layout.tensor import make_fragment_like as make_fragment_like
from jax_moye.layout.tensor import make_tensor as make_tensor
from jax_moye.layout.tensor import zeros as zeros
from jax_moye.layout.tiled import ThrCopy as ThrCopy
from jax_moye.layout.tiled import ThrMma as ThrMma
from jax_moye.layout.tiled import TiledCopy as TiledCopy
from jax_moye.layout.tiled import TiledMma as TiledMma
from jax_moye.layout.tiled import make_cotiled_copy as make_cotiled_copy
from jax_moye.layout.tiled import make_tiled_copy as make_tiled_copy
from jax_moye.layout.tiled import make_tiled_copy_A as make_tiled_copy_A
from jax_moye.layout.tiled import make_tiled_copy_B as make_tiled_copy_B
from jax_moye.layout.tiled import make_tiled_copy_C as make_tiled_copy_C
from jax_moye.layout.tiled import make_tiled_copy_D as make_tiled_copy_D
from jax_moye.layout.tiled import make_tiled_copy_S as make_tiled_copy_S
from jax_moye.layout.tiled import make_tiled_mma as make_tiled_mma

if TYPE_CHECKING:
    from jax_moye.layout import block as block
    from jax_moye.layout import checks as checks
    from jax_moye.layout.draw import print_latex as print_latex
    from jax_moye.layout.draw import print_layout as print_layout
    from jax_moye.layout.draw import print_typst as print_typst
    from jax_moye.layout.draw import to_latex as to_latex
    from jax_moye.layout.draw import to_svg as to_svg
    from jax_moye.layout.draw import to_text as to_text
    from jax_moye.layout.draw import to_typst as to_typst

_PICTURES = ("print_latex", "print_layout", "print_typst", "to_latex", "to_svg", "to_text", "to_typst")


def __getattr__(name: str) -> object:
    """Blocks, checks and pictures are imported when they are first used."""
    if name in ("block", "checks"):
        return importlib.import_module(f"jax_moye.layout.{name}")
    if name in _PICTURES:
        return getattr(importlib.import_module("jax_moye.layout.draw"), name)
    message = f"module {__name__!r} has no attribute {name!r}"
    if not name.startswith("__"):
        found = importlib.import_module("jax_moye.layout.names").lookup(name)
        if found and found[0].python:
            theirs = "MoYe.jl's" if found[0].moye.lstrip("@").rstrip("!") == name else "CuTe's"
            message += f": {theirs} {name} is {', '.join(found[0].python.split())} here"
    raise AttributeError(message)


def __dir__() -> list[str]:
    """With what is imported when it is first used."""
    return sorted({*globals(), "block", "checks", *_PICTURES})
