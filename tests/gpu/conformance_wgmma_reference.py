"""What each case of conformance_wgmma.cu must give: exact products of small integers, by NumPy.

python conformance_wgmma_reference.py FOLDER [GOLDEN] compares the outputs of the program in FOLDER, and writes their
digests to GOLDEN, which goes to tests/golden/conformance_wgmma.tsv.
"""

from __future__ import annotations

import hashlib
import pathlib
import re
import sys

import ml_dtypes
import numpy as np
from conformance_reference import GROUP, THREAD_IN_GROUP, words

TYPES = {
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "TF32": np.float32,
    "F32": np.float32,
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "S8": np.int8,
    "U8": np.uint8,
    "S32": np.int32,
}
PATTERN = re.compile(
    r"SM90_64x(?P<n>\d+)x\d+_(?P<d>[FS]\d+)(?P<a>TF32|BF16|F16|E4M3|E5M2|[SU]8)(?P<b>TF32|BF16|F16|E4M3|E5M2|[SU]8)_"
    r"(SS|RS)_(K|MN)\d+_(K|MN)\d+(?P<accumulate>_accumulate)?(_m(?P<m>\d+))?(?P<minus_a>_minus_a)?(?P<minus_b>_minus_b)?"
)


def expected(case: str) -> bytes:
    """The output of `case`."""
    if match := re.fullmatch(r"SM90_U(?:16|32)x(\d)_STSM_([NT])", case):
        return stmatrix(case, int(match[1]), match[2] == "T").tobytes()
    match = PATTERN.fullmatch(case)
    assert match is not None, f"no reference for the case {case}"
    return product(case, match).tobytes()


def elements(case: str, piece: int, rows: int, columns: int, dtype) -> np.ndarray:
    """A matrix of input: integers of -8 to 8, 8-bit integers of any value."""
    h = words(case, piece, rows * columns)
    if dtype in (np.int8, np.uint8):
        values = h.astype(np.uint8).view(dtype)
    else:
        values = ((h % 17).astype(np.int32) - 8).astype(dtype)
    return values.reshape(rows, columns).astype(np.float64)


def product(case: str, match: re.Match) -> np.ndarray:
    """A * B^T with its sign, and C if it is accumulated; every partial sum is exact in D's type."""
    m, n = int(match["m"] or 64), int(match["n"])
    a_type, b_type, d_type = (TYPES[match[x]] for x in "abd")
    k = 128 // np.dtype(a_type).itemsize
    a, b = elements(case, 0, m, k, a_type), elements(case, 1, n, k, b_type)
    sign = (-1 if match["minus_a"] else 1) * (-1 if match["minus_b"] else 1)
    d = sign * (a @ b.T) + 0.0  # not -0: a sum of products that begins at 0
    if match["accumulate"]:
        d += elements(case, 2, m, n, d_type)
    assert np.abs(d).max() <= (2048 if d_type is np.float16 else 2**24)
    return d.astype(d_type)


def stmatrix(case: str, count: int, transposed: bool) -> np.ndarray:
    """ldmatrix backwards: register j of a lane is row groupID of matrix j, elements 2 * threadID_in_group and the next.

    Lane i passes row (5 * i + 3) % 64, which is row i % 8 of matrix i / 8. .trans: of the matrix, columns.
    """
    registers = count // 2 if transposed else count  # the name counts elements a lane gives
    data = words(case, 0, 32 * registers * 4).astype(np.uint8).view(np.uint16).reshape(32, registers, 2)
    memory = np.full((64, 8), 0xA5A5, np.uint16)
    for j in range(registers):
        matrix = np.zeros((8, 8), np.uint16)
        for element in range(2):
            matrix[GROUP, 2 * THREAD_IN_GROUP + element] = data[:, j, element]
        lanes = np.arange(8 * j, 8 * j + 8)
        memory[(5 * lanes + 3) % 64] = matrix.T if transposed else matrix
    return memory


def digest(output: bytes) -> str:
    """What a golden file keeps of an output, which may be 64 KiB."""
    return hashlib.sha256(output).hexdigest()


def main(folder: pathlib.Path, golden: pathlib.Path | None = None) -> int:
    """Compares a folder of outputs, on a machine where pytest has not been asked yet."""
    outputs = sorted(folder.glob("*.bin"))
    if golden is not None:
        golden.write_text("".join(f"{path.stem}\t{digest(path.read_bytes())}\n" for path in outputs))
    wrong = [path.stem for path in outputs if path.read_bytes() != expected(path.stem)]
    print(f"{len(outputs)} cases, {len(wrong)} differ from the manual{': ' if wrong else ''}{', '.join(wrong)}")
    return 1 if wrong or not outputs else 0


if __name__ == "__main__":
    sys.exit(main(*map(pathlib.Path, sys.argv[1:])))
