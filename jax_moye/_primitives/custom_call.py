"""The custom call of a kernel: its attributes, its workspace, what it is written over, and conversions around it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import numpy_dtype, numpy_dtypes
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.orders import written_by
from jax_moye._primitives.padding import padded
from jax_moye._primitives.split_tf32 import split_tf32
from jax_moye._primitives.transposes import Permutations, transposed
from jax_moye._selection.capability import launched
from jax_moye._selection.decide import KernelCall
from jax_moye._selection.epilogue import EPILOGUE_OPERANDS, SCALES, Epilogue, stored_dtype
from jax_moye._selection.problem import GemmProblem
from jax_moye._selection.request import Request


def run_kernel(
    lhs: jax.Array,
    rhs: jax.Array,
    *operands: jax.Array,
    call: KernelCall,
    request: Request,
    permutations: Permutations,
    out_shape: Sequence[int],
    preactivation: bool = False,
) -> list[jax.Array]:
    """Computes a product by a kernel.

    Args:
      lhs: as it is in memory.
      rhs: likewise.
      *operands: c, where the request's beta is not 0; those of its epilogue, where it has one.
      call: how.
      request: what was asked for.
      permutations: of the transposes behind lhs and rhs.
      out_shape: of the result.
      preactivation: whether what the activation is applied to is wanted, too.

    Returns:
      The result in the request's dtype, and the pre-activation in `stored_dtype` of that if it is wanted; then, of two
      right-hand operands, the product of the second. Of a multiplier its other result in the pre-activation's place.
    """
    left, right = call.operands
    given = lhs, rhs
    lhs, rhs = transposed((lhs, rhs), permutations, (left.permutation, right.permutation))
    request = request.lasting_where([lhs is given[0], rhs is given[1], *[True] * len(operands)])
    stored = stored_dtype(request.out_dtype)
    launch = functools.partial(_launch, call=call, request=request, out_shape=out_shape)
    if call.epilogue is not None and call.epilogue.is_of_pair:
        _, second = transposed((lhs, *operands), permutations, (left.permutation, right.permutation))
        request = request.lasting_where([True, True, second is operands[0]])
        launch = functools.partial(launch, request=request)
        of_pair: dict[str, Any] = {"epilogue": call.epilogue, "strides": call.epilogue_strides}
        out, *z = launch(lhs, rhs, (second,), **of_pair, preactivation=preactivation)
    elif call.split:
        out, *z = _three_launches(lhs, rhs, operands, request.beta, launch)
    elif call.epilogue is not None:
        epilogue, strides = call.epilogue, call.epilogue_strides
        operands = tuple(
            lax.convert_element_type(x, jnp.float32 if name in SCALES else stored)
            for (name, _), x in zip(epilogue.operands, operands, strict=True)
        )
        out, *z = launch(lhs, rhs, operands, epilogue=epilogue, strides=strides, preactivation=preactivation)
    else:
        out, *z = launch(lhs, rhs, operands, **_plus_c(request.beta, call.problem) if operands else {})
    return [lax.convert_element_type(out, request.out_dtype), *(lax.convert_element_type(x, stored) for x in z)]


def run_kernel_on(platform: str) -> Callable[..., list[jax.Array]]:
    """`run_kernel` in a program for a platform, where its custom call is known from here on."""
    ffi.register(platform)
    return run_kernel


def _padded(x: Any, name: str, problem: GemmProblem, launched: GemmProblem) -> Any:
    """An operand of `problem`, "a" or "b", as the kernel reads it that is launched."""
    sizes = (*problem.batch_sizes, problem.m if name == "a" else problem.n, problem.k)
    return padded(x, sizes, problem.strides[name], launched.strides[name])


def _plus_c(beta: float, problem: GemmProblem) -> dict[str, Any]:
    """The epilogue that adds beta c, where c lies as the result does."""
    return {"epilogue": Epilogue(beta=beta, operands=(("c", ""),)), "strides": (problem.strides["d"],)}


def _three_launches(lhs: Any, rhs: Any, c: Sequence[Any], beta: float, launch: Any) -> list[jax.Array]:
    """f32 as 3 x TF32: the small products first, and each launch adds to what the one before wrote, in place."""
    problem, request = launch.keywords["call"].problem, launch.keywords["request"]
    lhs, rhs = (lax.convert_element_type(x, jnp.float32) for x in (lhs, rhs))
    (lhs_high, lhs_low), (rhs_high, rhs_low) = split_tf32(lhs), split_tf32(rhs)
    request = dataclasses.replace(request, lasting=())  # the parts are computed
    total = launch(lhs_low, rhs_high, c, **_plus_c(beta, problem) if c else {}, request=request)
    of_total: dict[str, Any] = _plus_c(1.0, problem) | {"request": dataclasses.replace(request, keeps_c=False)}
    total = launch(lhs_high, rhs_low, total, **of_total)
    return launch(lhs_high, rhs_high, total, **of_total)


def _launch(
    lhs: Any,
    rhs: Any,
    operands: Sequence[Any],
    *,
    call: KernelCall,
    request: Request,
    out_shape: Sequence[int],
    epilogue: Epilogue | None = None,
    strides: Sequence[tuple[int, ...]] = (),
    preactivation: bool = False,
) -> list[jax.Array]:
    """One custom call, and the conversions of operands to the kernel's dtypes; results have the kernel's.

    Operands and results are row-major arrays for XLA; the strides say what they are for the kernel. The workspace is a
    result too: memory from an allocator inside the handler could not be captured into a CUDA graph.
    """
    problem, config = call.problem, call.config
    dtype = numpy_dtype(problem.out_dtype)
    of_kernel = zip((rhs, lhs) if problem.swapped else (lhs, rhs), numpy_dtypes(problem.dtype), strict=True)
    a, b = (lax.convert_element_type(x, of) for x, of in of_kernel)
    is_of_pair = epilogue is not None and epilogue.is_of_pair
    names = [] if epilogue is None else [name for name, _ in epilogue.operands]
    read = [
        x if name in SCALES else lax.convert_element_type(x, b.dtype if is_of_pair else dtype)
        for name, x in zip(names, operands, strict=True)
    ]
    dense, problem = problem, launched(config, problem)
    a, b = _padded(a, "a", dense, problem), _padded(b, "b", dense, problem)
    if is_of_pair:
        read, strides = [_padded(x, "b", dense, problem) for x in read], [problem.strides["b"]]
    attributes = call_attributes(config, problem, request.interpret)
    if request.interpret is None and ffi.records_calls():
        of_b = (b, *read) if is_of_pair else (b,)
        given = [x for x, lasts in zip((lhs, rhs, *operands), request.lasting, strict=False) if lasts]
        as_given = [all(any(x is y for y in given) for x in of) for of in ((a,), of_b)]  # not converted, nor padded
        attributes["early_operands"] = np.int64(as_given[0] + 2 * as_given[1])  # gemm/config.h: kEarlyA, kEarlyB
    if call.compiled is not None:
        attributes["config"] = call.compiled
    target, aliases = ffi.TARGET, {}
    if problem.offsets:
        target = ffi.VIEW_TARGET
        of_all = epilogue_attributes(epilogue or Epilogue(), strides, problem.swapped, with_scales=True)
        attributes |= of_all | offset_attributes(problem)
    elif epilogue is not None:
        target = ffi.SCALED_TARGET if epilogue.is_scaled else ffi.FUSED_TARGET
        attributes |= epilogue_attributes(epilogue, strides, problem.swapped, epilogue.is_scaled)
    if epilogue is not None:
        is_sum = not epilogue.is_derivative  # else c is the forward pass', and read elsewhere
        if (
            "c" in names
            and is_sum
            and not request.keeps_c
            and _lies_as_d(read[names.index("c")], strides[names.index("c")], problem, out_shape)
        ):
            # The result is written over c, element by element: every kernel reads an element of c in the thread that
            # then writes that element of d. XLA would copy c first where anybody else still needs it.
            aliases = {2 + names.index("c"): 0}
    result = jax.ShapeDtypeStruct(tuple(out_shape), dtype)
    all_strides = tuple(problem.strides.values())
    workspace_bytes = ffi.workspace_bytes(config.name, problem.sizes, all_strides, problem.out_dtype, problem.offsets)
    workspace = jax.ShapeDtypeStruct((workspace_bytes,), jnp.uint8)
    with jax.named_scope(config.name):  # what a profiler shows
        results = [result, workspace] + [result] * (preactivation * (1 + is_of_pair))
        run = jax.ffi.ffi_call(target, results, input_output_aliases=aliases)
        out, _, *z = run(a, b, *read, **attributes)
    return [out, *z]


def with_c_kept(request: Request, values: Sequence[Any]) -> Request:
    """A request that says so where its c is an argument that the caller keeps.

    Args:
      request: of the product that is lowered where it stands.
      values: its operands.
    """
    names = ["c"] * (request.beta != 0) if request.epilogue is None else [name for name, _ in request.epilogue.operands]
    if "c" not in names or not _compat.is_borrowed(values[2 + names.index("c")]):
        return request
    return dataclasses.replace(request, keeps_c=True)


def with_lasting(ctx: Any, request: Request, operands: Sequence[Any]) -> Request:
    """A request that says which operands nothing writes while the program runs, where it is of use to know.

    A kernel that reads them ahead of the others wins time if the kernel ahead of it is ours and lets it begin early;
    behind a kernel of XLA's it loses some.

    Args:
      ctx: in which the product is lowered where it stands.
      request: of it.
      operands: as a kernel reads them, behind what strides stand for.
    """
    is_recorded = request.interpret is None and ffi.records_calls()
    if not is_recorded or not any((written_by(ctx, x) or "").startswith(ffi.PREFIX) for x in operands):
        return request  # nobody asks, and equal products are to be decided about once
    return dataclasses.replace(request, lasting=tuple(_compat.is_lasting(ctx, x) for x in operands))


class Problem(Protocol):
    """What each kind of call is about."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """In the order of the target's attribute."""

    @property
    def strides(self) -> Mapping[str, tuple[int, ...]]:
        """Of each array that has some, by its name."""


def call_attributes(config: GemmConfig, problem: Problem, interpret: InterpretParams | None) -> dict[str, Any]:
    """The attributes that say which kernel computes what, of all targets.

    The one place where they get their width: np.int64(3) and np.int32(3) are the same key of a cache.
    """
    attributes: dict[str, Any] = {
        "config": config.name,
        "sizes": np.array(problem.sizes, np.int64),
    } | {f"{name}_strides": np.array(strides, np.int64) for name, strides in problem.strides.items()}
    if interpret is None and ffi.records_calls():
        attributes["uses_pdl"] = True  # read by XLA: in its graphs, too, the kernel may begin early
    if interpret is not None:
        attributes["mode"] = interpret.mode
        attributes["seed"] = np.int64(interpret.seed)
        attributes["detect_races"] = interpret.detect_races
    return attributes


def offset_attributes(problem: GemmProblem) -> dict[str, Any]:
    """The attributes that say where in their arrays operands begin."""
    a, b, second_b = (*problem.offsets, 0)[:3]
    return {"a_offset": np.int64(a), "b_offset": np.int64(b), "second_b_offset": np.int64(second_b)}


def epilogue_attributes(
    epilogue: Epilogue, strides: Sequence[tuple[int, ...]], swapped: bool = False, with_scales: bool = False
) -> dict[str, Any]:
    """The attributes of what the kernel makes of the sums.

    Args:
      epilogue: what that is.
      strides: of its operands.
      swapped: as in GemmProblem; the kernel's lhs is a.
      with_scales: the target takes scales.
    """
    renamed = dict(zip(SCALES, reversed(SCALES), strict=True)) if swapped else {}
    names = [renamed.get(name, name) for name, _ in epilogue.operands]
    with_strides = EPILOGUE_OPERANDS + SCALES * with_scales
    of_name = dict(zip(names, strides, strict=True))
    return {
        "activation": epilogue.timed_as if epilogue.own is None else "own",
        "alpha": np.float64(epilogue.alpha),
        "beta": np.float64(epilogue.beta),
        "operands": ",".join(names),
    } | {f"{name}_strides": np.array(of_name.get(name, (0, 0, 0)), np.int64) for name in with_strides}


def _lies_as_d(c: Any, strides: tuple[int, ...], problem: GemmProblem, out_shape: Sequence[int]) -> bool:
    """Whether each element of c is where the result's is."""
    modes = zip(problem.sizes[:-1], strides, problem.strides["d"], strict=True)
    return c.shape == tuple(out_shape) and all(size == 1 or of_c == of_d for size, of_c, of_d in modes)
