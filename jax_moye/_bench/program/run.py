"""A program in all ways: compiled, compared with XLA's results, and timed in turns.

What is measured: the wall clock of a step of the compiled program, on the same arguments, of which nothing is donated.
The ways alternate in rounds in one process, as the contenders of `bench` do. What the compiler says of each is beside
it: kernels and bytes by its HLO (hlo.py), memory by its own analysis.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax

from jax_moye._bench import contenders, forms
from jax_moye._bench.program.arms import Arm, compile_arm, products_of, warnings_of_optimize
from jax_moye._bench.program.difference import TOLERANCE, difference
from jax_moye._bench.program.load import Program, ProgramError, load
from jax_moye._bench.program.rewrites import attentions_of, rewrites_of
from jax_moye._bench.program.show import ARMS
from jax_moye._format import error_line, significant
from jax_moye._timing.files import write_json
from jax_moye._timing.gpu import Sampler
from jax_moye._timing.progress import progress
from jax_moye._timing.rounds import Contender, alternate, ratio_interval

INTERRUPTED = 130


def run_and_write(arguments: argparse.Namespace, report: dict[str, Any], path: pathlib.Path, is_small: bool) -> int:
    """Runs all programs, writing the file after each. Returns the exit status.

    Args:
      arguments: of the command.
      report: the file's head, to which runs are added.
      path: of the file.
      is_small: whether the programs that are built in have the sizes of a trial.
    """
    names, sizes = arguments.program, dict(arguments.size or ())
    try:
        with contextlib.closing(Sampler()) as sampler:
            for name in names:
                try:
                    program = load(name, sizes, arguments.dtype, is_small)
                    run = bench_program(program, arguments, sampler)
                    report["runs"].append(run)
                    print("\n".join(["", *forms.run_lines(run, explained=name == names[-1])]), flush=True)
                except Exception as error:  # of one program; the others are still worth having
                    why = str(error) if isinstance(error, ProgramError) else error_line(error)
                    report["not_run"].append({"id": name, "why": why})
                    print(f"jax_moye bench: {name}: {why}", file=sys.stderr)
                write_json(report, path)
    except KeyboardInterrupt:
        done = len(report["runs"]) + len(report["not_run"])
        report["not_run"] += [{"id": name, "why": "interrupted"} for name in names[done:]]
        write_json(report, path)
        return INTERRUPTED
    is_wrong = report["not_run"] or any(row["is_wrong"] for run in report["runs"] for row in run["not_run"])
    return 1 if is_wrong else 0


def bench_program(program: Program, arguments: argparse.Namespace, sampler: Sampler) -> dict[str, Any]:
    """Compiles, compares and times a program in all ways.

    Args:
      program: what is timed.
      arguments: of the command.
      sampler: of the GPU.

    Raises:
      Exception: XLA cannot compile or run it.
    """
    run: dict[str, Any] = {"program": program.name, "sizes": program.sizes, "about": program.about}
    not_run: list[dict[str, Any]] = []
    notes: list[str] = []
    compiled: dict[str, Arm] = {}
    options = contenders.LAUNCHES[arguments.launches]
    with warnings_of_optimize(notes):
        for name in progress(ARMS, len(ARMS), lambda name: f"{program.name}, {name}"):
            try:
                compiled[name] = compile_arm(name, program, interpret=arguments.interpret, options=options)
            except Exception as error:
                if name == "xla":
                    raise
                # "products" insists on our kernels, and a program may have products that none computes.
                is_wrong = name != "products" or not isinstance(error, (NotImplementedError, ValueError))
                not_run.append({"id": name, "why": error_line(error), "is_wrong": is_wrong})
    tolerance = TOLERANCE if arguments.tolerance is None else arguments.tolerance
    not_run += [row | {"is_wrong": True} for row in compare(program, compiled, tolerance)]
    timed = [contender(name, arm.compiled, program.args) for name, arm in compiled.items()]
    given = {"rounds": arguments.alternations, "round_ms": arguments.turn_ms, "warmup_ms": arguments.warmup_ms}
    alternate(timed, **given)
    of_xla = timed[0]
    for one in timed:
        run[one.name] = figures(one, of_xla, sampler) | compiled[one.name].figures
        if one.host_bound and not arguments.interpret:
            run[one.name]["host_bound"] = True
    compiled.clear()  # their memory, which a product alone may need
    rewrites: list[dict[str, Any]] = []
    try:
        known = products_of(program, arguments.turn_ms if arguments.alone else None)
        rewrites = rewrites_of(known.before, known.after, known.alone)
        rewrites += attentions_of(known.after.attentions, known.attentions_alone)
        notes += known.after.notes
    except Exception as error:  # the times are still worth having
        notes.append(f"what the rewrites won is not known: {error_line(error)}")
    return run | {"rewrites": rewrites, "not_run": not_run, "notes": notes}


def compare(program: Program, compiled: dict[str, Arm], tolerance: float) -> list[dict[str, Any]]:
    """Runs all ways once, and holds their results against XLA's. Those that are wrong leave `compiled`.

    Args:
      program: what was compiled.
      compiled: by way, XLA's among them; each gets its difference.
      tolerance: how large that may be.

    Returns:
      The ways that are wrong, each with what is wrong.
    """
    wrong = []
    right = compiled["xla"].compiled(*program.args)
    for name, arm in list(compiled.items()):
        if name == "xla":
            continue
        try:
            worst, place = difference(right, arm.compiled(*program.args))
        except Exception as error:  # a kernel that fails
            why = error_line(error)
        else:
            arm.figures["difference"] = significant(worst, 3) if math.isfinite(worst) else None
            why = f"WRONG: {place or 'the result'} differs from XLA's by {worst:.3g} of its scale"
            if worst <= tolerance:
                continue
        wrong.append({"id": name, "why": why})
        del compiled[name]
    return wrong


def contender(name: str, compiled: Any, args: Sequence[Any]) -> Contender:
    """Of a compiled program: a step is a product."""
    last: list[Any] = []

    def run(i: int) -> Sequence[Any]:
        del i
        last[:] = [compiled(*args)]  # the results before are dropped: the device reuses their memory in order
        return last

    def wait() -> None:
        jax.block_until_ready(last)
        last.clear()

    return Contender(name, run, wait, method="compiled program")


def figures(one: Contender, of_xla: Contender, sampler: Sampler) -> dict[str, Any]:
    """What was measured of a contender."""
    found: dict[str, Any] = {
        "ms": significant(one.seconds * 1e3),
        "ms_ci": [significant(end * 1e3) for end in ratio_interval(one.times, [1.0] * len(one.times))],
        "worst_ms": significant(max(one.times) * 1e3),
        "ratio": significant(of_xla.seconds / one.seconds),
        "ratio_ci": [significant(end) for end in ratio_interval(of_xla.times, one.times)],
    }
    for key in Sampler.FIELDS:
        if (mean := sampler.mean(key, one.spans)) is not None:
            found[key] = mean
    if reasons := sampler.throttled(one.spans):
        found["throttled"] = reasons
    return found
