"""What each case of conformance.cu must give, computed from the PTX manual's words and not from the emulator's code.

python conformance_reference.py FOLDER compares the outputs of the program in FOLDER.
"""

from __future__ import annotations

import fractions
import pathlib
import re
import sys

import ml_dtypes
import numpy as np

LANES = np.arange(32)
GROUP, THREAD_IN_GROUP = LANES // 4, LANES % 4  # the manual's groupID and threadID_in_group


def expected(case: str) -> bytes:
    """The output of `case`."""
    for pattern, function in CASES.items():
        if match := re.fullmatch(pattern, case):
            return np.ascontiguousarray(function(case, **match.groupdict())).tobytes()
    raise KeyError(f"no reference for the case {case}: add one to conformance_reference.py")


# Inputs ----------------------------------------------------------------------------------------------------------


def words(case: str, piece: int, count: int) -> np.ndarray:
    """The hashes that elements of the piece-th piece of input are made of: `hash` in conformance.cu."""
    h = 2166136261
    for byte in case.encode():
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    place = (piece << 20) + np.arange(count, dtype=np.uint64) + 1
    h = (np.uint64(h) + 0x9E3779B9 * place) & 0xFFFFFFFF
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return (h ^ (h >> 16)).astype(np.uint32)


def middle(h: np.ndarray) -> np.ndarray:
    """Floats from 2^-27 to 2^18."""
    return (h & 0x807FFFFF) | ((100 + (h >> 23) % 46) << 23)


def root(h: np.ndarray) -> np.ndarray:
    """Floats about 2^-65."""
    return (h & 0x807FFFFF) | ((60 + (h >> 23) % 5) << 23)


def tiny(h: np.ndarray) -> np.ndarray:
    """Floats below 2^-124."""
    return h & 0x81FFFFFF


def eighth(h: np.ndarray) -> np.ndarray:
    """Floats from 2^-19 to 2^20."""
    return (h & 0x807FFFFF) | ((108 + (h >> 23) % 39) << 23)


def small(case: str, piece: int, count: int, dtype) -> np.ndarray:
    """Integers of -8 to 8."""
    return (words(case, piece, count) % 17).astype(np.int32).__sub__(8).astype(dtype)


# Tensor cores ----------------------------------------------------------------------------------------------------

TYPES = {
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "TF32": np.float32,
    "F32": np.float32,
    "F64": np.float64,
    "S8": np.int8,
    "U8": np.uint8,
    "E4M3": ml_dtypes.float8_e4m3fn,
    "E5M2": ml_dtypes.float8_e5m2,
    "S32": np.int32,
}
# Operands smaller than a byte: bits, signed.
PACKED = {"S4": (4, True), "U4": (4, False), "U1": (1, False)}


def register_values(case: str, piece: int, type: str, registers: int) -> np.ndarray:
    """The values of 32 lanes' registers of an operand: [lane, register, value]."""
    if type in PACKED:
        bits, signed = PACKED[type]
        packed = words(case, piece, 32 * registers).reshape(32, registers, 1)
        values = (packed >> np.arange(0, 32, bits, dtype=np.uint32)).astype(np.int64) & (2**bits - 1)
        return np.where(values >= 2 ** (bits - 1), values - 2**bits, values) if signed else values
    dtype = TYPES[type]
    count = 32 * registers * max(1, 4 // np.dtype(dtype).itemsize)
    values = (
        words(case, piece, count).astype(dtype) if dtype in (np.int8, np.uint8) else small(case, piece, count, dtype)
    )
    return values.reshape(32, registers, -1)


def mma_operand(case: str, piece: int, type: str, rows: int, k: int) -> np.ndarray:
    """An operand of `rows` (of A; columns of B) by k, from the registers of 32 lanes ("Matrix Fragments for mma").

    A register of 32 bits holds neighbours in k. Registers of A go down the rows first (two blocks of 8), then along k
    (two blocks); B has one block of 8 columns and its registers go along k.
    """
    bits = PACKED[type][0] if type in PACKED else 8 * np.dtype(TYPES[type]).itemsize
    per_register = max(1, 32 // bits)
    blocks = rows // 8
    registers = rows * k // 32 // per_register
    values = register_values(case, piece, type, registers)
    matrix = np.zeros((rows, k))
    for register in range(registers):
        for element in range(per_register):
            row = GROUP + 8 * (register % blocks)
            column = THREAD_IN_GROUP * per_register + element + 4 * per_register * (register // blocks)
            matrix[row, column] = values[:, register, element].astype(np.float64)
    return matrix


def accumulators(case: str, type: str, lane_values: int, saturate: bool = False) -> np.ndarray:
    """Values of C: [lane, value]."""
    count = 32 * lane_values
    if type != "S32":
        return small(case, 2, count, TYPES[type]).reshape(32, lane_values)
    h = words(case, 2, count)
    if saturate:
        values = np.where(h & 1, 0x7FFFFFFF - (h >> 1) % 1000, 0x80000000 + (h >> 1) % 1000).astype(np.uint32)
        return values.view(np.int32).reshape(32, lane_values)
    return ((h % 2001).astype(np.int32) - 1000).reshape(32, lane_values)


def mma(case: str, m: str, n: str, k: str, d: str, a: str, b: str, c: str, option: str) -> np.ndarray:
    """D = A * B + C. Accumulators: two neighbours in n of row groupID, then of row groupID + 8."""
    assert d == c
    rows, depth, dtype = int(m), int(k), TYPES[c]
    left = mma_operand(case, 0, a, rows, depth)
    right = mma_operand(case, 1, b, int(n), depth)
    product = left @ right.T  # exact: small integers
    if option == "_XORPOPC":  # bits that differ
        product = left.sum(1)[:, None] + right.sum(1) - 2 * product
    accumulator = accumulators(case, c, rows // 4, option == "_SATURATE").reshape(32, rows // 8, 2)
    result = np.zeros_like(accumulator)  # lane, row block, neighbour
    for block in range(rows // 8):
        for neighbour in range(2):
            place = product[GROUP + 8 * block, 2 * THREAD_IN_GROUP + neighbour]
            total = place + accumulator[:, block, neighbour].astype(np.float64)  # exact: below 2^53
            if option == "_SATURATE":
                total = np.clip(total, -(2.0**31), 2.0**31 - 1)
            result[:, block, neighbour] = total.astype(dtype)
    return result


def quad_pair_mma(case: str, c: str, majors: str) -> np.ndarray:
    """Volta's m8n8k4: four products, one by each quad pair ("Matrix Fragments for mma.m8n8k4 with .f16").

    "quad pair 0: threads 0-3 and 16-19" and so on. Row-major A: row = i % 4 of lanes below 16, + 4 of the others, where
    i is the lane's number in its quad; col = the value. Column-major A: col = i, row = the value, + 4 for lanes 16 and
    up. B alike, with row-major and column-major changing places.
    """
    pair, quad, high = LANES // 4 % 4, LANES % 4, 4 * (LANES >= 16)

    def operand(piece: int, k_major: bool) -> np.ndarray:
        values = register_values(case, piece, "F16", 2).reshape(32, 4).astype(np.float64)
        matrices = np.zeros((4, 8, 4))
        for value in range(4):
            if k_major:
                matrices[pair, quad + high, value] = values[:, value]
            else:
                matrices[pair, value + high, quad] = values[:, value]
        return matrices

    left, right = operand(0, majors[0] == "T"), operand(1, majors[1] == "N")
    product = np.einsum("pmk,pnk->pmn", left, right)
    accumulator = accumulators(case, c, 8)
    result = np.zeros_like(accumulator)
    for i in range(8):
        if c == "F16":
            row, column = quad + high, np.full(32, i)
        else:  # row = X or X + 2, where X = (laneid & 1) + 4 for the upper half; col = (i & 4) + (laneid & 2) + (i & 1)
            row, column = (LANES & 1) + high + (i & 2), (i & 4) + (LANES & 2) + (i & 1)
        result[:, i] = product[pair, row, column] + accumulator[:, i].astype(np.float64)
    return result


def dp4a(case: str) -> np.ndarray:
    """Four products of signed bytes and C, modulo 2^32."""
    a, b = (words(case, piece, 128).astype(np.int8).reshape(32, 4).astype(np.int64) for piece in range(2))
    return ((a * b).sum(1) + words(case, 2, 32).astype(np.int64)).astype(np.uint32)


def fused_multiply_add(case: str, type: str) -> np.ndarray:
    """One rounding of a * b + c: float64 of small integers, where it is none; float32 through exact arithmetic."""
    if type == "f64":
        a, b, c = (small(case, piece, 32, np.float64) for piece in range(3))
        return a * b + c
    kinds = (root, root, tiny) if type == "f32_subnormal" else (middle, middle, middle)
    a, b, c = (kind(words(case, piece, 32)).view(np.float32) for piece, kind in enumerate(kinds))
    return np.array([fma_f32(*operands) for operands in zip(a, b, c, strict=True)], np.float32)


def fma_f32(a: np.float32, b: np.float32, c: np.float32) -> np.float32:
    """a * b + c of finite floats, rounded once to the nearest, ties to even."""
    a, b, c = (fractions.Fraction(float(x)) for x in (a, b, c))
    exact = a * b + c
    with np.errstate(all="ignore"):
        guess = np.float32(float(exact))  # within one step of the nearest: rounded twice
        near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return min(near, key=lambda x: (abs(fractions.Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


# Shared memory ---------------------------------------------------------------------------------------------------


def ldmatrix(case: str, count: str, trans: str) -> np.ndarray:
    """Register j of a lane: row groupID of matrix j, elements 2 * threadID_in_group and the next; .trans: columns."""
    registers = int(count) // 2 if trans == "T" else int(count)  # the name counts elements a lane receives
    memory = words(case, 0, 256).view(np.uint16).reshape(64, 8)
    addresses = words(case, 1, 32) % 64
    result = np.zeros((32, registers, 2), np.uint16)
    for j in range(registers):
        matrix = memory[addresses[8 * j : 8 * j + 8]]
        if trans == "T":
            matrix = matrix.T
        for element in range(2):
            result[:, j, element] = matrix[GROUP, 2 * THREAD_IN_GROUP + element]
    return result


def cp_async(case: str, size: str, zfill: str | None) -> np.ndarray:
    """Thread t's bytes at place 63 - t; with src-size the first t % (size + 1) of them, then zeros."""
    bytes_each = int(size)
    source = words(case, 0, 64 * bytes_each // 4).view(np.uint8).reshape(64, bytes_each).copy()
    if zfill:
        for thread in range(64):
            source[thread, thread % (bytes_each + 1) :] = 0
    return source[::-1]


def cp_async_groups(case: str) -> np.ndarray:
    """Each group's words, reversed."""
    return words(case, 0, 192).reshape(3, 64)[:, ::-1]


# Warps and CTAs --------------------------------------------------------------------------------------------------


def shfl(case: str, kind: str, bits: str) -> np.ndarray:
    """Lane i receives lane i + delta, i - delta or i ^ delta; its own value where that lane is not of the warp."""
    values = words(case, 0, int(bits)).view(f"u{int(bits) // 8}")
    if kind == "":
        return values[words(case, 1, 32) % 32]
    delta = np.arange(32)[:, None]
    lanes = {"down_": LANES + delta, "up_": LANES - delta, "xor_": LANES ^ delta}[kind]
    return values[np.where((lanes >= 0) & (lanes < 32), lanes, LANES)]


def shfl_half(case: str) -> np.ndarray:
    """Halves of a warp, each within itself."""
    return words(case, 0, 32)[np.where(LANES < 16, LANES ^ 5, LANES ^ 10)]


def named_barrier(case: str) -> np.ndarray:
    """Round r: three times the reversed words plus the barrier's number, neighbours swapped."""
    rounds = [3 * (words(case, 0, 32) + np.uint32(barrier))[::-1] for barrier in range(1, 15, 2)]
    return np.array([round[LANES ^ 1] for round in rounds], np.uint32)


def sync_threads(case: str) -> np.ndarray:
    """The reversed words."""
    return words(case, 0, 96)[::-1]


def sync_warp(case: str) -> np.ndarray:
    """The reversed words; then neighbours within each half."""
    values = words(case, 0, 64)
    return np.concatenate([values[:32][::-1], values[32:][np.where(LANES < 16, LANES ^ 3, LANES ^ 9)]])


def builtin(case: str) -> np.ndarray:
    """Numbers in the order in which the threads of a CTA and the CTAs of a grid are counted: x first."""
    rows = []
    for block in np.ndindex(2, 3, 2):
        for thread in np.ndindex(2, 4, 8):
            lane = (thread[2] + 8 * (thread[1] + 4 * thread[0])) % 32
            rows.append([*thread[::-1], *block[::-1], 8, 4, 2, 2, 3, 2, lane, 48, 0, 0])
    return np.array(rows, np.uint32)


def warp_id(case: str) -> np.ndarray:
    """32 threads a warp."""
    return (np.arange(96) // 32).astype(np.uint32)


def warpgroup_id(case: str) -> np.ndarray:
    """128 threads a warpgroup."""
    return (np.arange(384) // 128).astype(np.uint32)


def universal_copy(case: str, size: str) -> np.ndarray:
    """Elements of `size` bytes, reversed."""
    return words(case, 0, 16 * int(size)).reshape(64, -1)[::-1]


def from_float(case: str, type: str) -> np.ndarray:
    """Rounded to nearest even; every NaN becomes 0x7fff ("cvt": a NaN result is canonical)."""
    h = words(case, 0, 248) if type == "bfloat16" else middle(words(case, 0, 248))
    values = np.append(h, words(case, 1, 8) | 0x7F800001).view(np.float32)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        bits = values.astype({"half": np.float16, "bfloat16": ml_dtypes.bfloat16}[type]).view(np.uint16)
    return np.where(np.isnan(values), 0x7FFF, bits).astype(np.uint32)


def round_to_tf32(case: str) -> np.ndarray:
    """cvt.rn.tf32.f32 of any words, and of NaN."""
    return rounded_to_tf32(np.append(words(case, 0, 248), words(case, 1, 8) | 0x7F800001))


def rounded_to_tf32(bits: np.ndarray) -> np.ndarray:
    """Words of floats to the nearest even that has 10 bits behind the point; every NaN becomes 0x7fffe000."""
    rounded = (bits.astype(np.uint64) + 0xFFF + (bits >> 13 & 1)).astype(np.uint32) & np.uint32(0xFFFFE000)
    return np.where(np.isnan(bits.view(np.float32)), np.uint32(0x7FFFE000), rounded)


def pack_pair(case: str, type: str) -> np.ndarray:
    """Two of from_float's in one word, the first in the low half; they are 64 words apart."""
    bits = from_float(case, type).reshape(2, 2, 64)
    return (bits[:, 0] | bits[:, 1] << 16).reshape(-1)


def f32_pair(case: str) -> np.ndarray:
    """Two bit patterns, 64 words apart, as neighbours."""
    return words(case, 0, 128).reshape(2, 64).T


def halves(words: np.ndarray, type: str) -> np.ndarray:
    """Both 16-bit numbers of each word, the low half first: (count,2)."""
    return words.view(np.uint16).reshape(-1, 2).view({"half": np.float16, "bfloat16": ml_dtypes.bfloat16}[type])


def sub_pair(case: str, type: str) -> np.ndarray:
    """Differences of numbers below 2, rounded once: f32 keeps more than twice their bits."""
    first, second = (halves(w & 0xBFFFBFFF, type).astype(np.float32) for w in words(case, 0, 128).reshape(2, 64))
    return (first - second).astype(halves(words(case, 0, 1), type).dtype)


def unpack_e4m3_pair(case: str, type: str) -> np.ndarray:
    """Bytes 0 and 2 of each word, then bytes 1 and 3, which both types hold exactly."""
    bytes = (words(case, 0, 64) & 0xBFBFBFBF).view(np.uint8).reshape(64, 2, 2)  # (word,pair,first)
    numbers = bytes.view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    return numbers.transpose(2, 0, 1).astype(halves(words(case, 0, 1), type).dtype)


def store(case: str) -> np.ndarray:
    """Elements of 16 bytes: to place t ^ 5, then reversed."""
    return words(case, 0, 256).reshape(64, 4)[np.arange(64) ^ 5][::-1]


def float8_from_float(case: str, type: str, overflowing: str | None) -> np.ndarray:
    """Rounded to nearest even; every NaN becomes 0x7f. What is too large: the greatest number, or as JAX has it."""
    values = np.append(eighth(words(case, 0, 248)), words(case, 1, 8) | 0x7F800001).view(np.float32)
    return float8_bits(values, TYPES[type.upper()], saturate=not overflowing)


def float8_bits(values: np.ndarray, dtype, saturate: bool) -> np.ndarray:
    """Bits of floats as an 8-bit float type, by way of ml_dtypes, which JAX uses."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        bits = values.astype(dtype).view(np.uint8)
        if saturate:  # all that is beyond the greatest number is it; rounding cannot come back from there
            most = np.float32(ml_dtypes.finfo(dtype).max)
            bits = np.clip(values, -most, most).astype(dtype).view(np.uint8)
    return np.where(np.isnan(values), 0x7F, bits).astype(np.uint32)


def float8_to_float(case: str, type: str) -> np.ndarray:
    """Exact. Every NaN becomes 0x7fffffff: it passes through f16."""
    values = (words(case, 0, 256) & 0xFF).astype(np.uint8).view(TYPES[type.upper()]).astype(np.float32)
    return np.where(np.isnan(values), np.uint32(0x7FFFFFFF), values.view(np.uint32))


def to_float(case: str, type: str) -> np.ndarray:
    """Exact. bfloat16 keeps its bits, NaN's too; of f16 every NaN becomes 0x7fffffff, as an H200 does."""
    bits = (words(case, 0, 256) & 0xFFFF).astype(np.uint16)
    if type == "bfloat16":
        return bits.astype(np.uint32) << 16
    floats = bits.view(np.float16).astype(np.float32).view(np.uint32)
    nan = (bits & 0x7FFF) > 0x7C00
    return np.where(nan, np.uint32(0x7FFFFFFF), floats)


OPERANDS = "TF32|BF16|F16|F64|E4M3|E5M2|[SU]8|[SU]4|U1"
CASES = {
    r"SM70_8x8x4_F(?:16|32)F16F16(?P<c>F16|F32)_(?P<majors>[TN][TN])": quad_pair_mma,
    rf"SM\d\d_(?P<m>\d+)x(?P<n>\d+)x(?P<k>\d+)_(?P<d>[FS]\d+)(?P<a>{OPERANDS})(?P<b>{OPERANDS})(?P<c>[FS]\d+)_TN"
    r"(?P<option>_SATURATE|_XORPOPC|_ANDPOPC|)": mma,
    r"SM61_DP4A": dp4a,
    r"UniversalFMA_(?P<type>f32|f32_subnormal|f64)": fused_multiply_add,
    r"SM75_U(?:16|32)x(?P<count>\d)_LDSM_(?P<trans>[NT])": ldmatrix,
    r"SM80_CP_ASYNC_CACHE\w+?_(?P<size>\d+)(?P<zfill>_zfill)?": cp_async,
    r"cp_async_groups": cp_async_groups,
    r"shfl_(?P<kind>|down_|up_|xor_)sync_(?P<bits>\d+)": shfl,
    r"shfl_xor_sync_half": shfl_half,
    r"named_barrier(_arrive)?": named_barrier,
    r"sync_threads": sync_threads,
    r"sync_warp": sync_warp,
    r"builtin": builtin,
    r"warp_id": warp_id,
    r"warpgroup_id": warpgroup_id,
    r"UniversalCopy_(?P<size>\d+)": universal_copy,
    r"store_16": store,
    r"round_to_tf32": round_to_tf32,
    r"pack_pair_(?P<type>half|bfloat16)": pack_pair,
    r"f32_pair": f32_pair,
    r"sub_pair_(?P<type>half|bfloat16)": sub_pair,
    r"unpack_e4m3_pair_(?P<type>half|bfloat16)": unpack_e4m3_pair,
    r"float_(?P<type>e4m3|e5m2)_from_float(?P<overflowing>_overflowing)?": float8_from_float,
    r"float_(?P<type>e4m3|e5m2)_to_float": float8_to_float,
    r"(?P<type>half|bfloat16)_from_float": from_float,
    r"(?P<type>half|bfloat16)_to_float": to_float,
}


def main(folder: pathlib.Path) -> int:
    """Compares a folder of outputs, on a machine where pytest has not been asked yet."""
    outputs = sorted(folder.glob("*.bin"))
    wrong = [path.stem for path in outputs if path.read_bytes() != expected(path.stem)]
    print(f"{len(outputs)} cases, {len(wrong)} differ from the manual{': ' if wrong else ''}{', '.join(wrong)}")
    return 1 if wrong or not outputs else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
