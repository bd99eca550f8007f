"""How long a kernel takes, from the problem and the table alone: waves of tiles, the products and the stores of one.

And how long XLA takes. The constants are those of one H200, fitted to files of benchmarks/results;
docs/how_selection_works.md says how well. Elsewhere the model of kernels is used for nothing but the order of configs,
and that of XLA for nothing.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import ITEM_BYTES, USUAL_ACCUMULATOR
from jax_moye._selection.problem import GemmProblem

# Multiprocessors of the usual GPU of an architecture: a program may be compiled where there is no GPU to ask.
_MULTIPROCESSORS: dict[int | None, int] = {80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 120: 170}
_USUAL_MULTIPROCESSORS = 132

_LAUNCH_US = 2.0  # of a kernel whose CTAs have nothing to do
_CLUSTER_US = 0.9  # more where CTAs form clusters
_SPLIT_US = 2.5  # more where they add up their parts of k
_SPLIT_WAVE_US = 4.0  # each wave of them but the first: CTAs that start anew
# Of the multiprocessors those that clusters along k fill: theirs are of one GPC, and what is left there is too small.
_SPLIT_USABLE = {2: 1.0, 4: 0.97, 8: 0.85}
_READ_BYTES_PER_US = 4.07e6  # of memory, streamed
_WRITE_BYTES_PER_US = 3.4e6
_PACK_BYTES_PER_US = 2.0e6  # read and written by the kernel that packs an operand
_LATENCY_US = 0.8  # of memory: a CTA waits that long for as many k-tiles as it has in flight
_ODD_STORES = 3.5  # Hopper kernels' stores are slower by this where TMA cannot write them: rows not of 16 bytes
_THIN_ROWS, _THIN = 16, 1.3  # Hopper kernels' products: slower by up to this much more for fewer rows; measured at 1, 8


class _Speed(NamedTuple):
    products_per_us: float  # of one multiprocessor: multiply-adds of 16-bit operands
    store_us: float  # of 1000 elements of a tile that nothing hides


_SPEEDS = {
    "sm90_pingpong": _Speed(2.70e6, 0.030),
    "sm90_cooperative": _Speed(2.70e6, 0.068),
    "sm90_split_k": _Speed(2.70e6, 0.068),
    "sm80_persistent": _Speed(1.34e6, 0.050),
    "sm80_multistage": _Speed(1.36e6, 0.060),
    "sm80_ldmatrix": _Speed(1.15e6, 0.060),
    "sm80_double_buffer": _Speed(0.95e6, 0.060),
    "sm80_tensorop": _Speed(0.95e6, 0.060),
    "sm70_tensorop": _Speed(0.20e6, 0.060),
    "simt_double_buffer": _Speed(0.15e6, 0.060),
    "simt_tiled": _Speed(0.15e6, 0.060),
    "simt_overlap": _Speed(0.13e6, 0.060),
}
# The same where something is done to the sums before they are written, by threads and not by TMA. Beside many sums a
# thread has registers for a few elements at a time, or for one: then latencies are not hidden. Fitted to the layers of
# the suite.
_FINISH_US = {"sm90_pingpong": 0.22, "sm90_cooperative": 0.34, "sm90_split_k": 0.34}
_FINISH_FEW_US, _FINISH_ONE_US = 0.92, 2.1
_UNMEASURED = _Speed(0.01e6, 0.060)  # a new kernel serves by name, and what no other can, until it has a line above
# Slower by this than the kernel's products_per_us. Wide wgmma and multicast move fewer bytes per product, and on large
# products power, which moving bytes takes, sets the clock; tiles of 64 starve on shared memory. The means of a sweep
# over large products, in which each shape kept its factor within 2 %.
_SHAPES = {
    ("sm80_multistage", 64, 64, (1, 1)): 1.25,
    ("sm80_persistent", 64, 64, (1, 1)): 1.25,  # not timed: it reads shared memory as sm80_multistage does
    ("sm90_cooperative", 64, 128, (1, 1)): 1.204,
    ("sm90_cooperative", 64, 256, (1, 1)): 1.052,
    ("sm90_cooperative", 128, 128, (1, 1)): 1.034,
    ("sm90_cooperative", 128, 160, (1, 1)): 1.047,
    ("sm90_cooperative", 128, 176, (1, 1)): 1.044,
    ("sm90_cooperative", 128, 192, (1, 1)): 1.047,
    ("sm90_cooperative", 128, 192, (2, 1)): 1.035,
    ("sm90_cooperative", 128, 256, (1, 1)): 1.018,
    ("sm90_cooperative", 128, 256, (1, 2)): 1.016,
    ("sm90_cooperative", 128, 256, (2, 1)): 1.028,
    ("sm90_cooperative", 192, 192, (1, 1)): 0.996,
    ("sm90_cooperative", 256, 128, (1, 1)): 1.021,
    ("sm90_cooperative", 256, 128, (1, 2)): 0.996,
    ("sm90_cooperative", 256, 128, (2, 1)): 1.004,
    ("sm90_cooperative", 256, 176, (1, 1)): 1.01,
    ("sm90_cooperative", 256, 192, (1, 1)): 0.996,
    ("sm90_pingpong", 64, 64, (1, 1)): 1.75,  # of one wave; 2.2 of many
    ("sm90_pingpong", 64, 256, (1, 1)): 1.121,
    ("sm90_pingpong", 128, 128, (1, 1)): 1.050,
    ("sm90_pingpong", 128, 128, (1, 2)): 1.083,
    ("sm90_pingpong", 128, 128, (2, 1)): 1.082,
    ("sm90_pingpong", 128, 160, (1, 1)): 1.066,
    ("sm90_pingpong", 128, 176, (1, 1)): 1.055,
    ("sm90_pingpong", 128, 192, (1, 1)): 1.054,
    ("sm90_pingpong", 128, 192, (2, 1)): 1.046,
    ("sm90_pingpong", 192, 128, (1, 1)): 1.02,
    **{
        ("sm90_split_k", m, n, (1, parts)): 1.2
        for m, n in ((64, 64), (64, 128), (64, 256), (128, 128))
        for parts in (2, 4, 8)
    },
}
# Of Hopper kernels whose tile and cluster have no line above: like a kernel without a line, they serve by name, and
# problems that no other serves, until a GPU has timed them.
_UNTIMED = 100.0
# Slower by this, where a kernel without TMA loads so many bytes at a time.
_NARROW_LOADS = {16: 1.0, 8: 1.3, 4: 2.0, 2: 7.0, 1: 10.0}
# Times as many products per microsecond as of 16-bit operands.
_TENSOR_CORE_FACTORS = {"bf16": 1, "f16": 1, "tf32": 0.5, "s8": 2, "e4m3": 1.8, "e5m2": 1.8, "f64": 0.11}
_SIMT_FACTORS = {"f32": 1, "f64": 0.35}


class Terms(NamedTuple):
    """What a predicted time is made of.

    Attributes:
      launch_us: of an empty kernel.
      products_us: the multiply-adds of all waves.
      stores_us: of all waves, what nothing hides of writing a tile.
      memory_us: reading both operands and writing d once, at the bandwidth that the CTAs' loads in flight allow.
      hidden_us: of products and stores together, or of the memory where that is shorter: what the longer one hides.
      pack_us: a kernel that packs the operands first; 0.0 where none does.
      factor: of all of it, 1.0 but for Hopper tiles that no GPU has timed.
      us: in all, factor * (launch + products + stores + memory - hidden + pack) but for rounding.
      multiprocessors: of the GPU that is assumed.
      resident: CTAs on one multiprocessor.
      tiles: of D, those that fill up clusters included; where CTAs share one and split k, each's part counts.
      waves: of tiles, multiprocessors * resident at a time.
    """

    launch_us: float
    products_us: float
    stores_us: float
    memory_us: float
    hidden_us: float
    pack_us: float
    factor: float
    us: float
    multiprocessors: int
    resident: int
    tiles: int
    waves: int

    @property
    def dominating(self) -> str:
        """The longest: "launch", "products", "stores", "memory" or "pack"."""
        return max(("products", "memory", "stores", "launch", "pack"), key=lambda name: getattr(self, f"{name}_us"))


def predicted_us(config: GemmConfig, problem: GemmProblem, arch: int | None) -> float:
    """Microseconds that `config` takes for `problem`, a lower bound of what it needs of the memory included.

    Args:
      config: a row of the table that can compute the problem.
      problem: what it computes.
      arch: the GPU's, e.g. 90; None where it is not known.
    """
    return terms(config, problem, arch).us


def terms(config: GemmConfig, problem: GemmProblem, arch: int | None) -> Terms:
    """predicted_us by its terms; the arguments are the same."""
    multiprocessors = _MULTIPROCESSORS.get(arch, _USUAL_MULTIPROCESSORS)
    row = _of_row(config)
    resident, stores, launch = row.resident, row.stores_us, row.launch_us
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    out = ITEM_BYTES[problem.out_dtype]

    # -(-x // y) rounds up: math.ceil of a quotient would take a tenth of a selection's time, and so would names below.
    tiles = batch * -(-m // row.cluster_m) * -(-n // row.cluster_n) * row.cluster
    waves = -(-tiles // (int(multiprocessors * row.usable) * resident))
    launch += row.wave_us * (waves - 1)
    # CTAs that share a multiprocessor share its speed.
    in_turn = waves * min(resident, -(-tiles // multiprocessors))
    k_tiles = -(-k // row.tile_k)
    products = row.k_tile_us * k_tiles
    if row.is_hopper:
        if m < _THIN_ROWS:
            products *= 1 + row.thin * (1 - m / _THIN_ROWS)
        if problem.d_strides[1] * out % 16 and m > 1:
            stores *= _ODD_STORES
        if problem.epilogue:
            stores = row.finish_us
    products *= in_turn
    stores *= in_turn
    compute = products + stores

    streamed = batch * ((m + n) * k * row.item / _READ_BYTES_PER_US + m * n * out / _WRITE_BYTES_PER_US)
    memory = max(streamed, waves * k_tiles * row.latency_us)

    # Loads and products overlap, but not perfectly: of two kernels bound by the memory the one with less to compute.
    exposed = 0.05 * min(compute, streamed)
    pack = _pack_us(problem) if row.packs else 0.0
    hidden = min(compute, memory) - exposed
    us = (launch + max(compute, memory) + exposed + pack) * row.factor
    return Terms(
        launch, products, stores, memory, hidden, pack, row.factor, us, multiprocessors, resident, tiles, waves
    )


class _OfRow(NamedTuple):
    """What does not depend on the problem."""

    resident: int  # CTAs on one multiprocessor
    cluster_m: int  # elements of a cluster's tiles
    cluster_n: int
    tile_k: int  # of all CTAs that share a tile
    cluster: int  # CTAs
    k_tile_us: float  # the products of one k-tile of a tile
    latency_us: float  # of memory, for one k-tile of a CTA
    stores_us: float  # of a tile
    finish_us: float  # the same with an epilogue
    item: int  # bytes
    is_hopper: bool
    packs: bool  # the operands first, where TMA cannot read them
    thin: float  # sm90_split_k asks TMA for no rows beyond m
    launch_us: float
    wave_us: float  # of each wave but the first, beside its products and stores
    usable: float  # share of the multiprocessors
    factor: float  # of all of it


@functools.lru_cache(maxsize=1024)
def _of_row(config: GemmConfig) -> _OfRow:
    speed = _SPEEDS.get(config.kernel, _UNMEASURED)
    factors = _SIMT_FACTORS if config.kernel.startswith("simt_") else _TENSOR_CORE_FACTORS
    tile_m, tile_n, tile_k = config.tile
    shape = (config.kernel, tile_m, tile_n, config.cluster)
    slower = _SHAPES.get(shape, 1.0)
    if config.kernel.startswith("sm80"):
        slower *= _NARROW_LOADS[config.alignment]
    item = ITEM_BYTES[config.dtype]
    return _OfRow(
        resident=_resident(config),
        cluster_m=config.cluster_tile[0],
        cluster_n=config.cluster_tile[1],
        tile_k=tile_k * config.k_parts,
        cluster=config.cluster[0] * config.cluster[1],
        k_tile_us=slower * tile_m * tile_n * tile_k / (speed.products_per_us * factors.get(config.dtype, 1)),
        latency_us=_LATENCY_US / max(1, config.stages - 1),
        stores_us=tile_m * tile_n / 1000 * speed.store_us / config.k_parts,
        finish_us=tile_m * tile_n / 1000 * _finish_us(config) / config.k_parts,
        item=item,
        is_hopper=config.kernel.startswith("sm90_"),
        packs=config.kernel.startswith("sm90_") and config.alignment < 16,
        thin=_THIN if config.k_parts == 1 else 0.0,
        launch_us=_LAUNCH_US
        + (_CLUSTER_US if config.cluster != (1, 1) else 0)
        + (_SPLIT_US if config.k_parts > 1 else 0),
        wave_us=_SPLIT_WAVE_US if config.k_parts > 1 else 0.0,
        usable=_SPLIT_USABLE.get(config.k_parts, 1.0),
        factor=_UNTIMED if config.kernel.startswith("sm90_") and shape not in _SHAPES else 1.0,
    )


def _finish_us(config: GemmConfig) -> float:
    """Of 1000 elements of a tile of a Hopper kernel, with an epilogue."""
    tile_m, tile_n, _ = config.tile
    consumers = 1 if config.kernel == "sm90_pingpong" else config.threads // 128 - 1
    sums = tile_m * tile_n // (128 * max(1, consumers))  # of a thread
    if sums > 176 and config.kernel == "sm90_pingpong":
        return _FINISH_ONE_US
    return _FINISH_FEW_US if sums > 160 else _FINISH_US.get(config.kernel, 0.0)


def predicted_split_us(config: GemmConfig, problem: GemmProblem, arch: int | None) -> float:
    """The same where f32 operands are multiplied as 3 x TF32: the parts are made, and `config` runs three times.

    The second and the third time it also reads what the time before wrote. Not fitted to a measurement of its own.
    """
    elements = problem.batch * (problem.m + problem.n) * problem.k
    item = ITEM_BYTES[config.dtype]
    parts = 2 * _LAUNCH_US + elements * item * (1 / _READ_BYTES_PER_US + 2 / _WRITE_BYTES_PER_US)
    sums = 2 * problem.batch * problem.m * problem.n * item / _READ_BYTES_PER_US
    return 3 * predicted_us(config, problem, arch) + parts + sums


def _resident(config: GemmConfig) -> int:
    """CTAs on one multiprocessor."""
    registers = max(config.registers.values()) if config.registers else 240
    by_smem = 227 * 1024 // (config.smem_bytes + 1024)
    return max(1, min(by_smem, 65536 // (registers * config.threads), 2048 // config.threads))


def _pack_us(problem: GemmProblem) -> float:
    """What a kernel that packs its operands first spends on that."""
    a_batch, b_batch = ((1 if strides[0] == 0 else problem.batch) for strides in (problem.a_strides, problem.b_strides))
    operands = ((a_batch * problem.m, problem.a_strides), (b_batch * problem.n, problem.b_strides))
    packed = sum(rows for rows, strides in operands if not _is_for_tma(strides, problem.dtype))
    return _LAUNCH_US + 2 * packed * problem.k * ITEM_BYTES[problem.dtype] / _PACK_BYTES_PER_US if packed else 0.0


def _is_for_tma(strides: tuple[int, int, int], dtype: str) -> bool:
    """Whether TMA can read an operand for wgmma: a mode of stride 1, which is k but for 16-bit elements."""
    batch, rows, k = strides
    item = ITEM_BYTES[dtype]
    if k == 1:
        return batch * item % 16 == 0 and rows * item % 16 == 0
    return rows == 1 and item == 2 and batch * item % 16 == 0 and k * item % 16 == 0


# --------------------------------------------------------------------------------------------------------------- XLA

_XLA_ARCH = 90  # the only one on which XLA was measured
_XLA_LAUNCH_US = 2.6
_XLA_READ_BYTES_PER_US = 4.3e6
_XLA_WRITE_BYTES_PER_US = 3.4e6
# Multiply-adds of the whole GPU. What is not here was not measured.
_XLA_PRODUCTS_PER_US = {"bf16": 337e6, "f16": 337e6, "tf32": 165e6, "f32": 25.2e6, "f64": 28e6}
_XLA_TILE_US = 0.15  # of a multiprocessor, for each tile of 128 x 128
# One tile takes so long for each k that nothing hides; longer sums are split, and adding up the parts takes as long.
_XLA_K_US, _XLA_SPLIT_US = 0.0027, 3.8
# Where rows of one operand, of both are not of 16 bytes: by how much slower are the products of whole tiles.
_XLA_ODD = (1.0, 2.7, 4.3)
# What a program of many calls spends on one, on the host: tiny products take no less. Of fourteen measurements in which
# the host was the limit XLA was faster in thirteen, by 1.24 (geometric mean). Not of the GPU: measure again where calls
# become cheaper. Two equal numbers leave such products to the models of the GPU, which call them level.
_CALL_US, _XLA_CALL_US = 7.4, 6.0
# XLA computes what a kernel is predicted to need more than so many times as long for. The two models together miss the
# measured ratios by 7 % (root mean square): 1.2 is 2.6 times that, so that products on which both are level stay ours.
XLA_MARGIN = 1.2


def in_program_us(predicted_us: float) -> float:
    """What a kernel that takes predicted_us adds to a program of many: what its call costs the host where that is more.

    Args:
      predicted_us: microseconds on the GPU.
    """
    return max(predicted_us, _CALL_US)


def xla_us(problem: GemmProblem, arch: int | None, passes: int = 0) -> float | None:
    """Microseconds that XLA takes for `problem` in a program, with cuBLAS or Triton; None where nothing is known of it.

    That is every GPU but sm_90, every dtype that was not measured, sums in other dtypes than usual, and what is not one
    matrix product for XLA: operands without a mode of stride 1, or matrices that do not lie one behind the other.

    Args:
      problem: what is computed.
      arch: the GPU's, e.g. 90; None where it is not known.
      passes: how often it reads and writes the result again, since it does not finish it where it sums.
    """
    p = problem
    rate = _XLA_PRODUCTS_PER_US.get(p.dtype)
    if arch != _XLA_ARCH or rate is None or p.sums != USUAL_ACCUMULATOR[p.dtype] or p.order is None:
        return None
    sides = (p.a_strides, p.b_strides, p.d_strides)
    if p.batch > 1 and any(strides[0] < max(strides[1:]) for strides in sides):
        return None
    item, out = ITEM_BYTES[p.dtype], ITEM_BYTES[p.out_dtype]
    tiles = p.batch * math.ceil(p.m / 128) * math.ceil(p.n / 128)
    # f32 and f64 are loaded one by one.
    odd = sum(_is_odd(strides, item) for strides in sides[:2]) if p.dtype in ("bf16", "f16", "tf32") else 0
    if odd:
        waves = math.ceil(tiles / _MULTIPROCESSORS[_XLA_ARCH])
        products = waves * _MULTIPROCESSORS[_XLA_ARCH] * 128 * 128 * p.k * _XLA_ODD[odd]
    else:
        products = p.batch * math.ceil(p.m / 64) * math.ceil(p.n / 64) * 64 * 64 * p.k
    compute = products / rate + tiles / _MULTIPROCESSORS[_XLA_ARCH] * _XLA_TILE_US
    read, written = p.batch * (p.m + p.n) * p.k * item, p.batch * p.m * p.n * out
    memory = read / _XLA_READ_BYTES_PER_US + written / _XLA_WRITE_BYTES_PER_US
    us = _XLA_LAUNCH_US + max(compute, memory) + min(_XLA_K_US * p.k, _XLA_SPLIT_US)
    one_pass = written / _XLA_READ_BYTES_PER_US + written / _XLA_WRITE_BYTES_PER_US
    return max(us, _XLA_CALL_US) + passes * max(_XLA_LAUNCH_US + one_pass, _XLA_CALL_US)


def _is_odd(strides: tuple[int, int, int], item: int) -> bool:
    """Whether an operand with a mode of stride 1 cannot be loaded in 16 bytes."""
    batch, rows, k = strides
    return math.gcd(batch, rows if k == 1 else k) * item % 16 != 0
