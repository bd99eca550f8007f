"""quantized_matmul: the product with weights of 8 and 4 bits, as of a language model that writes token by token."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jax_moye import _compat
from jax_moye._api.arguments import ProductOptions, as_array, as_lax_names, jitted_where_eager, product_options
from jax_moye._api.types import ArrayOperand, Config, Implementation, Interpret
from jax_moye._primitives.weights import by_dequantized, multiply_weights

_DTYPES = {
    "x": ("bfloat16", "float16"),
    "w": ("int8", "int4", "uint4", "float8_e4m3fn"),
    "scales": ("float32", "bfloat16", "float16"),
    "zeros": ("int8", "uint8", "int4", "uint4"),
}


def quantized_matmul(
    x: ArrayOperand,
    w: ArrayOperand,
    scales: ArrayOperand,
    zeros: ArrayOperand | None = None,
    *,
    preferred_element_type: DTypeLike | None = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
) -> jax.Array:
    """Multiplies x by weights of 8 or 4 bits, each of which stands for (w - zero) * scale.

    Rows of w are cut into groups of equal length; each has a row of scales, and of zeros if there are any:

        result[..., n] = sum over k of x[..., k] * (w[k, n] - zeros[g(k), n]) * scales[g(k), n]

    A kernel reads the weights as they are, and that is the time of a product with few rows. It sums
    x * (w - zeros), which are exact, over a group in f32, and multiplies that sum by the scale in f32. The kernels are
    for GPUs of sm_90, up to 64 rows of x (unless implementation="moye"), K a multiple of 8, N one of 16 (8 bits) or 32
    (4 bits), and groups of a multiple of 64 rows, or one group.

    All else is a product by weights of x's dtype, as of `jax_moye.matmul`. With one row of scales these are w - zeros,
    which are exact, and the scale multiplies the sum in f32: as precise as the kernel. With several groups they are
    (w - zeros) * scales, computed in f32 and rounded once. That is the only rounding of weights. By it an element is
    off by u * sum over k of |x * weight| at most, u being 2^-8 for bfloat16 and 2^-11 for float16; scales whose
    products float16 cannot hold need bfloat16. A scale that is infinite may make NaN where a group is summed in parts.

    It works under jit, grad, jvp, vmap, scan, checkpoint and inside a shard_map over all mesh axes. The derivative to x
    is a product by the weights rounded once to x's dtype, that to the scales is summed in f32, and float8 weights have
    one, too; integers have none. vmap over x alone makes rows of it. Outside of shard_map a program that is partitioned
    over devices is XLA's, as are explicit meshes. docs/quantized_weights.md says how to quantize weights.

    Args:
      x: (..., K), bfloat16 or float16.
      w: (K, N), int8, int4, uint4 or float8_e4m3fn, row-major.
      scales: (N,) or (G, N), float32, bfloat16 or float16, which may be traced. Row g is that of rows g * K / G and
        following of w; G divides K.
      zeros: None, or integers of the scales' shape: int8, uint8, int4 or uint4, in the range of w's dtype. They are
        read as int8, and others are converted at every call. Not with float8 weights.
      preferred_element_type: dtype of the result: x's, by default, or float32.
      config: the name of one of the table's rows of sm90_weights, for this product, not for its derivatives.
      implementation: None uses a kernel where it can compute the product; "moye" insists on it; "xla" is the product by
        weights of x's dtype, by `lax.dot_general`.
      interpret: None, a bool or InterpretParams, as in `jax_moye.matmul`.

    Returns:
      (..., N), of x's dtype or float32.

    Raises:
      TypeError: an operand is no array, or an operand, the result or an option has another dtype or type.
      ValueError: shapes do not fit, zeros stand beside float8 weights, an option has an unknown value, or the config
        cannot compute this.
      NotImplementedError: implementation="moye", and no kernel computes this, or none runs there; the message says why.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> x, w = jnp.ones((2, 64), jnp.bfloat16), jnp.full((64, 32), 3, jnp.int4)
      >>> scales, zeros = jnp.full((2, 32), 0.5), jnp.ones((2, 32), jnp.int8)  # two groups of 32 rows
      >>> jax_moye.quantized_matmul(x, w, scales, zeros)[:, 0].tolist()
      [64.0, 64.0]
    """
    given = {"x": x, "w": w, "scales": scales} | ({} if zeros is None else {"zeros": zeros})
    arrays = {name: as_array("quantized_matmul", name, value) for name, value in given.items()}
    _check(arrays)
    options = product_options(
        "quantized_matmul",
        precision=None,
        preferred_element_type=as_lax_names(preferred_element_type),
        out_sharding=None,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=None,
        batch_invariant=None,
    )
    wanted, dtype = options.preferred_element_type, jax.typeof(arrays["x"]).dtype
    if wanted is not None and wanted not in (dtype, jnp.float32):
        raise TypeError(f"quantized_matmul: preferred_element_type is {dtype}, x's, or float32, not {wanted}")
    return _product(*arrays.values(), out_dtype=dtype if wanted is None else wanted, options=options)


def _check(arrays: dict[str, Any]) -> None:
    """Dtypes and shapes.

    Raises:
      TypeError: a dtype is none of `_DTYPES`.
      ValueError: a shape does not fit; zeros stand beside float8 weights.
    """
    types = {name: jax.typeof(x) for name, x in arrays.items()}
    said = {name: f"{name} is {aval.dtype}{list(aval.shape)}" for name, aval in types.items()}
    for name, aval in types.items():
        if str(aval.dtype) not in _DTYPES[name]:
            *most, last = _DTYPES[name]
            raise TypeError(f"quantized_matmul: {said[name]}, and its dtype is {', '.join(most)} or {last}")
    x, w, scales = (types[name].shape for name in ("x", "w", "scales"))
    if len(x) < 1:
        raise ValueError(f"quantized_matmul: {said['x']}, and it has a dimension at least, K")
    if len(w) != 2:
        raise ValueError(f"quantized_matmul: {said['w']}, and it is (K, N)")
    if x[-1] != w[0]:
        raise ValueError(
            f"quantized_matmul: {said['x']} and {said['w']}: the last dimension of x and the first of w differ, "
            f"{x[-1]} != {w[0]}"
        )
    if len(scales) not in (1, 2) or scales[-1] != w[1]:
        raise ValueError(f"quantized_matmul: {said['scales']}, and with {said['w']} it is (N,) or (G, N), N = {w[1]}")
    if len(scales) == 2 and (scales[0] == 0 or w[0] % scales[0]):
        raise ValueError(
            f"quantized_matmul: {said['scales']}, and {said['w']}: rows of w are cut into G = {scales[0]} equal "
            f"groups, one at least, and G divides K = {w[0]}"
        )
    if "zeros" not in types:
        return
    if types["zeros"].shape != scales:
        raise ValueError(f"quantized_matmul: {said['zeros']} and {said['scales']}: they have one shape")
    if str(types["w"].dtype) == "float8_e4m3fn":
        raise ValueError(f"quantized_matmul: {said['zeros']}, and {said['w']}: float8 weights have no zeros")


@jitted_where_eager("out_dtype", "options")
def _product(x: Any, w: Any, scales: Any, *zeros: Any, out_dtype: Any, options: ProductOptions) -> jax.Array:
    asked = options.options
    parameters = asked.parameters() | {"out_dtype": jnp.dtype(out_dtype), "config": options.config}
    if scales.ndim == 1:
        scales, zeros = scales[None], tuple(x[None] for x in zeros)
    zeros = tuple(lax.convert_element_type(x, jnp.int8) for x in zeros)
    if any(_compat.has_explicit_axes(jax.typeof(x)) for x in (x, w, scales, *zeros)):
        if asked.implementation == "moye" or options.config is not None:
            raise NotImplementedError("quantized_matmul: no kernel computes it, since its mesh has explicit axes")
        return by_dequantized(x, w, scales, *zeros, **parameters | {"implementation": "xla", "interpret": None})
    return multiply_weights(x, w, scales, *zeros or [None], **parameters)
