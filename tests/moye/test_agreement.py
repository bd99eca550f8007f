"""Calls that the recorded facts do not have, evaluated by Python and by C++: both must say the same, and be right."""

from __future__ import annotations

import pathlib
import sys

from jax_moye import layout as lay
from jax_moye.layout import errors

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import notation as n
import programs

K_MAJOR, M_MAJOR, PADDED = "(8,64):(64,1)", "(64,8):(1,64)", "(8,64):(72,1)"
SWIZZLED = [
    # (swizzle of a, a, swizzle of b, b): equal swizzles do not cancel
    ("Sw<3,3,3>", K_MAJOR, "Sw<3,3,3>", K_MAJOR),
    ("Sw<3,3,3>", K_MAJOR, "", K_MAJOR),
    ("", K_MAJOR, "Sw<3,2,3>", K_MAJOR),
    ("Sw<3,3,3>", K_MAJOR, "Sw<2,2,4>", K_MAJOR),
    ("Sw<3,3,3>", K_MAJOR, "Sw<3,3,3>", M_MAJOR),
    ("Sw<1,0,3>", "(8,8):(1,8)", "Sw<1,0,3>", "(8,8):(1,16)"),
    ("Sw<0,3,3>", K_MAJOR, "Sw<0,3,3>", K_MAJOR),
    ("Sw<2,4,3>", PADDED, "Sw<2,4,3>", PADDED),
    ("Sw<2,3,3>", "(6,16):(16,1)", "", "(6,16):(16,1)"),
    ("Sw<1,2,1>", "(2,3):(3,1)", "Sw<1,2,1>", "(2,3):(3,1)"),
]
COMPOSED = [
    # An extent of 1 is no mode, but its stride must find its place: as CuTe's, which the recorded errors hold.
    ("(4,3):(1,4)", "1:3"),
    ("(4,3):(1,4)", "1:4"),
    ("(4,3):(3,1)", "1:3"),
    ("(4,3):(3,1)", "1:8"),
    ("(4,3):(3,1)", "1:6"),
    ("(4,6):(6,1)", "(2,1):(2,6)"),
    ("(4,6):(6,1)", "(2,1):(2,8)"),
    ("(4,6):(6,1)", "((1,4),1):((5,1),0)"),
    ("(6,2):(8,2)", "(3,1,2):(2,18,6)"),
]


def cpp(swizzle: str, layout: str) -> str:
    of = n.cpp_argument(layout)
    return f"composition({n.cpp_argument(swizzle)}{{}}, {of}{{}})" if swizzle else f"{of}{{}}"


def python(swizzle: str, layout: str):
    return lay.ComposedLayout(swizzle, 0, layout) if swizzle else lay.Layout(layout)


def test_common_vectors_of_swizzled_layouts(tmp_path: pathlib.Path):
    lines = {
        i: programs.types(
            i, *(f"max_common_{what}({cpp(*case[:2])}, {cpp(*case[2:])})" for what in ("vector", "layout"))
        )
        for i, case in enumerate(SWIZZLED)
    }
    results = programs.evaluate("agreement_vectors", lines, tmp_path)
    for i, case in enumerate(SWIZZLED):
        a, b = python(*case[:2]), python(*case[2:])
        common = lay.max_common_layout(a, b)
        vector = lay.max_common_vector(a, b)
        assert int(results[i][0]) == vector, case
        assert lay.functionally_equal(results[i][1], common), (case, results[i][1], common)
        # In memory: the vector's elements lie next to each other, in order, on both sides.
        assert [a(c) for c in common.values()] == [b(c) for c in common.values()] == list(range(common.size)), case


def test_strides_of_extents_1(tmp_path: pathlib.Path):
    lines = {
        i: programs.types(i, f"typename Composed<{n.cpp_argument(a)}, {n.cpp_argument(b)}>::Type{{}}")
        for i, (a, b) in enumerate(COMPOSED)
    }
    results = programs.evaluate("agreement_composition", lines, tmp_path)
    refused = 0
    for i, (a, b) in enumerate(COMPOSED):
        mine = composition_or_none(a, b)
        if mine is None:
            refused += 1
            assert results[i][0].startswith("k"), (a, b, results[i])  # an enumerator of LayoutError
        else:
            assert n.normalized(n.layout(results[i][0])) == n.normalized(n.layout(str(mine))), (a, b, results[i], mine)
            assert [mine(c) for c in range(mine.size)] == [lay.Layout(a)(x) for x in lay.Layout(b).values()]
    assert 0 < refused < len(COMPOSED)


def composition_or_none(a: str, b: str) -> lay.Layout | None:
    try:
        return lay.composition(a, b)
    except errors.LayoutError:
        return None
