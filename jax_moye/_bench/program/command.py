"""`python -m jax_moye bench --program`: which programs are timed, as the command line says it."""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
from typing import Any

import jax

from jax_moye._bench import contenders, emulator, forms, plots, results
from jax_moye._bench.models.table import MODELS
from jax_moye._bench.program.difference import TOLERANCE
from jax_moye._bench.program.run import run_and_write
from jax_moye._checkout import clone
from jax_moye._command_line import number
from jax_moye._format import wrapped
from jax_moye._optional import MissingError

# Options of `bench` that say something about workloads, or how those are timed.
_OF_WORKLOADS = (
    *("suite", "models", "rows", "sample", "shape", "precision", "config", "kernel", "config_row", "sweep"),
    *("no_torch", "rotate_mb"),
)
HOW = (
    "ms: milliseconds of a step, the wall clock of a round over its steps, the median of rounds that alternate, always "
    "on the same arguments. ratio: XLA's time over it, with its interval of 95 %. kernels and written_bytes: by the "
    "optimized HLO, a loop's as often as it turns. memory_bytes: arguments, results and temporaries, as the compiler "
    "assigned them. difference: the largest to XLA's results, over the largest element of the same result."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `bench` that are about whole programs."""
    group = parser.add_argument_group(
        "a whole program, timed by XLA, with intercept(), with optimize(), and with each product ours"
    )
    group.add_argument(
        "--program",
        action="append",
        metavar="NAME",
        help=f"one that is built in ({', '.join(MODELS)}) or module:function, a function of yours that returns "
        "(step, arguments), e.g. `def train(batch=8): return step, (parameters, data)`; may be repeated",
    )
    group.add_argument(
        "--size",
        action="append",
        type=_size,
        metavar="NAME=N",
        help="a size of the program, e.g. width=1024; of a function of yours a keyword; may be repeated",
    )
    group.add_argument(
        "--dtype", choices=["bfloat16", "float16", "float32"], help="of a program that is built in (default: bfloat16)"
    )
    group.add_argument(
        "--alone",
        action="store_true",
        help="also time each product of the optimized program alone, as jax_moye.report does: seconds each",
    )
    group.add_argument(
        "--tolerance",
        type=number(least=0),
        help=f"how far a result may be from XLA's, of its largest element (default: {TOLERANCE})",
    )


def _size(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    try:
        return name.strip(), int(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no size such as width=1024") from None


def check_without(arguments: argparse.Namespace) -> None:
    """Raises ValueError where an option of a program is given, and no program."""
    for name in ("size", "dtype", "alone", "tolerance"):
        if getattr(arguments, name):
            raise ValueError(f"--{name} is of --program, and there is none")


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError where an option is about workloads, and so not about a program."""
    for name in _OF_WORKLOADS:
        if getattr(arguments, name):
            raise ValueError(f"--{name.replace('_', '-')} is of workloads, and --program times none")
    if arguments.mode != "sustained":
        raise ValueError(f"--mode {arguments.mode} is of workloads: a program runs sustained")


def main(arguments: argparse.Namespace) -> int:
    """Runs the benchmark of the programs that --program names.

    Returns:
      0; 1 if a result was wrong, a program failed, or an argument is wrong; 2 if there is no GPU; 130 after Ctrl-C.
    """
    is_small = arguments.emulator
    try:
        check(arguments)
        if arguments.svg:
            plots.check()
    except (ValueError, MissingError) as error:
        return _fail(error)
    if is_small:
        emulator.quick(arguments)
    device = jax.devices("cpu" if is_small else None)[0]
    if device.platform != "gpu" and not arguments.interpret:
        _fail("JAX sees no GPU. `--emulator` tries a program in small sizes in the CPU emulator, `--interpret` in any.")
        return 2
    report = describe(device, arguments)
    try:
        path = arguments.out or results_folder() / results.file_name(report, "-programs")
        results.make_ready(path)
    except (OSError, ValueError) as error:
        return _fail(error)

    def run() -> int:
        print("\n".join(wrapped(forms.about(report))), flush=True)
        return run_and_write(arguments, report, path, is_small)

    with jax.default_device(device):
        return results.complete(run, report, path, arguments)


def _fail(error: object) -> int:
    print(f"jax_moye bench: {error}", file=sys.stderr)
    return 1


def results_folder() -> pathlib.Path:
    """Where results go that nobody has named a file for."""
    root = clone()
    return pathlib.Path() if root is None else root / "benchmarks/results"


def describe(device: Any, arguments: argparse.Namespace) -> dict[str, Any]:
    """The head of the report, without runs."""
    return {
        "about": "whole programs: by XLA alone, inside intercept(), under optimize(), and with each product ours",
        "how": HOW,
        **results.machine(device),
        "protocol": {
            "alternations": arguments.alternations,
            "turn_ms": arguments.turn_ms,
            "warmup_ms": arguments.warmup_ms,
            "autotune": os.environ.get("JAX_MOYE_AUTOTUNE") or "on",
            "launches": arguments.launches,
            "launch_options": contenders.LAUNCHES[arguments.launches],
        },
        "runs": [],
        "not_run": [],
    }
