"""What nvcc makes of the kernels that have neither TMA nor wgmma: nothing spilled, and tools/sass_rules.json obeyed.

Compiled is a row of each kind: of each kernel, dtype and accumulator the one with the most sums, and of each kernel and
alignment the first. Orders take turns. Builds of releases compile all rows in all orders, and apply the same rules;
test_sass.py looks at what is installed, test_sass_sm90.py at the kernels with wgmma.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
import pathlib
import re
import subprocess
import tempfile
from collections.abc import Iterable

import pytest

from tests.build.test_sass_sm90 import ORDERS, ROOT, RULES, WITHOUT_WGMMA, check_sass

ROW = re.compile(r"^ *(\{(\w+), *(\w+), *(\w+),[^{]*\{([^}]*)\}[^{]*\{([^}]*)\}, *(\d+)\}),", re.MULTILINE)
# 32-bit elements that ldmatrix cannot transpose, beside what the turns of the orders find.
TRANSPOSED = {
    "sm80_ldmatrix": ("{sm80_ldmatrix,tf32,f32,{128,128,32},1,{1,1},16}", "TN"),
    "sm80_double_buffer": ("{sm80_double_buffer,tf32,f32,{128,128,16},2,{1,1},16}", "TN"),
}


def table() -> list[tuple[str, str, str, str, int, int]]:
    """(row, kernel, dtype, accumulator, sums of a tile, alignment) of each row of such a kernel."""
    rows = ROW.findall((ROOT / "cuda/gemm/configs.h").read_text())
    return [
        (re.sub(r"\s+", "", text), kernel, dtype, sums, math.prod(int(x) for x in tile.split(",")[:2]), int(alignment))
        for text, kernel, dtype, sums, tile, _, alignment in rows
        if not kernel.startswith("sm90_") or kernel in WITHOUT_WGMMA
    ]


def rows() -> dict[str, list[tuple[str, str]]]:
    """{kernel: [(row, order)]}."""
    widest: dict[tuple, tuple] = {}
    first: dict[tuple, str] = {}  # bfloat16, where a kernel has it
    for text, kernel, dtype, sums, size, alignment in table():
        first.setdefault((kernel, alignment), text)
        if dtype == "f16" and (kernel, "bf16", sums) in widest:  # the same code but for a multiplication's name
            continue
        key, rank = (kernel, dtype, sums), (size, text)
        widest[key] = max(widest.get(key, rank), rank)
    wanted = {text for _, text in widest.values()}
    covered = {(kernel, alignment) for text, kernel, *_, alignment in table() if text in wanted}
    wanted |= {text for key, text in first.items() if key not in covered}
    result = collections.defaultdict(list)
    for text, kernel, *_ in table():
        if text in wanted:
            result[kernel].append((text, ORDERS[len(result[kernel]) % len(ORDERS)]))
    for kernel, extra in TRANSPOSED.items():
        result[kernel].append(extra)
    return dict(result)


ROWS = rows()


def architecture(row: str) -> tuple[str, str]:
    """(the one of the PTX, the one of the machine code), as in cmake/JaxMoyeArchs.cmake."""
    if row.startswith("{sm90_"):
        return "90a", "90a"
    return ("89", "90") if re.match(r"\{\w+,e[45]m[23]", row) else ("80", "80")


# What is compiled at once, as the headers and what kernels have in common take a good part of nvcc's time.
TOGETHER = (
    ("simt_tiled", "simt_overlap", "simt_double_buffer"),
    ("sm70_tensorop", "sm80_tensorop", "sm80_ldmatrix", "sm80_double_buffer"),
    ("sm80_multistage", "sm80_persistent"),
    WITHOUT_WGMMA,
)


@functools.cache
def compile_and_count(kernels: tuple[str, ...]) -> check_sass.Counts:
    """The instructions of the kernels' rows, in one order each. A spill, or local memory, is an error."""
    of_architecture = collections.defaultdict(list)
    for kernel in kernels:
        for row, order in ROWS[kernel]:
            of_architecture[architecture(row)].append(f"{kernel}_kernel<Gemm<GemmConfig{row}>, Order::{order}>")
    found: check_sass.Counts = {}
    for (ptx, machine), names in of_architecture.items():
        found |= compile_names(kernels, names, [f"-gencode=arch=compute_{ptx},code=sm_{machine}"])
    return found


def compile_names(kernels: Iterable[str], names: list[str], flags: list[str]) -> check_sass.Counts:
    """The same of instances that are named in C++."""
    template = (ROOT / "cuda/gemm/instance.cu.in").read_text()
    head = template[: template.index("template <GemmConfig kConfig>")]
    include = re.search(r"^#include .*@KERNEL@.*\n", head, re.MULTILINE)[0]
    head = head.replace(include, "".join(include.replace("@KERNEL@", kernel) for kernel in kernels))
    uses = "".join(f"auto* kernel_{index}() {{ return &{name}; }}\n" for index, name in enumerate(names))
    flags = ["-std=c++20", "-O3", "-I", ROOT / "cuda", *flags, "-cubin"]
    spills = ["-Xptxas", "-warn-spills,-warn-lmem-usage", "-Werror=all-warnings"]
    with tempfile.TemporaryDirectory() as folder:
        source, target = pathlib.Path(folder, "rows.cu"), pathlib.Path(folder, "rows.cubin")
        source.write_text(f"{head}{uses}}}  // namespace moye\n")
        subprocess.run([check_sass.find_tool("nvcc"), *flags, *spills, source, "-o", target], check=True)
        found = check_sass.count_instructions(target)
    assert len(found) == len(names)
    return found


@pytest.mark.skipif(check_sass.find_tool("nvcc") is None, reason="no nvcc")
@pytest.mark.timeout(1200)  # 21 rows at 5 seconds on an idle core
@pytest.mark.parametrize("kernel", ROWS)
def test_rows(kernel):
    """Every row obeys, and every rule of the kernel finds a row."""
    if reason := check_sass.unavailable():
        pytest.skip(reason)
    (kernels,) = (kernels for kernels in TOGETHER if kernel in kernels)
    found = {key: counts for key, counts in compile_and_count(kernels).items() if f"{kernel}_kernel" in key[1]}
    assert len(found) == len(ROWS[kernel])
    assert check_sass.broken_rules(found, RULES, subset=True) == []
    # Of 8-bit floats alone there is machine code for sm_90.
    of_the_kernel = [rule for rule in RULES if rule["kernel"] == f"{kernel}_kernel"]
    of_sm90 = [rule for rule in of_the_kernel if rule["arch"] == ["sm_90"]]
    others = {key: counts for key, counts in found.items() if key[0] != "sm_90"}
    assert check_sass.broken_rules(found, of_sm90) == []
    assert check_sass.broken_rules(others, of_the_kernel) == []


def test_a_row_of_each_kind_is_compiled():
    """Of each kernel every dtype, accumulator and alignment, orders in turn, and the most sums of a tile."""
    compiled = {row for row, _ in itertools.chain(*ROWS.values())}
    here = [row for row in table() if row[0] in compiled]
    assert len(here) == len(compiled)
    kinds = {row[1:4] for row in table()}  # f16 has bfloat16's code but for a multiplication's name
    every = [row for row in table() if row[2] != "f16" or (row[1], "bf16", row[3]) not in kinds]
    for what in (2, 3, 5):
        of_all = {(row[1], row[what]) for row in every}
        assert of_all <= {(row[1], row[what]) for row in here} <= {(row[1], row[what]) for row in table()}
    for kernel in ROWS:
        assert max(row[4] for row in here if row[1] == kernel) == max(row[4] for row in table() if row[1] == kernel)
        assert len({order for _, order in ROWS[kernel]}) == min(len(ROWS[kernel]), len(ORDERS))


@pytest.mark.skipif(check_sass.find_tool("nvcc") is None, reason="no nvcc")
def test_tiny_products_have_short_kernels():
    """A program runs a kernel once, and waits for its instructions: those of plain products are few."""
    if reason := check_sass.unavailable():
        pytest.skip(reason)
    row = "{sm90_sliced_k,bf16,f32,{16,32,64},9,{1,1},16}"
    assert row in {of_table for of_table, *_ in table()}
    names = [
        f"sm90_sliced_k_kernel<Gemm<GemmConfig{row}>, Order::NN, Finishing::{one}>" for one in ("plain", "words", "any")
    ]
    found = compile_names(["sm90_sliced_k"], names, ["-gencode=arch=compute_90a,code=sm_90a"])
    rules = [rule for rule in RULES if rule["kernel"] == "sm90_sliced_k_kernel"]
    assert check_sass.broken_rules(found, rules) == []
    plain, words, general = sorted(sum(counts.values()) for counts in found.values())
    assert plain < words / 1.5
    assert words < general / 2
