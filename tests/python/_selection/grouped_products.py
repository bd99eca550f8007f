"""Requests for products of groups, and what is decided about them."""

import jax.numpy as jnp
import pytest
from jax import lax

from jax_moye._kernels.configs import configs, grouped_configs
from jax_moye._kernels.devices import find_device
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.grouped import RAGGED_M, GroupedProblem, decide_grouped
from jax_moye._selection.request import Operand, Request

H200 = LoweringTarget.of_device(find_device("h200"))
A100 = LoweringTarget.of_device(find_device("a100"))
EMULATOR = LoweringTarget("cpu", None, None, configs())
CONFIGS = grouped_configs()
SIZES = dict(g=8, m=4096, n=1024, k=512)
TILE = (128, 128)
HIGHEST = (lax.Precision.HIGHEST, lax.Precision.HIGHEST)


def request_of(spec=RAGGED_M, **fields):
    defaults = dict(out_dtype=jnp.dtype("bfloat16"), precision=None, config=None, implementation="moye", interpret=None)
    return Request(spec, **(defaults | fields))


def operands_of(spec=RAGGED_M, dtype="bfloat16", rhs_permutation=None, lhs_permutation=None, **sizes):
    """The operands of a specification as they lie in memory."""
    sizes = SIZES | sizes
    found = []
    for labels, permutation in zip(spec.partition("->")[0].split(","), (lhs_permutation, rhs_permutation), strict=True):
        shape = [sizes[label] for label in labels]
        if permutation is not None:
            stored = [0] * len(shape)
            for size, axis in zip(shape, permutation, strict=True):
                stored[axis] = size
            shape = stored
        found.append(Operand(tuple(shape), jnp.dtype(dtype), permutation))
    return tuple(found)


def decided(spec=RAGGED_M, target=H200, dtype="bfloat16", permutation=None, groups=None, sizes=None, **fields):
    sizes = SIZES | (sizes or {})
    groups = sizes["g"] if groups is None else groups
    fields = {"out_dtype": jnp.dtype(dtype)} | fields
    operands = operands_of(spec, dtype, permutation, **sizes)
    return decide_grouped(request_of(spec, **fields), groups, operands, target)


def config_of(tile=TILE, dtype="bf16"):
    """A config of the table, which a build may lack."""
    for config in CONFIGS:
        if config.tile[:2] == tile and config.dtype == dtype:
            return config
    pytest.skip(f"no config of {dtype} and {tile} in this build")


def problem_of(**changes):
    fields = dict(ragged="m", order="NN", groups=4, m=96, n=64, k=32, dtype="bf16", out_dtype="bf16")
    return GroupedProblem(**(fields | changes))


def problem_of_config(config, **changes):
    """One that it computes."""
    return problem_of(dtype=config.dtype, accumulator=config.accumulator, order=config.orders[-1], **changes)
