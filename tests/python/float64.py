"""What functions of arrays are in float64, and how near results are to that."""

import jax
import jax.numpy as jnp
import numpy as np

AS_WRITTEN = {"xla_allow_excess_precision": False}  # roundings of the function stay


def exact(fun, operands):
    """What the function is in float64; as one program, which takes less time than one of each of its steps."""
    with jax.enable_x64(True):
        program = jax.jit(lambda *operands: fun(*operands), compiler_options=AS_WRITTEN)
        return jax.tree.map(np.asarray, program(*(jnp.asarray(np.asarray(x, np.float64)) for x in operands)))


def assert_close(found, expected, tolerance=2.0**-6):
    """Of all results, over the largest number of each."""
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one, np.float64), other, rtol=0, atol=tolerance * abs(other).max())
