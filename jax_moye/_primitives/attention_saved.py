"""Attention whose scores a jax.checkpoint saves: the forward pass and the body that is its derivative, together.

A policy such as `checkpoint_dots` saves the results of products. The scores have two readers then: the softmax of the
forward pass, and the body of the checkpoint, which computes the softmax anew. In a program that has the equations of
the body in the place of the checkpoint, without those of the forward pass that it repeats, attention_finding.py sees
attention and its derivative side by side. What it makes of them is taken apart again:

| what | where it goes |
|---|---|
| an equation that was in the body, or that reads what only the body makes | the body |
| another one, such as attention | outside |
| a value of the forward pass that the body computed anew | the body does so still, if it is given what that takes |
| another one, such as the logarithms of the sums of rows | it is saved for the body |

So the scores are not saved. A checkpoint stays as it was where that is no use: where it saves none of what attention's
kernels do not write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jax_moye import _compat
from jax_moye._primitives.equations import is_checkpoint, is_elementwise, is_same, looked_into, opened, operands_of
from jax_moye._primitives.known_constants import results_of
from jax_moye._primitives.pairs import ordered
from jax_moye._primitives.patterns import aval_of
from jax_moye._primitives.same_values import SameValues

Find = Callable[[Jaxpr], Jaxpr]


def with_saved_attention(jaxpr: Jaxpr, find: Find) -> Jaxpr:
    """The same program with attention, that of which its checkpoints save a part, too; the same object without any.

    Args:
      jaxpr: a program, without what its calls and loops contain.
      find: puts attention into a program; the same object where there is none.
    """
    made_by = {x: one for one in jaxpr.eqns for x in one.outvars}
    checkpoints = [one for one in jaxpr.eqns if _saves(one, made_by)]
    while checkpoints:
        together = _Together(jaxpr, checkpoints)
        new = find(together.jaxpr)
        useful = [] if new is together.jaxpr else together.useful(new)
        if len(useful) == len(checkpoints):
            apart = together.apart(new)
            if apart is not None:
                return apart
            break
        checkpoints = useful
    return find(jaxpr)


def _saves(equation: JaxprEqn, made_by: Mapping[Any, JaxprEqn]) -> bool:
    """Whether an equation is a checkpoint that is given products, or what a policy saves."""
    makers = (made_by.get(x) for x in operands_of(equation)) if is_checkpoint(equation) else ()
    return any(one is not None and (is_same(one) or one.primitive.name == "dot_general") for one in makers)


class _Body:
    """A checkpoint, and its equations among those of the program.

    Attributes:
      equation: it.
      jaxpr: of it, without calls of jit, and given each array once, and no numbers.
      operands: what it is given.
      names: of its values, in the program.
      own: the program's names of what it alone makes.
      again: by value of the program that it computes, too, the name in it.
    """

    def __init__(self, equation: JaxprEqn, names: dict[Any, Any], values: SameValues, made: dict[Any, Any]) -> None:
        """Gives names to its values.

        Args:
          equation: it.
          names: of the program's values that are others' results.
          values: of the program.
          made: the program's values by their number.
        """
        body = looked_into(equation)
        assert body is not None
        self.equation = equation
        self.jaxpr, self.operands = _given_once(opened(body), equation.invars)
        pairs = list(zip(self.jaxpr.invars, self.operands, strict=True))
        numbers = {x: values.of(y, values.numbers) for x, y in pairs}
        values.look_at(self.jaxpr.eqns, numbers)
        self.names: dict[Any, Any] = dict(zip(self.jaxpr.invars, _renamed(self.operands, names), strict=True))
        self.own: set[Any] = set()
        self.again: dict[Any, Any] = {}
        for one in self.jaxpr.eqns:
            for x in one.outvars:
                same = made.get(numbers[x])
                if same is not None and same.aval == x.aval:
                    self.again.setdefault(same, x)
                else:
                    same = Var(x.aval)
                    self.own.add(same)
                self.names[x] = same

    def name(self, x: Any) -> Any:
        """The program's name of a value."""
        return x if isinstance(x, Literal) else self.names[x]

    def equations(self) -> Iterable[JaxprEqn]:
        """Those whose results are not all values of the program."""
        for one in self.jaxpr.eqns:
            outs = [self.names[x] for x in one.outvars]
            if any(x in self.own for x in outs) or one.effects:
                outs = [x if x in self.own else Var(x.aval) for x in outs]
                yield one.replace(invars=[self.name(x) for x in one.invars], outvars=outs)

    def results(self) -> dict[Any, Any]:
        """By the program's name of what it alone makes, the result of the checkpoint that it is."""
        found: dict[Any, Any] = {}
        for x, y in zip(self.equation.outvars, self.jaxpr.outvars, strict=True):
            if isinstance(y, Var) and self.names[y] in self.own:
                found.setdefault(self.names[y], x)
        return found

    def replaced(self, equations: Sequence[JaxprEqn], made_by: Mapping[Any, Any], kept: Collection[Any]) -> JaxprEqn:
        """The checkpoint with other equations.

        Args:
          equations: with the program's names.
          made_by: by value that is made outside, its equation; None where it is the program's.
          kept: values that were made outside before.
        """
        of_operands = dict(zip(self.operands, self.jaxpr.invars, strict=True))
        given: dict[Any, Any] = {}  # by value outside: in the body
        names: dict[Any, Any] = {}
        again: dict[int, JaxprEqn] = {}  # of the body, by index
        new: list[JaxprEqn] = []

        def give(x: Any) -> Any:
            inside = of_operands.get(x)
            return given.setdefault(x, Var(x.aval) if inside is None else inside)

        def name(x: Any) -> Any:
            if isinstance(x, Literal) or x in inside_of:
                return x
            if x not in names:
                names[x] = found(x)
            return names[x]

        def found(x: Any) -> Any:
            if x in of_operands:
                return give(x)
            if x in self.again:
                indices, read = self._what_makes(self.again[x])
                outside = {y: z for z, y in of_operands.items()}
                if all(outside[y] in made_by for y in read):
                    again.update((i, self.jaxpr.eqns[i]) for i in indices)
                    for y in read:
                        give(outside[y])
                    return self.again[x]
            one = made_by.get(x)
            if one is not None and x not in kept and is_elementwise(one):  # such as a mask for a kernel
                copy = one.replace(invars=list(map(name, one.invars)), outvars=[Var(y.aval) for y in one.outvars])
                new.append(copy)
                return copy.outvars[one.outvars.index(x)]
            return give(x)

        inside_of = results_of(equations)
        renamed = [one.replace(invars=list(map(name, one.invars))) for one in equations]
        results = {x: y for x, y in self.results().items() if x in inside_of}
        equations = ordered([*(again[i] for i in sorted(again)), *new, *renamed])
        invars, params = list(given.values()), dict(self.equation.params)
        body = self.jaxpr.replace(invars=invars, outvars=list(results), eqns=equations, debug_info=_compat.UNNAMED)
        params["jaxpr"] = ClosedJaxpr(body, []) if isinstance(params["jaxpr"], ClosedJaxpr) else body
        if isinstance(params.get("prevent_cse"), tuple):  # by operand
            of = list(zip(self.equation.invars, params["prevent_cse"], strict=True))
            params["prevent_cse"] = tuple(any(y for z, y in of if z is x) for x in given)
        return self.equation.replace(invars=list(given), outvars=list(results.values()), params=params)

    def _what_makes(self, value: Any) -> tuple[list[int], list[Any]]:
        """The indices of the equations of the body that make a value of it, and what of its operands they read."""
        needed, indices = {value}, []
        for index, one in reversed(list(enumerate(self.jaxpr.eqns))):
            if any(x in needed for x in one.outvars):
                indices.append(index)
                needed.update(operands_of(one))
        return indices[::-1], [x for x in self.jaxpr.invars if x in needed]


class _Together:
    """A program with the equations of checkpoints in their place.

    Attributes:
      jaxpr: it.
    """

    def __init__(self, jaxpr: Jaxpr, checkpoints: Sequence[JaxprEqn]) -> None:
        """Puts them there.

        Args:
          jaxpr: the program.
          checkpoints: equations of it.
        """
        self._program = jaxpr
        ids = set(map(id, checkpoints))
        values, made = SameValues(), dict[Any, Any]()
        values.look_at((one for one in jaxpr.eqns if id(one) not in ids), values.numbers)
        outside = [one for one in jaxpr.eqns if id(one) not in ids]
        self._outside = {*jaxpr.constvars, *jaxpr.invars, *results_of(outside)}
        names: dict[Any, Any] = {}  # of the checkpoints' results, and of masks that layers make anew
        for x in (x for one in outside for x in one.outvars):
            same = made.setdefault(values.numbers[x], x)
            if aval_of(x).dtype == bool and same is not x:
                names[x] = same
        self._bodies: list[_Body] = []
        equations: list[JaxprEqn] = []
        for one in jaxpr.eqns:
            if id(one) not in ids:
                equations.append(one.replace(invars=_renamed(one.invars, names)))
                continue
            body = _Body(one, names, values, made)
            self._bodies.append(body)
            equations += body.equations()
            names |= {x: body.name(y) for x, y in zip(one.outvars, body.jaxpr.outvars, strict=True)}
        self.jaxpr = jaxpr.replace(eqns=ordered(equations), outvars=_renamed(jaxpr.outvars, names))

    def useful(self, new: Jaxpr) -> list[JaxprEqn]:
        """The checkpoints that were given something which is not made any more.

        Args:
          new: the program with attention.
        """
        made = {*new.constvars, *new.invars, *results_of(new.eqns)}
        operands = [(one, [one.names[x] for x in one.jaxpr.invars]) for one in self._bodies]
        return [one.equation for one, given in operands if any(isinstance(x, Var) and x not in made for x in given)]

    def apart(self, new: Jaxpr) -> Jaxpr | None:
        """The program with checkpoints; None if it cannot be taken apart.

        Args:
          new: it, with attention.
        """
        owner = {x: i for i, one in enumerate(self._bodies) for x in one.own}
        results = {x: y for one in self._bodies for x, y in one.results().items()}
        of_bodies: list[list[JaxprEqn]] = [[] for _ in self._bodies]
        outside: list[JaxprEqn] = []
        for one in new.eqns:
            owners = {owner[x] for x in one.outvars if x in owner}
            if not owners and not any(x in self._outside for x in one.outvars):
                owners = {owner[x] for x in operands_of(one) if x in owner and x not in results}
            if len(owners) > 1:
                return None
            for index in owners:
                of_bodies[index].append(one)
                owner |= dict.fromkeys(one.outvars, index)
            outside += [] if owners else [one]
        outside = [one.replace(invars=_renamed(one.invars, results)) for one in outside]
        if any(x in owner for one in outside for x in operands_of(one)):
            return None
        made_by: dict[Any, Any] = dict.fromkeys((*new.constvars, *new.invars))
        made_by |= {x: None for one in self._bodies for x in one.equation.outvars}
        made_by |= {x: one for one in outside for x in one.outvars}
        for body, equations in zip(self._bodies, of_bodies, strict=True):
            inside = results_of(equations)
            others = {x: y for x, y in results.items() if x not in inside}
            equations = [one.replace(invars=_renamed(one.invars, others)) for one in equations]
            if any(x in owner and x not in inside for one in equations for x in operands_of(one)):
                return None
            outside.append(body.replaced(equations, made_by, self._outside))
        try:
            equations = ordered(outside)
        except ValueError:
            return None
        whole = self._program.replace(eqns=equations, outvars=_renamed(new.outvars, results))
        return _compat.without_dead_code(whole, keep_inputs=True)


def _given_once(body: Jaxpr, operands: Sequence[Any]) -> tuple[Jaxpr, list[Any]]:
    """A body that is given each array once, and no numbers; and these arrays."""
    given: dict[Any, Any] = {}
    names: dict[Any, Any] = {}
    for inside, outside in zip(body.invars, operands, strict=True):
        same = outside if isinstance(outside, Literal) else given.setdefault(outside, inside)
        if same is not inside:
            names[inside] = same
    if not names:
        return body, list(operands)
    equations = [one.replace(invars=_renamed(one.invars, names)) for one in body.eqns]
    outvars = _renamed(body.outvars, names)
    return body.replace(invars=list(given.values()), outvars=outvars, eqns=equations, debug_info=_compat.UNNAMED), list(
        given
    )


def _renamed(variables: Iterable[Any], names: Mapping[Any, Any]) -> list[Any]:
    return [names.get(x, x) if isinstance(x, Var) else x for x in variables]
