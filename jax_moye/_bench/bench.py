"""Times the kernels on the rows of benchmarks/suite.json, or on shapes of one's own, against XLA, torch and others.

What is measured: device time per product. An arm's turn dispatches its programs over all sets of operands and waits
once at its end, some 50 ms later; its time per product is the wall clock of the turn over the number of products.
contenders.py says what the programs are. Where dispatching took nearly as long as the turn the host was the limit: the
row says `host_bound`.

- Data are random normal; the sets together are more than twice the L2 cache, so every product finds a cold cache.
- Arms take turns (ours, XLA, torch, ours, ...) in one process, so that clocks and heat treat them alike.
- Sustained: the device has been busy for 3 s before the first turn that counts. Burst: it rests before each turn, so
  that its clock is at its highest.
- `us` is the median over an arm's turns; the ratio's interval is a bootstrap over turns (95 %).
- Before timing, a result is compared with float64, over whole rows of the output, one in each band of rows, and after
  timing it must still have the same bits. A wrong result has no time, and the run fails.
- Clocks, power and temperature are recorded through NVML and never set.

The JSON's form: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import math
import os
import pathlib
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jax_moye._bench import contenders, emulator, own_kernel, workloads
from jax_moye._bench.contenders import jax_arm as jax_arm
from jax_moye._bench.contenders import rotation as rotation
from jax_moye._bench.report import describe as describe
from jax_moye._bench.report import draw, file_name, line, significant, table, write
from jax_moye._bench.report import first_line as first_line
from jax_moye._bench.workloads import NAMES, identity
from jax_moye._bench.workloads import in_layout as in_layout
from jax_moye._bench.workloads import operands as operands
from jax_moye._inspect.explain import explain_function
from jax_moye._kernels.devices import Device, of_jax
from jax_moye._timing.correctness import Reference
from jax_moye._timing.correctness import largest_excess as largest_excess
from jax_moye._timing.correctness import same_bits as same_bits
from jax_moye._timing.engine import Arm, Sampler, ratio_interval, take_turns
from jax_moye._timing.progress import progress

ROOT = pathlib.Path(__file__).resolve().parents[2]
SUSTAINED_MS = 3000  # clocks take about so long to settle
BURST_TURN_MS = 20  # at most, so that the power limit has not acted yet
INTERRUPTED = 130  # what a shell calls a command that Ctrl-C ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye bench`."""
    what = parser.add_argument_group("what is timed")
    what.add_argument("--suite", type=pathlib.Path, help="the rows (default: benchmarks/suite.json)")
    what.add_argument("--rows", default=".*", help="regular expression that a row's id matches whole, e.g. 'A.*|B2'")
    what.add_argument(
        "--shape", action="append", help="a row of your own instead, e.g. 4096x4096x4096:bf16:NT; may be repeated"
    )
    what.add_argument("--precision", help="of the rows of --shape, e.g. highest or ANY_F8_ANY_F8_F32_FAST_ACCUM")
    what.add_argument(
        "--config",
        action="append",
        help="use this config for every row, instead of the one jax_moye selects; several (repeated, or with commas): "
        "time them beside the selected one",
    )
    what.add_argument(
        "--kernel",
        type=pathlib.Path,
        metavar="FILE.cuh",
        help="a kernel of your own: built with its --config-row in a copy of this checkout, and timed there",
    )
    what.add_argument(
        "--config-row",
        action="append",
        metavar="ROW",
        help="its row of cuda/gemm/configs.h, e.g. '{simt_direct, f32, f32, {32, 64, 1}, 1, {1, 1}, 4}'; may be "
        "repeated",
    )
    what.add_argument("--sweep", help="also time every config whose name this regular expression matches whole")
    what.add_argument(
        "--baselines",
        default=",".join(contenders.BASELINES),
        help="which others, of those that can be had here (default: %(default)s)",
    )
    what.add_argument("--no-torch", action="store_true", help="leave torch out")
    how = parser.add_argument_group("how")
    how.add_argument("--mode", choices=["sustained", "burst", "both"], default="sustained", help="(default: sustained)")
    how.add_argument("--alternations", type=int, default=15, help="turns of each arm (default: 15)")
    how.add_argument("--turn-ms", type=float, default=50, help="length of one turn (default: 50)")
    how.add_argument(
        "--warmup-ms",
        type=float,
        default=SUSTAINED_MS,
        help="how long each row runs before its first turn (default: 3000; shorter is recorded as mode `short`)",
    )
    how.add_argument("--idle-ms", type=float, default=150, help="how long a burst's turn rests before it (150)")
    how.add_argument(
        "--launches",
        choices=list(contenders.LAUNCHES),
        default="default",
        help="JAX's arms: XLA's choice, CUDA graphs for everything that can be in one, or none",
    )
    how.add_argument("--rotate-mb", type=float, help="least size of all sets together (default: 2.5 x L2 cache)")
    how.add_argument("--budget-s", type=float, default=math.inf, help="start no row later than this")
    parser.add_argument(
        "--out", type=pathlib.Path, help="the JSON file to write (default: in results beside the suite)"
    )
    parser.add_argument("--svg", type=pathlib.Path, metavar="DIR", help="also draw the ratios and the roofline there")
    parser.add_argument("--interpret", action="store_true", help="without a GPU: try the benchmark, not the kernels")
    parser.add_argument(
        "--emulator",
        action="store_true",
        help="try it in the CPU emulator: two small shapes, if no --shape says which, and the CPU time of a launch",
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs the benchmark.

    Returns:
      0; 1 if a result was wrong or nothing could be timed, or an argument is; 2 if there is no GPU; 130 after Ctrl-C,
      with what was done until then in the file.
    """
    if arguments.kernel:
        return own_kernel.main(arguments)
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
        rows, results = chosen_rows(arguments)
        check(arguments)
    except ValueError as error:
        print(f"jax_moye bench: {error}", file=sys.stderr)
        return 1
    report = describe(device, arguments)
    path = arguments.out or results / file_name(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The references are float64; every operand's dtype is explicit.
    with jax.enable_x64(True), jax.default_device(device):
        status = run_and_write(rows, device, arguments, report, path)
    if arguments.emulator:
        status = emulator.time_launch() or status
    print(table(report, rows=False))
    for skipped in report["not_run"]:
        print(f"{skipped['id']:4} not run: {skipped['why']}")
    print(f"written to {path}")
    if arguments.svg:
        draw(report, arguments.svg, path.stem)
    return status


def chosen_rows(arguments: argparse.Namespace) -> tuple[list[dict], pathlib.Path]:
    """The rows to time, and the folder for results.

    Raises:
      ValueError: there are none.
    """
    if arguments.shape:
        rows = [workloads.own_row(text, i, arguments.precision) for i, text in enumerate(arguments.shape, 1)]
        return rows, pathlib.Path()
    places = (
        [arguments.suite] if arguments.suite else [root / "benchmarks/suite.json" for root in (pathlib.Path(), ROOT)]
    )
    suite = next((place for place in places if place.is_file()), None)
    if suite is None:
        raise ValueError("no benchmarks/suite.json here: run it in a clone, or name --suite or --shape")
    rows = [row for row in json.loads(suite.read_text())["rows"] if re.fullmatch(arguments.rows, row["id"])]
    if not rows:
        raise ValueError(f"no row of {suite} matches {arguments.rows!r}")
    return rows, suite.parent / "results"


def config_names(arguments: argparse.Namespace) -> list[str]:
    """All names of --config."""
    return [name for text in arguments.config or () for name in text.split(",") if name]


def baseline_names(arguments: argparse.Namespace) -> list[str]:
    """The baselines to time, of those that can be had here."""
    names = [name for name in arguments.baselines.split(",") if name]
    if arguments.no_torch:
        names = [name for name in names if name not in ("torch", "cublaslt")]
    return [name for name in names if contenders.importable(name)]


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError where --config or --baselines name what does not exist, or nothing would be timed."""
    import jax_moye

    known = {config.name for config in jax_moye.configs()}
    for name in config_names(arguments):
        if name not in known:
            raise ValueError(f"--config {name!r} is no row of the table: `python -m jax_moye configs` prints it")
    for name in arguments.baselines.split(","):
        if name and name not in contenders.BASELINES:
            raise ValueError(f"--baselines {name!r} is none of {', '.join(contenders.BASELINES)}")
    if arguments.alternations < 1:
        raise ValueError(f"--alternations is at least 1, not {arguments.alternations}")


def run_and_write(
    rows: Sequence[dict], device: Any, arguments: argparse.Namespace, report: dict, path: pathlib.Path
) -> int:
    """Runs all rows, writing the file after each. Returns the exit status."""
    try:
        for _ in run(rows, device, arguments, report):
            write(report, path)  # a run cut short leaves the rows it had
    except KeyboardInterrupt:
        done = {row["id"] for row in [*report["rows"], *report["not_run"]]}
        report["not_run"] += [{"id": row["id"], "why": "interrupted"} for row in rows if row["id"] not in done]
        write(report, path)
        return INTERRUPTED
    return 0 if report["rows"] and all(row["correct"] for row in report["rows"]) else 1


def run(rows: Sequence[dict], device: Any, arguments: argparse.Namespace, report: dict) -> Iterator[dict]:
    """Fills in the report, row by row."""
    deadline = time.monotonic() + arguments.budget_s
    refused = (NotImplementedError, ValueError) if config_names(arguments) else NotImplementedError
    with contextlib.closing(Sampler()) as sampler:
        for row in progress(rows, len(rows), lambda row: row["id"]):
            begin = time.monotonic()
            try:
                if begin > deadline:
                    raise NotImplementedError(f"the budget of {arguments.budget_s:g} s was over")
                result = bench_row(row, device, arguments, sampler, report["protocol"])
                report["rows"].append(result | {"seconds": significant(time.monotonic() - begin, 3)})
            except refused as error:  # valid, but no compiled kernel serves it
                report["not_run"].append({"id": row["id"], "why": first_line(error)})
            except Exception as error:  # ours: the run fails, the other rows are still worth having
                report["rows"].append(
                    identity(row) | {"correct": False, "why": f"{type(error).__name__}: {first_line(error)}"}
                )
            if report["rows"] and report["rows"][-1]["id"] == row["id"]:
                print(line(report["rows"][-1]), flush=True)
            yield report


# One row ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Work:
    """The products of a row that are timed.

    Attributes:
      row: of the suite.
      dtype: of a and b.
      operands: for each operand the list of its arrays, one for each product.
      group: products in a program.
      programs: how many there are.
      rounds: of a loop on the device over all products, which are then one program; None for a row that needs none.
      options: of the compiler, for all arms of JAX.
    """

    row: dict
    dtype: Any
    operands: tuple[list, ...]
    group: int
    programs: int
    rounds: int | None
    options: dict[str, Any]

    @property
    def sets(self) -> list[tuple[list, ...]]:
        """The operands by program."""
        return contenders.in_groups(self.operands, self.group)

    def ways(self, name: str, matmul: Callable, options: Mapping[str, Any] | None = None) -> list[Arm]:
        """The ways to dispatch `matmul`, the one that should be faster first."""
        all_options = self.options | dict(options or {})
        if self.rounds is None:
            return [jax_arm(name, matmul, self.sets, all_options)]
        chunks = contenders.in_groups(self.operands, contenders.LARGEST_GROUP)
        plain = contenders.in_one_run(jax_arm(name, matmul, chunks, all_options), len(chunks))
        return [contenders.looped_arm(name, matmul, self.operands, self.rounds, all_options), plain]

    def fastest(self, ways: Sequence[Arm]) -> Arm:
        """Of several ways to dispatch the same products."""
        if len(ways) == 1:
            return ways[0]

        def seconds(arm: Arm) -> float:
            arm = arm.again()
            arm.turn(self.programs, 1, self.group)
            return min(arm.turn(self.programs, 1, self.group) for _ in range(2))

        return min(ways, key=seconds)


def work_of(row: dict, device: Any, arguments: argparse.Namespace, rotated_bytes: int) -> Work:
    """The operands of a row, and how they are cut into programs."""
    dtype = workloads.numpy_dtype(row)
    footprint = workloads.footprint(row, dtype)
    options = contenders.LAUNCHES[arguments.launches]
    if loop := contenders.loop_rotation(row, footprint, rotated_bytes, device):
        group, rounds = loop
        return Work(row, dtype, workloads.operand_sets(row, dtype, group), group, 1, rounds, options)
    group, programs = contenders.rotation(row, footprint, rotated_bytes, device)
    return Work(row, dtype, workloads.operand_sets(row, dtype, group * programs), group, programs, None, options)


def bench_row(row: dict, device: Any, arguments: argparse.Namespace, sampler: Sampler, protocol: dict) -> dict:
    """Checks and times one row. Raises NotImplementedError where no compiled kernel serves it."""
    import jax
    import jax.numpy as jnp

    import jax_moye

    if row["dtype"] not in NAMES:
        raise NotImplementedError(f"{row['dtype']} operands")
    dtype, names = workloads.numpy_dtype(row), config_names(arguments)
    explicit = names[0] if len(names) == 1 else None
    options = {"implementation": "moye", "config": explicit, "interpret": arguments.interpret or None}
    matmul = workloads.ours(row, dtype, options)
    config = config_of(jax.jit(matmul).lower(*workloads.shapes(row, dtype)).as_text())
    table = {entry.name: entry for entry in jax_moye.configs()}
    result = identity(row) | {"config": config, "chosen_by": "explicit" if explicit else "model"}
    if device.platform == "gpu":
        result |= selection(row, dtype, explicit, of_jax(device))

    work = work_of(row, device, arguments, protocol["rotated_bytes"])
    reference = Reference(row, [of[0] for of in work.operands], dtype)
    beside = [name for name in table if name != config and is_beside(name, arguments)]
    ours = {"jax_moye": work.ways("jax_moye", matmul)}
    ours |= {name: work.ways(name, workloads.ours(row, dtype, options | {"config": name})) for name in beside}
    others, rejected = ways_of_others(work, device, baseline_names(arguments))
    compiled, errors = compile_ways(ours | others, lambda name: name in ours)
    for name in ours:
        if name in errors and (name == "jax_moye" or not isinstance(errors[name], ValueError)):
            raise errors[name]  # a ValueError says that a config does not serve this row

    arm = work.fastest(compiled["jax_moye"])
    first = [jnp.copy(d) for d in arm.run(0)]  # copies: a loop writes over its results
    worst = reference.excess(first[0], table[config])
    result |= {"correct": worst <= 1, "error_over_bound": finite(worst)}
    if not result["correct"]:
        return result
    sweep = [work.fastest(compiled[name]) for name in beside if name in compiled]
    excesses = {other.name: reference.excess(other.run(0)[0], table[other.name]) for other in sweep}
    if wrong := {name: finite(excess) for name, excess in excesses.items() if not excess <= 1}:
        return result | {"correct": False, "why": f"errors over their bounds: {wrong}"}

    arms = [arm]
    for name in baseline_names(arguments):
        try:
            if (baseline := baseline_arm(name, work, device, compiled, errors)) is None:
                continue
            d = baseline.run(0)[0]
            baseline.wait()
            worst = reference.excess(jnp.from_dlpack(d), baseline=True)
        except Exception as error:  # a baseline that fails must not hide our own figure
            rejected[name] = f"{type(error).__name__}: {first_line(error)}"
            continue
        if worst <= 1:
            arms.append(baseline)
        else:  # a baseline that computes something else is no baseline
            rejected[name] = f"its error is {worst:.3g} times the bound"

    result |= times(work, arms, sweep, arguments, sampler)
    if not all(same_bits(x, y) for x, y in zip(first, arm.run(0), strict=True)):
        return identity(row) | {"config": config, "correct": False, "why": "the bits changed from run to run"}
    count = work.group * work.programs
    result |= {"sets": count, "rotated_bytes": workloads.footprint(row, dtype) * count}
    result["methods"] = {arm.name: arm.method for arm in arms}
    if (arguments.sweep or len(names) > 1) and arguments.mode != "burst":
        configs = {config: result["us"]} | {arm.name: significant(statistics.median(arm.times) * 1e6) for arm in sweep}
        result |= {"configs": configs, "regret": significant(min(configs.values()) / result["us"])}
    registers = table[config].registers
    result |= {"registers": max(registers.values()) if registers else None, "smem_bytes": table[config].smem_bytes}
    return result | ({"rejected_baselines": rejected} if rejected else {})


def is_beside(name: str, arguments: argparse.Namespace) -> bool:
    """Whether a config is to be timed beside the selected one."""
    names = config_names(arguments)
    return bool(arguments.sweep and re.fullmatch(arguments.sweep, name)) or (len(names) > 1 and name in names)


def ways_of_others(work: Work, device: Any, baselines: Sequence[str]) -> tuple[dict[str, list[Arm]], dict[str, str]]:
    """The baselines that JAX compiles: the ways to dispatch each, and why one has none."""
    program = workloads.xla(work.row, work.dtype)
    ways, rejected = {}, {}
    if "xla" in baselines:
        ways["xla"] = work.ways("xla", program)
    if "xla_no_triton" in baselines:
        ways["xla_no_triton"] = work.ways("xla_no_triton", program, {"xla_gpu_enable_triton_gemm": False})
    if "pallas" in baselines and getattr(device, "compute_capability", "") == "9.0":
        try:
            ways["pallas"] = [
                dataclasses.replace(arm, method=f"{arm.method}, {label}")
                for label, way in contenders.pallas_ways(work.row).items()
                for arm in work.ways("pallas", way)
            ]
        except Exception as error:  # as of any baseline
            rejected["pallas"] = f"{type(error).__name__}: {first_line(error)}"
    return ways, rejected


def baseline_arm(
    name: str, work: Work, device: Any, compiled: Mapping[str, list[Arm]], errors: Mapping[str, Exception]
) -> Arm | None:
    """The arm of a baseline; None where there is none on this device. Raises what went wrong with it."""
    if name in errors:
        raise errors[name]
    if name in compiled:
        return work.fastest(compiled[name])
    if device.platform == "gpu" and name in ("torch", "cublaslt"):
        return contenders.torch_arm(work.row, work.sets, name)
    return None


def times(work: Work, arms: list[Arm], sweep: list[Arm], arguments: argparse.Namespace, sampler: Sampler) -> dict:
    """Lets the arms take turns, as --mode says. Returns that part of the report's row."""
    result: dict[str, Any] = {}
    given: dict[str, Any] = {"alternations": arguments.alternations}
    if arguments.mode != "sustained":  # first, while the device is cool
        burst = [arm.again() for arm in arms]
        turn_ms = min(BURST_TURN_MS, arguments.turn_ms)
        idle_ms = arguments.idle_ms
        take_turns(burst, work.programs, work.group, **given, turn_ms=turn_ms, warmup_ms=0, idle_ms=idle_ms)
        of_burst = figures(work.row, burst, sampler)
        result = {"burst": of_burst} if arguments.mode == "both" else of_burst
    if arguments.mode != "burst":
        given |= {"turn_ms": arguments.turn_ms, "warmup_ms": arguments.warmup_ms}
        result["busy_s"] = take_turns(arms + sweep, work.programs, work.group, **given)
        result |= figures(work.row, arms, sampler)
    return result


def selection(row: dict, dtype: Any, config: str | None, device: Device) -> dict[str, str | None]:
    """What chose our kernel on a GPU, and who computes the row in a program that asks for neither."""
    structs = workloads.shapes(row, dtype)
    (asked,) = explain_function(
        workloads.ours(row, dtype, {"implementation": "moye", "config": config}), structs, device
    )
    (free,) = explain_function(workloads.ours(row, dtype, {}), structs, device)
    return {"chosen_by": asked.chosen_by, "by_default": free.computed_by}


def compile_ways(
    wanted: dict[str, list[Arm]], own: Callable[[str], bool]
) -> tuple[dict[str, list[Arm]], dict[str, Exception]]:
    """Compiles all ways of all arms. Returns the ways that work, and for arms without any what went wrong."""
    errors: dict[str, Exception] = {}
    compiled: dict[str, list[Arm]] = {name: [] for name in wanted}
    for way in range(max(map(len, wanted.values()))):
        arms = [ways[way] for ways in wanted.values() if len(ways) > way]
        wrong = contenders.compile_all(arms, lambda arm: own(arm.name))
        errors = wrong | errors  # of the first way, which is the one to hear about
        for arm in arms:
            if arm.name not in wrong:
                compiled[arm.name].append(arm)
    compiled = {name: ways for name, ways in compiled.items() if ways}
    return compiled, {name: error for name, error in errors.items() if name not in compiled}


def config_of(program: str) -> str:
    """The one config named in a lowered program."""
    names = set(re.findall(r'config = "([^"]+)"', program))
    if len(names) != 1:
        raise NotImplementedError(f"the program holds {len(names)} launches of ours, not one")
    return names.pop()


def finite(x: float) -> float | None:
    """A number for JSON, which knows no infinity."""
    return significant(x) if math.isfinite(x) else None


def figures(row: dict, arms: Iterable[Arm], sampler: Sampler) -> dict:
    """The measured part of a row of the report."""
    ours, *others = arms
    median = {arm.name: statistics.median(arm.times) for arm in (ours, *others)}
    flops = 2 * row["batch"] * row["m"] * row["n"] * row["k"]
    result: dict[str, Any] = {
        "us": significant(median["jax_moye"] * 1e6),
        "tflops": significant(flops / median["jax_moye"] / 1e12),
        "baselines": {arm.name: significant(median[arm.name] * 1e6) for arm in others},
    }
    best = min(others, key=lambda arm: median[arm.name], default=None)
    if best is not None:
        low, high = ratio_interval(best.times, ours.times)
        result |= {
            "ratio": significant(median[best.name] / median["jax_moye"]),
            "ratio_ci": [significant(low), significant(high)],
            "best_baseline": best.name,
        }
        # [ours, best baseline]: a row whose clocks differ by more than 2 % compares two clocks, not two kernels.
        for key in Sampler.FIELDS:
            pair = [sampler.mean(key, arm.spans) for arm in (ours, best)]
            result |= {key: pair} if None not in pair else {}
        if "sm_mhz" in result and abs(result["sm_mhz"][0] / result["sm_mhz"][1] - 1) > 0.02:
            result["clocks_differ"] = True
        if reasons := sampler.throttled(ours.spans):
            result["throttled"] = reasons
    # By then the device had finished nearly everything that had been dispatched: it had waited for the host.
    host_bound = [arm.name for arm in (ours, *others) if arm.dispatch > 0.9]
    return result | ({"host_bound": host_bound} if host_bound else {})
