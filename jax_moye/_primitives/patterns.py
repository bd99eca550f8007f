"""Finds equations in a jaxpr: who reads a value, what a scalar or a vector was before it was copied, and a template's.

A template is found wherever its equations are, in whichever order, and inside of jit and custom_jvp.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from jax_moye._primitives.equations import CLOSED_CALL, SAME, is_elementwise, is_same

# Equations that are what their jaxpr is, for who runs them, and the parameter that holds it.
_CALLS = {"jit": "jaxpr", "pjit": "jaxpr", CLOSED_CALL: "call_jaxpr", "custom_jvp_call": "call_jaxpr"}
_MOST = 16  # equations of a jaxpr that may be an activation, or part of one
_MOST_AROUND = 64  # values that a derivative is looked for in
_COPIES = ("broadcast_in_dim", "convert_element_type")  # a number stays one
PRODUCTS = (
    "dot_general",
    "ragged_dot_general",
    "jax_moye_attention",
    "jax_moye_attention_grad",
    "jax_moye_contract",
    "jax_moye_dequantized",
    "jax_moye_fused",
    "jax_moye_grouped",
    "jax_moye_grouped_fused",
    "jax_moye_grouped_rewritten",
    "jax_moye_rewritten",
    "jax_moye_viewed",
    "jax_moye_weights",
)
_COMMUTE = ("add", "add_any", "mul", "max", "min")


class Program:
    """Who makes and who reads each value of a jaxpr.

    Attributes:
      equations: of it.
      readers: by value, the indices of the equations that read it; their number where it is a result.
      made_by: by value, the index of its equation.
      taken: indices of equations that are part of something already: nothing else is made of them.
      kept: by its name in `flat`, a value that a product of ours writes: what stands behind it makes, or is applied to.
      in_loop: it is the body of a loop, or in one: XLA copies what it is given before a kernel of ours reads it, and
        what such a kernel makes into a stack.
      borrowed: what it is given that somebody reads when it is done.
      beside_c: sums that products of ours do not write over what they add to, and those that are written over these.
    """

    def __init__(
        self,
        equations: Sequence[JaxprEqn],
        outvars: Iterable[Any],
        in_loop: bool = False,
        borrowed: Collection[Any] = (),
    ) -> None:
        """Counts."""
        self.equations = equations
        self.in_loop = in_loop
        self.borrowed = frozenset(borrowed)
        self.readers: dict[Any, list[int]] = {}
        self.made_by: dict[Any, int] = {}
        self.taken: set[int] = set()
        self.kept: dict[Any, Any] = {}
        self.beside_c: set[Any] = set()
        for index, equation in enumerate(equations):
            for variable in equation.invars:
                if isinstance(variable, Var):
                    self.readers.setdefault(variable, []).append(index)
            for variable in equation.outvars:
                self.made_by[variable] = index
        for variable in outvars:
            if isinstance(variable, Var):
                self.readers.setdefault(variable, []).append(len(equations))

    def only_reader(self, variable: Any) -> int | None:
        """The equation that alone reads it, once; None if there are more, if it is a result, or taken."""
        readers = self.readers.get(variable, [])
        is_one = len(readers) == 1 and readers[0] < len(self.equations)
        return readers[0] if is_one and readers[0] not in self.taken else None

    def maker(self, variable: Any) -> tuple[int | None, Any]:
        """The equation, and its index, that makes a value for one reader alone; (None, None) if there is none."""
        index = self.made_by.get(variable) if isinstance(variable, Var) else None
        if index is None or index in self.taken or len(self.readers.get(variable, ())) != 1:
            return None, None
        return index, self.equations[index]

    def keep(self, *values: Any) -> None:
        """Says that products of ours write these."""
        self.kept |= {self.flat.names.get(x, x): x for x in values}

    def kept_or_given(self, value: Any) -> Iterator[Any]:
        """What a value may be multiplied with a derivative at.

        Values of its type that our products write, or that the program is given, whole and not as part of a stack; what
        reads `value` is made of them.
        """
        like = aval_of(value)
        for name in self.flat.around(self.flat.names.get(value, value)):
            x = self._in_memory(name)
            if x is not None and aval_of(x).shape == like.shape and aval_of(x).dtype == like.dtype:
                yield x

    def in_memory(self, value: Any) -> Any:
        """A value that our products write, or that the program is given, by the name that they have for it; or None."""
        return self._in_memory(self.flat.names.get(value, value))

    def _in_memory(self, name: Any) -> Any:
        is_given = not self.in_loop and name in self.readers and name not in self.made_by
        return name if is_given else self.kept.get(name)

    def is_stacked(self, value: Any, result: Any) -> bool:
        """Whether a loop's body hands out what is made of a value, but for `result`: the loop stacks it, or carries it.

        Products and sums are not looked behind: what they make is theirs, or small.
        """
        shape = aval_of(value).shape
        waiting, seen = [value] * self.in_loop, {result}
        while waiting:
            x = waiting.pop()
            if x in seen:
                continue
            seen.add(x)
            for index in self.readers.get(x, ()):
                if index == len(self.equations):
                    return True
                equation: Any = self.equations[index]
                if equation.primitive.name not in PRODUCTS:
                    waiting += [x for x in equation.outvars if aval_of(x).shape == shape]
        return False

    def is_read_whole(self, value: Any, moves: Collection[str]) -> bool:
        """Whether somebody reads more of a value than elements for elements, a product say, or it is a result.

        Args:
          value: of the program.
          moves: names of equations whose result is the same value.
        """
        waiting, seen = [value], {value}
        while waiting:
            for index in self.readers.get(waiting.pop(), ()):
                if index == len(self.equations):
                    return True
                equation: Any = self.equations[index]
                if is_same(equation) or equation.primitive.name in moves:
                    waiting += [x for x in equation.outvars if x not in seen]
                    seen.update(equation.outvars)
                elif not is_elementwise(equation):
                    return True
        return False

    @functools.cached_property
    def flat(self) -> Flat:
        """With the equations of small calls in the place of the calls."""
        return Flat(self.equations)


# ------------------------------------------------------------------------------------------- what an operand was


def as_number(program: Program, variable: Any) -> float | None:
    """The number that an operand is in each element, known while tracing; None if it is none."""
    if isinstance(variable, Literal):
        value: Any = np.asarray(variable.val)
        if value.ndim > 0:
            return None
    else:
        index = program.made_by.get(variable)
        equation: Any = None if index is None else program.equations[index]
        if equation is None or equation.primitive.name not in (*_COPIES, *SAME) or len(equation.invars) != 1:
            return None
        value = as_number(program, equation.invars[0])
        if value is None:
            return None
    # What the type holds of it: 0.1 as bfloat16 is another number.
    return float(_as_type(value, aval_of(variable).dtype))


def _as_type(value: Any, dtype: Any) -> Any:
    """A number as a type holds it: one that it is too large for is infinite, which NumPy would warn of."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(value).astype(dtype)


def as_broadcast(program: Program, variable: Any, shape: tuple[int, ...]) -> tuple[Any, tuple[int, ...], list[int]]:
    """An array that is the same along some dimensions, the dimensions that it has, and the equation that copies it.

    None and nothing if it has no dimension of several elements.

    Args:
      program: where it stands.
      variable: of the shape, or with dimensions of size 1 in the place of some.
      shape: of the array that it is added to.
    """
    index, equation = program.maker(variable)
    is_copied = index is not None and equation.primitive.name == "broadcast_in_dim" and len(equation.invars) == 1
    of_copy = equation.params["broadcast_dimensions"] if is_copied and _sizes(variable) == shape else None
    before = variable if of_copy is None else equation.invars[0]
    if not isinstance(before, Var):
        return None, (), []
    if of_copy is None and len(_sizes(before)) != len(shape):  # a scalar, say
        return None, (), []
    dims = range(len(shape)) if of_copy is None else of_copy
    in_order = tuple(dim for dim, size in zip(dims, _sizes(before), strict=True) if size != 1)
    members = [] if of_copy is None or index is None else [index]
    return (before, in_order, members) if in_order else (None, (), [])


def _sizes(variable: Any) -> tuple[Any, ...]:
    return aval_of(variable).shape


def aval_of(variable: Any) -> Any:
    """The type of an array, or number, in a jaxpr."""
    return variable.aval


# ------------------------------------------------------------------------------------------------------ templates


class Number(NamedTuple):
    """A number in a program, whether it was converted, or copied into an array, or not.

    Attributes:
      value: in NumPy's form.
      dtype: of it.
    """

    value: Any
    dtype: Any


@dataclasses.dataclass(eq=False)
class Step:
    """An equation, perhaps of a call.

    Attributes:
      equation: with the variables of the jaxpr where it stands.
      place: the index of the equation that it is, or of the call.
      inputs: the program's names of its operands: a variable, an object, or a number.
      outputs: likewise of its results.
    """

    equation: Any
    place: int
    inputs: list[Any]
    outputs: list[Any]


class Flat:
    """The equations of a jaxpr, those of small calls in the place of the calls.

    Attributes:
      steps: the equations.
      readers: by name of a value, the steps that read it.
      made_by: by name of a value, the step that makes it.
      at: by index of an equation, its steps.
      names: of the variables of the jaxpr.
    """

    def __init__(self, equations: Sequence[JaxprEqn]) -> None:
        """Looks into the calls."""
        self.names: dict[Any, Any] = {}
        self.steps = list(_steps(equations, self.names, None))
        self.readers: dict[Any, list[Step]] = {}
        self.made_by: dict[Any, Step] = {}
        self.at: dict[int, list[Step]] = {}
        for step in self.steps:
            self.at.setdefault(step.place, []).append(step)
            self.made_by |= dict.fromkeys(step.outputs, step)
            for name in step.inputs:
                if not isinstance(name, Number):
                    self.readers.setdefault(name, []).append(step)

    def read_by(self, value: Any) -> frozenset[Any]:
        """The primitives of the steps that read a variable of the jaxpr."""
        steps = self.readers.get(self.names.get(value, value), ())
        return frozenset(step.equation.primitive for step in steps)

    def around(self, value: Any) -> Iterator[Any]:
        """The names of what is computed with a value, and of what that is made of, but for what products make.

        As many as an activation's derivative may have.
        """
        same, waiting = [value], []  # `same`: what is made of the value alone
        for x in same:
            for step in self.readers.get(x, ())[:_MOST]:
                others = [y for y in step.inputs if not isinstance(y, Number) and y not in same]
                waiting += others
                same += step.outputs if not others and len(same) < _MOST else []
        seen = set(same)
        for x in waiting:
            if x in seen:
                continue
            seen.add(x)
            yield x
            maker = self.made_by.get(x)
            if len(seen) > _MOST_AROUND:
                return
            if maker is not None and maker.equation.primitive.name not in PRODUCTS:
                waiting += [y for y in maker.inputs if not isinstance(y, Number)]


def _steps(equations: Sequence[Any], names: dict[Any, Any], place: int | None) -> Iterator[Step]:
    """The steps of equations, whose values get names on the way."""
    for index, equation in enumerate(equations):
        at = index if place is None else place
        inputs = [_name(x, names) for x in equation.invars]
        body = _body(equation)
        if body is not None:
            inside = dict(zip(body.invars, inputs, strict=True))
            yield from _steps(body.eqns, inside, at)
            names |= {x: _name(y, inside) for x, y in zip(equation.outvars, body.outvars, strict=True)}
        elif is_same(equation) and len(inputs) == 1:
            names[equation.outvars[0]] = inputs[0]
        elif equation.primitive.name in _COPIES and len(inputs) == 1 and _is_one_number(inputs[0]):
            dtype = equation.outvars[0].aval.dtype
            names[equation.outvars[0]] = Number(_as_type(inputs[0].value, dtype), dtype)
        else:
            if place is not None:  # one jaxpr may be called twice
                names |= {x: object() for x in equation.outvars}
            yield Step(equation, at, inputs, [names.get(x, x) for x in equation.outvars])


def _is_one_number(name: Any) -> bool:
    return isinstance(name, Number) and name.value.ndim == 0


def _name(x: Any, names: dict[Any, Any]) -> Any:
    """Of a variable, or the number that a literal is."""
    if not isinstance(x, Literal):
        return names.get(x, x)
    dtype = aval_of(x).dtype
    return Number(np.asarray(x.val, dtype), dtype)


def _body(equation: Any) -> Jaxpr | None:
    """The jaxpr of a small call; None of others."""
    name = equation.primitive.name
    body = equation.params.get(_CALLS[name]) if name in _CALLS else None
    if isinstance(body, ClosedJaxpr):
        body = None if body.consts else body.jaxpr
    if not isinstance(body, Jaxpr) or body.constvars or body.effects or len(body.eqns) > _MOST:
        return None
    return body


class Template:
    """A function of arrays, as equations.

    Attributes:
      steps: of it.
      arguments: their names.
      result: its result's.
      read_by: of each argument, the primitives of the steps that read it.
    """

    def __init__(self, jaxpr: Jaxpr) -> None:
        """Looks into its calls."""
        flat = Flat(jaxpr.eqns)
        self.steps = flat.steps
        self.arguments = list(jaxpr.invars)
        self.result = flat.names.get(jaxpr.outvars[0], jaxpr.outvars[0])
        self.read_by = [flat.read_by(x) for x in self.arguments]


def possible(
    program: Program, make: Callable[[str, tuple[Any, ...], Any], Template], names: Iterable[str], *values: Any
) -> Iterator[tuple[str, Template]]:
    """The names, and templates, of functions that a program may compute of values of one type.

    Tracing one takes longer than all else that rewriting a product asks for. That of a small array, which is traced
    once, has equations of the same kinds: what no such equations read is not the function's argument.

    Args:
      program: where the values stand.
      make: a function's template: of its name, and of its arguments' shape and dtype. It keeps what it made.
      names: of the functions.
      *values: the arguments.
    """
    shape, dtype = _sizes(values[0]), aval_of(values[0]).dtype
    read_by = [program.flat.read_by(x) for x in values]
    small = tuple(min(size, 2) if isinstance(size, int) else size for size in shape)
    for name in names:
        kinds = make(name, small, dtype).read_by
        if all(needed <= found for needed, found in zip(kinds, read_by, strict=True)):
            yield name, make(name, tuple(shape), dtype)


def matched(
    program: Program, value: Any, template: Template, alone: bool = True, taken: bool = False
) -> tuple[list[int], Any] | None:
    """The equations that are those of a template of a value, and what they make; None if there are none.

    Args:
      program: whose they are.
      value: what the template is of.
      template: what is looked for.
      alone: nobody else reads the value, nor what is between it and the result.
      taken: they may be part of something already.
    """
    flat = program.flat
    known: dict[Any, Any] = {template.arguments[0]: flat.names.get(value, value)}
    used: list[Step] = []
    for wanted in template.steps:
        found = next((step for step in _candidates(flat, wanted, known) if step not in used), None)
        if found is None:
            return None
        used.append(found)
        known |= dict(zip(wanted.outputs, found.outputs, strict=True))
    return _members_of(program, value, used, known[template.result], alone, taken)


def matched_at(program: Program, value: Any, at: Any, template: Template) -> tuple[list[int], Any] | None:
    """The same of a template of two arguments, of which others read the first one, and what is made of it alone.

    Args:
      program: whose equations they are.
      value: the second argument, which nobody else reads.
      at: the first one.
      template: what is looked for.
    """
    flat = program.flat
    first, second = template.arguments
    known: dict[Any, Any] = {first: flat.names.get(at, at), second: flat.names.get(value, value)}
    of_value, used = {second}, []
    for wanted in template.steps:
        found = next(_candidates(flat, wanted, known), None)
        if found is None:
            return None
        if any(x in of_value for x in wanted.inputs if not isinstance(x, Number)):
            of_value.update(wanted.outputs)
            used.append(found)
        known |= dict(zip(wanted.outputs, found.outputs, strict=True))
    return _members_of(program, value, used, known[template.result], alone=True, taken=False)


def _candidates(flat: Flat, wanted: Step, known: dict[Any, Any]) -> Iterator[Step]:
    """The equations that may be the one of a template, of the values that are known."""
    first = next((known[x] for x in wanted.inputs if not isinstance(x, Number)), None)
    return (step for step in flat.readers.get(first, ()) if _is_as_wanted(step, wanted, known))


def _members_of(
    program: Program, value: Any, used: Sequence[Step], name: Any, alone: bool, taken: bool
) -> tuple[list[int], Any] | None:
    """The equations whose steps those of a template are, and what they make of a value; None if there is more to them.

    Args:
      program: whose equations they are.
      value: what they begin with.
      used: the steps.
      name: of the result.
      alone: as in `matched`.
      taken: likewise.
    """
    flat = program.flat
    members = sorted({step.place for step in used})
    is_more = (not set(flat.at[index]) <= set(used) for index in members)
    if (not taken and any(index in program.taken for index in members)) or (alone and any(is_more)):
        return None
    made = [x for index in members for x in program.equations[index].outvars]
    results = [x for x in made if flat.names.get(x, x) is name]
    inside = [value, *(x for x in made if all(x is not result for result in results))]
    others_read = (not set(program.readers.get(x, [])) <= set(members) for x in inside)
    if len(results) != 1 or (alone and any(others_read)):
        return None
    return members, results[0]


def _is_as_wanted(step: Step, wanted: Step, known: dict[Any, Any]) -> bool:
    """Whether an equation is the one of the template, of the values that are known."""
    ours, other = step.equation, wanted.equation
    if ours.primitive is not other.primitive or len(step.inputs) != len(wanted.inputs):
        return False
    if len(step.outputs) != len(wanted.outputs) or str(ours.params) != str(other.params):
        return False
    # Names of numbers do not say of which shape these are, and a scalar and an array of numbers make an array.
    if any(_sizes(x) != _sizes(y) for x, y in zip(ours.outvars, other.outvars, strict=True)):
        return False

    def equal(x: Any, y: Any) -> bool:
        if isinstance(x, Number) or isinstance(y, Number):
            both = isinstance(x, Number) and isinstance(y, Number)
            return both and x.dtype == y.dtype and np.array_equal(x.value, y.value)
        return known.get(y) is x

    orders = [step.inputs]
    if ours.primitive.name in _COMMUTE:
        orders.append(step.inputs[::-1])
    return any(all(map(equal, order, wanted.inputs)) for order in orders)
