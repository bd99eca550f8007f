"""wgmma: programs that break one of its rules are reported, in every mode and order of threads; others multiply.

Completion is strict PTX: a warp's wait says nothing about the other three's reads of shared memory.
"""

from __future__ import annotations

import pathlib
import re

import cxx
import pytest
from emulator.support import HAS_ADDR2LINE, HERE, line, run

SOURCE = "wgmma.cc"
SCHEDULES = (
    ("mode=lazy", "order=fifo"),
    ("mode=eager", "order=lifo"),
    ("mode=random", "order=random", "seed=3"),
    ("mode=random", "order=random", "seed=4"),
)


@pytest.fixture(scope="module")
def program() -> pathlib.Path:
    return cxx.build("wgmma", kernel_sources=[HERE / SOURCE])


def at(mark: str) -> str:
    """The place "wgmma.cc:LINE" of a marked line."""
    return f"{SOURCE}:{line(SOURCE, f'// @{mark}')}"


# What a case must say; `WARP` and `THREAD` are any, `OFFSET` any place in shared memory.
NOT_FENCED = "{new} is ordered after {old}, but no fence.proxy.async lies between them"
READ = "wgmma (read) by WARP at "
ADVICE = "no warpgroup_arrive (wgmma.fence) orders it after the accesses to its registers"
REPORTS = {
    "no_arrive": f"wgmma by WARP at {at('no_arrive')}: {ADVICE}",
    "no_arrive_after_wait": f"wgmma by WARP at {at('no_arrive_after_wait')}: {ADVICE}",
    "no_proxy_fence": "race on shared memory OFFSET: "
    + NOT_FENCED.format(new=READ + at("no_proxy_fence"), old=f"plain store (write) by THREAD at {at('fill')}"),
    "fence_before_store": "race on shared memory OFFSET: "
    + NOT_FENCED.format(new=READ + at("fence_before_store"), old=f"plain store (write) by THREAD at {at('fill')}"),
    "no_proxy_fence_after_copy": "race on shared memory OFFSET: "
    + NOT_FENCED.format(
        new=READ + at("no_proxy_fence_after_copy wgmma"),
        old=f"cp.async (write) by THREAD at {at('no_proxy_fence_after_copy cp.async')}",
    ),
    "no_barrier": f"race on shared memory OFFSET: {READ}{at('no_barrier')} is not ordered after "
    f"plain store (write) by THREAD at {at('fill')}",
    "overwritten_in_flight": "race on shared memory OFFSET: plain store (write) by THREAD at "
    f"{at('overwritten_in_flight store')} is not ordered after {READ}{at('overwritten_in_flight wgmma')}",
    "wait_off_by_one": f"race on shared memory OFFSET: plain store (write) by THREAD at {at('fill')} is not ordered "
    f"after {READ}{at('wait_off_by_one wgmma')}",
    "wait_of_one_warp": "race on shared memory OFFSET: plain store (write) by THREAD at "
    f"{at('wait_of_one_warp store')} is not ordered after {READ}{at('wait_of_one_warp wgmma')}",
    "uncommitted": f"WARP ends while its wgmma at {at('uncommitted')} is in flight: no warpgroup_wait_group waited "
    "for it",
    "no_wait": f"WARP ends while its wgmma at {at('no_wait')} is in flight: no warpgroup_wait_group waited for it",
    "written_in_flight": "accumulators of THREAD were written while a wgmma was in flight; found at "
    f"{at('written_in_flight')}",
    "another_shape_in_flight": f"wgmma by THREAD at {at('another_shape_in_flight')}: some of its accumulators are "
    "those of a wgmma in flight with another shape",
    "two_descriptors_in_a_warpgroup": f"wgmma by WARP at {at('two_descriptors_in_a_warpgroup')}: WARP of its "
    f"warpgroup executed another one in its place, at {at('two_descriptors_in_a_warpgroup')}",
    "two_descriptors_in_a_warp": f"wgmma by THREAD at {at('two_descriptors_in_a_warp')}: other descriptors or another "
    "scale_d than lane 0 of its warp gives",
    "incomplete_warpgroup": f"wgmma by WARP at {at('incomplete_warpgroup')}: the CTA's 96 threads end inside its "
    "warpgroup",
    "misaligned_tile": f"wgmma by WARP at {at('misaligned_tile')}: the descriptor of A, 0x4000004000010048, begins at "
    "0x480, in row 1 of the swizzle: tiles begin at multiples of 1024 bytes",
    "base_offset": f"wgmma by WARP at {at('base_offset')}: the descriptor of A, 0x4002004000010040, has a base offset "
    "of 1",
    "pointer_for_descriptor": f"wgmma by WARP at {at('pointer_for_descriptor')}: the descriptor of B, "
    "0x00007f00a5a5c400, has bits outside its fields",
    "no_stride": f"wgmma by WARP at {at('no_stride')}: the descriptor of B, 0x4000000000000240, has a stride byte "
    "offset of 0",
    "stride_out_of_range": f"out of bounds: wgmma by WARP at {at('stride_out_of_range')}: the descriptor of B (start "
    "0x2400, LBO 16, SBO 17408, rows of 128 bytes) leads to offset 43008 of shared memory (32768 bytes)",
    "registers_of_a_written": f"wgmma by THREAD at {at('registers_of_a_written')}: its registers of A were written "
    "before warpgroup_wait_group",
}


@pytest.mark.parametrize("case", REPORTS)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=" ".join)
def test_report(program, case, schedule):
    message, expected = run(program, case, *schedule), REPORTS[case]
    message = re.sub(r"thread \d+ \(warp \d+ lane \d+\)", "THREAD", message)
    message = re.sub(r"\bwarp \d+(?! of its)|\bwarp \d+(?= of its)", "WARP", message)
    message = re.sub(r"smem\+0x[0-9a-f]+", "OFFSET", message)
    if not HAS_ADDR2LINE:  # plain accesses are then at an offset in the program
        message = re.sub(r"wgmma-\w+\+0x\w+", "wgmma.cc:N", message)
        expected = re.sub(r"(plain store.*?)wgmma\.cc:\d+", r"\1wgmma.cc:N", expected)
    assert message == expected


@pytest.mark.parametrize("schedule", SCHEDULES, ids=" ".join)
def test_a_warp_of_a_warpgroup_is_missing(program, schedule):
    """Whether it ends first or the others do."""
    place = at("three_warps")
    assert re.fullmatch(
        rf"wgmma by warp \d at {place}: warp 3 of its warpgroup has ended without it|"
        rf"warp 3 ends without the wgmma at {place}, which warp \d of its warpgroup has executed",
        run(program, "three_warps", *schedule),
    )


@pytest.mark.parametrize(
    ("case", "value"),
    [
        ("multiply_ok", "88"),
        ("pipeline_ok", "880"),
        ("registers_of_a_ok", "16"),
        ("read_in_flight", "nan"),  # in every mode: before the wait the accumulators hold nothing
        ("wrong_swizzle", "16 and others"),  # a wrong descriptor gives wrong values
    ],
)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=" ".join)
def test_value(program, case, value, schedule):
    assert run(program, case, *schedule).splitlines() == ["ok", value]
