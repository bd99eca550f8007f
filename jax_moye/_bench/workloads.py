"""The rows of a benchmark: what is computed, on which operands, by whose program.

A row is a dict with the keys of benchmarks/suite.json: id, regime, batch, m, n, k, layout, dtype, and where it has them
precision and epilogue ("bias+gelu", "residual").
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jax_moye._inspect.command import parse_shape
from jax_moye._kernels.dtypes import OPERAND_NAMES

NAMES = {
    **OPERAND_NAMES,
    "f8e4m3": OPERAND_NAMES["e4m3"],
    "f8e5m2": OPERAND_NAMES["e5m2"],
}  # the suite's word -> NumPy's
# The dtype of the result, where it is not the operands'.
OUT_DTYPES = {"int8": "int32", "float8_e4m3fn": "bfloat16", "float8_e5m2": "bfloat16"}
ACTIVATIONS = ("relu", "gelu", "gelu_exact", "silu")


def identity(row: dict) -> dict:
    """What the report repeats of the suite's row."""
    keys = ("id", "regime", "batch", "m", "n", "k", "layout", "dtype")
    return {key: row[key] for key in keys} | {key: row[key] for key in ("precision", "epilogue") if key in row}


def own_row(text: str, number: int, precision: str | None = None) -> dict:
    """The row of `--shape`, e.g. "4096x4096x4096:bf16:NT".

    Args:
      text: the shape.
      number: of the row.
      precision: of a lax.Precision or of a preset, the name.

    Raises:
      ValueError: it is no shape.
    """
    batch, m, n, k, dtype, order = parse_shape(text)
    sizes = {"batch": batch, "m": m, "n": n, "k": k}
    row = {"id": f"S{number}", "regime": "own", **sizes, "layout": order, "dtype": dtype}
    return row | ({"precision": precision.upper()} if precision else {})


def numpy_dtype(row: dict) -> Any:
    """The dtype of a and b."""
    import jax.numpy as jnp

    return jnp.dtype(NAMES[row["dtype"]])


def out_dtype(dtype: Any) -> Any:
    """The dtype of the result of operands of `dtype`."""
    import jax.numpy as jnp

    return jnp.dtype(OUT_DTYPES.get(jnp.dtype(dtype).name, dtype))


def precision_of(row: dict) -> str | None:
    """The row's precision as `jnp.matmul` spells it: a lax.Precision in small letters, a preset in capitals."""
    name = row.get("precision")
    return name.lower() if name in ("DEFAULT", "HIGH", "HIGHEST") else name


def epilogue_of(row: dict) -> tuple[bool, str | None, bool]:
    """(has a bias, its activation, has a residual).

    Raises:
      NotImplementedError: it is none that this benchmark knows.
    """
    parts = row["epilogue"].split("+") if row.get("epilogue") else []
    activations = [part for part in parts if part in ACTIVATIONS]
    if len(activations) > 1 or not set(parts) <= {"bias", "residual", *ACTIVATIONS}:
        raise NotImplementedError(f"the epilogue {row['epilogue']}")
    if parts and row["batch"] > 1:
        raise NotImplementedError("an epilogue of a batch")
    return "bias" in parts, activations[0] if activations else None, "residual" in parts


# Operands --------------------------------------------------------------------------------------------------------


def shapes(row: dict, dtype: Any) -> tuple:
    """The stored shapes of a and b, then of bias and residual: a letter T of the layout means stored transposed."""
    import jax

    lead = (row["batch"],) if row["batch"] > 1 else ()
    a, b = (row["m"], row["k"]), (row["k"], row["n"])
    stored = [shape[::-1] if letter == "T" else shape for shape, letter in zip((a, b), row["layout"], strict=True)]
    structs = [jax.ShapeDtypeStruct(lead + shape, dtype) for shape in stored]
    bias, _, residual = epilogue_of(row)
    if bias:
        structs.append(jax.ShapeDtypeStruct((row["n"],), out_dtype(dtype)))
    if residual:
        structs.append(jax.ShapeDtypeStruct((row["m"], row["n"]), out_dtype(dtype)))
    return tuple(structs)


def footprint(row: dict, dtype: Any) -> int:
    """Bytes of one set of operands and of its result."""
    result = row["batch"] * row["m"] * row["n"] * out_dtype(dtype).itemsize
    return result + sum(struct.size * struct.dtype.itemsize for struct in shapes(row, dtype))


def operand_sets(row: dict, dtype: Any, count: int) -> tuple[list, ...]:
    """`count` different sets of random operands: for each operand the list of its arrays.

    Floats are normal, rounded to their dtype; integers uniform over all values of int8 but the lowest.
    """
    import jax
    import jax.numpy as jnp

    structs = shapes(row, dtype)

    def random(key, struct):
        if jnp.issubdtype(struct.dtype, jnp.integer):
            return jax.random.randint(key, struct.shape, -127, 128, struct.dtype)
        drawn = struct.dtype if jnp.dtype(struct.dtype).itemsize > 1 else jnp.float32
        return jax.random.normal(key, struct.shape, drawn).astype(struct.dtype)

    @jax.jit
    def make(number):
        key = jax.random.fold_in(jax.random.key(row["m"] * row["n"] + row["k"]), number)
        keys = jax.random.split(key, len(structs))
        return [random(key, struct) for key, struct in zip(keys, structs, strict=True)]

    made = [make(np.uint32(number)) for number in range(count)]
    return tuple([one[i] for one in made] for i in range(len(structs)))


def operands(row: dict, dtype: Any, count: int) -> tuple[list, list]:
    """`count` different sets of a and b."""
    a, b = operand_sets({key: row[key] for key in ("batch", "m", "n", "k", "layout")}, dtype, count)
    return a, b


# Programs --------------------------------------------------------------------------------------------------------


def in_layout(row: dict, matmul: Callable) -> Callable:
    """`matmul` of the operands as stored, a and b first. Works on jax arrays and torch tensors."""
    turn = [(lambda x: x.swapaxes(-1, -2)) if letter == "T" else (lambda x: x) for letter in row["layout"]]
    return lambda a, b, *more: matmul(turn[0](a), turn[1](b), *more)


def ours(row: dict, dtype: Any, options: Mapping[str, Any]) -> Callable:
    """Our program of the row: of its operands as stored."""
    import jax_moye

    bias, activation, residual = epilogue_of(row)
    common: dict[str, Any] = {"precision": precision_of(row), **options}
    if out_dtype(dtype) != dtype:
        common["preferred_element_type"] = out_dtype(dtype)
    if not (bias or activation or residual):
        return in_layout(row, functools.partial(jax_moye.matmul, **common))

    def linear(a, b, *more):
        rest = list(more)
        named: dict[str, Any] = {"activation": activation}
        named |= {"bias": rest.pop(0)} if bias else {}
        named |= {"residual": rest.pop(0)} if residual else {}
        return jax_moye.linear(a, b, **named, **common)

    return in_layout(row, linear)


def xla(row: dict, dtype: Any) -> Callable:
    """What a user of JAX would write: `jnp.matmul`, and the epilogue behind it for XLA to fuse."""
    import jax
    import jax.numpy as jnp

    bias, activation, residual = epilogue_of(row)
    out = out_dtype(dtype)
    preferred = out if out != dtype else None
    functions: dict[str | None, Callable] = {
        None: lambda z: z,
        "relu": jax.nn.relu,
        "gelu": jax.nn.gelu,
        "gelu_exact": functools.partial(jax.nn.gelu, approximate=False),
        "silu": jax.nn.silu,
    }

    def program(a, b, *more):
        rest = list(more)
        z = jnp.matmul(a, b, precision=precision_of(row), preferred_element_type=preferred)
        z = z + rest.pop(0) if bias else z
        z = functions[activation](z)
        return z + rest.pop(0) if residual else z

    return in_layout(row, program)


def torch_program(row: dict) -> Callable:
    """The row as torch computes it, of operands as stored."""
    import torch

    bias, activation, residual = epilogue_of(row)
    functional = torch.nn.functional
    functions: dict[str | None, Callable] = {
        None: lambda z: z,
        "relu": functional.relu,
        "gelu": functools.partial(functional.gelu, approximate="tanh"),
        "gelu_exact": functional.gelu,
        "silu": functional.silu,
    }

    def program(a, b, *more):
        rest = list(more)
        z = torch.addmm(rest.pop(0), a, b) if bias else torch.matmul(a, b)
        z = functions[activation](z)
        return z + rest.pop(0) if residual else z

    return in_layout(row, program)
