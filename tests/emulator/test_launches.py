"""What a launch takes from the process, how it is ended, and what it leaves behind."""

from __future__ import annotations

import pathlib
import re

import cxx
import pytest
from emulator.support import HERE, run


@pytest.fixture(scope="module")
def launches() -> pathlib.Path:
    return cxx.build("launches", kernel_sources=[HERE / "launches.cc"])


def test_every_allocation_that_fails(launches):
    """Also between the OS threads' beginnings, and in the middle of an instruction of a kernel: the process lives."""
    assert run(launches, "allocations") == "many failed, all said so"


def test_no_address_space(launches):
    """What a domain had before is given back once, and is not in use any more."""
    no_memory = "emulator: out of memory"
    assert run(launches, "address_space").splitlines() == ["ok", no_memory, "ok", "ok", "ok"]


def test_threads_and_mappings(launches):
    """Of 1000 OS threads asked for, for 400 CTAs of 1024 threads; Linux allows a process 65530 mappings."""
    verdict, threads, mappings, memory = run(launches, "footprint").splitlines()
    assert verdict == "ok"
    assert 32 <= int(re.match(r"(\d+) threads", threads)[1]) <= 64
    assert int(re.match(r"(\d+) mappings", mappings)[1]) < 64 * 10
    assert int(re.match(r"(\d+) MB", memory)[1]) < 700, "half a GB is kept for the next launch"


def test_subnormal_numbers(launches):
    assert run(launches, "subnormals").splitlines() == ["exact, restored"] * 2


def test_a_watcher_ends_a_launch(launches):
    assert run(launches, "watcher").splitlines() == ["ended in time here"] * 2 + ["ok 1 call, 2048 bytes"]
