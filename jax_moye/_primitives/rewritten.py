"""rewritten_p: a product, or two of one left operand, and the elementwise equations behind it, one by one in a program.

`jax_moye.optimize` puts it in their place. Where a kernel of ours computes all of it, and is known to be faster than
what XLA makes of the equations as they were, it is one custom call; everywhere else it is those equations, of which the
product is one of contract_p: XLA's where XLA is faster at it all, and else whose it would be without the others. So are
its derivatives and what it is under vmap: nobody can tell that the program was rewritten, but by its time.
"""

from __future__ import annotations

import functools
import logging
import math
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir, xla

from jax_moye import _compat
from jax_moye._kernels import ffi
from jax_moye._log import say_once
from jax_moye._primitives.autotune import decide_by_measuring
from jax_moye._primitives.contraction import contract_p, heed, xlas_product
from jax_moye._primitives.custom_call import run_kernel
from jax_moye._primitives.fused import with_own_activation
from jax_moye._primitives.transposes import Source, operands_of, source, transposed
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.decide import Decision, decide
from jax_moye._selection.measurements import wins_by
from jax_moye._selection.request import Operands, Request, describe, label_sizes


class Original:
    """The equations as they were, of the operands of the primitive. One is equal to itself.

    Of rewritten_p these are lhs, rhs and the operands of the epilogue, in its order.

    Attributes:
      jaxpr: its first result is that of the last equation; behind it, where the epilogue keeps them, the
        pre-activation and a second right-hand operand's product. Its products are equations of contract_p.
    """

    def __init__(self, jaxpr: ClosedJaxpr) -> None:
        """Keeps them."""
        self.jaxpr = jaxpr

    def __call__(self, *operands: Any) -> list[Any]:
        """What they compute."""
        return jaxpr_as_fun(self.jaxpr)(*operands)

    @functools.cached_property
    def product(self) -> Request:
        """What is asked for of the first of its products."""
        product = next(x for x in self.jaxpr.eqns if x.primitive is contract_p)
        return Request(**{name: value for name, value in product.params.items() if name != "out_sharding"})

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
    missing = [ad.is_undefined_primal(x) for x in operands]

    def of_missing(*values):
        given = iter(values)
        return original(*(next(given) if is_missing else x for is_missing, x in zip(missing, operands, strict=True)))

    avals = [x.aval for x in operands if ad.is_undefined_primal(x)]
    found = iter(jax.linear_transpose(of_missing, *avals)([ad.instantiate_zeros(x) for x in cotangents]))
    return [next(found) if is_missing else None for is_missing in missing]


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


def _lower_local(platform, ctx, *values, request: Request, permutations, original: Original):
    operands = operands_of(ctx.avals_in, permutations)
    epilogue = request.epilogue
    assert epilogue is not None

    # A kernel's operands have the dimensions that the epilogue names, those of the equations others of size 1, too.
    # A second right-hand operand is in memory as the first one is.
    given = original.jaxpr.in_avals[2:]
    sizes = label_sizes(request.spec, operands)
    shapes = {name: tuple(sizes[label] for label in labels) for name, labels in epilogue.operands}
    if epilogue.is_of_pair:
        shapes = {name: operands[1].shape for name in shapes}

    def form(of):
        def fun(lhs, rhs, *others):
            if epilogue.is_of_pair:
                others = tuple(transposed((lhs, x), permutations)[1] for x in others)
            others = tuple(x.reshape(aval.shape) for x, aval in zip(others, given, strict=True))
            return of(*transposed((lhs, rhs), permutations), *others)

        return fun

    # A contract is kept by products of ours, or is their error: XLA might break it.
    is_ours = request.insists or request.deterministic
    by_xla = form(original if is_ours else original.by_xla)
    target = LoweringTarget.of_platform(platform)
    if epilogue.own is None:
        decision = decide_by_measuring(request, operands, target, by_xla, shapes)
    else:  # a kernel that is not compiled yet is not measured
        decision = decide(request, operands, target)
        if decision.kind == "kernel":
            exported = _compat.is_exported(ctx)
            decision = with_own_activation(decision, operands, target, is_exported=exported, emulated=False)
    # The product alone may be ours: where nobody knows how long XLA takes for it all, and where the parts are faster.
    is_xlas = decision.kind == "xla" and decision.cause in ("time", "caller")
    if is_xlas and _is_faster_in_parts(decision, operands, permutations, original, platform):
        is_xlas = False
    as_it_was = by_xla if is_xlas else form(original)
    call = decision.call
    if decision.kind == "kernel" and call is not None and call.epilogue is not None:
        ffi.register(platform)
        chosen, out_shape = call, ctx.avals_out[0].shape

        def in_one(lhs, rhs, *others):
            others = tuple(x.reshape(shape) for x, shape in zip(others, shapes.values(), strict=True))
            of_call = {"call": chosen, "request": request, "permutations": permutations}
            return run_kernel(lhs, rhs, *others, **of_call, out_shape=out_shape, preactivation=epilogue.keeps)

        return mlir.lower_fun(in_one, multiple_results=True)(ctx, *values)
    # Else the product says itself who computes it, or that nobody may: an error is the program's own, or none.
    if as_it_was is by_xla:
        heed(decision, operands)
    elif decision.kind == "kernel":
        what = describe(request, operands)
        say_once(logging.INFO, f"what stands behind {what} is not its kernel's: {decision.epilogue_reason}")
    return mlir.lower_fun(as_it_was, multiple_results=True)(ctx, *values)


def _is_faster_in_parts(decision: Decision, operands: Operands, permutations, original: Original, platform) -> bool:
    """Whether a product of ours, and what XLA makes of the rest, are faster than all of it by XLA.

    The rest takes what XLA's time of all exceeds that of its product by, and at least what reading and writing takes:
    XLA may compute both in one kernel.
    """
    if decision.measured is None or decision.measured.xla is None:
        return False
    product = next(x for x in original.jaxpr.eqns if x.primitive is contract_p)
    request = original.product
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


mlir.register_lowering(rewritten_local_p, functools.partial(_lower_local, "another platform"))
mlir.register_lowering(rewritten_local_p, functools.partial(_lower_local, "cpu"), platform="cpu")
mlir.register_lowering(rewritten_local_p, functools.partial(_lower_local, "cuda"), platform="cuda")


def _lower(ctx, *values, original: Original, **params):
    request = Request(**params, alone=original.product)
    if _compat.why_not_local(ctx) is not None or request.implementation == "xla":
        return mlir.lower_fun(original, multiple_results=True)(ctx, *values)
    plain = [Source(value, aval, None) for value, aval in zip(values, ctx.avals_in, strict=True)]
    count = len(values) if request.epilogue is not None and request.epilogue.is_of_pair else 2
    sources = [source(value, aval) for value, aval in zip(values[:count], ctx.avals_in[:count], strict=True)]
    if len({one.permutation for one in sources[1:]}) > 1:  # two right-hand operands are read in one way
        sources[1:] = plain[1:count]
    sources += plain[count:]
    return _compat.lower_equation(
        ctx,
        rewritten_local_p,
        tuple(one.value for one in sources),
        [_compat.local_aval(one.aval.shape, one.aval.dtype) for one in sources],
        [_compat.local_aval(aval.shape, aval.dtype) for aval in ctx.avals_out],
        request=request,
        permutations=tuple(one.permutation for one in sources[:2]),
        original=original,
    )


# Not cacheable, so that the rule sees the operands it has in this place: see _compat.transposed_source.
mlir.register_lowering(rewritten_p, _lower, cacheable=False)
