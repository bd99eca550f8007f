"""A contraction in terms of lax.dot_general: what XLA computes, and what our kernels are measured against."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core.primitives import dot_general_p
from jax.sharding import NamedSharding

from jax_moye import _compat
from jax_moye._selection.problem import labels, parse_spec

_dot_general = lax.dot_general  # bound now: whoever replaces lax.dot_general by us must not send us in a circle


def _dimensions(given: Any) -> tuple[int, ...]:
    try:
        return tuple(map(operator.index, given))
    except TypeError:
        return (operator.index(given),)


def canonical_dimensions(dimension_numbers: Any) -> Any:
    """Dimension numbers as lax takes them, ((lhs contracting, rhs's), (lhs batch, rhs's)), as tuples of ints."""
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    return (
        (_dimensions(lhs_contracting), _dimensions(rhs_contracting)),
        (_dimensions(lhs_batch), _dimensions(rhs_batch)),
    )


@functools.lru_cache(maxsize=4096)
def spec_of(dimension_numbers: Any, lhs_ndim: int, rhs_ndim: int) -> str:
    """The specification of lax's dimension numbers, with b, m, n and k for the first of each kind: "bmk,bkn->bmn".

    Args:
      dimension_numbers: what canonical_dimensions returns.
      lhs_ndim: the number of lhs's dimensions.
      rhs_ndim: likewise.
    """
    (lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch) = dimension_numbers
    others = (label for label in labels() if label not in "bmnk")
    favourites = dict(b="b", m="m", n="n", k="k")

    def new(kind: str) -> str:
        return favourites.pop(kind, None) or next(others)

    lhs, rhs = [""] * lhs_ndim, [""] * rhs_ndim
    for i, j in zip(lhs_batch, rhs_batch, strict=True):
        lhs[i] = rhs[j] = new("b")
    out = [lhs[i] for i in lhs_batch]
    for i, j in zip(lhs_contracting, rhs_contracting, strict=True):
        lhs[i] = rhs[j] = new("k")
    for names, kind in ((lhs, "m"), (rhs, "n")):
        for i, name in enumerate(names):
            if not name:
                names[i] = new(kind)
                out.append(names[i])
    return f"{''.join(lhs)},{''.join(rhs)}->{''.join(out)}"


@functools.cache
def lax_form(spec: str) -> tuple[Any, tuple[int, ...]]:
    """Dimension numbers of lax.dot_general, and the permutation of its result (batch, m, n) to the specification's."""
    lhs, rhs, out = parse_spec(spec)
    batch = [label for label in out if label in lhs and label in rhs]
    contracted = [label for label in lhs if label in rhs and label not in out]
    order = batch + [label for label in lhs if label not in rhs] + [label for label in rhs if label not in lhs]
    dimension_numbers = (
        (tuple(map(lhs.index, contracted)), tuple(map(rhs.index, contracted))),
        (tuple(map(lhs.index, batch)), tuple(map(rhs.index, batch))),
    )
    return dimension_numbers, tuple(map(order.index, out))


@functools.lru_cache(maxsize=4096)
def _lax_aval(lhs: Any, rhs: Any, x64: bool, **params: Any) -> Any:
    del x64  # it decides about results of mixed integers
    return dot_general_p.abstract_eval(lhs, rhs, **params)[0]


def lax_aval(lhs: Any, rhs: Any, **params: Any) -> Any:
    """The type of lax.dot_general's result: shape, dtype, weak type, sharding, varying axes.

    Asked once per combination of types, since an answer takes a tenth of a millisecond and a program has many equal
    layers; except under a mesh, where it depends on contexts that no public name leads to, and for symbolic sizes,
    whose comparison is not Python's.

    Args:
      lhs: an abstract value, as jax.typeof gives.
      rhs: likewise.
      **params: of the primitive dot_general_p.

    Raises:
      TypeError: lax's own error, with its words; ValueError likewise.
    """
    known = all(isinstance(size, int) for size in (*lhs.shape, *rhs.shape))
    if not known or not jax.sharding.get_abstract_mesh().empty:
        return dot_general_p.abstract_eval(lhs, rhs, **params)[0]
    return _lax_aval(lhs, rhs, jax.config.jax_enable_x64, **params)  # type: ignore[attr-defined]


def permute_sharding(sharding: NamedSharding | None, permutation: Sequence[int]) -> NamedSharding | None:
    """The sharding of lax's result whose transpose by `permutation` has `sharding`."""
    if sharding is None:
        return None
    order = sorted(range(len(permutation)), key=lambda dim: permutation[dim])
    return NamedSharding(sharding.mesh, _compat.permute_spec(sharding.spec, order))


def _is_8_bit_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating) and jnp.dtype(dtype).itemsize == 1


def _promotable(dtype: jnp.dtype) -> Any:
    """The dtype, or for an integer of fewer than 8 bits, which JAX does not promote, the one of 8 bits."""
    if not jnp.issubdtype(dtype, jnp.integer) or jnp.iinfo(dtype).bits >= 8:
        return dtype
    return jnp.uint8 if jnp.issubdtype(dtype, jnp.unsignedinteger) else jnp.int8


def lax_result_dtype(lhs_dtype: Any, rhs_dtype: Any, out_dtype: Any) -> Any:
    """The dtype to ask of lax.dot_general so that a conversion to out_dtype afterwards is at least as precise.

    XLA converts operands to the dtype it is asked for, so that must be able to hold theirs. Of a gradient of an 8-bit
    operand it is the cotangent's dtype, which lax's own derivative asks for.
    """
    dtypes = [jnp.dtype(dtype) for dtype in (lhs_dtype, rhs_dtype)]
    inexact = jnp.issubdtype(out_dtype, jnp.inexact)
    is_8_bits = _is_8_bit_float(out_dtype)
    # Naming the dtype of a result promotes nothing, so jax_numpy_dtype_promotion="strict" does not apply.
    with jax.numpy_dtype_promotion("standard"):
        if any(map(_is_8_bit_float, dtypes)):  # JAX promotes none
            wide = [dtype for dtype in dtypes if jnp.issubdtype(dtype, jnp.inexact) and not _is_8_bit_float(dtype)]
            if wide and inexact:
                return wide[0] if is_8_bits else jnp.promote_types(wide[0], out_dtype)
            return jnp.float32 if is_8_bits and dtypes != [out_dtype] * 2 else out_dtype
        operand_dtype = dtypes[0] if dtypes[0] == dtypes[1] else jnp.promote_types(*map(_promotable, dtypes))
        floating = all(jnp.issubdtype(dtype, jnp.floating) for dtype in (operand_dtype, out_dtype))
        if operand_dtype == out_dtype or not floating:
            return out_dtype
        if is_8_bits:  # in 16 bits the sum would be rounded twice
            return jnp.promote_types(operand_dtype, jnp.float32)
        return jnp.promote_types(operand_dtype, out_dtype)


def cotangent_dtype(lhs_dtype: Any, rhs_dtype: Any, dtype: Any) -> Any:
    """The dtype in which to compute a cotangent of `dtype` as a product: of complex numbers lax makes nothing less."""
    are_complex = {x: jnp.issubdtype(x, jnp.complexfloating) for x in (lhs_dtype, rhs_dtype, dtype)}
    wide = [x for x, is_complex in are_complex.items() if is_complex]
    return max(wide, key=lambda x: x.itemsize) if wide else dtype


def as_cotangent(x: Any, dtype: Any) -> Any:
    """Such a product in the dtype that is wanted: that of real numbers is the real part."""
    is_real_part = jnp.issubdtype(x.dtype, jnp.complexfloating) and not jnp.issubdtype(dtype, jnp.complexfloating)
    return lax.convert_element_type(lax.real(x) if is_real_part else x, dtype)


def reference(lhs, rhs, *c, spec, out_dtype, precision, beta=0.0, out_sharding=None):
    """The contraction by lax.dot_general, and beta c added to it in the result's dtype."""
    dimension_numbers, permutation = lax_form(spec)
    with _compat.lax_itself():
        out = _dot_general(
            lhs,
            rhs,
            dimension_numbers,
            precision=precision,
            preferred_element_type=lax_result_dtype(lhs.dtype, rhs.dtype, out_dtype),
            out_sharding=permute_sharding(out_sharding, permutation),
        )
    if permutation != tuple(range(out.ndim)):
        out = lax.transpose(out, permutation)
    out = lax.convert_element_type(out, out_dtype)
    for x in c:
        out = lax.add(out, x if beta == 1 else lax.mul(x, lax.full_like(x, beta)))
    return out
