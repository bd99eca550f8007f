"""Rows of the table for blocks that have scales, which no build needs to have."""

from jax_moye._kernels.configs import ConfigTable, GemmConfig


def fake_row(m=128, dtype="e4m3") -> GemmConfig:
    """A row as the table has them."""
    return GemmConfig(
        name=f"sm90_cooperative_{dtype}_f32_blocks_{m}x128x128_s5_a16",
        kernel="sm90_cooperative",
        dtype=dtype,
        accumulator="f32_blocks",
        out_dtypes=("bf16", "f16", "f32"),
        tile=(m, 128, 128),
        stages=5,
        cluster=(1, 1),
        alignment=16,
        orders=("NT",),
        any_stride=False,
        threads=384,
        smem_bytes=200_000,
        min_arch=90,
        max_arch=90,
        consumers=2,
        consumer_tile=(64, m),
        scales=True,
        block_scales=True,
    )


FAKE = ConfigTable([fake_row(128), fake_row(64), fake_row(dtype="e4m3xe5m2")])
