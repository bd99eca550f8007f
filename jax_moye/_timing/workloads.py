"""Workloads: the lines of a benchmark. What is computed, on operands of which shapes and dtypes."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from jax_moye._kernels.dtypes import OPERAND_NAMES, numpy_dtype, short_name
from jax_moye._timing import files

_SUITE_WORDS = {"f8e4m3": "e4m3", "f8e5m2": "e5m2"}  # the suite's, where they are not the table's
# The dtype of the result, where it is not the operands'.
_RESULTS = {"s8": "s32", "e4m3": "bf16", "e5m2": "bf16"}
ACTIVATIONS = ("relu", "gelu", "gelu_exact", "silu")


class Finish(NamedTuple):
    """What is done to the sums: is a bias added, which activation is applied, is a residual added."""

    bias: bool
    activation: str | None
    residual: bool


@dataclasses.dataclass(frozen=True)
class Workload:
    """A product to be timed.

    Attributes:
      id: e.g. "A2".
      regime: that it is counted in, e.g. "large".
      batch: 1 where there is none.
      m: rows of a and of the result.
      n: columns of b and of the result.
      k: that is summed over.
      layout: first letter a, second b; N is row-major, T is stored transposed.
      dtype: of a and b, e.g. "bf16".
      precision: name of a lax.Precision, or of a preset, in capitals; None: nothing is asked for.
      epilogue: e.g. "bias+gelu", "residual"; None without one.
    """

    id: str
    regime: str
    batch: int
    m: int
    n: int
    k: int
    layout: str
    dtype: str
    precision: str | None = None
    epilogue: str | None = None

    @classmethod
    def from_json(cls, line: Mapping[str, Any]) -> Workload:
        """A line of benchmarks/suite.json, or of a file of results."""
        return cls(**{field.name: line[field.name] for field in dataclasses.fields(cls) if field.name in line})

    @classmethod
    def from_shape(cls, text: str, number: int, precision: str | None = None) -> Workload:
        """What `--shape` names.

        Args:
          text: the shape, e.g. "4096x4096x4096:bf16:NT".
          number: of the workload.
          precision: of a lax.Precision or of a preset, the name.

        Raises:
          ValueError: it is no shape, or a size is 0.
        """
        batch, m, n, k, dtype, order = parse_shape(text)
        if 0 in (batch, m, n, k):
            raise ValueError(f"--shape {text}: a size is 0, and there is nothing to time")
        return cls(f"S{number}", "own", batch, m, n, k, order, dtype, precision.upper() if precision else None)

    def to_json(self) -> dict[str, Any]:
        """As in a file of results."""
        return {name: value for name, value in dataclasses.asdict(self).items() if value is not None}

    @property
    def table_dtype(self) -> str:
        """The dtype of a and b as the table of configs names it.

        Raises:
          NotImplementedError: no kernel has such operands.
        """
        name = _SUITE_WORDS.get(self.dtype, self.dtype)
        if name not in OPERAND_NAMES:
            raise NotImplementedError(f"{self.dtype} operands")
        return name

    @property
    def operand_dtype(self) -> np.dtype:
        """Of a and b."""
        return numpy_dtype(self.table_dtype)

    @property
    def result_dtype(self) -> np.dtype:
        """Of the result, and of bias and residual."""
        return numpy_dtype(_RESULTS.get(self.table_dtype, self.table_dtype))

    @property
    def jax_precision(self) -> str | None:
        """As `jnp.matmul` spells it: a lax.Precision in small letters, a preset in capitals."""
        return self.precision.lower() if self.precision in ("DEFAULT", "HIGH", "HIGHEST") else self.precision

    @property
    def finish(self) -> Finish:
        """What is done to the sums.

        Raises:
          NotImplementedError: it is nothing that the benchmark knows.
        """
        parts = self.epilogue.split("+") if self.epilogue else []
        activations = [part for part in parts if part in ACTIVATIONS]
        if len(activations) > 1 or not set(parts) <= {"bias", "residual", *ACTIVATIONS}:
            raise NotImplementedError(f"the epilogue {self.epilogue}")
        if parts and self.batch > 1:
            raise NotImplementedError("an epilogue of a batch")
        return Finish("bias" in parts, activations[0] if activations else None, "residual" in parts)

    @property
    def structs(self) -> list[jax.ShapeDtypeStruct]:
        """A and b as stored, then bias and residual where it has them."""
        lead = (self.batch,) if self.batch > 1 else ()
        shapes = [
            (lead + (shape[::-1] if letter == "T" else shape), self.operand_dtype)
            for shape, letter in zip(((self.m, self.k), (self.k, self.n)), self.layout, strict=True)
        ]
        finish = self.finish
        shapes += [((self.n,), self.result_dtype)] * finish.bias
        shapes += [((self.m, self.n), self.result_dtype)] * finish.residual
        return [jax.ShapeDtypeStruct(shape, dtype) for shape, dtype in shapes]

    @property
    def flops(self) -> int:
        """Operations of the product, two a multiply-add."""
        return 2 * self.batch * self.m * self.n * self.k

    @property
    def footprint(self) -> int:
        """Bytes of one set of operands and of its result."""
        result = self.batch * self.m * self.n * self.result_dtype.itemsize
        return result + sum(math.prod(struct.shape) * struct.dtype.itemsize for struct in self.structs)

    @property
    def seed(self) -> int:
        """Of its random operands: the same in every run."""
        return self.m * self.n + self.k

    def as_stored(self, matmul: Callable[..., Any]) -> Callable[..., Any]:
        """`matmul` as a function of the operands as stored, a and b first. Works on jax arrays and torch tensors."""
        transpose = [(lambda x: x.swapaxes(-1, -2)) if letter == "T" else (lambda x: x) for letter in self.layout]
        return lambda a, b, *more: matmul(transpose[0](a), transpose[1](b), *more)


def parse_shape(text: str) -> tuple[int, int, int, int, str, str]:
    """(batch, m, n, k, dtype, order) of e.g. "4096x4096x4096:bf16:NT"; the order is NN unless said.

    The dtype may be spelled as JAX does, "bfloat16", and the order in small letters.
    Blanks may stand around x and colons.

    Raises:
      ValueError: it is none; the message says what one looks like.
    """
    match = re.fullmatch(r"((?:\d+x){2,3}\d+):(\w+)(?::([NTnt]{2}))?", re.sub(r" *([x:]) *", r"\1", text))
    if match is None or short_name(match[2]) not in OPERAND_NAMES:
        raise ValueError(
            "--shape is [batchx]mxnxk:dtype[:order], e.g. 4096x4096x4096:bf16:NT, with a dtype of "
            f"{', '.join(OPERAND_NAMES)} and an order of NN, NT, TN, TT, not {text!r}"
        )
    sizes = [int(size) for size in match[1].split("x")]
    batch, m, n, k = sizes if len(sizes) == 4 else (1, *sizes)
    return batch, m, n, k, short_name(match[2]), (match[3] or "NN").upper()


def read_suite(path: pathlib.Path, ids: str) -> list[Workload]:
    """The workloads of a suite whose id a regular expression matches whole.

    Raises:
      OSError: the file cannot be read.
      ValueError: it is no suite.
    """
    try:
        lines = files.read_json(path)["rows"]
        return [Workload.from_json(line) for line in lines if re.fullmatch(ids, line["id"])]
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no suite of workloads: {error!r}") from None
