"""A table and a model of their own: golden files are about what is said, not about what is fitted."""

import jax
import jax.numpy as jnp

import jax_moye
from jax_moye._inspect.command import explain_shape
from jax_moye._kernels.configs import ConfigTable, GemmConfig
from jax_moye._selection import cost

bf16 = jnp.bfloat16


def struct(*shape, dtype=bf16):
    return jax.ShapeDtypeStruct(shape, dtype)


def row(kernel, dtype, tile, stages, alignment, threads, smem, registers, arch, cluster=(1, 1), accumulator="f32"):
    c = "" if cluster == (1, 1) else f"_c{cluster[0]}x{cluster[1]}"
    outs = {"bf16": ("bf16", "f32"), "f64": ("f64",)}.get(dtype, ("f32",))
    tile_words = "x".join(map(str, tile))
    return GemmConfig(
        name=f"{kernel}_{dtype}_{tile_words}_s{stages}{c}_a{alignment}",
        kernel=kernel,
        dtype=dtype,
        accumulator=accumulator,
        out_dtypes=outs,
        tile=tile,
        stages=stages,
        cluster=cluster,
        alignment=alignment,
        orders=("NN", "NT", "TN", "TT"),
        any_stride=alignment < 16,
        threads=threads,
        smem_bytes=smem,
        min_arch=arch,
        max_arch=90 if arch == 90 else 0,
        registers={f"sm_{arch}": registers},
    )


# A table of its own and a model of one line: the golden files are about what is said, not about what is fitted.
TABLE = ConfigTable(
    [
        row("sm90_cooperative", "bf16", (128, 256, 64), 4, 16, 384, 230_400, 168, 90, cluster=(2, 1)),
        row("sm90_pingpong", "bf16", (64, 256, 64), 4, 16, 384, 204_800, 168, 90),
        row("sm80_multistage", "bf16", (128, 128, 32), 4, 16, 128, 65_536, 241, 80),
        row("sm80_multistage", "bf16", (64, 64, 32), 3, 2, 128, 24_576, 128, 80),
        row("sm80_multistage", "tf32", (128, 128, 32), 3, 16, 128, 98_304, 252, 80),
        row("simt_tiled", "f32", (64, 64, 8), 1, 4, 256, 4_352, 88, 70),
        row("sm80_multistage", "f64", (64, 64, 16), 3, 8, 128, 49_152, 158, 80, accumulator="f64"),
    ]
)


def simple_terms(config, problem, arch):
    tile_m, tile_n, _ = config.tile
    tiles = problem.batch * -(-problem.m // tile_m) * -(-problem.n // tile_n)
    waves = -(-tiles // 128)
    products = waves * tile_m * tile_n * problem.k / {"sm90": 2**20, "sm80": 2**19, "simt": 2**17}[config.kernel[:4]]
    memory = (problem.m + problem.n) * problem.k / 2**20
    us = 2 + products + 1 + memory / 4
    return cost.Terms(2.0, products, 1.0, memory, 0.75 * memory, 0.0, 0.0, 1.0, us, 128, 1, tiles, 1, waves)


def program(x, w, bias):
    hidden, _ = jax.lax.scan(lambda y, _: (jax_moye.linear(y, w, bias, activation="silu"), None), x, None, length=4)
    return jnp.dot(hidden, w) + jax_moye.matmul(hidden, w.T, preferred_element_type=jnp.int16).astype(bf16)


GOLDEN_CASES = {
    "large": lambda: explain_shape("4096x4096x4096:bf16", device="h200"),
    "odd": lambda: jax_moye.explain((100, 99), (99, 60), "bfloat16", device="h200"),
    "left_to_xla": lambda: explain_shape("4096x4096x4097:bf16:NT", device="h200"),
    "transposed_batch": lambda: explain_shape("3x128x64x256:bf16:TT", preferred_element_type="float32", device="h100"),
    "split": lambda: explain_shape("4096x4096x4096:f32", precision="high", device="a100"),
    "unknown": lambda: explain_shape("4096x4096x4096:bf16", device="a100"),
    "too_old": lambda: explain_shape("512x512x512:bf16:NT", device="v100"),
    "insists": lambda: explain_shape("64x64x64:f64", config=TABLE[0], implementation="moye", device="h200"),
    "batch_invariant": lambda: explain_shape("64x64x64:bf16", batch_invariant=True, device="h200"),
    "program": lambda: jax_moye.explain(program, struct(64, 64), struct(64, 64), struct(64), device="h200"),
}
