"""`python -m jax_moye bench`: which workloads are timed and how, as the command line says it."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import pathlib
import sys
from collections.abc import Sequence

from jax_moye._bench import bench, contenders, emulator, plots, results
from jax_moye._bench.program import command as program_command
from jax_moye._checkout import clone
from jax_moye._command_line import describe, number, pattern, whole
from jax_moye._format import wrapped
from jax_moye._kernels import own
from jax_moye._kernels.compiler import KernelError
from jax_moye._kernels.dtypes import JAX_NAMES, SHORT_NAMES
from jax_moye._optional import MissingError
from jax_moye._timing.rounds import LEAST_ROUNDS
from jax_moye._timing.workloads import Workload, read_suite


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye bench`."""
    describe(
        parser,
        "Times our kernels next to XLA, torch and others, which alternate in one process, and writes a file that\n"
        "`show` reads. Each result is checked before it is timed. It needs a GPU; --emulator tries all of it\n"
        "without one. benchmarks/README.md says what is measured.",
        [
            "--rows 'A2|B.*'",
            "--shape 4096x4096x4096:bf16:NT --shape 8x1024x1024x64:f16",
            "--models --sample 60 --svg charts",
            "--shape 1024x1024x1024:bf16 --sweep '.*_128x128x.*' --json",
            "--emulator --shape 64x48x40:bf16 --baselines xla --out trial.json --json",
            "--program transformer_training --size layers=4 --svg charts",
            "--program mine:train --size batch=16",
        ],
    )
    what = parser.add_argument_group("what is timed")
    what.add_argument("--suite", type=pathlib.Path, help="the workloads (default: benchmarks/suite.json)")
    what.add_argument(
        "--models",
        nargs="?",
        choices=["fit", "validation"],
        const="validation",
        help="products of public models instead: benchmarks/models/validation.json, or fit.json",
    )
    what.add_argument(
        "--rows", type=pattern, help="regular expression that a workload's id matches whole, e.g. 'A.*|B2'"
    )
    what.add_argument(
        "--sample",
        type=whole(1),
        metavar="N",
        help="so many of these workloads, the same ones in every run; a larger sample holds a smaller one",
    )
    what.add_argument(
        "--shape", action="append", help="a workload of your own instead, e.g. 4096x4096x4096:bf16:NT; may be repeated"
    )
    what.add_argument("--precision", help="of the workloads of --shape, e.g. highest or ANY_F8_ANY_F8_F32_FAST_ACCUM")
    what.add_argument(
        "--config",
        action="append",
        help="use this config for every workload, instead of the one jax_moye selects; several (repeated, or with "
        "commas): time them beside the selected one",
    )
    own.add_arguments(what)
    what.add_argument(
        "--sweep", type=pattern, help="also time every config whose name this regular expression matches whole"
    )
    what.add_argument(
        "--baselines",
        default=",".join(contenders.BASELINES),
        help="which others, of those that can be had here (default: %(default)s)",
    )
    what.add_argument("--no-torch", action="store_true", help="leave torch out")
    program_command.add_arguments(parser)
    how = parser.add_argument_group("how")
    how.add_argument("--mode", choices=["sustained", "burst", "both"], default="sustained", help="(default: sustained)")
    how.add_argument(
        "--alternations", type=whole(LEAST_ROUNDS), default=15, help="rounds of each contender (default: 15)"
    )
    how.add_argument("--turn-ms", type=number(above=0), default=50, help="length of one round (default: 50)")
    how.add_argument(
        "--warmup-ms",
        type=number(least=0),
        default=results.SUSTAINED_MS,
        help="how long each workload runs before its first round (default: 3000; shorter is recorded as mode `short`)",
    )
    how.add_argument(
        "--idle-ms", type=number(least=0), default=150, help="how long a burst's round rests before it (150)"
    )
    how.add_argument(
        "--launches",
        choices=list(contenders.LAUNCHES),
        default="default",
        help="JAX's contenders: XLA's choice, CUDA graphs for everything that can be in one, or none",
    )
    how.add_argument(
        "--rotate-mb", type=number(above=0), help="least size of all sets together (default: 2.5 x L2 cache)"
    )
    how.add_argument("--budget-s", type=number(least=0), default=math.inf, help="start no workload later than this")
    parser.add_argument(
        "--out", type=pathlib.Path, help="the JSON file to write (default: in results beside the suite)"
    )
    parser.add_argument("--svg", type=pathlib.Path, metavar="DIR", help="also draw what was measured there")
    parser.add_argument("--interpret", action="store_true", help="without a GPU: try the benchmark, not the kernels")
    parser.add_argument(
        "--emulator",
        action="store_true",
        help="try it in the CPU emulator: two small shapes, if no --shape says which, and the CPU time of a launch",
    )
    parser.add_argument("--json", action="store_true", help="print the file, and all else on stderr")


def main(arguments: argparse.Namespace) -> int:
    """Runs the benchmark.

    Returns:
      0; 1 if a result was wrong or nothing could be timed, or an argument is; 2 if there is no GPU; 130 after Ctrl-C,
      with what was done until then in the file.
    """
    if arguments.program:
        return program_command.main(arguments)
    try:
        program_command.check_without(arguments)
        check_choice(arguments)
        if arguments.svg:
            plots.check()
        kernels = own.from_arguments(arguments)
    except (OSError, ValueError, KernelError, MissingError) as error:
        print(f"jax_moye bench: {error}", file=sys.stderr)
        return 1
    if kernels:
        arguments.config = [*(config.name for config in kernels), *(arguments.config or [])]
        if arguments.emulator and not arguments.shape:
            dtype = SHORT_NAMES[JAX_NAMES[kernels[0].dtype]]  # "f32" of TF32
            arguments.shape = [f"64x48x40:{dtype}", f"2x32x48x40:{dtype}:NT"]
    if arguments.emulator:
        emulator.quick(arguments)
    # Torch shares the card with JAX in this process. Read when the backend starts, which is later than now.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    device = jax.devices("cpu" if arguments.emulator else None)[0]
    if device.platform != "gpu" and not arguments.interpret:
        print(
            "jax_moye bench: JAX sees no GPU. `--emulator` tries the benchmark on two small shapes in the CPU "
            "emulator, `--interpret` on any.",
            file=sys.stderr,
        )
        return 2
    try:
        workloads, folder = chosen_workloads(arguments)
        bench.check(arguments)
        report = results.describe(device, arguments)
        path = arguments.out or folder / results.file_name(report)
        results.make_ready(path)
    except (OSError, ValueError) as error:
        print(f"jax_moye bench: {error}", file=sys.stderr)
        return 1

    def run() -> int:
        status = bench.run_and_write(workloads, device, arguments, report, path)
        if arguments.emulator:
            status = emulator.time_launch() or status
        print(results.end(report))
        for skipped in report["not_run"]:
            print("\n".join(wrapped(f"{skipped['id']:4} not run: {skipped['why']}")))
        return status

    # The references are float64; every operand's dtype is explicit.
    with jax.enable_x64(True), jax.default_device(device):
        return results.complete(run, report, path, arguments)


def check_choice(arguments: argparse.Namespace) -> None:
    """Raises ValueError where two options say which workloads are timed, or one would mean nothing."""
    of_file = ("suite", "models", "rows", "sample")
    given = [f"--{name}" for name in of_file if getattr(arguments, name) is not None]
    other = "--shape" if arguments.shape else "--emulator" if arguments.emulator else None
    if given and other:
        raise ValueError(f"{given[0]} and {other} both say which workloads; give one")
    if arguments.precision and not other:
        raise ValueError("--precision is of the workloads of --shape, and there is none")


def chosen_workloads(arguments: argparse.Namespace) -> tuple[list[Workload], pathlib.Path]:
    """The workloads to time, and the folder for results.

    Raises:
      ValueError: there are none.
    """
    if arguments.shape:
        shapes = enumerate(arguments.shape, 1)
        return [Workload.from_shape(text, i, arguments.precision) for i, text in shapes], pathlib.Path()
    suite, folder = suite_of(arguments)
    workloads = read_suite(suite, ".*" if arguments.rows is None else arguments.rows)
    if not workloads:
        raise ValueError(f"no row of {suite} matches {arguments.rows!r}")
    return sample(workloads, arguments.sample), folder


def suite_of(arguments: argparse.Namespace) -> tuple[pathlib.Path, pathlib.Path]:
    """The file of the workloads, and the folder for results.

    Raises:
      ValueError: it is not there, or two arguments name one each.
    """
    if arguments.models and arguments.suite:
        raise ValueError("--models and --suite both say which workloads; give one")
    if arguments.suite:
        if not arguments.suite.is_file():
            raise ValueError(f"--suite {arguments.suite} is no file")
        return arguments.suite, arguments.suite.parent / "results"
    name = f"models/{arguments.models}.json" if arguments.models else "suite.json"
    root = clone()
    if root is None or not (root / "benchmarks" / name).is_file():
        raise ValueError(f"no benchmarks/{name} here: run it in a clone, or name --suite or --shape")
    return root / "benchmarks" / name, root / "benchmarks/results"


def sample(workloads: Sequence[Workload], size: int | None) -> list[Workload]:
    """So many workloads, in their order: those whose ids have the lowest digests.

    Args:
      workloads: to choose from.
      size: of the sample; None: all of them.
    """
    if size is None:
        return list(workloads)
    order = sorted(workloads, key=lambda workload: hashlib.sha256(workload.id.encode()).digest())
    kept = {workload.id for workload in order[:size]}
    return [workload for workload in workloads if workload.id in kept]
