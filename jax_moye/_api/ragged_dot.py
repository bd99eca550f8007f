"""Products of groups, as of a mixture of experts: jax.lax's ragged_dot and ragged_dot_general, and gated layers."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import PrecisionLike
from jax.typing import ArrayLike, DTypeLike

from jax_moye import _compat
from jax_moye._api.arguments import ProductOptions, as_array, as_lax_names, jitted_where_eager, product_options
from jax_moye._api.linear import canonical_activation, scale_array
from jax_moye._api.types import Activation, Config, Implementation, Interpret, OutSharding
from jax_moye._primitives.grouped import BIAS, LAX_DIMENSIONS
from jax_moye._primitives.grouped_permuted import gathered, permuted, scattered
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
    lhs_rows: ArrayLike | None = None,
    permutation: ArrayLike | None = None,
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

    Rows need not lie in the order of groups. With lhs_rows row i is `lhs[lhs_rows[i]] @ rhs[g]`, which XLA gathers in
    front of the product. With a permutation it is stored as row `permutation[i]` of the result, by the kernel itself:
    results of a mixture of experts go to their tokens' places, and no scatter stands behind the product.

        ragged_dot(x, w, sizes, lhs_rows=rows, permutation=p)       p is a permutation
        jnp.zeros((m, n)).at[p].set(ragged_dot(x[rows], w, sizes))  the same

    It works under jit, grad, jvp, vmap (one product after the other) and inside a shard_map over all mesh axes, where
    each device has the groups, or the rows, that it was given. Outside of shard_map a program that is partitioned over
    devices is XLA's, as are explicit meshes.

    A kernel computes bf16, f16, f32 as TF32, float8_e4m3fn and float8_e5m2 operands with 512 groups at most on GPUs of
    sm_90, where rows of both operands and of the result are multiples of 16 bytes. All else is XLA's. Tensor cores read
    f32 and 8-bit floats along k alone: give rhs as `w.swapaxes(1, 2)` of weights w of (g, n, k), which is not computed;
    of others XLA writes the transpose in front of the kernel, and their gradient is XLA's. For a gradient XLA gathers
    rows that were stored elsewhere, and adds up those of lhs that were read more than once.

    Args:
      lhs: (m, k), or, with lhs_rows, any number of rows.
      rhs: (g, k, n). A transpose in front of it that swaps its last two dimensions is not computed.
      group_sizes: (g,), integers. One below zero counts as zero, and what is beyond m does not count.
      precision: as in `jax_moye.matmul`.
      preferred_element_type: dtype of the result, by default the operands'.
      group_offset: None: JAX has no other yet.
      out_sharding: as in `jax_moye.matmul`, likewise the following.
      lhs_rows: (m,), integers, or None: which row of lhs each row of the groups is, as often as it is named. An index
        below 0 or behind the last row reads the nearest row, as `jnp.take` does with `mode="clip"`.
      permutation: (m,), each of 0, ..., m - 1 once, or None: where each row of the groups, and each row of none, is in
        the result. Of anything else the result is unspecified.
      bias: (g, n), added to the rows of each group before the result is rounded.
      activation: as in `jax_moye.linear`, applied before that, too.
      lhs_scale: () or as many as lhs has rows, of all of these or of each one, or None: what quantized rows were
        divided by. The product is multiplied by it, then by rhs_scale, in float32, before the bias is added. By the
        kernel, where operands are 8-bit floats.
      rhs_scale: (), (g,) or (g, n), of all matrices, of each one, or of the columns of each one.
      config: the name of one of the table's rows of sm90_grouped.
      implementation: None, "moye" or "xla".
      interpret: None, a bool or InterpretParams.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that a row's bits depend neither on the other rows nor on the groups' sizes.

    Returns:
      (m, n).

    Raises:
      TypeError: what `jax.lax.ragged_dot` raises for such operands, with its words and a note of what they are; a bias,
        a scale or indices of rows are no array, or the latter no integers.
      ValueError: a bias, a scale or indices of rows have another shape, an option has an unknown value, or the config
        cannot compute this.
      NotImplementedError: as `jax_moye.matmul`; or there is a group_offset.

    Example:
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> tokens, experts = jnp.ones((5, 8), jnp.bfloat16), jnp.ones((2, 8, 16), jnp.bfloat16)
      >>> jax_moye.ragged_dot(tokens, experts, jnp.array([3, 1]), interpret=True)[:, 0].tolist()
      [8.0, 8.0, 8.0, 8.0, 0.0]
      >>> rows = jax_moye.ragged_dot(
      ...     jnp.eye(2, 8, dtype=jnp.bfloat16), experts, jnp.array([1, 2]), lhs_rows=jnp.array([1, 0, 1]),
      ...     permutation=jnp.array([2, 0, 1]), interpret=True,
      ... )
      >>> rows.shape
      (3, 16)
    """
    others = {} if bias is None else dict(BIAS)
    arrays = [] if bias is None else [as_array("ragged_dot", "bias", bias)]
    for name, scale, labels in zip(SCALES, (lhs_scale, rhs_scale), ("m", "gn"), strict=True):
        if scale is not None:
            arrays.append(as_array("ragged_dot", name, scale_array(scale)))
            others[name] = labels[: np.ndim(scale)]
    return _general(
        "ragged_dot",
        lhs,
        rhs,
        group_sizes,
        Rows(lhs_rows, permutation),
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
    x_rows: ArrayLike | None = None,
    permutation: ArrayLike | None = None,
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
      x: (m, k), or, with x_rows, any number of rows.
      w_gate: (g, k, n). A transpose in front of both weights that swaps their last two dimensions is not computed.
      w_up: (g, k, n), of w_gate's dtype.
      group_sizes: (g,), integers, as in `ragged_dot`.
      x_rows: (m,), integers, or None: which row of x each row of the groups is, as `ragged_dot`'s lhs_rows.
      permutation: as in `ragged_dot`.
      activation: as in `ragged_dot`.
      precision: as in `jax_moye.matmul`.
      preferred_element_type: dtype of the result, by default the operands'.
      config: as in `ragged_dot`, of a row whose `takes_pair` is true.
      implementation: None, "moye" or "xla".
      interpret: None, a bool or InterpretParams.
      deterministic: True promises the same bits in every run.
      batch_invariant: True promises that a row's bits depend neither on the other rows nor on the groups' sizes.

    Returns:
      (m, n).

    Raises:
      TypeError: an operand is no array, or what `jax.lax.ragged_dot` raises for such operands, with its words.
      ValueError: the weights differ in shape or dtype, indices of rows have another shape, an option has an unknown
        value, or the config cannot compute this.
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
    given = {"x": x, "w_gate": w_gate, "w_up": w_up, "group_sizes": group_sizes}
    _, gate, up, _ = (jax.typeof(as_array(name, key, value)) for key, value in given.items())
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
        Rows(x_rows, permutation, "x"),
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
        Rows(),
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


class Rows(NamedTuple):
    """Where rows lie.

    Attributes:
      read: the row of lhs that each row of the groups is, or None.
      stored: the row of the result that it is, or None.
      lhs: what the caller calls it.
    """

    read: Any = None
    stored: Any = None
    lhs: str = "lhs"


def _general(
    function: str,
    lhs: Any,
    rhs: Any,
    group_sizes: Any,
    rows: Rows,
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

    def laxs(lhs: Any, rhs: Any, group_sizes: Any, read: Any, stored: Any) -> jax.Array:
        with _compat.lax_itself():
            out = _lax_ragged_dot_general(gathered(lhs, read), rhs, group_sizes, dimensions, **of_lax)
            return scattered(out, stored)

    # Shapes, dtypes and the messages about them are lax's own, which name no argument: a note does.
    _check_rows(function, lhs, rows)
    operands = (lhs, rhs, group_sizes, rows.read, rows.stored)
    try:
        out = jax.eval_shape(laxs, *operands)
    except (TypeError, ValueError) as error:
        given = {rows.lhs: lhs, "w_gate" if epilogue.is_of_pair else "rhs": rhs, "group_sizes": group_sizes}
        error.add_note(f"{function}: {', '.join(f'{name} is {_type_of(x)}' for name, x in given.items())}")
        raise
    if not epilogue.is_of_pair:
        _check_shapes(function, others, epilogue, np.shape(group_sizes)[-1], np.shape(lhs)[0], out.shape)
    form = _form(dimensions, np.ndim(lhs), np.ndim(rhs), np.ndim(group_sizes))
    is_explicit = out_sharding is not None or any(
        _compat.has_explicit_axes(jax.typeof(x)) for x in (*operands, *others) if x is not None
    )
    if form is None or is_explicit or group_offset is not None:
        why = "its mesh has explicit axes" if is_explicit else "it has other dimensions"
        asked = options.options
        insists = asked.implementation == "moye" or asked.deterministic or asked.batch_invariant
        if insists or options.config is not None or not epilogue.is_nothing:
            raise NotImplementedError(f"{function}: no kernel computes it, since {why}")
        return laxs(*operands)
    if out.weak_type and epilogue.is_nothing and options.options.implementation is None:
        return laxs(*operands)  # of Python's numbers alone
    return _product(*operands, *others, form=form, epilogue=epilogue, out_dtype=out.dtype, options=options)


def _type_of(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if isinstance(x, _compat.ARRAYS) else f"a {type(x).__name__}"


def _check_rows(function: str, lhs: Any, rows: Rows) -> None:
    """Raises TypeError or ValueError where indices of rows are none."""
    for name, x in ((f"{rows.lhs}_rows", rows.read), ("permutation", rows.stored)):
        if x is None:
            continue
        as_array(function, name, x, numbers=True)
        if not jnp.issubdtype(jnp.asarray(x).dtype, jnp.integer):
            raise TypeError(f"{function}: {name} is {jnp.asarray(x).dtype}, and indices of rows are integers")
        if np.ndim(lhs) != 2:
            raise ValueError(f"{function}: {rows.lhs} has shape {np.shape(lhs)}, and with {name} it is a matrix")
        if np.ndim(x) != 1:
            raise ValueError(f"{function}: {name} has shape {np.shape(x)}, and it is (m,): one index for each row")
    if rows.read is not None and np.shape(lhs)[0] == 0 and np.size(rows.read) > 0:
        raise ValueError(f"{function}: {rows.lhs}_rows has {np.size(rows.read)} indices, and {rows.lhs} has no rows")
    if rows.stored is None:
        return
    m, of = np.shape(lhs)[0], rows.lhs
    if rows.read is not None:
        m, of = np.size(rows.read), f"{rows.lhs}_rows"
    if np.size(rows.stored) != m:
        raise ValueError(
            f"{function}: permutation has shape {np.shape(rows.stored)}, and it is {(m,)}: an index for each row of "
            f"{of}"
        )


def _check_shapes(
    function: str, others: tuple[Any, ...], epilogue: Epilogue, groups: int, rows: int, out_shape: tuple[int, ...]
) -> None:
    """Raises ValueError where the bias or a scale does not fit lhs, which has so many rows, or the result."""
    sizes = {"g": groups, "m": rows, "n": out_shape[-1]}
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
    read: Any,
    stored: Any,
    *others: Any,
    form: Any,
    epilogue: Epilogue,
    out_dtype: Any,
    options: ProductOptions,
) -> jax.Array:
    spec, lhs_order, rhs_order = form
    parameters = options.parameters() | {"out_dtype": out_dtype}
    del parameters["out_sharding"]
    if epilogue.is_scaled:  # scales of rows are gathered with them
        lhs = gathered(lhs, read)
        others = tuple(
            gathered(x, read) if labels == "m" else x for (_, labels), x in zip(epilogue.operands, others, strict=True)
        )
        read = None
    operands = (_permuted(lhs, lhs_order), _permuted(rhs, rhs_order), _as_int32(group_sizes))
    read, stored = (None if x is None else _as_int32(x) for x in (read, stored))
    parameters |= {"epilogue": None if epilogue.is_nothing else epilogue}
    return permuted(spec, *operands, *others, lhs_rows=read, permutation=stored, **parameters)


def _permuted(x: Any, order: tuple[int, ...]) -> Any:
    return x if order == tuple(range(len(order))) else lax.transpose(x, order)


def _as_int32(group_sizes: Any) -> Any:
    """The sizes as kernels read them. None is beyond what a dimension may have."""
    dtype = jnp.asarray(group_sizes).dtype
    if dtype.itemsize > 4 or dtype == jnp.uint32:
        group_sizes = jnp.clip(group_sizes, 0, _MAX_INT32)
    return lax.convert_element_type(group_sizes, jnp.int32)
