"""Blocks of threads: what a program may do, what it is told, and when copies take effect.

Races, and the same faults in the emulator of the kernels, are in tests/emulator/test_block.py.
"""

from __future__ import annotations

import doctest

import numpy as np
import pytest

from jax_moye.layout import (
    CopyAtom,
    Layout,
    UniversalCopy,
    UniversalFMA,
    block,
    cp_async,
    errors,
    make_fragment_like,
    make_tensor,
    make_tiled_copy,
    make_tiled_copy_B,
    make_tiled_mma,
    zeros,
)
from jax_moye.layout.block import BarrierError, Block, BlockError, DeadlockError, RaceError
from jax_moye.layout.tensor import Tensor

COPY = make_tiled_copy(CopyAtom(cp_async(16), "float32"), "(32,1)", "(4,1)")


def test_doctest():
    assert doctest.testmod(block, optionflags=doctest.ELLIPSIS).failed == 0


def prepared(**options):
    """A block of a warp, 128 numbers in global memory, as many in shared memory, and each thread's parts of both."""
    found = Block(32, **options)
    gA = found.global_memory(np.arange(1, 129, dtype=np.float32).reshape(128, 1), "A")
    sA = found.shared("float32", (128, 1), "sA")
    slices = [COPY.get_slice(t) for t in range(32)]
    return found, sA, [t.partition_S(gA) for t in slices], [t.partition_D(sA) for t in slices]


def registers(parts):
    return [make_fragment_like(p) for p in parts]


def sources(sA):
    return [COPY.get_slice(t).partition_S(sA) for t in range(32)]


# ---- When copies take effect


@pytest.mark.parametrize(("mode", "landed"), [("lazy", 0), ("eager", 32)])
def test_without_the_checker_a_program_computes_with_what_it_finds(mode, landed):
    found, sA, src, dst = prepared(mode=mode, detect_races=False)
    early, late = registers(dst), registers(dst)

    def program(cta):
        cta.copy(COPY, src, dst)
        cta.cp_async_commit_group()
        cta.copy(sources(sA), early)
        cta.cp_async_wait_group(0)
        cta.copy(sources(sA), late)

    found.run(program)
    assert sum(not np.isnan(r.numpy()).any() for r in early) == landed
    assert np.array_equal(np.concatenate([r.values() for r in late]), np.arange(1, 129))


def test_random_copies_land_now_or_later_and_always_the_same():
    def landed(seed):
        found, sA, src, dst = prepared(mode="random", seed=seed, detect_races=False)
        early = registers(dst)

        def program(cta):
            cta.copy(COPY, src, dst)
            cta.cp_async_commit_group()
            cta.copy(sources(sA), early)
            cta.cp_async_wait_all()

        found.run(program)
        return [not np.isnan(r.numpy()).any() for r in early]

    some = landed(1)
    assert 0 < sum(some) < 32
    assert landed(1) == some != landed(2)


def test_one_thread_copies_its_part():
    found, sA, src, dst = prepared()

    def program(cta):
        cta[3].copy(COPY.get_slice(3), src[3], dst[3])
        cta[3].cp_async_wait_all()

    found.run(program)
    assert np.array_equal(np.flatnonzero(~np.isnan(sA.numpy().ravel())), range(12, 16))
    with pytest.raises(errors.ProfileMismatch, match="32 threads execute a copy of 1"):
        found.run(lambda cta: cta.copy(COPY.get_slice(3), src[3], dst[3]))


def test_groups_land_in_their_order():
    found, sA, src, dst = prepared(detect_races=False)
    seen = []

    def program(cta):
        for part in (slice(0, 16), slice(16, 32)):
            half = make_tiled_copy(COPY.atom, "(16,1)", "(4,1)")
            cta[part].copy(half, src[part], dst[part])
            cta.cp_async_commit_group()
        for allowed in (1, 0):
            cta.cp_async_wait_group(allowed)
            seen.append(int(np.isnan(sA.numpy()).sum()))

    found.run(program)
    assert seen == [64, 0]


# ---- Steps


def test_steps_come_one_by_one_with_their_lines():
    found, sA, src, dst = prepared()
    full = found.mbarrier("full")

    def program(cta):
        cta[0].mbarrier_init(full, 32)
        yield cta.sync_threads()
        cta.copy(COPY, src, dst)
        cta.cp_async_wait_all()
        cta.mbarrier_arrive(full)
        yield cta.mbarrier_wait(full, 0)
        cta.copy(sources(sA), registers(dst))

    steps = found.steps(program)
    first = next(steps)
    assert (first.what, first.state) == ("mbarrier.init full", "phase 0: 32 of 32 arrivals, 0 bytes missing")
    assert first.place.startswith("test_block.py:")
    assert full.pending == 32
    rest = list(steps)
    assert [s.number for s in (first, *rest)] == list(range(len(rest) + 1))
    assert "cp.async A -> sA" in str(rest[1])
    assert str(rest[1]).split()[1:3] == ["threads", "0-31"]
    states = [s.state for s in rest if s.what == "mbarrier.arrive full"]
    assert states[0] == "phase 0: 31 of 32 arrivals, 0 bytes missing"
    assert states[-1] == "phase 1: 32 of 32 arrivals, 0 bytes missing"
    assert (full.phase, full.pending) == (1, 32)
    assert repr(full) == "mbarrier full: phase 1: 32 of 32 arrivals, 0 bytes missing"


def test_programs_take_turns_where_they_yield():
    found = Block(64)

    def program(cta):
        for _ in range(2):
            cta.sync_warp()
            yield

    steps = found.run({program: range(32), lambda cta: program(cta): range(32, 64)})
    assert [s.threads for s in steps] == ["threads 0-31", "threads 32-63"] * 2


def test_each_run_is_a_launch_of_its_own():
    found, sA, src, dst = prepared()

    def program(cta, write=True):
        if write:
            cta.copy(COPY, src, dst)
            cta.cp_async_wait_all()
            cta.copy(sources(sA), registers(dst))
        yield

    found.run(program)
    assert not np.isnan(sA.numpy()).any()
    found.run(program)
    found.run(lambda cta: program(cta, write=False))
    assert np.isnan(sA.numpy()).all(), "shared memory begins as garbage"


# ---- What a program must not do


def fails(error, match, program, **options):
    found, *parts = prepared(**options)
    with pytest.raises(error, match=match):
        found.run(lambda cta: program(found, cta, *parts))


def test_a_wait_that_is_not_yielded():
    def at_the_end(_block, cta, _sA, _src, _dst):
        cta.sync_threads()

    def before_another_step(_block, cta, _sA, _src, _dst):
        cta.sync_threads()
        cta.sync_warp()
        yield

    def of_something_else(_block, cta, _sA, _src, _dst):
        cta.sync_threads()
        yield

    for program in (at_the_end, before_another_step, of_something_else):
        fails(BarrierError, r"bar\.sync 0 at test_block\.py:\d+ is not yielded", program)

    def nonsense(_block, _cta, _sA, _src, _dst):
        yield 3

    fails(BarrierError, "not 3", nonsense)


def test_memory_has_a_space():
    def from_shared(_block, cta, sA, _src, dst):
        cta.copy(COPY, sources(sA), dst)

    fails(errors.AtomMismatch, "sA, shared memory.*not in global memory", from_shared)

    def to_registers(_block, cta, _sA, src, dst):
        cta.copy(COPY, src, registers(dst))

    fails(errors.AtomMismatch, "does not know.*not in shared memory", to_registers)

    def julias_order(_block, cta, _sA, src, dst):
        cta.copy(COPY, dst, src)

    fails(errors.OperandOrder, "nothing was copied", julias_order)

    def to_input(_block, cta, _sA, src, _dst):
        cta.fill([Tensor(s.data, s.layout, s.offset) for s in src], 0)

    fails(BlockError, "write to read-only memory: plain store by thread 0", to_input)


def test_ldmatrix_is_a_warps_and_reads_shared_memory():
    mma = make_tiled_mma("SM80_16x8x8_F32TF32TF32F32_TN")
    load = make_tiled_copy_B(CopyAtom("LDSM_U32x2_N", "float32"), mma)
    found = Block(32)
    sB = found.shared("float32", "(8,8):(8,1)", "sB")
    slices = [mma.get_slice(t) for t in range(32)]
    tCrB = [t.make_fragment_B(t.partition_B(sB)) for t in slices]
    src, dst = [load.get_slice(t).partition_S(sB) for t in range(32)], [load.retile(r) for r in tCrB]

    def program(cta, wait=True):
        cta[0].fill(sB, 3)
        if wait:
            yield cta.sync_threads()
        cta.copy(load, src, dst)

    found.run(program)
    assert all((r.numpy() == 3).all() for r in tCrB)
    with pytest.raises(RaceError, match=r"ldmatrix \(read\) by thread 1 .* is not ordered after plain store"):
        found.run(lambda cta: program(cta, wait=False))
    with pytest.raises(errors.ProfileMismatch, match="16 threads execute a copy of 32"):
        found.run(lambda cta: cta[:16].copy(load, src, dst))
    with pytest.raises(errors.AtomMismatch, match="not in shared memory"):
        found.run(lambda cta: cta.copy(load, [Tensor(np.zeros(64, np.float32), "(4,1):(1,0)")] * 32, dst))


def test_gemm_reads_what_it_multiplies():
    mma = make_tiled_mma(UniversalFMA("float32"), "(8,4)")
    found = Block(32)
    s = found.shared("float32", (8, 4), "s")
    slices = [mma.get_slice(t) for t in range(32)]
    a, b = [t.partition_A(s) for t in slices], [t.partition_B(s) for t in slices]
    c = [zeros("float32", (1, 1, 2)) for _ in slices]

    def program(cta, wait=True):
        cta[0].fill(s, 2)
        if wait:
            yield cta.sync_threads()
        cta.gemm(mma, c, a, b, c)

    found.run(program)
    assert all((x.numpy() == 16).all() for x in c)
    with pytest.raises(RaceError, match=r"plain load \(read\)"):
        found.run(lambda cta: program(cta, wait=False))
    wgmma = make_tiled_mma("SM90_64x8x16_F32F16F16_SS")
    with pytest.raises(errors.AtomMismatch, match="wgmma"):
        Block(128).run(lambda cta: cta.gemm(wgmma, [], [], [], 0))


def test_barriers_are_of_whole_warps():
    found = Block(64)
    with pytest.raises(BarrierError, match=r"divergent warp: bar\.sync by thread 0 .* without thread 1 "):
        found.run(lambda cta: (yield cta[0].sync_threads()))
    with pytest.raises(BarrierError, match="__syncwarp"):
        found.run(lambda cta: cta[:16].sync_warp())

    def two_numbers(cta):
        cta[:32].bar_arrive(1, 64)
        cta[32:].bar_arrive(1, 32)

    with pytest.raises(BarrierError, match="expects 32 threads, others 64"):
        found.run(two_numbers)
    with pytest.raises(BarrierError, match="is not one of 0 to 15"):
        found.run(lambda cta: cta.bar_arrive(16, 64))
    Block(6).run(lambda cta: (yield cta.sync_threads()))  # the only warp has six lanes


def test_a_deadlock_says_who_waits_for_what():
    found = Block(64)
    empty = found.mbarrier("empty")

    def producer(cta):
        cta[0].mbarrier_init(empty, 1)
        yield cta[0].mbarrier_wait(empty, 0)

    def consumer(cta):
        yield cta.sync_threads()

    with pytest.raises(DeadlockError) as raised:
        found.run({producer: range(32), consumer: range(32, 64)})
    text = str(raised.value)
    assert text.startswith("deadlock: 64 of 64 threads can never run again\n  thread 0: waits in mbarrier.try_wait")
    assert "parity 0: 0 phases complete, 1 of 1 arrivals and 0 bytes missing" in text
    assert "threads 32-63: waits in bar.sync 0 (32 of 64 threads)" in text


def test_one_thread_orders_tma():
    found = Block(32)
    bar = found.mbarrier("bar")
    g = found.global_memory(np.arange(64, dtype=np.float32), "g")
    s = found.shared("float32", (64,), "s")

    def program(cta, who):
        cta[0].mbarrier_init(bar, 1)
        cta[0].fence_mbarrier_init()
        yield cta.sync_threads()
        cta[0].mbarrier_arrive_expect_tx(bar, 256)
        cta[who].tma_load(bar, g, s)
        yield cta.mbarrier_wait(bar, 0)

    found.run(lambda cta: program(cta, 0))
    assert np.array_equal(s.numpy(), np.arange(64))
    with pytest.raises(errors.AtomMismatch, match="32 threads would each do it"):
        found.run(lambda cta: program(cta, slice(0, 32)))
    with pytest.raises(errors.ProfileMismatch, match="the two sides"):
        found.run(lambda cta: cta[0].tma_load(bar, g, Tensor(s.data, Layout(32))))
    with pytest.raises(errors.Misaligned, match="no multiple of 16"):
        found.run(lambda cta: cta[0].tma_load(bar, Tensor(g.data, Layout(3)), Tensor(s.data, Layout(3))))


def test_views_of_other_sizes_are_the_same_memory():
    found = Block(32)
    words = found.shared("uint32", (32,), "words")
    halves = words.recast("uint16")

    def program(cta, shift):
        cta.fill([Tensor(halves.data, Layout("2:1"), 2 * int(t)) for t in cta.rows], 1)
        cta.copy(
            [Tensor(words.data, Layout(1), (int(t) + shift) % 32) for t in cta.rows],
            [make_tensor("uint32", (1,)) for _ in cta.rows],
        )

    found.run(lambda cta: program(cta, 0))
    with pytest.raises(RaceError):
        found.run(lambda cta: program(cta, 1))


def test_what_is_no_block_or_threads():
    for wrong in (0, 1025, "32"):
        with pytest.raises(errors.InvalidShape):
            Block(wrong)
    with pytest.raises(errors.InvalidType, match="lazy, eager, random"):
        Block(32, mode="later")
    with pytest.raises(errors.InvalidShape):
        Block(32).run({lambda cta: None: [32]})
    found, _sA, src, dst = prepared()
    with pytest.raises(errors.InvalidType):
        found.run(lambda cta: cta.copy(3, src, dst))
    with pytest.raises(errors.ProfileMismatch, match="32 tensors for 16 threads"):
        found.run(lambda cta: cta[16:].fill(dst, 0))
    plain = make_tiled_copy(CopyAtom(UniversalCopy("float32"), "float32"), "(32,1)", "(4,1)")
    with pytest.raises(errors.ProfileMismatch):
        found.run(lambda cta: cta[:3].copy(plain, src, registers(dst)))
    with pytest.raises(errors.ProfileMismatch):
        found.run(lambda cta: cta.copy(src, [make_tensor("float32", (2,))] * 32))
