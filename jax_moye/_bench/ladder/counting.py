"""What one product of a kernel does to memory, and which instructions it needs: counted by the emulator."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from jax_moye._format import text_table
from jax_moye._kernels.configs import GemmConfig, find_config
from jax_moye._kernels.dtypes import numpy_dtype

SHAPE = (512, 256, 128)  # what is counted unless told otherwise: eight tiles of 128x128
LARGEST_COUNTED = 2**28  # multiply-adds; minutes in the emulator
SECTOR = 32  # bytes


def count(config: str | GemmConfig, shape: Sequence[int] = SHAPE, order: str = "NN") -> dict[str, Any]:
    """What one product does, counted by the emulator on one multiprocessor.

    Args:
      config: of the table, or its name.
      shape: (m, n, k).
      order: of the operands, first letter a, second b; N is row-major, T is stored transposed.

    Returns:
      {"ctas", "barriers": {...}, "shared": {...}, "global": {...}, "instructions": {...}}. Instructions are those of a
      warp, and a wgmma or a TMA copy is one. `shared` are the wavefronts of instructions that move data between
      registers and shared memory, and of cp.async's stores, and of them the `bank_conflicts`, behind the first of each
      phase; what TMA writes there and wgmma reads is not among them. A TMA copy moves whole sectors where the rows of
      the matrices are multiples of 32 bytes; elsewhere `sectors` is None.

    Raises:
      RuntimeError: the emulator refused the launch, found a race, or the product is wrong.
    """
    name = config if isinstance(config, str) else config.name
    return _count(name, tuple(shape), order)


class MbarrierEvent(NamedTuple):
    """What happened to an mbarrier in the emulator, and its state after it.

    Attributes:
      what: PTX's instruction, "TMA load", or "complete_tx": bytes have come. A wait that does not find its phase
        complete ends with "(waits)".
      threads: of the CTA, the first and the last; (-1, -1) for TMA.
      mbarrier: which one, in the order of their places in shared memory.
      phase: how many phases are complete.
      pending: arrivals that this phase misses.
      arrivals: of a phase, all of them.
      nbytes: bytes that are expected and have not come.
      place: the line of the kernel.
    """

    what: str
    threads: tuple[int, int]
    mbarrier: int
    phase: int
    pending: int
    arrivals: int
    nbytes: int
    place: str


def trace(config: str | GemmConfig, shape: Sequence[int], order: str = "NN") -> list[MbarrierEvent]:
    """What happens to the mbarriers of the first CTA while it computes a product, in the emulator.

    Neighbouring threads that do the same one after the other are one event, with the state after the last of them.

    Args:
      config: of the table, or its name.
      shape: (m, n, k).
      order: of the operands, as in `count`.

    Raises:
      RuntimeError: as `count`.
    """
    name = config if isinstance(config, str) else config.name
    m, n, k = shape
    outcome = _emulated(name, (m, n, k), order, {"trace": True})[0]
    raw = [event for event in outcome["trace"] if event[1] == (0, 0, 0)]
    places = sorted({event[3] for event in raw})
    found: list[MbarrierEvent] = []
    for what, _block, thread, offset, *state in raw:
        event = MbarrierEvent(what, (thread, thread), places.index(offset), *state)
        if found and _continues(found[-1], event):
            event = event._replace(threads=(found.pop().threads[0], thread))
        found.append(event)
    return found


def _continues(last: MbarrierEvent, event: MbarrierEvent) -> bool:
    """Whether the next thread does the same, or the next lane that speaks for its warp."""
    same = (last.what, last.mbarrier, last.place) == (event.what, event.mbarrier, event.place)
    return same and event.threads[0] - last.threads[1] in (1, 32)


@functools.lru_cache(64)
def _count(name: str, shape: tuple[int, int, int], order: str) -> dict[str, Any]:
    counting = {"detect_races": False, "count_transactions": True}
    outcome, whole_rows = _emulated(name, shape, order, counting)
    return _digest(outcome["counters"], whole_rows)


def _emulated(
    name: str, shape: tuple[int, int, int], order: str, options: dict[str, Any]
) -> tuple[dict[str, Any], bool]:
    """A product on one multiprocessor: what the emulator reports, and whether rows are whole sectors."""
    from jax_moye import _moye_cpu  # here, so that importing this does not load it

    config = find_config(name)
    m, n, k = shape
    memory = numpy_dtype(config.dtype)
    out_name = config.dtype if config.dtype in config.out_dtypes else config.accumulator
    out = numpy_dtype(out_name)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, size).astype(memory) for size in ((m, k), (k, n)))
    d = np.zeros((m, n), out)
    outcome = _moye_cpu.emulate(
        name,
        (a if order[0] == "N" else a.T).ravel(),
        (b if order[1] == "N" else b.T).ravel(),
        d,
        sizes=[1, m, n, k],
        a_strides=[m * k, k, 1] if order[0] == "N" else [m * k, 1, m],
        b_strides=[n * k, 1, n] if order[1] == "N" else [n * k, k, 1],
        d_strides=[m * n, n, 1],
        out_dtype=out_name,
        multiprocessors=1,
        **options,
    )
    if not outcome["ok"]:
        raise RuntimeError(f"{name}: {outcome['message']}")
    if not np.array_equal(d, (a.astype(np.float64) @ b.astype(np.float64)).astype(out)):
        raise RuntimeError(f"{name}: the product of {m}x{n}x{k} {order} is wrong")
    pitches = (k if order[0] == "N" else m, n if order[1] == "N" else k)
    whole = all(pitch * np.dtype(memory).itemsize % SECTOR == 0 for pitch in pitches) and n * d.itemsize % SECTOR == 0
    return outcome, whole


def _digest(counters: dict[str, int], whole_rows: bool) -> dict[str, Any]:
    """The emulator's counters by what they say."""
    c = counters
    through_shared = ("shared_load", "shared_store", "ldmatrix", "stmatrix", "cp_async")
    wavefronts = sum(c[f"{kind}_wavefronts"] for kind in through_shared)
    # The ideal of ldmatrix and stmatrix is one wavefront for each matrix, which is a phase of theirs.
    conflicts = sum(c[f"{kind}_wavefronts"] - c[f"{kind}_ideal_wavefronts"] for kind in ("ldmatrix", "stmatrix"))
    conflicts += sum(c[f"{kind}_bank_conflicts"] for kind in ("shared_load", "shared_store", "cp_async"))
    tma = c["tma_load_bytes"] + c["tma_store_bytes"]
    useful = c["global_load_bytes"] + c["global_store_bytes"] + c["cp_async_bytes"] + tma
    sectors = None
    if not tma or whole_rows:
        sectors = sum(c[f"{kind}_sectors"] for kind in ("global_load", "global_store", "cp_async")) + tma // SECTOR
    return {
        "ctas": c["ctas"],
        "barriers": {"cta": c["barriers"], "mbarrier": c["mbarrier_phases"], "cluster": c["cluster_barriers"]},
        "shared": {"wavefronts": wavefronts, "bank_conflicts": conflicts},
        "global": {
            "useful_bytes": useful,
            "sectors": sectors,
            "sectors_per_useful_byte": None if sectors is None else sectors / useful,
            "sector_efficiency": None if sectors is None else useful / (SECTOR * sectors),
        },
        "instructions": {
            "ldmatrix": c["ldmatrix"],
            "stmatrix": c["stmatrix"],
            "mma": c["mma"],
            "wgmma": c["wgmma"],
            "cp_async": c["cp_async_requests"],
            "tma_load": c["tma_loads"],
            "tma_store": c["tma_stores"],
            "shared_load": c["shared_load_requests"],
            "shared_store": c["shared_store_requests"],
            "global_load": c["global_load_requests"],
            "global_store": c["global_store_requests"],
        },
    }


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """The counters of two rungs (what `count` returns) that differ, one per line; or that none does."""

    def flat(counted: dict[str, Any], path: str = "") -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in counted.items():
            found |= flat(value, f"{path}{key} ") if isinstance(value, dict) else {path + key: value}
        return found

    old, new = flat(before), flat(after)
    changed = [key for key in new if old[key] != new[key]]
    if not changed:
        return "no counter differs"

    def number(value: Any) -> str:
        return "-" if value is None else f"{value:.4f}" if isinstance(value, float) else str(value)

    return "\n".join(
        text_table(
            [["", "before", "after"], *([key, number(old[key]), number(new[key])] for key in changed)], numbers=True
        )
    )
