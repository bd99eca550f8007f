"""Each kind of report: the message names both accesses, both threads and both source lines."""

from __future__ import annotations

import pathlib
import re

import cxx
import pytest
from emulator.support import HAS_ADDR2LINE, HERE, ORDERS, line, run


@pytest.fixture(scope="module")
def reports() -> pathlib.Path:
    return cxx.build("reports", kernel_sources=[HERE / "reports.cc"])


def at(mark: str) -> str:
    """The place "reports.cc:LINE", or in reports_barriers.h, of a marked line."""
    (file,) = (file for file in ("reports.cc", "reports_barriers.h") if f"// @{mark}\n" in (HERE / file).read_text())
    return f"{file}:{line(file, f'// @{mark}')}"


def race(what: str, new: str, new_mark: str, old: str, old_mark: str, end: str = "") -> str:
    """The report of a race between two accesses, each "kind (read|write) by thread N"."""

    def access(text: str, mark: str) -> str:
        return re.sub(r"thread (\d+)$", lambda m: thread(int(m[1])), text) + f" at {at(mark)}"

    return f"race on {what}: {access(new, new_mark)} is not ordered after {access(old, old_mark)}{end}"


def thread(i: int) -> str:
    return f"thread {i} (warp {i // 32} lane {i % 32})"


def by(i: int, mark: str) -> str:
    return f"by {thread(i)} at {at(mark)}"


WAITS = "waits in bar.sync id"
ARRIVED = "(32 of 64 threads have arrived)"


REPORTS = {
    # Races on shared memory.
    "missing_barrier": race(
        "shared memory smem+0x4",
        "plain store (write) by thread 1",
        "missing_barrier store",
        "plain load (read) by thread 0",
        "missing_barrier load",
    ),
    "missing_barrier_before_reuse": race(
        "shared memory smem+0xfc",
        "plain load (read) by thread 0",
        "reuse load",
        "plain store (write) by thread 63",
        "reuse store",
    ),
    "one_late_reader": race(
        "shared memory smem+0x0",
        "plain store (write) by thread 0",
        "one_late_reader store",
        "plain load (read) by thread 63",
        "one_late_reader load",
    ),
    "missing_warp_sync": race(
        "shared memory smem+0x78",
        "plain load (read) by thread 31",
        "missing_warp_sync load",
        "plain store (write) by thread 30",
        "missing_warp_sync store",
    ),
    "arrive_instead_of_sync": race(
        "shared memory smem+0x7c",
        "plain load (read) by thread 63",
        "arrive load",
        "plain store (write) by thread 31",
        "arrive store",
    ),
    "byte_race": race(
        "shared memory smem+0x0",
        "plain load (read) by thread 63",
        "byte_race load",
        "plain store (write) by thread 0",
        "byte_race store",
    ),
    "structure_race": race(
        "shared memory smem+0x5c",
        "plain store (write) by thread 0",
        "structure_race structure",
        "plain store (write) by thread 40",
        "structure_race word",
    ),
    "site": race(
        "shared memory smem+0x4", "plain store (write) by thread 1", "site", "plain store (write) by thread 0", "site"
    ),
    # cp.async.
    "no_wait": race(
        "shared memory smem+0x0",
        "plain load (read) by thread 0",
        "no_wait load",
        "cp.async (write) by thread 0",
        "no_wait copy",
    ),
    "wait_off_by_one": race(
        "shared memory smem+0x100",
        "plain load (read) by thread 0",
        "off_by_one load",
        "cp.async (write) by thread 0",
        "off_by_one copy",
    ),
    "no_commit": race(
        "shared memory smem+0x0",
        "plain load (read) by thread 0",
        "no_commit load",
        "cp.async (write) by thread 0",
        "no_commit copy",
    ),
    "wait_without_barrier": race(
        "shared memory smem+0x4",
        "cp.async (write) by thread 1",
        "wait_without_barrier copy",
        "plain load (read) by thread 0",
        "wait_without_barrier load",
    ),
    "barrier_without_wait": race(
        "shared memory smem+0x0",
        "plain load (read) by thread 63",
        "barrier_without_wait load",
        "cp.async (write) by thread 0",
        "barrier_without_wait copy",
    ),
    "overwritten_in_flight": race(
        "shared memory smem+0x0",
        "plain store (write) by thread 0",
        "overwritten store",
        "cp.async (write) by thread 0",
        "overwritten copy",
    ),
    "copied_twice": race(
        "shared memory smem+0x0",
        "cp.async (write) by thread 0",
        "copied_twice second",
        "cp.async (write) by thread 0",
        "copied_twice first",
    ),
    "misaligned_copy": f"cp.async {by(0, 'misaligned_copy')}: 16 bytes from 0xADDRESS to smem+0x0 are not "
    "aligned to their size",
    "too_many_source_bytes": f"cp.async {by(0, 'too_many_source_bytes')}: 5 of 4 bytes are to be read",
    # Bounds.
    "shared_load_outside": f"out of bounds: plain load of 4 bytes {by(0, 'shared_load_outside')}: offset "
    "1024 of shared memory (1024 bytes)",
    "shared_store_before": f"out of bounds: plain store of 4 bytes {by(0, 'shared_store_before')}: offset "
    "-4 of shared memory (1024 bytes)",
    "ldmatrix_outside": f"out of bounds: ldmatrix of 16 bytes {by(4, 'ldmatrix_outside')}: offset 1024 of "
    "shared memory (1024 bytes)",
    "ldmatrix_of_global": f"ldmatrix {by(0, 'ldmatrix_of_global')}: 0xADDRESS is not an address in shared memory",
    "misaligned_ldmatrix": f"ldmatrix {by(0, 'misaligned_ldmatrix')}: the row address smem+0x8 is not a multiple of 16",
    "load_outside": f"out of bounds: plain load of 4 bytes {by(56, 'load_outside')}: the nearest array is "
    "in (1024 bytes), of which it is offset 1024",
    "load_far_outside": f"out of bounds: plain load of 4 bytes {by(0, 'load_far_outside')}: the nearest "
    "array is NAME (1024 bytes), of which it is offset N",
    "store_outside": f"out of bounds: plain store of 4 bytes {by(0, 'store_outside')}: the nearest array "
    "is out (1024 bytes), of which it is offset 1024",
    "write_to_input": f"write to read-only memory: plain store of 4 bytes {by(0, 'write_to_input')}, at "
    "offset 0 of in (1024 bytes)",
    "copy_outside": f"out of bounds: cp.async (read) of 4 bytes {by(32, 'copy_outside')}: the nearest "
    "array is in (1024 bytes), of which it is offset 1024",
    "misaligned_load": f"plain load of 8 bytes {by(1, 'misaligned_load')}: the address 0xADDRESS is not a multiple "
    "of 8",
    "fault": f"out of bounds: fault {by(37, 'fault')}, at address 0xADDRESS: the nearest array is in (1024 "
    "bytes), of which it is offset 1024",
    "null_pointer": f"out of bounds: fault {by(37, 'fault')}, at address 0xADDRESS: no array is near",
    **{
        case: f"stack overflow in {thread(of)}: Options::stack_bytes is 65536"
        for case, of in {"stack_overflow": 0, "deep_recursion": 37, "large_frame": 37}.items()
    },
    # Races on global memory.
    "two_ctas": race(
        "global memory out+0xc0",
        "plain store (write) by block (1,0,0) thread 0",
        "two_ctas",
        "plain store (write) by block (0,0,0) thread 48",
        "two_ctas",
        ": nothing orders two CTAs of a launch",
    ),
    "reads_other_cta": race(
        "global memory out+0x0",
        "plain load (read) by block (1,0,0) thread 0",
        "reads_other_cta load",
        "plain store (write) by block (0,0,0) thread 0",
        "reads_other_cta store",
        ": nothing orders two CTAs of a launch",
    ),
    "global_race_in_cta": race(
        "global memory out+0x0",
        "plain store (write) by thread 1",
        "global_race_in_cta",
        "plain store (write) by thread 0",
        "global_race_in_cta",
    ),
    # Barriers and warps.
    "deadlock": f"""deadlock: 32 of 64 threads can never run again
  block (0,0,0) threads 0-31 (warp 0): {WAITS} 0 {ARRIVED} at {at("deadlock")}
  block (0,0,0) threads 32-63 (warp 1): finished""",
    "deadlock_of_two": f"""deadlock: 65 of 96 threads can never run again
  block (0,0,0) threads 0-31 (warp 0): {WAITS} 3 {ARRIVED} at {at("deadlock first")}
  block (0,0,0) threads 32-63 (warp 1): {WAITS} 4 {ARRIVED} at {at("deadlock second")}
  block (0,0,0) threads 64-94 (warp 2): finished
  block (0,0,0) thread 95 (warp 2): waits in __syncwarp (1 of 32 lanes) at {at("deadlock third")}""",
    "count_mismatch": f"bar id 1: {thread(32)} at {at('count_mismatch second')} expects 96 threads, but {thread(0)} at "
    f"{at('count_mismatch first')} expected 64",
    "bad_count": f"bar.sync id 1 {by(0, 'bad_count')}: 40 threads is not a multiple of 32 up to the CTA's 64",
    "bad_id": f"bar.sync {by(0, 'bad_id')}: barrier id 16 is not one of 0 to 15",
    "arrives_twice": f"bar.arrive id 1: {thread(0)} arrives twice in one phase (32 of 64 threads have arrived), at "
    f"{at('arrives_twice first')} and now at {at('arrives_twice second')}",
    "divergent_barrier": f"divergent warp: {thread(1)} executes bar.sync id 0 at {at('divergent_barrier odd')} while "
    f"other lanes of its warp execute it at {at('divergent_barrier even')}",
    "divergent_collective": f"divergent warp: {thread(16)} executes shfl.sync (lanes 0xffffffff) at "
    f"{at('divergent_collective shfl')} while {thread(0)} waits in ldmatrix.x1 (lanes 0xffffffff) at "
    f"{at('divergent_collective ldmatrix')}",
    "shfl_from_outside": f"shfl.sync at {at('shfl_from_outside')}: {thread(0)} reads lane 20, which is not in the mask "
    "0xffff",
    "mask_without_self": f"__syncwarp {by(20, 'mask_without_self')}: its mask 0xffff does not contain the lane itself",
    "half_a_warp": f"mma.sync {by(32, 'half_a_warp')}: its warp has only 16 lanes",
}


@pytest.mark.parametrize("case", REPORTS)
def test_report(reports, case):
    message, expected = run(reports, case), REPORTS[case]
    if case == "load_far_outside":  # where the arrays lie differs from run to run
        message = re.sub(r"is (in|out) (.*)offset -?\d+$", r"is NAME \2offset N", message)
    message = re.sub(r"0x7[0-9a-f]{11}\b|(?<=address )0x\w+", "0xADDRESS", message)
    if not HAS_ADDR2LINE:  # plain accesses are then at an offset in the program
        message = re.sub(r"reports-\w+\+0x\w+", "reports.cc:N", message)
        expected = re.sub(r"((plain|fault).*?)reports\.cc:\d+", r"\1reports.cc:N", expected)
    assert message == expected


@pytest.mark.parametrize(
    "case", ("neighbours_ok", "two_ctas_ok", "global_in_cta_ok", "arrives_twice_ok", "large_frame_ok")
)
@pytest.mark.parametrize("order", ORDERS)
def test_no_report(reports, case, order):
    for workers in (1, 2):
        assert run(reports, case, f"order={order}", f"workers={workers}") == "ok"


RACES = [case for case, report in REPORTS.items() if report.startswith("race on shared")]


@pytest.mark.parametrize("case", RACES)
def test_races_are_found_in_every_order(reports, case):
    """The checker does not depend on luck: whatever runs first, the two accesses are not ordered."""
    for mode, order, seed in (
        ("eager", "fifo", 0),
        ("lazy", "lifo", 0),
        ("random", "random", 1),
        ("random", "random", 2),
    ):
        assert run(reports, case, f"mode={mode}", f"order={order}", f"seed={seed}").startswith("race on shared memory")


def test_watchdog(reports):
    message = run(reports, "spin", "watchdog_steps=100000")
    assert message.startswith(
        f"watchdog: {thread(0)} made 100000 steps without waiting for another thread and is now at "
    )
    assert "thread 0 (warp 0): is running" in message
    message = run(reports, "endless_barriers", "watchdog_seconds=0.05")
    assert message.startswith("watchdog: block (0,0,0) has run for more than 0.05 seconds\n")
    assert re.search(rf"{WAITS} 0 \(\d+ of 64 threads have arrived\) at {at('endless_barriers')}", message)


@pytest.mark.parametrize(
    ("mode", "poison", "seen"),
    [("eager", 1, "early"), ("lazy", 1, "poisoned"), ("lazy", 0, "stale")],
)
def test_when_a_copy_takes_effect(reports, mode, poison, seen):
    verdict, counts = run(reports, "in_flight", "races=0", f"mode={mode}", f"poison={poison}").splitlines()
    expected = {"early": 0, "poisoned": 0, "stale": 0} | {seen: 64}
    assert verdict == "ok"
    assert counts == "{early} early, {poisoned} poisoned, {stale} stale, 64 late".format(**expected)


def test_random_copies_take_effect_now_or_later(reports):
    outcomes = set()
    for seed in range(4):
        _, counts = run(reports, "in_flight", "races=0", "mode=random", f"seed={seed}").splitlines()
        early, poisoned, stale, late = map(int, re.findall(r"\d+", counts))
        assert (early + poisoned, stale, late) == (64, 0, 64)
        assert 0 < early < 64
        outcomes.add(counts)
        assert run(reports, "in_flight", "races=0", "mode=random", f"seed={seed}").endswith(counts)
    assert len(outcomes) > 1


def test_launches_that_cuda_refuses(reports):
    grid, grid_y, block, smem, cluster, stream, good = run(reports, "shapes").splitlines()
    assert grid == "emulator: the grid (0,1,1) is not one CUDA can launch"
    assert grid_y == "emulator: the grid (1,65536,1) is not one CUDA can launch"
    assert block == "emulator: the block (1025,1,1) is not one CUDA can launch"
    assert smem == "emulator: 232449 bytes of shared memory per CTA, no GPU has more than 232448"
    assert cluster == "emulator: the cluster (2,1,1) does not fit the grid (3,1,1)"
    assert stream == "emulator: the stream is null, it has to be a moye::emu::Stream"
    assert good == "ok"


def test_other_faults_go_to_the_handler_that_was_there(reports):
    assert run(reports, "faults") == "20 handled, handler restored"
