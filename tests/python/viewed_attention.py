"""Attention whose operands are parts of larger arrays: for the emulator and for GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from python.attentions import FORMS, GROUPED, arrays, assert_as_exact, exact
from python.viewed import movements

import jax_moye
from jax_moye._primitives.attention import attention_grad_p, attention_p

TARGETS = "jax_moye_view_attention_v1", "jax_moye_view_attention_grad_v1"
B, T, H, N, D = 2, 24, 4, 2, 16  # batch, rows, heads of queries, of keys where they are in groups, head_dim


@dataclasses.dataclass(frozen=True)
class Case:
    """Where q, k, v and d_o are.

    Attributes:
      parts: of the arrays, by `jax.numpy` or by NumPy: q, k, v and d_o of (batch, rows, heads, head_dim).
      shapes: of the arrays.
      views: which of them a kernel reads in place.
      form: what computes attention.
      slices: how many are written to memory: those that no kernel reads in place, and a d_o for what else reads it.
    """

    parts: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    views: str = "q k v"
    form: Callable[..., Any] = FORMS["plain"]
    slices: int = 0

    def fun(self, *given: Any, causal: bool = True) -> Any:
        """The result, and the derivatives by q, k and v."""
        *qkv, d_o = self.parts(jnp, *given)
        out, pullback = jax.vjp(lambda q, k, v: self.form(q, k, v, causal), *qkv)
        return (out, *pullback(d_o))


def _by_split(of, qkv, d_o):
    return *(x.reshape(B, T, H, D) for x in of.split(qkv, 3, axis=2)), d_o


def _by_index(of, qkv, d_o):
    qkv = qkv.reshape(B, T, 3, H, D)
    return qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], d_o


def _heads_first(of, qkv, d_o):
    """(3,b,h,t,d), taken apart, and back again as a form takes it."""
    heads = of.transpose(qkv.reshape(B, T, 3, H, D), (2, 0, 3, 1, 4))
    return *(of.transpose(heads[i], (0, 2, 1, 3)) for i in range(3)), d_o


def _by_slices(of, qkv, d_o):
    width = H * D
    return *(qkv[:, :, i * width : (i + 1) * width].reshape(B, T, H, D) for i in range(3)), d_o


def _of_heads(of, qkv, d_o):
    """Each head's q, k and v side by side."""
    q, k, v = of.split(qkv.reshape(B, T, H, 3 * D), 3, axis=3)
    return q, k, v, d_o


def _unstacked(of, qkv, d_o):
    qkv = qkv.reshape(B, T, 3, H, D)
    return *([*np.moveaxis(qkv, 2, 0)] if of is np else jnp.unstack(qkv, axis=2)), d_o


def _in_a_call(of, qkv, d_o):
    def split(qkv):
        return [x.reshape(B, T, H, D) for x in of.split(qkv, 3, axis=2)]

    return *(split if of is np else jax.jit(split))(qkv), d_o


def _in_groups(of, qkv, d_o):
    q, k, v = of.split(qkv, [H * D, (H + N) * D], axis=2)
    return q.reshape(B, T, H, D), k.reshape(B, T, N, D), v.reshape(B, T, N, D), d_o


def _of_two_products(of, q, kv, d_o):
    k, v = of.split(kv.reshape(B, T, 2, N, D), 2, axis=2)
    return q.reshape(B, T, H, D), k[:, :, 0], v[:, :, 0], d_o


def _at_numbers(of, qkv, d_o):
    def at(i):
        if of is np:
            return qkv[:, :, i : i + H * D]
        return lax.dynamic_slice(qkv, (0, 0, i), (B, T, H * D))

    return *(at(i * H * D).reshape(B, T, H, D) for i in range(3)), d_o


O = (B, T, H, D)  # noqa: E741
CASES = {
    "split": Case(_by_split, ((B, T, 3 * H * D), O)),
    "index": Case(_by_index, ((B, T, 3 * H * D), O)),
    "unstacked": Case(_unstacked, ((B, T, 3 * H * D), O)),
    "in a call": Case(_in_a_call, ((B, T, 3 * H * D), O)),
    "heads first": Case(_heads_first, ((B, T, 3 * H * D), O)),
    "slices": Case(_by_slices, ((B, T, 3 * H * D), O)),
    "of heads": Case(_of_heads, ((B, T, H * 3 * D), O)),
    "at numbers": Case(_at_numbers, ((B, T, 3 * H * D), O)),
    "in groups": Case(_in_groups, ((B, T, (H + 2 * N) * D), O), form=GROUPED["in groups"]),
    "of two products": Case(_of_two_products, ((B, T, H * D), (B, T, 2 * N * D), O), "k v", GROUPED["in groups"]),
    "a stack": Case(lambda of, x: tuple(x[i] for i in range(4)), ((4, *O),), "q k v d_o", slices=1),
    "layers": Case(lambda of, q, kv, do: (q, kv[1, 0], kv[1, 1], do[0]), (O, (2, 2, *O), (2, *O)), "k v d_o", slices=1),
    "some rows": Case(
        lambda of, q, k, v, do: (q[:, 8:], k[:, 3:], v[:, 1::2], do),
        ((B, 32, H, D), (B, 27, H, D), (B, 48, H, D), O),
    ),
    "some of a batch": Case(lambda of, q, k, v, do: (q[1:], k[:B], v[::2], do), (*[(3, T, H, D)] * 3, O)),
    "some heads": Case(
        lambda of, q, k, v, do: (q[:, :, 1:], k, v[:, :, ::2], do[:, :, :H]),
        ((B, T, H + 1, D), O, (B, T, 2 * H, D), (B, T, 6, D)),
        "q v d_o",
        slices=1,
    ),
    "some columns": Case(
        lambda of, q, k, v, do: (q[..., 8:24], k[..., :D], v[..., D:], do),
        ((B, T, H, 40), (B, T, H, 24), (B, T, H, 32), O),
    ),
    "not aligned": Case(
        lambda of, q, k, v, do: (q[..., 4:20], k[..., 8:24], v[..., :D], do),
        ((B, T, H, 24), (B, T, H, 24), (B, T, H, 20), O),
        "k",
        slices=2,
    ),
    "not contiguous": Case(
        lambda of, q, k, v, do: (q[..., ::2], k, v[1], do), ((B, T, H, 2 * D), O, (2, *O), O), "v", slices=1
    ),
}


def equations(jaxpr: Any) -> list[Any]:
    """Those of attention and of its gradients, of a program without calls."""
    return [e for e in jaxpr.eqns if e.primitive in (attention_p, attention_grad_p)]


def viewed(equation: Any) -> str:
    """The names of the operands that are parts."""
    views = equation.params.get("views", ())
    return " ".join(name for name, view in zip(("q", "k", "v", "d_o"), views, strict=False) if view is not None)


def check(name: str, interpret: bool, dtype: Any = jnp.bfloat16) -> None:
    """A program computes what it should, by kernels that read the parts in place."""
    case = CASES[name]
    given = arrays(np.random.default_rng(len(name)), *case.shapes, dtype=dtype)
    with jax_moye.options(implementation="moye", interpret=interpret):
        forward, backward = equations(jax.make_jaxpr(jax_moye.optimize(case.fun))(*given))
        assert viewed(backward) == case.views
        assert viewed(forward) == case.views.replace(" d_o", "")
        lowered = jax.jit(jax_moye.optimize(case.fun)).lower(*given)
        text = lowered.as_text()
        assert [text.count(f"custom_call @{target}(") for target in TARGETS] == [1, 1]
        assert [x for x in movements(text) if "transpose" not in x] == ["stablehlo.slice"] * case.slices
        results = lowered.compile()(*given)
    parts = case.parts(np, *(np.asarray(x, np.float64) for x in given))
    with jax.default_device(jax.devices("cpu")[0]):
        before = jax.jit(case.fun)(*given)
    assert_as_exact(results, before, exact(*parts, True), dtype)
