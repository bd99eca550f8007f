"""mbarriers, TMA, clusters and setmaxnreg in the emulator: each rule kept, and each broken with its report."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess

import cxx
import pytest
from emulator.support import HAS_ADDR2LINE, HERE, MODES, ORDERS, line, run


@pytest.fixture(scope="module")
def sm90() -> pathlib.Path:
    return cxx.build("sm90", kernel_sources=[HERE / "sm90.cc"])


SOURCES = ("sm90.cc", "sm90.h", "sm90_clusters.h", "sm90_tma.h")


def at(mark: str) -> str:
    """The place of a marked line, as a pattern; `plain` accesses have it only with addr2line."""
    (file,) = (file for file in SOURCES if f"// @{mark}\n" in (HERE / file).read_text())
    return re.escape(file) + f":{line(file, f'// @{mark}')}"


BLOCK = r"block \(\d,0,0\)"
THREAD = rf"(?:{BLOCK} )?thread \d+ \(warp \d+ lane \d+\)"
BAR = r"smem\+0x\w+ \(initialized at sm90(_clusters|_tma)?\.(cc|h):\d+\)"
WRITE_OUT = at("write_out")
REMOTE = r"mbarrier\.arrive\.shared::cluster"
TOO_EARLY = r"before its griddepcontrol\.wait: the kernel ahead may still run"
NO_FENCE = "but no fence.proxy.async lies between them"


def race(new: str, new_place: str, old: str, old_place: str, relation: str = "is not ordered after") -> str:
    def access(text: str, place: str) -> str:
        if text.startswith("plain") and not HAS_ADDR2LINE:
            place = r"\S+"
        return rf"{re.escape(text)} by {THREAD} at {place}"

    place = rf"smem\+0x\w+(?: of {BLOCK})?"
    return rf"race on shared memory {place}: {access(new, new_place)} {relation} {access(old, old_place)}"


def waits(mark: str, parity: int, missing: str) -> str:
    return rf"waits in mbarrier\.try_wait {BAR} parity {parity}: {missing} missing in this one at {at(mark)}"


REPORTS = {
    # TMA loads.
    "load_no_wait": race("plain load (read)", WRITE_OUT, "TMA load (write)", at("load_no_wait load")),
    "load_wait_by_one": race("plain load (read)", WRITE_OUT, "TMA load (write)", at("load_wait_by_one load")),
    "wrong_parity": race("plain load (read)", WRITE_OUT, "TMA load (write)", at("wrong_parity load")),
    "wrong_parity_of_producer": r"deadlock: 1 of 64 threads can never run again\n"
    r"  block \(0,0,0\) thread 0 \(warp 0\): "
    + waits("wrong_parity_of_producer", 0, "0 phases complete, 1 of 1 arrivals and 0 bytes"),
    "expect_too_few": rf"mbarrier {BAR}: phase 0 is complete while the 1024 bytes of the TMA load by {THREAD} at "
    rf"{at('expect_too_few first')} are still in flight: fewer bytes were expected than are loaded",
    "expect_too_many": r"deadlock: 64 of 64 threads can never run again\n  block \(0,0,0\) threads 0-63 \(warps 0-1\): "
    + waits("expect_too_many", 0, "0 phases complete, 0 of 1 arrivals and 16 bytes"),
    "expect_twice": rf"mbarrier\.arrive\.expect_tx by {THREAD} at {at('expect_twice')}: mbarrier {BAR} has its 1 "
    "arrivals already and waits for 2048 bytes",
    "early_refill": race("TMA load (write)", at("early_refill"), "plain load (read)", WRITE_OUT),
    "load_over_stores": race(
        "TMA load (write)",
        at("load_over_stores load"),
        "plain store (write)",
        at("load_over_stores store"),
        "is ordered after",
    )
    + f", {NO_FENCE}",
    "load_in_flight_at_exit": rf"{BLOCK} exits while the TMA load by {THREAD} at {at('load_in_flight_at_exit')} is "
    "still in flight to its shared memory",
    "load_between_pieces": rf"TMA load by {THREAD} at {at('load_between_pieces')}: coordinate 1 of mode 0 is not a "
    r"multiple of 16 bytes",
    "store_before_the_begin": rf"TMA store by {THREAD} at {at('store_before_the_begin')}: coordinate -1 of mode 1 is "
    r"negative, which only loads may have",
    "load_misaligned": rf"TMA load by {THREAD} at {at('load_misaligned')}: the address smem\+0x20 is not a multiple of "
    "128",
    "load_outside_smem": rf"out of bounds: TMA load of 1024 bytes by {THREAD} at {at('load_outside_smem')}: offset 4096"
    r" of shared memory \(4160 bytes\)",
    "load_rank": rf"TMA load by {THREAD} at {at('load_rank')}: the tensor map has rank 2, the instruction 3",
    "load_no_map": rf"TMA load by {THREAD} at {at('load_no_map')}: the tensor map was not made by make_tensor_map",
    "stale_map": rf"out of bounds: TMA load \(read\) of 64 bytes by {THREAD} at {at('load_ok')}: the nearest array is "
    r"out \(16384 bytes\), of which it is offset -?\d+",
    # mbarriers.
    "no_fence_after_init": rf"TMA load by {THREAD} at {at('no_fence_after_init load')}: mbarrier smem\+0x1000 "
    rf"\(initialized at {at('no_fence_after_init init')}\): no fence_mbarrier_init lies between its initialization and "
    "this",
    "no_barrier_after_init": rf"mbarrier\.arrive by {THREAD} at {at('no_barrier_after_init arrive')}: mbarrier "
    rf"smem\+0x1000 \(initialized at {at('no_barrier_after_init init')}\): no barrier lies between its initialization "
    "and this",
    "uninitialized": rf"mbarrier\.arrive by {THREAD} at {at('uninitialized')}: no mbarrier has been initialized at "
    r"smem\+0x1000",
    "overwritten": rf"mbarrier\.arrive by {THREAD} at {at('overwritten')}: mbarrier {BAR} has been overwritten",
    "initialized_twice": rf"mbarrier\.init by {THREAD} at {at('initialized_twice')}: mbarrier {BAR} is one already",
    "arrive_too_early": race(
        "plain load (read)", at("arrive_too_early load"), "plain store (write)", at("arrive_too_early store")
    ),
    "poll_forever": r"deadlock: 32 of 64 threads can never run again\n.*\n  block \(0,0,0\) threads 32-63 \(warp 1\): "
    + waits("poll_forever", 0, "0 phases complete, 1 of 1 arrivals and 0 bytes"),
    # TMA stores.
    "store_no_fence": race(
        "TMA store (read)", at("tma_store"), "plain store (write)", at("staging"), "is ordered after"
    )
    + f", {NO_FENCE}",
    "store_no_barrier": race("plain store (write)", at("staging"), "TMA store (read)", at("tma_store")),
    "store_no_wait": race("plain store (write)", at("staging"), "TMA store (read)", at("tma_store")),
    "store_no_barrier_after_wait": race("TMA store (read)", at("tma_store"), "plain store (write)", at("staging"))
    + "|"
    + race("plain store (write)", at("staging"), "TMA store (read)", at("tma_store")),
    "store_no_wait_at_exit": rf"{THREAD} exits while its TMA store at {at('tma_store')} may still read shared memory: "
    "it has not waited for the group",
    "store_wait_off_by_one": race(
        "plain store (write)", at("off_by_one staging"), "TMA store (read)", at("off_by_one store")
    ),
    "store_to_input": rf"write to read-only memory: TMA store \(write\) of 64 bytes by {THREAD} at "
    rf"{at('store_to_input')}, at offset 0 of in \(16384 bytes\)",
    # Clusters.
    "multicast_no_wait_for_peer": rf"race on shared memory smem\+0x\w+ of {BLOCK}: .*TMA multicast load \(write\) by "
    rf"{THREAD} at {at('multicast')}.*",
    "multicast_half_expected": rf"mbarrier {BAR}: phase 0 is complete while the 1024 bytes of the TMA load by {THREAD} "
    rf"at {at('multicast')} are still in flight: fewer bytes were expected than are loaded",
    "multicast_wrong_mask": r"deadlock: 66 of 128 threads can never run again\n(.*\n)*.*"
    r"(1 of 1 arrivals and 0|0 of 1 arrivals and \d+) bytes missing in this one(.|\n)*",
    "multicast_no_wait_at_exit": rf"{REMOTE} by {THREAD} at {at('multicast arrive')}: {BLOCK} "
    rf"has exited, its shared memory is gone|{BLOCK} exits without having waited for {REMOTE} "
    rf"by {THREAD} at {at('multicast arrive')}, which needs its shared memory",
    "remote_arrive_not_waited": rf"{BLOCK} exits without having waited for {REMOTE} by {THREAD}"
    rf" at {at('remote_arrive_not_waited')}, which needs its shared memory",
    "remote_arrive_before_init": rf"{REMOTE} by {THREAD} at {at('remote_arrive_before_init')}: "
    rf"mbarrier {BAR} of {BLOCK}: no barrier lies between its initialization and this",
    "remote_arrive_no_fence": rf"{REMOTE} by {THREAD} at {at('remote_arrive_no_fence arrive')}:"
    rf" mbarrier smem\+0x1000 \(initialized at {at('remote_arrive_no_fence init')}\) of {BLOCK}: no "
    "fence_mbarrier_init lies between its initialization and this",
    "remote_arrive_no_cta": rf"{REMOTE} by {THREAD} at {at('remote_arrive_no_cta')}: the "
    "cluster has 2 CTAs, none of rank 2",
    "multicast_mask": rf"TMA load by {THREAD} at {at('multicast_mask')}: the mask 0x5 does not name CTAs of a cluster "
    "of 2",
    "peer_memory_relaxed": race("plain load (read)", WRITE_OUT, "plain store (write)", at("peer_memory store")),
    "peer_memory_left": rf"{BLOCK} exits without having waited for plain load by {THREAD} at \S+, which needs its "
    "shared memory",
    "cluster_wait_alone": rf"barrier\.cluster\.wait by {THREAD} at {at('cluster_wait_alone')}: the thread has not "
    "arrived",
    "cluster_arrive_twice": rf"barrier\.cluster\.arrive by {THREAD} at {at('cluster_arrive_twice')}: the thread has not"
    " waited since it arrived before",
    "cluster_deadlock": rf"""deadlock: 96 of 128 threads can never run again
  block \(0,0,0\) threads 0-63 \(warps 0-1\): waits in barrier\.cluster\.wait \(32 threads have not arrived\) at """
    rf"""{at("cluster_deadlock")}
  block \(1,0,0\) threads 0-31 \(warp 0\): waits in bar\.sync id 1 \(32 of 64 threads have arrived\) at """
    rf"""{at("cluster_deadlock peer")}
  block \(1,0,0\) threads 32-63 \(warp 1\): finished""",
    # A launch before the kernel ahead has ended.
    "overlap_load_first": rf"TMA load \(read\) of 64 bytes by {THREAD} at {at('overlap load')}, {TOO_EARLY}",
    "overlap_one_waits": rf"plain store of 4 bytes by {THREAD} at {WRITE_OUT if HAS_ADDR2LINE else '.*'}, {TOO_EARLY}",
    # Registers.
    "registers_too_many": r"deadlock: 384 of 384 threads can never run again\n(.*\n)*.*waits in setmaxnreg\.inc "
    r"\(warp \d+ has 168 registers per thread, the CTA could give each lane 8 more\) at "
    rf"{at('registers more')}(.|\n)*",
    "registers_up_is_down": rf"setmaxnreg\.inc by {THREAD} at {at('registers more')}: from 168 registers per thread to "
    "160",
}

GOOD = re.findall(r"\b(\w+_ok)\b(?=[\",])", (HERE / "sm90.cc").read_text())
GOOD = sorted(set(GOOD))


def test_every_case_is_here(sm90):
    assert set(run(sm90, "list").split()) == {*GOOD, *REPORTS} - {"stale_map"}


@pytest.mark.parametrize("case", REPORTS)
def test_report(sm90, case):
    message = run(sm90, case)
    # A deadlock's report ends with the threads that are not the point.
    pattern = REPORTS[case] + (r"(\n.*)*" if message.startswith("deadlock") else "")
    assert re.fullmatch(pattern, message), message
    assert run(sm90, case) == message, "the same run, the same report"


@pytest.mark.parametrize("case", REPORTS)
def test_bugs_are_found_in_every_order(sm90, case):
    """The report may name another pair of accesses; there is one, whatever runs first and whenever a copy lands."""
    for mode, order, seed in (
        ("eager", "fifo", 0),
        ("eager", "lifo", 0),
        ("lazy", "lifo", 0),
        ("random", "random", 1),
        ("random", "random", 2),
        ("random", "random", 3),
    ):
        message = run(sm90, case, f"mode={mode}", f"order={order}", f"seed={seed}")
        assert not message.startswith("ok"), (mode, order, seed)
        assert not message.endswith("wrong"), (mode, order, seed)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
def test_no_report(sm90, mode, order):
    for case in GOOD:
        for seed in range(3 if "random" in (mode, order) else 1):
            for races in (1, 0):
                message = run(sm90, case, f"mode={mode}", f"order={order}", f"seed={seed}", f"races={races}")
                assert message.startswith("ok\n"), (case, seed, races, message)


def test_no_report_with_two_workers(sm90):
    for case in ("reduce_ok", "ring_ok", "multicast_ok"):
        assert run(sm90, case, "workers=2").startswith("ok\n")


def test_wrong_numbers_without_the_checker(sm90):
    """What a missing wait does to the data, which is why the checker looks for it."""
    assert run(sm90, "load_no_wait", "races=0").endswith(" wrong")
    assert run(sm90, "load_no_wait", "races=0", "mode=eager").startswith("ok"), "as by luck on a GPU"
    assert run(sm90, "store_no_wait", "races=0").endswith(" wrong")


def test_counters(sm90):
    counted = run(sm90, "multicast_ok").splitlines()[1]
    # Two CTAs of four tiles: 8 loads of 1 KiB, each for both CTAs; 16 phases, half of them full and half empty, of
    # which a full one has one arrival and an empty one two; waits of 2 producers for 6 phases and of 2 warps for 4.
    assert counted == (
        f"phases=16 arrivals={8 + 2 * 8} waits={2 * 6 + 2 * 32 * 4} fences=0 loads=8 {8 * 1024} {16 * 1024} stores=0 0 "
        "clusters=1"
    )
    counted = run(sm90, "load_edges_ok").splitlines()[1]
    inside = 12 * 16 + 16 * 12 + 8 * 16 + 16 * 8 + 0 + 16 * 16  # elements of the six boxes that lie in the tensor
    assert counted.endswith(f"loads=6 {4 * inside} {6 * 1024} stores=0 0 clusters=0")


def test_tensor_maps_the_hardware_cannot_have(sm90):
    good, *refused = run(sm90, "specs").splitlines()
    assert good == "ok"
    assert refused == [
        f"tensor map: {text}"
        for text in (
            "the rank is 6, not 1 to 5",
            "the address is not a multiple of 16 bytes",
            "the size of mode 1 is 0, not 1 to 2^32",
            "the size of mode 2 is 4294967297, not 1 to 2^32",
            "the stride of mode 1 is 136 bytes, not a multiple of 16 below 2^40",
            "the stride of mode 2 is 1099511627776 bytes, not a multiple of 16 below 2^40",
            "the box is 257 along mode 1, not 1 to 256",
            "the box is 0 along mode 2, not 1 to 256",
            "a row of the box is 8 bytes, not a multiple of 16",
            "a row of the box is 144 bytes, more than the 128 of its swizzle",
            "a row of the box is 128 bytes, more than the 64 of its swizzle",
            "elements that are no floating-point numbers have no NaN",
        )
    ]


def test_device_queries(sm90):
    assert run(sm90, "device") == "3 2 1"  # multiprocessors, blocks of each, clusters of 4


@pytest.mark.parametrize("watchdog", (False, True))
def test_wrappers_compile_for_the_device(tmp_path, watchdog):
    """The PTX of every wrapper, which the emulator does not see."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("no nvcc")
    command = [nvcc, "-std=c++20", "-Werror=all-warnings", "-gencode", "arch=compute_90a,code=sm_90a", "-cubin"]
    if watchdog:
        command.append("-DMOYE_MBARRIER_WATCHDOG=(1ll<<26)")
    done = subprocess.run(
        [*command, f"-I{cxx.CUDA}", HERE / "wrappers_sm90.cu", "-o", tmp_path / "wrappers.cubin"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
