"""Finds products by weights that a program dequantizes itself, and the equations of dequantized_p that they become.

    x @ ((w - zeros) * scales)     one row of scales and zeros, or one for each group of rows of w; each may be missing
    (x @ (w - zeros)) * scales     one row of scales

w are weights as kernels read them: int8, int4, uint4 or e4m3, (K,N) in memory, and not computed. Anywhere in front of
the product:

    conversion    that holds every integer; behind the scales any of floats, which rounds
    reshape       of w, before or behind its groups are scaled
    - zeros       integers, in front of the scales. The difference must be exact
    * scales      floats. What makes them, such as their own conversion to a narrower type, stays in front

and of the product, where nobody else reads what stands between:

    conversion    to x's dtype, or to f32
    * scales      where none is in front

A kernel sums x * (w - zeros), which are exact, in f32, multiplies a group's sum by its scale in f32 and rounds once, at
the end. The program rounds at least as often. What dequantizes the weights stays where others read it, too.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.extend.core import JaxprEqn, Var

from jax_moye._primitives.chains import Chain, is_plain_float, linear_chain, original_of
from jax_moye._primitives.dequantized import Entries, dequantized_p, groups_of
from jax_moye._primitives.equations import is_elementwise
from jax_moye._primitives.patterns import Program, as_number, aval_of
from jax_moye._primitives.weights import is_for_weights

# By the dtype of weights, the range of zeros whose differences kernels compute exactly: int8 holds them, and bf16 what
# cuda/gemm/weights.h subtracts from four bits, zero + 128, or zero + 136 where they have a sign.
_ZEROS: dict[str, tuple[int, int] | None] = {
    "int8": (-128, 127),
    "int4": (-128, 120),
    "uint4": (-128, 127),
    "float8_e4m3fn": None,
}
_FLOATS = ("bfloat16", "float16", "float32")
_SAME = ("copy", "copy_p", "pvary", "pcast")

Modes = list[tuple[int, int]]  # (size, stride) of an array that copies another one, the last mode the fastest


@dataclasses.dataclass(frozen=True)
class _Weights:
    """(w - zeros) * scales.

    Attributes:
      variable: w.
      scales: None where there are none, likewise zeros.
      zeros: of w's columns and groups.
      arrays: of the scales and of the zeros, where they are no numbers.
      bounds: of w - zeros; None of floats.
    """

    variable: Any
    bounds: tuple[int, int] | None
    scales: Entries | None = None
    zeros: Entries | None = None
    arrays: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def with_entries(self, name: str, found: tuple[Entries, Any], **changes: Any) -> _Weights:
        """With scales or zeros, and other changes."""
        entries, array = found
        arrays = self.arrays if array is None else {**self.arrays, name: array}
        changes |= {name: entries, "arrays": arrays}
        return dataclasses.replace(self, **changes)


@dataclasses.dataclass(frozen=True)
class Dequantized:
    """A product, the equations behind it that a kernel takes in, and what it reads.

    Attributes:
      chain: the product and what stands behind it.
      x: its left operand, of 16 bits.
      weights: its right one.
      k: that is summed over.
    """

    chain: Chain
    x: Any
    weights: _Weights
    k: int

    @property
    def members(self) -> tuple[int, ...]:
        """The indices of the equations that it stands for alone; those that dequantize are not among them."""
        return self.chain.members

    @property
    def place(self) -> int:
        """The index of the equation in whose place it stands."""
        return max(self.members)

    @property
    def params(self) -> dict[str, Any]:
        """Of the primitive, but for the equations."""
        names = ("implementation", "interpret", "deterministic", "batch_invariant", "autotune")
        options = {name: self.chain.of_product[name] for name in names}
        return {"k": self.k, "scales": self.weights.scales, "zeros": self.weights.zeros, **options}

    def equation(self, program: Program) -> JaxprEqn:
        """What stands in their place."""
        arrays = [self.weights.arrays[name] for name in ("scales", "zeros") if name in self.weights.arrays]
        variables, values = [self.x, self.weights.variable, *arrays], [self.chain.value]
        original = original_of(program, [self.chain], self.members, variables, values)
        return program.equations[self.place].replace(
            invars=variables,
            outvars=values,
            primitive=dequantized_p,
            params={**self.params, "original": original},
            effects=frozenset(),
        )


def dequantized_from(program: Program, index: int, parameters: Mapping[str, Any]) -> Dequantized | None:
    """The product by dequantized weights whose product is an equation's; None if there is none that is for a kernel.

    Args:
      program: where it stands.
      index: of the equation.
      parameters: of a product of lax: what `Options.parameters` gives.
    """
    chain = linear_chain(program, index, parameters)
    sizes = None if chain is None else _matrix_sizes(chain.spec, program.equations[index].invars)
    if chain is None or sizes is None:
        return None
    left, right = program.equations[index].invars
    x = _of_16_bits(program, left)
    if not _is_as_precise(chain.of_product["precision"], x, left, right):
        return None
    m, n, k = sizes
    weights = _weights(program, right, k, n)
    if weights is None:
        return None
    chain, weights = _finished(program, chain, weights, aval_of(x).dtype, (m, n))
    if aval_of(chain.value).dtype not in (aval_of(x).dtype, jnp.float32):
        return None
    if weights.scales is None:
        weights = dataclasses.replace(weights, scales=Entries(1, 1, 1.0))
    assert weights.scales is not None
    groups, zeros = groups_of(weights.scales, weights.zeros), weights.zeros
    if any(x is not None and x.groups not in (1, groups) for x in (weights.scales, zeros)):
        return None
    found = Dequantized(chain, x, weights, k)
    options = {name: value for name, value in found.params.items() if name not in ("k", "scales", "zeros")}
    options["out_dtype"] = aval_of(chain.value).dtype
    return found if is_for_weights(aval_of(x), aval_of(weights.variable), groups, k, **options) else None


def without_unread(equations: Sequence[JaxprEqn], outvars: Sequence[Any], before: Program) -> list[JaxprEqn]:
    """The equations without those that were read in a program, and are not any more.

    Args:
      equations: each behind those that make what it reads.
      outvars: what they are for.
      before: the program.
    """
    read = {x for x in outvars if isinstance(x, Var)}
    kept = []
    for equation in reversed(equations):
        was_read = any(x in before.readers for x in equation.outvars)
        if equation.effects or not was_read or any(x in read for x in equation.outvars):
            kept.append(equation)
            read.update(x for x in equation.invars if isinstance(x, Var))
    return kept[::-1]


# ----------------------------------------------------------------------------------------------------- the product


def _matrix_sizes(spec: str, operands: Sequence[Any]) -> tuple[int, int, int] | None:
    """(m, n, k) of a product of x (..., K) and weights (K, N), whose dimensions may be several each; None of others."""
    labels, _, out = spec.partition("->")
    left, right = labels.split(",")
    summed = "".join(label for label in right if label not in out)
    rows, columns = left.removesuffix(summed), right.removeprefix(summed)
    if not (left == rows + summed and right == summed + columns and out == rows + columns and summed and columns):
        return None
    shapes = [aval_of(x).shape for x in operands]
    if not all(isinstance(size, int) and size > 0 for shape in shapes for size in shape):
        return None
    k = math.prod(shapes[1][: len(summed)])
    return math.prod(shapes[0]) // k, math.prod(shapes[1]) // k, k


def _of_16_bits(program: Program, variable: Any) -> Any:
    """The left operand, before it was converted to f32."""
    index = program.made_by.get(variable)
    equation: Any = None if index is None else program.equations[index]
    is_wider = equation is not None and equation.primitive.name == "convert_element_type"
    if is_wider and aval_of(variable).dtype == jnp.float32 and isinstance(equation.invars[0], Var):
        before = aval_of(equation.invars[0]).dtype
        return equation.invars[0] if before in (jnp.bfloat16, jnp.float16) else variable
    return variable


def _is_as_precise(precision: Any, x: Any, left: Any, right: Any) -> bool:
    """Whether exact products of 16 bits and weights, summed in f32 by tensor cores, are what was asked for, or more."""
    of_x, dtypes = aval_of(x).dtype, [aval_of(one).dtype for one in (left, right)]
    if of_x not in (jnp.bfloat16, jnp.float16) or any(dtype not in (of_x, jnp.float32) for dtype in dtypes):
        return False
    if precision is not None and not isinstance(precision, tuple):  # an algorithm
        return False
    # How exactly an f32 product is summed at a higher precision is not what a kernel of 16 bits promises.
    is_default = precision is None or all(one in (None, lax.Precision.DEFAULT) for one in precision)
    return is_default or dtypes == [of_x, of_x]


def _finished(
    program: Program, chain: Chain, weights: _Weights, dtype: Any, sizes: tuple[int, int]
) -> tuple[Chain, _Weights]:
    """With the conversions and the scales behind a product.

    Args:
      program: where it stands.
      chain: the product.
      weights: by which.
      dtype: of its left operand, and perhaps of the result.
      sizes: (m, n).
    """
    best = chain, weights
    while True:
        index = program.only_reader(chain.value)
        equation: Any = None if index is None else program.equations[index]
        if index is None or not isinstance(equation.outvars[0], Var) or not is_plain_float(equation.outvars[0].aval):
            return best
        (out,), is_end = equation.outvars, True
        if equation.primitive.name == "convert_element_type":
            # A wider result alone takes longer to write, and to read, than the conversion.
            is_end = out.aval.dtype.itemsize <= aval_of(chain.value).dtype.itemsize
        elif equation.primitive.name == "mul" and weights.scales is None and _sizes(out) == _sizes(chain.value):
            other = equation.invars[1 if equation.invars[0] is chain.value else 0]
            scales = _entries(program, other, _sizes(out), sizes)
            if scales is None or scales[0].groups > 1 or not _are_scales(*scales):
                return best
            weights = weights.with_entries("scales", scales)
        else:
            return best
        if str(out.aval.dtype) not in _FLOATS:
            return best
        chain = chain.extended([index], out)
        if is_end and out.aval.dtype in (dtype, jnp.float32):
            best = chain, weights


# ----------------------------------------------------------------------------------------------------- the weights


def _weights(program: Program, variable: Any, k: int, n: int, behind: str = "") -> _Weights | None:
    """What an array of K x N elements, in the order of w's in memory, was made of; None if it is no weights.

    Args:
      program: where it stands.
      variable: the array.
      k: rows of w.
      n: columns.
      behind: what stands behind it, "mul" or "sub": in front of both there is no other one.
    """
    if not isinstance(variable, Var):
        return None
    index, dtype = program.made_by.get(variable), aval_of(variable).dtype
    found = None if index is None else _made(program, program.equations[index], k, n, behind)
    if found is not None or str(dtype) not in _ZEROS:
        return found
    # What is computed, or transposed, would be written to memory for the kernel alone.
    if index is not None and (
        is_elementwise(program.equations[index]) or program.equations[index].primitive.name == "transpose"
    ):
        return None
    return _Weights(variable, _range_of(dtype))


def _made(program: Program, equation: Any, k: int, n: int, behind: str) -> _Weights | None:
    """The weights that an equation makes of others."""
    name, out = equation.primitive.name, equation.outvars[0]
    if name in _SAME or _is_reshape(equation):
        return _weights(program, equation.invars[0], k, n, behind)
    if name == "convert_element_type":
        found = _weights(program, equation.invars[0], k, n, behind)
        return found if found is not None and _may_become(found, out.aval.dtype) else None
    if name == "sub" and behind != "sub":
        return _less_zeros(program, equation, k, n)
    if name == "mul" and not behind and str(out.aval.dtype) in _FLOATS:
        for main, other in (equation.invars, equation.invars[::-1]):
            found = _weights(program, main, k, n, "mul") if _sizes(main) == _sizes(out) else None
            scales = None if found is None else _entries(program, other, _sizes(out), (k, n))
            if found is not None and scales is not None and _are_scales(*scales):
                return found.with_entries("scales", scales)
    return None


def _less_zeros(program: Program, equation: Any, k: int, n: int) -> _Weights | None:
    """The weights that `sub` makes of others."""
    (main, other), (out,) = equation.invars, equation.outvars
    found = _weights(program, main, k, n, "sub") if _sizes(main) == _sizes(out) else None
    zeros = None if found is None else _entries(program, other, _sizes(out), (k, n))
    if found is None or found.bounds is None or zeros is None:
        return None
    bounds, allowed = _bounds_of(*zeros), _ZEROS[str(aval_of(found.variable).dtype)]
    if bounds is None or allowed is None or not allowed[0] <= bounds[0] <= bounds[1] <= allowed[1]:
        return None
    difference = found.bounds[0] - bounds[1], found.bounds[1] - bounds[0]
    return found.with_entries("zeros", zeros, bounds=difference) if _holds(out.aval.dtype, difference) else None


def _may_become(weights: _Weights, dtype: Any) -> bool:
    """Whether the weights may be converted: exactly, or to other floats behind their scales."""
    if weights.scales is not None or weights.bounds is None:
        return str(dtype) in _FLOATS
    return _holds(dtype, weights.bounds)


def _range_of(dtype: Any) -> tuple[int, int] | None:
    """Of integers; None of floats."""
    if not jnp.issubdtype(dtype, jnp.integer):
        return None
    return int(jnp.iinfo(dtype).min), int(jnp.iinfo(dtype).max)


def _holds(dtype: Any, bounds: tuple[int, int]) -> bool:
    """Whether a type has all integers of a range."""
    of_dtype = _range_of(dtype)
    if of_dtype is not None:
        return of_dtype[0] <= bounds[0] and bounds[1] <= of_dtype[1]
    return str(dtype) in _FLOATS and max(map(abs, bounds)) <= 2 ** (jnp.finfo(dtype).nmant + 1)


# ------------------------------------------------------------------------------------------------ scales and zeros


def _are_scales(entries: Entries, array: Any) -> bool:
    """Whether a kernel reads them as scales."""
    if array is None:
        return math.isfinite(entries.number or 0.0)
    return str(aval_of(array).dtype) in _FLOATS


def _bounds_of(entries: Entries, array: Any) -> tuple[int, int] | None:
    """The range of integers; None if they are none."""
    if entries.number is not None:
        return (int(entries.number),) * 2 if entries.number.is_integer() else None
    dtype = aval_of(array).dtype
    return _range_of(dtype) if str(dtype) in ("int8", "int4", "uint4") else None


def _sizes(variable: Any) -> tuple[int, ...]:
    return aval_of(variable).shape


def _entries(program: Program, variable: Any, shape: tuple[int, ...], sizes: tuple[int, int]) -> Any:
    """Scales or zeros, (entries, their array or None); None if they differ within a group.

    Args:
      program: where they stand.
      variable: an operand of an elementwise equation.
      shape: of the other operand.
      sizes: (rows, columns) of it: all its elements, in the order in which they are in memory.
    """
    number = as_number(program, variable)
    if number is not None:
        return Entries(1, 1, number), None
    if not isinstance(variable, Var):
        return None
    source, dims = _copied(program, variable)
    dims = dims or [[]] * len(shape)  # one number in memory
    if len(dims) != len(shape):
        return None
    # Dimensions of size 1 are as long as those of the other operand.
    given = (modes if _size(modes) == size else [(size, 0)] for modes, size in zip(dims, shape, strict=True))
    split = _split(itertools.chain(*given), sizes)
    if split is None:
        return None
    rows, columns = map(_coalesced, split)
    width = sizes[1] if columns == [(sizes[1], 1)] else 1
    groups = rows[0][0] if rows and rows[0][1] == width else 1
    others = *rows[groups > 1 :], *(columns if width == 1 else [])
    if any(stride != 0 for _, stride in others) or math.prod(_sizes(source)) != groups * width:
        return None
    return Entries(groups, width), source


def _copied(program: Program, variable: Any) -> tuple[Any, list[Modes]]:
    """The array that another one copies, and of each dimension of the other one the modes."""
    index = program.made_by.get(variable)
    equation: Any = None if index is None else program.equations[index]
    if equation is not None and len(equation.invars) == 1 and isinstance(equation.invars[0], Var):
        source, dims = _copied(program, equation.invars[0])
        found = _copied_by(equation, dims)
        if found is not None:
            return source, found
    shape = _sizes(variable)
    return variable, [[(size, math.prod(shape[i + 1 :]))] for i, size in enumerate(shape)]


def _copied_by(equation: Any, dims: list[Modes]) -> list[Modes] | None:
    """The modes of each dimension of what an equation makes of an array; None if it is no copy."""
    name, params, shape = equation.primitive.name, equation.params, _sizes(equation.outvars[0])
    if name in _SAME or (name == "convert_element_type" and _is_wider(equation)):
        return dims
    if _is_reshape(equation):
        return _split(itertools.chain(*dims), shape)
    if name == "transpose":
        return [dims[i] for i in params["permutation"]]
    if name == "broadcast_in_dim":
        before = dict(zip(params["broadcast_dimensions"], dims, strict=True))
        return [before[i] if i in before and _size(before[i]) == size else [(size, 0)] for i, size in enumerate(shape)]
    return None


def _is_reshape(equation: Any) -> bool:
    """Whether the elements and their order in memory stay."""
    name = equation.primitive.name
    return name in ("squeeze", "expand_dims") or (name == "reshape" and equation.params["dimensions"] is None)


def _is_wider(equation: Any) -> bool:
    """Whether a conversion holds every value of the type before."""
    before, after = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    bounds = _range_of(before)
    if bounds is not None:
        return _holds(after, bounds)
    return str(before) in _FLOATS and (before == after or after == jnp.float32)


def _size(modes: Modes) -> int:
    return math.prod(size for size, _ in modes)


def _split(modes: Iterable[tuple[int, int]], sizes: Sequence[int]) -> list[Modes] | None:
    """Modes of an array in the dimensions of a reshape; None if one of them would be cut where it does not divide."""
    rest, result = [mode for mode in modes if mode[0] > 1], []
    for size in sizes:
        taken: Modes = []
        while size > 1:
            if not rest:
                return None
            first, stride = rest.pop(0)
            if max(first, size) % min(first, size):
                return None
            if first > size:
                first, behind = size, first // size
                rest.insert(0, (behind, stride))
                stride *= behind
            taken.append((first, stride))
            size //= first
        result.append(taken)
    return None if rest else result


def _coalesced(modes: Modes) -> Modes:
    """The same with as few modes as there can be."""
    result: Modes = []
    for size, stride in modes:
        if result and result[-1][1] == size * stride:
            result[-1] = (result[-1][0] * size, stride)
        else:
            result.append((size, stride))
    return result
