"""The same planted fault in the emulator and in `jax_moye.layout.block`: both report it, and in the same words.

The kernels are those of reports.cc and sm90.cc; here are the same programs for a Block, by the same names.
"""

from __future__ import annotations

import re

import cxx
import numpy as np
import pytest
from emulator.support import HERE, run

from jax_moye.layout import CopyAtom, Layout, cp_async, make_tensor, make_tiled_copy
from jax_moye.layout.block import Block, BlockError
from jax_moye.layout.tensor import Tensor, local_tile

COPY4 = make_tiled_copy(CopyAtom(cp_async(4), "uint32"), "(64,1)", "(1,1)")
WORD = Layout("(1,1):(0,0)")
BOX_BYTES = 16 * 16 * 4


class Case:
    """A block with the memory of the emulator's test programs, and their helpers."""

    def __init__(self, threads=64, **options):
        self.block = Block(threads, **options)
        self.words = self.block.shared("uint32", (256,), "words")
        self.boxes = self.block.shared("uint32", "(16,16,2):(16,1,256)", "boxes")
        self.input = self.block.global_memory(np.arange(64 * 64, dtype=np.uint32).reshape(64, 64), "in")
        self.output = self.block.global_memory(np.zeros((64, 64), np.uint32), "out", writable=True)
        self.bars = [self.block.mbarrier(f"bar{i}") for i in range(2)]

    def word(self, i):
        return Tensor(self.words.data, WORD, int(i))

    def store(self, cta, place=lambda t: t):
        cta.fill([self.word(place(t)) for t in cta.rows], 1)

    def load(self, cta, place=lambda t: t):
        cta.copy([self.word(place(t)) for t in cta.rows], [make_tensor("uint32", WORD) for t in cta.rows])

    def copy4(self, cta, first=0, to=0):
        src = [Tensor(self.input.data, WORD, first + int(t)) for t in cta.rows]
        cta.copy(COPY4, src, [self.word(to + t) for t in cta.rows])

    def make_mbarriers(self, cta, count, arrivals=1):
        for bar in self.bars[:count]:
            cta[0].mbarrier_init(bar, arrivals)
        cta[0].fence_mbarrier_init()
        return cta.sync_threads()

    def box(self, i=0):
        return self.boxes[None, None, i]

    def load_box(self, cta, i=0, column=0, nbytes=BOX_BYTES):
        """Thread 0 expects bytes, unless 0, and orders the box of `in` at a column to box i."""
        if nbytes:
            cta[0].mbarrier_arrive_expect_tx(self.bars[0], nbytes)
        cta[0].tma_load(self.bars[0], local_tile(self.input, (16, 16), (0, column)), self.box(i))

    def write_out(self, cta, i=0):
        """Four words of each of 64 threads, out of box i."""
        parts = [Tensor(self.boxes.data, Layout("4:64"), 256 * i + int(t)) for t in cta.rows]
        out = [Tensor(self.output.data, Layout("4:256"), int(t) // 16 * 64 + int(t) % 16) for t in cta.rows]
        cta.copy(parts, out)

    def stage(self, cta):
        cta.fill([Tensor(self.boxes.data, Layout("4:64"), int(t)) for t in cta.rows], 1)


# ---- reports.cc ----------------------------------------------------------------------------------------------------


def missing_barrier(case, cta):
    case.store(cta)
    case.load(cta, lambda t: (t + 1) % 64)


def missing_barrier_before_reuse(case, cta):
    case.store(cta)
    yield cta.sync_threads()
    case.load(cta, lambda t: 63 - t)
    case.store(cta)


def one_late_reader(case, cta):
    case.store(cta[0])
    yield cta.sync_threads()
    case.load(cta[:63], lambda t: 0)
    yield cta.sync_threads()
    case.load(cta[63], lambda t: 0)
    case.store(cta[0])


def missing_warp_sync(case, cta):
    case.store(cta[:32])
    case.load(cta[:32], lambda t: t ^ 1)


def arrive_instead_of_sync(case, cta):
    cta[32:].bar_arrive(1, 64)
    case.load(cta[32:], lambda t: t - 32)
    case.store(cta[:32])
    yield cta[:32].bar_sync(1, 64)


def no_wait(case, cta):
    case.copy4(cta)
    cta.cp_async_commit_group()
    case.load(cta)


def wait_off_by_one(case, cta):
    case.copy4(cta)
    cta.cp_async_commit_group()
    case.copy4(cta, 64, 64)
    cta.cp_async_commit_group()
    cta.cp_async_wait_group(1)
    case.load(cta)
    case.load(cta, lambda t: 64 + t)


def no_commit(case, cta):
    case.copy4(cta)
    cta.cp_async_wait_group(0)
    case.load(cta)


def wait_without_barrier(case, cta):
    case.copy4(cta)
    cta.cp_async_wait_all()
    case.load(cta, lambda t: t ^ 1)


def barrier_without_wait(case, cta):
    case.copy4(cta)
    cta.cp_async_commit_group()
    yield cta.sync_threads()
    case.load(cta, lambda t: 63 - t)


def overwritten_in_flight(case, cta):
    case.copy4(cta)
    cta.cp_async_commit_group()
    case.store(cta)


def copied_twice(case, cta):
    case.copy4(cta)
    case.copy4(cta, 64)


# ---- sm90.cc -------------------------------------------------------------------------------------------------------


def load_ok(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta)
    yield cta.mbarrier_wait(case.bars[0], 0)
    case.write_out(cta)


def expect_late_ok(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta, nbytes=0)
    cta[0].mbarrier_expect_tx(case.bars[0], BOX_BYTES)
    cta[0].mbarrier_arrive(case.bars[0])
    yield cta.mbarrier_wait(case.bars[0], 0)
    case.write_out(cta)


def load_no_wait(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta)
    yield cta.sync_threads()
    case.write_out(cta)


def load_wait_by_one(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta)
    yield cta[0].mbarrier_wait(case.bars[0], 0)
    cta.sync_warp()
    case.write_out(cta)


def wrong_parity(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta)
    yield cta.sync_threads()
    yield cta.mbarrier_wait(case.bars[0], 1)
    case.write_out(cta)


def wrong_parity_of_producer(case, cta):
    yield case.make_mbarriers(cta, 2)
    yield cta[0].mbarrier_wait(case.bars[1], 0)


def expect_too_few(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta)
    case.load_box(cta, 1, column=1, nbytes=0)
    yield cta.mbarrier_wait(case.bars[0], 0)
    case.write_out(cta, 1)


def expect_too_many(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta, nbytes=BOX_BYTES + 16)
    yield cta.mbarrier_wait(case.bars[0], 0)


def expect_twice(case, cta):
    yield case.make_mbarriers(cta, 1)
    cta[0].mbarrier_arrive_expect_tx(case.bars[0], BOX_BYTES)
    cta[0].mbarrier_arrive_expect_tx(case.bars[0], BOX_BYTES)


def early_refill(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta)
    yield cta.mbarrier_wait(case.bars[0], 0)
    case.write_out(cta)
    cta.sync_warp()
    case.load_box(cta)
    yield cta.mbarrier_wait(case.bars[0], 1)


def load_over_stores(case, cta, fence=False):
    yield case.make_mbarriers(cta, 1)
    case.stage(cta)
    if fence:
        cta.fence_proxy_async()
    yield cta.sync_threads()
    case.load_box(cta)
    yield cta.mbarrier_wait(case.bars[0], 0)
    case.write_out(cta)


def load_over_stores_ok(case, cta):
    yield from load_over_stores(case, cta, fence=True)


def load_in_flight_at_exit(case, cta):
    yield case.make_mbarriers(cta, 1)
    case.load_box(cta)


def no_fence_after_init(case, cta):
    cta[0].mbarrier_init(case.bars[0], 1)
    yield cta.sync_threads()
    case.load_box(cta)


def no_barrier_after_init(case, cta):
    cta[0].mbarrier_init(case.bars[0], 1)
    cta[0].fence_mbarrier_init()
    cta[40].mbarrier_arrive(case.bars[0])


def uninitialized(case, cta):
    cta[40].mbarrier_arrive(case.bars[0])


def initialized_twice(case, cta):
    yield case.make_mbarriers(cta, 1)
    cta[0].mbarrier_init(case.bars[0], 2)


def arrive_too_early(case, cta):
    yield case.make_mbarriers(cta, 1, 32)
    cta[:32].mbarrier_arrive(case.bars[0])
    case.store(cta[:32])
    yield cta[32:].mbarrier_wait(case.bars[0], 0)
    case.load(cta[32:], lambda t: t - 32)


def poll_forever(case, cta):
    yield case.make_mbarriers(cta, 1)
    yield cta[32:].mbarrier_wait(case.bars[0], 0)


def staged_stores(bug):
    """Two boxes are staged one after the other in the same place and stored."""

    def program(case, cta):
        for i in range(2):
            if i == 1:
                if bug != "store_no_wait":
                    cta[0].tma_store_wait_group(0, read=True)
                if bug != "store_no_barrier_after_wait":
                    yield cta.sync_threads()
            case.stage(cta)
            if bug not in ("store_no_fence", "store_late_fence_ok"):
                cta.fence_proxy_async()
            if bug != "store_no_barrier":
                yield cta.sync_threads()
            if bug == "store_late_fence_ok":
                cta[0].fence_proxy_async()
            cta[0].tma_store(case.box(), local_tile(case.output, (16, 16), (i, 0)))
            cta[0].tma_store_commit_group()
        if bug != "store_no_wait_at_exit":
            cta[0].tma_store_wait_group(0)

    program.__name__ = bug
    return program


OF_REPORTS = [
    *(missing_barrier, missing_barrier_before_reuse, one_late_reader, missing_warp_sync, arrive_instead_of_sync),
    *(no_wait, wait_off_by_one, no_commit, wait_without_barrier, barrier_without_wait, overwritten_in_flight),
    copied_twice,
]
OF_SM90 = [
    *(load_no_wait, load_wait_by_one, wrong_parity, wrong_parity_of_producer, expect_too_few, expect_too_many),
    *(expect_twice, early_refill, load_over_stores, load_in_flight_at_exit, no_fence_after_init),
    *(no_barrier_after_init, uninitialized, initialized_twice, arrive_too_early, poll_forever),
    *map(staged_stores, ["store_no_fence", "store_no_barrier", "store_no_wait", "store_no_barrier_after_wait"]),
    staged_stores("store_no_wait_at_exit"),
]
GOOD = [load_ok, expect_late_ok, load_over_stores_ok, *map(staged_stores, ["store_ok", "store_late_fence_ok"])]


def report(program, **options):
    """What a Block reports, or "ok"."""
    case = Case(**options)
    try:
        case.block.run(lambda cta: program(case, cta))
    except BlockError as error:
        return str(error)
    return "ok"


def essence(message):
    """A report without its numbers, names and places; of a race the two accesses, in no order."""
    message = re.sub(r"(block \(\d,0,0\) )?threads? [\d-]+ \(warps? [\d-]+( lane \d+)?\)", "T", message)
    message = re.sub(r"smem\+0x\w+|bar\d(?= )|bar\d$|(words|boxes)\[\d+\]", "M", message)
    message = re.sub(r" at \S+\.(cc|py|h):\d+| at \S+\+0x\w+", "", message)
    message = re.sub(r"block \(\d,0,0\)|the block", "B", message).split("\n")[0]
    race = re.fullmatch(r"race on shared memory M: (.+?) by T is (.+?) by T(, but .*?)?(\. .*)?", message)
    if race is None:
        return re.sub(r"\d+ of 64 threads can never", "N of 64 threads can never", message)
    relation, second = re.match(r"((?:not )?ordered after) (.*)", race[2]).groups()
    return relation, race[3], frozenset((race[1], second))


@pytest.fixture(scope="module")
def programs():
    built = {name: cxx.build(name, kernel_sources=[HERE / f"{name}.cc"]) for name in ("reports", "sm90")}
    return {**dict.fromkeys(OF_REPORTS, built["reports"]), **dict.fromkeys(OF_SM90, built["sm90"])}


@pytest.mark.parametrize("program", [*OF_REPORTS, *OF_SM90], ids=lambda p: p.__name__)
def test_both_report_the_same(programs, program):
    theirs, ours = run(programs[program], program.__name__), report(program)
    assert theirs != "ok"
    assert essence(ours) == essence(theirs), (ours, theirs)
    if ours.startswith("deadlock"):
        (missing,) = re.findall(r"\d phases complete, .* missing in this one", ours)
        assert missing in theirs


@pytest.mark.parametrize("program", [*OF_REPORTS, *OF_SM90], ids=lambda p: p.__name__)
def test_the_fault_is_found_whenever_copies_land(program):
    for mode, seed in (("eager", 0), ("random", 1), ("random", 2)):
        assert report(program, mode=mode, seed=seed) != "ok"


@pytest.mark.parametrize("program", GOOD, ids=lambda p: p.__name__)
def test_what_is_right_is_not_reported(program):
    for mode, seed in (("lazy", 0), ("eager", 0), ("random", 1), ("random", 2)):
        assert report(program, mode=mode, seed=seed) == "ok"


def test_what_is_compared_of_a_report():
    one = "race on shared memory smem+0x4: plain store (write) by thread 1 (warp 0 lane 1) at x.cc:9 is not ordered "
    one += "after plain load (read) by thread 0 (warp 0 lane 0) at reports-01ab+0x12"
    two = "race on shared memory words[1]: plain load (read) by thread 1 (warp 0 lane 1) at y.py:7 is not ordered "
    two += "after plain store (write) by thread 2 (warp 0 lane 2) at y.py:6. A barrier between."
    assert essence(one) == essence(two)
    assert essence(one) != essence(two.replace("plain load (read)", "cp.async (write)"))
    assert essence(one) != essence(two.replace("not ordered", "ordered"))
