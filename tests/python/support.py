"""What several test files need: counting custom calls, reading their attributes, bounds on rounding errors."""

from __future__ import annotations

import dataclasses
import re

import jax
import numpy as np

TARGET = "jax_moye_gemm_v1"
FUSED_TARGET = "jax_moye_fused_gemm_v1"
UNIT = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "float32": 2.0**-24, "float64": 2.0**-53}  # rounding error


def kernel_calls(fun, *args) -> int:
    """Custom calls in the optimized program of `fun` for this machine."""
    return jax.jit(fun).lower(*args).compile().as_text().count(f'custom_call_target="{TARGET}"')


def data_movements(fun, *args) -> list[str]:
    """Transposes and copies in the optimized program of `fun` for this machine."""
    hlo = jax.jit(fun).lower(*args).compile().as_text()
    assert f'custom_call_target="{TARGET}"' in hlo, hlo
    return re.findall(r"= \S+ (?:transpose|copy)\(.*", hlo)


@dataclasses.dataclass(frozen=True)
class CustomCall:
    """One custom call in the text of a lowered program."""

    operands: tuple[str, ...]
    attributes: dict[str, object]

    def __getattr__(self, name: str):
        """An attribute of the call."""
        return self.attributes[name]


def lowered_text(fun, *args, platform: str = "cuda") -> str:
    """StableHLO of `fun` for a platform that need not be here."""
    return jax.jit(fun).trace(*args).lower(lowering_platforms=(platform,)).as_text()


def without_addresses(jaxpr) -> str:
    """A jaxpr's text, the same for the same program: some versions of JAX print where functions are in memory."""
    return re.sub(r"0x[0-9a-f]+", "", str(jaxpr))


def custom_calls(text: str) -> list[CustomCall]:
    """Our custom calls in StableHLO."""
    calls = []
    for operands, config in re.findall(
        rf"custom_call @{TARGET}\((.*?)\) \{{.*?mhlo\.backend_config = \{{(.*?)\}}", text
    ):
        attributes: dict[str, object] = dict(re.findall(r'(\w+) = "([^"]*)"', config))
        for name, values, size in re.findall(r"(\w+) = dense<\[?([^\]>]*)\]?> : tensor<(\d+)xi64>", config):
            numbers = tuple(int(value) for value in values.split(","))
            attributes[name] = numbers * (int(size) // len(numbers))  # one number stands for all
        for name, value in re.findall(r"(\w+) = (\d+) : i64", config):
            attributes[name] = int(value)
        for name, value in re.findall(r"(\w+) = (true|false)", config):
            attributes[name] = value == "true"
        calls.append(CustomCall(tuple(operand.strip() for operand in operands.split(",")), attributes))
    assert len(calls) == text.count(f"@{TARGET}"), text
    return calls


def integers(rng: np.random.Generator, shape, dtype) -> np.ndarray:
    """Integers in [-2, 2]: their products and sums are exact in every dtype here."""
    return rng.integers(-2, 3, shape).astype(np.float32).astype(jax.numpy.dtype(dtype))


def error_bound(a, b, out_dtype) -> np.ndarray:
    """How far from float64's product each element may be: a (..., M, K) and b (..., K, N), NumPy arrays."""
    k = a.shape[-1]
    a64, b64 = a.astype(np.float64), b.astype(np.float64)
    magnitude = np.abs(a64) @ np.abs(b64)
    # Tensor cores add 16 exact products at a time, with truncation; the others round every fused multiply-add.
    blocked, sequential = (np.ceil(k / 16) + 2) * 2 * UNIT["float32"], (k + 2) * UNIT[a.dtype.name]
    accumulation = blocked if a.dtype.itemsize == 2 else sequential
    return accumulation * magnitude + UNIT[np.dtype(out_dtype).name] * np.abs(a64 @ b64)


def assert_close(actual, a, b) -> None:
    """`actual` is a @ b within the componentwise bound; NaN is not."""
    actual, a, b = (np.asarray(x) for x in (actual, a, b))
    error = np.abs(actual.astype(np.float64) - a.astype(np.float64) @ b.astype(np.float64))
    bound = error_bound(a, b, actual.dtype)
    assert (error <= bound).all(), (
        f"largest error {np.nanmax(error - bound)} over the bound, {np.isnan(error).sum()} NaN"
    )


def to_attribute(value):
    """A value as an attribute of a custom call: integers have 64 bits, and floats are f64."""
    if isinstance(value, tuple):
        return np.array(value, np.int64)
    return np.int64(value) if type(value) is int else np.float64(value) if type(value) is float else value
