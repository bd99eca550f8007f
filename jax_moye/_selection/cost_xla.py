"""How long XLA takes, from the problem alone.

The constants are those of one H200. tools/fit_cost.py fits them to times of XLA that were taken in the same runs as
ours, so that they can be compared with what cost.py predicts; docs/performance.md says how well they fit. `unknown`
says which products nothing is predicted for.
"""

from __future__ import annotations

import math

from jax_moye._kernels.dtypes import ITEM_BYTES, USUAL_ACCUMULATOR
from jax_moye._selection.cost import MULTIPROCESSORS
from jax_moye._selection.problem import GemmProblem

_ARCH = 90  # the only one on which XLA was measured
_MULTIPROCESSORS = MULTIPROCESSORS[_ARCH]
_LAUNCH_US = 2.2
_READ_BYTES_PER_US = 4.43e6
_WRITE_BYTES_PER_US = 3.54e6
# Multiply-adds of the whole GPU. What is not here was not measured.
_PRODUCTS_PER_US = {"bf16": 364e6, "f16": 364e6, "tf32": 179e6, "f32": 25.2e6, "f64": 30.4e6}
# One tile takes so long for each k that nothing hides; longer sums are split, and adding up the parts takes as long.
_K_US, _SPLIT_US = 0.0257, 3.44
# Where rows of one operand, of both are not of 16 bytes: by how much slower are the products of tiles, whose
# rows and columns are multiples of 16, and whole where there are 128. A few tiles are split, or
# smaller, so that all multiprocessors are busy: of ten such products (197x577x577, 129x130x40000) whole tiles predict
# 1.1 to 26 times what XLA takes, busy multiprocessors 0.4 to 0.9 times.
_ODD = (1.0, 2.89, 5.04)
_FEW = _MULTIPROCESSORS // 3
# What a program of many calls spends on one of XLA's, on the host (on one of ours: cost.CALL_US): tiny products take no
# less. Of fourteen measurements in which the host was the limit XLA was faster in thirteen, by 1.24 (geometric mean).
# Not of the GPU: measure again where calls become cheaper. Two equal numbers leave such products to the models of the
# GPU, which call them level.
XLA_CALL_US = 6.0
# XLA's predicted time has to be so many times ours for our kernel to be faster with a confidence of 95 %: 1.645 times
# what the two models together miss measured ratios by (root mean square of logarithms), as tools/fit_cost.py says.
SURE = 1.29


def xla_us(problem: GemmProblem, arch: int | None, passes: int = 0) -> float | None:
    """Microseconds that XLA takes for `problem` in a program, with cuBLAS or Triton; None where that is `unknown`.

    Args:
      problem: what is computed.
      arch: the GPU's, e.g. 90; None where it is not known.
      passes: how often it reads and writes the result again, since it does not finish it where it sums.
    """
    p = problem
    if unknown(p, arch) is not None:
        return None
    rate = _PRODUCTS_PER_US[p.dtype]
    item, out = ITEM_BYTES[p.dtype], ITEM_BYTES[p.out_dtype]
    tiles = p.batch * math.ceil(p.m / 128) * math.ceil(p.n / 128)
    # f32 and f64 are loaded one by one.
    odd = (
        sum(_is_odd(strides, item) for strides in (p.a_strides, p.b_strides))
        if p.dtype in ("bf16", "f16", "tf32")
        else 0
    )
    if odd:
        waves = tiles / _MULTIPROCESSORS if tiles <= _FEW else math.ceil(tiles / _MULTIPROCESSORS)
        rows, columns = (min(128, math.ceil(size / 16) * 16) for size in (p.m, p.n))
        products = waves * _MULTIPROCESSORS * rows * columns * p.k * _ODD[odd]
    else:
        products = p.batch * math.ceil(p.m / 64) * math.ceil(p.n / 64) * 64 * 64 * p.k
    compute = products / rate
    read, written = p.batch * (p.m + p.n) * p.k * item, p.batch * p.m * p.n * out
    memory = read / _READ_BYTES_PER_US + written / _WRITE_BYTES_PER_US
    us = _LAUNCH_US + max(compute, memory)
    if not (p.m == 1 and p.order == "NT"):  # a row of b for each element of d: they are read as a sum of rows is
        us += min(_K_US * p.k, _SPLIT_US)
    one_pass = written / _READ_BYTES_PER_US + written / _WRITE_BYTES_PER_US
    return max(us, XLA_CALL_US) + passes * max(_LAUNCH_US + one_pass, XLA_CALL_US)


def elementwise_us(moved: int) -> float:
    """Microseconds of an elementwise kernel of XLA's that reads and writes so many bytes, most of them reads."""
    return _LAUNCH_US + moved / _READ_BYTES_PER_US


def unknown(problem: GemmProblem, arch: int | None) -> str | None:
    """What about a product makes XLA's time unknown, in words behind "not modelled"; None where it is known.

    Every GPU but sm_90, every dtype that was not measured, sums in other dtypes than usual, and what is not one matrix
    product for XLA: operands without a mode of stride 1, or matrices that do not lie one behind the other.

    Args:
      problem: what is computed.
      arch: the GPU's, e.g. 90; None where it is not known.
    """
    p = problem
    if arch != _ARCH:
        return "on a GPU that is not known" if arch is None else f"on sm_{arch}"
    if p.dtype not in _PRODUCTS_PER_US:
        return f"for {p.dtype} operands"
    if p.sums != USUAL_ACCUMULATOR[p.dtype]:
        return f"for sums in {p.sums}"
    if p.pair:
        return "for two products of one operand"
    if p.gate:
        return "for two results of one product"
    if p.order is None:
        return "for operands with no dimension of stride 1"
    sides = (p.a_strides, p.b_strides, p.d_strides)
    if p.outer or (p.batch > 1 and any(strides[0] < max(strides[1:]) for strides in sides)):
        return "for matrices that do not lie one behind the other"
    return None


def _is_odd(strides: tuple[int, int, int], item: int) -> bool:
    """Whether an operand with a mode of stride 1 cannot be loaded in 16 bytes."""
    batch, rows, k = strides
    return math.gcd(batch, rows if k == 1 else k) * item % 16 != 0
