"""Operands whose lines TMA cannot read: XLA pads them in front of the kernel."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python import gated
from python.support import integers

import jax_moye
from jax_moye._kernels.configs import facts_of
from jax_moye._primitives.padding import padded
from jax_moye._selection.capability import why_not_built
from jax_moye._selection.problem import make_problem
from jax_moye._selection.view import View

CONFIGS = [
    config
    for config in jax_moye.configs()
    if facts_of(config.kernel).pads and config.dtype == "bf16" and config.tile[0] * config.tile[1] <= 128 * 128
]
# One that is in this build for CUDA, too, if there is any: explain says of others that they are not.
PADDING = min(CONFIGS, key=lambda config: (why_not_built(config, "cuda") is not None, config.name)).name


def arrays(*shapes):
    rng = np.random.default_rng(0)
    return [jnp.asarray(integers(rng, shape, np.float32), jnp.bfloat16) for shape in shapes]


def exact(x):
    return np.asarray(x, np.float64)


def bf16(x):
    return exact(jnp.asarray(x, jnp.bfloat16))


def text_of(function, *args):
    return jax.jit(function).lower(*args).as_text()


def workspaces(text):
    return [int(size) for size in re.findall(r"tensor<(\d+)xui8>\)?$", text, re.MULTILINE)]


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
@pytest.mark.parametrize("batch", [(), (3,)], ids=["one", "three"])
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_each_order(config, order, batch):
    """Both operands have lines of odd lengths, whichever mode they are along: none is packed by us."""
    m, n, k = 37, 51, 43
    a, b = arrays(
        (*batch, *((m, k) if order[0] == "N" else (k, m))), (*batch, *((k, n) if order[1] == "N" else (n, k)))
    )

    def product(a, b):
        a = a if order[0] == "N" else a.swapaxes(-1, -2)
        b = b if order[1] == "N" else b.swapaxes(-1, -2)
        return jax_moye.matmul(a, b, config=config.name, interpret=True)

    text = text_of(product, a, b)
    assert text.count("stablehlo.pad") == 2
    assert workspaces(text) == [0]
    a_, b_ = (x if of == "N" else x.swapaxes(-1, -2) for x, of in zip((exact(a), exact(b)), order, strict=True))
    np.testing.assert_array_equal(exact(jax.jit(product)(a, b)), bf16(a_ @ b_))


def test_only_what_tma_cannot_read():
    a, b = arrays((40, 48), (48, 51))

    def product(a, b):
        return jax_moye.matmul(a, b, config=PADDING, interpret=True)

    assert text_of(product, a, b).count("stablehlo.pad") == 1
    assert text_of(product, a, b[:, :48]).count("stablehlo.pad") == 0
    assert text_of(product, a, b[:, :0]).count("stablehlo.pad") == 0


def test_what_two_products_read_is_padded_once():
    """As the cotangent of logits is, of a vocabulary with 50257 tokens."""
    x, y, w = arrays((40, 51), (40, 48), (48, 51))

    def products(x, y, w):
        x = x * 2
        of_w = jax_moye.matmul(y.T, x, config=PADDING, interpret=True)
        return of_w, jax_moye.matmul(x, w.T, config=PADDING, interpret=True)

    compiled = jax.jit(products).lower(x, y, w).compile().as_text()
    assert len(re.findall(r" pad\(", compiled)) == 2  # of x, and of w
    of_w, of_y = jax.jit(products)(x, y, w)
    np.testing.assert_array_equal(exact(of_w), bf16(2 * exact(y).T @ exact(x)))
    np.testing.assert_array_equal(exact(of_y), bf16(2 * exact(x) @ exact(w).T))


def test_the_first_part_of_an_array():
    """Whose other elements are no whole lines: as parameters in one flat array are."""
    (flat,) = arrays((355,))
    problem = make_problem(
        "mk,kn->mn", (30, 11), (11, 48), "bf16", "bf16", views=(View((355,), (30, 11), (11, 1)), None)
    )
    sizes = (*problem.batch_sizes, problem.m, problem.k)
    lines = padded(flat, sizes, problem.strides["a"], problem.padded.strides["a"])
    assert lines.shape == (30, 16)
    np.testing.assert_array_equal(exact(lines)[:, :11], exact(flat)[:330].reshape(30, 11))
    assert not exact(lines)[:, 11:].any()


def test_a_pair():
    """Both right-hand operands, which lie alike."""
    case = gated.Gated((33, 48, 43), "NT")
    stored = case.operands(jnp.bfloat16, integers=True)
    layer = gated.computed_by(min(gated.CONFIGS, key=lambda config: config.tile), case, stored, interpret=True)
    text = layer.lower(*stored).as_text()
    assert text.count(f"custom_call @{gated.TARGET}") == 1
    assert text.count("stablehlo.pad") == 3
    for found, right in zip(layer(*stored), case.exact(stored), strict=True):
        np.testing.assert_array_equal(exact(found), bf16(right))


def test_explain_says_so():
    a, b = arrays((40, 48), (48, 51))
    for columns, is_padded in ((51, True), (48, False)):
        said = str(jax_moye.explain(lambda a, b: jax_moye.matmul(a, b, config=PADDING), a, b[:, :columns]))
        assert ("XLA pads lines in front of the kernel" in said) == is_padded
