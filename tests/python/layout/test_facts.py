"""What MoYe.jl's tests, docstrings and manual state about layouts (0-based), and where it is mistaken."""

import json
import pathlib
import re

import pytest

from jax_moye import layout as lay
from jax_moye.layout import coords, errors
from jax_moye.layout import int_tuple as it

FACTS = json.loads((pathlib.Path(__file__).parents[2] / "data" / "oracle" / "moye_facts.json").read_text())["facts"]

# Facts about atoms, tensors and schedules: the file that tests them.
ELSEWHERE = {
    "cp.async sizes": "test_atoms.py",
    "L2 example": "test_draw.py",
    "cta swizzle": "test_draw.py",
    "cp.async alignment": "test_checks.py",
    "coalescing": "test_checks.py",
    "smem layouts accepted with LDSM": "test_checks.py",
    **dict.fromkeys(
        [
            "local_partition",
            "local_tile",
            "rank(tile)",
            "smem copy",
            "smem transpose",
            "tiled_copy_roundtrip",
            "warp gemm 16x16x8 f16",
        ],
        "test_tensor.py",
    ),
    **dict.fromkeys(
        [
            "TiledMMA show",
            "make_tiled_mma",
            "partition_A_shape_rest",
            "partition_B_shape_rest",
            "partition_C_shape_rest",
            "size(partition_fragment_X)==size(partition_X)",
            "thread map of make_tiled_copy",
            "tile_size",
        ],
        "test_tiled.py",
    ),
}
# Facts about what has no counterpart in Python layouts, with the reason.
NOT_OURS = {
    "broadcast layout": "broadcasting of arrays is NumPy's",
    "owning array from dynamic shape": "every shape is known in Python",
    "layout_index_type": "integers have no width in Python",
    "ldmatrix intrinsics": "names of LLVM; the PTX of cuda/moye/arch is tested there",
    "tiled matmul": "a matrix product on the GPU; examples/seeds.py multiplies with the same tiles",
}
# Recorded behaviour that is not ours, by operation and first argument (None: all), with the reason and our answer.
MISTAKES = {
    (
        "moye_elem_less",
        None,
    ): "lets all but the last element be equal, so it is no predicate; ours is strict",
    ("unflatten", "[1, 2, 3, 4, 5]"): "drops the fifth leaf silently; we raise RankMismatch",
    ("linear index beyond size keeps going through the layout (no wrap); [1,2,3] with (3):(1)", None): (
        "reads beyond the array; we raise CoordOutOfRange"
    ),
}
LAYOUT_OPS = {"complement", "coalesce", "composition", "right_inverse", "logical_divide", "logical_product"}


def as_tuple(x):
    return tuple(map(as_tuple, x)) if isinstance(x, list) else x


def read(text):
    """An argument: layout, tiler, coordinate or number."""
    if not isinstance(text, str):
        return as_tuple(text)
    if text.startswith("["):
        return lay.parse_tiler(text)
    return lay.Layout(text) if ":" in text else it.as_coord(text)


def mistake(fact):
    first = json.dumps(fact["args"][0]) if fact["args"] else None
    return MISTAKES.get((fact["op"], first)) or MISTAKES.get((fact["op"], None))


def ours():
    for i, fact in enumerate(FACTS):
        if fact["op"] not in ELSEWHERE and fact["op"] not in NOT_OURS and mistake(fact) is None:
            yield pytest.param(fact, id=f"{i}-{fact['op']}".replace(" ", "_"))


def call(op, args):
    match op:
        case "slice":
            coord, target = args
            kept = lay.slice_(coord, target if isinstance(target, lay.Layout) else lay.Layout(target))
            return kept if isinstance(target, lay.Layout) else kept.shape
        case "append" | "prepend" if isinstance(args[0], tuple):
            return getattr(it, op)(*args)
        case "append_to_rank" | "prepend_to_rank":
            t, x, n = args  # MoYe.jl's order
            return getattr(it, op)(t, n, x)
        case "exclusive_scan_mul":
            return it.exclusive_scan(*args)
        case "blocked_product_coalesced" | "raked_product_coalesced":
            return getattr(lay, op.removesuffix("_coalesced"))(*args, coalesce=True)
        case "make_layout GenColMajor":
            return lay.Layout(args[0])
        case "make_layout GenRowMajor":
            return lay.Layout(args[0], order="row")
        case "size/rank/depth/cosize":
            layout = args[0]
            return (layout.size, layout.rank, layout.depth, layout.cosize)
        case "print_layout":
            return args[0]
        case "make_fragment_like":
            return lay.make_fragment_like(lay.Layout("(8,16):(1,8)")[lay._, 0])
    function = getattr(lay, op, None) or getattr(it, op, None) or getattr(coords, op)
    return function(*args)


@pytest.mark.parametrize("fact", list(ours()))
def test_fact(fact):
    op = fact["op"]
    if op.endswith("_property"):
        check_property(op.removesuffix("_property"), fact)
        return
    if op == "idx2crd" and "stride" in str(fact["args"][1]):
        with pytest.raises(errors.ProfileMismatch):
            coords.idx2crd(fact["args"][0], (3, 4), (1, 3, 5))
        return
    got = call(op, [None] if op == "make_fragment_like" else [read(arg) for arg in fact["args"]])
    expected = fact["expect"]
    if isinstance(got, lay.Layout):
        if isinstance(expected, str):
            expected = lay.Layout(expected)
            assert got.shape == expected.shape
            assert lay.functionally_equal(got, expected)
        table = fact.get("table") or (expected if isinstance(expected, list) else None)
        if table:
            rows, columns = lay.size(got[0].shape), lay.size(got[1].shape)
            assert [[got(i, j) for j in range(columns)] for i in range(rows)] == table
        if "values" in fact:
            assert [got(i) for i in range(got.size)] == fact["values"]
        return
    assert got == (it.as_int_tuple(expected) if isinstance(expected, str) else as_tuple(expected))


def check_property(op, fact):
    assert op in LAYOUT_OPS
    a, *rest = (read(arg) for arg in fact["args"])
    result = getattr(lay, op)(a, *rest)
    expected = lay.Layout(fact["cute_result"])
    assert lay.functionally_equal(result, expected)
    assert it.congruent(result.shape, expected.shape)
    match op:
        case "coalesce":
            assert result.depth <= 1
            assert [result(i) for i in range(a.size)] == [a(i) for i in range(a.size)]
        case "composition":
            (b,) = rest
            assert it.compatible(b.shape, result.shape)
            assert [result(i) for i in range(b.size)] == [a(b(i)) for i in range(b.size)]
        case "right_inverse":
            assert [a(result(i)) for i in range(result.size)] == list(range(result.size))
        case "logical_divide":
            assert result.rank == 2
            assert it.compatible(rest[0].shape, result[0].shape)
        case "logical_product":
            assert result.rank == 2
            assert it.compatible(a.shape, result[0].shape)
        case "complement":
            target = rest[0] if rest else a.cosize
            values = [result(i) for i in range(result.size)]
            assert values == sorted(set(values))
            assert not set(values[1:]) & {a(i) for i in range(a.size)}
            assert result.cosize <= -(-target // a.cosize) * a.cosize
            assert lay.make_layout(a, result).cosize >= target


@pytest.mark.parametrize(("op", "first"), list(MISTAKES))
def test_mistakes_are_not_copied(op, first):
    facts = [f for f in FACTS if f["op"] == op and (first is None or json.dumps(f["args"][0]) == first)]
    assert facts
    if op == "moye_elem_less":
        less = [f for f in facts if f["expect"] and f["args"] == ["(1,2,3)", "(1,2,4)"]]
        assert less
        assert not lay.elem_less((1, 2, 3), (1, 2, 4))
        assert lay.elem_less((1, 2, 3), (2, 3, 4))
    elif op == "unflatten":
        with pytest.raises(errors.RankMismatch):
            it.unflatten(*map(as_tuple, facts[0]["args"]))
    else:
        with pytest.raises(errors.CoordOutOfRange):
            lay.Layout("(3):(1)")(3)


@pytest.mark.parametrize(("op", "file"), ELSEWHERE.items())
def test_facts_elsewhere_are_tested_there(op, file):
    text = (pathlib.Path(__file__).parent / file).read_text()
    assert op in text or re.sub("_[ABC]_", "_{operand}_", op) in text


def test_no_list_is_out_of_date():
    assert {*ELSEWHERE, *NOT_OURS} <= {fact["op"] for fact in FACTS}
