"""What the driver and NVML say of the first GPU: its L2 cache, and its clock, power and temperature while it works."""

from __future__ import annotations

import bisect
import ctypes
import statistics
import threading
import time
from collections.abc import Sequence

# Bits of nvmlDeviceGetCurrentClocksThrottleReasons that say why a busy GPU's clock is below its maximum.
THROTTLE_REASONS = {
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x20: "thermal, software",
    0x40: "thermal, hardware",
    0x80: "power brake",
}


class Sampler:
    """Clock, power and temperature of the first GPU every 20 ms, read through NVML, never set.

    Nothing where there is no NVML.
    """

    FIELDS = ("sm_mhz", "watts", "celsius")

    def __init__(self) -> None:
        """Starts reading."""
        self._at: list[float] = []
        self._samples: list[tuple[float, ...]] = []  # of FIELDS, and the bits of THROTTLE_REASONS
        self._stop = threading.Event()
        try:
            self._nvml = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            return
        self._gpu = ctypes.c_void_p()
        self._nvml.nvmlInit_v2()
        if self._nvml.nvmlDeviceGetHandleByPciBusId_v2(pci_bus_id(), ctypes.byref(self._gpu)) == 0:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        sm_clock, die = 1, 0  # NVML_CLOCK_SM, NVML_TEMPERATURE_GPU
        while not self._stop.wait(0.02):
            mhz, milliwatts, celsius = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
            reasons = ctypes.c_ulonglong()
            self._nvml.nvmlDeviceGetClockInfo(self._gpu, sm_clock, ctypes.byref(mhz))
            self._nvml.nvmlDeviceGetPowerUsage(self._gpu, ctypes.byref(milliwatts))
            self._nvml.nvmlDeviceGetTemperature(self._gpu, die, ctypes.byref(celsius))
            self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpu, ctypes.byref(reasons))
            self._samples.append((mhz.value, milliwatts.value / 1000, celsius.value, reasons.value))
            self._at.append(time.perf_counter())

    def _inside(self, spans: Sequence[tuple[float, float]]) -> list[tuple[float, ...]]:
        known = len(self._at)
        inside: list[tuple[float, ...]] = []
        for start, end in spans:
            first, last = bisect.bisect_left(self._at, start, 0, known), bisect.bisect(self._at, end, 0, known)
            inside += self._samples[first:last]
        return inside

    def mean(self, field: str, spans: Sequence[tuple[float, float]]) -> int | None:
        """Mean of `field` over the spans of time; None without samples in them."""
        column = self.FIELDS.index(field)
        inside = self._inside(spans)
        return round(statistics.fmean(sample[column] for sample in inside)) if inside else None

    def throttled(self, spans: Sequence[tuple[float, float]]) -> list[str]:
        """What held the clock down in at least a tenth of the samples of the spans of time."""
        inside = self._inside(spans)
        counts = {name: sum(bool(int(sample[-1]) & bit) for sample in inside) for bit, name in THROTTLE_REASONS.items()}
        return [name for name, count in counts.items() if count and count >= len(inside) / 10]

    def close(self) -> None:
        """Ends reading."""
        self._stop.set()


def _first_gpu() -> tuple[ctypes.CDLL, ctypes.c_int] | None:
    """The CUDA driver and the first device of it; None without a driver."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None
    device = ctypes.c_int()
    driver.cuInit(0)
    driver.cuDeviceGet(ctypes.byref(device), 0)
    return driver, device


def l2_bytes() -> int:
    """Size of the first GPU's L2 cache; 64 MiB where nobody says."""
    size = ctypes.c_int()
    if found := _first_gpu():
        driver, device = found
        driver.cuDeviceGetAttribute(ctypes.byref(size), 38, device)  # CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE
    return size.value or 64 << 20


def pci_bus_id() -> bytes:
    """Where the first GPU is, as NVML wants it: CUDA may count the GPUs in another order."""
    name = ctypes.create_string_buffer(32)
    if found := _first_gpu():
        driver, device = found
        driver.cuDeviceGetPCIBusId(name, len(name), device)
    return name.value
