"""Residuals of scans: what a derivative's loop can compute from others need not be kept for it.

The derivative of a scan is two: one that stacks residuals, an iteration's in each row, and one that reads them. XLA
computes nothing anew across loops, so each is written and read, though many are an activation's intermediate values
and follow from its argument alone. Here the reading loop computes those, by copies of the equations that made them.

| what | condition |
|---|---|
| a residual | a stacked output that later scans of the same length and jaxpr alone read, as stacked inputs |
| is computed anew | by elementwise equations, and calls of nothing else (equations.py) |
| from | what is kept: residuals, other values of the body, its stacked inputs and outputs, its constants |
| kept is | the set of values of least cost from which all residuals follow (minimal_cut.py) |
| the cost of a value | twice its bytes if it is stacked for this: written and read |
| | its bytes if an array holds it anyway: read |
| | 0 if the reading loops read that array already, and of scalar constants |
| a scan in both loops | is looked at in a program of both of them, and so is attention (scan_pairs.py) |
| a call of jit | is looked into where a residual comes from it, and where it holds one of the two loops |
| nothing changes | where that costs no less than the residuals, and where sizes are symbols |

A residual has the dtype and the operations that it had. Equations that nobody reads then are removed, so that what is
behind a product in the first loop is what it was without derivatives.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var, unmapped_aval

from jax_moye import _compat
from jax_moye._primitives.equations import inlined, inner_of, is_elementwise, operands_of
from jax_moye._primitives.minimal_cut import minimal_cut
from jax_moye._primitives.patterns import Program
from jax_moye._primitives.scan_pairs import Rewrite, rewritten_pair
from jax_moye._primitives.scans import Scan, bytes_of, is_known


def with_fewer_residuals(jaxpr: Jaxpr, rewrite: Rewrite | None = None) -> Jaxpr:
    """The same program; its scans, but not those inside its equations, stack fewer bytes for each other.

    Calls of jit that pass residuals on become their equations for that: the derivative of a call is two of them.

    Args:
      jaxpr: a program.
      rewrite: of what two loops compute of a row, as one program (scan_pairs.py); None: they are not looked at so.
    """
    if sum(1 for equation in jaxpr.eqns if is_known(equation) or _has_scans(equation)) < 2:
        return jaxpr
    flat = _compat.without_dead_code(jaxpr, keep_inputs=True)  # what nobody reads, reads residuals
    while passing := _passing(flat):
        flat = inlined(flat, passing)
    equations = list(flat.eqns)
    scans = [index for index, equation in enumerate(equations) if is_known(equation)]
    changed = False
    for index in scans[:-1]:
        new = _changes(flat, equations, index)
        if rewrite is not None:
            new = _changes_of_pairs(flat, equations, index, new, rewrite)
        for at, equation in new.items():
            equations[at] = equation
            changed = True
    return _compat.without_dead_code(flat.replace(eqns=equations), keep_inputs=True) if changed else jaxpr


def _passing(jaxpr: Jaxpr) -> list[JaxprEqn]:
    """Calls that return what their scans stack to other loops alone, and calls that those are in."""
    calls = {index for index, equation in enumerate(jaxpr.eqns) if _has_scans(equation)}
    loops = calls | {index for index, equation in enumerate(jaxpr.eqns) if is_known(equation)}
    program = Program(jaxpr.eqns, jaxpr.outvars)
    passing: set[int] = set()
    for index in loops:
        for variable in _stacked(jaxpr.eqns[index]):
            readers = set(program.readers.get(variable, ()))
            if readers and readers <= loops:
                passing |= {index, *readers} & calls
    return [jaxpr.eqns[index] for index in passing]


def _has_scans(equation: JaxprEqn) -> bool:
    inner = inner_of(equation)
    return inner is not None and any(is_known(one) or _has_scans(one) for one in inner.eqns)


def _stacked(equation: JaxprEqn) -> list[Any]:
    """The results of a scan, or of scans in a call, that are stacked."""
    if is_known(equation):
        return list(equation.outvars[Scan(equation).carry :])
    inner = inner_of(equation)
    found = set() if inner is None else {x for one in inner.eqns for x in _stacked(one)}
    return [x for x, y in zip(equation.outvars, inner.outvars, strict=True) if y in found] if inner and found else []


# ------------------------------------------------------------------------------------------- what is kept, and how


@dataclasses.dataclass(frozen=True)
class _Way:
    """How the reading loops get a value.

    Attributes:
      cost: twice the bytes that are written, or those that are read.
      outside: an array of the program that holds it; None: it is stacked for this.
      is_constant: it is the same in each iteration.
    """

    cost: int
    outside: Any = None
    is_constant: bool = False


class _Residuals:
    """What a scan stacks for later ones.

    Attributes:
      program: where it is.
      scan: it.
      outputs: indices of the residuals among its outputs.
      readers: indices of the equations that read them.
      made_by: by value of the body, the equation that makes it.
      made_of: by value that a residual is, or is made of, its operands; None: it cannot be computed anew.
    """

    def __init__(self, program: Program, index: int) -> None:
        """Looks for them, also in calls that the scan makes."""
        self.program, self.scan = program, Scan(program.equations[index])
        self._look()
        while calls := [
            self.made_by[x] for x, operands in self.made_of.items() if operands is None and self._is_call(x)
        ]:
            self.scan.body = inlined(self.scan.body, calls)
            self._look()
        outside = [self.scan.equation.outvars[i] for i in self.outputs]
        self.readers = sorted({reader for variable in outside for reader in program.readers[variable]})

    def _look(self) -> None:
        self.outputs = [i for i in range(self.scan.carry, len(self.scan.body.outvars)) if self._is_residual(i)]
        self.made_by: dict[Any, Any] = {x: equation for equation in self.scan.body.eqns for x in equation.outvars}
        self.made_of: dict[Any, list[Any] | None] = {}
        waiting = self.values
        while waiting:
            value = waiting.pop()
            if value not in self.made_of:
                equation = self.made_by.get(value)
                is_computed = equation is not None and is_elementwise(equation)
                self.made_of[value] = operands_of(equation) if is_computed else None
                waiting += self.made_of[value] or []

    def _is_call(self, value: Any) -> bool:
        return value in self.made_by and inner_of(self.made_by[value]) is not None

    @property
    def values(self) -> list[Any]:
        """Of the body, one for each residual."""
        return [self.scan.body.outvars[i] for i in self.outputs]

    def _is_residual(self, output: int) -> bool:
        variable = self.scan.equation.outvars[output]
        equations, readers = self.program.equations, self.program.readers.get(variable, [])
        if not readers or max(readers) >= len(equations) or not isinstance(self.scan.body.outvars[output], Var):
            return False
        if not all(is_known(equations[i]) for i in readers):
            return False
        scans = [Scan(equations[i]) for i in readers]
        at = [i >= scan.first for scan in scans for i, x in enumerate(scan.equation.invars) if x is variable]
        return all(at) and all(scan.length == self.scan.length for scan in scans)

    def is_counted(self) -> bool:
        """Whether all sizes are numbers."""
        shapes = (x.aval.shape for x in (*self.scan.body.invars, *self.made_by) if hasattr(x.aval, "shape"))
        return all(isinstance(size, int) for shape in (*shapes, (self.scan.length,)) for size in shape)

    def ways(self) -> Callable[[Any], _Way]:
        """What says how the reading loops get a value of the body, in the cheapest way."""
        scan, length, last = self.scan, self.scan.length, len(self.program.equations)
        given = {*self.program.made_by}
        scans = [Scan(self.program.equations[i]) for i in self.readers]
        known: dict[Any, _Way] = {}

        def add(outside: Any, inside: Any, is_constant: bool) -> None:
            cost = bytes_of(inside) * (1 if is_constant else length)
            is_free = not isinstance(outside, Var) or (is_constant and not inside.aval.shape)
            if is_free or all((x.constant if is_constant else x.stacked)(outside) is not None for x in scans):
                cost = 0
            elif outside in given and max(self.program.readers.get(outside, [last])) < max(self.readers):
                cost = 2 * cost  # it would have to live for longer
            if inside not in known or cost < known[inside].cost:
                known[inside] = _Way(cost, outside, is_constant)

        for i, (outside, inside, _) in enumerate(scan.operands()):
            if not scan.consts <= i < scan.first:
                add(outside, inside, i < scan.consts)
        for i in {*range(scan.carry, len(scan.body.outvars))} - {*self.outputs}:
            outside, inside = scan.equation.outvars[i], scan.body.outvars[i]
            if isinstance(inside, Var) and self.program.readers.get(outside):
                add(outside, inside, False)
        return lambda value: known[value] if value in known else _Way(2 * length * bytes_of(value))


# ------------------------------------------------------------------------------------------------ the new equations


def _changes(jaxpr: Jaxpr, equations: Sequence[JaxprEqn], index: int) -> dict[int, JaxprEqn]:
    """The equations that replace a scan and those that read its residuals, by index; none if that saves nothing."""
    if not is_known(equations[index]):
        return {}
    residuals = _Residuals(Program(equations, jaxpr.outvars), index)
    if not residuals.outputs or not residuals.is_counted():
        return {}
    way = residuals.ways()
    kept, cost = minimal_cut({x: way(x).cost for x in residuals.made_of}, residuals.made_of, residuals.values)
    scan, values = residuals.scan, residuals.values
    if cost >= 2 * scan.length * sum(map(bytes_of, values)):
        return {}
    outside: dict[Any, Any] = {}  # by value that is kept: where the reading loops find it
    order = {x: i for i, x in enumerate([*scan.body.invars, *residuals.made_by])}
    for value in sorted(kept, key=lambda value: order.get(value, -1)):
        outside[value] = way(value).outside
        if outside[value] is None and value in values:
            outside[value] = scan.equation.outvars[residuals.outputs[values.index(value)]]
        elif outside[value] is None:
            outside[value] = Var(unmapped_aval(scan.length, 0, value.aval))
    of_program = [x for x in outside.values() if isinstance(x, Var)]
    stays = [i for i, x in enumerate(scan.equation.outvars) if i not in residuals.outputs or x in of_program]
    new = [value for value in outside if way(value).outside is None and value not in values]
    outvars = [*(scan.body.outvars[i] for i in stays), *new]
    first = scan.replaced(scan.operands(), scan.consts, outvars=outvars)
    first = first.replace(outvars=[*(scan.equation.outvars[i] for i in stays), *(outside[x] for x in new)])
    constants = {value for value in outside if way(value).is_constant}
    gone = {scan.equation.outvars[i]: scan.body.outvars[i] for i in residuals.outputs if i not in stays}
    return {index: first} | {i: _reading(equations[i], residuals, gone, outside, constants) for i in residuals.readers}


def _changes_of_pairs(
    jaxpr: Jaxpr, equations: Sequence[JaxprEqn], index: int, changes: dict[int, JaxprEqn], rewrite: Rewrite
) -> dict[int, JaxprEqn]:
    """The equations that replace a scan and its readers, if less is stacked where they are looked at in pairs.

    Args:
      jaxpr: the program.
      equations: of it, now.
      index: of the scan.
      changes: those that replace them else.
      rewrite: of the program of a pair.
    """
    program = Program(equations, jaxpr.outvars)
    readers = {x for y in Scan(equations[index]).stacked_results for x in program.readers.get(y, ())}
    loops = sorted(x for x in readers if x < len(equations) and is_known(equations[x]))
    for reader, keeps_checkpoints in itertools.product(loops, (False, True)):
        pair = rewritten_pair(program, index, reader, rewrite, keeps_checkpoints)
        trial = [pair.get(i, one) for i, one in enumerate(equations)]
        pair |= _changes(jaxpr, trial, index) if pair else {}
        if pair and _stacked_bytes(pair[index]) < _stacked_bytes(changes.get(index, equations[index])):
            changes = pair
    return changes


def _stacked_bytes(equation: JaxprEqn) -> int:
    scan = Scan(equation)
    return sum(map(bytes_of, scan.stacked_results))


def _reading(
    equation: JaxprEqn, residuals: _Residuals, gone: Mapping[Any, Any], outside: Mapping[Any, Any], constants: set[Any]
) -> JaxprEqn:
    """A scan that computes residuals.

    Args:
      equation: the scan that reads them.
      residuals: of the other one.
      gone: by array that is not stacked any more, the value of the other body.
      outside: by value of the other body that is kept, the array or number that holds it.
      constants: which of them are the same in each iteration.
    """
    scan = Scan(equation)
    operands = scan.operands()
    wanted = [gone[x] for x in equation.invars[scan.first :] if isinstance(x, Var) and x in gone]
    copied = list(_needed(wanted, residuals, outside))
    leaves = dict.fromkeys(x for x in (*wanted, *(y for one in copied for y in operands_of(one))) if x in outside)
    names: dict[Any, Any] = {}  # of values of the other body
    new_constants: list[Any] = []
    new_stacked: list[Any] = []
    for value in leaves:
        find, new = (scan.constant, new_constants) if value in constants else (scan.stacked, new_stacked)
        names[value] = find(outside[value])
        if names[value] is None:
            names[value] = Var(value.aval)
            new.append((outside[value], names[value], False))
    equations = []
    for one in copied:
        names |= {x: Var(x.aval) for x in one.outvars if x not in names}
        made = [names[x] if x not in leaves else Var(x.aval) for x in one.outvars]
        invars = [names[x] if isinstance(x, Var) else x for x in one.invars]
        equations.append(one.replace(invars=invars, outvars=made))
    left = [x for i, x in enumerate(operands) if i < scan.first or not isinstance(x[0], Var) or x[0] not in gone]
    renamed = {y: names[gone[x]] for x, y, _ in operands[scan.first :] if isinstance(x, Var) and x in gone}

    def rename(variables: Iterable[Any]) -> list[Any]:
        return [renamed.get(x, x) if isinstance(x, Var) else x for x in variables]

    for one in scan.body.eqns:
        reads = any(isinstance(x, Var) and x in renamed for x in one.invars)
        equations.append(one.replace(invars=rename(one.invars)) if reads else one)
    operands = [*left[: scan.consts], *new_constants, *left[scan.consts :], *new_stacked]
    outvars = rename(scan.body.outvars)
    return scan.replaced(operands, scan.consts + len(new_constants), eqns=equations, outvars=outvars)


def _needed(wanted: Iterable[Any], residuals: _Residuals, outside: Mapping[Any, Any]) -> Iterator[Any]:
    """The equations that make values of what is kept, in the order of the body."""
    waiting = [x for x in wanted if x not in outside]
    needed: set[Any] = set()
    while waiting:
        value = waiting.pop()
        if value not in needed:
            needed.add(value)
            waiting += [x for x in operands_of(residuals.made_by[value]) if x not in outside]
    return (one for one in residuals.scan.body.eqns if any(x in needed for x in one.outvars))
