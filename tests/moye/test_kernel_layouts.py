"""What cuda/gemm/*.cuh declares, as C++ computes it, against the Python algebra's description of the same kernels.

Every row of the table, with either order of each operand: shared memory, thread-value layouts of the tiled copies and
multiplications, and one thread's partitions.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import sys
from typing import Any

from jax_moye.layout import Layout, kernels
from jax_moye.layout.tiled_copy import thread_values

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import cxx
import notation as n
import programs

PITCH = 4096  # of the operands in global memory, elements


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table, as far as the layouts depend on it."""

    kernel: str
    dtype: str
    accumulator: str
    tile: tuple[int, int, int]
    stages: int
    cluster: tuple[int, int]
    alignment: int
    takes_gate: bool = False  # only `shifts` asks, which is no layout

    @property
    def name(self) -> str:
        """As in the table, with the cluster always."""
        tile, cluster = ("x".join(map(str, sizes)) for sizes in (self.tile, self.cluster))
        return f"{self.kernel}_{self.dtype}_{tile}_s{self.stages}_c{cluster}_a{self.alignment}"

    # What the Hopper kernels are to say of their consumers, in kFacts.

    @property
    def is_in_turn(self) -> bool:
        """Whether each consumer has a tile of its own."""
        return self.kernel in ("sm90_pingpong", "sm90_grouped")

    @property
    def is_transposed(self) -> bool:
        """Whether it multiplies as sm90_transposed does."""
        is_other = self.kernel in ("sm90_parallel_split_k", "sm90_split_k") and self.dtype == "tf32"
        return self.kernel == "sm90_transposed" or is_other

    @property
    def is_exchanged(self) -> bool:
        """Whether wgmma's rows are d's columns."""
        return self.kernel == "sm90_split_k" and self.tile[0] % 64 > 0

    @property
    def consumers(self) -> int:
        if self.is_in_turn or self.kernel == "sm90_attention_grad":
            return 2
        return self.tile[0] // self.consumer_tile[0] * (self.tile[1] // self.consumer_tile[1])

    @property
    def consumer_tile(self) -> tuple[int, int]:
        m, n, _ = self.tile
        if self.is_in_turn:
            return m, n
        if self.kernel == "sm90_weights" or self.is_transposed:
            return m, n // 2
        if self.kernel == "sm90_split_k":
            return (m, 64) if self.is_exchanged else (64, n)
        if self.kernel.startswith("sm90_attention"):
            return 64, n
        return (64, n // 2) if m == 64 else (m // (3 if m % 192 == 0 else 2), n)


def table() -> dict[int, Row]:
    """The rows of gemm/configs.h whose layouts Python describes, by their places there."""
    i, word = r"\s*(\d+)\s*", r"\s*(\w+)\s*"  # kernel, dtype, accumulator, tile, stages, cluster, alignment
    row = re.compile(rf"^\s*{{{word},{word},{word},\s*{{{i},{i},{i}}},{i},\s*{{{i},{i}}},{i}}},", re.MULTILINE)
    found = row.findall((cxx.CUDA / "gemm/configs.h").read_text())
    assert len(found) >= 30
    return {
        place: Row(k, t, sums, (int(a), int(b), int(c)), int(s), (int(m), int(n)), int(v))
        for place, (k, t, sums, a, b, c, s, m, n, v) in enumerate(found)
        if k in kernels.kernel_names()
    }


PRELUDE = """
#include "gemm/configs.h"
KERNELS

template <int kRow> using GemmOf = Gemm<kGemmConfigs[kRow]>;
// Whose main loop it has, where that is another kernel's.
template <int kRow> auto products_of() {
  if constexpr (requires { typename GemmOf<kRow>::Products; }) {
    return typename GemmOf<kRow>::Products{};
  } else {
    return GemmOf<kRow>{};
  }
}
template <int kRow> using ProductsOf = decltype(products_of<kRow>());
template <int kRow> using MmaOf = typename ProductsOf<kRow>::TiledMma;
// Of the order, NN or TT, in which the operand is contiguous along kMajor: sm_70's instruction differs with it.
template <int kRow, char kOperand, Major kMajor> auto mma_of_order() {
  constexpr Order kOrder = (kOperand == 'a') == (kMajor == Major::k) ? Order::NN : Order::TT;
  if constexpr (requires { typename GemmOf<kRow>::template TiledMmaOf<kOrder>; }) {
    return typename GemmOf<kRow>::template TiledMmaOf<kOrder>{};
  } else {
    return MmaOf<kRow>{};
  }
}
template <int kRow> using OperandElement = typename GemmOf<kRow>::Element;

// Of operand a or b, contiguous along kMajor.
template <int kRow, char kOperand>
inline constexpr int kRows = kOperand == 'a' ? GemmOf<kRow>::kBlkM : GemmOf<kRow>::kBlkN;
template <int kRow, char kOperand, Major kMajor> constexpr auto smem() {
  constexpr Kernel kKernel = kGemmConfigs[kRow].kernel;
  if constexpr (kKernel == Kernel::simt_tiled || kKernel == Kernel::simt_overlap ||
                kKernel == Kernel::simt_double_buffer) {  // the same for each order
    return GemmOf<kRow>::template smem_layout<kRows<kRow, kOperand>>();
  } else {
    return GemmOf<kRow>::template smem_layout<kMajor, kRows<kRow, kOperand>>();
  }
}
template <int kRow, char kOperand, Major kMajor> constexpr auto gmem() {
  constexpr int kM = kMajor == Major::k ? PITCH : 1, kK = kMajor == Major::k ? 1 : PITCH;
  return Layout<Shape<Int<kRows<kRow, kOperand>>, Int<GemmOf<kRow>::kBlkK>>, Stride<Int<kM>, Int<kK>>>{};
}
template <int kRow, char kOperand, Major kMajor>
using Load = decltype(GemmOf<kRow>::template global_copy<kMajor, kRows<kRow, kOperand>>());
template <int kRow, char kOperand, Major kMajor> auto read() {
  using Atom = typename GemmOf<kRow>::template SmemCopyAtom<kMajor>;
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
  auto const tile = view<OperandElement<kRow>>(stage(smem<kRow, kOperand, kMajor>()));
  if constexpr (kOperand == 'a') {
    return mma_of_order<kRow, kOperand, kMajor>().get_slice(0).partition_fragment_A(tile);
  } else {
    return mma_of_order<kRow, kOperand, kMajor>().get_slice(0).partition_fragment_B(tile);
  }
}
// (thread, values, tiles) of a tensor, before a thread's part is cut out of it.
template <class Tiled, class T, class L> auto sources(L const& l) {
  return layout_part(Tiled::thread_values(view<T>(l), Tiled::layout_S_TV()).layout());
}
template <class Tiled, class T, class L> auto targets(L const& l) {
  return layout_part(Tiled::thread_values(view<T>(l), Tiled::layout_D_TV()).layout());
}
template <int kRow, Order kOrder> using OfOrder = typename ProductsOf<kRow>::template Operands<kOrder>;
template <class Operand> constexpr auto box() {
  return make_shape(Int<Operand::kBoxContiguous>{}, Int<Operand::kBoxOther>{}, Int<Operand::kStageBytes>{});
}
template <int kRow> constexpr auto tile_c() { return Shape<Int<GemmOf<kRow>::kBlkM>, Int<GemmOf<kRow>::kBlkN>>{}; }
""".replace("PITCH", str(PITCH)).replace(
    "KERNELS", "\n".join(f'#include "gemm/{kernel}.cuh"' for kernel in sorted({row.kernel for row in table().values()}))
)

# Name of a fact -> its C++ expression, for row {r} and operand {o} with major {m}. `mma_facts` and `operand_facts` are
# Python's side.
MMA_FACTS = {
    "thr_layout_vmnk": "MmaOf<{r}>::thr_layout_vmnk()",
    "tile_shape": "MmaOf<{r}>::tile_shape()",
    "A_TV": "MmaOf<{r}>::layout_A_TV()",
    "B_TV": "MmaOf<{r}>::layout_B_TV()",
    "C_TV": "MmaOf<{r}>::layout_C_TV()",
    "C part": "MmaOf<{r}>::partition_shape_C(tile_c<{r}>())",
    "C fragment": "partition_fragment_C(MmaOf<{r}>{{}}, tile_c<{r}>()).layout()",
    "threads": "Int<GemmOf<{r}>::kFacts.threads>{{}}",
    "smem_bytes": "Int<GemmOf<{r}>::kFacts.smem_bytes>{{}}",
}
OPERAND_FACTS = {
    "smem": "smem<{r}, {o}, {m}>()",
    "load TV": "typename Load<{r}, {o}, {m}>::LayoutTV{{}}",
    "load S_TV": "Load<{r}, {o}, {m}>::layout_S_TV()",
    "load D_TV": "Load<{r}, {o}, {m}>::layout_D_TV()",
    "load tile": "Load<{r}, {o}, {m}>::tile_size()",
    "load source": "sources<Load<{r}, {o}, {m}>, OperandElement<{r}>>(gmem<{r}, {o}, {m}>())",
    "load target": "targets<Load<{r}, {o}, {m}>, OperandElement<{r}>>(smem<{r}, {o}, {m}>())",
    "fragment": "fragment<{r}, {o}, {m}>().layout()",
}
READ_FACTS = {  # where an atom reads shared memory
    "read TV": "typename Read<{r}, {o}, {m}>::LayoutTV{{}}",
    "read S_TV": "Read<{r}, {o}, {m}>::layout_S_TV()",
    "read D_TV": "Read<{r}, {o}, {m}>::layout_D_TV()",
    "read tile": "Read<{r}, {o}, {m}>::tile_size()",
    "read source": "sources<Read<{r}, {o}, {m}>, OperandElement<{r}>>(smem<{r}, {o}, {m}>())",
    "read fragment": "Read<{r}, {o}, {m}>{{}}.get_slice(0).retile_D(fragment<{r}, {o}, {m}>()).layout()",
}

# Of the Hopper kernels, for row {r} in order {order}.
TMA_FACTS = {
    "thr_layout_vmnk": "OfOrder<{r}, Order::{order}>::TiledMma::thr_layout_vmnk()",
    "tile_shape": "OfOrder<{r}, Order::{order}>::TiledMma::tile_shape()",
    "C_TV": "OfOrder<{r}, Order::{order}>::TiledMma::layout_C_TV()",
    "C part": "OfOrder<{r}, Order::{order}>::TiledMma::partition_shape_C(tile_c<{r}>())",
    "threads": "Int<GemmOf<{r}>::kFacts.threads>{{}}",
    "smem_bytes": "Int<GemmOf<{r}>::kFacts.smem_bytes>{{}}",
    "consumers": "Int<GemmOf<{r}>::kFacts.consumers>{{}}",
    "consumer_tile": "Shape<Int<GemmOf<{r}>::kFacts.consumer_tile.m>, Int<GemmOf<{r}>::kFacts.consumer_tile.n>>{{}}",
    "a smem": "OfOrder<{r}, Order::{order}>::A::smem_layout()",
    "b smem": "OfOrder<{r}, Order::{order}>::B::smem_layout()",
    "a box": "box<typename OfOrder<{r}, Order::{order}>::A>()",
    "b box": "box<typename OfOrder<{r}, Order::{order}>::B>()",
}

# Of sm90_split_k with the operands exchanged: rows of its fragments are columns of d.
EXCHANGED = "GemmOf<{r}>::Exchanged<Order::{order}, GemmOf<{r}>::kBlkM>::TiledMma"
TRANSPOSED_TILE = "Shape<Int<GemmOf<{r}>::kBlkN>, Int<GemmOf<{r}>::kBlkM>>{{}}"
EXCHANGED_FACTS = TMA_FACTS | {
    name: TMA_FACTS[name]
    .replace("OfOrder<{r}, Order::{order}>::TiledMma", EXCHANGED)
    .replace("tile_c<{r}>()", TRANSPOSED_TILE)
    for name in ("thr_layout_vmnk", "tile_shape", "C_TV", "C part")
}

# Of sm90_weights, which computes the transpose: rows of its fragments are columns of a warp.
WEIGHTS_FACTS = {name: MMA_FACTS[name] for name in MMA_FACTS if not name.startswith("C ")} | {
    "C part": "MmaOf<{r}>::partition_shape_C(Shape<Int<16 * GemmOf<{r}>::kBlocks>, Int<GemmOf<{r}>::kBlkM>>{{}})",
    "consumer_tile": TMA_FACTS["consumer_tile"],
    "consumers": TMA_FACTS["consumers"],
    "columns": "Int<GemmOf<{r}>::kColumns>{{}}",
    "a smem": "GemmOf<{r}>::OperandA::smem_layout()",
    "a box": "box<GemmOf<{r}>::OperandA>()",
    "weights": "GemmOf<{r}>::weights_layout()",
    "sums": "typename GemmOf<{r}>::SumsLayout{{}}",
}


def weights_facts(kernel: Any) -> dict[str, Any]:
    of_warp = kernel.tile[1] // (4 * kernel.consumers)
    facts = mma_facts(kernel, (of_warp, kernel.tile[0]))
    facts["consumer_tile"] = (kernel.tile[0], kernel.tile[1] // kernel.consumers)
    facts |= {name: getattr(kernel, name) for name in ("consumers", "columns", "weights", "sums")}
    return facts | {"a smem": kernel.a.smem, "a box": (*kernel.a.box, kernel.a.stage_bytes)}


# Of sm90_transposed, for row {r} in order {order}: rows of its fragments are columns of d.
TRANSPOSED_FACTS = {name: MMA_FACTS[name] for name in MMA_FACTS if not name.startswith("C ")} | {
    "C part": "MmaOf<{r}>::partition_shape_C(Shape<Int<GemmOf<{r}>::kBlkN>, Int<GemmOf<{r}>::kBlkM>>{{}})",
    **{name: TMA_FACTS[name] for name in ("consumers", "consumer_tile", "a smem", "b smem", "a box", "b box")},
    "turned": "ProductsOf<{r}>::TurnedA::smem_layout()",
}
# Of CTAs that share a tile.
SUMS_FACTS = {"sums": "typename GemmOf<{r}>::SumsLayout{{}}"}


def transposed_facts(kernel: Any) -> dict[str, Any]:
    blk_m, blk_n = kernel.tile
    facts = mma_facts(kernel, (blk_n, blk_m)) | {"consumers": kernel.consumers, "turned": kernel.turned.smem}
    facts["consumer_tile"] = (blk_m, blk_n // kernel.consumers)
    for operand in kernel.operands:
        facts[f"{operand.name} smem"] = operand.smem
        facts[f"{operand.name} box"] = (*operand.box, operand.stage_bytes)
    return facts


# Of sm90_odd_rows, whose sums have as many columns as its stages of b.
ODD_ROWS_FACTS = {name: MMA_FACTS[name] for name in MMA_FACTS if not name.startswith("C ")} | {
    "C part": "MmaOf<{r}>::partition_shape_C(Shape<Int<GemmOf<{r}>::kBlkM>, Int<GemmOf<{r}>::kFrame>>{{}})",
    "a": "typename GemmOf<{r}>::LayoutA{{}}",
    "b": "GemmOf<{r}>::layout_b()",
    "sums": "typename GemmOf<{r}>::Sums{{}}",
}


def odd_rows_facts(kernel: Any) -> dict[str, Any]:
    facts = mma_facts(kernel, (kernel.tile[0], kernel.frame))
    return facts | {name: getattr(kernel, name) for name in ("a", "b", "sums")}


# Of sm90_attention and sm90_attention_grad; then the arrays of each, by their names there and here.
ATTENTION_FACTS = {name: TMA_FACTS[name] for name in ("threads", "smem_bytes", "consumers", "consumer_tile")} | {
    "scores thr_layout_vmnk": "typename GemmOf<{r}>::ScoresMma{{}}.thr_layout_vmnk()",
    "scores B_TV": "typename GemmOf<{r}>::ScoresMma{{}}.layout_B_TV()",
    "scores C_TV": "typename GemmOf<{r}>::ScoresMma{{}}.layout_C_TV()",
    "weighted A_TV": "typename GemmOf<{r}>::Weighted::Mma{{}}.layout_A_TV()",
    "weighted B_TV": "typename GemmOf<{r}>::Weighted::Mma{{}}.layout_B_TV()",
    "weighted C_TV": "typename GemmOf<{r}>::Weighted::Mma{{}}.layout_C_TV()",
    "summed smem": "GemmOf<{r}>::Weighted::smem_layout()",
}
ATTENTION_ARRAYS = {
    "sm90_attention": {"OperandQ": "q", "OperandK": "k"},
    "sm90_attention_grad": {"Owned": "owned", "Streamed": "streamed"},
}
SUMMED = {"sm90_attention": "v", "sm90_attention_grad": "summed"}


def attention_fields(row: Row) -> dict[str, str]:
    fields = dict(ATTENTION_FACTS)
    for mine, array in ATTENTION_ARRAYS[row.kernel].items():
        fields[f"{array} smem"] = f"GemmOf<{{r}}>::{mine}::smem_layout()"
        fields[f"{array} box"] = f"box<typename GemmOf<{{r}}>::{mine}>()"
    return fields


def attention_facts(row: Row, kernel: Any) -> dict[str, Any]:
    facts = {"threads": kernel.threads, "smem_bytes": kernel.smem_report().bytes}
    facts |= {"consumers": kernel.consumers, "consumer_tile": (64, kernel.tile[1])}
    facts |= {"scores thr_layout_vmnk": kernel.scores.thr_layout_vmnk, "scores B_TV": kernel.scores.layout_B_TV}
    facts |= {"scores C_TV": kernel.scores.layout_C_TV, "weighted A_TV": kernel.weighted.layout_A_TV}
    facts |= {"weighted B_TV": kernel.weighted.layout_B_TV, "weighted C_TV": kernel.weighted.layout_C_TV}
    facts |= {"summed smem": getattr(kernel, SUMMED[row.kernel]).smem}
    for array in (getattr(kernel, name) for name in ATTENTION_ARRAYS[row.kernel].values()):
        facts |= {f"{array.name} smem": array.smem, f"{array.name} box": (*array.box, array.stage_bytes)}
    return facts


def tma_facts(kernel: Any) -> dict[str, Any]:
    is_exchanged = getattr(kernel, "exchanged", False)
    tile = kernel.tile[::-1] if is_exchanged else kernel.tile
    facts = {name: fact for name, fact in mma_facts(kernel, tile).items() if name in TMA_FACTS}
    _, along_m, along_n, _ = kernel.mma.thr_layout_vmnk.shape  # warpgroups that share a tile
    if is_exchanged:
        along_m, along_n = along_n, along_m
    facts["consumers"] = kernel.consumers
    facts["consumer_tile"] = (kernel.tile[0] // along_m, kernel.tile[1] // along_n)
    for operand in kernel.operands:
        facts[f"{operand.name} smem"] = operand.smem
        facts[f"{operand.name} box"] = (*operand.box, operand.stage_bytes)
    return facts


def operand_fact_names(row: Row) -> dict[str, str]:
    return OPERAND_FACTS | (READ_FACTS if row.kernel == "sm80_multistage" else {})


def mma_facts(kernel: Any, tile_mn: tuple[int, int]) -> dict[str, Any]:
    mma = kernel.mma
    part = mma.partition_shape_C(tile_mn)
    return {
        "thr_layout_vmnk": mma.thr_layout_vmnk,
        "tile_shape": mma.tile_shape,
        "A_TV": mma.layout_A_TV,
        "B_TV": mma.layout_B_TV,
        "C_TV": mma.layout_C_TV,
        "C part": part,
        "C fragment": Layout(part),
        "threads": kernel.threads,
        "smem_bytes": kernel.smem_report().bytes,
    }


def operand_facts(kernel: Any, operand: Any) -> dict[str, Any]:
    load, read = operand.load, operand.read
    smem = operand.smem if isinstance(operand.smem, Layout) else operand.smem.layout
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

    for i, row in table().items():
        if row.kernel == "sm90_weights":
            add(i, "NN", WEIGHTS_FACTS, weights_facts(kernels.kernel_layouts(row, "NN")))
            continue
        if row.kernel == "sm90_odd_rows":
            add(i, "NN", ODD_ROWS_FACTS, odd_rows_facts(kernels.kernel_layouts(row, "NN")))
            continue
        if row.kernel in ATTENTION_ARRAYS:
            add(i, "NT", attention_fields(row), attention_facts(row, kernels.kernel_layouts(row, "NT")))
            continue
        if row.kernel == "sm90_split_k":
            add(i, "sums", SUMS_FACTS, {"sums": kernels.kernel_layouts(row, "NN").sums_layout})
        if row.is_transposed:
            for order in ("NN", "TN") if row.tile[0] <= 128 else ("NN",):
                facts = transposed_facts(kernels.kernel_layouts(row, order))
                add(i, order, TRANSPOSED_FACTS, facts, order=order)
            continue
        if kernels.kernel_facts(row.kernel).instruction == "wgmma":
            both = ("NN", "TN") if row.kernel == "sm90_grouped" else ("NN", "TT") if row.tile[0] >= 64 else ("NN", "NT")
            order = "NT" if row.dtype not in ("bf16", "f16") else both[i % 2]
            fields = EXCHANGED_FACTS if row.is_exchanged else TMA_FACTS
            add(i, order, fields, tma_facts(kernels.kernel_layouts(row, order)), order=order)
            continue
        for order in ("NN", "TT"):
            kernel = kernels.kernel_layouts(row, order)
            if order == "NN":
                add(i, "mma", MMA_FACTS, mma_facts(kernel, row.tile[:2]))
            for operand in kernel.operands:
                if operand.smem is None:  # its layouts are the MMA's
                    continue
                facts = operand_facts(kernel, operand)
                words = {"o": f"'{operand.name}'", "m": f"Major::{operand.major}"}
                add(i, f"{order} {operand.name}", operand_fact_names(row), facts, **words)

    results = programs.evaluate("kernel_layouts", lines, tmp_path, PRELUDE)
    assert len(table()) >= 22
    bad = [
        f"{names[i]}: {name} is {mine} in C++, {text(fact)} in Python"
        for i, got in results.items()
        for mine, (name, fact) in zip(got, wanted[i].items(), strict=True)
        if text(mine) != text(fact)
    ]
    assert sum(map(len, results.values())) > 700
    assert not bad, f"{len(bad)} differ\n" + "\n".join(bad[:40])
