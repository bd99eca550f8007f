"""Attention that is spread over several calls of jit, such as a forward pass and its derivative.

The derivative of a function that calls a jitted one has two calls. The first hands the second the weights of all pairs,
which attention's kernels do not keep. Where a search finds more attention with the calls' equations in their place, the
program keeps these equations.
"""

from __future__ import annotations

from collections.abc import Callable

from jax.extend.core import Jaxpr

from jax_moye._primitives.attention import attention_grad_p, attention_p
from jax_moye._primitives.equations import inner_of


def with_parts_together(jaxpr: Jaxpr, find: Callable[[Jaxpr], Jaxpr], opened: Callable[[Jaxpr], Jaxpr]) -> Jaxpr:
    """The same program, whose calls are their equations if attention is found only so; the same object else.

    Args:
      jaxpr: a program.
      find: puts attention into a program, without what its calls contain.
      opened: a program whose calls with products are their equations.
    """
    together = opened(jaxpr)
    if together is jaxpr:
        return jaxpr
    return together if _count(find(together)) > _of_parts(jaxpr, find) else jaxpr


def _of_parts(jaxpr: Jaxpr, find: Callable[[Jaxpr], Jaxpr]) -> int:
    """How many a program has, and its calls, each by itself."""
    bodies = (body for equation in jaxpr.eqns if (body := inner_of(equation)) is not None)
    return _count(find(jaxpr)) + sum(_of_parts(body, find) for body in bodies)


def _count(jaxpr: Jaxpr) -> int:
    return sum(equation.primitive in (attention_p, attention_grad_p) for equation in jaxpr.eqns)
