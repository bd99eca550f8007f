"""Programs whose products read parts of larger arrays: for the emulator and for GPUs."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from python.float64 import exact

import jax_moye
from jax_moye._primitives.rewritten import viewed_p

VIEW_TARGET = "jax_moye_view_gemm_v1"
HEADS, HEAD = 4, 16


@dataclasses.dataclass(frozen=True)
class Case:
    """A program.

    Attributes:
      fun: of arrays, in any dtype of theirs.
      shapes: of the arrays.
      views: how many of its products have such operands.
      is_copied: the model takes a copy and a kernel of 16 bytes to be faster than one that reads elements.
    """

    fun: Callable[..., object]
    shapes: tuple[tuple[int, ...], ...]
    views: int = 1
    is_copied: bool = False


def _heads(h, w):
    return (h @ w).reshape(*h.shape[:2], 3, HEADS, HEAD)


def scores_of_split(h, w):
    q, k, _ = (x[:, :, 0] for x in jnp.split(_heads(h, w), 3, axis=2))
    return jnp.einsum("bqhd,bkhd->bhqk", q, k)


def attention(h, w):
    qkv = _heads(h, w)
    q, k, v = (qkv[:, :, i] for i in range(3))
    return jnp.einsum("bhqk,bkhd->bqhd", jnp.einsum("bqhd,bkhd->bhqk", q, k), v)


def gated(x, w):
    gate, up = jnp.split(w, 2, axis=1)
    return jax.nn.relu(x @ gate) * (x @ up)


def gated_of_one(x, w):
    gate, up = jnp.split(x @ w, 2, axis=1)
    return jax.nn.relu(gate) * up


H, WQKV = (2, 24, 32), (32, 3 * HEADS * HEAD)
CASES = {
    "scores of a split": Case(scores_of_split, (H, WQKV)),
    "attention of one product": Case(attention, (H, WQKV), 2),
    "first columns": Case(lambda x, w: x @ w[:, :32], ((24, 32), (32, 48))),
    "last columns": Case(lambda x, w: x @ w[:, 16:], ((24, 32), (32, 48))),
    "columns from an odd one on": Case(lambda x, w: x @ w[:, 3:27], ((24, 32), (32, 48))),
    "columns of a matrix of an odd width": Case(lambda x, w: x @ w[:, 3:27], ((24, 32), (32, 51)), is_copied=True),
    "rows of both": Case(lambda x, w: x[8:, 8:40] @ w[8:40], ((24, 40), (40, 32))),
    "every other row": Case(lambda x, w: x[1::2] @ w, ((24, 32), (32, 32))),
    "the last token": Case(lambda x, w: x[:, -1] @ w, ((24, 5, 32), (32, 40))),
    "a layer of a stack": Case(lambda x, w: x @ w[1] @ w[-1], ((24, 32), (3, 32, 32)), 2),
    "one of an unstacked array": Case(lambda x, w: x @ jnp.unstack(w, axis=1)[1], ((24, 32), (32, 3, 40))),
    "columns of a transposed layer": Case(lambda x, w: x @ w[1, :, 8:40].T, ((24, 32), (3, 32, 40))),
    "a bias and an activation": Case(lambda x, w, b: jax.nn.relu(x @ w[:, 16:] + b), ((24, 32), (32, 48), (32,))),
    "plus c": Case(lambda x, w, c: c + x @ w[:, 16:], ((24, 32), (32, 48), (24, 32))),
    "gate and up of one array": Case(gated, ((24, 32), (32, 128))),
    "gate and up of one product": Case(gated_of_one, ((24, 32), (32, 128))),
    "at a number": Case(lambda x, w: x @ jax.lax.dynamic_slice_in_dim(w, 9, 32, 1), ((24, 32), (32, 48))),
}


def integers(case: Case, dtype) -> list[jax.Array]:
    """Operands of a case: so small, and so many of them 0, that all results are exact in all dtypes."""
    rng = np.random.default_rng(0)
    return [jnp.asarray(rng.choice([-1, *[0] * 10, 1], shape), dtype) for shape in case.shapes]


def viewed_equations(fun, *args) -> list:
    """The products of an optimized function that read parts of arrays."""
    return [e for e in jax.make_jaxpr(jax_moye.optimize(fun))(*args).eqns if e.primitive is viewed_p]


def expected(case: Case, operands) -> np.ndarray:
    """In float64, by JAX on the CPU, without us."""
    with jax.default_device(jax.devices("cpu")[0]):
        return exact(case.fun, operands)


def movements(text: str) -> list[str]:
    """Operations of StableHLO that would write a part of an array to memory."""
    return re.findall(r"stablehlo\.(?:slice|dynamic_slice|transpose|gather|concatenate|pad)\b", text)


def check(name: str, interpret: bool, dtype=jnp.bfloat16) -> None:
    """The program computes what it should, in the emulator by kernels that read parts in place."""
    case = CASES[name]
    operands = integers(case, dtype)
    with jax_moye.options(implementation="moye", interpret=interpret):
        optimized = jax.jit(jax_moye.optimize(case.fun))
        assert len(viewed_equations(case.fun, *operands)) == case.views
        if interpret and dtype == jnp.bfloat16:  # a GPU's model may prefer copies
            assert bool(movements(optimized.lower(*operands).as_text())) == case.is_copied
        result = optimized(*operands)
    wanted = expected(case, operands)
    np.testing.assert_array_equal(wanted.astype(dtype).astype(np.float64), wanted, "not exact")
    np.testing.assert_array_equal(np.asarray(result, np.float64), wanted)
