"""Gradients of programs against differences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np


def check_slope(loss, parameters, gradients, step=1e-2, tolerance=0.03):
    """Holds a gradient against the loss on both sides, along a direction that it has a part in.

    Args:
      loss: of parameters, in float32.
      parameters: a tree.
      gradients: the same tree.
      step: to each side, in units of the parameters' own size.
      tolerance: of the slope, relative.
    """
    direction = jax.tree.map(lambda p, g: jnp.sign(g) * jnp.maximum(jnp.std(p), 0.01), parameters, gradients)

    def at(t):
        return float(loss(jax.tree.map(lambda p, d: p + t * d, parameters, direction)))

    slope = (at(step) - at(-step)) / (2 * step)
    expected = sum(float(jnp.vdot(g, d)) for g, d in zip(*map(jax.tree.leaves, (gradients, direction)), strict=True))
    np.testing.assert_allclose(slope, expected, rtol=tolerance)
