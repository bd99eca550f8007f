"""A block of threads, run step by step, in which copies take their time and waits and barriers are needed.

`jax_moye.layout.copy` has taken effect when it returns. On a device cp.async and TMA have not: they take effect until
somebody waits for them, and other threads know it behind a barrier. A `Block` runs programs so, on NumPy, always in the
same order, and checks every access to memory as the emulator of the kernels does (cuda/moye/emu): a missing wait or
barrier is an error that names both accesses, their threads and their lines.

A program is a generator function. Its argument is a group of `Threads`, which do everything together, statement by
statement; operands are sequences with one Tensor for each of them. It yields where threads wait for others:

>>> import numpy as np
>>> from jax_moye.layout import CopyAtom, cp_async, make_fragment_like, make_tiled_copy
>>> four = make_tiled_copy(CopyAtom(cp_async(16), "float32"), "(32,1)", "(4,1)")
>>> def program(cta, wait=True):
...     to_shared = [four.get_slice(t) for t in range(32)]
...     cta.copy(four, [t.partition_S(gA) for t in to_shared], [t.partition_D(sA) for t in to_shared])
...     cta.cp_async_commit_group()
...     if wait:
...         cta.cp_async_wait_group(0)
...     yield cta.sync_threads()
...     sources = [four.get_slice(31 - t).partition_S(sA) for t in range(32)]
...     cta.copy(sources, [make_fragment_like(s) for s in sources])
>>> block = Block(32)
>>> gA = block.global_memory(np.arange(128, dtype=np.float32).reshape(128, 1), "A")
>>> sA = block.shared("float32", (128, 1), "sA")
>>> for step in block.steps(program):
...     print(step.what)
cp.async A -> sA
cp.async.commit_group
cp.async.wait_group 0
bar.sync 0
load sA
>>> block.run(lambda cta: program(cta, wait=False))  # doctest: +ELLIPSIS
Traceback (most recent call last):
jax_moye.layout.race.RaceError: race on shared memory sA[...]: plain load (read) by thread 0 ...
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jax_moye.layout.errors import AtomMismatch, InvalidShape, InvalidType
from jax_moye.layout.mbarrier import Mbarrier, TmaLoad, TmaStore
from jax_moye.layout.race import Access, BarrierError, BlockError, Clocks, DeadlockError, Memory, RaceError, place
from jax_moye.layout.tensor import Tensor, make_tensor
from jax_moye.layout.threads import Threads
from jax_moye.layout.waits import Bar, CpAsync, Step, Wait

__all__ = ["BarrierError", "Block", "BlockError", "DeadlockError", "Mbarrier", "RaceError", "Step", "Threads"]

Program = Callable[[Threads], Any]
_MODES = ("lazy", "eager", "random")


@dataclasses.dataclass
class _Running:
    """A program that runs."""

    threads: Threads
    steps: Generator[Any, None, Any] | None
    wait: Wait | None = None


class Block:
    """Threads of one block, their shared memory, and the global memory that they were given.

    Args:
      threads: how many; their numbers begin at 0.
      mode: when asynchronous copies take effect: "lazy", at the wait that guarantees it; "eager", at once; "random",
        somewhere between.
      seed: of mode "random".
      detect_races: whether to check that accesses are ordered. Without, programs compute with what they find: until a
        copy takes effect its destination is all NaN.
    """

    def __init__(self, threads: int, *, mode: str = "lazy", seed: int = 0, detect_races: bool = True):
        """See the class."""
        if not isinstance(threads, int) or not 0 < threads <= 1024:
            raise InvalidShape("Block", (threads,), "a block has 1 to 1024 threads")
        if mode not in _MODES:
            raise InvalidType("Block", (mode,), f"a mode is one of {', '.join(_MODES)}")
        self.mode, self.detect_races = mode, detect_races
        self.seed = seed
        self.mbarriers: list[Mbarrier] = []
        self._memories: list[Memory] = []
        self._found: dict[int, tuple[np.ndarray, Memory | None]] = {}
        self._begin(threads)

    def _begin(self, threads: int) -> None:
        """A new launch: nobody knows anything, and nothing is under way."""
        self.random = random.Random(self.seed)
        self.clocks = Clocks(threads)
        self.groups = np.zeros(threads, np.int32)  # of cp.async, committed
        self.copies: list[CpAsync] = []
        self.loads: list[TmaLoad] = []
        self.stores: list[TmaStore] = []
        self.store_agents: dict[int, int] = {}
        self.store_groups: dict[int, int] = {}  # of TMA stores, committed, by thread
        self._bars: dict[int, Bar] = {}
        self._steps: list[Step] = []
        self._count = 0
        self._unyielded: Wait | None = None
        for memory in self._memories:
            memory.forget()
        for mbarrier in self.mbarriers:
            mbarrier.reset()

    # ---- Memory

    def shared(self, dtype: Any, layout: Any, name: str = "smem") -> Tensor:
        """New shared memory: MoYe.jl's `MoYeSharedArray(dtype, layout)`. It begins with garbage, all bits set."""
        tensor = make_tensor(dtype, layout)
        self._memories.append(Memory(name, "shared", tensor.data, writable=True))
        return tensor

    def global_memory(self, array: Any, name: str, *, writable: bool = False) -> Tensor:
        """An array, or a Tensor, as global memory. What is not writable cannot be raced on, and is cheaper to check."""
        tensor = array if isinstance(array, Tensor) else Tensor(np.asarray(array))
        self._memories.append(Memory(name, "global", tensor.data, writable))
        return tensor

    def mbarrier(self, name: str) -> Mbarrier:
        """Room for an mbarrier in shared memory; a thread has to initialize it."""
        found = Mbarrier(self, name)
        self.mbarriers.append(found)
        return found

    def memory_of(self, data: np.ndarray) -> Memory | None:
        """The memory that an array is a view of; None for registers."""
        known = self._found.get(id(data))
        if known is None or known[0] is not data:
            address = int(data.__array_interface__["data"][0])
            memory = next((m for m in self._memories if m.holds(address)), None)
            self._found[id(data)] = known = data, memory
        return known[1]

    # ---- Running

    def run(self, programs: Program | Mapping[Program, Sequence[int]]) -> list[Step]:
        """Runs programs to their end and gives all their steps. See `steps`."""
        return list(self.steps(programs))

    def steps(self, programs: Program | Mapping[Program, Sequence[int]]) -> Iterator[Step]:
        """Runs programs, one step of the iteration after the other: a launch.

        Each launch finds shared memory full of garbage, and no mbarrier initialized.

        Args:
          programs: a program of all threads; or several, each with its threads' numbers. A program that yields lets the
            next one go on, in their order; so a bare `yield` makes what follows a step of its own.

        Raises:
          RaceError: two accesses that nothing orders.
          DeadlockError: all threads wait.
          BarrierError: a barrier is misused, or a wait is not yielded.
          BlockError: a thread ends while what it ordered is under way, and what else the emulator reports.
        """
        everyone = range(self.clocks.threads)
        self._begin(len(everyone))
        given = dict(programs) if isinstance(programs, Mapping) else {programs: everyone}
        running = []
        for program, threads in given.items():
            group = Threads(self, np.asarray(list(threads), np.intp))
            steps = program(group)
            running.append(_Running(group, steps if isinstance(steps, Generator) else None))
            self.check_yielded(None)
        yield from self._taken()
        while any(r.steps is not None for r in running):
            moved = False
            for r in running:
                if r.steps is None or (r.wait is not None and not r.wait.done):
                    continue
                moved = True
                self._advance(r)
                yield from self._taken()
            if not moved and not self._land_load():
                waits = "\n  ".join(str(r.wait) for r in running if r.steps is not None)
                stuck = sum(len(r.threads.rows) for r in running if r.steps is not None)
                raise DeadlockError(
                    f"deadlock: {stuck} of {self.clocks.threads} threads can never run again\n  {waits}"
                )
            yield from self._taken()
        self._end()

    def _advance(self, running: _Running) -> None:
        assert running.steps is not None
        running.wait = None
        try:
            given = next(running.steps)
        except StopIteration:
            running.steps = None
            self.check_yielded(None)
            return
        self.check_yielded(given)
        if isinstance(given, Wait):
            running.wait = given
            if isinstance(given.barrier, Bar):
                self.arrive_at_bar(given.barrier, given.threads, given)
            elif isinstance(given.barrier, Mbarrier):
                given.barrier.wait(given)
        elif given is not None:
            raise BarrierError(f"a program yields what sync_threads, bar_sync or mbarrier_wait gave, not {given!r}")
        self.maybe_land()

    def check_yielded(self, given: Any) -> None:
        """A wait that was asked for and not yielded is none."""
        asked, self._unyielded = self._unyielded, None
        if asked is not None and asked is not given:
            raise BarrierError(f"{asked.what} at {asked.place} is not yielded: its threads do not wait")

    def _taken(self) -> list[Step]:
        steps, self._steps = self._steps, []
        return steps

    def _land_load(self) -> bool:
        """The newest TMA load in flight takes effect, because all threads wait; in mode "random" any of them."""
        if not self.loads:
            return False
        self.loads.pop(self.random.randrange(len(self.loads)) if self.mode == "random" else -1).land()
        return True

    def maybe_land(self) -> None:
        """Mode "random": some of what is in flight takes effect."""
        if self.mode != "random":
            return
        for c in self.copies:
            c.land(np.array([self.random.random() < 0.25 for _ in c.rows]))
        if self.loads and self.random.random() < 0.25:
            self._land_load()

    def _end(self) -> None:
        for mbarrier in self.mbarriers:
            load = mbarrier.unknown_load()
            if load is None:
                continue
            by = f"the TMA load by {self.clocks.who(load.thread)} at {load.place}"
            if load in self.loads:
                raise BlockError(f"the block exits while {by} is still in flight to its shared memory")
            if self.detect_races:
                raise BlockError(f"the block exits without having waited for {by}, which needs its shared memory")
        for store in self.stores:
            if not store.waited:
                raise BlockError(
                    f"{self.clocks.who(store.thread)} exits while its TMA store at {store.place} may still read shared "
                    "memory: it has not waited for the group"
                )
            store.write()

    # ---- What Threads and Mbarriers call

    def step(self, threads: str, what: str, state: str = "") -> None:
        """Notes a step."""
        self._steps.append(Step(self._count, threads, what, state, place()))
        self._count += 1

    def asked(self, wait: Wait) -> Wait:
        """Notes a wait that has to be yielded."""
        self.check_yielded(None)
        self._unyielded = wait
        return wait

    def bar(self, number: int) -> Bar:
        """A barrier by its number."""
        if number not in range(16):
            raise BarrierError(f"barrier id {number} at {place()} is not one of 0 to 15")
        return self._bars.setdefault(number, Bar(self.clocks.new()))

    def arrive_at_bar(self, bar: Bar, threads: Threads, wait: Wait | None) -> None:
        """Threads arrive, and wait if `wait`; the last ones complete the phase."""
        self.clocks.release(threads.rows, bar.clock)
        bar.count += len(threads.rows)
        if wait is not None:
            bar.waits.append(wait)
        if bar.count > bar.expected:
            raise BarrierError(f"{bar.count} threads arrive at a barrier of {bar.expected}")
        if bar.count < bar.expected:
            return
        for waiting in bar.waits:
            self.clocks.acquire(waiting.threads.rows, bar.clock)
            waiting.done = True
        bar.count, bar.waits, bar.clock = 0, [], self.clocks.new()

    def access(self, data: np.ndarray, index: np.ndarray, access: Access, write: bool) -> str:
        """Checks accesses of rows of agents to elements of an array; gives the memory's name, "" for registers."""
        memory = self.memory_of(data)
        if memory is None:
            return ""
        if self.detect_races or not memory.writable:
            self.clocks.check(memory, memory.granules(data, index), access, write)
        return memory.name

    def in_space(self, op: str, data: np.ndarray, space: str) -> None:
        """Raises unless an array is in shared, or in global memory."""
        memory = self.memory_of(data)
        if memory is None or memory.space != space:
            found = f"{memory.name}, {memory.space} memory" if memory else "memory that the block does not know"
            made = "Block.shared" if space == "shared" else "Block.global_memory"
            raise AtomMismatch(op, (found,), f"not in {space} memory", f"a Tensor of {made}")
