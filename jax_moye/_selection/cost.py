"""How long a kernel takes, from the problem and the table alone: waves of tiles, the products and the stores of one.

The constants here are those of an H200, and a kernel's speed is in its facts, jax_moye/layout/kernels/<kernel>.py: all
were fitted to files of benchmarks/results, and docs/how_selection_works.md says how well. On other GPUs the model is
used for nothing but the order of configs.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._kernels.dtypes import ITEM_BYTES
from jax_moye._selection.problem import GemmProblem

# Multiprocessors of the usual GPU of an architecture: a program may be compiled where there is no GPU to ask.
MULTIPROCESSORS: dict[int | None, int] = {80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 120: 170}
_USUAL_MULTIPROCESSORS = 132

_LAUNCH_US = 2.0  # of a kernel whose CTAs have nothing to do
_CLUSTER_US = 0.9  # more where CTAs form clusters
_READ_BYTES_PER_US = 4.07e6  # of memory, streamed
_WRITE_BYTES_PER_US = 3.4e6
_PACK_BYTES_PER_US = 2.0e6  # read and written by the kernel that packs an operand
_LATENCY_US = 0.8  # of memory: a CTA waits that long for as many k-tiles as it has in flight
_WARPGROUP = 128  # threads
_FEW_ROWS = 16  # of d: fewer take some kernels longer
_UNTIMED = 100.0  # times as long: a tile of which a kernel needs a factor and has none
# What a program of many calls spends on one of ours, on the host: no product takes less in it. See cost_xla.
CALL_US = 7.4


class Terms(NamedTuple):
    """What a predicted time is made of.

    Attributes:
      launch_us: of an empty kernel.
      products_us: the multiply-adds of all waves.
      stores_us: of all waves, what nothing hides of writing a tile.
      memory_us: reading both operands and writing d once, at the bandwidth that the CTAs' loads in flight allow.
      hidden_us: of products and stores together, or of the memory where that is shorter: what the longer one hides.
      pack_us: a kernel that packs the operands first; 0.0 where none does.
      factor: of all of it, 1.0 but for tiles that no GPU has timed, of kernels that need it.
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
      config: one that can compute the problem.
      problem: what it computes.
      arch: the GPU's, e.g. 90; None where it is not known.
    """
    return terms(config, problem, arch).us


def terms(config: GemmConfig, problem: GemmProblem, arch: int | None) -> Terms:
    """predicted_us by its terms; the arguments are the same."""
    multiprocessors = MULTIPROCESSORS.get(arch, _USUAL_MULTIPROCESSORS)
    known = _of_config(config)
    resident, stores, launch = known.resident, known.stores_us, known.launch_us
    batch, m, n, k = problem.batch, problem.m, problem.n, problem.k
    out = ITEM_BYTES[problem.out_dtype]

    # -(-x // y) rounds up: math.ceil of a quotient would take a tenth of a selection's time, and so would names below.
    tiles = batch * -(-m // known.cluster_m) * -(-n // known.cluster_n) * known.cluster
    waves = -(-tiles // (int(multiprocessors * known.usable) * resident))
    launch += known.wave_us * (waves - 1)
    # CTAs that share a multiprocessor share its speed.
    in_turn = waves * min(resident, -(-tiles // multiprocessors))
    k_tiles = -(-k // known.tile_k)
    products = known.k_tile_us * k_tiles
    if m < _FEW_ROWS:
        products *= 1 + known.few_rows * (1 - m / _FEW_ROWS)
    if problem.d_strides[1] * out % 16 and m > 1:
        stores *= known.odd_stores
    if problem.epilogue and known.finish_us:
        stores = known.finish_us
    products *= in_turn
    stores *= in_turn
    compute = products + stores

    streamed = batch * ((m + n) * k * known.item / _READ_BYTES_PER_US + m * n * out / _WRITE_BYTES_PER_US)
    memory = max(streamed, waves * k_tiles * known.latency_us)

    # Loads and products overlap, but not perfectly: of two kernels bound by the memory the one with less to compute.
    exposed = 0.05 * min(compute, streamed)
    pack = _pack_us(problem) if known.packs else 0.0
    hidden = min(compute, memory) - exposed
    us = (launch + max(compute, memory) + exposed + pack) * known.factor
    return Terms(
        launch, products, stores, memory, hidden, pack, known.factor, us, multiprocessors, resident, tiles, waves
    )


class _OfConfig(NamedTuple):
    """What does not depend on the problem."""

    resident: int  # CTAs on one multiprocessor
    cluster_m: int  # elements of a cluster's tiles
    cluster_n: int
    tile_k: int  # of all CTAs that share a tile
    cluster: int  # CTAs
    k_tile_us: float  # the products of one k-tile of a tile
    latency_us: float  # of memory, for one k-tile of a CTA
    stores_us: float  # of a tile
    finish_us: float  # the same with an epilogue; 0.0: no longer than without
    odd_stores: float  # these take longer by this where rows of d are not of 16 bytes
    item: int  # bytes
    packs: bool  # the operands first, where TMA cannot read them
    few_rows: float  # products take longer by up to this much more
    launch_us: float
    wave_us: float  # of each wave but the first, beside its products and stores
    usable: float  # share of the multiprocessors
    factor: float  # of all of it


@functools.lru_cache(maxsize=1024)
def _of_config(config: GemmConfig) -> _OfConfig:
    speed = facts_of(config.kernel).speed
    tile_m, tile_n, tile_k = config.tile
    tile = (tile_m, tile_n, config.cluster)
    slower = speed.by_tile.get(tile, 1.0) * speed.by_alignment.get(config.alignment, 1.0)
    products_per_us = speed.products_per_us * speed.by_dtype.get(config.dtype, 1)
    return _OfConfig(
        resident=_resident(config),
        cluster_m=config.cluster_tile[0],
        cluster_n=config.cluster_tile[1],
        tile_k=tile_k * config.k_parts,
        cluster=config.cluster[0] * config.cluster[1],
        k_tile_us=slower * tile_m * tile_n * tile_k / products_per_us,
        latency_us=_LATENCY_US / max(1, config.stages - 1),
        stores_us=tile_m * tile_n / 1000 * speed.store_us / config.k_parts,
        finish_us=tile_m * tile_n / 1000 * _finish_us(config) / config.k_parts,
        odd_stores=speed.odd_stores,
        item=ITEM_BYTES[config.dtype],
        packs=config.alignment < speed.packs_below,
        few_rows=speed.few_rows,
        launch_us=_LAUNCH_US + (_CLUSTER_US if config.cluster != (1, 1) else 0) + speed.launch_us,
        wave_us=speed.wave_us,
        usable=speed.usable.get(config.k_parts, 1.0),
        factor=_UNTIMED if speed.needs_by_tile and tile not in speed.by_tile else 1.0,
    )


def _finish_us(config: GemmConfig) -> float:
    """Of 1000 elements of a tile, with an epilogue; 0.0 where that takes no longer than without."""
    sums = config.consumer_tile[0] * config.consumer_tile[1] // _WARPGROUP  # of a thread
    return next((us for most, us in facts_of(config.kernel).speed.finish_us if sums <= most), 0.0)


def in_program_us(predicted_us: float) -> float:
    """What a kernel that takes predicted_us adds to a program of many: what its call costs the host where that is more.

    Args:
      predicted_us: microseconds on the GPU.
    """
    return max(predicted_us, CALL_US)


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
