"""What is computed again where a derivative reads it, in place of an array that is kept for it.

gelu(z) needs tanh of z, and so does its derivative, behind the products between them. XLA computes an expensive
function once for both: it writes the array of tanh beside gelu(z), keeps it, and reads it again, though it keeps and
reads z, too. The derivative has tanh of another value here, z times a number that XLA does not know to be 1, and both
are computed where they are read, by the same operations in the same dtypes.

    anew             of equations that stand for a derivative: it reads what it is applied to in this way
    with_recomputed  of a program: expensive functions of what a product makes, or the program is given, which are read
                     in front of a product and behind one that depends on them; the former perhaps in an equation of
                     ours, which XLA computes in the end
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from jax_moye import _compat
from jax_moye._primitives.equations import inlined, inner_of, is_elementwise, operands_of
from jax_moye._primitives.known_constants import renamed
from jax_moye._primitives.patterns import PRODUCTS, aval_of

_EXPENSIVE = frozenset(("tanh", "erf", "erfc", "exp", "exp2", "logistic", "log1p", "expm1", "sin", "cos"))
_PRODUCTS = frozenset((*PRODUCTS, "conv_general_dilated"))
_PARTS = frozenset(("slice", "split", "reshape", "squeeze", "transpose", "convert_element_type"))
_LEAST_ELEMENTS = 1 << 16  # of an array whose memory matters
_MOST_EQUATIONS = 48  # of an expensive function, in front of it and behind


def anew(closed: ClosedJaxpr, indices: Iterable[int]) -> ClosedJaxpr:
    """The same equations, which compute what is made of some of their inputs themselves.

    Args:
      closed: equations, of floats.
      indices: of the inputs.
    """
    jaxpr = closed.jaxpr
    invars, equations = list(jaxpr.invars), []
    for index in indices:
        given: Any = Var(aval_of(invars[index]))
        equations += _unknown(given, invars[index])
        invars[index] = given
    return ClosedJaxpr(jaxpr.replace(invars=invars, eqns=[*equations, *jaxpr.eqns]), closed.consts)


def _unknown(x: Any, result: Any) -> list[JaxprEqn]:
    """The equations that make of x the same value, of which XLA does not know that it is the same."""
    body = _compat.jaxpr_of(_times_one, [aval_of(x)])
    names = {body.invars[0]: x, body.outvars[0]: result}
    return [renamed(one, names) for one in body.eqns]


def _times_one(x: Any) -> Any:
    with _compat.lax_itself():
        return x * lax.optimization_barrier(np.ones((), x.dtype))


def with_recomputed(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, which keeps no expensive function of what is kept anyway; the same object if it keeps none.

    Args:
      jaxpr: a program; the jaxprs of its equations stay what they are.
    """
    if not any(one.primitive.name in _PRODUCTS for one in jaxpr.eqns):
        return jaxpr
    calls = [one for one in jaxpr.eqns if inner_of(one) is not None and is_elementwise(one)]
    flat = inlined(jaxpr, calls) if calls else jaxpr
    equations = _Kept(flat).with_copies()
    return jaxpr if equations is None else flat.replace(eqns=equations)


class _Kept:
    """The values of a program, and how many products are in front of each."""

    def __init__(self, jaxpr: Jaxpr) -> None:
        """Counts."""
        self._equations: Sequence[Any] = jaxpr.eqns
        self._outvars = {x for x in jaxpr.outvars if isinstance(x, Var)}
        self._made_by: dict[Any, int] = {}
        self._readers: dict[Any, list[int]] = {}
        self._depth: dict[Any, int] = {}  # of values
        self._depths: list[int] = []  # of equations
        for index, one in enumerate(self._equations):
            depth = max((self._depth.get(x, 0) for x in operands_of(one)), default=0) + _is_product(one)
            self._depths.append(depth)
            for x in one.outvars:
                self._made_by[x], self._depth[x] = index, depth
            for x in dict.fromkeys(operands_of(one)):
                self._readers.setdefault(x, []).append(index)
        self._is_needed_early: dict[Any, bool] = {}

    def with_copies(self) -> list[JaxprEqn] | None:
        """The equations, and copies of some in front of who reads them late; None if there are none."""
        new: list[JaxprEqn] = []
        names: dict[int, dict[Any, Any]] = {}  # by how many products are in front of the reader
        for index, one in enumerate(self._equations):
            copied = names.setdefault(self._depths[index], {})
            invars = list(one.invars)
            for at, x in enumerate(invars):
                if isinstance(x, Var) and (members := self._kept_for(index, x)):
                    new += self._copies(members, copied)
                    invars[at] = copied[x]
            is_same = all(x is y for x, y in zip(invars, one.invars, strict=True))
            new.append(one if is_same else one.replace(invars=invars))
        return new if len(new) > len(self._equations) else None

    def _copies(self, members: Sequence[int], names: dict[Any, Any]) -> list[JaxprEqn]:
        """Equations once more, with names of their own, of arrays that XLA does not know to be what they are."""
        new: list[JaxprEqn] = []
        for one in (self._equations[index] for index in members):
            for x in operands_of(one):
                if x not in names and self._made_by.get(x) not in members and _is_large(aval_of(x)):
                    names[x] = Var(aval_of(x))
                    new += _unknown(x, names[x])
            if not any(x in names for x in one.outvars):
                invars = [names.get(x, x) if isinstance(x, Var) else x for x in one.invars]
                names |= {x: Var(aval_of(x)) for x in one.outvars}
                new.append(one.replace(invars=invars, outvars=[names[x] for x in one.outvars]))
        return new

    def _kept_for(self, reader: int, value: Any) -> list[int]:
        """The equations to compute once more for a reader of a value; none where that is kept, or nothing is won."""
        is_late = self._depth.get(value, 0) < self._depths[reader] and _is_large(aval_of(value))
        if not is_late or not is_elementwise(self._equations[reader]) or self._is_written(value):
            return []
        members = self._made_of(value)
        kept = {x for index in members for x in operands_of(self._equations[index]) if _is_large(aval_of(x))}
        kept -= {x for index in members for x in self._equations[index].outvars}
        if len(kept) != 1 or not all(map(self._is_in_memory, kept)):
            return []
        is_shared = [self._is_read_early(x) or any(map(self._is_of_layer, kept)) for x in self._expensive(members)]
        return members if any(is_shared) else []

    def _made_of(self, value: Any) -> list[int]:
        """The indices of the elementwise equations that make a value of what is in memory, behind the last product."""
        waiting, members = [value], set[int]()
        while waiting:
            index = self._made_by.get(waiting.pop())
            if index is None or index in members or not self._is_computed(index, self._depth[value]):
                continue
            members.add(index)
            if len(members) > _MOST_EQUATIONS:
                return []
            waiting += [x for x in operands_of(self._equations[index]) if not self._is_written(x)]
        return sorted(members)

    def _is_computed(self, index: int, depth: int) -> bool:
        """Whether an equation is an elementwise one with as many products in front of it."""
        return self._depths[index] == depth and is_elementwise(self._equations[index])

    def _expensive(self, members: Iterable[int]) -> list[Any]:
        """The expensive functions that equations make."""
        made = [self._equations[index] for index in members]
        return [x for one in made if one.primitive.name in _EXPENSIVE for x in one.outvars if _is_large(aval_of(x))]

    def _is_of_layer(self, value: Any) -> bool:
        """Whether an equation of ours makes it beside what it makes of it, perhaps by XLA."""
        index = self._made_by.get(value)
        return index is not None and _is_product(self._equations[index]) and len(self._equations[index].outvars) > 1

    def _is_read_early(self, value: Any) -> bool:
        """Whether a product right behind a value is made of it."""
        if value not in self._is_needed_early:
            depth = self._depth[value]
            waiting, seen, found = [value], {value}, False
            while waiting and not found and len(seen) <= _MOST_EQUATIONS:
                for index in self._readers.get(waiting.pop(), ()):
                    found = found or (_is_product(self._equations[index]) and self._depths[index] == depth + 1)
                    if self._is_computed(index, depth):
                        new = [x for x in self._equations[index].outvars if x not in seen]
                        waiting, seen = waiting + new, seen.union(new)
            self._is_needed_early[value] = found
        return self._is_needed_early[value]

    def _is_written(self, value: Any) -> bool:
        """Whether an array is in memory anyway: it is a result of the program, or an operand of a product."""
        return value in self._outvars or any(_is_product(self._equations[at]) for at in self._readers.get(value, ()))

    def _is_in_memory(self, value: Any) -> bool:
        """Whether it is written anyway, or what the program is given, a product's result, or a part of one."""
        if self._is_written(value):
            return True
        while (index := self._made_by.get(value)) is not None:
            equation = self._equations[index]
            if equation.primitive.name not in _PARTS:
                return _is_product(equation)
            value = equation.invars[0]
        return True


def _is_product(equation: Any) -> bool:
    return equation.primitive.name in _PRODUCTS


def _is_large(aval: Any) -> bool:
    """Whether it is an array of floats whose memory matters."""
    shape = getattr(aval, "shape", ())
    if not all(isinstance(size, int) for size in shape) or math.prod(shape) < _LEAST_ELEMENTS:
        return False
    return jnp.issubdtype(aval.dtype, jnp.floating)
