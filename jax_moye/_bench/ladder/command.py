"""`python -m jax_moye ladder`: the report on all rungs, as a table, as JSON and as a chart."""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import sys
from typing import Any

import jax

from jax_moye._bench import plots
from jax_moye._bench.ladder.chart import chart
from jax_moye._bench.ladder.counting import LARGEST_COUNTED, SHAPE, count
from jax_moye._bench.ladder.rung_configs import NEAREST, RUNGS, rungs, stage_configs
from jax_moye._bench.ladder.stages import FMA_PER_CLOCK, LATENCY, share_of_peak, stage_model
from jax_moye._bench.ladder.table import table
from jax_moye._bench.ladder.timing import measure
from jax_moye._bench.results import describe
from jax_moye._command_line import describe as describe_command
from jax_moye._command_line import number, whole
from jax_moye._kernels import own
from jax_moye._kernels.configs import GemmConfig, configs
from jax_moye._kernels.dtypes import short_name
from jax_moye._optional import MissingError
from jax_moye._timing.files import write_json
from jax_moye._timing.progress import progress
from jax_moye.layout.kernels import KernelFacts, kernel_facts

GPU_SHAPE = (4096, 4096, 4096)
ARCH = "sm_90"  # of the model, unless said
STDOUT = pathlib.Path("-")  # where --json names no file
CHARTS = (".svg", ".png", ".pdf")  # what --svg writes


def make_report(arguments: argparse.Namespace) -> dict[str, Any]:
    """Counts and, where there is a GPU, times every rung."""
    chosen = rungs(arguments.dtype, arguments.order)
    kernels = {config.name: config for config in own.from_arguments(arguments)}
    report: dict[str, Any] = {
        "dtype": arguments.dtype,
        "order": arguments.order,
        "shape": list(arguments.shape),
        "rungs": [],
        "left_out": [kernel for kernel in RUNGS if kernel not in chosen],
        "without_facts": sorted({config.kernel for config in configs() if kernel_facts(config.kernel).missing}),
        "measured": None,
    }
    of_all = [*chosen.values(), *kernels.values()]
    for config in progress(of_all, len(of_all), lambda config: config.name):
        facts = KernelFacts() if config.name in kernels else kernel_facts(config.kernel)
        report["rungs"].append(
            {
                "kernel": config.kernel,
                "idea": facts.idea,
                "page": facts.page,
                "config": config.name,
                "dtype": config.dtype,
                "stand_in": config.dtype != arguments.dtype,
                "threads": config.threads,
                "smem_bytes": config.smem_bytes,
                "registers": dict(config.registers) if config.registers else None,
                "counted": count(config, arguments.shape, arguments.order),
            }
        )
    staged = stage_configs(arguments.dtype) if arguments.stages else []
    if arguments.stages:
        arch, latency = arguments.arch or ARCH, arguments.latency or LATENCY
        report["stages"] = {"latency": latency, "arch": arch, "points": []}
        report["stages"]["points"] = [
            {
                "stages": config.stages,
                "config": config.name,
                "model": stage_model(
                    config,
                    arch,
                    latency,
                    (config.registers or {}).get(arch),
                ),
            }
            for config in staged
            if config.dtype in FMA_PER_CLOCK[arch]
        ]
    device = None if arguments.no_gpu else _gpu(arguments.interpret)
    if device is not None:
        _measure_into(report, of_all, staged, device, arguments)
    return report


def _gpu(interpret: bool) -> jax.Device | None:
    """JAX's first device, if it is a GPU; with `interpret`, whatever it is."""
    device = jax.devices()[0]
    return device if interpret or device.platform == "gpu" else None


def _measure_into(report: dict, chosen: list[GemmConfig], staged: list[GemmConfig], device, arguments) -> None:
    shape, dtype = arguments.gpu_shape, arguments.dtype
    head = describe(device, arguments)
    least_bytes = head["protocol"]["rotated_bytes"]
    # What alternates is of one kind: the rungs, then the numbers of stages.
    figures, refused = measure(chosen, dtype, shape, arguments.order, device, arguments, least_bytes)
    for rung in report["rungs"]:
        rung["measured"] = figures.get(rung["config"])
        if rung["config"] in refused:
            rung["why"] = refused[rung["config"]]
    report["measured"] = {key: head[key] for key in ("gpu", "jax", "jaxlib", "commit", "date", "emulated", "protocol")}
    report["measured"] |= {"shape": list(shape), "xla": figures.get("xla")}
    if staged:
        figures, refused = measure(staged, dtype, shape, arguments.order, device, arguments, least_bytes)
        for point in report["stages"]["points"]:
            point["measured"] = figures.get(point["config"])
            if point["measured"]:
                point["measured"]["efficiency"] = share_of_peak(point["measured"], dtype, device)
            if point["config"] in refused:
                point["why"] = refused[point["config"]]


def _shape(text: str) -> tuple[int, int, int]:
    if not re.fullmatch(r"\d+x\d+x\d+", text) or not all(size := tuple(map(int, text.split("x")))):
        raise argparse.ArgumentTypeError(f"{text!r} is not MxNxK, as in 512x256x128")
    return size  # type: ignore[return-value]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye ladder`."""
    describe_command(
        parser,
        "Shows the ladder of kernels, from simt_tiled up: what one product of each does to memory and\n"
        "which instructions it needs, counted in the emulator, and how fast it is where there is a GPU. Counting\n"
        "takes some seconds. docs/tutorials explains each kernel.",
        [
            "--no-gpu",
            "--dtype f32 --shape 64x64x32 --no-gpu --json",
            "--stages --no-gpu --shape 128x128x64 --svg ladder.svg",
        ],
    )
    parser.add_argument(
        "--dtype", type=short_name, default="bf16", choices=list(NEAREST), help="of the operands (bf16)"
    )
    parser.add_argument("--shape", type=_shape, default=SHAPE, metavar="MxNxK", help="what is counted (512x256x128)")
    own.add_arguments(parser)
    parser.add_argument(
        "--order", type=str.upper, default="NN", choices=["NN", "NT", "TN", "TT"], help="of a and b; N is row-major"
    )
    parser.add_argument("--stages", action="store_true", help="add the efficiency against the number of stages")
    parser.add_argument(
        "--json",
        type=pathlib.Path,
        nargs="?",
        const=STDOUT,
        metavar="FILE",
        help="print the report as JSON, or write it",
    )
    parser.add_argument("--svg", type=pathlib.Path, help=f"write the chart to this file ({', '.join(CHARTS)})")
    model = parser.add_argument_group("the model of the stages")
    model.add_argument("--arch", choices=list(FMA_PER_CLOCK), help="(sm_90)")
    model.add_argument("--latency", type=whole(1), help=f"clocks that a load is under way ({LATENCY})")
    gpu = parser.add_argument_group("on a GPU (the protocol is that of `bench`)")
    gpu.add_argument("--no-gpu", action="store_true", help="time nothing")
    gpu.add_argument("--gpu-shape", type=_shape, default=GPU_SHAPE, metavar="MxNxK", help="timed (4096x4096x4096)")
    gpu.add_argument("--alternations", type=whole(2), default=15, help="rounds of each rung")
    gpu.add_argument("--turn-ms", type=number(above=0), default=50, help="length of one round")
    gpu.add_argument(
        "--warmup-ms", type=number(least=0), default=1000, help="how long the rungs run before their first round"
    )
    gpu.add_argument(
        "--rotate-mb", type=number(above=0), help="least size of all sets together (default: 2.5 x L2 cache)"
    )
    gpu.add_argument("--interpret", action="store_true", help="without a GPU: try the timing, not the kernels")
    parser.set_defaults(no_torch=True)


def main(arguments: argparse.Namespace) -> int:
    """Prints the ladder and writes what was asked for. Returns 0, 1 if a rung is wrong, 2 for a wrong option."""
    for name in ("arch", "latency"):
        if getattr(arguments, name) is not None and not arguments.stages:
            print(f"jax_moye ladder: --{name} is of the model of --stages, which is not asked for", file=sys.stderr)
            return 2
    if arguments.svg and arguments.svg.suffix not in CHARTS:
        print(f"jax_moye ladder: --svg {arguments.svg} is none of {', '.join(CHARTS)}", file=sys.stderr)
        return 2
    m, n, k = arguments.shape
    if m * n * k > LARGEST_COUNTED:
        print(
            f"jax_moye ladder: {m}x{n}x{k} is too large to count in the emulator (more than {LARGEST_COUNTED} "
            "multiply-adds); --gpu-shape is what is timed",
            file=sys.stderr,
        )
        return 2
    try:
        if arguments.svg:
            plots.check()
        report = make_report(arguments)
        if arguments.json == STDOUT:
            print(json.dumps(report, indent=1))
        else:
            print(table(report))
        if arguments.json not in (None, STDOUT):
            write_json(report, arguments.json)
        if arguments.svg:
            chart(report).save(arguments.svg)
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError, ValueError, MissingError) as error:
        print(f"jax_moye ladder: {error}", file=sys.stderr)
        return 1
    return 1 if any("wrong" in rung.get("why", "") for rung in report["rungs"]) else 0
