"""Scatters and gathers behind products of groups: rows that kernels store there.

    zeros.at[p].set or add(ragged_dot(x, w, sizes))            permutation = p
    ragged_dot(x, w, sizes)[p]                                 permutation = the inverse of p

`jax_moye.optimize` puts grouped_rewritten_p in the place of such a product, which is those equations wherever no kernel
computes it. p is a permutation as far as the program says (indices.py), and the inverse is one that it has: what is
added to zeros is the same then, but for a zero's sign. A conversion may stand between a product and what moves its
rows. A gather in front of one stays: no kernel reads rows by indices as fast as XLA gathers them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from jax_moye._primitives.chains import is_plain_float, original_of
from jax_moye._primitives.dequantizing import without_unread
from jax_moye._primitives.equations import inlined, inner_of
from jax_moye._primitives.grouped import OF_ROWS, grouped_p
from jax_moye._primitives.grouped_rewritten import as_grouped, grouped_rewritten_p, of_grouped
from jax_moye._primitives.indices import Indices, gather_dimensions, scatter_dimensions, stores
from jax_moye._primitives.pairs import ordered
from jax_moye._primitives.patterns import Number, Program, aval_of

_MOVES = ("gather", "scatter", "scatter-add")
_PRODUCTS = ("ragged_dot_general", grouped_p.name)
_ROWS = ((1,), (0,), (0,), (), ())  # dimensions of a gather, or scatter, of whole rows of a matrix
_Mode = lax.GatherScatterMode
_MODES = (_Mode.CLIP, _Mode.PROMISE_IN_BOUNDS, _Mode.FILL_OR_DROP)  # alike where no index is outside


def with_rows_in_place(jaxpr: Jaxpr, parameters: Mapping[str, Any]) -> Jaxpr:
    """The same program, whose products of groups store rows where they belong; the same object if none does.

    Args:
      jaxpr: a program.
      parameters: of the products: what `Options.parameters` gives.
    """
    if not any(map(_has_products, jaxpr.eqns)) or parameters["implementation"] == "xla":
        return jaxpr
    opened = _opened(jaxpr)
    program = Program(opened.eqns, opened.outvars)
    found = _Found(program, parameters)
    moved = [one for one in map(found.product_at, range(len(opened.eqns))) if one is not None]
    if not moved:
        return jaxpr
    gone = {index for one in moved for index in one.members}
    new = [one for index, one in enumerate(opened.eqns) if index not in gone]
    new = ordered([*new, *(one.equation(program, parameters) for one in moved)])
    return opened.replace(eqns=without_unread(new, opened.outvars, program))


def _has(equation: JaxprEqn, is_one: Callable[[JaxprEqn], bool]) -> bool:
    """Whether an equation, or one of a jit that may as well be its equations, is one."""
    body = inner_of(equation)
    return is_one(equation) or (body is not None and any(_has(one, is_one) for one in body.eqns))


def _has_products(equation: JaxprEqn) -> bool:
    return _has(equation, lambda one: one.primitive.name in _PRODUCTS)


def _opened(jaxpr: Jaxpr) -> Jaxpr:
    """With the equations of calls that have products of groups, or move rows behind one."""
    while True:
        program, calls = Program(jaxpr.eqns, jaxpr.outvars), []
        for equation in jaxpr.eqns:
            if equation.primitive.name in _PRODUCTS:
                behind = [index for _, index in _behind(program, equation.outvars[0])]
                near = [jaxpr.eqns[index] for index in behind if index < len(jaxpr.eqns)]
                calls += [one for one in near if _has(one, lambda x: x.primitive.name in _MOVES)]
            elif _has_products(equation):
                calls.append(equation)
        calls = [one for one in calls if inner_of(one) is not None]
        if not calls:
            return jaxpr
        jaxpr = inlined(jaxpr, calls)


def _behind(program: Program, value: Any) -> list[tuple[tuple[int, ...], int]]:
    """What may read a value alone, at once or behind a conversion to fewer bits: that one's index, and its own."""
    reader = program.only_reader(value)
    if reader is None:
        return []
    equation: Any = program.equations[reader]
    if equation.primitive.name != "convert_element_type":
        return [((), reader)]
    (new,) = equation.outvars
    is_narrower = is_plain_float(new.aval) and 1 < new.aval.dtype.itemsize <= aval_of(value).dtype.itemsize
    after = program.only_reader(new) if is_narrower else None
    return [] if after is None else [((reader,), after)]


class _Stored(NamedTuple):
    """What stores the rows of a product.

    Attributes:
      members: indices of the equations behind it, the last of which moves rows.
      permutation: a variable.
      at: the variable of indices that the last of them reads.
    """

    members: tuple[int, ...]
    permutation: Any
    at: Any


@dataclasses.dataclass(frozen=True)
class _Moved:
    """A product of groups, whose rows are stored elsewhere.

    Attributes:
      product: index of its equation.
      stored: what is done to its result.
    """

    product: int
    stored: _Stored

    @property
    def members(self) -> tuple[int, ...]:
        """The indices of the equations that it stands for alone."""
        return (self.product, *self.stored.members)

    def equation(self, program: Program, parameters: Mapping[str, Any]) -> JaxprEqn:
        """What stands in their place."""
        last = program.equations[self.members[-1]]
        product = as_grouped(program.equations[self.product], parameters)
        permutation, at = self.stored.permutation, self.stored.at
        # What the equations read, and a kernel does not: else it would be made for them again.
        variables = [*product.invars, permutation, *([] if at is permutation else [at])]
        original = of_grouped(original_of(program, [], self.members, variables, last.outvars), parameters)
        params = dict(product.params) | {
            "out_dtype": aval_of(last.outvars[0]).dtype,
            "epilogue": None,
            "scatters": True,
            "original": original,
        }
        return last.replace(invars=variables, primitive=grouped_rewritten_p, params=params, effects=frozenset())


class _Found:
    """What is found in a program."""

    def __init__(self, program: Program, parameters: Mapping[str, Any]) -> None:
        """Looks who has which name."""
        self._program, self._parameters = program, parameters
        self._indices = Indices(program)
        made = [x for equation in program.equations for x in equation.outvars]
        self._variables: dict[Any, Any] = {}
        for x in (*program.readers, *made):
            name = self._indices.name_of(x)
            if not isinstance(name, Number):
                self._variables.setdefault(name, x)

    def product_at(self, index: int) -> _Moved | None:
        """The product of an equation, if its rows are moved behind it."""
        if not self._is_product(index):
            return None
        equation: Any = self._program.equations[index]
        stored = self._stored(equation.outvars[0])
        return None if stored is None else _Moved(index, stored)

    def _is_product(self, index: int) -> bool:
        """Whether an equation is a product whose rows are cut into groups, and that may be another kernel's."""
        before = self._program.equations[index]
        if before.primitive.name not in _PRODUCTS or any(isinstance(x, Literal) for x in before.invars):
            return False
        equation = as_grouped(before, self._parameters)
        params: Any = equation.params
        if equation.primitive is not grouped_p or params["spec"] not in OF_ROWS:
            return False
        return params["config"] is None and params["implementation"] != "xla"

    def _stored(self, variable: Any) -> _Stored | None:
        """What moves the rows of a result by a permutation."""
        for between, index in _behind(self._program, variable):
            equation: Any = self._program.equations[index]
            value = self._program.equations[between[0]].outvars[0] if between else variable
            if equation.primitive.name not in _MOVES or not isinstance(equation.invars[1], Var):
                continue
            if equation.invars[0 if equation.primitive.name == "gather" else 2] is not value:
                continue
            at, size = equation.invars[1], aval_of(variable).shape[0]
            name, rows = self._indices.name_of(at), None
            if self._gathers(equation) and aval_of(equation.outvars[0]).shape == aval_of(variable).shape:
                rows = self._vector(self._indices.inverse(name), size)
            elif self._scatters(equation) and self._indices.is_permutation(self._indices.resolved(name)):
                rows = self._vector(name, size)
            if rows is not None:
                return _Stored((*between, index), rows, at)
        return None

    def _gathers(self, equation: Any) -> bool:
        """Whether an equation takes whole rows of a matrix, each where an index says."""
        if equation.primitive.name != "gather" or gather_dimensions(equation) != _ROWS:
            return False
        shape = aval_of(equation.invars[0]).shape
        return (
            equation.params["mode"] in _MODES
            and len(shape) == 2
            and tuple(equation.params["slice_sizes"]) == (1, shape[1])
        )

    def _scatters(self, equation: Any) -> bool:
        """Whether an equation stores whole rows of a matrix in one of zeros that is as large."""
        is_one = stores(equation) or equation.primitive.name == "scatter-add"
        if not is_one or scatter_dimensions(equation) != _ROWS:
            return False
        into, _, updates = equation.invars
        is_as_large = aval_of(into).ndim == 2 and aval_of(into).shape == aval_of(updates).shape
        return is_as_large and self._is_zero(into)

    def _is_zero(self, variable: Any) -> bool:
        """Whether an array is zeros, as far as the program says."""
        name = self._indices.name_of(variable)
        return isinstance(name, Number) and not np.any(name.value)

    def _vector(self, name: Any, size: int) -> Any | None:
        """The first variable that holds a vector of so many indices as kernels read them; None if none does."""
        found = None
        while name is not None and not isinstance(name, Number):
            variable = self._variables.get(name)
            aval = None if variable is None else aval_of(variable)
            if aval is not None and aval.shape == (size,) and aval.dtype == np.int32:
                found = variable
            name = self._indices.before(name)
        return found
