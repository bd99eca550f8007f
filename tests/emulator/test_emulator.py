"""The emulator on its own: each instruction against a reference, and a kernel with and without planted bugs."""

from __future__ import annotations

import ast
import json
import pathlib
import re
import shutil
import subprocess

import cxx
import pytest
from emulator.support import HAS_ADDR2LINE, HERE, MODES, ORDERS, line, run

INSTRUCTIONS = json.loads((HERE / "instructions.json").read_text())


@pytest.fixture(scope="module")
def collectives() -> pathlib.Path:
    return cxx.build("collectives", kernel_sources=[HERE / "collectives.cc"])


@pytest.fixture(scope="module")
def gemm() -> pathlib.Path:
    return cxx.build("gemm", kernel_sources=[HERE / "gemm.cc"])


# -------------------------------------------------------------------------------------------------------- instructions


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", ("builtins", "shfl", "barriers", "sync_warp", "cp_async", "groups"))
def test_instruction(collectives, case, mode, order):
    for seed in range(5 if "random" in (mode, order) else 1):
        assert run(collectives, case, f"mode={mode}", f"order={order}", f"seed={seed}") == "ok"


@pytest.mark.parametrize("case", ("conversions", "guarded_buffers"))
def test_host_code(collectives, case):
    assert run(collectives, case) == "ok"


@pytest.mark.parametrize("name", INSTRUCTIONS["ldmatrix"])
def test_ldmatrix(collectives, name):
    facts = INSTRUCTIONS["ldmatrix"][name]
    received = [list(map(int, line.split())) for line in run(collectives, "ldmatrix", name).splitlines()]
    expected = [[64 * m + 8 * row + column for m, row, column in lane] for lane in facts["registers"]]
    assert received == expected
    # The program passes row i % 8 of matrix i / 8 in lane i, modulo the number of matrices.
    matrices = len(facts["registers"][0]) // 2
    assert facts["row_of_lane"] == [[lane // 8 % matrices, lane % 8] for lane in range(32)]


@pytest.mark.parametrize(
    ("row_bytes", "swizzle_bits", "wavefronts"),
    [(128, 0, 32), (128, 3, 4), (128, 2, 8), (144, 0, 4), (64, 0, 16), (80, 0, 4), (32, 0, 8), (16, 0, 4)],
)
def test_bank_conflicts(collectives, row_bytes, swizzle_bits, wavefronts):
    assert run(collectives, "banks", row_bytes, swizzle_bits) == f"{wavefronts} of 4"


def offsets(shape, stride) -> list[int]:
    """What a layout maps 0, 1, 2, ... to, the first coordinate fastest."""
    if isinstance(shape, int):
        return [i * stride for i in range(shape)]
    result = [0]
    for s, d in zip(shape, stride, strict=True):
        result = [low + high for high in offsets(s, d) for low in result]
    return result


def fragment(layout: str, rows: int) -> list[str]:
    """The lines "row column" of a thread-value layout, lane after lane, value after value.

    A layout of eight threads is that of a quad pair: lanes 4p to 4p+3 and 16+4p to 19+4p have rows of matrix p.
    """
    shape, stride = map(ast.literal_eval, layout.split(":"))
    threads, values = (offsets(s, d) for s, d in zip(shape, stride, strict=True))
    lines = []
    for lane in range(32):
        thread, matrix = (lane, 0) if len(threads) == 32 else (lane % 4 + 4 * (lane // 16), lane // 4 % 4)
        places = [threads[thread] + value for value in values]
        lines += [f"{rows * matrix + place % rows} {place // rows}" for place in places]
    return lines


def test_mma(tmp_path):
    """Every mma.sync, with fragments laid out by the tables."""
    lines = []
    for name, facts in INSTRUCTIONS["mma"].items():
        m, n, k = facts["shape"]
        lines.append(f"{name} {m} {n} {k} {4 if name.startswith('SM70') else 1}")
        lines += fragment(facts["A"], m) + fragment(facts["B"], n) + fragment(facts["C"], m)
    (tmp_path / "tables").write_text("\n".join(lines))
    program = cxx.build("fragments", kernel_sources=[HERE / "fragments.cc"])
    expected = [f"{name} ok" for name in (*INSTRUCTIONS["mma"], "edges")]
    assert run(program, tmp_path / "tables").splitlines() == expected


# ---------------------------------------------------------------------------------------------------- a whole kernel


def counters(lines: list[str]) -> dict[str, int]:
    return {name: int(value) for name, value in (line.split("=") for line in lines)}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("races", (0, 1))
def test_gemm(gemm, mode, order, races):
    for m, n, k, seed in ((128, 128, 128, 0), (130, 71, 40, 1), (1, 1, 8, 2)):
        out = run(gemm, "none", m, n, k, f"mode={mode}", f"order={order}", f"seed={seed}", f"races={races}")
        assert out.startswith("ok\n")


def test_counters(gemm):
    verdict, *lines = run(gemm, "none", 256, 128, 64).splitlines()
    assert verdict == "ok"
    assert counters(lines) == {
        "ctas": 2,
        "barriers": 2 * 2,  # one per k-tile
        "warp_syncs": 0,
        "shuffles": 0,
        "ldmatrix": 2 * 4 * 2 * 2 * 8,  # CTAs, warps, k-tiles, k-blocks, instructions
        "ldmatrix_wavefronts": 2 * 4 * 2 * 2 * 8 * 4,
        "ldmatrix_ideal_wavefronts": 2 * 4 * 2 * 2 * 8 * 4,
        "mma": 2 * 4 * 2 * 2 * 32,
        "cp_async": 2 * 2 * 256 * 4,  # CTAs, k-tiles, rows of A and B, chunks
        "cp_async_bytes": 2 * 2 * 256 * 64,
        "shared_loads": 0,
        "shared_load_bytes": 0,
        "shared_stores": 0,
        "shared_store_bytes": 0,
        "global_loads": 0,
        "global_load_bytes": 0,
        "global_stores": 256 * 128,
        "global_store_bytes": 256 * 128 * 4,
    }


THREAD = r"(block \(\d+,\d+,\d+\) )?thread \d+ \(warp \d+ lane \d+\)"


COPY_A = line("gemm.h", "copy_zfill(*a, *smem_a, in_a ? left : 0);")
LOAD_A = line("gemm.h", "a[i][0], a[i][1], a[i][2], a[i][3]);")
STORE_D = line("gemm.h", "= acc[i][j][v];")
NOT_ORDERED = "is not ordered after"
BUGS = {
    "no_wait": rf"race on shared memory smem\+0x0: ldmatrix \(read\) by {THREAD} at gemm.h:{LOAD_A} {NOT_ORDERED} "
    rf"cp.async \(write\) by {THREAD} at gemm.h:{COPY_A}",
    "wait_off_by_one": rf"race on shared memory smem\+0x0: ldmatrix \(read\) by {THREAD} at gemm.h:{LOAD_A} "
    rf"{NOT_ORDERED} cp.async \(write\) by {THREAD} at gemm.h:{COPY_A}",
    "no_barrier": rf"race on shared memory smem\+0x40: ldmatrix \(read\) by {THREAD} at gemm.h:{LOAD_A} {NOT_ORDERED} "
    rf"cp.async \(write\) by {THREAD} at gemm.h:{COPY_A}",
    "refill_before_barrier": rf"race on shared memory smem\+0x\w+: cp.async \(write\) by {THREAD} at gemm.h:{COPY_A} "
    rf"{NOT_ORDERED} ldmatrix \(read\) by {THREAD} at gemm.h:{LOAD_A}",
    "overwrite_in_flight": rf"race on shared memory smem\+0x0: \S+ \(\w+\) by {THREAD} at gemm.h:({LOAD_A}|{COPY_A}) "
    rf"{NOT_ORDERED} \S+ \(\w+\) by {THREAD} at gemm.h:({LOAD_A}|{COPY_A})",
    "stage_out_of_range": rf"out of bounds: cp.async \(write\) of 16 bytes by {THREAD} at gemm.h:{COPY_A}: "
    r"offset \d+ of shared memory \(65536 bytes\)",
    "row_not_predicated": rf"out of bounds: cp.async \(read\) of 16 bytes by {THREAD} at gemm.h:{COPY_A}: the nearest "
    r"array is A \(80000 bytes\), of which it is offset \d+",
    "column_not_predicated": rf"(race on global memory D\+0x\w+|out of bounds): plain store.* by {THREAD} at "
    rf"gemm.h:{STORE_D}",
    "wrong_swizzle": r"\d+ of 40000 wrong",
    "tile_overlap": rf"race on global memory D\+0x\w+: plain store \(write\) by {THREAD} at gemm.h:{STORE_D} "
    rf"{NOT_ORDERED} plain store \(write\) by {THREAD} at gemm.h:{STORE_D}: nothing orders two CTAs of a launch",
    "write_operand": rf"write to read-only memory: plain store of 4 bytes by {THREAD} at gemm.h:{STORE_D}, "
    r"at offset \d+ of A \(80000 bytes\)",
}


@pytest.mark.parametrize("bug", BUGS)
def test_planted_bug(gemm, bug):
    pattern = BUGS[bug] if HAS_ADDR2LINE else BUGS[bug].replace(rf"gemm.h:{STORE_D}", r"gemm-\w+\+0x\w+")
    message = run(gemm, bug, 200, 200, 200)
    assert re.match(pattern, message), message
    assert run(gemm, bug, 200, 200, 200) == message, "the same run, the same report"


def test_workers_agree_on_the_first_report(gemm):
    alone = run(gemm, "row_not_predicated", 300, 300, 64)
    assert alone.startswith("out of bounds")
    for _ in range(3):
        assert run(gemm, "row_not_predicated", 300, 300, 64, "workers=3") == alone
    assert run(gemm, "none", 300, 300, 64, "workers=3").startswith("ok\n")


def test_launches_from_two_host_threads(gemm):
    assert run(gemm, "two_threads", 130, 130, 64, "workers=2") == "10 good, 10 caught"


def test_ucontext():
    """The fallbacks for machines whose switch we have not written, and whose Linux has no guard pages for us."""
    flags = ["-DMOYE_EMU_UCONTEXT", "-DMOYE_EMU_NO_GUARD_PAGES", "-O0"]
    program = cxx.build("gemm", kernel_sources=[HERE / "gemm.cc"], emulator_flags=flags)
    assert run(program, "none", 130, 71, 40).startswith("ok\n")
    assert run(program, "no_wait", 130, 71, 40).startswith("race on shared memory")
    program = cxx.build("reports", kernel_sources=[HERE / "reports.cc"], emulator_flags=flags)
    for case in ("deep_recursion", "large_frame"):
        assert run(program, case) == "stack overflow in thread 37 (warp 1 lane 5): Options::stack_bytes is 65536"


# ---------------------------------------------------------------------------------------------------------- the device


@pytest.mark.parametrize("arch", (80, 89, 90))
def test_wrappers_compile_for_the_device(tmp_path, arch):
    """The PTX of every wrapper, which the emulator does not see."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    command = [nvcc, "-std=c++20", "-gencode", f"arch=compute_{arch},code=sm_{arch}", "-cubin", f"-I{cxx.CUDA}"]
    done = subprocess.run(
        [*command, HERE / "wrappers.cu", "-o", tmp_path / "wrappers.cubin"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
