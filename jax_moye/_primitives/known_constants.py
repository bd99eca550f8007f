"""What a body is given and is known while the program is traced, such as a mask: equations that make it in the body.

JAX computes what is the same in each iteration in front of a scan. A search in the body sees how a mask is made only if
the equations that make it stand there, too: they do while it searches, and are taken away again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.attention_known import KnownValues
from jax_moye._primitives.equations import CLOSED_CALL, inlined, inner_of, operands_of
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.scans import Scan, is_known

# Their operands, but for an index of cond, are those of their jaxprs. Of a scan those are that do not change.
_CALLS = ("jit", "pjit", CLOSED_CALL, "checkpoint", "remat", "remat2", "cond")


class Constants:
    """Of a program whose equations have bodies."""

    def __init__(self, program: Program) -> None:
        """Looks at it when asked."""
        self._program = program

    @functools.cached_property
    def _known(self) -> KnownValues:
        return KnownValues(self._program)

    def of_body(self, equation: JaxprEqn, body: Jaxpr) -> list[JaxprEqn]:
        """The equations that make those of its inputs that are known; their results have the body's names.

        Args:
          equation: of the program.
          body: its jaxpr, or one of them.
        """
        if is_known(equation):
            scan = Scan(equation)
            operands = list(zip(equation.invars, body.invars, strict=True))[: scan.consts]
        elif equation.primitive.name in _CALLS and len(body.invars) <= len(equation.invars):
            operands = list(zip(equation.invars[len(equation.invars) - len(body.invars) :], body.invars, strict=True))
        else:
            return []
        made = (self._made(outside, inside) for outside, inside in operands if isinstance(outside, Var))
        return [one for equations in made for one in equations]

    def _made(self, outside: Any, inside: Any) -> list[JaxprEqn]:
        program = self._program
        if outside not in program.made_by or self._known.of(program.flat.names.get(outside, outside)) is None:
            return []
        indices: set[int] = set()
        waiting, given = [outside], dict[Any, None]()
        while waiting:
            x = waiting.pop()
            index = program.made_by.get(x)
            if index is None:
                given[x] = None
            elif index not in indices:
                indices.add(index)
                waiting += operands_of(program.equations[index])
        equations = [program.equations[index] for index in sorted(indices)]
        jaxpr = Jaxpr([], list(given), [outside], equations, debug_info=_compat.UNNAMED)
        while calls := [one for one in jaxpr.eqns if inner_of(one) is not None]:
            jaxpr = inlined(jaxpr, calls)  # which may be given other things, too
        jaxpr = _compat.without_dead_code(jaxpr)
        (out,) = jaxpr.outvars
        if jaxpr.invars or not isinstance(out, Var):  # of an argument, or a number that a call returns
            return []
        names: dict[Any, Any] = {out: inside}
        return [renamed(one, names) for one in jaxpr.eqns]


def with_known(jaxpr: Jaxpr, made: Sequence[JaxprEqn], rewrite: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
    """The same program, rewritten by what sees how some of its inputs are made.

    Args:
      jaxpr: a program.
      made: the equations that make those inputs.
      rewrite: of a program, which is the same object where there is nothing to rewrite.
    """
    if not made:
        return rewrite(jaxpr)
    names = results_of(made)
    whole = jaxpr.replace(invars=[x for x in jaxpr.invars if x not in names], eqns=[*made, *jaxpr.eqns])
    new = rewrite(whole)
    if new is whole:
        return jaxpr
    equations = outside_of(new.eqns, made)
    given = {*jaxpr.invars, *jaxpr.constvars} | results_of(equations)
    read = [x for one in equations for x in operands_of(one)] + [x for x in new.outvars if isinstance(x, Var)]
    # What reads more than it was given cannot do without those equations.
    return new.replace(invars=jaxpr.invars, eqns=equations) if given.issuperset(read) else rewrite(jaxpr)


def outside_of(equations: Iterable[JaxprEqn], made: Sequence[JaxprEqn]) -> list[JaxprEqn]:
    """The equations but for those that make constants.

    Args:
      equations: of a program.
      made: those of its constants.
    """
    names = results_of(made)
    return [one for one in equations if not one.outvars or not names.issuperset(one.outvars)]


def results_of(equations: Iterable[JaxprEqn]) -> set[Any]:
    """All that they make."""
    return {x for one in equations for x in one.outvars}


def renamed(equation: JaxprEqn, names: dict[Any, Any]) -> JaxprEqn:
    """An equation with other names.

    Args:
      equation: it.
      names: by name, the other one; its results get new ones, if they have none.
    """
    names |= {x: Var(x.aval) for x in equation.outvars if x not in names}
    invars = [names[x] if isinstance(x, Var) else x for x in equation.invars]
    return equation.replace(invars=invars, outvars=[names[x] for x in equation.outvars])
