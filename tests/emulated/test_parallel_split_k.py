"""sm90_parallel_split_k in the emulator: any number of parts of k, their sums in the workspace, what adds them up.

As in test_sm90.py, a row of our own with tiles small enough, the race checker on, and exact integers.
"""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import jax_moye
from jax_moye._kernels import ffi
from jax_moye.layout.kernels import kernel_layouts
from jax_moye.layout.kernels.wgmma import CHUNK
from tests.emulated.driver import build, run
from tests.emulated.emulate import emulate
from tests.emulated.problems import ORDERS, Problem, make_call, product

ROW = "{sm90_parallel_split_k, bf16, f32, {128, 64, 64}, 2, {2, 1}, 16}"
TF32 = "{sm90_parallel_split_k, tf32, f32, {64, 128, 32}, 3, {1, 1}, 16}"  # the first kernel is sm90_transposed
OUT_DTYPES = ("bf16", "f32", "f16")
# The program takes the number of parts from the environment: else k would have to be long for several.
PARTS_OF = "  static int parts_of(GemmArgs const& args) {\n"
GIVEN = '    if (char const* const given = std::getenv("PARTS")) return std::atoi(given);\n'

CONFIG = next(c for c in jax_moye.configs() if c.kernel == "sm90_parallel_split_k" and c.cluster == (1, 1))
PRODUCTS = next(
    c
    for c in jax_moye.configs()
    if (c.kernel, c.dtype, c.tile, c.cluster, c.alignment)
    == ("sm90_cooperative", CONFIG.dtype, CONFIG.tile, CONFIG.cluster, CONFIG.alignment)
)
TILE_M, TILE_N, TILE_K = CONFIG.tile
# One tile, of the second kernel too, and more k-tiles than it loads together: each of them is a part.
MANY = Problem(8, 30, 11 * TILE_K - 8)


@pytest.fixture(scope="module")
def program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("row"), ROW, "sm90_parallel_split_k.cuh", PARTS_OF, PARTS_OF + GIVEN)


@pytest.fixture
def check(program, monkeypatch):
    def check(parts, sizes, **options):
        monkeypatch.setenv("PARTS", str(parts))
        words = [f"{key}={value}" for key, value in options.items()]
        assert run(program, sizes, *words) == "ok", f"{parts} parts of {sizes} {' '.join(words)}"

    return check


@pytest.mark.parametrize("parts", (1, 2, 3, 9, 17))
def test_parts(check, parts):
    """Each with one k-tile, or more than there are stages, the last with fewer; as many CTAs as tiles, and fewer."""
    m, n, several = (130, 67, (1, 2, 4)) if parts < 9 else (20, 35, (1, 2))
    for turn, each in enumerate(several):
        k = 64 * (each * parts - each // 2) - (0, 3, 63)[turn]
        for batch, multiprocessors in ((1, 4), (3, 2)):
            order, out = ORDERS[(turn + batch) % 4], OUT_DTYPES[(turn + parts + batch) % 3]
            check(parts, (m, n, k), batch=batch, order=order, out=out, multiprocessors=multiprocessors)


@pytest.mark.parametrize("order", ORDERS)
def test_tails(check, order):
    """Sizes around those of tiles, of both kernels; rows of d that no vector divides."""
    for turn, sizes in enumerate(
        ((1, 1, 65), (7, 9, 130), (129, 63, 128), (255, 65, 190), (8, 128, 129), (9, 131, 70))
    ):
        out = OUT_DTYPES[(turn + ORDERS.index(order)) % 3]
        check(2, sizes, order=order, out=out, batch=1 + turn % 2, pad=turn % 3 * 5, d_pad=turn % 4)


@pytest.mark.parametrize("broadcast", ("a", "b"))
def test_batches(check, broadcast):
    """A matrix that all share, and modes of the batch that lie in the opposite order."""
    check(3, (70, 67, 150), broadcast=broadcast, batch=3)
    check(3, (20, 35, 150), batch=12, outer=2, middle=3, out="bf16")


@pytest.mark.parametrize("out", OUT_DTYPES)
def test_epilogue(check, out):
    """alpha, beta, c, bias, activation, residual and the pre-activation, once each, by the second kernel."""
    for parts, epilogue in itertools.product((1, 2, 9), (1, 2)):
        check(parts, (130, 61, 64 * parts + 40), epilogue=epilogue, out=out, batch=2)


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "eager", "threads": "lifo"},
        {"mode": "lazy", "threads": "random", "seed": 7},
        *({"mode": "random", "threads": "random", "seed": seed} for seed in range(1, 4)),
        {"mode": "lazy", "workers": 2},
        {"special": 1},
        {"launches": 3},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)
def test_schedules(check, options):
    check(3, (130, 67, 64 * 9), batch=2, multiprocessors=3, **options)


@pytest.fixture(scope="module")
def tf32_program(tmp_path_factory):
    return build(tmp_path_factory.mktemp("tf32"), TF32, "sm90_parallel_split_k.cuh", PARTS_OF, PARTS_OF + GIVEN)


@pytest.mark.parametrize("order", ("NN", "TN"))
@pytest.mark.parametrize(
    ("parts", "sizes", "options"),
    [
        (1, (72, 136, 100), {"batch": 2}),
        (2, (72, 136, 100), {"batch": 3, "multiprocessors": 2}),  # the second part's last k-tile is cut
        (3, (68, 132, 32 * 8), {"batch": 2, "out": "bf16"}),
        (9, (20, 36, 32 * 9 - 4), {"d_pad": 3}),
        (3, (20, 36, 160), {"batch": 12, "outer": 2, "middle": 3}),
        (3, (72, 68, 160), {"batch": 3, "broadcast": "a"}),
        (2, (72, 68, 160), {"batch": 2, "epilogue": 1, "out": "f32"}),
        (2, (72, 68, 160), {"batch": 2, "epilogue": 2, "out": "bf16"}),
        (3, (132, 68, 32 * 9), {"mode": "random", "threads": "random", "seed": 3, "multiprocessors": 3}),
    ],
    ids=str,
)
def test_tf32(tf32_program, monkeypatch, order, parts, sizes, options):
    """Sums that the first kernel stores as they are, where those of a part go."""
    monkeypatch.setenv("PARTS", str(parts))
    words = [f"{key}={value}" for key, value in (options | {"order": order}).items()]
    assert run(tf32_program, sizes, *words) == "ok", f"{parts} parts of {sizes} {' '.join(words)}"


def strides_of(call) -> tuple:
    return call.a_strides, call.b_strides, call.d_strides


def asked_for(problem: Problem, out_dtype: str = "bf16") -> tuple[int, int]:
    """Parts, and bytes of workspace."""
    call = make_call(CONFIG, problem, out_dtype)
    arguments = CONFIG.name, call.sizes, strides_of(call), out_dtype
    return ffi.k_parts(*arguments), ffi.workspace_bytes(*arguments)


@pytest.mark.parametrize(
    ("problem", "several"),
    [
        (MANY, True),
        (Problem(20, 31, MANY.k, "TN", batch=3), True),
        (Problem(1, 1, MANY.k, "TT"), True),
        (Problem(20, 31, TILE_K), False),  # one k-tile
        (Problem(20, 31, 0), False),
        (Problem(200, 300, 3 * TILE_K), False),  # few: a second kernel would take longer
        (Problem(12 * TILE_M, 11 * TILE_N, 2 * TILE_K), False),  # as many tiles as multiprocessors
    ],
    ids=str,
)
def test_parts_and_workspace(problem, several):
    """f32 sums of each part, in rows of whole vectors; none where k is whole."""
    parts, nbytes = asked_for(problem)
    assert (parts > 1) == several
    assert nbytes == (parts * problem.batch * problem.m * -(-problem.n // 4) * 16 if several else 0)
    assert asked_for(problem, "f32") == (parts, nbytes)


def test_no_part_is_empty():
    found = [asked_for(Problem(8, 8, k_tiles * TILE_K))[0] for k_tiles in range(1, 40)]
    assert found[0] == 1 < found[-1]
    for k_tiles, parts in enumerate(found, 1):
        each = -(-k_tiles // parts)
        assert -(-k_tiles // each) == parts


def test_the_work_of_a_product():
    """As many multiplications and loads as without parts, a CTA for each part's tile, then those that add them up."""
    found = {}
    for config in (CONFIG, PRODUCTS):
        call = make_call(config, MANY, "bf16")
        report = emulate(config, call, count_transactions=True, multiprocessors=132)
        assert report["ok"], report["message"]
        np.testing.assert_array_equal(call.result(), product(call.values_a, call.values_b).astype(call.d.dtype))
        found[config] = report["counters"]
    parts, _ = asked_for(MANY)
    assert parts > 8
    split, whole = found[CONFIG], found[PRODUCTS]
    for name in ("wgmma", "tma_loads", "tma_load_bytes"):
        assert split[name] == whole[name] > 0
    assert (split["launches"], whole["launches"]) == (2, 1)
    assert (split["ctas"], whole["ctas"]) == (parts + 1, 1)
    row_bytes = -(-MANY.n // 4) * 16
    assert split["tma_store_bytes"] == parts * MANY.m * row_bytes
    assert split["global_load_bytes"] == split["tma_store_bytes"]
    assert split["global_store_bytes"] == MANY.m * MANY.n * 2


def test_the_order_of_the_sums():
    """Part 0's first: to the last bit what sm90_cooperative makes of the parts of k, added up one by one in f32."""
    call = make_call(CONFIG, MANY, "f32", values="normal")
    assert emulate(CONFIG, call)["ok"]
    expected = np.zeros((1, MANY.m, MANY.n), np.float32)
    parts, _ = asked_for(MANY, "f32")
    step = math.ceil(math.ceil(MANY.k / TILE_K) / parts) * TILE_K
    for begin in range(0, MANY.k, step):
        part = make_call(PRODUCTS, Problem(MANY.m, MANY.n, min(step, MANY.k - begin)), "f32")
        part.a, part.a_strides = call.a[begin * call.a_strides[2] :], call.a_strides
        part.b, part.b_strides = call.b[begin * call.b_strides[2] :], call.b_strides
        report = emulate(PRODUCTS, part)
        assert report["ok"], report["message"]
        expected += part.result()
    np.testing.assert_array_equal(call.result(), expected)


@pytest.mark.parametrize(
    "config",
    [c for c in jax_moye.configs() if c.kernel == CONFIG.kernel and c.dtype != "tf32"],  # of sm90_cooperative
    ids=lambda config: config.name,
)
def test_odd_rows_of_one_part(config):
    """The first kernel stores them: an element a lane, or shifted into whole sectors where the layouts say so."""
    tile_m, tile_n, _ = config.tile
    m, n = tile_m + 24, tile_n + 37
    call = make_call(config, Problem(m, n, TILE_K), "bf16")
    report = emulate(config, call, count_transactions=True)
    assert report["ok"], report["message"]
    np.testing.assert_array_equal(call.result(), product(call.values_a, call.values_b).astype(call.d.dtype))
    layouts = kernel_layouts(config, "NT")
    requests = m * sum(-(-min(layouts.columns, n - first) // CHUNK) for first in range(0, n, layouts.columns))
    assert (report["counters"]["global_store_requests"] == requests) != layouts.shifts
