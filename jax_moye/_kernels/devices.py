"""The GPUs that predictions are about: what their data sheets say, and what a GPU at hand says of itself.

Limits of an architecture (shared memory, registers, resident threads) are in `layout.resources.ARCHS`, which this table
refers to. Numbers of a device come from NVIDIA's data sheets and white papers, named beside each line; a clock is the
one that the data sheet's dense tensor-core rate implies, since that is what a roofline needs. They were written down
without the documents at hand, and only the H200 and the H100 SXM have been seen: check a line before you rely on it.
GPUs in use hold lower clocks under load: docs/performance.md has what ours did.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import jax

from jax_moye import _compat
from jax_moye._kernels import target
from jax_moye._kernels.dtypes import DTYPES, FLOAT8
from jax_moye._kernels.frozen import FrozenDict

if TYPE_CHECKING:
    from jax_moye.layout.resources import Arch

MIB = 1 << 20

# Multiply-adds per clock of one multiprocessor, dense: tensor cores where they have the dtype, else FMA units. bf16 and
# f16 are summed in f32. NVIDIA's white papers of V100, Turing, A100, GA102, Ada, H100 and Blackwell.
_OF_VOLTA = {"f16": 512, "f32": 64, "f64": 32}
_OF_TURING = {"f16": 512, "s8": 1024, "f32": 64, "f64": 2}
_OF_A100 = {"bf16": 1024, "f16": 1024, "tf32": 512, "s8": 2048, "f64": 64, "f32": 64}
_OF_GA102 = {"bf16": 512, "f16": 512, "tf32": 256, "s8": 1024, "f64": 2, "f32": 128}
_OF_ADA = {"bf16": 512, "f16": 512, "tf32": 256, "s8": 1024, "e4m3": 1024, "e5m2": 1024, "f64": 2, "f32": 128}
_OF_HOPPER = {"bf16": 2048, "f16": 2048, "tf32": 1024, "s8": 4096, "e4m3": 4096, "e5m2": 4096, "f64": 128, "f32": 128}
_OF_B200 = {"bf16": 4096, "f16": 4096, "tf32": 2048, "s8": 8192, "e4m3": 8192, "e5m2": 8192, "f64": 64, "f32": 128}
# GeForce: half the rate where sums are f32.
_OF_GEFORCE_GA102 = _OF_GA102 | {"bf16": 256, "f16": 256, "tf32": 128}
_OF_GEFORCE_ADA = _OF_ADA | {"bf16": 256, "f16": 256, "tf32": 128, "e4m3": 512, "e5m2": 512}
_OF_GEFORCE_BLACKWELL = _OF_GEFORCE_ADA

_RATES = {
    70: _OF_VOLTA,
    75: _OF_TURING,
    80: _OF_A100,
    86: _OF_GA102,
    89: _OF_ADA,
    90: _OF_HOPPER,
    100: _OF_B200,
    120: _OF_GEFORCE_BLACKWELL,
}


@dataclasses.dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
      name: short, e.g. "h200"; what `explain(device=...)` takes.
      kind: what JAX calls it (`jax.Device.device_kind`), or the beginning of that.
      arch: ten times the compute capability, e.g. 90.
      multiprocessors: of the device, not of the full chip.
      clock_mhz: of the multiprocessors at the data sheet's peak; None where nobody says.
      memory_bytes_per_s: of the data sheet; None where nobody says.
      l2_bytes: of the L2 cache; None where nobody says.
      fma_per_clock: multiply-adds per clock of one multiprocessor by dtype, as in `GemmConfig.dtype`.
      source: where the numbers come from.
    """

    name: str
    kind: str
    arch: int
    multiprocessors: int
    clock_mhz: float | None
    memory_bytes_per_s: float | None
    l2_bytes: int | None
    fma_per_clock: Mapping[str, int] = dataclasses.field(hash=False)
    source: str

    @property
    def limits(self) -> Arch | None:
        """Shared memory, registers and resident threads of the architecture; None if it is not in `ARCHS`."""
        from jax_moye.layout.resources import ARCHS  # not with `import jax_moye`: the layouts take time to load

        return ARCHS.get(f"sm_{self.arch}")

    def flops(self, dtype: str) -> float | None:
        """Peak floating-point (or integer) operations per second, two a multiply-add; None where it is not known.

        Of f32 in parts of bfloat16 those of the product itself, which takes several of bfloat16.
        """
        of_parts = dtype in DTYPES and DTYPES[dtype].parts > 0
        name = "e4m3" if dtype in FLOAT8 else dtype  # two of them are as fast as one
        rate = self.fma_per_clock.get("bf16" if of_parts else name)
        if rate is None or self.clock_mhz is None:
            return None
        products = DTYPES[dtype].products if of_parts else 1
        return 2.0 * rate * self.multiprocessors * self.clock_mhz * 1e6 / products

    def to_dict(self) -> dict[str, Any]:
        """The numbers, for JSON."""
        limits = self.limits
        return {
            "name": self.name,
            "kind": self.kind,
            "arch": f"sm_{self.arch}",
            "multiprocessors": self.multiprocessors,
            "clock_mhz": self.clock_mhz,
            "memory_bytes_per_s": self.memory_bytes_per_s,
            "l2_bytes": self.l2_bytes,
            "smem_per_sm": limits.smem_per_sm if limits else None,
            "smem_per_cta": limits.smem_per_cta if limits else None,
            "source": self.source,
        }


def _of(name, kind, arch, multiprocessors, clock_mhz, gb_per_s, l2_mib, rates, source) -> Device:
    frozen = FrozenDict(rates)
    return Device(name, kind, arch, multiprocessors, clock_mhz, gb_per_s * 1e9, int(l2_mib * MIB), frozen, source)


# fmt: off
_KNOWN = (
    # name, kind of JAX, arch, SMs, MHz, GB/s, L2 MiB, rates, source
    # 989 TFLOP/s of bf16 are 4096 FLOP x 132 x 1830 MHz; 4.8 TB/s of HBM3e; L2 as the driver reports it.
    _of("h200", "NVIDIA H200", 90, 132, 1830, 4800, 60, _OF_HOPPER, "NVIDIA H200 data sheet (SXM)"),
    # The same multiprocessors and clock; 3.35 TB/s of HBM3; 50 MB of L2 (white paper, table of H100 SXM5).
    _of("h100", "NVIDIA H100 80GB HBM3", 90, 132, 1830, 3350, 50, _OF_HOPPER, "NVIDIA H100 data sheet (SXM)"),
    # 756 TFLOP/s of bf16 are 4096 FLOP x 114 x 1620 MHz; 2 TB/s of HBM2e.
    _of("h100-pcie", "NVIDIA H100 PCIe", 90, 114, 1620, 2000, 50, _OF_HOPPER, "NVIDIA H100 data sheet (PCIe)"),
    # 312 TFLOP/s are 2048 FLOP x 108 x 1410 MHz; 2039 GB/s of HBM2e; 40 MB of L2 (white paper, table 1).
    _of("a100", "NVIDIA A100-SXM4-80GB", 80, 108, 1410, 2039, 40, _OF_A100, "NVIDIA A100 data sheet (80 GB SXM)"),
    _of("a100-pcie", "NVIDIA A100 80GB PCIe", 80, 108, 1410, 1935, 40, _OF_A100, "NVIDIA A100 data sheet (80 GB PCIe)"),
    _of("a100-40gb", "NVIDIA A100-SXM4-40GB", 80, 108, 1410, 1555, 40, _OF_A100, "NVIDIA A100 white paper, table 1"),
    # 125 TFLOP/s are 1024 FLOP x 72 x 1695 MHz; 600 GB/s of GDDR6.
    _of("a10", "NVIDIA A10", 86, 72, 1695, 600, 6, _OF_GA102, "NVIDIA A10 data sheet"),
    # 71 TFLOP/s with f32 sums are 512 FLOP x 82 x 1695 MHz; 936 GB/s of GDDR6X.
    _of("rtx3090", "NVIDIA GeForce RTX 3090", 86, 82, 1695, 936, 6, _OF_GEFORCE_GA102, "NVIDIA GA102 white paper"),
    # 362 TFLOP/s are 1024 FLOP x 142 x 2490 MHz; 864 GB/s of GDDR6; 96 MB of L2 (Ada white paper, AD102).
    _of("l40s", "NVIDIA L40S", 89, 142, 2490, 864, 96, _OF_ADA, "NVIDIA L40S data sheet"),
    # 121 TFLOP/s are 1024 FLOP x 58 x 2040 MHz; 300 GB/s of GDDR6; 48 MB of L2.
    _of("l4", "NVIDIA L4", 89, 58, 2040, 300, 48, _OF_ADA, "NVIDIA L4 data sheet"),
    # 165 TFLOP/s with f32 sums are 512 FLOP x 128 x 2520 MHz; 1008 GB/s of GDDR6X; 72 MB of L2.
    _of("rtx4090", "NVIDIA GeForce RTX 4090", 89, 128, 2520, 1008, 72, _OF_GEFORCE_ADA, "NVIDIA Ada white paper"),
    # 2250 TFLOP/s are 8192 FLOP x 148 x 1856 MHz; 8 TB/s of HBM3e; L2 as the driver reports it.
    _of("b200", "NVIDIA B200", 100, 148, 1856, 8000, 126, _OF_B200, "NVIDIA HGX B200 data sheet"),
    # 210 TFLOP/s with f32 sums are 512 FLOP x 170 x 2407 MHz; 1792 GB/s of GDDR7; 96 MB of L2.
    _of("rtx5090", "NVIDIA GeForce RTX 5090", 120, 170, 2407, 1792, 96, _OF_GEFORCE_BLACKWELL,
        "NVIDIA RTX Blackwell white paper"),
    # 125 TFLOP/s are 1024 FLOP x 80 x 1530 MHz; 900 GB/s of HBM2; 6 MB of L2 (V100 white paper, table 1).
    _of("v100", "Tesla V100-SXM2", 70, 80, 1530, 900, 6, _OF_VOLTA, "NVIDIA V100 white paper (SXM2)"),
    # 65 TFLOP/s are 1024 FLOP x 40 x 1590 MHz; 320 GB/s of GDDR6; 4 MB of L2.
    _of("t4", "Tesla T4", 75, 40, 1590, 320, 4, _OF_TURING, "NVIDIA Turing white paper, T4"),
)
# fmt: on

DEVICES: Mapping[str, Device] = MappingProxyType({device.name: device for device in _KNOWN})
# What stands for an architecture that is named without a device.
_USUAL = {70: "v100", 75: "t4", 80: "a100", 86: "a10", 89: "l40s", 90: "h200", 100: "b200", 120: "rtx5090"}


def find_device(device: str | int | Device | jax.Device | None = None) -> Device:
    """The GPU that is meant.

    Args:
      device: a name in `DEVICES`, e.g. "h200"; an architecture, e.g. 90 or "sm_90", for the usual device of it; a
        `Device`; a CUDA device of JAX. None: this process's first GPU, unless `cuda_target` or JAX_MOYE_CUDA_ARCH name
        an architecture; without any an H200.

    Raises:
      TypeError: device is none of these, or a device of JAX that is no GPU.
      ValueError: no such GPU is known; the message lists those that are.
    """
    if isinstance(device, Device):
        return device
    if device is None:
        arch = target.cuda_arch()  # of a block or of the environment, or of the GPUs here
        here = _first_gpu_of_jax()
        return here if here is not None and here.arch == arch else _usual(arch)
    if isinstance(device, int) and not isinstance(device, bool):
        return _usual(device)
    if isinstance(device, str):
        name = device.lower().removeprefix("nvidia ").replace(" ", "-").replace("_", "-")
        if name in DEVICES:
            return DEVICES[name]
        number = name.removeprefix("sm-").removesuffix("a")
        if number.isdecimal():
            return _usual(int(number))
        raise _unknown(device)
    if isinstance(device, jax.Device):
        if not hasattr(device, "compute_capability"):
            raise TypeError(f"device is a GPU, and {device} is a device of {device.platform}")
        return of_jax(device)
    raise TypeError(f"device is a name such as 'h200', an architecture such as 90, or a jax.Device, not {device!r}")


def _unknown(device: object) -> ValueError:
    return ValueError(f"device {device!r} is not known; names are {', '.join(DEVICES)}, or an architecture such as 90")


def _usual(arch: int) -> Device:
    if arch not in _USUAL:
        raise _unknown(arch)
    return DEVICES[_USUAL[arch]]


def _first_gpu_of_jax() -> Device | None:
    if _compat.cuda_arch() is None:
        return None
    return of_jax(jax.devices("cuda")[0])


@functools.cache
def of_jax(device: jax.Device) -> Device:
    """A GPU of this process: the table's device of its kind; what JAX and the driver say of it where there is none.

    Args:
      device: of the CUDA platform.
    """
    kind = device.device_kind
    arch = round(10 * float(device.compute_capability))
    multiprocessors = getattr(device, "core_count", None)
    # The longest: "NVIDIA A100-SXM4-80GB" is not an "NVIDIA A10", nor an "NVIDIA L40S" an "NVIDIA L4".
    matches = [known for known in _KNOWN if _is_kind(kind, known.kind) and known.arch == arch]
    known = max(matches, key=lambda known: len(known.kind), default=None)
    if known is not None and multiprocessors in (None, known.multiprocessors):
        return known
    driver = _of_driver()
    bus = (driver.get("memory_khz"), driver.get("bus_bits"))
    return Device(
        name=kind.lower().replace(" ", "-"),
        kind=kind,
        arch=arch,
        multiprocessors=multiprocessors or driver.get("multiprocessors") or 1,
        clock_mhz=driver["khz"] / 1e3 if driver.get("khz") else None,
        memory_bytes_per_s=2e3 * bus[0] * bus[1] / 8 if bus[0] and bus[1] else None,  # two transfers a clock
        l2_bytes=driver.get("l2"),
        fma_per_clock=FrozenDict(_RATES.get(arch, {})),
        source="the driver",
    )


def _is_kind(kind: str, known: str) -> bool:
    """Whether JAX's name of a device begins with a name of the table and does not go on within a word."""
    return kind.startswith(known) and not kind[len(known) : len(known) + 1].isalnum()


# CUdevice_attribute, CUDA driver API.
_ATTRIBUTES = {"khz": 13, "multiprocessors": 16, "memory_khz": 36, "bus_bits": 37, "l2": 38}


def _of_driver() -> dict[str, int]:
    """What the CUDA driver says of its first device; nothing where there is no driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return {}
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), 0):
        return {}
    found = {}
    for name, attribute in _ATTRIBUTES.items():
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0 and value.value > 0:
            found[name] = value.value
    return found
