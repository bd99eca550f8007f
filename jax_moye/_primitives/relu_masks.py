"""The mask of relu's derivative, made of relu's result in place of its argument.

The derivative of y = relu(z) asks where z > 0, and y > 0 says the same of each z, also of one that is no number. The
next product reads y, so that it is in memory; z nobody else needs, and it would be written for the mask alone, by XLA
or as a kernel's second result. A loop for the derivative need not be handed the mask then: it has y.

| what | condition |
|---|---|
| z > 0 becomes y > 0 | y = max(z, 0) is there before, also inside of jit and custom_jvp |
| | z is made here: what is given is in memory, too |
| | y is in memory: a product reads it as it is, or another equation that is not elementwise, or it is a result |
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var

from jax_moye._primitives.patterns import Number, Program, as_number, aval_of
from jax_moye._primitives.scans import Scan, is_known

_MOVES = frozenset(("copy", "reshape", "squeeze", "transpose"))  # without conversions, whose operand XLA does not write


def with_masks_of_results(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, whose masks of relu read its results; the same object if there is none to be changed.

    Args:
      jaxpr: a program; of the jaxprs of its equations those of scans change, too.
    """
    equations: list[Any] = [_with_body_changed(one) if is_known(one) else one for one in jaxpr.eqns]
    if any(one.primitive.name == "gt" for one in equations):
        program = Program(equations, jaxpr.outvars)
        results = _results(program)
        equations = [_changed(program, index, results) for index in range(len(equations))]
    is_same_program = all(one is other for one, other in zip(equations, jaxpr.eqns, strict=True))
    return jaxpr if is_same_program else jaxpr.replace(eqns=equations)


def _with_body_changed(equation: JaxprEqn) -> JaxprEqn:
    scan = Scan(equation)
    body = with_masks_of_results(scan.body)
    return equation if body is scan.body else scan.replaced(scan.operands(), scan.consts, eqns=body.eqns)


def _results(program: Program) -> dict[Any, Any]:
    """Results of relu that are in memory, by the name in `flat` of what it is applied to."""
    flat, found = program.flat, dict[Any, Any]()
    for result in program.made_by:
        name = flat.names.get(result, result)
        step = None if isinstance(name, Number) else flat.made_by.get(name)
        if step is None or step.equation.primitive.name != "max" or not program.is_read_whole(result, _MOVES):
            continue
        numbers = [x for x in step.inputs if isinstance(x, Number) and not x.value.any()]
        # A scalar is copied to the shape of numbers: its own mask is no array.
        of_shape = [aval_of(x).shape == aval_of(result).shape for x in step.equation.invars]
        others = [x for x, is_it in zip(step.inputs, of_shape, strict=True) if is_it and not isinstance(x, Number)]
        if numbers and others:
            found.setdefault(others[0], result)
    return found


def _changed(program: Program, index: int, results: dict[Any, Any]) -> JaxprEqn:
    """An equation, or the one that reads relu's result where it makes a mask of the argument."""
    equation = program.equations[index]
    if equation.primitive.name != "gt" or not isinstance(equation.invars[0], Var):
        return equation
    argument = program.flat.names.get(equation.invars[0], equation.invars[0])
    result: Any = None if isinstance(argument, Number) else results.get(argument)
    is_made = result is not None and argument in program.flat.made_by and program.made_by[result] < index
    if not is_made or as_number(program, equation.invars[1]) != 0:
        return equation
    return equation.replace(invars=[result, equation.invars[1]])
