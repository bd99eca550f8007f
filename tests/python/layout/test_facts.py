"""What MoYe.jl's tests, docstrings and manual state about layouts (0-based), and where it is mistaken."""

import json
import pathlib

import pytest

from jax_moye import layout as lay
from jax_moye.layout import coords, errors
from jax_moye.layout import int_tuple as it

FACTS = json.loads((pathlib.Path(__file__).parents[2] / "data" / "oracle" / "moye_facts.json").read_text())["facts"]

# Facts about atoms, tensors and kernels: tested beside those.
ELSEWHERE = {
    "CTA and memory": ("cta swizzle", "L2 example", "smem copy", "smem transpose", "tiled matmul"),
    "arrays": ("owning array from dynamic shape", "broadcast layout", "layout_index_type"),
    "tensors": ("local_partition", "local_tile", "rank(tile)"),
    "copy": (
        "coalescing",
        "cp.async alignment",
        "cp.async sizes",
        "ldmatrix intrinsics",
        "smem layouts accepted with LDSM",
        "thread map of make_tiled_copy",
        "tiled_copy_roundtrip",
    ),
    "mma": (
        "TiledMMA show",
        "make_tiled_mma",
        "partition_A_shape_rest",
        "partition_B_shape_rest",
        "partition_C_shape_rest",
        "size(partition_fragment_X)==size(partition_X)",
        "tile_size",
        "warp gemm 16x16x8 f16",
    ),
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
    elsewhere = {op for ops in ELSEWHERE.values() for op in ops}
    for i, fact in enumerate(FACTS):
        if fact["op"] not in elsewhere and mistake(fact) is None:
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
