"""The results of a benchmark: the head of their file, its name, and how they are shown."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib
import importlib.util
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jax_moye._bench import charts, contenders
from jax_moye._bench.program import show as program_show
from jax_moye._format import wrapped
from jax_moye._timing.operands import rotated_bytes

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUSTAINED_MS = 3000  # clocks take about so long to settle
BURST_ROUND_MS = 20  # at most, so that the power limit has not acted yet
KINDS = {"ratio": "", "default_ratio": ", by default over XLA's own"}  # of ratios, and what the summary calls them
CORE = "ABCDE"  # the suite's core, by the first letter of a workload's id


def machine(device: Any) -> dict[str, Any]:
    """Where a report is from: the machine, versions, the time."""
    import jax
    import jaxlib

    return {
        "gpu": device.device_kind,
        "driver": command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "cuda": getattr(device.client, "platform_version", "").replace("\n", " "),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "commit": os.environ.get("JAX_MOYE_COMMIT")
        or command_output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9")
        or "unknown",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "emulated": device.platform != "gpu",
    }


def describe(device: Any, arguments: argparse.Namespace) -> dict:
    """The head of the report: machine, versions, protocol."""
    rotated = int(arguments.rotate_mb * 1e6) if arguments.rotate_mb is not None else rotated_bytes()
    torch = importlib.util.find_spec("torch") and not arguments.no_torch
    launches = getattr(arguments, "launches", "default")
    report = machine(device) | {
        "torch": importlib.import_module("torch").__version__ if torch else None,
        "protocol": {
            "data": "normal",
            "rotated_bytes": rotated,
            "mode": mode(arguments),
            "alternations": arguments.alternations,
            "turn_ms": arguments.turn_ms,
            "warmup_ms": arguments.warmup_ms,
            "autotune": os.environ.get("JAX_MOYE_AUTOTUNE") or "on",
            "best_chosen": "in other rounds than those that time it",
            "launches": launches,
            "launch_options": contenders.LAUNCHES[launches],
            "method": "jitted programs of independent products, short ones in a loop on the device; wall clock per "
            "turn, one wait at its end",
        },
        "baselines": {},
        "rows": [],
        "not_run": [],
    }
    for name in ("models", "sample"):
        if (given := getattr(arguments, name, None)) is not None:
            report["protocol"][name] = given
    if (chosen := getattr(arguments, "mode", "sustained")) != "sustained":
        report["protocol"] |= {
            "burst": {"idle_ms": arguments.idle_ms, "turn_ms": min(BURST_ROUND_MS, arguments.turn_ms)}
        }
        if chosen == "burst":
            report["protocol"]["warmup_ms"] = 0
    for name in getattr(arguments, "baselines", "").split(","):
        if name in contenders.BASELINES:
            report["baselines"][name] = contenders.BASELINES[name]
    return report


def mode(arguments: argparse.Namespace) -> str:
    """`burst`; `sustained` if all run for 3 s before the first round, which clocks take to settle; `short`."""
    if getattr(arguments, "mode", "sustained") == "burst":
        return "burst"
    return "sustained" if arguments.warmup_ms >= SUSTAINED_MS else "short"


def command_output(*command: str) -> str:
    """A command's output, empty if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def file_name(report: dict, what: str = "") -> str:
    """`<gpu>-<date>-<commit>.json`, with what the file is about behind the commit."""
    gpu = re.sub(r"[^a-z0-9]+", "_", report["gpu"].lower()).strip("_")
    return f"{gpu}-{re.sub('[^0-9TZ]', '', report['date'])}-{report['commit']}{what}.json"


def make_ready(path: pathlib.Path) -> None:
    """Tries whether a file can be written: now, not when something has been timed. Makes its folder.

    Raises:
      OSError: it cannot.
      ValueError: there is something else of its name.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        raise ValueError(f"--out {path} is no plain file")
    with tempfile.TemporaryFile(dir=path.parent):
        pass


# The table -------------------------------------------------------------------------------------------------------


def line(result: dict) -> str:
    """A result as a line on the screen."""
    sizes = "x".join(str(result[key]) for key in ("batch", "m", "n", "k"))
    words = [result[key] for key in ("layout", "dtype", "precision", "epilogue") if key in result]
    size = " ".join([f"{result['id']:4}", sizes, *words])
    if not result["correct"]:
        return f"{size:38} WRONG: {result.get('why') or 'error over its bound: ' + str(result['error_over_bound'])}"
    text = f"{size:38} {result['us']:>9} us {result['tflops']:>7} TFLOP/s"
    for name, us in result["baselines"].items():
        text += f"  {name} {us} us"
    if "ratio" in result:
        text += f"  ratio {result['ratio']:.3f} [{result['ratio_ci'][0]:.3f}, {result['ratio_ci'][1]:.3f}]"
    if "default_ratio" in result:
        text += f"  by default {result['by_default']} {result['default_ratio']:.3f}"
    if "ratio" in result.get("burst", {}):
        text += f"  burst {result['burst']['ratio']:.3f}"
    return text + f"  {result['config']}" + ("  host-bound" if left_out([result]) else "")


def end(report: dict) -> str:
    """What bench prints of a report behind its lines."""
    head = f"{report['gpu']}, jax {report['jax']}, commit {report['commit']}, {report['date']}"
    if report.get("emulated"):
        head += ", emulated: its times say nothing about a GPU"
    return "\n".join(part for text in [head, *summary(report["rows"])] for part in wrapped(text))


def is_counted(result: dict, kind: str = "ratio") -> bool:
    """Whether means count the result's ratio: not where the host was the limit of a contender that has a part in it.

    Args:
      result: of a workload.
      kind: "ratio", ours to the best baseline, which any of them might have been; or "default_ratio".
    """
    part = {"jax_moye", *result.get("baselines", {})}
    if kind == "default_ratio":
        timed_as = result.get("default_timed_as")
        part = set() if timed_as == "xla" else {"xla", timed_as}  # one program is as fast as itself
    return part.isdisjoint(result.get("host_bound", ()))


def counted(results: Iterable[dict], kind: str = "ratio") -> list[dict]:
    """The results that means of this ratio are of."""
    return [result for result in results if kind in result and is_counted(result, kind)]


def left_out(results: Iterable[dict]) -> list[str]:
    """The ids of those of which no mean counts a ratio that they have, since the host was a limit."""
    return [row["id"] for row in results if any(kind in row and not is_counted(row, kind) for kind in KINDS)]


def summary(results: Sequence[dict]) -> list[str]:
    """Lines on the ratios, of our kernel and by default: by regime, then of the core, or of all where there is none."""
    lines = [
        f"{regime}: {'; by default '.join(parts)}"
        for regime, group in charts.by_regime(results).items()
        if (parts := [_mean(group, kind) for kind in KINDS if counted(group, kind)])
    ]
    core = [result for result in results if is_core(result)]
    name, of_all = ("core, A to E", core) if core else ("all", results)
    for kind, by_default in KINDS.items():
        if rows := sorted(counted(of_all, kind), key=lambda result: result[kind]):
            worst = ", ".join(f"{result['id']} {result[kind]:.3f}" for result in rows[:5])
            mean = f"geometric mean of the ratios {mean_of(rows, kind)} of {len(rows)} rows"
            lines.append(
                f"{name}{by_default}: {mean}; one row in ten at {tenth(rows, kind):.3f} or below; the lowest: {worst}"
            )
    if host_bound := left_out(results):
        lines.append(f"host-bound and left out of means: {len(host_bound)} rows, {', '.join(host_bound)}")
    return lines


def is_core(result: dict) -> bool:
    """Whether the headline counts the result."""
    return result["id"][0] in CORE


def tenth(results: Iterable[dict], kind: str = "ratio") -> float:
    """The ratio that one row in ten does not exceed."""
    ratios = sorted(result[kind] for result in results)
    return ratios[math.ceil(len(ratios) / 10) - 1]


def mean_of(results: Iterable[dict], kind: str = "ratio") -> str:
    """The geometric mean of the ratios, as a text."""
    return f"{statistics.geometric_mean([result[kind] for result in results]):.3f}"


def _mean(results: Sequence[dict], kind: str) -> str:
    rows = counted(results, kind)
    lowest = min(rows, key=lambda result: result[kind])
    text = f"geometric mean of the ratios {mean_of(rows, kind)} of {len(rows)} rows"
    return f"{text}, the lowest {lowest['id']} {lowest[kind]:.3f}"


def complete(run: Callable[[], int], report: dict, path: pathlib.Path, arguments: argparse.Namespace) -> int:
    """Runs a benchmark, says where its report and the charts of it are, and prints it where --json asks for that.

    Args:
      run: the benchmark. It prints what it finds, fills the report, writes it, and returns the exit status.
      report: that it fills.
      path: where it writes it.
      arguments: of the command line.

    Returns:
      The exit status: 1 where something cannot be written.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr if arguments.json else sys.stdout):
            status = run()
            print(f"written to {path}")
            for picture in draw(report, arguments.svg, path.stem) if arguments.svg else ():
                print(f"written to {picture}")
    except BrokenPipeError:
        raise
    except OSError as error:  # a full disk
        print(f"jax_moye bench: {error.filename or path} cannot be written: {error.strerror or error}", file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps(report, indent=1))
    return status


def draw(report: dict, folder: pathlib.Path, stem: str) -> list[pathlib.Path]:
    """Writes the charts that can be drawn of a report, and returns where."""
    written = []
    folder.mkdir(parents=True, exist_ok=True)
    of_products = {"ratio": charts.ratio_chart, "roofline": charts.roofline}
    for name, chart in ({"programs": program_show.chart} if "runs" in report else of_products).items():
        if (picture := chart(report)) is not None:
            path = folder / f"{stem}_{name}.svg"
            picture.save(path)
            written.append(path)
    return written
