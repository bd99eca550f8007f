"""What depends on the version of JAX or is not quite public, in one place. Everything else uses documented API only.

Tried on jax 0.9.2 to 0.11.2.
"""

from __future__ import annotations

import functools
import pathlib
import re
from collections.abc import Sequence
from typing import Any

import jax
from jax.interpreters import mlir
from jax.sharding import NamedSharding, PartitionSpec

# jax.jit(inline=...): the equations of the jitted function become those of the caller's jaxpr, while tracing. Since
# jax 0.11 True means while lowering, where the operands' defining operations are out of sight (see transposed_source).
INLINE_WHILE_TRACING: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


def varying_axes(x: jax.Array) -> frozenset[str]:
    """The manual mesh axes over which x varies inside shard_map; empty outside, and with check_vma=False."""
    aval = jax.typeof(x)
    manual = getattr(aval, "manual_axis_type", None)  # since jax 0.10
    return frozenset(manual.varying if manual is not None else getattr(aval, "vma", ()))


def match_varying(*operands: jax.Array) -> list[jax.Array]:
    """Makes operands vary over the same manual axes, as lax does before it binds dot_general."""
    wanted = frozenset().union(*map(varying_axes, operands))
    matched = []
    for x in operands:
        missing = tuple(sorted(wanted - varying_axes(x)))
        matched.append(jax.lax.pcast(x, missing, to="varying") if missing else x)
    return matched


def canonical_sharding(sharding: NamedSharding | PartitionSpec | None) -> NamedSharding | None:
    """What lax makes of `out_sharding` before it binds: a NamedSharding on an abstract mesh."""
    if sharding is None:
        return None
    if isinstance(sharding, PartitionSpec):
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty:
            raise ValueError(f"out_sharding={sharding!r} needs a mesh: set one with jax.set_mesh")
        return NamedSharding(mesh, sharding)
    if isinstance(sharding, NamedSharding):
        return NamedSharding(sharding.mesh.abstract_mesh, sharding.spec)
    raise TypeError(f"out_sharding is None, a jax.P or a jax.NamedSharding, not {sharding!r}")


def why_not_local(ctx: mlir.LoweringRuleContext) -> str | None:
    """Why the operation being lowered does not run on one device with the shapes it has; None if it does.

    The classes of axis contexts are exported by jax.interpreters.mlir, but not documented.
    """
    axis_context = ctx.module_context.axis_context
    if isinstance(axis_context, mlir.ShardingContext):
        if axis_context.num_devices == 1:
            return None
        return f"the program is partitioned over {axis_context.num_devices} devices outside of shard_map"
    if isinstance(axis_context, mlir.SPMDAxisContext):
        mesh = axis_context.mesh
        automatic = [axis for axis in mesh.axis_names if axis not in axis_context.manual_axes and mesh.shape[axis] > 1]
        if not automatic:
            return None
        return f"the mesh axes {automatic} are not manual in this shard_map"
    return "the program is partitioned in a way jax_moye does not know"


def transposed_source(value: Any) -> tuple[Any, tuple[int, ...] | None]:
    """What a transpose right in front of an operand reads, and its permutation; (value, None) if there is none.

    Looks at MLIR objects, whose Python classes jaxlib exports but does not document. Seeing the operand's defining
    operation needs a lowering rule registered with cacheable=False: others are lowered as functions of fresh arguments.
    """
    operation: Any = getattr(value, "owner", None)
    if getattr(operation, "name", None) != "stablehlo.transpose":
        return value, None
    return operation.operands[0], tuple(int(i) for i in operation.attributes["permutation"])


def local_aval(shape: Sequence[int], dtype: Any) -> Any:
    """An abstract array without a sharding. jax.core.ShapedArray is not documented, but has no other public name."""
    return jax.core.ShapedArray(tuple(shape), dtype)


@functools.cache
def runtime_ffi_version() -> tuple[int, int] | None:
    """(major, minor) of the FFI that the installed jaxlib speaks, from the headers it ships; None if it ships none.

    There is no call that says so, and jaxlib's CUDA plugin comes from the same release.
    """
    header = pathlib.Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    try:
        text = header.read_text()
    except OSError:
        return None
    versions = {name: int(value) for name, value in re.findall(r"#define XLA_FFI_API_(MAJOR|MINOR) (\d+)", text)}
    return (versions["MAJOR"], versions["MINOR"]) if len(versions) == 2 else None


@functools.cache
def cuda_arch() -> int | None:
    """The lowest architecture of this process's CUDA devices, e.g. 90; None if there is none.

    Called while lowering for CUDA, when the backends are up. `compute_capability` is an attribute of CUDA devices only.
    """
    try:
        devices = jax.devices("cuda")
    except RuntimeError:  # no CUDA backend: the program is lowered here for another machine
        return None
    return min(round(10 * float(device.compute_capability)) for device in devices)
