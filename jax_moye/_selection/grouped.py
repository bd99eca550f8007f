"""Products of groups: what a kernel computes of one, and which.

The specification of such a product names the mode that is cut into groups first:

    "mk,gkn->mn"   m is: row i of the result is row i of lhs times the matrix of its group
    "mk,gnk->mn"   the same of matrices whose k is last
    "km,kn->gmn"   k is: a matrix for each group, summed over the k of that group

Tensor cores read f32 operands, as TF32, and 8-bit floats along k alone: matrices whose n is last are transposed in
front of such a kernel, and of a ragged k, whose groups begin anywhere in a row then, there is none.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from jax_moye._kernels.configs import ConfigTable, GemmConfig, find_config, grouped_configs
from jax_moye._kernels.dtypes import FLOAT8, ITEM_BYTES, SHORT_NAMES
from jax_moye._selection.capability import LoweringTarget, usable_of, why_not_built
from jax_moye._selection.decide import Cause, Decision, left_to_xla
from jax_moye._selection.precision import (
    Arithmetic,
    arithmetic_of_config,
    operand_dtype,
    possible_arithmetics,
    why_not_precise,
    written_dtype,
)
from jax_moye._selection.problem import MAX_SIZE, ConfigError, NotServedError
from jax_moye._selection.request import Operand, Operands, Request, describe

RAGGED_M, RAGGED_M_BY_K, RAGGED_K = "mk,gkn->mn", "mk,gnk->mn", "km,kn->gmn"
SPECS = (RAGGED_M, RAGGED_M_BY_K, RAGGED_K)
MAX_GROUPS = 512  # kMaxGroups of cuda/gemm/config.h
_LOAD_BYTES = 16  # TMA's


@dataclasses.dataclass(frozen=True)
class GroupedProblem:
    """A product of groups as a kernel sees it: d = a b, a (M,K), b (N,K).

    Attributes:
      ragged: "m" or "k", whose size is that of all groups together.
      order: of the operands, NN or NT where m is ragged, TN where k is.
      groups: how many.
      m: rows of a and d.
      n: columns of d.
      k: that is summed over.
      dtype: of a and b, e.g. "bf16".
      out_dtype: of d.
      accumulator: what products are summed in.
    """

    ragged: str
    order: str
    groups: int
    m: int
    n: int
    k: int
    dtype: str
    out_dtype: str
    accumulator: str = "f32"

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(groups, m, n, k)."""
        return self.groups, self.m, self.n, self.k

    @property
    def strides(self) -> dict[str, tuple[int, int, int]]:
        """Of a (groups, m, k), b (groups, n, k) and d (groups, m, n), in elements; 0 along groups that share it."""
        m, n, k = self.m, self.n, self.k
        if self.ragged == "k":
            return {"a": (0, 1, m), "b": (0, 1, n), "d": (m * n, n, 1)}
        return {"a": (0, k, 1), "b": (n * k, 1, n) if self.order == "NN" else (n * k, k, 1), "d": (0, n, 1)}

    def operand_strides(self, labels: str) -> tuple[int, int, int]:
        """Along (groups, m, n), of an epilogue's operand with these dimensions; 0 along those that it lacks."""
        sizes, strides, stride = {"g": self.groups, "m": self.m, "n": self.n, "k": self.k}, {}, 1
        for label in reversed(labels):
            strides[label] = stride
            stride *= sizes[label]
        return strides.get("g", 0), strides.get("m", 0), strides.get("n", 0)

    @property
    def is_empty(self) -> bool:
        """Whether the result is, or is nothing but zeros."""
        return 0 in self.sizes

    @property
    def of_a_group(self) -> float:
        """Elements of the ragged mode that a group has on average."""
        return (self.m if self.ragged == "m" else self.k) / max(1, self.groups)


class GroupedCall(NamedTuple):
    """How a kernel of ours computes a product of groups.

    Attributes:
      problem: what it computes.
      config: the kernel.
      operands: what it reads: rhs in front of a transpose, or behind it.
      writes_transpose: whether matrices whose k is last are made of others in front of the kernel.
    """

    problem: GroupedProblem
    config: GemmConfig
    operands: Operands
    writes_transpose: bool = False

    @property
    def why(self) -> str:
        """Why this kernel, in words."""
        of = "rows" if self.problem.ragged == "m" else "elements of k"
        behind = "; rhs is transposed in front of it, since k is to be last" if self.writes_transpose else ""
        return f"its tile suits groups of {self.problem.of_a_group:.4g} {of} on average{behind}"


def decide_grouped(
    request: Request, groups: int, operands: Operands, target: LoweringTarget
) -> tuple[Decision, GroupedCall | None]:
    """Who computes a product of groups on one device, and how a kernel does, wherever rows of the result are stored.

    Args:
      request: what the caller asked for; its specification is one of `SPECS`. `alone` says that `optimize` found it.
      groups: how many.
      operands: lhs and rhs as they are in memory.
      target: what is lowered for.
    """

    def xlas(cause: Cause, reason: str) -> tuple[Decision, None]:
        return left_to_xla(request, cause, reason, target.platform), None

    on_cuda = target.platform == "cuda"
    if request.interpret is not None and target.platform != "cpu":
        reason = f"interpret=True runs kernels in an emulator on the CPU, and this program is for {target.platform}"
        return Decision("error", request, reason=reason, cause="place"), None
    if request.implementation == "xla":
        return xlas("caller", "implementation='xla'")
    try:
        call = _find_call(request, groups, operands, target)
    except ConfigError as error:
        return Decision("error", request, reason=str(error), cause="config"), None
    except NotServedError as error:
        if request.config is not None:
            what = f"config {request.config!r} cannot compute {describe(request, operands)}: {error}"
            return Decision("error", request, reason=what, cause="config"), None
        return xlas("capability", str(error))
    if call.problem.is_empty:
        return Decision("nothing", request, reason="a size is 0"), call
    if request.alone is not None and not request.insists and call.problem.of_a_group > _GATED_ROWS:
        return xlas("time", f"groups have {call.problem.of_a_group:.4g} rows on average, {_MANY_ROWS}")
    if not on_cuda and request.interpret is None:
        return xlas("place", f"the program is for {target.platform}, where our kernels run only with interpret=True")
    if target.unavailable is not None and not (on_cuda and request.insists and target.is_elsewhere):
        return xlas("place", target.unavailable)
    return Decision("kernel", request, source="model" if request.config is None else "explicit"), call


def _find_call(request: Request, groups: int, operands: Operands, target: LoweringTarget) -> GroupedCall:
    """The kernel for a product: it reads rhs in front of a transpose if it can, or behind one where k has to be last.

    Raises:
      NotServedError: none can compute it.
      ConfigError: the config asked for cannot.
    """
    left, right = operands[0].transposed, operands[1]
    foldings = [(left, right)]
    if right.permutation is not None:
        foldings.append((left, right.transposed))
    refusals: list[Exception] = []
    for folded in foldings:
        try:
            problem = make_grouped_problem(request, groups, folded, target.platform)
            return GroupedCall(problem, _choose(request, operands, problem, target), folded)
        except (NotServedError, ConfigError) as error:
            refusals.append(error)
    if request.spec == RAGGED_M and _is_counted(operands):
        g, k, n = right.seen_shape
        folded = left, Operand((g, n, k), right.dtype, (0, 2, 1))
        try:
            problem = make_grouped_problem(request, groups, folded, target.platform)
            if problem.dtype in _read_along_k():
                return GroupedCall(problem, _choose(request, operands, problem, target), folded, True)
        except (NotServedError, ConfigError) as error:
            refusals.append(error)
    raise refusals[-1]


def _read_along_k() -> list[str]:
    """The dtypes of operands that kernels read along k alone."""
    dtypes = {config.dtype: "NN" in config.orders for config in grouped_configs()}
    return [dtype for dtype, any_order in dtypes.items() if not any_order]


def _is_counted(operands: Operands) -> bool:
    return all(isinstance(size, int) for x in operands for size in x.seen_shape)


def make_grouped_problem(request: Request, groups: int, operands: Operands, platform: str = "cuda") -> GroupedProblem:
    """The product as a kernel sees it.

    Args:
      request: what the caller asked for.
      groups: how many.
      operands: what a kernel would read.
      platform: that of the program.

    Raises:
      NotServedError: it is none of its kind.
      ConfigError: the config that was named computes in less than was asked for.
    """
    left, right = operands
    shapes = [x.seen_shape for x in operands]
    if not _is_counted(operands):
        raise NotServedError(f"the sizes in {shapes[0]} and {shapes[1]} are not all known")
    if left.dtype != right.dtype and not all(SHORT_NAMES.get(str(x.dtype)) in FLOAT8 for x in operands):
        raise NotServedError(f"no kernel takes operands of different dtypes, {left.dtype} and {right.dtype}")
    dtype = operand_dtype(left.dtype, right.dtype, request.out_dtype)
    if reason := why_not_precise(request.precision, dtype):
        raise NotServedError(reason)
    arithmetic = _arithmetic(request, dtype, left.dtype, platform)
    labels_of_left, labels_of_right = request.spec.partition("->")[0].split(",")
    sizes = dict(zip(labels_of_left, shapes[0], strict=True)) | dict(zip(labels_of_right, shapes[1], strict=True))
    if request.spec == RAGGED_K:
        if right.permutation not in (None, (0, 1)):
            raise NotServedError("elements side by side in memory belong to several groups")
        if arithmetic.dtype in _read_along_k():
            raise NotServedError(f"tensor cores read {arithmetic.dtype} along k, where groups begin anywhere")
        ragged, order = "k", "TN"
    else:
        in_memory = _in_memory(labels_of_right, right.permutation)
        if in_memory not in ("gkn", "gnk"):
            raise NotServedError(f"the matrices of the groups lie in memory as {in_memory}, and not one by one")
        ragged, order = "m", "NN" if in_memory == "gkn" else "NT"
    if groups > MAX_GROUPS:
        raise NotServedError(f"there are {groups} groups, and our kernels take {MAX_GROUPS} at most")
    if str(request.out_dtype) not in ("bfloat16", "float16", "float32") and dtype not in FLOAT8:
        raise NotServedError(f"no kernel writes a product of groups as {request.out_dtype}")
    out_dtype = written_dtype(arithmetic, request.out_dtype, grouped_configs())
    m, n, k = (sizes[label] for label in "mnk")
    return GroupedProblem(ragged, order, groups, m, n, k, arithmetic.dtype, out_dtype, arithmetic.accumulator)


def _arithmetic(request: Request, dtype: str, operand: Any, platform: str) -> Arithmetic:
    """What a kernel computes in: of the named config, or the best that there is.

    Raises:
      NotServedError: no kernel computes in what was asked for.
      ConfigError: the config computes in less.
    """
    if request.config is not None:
        return arithmetic_of_config(find_config(request.config), dtype, request.precision, may_split=False)
    computed = {(config.dtype, config.accumulator) for config in grouped_configs()}
    for arithmetic in possible_arithmetics(dtype, request.precision, platform, may_split=False):
        if (arithmetic.dtype, arithmetic.accumulator) in computed:
            return arithmetic
    less = " but in TF32, which is less than was asked for" if dtype == "f32" else ""
    raise NotServedError(f"no kernel computes products of groups of {operand}{less}")


def served_groups() -> str:
    """What our kernels compute of products of groups, for error messages."""
    dtypes = ", ".join(dict.fromkeys(config.dtype for config in grouped_configs()))
    cut = f"; where k is cut, not of {', '.join(along_k)}" if (along_k := _read_along_k()) else ""
    return (
        f"Served are products of {MAX_GROUPS} groups at most, of operands multiplied as {dtypes}, with rows that are "
        f"multiples of {_LOAD_BYTES} bytes, on sm_90{cut}"
    )


def _in_memory(labels: str, permutation: tuple[int, ...] | None) -> str:
    """The labels of an operand in the order in which its dimensions lie in memory."""
    if permutation is None:
        return labels
    return "".join(labels[permutation.index(axis)] for axis in range(len(labels)))


def usable_grouped_configs(platform: str, arch: int | None) -> ConfigTable:
    """The configs that a program for `platform` can use; where the GPU is not known, none."""
    return usable_of(grouped_configs(), platform, arch)


def why_not_grouped(config: GemmConfig, problem: GroupedProblem, request: Request, arch: int | None) -> str | None:
    """Why the config cannot compute the problem, in a sentence; None if it can.

    Args:
      config: the kernel.
      problem: what it is to compute.
      request: of its epilogue.
      arch: the GPU's, e.g. 90; None for the emulator, and where it is not known.
    """
    if not config.grouped:
        return "it computes no products of groups"
    if config.dtype != problem.dtype:
        return f"its operands are {config.dtype}, these are {problem.dtype}"
    if config.accumulator != problem.accumulator:
        return f"it sums in {config.accumulator}, and {problem.accumulator} is wanted"
    if problem.order not in config.orders:
        return f"its operands' order is {' or '.join(config.orders)}, and theirs is {problem.order}"
    if problem.out_dtype not in config.out_dtypes:
        return f"it writes {', '.join(config.out_dtypes)}, and {problem.out_dtype} is wanted"
    if arch is not None and arch != config.max_arch:
        return f"its code is sm_{config.max_arch}'s, and this is sm_{arch}"
    bytes_of_rows = {
        "lhs": (problem.k if problem.ragged == "m" else problem.m) * ITEM_BYTES[problem.dtype],
        "rhs": (problem.k if problem.order == "NT" else problem.n) * ITEM_BYTES[problem.dtype],
        "the result": problem.n * ITEM_BYTES[problem.out_dtype],
    }
    for name, row_bytes in bytes_of_rows.items():
        if row_bytes % _LOAD_BYTES:
            return f"rows of {name} are {row_bytes} bytes, and {_LOAD_BYTES} do not divide them"
    is_of_pair = request.epilogue is not None and request.epilogue.is_of_pair
    if is_of_pair and not config.takes_pair:
        return "it takes one matrix of a group, and these are two"
    if request.epilogue is not None and request.epilogue.is_scaled and not config.scales:
        return "it multiplies by no scales"
    tile_m, tile_n, tile_k = config.tile
    tile_n //= 1 + is_of_pair
    sizes = ((problem.m, tile_m), (problem.n, tile_n), (problem.k, tile_k))
    if any(size > MAX_SIZE - tile for size, tile in sizes):
        return "a dimension is over 2^31 - 1 less one tile"
    rows = -(-problem.m // tile_m)
    rows = rows + problem.groups if problem.ragged == "m" else rows * problem.groups
    if rows * -(-problem.n // tile_n) > MAX_SIZE:
        return "the result may have more than 2^31 - 1 tiles"
    if is_of_pair and ITEM_BYTES[problem.out_dtype] != 2:
        return f"what it makes of two matrices has 16 bits, and {problem.out_dtype} is wanted"
    if _is_fused(request) and config.consumer_tile[0] * config.consumer_tile[1] > MOST_FUSED_ELEMENTS:
        return "beside the sums of so large a tile there are no registers for an epilogue"
    return None


MOST_FUSED_ELEMENTS = 128 * 128  # of a warpgroup's tile: kHasRoom of cuda/gemm/epilogue_sm90.h


def _is_fused(request: Request) -> bool:
    return request.epilogue is not None and not request.epilogue.is_nothing


# Elements that a group has on average up to which a smaller tile is the faster one, as an H200 measured it
# (docs/performance.md, section 14): of rows, those of a tile that most groups do not fill are computed for nothing; of
# k, storing a tile takes longer than multiplying it, and is better done by more CTAs.
_FEW_ROWS, _FEW_K = 64, 128
# Of a gate that `optimize` found, rows up to which one launch is the faster one, as an H100 measured it
# (docs/performance.md, section 14): with more, a product by itself may have a tile of more columns than there are
# registers for when it is finished, and what that wins may be more than the gate behind two of them takes.
_GATED_ROWS = 256
_MANY_ROWS = "for which two products have a larger tile than one with their gate"


def _choose(request: Request, operands: Operands, problem: GroupedProblem, target: LoweringTarget) -> GemmConfig:
    """The config that was named, or the one that is expected to be the fastest.

    Raises:
      NotServedError: none can compute the problem.
      ConfigError: the one that was named cannot.
    """
    if request.config is not None:
        config = find_config(request.config)
        reason = why_not_built(config, target.platform) if config.grouped else None
        reason = reason or why_not_grouped(config, problem, request, target.arch)
        if reason is not None:
            raise ConfigError(f"config {config.name!r} cannot compute {describe(request, operands)}: {reason}")
        return config
    reasons = {}
    able = []
    for config in usable_grouped_configs(target.platform, target.arch):
        reasons[config] = why_not_grouped(config, problem, request, target.arch)
        if reasons[config] is None:
            able.append(config)
    if not able:
        sums = problem.dtype, problem.accumulator
        of_dtype = [reason for config, reason in reasons.items() if (config.dtype, config.accumulator) == sums]
        raise NotServedError(next(iter(of_dtype), "no kernel for products of groups was built for this GPU"))
    few = problem.of_a_group <= (_FEW_ROWS if problem.ragged == "m" else _FEW_K)

    def elements(config: GemmConfig) -> int:
        return config.tile[0] * config.tile[1]

    if not few:
        return max(able, key=elements)
    if problem.ragged == "m":
        return min(able, key=elements)
    return min(able, key=lambda config: abs(elements(config) - MOST_FUSED_ELEMENTS))
