"""What a kernel takes of a multiprocessor, from numbers and layouts: shared memory, registers, occupancy, waves."""

from __future__ import annotations

import dataclasses
from typing import Any

from jax_moye.layout.dtypes import dtype
from jax_moye.layout.errors import InvalidShape, InvalidType, SmemOverflow
from jax_moye.layout.layout import as_any
from jax_moye.layout.swizzle import ComposedLayout

KIB = 1024
WARP = 32


@dataclasses.dataclass(frozen=True)
class Arch:
    """Limits of an architecture (CUDA programming guide, "Technical Specifications per Compute Capability").

    Attributes:
      name: as in sm_90.
      smem_per_cta: bytes of shared memory that a CTA can opt in to.
      smem_per_sm: bytes of a multiprocessor.
      smem_reserved: bytes that the system takes for each CTA.
      threads_per_sm: resident threads.
      ctas_per_sm: resident CTAs.
      registers_per_sm: 32-bit registers.
      registers_per_thread: the most that an instruction can name.
    """

    name: str
    smem_per_cta: int
    smem_per_sm: int
    smem_reserved: int
    threads_per_sm: int
    ctas_per_sm: int
    registers_per_sm: int = 64 * KIB
    registers_per_thread: int = 255


ARCHS = {
    arch.name: arch
    for arch in (
        Arch("sm_70", 96 * KIB, 96 * KIB, 0, 2048, 32),
        Arch("sm_75", 64 * KIB, 64 * KIB, 0, 1024, 16),
        Arch("sm_80", 163 * KIB, 164 * KIB, KIB, 2048, 32),
        Arch("sm_86", 99 * KIB, 100 * KIB, KIB, 1536, 16),
        Arch("sm_89", 99 * KIB, 100 * KIB, KIB, 1536, 24),
        Arch("sm_90", 227 * KIB, 228 * KIB, KIB, 2048, 32),
        Arch("sm_100", 227 * KIB, 228 * KIB, KIB, 2048, 32),
        Arch("sm_120", 99 * KIB, 100 * KIB, KIB, 1536, 24),
    )
}


def find_arch(arch: str | int | Arch) -> Arch:
    """The limits of "sm_90", 90 or "90"; an `Arch` as it is.

    Raises:
      InvalidType: an architecture that is not in `ARCHS`.
    """
    if isinstance(arch, Arch):
        return arch
    name = f"sm_{str(arch).removeprefix('sm_').rstrip('a')}"
    if name not in ARCHS:
        raise InvalidType("arch", (str(arch),), f"no limits of {arch} are known", " or ".join(ARCHS))
    return ARCHS[name]


# ---- Shared memory -------------------------------------------------------------------------------------------------


def layout_bytes(layout: Any, value_type: Any) -> int:
    """Bytes from a layout's first element to its last, behind a swizzle as far as the swizzle moves them.

    >>> layout_bytes("(128,32,4):(32,1,4096)", "bf16")
    32768
    """
    layout = as_any(layout, "layout_bytes")
    elements = layout.cosize
    if isinstance(layout, ComposedLayout) and layout.swizzle.bits:
        elements = 1 + int(layout.values().max())
    return -(-elements * dtype(value_type, "layout_bytes").bits // 8)


@dataclasses.dataclass(frozen=True)
class SmemReport:
    """Shared memory of a CTA.

    Attributes:
      bytes: in all.
      arrays: bytes of each array, without what aligns the next one.
      limit: what a CTA can have, if an architecture was named.
    """

    bytes: int
    arrays: tuple[int, ...]
    limit: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it fits."""
        return self.limit is None or self.bytes <= self.limit

    def require(self) -> SmemReport:
        """The report itself, if ok.

        Raises:
          SmemOverflow: it does not fit.
        """
        if not self.ok:
            raise SmemOverflow("smem_bytes", (self.bytes,), str(self), "fewer stages or a smaller tile")
        return self

    def __str__(self) -> str:
        """A sentence."""
        if not self.arrays:
            return "shared memory: none"
        parts = " + ".join(f"{n:,}" for n in self.arrays)
        text = f"shared memory: {self.bytes:,} bytes for arrays of {parts}"
        if self.limit is None:
            return text
        return f"{text}, {'within' if self.ok else 'more than'} the {self.limit:,} that a CTA can have"


def smem_bytes(*arrays: tuple[Any, Any], align: int = 1024, arch: str | int | Arch | None = None) -> SmemReport:
    """Shared memory for arrays that lie one behind the other.

    Args:
      *arrays: (layout, element type) of each, all stages included.
      align: bytes that each array begins at a multiple of, and that the whole is a multiple of.
      arch: to compare with what a CTA can have.

    Raises:
      InvalidType: an array is no such pair, or nothing is known of arch.

    >>> print(smem_bytes(("(64,64,3):(64,1,4096)", "bf16"), ("(64,64,3):(64,1,4096)", "bf16"), arch="sm_80"))
    shared memory: 49,152 bytes for arrays of 24,576 + 24,576, within the 166,912 that a CTA can have
    """
    for array in arrays:
        if not isinstance(array, (tuple, list)) or len(array) != 2:
            raise InvalidType(
                "smem_bytes", (array,), "an array is a pair, (layout, element type)", '("(64,64)", "bf16")'
            )
    sizes = tuple(layout_bytes(layout, value_type) for layout, value_type in arrays)
    total = sum(-(-n // align) * align for n in sizes)
    return SmemReport(total, sizes, None if arch is None else find_arch(arch).smem_per_cta)


# ---- Registers -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class RegisterReport:
    """An estimate of 32-bit registers per thread; what the compiler takes is in `GemmConfig.registers`.

    Only `at_least` is a bound. `total` is a guess from layouts alone: the compiler may keep fewer fragments at a time,
    or more addresses. Its count was between 0.8 and 1.4 times `total` for the SIMT and mma.sync kernels of the table.

    Attributes:
      accumulators: of C.
      fragments: of A and B.
      staging: of what passes through registers on its way from global to shared memory.
      overhead: for addresses and loops.
      limit: what an instruction can name.
    """

    accumulators: int
    fragments: int
    staging: int
    overhead: int
    limit: int = 255

    @property
    def total(self) -> int:
        """The sum, rounded up to what is allocated together."""
        return -(-(self.accumulators + self.fragments + self.staging + self.overhead) // 8) * 8

    @property
    def at_least(self) -> int:
        """What no compiler can do without: all accumulators, and the fragments of one k-block."""
        return self.accumulators + self.fragments // 2

    @property
    def ok(self) -> bool:
        """Whether it can be had without spilling."""
        return self.total <= self.limit

    def __str__(self) -> str:
        """A sentence."""
        text = (
            f"registers: about {self.total} per thread ({self.accumulators} accumulators, {self.fragments} fragments, "
            f"{self.staging} staging, {self.overhead} for the rest)"
        )
        return text if self.ok else f"{text}, more than {self.limit}: the compiler will spill"


def register_estimate(
    accumulators: Any, fragments: tuple[Any, ...] = (), staging: tuple[Any, ...] = (), *, overhead: int = 32
) -> RegisterReport:
    """Registers that a thread needs at least.

    Args:
      accumulators: (number of values or layout of the fragment, element type).
      fragments: the same of A and B for one k-block; two k-blocks are kept, one multiplied while the next is loaded.
      staging: the same of each tile that goes from global to shared memory through registers; none with cp.async.
      overhead: for addresses and loops, 24 to 40 in most kernels.

    >>> register_estimate((128, "f32"), ((32, "bf16"), (32, "bf16"))).total  # 128x128 on 128 threads
    224
    """

    def words(values: Any, value_type: Any) -> int:
        n = values if isinstance(values, int) else as_any(values, "register_estimate").size
        return -(-n * dtype(value_type, "register_estimate").bits // 32)

    return RegisterReport(
        words(*accumulators), 2 * sum(words(*f) for f in fragments), sum(words(*s) for s in staging), overhead
    )


# ---- Occupancy -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class OccupancyReport:
    """How many CTAs of a kernel a multiprocessor holds.

    Attributes:
      arch: the architecture.
      threads: of a CTA.
      limits: CTAs that each resource allows: registers, shared memory, threads, CTAs.
      ctas: the least of them.
      warps: of those CTAs.
      fraction: of the warps that the multiprocessor can hold.
    """

    arch: str
    threads: int
    limits: tuple[tuple[str, int], ...]
    ctas: int
    warps: int
    fraction: float

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow no further CTA."""
        return tuple(name for name, ctas in self.limits if ctas == self.ctas)

    @property
    def ok(self) -> bool:
        """Whether the kernel runs at all."""
        return self.ctas > 0

    def __str__(self) -> str:
        """A sentence."""
        ctas = f"{self.ctas} CTA{'' if self.ctas == 1 else 's'} of {self.threads} threads"
        return (
            f"occupancy on {self.arch}: {ctas}, {self.warps} warps, {self.fraction:.0%}; "
            f"limited by {' and '.join(self.limited_by)}"
        )


def occupancy(threads: int, smem_bytes: int, registers: int, arch: str | int | Arch) -> OccupancyReport:
    """How many CTAs a multiprocessor holds.

    Registers are allocated 256 at a time for a warp, and the four parts of a multiprocessor hold equally many warps.

    Args:
      threads: of a CTA.
      smem_bytes: of a CTA.
      registers: of a thread.
      arch: "sm_90" or an `Arch`.

    >>> print(occupancy(128, 65536, 254, "sm_90"))
    occupancy on sm_90: 2 CTAs of 128 threads, 8 warps, 12%; limited by registers
    """
    limits_of = find_arch(arch)
    if threads < 1 or registers < 1 or smem_bytes < 0:
        raise InvalidShape("occupancy", (threads, smem_bytes, registers), "threads and registers are at least 1")
    warps = -(-threads // WARP)
    of_warp = -(-registers * WARP // 256) * 256
    of_cta = smem_bytes + limits_of.smem_reserved
    by_smem = limits_of.smem_per_sm // of_cta if of_cta else limits_of.ctas_per_sm
    limits = (
        ("registers", limits_of.registers_per_sm // of_warp // 4 * 4 // warps),
        ("shared memory", by_smem if smem_bytes <= limits_of.smem_per_cta else 0),
        ("threads", limits_of.threads_per_sm // WARP // warps),
        ("CTAs", limits_of.ctas_per_sm),
    )
    if registers > limits_of.registers_per_thread or threads > 1024:
        limits = (("registers", 0), *limits[1:]) if threads <= 1024 else (*limits[:2], ("threads", 0), limits[3])
    ctas = min(n for _name, n in limits)
    return OccupancyReport(
        limits_of.name, threads, limits, ctas, ctas * warps, ctas * warps * WARP / limits_of.threads_per_sm
    )


# ---- Waves ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class WaveReport:
    """How the CTAs of a launch fill the multiprocessors.

    Attributes:
      ctas: of the launch.
      slots: CTAs that run at one time.
    """

    ctas: int
    slots: int

    @property
    def waves(self) -> int:
        """Rounds until all CTAs have run."""
        return -(-self.ctas // self.slots)

    @property
    def tail(self) -> int:
        """CTAs in the last round."""
        return self.ctas - (self.waves - 1) * self.slots if self.ctas else 0

    @property
    def efficiency(self) -> float:
        """Part of the slots of all rounds that have a CTA."""
        return self.ctas / (self.waves * self.slots) if self.ctas else 1.0

    def __str__(self) -> str:
        """A sentence."""
        return (
            f"waves: {self.ctas} CTAs on {self.slots} slots are {self.ctas / self.slots:.2f} waves, the last with "
            f"{self.tail}: {self.efficiency:.0%} of {self.waves} full ones"
        )


def waves(
    sizes: tuple[int, ...], tile: tuple[int, ...], multiprocessors: int, ctas_per_sm: int = 1, *, batch: int = 1
) -> WaveReport:
    """How the tiles of D, one CTA each, fill the multiprocessors.

    Args:
      sizes: (m, n) of D.
      tile: (m, n) of a CTA's tile.
      multiprocessors: of the device.
      ctas_per_sm: that one holds, `occupancy(...).ctas`.
      batch: number of matrices.

    Raises:
      InvalidShape: sizes or tile are no two numbers, or no CTA runs at all.

    >>> print(waves((4096, 4096), (128, 128), 132, 2))
    waves: 1024 CTAs on 264 slots are 3.88 waves, the last with 232: 97% of 4 full ones
    """
    if multiprocessors < 1 or ctas_per_sm < 1:
        raise InvalidShape("waves", (multiprocessors, ctas_per_sm), "no CTA runs at all")
    for pair, words in ((sizes, "sizes are (m, n) of D"), (tile, "tile is (m, n) of a CTA's tile of D")):
        if not isinstance(pair, (tuple, list)) or len(pair) < 2:
            raise InvalidShape("waves", (sizes, tile), words, "waves((4096, 4096), (128, 128), 132)")
    ctas = batch
    for size, extent in zip(sizes[:2], tile[:2], strict=True):
        ctas *= -(-size // extent)
    return WaveReport(ctas, multiprocessors * ctas_per_sm)
