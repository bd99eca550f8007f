"""Problems and configs that several tests of the selection ask about."""

from jax_moye._kernels.configs import GemmConfig
from jax_moye._kernels.dtypes import WAYS_OF_F32
from jax_moye._selection.problem import GemmProblem


def row_major_problem(m, n, k, batch=1, dtype="bf16", out_dtype=None, order="NN"):
    a = (m * k, k, 1) if order[0] == "N" else (m * k, 1, m)
    b = (n * k, 1, n) if order[1] == "N" else (n * k, k, 1)
    return GemmProblem(batch, m, n, k, a, b, (m * n, n, 1), dtype, out_dtype or dtype, False)


def example_config(**changes):
    fields = dict(
        name="example",
        kernel="sm80_multistage",
        dtype="bf16",
        accumulator="f32",
        out_dtypes=("bf16",),
        tile=(128, 128, 32),
        stages=3,
        cluster=(1, 1),
        alignment=16,
        orders=("NN", "NT"),
        any_stride=False,
        threads=128,
        smem_bytes=1024,
        min_arch=80,
    )
    return GemmConfig(**(fields | changes))


def problem_with(config, a, b, sizes=(1, 16, 16, 16), out=None):
    batch, m, n, _ = sizes
    d = (m * n if batch > 1 else 0, n, 1)
    out = out or config.out_dtypes[0]
    return GemmProblem(*sizes, a, b, d, config.dtype, out, False, config.accumulator)


def problem_of(batch, m, n, k, dtype, order="NN"):
    a = (m * k, k, 1) if order[0] == "N" else (m * k, 1, m)
    b = (n * k, 1, n) if order[1] == "N" else (n * k, k, 1)
    out = ({"s8": "s32", "e4m3": "f32"} | dict.fromkeys(WAYS_OF_F32, "f32")).get(dtype, dtype)
    return GemmProblem(batch, m, n, k, a, b, (m * n, n, 1), dtype, out, False)
