"""Products measured while they are lowered, on a GPU: what is found holds when it is timed again."""

from __future__ import annotations

import logging
import re
import statistics
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from python.attentions import FORMS, assert_as_exact, exact, gradients, operands

import jax_moye
from jax_moye._kernels import ffi
from jax_moye._kernels.configs import attention_configs
from jax_moye._primitives import autotune
from jax_moye._selection import measurements
from jax_moye._selection.attention_key import AttentionKey
from jax_moye._selection.capability import LoweringTarget
from jax_moye._selection.problem import GemmProblem
from jax_moye._timing.direct import DirectProduct, Layout

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch, tmp_path):
    """Nothing is known, by this process or from a file."""
    monkeypatch.setenv("JAX_MOYE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(measurements.AUTOTUNE, "on")
    monkeypatch.setattr(autotune, "_settled", set())
    monkeypatch.setattr(measurements, "_here", {})
    monkeypatch.setattr(measurements, "TABLES", tmp_path / "no tables")
    measurements.forget()
    jax.clear_caches()
    yield
    measurements.forget()
    jax.clear_caches()


def structs(m, n, k, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct((m, k), dtype), jax.ShapeDtypeStruct((k, n), dtype)


def measured(fun, *args, of=GemmProblem):
    """The entry that lowering makes of the product, or of the attention: beside that there may be its products'."""
    (gpu,) = jax.local_devices()[:1]
    jax.jit(fun).lower(*args)
    tables = measurements.read(measurements.cache_file(gpu.device_kind))
    (entry,) = (entry for entry in tables.entries.values() if isinstance(entry.problem, of))
    return entry


def assert_near(found, wanted):
    """A result of bfloat16, and one of float64."""
    found, wanted = (np.asarray(x, np.float64) for x in (found, wanted))
    assert np.abs(found - wanted).max() <= 2.0**-6 * np.abs(wanted).max()


@pytest.mark.parametrize("shape", [(4096, 4096, 1024), (16, 4096, 4096), (1, 2048, 2048), (33, 257, 1000)], ids=str)
def test_lowering_measures_and_the_program_is_right(shape):
    m, n, k = shape
    entry = measured(jax_moye.matmul, *structs(*shape))
    assert entry.us[entry.config] <= 1.01 * min(entry.us.values())
    (xla_us,) = entry.xla_us.values()
    (lead,) = entry.lead.values()
    assert 0.2 < lead <= 1.1 * xla_us / entry.us[entry.config]
    least = 2 * m * n * k / 1000e6 + 2 * (m * k + n * k + m * n) / 5e6  # of any GPU that there is, either alone
    assert max(entry.us.values()) > least / 2
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(jnp.bfloat16) for shape in ((m, k), (k, n)))
    exact = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(np.asarray(jax.jit(jax_moye.matmul)(a, b)).astype(np.float64), exact, rtol=2**-8)


def test_a_layer_is_measured_with_what_xla_makes_of_it():
    a, b = structs(512, 1024, 2048)
    bias = jax.ShapeDtypeStruct((1024,), jnp.bfloat16)
    entry = measured(lambda a, b, c: jax_moye.linear(a, b, c, activation="gelu"), a, b, bias)
    assert entry.variant == "gelu_tanh bias"
    assert len(entry.xla_us) == 1


def test_two_results_are_measured_with_what_xla_makes_of_them():
    """The cotangents of a gated layer; whoever is the faster computes them rightly."""

    def cotangents(d_y, w, gate, up):
        return jax.vjp(lambda gate, up: jax.nn.silu(gate) * up, gate, up)[1](d_y @ w.T)

    m, n, k = 2048, 2816, 1024
    rng = np.random.default_rng(0)
    shapes = (m, k), (n, k), (m, n), (m, n)
    args = [jnp.asarray(rng.standard_normal(shape) / shape[1] ** 0.25, jnp.bfloat16) for shape in shapes]
    found = jax.jit(jax_moye.optimize(cotangents))(*args)
    (gpu,) = jax.local_devices()[:1]
    entries = measurements.read(measurements.cache_file(gpu.device_kind)).entries.values()
    (entry,) = (entry for entry in entries if entry.variant == "d_silu c multiplier kept")
    assert len(entry.xla_us) == 1
    with jax.enable_x64(True):
        wanted = cotangents(*(x.astype(jnp.float64) for x in args))
    for one, other in zip(found, wanted, strict=True):
        assert_near(one, other)


def test_halves_of_one_product_are_measured_beside_that_product():
    """Whoever is the faster computes a gated layer of one array of weights rightly."""
    m, n, k = 2048, 2816, 1024
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal(shape) / shape[0] ** 0.25, jnp.bfloat16) for shape in ((m, k), (k, 2 * n))]

    def layer(x, w):
        gate, up = jnp.split(x @ w, 2, -1)
        return jax.nn.silu(gate) * up

    found = jax.jit(jax_moye.optimize(layer))(*args)
    (gpu,) = jax.local_devices()[:1]
    entries = measurements.read(measurements.cache_file(gpu.device_kind)).entries.values()
    (entry,) = (entry for entry in entries if entry.variant == "silu second_b halves")
    (xla_us,) = entry.xla_us.values()
    assert xla_us > 4 * m * n * k / 1000e6 / 2  # of any GPU that there is
    with jax.enable_x64(True):
        wanted = layer(*(x.astype(jnp.float64) for x in args))
    assert_near(found, wanted)


def test_ours_by_its_clock_is_ours_by_the_hosts():
    """A CUDA graph of a config against a program of it, in loops of the host's clock: within a tenth."""
    m, n, k = 2048, 2048, 2048
    config = next(
        c.name
        for c in jax_moye.configs()
        if (c.kernel, c.dtype) == ("sm80_multistage", "bf16") and c.name in ffi.built("cuda") and c.alignment == 16
    )
    layout = Layout((1, m, n, k), {"a": (0, k, 1), "b": (0, 1, n), "d": (0, n, 1)}, "bf16", "bf16")
    with DirectProduct(layout, jax.local_devices()[0], [config]) as product:
        contender = product.contender(config)
        contender.round(20)
        ours = statistics.median(contender.round(20) for _ in range(5))
    a, b = (jnp.ones(shape, jnp.bfloat16) for shape in ((m, k), (k, n)))
    program = jax.jit(lambda a, b: jax_moye.matmul(a, b, config=config)).lower(a, b).compile()
    times = []
    for _ in range(7):
        jax.block_until_ready(program(a, b))
        begin = time.perf_counter()
        for _ in range(300):
            d = program(a, b)
        d.block_until_ready()
        times.append((time.perf_counter() - begin) / 300)
    assert ours == pytest.approx(statistics.median(times), rel=0.15)


def test_memory_that_is_not_free_leaves_the_choice_to_the_model(caplog):
    free = 10**15
    layout = Layout(
        (1, 10**6, 10**6, 10**4), {"a": (0, 10**4, 1), "b": (0, 1, 10**6), "d": (0, 10**6, 1)}, "bf16", "bf16"
    )
    assert layout.footprint < free
    with pytest.raises(MemoryError):
        DirectProduct(layout, jax.local_devices()[0], [])
    with caplog.at_level(logging.INFO, "jax_moye"):
        jax.jit(jax_moye.matmul).lower(*structs(10**6, 10**6, 10**4))
    assert "is not measured: MemoryError" in caplog.text
    jnp.ones(8).block_until_ready()  # no error is left behind


def test_the_memory_comes_back():
    def free():
        out = subprocess.run(
            ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True
        )
        return int(re.findall(r"\d+", out.stdout)[0])

    jax.jit(jax_moye.matmul).lower(*structs(1024, 1024, 1024))
    before = free()
    for n in range(8):
        jax.jit(jax_moye.matmul).lower(*structs(4096, 4096, 4096 + 64 * n))
    assert free() - before < 600  # MiB: each has some 200, XLA's results stay in JAX's pool


def test_a_second_process_measures_nothing(tmp_path):
    program = """
import logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stdout)
import jax, jax.numpy as jnp, jax_moye
a = jax.ShapeDtypeStruct((512, 512), jnp.bfloat16)
jax.jit(jax_moye.matmul).lower(a, a)
"""
    texts = [
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    ]
    assert "measured mk,kn->mn on bfloat16[512, 512]" in texts[0]
    assert "measured mk" not in texts[1]


# ---------------------------------------------------------------------------------------------------------- attention


def attention_kernels():
    if LoweringTarget.of_platform("cuda").arch != 90:
        pytest.skip("kernels of attention are sm_90's")
    if len({config.kernel for config in attention_configs()}) < 2:
        pytest.skip("no rows of sm90_attention in this build")


@pytest.mark.parametrize(
    "sizes", [(4, 1024, 1024, 8, 8, 128), (8, 512, 512, 12, 12, 64), (1, 48, 48, 2, 2, 64)], ids=str
)
def test_attention_is_measured_with_its_gradients(sizes):
    """One entry for both, next to XLA's program of the equations; who wins computes both, and computes them right."""
    attention_kernels()
    fun = gradients(FORMS["plain"], True)
    args = operands(np.random.default_rng(0), sizes)
    entry = measured(jax_moye.optimize(fun), *args, of=AttentionKey)
    b, t, s, h, n, d = sizes
    assert entry.problem.sizes == (b, n, h // n, t, s, d)
    assert {re.match(r"sm90_attention_bf16_(\d+)x", name)[1] for name in entry.us} == {"64", "128"}
    (xla_us,), (lead,) = entry.xla_us.values(), entry.lead.values()
    assert 0.05 < lead <= 1.1 * xla_us / entry.us[entry.config]
    least = 7 * b * h * t * s * d / 1000e6  # half of all scores, on any GPU that there is
    assert min(*entry.us.values(), xla_us) > least / 2
    compiled = jax.jit(jax_moye.optimize(fun)).lower(*args).compile()
    ours = compiled.as_text().count('custom_call_target="jax_moye_')
    assert (ours >= 2) == entry.is_won_by_ours(entry.variant)
    assert_as_exact(compiled(*args), jax.jit(fun)(*args), exact(*args, True), jnp.bfloat16)


def test_attention_takes_as_long_when_it_is_timed_again():
    """By the host's clock in `report`, on other operands: within a quarter, or host-bound."""
    attention_kernels()
    args = operands(np.random.default_rng(0), (4, 2048, 2048, 16, 16, 128))
    fun = jax_moye.optimize(gradients(FORMS["plain"], True))
    entry = measured(fun, *args, of=AttentionKey)
    found = jax_moye.report(fun, *args)
    (row,), (again,) = found.explanation.attentions, found.attentions
    assert (row.count, row.computed_by, again.error) == (1, "moye", None)
    assert (row.us, row.xla_us) == (entry.us[entry.config], *entry.xla_us.values())
    assert 0.75 < again.us / row.us < 1.25
    assert 0.75 < again.xla_us / row.xla_us < 1.25
    assert found.totals()["program"] >= again.us


def test_what_attention_was_measured_once_is_not_measured_again(caplog):
    attention_kernels()
    args = operands(np.random.default_rng(0), (4, 512, 512, 8, 8, 64))
    fun = jax_moye.optimize(gradients(FORMS["heads first"], False))
    measured(fun, *args, of=AttentionKey)
    autotune._settled.clear()  # as in the next process
    measurements.forget()
    jax.clear_caches()
    with caplog.at_level(logging.INFO, "jax_moye"):
        measured(fun, *args, of=AttentionKey)
    assert not [record for record in caplog.records if record.getMessage().startswith("measured")]
