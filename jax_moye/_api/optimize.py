"""`jax_moye.optimize`: the products of a program with what stands behind them, each as one equation.

A function is traced, its jaxpr is rewritten, and the rewritten one runs. `_primitives/chains.py` says what is replaced,
and `_primitives/views.py` which operands are read as parts of larger arrays.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from jax_moye._api.options import resolve
from jax_moye._log import logger, say_once


def optimize(fun: Callable[..., Any]) -> Callable[..., Any]:
    """A function that computes what `fun` does, in kernels that take in what stands behind its products.

    Every product of the program is one of `jax_moye.dot_general` or `ragged_dot_general`, as inside
    `jax_moye.intercept`: a kernel of ours where it is known to be faster, XLA elsewhere. Beyond that, what follows a
    product becomes part of its kernel where that is faster: a transpose, the conversion of its result, factors that are
    Python numbers, a bias, relu, gelu, silu or another function of its elements, and the sum or difference with another
    array, such as a residual, another product, a gradient so far, or the parameter of an update `p - 0.1 * gradient`.
    Whatever a kernel takes in is computed in f32 and rounded once at the end, never more often than the program rounds.
    Two products of one left operand, of which one is activated and multiplied with the other, may be one kernel, and so
    may the two halves of one product, whose weights lie in one array, and two of `jax.lax.ragged_dot`. A kernel of the
    latter may read the rows that a gather in front of it takes where they are, and store its rows where a gather or
    scatter behind it moves them, by what the program has sorted. A sum with another array is written over that array
    where it is donated, or the program's own, and all else that reads it is done before. All else is left as it is, and
    so is what no kernel of ours does faster: names, sources, effects, donated buffers and shardings stay.

    Attention of 16 bits, softmax(scale * q k^T + mask) v, and its derivative are a kernel each, which keeps no scores
    in memory: however the softmax is written, with queries in groups, of one query and a cache as well, with masks, a
    bias, a soft cap or dropout, or without. Nothing else may read the scores or what is made of them. Scores are f32
    then. The shares are rounded once, and so is the derivative by the scores, as in the program.

    A product of which the program takes a part, such as the logits of the last token, is the product of the operands'
    parts, and so on in front of it, in a model's last block. Boxes of up to half of an array are taken.

    An operand that is part of a larger array, by slices, `jnp.split`, or indices known while tracing, is read where it
    is, without a copy, where a kernel of ours computes the product and that is one matrix multiplication of the same
    sizes. The array has to be in memory anyway. The gradients of attention are written as such parts where the program
    joins them in one array.

    Products by weights of 8 or 4 bits that the program dequantizes itself are those of `quantized_matmul`, without a
    rounding of the weights, for up to 64 rows and under `options(implementation="moye")` alone: no GPU has timed them.

    Where a scan stacks residuals for the scan that is its derivative, it stacks fewer of them: those that follow from
    the others element by element, such as an activation's intermediate values from its argument, are computed where
    they are read, by the same operations in the same dtypes. It never stacks more bytes than before. Attention in the
    one and its derivative in the other are found, too: for them no scores or shares are stacked.

    Where each step of a scan multiplies few rows, as in a recurrent network, and a product need not wait for the step
    before, one product of the rows of all steps stands in front of the scan, or behind it: of its inputs, of what it
    stacks, and of the gradients of weights, which are rounded once then. What is stacked for this takes no more bytes
    than the scan's other stacks, or 32 MiB.

    The derivative of a loss by labels, such as `jnp.take_along_axis(log_softmax(logits), labels, -1)`, is no scatter
    into an array of the logits' size, but a choice, which XLA makes where it is read. Where XLA computes an activation
    and its derivative, it keeps the activation's argument for both, and no tanh, exponential or error function beside
    it.

    In a program for one GPU the stacks of a scan, such as residuals and the gradients of parameters, begin as memory
    that nobody has written, where they have a megabyte or more: each iteration writes its own part, and XLA no zeros.

    Put it inside of jax.jit and around the derivatives: `jax.jit(jax_moye.optimize(train_step))`. It looks into jit,
    scan, while, cond, checkpoint and shard_map, and into what functions with derivatives of their own compute; their
    rules stay. A call of jit becomes its equations where a product takes in something on the other side of its border,
    and a checkpoint takes in the update, or the sum, of a gradient that it computes. Pallas kernels, and products of
    arrays whose types have shardings (explicit mesh axes), stay as they are. The result can be differentiated and
    mapped, but what is rewritten then is the program as it was. Where a rewrite fails, the function is run as it is,
    and a warning says so once.

    Args:
      fun: any function that JAX can trace. Arguments that are no arrays, numbers of Python and NumPy among them, are
        passed on as they are.

    Returns:
      A function with fun's signature, results, dtypes and effects. Options come from around the call:
      `with jax_moye.options(...)`.

    Raises:
      TypeError: fun is no function.

    Example:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import jax_moye
      >>> def layer(x, w, b):
      ...     return x + jax.nn.silu(x @ w + b)
      >>> x, w, b = jnp.ones((4, 8)), jnp.ones((8, 8)), jnp.ones(8)
      >>> print([equation.primitive.name for equation in jax.make_jaxpr(jax_moye.optimize(layer))(x, w, b).eqns])
      ['broadcast_in_dim', 'jax_moye_rewritten']
    """
    if not callable(fun):
        raise TypeError(f"optimize: fun is a function, not {fun!r}")

    @functools.wraps(fun)
    def optimized(*args: Any, **kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        is_array = [isinstance(leaf, (jax.Array, np.ndarray)) for leaf in leaves]  # a tracer is one, too

        def of_arrays(*arrays: Any) -> Any:
            given = iter(arrays)
            all_leaves = [next(given) if one else leaf for one, leaf in zip(is_array, leaves, strict=True)]
            of_call, of_keywords = jax.tree.unflatten(tree, all_leaves)
            return fun(*of_call, **of_keywords)

        arrays = [leaf for one, leaf in zip(is_array, leaves, strict=True) if one]
        # Half of what `import jax_moye` would take, and programs that only multiply need none of it.
        from jax_moye._primitives.rewriting import rewritten

        closed, shape = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
        try:
            closed = rewritten(closed, resolve("optimize").parameters())
        except Exception as error:
            _say_why_not(fun, error)
        return jax.tree.unflatten(jax.tree.structure(shape), jaxpr_as_fun(closed)(*arrays))

    return optimized


def _say_why_not(fun: Callable[..., Any], error: Exception) -> None:
    """Warns once of each function and cause."""
    name = f"{getattr(fun, '__module__', None)}.{getattr(fun, '__qualname__', type(fun).__qualname__)}"
    cause = f"{type(error).__name__}: {error}"
    say_once(
        logging.WARNING,
        f"jax_moye.optimize: {name} is run as it is, since rewriting it failed ({cause}). This is a mistake of "
        "jax_moye's: please report it, with the traceback that JAX_MOYE_LOG=debug shows",
    )
    logger.debug("jax_moye.optimize: %s", name, exc_info=error)
