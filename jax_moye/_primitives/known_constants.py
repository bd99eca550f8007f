"""What a body is given and is known while the program is traced, such as a mask: equations that make it in the body.

JAX computes what is the same in each iteration in front of a scan. A search in the body sees how a mask is made only if
the equations that make it stand there, too: they do while it searches, and are taken away again. So do equations that
make an array that a program has ready-made, if that is one number on a diagonal, or a band, and another one elsewhere.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.attention_formulas import Known
from jax_moye._primitives.attention_known import KnownValues
from jax_moye._primitives.equations import CLOSED_CALL, inner_of, opened, operands_of
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.scans import Scan, is_known

# Their operands, but for an index of cond, are those of their jaxprs. Of a scan those are that do not change.
_CALLS = ("jit", "pjit", CLOSED_CALL, "checkpoint", "remat", "remat2", "cond")


# Elements of an array that is looked at while tracing. From a device it is fetched, and weights of two dimensions, too.
_MOST_ELEMENTS, _MOST_OF_DEVICE = 1 << 24, 1 << 22


def of_arrays(closed: ClosedJaxpr) -> list[JaxprEqn]:
    """The equations that make those of a program's arrays that are a diagonal, or a band; as masks are, ready-made.

    Args:
      closed: the program, with its arrays.
    """
    pairs = zip(closed.jaxpr.constvars, closed.consts, strict=True)
    return [one for variable, array in pairs for one in _of_array(variable, array)]


def _of_array(variable: Any, array: Any) -> list[JaxprEqn]:
    """The equations that make an array of one number on a band, and another one elsewhere; none of another array."""
    shape, dtype = tuple(variable.aval.shape), variable.aval.dtype
    is_array = isinstance(array, _compat.ARRAYS) and not isinstance(array, jax.core.Tracer)  # jax.Ref is none
    is_here = is_array and getattr(array, "is_fully_addressable", True)
    if not is_here or not isinstance(dtype, np.dtype) or variable.aval.weak_type or len(shape) < 2 or 0 in shape:
        return []
    is_of_device = isinstance(array, jax.Array) and dtype != np.bool_
    if math.prod(shape[:-2]) > 1 or math.prod(shape) > (_MOST_OF_DEVICE if is_of_device else _MOST_ELEMENTS):
        return []
    x = np.asarray(array).reshape(shape[-2:])
    is_one = x == x[0, 0]
    right, down = (int(np.cumprod(line).sum()) for line in (is_one[0], is_one[:, 0]))  # from the first element on

    def is_in_band(i: Any, j: Any) -> Any:
        return (j - i < right) & (i - j < down)

    others = x[~is_one]
    other = others[0] if others.size else x[0, 0]
    if not np.array_equal(x, np.where(is_in_band(*np.ogrid[: x.shape[0], : x.shape[1]]), x[0, 0], other)):
        return []

    def made() -> Any:
        i, j = (lax.broadcasted_iota(np.int32, x.shape, dim) for dim in (0, 1))
        numbers = (lax.full(x.shape, number, dtype) for number in (x[0, 0], other))
        return lax.reshape(lax.select(is_in_band(i, j), *numbers), shape)

    with _compat.lax_itself():
        jaxpr = jax.make_jaxpr(made)().jaxpr
    names: dict[Any, Any] = {jaxpr.outvars[0]: variable}
    return [renamed(one, names) for one in jaxpr.eqns]


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
        if outside not in program.made_by or self.known_of(outside) is None:
            return []
        equations, given = self.made_of(outside, inside, ())
        return [] if given else equations

    def known_of(self, variable: Any) -> Known | None:
        """What a variable of the program is; None where that is not known."""
        return self._known.of(self._program.flat.names.get(variable, variable))

    def made_of(self, outside: Any, inside: Any, others: Collection[Any]) -> tuple[list[JaxprEqn], list[Any]]:
        """The equations that make a variable of others, or of the program's inputs, and which of these they read.

        Args:
          outside: the variable, which the program makes.
          inside: the name that its copy gets.
          others: variables.
        """
        program = self._program
        indices: set[int] = set()
        waiting, given = [outside], dict[Any, None]()
        seen: set[Any] = set()
        while waiting:
            x = waiting.pop()
            index = None if x in others else program.made_by.get(x)
            if index is None:
                given[x] = None
            elif x not in seen:
                seen.add(x)
                indices.add(index)
                waiting += _made_of(program.equations[index], x)
        equations = [program.equations[index] for index in sorted(indices)]
        made = results_of(equations)
        given |= dict.fromkeys(x for one in equations for x in operands_of(one) if x not in made)
        jaxpr = Jaxpr([], list(given), [outside], equations, debug_info=_compat.UNNAMED)
        jaxpr = _compat.without_dead_code(opened(jaxpr))  # calls may be given other things, too
        (out,) = jaxpr.outvars
        if not isinstance(out, Var) or out in jaxpr.invars:  # a number that a call returns, or an argument
            return [], list(given)
        names: dict[Any, Any] = {x: x for x in jaxpr.invars} | {out: inside}
        return [renamed(one, names) for one in jaxpr.eqns], list(jaxpr.invars)


def _made_of(equation: JaxprEqn, result: Any) -> list[Any]:
    """The operands of an equation that a result is made of: of a call not all, which makes others beside it."""
    inner = inner_of(equation)
    if inner is None:
        return operands_of(equation)
    made_by: dict[Any, Any] = {x: one for one in inner.eqns for x in one.outvars}
    waiting, seen = [inner.outvars[list(equation.outvars).index(result)]], set()
    while waiting:
        x = waiting.pop()
        if isinstance(x, Var) and x not in seen:
            seen.add(x)
            waiting += _made_of(made_by[x], x) if x in made_by else []
    return [x for x, y in zip(equation.invars, inner.invars, strict=True) if y in seen and isinstance(x, Var)]


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
    # Arrays of the program stay what they are, too: newer JAX takes an array from a program that gets other ones.
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
