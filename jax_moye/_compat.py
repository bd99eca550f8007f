"""What depends on the version of JAX or is not quite public, in one place. Everything else uses documented API only.

Tried on jax 0.9.2 to 0.12.0.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.api_util import debug_info
from jax.extend.core import Jaxpr, JaxprEqn, Primitive, Var
from jax.extend.source_info_util import new_source_info
from jax.interpreters import mlir, partial_eval
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

# jax.jit(inline=...): the equations of the jitted function become those of the caller's jaxpr, while tracing. Since
# jax 0.11 True means while lowering, where the operands' defining operations are out of sight (see transposed_source).
INLINE_WHILE_TRACING: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True


# What is an array without a conversion. jax.core.Tracer is one too: isinstance(tracer, jax.Array).
ARRAYS = (jax.Array, np.ndarray, np.generic)


def varying_axes(x: ArrayLike) -> frozenset[str]:
    """The manual mesh axes over which x varies inside shard_map; empty outside, and with check_vma=False."""
    return varying_axes_of(jax.typeof(x))


def varying_axes_of(aval: Any) -> frozenset[str]:
    """The same of an array of a type."""
    manual = getattr(aval, "manual_axis_type", None)  # since jax 0.10
    return frozenset(manual.varying if manual is not None else getattr(aval, "vma", ()))


def match_varying(*operands: ArrayLike) -> list[Any]:
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


def broadcast_batch(x: jax.Array, size: int, dim: int, mesh_axis: Any) -> jax.Array:
    """A new dimension `dim` of `size`, all x, sharded over `mesh_axis` where vmap maps over one of an explicit mesh."""
    shape = (*x.shape[:dim], size, *x.shape[dim:])
    kept = tuple(axis for axis in range(len(shape)) if axis != dim)
    sharding = jax.typeof(x).sharding
    if sharding.mesh.empty or not sharding.mesh.are_all_axes_explicit:
        return jax.lax.broadcast_in_dim(x, shape, kept)
    axes = [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
    axes.insert(dim, mesh_axis)
    out_sharding = NamedSharding(sharding.mesh, PartitionSpec(*axes))
    return jax.lax.broadcast_in_dim(x, shape, kept, out_sharding=out_sharding)


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


def mesh_of_types(ctx: mlir.LoweringRuleContext) -> AbstractMesh | None:
    """The mesh that the types of the operands and results are about; None where they name none."""
    meshes = (aval.sharding.mesh for aval in (*ctx.avals_in, *ctx.avals_out))
    return next((mesh for mesh in meshes if not mesh.empty), None)


def has_explicit_axes(aval: Any) -> bool:
    """Whether an array's mesh has axes whose shardings are part of types."""
    return bool(getattr(aval.sharding.mesh, "explicit_axes", ()))


def asks_for_axes(sharding: NamedSharding | None) -> bool:
    """Whether the sharding that a product's result is asked to have says something: inside shard_map it may not."""
    return sharding is not None and bool(getattr(sharding.mesh, "explicit_axes", ()))


def has_partial_sums(spec: PartitionSpec) -> bool:
    """Whether an array of this sharding is one that is still to be added up over mesh axes."""
    return bool(getattr(spec, "unreduced", ()) or getattr(spec, "reduced", ()))


def permute_spec(spec: PartitionSpec, order: Sequence[int]) -> PartitionSpec:
    """The same axes with dimensions in another order: the first is the one that was `order[0]`."""
    axes = getattr(spec, "partitions", None)  # since jax 0.10 a spec with partial sums does not unpack
    axes = [*(tuple(spec) if axes is None else axes), *[None] * (len(order) - len(spec))]
    return PartitionSpec(*(axes[dim] for dim in order), unreduced=spec.unreduced, reduced=spec.reduced)


def no_mesh() -> Any:
    """A context in which what runs on one device is traced as if no mesh were set.

    Under jax.set_mesh of an explicit mesh jax 0.11 puts shardings into the bodies of reductions, which XLA refuses.
    """
    return jax.sharding.use_abstract_mesh(AbstractMesh((), ()))


def uses_shardy() -> bool:
    """Whether programs are partitioned by Shardy. The one before it does not read rules about dimensions."""
    return getattr(jax.config, "jax_use_shardy_partitioner", True)


def is_exported(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether jax.export lowers this program. The class that says so is exported by jax.interpreters.mlir."""
    return ctx.module_context.lowering_parameters.for_export


def platforms(ctx: mlir.LoweringRuleContext) -> tuple[str, ...]:
    """The platforms that the program is lowered for."""
    return tuple(ctx.module_context.platforms)


def with_devices(ctx: mlir.LoweringRuleContext) -> tuple[mlir.LoweringRuleContext, tuple[jax.Device, ...]] | None:
    """A context that custom_partitioning lowers in, and its devices; None where this process sees too few.

    A lowering rule is told how many devices there are, and not which, since JAX uses one lowering for all devices. It
    would tell primitives in its private prim_requires_devices_during_lowering, but then forbid them abstract
    meshes and several meshes in one program. custom_partitioning asks for devices in order to count them and to make
    meshes, and only positions in those reach the program: any devices will do.
    """
    axis_context = ctx.module_context.axis_context
    if not isinstance(axis_context, mlir.ShardingContext):
        return None
    try:
        devices = jax.devices(platforms(ctx)[0])
    except RuntimeError:  # the program is lowered here for another machine
        return None
    if len(devices) < axis_context.num_devices:
        return None
    first = tuple(devices[: axis_context.num_devices])
    module_context = ctx.module_context.replace(axis_context=mlir.ShardingContext(len(first), first))
    return ctx.replace(module_context=module_context), first


def transposed_source(value: Any, typed: bool = False) -> tuple[Any, tuple[int, ...] | None]:
    """What a transpose right in front of an operand reads, and its permutation; (value, None) if there is none.

    Looks at MLIR objects, whose Python classes jaxlib exports but does not document. Seeing the operand's defining
    operation needs a lowering rule registered with cacheable=False: others are lowered as functions of fresh arguments.

    Args:
      value: of the program.
      typed: its type has a sharding, which JAX writes behind the transpose as a constraint that says nothing new.
    """
    operation: Any = getattr(value, "owner", None)
    if typed and getattr(operation, "name", None) == "sdy.sharding_constraint":
        operation = getattr(operation.operands[0], "owner", None)
    if getattr(operation, "name", None) != "stablehlo.transpose":
        return value, None
    return operation.operands[0], tuple(int(i) for i in operation.attributes["permutation"])


def is_borrowed(value: Any) -> bool:
    """Whether a value is an argument of the program that its caller keeps, or a constant, perhaps of another shape.

    Looks at MLIR objects as `transposed_source` does. JAX says of an argument of the main function that is donated
    which result it is for, or that it may be any, before it lowers what the function computes. Of what a function
    inside of the program is given, nothing is known.

    Args:
      value: of the program.
    """
    owner: Any = getattr(value, "owner", None)
    while getattr(owner, "name", None) == "stablehlo.reshape":
        value = owner.operands[0]
        owner = getattr(value, "owner", None)
    if getattr(owner, "name", None) == "stablehlo.constant":
        return True
    function, number = getattr(owner, "owner", None), getattr(value, "arg_number", None)
    attributes = getattr(function, "attributes", {})
    if number is None or "sym_name" not in attributes or attributes["sym_name"].value != "main":
        return False
    said = attributes["arg_attrs"][number] if "arg_attrs" in attributes else {}
    return not any(name in said for name in ("tf.aliasing_output", "jax.buffer_donor"))


def is_lasting(ctx: mlir.LoweringRuleContext, value: Any) -> bool:
    """Whether a value is an array that the program was given as a kernel reads it, which nothing writes meanwhile.

    As `is_borrowed`, but for what XLA may compute or move in front of a kernel: constants, other shapes, arguments in
    the host's memory or in an order of their own, what is on several devices, and programs that are exported, whose
    arguments another program may compute.

    Args:
      ctx: in which the kernel's call is lowered.
      value: an operand of it.
    """
    context = ctx.module_context.axis_context
    if is_exported(ctx) or not isinstance(context, mlir.ShardingContext) or context.num_devices != 1:
        return False
    number = getattr(value, "arg_number", None)
    if number is None or not is_borrowed(value):
        return False
    attributes = value.owner.owner.attributes
    said = attributes["arg_attrs"][number] if "arg_attrs" in attributes else {}
    return not any(name in said for name in ("mhlo.layout_mode", "mhlo.memory_kind"))


def source_aval(aval: Any, permutation: Sequence[int]) -> Any:
    """The type of an array whose transpose by `permutation` has type `aval`."""
    order = sorted(range(aval.ndim), key=lambda dim: permutation[dim])
    sharding = NamedSharding(aval.sharding.mesh, permute_spec(aval.sharding.spec, order))
    return aval.update(shape=tuple(aval.shape[dim] for dim in order), sharding=sharding)


def local_aval(shape: Sequence[int], dtype: Any) -> Any:
    """An abstract array without a sharding. jax.core.ShapedArray is not documented, but has no other public name."""
    shape = tuple(shape)
    known = all(isinstance(size, int) for size in shape)  # else it is symbolic, whose comparison is not Python's
    return (_known_aval if known else jax.core.ShapedArray)(shape, dtype)


@functools.lru_cache(maxsize=4096)
def _known_aval(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.core.ShapedArray(shape, dtype)


def is_on_mesh(aval: Any) -> bool:
    """Whether an array's type says something about a mesh: how it is sharded there, or over which axes it varies."""
    sharding = getattr(aval, "sharding", None)
    return sharding is not None and not sharding.mesh.empty


def is_in_device_memory(aval: Any) -> bool:
    """Whether an array of a type is in the device's memory, and not in the host's."""
    space = getattr(aval, "memory_space", None)
    return space is None or getattr(space, "name", None) == "Device"


def without_mesh(aval: Any) -> Any:
    """The type of the same array where no mesh is."""
    return jax.core.ShapedArray(aval.shape, aval.dtype, weak_type=aval.weak_type) if is_on_mesh(aval) else aval


def jaxpr_of(fun: Callable[..., Any], avals: Sequence[Any]) -> Jaxpr:
    """The jaxpr of a function of arrays of these types, without a mesh's shardings.

    Inside shard_map values vary over mesh axes, and numbers have to be made to. There it is the body of a shard_map.

    Args:
      fun: of arrays of one dimension or more, whose results have as many or more.
      avals: the arrays' types.
    """
    over = [varying_axes_of(aval) for aval in avals]
    axes = sorted(frozenset().union(*over))
    structs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    if not axes:
        return jax.make_jaxpr(fun)(*structs).jaxpr
    mesh = next(aval.sharding.mesh for aval, names in zip(avals, over, strict=True) if names)
    counts = [math.prod(mesh.shape[name] for name in names) for names in over]
    whole = [
        jax.ShapeDtypeStruct((x.shape[0] * count, *x.shape[1:]) if names else x.shape, x.dtype)
        for x, count, names in zip(structs, counts, over, strict=True)
    ]
    with no_mesh():
        mapped = jax.shard_map(
            fun,
            mesh=mesh.update_axis_types(dict.fromkeys(mesh.manual_axes, AxisType.Auto)),
            axis_names=frozenset(mesh.manual_axes),
            in_specs=tuple(PartitionSpec(tuple(sorted(names)) or None) for names in over),
            out_specs=PartitionSpec(tuple(axes)),
        )
        (equation,) = jax.make_jaxpr(mapped)(*whole).jaxpr.eqns
    return getattr(equation.params["jaxpr"], "jaxpr", equation.params["jaxpr"])


# JAX warns of jaxprs without it: nothing is said of the operands and results of one that lives for a moment.
UNNAMED = debug_info("lower_equation", lambda: None, (), {})._replace(arg_names=None, result_paths=None)


def lower_equation(
    ctx: mlir.LoweringRuleContext,
    primitive: Primitive,
    values: Sequence[Any],
    avals: Sequence[Any],
    **params: Any,
) -> Sequence[Any]:
    """What mlir.lower_fun(primitive.bind) lowers of these values, without tracing it.

    Tracing takes a fifth of a millisecond, and so each product of a program would take longer to lower than lax's. As
    there, an equal equation of the same module is not lowered again where the primitive's rule is cacheable.
    mlir.jaxpr_subcomp and the classes of jax.extend.core are exported, but not documented.

    Args:
      ctx: where the equation is lowered; its results are those of the equation there.
      primitive: of the equation, without effects.
      values: the operands.
      avals: their types, of which shape and dtype count.
      **params: the primitive's.

    Returns:
      The results.
    """
    inputs, outputs = [[Var(local_aval(x.shape, x.dtype)) for x in of] for of in (avals, ctx.avals_out)]
    equation = JaxprEqn(inputs, outputs, primitive, params, frozenset(), new_source_info(), ctx.jaxpr_eqn_ctx)
    module = ctx.module_context if ctx.platforms is None else ctx.module_context.replace(platforms=ctx.platforms)
    results, _ = mlir.jaxpr_subcomp(
        module,
        Jaxpr([], inputs, outputs, [equation], debug_info=UNNAMED),
        ctx.name_stack,
        ctx.tokens_in,
        [],
        *values,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=ctx.traceback,
    )
    return results


def without_dead_code(jaxpr: Any, keep_inputs: bool = False) -> Any:
    """A jaxpr without the equations that nobody reads, those inside loops and calls included.

    dce_jaxpr is exported by jax.interpreters.partial_eval, but not documented.

    Args:
      jaxpr: without constants.
      keep_inputs: also those that nobody reads.
    """
    live, _ = partial_eval.dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars), instantiate=keep_inputs)
    return live


class ScanOperands(NamedTuple):
    """What an equation of scan says of its operands: those that are the same in each iteration, then the carry, others.

    Attributes:
      consts: how many operands are the same in each iteration.
      carry: how many are the carry's, and so are the first results.
      linear: by operand, whether the program is linear in it, which jax up to 0.10 says.
    """

    consts: int
    carry: int
    linear: tuple[bool, ...]


def scan_operands(params: Mapping[str, Any]) -> ScanOperands | None:
    """What the parameters of an equation of scan say of its operands; None where they are not known here.

    Up to jax 0.10 they are num_consts, num_carry and linear. Since 0.11 there are two trees in the place of those,
    ft_in of (constants, carry, the others) and ft_out of (carry, stacked results), of a class that is not public.
    """
    if not {"jaxpr", "length"} <= params.keys():
        return None
    if {"num_consts", "num_carry"} <= params.keys():
        inputs = params["jaxpr"].in_avals
        return ScanOperands(params["num_consts"], params["num_carry"], params.get("linear", (False,) * len(inputs)))
    try:
        consts, carry, stacked = map(len, params["ft_in"].unpack())
        carried, _ = map(len, params["ft_out"].unpack())
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    return ScanOperands(consts, carry, (False,) * (consts + carry + stacked)) if carry == carried else None


def scan_params(params: Mapping[str, Any], operands: ScanOperands, jaxpr: Any) -> dict[str, Any]:
    """The parameters of a scan with other operands and another body, all else as in `params`.

    Args:
      params: of an equation of scan.
      operands: the new ones.
      jaxpr: the new body.
    """
    of_operands: dict[str, Any]
    if "ft_in" in params:
        stacked = len(operands.linear) - operands.consts - operands.carry
        results = len(jaxpr.outvars) - operands.carry
        of_operands = dict(_trees_of_scan(operands.consts, operands.carry, stacked, results))
    else:
        of_operands = {"num_consts": operands.consts, "num_carry": operands.carry}
        if "linear" in params:
            of_operands["linear"] = operands.linear
    return {**params, **of_operands, "jaxpr": jaxpr}


@functools.lru_cache(maxsize=1024)
def _trees_of_scan(consts: int, carry: int, stacked: int, results: int) -> tuple[tuple[str, Any], ...]:
    """ft_in and ft_out, which JAX alone can make: those of a scan of numbers that it traces.

    It is traced so that JAX has nothing to simplify: each operand is read, and each result another value.
    """

    def fun(constants: list[Any], start: list[Any], rows: list[Any]) -> Any:
        def body(state: list[Any], row: list[Any]) -> Any:
            total = sum([*constants, *state, *row], start=0.0)
            return [total * x for x in state], [total + i for i in range(results)]

        return jax.lax.scan(body, start, rows, length=1)

    number, row = (jax.ShapeDtypeStruct(shape, np.float32) for shape in ((), (1,)))
    with jax.disable_jit(False):
        closed = jax.make_jaxpr(fun)([number] * consts, [number] * carry, [row] * stacked)
    (params,) = (equation.params for equation in closed.jaxpr.eqns if equation.primitive.name == "scan")
    return tuple((name, params[name]) for name in ("ft_in", "ft_out"))


@functools.cache
def cuda_arch() -> int | None:
    """The lowest architecture of this process's CUDA devices, e.g. 90; None if there is none.

    Called while lowering for CUDA, when the backends are up. `compute_capability` is an attribute of CUDA devices only.
    """
    return min(cuda_archs(), default=None)


def cuda_archs() -> frozenset[int]:
    """The architectures of this process's CUDA devices; none where there is no CUDA backend."""
    try:
        devices = jax.devices("cuda")
    except RuntimeError:  # the program is lowered here for another machine
        return frozenset()
    return frozenset(round(10 * float(device.compute_capability)) for device in devices)


class KeyValueStore(NamedTuple):
    """What the processes of one program share.

    Attributes:
      process_id: of this one; 0 of the first.
      client: of the coordination service.
    """

    process_id: int
    client: Any

    def put(self, name: str, text: str) -> None:
        """Hands out what all will read."""
        self.client.key_value_set(name, text, allow_overwrite=True)

    def get(self, name: str, seconds: float) -> str:
        """Waits for what another process hands out; raises an error of jaxlib when the time is over."""
        return self.client.blocking_key_value_get(name, int(1000 * seconds))


def key_value_store() -> KeyValueStore | None:
    """That of jax.distributed; None where this process is alone.

    JAX has no public name for it: tests/python/test_compat.py fails when the private one goes.
    """
    from jax._src import distributed

    state = distributed.global_state
    if state.client is None or (state.num_processes or 1) < 2:
        return None
    return KeyValueStore(state.process_id, state.client)


def check_for_nan(*primitives: Primitive) -> None:
    """Lets checkify's float_checks look at what these primitives compute, as at lax's dot_general.

    JAX has no public name for its table of rules: tests/python/test_compat.py fails when the private one goes.
    """
    with contextlib.suppress(ImportError, AttributeError):
        from jax._src import checkify

        for primitive in primitives:
            checkify.error_checks[primitive] = functools.partial(checkify.nan_error_check, primitive)


def give_sparse_rule(primitive: Primitive, fun: Callable[..., Any]) -> None:
    """Lets jax.experimental.sparse compute `primitive` by fun(*operands, **params), where an operand is sparse.

    Does nothing while nobody has imported that package: it takes longer to import than jax_moye.
    """
    sparse = sys.modules.get("jax.experimental.sparse.transform")
    if sparse is None or primitive in sparse.sparse_rules_bcoo:
        return

    def rule(spenv: Any, *values: Any, **params: Any) -> Any:
        arrays = sparse.spvalues_to_arrays(spenv, values)
        out = sparse.sparsify(functools.partial(fun, **params))(*arrays)
        return sparse.arrays_to_spvalues(spenv, [out])

    sparse.sparse_rules_bcoo[primitive] = sparse.sparse_rules_bcsr[primitive] = rule


class _LaxItself(threading.local):
    """Whether this thread is where lax.dot_general must mean JAX's own."""

    depth = 0


_lax_itself = _LaxItself()


@contextlib.contextmanager
def lax_itself() -> Iterator[None]:
    """In this block lax.dot_general is JAX's own, whoever intercepts it: our way to XLA must not lead back to us."""
    _lax_itself.depth += 1
    try:
        yield
    finally:
        _lax_itself.depth -= 1


@functools.cache
def ragged_dot_general_p() -> Primitive:
    """That of lax.ragged_dot_general, for which JAX has no public name: a traced program names it."""
    shapes = ((2, 1), (1, 1, 1), (1,))
    dtypes = (np.float32, np.float32, np.int32)
    operands = [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
    with lax_itself():
        equations = jax.make_jaxpr(jax.lax.ragged_dot)(*operands).jaxpr.eqns
    (primitive,) = (equation.primitive for equation in equations if equation.primitive.name == "ragged_dot_general")
    return primitive


def hook(primitive: Primitive, take: Callable[..., Any]) -> Callable[[], None]:
    """Sends what binds the primitive, under whatever name it is called, to take(original, *operands, params).

    All of JAX's matrix products end in `dot_general_p.bind`, the one place that no other module holds a copy of: names
    such as jax.lax.dot_general are bound as default arguments and by `from ... import`. The primitive is public
    (jax.extend.core.primitives); that an attribute of the object replaces the method of its class is Python's, and that
    callers look it up there at every call is JAX's habit: tests/python/_api/test_intercept.py fails when that changes.

    Returns:
      What puts back what was found.
    """
    found = vars(primitive).get("bind")
    original = primitive.bind

    def bind(*operands: Any, **params: Any) -> Any:
        if _lax_itself.depth:
            return original(*operands, **params)
        return take(original, *operands, params)

    primitive.bind = bind  # type: ignore[method-assign]

    def unhook() -> None:
        if found is None:
            del primitive.bind
        else:
            primitive.bind = found  # type: ignore[method-assign]

    return unhook


def hook_jit(take: Callable[..., Any]) -> Callable[[], None]:
    """Sends who calls jax.jit by that name to take(original, *args, **kwargs).

    There is no public place through which every jitted function goes: a call of one that was jitted before binds no
    primitive, but runs in jaxlib, and its trace ends in JAX's private modules.

    Returns:
      What puts back what was found.
    """
    found = jax.jit

    @functools.wraps(found)
    def jit(*args: Any, **kwargs: Any) -> Any:
        return take(found, *args, **kwargs)

    jax.jit = jit

    def unhook() -> None:
        jax.jit = found

    return unhook
