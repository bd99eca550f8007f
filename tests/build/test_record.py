"""Calls as nodes of XLA's CUDA graphs (ffi/record_cuda.cc), next to a runtime that is this test's own.

What the runtime of jaxlib 0.11.2 makes of it takes a GPU: tests/gpu/test_gpu_record.py.
"""

from __future__ import annotations

import subprocess

import jax
import pytest

from tests import cxx

SOURCES = ["tests/build/record.cc", "ffi/record_cuda.cc", "ffi/kernel_images_cuda.cc"]
NODE = "first: code ours of 116 bytes, format 1, grid 7 2, block 128, cluster 2, smem 1000, pdl 1, behind"
VALUES = "arguments 3: 41 (4 bytes, kind 1) 0.5"
CALLED = "execute: stage 3, 1 attributes, early operands 6"


@pytest.fixture(scope="module")
def program():
    flags = ["-I", str(cxx.CUDA), "-I", str(cxx.ROOT / "ffi"), "-isystem", jax.ffi.include_dir()]
    return cxx.build("record", [cxx.ROOT / source for source in SOURCES], flags)


def lines(program, scenario, **environment):
    done = subprocess.run([program, scenario], capture_output=True, text=True, check=True, env=environment)
    return done.stdout.splitlines()


def left(commands, errors=0):
    """What is as it was behind a call, and how many commands it has."""
    return f"commands {commands}, stage 4, attributes 3, recorder 0, errors {errors}"


def test_a_launch_is_a_node_and_then_gets_new_addresses(program):
    """The handler is called twice more when the node is created, for made-up addresses, and then no more."""
    created = [CALLED, f"create {NODE} {VALUES} at 0", CALLED, CALLED, left(1)]
    assert lines(program, "one") == [*created, f"update 1 {VALUES} at 256", left(1), "nodes 1 1, known 1"]


def test_addresses_of_another_kind_are_asked_for_once(program):
    found = lines(program, "in turns")
    assert found[5:7] == [f"update 1 {VALUES} at 256", left(1)]
    assert found[7:11] == [f"update 1 {VALUES} at 0", left(1), f"update 1 {VALUES} at 512", left(1)]
    less_aligned = [CALLED, f"update 1 {VALUES} at 16", CALLED, CALLED, left(1), f"update 1 {VALUES} at 528", left(1)]
    assert found[11:18] == less_aligned
    of_another_graph = [CALLED, f"create {NODE} {VALUES} at 528", CALLED, CALLED, left(1)]
    assert found[18:23] == of_another_graph
    asked_for = [CALLED, f"update 1 {VALUES} at 0", CALLED, CALLED, left(1)]  # nothing is known of its node at 0
    assert found[23:] == [*asked_for, "nodes 2 6, known 4"]


def test_what_follows_from_addresses_is_asked_for_each_time(program):
    found = lines(program, "by number")
    created = [CALLED, f"create {NODE} {VALUES} at 0", CALLED, left(1)]
    assert found == [*created, CALLED, f"update 1 {VALUES} at 256", left(1), "nodes 1 1, known 0"]


def test_the_second_launch_stands_behind_the_first(program):
    found = lines(program, "two")
    node = "second: code ours of 116 bytes, format 1, grid 3 1, block 32, cluster 0, smem 0, pdl 0, behind 1"
    assert found[2] == f"create {node} {VALUES} at 0"
    assert found[5] == left(2)
    assert found[6:8] == [f"update 1 {VALUES} at 256", f"update 2 {VALUES} at 256"]


def test_nothing_begins_early_where_the_environment_says_so(program):
    found = lines(program, "one", JAX_MOYE_PROGRAMMATIC_LAUNCH="0")
    assert found[0] == CALLED.replace("operands 6", "operands 0")
    assert "pdl 0" in found[1]


def test_a_kernel_of_a_users_function_is_its_librarys(program):
    assert lines(program, "library")[1].startswith("create first: code another of 50 bytes,")


@pytest.mark.parametrize("scenario", ["foreign", "through_l1", "nothing", "invalid"])
def test_what_is_not_recorded_is_captured(program, scenario):
    """A kernel of one's own, one that needs L1, a call without launches, and one whose error its capture will show."""
    assert lines(program, scenario) == [CALLED, "capture", left(0)] * 2 + ["nodes 0 0, known 0"]


@pytest.mark.parametrize(
    ("scenario", "message"),
    [
        ("foreign_behind", "jax_moye: XLA captures all kernels of a call, or none"),
        ("refused", "the runtime's own error"),
        ("too_many", "jax_moye: XLA records at most 0 kernels of a call, and this one has 1"),
        ("no_extension", "jax_moye: this jaxlib records calls in a way that is not known"),
        ("version", "jax_moye: this jaxlib records calls in a way that is not known"),
        ("old_api", "jax_moye: this jaxlib records calls in a way that is not known"),
    ],
)
def test_errors(program, scenario, message):
    found = lines(program, scenario)
    at = found.index(f"error: {message}")
    assert found[at + 1] == left(0, errors=1)  # that is the runtime's now; no other one is left


def test_fewer_launches_than_nodes(program):
    assert lines(program, "more")[-2] == "error: jax_moye: a call launched fewer kernels than when it was recorded"


def test_handlers_say_what_they_are(program):
    assert lines(program, "metadata")[0] == "metadata"


def test_one_target_registers_all_others_once(program):
    assert lines(program, "register") == [
        "register a_target on CUDA, 92 bytes, stages 1 0 0 1 1",
        "register another on CUDA, 92 bytes, stages 0 0 0 1 0",
        "register a_mark on CUDA, 92 bytes, stages 0 0 0 1 0",
        *["metadata", left(0)] * 2,
    ]
    assert lines(program, "register_called")[0] == "error: jax_moye: this target is there to register the others"
