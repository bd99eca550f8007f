"""rewritten_p: a product, or two of one left operand, and the elementwise equations behind it, one by one in a program.

`jax_moye.optimize` puts it in their place. Where a kernel of ours computes all of it, and is known to be faster than
what XLA makes of the equations as they were, it is one custom call. Everywhere else it is those equations. Their
product is then one of contract_p: XLA's where XLA is faster at all of it, and else decided about as if it stood alone.
The same holds for its derivatives and under vmap: only the time tells that the program was rewritten.

viewed_p: an equation of contract_p or rewritten_p, and those in front of it that take its operands out of larger arrays
(views.py), which are what it reads. Likewise it is one custom call, which reads the parts where they are, or all those
equations.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir, xla

from jax_moye import _compat
from jax_moye._log import say_once
from jax_moye._primitives.autotune import decide_by_measuring
from jax_moye._primitives.contraction import contract_p, heed, linear_transpose, xlas_product
from jax_moye._primitives.custom_call import run_kernel_on, with_c_kept, with_lasting
from jax_moye._primitives.equations import names_a_mesh, of_one_device, parted
from jax_moye._primitives.fused import with_own_activation
from jax_moye._primitives.orders import with_orders_in_lowering
from jax_moye._primitives.product_race import Joined, XlaProgram
from jax_moye._primitives.transposes import Permutation, Permutations, Source, operands_of, source, transposed
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.decide import Decision, decide
from jax_moye._selection.in_place import in_place
from jax_moye._selection.leads import wins_by
from jax_moye._selection.request import Operand, Operands, Request, describe, label_sizes
from jax_moye._selection.view import View


class Original:
    """The equations as they were, of the operands of the primitive. One is equal to itself, and to others of its key.

    Of rewritten_p these are lhs, rhs and the operands of the epilogue, in its order.

    Attributes:
      jaxpr: its first result is that of the last equation; behind it, where the epilogue keeps them, the
        pre-activation and a second right-hand operand's product, or a multiplier's other result. Its products are
        equations of contract_p.
      key: what says all that they compute, so that of equal equations of a program one is lowered; None where nothing
        does.
    """

    def __init__(self, jaxpr: ClosedJaxpr, key: Hashable = None) -> None:
        """Keeps them."""
        self.jaxpr, self.key = jaxpr, key

    def __eq__(self, other: object) -> bool:
        """Whether it is the same, or computes the same."""
        return self is other or (isinstance(other, Original) and self.key is not None and self.key == other.key)

    def __hash__(self) -> int:
        """Of what it is equal to."""
        return id(self) if self.key is None else hash(self.key)

    def __call__(self, *operands: Any) -> list[Any]:
        """What they compute."""
        return jaxpr_as_fun(self.jaxpr)(*operands)

    @property
    def first(self) -> Any:
        """The equation of the first of its products."""
        return next(x for x in self.jaxpr.eqns if x.primitive is contract_p)

    @functools.cached_property
    def product(self) -> Request:
        """What is asked for of the first of its products."""
        return Request(**{name: value for name, value in self.first.params.items() if name != "out_sharding"})

    def alone(self, params: Mapping[str, Any]) -> Request:
        """What is asked for of the product where no kernel finishes it.

        Args:
          params: of the equation that this is the original of.
        """
        if not params["epilogue"].halves:
            return self.product
        return dataclasses.replace(self.product, spec=params["spec"], precision=params["precision"])

    @functools.cached_property
    def in_two(self) -> tuple[Original, Original]:
        """Where right-hand operands are halves of one array: what makes that of them, and the rest, of lhs and it."""
        jaxpr = self.jaxpr.jaxpr
        lhs, *halves = jaxpr.invars
        (whole,) = (x for x in self.first.invars if x is not lhs)
        join, rest = parted(jaxpr.eqns, whole)
        parts = (halves, [whole], join), ([lhs, whole], jaxpr.outvars, rest)
        first, second = (
            Original(ClosedJaxpr(Jaxpr([], given, made, equations, debug_info=_compat.UNNAMED), []))
            for given, made, equations in parts
        )
        return first, second

    @functools.cached_property
    def with_product(self) -> Original:
        """The same; what is kept is the product, where that is of parts of it: XLA would write both."""
        jaxpr, (made,) = self.jaxpr.jaxpr, self.first.outvars
        for one in jaxpr.eqns:
            made = one.outvars[0] if one.primitive.name == "convert_element_type" and one.invars[0] is made else made
        outvars = [jaxpr.outvars[0], *[made] * (len(jaxpr.outvars) > 1)]
        return Original(ClosedJaxpr(jaxpr.replace(outvars=outvars, debug_info=_compat.UNNAMED), []))

    @functools.cached_property
    def by_xla(self) -> Original:
        """The same, whose products are XLA's."""
        closed = self.jaxpr
        equations = [
            equation.replace(params={**equation.params, "implementation": "xla"})
            if equation.primitive is contract_p
            else equation
            for equation in closed.jaxpr.eqns
        ]
        return Original(ClosedJaxpr(closed.jaxpr.replace(eqns=equations), closed.consts))

    @functools.cached_property
    def on_one_device(self) -> Original:
        """The same of arrays whose types say nothing about a mesh, for who lowers or measures what one device does."""
        if not names_a_mesh(self.jaxpr):
            return self
        others = lambda value: value.on_one_device if isinstance(value, Original) else value  # noqa: E731
        return Original(of_one_device(self.jaxpr, others), self.key)

    def __repr__(self) -> str:
        """In short: a jaxpr that is printed has the request beside it."""
        return f"{len(self.jaxpr.jaxpr.eqns)} equations"


def _abstract_eval(*operands, original: Original, **unused):
    del operands, unused
    return original.jaxpr.out_avals


def _jvp(primals, tangents, *, original: Original, **unused):
    del unused
    live = [type(tangent) is not ad.Zero for tangent in tangents]

    def of_live(*values):
        given = iter(values)
        return original(*(next(given) if is_live else x for is_live, x in zip(live, primals, strict=True)))

    moved = [(x, dot) for x, dot, is_live in zip(primals, tangents, live, strict=True) if is_live]
    live_primals, live_tangents = zip(*moved, strict=True)
    return jax.jvp(of_live, live_primals, live_tangents)


def _transpose(cotangents, *operands, original: Original, **unused):
    del unused
    return linear_transpose(original, cotangents, operands)


def _batch(operands, dims, *, original: Original, **unused):
    del unused
    return jax.vmap(original, tuple(dims))(*operands), [0] * len(original.jaxpr.out_avals)


def of_equations(name: str) -> Primitive:
    """A primitive whose parameter `original` says what it computes, under JAX's transformations, too.

    Args:
      name: of the primitive. How it is lowered its module says.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(_abstract_eval)
    ad.primitive_jvps[primitive] = _jvp
    ad.primitive_transposes[primitive] = _transpose
    batching.primitive_batchers[primitive] = _batch
    _compat.check_for_nan(primitive)
    return primitive


rewritten_p = of_equations("jax_moye_rewritten")

# ------------------------------------------------------------------------------------------------------- lowering


def of_local_equations(name: str) -> Primitive:
    """The same of arrays on one device: what the first step of a lowering makes of such a primitive.

    Args:
      name: of the primitive.
    """

    def abstract_eval(*operands, original: Original, **unused):
        del operands, unused
        return [_compat.local_aval(out.shape, out.dtype) for out in original.jaxpr.out_avals]

    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(functools.partial(xla.apply_primitive, primitive))
    primitive.def_abstract_eval(abstract_eval)
    return primitive


rewritten_local_p = of_local_equations("jax_moye_rewritten_local")


class Forms:
    """What the equations behind a product are, of operands as they are in memory.

    Attributes:
      shapes: by name, of the epilogue's operands, as a kernel takes them. A kernel's operands have the dimensions that
        the epilogue names, those of the equations others of size 1, too. A second right-hand operand is in memory as
        the first one is.
    """

    def __init__(self, request: Request, operands: Operands, permutations: Permutations, original: Original) -> None:
        """Reads what the request says.

        Args:
          request: of product and epilogue.
          operands: lhs and rhs as they are in memory.
          permutations: of the transposes behind them.
          original: the equations.
        """
        epilogue = request.epilogue
        assert epilogue is not None
        self._permutations, self._is_of_pair, self._halves = permutations, epilogue.is_of_pair, epilogue.halves
        self._given = original.jaxpr.in_avals[2:]
        sizes = label_sizes(request.spec, operands)
        self.shapes = {name: tuple(sizes[label] for label in labels) for name, labels in epilogue.operands}
        if epilogue.is_of_pair:
            self.shapes = {name: operands[1].shape for name in self.shapes}

    def of_equations(self, original: Original) -> Callable[..., Any]:
        """The equations, of operands as they are in memory."""

        def fun(lhs, rhs, *others):
            if self._is_of_pair:
                others = tuple(transposed((lhs, x), self._permutations)[1] for x in others)
            others = tuple(x.reshape(aval.shape) for x, aval in zip(others, self._given, strict=True))
            return original(*transposed((lhs, rhs), self._permutations), *others)

        return fun

    def for_xla(self, original: Original) -> XlaProgram:
        """The same, as XLA is timed at it: of halves of one array it gets that."""
        if not self._halves:
            return self.of_equations(original)
        (join, rest), (of_lhs, of_halves) = original.in_two, self._permutations
        of_whole = whole_permutation(original, of_halves)

        def joined(*halves):
            whole = join(*(_behind(x, of_halves) for x in halves))[0]
            return _behind(whole, None if of_whole is None else tuple(map(int, np.argsort(of_whole))))

        return Joined(joined, lambda lhs, whole: rest.with_product(*transposed((lhs, whole), (of_lhs, of_whole))))

    def of_kernel(self, *others: Any) -> tuple[Any, ...]:
        """The epilogue's operands, as the kernel takes them."""
        if self._is_of_pair:
            return others
        return tuple(x.reshape(shape) for x, shape in zip(others, self.shapes.values(), strict=True))


def _behind(x: Any, permutation: Permutation) -> Any:
    return x if permutation is None else lax.transpose(x, permutation)


def whole_permutation(original: Original, permutation: Permutation) -> Permutation:
    """How the array lies whose halves are right-hand operands: as they do, if it has their dimensions.

    Args:
      original: the equations.
      permutation: of the transpose behind a half.
    """
    (whole,) = original.in_two[0].jaxpr.out_avals
    return permutation if permutation is not None and len(permutation) == whole.ndim else None


def xlas(request: Request, original: Original) -> Original:
    """The equations where XLA computes the products.

    A contract is kept by products of ours, or is their error: XLA might break it.
    """
    return original if request.insists or request.deterministic else original.by_xla


def is_for_xla(decision: Decision, operands: Operands, permutations, original: Original, platform) -> bool:
    """Whether XLA computes product and epilogue, and not a kernel of ours the product alone.

    That one may be ours where nobody knows how long XLA takes for it all, and where the parts are faster.
    """
    if decision.kind != "xla" or decision.cause not in ("time", "caller"):
        return False
    return not _is_faster_in_parts(decision, operands, permutations, original, platform)


def _lower_local(platform, ctx, *values, request: Request, permutations, original: Original):
    operands = operands_of(ctx.avals_in, permutations)
    epilogue = request.epilogue
    assert epilogue is not None
    forms = Forms(request, operands, permutations, original)
    by_xla, target = xlas(request, original), LoweringTarget.of_platform(platform)
    decision = _decided(request, operands, target, forms.for_xla(by_xla), forms.shapes)
    if epilogue.own is not None and decision.kind == "kernel":
        exported = _compat.is_exported(ctx)
        decision = with_own_activation(decision, operands, target, is_exported=exported, emulated=False)
    is_xlas = is_for_xla(decision, operands, permutations, original, platform)
    call = decision.call
    if decision.kind == "kernel" and call is not None and call.epilogue is not None:
        launch, chosen, out_shape = run_kernel_on(platform), call, ctx.avals_out[0].shape

        def in_one(lhs, rhs, *others):
            of_call = {"call": chosen, "request": request, "permutations": permutations}
            others = forms.of_kernel(*others)
            return launch(lhs, rhs, *others, **of_call, out_shape=out_shape, preactivation=epilogue.keeps)

        return mlir.lower_fun(in_one, multiple_results=True)(ctx, *values)
    # Else the product says itself who computes it, or that nobody may: an error is the program's own, or none.
    if is_xlas:
        heed(decision, operands)
    elif decision.kind == "kernel":
        what = describe(request, operands)
        say_once(logging.INFO, f"what stands behind {what} is not its kernel's: {decision.epilogue_reason}")
    as_it_was = forms.of_equations(by_xla if is_xlas else original)
    return mlir.lower_fun(as_it_was, multiple_results=True)(ctx, *values)


def _decided(request: Request, operands: Operands, target: LoweringTarget, by_xla: Any, shapes: Any) -> Decision:
    """Who computes product and epilogue: a kernel that is not compiled yet, with a function in it, is not measured."""
    if request.epilogue is not None and request.epilogue.own is not None:
        return decide(request, operands, target)
    return decide_by_measuring(request, operands, target, by_xla, shapes)


def _takes_in(decision: Decision, request: Request) -> bool:
    """Whether a kernel computes all of a request: else the decision may be one about the product alone."""
    return decision.call is not None and decision.call.epilogue == request.epilogue


def _is_faster_in_parts(decision: Decision, operands: Operands, permutations, original: Original, platform) -> bool:
    """Whether a product of ours, and what XLA makes of the rest, are faster than all of it by XLA.

    The rest takes what XLA's time of all exceeds that of its product by, and at least what reading and writing takes:
    XLA may compute both in one kernel.
    """
    if decision.measured is None or decision.measured.xla is None:
        return False
    if decision.request.epilogue is not None and decision.request.epilogue.halves:
        operands, permutations, original = _of_whole(operands, original)
    request, product = original.product, original.first
    by_xla = functools.partial(xlas_product, request=request, permutations=permutations)
    alone = decide_by_measuring(request, operands, LoweringTarget.of_platform(platform), by_xla)
    if alone.kind != "kernel" or alone.measured is None or alone.measured.xla is None:
        return False
    count = sum(x.primitive is contract_p for x in original.jaxpr.eqns)
    (made,) = (x.aval for x in product.outvars)
    moved = [made] * count + [*original.jaxpr.in_avals[1 + count :], *original.jaxpr.out_avals]
    rest = elementwise_us(sum(math.prod(x.shape) * x.dtype.itemsize for x in moved))
    ours, xlas, all_by_xla = alone.measured.ours, alone.measured.xla, decision.measured.xla
    return wins_by(all_by_xla) * (count * ours + max(rest, all_by_xla - count * xlas)) <= all_by_xla


def _of_whole(operands: Operands, original: Original) -> tuple[Operands, Permutations, Original]:
    """The same of the one product that right-hand operands are halves of."""
    rest, halves = original.in_two[1], operands[1]
    permutation = whole_permutation(original, halves.permutation)
    seen = rest.jaxpr.in_avals[1].shape
    shape = seen if permutation is None else tuple(seen[i] for i in np.argsort(permutation))
    of_lhs, of_whole = operands[0], Operand(tuple(shape), halves.dtype, permutation)
    left, right = (of_lhs if x is rest.jaxpr.jaxpr.invars[0] else of_whole for x in rest.first.invars)
    return (left, right), (left.permutation, right.permutation), rest


mlir.register_lowering(rewritten_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(rewritten_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(rewritten_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def sources_of(values: Sequence[Any], avals: Sequence[Any], request: Request) -> list[Source]:
    """What the operands of a product and its epilogue are read from while lowering."""
    plain = [Source(value, aval, None) for value, aval in zip(values, avals, strict=True)]
    count = len(values) if request.epilogue is not None and request.epilogue.is_of_pair else 2
    sources = [source(value, aval) for value, aval in zip(values[:count], avals[:count], strict=True)]
    if len({one.permutation for one in sources[1:]}) > 1:  # two right-hand operands are read in one way
        sources[1:] = plain[1:count]
    return sources + plain[count:]


def _lower(ctx, *values, original: Original, **params):
    request = with_c_kept(Request(**params, alone=original.alone(params)), values)
    if _compat.why_not_local(ctx) is not None or request.implementation == "xla":
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    sources = sources_of(values, ctx.avals_in, request)
    operands = tuple(one.value for one in sources)
    return _compat.lower_equation(
        ctx,
        rewritten_local_p,
        operands,
        [one.aval for one in sources],
        request=with_orders_in_lowering(ctx, with_lasting(ctx, request, operands), sources),
        permutations=tuple(one.permutation for one in sources[:2]),
        original=original.on_one_device,
    )


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(rewritten_p, _lower, cacheable=False)

# -------------------------------------------------------------------------------- operands that are parts of arrays


# Parameters, beside those of contract_p or rewritten_p:
#   original  the equations as they were, of the arrays: those that take out the parts, then the product's
#   views     of lhs and rhs, and of a second right-hand operand; None where the operand is no part of an array
#   inner     of rewritten_p, its own equations, of the parts; None of contract_p
#   parts     of rewritten_p, its own equations, of the arrays, whose products are equations of viewed_p; None likewise
viewed_p = of_equations("jax_moye_viewed")
viewed_local_p = of_local_equations("jax_moye_viewed_local")


def written(avals: Sequence[Any], views: Sequence[View | None], permutations: Permutations) -> Operands:
    """Lhs and rhs as they would be in memory if their parts were written there.

    Args:
      avals: of the arrays.
      views: of lhs and rhs.
      permutations: of the transposes behind the operands that are no parts.
    """
    left, right = (
        Operand(tuple(aval.shape), aval.dtype, None if view is not None else permutation, view).written
        for aval, view, permutation in zip(avals[:2], views[:2], permutations, strict=True)
    )
    return left, right


def _lower_viewed_local(
    platform, ctx, *values, request: Request, permutations, views, original: Original, inner: Original | None, parts
):
    operands = written(ctx.avals_in, views, permutations)
    of_written = operands[0].permutation, operands[1].permutation
    by_xla: XlaProgram
    if inner is None:
        forms, shapes = None, dict.fromkeys(["c"][: len(values) - 2], ctx.avals_out[0].shape)
        by_xla = functools.partial(xlas_product, request=request, permutations=of_written)
    else:
        forms = Forms(request, operands, of_written, inner)
        by_xla, shapes = forms.for_xla(xlas(request, inner)), forms.shapes
    target = LoweringTarget.of_platform(platform)
    decision = _decided(request, operands, target, by_xla, shapes)
    call = in_place(decision, views, target) if _takes_in(decision, request) else None
    if call is not None and call.epilogue is not None and call.epilogue.own is not None:
        found, exported = decision._replace(call=call), _compat.is_exported(ctx)
        decision = with_own_activation(found, operands, target, is_exported=exported, emulated=False)
        call = decision.call if _takes_in(decision, request) else None
    if call is not None:
        launch, chosen, out_shape = run_kernel_on(platform), call, ctx.avals_out[0].shape
        keeps = request.epilogue is not None and request.epilogue.keeps

        def run(lhs, rhs, *others):
            others = others if forms is None else forms.of_kernel(*others)
            of_call = {"call": chosen, "request": request, "permutations": permutations}
            return launch(lhs, rhs, *others, **of_call, out_shape=out_shape, preactivation=keeps)

        return mlir.lower_fun(run, multiple_results=True)(ctx, *values)
    # Where no kernel finishes the product it may still be one of ours alone, which reads the parts in place.
    is_kernels = decision.kind == "kernel" and _takes_in(decision, request)
    is_xlas = inner is not None and not is_kernels and is_for_xla(decision, operands, of_written, inner, platform)
    if request.epilogue is not None and request.epilogue.halves:  # one product, which no equation decides about again
        equations = xlas(request, original) if is_xlas else parts
    else:
        equations = original if inner is None or is_kernels or is_xlas else parts

    def as_it_was(lhs, rhs, *others):
        if len(views) > 2 and views[2] is None:
            others = tuple(transposed((lhs, x), permutations)[1] for x in others)
        return equations(*transposed((lhs, rhs), permutations), *others)

    return mlir.lower_fun(as_it_was, multiple_results=True)(ctx, *values)


mlir.register_lowering(viewed_local_p, functools.partial(_lower_viewed_local, "another platform"))
mlir.register_lowering(viewed_local_p, functools.partial(_lower_viewed_local, "cpu"), platform="cpu")
mlir.register_lowering(viewed_local_p, functools.partial(_lower_viewed_local, "cuda"), platform="cuda")


def _lower_viewed(ctx, *values, original: Original, views, inner: Original | None, parts, out_sharding=None, **params):
    del out_sharding  # who asks for one gets no view
    request = with_c_kept(Request(**params, alone=None if inner is None else inner.alone(params)), values)
    if _compat.why_not_local(ctx) is not None or request.implementation == "xla":
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    sources = sources_of(values, ctx.avals_in, request)
    for i, view in enumerate(views):
        if view is not None:
            sources[i] = Source(values[i], ctx.avals_in[i], None)
    operands = tuple(one.value for one in sources)
    return _compat.lower_equation(
        ctx,
        viewed_local_p,
        operands,
        [one.aval for one in sources],
        request=with_lasting(ctx, request, operands),
        permutations=tuple(one.permutation for one in sources[:2]),
        views=views,
        original=original.on_one_device,
        inner=None if inner is None else inner.on_one_device,
        parts=None if parts is None else parts.on_one_device,
    )


mlir.register_lowering(viewed_p, _lower_viewed, cacheable=False)
