"""What MoYe.jl and CuTe call things, and what they are called here: a table for readers who come from there.

The site's page for them renders the table. `lookup` finds a name in it, with Julia's spelling or without:

>>> print(lookup("copyto!")[0].python)
copy
>>> [name.moye for name in lookup("cp_async_fence")]
['cp_async_commit']
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class Name:
    """One thing and its names.

    Attributes:
      moye: MoYe.jl's or Julia's name, as documents write it; "" for what only CuTe has.
      cute: CuTe's name, or "" where it has none.
      python: names in `jax_moye.layout`, separated by blanks and dotted from there on; "" for none.
      cpp: names in `cuda/moye`, separated by blanks; "" for none.
      note: what differs; and why there is no name, where there is none.
    """

    moye: str
    cute: str
    python: str
    cpp: str
    note: str = ""


@dataclasses.dataclass(frozen=True)
class Difference:
    """Something of the same name that does not do the same.

    Attributes:
      of: "CuTe" or "MoYe.jl".
      what: the name and the case.
      theirs: what they do.
      ours: what is done here, in Python and C++.
    """

    of: str
    what: str
    theirs: str
    ours: str


_ONE_BASED = "Counts from 0: thread 1 of MoYe.jl is thread 0."
_STATIC = "Every layout of Python is static; in C++ a number is static by its type."

NAMES: tuple[Name, ...] = (
    # ---- Layouts
    Name("Layout", "Layout", "Layout", "Layout", "`L(i, j)` counts from 0."),
    Name("StaticLayout", "", "Layout", "is_static", _STATIC),
    Name(
        "@Layout",
        "Layout<Shape<...>, Stride<...>>",
        "Layout",
        "Layout",
        'In Python a text does: `Layout("(2,3):(3,1)")`, or `"(_2,_3):(_3,_1)"`, as CuTe and MoYe.jl print it.',
    ),
    Name("make_layout", "make_layout", "make_layout", "make_layout"),
    Name("GenColMajor", "LayoutLeft", "compact_col_major", "LayoutLeft"),
    Name("GenRowMajor", "LayoutRight", "compact_row_major", "LayoutRight"),
    Name("compact_col_major", "compact_col_major", "compact_col_major", "compact_col_major"),
    Name("compact_row_major", "compact_row_major", "compact_row_major", "compact_row_major"),
    Name("static", "Int<N>", "", "Int C", _STATIC),
    Name("_1", "_1", "", "_0 _1 _2 _16 _8192", "`_1` as an index counts from 1: it is `0` here. " + _STATIC),
    Name("static_size", "size<I>", "size", "size size_v", "`static_size(x, 3)` is `size(x, 2)`. " + _STATIC),
    Name("size(x, i)", "size<I>", "size", "size", "`size(x, 1)` is `size(x, 0)`: modes count from 0."),
    Name("size(mma)", "size(mma)", "size TiledMma.size TiledCopy.size", "size", "The number of threads."),
    Name("length", "size", "size", "size", "`len(L)` is the rank, as modes are what one iterates over."),
    Name("shape", "shape", "Layout.shape Tensor.shape", "shape"),
    Name("stride", "stride", "Layout.stride", "stride"),
    Name("rank", "rank", "rank", "rank"),
    Name("depth", "depth", "depth", "depth"),
    Name("cosize", "cosize", "cosize", "cosize"),
    Name("capacity", "product", "product", "product"),
    Name("flatten", "flatten", "flatten int_tuple.flatten", "flatten"),
    Name("unflatten", "unflatten", "int_tuple.unflatten", "unflatten"),
    Name("colex_less", "colex_less", "int_tuple.colex_less", "colex_less"),
    Name("elem_less", "elem_less", "elem_less", "elem_less"),
    Name("increment", "increment", "increment", "increment"),
    Name("coord_to_index", "crd2idx", "crd2idx", "crd2idx", "Counts from 0."),
    Name("index_to_coord", "idx2crd", "idx2crd", "idx2crd", "Counts from 0."),
    Name("coord_to_coord", "crd2crd", "crd2crd", "crd2crd", "Counts from 0."),
    Name("composition / ∘", "composition", "composition", "composition", "In Python `A @ B`, too."),
    Name("complement", "complement", "complement", "complement"),
    Name("right_inverse", "right_inverse", "right_inverse", "right_inverse"),
    Name("left_inverse", "left_inverse", "left_inverse", "left_inverse"),
    Name("recast", "recast", "recast recast_layout Tensor.recast", "recast"),
    *(
        Name(name, name, name, name)
        for name in (
            *("logical_divide", "zipped_divide", "tiled_divide", "logical_product", "blocked_product"),
            *("raked_product", "zipped_product", "tiled_product", "tile_to_shape"),
        )
    ),
    Name("print_layout", "print_layout", "print_layout", "", "Pictures are made in Python, of any C++ layout's text."),
    Name(
        "print_typst",
        "print_latex",
        "print_typst print_latex",
        "",
        "Pictures are made in Python; `to_svg` is one more.",
    ),
    # ---- Arrays
    Name(
        "MoYeArray",
        "Tensor / make_tensor",
        "Tensor make_tensor",
        "Tensor make_tensor",
        'Over an array: `make_tensor(array, layout)`; with memory of its own: `make_tensor("float32", layout)`.',
    ),
    Name(
        "MoYeSharedArray",
        "make_tensor(make_smem_ptr(p), layout)",
        "block.Block.shared make_tensor",
        "make_smem_ptr make_tensor",
        "A member of the kernel's struct of shared memory in C++.",
    ),
    Name(
        "ArrayEngine",
        "make_tensor<T>(layout)",
        "make_tensor",
        "make_tensor",
        "A tensor that owns its memory: registers.",
    ),
    Name("ViewEngine", "make_tensor(ptr, layout)", "Tensor", "Pointer", "A tensor over somebody else's memory."),
    Name("isgmem", "is_gmem", "", "is_gmem", "Memory has a space in a Block alone: Block.shared, Block.global_memory."),
    Name("issmem", "is_smem", "", "is_smem", "As for isgmem."),
    Name("isrmem", "is_rmem", "", "is_rmem", "As for isgmem."),
    Name("eltype", "value_type", "Tensor.dtype", "Value"),
    Name(
        "view / @views",
        "tensor(_, i)",
        "Tensor.__getitem__",
        "Tensor",
        "`view(t, :, :, _1)` is `t[_, _, 0]`; in C++ `t(_, _, 0)`.",
    ),
    Name("make_fragment_like", "make_fragment_like", "make_fragment_like", "make_fragment_like"),
    Name(
        "@tile",
        "local_tile",
        "local_tile",
        "local_tile",
        "`@tile x (bM, bK) (i, :)` is `local_tile(x, (bM, bK), (i, _))`.",
    ),
    Name(
        "@parallelize",
        "local_partition",
        "local_partition",
        "local_partition",
        "`@parallelize x threads i` is `local_partition(x, threads, i)`.",
    ),
    Name("zeros!", "clear", "zeros", "clear", "`zeros(tensor)` sets it to 0."),
    # ---- Atoms and tilings
    Name(
        "CopyAtom",
        "Copy_Atom",
        "CopyAtom",
        "CopyAtom",
        "`CopyAtom{Op, T}()` is `CopyAtom(op, dtype)`; texts do for both.",
    ),
    Name("UniversalCopy", "UniversalCopy", "UniversalCopy", "UniversalCopy"),
    Name(
        "CPOP_ASYNC_CACHEALWAYS",
        "SM80_CP_ASYNC_CACHEALWAYS",
        "copy_op cp_async",
        "SM80_CP_ASYNC_CACHEALWAYS",
        '`CopyAtom("CPOP_ASYNC_CACHEALWAYS{UInt128}", "Float32")` is understood as it stands.',
    ),
    Name(
        "CPOP_ASYNC_CACHEGLOBAL",
        "SM80_CP_ASYNC_CACHEGLOBAL",
        "copy_op cp_async",
        "SM80_CP_ASYNC_CACHEGLOBAL",
        "16 bytes.",
    ),
    *(
        Name(
            f"LDSM_{kind}",
            f"SM75_{cute}",
            "copy_op",
            f"SM75_{cute}",
            "Understood as it stands by `copy_op` and CopyAtom.",
        )
        for kind, cute in (
            ("U32x1_N", "U32x1_LDSM_N"),
            ("U32x2_N", "U32x2_LDSM_N"),
            ("U32x4_N", "U32x4_LDSM_N"),
            ("U16x2_T", "U16x2_LDSM_T"),
            ("U16x4_T", "U16x4_LDSM_T"),
            ("U16x8_T", "U16x8_LDSM_T"),
        )
    ),
    Name("make_tiled_copy", "make_tiled_copy", "make_tiled_copy", "make_tiled_copy"),
    Name("make_tiled_copy_A", "make_tiled_copy_A", "make_tiled_copy_A", "make_tiled_copy_A"),
    Name("make_tiled_copy_B", "make_tiled_copy_B", "make_tiled_copy_B", "make_tiled_copy_B"),
    Name("make_tiled_copy_C", "make_tiled_copy_C", "make_tiled_copy_C", "make_tiled_copy_C"),
    Name("get_slice", "get_slice", "TiledCopy.get_slice TiledMma.get_slice", "get_slice", _ONE_BASED),
    Name("partition_S", "partition_S", "ThrCopy.partition_S", "partition_S"),
    Name("partition_D", "partition_D", "ThrCopy.partition_D", "partition_D"),
    Name("retile_S", "retile_S", "ThrCopy.retile_S", "retile_S"),
    Name("retile_D", "retile_D", "ThrCopy.retile_D", "retile_D"),
    Name("tile_size", "tile_size", "TiledCopy.tile_size TiledMma.tile_size", "tile_size"),
    Name(
        "MMAOP_*",
        "SM80_16x8x8_F32TF32TF32F32_TN",
        "mma_atom mma_ops_list",
        "SM80_16x8x8_F32TF32TF32F32_TN",
        "All 51 are understood as they stand by `mma_atom` and `make_tiled_mma`.",
    ),
    Name("mma_ops_list", "", "mma_ops_list", "", "A list to read; in C++ an instruction is a type."),
    Name("UniversalFMA", "UniversalFMA", "UniversalFMA", "UniversalFMA"),
    Name("MMAAtom", "MMA_Atom", "MmaAtom mma_atom", "MmaAtom"),
    Name("MMATraits", "MMA_Traits", "MmaAtom", "MmaTraits", "Python's atom has the traits as attributes."),
    Name("shape_mnk", "Shape_MNK", "MmaAtom.shape_mnk", "ShapeMNK"),
    Name("thr_id", "ThrID", "MmaAtom.thr_id CopyAtom.thr_id", "ThrId"),
    Name("layout_a", "ALayout", "MmaAtom.layout_A_TV", "LayoutATV"),
    Name("layout_b", "BLayout", "MmaAtom.layout_B_TV", "LayoutBTV"),
    Name("layout_c", "CLayout", "MmaAtom.layout_C_TV", "LayoutCTV"),
    Name("layout_d", "CLayout", "MmaAtom.layout_D_TV", "LayoutCTV", "MoYe.jl exports the name and does not define it."),
    Name("make_tiled_mma", "make_tiled_mma", "make_tiled_mma", "make_tiled_mma"),
    *(
        Name(name, name, f"ThrMma.{name}", name)
        for name in (
            *("partition_A", "partition_B", "partition_C", "make_fragment_A", "make_fragment_B", "make_fragment_C"),
            *("partition_fragment_A", "partition_fragment_B", "partition_fragment_C"),
        )
    ),
    # ---- What a kernel does
    Name(
        "copyto!",
        "copy",
        "copy",
        "copy",
        "The source comes first: `copyto!(tiled_copy, dst, src)` is `copy(tiled_copy, src, dst)`. In the other order "
        "Python raises OperandOrder where a part was cut by partition_S or partition_D, and NotWritten where the "
        "source is new memory. Two whole tensors of your own arrays show no order: cut them into parts.",
    ),
    Name(
        "gemm!",
        "gemm",
        "gemm",
        "gemm",
        "In MoYe.jl's order: `gemm(mma, d, a, b, c)`. In C++ `gemm(mma, a, b, c)` is CuTe's, with d = c.",
    ),
    Name("axpby!", "axpby", "axpby", "axpby", "`axpby(alpha, x, beta, y)`, in MoYe.jl's order."),
    Name(
        "cp_async_commit",
        "cp_async_fence",
        "block.Threads.cp_async_commit_group",
        "cp_async_commit_group",
        "In a Block; `copy` outside of one has taken effect on return.",
    ),
    Name(
        "cp_async_wait",
        "cp_async_wait<N>",
        "block.Threads.cp_async_wait_group block.Threads.cp_async_wait_all",
        "cp_async_wait_group cp_async_wait_all",
        "`cp_async_wait()` is cp_async_wait_all.",
    ),
    Name(
        "sync_threads",
        "__syncthreads",
        "block.Threads.sync_threads",
        "sync_threads",
        "In a Block: `yield cta.sync_threads()`.",
    ),
    Name(
        "threadIdx().x", "threadIdx.x", "", "thread_idx", "A thread is the number that `get_slice` takes. " + _ONE_BASED
    ),
    Name(
        "blockIdx().x",
        "blockIdx.x",
        "",
        "block_idx",
        "A block is the coordinate that `local_tile` takes. " + _ONE_BASED,
    ),
    Name("@cuda", "kernel<<<...>>>", "block.Block.run", "launch_kernel", "Python runs one block."),
    Name("@loopinfo", "CUTE_UNROLL", "", "MOYE_UNROLL", "Nothing is unrolled in Python."),
    Name(
        "@gc_preserve",
        "",
        "",
        "",
        "Keeps Julia's garbage collector away from an array; Python and C++ need no such thing.",
    ),
    Name(
        "@inbounds",
        "",
        "",
        "",
        "Python checks every index; C++ does with MOYE_BOUNDS_CHECK, which is a build's choice.",
    ),
    Name("cld", "ceil_div", "ceil_div", "ceil_div"),
    # ---- What only CuTe has
    Name("", "Swizzle", "Swizzle", "Swizzle"),
    Name("", "ComposedLayout", "ComposedLayout", "ComposedLayout"),
    Name("", "TiledCopy / ThrCopy", "TiledCopy ThrCopy", "TiledCopy ThrCopy"),
    Name("", "TiledMMA / ThrMMA", "TiledMma ThrMma", "TiledMma ThrMma", "One capital letter a word."),
    Name("", "copy_if", "", "copy_if", "Residues are cut off by `allow_residue` and NumPy's bounds in Python."),
    Name(
        "",
        "make_tma_copy",
        "block.Threads.tma_load block.Threads.tma_store",
        "make_tensor_map tma_load tma_store",
        "A tensor map is made on the host; in a Block the box's Tensors are given.",
    ),
    Name("", "warpgroup_wait", "", "warpgroup_wait_group", "`gemm` of Python has taken effect on return."),
    Name(
        "",
        "ClusterTransactionBarrier",
        "block.Threads.mbarrier_init block.Threads.mbarrier_arrive_expect_tx block.Threads.mbarrier_wait",
        "mbarrier_init mbarrier_arrive_expect_tx mbarrier_wait",
        "PTX's words.",
    ),
)

DIFFERENCES: tuple[Difference, ...] = (
    Difference(
        "MoYe.jl",
        "the order of operands of `copyto!`",
        "destination first",
        "source first, as CuTe's copy; the other order raises where the operands show it",
    ),
    Difference("MoYe.jl", "indices, threads, blocks and modes", "count from 1", "count from 0"),
    Difference(
        "MoYe.jl",
        "`elem_less((1,2,3), (1,2,4))`",
        "true: all but the last may be equal",
        "false: every element must be less, as in CuTe; it is the predicate of residue tiles",
    ),
    Difference(
        "MoYe.jl",
        "layouts of MMAOP_16x8x4_F32TF32TF32F32_TN and of the int8 MMAOP_16x8x16 and MMAOP_8x8x16",
        "differ from PTX",
        "PTX's and CuTe's",
    ),
    Difference(
        "MoYe.jl",
        "`left_inverse`",
        "the right inverse of the layout and its complement",
        "CuTe's quasi-inverse: another layout in some cases, the same on the layout's image",
    ),
    Difference(
        "CuTe",
        "`composition` of layouts that do not divide, (4,3):(3,1) o 4:3",
        "returns a layout that is not the composition, or stops the compilation",
        "raises StrideDivisibility, ShapeDivisibility, Carry or OutOfDomain; in C++ a static_assert",
    ),
    Difference(
        "CuTe",
        "`make_layout_like` of two modes of the same stride, (2,2):(1,1)",
        "both get the same new stride: (2,2):(1,1), which is not injective",
        "the first gets the smaller one: (2,2):(1,2), injective",
    ),
    Difference(
        "CuTe",
        "the divides, where the tile does not divide the layout",
        "round up: the result is larger than the layout",
        "raise, unless `allow_residue=True`",
    ),
    Difference(
        "CuTe",
        "`axpby` with beta == 0",
        "does not read y, either",
        "the same: a NaN in y does not survive; MoYe.jl's axpby! does not run on its arrays",
    ),
)


def lookup(name: str) -> list[Name]:
    """The rows in which a name of MoYe.jl, Julia or CuTe stands.

    Args:
      name: `copyto!`, `MMAOP_16x8x8_F32TF32TF32F32_TN`, `cp_async_fence`, with or without `@` and `!`.

    Raises:
      TypeError: it is no text.
    """
    if not isinstance(name, str):
        raise TypeError(f"lookup: name is a text such as '@tile', not {name!r}")
    wanted = _bare(name)
    return [row for row in NAMES if any(_matches(wanted, own) for own in _spellings(row))]


def _bare(name: str) -> str:
    return name.strip().lstrip("@").rstrip("!").partition("(")[0]


def _spellings(row: Name) -> Iterable[str]:
    for text in (row.moye, row.cute):
        yield from (_bare(part) for part in text.split(" / ") if part)


def _matches(wanted: str, own: str) -> bool:
    return wanted == own or (own.endswith("*") and re.match(re.escape(own[:-1]) + r"\w", wanted) is not None)


def as_markdown(rows: Iterable[Name] = NAMES) -> str:
    """The table as Markdown: MoYe.jl, CuTe, Python, C++, remarks."""

    def code(text: str, separator: str) -> str:
        escaped = text.replace("|", "\\|")
        return ", ".join(f"`{part}`" for part in escaped.split(separator) if part)

    lines = ["| MoYe.jl | CuTe | `jax_moye.layout` | `cuda/moye` | |", "|---|---|---|---|---|"]
    for row in rows:
        cells = (code(row.moye, " / "), code(row.cute, " / "), code(row.python, " "), code(row.cpp, " "), row.note)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
