"""Products times an activation's derivative at another array: d = alpha (a b) f'(c)."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

import jax_moye
from jax_moye import _moye_cpu
from jax_moye._selection.epilogue import ACTIVATIONS, DERIVATIVES

M, N, K = 70, 136, 64
CONFIGS = [c for c in jax_moye.configs() if not c.grouped and c.dtype in ("bf16", "f16") and c.accumulator == "f32"]


def operands(dtype, seed=0):
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-2, 3, (rows, K)).astype(dtype) for rows in (M, N))
    c = (2 * rng.standard_normal((M, N))).astype(dtype)
    c[0, :3] = 0, 8, -8  # where a derivative jumps, and where it is 1 or 0
    return a, b, c


def run(config, a, b, c, d, activation, **changes):
    given = {"c": c, "c_strides": (M * N, N, 1), "beta": 1.0, "alpha": 0.5, "activation": activation} | changes
    return _moye_cpu.emulate(config.name, a, b, d, (1, M, N, K), (M * K, K, 1), (N * K, K, 1), (M * N, N, 1), **given)


def times_derivative(name, c, z):
    of = ACTIVATIONS[DERIVATIVES[name]]
    with jax.enable_x64(True):
        return np.asarray(jax.vjp(of, jnp.asarray(c.astype(np.float64)))[1](jnp.asarray(z))[0])


@pytest.mark.parametrize("activation", DERIVATIVES)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.name)
def test_values(config, activation):
    dtype = ml_dtypes.bfloat16 if config.dtype == "bf16" else np.float16
    a, b, c = operands(dtype)
    d = np.zeros((M, N), dtype)
    report = run(config, a, b, c, d, activation)
    if not config.derives:
        assert not report["ok"]
        assert "multiplies by no derivative" in report["message"]
        return
    assert report["ok"], report["message"]
    product = 0.5 * (a.astype(np.float64) @ b.astype(np.float64).T)
    wanted = times_derivative(activation, c, product)
    # One rounding to 16 bits, and functions in f32 that are made for such a result.
    error = np.abs(d.astype(np.float64) - wanted)
    assert (error <= 2.0**-8 * np.abs(wanted) + 1e-4 * np.abs(product) + 1e-6).all()


@pytest.mark.parametrize("config", [config for config in CONFIGS if config.derives], ids=lambda config: config.name)
def test_where_relu_is_0_infinite_sums_are(config):
    """A choice, as JAX has it, and no product: that would be NaN."""
    dtype = ml_dtypes.bfloat16 if config.dtype == "bf16" else np.float16
    for n in (N, N - 1):  # stored by TMA, and by threads
        a, b, c = operands(dtype)
        a[:7, 3], a[7, 5] = np.inf, np.nan
        c[2, :3] = 0, np.nan, np.inf
        b, c, d = b[:n], np.ascontiguousarray(c[:, :n]), np.zeros((M, n), dtype)
        strides = (M * K, K, 1), (n * K, K, 1), (M * n, n, 1)
        given = {"c": c, "c_strides": strides[2], "beta": 1.0, "alpha": 0.5, "activation": "d_relu"}
        report = _moye_cpu.emulate(config.name, a, b, d, (1, M, n, K), *strides, **given)
        assert report["ok"], report["message"]
        with np.errstate(invalid="ignore"):
            product = 0.5 * (a.astype(np.float32) @ b.astype(np.float32).T)
        wanted = np.where(c.astype(np.float32) > 0, product, 0)
        np.testing.assert_array_equal(d.astype(np.float32), wanted)


def test_some_configs_derive():
    assert any(config.derives for config in CONFIGS)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"c": None}, "a derivative is one of c"),
        ({"bias": "d", "bias_strides": (0, 0, 1)}, "has no bias, residual or second b beside it"),
        ({"residual": "d", "residual_strides": (M * N, N, 1)}, "has no bias, residual"),
        ({"preactivation": "d"}, "has one result, and with a multiplier two"),
        ({"activation": "d_tanh"}, "activation is none"),
    ],
)
def test_what_is_refused(changes, why):
    config = next(config for config in CONFIGS if config.derives and config.dtype == "bf16")
    a, b, c = operands(ml_dtypes.bfloat16)
    d = np.zeros((M, N), ml_dtypes.bfloat16)
    changes = {name: np.zeros((M, N), d.dtype) if isinstance(x, str) and x == "d" else x for name, x in changes.items()}
    if "c" in changes:
        c, changes = changes["c"], {"beta": 0.0}
    report = run(config, a, b, c, d, changes.pop("activation", "d_silu"), **changes)
    assert not report["ok"]
    assert why in report["message"]


def test_a_wider_result_is_refused():
    config = next(config for config in CONFIGS if config.derives and config.dtype == "bf16")
    a, b, c = operands(ml_dtypes.bfloat16)
    report = run(config, a, b, c.astype(np.float32), np.zeros((M, N), np.float32), "d_silu")
    assert not report["ok"]
    assert "has 16 bits, not those of f32" in report["message"]
