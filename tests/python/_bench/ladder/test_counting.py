"""What the emulator counts of each rung, and how two rungs compare."""

from __future__ import annotations

import numpy as np
import pytest

from jax_moye._bench import ladder
from jax_moye._bench.ladder import counting

M, N, K = SHAPE = (256, 256, 128)


def counted(dtype: str, order: str = "NN") -> dict[str, dict]:
    return {kernel: ladder.count(config, SHAPE, order) for kernel, config in ladder.rungs(dtype, order).items()}


def packs(config) -> bool:
    """Whether it copies its operands first: configs for what TMA cannot read."""
    return config.kernel.startswith("sm90") and config.alignment < 16


@pytest.mark.parametrize("dtype", ["bf16", "tf32", "f32"])
@pytest.mark.parametrize("order", ["NN", "TN"])
def test_facts_of_the_rungs(dtype, order):
    rungs = ladder.rungs(dtype, order)
    for kernel, found in counted(dtype, order).items():
        if kernel == "sm90_odd_rows":  # multiplies and loads more than the tile, see tests/emulated/test_counters.py
            continue
        config, instructions = rungs[kernel], found["instructions"]
        family = "sm80" if kernel == "sm90_sliced_k" else kernel[:4]  # by what multiplies
        item_bytes = np.dtype("f2" if config.dtype in ("bf16", "f16") else "f4").itemsize
        mma_k = {"sm70": 8, "sm80": 8 if config.dtype == "tf32" else 16}.get(family)  # of 16x8 of D
        assert instructions["mma"] == (M * N * K // (16 * 8 * mma_k) if mma_k else 0), kernel
        assert (instructions["wgmma"] > 0) == (instructions["tma_load"] > 0) == (family == "sm90"), kernel
        if not packs(config):
            assert (instructions["cp_async"] > 0) == (
                family == "sm80" or kernel[:6] == "simt_o" or kernel[:6] == "simt_d"
            )
            assert found["global"]["sector_efficiency"] == 1, kernel
            assert found["global"]["sectors_per_useful_byte"] == 1 / 32
            reads = M * K * (N // config.tile[1]) + N * K * (M // config.tile[0])  # every tile of D reads its rows
            assert found["global"]["useful_bytes"] == (reads + M * N) * item_bytes, kernel
        if ladder.RUNGS.index(kernel) >= ladder.RUNGS.index("sm80_ldmatrix"):
            assert found["shared"]["bank_conflicts"] == 0, kernel
            loads = family == "sm80" and (config.dtype != "tf32" or order != "TN")  # 32-bit elements along k alone
            assert (instructions["ldmatrix"] > 0) == loads, kernel


def test_each_idea_shows_in_its_counter():
    found = counted("bf16")
    instructions = {kernel: counts["instructions"] for kernel, counts in found.items()}
    moved = {kernel: sum(counts.values()) for kernel, counts in instructions.items()}
    assert instructions["simt_tiled"]["global_load"] > 0 == instructions["simt_overlap"]["global_load"]
    assert found["simt_overlap"]["barriers"]["cta"] == 2 * found["simt_double_buffer"]["barriers"]["cta"]
    assert instructions["sm80_ldmatrix"]["ldmatrix"] > 0 == instructions["sm80_tensorop"]["ldmatrix"]
    assert moved["sm80_ldmatrix"] < moved["sm80_tensorop"] < moved["simt_double_buffer"]
    assert found["sm80_ldmatrix"]["shared"]["wavefronts"] < found["sm80_tensorop"]["shared"]["wavefronts"]
    assert instructions["sm80_double_buffer"] == instructions["sm80_ldmatrix"] == instructions["sm80_multistage"]
    assert found["sm80_persistent"]["ctas"] < found["sm80_multistage"]["ctas"]
    assert moved["sm90_cooperative"] < moved["sm80_persistent"] / 4
    assert instructions["sm90_cooperative"]["wgmma"] == instructions["sm90_pingpong"]["wgmma"]
    assert instructions["sm90_split_k"]["wgmma"] == instructions["sm90_pingpong"]["wgmma"]
    assert found["sm90_split_k"]["barriers"]["cluster"] > 0 == found["sm90_pingpong"]["barriers"]["cluster"]
    assert found["sm90_parallel_split_k"] == found["sm90_cooperative"]  # one part


def test_parts_of_k_meet_in_memory():
    rungs, (m, n, k) = ladder.rungs("bf16"), (128, 128, 1024)
    whole, split = (ladder.count(rungs[kernel], (m, n, k)) for kernel in ("sm90_cooperative", "sm90_parallel_split_k"))
    for name in ("wgmma", "tma_load"):
        assert split["instructions"][name] == whole["instructions"][name] > 0
    parts, rest = divmod(split["global"]["useful_bytes"] - whole["global"]["useful_bytes"], 2 * 4 * m * n)
    assert rest == 0
    assert parts > 1
    assert split["instructions"]["global_load"] == parts * m * n // (4 * 32)  # four sums a lane
    assert split["ctas"] > whole["ctas"] == 1


def test_sectors_of_tma_are_not_guessed():
    config = ladder.rungs("bf16")["sm90_cooperative"]
    of_memory = ladder.count(config, (128, 128, 72))["global"]  # rows of a: 144 bytes
    assert of_memory["sectors"] is of_memory["sector_efficiency"] is None
    assert ladder.count(config, (128, 128, 80))["global"]["sectors"] > 0


def test_a_wrong_product_is_no_rung(monkeypatch):
    from jax_moye import _moye_cpu

    def forgets(name, a, b, d, **options):
        return {"ok": True, "message": "", "counters": {}}

    monkeypatch.setattr(_moye_cpu, "emulate", forgets)
    counting._count.cache_clear()
    with pytest.raises(RuntimeError, match="the product of 64x64x64 NN is wrong"):
        ladder.count(ladder.rungs("bf16")["sm80_multistage"], (64, 64, 64))


def test_compare():
    before = {"ctas": 4, "shared": {"wavefronts": 10}, "global": {"sector_efficiency": 0.5, "sectors": None}}
    after = {"ctas": 4, "shared": {"wavefronts": 5}, "global": {"sector_efficiency": 1.0, "sectors": 3}}
    lines = [line.split() for line in ladder.compare(before, after).splitlines()]
    assert lines == [
        ["before", "after"],
        ["shared", "wavefronts", "10", "5"],
        ["global", "sector_efficiency", "0.5000", "1.0000"],
        ["global", "sectors", "-", "3"],
    ]
    assert ladder.compare(before, before) == "no counter differs"


def test_the_trace_of_a_ring_of_stages():
    """Every k-tile fills a stage once: its bytes are announced, come in boxes, and are released by every warp."""
    config = ladder.rungs("bf16")["sm90_cooperative"]
    (tile_m, tile_n, tile_k), stages = config.tile, config.stages
    k_tiles = stages + 2
    events = ladder.trace(config, (tile_m, tile_n, tile_k * k_tiles))
    full, empty = range(stages), range(stages, 2 * stages)
    counts = {e.mbarrier: e.arrivals for e in events if e.what == "mbarrier.init"}
    warps = counts[empty[0]]
    landed_ahead = range(2 * stages, 2 * stages + warps)  # of what each warp reads ahead, which this product has not
    assert counts == {**dict.fromkeys([*full, *landed_ahead], 1), **dict.fromkeys(empty, warps)}
    assert {e.what for e in events if e.mbarrier in landed_ahead} == {"mbarrier.init"}
    uses = [len(range(stage, k_tiles, stages)) for stage in full]
    for stage, used in zip(full, uses, strict=True):
        of_full = [e for e in events if e.mbarrier == stage]
        announced = [e for e in of_full if e.what == "mbarrier.arrive.expect_tx"]
        assert [(e.nbytes, e.pending) for e in announced] == [((tile_m + tile_n) * tile_k * 2, 0)] * used
        loads = [e for e in of_full if e.what == "TMA load"]
        assert len(loads) == len([e for e in of_full if e.what == "complete_tx"]) == 3 * used  # A, and B in two halves
        assert of_full[-1].phase == used
    landed = [e for e in events if e.what == "complete_tx"]
    assert {e.threads for e in landed} == {(-1, -1)}
    # A warp arrives as one thread, and neighbouring warps are one event: what they leave is what counts.
    last = {e.mbarrier: e for e in events}
    assert all(last[e].phase in (used, used - 1) for e, used in zip(empty, uses, strict=True))
    assert all(e.place.split(":")[0].endswith((".h", ".cuh")) for e in events)
    assert {e.what for e in events if "wait" in e.what} == {"mbarrier.try_wait", "mbarrier.try_wait (waits)"}
    assert ladder.trace(config, (tile_m, tile_n, tile_k * k_tiles)) == events, "the same run, the same trace"
