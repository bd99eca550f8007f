"""Products of groups of small integers: what they are in float64, and their calls in a program's text."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
from python.support import TARGET, custom_calls

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._primitives import grouped as module
from jax_moye._selection.grouped import RAGGED_K, RAGGED_M, RAGGED_M_BY_K

M, K, N, GROUPS = 24, 16, 32, 3
SIZES = np.array([4, 0, 11], np.int32)  # and 9 rows behind the last group, or 1 of k
DECLARED = [jax.export.DisabledSafetyCheck.custom_call(ffi.GROUPED_TARGET)]
ragged_dot = functools.partial(jax_moye.ragged_dot, implementation="moye", interpret=True)


def grouped(spec, out_dtype="bfloat16", implementation="moye", interpret=True, **options):
    """The primitive as a function of its operands."""
    params = dict(precision=None, config=None, deterministic=False, batch_invariant=False, autotune=None) | options
    return functools.partial(
        module.grouped,
        spec,
        out_dtype=jnp.dtype(out_dtype),
        implementation=implementation,
        interpret=jax_moye.InterpretParams() if interpret else None,
        **params,
    )


def operands(spec, rng, dtype=jnp.bfloat16, most=1):
    """Of integers so small that no product, sum or derivative of them is rounded."""
    sizes = dict(m=M, k=K, n=N, g=GROUPS)
    shapes = [[sizes[label] for label in labels] for labels in spec.partition("->")[0].split(",")]
    return [jnp.asarray(rng.integers(-most, most + 1, shape), dtype) for shape in shapes]


def ends_of(sizes, length):
    ends = np.minimum(np.cumsum(np.maximum(np.asarray(sizes, np.int64), 0)), length)
    return list(zip([0, *ends[:-1]], ends, strict=True))


def reference(spec, lhs, rhs, sizes):
    """In float64, group by group."""
    lhs, rhs = (np.asarray(x).astype(np.float64) for x in (lhs, rhs))
    if spec == RAGGED_K:
        parts = [lhs[begin:end].T @ rhs[begin:end] for begin, end in ends_of(sizes, len(lhs))]
        return np.stack(parts) if parts else np.zeros((0, lhs.shape[1], rhs.shape[1]))
    if spec == RAGGED_M_BY_K:
        rhs = rhs.swapaxes(1, 2)
    out = np.zeros((lhs.shape[0], rhs.shape[2]))
    for (begin, end), matrix in zip(ends_of(sizes, len(lhs)), rhs, strict=True):
        out[begin:end] = lhs[begin:end] @ matrix
    return out


def transposes(spec, lhs, rhs, sizes, cotangent):
    """What the cotangents of lhs and rhs are, in float64."""
    if spec == RAGGED_K:
        return reference(RAGGED_M_BY_K, rhs, cotangent, sizes), reference(RAGGED_M, lhs, cotangent, sizes)
    if spec == RAGGED_M:
        return reference(RAGGED_M_BY_K, cotangent, rhs, sizes), reference(RAGGED_K, lhs, cotangent, sizes)
    return reference(RAGGED_M, cotangent, rhs, sizes), reference(RAGGED_K, cotangent, lhs, sizes)


def calls_of(text):
    """Our custom calls for products of groups."""
    return custom_calls(text.replace(ffi.GROUPED_TARGET, TARGET))


def data_movements(fun, *args):
    """Transposes and copies in the optimized program of `fun` for this machine."""
    hlo = jax.jit(fun).lower(*args).compile().as_text()
    assert f'custom_call_target="{ffi.GROUPED_TARGET}"' in hlo, hlo
    return re.findall(r"= \S+ (?:transpose|copy)\(.*", hlo)


def assert_equal(found, wanted):
    np.testing.assert_array_equal(np.asarray(found).astype(np.float64), wanted)


def bf16(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def sizes_of(groups):
    return jax.ShapeDtypeStruct((groups,), jnp.int32)
