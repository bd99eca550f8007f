"""What layouts predict and what the emulator counts are the same numbers, for every row of the table."""

from __future__ import annotations

import collections
import dataclasses
import pathlib
import random
import subprocess

import numpy as np
import pytest

import jax_moye
from jax_moye._kernels.configs import attention_configs, grouped_configs, weights_configs
from jax_moye.layout import Layout, checks, make_fragment_like, transactions
from jax_moye.layout.errors import NotCanonicalGmma
from jax_moye.layout.kernels import PackLayouts, TmaKernelLayouts, kernel_facts, kernel_layouts, kernel_names
from jax_moye.layout.kernels.sm90_odd_rows import OddRowsKernelLayouts
from jax_moye.layout.kernels.sm90_transposed import TransposedKernelLayouts
from tests import cxx
from tests.emulated.emulate import emulate
from tests.emulated.problems import NUMPY_DTYPES, ORDERS, Problem, make_call, order_for

CONFIGS = [config for config in jax_moye.configs() if config.kernel in kernel_names()]
TMA = [config for config in CONFIGS if isinstance(kernel_layouts(config, config.orders[0]), TmaKernelLayouts)]
# TMA feeds them, and threads load one operand, and store d.
TRANSPOSED = [
    config for config in CONFIGS if isinstance(kernel_layouts(config, config.orders[0]), TransposedKernelLayouts)
]
# Words in which rows lie that begin anywhere: what lands where depends on the pitch.
ODD_ROWS = [config for config in CONFIGS if isinstance(kernel_layouts(config, config.orders[0]), OddRowsKernelLayouts)]
OTHERS = [config for config in CONFIGS if config not in TMA + TRANSPOSED + ODD_ROWS]
STAGED = [config for config in OTHERS if kernel_layouts(config).a.smem is not None]
GROUPED = list(grouped_configs())  # whose products `emulate` has not
every_odd_row = pytest.mark.parametrize("config", ODD_ROWS, ids=lambda config: config.name)
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
WEIGHTS = list(weights_configs())  # likewise
ATTENTION = list(attention_configs())  # likewise
OF_ALL = CONFIGS + GROUPED + WEIGHTS + ATTENTION
every_config_of_all = pytest.mark.parametrize("config", OF_ALL, ids=lambda config: config.name)
every_tma_row = pytest.mark.parametrize("config", TMA, ids=lambda config: config.name)
every_tma_row_of_all = pytest.mark.parametrize("config", TMA + GROUPED, ids=lambda config: config.name)
every_wgmma_row_of_all = pytest.mark.parametrize("config", TMA + GROUPED + ATTENTION, ids=lambda config: config.name)
every_transposed = pytest.mark.parametrize("config", TRANSPOSED, ids=lambda config: config.name)
every_attention_of_f32, every_attention_of_16_bits = (
    pytest.mark.parametrize(
        "config", [config for config in ATTENTION if (config.dtype == "tf32") == is_f32], ids=lambda config: config.name
    )
    for is_f32 in (True, False)
)
# Rows whose threads bring in the operands.
every_other_row = pytest.mark.parametrize("config", OTHERS, ids=lambda config: config.name)
# Of them those whose operands pass through shared memory.
every_staged_row = pytest.mark.parametrize("config", STAGED, ids=lambda config: config.name)
every_order = pytest.mark.parametrize("order", ORDERS)
# Counters of the whole launch, beside those of a k-tile.
STORES = ("global_store_requests", "global_store_sectors", "global_store_ideal_sectors")
MOVED = ("wavefronts", "sectors", "requests")  # how the counters of memory end


def counters(config, problem: Problem, out_dtype: str, **options) -> dict[str, int]:
    report = emulate(config, make_call(config, problem, out_dtype), count_transactions=True, **options)
    assert report["ok"], report["message"]
    return report["counters"]


def assert_counted(counted: dict[str, int], expected: dict[str, int], ignored: tuple[str, ...] = ()) -> None:
    """As expected, and nothing else moved."""
    assert {name: counted[name] for name in expected} == expected
    others = [name for name in counted if name.endswith(MOVED) and name not in expected and name not in ignored]
    assert {name: counted[name] for name in others if counted[name]} == {}


def epilogue_counts(kernel, ctas: int, *call, **options) -> collections.Counter:
    """Of so many CTAs; those that share a tile read and store a part of it each, perhaps one more."""
    parts = getattr(kernel, "parts", 1)
    total: collections.Counter = collections.Counter()
    for rank in range(parts):
        of_rank = options | ({"rank": rank} if parts > 1 else {})
        for name, number in kernel.epilogue_counts(*call, **of_rank).items():
            total[name] += ctas // parts * number
    return total


def shares_are_whole(config) -> bool:
    """Whether the parts of a whole tile that CTAs of a cluster add up begin with a row of banks each."""
    m, n, _ = config.tile
    return m * n % (config.k_parts * transactions.BANKS) == 0


def pitches(problem: Problem) -> tuple[int, int]:
    """Elements between the rows of a and b as they are stored; `make_call` stores both without padding."""
    return (
        problem.k if problem.order[0] == "N" else problem.m,
        problem.n if problem.order[1] == "N" else problem.k,
    )


@every_config_of_all
def test_threads_and_shared_memory(config):
    for order in config.orders:
        kernel = kernel_layouts(config, order)
        assert kernel.threads == config.threads
        assert kernel.smem_report().bytes == config.smem_bytes
        assert kernel.smem_report(f"sm_{max(80, config.min_arch)}").ok


@every_other_row
@every_order
def test_a_k_tile(config, order):
    """Full tiles, two CTAs, more k-tiles than stages: every wavefront and sector is predicted."""
    tile_m, tile_n, tile_k = config.tile
    k_tiles = config.stages + 2
    while k_tiles * tile_k * np.dtype(NUMPY_DTYPES[config.dtype]).itemsize % transactions.SECTOR_BYTES:
        k_tiles += 1
    problem = Problem(2 * tile_m, tile_n, k_tiles * tile_k, order)
    counted = counters(config, problem, config.out_dtypes[0])
    kernel = kernel_layouts(config, order)
    expected = collections.Counter()
    for name, n in kernel.counts(*pitches(problem)).items():
        expected[name] += 2 * k_tiles * n
    for name, n in kernel.epilogue_counts().items():
        expected[name] += 2 * n
    assert_counted(counted, expected, ignored=STORES)


TMA_ORDERS = [(config, order) for config in TMA for order in config.orders]


@pytest.mark.parametrize(("config", "order"), TMA_ORDERS, ids=[f"{c.name}-{order}" for c, order in TMA_ORDERS])
def test_a_k_tile_of_tma(config, order):
    """One cluster or two CTAs, two k-tiles each: every box, every wgmma, what packing moves, and how d is stored."""
    ctas, (m, n) = config.cluster[0] * config.cluster[1], config.cluster_tile
    kernel = kernel_layouts(config, order)
    if ctas == 1:  # side by side where the copies of packing divide no tile's columns, or boxes of a no tile's rows
        is_cut = any(operand.packing and n % operand.packing.tile for operand in kernel.operands)
        is_cut = is_cut or kernel.a.tile[0] != m
        ctas, m, n = (2, m, 2 * n) if is_cut else (2, 2 * m, n)
    problem = Problem(m, n, 2 * config.tile[2] * config.k_parts, order)
    counted = counters(config, problem, "bf16")
    expected = collections.Counter(kernel.pack_counts(m, n, problem.k, *pitches(problem)))
    for name, number in kernel.counts(*pitches(problem), last=True).items():
        expected[name] += 2 * ctas * number
    expected.update(epilogue_counts(kernel, ctas, n, "bf16"))
    assert_counted(counted, expected)
    assert counted["launches"] == (2 if any(operand.packing for operand in kernel.operands) else 1)


@every_tma_row
def test_epilogue_of_tma(config):
    """TMA stores what is rounded or finished in registers, threads the rest, and what was added up from parts of k."""
    tiles = config.cluster[0] * config.cluster[1]
    kernel = kernel_layouts(config, "NT")
    is_packed = any(operand.packing for operand in kernel.operands)
    problem = Problem(*config.cluster_tile, config.tile[2] if is_packed else 16, "NT")
    packing = kernel.pack_counts(problem.m, problem.n, problem.k, *pitches(problem))
    loads = [f"tma_load_{what}" for what in ("sectors", "ideal_sectors")]
    for out_dtype in config.out_dtypes:
        for options in ({}, {"activation": "relu"}):
            by_threads = kernel.stores_by_threads(out_dtype, finished=bool(options))
            expected = collections.Counter(packing)
            expected.update(epilogue_counts(kernel, tiles, problem.n, out_dtype, by_threads=by_threads))
            assert_counted(counters(config, problem, out_dtype, **options), expected, ignored=(*loads,))


TRANSPOSED_ORDERS = [(config, order) for config in TRANSPOSED for order in config.orders]


@pytest.mark.parametrize(
    ("config", "order"), TRANSPOSED_ORDERS, ids=[f"{c.name}-{order}" for c, order in TRANSPOSED_ORDERS]
)
def test_a_k_tile_of_transposed(config, order):
    """Two tiles, more k-tiles for a CTA than stages: every box and wgmma, and what threads load, turn and store."""
    tile_m, tile_n, tile_k = config.tile
    k_tiles = (config.stages + 2) * config.k_parts
    problem = Problem(2 * tile_m, tile_n, k_tiles * tile_k, order)
    kernel = kernel_layouts(config, order)
    assert kernel.turns == (order == "TN")
    expected = collections.Counter()
    for name, number in kernel.counts(*pitches(problem)).items():
        expected[name] += 2 * k_tiles * number
    expected.update(epilogue_counts(kernel, 2 * config.k_parts, problem.n, "bf16"))
    counted = counters(config, problem, "bf16")
    assert_counted(counted, expected)
    assert counted["ctas"] == 2 * config.k_parts
    if shares_are_whole(config):
        assert {name: number for name, number in counted.items() if name.endswith("_bank_conflicts") and number} == {}
    assert counted["launches"] == 1


@every_transposed
def test_epilogue_of_transposed(config):
    """Products as they are, and those that are finished: the same words, and of shared memory what parts of k need."""
    tile_m, tile_n, _ = config.tile
    kernel = kernel_layouts(config, "NN")
    problem = Problem(tile_m, 2 * tile_n, 0)
    for out_dtype in config.out_dtypes:
        expected = epilogue_counts(kernel, 2 * config.k_parts, problem.n, out_dtype)
        for options in ({}, {"activation": "relu"}):
            assert_counted(counters(config, problem, out_dtype, **options), expected)


@every_other_row
def test_epilogue(config):
    tile_m, tile_n, tile_k = config.tile
    problem = Problem(tile_m, 2 * tile_n, tile_k)
    for out_dtype in config.out_dtypes:
        report = kernel_layouts(config, "NN").epilogue_report(problem.n, out_dtype)
        counted = counters(config, problem, out_dtype)
        assert tuple(counted[name] for name in STORES) == (2 * report.requests, 2 * report.sectors, 2 * report.ideal)


@every_odd_row
@pytest.mark.parametrize("pad", [0, 1, 3, 4, 8])
def test_rows_that_begin_anywhere(config, pad):
    """One k-tile more costs what is predicted: words in which rows of b lie, and sums from where each row begins.

    Two launches are compared, as the stages that both fill first are filled without a barrier between them.
    """
    tile_m, tile_n, tile_k = config.tile
    kernel = kernel_layouts(config, "NN")
    counted = []
    for k_tiles in (config.stages + 2, config.stages + 3):
        whole, padded = (
            make_call(config, Problem(tile_m, tile_n, k_tiles * tile_k, pad=of_rows), "bf16") for of_rows in (0, pad)
        )
        call = dataclasses.replace(padded, a=whole.a, a_strides=whole.a_strides)
        report = emulate(config, call, count_transactions=True, flush="start")
        assert report["ok"], report["message"]
        counted.append(report["counters"])
    b_pitch = call.b_strides[2]
    of_k_tile = kernel.counts(k_tiles * tile_k, b_pitch)
    assert_counted({name: counted[1][name] - counted[0][name] for name in counted[0]}, of_k_tile)
    of_epilogue = kernel.epilogue_counts(b_pitch)
    reads = k_tiles * of_k_tile["shared_load_wavefronts"] + of_epilogue["shared_load_wavefronts"]
    assert counted[1]["shared_load_wavefronts"] == reads
    assert counted[1]["shared_store_wavefronts"] == of_epilogue["shared_store_wavefronts"]


@every_odd_row
def test_conflicts_of_odd_rows(config):
    """None where words of a land, nor where ldmatrix reads; an element of each of four rows of a is in one bank."""
    kernel = kernel_layouts(config, "NN")
    of_a, of_b = kernel.read_reports()
    assert (of_a.degree, of_b.degree) == (4, 1)
    assert kernel.store_report().wavefronts == kernel.store_report().ideal


@every_odd_row
def test_results_of_odd_rows(config):
    """A warp stores neighbours, element by element."""
    tile_m, tile_n, tile_k = config.tile
    for out_dtype in config.out_dtypes:
        report = kernel_layouts(config, "NN").epilogue_report(tile_n, out_dtype)
        counted = counters(config, Problem(tile_m, tile_n, tile_k), out_dtype, flush="start")
        assert tuple(counted[name] for name in STORES) == (report.requests, report.sectors, report.ideal)


@every_config
def test_predictions_do_not_depend_on_the_schedule(config):
    """Instructions are put together from what fibers did at different times."""
    tile_m, tile_n, tile_k = config.tile
    problem = Problem(tile_m, tile_n, 2 * tile_k, order_for(config, "TN"))
    of_fifo = counters(config, problem, config.out_dtypes[0])
    for options in ({"order": "lifo"}, {"order": "random", "mode": "random", "seed": 3}, {"detect_races": False}):
        other = counters(config, problem, config.out_dtypes[0], **options)
        # Of mbarriers, how often one was found incomplete does.
        scheduled = ("switches", "mbarrier_blocking_waits")
        assert {k: v for k, v in other.items() if k not in scheduled} == {
            k: v for k, v in of_fifo.items() if k not in scheduled
        }


# TMA reads pitches of 16 bytes; rows of less alignment pack such operands.
@pytest.mark.parametrize(
    "config", OTHERS + TRANSPOSED + [c for c in TMA if c.alignment == 16], ids=lambda config: config.name
)
def test_a_pitch_that_is_no_multiple_of_a_sector(config):
    """Rows that begin inside a sector touch one more: predicted row by row, the tile's first element being aligned."""
    tile_m, tile_n, tile_k = config.tile
    order = order_for(config)
    problem = Problem(*config.cluster_tile, tile_k * config.k_parts, order, pad=1)
    call = make_call(config, problem, config.out_dtypes[0])
    a_pitch, b_pitch = max(call.a_strides[1:]), max(call.b_strides[1:])
    kernel = kernel_layouts(config, order)
    a_bytes, b_bytes = (x.size * x.dtype.itemsize for x in (call.a, call.b))
    # The guarded arrays end at a page: their first elements lie this far into a sector.
    bases = -a_bytes // 16 * 16 % 32, -b_bytes // 16 * 16 % 32
    report = emulate(config, call, count_transactions=True)
    if config in TMA + TRANSPOSED:
        loads = kernel.a.load_report(a_pitch, bases[0], tile_m) + kernel.b.load_report(b_pitch, bases[1], tile_n)
        # Every CTA of a cluster loads alike: its tile or its part of one begins at a sector as the first one's does.
        ctas = config.cluster[0] * config.cluster[1]
        assert report["counters"]["tma_load_sectors"] == ctas * loads.sectors > ctas * loads.ideal
    else:
        loads = kernel.a.load_report(a_pitch, bases[0]) + kernel.b.load_report(b_pitch, bases[1])
        name = "global_load" if kernel.a.store or kernel.a.smem is None else "cp_async"
        assert report["counters"][f"{name}_sectors"] == loads.sectors > loads.ideal


@every_wgmma_row_of_all
def test_what_tma_writes_wgmma_reads(config):
    """Boxes put each element where the layout has it, whoever loads them; each stage has descriptors, on its own."""
    for order in config.orders:
        for operand in kernel_layouts(config, order).operands:
            assert_placed(operand)
            assert_described(operand, config.stages)


def assert_placed(operand) -> None:
    """Boxes put each element where the layout has it."""
    layout = operand.stage.values().reshape(operand.tile, order="F")
    np.testing.assert_array_equal(operand.placed(), layout * operand.item_bytes)


def assert_described(operand, stages: int) -> None:
    """Each stage has descriptors, on its own."""
    first, *others = (operand.descriptors(stage * operand.stage_bytes) for stage in range(stages))
    for stage, descriptors in enumerate(others, 1):
        for one, same in zip(first, descriptors, strict=True):
            assert int(same) - int(one) == stage * operand.stage_bytes // 16


@every_transposed
def test_what_tma_writes_threads_load_or_turn(config):
    """wgmma could read neither where it lies: threads load all of b, two neighbours at once, and turn boxes of a."""
    for order in config.orders:
        kernel = kernel_layouts(config, order)
        for operand in kernel.operands:
            assert_placed(operand)
        assert_described(kernel.turned, config.stages)
        for operand in (kernel.b, *([kernel.a] if kernel.turns else [])):
            with pytest.raises(NotCanonicalGmma, match="MN-major"):
                operand.descriptors()
        assert (kernel.a == kernel.turned) == (not kernel.turns)
        # A box as TMA writes it and as wgmma reads it, as many rows as columns: the same bytes.
        of_box = config.tile[2] ** 2
        boxes = [np.sort(x.placed().reshape(-1, of_box), axis=1) for x in (kernel.a, kernel.turned)]
        np.testing.assert_array_equal(*boxes)
        assert checks.coverage(kernel.read, side="S", write=False).ok
        assert checks.alignment(kernel.b.stage, kernel.read, side="S").ok
        assert kernel.read.atom.num_val_src == 2


@every_transposed
def test_no_conflicts_of_transposed(config):
    """Lanes read b, and read and write what they turn of a, in as few wavefronts as there can be."""
    for order in config.orders:
        kernel = kernel_layouts(config, order)
        for report in (kernel.read_report(), *kernel.turn_reports()):
            assert report.ok
            assert report.degree == 1
        assert kernel.store_report(4096, "f32").ok  # of 16 bits, two warps fill a sector


@pytest.mark.parametrize("config", [c for c in CONFIGS if c.k_parts > 1], ids=lambda config: config.name)
def test_no_conflicts_of_sums_that_a_cluster_adds_up(config):
    """Every CTA writes its sums and reads its share without a conflict, if the share begins with a row of banks."""
    kernel = kernel_layouts(config, order_for(config))
    m, n = kernel.tile
    for rank in range(config.k_parts):
        write, read = kernel.staging_reports(rank=rank)
        assert write.ok
        assert write.degree == 1
        assert write.requests == m * n // (1 if getattr(kernel, "exchanged", False) else 2) // 32
        if rank == 0 or shares_are_whole(config):
            assert read.ok
            assert read.degree == 1
        assert read.degree < 1.3
    places = kernel.sums_layout.values()
    np.testing.assert_array_equal(np.unique(places), np.sort(places))
    assert 4 * places.max() < kernel.smem_report().bytes


@every_tma_row_of_all
def test_no_conflicts_of_the_staging(config):
    kernel = kernel_layouts(config, "NT")
    by_threads = config.kernel == "sm90_split_k"  # alone
    for out_dtype in () if by_threads else config.out_dtypes:
        assert kernel.box_report(out_dtype).degree == 1
    assert all(report.degree == 1 for report in kernel.staging_reports())


@pytest.mark.parametrize("config", WEIGHTS, ids=lambda config: config.name)
def test_no_conflicts_of_weights(config):
    """ldmatrix.trans reads them without a conflict, and lanes write and read the sums of their columns so."""
    kernel = kernel_layouts(config)
    assert kernel.read_report().ok
    assert all(report.degree == 1 for report in kernel.staging_reports())
    np.testing.assert_array_equal(kernel.a.placed(), kernel.a.stage.values().reshape(kernel.a.tile, order="F") * 2)
    # Each column of the tile is four lanes', those of four pairs of rows along k.
    columns = kernel.first_column(np.arange(8)[:, None], np.arange(32))
    every = (columns[..., None] + np.arange(kernel.columns)).ravel()
    np.testing.assert_array_equal(np.sort(every), np.repeat(np.arange(config.tile[1]), 4))


@every_attention_of_f32
def test_scores_of_f32_are_the_next_operand_in_another_order_of_k(config):
    """Of every 8 columns a lane has the sums, rows 8 apart, as mma.sync's A; it loads V where TMA has put it."""
    kernel = kernel_layouts(config, "NT")
    sums, operand = kernel.scores_tv, kernel.weighted.atom.layout_A_TV
    in_order = kernel.weighted.permutation[2]  # of k
    for lane in range(32):
        of_sums = [(place % 64, place // 64) for place in (sums(lane, value) for value in (0, 2, 1, 3))]
        of_operand = [(place % 16, in_order(place // 16)) for place in (operand(lane, value) for value in range(4))]
        assert of_sums == of_operand
    assert_placed(kernel.summed if hasattr(kernel, "summed") else kernel.v)
    assert not kernel.summed_by_wgmma


@every_attention_of_16_bits
def test_scores_of_attention_are_the_next_operand(config):
    """Of one warpgroup's tile: a lane has as A's fragments what it has as sums, and stores it without a conflict."""
    kernel = kernel_layouts(config, "NT")
    assert config.consumer_tile == (64, config.tile[1])
    assert config.consumers == (2 if hasattr(kernel, "summed") else config.tile[0] // 64)
    assert kernel.scores_tv.size == 64 * config.tile[1]
    np.testing.assert_array_equal(kernel.scores_tv.values(), kernel.weights_tv.values())
    one = kernel.weighted.atom.layout_A_TV  # of the 16 columns of step 2, by hand
    assert [kernel.weights_tv(77, value + 2 * 8) for value in range(8)] == [
        one(77, value) + 2 * 16 * 64 for value in range(8)
    ]
    assert kernel.store_report().degree == 1
    assert kernel.store_report().requests == 4


@pytest.mark.parametrize(
    "config", [c for c in ATTENTION if hasattr(kernel_layouts(c, "NT"), "summed")], ids=lambda config: config.name
)
def test_streamed_rows_lie_as_two_operands(config):
    """What sums over head_dim and what sums over rows read the same bytes."""
    kernel, (_, step, head) = kernel_layouts(config, "NT"), config.tile
    row, column, stage = np.meshgrid(np.arange(step), np.arange(head), np.arange(config.stages), indexing="ij")
    of_streamed = kernel.streamed.smem.values().reshape((step, 64, -1), order="F")
    shares = 128 // config.tile[0]  # consumers that sum a part of head_dim each: those lie one behind the other
    own = head // shares
    of_summed = kernel.summed.smem.values().reshape((own, step, -1), order="F")
    parts = head // 64
    np.testing.assert_array_equal(
        of_streamed[row, column % 64, stage * parts + column // 64],
        of_summed[column % own, row, stage * shares + column // own],
    )


@pytest.mark.parametrize("itemsize", [1, 2, 4])
@pytest.mark.parametrize("along_k", [False, True])
def test_no_conflicts_of_packing(itemsize, along_k):
    packing = PackLayouts(itemsize, along_k)
    assert packing.load_report(4096).ok
    assert packing.store_report().ok
    assert all(report.degree == 1 for report in packing.turn_reports())


@every_staged_row
def test_no_conflicts(config):
    """Shared memory is written and, by ldmatrix, read without conflicts; a fragment's plain reads meet in no bank.

    Nor do the sums on their way through shared memory.
    """
    for order in ORDERS:
        assert all(report.ok for report in kernel_layouts(config, order).staging_reports())
        for operand in kernel_layouts(config, order).operands:
            assert operand.store_report().ok
            assert operand.read_report().ok
            assert operand.load_report(4096).ok


@every_staged_row
@every_order
def test_copies_are_whole(config, order):
    """Every element of a tile is written once and read, at addresses that the instructions can reach."""
    for operand in kernel_layouts(config, order).operands:
        writes = operand.store or operand.load
        assert checks.coverage(writes).ok
        assert checks.coverage(operand.read, side="S", write=False).ok
        elements = Layout((operand.tile[0] * operand.tile[1], 1))
        assert checks.coverage(elements, operand.tile, memory=operand.stage).ok
        assert checks.alignment(operand.stage, writes).ok
        if "ldmatrix" in operand.read.atom.op.ptx:
            assert checks.ldmatrix_legality(operand.stage, operand.read).ok


SIMT = [config for config in STAGED if kernel_facts(config.kernel).instruction == "fma"]


@pytest.mark.parametrize("config", SIMT, ids=lambda config: config.name)
@every_order
def test_widest_vectors(config, order):
    """What `copy` without an atom chooses in simt_*.cuh, from one thread's layouts."""
    kernel = kernel_layouts(config, order)
    for operand, partition in zip(kernel.operands, ("partition_A", "partition_B"), strict=True):
        part, _offset = getattr(kernel.mma.get_slice(5), partition)(operand.stage)
        block = part[:2]  # one k: (MMA,MMA_M)
        read = checks.widest_vector(block, make_fragment_like(block), config.dtype)
        assert read.elements == operand.read.atom.num_val_src
        if operand.store is None:  # cp.async
            continue
        part, _offset = operand.load.get_slice(5).partition_D(operand.smem)
        store = checks.widest_vector(make_fragment_like(part), part, config.dtype)
        assert store.elements == operand.store.atom.num_val_dst


def test_counting_is_off_by_default():
    config = next(row for row in OTHERS if row.kernel == "sm80_multistage" and row.alignment == 16)
    report = emulate(config, make_call(config, Problem(64, 64, 64), "f32"))
    assert report["counters"]["cp_async"] > 0
    assert report["counters"]["cp_async_requests"] == 0


# ---- Single instructions -------------------------------------------------------------------------------------------


def instructions() -> list[tuple[str, int, list[int | None]]]:
    """(kind, width in bytes, offset of each lane): strides, one word for all, permutations, random ones with gaps."""
    rng = random.Random(1)
    found: list[tuple[str, int, list[int | None]]] = []
    for width in (1, 2, 4, 8, 16):
        kinds = ["shared_load", "shared_store", "global_load", "global_store"] + ["cp_async"] * (width >= 4)
        for kind in kinds:
            patterns = [[stride * width * lane for lane in range(32)] for stride in (0, 1, 2, 3, 8, 17, 32)]
            patterns += [[(lane ^ 5) * width for lane in range(32)], [(lane // 4) * width for lane in range(32)]]
            for spread in (16, 100, 2000):
                patterns.append([rng.randrange(spread) * width for _ in range(32)])
                patterns.append([rng.randrange(spread) * width if rng.random() < 0.6 else None for _ in range(32)])
            found += [(kind, width, pattern) for pattern in patterns]
    for matrices in (1, 2, 4):
        for pitch in (0, 16, 32, 48, 64, 80, 128, 144, 512):
            found.append(("ldmatrix", matrices, [pitch * lane for lane in range(32)]))
        found += [("ldmatrix", matrices, [16 * rng.randrange(2000) for _ in range(32)]) for _ in range(5)]
    return found


def predicted(kind: str, width: int, offsets: list[int | None]) -> tuple[int, ...]:
    if kind == "ldmatrix":
        banks = transactions.ldmatrix(offsets, width)
        return banks.requests, banks.wavefronts, banks.ideal, 0, 0, banks.wavefronts - banks.ideal
    banks, sectors = transactions.shared_memory(offsets, width), transactions.global_memory(offsets, width)
    shared = (banks.wavefronts, banks.ideal) if kind != "global_load" and kind != "global_store" else (0, 0)
    moved = (sectors.sectors, sectors.ideal) if kind not in ("shared_load", "shared_store") else (0, 0)
    lanes = 32 if width <= 4 else 128 // width  # of a phase
    phases = sum(any(x is not None for x in offsets[i : i + lanes]) for i in range(0, 32, lanes))
    return 1, *shared, *moved, shared[0] - phases if shared[0] else 0


def test_single_instructions():
    """The rules that the emulator and `jax_moye.layout.transactions` count by, on instructions with conflicts."""
    program = cxx.build("transactions", kernel_sources=[pathlib.Path(__file__).with_name("transactions.cc")])
    cases = instructions()
    lines = [f"{kind} {width} {' '.join('-1' if x is None else str(x) for x in o)}" for kind, width, o in cases]
    done = subprocess.run([program], input="\n".join(lines), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout
    counted = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert len(counted) == len(cases) > 300
    for case, found in zip(cases, counted, strict=True):
        assert found == predicted(*case), case
