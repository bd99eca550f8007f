"""Programs that compute one product, what it is in float64, and operands for it: what `report` and `tune` time.

Of a product that `explain` found, and of a workload, whose product is explained like any other.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jax_moye._api.linear import linear
from jax_moye._api.matmul import matmul
from jax_moye._inspect.explain import Explanation, explain_function
from jax_moye._inspect.products import Product
from jax_moye._kernels.devices import Device
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.contraction import contract
from jax_moye._primitives.fused import fused
from jax_moye._primitives.rewritten import rewritten_p
from jax_moye._primitives.transposes import transposed
from jax_moye._selection.epilogue import ACTIVATIONS, DERIVATIVES, SCALES, Epilogue, stored_dtype
from jax_moye._selection.problem import parse_spec
from jax_moye._selection.request import Operand, label_sizes
from jax_moye._timing.correctness import Reference
from jax_moye._timing.operands import OperandSets, Rotation, expected_us, random_sets, rotated_bytes, rotation
from jax_moye._timing.programs import quick_options
from jax_moye._timing.workloads import Workload


def program_of(product: Product, implementation: Any, interpret: InterpretParams | None) -> Callable[..., Any]:
    """The product as a function of what is in memory, behind its transposes.

    It returns an array; a list of what is kept beside the result, which is the first, where something is.
    """
    request, (left, right) = product.request, product.operands
    contracts = implementation != "xla"  # with them XLA would refuse
    params: dict[str, Any] = {
        "out_dtype": request.out_dtype,
        "precision": request.precision,
        "out_sharding": None,
        "config": request.config if contracts else None,
        "implementation": implementation,
        "interpret": interpret,
        "deterministic": request.deterministic and contracts,
        "batch_invariant": request.batch_invariant and contracts,
    }

    # A contract stands in its equations, too.
    is_kept = contracts or request.deterministic or request.batch_invariant or product.original is None
    original = None if is_kept else product.original.by_xla
    epilogue = request.epilogue
    is_of_pair = epilogue is not None and epilogue.is_of_pair
    # What no layer of `fused` is.
    is_rewritten_alone = is_of_pair or (epilogue is not None and (epilogue.keeps or epilogue.is_derivative))

    def fun(lhs: Any, rhs: Any, *rest: Any) -> Any:
        permutations = left.permutation, right.permutation
        lhs, rhs = transposed((lhs, rhs), permutations)
        if is_of_pair:
            rest = tuple(transposed((lhs, x), (None, right.permutation))[1] for x in rest)
        if original is not None:
            return _one_or_all(original(lhs, rhs, *_as_given(rest, original)))
        if product.original is not None and is_rewritten_alone:
            of_rewritten = {name: value for name, value in params.items() if name != "out_sharding"}
            of_rewritten |= {"spec": request.spec, "epilogue": epilogue, "original": product.original}
            return _one_or_all(rewritten_p.bind(lhs, rhs, *_as_given(rest, product.original), **of_rewritten))
        if request.epilogue is not None:
            return fused(request.spec, lhs, rhs, rest, epilogue=request.epilogue, **params)
        return contract(request.spec, lhs, rhs, *rest, beta=request.beta, **params)

    return fun


def _as_given(values: Sequence[Any], original: Any) -> list[Any]:
    """The operands of an epilogue in the shapes that the equations as they were have."""
    return [x.reshape(aval.shape) for x, aval in zip(values, original.jaxpr.in_avals[2:], strict=True)]


def _one_or_all(results: Sequence[Any]) -> Any:
    return results[0] if len(results) == 1 else list(results)


def _added(product: Product) -> tuple[tuple[str, str], ...]:
    """(name, labels) of the operands behind lhs and rhs."""
    if product.request.epilogue is not None:
        return product.request.epilogue.operands
    return (("c", parse_spec(product.request.spec).out),) if product.request.beta != 0 else ()


def added_structs(product: Product) -> list[tuple[tuple[str, str], jax.ShapeDtypeStruct]]:
    """((name, labels), struct) of the operands behind lhs and rhs."""
    sizes, out_dtype = label_sizes(product.request.spec, product.operands), product.request.out_dtype
    dtype = stored_dtype(out_dtype) if product.request.epilogue is not None else out_dtype
    if product.request.epilogue is not None and product.request.epilogue.is_of_pair:  # as the first one lies
        right = product.operands[1]
        return [(named, jax.ShapeDtypeStruct(right.shape, right.dtype)) for named in _added(product)]
    return [
        (named, jax.ShapeDtypeStruct(tuple(sizes[x] for x in named[1]), jnp.float32 if named[0] in SCALES else dtype))
        for named in _added(product)
    ]


def structs_of(product: Product) -> list[jax.ShapeDtypeStruct]:
    """Of all operands in memory, those of the epilogue last."""
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in product.operands]
    return structs + [struct for _, struct in added_structs(product)]


def random_operands(product: Product, device: jax.Device, largest_loop: int) -> OperandSets:
    """Sets of operands of a product that rotate; without a GPU one alone.

    Args:
      product: that is computed.
      device: where.
      largest_loop: as in `rotation`.
    """
    request, structs = product.request, structs_of(product)
    sizes = label_sizes(request.spec, product.operands)
    result = math.prod(sizes[label] for label in parse_spec(request.spec).out)
    epilogue, right_operands = request.epilogue, 1
    if epilogue is not None:
        right_operands += epilogue.is_of_pair
        result *= 1 + epilogue.keeps * right_operands
    footprint = result * jnp.dtype(request.out_dtype).itemsize
    footprint += sum(math.prod(struct.shape) * jnp.dtype(struct.dtype).itemsize for struct in structs)
    rotating = Rotation(1, 1, 0)
    if device.platform == "gpu":
        us = expected_us(2 * right_operands * math.prod(sizes.values()), footprint)
        rotating = rotation(us, footprint, rotated_bytes(), device, largest_loop)
    return random_sets(structs, rotating, seed=footprint % 2**31)


def reference_of(product: Product, operands: Sequence[Any]) -> Reference:
    """The whole product in float64. Needs `jax.enable_x64`.

    Args:
      product: that is computed.
      operands: one set of them, as in memory.
    """
    request, parsed = product.request, parse_spec(product.request.spec)

    def float64(operand: Operand) -> Operand:
        return dataclasses.replace(operand, dtype=jnp.dtype("float64"))

    wide = dataclasses.replace(
        product,
        request=dataclasses.replace(request, out_dtype=jnp.dtype("float64"), precision=None),
        original=None,
        operands=(float64(product.operands[0]), float64(product.operands[1])),
    )
    sums_alone = dataclasses.replace(wide, request=dataclasses.replace(wide.request, beta=0, epilogue=None))
    alpha = 1.0 if request.epilogue is None else request.epilogue.alpha
    factor = (lambda name: request.beta) if request.epilogue is None else request.epilogue.factor
    if request.epilogue is not None and request.epilogue.is_of_pair:
        return _reference_of_pair(program_of(sums_alone, "xla", None), request.epilogue, operands)
    if request.epilogue is not None and request.epilogue.is_derivative:
        return _reference_of_derivative(program_of(sums_alone, "xla", None), request.epilogue, operands)

    @functools.partial(jax.jit, compiler_options=quick_options())
    def reference(*operands: Any) -> tuple[Any, Any, Any]:
        operands = tuple(x.astype(jnp.float64) for x in operands)
        product_of = program_of(sums_alone, "xla", None)
        scale: Any = abs(alpha)  # of the product
        others = []
        for (name, labels), x in zip(_added(product), operands[2:], strict=True):
            x = jnp.abs(lax.expand_dims(x, [i for i, label in enumerate(parsed.out) if label not in labels]))
            if name in SCALES:
                scale = scale * x
            else:
                others.append(abs(factor(name)) * x)
        magnitude = scale * product_of(*map(jnp.abs, operands[:2]))
        exact, parts = program_of(wide, "xla", None)(*operands), None
        if request.epilogue is not None or request.beta != 0:
            parts = sum(others, scale * jnp.abs(product_of(*operands[:2])))
        if jnp.issubdtype(request.out_dtype, jnp.integer):  # wraps around, in every order alike
            exact = exact.astype(jnp.int64).astype(request.out_dtype)
        return exact, magnitude, parts

    return Reference(*reference(*operands))


def _reference_of_pair(product_of: Callable[..., Any], epilogue: Epilogue, operands: Sequence[Any]) -> Reference:
    """Of activation(alpha x w) * (x second_b): what is off in one of the factors is multiplied with the other."""

    @functools.partial(jax.jit, compiler_options=quick_options())
    def reference(x: Any, w: Any, second: Any) -> tuple[Any, Any, Any]:
        x, w, second = (one.astype(jnp.float64) for one in (x, w, second))
        z, factor = epilogue.alpha * product_of(x, w), product_of(x, second)
        of_z, of_factor = (product_of(jnp.abs(x), jnp.abs(one)) for one in (w, second))
        activated = epilogue.function(z)
        magnitude = abs(epilogue.alpha) * of_z * jnp.abs(factor) + jnp.abs(activated) * of_factor
        return activated * factor, magnitude, jnp.abs(z * factor)

    return Reference(*reference(*operands))


def _reference_of_derivative(product_of: Callable[..., Any], epilogue: Epilogue, operands: Sequence[Any]) -> Reference:
    """Of alpha x w, times an activation's derivative at c, and a multiplier where there is one."""
    activation = ACTIVATIONS[DERIVATIVES[epilogue.name]]

    @functools.partial(jax.jit, compiler_options=quick_options())
    def reference(*operands: Any) -> tuple[Any, Any, Any]:
        x, w, c, *others = (one.astype(jnp.float64) for one in operands)
        z, magnitude = (epilogue.alpha * product_of(x, w), product_of(jnp.abs(x), jnp.abs(w)))
        for multiplier in others:
            z, magnitude = z * multiplier, magnitude * jnp.abs(multiplier)
        return jax.vjp(activation, c)[1](z)[0], abs(epilogue.alpha) * magnitude, jnp.abs(z)

    return Reference(*reference(*operands))


# -------------------------------------------------------------------------------------------------------- workloads


def workload_program(workload: Workload, **options: Any) -> Callable[..., Any]:
    """What a user of jax_moye would write, of the workload's operands as stored.

    Args:
      workload: that is computed.
      **options: of `jax_moye.matmul` and `jax_moye.linear`.
    """
    bias, activation, residual = workload.finish
    options = {"precision": workload.jax_precision, **options}
    if workload.result_dtype != workload.operand_dtype:
        options["preferred_element_type"] = workload.result_dtype
    if not any(workload.finish):
        return workload.as_stored(functools.partial(matmul, **options))

    def layer(a: Any, b: Any, *more: Any) -> Any:
        rest = list(more)
        named: dict[str, Any] = {"activation": activation}
        named |= {"bias": rest.pop(0)} if bias else {}
        named |= {"residual": rest.pop(0)} if residual else {}
        return linear(a, b, **named, **options)

    return workload.as_stored(layer)


def explain_workload(workload: Workload, device: Device, **options: Any) -> Explanation:
    """The product of a workload.

    Args:
      workload: that is computed.
      device: the GPU that is meant.
      **options: as in `workload_program`.
    """
    with jax.enable_x64(True) if workload.operand_dtype.itemsize == 8 else contextlib.nullcontext():
        return explain_function(workload_program(workload, **options), workload.structs, device)
