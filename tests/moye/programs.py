"""C++ programs written from lists of cases, one line of source for each, and what they say about each case."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cxx
import notation as n

FLAGS = ["-O0", "-g0", "-fno-strict-aliasing", f"-I{pathlib.Path(__file__).parent}"]
# Of an error, all that is read here.
TERSE = ["-fmax-errors=0", "-ftemplate-backtrace-limit=2", "-fno-diagnostics-show-caret"]

# Static results are types: a case costs one function that names them, and no code of its own.
PRELUDE = """
#include <cstdio>
#include <initializer_list>
#include "show.h"
using namespace moye;
template <int v> using I = Int<v>;
template <class... X> using T = Tuple<X...>;
template <class S, class D> using L = Layout<S, D>;
using U = Underscore;
template <class... T> char const* types() { return __PRETTY_FUNCTION__; }
struct Case { int id; char const* types; };

template <class A, class B, LayoutError kError = composition_error<A, B>>
struct Composed { using Type = C<kError>; };
template <class A, class B>
struct Composed<A, B, LayoutError::kNone> { using Type = decltype(composition(A{}, B{})); };

template <class X> int put_values(int id, X const& x) {
  std::printf("%d\\t[", id);
  for (int i = 0; i < size(x); ++i) std::printf("%s%d", i ? "," : "", int(x(i)));
  std::printf("]\\n");
  return 0;
}
template <class X, class C> int put_slice(int id, X const& x, C const& c) {
  std::printf("%d\\t%s @ %d values ", id, show(slice_layout(x, c)).c_str(), int(slice_offset(x, c)));
  auto const l = slice_layout(x, c);
  std::printf("[");
  for (int i = 0; i < size(l); ++i) std::printf("%s%d", i ? "," : "", int(l(i)));
  std::printf("]\\n");
  return 0;
}
template <class X> int put_each(int id, X const& x, std::initializer_list<int> list) {
  std::printf("%d\\t[", id);
  bool first = true;
  for (int i : list) std::printf("%s%d", first ? "" : ",", int(x(i))), first = false;
  std::printf("]\\n");
  return 0;
}
"""
MAIN = """
int main() {
  for (Case const& c : kCases) {
    if (c.types != nullptr) std::printf("%d\\t%s\\n", c.id, c.types);
  }
}
"""
SENTENCE = re.compile(r"error: (?:static assertion failed: )?(.*)")


def types(case: int, *expressions: str) -> str:
    """The line of a case whose results are the types of expressions."""
    return f"{{{case}, types<{', '.join(f'decltype({e})' for e in expressions)}>()}},"


def prints(case: int, call: str) -> str:
    """The line of a case that prints its result when the program runs."""
    return f"{{{case}, ({call}, nullptr)}},"


def _source(lines: dict[int, str], prelude: str) -> tuple[str, dict[int, int]]:
    """The program, and the case on each line of it."""
    head = f"{PRELUDE}{prelude}Case const kCases[] = {{\n"
    first = head.count("\n") + 1
    cases = {first + i: case for i, case in enumerate(lines)}
    return head + "\n".join(lines.values()) + "\n};\n" + MAIN, cases


def _refusals(output: str, source: pathlib.Path, cases: dict[int, int]) -> dict[int, list[str]]:
    """The cases that the compiler names in its errors, with its sentences about each."""
    refused: dict[int, list[str]] = {}
    pending: list[int] = []  # of an error, the chain of instantiations comes first
    at = re.compile(rf"{re.escape(source.name)}:(\d+):\d+: (.*)")
    for line in output.splitlines():
        if line.startswith(" "):
            continue
        if place := at.search(line):
            case = cases.get(int(place[1]))
            if case is not None:
                if place[2].startswith("error"):
                    refused.setdefault(case, []).append(SENTENCE.match(place[2])[1])
                else:
                    pending.append(case)
                continue
        if sentence := SENTENCE.search(line):
            for case in pending:
                refused.setdefault(case, []).append(sentence[1])
            pending = []
    return refused


def refusals(name: str, lines: dict[int, str], folder: pathlib.Path, prelude: str = "") -> dict[int, list[str]]:
    """The cases that do not compile, with the compiler's sentences.

    What two cases share is refused once: hence rounds.
    """
    refused: dict[int, list[str]] = {}
    left = dict(lines)
    while left:
        text, cases = _source(left, prelude)
        source = folder / f"{name}.cc"
        source.write_text(text)
        try:
            cxx.compile_only(source, [*FLAGS, *TERSE])
            break
        except cxx.CompileError as error:
            found = _refusals(str(error), source, cases)
            if not found:
                raise
            refused |= found
            left = {case: line for case, line in left.items() if case not in found}
    return refused


def evaluate(name: str, lines: dict[int, str], folder: pathlib.Path, prelude: str = "") -> dict[int, list[str]]:
    """The results of each case, in the notation; of one that does not compile `!` and the sentence."""
    results: dict[int, list[str]] = {}
    left = dict(lines)
    while left:
        text, cases = _source(left, prelude)
        source = folder / f"{name}.cc"
        source.write_text(text)
        try:
            program = cxx.build(name, [source], FLAGS)
            break
        except cxx.CompileError as error:
            found = _refusals(str(error), source, cases)
            if not found:
                raise
            results |= {case: [f"!{sentences[0]}"] for case, sentences in found.items()}
            left = {case: line for case, line in left.items() if case not in found}
    else:
        return results
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        case, _, result = line.partition("\t")
        if "T = " in result:
            results[int(case)] = [n.type_text(part) for part in n.types_text(result)]
        else:
            results[int(case)] = [result]
    assert results.keys() == lines.keys()
    return results
