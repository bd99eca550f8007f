"""Masks that a loop, or a checkpoint, is given made: it is given the booleans that they are made of.

A mask of a batch is copied for all heads where scores are masked, or is 0 and a low number, which is added to them.
JAX's derivatives make that in front of the loop, and hand it one array of floats, or of all scores; so do programs. In
the body, where attention is looked for, it is no mask any more, or another one. So the body makes it itself, element by
element, of what is smaller.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye._primitives.attention_formulas import Choice
from jax_moye._primitives.attention_masks import names_of
from jax_moye._primitives.equations import looked_into
from jax_moye._primitives.known_constants import Constants, renamed
from jax_moye._primitives.patterns import Program, aval_of
from jax_moye._primitives.scans import Scan, bytes_of, is_known

_REMATS = ("checkpoint", "remat", "remat2")
Operands = list[tuple[Any, Any]]  # of an equation, with their names in its body


def with_small_masks(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, whose bodies with products make masks themselves; the same object if there are none.

    Args:
      jaxpr: a program.
    """
    if not any(_may_be_masks(*_given(equation)) for equation in jaxpr.eqns):
        return jaxpr
    constants = Constants(Program(jaxpr.eqns, jaxpr.outvars))
    new = [_given_small_ones(constants, equation) for equation in jaxpr.eqns]
    is_same = all(one is other for one, other in zip(new, jaxpr.eqns, strict=True))
    return jaxpr if is_same else jaxpr.replace(eqns=new)


def _given(equation: JaxprEqn) -> tuple[Jaxpr | None, Operands]:
    """A body, and the operands that are the same whenever it runs."""
    if is_known(equation):
        scan = Scan(equation)
        return scan.body, [(outside, inside) for outside, inside, _ in scan.operands()[: scan.consts]]
    body = looked_into(equation) if equation.primitive.name in _REMATS else None
    return body, [] if body is None else list(zip(equation.invars, body.invars, strict=True))


def _may_be_masks(body: Jaxpr | None, operands: Operands) -> Operands:
    """Those that are arrays, of a body with products."""
    found = [(x, y) for x, y in operands if isinstance(x, Var) and aval_of(x).ndim > 1]
    return found if found and body is not None and _has_products(body) else []


def _has_products(body: Jaxpr) -> bool:
    inner = (looked_into(one) for one in body.eqns)
    names = [one.primitive.name for one in body.eqns]
    return "dot_general" in names or any(one is not None and _has_products(one) for one in inner)


def _made_of(constants: Constants, outside: Any, inside: Any) -> tuple[list[JaxprEqn], Sequence[Any]]:
    """The equations that make a mask of booleans of the program, and those, which are smaller; none of what is none."""
    known = constants.known_of(outside)
    if not isinstance(known, Choice) or known.mask is None:
        return [], ()
    names = names_of(known.mask)
    is_larger = sum(bytes_of(x) for x in names if isinstance(x, Var)) > bytes_of(outside)
    if not names or is_larger or not all(isinstance(x, Var) for x in names) or outside in names:
        return [], ()
    equations, given = constants.made_of(outside, inside, names)
    return (equations, given) if equations and set(given) <= set(names) else ([], ())


def _given_small_ones(constants: Constants, equation: JaxprEqn) -> JaxprEqn:
    """An equation that is given what its masks are made of."""
    body, operands = _given(equation)
    given: dict[Any, Operands] = {}  # by name in the body, what is given instead
    copies: list[JaxprEqn] = []
    new: dict[Any, Any] = {}  # the names of what masks are made of
    for outside, inside in _may_be_masks(body, operands):
        equations, arrays = _made_of(constants, outside, inside)
        if not equations:
            continue
        given[inside] = [(x, new.setdefault(x, Var(x.aval))) for x in arrays if x not in new]
        names = {**new, inside: inside}
        copies += [renamed(one, names) for one in equations]
    if not copies or body is None:
        return equation
    all_equations = [*copies, *body.eqns]
    if is_known(equation):
        scan = Scan(equation)
        of_scan: list[tuple[Any, Any, bool]] = [
            (*pair, linear)
            for outside, inside, linear in scan.operands()
            for pair in given.get(inside, [(outside, inside)])
        ]
        return scan.replaced(of_scan, scan.consts + len(of_scan) - len(scan.operands()), eqns=all_equations)
    pairs = [pair for outside, inside in operands for pair in given.get(inside, [(outside, inside)])]
    params: dict[str, Any] = {**equation.params}
    params["jaxpr"] = body.replace(invars=[inside for _, inside in pairs], eqns=all_equations)
    if isinstance(params.get("prevent_cse"), tuple):  # by operand
        flags = zip(operands, params["prevent_cse"], strict=True)
        params["prevent_cse"] = tuple(flag for (_, inside), flag in flags for _ in given.get(inside, [inside]))
    return equation.replace(invars=[outside for outside, _ in pairs], params=params)
