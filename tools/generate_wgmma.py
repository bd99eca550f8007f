"""Writes cuda/moye/arch/mma_sm90_registers.h: the register lists of wgmma.

An asm statement names each of its operands, and a wgmma has 2 to 128 registers of accumulators: one statement for each
count and register type. What differs otherwise between instructions is text, which the statement takes as an operand.

  python tools/generate_wgmma.py            writes the header
  python tools/generate_wgmma.py --check    exits with 1 if the header is another
"""

from __future__ import annotations

import pathlib
import sys

HEADER = pathlib.Path(__file__).resolve().parents[1] / "cuda/moye/arch/mma_sm90_registers.h"

TOP = """\
// The register lists of wgmma, for mma_sm90.h alone. Written by tools/generate_wgmma.py; tests/build/test_wgmma.py runs
// it again and compares.
//   MOYE_WGMMA_LIST_n                       "%0, %1, ..." of n registers
//   MOYE_WGMMA_D_n(constraint)              the operands d[0], d[1], ... of an asm statement
//   MOYE_WGMMA_TABLE(statement)             statement(type, constraint, n, the numbers of the operands behind d)
#pragma once

// clang-format off
"""

OPERANDS = 14  # behind the accumulators, at most: those of rs()


def float_counts() -> list[int]:
    """f32 accumulators: one to a register, 64 * N of them in 128 threads."""
    return [n // 2 for n in range(8, 257, 8)]


def word_counts() -> list[int]:
    """f16 accumulators, two to a register, and s32, which has no instruction for every N."""
    halves = {n // 4 for n in range(8, 257, 8)}
    integers = {n // 2 for n in (8, 16, 24, *range(32, 257, 16))}
    return sorted(halves | integers)


def header() -> str:
    """The text of the header."""
    lines = [TOP, '#define MOYE_WGMMA_LIST_2 "%0, %1"\n']
    lines += [f'#define MOYE_WGMMA_LIST_{n} MOYE_WGMMA_LIST_{n - 2} ", %{n - 2}, %{n - 1}"\n' for n in range(4, 129, 2)]
    lines.append("\n#define MOYE_WGMMA_D_2(c) c(d[0]), c(d[1])\n")
    lines += [
        f"#define MOYE_WGMMA_D_{n}(c) MOYE_WGMMA_D_{n - 2}(c), c(d[{n - 2}]), c(d[{n - 1}])\n" for n in range(4, 129, 2)
    ]
    table = [("float", '"+f"', n) for n in float_counts()] + [("uint32_t", '"+r"', n) for n in word_counts()]
    lines.append("\n#define MOYE_WGMMA_TABLE(statement) \\\n")
    rows = []
    for register, constraint, n in table:
        numbers = ", ".join(f'"%{n + i}"' for i in range(OPERANDS))
        rows.append(f"  statement({register}, {constraint}, {n}, {numbers})")
    lines.append(" \\\n".join(rows))
    lines.append("\n// clang-format on\n")
    return "".join(lines)


def main() -> int:
    """Writes or checks the header."""
    if "--check" in sys.argv[1:]:
        return int(HEADER.read_text() != header())
    HEADER.write_text(header())
    return 0


if __name__ == "__main__":
    sys.exit(main())
