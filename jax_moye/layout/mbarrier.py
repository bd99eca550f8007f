"""mbarriers and TMA of a `Block`: the rules of cuda/moye/emu/mbarrier.cc and tma.cc.

An mbarrier is 64 bits of shared memory in which hardware and threads count. It has

- a *phase*, of which a wait names the lowest bit, its parity: 0 at first, and flipped each time a phase is complete;
- the *arrivals* that the phase still misses; their number is given once, at the initialization;
- the *bytes* that the phase still misses: a thread says how many will come (expect_tx), and TMA takes away what came.

A phase is complete when neither arrivals nor bytes are missing. The next one then begins with all its arrivals missing.

TMA moves bytes here: it does not round floats to TF32, as a tensor map may ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from jax_moye.layout.errors import Misaligned, ProfileMismatch
from jax_moye.layout.race import Access, BarrierError, place
from jax_moye.layout.tensor import Tensor

if TYPE_CHECKING:
    from jax_moye.layout.block import Block

_MOST = (1 << 20) - 1  # arrivals, and bytes of a phase


class Mbarrier:
    """An mbarrier of a block: `Block.mbarrier` makes one, `Threads.mbarrier_*` use it.

    Attributes:
      name: what reports call it.
      phase: how many phases are complete.
      count: arrivals of a phase; 0 before the initialization.
      pending: arrivals that this phase misses.
      nbytes: bytes that this phase expects and that have not come.
    """

    def __init__(self, block: Block, name: str):
        """See `Block.mbarrier`."""
        self.block, self.name = block, name
        self.reset()

    def reset(self) -> None:
        """Not initialized, as at the begin of a launch."""
        self.phase = self.count = self.pending = self.nbytes = 0
        self.place = ""
        self._owner = self._init_event = self._fence_event = 0
        self._unfenced = False
        self._arrived, self._complete = self.block.clocks.new(), self.block.clocks.new()
        self._waits: list[Any] = []
        self._agent = -1  # of the loads, whose events are their numbers
        self._loads = 0
        self._in_flight: list[int] = []
        self._last_load: TmaLoad | None = None

    def __repr__(self) -> str:
        """Name and state."""
        return f"mbarrier {self.name}: {self.state}"

    @property
    def state(self) -> str:
        """The phase, and what it misses."""
        if not self.count:
            return "not initialized"
        return f"phase {self.phase}: {self.pending} of {self.count} arrivals, {self.nbytes} bytes missing"

    def describe(self, parity: int) -> str:
        """For the report of a deadlock."""
        return (
            f"mbarrier {self.name} (initialized at {self.place}) parity {parity}: {self.phase} phases complete, "
            f"{self.pending} of {self.count} arrivals and {self.nbytes} bytes missing in this one"
        )

    def init(self, thread: int, count: int) -> None:
        """mbarrier.init by a thread."""
        if not 1 <= count <= _MOST:
            raise BarrierError(f"mbarrier.init at {place()}: {count} arrivals are not 1 to {_MOST}")
        if self.count:
            raise BarrierError(f"{self._subject('mbarrier.init', thread)} is one already")
        self.count = self.pending = count
        self.place = place()
        self._owner, self._init_event = thread, self.block.clocks.event(thread)
        self._unfenced = True
        self._step(thread, "mbarrier.init")

    def fence_init(self, thread: int) -> None:
        """A fence of the thread: TMA that is ordered behind it sees the initialization."""
        if self._unfenced and thread == self._owner:
            self._unfenced = False
            self._fence_event = self.block.clocks.event(thread)

    def check(self, what: str, thread: int, *, by_tma: bool = False) -> None:
        """Raises unless the thread may use it."""
        if not self.count:
            who = self.block.clocks.who(thread)
            raise BarrierError(f"{what} by {who} at {place()}: no mbarrier has been initialized at {self.name}")
        if not self.block.detect_races:
            return
        own = thread == self._owner
        if not (own or self.block.clocks.knows(thread, self._owner, self._init_event)):
            raise BarrierError(f"{self._subject(what, thread)}: no barrier lies between its initialization and this")
        fenced = self._fence_event and (own or self.block.clocks.knows(thread, self._owner, self._fence_event))
        if by_tma and not fenced:
            raise BarrierError(
                f"{self._subject(what, thread)}: no fence_mbarrier_init lies between its initialization and this"
            )

    def arrive(self, thread: int, what: str) -> None:
        """An arrival of a thread."""
        self.check(what, thread)
        if self.pending == 0:
            raise BarrierError(
                f"{self._subject(what, thread)} has its {self.count} arrivals already and waits for {self.nbytes} bytes"
            )
        self.block.clocks.release(np.array([thread]), self._arrived)
        self.pending -= 1
        self._complete_if_due()
        self._step(thread, what)
        self.block.maybe_land()

    def expect_tx(self, thread: int, nbytes: int, what: str) -> None:
        """The phase waits for more bytes."""
        self.check(what, thread)
        self.nbytes += nbytes
        if abs(self.nbytes) > _MOST:
            raise BarrierError(
                f"{self._subject(what, thread)} waits for {self.nbytes} bytes, more than the {_MOST} it can count"
            )
        if what == "mbarrier.expect_tx":
            self._step(thread, what)

    def check_wait(self, threads: np.ndarray, parity: int) -> None:
        """Raises unless the threads may wait."""
        for thread in threads.tolist():
            self.check("mbarrier.try_wait", thread)
        if parity not in (0, 1):
            raise BarrierError(f"mbarrier.try_wait at {place()}: parity {parity} is not 0 or 1")

    def wait(self, wait: Any) -> None:
        """Threads wait: the phase of that parity is complete, or they will be told."""
        if self.phase & 1 != wait.parity:
            self._tell(wait)
        else:
            self._waits.append(wait)

    def _tell(self, wait: Any) -> None:
        self.block.clocks.acquire(wait.threads.rows, self._complete)
        wait.done = True

    def _complete_if_due(self) -> None:
        if self.pending or self.nbytes:
            return
        for load in self.block.loads:
            if load.mbarrier is self:
                raise BarrierError(
                    f"mbarrier {self.name} (initialized at {self.place}): phase {self.phase} is complete while the "
                    f"{load.nbytes} bytes of the TMA load by {self.block.clocks.who(load.thread)} at {load.place} are "
                    "still in flight: fewer bytes were expected than are loaded"
                )
        self.phase += 1
        self.pending = self.count
        np.maximum(self._complete, self._arrived, out=self._complete)
        waits, self._waits = self._waits, []
        for wait in waits:
            self.wait(wait)

    # ---- TMA loads

    def load_begins(self, load: TmaLoad) -> tuple[int, int]:
        """A load is ordered: its agent and number."""
        self._last_load, thread = load, load.thread
        if self._agent < 0:
            self._agent = self.block.clocks.new_agent(thread)
        self.block.clocks.owners[self._agent - 2 * self.block.clocks.threads] = thread
        self._loads += 1
        self._in_flight.append(self._loads)
        return self._agent, self._loads

    def load_ends(self, number: int, nbytes: int, thread: int) -> None:
        """Its bytes have come."""
        self.nbytes -= nbytes
        self._in_flight.remove(number)
        self._arrived[0, self._agent] = self._in_flight[0] - 1 if self._in_flight else self._loads
        self._complete_if_due()
        self.block.step("TMA", f"complete_tx {nbytes} bytes: {self.name}", self.state)

    def unknown_load(self) -> TmaLoad | None:
        """The last load, unless a thread has waited for the phase that it belongs to."""
        if self._last_load is None or self.block.clocks.value[0, :, self._agent].max() >= self._loads:
            return None
        return self._last_load

    def _subject(self, what: str, thread: int) -> str:
        who = self.block.clocks.who(thread)
        return f"{what} by {who} at {place()}: mbarrier {self.name} (initialized at {self.place})"

    def _step(self, thread: int, what: str) -> None:
        self.block.step(f"thread {thread}", f"{what} {self.name}", self.state)


def _checked_box(what: str, box: Tensor, other: Tensor) -> int:
    """The bytes of a box, whose two sides must have the same elements."""
    if box.size != other.size or box.dtype != other.dtype:
        raise ProfileMismatch(what, (box.layout, other.layout), "the two sides of a box have the same elements")
    nbytes = box.size * box.data.itemsize
    if nbytes % 16:
        raise Misaligned(what, (box.layout,), f"a box of {nbytes} bytes is no multiple of 16")
    return nbytes


class TmaLoad:
    """A TMA load: a box of global memory that comes to shared memory at some time."""

    def __init__(self, block: Block, thread: int, mbarrier: Mbarrier, src: Tensor, dst: Tensor):
        """See `Threads.tma_load`."""
        self.block, self.thread, self.mbarrier, self.src, self.dst = block, thread, mbarrier, src, dst
        self.nbytes = _checked_box("TMA load", src, dst)
        self.number = 0
        self.place = place()

    def issue(self) -> None:
        """Orders it."""
        block, thread = self.block, np.array([self.thread])
        block.in_space("TMA load, src", self.src.data, "global")
        block.in_space("TMA load, dst", self.dst.data, "shared")
        self.mbarrier.check("TMA load", self.thread, by_tma=True)
        source, target = self.src.indices()[None], self.dst.indices()[None]
        read = block.access(self.src.data, source, block.clocks.by_threads(thread, "TMA load"), False)
        agent, self.number = self.mbarrier.load_begins(self)
        order = block.clocks.value[:, thread]
        access = Access(np.array([agent]), np.array([self.number]), order, "TMA load", asynchronous=True)
        written = block.access(self.dst.data, target, access, True)
        block.step(f"thread {self.thread}", f"TMA load {read} -> {written}", self.mbarrier.state)
        if block.mode == "eager":
            self.land()
            return
        self.dst.data.view(np.uint8).reshape(-1, self.dst.data.itemsize)[target] = 0xFF
        block.loads.append(self)
        block.maybe_land()

    def land(self) -> None:
        """Its bytes come."""
        self.dst.data[self.dst.indices()] = self.src.values()
        self.mbarrier.load_ends(self.number, self.nbytes, self.thread)


class TmaStore:
    """A TMA store: a box of shared memory that is read, and comes to global memory, at some time."""

    def __init__(self, block: Block, thread: int, src: Tensor, dst: Tensor):
        """See `Threads.tma_store`."""
        self.block, self.thread, self.src, self.dst = block, thread, src, dst
        _checked_box("TMA store", src, dst)
        self.group = self._groups(block, thread)
        self.values: np.ndarray | None = None
        self.waited = self.written = False
        self.place = place()

    @staticmethod
    def _groups(block: Block, thread: int) -> int:
        return block.store_groups.get(thread, 0)

    def issue(self) -> None:
        """Orders it."""
        block, thread = self.block, np.array([self.thread])
        block.in_space("TMA store, src", self.src.data, "shared")
        block.in_space("TMA store, dst", self.dst.data, "global")
        written = block.access(
            self.dst.data, self.dst.indices()[None], block.clocks.by_threads(thread, "TMA store"), True
        )
        if self.thread not in block.store_agents:
            block.store_agents[self.thread] = block.clocks.new_agent(self.thread)
        agent = np.array([block.store_agents[self.thread]])
        order = block.clocks.value[:, thread]
        access = Access(agent, np.array([self.group + 1]), order, "TMA store", asynchronous=True)
        read = block.access(self.src.data, self.src.indices()[None], access, False)
        block.stores.append(self)
        block.step(f"thread {self.thread}", f"TMA store {read} -> {written}")
        if block.mode == "eager":
            self.write()

    def read(self) -> None:
        """Its source is read."""
        if self.values is None:
            self.values = self.src.values()

    def write(self) -> None:
        """It has come to global memory."""
        self.read()
        if not self.written:
            self.written = True
            self.dst.data[self.dst.indices()] = self.values

    @staticmethod
    def commit(block: Block, thread: int) -> None:
        """cp.async.bulk.commit_group."""
        block.store_groups[thread] = TmaStore._groups(block, thread) + 1
        block.step(f"thread {thread}", "cp.async.bulk.commit_group")

    @staticmethod
    def wait(block: Block, thread: int, allowed: int, read: bool) -> None:
        """cp.async.bulk.wait_group."""
        done = max(TmaStore._groups(block, thread) - allowed, 0)
        for store in block.stores:
            if store.thread == thread and store.group < done:
                store.waited = True
                store.read()
                if not read:
                    store.write()
        block.stores = [s for s in block.stores if not (s.waited and s.written)]
        if thread in block.store_agents:
            agent = block.store_agents[thread]
            block.clocks.value[0, thread, agent] = max(block.clocks.value[0, thread, agent], done)
        block.step(f"thread {thread}", f"cp.async.bulk.wait_group{'.read' if read else ''} {allowed}")
