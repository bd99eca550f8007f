"""`Threads` of a `Block`: what a program calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jax_moye.layout import execute
from jax_moye.layout.atoms import CopyAtom
from jax_moye.layout.errors import AtomMismatch, InvalidShape, InvalidType, ProfileMismatch
from jax_moye.layout.execute import Parts
from jax_moye.layout.mbarrier import Mbarrier, TmaLoad, TmaStore
from jax_moye.layout.race import Access, BarrierError, place
from jax_moye.layout.tensor import Tensor
from jax_moye.layout.tiled_copy import ThrCopy, TiledCopy
from jax_moye.layout.tiled_mma import TiledMma
from jax_moye.layout.waits import Bar, CpAsync, Wait

if TYPE_CHECKING:
    from jax_moye.layout.block import Block


def _one_memory(op: str, parts: Parts) -> tuple[np.ndarray, np.ndarray]:
    """The memory that all threads' parts lie in, and their elements (rows, elements)."""
    if isinstance(parts.memory, np.ndarray):
        return parts.memory, parts.all_indices
    first = parts.memory[0]
    if any(m is not first for m in parts.memory):
        raise ProfileMismatch(op, (), "the threads' parts do not lie in one memory")
    return first, parts.all_indices


class Threads:
    """Threads of a block that do everything together: what a program is given. `cta[:32]` are the first 32 of them.

    Names are those of cuda/moye/arch, which has PTX's words. Copies and gemm take operands as in `jax_moye.layout`, for
    these threads: a sequence of one Tensor for each of them, or, with a TiledCopy, the whole tile.
    """

    def __init__(self, block: Block, rows: np.ndarray):
        """See `Block.steps`."""
        if (
            rows.size == 0
            or rows.min() < 0
            or rows.max() >= block.clocks.threads
            or len(set(rows.tolist())) < len(rows)
        ):
            raise InvalidShape("Threads", (rows.tolist(),), f"no threads of a block of {block.clocks.threads}")
        self.block, self.rows = block, rows

    def __len__(self) -> int:
        """How many."""
        return len(self.rows)

    def __getitem__(self, which: int | slice) -> Threads:
        """Some of them."""
        return Threads(self.block, np.atleast_1d(self.rows[which]))

    @property
    def name(self) -> str:
        """As reports say it: "thread 3", "threads 0-31"."""
        first, last = int(self.rows[0]), int(self.rows[-1])
        return f"thread {first}" if len(self.rows) == 1 else f"threads {first}-{last}"

    def __repr__(self) -> str:
        """The name."""
        return self.name

    # ---- Copies and math

    def copy(self, *operands: Any) -> None:
        """`copy(src, dst)` or `copy(tiled_copy, src, dst)` of these threads. Asynchronous with a cp.async atom."""
        self.block.check_yielded(None)
        if len(operands) == 2:
            self._copy_elements(*operands)
            return
        if len(operands) != 3 or not isinstance(operands[0], (TiledCopy, ThrCopy)):
            raise InvalidType("copy", operands, "copy(src, dst) or copy(tiled_copy, src, dst)")
        how, src, dst = operands
        threads = 1 if isinstance(how, ThrCopy) else how.threads
        if threads != len(self.rows):
            raise ProfileMismatch(
                "copy", (str(how), self.name), f"{len(self.rows)} threads execute a copy of {threads}"
            )
        execute.check_sides(src, dst)
        if isinstance(how, ThrCopy):
            atom = how.tiled.atom
            sides = [Parts([t.data], [t.indices()]) for x in (src, dst) for t in self._operand(x)]
        else:
            atom = how.atom
            src, dst = (x if isinstance(x, Tensor) else self._operand(x) for x in (src, dst))
            sides = [execute.copy_parts(how, x, tv) for x, tv in ((src, how.layout_S_TV), (dst, how.layout_D_TV))]
        execute.check_copy(atom, *sides)
        if atom.op.ptx.startswith("cp.async"):
            self._cp_async(atom, *sides)
        else:
            self._copy_now(atom, threads, *sides)

    def _copy_now(self, atom: CopyAtom, threads: int, src: Parts, dst: Parts) -> None:
        op = atom.op.ptx.partition(".")[0] or "plain"
        sides = []
        for parts, write, space in ((src, False, atom.op.src_space), (dst, True, atom.op.dst_space)):
            data, index = self._tracked(parts)
            if data is not None and space == "rmem":
                raise AtomMismatch("copy", (atom, data.dtype.name), f"{op} has registers there", "a fragment")
            if space == "smem":
                self.block.in_space("copy", data if data is not None else np.empty(0), "shared")
            sides.append("" if data is None else self._access(data, index, op, write))
        execute.move_copy(atom, threads, src, dst, written=not sides[0])
        self.block.step(self.name, _moved(op, *sides))

    def _copy_elements(self, src: Any, dst: Any) -> None:
        sources, targets = (self._operand(x) for x in (src, dst))
        execute.check_sides(sources, targets)
        if [s.size for s in sources] != [d.size for d in targets]:
            raise ProfileMismatch("copy", (sources[0].layout, targets[0].layout), "the numbers of elements differ")
        names = [self._touch(tensors, "plain", write) for tensors, write in ((sources, False), (targets, True))]
        for s, d in zip(sources, targets, strict=True):
            values = s.values()
            if not names[0]:
                execute.check_written(values)
            d.data[d.indices()] = values.astype(d.dtype)
        self.block.step(self.name, _moved("plain", *names))

    def fill(self, tensors: Any, value: Any) -> None:
        """Every element of each thread's Tensor = value; `zeros!` of MoYe.jl with 0."""
        self.block.check_yielded(None)
        targets = self._operand(tensors)
        name = self._touch(targets, "plain", True)
        for t in targets:
            t.assign(value)
        self.block.step(self.name, f"fill {name}".rstrip())

    def gemm(self, mma: TiledMma, d: Any, a: Any, b: Any, c: Any) -> None:
        """`gemm` of these threads, whose fragments or parts the operands are. Not of wgmma, which is asynchronous."""
        self.block.check_yielded(None)
        if not isinstance(mma, TiledMma) or mma.threads != len(self.rows):
            raise ProfileMismatch("gemm", (str(mma), self.name), f"{len(self.rows)} threads execute it")
        if mma.atom.smem_operands:
            raise AtomMismatch(
                "gemm", (mma.atom,), "a Block does not model wgmma, which is asynchronous", "an mma.sync atom"
            )
        names = [self._touch(self._operand(x), "plain", False) for x in (a, b) if isinstance(x, Sequence)]
        execute.gemm(mma, self._operand(d), self._operand(a), self._operand(b), c)
        self.block.step(self.name, f"gemm {' '.join(sorted({n for n in names if n}))}".rstrip())

    def _operand(self, x: Any) -> list[Tensor]:
        """One tensor for each thread."""
        tensors = execute.tensors_of("copy", [x] if isinstance(x, Tensor) else x, len(self.rows))
        if len(x) != len(self.rows) and not isinstance(x, Tensor):
            raise ProfileMismatch("copy", (self.name,), f"{len(x)} tensors for {len(self.rows)} threads")
        return tensors

    def _touch(self, tensors: list[Tensor], op: str, write: bool) -> str:
        data, index = self._tracked(Parts([t.data for t in tensors], [t.indices() for t in tensors]))
        return "" if data is None else self._access(data, index, op, write)

    def _tracked(self, parts: Parts) -> tuple[np.ndarray | None, np.ndarray]:
        """The memory of the parts and their elements; None where they are registers."""
        arrays = [parts.memory] if isinstance(parts.memory, np.ndarray) else parts.memory
        memories = {id(m): m for m in map(self.block.memory_of, arrays)}
        if list(memories.values()) == [None]:
            return None, parts.all_indices
        return _one_memory("copy", parts)

    def _access(self, data: np.ndarray, index: np.ndarray, op: str, write: bool) -> str:
        what = f"{op} {'store' if write else 'load'}" if op == "plain" else op
        return self.block.access(data, index, self.block.clocks.by_threads(self.rows, what), write)

    # ---- cp.async

    def _cp_async(self, atom: CopyAtom, src: Parts, dst: Parts) -> None:
        block, rows = self.block, self.rows
        for parts, side, space in ((src, "src", "global"), (dst, "dst", "shared")):
            first = parts.memory if isinstance(parts.memory, np.ndarray) else parts.memory[0]
            block.in_space(f"cp.async, {side}", first, space)
        source, target = _one_memory("copy", src), _one_memory("copy", dst)
        read = block.access(*source, block.clocks.by_threads(rows, "cp.async"), False)
        groups = block.groups[rows].copy()
        order = block.clocks.value[:, rows]
        copies = Access(block.clocks.cp_async_agent(rows), groups + 1, order, "cp.async")
        written = block.access(*target, copies, True)
        copy = CpAsync(rows, groups, source, target, np.ones(len(rows), bool))
        if block.mode == "eager":
            copy.land(copy.pending.copy())
        else:
            target[0].view(np.uint8).reshape(-1, target[0].itemsize)[target[1]] = 0xFF
            block.copies.append(copy)
        block.step(self.name, f"cp.async {read} -> {written}")
        block.maybe_land()

    def cp_async_commit_group(self) -> None:
        """Makes a group of the cp.async that these threads have ordered since the last one: `cp_async_commit`."""
        self.block.check_yielded(None)
        self.block.groups[self.rows] += 1
        self.block.step(self.name, "cp.async.commit_group")
        self.block.maybe_land()

    def cp_async_wait_group(self, groups_in_flight: int = 0) -> None:
        """Waits until at most so many of the groups of these threads, the newest, are under way: `cp_async_wait`.

        Only each thread itself then knows that its copies have landed. Others know behind a barrier.
        """
        self.block.check_yielded(None)
        self._wait_groups(groups_in_flight)
        self.block.step(self.name, f"cp.async.wait_group {groups_in_flight}")
        self.block.maybe_land()

    def cp_async_wait_all(self) -> None:
        """Waits for all cp.async of these threads, committed or not: MoYe.jl's `cp_async_wait()`."""
        self.block.check_yielded(None)
        self.block.groups[self.rows] += 1
        self._wait_groups(0)
        self.block.step(self.name, "cp.async.wait_all")

    def _wait_groups(self, allowed: int) -> None:
        clocks, rows = self.block.clocks, self.rows
        done = np.zeros(clocks.threads, np.int32)
        done[rows] = np.maximum(self.block.groups[rows] - allowed, 0)
        for copy in self.block.copies:
            copy.land(copy.groups < done[copy.rows])
        self.block.copies = [copy for copy in self.block.copies if copy.pending.any()]
        agents = clocks.cp_async_agent(rows)
        clocks.value[0, rows, agents] = np.maximum(clocks.value[0, rows, agents], done[rows])

    # ---- Barriers

    def sync_threads(self) -> Wait:
        """bar.sync 0 of all threads of the block. `yield` it."""
        return self.bar_sync(0, self.block.clocks.threads)

    def bar_sync(self, number: int, threads: int) -> Wait:
        """A barrier of so many threads, whole warps. `yield` it."""
        bar = self._bar("bar.sync", number, threads)
        wait = Wait(self, f"bar.sync {number}", place(), barrier=bar)
        self.block.step(self.name, wait.what)
        return self.block.asked(wait)

    def bar_arrive(self, number: int, threads: int) -> None:
        """Arrives at such a barrier without waiting."""
        self.block.check_yielded(None)
        bar = self._bar("bar.arrive", number, threads)
        self.block.step(self.name, f"bar.arrive {number}")
        self.block.arrive_at_bar(bar, self, None)

    def _bar(self, what: str, number: int, threads: int) -> Bar:
        self._whole_warps(what)
        bar = self.block.bar(number)
        if bar.count and bar.expected != threads:
            raise BarrierError(f"{what} {number} at {place()} expects {threads} threads, others {bar.expected}")
        bar.expected = threads
        return bar

    def sync_warp(self) -> None:
        """__syncwarp of each of these threads' warps, which all are whole."""
        self.block.check_yielded(None)
        self._whole_warps("__syncwarp")
        for warp in np.unique(self.rows // 32):
            lanes = self.rows[self.rows // 32 == warp]
            clock = self.block.clocks.new()
            self.block.clocks.release(lanes, clock)
            self.block.clocks.acquire(lanes, clock)
        self.block.step(self.name, "__syncwarp")

    def _whole_warps(self, what: str) -> None:
        """All lanes of a warp execute the same: an instruction that is .aligned."""
        here = set(self.rows.tolist())
        for warp in {t // 32 for t in here}:
            lanes = range(32 * warp, min(32 * warp + 32, self.block.clocks.threads))
            if absent := [t for t in lanes if t not in here]:
                raise BarrierError(
                    f"divergent warp: {what} by {self.name} at {place()} without {self.block.clocks.who(absent[0])}"
                )

    # ---- mbarriers and TMA

    def mbarrier_init(self, mbarrier: Mbarrier, count: int) -> None:
        """Of one thread: an mbarrier whose phase is complete with `count` arrivals and the bytes that are expected."""
        mbarrier.init(self._one("mbarrier.init"), count)

    def mbarrier_arrive(self, mbarrier: Mbarrier) -> None:
        """Each of these threads arrives."""
        for thread in self._each():
            mbarrier.arrive(thread, "mbarrier.arrive")

    def mbarrier_expect_tx(self, mbarrier: Mbarrier, nbytes: int) -> None:
        """The phase waits for so many bytes more."""
        mbarrier.expect_tx(self._one("mbarrier.expect_tx"), nbytes, "mbarrier.expect_tx")

    def mbarrier_arrive_expect_tx(self, mbarrier: Mbarrier, nbytes: int) -> None:
        """The phase waits for so many bytes more, and this thread arrives."""
        what = "mbarrier.arrive.expect_tx"
        mbarrier.expect_tx(self._one(what), nbytes, what)
        mbarrier.arrive(int(self.rows[0]), what)

    def mbarrier_wait(self, mbarrier: Mbarrier, parity: int) -> Wait:
        """Waits until the phase of this parity is complete: the first phase has parity 0. `yield` it."""
        self.block.check_yielded(None)
        mbarrier.check_wait(self.rows, parity)
        wait = Wait(self, "mbarrier.try_wait", place(), barrier=mbarrier, parity=parity)
        self.block.step(self.name, f"mbarrier.try_wait {mbarrier.name} parity {parity}", mbarrier.state)
        return self.block.asked(wait)

    def fence_mbarrier_init(self) -> None:
        """TMA sees the mbarriers that these threads have initialized."""
        for thread in self._each():
            for mbarrier in self.block.mbarriers:
                mbarrier.fence_init(thread)
        self.block.step(self.name, "fence.mbarrier_init")

    def fence_proxy_async(self) -> None:
        """What these threads have written, and know of, is seen by the TMA that is ordered behind it."""
        for thread in self._each():
            for mbarrier in self.block.mbarriers:
                mbarrier.fence_init(thread)
        self.block.clocks.fence(self.rows)
        self.block.step(self.name, "fence.proxy.async")

    def tma_load(self, mbarrier: Mbarrier, src: Tensor, dst: Tensor) -> None:
        """Of one thread: orders TMA to copy a box of global to shared memory, whose bytes the mbarrier counts."""
        TmaLoad(self.block, self._one("TMA load"), mbarrier, src, dst).issue()

    def tma_store(self, src: Tensor, dst: Tensor) -> None:
        """Of one thread: orders TMA to copy a box of shared to global memory, in a group of this thread."""
        TmaStore(self.block, self._one("TMA store"), src, dst).issue()

    def tma_store_commit_group(self) -> None:
        """Makes a group of the TMA stores that the thread has ordered since the last one."""
        TmaStore.commit(self.block, self._one("cp.async.bulk.commit_group"))

    def tma_store_wait_group(self, groups_in_flight: int = 0, *, read: bool = False) -> None:
        """Waits until at most so many groups of the thread's stores are under way; `read`: read their source."""
        TmaStore.wait(self.block, self._one("cp.async.bulk.wait_group"), groups_in_flight, read)

    def _one(self, what: str) -> int:
        self.block.check_yielded(None)
        if len(self.rows) != 1:
            raise AtomMismatch(what, (self.name,), f"{len(self.rows)} threads would each do it", "one thread: cta[0]")
        return int(self.rows[0])

    def _each(self) -> list[int]:
        self.block.check_yielded(None)
        return [int(t) for t in self.rows]


def _moved(op: str, src: str, dst: str) -> str:
    """As steps say it: "load sA", "ldmatrix sA"; of registers nothing is said."""
    if op != "plain":
        return f"{op} {src or dst}"
    if src and dst:
        return f"copy {src} -> {dst}"
    return f"load {src}" if src else f"store {dst}" if dst else "copy of registers"
