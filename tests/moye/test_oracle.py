"""The layout algebra and the atoms of cuda/moye against recorded facts (tests/data/*.tsv).

A C++ program is written from the facts, evaluates each case with static layouts, and prints the results.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest

sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]
import cxx  # noqa: E402
import notation as n  # noqa: E402

DATA = pathlib.Path(__file__).parents[1] / "data"
FLAGS = ["-O0", "-g0", "-fno-strict-aliasing", f"-I{pathlib.Path(__file__).parent}"]
PRELUDE = """
#include <cstdio>
#include "show.h"
using namespace moye;
template <int v> using I = Int<v>;
template <class... X> using T = Tuple<X...>;
template <class S, class D> using L = Layout<S, D>;
using U = Underscore;
inline void put_line(int id, std::string const& text) { std::printf("%d\\t%s\\n", id, text.c_str()); }
template <class X> void put(int id, X const& x) { put_line(id, show(x)); }
"""


def rows(file: str) -> list[list[str]]:
    lines = (DATA / file).read_text().splitlines()
    return [line.split("\t") for line in lines if line and not line.startswith("#")]


# Operations on layouts and tuples alone: name -> C++ expression of the arguments {0}, {1}, ... (values of their types).
PLAIN = {
    "size": "size({0})",
    "rank": "rank({0})",
    "flatten": "flatten({0})",
    "filter": "filter({0})",
    "filter_zeros": "filter_zeros({0})",
    "make_layout_like": "make_layout_like({0})",
    "make_fragment_like": "make_fragment_like({0})",
    "compact_col_major": "compact_col_major({0})",
    "make_ordered_layout": "make_ordered_layout({0}, {1})",
    "right_inverse": "right_inverse({0})",
    "left_inverse": "left_inverse({0})",
    "composition": "composition({0}, {1})",
    "max_common_layout": "max_common_layout({0}, {1})",
    "max_common_vector": "max_common_vector({0}, {1})",
    "crd2idx": "{1}({0})",
    "idx2crd": "idx2crd({0}, {1}.shape(), {1}.stride())",
    "dice": "dice({0}, {1})",
    "shape_div": "shape_div({0}, {1})",
    "ceil_div": "ceil_div({0}, {1})",
    "compatible": "compatible({0}, {1})",
    "congruent": "congruent({0}, {1})",
    "weakly_congruent": "weakly_congruent({0}, {1})",
    "evenly_divides": "evenly_divides({0}, {1})",
    "elem_less": "elem_less({0}, {1})",
    **{
        f"{kind}_{op}": f"{kind}_{op}({{0}}, {{1}})"
        for op in ("divide", "product")
        for kind in ("logical", "zipped", "tiled", "flat")
    },
    "blocked_product": "blocked_product({0}, {1})",
    "raked_product": "raked_product({0}, {1})",
    "swizzle_tile_to_shape": "tile_to_shape(composition({0}, {1}), {2})",
    "swizzle_max_common_vector": "max_common_vector(composition({0}, {1}), {2})",
}
# With an optional last argument.
OPTIONAL = {"coalesce", "complement", "tile_to_shape"}
ERRORS = {
    "composition": "composition_error<{0}, {1}>",
    "complement": "complement_error<{0}>",
    "left_inverse": "left_inverse_error<{0}>",
}


def expression(op: str, args: list[str]) -> str | None:
    """C++ for one case; None where the library does not have the operation."""
    values = [n.cpp_argument(arg) + "{}" for arg in args]
    if op == "idx2crd":
        values[1] = f"({values[1]})"
    if op in PLAIN:
        return PLAIN[op].format(*values)
    if op in OPTIONAL:
        return f"{op}({', '.join(values)})"
    if op in ("upcast", "downcast"):
        return f"{op}<{args[1]}>({values[0]})"
    if op in ("swizzle_upcast", "swizzle_downcast"):
        return f"{op[8:]}<{args[2]}>(composition({values[0]}, {values[1]}))"
    if op == "recast_layout":
        return f"recast_layout<{args[1]}, {args[2]}>({values[0]})"
    if op in ("group", "take"):
        return f"{op}<{args[1]}, {args[2]}>({values[0]})"
    if op == "select":
        return f"select<{args[1].strip('()')}>({values[0]})"
    if op in ("append", "prepend"):
        return f"{op}<{args[1]}>({', '.join([values[0], *values[2:]])})"
    if op == "make_swizzle":
        return f"make_swizzle<{args[0]}, {args[1]}>()"
    return None


def statement(case: int, op: str, args: list[str], result: str, flags: str) -> str | None:
    if op.startswith(("make_tiled", "partition")):
        return None  # see tiled_statement
    types = [n.cpp_argument(arg) for arg in args] if op != "swizzle_apply" else []
    if result.startswith("!") or "UNSOUND" in flags:
        if op not in ERRORS:
            return None
        return f"put({case}, {ERRORS[op].format(*types)});"
    if op in ("slice_and_offset", "swizzle_slice"):
        source = types[1] + "{}" if op == "slice_and_offset" else f"composition({types[0]}{{}}, {types[2]}{{}})"
        coord = types[0] if op == "slice_and_offset" else types[1]
        return f"put_slice({case}, {source}, {coord}{{}});"
    if op == "swizzle_values":
        return f"put_values({case}, composition({types[0]}{{}}, {types[1]}{{}}));"
    if op == "swizzle_apply":
        swizzle = n.cpp_argument(args[0])
        return f"put_list({case}, {swizzle}{{}}, {{{','.join(args[1].split())}}});"
    text = expression(op, args)
    if text is None:
        return None
    if op == "composition":  # refused where the recorded result is not A after B: see refusal_is_right
        return f"put_composition<{types[0]}, {types[1]}>({case});"
    return f"put({case}, {text});"


HELPERS = """
template <class A, class B> void put_composition(int id) {
  if constexpr (composition_error<A, B> == LayoutError::kNone) {
    put(id, composition(A{}, B{}));
  } else {
    put(id, std::string("refused"));
  }
}
template <class X, class C> void put_slice(int id, X const& x, C const& c) {
  auto const l = slice_layout(x, c);
  int const offset = slice_offset(x, c);
  std::printf("%d\\t%s @ %d values [", id, show(l).c_str(), offset);
  for (int i = 0; i < size(l); ++i) std::printf("%s%d", i ? "," : "", int(l(i)));
  std::printf("]\\n");
}
template <class X> void put_values(int id, X const& x) {
  std::printf("%d\\t[", id);
  for (int i = 0; i < size(x); ++i) std::printf("%s%d", i ? "," : "", int(x(i)));
  std::printf("]\\n");
}
template <class X> void put_list(int id, X const& x, std::initializer_list<int> list) {
  std::printf("%d\\t[", id);
  bool first = true;
  for (int i : list) std::printf("%s%d", first ? "" : ",", int(x(i))), first = false;
  std::printf("]\\n");
}
"""


def run(name: str, statements: list[str], tmp_path: pathlib.Path, prelude: str = "") -> dict[int, str]:
    """Compiles and runs the statements; case -> printed result."""
    functions = []
    for start in range(0, len(statements), 100):
        body = "\n  ".join(statements[start : start + 100])
        functions.append(f"void part{start // 100}() {{\n  {body}\n}}\n")
    calls = " ".join(f"part{i}();" for i in range(len(functions)))
    text = PRELUDE + HELPERS + prelude + "".join(functions) + f"int main() {{ {calls} }}\n"
    source = tmp_path / f"{name}.cc"
    source.write_text(text)
    program = cxx.build(name, [source], FLAGS)
    done = subprocess.run([program], capture_output=True, text=True, check=True, env={**os.environ})
    return {int(case): result for case, result in (line.split("\t") for line in done.stdout.splitlines())}


def same(op: str, got: str, want: str) -> bool:
    if got == want:
        return True
    if " @ " in want:  # a slice: compare the elements' places

        def places(text: str) -> list[int]:
            shown, rest = text.split(" @ ")
            offset, _, listed = rest.partition(" values ")
            values = [int(v) for v in listed.strip("[]").split(",")] if listed else n.evaluate(n.layout(shown))
            return [int(offset) + v for v in values]

        return places(got) == places(want)
    if want.startswith("Sw<") and " o " in want:
        swizzle, _, behind = want.rpartition(" o ")
        got_swizzle, _, got_behind = got.rpartition(" o ")
        return swizzle == got_swizzle and same(op, got_behind, behind)
    if ":" in want:
        got_layout, want_layout = n.normalized(n.layout(got)), n.normalized(n.layout(want))
        if got_layout == want_layout:
            return True
        # Another form of the same function, with the same number of modes.
        return (
            n.size(got_layout[0]) == n.size(want_layout[0])
            and n.evaluate(got_layout) == n.evaluate(want_layout)
            and isinstance(got_layout[0], tuple) == isinstance(want_layout[0], tuple)
            and (not isinstance(got_layout[0], tuple) or len(got_layout[0]) == len(want_layout[0]))
        )
    return False


def refusal_is_right(a: str, b: str, result: str) -> bool:
    """Whether the recorded composition differs from A after B somewhere, in one mode at least."""

    def modes(text: str) -> list[tuple]:
        return list(zip(*n.layout(text), strict=True))

    def differs(left: tuple, right: str, composed: tuple) -> bool:
        of = n.layout(right) if n.is_layout(right) else (int(right), 1)
        table = n.evaluate(left, count=max(n.evaluate(of)) + 1)
        return [table[i] for i in n.evaluate(of)] != n.evaluate(composed)

    if b.startswith("["):
        tiles = n.split(b[1:-1], ";")
        triples = zip(modes(a), tiles, modes(result), strict=False)
        return any(differs(*triple) for triple in triples if triple[1] != "_")
    return differs(n.layout(a), b, n.layout(result))


ALGEBRA = rows("layout_algebra.tsv")
GROUPS = {
    "compose": ("composition", "coalesce", "complement", "right_inverse", "left_inverse", "filter", "filter_zeros"),
    "divide": ("logical_divide", "zipped_divide", "tiled_divide", "flat_divide"),
    "product": (
        *(f"{kind}_product" for kind in ("logical", "zipped", "tiled", "flat", "blocked", "raked")),
        *("tile_to_shape", "make_ordered_layout", "make_layout_like", "make_fragment_like", "compact_col_major"),
    ),
    "slice": (
        "slice_and_offset",
        "dice",
        "group",
        "take",
        "select",
        "append",
        "prepend",
        "flatten",
        "crd2idx",
        "idx2crd",
    ),
    "numbers": (
        *("size", "rank", "shape_div", "ceil_div", "compatible", "congruent", "weakly_congruent", "evenly_divides"),
        *("elem_less", "upcast", "downcast", "recast_layout", "max_common_layout", "max_common_vector"),
    ),
    "swizzle": (
        *("swizzle_apply", "swizzle_values", "swizzle_slice", "swizzle_upcast", "swizzle_downcast", "make_swizzle"),
        *("swizzle_tile_to_shape", "swizzle_max_common_vector"),
    ),
}


@pytest.mark.parametrize("group", GROUPS)
def test_algebra(group: str, tmp_path: pathlib.Path):
    cases = {}
    for i, (op, args, want, flags) in enumerate(ALGEBRA):
        if op in GROUPS[group] and (code := statement(i, op, args.split("|"), want, flags)):
            cases[i] = code
    results = run(f"oracle_{group}", list(cases.values()), tmp_path)
    assert results.keys() == cases.keys()
    wrong = []
    for i, got in results.items():
        op, args, want, flags = ALGEBRA[i]
        if "UNSOUND" in flags:
            good = got.startswith("!")  # refused
        elif want.startswith("!"):
            right = n.layout(args.split("|")[1]) if op == "composition" else None
            trivial = right is not None and 1 in n.leaves(right[0])
            good = got == want or (got == "none" and trivial) or (got.startswith("!") and op == "composition")
        else:
            good = same(op, got, want) if got != "refused" else refusal_is_right(*args.split("|"), want)
        if not good:
            wrong.append(f"{op}({args.replace('|', ', ')}) is {got}, must be {want} {flags}")
    assert not wrong, f"{len(wrong)} of {len(results)} cases\n" + "\n".join(wrong[:40])


# --------------------------------------------------------------------------------------------------------------- atoms

ATOM_HELPERS = """
using float_t_ = float;
template <class Op> void put_mma(int id) {
  using A = MmaAtom<Op>;
  std::printf("%d\\t%s %s %s %s %s\\n", id, show(typename A::ShapeMNK{}).c_str(), show(typename A::ThrId{}).c_str(),
              show(typename A::LayoutATV{}).c_str(), show(typename A::LayoutBTV{}).c_str(),
              show(typename A::LayoutCTV{}).c_str());
  static_assert(sizeof(typename A::ValTypeA) * decltype(size<1>(typename A::LayoutATV{}))::value ==
                sizeof(typename Op::ARegisters));
  static_assert(sizeof(typename A::ValTypeB) * decltype(size<1>(typename A::LayoutBTV{}))::value ==
                sizeof(typename Op::BRegisters));
  static_assert(sizeof(typename A::ValTypeC) * decltype(size<1>(typename A::LayoutCTV{}))::value ==
                sizeof(typename Op::CRegisters));
}
template <class Op, class V> void put_copy(int id) {
  using A = CopyAtom<Op, V>;
  std::printf("%d\\t%s %s %s %s\\n", id, show(typename A::ThrId{}).c_str(), show(typename A::ValLayoutSrc{}).c_str(),
              show(typename A::ValLayoutDst{}).c_str(), show(typename A::ValLayoutRef{}).c_str());
}
template <class Copy> void put_tiled_copy(int id, Copy) {
  std::printf("%d\\ttiler=%s TV=%s S_TV=%s D_TV=%s threads=%d\\n", id, show(Copy::tile_size()).c_str(),
              show(typename Copy::LayoutTV{}).c_str(), show(Copy::layout_S_TV()).c_str(),
              show(Copy::layout_D_TV()).c_str(), int(size(Copy{})));
}
template <class Mma> void put_tiled_mma(int id, Mma) {
  std::printf("%d\\tthr_vmnk=%s tile=%s A_TV=%s B_TV=%s C_TV=%s threads=%d\\n", id,
              show(Mma::thr_layout_vmnk()).c_str(), show(Mma::tile_shape()).c_str(), show(Mma::layout_A_TV()).c_str(),
              show(Mma::layout_B_TV()).c_str(), show(Mma::layout_C_TV()).c_str(), int(size(Mma{})));
}
// A per-thread tensor as "layout@offset"; the values matter, so they are printed too.
template <class T_> std::string show_tensor(T_ const& t, char const* base) {
  int const offset = int(reinterpret_cast<char const*>(&t(0)) - base) / int(sizeof(t(0)));
  return show(t.layout()) + "@" + std::to_string(offset);
}
template <class Mma, class LA, class LB, class LC>
void put_partition_ABC(int id, Mma mma, LA a, LB b, LC c, int thread) {
  static char memory[1 << 20];
  using VA = typename Mma::ValTypeA;
  using VB = typename Mma::ValTypeB;
  using VC = typename Mma::ValTypeC;
  auto thr = mma.get_slice(thread);
  auto ta = thr.partition_A(make_tensor(make_smem_ptr(reinterpret_cast<VA*>(memory)), a));
  auto tb = thr.partition_B(make_tensor(make_smem_ptr(reinterpret_cast<VB*>(memory)), b));
  auto tc = thr.partition_C(make_tensor(make_smem_ptr(reinterpret_cast<VC*>(memory)), c));
  auto ra = thr.make_fragment_A(ta);
  auto rb = thr.make_fragment_B(tb);
  std::printf("%d\\tA=%s B=%s C=%s fragA=%s fragB=%s\\n", id, show_tensor(ta, memory).c_str(),
              show_tensor(tb, memory).c_str(), show_tensor(tc, memory).c_str(), show(ra.layout()).c_str(),
              show(rb.layout()).c_str());
}
template <class V, class Copy, class X> void put_partition_SD(int id, Copy copy, X x, int thread) {
  static char memory[1 << 20];
  auto thr = copy.get_slice(thread);
  auto t = make_tensor(make_smem_ptr(reinterpret_cast<V*>(memory)), x);
  std::printf("%d\\tS=%s D=%s\\n", id, show_tensor(thr.partition_S(t), memory).c_str(),
              show_tensor(thr.partition_D(t), memory).c_str());
}
"""

MMA_ROWS = [row for row in rows("atoms.tsv") if row[0] == "mma" and row[1].startswith("SM80")]
OPS = {row[1] for row in MMA_ROWS if "SATURATE" not in row[1]}


def mma_op(name: str) -> str | None:
    if name == "UniversalFMA<float>":
        return "UniversalFMA<float, float, float, float>"
    return name if name in OPS else None


def fields(text: str) -> dict[str, str]:
    """'A=x B=y' as {'A': 'x', 'B': 'y'}"""
    return dict(part.split("=", 1) for part in text.split(" "))


def tiled_copy(copy: str, value: str, thr: str, val: str) -> str:
    return f"make_tiled_copy(CopyAtom<{copy}, {value}>{{}}, {n.cpp_argument(thr)}{{}}, {n.cpp_argument(val)}{{}})"


def mma(op: str, atoms: str, tile: str) -> str:
    return f"make_tiled_mma({op}{{}}, {n.cpp_argument(atoms)}{{}}, {n.cpp_argument(tile)}{{}})"


def tiled_statement(case: int, op: str, args: list[str]) -> str | None:
    if op == "make_tiled_copy":
        return f"put_tiled_copy({case}, {tiled_copy(*args)});"
    if op in ("make_tiled_copy_A", "make_tiled_copy_B"):
        copy, value, name, atoms, tile = args
        return f"put_tiled_copy({case}, {op}(CopyAtom<{copy}, {value}>{{}}, {mma(name, atoms, tile)}));"
    if op == "make_tiled_mma":
        name, atoms, tile = args
        return f"put_tiled_mma({case}, {mma(name, atoms, tile)});" if (name := mma_op(name)) else None
    if op == "partition_ABC":
        name, atoms, tile, a, b, c, thread = args
        if not (name := mma_op(name)):
            return None
        layouts = ", ".join(n.cpp_argument(x) + "{}" for x in (a, b, c))
        return f"put_partition_ABC({case}, {mma(name, atoms, tile)}, {layouts}, {thread});"
    if op == "partition_SD":
        copy, value, thr, val, tensor, thread = args
        tiled = tiled_copy(copy, value, thr, val)
        return f"put_partition_SD<{value}>({case}, {tiled}, {n.cpp_argument(tensor)}{{}}, {thread});"
    return None


@pytest.mark.parametrize("group", ["make_tiled_copy", "make_tiled_mma", "partition"])
def test_tiled(group: str, tmp_path: pathlib.Path):
    cases = {}
    for i, (op, args, want, _) in enumerate(ALGEBRA):
        if op.startswith(group) and not want.startswith("!") and (code := tiled_statement(i, op, args.split("|"))):
            cases[i] = code
    results = run(f"oracle_{group}", list(cases.values()), tmp_path, ATOM_HELPERS)
    assert results.keys() == cases.keys()
    wrong = []
    for i, got in results.items():
        op, args, want, _ = ALGEBRA[i]
        got_fields = fields(got)
        for key, value in fields(want).items():
            mine = got_fields[key]
            if "@" in value:
                good = mine.split("@")[1] == value.split("@")[1] and same(op, mine.split("@")[0], value.split("@")[0])
            else:
                good = same(op, mine, value)
            if not good:
                wrong.append(f"{op}({args.replace('|', ', ')}): {key} is {mine}, must be {value}")
    assert not wrong, f"{len(wrong)} of {len(results)} cases\n" + "\n".join(wrong[:40])


def test_atoms(tmp_path: pathlib.Path):
    statements, want = [], {}
    for i, row in enumerate(rows("atoms.tsv")):
        if row[0] == "mma" and row[1] in OPS:
            statements.append(f"put_mma<{row[1]}>({i});")
            want[i] = ["(" + row[2].replace("x", ",") + ")", *row[3:7]]
        elif row[0] == "copy":
            statements.append(f"put_copy<{row[1]}, {row[2]}>({i});")
            want[i] = row[3:7]
    results = run("oracle_atoms", statements, tmp_path, ATOM_HELPERS)
    assert results.keys() == want.keys()
    for i, got in results.items():
        for mine, fact in zip(got.split(" "), want[i], strict=True):
            assert same("atom", mine, fact), (rows("atoms.tsv")[i][1], mine, fact)


def test_every_mma_op_has_traits():
    source = (cxx.CUDA / "moye/arch/mma_sm80.h").read_text()
    names = set(re.findall(r"\b(SM80_\w+_TN)\b", source))
    traits = (cxx.CUDA / "moye/atom/mma_traits.h").read_text()
    assert names
    assert not [name for name in names if f"({name}," not in traits]
