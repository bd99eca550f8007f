"""`jax_moye.matmul` on a GPU, under jit: every compiled kernel, and what only a GPU's runtime does."""

from __future__ import annotations

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax.test_util import check_grads
from this_gpu import configs_here

import jax_moye
from jax_moye import _compat
from jax_moye._kernels.configs import facts_of
from jax_moye._kernels.dtypes import DTYPES, FLOAT8, numpy_dtypes
from tests.emulated.problems import NUMPY_DTYPES, UNIT, gpu_accumulation_bound, order_for, skip_other_orders

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIGS = [pytest.param(config, id=config.name) for config in jax_moye.configs()]
GENERAL = "sm80_multistage_bf16_128x128x32_s4_a16"


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def moye(**options):
    return functools.partial(jax_moye.matmul, implementation="moye", **options)


def natural(config) -> str:
    """An output dtype that holds sums of integers: the operands' own, int32 of int8, f32 of 8-bit floats and TF32."""
    return config.dtype if config.dtype in config.out_dtypes else config.out_dtypes[-1]


def of_b(config) -> str:
    """The dtype of b, as NUMPY_DTYPES names it."""
    return DTYPES[config.dtype].of_b or config.dtype


def integers(rng, shape, dtype) -> np.ndarray:
    """In [-2, 2]: their products and sums are exact in every dtype of accumulators."""
    return rng.integers(-2, 3, shape).astype(NUMPY_DTYPES[dtype])


def exact(a: np.ndarray, b: np.ndarray, out_dtype: str) -> np.ndarray:
    """The product of integers, rounded once to the output's dtype."""
    return (a.astype(np.float64) @ b.astype(np.float64)).astype(NUMPY_DTYPES[out_dtype])


def assert_bits(found: jax.Array, expected: np.ndarray, message: str) -> None:
    found = np.asarray(found)
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    # Compared as numbers: a sum of no terms may be either zero.
    wrong = np.argwhere(~(found.astype(np.float64) == expected.astype(np.float64)))
    assert not len(wrong), f"{message}: {len(wrong)} of {found.size} elements are wrong, the first at {wrong[0]}"


def aligned(config, order: str, m: int, n: int, k: int) -> tuple[int, int, int]:
    """The sizes, those of contiguous dimensions rounded up to what the row's loads divide."""
    unit = max(1, config.alignment // NUMPY_DTYPES[config.dtype].itemsize)

    def round_up(size: int, contiguous: bool) -> int:
        return -(-size // unit) * unit if contiguous else size

    return (
        round_up(m, order[0] == "T"),
        round_up(n, order[1] == "N"),
        round_up(k, order[0] == "N" or order[1] == "T"),
    )


def stored(x: np.ndarray, letter: str) -> np.ndarray:
    """The last two dimensions as they are in memory; `in_order` takes them back."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)) if letter == "T" else x


def in_order(order: str, matmul):
    """The function of operands that `stored` gave: the kernel reads them in `order`, and nothing is transposed."""

    def turned(x, letter: str):
        return jnp.swapaxes(x, -1, -2) if letter == "T" else x

    return lambda a, b: matmul(turned(a, order[0]), turned(b, order[1]))


def poison() -> None:
    """Leaves NaN in device memory that the next outputs are likely to be in: what a kernel misses to write shows."""
    arrays = [jnp.full((1 << shift,), jnp.nan, jnp.float32) for shift in range(8, 20)]
    jax.block_until_ready(arrays)
    for array in arrays:
        array.delete()


def sizes_for(config, order: str) -> list[tuple[int, int, int]]:
    """(M, N, K) around the tile and far from it, with contiguous dimensions that the config's loads divide."""
    tile_m, tile_n, tile_k = config.tile
    ms = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, tile_m - 1, tile_m, tile_m + 1, 2 * tile_m + 3]
    ns = [1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 128, 129, tile_n - 1, tile_n, tile_n + 1, 2 * tile_n + 3]
    ks = [0, 1, 2, 7, 8, 15, 16, 17, 31, tile_k - 1, tile_k, tile_k + 1]
    ks += [config.stages * tile_k, (config.stages + 1) * tile_k - 1]
    sizes = []
    for i, m in enumerate(ms):  # each M once, each N once, every K
        n, k = ns[(7 * i + 3) % len(ns)], ks[i % len(ks)]
        sizes.append(aligned(config, order, m, n, k))
    if facts_of(config.kernel).splits_k_by_sizes:  # with k long enough for several parts, the last one shorter
        sizes += [aligned(config, order, m, n, k) for m, n, k in ((200, 264, 8200), (3, 2 * tile_n + 3, 5001))]
    if len(config.orders) < 4 and config.alignment < 16:  # a matrix of one column is as good as transposed
        sizes = [size for size in sizes if size[1] > 1 and size[2] != 1]
    if DTYPES[config.dtype].of_b:  # a product by one column is computed as its transpose: by a config of the other pair
        sizes = [size for size in sizes if size[1] > 1]
    return sorted(set(sizes))


@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_exact_integers(config, order):
    skip_other_orders(config, order)
    rng = np.random.default_rng(0)
    sizes = sizes_for(config, order)
    if config.kernel not in ("sm80_multistage", "simt_tiled"):  # gemm_check.cu runs every row on all kinds of sizes
        sizes = sizes[config.orders.index(order) :: len(config.orders)]
    a = [integers(rng, (m, k), config.dtype) for m, _, k in sizes]
    b = [integers(rng, (k, n), of_b(config)) for _, n, k in sizes]
    stored_a, stored_b = [stored(x, order[0]) for x in a], [stored(x, order[1]) for x in b]
    out_dtype = config.out_dtypes[-1]

    @jax.jit  # one program for all sizes: XLA compiles each once
    def products(a, b):
        matmul = in_order(order, moye(config=config.name, preferred_element_type=NUMPY_DTYPES[out_dtype]))
        return [matmul(x, y) for x, y in zip(a, b, strict=True)]

    poison()
    for size, found, x, y in zip(sizes, products(stored_a, stored_b), a, b, strict=True):
        assert_bits(found, exact(x, y, out_dtype), f"{config.name} {order} {size}")


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_every_output_dtype_and_batches(config):
    rng = np.random.default_rng(1)
    order = order_for(config)
    m, n, k = aligned(config, order, 72, 136, 40)
    a, b = integers(rng, (3, m, k), config.dtype), integers(rng, (3, k, n), of_b(config))
    shared = integers(rng, (k, n), of_b(config))
    on_a, on_b, on_shared = stored(a, order[0]), stored(b, order[1]), stored(shared, order[1])
    for out_dtype in config.out_dtypes:
        matmul = jax.jit(in_order(order, moye(config=config.name, preferred_element_type=NUMPY_DTYPES[out_dtype])))
        poison()
        assert_bits(matmul(on_a, on_b), exact(a, b, out_dtype), f"{config.name} batched to {out_dtype}")
        assert_bits(matmul(on_a, on_shared), exact(a, shared, out_dtype), f"{config.name} shared b to {out_dtype}")
        assert_bits(matmul(on_a[0], on_b[0]), exact(a[0], b[0], out_dtype), f"{config.name} to {out_dtype}")


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_one_hot_operands_find_permutations(config):
    rng = np.random.default_rng(2)
    order = order_for(config)
    m, n, k = aligned(config, order, 136, 152, 72)
    matmul = jax.jit(in_order(order, moye(config=config.name, preferred_element_type=NUMPY_DTYPES[natural(config)])))
    for _ in range(16):
        i, j, inner = rng.integers(m), rng.integers(n), rng.integers(k)
        a, b = np.zeros((m, k), NUMPY_DTYPES[config.dtype]), np.zeros((k, n), NUMPY_DTYPES[of_b(config)])
        a[i, inner] = b[inner, j] = 1
        found = np.asarray(matmul(stored(a, order[0]), stored(b, order[1]))).astype(np.float64)
        assert found[i, j] == 1, f"{config.name}: the one at {(i, j)} through k = {inner} is at {np.argwhere(found)}"
        assert np.count_nonzero(found) == 1


@pytest.mark.parametrize("config", CONFIGS, indirect=True)
def test_error_bound_on_normal_data(config):
    rng = np.random.default_rng(3)
    order = order_for(config)
    m, n, k = aligned(config, order, 264, 392, 2048)
    dtypes, out_dtype = numpy_dtypes(config.dtype), natural(config)
    if config.dtype == "s8":
        a, b = (rng.integers(-128, 128, shape, np.int8) for shape in ((m, k), (k, n)))
    else:
        shapes = (m, k), (k, n)
        a, b = (rng.standard_normal(shape).astype(dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    matmul = in_order(order, moye(config=config.name, preferred_element_type=NUMPY_DTYPES[out_dtype]))
    found = np.asarray(jax.jit(matmul)(stored(a, order[0]), stored(b, order[1]))).astype(np.float64)
    exact_product = a.astype(np.float64) @ b.astype(np.float64)
    # The reference of f64 errs as much as an FMA each.
    accumulated = gpu_accumulation_bound(config, a, b, _compat.cuda_arch()) * (2 if config.dtype == "f64" else 1)
    bound = accumulated + UNIT[out_dtype] * (abs(exact_product) + accumulated)
    assert np.all(abs(found - exact_product) <= bound)  # and no NaN


EIGHT_BIT_SM90 = [
    pytest.param(config, id=config.name)
    for config in jax_moye.configs()
    if config.kernel.startswith("sm90") and config.dtype in FLOAT8
]


@pytest.mark.parametrize("config", EIGHT_BIT_SM90, indirect=True)
def test_8_bit_floats_are_summed_in_f32_or_fast(config):
    # Ones that a tensor core alone stops to count when its sum has all of its some 14 bits; 128 of them it can.
    m, n, k = 32, 48, 2**15 + 16
    a, b = np.ones((m, k), NUMPY_DTYPES[config.dtype]), np.ones((n, k), NUMPY_DTYPES[of_b(config)])
    matmul = moye(config=config.name, preferred_element_type=np.float32)
    found = jax.jit(in_order("NT", matmul))(a, b)
    if config.accumulator == "f32":
        assert_bits(found, np.full((m, n), k, np.float32), config.name)
    else:
        assert (np.asarray(found) < k).all()


def test_gpu_and_emulator_agree_bit_by_bit():
    rng = np.random.default_rng(4)
    cpu = jax.devices("cpu")[0]
    for config in configs_here():
        order = order_for(config)
        m, n, k = aligned(config, order, 136, 200, 72)
        a = stored(integers(rng, (m, k), config.dtype), order[0])
        b = stored(integers(rng, (k, n), of_b(config)), order[1])
        matmul = moye(config=config.name, preferred_element_type=NUMPY_DTYPES[natural(config)])
        on_gpu = jax.jit(in_order(order, matmul))(a, b)
        interpreted = in_order(order, functools.partial(matmul, interpret=True))
        emulated = jax.jit(interpreted)(jax.device_put(a, cpu), jax.device_put(b, cpu))
        assert emulated.devices() == {cpu}
        assert np.asarray(on_gpu).tobytes() == np.asarray(emulated).tobytes(), config.name


def test_the_same_bits_from_run_to_run():
    a, b = (jax.random.normal(key, (1000, 1000), jnp.bfloat16) for key in jax.random.split(jax.random.key(0)))
    matmul = jax.jit(moye())
    first = np.asarray(matmul(a, b)).tobytes()
    assert all(np.asarray(matmul(a, b)).tobytes() == first for _ in range(100))


def test_command_buffers():
    # XLA records five or more launches in a row into a CUDA graph and replays it. The chain's result is known exactly:
    # rotations by one place.
    n = 256
    rotation = np.roll(np.eye(n), 1, axis=0).astype(ml_dtypes.bfloat16)

    @jax.jit
    def chain(x, r):
        matmul = moye(config=GENERAL)
        for _ in range(8):
            x = matmul(r, x)
        return x

    rng = np.random.default_rng(5)
    for _ in range(50):  # other buffers each time: the graph is updated, then replayed
        x = integers(rng, (n, n), "bf16")
        assert np.array_equal(np.asarray(chain(x, rotation)), np.roll(x, 8, axis=0))


def test_many_kernels_in_one_program():
    # Five and more different kernels in one graph, without dependences between them.
    rng = np.random.default_rng(6)
    rows = configs_here()
    orders = [order_for(config) for config in rows]
    sizes = [aligned(config, order, 96, 80, 64) for config, order in zip(rows, orders, strict=True)]
    numbers = [
        (integers(rng, (m, k), config.dtype), integers(rng, (k, n), of_b(config)))
        for config, (m, n, k) in zip(rows, sizes, strict=True)
    ]
    operands = [(stored(a, o[0]), stored(b, o[1])) for (a, b), o in zip(numbers, orders, strict=True)]

    @jax.jit
    def products(operands):
        return [
            in_order(order, moye(config=c.name, preferred_element_type=NUMPY_DTYPES[natural(c)]))(a, b)
            for c, order, (a, b) in zip(rows, orders, operands, strict=True)
        ]

    for _ in range(20):
        for config, (a, b), found in zip(rows, numbers, products(operands), strict=True):
            assert_bits(found, exact(a, b, natural(config)), config.name)


def test_donation():
    n = 512
    rotation = jnp.asarray(np.roll(np.eye(n), 1, axis=0), jnp.bfloat16)
    step = jax.jit(lambda x: moye()(rotation, x), donate_argnums=0)
    start = integers(np.random.default_rng(7), (n, n), "bf16")
    x = jnp.asarray(start)
    for _ in range(100):
        previous, x = x, step(x)
    assert np.array_equal(np.asarray(x), np.roll(start, 100, axis=0))
    assert previous.is_deleted()


def test_a_loop_on_the_device():
    n = 128
    rotation = jnp.asarray(np.roll(np.eye(n), 1, axis=0), jnp.float16)
    start = integers(np.random.default_rng(8), (n, n), "f16")
    found = jax.jit(lambda x: jax.lax.fori_loop(0, 20, lambda _, x: moye()(rotation, x), x))(start)
    assert np.array_equal(np.asarray(found), np.roll(start, 20, axis=0))


def test_gradients():
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((40, 24)), rng.standard_normal((24, 56))
    check_grads(jax.jit(moye()), (a, b), order=2, modes=("fwd", "rev"))


def test_quickstart_on_the_gpu():
    # tests/python's conftest asks for the CPU, in this process and so in its children.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
        "JAX_PLATFORMS": "cuda,cpu",
    }
    command = [sys.executable, str(ROOT / "examples" / "quickstart.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "emulator" not in run.stdout
    assert "5 launches in one jitted step" in run.stdout
