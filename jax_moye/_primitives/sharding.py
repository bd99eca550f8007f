"""How a contraction runs on several devices: which part each one computes, and what they exchange.

Everything follows from the specification and the shardings of the operands and of the result. A device computes the
product of the parts it has with the kernel for one device; sums over a dimension that is split are then added up, in an
all-reduce, or a reduce-scatter where the result is split over the same devices. docs/sharding.md has the table.

Two ways lead there. Where every mesh axis is explicit, the types have the shardings: the program becomes a shard_map.
Where the partitioner propagates shardings through the program, they are known when it has: a rule tells it which
dimensions belong together, and it calls back for the program of one device (jax.experimental.custom_partitioning).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.custom_partitioning import ArrayMapping, SdyShardingRule, custom_partitioning
from jax.interpreters import mlir
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, reshard

from jax_moye import _compat
from jax_moye._primitives.reference import reference
from jax_moye._primitives.transposes import absorbed, source
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.decide import decide
from jax_moye._selection.problem import NotServedError, parse_spec
from jax_moye._selection.request import Operand, Request

Axes = tuple[str, ...]  # mesh axes that split one dimension, the major first
Local = Callable[..., jax.Array]  # (request, *operands) -> the contraction on one device

EXPORT_ERROR = (
    "jax.export cannot save a program in which the partitioner propagates shardings (an automatic mesh): it would call "
    "back into this process for the parts of jax_moye's kernels. Export the program with an explicit mesh "
    "(jax.set_mesh, AxisType.Explicit), with shard_map over all mesh axes, for one device, or with "
    "implementation='xla'."
)

# ------------------------------------------------------------------------------------------------- who computes what


@dataclasses.dataclass(frozen=True)
class Partition:
    """How a contraction is split over a mesh.

    Attributes:
      spec: e.g. "bmk,kn->bmn".
      axes: for each label, the axes that split the work along it.
      scatter: for each label of the result, the axes over which the sums are scattered along it.
      reduce: the axes over which the sums are added up.
    """

    spec: str
    axes: Mapping[str, Axes]
    scatter: Mapping[str, Axes]
    reduce: Axes

    def operand(self, labels: str) -> PartitionSpec:
        """The sharding that an operand needs."""
        return PartitionSpec(*(self.axes[label] or None for label in labels))

    @property
    def out(self) -> PartitionSpec:
        """The sharding that the result has."""
        labels = parse_spec(self.spec).out
        return PartitionSpec(*(self.axes[label] + self.scatter[label] or None for label in labels))


def _common(first: Axes, second: Axes) -> Axes:
    """The axes with which both begin."""
    pairs = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))
    return tuple(axis for axis, _ in pairs)


def _before(axes: Axes, taken: Collection[str]) -> Axes:
    """The axes up to the first one that is taken."""
    return tuple(itertools.takewhile(lambda axis: axis not in taken, axes))


def partition(
    spec: str,
    sizes: Mapping[str, int],
    mesh_shape: Mapping[str, int],
    lhs: Sequence[Axes],
    rhs: Sequence[Axes],
    out: Sequence[Axes],
) -> Partition:
    """Decides how a contraction is split.

    A contracted dimension stays split as both operands are. The result's dimensions are split as it is asked to be, and
    otherwise as an operand is, since a gathered result costs less than work done twice. What then does not fit is
    gathered or sliced before: an axis splits one dimension alone.

    Args:
      spec: e.g. "bmk,kn->bmn".
      sizes: of its labels.
      mesh_shape: sizes of the mesh axes.
      lhs: the axes of each of lhs's dimensions.
      rhs: likewise.
      out: of the result that is asked for.
    """
    parsed = parse_spec(spec)
    lhs_axes = dict(zip(parsed.lhs, lhs, strict=True))
    rhs_axes = dict(zip(parsed.rhs, rhs, strict=True))
    out_axes = dict(zip(parsed.out, out, strict=True))

    def divides(label: str, axes: Axes) -> bool:
        return sizes[label] % math.prod(mesh_shape[axis] for axis in axes) == 0

    axes: dict[str, Axes] = {}
    for label in parsed.lhs:
        if label not in parsed.out:
            common = _common(lhs_axes[label], rhs_axes[label])
            # The partitioner pads uneven parts with anything, which must not come into a sum.
            axes[label] = common if divides(label, common) else ()
    summed = tuple(axis for label in axes for axis in axes[label])

    scatter: dict[str, Axes] = {}
    for label in parsed.out:
        wanted = out_axes[label]
        axes[label] = tuple(axis for axis in wanted if axis not in summed)
        scatters = divides(label, wanted)  # otherwise sums are added up everywhere, and each device keeps its slice
        scatter[label] = tuple(axis for axis in wanted if axis in summed) if scatters else ()

    used = {axis for split in axes.values() for axis in split}
    for label in parsed.out:
        for operand in (lhs_axes, rhs_axes):
            given = operand.get(label, ())
            if scatter[label] or _common(given, axes[label]) != axes[label]:
                continue
            more = _before(given[len(axes[label]) :], used)
            axes[label] += more
            used |= set(more)
    scattered = {axis for split in scatter.values() for axis in split}
    return Partition(spec, axes, scatter, tuple(axis for axis in summed if axis not in scattered))


def _sums_dtype(out_dtype: Any) -> Any:
    """The dtype in which parts of a sum are exchanged: the result's, if that is one to add in."""
    floating = jnp.issubdtype(out_dtype, jnp.floating)
    return jnp.dtype("float32") if floating and jnp.dtype(out_dtype).itemsize == 1 else out_dtype


def one_device(split: Partition, request: Request, local: Local) -> Callable[..., jax.Array]:
    """What one device does with its parts of the operands (and of c, which is split as the result is).

    Raises:
      NotImplementedError: batch_invariant is asked for, and devices would add up their sums.
    """
    if not split.reduce and not any(split.scatter.values()):
        return functools.partial(local, request)
    if request.batch_invariant and jnp.issubdtype(request.out_dtype, jnp.inexact):
        raise NotImplementedError(
            f"batch_invariant=True: {split.spec} is summed over devices, and in which order they add up an element "
            "depends on where it lies in the result: split M, N or the batch instead"
        )

    def product_and_sum(lhs, rhs, *c):
        partial_sums = dataclasses.replace(request, beta=0.0, out_dtype=_sums_dtype(request.out_dtype))
        out = local(partial_sums, lhs, rhs)
        # Scattered first: then less is left to add up.
        for dim, label in enumerate(parse_spec(split.spec).out):
            if split.scatter[label]:
                out = lax.psum_scatter(out, split.scatter[label], scatter_dimension=dim, tiled=True)
        if split.reduce:
            out = lax.psum(out, split.reduce)
        out = lax.convert_element_type(out, request.out_dtype)
        for x in c:  # once, not on each device
            out = lax.add(out, x if request.beta == 1 else lax.mul(x, lax.full_like(x, request.beta)))
        return out

    return product_and_sum


# --------------------------------------------------------------------------------------------------- explicit meshes


def _axes(spec: PartitionSpec, ndim: int) -> list[Axes]:
    """The mesh axes of each dimension."""
    entries = [*spec, *[None] * (ndim - len(spec))]
    return [() if entry is None else (entry,) if isinstance(entry, str) else tuple(entry) for entry in entries]


def _sizes(spec: str, *shapes: Sequence[int]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for names, shape in zip(parse_spec(spec), shapes, strict=False):
        sizes |= zip(names, shape, strict=True)
    return sizes


@functools.lru_cache(maxsize=1024)
def _by_types(
    mesh: AbstractMesh,
    request: Request,
    shapes: tuple[tuple[int, ...], ...],
    specs: tuple[PartitionSpec, ...],
    has_c: bool,
    local: Local,
) -> Callable[..., jax.Array]:
    """The contraction as a shard_map, for operands and a result whose types have shardings on an explicit mesh.

    Args:
      mesh: with explicit axes alone.
      request: what the caller asked for.
      shapes: of lhs, rhs and the result.
      specs: their shardings.
      has_c: whether there is a third operand.
      local: binds the contraction on one device.
    """
    parsed = parse_spec(request.spec)
    axes = [_axes(spec, len(shape)) for spec, shape in zip(specs, shapes, strict=True)]
    split = partition(request.spec, _sizes(request.spec, *shapes), mesh.shape, *axes)
    in_specs = (split.operand(parsed.lhs), split.operand(parsed.rhs), *[split.out] * has_c)
    mapped = jax.shard_map(
        one_device(split, request, local), mesh=mesh, in_specs=in_specs, out_specs=split.out, check_vma=False
    )

    @jax.jit  # layers that are alike are traced and lowered once
    def contraction(*operands):
        # shard_map takes operands of exactly the type it names.
        placed = [reshard(x, NamedSharding(mesh, spec)) for x, spec in zip(operands, in_specs, strict=True)]
        return reshard(mapped(*placed), NamedSharding(mesh, specs[2]))

    return contraction


# -------------------------------------------------------------------------------------------------- automatic meshes


def _prime_factors(n: int) -> list[int]:
    """The larger ones first."""
    factors: list[int] = []
    for prime in range(2, n + 1):
        while n % prime == 0:
            factors.insert(0, prime)
            n //= prime
    return factors


def _orders(factors: list[int]) -> Iterator[tuple[int, ...]]:
    """All orders of the factors, each once."""
    if not factors:
        yield ()
    for first in dict.fromkeys(factors):
        rest = list(factors)
        rest.remove(first)
        yield from ((first, *order) for order in _orders(rest))


def _tile_starts(sharding: Any, ndim: int, devices: Sequence[Any]) -> np.ndarray:
    """(devices, ndim): where each device's part begins in an array of len(devices) elements along each dimension."""
    n = len(devices)
    if sharding is None or ndim == 0:
        return np.zeros((n, ndim), np.int64)
    parts = sharding.devices_indices_map((n,) * ndim)
    return np.array([[index.start or 0 for index in parts[device]] for device in devices], np.int64)


def _decode(starts: np.ndarray, radices: Sequence[int]) -> list[Axes] | None:
    """The axes of each dimension, on a mesh of axes "0", "1", ... with sizes `radices`; None if there are no such."""
    n, ndim = starts.shape
    digits = np.stack(np.unravel_index(np.arange(n), radices or (1,)), axis=1)  # (devices, axes)
    strides = [math.prod(radices[i + 1 :]) for i in range(len(radices))]
    weights = np.array([starts[stride] for stride in strides], np.int64).reshape(len(strides), ndim)  # (axes, ndim)
    if (starts != digits[:, : len(radices)] @ weights).any():
        return None
    axes: list[Axes] = []
    for weight in weights.T:
        order = sorted(np.flatnonzero(weight).tolist(), key=lambda i: -weight[i])
        # The major axis steps through the whole dimension, each other one through a step of the one before.
        if any(weight[i] * radices[i] != step for i, step in zip(order, [n, *weight[order]], strict=False)):
            return None
        axes.append(tuple(str(i) for i in order))
    of_all = [axis for split in axes for axis in split]
    return axes if len(of_all) == len(set(of_all)) else None


def _decode_all(arrays: Sequence[Any], devices: Sequence[Any]) -> tuple[Mesh, list[list[Axes]]]:
    """A mesh on which the shardings of all arrays have names, and these.

    The partitioner knows tiles and no meshes, and the program's mesh is not known to a lowering rule: JAX lowers
    without looking at devices. The finest mesh, with axes of prime size, has names for whatever one mesh has.
    """
    starts = [_tile_starts(x.sharding, len(x.shape), devices) for x in arrays]
    for radices in _orders(_prime_factors(len(devices))):
        decoded = [_decode(s, radices) for s in starts]
        if all(axes is not None for axes in decoded):
            break
    else:  # several meshes in one program, with devices in different orders: everybody computes everything
        radices, decoded = (len(devices),), [[()] * len(x.shape) for x in arrays]
    names = tuple(str(i) for i in range(len(radices)))
    return Mesh(np.array(devices, object).reshape(radices), names), decoded  # type: ignore[return-value]


@functools.lru_cache(maxsize=1024)
def _by_propagation(
    request: Request, has_c: bool, devices: tuple[jax.Device, ...], local: Local
) -> Callable[..., jax.Array]:
    """The contraction for the partitioner: a rule about its dimensions, and a function that it calls back."""
    parsed = parse_spec(request.spec)

    def split_up(_, args, result):
        mesh, (lhs, rhs, out) = _decode_all([*args[:2], result], devices)
        sizes = _sizes(request.spec, *(x.shape for x in args[:2]))
        split = partition(request.spec, sizes, mesh.shape, lhs, rhs, out)
        specs = (split.operand(parsed.lhs), split.operand(parsed.rhs), split.out)
        shardings = [NamedSharding(mesh, spec) for spec in specs]
        program = one_device(split, request, local)

        def traced(*operands):
            with _compat.no_mesh():
                return program(*operands)

        return mesh, traced, shardings[2], tuple(shardings[: len(args)])

    # Labels may be any character; the rule's factors are words.
    factors = {label: f"f{i}" for i, label in enumerate(dict.fromkeys(parsed.lhs + parsed.rhs))}
    lhs, rhs, out = (ArrayMapping(*(factors[label] for label in names)) for names in parsed)
    contracted = tuple(factors[label] for label in parsed.lhs if label not in parsed.out)
    rule = SdyShardingRule((lhs, rhs, *[out] * has_c), (out,), reduction_factors=contracted)

    def contraction(lhs, rhs):
        return local(request, lhs, rhs)

    def contraction_and_c(lhs, rhs, c):
        return local(request, lhs, rhs, c)

    partitioned = custom_partitioning(contraction_and_c if has_c else contraction)
    partitioned.def_partition(split_up, sharding_rule=rule, decode_shardings=False)
    return jax.jit(partitioned)


# ---------------------------------------------------------------------------------------------------------- lowering


def _check_served(ctx: mlir.LoweringRuleContext, request: Request) -> None:
    """Leaves to XLA's own partitioning what no kernel would compute, whatever the parts' shapes.

    Raises:
      NotServedError: the reason.
    """
    if request.config is not None:
        return  # it is looked at where the shapes are known
    # Sizes that every kernel takes, in one dimension of each kind: any shapes that are one matrix product are as good.
    parsed = parse_spec(request.spec)
    kinds = {tuple(label in names for names in parsed): label for label in parsed.lhs + parsed.rhs}

    def probe(labels: str, dtype: Any) -> Operand:
        return Operand(tuple(256 if label in kinds.values() else 1 for label in labels), dtype)

    avals: list[Any] = list(ctx.avals_in[:2])
    for platform in _compat.platforms(ctx):
        operands = (probe(parsed.lhs, avals[0].dtype), probe(parsed.rhs, avals[1].dtype))
        decision = decide(request, operands, LoweringTarget.of_platform(platform))
        if decision.kind == "error" and decision.contract is None:
            raise NotImplementedError(decision.reason)
        # Which one is the faster is asked where the parts' shapes are known.
        if decision.kind == "error" or (decision.kind == "xla" and decision.cause != "time"):
            raise NotServedError(decision.reason)


def lower(ctx: mlir.LoweringRuleContext, values: Sequence[Any], request: Request, local: Local) -> Any:
    """Lowers a contraction in a program for several devices.

    Args:
      ctx: where.
      values: lhs, rhs and perhaps c.
      request: what the caller asked for.
      local: binds the contraction on one device.

    Raises:
      NotServedError: it is better left to XLA, or must be.
      NotImplementedError: the program is exported and could not be run elsewhere.
    """
    if not isinstance(ctx.module_context.axis_context, mlir.ShardingContext):
        raise NotServedError("the others are XLA's")
    _check_served(ctx, request)
    avals: list[Any] = [*ctx.avals_in[:2], *ctx.avals_out]
    mesh = _compat.mesh_of_types(ctx)
    types = set() if mesh is None else set(mesh.axis_types)
    typed = types == {AxisType.Explicit}
    if len(types) > 1:
        raise NotServedError("some axes of the mesh are explicit and some are not")
    if any(0 in aval.shape for aval in avals[:2]):  # nothing to compute, and XLA's parts of nothing are odd
        xla = functools.partial(
            reference,
            spec=request.spec,
            out_dtype=request.out_dtype,
            precision=request.precision,
            beta=request.beta,
            out_sharding=avals[2].sharding if typed else None,
        )
        return mlir.lower_fun(xla, multiple_results=False)(ctx, *values)
    if any(_compat.has_partial_sums(aval.sharding.spec) for aval in avals):
        raise NotServedError("partial sums in a type (unreduced axes) are XLA's")
    if not typed and _compat.is_exported(ctx):
        raise NotImplementedError(EXPORT_ERROR)
    if not typed and len(_compat.platforms(ctx)) > 1:
        raise NotServedError("it is lowered for several platforms at once")
    if not typed and not _compat.uses_shardy():
        raise NotServedError("its partitioner is not Shardy")

    if request.config is None:  # a kernel that is named may take one order alone
        sources = [source(*pair, typed) for pair in zip(values[:2], ctx.avals_in[:2], strict=True)]
        ctx = ctx.replace(avals_in=[*(one.aval for one in sources), *ctx.avals_in[2:]])
        values = [*(one.value for one in sources), *values[2:]]
        left, right = sources
        request = dataclasses.replace(request, spec=absorbed(request.spec, (left.permutation, right.permutation)))
    if typed:
        assert mesh is not None
        avals = [*ctx.avals_in[:2], *ctx.avals_out]  # as the folded transposes left them
        shapes, specs = tuple(aval.shape for aval in avals), tuple(aval.sharding.spec for aval in avals)
        fun = _by_types(mesh, request, shapes, specs, len(values) == 3, local)
    else:
        with_devices = _compat.with_devices(ctx)
        if with_devices is None:
            raise NotServedError("this process does not see as many")
        ctx, devices = with_devices
        fun = _by_propagation(request, len(values) == 3, devices, local)
    return mlir.lower_fun(fun, multiple_results=False)(ctx, *values)
