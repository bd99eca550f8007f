"""Gated layers of one product whose result is taken in two, in all the ways that programs write them."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

import jax_moye
from jax_moye._primitives.rewritten import rewritten_p, viewed_p

M, K, N = 16, 24, 32
SHAPES = {"x": (M, K), "h": (3, M, K), "w": (K, 2 * N), "t": (2 * N, K), "g": (K, 2, N), "o": (2, K, N), "q": (2, N, K)}
SHAPES |= {"l": (3, K, 2 * N), "d": (N, K), "D": (3, N, K), "b": (2 * N,), "r": (M, N), "R": (M, 2 * N), "i": (K, N, 2)}


def arrays(names, dtype=jnp.bfloat16):
    """Operands by their letters: normal numbers, of weights with a variance that keeps products near 1."""
    rng = np.random.default_rng(list(map(ord, names)))
    return [jnp.asarray((1.0 if name in "xhrR" else 0.25) * rng.standard_normal(SHAPES[name]), dtype) for name in names]


def equations_in(jaxpr):
    """Those of a program, and of its loops and calls, but not of what ours stand for."""
    for equation in jaxpr.eqns:
        yield equation
        if equation.primitive not in (rewritten_p, viewed_p):
            params = jax.tree.leaves(
                list(equation.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
            )
            for inner in params:
                if hasattr(inner, "eqns") or hasattr(inner, "jaxpr"):
                    yield from equations_in(getattr(inner, "jaxpr", inner))


def halves_of(fun, *operands):
    """The equations of halves in an optimized function."""
    jaxpr = jax.make_jaxpr(jax_moye.optimize(fun))(*operands).jaxpr
    found = [e for e in equations_in(jaxpr) if getattr(e.params.get("epilogue"), "halves", False)]
    assert all(e.primitive is viewed_p for e in found)
    return found


def of_both(activation=jax.nn.silu, axis=-1):
    """What a gated layer makes of the one product."""

    def fun(y):
        a, b = jnp.split(y, 2, axis)
        return activation(a) * b

    return fun


def sliced(y):
    return jax.nn.silu(y[..., :N]) * y[..., N:]


def turned(y):
    a, b = jnp.split(y, 2, -1)
    return a * jax.nn.gelu(b)


def indexed(y, axis=-2):
    a, b = (lax.index_in_dim(y, i, axis, keepdims=False) for i in range(2))
    return jax.nn.silu(a) * b


def unstacked(y):
    a, b = jnp.unstack(y, axis=1)
    return jax.nn.silu(a) * b


def reshaped(y):
    return y[..., :N].reshape(M, 3, N), y[..., N:].reshape(M, 3, N)


def total(fun):
    return lambda *operands: (fun(*operands).astype(jnp.promote_types(operands[0].dtype, jnp.float32)) ** 2).sum()


# name -> (operands, function, activation)
FORMS = {
    "split": ("xw", lambda x, w: of_both()(x @ w), "silu"),
    "slices": ("xw", lambda x, w: sliced(x @ w), "silu"),
    "the second half activated": ("xw", lambda x, w: turned(x @ w), "gelu_tanh"),
    "exact gelu": ("xw", lambda x, w: of_both(functools.partial(jax.nn.gelu, approximate=False))(x @ w), "gelu_erf"),
    "relu": ("xw", lambda x, w: of_both(jax.nn.relu)(x @ w), "relu"),
    "no activation": ("xw", lambda x, w: of_both(lambda a: a)(x @ w), "none"),
    "in a jit": ("xw", lambda x, w: jax.jit(of_both())(x @ w), "silu"),
    "all in a jit": ("xw", jax.jit(lambda x, w: jax.jit(of_both())(x @ w)), "silu"),
    "a dimension of two": ("xg", lambda x, g: indexed(jnp.einsum("td,dgf->tgf", x, g)), "silu"),
    "that stays": ("xg", lambda x, g: of_both(axis=1)(jnp.einsum("td,dgf->tgf", x, g)), "silu"),
    "that is in front": ("xg", lambda x, g: indexed(jnp.einsum("td,dgf->gtf", x, g), 0), "silu"),
    "in front of the weights": ("xo", lambda x, o: indexed(jnp.einsum("td,gdf->tgf", x, o)), "silu"),
    "of transposed weights": ("xq", lambda x, q: indexed(jnp.einsum("td,gfd->tgf", x, q)), "silu"),
    "unstacked": ("xw", lambda x, w: unstacked((x @ w).reshape(M, 2, N)), "silu"),
    "transposed weights": ("xt", lambda x, t: sliced(x @ t.T), "silu"),
    "rows of a batch": ("hw", lambda h, w: of_both()(h @ w), "silu"),
    "weights of a batch": ("hl", lambda h, w: of_both()(h @ w), "silu"),
    "a layer of a stack": ("xl", lambda x, w: of_both()(x @ w[1]), "silu"),
    "wide sums, made narrow": (
        "xw",
        lambda x, w: of_both()(jnp.matmul(x, w, preferred_element_type=jnp.float32).astype(x.dtype)),
        "silu",
    ),
}


def of_both_of(x, w):
    return of_both()(x @ w)


def mlp(x, w, d):
    return of_both_of(x, w) @ d
