"""`jax_moye.layout` against recorded facts of the layout algebra.

The facts are `tests/data/oracle/layout_algebra.json`, or another file of the same form named by the environment
variable JAX_MOYE_ORACLE.
"""

import json
import os
import pathlib
import re

import pytest

from jax_moye import layout as lay
from jax_moye.layout import coords, dtypes, errors
from jax_moye.layout import int_tuple as it

DATA = pathlib.Path(__file__).parents[2] / "data" / "oracle"
ORACLE = json.loads(pathlib.Path(os.environ.get("JAX_MOYE_ORACLE", DATA / "layout_algebra.json")).read_text())
# Operations whose result is no layout but several, by name.
TILED = ("make_tiled", "partition_")
# Operations that take a layout where another takes an integer, a coordinate or a shape: how each argument is read.
SIGNATURES = {
    "coalesce": ("layout", "tuple"),
    "complement": ("layout", "tuple"),
    "composition": ("layout", "tiler"),
    "logical_divide": ("layout", "tiler"),
    "zipped_divide": ("layout", "tiler"),
    "tiled_divide": ("layout", "tiler"),
    "flat_divide": ("layout", "tiler"),
    "logical_product": ("layout", "tiler"),
    "zipped_product": ("layout", "tiler"),
    "tiled_product": ("layout", "tiler"),
    "flat_product": ("layout", "tiler"),
    "blocked_product": ("layout", "tiler"),
    "raked_product": ("layout", "tiler"),
    "tile_to_shape": ("layout", "tuple", "tuple"),
    "recast_layout": ("layout", "int", "int"),
    "upcast": ("layout", "int"),
    "downcast": ("layout", "int"),
    "group": ("layout", "int", "int"),
    "take": ("layout", "int", "int"),
    "select": ("layout", "tuple"),
    "append": ("layout", "int", "layout"),
    "prepend": ("layout", "int", "layout"),
    "crd2idx": ("tuple", "layout"),
    "idx2crd": ("int", "layout"),
    "get_hier_coord": ("layout", "int"),
    "get_flat_coord": ("layout", "int"),
    "get_1d_coord": ("layout", "int"),
    "dice": ("coord", "layout"),
    "slice_and_offset": ("coord", "layout"),
    "max_common_layout": ("layout", "layout"),
    "max_common_vector": ("layout", "layout"),
    "domain_distribute": ("tuple", "int"),
    "compact_col_major": ("tuple",),
    "compact_row_major": ("tuple",),
    "make_ordered_layout": ("tuple", "tuple"),
    "compact_order": ("tuple", "tuple"),
    "make_swizzle": ("int", "int"),
    **dict.fromkeys(
        ["shape_div", "ceil_div", "compatible", "congruent", "weakly_congruent", "evenly_divides", "elem_less"],
        ("tuple", "tuple"),
    ),
    **dict.fromkeys(["lex_less", "colex_less"], ("tuple", "tuple")),
}
READ = {
    "layout": lay.Layout,
    "tiler": lay.parse_tiler,
    "tuple": it.as_int_tuple,
    "coord": it.as_coord,
    "int": int,
}


def arguments(op, args):
    kinds = SIGNATURES.get(op, ("layout",) * len(args))
    return [READ[kind](arg) for kind, arg in zip(kinds, args, strict=False)]


def function(op):
    return getattr(lay, op, None) or getattr(it, op, None) or getattr(coords, op)


def apply(op, args, **options):
    """What the library makes of one case."""
    if op.startswith(TILED):
        return results(op, args)
    if op == "swizzle_apply":
        return [lay.Swizzle(args[0])(int(x)) for x in args[1].split()]
    if op.startswith("swizzle_"):
        swizzled = lay.ComposedLayout(
            lay.Swizzle(args[0]), 0, lay.Layout(args[2] if op == "swizzle_slice" else args[1])
        )
        match op[8:]:
            case "values":
                return swizzled.values().tolist()
            case "slice":
                return lay.slice_and_offset(args[1], swizzled)
            case "tile_to_shape":
                return lay.tile_to_shape(swizzled, it.as_int_tuple(args[2]))
            case "max_common_vector":
                return lay.max_common_vector(swizzled, args[2])
            case "upcast" | "downcast" as name:
                return function(name)(swizzled, int(args[2]))
    return function(op)(*arguments(op, args), **options)


def normalized(layout):
    """The layout with the strides of extents 1 set to 0: the same function."""
    stride = it.transform_leaf(lambda s, d: 0 if s == 1 else d, layout.shape, layout.stride)
    return lay.Layout(layout.shape, stride)


def agree(got, expected_text):
    """Whether the result is the recorded one, in form or, for layouts, as a function."""
    if isinstance(got, bool):
        return got == bool(int(expected_text))
    if isinstance(got, int):
        return got == int(expected_text)
    if isinstance(got, list):
        return got == json.loads(expected_text)
    if isinstance(got, lay.Layout):
        expected = lay.Layout(expected_text)
        return normalized(got) == normalized(expected) or lay.functionally_equal(got, expected)
    if isinstance(got, lay.ComposedLayout):
        expected = lay.parse(expected_text)
        return (
            got.swizzle == expected.swizzle
            and got.offset == expected.offset
            and agree(got.layout, str(expected.layout))
        )
    return it.show(got) == expected_text.replace(" ", "") if isinstance(got, tuple) else str(got) == expected_text


def cases():
    for case in ORACLE["cases"]:
        if not case["op"].startswith((*TILED, "gmma_")):
            yield pytest.param(case, id=f"{case['id']}-{case['op']}")


def obeys(a, tiler, result):
    """Whether `result(c) == a(tiler(c))` for every coordinate, evaluated without the library's algebra."""
    if tiler is lay._:
        return str(a) == str(result)
    if isinstance(tiler, tuple):
        return all(obeys(m, t, r) for m, t, r in zip(a, tiler, result, strict=False))
    b = tiler if isinstance(tiler, lay.Layout) else lay.Layout(tiler)
    return [evaluate(a, i) for i in (evaluate(b, j) for j in range(b.size))] == [
        evaluate(result, j) for j in range(b.size)
    ]


def evaluate(layout, i):
    """The index at position i, beyond the size too: the last leaf goes on."""
    flat = layout.leaves
    total = 0
    for extent, stride in flat[:-1]:
        total += i % extent * stride
        i //= extent
    return total + i * flat[-1][1]


def size_of(text):
    return lay.Layout(text).size


def refusal_is_right(op, args, recorded):
    """Whether the recorded layout breaks the law of an operation that the library refuses to do."""
    a, b = arguments(op, args)
    recorded = lay.Layout(recorded)
    if op == "composition":
        return not obeys(a, b, recorded)
    if op.endswith("divide"):
        return sorted(recorded.values()) != sorted(a.values())
    return len(set(recorded.values().tolist())) != recorded.size


def parts(layout, n):
    """The indices of the n parts of each element, sorted, evaluated without the library's algebra."""
    return sorted(n * evaluate(layout, i) + j for i in range(layout.size) for j in range(n))


def recorded_breaks_downcast(case):
    """Whether the recorded downcast does not have the n parts of each element: CuTe lengthens every mode of stride 1.

    Then the library must refuse, or have the parts. In the file that comes with the project these are the cases of
    DOWNCASTS_WITHOUT_THE_PARTS.
    """
    if case["op"] != "downcast":
        return False
    layout, n = arguments("downcast", case["args"])
    recorded = lay.Layout(case["out"])
    return sorted(evaluate(recorded, i) for i in range(recorded.size)) != parts(layout, n)


def attempt(case):
    """The library's result for a case, or None if it refuses and is right to.

    Cases flagged as unsound, beyond the domain, or not dividing must be refused first, each with its error; by-mode
    cases carry no such flags.
    """
    op, args, flags = case["op"], case["args"], case.get("flags", [])
    refusable = op == "composition" or op.endswith(("_divide", "_product"))
    if "UNSOUND" in flags:
        for extend in (False, True):
            with pytest.raises(getattr(errors, case["strict_error"])):
                apply(op, args, extend=extend)
        return None
    if "b_out_of_domain" in flags:
        with pytest.raises(errors.OutOfDomain):
            apply(op, args)
    if "rounds_up" in flags:
        with pytest.raises(errors.ShapeDivisibility):
            apply(op, args)
    try:
        return apply(op, args)
    except errors.LayoutError as error:
        if not refusable:
            raise
        try:
            if op == "composition" and isinstance(error, errors.OutOfDomain):
                return apply(op, args, extend=True)
            if op.endswith("divide") and size_of(case["out"]) > size_of(args[0]):
                return apply(op, args, allow_residue=True)
        except errors.LayoutError:
            pass
        if not refusal_is_right(op, args, case["out"]):
            raise
        return None


# An extent 1 of stride 1 beside the mode of stride 1 along which the parts lie: CuTe lengthens both, and parts come
# twice.
DOWNCASTS_WITHOUT_THE_PARTS = ["c2884", "c2886", "c2900"]


@pytest.mark.skipif("JAX_MOYE_ORACLE" in os.environ, reason="the cases are named for the project's own file")
def test_recorded_downcasts_without_the_parts():
    assert [case["id"] for case in ORACLE["cases"] if recorded_breaks_downcast(case)] == DOWNCASTS_WITHOUT_THE_PARTS


@pytest.mark.parametrize("case", list(cases()))
def test_case(case):
    op = case["op"]
    if recorded_breaks_downcast(case):
        layout, n = arguments(op, case["args"])
        if sum(d == 1 and s > 1 for s, d in layout.leaves) > 1:
            with pytest.raises(errors.NonInjective):
                lay.downcast(layout, n)
        else:
            got = lay.downcast(layout, n)
            assert it.congruent(got.shape, layout.shape)
            assert sorted(evaluate(got, i) for i in range(got.size)) == parts(layout, n)
        return
    got = attempt(case)
    if got is None:
        return
    if op in ("slice_and_offset", "swizzle_slice"):
        layout, offset = got
        text, _, values = case["out"].partition(" values ")
        expected, _, expected_offset = text.partition(" @ ")
        assert (str(layout), offset) == (expected, int(expected_offset))
        if values:
            assert layout.values().tolist() == json.loads(values)
        return
    assert agree(got, case["out"]), f"{got} instead of {case['out']}"
    if isinstance(got, lay.Layout):
        expected = lay.Layout(case["out"])
        assert it.congruent(got.shape, expected.shape) or op in ("nullspace", "domain_distribute"), f"{got}, {expected}"
        if "values" in case:
            assert got.values().tolist() == case["values"]


# ---- Tiled copies and MMAs: several results, `name=layout`, `name=layout@offset` or `name=number` ------------------


def made(op, args):
    """The tiled copy or MMA of a recorded case."""
    match op:
        case "make_tiled_copy" | "partition_SD":
            return lay.make_tiled_copy(lay.CopyAtom(args[0], args[1]), args[2], args[3])
        case "make_tiled_mma" | "partition_ABC":
            return lay.make_tiled_mma(*args[:3])
    return getattr(lay, op)(lay.CopyAtom(args[0], args[1]), lay.make_tiled_mma(*args[2:5]))


def results(op, args):
    """What the library has under each name."""
    what = made(op, args)
    if op == "make_tiled_mma":
        tables = {f"{x}_TV": getattr(what, f"get_layout{x}_TV")() for x in "ABC"}
        return tables | {"thr_vmnk": what.thr_layout_vmnk, "tile": what.tile_shape, "threads": what.threads}
    if op == "partition_ABC":
        thread = what.get_slice(int(args[6]))
        parts = {x: getattr(thread, f"partition_{x}")(text) for x, text in zip("ABC", args[3:6], strict=True)}
        for x, text in zip("ABC", args[3:6], strict=True):
            assert getattr(what, f"partition_shape_{x}")(lay.Layout(text).shape) == parts[x][0].shape
        return parts | {f"frag{x}": getattr(thread, f"make_fragment_{x}")(parts[x][0]) for x in "ABC"}
    if op == "partition_SD":
        thread = what.get_slice(int(args[5]))
        return {x: getattr(thread, f"partition_{x}")(args[4]) for x in "SD"}
    return {
        "tiler": what.tile_size,
        "threads": what.threads,
        "TV": what.layout_TV,
        "S_TV": what.get_layoutS_TV(),
        "D_TV": what.get_layoutD_TV(),
    }


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=f"{c['id']}-{c['op']}") for c in ORACLE["cases"] if c["op"].startswith(TILED)]
)
def test_tiled_case(case):
    got = results(case["op"], case["args"])
    for field in case["out"].split():
        name, expected = field.split("=", 1)
        value = got[name]
        if "@" in expected:
            value, offset = value
            expected, _, at = expected.partition("@")
            assert offset == int(at), name
        assert agree(value, expected), f"{name}: {value} instead of {expected}"


# ---- wgmma ---------------------------------------------------------------------------------------------------------


def same_in_bytes(got, expected, kind):
    """Whether a composed layout of elements is the recorded one, whose swizzle is one of bytes."""
    swizzle, *_, layout = expected.split(" o ")
    in_bytes = got.swizzle.downcast(dtypes.dtype(kind).bits // 8)
    assert in_bytes == lay.Swizzle(swizzle) or in_bytes.bits == lay.Swizzle(swizzle).bits == 0
    assert agree(got.layout, layout), f"{got} instead of {expected}"


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for c in ORACLE["cases"] if c["op"] == "gmma_smem_atom"])
def test_gmma_smem_atom(case):
    same_in_bytes(lay.gmma_smem_atom(*case["args"]), case["out"], case["args"][2])


@pytest.mark.parametrize(
    "case", [pytest.param(c, id="-".join(map(str, c["args"].values()))) for c in ORACLE.get("gmma_desc", [])]
)
def test_gmma_desc(case):
    args, expected = case["args"], case["out"]
    major, kind = args["major"], args["dtype"]
    atom = lay.gmma_smem_atom(major, args["atom"], kind)
    same_in_bytes(atom, expected["atom_layout"], kind)
    tile = lay.tile_to_shape(atom, (args["MN"], args["K_tile"]))
    same_in_bytes(tile, expected["smem_layout"], kind)
    assert args["K_inst"] * dtypes.dtype(kind).bits == 32 * 8
    descriptor = lay.make_gmma_desc(tile, major, kind)
    assert descriptor == lay.GmmaDescriptor(0, expected["LBO_16B"], expected["SBO_16B"], expected["layout_type"])


@pytest.mark.parametrize("error", [pytest.param(e, id=f"{e['id']}-{e['op']}") for e in ORACLE["errors"]])
def test_error(error):
    with pytest.raises(getattr(errors, error["error"])) as caught:
        apply(error["op"], error["args"])
    raised = caught.value
    assert raised.op == error["op"] or error["op"].startswith(TILED)  # a step on the way there may refuse
    assert raised.args
    assert str(raised).startswith(raised.op + "(")
    assert raised.problem in str(raised)


def _misuse(op, text):
    """The call that a misuse describes in words."""
    match op:
        case "parse":
            return lay.parse(text)
        case "Layout":
            return lay.Layout(text.removeprefix("shape "))
        case "crd2idx" | "crd2idx strict":
            coord, layout = text.split(" into ")
            assert lay.crd2idx(coord, layout, strict=False) >= 0  # out of range only: the rest raises here already
            return lay.crd2idx(coord, layout)
        case "idx2crd strict":
            index, shape = text.split(" into shape ")
            return lay.idx2crd(int(index), shape)
        case "coalesce":
            return lay.coalesce(*text.split(" profile "))
        case "composition" if text.startswith("Sw"):
            return (lay.Swizzle(3, 3, 3) @ lay.Layout("(8,64):(64,1)")).stride
        case "composition":
            return lay.composition(*text.split(" by-mode "))
        case "logical_divide" | "logical_product" | "zipped_divide":
            return getattr(lay, op)(*text.split(" by "))
        case "append" | "prepend":
            layout, rank = text.split(" to rank ")
            return getattr(lay, op)(layout, int(rank))
        case "group" | "take":
            layout, span = text.split(" ")
            begin, end = span[1:-1].split(",")
            return getattr(lay, op)(layout, int(begin), int(end))
        case "get":
            layout, mode = text.split(" mode ")
            return lay.get(layout, int(mode))
        case "tile_to_shape":
            return lay.tile_to_shape(*text.split(" into "))
        case "upcast" | "downcast":
            layout, n = text.split(" by ")
            return getattr(lay, op)(layout, int(n))
        case "recast_layout":
            old, new = text.removesuffix(" bits").split(" -> ")
            return lay.recast_layout("(4,3):(1,4)", int(old), int(new))
        case "Swizzle":
            return lay.Swizzle(text)
        case "make_swizzle":
            y, z = (int(part.split("=")[1], 0) for part in text.split(","))
            return lay.make_swizzle(y, z)
        case "Swizzle compose":
            return lay.composition(*map(lay.Swizzle, text.split(" o ")))
        case "complement":
            layout, target = text.split(" cotarget ")
            return lay.complement(layout, int(target))
        case "left_inverse":
            return lay.left_inverse(text)
        case "shape_div":
            return lay.shape_div(*map(int, text.split(" / ")))
        case "max_common_vector":
            assert lay.max_common_vector("(8,4):(1,8)", "8:1") == lay.max_common_vector("8:1", "(8,4):(1,8)") == 8
            return None
        case "make_tiled_copy":
            wide = re.fullmatch(r"atom (\d+)B on (\w+) with val size (\d+)", text)
            if wide:
                size, kind, values = wide.groups()
                atom = lay.CopyAtom(f"UniversalCopy<uint{8 * int(size)}_t>", kind)
                return lay.make_tiled_copy(atom, "(16,8)", f"(1,{values})")
            (threads,) = re.fullmatch(r"LDSM on thr size (\d+)", text).groups()
            return lay.make_tiled_copy(lay.CopyAtom("SM75_U32x4_LDSM_N", "f16"), f"({threads},1)", "(2,4)")
        case "make_tiled_mma":
            (rank,) = re.fullmatch(r"atom layout rank (\d+)", text).groups()
            return lay.make_tiled_mma("SM80_16x8x8_F32TF32TF32F32_TN", (1,) * int(rank))
    raise AssertionError(f"unknown operation {op}")


@pytest.mark.parametrize(
    "misuse", [pytest.param(m, id=f"{m['op']}: {m['input']}".replace(" ", "_")) for m in ORACLE["api_errors"]]
)
def test_misuse(misuse):
    name = misuse["must_raise"].split()[0].rstrip(":")
    if name == "returns":
        _misuse(misuse["op"], misuse["input"])
        return
    builtin = {"IndexError": IndexError, "AttributeError": AttributeError}.get(name)
    expected = builtin or getattr(errors, name, errors.LayoutError)  # "bit ratio ..." is said in words
    with pytest.raises(expected) as caught:
        _misuse(misuse["op"], misuse["input"])
    assert isinstance(caught.value, errors.LayoutError)
