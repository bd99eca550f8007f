"""tune on a GPU: what it measures is what programs that are traced later compute with, and the results stay right."""

from __future__ import annotations

import dataclasses
import importlib
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_moye
from jax_moye import _compat
from jax_moye._inspect.programs import random_operands
from jax_moye._kernels.devices import of_jax
from jax_moye._selection import measurements
from jax_moye._selection.capability import usable_configs, why_not
from jax_moye._selection.ranking import rank
from jax_moye._timing import operands as timed_operands
from jax_moye._timing.rounds import Race
from jax_moye._tune import times

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

M, N, K = 192, 320, 448
tune = importlib.import_module("jax_moye._tune.tune")  # the module: jax_moye.tune is the function


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measurements, "TABLES", tmp_path / "tables")
    measurements.forget()
    yield
    measurements.forget()


def operands(rng, dtype="bfloat16"):
    return (jnp.asarray(rng.integers(-2, 3, shape), dtype) for shape in ((M, K), (K, N)))


def program(**options):
    """A new one each time: a program that is compiled keeps its kernels."""
    return jax.jit(lambda a, b: jax_moye.matmul(a, b, **options))


def config_of(fun, a, b):
    found = re.search(r'\bconfig = "([^"]+)"', fun.lower(a, b).as_text())  # and not backend_config
    return found and found[1]


def test_what_is_measured_is_what_runs(gpu):
    a, b = operands(np.random.default_rng(0))
    exact = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    before = [np.asarray(x).tobytes() for x in (a, b)]
    old = program(implementation="moye")
    old(a, b)
    found = jax_moye.tune(a, b, top=4)
    (product,) = found.products
    assert product.why is None
    assert product.rejected == {}
    assert len(product.entry.us) == 4
    assert all(0.5 < us < 1000 for us in [*product.entry.us.values(), *product.entry.xla_us.values()])
    assert len(product.entry.xla_us) == 1
    assert [np.asarray(x).tobytes() for x in (a, b)] == before
    assert found.path == pathlib.Path(measurements.cache_file(of_jax(gpu).kind))

    assert config_of(program(implementation="moye"), a, b) == product.entry.config
    explanation = jax_moye.explain(a, b, implementation="moye")[0]
    assert (explanation.chosen_by, explanation.config.name) == ("cache", product.entry.config)
    np.testing.assert_array_equal(np.asarray(program()(a, b), np.float64), exact.astype(a.dtype).astype(np.float64))

    # Another row in the file, and then XLA: programs follow, and their results are the same.
    rows = usable_configs("cuda", _compat.cuda_arch())
    other = next(
        row for row in rows if row.name != product.entry.config and why_not(row, explanation.problem, 90) is None
    )
    changed = dataclasses.replace(
        product.entry,
        config=other.name,
        row=measurements.config_digest(other),
        us={other.name: 1.0},
        xla_us={},
        lead={},
        host_bound=False,
    )
    head = measurements.read(found.path).head
    measurements.write(found.path, head, [changed])
    fun = program(implementation="moye")
    assert config_of(fun, a, b) == other.name
    np.testing.assert_array_equal(np.asarray(fun(a, b), np.float64), exact.astype(a.dtype).astype(np.float64))
    (words,) = product.entry.xla_us
    measurements.write(found.path, head, [dataclasses.replace(changed, xla_us={words: 0.5})])
    assert config_of(program(), a, b) is None
    np.testing.assert_array_equal(np.asarray(program()(a, b), np.float64), exact.astype(a.dtype).astype(np.float64))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "int8"])
def test_each_way_of_timing_finds_results_right(gpu, dtype, monkeypatch):
    """In a loop on the device, and in programs of products alone."""
    shapes = ((64, 128), (96, 128))
    out = "int32" if dtype == "int8" else dtype
    product = jax_moye.explain(*shapes, dtype, spec="mk,nk->mn", preferred_element_type=out)[0].product
    target = tune.find_target(gpu, emulated=False, path=None)
    protocol = times.Protocol(top=3, race=Race(round_ms=1, warmup_ms=0))
    for short_us in (timed_operands.SHORT_US, 0):
        monkeypatch.setattr(timed_operands, "SHORT_US", short_us)
        with jax.enable_x64(True), jax.default_device(gpu):
            sets = random_operands(product, gpu, times.LARGEST_LOOP)
        assert (sets.repeats > 0) == (short_us > 0)
        (found,) = tune.tune_products([product], target, protocol)
        assert found.why is None
        assert not [why for why in found.rejected.values() if why.startswith("WRONG")]
        assert found.entry.us


def test_a_wrong_kernel_has_no_time(gpu, monkeypatch):
    product = jax_moye.explain((M, K), (K, N), "bfloat16")[0].product
    target = tune.find_target(gpu, emulated=False, path=None)
    protocol = times.Protocol(top=2, race=Race(round_ms=1, warmup_ms=0))
    _, (_, bad) = tune._candidates(product, target, protocol)
    right = times.program_of

    def program_of(product, implementation, interpret):
        fun = right(product, implementation, interpret)
        return fun if product.request.config != bad.name else lambda *operands: fun(*operands).at[-1, -1].add(1)

    monkeypatch.setattr(times, "program_of", program_of)
    (found,) = tune.tune_products([product], target, protocol)
    assert found.rejected[bad.name].startswith("WRONG")
    assert bad.name not in found.entry.us


def test_the_command(gpu, tmp_path, capsys):
    from jax_moye.__main__ import main

    out = tmp_path / "table.json"
    assert main(["tune", "--shape", f"{M}x{N}x{K}:bf16:NT", "--top", "all", "--turn-ms", "2", "--out", str(out)]) == 0
    (entry,) = measurements.read(out).entries.values()
    rows = usable_configs("cuda", _compat.cuda_arch())
    able = [row for row, reason in rank(entry.problem, _compat.cuda_arch(), rows) if reason is None]
    assert len(entry.us) == len(able)
    assert "of the best measured" in capsys.readouterr().out
