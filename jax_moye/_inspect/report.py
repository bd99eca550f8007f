"""`report`: the matrix products of a program, each measured next to XLA where a GPU is at hand."""

from __future__ import annotations

import dataclasses
import html
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TextIO

import jax

from jax_moye import _compat
from jax_moye._format import error_line, filled, html_table, rounded, text_table, us_text
from jax_moye._inspect.attentions import AttentionRow, contenders, counted, is_same
from jax_moye._inspect.explain import Explanation, explain_function
from jax_moye._inspect.gemm import Gemm
from jax_moye._inspect.programs import program_of, random_operands, reference_of
from jax_moye._kernels import ffi
from jax_moye._kernels.devices import find_device, of_jax
from jax_moye._kernels.interpret import InterpretParams
from jax_moye._timing.correctness import of_config
from jax_moye._timing.programs import program_contender
from jax_moye._timing.rounds import Contender, alternate, ratio_interval


@dataclasses.dataclass(frozen=True)
class Measured:
    """What one product took on a GPU.

    Attributes:
      us: microseconds of our kernel, epilogue included; None where XLA computes the product, or it was wrong.
      xla_us: of XLA.
      ratio: XLA's time over ours; None without both.
      ratio_ci: its interval of 95 %.
      error_over_bound: the largest error of our result, over what rounding allows; None without a time of ours.
      error: why there is no time of ours that should be there; None if there is one.
    """

    us: float | None
    xla_us: float | None
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None
    error_over_bound: float | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True)
class Report:
    """An explanation, and what its products took; prints as a table.

    Attributes:
      explanation: of the program.
      measured: of each of its products, in their order; None where there is no GPU.
      notes: what holds for all of it.
      attentions: as `measured`, of each of its attentions, with the gradients that belong to it.
    """

    explanation: Explanation
    measured: tuple[Measured, ...] | None
    notes: tuple[str, ...]
    attentions: tuple[Measured, ...] | None = None

    def rows(self) -> list[list[str]]:
        """A line of cells for each product; the first one names the columns. Times are of all its computations."""
        lines = [["", "product", "takes in", "times", "computed by", "predicted", "us", "XLA, us", "ratio"]]
        for i, gemm in enumerate(self.explanation):
            of_product = [gemm.what, gemm.takes_in, str(gemm.count), gemm.computer, us_text(gemm.predicted_us)]
            lines.append([f"[{i}]", *of_product, *_times(self.measured, i)])
        for i, one in enumerate(self.explanation.attentions):
            of_attention = [one.what, "", str(one.count), one.computer, "-"]
            lines.append(["", *of_attention, *_times(self.attentions, i)])
        return filled(lines)

    def totals(self) -> dict[str, float | None]:
        """Microseconds of all products and attentions, each as often as it is computed; None where one has no time.

        Of an attention that no kernel computes the products count, which are XLA's and ours.

        Returns:
          {"program": with our kernels where they are used and XLA elsewhere, "xla": with XLA alone}.
        """
        return self._totals(lambda one: True)

    def _totals(self, counts: Callable[[Gemm | AttentionRow], bool]) -> dict[str, float | None]:
        """The same of those that count."""
        if self.measured is None:
            return {"program": None, "xla": None}
        sums: dict[str, float | None] = {"program": 0.0, "xla": 0.0}
        rows: list[tuple[Gemm | AttentionRow, Measured]] = list(zip(self.explanation, self.measured, strict=True))
        of_attentions = zip(self.explanation.attentions, self.attentions or (), strict=True)
        rows += [(row, measured) for row, measured in of_attentions if _is_ours(row)]
        for of, measured in rows:
            if of.computed_by == "nothing" or not counts(of):
                continue
            of_program = measured.us if _is_ours(of) else measured.xla_us
            for name, us in (("program", of_program), ("xla", measured.xla_us)):
                total = sums[name]
                sums[name] = None if total is None or us is None else total + of.count * us
        return sums

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON's types."""

        def times(several: Sequence[Measured] | None) -> Any:
            if several is None:
                return None
            return [{name: rounded(value) for name, value in dataclasses.asdict(one).items()} for one in several]

        return {
            "explanation": self.explanation.to_dict(top=8),
            "measured": times(self.measured),
            "attentions": times(self.attentions),
            "totals_us": {name: rounded(us) for name, us in self.totals().items()},
            "notes": list(self.notes),
        }

    def to_json(self, indent: int | None = 1) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict(), indent=indent)

    def _summary(self) -> Iterator[str]:
        yield f"{counted(self.explanation.gemms, self.explanation.attentions)} on {self.explanation.device.kind}"

    def _footer(self) -> Iterator[str]:
        taking = sum(bool(gemm.takes_in) for gemm in self.explanation)
        if taking:
            words = f"{taking} of {len(self.explanation)} products take in what stands behind them (c: a sum)"
            yield words + self._faster(self._totals(lambda one: isinstance(one, Gemm) and bool(one.takes_in)))
        if times := self._faster(self._totals(lambda one: not isinstance(one, Gemm))):
            yield f"attentions that kernels of ours compute{times}"
        if times := self._faster(self.totals()):
            yield f"all products{' and attentions' * bool(self.explanation.attentions)}{times}"
        yield from self.notes

    def _faster(self, totals: Mapping[str, float | None]) -> str:
        """Our time and XLA's; "" where one is not known."""
        ours, theirs = totals["program"], totals["xla"]
        if not ours or not theirs:
            return ""
        return f": {us_text(ours)} us, {us_text(theirs)} us with XLA alone, {theirs / ours:.3f} times as fast"

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


def _is_ours(one: Gemm | AttentionRow) -> bool:
    """Whether a kernel of ours computes it."""
    return one.computed_by == "moye"


def _times(several: Sequence[Measured] | None, i: int) -> list[str]:
    """The last cells of a line."""
    if several is None:
        return ["-", "-", "-"]
    measured = several[i]
    ratio = "-"
    if measured.ratio is not None and measured.ratio_ci is not None:
        low, high = measured.ratio_ci
        ratio = f"{measured.ratio:.3f} [{low:.3f}, {high:.3f}]"
    return [measured.error or us_text(measured.us), us_text(measured.xla_us), ratio]


def report(
    fun: Callable[..., Any],
    /,
    *args: Any,
    alternations: int = 15,
    turn_ms: float = 20,
    warmup_ms: float = 200,
) -> Report:
    """Measures each matrix product and attention of a program next to XLA: `explain` with times.

    The program itself does not run, and its arguments are not read: each product that `explain` finds is computed on
    random operands of its own, so that a step of training can be asked about as it is. Operands rotate through more
    than twice the L2 cache, the two alternate, and ours is held against float64 before it is timed. It takes about a
    second for each product. Without a GPU there are predictions alone, for the GPU that `explain` assumes.

    Args:
      fun: a function of arrays, which may be jitted or a derivative, e.g. a step of training.
      *args: its arguments, arrays or `jax.ShapeDtypeStruct`.
      alternations: rounds of ours and of XLA.
      turn_ms: length of a round.
      warmup_ms: how long a product runs before its first round.

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
    protocol: dict[str, Any] = {"rounds": alternations, "round_ms": turn_ms, "warmup_ms": warmup_ms}
    with jax.default_device(gpu):
        measured = tuple(measure_gemm(gemm, gpu, **protocol) for gemm in explanation)
        attentions = tuple(measure_attention(one, gpu, **protocol) for one in explanation.attentions)
    return Report(explanation, measured, explanation.notes, attentions)


def _race(xla: Contender, ours: Contender | None, protocol: dict[str, Any], excess: float | None = None) -> Measured:
    """Times one next to XLA, or XLA alone. excess: the error of ours over its bound."""
    alternate([xla] if ours is None else [xla, ours], **protocol)
    if ours is None:
        return Measured(None, xla.seconds * 1e6)
    interval = ratio_interval(xla.times, ours.times)
    return Measured(ours.seconds * 1e6, xla.seconds * 1e6, xla.seconds / ours.seconds, interval, excess)


def measure_attention(
    row: AttentionRow, device: jax.Device, *, interpret: InterpretParams | None = None, **protocol: Any
) -> Measured:
    """Times one attention, with the gradients that belong to it, next to what XLA makes of the program's equations.

    Args:
      row: of an explanation.
      device: where to run; the current default device.
      interpret: of our kernels: for trying this without a GPU.
      **protocol: `rounds`, `round_ms` and `warmup_ms` of `alternate`.
    """
    found = row.contest(interpret)
    if found is None:
        return Measured(None, None, error="no kernel of ours can compute it")
    with jax.enable_x64(True):  # of what a program has
        xla, *rest = contenders(row, found, device)
        ours = rest[0] if rest else None
        if ours is not None and not is_same(ours, xla):
            return Measured(None, None, error="WRONG: the result differs from XLA's")
        return _race(xla, ours, protocol)


def measure_gemm(
    gemm: Gemm, device: jax.Device, *, interpret: InterpretParams | None = None, **protocol: Any
) -> Measured:
    """Times one product, with its epilogue if it has one, next to XLA.

    Args:
      gemm: of an explanation.
      device: where to run; the current default device.
      interpret: of our kernel: for trying this without a GPU.
      **protocol: `rounds`, `round_ms` and `warmup_ms` of `alternate`.
    """
    if gemm.computed_by in ("nothing", "error"):
        return Measured(None, None)
    product = gemm.product
    if product.groups is not None:
        return Measured(None, None, error="a product of groups takes as long as their sizes say, which are not known")
    if product.scales is not None:
        return Measured(None, None, error="products with weights of 8 or 4 bits are not timed here")
    if product.block_scales is not None:
        return Measured(None, None, error="products of blocks that have scales are timed while they are lowered")
    if product.request.epilogue is not None and product.request.epilogue.halves:
        return Measured(None, None, error="halves of one product are timed while they are lowered")
    with jax.enable_x64(True):  # references are float64
        sets = random_operands(product, device, largest_loop=0)  # loops take longer to compile than to time
        xla = program_contender("xla", program_of(product, "xla", None), sets)
        if gemm.computed_by != "moye":
            return _race(xla, None, protocol)
        ours = program_contender("jax_moye", program_of(product, product.request.implementation, interpret), sets)
        try:
            excess = _excess(gemm, ours, sets.first)
        except Exception as error:  # XLA's time is still worth having
            return dataclasses.replace(_race(xla, None, protocol), error=error_line(error))
        if not excess <= 1:
            return Measured(None, None, error_over_bound=excess, error="WRONG: the error is over its bound")
        return _race(xla, ours, protocol, excess)


def _excess(gemm: Gemm, ours: Contender, operands: Sequence[Any]) -> float:
    """The largest error of our result over its bound."""
    assert gemm.config is not None  # we compute it
    assert gemm.problem is not None
    result = jax.tree.leaves(ours.run(0))[0]  # behind it stands what is kept
    return reference_of(gemm.product, operands).excess(result, of_config(gemm.config, gemm.problem.k, gemm.split))
