"""How long a kernel takes, from the problem and the table alone: waves of CTAs, each of k-tiles and a store.

What a k-tile takes is the longest of four: multiplying, waiting for the loads in flight, what the L2 cache delivers,
and what the power limit lets the whole GPU multiply. `H200` has the constants of the GPU, and a kernel's speed is in
its facts, jax_moye/layout/kernels/<kernel>.py: tools/fit_cost.py fits them to files of benchmarks/results, and
docs/performance.md says how well. On other GPUs the model is used for nothing but the order of configs.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

from jax_moye._kernels import ffi
from jax_moye._kernels.configs import GemmConfig, facts_of
from jax_moye._kernels.dtypes import DTYPES, ITEM_BYTES
from jax_moye._selection.problem import GemmProblem, is_for_tma

# Multiprocessors of the usual GPU of an architecture: a program may be compiled where there is no GPU to ask.
MULTIPROCESSORS: dict[int | None, int] = {80: 108, 86: 84, 89: 142, 90: 132, 100: 148, 120: 170}
_USUAL_MULTIPROCESSORS = 132

_WARPGROUP = 128  # threads
_LINE = 128  # bytes of the L2 cache that are asked for together
_BOX = 128  # bytes of a row that TMA loads together
_CP_ASYNC = 4  # bytes at least
_PART_BYTES = 2  # of an f32 operand's bf16 part
_UNTIMED = 100.0  # times as long: a tile of which a kernel needs a factor and has none; operands that nobody timed
# What a program of many calls spends on one of ours, on the host: no product takes less in it. See cost_xla.
CALL_US = 7.4


class Machine(NamedTuple):
    """What a GPU takes, whatever the kernel.

    Attributes:
      launch_us: of a kernel whose CTAs have nothing to do, until the first load is back.
      cluster_us: more where CTAs form clusters that share rows of the operands.
      latency_us: from a load to its data, while nobody else loads.
      queue_bytes_per_us: a load waits longer by what all CTAs load from memory for one k-tile, over this. Rows beyond
        an operand, which TMA fills with zeros, count as much as others.
      narrow_latency: times as long where data pass registers on their way to shared memory.
      short_line: power of a line of the cache over what a tile has of it: times as much time of the cache and of the
        memory where threads load such parts.
      l2_bytes_per_us: that all multiprocessors together get from the L2 cache.
      straddling: times more of it where rows of 128 bytes begin within a line of the cache.
      read_bytes_per_us: of memory, streamed.
      write_bytes_per_us: likewise.
      power_products_per_us: multiply-adds of 16-bit operands, of each multiprocessor while all are busy.
      pack_us: a kernel that packs an operand.
      pack_bytes_per_us: which it reads and writes.
      narrow_pack_bytes_per_us: the same where the operand's lines begin between two words.
    """

    launch_us: float
    cluster_us: float
    latency_us: float
    queue_bytes_per_us: float
    narrow_latency: float
    short_line: float
    l2_bytes_per_us: float
    straddling: float
    read_bytes_per_us: float
    write_bytes_per_us: float
    power_products_per_us: float
    pack_us: float
    pack_bytes_per_us: float
    narrow_pack_bytes_per_us: float


H200 = Machine(
    launch_us=3.43,
    cluster_us=0.723,
    latency_us=0.449,
    queue_bytes_per_us=6.86e6,
    narrow_latency=3.01,
    short_line=0.342,
    l2_bytes_per_us=13.70e6,
    straddling=1.51,
    read_bytes_per_us=4.26e6,
    write_bytes_per_us=3.60e6,
    power_products_per_us=2.81e6,
    pack_us=3.95,
    pack_bytes_per_us=4.01e6,
    narrow_pack_bytes_per_us=2.4e6,
)


class Terms(NamedTuple):
    """What a predicted time is made of.

    Attributes:
      launch_us: of an empty kernel.
      products_us: the multiply-adds of all waves, at the clock that the power limit allows.
      stores_us: of all waves, what nothing hides of writing a tile, and of starting CTAs anew.
      memory_us: the loads of all waves, as their latency and the L2 cache allow; or reading both operands and writing
        d once, at the memory's bandwidth, where that takes longer.
      hidden_us: of products, stores and memory: what is done at the same time.
      pack_us: a kernel that packs the operands first; 0.0 where none does.
      add_us: a kernel that adds up the sums of k's parts; 0.0 where none does.
      factor: of all of it, 1.0 but for tiles and alignments that no GPU has timed, of kernels that need it.
      us: in all, factor * (launch + products + stores + memory - hidden + pack + add) but for rounding.
      multiprocessors: of the GPU that is assumed.
      resident: CTAs on one multiprocessor.
      tiles: of D, those that fill up clusters included; where k is split, each part counts.
      parts: of k, where a call's sizes say how many; else 1.
      waves: of tiles, multiprocessors * resident at a time.
    """

    launch_us: float
    products_us: float
    stores_us: float
    memory_us: float
    hidden_us: float
    pack_us: float
    add_us: float
    factor: float
    us: float
    multiprocessors: int
    resident: int
    tiles: int
    parts: int
    waves: int

    @property
    def dominating(self) -> str:
        """The longest: "launch", "products", "stores", "memory", "pack" or "add"."""
        names = ("products", "memory", "stores", "launch", "pack", "add")
        return max(names, key=lambda name: getattr(self, f"{name}_us"))


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
    gpu, known = H200, _of_config(config)
    multiprocessors = MULTIPROCESSORS.get(arch, _USUAL_MULTIPROCESSORS)
    batch, m, n, k = problem.batch, problem.m, problem.n * (1 + problem.pair), problem.k  # n: columns that are summed
    resident, item, out = known.resident, known.item, ITEM_BYTES[problem.out_dtype] / (1 + problem.pair)

    # -(-x // y) rounds up: math.ceil of a quotient would take a tenth of a selection's time, and so would names below.
    clusters_m, clusters_n = -(-m // known.cluster_m), -(-n // known.cluster_n)
    parts = 1
    if known.splits_by_sizes:
        parts = ffi.k_parts(config.name, problem.sizes, tuple(problem.strides.values()), problem.out_dtype)
    tiles = batch * clusters_m * clusters_n * known.cluster * parts
    at_once = int(multiprocessors * known.usable) * resident
    waves = -(-tiles // at_once)
    last = tiles - (waves - 1) * at_once  # CTAs of the last wave
    k_tiles = -(-k // (known.tile_k * parts))

    # Rows and columns of an operand that a CTA loads on average, and those beyond it.
    rows, columns = m * known.tile_m / (clusters_m * known.cluster_m), n * known.tile_n / (clusters_n * known.cluster_n)
    a_packs = known.packs and (known.parts > 0 or not is_for_tma(problem.strides["a"], problem.dtype))
    b_packs = known.packs and (known.parts > 0 or not is_for_tma(problem.strides["b"], problem.dtype))
    a_lines = rows if a_packs else rows * _lines(problem.a_strides, item)
    b_lines = columns if b_packs else columns * _lines(problem.b_strides, item)
    if problem.b_strides[1] == 1 and not b_packs:
        b_lines *= known.boxed
    a_short = known.a_short if problem.a_strides[1] == 1 else 1.0
    b_short = known.b_short if problem.b_strides[1] == 1 else 1.0
    a_lines, b_lines = a_lines * a_short, b_lines * b_short
    cached = (a_lines / known.a_sharers + b_lines / known.b_sharers) * known.row_bytes
    operands = batch * (m + n) * k * item
    loaded = operands / (tiles * max(1, k_tiles))
    if known.tma:
        beyond = (known.tile_n - columns) / known.b_sharers
        if not (known.clips_rows and m < known.tile_m and problem.a_strides[2] == 1):
            beyond += (known.tile_m - rows) / known.a_sharers
        loaded += beyond * known.row_bytes

    products = loads = busy = in_turn = 0.0
    for ctas, times in ((at_once, waves - 1), (last, 1)):
        # CTAs that share a multiprocessor share its speed.
        turns = min(resident, -(-ctas // multiprocessors))
        multiply = _longest(turns * known.turn_us + known.k_tile_us, ctas / multiprocessors * known.power_us)
        load = _longest(known.latency_us + ctas * loaded / gpu.queue_bytes_per_us, ctas * cached / gpu.l2_bytes_per_us)
        products += times * k_tiles * multiply
        loads += times * k_tiles * load
        busy += times * k_tiles * _longest(multiply, load)
        if known.alternates:
            busy += times * (k_tiles - 1) * min(multiply, load)
        in_turn += times * turns

    is_odd = known.odd_store_us > 0 and problem.d_strides[1] * out % 16 > 0 and m > 1
    store = known.odd_store_us if is_odd else known.store_us
    if problem.epilogue:
        store = store + known.finish_us if is_odd else max(store, known.finish_us)
    add = 0.0
    if parts > 1:  # f32 sums are stored as they are, and read once more, by many short CTAs
        store = known.store_us * 4 / out
        add = known.add_us + batch * m * n * 4 * parts / gpu.read_bytes_per_us
    stores = in_turn * store * min(m, known.tile_m) + known.wave_us * (waves - 1)
    stores = max(stores, known.least_wave_us * (waves - 1) - busy)
    read = batch * (m * a_short + n * b_short) * k * item
    streamed = read / gpu.read_bytes_per_us + batch * m * n * out / gpu.write_bytes_per_us
    memory = _longest(loads, streamed)
    pack = _pack_us(problem, a_packs, b_packs, known.parts)

    body = _longest(busy + stores, streamed)
    hidden = products + stores + memory - body
    is_untimed = 0 < known.below_alignment <= problem.alignment
    factor = known.factor * (_UNTIMED if is_untimed else 1.0)
    us = (known.launch_us + body + pack + add) * factor
    return Terms(
        known.launch_us,
        products,
        stores,
        memory,
        hidden,
        pack,
        add,
        factor,
        us,
        multiprocessors,
        resident,
        tiles,
        parts,
        waves,
    )


def _longest(a: float, b: float) -> float:
    """The longer of two times that pass together, up to a tenth more where they are level: no overlap is perfect."""
    return (a**8 + b**8) ** 0.125


class _OfConfig(NamedTuple):
    """What does not depend on the problem."""

    resident: int  # CTAs on one multiprocessor
    tile_m: int  # elements of a CTA's tile
    tile_n: int
    cluster_m: int  # elements of a cluster's tiles
    cluster_n: int
    tile_k: int  # of all CTAs that share a tile
    cluster: int  # CTAs
    a_sharers: int  # CTAs that get the same rows of an operand from one load
    b_sharers: int
    row_bytes: int  # of one row in a k-tile
    boxed: float  # times as many columns of b are loaded, where they are contiguous: boxes are whole
    a_short: float  # times as long as whole lines of the cache take, where rows of a are contiguous
    b_short: float
    turn_us: float  # one k-tile of a CTA, while others of its multiprocessor wait
    k_tile_us: float  # what others can use
    power_us: float  # the products of one k-tile, where power is the limit
    latency_us: float  # of the loads of one k-tile
    store_us: float  # of one row of a tile
    odd_store_us: float  # where rows of d are not of 16 bytes; 0.0: no longer than others
    finish_us: float  # with an epilogue; 0.0: no longer than without
    item: int  # bytes
    tma: bool
    alternates: bool  # loads, which pass registers, and products: in one stage neither can hide the other
    packs: bool  # or XLA pads, the operands that TMA cannot read
    parts: int  # of bf16 into which they are split then, whether TMA can or not; 0: they are not
    clips_rows: bool
    splits_by_sizes: bool  # k, and add_us is a second kernel's
    add_us: float
    launch_us: float
    wave_us: float  # of each wave but the first, beside its products and stores
    least_wave_us: float  # of each wave but the first, with them
    usable: float  # share of the multiprocessors
    factor: float  # of all of it
    below_alignment: int


@functools.lru_cache(maxsize=1024)
def _of_config(config: GemmConfig) -> _OfConfig:
    gpu, speed = H200, facts_of(config.kernel).speed
    tile_m, tile_n, tile_k = config.tile
    tile = (tile_m, tile_n, config.cluster)
    # Of parts each k-tile is loaded and multiplied once for each product of two.
    of_dtype = DTYPES[config.dtype]
    parts, products = of_dtype.parts, of_dtype.products
    item, tma = _PART_BYTES * parts or of_dtype.bytes, speed.copy_us == 0
    slower, dtype = speed.by_tile.get(tile, 1.0), speed.by_dtype.get(config.dtype, 1)
    narrow = not tma and config.alignment < _CP_ASYNC
    copies = (tile_m + tile_n) * tile_k * item / config.alignment / 1000
    turn = tile_m * tile_n * tile_k * slower / (speed.products_per_us * dtype) + copies * speed.copy_us
    cluster_m, cluster_n = (1, 1) if config.k_parts > 1 else config.cluster
    row = tile_n / 1000
    return _OfConfig(
        resident=_resident(config),
        tile_m=tile_m,
        tile_n=tile_n,
        cluster_m=config.cluster_tile[0],
        cluster_n=config.cluster_tile[1],
        tile_k=tile_k * config.k_parts,
        cluster=config.cluster[0] * config.cluster[1],
        a_sharers=cluster_n,
        b_sharers=cluster_m,
        row_bytes=products * tile_k * (_PART_BYTES if parts else item),
        boxed=-(-tile_n * item // _BOX) * _BOX / (tile_n * item) if tma else 1.0,
        a_short=1.0 if tma else _short(tile_m * item),
        b_short=1.0 if tma else _short(tile_n * item),
        turn_us=turn,
        k_tile_us=products * speed.k_tile_us,
        power_us=tile_m * tile_n * tile_k * slower / (gpu.power_products_per_us * dtype),
        latency_us=products * _latency_us(config, turn / products, narrow),
        store_us=row * speed.store_us,
        odd_store_us=row * _by_sums(config, speed.odd_store_us),
        finish_us=row / config.k_parts * _by_sums(config, speed.finish_us),
        item=item,
        tma=tma,
        alternates=narrow and config.stages == 1,
        packs=facts_of(config.kernel).pads or parts > 0,
        parts=parts,
        clips_rows=speed.clips_rows,
        splits_by_sizes=facts_of(config.kernel).splits_k_by_sizes,
        add_us=speed.add_us,
        launch_us=gpu.launch_us
        + (gpu.cluster_us if (cluster_m, cluster_n) != (1, 1) else 0)
        + (config.k_parts > 1) * config.k_parts * speed.part_us
        + speed.launch_us,
        wave_us=speed.wave_us,
        least_wave_us=speed.least_wave_us,
        usable=speed.usable.get(config.k_parts, 1.0),
        factor=_UNTIMED if speed.needs_by_tile and tile not in speed.by_tile else 1.0,
        below_alignment=speed.below_alignment,
    )


def _latency_us(config: GemmConfig, turn_us: float, narrow: bool) -> float:
    """Of the loads of one k-tile, of which a pipeline has some on their way while another k-tile is multiplied."""
    if narrow:
        return H200.latency_us * H200.narrow_latency + turn_us
    return (H200.latency_us + turn_us) / (config.stages - 1) if config.stages > 2 else H200.latency_us


def _short(row_bytes: int) -> float:
    """Times as long as whole lines of the cache take, where a tile has so many contiguous bytes."""
    return max(1.0, _LINE / row_bytes) ** H200.short_line


def _by_sums(config: GemmConfig, table: tuple[tuple[int, float], ...]) -> float:
    """The entry for as many sums as a thread of a config has; 0.0 where there is none."""
    sums = config.consumer_tile[0] * config.consumer_tile[1] // _WARPGROUP
    return next((us for most, us in table if sums <= most), 0.0)


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
    parts = 2 * H200.launch_us + elements * item * (1 / H200.read_bytes_per_us + 2 / H200.write_bytes_per_us)
    sums = 2 * problem.batch * problem.m * problem.n * item / H200.read_bytes_per_us
    return 3 * predicted_us(config, problem, arch) + parts + sums


def _resident(config: GemmConfig) -> int:
    """CTAs on one multiprocessor."""
    by_smem = 227 * 1024 // (config.smem_bytes + 1024)
    return max(1, min(by_smem, 65536 // (_registers(config) * config.threads), 2048 // config.threads))


def _registers(config: GemmConfig) -> int:
    """Of a thread: its sums and what it needs beside them, where no build by nvcc says."""
    if config.registers:
        return max(config.registers.values())
    if config.consumers:
        return config.consumer_tile[0] * config.consumer_tile[1] // _WARPGROUP + 32
    return min(240, config.tile[0] * config.tile[1] // config.threads + 96)


def _pack_us(problem: GemmProblem, a_packs: bool, b_packs: bool, parts: int) -> float:
    """What a kernel that packs its operands first, or splits them into parts, spends on that."""
    gpu, item = H200, ITEM_BYTES[problem.dtype]
    us = gpu.pack_us if a_packs or b_packs else 0.0
    (of_a, of_b), sides = problem.matrices, ((problem.m, problem.a_strides), (problem.n, problem.b_strides))
    for packs, matrices, (rows, strides) in zip((a_packs, b_packs), (of_a, of_b), sides, strict=True):
        if packs:
            narrow = _pitch(strides) * item % _CP_ASYNC
            rate = gpu.narrow_pack_bytes_per_us if narrow else gpu.pack_bytes_per_us
            us += (item + (_PART_BYTES * parts or item)) * matrices * rows * problem.k / rate
    return us


def _pitch(strides: tuple[int, int, int]) -> int:
    """Elements from one row of an operand in memory to the next."""
    return strides[1] if strides[2] == 1 else strides[2]


def _lines(strides: tuple[int, int, int], item: int) -> float:
    """What is asked of the L2 cache for an operand, over its bytes."""
    return 1 + H200.straddling if _pitch(strides) * item % _LINE else 1.0
