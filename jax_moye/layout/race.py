"""Which access to memory is ordered after which: the happens-before checker of `jax_moye.layout.block`.

The rules are those of the emulator (cuda/moye/emu/race.cc). An agent is what accesses memory on its own: a thread, a
thread's cp.async copies, the TMA loads to an mbarrier, a thread's TMA stores. A clock says of every agent up to which
of its events one knows. Memory remembers its last write and the reads since then; a new access is a race unless the
clock of who makes it has reached those events.

The async proxy, through which TMA accesses shared memory, sees what threads wrote only behind a fence.proxy.async. A
clock therefore has two parts: what one knows, and what lies behind one's last fence.
"""

from __future__ import annotations

import dataclasses
import pathlib
import sys

import numpy as np

_HERE = str(pathlib.Path(__file__).parent)
_MOST_ASYNC_AGENTS = 64


class BlockError(RuntimeError):
    """What a block of threads must not do. The message says who did it, at which line of the program."""


class RaceError(BlockError):
    """Two accesses to the same memory, one of them a write, and nothing orders the second one after the first."""


class DeadlockError(BlockError):
    """Threads wait for something that nobody will do."""


class BarrierError(BlockError):
    """A barrier or mbarrier used in a way that no program means."""


def place() -> str:
    """The line that called into this package: "seeds.py:147"."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{pathlib.Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


class Memory:
    """Shared or global memory, and what the checker remembers of each granule (element) of it.

    Attributes:
      name: what reports call it.
      space: "shared" or "global".
      writable: whether the program may write to it; memory that is only read cannot be raced on.
    """

    def __init__(self, name: str, space: str, data: np.ndarray, writable: bool):
        """See the class. `data` is contiguous."""
        self.name, self.space, self.writable = name, space, writable
        self.data = data
        self.begin = int(data.__array_interface__["data"][0])
        self.forget()

    def forget(self) -> None:
        """Nobody has touched it; what is shared is garbage."""
        count = self.data.size
        self.granule = self.data.itemsize
        self.write_agent = np.zeros(count, np.int32)
        self.write_event = np.zeros(count, np.int32)  # 0: never
        self.write_site = np.zeros(count, np.int32)
        self.read_event: np.ndarray | None = None  # (granule, agent), since the last write
        self.read_site: np.ndarray | None = None
        if self.space == "shared":
            self.data.view(np.uint8)[:] = 0xFF

    def holds(self, address: int) -> bool:
        """Whether an address lies in it."""
        return self.begin <= address < self.begin + self.data.nbytes

    def granules(self, data: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Of elements of a view of this memory, (rows, elements): the granules, (rows, granules)."""
        size = data.itemsize
        if size % self.granule:
            self._refine(size)
        parts = size // self.granule
        first = (int(data.__array_interface__["data"][0]) - self.begin) // self.granule
        found = first + index[:, :, None] * parts + np.arange(parts)
        return found.reshape(index.shape[0], -1)

    def _refine(self, size: int) -> None:
        """Smaller granules, for a view with smaller elements."""
        times = self.granule // size
        self.write_agent, self.write_event, self.write_site = (
            np.repeat(x, times) for x in (self.write_agent, self.write_event, self.write_site)
        )
        if self.read_event is not None and self.read_site is not None:
            self.read_event, self.read_site = (np.repeat(x, times, axis=0) for x in (self.read_event, self.read_site))
        self.granule = size


@dataclasses.dataclass(frozen=True)
class Access:
    """Who accesses memory: one row for each of several agents that do so in the same statement.

    Attributes:
      agents: (rows,).
      events: (rows,), the agents' event numbers.
      order: what each knows, (2, rows, agents).
      what: "cp.async", "plain load", ...
      asynchronous: through the async proxy.
    """

    agents: np.ndarray
    events: np.ndarray
    order: np.ndarray
    what: str
    asynchronous: bool = False


class Clocks:
    """The clocks of a block's threads, and the check of every access.

    Agents are numbered: the threads, then the threads' cp.async copies, then the asynchronous ones.
    """

    def __init__(self, threads: int):
        """See the class."""
        self.threads = threads
        self.agents = 2 * threads + _MOST_ASYNC_AGENTS
        self.value = np.zeros((2, threads, self.agents), np.int32)
        everyone = np.arange(threads)
        self.value[0, everyone, everyone] = 1
        self.owners: list[int] = []  # the threads that the asynchronous agents work for
        self.sites: list[tuple[str, str]] = [("", "")]
        self._numbers: dict[tuple[str, str], int] = {}

    # ---- Clocks

    def new(self) -> np.ndarray:
        """A clock that knows nothing: of a barrier."""
        return np.zeros((2, self.agents), np.int32)

    def release(self, rows: np.ndarray, into: np.ndarray) -> None:
        """What these threads know goes into a clock; what they do from here on does not."""
        np.maximum(into, self.value[:, rows].max(axis=1), out=into)
        self.value[0, rows, rows] += 1

    def acquire(self, rows: np.ndarray, known: np.ndarray) -> None:
        """These threads know what a clock knows."""
        self.value[:, rows] = np.maximum(self.value[:, rows], known[:, None])

    def fence(self, rows: np.ndarray) -> None:
        """fence.proxy.async of these threads."""
        self.value[1, rows] = self.value[0, rows]
        self.value[0, rows, rows] += 1

    def event(self, thread: int) -> int:
        """The number of the event that the thread is in."""
        return int(self.value[0, thread, thread])

    def knows(self, thread: int, other: int, event: int) -> bool:
        """Whether a thread knows of an event of another agent."""
        return bool(self.value[0, thread, other] >= event)

    def cp_async_agent(self, threads: np.ndarray) -> np.ndarray:
        """The agents of threads' cp.async copies. Their events are groups, counted from 1."""
        return self.threads + threads

    def new_agent(self, owner: int) -> int:
        """An agent for asynchronous operations of a thread."""
        if len(self.owners) == _MOST_ASYNC_AGENTS:
            raise BlockError(f"more than {_MOST_ASYNC_AGENTS} mbarriers and threads with TMA in a block")
        self.owners.append(owner)
        return 2 * self.threads + len(self.owners) - 1

    # ---- Accesses

    def by_threads(self, rows: np.ndarray, what: str) -> Access:
        """Plain accesses of threads."""
        return Access(rows, self.value[0, rows, rows], self.value[:, rows], what)

    def check(self, memory: Memory, granules: np.ndarray, access: Access, write: bool) -> None:
        """Raises unless every access is ordered after those that it conflicts with; remembers it.

        Args:
          memory: where.
          granules: (rows, granules of each).
          access: who.
          write: whether they write.

        Raises:
          RaceError: an access is not ordered after an earlier one.
          BlockError: a write to memory that is only read.
        """
        if not memory.writable:
            if write:
                who = self.who(int(access.agents[0]))
                raise BlockError(f"write to read-only memory: {access.what} by {who} at {place()} to {memory.name}")
            return
        rows = np.arange(len(granules))[:, None]
        site = self._site(access.what)
        writer, event = memory.write_agent[granules], memory.write_event[granules]
        # The async proxy sees another agent's write behind a fence only.
        part = ((writer < 2 * self.threads) if access.asynchronous else np.zeros(writer.shape, bool)).astype(np.intp)
        unseen = access.order[part, rows, writer] < event
        if unseen.any():
            row, i = (int(x) for x in np.argwhere(unseen)[0])
            at = int(granules[row, i])
            ordered = bool(access.order[0, row, writer[row, i]] >= event[row, i])
            other = int(writer[row, i]), int(event[row, i]), int(memory.write_site[at])
            self._fail(memory, at, access, row, write, other, True, ordered)
        if not write:
            if memory.read_event is None or memory.read_site is None:
                count = len(memory.write_agent)
                memory.read_event = np.zeros((count, self.agents), np.int32)
                memory.read_site = np.zeros((count, self.agents), np.int32)
            memory.read_event[granules, access.agents[:, None]] = access.events[:, None]
            memory.read_site[granules, access.agents[:, None]] = site
            return
        if memory.read_event is not None and memory.read_site is not None:
            late = memory.read_event[granules] > access.order[0][:, None]
            if late.any():
                row, i, agent = (int(x) for x in np.argwhere(late)[0])
                at = int(granules[row, i])
                other = agent, int(memory.read_event[at, agent]), int(memory.read_site[at, agent])
                self._fail(memory, at, access, row, write, other, False, False)
            memory.read_event[granules] = 0
        # Of several threads of the same statement that write to one place, none is ordered after another.
        memory.write_agent[granules] = rows
        twice = memory.write_agent[granules] != rows
        if twice.any():
            row, i = (int(x) for x in np.argwhere(twice)[0])
            at = int(granules[row, i])
            last = int(memory.write_agent[at])
            other = int(access.agents[row]), int(access.events[row]), site
            self._fail(memory, at, access, last, write, other, True, False)
        memory.write_agent[granules] = access.agents[:, None]
        memory.write_event[granules] = access.events[:, None]
        memory.write_site[granules] = site

    # ---- Words

    def who(self, agent: int) -> str:
        """The thread that an agent is, or works for: "thread 37 (warp 1 lane 5)"."""
        if agent >= 2 * self.threads:
            agent = self.owners[agent - 2 * self.threads]
        thread = agent % self.threads
        return f"thread {thread} (warp {thread // 32} lane {thread % 32})"

    def _site(self, what: str) -> int:
        key = what, place()
        if key not in self._numbers:
            self._numbers[key] = len(self.sites)
            self.sites.append(key)
        return self._numbers[key]

    def _fail(
        self,
        memory: Memory,
        granule: int,
        access: Access,
        row: int,
        write: bool,
        other: tuple[int, int, int],
        other_writes: bool,
        ordered: bool,
    ) -> None:
        agent, event, site = other
        what, where = self.sites[site]
        kinds = ("read", "write")
        first = f"{access.what} ({kinds[write]}) by {self.who(int(access.agents[row]))} at {place()}"
        second = f"{what} ({kinds[other_writes]}) by {self.who(agent)} at {where}"
        text = f"race on {memory.space} memory {memory.name}[{granule}]: {first} is "
        if ordered:
            raise RaceError(f"{text}ordered after {second}, but no fence.proxy.async lies between them")
        raise RaceError(f"{text}not ordered after {second}. {self._advice(int(access.agents[row]), agent, event)}")

    def _advice(self, agent: int, other: int, event: int) -> str:
        """What would order an access of an agent after an event of another one."""
        threads = self.threads
        if threads <= other < 2 * threads:
            if self.knows(other - threads, other, event):
                return "That thread has waited for its copy, but no barrier behind the wait tells this one."
            return "That copy may still be under way: cp_async_wait_group, and a barrier for other threads, come first."
        if other >= 2 * threads:
            return "That is TMA's: a wait for the mbarrier of a load, or for the group of a store, comes first."
        if agent >= 2 * threads:
            return "TMA is ordered after what its thread knows: wait until the other one has arrived somewhere."
        if agent % threads == other:
            return "The copy is this thread's own, and under way: what it writes must not be touched before its wait."
        return "A barrier between the two would order them."
