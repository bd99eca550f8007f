"""What each case of conformance_tma.cu must give, computed from the PTX manual and not from the emulator's code.

python conformance_tma_reference.py FOLDER compares the outputs of the program in FOLDER.
"""

from __future__ import annotations

import itertools
import pathlib
import re
import sys

import ml_dtypes
import numpy as np
from conformance_reference import rounded_to_tf32, words

ZONE = 4096  # bytes of shared memory that each kernel writes out
PLACES = 3
ROW, PITCH = 160, 176
SIZES = (None, 9, 5, 4, 3)
BOXES = {2: (8,), 3: (4, 3), 4: (3, 2, 2), 5: (3, 2, 2, 2)}
SWIZZLE_BITS = {"none": 0, "b32": 1, "b64": 2, "b128": 3}
TYPES = {
    "u8": np.uint8,
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "f32": np.float32,
    "tf32": np.float32,
    "f64": np.float64,
    "u32": np.uint32,
    "s32": np.int32,
    "u64": np.uint64,
}


def expected(case: str) -> bytes:
    """The output of `case`."""
    for pattern, function in CASES.items():
        if match := re.fullmatch(pattern, case):
            return np.ascontiguousarray(function(case, **match.groupdict())).tobytes()
    raise KeyError(f"no reference for the case {case}: add one to conformance_tma_reference.py")


def raw(case: str, piece: int, count: int) -> np.ndarray:
    """Bytes without a meaning; what does not fill a word is 0."""
    data = np.zeros(count, np.uint8)
    data[: count // 4 * 4] = words(case, piece, count // 4).view(np.uint8)
    return data


def small(case: str, piece: int, count: int, dtype) -> np.ndarray:
    """Bytes of integers of -8 to 8."""
    size = np.dtype(dtype).itemsize
    values = (words(case, piece, count // size) % 17).astype(np.int64) - 8
    return values.astype(dtype).view(np.uint8)


# TMA -----------------------------------------------------------------------------------------------------------------


class Box:
    """A box of a tensor, and the three places it is moved to or from."""

    def __init__(self, kind: str, dtype: str, rank: int, swizzle: str):
        self.rank, self.bits = rank, SWIZZLE_BITS[swizzle]
        self.size = np.dtype(TYPES[dtype]).itemsize
        self.is_rounded = dtype == "tf32"
        span = 64 if self.bits == 0 else 16 << self.bits
        self.row = span  # bytes
        self.offset = 384 if kind.endswith("shifted") else 0
        self.box = (self.row // self.size, *BOXES[rank])
        self.sizes = (ROW // self.size, *SIZES[1:rank])
        self.tensor_bytes = PITCH * int(np.prod(SIZES[1:rank]))
        self.box_bytes = self.size * int(np.prod(self.box))
        self.stored = kind.startswith(("store", "reduce"))

    def place(self, i: int) -> list[int]:
        """Inside, before the begin (which stores may not be), across the end; along mode 0 in steps of 16 bytes."""
        piece = 16 // self.size
        if i == 0:
            return [piece, *(mode % 2 for mode in range(1, self.rank))]
        if i == 1:
            return [0] * self.rank if self.stored else [-piece] + [-1] * (self.rank - 1)
        last = [size - extent // 2 for size, extent in zip(self.sizes, self.box, strict=True)]
        return [self.sizes[0] - -(-(self.box[0] // 2) // piece) * piece, *last[1:]]

    def elements(self, i: int, offset: int):
        """Of each element of the box: its bytes in shared memory and in the tensor, None outside."""
        first = self.place(i)
        strides = [self.size, PITCH]
        for mode in range(1, self.rank - 1):
            strides.append(strides[-1] * SIZES[mode])
        for n, reverse in enumerate(itertools.product(*(range(extent) for extent in reversed(self.box)))):
            coordinates = [c + x for c, x in zip(first, reversed(reverse), strict=True)]
            address = offset + n * self.size  # the box is dense, its first mode fastest
            # 16-byte pieces change places by the bits of the address above the span of 128 bytes.
            address ^= (address >> 7 & (1 << self.bits) - 1) << 4
            inside = all(0 <= c < size for c, size in zip(coordinates, self.sizes, strict=True))
            place = sum(c * stride for c, stride in zip(coordinates, strides, strict=True))
            yield address, (place if inside else None)

    def load(self, zone: np.ndarray, tensor: np.ndarray, i: int, offset: int) -> None:
        for address, place in self.elements(i, offset):
            source = 0 if place is None else tensor[place : place + self.size]
            zone[address : address + self.size] = source
        if self.is_rounded:
            loaded = zone[offset : offset + self.box_bytes].view(np.uint32)
            loaded[:] = rounded_to_tf32(loaded)


def load(case, kind, dtype, rank, swizzle):
    box = Box(kind, dtype, int(rank), swizzle)
    tensor = raw(case, 0, box.tensor_bytes)
    zones = np.full((PLACES, ZONE), 0xA5, np.uint8)
    for i in range(PLACES):
        box.load(zones[i], tensor, i, box.offset)
    return zones


def multicast(case, kind, dtype, rank, swizzle):
    box = Box(kind, dtype, int(rank), swizzle)
    tensor = raw(case, 0, box.tensor_bytes)
    zones = np.full((2, PLACES, ZONE), 0xA5, np.uint8)
    for i, source in itertools.product(range(PLACES), range(2)):
        for receiver in (1 - source,) if kind.endswith("other") else (0, 1):
            box.load(zones[receiver, i], tensor, (i + source) % PLACES, source * ZONE // 2)
    return zones


def store(case, kind, dtype, rank, swizzle):
    box = Box(kind, dtype, int(rank), swizzle)
    zone, tensor = raw(case, 0, ZONE), raw(case, 1, box.tensor_bytes)
    for i in range(PLACES):
        for address, place in box.elements(i, box.offset):
            if place is not None:
                tensor[place : place + box.size] = zone[address : address + box.size]
    return tensor


def reduce_add(case, kind, dtype, rank, swizzle):
    box = Box(kind, dtype, int(rank), swizzle)
    dtype = TYPES[dtype]
    zone, tensor = small(case, 0, ZONE, dtype), small(case, 1, box.tensor_bytes, dtype)
    zone, tensor = zone.view(dtype), tensor.copy().view(dtype)
    with np.errstate(over="ignore"):  # integers wrap around
        for i in range(PLACES):
            for address, place in box.elements(i, 0):
                if place is not None:
                    tensor[place // box.size] += zone[address // box.size]
    return tensor.view(np.uint8)


def tensor_map_specs(case):
    """Which of the program's specs the driver's documentation allows; of strides it says nothing but the multiples."""
    good = [0, 2, 4, 7, 8, 10, 14, 17, 19, 20, 21, 22, 23]
    return np.isin(np.arange(24), good).astype(np.uint32)


# mbarriers and clusters ----------------------------------------------------------------------------------------------


def mbarrier(case):
    # Of parity 0 and 1: complete? An incomplete first phase has "the one before it", of parity 1, complete.
    first, second = [0, 1], [1, 0]
    looks = [first, first, second, second, first, second, first, second, first, second]
    return np.array([*itertools.chain(*looks), words(case, 0, 1)[0]], np.uint32)


def mbarrier_ring(case):
    handed = words(case, 0, 32)[np.arange(32) ^ 5]
    return handed + np.arange(20, dtype=np.uint32)[:, None]


def cluster(case):
    given = words(case, 0, 64)
    out = np.zeros((2, 4, 64, 16), np.uint32)
    for y, x, thread in itertools.product(range(2), range(4), range(64)):
        neighbour = (int(given[thread]) + (x + 1) % 4) & 0xFFFFFFFF
        out[y, x, thread] = (neighbour, x, 4, 1, 1, 0, y, 0, 1, 2, 1, x, 0, 0, thread, 0)
    return out


def registers(case):
    return np.full(384, (int(words(case, 0, 1)[0]) + 256) & 0xFFFFFFFF, np.uint32)


BOX = r"_(?P<dtype>\w+?)_(?P<rank>\d)d_(?P<swizzle>\w+)"
CASES = {
    rf"(?P<kind>load(_hint|_shifted)?){BOX}": load,
    rf"(?P<kind>multicast(_other)?){BOX}": multicast,
    rf"(?P<kind>store(_hint|_shifted)?){BOX}": store,
    rf"(?P<kind>reduce){BOX}": reduce_add,
    "tensor_map_specs": tensor_map_specs,
    "mbarrier": mbarrier,
    "mbarrier_ring": mbarrier_ring,
    "cluster": cluster,
    "registers": registers,
}


def main(folder: pathlib.Path) -> int:
    """Compares every output in the folder; says which differ."""
    differ = [path.stem for path in sorted(folder.glob("*.bin")) if path.read_bytes() != expected(path.stem)]
    print(f"{len(list(folder.glob('*.bin')))} cases, {len(differ)} differ from the reference: {' '.join(differ)}")
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
