"""Bugs planted in sm80_persistent.cuh and what it stands on: the stages that outlive a tile, and the scheduler."""

from __future__ import annotations

from tests.emulated.mutants import OF_PIPELINE, PIPELINE, REMAINDER, Mutant, race

PERSISTENT = "{sm80_persistent, bf16, f32, {64, 64, 32}, 3, {1, 1}, 16}"
P = "sm80_persistent.cuh"
TILES = (140, 140, 72)  # 9 tiles of 3 k-tiles, for two CTAs

MUTANTS = [
    *(
        Mutant(f"persistent_{name}", PERSISTENT, PIPELINE, *texts, race(P, "ldmatrix", "cp.async"), sizes=TILES)
        for name, texts in OF_PIPELINE.items()
    ),
    Mutant(
        "persistent_wait_of_a_tile_missing",
        PERSISTENT,
        P,
        "      if (k_tiles > 0) {\n        pipeline.consumer_wait();\n",
        "      if (k_tiles > 0) {\n",
        race(P, "ldmatrix", "cp.async"),
        sizes=TILES,
    ),
    Mutant(
        "persistent_wrong_stage",
        PERSISTENT,
        P,
        "copy(smem_copy_a, tXsA(_, _, block, pipeline.read()), tXrA(_, _, block));",
        "copy(smem_copy_a, tXsA(_, _, block, 0), tXrA(_, _, block));",
        race(P, "(cp.async|ldmatrix)", "(cp.async|ldmatrix)"),
        sizes=TILES,
    ),
    Mutant(
        "persistent_wrong_swizzle",
        PERSISTENT,
        P,
        "Tensor tXsB = smem_thr_copy_b.partition_S(sB);",
        "Tensor tXsB = smem_thr_copy_b.partition_S(make_tensor(make_smem_ptr(smem.operands.b), "
        "tile_to_shape(Layout<Shape<_8, Int<kBlkK>>, Stride<Int<kBlkK>, _1>>{}, "
        "Shape<Int<kBlkN>, Int<kBlkK>, Int<kStages>>{})));",
        "wrong",
        sizes=TILES,
    ),
    Mutant(
        "persistent_stage_kept_after_a_tile",
        PERSISTENT,
        P,
        "            pipeline.consumer_release();\n            if (k_tile + 1 < k_tiles) {\n",
        "            if (k_tile + 1 < k_tiles) {\n              pipeline.consumer_release();\n",
        race(P, "(cp.async|ldmatrix)", "(cp.async|ldmatrix)"),
        sizes=TILES,
    ),
    Mutant(
        "persistent_epilogue_in_the_stages",  # where the next tile's first k-tiles land
        PERSISTENT,
        P,
        "  struct SharedStorage {",
        "  union SharedStorage {",
        race(P, "(cp.async|plain store|plain load|ldmatrix)", "(cp.async|plain store|plain load|ldmatrix)"),
        sizes=TILES,
    ),
    Mutant(
        "persistent_epilogue_reused_too_early",
        PERSISTENT,
        P,
        "        sync_threads();  // every warp is done with the epilogue before",
        "        // every warp is done with the epilogue before",
        race(P, "plain (load|store)", "plain (load|store)"),
        sizes=(140, 140, 0),
    ),
    Mutant(
        "persistent_sums_not_cleared",
        PERSISTENT,
        P,
        "    for (TileCoord tile : tiles) {\n      clear(tCrC);\n",
        "    clear(tCrC);\n    for (TileCoord tile : tiles) {\n",
        "wrong",
        sizes=TILES,
    ),
    Mutant(
        "persistent_skips_the_remainder",
        PERSISTENT,
        "tile_scheduler.h",
        *REMAINDER,
        "wrong",
        sizes=TILES,
    ),
    Mutant(
        "persistent_loads_run_into_another_tile",
        PERSISTENT,
        P,
        "    auto next_tile = tiles.begin();\n",
        "    TileScheduler<>::Iterator next_tile(grid, block_idx().x, 1);\n",
        "wrong",
        sizes=TILES,
    ),
    Mutant(
        "persistent_stores_the_tile_that_loads",
        PERSISTENT,
        P,
        "Epilogue::store(args, tile, tCrC",
        "Epilogue::store(args, next, tCrC",
        "wrong",
        sizes=TILES,
    ),
    Mutant(
        "persistent_edge_of_the_first_tile",  # the predicates do not follow the tile
        PERSISTENT,
        P,
        "int(args.m) - next.m * kBlkM;",
        "int(args.m);",
        r"out of bounds: cp\.async .*by .*thread \d+ .* at sm80_persistent\.cuh:\d+.*",
        sizes=TILES,
    ),
    Mutant(
        "persistent_scheduler_group_of_the_remainder",
        PERSISTENT,
        "tile_scheduler.h",
        "unsigned const rows = is_last ? unsigned(grid.m) - first_m : unsigned(grid.super_m);",
        "unsigned const rows = unsigned(grid.super_m);",
        "wrong",
        sizes=(9 * 64, 100, 40),
    ),
]
