"""Calls as nodes of XLA's CUDA graphs (ffi/record_cuda.h), where the runtime records and nobody forbids it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye._kernels import ffi
from tests.gpu.test_gpu_matmul import moye

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("gpu"),
    pytest.mark.skipif(not ffi.records_calls(), reason="forbidden, or the runtime cannot"),
]

K, LINKS = 256, 8


def nodes():
    from jax_moye import _moye_cuda

    return np.array(_moye_cuda.recorded_nodes())


def integers(rng, *shape):
    return jnp.asarray(rng.integers(-2, 3, shape), jnp.bfloat16)


def permutations(rng):
    """Matrices that permute columns: products are exact, and which operand a link has read shows."""
    orders = [rng.permutation(K) for _ in range(LINKS)]
    return orders, [jnp.asarray(np.eye(K)[:, order], jnp.bfloat16) for order in orders]


def chain_of_products(config=None):
    product = moye() if config is None else moye(config=config)

    @jax.jit
    def chain(x, matrices):
        for matrix in matrices:
            x = product(x, matrix)
        return x

    return chain


def permuted(x, orders):
    x = np.asarray(x, np.float64)
    for order in orders:
        x = x[:, order]
    return x


@pytest.mark.parametrize("rows", [1, 16, 64, 300])
def test_every_product_is_a_node_that_is_given_new_addresses(rows):
    rng = np.random.default_rng(rows)
    chain = chain_of_products()

    before, kept = nodes(), []
    for _ in range(6):  # results are kept, and operands are new: addresses change
        x, (orders, matrices) = integers(rng, rows, K), permutations(rng)
        kept.append((x, orders, chain(x, matrices)))
    for x, orders, found in kept:
        np.testing.assert_array_equal(np.asarray(found, np.float64), permuted(x, orders))
    created, updated, known = nodes() - before
    assert created >= LINKS
    assert updated >= known >= LINKS  # whose operands never come back: calls are not decoded for new addresses


@pytest.mark.parametrize(("alignment", "is_recorded"), [(16, True), (8, False)])
def test_kernels_that_need_l1_are_captured(alignment, is_recorded):
    """Attention's weights times values of 1500 tokens took 188 us as a node, and take 121 (docs/performance.md)."""
    rng = np.random.default_rng(3)
    config = next(
        one.name
        for one in jax_moye.configs()
        if one.kernel == "sm80_multistage" and one.dtype == "bf16" and one.alignment == alignment
    )
    x, (orders, matrices) = integers(rng, 64, K), permutations(rng)
    before, chain = nodes(), chain_of_products(config)
    for _ in range(6):  # the first runs launch each call by itself
        np.testing.assert_array_equal(np.asarray(chain(x, matrices), np.float64), permuted(x, orders))
    assert ((nodes() - before)[0] >= LINKS) == is_recorded


def test_operands_in_turns():
    """Nodes are given what they had before, with the addresses of these operands."""
    rng = np.random.default_rng(2)
    chain = chain_of_products()

    sets = [(integers(rng, 16, K), *permutations(rng)) for _ in range(3)]
    wanted = [permuted(x, orders) for x, orders, _ in sets]
    before, turns = nodes(), 20
    for turn in range(turns):
        x, _, matrices = sets[turn % 3]
        np.testing.assert_array_equal(np.asarray(chain(x, matrices), np.float64), wanted[turn % 3])
    _, updated, known = nodes() - before
    assert updated >= known >= LINKS * turns // 2


def test_an_operand_that_the_program_computes_is_waited_for():
    """Of matrices that lie in memory as the program was given them a kernel reads ahead; these it has to wait for."""
    rng = np.random.default_rng(0)
    product = moye()

    @jax.jit
    def chain(x, matrices):
        for i, matrix in enumerate(matrices):
            x = product(x, jnp.where(x[0, 0] > 1000, matrix, jnp.roll(matrix, i, 0)))
        return x

    for _ in range(10):
        x, (orders, matrices) = integers(rng, 16, K), permutations(rng)
        wanted = np.asarray(x, np.float64)
        for i, order in enumerate(orders):
            wanted = np.roll(wanted, -i, 1)[:, order]
        np.testing.assert_array_equal(np.asarray(chain(x, matrices), np.float64), wanted)


def test_operands_that_another_program_has_just_written():
    """The next program's kernels read the new matrices: its graph begins when the one before has ended."""
    rng = np.random.default_rng(1)
    chain = chain_of_products()
    orders, matrices = permutations(rng)
    shift = jax.jit(lambda matrices: [jnp.roll(matrix, 1, 1) for matrix in matrices], donate_argnums=0)
    x = integers(rng, 16, K)
    results, shifts = [], 30
    for _ in range(shifts):
        results.append(chain(x, matrices))
        matrices = shift(matrices)  # written where the program before has read them
    for i, found in enumerate(results):
        wanted = np.asarray(x, np.float64)
        for order in orders:
            wanted = np.roll(wanted[:, order], i, 1)
        np.testing.assert_array_equal(np.asarray(found, np.float64), wanted)
