"""What sm90_sliced_k copies to shared memory ahead of its sums: the results have the bits of its other epilogue.

That one takes what is not of whole words, here results that are contiguous along m. It is tested in test_epilogue.py.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import jax_moye
from tests.emulated.emulate import emulate
from tests.emulated.problems import Call, Problem, make_call
from tests.emulated.test_epilogue import Case, Epilogue, float_outputs

CONFIGS = [config for config in jax_moye.configs() if config.kernel == "sm90_sliced_k"]
every_config = pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)

CASES = [
    Case(alpha=0.7),
    Case(beta=1.0, c="bmn"),
    Case(alpha=0.7, beta=-1.3, c="bmn", batch=2),
    Case(bias="n"),
    Case(alpha=-1.1, bias="bmn", batch=2),
    *(Case(activation, bias="n") for activation in ("relu", "gelu_tanh", "gelu_erf", "silu")),
    Case("silu", preactivation=True),
    Case("gelu_tanh", residual="bmn", batch=3),
    Case("silu", alpha=0.7, beta=0.3, c="mn", bias="bn", residual="bmn", preactivation=True, batch=2),
]
CASE_OF_ALL = CASES[-1]


def turned(call: Call) -> Call:
    """The same call with d contiguous along m: not in words."""
    _, m, n, _ = call.sizes
    return dataclasses.replace(call, d=np.empty_like(call.d), d_strides=(m * n, 1, m))


def results(config, call: Call, epilogue: Epilogue, **options) -> tuple[list[np.ndarray], int]:
    """d, z if it is kept, and the number of copies."""
    given = dict(epilogue.options)
    if "preactivation" in given:
        given["preactivation"] = np.empty_like(call.d)
    report = emulate(config, call, count_transactions=True, **given, **options)
    assert report["ok"], report["message"]
    found = [call.result()]
    if "preactivation" in given:
        found.append(dataclasses.replace(call, d=given["preactivation"]).result())
    return found, report["counters"]["cp_async"]


def make(config, case: Case, out: str, sizes: tuple[int, int, int], order: str = "NN") -> tuple[Call, Epilogue]:
    call = make_call(config, Problem(*sizes, order, batch=case.batch, pad=8), out, values="normal")
    return call, Epilogue(case, Problem(*sizes, order, batch=case.batch), call.d, "normal")


def copies(config, case: Case, out: str, sizes: tuple[int, int, int]) -> int:
    """Words that are copied. A matrix is read where d has a row; of 32 rows a thread copies two, its first row for one
    below d."""
    m, n, _ = sizes
    if config.tile[0] == 32:
        if out == "f32":
            return 0
        m = sum(2 * min(16, m - first) for first in range(0, m, 32))
    return case.batch * m * n // 4 * sum(1 for modes in (case.c, case.bias, case.residual) if modes)


def assert_same_bits(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for x, y in zip(one, other, strict=True):
        assert np.isfinite(x.astype(np.float32)).all()
        assert x.tobytes() == y.tobytes()


@every_config
@pytest.mark.parametrize("case", CASES, ids=str)
def test_same_bits(config, case):
    """In every type, of tiles that are cut in both directions."""
    tile_m, tile_n, tile_k = config.tile
    for index, out in enumerate(float_outputs(config)):
        sizes = [(tile_m + 5, tile_n + 12, 2 * tile_k + 8), (tile_m - 1, tile_n - 4, 8), (3, 4, tile_k)][index]
        call, epilogue = make(config, case, out, sizes, ("NN", "NT", "TN")[index])
        ahead, words = results(config, call, epilogue)
        behind, fewer = results(config, turned(call), epilogue)
        assert_same_bits(ahead, behind)
        assert words - fewer == copies(config, case, out, sizes)


@every_config
@pytest.mark.parametrize("order", ["NN", "NT", "TN", "TT"])
def test_every_k(config, order):
    """No products, one k-tile, as many as leave room for copies, and one more: those copy nothing."""
    tile_m, tile_n, tile_k = config.tile
    for k_tiles in (0, 1, config.stages - 1, config.stages, config.stages + 2):
        sizes = (tile_m + 2, tile_n + 4, k_tiles * tile_k)
        call, epilogue = make(config, CASE_OF_ALL, "bf16", sizes, order)
        ahead, words = results(config, call, epilogue)
        behind, fewer = results(config, turned(call), epilogue)
        assert_same_bits(ahead, behind)
        is_copied = 0 < k_tiles < config.stages
        assert words - fewer == is_copied * copies(config, CASE_OF_ALL, "bf16", sizes)


@every_config
@pytest.mark.parametrize("name", ["c", "residual"])
def test_in_place(config, name):
    """d is what is added to it."""
    tile_m, tile_n, _ = config.tile
    case = Case(beta=-0.7, c="bmn", batch=2) if name == "c" else Case("relu", residual="bmn", batch=2)
    for out in float_outputs(config):
        sizes = (tile_m + 7, tile_n + 8, 72)
        call, epilogue = make(config, case, out, sizes)
        behind, _ = results(config, turned(call), epilogue)
        call.d[...] = epilogue.options[name]
        epilogue.options |= {name: call.d, f"{name}_strides": call.d_strides}
        ahead, _ = results(config, call, epilogue)
        assert_same_bits(ahead, behind)


@every_config
@pytest.mark.parametrize("flush", ["end", "start"])
def test_nothing_outside_is_copied(config, flush):
    """Each matrix ends, or starts, at an inaccessible page."""
    tile_m, tile_n, _ = config.tile
    for out in float_outputs(config):
        for m, n in ((1, 4), (tile_m + 1, tile_n + 4)):
            call, epilogue = make(config, CASE_OF_ALL, out, (m, n, 64))
            results(config, call, epilogue, flush=flush)
