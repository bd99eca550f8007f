"""Calls between a product and what its kernel can take in: they become their equations, or take it in themselves.

What stands behind a product is looked for in one jaxpr (chains.py, pairs.py). Here it is looked for as if calls were
their equations, and where what is found is in several places, the program changes, so that it is in one:

    jit                  the call becomes its equations, whose names stay (equations.py), if it has products, or sums of
                           two of its operands, as an update of parameters has, or takes parts of one, as of a product
                           that is two (halves.py)
    checkpoint, remat    the equations behind the call move into it, where all that they read, too, is made before it:
                           `p - 0.1 * gradient`, or a sum of cotangents. The call stays what XLA does not undo
    custom_jvp, _vjp     stay: their rules are for who differentiates the result. A gradient's program has none of them

Calls where nothing is in several places stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.equations import SUMS, body_of, inlined, inner_of, looked_into, operands_of
from jax_moye._primitives.patterns import PRODUCTS, Program
from jax_moye._primitives.transposes import may_be_step

_LINEAR = ("mul", "neg", "convert_element_type", "transpose")


class Group(NamedTuple):
    """Equations that become one.

    Attributes:
      members: their indices.
      beside: indices of those that make what the new one reads, and that it needs to see.
    """

    members: frozenset[int]
    beside: frozenset[int] = frozenset()


Groups = Callable[[Program], Iterable[Group]]  # those of a program


def with_calls_opened(jaxpr: Jaxpr, groups: Groups, in_loop: bool) -> Jaxpr:
    """The same program, where what a product takes in is beside it; its calls' own calls are left as they are.

    Args:
      jaxpr: a program.
      groups: what says what products take in.
      in_loop: it is the body of a loop, or in one.
    """
    while _has_borders(jaxpr):
        flat = _Flat(jaxpr)
        found = list(groups(Program(flat.jaxpr.eqns, flat.jaxpr.outvars, in_loop)))
        seen = (flat.where(group.members | group.beside) for group in found)
        calls = {index for where in seen if where.is_several for index in where.calls}
        calls = {index for index in calls if inner_of(jaxpr.eqns[index]) is not None}
        if not calls:
            return _carried(jaxpr, [flat.where(group.members) for group in found])
        jaxpr = inlined(jaxpr, [jaxpr.eqns[index] for index in calls])
    return jaxpr


def with_products_opened(jaxpr: Jaxpr) -> Jaxpr:
    """The same program with the equations of jit in the place of its calls that have products; the same object else."""
    while calls := [x for x in jaxpr.eqns if (body := inner_of(x)) is not None and _has_products(body)]:
        jaxpr = inlined(jaxpr, calls)
    return jaxpr


def _has_borders(jaxpr: Jaxpr) -> bool:
    """Whether there are calls to look into that get something from another equation, or hand something to one."""
    program = Program(jaxpr.eqns, jaxpr.outvars)
    for equation in jaxpr.eqns:
        gets = any(x in program.made_by for x in operands_of(equation))
        gives = any(min(program.readers.get(x, [len(jaxpr.eqns)])) < len(jaxpr.eqns) for x in equation.outvars)
        if (gets or gives) and _is_open(equation):
            return True
    return False


def _is_open(equation: JaxprEqn) -> bool:
    """Whether a call is looked into here."""
    body = looked_into(equation)
    return body is not None and (
        _has_products(body) or (inner_of(equation) is not None and (_has_update(body) or _takes_parts(body)))
    )


def _has_products(jaxpr: Jaxpr) -> bool:
    bodies = [(equation, looked_into(equation)) for equation in jaxpr.eqns]
    return any(equation.primitive.name in PRODUCTS or (body and _has_products(body)) for equation, body in bodies)


def _has_update(jaxpr: Jaxpr) -> bool:
    """Whether it adds two of what it is given, behind factors, conversions and transposes."""
    given_by: dict[Any, Any] = {x: x for x in jaxpr.invars}
    for equation in jaxpr.eqns:
        given = [given_by[x] for x in operands_of(equation) if x in given_by]
        body = looked_into(equation)
        if (equation.primitive.name in SUMS and len(set(given)) == 2) or (body and _has_update(body)):
            return True
        if equation.primitive.name in _LINEAR and len(given) == 1:
            given_by[equation.outvars[0]] = given[0]
    return False


def _takes_parts(jaxpr: Jaxpr) -> bool:
    """Whether it takes parts out of what it is given."""
    given = {*jaxpr.invars}
    return any(may_be_step(one) and one.invars[0] in given for one in jaxpr.eqns)


@dataclasses.dataclass(frozen=True)
class _Where:
    """Where the equations are that become one.

    Attributes:
      calls: indices of the calls that they are in.
      outside: indices of the others.
    """

    calls: frozenset[int]
    outside: frozenset[int]

    @property
    def is_several(self) -> bool:
        """Whether that is not one place."""
        return len(self.calls) + bool(self.outside) > 1


class _Flat:
    """A program whose calls are their equations.

    Attributes:
      jaxpr: it.
      places: by index of an equation, that of the equation of the program that it is or is in, and whether it is in.
    """

    def __init__(self, jaxpr: Jaxpr) -> None:
        """Looks into calls, and calls in those."""
        self.jaxpr = jaxpr
        self.places = [(index, False) for index in range(len(jaxpr.eqns))]
        while calls := [equation for equation in self.jaxpr.eqns if _is_open(equation)]:
            opened, places = set(map(id, calls)), []
            for (index, is_inside), equation in zip(self.places, self.jaxpr.eqns, strict=True):
                body = looked_into(equation) if id(equation) in opened else None
                places += [(index, is_inside)] if body is None else [(index, True)] * len(body.eqns)
            self.places = places
            self.jaxpr = inlined(self.jaxpr, calls, looked_into)

    def where(self, group: Iterable[int]) -> _Where:
        """Where the equations of a group are in the program."""
        places = [self.places[index] for index in group]
        calls, outside = ({i for i, is_inside in places if is_inside is wanted} for wanted in (True, False))
        return _Where(frozenset(calls), frozenset(outside))


def _carried(jaxpr: Jaxpr, groups: Sequence[_Where]) -> Jaxpr:
    """The same program, where equations behind a checkpoint are in it, if they become one with what is in it."""
    made_by = {x: index for index, equation in enumerate(jaxpr.eqns) for x in equation.outvars}
    into: dict[int, set[int]] = {}
    for where in groups:
        if len(where.calls) != 1 or not where.outside:
            continue
        (call,) = where.calls
        read = {made_by.get(x, -1) for index in where.outside for x in operands_of(jaxpr.eqns[index])}
        if min(where.outside) > call and all(index <= call for index in read - where.outside):
            into.setdefault(call, set()).update(where.outside)
    if not into:
        return jaxpr
    moved = {index for indices in into.values() for index in indices}
    program = Program(jaxpr.eqns, jaxpr.outvars)
    new = [
        _with_equations(program, index, sorted(into[index])) if index in into else equation
        for index, equation in enumerate(jaxpr.eqns)
        if index not in moved
    ]
    return jaxpr.replace(eqns=new)


def _with_equations(program: Program, index: int, moved: Sequence[int]) -> JaxprEqn:
    """A checkpoint with equations from behind it.

    Args:
      program: where it is.
      index: its index.
      moved: those of the equations, in their order. What they read is its result, or made before it.
    """
    call: Any = program.equations[index]
    body = body_of(call.params["jaxpr"])
    names: dict[Any, Any] = dict(zip(call.outvars, body.outvars, strict=True))
    given: dict[Any, Any] = {x: y for x, y in zip(call.invars, body.invars, strict=True) if isinstance(x, Var)}
    new_given: dict[Any, Any] = {}
    equations = list(body.eqns)
    made: list[Any] = []
    for one in (program.equations[i] for i in moved):
        for x in operands_of(one):
            if x not in names and x not in given:
                given[x] = new_given[x] = Var(x.aval)
        invars: list[Any] = [names.get(x, given.get(x)) if isinstance(x, Var) else x for x in one.invars]
        names |= {x: Var(x.aval) for x in one.outvars}
        equations.append(one.replace(invars=invars, outvars=[names[x] for x in one.outvars]))
        made += one.outvars
    taken = set(moved)
    outvars = [x for x in (*call.outvars, *made) if set(program.readers.get(x, ())) - taken]
    body = body.replace(
        invars=[*body.invars, *new_given.values()],
        outvars=[names[x] for x in outvars],
        eqns=equations,
        debug_info=_compat.UNNAMED,
    )
    params = {**call.params, "jaxpr": body}
    if isinstance(params.get("prevent_cse"), tuple):  # by operand
        params["prevent_cse"] = (*params["prevent_cse"], *[False] * len(new_given))
    return call.replace(invars=[*call.invars, *new_given], outvars=outvars, params=params)
