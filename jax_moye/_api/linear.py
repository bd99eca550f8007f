"""linear and gated_linear_unit: matrix products with what a layer does to them."""

from __future__ import annotations

import dataclasses
import functools
import logging
import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
from jax.lax import PrecisionLike
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import DTypeLike

from jax_moye._api.arguments import ProductOptions, as_array, jitted_where_eager, product_options
from jax_moye._api.types import (
    Activation,
    ArrayOperand,
    Config,
    GateActivation,
    Implementation,
    Interpret,
    OutSharding,
)
from jax_moye._log import say_once
from jax_moye._primitives.contraction import contract
from jax_moye._primitives.elementwise import UntranslatableError, translate
from jax_moye._primitives.fused import fused
from jax_moye._selection.epilogue import (
    ACTIVATIONS,
    EPILOGUE_OPERANDS,
    SCALES,
    Epilogue,
    OwnActivation,
    compute_dtype,
    stored_dtype,
)
from jax_moye._selection.problem import labels

_NAMES = {"relu": "relu", "gelu": "gelu_tanh", "gelu_exact": "gelu_erf", "silu": "silu", "swish": "silu"}
_FUNCTIONS = ((jax.nn.relu, "relu"), (jax.nn.gelu, "gelu_tanh"), (jax.nn.silu, "silu"), (jax.nn.swish, "silu"))
_SCALE_ARGUMENTS = {"lhs_scale": "x_scale", "rhs_scale": "w_scale"}
_SERVED = (
    "None, 'relu', 'gelu' (tanh), 'gelu_exact' (erf), 'silu' or 'swish', and the functions jax.nn.relu, jax.nn.gelu, "
    "functools.partial(jax.nn.gelu, approximate=False), jax.nn.silu"
)


def linear(
    x: ArrayOperand,
    w: ArrayOperand,
    bias: ArrayOperand | None = None,
    *,
    activation: Activation = None,
    residual: ArrayOperand | None = None,
    alpha: SupportsFloat = 1.0,
    beta: SupportsFloat = 1.0,
    c: ArrayOperand | None = None,
    x_scale: ArrayOperand | float | None = None,
    w_scale: ArrayOperand | float | None = None,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Computes activation(alpha x_scale w_scale (x w) + beta c + bias) + residual, in one kernel.

    It works under jit, grad, jvp, vmap, scan, checkpoint and the rest of JAX, to every order. For its derivative the
    kernel writes the pre-activation (what the activation is applied to) beside the result; without a derivative nobody
    does. So value and gradient of a layer are three products: y, x's gradient and w's.

    Dtypes: where x is bfloat16 or float16 and w is wider, x's dtype is the computation's: w is kept as it is and
    rounded inside, and its gradient is summed and written in its own dtype, float32 from bfloat16 activations without a
    rounding in between. In all other cases operands are promoted as by `matmul`. Product, c, bias, activation and
    residual meet in float32 (float64 for float64, int32 for integers), and the result is rounded once; the
    pre-activation is saved in the result's dtype. Where no kernel does all of it, XLA does the rest in the same
    precision.

    Args:
      x: (..., K), an array.
      w: (K, N).
      bias: (N,) or None; it is rounded to the result's dtype inside, and its gradient has its own.
      activation: None, "relu", "gelu" (jax.nn.gelu's default, by tanh), "gelu_exact" (by erf), "silu" or "swish"; or
        the function jax.nn.relu, jax.nn.gelu, functools.partial(jax.nn.gelu, approximate=False), jax.nn.silu. Or any
        other function of an array, such as jax.nn.softplus or lambda y: 30 * jnp.tanh(y / 30): where it computes each
        element for itself, the kernel is compiled with it (docs/epilogues.md); XLA applies all others. Define it
        once: each new function object is a new program.
      residual: (..., N) or None; added behind the activation.
      alpha: a number known while tracing. Multiply x by one that is traced.
      beta: likewise. Where it is 0, c is not read: NaN in it does not reach the result.
      c: (..., N) or None. Donated, or needed by nobody else, it is updated in place.
      x_scale: (), (...) or (..., 1), of all of x or of each row, or None: what quantized rows were divided by. May be
        traced. float32, or what float32 holds. The product is multiplied by it, then by w_scale, in float32.
      w_scale: () or (N,), likewise, of w's columns.
      precision: as in `matmul`.
      preferred_element_type: dtype of the result, by default the computation's. It can hold c's and residual's.
      out_sharding: a jax.P or jax.NamedSharding for the result, under a mesh with explicit axes.
      config: one of `jax_moye.configs()`, what `jax_moye.kernel` returned, or a name: the kernel to use. For this
        product, not for its derivatives.
      implementation: as in `matmul`; "moye" insists on our kernel for the product.
      interpret: as in `matmul`.
      deterministic: as in `matmul`.
      batch_invariant: as in `matmul`.

    Returns:
      (..., N).

    Raises:
      TypeError: an operand is not an array or has a dtype that does not fit, an option has the wrong type.
      ValueError: the shapes do not fit, an option has an unknown value, or the config cannot compute this.
      NotImplementedError: as in `matmul`; or implementation="moye", config or batch_invariant is given, and no kernel
        can be compiled with the function that is the activation: the message says what in it is in the way.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> x, w, bias = jnp.ones((2, 3, 8), jnp.bfloat16), jnp.ones((8, 4)), jnp.ones((4,))
      >>> jax_moye.linear(x, w, bias, activation="relu", interpret=True).shape
      (2, 3, 4)
    """
    name = "linear"
    given = {"x": x, "w": w, "bias": bias, "c": c, "residual": residual}
    given |= {"lhs_scale": scale_array(x_scale), "rhs_scale": scale_array(w_scale)}
    arrays = {
        key: as_array(name, _SCALE_ARGUMENTS.get(key, key), value)
        for key, value in given.items()
        if value is not None or key in "xw"
    }
    options = product_options(
        name,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )
    alpha, beta = _number(name, "alpha", alpha), _number(name, "beta", beta)
    if c is None and beta not in (0, 1):
        raise ValueError(f"{name}: beta is c's factor, {beta}, and there is no c")
    _check_shapes(name, arrays)
    if beta == 0:
        arrays.pop("c", None)
    return _linear(
        *arrays.values(),
        names=tuple(arrays),
        activation=_name_or_function(activation),
        alpha=alpha,
        beta=beta if "c" in arrays else 0.0,
        options=options,
    )


@jitted_where_eager("names", "activation", "alpha", "beta", "options")
def _linear(*values, names, activation, alpha, beta, options: ProductOptions):
    arrays = dict(zip(names, map(jnp.asarray, values), strict=True))
    x, w = _promoted("linear", arrays["x"], arrays["w"])
    out_dtype = options.preferred_element_type or x.dtype
    _check_dtypes("linear", arrays, x.dtype, out_dtype, activation, alpha, beta)
    behind = None  # what XLA applies to the pre-activation
    if callable(activation):
        shape, compute = (*x.shape[:-1], w.shape[-1]), compute_dtype(x.dtype, out_dtype)
        activation, behind = _own_activation(activation, shape, compute, options)
    named = {
        name: arrays[name] if name == "bias" else arrays[name].astype(stored_dtype(out_dtype))
        for name in EPILOGUE_OPERANDS
        if name in arrays
    }
    out_labels, spec = _specification(x.ndim, "n")
    of_scales = {}
    for name, labels_ in (("lhs_scale", out_labels[:-1]), ("rhs_scale", "n")):
        if name in arrays:
            shape = tuple(x.shape[:-1]) if name == "lhs_scale" else (w.shape[-1],)
            is_one = arrays[name].ndim == 0
            named[name] = arrays[name].astype(jnp.float32).reshape(() if is_one else shape)
            of_scales[name] = "" if is_one else labels_
    epilogue = Epilogue(
        activation=activation,
        alpha=alpha,
        beta=beta,
        operands=tuple((name, of_scales.get(name, "n" if name == "bias" else out_labels)) for name in named),
    )
    parameters = options.parameters()
    if behind is None:
        return _bind(spec, x, w, list(named.values()), epilogue, out_dtype=out_dtype, **parameters)
    stored = stored_dtype(out_dtype)
    named = {name: value.astype(stored) if name == "bias" else value for name, value in named.items()}
    residual = named.pop("residual", None)
    epilogue = dataclasses.replace(epilogue, operands=tuple(one for one in epilogue.operands if one[0] != "residual"))
    z = _bind(spec, x, w, list(named.values()), epilogue, out_dtype=compute, **parameters)
    y = behind(z).astype(compute)
    return (y if residual is None else y + residual.astype(compute)).astype(out_dtype)


def _own_activation(
    function: Callable[[Any], Any], shape: tuple[Any, ...], dtype: Any, options: ProductOptions
) -> tuple[Any, Callable[[Any], Any] | None]:
    """What the epilogue applies, and what XLA applies behind it, of a function of the caller's.

    Raises:
      NotImplementedError: the caller insists on our kernels, and none can be compiled with it.
      ValueError: it makes no array of the shape of its argument.
    """
    out = jax.eval_shape(function, jax.ShapeDtypeStruct(shape, dtype))
    if getattr(out, "shape", None) != shape or not jnp.issubdtype(out.dtype, jnp.floating):
        made = f"{out.dtype}{list(out.shape)}" if hasattr(out, "shape") else out
        raise ValueError(
            f"linear: activation makes floats of the shape of its argument, and {_name_of(function)} makes {made} of "
            f"{jnp.dtype(dtype)}{list(shape)}"
        )
    try:
        return OwnActivation(function, translate(function, shape, dtype)), None
    except UntranslatableError as error:
        what = f"linear: no kernel is compiled with the activation {_name_of(function)}: {error}"
        given = options.options
        if given.implementation == "moye" or options.config is not None or given.batch_invariant:
            raise NotImplementedError(what) from None
        say_once(logging.INFO, f"{what}; XLA applies it")
        return "none", function


def _name_of(function: Callable[[Any], Any]) -> str:
    return getattr(function, "__name__", None) or repr(function)


def gated_linear_unit(
    x: ArrayOperand,
    w_gate: ArrayOperand,
    w_up: ArrayOperand | None = None,
    *,
    activation: GateActivation = "silu",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    out_sharding: OutSharding = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Computes activation(x w_gate) * (x w_up), the gated linear unit: SwiGLU with "silu", GEGLU with "gelu".

    Keep both weights in one array, (K, 2, N): the two products are then one GEMM of twice the width, and so are x's
    gradient and the weights'. Apart, they are two GEMMs each. Activation and product are XLA's: it reads what the GEMMs
    wrote and writes the result, in one pass. What the GEMMs wrote, the pre-activation and the other factor, is all that
    is saved for the derivative.

    Args:
      x: (..., K), an array.
      w_gate: (K, N); or both weights, (K, 2, N), the gate's first. Dtypes as in `linear`.
      w_up: (K, N); None where w_gate is both.
      activation: as in `linear`, and "sigmoid" or jax.nn.sigmoid.
      precision: as in `matmul`.
      preferred_element_type: dtype of the result, by default the computation's.
      out_sharding: a jax.P or jax.NamedSharding for the result, under a mesh with explicit axes.
      config: one of `jax_moye.configs()`, what `jax_moye.kernel` returned, or a name: the kernel to use. For these
        products, not for derivatives.
      implementation: as in `matmul`.
      interpret: as in `matmul`.
      deterministic: as in `matmul`.
      batch_invariant: as in `matmul`, of the products; activation and gate are XLA's.

    Returns:
      (..., N).

    Raises:
      TypeError: an operand is not an array or has a dtype that does not fit, an option has the wrong type.
      ValueError: the shapes do not fit, an option has an unknown value, or the config cannot compute this.
      NotImplementedError: as in `matmul`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> x, w = jnp.ones((3, 8), jnp.bfloat16), jnp.ones((8, 2, 4))
      >>> jax_moye.gated_linear_unit(x, w, interpret=True).shape
      (3, 4)
    """
    name = "gated_linear_unit"
    arrays = {"x": as_array(name, "x", x), "w_gate": as_array(name, "w_gate", w_gate)}
    if w_up is not None:
        arrays["w_up"] = as_array(name, "w_up", w_up)
    options = product_options(
        name,
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )
    _check_shapes(name, arrays)
    return _gated_linear_unit(
        *arrays.values(), activation=canonical_activation(name, activation, sigmoid=True), options=options
    )


@jitted_where_eager("activation", "options")
def _gated_linear_unit(x, *weights, activation, options: ProductOptions):
    parameters = options.parameters()
    sharding = parameters.pop("out_sharding")
    products = []
    for weight in weights:
        x, w = _promoted("gated_linear_unit", *map(jnp.asarray, (x, weight)))
        out_dtype = options.preferred_element_type or x.dtype
        _check_dtypes("gated_linear_unit", {}, x.dtype, out_dtype, activation, 1.0, 0.0)
        _, spec = _specification(x.ndim, "n" if w.ndim == 2 else "gn")
        if sharding is not None and w.ndim == 3:
            axes = [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
            sharding = NamedSharding(sharding.mesh, PartitionSpec(*axes[:-1], None, axes[-1]))
        bind = functools.partial(_bind, spec, x, w, [], Epilogue(), out_dtype=stored_dtype(out_dtype))
        products.append(bind(out_sharding=sharding, **parameters))
    return _gate(activation, compute_dtype(x.dtype, out_dtype))(*products).astype(out_dtype)


@functools.cache
def _gate(activation: str, dtype: Any) -> Callable[..., Any]:
    """(gate, up), or both in one array, (..., 2, N) -> activation(gate) * up. Nothing but its arguments is saved."""
    function = jax.nn.sigmoid if activation == "sigmoid" else ACTIVATIONS[activation]

    def gate(*products):
        if len(products) == 1:
            (both,) = products
            products = (both[..., 0, :], both[..., 1, :])
        z, up = products
        return (function(z.astype(dtype)) * up.astype(dtype)).astype(z.dtype)

    return jax.checkpoint(gate, prevent_cse=False)


def _bind(spec, x, w, operands, epilogue, **params):
    """The contraction with its epilogue, as the bilinear primitive where that can say it."""
    names = [name for name, _ in epilogue.operands]
    if epilogue.activation == "none" and epilogue.alpha == 1 and names in ([], ["c"]) and x.dtype == w.dtype:
        beta = epilogue.beta if names else 1.0
        return contract(spec, x, w, *operands, beta=beta, **params)
    return fused(spec, x, w, operands, epilogue=epilogue, **params)


def scaled_product(
    spec: str, lhs: Any, rhs: Any, scales: Sequence[Any], of_scales: Sequence[str], **params: Any
) -> Any:
    """A product, multiplied by scales of lhs and of rhs in float32.

    Args:
      spec: as in `contract`.
      lhs: array with the dimensions that the specification names.
      rhs: likewise, of lhs' dtype.
      scales: two arrays of float32.
      of_scales: the labels of their dimensions.
      params: as in `contract`, all of them but beta.
    """
    epilogue = Epilogue(operands=tuple(zip(SCALES, of_scales, strict=True)))
    return fused(spec, lhs, rhs, scales, epilogue=epilogue, **params)


def _specification(x_ndim: int, of_w: str) -> tuple[str, str]:
    """The labels of the result, and x's and w's contraction: w has k and `of_w`."""
    others = (label for label in labels() if label not in "kgn")
    rows = "".join(next(others) for _ in range(x_ndim - 1))
    return rows + of_w, f"{rows}k,k{of_w}->{rows}{of_w}"


def _name_or_function(activation: Activation) -> str | Callable[[Any], Any]:
    """The kernels' name of an activation of `linear`; a function that they do not know is what it is.

    Raises:
      TypeError: the function has no hash, by which its programs are found.
      ValueError: it is neither a name that is served nor a function.
    """
    try:
        return canonical_activation("linear", activation)
    except ValueError:
        if not callable(activation):
            raise
    try:
        hash(activation)
    except TypeError as error:
        kind = type(activation).__name__
        raise TypeError(
            f"linear: activation is hashable, and this {kind} is not: pass a function that calls it. {error}"
        ) from None
    return activation


def canonical_activation(function: str, activation: GateActivation, *, sigmoid: bool = False) -> str:
    """The kernels' name of an activation.

    Args:
      function: the public function's name, for messages.
      activation: as the caller gave it.
      sigmoid: whether that is served, too.

    Raises:
      ValueError: it is none that is served.
    """
    if activation is None:
        return "none"
    if isinstance(activation, str):
        if activation in _NAMES:
            return _NAMES[activation]
    elif isinstance(activation, functools.partial):
        approximate = activation.keywords.get("approximate", True)
        only_that = not activation.args and set(activation.keywords) <= {"approximate"}
        if activation.func is jax.nn.gelu and only_that and isinstance(approximate, bool):
            return "gelu_tanh" if approximate else "gelu_erf"
    else:
        for served, name in _FUNCTIONS:
            if activation is served:
                return name
    if sigmoid and (activation is jax.nn.sigmoid or (isinstance(activation, str) and activation == "sigmoid")):
        return "sigmoid"
    more = ", and 'sigmoid' or jax.nn.sigmoid" if sigmoid else ""
    raise ValueError(
        f"{function}: activation is {_SERVED}{more}, not {activation!r}: apply any other function to the result"
    )


def scale_array(scale: Any) -> Any:
    """A scale as an array, where it is a Python number."""
    return np.float32(scale) if isinstance(scale, (int, float)) and not isinstance(scale, bool) else scale


def _number(function: str, name: str, value: Any) -> float:
    """A factor as a Python float.

    Raises:
      TypeError: it is no real number, or traced.
    """
    if isinstance(value, jax.core.Tracer):
        raise TypeError(
            f"{function}: {name} is part of the program and cannot be a traced value, got {value}: multiply an operand "
            "by it instead, or pass it as linear's x_scale"
        )
    is_scalar = getattr(value, "ndim", None) == 0 and not jnp.issubdtype(value.dtype, jnp.complexfloating)
    if isinstance(value, bool) or not (isinstance(value, numbers.Real) or is_scalar):
        raise TypeError(f"{function}: {name} is a number, not {value!r}")
    return float(value)


def _check_shapes(function: str, arrays: dict[str, Any]) -> None:
    """Raises ValueError where shapes do not fit."""
    x = arrays["x"]
    given = f"{function}: x has shape {x.shape}"
    if x.ndim == 0:
        raise ValueError(f"{given}: it needs at least one dimension, (..., K)")
    weights = [name for name in ("w", "w_gate", "w_up") if name in arrays]
    for name in weights:
        w = arrays[name]
        both = function == "gated_linear_unit" and weights == ["w_gate"]
        form = "(K, 2, N), both weights where w_up is None" if both else "(K, N)"
        if w.ndim != (3 if both else 2) or (both and w.shape[1] != 2):
            raise ValueError(f"{given} and {name} has shape {w.shape}: {name} is {form}")
        if x.shape[-1] != w.shape[0]:
            raise ValueError(
                f"{given} and {name} has shape {w.shape}: the last dimension of x and the first of {name} differ, "
                f"{x.shape[-1]} != {w.shape[0]}"
            )
        if w.shape[-1] != arrays[weights[0]].shape[-1] or w.dtype != arrays[weights[0]].dtype:
            gate = arrays["w_gate"]
            raise ValueError(
                f"{function}: w_gate is {gate.dtype}{list(gate.shape)} and w_up is {w.dtype}{list(w.shape)}: they have "
                "the same shape and dtype"
            )
    n = arrays[weights[0]].shape[-1]
    for key in EPILOGUE_OPERANDS:
        expected = (n,) if key == "bias" else (*x.shape[:-1], n)
        if key in arrays and arrays[key].shape != expected:
            form = "(N,)" if key == "bias" else "the result's, (..., N)"
            raise ValueError(
                f"{given}, w has shape {arrays['w'].shape} and {key} has shape {arrays[key].shape}: its shape is "
                f"{form}, here {expected}"
            )
    rows = tuple(x.shape[:-1])
    for key, forms, served in (
        ("lhs_scale", "(), x's without its last dimension, or that and 1", {(), rows, (*rows, 1)}),
        ("rhs_scale", "() or (N,)", {(), (n,)}),
    ):
        if key in arrays and tuple(arrays[key].shape) not in served:
            raise ValueError(
                f"{given}, w has shape {arrays['w'].shape} and {_SCALE_ARGUMENTS[key]} has shape {arrays[key].shape}: "
                f"its shape is {forms}, here one of {', '.join(map(str, sorted(served, key=len)))}"
            )


def _promoted(function: str, x: Any, w: Any) -> tuple[Any, Any]:
    """The operands in the dtype of the computation, which is x's; beside 16 bits a wider w stays as it is.

    Raises:
      TypeError: JAX has no dtype for both.
    """
    half = x.dtype in (jnp.bfloat16, jnp.float16)
    if half and w.dtype in (jnp.float32, jnp.float64):
        return x, w
    try:
        dtype = jnp.result_type(x, w)
    except ValueError as error:  # JAX promotes no 8-bit float
        raise TypeError(f"{function}: x is {x.dtype} and w is {w.dtype}: convert one of them. {error}") from None
    return x.astype(dtype), w.astype(dtype)


def _check_dtypes(function, arrays, operand_dtype, out_dtype, activation, alpha, beta) -> None:
    """Raises TypeError where a dtype does not fit, ValueError where a factor does not."""
    if operand_dtype == jnp.bool_ or out_dtype == jnp.bool_:
        raise TypeError(f"{function}: x, w and the result are numbers, not bool")
    if activation not in ("none", "relu") and not jnp.issubdtype(out_dtype, jnp.floating):
        raise TypeError(f"{function}: activation {activation!r} takes real floats, and the result is {out_dtype}")
    if activation == "relu" and jnp.issubdtype(out_dtype, jnp.complexfloating):
        raise TypeError(f"{function}: activation 'relu' takes real numbers, and the result is {out_dtype}")
    if jnp.issubdtype(out_dtype, jnp.integer):
        for name, factor in (("alpha", alpha), ("beta", beta)):
            if not (math.isfinite(factor) and factor.is_integer()):
                raise ValueError(f"{function}: {name} is an integer where the result is {out_dtype}, not {factor}")
    for key, name in _SCALE_ARGUMENTS.items():
        if key not in arrays:
            continue
        dtype = arrays[key].dtype
        if not jnp.issubdtype(dtype, jnp.floating) or dtype.itemsize > 4:
            raise TypeError(f"{function}: {name} is {dtype}: it is float32, or a float that float32 can hold")
        if not jnp.issubdtype(out_dtype, jnp.floating):
            raise TypeError(
                f"{function}: {name} is {dtype} and the result is {out_dtype}: what is multiplied by scales is a real "
                "float (preferred_element_type chooses the result's)"
            )
    for name in EPILOGUE_OPERANDS:
        if name not in arrays:
            continue
        dtype = arrays[name].dtype
        kinds = (jnp.integer, jnp.floating, jnp.complexfloating)
        is_parameter = name == "bias" and any(
            jnp.issubdtype(dtype, kind) and jnp.issubdtype(out_dtype, kind) for kind in kinds
        )
        if not is_parameter and not _holds(out_dtype, dtype):
            rule = "its dtype has to be one that the result's can hold"
            raise TypeError(
                f"{function}: {name} is {dtype} and the result is {out_dtype}: {rule} (preferred_element_type chooses "
                "the result's)"
            )


def _holds(dtype: Any, other: Any) -> bool:
    """Whether `dtype` can hold what `other` can."""
    if dtype == other:
        return True
    try:
        return jnp.promote_types(dtype, other) == dtype
    except (TypeError, ValueError):  # JAX promotes no keys, and no 8-bit float
        return False
