"""`python -m jax_moye tune`: tunes products that are named by their shapes, or the workloads of a suite."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax

from jax_moye._command_line import describe, number, pattern, whole
from jax_moye._inspect.programs import explain_workload
from jax_moye._kernels.devices import find_device, of_jax
from jax_moye._selection import measurements
from jax_moye._timing.rounds import Race
from jax_moye._timing.workloads import Workload, read_suite
from jax_moye._tune import tune
from jax_moye._tune.times import TOP, Protocol, Target

INTERRUPTED = 130  # what a shell calls a command that Ctrl-C ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye tune`."""
    describe(
        parser,
        "Times the configs that can compute a product, and XLA, and keeps which is the fastest in a file: in the\n"
        "user's cache, which programs of this machine go by from then on, unless --out names another. It needs a\n"
        "GPU, and takes some seconds a product. docs/tuning.md is about it.",
        [
            "--shape 4096x4096x4096:bf16:NT --shape 8x1024x1024x64:f16",
            "--suite benchmarks/suite.json --rows 'A.*' --top all --out times.json",
            "--emulator --shape 32x48x64:bf16 --top 2 --out times.json --json",
        ],
    )
    parser.add_argument("--shape", action="append", default=[], help="as in explain, e.g. 4096x4096x4096:bf16:NT")
    parser.add_argument("--suite", type=pathlib.Path, help="a file of workloads, e.g. benchmarks/suite.json")
    parser.add_argument(
        "--rows", type=pattern, help="regular expression that the id of a workload of the suite matches whole"
    )
    parser.add_argument(
        "--top", type=_top, default=TOP, help=f"configs to time, the model's first, or all (default: {TOP})"
    )
    parser.add_argument(
        "--sweep", type=pattern, help="time the configs whose name this regular expression matches whole"
    )
    parser.add_argument(
        "--quick", action="store_true", help="compile XLA's program alone and check against it: a second a product"
    )
    parser.add_argument("--budget-s", type=number(least=0), default=math.inf, help="begin no product later than this")
    parser.add_argument("--turn-ms", type=number(above=0), default=Race().round_ms, help="length of one round")
    parser.add_argument("--out", type=pathlib.Path, help="the file to write, or to add to (default: the user's cache)")
    parser.add_argument("--emulator", action="store_true", help="without a GPU: try it; its file chooses nothing")
    parser.add_argument("--regret", type=pathlib.Path, metavar="FILE", help="only say how near the model comes to FILE")
    parser.add_argument("--json", action="store_true", help="print what was measured, or --regret, as JSON")


def _top(text: str) -> int | None:
    """How many configs, None for all."""
    try:
        return None if text == "all" else whole(1)(text)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number, at least 1, nor all") from None


def main(arguments: argparse.Namespace) -> int:
    """Tunes. Returns 0, 1 where an argument is wrong or nothing was measured, 2 without a GPU, 130 after Ctrl-C."""
    # Read when the backend starts, which is later than now: big operands come and go.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    try:
        for name in ("regret", "suite"):
            if (path := getattr(arguments, name)) is not None and not path.exists():
                raise ValueError(f"--{name} {path} is no file")
        if arguments.regret is not None:
            return show_regret(arguments.regret, arguments.json)
        workloads = chosen_workloads(arguments)
    except (OSError, RecursionError, ValueError, NotImplementedError) as error:
        print(f"jax_moye tune: {error}", file=sys.stderr)
        return 1
    try:
        device = jax.devices("cpu")[0] if arguments.emulator else tune.find_gpu()
    except RuntimeError as error:
        print(f"jax_moye {error} (`--emulator` tries it without a GPU)", file=sys.stderr)
        return 2
    race = Race(round_ms=arguments.turn_ms)
    if arguments.emulator:
        race = race._replace(rounds=(1, 2), warmup_ms=0.0)
    protocol = Protocol(
        arguments.top, arguments.sweep, race, arguments.budget_s, arguments.quick and not arguments.emulator
    )
    try:
        target = tune.find_target(device, arguments.emulator, arguments.out)
    except RuntimeError as error:
        print(f"jax_moye {error} (--out names a file)", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:
        print(f"jax_moye tune: --out {error}", file=sys.stderr)
        return 1
    try:
        return run(workloads, target, protocol, arguments.json)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        print(f"jax_moye tune: {target.path} cannot be written: {error}", file=sys.stderr)
        return 1


def chosen_workloads(arguments: argparse.Namespace) -> list[Workload]:
    """Those that are asked for.

    Raises:
      OSError: the suite cannot be read.
      ValueError: a shape or the suite is none, or nothing is asked for, or --rows without a suite.
    """
    if arguments.rows is not None and arguments.suite is None:
        raise ValueError("--rows is of the workloads of --suite, and there is none")
    workloads = [Workload.from_shape(text, i) for i, text in enumerate(arguments.shape, 1)]
    if arguments.suite is not None:
        workloads += read_suite(arguments.suite, ".*" if arguments.rows is None else arguments.rows)
    if not workloads:
        raise ValueError("nothing to tune: name --shape, or --suite and the --rows of it")
    return workloads


def run(workloads: Sequence[Workload], target: Target, protocol: Protocol, as_json: bool = False) -> int:
    """Tunes workloads and says for each what came of it, on stderr where JSON is printed. Returns as `main` does.

    Raises:
      OSError: the file cannot be written.
      ValueError: the file is about another GPU.
    """
    say = functools.partial(print, file=sys.stderr if as_json else sys.stdout, flush=True)
    gpu = find_device() if target.arch is None else of_jax(target.device)
    products, names = [], []
    for workload in workloads:
        for gemm in explain_workload(workload, gpu):
            products.append(gemm.product)
            names.append(workload.id)
    found: list[tune.Tuned] = []
    status = 0
    begin = time.monotonic()
    try:
        for product in tune.tune_products(products, target, protocol):
            say(f"{names[len(found)]:4} {tune.line(product, target.arch)}")
            for name, why in product.rejected.items():
                say(f"       {name}: {why}")
            found.append(product)
    except KeyboardInterrupt:
        say("interrupted: what was measured is kept")
        status = INTERRUPTED
    measured = [product.entry for product in found if product.entry is not None]
    for text in tune.regret_lines(tune.regret(measured, target.arch)):
        say(text)
    ours = sum(not tune.is_xla_faster(entry) for entry in measured)
    say(f"{len(measured)} products in {time.monotonic() - begin:.0f} s, {ours} of them not XLA's: {target.path}")
    if as_json:
        described = [_as_json(*one) for one in zip(names, found, strict=False)]
        print(json.dumps({"file": str(target.path), "products": described}, indent=1))
    return status or (0 if measured else 1)


def _as_json(name: str, product: tune.Tuned) -> dict[str, Any]:
    entry = None if product.entry is None else product.entry.to_dict()
    of_why = {"why": product.why, "rejected": dict(product.rejected)}
    return {"id": name, "what": product.what, "entry": entry, **of_why, "seconds": product.seconds}


def show_regret(path: pathlib.Path, as_json: bool = False) -> int:
    """Prints how near today's model comes to a file of `tune`, product by product. Returns 0, or 1 of an empty file."""
    try:
        tables = measurements.read(path)
    except ValueError as error:
        raise ValueError(f"--regret {path} is no file of tune's: {error}") from None
    found = tune.regret(list(tables.entries.values()), tables.head.get("arch"))
    if as_json:
        print(json.dumps([one._asdict() for one in found], indent=1))
        return 0 if found else 1
    for one in sorted(found, key=lambda one: one.alone):
        print(f"{one.alone:.4f} {one.top3:.4f} {one.what}: the model's {one.chosen}, the best {one.best}")
    for text in tune.regret_lines(found):
        print(text)
    return 0 if found else 1
