"""Products with weights of 8 and 4 bits: what a kernel computes of one, which kernel, and by how many CTAs.

    d[m, n] = sum over k of x[m, k] * (w[k, n] - zeros[g(k), n]) * scales[g(k), n]

Rows of w are cut into groups of equal length, and g(k) is the group of row k: each has a row of scales, and perhaps one
of zeros. What no kernel computes is a product by the dequantized weights (`dequantized_product`), of 16 bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp

from jax_moye._kernels.configs import ConfigTable, GemmConfig, find_config, weights_configs
from jax_moye._selection.capability import LoweringTarget, usable_of, why_not_built
from jax_moye._selection.decide import Cause, Decision, left_to_xla
from jax_moye._selection.problem import MAX_SIZE, ConfigError, NotServedError
from jax_moye._selection.request import Operand, Operands, Request, describe

SPEC = "mk,kn->mn"  # of all of them
_OF_X = {"bfloat16": "bf16", "float16": "f16"}
_OF_WEIGHTS = {"int8": "s8", "int4": "s4", "uint4": "s4", "float8_e4m3fn": "e4m3"}
_RESULTS = {**_OF_X, "float32": "f32"}

GROUP = 64  # kWeightGroup of cuda/gemm/config.h: groups of k have a multiple of so many rows, or are one
# What `choose` is made of, measured on an H200 (docs/performance.md, section 16).
MOST_ROWS = 64  # of x, up to which a kernel of weights is taken unasked: with more, products take longer than loads
MOST_PARTS = 8  # of k: CTAs of one cluster, which add up their sums
# By the CTAs of a cluster: how many run at one time, each on a multiprocessor of its own. An H200 has 132, in groups
# of 16 or 18, and a cluster lies in one group.
AT_ONCE = {1: 132, 2: 132, 3: 117, 4: 120, 5: 110, 6: 108, 7: 105, 8: 120}
K_TILE_US = {8: (0.43, 0.0062), 4: (0.57, 0.0146)}  # by bits of a weight: of 128 k, and of each row of a tile
CTA_US, WAVE_US = 1.4, 4.0  # of one CTA more on a multiprocessor; and where it has to wait until another has ended
CLUSTER_US, PART_US = 1.8, 0.1  # of adding up the sums of a cluster, and of each CTA in it
LEAST_K = 128  # of a part, in elements


@dataclasses.dataclass(frozen=True)
class WeightsProblem:
    """A product with weights as a kernel sees it: d = x w, x (M,K), w (K,N), d (M,N), all row-major.

    Attributes:
      m: rows of x and of d.
      n: columns of w and of d.
      k: that is summed over.
      groups: of rows of w.
      dtype: of x and of w, e.g. "bf16xs4".
      out_dtype: of d.
    """

    m: int
    n: int
    k: int
    groups: int
    dtype: str
    out_dtype: str

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(m, n, k)."""
        return self.m, self.n, self.k

    @property
    def strides(self) -> dict[str, tuple[int, ...]]:
        """None that a kernel must be told: all arrays are row-major."""
        return {}

    @property
    def group(self) -> int:
        """Rows of w that share a row of scales."""
        return self.k // self.groups

    @property
    def is_empty(self) -> bool:
        """Whether the result is, or is nothing but zeros."""
        return 0 in self.sizes


class WeightsCall(NamedTuple):
    """How a kernel of ours computes a product with weights.

    Attributes:
      problem: what it computes.
      config: the kernel.
      parts: CTAs among which k is split.
    """

    problem: WeightsProblem
    config: GemmConfig
    parts: int

    @property
    def why(self) -> str:
        """Why this kernel and so many parts, in words."""
        m, tile = self.problem.m, self.config.tile[0]
        of_tile = f"the least tile for {m} rows" if m <= tile else f"{m} rows in tiles of {tile}"
        return f"{of_tile}, k in {self.parts} part{'' if self.parts == 1 else 's'}"


def why_not_of_program(request: Request, rows: int) -> str | None:
    """Why a product by weights that a program dequantizes itself is left as it is, in a sentence; None if it is not.

    This is the one place that says where such a product is taken. No GPU has timed one against the equations as they
    were, which XLA may fuse, so that on a GPU it is taken only where the caller insists on kernels of ours. Who has
    measured it can return None for all of up to `MOST_ROWS` rows.

    Args:
      request: what was asked for.
      rows: of x.
    """
    if request.implementation == "xla":
        return "implementation='xla'"
    # An emulator shows what a GPU would compute, and is not timed.
    if request.implementation != "moye" and request.interpret is None:
        return "no GPU has timed a kernel of weights next to a program that dequantizes; implementation='moye' takes it"
    # The equations as they were are a product of ours, too. With batch_invariant rows must not choose between them.
    if rows > MOST_ROWS and not request.batch_invariant:
        return f"x has {rows} rows, and a kernel of weights is for {MOST_ROWS} at most"
    return None


def is_for_kernels(request: Request, groups: int, operands: Operands) -> bool:
    """Whether a kernel would compute a product by weights that a program dequantizes itself, as far as a trace tells.

    Args:
      request: what the caller asked for; its specification is `SPEC`.
      groups: of rows of w, each with a row of scales.
      operands: x, its leading dimensions folded into rows, and w.
    """
    if why_not_of_program(request, operands[0].shape[0]) is not None:
        return False
    try:
        problem = make_weights_problem(request, groups, operands)
    except NotServedError:
        return False
    return any(why_not_weights(config, problem, None) is None for config in weights_configs())


def decide_weights(
    request: Request, groups: int, operands: Operands, target: LoweringTarget, of_program: bool = False
) -> tuple[Decision, WeightsCall | None]:
    """Who computes a product with weights on one device, and how a kernel does.

    Args:
      request: what the caller asked for; its specification is `SPEC`.
      groups: of rows of w, each with a row of scales.
      operands: x, its leading dimensions folded into rows, and w.
      target: what is lowered for.
      of_program: the program dequantizes the weights itself, and asks for no kernel of weights: "xla" stands for its
        own equations, whose product is decided about for itself.

    Returns:
      The decision, and the call where a kernel is taken. "xla" stands for a product by the dequantized weights, which
      keeps `deterministic` and `batch_invariant`, or says that it cannot.
    """
    on_cuda = target.platform == "cuda"

    def dequantized(cause: Cause, reason: str) -> tuple[Decision, None]:
        unbound = dataclasses.replace(request, deterministic=False, batch_invariant=False)
        unbound = dataclasses.replace(unbound, implementation=None) if of_program else unbound
        return left_to_xla(unbound, cause, reason, target.platform), None

    if request.interpret is not None and target.platform != "cpu":
        reason = f"interpret=True runs kernels in an emulator on the CPU, and this program is for {target.platform}"
        return Decision("error", request, reason=reason, cause="place"), None
    if request.implementation == "xla":
        return dequantized("caller", "implementation='xla'")
    why_not = why_not_of_program(request, operands[0].shape[0]) if of_program else None
    if why_not is not None:
        return dequantized("time", why_not)
    try:
        problem = make_weights_problem(request, groups, operands)
        if problem.is_empty:
            return Decision("nothing", request, reason="a size is 0"), None
        call = _find_call(request, operands, problem, target)
    except ConfigError as error:
        return Decision("error", request, reason=str(error), cause="config"), None
    except NotServedError as error:
        if request.config is not None:
            what = f"config {request.config!r} cannot compute {describe(request, operands)}: {error}"
            return Decision("error", request, reason=what, cause="config"), None
        return dequantized("capability", str(error))
    if not request.insists and problem.m > MOST_ROWS:
        return dequantized("time", f"x has {problem.m} rows, and a kernel of weights is for {MOST_ROWS} at most")
    if not on_cuda and request.interpret is None:
        reason = f"the program is for {target.platform}, where our kernels run only with interpret=True"
        return dequantized("place", reason)
    if target.unavailable is not None and not (on_cuda and request.insists and target.is_elsewhere):
        return dequantized("place", target.unavailable)
    return Decision("kernel", request, source="model" if request.config is None else "explicit"), call


def make_weights_problem(request: Request, groups: int, operands: Operands) -> WeightsProblem:
    """The product as a kernel sees it.

    Raises:
      NotServedError: it is none of its kind.
    """
    left, right = operands
    shapes = [x.seen_shape for x in operands]
    if not all(isinstance(size, int) for shape in shapes for size in shape):
        raise NotServedError(f"the sizes in {shapes[0]} and {shapes[1]} are not all known")
    of_x, of_w = _OF_X.get(str(left.dtype)), _OF_WEIGHTS.get(str(right.dtype))
    if of_x is None or of_w is None:
        raise NotServedError(f"no kernel multiplies {left.dtype} by weights of {right.dtype}")
    out_dtype = _RESULTS.get(str(request.out_dtype))
    if out_dtype is None:
        raise NotServedError(f"no kernel writes a product with weights as {request.out_dtype}")
    (m, k), (_, n) = shapes
    return WeightsProblem(m, n, k, groups, f"{of_x}x{of_w}", out_dtype)


def dequantized_product(request: Request, groups: int, operands: Operands) -> tuple[Request, Operands]:
    """The product that is computed where no kernel of weights is: of x and weights of its dtype.

    One row of scales multiplies the sums, in f32: then the weights are exact.
    """
    x, w = operands
    out_dtype = jnp.dtype("float32") if groups == 1 else request.out_dtype
    return dataclasses.replace(request, out_dtype=out_dtype, config=None), (x, Operand(w.seen_shape, x.dtype))


def served_weights() -> str:
    """What our kernels compute of products with weights, for error messages."""
    table = weights_configs()
    if not table:
        return "This build has no kernel for products with weights"
    dtypes = " or ".join(dict.fromkeys(config.dtype for config in table))
    return (
        f"Served are {dtypes}, with rows of x and of w of whole {_LOAD_BYTES} bytes, and groups of a multiple of "
        f"{GROUP} rows, on sm_90"
    )


def usable_weights_configs(platform: str, arch: int | None) -> ConfigTable:
    """The configs that a program for `platform` can use; where the GPU is not known, none."""
    return usable_of(weights_configs(), platform, arch)


_LOAD_BYTES = 16  # TMA's
_MOST_TILES_N = 65535  # kMostTilesN of cuda/gemm/sm90_weights.cuh
_BITS = {"s8": 8, "s4": 4, "e4m3": 8}


def why_not_weights(config: GemmConfig, problem: WeightsProblem, arch: int | None) -> str | None:
    """Why the config cannot compute the problem, in a sentence; None if it can.

    Args:
      config: the kernel.
      problem: what it is to compute.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
    """
    if not config.weights:
        return "it computes no products with weights"
    if config.dtype != problem.dtype:
        return f"its operands are {config.dtype}, these are {problem.dtype}"
    if problem.out_dtype not in config.out_dtypes:
        return f"it writes {', '.join(config.out_dtypes)}, and {problem.out_dtype} is wanted"
    if arch is not None and arch != config.max_arch:
        return f"its code is sm_{config.max_arch}'s, and this is sm_{arch}"
    return _why_not_sizes(problem, config.tile)


def _why_not_sizes(problem: WeightsProblem, tile: tuple[int, int, int]) -> str | None:
    """Why no kernel computes a product of such sizes; None if nothing speaks against it."""
    m, n, k = problem.sizes
    columns = _LOAD_BYTES * 8 // _BITS[problem.dtype.rpartition("x")[2]]
    rows = _LOAD_BYTES // 2
    if k % rows:
        return f"rows of x have {k} elements, and {rows} do not divide them: {_LOAD_BYTES} bytes are loaded at a time"
    if n % columns:
        return f"rows of w have {n} weights, and {columns} do not divide them: {_LOAD_BYTES} bytes are loaded at a time"
    if problem.groups > 1 and problem.group % GROUP:
        return f"groups have {problem.group} rows of w, which are no multiple of {GROUP}"
    if any(size > MAX_SIZE - step for size, step in zip(problem.sizes, tile, strict=True)):
        return "a dimension is over 2^31 - 1 less one tile"
    if math.ceil(m / tile[0]) > MAX_SIZE // MOST_PARTS or math.ceil(n / tile[1]) > _MOST_TILES_N:
        return "the result has too many tiles for one launch"
    return None


def _find_call(request: Request, operands: Operands, problem: WeightsProblem, target: LoweringTarget) -> WeightsCall:
    """The kernel for a product: the one that was named, or the one that is expected to be the fastest.

    Raises:
      NotServedError: none can compute the problem.
      ConfigError: the one that was named cannot.
    """
    # A row's bits must not depend on the number of rows: as if there were one.
    rows = 1 if request.batch_invariant else problem.m
    if request.config is not None:
        config = find_config(request.config)
        reason = why_not_built(config, target.platform) if config.weights else None
        reason = reason or why_not_weights(config, problem, target.arch)
        if reason is not None:
            raise ConfigError(f"config {config.name!r} cannot compute {describe(request, operands)}: {reason}")
        return WeightsCall(problem, *choose(problem, rows, [config]))
    reasons = {}
    for config in usable_weights_configs(target.platform, target.arch):
        reasons[config] = why_not_weights(config, problem, target.arch)
    able = [config for config, reason in reasons.items() if reason is None]
    if not able:
        of_dtype = [reason for config, reason in reasons.items() if config.dtype == problem.dtype]
        raise NotServedError(
            next(filter(None, of_dtype), f"no kernel for {problem.dtype} products with weights was built for this GPU")
        )
    return WeightsCall(problem, *choose(problem, rows, able))


def choose(problem: WeightsProblem, rows: int, able: Sequence[GemmConfig]) -> tuple[GemmConfig, int]:
    """The config that is expected to be the fastest, and the number of parts into which it splits k.

    The tile is the smallest that holds all rows, else the largest. k is split into as many parts as are expected to
    take the least time: that of the multiprocessor with the most CTAs, whose k-tiles it multiplies one after the other,
    and that of adding up the parts. Each part has `LEAST_K` at least, in whole k-tiles.

    Args:
      problem: what is computed.
      rows: of x, by which both are chosen.
      able: configs that can, at least one.
    """

    def tile_m(config: GemmConfig) -> int:
        return config.tile[0]

    holding = [config for config in able if tile_m(config) >= rows]
    config = min(holding, key=tile_m) if holding else max(able, key=tile_m)
    tiles = math.ceil(rows / config.tile[0]) * math.ceil(problem.n / config.tile[1])
    k_tiles = math.ceil(problem.k / config.tile[2])
    long_enough = k_tiles // math.ceil(LEAST_K / config.tile[2])

    k_tile_us, row_us = K_TILE_US[_BITS[problem.dtype.rpartition("x")[2]]]
    resident = 2 if config.tile[0] == 16 else 1  # CTAs of a multiprocessor at one time

    def us(parts: int) -> float:
        ctas = math.ceil(tiles * parts / AT_ONCE[parts])  # of the multiprocessor that has the most
        adding = CLUSTER_US + PART_US * parts if parts > 1 else 0
        waiting = CTA_US * (ctas - 1) + WAVE_US * (math.ceil(ctas / resident) - 1)
        multiplying = ctas * math.ceil(k_tiles / parts) * (k_tile_us + row_us * config.tile[0]) * config.tile[2] / 128
        return multiplying + waiting + adding

    return config, min(range(1, max(1, min(MOST_PARTS, long_enough)) + 1), key=us)
