"""`report`: the matrix products of a program, each measured next to XLA where a GPU is at hand."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import jax
import jax.numpy as jnp
import numpy as np

from jax_moye import _compat
from jax_moye._format import html_table, rounded, text_table, us_text
from jax_moye._inspect.explain import Explanation, explain_function
from jax_moye._inspect.gemm import Gemm
from jax_moye._inspect.products import Product
from jax_moye._kernels import ffi
from jax_moye._kernels.devices import find_device, of_jax
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._primitives.contraction import contract
from jax_moye._primitives.fused import fused
from jax_moye._primitives.transposes import transposed
from jax_moye._selection.epilogue import stored_dtype
from jax_moye._selection.problem import parse_spec
from jax_moye._selection.request import label_sizes
from jax_moye._timing.engine import Arm, l2_bytes, ratio_interval, take_turns

LARGEST_GROUP = 32  # products in one program
# How far two results may be apart, over the largest element: both are rounded, and summed in different orders.
_TOLERANCES = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 5e-3, "float64": 1e-9}


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one product took on a GPU.

    Attributes:
      us: microseconds of our kernel, epilogue included; None where XLA computes the product, or it was wrong.
      xla_us: of XLA.
      ratio: XLA's time over ours; None without both.
      ratio_ci: its interval of 95 %.
      difference: the largest difference of the two results, over XLA's largest element; None without both.
      error: why there is no time of ours that should be there; None if there is one.
    """

    us: float | None
    xla_us: float | None
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    difference: float | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """An explanation, and what its products took; prints as a table.

    Attributes:
      explanation: of the program.
      measured: of each of its products, in their order; None where there is no GPU.
      notes: what holds for all of it.
    """

    explanation: Explanation
    measured: tuple[Measured, ...] | None
    notes: tuple[str, ...]

    def rows(self) -> list[list[str]]:
        """A line of cells for each product; the first one names the columns. Times are of all its computations."""
        lines = [["", "product", "times", "computed by", "predicted", "us", "XLA, us", "ratio"]]
        for i, gemm in enumerate(self.explanation):
            lines.append(
                [f"[{i}]", gemm.what, str(gemm.count), gemm.computer, us_text(gemm.predicted_us), *self._times(i)]
            )
        return lines

    def _times(self, i: int) -> list[str]:
        if self.measured is None:
            return ["-", "-", "-"]
        measured = self.measured[i]
        ratio = "-"
        if measured.ratio is not None and measured.ratio_ci is not None:
            low, high = measured.ratio_ci
            ratio = f"{measured.ratio:.3f} [{low:.3f}, {high:.3f}]"
        return [measured.error or us_text(measured.us), us_text(measured.xla_us), ratio]

    def totals(self) -> dict[str, float | None]:
        """Microseconds of all products, each as often as it is computed; None where a product has no time.

        Returns:
          {"program": with our kernels where they are used and XLA elsewhere, "xla": with XLA alone}.
        """
        if self.measured is None:
            return {"program": None, "xla": None}
        sums: dict[str, float | None] = {"program": 0.0, "xla": 0.0}
        for gemm, measured in zip(self.explanation, self.measured, strict=True):
            if gemm.computed_by == "nothing":
                continue
            ours = measured.us if gemm.computed_by == "moye" else measured.xla_us
            for name, us in (("program", ours), ("xla", measured.xla_us)):
                total = sums[name]
                sums[name] = None if total is None or us is None else total + gemm.count * us
        return sums

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON's types."""
        measured = None
        if self.measured is not None:
            measured = [
                {name: rounded(value) for name, value in dataclasses.asdict(one).items()} for one in self.measured
            ]
        return {
            "explanation": self.explanation.to_dict(top=8),
            "measured": measured,
            "totals_us": {name: rounded(us) for name, us in self.totals().items()},
            "notes": list(self.notes),
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def _summary(self) -> Iterator[str]:
        device = self.explanation.device
        yield f"{len(self.explanation)} different matrix products on {device.kind}"

    def _footer(self) -> Iterator[str]:
        totals = self.totals()
        ours, theirs = totals["program"], totals["xla"]
        if ours and theirs:
            faster = f"{theirs / ours:.3f} times as fast"
            yield f"all products: {us_text(ours)} us, {us_text(theirs)} us with XLA alone, {faster}"
        yield from self.notes

    def text(self) -> str:
        """The report as plain text."""
        return "\n".join([*self._summary(), *text_table(self.rows(), indent="  "), *self._footer()])

    def __str__(self) -> str:
        """As text."""
        return self.text()

    def __repr__(self) -> str:
        """As text: what an interactive session shows."""
        return self.text()

    def _repr_html_(self) -> str:
        """For notebooks."""

        def paragraphs(lines: Iterator[str]) -> str:
            return "".join(f"<p>{html.escape(line)}</p>" for line in lines)

        return f"<div>{paragraphs(self._summary())}{html_table(self.rows())}{paragraphs(self._footer())}</div>"

    def show(self, file: TextIO | None = None) -> None:
        """Prints it.

        Args:
          file: None: standard output.
        """
        print(self.text(), file=sys.stdout if file is None else file)


def report(
    fun: Callable[..., Any],
    /,
    *args: Any,
    alternations: int = 15,
    turn_ms: float = 20,
    warmup_ms: float = 200,
) -> Report:
    """Measures each matrix product of a program next to XLA: `explain` with times.

    The program itself does not run, and its arguments are not read: each product that `explain` finds is computed on
    random operands of its own, so that a step of training can be asked about as it is. Operands rotate through more
    than twice the L2 cache, the two take turns, and results are compared before they are timed. It takes about a second
    for each product. Without a GPU there are predictions alone, for the GPU that `explain` assumes.

    Args:
      fun: a function of arrays, which may be jitted or a derivative, e.g. a step of training.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`.
      alternations: turns of ours and of XLA.
      turn_ms: length of a turn.
      warmup_ms: how long a product runs before its first turn.

    Returns:
      A `Report`, which prints as a table and has `to_json()`.

    Raises:
      TypeError: fun is not callable.
      ValueError: alternations is below 1, or a length is negative.

    Example:
      >>> import jax
      >>> import jax_moye
      >>> x = jax.ShapeDtypeStruct((512, 512), "bfloat16")
      >>> found = jax_moye.report(lambda x, w: jax_moye.matmul(x, w), x, x)
      >>> len(found.explanation)
      1
    """
    if not callable(fun):
        raise TypeError(f"report: fun is a function, not {fun!r}")
    if alternations < 1:
        raise ValueError(f"report: alternations is at least 1, not {alternations}")
    for name, value in (("turn_ms", turn_ms), ("warmup_ms", warmup_ms)):
        if value < 0:
            raise ValueError(f"report: {name} is not negative, and {value} is")
    if _compat.cuda_arch() is None:
        explanation = explain_function(fun, args, find_device())
        device = explanation.device
        note = f"JAX sees no GPU here: nothing is measured, and predictions are for one {device.kind}."
        return Report(explanation, None, (note, *explanation.notes))
    gpu = jax.devices("cuda")[0]
    explanation = explain_function(fun, args, of_jax(gpu))
    if ffi.why_unavailable("cuda") is not None:  # the explanation has the reason among its notes
        return Report(explanation, None, explanation.notes)
    budget: dict[str, Any] = {"alternations": alternations, "turn_ms": turn_ms, "warmup_ms": warmup_ms}
    with jax.default_device(gpu):
        measured = tuple(measure_gemm(gemm, gpu, **budget) for gemm in explanation)
    return Report(explanation, measured, explanation.notes)


def measure_gemm(
    gemm: Gemm,
    device: jax.Device,
    *,
    alternations: int,
    turn_ms: float,
    warmup_ms: float,
    interpret: InterpretParams | None = None,
) -> Measured:
    """Times one product, with its epilogue if it has one, next to XLA.

    Args:
      gemm: of an explanation.
      device: where to run; the current default device.
      alternations: as in `report`, likewise the following.
      turn_ms: length of a turn.
      warmup_ms: how long it runs before.
      interpret: of our kernel: for trying this without a GPU.
    """
    if gemm.computed_by in ("nothing", "error"):
        return Measured(None, None)
    product = gemm.product
    dtypes = [product.request.out_dtype, *(x.dtype for x in product.operands)]
    is_wide = any(jnp.dtype(dtype).itemsize == 8 for dtype in dtypes)
    with jax.enable_x64(True) if is_wide else contextlib.nullcontext():
        theirs, ours = program_of(product, "xla", None), None
        if gemm.computed_by == "moye":
            ours = program_of(product, product.request.implementation, interpret)
        sets = _operands(product, device)
        arms = [_arm("xla", theirs, sets)]
        difference = None
        if ours is not None:
            arms.append(_arm("jax_moye", ours, sets))
            try:
                difference = _difference(arms[1].run(0)[0], arms[0].run(0)[0])
            except Exception as error:  # XLA's time is still worth having
                arms.pop()
                return dataclasses.replace(
                    _times(arms, len(sets), None, alternations, turn_ms, warmup_ms),
                    error=f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}",
                )
            tolerance = _TOLERANCES.get(jnp.dtype(product.request.out_dtype).name, 0.1)
            if not jnp.issubdtype(product.request.out_dtype, jnp.floating):
                tolerance = 0.0
            if not difference <= tolerance:
                return Measured(None, None, None, None, difference, "WRONG: the results differ")
        return _times(arms, len(sets), difference, alternations, turn_ms, warmup_ms)


def _times(
    arms: list[Arm], group: int, difference: float | None, alternations: int, turn_ms: float, warmup_ms: float
) -> Measured:
    take_turns(arms, 1, group, alternations=alternations, turn_ms=turn_ms, warmup_ms=warmup_ms)
    us = {arm.name: statistics.median(arm.times) * 1e6 for arm in arms}
    if len(arms) == 1:
        return Measured(None, us["xla"])
    theirs, ours = arms
    low, high = ratio_interval(theirs.times, ours.times)
    return Measured(us["jax_moye"], us["xla"], us["xla"] / us["jax_moye"], (low, high), difference)


def _arm(name: str, fun: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Arm:
    """All sets in one program, as one CUDA graph where XLA makes one."""
    program = jax.jit(lambda sets: [fun(*one) for one in sets])
    last: list[Any] = []

    def run(i: int) -> list[Any]:
        del i
        last[:] = program(sets)
        return list(last)

    return Arm(name, run, lambda: jax.block_until_ready(last))


def program_of(product: Product, implementation: Any, interpret: InterpretParams | None) -> Callable[..., Any]:
    """The product as a function of what is in memory, behind its transposes."""
    request, (left, right) = product.request, product.operands
    contracts = implementation != "xla"  # with them XLA would refuse
    params: dict[str, Any] = {
        "out_dtype": request.out_dtype,
        "precision": request.precision,
        "out_sharding": None,
        "config": request.config if contracts else None,
        "implementation": implementation,
        "interpret": interpret,
        "deterministic": request.deterministic and contracts,
        "batch_invariant": request.batch_invariant and contracts,
    }

    def fun(lhs: Any, rhs: Any, *rest: Any) -> Any:
        lhs, rhs = transposed((lhs, rhs), (left.permutation, right.permutation))
        if product.request.epilogue is not None:
            return fused(request.spec, lhs, rhs, rest, epilogue=product.request.epilogue, **params)
        return contract(request.spec, lhs, rhs, *rest, beta=request.beta, **params)

    return fun


def shapes_of(product: Product) -> list[jax.ShapeDtypeStruct]:
    """Of all operands in memory, those of the epilogue last."""
    request, sizes = product.request, label_sizes(product.request.spec, product.operands)
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in product.operands]
    named = product.request.epilogue.operands if product.request.epilogue is not None else ()
    if request.beta != 0:
        named = (("c", parse_spec(request.spec).out),)
    dtype = stored_dtype(request.out_dtype) if product.request.epilogue is not None else request.out_dtype
    return structs + [jax.ShapeDtypeStruct(tuple(sizes[label] for label in names), dtype) for _, names in named]


def _operands(product: Product, device: jax.Device) -> list[list[Any]]:
    """Sets of random operands that together hold more than twice the L2 cache, three at least."""
    structs = shapes_of(product)
    footprint = max(1, sum(math.prod(s.shape) * jnp.dtype(s.dtype).itemsize for s in structs))
    count = min(LARGEST_GROUP, max(3, math.ceil(2.5 * l2_bytes() / footprint)))
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform == "gpu" else None
    if limit:
        count = max(1, min(count, int(0.2 * limit / footprint)))
    if device.platform != "gpu":
        count = 1
    keys = jax.random.split(jax.random.key(footprint), count)
    return [
        [random_operand(key, s) for key, s in zip(jax.random.split(k, len(structs)), structs, strict=True)]
        for k in keys
    ]


def random_operand(key: Any, struct: jax.ShapeDtypeStruct) -> Any:
    """Normal; int8 of any value, since power depends on it; other integers small."""
    if jnp.issubdtype(struct.dtype, jnp.floating):
        dtype = struct.dtype if jnp.dtype(struct.dtype).itemsize > 1 else jnp.float32
        return jax.random.normal(key, struct.shape, dtype).astype(struct.dtype)
    if jnp.issubdtype(struct.dtype, jnp.complexfloating):
        return jax.random.normal(key, struct.shape, struct.dtype)
    low, high = (-128, 128) if struct.dtype == jnp.int8 else (0, 3)
    return jax.random.randint(key, struct.shape, low, high).astype(struct.dtype)


def _difference(ours: Any, theirs: Any) -> float:
    """The largest difference over the largest element; NaN where there is a NaN."""
    if not jnp.issubdtype(ours.dtype, jnp.inexact):
        return float(np.max(np.abs(np.asarray(ours, np.int64) - np.asarray(theirs, np.int64)), initial=0))
    dtype = jnp.promote_types(ours.dtype, jnp.float32) if ours.dtype.itemsize > 1 else jnp.float32
    ours, theirs = ours.astype(dtype), theirs.astype(dtype)
    scale = float(jnp.max(jnp.abs(theirs), initial=0)) or 1.0
    return float(jnp.max(jnp.abs(ours - theirs), initial=0)) / scale
