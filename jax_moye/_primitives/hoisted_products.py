"""Products of a scan that do not wait for the iteration before: one product of all rows in the place of one for each.

An iteration of a recurrent network multiplies few rows, and so reads all weights for little work. What it multiplies is
known before the scan begins, or its result is read when the scan is done. Then one product of the rows of all
iterations stands in front of the scan, or behind it, and what it makes or reads is stacked.

| which | in the body | becomes |
|---|---|---|
| before | a row of a stacked input, by a constant of the loop | a product in front, whose rows are a stacked input |
| after | a value by a constant, of which a stacked output alone is made | a product of the stacked values behind |
| sums | carry + product of two values, which nothing else reads | carry + one product over iterations, too, behind |

| what | condition |
|---|---|
| a product | dot_general of floats without batch dimensions, at the body's top level or in a call of jit there |
| its operands, its result | may be moved or converted (scan_moves.py): a conversion of the weights, a transpose |
| a scan | has `_LEAST_LENGTH` iterations or more, and no effects; all sizes are numbers |
| the rows of an iteration | up to `_MOST_ROWS`: all but the constant's dimensions; of sums, those that are added up |
| what is stacked for this | as many bytes as the scan's own stacks, or `_LEAST_BYTES` |
| sums | at most one conversion stands behind the product; the carry is no weak type |

With more rows a product keeps the hardware busy by itself. The stacks of a scan are in memory together with what is
stacked for this, so that it is at most doubled there, and few bytes are no matter. A checkpoint is not looked into:
what it computes again would be kept of all iterations.

A product has the operands, the precision and the result's dtype that it had. A sum has the carry's dtype, or that of
the products where it holds more: it is rounded once, where the program rounds each product, each sum, or both. To a
carry that begins as zeros nothing is added.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var, unmapped_aval
from jax.extend.core.primitives import convert_element_type_p, transpose_p

from jax_moye import _compat
from jax_moye._primitives.equations import inlined, inner_of
from jax_moye._primitives.patterns import Program, as_number, aval_of
from jax_moye._primitives.scan_moves import are_numbers, chain_of, moved, moves_behind, placed, with_rows
from jax_moye._primitives.scans import Scan, bytes_of, is_known

_LEAST_LENGTH = 4
_MOST_ROWS = 512
_LEAST_BYTES = 32 << 20


def with_hoisted_products(jaxpr: Jaxpr) -> Jaxpr:
    """The same program, with products of its scans outside of them; the same object if there are none.

    Args:
      jaxpr: a program; scans inside of its equations stay what they are.
    """
    if not any(map(_is_looked_at, jaxpr.eqns)):
        return jaxpr
    live = _compat.without_dead_code(jaxpr, keep_inputs=True)
    program = Program(live.eqns, live.outvars)
    parts = [_parted(program, one) if _is_looked_at(one) else [one] for one in live.eqns]
    if all(len(part) == 1 for part in parts):
        return jaxpr
    # What only the products read is not given to a scan any more.
    return _compat.without_dead_code(live.replace(eqns=[*itertools.chain(*parts)]), keep_inputs=True)


def _is_looked_at(equation: JaxprEqn) -> bool:
    if not is_known(equation) or equation.effects:
        return False
    if not are_numbers(*map(aval_of, (*equation.invars, *equation.outvars))):
        return False
    return equation.params["length"] >= _LEAST_LENGTH and _has_products(Scan(equation).body)


def _has_products(jaxpr: Jaxpr) -> bool:
    return any(one.primitive.name == "dot_general" or _calls_products(one) for one in jaxpr.eqns)


def _calls_products(equation: JaxprEqn) -> bool:
    inner = inner_of(equation)
    return inner is not None and _has_products(inner)


def _parted(program: Program, equation: JaxprEqn) -> list[JaxprEqn]:
    """What is computed in front of a scan, the scan, and what is computed behind it."""
    loop = _Loop(program, equation)
    left = max(_LEAST_BYTES, loop.stacked_bytes)
    in_front: list[JaxprEqn] = []
    behind: list[JaxprEqn] = []
    while (found := loop.found(left)) is not None:
        in_front += found.in_front
        behind = [*found.behind, *behind]  # that of an earlier product reads what a later one makes
        left -= found.stacked_bytes
        equation = found.scan
        loop = _Loop(program, equation)
    return [*in_front, equation, *behind]


@dataclasses.dataclass(frozen=True)
class _Hoisted:
    """What a scan with one product fewer is.

    Attributes:
      scan: the equation.
      stacked_bytes: of what is stacked for this.
      in_front: what is computed then in front of it.
      behind: likewise behind it.
    """

    scan: JaxprEqn
    stacked_bytes: int
    in_front: Sequence[JaxprEqn] = ()
    behind: Sequence[JaxprEqn] = ()


@dataclasses.dataclass(frozen=True)
class _Outside:
    """An operand of a product, outside of the scan.

    Attributes:
      source: the value of the body that it is made of.
      array: what holds that outside: of all rows, or a constant.
      moves: the equations of the body that make the operand of the source, the first one first.
      stacked_bytes: of what is stacked for it, and is not yet.
    """

    source: Any
    array: Any
    moves: Sequence[JaxprEqn]
    stacked_bytes: int = 0


class _Loop:
    """A scan, and how its values are known outside.

    Attributes:
      scan: it, with the equations of calls that hold products in the place of the calls.
      body: its program.
      constants: by value of the body that is the same in each iteration, the operand that it is.
      stacks: by value of the body, the array that holds it of all iterations.
    """

    def __init__(self, program: Program, equation: JaxprEqn) -> None:
        """Looks at the operands and results."""
        self._program = program
        self.scan = scan = Scan(equation)
        while calls := [one for one in scan.body.eqns if _calls_products(one)]:
            scan.body = inlined(scan.body, calls)
        self.body = Program(scan.body.eqns, scan.body.outvars)
        operands = [(inside, outside) for outside, inside, _ in scan.operands()]
        self.constants: dict[Any, Any] = dict(operands[: scan.consts])
        results = zip(scan.body.outvars[scan.carry :], scan.stacked_results, strict=True)
        self.stacks: dict[Any, Any] = {x: y for x, y in results if isinstance(x, Var)} | dict(operands[scan.first :])
        self._new: dict[Any, Any] = {}  # likewise, of those that would be stacked

    @property
    def stacked_bytes(self) -> int:
        """Of what the scan is given in stacks, and of what it stacks."""
        return sum(map(bytes_of, (*self.scan.equation.invars[self.scan.first :], *self.scan.stacked_results)))

    def found(self, most_bytes: int) -> _Hoisted | None:
        """The scan without one of its products, for which no more than that is stacked; None if there is none."""
        for product in filter(_is_plain, self.scan.body.eqns):
            for way in (self._summed, self._behind, self._in_front):
                hoisted = way(product)
                if hoisted is not None and hoisted.stacked_bytes <= most_bytes:
                    return hoisted
        return None

    # --------------------------------------------------------------------------------------------------- three ways

    def _in_front(self, product: JaxprEqn) -> _Hoisted | None:
        """Of rows that the scan is given."""
        both = self._rows_and_constant(product)
        if both is None:
            return None
        side, rows, constant = both
        if rows.source not in self.scan.body.invars[self.scan.first :]:
            return None
        (result,) = product.outvars
        equations, stack = self._of_all_rows(product, side, rows, constant)
        operands = [*self.scan.operands(), (stack, result, False)]
        scan = self.scan.replaced(operands, self.scan.consts, eqns=self._without(product))
        # A conversion in front may be written, too.
        converted = [one.outvars[0] for one in rows.moves if one.primitive is convert_element_type_p]
        return _Hoisted(scan, self.scan.length * sum(map(bytes_of, [result, *converted])), equations)

    def _behind(self, product: JaxprEqn) -> _Hoisted | None:
        """By a constant, of which only a stacked output is made."""
        both = self._rows_and_constant(product)
        moves, made = moves_behind(self.body, product.outvars[0])
        index = self._output(made)
        if both is None or index is None or index < self.scan.carry:
            return None
        side, rows, constant = both
        equations, stack = self._of_all_rows(product, side, rows, constant)
        more, _ = moved(self.scan, moves, stack, of_rows=True)
        equations = _making([*equations, *more], self.scan.equation.outvars[index])
        scan = self._with_stacks([rows], self.scan.operands(), index, self._without(product, *moves))
        return _Hoisted(scan, rows.stacked_bytes, behind=equations)

    def _summed(self, product: JaxprEqn) -> _Hoisted | None:
        """Of two values, which a carry adds up."""
        moves, made = moves_behind(self.body, product.outvars[0])
        add, index = self._added(made)
        if add is None or index is None:
            return None
        begin, carry, _ = self.scan.operands()[self.scan.consts + index]
        dtype = _dtype_of_sum(product, moves, aval_of(carry))
        dims, _ = product.params["dimension_numbers"]
        first = self._rows(product.invars[0])
        second = None if first is None else self._rows(product.invars[1], (first.source,))
        is_large = _size(product.invars[0], dims[0]) > _MOST_ROWS
        if dtype is None or is_large or first is None or second is None:
            return None
        equations, total = self._over_iterations(product, (first, second), moves, dtype)
        if aval_of(total).dtype != aval_of(carry).dtype:
            convert = product.replace(primitive=convert_element_type_p)
            params = {"new_dtype": aval_of(carry).dtype, "weak_type": False, "sharding": None}
            equations.append(placed(self.scan, convert, [total], Var(aval_of(carry)), params))
            (total,) = equations[-1].outvars
        if as_number(self._program, begin) != 0:
            invars = [begin if x is carry else total for x in add.invars]
            equations.append(placed(self.scan, add, invars, Var(aval_of(carry)), add.params))
        equations = _making(equations, self.scan.equation.outvars[index])
        operands = [one for one in self.scan.operands() if one[1] is not carry]
        scan = self._with_stacks([first, second], operands, index, self._without(product, *moves, add))
        return _Hoisted(scan, first.stacked_bytes + second.stacked_bytes, behind=equations)

    def _added(self, value: Any) -> tuple[JaxprEqn | None, int | None]:
        """What adds a value to a carry that nothing else reads, and the index of that; None of other values."""
        reader = self.body.only_reader(value)
        if reader is None:
            return None, None
        add = self.body.equations[reader]
        index = self._output(add.outvars[0])
        if add.primitive.name not in ("add", "add_any") or index is None or index >= self.scan.carry:
            return None, None
        carry = self.scan.body.invars[self.scan.consts + index]
        return (add, index) if self.body.only_reader(carry) == reader else (None, None)

    # ------------------------------------------------------------------------------------------- what is known outside

    def _rows_and_constant(self, product: JaxprEqn) -> tuple[int, _Outside, _Outside] | None:
        """Which operand has few rows, it, and the other one, which is a constant."""
        dims, _ = product.params["dimension_numbers"]
        for side in (0, 1):
            free = set(range(aval_of(product.invars[side]).ndim)) - set(dims[side])
            if _size(product.invars[side], free) <= _MOST_ROWS:
                rows, constant = self._rows(product.invars[side]), self._constant(product.invars[1 - side])
                if rows is not None and constant is not None:
                    return side, rows, constant
        return None

    def _constant(self, value: Any) -> _Outside | None:
        source, moves = chain_of(self.body, value)[-1]
        array = source if isinstance(source, Literal) else self.constants.get(source)
        return None if array is None else _Outside(source, array, moves)

    def _rows(self, value: Any, stacked: Sequence[Any] = ()) -> _Outside | None:
        """A value of all iterations: from a stack that there is, or of the fewest bytes; None of a constant.

        Args:
          value: of the body.
          stacked: for what they are stacked already.
        """
        if self._constant(value) is not None:
            return None

        def cost(one: tuple[Any, Any]) -> int:
            return 0 if one[0] in self.stacks or one[0] in stacked else self.scan.length * bytes_of(one[0])

        chain = chain_of(self.body, value)
        source, moves = min(reversed(chain), key=cost)
        array = self.stacks.get(source)
        if array is None:
            array = self._new.setdefault(source, Var(unmapped_aval(self.scan.length, 0, source.aval)))
        return _Outside(source, array, moves, cost((source, moves)))

    def _output(self, value: Any) -> int | None:
        """The index of the output that a value is, if nothing else reads it."""
        if self.body.readers.get(value) != [len(self.body.equations)]:
            return None
        return next(index for index, x in enumerate(self.scan.body.outvars) if x is value)

    # ---------------------------------------------------------------------------------------------- the new equations

    def _of_all_rows(
        self, product: JaxprEqn, side: int, rows: _Outside, constant: _Outside
    ) -> tuple[list[JaxprEqn], Any]:
        """The equations that make a product of all rows, and its name; iterations are the first dimension.

        Args:
          product: of one row.
          side: which operand is the row.
          rows: that operand.
          constant: the other one.
        """
        length = self.scan.length
        of_rows, stack = moved(self.scan, rows.moves, rows.array, of_rows=True)
        of_constant, matrix = moved(self.scan, constant.moves, constant.array)
        dims, _ = product.params["dimension_numbers"]
        contracting = tuple(tuple(i + (one == side) for i in of_one) for one, of_one in enumerate(dims))
        params = {**product.params, "dimension_numbers": (contracting, ((), ()))}
        aval: Any = unmapped_aval(length, 0, aval_of(product.outvars[0]))
        at = side * (aval_of(matrix).ndim - len(dims[0]))  # the dimension of iterations, behind those of a constant lhs
        permutation = (at, *(dim for dim in range(aval.ndim) if dim != at))
        result = Var(_compat.source_aval(aval, permutation))
        names = [matrix, stack] if side else [stack, matrix]
        equations = [*of_rows, *of_constant, placed(self.scan, product, names, result, params)]
        if at == 0:
            return equations, result
        in_front = Var(aval)
        transpose = product.replace(primitive=transpose_p)
        return [*equations, placed(self.scan, transpose, [result], in_front, {"permutation": permutation})], in_front

    def _over_iterations(
        self, product: JaxprEqn, both: Sequence[_Outside], moves: Iterable[JaxprEqn], dtype: Any
    ) -> tuple[list[JaxprEqn], Any]:
        """The equations that make the sum of a product over iterations, of that type, and its name.

        Args:
          product: of one iteration.
          both: its operands.
          moves: of what it makes, whose conversions are left out.
          dtype: of the sum.
        """
        dims, _ = product.params["dimension_numbers"]
        contracting = tuple(map(with_rows, dims)), ((), ())
        params = {**product.params, "dimension_numbers": contracting, "preferred_element_type": dtype}
        parts = [moved(self.scan, rows.moves, rows.array, of_rows=True) for rows in both]
        equations = [one for part, _ in parts for one in part]
        total = Var(aval_of(product.outvars[0]).update(dtype=dtype))
        equations.append(placed(self.scan, product, [stack for _, stack in parts], total, params))
        more, result = moved(self.scan, [one for one in moves if one.primitive is not convert_element_type_p], total)
        return [*equations, *more], result

    def _without(self, *gone: JaxprEqn) -> list[JaxprEqn]:
        """The body's equations but for some."""
        return [one for one in self.scan.body.eqns if not any(one is other for other in gone)]

    def _with_stacks(
        self, rows: Sequence[_Outside], operands: Sequence[Any], gone: int, equations: list[JaxprEqn]
    ) -> JaxprEqn:
        """The scan without an output, which stacks what it does not stack yet.

        Args:
          rows: what is stacked then.
          operands: of the scan.
          gone: the index of the output.
          equations: of the body.
        """
        scan = self.scan
        new = {one.source: one.array for one in rows if one.source not in self.stacks}
        stays = [index for index in range(len(scan.body.outvars)) if index != gone]
        outvars = [*(scan.body.outvars[i] for i in stays), *new]
        carry = scan.carry - (gone < scan.carry)
        equation = scan.replaced(operands, scan.consts, carry, eqns=equations, outvars=outvars)
        return equation.replace(outvars=[*(scan.equation.outvars[i] for i in stays), *new.values()])


def _making(equations: Sequence[JaxprEqn], result: Any) -> list[JaxprEqn]:
    """The equations, of which the last one makes a result."""
    return [*equations[:-1], equations[-1].replace(outvars=[result])]


def _is_plain(equation: JaxprEqn) -> bool:
    """Whether it is a product of floats without batch dimensions, whose sizes are numbers and that asks for no axes."""
    if equation.primitive.name != "dot_general" or equation.params.get("out_sharding") is not None:
        return False
    _, batch = equation.params["dimension_numbers"]
    avals = [aval_of(x) for x in (*equation.invars, *equation.outvars)]
    are_floats = all(jnp.issubdtype(aval.dtype, jnp.floating) for aval in avals)
    return are_floats and not any(batch) and are_numbers(*avals) and not any(map(_compat.has_explicit_axes, avals))


def _size(value: Any, dims: Iterable[int]) -> int:
    return math.prod(aval_of(value).shape[dim] for dim in dims)


def _dtype_of_sum(product: JaxprEqn, moves: Iterable[JaxprEqn], carry: Any) -> Any:
    """What one product in the place of a sum of products is made in; None if that would round more often."""
    made, carried = aval_of(product.outvars[0]).dtype, carry.dtype
    conversions = [one for one in moves if one.primitive is convert_element_type_p]
    if len(conversions) > 1 or carry.weak_type or not jnp.issubdtype(carried, jnp.floating):
        return None
    if made == carried or made.itemsize > carried.itemsize:
        return made
    precision = product.params["precision"]  # an algorithm says what it sums in
    is_free = precision is None or (
        isinstance(precision, tuple) and all(isinstance(one, lax.Precision) for one in precision)
    )
    return carried if carried == jnp.float32 and is_free else None
