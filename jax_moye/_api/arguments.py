"""What the public functions make of their arguments before anything is traced; and the step from there to a product."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import DTypeLike

from jax_moye import _compat
from jax_moye._api.options import Options, resolve
from jax_moye._api.types import Config, Implementation, Interpret, OutSharding
from jax_moye._kernels.configs import find_config
from jax_moye._kernels.dtypes import JAX_NAMES, WAYS_OF_F32, named_dtype

_Function = TypeVar("_Function", bound=Callable[..., Any])
_NO_NUMBERS = "OSUMm"  # NumPy's objects, texts, dates and times


@dataclasses.dataclass(frozen=True)
class ProductOptions:
    """The arguments of one product that are no arrays, in canonical form: equal ones have one program.

    Attributes:
      precision: None, a pair of lax.Precision, a lax.DotAlgorithmPreset or a lax.DotAlgorithm.
      dtype_name: of preferred_element_type, or None. A name, since NumPy's float64 is equal to None.
      out_sharding: None or a NamedSharding on an abstract mesh.
      config: name of a config, or None.
      options: those that a block of code may also set.
    """

    precision: Any
    dtype_name: str | None
    out_sharding: Any
    config: str | None
    options: Options

    @property
    def preferred_element_type(self) -> Any:
        """A dtype that arrays can have here, or None."""
        return None if self.dtype_name is None else jnp.dtype(self.dtype_name)

    def parameters(self) -> dict[str, Any]:
        """The keyword arguments of `contract` that carry them; out_dtype is not among these."""
        return {
            "precision": self.precision,
            "out_sharding": self.out_sharding,
            "config": self.config,
            **self.options.parameters(),
        }


def product_options(
    function: str,
    *,
    precision: PrecisionLike,
    preferred_element_type: DTypeLike | None,
    out_sharding: OutSharding,
    config: Config,
    implementation: Implementation,
    interpret: Interpret,
    deterministic: bool | None,
    batch_invariant: bool | None,
) -> ProductOptions:
    """The arguments of a public function that are no arrays, checked.

    Raises:
      TypeError: an argument has the wrong type, or is traced.
      ValueError: an argument has an unknown value, or two contradict each other.
    """
    of_lax = {
        "precision": precision,
        "preferred_element_type": preferred_element_type,
        "out_sharding": out_sharding,
    }
    for name, value in of_lax.items():
        if isinstance(value, jax.core.Tracer):
            raise TypeError(f"{function}: {name} is part of the program and cannot be a traced value, got {value}")
    options = resolve(
        function,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
        implementation=implementation,
        interpret=interpret,
        config=config,
    )
    if isinstance(precision, list) and function != "dot_general":  # which alone takes one in JAX, too
        raise _no_precision(precision)
    try:
        dtype = canonical_dtype(preferred_element_type)  # these three in JAX's order, for the errors
    except TypeError as error:
        raise TypeError(f"{function}: preferred_element_type: {error}") from None
    sharding = _compat.canonical_sharding(out_sharding)
    return ProductOptions(
        precision=canonical_precision(precision),
        dtype_name=None if dtype is None else dtype.name,
        out_sharding=sharding,
        config=None if config is None else find_config(config).name,
        options=options,
    )


def as_array(function: str, name: str, x: Any, numbers: bool = False) -> Any:
    """An array or a tracer as it is, what converts itself to one converted.

    Args:
      function: the public function's name, for messages.
      name: that of its argument.
      x: what the caller gave.
      numbers: whether Python's are arrays, too.

    Raises:
      TypeError: x is no array.
    """
    if not isinstance(x, _compat.ARRAYS) and hasattr(x, "__jax_array__"):
        x = x.__jax_array__()
    if numbers and isinstance(x, (bool, int, float, complex)):
        return np.asarray(x)
    if not isinstance(x, _compat.ARRAYS):
        raise TypeError(f"{function}: {name} is an array, not {type(x).__name__}: jnp.asarray makes one")
    if isinstance(x, np.ndarray) and (x.dtype.kind in _NO_NUMBERS or x.dtype.names):
        raise TypeError(f"{function}: {name} is an array of numbers, not {x.dtype}{list(x.shape)}")
    return x


def canonical_dtype(dtype: Any) -> Any:
    """The dtype that an array gets that is asked for `dtype`: 64 bits are 32 without jax_enable_x64, with a warning."""
    if dtype is None:
        return None
    asked_for = jnp.dtype(named_dtype(dtype))
    canonical = jax.dtypes.canonicalize_dtype(asked_for)
    if canonical != asked_for and all(dtype is not kind for kind in (int, float, complex)):  # as wide as there is
        return jax.eval_shape(lambda: lax.full((), 0, asked_for)).dtype  # JAX's warning
    return canonical


def as_lax_names(dtype: Any) -> Any:
    """A dtype whose name is the table's alone, such as "bf16", by lax's name; anything else as it is."""
    return JAX_NAMES.get(dtype, dtype) if isinstance(dtype, str) and dtype not in WAYS_OF_F32 else dtype


def weakly_promoted(lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """The operands, where jnp.result_type makes a weak type of them both with weak types.

    An integer is as good as weak beside a weak float: integer arrays times Python's numbers are weak floats. So are
    products of uint64 and signed integers.
    """
    avals = jax.typeof(lhs), jax.typeof(rhs)
    if avals[0].weak_type == avals[1].weak_type:
        of_both = jnp.result_type(lhs, rhs)
        if jnp.issubdtype(of_both, jnp.inexact) and all(jnp.issubdtype(aval.dtype, jnp.integer) for aval in avals):
            return jnp.multiply(1.0, lhs), jnp.multiply(1.0, rhs)
        return lhs, rhs
    strong, weak = (aval.dtype for aval in (avals if avals[1].weak_type else avals[::-1]))
    is_bool = jnp.issubdtype(strong, jnp.bool_)
    if jnp.issubdtype(weak, jnp.integer) and is_bool:
        one: Any = 1
    elif jnp.issubdtype(weak, jnp.inexact) and (is_bool or jnp.issubdtype(strong, jnp.integer)):
        one = complex(1) if jnp.issubdtype(weak, jnp.complexfloating) else 1.0
    else:
        return lhs, rhs
    # In the operands' order: JAX's error for two that it does not promote may name them in it.
    return (lhs, jnp.multiply(one, rhs)) if avals[0].weak_type else (jnp.multiply(lhs, one), rhs)


def canonical_precision(precision: Any) -> Any:
    """A pair of lax.Precision, a lax.DotAlgorithmPreset, a lax.DotAlgorithm, or None where nothing is asked for.

    Raises:
      ValueError: it is none of what jax.lax.dot_general takes.
    """
    if precision is None:
        precision = jax.config.jax_default_matmul_precision  # type: ignore[attr-defined]
        if precision is None:
            return None
    if isinstance(precision, lax.Precision):
        return precision, precision
    if isinstance(precision, (lax.DotAlgorithm, lax.DotAlgorithmPreset)):
        return precision
    if isinstance(precision, str):
        if precision in lax.DotAlgorithmPreset.__members__:
            return lax.DotAlgorithmPreset[precision]
        return (_precision_level(precision),) * 2
    if isinstance(precision, (tuple, list)) and len(precision) == 2:
        kinds = {str if isinstance(level, str) else type(level) for level in precision}
        if kinds == {str} or (kinds == {lax.Precision} and isinstance(precision, tuple)):  # as JAX: no mixed pair
            return tuple(map(_precision_level, precision))
    raise _no_precision(precision)


def _precision_level(precision: str | lax.Precision) -> lax.Precision:
    try:
        return lax.Precision(precision)
    except ValueError:
        raise _no_precision(precision) from None


def _no_precision(precision: Any) -> ValueError:
    return ValueError(
        "precision is None, a lax.Precision or its name, a pair of those, a lax.DotAlgorithmPreset or its name, or a "
        f"lax.DotAlgorithm, not {precision!r}"
    )


def jitted_where_eager(*static_names: str) -> Callable[[_Function], _Function]:
    """Decorates functions of arrays and keywords: an eager call finds its program in jit's cache.

    While tracing, the function is called as it is, which costs less than jit's way of doing the same.
    """

    def decorate(function: _Function) -> _Function:
        jitted = jax.jit(function, static_argnames=static_names, inline=_compat.INLINE_WHILE_TRACING)

        @functools.wraps(function)
        def call(*arrays: Any, **static: Any) -> Any:
            if any(isinstance(x, jax.core.Tracer) for x in arrays):
                return function(*arrays, **static)
            try:
                return jitted(*arrays, **static)
            except NotImplementedError as error:
                if jax.config.jax_traceback_filtering == "off":  # type: ignore[attr-defined]
                    raise
                # An eager call has one line that matters, the caller's: none of the frames of lowering, and no chain.
                refusal = error
            raise refusal.with_traceback(None) from None

        call.jitted = jitted  # type: ignore[attr-defined]
        return call  # type: ignore[return-value]

    return decorate
