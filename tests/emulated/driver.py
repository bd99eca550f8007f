"""A row of the table, as it is or with a bug planted into it, behind a driver of tests/emulated.

Kernels that compute products of groups have grouped_driver.cc, those of weights weights_driver.cc, those of attention
attention_driver.cc, rows of blocks that have scales blocks_driver.cc, all others gemm_driver.cc.
"""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
from collections.abc import Mapping, Sequence

from tests import cxx
from tests.emulated.planting import Bug, switched

ROOT = pathlib.Path(__file__).parents[2]
DRIVERS = ROOT / "tests/emulated"
DRIVER_OF = {
    "sm90_grouped": "grouped_driver",
    "sm90_weights": "weights_driver",
    "sm90_attention": "attention_driver",
    "sm90_attention_grad": "attention_driver",
}
HEADERS = (
    *(f"moye/{name}.h" for name in ("moye", "pipeline", "atom/mma_traits_sm90")),
    *(f"moye/arch/{name}.h" for name in ("barrier", "device", "grid_dependency", "launch", "math")),
    *(f"moye/arch/{name}.h" for name in ("mbarrier", "register", "store", "tensor_map", "tma")),
)
COLLECTS_NO_GARBAGE = ("--param=ggc-min-expand=1000", "--param=ggc-min-heapsize=524288")  # as in CMakeLists.txt
# Of the functions dispatch() in gemm/order.h, that for all orders and that for all but TT.
ORDERS = re.compile(
    r"^ +switch \(order\) \{\n +case Order::NN:.*?\n  \}\n|^ +if \(order == Order::NN\) return.*?<Order::TN>\{\}\);\n",
    re.DOTALL | re.MULTILINE,
)

# Of the epilogue: ways to store results (`Way` of gemm/epilogue_sm90.h), the last of them, and the types of results.
WAYS = re.compile(r"(params\.way == Way::(\w+))\)")
SHORT = "      store_one_way<kStores>("
ELEMENTS = "    with_tile_epilogue<Sum, 1,"
RESULTS = re.compile(r"\bf\((bfloat16_t|half_t|float)\{\}\);")
TRAP = "__builtin_trap();"
# Kernels of attention, of scores of one kind (`ScoresKind` of gemm/attention_cap.h).
KERNELS_OF_KINDS = re.compile(r"(kernel<Gemm, )(ScoresKind::)?(plain|biased|capped|dropped|biased_dropped)>")
KIND_OF_A_CALL = "  bool const has_bias = args.bias.data != nullptr;"


# Kernels' code that is evaluated by the compiler has no bugs. What is read here is not one of a kernel's reads.
PLANTED = """
#pragma once
#include <cstdlib>
namespace moye {
inline int const kPlanted = std::getenv("MOYE_PLANTED") ? std::atoi(std::getenv("MOYE_PLANTED")) : -1;
__attribute__((no_sanitize("thread"), noinline, const)) inline bool is_planted(int bug) { return bug == kPlanted; }
}  // namespace moye
#define MOYE_IS_PLANTED(bug) (!__builtin_is_constant_evaluated() && ::moye::is_planted(bug))
"""


def kernel_of(row: str) -> str:
    return re.search(r"\w+", row)[0]


def driver_of(row: str) -> str:
    """The name of the driver that calls the row's kernel."""
    return "blocks_driver" if "f32_blocks" in row else DRIVER_OF.get(kernel_of(row), "gemm_driver")


def instance_source(row: str) -> str:
    """What CMake makes of cuda/gemm/instance.cu.in for one row of the table, and which it is, for driver_support.h."""
    template = (ROOT / "cuda/gemm/instance.cu.in").read_text()
    entry = template.replace("@KERNEL@", kernel_of(row)).replace("@ROW@", row)
    config = f"GemmConfig{row}"
    of_row = f"GemmConfig row() {{ return {config}; }}\nGemmEntry entry_of_row() {{ return gemm_entry<{config}>(); }}\n"
    return f"{entry}\nnamespace moye {{\n{of_row}}}  // namespace moye\n"


def way_of(row: str, sizes: tuple[int, int, int], options: Sequence[str]) -> tuple[str, str] | None:
    """How a driver's call stores its results, `Way` of gemm/epilogue_sm90.h, and their type; None: not in those."""
    if driver_of(row) in ("weights_driver", "attention_driver") or kernel_of(row) == "sm90_parallel_split_k":
        return None
    words = dict(option.split("=") for option in options)
    out = words.get("out", "f32")
    rows_of_boxes = sizes[1] % (4 if out == "f32" else 8) == 0 and "d_pad" not in words
    if words.get("epilogue") == "1" and driver_of(row) == "gemm_driver":
        way = "elements"  # it has both c and a bias
    elif "pair" in words:
        way = "pair"
    elif "gate" in words:
        way = "gated"
    elif words.get("epilogue") == "3" and rows_of_boxes and out != "f32":
        way = "activated"
    elif words.get("epilogue") in ("4", "5", "6") and rows_of_boxes and out != "f32":
        way = "ahead"  # of rows that can
    elif "epilogue" in words or "scales" in words:
        way = "finished" if rows_of_boxes else "finished_shifted"
    else:
        way = "shifted" if not rows_of_boxes else "wide" if out == "f32" else "converted"
    return way, out


def kind_of(row: str, options: Sequence[str]) -> str | None:
    """What the scores of a driver's call are, `ScoresKind` of gemm/attention_cap.h; None: it computes a product."""
    if driver_of(row) != "attention_driver":
        return None
    words = dict(option.split("=") for option in options)
    is_biased, is_dropped = (words.get(name, "none") != "none" for name in ("bias", "dropout"))
    if is_dropped:
        return "biased_dropped" if is_biased else "dropped"
    return "biased" if is_biased else "capped" if "cap" in words else "plain"


def keep_one_kind(gemm: pathlib.Path, kind: str) -> None:
    """In a copy of cuda/gemm, compiles attention's kernels for scores of one kind, and ends the process at others."""
    counts = {"sm90_attention.cuh": 6, "attention_grad.h": 10, "sm90_attention_grad.cuh": 1}
    for name, count in counts.items():
        text, found = KERNELS_OF_KINDS.subn(rf"\1ScoresKind::{kind}>", (gemm / name).read_text())
        assert found == count, f"{name} has {found} kernels"
        (gemm / name).write_text(text)
    text = (gemm / "attention_cap.h").read_text()
    assert text.count(KIND_OF_A_CALL) == 1
    has_bias = "args.bias.data " + ("!=" if kind in ("biased", "biased_dropped") else "==") + " nullptr"
    has_dropout = "args.dropout.data " + ("!=" if kind in ("dropped", "biased_dropped") else "==") + " nullptr"
    has_cap = "args.cap > 0" if kind == "capped" else "!(args.cap > 0)"
    is_kept = f"{has_bias} && {has_dropout} && {has_cap}"
    text = text.replace(KIND_OF_A_CALL, f"  if (!({is_kept})) {TRAP}\n{KIND_OF_A_CALL}")
    (gemm / "attention_cap.h").write_text(text)


def keep_one_way(gemm: pathlib.Path, way: str, out: str) -> None:
    """In a copy of cuda/gemm, ends the process where results are stored in another way, or are of another type.

    That code is not compiled: a third of the time. No report can come of it.
    """
    path = gemm / "epilogue_sm90.h"
    text = path.read_text()
    text = WAYS.sub(lambda found: found[0] if found[2] == way else f"{found[1]} && (__builtin_trap(), false))", text)
    assert text.count(SHORT) == 1
    text = text.replace(SHORT, f"      if (params.way != StoreParams::Way::{way}) {TRAP}\n{SHORT}")
    if way != "elements":
        assert text.count(ELEMENTS) == 1
        text = text.replace(ELEMENTS, f"    {TRAP}\n{ELEMENTS}")
    path.write_text(text)
    kept = {"bf16": "bfloat16_t", "f16": "half_t", "f32": "float"}.get(out)
    for name in ("epilogue.h", "epilogue_box.h"):
        path = gemm / name
        text, found = RESULTS.subn(lambda found: found[0] if found[1] == kept else TRAP, path.read_text())
        assert found == 3, f"{name} has {found} types of results"
        path.write_text(text)


def copy_of_gemm(folder: pathlib.Path, order: str) -> pathlib.Path:
    """A copy of cuda/gemm in a folder; order: the only one to compile, whatever a call's is: a quarter of the time."""
    gemm = folder / "gemm"
    gemm.mkdir(parents=True)
    for source in (ROOT / "cuda/gemm").iterdir():
        (gemm / source.name).write_text(source.read_text())
    if order:
        path = gemm / "order.h"
        text, found = ORDERS.subn(f"  (void)order;\n  return f(OrderConstant<Order::{order}>{{}});\n", path.read_text())
        assert found == 2
        path.write_text(text)
    return gemm


def source_of(file: str) -> str:
    """A file of cuda/gemm, or of cuda/moye if it is named with its folders."""
    return (ROOT / "cuda" / (file if "/" in file else f"gemm/{file}")).read_text()


def build(
    folder: pathlib.Path,
    row: str,
    file: str = "",
    old: str = "",
    new: str = "",
    count: int = 1,
    order: str = "",
    way: tuple[str, str] | None = None,
    kind: str | None = None,
) -> pathlib.Path:
    """Compiles the row's driver for it, from a copy of cuda/gemm in which `old` in `file` became `new`.

    A file of cuda/moye is named with its folders; its copy comes before the original.
    order: the only one to compile, whatever a call's is.
    way: the only one in which results are stored, of way_of().
    kind: the only one of attention's scores, of kind_of().
    """
    gemm = copy_of_gemm(folder, order)
    if file:
        text = source_of(file)
        assert text.count(old) == count, f"{file} holds {text.count(old)} times, not {count}:\n{old}"
        write(folder, file, text.replace(old, new))
    if way:
        keep_one_way(gemm, *way)
    if kind:
        keep_one_kind(gemm, kind)
    return compiled(folder, row, is_moye_changed="/" in file)


def build_with_bugs(folder: pathlib.Path, row: str, order: str, bugs: Mapping[str, Sequence[Bug]]) -> pathlib.Path:
    """Compiles the row's driver in one order with bugs in some files, which are there if run() is asked for them."""
    copy_of_gemm(folder, order)
    (folder / "planted.h").write_text(PLANTED)
    for file, in_file in bugs.items():
        write(folder, file, f'#include "planted.h"\n{switched(source_of(file), in_file)}')
    return compiled(folder, row, is_moye_changed=any("/" in file for file in bugs))


def write(folder: pathlib.Path, file: str, text: str) -> None:
    """Writes a file of the copy, named as for source_of()."""
    path = folder / (file if "/" in file else f"gemm/{file}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def compiled(folder: pathlib.Path, row: str, is_moye_changed: bool) -> pathlib.Path:
    """Compiles the row's driver from the copy in a folder; is_moye_changed: files of cuda/moye are in it, too."""
    instance = folder / "instance.cc"
    instance.write_text(instance_source(row))
    # As CMakeLists.txt has it. With -Og g++ takes a seventh less, but sums that a bug does not clear happen to be 0.
    level = "-O1"
    kernel_flags = [level, *COLLECTS_NO_GARBAGE, f"-I{folder}"]
    if not is_moye_changed:
        kernel_flags += cxx.precompiled(HEADERS, [level, *cxx.KERNEL_FLAGS])
    driver, (_, dtype, *_) = driver_of(row), re.findall(r"\w+", row)
    source = DRIVERS / f"{driver}.cc"
    flags = [level, f"-DMOYE_DTYPE={dtype}"]
    return cxx.build(driver, [source], flags, kernel_sources=[instance], kernel_flags=kernel_flags)


def run(binary: pathlib.Path, sizes: tuple[int, int, int], *options: str, bug: int | None = None) -> str:
    """One run of the driver, with one of its bugs: "ok", "wrong: ..." or "error: ..."."""
    command = [binary, *map(str, sizes), *options]
    environment = os.environ if bug is None else os.environ | {"MOYE_PLANTED": str(bug)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_cases(binary: pathlib.Path, cases: Sequence[str]) -> list[str]:
    """Runs of the driver of products of groups in one process: what it says of each line of arguments.

    Where it ends before the last one, what it has said until then, and its exit status.
    """
    text = "\n".join(cases) + "\n"
    done = subprocess.run([binary], input=text, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}exit status {done.returncode}"
    return done.stdout.splitlines()
