"""What functions of arrays are in float64, and how near results are to that."""

import jax
import jax.numpy as jnp
import numpy as np


def exact(fun, operands):
    """What the function is in float64."""
    with jax.enable_x64(True):
        return jax.tree.map(np.asarray, fun(*(jnp.asarray(np.asarray(x, np.float64)) for x in operands)))


def assert_close(found, expected, tolerance=2.0**-6):
    """Of all results, over the largest number of each."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, rtol=0, atol=tolerance * abs(other).max())
