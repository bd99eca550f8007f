"""The laws of cuda/moye's layout algebra, tensors and partitions, and the sentences that stop a wrong program."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
import cxx

HERE = pathlib.Path(__file__).parent
FLAGS = ["-O0", "-g0", "-fno-strict-aliasing", f"-I{HERE}"]


def test_laws():
    program = cxx.build("laws", [HERE / "laws.cc"], [*FLAGS, cxx.BOUNDS_CHECK])
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]


REFUSED = {
    "composition: a stride": "composition(Layout<Shape<_4, _3>, Stride<_3, _1>>{}, Layout<_4, _3>{})",
    "composition: an extent": "composition(Layout<Shape<_6, _2>, Stride<_8, _2>>{}, Layout<_4, _2>{})",
    "composition: two modes": "composition(Layout<Shape<_4, _4>, Stride<_4, _1>>{}, "
    "Layout<Shape<_2, _2>, Stride<_2, _2>>{})",
    "complement: the layout may reach": "complement(Layout<Shape<_2, _2>, Stride<_2, _3>>{}, _24{})",
    "tile_to_shape: the block does not divide": "tile_to_shape(Layout<Shape<_8, _6>>{}, make_shape(_16{}, _16{}))",
    "downcast: two modes have stride 1": "downcast<2>(Layout<Shape<_2, _2>, Stride<_1, _1>>{})",
    "left_inverse: modes overlap": "left_inverse(Layout<Shape<_16, _2, _4>, Stride<_4, _24, _1>>{})",
    "logical_divide: the tile has gaps": "logical_divide(Layout<_2>{}, Layout<Shape<_16, _3>, Stride<_16, _3>>{})",
    "take: an empty range": "take<1, 1>(Layout<Shape<_2, _2>>{})",
    "Layout: an extent is less than 1": "Layout<Shape<_2, _0>>{}",
    "composition: the swizzles' shifts differ": "composition(Swizzle<2, 3, 3>{}, Swizzle<2, 3, 4>{})",
    "downcast: no mode is contiguous": "downcast<2>(Layout<_4, _2>{})",
    "crd2idx: coordinate and shape differ in rank": "Layout<Shape<_4, _3>>{}(1, 2, 3)",
    "TiledCopy: fewer values per thread": "make_tiled_copy(CopyAtom<UniversalCopy<uint128_t>, float>{}, "
    "Layout<Shape<_32, _1>>{}, Layout<Shape<_2, _1>>{})",
    "the values of an operand are not contiguous": "(copy(CopyAtom<UniversalCopy<uint64_t>, float>{}, "
    "make_tensor<float>(Layout<_2, _2>{}), make_tensor<float>(Layout<_2, _1>{})), 0)",
}


def test_refused(tmp_path: pathlib.Path):
    """All in one program: a failed static_assert does not keep the compiler from finding the next."""
    source = tmp_path / "refused.cc"
    functions = [f"void f{i}() {{ auto x = {code}; (void)x; }}" for i, code in enumerate(REFUSED.values())]
    source.write_text("\n".join(['#include "moye/moye.h"', "using namespace moye;", *functions, ""]))
    with pytest.raises(cxx.CompileError) as error:
        cxx.compile_only(source, ["-O0", "-g0"])
    missing = [sentence for sentence in REFUSED if sentence not in str(error.value)]
    assert not missing
