"""Times our kernels on workloads, those of benchmarks/suite.json or shapes of one's own, against XLA, torch and others.

What is measured: device time per product. A contender's round dispatches its programs over all sets of operands and
waits once at its end, some 50 ms later; its time per product is the wall clock of the round over the number of its
products. _timing/programs.py says what the programs are. Where dispatching took nearly as long as the round the host
was the limit: the result says `host_bound`.

- Data are random normal; the sets together are more than twice the L2 cache, so every product finds a cold cache.
- Contenders alternate (ours, XLA, torch, ours, ...) in one process, so that clocks and heat treat them alike.
- Sustained: the device has been busy for 3 s before the first round that counts. Burst: it rests before each round, so
  that its clock is at its highest.
- `us` is the median over a contender's rounds; the ratio's interval is a bootstrap over rounds (95 %).
- One half of the rounds chooses the best baseline, and the other half makes the ratio: the least of several noisy
  times is too low where it was chosen.
- Before timing, a result is compared with float64, over whole rows of the output, one in each band of rows, and after
  timing it must still have the same bits. A wrong result has no time, and the run fails.
- Clocks, power and temperature are recorded through NVML and never set.

The JSON's form: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import pathlib
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jax_moye._bench import contenders, default_way, results
from jax_moye._format import error_line, first_line, significant, wrapped
from jax_moye._inspect.programs import explain_workload, workload_program
from jax_moye._kernels.configs import GemmConfig, configs, find_config
from jax_moye._kernels.devices import Device, of_jax
from jax_moye._timing.correctness import Reference, Tolerance, of_baseline, of_config, of_workload, same_bits
from jax_moye._timing.files import write_json
from jax_moye._timing.gpu import Sampler
from jax_moye._timing.operands import expected_us, random_sets, rotation
from jax_moye._timing.progress import progress
from jax_moye._timing.rounds import Contender, against_best, alternate, ratio_interval
from jax_moye._timing.workloads import Workload

INTERRUPTED = 130  # what a shell calls a command that Ctrl-C ended
CLOCKS_DIFFER = 0.02  # by more than this share they compare two clocks, not two kernels
THREE_TF32 = ("HIGH", "TF32_TF32_F32_X3")  # precisions that our kernels of TF32 serve in three launches


def config_names(arguments: argparse.Namespace) -> list[str]:
    """All names of --config."""
    return [name for text in arguments.config or () for name in text.split(",") if name]


def baseline_names(arguments: argparse.Namespace) -> list[str]:
    """The baselines to time, of those that can be had here."""
    names = [name for name in arguments.baselines.split(",") if name]
    if arguments.no_torch:
        names = [name for name in names if name != "torch"]
    return [name for name in names if contenders.importable(name)]


def check(arguments: argparse.Namespace) -> None:
    """Raises ValueError where --config or --baselines name what does not exist."""
    for name in config_names(arguments):
        try:
            find_config(name)
        except ValueError as error:
            raise ValueError(f"--config: {error}") from None
    for name in arguments.baselines.split(","):
        if name and name not in contenders.BASELINES:
            raise ValueError(f"--baselines {name!r} is none of {', '.join(contenders.BASELINES)}")


def run_and_write(
    workloads: Sequence[Workload], device: Any, arguments: argparse.Namespace, report: dict, path: pathlib.Path
) -> int:
    """Runs all workloads, writing the file after each. Returns the exit status."""
    try:
        for _ in run(workloads, device, arguments, report):
            write_json(report, path)  # a run cut short leaves the results it had
    except KeyboardInterrupt:
        done = {result["id"] for result in [*report["rows"], *report["not_run"]]}
        left = [workload.id for workload in workloads if workload.id not in done]
        report["not_run"] += [{"id": name, "why": "interrupted"} for name in left]
        write_json(report, path)
        return INTERRUPTED
    return 0 if report["rows"] and all(result["correct"] for result in report["rows"]) else 1


def run(workloads: Sequence[Workload], device: Any, arguments: argparse.Namespace, report: dict) -> Iterator[dict]:
    """Fills in the report, workload by workload."""
    deadline = time.monotonic() + arguments.budget_s
    refused = (NotImplementedError, ValueError) if config_names(arguments) else NotImplementedError
    with contextlib.closing(Sampler()) as sampler:
        for workload in progress(workloads, len(workloads), lambda workload: workload.id):
            begin = time.monotonic()
            try:
                if begin > deadline:
                    raise NotImplementedError(f"the budget of {arguments.budget_s:g} s was over")
                result = bench_workload(workload, device, arguments, sampler, report["protocol"]["rotated_bytes"])
                report["rows"].append(result | {"seconds": significant(time.monotonic() - begin, 3)})
            except refused as error:  # valid, but no compiled kernel serves it
                report["not_run"].append({"id": workload.id, "why": first_line(error)})
            except Exception as error:  # ours: the run fails, the other workloads are still worth having
                report["rows"].append(workload.to_json() | {"correct": False, "why": error_line(error)})
            if report["rows"] and report["rows"][-1]["id"] == workload.id:
                print("\n".join(wrapped(results.line(report["rows"][-1]), indent=" " * 5)), flush=True)
            yield report


# One workload ----------------------------------------------------------------------------------------------------


def bench_workload(
    workload: Workload, device: Any, arguments: argparse.Namespace, sampler: Sampler, least_bytes: int
) -> dict:
    """Checks and times one workload. Raises NotImplementedError where no compiled kernel serves it."""
    names = config_names(arguments)
    explicit = names[0] if len(names) == 1 else None
    options = {"implementation": "moye", "config": explicit, "interpret": arguments.interpret or None}
    # The first: what is measured for it, the others are told.
    free = workload_program(workload, interpret=options["interpret"])
    way = default_way.find(free, contenders.xla_program(workload), workload.structs)
    program = workload_program(workload, **options)
    config = config_of(jax.jit(program).lower(*workload.structs).as_text())
    table = {entry.name: entry for entry in (*configs(), *map(find_config, names))}
    result = workload.to_json() | {"config": config, "chosen_by": "explicit" if explicit else "model"}
    if device.platform == "gpu":
        result["chosen_by"] = chosen_by(workload, explicit, of_jax(device))
    result["by_default"] = way.by

    us = expected_us(workload.flops, workload.footprint)
    rotating = rotation(us, workload.footprint, least_bytes, device)
    sets = random_sets(workload.structs, rotating, workload.seed)
    reference = of_workload(workload, sets.first)
    launches = contenders.LAUNCHES[arguments.launches]
    beside = [name for name in table if name != config and is_beside(name, arguments)]
    ours = {"jax_moye": contenders.variants("jax_moye", program, sets, launches)}
    for name in beside:
        with_config = workload_program(workload, **options | {"config": name})
        ours[name] = contenders.variants(name, with_config, sets, launches)
    others, rejected = contenders.jax_baselines(workload, sets, device, baseline_names(arguments), launches)
    timed_as = way.timed_as(config, beside)
    if timed_as == default_way.OWN:
        others[timed_as] = contenders.variants(timed_as, way.program, sets, launches)
    compiled, errors = contenders.compile_variants(ours | others, lambda name: name in ours)
    for name in (*ours, default_way.OWN):
        if name in errors and (name not in beside or not isinstance(errors[name], ValueError)):
            raise errors[name]  # a ValueError says that a config does not serve this workload

    selected = contenders.fastest(compiled["jax_moye"])
    first = [jnp.copy(d) for d in selected.run(0)]  # copies: a loop writes over its results
    worst = reference.excess(first[0], tolerance(workload, table[config]))
    result |= {"correct": worst <= 1, "error_over_bound": finite(worst)}
    if not result["correct"]:
        return result
    also = [contenders.fastest(compiled[name]) for name in (*beside, default_way.OWN) if name in compiled]
    excesses = {}
    for one in also:
        runs = way.config if one.name == default_way.OWN else one.name
        if runs is None:
            excesses[one.name] = baseline_excess(workload, one, reference)
        else:
            excesses[one.name] = reference.excess(one.run(0)[0], tolerance(workload, table[runs]))
    if wrong := {name: finite(excess) for name, excess in excesses.items() if not excess <= 1}:
        return result | {"correct": False, "why": f"errors over their bounds: {wrong}"}

    baselines = []
    for name in baseline_names(arguments):
        try:
            baseline = contenders.baseline(name, workload, sets, device, compiled, errors)
            if baseline is None:
                continue
            worst = baseline_excess(workload, baseline, reference)
        except Exception as error:  # a baseline that fails must not hide our own figure
            rejected[name] = error_line(error)
            continue
        if worst <= 1:
            baselines.append(baseline)
        else:  # a baseline that computes something else is no baseline
            rejected[name] = f"its error is {worst:.3g} times the bound"

    default = [one for one in also if one.name == timed_as]
    field = Field(selected, baselines, default, [one for one in also if one not in default], timed_as)
    result |= times(workload, field, arguments, sampler)
    if not all(same_bits(x, y) for x, y in zip(first, selected.run(0), strict=True)):
        wrong_bits = {"config": config, "correct": False, "why": "the bits changed from run to run"}
        return workload.to_json() | wrong_bits
    result |= {"sets": len(sets), "rotated_bytes": workload.footprint * len(sets)}
    result["methods"] = {contender.name: contender.method for contender in field.racing}
    if (arguments.sweep or len(names) > 1) and arguments.mode != "burst":
        of_all = {config: result["us"]} | {
            one.name: significant(one.seconds * 1e6) for one in also if one.name in beside
        }
        result |= {"configs": of_all, "regret": significant(min(of_all.values()) / result["us"])}
    registers = table[config].registers
    result |= {"registers": max(registers.values()) if registers else None, "smem_bytes": table[config].smem_bytes}
    return result | ({"rejected_baselines": rejected} if rejected else {})


def is_beside(name: str, arguments: argparse.Namespace) -> bool:
    """Whether a config is to be timed beside the selected one."""
    names = config_names(arguments)
    return bool(arguments.sweep and re.fullmatch(arguments.sweep, name)) or (len(names) > 1 and name in names)


def tolerance(workload: Workload, config: GemmConfig) -> Tolerance:
    """What is allowed to one of our kernels."""
    split = config.dtype == "tf32" and workload.precision in THREE_TF32
    return of_config(config, workload.k, split)


def baseline_excess(workload: Workload, baseline: Contender, reference: Reference) -> float:
    """The largest error of a baseline over its bound."""
    d = jnp.from_dlpack(baseline.run(0)[0])
    baseline.wait()
    is_highest = workload.precision == "HIGHEST"
    return reference.excess(d, of_baseline(workload.table_dtype, workload.k, d.dtype, is_highest=is_highest))


class Field(NamedTuple):
    """Who is timed.

    Attributes:
      ours: the kernel that jax_moye selected.
      baselines: who else computes the workload.
      default: of what a program runs that asks for nothing the contender, where it is none of these; else empty.
      sweep: other configs.
      timed_as: the name of the contender that is the default, whoever it is.
    """

    ours: Contender
    baselines: Sequence[Contender]
    default: Sequence[Contender]
    sweep: Sequence[Contender]
    timed_as: str

    @property
    def racing(self) -> list[Contender]:
        """All but the sweep."""
        return [self.ours, *self.baselines, *self.default]


def times(workload: Workload, field: Field, arguments: argparse.Namespace, sampler: Sampler) -> dict:
    """Lets the contenders alternate, as --mode says. Returns that part of the result."""
    result: dict[str, Any] = {}
    rounds = arguments.alternations
    if arguments.mode != "sustained":  # first, while the device is cool
        round_ms = min(results.BURST_ROUND_MS, arguments.turn_ms)
        alternate(field.racing, rounds=rounds, round_ms=round_ms, warmup_ms=0, idle_ms=arguments.idle_ms)
        of_burst = figures(workload, field, arguments, sampler)
        result = {"burst": of_burst} if arguments.mode == "both" else of_burst
    if arguments.mode != "burst":
        given = {"rounds": rounds, "round_ms": arguments.turn_ms, "warmup_ms": arguments.warmup_ms}
        result["busy_s"] = alternate([*field.racing, *field.sweep], **given)
        result |= figures(workload, field, arguments, sampler)
    return result


def chosen_by(workload: Workload, config: str | None, device: Device) -> str | None:
    """What chose our kernel on a GPU."""
    (asked,) = explain_workload(workload, device, implementation="moye", config=config)
    return asked.chosen_by


def config_of(program: str) -> str:
    """The one config named in a lowered program."""
    names = default_way.configs_in(program)
    if len(names) != 1:
        raise NotImplementedError(f"the program holds {len(names)} launches of ours, not one")
    return names.pop()


def finite(x: float) -> float | None:
    """A number for JSON, which knows no infinity."""
    return significant(x) if math.isfinite(x) else None


def figures(workload: Workload, field: Field, arguments: argparse.Namespace, sampler: Sampler) -> dict:
    """The measured part of a result."""
    ours, others = field.ours, field.baselines
    result: dict[str, Any] = {
        "us": significant(ours.seconds * 1e6),
        "us_ci": [significant(end * 1e6) for end in ratio_interval(ours.times, [1.0] * len(ours.times))],
        "tflops": significant(workload.flops / ours.seconds / 1e12),
        "baselines": {other.name: significant(other.seconds * 1e6) for other in others},
    }
    if others:
        best, ratio, interval = against_best(ours, others)
        result |= {
            "ratio": significant(ratio),
            "ratio_ci": [significant(end) for end in interval],
            "best_baseline": best.name,
        }
        for key in Sampler.FIELDS:  # [ours, the best baseline]
            pair = [sampler.mean(key, contender.spans) for contender in (ours, best)]
            result |= {key: pair} if None not in pair else {}
        if "sm_mhz" in result and abs(result["sm_mhz"][0] / result["sm_mhz"][1] - 1) > CLOCKS_DIFFER:
            result["clocks_differ"] = True
        if reasons := sampler.throttled(ours.spans):
            result["throttled"] = reasons
    result |= default_figures(field.timed_as, field.racing)
    host_bound = [contender.name for contender in field.racing if contender.host_bound]
    return result | ({"host_bound": host_bound} if host_bound and not arguments.interpret else {})


def default_figures(timed_as: str, timed: Iterable[Contender]) -> dict[str, Any]:
    """The part of a result on the default way: its time, and XLA's default over it.

    Args:
      timed_as: the contender that is the same program.
      timed: all contenders.
    """
    by_name = {contender.name: contender for contender in timed}
    default, xla = by_name.get(timed_as), by_name.get("xla")
    if default is None:  # "xla" is no baseline here
        return {}
    result: dict[str, Any] = {"default_us": significant(default.seconds * 1e6), "default_timed_as": timed_as}
    if default is xla:
        return result | {"default_ratio": 1.0, "default_ratio_ci": [1.0, 1.0]}
    if xla is not None:
        interval = ratio_interval(xla.times, default.times)
        result["default_ratio"] = significant(xla.seconds / default.seconds)
        result["default_ratio_ci"] = [significant(end) for end in interval]
    return result
