"""A scan, and the one that reads what it stacks, as one program of what both compute of a row.

The derivative of a scan is two loops, and what belongs together is one half in each: attention and its derivative, or
the two loops of a scan inside. In a program of both, attention_finding.py and residuals.py see them side by side, as
those of a program without a loop. What they make of it is taken apart again:

| what | where it goes |
|---|---|
| an equation that was in the first loop, or that its own results need | the first loop, if all that it reads is there |
| another one | the second loop |
| a value of the first loop that the second one reads | it is stacked, if no operand holds it |

A checkpoint in the second loop is looked at in both ways: as its equations, and as one that stays, which
attention_saved.py looks into. That one computes anew what JAX computes in front of the first loop: the program of both
has these equations, too.

Nothing is computed twice: the shares of attention are not stacked, nor computed anew, since its derivative's kernel
reads q, k, v, the result, what rounding took from it, and the logarithms of the sums of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from jax.extend.core import Jaxpr, JaxprEqn, Var, unmapped_aval

from jax_moye import _compat
from jax_moye._primitives.equations import inlined, inner_of, is_checkpoint, keep_their_place, looked_into, operands_of
from jax_moye._primitives.known_constants import Constants, outside_of, renamed, results_of
from jax_moye._primitives.patterns import PRODUCTS, Program
from jax_moye._primitives.scans import Scan

Rewrite = Callable[[Jaxpr], Jaxpr]
Inner = Callable[[Any], Jaxpr | None]  # the jaxpr of a call; None of what stays
_MOST_IN_FRONT = 64  # equations that make a constant
_LARGE = frozenset((*PRODUCTS, "conv_general_dilated", "scan", "while", "cond", "rng_uniform"))
Operands = list[tuple[Any, Any, bool]]  # as `Scan.operands` has them


def rewritten_pair(
    program: Program, index: int, reader: int, rewrite: Rewrite, keeps_checkpoints: bool = False
) -> dict[int, JaxprEqn]:
    """The equations in the place of two scans, by index; none where nothing is found in both together.

    Args:
      program: where they are.
      index: of the one that stacks residuals.
      reader: of one that reads them.
      rewrite: of the program of both, without effects; the same object where nothing is found.
      keeps_checkpoints: those that read residuals do not become their equations; then none where there are none.
    """
    pair = _Pair(program, index, reader, inner_of if keeps_checkpoints else looked_into)
    if not pair.residuals or pair.first.length != pair.second.length or pair.does_more:
        return {}
    joined = pair.joined()
    if keeps_checkpoints and not any(map(is_checkpoint, joined.eqns)):
        return {}
    new = rewrite(joined)
    parts = None if new is joined else pair.apart(_compat.without_dead_code(new, keep_inputs=True))
    return {} if parts is None else {index: parts[0], reader: parts[1]}


class _Parts(NamedTuple):
    """The equations of a program of both, in the loop they go to.

    Attributes:
      first: those of the one.
      second: of the other one.
      passed: the values of the first loop that the second one reads.
    """

    first: list[JaxprEqn]
    second: list[JaxprEqn]
    passed: list[Any]


class _Pair:
    """Two scans.

    Attributes:
      first: that stacks residuals.
      second: that reads them.
      residuals: by the index of an operand of the second, that of the first's output which it is.
      stays: the indices of the first's stacked outputs that others read, too.
    """

    def __init__(self, program: Program, index: int, reader: int, inner: Inner) -> None:
        """Looks at what is passed on."""
        self._program, self._inner = program, inner
        self.first, self.second = Scan(program.equations[index]), Scan(program.equations[reader])
        outvars, inside = self.first.equation.outvars, self.first.body.outvars
        outputs = {x: i for i, x in enumerate(outvars) if i >= self.first.carry and isinstance(inside[i], Var)}
        operands = self.second.equation.invars
        self.residuals = {
            i: outputs[x]
            for i, x in enumerate(operands)
            if i >= self.second.first and isinstance(x, Var) and x in outputs
        }
        others = {x for x in operands[: self.second.first] if isinstance(x, Var)}
        self.stays = [
            i
            for i, x in enumerate(outvars)
            if i >= self.first.carry and (x in others or {*program.readers.get(x, ())} - {reader})
        ]

    @property
    def does_more(self) -> bool:
        """Whether one has effects, or constants of its own."""
        return any(keep_their_place(x.body.effects) or x.body.constvars for x in (self.first, self.second))

    def joined(self) -> Jaxpr:
        """The program of both; calls that hand residuals over become their equations.

        Its names are those of the first one's body. What both get from one array has one name.
        """
        first, second = self.first, self.second
        first.body = _opened(first.body, lambda body: {body.outvars[i] for i in self.residuals.values()}, self._inner)
        second.body = _opened(second.body, lambda body: {body.invars[i] for i in self.residuals}, self._inner)
        self.names: dict[Any, Any] = {}  # of the second body
        for i, (outside, inside, _) in enumerate(second.operands()):
            same = None
            if i in self.residuals:
                same = first.body.outvars[self.residuals[i]]
            elif isinstance(outside, Var) and not second.consts <= i < second.first:
                same = (first.constant if i < second.consts else first.stacked)(outside)
            self.names[inside] = Var(inside.aval) if same is None else same
        equations = [renamed(one, self.names) for one in second.body.eqns]
        constants = Constants(self._program)
        self._known = constants.of_body(first.equation, first.body)
        self._hidden, self._sources = self._known, dict[Any, Any]()
        if self._inner is inner_of:
            first.body = _with_numbers(first)
            self._known = [*self._known, *self._made_in_front(constants)]
            self._hidden = [one for one in self._known if not {*one.outvars}.isdisjoint(first.body.invars)]
        given = {*first.body.invars, *(first.body.outvars[i] for i in self.residuals.values())}
        new = [x for x in dict.fromkeys(self._named(second.body.invars)) if x not in given]
        results = [x for i, x in enumerate(first.body.outvars) if i < first.carry or i in self.stays]
        self._count = len(results)  # the first one's
        return Jaxpr(
            [],
            [*(x for x in first.body.invars if x not in results_of(self._known)), *new],
            [*results, *self._named(second.body.outvars)],
            [*self._known, *first.body.eqns, *equations],
            first.body.effects | second.body.effects,
            debug_info=_compat.UNNAMED,
        )

    def _made_in_front(self, constants: Constants) -> list[JaxprEqn]:
        """The equations that make constants of the first one of others, or of numbers.

        JAX computes these in front of a loop, but a checkpoint in the second one computes them anew.
        """
        first, second = self.first, self.second
        inside = {x: self.names[y] for x, y, _ in second.operands()[: second.consts] if isinstance(x, Var)}
        of_first = {x: y for x, y, _ in first.operands()[: first.consts] if isinstance(x, Var)}
        self._sources = {y: x for x, y in inside.items() if x not in of_first}
        inside |= of_first
        known = results_of(self._known)
        found: list[JaxprEqn] = []
        for outside, name, _ in first.operands()[: first.consts]:
            if name in known or not isinstance(outside, Var):
                continue
            equations, given = constants.made_of(outside, name, inside.keys() - {outside})
            if len(equations) <= _MOST_IN_FRONT and inside.keys() >= {*given} and all(map(_is_small, equations)):
                names = {x: inside[x] for x in given} | {name: name}
                found += [renamed(one, names) for one in equations]
        return found

    def _named(self, variables: Iterable[Any]) -> list[Any]:
        return [self.names[x] if isinstance(x, Var) else x for x in variables]

    def apart(self, joined: Jaxpr) -> tuple[JaxprEqn, JaxprEqn] | None:
        """The two scans of a program of both; None if it cannot be parted.

        Args:
          joined: such a program.
        """
        first, second = self.first, self.second
        parts = self._parts(joined)
        if parts is None:
            return None
        length, body, equation = first.length, first.body, first.equation
        stacked = {x: i for i, x in enumerate(body.outvars) if i >= first.carry and isinstance(x, Var)}
        kept = list(self.stays)
        new: dict[Any, Any] = {}  # arrays that are stacked for this, by value
        consts, rows = self._operands(0, second.consts), self._operands(second.first, len(second.equation.invars))
        held = {inside for _, inside, _ in (*consts, *rows)}
        for value in parts.passed:
            places = [i for i, x in enumerate(body.invars) if x is value]
            if value in held:
                continue
            if places and places[0] < first.consts:
                consts.append((equation.invars[places[0]], value, False))
            elif places and places[0] >= first.first:
                rows.append((equation.invars[places[0]], value, False))
            elif value in stacked:
                kept += [stacked[value]] * (stacked[value] not in kept)
                rows.append((equation.outvars[stacked[value]], value, False))
            else:
                new[value] = Var(unmapped_aval(length, 0, value.aval))
                rows.append((new[value], value, False))
        of_body = [*joined.outvars[: self._count], *(body.outvars[i] for i in kept[len(self.stays) :]), *new]
        outvars = [*equation.outvars[: first.carry], *(equation.outvars[i] for i in kept), *new.values()]
        read = {x for one in parts.first for x in operands_of(one)}
        others = [(x, y, False) for y, x in self._sources.items() if y in read]
        operands = first.operands()
        operands = [*operands[: first.consts], *others, *operands[first.consts :]]
        one = first.replaced(operands, first.consts + len(others), eqns=parts.first, outvars=of_body)
        one = one.replace(outvars=outvars)
        operands = [*consts, *self._operands(second.consts, second.first), *rows]
        outvars = joined.outvars[self._count :]
        return one, second.replaced(operands, len(consts), eqns=parts.second, outvars=outvars)

    def _operands(self, start: int, end: int) -> Operands:
        """Of the second scan, with the names that they have now, without residuals."""
        operands = enumerate(self.second.operands())
        return [
            (outside, self.names[inside], linear)
            for i, (outside, inside, linear) in operands
            if start <= i < end and i not in self.residuals
        ]

    def _parts(self, joined: Jaxpr) -> _Parts | None:
        of_first = results_of(self.first.body.eqns)
        outs = [x for x in joined.outvars[: self._count] if isinstance(x, Var)]
        needed, equations = {*outs}, outside_of(joined.eqns, self._hidden)
        for one in reversed(equations):
            if any(x in needed for x in one.outvars):
                needed.update(operands_of(one))
        given = {*self.first.body.invars, *self._sources}
        parts = _Parts([], [], [])
        for one in equations:
            is_first = any(x in needed or x in of_first for x in one.outvars)
            if is_first and all(x in given for x in operands_of(one)):
                parts.first.append(one)
                given.update(one.outvars)
            else:
                parts.second.append(one)
        own = {x for _, x, _ in self._operands(0, len(self.second.equation.invars))} | results_of(parts.second)
        read = [x for one in parts.second for x in operands_of(one)]
        read += [x for x in joined.outvars[self._count :] if isinstance(x, Var)]
        if not given.issuperset(outs) or not given.union(own).issuperset(read):
            return None
        parts.passed.extend(dict.fromkeys(x for x in read if x in given))
        return parts


def _is_small(equation: JaxprEqn) -> bool:
    """Whether it may be looked at in a body, too."""
    return not equation.effects and equation.primitive.name not in _LARGE


def _with_numbers(scan: Scan) -> Jaxpr:
    """The body of a scan, with the numbers that it is given in the place of their names."""
    numbers = {y: x for x, y, _ in scan.operands()[: scan.consts] if not isinstance(x, Var)}
    equations = [
        one.replace(invars=[numbers.get(x, x) if isinstance(x, Var) else x for x in one.invars])
        for one in scan.body.eqns
    ]
    return scan.body.replace(eqns=equations) if numbers else scan.body


def _opened(body: Jaxpr, passed: Callable[[Jaxpr], set[Any]], inner: Inner) -> Jaxpr:
    """The body of a loop, with the equations of calls that hand over values in the place of those calls.

    Args:
      body: of the loop.
      passed: its values that are handed over.
      inner: the jaxpr of a call.
    """
    while True:
        values = passed(body)
        calls = [
            one
            for one in body.eqns
            if any(x in values for x in (*operands_of(one), *one.outvars)) and inner(one) is not None
        ]
        if not calls:
            return body
        body = inlined(body, calls, inner)
