"""How long things take on the device: arms in turns, intervals of ratios, clocks while they ran. Used by bench.py."""

from __future__ import annotations

import bisect
import ctypes
import dataclasses
import math
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


@dataclasses.dataclass
class Arm:
    """One way to compute a row. `run(i)` dispatches the i-th program, `wait` returns when all of them are done."""

    name: str
    run: Callable[[int], Sequence[Any]]
    wait: Callable[[], None]
    times: list[float] = dataclasses.field(default_factory=list)  # seconds per product, one for each turn
    spans: list[tuple[float, float]] = dataclasses.field(default_factory=list)  # of each turn, for Sampler
    dispatch: float = 0.0  # largest share of a turn that went into dispatching
    repeats: int = 1  # how often one dispatch computes each of its products
    # Where it is compiled ahead of the first run: traces (here), and returns what compiles (in any thread).
    lower: Callable[[], Callable[[], None]] | None = None
    method: str = ""  # how the device is given its work, for the report

    def turn(self, programs: int, passes: int, group: int) -> float:
        """Runs every program `passes` times; returns seconds per product."""
        start = time.perf_counter()
        for _ in range(passes):
            for i in range(programs):
                self.run(i)
        dispatched = time.perf_counter()
        self.wait()
        end = time.perf_counter()
        self.spans.append((start, end))
        self.dispatch = max(self.dispatch, (dispatched - start) / (end - start))
        return (end - start) / (passes * programs * group * self.repeats)

    def again(self) -> Arm:
        """The same, with nothing measured."""
        return dataclasses.replace(self, times=[], spans=[], dispatch=0.0)


def take_turns(
    arms: list[Arm],
    programs: int,
    group: int,
    *,
    alternations: int,
    turn_ms: float,
    warmup_ms: float,
    idle_ms: float = 0.0,
) -> float:
    """Lets the arms take turns and fills in their times.

    Args:
      arms: at least one.
      programs: number of programs of each arm.
      group: products in a program, each computed `Arm.repeats` times.
      alternations: turns of each arm.
      turn_ms: length of a turn.
      warmup_ms: how long they take turns before the first one that counts.
      idle_ms: the device rests so long before each turn, for times at its highest clock. The first pass after it does
        not count.

    Returns:
      The seconds that all turns took together.
    """
    passes = {}
    for arm in arms:
        arm.turn(programs, 1, group)  # compiles, loads, captures
        once = arm.turn(programs, 1, group) * programs * group * arm.repeats
        passes[arm.name] = max(1, math.ceil(turn_ms / 1000 / once))
    begin = time.monotonic()
    while time.monotonic() - begin < warmup_ms / 1000:
        for arm in arms:
            arm.turn(programs, passes[arm.name], group)
    for arm in arms:
        arm.spans.clear()
        arm.dispatch = 0.0
    for alternation in range(alternations):
        # Every other round backwards: no arm always runs behind the same other one.
        for arm in arms if alternation % 2 == 0 else reversed(arms):
            if idle_ms:
                time.sleep(idle_ms / 1000)
                before = arm.dispatch
                arm.turn(programs, 1, group)
                arm.spans.pop()
                arm.dispatch = before
            arm.times.append(arm.turn(programs, passes[arm.name], group))
    return round(time.monotonic() - begin, 3)


def ratio_interval(numerator: Sequence[float], denominator: Sequence[float], draws: int = 2000) -> tuple[float, float]:
    """Bootstrap interval (95 %) of median(numerator) / median(denominator); turns are drawn in pairs, as they ran."""
    rng = np.random.default_rng(0)
    pick = rng.integers(0, len(numerator), (draws, len(numerator)))
    ratios = np.median(np.asarray(numerator)[pick], axis=1) / np.median(np.asarray(denominator)[pick], axis=1)
    low, high = np.quantile(ratios, (0.025, 0.975))
    return float(low), float(high)


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
