"""By how much a kernel has to be faster than XLA to compute a product in its place, and where none will be."""

from __future__ import annotations

from jax_moye._selection.attention_key import AttentionKey
from jax_moye._selection.capability import takes_in_shortly
from jax_moye._selection.cost_xla import elementwise_us
from jax_moye._selection.problem import GemmProblem

# A product is ours where XLA's measured time is at least so many times ours, by the low end of the interval. A tie is
# XLA's, which may also fuse what stands around the product. More is asked of short products: XLA's kernels begin before
# their predecessor has ended, and behind a call of ours on a stream the GPU waits for 1.3 to 1.7 us; XLA chooses
# another kernel in every other compilation, too (docs/performance.md, section 8).
_WINS_BY, _CALL_US, _MOST = 1.02, 1.5, 0.15
# A batch of matrices times vectors is a reduction for XLA, in one kernel with what stands in front of it and behind it.
# Alone it does not show that: a kernel of ours in its place costs two more, of 1.5 us each (section 34).
_FUSION_US, _MOST_OF_FUSION = 3.0, 0.3
# What XLA computes in a fusion, it computes in one kernel with what stands behind it. A kernel of ours in its place
# writes the result, and another one reads it: that counts where it takes a fifth of the product's time (section 35).
_BYTES_PER_US, _COUNTS, _MOST_OF_RESULT = 4e6, 0.2, 1.0
# A gradient of weights in f32 XLA computes alone by a library, and in a program by kernels of its own, which take in
# the derivative of an activation in front of it: 20.7 us for what takes it 30.3 alone (section 42).
_OF_GRADIENT = 0.1
# Where XLA's kernel computes parts of k, another one adds them up: in a program that is one with what stands behind the
# product, where a kernel of ours is one more (section 47).
_PARTS_US, _MOST_OF_PARTS = 1.5, 0.15
# In a program a kernel's instructions are cold: other kernels ran since. Ours and XLA's lose some 2 us by it alike, and
# ours as much again where an epilogue reads or writes an array beside the result: its loop is long (section 47).
# Those of short kernels cost less. Where they take in a residual, c or a gate, kernels that XLA launches are gone:
# neither this nor _CALL_US is asked (section 54).
_COLD_US, _MOST_COLD = 3.0, 0.08
# TF32 products of fewer multiply-adds, of fewer rows or columns, or with a shorter k take XLA a few microseconds, often
# in a fusion: of 132 that were raced none was won, nor one of five others whose time is predicted to be so many times
# XLA's (section 47).
_LEAST_TF32, _LEAST_SIDE, _LEAST_K, _MOST_TIMES = 3e7, 17, 9, 2.0


def wins_by(
    ours_us: float,
    problem: GemmProblem | AttentionKey | None = None,
    is_fused: bool = False,
    is_parted: bool = False,
    is_summed: bool = False,
    has_arrays: bool = False,
    is_pair: bool = False,
    config: str = "",
) -> float:
    """How many times ours XLA's measured time must be at least for a product to be ours.

    Args:
      ours_us: microseconds of our fastest config.
      problem: that of the product; None of one that XLA computes by itself.
      is_fused: XLA computed the product in a fusion.
      is_parted: another kernel of XLA's added up parts of k behind it.
      is_summed: XLA sums the result's columns in the kernel behind the product, and behind ours in one more.
      has_arrays: its epilogue reads c or a residual, or writes a pre-activation.
      is_pair: it multiplies two products, a layer with a gate.
      config: the name of ours; "" where XLA computes something by itself.
    """
    is_free = (has_arrays or is_pair) and takes_in_shortly(config)
    least = _WINS_BY + (0.0 if is_free else min(_CALL_US / ours_us, _MOST))
    if is_parted:
        least += min(_PARTS_US / ours_us, _MOST_OF_PARTS)
    if is_summed and isinstance(problem, GemmProblem):
        least += elementwise_us(problem.result_bytes) / ours_us
    if has_arrays and not is_free:
        least += min(_COLD_US / ours_us, _MOST_COLD)
    if is_fused and isinstance(problem, GemmProblem):
        share = 2 * problem.result_bytes / _BYTES_PER_US / ours_us
        least += min(share, _MOST_OF_RESULT) if share >= _COUNTS else 0.0
    if (
        isinstance(problem, GemmProblem)
        and problem.dtype == "tf32"
        and problem.a_strides[1] == problem.b_strides[1] == 1
    ):
        least += _OF_GRADIENT
    if isinstance(problem, GemmProblem) and problem.batch > 1 and min(problem.m, problem.n) == 1:
        least += min(_FUSION_US / ours_us, _MOST_OF_FUSION)
    return least


def is_outer_product(problem: GemmProblem) -> bool:
    """Whether a product is an outer one, none to XLA: it computes the elements where they are read."""
    return problem.k == 1


def is_lost(problem: GemmProblem, ours_us: float, xlas_us: float) -> bool:
    """Whether XLA is so sure to be faster that nobody measures a product: that takes a second and more.

    Args:
      problem: that of the product.
      ours_us: predicted microseconds of our fastest config in a program.
      xlas_us: those of XLA.
    """
    p = problem
    is_small = p.batch * p.m * p.n * p.k < _LEAST_TF32 or min(p.m, p.n) < _LEAST_SIDE or p.k < _LEAST_K
    return (p.dtype == "tf32" and is_small) or ours_us > _MOST_TIMES * xlas_us
