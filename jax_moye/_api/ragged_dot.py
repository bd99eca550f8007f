"""Products of groups, as of a mixture of experts: jax.lax's ragged_dot and ragged_dot_general, and gated layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import ArrayLike, DTypeLike

from jax_moye import _compat
from jax_moye._api.arguments import ProductOptions, as_lax_names, jitted_where_eager, product_options
from jax_moye._api.linear import canonical_activation, scale_array
from jax_moye._api.types import Activation, Config, Implementation, Interpret, OutSharding
from jax_moye._primitives.grouped import BIAS, LAX_DIMENSIONS, grouped, grouped_fused
from jax_moye._selection.epilogue import SCALES, SECOND_B, Epilogue
from jax_moye._selection.grouped import RAGGED_K, RAGGED_M

# Bound now: whoever replaces JAX's functions by ours must not send us in a circle.
_lax_ragged_dot_general = lax.ragged_dot_general
_MAX_INT32 = 2**31 - 1

BASIC_DIMENSIONS = LAX_DIMENSIONS[RAGGED_M]  # lax.ragged_dot's


def ragged_dot(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: OutSharding = None,
    *,
    bias: ArrayLike | None = None,
    activation: Activation = None,
    lhs_scale: ArrayLike | None = None,
    rhs_scale: ArrayLike | None = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Multiplies each row by the matrix of its group, as `jax.lax.ragged_dot` does, through jax_moye's kernels.

    Row i of the result is `lhs[i] @ rhs[g]`, g being the group that row i is in: the first `group_sizes[0]` rows are in
    group 0, the next `group_sizes[1]` in group 1, and so on. Rows behind the last group are zero. The sizes stay on the
    device: one kernel finds its tiles from them, and computes no product that nobody asked for.

    It works under jit, grad, jvp, vmap (one product after the other) and inside a shard_map over all mesh axes, where
    each device has the groups, or the rows, that it was given. Outside of shard_map a program that is partitioned over
    devices is XLA's, as are explicit meshes.

    A kernel computes bf16, f16, f32 as TF32, float8_e4m3fn and float8_e5m2 operands with 512 groups at most on GPUs of
    sm_90, where rows of both operands and of the result are multiples of 16 bytes. All else is XLA's. Tensor cores read
    f32 and 8-bit floats along k alone: give rhs as `w.swapaxes(1, 2)` of weights w of (g, n, k), which is not computed;
    of others XLA writes the transpose in front of the kernel, and their gradient is XLA's.

    Args:
      lhs: (m, k).
      rhs: (g, k, n). A transpose in front of it that swaps its last two dimensions is not computed.
      group_sizes: (g,), integers. One below zero counts as zero, and what is beyond m does not count.
      precision: as in `jax_moye.matmul`.
      preferred_element_type: dtype of the result, by default the operands'.
      group_offset: None: JAX has no other yet.
      out_sharding: as in `jax_moye.matmul`, likewise the following.
      bias: (g, n), added to the rows of each group before the result is rounded.
      activation: as in `jax_moye.linear`, applied before that, too.
      lhs_scale: () or (m,), of all rows or of each one, or None: what quantized rows were divided by. The product is
        multiplied by it, then by rhs_scale, in float32, before the bias is added. By the kernel, where operands are
        8-bit floats.
      rhs_scale: (), (g,) or (g, n), of all matrices, of each one, or of the columns of each one.
      config: the name of one of the table's rows of sm90_grouped.
      implementation: None, "moye" or "xla".
      interpret: None, a bool or InterpretParams.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that a row's bits depend neither on the other rows nor on the groups' sizes.

    Returns:
      (m, n).

    Raises:
      TypeError: what `jax.lax.ragged_dot` raises for such operands, with its words.
      ValueError: a bias or a scale has another shape, an option has an unknown value, or the config cannot compute
        this.
      NotImplementedError: as `jax_moye.matmul`; or there is a group_offset.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> tokens, experts = jnp.ones((5, 8), jnp.bfloat16), jnp.ones((2, 8, 16), jnp.bfloat16)
      >>> jax_moye.ragged_dot(tokens, experts, jnp.array([3, 1]), interpret=True)[:, 0].tolist()
      [8.0, 8.0, 8.0, 8.0, 0.0]
    """
    others = {} if bias is None else dict(BIAS)
    arrays = [] if bias is None else [bias]
    for name, scale, labels in zip(SCALES, (lhs_scale, rhs_scale), ("m", "gn"), strict=True):
        if scale is not None:
            arrays.append(scale_array(scale))
            others[name] = labels[: np.ndim(scale)]
    return _general(
        "ragged_dot",
        lhs,
        rhs,
        group_sizes,
        BASIC_DIMENSIONS,
        group_offset,
        tuple(arrays),
        Epilogue(canonical_activation("ragged_dot", activation), operands=tuple(others.items())),
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )


def ragged_gated_linear_unit(
    x: ArrayLike,
    w_gate: ArrayLike,
    w_up: ArrayLike,
    group_sizes: ArrayLike,
    *,
    activation: Activation = "silu",
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Computes activation(x w_gate) * (x w_up) of each row with the matrices of its group: a mixture's gated experts.

    Row i of the result is `activation(x[i] @ w_gate[g]) * (x[i] @ w_up[g])`, g being the group that row i is in, as
    `ragged_dot` says. One kernel reads x once, sums both products in float32, and rounds their gated product alone. For
    its derivative it writes the two products as well; derivatives are products of `ragged_dot`'s kernels and what XLA
    does in front of them. Where no kernel does it all, these are two products, and XLA's activation and gate behind
    them: of operands or results that have not 16 bits, and of what is not `ragged_dot`'s for a kernel.

    It works under jit, grad, jvp, vmap and shard_map as `ragged_dot` does.

    Args:
      x: (m, k).
      w_gate: (g, k, n). A transpose in front of both weights that swaps their last two dimensions is not computed.
      w_up: (g, k, n), of w_gate's dtype.
      group_sizes: (g,), integers, as in `ragged_dot`.
      activation: as in `ragged_dot`.
      precision: as in `jax_moye.matmul`.
      preferred_element_type: dtype of the result, by default the operands'.
      config: the name of one of the table's rows of sm90_grouped whose `takes_pair` is true.
      implementation: None, "moye" or "xla".
      interpret: None, a bool or InterpretParams.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that a row's bits depend neither on the other rows nor on the groups' sizes.

    Returns:
      (m, n).

    Raises:
      TypeError: what `jax.lax.ragged_dot` raises for such operands, with its words.
      ValueError: the weights differ in shape or dtype, an option has an unknown value, or the config cannot compute
        this.
      NotImplementedError: as `jax_moye.matmul`.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> x, w = jnp.ones((5, 8), jnp.bfloat16), jnp.ones((2, 8, 16), jnp.bfloat16)
      >>> y = jax_moye.ragged_gated_linear_unit(x, w, w, jnp.array([3, 1]), activation="relu", interpret=True)
      >>> y[:, 0].tolist()
      [64.0, 64.0, 64.0, 64.0, 0.0]
    """
    name = "ragged_gated_linear_unit"
    gate, up = (jax.typeof(x) for x in map(jnp.asarray, (w_gate, w_up)))
    if (gate.shape, gate.dtype) != (up.shape, up.dtype):
        raise ValueError(
            f"{name}: w_gate is {gate.dtype}{list(gate.shape)} and w_up is {up.dtype}{list(up.shape)}: they have the "
            "same shape and dtype"
        )
    return _general(
        name,
        x,
        w_gate,
        group_sizes,
        BASIC_DIMENSIONS,
        None,
        (w_up,),
        Epilogue(canonical_activation(name, activation), operands=((SECOND_B, "gkn"),)),
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=None,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )


def ragged_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    group_sizes: ArrayLike,
    ragged_dot_dimension_numbers: lax.RaggedDotDimensionNumbers,
    precision: PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    group_offset: ArrayLike | None = None,
    out_sharding: OutSharding = None,
    *,
    config: Config = None,
    implementation: Implementation = None,
    interpret: Interpret = None,
    deterministic: bool | None = None,
    batch_invariant: bool | None = None,
) -> jax.Array:
    """Multiplies groups of rows, or sums over groups of k, as `jax.lax.ragged_dot_general` does.

    Result, dtype and errors are JAX's own. One product whose rows are cut into groups, with a matrix for each (m of
    `[m,k], [g,k,n] -> [m,n]`), and one that is summed group by group (k of `[m,k], [k,n] -> [g,m,n]`) are one kernel
    call each, however their dimensions are ordered; `ragged_dot` says what else is promised. Whatever has batch
    dimensions, several contracted ones, or sizes of groups for each row is `jax.lax.ragged_dot_general`'s, with its
    derivatives.

    Args:
      lhs: an array.
      rhs: an array.
      group_sizes: as JAX has it; of (g,) for our kernels.
      ragged_dot_dimension_numbers: which dimensions are contracted, ragged, and those of groups.
      precision: as in `jax_moye.matmul`.
      preferred_element_type: dtype of the result, by default the operands'.
      group_offset: None: JAX has no other yet.
      out_sharding: as in `jax_moye.matmul`, likewise the following.
      config: the name of one of the table's rows of sm90_grouped.
      implementation: None, "moye" or "xla".
      interpret: None, a bool or InterpretParams.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that a row's bits depend neither on the other rows nor on the groups' sizes.

    Returns:
      An array, shaped as JAX says.

    Raises:
      TypeError: what `jax.lax.ragged_dot_general` raises for such operands and dimensions, with its words.
      ValueError: an option has an unknown value, or the config cannot compute this.
      NotImplementedError: as `jax_moye.matmul`; or there is a group_offset.
    """
    return _general(
        "ragged_dot_general",
        lhs,
        rhs,
        group_sizes,
        ragged_dot_dimension_numbers,
        group_offset,
        (),
        Epilogue(),
        precision=precision,
        preferred_element_type=preferred_element_type,
        out_sharding=out_sharding,
        config=config,
        implementation=implementation,
        interpret=interpret,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
    )


def _general(
    function: str,
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    dimensions: lax.RaggedDotDimensionNumbers,
    group_offset: Any,
    others: tuple[Any, ...],
    epilogue: Epilogue,
    **options_: Any,
) -> jax.Array:
    """Each function; `others` are what the epilogue names."""
    options_["preferred_element_type"] = as_lax_names(options_["preferred_element_type"])
    options, out_sharding = product_options(function, **options_), options_["out_sharding"]
    of_lax = {
        "precision": options.precision,
        "preferred_element_type": options.preferred_element_type,
        "group_offset": group_offset,
    } | ({} if out_sharding is None else {"out_sharding": out_sharding})

    def laxs(lhs: Any, rhs: Any, group_sizes: Any) -> jax.Array:
        with _compat.lax_itself():
            return _lax_ragged_dot_general(lhs, rhs, group_sizes, dimensions, **of_lax)

    # Shapes, dtypes and the messages about them are lax's own.
    out = jax.eval_shape(laxs, lhs, rhs, group_sizes)
    if not epilogue.is_of_pair:
        _check_shapes(function, others, epilogue, np.shape(group_sizes)[-1], out.shape)
    form = _form(dimensions, np.ndim(lhs), np.ndim(rhs), np.ndim(group_sizes))
    is_explicit = out_sharding is not None or any(
        _compat.has_explicit_axes(jax.typeof(x)) for x in (lhs, rhs, group_sizes, *others)
    )
    if form is None or is_explicit or group_offset is not None:
        why = "its mesh has explicit axes" if is_explicit else "it has other dimensions"
        asked = options.options
        insists = asked.implementation == "moye" or asked.deterministic or asked.batch_invariant
        if insists or options.config is not None or not epilogue.is_nothing:
            raise NotImplementedError(f"{function}: no kernel computes it, since {why}")
        return laxs(lhs, rhs, group_sizes)
    if out.weak_type and epilogue.is_nothing and options.options.implementation is None:
        return laxs(lhs, rhs, group_sizes)  # of Python's numbers alone
    return _product(lhs, rhs, group_sizes, *others, form=form, epilogue=epilogue, out_dtype=out.dtype, options=options)


def _check_shapes(
    function: str, others: tuple[Any, ...], epilogue: Epilogue, groups: int, out_shape: tuple[int, ...]
) -> None:
    """Raises ValueError where the bias or a scale does not fit the result."""
    sizes = {"g": groups, "m": out_shape[0], "n": out_shape[-1]}
    for (name, labels), x in zip(epilogue.operands, others, strict=True):
        shape, wanted = np.shape(x), tuple(sizes[label] for label in labels)
        if shape == wanted:
            continue
        if name == "bias":
            raise ValueError(f"{function}: bias has shape {shape}, and a row for each group is {wanted}")
        whole = {"lhs_scale": f"() or {(sizes['m'],)}", "rhs_scale": f"(), {(groups,)} or {(groups, sizes['n'])}"}
        raise ValueError(f"{function}: {name} has shape {shape}, and it is {whole[name]}")


def _form(dimensions: Any, lhs_ndim: int, rhs_ndim: int, sizes_ndim: int) -> tuple[str, Any, Any] | None:
    """The specification of one of ours, and the permutations in front of lhs and rhs; None if it is none."""
    ((lhs_contracted, rhs_contracted), (lhs_batch, rhs_batch)) = dimensions.dot_dimension_numbers
    (ragged,) = dimensions.lhs_ragged_dimensions
    if lhs_batch or rhs_batch or len(lhs_contracted) != 1 or lhs_ndim != 2 or sizes_ndim != 1:
        return None
    (k,), (rhs_k,) = lhs_contracted, rhs_contracted
    if ragged == k:
        if rhs_ndim != 2:
            return None
        return RAGGED_K, (k, 1 - k), (rhs_k, 1 - rhs_k)
    if rhs_ndim != 3:
        return None
    (group,) = dimensions.rhs_group_dimensions
    return RAGGED_M, (1 - k, k), (group, rhs_k, 3 - group - rhs_k)


@jitted_where_eager("form", "epilogue", "out_dtype", "options")
def _product(
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    *others: Any,
    form: Any,
    epilogue: Epilogue,
    out_dtype: Any,
    options: ProductOptions,
) -> jax.Array:
    spec, lhs_order, rhs_order = form
    parameters = options.parameters() | {"out_dtype": out_dtype}
    del parameters["out_sharding"]
    operands = (_permuted(lhs, lhs_order), _permuted(rhs, rhs_order), _as_int32(group_sizes))
    if epilogue.is_nothing:
        return grouped(spec, *operands, **parameters)
    return grouped_fused(spec, *operands, *others, epilogue=epilogue, **parameters)


def _permuted(x: Any, order: tuple[int, ...]) -> Any:
    return x if order == tuple(range(len(order))) else lax.transpose(x, order)


def _as_int32(group_sizes: Any) -> Any:
    """The sizes as kernels read them. None is beyond what a dimension may have."""
    dtype = jnp.asarray(group_sizes).dtype
    if dtype.itemsize > 4 or dtype == jnp.uint32:
        group_sizes = jnp.clip(group_sizes, 0, _MAX_INT32)
    return lax.convert_element_type(group_sizes, jnp.int32)
