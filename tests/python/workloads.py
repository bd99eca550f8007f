"""A small workload for the tests of `_timing` and `_bench`, its operands, and its product in NumPy."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np

from jax_moye._timing.operands import OperandSets
from jax_moye._timing.workloads import Workload

WORKLOAD = Workload("A1", "own", 1, 40, 24, 96, "NN", "bf16")


def as_numpy(x) -> np.ndarray:
    return np.asarray(x).astype(np.float64)


def one_set(workload: Workload) -> list:
    """Operands of NumPy's numbers: JAX would compile for each test."""
    rng = np.random.default_rng(0)
    values = [
        rng.standard_normal(struct.shape) if workload.dtype != "s8" else rng.integers(-127, 128, struct.shape)
        for struct in workload.structs
    ]
    return [jnp.asarray(x.astype(struct.dtype)) for x, struct in zip(values, workload.structs, strict=True)]


def exact(workload: Workload, operands) -> np.ndarray:
    """The product of the first two operands in float64."""
    a, b = map(as_numpy, operands[:2])
    a = a.swapaxes(-1, -2) if workload.layout[0] == "T" else a
    b = b.swapaxes(-1, -2) if workload.layout[1] == "T" else b
    return a @ b


def five_sets(group: int = 5, repeats: int = 0) -> OperandSets:
    """Five different products of WORKLOAD."""
    a, b = one_set(WORKLOAD)
    return OperandSets(([jnp.roll(a, i) for i in range(5)], [b] * 5), group, repeats)
