"""`python -m jax_moye show`: a file of results as tables that fit a terminal, two of them compared, or drawn."""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

from jax_moye._bench import compare, forms, plots, results
from jax_moye._command_line import describe
from jax_moye._format import printable
from jax_moye._optional import MissingError

# What an edited file may raise where it is read as if it were one of ours.
_WRONG = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, TypeError, ValueError)


class NoResultError(Exception):
    """A file cannot be shown; the message says which one and why."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye show`."""
    describe(
        parser,
        "Prints a file of results as tables, with what their columns mean. It reads what bench, tune and\n"
        "`ladder --json` write, and all else in benchmarks/results. With two files it says what became faster or\n"
        "slower from the first to the second.",
        [
            "benchmarks/results/nvidia_h200-2026-11-20-1ce8bb2.json",
            "benchmarks/results/nvidia_h200-2026-11-20-e0cb999.json "
            "benchmarks/results/nvidia_h200-2026-11-20-1ce8bb2.json",
            "benchmarks/results/nvidia_h200-2026-11-20-2cdefab-tune.json --json",
            "benchmarks/results/nvidia_h200-2026-11-20-1ce8bb2.json --svg charts",
        ],
    )
    parser.add_argument("file", type=pathlib.Path, help="a file of results")
    parser.add_argument("other", type=pathlib.Path, nargs="?", help="a later one, to be compared with it")
    parser.add_argument("--json", action="store_true", help="print the file, or the comparison, as JSON")
    parser.add_argument("--svg", type=pathlib.Path, metavar="DIR", help="also draw the ratios and the roofline there")


def main(arguments: argparse.Namespace) -> int:
    """Prints what is asked for. Returns 0, and 1 where a file is none of results."""
    try:
        if arguments.other is not None and arguments.svg is not None:
            raise NoResultError("--svg draws one file, and two are compared")
        if arguments.svg is not None:
            plots.check()
        found = [_read(path) for path in (arguments.file, arguments.other) if path is not None]
        text = _compared(arguments, *found) if len(found) == 2 else _shown(arguments.file, found[0], arguments.json)
        print(text)
        if arguments.svg:
            _draw(arguments, found[0])
    except (NoResultError, MissingError) as error:
        print(f"jax_moye show: {error}", file=sys.stderr)
        return 1
    return 0


def _read(path: pathlib.Path) -> Any:
    """What a file holds: JSON, or the text of another file; all of it can be printed.

    Raises:
      NoResultError: it cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix in (".txt", ".svg"):
            return tuple(printable(line) for line in text.expandtabs().splitlines())
        return printable(json.loads(text))
    except _WRONG as error:
        raise NoResultError(f"{path} is no file of results: {_why(error)}") from None


def _why(error: Exception) -> str:
    """What is wrong with a file, in words."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)).lower()
    if isinstance(error, json.JSONDecodeError):
        return f"it is no JSON ({error})"
    if isinstance(error, KeyError):
        return f"it has no field {error}"
    return str(error) if type(error) is ValueError else repr(error)


def _shown(path: pathlib.Path, report: Any, as_json: bool) -> str:
    try:
        return json.dumps(report, indent=1) if as_json else "\n".join(forms.lines(report))
    except _WRONG as error:
        raise NoResultError(f"{path} is no file of results: {_why(error)}") from None


def _compared(arguments: argparse.Namespace, first: Any, second: Any) -> str:
    files = [_times(path, report) for path, report in ((arguments.file, first), (arguments.other, second))]
    try:
        changes = compare.changes(files[0], files[1])
        if arguments.json:
            return json.dumps(compare.to_dict(files[0], files[1], changes), indent=1)
        return "\n".join(compare.lines(files[0], files[1], changes))
    except _WRONG as error:
        raise NoResultError(f"{arguments.file} and {arguments.other} cannot be compared: {_why(error)}") from None


def _times(path: pathlib.Path, report: Any) -> compare.File:
    try:
        return compare.File(path.name, forms.about(report), forms.timed(report))
    except _WRONG as error:
        raise NoResultError(f"{path} has no times to compare: {_why(error)}") from None


def _draw(arguments: argparse.Namespace, report: Any) -> None:
    try:
        written = results.draw(report, arguments.svg, arguments.file.stem)
    except _WRONG as error:
        raise NoResultError(f"{arguments.file} cannot be drawn: {_why(error)}") from None
    for path in written:
        print(f"written to {path}", file=sys.stderr if arguments.json else sys.stdout)
