"""The products of a program: a search through its jaxpr."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr

from jax_moye import _compat
from jax_moye._primitives.attention import (
    AttentionParams,
    attention_grad_p,
    attention_p,
    decided,
    describe,
)
from jax_moye._primitives.block_scaled import block_scaled_p, product_of
from jax_moye._primitives.contraction import contract_p
from jax_moye._primitives.dequantized import dequantized_p, groups_of
from jax_moye._primitives.fused import fused_p
from jax_moye._primitives.grouped import LAX_DIMENSIONS, grouped_fused_p, grouped_p, request_of_program
from jax_moye._primitives.grouped_permuted import permuted_p
from jax_moye._primitives.grouped_rewritten import grouped_rewritten_p
from jax_moye._primitives.orders import InJaxpr, Lies, how_it_lies, in_their_orders
from jax_moye._primitives.reference import canonical_dimensions, spec_of
from jax_moye._primitives.rewritten import rewritten_p, viewed_p
from jax_moye._primitives.transposes import source_in_jaxpr
from jax_moye._primitives.weights import operands_of, product_of_program, weights_p
from jax_moye._selection import block_scaled
from jax_moye._selection.attention import AttentionDecision
from jax_moye._selection.block_scaled import BlockScales
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.epilogue import SECOND_B, Epilogue
from jax_moye._selection.request import Operand, Operands, Request
from jax_moye._selection.weights import SPEC


@dataclasses.dataclass(frozen=True)
class Product:
    """A product in a jaxpr.

    Attributes:
      request: what the caller asked for.
      operands: lhs and rhs.
      is_lax: whether it is lax's own, and so XLA's.
      groups: of a product of groups, how many; None of others.
      permuted: whether rows of the result are stored where indices say.
      scales: of a product with weights of 8 or 4 bits, how many rows of scales; None of others. Where the program
        dequantizes them itself, `original` is its product.
      block_scales: of a product of blocks that have scales, what these are; None of others.
      original: what XLA computes where no kernel of ours does, of the operands in memory; None where that is the
        product as it was asked for.
    """

    request: Request
    operands: Operands
    is_lax: bool = False
    groups: int | None = None
    permuted: bool = False
    scales: int | None = None
    block_scales: BlockScales | None = None
    original: Any = dataclasses.field(default=None, compare=False)


def epilogue_words(epilogue: Epilogue) -> str:
    """What becomes of the sums, in words."""
    parts = [f"times the product with {name}" if name == SECOND_B else name for name, _ in epilogue.operands]
    parts += [f"{name}={getattr(epilogue, name):g}" for name in ("alpha",) if epilogue.alpha != 1]
    parts += ["both halves of one array"] * epilogue.halves
    parts += [f"beta={epilogue.beta:g}"] if epilogue.beta not in (0, 1) else []
    if epilogue.keeps:
        kept = "both products kept" if epilogue.is_of_pair else "its argument kept"
        parts.append("both cotangents of a gate" if epilogue.is_of_gate else kept)
    return ", ".join([epilogue.name, *parts] if epilogue.name != "none" else parts)


@dataclasses.dataclass(frozen=True)
class Attention:
    """An attention in a jaxpr, or its gradients.

    Attributes:
      params: what it is.
      operands: q, k and v, and of gradients d_o.
      original: the program's equations, for the results that it has.
      together: the same of all that belongs together, one object for an attention and its gradients; None where nobody
        kept them.
    """

    params: AttentionParams
    operands: tuple[Operand, ...]
    original: Any = dataclasses.field(compare=False)
    together: Any = dataclasses.field(compare=False, default=None)

    @property
    def is_of_gradients(self) -> bool:
        """Whether it is these."""
        return len(self.operands) == 4

    def decided(self, target: LoweringTarget) -> tuple[AttentionDecision, str]:
        """Who computes it, and what it is in words."""
        params = self.interpreted(None)
        decision, arrays = decided(params, self.operands, target, self.together)
        return decision, describe(params, None if arrays is None else arrays.sizes, self.is_of_gradients)

    def interpreted(self, interpret: Any) -> AttentionParams:
        """What it is where the emulator runs it so; None: where a GPU does, which no emulator is."""
        options = tuple((name, interpret if name == "interpret" else value) for name, value in self.params.options)
        return dataclasses.replace(self.params, options=options)


_PRODUCTS = (
    contract_p,
    fused_p,
    rewritten_p,
    viewed_p,
    grouped_p,
    grouped_fused_p,
    grouped_rewritten_p,
    permuted_p,
    weights_p,
    dequantized_p,
    block_scaled_p,
    attention_p,
    attention_grad_p,
)
Found = tuple[Product, int, tuple[str, ...]]


def products_of(jaxpr: Jaxpr) -> Iterator[Found]:
    """The products that XLA leaves in a program, how often each is computed, and in which loops and calls it stands."""
    for equation, made_by, count, where in _equations(_compat.without_dead_code(jaxpr), 1, ()):
        product = _product_of(equation, made_by)
        if product is not None:
            yield product, count, where


def _product_of(equation: Any, made_by: Mapping[Any, Any]) -> Product | None:
    """The product that an equation is; None if it is none."""
    name = equation.primitive.name
    if equation.primitive in (contract_p, fused_p, rewritten_p, viewed_p):
        return _product(equation, made_by)
    if equation.primitive in (grouped_p, grouped_fused_p, grouped_rewritten_p, permuted_p):
        return _grouped_product(equation, made_by)
    if equation.primitive is weights_p:
        return _product_with_weights(equation)
    if equation.primitive is block_scaled_p:
        return _block_scaled_product(equation)
    if equation.primitive is dequantized_p:
        return _dequantized_product(equation)
    if name == "dot_general":
        return _lax_product(equation)
    return _lax_ragged_product(equation) if name == "ragged_dot_general" else None


def attentions_of(jaxpr: Jaxpr) -> Iterator[tuple[Attention, int]]:
    """The attentions that `optimize` found in a program, and how often each is computed."""
    for equation, made_by, count, _ in _equations(_compat.without_dead_code(jaxpr), 1, ()):
        if equation.primitive in (attention_p, attention_grad_p):
            given = equation.invars[: 3 if equation.primitive is attention_p else 4]
            views = equation.params.get("views") or (None,) * len(given)
            operands = tuple(
                source_in_jaxpr(variable, made_by)
                if view is None
                else Operand(view.source, variable.aval.dtype, view=view)
                for variable, view in zip(given, views, strict=True)
            )
            whole = equation.params["original"].jaxpr.jaxpr
            outs = whole.outvars[: len(equation.params["results"])]
            of_program = whole.replace(outvars=outs)
            yield Attention(equation.params["attention"], operands, of_program, equation.params.get("together")), count


def _equations(jaxpr: Jaxpr, count: int, where: tuple[str, ...]) -> Iterator[tuple[Any, Mapping[Any, Any], int, Any]]:
    """The equations of a program and of what it calls, with what makes each value, how often, and where."""
    made_by = {variable: equation for equation in jaxpr.eqns for variable in equation.outvars}
    for equation in jaxpr.eqns:
        if equation.primitive in _PRODUCTS or equation.primitive.name in ("dot_general", "ragged_dot_general"):
            yield equation, made_by, count, where
            continue
        for inner, times, place in _inner_jaxprs(equation):
            yield from _equations(inner, count * times, where + ((place,) if place else ()))


def _inner_jaxprs(equation: Any) -> Iterator[tuple[Jaxpr, int, str]]:
    """The jaxprs of an equation's parameters, how often each runs, and the name of the place."""
    name, params = equation.primitive.name, equation.params
    times, place = 1, ""
    if name in ("scan", "jax_moye_scan"):
        times, place = params["length"], f"scan of {params['length']}"
    elif name in ("while", "shard_map"):
        place = name
    elif name in ("checkpoint", "remat", "remat2"):
        place = "checkpoint"
    elif "name" in params and isinstance(params["name"], str):
        place = params["name"]
    if name == "custom_linear_solve":  # its other functions are for derivatives
        params = {"jaxprs": params["jaxprs"].solve}
    for value in params.values():
        several = value if isinstance(value, (tuple, list)) else (value,)
        jaxprs = [x.jaxpr if isinstance(x, ClosedJaxpr) else x for x in several]
        for i, inner in enumerate(jaxprs):
            if isinstance(inner, Jaxpr):
                yield inner, times, f"branch {i} of {len(jaxprs)}" if name == "cond" else place


def _product(equation: Any, made_by: Mapping[Any, Any]) -> Product:
    """The product that an equation of contract_p, fused_p, rewritten_p or viewed_p is.

    Of parts of arrays it is the one that is decided about, of the same operands written to memory.
    """
    params = dict(equation.params)
    original, views = params.pop("original", None), params.pop("views", ())
    if views:
        original = params.pop("inner")
        del params["parts"]
    for name in ("preactivation", "out_sharding"):
        params.pop(name, None)
    epilogue = params.pop("epilogue", None)
    is_fused = equation.primitive is fused_p
    if is_fused and epilogue.is_nothing:
        epilogue = None
    # The emulator is not what a GPU runs.
    alone = (
        None
        if original is None
        else dataclasses.replace(original.alone(params | {"epilogue": epilogue}), interpret=None)
    )
    params |= {"interpret": None, "keeps_c": False, "epilogue": epilogue, "alone": alone}  # c changes no decision
    request = Request(**params)
    left, right = (source_in_jaxpr(variable, made_by) for variable in equation.invars[:2])
    if is_fused:  # w is converted to x's dtype behind the transpose
        right = dataclasses.replace(right, dtype=left.dtype)
    if epilogue is not None and epilogue.is_of_pair:  # both right-hand operands are read in one way
        second = source_in_jaxpr(equation.invars[2], made_by)
        right = right if second.permutation == right.permutation else right.transposed
    left, right = (
        operand if view is None else dataclasses.replace(operand, permutation=None, view=view).written
        for operand, view in itertools.zip_longest((left, right), views[:2])
    )
    if request.implementation == "xla":  # nobody asks for strides
        left, right = left.transposed, right.transposed
    if equation.primitive is contract_p:
        lie = [_lies(*pair, made_by) for pair in zip(equation.invars[:2], (left, right), strict=True)]
        orders = in_their_orders(request, (left, right), lie)
        return Product(orders.request, orders.operands)
    return Product(request, (left, right), original=original)


def _lies(variable: Any, operand: Operand, made_by: Mapping[Any, Any]) -> Lies:
    """How an operand lies that `source_in_jaxpr` found, perhaps in front of a transpose."""
    before = variable if operand.permutation is None else made_by[variable].invars[0]
    return how_it_lies(before, len(operand.shape), InJaxpr(made_by))


def _grouped_product(equation: Any, made_by: Mapping[Any, Any]) -> Product:
    """The product that an equation of grouped_p, grouped_fused_p, grouped_rewritten_p or permuted_p is."""
    params = dict(equation.params) | {"interpret": None}
    params.pop("preactivation", None)
    original, scatters = params.pop("original", None), params.pop("scatters", False)
    gathers, scatters = params.pop("is_permuted", (False, scatters))
    request = Request(**params) if original is None else request_of_program(params)
    left, right = (source_in_jaxpr(variable, made_by) for variable in equation.invars[:2])
    if request.epilogue is not None and request.epilogue.is_of_pair:  # both matrices are read in one way
        second = source_in_jaxpr(equation.invars[3], made_by)
        right = right if second.permutation == right.permutation else right.transposed
    groups = equation.invars[2].aval.shape[0]
    left = left.transposed
    if gathers:  # as many rows as the product has
        left = dataclasses.replace(left, shape=(equation.outvars[0].aval.shape[0], left.shape[1]))
    return Product(request, (left, right), groups=groups, original=original, permuted=scatters)


def _product_with_weights(equation: Any) -> Product:
    """The product that an equation of weights_p is."""
    x, w, scales, *_ = (x.aval for x in equation.invars)
    request = Request(SPEC, precision=None, **equation.params | {"interpret": None})
    return Product(request, operands_of(x, w), scales=scales.shape[0])


def _block_scaled_product(equation: Any) -> Product:
    """The product that an equation of block_scaled_p is."""
    scales, operands = product_of(*(x.aval for x in equation.invars))
    request = Request(block_scaled.SPEC, precision=None, **equation.params | {"interpret": None})
    return Product(request, operands, block_scales=scales)


def _dequantized_product(equation: Any) -> Product:
    """The product that an equation of dequantized_p is."""
    params = dict(equation.params)
    original, scales, zeros = (params.pop(name) for name in ("original", "scales", "zeros"))
    x, w, *_ = (x.aval for x in equation.invars)
    params |= {"interpret": None, "out_dtype": equation.outvars[0].aval.dtype}
    return Product(*product_of_program(x, w, **params), scales=groups_of(scales, zeros), original=original)


def _lax_ragged_product(equation: Any) -> Product | None:
    """One of lax's own that kernels of ours could compute; None of others."""
    lhs, rhs, sizes = (x.aval for x in equation.invars)
    spec = next((s for s, d in LAX_DIMENSIONS.items() if d == equation.params["ragged_dot_dimension_numbers"]), None)
    if spec is None or sizes.ndim != 1:
        return None
    operands = Operand(tuple(lhs.shape), lhs.dtype), Operand(tuple(rhs.shape), rhs.dtype)
    request = Request(spec, equation.outvars[0].aval.dtype, equation.params["precision"], None, None, None)
    return Product(request, operands, is_lax=True, groups=sizes.shape[0])


def _lax_product(equation: Any) -> Product:
    lhs, rhs = (Operand(tuple(x.aval.shape), x.aval.dtype) for x in equation.invars)
    spec = spec_of(canonical_dimensions(equation.params["dimension_numbers"]), len(lhs.shape), len(rhs.shape))
    request = Request(spec, equation.outvars[0].aval.dtype, equation.params["precision"], None, None, None)
    return Product(request, (lhs, rhs), is_lax=True)
