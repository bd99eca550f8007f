"""The ways to run a program: how each is compiled, and what is known of its products.

xla        the program as it is
intercept  the same inside jax_moye.intercept(): products are ours where a kernel is known to be faster
optimize   jax_moye.optimize of it: products also take in what stands behind them
products   intercept() with implementation="moye": each product is ours, alone, and nothing is taken in
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax

import jax_moye
from jax_moye._bench.program import hlo
from jax_moye._bench.program.load import Program
from jax_moye._format import significant


class Arm(NamedTuple):
    """A way to run a program.

    Attributes:
      compiled: the program.
      figures: what is known of it without a run.
    """

    compiled: Any
    figures: dict[str, Any]


def compile_arm(name: str, program: Program, *, interpret: bool = False, options: Mapping[str, Any] = {}) -> Arm:
    """Lowers and compiles a program in one way.

    Args:
      name: of the way: one of show.ARMS.
      program: what is compiled.
      interpret: whether our kernels run in the emulator.
      options: of the compiler.

    Raises:
      Exception: of tracing, lowering or compiling.
    """
    fun = program.fun
    with contextlib.ExitStack() as stack:
        if interpret:
            stack.enter_context(jax_moye.options(interpret=True))
        if name == "products":
            stack.enter_context(jax_moye.options(implementation="moye"))
        if name in ("intercept", "products"):
            stack.enter_context(jax_moye.intercept())
        way = jax_moye.optimize(fun) if name == "optimize" else lambda *args: fun(*args)
        begin = time.monotonic()
        lowered = jax.jit(way).lower(*program.args)
        middle = time.monotonic()
        compiled = lowered.compile(compiler_options=dict(options) or None)
        end = time.monotonic()
    found: dict[str, Any] = {"lower_s": significant(middle - begin, 3), "compile_s": significant(end - middle, 3)}
    work = hlo.work_of(compiled.as_text() or "")
    found |= {"kernels": work.kernels, "ours": work.ours, "written_bytes": work.written_bytes}
    if not work.is_exact:
        found["turns_unknown"] = True
    if (memory := compiled.memory_analysis()) is not None:
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        found |= {
            "memory_bytes": held + memory.temp_size_in_bytes,
            "temporary_bytes": memory.temp_size_in_bytes,
        }
    return Arm(compiled, found)


@contextlib.contextmanager
def warnings_of_optimize(notes: list[str]) -> Iterator[None]:
    """Adds to the notes what `optimize` warns of: that a program is left as it is, say."""

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "jax_moye.optimize" in record.getMessage():
                notes.append(record.getMessage())

    handler, logger = Kept(logging.WARNING), logging.getLogger("jax_moye")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


class Products(NamedTuple):
    """The products of a program.

    Attributes:
      before: as it is: an `Explanation`.
      after: of the optimized one.
      alone: what each of these took alone: `Measured`; None where that was not measured.
      attentions_alone: likewise each of its attentions.
    """

    before: Any
    after: Any
    alone: Sequence[Any] | None
    attentions_alone: Sequence[Any] | None = None


def products_of(program: Program, turn_ms: float | None) -> Products:
    """What is known of a program's products.

    Args:
      program: that is explained.
      turn_ms: of a round in which each product is timed alone; None: none is.
    """
    before, optimized = jax_moye.explain(program.fun, *program.args), jax_moye.optimize(program.fun)
    if turn_ms is None:
        return Products(before, jax_moye.explain(optimized, *program.args), None)
    found = jax_moye.report(optimized, *program.args, turn_ms=turn_ms)
    return Products(before, found.explanation, found.measured, found.attentions)
