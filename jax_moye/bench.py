"""Times the kernels on the rows of benchmarks/suite.json against XLA and, where it is installed, torch.

What is measured: device time per product. A program is one jitted function of `G` independent products on `G` sets of
operands, so that XLA launches them back to back (as one CUDA graph where its command buffers apply). An arm's turn
dispatches programs over all sets and waits once at its end, some 50 ms later; its time per call is the wall clock of
the turn over the number of products. That is what the public JAX API can time without a loop on the device, which
would have to copy each set out of a stacked array (`lax.fori_loop` over dynamic slices) or would find one hot set in
the L2 cache. Where dispatching took nearly as long as the turn the host was the limit: the row says `host_bound`.
`measure.Arm` is the one place to change for another method of timing (a CUDA graph of our own, events).

- Data are random normal; the sets together are more than twice the L2 cache, so every product finds a cold cache.
- Arms take turns (ours, XLA, torch, ours, ...) in one process, so that clocks and heat treat them alike.
- `us` is the median over an arm's turns; the ratio's interval is a bootstrap over turns (95 %).
- Before timing, a result is compared with float64, over whole rows of the output, one in each band of rows, and after
  timing it must still have the same bits. A wrong result has no time, and the run fails.
- Clocks and power are recorded through NVML and never set.

The JSON's form: benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import datetime
import functools
import importlib.util
import json
import math
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from jax_moye.measure import Arm, Sampler, l2_bytes, ratio_interval, take_turns

ROOT = pathlib.Path(__file__).resolve().parents[1]
EMULATED_CONFIG = "sm80_multistage_bf16_128x128x32_s4_a16"  # what `--emulator` times
NAMES = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64"}  # the suite's word -> NumPy's
LARGEST_GROUP = 32  # products in one program
UNITS = {"bfloat16": 2**-8, "float16": 2**-11, "float32": 2**-24, "float64": 2**-53}  # rounding error of each dtype


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `python -m jax_moye bench`."""
    parser.add_argument("--suite", type=pathlib.Path, help="the rows (default: benchmarks/suite.json)")
    parser.add_argument("--rows", default=".*", help="regular expression that a row's id matches whole, e.g. 'A.*|B2'")
    parser.add_argument("--config", help="use this config for every row, instead of the one jax_moye selects")
    parser.add_argument("--sweep", help="also time every config whose name this regular expression matches whole")
    parser.add_argument(
        "--out", type=pathlib.Path, help="the JSON file to write (default: in results beside the suite)"
    )
    parser.add_argument("--alternations", type=int, default=15, help="turns of each arm")
    parser.add_argument("--turn-ms", type=float, default=50, help="length of one turn")
    parser.add_argument("--warmup-ms", type=float, default=1000, help="how long each row runs before its first turn")
    parser.add_argument("--rotate-mb", type=float, help="least size of all sets together (default: 2.5 x L2 cache)")
    parser.add_argument("--budget-s", type=float, default=math.inf, help="start no row later than this")
    parser.add_argument("--no-torch", action="store_true", help="leave torch out")
    parser.add_argument("--interpret", action="store_true", help="without a GPU: try the benchmark, not the kernels")
    parser.add_argument("--emulator", action="store_true", help="time one launch in the CPU emulator, and nothing else")


def main(arguments: argparse.Namespace) -> int:
    """Runs the benchmark. Returns 0, 1 if a result was wrong or nothing could be timed, 2 if there is no GPU."""
    if arguments.emulator:
        return bench_emulator()
    # Torch shares the card with JAX in this process. Read when the backend starts, which is later than now.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax

    device = jax.devices()[0]
    if device.platform != "gpu" and not arguments.interpret:
        print(
            "jax_moye bench: JAX sees no GPU. `--emulator` times the CPU emulator, `--interpret` tries the benchmark.",
            file=sys.stderr,
        )
        return 2
    places = (
        [arguments.suite] if arguments.suite else [root / "benchmarks/suite.json" for root in (pathlib.Path(), ROOT)]
    )
    suite = next((place for place in places if place.is_file()), None)
    if suite is None:
        print("jax_moye bench: no benchmarks/suite.json here: run it in a clone, or name --suite", file=sys.stderr)
        return 1
    rows = [row for row in json.loads(suite.read_text())["rows"] if re.fullmatch(arguments.rows, row["id"])]
    if not rows:
        print(f"jax_moye bench: no row of {suite} matches {arguments.rows!r}", file=sys.stderr)
        return 1
    report = describe(device, arguments)
    path = arguments.out or suite.parent / "results" / file_name(report)
    path.parent.mkdir(parents=True, exist_ok=True)
    with jax.enable_x64(True):  # the references are float64; every operand's dtype is explicit
        for _ in run(rows, device, arguments, report):
            path.write_text(json.dumps(report, indent=1) + "\n")  # a run cut short leaves the rows it had
    for skipped in report["not_run"]:
        print(f"{skipped['id']:4} not run: {skipped['why']}")
    print(f"written to {path}")
    return 0 if report["rows"] and all(row["correct"] for row in report["rows"]) else 1


def run(rows: list[dict], device, arguments: argparse.Namespace, report: dict) -> Iterator[dict]:
    """Fills in the report, row by row."""
    deadline = time.monotonic() + arguments.budget_s
    refused = (NotImplementedError, ValueError) if arguments.config else NotImplementedError
    sampler = Sampler()
    for row in rows:
        try:
            if time.monotonic() > deadline:
                raise NotImplementedError(f"the budget of {arguments.budget_s:g} s was over")
            report["rows"].append(bench_row(row, device, arguments, sampler, report["protocol"]))
        except refused as error:  # valid, but no compiled kernel serves it
            report["not_run"].append({"id": row["id"], "why": first_line(error)})
        except Exception as error:  # ours: the run fails, the other rows are still worth having
            report["rows"].append(
                identity(row) | {"correct": False, "why": f"{type(error).__name__}: {first_line(error)}"}
            )
        if report["rows"]:
            report["protocol"]["mode"] = mode(report["rows"])
            if report["rows"][-1]["id"] == row["id"]:
                print(line(report["rows"][-1]), flush=True)
        yield report
    sampler.close()


# One row ---------------------------------------------------------------------------------------------------------


def bench_row(row: dict, device, arguments: argparse.Namespace, sampler: Sampler, protocol: dict) -> dict:
    """Checks and times one row of the suite. Raises NotImplementedError where no compiled kernel serves it."""
    import jax

    import jax_moye

    if row["dtype"] not in NAMES or "epilogue" in row:
        raise NotImplementedError(row.get("epilogue") or f"{row['dtype']} operands")
    dtype = jax.numpy.dtype(NAMES[row["dtype"]])
    options = {"implementation": "moye", "config": arguments.config, "interpret": arguments.interpret or None}
    ours = lambda a, b: jax_moye.matmul(a, b, precision=precision_of(row), **options)  # noqa: E731
    theirs = lambda a, b: jax.numpy.matmul(a, b, precision=precision_of(row))  # noqa: E731
    config = config_of(jax.jit(in_layout(row, ours)).lower(*shapes(row, dtype)).as_text())

    elements = sum(s.size for s in shapes(row, dtype)) + row["batch"] * row["m"] * row["n"]
    footprint = elements * dtype.itemsize
    group, programs = rotation(row, footprint, protocol["rotated_bytes"], device)
    a, b = operands(row, dtype, group * programs)
    sets = [(a[i : i + group], b[i : i + group]) for i in range(0, len(a), group)]

    result = identity(row) | {"config": config, "chosen_by": "explicit" if arguments.config else "model"}
    arms = [jax_arm("jax_moye", in_layout(row, ours), sets)]
    first = arms[0].run(0)
    worst = largest_excess(row, a[0], b[0], first[0], dtype)
    result |= {"correct": worst <= 1, "error_over_bound": significant(worst) if math.isfinite(worst) else None}
    if not result["correct"]:
        return result

    sweep, wrong = [], {}
    for entry in jax_moye.configs() if arguments.sweep else ():
        if entry.name == config or not re.fullmatch(arguments.sweep, entry.name):
            continue
        matmul = functools.partial(jax_moye.matmul, precision=precision_of(row), **options | {"config": entry.name})
        try:
            arm = jax_arm(entry.name, in_layout(row, matmul), sets)
            excess = largest_excess(row, a[0], b[0], arm.run(0)[0], dtype)
        except ValueError:  # the config does not serve this row
            continue
        if excess <= 1:
            sweep.append(arm)
        else:
            wrong[entry.name] = significant(excess) if math.isfinite(excess) else None
    if wrong:
        return result | {"correct": False, "why": f"errors over their bounds: {wrong}"}

    baselines = {"xla": lambda: jax_arm("xla", in_layout(row, theirs), sets)}
    if not arguments.no_torch and device.platform == "gpu" and importlib.util.find_spec("torch"):
        baselines["torch"] = lambda: torch_arm(row, sets)
    rejected = {}
    for name, make in baselines.items():
        try:
            arm = make()
            d = arm.run(0)[0]
            arm.wait()
            worst = largest_excess(row, a[0], b[0], jax.numpy.from_dlpack(d), dtype, baseline=True)
        except Exception as error:  # a baseline that fails must not hide our own figure
            rejected[name] = f"{type(error).__name__}: {first_line(error)}"
            continue
        if worst <= 1:
            arms.append(arm)
        else:  # a baseline that computes something else is no baseline
            rejected[name] = f"its error is {worst:.3g} times the bound"

    busy = take_turns(
        arms + sweep,
        programs,
        group,
        alternations=arguments.alternations,
        turn_ms=arguments.turn_ms,
        warmup_ms=arguments.warmup_ms,
    )
    again = arms[0].run(0)
    if not all(same_bits(x, y) for x, y in zip(first, again, strict=True)):
        return result | {"correct": False, "why": "the bits changed from run to run"}
    result |= figures(row, arms, sampler) | {"sets": len(a), "rotated_bytes": footprint * len(a), "busy_s": busy}
    if sweep:
        configs = {config: result["us"]} | {arm.name: significant(statistics.median(arm.times) * 1e6) for arm in sweep}
        result |= {"configs": configs, "regret": significant(min(configs.values()) / result["us"])}
    entry = next(c for c in jax_moye.configs() if c.name == config)
    registers = max(entry.registers.values()) if entry.registers else None
    result |= {"registers": registers, "smem_bytes": entry.smem_bytes}
    return result | ({"rejected_baselines": rejected} if rejected else {})


def identity(row: dict) -> dict:
    """What the report repeats of the suite's row."""
    return {key: row[key] for key in ("id", "regime", "batch", "m", "n", "k", "layout", "dtype")}


def figures(row: dict, arms: list[Arm], sampler: Sampler) -> dict:
    """The measured part of a row of the report."""
    ours, *others = arms
    median = {arm.name: statistics.median(arm.times) for arm in arms}
    flops = 2 * row["batch"] * row["m"] * row["n"] * row["k"]
    result: dict[str, Any] = {
        "us": significant(median["jax_moye"] * 1e6),
        "tflops": significant(flops / median["jax_moye"] / 1e12),
        "baselines": {arm.name: significant(median[arm.name] * 1e6) for arm in others},
    }
    if others:
        best = min(others, key=lambda arm: median[arm.name])
        low, high = ratio_interval(best.times, ours.times)
        result |= {
            "ratio": significant(median[best.name] / median["jax_moye"]),
            "ratio_ci": [significant(low), significant(high)],
            "best_baseline": best.name,
        }
        # [ours, best baseline]: a row whose clocks differ by more than 2 % compares two clocks, not two kernels.
        for key in ("sm_mhz", "watts"):
            if pair := [sampler.mean(key, arm.spans) for arm in (ours, best)]:
                result |= {key: pair} if None not in pair else {}
        if "sm_mhz" in result and abs(result["sm_mhz"][0] / result["sm_mhz"][1] - 1) > 0.02:
            result["clocks_differ"] = True
    # By then the device had finished nearly everything that had been dispatched: it had waited for the host.
    host_bound = [arm.name for arm in arms if arm.dispatch > 0.9]
    return result | ({"host_bound": host_bound} if host_bound else {})


# Operands and arms -----------------------------------------------------------------------------------------------


def shapes(row: dict, dtype) -> tuple:
    """The stored shapes of a and b: a letter T of the row's layout means stored transposed."""
    import jax

    lead = (row["batch"],) if row["batch"] > 1 else ()
    a, b = (row["m"], row["k"]), (row["k"], row["n"])
    stored = [shape[::-1] if letter == "T" else shape for shape, letter in zip((a, b), row["layout"], strict=True)]
    return tuple(jax.ShapeDtypeStruct(lead + shape, dtype) for shape in stored)


def in_layout(row: dict, matmul: Callable) -> Callable:
    """`matmul` of the operands as stored. Works on jax arrays and torch tensors."""
    turn = [(lambda x: x.swapaxes(-1, -2)) if letter == "T" else (lambda x: x) for letter in row["layout"]]
    return lambda a, b: matmul(turn[0](a), turn[1](b))


def precision_of(row: dict) -> str | None:
    """The row's precision as `jnp.matmul` spells it."""
    return row["precision"].lower() if "precision" in row else None


def config_of(program: str) -> str:
    """The one config named in a lowered program."""
    names = set(re.findall(r'config = "([^"]+)"', program))
    if len(names) != 1:
        raise NotImplementedError(f"the program holds {len(names)} launches of ours, not one")
    return names.pop()


def rotation(row: dict, footprint: int, rotated_bytes: int, device) -> tuple[int, int]:
    """(products in a program, programs): their sets together hold at least `rotated_bytes`, and are at least three."""
    sets = max(3, math.ceil(rotated_bytes / footprint))
    limit = (device.memory_stats() or {}).get("bytes_limit") if device.platform == "gpu" else None
    if limit:
        sets = max(1, min(sets, int(0.25 * limit / footprint)))
    # A launch of the program costs the host some 100 us: long products need few in a program, short ones many.
    us = 2 * row["batch"] * row["m"] * row["n"] * row["k"] / 500e6 + footprint / 3e6
    group = min(sets, LARGEST_GROUP, max(3, math.ceil(400 / us)))
    return group, math.ceil(sets / group)


def operands(row: dict, dtype, count: int) -> tuple[list, list]:
    """`count` different sets of normal operands."""
    import jax

    @jax.jit
    def make(key):
        keys = jax.random.split(key)
        return [jax.random.normal(k, s.shape, s.dtype) for k, s in zip(keys, shapes(row, dtype), strict=True)]

    pairs = [make(key) for key in jax.random.split(jax.random.key(row["m"] * row["n"] + row["k"]), count)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def jax_arm(name: str, matmul: Callable, sets: list) -> Arm:
    """The products of one group in one jitted program."""
    import jax

    program = jax.jit(lambda a, b: [matmul(x, y) for x, y in zip(a, b, strict=True)])
    last: list = []

    def run(i: int):
        last[:] = program(*sets[i])  # the results before are dropped: the device reuses their memory in order
        return list(last)

    return Arm(name, run, lambda: jax.block_until_ready(last))


def torch_arm(row: dict, sets: list) -> Arm:
    """torch.matmul on the same buffers, each group captured as a CUDA graph; eager where capturing fails."""
    import torch

    torch.backends.cuda.matmul.allow_tf32 = row.get("precision") == "DEFAULT"
    matmul = in_layout(row, torch.matmul)
    tensors = [[(torch.from_dlpack(x), torch.from_dlpack(y)) for x, y in zip(a, b, strict=True)] for a, b in sets]
    out = [matmul(a, b) for a, b in tensors[0]]
    into = [in_layout(row, functools.partial(torch.matmul, out=d)) for d in out]

    def eager(i: int):
        for matmul_into, pair in zip(into, tensors[i], strict=True):
            matmul_into(*pair)
        return out

    torch.cuda.synchronize()
    graphs = []
    try:
        for i in range(len(tensors)):
            graphs.append(torch.cuda.CUDAGraph())
            with torch.cuda.graph(graphs[-1]):
                eager(i)
    except RuntimeError as error:
        print(f"torch: no CUDA graph, timed eagerly: {error}", file=sys.stderr)
        return Arm("torch", eager, torch.cuda.synchronize)

    def replay(i: int):
        graphs[i].replay()
        return out

    return Arm("torch", replay, torch.cuda.synchronize)


# Correctness -----------------------------------------------------------------------------------------------------


def largest_excess(row: dict, a, b, d, dtype, baseline: bool = False) -> float:
    """The largest |error| over its bound, on whole rows of the output, one in each band of rows. NaN counts as wrong.

    The bound is componentwise: products of 16 terms summed exactly, then in f32 with truncation, as tensor cores do,
    or term by term in the operands' precision; and one rounding to the output's dtype.
    """
    import jax
    import jax.numpy as jnp

    if row["layout"][0] == "T":
        a = a.swapaxes(-1, -2)
    if row["layout"][1] == "T":
        b = b.swapaxes(-1, -2)
    m, k = row["m"], row["k"]
    band = max(16, math.ceil(m / 256))
    rng = np.random.default_rng(m)
    picked = np.array([rng.integers(start, min(start + band, m)) for start in range(0, m, band)] + [m - 1])

    name = jnp.dtype(dtype).name
    tensor_core = name in ("bfloat16", "float16")
    # Twice k: the float64 reference of a float64 product errs too.
    factor = (math.ceil(k / 16) + 2) * 2 * UNITS["float32"] if tensor_core else 2 * k * UNITS[name]
    if baseline and name == "float32" and row.get("precision", "DEFAULT") == "DEFAULT":
        factor += 2 * UNITS["float16"]  # XLA and torch may round operands to tf32, which keeps as many bits as f16

    @jax.jit
    def excess(a, b, d):
        a, b, d = (x.astype(jnp.float64) for x in (a[..., picked, :], b, d[..., picked, :]))
        exact = jnp.matmul(a, b, precision="highest")
        bound = factor * jnp.matmul(jnp.abs(a), jnp.abs(b), precision="highest") + UNITS[name] * jnp.abs(exact)
        ratio = jnp.abs(d - exact) / bound
        return jnp.max(jnp.where(jnp.isnan(ratio), jnp.inf, ratio))

    if a.ndim == 3:  # one product of the batch at a time: float64 operands are large
        return max(float(excess(a[i], b[i], d[i])) for i in range(a.shape[0]))
    return float(excess(a, b, d))


def same_bits(x, y) -> bool:
    """Whether two device arrays hold the same bits; compared on the device."""
    import jax.numpy as jnp

    word = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[x.dtype.itemsize]
    return bool(jnp.array_equal(x.view(word), y.view(word)))


# The machine -----------------------------------------------------------------------------------------------------


def describe(device, arguments: argparse.Namespace) -> dict:
    """The head of the report: machine, versions, protocol."""
    import jax
    import jaxlib

    rotated = arguments.rotate_mb * 1e6 if arguments.rotate_mb is not None else 2.5 * l2_bytes()
    torch = importlib.util.find_spec("torch") and not arguments.no_torch
    return {
        "gpu": device.device_kind,
        "driver": command_output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"),
        "cuda": getattr(device.client, "platform_version", "").replace("\n", " "),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "torch": importlib.import_module("torch").__version__ if torch else None,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "commit": os.environ.get("JAX_MOYE_COMMIT")
        or command_output("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=9")
        or "unknown",
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "emulated": device.platform != "gpu",
        "protocol": {
            "data": "normal",
            "rotated_bytes": int(rotated),
            "alternations": arguments.alternations,
            "turn_ms": arguments.turn_ms,
            "warmup_ms": arguments.warmup_ms,
            "method": "jitted programs of independent products, wall clock per turn, one wait at its end",
        },
        "rows": [],
        "not_run": [],
    }


def first_line(error: Exception) -> str:
    """What an exception says, shortened."""
    return (str(error).splitlines() or [""])[0][:300]


def command_output(*command: str) -> str:
    """A command's output, empty if it is missing or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def file_name(report: dict) -> str:
    """`<gpu>-<date>-<commit>.json`."""
    gpu = re.sub(r"[^a-z0-9]+", "_", report["gpu"].lower()).strip("_")
    return f"{gpu}-{re.sub('[^0-9TZ]', '', report['date'])}-{report['commit']}.json"


def mode(rows: list[dict]) -> str:
    """`sustained` if every row kept the device busy for 3 s, which clocks take to settle; else `short`."""
    return "sustained" if all(row.get("busy_s", 0) >= 3 for row in rows) else "short"


def line(row: dict) -> str:
    """One row of the table on the screen."""
    size = f"{row['id']:4} {row['batch']}x{row['m']}x{row['n']}x{row['k']} {row['layout']} {row['dtype']}"
    if not row["correct"]:
        return f"{size:38} WRONG: {row.get('why') or 'error over its bound: ' + str(row['error_over_bound'])}"
    text = f"{size:38} {row['us']:>9} us {row['tflops']:>7} TFLOP/s"
    for name, us in row["baselines"].items():
        text += f"  {name} {us} us"
    if "ratio" in row:
        text += f"  ratio {row['ratio']:.3f} [{row['ratio_ci'][0]:.3f}, {row['ratio_ci'][1]:.3f}]"
    return text + f"  {row['config']}" + ("  host-bound" if "host_bound" in row else "")


def table(report: dict) -> str:
    """A report as text: the machine, a line for each row, and the geometric mean of the ratios by regime."""
    lines = [f"{report['gpu']}, jax {report['jax']}, commit {report['commit']}, {report['date']}"]
    lines += [line(row) for row in report["rows"]]
    ratios: dict[str, list[float]] = {}
    for row in report["rows"]:
        if "ratio" in row:
            ratios.setdefault(row["regime"], []).append(row["ratio"])
    for regime, values in ratios.items():
        lines.append(
            f"{regime}: geometric mean of the ratios {statistics.geometric_mean(values):.3f} of {len(values)} rows"
        )
    return "\n".join(lines)


def significant(x: float, digits: int = 4) -> float:
    """`x` rounded to some significant digits."""
    return float(f"{x:.{digits}g}")


# The emulator ----------------------------------------------------------------------------------------------------


def bench_emulator(size: int = 256, repeats: int = 20) -> int:
    """Prints the CPU milliseconds of one emulated launch with the race checker: best and median of `repeats`."""
    import ml_dtypes

    from jax_moye import _moye_cpu

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, (size, size)).astype(ml_dtypes.bfloat16) for _ in "ab")
    d = np.zeros((size, size), ml_dtypes.bfloat16)
    row_major = [size * size, size, 1]
    times = []
    for _ in range(repeats):
        start = time.process_time()
        outcome = _moye_cpu.emulate(
            EMULATED_CONFIG,
            a,
            b,
            d,
            sizes=[1, size, size, size],
            a_strides=row_major,
            b_strides=[size * size, 1, size],
            d_strides=row_major,
            detect_races=True,
            workers=1,
            guard=False,
        )
        times.append(1000 * (time.process_time() - start))
        if not outcome["ok"]:
            print(f"jax_moye bench: {outcome['message']}", file=sys.stderr)
            return 1
    expected = (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    correct = np.array_equal(d.view(np.uint16), expected.view(np.uint16))
    print(
        f"{EMULATED_CONFIG} {size}x{size}x{size}, race checker on, one worker: "
        f"best {min(times):.1f} ms, median {statistics.median(times):.1f} ms of CPU time per launch over {repeats}, "
        f"{'correct' if correct else 'WRONG'}"
    )
    return 0 if correct else 1
