"""What one instruction of a warp costs: wavefronts of shared memory, sectors of global memory.

Shared memory has 32 banks of 4 bytes. The lanes of an instruction are served in phases: all 32 where each moves up to
4 bytes, 16 neighbours with 8 bytes, 8 neighbours with 16 bytes; ldmatrix and stmatrix have one phase for each 8x8
matrix. A phase takes as many wavefronts as the bank with the most distinct words has words; lanes that touch the same
word share it. Hardware can do better where phases touch the same words, so the counts are upper bounds. Global memory
moves in sectors of 32 bytes, four to a cache line.

The emulator counts by the same rules (cuda/moye/emu/transactions.cc). Both count one instruction for each access of the
source: nvcc may split an assignment of a structure into several.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_moye.layout.errors import InvalidType, Misaligned

BANKS = 32
BANK_BYTES = 4
SECTOR_BYTES = 32
LINE_BYTES = 128
WARP = 32
WIDTHS = (1, 2, 4, 8, 16)  # bytes that a lane moves in one instruction


@dataclasses.dataclass(frozen=True)
class Conflict:
    """Two lanes of one phase that need different words of one bank.

    Attributes:
      request: number of the instruction, counted as the access that was asked about executes them.
      phase: number of the phase in the instruction.
      lanes: the first two lanes that meet there.
      addresses: theirs, in bytes.
      bank: where they meet.
      wavefronts: of the phase.
    """

    request: int
    phase: int
    lanes: tuple[int, int]
    addresses: tuple[int, int]
    bank: int
    wavefronts: int

    def __str__(self) -> str:
        """A part of a sentence."""
        words = " and ".join(f"{address // BANK_BYTES}" for address in self.addresses)
        return (
            f"in phase {self.phase} of instruction {self.request} lanes {self.lanes[0]} and {self.lanes[1]} touch "
            f"words {words} (bytes {self.addresses[0]:#x} and {self.addresses[1]:#x}), both of bank {self.bank}"
        )


@dataclasses.dataclass(frozen=True)
class BankReport:
    """Wavefronts of shared memory. Reports of several accesses can be added.

    Attributes:
      requests: instructions, each by one warp.
      wavefronts: cycles of shared memory.
      ideal: the fewest in which as many distinct bytes can be moved, 128 in each.
      worst: of the phase with the most wavefronts; None if every phase takes one.
      what: the access, for the sentence.
    """

    requests: int
    wavefronts: int
    ideal: int
    worst: Conflict | None = None
    what: str = "access"

    @property
    def degree(self) -> float:
        """Wavefronts over ideal: 1 is free of conflicts, and of lanes that read the same in different phases."""
        return self.wavefronts / self.ideal if self.ideal else 1.0

    @property
    def ok(self) -> bool:
        """Whether no phase takes more than one wavefront."""
        return self.worst is None

    def __add__(self, other: BankReport) -> BankReport:
        """Both accesses."""
        worst = max((w for w in (self.worst, other.worst) if w), key=lambda w: w.wavefronts, default=None)
        what = self.what if self.what == other.what else f"{self.what} and {other.what}"
        return BankReport(
            self.requests + other.requests, self.wavefronts + other.wavefronts, self.ideal + other.ideal, worst, what
        )

    def __str__(self) -> str:
        """A sentence."""
        text = f"{self.what}: {_count(self.requests, 'instruction')}, {_count(self.wavefronts, 'wavefront')}, at least"
        text += f" {self.ideal}: degree {self.degree:g}"
        if self.worst:
            return f"{text}; {self.worst}"
        return f"{text}, no bank conflict" + (", but phases touch the same words" if self.degree > 1 else "")


@dataclasses.dataclass(frozen=True)
class SectorReport:
    """Sectors of global memory. Reports of several accesses can be added.

    Attributes:
      requests: instructions, each by one warp.
      sectors: 32-byte pieces that they touch.
      ideal: the fewest that hold as many bytes.
      lines: 128-byte cache lines that they touch.
      useful_bytes: distinct bytes that they move.
      what: the access, for the sentence.
    """

    requests: int
    sectors: int
    ideal: int
    lines: int
    useful_bytes: int
    what: str = "access"

    @property
    def efficiency(self) -> float:
        """Useful bytes over the bytes of all sectors touched."""
        return self.useful_bytes / (SECTOR_BYTES * self.sectors) if self.sectors else 1.0

    @property
    def ok(self) -> bool:
        """Whether no sector more than needed is touched."""
        return self.sectors == self.ideal

    def __add__(self, other: SectorReport) -> SectorReport:
        """Both accesses."""
        what = self.what if self.what == other.what else f"{self.what} and {other.what}"
        mine, others = dataclasses.astuple(self)[:-1], dataclasses.astuple(other)[:-1]
        requests, sectors, ideal, lines, useful = (x + y for x, y in zip(mine, others, strict=True))
        return SectorReport(requests, sectors, ideal, lines, useful, what)

    def __str__(self) -> str:
        """A sentence."""
        return (
            f"{self.what}: {_count(self.requests, 'instruction')}, {_count(self.sectors, 'sector')} of "
            f"{_count(self.lines, 'line')} for {self.useful_bytes} bytes, at least {self.ideal}: "
            f"{self.efficiency:.0%} of what is moved is used"
        )


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _lane_addresses(addresses: Any, width: int, op: str) -> np.ndarray:
    """As an int64 array (request, lane); -1 where the lane takes no part."""
    if width not in WIDTHS:
        raise InvalidType(op, (width,), f"a lane moves 1, 2, 4, 8 or 16 bytes, not {width}")
    if not isinstance(addresses, np.ndarray):
        rows = addresses if addresses and isinstance(addresses[0], Sequence) else [addresses]
        addresses = np.array([[-1 if address is None else address for address in row] for row in rows], np.int64)
    addresses = addresses.reshape(-1, addresses.shape[-1]).astype(np.int64)
    if addresses.shape[1] > WARP:
        raise InvalidType(op, (addresses.shape[1],), f"an instruction has at most 32 lanes, not {addresses.shape[1]}")
    if addresses.shape[1] < WARP:
        addresses = np.pad(addresses, ((0, 0), (0, WARP - addresses.shape[1])), constant_values=-1)
    if (bad := (addresses >= 0) & (addresses % width != 0)).any():
        request, lane = (int(x) for x in np.argwhere(bad)[0])
        raise Misaligned(
            op,
            (width,),
            f"instruction {request}: lane {lane} moves {width} bytes at address {int(addresses[request, lane])}, which "
            f"is not a multiple of {width}",
        )
    return addresses


def _distinct(units: np.ndarray) -> np.ndarray:
    """True at the first of equal elements in the last axis of a sorted array; never at negative ones."""
    first = np.ones(units.shape, bool)
    first[..., 1:] = units[..., 1:] != units[..., :-1]
    return first & (units >= 0)


def _units(addresses: np.ndarray, width: int, unit_bytes: int) -> np.ndarray:
    """The units of `unit_bytes` bytes that each lane touches, in a new last axis; -1 for those that take no part."""
    offsets = np.arange(max(1, width // unit_bytes))
    return np.where(addresses[..., None] >= 0, addresses[..., None] // unit_bytes + offsets, -1)


def _flat_sorted(units: np.ndarray) -> np.ndarray:
    return np.sort(units.reshape(*units.shape[:-2], -1), axis=-1)


def _worst(addresses: np.ndarray, waves: np.ndarray, words: np.ndarray) -> Conflict | None:
    """Takes addresses and words by (request, phase, lane of phase), and the wavefronts of each phase."""
    if waves.size == 0 or waves.max() <= 1:
        return None
    request, phase = (int(x) for x in np.unravel_index(waves.argmax(), waves.shape))
    by_bank: dict[int, dict[int, int]] = {}  # bank -> word -> first lane
    for lane, of_lane in enumerate(words[request, phase]):
        for word in of_lane[of_lane >= 0].tolist():
            by_bank.setdefault(word % BANKS, {}).setdefault(word, lane)
    bank, lanes = max(by_bank.items(), key=lambda item: len(item[1]))
    (word0, lane0), (word1, lane1) = list(lanes.items())[:2]
    per_phase = addresses.shape[2]
    return Conflict(
        request,
        phase,
        (phase * per_phase + lane0, phase * per_phase + lane1),
        (word0 * BANK_BYTES, word1 * BANK_BYTES),
        bank,
        int(waves[request, phase]),
    )


def shared_memory(addresses: Any, width: int, *, what: str = "access") -> BankReport:
    """Wavefronts of plain loads or stores, or of the stores of cp.async.

    Args:
      addresses: of each lane, in bytes; None (or, in an array, -1) for lanes that take no part. One instruction, or a
        sequence of them.
      width: bytes that each lane moves: 1, 2, 4, 8 or 16.
      what: the access, for the report's sentence.

    Example:
      >>> report = shared_memory([128 * lane for lane in range(32)], 4)
      >>> report.wavefronts, report.ideal, report.degree
      (32, 1, 32.0)
      >>> print(report)  # doctest: +NORMALIZE_WHITESPACE
      access: 1 instruction, 32 wavefronts, at least 1: degree 32; in phase 0 of instruction 0 lanes 0 and 1 touch words
      0 and 32 (bytes 0x0 and 0x80), both of bank 0

    Raises:
      Misaligned: an address is not a multiple of width.
      InvalidType: another width, or more than 32 lanes.
    """
    lanes = _lane_addresses(addresses, width, "shared_memory")
    per_phase = WARP if width <= 4 else WARP * 4 // width
    return _banks(lanes.reshape(len(lanes), -1, per_phase), width, what)


def ldmatrix(addresses: Any, matrices: int = 4, *, what: str = "ldmatrix") -> BankReport:
    """Wavefronts of ldmatrix or stmatrix: lane 8*i + r holds the address of row r of matrix i.

    Args:
      addresses: of the lanes, as for `shared_memory`; those of lanes 8*matrices and above do not matter.
      matrices: 1, 2 or 4.
      what: the access, for the report's sentence.

    >>> ldmatrix([64 * lane for lane in range(32)]).degree  # rows of 64 bytes
    4.0

    Raises:
      Misaligned: the address of a row is not a multiple of 16.
    """
    if matrices not in (1, 2, 4):
        raise InvalidType("ldmatrix", (matrices,), f"ldmatrix loads 1, 2 or 4 matrices, not {matrices}")
    lanes = _lane_addresses(addresses, 16, "ldmatrix")[:, : 8 * matrices]
    phases = lanes.reshape(len(lanes), matrices, 8)
    report = _banks(phases, 16, what)
    return dataclasses.replace(report, ideal=phases.shape[0] * phases.shape[1])  # matrices do not share wavefronts


def _banks(phases: np.ndarray, width: int, what: str) -> BankReport:
    """The report of byte addresses by (request, phase, lane of phase)."""
    words = _units(phases, width, BANK_BYTES)
    in_phase = _flat_sorted(words)
    first = _distinct(in_phase)
    in_bank = np.zeros((*in_phase.shape[:2], BANKS), np.int64)
    np.add.at(in_bank, (*np.nonzero(first)[:2], in_phase[first] % BANKS), 1)
    waves = in_bank.max(axis=-1, initial=0)
    in_request = np.sort(words.reshape(len(words), -1), axis=-1)
    ideal = -(-_distinct(in_request).sum(axis=-1) // BANKS)
    return BankReport(len(phases), int(waves.sum()), int(ideal.sum()), _worst(phases, waves, words), what)


def global_memory(addresses: Any, width: int, *, what: str = "access") -> SectorReport:
    """Sectors of loads or stores of global memory, cp.async's loads among them.

    Args:
      addresses: of each lane, in bytes, as for `shared_memory`. What counts is where in a sector they lie: take the
        array's address, or 0 for one aligned to a sector.
      width: bytes that each lane moves: 1, 2, 4, 8 or 16.
      what: the access, for the report's sentence.

    Example:
      >>> print(global_memory([16 * lane for lane in range(32)], 8))  # doctest: +NORMALIZE_WHITESPACE
      access: 1 instruction, 16 sectors of 4 lines for 256 bytes, at least 8: 50% of what is moved is used

    Raises:
      Misaligned: an address is not a multiple of width.
      InvalidType: another width, or more than 32 lanes.
    """
    lanes = _lane_addresses(addresses, width, "global_memory")

    def distinct(unit_bytes: int) -> np.ndarray:
        return _distinct(_flat_sorted(_units(lanes, width, unit_bytes))).sum(axis=-1)

    useful = distinct(width) * width
    ideal = -(-useful // SECTOR_BYTES)
    return SectorReport(
        len(lanes),
        int(distinct(SECTOR_BYTES).sum()),
        int(ideal.sum()),
        int(distinct(LINE_BYTES).sum()),
        int(useful.sum()),
        what,
    )
