"""Several devices: who computes what, and the programs of sharded*.py, in processes with several devices of the CPU."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python import sharded, sharded_meshes

import jax_moye
from jax_moye import _compat
from jax_moye._primitives import sharding
from jax_moye._primitives.sharding import _decode, _orders, _prime_factors, partition
from jax_moye._selection.decide import Decision
from jax_moye._selection.problem import NotServedError
from jax_moye._selection.request import Request

TESTS = pathlib.Path(__file__).parents[2]
CHECKS = {
    name: module.__file__
    for module in (sharded, sharded_meshes)
    for name in vars(module)
    if name.startswith("check_") and name != "check_processes"
}


def start(devices: int, file: str, *arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-P", "-W", "error", file, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join([str(pathlib.Path(jax_moye.__file__).parents[1]), str(TESTS)]),
            "JAX_PLATFORMS": "cpu",
            "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # as in conftest.py
            "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}",
        },
    )


def finish(process: subprocess.Popen, seconds: int) -> None:
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
        pytest.fail(f"not done after {seconds} seconds:\n{output}")
    assert process.returncode == 0, output


@pytest.mark.parametrize("check", CHECKS)
def test_eight_devices(check):
    finish(start(8, CHECKS[check], check), seconds=240)


@pytest.mark.parametrize(("cause", "is_left"), [("time", False), ("precision", True), ("capability", True)])
def test_time_is_asked_where_the_parts_are_known(monkeypatch, cause, is_left):
    """Whether XLA is faster at 256 x 256 x 256 says nothing of the parts: what no size changes leaves them to XLA."""
    request = Request("mk,kn->mn", jnp.dtype("bfloat16"), None, None, None, None)
    monkeypatch.setattr(sharding, "decide", lambda *args: Decision("xla", request, cause=cause, reason="as was said"))
    monkeypatch.setattr(_compat, "platforms", lambda ctx: ("cuda",))
    aval = jax.ShapeDtypeStruct((4, 4), jnp.bfloat16)
    ctx = types.SimpleNamespace(avals_in=(aval, aval))
    if is_left:
        with pytest.raises(NotServedError, match="as was said"):
            sharding._check_served(ctx, request)
    else:
        sharding._check_served(ctx, request)


def test_two_processes():
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    processes = [start(2, sharded.__file__, "check_processes", port, str(process)) for process in range(2)]
    try:
        for process in processes:
            finish(process, seconds=120)
    finally:
        for process in processes:
            process.kill()
            process.wait()


# ------------------------------------------------------------------------------------------------- who computes what

MESH = {"x": 2, "y": 4, "z": 3}
SIZES = {"b": 8, "m": 24, "k": 48, "n": 16}


def axes(text: str, ndim: int) -> list[tuple[str, ...]]:
    """The axes of each dimension: "x,,yz" are x, none, and y and z."""
    split = [tuple(part) for part in text.split(",")] if text else [()] * ndim
    assert len(split) == ndim
    return split


def described(result) -> tuple[dict[str, str], dict[str, str], str]:
    split = {label: "".join(axes) for label, axes in result.axes.items() if axes}
    scatter = {label: "".join(axes) for label, axes in result.scatter.items() if axes}
    return split, scatter, "".join(result.reduce)


@pytest.mark.parametrize(
    ("lhs", "rhs", "out", "split", "scatter", "reduce"),
    [
        ("", "", "", {}, {}, ""),
        ("x,,", "x,,", "x,,", {"b": "x"}, {}, ""),
        ("x,y,", "x,,z", "x,y,z", {"b": "x", "m": "y", "n": "z"}, {}, ""),
        ("x,,", ",,", "x,,", {"b": "x"}, {}, ""),  # rhs is sliced
        ("x,,", "x,,", ",,", {"b": "x"}, {}, ""),  # the result is gathered
        (",,y", ",y,", ",,", {"k": "y"}, {}, "y"),
        (",,xy", ",xy,", ",,", {"k": "xy"}, {}, "xy"),
        (",,xy", ",xz,", ",,", {"k": "x"}, {}, "x"),  # what both begin with
        (",,x", ",y,", ",,", {}, {}, ""),
        (",,y", ",,", ",,", {}, {}, ""),
        (",,y", ",y,", ",y,", {"k": "y"}, {"m": "y"}, ""),
        (",,xy", ",xy,", ",y,x", {"k": "xy"}, {"m": "y", "n": "x"}, ""),
        (",,xy", ",xy,", ",y,", {"k": "xy"}, {"m": "y"}, "x"),
        (",x,y", ",y,", ",xy,", {"k": "y", "m": "x"}, {"m": "y"}, ""),
        (",x,", ",x,", ",x,", {"m": "x"}, {}, ""),  # FSDP: rhs is gathered
        (",x,", ",,x", ",x,", {"m": "x"}, {}, ""),
        (",x,", ",,x", ",,", {"m": "x"}, {}, ""),  # one of the two
        (",x,", ",,", ",xy,", {"m": "xy"}, {}, ""),
        (",xy,", ",,", ",x,", {"m": "xy"}, {}, ""),
        (",y,", ",,", ",x,", {"m": "x"}, {}, ""),
        ("y,,x", ",x,", ",,y", {"k": "x", "n": "y"}, {}, "x"),
    ],
)
def test_partition(lhs, rhs, out, split, scatter, reduce):
    spec = "bmk,bkn->bmn"
    result = partition(spec, SIZES, MESH, axes(lhs, 3), axes(rhs, 3), axes(out, 3))
    assert described(result) == (split, scatter, reduce)


@pytest.mark.parametrize(
    ("k", "m", "split", "scatter", "reduce"),
    [
        (12, 8, {"k": "y"}, {"m": "y"}, ""),
        (13, 8, {"m": "y"}, {}, ""),  # padding would come into the sum; in the rows it stays in its rows
        (12, 9, {"k": "y"}, {}, "y"),  # nine rows do not scatter
    ],
)
def test_partition_of_uneven_sizes(k, m, split, scatter, reduce):
    result = partition("mk,kn->mn", {"m": m, "k": k, "n": 5}, MESH, axes(",y", 2), axes("y,", 2), axes("y,", 2))
    assert described(result) == (split, scatter, reduce)


# ----------------------------------------------------------------------------------------------- shardings from tiles


def starts(mesh: tuple[int, ...], split: list[tuple[int, ...]]) -> np.ndarray:
    """Where the parts begin in arrays of as many elements as there are devices; `split` has each dimension's axes."""
    n = int(np.prod(mesh))
    coordinates = np.unravel_index(np.arange(n), mesh)
    columns = []
    for of_dim in split:
        tile = np.zeros(n, np.int64)
        for axis in of_dim:
            tile = tile * mesh[axis] + coordinates[axis]
        parts = int(np.prod([mesh[axis] for axis in of_dim]))
        columns.append(tile * (n // parts))
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("mesh", [(1,), (2,), (8,), (2, 4), (4, 2), (2, 3), (3, 2), (3, 4, 2), (6, 2), (5,), (16, 16)])
def test_tiles_of_any_mesh_have_names(mesh):
    ids = range(len(mesh))
    splits = [[(), ()], [(0,), ()], [(), (0,)], [tuple(ids), ()], [tuple(reversed(ids)), ()]]
    splits += [[(0,), (i,)] for i in ids if i] + [[(i,), (0,)] for i in ids if i]
    for split in splits:
        tiles = starts(mesh, split)
        for radices in _orders(_prime_factors(int(np.prod(mesh)))):
            decoded = _decode(tiles, radices)
            if decoded is not None:
                break
        else:
            raise AssertionError(f"{mesh} {split}")
        named = starts(radices, [tuple(int(axis) for axis in axes) for axes in decoded]) if radices else tiles
        np.testing.assert_array_equal(named, tiles)


def test_tiles_of_no_mesh_have_no_names():
    tiles = np.array([[0], [2], [3], [1]])  # device 1 has the third quarter, device 2 the last
    assert all(_decode(tiles, radices) is None for radices in _orders(_prime_factors(4)))


def test_orders_of_many_factors_are_found_one_by_one():
    orders = _orders(_prime_factors(3 * 2**20))
    assert next(orders) == (3, *[2] * 20)
    assert next(orders) == (2, 3, *[2] * 19)
