"""Which config stands for a kernel on the ladder."""

from __future__ import annotations

import dataclasses

import jax_moye
from jax_moye._bench.ladder import rung_configs
from jax_moye._kernels.configs import GemmConfig

KERNELS = {config.kernel for config in jax_moye.configs()}


def config_of(
    kernel="sm80_multistage",
    dtype="bf16",
    accumulator="f32",
    tile=(128, 128, 32),
    stages=4,
    cluster=(1, 1),
    alignment=16,
):
    name = f"{kernel}_{dtype}_{accumulator}_{tile}_{stages}_{cluster}_{alignment}"
    return GemmConfig(
        name, kernel, dtype, accumulator, (dtype,), tile, stages, cluster, alignment, ("NN",), False, 128, 1024, 80
    )


def test_every_kernel_of_the_table_is_a_rung():
    assert set(rung_configs.RUNGS) >= KERNELS
    shown = {kernel for dtype in rung_configs.NEAREST for kernel in rung_configs.rungs(dtype)}
    assert shown == KERNELS


def test_the_representative():
    best = config_of()
    others = [
        config_of(alignment=8),
        config_of(accumulator="f16"),
        config_of(cluster=(2, 1)),
        config_of(tile=(64, 64, 32)),
        config_of(tile=(128, 128, 64)),  # after it in the table
    ]
    assert rung_configs.representative([*others[:4], best, others[4]]) == best
    # Wide loads come before the usual accumulator, that before no cluster, and that before the tile.
    assert rung_configs.representative(others[:2]) == others[1]
    assert rung_configs.representative(others[1:3]) == others[2]
    assert rung_configs.representative(others[2:4]) == others[3]
    assert (
        rung_configs.representative([config_of(dtype="f64"), config_of(dtype="f64", accumulator="f64")]).accumulator
        == "f64"
    )


def test_a_cluster_stands_for_what_splits_k():
    one, two = (config_of("sm90_split_k", cluster=(1, parts)) for parts in (1, 2))
    assert rung_configs.representative([one, two]) == two


def test_the_nearest_dtype_stands_in():
    table = [
        config_of("simt_tiled", "f64"),
        config_of("simt_tiled", "f32"),
        config_of("sm80_multistage", "f16"),
        config_of(),
    ]
    assert [(k, r.dtype) for k, r in rung_configs.rungs("bf16", "NN", table).items()] == [
        ("simt_tiled", "f32"),
        ("sm80_multistage", "bf16"),
    ]
    assert [r.dtype for r in rung_configs.rungs("f64", "NN", table).values()] == ["f64"]
    assert rung_configs.rungs("s8", "NN", table) == {}


def test_a_rung_takes_the_order_of_the_operands():
    table = [config_of("sm90_cooperative", "tf32", alignment=16), config_of("sm90_cooperative", "tf32", alignment=4)]
    table[1] = dataclasses.replace(table[1], orders=("NN", "NT", "TN", "TT"))
    assert [rung_configs.rungs("tf32", order, table)["sm90_cooperative"].alignment for order in ("NN", "TT")] == [16, 4]


def test_stage_configs_differ_in_stages_alone():
    table = [config_of(stages=s) for s in (4, 2, 3)] + [
        config_of(stages=5, tile=(64, 64, 32)),
        config_of(stages=6, alignment=8),
    ]
    assert [r.stages for r in rung_configs.stage_configs("bf16", table)] == [2, 3, 4]
    assert rung_configs.stage_configs("s8", table) == []
    assert [r.stages for r in rung_configs.stage_configs("bf16")] == [2, 3, 4, 5, 6]
