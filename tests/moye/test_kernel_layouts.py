"""What cuda/gemm/*.cuh declares, as C++ computes it, against the Python algebra's description of the same kernels.

Every row of the table, with either order of each operand: shared memory, thread-value layouts of the tiled copies and
multiplications, and one thread's partitions.
"""

from __future__ import annotations

import pathlib
import re
import sys
from typing import Any, NamedTuple

from jax_moye.layout import kernels
from jax_moye.layout.tiled_copy import thread_values

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cxx
import notation as n
import programs

PITCH = 4096  # of the operands in global memory, elements


class Row(NamedTuple):
    """A row of the table, as far as the layouts depend on it."""

    kernel: str
    dtype: str
    tile: tuple[int, int, int]
    stages: int
    alignment: int

    @property
    def name(self) -> str:
        """As in the table."""
        return f"{self.kernel}_{self.dtype}_{'x'.join(map(str, self.tile))}_s{self.stages}_a{self.alignment}"


def table() -> list[Row]:
    """The rows of gemm/configs.h."""
    number = r"\s*(\d+)\s*"
    row = re.compile(rf"^\s*{{(\w+),\s*(\w+),\s*{{{number},{number},{number}}},{number},{number}}},", re.MULTILINE)
    found = row.findall((cxx.CUDA / "gemm/configs.h").read_text())
    return [Row(k, t, (int(a), int(b), int(c)), int(s), int(v)) for k, t, a, b, c, s, v in found]


PRELUDE = """
#include "gemm/configs.h"
#include "gemm/simt_tiled.cuh"
#include "gemm/sm80_multistage.cuh"

template <int kRow> using Row = Gemm<kGemmConfigs[kRow]>;
template <int kRow> using MmaOf = typename Row<kRow>::TiledMma;
template <int kRow> using ElementOf = typename Row<kRow>::Element;

// Of operand a or b, contiguous along kMajor.
template <int kRow, char kOperand>
inline constexpr int kRows = kOperand == 'a' ? Row<kRow>::kBlkM : Row<kRow>::kBlkN;
template <int kRow, char kOperand, Major kMajor> constexpr auto smem() {
  if constexpr (kGemmConfigs[kRow].kernel == Kernel::simt_tiled) {
    return Row<kRow>::template smem_layout<kRows<kRow, kOperand>>();
  } else {
    return Row<kRow>::template smem_layout<kMajor, kRows<kRow, kOperand>>();
  }
}
template <int kRow, char kOperand, Major kMajor> constexpr auto gmem() {
  constexpr int kM = kMajor == Major::k ? PITCH : 1, kK = kMajor == Major::k ? 1 : PITCH;
  return Layout<Shape<Int<kRows<kRow, kOperand>>, Int<Row<kRow>::kBlkK>>, Stride<Int<kM>, Int<kK>>>{};
}
template <int kRow, char kOperand, Major kMajor>
using Load = decltype(Row<kRow>::template global_copy<kMajor, kRows<kRow, kOperand>>());
template <int kRow, char kOperand, Major kMajor> auto read() {
  using Atom = typename Row<kRow>::template SmemCopyAtom<kMajor>;
  if constexpr (kOperand == 'a') {
    return make_tiled_copy_A(Atom{}, MmaOf<kRow>{});
  } else {
    return make_tiled_copy_B(Atom{}, MmaOf<kRow>{});
  }
}
template <int kRow, char kOperand, Major kMajor> using Read = decltype(read<kRow, kOperand, kMajor>());

template <class T, class L> auto view(L const& l) { return make_tensor(make_smem_ptr(static_cast<T*>(nullptr)), l); }
// One k-tile of shared memory, without the stage it lies in.
template <class L> constexpr auto stage(L const& l) { return take<0, 2>(l); }
template <int kRow, char kOperand, Major kMajor> auto fragment() {
  auto const tile = view<ElementOf<kRow>>(stage(smem<kRow, kOperand, kMajor>()));
  if constexpr (kOperand == 'a') {
    return MmaOf<kRow>{}.get_slice(0).partition_fragment_A(tile);
  } else {
    return MmaOf<kRow>{}.get_slice(0).partition_fragment_B(tile);
  }
}
// (thread, values, tiles) of a tensor, before a thread's part is cut out of it.
template <class Tiled, class T, class L> auto sources(L const& l) {
  return layout_part(Tiled::thread_values(view<T>(l), Tiled::layout_S_TV()).layout());
}
template <class Tiled, class T, class L> auto targets(L const& l) {
  return layout_part(Tiled::thread_values(view<T>(l), Tiled::layout_D_TV()).layout());
}
template <int kRow> constexpr auto tile_c() { return Shape<Int<Row<kRow>::kBlkM>, Int<Row<kRow>::kBlkN>>{}; }
""".replace("PITCH", str(PITCH))

# Name of a fact -> its C++ expression, for row {r} and operand {o} with major {m}; Python's side is in `python_facts`.
MMA_FACTS = {
    "thr_layout_vmnk": "MmaOf<{r}>::thr_layout_vmnk()",
    "tile_shape": "MmaOf<{r}>::tile_shape()",
    "A_TV": "MmaOf<{r}>::layout_A_TV()",
    "B_TV": "MmaOf<{r}>::layout_B_TV()",
    "C_TV": "MmaOf<{r}>::layout_C_TV()",
    "C part": "MmaOf<{r}>::partition_shape_C(tile_c<{r}>())",
    "C fragment": "partition_fragment_C(MmaOf<{r}>{{}}, tile_c<{r}>()).layout()",
    "threads": "Int<Row<{r}>::kThreads>{{}}",
    "smem_bytes": "Int<Row<{r}>::kSmemBytes>{{}}",
}
OPERAND_FACTS = {
    "smem": "smem<{r}, {o}, {m}>()",
    "load TV": "typename Load<{r}, {o}, {m}>::LayoutTV{{}}",
    "load S_TV": "Load<{r}, {o}, {m}>::layout_S_TV()",
    "load D_TV": "Load<{r}, {o}, {m}>::layout_D_TV()",
    "load tile": "Load<{r}, {o}, {m}>::tile_size()",
    "load source": "sources<Load<{r}, {o}, {m}>, ElementOf<{r}>>(gmem<{r}, {o}, {m}>())",
    "load target": "targets<Load<{r}, {o}, {m}>, ElementOf<{r}>>(smem<{r}, {o}, {m}>())",
    "fragment": "fragment<{r}, {o}, {m}>().layout()",
}
READ_FACTS = {  # where an atom reads shared memory
    "read TV": "typename Read<{r}, {o}, {m}>::LayoutTV{{}}",
    "read S_TV": "Read<{r}, {o}, {m}>::layout_S_TV()",
    "read D_TV": "Read<{r}, {o}, {m}>::layout_D_TV()",
    "read tile": "Read<{r}, {o}, {m}>::tile_size()",
    "read source": "sources<Read<{r}, {o}, {m}>, ElementOf<{r}>>(smem<{r}, {o}, {m}>())",
    "read fragment": "Read<{r}, {o}, {m}>{{}}.get_slice(0).retile_D(fragment<{r}, {o}, {m}>()).layout()",
}


def operand_fact_names(row: Row) -> dict[str, str]:
    return OPERAND_FACTS | (READ_FACTS if row.kernel == "sm80_multistage" else {})


def mma_facts(kernel: Any) -> dict[str, Any]:
    mma, tile_mn = kernel.mma, (kernel.a.tile[0], kernel.b.tile[0])
    part = mma.partition_shape_C(tile_mn)
    return {
        "thr_layout_vmnk": mma.thr_layout_vmnk,
        "tile_shape": mma.tile_shape,
        "A_TV": mma.layout_A_TV,
        "B_TV": mma.layout_B_TV,
        "C_TV": mma.layout_C_TV,
        "C part": part,
        "C fragment": kernels.Layout(part),
        "threads": kernel.threads,
        "smem_bytes": kernel.smem_report().bytes,
    }


def operand_facts(kernel: Any, operand: Any) -> dict[str, Any]:
    load, read = operand.load, operand.read
    smem = operand.smem if isinstance(operand.smem, kernels.Layout) else operand.smem.layout
    slice_ = kernel.mma.get_slice(0)
    make_fragment = slice_.partition_fragment_A if operand.name == "a" else slice_.partition_fragment_B
    fragment = make_fragment(operand.stage)
    return {
        "smem": operand.smem,
        "load TV": load.layout_TV,
        "load S_TV": load.layout_S_TV,
        "load D_TV": load.layout_D_TV,
        "load tile": load.tile_size,
        "load source": thread_values(operand.gmem(PITCH), load, load.layout_S_TV),
        "load target": thread_values(smem, load, load.layout_D_TV),
        "fragment": fragment,
        "read TV": read.layout_TV,
        "read S_TV": read.layout_S_TV,
        "read D_TV": read.layout_D_TV,
        "read tile": read.tile_size,
        "read source": thread_values(smem, read, read.layout_S_TV),
        "read fragment": read.retile(fragment),
    }


def text(fact: Any) -> str:
    """A fact in the notation, without the strides that have no meaning."""
    shown = str(fact).replace(" o ", ";").replace(" ", "").replace(",)", ")").replace(";", " o ")
    *front, layout = shown.split(" o ")
    if n.is_layout(layout):
        layout = ":".join(n.text(t) for t in n.normalized(n.layout(layout)))
    return " o ".join([*front, layout])


def test_layouts(tmp_path: pathlib.Path):
    lines: dict[int, str] = {}
    names, wanted = [], []

    def add(row: int, what: str, fields: dict[str, str], facts: dict[str, Any], **words: Any) -> None:
        lines[len(lines)] = programs.types(len(lines), *(field.format(r=row, **words) for field in fields.values()))
        names.append(f"{table()[row].name} {what}")
        wanted.append({name: facts[name] for name in fields})

    for i, row in enumerate(table()):
        for order in ("NN", "TT"):
            kernel = kernels.kernel_layouts(row, order)
            if order == "NN":
                add(i, "mma", MMA_FACTS, mma_facts(kernel))
            for operand in kernel.operands:
                facts = operand_facts(kernel, operand)
                words = {"o": f"'{operand.name}'", "m": f"Major::{operand.major}"}
                add(i, f"{order} {operand.name}", operand_fact_names(row), facts, **words)

    results = programs.evaluate("kernel_layouts", lines, tmp_path, PRELUDE)
    assert len(table()) >= 14
    bad = [
        f"{names[i]}: {name} is {mine} in C++, {text(fact)} in Python"
        for i, got in results.items()
        for mine, (name, fact) in zip(got, wanted[i].items(), strict=True)
        if text(mine) != text(fact)
    ]
    assert sum(map(len, results.values())) > 700
    assert not bad, f"{len(bad)} differ\n" + "\n".join(bad[:40])
