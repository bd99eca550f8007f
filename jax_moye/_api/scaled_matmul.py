"""scaled_matmul: the product of jax.nn.scaled_matmul, of operands in blocks along k that have a scale each."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jax_moye._api.arguments import ProductOptions, as_array, as_lax_names, jitted_where_eager, product_options
from jax_moye._api.linear import scaled_product
from jax_moye._api.types import ArrayOperand, Config, Implementation, Interpret
from jax_moye._primitives.block_scaled import by_dequantized, is_for_kernels, multiply_blocks, of_rows, rows_of_scales

_SPEC = "bmk,bnk->bmn"
_FLOAT8 = ("float8_e4m3fn", "float8_e5m2")


def scaled_matmul(
    lhs: ArrayOperand,
    rhs: ArrayOperand,
    lhs_scales: ArrayOperand,
    rhs_scales: ArrayOperand,
    preferred_element_type: DTypeLike = jnp.float32,
    *,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
) -> jax.Array:
    """Multiplies matrices whose blocks along k have scales, as `jax.nn.scaled_matmul` does.

        result[b, m, n] = sum over k of lhs[b, m, k] * lhs_scales[b, m, k // block] * rhs[b, n, k] * rhs_scales[...]

    With one block, a scale for each row, it is one kernel that multiplies its sums by both scales in float32, as
    `jax_moye.linear` does. With blocks of 128 along k, and operands of float8_e4m3fn or float8_e5m2, a kernel for GPUs
    of sm_90 multiplies the sums of each block by both scales in float32 and adds them up. It is taken where lowering
    measures that it is faster than XLA. Else, and with other blocks such as the 32 of microscaling formats, operands
    are multiplied by their scales first: into bfloat16 where both are float8_e4m3fn or float8_e5m2 and the scales
    float8_e8m0fnu, powers of two, which is exact but below 2^-133; else into float32, for a product of precision
    "highest".

    Scales of rhs may be those of 128 rows each, as weights in blocks of 128 x 128 have them. (jax.nn.scaled_matmul
    takes no such array: it wants `jnp.repeat(rhs_scales, 128, axis=1)[:, :N]`.)

    jax.nn.scaled_matmul has no derivatives; this has those of the formula. It works under jit, vmap and the rest.

    Args:
      lhs: (B, M, K).
      rhs: (B, N, K).
      lhs_scales: (B, M, K / block).
      rhs_scales: (B, N, K / block), as many blocks as lhs has; or (B, N / 128 rounded up, K / block).
      preferred_element_type: dtype of the result, a float.
      config: as in `jax_moye.matmul`.
      implementation: likewise.
      interpret: likewise.

    Returns:
      (B, M, N).

    Raises:
      TypeError: an operand is no array, or a dtype is none of real numbers; the result's is no float.
      ValueError: an operand has not three dimensions, or sizes do not fit; the config cannot compute this.
      NotImplementedError: implementation="moye", and no kernel computes this.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> a = jnp.array([1, 2, 3]).reshape((1, 1, 3))
      >>> b = jnp.array([4, 5, 6]).reshape((1, 1, 3))
      >>> scale = jnp.array([0.5]).reshape((1, 1, 1))
      >>> jax_moye.scaled_matmul(a, b, scale, scale).item()
      8.0
    """
    given = {"lhs": lhs, "rhs": rhs, "lhs_scales": lhs_scales, "rhs_scales": rhs_scales}
    arrays = {name: as_array("scaled_matmul", name, value) for name, value in given.items()}
    _check({name: jax.typeof(x) for name, x in arrays.items()})
    options = product_options(
        "scaled_matmul",
        precision=None,
        preferred_element_type=as_lax_names(preferred_element_type),
        out_sharding=None,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=None,
        batch_invariant=None,
    )
    wanted = options.preferred_element_type
    out_dtype = jnp.dtype("float32") if wanted is None else jnp.dtype(wanted)
    if not jnp.issubdtype(out_dtype, jnp.floating):
        raise TypeError(f"scaled_matmul: preferred_element_type is a float's, not {out_dtype}")
    return _product(*arrays.values(), out_dtype=out_dtype, options=options)


def _check(types: dict[str, Any]) -> None:
    """Raises ValueError or TypeError in jax's words, where it has some."""
    shapes = ", ".join(f"{name}: {aval.shape}" for name, aval in types.items())
    for name, aval in types.items():
        if aval.dtype == jnp.bool_ or jnp.issubdtype(aval.dtype, jnp.complexfloating):
            raise TypeError(f"scaled_matmul: {name} is {aval.dtype}, and it is of real numbers")
    if any(aval.ndim != 3 for aval in types.values()):
        raise ValueError(f"scaled_matmul requires all inputs to be 3-dimensional arrays, but got shapes {shapes}")
    lhs, rhs, lhs_scales, rhs_scales = (aval.shape for aval in types.values())
    if lhs[2] != rhs[2] or lhs[0] != rhs[0]:
        raise ValueError(
            "scaled_matmul requires inputs a and b to have matching batch (B) and contract (K) dimensions, but got "
            f"shapes lhs: {lhs}, rhs: {rhs}"
        )
    if lhs_scales[2] != rhs_scales[2] or lhs_scales[0] != rhs_scales[0]:
        raise ValueError(
            "scaled_matmul requires scales to have matching batch (B) and contract (K) dimensions, but got shapes "
            f"lhs_scales: {lhs_scales}, rhs_scales: {rhs_scales}"
        )
    if lhs_scales[1] != lhs[1] or rhs_scales[1] not in rows_of_scales(rhs[1]) or lhs_scales[0] != lhs[0]:
        raise ValueError(
            "scaled_matmul requires scales to match non-contract dimensions of inputs, lhs_scales (B, M, K / block) "
            f"and rhs_scales (B, N, K / block) or (B, N / 128 rounded up, K / block), but got shapes {shapes}"
        )
    if lhs_scales[2] == 0 or lhs[2] % lhs_scales[2]:
        raise ValueError(
            f"scaled_matmul cuts K = {lhs[2]} into as many equal blocks as there are scales of a row, "
            f"{lhs_scales[2]}, which divide it: got shapes {shapes}"
        )


@jitted_where_eager("out_dtype", "options")
def _product(lhs: Any, rhs: Any, *scales: Any, out_dtype: Any, options: ProductOptions) -> jax.Array:
    parameters = options.parameters()
    operands = [jnp.asarray(x) for x in (lhs, rhs)]
    if scales[0].shape[2] == 1:
        left, right = _multiplied(*operands)
        if left.dtype == jnp.float32:
            parameters["precision"] = (lax.Precision.HIGHEST,) * 2
        rows = [of_rows(x, scale)[..., 0].astype(jnp.float32) for x, scale in zip(operands, scales, strict=True)]
        return scaled_product(_SPEC, left, right, rows, ("bm", "bn"), **parameters, out_dtype=out_dtype)
    of_blocks = {name: value for name, value in parameters.items() if name not in ("precision", "out_sharding")}
    of_blocks |= {"out_dtype": out_dtype}
    if is_for_kernels(operands, scales, options.config):
        return multiply_blocks(*operands, *scales, **of_blocks)
    return by_dequantized(*operands, *scales, **of_blocks)


def _multiplied(lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """The operands in one dtype that kernels multiply, and that holds both."""
    if lhs.dtype == rhs.dtype and str(lhs.dtype) in (*_FLOAT8, "int8", "bfloat16", "float16", "float32"):
        return lhs, rhs
    kinds = {str(x.dtype) for x in (lhs, rhs)}
    if kinds == {"float4_e2m1fn"}:
        dtype: Any = jnp.float8_e4m3fn
    else:
        dtype = jnp.bfloat16 if kinds <= {*_FLOAT8, "float4_e2m1fn", "bfloat16", "int8"} else jnp.float32
    return lhs.astype(dtype), rhs.astype(dtype)
