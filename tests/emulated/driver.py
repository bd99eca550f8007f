"""A row of the table, as it is or with a bug planted into it, behind tests/emulated/gemm_driver.cc."""

from __future__ import annotations

import pathlib
import re
import subprocess

from tests import cxx

ROOT = pathlib.Path(__file__).parents[2]
DRIVER = ROOT / "tests/emulated/gemm_driver.cc"
HEADERS = (
    "moye/moye.h",
    "moye/pipeline.h",
    *(f"moye/arch/{name}.h" for name in ("barrier", "launch", "math", "store")),
)
ORDERS = re.compile(
    r"  switch \(order\) \{\n    case Order::NN:.*?\n  \}\n", re.DOTALL
)  # of dispatch() in gemm/order.h


def instance_source(row: str) -> str:
    """What CMake makes of cuda/gemm/instance.cu.in for one row of the table."""
    kernel = re.search(r"\w+", row)[0]
    template = (ROOT / "cuda/gemm/instance.cu.in").read_text()
    return template.replace("@KERNEL@", kernel).replace("@ROW@", row)


def build(
    folder: pathlib.Path, row: str, file: str = "", old: str = "", new: str = "", count: int = 1, order: str = ""
) -> pathlib.Path:
    """Compiles the driver for one row, from a copy of cuda/gemm in which `old` in `file` became `new`.

    A file of cuda/moye is named with its folders; its copy comes before the original.
    order: the only one to compile, whatever a call's is: a quarter of the time. With -O1, as it runs once or twice.
    """
    gemm = folder / "gemm"
    gemm.mkdir(parents=True)
    for source in (ROOT / "cuda/gemm").iterdir():
        (gemm / source.name).write_text(source.read_text())
    if file:
        path = folder / (file if "/" in file else f"gemm/{file}")
        path.parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / "cuda" / path.relative_to(folder)).read_text()
        assert text.count(old) == count, f"{file} holds {text.count(old)} times, not {count}:\n{old}"
        path.write_text(text.replace(old, new))
    if order:
        path = gemm / "order.h"
        text, found = ORDERS.subn(f"  (void)order;\n  return f(OrderConstant<Order::{order}>{{}});\n", path.read_text())
        assert found == 1
        path.write_text(text)
    instance = folder / "instance.cc"
    instance.write_text(instance_source(row))
    level = ["-O1"] if order else []
    kernel_flags = [f"-I{folder}"]
    if "/" not in file:  # cuda/moye is as it is
        kernel_flags += cxx.precompiled(HEADERS, [*level, *cxx.KERNEL_FLAGS])
    flags = [f"-DMOYE_ROW={row}", *level]
    return cxx.build("gemm_driver", [DRIVER], flags, kernel_sources=[instance], kernel_flags=kernel_flags)


def run(binary: pathlib.Path, sizes: tuple[int, int, int], *options: str) -> str:
    """One run of the driver: "ok", "wrong: ..." or "error: ..."."""
    command = [binary, *map(str, sizes), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
