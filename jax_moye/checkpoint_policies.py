"""Policies for jax.checkpoint that count our products as matrix products.

`jax.checkpoint_policies.dots_saveable` looks for JAX's own dot_general, and would have ours computed again. These are
JAX's policies, asked about the dot_general that a product of ours amounts to:

    jax.checkpoint(f, policy=jax_moye.checkpoint_policies.dots_saveable)

Inside `jax_moye.intercept()` JAX's own do, and `jax_moye.optimize` needs none: it looks for products in what JAX made.
"""

from jax_moye._api.checkpoint_policies import as_dot_general as as_dot_general
from jax_moye._api.checkpoint_policies import checkpoint_dots as checkpoint_dots
from jax_moye._api.checkpoint_policies import checkpoint_dots_with_no_batch_dims as checkpoint_dots_with_no_batch_dims
from jax_moye._api.checkpoint_policies import dots_saveable as dots_saveable
from jax_moye._api.checkpoint_policies import dots_with_no_batch_dims_saveable as dots_with_no_batch_dims_saveable
from jax_moye._api.checkpoint_policies import offload_dot_with_no_batch_dims as offload_dot_with_no_batch_dims

__all__ = [
    "as_dot_general",
    "checkpoint_dots",
    "checkpoint_dots_with_no_batch_dims",
    "dots_saveable",
    "dots_with_no_batch_dims_saveable",
    "offload_dot_with_no_batch_dims",
]
