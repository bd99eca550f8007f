"""The benchmark without a GPU: all of it on small shapes in the emulator, and the CPU time of a launch there."""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import tempfile
import time

import numpy as np

EMULATED_CONFIG = "sm80_multistage_bf16_128x128x32_s4_a16"  # whose launch `--emulator` times
SHAPES = ("64x48x40:bf16", "2x32x48x40:f32:NT")


def quick(arguments: argparse.Namespace) -> None:
    """Makes of the arguments of `bench` those of a short run in the emulator, whose times mean nothing."""
    arguments.interpret = True
    arguments.shape = arguments.shape or list(SHAPES)
    arguments.out = arguments.out or pathlib.Path(tempfile.mkdtemp(prefix="jax_moye_bench_")) / "emulated.json"
    arguments.no_torch = True
    arguments.alternations, arguments.turn_ms, arguments.warmup_ms, arguments.idle_ms = 3, 1.0, 0.0, 0.0
    arguments.rotate_mb = 0.1


def time_launch(size: int = 256, repeats: int = 20) -> int:
    """Prints the CPU milliseconds of one emulated launch with the race checker: best and median of `repeats`.

    Returns 0, and 1 if the result is wrong. A build without EMULATED_CONFIG has nothing to print.
    """
    import ml_dtypes

    import jax_moye
    from jax_moye import _moye_cpu

    if EMULATED_CONFIG not in {config.name for config in jax_moye.configs()}:
        return 0

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
