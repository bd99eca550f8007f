"""What is under way in a `Block`: the steps done, waits that are not over, barriers and cp.async in flight."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_moye.layout.mbarrier import Mbarrier

if TYPE_CHECKING:
    from jax_moye.layout.threads import Threads


@dataclasses.dataclass(frozen=True)
class Step:
    """What a group of threads has done.

    Attributes:
      number: of the step, from 0.
      threads: who: "threads 0-31".
      what: what: "cp.async A -> sA".
      state: of the barrier that it concerns, after it; or "".
      place: the line of the program.
    """

    number: int
    threads: str
    what: str
    state: str
    place: str

    def __str__(self) -> str:
        """In a line."""
        return f"{self.number:4}  {self.threads:<15} {self.what:<40} {self.state}".rstrip()


@dataclasses.dataclass
class Wait:
    """What a program yields: its threads wait until `done`."""

    threads: Threads
    what: str
    place: str
    done: bool = False
    barrier: Any = None
    parity: int = 0

    def __str__(self) -> str:
        """For the report of a deadlock."""
        target = f" for {self.barrier.describe(self.parity)}" if isinstance(self.barrier, Mbarrier) else ""
        missing = f" ({self.barrier.count} of {self.barrier.expected} threads)" if isinstance(self.barrier, Bar) else ""
        return f"{self.threads.name}: waits in {self.what}{missing}{target} at {self.place}"


@dataclasses.dataclass
class Bar:
    """One of the block's 16 barriers."""

    clock: np.ndarray
    expected: int = 0
    count: int = 0
    arrived: list[np.ndarray] = dataclasses.field(default_factory=list)
    waits: list[Wait] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class CpAsync:
    """A cp.async of several threads, in flight for those whose `pending` is set."""

    rows: np.ndarray
    groups: np.ndarray
    source: tuple[np.ndarray, np.ndarray]  # memory, (rows, elements)
    target: tuple[np.ndarray, np.ndarray]
    pending: np.ndarray

    def land(self, due: np.ndarray) -> None:
        """Takes effect for these rows."""
        now = due & self.pending
        self.target[0][self.target[1][now]] = self.source[0][self.source[1][now]]
        self.pending &= ~due
