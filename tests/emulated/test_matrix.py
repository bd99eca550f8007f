"""Every config in the emulator: exact integers, the race checker on, guarded and poisoned memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import jax_moye
from tests.emulated.emulate import emulate
from tests.emulated.problems import (
    ORDERS,
    Problem,
    componentwise_bound,
    covering_problems,
    make_call,
    order_for,
    product,
    sampled_problems,
    size_classes,
    skip_other_orders,
)

CONFIGS = list(jax_moye.configs())
NAMES = [config.name for config in CONFIGS]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=NAMES)


def configs_for_every_pair() -> dict[str, int]:
    """{name: turn} of one config per kernel and alignment, the smallest of most orders; turn: which of its kernel.

    Every pair of sizes is 300 problems and two seconds or more: for the whole table minutes. Which
    elements are loaded and stored is decided by the kernel and its vectors; dtypes, tiles and clusters are constants of
    the same code, and the sizes around theirs meet it one at a time, in each order with others.
    """
    smallest: dict[tuple[str, int], object] = {}

    def rank(config) -> tuple[int, int]:
        return -len(config.orders), config.tile[0] * config.tile[1]

    for config in CONFIGS:
        known = smallest.setdefault((config.kernel, config.alignment), config)
        if rank(config) < rank(known):
            smallest[config.kernel, config.alignment] = config
    kernels: dict[str, list[str]] = {}
    for (kernel, _), config in sorted(smallest.items(), key=lambda item: item[0]):
        kernels.setdefault(kernel, []).append(config.name)
    return {name: turn for names in kernels.values() for turn, name in enumerate(names)}


EVERY_PAIR = configs_for_every_pair()


def check_exact(config, problem: Problem, out_dtype: str | None = None, **options) -> None:
    out_dtype = out_dtype or config.out_dtypes[0]
    call = make_call(config, problem, out_dtype)
    report = emulate(config, call, **options)
    assert report["ok"], f"{config.name} {problem}: {report['message']}"
    # Sums of products of integers in [-2, 2] are exact in every accumulator, f16 too: K is 512 at most. In bf16 they
    # are up to 256; larger ones round once, as here.
    expected = np.matmul(call.values_a.astype(np.float64), call.values_b.astype(np.float64)).astype(call.d.dtype)
    np.testing.assert_array_equal(
        call.result().astype(np.float64), expected.astype(np.float64), err_msg=f"{config.name} {problem}"
    )


@every_config
@pytest.mark.parametrize("order", ORDERS)
def test_sizes(config, order):
    """Sizes around those of tiles, stages and vectors, padded and batched in turn: every pair of them, or each."""
    skip_other_orders(config, order)
    turn = EVERY_PAIR.get(config.name)
    problems = sampled_problems(config, order) if turn is None else covering_problems(config, order, turn)
    for index, problem in enumerate(problems):
        check_exact(config, problem, config.out_dtypes[index % len(config.out_dtypes)])


@pytest.mark.parametrize("config", [config for config in CONFIGS if config.name in EVERY_PAIR], ids=lambda c: c.name)
def test_sizes_are_paired(config):
    """test_sizes runs each M with each N and each K, and each N with each K; each of them in each order it takes."""
    sizes = dict(zip("mnk", size_classes(config), strict=True))
    in_order = {order: covering_problems(config, order, EVERY_PAIR[config.name]) for order in config.orders}
    for one, other in ("mn", "mk", "nk"):
        found = {(getattr(x, one), getattr(x, other)) for problems in in_order.values() for x in problems}
        assert found == set(itertools.product(sizes[one], sizes[other]))
    for problems in in_order.values():
        assert all({getattr(problem, mode) for problem in problems} == set(sizes[mode]) for mode in "mnk")
        assert {problem.batch for problem in problems} == {1, 2}
        assert {problem.pad for problem in problems} == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("orders", [("NN", "NT"), ("TN", "TT"), ("NN", "TN"), ("NT", "TT")], ids="-".join)
def test_sizes_are_paired_with_an_operand_in_each_order(orders):
    """A kernel with several alignments meets each M with each N while one operand's order is fixed."""
    kernels: dict[str, list] = {}
    for config in CONFIGS:
        if config.name in EVERY_PAIR:
            kernels.setdefault(config.kernel, []).append(config)
    for kernel, configs in kernels.items():
        if len(configs) == 1:
            continue
        ms, ns, _ = (set.intersection(*map(set, sizes)) for sizes in zip(*map(size_classes, configs), strict=True))
        found = {
            (problem.m, problem.n)
            for config in configs
            for order in orders
            for problem in covering_problems(config, order, EVERY_PAIR[config.name])
        }
        assert set(itertools.product(ms, ns)) <= found, kernel


def test_sizes_are_sampled():
    """What test_sizes runs for the other configs holds each M, N and K in each order, and few pairs twice."""
    for config in CONFIGS:
        classes, pairs = size_classes(config), set()
        for order in ORDERS:
            problems = sampled_problems(config, order)
            for mode, sizes in zip("mnk", classes, strict=True):
                assert {getattr(problem, mode) for problem in problems} == set(sizes)
            pairs |= {(problem.m, problem.n) for problem in problems}
        assert len(pairs) > 3 * max(map(len, classes)), config.name
        assert {problem.batch for problem in problems} == {1, 2}
        assert len({problem.pad for problem in problems}) == 5


def test_every_kernel_has_a_config_with_every_pair():
    assert {(c.kernel, c.alignment) for c in CONFIGS if c.name in EVERY_PAIR} == {
        (c.kernel, c.alignment) for c in CONFIGS
    }


@every_config
@pytest.mark.parametrize("order", ORDERS)
def test_orders(config, order):
    """Each order for itself, with every output dtype, one tile and a bit in each direction."""
    skip_other_orders(config, order)
    tile_m, tile_n, tile_k = config.tile
    for out_dtype in config.out_dtypes:
        for k in (tile_k * config.stages + 3, 5):
            check_exact(config, Problem(tile_m + 3, tile_n + 5, k, order, pad=1), out_dtype)


@every_config
def test_batch(config):
    for batch in (1, 2, 5):
        check_exact(config, Problem(17, 33, 40, order_for(config, "NT"), batch=batch))


@every_config
def test_broadcast_batch(config):
    """A batch stride of 0 reads one matrix for the whole batch."""
    problem = Problem(17, 33, 40, order_for(config, "NN"), batch=3)
    call = make_call(config, problem, config.out_dtypes[0])
    call.a_strides = (0, *call.a_strides[1:])
    report = emulate(config, call)
    assert report["ok"], report["message"]
    expected = np.matmul(call.values_a[:1].astype(np.float64), call.values_b.astype(np.float64))
    np.testing.assert_array_equal(call.result().astype(np.float64), expected.astype(call.d.dtype).astype(np.float64))


@every_config
def test_transposed_output(config):
    check_exact(config, Problem(35, 66, 41, order_for(config, "TN"), d_transposed=True))


@every_config
@pytest.mark.parametrize("sizes", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0)])
def test_empty(config, sizes):
    check_exact(config, Problem(*sizes, order_for(config, "NN")))


@every_config
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "eager"},
        {"mode": "lazy", "order": "lifo"},
        {"mode": "lazy", "order": "random", "seed": 7},
        {"mode": "random", "order": "random", "seed": 1},
        {"mode": "random", "order": "random", "seed": 2},
        {"mode": "lazy", "workers": 2},
    ],
    ids=str,
)
def test_schedules(config, options):
    """The answer does not depend on when asynchronous copies land or which thread runs first."""
    tile_m, tile_n, tile_k = config.tile
    for order in ("NN",) if len(config.orders) == len(ORDERS) else config.orders:
        problem = Problem(tile_m + 1, tile_n + 2, (config.stages + 1) * tile_k + 3, order, pad=3)
        check_exact(config, problem, **options)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.any_stride], ids=[c.name for c in CONFIGS if c.any_stride])
def test_any_stride(config):
    """Rows of the table without a vector load take operands in which no mode is contiguous: here batch is innermost."""
    problem = Problem(19, 21, 23, "NN", batch=3)
    call = make_call(config, problem, config.out_dtypes[0])
    a, b = call.values_a, call.values_b
    call.a = np.ascontiguousarray(np.moveaxis(a, 0, -1)).reshape(-1)
    call.a_strides = (1, 23 * 3, 3)
    call.b = np.ascontiguousarray(np.moveaxis(b, 0, -1)).reshape(-1)
    call.b_strides = (1, 3, 21 * 3)
    call.d_strides = (1, 21 * 3, 3)
    report = emulate(config, call)
    assert report["ok"], report["message"]
    expected = np.matmul(a.astype(np.float64), b.astype(np.float64)).astype(call.d.dtype)
    np.testing.assert_array_equal(call.result().astype(np.float64), expected.astype(np.float64))


@every_config
@pytest.mark.parametrize("order", ("NN", "NT", "TT"))
def test_componentwise_bound(config, order):
    """Normal data against float64, element by element."""
    skip_other_orders(config, order)
    for out_dtype in config.out_dtypes:
        call = make_call(config, Problem(70, 66, 301, order), out_dtype, values="normal")
        report = emulate(config, call)
        assert report["ok"], report["message"]
        exact = product(call.values_a, call.values_b)
        error = np.abs(call.result().astype(np.longdouble) - exact)
        assert (error <= componentwise_bound(config, call.values_a, call.values_b, exact, out_dtype)).all()


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.dtype == "s8"], ids=lambda config: config.name)
def test_integers_wrap_around(config):
    """Sums beyond int32 are those modulo 2^32, as jnp.matmul's are: nothing saturates."""
    k = 2**31 // 128**2 + 16
    call = make_call(config, Problem(1, 2, k, "NT"), "s32")
    for memory, values in ((call.a, call.values_a), (call.b, call.values_b)):
        memory[...] = values[...] = -128
    report = emulate(config, call)
    assert report["ok"], report["message"]
    expected = product(call.values_a, call.values_b)
    assert (expected > np.iinfo(np.int32).max).all()
    np.testing.assert_array_equal(call.result(), expected.astype(np.int32))  # NumPy's conversion wraps


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.dtype == "tf32"], ids=lambda config: config.name)
@pytest.mark.parametrize("steps", [1, 0.25, 0.5, 0.75, 1.5, -0.75])
def test_tf32_multiplies_what_is_nearest(config, steps):
    """Operands have ten bits behind the point, and are rounded to those, ties to even: nothing is cut off."""
    call = make_call(config, Problem(16, 16, 8, order_for(config, "NT")), "f32")
    for memory in (call.a, call.b):
        memory[...] = 1 + steps * 2.0**-10
    assert emulate(config, call)["ok"]
    np.testing.assert_array_equal(call.result(), 8 * np.float32(1 + round(steps) * 2.0**-10) ** 2)


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.dtype != "s8"], ids=lambda config: config.name)
def test_nan_and_infinity(config):
    """What is in one row of a and one column of b reaches that row and column of d, and nothing else.

    (e4m3 has no infinity: it becomes NaN on its way into the operand.)
    """
    problem = Problem(20, 18, 40, order_for(config, "NN"))
    call = make_call(config, problem, config.out_dtypes[0])
    a = call.values_a.copy()
    a[0, 3, 7], a[0, 5, 39] = np.nan, np.inf
    fresh = make_call(config, problem, config.out_dtypes[0])
    pitch = fresh.a_strides[1]
    fresh.a[3 * pitch + 7], fresh.a[5 * pitch + 39] = np.nan, np.inf
    report = emulate(config, fresh)
    assert report["ok"], report["message"]
    with np.errstate(invalid="ignore"):
        expected = np.matmul(a.astype(np.float64), fresh.values_b.astype(np.float64))
    np.testing.assert_array_equal(fresh.result().astype(np.float64), expected.astype(fresh.d.dtype).astype(np.float64))
