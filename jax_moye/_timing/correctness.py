"""Whether a result of a benchmark is right: componentwise bounds against float64."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax_moye._bench import workloads
from jax_moye._kernels.configs import facts_of

# The rounding error of each dtype of a result; of float16, also that of tf32, which keeps as many bits.
UNITS = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24, "float64": 2**-53, "int32": 0.0}
# No activation's slope is over it.
SLOPE = 1.13


class Reference:
    """Whole rows of a product in float64, one in each band of rows, and the bounds of errors there.

    The bound of a sum is componentwise: products of 16 terms summed exactly, then in f32 with truncation, as tensor
    cores do, or term by term in the operands' precision. Of 8-bit floats docs/precision.md says what it is: on an sm_90
    2^-13 for each of the four instructions between two additions in f32, else for each instruction. Integers are exact.
    Behind it come the epilogue in f32 and one rounding to the result's dtype.
    """

    def __init__(self, row: dict, operands: Sequence[Any], dtype: Any) -> None:
        """Computes them.

        Args:
          row: the product.
          operands: as stored.
          dtype: of a and b.
        """
        import jax
        import jax.numpy as jnp

        self._row, self._name = row, jnp.dtype(dtype).name
        m = row["m"]
        band = max(16, math.ceil(m / 256))
        rng = np.random.default_rng(m)
        starts = range(0, m, band)
        self._picked = np.array([rng.integers(start, min(start + band, m)) for start in starts] + [m - 1])
        epilogue = workloads.epilogue_of(row)

        def product(a, b):
            a, b = a.astype(jnp.float64), b.astype(jnp.float64)
            multiply = functools.partial(jnp.matmul, precision="highest")
            return multiply(a, b), multiply(jnp.abs(a), jnp.abs(b))

        @functools.partial(jax.jit, compiler_options=quick_options())
        def reference(a, b, *more):
            turned = workloads.in_layout(row, lambda a, b: (a, b))(a, b)
            a, b = turned[0][..., self._picked, :], turned[1]
            if a.ndim == 3:  # one product of the batch at a time: float64 operands are large
                return *jax.lax.map(lambda pair: product(*pair), (a, b)), ()
            return *product(a, b), tuple(x[self._picked] if x.ndim == 2 else x for x in more)

        sums, self._magnitude, more = reference(*operands)
        self._z, self._exact, self._parts = _epilogue(epilogue, sums, more)
        self._has_epilogue = any(epilogue)

    def factor(self, config: Any = None, baseline: bool = False) -> float:
        """The bound of a sum, over the sum of magnitudes.

        Args:
          config: the GemmConfig that computed it; None where nobody says.
          baseline: whether somebody else did.
        """
        k, name = self._row["k"], self._name
        if name == "int8":
            return 0.0
        tensor_core = (math.ceil(k / 16) + 2) * 2 * UNITS["float32"]
        if name in ("bfloat16", "float16"):
            return tensor_core
        if name.startswith("float8"):
            promoted = config is not None and facts_of(config.kernel).promotes_float8 and config.accumulator == "f32"
            return tensor_core + (4 if promoted else math.ceil(k / 32)) * 2.0**-13
        if config is not None and config.dtype == "tf32":
            return (math.ceil(k / 8) + 2) * 2 * UNITS["float32"] + 2.0**-9  # both operands lose 13 bits
        # Twice k: the float64 reference of a float64 product errs too.
        factor = 2 * k * UNITS[name]
        if baseline and name == "float32" and self._row.get("precision", "DEFAULT") == "DEFAULT":
            factor += 2 * UNITS["float16"]  # XLA and torch may round operands to tf32
        return factor

    def excess(self, d: Any, config: Any = None, baseline: bool = False) -> float:
        """The largest |error| over its bound. NaN counts as wrong: infinity."""
        factor, unit, steps = self.factor(config, baseline), UNITS[d.dtype.name], 0.0
        if self._has_epilogue:  # in f32; somebody else may round to the result's dtype on the way
            steps = 16 * (unit if baseline else UNITS["float32"])
        given = (self._magnitude, self._z, self._exact, self._parts)
        return float(_excess(d, self._picked, *given, factor, unit, steps))


def _epilogue(epilogue: tuple[bool, str | None, bool], sums: Any, more: Sequence[Any]) -> tuple[Any, Any, Any]:
    """(what the activation is applied to, the result, the sum of the magnitudes of the parts), in float64."""
    import jax
    import jax.numpy as jnp

    bias, activation, residual = epilogue
    if not any(epilogue):
        return sums, sums, jnp.zeros((), sums.dtype)
    rest = [x.astype(jnp.float64) for x in more]
    parts = jnp.abs(sums)
    z = sums
    if bias:
        parts = parts + jnp.abs(rest[0])
        z = z + rest.pop(0)
    functions = {
        None: lambda z: z,
        "relu": lambda z: jnp.maximum(z, 0),
        # jax.nn's constants are in the dtype of z
        "gelu": lambda z: 0.5 * z * (1 + jnp.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))),
        "gelu_exact": lambda z: 0.5 * z * (1 + jax.scipy.special.erf(z / math.sqrt(2))),
        "silu": lambda z: z / (1 + jnp.exp(-z)),
    }
    exact = functions[activation](z)
    if residual:
        parts = parts + jnp.abs(rest[0])
        exact = exact + rest.pop(0)
    return z, exact, parts


@functools.cache
def _jitted_excess():
    import jax
    import jax.numpy as jnp

    @jax.jit
    def excess(d, picked, magnitude, z, exact, parts, factor, unit, steps):
        d = d[..., picked, :].astype(jnp.float64)
        of_sums = jnp.where(steps > 0, SLOPE, 1.0) * factor * magnitude + steps * (parts + jnp.abs(z))
        bound = of_sums + unit * jnp.abs(exact)
        error = jnp.abs(d - exact)
        # Exact integers have no room for an error.
        ratio = jnp.where(error == 0, 0.0, error / bound)
        return jnp.max(jnp.where(jnp.isnan(ratio), jnp.inf, ratio))

    return excess


def _excess(*values: Any) -> Any:
    return _jitted_excess()(*values)


@functools.cache
def quick_options() -> dict[str, Any] | None:
    """Options of the compiler for what is not timed: no search for the fastest kernel. None where it knows no such."""
    return accepted({"xla_gpu_autotune_level": 0})


def accepted(options: dict[str, Any]) -> dict[str, Any] | None:
    """The options, if XLA here knows them; else None."""
    import jax

    try:
        jax.jit(lambda x: x + 1, compiler_options=options).lower(jax.ShapeDtypeStruct((), "int32")).compile()
    except Exception:  # of jaxlib, whose type is not public in all versions
        return None
    return options


def largest_excess(row: dict, a: Any, b: Any, d: Any, dtype: Any, baseline: bool = False) -> float:
    """The largest |error| over its bound, of one product without an epilogue."""
    plain = {key: row[key] for key in ("batch", "m", "n", "k", "layout", "precision") if key in row}
    return Reference(plain, (a, b), dtype).excess(d, baseline=baseline)


def same_bits(x: Any, y: Any) -> bool:
    """Whether two device arrays hold the same bits; compared on the device."""
    import jax.numpy as jnp

    word = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[x.dtype.itemsize]
    return bool(jnp.array_equal(x.view(word), y.view(word)))
