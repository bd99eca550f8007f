"""JAX's policies for jax.checkpoint, asked about the dot_general that a product of ours amounts to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core.primitives import dot_general_p

from jax_moye._primitives.contraction import contract_p
from jax_moye._primitives.fused import fused_p
from jax_moye._primitives.reference import lax_form

Policy = Callable[..., Any]


def as_dot_general(policy: Policy) -> Policy:
    """The same policy, which sees every product of jax_moye as `jax.lax.dot_general` and all else as it is.

    Args:
      policy: as in `jax.checkpoint`: called with a primitive, the types of its operands and its parameters.

    Returns:
      A policy, for `jax.checkpoint` or for `jax.checkpoint_policies.save_from_both_policies`.

    Example:
      >>> import jax
      >>> from jax_moye import checkpoint_policies
      >>> offload = jax.checkpoint_policies.offload_dot_with_no_batch_dims("device", "pinned_host")
      >>> policy = checkpoint_policies.as_dot_general(offload)
    """
    return policy if isinstance(policy, _CountingOurs) else _CountingOurs(policy)


@dataclasses.dataclass(frozen=True)
class _CountingOurs:
    """A policy: a class, and no function inside a function, so that it can be pickled."""

    policy: Policy

    def __call__(self, primitive: Any, *avals: Any, **params: Any) -> Any:
        if primitive not in (contract_p, fused_p):
            return self.policy(primitive, *avals, **params)
        return self.policy(
            dot_general_p,
            *avals[:2],
            dimension_numbers=lax_form(params["spec"])[0],
            precision=params["precision"],
            preferred_element_type=params["out_dtype"],
            out_sharding=params["out_sharding"],
        )


dots_saveable = as_dot_general(jax.checkpoint_policies.dots_saveable)
checkpoint_dots = dots_saveable  # JAX has both names
dots_with_no_batch_dims_saveable = as_dot_general(jax.checkpoint_policies.dots_with_no_batch_dims_saveable)
checkpoint_dots_with_no_batch_dims = dots_with_no_batch_dims_saveable


def offload_dot_with_no_batch_dims(offload_src: str, offload_dst: str) -> Policy:
    """Moves the products without batch dimensions to another memory, and back for the derivative.

    Args:
      offload_src: the memory they are in, "device".
      offload_dst: where they wait, e.g. "pinned_host".

    Returns:
      A policy, for `jax.checkpoint`.
    """
    return as_dot_general(jax.checkpoint_policies.offload_dot_with_no_batch_dims(offload_src, offload_dst))
