"""`python -m jax_moye`: the table of kernels, which one is chosen and why, the ladder, the benchmark, drawings."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import NamedTuple

import jax_moye

SCRIPT = "jax-moye"  # what pip installs it as
INTERRUPTED, NO_READER = 130, 141  # what a shell calls a command that Ctrl-C, or a closed pipe, ended


class Command(NamedTuple):
    """A subcommand.

    Attributes:
      module: of jax_moye, with `add_arguments(parser)` and `main(arguments)`. It is imported if the command is called.
      help: what it does, in one line.
    """

    module: str
    help: str


COMMANDS: Mapping[str, Command] = MappingProxyType(
    {
        "configs": Command("_kernels.command", "print the table of compiled kernels"),
        "explain": Command("_inspect.command", "which kernel computes a product on a GPU, and why"),
        "bench": Command("_bench.command", "time the kernels against XLA, torch and others"),
        "tune": Command("_tune.command", "time the configs of products and keep which is the fastest"),
        "show": Command("_bench.show", "print a file of results, compare two, or draw one"),
        "ladder": Command("_bench.ladder.command", "what each rung of the ladder of kernels does"),
        "draw": Command("layout.draw.command", "draw a layout, an instruction, a copy or a schedule"),
    }
)


def _module(command: str) -> ModuleType:
    return importlib.import_module(f"jax_moye.{COMMANDS[command].module}")


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line, runs the subcommand and returns its exit status.

    Args:
      argv: the arguments; None: those that the process was started with.
    """
    argv = sys.argv[1:] if argv is None else argv
    prog = SCRIPT if pathlib.Path(sys.argv[0]).name == SCRIPT else "python -m jax_moye"
    parser = argparse.ArgumentParser(prog=prog, description=__doc__)
    parser.add_argument("--version", action="version", version=f"jax_moye {jax_moye.__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True)
    parsers = {name: subparsers.add_parser(name, help=command.help) for name, command in COMMANDS.items()}
    # No option before the command takes a value: the first word is the command, and the others need no options now.
    called = next((word for word in argv if not word.startswith("-")), "")
    if called in COMMANDS:
        _module(called).add_arguments(parsers[called])
    arguments = parser.parse_args(argv)
    try:
        status = _module(arguments.command).main(arguments)
        sys.stdout.flush()  # here: what cannot be written is not said at the interpreter's end
    except BrokenPipeError:  # whoever reads, as `head` does, has enough
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    except KeyboardInterrupt:
        print(f"jax_moye {arguments.command}: interrupted", file=sys.stderr)
        return INTERRUPTED
    return status


if __name__ == "__main__":
    sys.exit(main())
