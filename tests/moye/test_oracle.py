"""The layout algebra and the atoms of cuda/moye against recorded facts, the same that Python is tested with.

The facts are tests/data/oracle/layout_algebra.json, or another file of the same form named by the environment variable
JAX_MOYE_ORACLE. C++ programs are written from them that evaluate each case with static layouts; what must raise in
Python must not compile.
"""

from __future__ import annotations

import gzip
import json
import os
import pathlib
import re
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cxx
import notation as n
import programs

from jax_moye.layout import atoms

DATA = pathlib.Path(__file__).parents[1] / "data" / "oracle"
ORACLE = json.loads(pathlib.Path(os.environ.get("JAX_MOYE_ORACLE", DATA / "layout_algebra.json")).read_text())
CASES = dict(enumerate(ORACLE["cases"]))

# Operations of Python alone.
NOT_IN_CPP = {"nullspace", "domain_distribute"}
IN_TEST_WGMMA = {"gmma_smem_atom"}

# C++ expressions of the arguments {0}, {1}, ..., which are values of static types; `{0:n}` is an argument's own text.
EXPRESSIONS = {
    "coalesce": "coalesce({*})",
    "complement": "complement({*})",
    "tile_to_shape": "tile_to_shape({*})",
    "idx2crd": "idx2crd({0}, ({1}).shape(), ({1}).stride())",
    "crd2idx": "({1})({0})",
    "upcast": "upcast<{1:n}>({0})",
    "downcast": "downcast<{1:n}>({0})",
    "recast_layout": "recast_layout<{1:n}, {2:n}>({0})",
    "group": "group<{1:n}, {2:n}>({0})",
    "take": "take<{1:n}, {2:n}>({0})",
    "select": "select<{1:list}>({0})",
    "append": "append<{1:n}>({0}, {rest})",
    "prepend": "prepend<{1:n}>({0}, {rest})",
    "make_swizzle": "make_swizzle<{0:n}, {1:n}>()",
    "swizzle_upcast": "upcast<{2:n}>(composition({0}, {1}))",
    "swizzle_downcast": "downcast<{2:n}>(composition({0}, {1}))",
    "swizzle_tile_to_shape": "tile_to_shape(composition({0}, {1}), {2})",
    "swizzle_max_common_vector": "max_common_vector(composition({0}, {1}), {2})",
}
ALL_ARGUMENTS = [
    *("size", "rank", "depth", "cosize", "flatten", "filter", "filter_zeros", "reverse", "max_alignment"),
    *("make_layout_like", "make_fragment_like", "compact_col_major", "compact_row_major", "make_ordered_layout"),
    *("right_inverse", "left_inverse", "composition", "max_common_layout", "max_common_vector", "dice"),
    *("get_hier_coord", "get_flat_coord", "get_1d_coord", "shape_div", "ceil_div", "compatible", "congruent"),
    *("weakly_congruent", "evenly_divides", "elem_less", "lex_less", "colex_less"),
    *(f"{kind}_{op}" for op in ("divide", "product") for kind in ("logical", "zipped", "tiled", "flat")),
    *("blocked_product", "raked_product"),
]
EXPRESSIONS |= {op: f"{op}({{*}})" for op in ALL_ARGUMENTS}


def expression(op: str, args: list[str]) -> str:
    """C++ for one case of plain arguments."""
    values = [f"{n.cpp_argument(arg)}{{}}" if not arg.startswith("0b") else arg for arg in args]
    template = EXPRESSIONS[op].replace("{*}", ", ".join(values))
    template = template.replace(", {rest}", "".join(f", {v}" for v in values[2:]))

    def argument(match: re.Match) -> str:
        i = int(match[1])
        match match[2]:
            case None:
                return values[i]
            case ":n":
                return args[i]
        return args[i].strip("()")

    return re.sub(r"\{(\d)(:\w+)?\}", argument, template)


def line(case: int, op: str, args: list[str]) -> str:
    """The line of a program that evaluates one case."""
    if op in TILED:
        return tiled_line(case, op, args)
    types = [n.cpp_argument(arg) for arg in args] if op != "swizzle_apply" else []
    match op:
        case "composition":
            return programs.types(case, f"typename Composed<{types[0]}, {types[1]}>::Type{{}}")
        case "slice_and_offset":
            return programs.prints(case, f"put_slice({case}, {types[1]}{{}}, {types[0]}{{}})")
        case "swizzle_slice":
            return programs.prints(
                case, f"put_slice({case}, composition({types[0]}{{}}, {types[2]}{{}}), {types[1]}{{}})"
            )
        case "swizzle_values":
            return programs.prints(case, f"put_values({case}, composition({types[0]}{{}}, {types[1]}{{}}))")
        case "swizzle_apply":
            return programs.prints(
                case, f"put_each({case}, {n.cpp_argument(args[0])}{{}}, {{{','.join(args[1].split())}}})"
            )
    return programs.types(case, expression(op, args))


# ------------------------------------------------------------------------------------------------ results and refusals


def same(got: str, want: str) -> bool:
    """Whether a result is the recorded one, in form or, for layouts with as many modes, as a function."""
    if got == want:
        return True
    if " @ " in want:  # a slice: the elements' places count

        def places(text: str) -> list[int]:
            shown, rest = text.split(" @ ")
            offset, _, listed = rest.partition(" values ")
            values = [int(v) for v in listed.strip("[]").split(",")] if listed else n.evaluate(n.layout(shown))
            return [int(offset) + v for v in values]

        return places(got) == places(want)
    if want.startswith("Sw<") and " o " in want:
        swizzle, _, behind = want.rpartition(" o ")
        got_swizzle, _, got_behind = got.rpartition(" o ")
        return swizzle == got_swizzle and same(got_behind, behind)
    if not n.is_layout(want) or not n.is_layout(got):
        return False
    got_layout, want_layout = n.normalized(n.layout(got)), n.normalized(n.layout(want))
    return got_layout == want_layout or (
        n.evaluate(got_layout) == n.evaluate(want_layout) and n.rank(got_layout[0]) == n.rank(want_layout[0])
    )


def breaks_law(op: str, args: list[str], result: str) -> bool:
    """Whether a layout is not what the operation promises: then it is right to refuse it, or to have another one."""
    if op == "composition":
        return _is_not_composition(*args, result)
    values = n.evaluate(n.layout(result))
    if op.endswith("_divide"):
        return sorted(values) != sorted(n.evaluate(n.layout(args[0])))
    if op == "downcast":  # every element becomes its parts
        parts = int(args[1])
        return sorted(values) != sorted(parts * v + j for v in n.evaluate(n.layout(args[0])) for j in range(parts))
    return op.endswith("_product") and len(set(values)) != len(values)


def _is_not_composition(a: str, b: str, result: str) -> bool:
    def modes(text: str) -> list[tuple]:
        return list(zip(*n.layout(text), strict=True))

    def differs(left: tuple, right: str, composed: tuple) -> bool:
        of = n.layout(right) if n.is_layout(right) else (int(right), 1)
        table = n.evaluate(left, count=max(n.evaluate(of)) + 1)
        return [table[i] for i in n.evaluate(of)] != n.evaluate(composed)

    if n.is_layout(b) or b.isdigit():
        return differs(n.layout(a), b, n.layout(result))
    tiles = n.split(b[1:-1], ";" if b.startswith("[") else ",")
    triples = zip(modes(a), tiles, modes(result), strict=False)
    return any(differs(*triple) for triple in triples if triple[1] != "_")


def wrong(case: dict, got: str) -> bool:
    """Whether a case's result is not the recorded one, and is right only if that breaks the operation's law."""
    op, args, recorded = case["op"], case["args"], case["out"]
    if "UNSOUND" in case.get("flags", []):
        return not is_refusal(got)
    if not is_refusal(got) and same(got, recorded):
        return False
    if op != "downcast" and not is_refusal(got):
        return True
    return not breaks_law(op, args, recorded) or (not is_refusal(got) and breaks_law(op, args, got))


def is_refusal(got: str) -> bool:
    return got.startswith(("!", "k"))  # a sentence, or an enumerator of LayoutError


GROUPS = {
    "composition": {"composition"},
    "compose": {"coalesce", "complement", "right_inverse", "left_inverse", "filter", "filter_zeros"},
    "divide": {"logical_divide", "zipped_divide", "tiled_divide", "flat_divide"},
    "product": {
        *(f"{kind}_product" for kind in ("logical", "zipped", "tiled", "flat", "blocked", "raked")),
        *("tile_to_shape", "make_ordered_layout", "make_layout_like", "make_fragment_like", "compact_col_major"),
    },
    "tiled": {"make_tiled_copy", "make_tiled_copy_A", "make_tiled_copy_B", "make_tiled_copy_C", "make_tiled_mma"},
    "partition": {"partition_ABC", "partition_SD"},
}
GROUPS["other"] = {case["op"] for case in CASES.values()} - set().union(*GROUPS.values()) - NOT_IN_CPP - IN_TEST_WGMMA
TILED = GROUPS["tiled"] | GROUPS["partition"]


@pytest.mark.parametrize("group", GROUPS)
def test_cases(group: str, tmp_path: pathlib.Path):
    cases = {i: case for i, case in CASES.items() if case["op"] in GROUPS[group] and not is_later_mma(case)}
    lines = {i: line(i, case["op"], case["args"]) for i, case in cases.items()}
    results = programs.evaluate(
        f"oracle_{group}", lines, tmp_path, TILED_PRELUDE if group in ("tiled", "partition") else ""
    )
    bad = []
    for i, got in results.items():
        case = cases[i]
        call = f"{case['id']} {case['op']}({', '.join(case['args'])})"
        if case["op"] in TILED:
            bad += [f"{call}: {problem}" for problem in tiled_problems(case, got)]
        elif wrong(case, got[0]):
            bad.append(f"{call} is {got[0]}, must be {case['out']}")
    assert not bad, f"{len(bad)} of {len(results)} cases\n" + "\n".join(bad[:40])


# What the compiler says where Python raises.
SENTENCES = {
    # Which division is found first is up to the order of the tests.
    "StrideDivisibility": "composition: (a stride|an extent) ",
    "Carry": "composition: ",
    "ShapeDivisibility": "(composition: (a stride|an extent) |logical_divide: the tile has gaps)",
    # Two modes of a tile that meet are found by either operation.
    "NonInjective": "(complement: the layout may reach an element twice|composition: two modes|"
    "left_inverse: modes overlap|downcast: two modes)",
    "LeftInverseDivisibility": "left_inverse: the strides do not divide each other",
    "ProfileMismatch": r"(zipped_divide: .*pair|(blocked|raked)_product: the .* is a tuple of one)",
    "UpcastDivisibility": "upcast: a stride and the vector width do not divide each other",
    "DowncastNoUnitStride": "downcast: no mode is contiguous",
    "ShapeDivDivisibility": "shape_div: neither number divides the other",
    "TileToShapeDivisibility": "tile_to_shape: the block does not divide the target shape",
}


def test_errors(tmp_path: pathlib.Path):
    """What must raise does not compile, for the reason recorded."""
    errors = dict(enumerate(ORACLE["errors"]))
    lines = {i: programs.types(i, expression(error["op"], error["args"])) for i, error in errors.items()}
    refused = programs.refusals("oracle_errors", lines, tmp_path)
    assert refused.keys() == lines.keys(), [errors[i] for i in lines.keys() - refused.keys()]
    others = {i: said for i, said in refused.items() if not re.search(SENTENCES[errors[i]["error"]], "\n".join(said))}
    assert not [(errors[i], said) for i, said in others.items()]


# ------------------------------------------------------------------------------------------------------------- misuses

# How a misuse, described in words, is written in C++: the pattern of its text and the expression of what was found.
MISUSES = {
    "Layout": (r"(?:shape )?(\S+)", "{0}"),
    "crd2idx": (r"(\S+) into (\S+)", "({1})({0})"),
    "coalesce": (r"(\S+) profile (\S+)", "coalesce({0}, {1})"),
    "composition": (r"(\S+) by-mode (\S+)", "composition({0}, {1})"),
    "logical_divide": (r"(\S+) by (\S+)", "logical_divide({0}, {1})"),
    "logical_product": (r"(\S+) by (\S+)", "logical_product({0}, {1})"),
    "zipped_divide": (r"(\S+) by (\S+)", "zipped_divide({0}, {1})"),
    "append": (r"(\S+) to rank (\d+)", "append<{1:n}>({0})"),
    "prepend": (r"(\S+) to rank (\d+)", "prepend<{1:n}>({0})"),
    "group": (r"(\S+) \[(\d+),(\d+)\)", "group<{1:n}, {2:n}>({0})"),
    "take": (r"(\S+) \[(\d+),(\d+)\)", "take<{1:n}, {2:n}>({0})"),
    "get": (r"(\S+) mode (\d+)", "get<{1:n}>({0})"),
    "tile_to_shape": (r"(\S+) into (\S+)", "tile_to_shape({0}, {1})"),
    "upcast": (r"(\S+) by (\d+)", "upcast<{1:n}>({0})"),
    "downcast": (r"(\S+) by (\d+)", "downcast<{1:n}>({0})"),
    "recast_layout": (r"(\d+) -> (\d+) bits", "recast_layout<{0:n}, {1:n}>(L<T<I<4>, I<3>>, T<I<1>, I<4>>>{})"),
    "Swizzle": (r"(\S+)", "{0}(1)"),
    "make_swizzle": (r"Y=(\w+),Z=(\w+)", "make_swizzle<{0:n}, {1:n}>()"),
    "Swizzle compose": (r"(\S+) o (\S+)", "composition({0}, {1})"),
    "complement": (r"(\S+) cotarget (\d+)", "complement({0}, {1})"),
    "left_inverse": (r"(\S+)", "left_inverse({0})"),
    "shape_div": (r"(\d+) / (\d+)", "shape_div({0}, {1})"),
}
# By the whole text.
MISUSES_IN_WORDS = {
    "Sw<..> o off o L then .stride": "composition(Swizzle<3, 3, 3>{}, Layout<T<I<8>, I<64>>>{}).stride()",
    "atom 16B on f16 with val size 4": "make_tiled_copy(CopyAtom<UniversalCopy<uint128_t>, half_t>{}, "
    "Layout<Shape<_32, _1>>{}, Layout<Shape<_4, _1>>{}).get_slice(0)",
    "LDSM on thr size 16": "make_tiled_copy(CopyAtom<SM75_U32x4_LDSM_N, half_t>{}, "
    "Layout<Shape<_16, _1>>{}, Layout<Shape<_1, _8>>{}).get_slice(0)",
    "atom layout rank 4": "make_tiled_mma(SM80_16x8x8_F32TF32TF32F32_TN{}, Layout<Shape<_1, _1, _1, _1>>{})",
}
# What a compiler does not see: texts, and coordinates beyond the shape.
PYTHON_ONLY = {"parse", "crd2idx strict", "idx2crd strict", "max_common_vector"}


def misuse_line(i: int, op: str, text: str) -> str:
    if text in MISUSES_IN_WORDS:
        return programs.types(i, MISUSES_IN_WORDS[text])
    pattern, EXPRESSIONS["misuse"] = MISUSES[op]
    return programs.types(i, expression("misuse", list(re.fullmatch(pattern, text).groups())))


def test_misuses(tmp_path: pathlib.Path):
    misuses = {i: m for i, m in enumerate(ORACLE["api_errors"]) if m["op"] not in PYTHON_ONLY}
    lines = {i: misuse_line(i, m["op"], m["input"]) for i, m in misuses.items()}
    refused = programs.refusals("oracle_misuses", lines, tmp_path)
    assert not [misuses[i] for i in lines if i not in refused]
    # With a sentence of ours that begins with the operation, not with what went wrong behind it.
    ours = re.compile(r"[\w, ]+: \w|.*has no member named")
    assert not [(misuses[i], said) for i, said in refused.items() if not ours.match(said[0])]


# --------------------------------------------------------------------------------------------------------------- atoms

MMA_HEADERS = ("mma_sm61.h", "mma_sm70.h", "mma_sm75.h", "mma_sm80.h", "mma_sm89.h", "mma_sm90_f64.h")
MMA_OPS = {
    op
    for header in MMA_HEADERS
    for op in re.findall(r"^(?:MOYE_MMA_\d+\(|struct )(SM\w+)", (cxx.CUDA / "moye/arch" / header).read_text(), re.M)
}
# The recorded mma instructions that C++ does not have: dp2a, whose B is not what the record says, and complex numbers,
# which CuTe makes of four real instructions. wgmma has headers and tests of its own.
NOT_IN_CPP_MMA = {
    *("SM61_DP2A", "SM80_8x8x4_C64C64C64C64_TN", "SM80_8x8x4_GC64C64C64GC64_TN"),
    *(f"SM90_16x8x{k}_C64C64C64C64_TN" for k in (4, 8, 16)),
}

TILED_PRELUDE = """
// A per-thread tensor as its layout and where it begins.
template <class Tensor_> int offset_of(Tensor_ const& t, char const* base) {
  return int(reinterpret_cast<char const*>(&t(0)) - base) / int(sizeof(t(0)));
}
template <class V, class Layout_> auto in_memory(Layout_ const& l, char* memory) {
  return make_tensor(make_smem_ptr(reinterpret_cast<V*>(memory)), l);
}
alignas(16) char memory[1 << 22];

template <class Mma, class LA, class LB, class LC>
int put_partition_ABC(int id, Mma mma, LA a, LB b, LC c, int thread) {
  auto thr = mma.get_slice(thread);
  auto ta = thr.partition_A(in_memory<typename Mma::ValTypeA>(a, memory));
  auto tb = thr.partition_B(in_memory<typename Mma::ValTypeB>(b, memory));
  auto tc = thr.partition_C(in_memory<typename Mma::ValTypeC>(c, memory));
  std::printf("%d\\tA=%s@%d B=%s@%d C=%s@%d fragA=%s fragB=%s\\n", id, show(ta.layout()).c_str(),
              offset_of(ta, memory), show(tb.layout()).c_str(), offset_of(tb, memory), show(tc.layout()).c_str(),
              offset_of(tc, memory), show(thr.make_fragment_A(ta).layout()).c_str(),
              show(thr.make_fragment_B(tb).layout()).c_str());
  return 0;
}
template <class V, class Copy, class X> int put_partition_SD(int id, Copy copy, X x, int thread) {
  auto thr = copy.get_slice(thread);
  auto s = thr.partition_S(in_memory<V>(x, memory));
  auto d = thr.partition_D(in_memory<V>(x, memory));
  std::printf("%d\\tS=%s@%d D=%s@%d\\n", id, show(s.layout()).c_str(), offset_of(s, memory), show(d.layout()).c_str(),
              offset_of(d, memory));
  return 0;
}
"""
TILED_COPY = {
    "tiler": "{0}::tile_size()",
    "TV": "typename {0}::LayoutTV{{}}",
    "S_TV": "{0}::layout_S_TV()",
    "D_TV": "{0}::layout_D_TV()",
    "threads": "size({0}{{}})",
}
TILED_MMA = {
    "thr_vmnk": "{0}::thr_layout_vmnk()",
    "tile": "{0}::tile_shape()",
    **{f"{operand}_TV": f"{{0}}::layout_{operand}_TV()" for operand in "ABC"},
    "threads": "size({0}{{}})",
}


def is_later_mma(case: dict) -> bool:
    """Whether a case needs an instruction that these programs do not have: wgmma."""
    return bool({op for op in re.findall(r"SM\d+_\d+x\w+", " ".join(case["args"]))} - MMA_OPS)


def mma_op(name: str) -> str:
    if match := re.fullmatch(r"UniversalFMA<(\w+)>", name):
        return f"UniversalFMA<{', '.join([match[1]] * 4)}>"
    return name


def tiled_copy(copy: str, value: str, thr: str, val: str) -> str:
    return f"make_tiled_copy(CopyAtom<{copy}, {value}>{{}}, {n.cpp_argument(thr)}{{}}, {n.cpp_argument(val)}{{}})"


def tiled_mma(op: str, atoms: str, tile: str) -> str:
    return f"make_tiled_mma({mma_op(op)}{{}}, {n.cpp_argument(atoms)}{{}}, {n.cpp_argument(tile)}{{}})"


def tiled_line(case: int, op: str, args: list[str]) -> str:
    if op.startswith("partition"):
        if op == "partition_ABC":
            call = f"put_partition_ABC({case}, {tiled_mma(*args[:3])}"
            return programs.prints(
                case, ", ".join([call, *(f"{n.cpp_argument(x)}{{}}" for x in args[3:6]), f"{args[6]})"])
            )
        call = f"put_partition_SD<{args[1]}>({case}, {tiled_copy(*args[:4])}, {n.cpp_argument(args[4])}{{}}, {args[5]})"
        return programs.prints(case, call)
    if op == "make_tiled_mma":
        made, fields = tiled_mma(*args), TILED_MMA
    elif op == "make_tiled_copy":
        made, fields = tiled_copy(*args), TILED_COPY
    else:
        made, fields = f"{op}(CopyAtom<{args[0]}, {args[1]}>{{}}, {tiled_mma(*args[2:])})", TILED_COPY
    return programs.types(case, *(field.format(f"decltype({made})") for field in fields.values()))


def tiled_problems(case: dict, got: list[str]) -> list[str]:
    """The fields of a case that differ: `A=x B=y`, or the types of TILED_COPY or TILED_MMA in their order."""
    want = dict(field.split("=", 1) for field in case["out"].split(" "))
    if case["op"].startswith("partition"):
        mine = dict(field.split("=", 1) for field in got[0].split(" "))
    else:
        mine = dict(zip(TILED_MMA if case["op"] == "make_tiled_mma" else TILED_COPY, got, strict=True))
    problems = []
    for key, value in want.items():
        parts, my_parts = value.split("@"), mine[key].split("@")
        if not same(my_parts[0], parts[0]) or my_parts[1:] != parts[1:]:
            problems.append(f"{key} is {mine[key]}, must be {value}")
    return problems


def bits(dtype: str) -> str:
    """The C++ expression of a type's bits."""
    return {"int4b_t": "4", "uint4b_t": "4", "uint1b_t": "1"}.get(dtype, f"8 * sizeof({dtype})")


def test_atoms(tmp_path: pathlib.Path):
    """Every instruction of arch/ has the recorded threads and fragments, and registers for exactly them."""
    facts = json.loads(gzip.decompress((DATA / "atoms.json.gz").read_bytes()))
    lines, want = {}, {}
    for atom in facts["mma_atoms"]:
        if (name := atom["name"]) in MMA_OPS:
            of = f"MmaAtom<{name}>"
            fields = ["ShapeMNK", "ThrId", "LayoutATV", "LayoutBTV", "LayoutCTV"]
            fits = (
                f"C<is_same<typename {of}::ValType{x}, {atom['dtypes'][x]}> && {bits(atom['dtypes'][x])} * "
                f"decltype(size<1>(typename {of}::Layout{x}TV{{}}))::value == "
                f"8 * sizeof(typename {name}::{x}Registers)>{{}}"
                for x in "ABC"
            )
            lines[len(lines)] = programs.types(len(lines), *(f"typename {of}::{f}{{}}" for f in fields), *fits)
            shape = f"({','.join(map(str, atom['shape_mnk']))})"
            layouts = [atom[f"layout_{x}_TV"] for x in "ABC"]
            want[len(want)] = [name, shape, atom["thr_id"], *layouts, "1", "1", "1"]
    sources = "".join((cxx.CUDA / "moye/arch" / f"copy{x}.h").read_text() for x in ("", "_sm75", "_sm80"))
    for atom in facts["copy_atoms"]:
        name = atom["name"]
        if f"struct {name.partition('<')[0]} " in sources:
            of = f"CopyAtom<{name}, {atom['value_type']}>"
            fields = ["ThrId", "ValLayoutSrc", "ValLayoutDst", "ValLayoutRef"]
            lines[len(lines)] = programs.types(len(lines), *(f"typename {of}::{f}{{}}" for f in fields))
            want[len(want)] = [name, atom["thr_id"], *(atom[f"val_layout_{x}"] for x in ("src", "dst", "ref"))]
    results = programs.evaluate("oracle_atoms", lines, tmp_path)
    for i, got in results.items():
        for mine, fact in zip(got, want[i][1:], strict=True):
            assert same(mine, fact), (want[i][0], mine, fact)
    assert {want[i][0] for i in want} >= MMA_OPS


def test_every_recorded_mma_is_in_cpp():
    facts = json.loads(gzip.decompress((DATA / "atoms.json.gz").read_bytes()))
    recorded = {atom["name"] for atom in facts["mma_atoms"] if not atom["name"].startswith("SM90_64x")}
    assert recorded - MMA_OPS == NOT_IN_CPP_MMA
    # Those of Python: D and C of different types, which only MoYe.jl names, are not in C++ either.
    mixed = {f"SM70_8x8x4_F32F16F16F16_{majors}" for majors in ("TN", "NT", "NN", "TT")}
    names = {name for name in atoms.mma_atom_names() if not name.startswith("SM90_64x")}
    assert names - MMA_OPS == NOT_IN_CPP_MMA | mixed
    assert names >= MMA_OPS


def test_first_architectures(tmp_path: pathlib.Path):
    """kMinArch of each op is what Python's atom says."""
    ops = sorted(MMA_OPS)
    lines = {i: programs.types(i, f"C<min_arch<{op}>>{{}}") for i, op in enumerate(ops)}
    results = programs.evaluate("oracle_min_arch", lines, tmp_path)
    assert {ops[i]: int(got[0]) for i, got in results.items()} == {op: atoms.mma_atom(op).min_arch for op in ops}


def test_every_mma_op_has_traits():
    traits = (cxx.CUDA / "moye/atom/mma_traits.h").read_text()
    assert MMA_OPS
    assert not [name for name in MMA_OPS if not re.search(rf"(MOYE_MMA_TRAITS\(|MmaTraits<){name}\b", traits)]
