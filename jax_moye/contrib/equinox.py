"""Equinox layers on jax_moye's kernels: `model = jax_moye.contrib.equinox.use(model)`."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp

from jax_moye._api.linear import linear
from jax_moye._api.types import Activation
from jax_moye._log import logger

Model = TypeVar("Model")


class Linear(eqx.nn.Linear):
    """`equinox.nn.Linear` with product, bias and activation in one kernel.

    Called with a vector, as Equinox's layers are, and under `jax.vmap` for a batch, which is still one product.

    Attributes:
      activation: as in `jax_moye.linear`, e.g. "gelu", or None. It is part of the layer: the next one gets its result.
    """

    activation: Activation = eqx.field(static=True)

    def __init__(self, *args: Any, activation: Activation = None, **kwargs: Any) -> None:
        """Makes a layer.

        Args:
          *args: of equinox.nn.Linear.
          activation: as in `jax_moye.linear`.
          **kwargs: of equinox.nn.Linear.
        """
        super().__init__(*args, **kwargs)
        self.activation = activation

    def __call__(self, x: jax.Array, *, key: Any = None) -> jax.Array:
        """Applies the layer.

        Args:
          x: (in_features,), or () where in_features is "scalar".
          key: ignored, as by Equinox.

        Returns:
          (out_features,), or () where out_features is "scalar". The dtype is x's and the parameters', promoted.

        Raises:
          ValueError: x has another shape.
        """
        del key
        expected = () if self.in_features == "scalar" else (self.in_features,)
        if jnp.shape(x) != expected:
            raise ValueError(f"Linear: x has shape {jnp.shape(x)}, expected {expected}: jax.vmap adds dimensions")
        # jax_moye.linear would compute in x's dtype where the weight has a wider one; Equinox promotes.
        x = jnp.reshape(x, (self.weight.shape[1],)).astype(jnp.result_type(x, self.weight))
        dtype = x.dtype if self.bias is None else jnp.result_type(x, self.bias)
        y = linear(x, self.weight.T, self.bias, activation=self.activation, preferred_element_type=dtype)
        return jnp.reshape(y, ()) if self.out_features == "scalar" else y


def from_linear(layer: eqx.nn.Linear, activation: Activation = None) -> Linear:
    """Our layer with the arrays of Equinox's.

    Args:
      layer: the layer to take them from.
      activation: as in `jax_moye.linear`, to be applied to what `layer` returns.
    """
    ours = object.__new__(Linear)  # as Equinox does when it puts a layer together from its leaves
    for field in dataclasses.fields(eqx.nn.Linear):
        object.__setattr__(ours, field.name, getattr(layer, field.name))
    object.__setattr__(ours, "activation", activation)
    return ours


def use(model: Model) -> Model:
    """The same model on jax_moye's kernels: every equinox.nn.Linear in it, however deep, is a Linear of this module.

    Parameters are shared, not copied. Of a subclass of equinox.nn.Linear only the author knows what it computes: those
    stay as they are. What multiplies by other means, such as attention's scores, is for `jax_moye.intercept()`.

    Args:
      model: a pytree, such as an equinox.Module.

    Returns:
      The pytree with its layers exchanged.

    Raises:
      TypeError: there is no equinox.Module in it.

    Example:
      >>> import equinox as eqx
      >>> import jax
      >>> import jax.numpy as jnp
      >>> from jax_moye.contrib.equinox import use
      >>> model = use(eqx.nn.MLP(in_size=8, out_size=4, width_size=16, depth=2, key=jax.random.key(0)))
      >>> jax.vmap(model)(jnp.ones((32, 8))).shape
      (32, 4)
    """

    def is_layer(x: Any) -> bool:
        return type(x) is eqx.nn.Linear

    if not any(isinstance(x, eqx.Module) for x in jax.tree.leaves(model, is_leaf=lambda x: isinstance(x, eqx.Module))):
        raise TypeError(f"use: the model is a pytree with modules of Equinox in it, not {model!r}")
    if not any(map(is_layer, jax.tree.leaves(model, is_leaf=is_layer))):
        logger.warning("jax_moye.contrib.equinox.use: no equinox.nn.Linear in %s", type(model).__name__)
    return jax.tree.map(lambda x: from_linear(x) if is_layer(x) else x, model, is_leaf=is_layer)
