"""dot_general and einsum: the products of jax.lax and jax.numpy, through our kernels."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import ArrayLike, DTypeLike

from jax_moye import _compat
from jax_moye._api.arguments import (
    ProductOptions,
    as_lax_names,
    jitted_where_eager,
    product_options,
    weakly_promoted,
)
from jax_moye._api.options import resolve
from jax_moye._api.types import Config, DimensionNumbers, Implementation, Interpret, OutSharding
from jax_moye._primitives.contraction import contract
from jax_moye._primitives.reference import canonical_dimensions, lax_aval, spec_of

# Bound now: whoever replaces JAX's functions by ours must not send us in a circle.
_lax_dot_general, _jnp_einsum = lax.dot_general, jnp.einsum


def dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DimensionNumbers | None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    *,
    out_sharding: OutSharding = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Contracts two arrays as `jax.lax.dot_general` does, through jax_moye's kernels.

    Result, dtype, weak type, sharding and errors are JAX's own. Whatever amounts to one batched matrix product is one
    kernel call that reads its operands where they are, however their dimensions are ordered; `matmul` says what else
    is promised.

    Args:
      lhs: an array or a Python number.
      rhs: likewise.
      dimension_numbers: ((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch)), each a sequence of dimensions.
      precision: as in `jax_moye.matmul`.
      preferred_element_type: dtype of the result, by default the wider of the operands'.
      out_sharding: as in `jax_moye.matmul`, likewise the following.
      config: one of `jax_moye.configs()`, what `jax_moye.kernel` returned, or a name.
      implementation: None, "moye" or "xla".
      interpret: None, a bool or InterpretParams.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that the bits of a row of lhs's dimensions depend on no other row.

    Returns:
      An array: the batch dimensions, then what is left of lhs's, then what is left of rhs's.

    Raises:
      TypeError: what `jax.lax.dot_general` raises for such operands and dimensions, with its words.
      ValueError: likewise; or an option has an unknown value, or the config cannot compute this.
      NotImplementedError: as `jax_moye.matmul`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> q, k = jnp.ones((2, 5, 8), jnp.bfloat16), jnp.ones((2, 7, 8), jnp.bfloat16)
      >>> jax_moye.dot_general(q, k, (((2,), (2,)), ((0,), (0,))), interpret=True).shape
      (2, 5, 7)
    """
    preferred_element_type = as_lax_names(preferred_element_type)
    asked_for = (lhs, rhs, dimension_numbers, precision, preferred_element_type)
    try:
        options = product_options(
            "dot_general",
            precision=precision,
            preferred_element_type=preferred_element_type,
            out_sharding=out_sharding,
            config=config,
            implementation=implementation,
            interpret=interpret,
            deterministic=deterministic,
            batch_invariant=batch_invariant,
        )
        operands = _compat.match_varying(lhs, rhs)
        avals = [jax.typeof(x) for x in operands]
        if dimension_numbers is None and all(1 <= aval.ndim <= 2 for aval in avals):  # since jax 0.10
            dimension_numbers = (((avals[0].ndim - 1,), (0,)), ((), ()))
        dimensions = canonical_dimensions(dimension_numbers)
        out = lax_aval(
            *avals,
            dimension_numbers=dimensions,
            precision=options.precision,
            preferred_element_type=options.preferred_element_type,
            out_sharding=options.out_sharding,
        )
    except Exception:
        # What lax does not take either gets its own words. It is not asked where all is well: that takes time.
        _let_lax_complain(*asked_for, out_sharding=out_sharding)
        raise
    spec = spec_of(dimensions, *(aval.ndim for aval in avals))
    return _product(*operands, spec=spec, out_dtype=out.dtype, options=options)


def _let_lax_complain(*args: Any, **kwargs: Any) -> None:
    """Raises what lax.dot_general raises for these arguments, if it does."""
    try:
        with _compat.lax_itself():
            jax.eval_shape(lambda: _lax_dot_general(*args, **kwargs))
    except Exception as error:
        raise error from None


@jitted_where_eager("spec", "out_dtype", "options")
def _product(lhs: Any, rhs: Any, *, spec: str, out_dtype: Any, options: ProductOptions) -> jax.Array:
    return contract(spec, lhs, rhs, out_dtype=out_dtype, **options.parameters())


def einsum(
    subscripts: str | ArrayLike,
    /,
    *operands: ArrayLike | Sequence[Any],
    out: None = None,
    optimize: str | bool | list[tuple[int, ...]] = "auto",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Sums products of arrays as `jax.numpy.einsum` does, whose pairwise products go through jax_moye's kernels.

    Two operands whose labels each occur once in an operand, and only if one operand has them in the output, are one
    product with no transpose around it, in whichever order the output has its labels: one kernel call where it amounts
    to one batched matrix product, as attention's "bqhd,bkhd->bhqk" does, b and h being two modes of its batch. All
    else is `jnp.einsum` over `jax_moye.dot_general`.

    Args:
      subscripts: as in `jax.numpy.einsum`, e.g. "bqhd,bkhd->bhqk"; or operands and lists of ints in turn.
      *operands: arrays.
      out: None.
      optimize: how to order the products of more than two operands.
      precision: as in `jax_moye.matmul`.
      preferred_element_type: dtype of the result, by default the operands' promoted.
      out_sharding: as in `jax_moye.matmul`, likewise the following; the options are those of every product.
      config: one of `jax_moye.configs()`, what `jax_moye.kernel` returned, or a name.
      implementation: None, "moye" or "xla".
      interpret: None, a bool or InterpretParams.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that the bits of a row depend on no other row.

    Returns:
      An array with the dimensions that the output names.

    Raises:
      TypeError: what `jax.numpy.einsum` raises for such operands; or an option has the wrong type.
      ValueError: likewise; or an option has an unknown value, or the config cannot compute this.
      NotImplementedError: as `jax_moye.matmul`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> q, k = jnp.ones((2, 5, 3, 8), jnp.bfloat16), jnp.ones((2, 7, 3, 8), jnp.bfloat16)
      >>> jax_moye.einsum("bqhd,bkhd->bhqk", q, k).shape
      (2, 3, 5, 7)
    """
    of_moye: dict[str, Any] = {
        "config": config,
        "implementation": implementation,
        "interpret": interpret,
        "deterministic": deterministic,
        "batch_invariant": batch_invariant,
    }
    of_lax: dict[str, Any] = {
        "precision": precision,
        "preferred_element_type": as_lax_names(preferred_element_type),
        "out_sharding": out_sharding,
    }
    spec = _plain_spec(subscripts, operands) if out is None and len(operands) == 2 else None
    if spec is not None:
        try:
            options = product_options("einsum", **of_lax, **of_moye)
        except (TypeError, ValueError):
            resolve("einsum", **of_moye)  # raises if it is about these
            spec = None  # jnp.einsum has the words
    if spec is None:
        # Not documented, but the one way to einsum's products; tests/python/_api/test_dot_general.py fails without it.
        hook = {"_dot_general": _with_options(**of_moye)}
        return _jnp_einsum(subscripts, *operands, out=out, optimize=optimize, **of_lax, **hook)
    out_dtype = options.preferred_element_type
    lhs, rhs = operands
    if out_dtype is None:  # else the result has no weak type
        lhs, rhs = weakly_promoted(lhs, rhs)
    product = _product(
        lhs, rhs, spec=spec, out_dtype=jnp.result_type(lhs, rhs) if out_dtype is None else out_dtype, options=options
    )
    return product if out_dtype is None else lax.convert_element_type(product, out_dtype)  # no weak type then


@functools.lru_cache(maxsize=256)
def _with_options(**options: Any) -> Any:
    """dot_general with options: the same object for the same options, since einsum's programs are kept by it."""
    return functools.partial(dot_general, **options)


def _plain_spec(subscripts: Any, operands: Sequence[Any]) -> str | None:
    """The specification that subscripts are, if one product of two arrays without a broadcast is all they ask for."""
    if not isinstance(subscripts, str) or not all(isinstance(x, _compat.ARRAYS) for x in operands):
        return None
    spec = _spec_of_subscripts(subscripts.replace(" ", ""))
    if spec is None:
        return None
    sizes: dict[str, int] = {}
    axes: dict[str, Any] = {}
    for names, x in zip(spec.partition("->")[0].split(","), operands, strict=True):
        if len(names) != x.ndim:
            return None
        for name, size in zip(names, x.shape, strict=True):
            if sizes.setdefault(name, size) != size:
                return None
        if _compat.has_explicit_axes(aval := jax.typeof(x)):
            axes_of_dims = _compat.permute_spec(aval.sharding.spec, range(x.ndim))
            if any(axes.setdefault(name, axes_of_dims[i]) != axes_of_dims[i] for i, name in enumerate(names)):
                return None  # lax takes lhs's, and jnp.einsum says which operand that is
    return spec


@functools.lru_cache(maxsize=4096)
def _spec_of_subscripts(subscripts: str) -> str | None:
    inputs, arrow, out = subscripts.partition("->")
    lhs, comma, rhs = inputs.partition(",")
    if not arrow:
        out = "".join(sorted(set(lhs) ^ set(rhs)))
    names = (lhs, rhs, out)
    if not comma or not all(part.isalpha() or not part for part in names):
        return None
    once = all(len(set(part)) == len(part) for part in names)
    whole = set(lhs) ^ set(rhs) <= set(out) <= set(lhs) | set(rhs)
    return f"{lhs},{rhs}->{out}" if once and whole else None
